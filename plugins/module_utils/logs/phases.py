# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Phases of a vLLM run: the lines that mark them, as data, and how far a text has come.

Markers were read from real logs of vLLM 0.32 and from its source; the wordings of earlier versions come from public reports
(each row names the versions that print it). Text is matched, never line numbers.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Pattern, Tuple

PHASES = (
    "container_init", "device_init", "dependencies", "distributed_init", "weights_load", "engine_init", "api_ready", "prefill", "decode",
    "shutdown")
"""In the order in which a run goes through them."""

ORDER = {name: place for place, name in enumerate(PHASES)}


class Marker(NamedTuple):
    """A line that says that a phase was entered (or, with `done`, left).

    Attributes:
        needle: literal text of every such line; searched first, at the speed of ``in``.
        pattern: regular expression for the rest, empty when the needle is enough.
        phase: phase that begins here.
        stage: finer word inside the phase, used to tell the kinds of memory trouble and of hangs apart.
        process: ``api``, ``core``, ``worker`` or empty for any: who prints it.
        versions: versions of vLLM that were seen to print it.
    """

    needle: str
    pattern: str
    phase: str
    stage: str
    process: str
    versions: str


MARKERS: Tuple[Marker, ...] = (
    Marker("Automatically detected platform", "", "device_init", "platform", "", "0.6-0.18"),
    Marker("vLLM API server version", "", "dependencies", "banner", "api", "0.4-0.30"),
    Marker("█  version ", "", "dependencies", "banner", "api", "0.26-0.33"),
    Marker("non-default args: ", "", "dependencies", "arguments", "api", "0.8-0.33"),
    Marker("Resolved architecture: ", "", "dependencies", "model_config", "api", "0.9-0.33"),
    Marker("Using max model len ", "", "dependencies", "model_config", "api", "0.10-0.33"),
    Marker("Initializing a V1 LLM engine", "", "device_init", "engine", "core", "0.8-0.33"),
    Marker("Initializing an LLM engine", "", "device_init", "engine", "core", "0.4-0.10"),
    Marker("Initializing a V0 LLM engine", "", "device_init", "engine", "core", "0.8-0.10"),
    Marker("Launching ", r"Launching \d+ data parallel engine\(s\) in headless mode", "distributed_init", "headless", "api", "0.9-0.33"),
    Marker("Waiting for init message from front-end", "", "distributed_init", "handshake", "core", "0.9-0.12"),
    Marker("DP group leader: ", "", "distributed_init", "leader", "core", "0.28-0.33"),
    Marker("distributed_init_method=", r"world_size=\d+ rank=\d+", "distributed_init", "rendezvous", "worker", "0.9-0.33"),
    Marker("vLLM is using nccl==", "", "distributed_init", "nccl", "worker", "0.4-0.33"),
    Marker("NCCL INFO Bootstrap", "", "distributed_init", "nccl", "worker", "any"),
    Marker("NCCL INFO cudaDriverVersion", "", "distributed_init", "nccl", "worker", "any"),
    Marker("NCCL INFO NVLS tuning", "", "distributed_init", "nvls_tuning", "worker", "NCCL 2.29-2.30"),
    Marker("NCCL INFO ", r"Init COMPLETE", "distributed_init", "nccl_ready", "worker", "any"),
    Marker("in world size ", r"rank \d+ in world size \d+ is assigned as", "distributed_init", "ranks", "worker", "0.8-0.33"),
    Marker("Starting to load model ", "", "weights_load", "model", "worker", "0.6-0.33"),
    Marker("Loading model weights", "", "weights_load", "model", "worker", "0.4-0.6"),
    Marker("Loading weights on ", "", "weights_load", "model", "worker", "0.30-0.33"),
    Marker("checkpoint shards:", "", "weights_load", "shards", "worker", "0.5-0.33"),
    Marker("Checkpoint size: ", "", "weights_load", "shards", "worker", "0.28-0.33"),
    Marker("Loading weights took ", "", "weights_load", "read", "worker", "0.7-0.33"),
    Marker("Model loading took ", "", "engine_init", "loaded", "worker", "0.6-0.33"),
    Marker("Memory profiling takes ", "", "engine_init", "profiled", "worker", "0.6-0.10"),
    Marker("Using cache directory: ", r"torch_compile", "engine_init", "compile", "worker", "0.7-0.33"),
    Marker("Dynamo bytecode transform time", "", "engine_init", "compile", "worker", "0.7-0.33"),
    Marker("torch.compile ", r"torch\.compile (?:takes|took)", "engine_init", "compile", "worker", "0.7-0.33"),
    Marker("Available KV cache memory: ", "", "engine_init", "profiled", "worker", "0.9-0.33"),
    Marker("for KV cache on node", r"Explicitly set \(", "engine_init", "profiled", "worker", "0.20-0.33 CPU"),
    Marker("KV cache size: ", r"[GC]PU KV cache size: [\d,]+ tokens", "engine_init", "sized", "core", "0.8-0.33"),
    Marker("# GPU blocks: ", "", "engine_init", "sized", "core", "0.4-0.10"),
    Marker("Capturing ", r"Capturing (?:the model|cudagraphs|CUDA graph)", "engine_init", "capture", "worker", "0.4-0.33"),
    Marker("Graph capturing finished in ", "", "engine_init", "captured", "worker", "0.4-0.33"),
    Marker("init engine (profile, create kv cache, warmup model) took", "", "engine_init", "ready", "core", "0.7-0.33"),
    Marker("Starting vLLM API server on ", "", "api_ready", "listening", "api", "0.8-0.12"),
    Marker("Starting vLLM API server ", r"Starting vLLM API server \d+ on ", "api_ready", "listening", "api", "0.9-0.20"),
    Marker("Starting vLLM server on ", "", "api_ready", "listening", "api", "0.14-0.33"),
    Marker("Application startup complete", "", "api_ready", "ready", "api", "0.4-0.33"),
    Marker("Uvicorn running on ", "", "api_ready", "ready", "api", "0.4-0.12"),
    Marker("OpenAI server is ready to accept requests", "", "api_ready", "ready", "api", "0.30-0.33 Rust front end"),
    Marker("GET /health", r"\" 200", "api_ready", "ready", "api", "0.4-0.33"),
    Marker("Avg prompt throughput: ", "", "decode", "serving", "api", "0.4-0.33"),
    Marker("POST /v1/", r"\" 200", "decode", "served", "api", "0.4-0.33"),
    Marker("Received request ", r"Received request \S+:", "prefill", "request", "api", "0.4-0.33"),
    Marker("[shutdown] API server: shutdown triggered", "", "shutdown", "asked", "api", "0.24-0.33"),
    Marker("trigger received signal=", r"\[shutdown\] EngineCore: trigger received signal=SIG(?:TERM|INT)", "shutdown", "asked", "core", "0.24-0.33"),
    Marker("Shutting down", r"(?:INFO:?\s+|^)Shutting down\s*$", "shutdown", "asked", "api", "0.4-0.33"),
    Marker("Waiting up to ", r"seconds for processes to exit", "shutdown", "asked", "api", "0.26-0.33"),
    Marker("Received SIGTERM", "", "shutdown", "asked", "", "any"),
    Marker("Shutting down FastAPI HTTP server", "", "shutdown", "asked", "api", "0.8-0.24"),
    Marker("[shutdown] MPClient: complete", "", "shutdown", "stopped", "api", "0.24-0.33"),
    Marker("Application shutdown complete", "", "shutdown", "stopped", "api", "0.4-0.33"),
    Marker("Finished server process", "", "shutdown", "stopped", "api", "0.4-0.33"),
)

_COMPILED: Dict[str, Pattern[str]] = {}


def compiled(pattern: str) -> Pattern[str]:
    """`pattern` as a compiled expression, compiled once and only when it is first needed (an import stays cheap)."""
    found = _COMPILED.get(pattern)
    if found is None:
        found = _COMPILED[pattern] = re.compile(pattern)
    return found


def marker_of(text: str) -> Optional[Marker]:
    """The marker that `text` (one line, with or without prefixes) is, or None."""
    for marker in MARKERS:
        if marker.needle in text and (not marker.pattern or compiled(marker.pattern).search(text)):
            return marker
    return None


class Frames(NamedTuple):
    """Functions of a traceback that say in which phase it was raised; earlier rows win over later ones."""

    pattern: str
    phase: str
    stage: str


# Names of functions and files in vLLM 0.6 to 0.33 (v0 and v1 workers and executors), and in PyTorch.
FRAMES: Tuple[Frames, ...] = (
    Frames(
        r"capture_model|_capture_cudagraphs|capture_end|cuda_?graph_?(?:wrapper|runner)?\b.*capture|in capture_graph|torch/cuda/graphs\.py", "engine_init",
        "capture"),
    Frames(r"in (?:profile_run|_profile_run|determine_available_memory|determine_num_available_blocks|profile_cudagraph_memory)", "engine_init", "profile"),
    Frames(r"in (?:initialize_kv_cache|initialize_kv_cache_tensors|_allocate_kv_cache\w*|allocate_kv_cache\w*|initialize_from_config|"
           r"get_kv_cache_configs?|check_enough_kv_cache_memory|_check_enough_kv_cache_memory|_check_mamba_blocks|initialize_cache|"
           r"raise_if_cache_size_invalid)", "engine_init", "kv"),
    Frames(r"in (?:compile_or_warm_up_model|kernel_warmup|_dummy_run|warm_up_model|warmup\w*|_dummy_sampler_run|flashinfer_autotune)", "engine_init", "warmup"),
    Frames(r"in (?:load_model|load_weights|_load_model|create_weights|process_weights_after_loading|initialize_model|_initialize_model|"
           r"get_all_weights|safetensors_weights_iterator|_prepare_weights|download_weights\w*|get_model_loader|_get_weights_iterator)\b",
           "weights_load", "load"),
    Frames(r"in (?:init_worker_distributed_environment|init_distributed_environment|init_process_group|ncclCommInitRank\w*|initialize_model_parallel|"
           r"ensure_model_parallel_initialized|init_model_parallel_group|stateless_init_\w+|_create_tcp_store|_create_c10d_store|"
           r"_new_process_group_helper|wait_for_engine_handshakes|startup_handshake|_perform_handshakes?|tcp_rendezvous_handler|"
           r"_tcp_rendezvous_handler|_env_rendezvous_handler)\b|rendezvous\.py|pynccl(?:_wrapper)?\.py|symm_mem\.py|deep_ep/buffer\.py",
           "distributed_init", "group"),
    Frames(r"in (?:init_device|_lazy_init|set_device|_cuda_init|device_count|get_device_capability|get_device_name|check_if_supports_dtype|"
           r"request_memory|_check_capability|mem_get_info|_init_device)\b", "device_init", "device"),
    Frames(r"in (?:execute_model|sample_tokens|_process_engine_step|step_with_batch_queue|run_busy_loop|_execute_mm_encoder|process_input_sockets|"
           r"output_handler|step_async|engine_step|run_engine_loop|execute_dummy_batch|start_worker_execution_loop)\b", "decode", "step"),
    Frames(r"in (?:create_model_config|get_config|create_engine_config|get_tokenizer|cached_get_tokenizer|maybe_override_with_speculators|"
           r"from_pretrained)\b", "engine_init", "config"),
)


def phase_of_frames(text: str) -> Tuple[str, str]:
    """Phase and stage in which the traceback in `text` was raised, ``("", "")`` when its frames do not say."""
    for row in FRAMES:
        if compiled(row.pattern).search(text):
            return row.phase, row.stage
    return "", ""


_SHARDS = re.compile(r"(?:checkpoint shards|Loading \w+ checkpoint|shards):\s{0,4}\d{1,3}%[^|\n]{0,40}\|?[^|\n]{0,40}?\|?\s{0,4}(\d{1,6})/(\d{1,6})")
_MEMORY = (
    ("model_gib", re.compile(r"Model loading took ([\d.]{1,12}) ?(?:GiB|GB)")),
    ("kv_gib", re.compile(r"Available KV cache memory: (-?[\d.]{1,12}) ?GiB")),
    ("kv_gib", re.compile(r"Explicitly set \(([\d.]{1,12})/[\d.]{1,12}\) GiB for KV cache")),
    ("kv_tokens", re.compile(r"KV cache size: ([\d,]{1,20}) tokens")),
    ("graphs_gib", re.compile(r"Graph capturing finished in [\d.]{1,9} secs?, took (-?[\d.]{1,12}) GiB")),
    ("checkpoint_gib", re.compile(r"Checkpoint size: ([\d.]{1,12}) GiB")),
)


def progress(text: str) -> Dict[str, Any]:
    """How far the run in `text` (the end of one process's log) has come.

    Returns:
        ``{"phase", "stage", "done", "total", "memory"}``: the furthest phase since the last start (empty before the first marker),
        shards loaded of shards in all (None while unknown), and the memory numbers printed so far by name (GiB, tokens).
    """
    result: Dict[str, Any] = {"phase": "", "stage": "", "done": None, "total": None, "memory": {}}
    # "\r" progress bars hold many states in one line.
    for line in text.replace("\r", "\n").split("\n"):
        if not line:
            continue
        marker = marker_of(line)
        if marker is not None:
            if marker.stage == "banner":
                result = {"phase": "", "stage": "", "done": None, "total": None, "memory": {}}
            if not result["phase"] or ORDER[marker.phase] >= ORDER[result["phase"]]:
                result["phase"], result["stage"] = marker.phase, marker.stage
        found = _SHARDS.search(line) if "%" in line else None
        if found:
            result["done"], result["total"] = int(found.group(1)), int(found.group(2))
        if "GiB" in line or "tokens" in line:
            for name, pattern in _MEMORY:
                value = pattern.search(line)
                if value:
                    number = value.group(1).replace(",", "")
                    try:
                        result["memory"][name] = int(number) if name == "kv_tokens" else float(number)
                    except ValueError:
                        continue
    return result


def needles() -> List[str]:
    """Literals of all markers, for a scanner that looks for lines that matter."""
    return [marker.needle for marker in MARKERS]
