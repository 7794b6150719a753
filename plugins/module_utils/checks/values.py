# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read single values of facts with care.

A fact may be absent, null or of a type that the contract does not know (a hostile or truncated
snapshot). Each function gives the value in the type that is asked for, or None: not known.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,4}\Z")


def text(table: Any, key: str) -> Optional[str]:
    """Text at `key`, None when there is none or it is empty."""
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, str) and value else None


def whole(table: Any, key: str) -> Optional[int]:
    """Whole number at `key`; a truth value is no number."""
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(table: Any, key: str) -> Optional[float]:
    """Number at `key`; a truth value, infinity and not-a-number are none."""
    value = table.get(key) if isinstance(table, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e300:
        return None
    return float(value)


def flag(table: Any, key: str) -> Optional[bool]:
    """Truth value at `key`."""
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, bool) else None


def table(value: Any, key: str) -> Mapping[str, Any]:
    """Table at `key`, empty when there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def tables(value: Any, key: str) -> Optional[List[Mapping[str, Any]]]:
    """List of tables at `key`, None when there is no list or when something else stands in it."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        return None
    return list(found)


def words(value: Any, key: str) -> Optional[List[str]]:
    """List of texts at `key`, None when there is no list or when something else stands in it."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        return None
    return list(found)


def version(value: Optional[str]) -> Tuple[int, ...]:
    """``"580.95.05"`` → ``(580, 95, 5)``; empty for anything that is not only a version."""
    if not value or not _VERSION.match(value):
        return ()
    return tuple(int(part) for part in value.split("."))


def dotted(parts: Sequence[int]) -> str:
    """``(580,)`` → ``"580"``."""
    return ".".join(str(part) for part in parts)


def counted(values: Sequence[str]) -> Dict[str, int]:
    """How often each value stands in `values`, in the order of their first appearance."""
    counts: Dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts
