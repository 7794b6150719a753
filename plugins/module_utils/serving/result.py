# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of one stage of the acceptance, the same shape for all five."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

STAGES = ("start", "request", "prefix", "concurrency", "stability")
"""Names of the stages, in order."""

PASSED, FAILED, NOT_VERIFIED = "passed", "failed", "not_verified"
STATUSES = ("pass", "warn", "fail", "unknown", "skip", "info")
LONGEST = 2000


def finding(id: str, status: str, observed: Any = "", required: Any = "", why: str = "", fix: str = "", where: str = "") -> Dict[str, Any]:
    """One judged fact of a stage.

    Args:
        id: dotted name that starts with the stage, ``prefix.verdict``.
        status: pass, warn, fail, unknown (could not be looked at), skip (does not apply) or info (a number to know).
        observed, required: what was seen and what should have been, as text.
        why, fix: one sentence each.
        where: the endpoint or node that it is about.
    """
    return {
        "id": id, "status": status, "where": _text(where), "observed": _text(observed), "required": _text(required),
        "why": _text(why), "fix": _text(fix),
    }


def result(stage: str, findings: Sequence[Mapping[str, Any]], seconds: float = 0.0, data: Optional[Mapping[str, Any]] = None,
           summary: str = "") -> Dict[str, Any]:
    """A stage's result: ``{"stage", "status", "summary", "seconds", "findings", "data"}``.

    Any ``fail`` makes it failed. Any ``unknown``, or nothing that passed, makes it not verified: what was not seen is never a pass.
    """
    listed: List[Dict[str, Any]] = [dict(f) for f in findings]
    found = [f["status"] for f in listed]
    if "fail" in found:
        status = FAILED
    elif "unknown" in found or not ({"pass", "warn"} & set(found)):
        status = NOT_VERIFIED
    else:
        status = PASSED
    return {
        "stage": stage, "status": status, "summary": _text(summary or first_sentence(listed)), "seconds": round(max(0.0, seconds), 3),
        "findings": listed, "data": dict(data or {}),
    }


def not_run(stage: str, why: str) -> Dict[str, Any]:
    """The result of a stage that was left out, with the reason."""
    return result(stage, [], summary=why)


def merged(stage: str, results: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """The results of one stage at several endpoints as one: all findings, the worst status, ``data`` of each under ``endpoints``."""
    if len(results) == 1:
        return dict(results[0])
    findings = [f for one in results for f in one["findings"]]
    whole = result(stage, findings, sum(one["seconds"] for one in results), {"endpoints": [one["data"] for one in results]})
    worst = [word for word in (FAILED, NOT_VERIFIED, PASSED) if word in [one["status"] for one in results]]
    whole["status"] = worst[0] if worst else NOT_VERIFIED
    bad = [one["summary"] for one in results if one["status"] == whole["status"]]
    if bad and whole["status"] != PASSED:
        whole["summary"] = bad[0]
    return whole


def first_sentence(findings: Sequence[Mapping[str, Any]]) -> str:
    """What a reader must know first: the first failure, else the first unknown, else a warning, else the last pass."""
    for status in ("fail", "unknown", "warn"):
        for f in findings:
            if f["status"] == status:
                return "%s: %s" % (f["id"], f["observed"])
    passed = [f for f in findings if f["status"] == "pass"]
    return "%d checks passed" % len(passed) if passed else "nothing was looked at"


def scrub(value: Any, secrets: Sequence[str]) -> Any:
    """`value` (JSON types) with every occurrence of a secret replaced, also in the middle of a text."""
    known = sorted((s for s in secrets if s and len(s) >= 4), key=len, reverse=True)
    if not known:
        return value
    if isinstance(value, str):
        for secret in known:
            value = value.replace(secret, "<hidden>")
        return value
    if isinstance(value, Mapping):
        return {scrub(k, known): scrub(v, known) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(v, known) for v in value]
    return value


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"
