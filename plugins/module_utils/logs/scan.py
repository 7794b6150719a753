# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the lines of a log that matter, at the speed of C.

A log of a gigabyte holds few different lines: with their digits taken off, most are equal. So a block of a megabyte is stripped
of digits and split in two calls, the set of what is left is compared with what is known, and only lines of a new shape are
searched. Measured on a gigabyte of 16 ranks with request ids and prompts, for five hundred literals: twice the time that
``re.finditer`` takes for three words.
"""

from __future__ import annotations

from itertools import compress
from typing import Dict, Iterable, List, Set

DIGITS = b"0123456789"
HEX = b"abcdef"
MAX_KNOWN = 6 << 20
"""Bytes of shapes without interest that are remembered."""
MAX_INTERESTING = 20000
"""Shapes of interest that are remembered."""
MAX_HITS = 200
"""Lines of one shape that are given; more are counted. A traceback's first line may come more often: it begins different ones."""
MAX_TRACEBACKS = 2000
MAX_PLACE = 3000
"""Different lines of one place in the code that are given, when they have a level above INFO and nothing else that is wanted."""

# What makes any line worth parsing: levels above INFO, exceptions, and how processes die. Digits are off: "[W801 01:16:39.1 x" is "[W ::. x".
_LEVELS = ("ERROR", "WARN", "CRITICAL", "FATAL")
_STRONG = (
    "Traceback", "Exception", "Error:", "Warning: ", "[W ", "[E ", "[F ", "E ::.", "W ::.", "F ::.", "[W::", "[E::",
    "NVRM", "Xid", "srun:", "slurmstepd:", "usage: ", ": error: ", "Fatal", "terminate called", "Segmentation fault", "core dumped", "Killed", "Aborted",
    "Process EngineCore", "Process Worker", "Process VllmWorker", "Process ApiServer", "Process Spawn", "segfault", "oom-kill", "Out of memory", "kern:",
    "kern  :", "non-zero status", "NULL value")
# The same for lines that are not of level INFO or DEBUG: such words stand in prompts and in plain reports too.
_WEAK = (
    "error", "Error", "failed", "Failed", "failure", "cannot", "Cannot", "denied", "refused", "timed out", "Timed out", "timeout", "No such", "not found",
    "nvalid", "nable to", "exited", "killed", "died", "abort", "unsupported", "not supported", "mismatch", "missing", "panic", "corrupt", "unreachable",
    "No space")
# Only these in lines of level INFO and DEBUG, besides the wanted literals.
_EVEN_CALM = ("ERROR", "Traceback", "Exception", "Error:")
_PROMPT = b"Received request ".translate(None, HEX)


def _calm(shape: bytes) -> bool:
    """Whether a line is of level INFO or DEBUG; the same without the letters of hexadecimal numbers."""
    head = shape[:160]
    if b"INFO" in head or b"DEBUG" in head:
        return b"INFO " in head or b"INFO:" in head or b"DEBUG " in head or b"DEBUG:" in head or b"INFO\x1b" in head
    return False


def _telling(literal: bytes) -> bool:
    """Whether enough is left of a reduced literal to look for it."""
    return len(literal.strip()) >= 4


def _shortest(literals: Set[bytes]) -> List[bytes]:
    """Literals without those that hold another."""
    kept: List[bytes] = []
    for literal in sorted(literals, key=lambda item: (len(item), item)):
        if not any(map(literal.__contains__, kept)):
            kept.append(literal)
    return kept


def _strip(text: str) -> bytes:
    return text.encode("utf-8", "replace").translate(None, DIGITS)


class Scanner:
    """Finds lines that hold one of the wanted literals, a level above INFO, or the beginning of a traceback.

    Literals are compared without their digits. One of which fewer than three characters are left (a bare error number) makes no
    line wanted by itself; lines that hold it have a level or the word error beside it.
    One scanner serves many sources; :meth:`reset` forgets how often shapes came, not what they are.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        specific: Set[bytes] = set()
        for literal in wanted:
            stripped = _strip(literal)
            if len(stripped.strip()) >= 3 and b"\n" not in stripped:
                specific.add(stripped)
        even = {literal.encode() for literal in _EVEN_CALM}
        self._noisy = _Finder(specific.union(literal.encode() for literal in _STRONG + _WEAK))
        self._levels = _Finder(literal.encode() for literal in _LEVELS)
        self._calm = _Finder(specific.union(even))
        reduced = {literal: literal.translate(None, HEX) for literal in specific.union(even)}
        self._calm_reduced = _Finder(left for left in reduced.values() if _telling(left))
        self._calm_short = _Finder(literal for literal, left in reduced.items() if not _telling(left))
        self._crowded = 0
        self._places: Dict[bytes, int] = {}
        self._known: Set[bytes] = set()
        self._reduced: Set[bytes] = set()
        self._known_bytes = 0
        self._interesting: Dict[bytes, int] = {}
        self._flooded: Dict[bytes, int] = {}
        self._quiet: Set[bytes] = set()

    def reset(self) -> Dict[str, int]:
        """Begin another source; gives the shapes that were counted only, with how many lines."""
        counted: Dict[str, int] = {"lines of places that say ever new things": self._crowded} if self._crowded else {}
        self._crowded = 0
        self._places = {}
        counted.update({shape.decode("utf-8", "replace")[:200]: count for shape, count in self._flooded.items() if count})
        self._interesting = dict.fromkeys(list(self._interesting) + list(self._flooded) + list(self._quiet), 0)
        self._flooded = {}
        self._quiet = set()
        return counted

    def hits(self, data: bytes) -> List[int]:
        """Indices of the lines of `data` that matter, ascending."""
        shapes = data.translate(None, DIGITS).split(b"\n")
        distinct = set(shapes)
        fresh = distinct.difference(self._known, self._interesting, self._flooded, self._quiet)
        fresh.discard(b"")
        if fresh:
            self._learn(fresh)
        found: List[int] = []
        flooded = self._flooded
        if flooded:
            for shape in distinct.intersection(flooded):
                flooded[shape] += shapes.count(shape)
        interesting = self._interesting
        if not distinct.isdisjoint(interesting):
            # A shape that comes too often within this block is counted for the rest of it.
            for index in list(compress(range(len(shapes)), map(interesting.__contains__, shapes))):
                shape = shapes[index]
                count = interesting.get(shape)
                if count is None:
                    if shape in flooded:
                        flooded[shape] += 1
                    continue
                found.append(index)
                interesting[shape] = count + 1
                if count + 1 >= (MAX_TRACEBACKS if b"Traceback (" in shape else MAX_HITS):
                    del interesting[shape]
                    if _calm(shape):
                        self._quiet.add(shape)
                    else:
                        flooded[shape] = 0
        return found

    def _learn(self, fresh: Set[bytes]) -> None:
        """Sort new shapes into those of interest and the others.

        Most are reports that are new only by the id of a request. So they are compared again without the letters of hexadecimal
        numbers: if no literal, reduced in the same way, is in what is left, then no literal is in the line. (Literals of which that
        leaves too little are looked for when what is left is new.)
        """
        listed = list(fresh)
        reduced = b"\n".join(listed).translate(None, HEX).split(b"\n")
        unknown = set(reduced)
        unknown.difference_update(self._reduced)
        if not unknown:
            return
        calm_keys: List[bytes] = []
        noisy_keys: Set[bytes] = set()
        for key in unknown:
            if not _calm(key):
                noisy_keys.add(key)
            # A user's prompt is no message of the engine, whatever stands in it.
            elif _PROMPT not in key:
                calm_keys.append(key)
        chosen: Set[bytes] = set()
        if noisy_keys:
            noisy = [shape for shape, key in zip(listed, reduced) if key in noisy_keys]
            self._noisy(noisy, chosen)
            self._learn_levels(noisy, chosen)
            self._remember(self._known, [shape for shape in noisy if shape not in chosen])
        if calm_keys:
            suspect: Set[bytes] = set()
            self._calm_reduced(calm_keys, suspect)
            fine = set(calm_keys)
            calm = [shape for shape, key in zip(listed, reduced) if key in fine]
            if len(self._calm_short):
                self._calm_short(calm, chosen)
            if suspect:
                self._calm([shape for shape, key in zip(listed, reduced) if key in suspect], chosen)
                fine.difference_update(suspect)
                calm = [shape for shape, key in zip(listed, reduced) if key in suspect]
                self._remember(self._known, [shape for shape in calm if shape not in chosen])
            fine.difference_update([shape.translate(None, HEX) for shape in chosen])
            self._remember(self._reduced, list(fine))
        if len(self._interesting) + len(chosen) > MAX_INTERESTING:
            self._interesting.clear()
        for shape in chosen:
            self._interesting[shape] = 0

    def _learn_levels(self, noisy: List[bytes], chosen: Set[bytes]) -> None:
        """Lines that only their level makes wanted: of one place in the code at most :data:`MAX_PLACE` different ones."""
        level: Set[bytes] = set()
        self._levels(noisy, level)
        level.difference_update(chosen)
        for shape in level:
            place = shape[:shape.find(b"]", 0, 200) + 1]
            count = self._places.get(place, 0)
            if count < MAX_PLACE:
                if len(self._places) > MAX_INTERESTING:
                    self._places.clear()
                self._places[place] = count + 1
                chosen.add(shape)
            else:
                self._crowded += 1

    def _remember(self, known: Set[bytes], shapes: List[bytes]) -> None:
        self._known_bytes += sum(map(len, shapes)) + 60 * len(shapes)
        if self._known_bytes > MAX_KNOWN:
            self._known.clear()
            self._reduced.clear()
            self._known_bytes = 0
        known.update(shapes)


class _Finder:
    """Searches many literals in text whose words mostly came before.

    A literal can stand in a text only if its longest word is part of a word of the text. So each word is compared with all literals
    once, and a text is searched for those literals only that its words call for.
    """

    def __init__(self, literals: Iterable[bytes]) -> None:
        self._literals = tuple(_shortest(set(literals)))
        self._cores = tuple(max(literal.split() or [literal], key=len) for literal in self._literals)
        self._known: Set[bytes] = set()
        self._known_bytes = 0
        self._calls: Dict[bytes, Set[int]] = {}

    def __len__(self) -> int:
        return len(self._literals)

    def __call__(self, lines: Iterable[bytes], chosen: Set[bytes]) -> None:
        """Add those of `lines` to `chosen` that hold a literal."""
        text = b"\n".join(lines)
        words = set(text.split())
        fresh = words.difference(self._known)
        if fresh:
            self._learn(fresh)
        for number in sorted(set().union(*[self._calls[word] for word in words.intersection(self._calls)])):
            self._search(text, self._literals[number], chosen)

    def _learn(self, fresh: Set[bytes]) -> None:
        size = sum(map(len, fresh)) + 60 * len(fresh)
        if self._known_bytes + size > MAX_KNOWN:
            self._known.clear()
            self._calls.clear()
            self._known_bytes = 0
        self._known_bytes += size
        self._known.update(fresh)
        text = b"\n".join(fresh)
        for number, core in enumerate(self._cores):
            at = text.find(core)
            while at >= 0:
                end = text.find(b"\n", at)
                if end < 0:
                    end = len(text)
                self._calls.setdefault(text[text.rfind(b"\n", 0, at) + 1:end], set()).add(number)
                at = text.find(core, end)

    @staticmethod
    def _search(text: bytes, literal: bytes, chosen: Set[bytes]) -> None:
        at = text.find(literal)
        while at >= 0:
            end = text.find(b"\n", at)
            if end < 0:
                end = len(text)
            chosen.add(text[text.rfind(b"\n", 0, at) + 1:end])
            at = text.find(literal, end)
