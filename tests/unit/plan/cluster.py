# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes to plan for, declared or dressed, and questions to a plan."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather
from ansible_collections.inferops.vllm.plugins.module_utils.plan.build import build
from ansible_collections.inferops.vllm.plugins.module_utils.plan.profiles import HARDWARE, STRATEGIES
from tests.costume import Spec, dress

NODES = {"h100": 4, "h200": 2, "b200": 2, "b300": 2, "gb200": 4, "gb300": 4, "mi355x": 2, "cpu": 2}
"""Nodes with which every strategy has enough memory and GPUs on a kind of hardware."""


def node(index: int, facts: Optional[Mapping[str, Any]] = None, groups: Sequence[str] = ("vllm_nodes",), **declared: Any) -> Node:
    given: Dict[str, Any] = {"host_ip": "10.0.0.%d" % index, "interface": "eno1", "groups": list(groups)}
    given.update(declared)
    return Node("n%d" % index, facts, given)


def cluster(count: int, **declared: Any) -> List[Node]:
    return [node(index, **declared) for index in range(1, count + 1)]


def pools(prefill: int, decode: int, router: int = 1) -> List[Node]:
    words = ["vllm_prefill"] * prefill + ["vllm_decode"] * decode + ["vllm_router"] * router
    return [node(index, groups=(word,)) for index, word in enumerate(words, 1)]


_FACTS: Dict[Spec, Mapping[str, Any]] = {}


def dressed(index: int, hardware: str = "b300", faults: Sequence[str] = (), groups: Sequence[str] = ("vllm_nodes",), **declared: Any) -> Node:
    spec = Spec("n%d" % index, hardware, index, frozenset(faults))
    if spec not in _FACTS:
        _FACTS[spec] = gather(dress(spec), Options(image="vllm/vllm-openai:kimi-k3"))
    return node(index, _FACTS[spec], groups, **{"host_ip": spec.address, **declared})


def planned(nodes: Sequence[Node], **words: Any) -> Dict[str, Any]:
    return build({"vllm_" + key: value for key, value in words.items()}, nodes)


def sound(nodes: Sequence[Node], **words: Any) -> Dict[str, Any]:
    plan = planned(nodes, **words)
    assert plan["refused"] == [], plan["refused"]
    return plan


def flags(entry: Mapping[str, Any]) -> Dict[str, Any]:
    """argv as flag → value (True without one); a flag that stands twice fails."""
    found: Dict[str, Any] = {}
    argv = list(entry["argv"][3:])
    while argv:
        name = argv.pop(0)
        assert name.startswith("--") and name not in found, name
        found[name] = argv.pop(0) if argv and not argv[0].startswith("--") else True
    return found


def whys(plan: Mapping[str, Any]) -> List[str]:
    return [item["why"] for item in plan["refused"]]


class Case(NamedTuple):
    """One shape of plan."""

    name: str
    hardware: str
    strategy: str
    interconnect: str
    features: Tuple[str, ...]
    version: str

    def nodes(self) -> List[Node]:
        count = NODES[self.hardware]
        if self.strategy == "pd_cluster":
            return pools(count, max(count, -(-16 // (HARDWARE[self.hardware].gpus or 16))))
        return cluster(1 if STRATEGIES[self.strategy].span == "one" else count)

    def plan(self) -> Dict[str, Any]:
        words: Dict[str, Any] = {"features": list(self.features)}
        if self.version:
            words["version"] = self.version
        return planned(self.nodes(), hardware=self.hardware, strategy=self.strategy, interconnect=self.interconnect, **words)


FEATURES = ((), ("tool_calling", "reasoning"), ("text_only", "spec_decoding", "prefix_caching"), ("tool_calling", "dcp"))


def every_case(versions: Sequence[str] = ("", "0.32.0")) -> Iterator[Case]:
    """Hardware × strategy × interconnect × features × version, also what is refused."""
    for hardware in HARDWARE:
        for strategy, row in STRATEGIES.items():
            for interconnect in ("none",) if row.span == "one" or hardware == "cpu" else ("rdma", "nvlink"):
                for chosen in FEATURES:
                    for version in versions:
                        name = "-".join([hardware, strategy, interconnect, "+".join(chosen) or "bare", version or "image"])
                        yield Case(name, hardware, strategy, interconnect, chosen, version)
