# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge all nodes with all checks: facts in, findings and verdicts out."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import (  # noqa: F401 (importing registers their checks, in the order of the report)
    driver, gpu, fabric, rdma, gpudirect, container, image, host, storage, plan, drift,
)
from .model import CLUSTER, REGISTRY, Check, Context, Finding, Node, Outcome, finding

REACHABLE = Check(
    id="node.reachable", severity="block", title="Node answers",
    why="A node that does not answer cannot be judged, nor serve.",
    fix="Make the node reachable for Ansible (`ansible NODE -m ansible.builtin.ping`), then run `ansible-playbook inferops.vllm.preflight` again.",
    read_from="the connection", source="https://docs.ansible.com/ansible/latest/inventory_guide/connection_details.html",
    run=lambda node, context: Outcome("pass"), cluster=False,
)


def groups() -> Tuple[str, ...]:
    """First parts of all check ids: the words that select checks by tag."""
    return tuple(dict.fromkeys(["node"] + [id.split(".")[0] for id in REGISTRY]))


def judge(nodes: Sequence[Node], context: Context, only: Optional[Iterable[str]] = None,
          without: Optional[Iterable[str]] = None) -> List[Finding]:
    """Apply every check to every node.

    Args:
        nodes: all nodes, in rank order; unreachable ones too.
        context: what they are meant to be.
        only: groups of checks to apply (first part of the id), default all.
        without: groups to leave out.

    Returns:
        findings, grouped by node in the order of `nodes`, the cluster's own last. A check that
        raises is itself an ``unknown`` finding: a fault of the rule never passes a node.
    """
    chosen = [c for c in REGISTRY.values() if _selected(c.id, only, without)]
    answering = [node for node in nodes if not node.unreachable]
    by_node: Dict[str, List[Finding]] = {node.name: [] for node in nodes}
    by_node[CLUSTER] = []
    for node in nodes:
        outcome = Outcome("fail", node.unreachable, "an answer") if node.unreachable else Outcome("pass", "answered")
        by_node[node.name].append(finding(REACHABLE, node.name, outcome))
    for rule in chosen:
        if rule.cluster:
            try:
                outcomes = rule.run(answering, context) if answering else {}
            except Exception as exc:
                outcomes = {CLUSTER: _broken(exc)}
            for name, outcome in outcomes.items():
                by_node.setdefault(name, []).append(finding(rule, name, outcome))
        else:
            for node in answering:
                try:
                    outcome = rule.run(node, context)
                except Exception as exc:
                    outcome = _broken(exc)
                by_node[node.name].append(finding(rule, node.name, outcome))
    return [f for found in by_node.values() for f in found]


def _selected(id: str, only: Optional[Iterable[str]], without: Optional[Iterable[str]]) -> bool:
    group = id.split(".")[0]
    return (not only or group in only) and (not without or group not in without)


def _broken(exc: Exception) -> Outcome:
    return Outcome("unknown", "the check itself failed: %s: %s" % (type(exc).__name__, str(exc)[:200]))


def verdicts(nodes: Sequence[Node], findings: Iterable[Finding]) -> Dict[str, str]:
    """``{node: verdict}``: unreachable, else blocked, else unknown, else warn, else ready.

    * blocked: a blocking check failed on the node.
    * unknown: nothing blocking failed, but a blocking check could not be looked at, or no check passed at all.
    """
    worst: Dict[str, int] = {node.name: 0 for node in nodes}
    looked: Dict[str, bool] = {node.name: False for node in nodes}
    for f in findings:
        name = f["node"]
        if name not in worst:
            continue
        rank = _rank(f)
        if rank == 0 and f["status"] == "pass" and f["id"] != REACHABLE.id and not f.get("assumed"):
            looked[name] = True
        worst[name] = max(worst[name], rank)
    words = ("ready", "warn", "unknown", "blocked")
    return {
        node.name: "unreachable" if node.unreachable else words[max(worst[node.name], 0 if looked[node.name] else 2)]
        for node in nodes
    }


def _rank(f: Mapping[str, Any]) -> int:
    status, blocks = f["status"], f["severity"] == "block"
    if status == "fail":
        return 3 if blocks else 1 if f["severity"] == "warn" else 0
    if status == "unknown":
        return 2 if blocks else 1 if f["severity"] == "warn" else 0
    return 1 if status == "warn" else 0


def summary(verdict: Mapping[str, str], findings: Sequence[Finding]) -> Dict[str, Any]:
    """Counts: nodes by verdict, findings by status, and the ids that block, most frequent first."""
    nodes: Dict[str, int] = {}
    for word in verdict.values():
        nodes[word] = nodes.get(word, 0) + 1
    statuses: Dict[str, int] = {}
    blocking: Dict[str, int] = {}
    for f in findings:
        statuses[f["status"]] = statuses.get(f["status"], 0) + 1
        if f["severity"] == "block" and f["status"] in ("fail", "unknown"):
            blocking[f["id"]] = blocking.get(f["id"], 0) + 1
    return {
        "nodes": nodes, "findings": statuses,
        "blocking": dict(sorted(blocking.items(), key=lambda item: (-item[1], item[0]))),
    }


def exit_reason(verdict: Mapping[str, str], findings: Sequence[Finding], fail_on: str) -> str:
    """``""`` (fine), ``"blocked"`` or ``"unreachable"`` for ``preflight_fail_on`` block, warn or never.

    A cluster-wide blocker counts as blocked; blocked wins over unreachable.
    """
    if fail_on == "never":
        return ""
    words = set(verdict.values())
    bad = {"blocked", "unknown"} | ({"warn"} if fail_on == "warn" else set())
    cluster = [f for f in findings if f["node"] == CLUSTER]
    threshold = 1 if fail_on == "warn" else 2
    if words & bad or any(_rank(f) >= threshold for f in cluster):
        return "blocked"
    return "unreachable" if "unreachable" in words else ""
