# SPDX-License-Identifier: GPL-3.0-or-later
"""What the report says of findings that nobody could read."""

from __future__ import annotations

from typing import Any

from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node
from ansible_collections.inferops.vllm.plugins.module_utils.plan.resolve import resolve
from ansible_collections.inferops.vllm.plugins.module_utils.remedies import journal
from ansible_collections.inferops.vllm.plugins.plugin_utils.remediation import Request, cases_of, interrupted, tell_failed, unread

NOW = 1.8e9


def finding(id: str, status: str, severity: str = "block", node: str = "a") -> dict[str, Any]:
    return {"id": id, "node": node, "status": status, "severity": severity}


def test_one_that_could_not_be_read_is_named_and_does_not_hide_the_others() -> None:
    step, blind = unread("a", [finding("driver.branch", "pass"), finding("fabric.nvlsm", "unknown"), finding("gpu.count", "unknown", node="b")], Request())
    assert step["problems"] == ["fabric.nvlsm"] and step["kind"] == "person" and not blind


def test_a_node_of_which_nothing_could_be_read_is_blind() -> None:
    findings = [finding("driver.branch", "unknown"), finding("driver.nouveau", "unknown"), finding("driver.secure_boot", "skip"), finding("rdma.ports", "pass")]
    assert unread("a", findings, Request())[1] is False
    step, blind = unread("a", findings, Request(areas=("driver",)))
    assert step["problems"] == ["driver.branch", "driver.nouveau"] and blind


def test_nothing_is_said_where_all_was_read_or_nothing_blocks() -> None:
    assert unread("a", [finding("driver.branch", "fail"), finding("gpu.throttle", "unknown", "warn")], Request()) == ({}, False)


def test_a_state_file_of_another_machine_is_refused_and_nothing_of_it_is_gone_on_with() -> None:
    entry = {"remedy": "memlock", "problems": [], "run": "r", "started": NOW - 60, "phase": "applying", "details": {}}
    text = journal.render({"schema": journal.SCHEMA, "machine": "m", "current": entry, "history": []})
    for foreign, refused in ((True, journal.FOREIGN), (False, ""), (None, "")):
        node = Node("a", {"service": {"remediation": text, "remediation_foreign": foreign}}, {})
        case = cases_of([node], resolve({}, []), [], Request(), {}, {}, NOW)[0]
        assert case.refused == refused and bool(interrupted(node, NOW)) is not bool(refused)


def test_what_was_tried_in_vain_says_why() -> None:
    def left() -> list[dict[str, Any]]:
        return [{"problems": ["driver.branch"], "kind": "remedy", "remedy": "driver_repair", "why": "Finish the half-configured packages."}]

    def rounds(**outcome: Any) -> list[dict[str, Any]]:
        found = {"mended": False, "unmended": [], "worse": [], "why": "", **outcome}
        return [{"remedy": "driver_repair", "act": ["a"], "outcomes": {"a": found, "b": found}}]

    def said(outcome: dict[str, Any], node: str = "a") -> tuple[str, str]:
        steps = left()
        tell_failed(steps, node, rounds(**outcome))
        return steps[0]["kind"], steps[0]["why"]

    assert said({"why": "no space left"}) == ("given_up", "Finish the half-configured packages: no space left")
    assert said({"unmended": ["driver.build_ready"]}) == ("given_up", "Finish the half-configured packages: still not good: driver.build_ready")
    assert said({"mended": True})[0] == said({}, "b")[0] == "remedy", "what went well, or was not its turn, may be done again"
