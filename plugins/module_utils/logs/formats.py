# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prefixes of log lines: who wrote a line, when and at which level.

Prefixes pile up: ``2026-03-11T17:57:10.9Z (APIServer pid=1) (EngineCore_DP0 pid=68) ERROR 03-11 17:57:10 [core.py:936] text`` is
a container log around the output of a parent around that of its child. :func:`parse` peels them from the left; the innermost
process is the writer, the first full time is the time.

Formats seen in: vLLM 0.4 to 0.33, NCCL 2.18 to 2.28, UCX 1.15 to 1.19, NVSHMEM 3, torch 2.1 to 2.10, flashinfer, Ray, uvicorn,
dmesg, journald, docker, Kubernetes, compose, Slurm, mpirun, torchrun, talosctl.
"""

from __future__ import annotations

import calendar
import json
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

# Escape sequences: CSI, OSC (title, hyperlink), DCS and its like, two-character ones, and the 8-bit CSI.
_ESCAPE = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b\n]{0,4096}(?:\x1b\\)?"
    r"|\x1b[ -/]{0,4}[0-~]|\x9b[0-?]{0,64}[ -/]{0,8}[@-~]")
# Colours whose escape character was written out or lost on the way through a terminal, a pager or a web form.
_LOST = re.compile(r"\[[0-9]{1,3}(?:;[0-9]{1,3}){0,5}m")
_WRITTEN = re.compile(r"(?:\\x1b|\\u001b|\\033|#033|\^\[)(?:\[[0-9;?]{0,24}[A-Za-z])?")


def clean(text: str) -> str:
    """`text` without escape sequences, control characters, marks of writing direction and invisible characters.

    A tab becomes one blank, any other blank too.
    """
    if text.isprintable() and "[" not in text:
        return text
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPE.sub("", text)
    if "[" in text:
        if "^[[" in text or "#033[" in text or "\\x1b[" in text or "\\u001b[" in text or "\\033[" in text:
            text = _WRITTEN.sub("", text)
        if _LOST.search(text):
            text = _LOST.sub("", text)
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else (" " if char.isspace() else "") for char in text])


class Line(NamedTuple):
    """What the prefixes of a line say; see :class:`.event.Event` for the fields."""

    time: Optional[float]
    clock: str
    node: str
    process: str
    rank: str
    pid: int
    level: str
    source: str
    text: str
    stamp: str
    """Time as the logger wrote it: lines of one record have it in common."""
    wrapper: str
    """Name of the container, pod or unit that a collector put before the line."""
    kind: str
    """Innermost format: ``vllm``, ``nccl``, ``ucx``, ``torch``, ``kernel`` …; empty when the line has no prefix of its own."""


class Clock:
    """The year, and the time of boot, by which times without them are completed."""

    def __init__(self, year: int, boot: Optional[float] = None, offset: float = 0.0) -> None:
        self.year = year
        self.boot = boot
        self.offset = offset
        self.wrappers: List[str] = []
        """Texts that an unknown collector puts before each line."""
        self._month = 0
        self._cache: Dict[Tuple[int, int, int], Optional[float]] = {}

    def day(self, year: int, month: int, day: int) -> Optional[float]:
        """Seconds of the start of a day; the year 0 is completed. None for a date that is none."""
        if not year:
            if self._month == 12 and month == 1:
                self.year += 1
            if 1 <= month <= 12:
                self._month = month
            year = self.year
        key = (year, month, day)
        if key not in self._cache:
            if len(self._cache) > 4000:
                self._cache.clear()
            valid = 1 <= month <= 12 and 1 <= day <= 31 and 1970 <= year <= 2199
            self._cache[key] = float(calendar.timegm((year, month, day, 0, 0, 0, 0, 0, 0))) if valid else None
        return self._cache[key]

    def at(self, year: int, month: int, day: int, clock: str, fraction: Optional[str] = None, zone: Optional[str] = None) -> Optional[float]:
        """Time of a date and ``HH:MM:SS``; `zone` is ``Z``, ``+02:00``, ``+0200``, ``UTC`` or empty for UTC."""
        start = self.day(year, month, day)
        if start is None:
            return None
        hours, minutes, seconds = int(clock[0:2]), int(clock[3:5]), int(clock[6:8])
        if hours > 24 or minutes > 59 or seconds > 60:
            return None
        found = start + hours * 3600 + minutes * 60 + seconds + self.offset
        if fraction:
            found += float("0." + fraction[:9])
        if zone and zone[0] in "+-":
            digits = zone[1:].replace(":", "")
            shift = int(digits[:2]) * 3600 + int(digits[2:4] or "0") * 60
            found += -shift if zone[0] == "+" else shift
        return found


class _State:
    """What has been peeled so far."""

    __slots__ = ("clock", "ctx", "kind", "level", "node", "pid", "process", "rank", "source", "stamp", "text", "time", "wrapper", "yearless")

    def __init__(self, text: str, ctx: Clock) -> None:
        self.ctx = ctx
        self.text = text
        self.time: Optional[float] = None
        self.yearless = False
        self.clock = self.node = self.process = self.rank = self.level = self.source = self.stamp = self.wrapper = self.kind = ""
        self.pid = 0

    def set_time(self, time: Optional[float], yearless: bool = False, clock: str = "wall") -> None:
        """Keep the first full time: that of the collector, which has a zone and fractions."""
        if time is not None and (self.time is None or (self.yearless and not yearless) or (self.clock == "boot" and clock == "wall")):
            self.time, self.yearless, self.clock = time, yearless, clock

    def again(self) -> _State:
        """A copy, for one line of a record of several lines."""
        other = _State("", self.ctx)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def outer(self, line: Line) -> None:
        """Take what prefixes before the record said."""
        self.wrapper = self.wrapper or line.wrapper
        self.node = self.node or line.node
        if self.time is None and line.time is not None:
            self.time, self.clock = line.time, line.clock


LEVELS = {
    "DEBUG": "DEBUG", "TRACE": "DEBUG", "INFO": "INFO", "NOTICE": "INFO", "WARNING": "WARNING", "WARN": "WARNING", "ERROR": "ERROR", "ERR": "ERROR",
    "CRITICAL": "CRITICAL", "FATAL": "CRITICAL", "CRIT": "CRITICAL", "ALERT": "CRITICAL", "EMERG": "CRITICAL", "DIAG": "INFO", "VERSION": "INFO",
    "D": "DEBUG", "V": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "C": "CRITICAL", "REQ": "DEBUG", "DATA": "DEBUG",
    "FUNC": "DEBUG", "POLL": "DEBUG", "SUCCESS": "INFO", "ABORT": "CRITICAL", "PANIC": "CRITICAL",
}
_PRIORITY = ("CRITICAL", "CRITICAL", "CRITICAL", "ERROR", "WARNING", "INFO", "INFO", "DEBUG")
_MONTHS = {name: number for number, name in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1)}

_ZONE = r"(Z|UTC|[+-][0-9]{2}:?[0-9]{2})?"
_HMS = r"([0-9]{2}:[0-9]{2}:[0-9]{2})"
_ISO = r"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]" + _HMS + r"(?:[.,]([0-9]{1,9}))?" + _ZONE
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_FILE = r"([^\s\[\]():,]{1,200}\.(?:py|pyx|pyi|cc?|cpp|cxx|cuh?|hh?|hpp|rs|go|inc):[0-9]{1,7})"

_PROCESS = re.compile(r"\(([A-Za-z][\w.:-]{0,80})?((?:[ ,]{0,2}(?:[a-z_]{1,12}=[^()\s,]{1,64}|(?:TP|PP|DP|EP|DCP|PCP)[0-9]{1,5})){0,6})\)\s?(?=(.?))")
_PID = re.compile(r"\bpid=([0-9]{1,10})")
_IP = re.compile(r"\bip=([^()\s,]{1,64})")
_RANK_WORD = re.compile(r"\brank=([0-9]{1,6})")
_RANK_NAME = re.compile(r"(?:^|[ _])((?:(?:TP|PP|DP|EP|DCP|PCP)[0-9]{1,5})(?:_(?:TP|PP|DP|EP|DCP|PCP)[0-9]{1,5}){0,5})(?=$|[ ,])")
_VLLM = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s{1,8}([0-9]{2})-([0-9]{2}) " + _HMS
    + r"(?:[.,]([0-9]{1,6}))?\s(?:\[?([^\s\[\]]{1,200}:[0-9]{1,7})\]|\[([^\s\[\]]{1,200})\])?\s?")
_UVICORN = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|TRACE):\s{1,9}(?=\S)")
_STAGE = re.compile(r"\[(Stage-[0-9]{1,4})\]\s?")
_TORCH_RANK = re.compile(r"\[(?:rank|default)([0-9]{1,6})\]:\s?")
_TORCH = re.compile(r"\[([DIWEFV])(?:([0-9]{1,2})([0-9]{2}))? ?(?:" + _HMS + r"(?:\.([0-9]{1,9}))? )?" + _FILE + r"\]\s?")
_GLOG = re.compile(r"([DIWEFV])([0-9]{4})?([0-9]{2})([0-9]{2}) " + _HMS + r"(?:\.([0-9]{1,9}))?\s{1,8}([0-9]{1,10}) " + _FILE + r"\]\s?")
_NCCL = re.compile(
    r"([A-Za-z0-9][\w.-]{0,253}):([0-9]{1,10}):([0-9]{1,10}) \[(-?[0-9]{1,4})\]\s{1,2}(?:([^\s:]{1,120}:[0-9]{1,7})\s{1,3})?NCCL ([A-Z]{2,8})\s?")
_NCCL_BARE = re.compile(
    r"(?:([A-Za-z0-9][\w.-]{0,253}):([0-9]{1,10}):([0-9]{1,10})\s{1,2})?(?:\[(-?[0-9]{1,4})\] )?([^\s:]{1,120}:[0-9]{1,7}) NCCL (WARN|INFO|TRACE)\s?")
_UCX = re.compile(
    r"\[([0-9]{9,11}(?:\.[0-9]{1,9})?)\]\s{1,2}\[([^\s:\]]{1,253}):([0-9]{1,10})\s{0,6}:[0-9]{1,6}\]\s{1,30}"
    r"([^\s:]{1,120}:[0-9]{1,7})\s{1,12}([A-Z]{2,8})\s{1,8}(FATAL|ERROR|WARN|DIAG|INFO|DEBUG|TRACE|REQ|DATA|FUNC|POLL)\s{1,4}")
_NVSHMEM = re.compile(
    r"((?:/|src/|\.\./)[^\s:]{1,250}\.(?:cpp|cu|c|cc|h|hpp|cuh):[0-9]{1,7}|/\S{1,250}?)(?::|/) ?"
    r"(?=(?:non-zero status|NULL value|init failed|nvshmem|IBGDA|\[?NVSHMEM|Failed|failed|Unable|error))")
_PLAIN_WARN = re.compile(r"(WARN|ERROR|FATAL|INFO): (?=\S)")
_LOGGING = re.compile(r"(?:- |\| )?(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE)(?: -| \||:|\])?\s{1,8}(?:" + _FILE + r"(?: -{1,2}| \||:|\])\s?)?")
_LOGGING_NAME = re.compile(r"- ([\w.]{1,120}) - (DEBUG|INFO|WARNING|ERROR|CRITICAL) - ")
_RAY_CORE = re.compile(r"\[" + _ISO + r" ([DIWEFC]) ([0-9]{1,10}) ([0-9]{1,10})\] (?:\([\w-]{1,40}\) )?(?:" + _FILE + r":?\s)?")
_ISO_LINE = re.compile(_ISO + r"(?=\s|$)\s{0,4}")
_ISO_BRACKET = re.compile(r"\[" + _ISO + r"\]:?\s{0,3}")
_CRI = re.compile(r"(?:stdout|stderr) [FP] ")
_KUBECTL = re.compile(r"\[(?:pod/)?([a-z0-9][a-z0-9.-]{0,252})(?:/([a-z0-9][a-z0-9-]{0,62}))?\] (?=\S)")
_COMPOSE = re.compile(r"([A-Za-z0-9][\w.-]{0,100}) {0,20}\| ?")
_JOURNAL = re.compile(_MONTH + r" {1,2}([0-9]{1,2}) " + _HMS + r"(?:\.([0-9]{1,9}))? (\S{1,253}) ([^\s:\[\]]{1,120})(?:\[([0-9]{1,10})\])?: ?")
_JOURNAL_REST = re.compile(r"(\S{1,253}) ([^\s:\[\](){}\"']{1,120})(?:\[([0-9]{1,10})\]): ?|(\S{1,253}) (kernel|systemd|dockerd|containerd): ?")
_JOURNAL_FULL = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) " + _ISO + r"(?: ([A-Z]{2,5}))? ")
_JOURNAL_UNIX = re.compile(r"([0-9]{9,10}\.[0-9]{6}) (?=\S{1,253} [^\s:]{1,120}: )")
_JOURNAL_MARK = re.compile(r"-- (?:Logs begin|Journal begins|Boot [0-9a-f]{32}|No entries|Reboot) ?.{0,200}$|-- .{0,120} --$")
_SLURM = re.compile(r"(srun|sbatch|slurmstepd|slurmd|salloc|mpirun|orterun|prterun)(?:-[\w.-]{1,100})?: (?:(error|fatal|warning|info): )?")
_SRUN_LABEL = re.compile(r"([0-9]{1,5}): (?=[(\[A-Z ])")
_MPIRUN = re.compile(r"\[[0-9]{1,6},([0-9]{1,6})\]<(?:stdout|stderr)>:\s?")
_KERNEL = re.compile(r"(?:<([0-9]{1,3})>)?\[ {0,10}([0-9]{1,10}\.[0-9]{1,9})\](?:\[ {0,8}[TC][0-9]{1,10}\])? ?(?:(\S{1,253}) kernel: )?")
_KERNEL_DATE = re.compile(r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) " + _MONTH + r" {1,2}([0-9]{1,2}) " + _HMS + r" ([0-9]{4})\] ?")
_KERNEL_DECODED = re.compile(
    r"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7]) {0,4}: ?(emerg|alert|crit|err|warn|warning|notice|info|debug) {0,4}: ")
_KMSG = re.compile(r"([0-9]{1,5}),([0-9]{1,19}),([0-9]{1,19}),[-c+](?:,[^;]{1,80})?;")
_TALOS = re.compile(
    r"([0-9A-Za-z][0-9A-Za-z.:-]{0,252}): {1,2}(kern|user|daemon|syslog): {1,10}"
    r"(emerg|alert|crit|err|warning|warn|notice|info|debug): \[" + _ISO + r"\]: ?")
_PATH_WARNING = re.compile(r"(/?[^\s:]{1,300}\.py:[0-9]{1,7}): (?=[A-Z]\w{0,60}Warning: )")
_RUST = re.compile(r"(TRACE|DEBUG|INFO|WARN|ERROR) (?:ThreadId\([0-9]{1,6}\) )?([a-z_][\w]{0,60}(?:::[\w]{1,60}){0,8})(?:\{[^{}]{0,200}\})?: ")
_BAR = re.compile(
    r"(?:it/s|s/it|B/s|\?it|examples/s)[^\]]{0,60}\]"
    r"(?=\s{0,3}(?:\((?:[A-Z]\w{2,40}) pid=|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [0-9]{2}-[0-9]{2} |\[rank[0-9]))\s{0,3}")
_KERNEL_WORDS = re.compile(
    r"NVRM: |nvidia[\w-]{0,20}:? |mlx5_\w|oom-kill:|Out of memory: |(?:Memory cgroup out of memory)|segfault at |nvidia-nvswitch|nvidia_peermem|traps: ")


def _worker_name(state: _State, name: str, rest: str) -> bool:
    """Take process, rank, pid and node from the inside of ``(Worker_TP1_EP1 pid=7)``; False when it is none."""
    found = _PID.search(rest)
    known = name.startswith(("Worker", "EngineCore", "APIServer", "ApiServer", "VllmWorker", "RayWorker", "MainProcess", "DPCoordinator", "raylet"))
    if not found and not known:
        return False
    if name:
        base = name
        rank = ""
        named = _RANK_NAME.search(name + rest)
        if named:
            rank = named.group(1)
            base = name[:named.start(1)] if named.start(1) < len(name) else name
        else:
            numbered = re.match(r"(VllmWorker|EngineCore|Worker|ApiServer|APIServer)[-_]([0-9]{1,6})$", name)
            if numbered:
                base = numbered.group(1)
                rank = {"EngineCore": "DP", "ApiServer": "", "APIServer": ""}.get(base, "\0")
                rank = "" if base.lower() == "apiserver" else (numbered.group(2) if rank == "\0" else rank + numbered.group(2))
        base = base.rstrip("_- ")
        lower = base.lower()
        if "worker" in lower:
            base = "Worker"
        elif lower.startswith("enginecore"):
            base = "EngineCore"
        elif lower == "apiserver":
            base = "APIServer"
        state.process, state.rank = base, rank
    by_word = _RANK_WORD.search(rest)
    if by_word:
        state.rank = by_word.group(1)
    state.pid = int(found.group(1)) if found else 0
    address = _IP.search(rest)
    if address:
        state.node = address.group(1)
    return True


def _process(state: _State, text: str) -> int:
    match = _PROCESS.match(text)
    if not match or not (match.group(1) or match.group(2)) or not _worker_name(state, match.group(1) or "", match.group(2) or ""):
        return 0
    state.kind = "vllm"
    # The formatter puts one blank behind the prefix; any more belongs to the message.
    return match.end()


def _vllm(state: _State, text: str) -> int:
    match = _VLLM.match(text)
    if not match:
        return 0
    state.level = match.group(1)
    state.stamp = "%s-%s %s" % (match.group(2), match.group(3), match.group(4))
    state.set_time(state.ctx.at(0, int(match.group(2)), int(match.group(3)), match.group(4), match.group(5)), True)
    state.source = (match.group(6) or match.group(7) or "").rpartition("/")[2]
    state.kind = "vllm"
    return match.end()


def _level_only(state: _State, text: str) -> int:
    match = _UVICORN.match(text)
    if match:
        state.level, state.kind = LEVELS[match.group(1)], "uvicorn"
        return match.end()
    match = _PLAIN_WARN.match(text)
    if match:
        state.level, state.kind = LEVELS[match.group(1)], "plain"
        return match.end()
    return 0


def _torch(state: _State, text: str) -> int:
    match = _TORCH.match(text)
    if match:
        state.level = LEVELS[match.group(1)]
        if match.group(2) and match.group(4):
            state.set_time(state.ctx.at(0, int(match.group(2)), int(match.group(3)), match.group(4), match.group(5)), True)
            state.stamp = "%s%s %s.%s" % (match.group(2), match.group(3), match.group(4), match.group(5) or "")
        state.source, state.kind = match.group(6).rpartition("/")[2], "torch"
        return match.end()
    return 0


def _glog(state: _State, text: str) -> int:
    match = _GLOG.match(text)
    if match:
        # glog writes the year since 0.6.
        letter, year, month, day, clock, fraction, pid, source = match.groups()
        state.level = LEVELS[letter]
        state.set_time(state.ctx.at(int(year or 0), int(month), int(day), clock, fraction), not year)
        state.stamp = "%s%s %s.%s" % (month, day, clock, fraction or "")
        state.pid = int(pid)
        state.source, state.kind = source.rpartition("/")[2], "torch"
        return match.end()
    return 0


def _torch_rank(state: _State, text: str) -> int:
    match = _TORCH_RANK.match(text) or _MPIRUN.match(text)
    if match:
        state.rank, state.kind = match.group(1), "torch"
        return match.end()
    return 0


def _nccl(state: _State, text: str) -> int:
    match = _NCCL.match(text)
    if match:
        node, pid, _tid, _dev, source, level = match.groups()
    else:
        match = _NCCL_BARE.match(text)
        if not match:
            return 0
        node, pid, _tid, _dev, source, level = match.groups()
    if node:
        state.node, state.pid = node, int(pid)
    state.process = ""
    state.rank = ""
    state.level = LEVELS.get(level, "INFO")
    state.source, state.kind = (source or "").rpartition("/")[2], "nccl"
    return match.end()


def _ucx(state: _State, text: str) -> int:
    match = _UCX.match(text)
    if not match:
        return 0
    state.set_time(float(match.group(1)) + state.ctx.offset)
    state.node, state.pid = match.group(2), int(match.group(3))
    state.source, state.level, state.kind = match.group(4), LEVELS[match.group(6)], "ucx"
    return match.end()


def _nvshmem(state: _State, text: str) -> int:
    match = _NVSHMEM.match(text)
    if not match or not re.search(r"nvshmem|transport|ibgda|ibrc|bootstrap|init\.cu|non-zero status|mem\.cpp|team", text[:400], re.I):
        return 0
    state.source = match.group(1).rpartition("/")[2]
    state.level, state.kind = "ERROR", "nvshmem"
    return match.end()


def _iso(state: _State, text: str) -> int:
    match = _ISO_LINE.match(text)
    if not match:
        return 0
    year, month, day, clock, fraction, zone = match.groups()
    state.set_time(state.ctx.at(int(year), int(month), int(day), clock, fraction, zone))
    end = match.end()
    if text[match.end(4):match.end(4) + 1] == ",":
        state.kind, state.stamp = "logging", match.group(0).strip()
    rest = text[end:]
    inner = _RUST.match(rest)
    if inner:
        state.level, state.source, state.kind, state.stamp = LEVELS[inner.group(1)], inner.group(2), "rust", match.group(0).strip()
        return end + inner.end()
    inner = _LOGGING_NAME.match(rest)
    if inner:
        state.source, state.level, state.kind, state.stamp = inner.group(1), LEVELS[inner.group(2)], "logging", match.group(0).strip()
        return end + inner.end()
    if not _VLLM.match(rest) and not _UVICORN.match(rest):
        inner = _LOGGING.match(rest)
        if inner:
            state.level, state.kind, state.stamp = LEVELS[inner.group(1)], "logging", match.group(0).strip()
            state.source = (inner.group(2) or "").rpartition("/")[2]
            return end + inner.end()
    inner = _CRI.match(rest)
    if inner:
        return end + inner.end()
    inner = _JOURNAL_REST.match(rest)
    if inner:
        return end + _unit(state, inner.group(1) or inner.group(4), inner.group(2) or inner.group(5), inner.group(3), inner.end())
    # A container's collector writes exactly one blank: more of them are the message's own indentation.
    return end if len(match.group(0).rstrip()) + 1 >= end else len(match.group(0).rstrip()) + 1


def _unit(state: _State, host: str, unit: str, pid: Optional[str], end: int) -> int:
    state.node = host
    if unit == "kernel":
        state.process = state.kind = "kernel"
    else:
        state.wrapper = unit
        if unit in ("srun", "slurmstepd", "slurmd", "systemd", "dockerd", "containerd", "nvidia-fabricmanager", "nv-fabricmanager", "systemd-oomd"):
            state.process, state.kind = unit, "journal"
        if not state.pid and pid:
            state.pid = int(pid)
    return end


def _journal(state: _State, text: str) -> int:
    match = _JOURNAL.match(text)
    if match:
        month, day, clock, fraction, host, unit, pid = match.groups()
        state.set_time(state.ctx.at(0, _MONTHS[month], int(day), clock, fraction), True)
        return _unit(state, host, unit, pid, match.end())
    match = _JOURNAL_FULL.match(text)
    if match:
        year, month, day, clock, fraction, zone, _name = match.groups()
        state.set_time(state.ctx.at(int(year), int(month), int(day), clock, fraction, zone))
        inner = _JOURNAL_REST.match(text[match.end():])
        if inner:
            return match.end() + _unit(state, inner.group(1) or inner.group(4), inner.group(2) or inner.group(5), inner.group(3), inner.end())
        return match.end()
    return 0


def _bracket_time(state: _State, text: str) -> int:
    match = _RAY_CORE.match(text)
    if match:
        year, month, day, clock, fraction, zone, level, pid, _tid, source = match.groups()
        state.set_time(state.ctx.at(int(year), int(month), int(day), clock, fraction, zone))
        state.level, state.kind, state.source, state.pid = LEVELS[level], "ray", (source or "").rpartition("/")[2], int(pid)
        return match.end()
    match = _ISO_BRACKET.match(text)
    if match:
        year, month, day, clock, fraction, zone = match.groups()
        state.set_time(state.ctx.at(int(year), int(month), int(day), clock, fraction, zone))
        end = match.end()
        inner = _LOGGING.match(text[end:])
        if inner and not _VLLM.match(text[end:]):
            state.level, state.kind, state.source = LEVELS[inner.group(1)], "logging", (inner.group(2) or "").rpartition("/")[2]
            end += inner.end()
        return end
    return 0


def _kernel(state: _State, text: str) -> int:
    match = _KERNEL.match(text)
    if match:
        seconds = float(match.group(2))
        # Behind "kernel:" of a journal the time is known already; a number of today's size is no time since boot.
        if seconds < 1e9:
            if state.ctx.boot is not None:
                state.set_time(seconds + state.ctx.boot + state.ctx.offset)
            else:
                state.set_time(seconds, clock="boot")
            if match.group(1):
                state.level = _PRIORITY[int(match.group(1)) & 7]
            if match.group(3):
                state.node = match.group(3)
            state.process = state.kind = "kernel"
            return match.end()
        return 0
    match = _KERNEL_DATE.match(text)
    if match:
        state.set_time(state.ctx.at(int(match.group(4)), _MONTHS[match.group(1)], int(match.group(2)), match.group(3)))
        state.process = state.kind = "kernel"
        return match.end()
    return 0


def _kernel_word(state: _State, text: str) -> int:
    match = _KERNEL_DECODED.match(text)
    if not match:
        return 0
    state.level = LEVELS.get(match.group(2).upper(), "INFO")
    if match.group(1) == "kern":
        state.process = state.kind = "kernel"
    end = match.end()
    stamp = _ISO_LINE.match(text[end:])
    if stamp:
        year, month, day, clock, fraction, zone = stamp.groups()
        state.set_time(state.ctx.at(int(year), int(month), int(day), clock, fraction, zone))
        end += stamp.end()
    return end


def _kmsg(state: _State, text: str) -> int:
    match = _KMSG.match(text)
    if not match:
        return 0
    state.level = _PRIORITY[int(match.group(1)) & 7]
    seconds = float(match.group(3)) / 1e6
    if state.ctx.boot is not None:
        state.set_time(seconds + state.ctx.boot + state.ctx.offset)
    else:
        state.set_time(seconds, clock="boot")
    if int(match.group(1)) >> 3 == 0:
        state.process = "kernel"
    state.kind = "kernel"
    return match.end()


def _talos(state: _State, text: str) -> int:
    match = _TALOS.match(text)
    if not match:
        return 0
    year, month, day, clock, fraction, zone = match.groups()[3:]
    state.set_time(state.ctx.at(int(year), int(month), int(day), clock, fraction, zone))
    state.node, state.level = match.group(1), LEVELS.get(match.group(3).upper(), "INFO")
    if match.group(2) == "kern":
        state.process = "kernel"
    state.kind = "kernel"
    return match.end()


def _wrapper(state: _State, text: str) -> int:
    """compose and kubectl; only the first such name is one."""
    match = _COMPOSE.match(text) if text[0] != "[" else _KUBECTL.match(text)
    if not match or state.wrapper or state.kind or (text[0] == "[" and "/" not in match.group(0) and "-" not in match.group(1)):
        return 0
    state.wrapper = match.group(1)
    return match.end()


def _slurm(state: _State, text: str) -> int:
    match = _SLURM.match(text)
    if match:
        state.process = state.kind = match.group(1)
        state.level = LEVELS.get((match.group(2) or "").upper(), state.level)
        return match.end()
    return 0


def _srun_label(state: _State, text: str) -> int:
    match = _SRUN_LABEL.match(text)
    if match and not state.kind and not state.rank:
        state.rank, state.wrapper = match.group(1), state.wrapper or "task %s" % match.group(1)
        return match.end()
    return 0


def _unix(state: _State, text: str) -> int:
    match = _JOURNAL_UNIX.match(text)
    if match:
        state.set_time(float(match.group(1)) + state.ctx.offset)
        inner = _JOURNAL_REST.match(text[match.end():])
        return match.end() + (_unit(state, inner.group(1) or inner.group(4), inner.group(2) or inner.group(5), inner.group(3), inner.end()) if inner else 0)
    return 0


def _stage(state: _State, text: str) -> int:
    match = _STAGE.match(text)
    if match:
        state.wrapper = state.wrapper or match.group(1)
        return match.end()
    return 0


def _warning(state: _State, text: str) -> int:
    match = _PATH_WARNING.match(text)
    if match:
        state.level, state.source, state.kind = "WARNING", match.group(1).rpartition("/")[2], "warnings"
        return match.end()
    return 0


_Step = Callable[[_State, str], int]
_LETTER: Tuple[_Step, ...] = (_vllm, _level_only, _journal, _glog, _kernel_word, _slurm, _talos, _nccl, _wrapper, _warning)
_BRACKET: Tuple[_Step, ...] = (_torch_rank, _torch, _kernel, _ucx, _bracket_time, _stage, _wrapper)
_DIGIT: Tuple[_Step, ...] = (_iso, _unix, _kmsg, _nccl, _talos, _wrapper, _srun_label)
_SLASH: Tuple[_Step, ...] = (_nvshmem, _warning, _nccl)
MAX_PREFIXES = 8


def _steps(char: str) -> Tuple[_Step, ...]:
    if char == "(":
        return (_process,)
    if char == "[":
        return _BRACKET
    if char.isdigit():
        return _DIGIT
    if char == "/":
        return _SLASH
    if char == "<":
        return (_kernel,)
    if char.isalpha():
        return _LETTER
    return (_nvshmem,) if char == "." else ()


# A prefix of vLLM behind one of a collector that is not known here (pdsh, stern, a log store).
_ANYWHERE = re.compile(
    r"\((?:Worker|EngineCore|APIServer|ApiServer|VllmWorker|RayWorkerWrapper)[^()]{0,80}pid=[0-9]{1,10}[^()]{0,60}\) ?|"
    r"\b(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) [0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} (?=\[|\S{1,80}:[0-9])")
_MESSAGE = re.compile(r"[Ee]rror|[Ee]xception|[Ff]ail|Traceback|[Ww]arn|[Kk]illed|cannot")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,100}): ?$")
MAX_WRAPPERS = 64


def _unknown_wrapper(state: _State, text: str) -> int:
    """Length of what an unknown collector wrote before a prefix of vLLM, or, once such a text was seen, before any line."""
    known = state.ctx.wrappers
    for prefix in known:
        if text.startswith(prefix):
            break
    else:
        match = _ANYWHERE.search(text, 0, 260)
        if not match or not 0 < match.start() <= 120 or text[0] in " \t" or _MESSAGE.search(text, 0, match.start()):
            return 0
        prefix = text[:match.start()]
        if len(known) < MAX_WRAPPERS and prefix[-1] in " |:>":
            known.append(prefix)
    host = _HOST.match(prefix)
    if host and not state.node:
        state.node = host.group(1)
    state.wrapper = state.wrapper or prefix.strip()
    return len(prefix)


_FINAL = frozenset(("nccl", "ucx", "torch", "nvshmem", "kernel", "uvicorn", "plain", "rust", "warnings", "ray"))


def parse(text: str, ctx: Clock, base: Optional[_State] = None) -> Line:
    """Peel the prefixes of one line, already cleaned (:func:`clean`). Any text gives a line; none raises."""
    state = base.again() if base else _State(text, ctx)
    progress = _BAR.search(text) if "it" in text or "B/s" in text else None
    if progress:
        text = text[progress.end():]
    if text[:2] == "> ":
        # A quotation in a mail or an issue.
        text = text[2:]
    strange = False
    for _round in range(MAX_PREFIXES):
        if not text:
            break
        # The indentation of a message belongs to it; only a journal or a kernel prefix may be preceded by blanks.
        for step in _steps(text[0]):
            end = step(state, text)
            if end:
                text = text[end:]
                break
        else:
            end = 0 if state.kind or strange else _unknown_wrapper(state, text)
            if not end:
                break
            strange = True
            text = text[end:]
        if state.level and (state.source or state.kind in _FINAL) and state.kind != "kernel":
            break
    if text[:7] == "[Stage-":
        text = text[_stage(state, text):]
    if not state.kind and _KERNEL_WORDS.match(text):
        state.process, state.kind = "kernel", "kernel"
    return Line(state.time, state.clock, state.node, state.process, state.rank, state.pid, state.level, state.source, text, state.stamp,
                state.wrapper, state.kind)


def _string(value: Any) -> str:
    """Text of a JSON field; journald writes bytes that are not UTF-8 as a list of numbers."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if value and all(isinstance(item, int) and 0 <= item <= 255 for item in value[:100000]):
            return bytes(item for item in value if isinstance(item, int) and 0 <= item <= 255).decode("utf-8", "replace")
        return " ".join(item for item in value if isinstance(item, str))
    return "" if value is None else str(value)


def _number(value: Any) -> Optional[float]:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) < 1e18 else None


def unwrap(text: str, ctx: Clock) -> Optional[Tuple[_State, List[str]]]:
    """Message of a line that is a JSON record, with what the record says about it; None for any other line.

    docker's ``json-file``, ``journalctl -o json`` and Python loggers that write JSON. A message of several lines gives several.
    """
    if not text.startswith("{") or not text.rstrip().endswith("}"):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    state = _State("", ctx)
    if "MESSAGE" in record and ("__REALTIME_TIMESTAMP" in record or "__CURSOR" in record or "_HOSTNAME" in record or "PRIORITY" in record):
        message = _string(record["MESSAGE"])
        micro = _number(record.get("_SOURCE_REALTIME_TIMESTAMP")) or _number(record.get("__REALTIME_TIMESTAMP"))
        if micro:
            state.set_time(micro / 1e6 + ctx.offset)
        state.node = clean(_string(record.get("_HOSTNAME")))[:253]
        unit = clean(_string(record.get("SYSLOG_IDENTIFIER") or record.get("CONTAINER_NAME") or record.get("_SYSTEMD_UNIT") or record.get("_COMM")))[:120]
        if record.get("_TRANSPORT") == "kernel" or unit == "kernel":
            state.process = state.kind = "kernel"
            priority = _number(record.get("PRIORITY"))
            if priority is not None and 0 <= priority <= 7:
                state.level = _PRIORITY[int(priority)]
        else:
            pid = _number(record.get("_PID") or record.get("SYSLOG_PID"))
            _unit(state, state.node, unit, str(int(pid)) if pid and 0 < pid < 1e10 else None, 0)
    elif "log" in record and ("stream" in record or "time" in record):
        message = _string(record["log"])
        _iso_field(state, _string(record.get("time")))
    else:
        key = next((name for name in ("message", "msg", "event", "text") if isinstance(record.get(name), str)), None)
        level = next((record[name] for name in ("level", "levelname", "severity", "lvl", "log.level") if isinstance(record.get(name), str)), None)
        if key is None or (level is None and "time" not in record and "timestamp" not in record):
            return None
        message = record[key]
        _iso_field(state, _string(next((record[name] for name in ("time", "timestamp", "asctime", "ts", "@timestamp") if record.get(name)), "")))
        if level is not None:
            state.level = LEVELS.get(level.upper(), "")
        state.kind = "json"
        place = record.get("filename") or record.get("file") or record.get("name") or record.get("logger")
        state.source = clean(_string(place))[:120] if place else ""
        if isinstance(record.get("lineno"), int) and state.source:
            state.source = "%s:%d" % (state.source.rpartition("/")[2], record["lineno"])
        pid = _number(record.get("process") or record.get("pid"))
        state.pid = int(pid) if pid and 0 < pid < 1e10 else 0
        trace = record.get("exc_info") or record.get("exception") or record.get("stack_trace") or record.get("traceback")
        if isinstance(trace, str):
            message += "\n" + trace
    return state, message.rstrip("\r\n").split("\n")


def _iso_field(state: _State, text: str) -> None:
    match = _ISO_LINE.match(text)
    if match:
        year, month, day, clock, fraction, zone = match.groups()
        state.set_time(state.ctx.at(int(year), int(month), int(day), clock, fraction, zone))


def is_mark(text: str) -> bool:
    """Whether the line is one that journalctl writes about the journal itself."""
    return text[:3] == "-- " and _JOURNAL_MARK.match(text) is not None
