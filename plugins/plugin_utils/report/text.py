# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text that came from a node or an inventory, made fit for a terminal, a ticket or XML."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, List, Sequence, Tuple

# Categories that move the cursor, change the reading direction, stack on a neighbour or show nothing.
_HARMFUL = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me"))
_SPACE = re.compile(r"\s+")
_ASCII = {"×": "x", "→": "->", "…": "...", "·": "-", "–": "-", "—": "-", "≥": ">=", "≤": "<=", "─": "-", "\u2019": "'"}
_ASCII_SAFE = re.compile(r"[ -~]*\Z")
_WORD = re.compile(r"(?:`[^`]*`|\S)+")
_NUMBERED = re.compile(r"(.*?)(\d+)\Z", re.S)
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def plain(value: Any, ascii_only: bool = False) -> str:
    """`value` as one line without control, bidirectional, combining and unassigned characters (each shown as ``?``).

    White space of any kind becomes single blanks. With `ascii_only` common symbols are spelt in
    ASCII and all other characters become ``?``.
    """
    text = str(value)
    if not _ASCII_SAFE.match(text):
        text = unicodedata.normalize("NFC", text)
        text = "".join(" " if c in "\t\n\r" else "?" if unicodedata.category(c) in _HARMFUL else c for c in text)
        if ascii_only:
            text = "".join(c if " " <= c <= "~" else _ASCII.get(c, " " if c.isspace() else "?") for c in text)
    return _SPACE.sub(" ", text).strip()


def width(text: str) -> int:
    """Columns that `text`, which has passed :func:`plain`, takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, columns: int, mark: str = "…") -> str:
    """`text` in at most `columns` columns, ending in `mark` when something was left off."""
    if width(text) <= columns:
        return text
    room = columns - width(mark)
    if room <= 0:
        return mark if room == 0 else ""
    kept, used = [], 0
    for c in text:
        used += width(c)
        if used > room:
            break
        kept.append(c)
    return "".join(kept).rstrip() + mark


def pad(text: str, columns: int, mark: str = "…", right: bool = False) -> str:
    """`text` cut or filled with blanks to exactly `columns` columns."""
    text = cut(text, columns, mark)
    blanks = " " * (columns - width(text))
    return blanks + text if right else text + blanks


def words(text: str) -> List[str]:
    """Words of `text`; what stands between backticks belongs to one word, so that a command is not broken."""
    return _WORD.findall(text)


def wrap(text: str, columns: int, limit: int = 0, mark: str = "…") -> List[str]:
    """`text` (from :func:`plain`) as lines of at most `columns` columns, at most `limit` of them (0: no limit)."""
    lines: List[str] = []
    line = ""
    for word in words(text):
        if line and width(line) + 1 + width(word) > columns:
            lines.append(line)
            line = ""
        line = line + " " + word if line else word
        if width(line) > columns:
            pieces = line.split(" ")
            line = ""
            for piece in pieces:
                if line and width(line) + 1 + width(piece) > columns:
                    lines.append(line)
                    line = ""
                line = line + " " + piece if line else piece
                while width(line) > columns:
                    head = cut(line, columns, "") or line[:1]
                    lines.append(head)
                    line = line[len(head) :].lstrip()
    if line:
        lines.append(line)
    if limit and len(lines) > limit:
        lines = lines[:limit]
        lines[-1] = cut(lines[-1] + " " + mark, columns, mark)
    return lines


def ranges(names: Sequence[str]) -> List[Tuple[str, int]]:
    """`names` with runs of consecutive numbers joined: ``[("b300-01..04", 4), ("b300-07", 1)]``. Order is kept."""
    found: List[Tuple[str, int]] = []
    run: List[str] = []

    def close() -> None:
        if len(run) > 2:
            last = _NUMBERED.match(run[-1])
            found.append((run[0] + ".." + (last.group(2) if last else ""), len(run)))
        else:
            found.extend((name, 1) for name in run)
        run.clear()

    for name in names:
        if run:
            before, here = _NUMBERED.match(run[-1]), _NUMBERED.match(name)
            joined = (
                before
                and here
                and before.group(1) == here.group(1)
                and len(here.group(2)) < 16
                and (len(before.group(2)) == len(here.group(2)) or before.group(2)[0] != "0")
                and int(here.group(2)) == int(before.group(2)[:16]) + 1
            )
            if not joined:
                close()
        run.append(name)
    close()
    return found


def fold(names: Sequence[str], columns: int) -> str:
    """`names` in at most about `columns` columns: ``b300-01..04, b300-09 and 2 more``. At least one name is shown."""
    parts = ranges(names)
    whole = ", ".join(text for text, _count in parts)
    if width(whole) <= columns:
        return whole
    shown: List[str] = []
    left = len(names)
    for text, count in parts:
        tail = " and %d more" % (left - count) if left > count else ""
        if shown and width(", ".join(shown + [text])) + len(tail) > columns:
            return ", ".join(shown) + " and %d more" % left
        shown.append(text)
        left -= count
    return ", ".join(shown)


def xml_safe(value: Any) -> str:
    """`value` with every character that XML 1.0 cannot hold shown as ``?``."""
    return _NOT_XML.sub("?", str(value))
