# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One event of a log: a message with the lines that belong to it, such as the frames of its traceback."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

MAX_BODY = 400
"""Lines of a body that are kept; of a longer traceback the exceptions are kept nevertheless."""
MAX_RAW = 4000
"""Characters kept of a line."""


class Event(NamedTuple):
    """A message of a log and the lines that belong to it.

    `text`, `body` and the texts of `exceptions` hold no control characters, escape sequences, marks of writing direction or
    invisible characters. `raw` and `body_raw` are what stands in the file: whoever prints them escapes them first.
    """

    time: Optional[float]
    """Seconds since the epoch; of a kernel line without a known time of boot, seconds since boot; None unknown."""
    clock: str
    """What `time` is: ``wall``, ``boot`` (seconds since boot), ``near`` (of the nearest line before in the same file), empty none."""
    node: str
    """Name of the node, empty unknown."""
    process: str
    """``APIServer``, ``EngineCore``, ``Worker``, ``kernel``, ``srun`` …; empty unknown."""
    rank: str
    """``TP1``, ``PP1_TP7``, ``DP0_EP0``, ``3`` …; empty unknown."""
    pid: int
    """0 unknown."""
    level: str
    """``DEBUG``, ``INFO``, ``WARNING``, ``ERROR``, ``CRITICAL`` or empty."""
    source: str
    """File and line that logged it, as ``core.py:396``; empty unknown."""
    text: str
    """Message of the first line, without prefixes."""
    body: Tuple[str, ...]
    """The lines that follow in the same event, without prefixes, at most :data:`MAX_BODY`."""
    exceptions: Tuple[Tuple[str, int], ...]
    """``Type: message`` of each exception with its line number. Of a chain the original comes first, as Python prints it;
    members of an exception group come before the group's own line."""
    raw: str
    """First line as it stands in the file, decoded with replacement, at most :data:`MAX_RAW` characters. Of a line that was
    rewritten with carriage returns, the last state."""
    file: str
    """Path, or name of the stream."""
    line: int
    """Number of `raw` in `file`, from 1."""
    body_lines: Tuple[int, ...] = ()
    """Line number of each line of `body`."""
    body_raw: Tuple[str, ...] = ()
    """Each line of `body` as it stands in the file."""
    exceptions_raw: Tuple[str, ...] = ()
    """The line of each of `exceptions` as it stands in the file."""

    def raw_at(self, line: int) -> str:
        """The line with that number as it stands in the file, empty when it is not of this event."""
        if line == self.line:
            return self.raw
        for (_text, number), raw in zip(self.exceptions, self.exceptions_raw):
            if number == line:
                return raw
        for number, raw in zip(self.body_lines, self.body_raw):
            if number == line:
                return raw
        return ""
