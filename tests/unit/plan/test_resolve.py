# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan/resolve.py: from declared words to a context without auto."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Context, Node
from ansible_collections.inferops.vllm.plugins.module_utils.plan.profiles import HARDWARE, INTERCONNECTS, MODELS, STRATEGIES
from ansible_collections.inferops.vllm.plugins.module_utils.plan.resolve import InputError, contradictions, features, pools, resolve

PRODUCTS = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200", "b200": "NVIDIA B200", "b300": "NVIDIA B300 SXM6 AC",
            "gb200": "NVIDIA GB200", "gb300": "NVIDIA GB300"}


def gpu_nodes(*kinds: str, groups: Sequence[str] = ()) -> List[Node]:
    nodes = []
    for i, kind in enumerate(kinds):
        gpus = [{"name": PRODUCTS[kind]}] * HARDWARE[kind].gpus if kind else []
        nodes.append(Node("node%d" % (i + 1), {"gpu": {"gpus": gpus}}, {"groups": list(groups)}))
    return nodes


def told(kinds: Sequence[str], **declared: Any) -> Context:
    return resolve({"vllm_" + key: value for key, value in declared.items()}, gpu_nodes(*kinds))


# -- words ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("variable, allowed", [
    ("vllm_profile", "auto, kimi_k3"), ("vllm_variant", "auto, default, nvfp4"), ("vllm_hardware", "auto, " + ", ".join(HARDWARE)),
    ("vllm_strategy", "auto, " + ", ".join(STRATEGIES)), ("vllm_interconnect", "auto, nvlink, rdma, none"),
])
@pytest.mark.parametrize("value", ["b3000", "B300", 7, ["b300"], {"a": 1}, True, " b300"])
def test_a_word_that_means_nothing_is_refused_by_name(variable: str, allowed: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        resolve({variable: value}, [])
    assert str(caught.value) == "%s: %r is not one of %s" % (variable, value, allowed)


def test_a_long_word_is_cut_in_the_message() -> None:
    with pytest.raises(InputError) as caught:
        resolve({"vllm_hardware": "x" * 10000}, [])
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("empty", [None, "", "auto"])
def test_auto_empty_and_left_out_are_the_same(empty: Any) -> None:
    words = ("profile", "variant", "hardware", "strategy", "interconnect", "features", "image", "version")
    assert resolve({"vllm_" + word: empty for word in words}, gpu_nodes("b300")) == resolve({}, gpu_nodes("b300"))


def test_declared_words_are_kept_and_marked() -> None:
    context = told(["b300", "b300"], profile="kimi_k3", variant="nvfp4", hardware="gb300", strategy="multi_node_dep", interconnect="rdma",
                   image="registry.example:5000/vllm@sha256:" + "ab" * 32, features=["text_only"])
    assert (context.variant, context.hardware, context.strategy, context.interconnect) == ("nvfp4", "gb300", "multi_node_dep", "rdma")
    assert context.weights_gb == 1650.0 and context.gpus_per_node == 4 and context.gpu_memory_mib == 284208
    assert context.needs_rdma and not context.needs_mnnvl
    assert set(context.sources.values()) == {"declared"}
    assert context.nodes == ("node1", "node2")


# -- hardware --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", list(PRODUCTS))
def test_hardware_from_product_names(kind: str) -> None:
    context = told([kind])
    assert context.hardware == kind
    assert context.sources["vllm_hardware"] == "%s, from the GPUs of 1 of 1 nodes" % kind
    assert context.open_required is (HARDWARE[kind].family == "blackwell") and context.nvlink_links == 18


def test_the_majority_decides_and_a_tie_is_said_to_be_one() -> None:
    assert told(["h200", "b300", "b300", ""]).hardware == "b300"
    context = told(["h200", "b300"])
    assert context.hardware == "h200" and "a tie" in context.sources["vllm_hardware"]


def test_hardware_from_the_pci_bus_when_nvidia_smi_is_silent() -> None:
    node = Node("node1", {"gpu": {"gpus": [], "pci": [{"device": "0x3182"}] * 8}})
    assert resolve({}, [node]).hardware == "b300"


@pytest.mark.parametrize("facts", [
    {}, {"gpu": None}, {"gpu": {"gpus": "x"}}, {"gpu": {"gpus": [None, 7]}}, {"gpu": {"gpus": [{"name": "NVIDIA L40S"}]}},
])
def test_hardware_that_nobody_names(facts: Dict[str, Any]) -> None:
    context = resolve({}, [Node("node1", facts)])
    assert (context.hardware, context.strategy, context.interconnect) == ("", "single_node_tp", "none")
    assert context.gpus_per_node == 0 and "declare vllm_hardware" in context.sources["vllm_hardware"]


def test_a_cluster_without_gpus_is_never_taken_for_hardware_cpu() -> None:
    assert told(["", ""]).hardware == ""


# -- strategy ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hardware, nodes, strategy, interconnect", [
    ("b300", 1, "single_node_tp", "none"), ("b300", 6, "single_node_tp", "none"), ("mi355x", 2, "single_node_tp", "none"),
    ("b200", 2, "multi_node_tep", "rdma"), ("gb200", 4, "multi_node_tep", "nvlink"), ("gb300", 2, "multi_node_tep", "nvlink"),
    ("gb300", 1, "multi_node_tep", "nvlink"), ("h200", 2, "multi_node_tp", "rdma"), ("h100", 4, "multi_node_tp", "rdma"),
    ("cpu", 2, "single_node_tp", "none"),
])
def test_strategy_and_interconnect_from_the_hardware(hardware: str, nodes: int, strategy: str, interconnect: str) -> None:
    context = told([""] * nodes, hardware=hardware)
    assert (context.strategy, context.interconnect) == (strategy, interconnect)
    assert context.needs_rdma is (interconnect == "rdma") and context.needs_mnnvl is (interconnect == "nvlink")
    assert context.sources["vllm_strategy"].startswith(strategy + ", ")
    assert context.sources["vllm_interconnect"].startswith(interconnect + ", ")


def test_the_arithmetic_behind_the_strategy_is_told() -> None:
    assert "1,680 GB of weights, 1,368 GB of GPU memory usable a node; 2 nodes do" in told(["b200", "b200"]).sources["vllm_strategy"]
    assert "4 nodes do" in told(["h100"]).sources["vllm_strategy"]


def test_a_declared_interconnect_asks_for_nodes_that_work_together() -> None:
    context = told(["b300", "b300"], interconnect="rdma")
    assert context.strategy == "multi_node_tep" and context.needs_rdma
    assert told(["b300"], interconnect="rdma").strategy == "single_node_tp"
    assert told(["", ""], hardware="cpu", interconnect="rdma").strategy == "multi_node_tp"


def test_pools_in_the_inventory_make_a_pd_cluster() -> None:
    nodes = gpu_nodes("b300", groups=["vllm_prefill"]) + gpu_nodes("b300", groups=["vllm_decode"])
    context = resolve({}, nodes)
    assert context.strategy == "pd_cluster" and context.needs_rdma
    assert [[n.declared["groups"] for n in pool.nodes] for pool in pools(nodes, context)] == [[["vllm_prefill"]], [["vllm_decode"]]]
    assert resolve({}, gpu_nodes("b300", groups=["vllm_prefill"])).strategy == "single_node_tp"


@pytest.mark.parametrize("hardware, nodes", [(h, n) for h in HARDWARE for n in (1, 2, 4, 18)])
def test_what_was_concluded_contradicts_nothing(hardware: str, nodes: int) -> None:
    from ansible_collections.inferops.vllm.plugins.module_utils.plan.profiles import unsupported

    context = told([""] * nodes, hardware=hardware)
    assert contradictions(context) == []
    assert unsupported(context.profile, context.variant, hardware, context.strategy) == ""


@pytest.mark.parametrize("declared, word", [
    ({"hardware": "b300", "strategy": "multi_node_dep", "interconnect": "nvlink"}, "NVL72"),
    ({"hardware": "h200", "strategy": "multi_node_tp", "interconnect": "none"}, "joins no nodes"),
])
def test_contradictions_are_sentences_and_no_errors(declared: Dict[str, str], word: str) -> None:
    found = contradictions(told(["", ""], **declared))
    assert len(found) == 1 and word in found[0]


def test_nvlink_between_trays_and_rdma_between_trays_are_both_fine() -> None:
    for interconnect in ("nvlink", "rdma"):
        assert contradictions(told(["gb300"] * 4, strategy="multi_node_dep", interconnect=interconnect)) == []


# -- features, image -----------------------------------------------------------------------------------------
def test_features() -> None:
    assert features({}) == ("tool_calling", "reasoning")
    assert features({"vllm_features": []}) == ()
    assert features({"vllm_features": "text_only, reasoning"}) == ("reasoning", "text_only")
    assert features({"vllm_features": ["prefix_caching", "prefix_caching"]}) == ("prefix_caching",)


@pytest.mark.parametrize("value", [["magic"], "magic", [7], {"text_only": True}, 7, [["dcp"]]])
def test_features_that_are_none(value: Any) -> None:
    with pytest.raises(InputError, match=r"^vllm_features: .*tool_calling, reasoning, text_only, spec_decoding, dcp, prefix_caching"):
        resolve({"vllm_features": value}, [])


@pytest.mark.parametrize("feature, strategy, fine", [
    ("dcp", "single_node_tp", True), ("dcp", "multi_node_tep", False), ("spec_decoding", "multi_node_tp_pp", False),
    ("spec_decoding", "multi_node_dep", True), ("text_only", "multi_node_tp_pp", True),
])
def test_features_that_exclude_a_strategy(feature: str, strategy: str, fine: bool) -> None:
    declared = {"hardware": "gb300", "strategy": strategy, "features": [feature]}
    if fine:
        assert told(["gb300"] * 4, **declared).strategy == strategy
    else:
        with pytest.raises(InputError, match="^vllm_features: %s .*%s" % (feature, strategy)):
            told(["gb300"] * 4, **declared)


def test_the_image_follows_the_hardware() -> None:
    assert told(["b300"]).image == "vllm/vllm-openai:kimi-k3"
    amd = told([""], hardware="mi355x")
    assert (amd.image, amd.image_cuda_major, amd.driver_min) == ("vllm/vllm-openai-rocm:kimi-k3", 0, ())
    assert told([""], hardware="cpu").image == ""


def test_a_declared_version_names_a_tag() -> None:
    assert told(["b300"], version="0.32.0").image == "vllm/vllm-openai:v0.32.0"
    assert told(["b300"], version="v0.27.1").image == "vllm/vllm-openai:v0.27.1"
    assert told(["b300"], version="0.32.0", image="own:1").image == "own:1"


@pytest.mark.parametrize("variable, value, word", [
    ("vllm_version", "0.26.9", "older than 0.27.1"), ("vllm_version", "newest", "not a version"), ("vllm_version", 0.32, "not a version"),
    ("vllm_image", "a b", "not the name of an image"), ("vllm_image", "-v/:/x", "not the name of an image"),
    ("vllm_image", 7, "not the name"),
    ("vllm_image", "x\n", "not the name of an image"), ("vllm_version", "0.32.0\n", "not a version"),
])
def test_images_and_versions_that_mean_nothing(variable: str, value: Any, word: str) -> None:
    with pytest.raises(InputError, match="^%s: .*%s" % (variable, word)):
        resolve({variable: value}, [])


# -- anything goes in ------------------------------------------------------------------------------------------
VARIABLES = ("vllm_profile", "vllm_variant", "vllm_hardware", "vllm_strategy", "vllm_interconnect", "vllm_features", "vllm_image")
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6)


@given(st.dictionaries(st.sampled_from([*VARIABLES, "vllm_version"]), ANY, max_size=4), ANY)
def test_whatever_is_declared_gives_a_context_or_an_input_error(declared: Dict[str, Any], facts: Any) -> None:
    nodes = [Node("node1", facts, {"groups": facts}), Node("node2", {"gpu": facts}), Node("node3", {"gpu": {"gpus": facts, "pci": facts}})]
    try:
        context = resolve(declared, nodes)
    except InputError as exc:
        assert str(exc).startswith("vllm_") and "\n" not in str(exc)
    else:
        assert context.strategy in STRATEGIES and context.interconnect in INTERCONNECTS and context.profile in MODELS
        assert context.hardware in ("", *HARDWARE)


@given(
    st.sampled_from([*HARDWARE, "auto"]), st.sampled_from([*STRATEGIES, "auto"]),
    st.sampled_from([*INTERCONNECTS, "auto"]), st.integers(1, 20))
def test_every_combination_of_words_gives_a_context(hardware: str, strategy: str, interconnect: str, nodes: int) -> None:
    context = told(["b300"] * nodes, hardware=hardware, strategy=strategy, interconnect=interconnect)
    assert "auto" not in (context.hardware, context.strategy, context.interconnect)
    assert not (context.needs_rdma and context.needs_mnnvl)
    assert set(context.sources) == set(VARIABLES)


def test_engines_of_a_plan() -> None:
    nodes = gpu_nodes("gb300", "gb300", groups=["vllm_prefill"])
    context = resolve({}, nodes)
    assert [(pool.label, pool.role, len(pool.nodes)) for pool in pools(nodes, context)] == [("the engine", "", 2)]
    single = context._replace(strategy="single_node_tp")
    assert [(pool.label, len(pool.nodes)) for pool in pools(nodes, single)] == [("node1", 1), ("node2", 1)]
    both = context._replace(strategy="pd_cluster")
    assert [(pool.role, len(pool.nodes)) for pool in pools(nodes, both)] == [("prefill", 2), ("decode", 0)]
    assert pools([], context) == []


@pytest.mark.parametrize("release", ["newest", 0.32, "0.1.0"])
def test_a_bad_version_is_refused_also_beside_an_image(release: Any) -> None:
    with pytest.raises(InputError, match="vllm_version"):
        resolve({"vllm_image": "registry.example/vllm:mine", "vllm_version": release}, [])
