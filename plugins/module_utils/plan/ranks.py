# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ranks and heads: the order of the inventory, or what hosts declare."""

from __future__ import annotations

from typing import Dict, Sequence, Tuple

from ..checks.model import Node
from ..checks.wording import listed, short
from .notes import Notes


def ordered(group: str, nodes: Sequence[Node], notes: Notes) -> Tuple[Node, ...]:
    """Nodes in rank order: the inventory's, or that of vllm_rank or vllm_role where hosts declare them.

    What contradicts itself (two heads, no head, ranks twice or missing) is refused in `notes`.
    """
    ranks: Dict[str, int] = {}
    for node in nodes:
        value = node.declared.get("rank")
        if value in (None, ""):
            continue
        if isinstance(value, bool) or not str(value).isascii() or not str(value).isdigit() or len(str(value)) > 6:
            notes.refuse("vllm_rank of %s is no rank" % node.name, "vllm_rank: %s" % short(repr(value), 60))
            return tuple(nodes)
        ranks[node.name] = int(value)
    if ranks:
        for rank in sorted(set(ranks.values())):
            same = [name for name, other in ranks.items() if other == rank]
            if len(same) > 1:
                notes.refuse("rank %d is given to %d hosts of %s" % (rank, len(same), group), *["vllm_rank of %s: %d" % (
                    name, rank) for name in same])
                return tuple(nodes)
        if sorted(ranks.values()) != list(range(len(nodes))):
            notes.refuse("the ranks of %s are not 0 to %d, each once" % (group, len(nodes) - 1), "vllm_rank: %s" % listed(
                ("%s %s" % (node.name, ranks.get(node.name, "not declared")) for node in nodes), 8))
            return tuple(nodes)
        nodes = sorted(nodes, key=lambda node: ranks[node.name])
    return _with_head(group, nodes, bool(ranks), notes)


def _with_head(group: str, nodes: Sequence[Node], ranked: bool, notes: Notes) -> Tuple[Node, ...]:
    roles = {node.name: node.declared.get("role") for node in nodes if node.declared.get("role") not in (None, "")}
    for name, role in roles.items():
        if role not in ("head", "worker"):
            notes.refuse("vllm_role of %s is not head or worker" % name, "vllm_role: %s" % short(repr(role), 60))
            return tuple(nodes)
    heads = [name for name, role in roles.items() if role == "head"]
    if len(heads) > 1:
        notes.refuse("%s has %d heads" % (group, len(heads)), *["vllm_role of %s: head" % name for name in heads])
    elif roles and not heads and len(roles) == len(nodes):
        notes.refuse("%s has no head" % group, *["vllm_role of %s: worker" % name for name in list(roles)[:4]])
    elif heads and nodes[0].name != heads[0]:
        if ranked:
            notes.refuse("the head of %s is not its rank 0" % group, "vllm_role of %s: head" % heads[0], "vllm_rank of %s: 0" % nodes[0].name)
        else:
            return tuple(sorted(nodes, key=lambda node: node.name != heads[0]))
    elif roles.get(nodes[0].name if nodes else "") == "worker":
        notes.refuse("the first host of %s is the head, and it is declared a worker" % group, "vllm_role of %s: worker" % nodes[0].name)
    return tuple(nodes)
