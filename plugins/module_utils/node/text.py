# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small readings of text that several collectors share. None of them raises."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Tuple

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_BDF = re.compile(r"^(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?$")


def integer(text: Any) -> Optional[int]:
    """First whole number in `text` (``"183359 MiB"`` → 183359), None for ``N/A`` and the like."""
    found = _NUMBER.search(str(text)) if text is not None else None
    if not found or len(found.group()) > 24:
        return None
    return int(float(found.group())) if "." in found.group() else int(found.group())


def number(text: Any) -> Optional[float]:
    """First number in `text`, None when there is none."""
    found = _NUMBER.search(str(text)) if text is not None else None
    return float(found.group()) if found and len(found.group()) <= 24 else None


def bus_address(text: str) -> str:
    """PCI address as ``0000:1b:00.0``, from ``00000000:1B:00.0``, ``PCI:0008:06:00`` or ``1b:00.0``; the input when it is none."""
    stripped = text.strip()
    stripped = stripped[4:] if stripped.upper().startswith("PCI:") else stripped
    found = _BDF.match(stripped)
    if not found:
        return text.strip()
    domain, bus, device, function = found.groups()
    return "%04x:%s:%s.%s" % (int(domain or "0", 16), bus.lower(), device.lower(), function or "0")


def version(text: Optional[str]) -> Tuple[int, ...]:
    """``"580.95.05"`` → ``(580, 95, 5)``; empty for what is no version."""
    parts = re.findall(r"\d+", (text or "").split("-")[0])[:6]
    return tuple(int(part[:12]) for part in parts)


def table(text: str, separator: str = "=") -> Dict[str, str]:
    """``KEY=value`` lines as a table; quotes around a value are taken off, the last of two equal keys stands."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        key, sign, value = line.partition(separator)
        if sign and key.strip():
            found[key.strip()] = value.strip().strip("\"'")
    return found


def drop_empty(values: Dict[str, Any]) -> Dict[str, Any]:
    """`values` without None, empty strings, empty lists and empty tables; zero and False stay."""
    return {k: v for k, v in values.items() if v is not None and v != "" and v != [] and v != {}}
