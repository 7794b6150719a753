# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why the start of an engine failed, from how the waiting of each rank ended and what each rank printed."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple

from ..checks.wording import short
from ..logs.diagnose import diagnose
from ..logs.sources import Source


class Rank(NamedTuple):
    """How one rank ended.

    Attributes:
        why: why it was given up, empty when it only followed another rank.
        error: what a task before the waiting said, empty when there was none.
        journal: what it printed since the start.
    """

    node: str
    ready: bool
    phase: str
    why: str
    error: str
    journal: bytes


def explain(ranks: List[Rank]) -> Dict[str, Any]:
    """The case document of logs.diagnose for one engine, with ``sentence``: what failed first, where, and what to do next.

    Args:
        ranks: all ranks of the engine, in rank order.
    """
    printed = [Source.from_bytes(rank.node + ".log", rank.journal, rank.node) for rank in ranks if rank.journal.strip()]
    case = diagnose(printed) if printed else {}
    case["sentence"] = sentence(case, ranks)
    return case


def sentence(case: Mapping[str, Any], ranks: List[Rank]) -> str:
    """One sentence for a person; what the logs name is preferred to how the waiting ended."""
    own = [rank for rank in ranks if not rank.ready and (rank.why or rank.error)]
    ended = "; ".join("%s %s" % (rank.node, short(rank.error or "(%s): %s" % (rank.phase, rank.why), 300)) for rank in own[:3]) or "no rank became ready"
    first = case.get("first_failure")
    if not isinstance(first, Mapping) or not first.get("text"):
        advice = " Next: %s" % case["next_action"] if case.get("failed") and case.get("next_action") else ""
        return ended + "." * (not ended.endswith((".", "…"))) + advice
    where = " ".join(word for word in (str(first.get("node") or ""), str(first.get("rank") or "")) if word)
    text = "%s failed first, in %s (%s): %s" % (where or "a rank", case.get("phase") or "an unknown phase", case.get("class") or "unknown",
                                                short(first["text"], 300))
    return text + "." * (not text.endswith((".", "…"))) + (" Next: %s" % case["next_action"] if case.get("next_action") else "")
