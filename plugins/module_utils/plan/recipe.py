# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Kimi K3 is served with: layers of flags and variables, as data.

The order is base → strategy → strategy override → hardware override → exact-GPU override → features →
interconnect → the collection's own → the user's; a later layer wins for the same flag or variable. The first
six are the public recipe's; plan/build.py computes what depends on the number of nodes and their addresses.

A flag's value is True (the flag alone), False (its ``--no-`` form) or text.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

from .profiles import RECIPE, Source

RECIPE_PD = Source("https://github.com/vllm-project/recipes/blob/main/strategies/pd_cluster.yaml", "2026-08-20")
CONFIG = Source("https://huggingface.co/moonshotai/Kimi-K3/blob/main/config.json", "2026-08-20")
RETENTION = Source("https://github.com/vllm-project/vllm/issues/50235", "2026-08-20", "1,536 tokens seen in the field")
MNNVL = Source("https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml", "2026-08-20",
               "notes on interconnects; the flags themselves leave them to the reader")
TROUBLESHOOTING = Source("https://docs.vllm.ai/en/v0.32.0/usage/troubleshooting/", "2026-11-29")
NCCL_ENV = Source("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html", "2026-11-01")
TOOLKIT = Source("https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html", "2026-11-01")
OURS = Source("https://github.com/inferops/vllm/blob/main/docs/PLAN.md", "2026-11-29")
ROUTER = Source("https://pypi.org/project/vllm-router/", "2026-11-29", "flags as version 0.1.17 has them")

Flags = Tuple[Tuple[str, Any], ...]
Env = Tuple[Tuple[str, str], ...]


class Layer(NamedTuple):
    """Flags and variables that belong together; `name` is what a reason calls them, `why` one phrase."""

    name: str
    flags: Flags
    env: Env
    source: Source
    why: str = ""


NOTHING = Layer("", (), (), RECIPE)

BASE = Layer("base", (("--trust-remote-code", True), ("--gpu-memory-utilization", "0.95")), (), RECIPE)

# -- strategy: what does not depend on nodes (the rest is computed) ------------------------------------------
_NIXL = '{"kv_connector":"NixlConnector","kv_role":"%s","kv_load_failure_policy":"fail"}'

STRATEGY: Dict[Tuple[str, str], Layer] = {
    ("pd_cluster", "prefill"): Layer("strategy pd_cluster", (
        ("--kv-transfer-config", _NIXL % "kv_producer"), ("--enforce-eager", True), ("--async-scheduling", False),
    ), (), RECIPE_PD, "prefill pool"),
    ("pd_cluster", "decode"): Layer("strategy pd_cluster", (
        ("--kv-transfer-config", _NIXL % "kv_consumer"), ("--compilation-config", '{"cudagraph_mode":"FULL_DECODE_ONLY"}'),
    ), (), RECIPE_PD, "decode pool"),
}
"""(strategy, pool) → layer."""

STRATEGY_OVERRIDE: Dict[Tuple[str, str], Layer] = {
    ("multi_node_tp_pp", ""): Layer("strategy override multi_node_tp_pp", (
        ("--gpu-memory-utilization", "0.90"), ("--max-num-batched-tokens", "8192"),
    ), (
        ("NCCL_CUMEM_ENABLE", "1"), ("VLLM_ENGINE_READY_TIMEOUT_S", "3600"), ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "1800"),
    ), RECIPE, "a pipeline stage needs room beside the weights, and a long request may hold it"),
    ("pd_cluster", "prefill"): Layer("strategy override pd_cluster", (
        ("--max-num-batched-tokens", "16384"), ("--disable-hybrid-kv-cache-manager", False), ("--enable-flashinfer-autotune", False),
    ), (("VLLM_SSM_CONV_STATE_LAYOUT", "DS"), ("VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT", "1")), RECIPE, "prefill pool"),
    ("pd_cluster", "decode"): Layer("strategy override pd_cluster", (
        ("--data-parallel-hybrid-lb", True), ("--enable-prefix-caching", False), ("--max-num-seqs", "8"),
        ("--max-num-batched-tokens", "32"), ("--disable-hybrid-kv-cache-manager", False),
    ), (("VLLM_SSM_CONV_STATE_LAYOUT", "DS"),), RECIPE, "decode pool"),
}

# -- hardware ------------------------------------------------------------------------------------------------
HARDWARE_OVERRIDE: Dict[str, Layer] = {
    "blackwell": Layer("hardware blackwell", (
        ("--load-format", "fastsafetensors"), ("--enable-flashinfer-autotune", False), ("--max-model-len", "1048576"),
        ("--kv-cache-dtype", "fp8"),
        ("--attention-config", '{"use_prefill_query_quantization":true,"mla_prefill_backend":"flashinfer"}'),
        ("--enable-prefix-caching", True),
    ), (
        ("VLLM_ALLREDUCE_USE_FLASHINFER", "1"), ("VLLM_ENGINE_READY_TIMEOUT_S", "3600"), ("VLLM_USE_V2_MODEL_RUNNER", "1"),
        ("VLLM_USE_RUST_FRONTEND", "1"),
    ), RECIPE),
    "hopper": Layer("hardware hopper", (
        ("--gpu-memory-utilization", "0.97"), ("--max-num-seqs", "5"), ("--max-model-len", "32768"), ("--moe-backend", "marlin"),
        ("--disable-custom-all-reduce", True), ("--enable-flashinfer-autotune", False), ("--max-num-batched-tokens", "4096"),
        ("--attention-backend", "FLASHMLA"),
    ), (
        ("VLLM_ENGINE_READY_TIMEOUT_S", "3600"), ("VLLM_USE_V2_MODEL_RUNNER", "1"), ("VLLM_USE_RUST_FRONTEND", "1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
    ), RECIPE),
    "cdna4": Layer("hardware amd", (
        ("--load-format", "auto"), ("--mm-encoder-tp-mode", "data"), ("--max-num-seqs", "128"), ("--max-num-batched-tokens", "4096"),
        ("--compilation-config", '{"cudagraph_mode":"FULL_DECODE_ONLY","custom_ops":["+fused_rms_norm_gated"]}'),
    ), (
        ("VLLM_ROCM_USE_AITER", "1"), ("SAFETENSORS_FAST_GPU", "1"), ("VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4", "1"),
        ("AITER_BF16_FP8_MOE_BOUND", "0"), ("VLLM_USE_BREAKABLE_CUDAGRAPH", "0"),
    ), RECIPE),
    # On the CPU backend the share is of the machine's memory, and compiling needs a compiler that images lack.
    "cpu": Layer("hardware cpu", (("--gpu-memory-utilization", "0.3"), ("--enforce-eager", True)), (), OURS,
                 "to try it: a share of the machine's memory, no compiler needed"),
}
"""Family → layer."""

REPLACED: Dict[Tuple[str, str], Layer] = {
    ("pd_cluster", "blackwell"): Layer("hardware blackwell of pd_cluster", (), (("UCX_TLS", "rc,cuda_copy"),), RECIPE,
                                       "replaces the hardware layer, as in the recipe"),
}
"""(strategy, family) → the layer that takes the place of the hardware layer."""

GPU_OVERRIDE: Dict[Tuple[str, str, str], Layer] = {
    (strategy, pool, gpu): Layer("exact GPU %s" % gpu, (("--moe-backend", "deep_gemm_mega_moe"),), (), RECIPE,
                                 "mega-MoE works inside an NVLink domain")
    for strategy, pool in (("multi_node_dep", ""), ("pd_cluster", "decode")) for gpu in ("gb200", "gb300")
}
"""(strategy, pool, hardware) → layer. Left out where the nodes exchange over RDMA."""

MEGA_MOE = "deep_gemm_mega_moe"
MEGA_MOE_TP = 16
"""Tensor parallel size from which mega-MoE was seen to crash (https://github.com/vllm-project/vllm/issues/51124)."""

TRAY_ENV: Env = (
    ("NCCL_CUMEM_ENABLE", "1"), ("NCCL_MNNVL_ENABLE", "1"), ("NCCL_NVLS_ENABLE", "1"), ("UCX_NET_DEVICES", "all"),
)
"""pd_cluster on trays of an NVL72 rack."""

# -- features ------------------------------------------------------------------------------------------------
FEATURE: Dict[str, Layer] = {
    "tool_calling": Layer("feature tool_calling", (("--enable-auto-tool-choice", True), ("--tool-call-parser", "kimi_k3")), (), RECIPE),
    "reasoning": Layer("feature reasoning", (("--reasoning-parser", "kimi_k3"),), (), RECIPE),
    "text_only": Layer("feature text_only", (("--language-model-only", True),), (), RECIPE),
    "spec_decoding": Layer("feature spec_decoding", (
        ("--speculative-config", '{"model":"RedHatAI/Kimi-K3-speculator.dspark","num_speculative_tokens":8,"method":"dspark",'
                                 '"draft_sample_method":"probabilistic","rejection_sample_method":"block"}'),), (), RECIPE),
    "dcp": Layer("feature dcp", (
        ("--decode-context-parallel-size", "8"), ("--dcp-comm-backend", "a2a"), ("--attention-backend", "TOKENSPEED_MLA"),
        ("--attention-config", '{"use_prefill_query_quantization":true,"mla_prefill_backend":"TRTLLM_RAGGED"}'),
    ), (), RECIPE),
    "prefix_caching": Layer("feature prefix_caching", (("--enable-prefix-caching", True),), (), RETENTION),
}

FEATURE_FAMILIES: Dict[str, Tuple[str, ...]] = {"dcp": ("blackwell",)}
"""Feature → families whose kernels it needs; absent for all."""
DCP_KERNEL = Source("https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/attention/backends/mla/tokenspeed_mla.py", "2026-11-29",
                    "TOKENSPEED_MLA runs on compute capability 10.x")

# -- interconnect --------------------------------------------------------------------------------------------
ALL2ALL: Dict[str, str] = {"nvlink": "flashinfer_nvlink_one_sided", "rdma": "deepep_v2"}
"""Interconnect → backend of expert parallelism between nodes, for NVIDIA GPUs."""

INTERCONNECT_ENV: Dict[str, Env] = {
    "nvlink": (("NCCL_MNNVL_ENABLE", "1"), ("NCCL_CUMEM_ENABLE", "1"), ("NCCL_NVLS_ENABLE", "1")),
    "rdma": (),
    "none": (),
}

NVLINK_ONLY = ("NCCL_MNNVL_ENABLE", "NVIDIA_IMEX_CHANNELS")
"""Variables that must not reach a cluster that exchanges over RDMA."""
RDMA_ONLY = ("NCCL_IB_HCA", "NCCL_DMABUF_ENABLE", "UCX_TLS")
"""Variables that must not reach a cluster that exchanges over NVLink."""

# -- figures -------------------------------------------------------------------------------------------------
ATTENTION_HEADS = 96
"""Attention heads of the model, which tensor parallelism must divide (source: CONFIG)."""
BLOCK_TOKENS = 1536
"""Tokens of a scheduler block of the model (source: RETENTION)."""
SHUTDOWN_S = 60
"""Seconds that a stop waits for running requests."""
READY_S = 3600
"""Seconds for an engine to become ready: 1.7 TB of weights from shared storage take more than vLLM's ten minutes."""
HCAS_MOST = 32
"""HCAs that NCCL looks at."""

PORTS: Dict[str, int] = {
    "api": 8000, "prefill": 8001, "decode": 8002, "router": 30000, "master": 29501, "dp_rpc": 29550,
    "side_channel_prefill": 5557, "side_channel_decode": 5558, "link": 29490,
}
"""Ports by purpose; api, prefill, decode and side channels are the recipe's, link is this collection's, the others the programs' own defaults."""

# -- containers ----------------------------------------------------------------------------------------------
CONTAINER_BASE: Tuple[str, ...] = ("--network", "host", "--ipc", "host")
CONTAINER_FILES: Tuple[str, ...] = ("--ulimit", "nofile=1048576:1048576")
CONTAINER_GPUS: Dict[str, Tuple[str, ...]] = {
    "nvidia": ("--gpus", "all"),
    "cdi": ("--device", "nvidia.com/gpu=all"),
    "amd": ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video", "--security-opt", "seccomp=unconfined"),
    "cpu": (),
}
CONTAINER_RDMA: Tuple[str, ...] = ("--device", "/dev/infiniband", "--ulimit", "memlock=-1:-1", "--cap-add", "IPC_LOCK")
CONTAINER_IMEX: Tuple[str, ...] = ("--device", "/dev/nvidia-caps-imex-channels/channel0", "--cap-add", "SYS_NICE")
