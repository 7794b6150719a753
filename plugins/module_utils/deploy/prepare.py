# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a plan to what one node is asked before it is touched. Pure; runs on the controller."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import urlsplit

from ..checks.wording import listed, short
from ..plan.groups import NODE_GROUPS
from ..plan.words import DEFAULT_WEIGHTS
from ..serving.start import flags
from .names import ROUTER, SERVICE, service_of

Plan = Mapping[str, Any]
Release = Mapping[str, Any]
"""One that is kept on a node, as service.node.Node.releases tells of it."""


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


def going_back(node: str, service: str, kept: Mapping[str, Sequence[Release]]) -> Release:
    """The release that `node` goes back to, so that all ranks of its engine run the same again.

    Ranks that run the same go back by one release. Where an earlier run ended half way, those that lag behind go to where the others are.

    Args:
        kept: by host of the play, the current release and then the earlier ones, newest first.

    Raises:
        Refused: no earlier release is kept, it could not be started, or the ranks would not run the same.
    """
    chosen = _together(node, service, kept)[node]
    if chosen["trouble"]:
        raise Refused("%s cannot go back to release %d: %s; deploy the plan that is wanted instead" % (node, chosen["number"], chosen["trouble"]))
    complete(node, chosen["peers"], kept)
    for name in chosen["peers"]:
        other = _together(name, service, kept)[name]
        if other["plan"] != chosen["plan"]:
            raise Refused("%s would go back to release %d and %s to release %d, which do not run together; deploy the plan that is wanted instead" % (
                node, chosen["number"], name, other["number"]))
    return chosen


def _together(node: str, service: str, kept: Mapping[str, Sequence[Release]]) -> Mapping[str, Release]:
    """The release that each rank of the node's engine goes back to."""
    names = [node]
    for name in names:
        # Ranks that went back to engines of their own are known by those that did not.
        names += [other for other in kept if other not in names and (other in kept[name][0]["peers"] or name in kept[other][0]["peers"])]
    now = {name: kept[name][0] for name in names}
    before = sorted(now, key=lambda name: not now[name]["rolled_back"])
    if len({now[name]["plan"] for name in names}) > 1:
        for plan in [now[name]["plan"] for name in before]:
            found = {name: _first(kept[name], plan) for name in names}
            if all(found.values()):
                return {name: release for name, release in found.items() if release}
        raise Refused("%s do not run the same, and no release that all of them could go back to is kept; deploy the plan that is wanted instead" % (
            listed(names, 4)))
    lag = {name: _first(kept[name][1:], now[name]["plan"]) for name in names if not now[name]["rolled_back"]}
    if 0 < len(lag) < len(names) and all(lag.values()):
        return {**now, **{name: release for name, release in lag.items() if release}}
    for name in names:
        if len(kept[name]) < 2:
            raise Refused("%s: no earlier release of %s is kept" % (name, service))
    return {name: kept[name][1] for name in names}


def _first(releases: Sequence[Release], plan: str) -> Optional[Release]:
    return next((release for release in releases if release["plan"] == plan), None)


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
