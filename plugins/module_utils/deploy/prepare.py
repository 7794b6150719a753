# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a plan to what one node is asked before it is touched. Pure; runs on the controller."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Sequence, Union
from urllib.parse import urlsplit

from ..checks.wording import listed, short
from ..plan.groups import NODE_GROUPS
from ..plan.words import DEFAULT_WEIGHTS
from ..serving.start import flags
from .names import ROUTER, SERVICE, service_of

Plan = Mapping[str, Any]


class Refused(Exception):
    """Cannot be deployed; the message is one clear sentence."""


def ranks(plan: Plan, node: str) -> List[str]:
    """All hosts of the node's engine, in rank order; the node alone for a router."""
    for engine in plan["engines"]:
        if node in engine["nodes"]:
            return list(engine["nodes"])
    return [node]


def refuse(plan: Plan, node: str, play: Collection[str], recorded: bool) -> None:
    """Raise when the plan cannot be deployed to `node` by a play on the hosts `play`.

    Raises:
        Refused: the plan is refused or not complete, the node is recorded or no part of it, or a rank is left out.
    """
    if plan.get("refused"):
        raise Refused("the plan is refused: %s" % "; ".join(str(item["why"]) for item in plan["refused"][:3]))
    refuse_recorded(node, recorded)
    entry = plan["nodes"].get(node)
    if entry is None:
        raise Refused("%s is no part of the plan; leave it out with --limit, or take it out of the groups of this collection" % node)
    if not plan.get("complete"):
        open_names = [name for name, other in plan["nodes"].items() if any("IFACE_OF_" in str(value) for value in other["env"].values())]
        raise Refused("the plan is not complete: the interface of %s is not known; declare vllm_interface" % (listed(open_names, 4) or "a node"))
    complete(node, ranks(plan, node), play)


def refuse_recorded(node: str, recorded: bool) -> None:
    """Raise for a node that is a recording.

    Raises:
        Refused: `recorded`.
    """
    if recorded:
        raise Refused("%s is a recorded node (vllm_node_root): there is no machine that could serve" % node)


def complete(node: str, peers: Sequence[str], play: Collection[str]) -> None:
    """Raise when the play leaves ranks of the node's engine out.

    Raises:
        Refused: `peers` are not all hosts of the play.
    """
    left_out = [name for name in peers if name not in play]
    if left_out:
        raise Refused("--limit leaves out %s, and the engine of %s needs all its ranks" % (listed(left_out, 4), node))


def serial(independent: bool, wanted: Any) -> Union[int, str]:
    """Hosts that are changed together: `wanted` where each is an engine of its own (`independent`), else all.

    Raises:
        Refused: `wanted` is no whole number and no percentage.
    """
    text = str(wanted).strip()
    number = text[:-1] if text.endswith("%") else text
    if isinstance(wanted, bool) or not number.isascii() or not number.isdigit() or not 1 <= int(number[:9]) <= 100000 or len(number) > 9:
        raise Refused("deploy_serial: %s is not a number of replicas such as 1, or a percentage such as 25%%" % short(repr(wanted), 40))
    if not independent:
        return "100%"
    return text if text.endswith("%") else int(text)


def independent(plan: Plan) -> bool:
    """Each node is an engine of its own."""
    return all(len(engine["nodes"]) == 1 and not engine["pool"] for engine in plan["engines"])


def listens(entry: Mapping[str, Any]) -> Dict[str, int]:
    """Ports that this rank listens on itself; a plan's ``ports`` also names those that it dials."""
    first = entry["rank"] == 0
    return {what: int(port) for what, port in entry["ports"].items() if what in ("api", "side_channel") or first}


def wanted(plan: Plan, node: str, declared: Collection[str] = ()) -> Dict[str, Any]:
    """Arguments for the look at the node: ``service``, ``source``, ``peers``, ``ports``, ``names``, ``engine``, ``image``, ``weights``.

    Args:
        declared: hosts whose address the inventory declares, so that their names do not matter.
    """
    entry = plan["nodes"][node]
    pools = any(engine["pool"] for engine in plan["engines"])
    others: Sequence[str] = [name for name in (plan["nodes"] if pools else ranks(plan, node)) if name != node]
    peers = []
    for name in others:
        other = plan["nodes"][name]
        # A rank that listens on none of its own is asked on a port that the head uses: its refusal is an answer, too.
        ports = sorted(set(listens(other).values())) or sorted(set(other["ports"].values()))[:1]
        peers.append({"name": name, "address": other["address"], "ports": ports})
    host = urlsplit(entry["health_url"] or "").hostname or entry["address"]
    ports = [{"what": what, "address": host if what == "api" else "0.0.0.0", "port": port} for what, port in listens(entry).items()]
    given = flags(entry["argv"])
    return {
        "service": service_of(entry["role"]), "source": entry["address"] if peers else "", "peers": peers, "ports": ports,
        "names": [name for name in others if name not in declared], "engine": program(entry), "image": entry.get("image") or "",
        "weights": {} if entry["role"] == "router" else {
            "model": given["model"], "path": entry["env"].get("HF_HOME") or DEFAULT_WEIGHTS, "revision": given.get("revision", "")},
    }


def service_by_groups(groups: Collection[str]) -> str:
    """The service that a host has by its groups, empty when they do not tell."""
    router, rank = "vllm_router" in groups, bool(set(NODE_GROUPS) & set(groups))
    return "" if router == rank else ROUTER if router else SERVICE


def program(entry: Mapping[str, Any]) -> str:
    """Program of the container engine, empty for a rank that runs without a container."""
    return "" if entry.get("runtime") == "venv" or not entry.get("image") else str(entry["container_engine"])
