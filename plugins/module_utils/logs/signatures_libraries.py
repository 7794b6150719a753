# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures of what the engine stands on: unit and container before it, compilers, the model hub, process start, memory between GPUs."""

from __future__ import annotations

from typing import Tuple

from .signatures import Signature, relay, root

_VLLM = "https://github.com/vllm-project/vllm"
_TORCH = "https://github.com/pytorch/pytorch"
_TRITON = "https://github.com/triton-lang/triton"
_HF = "https://github.com/huggingface/huggingface_hub"
_TF = "https://github.com/huggingface/transformers"
_MOONCAKE = "https://github.com/kvcache-ai/Mooncake"
_DOCKER = "https://docs.docker.com/reference/cli/docker/container/run/"
_SYSTEMD = "https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html"
_DEEPEP = "https://github.com/deepseek-ai/DeepEP"

ROWS: Tuple[Signature, ...] = (
    # The unit and the container, before anything of the engine runs.
    root("docker-reference", "docker: invalid reference format", "", "container_other", "container_init", "row", 8, _DOCKER, "any",
         "docker: invalid reference format.", "docker: valid reference",
         "Correct the name of the image: it is none, or a blank or an empty variable stands in it."),
    root("docker-argument", "invalid argument ", r"invalid argument \S+ for \S+ flag", "container_other", "container_init", "row", 8, _DOCKER, "any",
         'docker: invalid argument "x" for "--shm-size" flag: invalid size', "CUDA error: invalid argument for kernel",
         "Correct the flag of docker run that is named."),
    root("docker-flag", "unknown flag: --", "", "container_other", "container_init", "row", 7, _DOCKER, "any", "unknown flag: --gpuss", "unknown flag value",
         "Correct the flag of docker run that is named; it stands before the image."),
    root("docker-mount", "bind source path does not exist", "", "storage_access", "container_init", "row", 8, _DOCKER, "any",
         'docker: Error response from daemon: invalid mount config for type "bind": bind source path does not exist: /models.', "bind source path exists",
         "Make or mount the folder that is named: the container is to get it and it is not there."),
    root("pull-limit", "toomanyrequests", "", "container_other", "container_init", "row", 7, _DOCKER, "any",
         "Error response from daemon: toomanyrequests: You have reached your pull rate limit", "too many requests",
         "Log in to the registry, or take the image from one of your own."),
    root("pull-unreachable", "Error response from daemon: Get ", r"Get \W?https?://\S+ (?:dial tcp|net/http|x509|tls|context deadline|unauthorized|EOF)",
         "container_other", "container_init", "row", 7, _DOCKER, "any",
         'docker: Error response from daemon: Get "https://reg:5443/v2/": tls: failed to verify certificate: x509: certificate signed by unknown authority',
         "Error response from daemon: Get it again", "Make the registry reachable from the node: name, port, proxy and certificate."),
    root("podman-short-name", "did not resolve to an alias", "", "container_other", "container_init", "row", 7, "https://github.com/containers/image", "any",
         'Error: short-name "vllm/vllm-openai" did not resolve to an alias and no unqualified-search registries are defined', "resolved an alias",
         "Give the image's name with its registry: podman does not guess one."),
    root("unit-exec", "Failed at step ", r"Failed at step [A-Z_]+ spawning", "container_other", "container_init", "row", 8, _SYSTEMD, "any",
         "vllm.service: Failed at step EXEC spawning /usr/bin/docker: No such file or directory", "Failed at step 3",
         "Correct the unit: the program, user or folder that the line names is not there."),
    root("unit-environment", "Failed to load environment files", "", "container_other", "container_init", "row", 8, _SYSTEMD, "any",
         "vllm.service: Failed to load environment files: No such file or directory", "loaded environment files",
         "Put the environment file of the unit back (EnvironmentFile=), or mark it optional with a leading '-'."),
    relay("unit-too-quick", "Start request repeated too quickly", "", "", _SYSTEMD, "any", "vllm.service: Start request repeated too quickly.",
          "Start request"),
    # Compilers that run at the start.
    root(
        "compiler-command", "CalledProcessError: Command", r"Command '\[?'?\S*/?(?:ptxas|nvcc|gcc|g\+\+|cc|c\+\+|clang(?:\+\+)?|ninja|ccache)\b'?",
        "jit_build_failure", "engine_init", "frames", 6, _TRITON, "any",
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpx/main.c', '-O3']' returned non-zero exit status 1.",
        "subprocess.CalledProcessError: Command '['torchrun']' returned non-zero exit status 1."),
    root(
        "linker-lcuda", "cannot find -lcuda", "", "jit_build_failure", "engine_init", "frames", 8, _TRITON, "any",
        "/usr/bin/ld: cannot find -lcuda: No such file or directory", "ld: found -lcuda",
        "Give the container the link libcuda.so beside libcuda.so.1 (the toolkit's hook or CDI makes it): the linker cannot find the driver's library."),
    root(
        "compiler-header", "fatal error: ", r"fatal error: \S{1,120}\.(?:h|hpp|cuh): No such file", "jit_build_failure", "engine_init", "frames", 8,
        "https://github.com/flashinfer-ai/flashinfer/issues/4410", "any", "fatal error: curand_kernel.h: No such file or directory",
        "fatal error: no memory"),
    root(
        "nvcc-failed", "NVCC compilation failed", "", "jit_build_failure", "engine_init", "frames", 7, "https://github.com/deepseek-ai/DeepGEMM", "any",
        "NVCC compilation failed: error: identifier is undefined", "NVCC 13.0"),
    root(
        "kernels-not-compiled", "No compiled ", r"No compiled \w{1,60} for ", "cuda_arch_unsupported", "", "log", 7, _VLLM, "any",
        "RuntimeError: No compiled cutlass_scaled_mm for CUDA device capability: 120. Required capability: 90", "No compiled graph was found"),
    root(
        "ampere-or-newer", "only supports ", r"only supports (?:Ampere|Hopper|Blackwell|Turing) (?:GPUs|and|or)", "cuda_arch_unsupported", "", "log", 7,
        "https://github.com/Dao-AILab/flash-attention", "any", "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        "this flag only supports JSON"),
    # The hub.
    root(
        "hub-server-error", "Server Error", r"50[0-9] Server Error", "hub_access", "engine_init", "log", 6, _HF, "any",
        "huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url", "500 Internal Server Error"),
    root(
        "hub-xet", "CAS service error", "", "hub_access", "weights_load", "log", 7, "https://github.com/huggingface/xet-core", "any",
        "RuntimeError: Data processing error: CAS service error : Reqwest Error: HTTP status client error", "CAS latency"),
    root(
        "hub-tls", "SSLError", r"SSLError.{0,80}(?:HTTPSConnectionPool|CERTIFICATE_VERIFY_FAILED|MaxRetry)", "hub_access", "engine_init", "log", 6, _HF, "any",
        "requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded", "SSLError count 0",
        "Give the container the certificate of the proxy that stands between (SSL_CERT_FILE, REQUESTS_CA_BUNDLE), or the model locally."),
    root(
        "hub-connect", "ConnectError", r"(?:httpx|httpcore)\.Connect(?:Error|Timeout)", "hub_access", "engine_init", "log", 6, _HF, "any",
        "httpx.ConnectError: [Errno -3] Temporary failure in name resolution", "ConnectError seen: 0"),
    root(
        "accelerate-missing", "requires Accelerate", "", "dep_missing_module", "", "log", 7, _TF, "any",
        "ImportError: Using `low_cpu_mem_usage=True` or a `device_map` requires Accelerate", "Accelerate is installed"),
    root(
        "config-name-used", "is already used by a Transformers config", "", "dep_version", "dependencies", "log", 7,
        _VLLM, "any", "ValueError: 'aimv2' is already used by a Transformers config, pick another name.",
        "the port is already used"),
    root(
        "rope-scaling", "rope_scaling` must be", "", "model_version_mismatch", "engine_init", "row", 7, _TF, "any",
        "ValueError: `rope_scaling` must be a dictionary with two fields, `type` and `factor`, got {}", "rope_scaling is set",
        "Use a transformers version that knows this model's rope_scaling, or correct config.json.", "configuration"),
    root(
        "quantization-file", "Cannot find the config file for", "", "model_version_mismatch", "engine_init", "row", 7, _VLLM, "any",
        "ValueError: Cannot find the config file for awq", "found the config file",
        "Drop --quantization, or use a checkpoint that was quantized in this way.", "configuration"),
    # Processes.
    root(
        "fork-after-cuda", "Cannot re-initialize CUDA in forked subprocess", "", "config_error", "device_init", "frames", 8, _TORCH, "any",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
        "CUDA initialized", "Set VLLM_WORKER_MULTIPROC_METHOD=spawn, and touch no GPU before the engine starts."),
    root(
        "spawn-without-guard", "has finished its bootstrapping phase", "", "config_error", "engine_init", "frames", 8,
        "https://docs.python.org/3/library/multiprocessing.html", "any",
        "RuntimeError: An attempt has been made to start a new process before the current process has finished its bootstrapping phase.",
        "bootstrapping phase 2", "Put the start of the engine under if __name__ == '__main__'."),
    root(
        "device-count", "Unexpected error from cudaGetDeviceCount", r"Error (?!80[0-9])\d{1,3}: (?!CUDA driver version)", "cuda_unknown_999", "device_init",
        "frames", 6, _TORCH, "any",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions? Error 304: OS call failed or operation not supported",
        "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
    root(
        "device-handle", "Unable to determine the device handle for GPU", r"^(?!.*GPU is lost)", "gpu_hw_xid", "device_init", "log", 8,
        "https://docs.nvidia.com/deploy/xid-errors/index.html", "any", "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
        "GPU 0: NVIDIA H200"),
    root(
        "allocator-nvml", "NVML_SUCCESS == r INTERNAL ASSERT FAILED", "", "oom_profile_warmup", "", "log", 6,
        _TORCH,
        "torch 2.1-2.13", 'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1016', "NVML_SUCCESS",
        cls="oom"),
    root(
        "segfault-torch", "Segfault encountered", "", "cuda_illegal_memory_access", "", "log", 6, _TORCH, "torch 2.3-2.13",
        "!!!!!!! Segfault encountered !!!!!!!", "Segfault handler installed"),
    relay(
        "fatal-signal", "got fatal signal from worker processes", "", "", _VLLM, "0.8-0.9",
        "MulitprocExecutor got fatal signal from worker processes, shutting down. See stack trace above for root cause issue.", "got fatal signals: 0"),
    relay(
        "fatal-signal-client", "Got fatal signal from worker processes", "", "", _VLLM, "0.8-0.9",
        "Got fatal signal from worker processes, shutting down. See stack trace above for root cause issue.", "Got signal 15"),
    relay(
        "terminate-called", "terminate called after throwing an instance of", r"c10::(?:Dist|Error)", "",
        "https://en.cppreference.com/w/cpp/error/terminate", "any",
        "terminate called after throwing an instance of 'c10::DistBackendError'", "terminate called after throwing an instance of 'std::bad_alloc'"),
    relay(
        "context-destroyed", "context is destroyed", r"Triton Error \[CUDA\]|CUDA error", "", _TRITON, "any",
        "RuntimeError: Triton Error [CUDA]: context is destroyed",
        "the context is destroyed on exit"),
    # PyTorch's watchdog: what it says of a collective that did not end. Some rank did not take part, or the fabric hangs; which, other lines tell.
    relay(
        "watchdog-served", "Watchdog caught collective operation timeout", r"SeqNum=\d{4,}", "nccl_unknown", _TORCH, "any",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=203441, OpType=GATHER, Timeout(ms)=600000) ran for 600020 milliseconds",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, Timeout(ms)=600000)", phase="decode"),
    relay(
        "watchdog-start", "Watchdog caught collective operation timeout", r"^(?!.*SeqNum=\d{4,})", "nccl_unknown", _TORCH, "any",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600004 milliseconds "
        "before timing out.", "Watchdog started", phase="distributed_init"),
    relay(
        "watchdog-detected", " by watchdog at work", "", "", _TORCH, "torch 2.3-2.13",
        "[PG ID 4 PG GUID 67 Rank 0]  failure detected by watchdog at work sequence id: 5730 PG status: last enqueued work: 6464", "watchdog at work"),
    relay(
        "watchdog-work", "Timeout at NCCL work", "", "", _TORCH, "any", "[PG 3 Rank 3] Timeout at NCCL work: 203441, last enqueued NCCL work: 203441",
        "NCCL work 3"),
    relay(
        "watchdog-failed", "Some NCCL operations have failed or timed out", "", "", _TORCH, "any",
        "[Rank 3] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels", "NCCL operations: 3"),
    relay(
        "watchdog-down", "we are taking the entire process down", "", "", _TORCH, "any",
        "[Rank 3] To avoid data inconsistency, we are taking the entire process down.", "taking the replica down"),
    relay(
        "watchdog-dump", "to signal dumping", "", "", _TORCH, "torch 2.5-2.13", "[PG ID 4 PG GUID 67 Rank 0] First PG on this rank to signal dumping.",
        "signal dumping is off"),
    relay(
        "watchdog-dumped", "Received a dump signal", "", "", _TORCH, "torch 2.5-2.13",
        "[PG ID 0 PG GUID 0 Rank 1] Received a dump signal due to a collective timeout from this local rank", "no dump signal"),
    relay(
        "watchdog-trace", "Stack trace of the failed collective not found", "", "", _TORCH, "torch 2.5-2.13",
        "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.", "Stack trace found"),
    # Shared memory, symmetric memory and expert parallelism.
    root(
        "nccl-shm-segment", "shared memory segment /dev/shm/nccl-", r"Error while (?:creating|attaching)", "nccl_shm", "distributed_init", "log", 8,
        "https://github.com/vllm-project/vllm/issues/6574", "any", "Error while creating shared memory segment /dev/shm/nccl-bWHyCi (size 9637888)",
        "removed shared memory segment /dev/shm/nccl-bWHyCi"),
    root(
        "deepep-kernel", "Failed: ", r"Failed: (?:Assertion|CUDA|Cuda) error \S*(?:[Dd]eep_?[Ee][Pp]|inter_?node|intra_?node)\S* '(?!invalid device function)",
        "nvshmem_init", "", "log", 7, _DEEPEP, "any",
        "RuntimeError: Failed: Assertion error /workspace/DeepEP/csrc/kernels/internode.cu:1713 'num_max_nvl_chunked_recv_tokens / num_rdma_ranks > 3'",
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:164 'invalid argument'",
        "Check DeepEP's settings against the number of ranks, and that it fits the installed NVSHMEM; use another all2all back end until then."),
    root(
        "nixl-engine-id", "Remote NIXL agent engine ID mismatch", "", "nixl_config", "", "log", 8, "https://github.com/vllm-project/vllm/issues/27083",
        "0.10-0.33", "RuntimeError: Remote NIXL agent engine ID mismatch. Expected 46126a31_dp0,received 96b1c4ff_dp0.", "Remote NIXL agent added",
        "Set VLLM_NIXL_SIDE_CHANNEL_HOST on every instance to its own address, and a port of its own: another instance answered."),
    root(
        "mooncake-connect", "_transport.cpp", r"Failed to connect to (?:target|segment)|Connect timeout to", "kv_store", "", "log", 7, _MOONCAKE, "any",
        "E20260106 06:43:02.966156  5793 ascend_direct_transport.cpp:820] Failed to connect to target: 172.17.0.16:25482, status: 103900",
        "rdma_transport.cpp:12] RDMA device: mlx5_0"),
    root(
        "mooncake-metadata", "transfer_metadata", r"Error from http client|Failed to retrieve segment descriptor", "kv_store", "", "log", 7, _MOONCAKE, "any",
        "E0904 21:29:13.607991 31963 transfer_metadata_plugin.cpp:224] Error from http client, GET http://10.0.0.1:8080/metadata error: Failed initialization",
        "transfer_metadata.cpp:12] segment found"),
    root(
        "mooncake-keys", "Failed to get ", r"Failed to get \d+ keys out of \d+", "kv_store", "", "log", 5, _MOONCAKE, "any",
        "[mooncake_backend.py:240] Failed to get 6722 keys out of 6722. error_codes=[-707]. Check key existence and memory state.", "Failed to get the IP"),
    root(
        "mooncake-transfer", "Mooncake transfer failed", "", "kv_store", "", "log", 5, _MOONCAKE, "any",
        "[mooncake_connector.py:419] Mooncake transfer failed for request cmpl-1", "Mooncake transfer engine started"),
    # Storage.
    root(
        "fuse-gone", "Transport endpoint is not connected", "", "storage_io", "", "log", 8,
        "https://www.kernel.org/doc/html/latest/filesystems/fuse.html", "any",
        "OSError: [Errno 107] Transport endpoint is not connected: '/models'", "Transport endpoint connected",
        "Mount the file system anew: its process (FUSE) is gone."),
)
