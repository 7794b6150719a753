# SPDX-License-Identifier: GPL-3.0-or-later
"""What the controller takes from the registered result of node_facts."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.plugin_utils import cluster


@pytest.mark.parametrize(
    ("read", "why"),
    [
        ({}, "not read"),
        ({"unreachable": True}, "did not answer"),
        ({"unreachable": True, "msg": "Connection\n  refused"}, "did not answer: Connection refused"),
        ({"failed": True}, "could not be read"),
        ({"failed": True, "msg": "no Python"}, "could not be read: no Python"),
        ({"failed": True, "msg": "x" * 1000}, ("could not be read: " + "x" * 1000)[:300]),
    ])
def test_why_a_node_has_no_facts(read: dict[str, Any], why: str) -> None:
    assert cluster.why_silent(read) == why


@pytest.mark.parametrize(
    ("read", "facts"),
    [
        ({"ansible_facts": {"vllm_node": {"a": 1}}}, {"a": 1}),
        ({"text": '{"a": 1}'}, {"a": 1}),
        ({"text": "{"}, None),
        ({"text": "[1]"}, None),
        ({}, None),
    ])
def test_facts_given_as_facts_or_as_text(read: dict[str, Any], facts: Any) -> None:
    assert cluster.facts_of(read) == facts
