# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan refuses, and that it says why."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node
from ansible_collections.inferops.vllm.plugins.module_utils.plan import render
from ansible_collections.inferops.vllm.plugins.module_utils.plan.build import build
from tests.unit.plan.cluster import cluster, dressed, flags, node, planned, pools, sound, whys


def refusal(nodes: List[Node], **words: Any) -> str:
    """Text of the refusals with their facts; the plan has no nodes then."""
    plan = planned(nodes, **words)
    assert plan["refused"] and plan["nodes"] == {} and plan["complete"] is False
    return "\n".join("%s | %s" % (item["why"], "; ".join(item["facts"])) for item in plan["refused"])


B300 = {"hardware": "b300", "strategy": "multi_node_tp", "interconnect": "rdma"}


# -- arithmetic --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hardware,strategy,count,sums", [
    ("b200", "single_node_tp", 1, "1,680 GB of weights into 1 × 1,440 GB × 0.95 = 1,368 GB"),
    ("h200", "single_node_tp", 1, "1,680 GB of weights into 1 × 1,128 GB × 0.97 = 1,094 GB"),
    ("gb200", "multi_node_tp", 2, "1,680 GB of weights into 2 × 768 GB × 0.95 = 1,459 GB"),
    ("h100", "multi_node_tp", 2, "1,680 GB of weights into 2 × 640 GB × 0.97 = 1,242 GB"),
    ("gb300", "multi_node_tp", 1, "1,680 GB of weights into 1 × 1,152 GB × 0.95 = 1,094 GB"),
])
def test_weights_that_do_not_fit_are_refused_with_the_sum(hardware: str, strategy: str, count: int, sums: str) -> None:
    text = refusal(cluster(count), hardware=hardware, strategy=strategy)
    assert sums in text and "nodes of %s are needed, and %s" % (
        hardware, "an engine of single_node_tp has 1" if strategy == "single_node_tp" else "%d are there" % count) in text


@pytest.mark.parametrize("hardware,count,needed", [("gb300", 2, 2), ("b200", 2, 2), ("h200", 2, 2), ("gb200", 4, 3), ("h100", 4, 4), ("b300", 1, 1)])
def test_what_fits_by_the_facts_is_planned(hardware: str, count: int, needed: int) -> None:
    assert count >= needed
    sound(cluster(count), hardware=hardware, strategy="multi_node_tp")


def test_weights_are_held_against_the_sum_of_the_engine_and_not_against_a_node() -> None:
    sound(cluster(2), hardware="h200", strategy="multi_node_tp_dp", interconnect="rdma")


def test_h100_has_a_floor_of_32_gpus() -> None:
    text = refusal(cluster(3), hardware="h100", strategy="multi_node_tp", interconnect="rdma")
    assert "multi_node_tp needs 32 GPUs on h100, and the engine has 3 × 8 = 24" in text


def test_each_pool_is_held_against_its_own_floor() -> None:
    text = refusal(pools(1, 1), hardware="b300", strategy="pd_cluster")
    assert "the decode pool has 1 × 8 = 8" in text and "prefill pool has" not in text


def test_tensor_parallelism_that_does_not_divide_the_heads_is_refused() -> None:
    text = refusal(cluster(18), hardware="gb300", strategy="multi_node_tp", interconnect="nvlink")
    assert "72 GPUs does not divide the 96 attention heads of Kimi K3: 96 / 72 = 1.33" in text
    sound(cluster(18), hardware="gb300", strategy="multi_node_dep", interconnect="nvlink")


def test_dcp_that_does_not_divide_tensor_parallelism_is_refused() -> None:
    text = refusal(cluster(1), hardware="b300", strategy="single_node_tp", overrides={"decode-context-parallel-size": 3})
    assert "8 / 3 = 2.67" in text
    sound(cluster(1), hardware="b300", strategy="single_node_tp", overrides={"decode-context-parallel-size": 4})


@pytest.mark.parametrize("interval,ok", [(0, True), (1536, True), (15360, True), (1000, False), (-1536, False), (1537, False)])
def test_a_retention_interval_is_a_multiple_of_the_block(interval: int, ok: bool) -> None:
    words: Dict[str, Any] = {"hardware": "b300", "strategy": "single_node_tp", "version": "0.32.0"}
    given = {"prefix-cache-retention-interval": interval}
    if ok:
        assert flags(sound(cluster(1), overrides=given, **words)["nodes"]["n1"])["--prefix-cache-retention-interval"] == str(interval)
    else:
        assert "a multiple of the 1536 tokens of a block" in refusal(cluster(1), overrides=given, **words)


def test_a_block_size_of_ones_own_decides_the_retention_interval() -> None:
    words: Dict[str, Any] = {"hardware": "b300", "strategy": "single_node_tp", "version": "0.32.0"}
    sound(cluster(1), overrides={"prefix-cache-retention-interval": 1024, "block-size": 512}, **words)
    assert "512 tokens" in refusal(cluster(1), overrides={"prefix-cache-retention-interval": 1536 + 1, "block-size": 512}, **words)


# -- combinations ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("nodes,words,expected", [
    (cluster(4), {"hardware": "h200", "strategy": "multi_node_dep"}, "multi_node_dep is not supported on h200"),
    (cluster(4), {"hardware": "b300", "strategy": "multi_node_tp_dp"}, "supported on h200, gb200, gb300 only"),
    (cluster(2), {"hardware": "h200", "strategy": "multi_node_tp", "variant": "nvfp4"}, "variant nvfp4 runs on blackwell only"),
    (cluster(2), {"hardware": "b300", "strategy": "multi_node_tp", "interconnect": "nvlink"}, "NVLink of b300 ends at the node"),
    (cluster(2), {"hardware": "b300", "strategy": "multi_node_tp", "interconnect": "none"}, "none joins no nodes"),
    (cluster(1), {"hardware": "b300", "strategy": "multi_node_dep"}, "spans several nodes, and the inventory has 1"),
    (cluster(1), {"hardware": "mi355x", "strategy": "single_node_tp", "features": ["dcp"]}, "feature dcp does not run on mi355x"),
    (cluster(2), {"hardware": "b300", "strategy": "multi_node_tp_pp", "features": ["spec_decoding"]}, "spec_decoding does not work with"),
    (cluster(2), {"hardware": "b300", "strategy": "multi_node_tp", "features": ["dcp"]}, "dcp works with vllm_strategy single_node_tp only"),
    (cluster(2), {"hardware": "", "strategy": "multi_node_tp"}, "the hardware is not known"),
    ([], {"hardware": "b300", "strategy": "single_node_tp"}, "no host is in the plan"),
])
def test_what_does_not_go_together_is_refused(nodes: List[Node], words: Dict[str, Any], expected: str) -> None:
    assert expected in refusal(nodes, **words)


def test_pd_on_hopper_is_refused_with_both_facts() -> None:
    text = refusal(pools(2, 2), hardware="h200", strategy="pd_cluster", interconnect="rdma")
    assert "pd_cluster does not start on h200" in text and "expandable_segments:True" in text and "NixlConnector" in text


@pytest.mark.parametrize("nodes,expected", [
    (pools(0, 2), "no host in vllm_prefill"), (pools(2, 0), "no host in vllm_decode"), (pools(1, 2, 0), "no host in vllm_router"),
    (pools(1, 2, 2), "vllm_router has 2 hosts"),
    (pools(1, 1) + [node(9, groups=("vllm_prefill", "vllm_decode"))], "n9 is in vllm_prefill and vllm_decode"),
    (pools(1, 2, 0) + [node(9, groups=("vllm_decode", "vllm_router"))], "n9 is in vllm_decode and vllm_router"),
])
def test_pools_without_hosts_or_with_shared_ones_are_refused(nodes: List[Node], expected: str) -> None:
    assert expected in refusal(nodes, hardware="b300", strategy="pd_cluster", interconnect="rdma")


def test_mega_moe_across_rdma_is_refused_and_a_large_tensor_size_is_warned_of() -> None:
    given = {"moe-backend": "deep_gemm_mega_moe"}
    assert "does not work between nodes over RDMA" in refusal(cluster(2), overrides=given, **B300)
    plan = sound(cluster(4), hardware="gb300", strategy="multi_node_tep", interconnect="nvlink", overrides=given)
    assert any("was seen to crash" in text for text in plan["warnings"])
    assert not any("was seen to crash" in text for text in sound(
        cluster(2), hardware="gb300", strategy="multi_node_tep", interconnect="nvlink", overrides=given)["warnings"])


def test_dspark_by_override_with_pipeline_parallelism_is_refused() -> None:
    text = refusal(cluster(2), hardware="b300", strategy="multi_node_tp_pp", interconnect="rdma",
                   overrides={"speculative-config": {"method": "dspark", "model": "x", "num_speculative_tokens": 4}})
    assert "DSpark does not work with pipeline parallelism" in text


def test_a_kv_connector_on_hopper_is_refused_unless_its_allocator_is_on() -> None:
    given: Dict[str, Any] = {"kv-transfer-config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}}
    assert "expandable_segments:True" in refusal(cluster(2), hardware="h200", strategy="multi_node_tp", interconnect="rdma", overrides=given)
    sound(cluster(2), hardware="h200", strategy="multi_node_tp", interconnect="rdma", overrides={**given, "enable-cumem-allocator": True})


# -- ranks and addresses -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("nodes,expected", [
    ([node(1, role="head"), node(2, role="head")], "vllm_nodes has 2 heads"),
    ([node(1, role="worker"), node(2, role="worker")], "vllm_nodes has no head"),
    ([node(1, role="worker"), node(2)], "the first host of vllm_nodes is the head"),
    ([node(1, role="boss"), node(2)], "vllm_role of n1 is not head or worker"),
    ([node(1, rank=0), node(2, rank=0)], "rank 0 is given to 2 hosts"),
    ([node(1, rank=0), node(2, rank=2)], "the ranks of vllm_nodes are not 0 to 1"),
    ([node(1, rank=0), node(2)], "the ranks of vllm_nodes are not 0 to 1"),
    ([node(1, rank="first"), node(2)], "vllm_rank of n1 is no rank"),
    ([node(1, rank=1, role="head"), node(2, rank=0)], "the head of vllm_nodes is not its rank 0"),
    ([node(1), node(2, host_ip="10.0.0.1")], "n1 and n2 have the same address"),
    ([node(1), node(2, host_ip="127.0.0.1")], "a loopback address"),
    ([node(1), node(2, host_ip="169.254.0.7")], "a link-local address"),
    ([node(1), node(2, host_ip="0.0.0.0")], "no address of one node"),
    ([node(1), node(2, host_ip=None)], "the address of n2 is not known"),
    ([node(1), node(2, host_ip="hgx-02.example")], "the name hgx-02.example of n2 does not resolve"),
    ([node(1), node(2, interface="eth0; reboot")], "vllm_interface of n2 is no name of an interface"),
    ([node(1), node(2, listen="everywhere")], "vllm_listen_address of n2 is no IP address"),
])
def test_ranks_and_addresses_that_cannot_work_are_refused(nodes: List[Node], expected: str) -> None:
    assert expected in refusal(nodes, **B300)


def test_a_name_that_resolves_is_taken() -> None:
    plan = sound([node(1), node(2, host_ip="hgx-02.example", resolved=["10.0.0.2"])], **B300)
    assert plan["nodes"]["n2"]["env"]["VLLM_HOST_IP"] == "10.0.0.2"


def test_a_declared_interface_that_the_node_does_not_have_is_refused() -> None:
    text = refusal([dressed(1), dressed(2, interface="ib0")], **B300)
    assert "n2 has no interface ib0" in text and "eno1 192.0.2.12" in text


def test_an_address_that_the_node_does_not_have_is_refused() -> None:
    assert "vllm_host_ip 10.9.9.9 is not an address of n2" in refusal([dressed(1), dressed(2, host_ip="10.9.9.9")], **B300)


def test_an_address_of_another_interface_is_refused_with_both() -> None:
    text = refusal([dressed(1), dressed(2, interface="rdma0")], **B300)
    assert "do not go together" in text and "is an address of eno1" in text


# -- facts -------------------------------------------------------------------------------------------------------
def test_errno_524_without_peermem_everywhere_is_refused_by_name() -> None:
    nodes = [dressed(1, faults=["errno_524"]), dressed(2, faults=["peermem_missing"]), dressed(3)]
    text = refusal(nodes, hardware="b300", strategy="multi_node_dep", interconnect="rdma")
    assert "NCCL_DMABUF_ENABLE=0 is needed and not allowed" in text
    assert "nvidia_peermem not loaded: n2" in text and "errno 524 on n1" in text


def test_turning_dma_buf_off_by_hand_needs_peermem_too() -> None:
    words: Dict[str, Any] = {"hardware": "b300", "strategy": "multi_node_dep", "interconnect": "rdma", "env_overrides": {"NCCL_DMABUF_ENABLE": 0}}
    assert "nvidia_peermem not loaded: n2" in refusal([dressed(1), dressed(2, faults=["peermem_missing"])], **words)
    assert "nvidia_peermem not known: n1, n2" in refusal(cluster(2), **words)
    assert sound([dressed(1), dressed(2)], **words)["nodes"]["n1"]["env"]["NCCL_DMABUF_ENABLE"] == "0"


def test_keeping_dma_buf_on_where_it_was_refused_is_refused() -> None:
    text = refusal([dressed(1, faults=["errno_524"]), dressed(2)], hardware="b300", strategy="multi_node_dep", interconnect="rdma",
                   env_overrides={"NCCL_DMABUF_ENABLE": "1"})
    assert "NCCL_DMABUF_ENABLE=1 cannot work" in text


def test_errno_524_does_not_matter_where_nothing_moves_over_rdma() -> None:
    sound([dressed(1, faults=["errno_524", "peermem_missing"])], hardware="b300", strategy="single_node_tp")


def test_a_node_that_lost_a_gpu_is_refused_with_the_count() -> None:
    text = refusal([dressed(1), dressed(2, faults=["gpu_lost"])], hardware="b300", strategy="multi_node_dep", interconnect="rdma")
    assert "n2 has 7 working GPUs, and the plan needs 8" in text


def test_other_hardware_than_declared_is_refused_with_both() -> None:
    text = refusal([dressed(1), dressed(2, "b200")], hardware="b300", strategy="multi_node_dep", interconnect="rdma")
    assert "n2 is b200, and the plan is for b300" in text


def test_trays_in_different_cliques_are_refused() -> None:
    nodes = [dressed(1, "gb300"), dressed(2, "gb300"), dressed(3, "gb300"), dressed(4, "gb300", ["clique_other"])]
    text = refusal(nodes, hardware="gb300", strategy="multi_node_dep", interconnect="nvlink")
    assert "not in one NVLink clique" in text and "n4" in text


def test_an_image_too_old_and_a_version_that_is_not_there_are_refused() -> None:
    facts = {"container": {"image": {"name": "vllm/vllm-openai-rocm:kimi-k3", "present": True, "vllm": "0.26.0"}}}
    assert "vLLM 0.26.0 does not know Kimi K3" in refusal([node(1, facts)], hardware="mi355x", strategy="single_node_tp")
    facts = {"container": {"image": {"name": "vllm/vllm-openai-rocm:v0.33.0", "present": True, "vllm": "0.32.0"}}}
    text = refusal([node(1, facts)], hardware="mi355x", strategy="single_node_tp", version="0.33.0")
    assert "vllm_version says 0.33.0, and vllm/vllm-openai-rocm:v0.33.0 holds 0.32.0" in text


@pytest.mark.parametrize("name,words", [
    ("NCCL_MNNVL_ENABLE", B300), ("NVIDIA_IMEX_CHANNELS", B300),
    ("UCX_TLS", {"hardware": "gb300", "strategy": "multi_node_tep", "interconnect": "nvlink"}),
    ("NCCL_IB_HCA", {"hardware": "gb300", "strategy": "multi_node_tep", "interconnect": "nvlink"}),
    ("NCCL_DMABUF_ENABLE", {"hardware": "gb300", "strategy": "multi_node_tep", "interconnect": "nvlink"}),
])
def test_variables_of_the_other_interconnect_are_refused(name: str, words: Dict[str, Any]) -> None:
    assert "%s is for" % name in refusal(cluster(4), env_overrides={name: "1"}, **words)


def test_the_rust_frontend_is_refused_on_cpu() -> None:
    assert "VLLM_USE_RUST_FRONTEND is not for hardware cpu" in refusal(
        cluster(1), hardware="cpu", strategy="single_node_tp", env_overrides={"VLLM_USE_RUST_FRONTEND": "1"})


# -- words and overrides -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("words,expected", [
    ({"hardware": "b3000"}, "vllm_hardware: 'b3000' is not one of"),
    ({"version": "latest", "image": "a:b"}, "vllm_version: 'latest' is not a version"), ({"version": "0.26"}, "is older than 0.27.1"),
    ({"port": 0}, "vllm_port: 0 is not a whole number from 1 to 65535"), ({"port": "many"}, "vllm_port"), ({"port": True}, "vllm_port"),
    ({"shutdown_timeout": -1}, "vllm_shutdown_timeout"), ({"engine": "lxc"}, "vllm_engine: 'lxc' is not one of docker, podman"),
    ({"weights_path": "relative"}, "vllm_weights_path"), ({"weights_path": "/a/../b"}, "vllm_weights_path"), ({"model": "a b"}, "vllm_model"),
    ({"model": "--help"}, "vllm_model"), ({"revision": "$(id)"}, "vllm_revision"), ({"router_image": "-v"}, "vllm_router_image"),
    ({"overrides": "--help"}, "vllm_overrides: '--help' is not a table"), ({"env_overrides": ["A"]}, "vllm_env_overrides"),
    ({"overrides": {"max-num-seq": 5}}, "vLLM 0.32.0 has no flag 'max-num-seq'; did you mean --max-num-seqs"),
    ({"overrides": {"swap-space": 4}}, "--swap-space was removed from vLLM"),
    ({"overrides": {"disable_log_requests": True}}, "use --no-enable-log-requests"),
    ({"overrides": {"api-key": "s3cret"}}, "--api-key cannot be overridden; a secret does not belong on a command line"),
    ({"overrides": {"hf_token": "s3cret"}}, "--hf-token cannot be overridden"), ({"overrides": {"-tp": 4}}, "--tensor-parallel-size cannot"),
    ({"overrides": {"headless": True}}, "--headless cannot"), ({"overrides": {"host": "0.0.0.0"}}, "set vllm_host_ip"),
    ({"overrides": {"port": 1}}, "set vllm_port"), ({"overrides": {"max-num-seqs": "five"}}, "--max-num-seqs takes a whole number"),
    ({"overrides": {"max-num-seqs": True}}, "--max-num-seqs takes a value"), ({"overrides": {"max-num-seqs": [1]}}, "takes one value"),
    ({"overrides": {"enforce-eager": "yes"}}, "--enforce-eager takes true or false"),
    ({"overrides": {"kv-cache-dtype": "fp7"}}, "--kv-cache-dtype takes one of"),
    ({"overrides": {"attention-config": "not json"}}, "--attention-config takes a JSON object"),
    ({"overrides": {"gpu-memory-utilization": "lots"}}, "takes a number"), ({"overrides": {"load-format": "a\nb"}}, "takes one line"),
    ({"overrides": {"load-format": ""}}, "takes one line"), ({"overrides": {"enable-prefix-caching": True, "no_enable_prefix_caching": True}}, "given twice"),
    ({"env_overrides": {"VLLM_API_KEY": "s3cret"}}, "VLLM_API_KEY is a secret"), ({"env_overrides": {"HF_TOKEN": "x"}}, "HF_TOKEN is a secret"),
    ({"env_overrides": {"A B": 1}}, "is not the name of a variable"), ({"env_overrides": {"A": "1\n2"}}, "A takes one line"),
    ({"env_overrides": {"A": {"b": 1}}}, "A takes one value"), ({"env_overrides": {"VLLM_HOST_IP": "10.0.0.1"}}, "set vllm_host_ip"),
])
def test_words_that_mean_nothing_are_refused_by_name(words: Dict[str, Any], expected: str) -> None:
    text = refusal(cluster(1), **{"hardware": "b300", "strategy": "single_node_tp", **words})
    assert expected in text and "s3cret" not in text


def test_overrides_come_last_and_null_takes_away() -> None:
    plan = sound(cluster(1), hardware="b300", strategy="single_node_tp",
                 overrides={"max_model_len": "32K", "enable-prefix-caching": False, "load-format": None, "served-model-name": ["k3", "kimi"],
                            "attention-config": {"use_prefill_query_quantization": True}, "disable-log-stats": True},
                 env_overrides={"VLLM_USE_RUST_FRONTEND": None, "NCCL_DEBUG": "INFO", "VLLM_LOG_STATS_INTERVAL": 5})
    entry = plan["nodes"]["n1"]
    argv = entry["argv"]
    assert argv[argv.index("--max-model-len") + 1] == "32K" and "--no-enable-prefix-caching" in argv and "--enable-prefix-caching" not in argv
    assert "--load-format" not in argv and argv[argv.index("--served-model-name") + 1:][:2] == ["k3", "kimi"] and "--disable-log-stats" in argv
    assert argv[argv.index("--attention-config") + 1] == '{"use_prefill_query_quantization":true}'
    assert "VLLM_USE_RUST_FRONTEND" not in entry["env"] and entry["env"]["NCCL_DEBUG"] == "INFO" and entry["env"]["VLLM_LOG_STATS_INTERVAL"] == "5"
    layers = {reason["what"].split(" ")[0].split("=")[0]: reason["layer"] for reason in entry["reasons"]}
    assert layers["--max-model-len"] == "vllm_overrides" and layers["NCCL_DEBUG"] == "vllm_env_overrides"


def test_prefix_caching_is_stated_though_its_flag_is_taken_out() -> None:
    entry = sound(cluster(1), hardware="b300", strategy="single_node_tp", overrides={"enable-prefix-caching": None})["nodes"]["n1"]
    assert "--no-enable-prefix-caching" in entry["argv"]


def test_a_share_of_ones_own_is_in_the_arithmetic() -> None:
    text = refusal(cluster(1), hardware="b300", strategy="single_node_tp", overrides={"gpu-memory-utilization": 0.7})
    assert "1 × 2,144 GB × 0.7 = 1,501 GB" in text


def test_a_refusal_keeps_what_was_decided_so_far() -> None:
    plan = planned(cluster(1), hardware="b200", strategy="single_node_tp")
    assert plan["engines"][0]["nodes"] == ["n1"] and plan["hardware"] == "b200" and len(whys(plan)) == 1


# -- hostile facts -----------------------------------------------------------------------------------------------
junk = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8)
PATHS = ("host.addresses", "rdma.hcas", "rdma.default_route", "gpu.gpus", "gpu.pci", "gpu.topology", "gpudirect.peermem", "gpudirect.errno524",
         "gpudirect.dmabuf", "container.image", "container.cdi", "container.docker", "fabric.sw_mng")


@given(st.dictionaries(st.sampled_from(PATHS), junk, max_size=6), st.dictionaries(
    st.sampled_from(["host_ip", "interface", "rank", "role", "listen", "ansible_host", "resolved", "groups"]), junk, max_size=4),
    st.sampled_from(["multi_node_dep", "single_node_tp", "pd_cluster", "auto"]))
@settings(deadline=None)
def test_any_facts_and_host_variables_give_a_plan_or_a_refusal(found: Dict[str, Any], declared: Dict[str, Any], strategy: str) -> None:
    facts: Dict[str, Any] = {}
    for path, value in found.items():
        section, key = path.split(".")
        facts.setdefault(section, {})[key] = value
    nodes = [Node("n1", facts, {"groups": ["vllm_nodes"], "host_ip": "10.0.0.1", **declared}), node(2)]
    plan = planned(nodes, hardware="b300", strategy=strategy, interconnect="auto")
    assert bool(plan["refused"]) != bool(plan["nodes"])
    json.dumps(plan)
    for name, text in render.files(plan).items():
        assert name == "plan.json" or "\x1b" not in text


@given(st.dictionaries(st.sampled_from(["vllm_" + word for word in (
    "profile", "variant", "hardware", "strategy", "interconnect", "features", "image", "version", "model", "revision", "weights_path", "port",
    "shutdown_timeout", "engine", "router_image", "overrides", "env_overrides")]), junk, max_size=5))
@settings(deadline=None)
def test_any_words_give_a_plan_or_a_refusal(words: Dict[str, Any]) -> None:
    plan = build({"vllm_hardware": "b300", **words}, cluster(2))
    assert bool(plan["refused"]) != bool(plan["nodes"])
    json.dumps(plan)


@given(st.data(), st.sampled_from(["b300", "gb300"]))
@settings(deadline=None, max_examples=150)
def test_real_looking_facts_with_a_wrong_piece_give_a_plan_or_a_refusal(data: Any, hardware: str) -> None:
    facts = json.loads(json.dumps({key: value for key, value in dressed(1, hardware, ["errno_524"]).facts.items() if key in (
        "host", "rdma", "gpu", "gpudirect", "container", "fabric")}))
    for _round in range(data.draw(st.integers(1, 3))):
        place: Any = facts
        for _depth in range(data.draw(st.integers(1, 6))):
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], (dict, list)) or not place[key]:
                break
            parent, place = place, place[key]
        else:
            place, key = parent, key
        place[key] = data.draw(junk)
    nodes = [Node("n%d" % index, facts if index == 1 else dressed(index, hardware).facts, {"groups": ["vllm_nodes"]}) for index in (1, 2, 3, 4)]
    plan = planned(nodes, hardware=hardware, strategy="multi_node_dep")
    assert bool(plan["refused"]) != bool(plan["nodes"])
    json.dumps(plan)
