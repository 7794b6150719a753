# SPDX-License-Identifier: GPL-3.0-or-later
"""What a dressed node says, out of a small state that remedies can change.

State is which driver is loaded and which one is installed, which modules are loaded, which faults
remain. Everything that is read follows from it, so no remedy meets a frozen recording. Nothing here
touches a machine; costume_node.py does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.inferops.vllm.plugins.module_utils.node import container, driver, fabric, gpudirect, kernel_log, smi, topology
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Ran
from tests.costume import FAULTS, Spec, dress, part_gpu, part_host, part_rdma

State = dict[str, Any]

R575 = "575.57.08"

PEERMEM = {
    # Beyond the costume's own peermem_missing: what loading the module then answers.
    "peermem_einval": "the module was built without peer-memory symbols",
    "peermem_unknown_symbol": "the RDMA core has no peer-memory symbols",
    "peermem_crc": "the module was built against other RDMA modules",
    "peermem_absent": "there is no such module on disk",
}
LAB_FAULTS = (*FAULTS, *PEERMEM)
CLEARED_BY_BOOT = frozenset({"gpu_lost", "smi_hung", "xid_94", "ecc_pending", "nvlink_lost", "foreign_holder", "pending_reboot", "errno_524"})
"""Faults that a reboot mends unless they are sticky: a lost GPU comes back, and the kernel log starts anew."""
DRIVER_MODULES = ("nvidia", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem")

# Stays real on every node: its own identity, its services, its memory, its storage.
REAL_FILES = (
    "/etc/os-release", "/proc/sys/", "/proc/meminfo", "/proc/net/", "/proc/self/", "/boot/vmlinuz-", "/usr/bin/unattended-upgrade",
    "/etc/apt/", "/etc/security/", "/sys/devices/system/", "/sys/class/net/", "/dev/null", container.DAEMON, *container.HOOKS,
)
PROGRAM_NAMES = (
    "nvidia-smi", "nvidia-imex-ctl", "nvidia-ctk", "ibv_devinfo", "lspci", "modinfo", "dkms", "mokutil", "journalctl", "dmesg", "rdma",
    "ofed_info", "dpkg-query", "modprobe", "rmmod", "lsmod",
)
# A virtual machine has a kernel, modules, packages and RDMA devices of its own: only the GPUs are dressed.
MACHINE_PROGRAMS = ("nvidia-smi", "lspci")
MACHINE_FAULTS = frozenset({"gpu_lost", "smi_hung", "nvlink_lost", "xid_94", "ecc_pending", "errno_524"})
"""Faults of GPUs. The driver of a machine is what its packages install, and its modules are what its kernel loads."""
PACKAGES = ("nvidia", "libnvidia", "cuda", "nvlsm", "mlnx", "doca")
"""Names of packages that the costume adds to dpkg's list; all others are those really installed."""
REAL_COMMANDS = {fabric.JOURNAL, fabric.SERVICES, fabric.NVLSM}
"""Answered by units of the costume that really run."""


class Clothes(NamedTuple):
    """All that the node of a state says; the meaning is that of MemoryReader's arguments."""

    files: dict[str, Any]
    links: dict[str, str]
    commands: dict[tuple[str, ...], Any]
    probes: dict[tuple[str, str], Any]
    folders: set[str]

    def reader(self) -> MemoryReader:
        return MemoryReader(self.files, self.links, self.commands, self.probes, self.folders)


# -- state ---------------------------------------------------------------------------------------
def first_state(
    name: str, hardware: str, faults: Sequence[str], *, index: int = 1, kind: str = "container", interface: str = "host0",
    address: str = "10.203.77.11", driver_version: str = "580.95.05", sticky: Sequence[str] = (), peers: Sequence[str] = (),
) -> State:
    """State of a node that was just dressed. Raises ValueError for hardware or a fault that no costume knows."""
    wrong = sorted(set(faults) - set(LAB_FAULTS))
    if wrong:
        raise ValueError("no costume has the fault %s; there are %s" % (", ".join(wrong), ", ".join(LAB_FAULTS)))
    if kind == "vm" and (wrong := sorted(set(faults) - MACHINE_FAULTS)):
        raise ValueError("%s: on a machine this is real, so install or unload what makes it; its costume has %s" % (
            ", ".join(wrong), ", ".join(sorted(MACHINE_FAULTS))))
    spec = Spec(name, hardware, index, frozenset(set(faults) & set(FAULTS)), driver_version)
    dress(spec)
    peermem = sorted(set(faults) & set(PEERMEM))
    if len(peermem) > 1:
        raise ValueError("%s exclude each other" % " and ".join(peermem))
    modules = list(DRIVER_MODULES) if spec.gpus else []
    if peermem or "peermem_missing" in faults:
        modules = [name for name in modules if name != "nvidia_peermem"]
    return {
        "name": name, "hardware": hardware, "index": index, "faults": sorted(faults), "sticky": sorted(sticky), "peers": list(peers),
        "kind": kind, "interface": interface, "address": address, "driver": driver_version,
        "loaded": spec.loaded_driver if spec.gpus else None, "installed": None, "modules": modules, "log": [], "imex_starts": 0,
    }


def installed(state: Mapping[str, Any]) -> str:
    """Version that the next load of the driver gives; empty when there is no module on disk."""
    if state["installed"] is not None:
        return str(state["installed"])
    if "no_gpu" in state["faults"]:
        return ""
    if "pending_reboot" in state["faults"]:
        return part_host.NEWER_DRIVER
    return R575 if "driver_r575" in state["faults"] else str(state["driver"])


def spec_of(state: Mapping[str, Any], version: str = "") -> Spec:
    """The costume of this state, with the driver `version` (left out: the one that is loaded)."""
    loaded = version or state["loaded"] or installed(state) or state["driver"]
    faults = set(state["faults"]) & set(FAULTS) - {"driver_r575", "peermem_missing"}
    if state["installed"] is not None:
        faults.discard("pending_reboot")
    if loaded == R575:
        faults.add("driver_r575")
    if "nvidia_peermem" not in state["modules"]:
        faults.add("peermem_missing")
    peers = tuple(state["peers"])
    return Spec(state["name"], state["hardware"], int(state["index"]), frozenset(faults), loaded, peers)


def peermem_mode(state: Mapping[str, Any]) -> str:
    return next((fault for fault in state["faults"] if fault in PEERMEM), "")


def after_boot(state: Mapping[str, Any], persisted: bool) -> State:
    """The state after a reboot; `persisted`: something loads nvidia_peermem at boot."""
    version = installed(state)
    cleared = CLEARED_BY_BOOT - set(state["sticky"])
    new = {**state, "faults": [fault for fault in state["faults"] if fault not in cleared], "log": []}
    if version and "pending_reboot" not in new["faults"]:
        if version != R575:
            new["faults"] = [fault for fault in new["faults"] if fault != "driver_r575"]
        new["driver"] = version if version != R575 else state["driver"]
    loaded = version if "pending_reboot" not in new["faults"] else state["loaded"]
    new["loaded"] = loaded or None
    new["modules"] = [name for name in DRIVER_MODULES if name != "nvidia_peermem"] if loaded else []
    if loaded and persisted:
        new, _code, _text = load(new, "nvidia_peermem")
    if loaded and "nvidia_peermem" not in new["modules"] and state["kind"] == "container" and not peermem_mode(new):
        new["faults"] = sorted({*new["faults"], "peermem_missing"})
    return new


def load(state: Mapping[str, Any], name: str) -> tuple[State, int, str]:
    """State after `modprobe name`, its exit code, and what it prints on standard error."""
    new: State = {**state, "modules": list(state["modules"]), "log": list(state["log"])}
    if name in new["modules"]:
        return new, 0, ""
    missing = "modprobe: FATAL: Module %s not found in directory /lib/modules/%s\n" % (name, os.uname().release)
    version = installed(state)
    mode = peermem_mode(state) if name == "nvidia_peermem" else ""
    if not version or mode == "peermem_absent":
        return new, 1, missing
    if state["loaded"] is None:
        new["loaded"] = version
        new["modules"].append("nvidia")
    refusals = {
        "peermem_einval": ("Invalid argument", []),
        "peermem_unknown_symbol": ("Unknown symbol in module, or unknown parameter (see dmesg)", [
            "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"]),
        "peermem_crc": ("Invalid argument", [
            "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
            "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)"]),
    }
    if mode in refusals:
        why, lines = refusals[mode]
        new["log"] += lines
        return new, 1, "modprobe: ERROR: could not insert '%s': %s\n" % (name, why)
    if name not in new["modules"]:
        new["modules"].append(name)
    if name == "nvidia_peermem":
        new["faults"] = [fault for fault in state["faults"] if fault != "peermem_missing"]
    return new, 0, ""


def unload(state: Mapping[str, Any], name: str, held: bool = False) -> tuple[State, int, str]:
    """State after `modprobe -r name`. `held`: a process has the GPUs open."""
    new: State = {**state, "modules": list(state["modules"])}
    if name not in new["modules"]:
        return new, 0, ""
    if (held and name in ("nvidia", "nvidia_uvm")) or (name == "nvidia" and len(new["modules"]) > 1):
        return new, 1, "modprobe: FATAL: Module %s is in use.\n" % name
    new["modules"].remove(name)
    if name == "nvidia":
        new["loaded"] = None
    return new, 0, ""


# -- what the node says --------------------------------------------------------------------------
def clothes(state: Mapping[str, Any], kernel: str) -> Clothes:
    """Everything that a node of this state says, under the node's own kernel release, interface and addresses."""
    spec = spec_of(state)
    full = dress(spec)
    files, links, commands = dict(full.files), dict(full.links), dict(full.commands)
    folders = {path for path, names in full.tree.items() if not names}
    _driver_on_disk(state, commands)
    _modules(state, spec, files, commands, folders)
    _peermem(state, commands)
    for name in (kernel_log.JOURNAL, kernel_log.RING):
        form = "[%12.6f] " + (state["name"] + " kernel: " if name == kernel_log.JOURNAL else "") + "%s\n"
        commands[name] = commands[name] + "".join(form % (80000 + at, line) for at, line in enumerate(state["log"]))
    pairs = _own_words(state, spec, kernel)
    return Clothes(
        {_put(path, pairs): _put(text, pairs) for path, text in files.items()},
        {_put(path, pairs): _put(target, pairs) for path, target in links.items()},
        {tuple(_put(word, pairs) for word in argv): _put(ran, pairs) for argv, ran in commands.items()},
        {key: _put(value, pairs) for key, value in full.probes.items()},
        {_put(path, pairs) for path in folders},
    )


def _own_words(state: Mapping[str, Any], spec: Spec, kernel: str) -> list[tuple[str, str]]:
    """What a costume calls otherwise than this node: its kernel, the management interface, addresses and the GID made of them."""
    own = [int(part) for part in state["address"].split(".")]
    pairs = [(part_host.kernel(spec), kernel), (part_rdma.MANAGEMENT, state["interface"])]
    if state.get("holder"):
        # The foreign holder is a process of this node, under a number of its own.
        pairs.append(("<pid>%d</pid>" % part_host.FOREIGN_PID, "<pid>%d</pid>" % state["holder"]))
    if state["kind"] == "container":
        # A costume's index is the number of its node, and the last part of both addresses is made of it.
        return [*pairs, ("192.0.2.", "%d.%d.%d." % tuple(own[:3])), ("ffff:c000:02", "ffff:%02x%02x:%02x" % tuple(own[:3]))]
    theirs = [int(part) for part in spec.address.split(".")]
    form = "ffff:%02x%02x:%02x%02x"
    return [*pairs, (spec.address, state["address"]), (form % tuple(theirs), form % tuple(own))]


def _put(value: Any, pairs: Sequence[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for old, new in pairs:
            value = value.replace(old, new)
        return value
    if isinstance(value, Ran):
        return value._replace(out=_put(value.out, pairs), err=_put(value.err, pairs))
    if isinstance(value, dict):
        return {key: _put(item, pairs) for key, item in value.items()}
    if isinstance(value, list):
        return [_put(item, pairs) for item in value]
    return value


def _driver_on_disk(state: Mapping[str, Any], commands: dict[tuple[str, ...], Any]) -> None:
    """What tools say of the files on disk, once a package has changed them."""
    if state["installed"] is None:
        return
    version = installed(state)
    disk = dress(spec_of(state, version or state["driver"])).commands
    for argv in (driver.MODINFO, driver.DKMS, gpudirect.MODINFO):
        if argv in disk:
            commands[argv] = disk[argv]
    if not version:
        commands[driver.MODINFO] = Ran(1, "", "modinfo: ERROR: Module nvidia not found.\n")
        commands[gpudirect.MODINFO] = Ran(1, "", "modinfo: ERROR: Module nvidia_peermem not found.\n")
        commands[driver.DKMS] = ""


def _modules(
    state: Mapping[str, Any], spec: Spec, files: dict[str, Any], commands: dict[tuple[str, ...], Any], folders: set[str],
) -> None:
    """Leave out what comes with a module that is not loaded."""
    loaded = set(state["modules"])
    gone = {name for name in DRIVER_MODULES if name not in loaded}
    rows = []
    for line in files["/proc/modules"].splitlines(True):
        name, size, refs, users, rest = line.split(" ", 4)
        if name not in gone:
            kept = [user for user in users.strip("-").split(",") if user and user not in gone]
            rows.append(" ".join((name, size, refs, ",".join(kept) + "," if kept else "-", rest)))
    files["/proc/modules"] = "".join(rows)
    folders.update("/sys/module/" + row.split(" ", 1)[0] for row in rows)
    folders.update("/sys/module/" + name for name in loaded)
    if state["loaded"] is None and spec.gpus:
        for path in list(files):
            if path.startswith(("/proc/driver/nvidia/", "/proc/driver/nvidia-nvswitch/", "/sys/module/nvidia")):
                del files[path]
        why = (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n\n")
        for argv in (smi.COMMAND, topology.MATRIX, topology.LINKS):
            if not (isinstance(commands[argv], Ran) and commands[argv].error):
                commands[argv] = Ran(9, why)


def _peermem(state: Mapping[str, Any], commands: dict[tuple[str, ...], Any]) -> None:
    mode = peermem_mode(state)
    if isinstance(commands[gpudirect.MODINFO], Ran):
        return  # There is no module on disk that could refuse.
    if mode == "peermem_einval":
        commands[gpudirect.MODINFO] = commands[gpudirect.MODINFO].replace("nvidia,ib_uverbs", "nvidia")
    elif mode == "peermem_unknown_symbol":
        commands[gpudirect.PEER_SYMBOL] = Ran(1)
    elif mode == "peermem_absent":
        commands[gpudirect.MODINFO] = Ran(1, "", "modinfo: ERROR: Module nvidia_peermem not found.\n")


def store(state: Mapping[str, Any], worn: Clothes) -> dict[str, list[dict[str, Any]]]:
    """Answers of the replaying programs: ``{program: [{"argv", "rc", "out", "err", "hang"?, "merge"?}]}``."""
    names = PROGRAM_NAMES if state["kind"] == "container" else MACHINE_PROGRAMS
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    commands = dict(worn.commands)
    if state["loaded"] is not None and smi.COMMAND in commands and not isinstance(commands[smi.COMMAND], Ran):
        spec = spec_of(state)
        commands[("nvidia-smi", "-L")] = listing(spec)
    for argv, said in commands.items():
        name = argv[0]
        if name not in found or argv in REAL_COMMANDS:
            continue
        ran = said if isinstance(said, Ran) else Ran(0, str(said))
        entry: dict[str, Any] = {"argv": list(argv[1:]), "rc": ran.rc or 0, "out": ran.out, "err": ran.err}
        if ran.error == "timeout":
            entry["hang"] = True
        if name == "dpkg-query":
            entry["merge"] = True
            entry["out"] = "".join(line for line in ran.out.splitlines(True) if line.startswith(PACKAGES))
        found[name].append(entry)
    if "journalctl" in found and state.get("dressed_at"):
        # The journal is real, and may hold what an earlier costume's Fabric Manager said in the same boot.
        found["journalctl"].append({"argv": list(fabric.JOURNAL[1:]), "add": ["--since=@%d" % state["dressed_at"]]})
    if any(entry.get("hang") for entry in found.get("nvidia-smi", [])):
        found["nvidia-smi"] = [{"argv": ["*"], "rc": 0, "out": "", "err": "", "hang": True}]
    return found


def listing(spec: Spec) -> str:
    """Output of ``nvidia-smi -L``."""
    model = part_gpu.MODELS[spec.hardware].name
    return "".join("GPU %d: %s (UUID: %s)\n" % (gpu.index, model, gpu.uuid) for gpu in part_gpu.gpus(spec) if not gpu.lost)


def query(document: str, fields: Sequence[str], units: bool) -> list[list[str]]:
    """What ``nvidia-smi --query-gpu=…`` prints, one row a GPU, for the few fields that roles ask for."""
    facts = smi.parse(document)
    rows = []
    for gpu in facts["gpus"]:
        mib = "%s MiB" if units else "%s"
        domain, _colon, rest = str(gpu.get("bdf", "")).partition(":")
        words = {
            "index": gpu.get("index"), "count": len(facts["gpus"]), "name": gpu.get("name"), "gpu_name": gpu.get("name"),
            "uuid": gpu.get("uuid"), "gpu_uuid": gpu.get("uuid"), "serial": gpu.get("serial"), "vbios_version": gpu.get("vbios"),
            "driver_version": facts.get("driver_version"), "pci.bus_id": ("%8s:%s" % (domain, rest)).replace(" ", "0").upper(),
            "memory.total": mib % gpu.get("fb_total_mib"), "memory.used": mib % (gpu.get("fb_used_mib") or 0),
            "persistence_mode": "Enabled" if gpu.get("persistence") else "Disabled",
            "mig.mode.current": gpu.get("mig"), "gpu_recovery_action": gpu.get("recovery_action"),
        }
        rows.append([str(words[field]) if words.get(field) is not None else "[N/A]" for field in fields])
    return rows


# -- where it goes on the node -------------------------------------------------------------------
class Tree(NamedTuple):
    """Files (path → text, or bytes), links (path → target) and folders of a real file system."""

    files: dict[str, str]
    links: dict[str, str]
    folders: set[str]


def is_real(path: str) -> bool:
    return path.startswith(REAL_FILES)


def tree(worn: Clothes) -> Tree:
    """`worn` as a file system can hold it: no path is a link and a folder at once, and no read fails.

    A link that has files below it (in sysfs most folders of devices are such links) moves them to where it leads.
    """
    paths = [path for path in [*worn.files, *worn.links] if not is_real(path)]
    below = {path.rsplit("/", 1)[0] for path in paths} | {path.rsplit("/", 1)[0] for path in worn.folders}
    parents = set(below)
    for path in below:
        while path.count("/") > 1:
            path = path.rsplit("/", 1)[0]
            parents.add(path)
    moved: dict[str, str] = {}
    links: dict[str, str] = {}
    for path, target in sorted(worn.links.items()):
        place = _place(path, target)
        if is_real(path) or (not place and path in parents):
            continue
        links[path] = place or target
        if place and path in parents:
            moved[path] = place

    def settle(path: str) -> str:
        for link, place in moved.items():
            if path.startswith(link + "/"):
                return place + path[len(link):]
        return path

    files = {
        settle(path): text for path, text in worn.files.items()
        if not is_real(path) and not (isinstance(text, Content) and text.text is None)
    }
    texts = {path: str(text.text) if isinstance(text, Content) else str(text) for path, text in files.items()}
    settled = {settle(path): target for path, target in links.items()}
    folders = {settle(path) for path in worn.folders if not is_real(path)} | set(moved.values())
    return Tree(texts, settled, folders)


def only_gpus(plan: Tree, bdfs: Sequence[str]) -> Tree:
    """Of the PCI functions only the GPUs: a machine's other ones are its own."""
    folders = tuple("/sys/bus/pci/devices/%s/" % bdf for bdf in bdfs)
    return Tree(
        {path: text for path, text in plan.files.items() if path.startswith(folders)},
        {path: target for path, target in plan.links.items() if path.startswith(folders)},
        {path for path in plan.folders if path.startswith(folders)})


def _place(path: str, target: str) -> str:
    """Where a link of sysfs leads on the node, empty for one whose text alone matters."""
    last = target.rsplit("/", 1)[-1]
    if "/iommu_groups/" in target:
        return "/sys/kernel/iommu_groups/" + last
    if path.endswith("/device") and re.match(r"[0-9a-f]{4}:[0-9a-f]{2}:", last):
        return "/sys/bus/pci/devices/" + last
    return ""


def device_table(real: str, dressed: str) -> str:
    """/proc/devices of this machine with the character devices that the driver's modules would add."""
    extra = [line for line in dressed.splitlines() if "nvidia" in line and line not in real.splitlines()]
    head, sign, tail = real.partition("\nBlock devices:")
    return head.rstrip("\n") + "\n" + "".join(line + "\n" for line in extra) + sign + tail
