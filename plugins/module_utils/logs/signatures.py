# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures: what a line of a log means, as data.

Rows live in ``signatures_host``, ``signatures_network``, ``signatures_engine`` and ``signatures_roles``; adding a row needs no code,
only a positive and a negative example beside it, which one test checks for every row.

Classes and phases are words of the taxonomy in docs/DIAGNOSIS.md. `cause` is the finer word; what a cause belongs to and what to do
about it is said once, in :data:`CAUSES`; a row may say more.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

ROLES = ("root", "relay", "decoy", "noise")
"""root: may be the first failure. relay: follows from one, its class is only a hint. decoy: looks like one and never is. noise: not even that."""

CLASSES = (
    "driver_too_old", "driver_compat_conflict", "driver_mismatch", "fabric_not_ready", "cuda_unknown", "gpu_unsupported", "gpu_fault", "gpu_busy",
    "container_runtime", "container_cuda_requirement", "dependency", "configuration", "weights", "storage", "oom_weights", "oom_kv_sizing",
    "oom_warmup", "oom_runtime", "oom_host", "cuda_crash", "engine_bug", "rdma_registration", "rdma_path", "nvlink", "nccl_other", "nvshmem",
    "nixl", "rendezvous", "startup_timeout", "worker_lost", "prefix_cache", "output_quality", "none", "shutdown_hang")


class Cause(NamedTuple):
    """What a finer cause belongs to, the one next step, and the playbook that takes it (empty where none does)."""

    cls: str
    action: str
    remedy: str


class Signature(NamedTuple):
    """One row.

    Attributes:
        id: stable word.
        needle: literal text that every match holds; searched first, so a row costs next to nothing where it does not apply.
        pattern: regular expression searched in the same line, empty when the needle alone is enough.
        phase: phase of the failure; empty: where the log stands.
        how: ``row``: `phase` is certain. ``frames``: the functions of the traceback decide first. ``log``: functions, then the place
            in the log decide, `phase` only when both are silent.
        cls: class; ``oom`` and ``cuda`` are split by phase when the verdict is made.
        role: one of :data:`ROLES`.
        weight: how much of a root it is: 9 hardware, kernel and runtime under the engine, 7 names its cause itself,
            5 may itself be the effect of a fault elsewhere (a peer that is gone, a call that failed later), 3 a kind of error without a cause.
        cause: finer word, key of :data:`CAUSES`; empty for noise and decoys.
        action: one sentence, empty: the cause's.
        source: where the wording and its meaning were reported or are defined.
        versions: versions of the program that prints it.
        positive, negative: a line that matches and a near miss that must not.
    """

    id: str
    needle: str
    pattern: str
    phase: str
    how: str
    cls: str
    role: str
    weight: int
    cause: str
    action: str
    source: str
    versions: str
    positive: str
    negative: str


_PREFLIGHT = "ansible-playbook inferops.vllm.preflight -i INVENTORY"
_REMEDIATE = "ansible-playbook inferops.vllm.remediate -i INVENTORY --limit NODE"
_PLAN = "ansible-playbook inferops.vllm.plan -i INVENTORY -e plan_dir=DIR"
_DEPLOY = "ansible-playbook inferops.vllm.deploy -i INVENTORY"
_EVIDENCE = "ansible-playbook inferops.vllm.evidence -i INVENTORY"
_VERIFY = "ansible-playbook inferops.vllm.verify -i INVENTORY"

CAUSES: Dict[str, Cause] = {
    "driver_too_old": Cause("driver_too_old", "Install a driver of the branch that the image's CUDA needs, or run an image built for this driver.", _REMEDIATE),
    "driver_compat_lib_conflict": Cause(
        "driver_compat_conflict",
        "Take the image's cuda-compat library out of the library path (or use CDI): the host driver is newer than it.", _REMEDIATE),
    "nvml_mismatch": Cause(
        "driver_mismatch",
        "Reboot the node, or unload and load the NVIDIA modules: the loaded module and the libraries are of different versions.", _REMEDIATE),
    "fabric_manager_not_ready": Cause(
        "fabric_not_ready",
        "Start Fabric Manager (with nvlsm or IMEX where the platform has them) in exactly the driver's version and wait for fabric state Completed.",
        _REMEDIATE),
    "cuda_unknown_999": Cause("cuda_unknown", "Stop the users of the GPUs and reload nvidia_uvm; if it stays, reboot the node.", _REMEDIATE),
    "cuda_arch_unsupported": Cause(
        "gpu_unsupported", "Choose a kernel, dtype or back end that this GPU has, or an image built for its compute capability.",
        _PLAN),
    "gpu_hw_xid": Cause("gpu_fault", "Drain the node and do what NVIDIA's catalogue says for this code.", _REMEDIATE),
    "host_driver_hang": Cause("gpu_fault", "Take the node out of service and reboot it: its driver no longer answers.", _REMEDIATE),
    "gpu_memory_busy": Cause("gpu_busy", "End the process that holds the GPU memory (a left-over worker, another job), then start again.", _REMEDIATE),
    "gpu_missing": Cause("container_runtime", "Give the container its GPUs (--gpus or CDI) and check the device filter.", _REMEDIATE),
    "container_runtime_missing": Cause(
        "container_runtime",
        "Install and configure the NVIDIA container toolkit for this runtime, then recreate the container.", _REMEDIATE),
    "container_gpu_lost_cgroup": Cause(
        "container_runtime",
        "Recreate the container, and use CDI or explicit devices so that a systemd reload cannot take its GPUs again.", _REMEDIATE),
    "container_cuda_requirement": Cause("container_cuda_requirement", "Upgrade the host driver, or use an image whose cuda>= condition it meets.", _REMEDIATE),
    "container_other": Cause("container_runtime", "Read the runtime's message and mend the container's definition, then recreate it.", _DEPLOY),
    "dep_missing_module": Cause("dependency", "Use an image that has this package, or add it to the image; the model itself is not at fault.", _DEPLOY),
    "dep_version": Cause("dependency", "Use an image whose packages know this model: the installed version does not.", _DEPLOY),
    "abi_mismatch": Cause(
        "dependency",
        "Reinstall the package against the installed torch and CUDA (or use the official image): its binary was built for another.", _DEPLOY),
    "jit_build_failure": Cause(
        "dependency",
        "Give the JIT a working CUDA toolkit (CUDA_HOME, nvcc, headers, disk) or pre-built kernels, and clear its cache.", _DEPLOY),
    "trust_remote_code": Cause(
        "dependency", "Add --trust-remote-code (after reading the model's code), or use a version that supports the model natively.",
        _PLAN),
    "config_error": Cause("configuration", "Correct the flag or variable that the message names.", _PLAN),
    "ulimit": Cause("configuration", "Raise the limit that the message names (unit, container or shell).", _REMEDIATE),
    "nixl_config": Cause("configuration", "Make both sides of the KV transfer use the same layout and settings.", _PLAN),
    "ray_placement": Cause("configuration", "Give Ray the GPUs that the plan needs on every node, or drop Ray for --nnodes.", _PLAN),
    "port_collision": Cause("configuration", "Free the port or choose another one, and see that no second instance is running.", _REMEDIATE),
    "model_version_mismatch": Cause("weights", "Fetch the revision of the checkpoint that fits this engine and configuration.", _DEPLOY),
    "weights_read_failure": Cause("weights", "Check the files against their checksums on every node and fetch what is missing or damaged.", _DEPLOY),
    "hub_access": Cause("weights", "Give the node the model locally, or a token and a route to the hub that may read it.", _DEPLOY),
    "storage_quota": Cause("storage", "Free space or raise the quota on the file system that the message names.", _REMEDIATE),
    "storage_access": Cause("storage", "Give the service's user access to the path, or correct the mount.", _REMEDIATE),
    "storage_io": Cause("storage", "Check the file system and its server; read the file once outside the engine.", _PREFLIGHT),
    "oom_weights_load": Cause(
        "oom_weights", "Spread the weights over more GPUs or use a smaller checkpoint: they do not fit, whatever the requests are.",
        _PLAN),
    "oom_kv_sizing": Cause(
        "oom_kv_sizing", "Lower --max-num-seqs or raise --gpu-memory-utilization as the message says; more GPUs where neither is enough.",
        _PLAN),
    "oom_profile_warmup": Cause("oom_warmup", "Lower --max-num-batched-tokens or --gpu-memory-utilization a little: the profile run did not fit.", _PLAN),
    "oom_cudagraph": Cause("oom_warmup", "Lower --gpu-memory-utilization or capture fewer and smaller graphs.", _PLAN),
    "oom_runtime": Cause("oom_runtime", "Lower --gpu-memory-utilization and --max-num-batched-tokens so that activations keep room at peak load.", _PLAN),
    "oom_host": Cause("oom_host", "Give the service more host memory (container limit, cgroup, node) or load fewer shards at once.", _PREFLIGHT),
    "cuda_illegal_memory_access": Cause(
        "cuda_crash",
        "Reproduce once with CUDA_LAUNCH_BLOCKING=1 to find the kernel, and try another attention or MoE back end.", _EVIDENCE),
    "nccl_crash": Cause("cuda_crash", "Fetch the core dump and the kernel log, and compare NCCL versions on all nodes.", _EVIDENCE),
    "model_or_fork_bug": Cause(
        "engine_bug", "Search the engine's issue tracker for this message and version; use a version without it or avoid the feature.",
        _EVIDENCE),
    "kv_offload_connector_bug": Cause("engine_bug", "Switch the KV offload connector off, or use a version in which it is mended.", _PLAN),
    "nccl_mr_registration": Cause(
        "rdma_registration",
        "Load nvidia_peermem and set NCCL_DMABUF_ENABLE=0, or mend DMA-BUF and memlock: the NIC cannot register GPU memory.", _REMEDIATE),
    "rdma_peermem": Cause("rdma_registration", "Load nvidia_peermem (built against the installed RDMA stack) on every node.", _REMEDIATE),
    "rdma_gdr_disabled": Cause("rdma_registration", "Bring GPUDirect RDMA back (nvidia_peermem or DMA-BUF): traffic now goes through host memory.", _REMEDIATE),
    "nccl_ib_gid": Cause("rdma_path", "Use the RoCE v2 GID with a routable IPv4 address on every node (NCCL_IB_GID_INDEX, NCCL_IB_HCA).", _REMEDIATE),
    "nccl_ib_routing": Cause("rdma_path", "Check that every rail reaches its peers (NCCL_CROSS_NIC=0 on rail-only fabrics, routes, VLAN, MTU).", _REMEDIATE),
    "nccl_ib_retry": Cause("rdma_path", "Test the link between the two addresses (ib_write_bw, port counters, PFC and cables).", _REMEDIATE),
    "nccl_nvls": Cause("nvlink", "Start once with NCCL_NVLS_ENABLE=0; if that works, mend the NVSwitch fabric (Fabric Manager, IMEX).", _REMEDIATE),
    "nccl_mnnvl": Cause("nvlink", "Set NCCL_MNNVL_ENABLE only inside one NVL72 domain with IMEX up and an IMEX channel in the container.", _REMEDIATE),
    "nccl_p2p": Cause("nvlink", "Check peer access between the GPUs (topology, IOMMU, ACS); NCCL_P2P_DISABLE=1 only to confirm.", _REMEDIATE),
    "symmetric_memory": Cause(
        "nvlink", "Start once with VLLM_ALLREDUCE_USE_SYMM_MEM=0; if that works, mend the NVSwitch fabric (Fabric Manager, IMEX).", _REMEDIATE),
    "nccl_shm": Cause("nccl_other", "Give the container enough shared memory (--ipc=host or --shm-size) and remove stale segments in /dev/shm.", _REMEDIATE),
    "nccl_version_bug": Cause("nccl_other", "Use an NCCL version without this fault (2.28.9 where 2.30.4 to 2.30.7 hang in NVLS).", _REMEDIATE),
    "nccl_mismatch": Cause("nccl_other", "Use the same image on every node: their NCCL versions differ.", _PREFLIGHT),
    "nccl_unknown": Cause("nccl_other", "Start again with NCCL_DEBUG=INFO on every rank and read the first NCCL WARN.", _EVIDENCE),
    "nvshmem_init": Cause(
        "nvshmem", "Check NVSHMEM's transport (IBGDA needs its driver options and DEVX rights); use another all2all back end until then.",
        _REMEDIATE),
    "nixl_disconnect": Cause("nixl", "Restart both sides of the KV transfer: it does not heal itself.", _DEPLOY),
    "nixl_transport": Cause("nixl", "Check UCX_TLS and UCX_NET_DEVICES, and that one UCX with CUDA support is in the image.", _REMEDIATE),
    "kv_store": Cause(
        "nixl", "Check that every instance reaches the others' transfer address and the metadata server of the KV store, with the same protocol and devices.",
        _PREFLIGHT),
    "gloo_ifname": Cause("rendezvous", "Set GLOO_SOCKET_IFNAME and VLLM_HOST_IP to the interface that the nodes share.", _PLAN),
    "rendezvous_unreachable": Cause(
        "rendezvous", "Check that every node reaches the head's address and port, and that the head is the one that was meant.",
        _PREFLIGHT),
    "rendezvous_missing_rank": Cause("rendezvous", "Find out why the missing ranks never joined: read their logs from their start.", _EVIDENCE),
    "startup_timeout": Cause("startup_timeout", "Find the slow step in the timeline; raise VLLM_ENGINE_READY_TIMEOUT_S only if it was progressing.", _EVIDENCE),
    "slow_weights": Cause("startup_timeout", "Measure the storage that holds the weights; copy them to local disks or raise the limit.", _PREFLIGHT),
    "silent_worker_death": Cause("worker_lost", "Fetch the kernel log, the exit code and the log of the node on which the process vanished.", _EVIDENCE),
    "prefix_cache_ineffective": Cause("prefix_cache", "Compare two request bodies and the block size before changing anything.", _VERIFY),
    "silent_quality": Cause("output_quality", "Compare the output with a known good server at temperature 0, one feature at a time.", _EVIDENCE),
    "shutdown_hang": Cause("shutdown_hang", "Kill the whole control group after the stop limit, and use KillMode=mixed with TimeoutStopSec.", _DEPLOY),
    "unknown": Cause("engine_bug", "Read the first traceback; no signature knows this message.", _EVIDENCE),
}


def root(name: str, needle: str, pattern: str, cause: str, phase: str, how: str, weight: int, source: str, versions: str,
         positive: str, negative: str, action: str = "", cls: str = "") -> Signature:
    """A row that may be the first failure."""
    known = CAUSES[cause]
    return Signature(name, needle, pattern, phase, how, cls or known.cls, "root", weight, cause, action, source, versions, positive, negative)


def relay(name: str, needle: str, pattern: str, cause: str, source: str, versions: str, positive: str, negative: str, phase: str = "",
          action: str = "") -> Signature:
    """A row that follows from a failure elsewhere; `cause` is what it suggests when nothing better is found."""
    return Signature(name, needle, pattern, phase, "log", CAUSES[cause].cls if cause else "", "relay", 1, cause, action, source, versions,
                     positive, negative)


def decoy(name: str, needle: str, pattern: str, source: str, versions: str, positive: str, negative: str) -> Signature:
    """A row that looks like a failure and never is one."""
    return Signature(name, needle, pattern, "", "log", "", "decoy", 0, "", "", source, versions, positive, negative)


def noise(name: str, needle: str, pattern: str, source: str, versions: str, positive: str, negative: str) -> Signature:
    """A row that healthy runs print too."""
    return Signature(name, needle, pattern, "", "log", "", "noise", 0, "", "", source, versions, positive, negative)


_ROWS: List[Signature] = []


def rows() -> Tuple[Signature, ...]:
    """All rows, in the order in which they are tried: the first that matches a line decides what it is."""
    if not _ROWS:
        from . import signatures_engine, signatures_host, signatures_libraries, signatures_network, signatures_roles
        _ROWS.extend(signatures_roles.FIRST)
        _ROWS.extend(signatures_host.ROWS)
        _ROWS.extend(signatures_network.ROWS)
        _ROWS.extend(signatures_libraries.ROWS)
        _ROWS.extend(signatures_engine.ROWS)
        _ROWS.extend(signatures_roles.LAST)
    return tuple(_ROWS)
