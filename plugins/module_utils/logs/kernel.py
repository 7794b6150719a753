# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of GPUs and NVSwitches in kernel lines, decoded with NVIDIA's recommended action."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Sequence, Tuple

from ..checks.xids import classify
from ..node.kernel_log import Line
from ..node.text import bus_address
from ..node.xid import fallen, sxids, xids

_DEVICE = re.compile(r"(?:NVRM: |GPU ?)(?:.{0,40}?)\(?(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)(?![0-9a-fA-F:])")


class Fault(NamedTuple):
    """One message of the driver."""

    kind: str
    """``xid``, ``sxid`` or ``fallen`` (a GPU that is off the bus without an Xid)."""
    address: str
    """PCI address as ``0000:1b:00.0``, ``unknown`` when the message does not name it."""
    code: int
    """0 for ``fallen``."""
    pid: int
    """Process that the driver names, 0 for none."""
    process: str
    """Its name, empty for none."""
    action: str
    """NVIDIA's immediate action, as ``RESET_GPU``; empty where the catalogue gives none."""
    group: str
    """``ignored``, ``application``, ``reset``, ``reboot`` or ``support``; for an SXid ``reset`` when fatal, else ``ignored``."""
    text: str
    """What happened."""


def fault(text: str, body: Sequence[str] = ()) -> Optional[Fault]:
    """Decode one kernel message with the lines that continue it; None when it tells of no fault."""
    lines = [Line(0.0, part.strip()) for part in (text,) + tuple(body)]
    found = xids(lines)
    if found:
        first = found[0]
        known = classify(first["code"], first["text"])
        return Fault("xid", first["bdf"], first["code"], first.get("pid", 0), first.get("name", ""), known.action, known.kind, known.text)
    switches = sxids(lines)
    if switches:
        first = switches[0]
        # The driver's line "Severity 1 …" alone says as much as the word Fatal.
        fatal = first["fatal"] or any("Severity 1" in line.text for line in lines)
        return Fault("sxid", first["bdf"], first["code"], 0, "", "", "reset" if fatal else "ignored", first["text"])
    lost = fallen(lines)
    if lost:
        return Fault("fallen", lost[0], 0, 0, "", "RESTART_BM", "reboot", "GPU has fallen off the bus")
    return None


def device(text: str) -> Tuple[Optional[Fault], str]:
    """What a line says of a GPU or NVSwitch and the PCI address of that; empty for a line that names none."""
    told = fault(text)
    if told is not None:
        return told, "" if told.address == "unknown" else told.address
    named = _DEVICE.search(text)
    return None, bus_address(named.group(1)) if named else ""
