# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small words that the checks of nodes share: short texts, lists of names, why a fact is missing."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple, TypeVar

from .model import Context, Node

LONGEST = 119
"""Characters of an observed text at most."""


def short(text: Any, longest: int = LONGEST) -> str:
    """`text` on one line, without control characters, cut to `longest` characters."""
    # Facts come from machines that may be hostile: nothing in them may steer a terminal.
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def listed(names: Iterable[Any], most: int = 3, width: int = 40) -> str:
    """``a, b, c and 4 more``; each name cut at `width` characters."""
    words = [short(name, width) for name in names]
    rest = len(words) - most
    return ", ".join(words[:most]) + (" and %d more" % rest if rest > 0 else "")


def plural(count: int, word: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return "%d %s%s" % (count, word, "" if count == 1 else "s")


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` when it is a table, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def number(value: Any, default: float = 0.0) -> float:
    """`value` as a finite number; `default` for anything else (booleans too)."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return default
    try:
        found = float(value)
    except OverflowError:
        return default
    return found if math.isfinite(found) else default


def missing(node: Node, *paths: str) -> str:
    """Why one of the facts at `paths` is not known, empty when all are.

    A fact is not known when its section gives a reason, or when it is absent or null.
    """
    for path in paths:
        why = node.why_unknown(path)
        if why:
            return short(why)
        if node.get(path) is None:
            return "%s is not among the facts" % path
    return ""


def without_rdma(context: Context) -> str:
    """Why RDMA does not matter to this plan, empty when it does."""
    if context.needs_rdma:
        return ""
    return "the plan joins its nodes by NVLink, not by RDMA" if context.needs_mnnvl else "the plan keeps each engine on one node"


def without_nvidia(context: Context) -> str:
    """Why NVIDIA's software does not matter to this plan, empty when it does."""
    if context.hardware == "cpu":
        return "the plan uses no GPU (hardware cpu)"
    return "the plan is for AMD GPUs (%s)" % context.hardware if context.hardware == "mi355x" else ""


T = TypeVar("T")


def commonest(values: Sequence[T]) -> Tuple[List[T], int]:
    """The values that occur most often (several when it is a tie), and how often."""
    counts: Dict[T, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    most = max(counts.values(), default=0)
    return [value for value, count in counts.items() if count == most], most


def version(text: Any) -> Tuple[int, ...]:
    """Leading numbers of a version: ``6.8.0-85-generic`` → (6, 8, 0); () when there are none."""
    numbers: List[int] = []
    for part in str(text or "").lstrip("vV").split("."):
        digits = ""
        for c in part:
            if c not in "0123456789":
                break
            digits += c
        if not digits:
            break
        numbers.append(int(digits[:9]))
        if digits != part:
            break
    return tuple(numbers[:4])
