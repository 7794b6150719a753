# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver, GPUs and NVLink fabric of a dressed node.

HGX nodes have eight GPUs and a Fabric Manager, from Blackwell on with a subnet manager for the
NVLink switches. Trays of an NVL72 rack have four GPUs, no Fabric Manager, and IMEX over four trays.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, NamedTuple, Tuple
from xml.sax.saxutils import escape

from ansible_collections.inferops.vllm.plugins.module_utils.node import driver, fabric, host, smi, topology
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Ran

from . import Spec, Wardrobe, part_host, part_rdma

CLUSTER = "3f6c1b52-8d0e-4a97-b1c4-6e52d7a90f18"
"""Cluster UUID of the rack that all dressed trays stand in."""
CLIQUE, OTHER_CLIQUE = "32766", "32767"
NEWER_DRIVER = part_host.NEWER_DRIVER
"""What the module on disk (pending_reboot) or Fabric Manager (fm_mismatch) is of, while an older driver is loaded."""
NVLSM_VERSION = "2025.06.5"
IMEX_MAJOR = 234

_X86_BUSES = (0x1B, 0x3D, 0x4F, 0x60, 0x9D, 0xBD, 0xCD, 0xDD)
_GRACE_DOMAINS = (0x0008, 0x0009, 0x0018, 0x0019)
_GRACE_MEMORY = (2, 10, 18, 26)
_SWITCH_BUSES = (0x05, 0x06, 0x07, 0x08)
_SMI = (smi.COMMAND, topology.MATRIX, topology.LINKS)


class Model(NamedTuple):
    """A kind of GPU: product name, architecture, PCI device, memory in MiB, VBIOS, PCIe generation, GB/s of one NVLink."""

    name: str
    arch: str
    device: str
    memory: int
    vbios: str
    gen: int
    link: str


MODELS: Dict[str, Model] = {
    "h100": Model("NVIDIA H100 80GB HBM3", "Hopper", "2330", 81559, "96.00.AF.00.01", 5, "26.562"),
    "h200": Model("NVIDIA H200", "Hopper", "2335", 143771, "96.00.CE.00.02", 5, "26.562"),
    "b200": Model("NVIDIA B200", "Blackwell", "2901", 183359, "97.00.D4.00.07", 5, "53.125"),
    "b300": Model("NVIDIA B300 SXM6 AC", "Blackwell", "3182", 275040, "97.10.45.00.03", 6, "53.125"),
    "gb200": Model("NVIDIA GB200", "Blackwell", "2941", 189471, "97.00.B9.00.41", 5, "53.125"),
    "gb300": Model("NVIDIA GB300", "Blackwell", "31C2", 284208, "97.10.4C.00.07", 6, "53.125"),
}


class Gpu(NamedTuple):
    """One dressed GPU; `numa` is the node of its CPU."""

    index: int
    bdf: str
    numa: int
    uuid: str
    serial: str
    lost: bool


def gpus(spec: Spec) -> List[Gpu]:
    """GPUs of a node by bus address, the one that fell off the bus with them."""
    found = []
    for i in range(spec.gpus):
        bdf = "%04x:06:00.0" % _GRACE_DOMAINS[i] if spec.grace else "0000:%02x:00.0" % _X86_BUSES[i]
        digest = hashlib.sha256(("%s %d %d" % (spec.hardware, spec.index, i)).encode("ascii")).hexdigest()
        uuid = "GPU-%s-%s-4%s-8%s-%s" % (digest[:8], digest[8:12], digest[12:15], digest[15:18], digest[18:30])
        lost = "gpu_lost" in spec.faults and i == spec.gpus - 1
        found.append(Gpu(i, bdf, 2 * i // spec.gpus, uuid, "1652%07d%02d" % (spec.index, i), lost))
    return found


def dress(spec: Spec, wardrobe: Wardrobe) -> List[Tuple[float, str]]:
    """Fill in what concerns the driver, the GPUs and the fabric; returns lines of the kernel log."""
    _every_machine(spec, wardrobe)
    if not spec.gpus:
        return []
    all_gpus = gpus(spec)
    alive = [gpu for gpu in all_gpus if not gpu.lost]
    _driver(spec, wardrobe)
    _pci(spec, wardrobe, all_gpus)
    wardrobe.commands[smi.COMMAND] = document(spec, alive)
    wardrobe.commands[topology.MATRIX] = matrix(spec, alive)
    wardrobe.commands[topology.LINKS] = links(spec, alive)
    if "smi_hung" in spec.faults:
        for argv in _SMI:
            wardrobe.hang(*argv)
    if spec.grace:
        _imex(spec, wardrobe)
    else:
        _manager(spec, wardrobe)
    return _kernel_log(spec, all_gpus)


# -- every machine -------------------------------------------------------------------------------
def _every_machine(spec: Spec, wardrobe: Wardrobe) -> None:
    """What also a machine without GPU answers."""
    wardrobe.folders.update({"/sys/bus/pci/devices", "/dev", "/lib/modules/%s/build" % part_host.kernel(spec)})
    wardrobe.files["/usr/bin/gcc"] = ""
    wardrobe.files["/dev/null"] = ""
    for bdf, kind, vendor, device in (("0000:00:00.0", "0x060000", "0x8086", "0x09a2"), ("0000:02:00.0", "0x030000", "0x1a03", "0x2000")):
        _pci_device(wardrobe, bdf, kind, vendor, device, "ast" if vendor == "0x1a03" else "", 0)
    wardrobe.commands.update({
        driver.MODINFO: Ran(1, "", "modinfo: ERROR: Module nvidia not found.\n"),
        driver.SECURE_BOOT: "SecureBoot disabled\n",
        fabric.SERVICES: "\n".join(_unit(name, None) for name in (fabric.MANAGER, fabric.IMEX)),
        fabric.DPKG: Ran(1, "", "".join("dpkg-query: no packages found matching %s\n" % word for word in fabric.DPKG[3:])),
        fabric.JOURNAL: "",
        fabric.NVLSM: Ran(1),
    })
    wardrobe.files.setdefault("/proc/devices", "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n\nBlock devices:\n259 blkext\n")


def _pci_device(wardrobe: Wardrobe, bdf: str, kind: str, vendor: str, device: str, bound: str, numa: int) -> None:
    folder = "/sys/bus/pci/devices/" + bdf
    for name, text in (("class", kind), ("vendor", vendor), ("device", device), ("revision", "0xa1"), ("numa_node", str(numa))):
        wardrobe.files["%s/%s" % (folder, name)] = text + "\n"
    if bound:
        wardrobe.links[folder + "/driver"] = "../../../../bus/pci/drivers/" + bound
        wardrobe.links["/sys/bus/pci/drivers/%s/%s" % (bound, bdf)] = "../../../../devices/pci%s/%s" % (bdf[:7], bdf)


def _unit(name: str, active: Any, pid: int = 0, restarts: int = 0) -> str:
    """One block of ``systemctl show``; `active` None: there is no such unit, else whether it runs."""
    if active is None:
        return "Id=%s\nLoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\nNRestarts=0\nMainPID=0\n" % name
    states = ("active", "running", "Sat 2026-11-28 21:06:%02d UTC" % (30 + pid % 20)) if active else ("failed", "failed", "")
    return (
        "Id=%s\nLoadState=loaded\nActiveState=%s\nSubState=%s\nActiveEnterTimestamp=%s\nUnitFileState=enabled\nNRestarts=%d\nMainPID=%d\n"
        "FragmentPath=/usr/lib/systemd/system/%s\nDropInPaths=\n" % ((name,) + states + (restarts, pid if active else 0, name)))


# -- driver --------------------------------------------------------------------------------------
def _identity(spec: Spec) -> str:
    return "NVIDIA UNIX Open Kernel Module for %s  %s  Release Build  (builder@example)  Mon Sep  7 09:00:00 UTC 2026" % (
        "aarch64" if spec.grace else "x86_64", spec.loaded_driver)


def _on_disk(spec: Spec) -> str:
    return NEWER_DRIVER if "pending_reboot" in spec.faults else spec.loaded_driver


def _driver(spec: Spec, wardrobe: Wardrobe) -> None:
    kernel, arch = part_host.kernel(spec), "aarch64" if spec.grace else "x86_64"
    installed = _on_disk(spec)
    wardrobe.files.update({
        "/sys/module/nvidia/version": spec.loaded_driver + "\n",
        "/proc/driver/nvidia/version": "NVRM version: %s\nGCC version:  gcc version 13.3.0 (GCC)\n" % _identity(spec),
        "/proc/driver/nvidia/params": "".join("%s: %s\n" % pair for pair in (
            ("ResmanDebugLevel", "4294967295"), ("EnableStreamMemOPs", "0"), ("NvLinkDisable", "0"), ("EnablePCIERelaxedOrderingMode", "0"),
            ("PeerMappingOverride", "0"), ("CreateImexChannel0", "1" if spec.grace else "0"), ("GrdmaPciTopoCheckOverride", "0"),
            ("RegistryDwords", '""'))),
        "/etc/modprobe.d/nvidia-graphics-drivers.conf": "# made by the driver's package\nblacklist nouveau\noptions nouveau modeset=0\n",
    })
    library = "/usr/lib/%s-linux-gnu/" % arch
    for name in ("libnvidia-ml.so", "libcuda.so"):
        wardrobe.links[library + name + ".1"] = "%s.%s" % (name, spec.loaded_driver)
    wardrobe.commands[driver.MODINFO] = (
        "filename:       /lib/modules/%s/updates/dkms/nvidia.ko.zst\nversion:        %s\nsupported:      external\n"
        "license:        Dual MIT/GPL\nfirmware:       nvidia/%s/gsp_ga10x.bin\ndepends:        \nname:           nvidia\n"
        "vermagic:       %s SMP preempt mod_unload modversions\nsigner:         example Secure Boot Module Signature key\n"
        "parm:           NvSwitchRegDwords:NvSwitch regkey (charp)\n" % (kernel, installed, installed, kernel))
    wardrobe.commands[driver.DKMS] = "nvidia/%s, %s, %s: installed\n" % (installed, kernel, arch)


def _packages(wardrobe: Wardrobe, versions: Dict[str, str]) -> None:
    """Answer for the fabric's packages, and set the same versions in the longer list that the host section asks for."""
    lines = ["%s\t%s-1ubuntu1\thi \n" % pair for pair in sorted(versions.items())]
    wardrobe.commands[fabric.DPKG] = Ran(1, "".join(lines), "dpkg-query: no packages found matching a pattern\n")
    listed = wardrobe.commands[host.DPKG]
    kept = [line for line in listed.out.splitlines(True) if line.split("\t")[0] not in versions]
    wardrobe.commands[host.DPKG] = listed._replace(out="".join(sorted(kept + lines)))


def _pci(spec: Spec, wardrobe: Wardrobe, all_gpus: List[Gpu]) -> None:
    model = MODELS[spec.hardware]
    for gpu in all_gpus:
        folder = "/sys/bus/pci/devices/" + gpu.bdf
        _pci_device(wardrobe, gpu.bdf, "0x030200", "0x10de", "0x" + model.device.lower(), "nvidia", gpu.numa)
        # A file of bytes: what is no UTF-8 arrives as U+FFFD, and a device that left the bus answers with ones only.
        wardrobe.files[folder + "/config"] = "\ufffd" * 64 if gpu.lost else "\ufffd\x10" + chr(int(model.device[2:], 16) & 0x7F) + "\0" * 61
        wardrobe.files["/proc/driver/nvidia/gpus/%s/information" % gpu.bdf] = "Model: \t\t %s\n" % model.name
        wardrobe.files["/dev/nvidia%d" % gpu.index] = ""
        # On Grace a GPU shares its group with the DMA function of its HCA.
        group = (40 if spec.hardware == "gb300" else 60) + gpu.index
        wardrobe.links[folder + "/iommu_group"] = "../../../kernel/iommu_groups/%d" % group
        wardrobe.folders.add("/sys/kernel/iommu_groups/%d" % group)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        wardrobe.files["/dev/" + name] = ""
    if spec.hardware in ("h100", "h200"):
        for number, bus in enumerate(_SWITCH_BUSES):
            bdf = "0000:%02x:00.0" % bus
            _pci_device(wardrobe, bdf, "0x068000", "0x10de", "0x22a3", "nvidia-nvswitch", 0)
            wardrobe.files["/proc/driver/nvidia-nvswitch/devices/" + bdf] = "BIOS Version:  96.10.6D.00.01\n"
            wardrobe.files["/dev/nvidia-nvswitch%d" % number] = ""


# -- nvidia-smi ----------------------------------------------------------------------------------
def _xml(name: str, value: Any, depth: int) -> str:
    """An element: a list of (name, value) nests, anything else is text."""
    pad = "\t" * depth
    if isinstance(value, list):
        return "%s<%s>\n%s%s</%s>\n" % (pad, name, "".join(_xml(n, v, depth + 1) for n, v in value), pad, name)
    return "%s<%s>%s</%s>\n" % (pad, name, escape(str(value)), name)


def document(spec: Spec, alive: List[Gpu]) -> str:
    """Output of ``nvidia-smi -q -x``."""
    old = spec.loaded_driver < "580"
    head = [("timestamp", "Sun Nov 29 21:06:40 2026"), ("driver_version", spec.loaded_driver), ("cuda_version", spec.cuda),
            ("attached_gpus", len(alive))]
    return "".join((
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v%d.dtd">\n<nvidia_smi_log>\n' % (12 if old else 13),
        "".join(_xml(name, value, 1) for name, value in head),
        "".join(_gpu(spec, gpu, old) for gpu in alive), "</nvidia_smi_log>\n"))


def _gpu(spec: Spec, gpu: Gpu, old: bool) -> str:
    model, faults = MODELS[spec.hardware], spec.faults
    pending = "ecc_pending" in faults and gpu.index == 1
    contained = "xid_94" in faults and gpu.index == 3
    held = 68000 if "foreign_holder" in faults else 0
    domain, bus, device = gpu.bdf[:-2].split(":")
    address = "0000%s:%s:%s.0" % (domain.upper(), bus.upper(), device)
    counters = [("sram_correctable", 0), ("sram_uncorrectable_parity", 0), ("sram_uncorrectable_secded", 0), ("dram_correctable", 0),
                ("dram_uncorrectable", 1 if contained or pending else 0)]
    volatile = counters[:-1] + [("dram_uncorrectable", 1 if contained else 0)]
    errors: List[Tuple[str, Any]] = [("volatile", volatile), ("aggregate", counters + [("sram_threshold_exceeded", "No")])]
    fields: List[Tuple[str, Any]] = [
        ("product_name", model.name), ("product_brand", "NVIDIA"), ("product_architecture", model.arch), ("display_active", "Disabled"),
        ("persistence_mode", "Enabled"), ("addressing_mode", "ATS" if spec.grace else "HMM" if model.arch == "Hopper" else "None"),
        ("mig_mode", [("current_mig", "Disabled"), ("pending_mig", "Disabled")]), ("mig_devices", "None"),
        ("serial", gpu.serial), ("uuid", gpu.uuid), ("minor_number", gpu.index), ("vbios_version", model.vbios),
    ]
    if old:
        gone = "Requested functionality has been deprecated"
        fields.append(("gpu_reset_status", [("reset_required", gone), ("drain_and_reset_recommended", gone)]))
    else:
        errors += [("channel_repair_pending", "No"), ("tpc_repair_pending", "No")]
    fields += [
        ("gpu_recovery_action", "Reset" if pending else "None"), ("gsp_firmware_version", spec.loaded_driver),
        ("pci", [
            ("pci_bus", bus.upper()), ("pci_device", device), ("pci_domain", domain.upper()), ("pci_device_id", model.device + "10DE"),
            ("pci_bus_id", address),
            ("pci_gpu_link_info", [
                ("pcie_gen", [("max_link_gen", model.gen), ("current_link_gen", model.gen), ("max_host_link_gen", "N/A")]),
                ("link_widths", [("max_link_width", "16x"), ("current_link_width", "16x")])]),
        ]),
        ("performance_state", "P0"),
        ("clocks_event_reasons", [("clocks_event_reason_gpu_idle", "Not Active" if held else "Active")] + [
            ("clocks_event_reason_" + name, "Not Active") for name in smi.THROTTLES]),
        ("fb_memory_usage", [
            ("total", "%d MiB" % model.memory), ("reserved", "720 MiB"), ("used", "%d MiB" % held),
            ("free", "%d MiB" % (model.memory - 720 - held))]),
        ("compute_mode", "Default"), ("utilization", [("gpu_util", "0 %"), ("memory_util", "0 %")]),
        ("ecc_mode", [("current_ecc", "Enabled"), ("pending_ecc", "Enabled")]), ("ecc_errors", errors),
        ("remapped_rows", [
            ("remapped_row_corr", 0), ("remapped_row_unc", 1 if pending else 0), ("remapped_row_pending", "Yes" if pending else "No"),
            ("remapped_row_failure", "No")]),
        ("temperature", [("gpu_temp", "%d C" % (31 + gpu.index % 4)), ("gpu_temp_tlimit", "52 C")]),
        ("gpu_power_readings", [("power_state", "P0"), ("instant_power_draw", "%d.50 W" % (142 + gpu.index))]),
        ("fabric", _fabric(spec, gpu, old)),
    ]
    processes = [("process_info", [
        ("gpu_instance_id", "N/A"), ("compute_instance_id", "N/A"), ("pid", part_host.FOREIGN_PID), ("type", "C"),
        ("process_name", "/home/alice/venv/bin/python3"), ("used_memory", "%d MiB" % held)])] if held else []
    fields.append(("processes", processes))
    return '\t<gpu id="%s">\n%s\t</gpu>\n' % (address, "".join(_xml(name, value, 2) for name, value in fields))


def _routed(spec: Spec, gpu: Gpu) -> bool:
    """True when the fabric is set up for this GPU."""
    return "fm_mismatch" not in spec.faults and not ("nvlink_lost" in spec.faults and gpu.index == 2)


def _fabric(spec: Spec, gpu: Gpu, old: bool) -> List[Tuple[str, Any]]:
    if not _routed(spec, gpu):
        waiting = [("state", "In Progress"), ("status", "N/A"), ("cliqueId", "N/A"), ("clusterUuid", "N/A")]
        return waiting + [("health", [("bandwidth", "N/A"), ("route_unhealthy", "N/A")])]
    health = [("bandwidth", "Full" if spec.grace else "N/A")] + [
        (name, "False") for name in ("route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery")]
    if not old:
        health = [("summary", "Healthy")] + health + [("incorrect_configuration", "None")]
    clique = (OTHER_CLIQUE if "clique_other" in spec.faults else CLIQUE) if spec.grace else "0"
    return [("state", "Completed"), ("status", "Success"), ("cliqueId", clique), ("clusterUuid", CLUSTER if spec.grace else smi.NO_CLUSTER),
            ("health", health)]


def matrix(spec: Spec, alive: List[Gpu]) -> str:
    """Output of ``nvidia-smi topo -m``: tabs, the header underlined."""
    nics = part_rdma.hcas(spec)
    labels = ["GPU%d" % gpu.index for gpu in alive] + ["NIC%d" % i for i in range(len(nics))]
    lines = ["\t" + "\t".join("\x1b[4m%s\x1b[0m" % label for label in labels + ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    cores = 72 if spec.grace else 56

    def between(a: int, b: int, own: bool) -> str:
        return "SYS" if spec.grace or a != b else "PIX" if own else "NODE"

    for gpu in alive:
        cells = [" X " if gpu == other else "NV18" if 2 not in (gpu.index, other.index) or "nvlink_lost" not in spec.faults else "SYS"
                 for other in alive]
        cells += [between(gpu.numa, nic.numa, nic.role == "compute" and gpu.index == i) for i, nic in enumerate(nics)]
        cells += ["%d-%d" % (gpu.numa * cores, gpu.numa * cores + cores - 1), str(gpu.numa), ""]
        cells += [str(_GRACE_MEMORY[gpu.index]) if spec.grace else "N/A"]
        lines.append("GPU%d\t%s" % (gpu.index, "\t".join(cells)))
    for i, nic in enumerate(nics):
        cells = [between(gpu.numa, nic.numa, nic.role == "compute" and gpu.index == i) for gpu in alive]
        cells += [" X " if i == j else between(nic.numa, other.numa, False) for j, other in enumerate(nics)]
        lines.append("NIC%d\t%s\t\t\t\t" % (i, "\t".join(cells)))
    legend = ["X    = Self", "SYS  = Across NUMA nodes", "NODE = Across host bridges of a NUMA node", "PIX  = Across one PCIe bridge",
              "NV#  = Over # NVLinks"]
    return "\n".join(lines + ["", "Legend:", ""] + ["  " + line for line in legend] + ["", "NIC Legend:", ""]
                     + ["  NIC%d: %s" % (i, nic.name) for i, nic in enumerate(nics)]) + "\n"


def links(spec: Spec, alive: List[Gpu]) -> str:
    """Output of ``nvidia-smi nvlink -s``."""
    model, lines = MODELS[spec.hardware], []
    for gpu in alive:
        lines.append("GPU %d: %s (UUID: %s)" % (gpu.index, model.name, gpu.uuid))
        if "nvlink_lost" in spec.faults and gpu.index == 2:
            lines.append("NVML: Unable to retrieve NVLink information as all links are inActive")
        else:
            lines += ["\t Link %d: %s GB/s" % (link, model.link) for link in range(18)]
    return "\n".join(lines) + "\n"


# -- fabric --------------------------------------------------------------------------------------
def _manager(spec: Spec, wardrobe: Wardrobe) -> None:
    """Fabric Manager, and on Blackwell the subnet manager that it starts."""
    mismatch = "fm_mismatch" in spec.faults
    version = NEWER_DRIVER if mismatch else spec.loaded_driver
    fifth = MODELS[spec.hardware].arch == "Blackwell"
    versions = {"nvidia-fabricmanager": version}
    if fifth:
        versions["nvlsm"] = NVLSM_VERSION
        wardrobe.commands[fabric.NVLSM] = Ran(1) if mismatch else "2087\n"
    _packages(wardrobe, versions)
    wardrobe.commands[fabric.SERVICES] = "\n".join((
        _unit(fabric.MANAGER, not mismatch, 2100, 5 if mismatch else 0), _unit(fabric.IMEX, None)))
    journal = ["Starting nvidia-fabricmanager.service - NVIDIA fabric manager service..."]
    if not fifth:
        journal.append("Detected Pre-NVL5 system")
    if mismatch:
        journal += [
            "fabric manager NVIDIA GPU driver interface version %s don't match with driver version %s. "
            "Please update with matching NVIDIA driver package." % (version, spec.loaded_driver),
            "nvidia-fabricmanager.service: Failed with result 'exit-code'.",
            "Failed to start nvidia-fabricmanager.service - NVIDIA fabric manager service."]
    else:
        journal += ["Entering MASTER state"] if fifth else ["Connected to 1 node."]
        journal += ["Successfully configured all the available %s." % (
            "GPUs and NVSwitches to route NVLink traffic" if fifth else "NVSwitches to route GPU NVLink traffic"),
            "Started nvidia-fabricmanager.service - NVIDIA fabric manager service."]
    wardrobe.commands[fabric.JOURNAL] = "\n".join(journal) + "\n"


def trays(spec: Spec) -> List[str]:
    """Addresses of the four trays that share an IMEX domain with this one, itself among them."""
    first = (spec.index - 1) // 4 * 4 + 1
    return [spec._replace(index=first + i).address for i in range(4)]


def _imex(spec: Spec, wardrobe: Wardrobe) -> None:
    down = "imex_down" in spec.faults
    listed = trays(spec)
    nodes: Dict[str, Any] = {}
    for key, address in enumerate(listed):
        gone = down and address == spec.address
        nodes[str(key)] = {
            "status": "UNAVAILABLE" if gone else "READY", "host": address, "hostName": "N/A" if gone else "tray%d" % (key + 1),
            "connections": {str(peer): {
                "host": other, "status": "INVALID" if gone else "DISCONNECTED" if down and other == spec.address else "CONNECTED",
                "changed": False} for peer, other in enumerate(listed)}}
    wardrobe.commands[fabric.IMEX_NODES] = json.dumps({
        "nodes": nodes, "timestamp": "11/29/2026 21:06:40.000", "status": "DEGRADED" if down else "UP"}) + "\n"
    wardrobe.commands[fabric.IMEX_STATE] = Ran(1, "UNAVAILABLE\n", "") if down else "READY\n"
    wardrobe.commands[fabric.SERVICES] = "\n".join((
        _unit(fabric.MANAGER, None), _unit(fabric.IMEX, not down, 2200, 3 if down else 0)))
    _packages(wardrobe, {"nvidia-imex": spec.loaded_driver})
    wardrobe.files.update({
        fabric.NODES_CONFIG: "# compute trays of this rack\n" + "".join(address + "\n" for address in listed),
        fabric.CONFIG: "LOG_LEVEL=4\nSERVER_PORT=50000\nIMEX_CMD_PORT=50005\nIMEX_CMD_ENABLED=1\nIMEX_WAIT_FOR_QUORUM=RECOVERY\n",
        fabric.CHANNELS + "/channel0": "",
        "/proc/devices": "Character devices:\n  1 mem\n 10 misc\n195 nvidia\n195 nvidiactl\n%d nvidia-caps-imex-channels\n\n"
                         "Block devices:\n259 blkext\n" % IMEX_MAJOR,
    })


# -- kernel log ----------------------------------------------------------------------------------
def _kernel_log(spec: Spec, all_gpus: List[Gpu]) -> List[Tuple[float, str]]:
    log = [(9.0, "nvidia: loading out-of-tree module taints kernel."), (9.5, "NVRM: loading " + _identity(spec))]
    log += [(9.1 + gpu.index / 100, "nvidia %s: enabling device (0000 -> 0002)" % gpu.bdf) for gpu in all_gpus]
    at = {gpu.index: gpu.bdf[:-2] for gpu in all_gpus}
    if "gpu_lost" in spec.faults:
        bdf = at[spec.gpus - 1]
        log += [
            (52000.0, "NVRM: Xid (PCI:%s): 79, pid=<unknown>, name=<unknown>, GPU has fallen off the bus." % bdf),
            (52000.1, "NVRM: GPU %s.0: GPU has fallen off the bus." % bdf),
            (52000.2, "NVRM: Xid (PCI:%s): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)" % bdf)]
    if "xid_94" in spec.faults:
        log.append((61000.0, "NVRM: Xid (PCI:%s): 94, pid=51234, name=VLLM::Worker_TP3, Contained memory error, Ch 00000008" % at[3]))
    if "ecc_pending" in spec.faults:
        log.append((43000.0, "NVRM: Xid (PCI:%s): 63, pid=<unknown>, name=<unknown>, Row Remapper: a row is marked for remapping" % at[1]))
    if "nvlink_lost" in spec.faults:
        text = "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x000605c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
        if MODELS[spec.hardware].arch == "Hopper":
            text = "74, pid=<unknown>, name=<unknown>, NVLink: fatal error detected on link 9"
        log.append((38000.0, "NVRM: Xid (PCI:%s): %s" % (at[2], text)))
    if "smi_hung" in spec.faults:
        text = "Timeout after 6s of waiting for RPC response from GPU0 GSP!"
        log.append((70000.0, "NVRM: Xid (PCI:%s): 119, pid=%d, name=nvidia-smi, %s" % (at[0], part_host.STUCK_PID, text)))
    return log
