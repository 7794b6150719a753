# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as JUnit XML: one testsuite a node, one testcase a check."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping
from xml.etree import ElementTree

from .groups import CLUSTER, blocks, rank
from .text import xml_safe


def junit(document: Mapping[str, Any]) -> str:
    """Well-formed XML for any text in the document.

    A blocker that failed or could not be looked at is a ``failure`` (its type says which), a check
    that does not apply is ``skipped``, and a warning passes with its text in ``system-out``. Times are 0: the
    facts were gathered before anything was judged. Characters that XML cannot hold are shown as ``?``.
    """
    suites: Dict[str, List[Mapping[str, Any]]] = {name: [] for name in document["nodes"]}
    for f in document["findings"]:
        suites.setdefault(f["node"], []).append(f)
    root = ElementTree.Element("testsuites", name="inferops.vllm.preflight")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    stamp = xml_safe(document["generated_at"]).rstrip("Z")
    for name, findings in suites.items():
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=xml_safe("cluster" if name == CLUSTER else name),
            timestamp=stamp,
            hostname=xml_safe("cluster" if name == CLUSTER else name),
            time="0",
        )
        counts = {"tests": len(findings), "failures": 0, "errors": 0, "skipped": 0}
        for f in findings:
            case = ElementTree.SubElement(
                suite, "testcase", name=xml_safe(f["id"]), classname=xml_safe("preflight." + f["id"].partition(".")[0]), time="0"
            )
            if f["status"] == "skip":
                counts["skipped"] += 1
                ElementTree.SubElement(case, "skipped", message=xml_safe(f["observed"]))
            elif blocks(f):
                counts["failures"] += 1
                message = "%s, required: %s" % (f["observed"], f["required"]) if f["required"] else f["observed"]
                failure = ElementTree.SubElement(case, "failure", message=xml_safe(message), type=xml_safe(f["status"]))
                failure.text = _text(f)
            elif rank(f) < 9:
                ElementTree.SubElement(case, "system-out").text = _text(f)
        for key, value in counts.items():
            suite.set(key, str(value))
            totals[key] += value
    for key, value in totals.items():
        root.set(key, str(value))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _text(f: Mapping[str, Any]) -> str:
    return xml_safe(
        "\n".join("%s: %s" % (name, f[name]) for name in ("status", "observed", "required", "read_from", "why", "fix", "source") if f[name])
    )
