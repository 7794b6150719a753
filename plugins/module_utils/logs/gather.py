# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept of a log while it is read: marks of phases, and events that a signature or a traceback makes interesting."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from . import advisories, phases, placement, verdict
from .event import Event
from .formats import clean
from .kernel import fault
from .phases import Marker
from .signatures import Signature, rows

MAX_KEPT = 4000
"""Marks, and interesting events, that are kept of one stream."""
_ZONED = re.compile(r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z\b| ?[+-]\d{2}:?\d{2}\b| ?UTC\b)|__REALTIME_TIMESTAMP")


class Hit(NamedTuple):
    """An interesting event: where it stands, and what it says."""

    stream: int
    line: int
    at: int
    time: Optional[float]
    clock: str
    node: str
    process: str
    rank: str
    pid: int
    level: str
    row: Optional[Signature]
    weight: int
    cls: str
    cause: str
    text: str
    raw: str
    phase: str
    stage: str
    exception: bool
    relay: str

    @property
    def root(self) -> bool:
        """May be the first failure."""
        return self.weight > 1 or (self.row is not None and self.row.role == "root")


class Mark(NamedTuple):
    """A phase marker that was seen."""

    line: int
    time: Optional[float]
    process: str
    rank: str
    pid: int
    marker: Marker
    text: str


class Stream:
    """One log: what was kept of it."""

    def __init__(self, index: int, name: str, node: str, booted: bool = False) -> None:
        self.index = index
        self.name = name
        self.hint = node
        self.nodes: Dict[str, int] = {}
        self.outer: Dict[str, int] = {}
        self.comms: List[placement.Comm] = []
        self.workers: List[placement.Worker] = []
        self.local_ranks: Dict[str, int] = {}
        self.names: Dict[int, str] = {}
        self.zoned: Optional[bool] = True if booted else None
        self.marks: List[Mark] = []
        self.hits: List[Hit] = []
        self.quiet: List[str] = []
        self.first: Optional[float] = None
        self.last: Optional[float] = None
        self.last_line = 0
        self.last_raw = ""
        self.kernel = 0
        self.events = 0
        self.running = -1
        self.served = 0
        self.refused_requests = 0
        self.silent_note = ""
        self.rates: List[Tuple[float, float]] = []
        self.rate_line: Optional[Hit] = None
        self.version = ""
        self.multi = False

    @property
    def node(self) -> str:
        """The node that wrote most of it, the file's stem when no line and no caller says."""
        if self.hint:
            return self.hint
        if self.nodes:
            return max(self.nodes, key=lambda name: self.nodes[name])
        return ""

    @property
    def host(self) -> str:
        """The node as everything but NCCL calls it, whose name inside a container is the container's."""
        if self.hint:
            return self.hint
        if self.outer:
            return max(self.outer, key=lambda name: self.outer[name])
        hosts = {one.node for one in self.comms if one.node}
        return next(iter(hosts)) if len(hosts) == 1 else self.lane

    @property
    def vague(self) -> bool:
        """No line says the name of the node: `host` is that of a file or of a container."""
        return not self.hint and (not self.outer or _CONTAINER.match(self.host) is not None)

    @property
    def lane(self) -> str:
        """Name to show for it."""
        return self.node or base(self.name)


_FRAME_LINE = re.compile(r'\s*(?:\||\+)?\s*File "')
_THROUGHPUT = re.compile(r"Avg prompt throughput: ([\d.]{1,12}) tokens/s.{0,120}?Running: (\d{1,7}) reqs?.{0,160}?Prefix cache hit rate: ([\d.]{1,6})%")
_RUNNING = re.compile(r"Running: (\d{1,7}) reqs?")
_SILENCE = re.compile(r"^\s*#.{0,80}(?:no (?:further|more) (?:output|lines?|log)|hangs?|stuck|nothing (?:more|further|else)|silence)", re.IGNORECASE)
WORLD = re.compile(r"rank (\d{1,6}) in world size (\d{1,6})")
_MULTI = re.compile(r"(?:nnodes'?[=:] ?|node_rank=|--nnodes )(\d{1,5})")
_CONTAINER = re.compile(r"[0-9a-f]{12}\Z")
_ECHO = frozenset(("gdr-disabled",))
_VICTIM = re.compile(r"Kill(?:ed)? process \d{1,9} \((.{1,40}?)\)(?:[ ,]|$)|(\S{1,40}) invoked oom-killer|\btask (.{1,40}):\d{1,9} blocked for more than")
_OURS = re.compile(r"(?i)vllm|python|\bray|pt_|engine|(?<!k)worker|api_?server|lmcache|mooncake|nvidia|\bnv_|uvm")
"""What the kernel calls a process of the engine or a thread of the driver."""


def base(name: str) -> str:
    """Last part of a path."""
    return PurePath(name).name or name


_WANTED: List[str] = []


def wanted() -> List[str]:
    """Literals for the reader's scanner: markers and signatures."""
    if not _WANTED:
        seen: Set[str] = set()
        for needle in phases.needles() + [row.needle for row in rows()] + ["Running: ", "Process ", "# no ", " busId ", " localRanks "]:
            if needle not in seen:
                seen.add(needle)
                _WANTED.append(needle)
    return _WANTED


def take(stream: Stream, event: Event, versions: Dict[str, str], words: List[str]) -> None:
    """Keep of one event what matters; `versions` and `words` collect what the log says of itself."""
    stream.events += 1
    if event.node:
        stream.nodes[event.node] = stream.nodes.get(event.node, 0) + 1
        if "NCCL " not in event.raw:
            stream.outer[event.node] = stream.outer.get(event.node, 0) + 1
    if event.process == "kernel":
        stream.kernel += 1
    if event.pid and event.rank and not event.rank.isdigit() and len(stream.names) < MAX_KEPT:
        stream.names[event.pid] = event.rank
    if event.time is not None and event.clock == "wall":
        if stream.zoned is None:
            stream.zoned = bool(_ZONED.search(event.raw[:300]))
        if stream.first is None or event.time < stream.first:
            stream.first = event.time
        if stream.last is None or event.time > stream.last:
            stream.last = event.time
    if event.line > stream.last_line:
        stream.last_line, stream.last_raw = event.line, event.raw
    line = _words_of(event)
    _placed(stream, event, line)
    if len(words) < 400 and ("args" in line or "config:" in line or "nccl" in line or "version" in line):
        words.append(line[:6000])
        for name, value in advisories.versions_of(line).items():
            versions.setdefault(name, value)
            if name == "vllm" and not stream.version:
                stream.version = value
        found = _MULTI.search(line)
        if found and int(found.group(1)) >= 1:
            stream.multi = (
                stream.multi or (found.group(0).startswith(("nnodes", "--nnodes")) and int(found.group(1)) > 1) or found.group(0).startswith("node_rank")
            )
    if '" 500 ' in line and "POST /" in line:
        stream.refused_requests += 1
    if _SILENCE.match(line):
        stream.silent_note = line.strip()[:200]
    marker = phases.marker_of(line) if event.level not in ("ERROR", "CRITICAL") and not event.exceptions else None
    if marker is not None:
        _marked(stream, event, marker, line)
        if not event.body:
            return
    hit = _hit(stream, event, line)
    if hit is not None and len(stream.hits) < MAX_KEPT:
        stream.hits.append(hit)


def _placed(stream: Stream, event: Event, line: str) -> None:
    """Keep what tells on which GPU a rank sits."""
    if " busId " in line:
        comm = placement.comm(line, event.line, event.node, event.pid, event.rank)
        if comm is not None and len(stream.comms) < MAX_KEPT:
            stream.comms.append(comm)
    elif " localRanks " in line:
        count = placement.local_ranks(line)
        stream.local_ranks[event.node] = max(count, stream.local_ranks.get(event.node, 0))
    elif "local_rank=" in line:
        worker = placement.worker(line, event.node, event.pid, event.rank)
        if worker is not None and len(stream.workers) < MAX_KEPT:
            stream.workers.append(worker)


def _words_of(event: Event) -> str:
    """The first line of an event with its prefixes, except where it is wrapped as a record."""
    if event.raw[:1] == "{" or (event.text and event.text not in event.raw):
        return event.text
    return clean(event.raw)


def _marked(stream: Stream, event: Event, marker: Marker, line: str) -> None:
    if marker.stage in ("served", "serving"):
        if marker.stage == "served":
            stream.served += 1
        found = _RUNNING.search(line)
        if found:
            stream.running = int(found.group(1))
        rate = _THROUGHPUT.search(line)
        if rate and len(stream.rates) < 100000:
            stream.rates.append((float(rate.group(1)), float(rate.group(3))))
            if stream.rate_line is None and float(rate.group(1)) > 0:
                stream.rate_line = Hit(
                    stream.index,
                    event.line,
                    event.line,
                    event.time,
                    event.clock,
                    event.node,
                    event.process,
                    event.rank,
                    event.pid,
                    event.level,
                    None,
                    0,
                    "prefix_cache",
                    "prefix_cache_ineffective",
                    event.text[:1000],
                    event.raw,
                    "prefill",
                    "serving",
                    False,
                    "",
                )
        if any(mark.marker.stage == marker.stage for mark in stream.marks[-3:]):
            return
    if len(stream.marks) < MAX_KEPT:
        stream.marks.append(Mark(event.line, event.time if event.clock in ("wall", "near") else None, event.process, event.rank, event.pid, marker, line[:300]))


def _hit(stream: Stream, event: Event, line: str) -> Optional[Hit]:
    """What an event says, None when it says nothing of a failure."""
    lines: List[Tuple[int, str]] = [(event.line, line)]
    frames: List[str] = []
    code = False
    for index, text in enumerate(event.body):
        if _FRAME_LINE.match(text):
            frames.append(text)
            code = True
            continue
        if code and text.startswith("    "):
            continue
        code = False
        if text.strip():
            raw = event.body_raw[index] if index < len(event.body_raw) else text
            shown = text if raw[:1] == "{" else clean(raw)
            lines.append((event.body_lines[index] if index < len(event.body_lines) else event.line, shown))
    numbers = {number for number, _text in lines}
    for text, number in event.exceptions:
        if number not in numbers:
            lines.append((number, text))
    # The kernel begins its report of a task that hangs with "INFO:".
    calm = event.level in ("INFO", "DEBUG") and event.process != "kernel"
    best: Optional[Signature] = None
    best_at, best_text, best_weight = 0, "", -1
    relay: Optional[Signature] = None
    relay_at, relay_text = 0, ""
    known: Dict[int, str] = {}
    for number, text in lines:
        row = verdict.match(text)
        if row is None:
            continue
        known[number] = row.role
        if row.role in ("noise", "decoy"):
            if number == event.line:
                if event.level in ("ERROR", "CRITICAL"):
                    return None
                if len(stream.quiet) < 20 and row.role == "noise":
                    stream.quiet.append(row.id)
            continue
        if row.role == "relay":
            if relay is None or (row.cause and not relay.cause):
                relay, relay_at, relay_text = row, number, text
            continue
        if calm and row.id not in _ECHO:
            continue
        if event.process == "kernel" and _foreign(text):
            if len(stream.quiet) < 20:
                stream.quiet.append(row.id)
            continue
        weight = _weight(row, event, text)
        if weight > best_weight:
            best, best_at, best_text, best_weight = row, number, text, weight
    frame_phase, stage = phases.phase_of_frames("\n".join(frames)) if frames else ("", "")
    through = relay.id if relay is not None else ""
    if best is not None:
        return _make(stream, event, best_at, best, best_weight, best.cls, best.cause, best_text, frame_phase, stage, through)
    unknown = [(number, text) for text, number in event.exceptions if number not in known]
    if unknown and not calm:
        number, text = unknown[0]
        cls, cause = verdict.generic(text, frame_phase, "\n".join(frames))
        return _make(stream, event, number, None, 3, cls, cause, text, frame_phase, stage, through)
    if relay is not None:
        return _make(stream, event, relay_at, relay, 1, relay.cls, relay.cause, relay_text, frame_phase, stage)
    if event.level in ("ERROR", "CRITICAL") and event.line not in known and event.process != "kernel":
        return _make(stream, event, event.line, None, 2, "engine_bug", "unknown", event.text, frame_phase, stage)
    return None


def _foreign(text: str) -> bool:
    """Whether a kernel line says that a process was killed, or hangs, that is none of the engine's."""
    found = _VICTIM.search(text)
    return found is not None and _OURS.search(found.group(1) or found.group(2) or found.group(3)) is None


def _weight(row: Signature, event: Event, text: str) -> int:
    """How much of a root a line is: the row's weight, less where the line is a mere warning of the engine, and by code for an Xid."""
    weight = row.weight
    if row.id == "xid":
        told = fault(text)
        return verdict.weight_of(told) if told is not None else weight
    if event.level == "WARNING" and ".py:" in event.source and not event.exceptions:
        return max(weight - 2, 2)
    return weight


def _make(
    stream: Stream, event: Event, at: int, row: Optional[Signature], weight: int, cls: str, cause: str, text: str, phase: str, stage: str, relay: str = ""
) -> Hit:
    return Hit(
        stream.index,
        event.line,
        at,
        event.time,
        event.clock,
        event.node,
        event.process,
        event.rank,
        event.pid,
        event.level,
        row,
        weight,
        cls,
        cause,
        text[:4000],
        event.raw_at(at) or text[:4000],
        phase,
        stage,
        any(number == at for _text, number in event.exceptions),
        relay,
    )
