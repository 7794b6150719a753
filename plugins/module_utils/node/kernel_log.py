# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel messages of this boot, from the journal or, failing that, the ring buffer."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, NamedTuple, Pattern, Sequence, Tuple

from .reader import Reader

JOURNAL = ("journalctl", "-k", "-b", "0", "-o", "short-monotonic", "--no-pager", "-q", "-n", "100000")
RING = ("dmesg",)
COMMANDS: Sequence[Sequence[str]] = (JOURNAL, RING)

MAX_TEXT = 1000
"""Characters kept of one message with its continuation lines."""

# "[   12.345678] text", with "[T123]" or "[C0]" behind it where the kernel prints its caller, or "[…] host kernel: text" of the journal.
_LINE = re.compile(r"^(?:<\d{1,3}>)?\[\s{0,12}(\d{1,12}\.\d{1,9})\](?:\[\s{0,8}[TC]\d{1,10}\])?\s?(?:\S{1,255} kernel: )?(.*)$")


class Line(NamedTuple):
    """One message: seconds since boot and the text without prefixes."""

    at: float
    text: str


def parse(text: str) -> List[Line]:
    """Messages of ``dmesg`` or ``journalctl -o short-monotonic``, in the order of `text`.

    An indented line without a time continues the message before it (both tools print messages of several lines so) and is
    joined to it with one blank; any other line without a time is dropped.
    """
    found: List[Line] = []
    for raw in text.split("\n"):
        line = _LINE.match(raw)
        if line:
            found.append(Line(float(line.group(1)), line.group(2).strip()[:MAX_TEXT]))
        elif found and raw[:1] in (" ", "\t") and raw.strip():
            last = found[-1]
            if len(last.text) < MAX_TEXT:
                found[-1] = last._replace(text=(last.text + " " + raw.strip())[:MAX_TEXT])
    return found


def lines(reader: Reader) -> Tuple[List[Line], str]:
    """Messages of this boot in order, and why there are none, or not all (empty when there are).

    The journal is preferred: the ring buffer forgets the oldest lines, which name the first fault. A journal that was cut,
    being too large or too slow, lacks its newest lines, which the ring buffer adds.
    """
    journal = reader.run(JOURNAL)
    cut = journal.error in ("too_large", "timeout")
    # The last line of what was cut may be half a line.
    found = parse(journal.out.rpartition("\n")[0] if cut else journal.out) if journal.ok or cut else []
    ring = reader.run(RING)
    buffered = parse(ring.out) if ring.ok else []
    if cut and (found or buffered):
        until = found[-1].at if found else 0.0
        why = "" if buffered and buffered[0].at <= until else (
            "the journal of this boot was read up to %.0f s after the boot (%s), and the ring buffer does not reach back to there" % (
                until, "it did not answer in time" if journal.error == "timeout" else "it is larger than what is kept"))
        return found + [line for line in buffered if line.at > until or not found], why
    if found and (not buffered or found[0].at <= buffered[0].at):
        return found, ""
    if buffered:
        return buffered, ""
    if found:
        return found, ""
    if ring.ok:
        return [], "the kernel's ring buffer is empty"
    return [], ring.reason("dmesg")


class Group(NamedTuple):
    """Lines of one kind: how many, and the first of them."""

    kind: str
    text: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    first: float
    last: float


def classify(found: Iterable[Line], patterns: Sequence[Tuple[str, Pattern[str]]]) -> List[Group]:
    """Group lines by the first of ``(kind, pattern)`` that each matches; kinds keep the order of their first line."""
    groups: Dict[str, Group] = {}
    for line in found:
        for kind, pattern in patterns:
            if pattern.search(line.text):
                old = groups.get(kind)
                groups[kind] = (
                    old._replace(count=old.count + 1, last=line.at) if old
                    else Group(kind, line.text[:300], 1, line.at, line.at))
                break
    return list(groups.values())
