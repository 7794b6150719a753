# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply one check to facts, the way the tests of checks do it."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import REGISTRY, Context, Node

from .healthy import b300_context

Finding = Dict[str, Any]


def one(id: str, facts: Mapping[str, Any], context: Optional[Context] = None, name: str = "node1") -> Finding:
    """Finding of the check `id` on one node with `facts`."""
    found = [f for f in judge.judge([Node(name, facts)], context or b300_context(), only=[id.split(".")[0]]) if f["id"] == id]
    assert len(found) == 1, "%s gave %d findings" % (id, len(found))
    assert len(found[0]["observed"]) < 120 and found[0]["observed"].isprintable(), found[0]["observed"]
    assert found[0]["observed"], "%s says nothing" % id
    if found[0]["status"] in ("fail", "warn", "unknown"):
        assert found[0]["why"] and found[0]["fix"] and found[0]["source"].startswith("https://")
    assert id in REGISTRY
    return found[0]


def status(id: str, facts: Mapping[str, Any], context: Optional[Context] = None) -> str:
    """Its status alone."""
    return str(one(id, facts, context)["status"])


def over(id: str, facts: Mapping[str, Mapping[str, Any]], context: Context) -> Dict[str, Finding]:
    """Findings of the cluster check `id` by node, the cluster's own under ``*``."""
    nodes = [Node(name, value) for name, value in facts.items()]
    return {f["node"]: f for f in judge.judge(nodes, context, only=[id.split(".")[0]]) if f["id"] == id}


def blockers(findings: Sequence[Finding]) -> List[str]:
    """Ids of checks that block, each once, in order."""
    return list(dict.fromkeys(f["id"] for f in findings if f["severity"] == "block" and f["status"] in ("fail", "unknown")))
