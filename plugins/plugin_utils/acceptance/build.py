# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the document of an acceptance out of the results of its stages."""

from __future__ import annotations

import datetime
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.inferops.vllm.plugins.module_utils.serving import start
from ansible_collections.inferops.vllm.plugins.module_utils.serving.requests import FEATURES
from ansible_collections.inferops.vllm.plugins.module_utils.serving.result import FAILED, NOT_VERIFIED, PASSED, STAGES, not_run
from ansible_collections.inferops.vllm.plugins.module_utils.serving.wire import whole_number

SCHEMA = "inferops.vllm/verify/1"
STREAMS = 8
"""Streams at once that a cluster must hold when nobody says how many."""
TITLES = {"start": "Start", "request": "Request", "prefix": "Prefix cache", "concurrency": "Concurrency", "stability": "Stability"}


def document(stages: Mapping[str, Mapping[str, Any]], record: Mapping[str, Any], now: float,
             baseline: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    """The content of ``verify.json`` (``docs/schemas/verify-1.schema.json``).

    Args:
        stages: results by name; a stage that is missing was not run, and is not verified.
        record: from :func:`record`.
        now: seconds since the epoch.
        baseline: from ``baseline.compare``, None for no comparison.
    """
    listed = [dict(stages[name]) if name in stages else not_run(name, "not run") for name in STAGES]
    return {
        "schema": SCHEMA,
        "generated_at": datetime.datetime.fromtimestamp(int(now), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "verdict": verdict(listed),
        "record": dict(record),
        "stages": listed,
        "baseline": dict(baseline) if baseline is not None else None,
    }


def verdict(stages: Sequence[Mapping[str, Any]]) -> str:
    """failed when a stage failed, passed when all five passed, else not verified."""
    found = [stage["status"] for stage in stages]
    if FAILED in found:
        return FAILED
    return PASSED if found and all(status == PASSED for status in found) else NOT_VERIFIED


def record(plan: Mapping[str, Any], plan_sha256: str, readings: Mapping[str, Any], request_set: str, versions: Sequence[str]) -> Dict[str, Any]:
    """What two acceptances must have in common to be compared, and what makes each one's numbers its own."""
    nodes = plan.get("nodes") or {}
    images = sorted({str(entry.get("image")) for entry in nodes.values() if isinstance(entry, Mapping) and entry.get("image")})
    running = sorted({str(c.get("image")) for reading in readings.values() if isinstance(reading, Mapping)
                      for c in reading.get("containers") or [] if str(c.get("status", "")).startswith("Up")})
    drivers = sorted({str(reading.get("driver")) for reading in readings.values() if isinstance(reading, Mapping) and reading.get("driver")})
    digests = sorted({match.group() for name in images + running for match in [re.search(r"sha256:[0-9a-f]{64}", name)] if match})
    return {
        "model": plan.get("model"), "image": images, "image_digest": digests, "driver": drivers, "vllm": sorted(set(versions)),
        "plan_sha256": plan_sha256 or None, "request_set": request_set or None, "hardware": plan.get("hardware"), "strategy": plan.get("strategy"),
        "interconnect": plan.get("interconnect"), "nodes": list(nodes) or sorted(readings),
    }


def prepared(plan: Mapping[str, Any]) -> Dict[str, Any]:
    """What the modules are told, out of plan.json.

    Returns:
        ``{"endpoints", "route", "model", "version", "features", "flags", "engine", "units": {node: unit}, "engines": [{"name", "nodes"}],
        "concurrency"}``; the last is :data:`STREAMS`, or the slots of all engines where these are fewer.
    """
    nodes = {str(name): entry for name, entry in (plan.get("nodes") or {}).items() if isinstance(entry, Mapping)}
    given: Dict[str, str] = {}
    for entry in nodes.values():
        if entry.get("role") != "router":
            given = start.flags(entry.get("argv") or [])
            break
    names = given.get("served-model-name", "").split()
    endpoints: List[str] = []
    route = ""
    for entry in nodes.values():
        url = str(entry.get("health_url") or "")
        if not url:
            continue
        base = re.sub(r"/(?:health|ping)\Z", "", url)
        if entry.get("role") == "router":
            route = base
        elif entry.get("role") in ("head", "worker", None, "prefill", "decode") and base not in endpoints:
            # One half of a disaggregated pair answers no request of its own.
            if not any(other.get("role") == "router" for other in nodes.values()) or entry.get("role") in ("head", "worker"):
                endpoints.append(base)
    engines = [{"name": e.get("name"), "nodes": e.get("nodes")} for e in plan.get("engines") or [] if isinstance(e, Mapping)]
    slots = whole_number(given.get("max-num-seqs", ""), 6) or 0
    return {
        "endpoints": endpoints, "route": route, "model": names[0] if names else given.get("model", str(plan.get("model") or "")),
        "version": str(plan.get("vllm_version") or ""), "features": [str(f) for f in plan.get("features", FEATURES) or []], "flags": given,
        "engine": next((str(e.get("container_engine")) for e in nodes.values() if e.get("container_engine")), "none"),
        "units": {name: "vllm-router.service" if e.get("role") == "router" else "vllm.service" for name, e in nodes.items()},
        "engines": engines, "concurrency": min(STREAMS, slots * (whole_number(given.get("data-parallel-size", ""), 4) or 1) * len(engines)) or STREAMS,
    }
