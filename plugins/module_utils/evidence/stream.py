# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take a log of any size along: cleaned, bounded, and kept in memory only as compressed blocks.

A log is a sequence of gzip members, so the file in the bundle can be read with zcat(1) and zgrep(1). When it is longer
than allowed, its head (where a start fails first) and its tail stay, and the cut is marked in the log and counted.
"""

from __future__ import annotations

import gzip
import os
import re
import selectors
import signal
import stat
import subprocess
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..node.children import in_children
from ..node.live import command_environment, find_program
from ..node.reader import error_word
from .secrets import Cleaner, KeyBlocks, Redaction, listed

BLOCK = 256 * 1024
LINE_LIMIT = 64 * 1024
"""Bytes kept of one line; a longer one is cut and says so."""
CUT = b" [the rest of this line was cut]"
COMPRESSED_LIMIT = 24 * 1024 * 1024
"""Bytes of one log in the bundle; a snapshot may hold no larger file."""
MAX_PLACES = 2000

_START = re.compile(rb"systemd\[\d+\]: (Started|Starting) (\S+)")


class Kept(NamedTuple):
    """A log that was taken along. Sizes are bytes before compression; `data` are gzip members, to be joined."""

    data: List[bytes]
    bytes: int
    lines: int
    kept: int
    cut_bytes: int
    cut_lines: int
    long_lines: int
    redactions: List[Redaction]
    redacted: int
    starts: Dict[str, int]


class Keeper:
    """Takes blocks of a log one after the other; memory stays within the bounds whatever comes."""

    def __init__(self, cleaner: Cleaner, limit: int) -> None:
        self.cleaner = cleaner
        self.keys = KeyBlocks()
        self.head_limit = limit // 4
        self.tail_limit = limit - self.head_limit
        self.carry = b""
        self.dropping = False
        self.head: List[bytes] = []
        # (gzip member, bytes, lines)
        self.tail: Deque[Tuple[bytes, int, int]] = deque()
        self.head_bytes = self.tail_bytes = self.packed = 0
        self.total = self.lines = self.kept_lines = 0
        self.cut_bytes = self.cut_lines = self.long_lines = 0
        self.places: List[Redaction] = []
        self.redacted = 0
        self.starts: Dict[Tuple[str, bytes], int] = {}

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log, cut anywhere."""
        self.total += len(data)
        if self.dropping:
            end = data.find(b"\n")
            if end < 0:
                self.cut_bytes += len(data)
                return
            self.cut_bytes += end
            data = data[end:]
            self.dropping = False
        data = self.carry + data
        end = data.rfind(b"\n") + 1
        cut = self._border(data, end)
        self.carry = data[cut:]
        if cut:
            self._lines(data[:cut])
        partial = len(data) - end
        if partial > LINE_LIMIT:
            self.dropping = True
            self.long_lines += 1
            self.cut_bytes += partial - LINE_LIMIT
            self.carry = data[cut:end + LINE_LIMIT] + CUT

    def _border(self, data: bytes, end: int) -> int:
        """Where to part `data`, whose last whole line ends at `end`: behind a line that cannot belong to a secret below it."""
        cut = end
        for _line in range(200):
            start = data.rfind(b"\n", 0, max(0, cut - 1)) + 1
            if not self.cleaner.suspect(data[start:cut]):
                return cut
            cut = start
            if not cut:
                break
        # Nothing but suspects: they wait for what follows, but not for ever.
        return cut if end < BLOCK else end

    def _lines(self, data: bytes) -> None:
        lines = data.split(b"\n")
        if max(map(len, lines)) > LINE_LIMIT + 64:
            for number, line in enumerate(lines):
                if len(line) > LINE_LIMIT + 64:
                    self.long_lines += 1
                    self.cut_bytes += len(line) - LINE_LIMIT
                    lines[number] = line[:LINE_LIMIT] + CUT
            data = b"\n".join(lines)
        for found in _START.finditer(data):
            key = (found.group(2).decode("utf-8", "replace").rstrip(".")[:120], found.group(1))
            self.starts[key] = self.starts.get(key, 0) + 1
        clean = self.cleaner.block(self.keys(data))
        if b"<redacted>" in clean:
            places = listed(clean.decode("utf-8", "replace"), self.lines + 1)
            self.redacted += len(places)
            self.places += places[:max(0, MAX_PLACES - len(self.places))]
        count = clean.count(b"\n")
        self.lines += count
        if clean:
            self._keep(clean, count)

    def _keep(self, clean: bytes, count: int) -> None:
        packed = gzip.compress(clean, 3, mtime=0)
        if self.head_bytes + len(clean) <= self.head_limit and self.packed + len(packed) <= COMPRESSED_LIMIT // 4:
            if not self.tail:
                self.head.append(packed)
                self.head_bytes += len(clean)
                self.packed += len(packed)
                return
        self.tail.append((packed, len(clean), count))
        self.tail_bytes += len(clean)
        self.packed += len(packed)
        while len(self.tail) > 1 and (self.tail_bytes > self.tail_limit or self.packed > COMPRESSED_LIMIT):
            gone, size, lines = self.tail.popleft()
            self.tail_bytes -= size
            self.packed -= len(gone)
            self.cut_bytes += size
            self.cut_lines += lines

    def _starts(self) -> Dict[str, int]:
        """Starts by unit: systemd says ``Starting`` and then ``Started``, and of some types or failures only one of the two."""
        found: Dict[str, int] = {}
        for (name, _word), count in self.starts.items():
            found[name] = max(found.get(name, 0), count)
        return found

    def close(self) -> Kept:
        """End of the log."""
        if self.carry:
            self._lines(self.carry)
            self.carry = b""
        data = list(self.head)
        if self.cut_lines:
            note = "[evidence: %d lines (%d bytes) were cut here to keep the bundle small]\n" % (self.cut_lines, self.cut_bytes)
            data.append(gzip.compress(note.encode("ascii"), 3, mtime=0))
        data += [packed for packed, _size, _lines in self.tail]
        return Kept(
            data, self.total, self.lines, self.head_bytes + self.tail_bytes, self.cut_bytes, self.cut_lines, self.long_lines,
            self.places, self.redacted, self._starts())


class Outcome(NamedTuple):
    """How the command behind a log ended; `error` is a word of ``node.reader``."""

    rc: Optional[int]
    error: str
    stderr: str
    seconds: float


def run(argv: Sequence[str], keeper: Keeper, deadline: float) -> Outcome:
    """Feed the output of `argv` (stdout and stderr as one stream) to `keeper` until it ends or `deadline` (monotonic seconds).

    A command that outlives the deadline is killed and abandoned; what came until then is kept.
    """
    started = time.monotonic()
    env = command_environment()
    program = argv[0] if "/" in argv[0] else find_program(argv[0], env["PATH"])
    if not program:
        return Outcome(None, "missing", "", 0.0)
    try:
        process = subprocess.Popen(
            [program, *argv[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, close_fds=True, cwd="/", env=env)
    except OSError as exc:
        return Outcome(None, error_word(exc), "", 0.0)
    stream: Any = process.stdout
    ended = _pump(stream.fileno(), keeper.feed, deadline)
    if not ended:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
    stream.close()
    rc = _wait(process, 2.0)
    if not ended or rc is None:
        return Outcome(None, "timeout", "", round(time.monotonic() - started, 3))
    return Outcome(rc, "", "", round(time.monotonic() - started, 3))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> Optional[int]:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _pump(source: int, feed: Callable[[bytes], None], deadline: float) -> bool:
    """Read `source` to its end; False when the deadline came first."""
    os.set_blocking(source, False)
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        parts: List[bytes] = []
        size = 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                if parts:
                    feed(b"".join(parts))
                if left <= 0 or time.monotonic() >= deadline:
                    return False
                parts, size = [], 0
                continue
            try:
                part = os.read(source, BLOCK)
            except BlockingIOError:
                continue
            except OSError:
                part = b""
            if part:
                # A pipe gives 64 KiB at a time; larger blocks are cheaper to clean and to pack.
                parts.append(part)
                size += len(part)
            if size >= BLOCK or (not part and parts):
                feed(b"".join(parts))
                parts, size = [], 0
            if not part:
                return True


def copy(path: str, keeper: Keeper, deadline: float) -> Outcome:
    """Feed the plain file at `path` to `keeper`; a link or a device is refused.

    It is opened and read by other processes, which are abandoned at the deadline: a file on a network file system that hangs blocks for ever.
    """
    started = time.monotonic()
    plain, error = in_children({"plain": lambda: _plain(path)}, deadline)["plain"]
    if not plain:
        return Outcome(None, error or "not_a_file", "", round(time.monotonic() - started, 3))
    return run(("cat", "--", path), keeper, deadline)


def _plain(path: str) -> bool:
    """Whether a file that can be opened is a plain one."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return stat.S_ISREG(os.fstat(handle).st_mode)
