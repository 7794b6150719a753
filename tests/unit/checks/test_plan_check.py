# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks plan.*."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Context, Node
from ansible_collections.inferops.vllm.plugins.module_utils.plan.resolve import resolve

from .healthy import MISSING, b300_context, gb300_context, healthy_b300, healthy_gb300, put, without
from .run import one, over, status

SIX = tuple("node%d" % i for i in range(1, 7))
TRAYS = ("tray1", "tray2", "tray3", "tray4")


def fleet(names: Sequence[str]) -> Dict[str, Dict[str, Any]]:
    return {name: healthy_gb300(name) if name.startswith("tray") else healthy_b300(name) for name in names}


def context(nodes: Sequence[str], **declared: str) -> Context:
    return resolve({"vllm_" + key: value for key, value in declared.items()}, [Node(name, {}) for name in nodes])


def hung(facts: Dict[str, Any]) -> Dict[str, Any]:
    """nvidia-smi never answered."""
    facts["gpu"].pop("smi")
    facts["gpu"].update(gpus=[], topology={}, nvlink=[], unknown={"smi": "nvidia-smi did not answer in time and was abandoned"})
    return facts


# -- the weights -----------------------------------------------------------------------------------
def test_the_arithmetic_of_six_nodes_is_shown() -> None:
    found = over("plan.fits", fleet(SIX), b300_context(SIX))
    assert list(found) == ["*"]
    assert found["*"]["status"] == "pass"
    assert found["*"]["observed"] == "1,680 GB of weights into 6 × 2,144 GB × 0.95 = 12,221 GB"
    assert not found["*"].get("assumed")


def test_every_node_is_an_engine_of_its_own() -> None:
    facts = fleet(("node1", "node2"))
    plan = b300_context()._replace(nodes=("node1", "node2"))
    for gpu in facts["node2"]["gpu"]["gpus"][2:]:
        gpu["lost"] = True
    found = over("plan.fits", facts, plan)
    assert found["node1"]["status"] == "pass"
    assert (found["node2"]["status"], found["node2"]["severity"]) == ("fail", "block")
    assert found["node2"]["observed"] == "1,680 GB of weights into 1 × 536 GB × 0.95 = 509 GB"
    assert found["node2"]["why"] == "The weights do not fit into the GPU memory of node2; 1 whole b300 nodes are needed."


@pytest.mark.parametrize("hardware, nodes, expected", [
    ("b300", 1, "pass"), ("b200", 1, "fail"), ("b200", 2, "pass"), ("h200", 1, "fail"), ("h200", 2, "pass"), ("h100", 3, "fail"),
    ("h100", 4, "pass"),
    ("gb200", 2, "fail"), ("gb200", 3, "pass"), ("gb300", 1, "fail"), ("gb300", 2, "pass"),
])
def test_whole_nodes_by_the_published_figures(hardware: str, nodes: int, expected: str) -> None:
    names = ["node%d" % i for i in range(nodes)]
    found = list(over("plan.fits", {name: {} for name in names}, context(names, hardware=hardware)).values())
    assert [f["status"] for f in found] == [expected]
    assert expected == "fail" or found[0]["assumed"] is True


def test_three_h100_nodes_hold_the_weights_but_are_too_few() -> None:
    names = ("node1", "node2", "node3")
    found = over("plan.fits", {name: {} for name in names}, context(names, hardware="h100"))["*"]
    assert found["observed"].startswith("24 GPUs") and found["required"] == "32 GPUs for multi_node_tp on h100"


def test_nodes_without_working_gpus_do_not_count() -> None:
    facts = fleet(TRAYS[:2])
    plan = gb300_context(TRAYS[:2])._replace(strategy="multi_node_tep")
    assert over("plan.fits", facts, plan)["*"]["status"] == "pass"
    facts["tray2"]["gpu"].update(gpus=[], pci=[], smi=None)
    found = over("plan.fits", facts, plan)["*"]
    assert found["status"] == "fail"
    assert found["observed"] == "1,680 GB of weights into 1 × 1,152 GB × 0.95 = 1,094 GB; without a GPU: tray2"


def test_devices_that_fell_off_the_bus_do_not_count() -> None:
    facts = hung(healthy_b300())
    for device in facts["gpu"]["pci"][3:]:
        device["rev_ff"] = True
    found = one("plan.fits", facts)
    assert found["status"] == "fail" and found["observed"].startswith("1,680 GB of weights into 1 × 804 GB")


def test_what_was_not_looked_at_is_assumed_and_said() -> None:
    for facts in (hung(healthy_b300()), without(healthy_b300(), "gpu")):
        found = one("plan.fits", facts)
        assert found["status"] == "pass" and found["assumed"] is True
        assert found["observed"].endswith("assumed, not looked at, on node1")


def test_without_facts_and_without_known_hardware_nothing_is_known() -> None:
    found = one("plan.fits", without(healthy_b300(), "gpu"), b300_context()._replace(hardware=""))
    assert (found["status"], found["severity"]) == ("unknown", "block")


def test_a_smaller_gpu_counts_with_what_it_has_and_a_larger_one_with_the_published_figure() -> None:
    facts = healthy_b300()
    for gpu in facts["gpu"]["gpus"]:
        gpu["fb_total_mib"] = 183359
    found = one("plan.fits", facts)
    assert found["status"] == "fail" and "1 × 1,538 GB" in found["observed"]
    assert "1 × 2,144 GB" in one("plan.fits", healthy_b300())["observed"]
    assert "1 × 2,307 GB" in one("plan.fits", healthy_b300(), b300_context()._replace(hardware=""))["observed"]


def test_too_few_gpus_for_the_strategy() -> None:
    found = over("plan.fits", fleet(("node1",)), b300_context()._replace(strategy="multi_node_dep"))["*"]
    assert (found["status"], found["observed"], found["required"]) == ("fail", "8 GPUs", "16 GPUs for multi_node_dep")


def test_nodes_that_did_not_answer_leave_it_open() -> None:
    nodes = [Node("tray1", healthy_gb300("tray1")), Node("tray2", {}, None, "no route to host")]
    findings = judge.judge(nodes, gb300_context(TRAYS[:2])._replace(strategy="multi_node_tep"), only=["plan"])
    found = next(f for f in findings if f["id"] == "plan.fits")
    assert (found["status"], found["severity"]) == ("unknown", "warn")
    assert found["observed"].endswith("1 not looked at")
    verdicts = judge.verdicts(nodes, findings)
    assert judge.exit_reason(verdicts, findings, "block") == "unreachable"


def test_nodes_that_did_not_answer_do_not_excuse_too_few() -> None:
    nodes = [Node("node1", healthy_b300()), Node("node2", {}, None, "no route to host")]
    for names in (("node1", "node2"), ("node1", "node2", "node3")):
        # Three nodes would hold the weights, and are too few for this hardware all the same.
        plan = context(names, hardware="h100")
        found = next(f for f in judge.judge(nodes, plan, only=["plan"]) if f["id"] == "plan.fits")
        assert found["status"] == "fail"


def pool(groups: Mapping[str, List[str]]) -> Dict[str, Any]:
    nodes = [Node(name, healthy_b300(name), {"groups": words}) for name, words in groups.items()]
    plan = b300_context(tuple(groups))._replace(strategy="pd_cluster")
    found = [f for f in judge.judge(nodes, plan, only=["plan"]) if f["id"] == "plan.fits"]
    assert [f["node"] for f in found] == ["*"]
    return found[0]


def test_pools_are_engines_of_their_own() -> None:
    assert pool({"a": ["vllm_prefill"], "b": ["vllm_decode"], "c": ["vllm_decode"]})["status"] == "pass"
    found = pool({"a": ["vllm_prefill"], "b": ["vllm_decode"]})
    assert (found["status"], found["observed"], found["required"]) == ("fail", "the decode pool: 8 GPUs", "16 GPUs for pd_cluster")
    assert "no node is in the prefill pool" in pool({"b": ["vllm_decode"], "c": ["vllm_decode"]})["observed"]


def test_hardware_cpu_has_nothing_to_fit_into() -> None:
    assert status("plan.fits", {}, context(("node1",), hardware="cpu")) == "skip"


# -- the hardware ------------------------------------------------------------------------------------
def test_the_declared_hardware() -> None:
    found = one("plan.hardware", healthy_b300())
    assert (found["status"], found["observed"]) == ("pass", "8 × NVIDIA B300 SXM6 AC")
    assert one("plan.hardware", healthy_gb300(), gb300_context())["status"] == "pass"


def test_other_hardware_blocks() -> None:
    found = one("plan.hardware", healthy_gb300())
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "block", "NVIDIA GB300")
    mixed = put(healthy_b300(), "gpu.gpus.3.name", "NVIDIA B200")
    assert one("plan.hardware", mixed)["observed"] == "NVIDIA B200 on 1 of 8"


def test_hardware_told_by_the_bus_is_assumed() -> None:
    found = one("plan.hardware", hung(healthy_b300()))
    assert found["status"] == "pass" and found["assumed"] is True
    assert "did not answer" in found["observed"]
    facts = hung(healthy_b300())
    for device in facts["gpu"]["pci"]:
        device["device"] = "0x2901"
    assert one("plan.hardware", facts)["observed"] == "PCI devices of b200"


def test_a_node_without_gpu_fails() -> None:
    facts = put(put(healthy_b300(), "gpu.gpus", []), "gpu.pci", [])
    assert one("plan.hardware", facts)["observed"] == "no GPU on the PCI bus"


@pytest.mark.parametrize("section", [MISSING, None, {}, [], "x", {"unknown": {"all": "stuck"}}])
def test_hardware_that_was_not_looked_at_is_unknown(section: Any) -> None:
    assert status("plan.hardware", put(healthy_b300(), "gpu", section)) == "unknown"


def test_hardware_that_could_not_be_concluded() -> None:
    nodes = [Node("node1", put(put(healthy_b300(), "gpu.gpus", []), "gpu.pci", []))]
    plan = resolve({}, nodes)
    found = one("plan.hardware", nodes[0].facts, plan)
    assert found["status"] == "unknown" and "declare vllm_hardware" in found["observed"]
    assert over("plan.strategy", {"node1": nodes[0].facts}, plan)["*"]["status"] == "unknown"


@pytest.mark.parametrize("hardware", ["cpu", "mi355x"])
def test_hardware_that_nvidia_smi_does_not_show_skips(hardware: str) -> None:
    assert status("plan.hardware", {}, context(("node1",), hardware=hardware)) == "skip"


# -- the words -----------------------------------------------------------------------------------------
def test_words_that_go_together() -> None:
    found = over("plan.strategy", fleet(SIX), b300_context(SIX))["*"]
    assert (found["status"], found["observed"]) == ("pass", "b300, multi_node_dep, rdma")


@pytest.mark.parametrize("declared, text", [
    ({"hardware": "h200", "strategy": "multi_node_dep"}, "multi_node_dep is not supported on h200 (hopper)"),
    ({"hardware": "b300", "strategy": "multi_node_tp_dp"}, "multi_node_tp_dp is supported on h200, gb200, gb300 only, not on b300"),
    ({"hardware": "h100", "variant": "nvfp4"}, "variant nvfp4 runs on blackwell only, and h100 is hopper"),
    ({"hardware": "b300", "strategy": "multi_node_tep", "interconnect": "nvlink"}, "vllm_interconnect nvlink needs an NVL72 domain"),
    ({"hardware": "b300", "strategy": "multi_node_tep", "interconnect": "none"}, "vllm_interconnect none joins no nodes"),
])
def test_words_that_do_not_go_together_block_and_nodes_are_judged_all_the_same(declared: Dict[str, str], text: str) -> None:
    plan = context(("node1", "node2"), **declared)
    findings = judge.judge([Node(name, healthy_b300(name)) for name in ("node1", "node2")], plan)
    found = next(f for f in findings if f["id"] == "plan.strategy")
    assert (found["status"], found["severity"], found["node"]) == ("fail", "block", "*")
    assert text in found["observed"]
    assert len([f for f in findings if f["node"] == "node2"]) > 20


def test_a_strategy_over_nodes_with_one_node() -> None:
    found = over("plan.strategy", fleet(("node1",)), context(("node1",), hardware="b300", strategy="multi_node_dep"))["*"]
    assert "spans several nodes, and the inventory has 1" in found["observed"]


def test_a_strategy_that_is_not_known() -> None:
    assert over("plan.strategy", fleet(("node1",)), b300_context()._replace(strategy="magic"))["*"]["status"] == "unknown"
