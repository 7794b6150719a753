# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank sits on which GPU: from PCI addresses in kernel messages to the ranks of the engine.

Sources, the surest first:

* NCCL's line of a communicator (``rank 5 nranks 8 cudaDev 5 nvmlDev 5 busId 1b000``) names rank, GPU and bus address at once;
* the process that the driver names with an Xid, when it is a worker of the log or of the evidence;
* the evidence of the node: order of the GPUs, ``CUDA_VISIBLE_DEVICES`` of the server, and the ``local_rank`` that vLLM logs.

NCCL prints an address as one hexadecimal number: domain, bus (8 bits), device (8 bits), function (4 bits), the latter three in the
lowest 20 bits (``int64ToBusId`` in src/misc/utils.cc of NCCL 2.18 to 2.30).
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

_COMM = re.compile(
    r"\brank (\d{1,6}) n[rR]anks (\d{1,6}) cudaDev (\d{1,4})(?: nvmlDev (\d{1,4}))?(?: isAdaptive \d)? busId ([0-9a-fA-F]{1,16})\b")
_LOCAL_RANKS = re.compile(r"\brank (\d{1,6}) nRanks (\d{1,6}) nNodes \d{1,6} localRanks (\d{1,4})\b")
_RANKS = re.compile(r"world_size=(\d{1,6}) rank=(\d{1,6}) local_rank=(\d{1,4})\b")
_NATURAL = re.compile(r"([0-9]+)")


class Comm(NamedTuple):
    """What one line of NCCL says of its rank."""

    line: int
    node: str
    pid: int
    name: str
    """Rank as vLLM calls it (``TP5``), empty when the line does not say."""
    rank: int
    ranks: int
    """Ranks of the communicator."""
    device: int
    smi: int
    """Number by nvidia-smi, -1 when the line lacks it."""
    address: str


class Worker(NamedTuple):
    """A worker that said its place: ``world_size=8 rank=5 local_rank=5``."""

    node: str
    pid: int
    name: str
    rank: int
    local_rank: int
    ray: bool
    """Under Ray each worker sees one GPU alone, so that its `local_rank` is no place in the node's order."""


class Facts(NamedTuple):
    """What the evidence of a node knows of its GPUs and of the processes of the server."""

    gpus: Tuple[Tuple[str, int, str], ...] = ()
    """``(address, index by nvidia-smi, uuid)``."""
    alike: bool = True
    """All GPUs are of one kind, so that CUDA numbers them by address whatever CUDA_DEVICE_ORDER says."""
    known: bool = False
    """The environment of the running server was read."""
    visible: Optional[str] = None
    """Its CUDA_VISIBLE_DEVICES, None when it is not set."""
    granted: Optional[str] = None
    """Its NVIDIA_VISIBLE_DEVICES (set inside containers), None when it is not set."""
    by_address: bool = False
    """CUDA_DEVICE_ORDER is PCI_BUS_ID."""
    pids: Tuple[Tuple[int, int], ...] = ()
    """Processes of the server: number on the node, number in its container."""
    users: Tuple[Tuple[int, str], ...] = ()
    """Process on the node and the GPU that nvidia-smi saw it on."""


class Found(NamedTuple):
    """To whom a GPU or NVSwitch belongs."""

    state: str
    """``rank``; ``node`` (all ranks of it); ``outside`` (a GPU that no rank of this engine uses); ``unknown``."""
    node: str = ""
    ranks: Tuple[str, ...] = ()
    gpu: int = -1
    """Number of the GPU by nvidia-smi, -1 unknown."""
    source: str = ""
    """What told it, as the end of a sentence."""


def bus_address(number: str) -> str:
    """PCI address of NCCL's hexadecimal `number`: ``1b000`` → ``0000:1b:00.0``, ``900010`` → ``0009:00:01.0``; empty for what is none."""
    try:
        value = int(number, 16)
    except ValueError:
        return ""
    if value >> 52:
        return ""
    return "%04x:%02x:%02x.%x" % (value >> 20, value >> 12 & 0xFF, value >> 4 & 0xFF, value & 0xF)


def comm(text: str, line: int, node: str, pid: int, name: str) -> Optional[Comm]:
    """Read NCCL's line of a communicator; None for any other line."""
    found = _COMM.search(text)
    if not found:
        return None
    rank, count, device, index, number = found.groups()
    address = bus_address(number)
    if not address:
        return None
    return Comm(line, node, pid, "" if name.isdigit() else name, int(rank), int(count), int(device), int(index) if index else -1, address)


def local_ranks(text: str) -> int:
    """How many ranks of its communicator NCCL says to be on one node, 0 when the line does not say."""
    found = _LOCAL_RANKS.search(text)
    return int(found.group(3)) if found else 0


def worker(text: str, node: str, pid: int, name: str) -> Optional[Worker]:
    """Read vLLM's line of a worker's place, with its prefixes; None for any other line."""
    found = _RANKS.search(text)
    if not found:
        return None
    return Worker(node, pid, "" if name.isdigit() else name, int(found.group(2)), int(found.group(3)), "(RayWorker" in text)


def natural(names: Iterable[str]) -> Tuple[str, ...]:
    """Names once each, numbers in them by value: TP2 before TP10."""
    # Every second part is a number; a part that is none in one name and one in the other cannot meet.
    return tuple(sorted(set(names), key=lambda name: [int(part) if at % 2 else part for at, part in enumerate(_NATURAL.split(name))]))


def device_order(facts: Facts) -> Optional[List[str]]:
    """Addresses in the order in which the server's CUDA numbers its GPUs; None when that cannot be known.

    Both variables are followed: what the container was given, then what the server chose of it, by number or by (the beginning of) a UUID.
    """
    if not facts.known or not facts.gpus or not (facts.alike or facts.by_address):
        return None
    order: Optional[List[Tuple[str, str]]] = [(address, uuid) for address, _index, uuid in sorted(facts.gpus)]
    if facts.granted is not None and facts.granted not in ("", "all"):
        # Given by nvidia-smi's numbers, and inside the container sorted by address again.
        by_index = {str(index): (address, uuid) for address, index, uuid in facts.gpus}
        chosen = _chosen(facts.granted, by_index, facts.gpus)
        order = sorted(chosen) if chosen is not None else None
    if order is None:
        return None
    if facts.visible is not None:
        by_place = {str(place): pair for place, pair in enumerate(order)}
        order = _chosen(facts.visible, by_place, [(address, 0, uuid) for address, uuid in order])
    return None if order is None else [address for address, _uuid in order]


def _chosen(value: str, by_number: Mapping[str, Tuple[str, str]], gpus: Sequence[Tuple[str, int, str]]) -> Optional[List[Tuple[str, str]]]:
    """GPUs that a variable names; None when one of its words is not understood (parts of a GPU, ``void``, a number that is not there)."""
    found: List[Tuple[str, str]] = []
    for word in filter(None, (part.strip() for part in value.split(","))):
        if word in by_number:
            found.append(by_number[word])
            continue
        named = [(address, uuid) for address, _index, uuid in gpus if uuid and word.startswith("GPU-") and uuid.startswith(word)]
        if len(named) != 1:
            return None
        found.append(named[0])
    return found


class Map:
    """Ranks of the engine and the GPUs that they sit on, over all nodes."""

    def __init__(self, comms: Sequence[Tuple[str, Comm]], workers: Sequence[Worker], counts: Mapping[str, int], facts: Mapping[str, Facts],
                 names: Mapping[Tuple[str, int], str], vague: Iterable[str] = ()) -> None:
        """
        Args:
            comms: NCCL's lines with the name of the file that each stands in, in order.
            workers: workers that said their place.
            counts: node → ranks that NCCL says to be on it.
            facts: node → what its evidence knows.
            names: (node, pid in the log) → rank as vLLM calls it.
            vague: nodes that are called by their file or their container, because no line says the node's own name.
        """
        self.workers = list(workers)
        self.counts = dict(counts)
        self.facts = dict(facts)
        self.names = dict(names)
        self.vague = set(vague)
        self.seats: Dict[Tuple[str, str], Tuple[str, int, str]] = {}
        """(node, address) → rank, index, what told it."""
        self.pids: Dict[Tuple[str, int], str] = {}
        """(node, pid) → address."""
        self.wide: Dict[Tuple[str, str], int] = {}
        for file, one in comms:
            self._seat(file, one)
        for item in self.workers:
            if item.pid:
                self.names.setdefault((item.node, item.pid), item.name or str(item.rank))

    def _seat(self, file: str, one: Comm) -> None:
        name = one.name or self.names.get((one.node, one.pid), "")
        key = (one.node, one.address)
        # A process has one communicator for each of its groups; the widest group's number is the rank, as long as vLLM gives it no name.
        if not name:
            if self.wide.get(key, 0) > one.ranks:
                return
            name = str(one.rank)
        self.wide[key] = max(self.wide.get(key, 0), one.ranks)
        self.seats[key] = (name, one.smi, "NCCL's line %s:%d" % (file, one.line))
        if one.pid:
            self.pids[(one.node, one.pid)] = one.address

    @property
    def nodes(self) -> Set[str]:
        """Nodes on which ranks are known to sit."""
        return {node for node, _address in self.seats} | {item.node for item in self.workers} | set(self.facts)

    def node_of(self, node: str) -> Tuple[Optional[str], str]:
        """The node of the map that wrote a kernel log, and a reservation; None when it cannot be told."""
        known = self.nodes
        if node in known:
            return node, ""
        alike = [name for name in known if name and node and name.split(".")[0] == node.split(".")[0]]
        if len(alike) == 1:
            return alike[0], ""
        only = next(iter(known)) if len(known) == 1 else None
        if only is not None and (not node or only in self.vague):
            return only, ", if the kernel log is of the same node"
        return None, ""

    def ranks_of(self, node: str) -> Tuple[str, ...]:
        """All ranks that are known on a node."""
        names = [rank for (name, _address), (rank, _index, _source) in self.seats.items() if name == node]
        names += [item.name or self.names.get((node, item.pid), "") or str(item.rank) for item in self.workers if item.node == node]
        return natural(names)

    def complete(self, node: str) -> bool:
        """NCCL's lines name the GPU of every rank on `node`."""
        seated = {address for name, address in self.seats if name == node}
        if not seated:
            return False
        here = {item.pid or -1 - item.rank for item in self.workers if item.node == node}
        if here:
            return len(seated) >= len(here)
        if self.counts.get(node):
            return len(seated) >= self.counts[node]
        widest = max((count for (_name, _address), count in self.wide.items()), default=0)
        return len(self.seats) >= widest > 0

    def find(self, node: str, address: str, pid: int, switch: bool = False) -> Found:
        """To whom the device at `address` of `node` belongs.

        Args:
            node: as the kernel log is called, empty unknown.
            address: as ``0000:1b:00.0``.
            pid: process that the driver names, a number on the node, 0 none.
            switch: the device is an NVSwitch: all GPUs of the node depend on it.
        """
        where, doubt = self.node_of(node)
        if where is None:
            holders = sorted({name for name, other in self.seats if other == address})
            if holders and not node:
                return Found("unknown", "", (), -1, "the kernel log does not say which of %s wrote it" % ", ".join(holders[:4]))
            return Found("unknown", node, (), -1, "no line tells which rank uses this GPU")
        if switch:
            return Found("node", where, self.ranks_of(where), -1, "every GPU of the node depends on its NVSwitches" + doubt)
        facts = self.facts.get(where, Facts())
        index = next((number for other, number, _uuid in facts.gpus if other == address), -1)
        seat = self.seats.get((where, address))
        if seat is not None:
            return Found("rank", where, (seat[0],), seat[1] if seat[1] >= 0 else index, seat[2] + doubt)
        named = self._by_pid(where, pid, facts)
        if named:
            return Found("rank", where, (named,), index, "process %d, which the driver names" % pid + doubt)
        on = {self._by_pid(where, user, facts) for user, other in facts.users if other == address} - {""}
        if len(on) == 1:
            return Found("rank", where, tuple(on), index, "nvidia-smi in the evidence, which saw its process there")
        order = device_order(facts)
        if order is not None:
            ranks = natural(
                item.name or self.names.get((where, item.pid), "") or str(item.rank) for item in self.workers
                if item.node == where and not item.ray and item.local_rank < len(order) and order[item.local_rank] == address)
            variable = "CUDA_VISIBLE_DEVICES" if facts.visible is not None else "the order of its GPUs"
            if len(ranks) == 1:
                return Found("rank", where, ranks, index, "%s in the evidence and vLLM's local_rank" % variable)
            if address not in order:
                return Found("outside", where, (), index, "%s of the running server in the evidence leaves it out" % variable)
        if self.complete(where):
            return Found("outside", where, (), index, "NCCL's lines name the GPU of every rank on %s%s" % (where or "this node", doubt))
        return Found("unknown", where, (), index, "no line tells which rank uses this GPU")

    def _by_pid(self, node: str, pid: int, facts: Facts) -> str:
        if not pid:
            return ""
        inner = dict(facts.pids)
        if inner:
            return self.names.get((node, inner[pid]), "") if pid in inner else ""
        return self.names.get((node, pid), "")
