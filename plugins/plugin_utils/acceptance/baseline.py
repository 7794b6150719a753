# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two acceptances side by side: what changed, and what of it is a regression."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple


class Measure(NamedTuple):
    """A number that is compared: where it stands in a step of the ramp, and which direction is worse."""

    name: str
    path: Tuple[str, ...]
    higher_is_better: bool
    percent: float


MEASURES = (
    # name, place in a step of the ramp, direction, percent of change that is a regression unless verify_regression_percent says otherwise
    Measure("output tokens/s", ("output_tps",), True, 5.0),
    Measure("first token p50 ms", ("ttft_ms", "p50"), False, 10.0),
    Measure("first token p95 ms", ("ttft_ms", "p95"), False, 15.0),
    Measure("between tokens p50 ms", ("itl_ms", "p50"), False, 10.0),
    Measure("time per output token p50 ms", ("tpot_ms", "p50"), False, 10.0),
    Measure("total p50 ms", ("e2e_ms", "p50"), False, 10.0),
    Measure("total p95 ms", ("e2e_ms", "p95"), False, 15.0),
)
FLOOR_MS = 1.0
"""Times below it are noise, whatever the percentage."""
LOAD = ("input_tokens", "output_tokens")
"""What the ramp declares of each request; steps of another load are not compared."""
SAME = ("model", "hardware", "strategy", "interconnect", "request_set")
SIZE_LIMIT = 64 * 1024 * 1024


class BaselineError(ValueError):
    """The file is no earlier acceptance; the text is one sentence."""


def load(path: str) -> Dict[str, Any]:
    """An earlier ``verify.json``.

    Raises:
        BaselineError: it cannot be read or is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(SIZE_LIMIT))
    except OSError as exc:
        raise BaselineError("verify_baseline: %s cannot be read: %s" % (path, exc.strerror or exc)) from None
    except (ValueError, RecursionError):
        raise BaselineError("verify_baseline: %s is not JSON" % path) from None
    if not isinstance(found, dict) or found.get("schema") != "inferops.vllm/verify/1" or not isinstance(found.get("stages"), list):
        raise BaselineError("verify_baseline: %s is no verify.json" % path)
    return found


def compare(before: Mapping[str, Any], after: Mapping[str, Any], percent: Optional[float] = None, name: str = "") -> Dict[str, Any]:
    """Differences of two documents.

    Args:
        before, after: documents; only `after` is trusted to be of our shape.
        percent: one threshold for every number, instead of each one's own.
        name: of the baseline's file.

    Returns:
        ``{"file", "generated_at", "other": what is not the same in the two records, "rows": [{"name", "before", "after", "change_percent",
        "limit_percent", "regression"}], "regressions": [names]}``.
    """
    rows: List[Dict[str, Any]] = []
    old_stages = {s.get("stage"): s for s in before.get("stages") or [] if isinstance(s, Mapping)}
    for stage in after["stages"]:
        was = old_stages.get(stage["stage"], {}).get("status")
        if was is not None and (was, stage["status"]) != (stage["status"], was):
            rows.append({"name": "stage %s" % stage["stage"], "before": was, "after": stage["status"], "change_percent": None, "limit_percent": None,
                         "regression": was == "passed" and stage["status"] == "failed"})
    old_levels, new_levels = levels(before), levels(after)
    old_load, new_load = load_of(before), load_of(after)
    other = ["%s: %s, was %s" % (key, new_load[key], old_load[key]) for key in LOAD if old_levels and new_levels and new_load[key] != old_load[key]]
    for streams in sorted(set(old_levels) & set(new_levels)) if not other else []:
        for measure in MEASURES:
            row = _row(measure, streams, old_levels[streams], new_levels[streams], percent)
            if row is not None:
                rows.append(row)
    old_record, new_record = before.get("record") or {}, after.get("record") or {}
    other += ["%s: %s, was %s" % (key, new_record.get(key), old_record.get(key)) for key in (*SAME, "image_digest", "driver", "vllm", "plan_sha256")
              if isinstance(old_record, Mapping) and old_record.get(key) != new_record.get(key)]
    return {"file": name, "generated_at": str(before.get("generated_at") or ""), "other": other, "rows": rows,
            "regressions": [row["name"] for row in rows if row["regression"]]}


def levels(document: Mapping[str, Any]) -> Dict[int, Mapping[str, Any]]:
    """Steps of the ramp by number of streams."""
    found: Dict[int, Mapping[str, Any]] = {}
    for level in _ramp(document).get("levels") or []:
        if isinstance(level, Mapping) and isinstance(level.get("concurrency"), int) and not level.get("over_budget"):
            found[level["concurrency"]] = level
    return found


def load_of(document: Mapping[str, Any]) -> Dict[str, Any]:
    """The declared lengths of the ramp's requests, None where they are not told."""
    data = _ramp(document)
    return {key: data.get(key) for key in LOAD}


def _ramp(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Data of stage 4, empty when there is none."""
    for stage in document.get("stages") or []:
        if isinstance(stage, Mapping) and stage.get("stage") == "concurrency" and isinstance(stage.get("data"), Mapping):
            data: Mapping[str, Any] = stage["data"]
            return data
    return {}


def _row(measure: Measure, streams: int, before: Mapping[str, Any], after: Mapping[str, Any], percent: Optional[float]) -> Optional[Dict[str, Any]]:
    old, new = _at(before, measure.path), _at(after, measure.path)
    if old is None or new is None or old <= 0:
        return None
    change = 100.0 * (new - old) / old
    limit = measure.percent if percent is None else percent
    worse = -change if measure.higher_is_better else change
    small = not measure.higher_is_better and abs(new - old) < FLOOR_MS
    return {"name": "%s at %d streams" % (measure.name, streams), "before": round(old, 3), "after": round(new, 3), "change_percent": round(change, 1),
            "limit_percent": limit, "regression": worse > limit and not small}


def _at(level: Mapping[str, Any], path: Tuple[str, ...]) -> Optional[float]:
    value: Any = level
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
