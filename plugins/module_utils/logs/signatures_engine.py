# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures of the engine: arguments, configuration, packages, model files, memory, kernels and its own faults."""

from __future__ import annotations

from typing import Tuple

from .signatures import Signature, root

_VLLM = "https://github.com/vllm-project/vllm"
_HF = "https://github.com/huggingface/huggingface_hub"
_TF = "https://github.com/huggingface/transformers"
_ST = "https://github.com/huggingface/safetensors"
_CUDA = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
_TORCH = "https://github.com/pytorch/pytorch"
_RAY = "https://github.com/vllm-project/vllm/issues/13093"
_FI = "https://github.com/flashinfer-ai/flashinfer"

ROWS: Tuple[Signature, ...] = (
    # Arguments and configuration.
    root(
        "unknown-flag", "error: unrecognized arguments: ", "", "config_error", "engine_init", "row", 8, _VLLM, "any",
        "vllm serve: error: unrecognized arguments: --swap-space 4", "unrecognized option"),
    root("invalid-choice", "invalid choice: ", r"error: argument \S+: invalid choice", "config_error", "engine_init", "row", 8, _VLLM, "any",
         "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp7'", "no invalid choice"),
    root(
        "invalid-argument-value", "error: argument ", r"error: argument \S+: (?:invalid \w+ value|Value .* cannot be converted|expected|not allowed)",
        "config_error", "engine_init", "row", 8, _VLLM, "any", "vllm serve: error: argument --max-num-seqs: invalid int value: 'abc'",
        "error: argumentative"),
    root(
        "argument-error", "error: argument ", "", "config_error", "engine_init", "row", 5, _VLLM, "any",
        "api_server.py: error: argument --port: must be positive", "error: arguments fine"),
    root(
        "arguments-required", "error: the following arguments are required", "", "config_error", "engine_init", "row", 8, _VLLM, "any",
        "vllm: error: the following arguments are required: --model", "arguments are required reading"),
    root(
        "unknown-env-strict", "Unknown vLLM environment variable detected", r"Error: .*Unknown vLLM environment|Error: Unknown", "config_error",
        "engine_init", "row", 8, _VLLM, "0.26-0.33", "ValueError: Unknown vLLM environment variable detected: VLLM_FOO",
        "WARNING Unknown vLLM environment variable detected: VLLM_FOO"),
    root(
        "bad-env-value", "Invalid value ", r"Invalid value '.*' for VLLM_\w+", "config_error", "engine_init", "row", 8, _VLLM, "0.10-0.33",
        "ValueError: Invalid value 'x' for VLLM_USE_V1. Valid options: 0, 1", "Invalid value of x"),
    root(
        "tool-parser", "invalid tool call parser", "", "config_error", "engine_init", "row", 8, _VLLM, "any",
        "KeyError: 'invalid tool call parser: kimi_k9 (chose from { kimi_k2 })'", "tool call parser kimi_k3"),
    root("tool-parser-missing", "--enable-auto-tool-choice requires --tool-call-parser", "", "config_error", "engine_init", "row", 8, _VLLM, "any",
         "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser", "--enable-auto-tool-choice given"),
    root(
        "reasoning-parser", "easoning parser", r"[Rr]easoning parser .{1,80}(?:not found|invalid|cannot)|invalid reasoning parser", "config_error",
        "engine_init", "row", 8, _VLLM, "any", "KeyError: \"Reasoning parser 'kimi_k9' not found. Available parsers: kimi_k3\"",
        "Reasoning parser kimi_k3 in use"),
    root(
        "http-port", "Address already in use", r"(?:Errno 98|error while attempting to bind|os error 98)", "port_collision", "engine_init", "log", 7, _VLLM,
        "any", "OSError: [Errno 98] Address already in use", "zmq.error.ZMQError: Address already in use (addr='tcp://10.3.0.2:41213')"),
    root(
        "zmq-port", "Address already in use", r"ZMQError", "port_collision", "distributed_init", "log", 7,
        "https://github.com/gpustack/gpustack/issues/6019", "any", "zmq.error.ZMQError: Address already in use (addr='tcp://10.3.0.2:41213')",
        "OSError: [Errno 98] Address already in use"),
    root("any-port", "ddress already in use", r"(?:bind|listen|Bind|EADDRINUSE|Error|error)", "port_collision", "engine_init", "log", 6, _VLLM, "any",
         "RuntimeError: failed to bind: address already in use", "the address already in use by us is fine"),
    root(
        "host-address", "Cannot assign requested address", "", "config_error", "engine_init", "log", 7, _VLLM, "any",
        "OSError: [Errno 99] Cannot assign requested address", "address assigned", "Correct --host (or VLLM_HOST_IP): it is not an address of this machine."),
    root("max-len-over", "is greater than the derived max_model_len", "", "config_error", "engine_init", "row", 8, _VLLM, "any",
         "ValueError: User-specified max_model_len (99999) is greater than the derived max_model_len (max_position_embeddings=4096", "max_model_len is 4096"),
    root(
        "world-size", "is larger than the number of available GPUs", "", "config_error", "engine_init", "row", 8, _VLLM, "any",
        "ValueError: World size (16) is larger than the number of available GPUs (8) in this node.", "World size 8",
        "Use fewer GPUs a node or more nodes (--nnodes) as the plan says."),
    root(
        "dp-launch", "Invalid data-parallel launch options", "", "config_error", "engine_init", "row", 8, _VLLM, "0.26-0.33",
        "ValueError: Invalid data-parallel launch options: node-rank 3 of 2", "data-parallel launch ok"),
    root(
        "nnodes-divide", "must evenly divide", "", "config_error", "engine_init", "row", 7, _VLLM, "0.12-0.33",
        "ValueError: --nnodes 3 must evenly divide the total world size (16)", "divides evenly"),
    root(
        "divisible", "divisible by", r"(?:must be|is not|not) (?:evenly )?divisible by", "config_error", "engine_init", "log", 6, _VLLM, "any",
        "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (16).", "8 is divisible by 4",
        "Choose a parallel size that divides the model's heads, groups or experts."),
    root("ep-dense", "Number of experts in the model must be greater than 0", "", "config_error", "engine_init", "row", 8, _VLLM, "0.11-0.33",
         "Value error, Number of experts in the model must be greater than 0 when expert parallelism is enabled.", "Number of experts: 896"),
    root(
        "lb-conflict", "more than one data parallel load balancing mode", "", "config_error", "engine_init", "row", 8, _VLLM, "0.26-0.33",
        "ValueError: Cannot use more than one data parallel load balancing mode", "load balancing mode hybrid"),
    root(
        "hybrid-headless", "is not applicable in headless mode", "", "config_error", "engine_init", "row", 8, _VLLM, "0.11-0.33",
        "ValueError: data_parallel_hybrid_lb is not applicable in headless mode", "headless mode"),
    root("requires-flag", " requires --", r"(?:Error: |error, ?)?.{0,80}requires --[a-z]", "config_error", "engine_init", "row", 5, _VLLM, "any",
         "ValueError: --data-parallel-hybrid-lb requires --data-parallel-size-local", "requires a GPU"),
    root(
        "attention-unknown", "Unknown attention backend", "", "config_error", "engine_init", "row", 8, _VLLM, "any",
        "ValueError: Unknown attention backend: 'FLASHX'. Valid options are: FLASHMLA", "Using attention backend FLASHMLA"),
    root(
        "attention-invalid-env", "Invalid attention backend", "", "config_error", "engine_init", "row", 7, _VLLM, "any",
        "ValueError: Invalid attention backend for cuda: FLASHX", "attention backend for cuda"),
    root(
        "expandable-segments", "incompatible with PYTORCH_CUDA_ALLOC_CONF", "", "nixl_config", "engine_init", "row", 8, _VLLM, "0.26-0.33",
        "ValueError: NixlConnector is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF set",
        "Drop expandable_segments from PYTORCH_CUDA_ALLOC_CONF on nodes with NIXL."),
    root("retention", "must be non-negative and a multiple of scheduler_block_size", "", "config_error", "engine_init", "row", 8, _VLLM, "0.28-0.33",
         "ValueError: prefix_cache_retention_interval (100) must be non-negative and a multiple of scheduler_block_size (1536)", "scheduler_block_size 1536"),
    root(
        "offload-prefix", "prefix caching",
        r"(?:requires|require|without|needs?|must|only|not supported).{0,60}prefix caching|prefix caching.{0,60}(?:must be|is required|to be enabled|is "
        r"not supported|disabled but)", "config_error", "engine_init", "log", 6, _VLLM, "any",
        "ValueError: KV offloading requires prefix caching to be enabled", "prefix caching enabled",
        "State --enable-prefix-caching (or drop the feature that needs it)."),
    root(
        "cp-world-size", "cp_world_size", r"(?:[Ee]rror|assert|must|positive)", "config_error", "engine_init", "log", 7,
        "https://github.com/vllm-project/recipes/issues/698", "0.27-0.33", "AssertionError: cp_world_size must be positive", "cp_world_size=1",
        "Use a newer image or another parallel layout: the engine loses a size that it needs itself, no flag of yours is wrong.", "engine_bug"),
    root(
        "spec-pp", "peculative",
        r"[Ss]peculative (?:decoding|config\w*).{0,80}(?:not supported|not compatible|requires|unsupported|Unknown|invalid)|(?:not supported|"
        r"unsupported).{0,60}[Ss]peculative", "config_error", "engine_init", "log", 6, _VLLM, "any",
        "NotImplementedError: Speculative decoding is not supported with pipeline parallelism.", "Speculative decoding enabled"),
    root(
        "lora-config", "max_lora_rank", r"(?:must|should|Error|exceeds|greater)", "config_error", "engine_init", "log", 6, _VLLM, "any",
        "ValueError: LoRA rank 128 is greater than max_lora_rank 16.", "max_lora_rank=16"),
    root(
        "batched-tokens", "max_num_batched_tokens", r"max_num_batched_tokens \(\d+\) (?:is smaller than|must be)", "config_error", "engine_init", "row", 7,
        _VLLM, "any", "ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (32768).", "max_num_batched_tokens=8192"),
    root("bf16-unsupported", "Bfloat16 is only supported on GPUs", "", "cuda_arch_unsupported", "device_init", "row", 8, _VLLM, "any",
         "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.", "Bfloat16 is used"),
    root(
        "chat-template", "chat template",
        r"(?:[Ee]rror|not (?:found|exist|set)|invalid).{0,80}chat template|chat template.{0,80}(?:not (?:found|exist)|invalid|does not exist)",
        "config_error", "engine_init", "log", 5, _VLLM, "any",
        "ValueError: The supplied chat template (/x.jinja) looks like a file path, but it failed to be opened: chat template not found",
        "chat template content format: string"),
    root("api-ssl", "ssl.SSLError", "", "config_error", "engine_init", "log", 6, _VLLM, "any", "ssl.SSLError: [SSL] PEM lib (_ssl.c:4123)", "ssl ok"),
    # Ray.
    root(
        "ray-node-gpu", "Current node has no GPU available", "", "ray_placement", "distributed_init", "row", 8, _RAY, "any",
        "ValueError: Current node has no GPU available. current_node_resource={}", "node has 8 GPU"),
    root(
        "ray-driver", "Ray does not allocate any GPUs on the driver node", "", "ray_placement", "distributed_init", "row", 8,
        "https://github.com/vllm-project/vllm/issues/6956", "any",
        "ValueError: Ray does not allocate any GPUs on the driver node. Consider adjusting the Ray placement group", "Ray allocates GPUs"),
    root("ray-placement", "Cannot provide a placement group", "", "ray_placement", "distributed_init", "row", 8, _RAY, "any",
         "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds.", "placement group created"),
    root(
        "ray-exceeds", "exceeds the total number of available GPUs", "", "ray_placement", "distributed_init", "row", 8,
        "https://github.com/vllm-project/vllm/issues/2416", "any",
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.", "available GPUs: 8"),
    root(
        "ray-no-node", "No available node types can fulfill resource request", "", "ray_placement", "distributed_init", "row", 8,
        "https://github.com/vllm-project/vllm/issues/7815", "any", "Error: No available node types can fulfill resource request {'GPU': 1.0}",
        "node types: gpu"),
    root(
        "ray-connect", "Could not find any running Ray instance", "", "ray_placement", "distributed_init", "row", 7, "https://docs.ray.io", "any",
        "ConnectionError: Could not find any running Ray instance. Please specify the one to connect to", "Connected to Ray cluster",
        "Start Ray on this node and connect it to the head."),
    root(
        "ray-version", "Version mismatch", r"(?i)version mismatch: .*(?:ray|python)|ray.*version mismatch", "dep_version", "distributed_init", "log", 7,
        "https://docs.ray.io", "any", "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.40.0 Python: 3.12.1",
        "Version mismatch of the schema"),
    root(
        "ray-gcs", "Failed to connect to GCS", "", "rendezvous_unreachable", "distributed_init", "log", 7, "https://docs.ray.io", "any",
        "Failed to connect to GCS. Please check `gcs_server.out` for more details.", "connected to GCS"),
    # Packages.
    root(
        "remote-code", "contains custom code which must be executed", "", "trust_remote_code", "dependencies", "row", 8,
        "https://github.com/vllm-project/recipes/pull/116", "any",
        "ValueError: The repository org/model contains custom code which must be executed to correctly load the model.", "contains custom code"),
    root(
        "remote-code-2", "trust_remote_code", r"(?:requires you to execute|pass the argument|set the option|Please set).{0,80}trust_remote_code=True",
        "trust_remote_code", "dependencies", "row", 6, _TF, "any",
        "ValueError: Loading org/model requires you to execute the configuration file in that repo on your local machine. Please set the option "
        "`trust_remote_code=True`", "trust_remote_code=False"),
    root("remote-code-file", "does not appear to have a file named", r"file named \S+\.py", "model_version_mismatch", "dependencies", "row", 8, _TF, "any",
         "OSError: /models/k3 does not appear to have a file named modeling_k3.py.", "does not appear to have a file named config.json"),
    root(
        "architecture", "are not supported for now", "", "dep_version", "dependencies", "row", 8, _VLLM, "any",
        "Value error, Model architectures ['KimiK9ForCausalLM'] are not supported for now.", "architectures supported"),
    root(
        "architecture-inspect", "Model architectures", r"Model architectures \[.*\] (?:failed to be inspected|are not supported)", "dep_version",
        "dependencies", "row", 7, _VLLM, "any", "ValueError: Model architectures ['X'] failed to be inspected. Please check the logs for more details.",
        "Model architectures ['X'] resolved"),
    root("model-type", "but Transformers does not recognize this architecture", "", "dep_version", "dependencies", "row", 8, _TF, "any",
         "The checkpoint you are trying to load has model type `kimi_k9` but Transformers does not recognize this architecture.", "Transformers recognizes it"),
    root(
        "transformers-version", "requires",
        r"(?:[Tt]ransformers|flash[-_]attn|torch|triton|flashinfer|deep_gemm|compressed[-_]tensors)\S* (?:version )?(?:>=|>|==|<)\s?[\d.]+ is required|"
        r"requires (?:transformers|torch|triton|flashinfer)\S*\s?(?:>=|>|==)", "dep_version", "dependencies", "log", 7, _TF, "any",
        "ImportError: This modeling file requires transformers>=4.60", "requires a GPU"),
    root(
        "quant-unknown", "Unknown quantization method", "", "dep_version", "engine_init", "row", 8, _VLLM, "any",
        "Value error, Unknown quantization method: mxfp5. Must be one of ['fp8']", "quantization method fp8"),
    root(
        "quant-mismatch", "uantization method", r"[Qq]uantization method specified in the model config .* does not match", "config_error", "engine_init",
        "row", 8, _VLLM, "any",
        "ValueError: Quantization method specified in the model config (fp8) does not match the quantization method specified in the `quantization` "
        "argument (awq).", "quantization method fp8"),
    root(
        "quant-capability", "uantization method", r"quantization method \S+ is not supported for the current GPU", "cuda_arch_unsupported", "engine_init",
        "row", 8, _VLLM, "any",
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: 100. Current capability: 90.",
        "quantization method fp8"),
    root(
        "rust-frontend", "vllm-rs binary was not found", "", "dep_missing_module", "dependencies", "row", 8, _VLLM, "0.30-0.33",
        "FileNotFoundError: VLLM_RUST_FRONTEND_PATH=auto but the vllm-rs binary was not found", "vllm-rs found"),
    root(
        "undefined-symbol", "undefined symbol", r"undefined symbol:? (?!cu[A-Z])\w", "abi_mismatch", "dependencies", "log", 7,
        "https://github.com/vllm-project/vllm/issues/21226", "any",
        "ImportError: /opt/vllm/_C.abi3.so: undefined symbol: _ZN3c106ivalue14ConstantString6createE", "symbol defined"),
    root(
        "glibc", "GLIBC", r"version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found", "abi_mismatch", "dependencies", "log", 8, _VLLM, "any",
        "ImportError: /lib/libm.so.6: version `GLIBC_2.38' not found", "GLIBC_2.35 found"),
    root(
        "shared-object", "cannot open shared object file", r"(?:ImportError|OSError): \S+: cannot open shared object file", "abi_mismatch", "dependencies",
        "log", 7, _VLLM, "any", "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "shared object opened"),
    root(
        "extension-import-error", "Failed to import from vllm._", r"(?:undefined symbol:? (?!cu[A-Z])|cannot open shared object)", "abi_mismatch",
        "dependencies", "row", 7, _VLLM, "any", "Failed to import from vllm._C: ImportError('/opt/vllm/_C.abi3.so: undefined symbol: x')",
        "Failed to import from vllm._rocm_C with ModuleNotFoundError"),
    root(
        "numpy-abi", "A module that was compiled using NumPy 1.x", "", "abi_mismatch", "dependencies", "log", 4, "https://numpy.org", "any",
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0", "NumPy 2.0"),
    root(
        "no-module", "No module named", r"(?:ModuleNotFoundError|ImportError): .*No module named", "dep_missing_module", "dependencies", "log", 7,
        "https://github.com/vllm-project/vllm/issues/21750", "any", "ModuleNotFoundError: No module named 'blobfile'",
        "WARNING No module named x, falling back"),
    root(
        "cannot-import", "cannot import name", r"ImportError: cannot import name", "dep_version", "dependencies", "log", 7, _VLLM, "any",
        "ImportError: cannot import name 'X' from 'transformers' (/opt/x)", "cannot import"),
    root(
        "package-needed", "lease install",
        r"(?:ImportError|ModuleNotFoundError|RuntimeError|ValueError|PackageNotFoundError|Error): .*(?:[Pp]lease install|is not installed|run `?pip install)",
        "dep_missing_module", "dependencies", "log", 7, _VLLM, "any", "ImportError: Please install vllm[audio] for audio support", "Please install updates"),
    root(
        "not-installed", "is not installed", r"(?:ImportError|ModuleNotFoundError|RuntimeError|PackageNotFoundError): .*is not installed",
        "dep_missing_module", "dependencies", "log", 7, _VLLM, "any", "ImportError: blobfile is not installed.", "libtcmalloc is not installed"),
    root(
        "package-metadata", "PackageNotFoundError", "", "dep_missing_module", "dependencies", "log", 7,
        "https://docs.python.org/3/library/importlib.metadata.html", "any",
        "importlib.metadata.PackageNotFoundError: No package metadata was found for bitsandbytes", "package found"),
    root(
        "attribute-missing", "has no attribute",
        r"AttributeError: (?:module '\S+'|'\w*(?:Config|Tokenizer|Processor)\w*' object|type object '\w+') has no attribute", "dep_version", "dependencies",
        "log", 6, _TF, "any", "AttributeError: 'KimiConfig' object has no attribute 'rope_scaling'",
        "AttributeError: 'NoneType' object has no attribute 'shape'"),
    root(
        "type-kwarg", "got an unexpected keyword argument", "", "dep_version", "dependencies", "log", 5, _TF, "any",
        "TypeError: __init__() got an unexpected keyword argument 'mm_counts'", "keyword argument"),
    root(
        "jit-nvcc", "nvcc", r"nvcc(?:['\"]|:)?.{0,40}(?:not found|No such file|Unknown option|fatal)|(?:Could not find|cannot find|No such file).{0,80}nvcc",
        "jit_build_failure", "engine_init", "frames", 8, "https://github.com/vllm-project/vllm/issues/49497", "any",
        "/bin/sh: 1: :/usr/local/cuda/bin/nvcc: not found", "nvcc: NVIDIA (R) Cuda compiler driver"),
    root(
        "jit-compiler", "fatal error: ", r"(?:error: \S+\.h|fatal error: \S+(?:\.h|\.hpp|\.cuh)): No such file", "jit_build_failure", "engine_init",
        "frames", 8, "https://github.com/flashinfer-ai/flashinfer/issues/4410", "any",
        "tensor_fill.h:3: fatal error: curand_kernel.h: No such file or directory", "fatal error: disk"),
    root(
        "jit-failed", "FAILED: ", r"FAILED: (?:\[code=\d+\] )?\S+\.(?:o|so)\b", "jit_build_failure", "engine_init", "frames", 6, _FI, "any",
        "FAILED: sampling.cuda.o ", "FAILED: request"),
    root(
        "jit-cc", "C compiler", r"(?:Failed to find|cannot find|No) C compiler", "jit_build_failure", "engine_init", "frames", 8,
        "https://github.com/triton-lang/triton", "any", "RuntimeError: Failed to find C compiler. Please specify via CC environment variable",
        "C compiler is gcc"),
    root(
        "jit-ninja-missing", "ninja", r"(?:Ninja is required|No such file or directory: 'ninja'|ninja: not found|ninja: command not found)",
        "jit_build_failure", "engine_init", "frames", 8, _TORCH, "any", "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        "ninja: no work to do."),
    root(
        "jit-cuda-home", "CUDA_HOME", r"CUDA_HOME.{0,60}(?:not set|does not exist|is not|environment variable)", "jit_build_failure", "engine_init",
        "frames", 8, _TORCH, "any", "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "CUDA_HOME=/usr/local/cuda"),
    root(
        "jit-ptxas", "ptxas", r"ptxas.{0,80}(?:fatal|error|failed|not defined for option)", "jit_build_failure", "engine_init", "frames", 8,
        "https://github.com/triton-lang/triton", "any", "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ptxas info : 0 bytes",
        cls="gpu_unsupported"),
    root(
        "jit-python-h", "Python.h", r"Python\.h: No such file", "jit_build_failure", "engine_init", "frames", 8, "https://github.com/triton-lang/triton",
        "any", "fatal: Python.h: No such file or directory", "#include <Python.h>"),
    root(
        "llvm-error", "LLVM ERROR", "", "jit_build_failure", "engine_init", "frames", 7, "https://github.com/triton-lang/triton", "any",
        "LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.shfl", "LLVM 19.1",
        "Use a Triton that knows this GPU, or another kernel: the compiler has no code for it.", "gpu_unsupported"),
    # Model files.
    root(
        "no-weights", "Cannot find any model weights with", "", "weights_read_failure", "weights_load", "row", 8, _VLLM, "any",
        "RuntimeError: Cannot find any model weights with `/models/k3`", "found model weights"),
    root("weights-missing", "Weight files referenced in index but missing", "", "weights_read_failure", "weights_load", "row", 8, _VLLM, "0.26-0.33",
         "RuntimeError: Weight files referenced in index but missing: model-00002-of-00096.safetensors", "Weight files: 96"),
    root(
        "safetensors-header", "Error while deserializing header", "", "weights_read_failure", "weights_load", "row", 8, _ST, "any",
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        "deserializing header took 2 s"),
    root(
        "safetensors-error", "SafetensorError", "", "weights_read_failure", "weights_load", "row", 7, _ST, "any",
        "safetensors_rust.SafetensorError: device cuda:0 is invalid", "safetensors 0.6"),
    root(
        "torch-zip", "PytorchStreamReader failed", "", "weights_read_failure", "weights_load", "row", 8, _TORCH, "any",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "reader ok"),
    root(
        "unpickling", "UnpicklingError", r"UnpicklingError|invalid load key", "weights_read_failure", "weights_load", "row", 7, _TORCH, "any",
        "_pickle.UnpicklingError: invalid load key, 'v'.", "unpickling"),
    root("unknown-tensor", "There is no module or parameter named", "", "model_version_mismatch", "weights_load", "row", 8, _VLLM, "0.8-0.33",
         "ValueError: There is no module or parameter named 'layers.1.kda' in LlamaModel.", "no module named"),
    root("not-initialized", "not initialized from checkpoint", "", "model_version_mismatch", "weights_load", "row", 8, _VLLM, "0.6-0.33",
         "ValueError: Following weights were not initialized from checkpoint: {'model.layers.0.mlp.experts.w2_weight'}", "weights initialized"),
    root(
        "shape-narrow", "exceeds dimension size", r"start \(\d+\) \+ length \(\d+\) exceeds dimension size", "model_version_mismatch", "weights_load", "log",
        7, _TORCH, "any", "RuntimeError: start (64) + length (64) exceeds dimension size (96).", "exceeds dimension"),
    root(
        "shape-copy", "must match the size of tensor", r"The size of tensor a \(\d+\) must match the size of tensor b", "model_version_mismatch",
        "weights_load", "frames", 5, _TORCH, "any",
        "RuntimeError: The size of tensor a (4096) must match the size of tensor b (2048) at non-singleton dimension 0", "size of tensor a"),
    root(
        "weight-shape", "Attempted to load weight", "", "model_version_mismatch", "weights_load", "row", 8, _VLLM, "any",
        "AssertionError: Attempted to load weight (torch.Size([4])) into parameter (torch.Size([8]))", "load weight ok"),
    root(
        "weight-key", "KeyError: '",
        r"KeyError: '(?:model|layers|lm_head|language_model|transformer|backbone|visual|vision)[\w.]*(?:weight|scale|bias|proj|qweight|experts|norm)\w*'",
        "model_version_mismatch", "weights_load", "frames", 7, _VLLM, "any", "KeyError: 'model.layers.0.mlp.experts.w13_weight_scale'", "KeyError: 'cmpl-1'"),
    root(
        "load-format", "Load format ", r"Load format `.*` is not supported", "config_error", "weights_load", "row", 8, _VLLM, "0.26-0.33",
        "ValueError: Load format `fastsafe` is not supported", "Load format auto"),
    root("not-a-model", "Invalid repository ID or local directory specified", "", "weights_read_failure", "engine_init", "row", 8, _VLLM, "any",
         "Value error, Invalid repository ID or local directory specified: '/models/none'.", "Valid repository ID"),
    root(
        "repo-id", "Repo id must be in the form", "", "weights_read_failure", "engine_init", "row", 8, _HF, "any",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/none'.", "Repo id is fine",
        "Correct the model path: nothing is at this place in the container."),
    root(
        "no-config-file", "does not appear to have a file named", "", "weights_read_failure", "engine_init", "row", 7, _TF, "any",
        "OSError: /models/k3 does not appear to have a file named config.json.", "has a file named config.json"),
    root(
        "hub-offline", "LocalEntryNotFoundError", "", "hub_access", "engine_init", "row", 7, _HF, "any",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified revision on the local disk",
        "local entry found"),
    root(
        "hub-offline-2", "outgoing traffic has been disabled", "", "hub_access", "engine_init", "row", 7, _HF, "any",
        "OfflineModeIsEnabled: Cannot reach the hub: outgoing traffic has been disabled.", "traffic is enabled"),
    root("hub-offline-3", "We couldn't connect to", r"We couldn't connect to '?https?://\S+ to load", "hub_access", "engine_init", "row", 6, _TF, "any",
         "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.", "connected"),
    root(
        "hub-gated", "GatedRepoError", "", "hub_access", "engine_init", "row", 8, _HF, "any", "huggingface_hub.errors.GatedRepoError: 403 Client Error.",
        "repo is open"),
    root(
        "hub-gated-2", "You are trying to access a gated repo", "", "hub_access", "engine_init", "row", 8, _TF, "any",
        "OSError: You are trying to access a gated repo.", "gated community"),
    root(
        "hub-missing", "RepositoryNotFoundError", "", "hub_access", "engine_init", "row", 8, _HF, "any",
        "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error.", "repository found"),
    root(
        "hub-http", "Client Error", r"(?:401|403|404|429) Client Error", "hub_access", "engine_init", "log", 6, _HF, "any",
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://hub/api", "Client Error rate 0"),
    root(
        "hub-revision", "RevisionNotFoundError", "", "model_version_mismatch", "engine_init", "row", 8, _HF, "any",
        "huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.", "revision found"),
    root(
        "hub-entry", "EntryNotFoundError", "", "model_version_mismatch", "engine_init", "row", 7, _HF, "any",
        "huggingface_hub.errors.EntryNotFoundError: 404 Client Error.", "entry found"),
    root(
        "not-local-model", "is not a local folder and is not a valid model identifier", "", "hub_access", "engine_init", "row", 8, _TF, "any",
        "OSError: org/m is not a local folder and is not a valid model identifier listed on the hub", "is a local folder"),
    root("hub-network", "Max retries exceeded with url", "", "hub_access", "engine_init", "log", 5, _HF, "any",
         "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api", "retries: 2"),
    root(
        "hub-checksum", "Consistency check failed", "", "weights_read_failure", "weights_load", "row", 8, _HF, "any",
        "OSError: Consistency check failed: file should be of size 4 but has size 3", "consistency ok"),
    root(
        "config-json", "JSONDecodeError", r"json\.decoder\.JSONDecodeError|JSONDecodeError: ", "weights_read_failure", "engine_init", "row", 6, _TF, "any",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "JSON decoded"),
    root(
        "config-not-json", "It looks like the config file at", r"is not a valid JSON file", "weights_read_failure", "engine_init", "row", 8, _TF, "any",
        "OSError: It looks like the config file at '/m/config.json' is not a valid JSON file.", "the config file at /m"),
    root(
        "tokenizer-backend", "Couldn't instantiate the backend tokenizer", "", "weights_read_failure", "engine_init", "row", 8, _TF, "any",
        "ValueError: Couldn't instantiate the backend tokenizer from one of:", "tokenizer ready"),
    root(
        "tokenizer-load", "Can't load tokenizer for", "", "weights_read_failure", "engine_init", "row", 8, _TF, "any",
        "OSError: Can't load tokenizer for '/models/k3'.", "tokenizer for k3"),
    root(
        "tokenizer-class", "Tokenizer class ", r"Tokenizer class \S+ does not exist or is not currently imported", "dep_version", "dependencies", "row", 8,
        _TF, "any", "ValueError: Tokenizer class KimiTok does not exist or is not currently imported.", "Tokenizer class KimiTok"),
    root(
        "file-missing", "No such file or directory", r"FileNotFoundError: .*(?:\.safetensors|\.bin|\.gguf|config\.json|tokenizer|/models?/)",
        "weights_read_failure", "", "log", 6, _VLLM, "any",
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/k3/model-00001-of-00096.safetensors'", "FileNotFoundError: 'ninja'"),
    root(
        "safetensors-file", "No such file or directory", r"No such file or directory: \S+\.safetensors", "weights_read_failure", "weights_load", "row", 7,
        _ST, "any", "FileNotFoundError: No such file or directory: \"/models/k3/model-1.safetensors\"", "No such file or directory: 'gcc'"),
    # GPU support.
    root(
        "no-kernel-image", "no kernel image is available for execution on the device", "", "cuda_arch_unsupported", "weights_load", "frames", 8,
        "https://github.com/gpustack/gpustack/issues/2097", "any", "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "kernel image available"),
    root(
        "device-capability", "not compatible with the current PyTorch installation", "", "cuda_arch_unsupported", "device_init", "log", 3, _TORCH, "any",
        "UserWarning-free: NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
        "compatible with the current PyTorch"),
    root(
        "attention-none", "No valid attention backend", "", "cuda_arch_unsupported", "engine_init", "log", 8, _VLLM, "0.14-0.33",
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig", "valid attention backend"),
    root(
        "attention-selected", "is not valid for this configuration", "", "cuda_arch_unsupported", "engine_init", "log", 8, _VLLM, "0.14-0.33",
        "ValueError: Selected backend AttentionBackendEnum.FLASHMLA is not valid for this configuration. Reason: ['compute capability not supported']",
        "configuration is valid"),
    root(
        "moe-none", "MoE backend", r"No \w+ MoE backend supports|MoE backend .{0,60}(?:is not supported|not available|does not support)",
        "cuda_arch_unsupported", "weights_load", "log", 8, _VLLM, "0.26-0.33", "ValueError: No MXFP4 MoE backend supports the deployment configuration.",
        "MoE backend marlin"),
    root(
        "fp8-kv", "KV cache",
        r"(?:FP8|fp8\w*|NVFP4|nvfp4|[Qq]uantized) ?(?:KV|kv)[ _-]?cache.{0,120}(?:not supported|requires|unsupported|only supported|no longer)|"
        r"kv_cache_dtype.{0,60}not supported", "cuda_arch_unsupported", "engine_init", "log", 8, "https://github.com/vllm-project/vllm/issues/51313", "any",
        "NotImplementedError: FlashAttention V1 with FP8 KV cache not supported", "FP8 KV cache in use"),
    root(
        "k3-fp8-query", "requires an fp8 prefill query", "", "model_or_fork_bug", "", "log", 9, "https://github.com/vllm-project/vllm/issues/51313",
        "0.27-0.33", "AssertionError: Kimi-K3 fp8 KV cache requires an fp8 prefill query; enable --attention-config", "fp8 prefill query enabled",
        "Drop the fp8 KV cache on this GPU: the flag that the message names is ignored here."),
    root(
        "kv-dtype", "kv_cache_dtype", r"kv_cache_dtype.{0,80}(?:not supported|unsupported|invalid|requires)", "cuda_arch_unsupported", "engine_init", "log",
        7, _VLLM, "any", "ValueError: FLASHMLA_SPARSE: [kv_cache_dtype not supported]", "kv_cache_dtype=fp8"),
    root(
        "fp8-kv-assert", "fp8",
        r"(?:AssertionError|ValueError|NotImplementedError|RuntimeError): .{0,200}(?:fp8|FP8).{0,160}(?:requires?|not supported|unsupported|only|must|"
        r"needs?)", "cuda_arch_unsupported", "engine_init", "log", 6, "https://github.com/vllm-project/vllm/issues/51313", "any",
        "AssertionError: fp8 query quantization must be enabled with use_prefill_query_quantization", "fp8 weights loaded"),
    root(
        "capability-required", "capability",
        r"(?:requires?|[Mm]inimum|at least|only supported|not supported).{0,80}(?:compute )?capability|capability \d\.?\d?.{0,60}(?:not supported|is too "
        r"low|unsupported|required)", "cuda_arch_unsupported", "engine_init", "log", 7, _VLLM, "any",
        "RuntimeError: FlashMLA requires compute capability 9.0", "device capability 9.0"),
    root(
        "only-gpu", "only supported on", r"(?:Error|error).{0,160}only supported on (?:devices|GPUs?|Hopper|Blackwell|SM|sm_?\d|CUDA)",
        "cuda_arch_unsupported", "engine_init", "log", 7, _VLLM, "any", "RuntimeError: DeepGEMM is only supported on Hopper and Blackwell",
        "only supported on request"),
    root(
        "sm-arch", "sm_",
        r"(?:Error|error|ERROR).{0,200}(?:not supported|unsupported|only supports|requires|no kernel|not compiled).{0,80}\bsm_?\d{2,3}|"
        r"\bsm_?\d{2,3}a?\b.{0,80}(?:is not supported|not supported|unsupported)", "cuda_arch_unsupported", "engine_init", "log", 7, _VLLM, "any",
        "RuntimeError: this kernel is not supported on sm_120", "Compiling for sm_90"),
    root(
        "device-function", "invalid device function", "", "cuda_arch_unsupported", "", "log", 7, _CUDA, "any",
        "RuntimeError: CUDA error: invalid device function", "device function ready"),
    root(
        "cutlass-kernel", "utlass", r"(?:Error (?:Internal|Not Supported)|[Cc]utlass.{0,60}(?:not supported|failed|cannot implement)|no kernel found)",
        "cuda_arch_unsupported", "", "log", 5, _VLLM, "any", "RuntimeError: cutlass_scaled_mm: Error Internal cutlass", "cutlass 4.2"),
    root(
        "not-implemented", "NotImplementedError: ", "", "cuda_arch_unsupported", "", "log", 4, _VLLM, "any",
        "NotImplementedError: Could not run '_C::x' with arguments from the 'CUDA' backend", "Not implemented yet",
        "Use another back end or version: this combination is not implemented."),
    # Memory.
    root(
        "free-memory", "Free memory on device", r"is less than (?:desired GPU memory utilization|the engine's budget)", "gpu_memory_busy", "device_init",
        "row", 8, "https://github.com/vllm-project/vllm/issues/20305", "0.9-0.33",
        "ValueError: Free memory on device (30.12/47.54 GiB) on startup is less than desired GPU memory utilization (0.95, 45.16 GiB).",
        "Free memory on device 80 GiB"),
    root(
        "memory-moved", "Error in memory profiling", "", "gpu_memory_busy", "engine_init", "row", 8, _VLLM, "0.4-0.33",
        "AssertionError: Error in memory profiling. Initial free memory 20 GiB, current free memory 30 GiB. This happens when other processes sharing the "
        "same container release GPU memory", "memory profiling took 3 s"),
    root(
        "no-kv-memory", "No available memory for the cache blocks", "", "oom_kv_sizing", "engine_init", "row", 8, _VLLM, "0.4-0.33",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        "available memory for cache", "Raise --gpu-memory-utilization or use more GPUs: after weights and activations nothing is left for the cache."),
    root(
        "kv-too-small", "To serve at least one request with the model", r"max seq len", "oom_kv_sizing", "engine_init", "row", 8, _VLLM, "0.8-0.33",
        "ValueError: To serve at least one request with the models's max seq len (131072), (15.0 GiB KV cache is needed, which is larger than the "
        "available KV cache memory (6.9 GiB).", "To serve at least two requests",
        "Give the cache more room (more GPUs, a higher --gpu-memory-utilization, an fp8 cache): the plan does not hold one request of this length."),
    root(
        "kv-too-small-old", "is larger than the maximum number of tokens that can be stored in KV cache", "", "oom_kv_sizing", "engine_init", "row", 8,
        _VLLM, "0.4-0.9", "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (9000).",
        "stored in KV cache",
        "Give the cache more room (more GPUs, a higher --gpu-memory-utilization, an fp8 cache): the plan does not hold one request of this length."),
    root(
        "mamba-blocks", "exceeds available Mamba cache blocks", "", "oom_kv_sizing", "engine_init", "row", 8,
        "https://github.com/kaito-project/kaito/issues/2319", "0.24-0.33", "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (598).",
        "Mamba cache blocks: 598", "Lower --max-num-seqs to the number of blocks in the message, or give the cache more room."),
    root(
        "kv-host-budget", "on kv cache allocation is less than requested", "", "oom_host", "engine_init", "row", 8, _VLLM, "0.20-0.33 CPU",
        "ValueError: Available memory on node 0 (1.0/12.8 GiB) on kv cache allocation is less than requested", "kv cache allocation done"),
    root(
        "cuda-oom", "CUDA out of memory", "", "oom_profile_warmup", "", "log", 7, _TORCH, "any",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB.", "memory allocation failed with OOM on device 6", cls="oom"),
    root(
        "cuda-oom-hip", "HIP out of memory", "", "oom_profile_warmup", "", "log", 7, _TORCH, "any",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 384.00 MiB.", "HIP 7.0", cls="oom"),
    root(
        "cuda-oom-code", "out of memory", r"(?:CUDA|Cuda|cuda\w*|cudaError|cu\w+).{0,60}out of memory|out of memory.{0,40}(?:CUDA|cuda)",
        "oom_profile_warmup", "", "log", 7, _TORCH, "any", "torch.AcceleratorError: CUDA error: out of memory", "Out of memory: Killed process 3", cls="oom"),
    root(
        "cuda-oom-name", "CUDA_ERROR_OUT_OF_MEMORY", "", "oom_profile_warmup", "", "log", 7, _CUDA, "any", "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA_SUCCESS", cls="oom"),
    root(
        "cublas-alloc", "CUBLAS_STATUS_ALLOC_FAILED", "", "oom_profile_warmup", "", "log", 6, _CUDA, "any",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "CUBLAS ok", cls="oom"),
    root(
        "oom-class", "OutOfMemoryError", r"(?:torch|cuda)\S*OutOfMemoryError", "oom_profile_warmup", "", "log", 6, _TORCH, "any",
        "torch.cuda.OutOfMemoryError: Allocation on device", "OutOfMemory budget", cls="oom"),
    root(
        "sampler-oom", "CUDA out of memory occurred when warming up sampler", "", "oom_profile_warmup", "engine_init", "row", 8, _VLLM, "0.8-0.33",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.", "warming up sampler",
        "Lower --max-num-seqs or --gpu-memory-utilization: the sampler's warm-up did not fit."),
    # Kernels and crashes.
    root(
        "illegal-access", "an illegal memory access was encountered", "", "cuda_illegal_memory_access", "", "log", 7, _CUDA, "any",
        "RuntimeError: CUDA error: an illegal memory access was encountered", "memory access"),
    root(
        "illegal-access-name", "illegal memory access", r"(?:CUDA|Cuda|cuda).{0,120}illegal memory access", "cuda_illegal_memory_access", "", "log", 7,
        _CUDA, "any", "NCCL WARN Cuda failure 700 'an illegal memory access'", "illegal memory access of the test"),
    root(
        "illegal-name", "cudaErrorIllegalAddress", "", "cuda_illegal_memory_access", "", "log", 7, _CUDA, "any", "cudaErrorIllegalAddress",
        "cudaErrorNotReady"),
    root(
        "illegal-instruction", "illegal instruction was encountered", "", "cuda_illegal_memory_access", "", "log", 7, _CUDA, "any",
        "CUDA error: an illegal instruction was encountered", "instruction"),
    root(
        "misaligned", "misaligned address", "", "cuda_illegal_memory_access", "", "log", 7, _CUDA, "any", "RuntimeError: CUDA error: misaligned address",
        "aligned address"),
    root(
        "device-assert", "device-side assert triggered", "", "cuda_illegal_memory_access", "", "log", 7, _CUDA, "any",
        "RuntimeError: CUDA error: device-side assert triggered", "device side"),
    root(
        "launch-failure", "unspecified launch failure", "", "cuda_illegal_memory_access", "", "log", 7, _CUDA, "any",
        "RuntimeError: CUDA error: unspecified launch failure", "launch ok"),
    root(
        "launch-timeout", "the launch timed out and was terminated", "", "cuda_illegal_memory_access", "", "log", 7, _CUDA, "any",
        "RuntimeError: CUDA error: the launch timed out and was terminated", "launch ok"),
    root(
        "invalid-address-space", "operation not supported on global/shared address space", "", "cuda_illegal_memory_access", "", "log", 7, _CUDA, "any",
        "CUDA error: operation not supported on global/shared address space", "address space"),
    root(
        "cublas", "CUBLAS_STATUS_", r"CUBLAS_STATUS_(?!SUCCESS|ALLOC_FAILED)\w+", "cuda_illegal_memory_access", "", "log", 5, _CUDA, "any",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx", "CUBLAS_STATUS_SUCCESS"),
    root(
        "cudnn", "CUDNN_STATUS_", r"CUDNN_STATUS_(?!SUCCESS)\w+", "cuda_illegal_memory_access", "", "log", 5, _CUDA, "any",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_SUCCESS"),
    root(
        "kv-offload-copy", "swap_blocks", r"(?:[Ee]rror|fail|invalid|CUDA).{0,160}swap_blocks|swap_blocks\w*.{0,160}(?:[Ee]rror|fail|invalid)",
        "kv_offload_connector_bug", "", "log", 7, "https://github.com/vllm-project/vllm/issues/50821", "0.27-0.33",
        "RuntimeError: CUDA error in swap_blocks_batch, cache_kernels.cu:101: invalid argument", "swap_blocks done"),
    root(
        "kv-offload-ids", "ffload", r"(?i)(?:IndexError|AssertionError|ValueError|RuntimeError|KeyError).{0,160}(?:offload\w*|kv_connector).{0,160}",
        "kv_offload_connector_bug", "", "log", 6, "https://github.com/vllm-project/vllm/issues/50821", "0.10-0.33",
        "AssertionError: OffloadingConnector: block id 91222 out of range", "offloading enabled"),
    root(
        "segfault-python", "Fatal Python error", "", "cuda_illegal_memory_access", "", "log", 6, "https://docs.python.org/3/library/faulthandler.html",
        "any", "Fatal Python error: Segmentation fault", "Python 3.12"),
    root(
        "segfault-shell", "Segmentation fault", "", "cuda_illegal_memory_access", "", "log", 5, "https://man7.org/linux/man-pages/man7/signal.7.html", "any",
        "Segmentation fault (core dumped)", "segment ok"),
    root(
        "segfault-signal", "Caught signal 11", "", "cuda_illegal_memory_access", "", "log", 6, "https://openucx.org", "any",
        "[node1:4711:0:4711] Caught signal 11 (Segmentation fault: address not mapped to object at address (nil))", "signal 15"),
    root(
        "core-dump-terminate", "terminate called after throwing", r"^(?!.*c10::(?:Dist|Error))", "cuda_illegal_memory_access", "", "log", 3,
        "https://en.cppreference.com/w/cpp/error/terminate", "any", "terminate called after throwing an instance of 'std::bad_alloc'",
        "terminate called after throwing an instance of 'c10::DistBackendError'"),
    root(
        "nan-logits", "logits", r"\b(?:NaN|nan|inf)s?\b.{0,60}logits|logits.{0,60}\b(?:NaN|nan|inf)\b", "silent_quality", "decode", "log", 5, _VLLM, "any",
        "NaN detected in logits of request 7", "logits processor loaded"),
    root(
        "probability", "probability tensor contains either", "", "silent_quality", "decode", "log", 7, _TORCH, "any",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "probability 0.1", cls="cuda_crash"),
    root(
        "prefix-zero", "Prefix cache hit rate: 0.0%", "", "prefix_cache_ineffective", "decode", "row", 0, _VLLM, "any",
        "Engine 000: Avg prompt throughput: 1.0 tokens/s, Prefix cache hit rate: 0.0%", "Prefix cache hit rate: 34.3%"),
    root(
        "compile-failed", "torch._dynamo.exc", "", "model_or_fork_bug", "engine_init", "frames", 6, _TORCH, "any",
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:", "torch._dynamo ready",
        "Start with --enforce-eager once to see whether compilation is at fault; clear its cache.", "engine_bug"),
    root(
        "inductor-failed", "torch._inductor.exc", "", "model_or_fork_bug", "engine_init", "frames", 6, _TORCH, "any",
        "torch._inductor.exc.InductorError: RuntimeError: no valid triton configs", "torch._inductor ready",
        "Start with --enforce-eager once to see whether compilation is at fault; clear its cache.", "engine_bug"),
    root(
        "triton-resources", "out of resource: shared memory", "", "cuda_arch_unsupported", "engine_init", "frames", 8,
        "https://github.com/triton-lang/triton", "any",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 120000, Hardware limit: 101376.", "shared memory: 64G"),
    root(
        "pydantic-value", "Value error, ", r"\[type=value_error, input_value=", "config_error", "engine_init", "row", 6, "https://docs.pydantic.dev", "any",
        "  Value error, --mamba-block-size can only be set with --enable-prefix-caching [type=value_error, input_value=ArgsKwargs((), {})]",
        "Value error, unknown"),
    root("pydantic-line", "[type=", r"\[type=\w{1,60}, input_value=", "config_error", "engine_init", "row", 4, "https://docs.pydantic.dev", "any",
         "  Input should be less than or equal to 1 [type=less_than_equal, input_value=1.5, input_type=float]", "[type=str]"),
)
