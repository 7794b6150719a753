# SPDX-License-Identifier: GPL-3.0-or-later
"""In which state the driver of a node is, from what was read of it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node
from ansible_collections.inferops.vllm.plugins.module_utils.node.driver import DAMAGED
from ansible_collections.inferops.vllm.plugins.module_utils.plan.resolve import resolve
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.state import state_of

CONTEXT = resolve({"vllm_hardware": "b300"}, [])
SOUND = {
    "loaded": "580.126.20", "loaded_flavour": "open", "installed": "580.126.20", "installed_flavour": "open", "installed_for_kernel": True, "mismatch": False,
}
BARE = {"loaded": None, "installed": None, "installed_flavour": None, "installed_for_kernel": False}


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, "ok"),
    ({"loaded": "580.95.05"}, "pending"),
    ({"loaded": None}, "pending"),
    ({"mismatch": True}, "pending"),
    ({"installed_flavour": "proprietary"}, "proprietary"),
    ({"installed": "575.57.08", "loaded": "575.57.08"}, "old"),
    ({"installed_for_kernel": False}, "not_built"),
    (BARE, "absent"),
    ({**BARE, "unknown": {"installed": DAMAGED}}, "not_built"),
    ({**BARE, "installed_for_kernel": None, "unknown": {"installed": "modinfo timed out"}}, "unknown"),
])
def test_state_of_the_driver(changes: dict[str, Any], expected: str) -> None:
    assert state_of(Node("a", {"driver": {**SOUND, **changes}}, {}), CONTEXT).driver == expected


@pytest.mark.parametrize(("holders", "expected"), [
    ([{"pid": 7, "comm": "VLLM::EngineCor", "orphan": True}], "orphans"),
    # Another's server runs above it.
    ([{"pid": 7, "comm": "VLLM::EngineCor"}], "foreign"),
    ([{"pid": 7, "comm": "VLLM::EngineCor", "orphan": True}, {"pid": 8, "comm": "VLLM::EngineCor"}], "foreign"),
    ([], "none")])
def test_who_has_the_gpus_open(holders: list[dict[str, Any]], expected: str) -> None:
    facts = {"gpu": {"holders": holders}, "service": {"units": [{"name": "vllm.service", "active": "failed"}], "processes": []}}
    assert state_of(Node("a", facts, {}), CONTEXT).holders == expected
