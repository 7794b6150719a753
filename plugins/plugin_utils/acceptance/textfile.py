# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict for the textfile collector of node_exporter."""

from __future__ import annotations

import datetime
from typing import Any, List, Mapping

from .console import ramps


def textfile(document: Mapping[str, Any]) -> str:
    """Metrics in Prometheus' text format. A stage that was not verified has no ``passed`` of 1, and ``verified`` of 0."""
    model = label(document["record"].get("model") or "")
    lines: List[str] = []

    def family(name: str, help_text: str, samples: List[str]) -> None:
        if samples:
            lines.append("# HELP %s %s" % (name, help_text))
            lines.append("# TYPE %s gauge" % name)
            lines.extend(name + sample for sample in samples)

    when = datetime.datetime.strptime(document["generated_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    family("inferops_vllm_verify_timestamp_seconds", "When the acceptance was run.", ['{model="%s"} %d' % (model, when.timestamp())])
    family("inferops_vllm_verify_passed", "1 when the stage passed, 0 when it failed or was not verified.", [
        '{model="%s",stage="%s"} %d' % (model, s["stage"], s["status"] == "passed") for s in document["stages"]])
    family("inferops_vllm_verify_verified", "1 when the stage was run and came to a result.", [
        '{model="%s",stage="%s"} %d' % (model, s["stage"], s["status"] != "not_verified") for s in document["stages"]])
    last = [(ramp, ramp["levels"][-1]) for ramp in ramps(document)][:1]
    family("inferops_vllm_verify_streams", "Streams of the last step of the ramp.", ['{model="%s"} %d' % (model, lv["concurrency"]) for _r, lv in last])
    family("inferops_vllm_verify_output_tokens_per_second", "Throughput of the last step of the ramp.", [
        '{model="%s"} %s' % (model, lv["output_tps"]) for _r, lv in last])
    family("inferops_vllm_verify_ttft_seconds", "Time to the first token in the last step of the ramp.", [
        '{model="%s",quantile="%s"} %g' % (model, share, lv["ttft_ms"][name] / 1000.0)
        for _r, lv in last for name, share in (("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99")) if lv["ttft_ms"][name] is not None])
    if document.get("baseline"):
        family("inferops_vllm_verify_regressions", "Regressions against the baseline.", ['{model="%s"} %d' % (model, len(document["baseline"]["regressions"]))])
    return "\n".join(lines) + "\n"


def label(value: Any) -> str:
    """A text as the value of a label."""
    return str(value)[:200].replace("\\", "\\\\").replace("\n", " ").replace('"', '\\"')
