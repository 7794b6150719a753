# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of healthy nodes in the form of docs/FACTS.md, and the contexts they are judged in.

``healthy_b300("node1")`` is an 8-GPU HGX B300 node with eight RoCE HCAs, one management HCA and four
switch-management HCAs; ``healthy_gb300("tray1")`` is one tray of an NVL72 rack. Every call gives a new,
independent table, so a test may change what it likes. :func:`put` changes one value at a dotted path.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Sequence

from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Context, Node

DRIVER = "580.95.05"
KERNEL_B300 = "6.8.0-85-generic"
KERNEL_GB300 = "6.14.0-1015-nvidia-64k"
IMAGE = "vllm/vllm-openai:kimi-k3"
DIGEST = "vllm/vllm-openai@sha256:" + "3c" * 32
OTHER_DIGEST = "vllm/vllm-openai@sha256:" + "d4" * 32
CLUSTER_UUID = "5d0f7c1a-4c7e-4f35-9b0e-7d7d1f5d9a10"
B300_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
GB300_BUSES = ("0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0")
MISSING = object()


def index_of(name: str) -> int:
    """Trailing number of a node name, 1 when it has none."""
    found = re.search(r"(\d+)$", name)
    return int(found.group(1)) if found else 1


def put(facts: Dict[str, Any], path: str, value: Any) -> Dict[str, Any]:
    """Set (or, with MISSING, remove) the value at a dotted path; numbers index lists. Returns `facts`."""
    at: Any = facts
    parts = path.split(".")
    for part in parts[:-1]:
        if isinstance(at, list):
            at = at[int(part)]
        else:
            at = at.setdefault(part, {})
    last: Any = int(parts[-1]) if isinstance(at, list) else parts[-1]
    if value is MISSING:
        at.pop(last)
    else:
        at[last] = value
    return facts


def without(facts: Dict[str, Any], *paths: str) -> Dict[str, Any]:
    """Remove the values at `paths`. Returns `facts`."""
    for path in paths:
        put(facts, path, MISSING)
    return facts


def node(facts: Dict[str, Any], name: str = "node1") -> Node:
    """The facts as a check sees them."""
    return Node(name, facts)


def service(active: str = "active", enabled: str = "enabled", pid: int = 2000) -> Dict[str, Any]:
    running = active == "active"
    return {
        "installed": True,
        "active": active,
        "sub": "running" if running else "dead" if active == "inactive" else "failed",
        "enabled": enabled,
        "restarts": 0,
        "main_pid": pid if running else 0,
        "since": "Sat 2026-11-28 10:00:00 UTC",
    }


def no_service() -> Dict[str, Any]:
    return {"installed": False, "active": "inactive", "sub": "dead", "enabled": None, "restarts": 0, "main_pid": 0, "since": None}


def _gpus(
    name: str, product: str, device: str, memory: int, vbios: str, buses: Sequence[str], clique: str, cluster: str
) -> List[Dict[str, Any]]:
    number = index_of(name)
    gpus = []
    for i, bdf in enumerate(buses):
        gpus.append(
            {
                "index": i,
                "bdf": bdf,
                "uuid": "GPU-%08x-0000-4000-8000-%012x" % (number, i),
                "name": product,
                "arch": "Blackwell",
                "serial": "16525%05d%02d" % (number, i),
                "vbios": vbios,
                "pci_device": device + "10de",
                "fb_total_mib": memory,
                "fb_used_mib": 0,
                "persistence": True,
                "mig": "Disabled",
                "ecc": {
                    "current": True,
                    "pending": True,
                    "volatile_uncorrectable": 0,
                    "aggregate_uncorrectable": 0,
                    "threshold_exceeded": False,
                    "repair_pending": False,
                },
                "remap": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
                "pcie": {"gen": 5, "gen_max": 5, "width": 16, "width_max": 16},
                "temperature": 34,
                "recovery_action": "None",
                "fabric": {"state": "Completed", "status": "Success", "clique": clique, "cluster": cluster},
            }
        )
    return gpus


def _host(name: str, arch: str, kernel: str, memory_gib: int, peers: Sequence[str]) -> Dict[str, Any]:
    number = index_of(name)
    return {
        "hostname": name,
        "os": {"id": "ubuntu", "version_id": "24.04", "pretty": "Ubuntu 24.04.3 LTS"},
        "arch": arch,
        "kernel": kernel,
        "cmdline": "BOOT_IMAGE=/boot/vmlinuz-%s root=/dev/md0 ro iommu=pt" % kernel,
        "virt": "none",
        "boot_id": "00000000-0000-4000-8000-%012x" % number,
        "booted_at": 1795900000,
        "kernel_config": {
            "PCI_P2PDMA": "y",
            "DMABUF_MOVE_NOTIFY": "y",
            "DMA_SHARED_BUFFER": "y",
            "ZONE_DEVICE": "y",
            "INFINIBAND": "m",
            "INFINIBAND_USER_MEM": "y",
            "MLX5_INFINIBAND": "m",
        },
        "modules": {
            "nvidia": {"refs": 40, "used_by": ["nvidia_uvm", "nvidia_modeset"]},
            "nvidia_uvm": {"refs": 4, "used_by": []},
            "nvidia_peermem": {"refs": 0, "used_by": []},
            "ib_umad": {"refs": 8, "used_by": []},
            "mlx5_ib": {"refs": 0, "used_by": []},
            "mlx5_core": {"refs": 1, "used_by": ["mlx5_ib"]},
            "ib_uverbs": {"refs": 2, "used_by": ["mlx5_ib", "rdma_ucm"]},
            "ib_core": {"refs": 9, "used_by": ["ib_umad", "mlx5_ib", "nvidia_peermem", "rdma_cm"]},
            "overlay": {"refs": 0, "used_by": []},
        },
        "pending_reboot": {"required": False, "reasons": []},
        "time": {"synchronized": True, "source": "chrony"},
        "memory": {
            "total_bytes": memory_gib << 30,
            "available_bytes": (memory_gib - 60) << 30,
            "swap_total_bytes": 0,
            "swap_free_bytes": 0,
        },
        "shm": {"total_bytes": (memory_gib // 2) << 30, "free_bytes": (memory_gib // 2) << 30},
        "hugepages": {"total": 0, "free": 0, "size_bytes": 2097152},
        "limits": {
            "memlock": "unlimited",
            "memlock_from": "systemctl show -p DefaultLimitMEMLOCK",
            "nofile": 1048576,
            "docker_memlock": "unlimited",
            "pam_memlock": "unlimited",
        },
        "numa": {"nodes": 2},
        "cpus": 224,
        "cpu_model": "Example CPU",
        "governor": "performance",
        "names": {peer: ["192.0.2.%d" % (10 + index_of(peer))] for peer in peers},
        "addresses": {"eno1": ["192.0.2.%d/24" % (10 + number)]},
        "links": {"eno1": {"state": "UP", "mtu": 1500}},
        "stuck": [],
        "packages": {
            "manager": "dpkg",
            "versions": {"nvidia-open": DRIVER + "-0ubuntu1", "docker-ce": "5:28.5.1-1"},
            "broken": [],
            "held": ["nvidia-open"],
        },
        "unattended_upgrades": False,
        "unknown": {},
    }


def _driver() -> Dict[str, Any]:
    return {
        "loaded": DRIVER,
        "loaded_flavour": "open",
        "installed": DRIVER,
        "installed_flavour": "open",
        "installed_for_kernel": True,
        "userspace": DRIVER,
        "cuda": "13.0",
        "mismatch": False,
        "nouveau": {"loaded": False, "blacklisted": True},
        "params": {"EnableStreamMemOPs": "0"},
        "build": {"headers": True, "dkms": [], "compiler": True},
        "secure_boot": {"enabled": False, "signer": None},
        "log": [],
        "unknown": {},
    }


def _container() -> Dict[str, Any]:
    return {
        "docker": {
            "version": "28.5.1",
            "api": "1.51",
            "running": True,
            "cgroup_driver": "systemd",
            "storage_driver": "overlay2",
            "root": "/var/lib/docker",
            "runtimes": ["nvidia", "runc"],
            "default_runtime": "runc",
            "cdi": True,
            "live_restore": False,
        },
        "podman": None,
        "toolkit": {"version": "1.18.0", "ctk": True, "hook": True, "configured": True, "mode": "auto"},
        "cdi": [{"path": "/var/run/cdi/nvidia.yaml", "kind": "nvidia.com/gpu", "devices": ["0", "all"], "versions": [DRIVER]}],
        "image": {
            "name": IMAGE,
            "present": True,
            "id": "sha256:" + "7a" * 32,
            "digests": [DIGEST],
            "cuda": "13.0.2",
            "vllm": "0.27.1",
            "nccl": "2.28.9",
            "created": "2026-08-20T00:00:00Z",
            "size_bytes": 21000000000,
            "labels": {},
        },
        "probe": None,
        "unknown": {},
    }


def _storage() -> Dict[str, Any]:
    return {
        "paths": [
            {
                "path": "/var/lib/vllm",
                "exists": True,
                "mount": "/var/lib/vllm",
                "fstype": "xfs",
                "device": "/dev/md1",
                "options": "rw,noatime",
                "total_bytes": 15 * 10**12,
                "free_bytes": 12 * 10**12,
                "free_inodes": 700000000,
            }
        ],
        "weights": None,
        "unknown": {},
    }


def _port(netdev: str, ipv4: str, rate: float = 400.0) -> Dict[str, Any]:
    return {
        "port": 1,
        "state": "ACTIVE",
        "phys": "LinkUp",
        "rate_gbps": rate,
        "link_layer": "Ethernet",
        "netdev": netdev,
        "mtu": 9000,
        "active_mtu": 4096,
        "gids": [
            {"i": 0, "gid": "fe80::a", "type": "IB/RoCE v1"},
            {"i": 1, "gid": "fe80::a", "type": "RoCE v2"},
            {"i": 2, "gid": "::ffff:" + ipv4, "type": "IB/RoCE v1", "ipv4": ipv4},
            {"i": 3, "gid": "::ffff:" + ipv4, "type": "RoCE v2", "ipv4": ipv4},
        ],
    }


def _hca(i: int, bdf: str, numa: int, port: Dict[str, Any], device: str = "MT4131") -> Dict[str, Any]:
    return {
        "name": "mlx5_%d" % i,
        "bdf": bdf,
        "driver": "mlx5_core",
        "type": device,
        "firmware": "40.46.1006",
        "board": "NVD0000000001",
        "numa": numa,
        "pcie": {"gen": 5, "gen_max": 5, "width": 16, "width_max": 16},
        "ports": [port],
    }


def _rdma(name: str, buses: Sequence[str], numa: Sequence[int]) -> Dict[str, Any]:
    number = index_of(name)
    hcas = [_hca(i, bdf, numa[i], _port("rdma%d" % i, "10.%d.0.%d" % (10 + i, number))) for i, bdf in enumerate(buses)]
    management = _hca(
        len(buses),
        "0000:2a:00.0" if buses[0].startswith("0000") else "0006:03:00.0",
        0,
        _port("eno1", "192.0.2.%d" % (10 + number), 100.0),
        "MT4129",
    )
    management["carries"] = ["default_route", "ssh"]
    hcas.append(management)
    return {
        "hcas": hcas,
        "default_route": "eno1",
        "ssh": "eno1",
        "netdevs": dict([("rdma%d" % i, "mlx5_%d" % i) for i in range(len(buses))] + [("eno1", "mlx5_%d" % len(buses))]),
        "ofed": {"version": None, "flavour": "inbox"},
        "acs": {"checked": True, "srcvalid": []},
        "iommu": {"groups": 210, "mode": "passthrough"},
        "log": [],
        "userspace": {"libmlx5": "1.25.54.0", "rdma_core": "54.0"},
        "unknown": {},
    }


def _gpudirect() -> Dict[str, Any]:
    return {
        "peermem": {
            "present": True,
            "loaded": True,
            "version": DRIVER,
            "persisted": True,
            "legacy_loaded": False,
            "ib_symbol": True,
            "log": [],
            "why_not": None,
        },
        "dmabuf": {
            "open_module": True,
            "kernel": True,
            "config": {"PCI_P2PDMA": "y", "DMABUF_MOVE_NOTIFY": "y", "DMA_SHARED_BUFFER": "y", "ZONE_DEVICE": "y"},
            "dma_buf_symbol": True,
            "attach_failed": [],
            "data_direct": [],
        },
        "errno524": {"evidence": [], "lines": 0},
        "memlock_ok": True,
        "unknown": {},
    }


def _matrix(gpus: int, links: str = "NV18") -> List[str]:
    return [" ".join("X" if row == column else links for column in range(gpus)) for row in range(gpus)]


def healthy_b300(name: str = "node1", peers: Sequence[str] = ()) -> Dict[str, Any]:
    """Facts of one healthy HGX B300 node, idle, driver 580.95.05, RoCE; it resolves the names of `peers`."""
    buses = ["0000:%s:00.0" % bus for bus in B300_BUSES]
    nics = ["0000:%02x:00.0" % (int(bus, 16) - 1) for bus in B300_BUSES]
    numa = [0] * 4 + [1] * 4
    rdma = _rdma(name, nics, numa)
    for i in range(4):
        switch = _hca(
            9 + i,
            "0000:%02x:00.0" % (0x05 + i),
            0,
            {
                "port": 1,
                "state": "ACTIVE",
                "phys": "LinkUp",
                "rate_gbps": 400.0,
                "link_layer": "InfiniBand",
                "lid": 3 + i,
                "sm_lid": 1,
                "gids": [],
            },
            "MT4129",
        )
        switch["sw_mng"] = True
        rdma["hcas"].append(switch)
    return {
        "schema": "inferops.vllm/node_facts/1",
        "collected": {
            "recorded": False,
            "subset": ["host", "driver", "gpu", "fabric", "rdma", "gpudirect", "container", "storage", "service"],
            "timeout": 10.0,
            "seconds": 0.8,
            "uid": 0,
            "now": 1795986400.0,
            "costume": None,
        },
        "host": _host(name, "x86_64", KERNEL_B300, 2048, peers),
        "driver": _driver(),
        "gpu": {
            "smi": {"driver_version": DRIVER, "cuda_version": "13.0", "attached": 8, "seconds": 0.6},
            "pci": [{"bdf": bdf, "device": "0x3182", "driver": "nvidia", "numa": numa[i]} for i, bdf in enumerate(buses)],
            "devices": 8,
            "gpus": _gpus(name, "NVIDIA B300 SXM6 AC", "0x3182", 275040, "97.10.45.00.01", buses, "0", ""),
            "topology": {
                "gpus": ["GPU%d" % i for i in range(8)],
                "matrix": _matrix(8),
                "nics": {"NIC%d" % i: "mlx5_%d" % i for i in range(8)},
                "gpu_nic": [
                    " ".join("PXB" if row == column else "NODE" if row // 4 == column // 4 else "SYS" for column in range(8))
                    for row in range(8)
                ],
            },
            "nvlink": [{"index": i, "links": 18, "active": 18, "min_gbs": 53.125} for i in range(8)],
            "holders": [{"pid": 1801, "comm": "nvidia-persiste", "state": "S", "devices": 8}],
            "xid": [],
            "sxid": [],
            "fallen": [],
            "unknown": {},
        },
        "fabric": {
            "nvswitches": 0,
            "sw_mng": ["mlx5_9", "mlx5_10", "mlx5_11", "mlx5_12"],
            "manager": {
                "version": DRIVER,
                "service": service(pid=2100),
                "log": [
                    {"kind": "configured", "text": "Successfully configured all the available GPUs and NVSwitches to route NVLink traffic."}
                ],
            },
            "nvlsm": {"version": "2025.06.6", "running": True},
            "imex": {
                "version": None,
                "service": no_service(),
                "ready": None,
                "domain": None,
                "nodes_up": 0,
                "nodes_total": 0,
                "not_up": [],
                "config_sha256": None,
                "nodes": [],
                "channels": [],
                "major": None,
            },
            "unknown": {},
        },
        "rdma": rdma,
        "gpudirect": _gpudirect(),
        "container": _container(),
        "storage": _storage(),
        "service": {"units": [], "processes": [], "env_files": {}, "unknown": {}},
    }


def healthy_gb300(name: str = "tray1", peers: Sequence[str] = ()) -> Dict[str, Any]:
    """Facts of one healthy GB300 tray of an NVL72 rack, idle: no Fabric Manager, IMEX up over four trays; it resolves `peers`."""
    facts = healthy_b300(name)
    numa = [0, 0, 1, 1]
    nics = ["0000:03:00.0", "0002:03:00.0", "0010:03:00.0", "0012:03:00.0"]
    facts["host"] = _host(name, "aarch64", KERNEL_GB300, 960, peers)
    facts["rdma"] = _rdma(name, nics, numa)
    facts["gpudirect"]["dmabuf"]["data_direct"] = ["0000:03:00.1", "0002:03:00.1", "0010:03:00.1", "0012:03:00.1"]
    gpus = _gpus(name, "NVIDIA GB300", "0x31c2", 284208, "97.10.4c.00.03", GB300_BUSES, "32766", CLUSTER_UUID)
    for gpu, node_id in zip(gpus, (2, 10, 18, 26)):
        gpu["addressing_mode"] = "ATS"
        gpu["numa"] = node_id
        gpu["pcie"] = {"gen": 5, "gen_max": 6, "width": 16, "width_max": 16}
    facts["gpu"] = {
        "smi": {"driver_version": DRIVER, "cuda_version": "13.0", "attached": 4, "seconds": 0.5},
        "pci": [{"bdf": bdf, "device": "0x31c2", "driver": "nvidia", "numa": numa[i]} for i, bdf in enumerate(GB300_BUSES)],
        "devices": 4,
        "gpus": gpus,
        "topology": {
            "gpus": ["GPU%d" % i for i in range(4)],
            "matrix": _matrix(4),
            "nics": {"NIC%d" % i: "mlx5_%d" % i for i in range(4)},
            "gpu_nic": ["SYS SYS SYS SYS"] * 4,
        },
        "nvlink": [{"index": i, "links": 18, "active": 18, "min_gbs": 53.125} for i in range(4)],
        "holders": [{"pid": 1801, "comm": "nvidia-persiste", "state": "S", "devices": 4}],
        "xid": [],
        "sxid": [],
        "fallen": [],
        "unknown": {},
    }
    trays = ["192.0.2.%d" % (10 + i) for i in range(1, 5)]
    facts["fabric"] = {
        "nvswitches": 0,
        "sw_mng": [],
        "manager": {"version": None, "service": no_service(), "log": []},
        "nvlsm": {"version": None, "running": False},
        "imex": {
            "version": DRIVER,
            "service": service(pid=2200),
            "ready": "READY",
            "domain": "UP",
            "nodes_up": 4,
            "nodes_total": 4,
            "not_up": [],
            "config_sha256": "9b" * 32,
            "nodes": trays,
            "channels": [0],
            "major": 234,
        },
        "unknown": {},
    }
    return facts


def b300_context(nodes: Sequence[str] = ("node1",)) -> Context:
    """Kimi K3 on HGX B300: one node by itself, several over RDMA."""
    several = len(nodes) > 1
    return Context(
        hardware="b300",
        strategy="multi_node_dep" if several else "single_node_tp",
        interconnect="rdma" if several else "none",
        nodes=tuple(nodes),
        needs_rdma=several,
        needs_mnnvl=False,
        gpus_per_node=8,
        gpu_memory_mib=275040,
        weights_gb=1680.0,
        driver_min=(580,),
        image=IMAGE,
        image_cuda_major=13,
        open_required=True,
        nvlink_links=18,
        sources={"vllm_hardware": "declared"},
    )


def gb300_context(nodes: Sequence[str] = ("tray1", "tray2", "tray3", "tray4")) -> Context:
    """Kimi K3 on GB300 trays of one NVL72 rack over NVLink between nodes."""
    return Context(
        hardware="gb300",
        strategy="multi_node_dep",
        interconnect="nvlink",
        nodes=tuple(nodes),
        needs_rdma=False,
        needs_mnnvl=True,
        gpus_per_node=4,
        gpu_memory_mib=284208,
        weights_gb=1680.0,
        driver_min=(580,),
        image=IMAGE,
        image_cuda_major=13,
        open_required=True,
        nvlink_links=18,
        sources={"vllm_hardware": "declared"},
    )
