# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the document of a preflight out of what was judged."""

from __future__ import annotations

import datetime
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import CLUSTER, REGISTRY, Context, Node

SCHEMA = "inferops.vllm/preflight/1"
LONGEST = 4000
"""Characters kept of one field; a node decides how long its text is, the report does not have to."""

# The standing text of a check says NODE where the node's name belongs in a call.
_CALL = re.compile(r"`[^`]*\bNODES?\b[^`]*`")
_PLACE = re.compile(r"\bNODES?\b")
_SIMPLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")

_FIELDS = ("id", "node", "status", "severity", "observed", "required", "read_from", "why", "fix", "source")


def document(
    profile: str, context: Context, verdicts: Mapping[str, str], findings: Iterable[Mapping[str, Any]], nodes: Sequence[Node], now: float
) -> Dict[str, Any]:
    """The content of ``preflight.json``.

    Args:
        profile: name of the model profile.
        context: what the cluster is meant to be, with where each value came from.
        verdicts: ``{node: verdict}`` from ``judge.verdicts``.
        findings: findings as ``model.finding`` makes them.
        nodes: all nodes in rank order, unreachable ones too.
        now: time of the report, seconds since the epoch.

    Calls in a `fix` name the node (``--limit b300-02``, for the cluster the group ``vllm_nodes``) where the check says NODE.

    Returns:
        a table of JSON types only, valid under ``docs/schemas/preflight-1.schema.json``. Findings
        keep their order. ``summary`` is that of ``judge.summary`` and a ``verdict`` for the cluster.
    """
    listed = [_finding(f) for f in findings]
    summary: Dict[str, Any] = judge.summary(verdicts, listed)
    summary["verdict"] = cluster_verdict(verdicts, listed)
    judged = {node.name for node in nodes}
    titles = {judge.REACHABLE.id: judge.REACHABLE.title}
    titles.update((rule.id, rule.title) for rule in REGISTRY.values())
    return {
        "schema": SCHEMA,
        "profile": _text(profile),
        "generated_at": datetime.datetime.fromtimestamp(int(now), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "context": {
            "hardware": _text(context.hardware),
            "strategy": _text(context.strategy),
            "interconnect": _text(context.interconnect),
            "variant": _text(context.variant),
            "gpus_per_node": context.gpus_per_node,
            "image": _text(context.image),
            "left_out": [_text(name) for name in context.nodes if name not in judged],
            "sources": {_text(k): _text(v) for k, v in context.sources.items()},
        },
        "nodes": {node.name: _node(node, verdicts.get(node.name, "unknown")) for node in nodes},
        "checks": {id: titles.get(id, "") for id in dict.fromkeys(f["id"] for f in listed)},
        "findings": listed,
        "summary": summary,
    }


def cluster_verdict(verdicts: Mapping[str, str], findings: Iterable[Mapping[str, Any]]) -> str:
    """One verdict for all: the worst of the nodes' and of what is wrong with the cluster as a whole.

    Unreachable counts less than blocked and unknown, as in the exit code of the playbook, and no
    node at all is ``unknown``: nothing was looked at.
    """
    found = set(verdicts.values()) or {"unknown"}
    for f in findings:
        if f["node"] == CLUSTER and f["status"] in ("fail", "unknown", "warn"):
            blocks = f["severity"] == "block" and f["status"] != "warn"
            if blocks:
                found.add("blocked" if f["status"] == "fail" else "unknown")
            elif f["severity"] != "info":
                found.add("warn")
    return next((word for word in ("blocked", "unknown", "unreachable", "warn") if word in found), "ready")


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _finding(f: Mapping[str, Any]) -> Dict[str, Any]:
    made: Dict[str, Any] = {name: _text(f.get(name)) for name in _FIELDS}
    name = "vllm_nodes" if made["node"] == CLUSTER else made["node"]
    if "NODE" in made["fix"] and _SIMPLE.match(name):
        made["fix"] = _CALL.sub(lambda call: _PLACE.sub(name, call.group()), made["fix"])
    if f.get("assumed"):
        made["assumed"] = True
    return made


def _optional(value: Any) -> Optional[str]:
    return None if value is None or value == "" else _text(value)


def _node(node: Node, verdict: str) -> Dict[str, Any]:
    costume = node.get("collected.costume") or node.declared.get("costume")
    return {
        "verdict": verdict,
        "recorded": bool(node.get("collected.recorded", node.declared.get("recorded", False))),
        "costume": _optional(costume),
        "gpus": _gpus(node),
        "driver": _optional(node.get("driver.loaded")),
        "kernel": _optional(node.get("host.kernel")),
        "address": _optional(node.declared.get("host_ip")) or _address(node),
        "topology": _topology(node),
        "unreachable": _text(node.unreachable),
    }


def _gpus(node: Node) -> Optional[str]:
    """``8 × NVIDIA B300``; what PCI shows when nvidia-smi gave nothing; None when neither is known."""
    counts: Dict[str, int] = {}
    lost = 0
    for item in node.items("gpu.gpus"):
        if item.get("lost"):
            lost += 1
        else:
            name = _text(item.get("name") or "unnamed GPU")
            counts[name] = counts.get(name, 0) + 1
    devices = node.items("gpu.pci")
    if counts or lost:
        shown = " + ".join("%d × %s" % (count, name) for name, count in counts.items())
        missing = max(lost, len(devices) - sum(counts.values()))
        return _text(shown + (", %d lost" % missing if missing > 0 else "")).lstrip(", ")
    if devices:
        return "%d on PCI, nvidia-smi gave none" % len(devices)
    return "none" if isinstance(node.get("gpu.pci"), list) else None


def _address(node: Node) -> Optional[str]:
    """First IPv4 address on the interface of the default route, else of any interface."""
    addresses = node.get("host.addresses")
    if not isinstance(addresses, Mapping):
        return None
    route = node.get("rdma.default_route")
    for name in ([route] if isinstance(route, str) else []) + sorted(map(str, addresses)):
        found = addresses.get(name)
        for address in found if isinstance(found, list) else []:
            if isinstance(address, str) and "." in address:
                return _text(address.split("/")[0])
    return None


def _strings(value: Any, most: int) -> List[str]:
    return [_text(item) for item in value[:most]] if isinstance(value, list) else []


def _topology(node: Node) -> Optional[Dict[str, Any]]:
    """What the picture of a node needs: `nvidia-smi topo -m` and the names of its HCAs; None when neither is known."""
    topo = node.get("gpu.topology")
    hcas = [_text(item.get("name")) for item in node.items("rdma.hcas")[:64]]
    topo = topo if isinstance(topo, Mapping) else {}
    if not topo and not hcas:
        return None
    nics = topo.get("nics")
    return {
        "gpus": _strings(topo.get("gpus"), 64),
        "matrix": _strings(topo.get("matrix"), 64),
        "nics": {_text(k): _text(v) for k, v in list(nics.items())[:64]} if isinstance(nics, Mapping) else {},
        "gpu_nic": _strings(topo.get("gpu_nic"), 64),
        "hcas": hcas,
    }
