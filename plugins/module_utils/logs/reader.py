# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turns logs into events, in memory that does not grow with the log.

Two stages. The scanner finds the lines that matter in big blocks; the assembler parses only these and what follows them, and
puts together what belongs together: a traceback whose lines are cut by other ranks, a usage text, a C++ stack, a chain of
exceptions. Without `wanted` every line goes to the assembler.
"""

from __future__ import annotations

import os
import re
import time
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .event import MAX_BODY, MAX_RAW, Event
from .formats import Clock, Line, clean, is_mark, parse, unwrap
from .kernel import fault
from .scan import Scanner
from .sources import Refused, Source, chunks

MAX_LINE = 1 << 20
"""Bytes of one line that are looked at together; a longer one is read in pieces that share its number."""
MAX_TEXT = 16384
"""Characters of one line that are parsed."""
MAX_STATES = 64
"""Texts of one line, between carriage returns, that are looked at besides the last."""
MAX_REPEATS = 256
"""Events of one shape (equal but for digits) that one source gives; more are counted."""
QUIET_LINES = 12
"""Lines read on behind the last one that mattered."""
QUIET_LINES_OPEN = 600
"""The same while a traceback is open, whose next line may stand behind those of many other ranks."""
MAX_OPEN = 1024
"""Events that may wait for more lines at once."""
MAX_REVERSED = 32 << 20
"""Bytes of a newest-first log that is turned round."""


class Stats:
    """What was read: counted while the events are taken."""

    def __init__(self) -> None:
        self.lines = 0
        self.bytes = 0
        self.files = 0
        self.refused: List[Tuple[str, str]] = []
        """``(name, sentence)`` of sources that could not be read, or not to their end."""
        self.reversed: List[str] = []
        """Names of sources that were newest first."""
        self.repeats: Dict[Tuple[str, str], int] = {}
        """Events that were counted only, by source name and shape; the first :data:`MAX_REPEATS` of each were given."""

    def repeated(self, name: str, shape: str, count: int = 1) -> None:
        """Count events of a shape that are not given."""
        key = (name, shape)
        if key in self.repeats or len(self.repeats) < 4096:
            self.repeats[key] = self.repeats.get(key, 0) + count


class _Block(NamedTuple):
    """Whole lines of a log (or a piece of an overlong line), and the number of the first."""

    number: int
    data: bytes


_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "[^"\n]{0,1000}", line [0-9]{1,9}(?:, in |$)')
_CHAINED = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception")
_EXCEPTION = re.compile(r"([A-Za-z_]\w{0,100}(?:\.[A-Za-z_<][\w<>]{0,100}){0,12})(?:: |:?$)")
_TYPED = re.compile(r"(?:Error|Exception|Exit|Interrupt|Failure|Fault|Timeout|Expired|ExceptionGroup|Abort|Refused|Denied|NotFound)$")
_GROUP_MARGIN = re.compile(r"\s{2,64}(?:\| ?|\+-)(?:[-+| ]*)?|\s{2,64}\+[-+]{3,200}")
_MARGIN = re.compile(r"\s{0,64}(?:[|+] ?)(?:\s{0,64}[|] ?)*")
_CONTINUED = re.compile(
    r'\s|$|File "|frame #[0-9]|Exception raised from |\^|~~|C\+\+ CapturedTraceback|Current thread 0x|Thread 0x|Extension modules:|what\(\):')
_START = re.compile(
    r"usage: |Process \S{1,100}:|Exception ignored |terminate called|LLVM ERROR|Fatal Python error|Killed|Segmentation fault|Bus error|Aborted|"
    r"Loading \S{1,40} checkpoint|[#$] |nanobind: |Triton is |\*\*\* |!!!!!!! |\S{1,300}\.py:[0-9]{1,7}: |Warning: |OSError: \[|"
    r"Error response from daemon|docker: |nvidia-container-cli: |OCI runtime|Error: |error: |fatal: |NCCL version|WARNING: ")
_CALLS_TRACEBACK = re.compile(r"[Ee]xception|[Ee]rror|[Ff]ail|:$|died|crash|shut", re.M)
_PROCESS_LINE = re.compile(r"Process (\w{1,60}?)(?:[-_:]?([0-9A-Z_]{1,30}))?:$")
_PROGRESS = re.compile(rb"[0-9]%|[0-9](?:\.[0-9]+)?(?:it/s|s/it|[kMG]?i?B/s)|\?it/s|[0-9]/[0-9]+ \[|it \[[0-9:]+")
_DIGITS = re.compile(r"[0-9]+")
_ARGPARSE_END = re.compile(r"[\w .-]{1,120}: error: ")


class _Open:
    """An event that may still get lines."""

    __slots__ = (
        "body", "body_lines", "body_raw", "chained", "clock", "exceptions", "exceptions_raw", "group", "ident", "key", "line", "number", "process", "rank",
        "raw", "state", "time", "touched")

    def __init__(self, line: Line, ident: Tuple[str, str, str, int], key: Tuple[str, ...], number: int, raw: str) -> None:
        self.line = line
        self.ident = ident
        self.key = key
        self.number = number
        self.raw = raw
        self.time = line.time
        self.clock = line.clock
        self.process = line.process
        self.rank = line.rank
        self.body: List[str] = []
        self.body_lines: List[int] = []
        self.body_raw: List[str] = []
        self.exceptions: List[Tuple[str, int]] = []
        self.exceptions_raw: List[str] = []
        self.state = "plain"
        self.chained = False
        self.group = -1
        self.touched = 0


def exception_of(text: str, sure: bool) -> bool:
    """Whether `text` is the last line of a traceback (``Type: message``); `sure` when frames stood before it."""
    match = _EXCEPTION.match(text)
    if not match:
        return False
    name = match.group(1)
    last = name.rpartition(".")[2]
    if _TYPED.search(last):
        return True
    if not sure:
        return False
    return last[:1].isupper() and (text[match.end(1):match.end(1) + 2] == ": " or "." in name)


class Assembler:
    """Puts lines of one source together to events."""

    def __init__(self, source: Source, stats: Stats, year: int = 0) -> None:
        self.source = source
        self.stats = stats
        self.clock = Clock(source.year or year or time.gmtime().tm_year, source.boot, source.offset)
        self._open: Dict[Tuple[str, str, str, int], Dict[Tuple[str, ...], _Open]] = {}
        self._count = 0
        self._last: Optional[_Open] = None
        self._near: Optional[float] = None
        self._pids: Dict[int, Tuple[str, str]] = {}
        self._shapes: Dict[str, int] = {}
        self._fed = 0
        self._done: List[Event] = []
        self.waiting = False
        """Whether the next block may go on with an event of the last one."""
        self.productive = 0
        """Number of the last fed line, counted by :meth:`feed`, that joined an event."""

    @property
    def fed(self) -> int:
        """Lines fed so far."""
        return self._fed

    def live(self) -> bool:
        """Whether an event waits for the end of its traceback."""
        return any(item.state in ("trace", "usage") for items in self._open.values() for item in items.values())

    def gap(self) -> None:
        """Lines have been left out: what follows continues nobody's event by its place, only by its prefix."""
        self._fed += 2
        self._last = None
        if self._count > 64:
            for item in [one for items in self._open.values() for one in items.values() if self._fed - one.touched > 2000]:
                self._close(item)

    def skip(self, raw: bytes) -> None:
        """Lines of other writers, of which `raw` is the last, stand here and are not wanted."""
        self._fed += 1
        self._last = None
        self.glance(raw)

    def glance(self, raw: bytes) -> bool:
        """Take only the time and the writer of a line that is not wanted itself; True when it had a time."""
        if _TIME.search(raw, 0, 200) is None:
            return False
        line = parse(clean(raw[:400].decode("utf-8", "replace")), self.clock)
        if line.time is not None and line.clock == "wall":
            self._near = line.time
            return True
        return False

    def feed(self, number: int, raw: bytes) -> List[Event]:
        """Take one line (without its line end), give the events that it completes."""
        self._fed += 1
        if raw[-1:] == b"\r":
            raw = raw.rstrip(b"\r")
        if b"\r" in raw:
            states = raw.split(b"\r")
            kept = [part for part in dict.fromkeys(states[:-1]) if part.strip() and not _PROGRESS.search(part)][:MAX_STATES]
            last = next((part for part in reversed(states) if part.strip()), b"")
            if not kept or kept[-1] != last:
                kept.append(last)
            before = b""
            for part in kept:
                if part != before:
                    self._feed(number, part)
                before = part
        else:
            self._feed(number, raw)
        done, self._done = self._done, []
        return done

    def flush(self) -> List[Event]:
        """Close everything; to be called at the end, and where lines are left out."""
        for items in self._open.values():
            for item in items.values():
                self._emit(item)
        self._open = {}
        self._count = 0
        self._last = None
        done, self._done = self._done, []
        done.sort(key=lambda event: event.line)
        return done

    def _feed(self, number: int, data: bytes) -> None:
        if len(data) > MAX_TEXT * 4:
            data = data[:MAX_TEXT * 4]
        raw = data.decode("utf-8", "replace")
        text = raw if len(raw) <= MAX_TEXT else raw[:MAX_TEXT]
        raw = raw[:MAX_RAW]
        if text.startswith("{"):
            record = unwrap(text, self.clock)
            if record:
                state, parts = record
                for part in parts[:MAX_BODY]:
                    self._fed += 1
                    for piece in _last_states(part):
                        self._take(number, raw, parse(clean(piece), self.clock, state))
                return
        text = clean(text)
        if is_mark(text):
            return
        line = parse(text, self.clock)
        if line.text[:1] == "{" and line.kind == "":
            record = unwrap(line.text, self.clock)
            if record:
                state, parts = record
                state.outer(line)
                for part in parts[:MAX_BODY]:
                    self._fed += 1
                    self._take(number, raw, parse(clean(part), self.clock, state))
                return
        self._take(number, raw, line)

    # -- what a line belongs to

    def _take(self, number: int, raw: str, line: Line) -> None:
        if line.clock == "wall":
            self._near = line.time
        if line.pid:
            if line.kind == "vllm" and line.process:
                if line.rank or line.pid not in self._pids:
                    if len(self._pids) > 4096:
                        self._pids.clear()
                    self._pids[line.pid] = (line.process, line.rank)
        text = line.text
        if line.level or line.source or line.kind == "kernel":
            self._logged(number, raw, line)
            return
        ident = (line.wrapper, line.process, line.rank, line.pid)
        if line.process or line.rank or line.kind:
            own = self._newest(ident)
            other = None
        else:
            own = self._newest(ident)
            other = self._last if self._last is not own else None
            if other is not None and other.ident[0] != line.wrapper and line.wrapper:
                other = None
        best = self._belongs(text, own, other)
        if best is not None:
            self._append(best, number, raw, text)
        elif text.strip():
            self._start(line, ident, ("", "", ""), number, raw)

    def _belongs(self, text: str, own: Optional[_Open], other: Optional[_Open]) -> Optional[_Open]:
        """Which of the two open events a line without level continues: one of its own writer, or that of the last writer."""
        newest = own if other is None or (own is not None and own.touched > other.touched) else other
        if newest is None:
            return None
        if text.startswith(_TRACEBACK) or text.lstrip(" +|").startswith(("Traceback (", "Exception Group Traceback (")):
            for item in (own, other):
                if item is None:
                    continue
                if item.chained or (item.group >= 0 and text[:1] == " "):
                    return item
                if item.state == "plain" and not item.body and self._fresh(item, own) and _CALLS_TRACEBACK.search(item.line.text) \
                        and item.line.level in ("ERROR", "CRITICAL", ""):
                    return item
            return None
        if own is not None and own.state in ("trace", "usage"):
            return own
        if other is not None and other.state in ("trace", "usage"):
            if other.state == "trace" and _START.match(text):
                return None
            return other
        if text.startswith(_CHAINED):
            return next((item for item in (newest, own, other) if item is not None and item.exceptions), None)
        if not text.strip():
            return newest if newest.exceptions else None
        if _FRAME.match(text) and newest.state != "exception" and newest.line.level in ("INFO", "DEBUG"):
            return None
        if _CONTINUED.match(text):
            return newest
        if newest.state == "exception" and self._fresh(newest, own) and not _START.match(text):
            return newest
        return None

    def _fresh(self, item: _Open, own: Optional[_Open]) -> bool:
        """Whether nothing of the same writer came since: by place, or, when the line names its writer, within some lines of others."""
        return item.touched == self._fed - 1 or (item is own and any(item.ident) and item.touched >= self._fed - QUIET_LINES * 4)

    def _logged(self, number: int, raw: str, line: Line) -> None:
        """A line with a level: its record is told by writer, level, place and time as the logger wrote it."""
        ident = (line.wrapper, line.process, line.rank, line.pid)
        key = (line.level, line.source, line.stamp)
        items = self._open.get(ident)
        item = items.get(key) if items else None
        text = line.text
        if item is not None and line.stamp and line.kind != "kernel" and (
                item.state in ("trace", "usage") or text[:1] in ("", " ") or text.startswith(_TRACEBACK) or text.startswith(_CHAINED)
                or (item.state == "exception" and text != item.line.text)):
            self._append(item, number, raw, text)
            return
        if items:
            for other in [one for one in items.values() if one.state != "trace" or one.key == key]:
                self._close(other)
        if text or line.level:
            self._start(line, ident, key, number, raw)

    def _newest(self, ident: Tuple[str, str, str, int]) -> Optional[_Open]:
        items = self._open.get(ident)
        if not items:
            return None
        return max(items.values(), key=lambda item: (item.state == "trace", item.touched))

    def _start(self, line: Line, ident: Tuple[str, str, str, int], key: Tuple[str, ...], number: int, raw: str) -> None:
        items = self._open.setdefault(ident, {})
        if key in items:
            self._close(items[key])
            items = self._open.setdefault(ident, {})
        item = _Open(line, ident, key, number, raw)
        if item.time is None and self._near is not None:
            item.time, item.clock = self._near, "near"
        if not line.process or not line.rank:
            known = self._pids.get(line.pid) if line.pid else None
            if known and line.kind not in ("kernel", "journal"):
                item.process, item.rank = line.process or known[0], line.rank or known[1]
        if line.kind == "kernel" and "Xid (" in line.text:
            told = fault(line.text)
            if told and told.pid:
                item.line = line._replace(pid=told.pid)
        named = _PROCESS_LINE.match(line.text) if not line.process else None
        if named:
            inner = parse("(%s pid=0)" % line.text[8:-1], self.clock)
            item.process, item.rank = inner.process, inner.rank
        items[key] = item
        self._count += 1
        item.touched = self._fed
        self._last = item
        self._advance(item, number, raw, line.text)
        if self._count > MAX_OPEN:
            self._close(min((one for group in self._open.values() for one in group.values()), key=lambda one: one.touched))

    def _append(self, item: _Open, number: int, raw: str, text: str) -> None:
        item.touched = self._fed
        self.productive = self._fed
        self._last = item
        if len(item.body) < MAX_BODY:
            item.body.append(text)
            item.body_lines.append(number)
            item.body_raw.append(raw)
        self._advance(item, number, raw, text)

    def _advance(self, item: _Open, number: int, raw: str, text: str) -> None:
        """Follow the traceback: frames, then its exception, then perhaps the next of the chain."""
        inner = text
        if item.group >= 0 or "Exception Group Traceback (" in text:
            # Members of a group stand behind a margin of bars.
            margin = _MARGIN.match(text)
            inner = text[margin.end():] if margin and margin.group().strip() else text
        if "Traceback (most recent call last):" in inner[:200]:
            if "Exception Group" in inner and item.group < 0:
                item.group = 0
            item.state, item.chained = "trace", False
        elif _FRAME.match(inner):
            if ", in " in inner and item.state != "usage":
                item.state = "trace"
        elif item.state == "plain":
            if not item.body:
                if text.startswith("usage: "):
                    item.state = "usage"
                elif exception_of(text, False):
                    self._exception(item, number, raw, text)
                elif _ARGPARSE_END.match(text):
                    item.state = "exception"
        elif item.state == "usage":
            if _ARGPARSE_END.match(text):
                item.state = "exception"
        elif item.state == "trace":
            if inner[:1] not in ("", " ") and exception_of(inner, True):
                self._exception(item, number, raw, inner)
        elif inner.startswith(_CHAINED):
            item.chained = True

    def _exception(self, item: _Open, number: int, raw: str, text: str) -> None:
        item.state = "exception"
        if len(item.exceptions) < 64 and not any(old == text for old, _number in item.exceptions):
            item.exceptions.append((text, number))
            item.exceptions_raw.append(raw)

    def _close(self, item: _Open) -> None:
        items = self._open.get(item.ident)
        if items and items.get(item.key) is item:
            del items[item.key]
            self._count -= 1
            if not items:
                del self._open[item.ident]
            self._emit(item)

    def _emit(self, item: _Open) -> None:
        while item.body and not item.body[-1].strip():
            item.body.pop()
            item.body_lines.pop()
            item.body_raw.pop()
        line = item.line
        exceptions, exceptions_raw = item.exceptions, item.exceptions_raw
        if item.group >= 0 and len(exceptions) > 1 and "ExceptionGroup" in exceptions[0][0].partition(":")[0]:
            exceptions = exceptions[1:] + exceptions[:1]
            exceptions_raw = exceptions_raw[1:] + exceptions_raw[:1]
        shape = "%s|%s|%s|%s" % (line.level, line.source, _DIGITS.sub("", line.text[:200]), _DIGITS.sub("", exceptions[0][0][:200]) if exceptions else "")
        seen = self._shapes.get(shape, 0) + 1
        if len(self._shapes) > 20000:
            self._shapes.clear()
        self._shapes[shape] = seen
        if seen > MAX_REPEATS:
            self.stats.repeated(self.source.name, shape)
            return
        self._done.append(Event(
            item.time, item.clock, line.node or self.source.node, item.process, item.rank, line.pid, line.level, line.source, line.text,
            tuple(item.body), tuple(exceptions), item.raw, self.source.name, item.number, tuple(item.body_lines), tuple(item.body_raw),
            tuple(exceptions_raw)))


def _last_states(text: str) -> List[str]:
    """Parts of a text with carriage returns that matter: those that are no progress, and the last."""
    text = text.rstrip("\r")
    if "\r" not in text:
        return [text]
    parts = [part for part in text.split("\r") if part.strip()]
    return [part for part in parts[:-1] if not _PROGRESS.search(part.encode("utf-8", "replace"))] + parts[-1:]


def blocks(pieces: Iterable[bytes], stats: Stats) -> Iterator[_Block]:
    """Whole lines in blocks, without the last line end. An overlong line comes in pieces that have one number."""
    number = 1
    rest = b""
    for data in pieces:
        stats.bytes += len(data)
        cut = data.rfind(b"\n")
        if cut >= 0:
            block = rest + data[:cut] if rest else data[:cut]
            rest = data[cut + 1:]
            yield _Block(number, block)
            number += block.count(b"\n") + 1
        else:
            rest += data
        while len(rest) > MAX_LINE:
            at = max(rest.rfind(b"\r", MAX_LINE - 4096, MAX_LINE), rest.rfind(b" ", MAX_LINE - 4096, MAX_LINE)) + 1 or MAX_LINE
            yield _Block(number, rest[:at])
            rest = rest[at:]
    if rest:
        yield _Block(number, rest)
        number += 1
    stats.lines += number - 1


_YEAR = re.compile(rb"(?<![0-9])(20[0-9]{2})-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:")


def year_of(sources: Sequence[Source]) -> int:
    """Year of the newest full date in the first bytes of the sources; else of the newest file; 0 when nothing tells."""
    newest = 0
    files = 0
    for source in sources[:256]:
        if source.name != "-":
            try:
                for data in chunks(source, 65536):
                    newest = max([newest] + [int(found) for found in _YEAR.findall(data[:65536])[:200]])
                    break
            except Refused:
                continue
            try:
                files = max(files, time.gmtime(os.stat(source.name).st_mtime).tm_year)
            except (OSError, ValueError, OverflowError):
                pass
    return newest or files


_HEAD = re.compile(
    rb"(?:([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]|([0-9]{2}-[0-9]{2}) |"
    rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +([0-9]{1,2}) )([0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?)")
_TIME = re.compile(rb"[0-9]:[0-9]{2}:[0-9]{2}|[0-9]{9,10}\.[0-9]")
_NEXT_IS_FRAME = re.compile(rb"Traceback \(most recent call last\):\r?\n[^\n]{0,400}File \"")


def newest_first(head: bytes) -> bool:
    """Whether the lines of the first bytes run backwards in time, as web pages and log stores show them."""
    falls = rises = 0
    last = b""
    for raw in head[:65536].split(b"\n")[:400]:
        found = _HEAD.search(raw[:300])
        if not found:
            continue
        stamp = (found.group(1) or found.group(2) or (found.group(3) or b"").rjust(2)) + b" " + found.group(4)
        if last and len(stamp) == len(last):
            falls += stamp < last
            rises += stamp > last
        last = stamp
    return falls >= 4 and rises * 10 < falls


def turned(data: bytes) -> Tuple[List[bytes], List[int]]:
    """Lines of a newest-first log in the order of time, with their numbers.

    A store that turns records, not lines, leaves the lines of one record in order: then lines without a time stay behind the line
    with one that they follow.
    """
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    if not _NEXT_IS_FRAME.search(data):
        return lines[::-1], list(range(len(lines), 0, -1))
    records: List[List[int]] = []
    for index, raw in enumerate(lines):
        if not records or _HEAD.search(raw[:300]):
            records.append([])
        records[-1].append(index)
    order = [index for record in reversed(records) for index in record]
    return [lines[index] for index in order], [index + 1 for index in order]


def events(sources: Iterable[Source], wanted: Optional[Iterable[str]] = None, stats: Optional[Stats] = None, year: int = 0) -> Iterator[Event]:
    """Events of all sources, one source after the other, in the order in which they are complete.

    Args:
        sources: streams to read.
        wanted: literals that make a line worth parsing, besides levels above INFO and tracebacks, which always are; None parses
            every line. Lines near a wanted one may come along.
        stats: filled with what was read and what could not be.
        year: year for times without one; found out when 0.

    No source raises: one that cannot be read is named in ``stats.refused``.
    """
    stats = stats if stats is not None else Stats()
    listed = list(sources)
    year = year or year_of(listed)
    scanner = Scanner(wanted) if wanted is not None else None
    for source in listed:
        stats.files += 1
        assembler = Assembler(source, stats, year)
        try:
            for lines, numbers, data in _portions(source, stats):
                if scanner is None:
                    for raw, number in zip(lines or data.split(b"\n"), numbers):
                        yield from assembler.feed(number, raw)
                else:
                    yield from _selected(scanner, lines, numbers, data, assembler)
        except Refused as exc:
            stats.refused.append((source.name, str(exc)))
        yield from assembler.flush()
        if scanner is not None:
            for shape, count in scanner.reset().items():
                stats.repeated(source.name, shape, count)


def _portions(source: Source, stats: Stats) -> Iterator[Tuple[List[bytes], Sequence[int], bytes]]:
    """Lines (empty when they are not split yet), their numbers, and the block that holds them; a newest-first log is turned round."""
    pieces = chunks(source)
    first = next(pieces, b"")
    if newest_first(first):
        held = [first]
        size = len(first)
        for data in pieces:
            held.append(data)
            size += len(data)
            if size > MAX_REVERSED:
                break
        if size <= MAX_REVERSED:
            stats.reversed.append(source.name)
            stats.bytes += size
            lines, numbers = turned(b"".join(held))
            stats.lines += len(lines)
            for start in range(0, len(lines), 8192):
                part = lines[start:start + 8192]
                yield part, numbers[start:start + 8192], b"\n".join(part)
            return
        stats.refused.append((source.name, "is newest first and too large to turn round: read in the order of the file"))
        pieces = _chain(held, pieces)
        first = b""
    for block in blocks(_chain([first], pieces), stats):
        yield [], range(block.number, block.number + len(block.data) + 1), block.data


def _chain(held: Iterable[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    for data in held:
        if data:
            yield data
    yield from rest


# A line that begins a record of its own, of no interest: the traceback of another writer may go on behind it.
_BEGINS = rb"(?:\([A-Za-z][^()\n]{0,80}\) ?|\S{1,60} {0,20}\| |[0-9T:.Z-]{20,35} |\x1b\[[0-9;]{1,12}m){0,4}"
_OTHER = re.compile(_BEGINS + rb"(?:(?:INFO|DEBUG)[ :]|\S{1,80} \[[0-9]\] NCCL INFO)")
# Such a line is wanted, unless its shape came too often.
_COUNTED = re.compile(_BEGINS + rb"(?:WARNING|ERROR)[ :]")


def _selected(scanner: Scanner, lines: List[bytes], numbers: Sequence[int], data: bytes, assembler: Assembler) -> Iterator[Event]:
    """Feed the lines that matter, those that continue them, and nothing else."""
    hits = scanner.hits(data)
    if not hits and not assembler.waiting:
        return
    lines = lines or data.split(b"\n")
    count = len(lines)
    index = 0
    position = 0
    # A traceback at the end of the block before goes on here.
    going = assembler.waiting
    while True:
        if not going:
            while position < len(hits) and hits[position] < index:
                position += 1
            if position >= len(hits):
                return
            start = hits[position]
            if start > index or index == 0:
                assembler.gap()
                for back in range(start - 1, max(index, start - 24) - 1, -1):
                    if assembler.glance(lines[back]):
                        break
            index = start
        quiet = 0
        passed = b""
        while index < count:
            while position < len(hits) and hits[position] < index:
                position += 1
            hit = position < len(hits) and hits[position] == index
            raw = lines[index]
            if not hit and (_OTHER.match(raw) or (_COUNTED.match(raw) and not assembler.live())):
                quiet += 1
                # The last that has a time tells it to lines without one.
                if not passed or _TIME.search(raw, 0, 200):
                    passed = raw
            else:
                if passed:
                    assembler.skip(passed)
                    passed = b""
                before = assembler.productive
                yield from assembler.feed(numbers[index], raw)
                quiet = 0 if hit or assembler.productive != before else quiet + 4
            index += 1
            if quiet > QUIET_LINES and (quiet > QUIET_LINES_OPEN or not assembler.live()):
                break
        else:
            if passed:
                assembler.skip(passed)
            assembler.waiting = quiet <= QUIET_LINES or assembler.live()
            return
        if passed:
            assembler.skip(passed)
        assembler.waiting = False
        going = False
