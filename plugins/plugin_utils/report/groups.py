# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fold findings: the same finding on many nodes is one entry."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

CLUSTER = "*"
VERDICT_ORDER = ("blocked", "unknown", "unreachable", "warn", "ready")


class Variant(NamedTuple):
    """One wording of a finding and the nodes that have it, in the order of the document."""

    observed: str
    required: str
    read_from: str
    why: str
    fix: str
    source: str
    assumed: bool
    nodes: List[str]


class Group(NamedTuple):
    """All findings of one check that have the same weight.

    rank: 0 failed blocker, 1 unknown blocker, 2 failed or warned, 3 unknown without blocking, 4 for information.
    """

    id: str
    title: str
    status: str
    severity: str
    rank: int
    variants: List[Variant]

    @property
    def nodes(self) -> List[str]:
        return list(dict.fromkeys(name for variant in self.variants for name in variant.nodes))

    @property
    def drift(self) -> bool:
        return self.id.startswith("drift.")


def rank(f: Mapping[str, Any]) -> int:
    """Weight of a finding that is not pass or skip, 0 is the heaviest; 9 for pass and skip."""
    status, severity = f["status"], f["severity"]
    if status not in ("fail", "warn", "unknown"):
        return 9
    if severity == "info":
        return 4
    if severity == "block" and status != "warn":
        return 0 if status == "fail" else 1
    return 3 if status == "unknown" else 2


def blocks(f: Mapping[str, Any]) -> bool:
    """True for a blocker that failed or could not be looked at."""
    return rank(f) <= 1


NODE = "\0"
"""Stands in the text of a fix where the node's own name stood."""


def general(fix: str, node: str) -> str:
    """`fix` with the name of its node, where it stands as a word, as :data:`NODE`; so equal fixes of many nodes fold into one."""
    if not node or node == CLUSTER or node not in fix:
        return fix
    return re.sub(r"(?<![\w.-])" + re.escape(node) + r"(?![\w-]|\.\w)", NODE, fix)


def particular(fix: str, nodes: List[str]) -> str:
    """`fix` for these nodes: a few names joined as Ansible's --limit takes them, else the word NODES."""
    if NODE not in fix:
        return fix
    return fix.replace(NODE, ",".join(nodes) if len(nodes) <= 4 else "NODES")


def problems(document: Mapping[str, Any]) -> List[Group]:
    """Everything that is not pass or skip, heaviest first, then by number of nodes."""
    titles = document.get("checks", {})
    groups: Dict[Tuple[Any, ...], Group] = {}
    variants: Dict[Tuple[Any, ...], Variant] = {}
    for f in document["findings"]:
        weight = rank(f)
        if weight == 9:
            continue
        key = (f["id"], f["status"], f["severity"])
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(f["id"], titles.get(f["id"], ""), f["status"], f["severity"], weight, [])
        said = (f["observed"], f["required"], f["read_from"], f["why"], general(f["fix"], f["node"]), f["source"], bool(f.get("assumed")))
        variant = variants.get(key + said)
        if variant is None:
            variant = variants[key + said] = Variant(*said, nodes=[])
            group.variants.append(variant)
        variant.nodes.append(f["node"])
    for group in groups.values():
        group.variants[:] = [v._replace(fix=particular(v.fix, v.nodes)) for v in group.variants]
        group.variants.sort(key=lambda v: -len(v.nodes))
    # sorted() is stable: checks with equal weight keep the order in which they were judged.
    return sorted(groups.values(), key=lambda g: (g.rank, -len(g.nodes)))


class Unread(NamedTuple):
    """Checks that one reason kept from being looked at, on the same nodes."""

    reason: str
    ids: List[str]
    nodes: List[str]
    rank: int


def split_unread(groups: List[Group]) -> Tuple[List[Group], List[Unread]]:
    """Take apart what one reason hides: a hung nvidia-smi makes ten checks unknown and is one thing to say.

    Returns:
        the groups without those variants, and one Unread for every reason that hides at least two checks
        of the same weight on the same nodes.
    """
    found: Dict[Tuple[Any, ...], List[str]] = {}
    for group in groups:
        if group.status == "unknown" and not group.drift:
            for variant in group.variants:
                found.setdefault((group.rank, variant.observed, tuple(variant.nodes)), []).append(group.id)
    shared = {key: list(dict.fromkeys(ids)) for key, ids in found.items() if len(set(ids)) > 1}
    kept: List[Group] = []
    for group in groups:
        variants = group.variants
        if group.status == "unknown" and not group.drift:
            variants = [v for v in variants if (group.rank, v.observed, tuple(v.nodes)) not in shared]
        if variants:
            kept.append(group._replace(variants=variants))
    return kept, [Unread(key[1], ids, list(key[2]), key[0]) for key, ids in shared.items()]


def node_counts(document: Mapping[str, Any]) -> Dict[str, Dict[str, int]]:
    """``{node: {"block": n, "warn": n, "unknown": n, "pass": n}}``; `block` counts blockers that failed or are unknown."""
    counts = {name: {"block": 0, "warn": 0, "unknown": 0, "pass": 0} for name in document["nodes"]}
    for f in document["findings"]:
        here = counts.get(f["node"])
        if here is None:
            continue
        weight = rank(f)
        if f["status"] == "pass":
            here["pass"] += 1
        elif weight == 0:
            here["block"] += 1
        elif weight in (1, 3):
            here["unknown"] += 1
        elif weight == 2:
            here["warn"] += 1
    return counts


def headline(document: Mapping[str, Any]) -> str:
    """One sentence for the whole cluster."""
    nodes = document["summary"]["nodes"]
    total = len(document["nodes"])
    verdict = document["summary"]["verdict"]
    if not total:
        return "No node was judged"
    bad = nodes.get("blocked", 0)
    unknown, unreachable, warn = nodes.get("unknown", 0), nodes.get("unreachable", 0), nodes.get("warn", 0)
    of = "%d of %d node%s" % (bad, total, "" if total == 1 else "s")
    if bad:
        return "%s %s blocked for %s" % (of, "is" if bad == 1 else "are", document["profile"])
    if verdict == "blocked":
        return "No node is blocked by itself, but the cluster is, for %s" % document["profile"]
    if unknown:
        return "%d of %d nodes could not be judged" % (unknown, total)
    if verdict == "unknown":
        return "Something about the cluster could not be judged"
    if unreachable:
        return "%d of %d nodes did not answer" % (unreachable, total)
    fit = "The node is" if total == 1 else "All %d nodes are" % total
    if verdict == "warn" and total == 1:
        return "The node is fit for %s, with warnings" % document["profile"]
    if verdict == "warn":
        return "%s fit for %s, %s" % (fit, document["profile"], "%d with warnings" % warn if warn else "with warnings about the cluster")
    return "%s ready for %s" % (fit, document["profile"])


def assumed(document: Mapping[str, Any]) -> Dict[str, str]:
    """``{variable: how it was concluded}`` of the values that nobody declared."""
    context = document["context"]
    found: Dict[str, str] = {}
    for name in ("hardware", "strategy", "interconnect", "variant"):
        source = context["sources"].get(name) or context["sources"].get("vllm_" + name) or ""
        if source and source != "declared":
            found[name] = source
    return found


def counted(document: Mapping[str, Any]) -> List[Tuple[str, int]]:
    """Verdicts that occur and how often, worst first."""
    nodes = document["summary"]["nodes"]
    return [(word, nodes[word]) for word in VERDICT_ORDER if nodes.get(word)]
