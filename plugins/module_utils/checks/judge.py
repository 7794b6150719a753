# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge all nodes with all checks: facts in, findings and verdicts out."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import container, drift, driver, fabric, gpu, gpudirect, host, image, plan, rdma, storage
from .model import CLUSTER, REGISTRY, SEVERITIES, STATUSES, Check, Context, Finding, Node, Outcome, finding

AREAS = (driver, gpu, fabric, rdma, gpudirect, container, image, host, storage, plan, drift)
"""Modules that register checks when they are imported, in the order of the report."""
_ORDER = {area.__name__.rsplit(".", 1)[-1]: i for i, area in enumerate(AREAS)}

REACHABLE = Check(
    id="node.reachable", severity="block", title="Node answers",
    why="A node that does not answer cannot be judged, nor serve.",
    fix="Make the node reachable (`ansible NODE -m ansible.builtin.ping`), then run `ansible-playbook inferops.vllm.preflight` again.",
    read_from="the connection", source="https://docs.ansible.com/ansible/latest/inventory_guide/connection_details.html",
    run=lambda node, context: Outcome("pass"), cluster=False,
)


def checks() -> List[Check]:
    """All checks in the order of the report."""
    return sorted(REGISTRY.values(), key=lambda rule: _ORDER.get(rule.id.split(".")[0], len(_ORDER)))


def groups() -> Tuple[str, ...]:
    """First parts of all check ids: the words that select checks by tag."""
    return tuple(dict.fromkeys(["node"] + [rule.id.split(".")[0] for rule in checks()]))


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
    chosen = _selected(only, without)
    answering = [node for node in nodes if not node.unreachable]
    by_node: Dict[str, List[Finding]] = {node.name: [] for node in nodes}
    by_node[CLUSTER] = []
    for node in nodes:
        outcome = Outcome("fail", node.unreachable, "an answer") if node.unreachable else Outcome("pass", "answered")
        by_node[node.name].append(finding(REACHABLE, node.name, outcome))
    for rule in chosen:
        if rule.cluster:
            for name, outcome in _of_cluster(rule, answering, context).items():
                # A rule that names a node that does not exist speaks of the cluster.
                by_node.get(name, by_node[CLUSTER]).append(finding(rule, name if name in by_node else CLUSTER, outcome))
        else:
            for node in answering:
                by_node[node.name].append(finding(rule, node.name, _of_node(rule, node, context)))
    return [f for found in by_node.values() for f in found]


def _selected(only: Optional[Iterable[str]], without: Optional[Iterable[str]]) -> List[Check]:
    wanted, unwanted = set(only or ()), set(without or ())
    return [rule for rule in checks() if (not wanted or rule.id.split(".")[0] in wanted) and rule.id.split(".")[0] not in unwanted]


def _of_node(rule: Check, node: Node, context: Context) -> Outcome:
    try:
        outcome = rule.run(node, context)
    except Exception as exc:
        return _broken(exc)
    return outcome if _sound(outcome) else _nonsense(outcome)


def _of_cluster(rule: Check, nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
    if not nodes:
        return {}
    try:
        outcomes = rule.run(nodes, context)
    except Exception as exc:
        return {CLUSTER: _broken(exc)}
    if not isinstance(outcomes, dict):
        return {CLUSTER: _nonsense(outcomes)}
    return {name: outcome if _sound(outcome) else _nonsense(outcome) for name, outcome in outcomes.items()}


def _sound(outcome: Any) -> bool:
    return isinstance(outcome, Outcome) and outcome.status in STATUSES and (outcome.severity is None or outcome.severity in SEVERITIES)


def _broken(exc: Exception) -> Outcome:
    return Outcome("unknown", "the check itself failed: %s: %s" % (type(exc).__name__, str(exc)[:80]))


def _nonsense(outcome: Any) -> Outcome:
    return Outcome("unknown", "the check itself failed: it answered %s" % str(outcome)[:60])


def verdicts(nodes: Sequence[Node], findings: Iterable[Finding]) -> Dict[str, str]:
    """``{node: verdict}``: unreachable, else blocked, else unknown, else warn, else ready.

    * blocked: a blocking check failed on the node, or it answered and could not be read.
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
        node.name: "unreachable" if node.unreachable and not node.answered else words[max(worst[node.name], 0 if looked[node.name] else 2)]
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

    A cluster-wide blocker counts as blocked, and so does a run that judged no node; blocked wins over unreachable.
    """
    if fail_on == "never":
        return ""
    if not verdict:
        return "blocked"
    words = set(verdict.values())
    bad = {"blocked", "unknown"} | ({"warn"} if fail_on == "warn" else set())
    cluster = [f for f in findings if f["node"] == CLUSTER]
    threshold = 1 if fail_on == "warn" else 2
    if words & bad or any(_rank(f) >= threshold for f in cluster):
        return "blocked"
    return "unreachable" if "unreachable" in words else ""
