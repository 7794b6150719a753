# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the lines of a log that matter, at the speed of C.

A log of a gigabyte holds few different lines: with their digits taken off, most are equal. So a block of a megabyte is stripped
of digits and split in two calls, the set of what is left is compared with what is known, and only lines of a new shape are
searched, each literal once over all of them together. Measured on a log of 16 ranks with request ids and prompts: a third of
the time that ``re.finditer`` takes for three words; a regular expression over all literals would take fifty times as long.
"""

from __future__ import annotations

import re
from itertools import compress
from typing import Dict, Iterable, List, Set, Tuple

DIGITS = b"0123456789"
HEX = b"abcdef"
MAX_KNOWN = 6 << 20
"""Bytes of shapes without interest that are remembered."""
MAX_INTERESTING = 20000
"""Shapes of interest that are remembered."""
MAX_HITS = 200
"""Lines of one shape that are given; more are counted. A traceback's first line may come more often: it begins different ones."""
MAX_TRACEBACKS = 2000

# What makes any line worth parsing: levels above INFO, exceptions, and how processes die. Digits are off: "[W801 01:16:39.1 x" is "[W ::. x".
_STRONG = (
    "ERROR", "WARN", "CRITICAL", "FATAL", "Traceback", "Exception", "Error:", "Warning: ", "[W ", "[E ", "[F ", "E ::.", "W ::.", "F ::.", "[W::", "[E::",
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
        always = {literal.encode() for literal in _STRONG + _WEAK}
        self._noisy = _anchors(always, specific)
        self._calm = _anchors({literal.encode() for literal in _EVEN_CALM}, specific)
        self._calm_reduced: List[_Anchor] = [(literal, ()) for literal in _shortest({
            literal.translate(None, HEX) for literal in specific.union(word.encode() for word in _EVEN_CALM) if _telling(literal.translate(None, HEX))})]
        self._calm_short: List[_Anchor] = [(literal, ()) for literal in _shortest({
            literal for literal in specific if not _telling(literal.translate(None, HEX))})]
        self._known: Set[bytes] = set()
        self._reduced: Set[bytes] = set()
        self._known_bytes = 0
        self._interesting: Dict[bytes, int] = {}
        self._flooded: Dict[bytes, int] = {}
        self._quiet: Set[bytes] = set()

    @property
    def anchors(self) -> int:
        """How many literals are searched in text of new shapes."""
        return len(self._noisy)

    def reset(self) -> Dict[str, int]:
        """Begin another source; gives the shapes that were counted only, with how many lines."""
        counted = {shape.decode("utf-8", "replace")[:200]: count for shape, count in self._flooded.items() if count}
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
            _search(b"\n".join(noisy), self._noisy, chosen)
            self._remember(self._known, [shape for shape in noisy if shape not in chosen])
        if calm_keys:
            suspect: Set[bytes] = set()
            _search(b"\n".join(calm_keys), self._calm_reduced, suspect)
            fine = set(calm_keys)
            calm = [shape for shape, key in zip(listed, reduced) if key in fine]
            if self._calm_short:
                _search(b"\n".join(calm), self._calm_short, chosen)
            if suspect:
                _search(b"\n".join([shape for shape, key in zip(listed, reduced) if key in suspect]), self._calm, chosen)
                fine.difference_update(suspect)
                calm = [shape for shape, key in zip(listed, reduced) if key in suspect]
                self._remember(self._known, [shape for shape in calm if shape not in chosen])
            fine.difference_update([shape.translate(None, HEX) for shape in chosen])
            self._remember(self._reduced, list(fine))
        if len(self._interesting) + len(chosen) > MAX_INTERESTING:
            self._interesting.clear()
        for shape in chosen:
            self._interesting[shape] = 0

    def _remember(self, known: Set[bytes], shapes: List[bytes]) -> None:
        self._known_bytes += sum(map(len, shapes)) + 60 * len(shapes)
        if self._known_bytes > MAX_KNOWN:
            self._known.clear()
            self._reduced.clear()
            self._known_bytes = 0
        known.update(shapes)


_Anchor = Tuple[bytes, Tuple[bytes, ...]]


def _search(text: bytes, anchors: Iterable[_Anchor], chosen: Set[bytes]) -> None:
    """Add the lines of `text` that hold an anchor and, where it stands for others, one of these."""
    for anchor, literals in anchors:
        at = text.find(anchor)
        while at >= 0:
            end = text.find(b"\n", at)
            if end < 0:
                end = len(text)
            shape = text[text.rfind(b"\n", 0, at) + 1:end]
            if not literals or any(literal in shape for literal in literals):
                chosen.add(shape)
            at = text.find(anchor, end)


def _anchors(strong: Set[bytes], specific: Set[bytes]) -> List[_Anchor]:
    """Fewest literals to search for: each with the wanted ones that it stands for, none when it is wanted itself.

    A literal that holds another needs no search of its own; a word that several hold is searched once for all of them.
    """
    anchors: List[_Anchor] = [(literal, ()) for literal in sorted(strong)]
    left = [literal for literal in _shortest(specific) if not any(map(literal.__contains__, strong))]
    while left:
        words: Dict[bytes, int] = {}
        for literal in left:
            for word in set(re.findall(rb"[A-Za-z_]{6,}", literal)):
                words[word] = words.get(word, 0) + 1
        best = max(words.items(), key=lambda item: (item[1], len(item[0]), item[0]), default=(b"", 0))
        if best[1] < 3:
            break
        group = tuple(literal for literal in left if best[0] in literal)
        anchors.append((best[0], group))
        left = [literal for literal in left if best[0] not in literal]
    anchors.extend((literal, ()) for literal in left)
    return anchors
