# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan/build.py: shapes of plans, against what the recipe and the field say."""

from __future__ import annotations

import json

import pytest

from tests.unit.plan.cluster import cluster, dressed, flags, node, pools, sound

BLACKWELL = {
    "--trust-remote-code": True, "--gpu-memory-utilization": "0.95", "--load-format": "fastsafetensors",
    "--no-enable-flashinfer-autotune": True, "--max-model-len": "1048576", "--kv-cache-dtype": "fp8",
    "--attention-config": '{"use_prefill_query_quantization":true,"mla_prefill_backend":"flashinfer"}', "--enable-prefix-caching": True,
    "--enable-auto-tool-choice": True, "--tool-call-parser": "kimi_k3", "--reasoning-parser": "kimi_k3",
}
BLACKWELL_ENV = {
    "VLLM_ALLREDUCE_USE_FLASHINFER": "1", "VLLM_ENGINE_READY_TIMEOUT_S": "3600", "VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_USE_RUST_FRONTEND": "1",
}
HOPPER = {
    "--trust-remote-code": True, "--gpu-memory-utilization": "0.97", "--max-num-seqs": "5", "--max-model-len": "32768",
    "--moe-backend": "marlin", "--disable-custom-all-reduce": True, "--no-enable-flashinfer-autotune": True,
    "--max-num-batched-tokens": "4096", "--attention-backend": "FLASHMLA", "--no-enable-prefix-caching": True,
    "--enable-auto-tool-choice": True, "--tool-call-parser": "kimi_k3", "--reasoning-parser": "kimi_k3",
}
AMD = {
    "--trust-remote-code": True, "--gpu-memory-utilization": "0.95", "--load-format": "auto", "--mm-encoder-tp-mode": "data",
    "--max-num-seqs": "128", "--max-num-batched-tokens": "4096", "--no-enable-prefix-caching": True,
    "--compilation-config": '{"cudagraph_mode":"FULL_DECODE_ONLY","custom_ops":["+fused_rms_norm_gated"]}',
    "--enable-auto-tool-choice": True, "--tool-call-parser": "kimi_k3", "--reasoning-parser": "kimi_k3",
}
OURS = {"--port": "8000", "--shutdown-timeout": "60"}


def serving(address: str, **more: object) -> dict:
    return {**OURS, "--host": address, **more}


def test_one_b300_node_is_the_recipe_and_our_own_few() -> None:
    plan = sound(cluster(1), hardware="b300", strategy="single_node_tp")
    entry = plan["nodes"]["n1"]
    assert entry["argv"][:3] == ["vllm", "serve", "moonshotai/Kimi-K3"]
    assert flags(entry) == {**BLACKWELL, **serving("10.0.0.1"), "--tensor-parallel-size": "8"}
    assert entry["env"] == {**BLACKWELL_ENV, "HF_HOME": "/var/lib/vllm"}
    assert (entry["role"], entry["rank"], entry["ports"], entry["health_url"]) == ("head", 0, {"api": 8000}, "http://10.0.0.1:8000/health")
    assert "/dev/infiniband" not in entry["container"]


def test_every_node_of_single_node_tp_is_an_engine_of_its_own() -> None:
    plan = sound(cluster(3), hardware="b300", strategy="single_node_tp")
    assert [engine["nodes"] for engine in plan["engines"]] == [["n1"], ["n2"], ["n3"]]
    assert {entry["role"] for entry in plan["nodes"].values()} == {"head"}
    assert [flags(entry)["--host"] for entry in plan["nodes"].values()] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert any("independent replicas" in text for text in plan["assumed"])


def test_tensor_parallel_over_nodes_has_a_head_and_headless_workers() -> None:
    plan = sound(cluster(2), hardware="h200", strategy="multi_node_tp", interconnect="rdma")
    head, worker = plan["nodes"]["n1"], plan["nodes"]["n2"]
    several = {"--tensor-parallel-size": "16", "--nnodes": "2", "--master-addr": "10.0.0.1"}
    assert flags(head) == {**HOPPER, **several, "--node-rank": "0", **serving("10.0.0.1")}
    assert flags(worker) == {**HOPPER, **several, "--node-rank": "1", "--headless": True}
    assert (worker["role"], worker["health_url"], worker["ports"]) == ("worker", None, {"master": 29501, "link": 29490})
    assert head["env"]["VLLM_HOST_IP"] == "10.0.0.1" and worker["env"]["VLLM_HOST_IP"] == "10.0.0.2"
    assert worker["env"]["GLOO_SOCKET_IFNAME"] == "eno1" and worker["env"]["NCCL_SOCKET_IFNAME"] == "=eno1"
    assert worker["env"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_tep_over_rdma_adds_expert_parallelism_and_its_backend() -> None:
    plan = sound(cluster(2), hardware="b200", strategy="multi_node_tep", interconnect="rdma")
    assert flags(plan["nodes"]["n1"]) == {
        **BLACKWELL, **serving("10.0.0.1"), "--tensor-parallel-size": "16", "--nnodes": "2", "--node-rank": "0", "--master-addr": "10.0.0.1",
        "--enable-expert-parallel": True, "--all2all-backend": "deepep_v2"}


def test_tp_pp_keeps_the_strategys_share_and_cumem_on_rdma() -> None:
    plan = sound(cluster(2), hardware="b300", strategy="multi_node_tp_pp", interconnect="rdma")
    worker = plan["nodes"]["n2"]
    assert flags(worker) == {
        **BLACKWELL, "--gpu-memory-utilization": "0.90", "--max-num-batched-tokens": "8192", "--tensor-parallel-size": "8",
        "--pipeline-parallel-size": "2", "--nnodes": "2", "--node-rank": "1", "--master-addr": "10.0.0.1", "--headless": True}
    assert worker["env"]["NCCL_CUMEM_ENABLE"] == "1" and worker["env"]["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "1800"
    assert "NCCL_MNNVL_ENABLE" not in worker["env"]


def test_hardware_wins_over_the_strategy_for_the_same_flag() -> None:
    found = flags(sound(cluster(2), hardware="h200", strategy="multi_node_tp_pp", interconnect="rdma")["nodes"]["n1"])
    assert (found["--gpu-memory-utilization"], found["--max-num-batched-tokens"]) == ("0.97", "4096")


def test_dep_serves_on_every_node() -> None:
    plan = sound(cluster(2), hardware="b300", strategy="multi_node_dep", interconnect="rdma")
    shared = {**BLACKWELL, "--enable-expert-parallel": True, "--data-parallel-hybrid-lb": True, "--data-parallel-size": "16",
              "--data-parallel-size-local": "8", "--data-parallel-address": "10.0.0.1", "--all2all-backend": "deepep_v2"}
    assert flags(plan["nodes"]["n1"]) == {**shared, **serving("10.0.0.1")}
    assert flags(plan["nodes"]["n2"]) == {**shared, "--data-parallel-start-rank": "8", **serving("10.0.0.2")}
    assert [entry["health_url"] for entry in plan["nodes"].values()] == ["http://10.0.0.1:8000/health", "http://10.0.0.2:8000/health"]
    assert plan["nodes"]["n1"]["ports"] == {"api": 8000, "dp_rpc": 29550, "link": 29490}


def test_dep_on_trays_uses_mega_moe_over_nvlink_and_not_over_rdma() -> None:
    over_nvlink = sound(cluster(4), hardware="gb300", strategy="multi_node_dep", interconnect="nvlink")["nodes"]["n2"]
    assert flags(over_nvlink)["--moe-backend"] == "deep_gemm_mega_moe"
    assert flags(over_nvlink)["--all2all-backend"] == "flashinfer_nvlink_one_sided"
    assert {name: over_nvlink["env"][name] for name in ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")} == dict.fromkeys(
        ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"), "1")
    assert "/dev/nvidia-caps-imex-channels/channel0" in over_nvlink["container"] and "/dev/infiniband" not in over_nvlink["container"]
    over_rdma = sound(cluster(4), hardware="gb300", strategy="multi_node_dep", interconnect="rdma")["nodes"]["n2"]
    assert "--moe-backend" not in flags(over_rdma) and flags(over_rdma)["--all2all-backend"] == "deepep_v2"
    assert not {"NCCL_MNNVL_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE"} & set(over_rdma["env"])
    assert "/dev/nvidia-caps-imex-channels/channel0" not in over_rdma["container"] and "/dev/infiniband" in over_rdma["container"]
    assert any("mega-MoE" in reason["why"] for reason in over_rdma["reasons"])


def test_tp_dp_workers_are_headless_unlike_in_the_recipe() -> None:
    plan = sound(cluster(4), hardware="gb300", strategy="multi_node_tp_dp", interconnect="nvlink")
    head, worker = flags(plan["nodes"]["n1"]), flags(plan["nodes"]["n3"])
    assert (head["--tensor-parallel-size"], head["--data-parallel-size"], head["--data-parallel-size-local"]) == ("4", "4", "1")
    assert "--headless" not in head and "--data-parallel-start-rank" not in head
    assert worker["--headless"] is True and worker["--data-parallel-start-rank"] == "2" and "--host" not in worker
    assert plan["nodes"]["n3"]["health_url"] is None


def test_pd_cluster_has_two_pools_and_a_router() -> None:
    plan = sound(pools(2, 2), hardware="b300", strategy="pd_cluster", interconnect="rdma")
    assert [(entry["role"], entry["rank"]) for entry in plan["nodes"].values()] == [
        ("prefill", 0), ("prefill", 1), ("decode", 0), ("decode", 1), ("router", 0)]
    prefill, decode = plan["nodes"]["n1"], plan["nodes"]["n4"]
    common = {"--trust-remote-code": True, "--gpu-memory-utilization": "0.95", "--enable-auto-tool-choice": True, "--tool-call-parser": "kimi_k3",
              "--reasoning-parser": "kimi_k3", "--no-disable-hybrid-kv-cache-manager": True, "--enable-expert-parallel": True,
              "--all2all-backend": "deepep_v2", "--shutdown-timeout": "60", "--no-enable-prefix-caching": True}
    connector = '{"kv_connector":"NixlConnector","kv_role":"%s","kv_load_failure_policy":"fail"}'
    assert flags(prefill) == {
        **common, "--host": "10.0.0.1", "--port": "8001", "--tensor-parallel-size": "16", "--nnodes": "2", "--node-rank": "0",
        "--master-addr": "10.0.0.1", "--kv-transfer-config": connector % "kv_producer", "--enforce-eager": True, "--no-async-scheduling": True,
        "--max-num-batched-tokens": "16384", "--no-enable-flashinfer-autotune": True}
    assert flags(decode) == {
        **common, "--host": "10.0.0.4", "--port": "8002", "--tensor-parallel-size": "1", "--data-parallel-size": "16",
        "--data-parallel-size-local": "8", "--data-parallel-start-rank": "8", "--data-parallel-address": "10.0.0.3",
        "--data-parallel-rpc-port": "29550", "--data-parallel-hybrid-lb": True, "--kv-transfer-config": connector % "kv_consumer",
        "--compilation-config": '{"cudagraph_mode":"FULL_DECODE_ONLY"}', "--max-num-seqs": "8", "--max-num-batched-tokens": "32"}
    assert prefill["env"]["VLLM_SSM_CONV_STATE_LAYOUT"] == decode["env"]["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"
    assert prefill["env"]["VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT"] == "1" and "VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT" not in decode["env"]
    assert (prefill["env"]["VLLM_NIXL_SIDE_CHANNEL_HOST"], prefill["env"]["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == ("10.0.0.1", "5557")
    assert (decode["env"]["VLLM_NIXL_SIDE_CHANNEL_HOST"], decode["env"]["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == ("10.0.0.4", "5558")
    assert prefill["env"]["UCX_TLS"] == "rc,cuda_copy"
    assert not {"NCCL_MNNVL_ENABLE", "NCCL_NVLS_ENABLE", "UCX_NET_DEVICES", "NCCL_CUMEM_ENABLE"} & set(prefill["env"]) & set(decode["env"])


def test_pools_on_cpus_spread_no_experts_and_the_router_is_warned_of() -> None:
    plan = sound(pools(1, 1), hardware="cpu", strategy="pd_cluster", interconnect="none")
    assert all("--enable-expert-parallel" not in entry["argv"] for entry in plan["nodes"].values())
    # vLLM 0.32 refuses --data-parallel-hybrid-lb for one rank.
    assert all(not word.startswith("--data-parallel") for entry in plan["nodes"].values() for word in entry["argv"])
    assert any("the router asks clients for no key" in text for text in plan["warnings"])
    there = sound(pools(1, 2), hardware="b300", strategy="pd_cluster", interconnect="rdma")
    assert all("--enable-expert-parallel" in entry["argv"] for entry in there["nodes"].values() if entry["role"] != "router")


def test_the_router_knows_the_prefill_head_and_every_decode_node() -> None:
    router = sound(pools(2, 2), hardware="b300", strategy="pd_cluster", interconnect="rdma")["nodes"]["n5"]
    assert router["argv"] == [
        "vllm-router", "--policy", "round_robin", "--vllm-pd-disaggregation", "--prefill", "http://10.0.0.1:8001", "--decode", "http://10.0.0.3:8002",
        "--decode", "http://10.0.0.4:8002", "--host", "10.0.0.5", "--port", "30000", "--intra-node-data-parallel-size", "1",
        "--worker-startup-timeout-secs", "3600"]
    assert router["health_url"] == "http://10.0.0.5:30000/health"


def test_pd_on_trays_sets_nvlink_variables_and_no_rdma_ones() -> None:
    plan = sound(pools(4, 4), hardware="gb300", strategy="pd_cluster", interconnect="nvlink")
    for name in ("n1", "n5"):
        env = plan["nodes"][name]["env"]
        assert (env["NCCL_MNNVL_ENABLE"], env["NCCL_CUMEM_ENABLE"], env["NCCL_NVLS_ENABLE"], env["UCX_NET_DEVICES"]) == ("1", "1", "1", "all")
        assert "UCX_TLS" not in env
    assert flags(plan["nodes"]["n5"])["--moe-backend"] == "deep_gemm_mega_moe" and "--moe-backend" not in flags(plan["nodes"]["n1"])


def test_pools_are_taken_from_the_groups_without_a_declared_strategy() -> None:
    assert sound(pools(1, 2), hardware="b300")["strategy"] == "pd_cluster"


def test_amd_gets_its_layer_its_devices_and_no_nvidia_words() -> None:
    entry = sound(cluster(1), hardware="mi355x", strategy="single_node_tp")["nodes"]["n1"]
    assert flags(entry) == {**AMD, **serving("10.0.0.1"), "--tensor-parallel-size": "8"}
    assert entry["env"] == {
        "VLLM_ROCM_USE_AITER": "1", "SAFETENSORS_FAST_GPU": "1", "VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4": "1", "AITER_BF16_FP8_MOE_BOUND": "0",
        "VLLM_USE_BREAKABLE_CUDAGRAPH": "0", "VLLM_ENGINE_READY_TIMEOUT_S": "3600", "HF_HOME": "/var/lib/vllm"}
    assert entry["image"] == "vllm/vllm-openai-rocm:kimi-k3"
    assert "/dev/kfd" in entry["container"] and "--gpus" not in entry["container"]
    assert "--all2all-backend" not in flags(sound(cluster(2), hardware="mi355x", strategy="multi_node_dep", interconnect="rdma")["nodes"]["n1"])


def test_cpu_never_has_the_rust_frontend_nor_gpu_words() -> None:
    plan = sound(cluster(2), hardware="cpu", strategy="multi_node_tp", model="/srv/model")
    for entry in plan["nodes"].values():
        assert not {"VLLM_USE_RUST_FRONTEND", "NCCL_SOCKET_IFNAME", "VLLM_ENGINE_READY_TIMEOUT_S"} & set(entry["env"])
        assert flags(entry)["--tensor-parallel-size"] == "2" and "--gpus" not in entry["container"]
        assert flags(entry)["--enforce-eager"] is True and flags(entry)["--gpu-memory-utilization"] == "0.3"
    assert flags(plan["nodes"]["n1"])["--served-model-name"] == "moonshotai/Kimi-K3" and plan["nodes"]["n1"]["argv"][2] == "/srv/model"
    assert "/srv/model:/srv/model:ro" in plan["nodes"]["n1"]["container"]


def test_nvfp4_changes_the_model_and_the_arithmetic() -> None:
    plan = sound(cluster(1), hardware="b300", strategy="single_node_tp", variant="nvfp4")
    assert plan["nodes"]["n1"]["argv"][2] == "RedHatAI/Kimi-K3-NVFP4"
    assert plan["engines"][0]["fits"] == "1,650 GB of weights into 1 × 2,144 GB × 0.95 = 2,037 GB"


@pytest.mark.parametrize("feature,expected", [
    ("text_only", {"--language-model-only": True}),
    ("dcp", {"--decode-context-parallel-size": "8", "--dcp-comm-backend": "a2a", "--attention-backend": "TOKENSPEED_MLA"}),
    ("prefix_caching", {"--enable-prefix-caching": True}),
])
def test_a_feature_brings_its_flags(feature: str, expected: dict) -> None:
    found = flags(sound(cluster(1), hardware="b300", strategy="single_node_tp", features=[feature])["nodes"]["n1"])
    assert expected.items() <= found.items()
    assert "--reasoning-parser" not in found


def test_dspark_is_as_the_recipe_has_it() -> None:
    found = flags(sound(cluster(1), hardware="b300", strategy="single_node_tp", features=["spec_decoding"])["nodes"]["n1"])
    assert json.loads(found["--speculative-config"]) == {
        "model": "RedHatAI/Kimi-K3-speculator.dspark", "num_speculative_tokens": 8, "method": "dspark", "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block"}


def test_dcp_keeps_the_quantised_query_that_fp8_needs() -> None:
    found = flags(sound(cluster(1), hardware="b300", strategy="single_node_tp", features=["dcp"])["nodes"]["n1"])
    assert json.loads(found["--attention-config"]) == {"use_prefill_query_quantization": True, "mla_prefill_backend": "TRTLLM_RAGGED"}


@pytest.mark.parametrize("version,flag", [("", "--no-enable-prefix-caching"), ("0.32.0", "--enable-prefix-caching")])
def test_prefix_caching_is_always_stated_as_the_version_has_it(version: str, flag: str) -> None:
    assert flag in flags(sound(cluster(2), hardware="h200", strategy="multi_node_tp", interconnect="rdma", version=version)["nodes"]["n1"])


def test_prefix_caching_stays_off_in_the_decode_pool() -> None:
    plan = sound(pools(1, 2), hardware="b300", strategy="pd_cluster", interconnect="rdma", features=["prefix_caching"])
    assert "--enable-prefix-caching" in flags(plan["nodes"]["n1"]) and "--no-enable-prefix-caching" in flags(plan["nodes"]["n2"])


# -- facts -----------------------------------------------------------------------------------------------------
def test_facts_pin_hcas_digest_and_devices() -> None:
    plan = sound([dressed(1), dressed(2)], hardware="b300", strategy="multi_node_dep", interconnect="rdma")
    entry = plan["nodes"]["n2"]
    hcas = entry["env"]["NCCL_IB_HCA"]
    assert hcas.startswith("=") and {word.split(":")[0] for word in hcas[1:].split(",")} == {"mlx5_%d" % i for i in range(8)}
    assert "@sha256:" in entry["image"] and "nvidia.com/gpu=all" in entry["container"]
    assert not any("not known" in text for text in plan["assumed"])


def test_a_dead_port_is_not_in_the_list() -> None:
    plan = sound([dressed(1, faults=["port_down"]), dressed(2)], hardware="b300", strategy="multi_node_dep", interconnect="rdma")
    words = {word.split(":")[0].lstrip("=") for word in plan["nodes"]["n1"]["env"]["NCCL_IB_HCA"].split(",")}
    assert "mlx5_5" not in words and len(words) == 7
    assert any("7 usable compute HCAs" in text for text in plan["warnings"])


def test_trays_over_nvlink_have_no_hca_list_though_they_have_hcas() -> None:
    plan = sound([dressed(i, "gb300") for i in (1, 2, 3, 4)], strategy="multi_node_dep", interconnect="nvlink")
    assert all(not {"NCCL_IB_HCA", "UCX_TLS", "NCCL_DMABUF_ENABLE"} & set(entry["env"]) for entry in plan["nodes"].values())


def test_errno_524_with_peermem_everywhere_turns_dma_buf_off_on_every_node() -> None:
    plan = sound([dressed(1, faults=["errno_524"]), dressed(2)], hardware="b300", strategy="multi_node_dep", interconnect="rdma")
    assert [entry["env"].get("NCCL_DMABUF_ENABLE") for entry in plan["nodes"].values()] == ["0", "0"]
    quiet = sound([dressed(1), dressed(2)], hardware="b300", strategy="multi_node_dep", interconnect="rdma")
    assert all("NCCL_DMABUF_ENABLE" not in entry["env"] for entry in quiet["nodes"].values())


def test_addresses_and_interfaces_come_from_facts_when_nothing_is_declared() -> None:
    nodes = [dressed(i, host_ip=None, interface=None) for i in (1, 2)]
    plan = sound(nodes, hardware="b300", strategy="multi_node_tp", interconnect="rdma")
    assert plan["nodes"]["n2"]["env"]["VLLM_HOST_IP"] == "192.0.2.12" and plan["nodes"]["n2"]["env"]["GLOO_SOCKET_IFNAME"] == "eno1"
    assert flags(plan["nodes"]["n2"])["--master-addr"] == "192.0.2.11"
    assert any("default route" in text for text in plan["assumed"])


def test_hardware_is_told_by_the_gpus() -> None:
    plan = sound([dressed(1, "gb300"), dressed(2, "gb300"), dressed(3, "gb300"), dressed(4, "gb300")])
    assert (plan["hardware"], plan["strategy"], plan["interconnect"]) == ("gb300", "multi_node_tep", "nvlink")
    assert any(text.startswith("vllm_strategy:") for text in plan["assumed"])


def test_an_unknown_interface_is_a_placeholder_and_the_plan_not_complete() -> None:
    plan = sound(cluster(2, interface=None), hardware="b300", strategy="multi_node_tp", interconnect="rdma")
    assert plan["complete"] is False and plan["nodes"]["n1"]["env"]["GLOO_SOCKET_IFNAME"] == "IFACE_OF_n1"
    assert sound(cluster(2), hardware="b300", strategy="multi_node_tp", interconnect="rdma")["complete"] is True


def test_a_lone_node_without_an_address_listens_on_loopback() -> None:
    plan = sound([node(1, host_ip=None, interface=None)], hardware="b300", strategy="single_node_tp")
    assert flags(plan["nodes"]["n1"])["--host"] == "127.0.0.1"
    assert any("127.0.0.1 only" in text for text in plan["assumed"])


def test_a_listen_address_of_its_own_and_ipv6() -> None:
    plan = sound([node(1, host_ip="2001:db8::1", listen="2001:db8::2")], hardware="b300", strategy="single_node_tp")
    assert plan["nodes"]["n1"]["health_url"] == "http://[2001:db8::2]:8000/health" and flags(plan["nodes"]["n1"])["--host"] == "2001:db8::2"


def test_a_multi_node_strategy_on_one_node_has_nothing_between_nodes() -> None:
    entry = sound([dressed(1)], hardware="b300", strategy="multi_node_tep", interconnect="rdma")["nodes"]["n1"]
    assert not {"VLLM_HOST_IP", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME"} & set(entry["env"]) and "/dev/infiniband" not in entry["container"]
    assert not {"--nnodes", "--all2all-backend"} & set(flags(entry)) and flags(entry)["--tensor-parallel-size"] == "8"


# -- ranks -----------------------------------------------------------------------------------------------------
def test_declared_ranks_and_heads_win_over_the_inventorys_order() -> None:
    plan = sound([node(1, rank=1), node(2, rank="0")], hardware="b300", strategy="multi_node_tp", interconnect="rdma")
    assert (plan["nodes"]["n2"]["role"], plan["nodes"]["n1"]["role"]) == ("head", "worker")
    plan = sound([node(1), node(2, role="head")], hardware="b300", strategy="multi_node_tp", interconnect="rdma")
    assert flags(plan["nodes"]["n1"])["--master-addr"] == "10.0.0.2" and plan["nodes"]["n1"]["rank"] == 1


# -- versions ----------------------------------------------------------------------------------------------------
def test_renames_follow_the_version() -> None:
    old = sound(cluster(1), hardware="mi355x", strategy="single_node_tp")["nodes"]["n1"]["env"]
    new = sound(cluster(1), hardware="mi355x", strategy="single_node_tp", version="0.32.0")["nodes"]["n1"]["env"]
    assert old["VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4"] == "1" and "VLLM_ROCM_USE_AITER_MOE_SITUV2" not in old
    assert new["VLLM_ROCM_USE_AITER_MOE_SITUV2"] == "a8w4" and "VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4" not in new


@pytest.mark.parametrize("given", [
    {"overrides": {"prefix-cache-retention-interval": 3072}}, {"env_overrides": {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": 3072}}])
def test_the_retention_interval_is_spelt_as_the_version_takes_it(given: dict) -> None:
    old = sound(cluster(1), hardware="b300", strategy="single_node_tp", **given)["nodes"]["n1"]
    new = sound(cluster(1), hardware="b300", strategy="single_node_tp", version="0.32.0", **given)["nodes"]["n1"]
    assert old["env"]["VLLM_PREFIX_CACHE_RETENTION_INTERVAL"] == "3072" and "--prefix-cache-retention-interval" not in flags(old)
    assert flags(new)["--prefix-cache-retention-interval"] == "3072" and "VLLM_PREFIX_CACHE_RETENTION_INTERVAL" not in new["env"]


def test_the_version_in_the_nodes_image_moves_the_plan() -> None:
    facts = {"container": {"image": {"name": "vllm/vllm-openai-rocm:kimi-k3", "present": True, "vllm": "0.32.1"}}}
    plan = sound([node(1, facts)], hardware="mi355x", strategy="single_node_tp")
    assert plan["vllm_version"] == "0.32.1" and plan["nodes"]["n1"]["env"]["VLLM_ROCM_USE_AITER_MOE_SITUV2"] == "a8w4"


def test_a_declared_version_holds_for_a_declared_image_too() -> None:
    entry = sound(cluster(1), hardware="mi355x", strategy="single_node_tp", image="registry.example/vllm:ours", version="0.32.0")["nodes"]["n1"]
    assert entry["image"] == "registry.example/vllm:ours" and "VLLM_ROCM_USE_AITER_MOE_SITUV2" in entry["env"]


def test_a_version_beyond_the_table_is_planned_and_said() -> None:
    plan = sound(cluster(1), hardware="b300", strategy="single_node_tp", version="0.40.0")
    assert any("newer than what is known" in text for text in plan["warnings"])
    assert not any("newer than" in text for text in sound(cluster(1), hardware="b300", strategy="single_node_tp", version="0.33.1")["warnings"])


def test_the_same_words_and_facts_give_the_same_plan() -> None:
    once = sound([dressed(1), dressed(2)], hardware="b300", strategy="multi_node_dep", interconnect="rdma")
    assert json.dumps(once) == json.dumps(sound([dressed(1), dressed(2)], hardware="b300", strategy="multi_node_dep", interconnect="rdma"))
