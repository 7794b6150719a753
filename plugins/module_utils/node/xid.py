# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of GPUs (Xid) and NVSwitches (SXid) in kernel messages, grouped by device and code."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from .kernel_log import Line
from .text import bus_address, drop_empty

MAX_GROUPS = 40
MAX_TEXT = 160
RECOVERY = 154
"""Code whose newest message counts, not its first: it names the action that the GPU needs now."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{5,20})(?: GPU-I:\d{1,3})?\): (\d{1,4})(?!\d)(.*)$")
_PID = re.compile(r"^,\s*pid=(?:'?<unknown>'?|'?(\d{1,10})'?)(?=,|\s|$)")
_NAME = re.compile(r"^,\s*name=(?:'?<unknown>'?|([^,]{1,80}?))\s*(?=,|$)")
_SXID = re.compile(r"nvidia-nvswitch\d{1,3}:? SXid \(PCI:([0-9a-fA-F:.]{5,20})\): (\d{4,6})\s*,?\s*(.*)$")
_FATAL = re.compile(r"^(?:Always\s+)?(Non-?\s?fatal|Fatal)\b\s*,?\s*", re.I)
_SEVERITY = re.compile(r"^Severity (\d)\b")
_CONTINUED = re.compile(r"^(?:Severity \d|Data \{)")
_FALLEN = re.compile(r"fallen off the bus", re.I)
_ADDRESS = re.compile(r"(?:(?<![0-9a-fA-F:])|(?<=PCI:))([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)(?![0-9a-fA-F:])")


def xids(found: Iterable[Line], index: Optional[Mapping[str, int]] = None) -> List[Dict[str, Any]]:
    """Group Xid messages by GPU and code.

    Args:
        found: kernel messages of this boot, in order.
        index: bus address → index of the GPU in nvidia-smi.

    Returns:
        ``[{"bdf", "code", "count", "first", "last", "text", "pid"?, "name"?, "index"?}]``, by time of the last message, at most
        the newest :data:`MAX_GROUPS`. `first` and `last` are seconds since boot, `text` is the first message (for 154 the
        newest), `pid` and `name` are of the first message that names a process.
    """
    groups: Dict[Tuple[str, int], Dict[str, Any]] = {}
    for line in found:
        match = _XID.search(line.text) if "Xid (" in line.text else None
        if not match:
            continue
        bdf, code, rest = bus_address(match.group(1)), int(match.group(2)), match.group(3)
        pid, name, text = _process(rest)
        key = (bdf, code)
        group = groups.get(key)
        if group is None:
            group = groups[key] = {"bdf": bdf, "code": code, "count": 0, "first": line.at, "last": line.at, "text": text}
            if index and bdf in index:
                group["index"] = index[bdf]
        group["count"] += 1
        group["last"] = line.at
        if code == RECOVERY:
            group["text"] = text
        if pid is not None and "pid" not in group:
            group.update(drop_empty({"pid": pid, "name": name}))
    return _newest(groups.values())


def _process(rest: str) -> Tuple[Optional[int], Optional[str], str]:
    """Process id, process name and the text behind them. A name may hold blanks, colons and brackets, but no comma."""
    pid = name = None
    found = _PID.match(rest)
    if found:
        pid = int(found.group(1)) if found.group(1) else None
        rest = rest[found.end():]
    named = _NAME.match(rest)
    if named:
        name = named.group(1)
        rest = rest[named.end():]
    return pid, name, rest.strip(" ,")[:MAX_TEXT]


def sxids(found: Iterable[Line]) -> List[Dict[str, Any]]:
    """Group SXid messages by NVSwitch and code.

    Returns:
        ``[{"bdf", "code", "count", "first", "last", "text", "fatal": bool}]``, by time of the last message, at most the newest
        :data:`MAX_GROUPS`. The lines *Severity* and *Data* that follow a message are not counted as messages of their own,
        unless nothing else is left of it.
    """
    groups: Dict[Tuple[str, int], Dict[str, Any]] = {}
    for line in found:
        match = _SXID.search(line.text) if "SXid (" in line.text else None
        if not match:
            continue
        key = (bus_address(match.group(1)), int(match.group(2)))
        rest = match.group(3)
        group = groups.get(key)
        severity = _SEVERITY.match(rest)
        fatal = _FATAL.match(rest)
        if group is None:
            group = groups[key] = {
                "bdf": key[0], "code": key[1], "count": 0, "first": line.at, "last": line.at,
                "text": (rest[fatal.end():] if fatal else rest).strip()[:MAX_TEXT], "fatal": False}
        elif _CONTINUED.match(rest):
            group["fatal"] = group["fatal"] or bool(severity and severity.group(1) != "0")
            continue
        group["count"] += 1
        group["last"] = line.at
        is_fatal = fatal is not None and not fatal.group(1).lower().startswith("non")
        group["fatal"] = group["fatal"] or is_fatal or bool(severity and severity.group(1) != "0")
    return _newest(groups.values())


def _newest(groups: Iterable[Dict[str, Any]]) -> List[Dict[str, Any]]:
    return sorted(groups, key=lambda group: float(group["last"]))[-MAX_GROUPS:]


def fallen(found: Iterable[Line]) -> List[str]:
    """Bus addresses of devices that have fallen off the bus, in order; ``unknown`` for one that the message does not name.

    Drivers say it in one line, in an Xid 79, or in three lines of which the first holds the address.
    """
    addresses: List[str] = []
    recent: List[Line] = []
    for line in found:
        if "NVRM" not in line.text and "nvidia" not in line.text:
            continue
        if _FALLEN.search(line.text):
            named = [match.group(1) for match in map(_ADDRESS.search, [line.text] + [old.text for old in reversed(recent)]) if match]
            address = bus_address(named[0]) if named else "unknown"
            if address not in addresses:
                addresses.append(address)
        recent = (recent + [line])[-3:]
    if len(addresses) > 1 and "unknown" in addresses:
        addresses.remove("unknown")
    return addresses[:64]
