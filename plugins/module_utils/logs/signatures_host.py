# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures of the host: kernel, driver, fabric, container runtime, schedulers, memory and storage of the node."""

from __future__ import annotations

from typing import Tuple

from .signatures import Signature, root

_XID = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_CUDA = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
_FM = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
_TOOLKIT = "https://github.com/NVIDIA/nvidia-container-toolkit"
_K8S = "https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/"
_KERNEL = "https://www.kernel.org/doc/html/latest/admin-guide/mm/concepts.html"

ROWS: Tuple[Signature, ...] = (
    # Kernel: GPUs. Codes are read by verdict.py, which asks the Xid table what each means.
    root("xid", "NVRM: Xid", r"NVRM: Xid \(", "gpu_hw_xid", "", "log", 9, _XID, "any",
         "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module"),
    root(
        "sxid-fatal", "SXid (PCI:", r"SXid \(PCI:[0-9a-fA-F:.]+\): \d+,? (?!Non-?fatal)", "gpu_hw_xid", "device_init", "log", 9, _XID, "any",
        "nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 22013, Fatal, Link 12 Minion Link DLREQ interrupt",
        "nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 12028, Non-fatal, Link 2 egress", action=""),
    root("fallen-off", "fallen off the bus", "", "gpu_hw_xid", "device_init", "log", 9, _XID, "any",
         "NVRM: fallen off the bus and is not responding to commands.", "NVRM: GPU at PCI:0000:3b:00: GPU-1"),
    root("gpu-lost", "GPU is lost", "", "gpu_hw_xid", "device_init", "log", 9, _XID, "any",
         "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU", "GPU is idle"),
    root("rm-init-failed", "RmInitAdapter failed", "", "gpu_hw_xid", "device_init", "row", 9, _XID, "any",
         "NVRM: GPU 0000:c1:00.0: RmInitAdapter failed! (0x62:0x40:1860)", "NVRM: RmInitAdapter done"),
    root(
        "rm-gsp", "NVRM: ", r"NVRM: .*(?:GSP|_kgspProcessRpcEvent|kgsp\w*).*(?:[Tt]ime-?out|[Tt]imed out|failed|crash)", "gpu_hw_xid", "", "log", 9, _XID,
        "any", "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out", "NVRM: GSP firmware loaded"),
    root(
        "aer-fatal", "AER: ", r"AER: .*(?:Uncorrected|Uncorrectable) \((?:Fatal|Non-Fatal)\)", "gpu_hw_xid", "", "log", 7,
        "https://docs.kernel.org/PCI/pcieaer-howto.html", "any", "pcieport 0000:20:01.1: AER: Uncorrected (Fatal) error received: 0000:21:00.0",
        "AER: Corrected error received"),
    root(
        "soft-lockup", "soft lockup", r"BUG: soft lockup|watchdog: .*soft lockup", "host_driver_hang", "", "log", 9,
        "https://docs.kernel.org/admin-guide/lockup-watchdogs.html", "any", "watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [VLLM::EngineCor:4711]",
        "soft lockup detector enabled"),
    root(
        "hung-task", "blocked for more than", r"task .{1,60} blocked for more than \d+ seconds", "host_driver_hang", "", "log", 9,
        "https://docs.kernel.org/admin-guide/sysctl/kernel.html", "any", "INFO: task VLLM::Worker:4711 blocked for more than 120 seconds.",
        "request blocked for more than a slot"),
    root(
        "unkillable", "uvm",
        r"(?:uvm_\w+|nvidia_uvm).*(?:stuck|spin|hung|soft lockup|D state|unkillable)|(?:stuck|hung|spinning|unkillable|D state).*(?:uvm_\w+|nvidia_uvm)|"
        r"(?:uvm_\w+|nv_\w+|os_\w+)\+0x[0-9a-f]+/0x[0-9a-f]+ \[nvidia_uvm\]", "host_driver_hang", "shutdown", "log", 9,
        "https://github.com/NVIDIA/open-gpu-kernel-modules", "any", "process 4711 unkillable, stack: uvm_va_space_destroy+0x5c/0x900 [nvidia_uvm]",
        "nvidia_uvm: module loaded"),
    root("nvidia-smi-hang", "nvidia-smi", r"nvidia-smi.{0,80}(?:hang|hung|timed out|did not return)", "host_driver_hang", "", "log", 7, _XID, "any",
         "nvidia-smi did not return within 60 s", "$ nvidia-smi -L"),
    root(
        "smi-not-talking", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", "", "container_runtime_missing", "device_init",
        "row", 7, "https://forums.developer.nvidia.com", "any",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.",
        "NVIDIA-SMI 580.95.05", "Load the NVIDIA driver on the host (a kernel update may have left it without modules)."),
    # Kernel: memory and crashes.
    root("oom-killer", "Out of memory: Killed process", "", "oom_host", "", "log", 9, _KERNEL, "any",
         "Out of memory: Killed process 4711 (VLLM::Worker_TP) total-vm:914217732kB, anon-rss:512000000kB", "Out of memory budget"),
    root(
        "oom-killer-old", "Out of memory: Kill process", "", "oom_host", "", "log", 9, _KERNEL, "any",
        "Out of memory: Kill process 4711 (python3) score 912 or sacrifice child", "Out of memory"),
    root("oom-cgroup", "Memory cgroup out of memory", "", "oom_host", "", "log", 9, _KERNEL, "any",
         "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:91421kB", "cgroup memory limit is 64G"),
    root(
        "oom-invoked", "invoked oom-killer", "", "oom_host", "", "log", 9, _KERNEL, "any",
        "VLLM::Worker_TP invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE)", "killer invoked"),
    root(
        "oom-systemd", "oom-kill", r"(?:result 'oom-kill'|A process of this unit has been killed by the OOM killer|status=oom-kill)", "oom_host", "", "log",
        9, "https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html", "any", "vllm.service: Failed with result 'oom-kill'.",
        "vllm.service: Failed with result 'exit-code'."),
    root(
        "oom-systemd-text", "killed by the OOM killer", "", "oom_host", "", "log", 9,
        "https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html", "any",
        "vllm.service: A process of this unit has been killed by the OOM killer.", "killed by signal 9"),
    root("k8s-oomkilled", "OOMKilled", "", "oom_host", "", "log", 9, _K8S, "any", "    Reason:       OOMKilled", "    Reason:       Completed"),
    root(
        "slurm-oom", "oom", r"(?:oom[_-]kill event|Detected \d+ oom[_-]kill|OUT_OF_MEMORY|oom_kill)", "oom_host", "", "log", 9,
        "https://slurm.schedmd.com/cgroup.conf.html", "any",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
        "slurmstepd: error: *** STEP 77.0 CANCELLED ***"),
    root(
        "ray-oom", "Workers (tasks / actors) killed due to memory pressure", "", "oom_host", "", "log", 9,
        "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html", "any",
        "2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: a, IP: 10.0.0.2)",
        "0 Workers (tasks / actors) running"),
    root(
        "ray-oom-node", "running low on memory",
        r"(?:Task|Actor|Worker)\S* was killed due to the node running low on memory|OutOfMemoryError: .*running low on memory", "oom_host", "", "log", 9,
        "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html", "any",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "GPU is running low on memory"),
    root("libnccl-segfault", "segfault at", r"segfault at [0-9a-f]+ .* in libnccl", "nccl_crash", "", "log", 9, "https://github.com/NVIDIA/nccl/issues", "any",
         "VLLM::Worker_TP[4711]: segfault at 18 ip 00007f sp 00007f error 4 in libnccl.so.2[7f00+1000]", "segfault at 0 ip 1 sp 2 error 4 in libcudart.so"),
    root("segfault", "segfault at", "", "cuda_illegal_memory_access", "", "log", 7, "https://docs.kernel.org", "any",
         "python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libcudart.so.12[7f00+1000]", "segfaults: 0"),
    root("gp-fault", "general protection fault", "", "cuda_illegal_memory_access", "", "log", 7, "https://docs.kernel.org", "any",
         "traps: python3[4711] general protection fault ip:7f sp:7f error:0 in libc.so.6", "no fault"),
    # Driver and its libraries.
    root(
        "nvml-mismatch", "Driver/library version mismatch", "", "nvml_mismatch", "device_init", "row", 7,
        "https://github.com/NVIDIA/ubuntu-packaging-nvidia-driver/issues/3", "any", "Failed to initialize NVML: Driver/library version mismatch",
        "NVML library version: 580.95"),
    root(
        "nvrm-api-mismatch", "API mismatch: the client has the version", "", "nvml_mismatch", "device_init", "row", 9,
        "https://github.com/NVIDIA/ubuntu-packaging-nvidia-driver/issues/3", "any",
        "NVRM: API mismatch: the client has the version 580.95.05, but this kernel module has the version 580.65.06.", "NVRM: loading 580.95.05"),
    root(
        "nvml-mismatch-word", "NVML_ERROR_LIB_RM_VERSION_MISMATCH", "", "nvml_mismatch", "device_init", "row", 7, _CUDA, "any",
        "nvml error: NVML_ERROR_LIB_RM_VERSION_MISMATCH", "NVML_SUCCESS"),
    root(
        "compat-803", "803", r"(?:[Ee]rror|[Ff]ailure|code)\D{0,4}803|system has unsupported display driver / cuda driver combination",
        "driver_compat_lib_conflict", "device_init", "frames", 7, "https://github.com/llm-d/llm-d/issues/706", "any",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination",
        "port 8803 is in use"),
    root(
        "compat-803-text", "unsupported display driver / cuda driver combination", "", "driver_compat_lib_conflict", "device_init", "frames", 7,
        "https://github.com/llm-d/llm-d/issues/706", "any", "CUDA error: system has unsupported display driver / cuda driver combination",
        "supported driver"),
    root(
        "compat-804", "forward compatibility was attempted on non supported HW", "", "driver_too_old", "device_init", "frames", 7,
        "https://github.com/vllm-project/vllm/issues/5283", "any", "Error 804: forward compatibility was attempted on non supported HW",
        "forward compatibility package found"),
    root("fabric-802", "802", r"(?:[Ee]rror|[Ff]ailure|code)\D{0,4}802\b", "fabric_manager_not_ready", "device_init", "log", 8, _FM, "any",
         "Error 802: system not yet initialized", "172.17.0.802"),
    root("fabric-802-text", "system not yet initialized", "", "fabric_manager_not_ready", "device_init", "log", 8, _FM, "any",
         "RuntimeError: CUDA error: system not yet initialized", "system initialized"),
    root(
        "fabric-802-name", "cudaErrorSystemNotReady", "", "fabric_manager_not_ready", "device_init", "log", 8, _FM, "any", "cudaErrorSystemNotReady",
        "cudaErrorNotReady"),
    root(
        "fabric-manager-failed", "abric", r"(?:[Ff]abric\s?[Mm]anager|nv-fabricmanager).{0,120}(?:fail(?:ed|ure)|error|not running|inactive|mismatch|abort)",
        "fabric_manager_not_ready", "device_init", "log", 8, _FM, "any",
        "nv-fabricmanager: fabric manager failed to initialize: NVSwitch driver version mismatch", "Fabric Manager is running"),
    root(
        "fabric-state", "Fabric", r"Fabric State\s*:\s*(?:In Progress|Not Started)|Fabric\S* (?:is|state is) not (?:ready|completed)",
        "fabric_manager_not_ready", "device_init", "log", 8, _FM, "any", "GPU 0 Fabric State : In Progress", "Fabric State : Completed"),
    root(
        "imex-missing", "imex", r"(?i)imex.{0,80}(?:not (?:ready|running|found|initialized)|fail|missing|denied)|(?:no|missing) .{0,20}imex",
        "fabric_manager_not_ready", "device_init", "log", 7, "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/overview.html", "any",
        "nvidia-imex: failed to establish the domain: not ready on 2 nodes", "nvidia-imex: READY"),
    root(
        "old-driver-torch", "NVIDIA driver on your system is too old", "", "driver_too_old", "device_init", "row", 7,
        "https://github.com/vllm-project/vllm/issues/11623", "any",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver", "The NVIDIA driver is new"),
    root("old-driver-35", "CUDA driver version is insufficient for CUDA runtime version", "", "driver_too_old", "device_init", "frames", 7, _CUDA, "any",
         "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", "CUDA driver version is 12.8"),
    root(
        "old-driver-35-name", "cudaErrorInsufficientDriver", "", "driver_too_old", "device_init", "frames", 7, _CUDA, "any", "cudaErrorInsufficientDriver",
        "cudaErrorNotReady"),
    root("old-driver-ptx", "unsupported toolchain", r"PTX (?:was|JIT).{0,40}unsupported toolchain", "driver_too_old", "device_init", "frames", 7, _CUDA, "any",
         "CUDA error: the provided PTX was compiled with an unsupported toolchain.", "unsupported toolchain of the host"),
    root(
        "old-driver-symbol", "undefined symbol: cu", r"undefined symbol: cu[A-Z]\w+", "driver_too_old", "device_init", "row", 4,
        "https://github.com/vllm-project/vllm/issues/11623", "any", "ImportError: /opt/vllm/_C.abi3.so: undefined symbol: cuTensorMapEncodeTiled",
        "undefined symbol: _ZN3c106ivalue"),
    root("libcuda-missing", "libcuda.so.1", r"libcuda\.so\.1: cannot open shared object", "container_runtime_missing", "device_init", "row", 7, _TOOLKIT, "any",
         "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "libcuda.so.1 => /lib/libcuda.so.1"),
    root("no-driver", "Found no NVIDIA driver on your system", "", "container_runtime_missing", "device_init", "row", 7, _TOOLKIT, "any",
         "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "Found NVIDIA driver"),
    root("nvml-missing", "NVML Shared Library Not Found", "", "container_runtime_missing", "device_init", "row", 7, _TOOLKIT, "any",
         "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found", "NVML Shared Library loaded"),
    root(
        "nvml-unknown", "Failed to initialize NVML: Unknown Error", "", "container_gpu_lost_cgroup", "device_init", "log", 7,
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48", "any", "Failed to initialize NVML: Unknown Error",
        "Failed to initialize NVML: Driver/library version mismatch"),
    root("no-gpus", "No CUDA GPUs are available", "", "gpu_missing", "device_init", "row", 7, "https://github.com/vllm-project/vllm/issues/14610", "any",
         "RuntimeError: No CUDA GPUs are available", "4 CUDA GPUs are available"),
    root("no-device", "no CUDA-capable device is detected", "", "gpu_missing", "device_init", "log", 6, _CUDA, "any",
         "RuntimeError: CUDA error: no CUDA-capable device is detected", "CUDA-capable device found"),
    root(
        "invalid-ordinal", "invalid device ordinal", "", "gpu_missing", "device_init", "log", 7, _CUDA, "any",
        "RuntimeError: CUDA error: invalid device ordinal", "device ordinal 3", "Give every rank a GPU: the process sees fewer than the plan asks for.",
        "configuration"),
    root("busy-or-unavailable", "all CUDA-capable devices are busy or unavailable", "", "gpu_memory_busy", "device_init", "log", 7, _CUDA, "any",
         "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy; all CUDA-capable devices are busy or unavailable", "devices are available"),
    root(
        "busy-or-unavailable-2", "busy or unavailable", r"CUDA-capable device\(s\) is/are busy or unavailable", "gpu_memory_busy", "device_init", "log", 7,
        _CUDA, "any", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "server busy or unavailable",
        "Look for another process on the GPU and its compute mode; a GPU in exclusive mode takes one process."),
    root(
        "cuda-999", "CUDA unknown error", "", "cuda_unknown_999", "device_init", "frames", 7, "https://github.com/ollama/ollama/issues/8638", "any",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after "
        "program start.", "unknown option"),
    root("cuda-999-code", "999", r"(?:[Ee]rror|[Ff]ailure|code)\D{0,4}999\b", "cuda_unknown_999", "device_init", "frames", 7, _CUDA, "any",
         "cuInit failed with error 999", "took 999 ms"),
    root("cuda-999-name", "CUDA_ERROR_UNKNOWN", "", "cuda_unknown_999", "device_init", "frames", 7, _CUDA, "any", "cuInit: CUDA_ERROR_UNKNOWN", "CUDA_SUCCESS"),
    root(
        "cuda-init-error", "initialization error", r"(?:CUDA error: |cuda\w*.{0,20})initialization error", "cuda_unknown_999", "device_init", "frames", 5,
        _CUDA, "any", "RuntimeError: CUDA error: initialization error", "the initialization error rate"),
    root(
        "ecc-uncorrectable", "uncorrectable ECC error", "", "gpu_hw_xid", "", "log", 9, _XID, "any",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered", "ECC is enabled"),
    root(
        "nvlink-uncorrectable", "uncorrectable NVLink error", "", "gpu_hw_xid", "", "log", 9, _XID, "any",
        "CUDA error: uncorrectable NVLink error detected during the execution", "NVLink is up"),
    root("hardware-stack", "hardware stack error", "", "gpu_hw_xid", "", "log", 7, _CUDA, "any", "CUDA error: hardware stack error", "hardware ready"),
    # Container runtime.
    root(
        "cuda-requirement", "unsatisfied condition: cuda", "", "container_cuda_requirement", "container_init", "row", 9,
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/152", "any",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version",
        "unsatisfied condition: brand=tesla"),
    root(
        "cuda-requirement-other", "requirement error: unsatisfied condition", "", "container_cuda_requirement", "container_init", "row", 8,
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/152", "any", "nvidia-container-cli: requirement error: unsatisfied condition: driver>=570",
        "requirement met"),
    root(
        "select-driver", "could not select device driver", "", "container_runtime_missing", "container_init", "row", 8,
        "https://github.com/basujindal/stable-diffusion/issues/217", "any",
        "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]]", "device driver selected"),
    root(
        "unknown-runtime", "nvidia", r"(?:unknown or invalid runtime name|Unknown runtime specified)[:\s]+\W?nvidia", "container_runtime_missing",
        "container_init", "row", 8, _TOOLKIT, "any", "docker: Error response from daemon: unknown or invalid runtime name: nvidia.",
        "runtime name: nvidia ok"),
    root("container-cli", "nvidia-container-cli:", "", "container_runtime_missing", "container_init", "row", 7, _TOOLKIT, "any",
         "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file", "nvidia-container-toolkit 1.17",
         "Mend what nvidia-container-cli names on the host (driver loaded, libraries there), then recreate the container."),
    root(
        "container-hook", "nvidia-container-runtime", r"nvidia-container-runtime(?:-hook)?.{0,160}(?:no such file|not found|executable file|failed)",
        "container_runtime_missing", "container_init", "row", 7, _TOOLKIT, "any",
        "exec: \"nvidia-container-runtime-hook\": executable file not found in $PATH", "nvidia-container-runtime 1.17"),
    root("cdi-unresolvable", "unresolvable CDI devices", "", "container_runtime_missing", "container_init", "row", 8, _TOOLKIT, "any",
         "could not apply CDI: unresolvable CDI devices nvidia.com/gpu=all", "CDI devices nvidia.com/gpu=all",
         "Write the CDI specification anew (nvidia-ctk cdi generate) after a driver change, then recreate the container."),
    root(
        "cdi-failed", "CDI device injection failed", "", "container_runtime_missing", "container_init", "row", 8, _TOOLKIT, "any",
        "Error: CDI device injection failed: unresolvable", "CDI enabled",
        "Write the CDI specification anew (nvidia-ctk cdi generate) after a driver change, then recreate the container."),
    root(
        "podman-stat", "setting up CDI devices", "", "container_runtime_missing", "container_init", "row", 8, _TOOLKIT, "any",
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=0", "CDI devices: 8"),
    root(
        "k8s-no-gpu", "Insufficient nvidia.com/gpu", "", "container_runtime_missing", "container_init", "row", 7, _K8S, "any",
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "Sufficient nvidia.com/gpu",
        "Free GPUs in the cluster or mend the device plugin: no node offers enough."),
    root("k8s-device-plugin", "Allocate failed due to", "", "container_runtime_missing", "container_init", "row", 7, _K8S, "any",
         "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected", "Allocate ok"),
    root(
        "image-pull", "pull", r"(?:ErrImagePull|ImagePullBackOff|Failed to pull image|pull access denied|manifest unknown|manifest for \S+ not found)",
        "container_other", "container_init", "row", 7, _K8S, "any", "Failed to pull image \"registry/vllm:nightly\": not found", "Pulling image"),
    root(
        "image-pull-2", "ImagePull", r"(?:ErrImagePull|ImagePullBackOff)", "container_other", "container_init", "row", 6, _K8S, "any",
        "Back-off pulling image: ImagePullBackOff", "ImagePulled"),
    root(
        "image-manifest", "manifest", r"manifest (?:unknown|for \S+ not found)", "container_other", "container_init", "row", 7, _K8S, "any",
        "docker: Error response from daemon: manifest unknown", "manifest applied"),
    root("exec-format", "exec format error", "", "container_other", "container_init", "row", 7, _K8S, "any", "exec /usr/bin/vllm: exec format error", "exec ok",
         "Use an image of this machine's architecture."),
    root("entrypoint-missing", "executable file not found in $PATH", "", "container_other", "container_init", "row", 6, _K8S, "any",
         "OCI runtime create failed: exec: \"vllm-serve\": executable file not found in $PATH", "executable file found", cls="configuration"),
    root(
        "oci-failed", "OCI runtime create failed", "", "container_other", "container_init", "row", 4, _TOOLKIT, "any",
        "docker: Error response from daemon: failed to create task: OCI runtime create failed: runc create failed: unable to start container process",
        "OCI runtime ready"),
    root(
        "docker-port", "port is already allocated", "", "port_collision", "container_init", "row", 7, "https://docs.docker.com", "any",
        "docker: Error response from daemon: driver failed programming external connectivity: Bind for 0.0.0.0:8000 failed: port is already allocated",
        "port is free"),
    root(
        "docker-name", "is already in use by container", "", "port_collision", "container_init", "row", 7, "https://docs.docker.com", "any",
        "docker: Error response from daemon: Conflict. The container name \"/vllm\" is already in use by container \"ab\".", "container started",
        "Remove or rename the old container."),
    root("docker-daemon", "Cannot connect to the Docker daemon", "", "container_other", "container_init", "row", 7, "https://docs.docker.com", "any",
         "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", "docker is running"),
    # Schedulers.
    root(
        "slurm-gres", "srun: error: ", r"(?:Unable to (?:create|confirm|allocate)|Invalid generic resource|Requested node configuration is not available)",
        "ray_placement", "container_init", "row", 7, "https://slurm.schedmd.com/srun.html", "any",
        "srun: error: Unable to create step for job 77: Invalid generic resource (gres) specification", "srun: error: node7: task 3: Exited with exit code 1",
        "Ask Slurm for what the cluster has (GPUs, nodes, memory)."),
    root(
        "slurm-time", "DUE TO TIME LIMIT", "", "startup_timeout", "", "log", 7, "https://slurm.schedmd.com/srun.html", "any",
        "slurmstepd: error: *** JOB 77 ON node7 CANCELLED AT 2026-08-01T00:00:00 DUE TO TIME LIMIT ***", "TIME LIMIT is 4h",
        "Ask for a longer time limit, or find out why the start was slow."),
    root(
        "slurm-node-fail", "DUE TO NODE FAILURE", "", "gpu_hw_xid", "", "log", 7, "https://slurm.schedmd.com/srun.html", "any",
        "slurmstepd: error: *** STEP 77.0 ON node7 CANCELLED AT x DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "NODE ok",
        "Look at the node that failed (slurmctld's log, its console).", "worker_lost"),
    root("k8s-probe", "probe failed", r"(?:Liveness|Startup) probe failed", "startup_timeout", "", "log", 5, _K8S, "any",
         "Startup probe failed: Get \"http://10.0.0.3:8000/health\": dial tcp 10.0.0.3:8000: connect: connection refused", "Readiness probe succeeded",
         "Give the probe more time than the weights need to load."),
    root(
        "systemd-start-timeout", "start operation timed out", "", "startup_timeout", "", "log", 6,
        "https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html", "any", "vllm.service: start operation timed out. Terminating.",
        "start operation done", "Raise TimeoutStartSec above what the weights need to load."),
    root(
        "systemd-stop-timeout", "State 'stop-sigterm' timed out", "", "shutdown_hang", "shutdown", "row", 7,
        "https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html", "any", "vllm.service: State 'stop-sigterm' timed out. Killing.",
        "State 'stop-sigterm' entered"),
    # Storage and limits.
    root(
        "no-space", "No space left on device", r"^(?!.*(?:/dev/shm|psm_|nccl-|shm_open|posix_fallocate))", "storage_quota", "", "log", 7,
        "https://man7.org/linux/man-pages/man3/errno.3.html", "any", "OSError: [Errno 28] No space left on device: '/root/.cache/huggingface'",
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'"),
    root(
        "quota", "Disk quota exceeded", "", "storage_quota", "", "log", 7, "https://man7.org/linux/man-pages/man3/errno.3.html", "any",
        "OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache'", "quota ok"),
    root(
        "k8s-ephemeral", "ephemeral", r"(?:[Ee]phemeral[- ]storage|ephemeral local storage).{0,80}(?:exceeds|exceeded|limit|low)", "storage_quota", "",
        "log", 7, _K8S, "any", "Pod ephemeral local storage usage exceeds the total limit of containers 50Gi.", "ephemeral port range"),
    root("k8s-evicted", "The node was low on resource: ", r"The node was low on resource: ephemeral-storage", "storage_quota", "", "log", 7, _K8S, "any",
         "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi", "The node was low on resource: memory."),
    root(
        "k8s-evicted-memory", "The node was low on resource: memory", "", "oom_host", "", "log", 8, _K8S, "any",
        "The node was low on resource: memory. Threshold quantity: 100Mi", "The node was low on resource: ephemeral-storage."),
    root(
        "permission", "Permission denied", r"(?:PermissionError|Errno 13).*Permission denied", "storage_access", "", "log", 6,
        "https://man7.org/linux/man-pages/man3/errno.3.html", "any", "PermissionError: [Errno 13] Permission denied: '/models/k3/config.json'",
        "ssh: Permission denied (publickey)"),
    root(
        "read-only", "Read-only file system", "", "storage_access", "", "log", 6, "https://man7.org/linux/man-pages/man3/errno.3.html", "any",
        "OSError: [Errno 30] Read-only file system: '/models/.cache'", "file system is writable"),
    root(
        "stale-nfs", "Stale file handle", "", "storage_io", "", "log", 7, "https://man7.org/linux/man-pages/man3/errno.3.html", "any",
        "OSError: [Errno 116] Stale file handle: '/models/a.safetensors'", "stale cache"),
    root(
        "io-error", "Input/output error", r"(?:Errno 5|OSError|I/O).*Input/output error|Input/output error \(os error 5\)", "storage_io", "", "log", 7,
        "https://man7.org/linux/man-pages/man3/errno.3.html", "any", "OSError: [Errno 5] Input/output error", "Input/output error rate 0"),
    root(
        "io-error-block", "I/O error, dev ", "", "storage_io", "", "log", 8, "https://docs.kernel.org", "any",
        "blk_update_request: I/O error, dev nvme0n1, sector 12", "I/O ok"),
    root(
        "nfs-timeout", "nfs: server ", r"nfs: server \S+ not responding", "storage_io", "", "log", 8, "https://docs.kernel.org", "any",
        "nfs: server 10.0.0.9 not responding, timed out", "nfs: server 10.0.0.9 OK"),
    root(
        "shm-bus-error", "insufficient shared memory (shm)", "", "nccl_shm", "", "log", 7, "https://github.com/pytorch/pytorch", "any",
        "RuntimeError: unable to write to file: DataLoader worker is killed by signal: Bus error. It is possible that dataloader's workers are out of "
        "shared memory; insufficient shared memory (shm)", "shared memory ok"),
    root("bus-error", "Bus error", "", "nccl_shm", "", "log", 6, "https://github.com/pytorch/pytorch", "any", "Bus error (core dumped)", "bus ok"),
    root(
        "too-many-files", "Too many open files", "", "ulimit", "", "log", 7, "https://man7.org/linux/man-pages/man3/errno.3.html", "any",
        "OSError: [Errno 24] Too many open files", "open files: 20"),
    root(
        "no-threads", "can't start new thread", "", "ulimit", "", "log", 7, "https://docs.python.org/3/library/threading.html", "any",
        "RuntimeError: can't start new thread", "start new thread"),
    root("pthread", "pthread_create failed", "", "ulimit", "", "log", 7, "https://man7.org/linux/man-pages/man3/pthread_create.3.html", "any",
         "libgomp: Thread creation failed: pthread_create failed for thread 12 of 64: Resource temporarily unavailable", "pthread ok"),
    root(
        "fork-memory", "Cannot allocate memory", r"(?:Errno 12|DefaultCPUAllocator|os error 12).*|Cannot allocate memory.*(?:fork|mmap)", "oom_host", "",
        "log", 7, "https://man7.org/linux/man-pages/man3/errno.3.html", "any", "OSError: [Errno 12] Cannot allocate memory",
        "NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory"),
    root(
        "cpu-allocator", "DefaultCPUAllocator: ", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory", "oom_host", "", "log", 7,
        "https://github.com/pytorch/pytorch", "any",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 7516192768 bytes.",
        "DefaultCPUAllocator: ready"),
    root(
        "memory-error", "MemoryError", r"(?:^|[\s:])(?:numpy\S*)?MemoryError\b", "oom_host", "", "log", 6,
        "https://docs.python.org/3/library/exceptions.html", "any", "MemoryError: Unable to allocate 3 GiB", "torch.OutOfMemoryError"),
    root(
        "pinned-memory", "cudaHostAlloc", r"(?:cudaHostAlloc|cudaHostRegister|pin_memory).{0,80}(?:out of memory|failed)", "oom_host", "", "log", 7,
        "https://github.com/vllm-project/vllm/issues/586", "any", "CUDA error: cudaHostAlloc failed: out of memory", "cudaHostAlloc ok"),
)
