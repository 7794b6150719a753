# SPDX-License-Identifier: GPL-3.0-or-later
"""Dress a node as hardware that is not there.

A :class:`Spec` names hardware and faults; :func:`dress` gives a reader that answers every file,
command and probe as such a node would. The demo inventories, the fixtures of tests, the nodes of
benchmarks and the costumes of lab machines are all made here, from published facts
(versions, sizes, names); no captured output is copied.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, NamedTuple, Set, Tuple

from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import MemoryReader, Ran

HARDWARE = ("h100", "h200", "b200", "b300", "gb200", "gb300")
FAULTS = (
    "driver_r575",       # driver branch 575, CUDA 12.9, in every place where a version shows
    "peermem_missing",   # nvidia_peermem is on disk but not loaded and not persisted
    "errno_524",         # the kernel log shows refused dma-buf attachments (errno 524 for verbs)
    "gpu_lost",          # the last GPU fell off the bus: Xid 79, not in nvidia-smi, PCI (rev ff)
    "image_drift",       # the image under the same tag has another digest
    "gid_drift",         # RoCE v2 GID stands at another index than on the peers
    "smi_hung",          # nvidia-smi never answers, its process sits in D state
    "clique_other",      # NVL72 tray: GPUs in another fabric clique
    "imex_down",         # NVL72 tray: nvidia-imex failed, domain DEGRADED
    "fm_mismatch",       # Fabric Manager of another version than the driver, service failed
    "nvlink_lost",       # GPU 2 lost its NVLinks: SYS in the matrix
    "xid_94",            # a contained ECC error, Xid 94, on GPU 3
    "ecc_pending",       # row remap pending on GPU 1
    "port_down",         # one expected compute HCA port is DOWN
    "foreign_holder",    # a python process outside any container holds all GPUs
    "stale_cdi",         # the CDI specification names the driver that ran before
    "pending_reboot",    # a newer driver is installed on disk than is loaded
    "no_gpu",            # a machine without any GPU or driver
)


class Spec(NamedTuple):
    """One dressed node: `index` counts from 1 and makes addresses, serials and GUIDs differ."""

    name: str
    hardware: str = "b300"
    index: int = 1
    faults: FrozenSet[str] = frozenset()
    driver: str = "580.95.05"
    peers: Tuple[str, ...] = ()

    @property
    def loaded_driver(self) -> str:
        """Version of the driver that is loaded, faults considered."""
        return "575.57.08" if "driver_r575" in self.faults else self.driver

    @property
    def cuda(self) -> str:
        """CUDA version that the loaded driver reports."""
        return "12.9" if "driver_r575" in self.faults else "13.0"

    @property
    def gpus(self) -> int:
        return 0 if "no_gpu" in self.faults else 4 if self.hardware.startswith("gb") else 8

    @property
    def grace(self) -> bool:
        """A Grace (aarch64) tray of an NVL72 rack."""
        return self.hardware.startswith("gb")

    @property
    def address(self) -> str:
        """IPv4 address on the management network, from the documentation range."""
        return "192.0.2.%d" % (10 + self.index)


class Wardrobe:
    """What the parts of a costume fill in; the meaning is that of MemoryReader's arguments."""

    def __init__(self) -> None:
        self.files: Dict[str, Any] = {}
        self.links: Dict[str, str] = {}
        self.commands: Dict[Tuple[str, ...], Any] = {}
        self.probes: Dict[Tuple[str, str], Any] = {}
        self.folders: Set[str] = set()

    def hang(self, *argv: str) -> None:
        """Let the command `argv` never answer."""
        self.commands[argv] = Ran(None, error="timeout")


BOOTED_AT = 1795900000
"""Boot time of every dressed node, seconds since the epoch (2026-11-28)."""
NOW = 1795986400
"""Wall clock of every dressed node: a day later."""
KERNEL_LOG_START = "Linux version %s (buildd@builder) #1 SMP PREEMPT_DYNAMIC"


def dress(spec: Spec) -> MemoryReader:
    """Reader that answers as the node of `spec` would; what it does not know is missing, as on a real node."""
    from . import part_gpu, part_host, part_rdma

    unknown = spec.faults - set(FAULTS)
    if unknown or spec.hardware not in HARDWARE:
        raise ValueError("no such costume: %s %s" % (spec.hardware, sorted(unknown)))
    wardrobe = Wardrobe()
    # The kernel log is one text to which every part adds (seconds since boot, line).
    log = [(0.0, KERNEL_LOG_START % part_host.kernel(spec))]
    for part in (part_host, part_gpu, part_rdma):
        log.extend(part.dress(spec, wardrobe))
    part_host.kernel_log(spec, wardrobe, sorted(log))
    return MemoryReader(
        files=wardrobe.files, links=wardrobe.links, commands=wardrobe.commands, probes=wardrobe.probes, folders=wardrobe.folders)
