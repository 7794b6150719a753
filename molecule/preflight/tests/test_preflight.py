# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user finds after `ansible-playbook inferops.vllm.preflight -i inventories/demo`."""

from __future__ import annotations

import json
import os

import testinfra

HOST = testinfra.get_host("local://")
REPORTS = os.environ["REPORTS"]


def document():
    return json.loads(HOST.file("%s/preflight.json" % REPORTS).content_string)


def test_reports_are_written_for_people_and_machines():
    for name in ("preflight.json", "preflight.html", "preflight.md", "preflight.junit.xml"):
        report = HOST.file("%s/%s" % (REPORTS, name))
        assert report.is_file and report.size > 500, name


def test_every_demo_node_has_its_verdict():
    verdicts = {name: node["verdict"] for name, node in document()["nodes"].items()}
    assert verdicts == {
        "b300-01": "ready", "b300-02": "blocked", "b300-03": "blocked",
        "b300-04": "blocked", "b300-05": "blocked", "b300-06": "blocked",
    }


def test_the_first_cause_of_each_node_is_named():
    blocking = {}
    for finding in document()["findings"]:
        if finding["severity"] == "block" and finding["status"] in ("fail", "unknown"):
            blocking.setdefault(finding["node"], set()).add(finding["id"])
    assert "driver.branch" in blocking["b300-02"]
    assert {"gpudirect.peermem", "gpudirect.dmabuf_fallback"} & blocking["b300-03"]
    assert "gpu.count" in blocking["b300-04"]
    assert "drift.image" in blocking["b300-05"]
    assert "gpu.count" in blocking["b300-06"]
