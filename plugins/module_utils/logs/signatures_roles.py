# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures of lines that are not the first failure: noise, decoys and relays."""

from __future__ import annotations

from typing import Tuple

from .signatures import Signature, decoy, noise, relay

_VLLM = "https://github.com/vllm-project/vllm"
_TORCH = "https://github.com/pytorch/pytorch"

FIRST: Tuple[Signature, ...] = (
    # Noise: healthy runs print these.
    noise(
        "ulimit-warning", "Found ulimit of ", "", _VLLM, "0.9-0.33",
        "Found ulimit of 20000 and failed to automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors like "
        "`OSError: [Errno 24] Too many open files`.", "OSError: [Errno 24] Too many open files"),
    noise(
        "allocator-retry", "memory allocation failed with OOM", "", "https://github.com/vllm-project/vllm/pull/55407", "torch 2.9-2.13",
        "memory allocation failed with OOM on device 3 while trying to allocate 1048576 bytes (free: 12, total: 90)",
        "torch.OutOfMemoryError: CUDA out of memory."),
    noise(
        "docker-rm", "No such container: ", r"Error(?: response from daemon)?: No such container: ",
        "https://docs.docker.com/reference/cli/docker/container/rm/", "docker", "node2 docker[430]: Error: No such container: vllm",
        "No such container: vllm"),
    noise("nanobind-leak", "nanobind: ", "leaked|reference counting", _VLLM, "0.20-0.33", "nanobind: leaked 4 instances!", "nanobind: import failed"),
    noise("leaked-objects", "resource_tracker", "", _VLLM, "any",
          "resource_tracker: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown", "leaked memory"),
    noise(
        "future-warning", "Warning: ", r"\b(?:Future|Deprecation|User|PendingDeprecation|Syntax)Warning: (?!.*(?:CUDA initialization|NVIDIA|driver))",
        _TORCH, "any", "a.py:3: FutureWarning: `x` is deprecated", "Warning: GPU is on fire"),
    noise(
        "shm-wait", "No available shared memory broadcast block found in", "", "https://github.com/vllm-project/vllm/issues/26899", "0.8-0.33",
        "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging",
        "shared memory segment not found"),
    noise("numa-binding", "NUMA binding: ", "", _VLLM, "0.20-0.33 CPU", "Warning: NUMA binding: Using MEMBIND policy for memory allocation", "numa failed"),
    noise("custom-allreduce-off", "Custom allreduce is disabled", "", _VLLM, "0.4-0.33",
          "Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.", "custom_all_reduce.cuh:455 'invalid argument'"),
    noise("destroy-group", "destroy_process_group() was not called", "", _TORCH, "torch 2.4-2.13",
          "WARNING: destroy_process_group() was not called before program exit, which can leak resources.", "init_process_group() was not called"),
    noise("network-plugin", "NET/Plugin", r"(?:Could not find|No plugin found|Failed to find)", "https://github.com/NVIDIA/nccl", "any",
          "NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.", "NCCL WARN NET/Plugin: init failed"),
    noise(
        "nccl-info", "NCCL INFO", r"NCCL INFO (?!.*(?:GPU Direct RDMA Disabled|Cuda failure|Bootstrap.*(?:fail|timeout)))",
        "https://github.com/NVIDIA/nccl", "any", "NCCL INFO transport/net.cc:1302 -> 6", "NCCL WARN Cuda failure 1 'invalid argument'"),
    noise(
        "compute-type", "You are using a model of type", "", "https://github.com/huggingface/transformers", "any",
        "You are using a model of type kimi_k2 to instantiate a model of type deepseek_v3. This is not supported for all configurations of models and can "
        "yield errors.", "The checkpoint you are trying to load has model type"),
    noise("client-error", " - \"", r"\"(?:GET|POST|PUT|DELETE|HEAD|OPTIONS) \S+ HTTP/[\d.]+\" [1-5]\d\d", _VLLM, "any",
          "INFO:     10.0.0.9:1 - \"POST /v1/chat/completions HTTP/1.1\" 400 Bad Request", "POST failed"),
    noise("bad-request", "Error in preprocessing prompt inputs", "", _VLLM, "0.6-0.33", "Error in preprocessing prompt inputs", "Error in engine"),
    noise(
        "request-error", "Error creating ", r"Error (?:creating|in) (?:chat )?completion", _VLLM, "0.6-0.33", "Error creating chat completion",
        "Error creating engine"),
    noise(
        "stream-error", "Error in ", r"Error in (?:chat )?completion stream generator", _VLLM, "0.6-0.33", "Error in chat completion stream generator.",
        "Error in worker"),
    noise(
        "request-validation", "pydantic", r"validation errors? for (?:ChatCompletion|Completion|Tokenize|Embedding|Responses)\w*Request", _VLLM, "any",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ChatCompletionRequest",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"),
    noise(
        "request-validation-2", "RequestValidationError", "", _VLLM, "any", "fastapi.exceptions.RequestValidationError: 3 validation errors:",
        "ValidationError: 1 validation error for ModelConfig"),
    noise(
        "jit-progress", "nvcc ", r"^\[\d{1,5}/\d{1,5}\] .*nvcc ", "https://github.com/flashinfer-ai/flashinfer", "any",
        "[1/38] nvcc -gencode=arch=compute_121a -c fused_moe_120.cu", "nvcc fatal : Unknown option"),
    noise(
        "store-retry", "client", r"(?:client socket has failed to connect to (?!any)|TCP client failed to connect/validate to host \S+ - retrying)", _TORCH,
        "torch 2.4-2.13", "[c10d] The client socket has failed to connect to 10.0.0.1:16080 (errno: 113 - No route to host).",
        "The client socket has failed to connect to any network address of (10.0.0.1, 29501)."),
    noise("gloo-retry", "failed to connect, willRetry=", "", "https://github.com/pytorch/gloo", "any",
          "[gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, willRetry=1, retry=1, retryLimit=3", "failed to connect"),
    noise("request-cancelled", "asyncio.exceptions.CancelledError", "", _VLLM, "any", "asyncio.exceptions.CancelledError", "RuntimeError: cancelled by peer"),
    noise(
        "prompt-too-long", "maximum context length", r"This model's maximum context length is", _VLLM, "0.4-0.33",
        "ValueError: This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "User-specified max_model_len (9) is greater than"),
    noise("tokenizer-too-long", "Token indices sequence length is longer", "", "https://github.com/huggingface/transformers", "any",
          "Token indices sequence length is longer than the specified maximum sequence length for this model (9 > 8)", "sequence too long"),
    noise("moe-config-default", "Using default MoE config", "", _VLLM, "0.4-0.33",
          "Using default MoE config. Performance might be sub-optimal! Config file not found at /x.json", "FileNotFoundError: /x.json"),
    noise("peft-lora", "Regarding ", r"Regarding multimodal models, vLLM currently only supports", _VLLM, "any",
          "Regarding multimodal models, vLLM currently only supports adding LoRA to language model", "Regarding errors"),
    noise("unknown-env", "Unknown vLLM environment variable detected", r"^(?!.*ValueError: Unknown)(?!.*Error:)", _VLLM, "0.9-0.33",
          "Unknown vLLM environment variable detected: VLLM_FOO", "ValueError: Unknown vLLM environment variable detected: VLLM_FOO"),
    noise("sleep-mode", "memory pool is not empty", "", _VLLM, "any", "cumem memory pool is not empty", "memory pool is exhausted"),
    noise("preempted", "is preempted by PreemptionMode", "", _VLLM, "0.4-0.10",
          "Sequence group cmpl-1 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space.", "preempted by the scheduler"),
    noise("tqdm", "it/s]", "", _VLLM, "any", "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 465.98it/s]", "it failed"),
    # Decoys: ERROR lines without a failure behind them.
    decoy("fa-version", "Cannot use FA version", "", "https://github.com/vllm-project/vllm/issues/13308", "0.7-0.12",
          "Cannot use FA version 2 is not supported due to FA2 is only supported on devices with compute capability >= 8", "Cannot use FlashMLA"),
    decoy("dump-input", "Dumping ", r"Dumping (?:input data|scheduler output|scheduler stats)", _VLLM, "0.9-0.33",
          "Dumping input data for V1 LLM engine (v0.32.0) with config: model='/m'", "Dumping core"),
    decoy(
        "extension-import", "Failed to import from vllm._", r"^(?!.*(?:undefined symbol|cannot open shared object))", _VLLM, "0.4-0.33",
        "Failed to import from vllm._rocm_C with ModuleNotFoundError(\"No module named 'vllm._rocm_C'\")",
        "Failed to import from vllm._C: ImportError(undefined symbol: x)"),
    decoy(
        "tcpstore-dump-flag", "Failed to check the \"should dump\" flag on TCPStore", "", "https://github.com/vllm-project/vllm/issues/14987",
        "torch 2.5-2.13",
        "[PG ID 0 PG GUID 0 Rank 3] Failed to check the \"should dump\" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: "
        "Failed to recv, got 0 bytes.", "TCPStore client failed to connect"),
    decoy("triton-missing", "Triton ", r"Triton (?:is not installed|is installed, but doesn't include|not installed)", _VLLM, "any",
          "Triton is not installed. triton-cpu is expected on x86 CPUs.", "Triton kernel launch failed"),
    decoy(
        "tcpstore-ipv6", "The client socket cannot be initialized to connect to", r"errno: 97", _TORCH, "any",
        "The client socket cannot be initialized to connect to [head]:29500 (errno: 97 - Address family not supported by protocol).",
        "The client socket has timed out after 600000ms"),
    decoy(
        "hf-transfer", "Error retrieving ", r"Error retrieving (?:file list|safetensors)", _VLLM, "any",
        "Error retrieving file list: offline, retrying 1 of 2", "Error retrieving weights"),
    decoy("usage-stats", "usage_lib", "", _VLLM, "any", "usage_lib.py:3 could not report", "usage: vllm serve"),
    # Relays: they follow from something that stands elsewhere.
    relay("core-init-failed", "Engine core initialization failed", "", "", _VLLM, "0.8-0.33",
          "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", "Engine core initialization took 4 s"),
    relay("core-failed-to-start", "EngineCore failed to start", "", "", _VLLM, "0.8-0.33", "EngineCore failed to start.", "Engine failed"),
    relay("workerproc-init", "WorkerProc initialization failed", "", "", _VLLM, "0.8-0.33",
          "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.", "Worker initialization"),
    relay("workerproc-start", "WorkerProc failed to start", "", "", _VLLM, "0.8-0.33", "WorkerProc failed to start.", "WorkerProc started"),
    relay("workerproc-exception", "WorkerProc hit an exception", "", "", _VLLM, "0.8-0.33", "WorkerProc hit an exception.", "WorkerProc ready"),
    relay("engine-fatal", "EngineCore encountered a fatal error", "", "", _VLLM, "0.8-0.33", "EngineCore encountered a fatal error.", "EngineCore started"),
    relay("engine-issue", "EngineCore encountered an issue", "", "", _VLLM, "0.8-0.33",
          "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.", "an issue"),
    relay(
        "engine-dead", "EngineDeadError", "", "", _VLLM, "0.4-0.33",
        "vllm.engine.async_llm_engine.AsyncEngineDeadError: Background loop has errored already.", "EngineError"),
    relay("output-handler", "AsyncLLM output_handler failed", "", "", _VLLM, "0.8-0.33", "AsyncLLM output_handler failed.", "output handler ready"),
    relay(
        "background-task", "Engine background task failed", "", "", "https://github.com/vllm-project/vllm/issues/5901", "0.4-0.9",
        "Engine background task failed", "background task done", "decode"),
    relay(
        "background-loop", "Background loop has errored", "", "", "https://github.com/vllm-project/vllm/issues/5901", "0.4-0.9",
        "Background loop has errored already.", "loop ended"),
    relay("task-finished", "Task finished unexpectedly", "", "", "https://github.com/vllm-project/vllm/issues/5901", "0.4-0.9",
          "Task finished unexpectedly. This should never happen! Please open an issue on Github.", "Task finished"),
    relay("worker-failed-echo", "Worker failed with error", "", "", _VLLM, "0.8-0.33",
          "RuntimeError: Worker failed with error 'CUDA error: device-side assert', please check the stack trace above for the root cause", "Worker failed"),
    relay(
        "worker-method", "Error executing method", "", "", _VLLM, "0.5-0.12",
        "Error executing method 'init_device'. This might cause deadlock in distributed execution.", "Executing method"),
    relay(
        "worker-process-exception", "Exception in worker ", "", "", _VLLM, "0.5-0.10",
        "Exception in worker VllmWorkerProcess while processing method init_device.", "Exception in thread"),
    relay("killing-workers", "Killing local vLLM worker processes", "", "", _VLLM, "0.5-0.10", "Killing local vLLM worker processes", "Killing a request"),
    relay(
        "engine-process-failed", "Engine process failed to start", "", "", _VLLM, "0.6-0.9",
        "RuntimeError: Engine process failed to start. See stack trace for the root cause.", "process failed"),
    relay(
        "mq-engine-dead", "MQEngineDeadError", "", "", _VLLM, "0.6-0.9", "vllm.engine.multiprocessing.MQEngineDeadError: Engine loop is not running.",
        "MQ ready"),
    relay("executor-failed", "Executor failed", "", "", _VLLM, "0.10-0.33", "RuntimeError: Executor failed.", "Executor ready"),
    relay("cancelled-queue", "RuntimeError: cancelled", r"cancelled\s*$", "", _VLLM, "0.9-0.33", "RuntimeError: cancelled", "RuntimeError: cancelled stream 3"),
    relay(
        "request-keyerror", "KeyError: '", r"KeyError: '(?:cmpl|chatcmpl|batch|resp|gen)-", "", _VLLM, "0.8-0.33", "KeyError: 'cmpl-8f0-0-1'",
        "KeyError: 'model.layers.0'"),
    relay(
        "process-traceback", "Process ", r"(?:^|[)| ])Process (?:EngineCore\w*|VllmWorker\S*|SpawnProcess-\d+|ApiServer\w*|Worker\w*):\s*$", "", _VLLM,
        "any", "Process EngineCore_DP0:", "Process list:"),
    relay(
        "worker-died", "died unexpectedly", r"(?:Worker proc \S+ died unexpectedly|Engine core proc \S+ died unexpectedly)", "silent_worker_death", _VLLM,
        "0.8-0.33", "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.", "the peer died"),
    relay(
        "worker-died-old", "Worker VllmWorkerProcess pid", r"died, exit code", "silent_worker_death", "https://github.com/vllm-project/vllm/issues/15295",
        "0.5-0.10", "Worker VllmWorkerProcess pid 4117 died, exit code: -9", "Worker VllmWorkerProcess pid 4 ready"),
    relay(
        "killed", "Killed", r"^(?:\S+:? )?(?:\d+ )?Killed\s*(?:vllm .*|python.*)?$", "silent_worker_death",
        "https://man7.org/linux/man-pages/man7/signal.7.html", "any", "Killed", "Killed process 4711 (python3)"),
    relay(
        "ray-worker-killed", "A worker died or was killed while executing a task", "", "oom_host", "https://github.com/vllm-project/vllm/issues/586", "any",
        "A worker died or was killed while executing a task by an unexpected system error. Worker PID: 3311 Worker exit type: SYSTEM_ERROR",
        "A worker is ready", "weights_load", "Read the kernel log of that node for the OOM killer; load with more host memory or fewer workers at once."),
    relay(
        "core-exited", "engine core exited unexpectedly", "", "silent_worker_death", _VLLM, "0.24-0.33",
        "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup", "engine core exited"),
    relay(
        "core-proc-died", "Engine core proc", r"died unexpectedly", "silent_worker_death", _VLLM, "0.9-0.24",
        "Engine core proc EngineCore_0 died unexpectedly, shutting down client.", "Engine core proc ready"),
    relay(
        "gloo-closed", "Connection closed by peer", "", "silent_worker_death", "https://github.com/pytorch/gloo", "any",
        "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:26290. This is typically caused by a remote worker crashing.",
        "Connection accepted"),
    relay(
        "gloo-reset", "Connection reset by peer", r"(?:gloo|pair\.cc|TCPStore|recvValue|socket)", "silent_worker_death", "https://github.com/pytorch/gloo",
        "any", "RuntimeError: [gloo/transport/tcp/pair.cc:534] Read error [10.0.0.2]:1: Connection reset by peer", "HTTP connection reset by peer"),
    relay(
        "gloo-recv", "gloo/transport", r"(?:Read|Write) error|Application timeout|unbound_buffer", "silent_worker_death", "https://github.com/pytorch/gloo",
        "any", "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", "gloo/transport ready"),
    relay("tcpstore-recv", "recvValue failed", "", "silent_worker_death", _TORCH, "any",
          "[c10d] recvValue failed on SocketImpl(fd=3, addr=[head]:1, remote=[head]:2): Failed to recv, got 0 bytes", "recvValue ok"),
    relay(
        "tcpstore-send", "sendBytes failed", "", "silent_worker_death", _TORCH, "any", "[c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe",
        "sendBytes ok"),
    relay("tcpstore-frame", "waitForInput: ", "", "", _TORCH, "any", "[c10d] waitForInput: socket SocketImpl(fd=10) timed out after 45000ms", "wait for input"),
    relay(
        "watchdog-terminated", "Process group watchdog thread terminated with exception", r"^(?!.*(?:CUDA error|CUDA out of memory))", "", _TORCH, "any",
        "[PG 0 Rank 3] Process group watchdog thread terminated with exception: NCCL timeout",
        "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access"),
    relay("heartbeat", "heartbeat monitor timed out", "", "silent_worker_death", _TORCH, "torch 2.2-2.13",
          "ProcessGroupNCCL's watchdog got stuck for 480 seconds: heartbeat monitor timed out", "heartbeat ok"),
    relay(
        "parent-exited", "Parent process exited, terminating worker", "", "silent_worker_death", _VLLM, "0.8-0.33",
        "Parent process exited, terminating worker queues", "Parent process started"),
    relay("nccl-remote", "ncclRemoteError", "", "nccl_unknown", "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html", "any",
          "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", "ncclSuccess"),
    relay("nccl-remote-text", "remote process exited or there was a network error", "", "nccl_unknown",
          "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html", "any",
          "NCCL error: remote process exited or there was a network error, NCCL version 2.30.7", "network error"),
    relay("nccl-unhandled", "unhandled ", r"(?:NCCL|nccl).{0,160}unhandled (?:system|cuda) error|ncclUnhandledCudaError|ncclSystemError", "nccl_unknown",
          "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html", "any",
          "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", "unhandled exception"),
    relay(
        "nccl-unhandled-name", "nccl", r"ncclUnhandledCudaError|ncclSystemError|ncclInternalError: Internal check failed", "nccl_unknown",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html", "any", "ncclUnhandledCudaError: Call to CUDA function failed.",
        "ncclSuccess"),
    relay("nccl-internal", "NCCL error", r"NCCL error:? .{0,80}internal error", "nccl_unknown", "https://github.com/vllm-project/vllm/issues/18997", "any",
          "RuntimeError: NCCL error: internal error - please report this issue to the NCCL developers", "NCCL error: invalid usage"),
    relay(
        "nccl-aborted", "NCCL communicator was aborted", "", "nccl_unknown", _TORCH, "any", "NCCL communicator was aborted on rank 3.",
        "NCCL communicator ready"),
    relay(
        "torchrun-failed", "returned non-zero exit status", r"^(?!.*(?:ptxas|nvcc|\bgcc|\bg\+\+|/cc'|clang|ninja))", "", _TORCH, "any",
        "subprocess.CalledProcessError: Command '['torchrun']' returned non-zero exit status 1.", "exit status 0"),
    relay("child-failed", "ChildFailedError", "", "", _TORCH, "any", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "ChildProcess ok"),
    relay(
        "srun-task", "srun: error: ", r"(?:task|tasks) [\d,-]+: (?:Exited|Killed|Terminated|Aborted|Segmentation)", "silent_worker_death",
        "https://slurm.schedmd.com/srun.html", "any", "srun: error: node7: task 3: Exited with exit code 1", "srun: error: Unable to create step"),
    relay(
        "srun-terminating", "srun: ", r"srun: (?:Terminating|First task exited|Force Terminated|Job step aborted)", "",
        "https://slurm.schedmd.com/srun.html", "any", "srun: Terminating StepId=77.0", "srun: error: Unable to create step"),
    relay("ray-actor-died", "ActorDiedError", "", "silent_worker_death", "https://docs.ray.io", "any",
          "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "Actor ready"),
    relay(
        "ray-worker-died", "The actor is dead because its worker process has died", "", "silent_worker_death",
        "https://github.com/vllm-project/vllm/issues/586", "any", "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
        "The actor is alive"),
    relay(
        "ray-crashed", "RayTaskError", r"RayTaskError\(\w+\)", "", "https://docs.ray.io", "any",
        "ray.exceptions.RayTaskError(RuntimeError): ray::RayWorkerWrapper.execute_method()", "RayTask ok"),
    relay("exit-failure", "Main process exited, code=", "", "", "https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html", "any",
          "vllm.service: Main process exited, code=exited, status=1/FAILURE", "Main process started"),
    relay(
        "unit-failed", "Failed with result", r"^(?!.*oom-kill)", "", "https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html", "any",
        "vllm.service: Failed with result 'exit-code'.", "result ok"),
    relay(
        "backoff", "Back-off restarting failed container", "", "", "https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/", "any",
        "Back-off restarting failed container vllm in pod x", "Started container"),
    relay(
        "ninja-failed", "Ninja build failed", "", "", "https://github.com/vllm-project/vllm/issues/36077", "any",
        "RuntimeError: Ninja build failed. Ninja output:", "Ninja build ok"),
    relay(
        "device-type", "Failed to infer device type", "", "", "https://github.com/vllm-project/vllm/issues/11623", "0.5-0.33",
        "RuntimeError: Failed to infer device type", "device type cuda"),
    relay(
        "no-platform", "No platform detected", "", "", _VLLM, "0.7-0.33", "No platform detected, vLLM is running on UnspecifiedPlatform",
        "Automatically detected platform cuda."),
    relay("op-namespace", "_OpNamespace", r"'_OpNamespace' '_\w+' object has no attribute", "abi_mismatch", _VLLM, "0.4-0.33",
          "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'", "AttributeError: 'NoneType' object has no attribute 'x'"),
    relay(
        "nvshmem-early-call", "NVSHMEM API called before NVSHMEM initialization", "", "nvshmem_init", "https://github.com/sgl-project/sglang/issues/7888",
        "any", "RuntimeError: CUDA error: NVSHMEM API called before NVSHMEM initialization has completed", "NVSHMEM initialized"),
    relay(
        "nixl-notfound", "NIXL_ERR_NOT_FOUND", "", "nixl_disconnect", "https://github.com/ai-dynamo/nixl", "any", "nixlNotFoundError: NIXL_ERR_NOT_FOUND",
        "NIXL_SUCCESS"),
    relay("nixl-notif", "no specified or potential backend could send", "", "nixl_disconnect", "https://github.com/ai-dynamo/nixl", "any",
          "genNotif: no specified or potential backend could send the inter-agent notifications", "genNotif sent"),
)

LAST: Tuple[Signature, ...] = (
    relay("asynchronous-note", "CUDA kernel errors might be asynchronously reported", "", "", _TORCH, "any",
          "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.", "CUDA kernel launched"),
    relay("system-exit", "SystemExit", "", "", "https://docs.python.org/3/library/exceptions.html", "any", "SystemExit: 1", "System ready"),
    relay(
        "keyboard-interrupt", "KeyboardInterrupt", "", "", "https://docs.python.org/3/library/exceptions.html", "any", "KeyboardInterrupt: terminated",
        "Keyboard ready"),
)
