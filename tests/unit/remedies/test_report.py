# SPDX-License-Identifier: GPL-3.0-or-later
"""What the report says of findings that nobody could read."""

from __future__ import annotations

from typing import Any

from ansible_collections.inferops.vllm.plugins.plugin_utils.remediation import Request, unread


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
