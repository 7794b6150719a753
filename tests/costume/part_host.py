# SPDX-License-Identifier: GPL-3.0-or-later
"""Operating system, container engine, storage and services of a dressed node.

Everything that the collectors host, container, storage and service read stands here: an Ubuntu 24.04
with Docker 28, the NVIDIA toolkit and a CDI specification, chrony, a large local file system for
weights, and no vLLM service yet.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from ansible_collections.inferops.vllm.plugins.module_utils.node import container, host, storage, systemd
from ansible_collections.inferops.vllm.plugins.module_utils.node import kernel_log as node_log
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Ran

from . import BOOTED_AT, NOW, Spec, Wardrobe

IMAGE = "vllm/vllm-openai:kimi-k3"
"""Image that every dressed node with GPUs holds."""
VLLM = "0.27.1"
NCCL = "2.28.9"
DOCKER = "28.5.1"
TOOLKIT = "1.18.0"
WEIGHTS = "/var/lib/vllm"
UNIT = "vllm.service"
FOREIGN_PID = 41877
"""Process of the fault foreign_holder."""
STUCK_PID = 42113
"""The nvidia-smi that hangs in the fault smi_hung."""
PERSISTENCED_PID = 1911
NEWER_DRIVER = "580.105.08"
"""What the fault pending_reboot has on disk."""

_GIB = 1 << 30


def digest(spec: Spec) -> str:
    """Digest of the image on this node, ``sha256:…``."""
    return "sha256:" + hashlib.sha256(b"drifted image" if "image_drift" in spec.faults else b"image").hexdigest()


def kernel(spec: Spec) -> str:
    """Release of the running kernel."""
    return "6.14.0-1015-nvidia-64k" if spec.grace else "6.8.0-86-generic"


def installed_driver(spec: Spec) -> str:
    """Version of the driver's packages on disk."""
    return NEWER_DRIVER if "pending_reboot" in spec.faults else spec.loaded_driver


def cdi_driver(spec: Spec) -> str:
    """Version of the driver that the CDI specification names."""
    if "stale_cdi" not in spec.faults:
        return spec.loaded_driver
    return "570.172.08" if spec.loaded_driver.startswith("575.") else "575.57.08"


def addresses_of(spec: Spec) -> Dict[str, List[str]]:
    """Management address of every peer: its number is at the end of its name, else its place in the list."""
    found = {}
    for place, name in enumerate(spec.peers, 1):
        number = re.search(r"(\d+)$", name)
        found[name] = [spec._replace(index=int(number.group(1)) if number else place).address]
    return found


def dress(spec: Spec, wardrobe: Wardrobe) -> List[Tuple[float, str]]:
    """Fill in what concerns the host, containers, storage and services; returns lines of the kernel log."""
    _machine(spec, wardrobe)
    _packages(spec, wardrobe)
    _limits(wardrobe)
    _network(spec, wardrobe)
    _processes(spec, wardrobe)
    _containers(spec, wardrobe)
    _storage(spec, wardrobe)
    wardrobe.commands[systemd.show_command((UNIT,))] = _unit(UNIT, installed=False)
    log = [
        (0.0, "Command line: " + _cmdline(spec)),
        (2.1, "systemd[1]: Detected architecture %s." % ("arm64" if spec.grace else "x86-64")),
        (8.4, "%s: renamed from eth0" % "eno1"),
    ]
    if "smi_hung" in spec.faults:
        log += [
            (70010.2, "INFO: task nvidia-smi:%d blocked for more than 122 seconds." % STUCK_PID),
            (70010.2, '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.'),
        ]
    return log


def kernel_log(spec: Spec, wardrobe: Wardrobe, lines: Iterable[Tuple[float, str]]) -> None:
    """Put the sorted kernel messages into the journal and the ring buffer."""
    lines = list(lines)
    wardrobe.commands[node_log.JOURNAL] = "".join("[%12.6f] %s kernel: %s\n" % (at, spec.name, text) for at, text in lines)
    wardrobe.commands[node_log.RING] = "".join("[%12.6f] %s\n" % (at, text) for at, text in lines)


# -- machine -------------------------------------------------------------------------------------
def _cmdline(spec: Spec) -> str:
    return "BOOT_IMAGE=/boot/vmlinuz-%s root=/dev/md0p2 ro %s" % (kernel(spec), "iommu.passthrough=1" if spec.grace else "iommu=pt")


def _cpus(spec: Spec) -> int:
    return 144 if spec.grace else 128 if spec.hardware == "b300" else 224


def _machine(spec: Spec, wardrobe: Wardrobe) -> None:
    release = kernel(spec)
    memory = (960 if spec.grace else 2048) * _GIB
    arch = "aarch64" if spec.grace else "x86_64"
    wardrobe.probes[("process", "")] = {
        "uid": 0, "hostname": spec.name, "kernel": release, "arch": arch, "now": float(NOW + spec.index),
        "page_size": 65536 if spec.grace else 4096, "cpus": _cpus(spec),
    }
    model = {
        "b300": "Intel(R) Xeon(R) 6776P", "b200": "INTEL(R) XEON(R) PLATINUM 8570",
        "h100": "Intel(R) Xeon(R) Platinum 8480C", "h200": "Intel(R) Xeon(R) Platinum 8480C",
    }
    wardrobe.probes[("machine", "")] = {
        "booted_at": BOOTED_AT, "model_name": model.get(spec.hardware, ""), "implementer": "0x41" if spec.grace else "",
        "part": "0xd4f" if spec.grace else "", "hypervisor": False,
    }
    wardrobe.files.update({
        "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n',
        "/proc/cmdline": _cmdline(spec) + "\n",
        "/proc/sys/kernel/random/boot_id": "00000000-0000-4000-8000-%012x\n" % spec.index,
        "/proc/sys/kernel/osrelease": release + "\n",
        "/proc/modules": _modules(spec),
        "/proc/meminfo": _meminfo(memory),
        "/boot/config-" + release: _kernel_config(spec),
        "/boot/vmlinuz-" + release: "",
        # A kernel of the same flavour that is older than the running one.
        "/boot/vmlinuz-" + ("6.14.0-1013-nvidia-64k" if spec.grace else "6.8.0-71-generic"): "",
        "/sys/devices/system/node/online": "0-1,2,10,18,26\n" if spec.grace and spec.gpus else "0-1\n",
        "/sys/devices/system/cpu/online": "0-%d\n" % (_cpus(spec) - 1),
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    })
    wardrobe.folders.add("/dev/shm")
    wardrobe.probes[("statvfs", "/dev/shm")] = _space(memory // 2, memory // 2)
    wardrobe.commands[host.VIRT] = Ran(1, "none\n")
    wardrobe.commands[host.TIME] = "Timezone=Etc/UTC\nLocalRTC=no\nCanNTP=yes\nNTP=yes\nNTPSynchronized=yes\n"
    wardrobe.commands[host.CHRONY] = (
        "Reference ID    : C0000201 (192.0.2.1)\nStratum         : 3\nSystem time     : 0.000004 seconds fast of NTP time\n"
        "Leap status     : Normal\n")


def _meminfo(memory: int) -> str:
    rows = (
        ("MemTotal", memory >> 10, " kB"), ("MemFree", (memory - 60 * _GIB) >> 10, " kB"),
        ("MemAvailable", (memory - 50 * _GIB) >> 10, " kB"), ("SwapTotal", 0, " kB"), ("SwapFree", 0, " kB"),
        ("HugePages_Total", 0, ""), ("HugePages_Free", 0, ""), ("Hugepagesize", 2048, " kB"),
    )
    return "".join("%-16s%8d%s\n" % (name + ":", value, unit) for name, value, unit in rows)


def _kernel_config(spec: Spec) -> str:
    options = {
        "PCI_P2PDMA": "y", "DMABUF_MOVE_NOTIFY": "y", "DMA_SHARED_BUFFER": "y", "ZONE_DEVICE": "y", "INFINIBAND": "m",
        "INFINIBAND_USER_MEM": "y", "MLX5_INFINIBAND": "m",
    }
    return "# Linux/%s %s Kernel Configuration\nCONFIG_SMP=y\n# CONFIG_XEN is not set\n%s" % (
        "arm64" if spec.grace else "x86", kernel(spec), "".join("CONFIG_%s=%s\n" % item for item in options.items()))


def _modules(spec: Spec) -> str:
    loaded: List[Tuple[str, int, Sequence[str]]] = [
        ("overlay", 0, ()), ("rdma_ucm", 0, ()), ("rdma_cm", 1, ("rdma_ucm",)), ("ib_umad", 4, ()), ("mlx5_ib", 0, ()),
        ("ib_uverbs", 2, ("rdma_ucm", "mlx5_ib")), ("ib_core", 5, ("rdma_cm", "ib_umad", "mlx5_ib", "ib_uverbs")),
        ("mlx5_core", 1, ("mlx5_ib",)), ("mlx_compat", 6, ("rdma_cm", "mlx5_ib", "ib_uverbs", "ib_core", "mlx5_core")), ("ext4", 1, ()),
    ]
    if spec.gpus:
        users = ["nvidia_uvm", "nvidia_modeset"]
        if "peermem_missing" not in spec.faults:
            loaded.insert(0, ("nvidia_peermem", 0, ()))
            users.append("nvidia_peermem")
        loaded[:0] = [("nvidia_uvm", 4, ()), ("nvidia_modeset", 0, ()), ("nvidia", 40, users)]
    return "".join("%s %d %d %s Live 0x0000000000000000\n" % (
        name, 65536 + 4096 * len(name), refs, ",".join(users) + "," if users else "-") for name, refs, users in loaded)


# -- packages ------------------------------------------------------------------------------------
def _packages(spec: Spec, wardrobe: Wardrobe) -> None:
    release, driver = kernel(spec), installed_driver(spec)
    rows: List[Tuple[str, str, str]] = [
        ("containerd.io", "1.7.28-1~ubuntu.24.04~noble", "ii "), ("docker-ce", "5:%s-1~ubuntu.24.04~noble" % DOCKER, "ii "),
        ("docker-ce-cli", "5:%s-1~ubuntu.24.04~noble" % DOCKER, "ii "), ("doca-ofed", "3.1.0-091000", "ii "),
        ("linux-image-" + release, release.split("-nvidia")[0].split("-generic")[0] + ".86", "ii "),
        ("mlnx-tools", "25.07-0.2507097", "ii "), ("rdma-core", "2507mlnx58-1.2507097", "ii "),
        # Removed, its configuration is left.
        ("nvidia-driver-570", "570.172.08-0ubuntu1", "rc "),
    ]
    if spec.gpus:
        names = [
            "nvidia-open", "nvidia-driver-open", "nvidia-dkms-open", "nvidia-kernel-common", "nvidia-persistenced", "libnvidia-compute",
            "libnvidia-cfg1", "nvidia-imex" if spec.grace else "nvidia-fabricmanager",
        ]
        rows += [(name, driver + "-1ubuntu1", "hi " if name == "nvidia-open" else "ii ") for name in names]
        if spec.hardware in ("b200", "b300"):
            rows.append(("nvlsm", "2025.06.5-1", "ii "))
        rows += [(name, TOOLKIT + "-1", "ii ") for name in (
            "nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")]
    listed = "".join("%s\t%s\t%s\n" % row for row in sorted(rows))
    wardrobe.commands[host.DPKG] = Ran(1, listed, "dpkg-query: no packages found matching podman*\n")
    wardrobe.commands[host.AUDIT] = ""
    wardrobe.files.update({
        "/usr/bin/unattended-upgrade": "", "/etc/apt/apt.conf.d/20auto-upgrades":
            'APT::Periodic::Update-Package-Lists "1";\nAPT::Periodic::Unattended-Upgrade "0";\n',
    })
    if "pending_reboot" in spec.faults:
        wardrobe.files.update({
            "/run/reboot-required": "*** System restart required ***\n", "/run/reboot-required.pkgs": "nvidia-dkms-open\n",
        })


def _limits(wardrobe: Wardrobe) -> None:
    wardrobe.commands[host.MANAGER] = "DefaultLimitNOFILE=1048576\nDefaultLimitMEMLOCK=infinity\n"
    wardrobe.commands[host.ENGINES] = "\n".join(
        _unit(name, pid=pid) + "LimitMEMLOCK=infinity\n" for name, pid in (("docker.service", 2310), ("containerd.service", 1702)))
    wardrobe.files["/etc/security/limits.conf"] = "# <domain> <type> <item> <value>\n"
    wardrobe.files["/etc/security/limits.d/90-rdma.conf"] = "* soft memlock unlimited\n* hard memlock unlimited\n"


def _unit(name: str, installed: bool = True, pid: int = 0) -> str:
    """What ``systemctl show`` says of a unit that runs, or of one that is not there."""
    lines = ["MainPID=%d" % pid, "NRestarts=0", "Id=" + name]
    if installed:
        lines += [
            "ActiveEnterTimestamp=Sat 2026-11-28 21:07:31 UTC", "LoadState=loaded", "ActiveState=active", "SubState=running",
            "FragmentPath=/usr/lib/systemd/system/" + name, "UnitFileState=enabled",
        ]
    else:
        lines += ["ActiveEnterTimestamp=", "LoadState=not-found", "ActiveState=inactive", "SubState=dead", "FragmentPath="]
    return "\n".join(lines) + "\n"


# -- network and processes -----------------------------------------------------------------------
def _network(spec: Spec, wardrobe: Wardrobe) -> None:
    from . import part_rdma

    down = {hca.netdev for hca in part_rdma.hcas(spec) if part_rdma.down(spec, hca)} | {"docker0"}
    rows = [("lo", "127.0.0.1", 8, 65536)] + list(part_rdma.interfaces(spec)) + [("docker0", "172.17.0.1", 16, 1500)]
    wardrobe.commands[host.ADDRESSES] = json.dumps([
        {
            "ifindex": number, "ifname": name, "flags": ["UP", "LOWER_UP"], "mtu": mtu,
            "operstate": "UNKNOWN" if name == "lo" else "DOWN" if name in down else "UP",
            "link_type": "loopback" if name == "lo" else "ether",
            "addr_info": [{"family": "inet", "local": address, "prefixlen": prefix, "scope": "host" if name == "lo" else "global"}],
        }
        for number, (name, address, prefix, mtu) in enumerate(rows, 1)
    ])
    if spec.peers:
        wardrobe.probes[("resolve", " ".join(spec.peers))] = addresses_of(spec)


def _processes(spec: Spec, wardrobe: Wardrobe) -> None:
    holders: List[Dict[str, Any]] = []
    stuck: List[Dict[str, Any]] = []
    if spec.gpus:
        holders.append({
            "pid": PERSISTENCED_PID, "comm": "nvidia-persiste", "state": "S", "devices": spec.gpus,
            "cgroup": "/system.slice/nvidia-persistenced.service",
        })
        if "foreign_holder" in spec.faults:
            holders.append({
                "pid": FOREIGN_PID, "comm": "python3", "state": "S", "devices": spec.gpus,
                "cgroup": "/user.slice/user-1000.slice/session-4.scope",
            })
        if "smi_hung" in spec.faults:
            stuck.append({"pid": STUCK_PID, "comm": "nvidia-smi", "state": "D"})
    wardrobe.probes[("processes", "")] = {
        "stuck": stuck, "holders": holders, "vllm": [], "denied": 0, "truncated": False, "hidden": False, "vllm_error": "",
    }


# -- containers ----------------------------------------------------------------------------------
def _containers(spec: Spec, wardrobe: Wardrobe) -> None:
    arch = "arm64" if spec.grace else "amd64"
    wardrobe.commands[container.DOCKER_VERSION] = json.dumps({
        "Client": {"Version": DOCKER, "ApiVersion": "1.51", "Os": "linux", "Arch": arch},
        "Server": {"Version": DOCKER, "ApiVersion": "1.51", "MinAPIVersion": "1.24", "Os": "linux", "Arch": arch},
    })
    runtimes = {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}}
    if spec.gpus:
        runtimes["nvidia"] = {"path": "nvidia-container-runtime"}
    wardrobe.commands[container.DOCKER_INFO] = json.dumps({
        "Driver": "overlay2", "CgroupDriver": "systemd", "CgroupVersion": "2", "DockerRootDir": "/var/lib/docker", "Runtimes": runtimes,
        "DefaultRuntime": "runc", "ServerVersion": DOCKER, "LiveRestoreEnabled": False, "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
        "NCPU": _cpus(spec), "Name": spec.name, "Warnings": None,
    })
    missing = Ran(1, "[]\n", "Error response from daemon: No such image: %s\n" % IMAGE)
    wardrobe.commands[container.inspect_command("docker", IMAGE)] = json.dumps([_image(spec, arch)]) if spec.gpus else missing
    wardrobe.folders.add("/etc/cdi")
    if not spec.gpus:
        return
    wardrobe.commands[container.CTK] = "NVIDIA Container Toolkit CLI version %s\ncommit: %s\n" % (TOOLKIT, "0" * 40)
    wardrobe.files.update({
        container.DAEMON: json.dumps({
            "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}, "features": {"cdi": True},
            "default-ulimits": {"memlock": {"Name": "memlock", "Soft": -1, "Hard": -1}},
        }, indent=4) + "\n",
        container.RUNTIME_CONFIG: '[nvidia-container-cli]\nload-kmods = true\n\n[nvidia-container-runtime]\nmode = "auto"\n',
        container.HOOKS[0]: "",
        "/var/run/cdi/nvidia.yaml": _cdi(spec),
    })


def _image(spec: Spec, arch: str) -> Dict[str, Any]:
    return {
        "Id": "sha256:" + hashlib.sha256(digest(spec).encode("ascii")).hexdigest(), "RepoTags": [IMAGE],
        "RepoDigests": ["%s@%s" % (IMAGE.rpartition(":")[0], digest(spec))], "Created": "2026-08-20T00:00:00Z", "Size": 21_000_000_000,
        "Architecture": arch, "Os": "linux", "Config": {
            "Env": [
                "PATH=/usr/local/cuda/bin:/usr/bin:/bin", "CUDA_VERSION=13.0.2", "NVIDIA_VISIBLE_DEVICES=all", "NCCL_VERSION=%s-1" % NCCL,
            ],
            "Entrypoint": ["vllm", "serve"],
            "Labels": {"org.opencontainers.image.title": "vllm-openai", "org.opencontainers.image.version": VLLM, "maintainer": "example"},
        },
    }


def _cdi(spec: Spec) -> str:
    """A CDI specification as the toolkit writes it, shortened to what is read."""
    driver = cdi_driver(spec)
    libraries = "/usr/lib/%s-linux-gnu" % ("aarch64" if spec.grace else "x86_64")
    lines = ["---", "cdiVersion: 0.7.0", "kind: nvidia.com/gpu", "devices:"]
    for name in [str(index) for index in range(spec.gpus)] + ["all"]:
        lines += ['- name: %s' % ('"%s"' % name if name.isdigit() else name), "  containerEdits:", "    deviceNodes:"]
        lines += ["    - path: /dev/nvidia%d" % index for index in range(spec.gpus) if name in ("all", str(index))]
    lines += ["containerEdits:", "  deviceNodes:", "  - path: /dev/nvidiactl", "  - path: /dev/nvidia-uvm", "  mounts:"]
    paths = ["%s/%s.so.%s" % (libraries, library, driver) for library in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")]
    paths += ["%s/libnvidia-egl-gbm.so.1.1.2" % libraries, "/lib/firmware/nvidia/%s/gsp_ga10x.bin" % driver]
    for path in paths:
        lines += ["  - containerPath: " + path, "    hostPath: " + path, "    options: [ro, nosuid, nodev, rbind, rprivate]"]
    return "\n".join(lines) + "\n"


# -- storage -------------------------------------------------------------------------------------
def _space(total: int, free: int) -> Dict[str, int]:
    return {"total_bytes": total, "free_bytes": free, "free_inodes": 700_000_000, "total_inodes": 730_000_000}


def _storage(spec: Spec, wardrobe: Wardrobe) -> None:
    wardrobe.files[storage.MOUNTS] = (
        "22 1 9:0 / / rw,relatime shared:1 - ext4 /dev/md0p2 rw\n"
        "23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw\n"
        "24 22 0:22 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,inode64\n"
        "31 22 259:9 / %s rw,noatime shared:29 - xfs /dev/md1 rw,attr2,inode64,noquota\n" % WEIGHTS)
    wardrobe.folders.update((WEIGHTS, "/var/lib/docker"))
    wardrobe.probes[("statvfs", WEIGHTS)] = _space(15 * 10**12, 8 * 10**12)
    for path in ("/", "/var/lib", "/var/lib/docker"):
        wardrobe.probes[("statvfs", path)] = _space(1900 * 10**9, 1500 * 10**9)
    wardrobe.probes[("weights", WEIGHTS)] = []
