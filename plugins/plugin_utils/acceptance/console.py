# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report for a terminal."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple

from ..report.text import cut, fold, pad, plain, wrap
from .build import TITLES

Line = Tuple[str, Optional[str]]
COLORS = {"passed": "green", "failed": "red", "not_verified": "purple"}
SIGNS = {"passed": "✔", "failed": "✘", "not_verified": "?"}
MOST_FINDINGS = 30


def words(status: str) -> str:
    """A status as a person reads it."""
    return status.replace("_", " ")


def terminal(document: Mapping[str, Any], width: int = 110, where: str = "") -> List[Line]:
    """The report as ``[(text, colour name of Ansible or None)]``: verdict, one line a stage, then everything that is not fine."""
    lines: List[Line] = []
    verdict = document["verdict"]
    record = document["record"]
    lines.append(("%s %s: %s" % (SIGNS.get(verdict, "?"), words(verdict).upper(), plain(record.get("model") or "vLLM")), COLORS.get(verdict)))
    about = [plain(record.get(name)) for name in ("hardware", "strategy", "interconnect") if record.get(name)]
    about += ["vLLM %s" % ", ".join(map(plain, record.get("vllm") or []))] if record.get("vllm") else []
    lines.append((cut("  %s · %s" % (" · ".join(about) or "no plan", document["generated_at"]), width), None))
    lines.append(("", None))
    for number, stage in enumerate(document["stages"], 1):
        status = stage["status"]
        head = "%s %d %s %s %s" % (SIGNS.get(status, "?"), number, pad(TITLES[stage["stage"]], 13), pad(words(status), 13),
                                   "%6.1f s" % stage["seconds"] if stage["seconds"] else "        ")
        for position, text in enumerate(wrap(plain(stage["summary"]), max(30, width - 44), 3) or [""]):
            lines.append((("%s  %s" % (head, text) if not position else " " * 44 + text).rstrip(), COLORS.get(status)))
    for title, kind, color in (("What failed", "fail", "red"), ("What could not be looked at", "unknown", "purple"), ("Worth a look", "warn", "yellow")):
        found = [f for stage in document["stages"] for f in stage["findings"] if f["status"] == kind]
        if found:
            lines += [("", None), (title, color)]
            lines += _findings(found, width)
    lines += _levels(document, width)
    lines += _baseline(document.get("baseline"), width)
    if where:
        lines += [("", None)] + [(text, None) for text in wrap("Details: " + plain(where), width)]
    return lines


def _findings(found: List[Mapping[str, Any]], width: int) -> List[Line]:
    lines: List[Line] = []
    groups: List[Tuple[Mapping[str, Any], List[str]]] = []
    for f in found:
        for first, names in groups:
            if (first["id"], first["observed"]) == (f["id"], f["observed"]):
                names.append(plain(f["where"]))
                break
        else:
            groups.append((f, [plain(f["where"])]))
    for f, names in groups[:MOST_FINDINGS]:
        place = fold([n for n in names if n], 60) if any(names) else ""
        lines.append((cut("  %s%s" % (plain(f["id"]), "  (%s)" % place if place else ""), width), None))
        text = plain(f["observed"]) + (" – required: %s" % plain(f["required"]) if f["required"] else "")
        lines += [("      " + line, None) for line in wrap(text, width - 6, 4)]
        if f["why"]:
            lines += [("      " + line, None) for line in wrap("why: " + plain(f["why"]), width - 6, 3)]
        if f["fix"]:
            lines += [("      " + line, "cyan") for line in wrap("fix: " + plain(f["fix"]), width - 6, 3)]
    if len(groups) > MOST_FINDINGS:
        lines.append(("  and %d more, in the report" % (len(groups) - MOST_FINDINGS), None))
    return lines


def ramps(document: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """Data of every ramp that was run."""
    data: Mapping[str, Any] = next((s["data"] for s in document["stages"] if s["stage"] == "concurrency"), {})
    return [one for one in (data.get("endpoints") or [data]) if one.get("levels")]


def number(value: Any, form: str = "%.1f") -> str:
    """A number in a table, a dash for none."""
    return form % value if isinstance(value, (int, float)) and not isinstance(value, bool) else "-"


def share(value: Any) -> str:
    """A share from 0 to 1 in percent, a dash for none."""
    return number(100 * value, "%.0f %%") if isinstance(value, (int, float)) and not isinstance(value, bool) else "-"


def _levels(document: Mapping[str, Any], width: int) -> List[Line]:
    lines: List[Line] = []
    for ramp in ramps(document):
        title = "Ramp at %s: %s input and %s output tokens" % (plain(ramp["endpoint"]), ramp["input_tokens"], ramp["output_tokens"])
        lines += [("", None), (cut(title, width), None)]
        lines.append(("  streams   tokens/s  first token ms p50/p95  between ms p50/p95   total ms p50/p95  errors  KV max", None))
        for lv in ramp["levels"]:
            lines.append((cut("  %7d %10s %22s %19s %18s %7d %7s" % (
                lv["concurrency"], number(lv["output_tps"]), "%s/%s" % (number(lv["ttft_ms"]["p50"]), number(lv["ttft_ms"]["p95"])),
                "%s/%s" % (number(lv["itl_ms"]["p50"], "%.2f"), number(lv["itl_ms"]["p95"], "%.2f")),
                "%s/%s" % (number(lv["e2e_ms"]["p50"]), number(lv["e2e_ms"]["p95"])), sum(lv["errors"].values()),
                share(lv["kv_usage_max"])), width), "red" if lv["over_budget"] else None))
    return lines


def _baseline(baseline: Optional[Mapping[str, Any]], width: int) -> List[Line]:
    if not baseline:
        return []
    bad = baseline["regressions"]
    lines: List[Line] = [("", None), (cut("Against %s of %s: %s" % (
        plain(baseline["file"]), plain(baseline["generated_at"]), "%d regressions" % len(bad) if bad else "no regression"), width), "red" if bad else "green")]
    lines += [(cut("  not the same: " + plain(text), width), "yellow") for text in baseline["other"][:8]]
    for row in [r for r in baseline["rows"] if r["regression"]][:MOST_FINDINGS]:
        change = "" if row["change_percent"] is None else " (%+.1f %%, at most %g %%)" % (row["change_percent"], row["limit_percent"])
        lines.append((cut("  %s: %s, was %s%s" % (plain(row["name"]), plain(row["after"]), plain(row["before"]), change), width), "red"))
    return lines
