# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the GPUs: what PCI, the driver and the kernel log say of each, how they are linked, and who holds them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, AbstractSet, Any, Dict, List, Sequence

from . import kernel_log, smi, systemd, topology, xid
from .reader import Reader
from .text import drop_empty, integer

if TYPE_CHECKING:
    from .collect import Options

PCI = "/sys/bus/pci/devices"
DRIVER = "/sys/bus/pci/drivers/nvidia"
NVIDIA = "0x10de"

MAX_PCI = 4096
MAX_HOLDERS = 40

_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_NODE = re.compile(r"^nvidia\d{1,4}$")


def commands(options: Options) -> List[Sequence[str]]:
    """Commands known beforehand, for :func:`collect.gather`."""
    return [smi.COMMAND, topology.MATRIX, topology.LINKS, *kernel_log.COMMANDS]


def collect(reader: Reader, options: Options) -> Dict[str, Any]:
    """Section ``gpu`` of docs/FACTS.md."""
    unknown: Dict[str, str] = {}
    facts: Dict[str, Any] = {}
    gpus = _smi(reader, facts, unknown)
    listed = {str(gpu["bdf"]) for gpu in gpus if "bdf" in gpu}
    facts["pci"] = _pci(reader, listed, unknown)
    facts["devices"] = _devices(reader, unknown)
    _links(reader, facts, gpus, unknown)
    holders = _holders(reader, unknown)
    if holders is not None:
        facts["holders"] = holders
    messages, why = kernel_log.lines(reader)
    if why:
        unknown["kernel_log"] = why
    if messages or not why:
        index = {str(gpu["bdf"]): int(gpu["index"]) for gpu in gpus if "bdf" in gpu}
        facts.update(xid=xid.xids(messages, index), sxid=xid.sxids(messages), fallen=xid.fallen(messages))
    facts["unknown"] = unknown
    return facts


def _smi(reader: Reader, facts: Dict[str, Any], unknown: Dict[str, str]) -> List[Dict[str, Any]]:
    """What ``nvidia-smi -q -x`` gave, as far as it is whole; a document of a killed tool still holds GPUs."""
    ran = reader.run(smi.COMMAND)
    document = smi.parse(ran.out)
    gpus: List[Dict[str, Any]] = document["gpus"]
    if gpus or "driver_version" in document:
        facts["smi"] = {name: document[name] for name in ("driver_version", "cuda_version", "attached") if name in document}
    if gpus:
        facts["gpus"] = gpus
        why = "; ".join(part for part in (ran.reason("nvidia-smi") if ran.error else "", document["problem"]) if part)
    else:
        why = smi.reason(ran) or document["problem"]
    if why:
        unknown["smi"] = why[:300]
    return gpus


def _pci(reader: Reader, listed: AbstractSet[str], unknown: Dict[str, str]) -> Any:
    """Display and 3D controllers of NVIDIA. NVSwitches and other bridges of the vendor are of another class."""
    found = reader.names(PCI)
    if found.error:
        unknown["pci"] = "%s could not be read (%s)" % (PCI, found.error)
        return None
    # A GPU is function 0 of its slot, or at least bound to the driver: the other functions of a big machine stay unread.
    bound = set(reader.names(DRIVER).names)
    controllers: List[Dict[str, Any]] = []
    for address in found.names[:MAX_PCI]:
        if not _ADDRESS.match(address) or not (address.endswith(".0") or address in bound):
            continue
        folder = "%s/%s/" % (PCI, address)
        if not reader.read(folder + "class").strip().startswith("0x03") or reader.read(folder + "vendor").strip() != NVIDIA:
            continue
        numa = integer(reader.read(folder + "numa_node").text)
        driver = reader.link(folder + "driver").strip().rsplit("/", 1)[-1]
        entry: Dict[str, Any] = {"bdf": address, "device": reader.read(folder + "device").strip(), "driver": driver}
        if reader.read(folder + "revision").strip() == "0xff" or (address not in listed and _dead(reader, folder)):
            entry["rev_ff"] = True
        if numa is not None and numa >= 0:
            entry["numa"] = numa
        controllers.append(drop_empty(entry))
    return controllers


def _dead(reader: Reader, folder: str) -> bool:
    """True when the configuration space reads as ones only, which is what a device that left the bus gives.

    sysfs keeps the revision of the time of detection, so only this look tells; it is done for GPUs that nvidia-smi does not list.
    """
    # Bytes that are no UTF-8 arrive as U+FFFD.
    start = (reader.read(folder + "config").text or "")[:64]
    return len(start) >= 16 and not start.strip("�\xff")


def _devices(reader: Reader, unknown: Dict[str, str]) -> Any:
    found = reader.names("/dev")
    if found.error:
        unknown["devices"] = "/dev could not be read (%s)" % found.error
        return None
    return sum(1 for name in found.names if _NODE.match(name))


def _links(reader: Reader, facts: Dict[str, Any], gpus: List[Dict[str, Any]], unknown: Dict[str, str]) -> None:
    """Fill in the matrix, the links, and on Grace the memory node of each GPU."""
    ran = reader.run(topology.MATRIX)
    matrix = topology.parse_matrix(ran.out)
    if ran.error or matrix["problem"]:
        unknown["topology"] = smi.reason(ran, "nvidia-smi topo -m") or str(matrix["problem"])
    else:
        facts["topology"] = {name: matrix[name] for name in ("gpus", "matrix", "nics", "gpu_nic") if matrix[name]}
        for gpu in gpus:
            # GPU0 of the matrix is index 0 of nvidia-smi.
            own = matrix["numa"].get("GPU%d" % gpu["index"])
            if own is not None:
                gpu["numa"] = own
    ran = reader.run(topology.LINKS)
    links = topology.parse_links(ran.out)
    if links and not ran.error:
        facts["nvlink"] = links
    else:
        # A GPU without NVLink prints nothing, and that is an answer.
        why = smi.reason(ran, "nvidia-smi nvlink -s")
        if why:
            unknown["nvlink"] = why
        else:
            facts["nvlink"] = []


def _holders(reader: Reader, unknown: Dict[str, str]) -> Any:
    probed = reader.probe("processes")
    value = probed.value
    if not isinstance(value, dict):
        unknown["holders"] = "the processes could not be looked at (%s)" % (probed.error or "no table")
        return None
    holders: List[Dict[str, Any]] = []
    items = value.get("holders")
    for item in (items if isinstance(items, list) else [])[:MAX_HOLDERS]:
        if not isinstance(item, dict) or not isinstance(item.get("pid"), int):
            continue
        holders.append(drop_empty({
            "pid": item["pid"], "comm": str(item.get("comm") or "")[:32], "state": str(item.get("state") or "")[:1],
            "devices": integer(item.get("devices")), "container": systemd.owner(str(item.get("cgroup") or "")[:500]).get("container"),
            "orphan": True if item.get("orphan") is True else None,
        }))
    denied = integer(value.get("denied")) or 0
    who = reader.probe("process").value
    if value.get("hidden"):
        unknown["holders"] = "the processes of others are hidden from this user"
    elif denied > 0 and not (isinstance(who, dict) and who.get("uid") == 0):
        unknown["holders"] = "the open files of %d processes may only be read by root" % denied
    elif value.get("truncated"):
        unknown["holders"] = "not all processes could be looked at in time"
    return sorted(holders, key=lambda holder: int(holder["pid"]))
