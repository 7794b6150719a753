# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as JUnit XML: one testsuite a stage, one testcase a finding."""

from __future__ import annotations

from typing import Any, Mapping
from xml.etree import ElementTree

from ..report.text import xml_safe


def junit(document: Mapping[str, Any]) -> str:
    """Well-formed XML for any text in the document.

    A failed finding is a ``failure``, one that could not be looked at an ``error``; a stage without findings is one skipped case, so that
    what was not run is never counted as passed. Regressions against a baseline are failures of a suite of their own.
    """
    root = ElementTree.Element("testsuites", name="inferops.vllm.verify")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for stage in document["stages"]:
        cases = [(f["id"], f["where"], f["status"], f) for f in stage["findings"]] or [
            ("stage." + stage["stage"], "", "skip", {"observed": stage["summary"], "required": "", "why": "", "fix": ""})]
        _suite(root, stage["stage"], document["generated_at"], stage["seconds"], cases, totals)
    baseline = document.get("baseline")
    if baseline:
        cases = [(row["name"], "", "fail" if row["regression"] else "pass", {
            "observed": "%s, was %s" % (row["after"], row["before"]), "required": "", "why": "", "fix": ""}) for row in baseline["rows"]]
        if cases:
            _suite(root, "baseline", document["generated_at"], 0.0, cases, totals)
    for key, value in totals.items():
        root.set(key, str(value))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, name: str, when: str, seconds: float, cases: Any, totals: Any) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=xml_safe(name), timestamp=xml_safe(when).rstrip("Z"), time="%.3f" % seconds)
    counts = {"tests": len(cases), "failures": 0, "errors": 0, "skipped": 0}
    for id, where, status, f in cases:
        title = "%s [%s]" % (id, where) if where else id
        case = ElementTree.SubElement(suite, "testcase", name=xml_safe(title), classname=xml_safe("verify." + name), time="0")
        text = xml_safe("\n".join("%s: %s" % (key, f[key]) for key in ("observed", "required", "why", "fix") if f[key]))
        if status in ("fail", "unknown"):
            kind = "failure" if status == "fail" else "error"
            counts[kind + "s"] += 1
            ElementTree.SubElement(case, kind, message=xml_safe(f["observed"]), type=status).text = text
        elif status == "skip":
            counts["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=xml_safe(f["observed"]))
        elif status == "warn":
            ElementTree.SubElement(case, "system-out").text = text
    for key, value in counts.items():
        suite.set(key, str(value))
        totals[key] += value
