# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures of what lies between GPUs and nodes: NCCL, RDMA, NVLink, NVSHMEM, UCX and NIXL, rendezvous."""

from __future__ import annotations

from typing import Tuple

from .signatures import Signature, root

_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_IB = "https://github.com/NVIDIA/nccl/issues/2013"
_TORCH = "https://github.com/pytorch/pytorch"
_VLLM = "https://docs.vllm.ai/en/latest/usage/troubleshooting.html"
_NVSHMEM = "https://github.com/deepseek-ai/DeepEP/issues/55"
_NIXL = "https://github.com/ai-dynamo/nixl"
_UCX = "https://openucx.readthedocs.io/en/master/faq.html"
_PEERMEM = "https://docs.nvidia.com/cuda/gpudirect-rdma/"

ROWS: Tuple[Signature, ...] = (
    # NVLink: NVLS and multi-node NVLink.
    root(
        "nvls", "nvls.cc", r"(?:NCCL WARN|Cuda failure|failed)", "nccl_nvls", "distributed_init", "row", 8, "https://github.com/NVIDIA/nccl/issues/1672",
        "NCCL 2.18-2.30", "transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'", "NCCL INFO transport/nvls.cc:100 NVLS comm"),
    root(
        "nvls-multicast", "ulticast",
        r"(?:NCCL WARN|[Ee]rror|fail).{0,160}(?:cuMulticast\w*|[Mm]ulticast (?:object|group|bind))|(?:cuMulticast\w*|[Mm]ulticast (?:object|group|"
        r"bind)).{0,160}(?:fail|[Ee]rror|not supported|invalid)", "nccl_nvls", "distributed_init", "log", 7, "https://github.com/NVIDIA/nccl/issues/1672",
        "any", "NCCL WARN Cuda failure: cuMulticastBindMem failed", "IPv6 multicast route"),
    root("nvls-word", "NVLS", r"NCCL WARN.*NVLS", "nccl_nvls", "distributed_init", "row", 7, "https://github.com/NVIDIA/nccl/issues/1672", "any",
         "NCCL WARN NVLS: failed to bind memory", "NCCL INFO NVLS multicast support is available"),
    root(
        "mnnvl", "MNNVL",
        r"(?:NCCL WARN|[Ee]rror|fail|not (?:supported|available)|requires|unable).*MNNVL|MNNVL.*(?:fail|[Ee]rror|not (?:supported|available)|requires|"
        r"unable|no )", "nccl_mnnvl", "distributed_init", "log", 7, "https://docs.nvidia.com/multi-node-nvlink-systems/", "any",
        "RuntimeError: MNNVL workspace allocation failed: fabric handles are not supported", "NCCL_MNNVL_ENABLE set by environment to 0."),
    root(
        "mnnvl-workspace", "fabric handle",
        r"(?i)(?:fail|not supported|unable|cannot|error|invalid).{0,120}fabric handle|fabric handle.{0,120}(?:fail|not supported|invalid|error)",
        "nccl_mnnvl", "distributed_init", "log", 7, "https://docs.nvidia.com/multi-node-nvlink-systems/", "any",
        "RuntimeError: failed to export fabric handle: operation not permitted", "fabric handle exported"),
    root(
        "mnnvl-handle-type", "CU_MEM_HANDLE_TYPE_FABRIC", "", "nccl_mnnvl", "distributed_init", "log", 7,
        "https://docs.nvidia.com/multi-node-nvlink-systems/", "any", "cuMemCreate with CU_MEM_HANDLE_TYPE_FABRIC failed: CUDA_ERROR_NOT_PERMITTED",
        "handle type posix"),
    root(
        "fi-allreduce-workspace", "All Reduce workspace", r"[Ff]ailed to (?:initialize|create|allocate).{0,40}All ?Reduce workspace", "nccl_mnnvl",
        "engine_init", "log", 8, "https://github.com/vllm-project/vllm/pull/53377", "0.24-0.33",
        "Failed to initialize FlashInfer All Reduce workspace: [fd_exchange] timed out connecting to /tmp/cuda_fd_xchg_1/fd.sock.",
        "All Reduce workspace ready", "Switch the FlashInfer all-reduce off (VLLM_ALLREDUCE_USE_FLASHINFER=0) where the nodes share no NVLink fabric."),
    root(
        "p2p-access", "peer access", r"(?:NCCL WARN|[Ee]rror|fail).*peer access|peer access (?:is not supported|failed)", "nccl_p2p", "distributed_init",
        "log", 6, _NCCL, "any", "CUDA error: peer access is not supported between these two devices", "peer access enabled"),
    root(
        "custom-allreduce", "custom_all_reduce.cuh", "", "nccl_p2p", "", "log", 7, "https://github.com/vllm-project/vllm/issues/49101", "any",
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'", "custom_all_reduce.py: ready",
        "Start with --disable-custom-all-reduce, then check peer access between the GPUs."),
    # RDMA: memory registration.
    root("reg-dmabuf", "reg_dmabuf_mr", "", "nccl_mr_registration", "distributed_init", "start", 8, "https://github.com/NVIDIA/nccl/issues/778", "any",
         "misc/ibvwrap.cc:288 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported", "dmabuf ok"),
    root(
        "reg-mr", "ibv_reg_mr", r"ibv_reg_mr\w*.{0,80}(?:fail|error|errno)|(?:fail|error).{0,80}ibv_reg_mr", "nccl_mr_registration", "distributed_init",
        "start", 8, "https://github.com/Mellanox/nv_peer_memory/issues/115", "any", "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
        "ibv_reg_mr ok"),
    root(
        "reg-mr-words", "register", r"(?:[Ff]ailed|[Cc]ould(?: not|n't)|unable) to register .{0,60}(?:memory|MR|buffer|region)", "nccl_mr_registration",
        "distributed_init", "start", 6, "https://github.com/Mellanox/nv_peer_memory/issues/115", "any",
        "ERROR failed to register GPU memory region with the NIC", "registered memory"),
    root(
        "reg-mkey", "UCX  ERROR", r"UCX  ERROR .*(?:ibv_reg|reg_mr|mkey|mlx5dv_devx_umem_reg|failed to register)", "nccl_mr_registration",
        "distributed_init", "start", 8, _UCX, "any", "ib_md.c:282 UCX  ERROR ibv_reg_mr(address=0x7f, length=4096) failed: Bad address",
        "UCX  ERROR no active messages transport"),
    root(
        "errno-524", "524", r"errno:?\s*=?\s*524|error 524|Unknown error 524", "nccl_mr_registration", "distributed_init", "start", 8,
        "https://github.com/vllm-project/recipes", "any", "mlx5dv_reg_dmabuf_mr failed, errno 524", "0x524"),
    root("nixl-register", "registerMem", r"registerMem.*(?:fail|error|NIXL_ERR)", "nccl_mr_registration", "distributed_init", "start", 7, _NIXL, "any",
         "registerMem: registration failed for the specified or all potential backends", "registerMem ok"),
    root(
        "peermem-symbol", "nvidia_peermem",
        r"nvidia_peermem: (?:disagrees|Unknown symbol)|(?:fail|could not|Invalid argument|not found|Unknown symbol).*nvidia.peermem|"
        r"nvidia.peermem.*(?:Invalid argument|not found|failed|missing)", "rdma_peermem", "distributed_init", "log", 8, _PEERMEM, "any",
        "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client", "nvidia_peermem: module loaded"),
    root(
        "peermem-modprobe", "nvidia-peermem",
        r"(?:could not insert|modprobe: (?:FATAL|ERROR)).*nvidia.peermem|nvidia-peermem.*(?:Invalid argument|not loaded|missing)", "rdma_peermem",
        "distributed_init", "log", 8, _PEERMEM, "any", "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument nvidia-peermem",
        "nvidia-peermem loaded"),
    root("peermem-modprobe-2", "could not insert", r"could not insert '?nvidia.peermem", "rdma_peermem", "distributed_init", "log", 8, _PEERMEM, "any",
         "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument", "could not insert 'nvme'"),
    root("gdr-disabled", "GPU Direct RDMA Disabled", "", "rdma_gdr_disabled", "distributed_init", "row", 4, "https://github.com/NVIDIA/nccl/issues/1537", "any",
         "NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"),
    root(
        "memlock", "RLIMIT_MEMLOCK", "", "nccl_mr_registration", "distributed_init", "start", 7, _UCX, "any",
        "UCX  WARN  RLIMIT_MEMLOCK is 64 kB, memory registration will fail", "memlock is unlimited",
        "Raise memlock to unlimited for the service and give the container IPC_LOCK."),
    root(
        "create-qp-memory", "ibv_create_", r"ibv_create_(?:qp|cq|ah|srq)\w*.{0,60}(?:fail|Cannot allocate memory)", "nccl_mr_registration",
        "distributed_init", "start", 7, _NCCL, "any", "NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory", "ibv_create_qp ok",
        "Raise memlock to unlimited for the service and give the container IPC_LOCK.", "rdma_registration"),
    # RDMA: path.
    root(
        "modify-qp-gid", "ibv_modify_qp",
        r"ibv_modify_qp failed with (?:22|error 22|error Invalid|error No such device|error Network is unreachable|19 |101 |.*Invalid argument)|"
        r"ibv_modify_qp.*GID(?: index)? [01]\b.*(?:fe80|::,)", "nccl_ib_gid", "distributed_init", "log", 8, _IB, "any",
        "NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 1",
        "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1"),
    root(
        "modify-qp-routing", "ibv_modify_qp", r"ibv_modify_qp failed with (?:110|113|error Connection timed out|error No route|.*(?:timed out|No route))",
        "nccl_ib_routing", "distributed_init", "log", 8, _IB, "any",
        "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR",
        "NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument"),
    root(
        "modify-qp", "ibv_modify_qp", r"ibv_modify_qp.*fail|fail.*ibv_modify_qp", "nccl_ib_routing", "distributed_init", "log", 7, _IB, "any",
        "ibv_modify_qp failed on dev mlx5_0", "ibv_modify_qp ok"),
    root(
        "ib-completion-gid", "Got completion from peer",
        r"Got completion from peer.*(?:error 12|status=12|RETRY_EXC_ERR).*(?:fe80|localGid ::|remoteGids? ::)", "nccl_ib_gid", "", "log", 8,
        "https://github.com/NVIDIA/nccl/issues/1737", "any",
        "NET/IB: Got completion from peer 10.1.1.2<4> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=0 localGid fe80::1 remoteGids fe80::2",
        "NET/IB: Got completion from peer 10.1.1.2<4> with error 12, opcode 0"),
    root(
        "ib-completion", "Got completion from peer", r"Got completion from peer.*(?:error|status)", "nccl_ib_retry", "", "log", 8,
        "https://github.com/NVIDIA/nccl/issues/1737", "any",
        "NET/IB : Got completion from peer 10.1.1.2<54891> with error 12, opcode 0, len 0, vendor err 129", "Got completion of a request"),
    root(
        "ib-completion-2", "Got completion with", r"Got completion with (?:error|status) ?=?\s?\d+", "nccl_ib_retry", "", "log", 8,
        "https://github.com/NVIDIA/nccl/issues/1737", "any", "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
        "Got completion with data"),
    root(
        "ib-async-port", "NET/IB", r"NCCL WARN NET/IB ?: .*(?:port error|Got async event|async event.*(?:port|error|fatal))", "nccl_ib_retry", "", "log", 7,
        _NCCL, "any", "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error", "NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE"),
    root("ib-no-device", "NET/IB", r"NET/IB ?: (?:No device found|Unable to open device)", "nccl_ib_retry", "distributed_init", "log", 5, _NCCL, "any",
         "NCCL WARN NET/IB : Unable to open device mlx5_0", "NET/IB : Using [0]mlx5_0", "Give the container /dev/infiniband and check the devices' state."),
    root(
        "ucx-retry", "UCX  ERROR", r"UCX  ERROR .*(?:Transport retry count exceeded|RETRY_EXC|Endpoint timeout|Remote (?:access|operation) error|RNR)",
        "nccl_ib_retry", "", "log", 8, _UCX, "any",
        "ib_mlx5_log.c:177 UCX  ERROR Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
        "UCX  ERROR no active messages transport"),
    root(
        "mlx5-link-down", "mlx5_core",
        r"mlx5_core .*(?:Link down|link down|port_state_change.*DOWN|Cable error|High temperature|cmd_work_handler.*timeout|health compromised|device's "
        r"health|fatal error)", "nccl_ib_retry", "", "log", 8, "https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/index.html", "any",
        "mlx5_core 0000:9f:00.0 ens9f0np0: Link down", "mlx5_core 0000:9f:00.0: firmware version: 28.43.1014"),
    root("mlx5-cqe", "mlx5_", r"mlx5_\w+.*(?:dump error cqe|WC error|CQE error|syndrome)", "nccl_ib_retry", "", "log", 7, "https://docs.kernel.org", "any",
         "infiniband mlx5_0: dump_cqe:277: dump error cqe", "mlx5_0: port 1 active"),
    root(
        "nccl-net-connect", "NCCL WARN",
        r"NCCL WARN .*(?:socket\w*.*(?:[Cc]onnect|[Cc]onnection).*(?:refused|timed out|unreachable|No route|failed)|Connect to \S+ failed|Connection "
        r"closed by remote peer|timeout waiting for)", "rendezvous_unreachable", "distributed_init", "log", 7, _NCCL, "any",
        "misc/socket.cc:567 NCCL WARN socketStartConnect: Connect to 10.0.0.2<41000> failed : No route to host", "NCCL WARN Cuda failure 1",
        "Check NCCL_SOCKET_IFNAME and the firewall between the two nodes: NCCL's bootstrap cannot connect."),
    root(
        "nccl-bootstrap-iface", "NCCL WARN",
        r"NCCL WARN .*(?:[Nn]o (?:socket|usable|interface).{0,40}(?:found|interface)|Bootstrap ?: no socket interface found)", "gloo_ifname",
        "distributed_init", "log", 7, _NCCL, "any", "bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found", "NCCL WARN Cuda failure 1",
        "Set NCCL_SOCKET_IFNAME to the interface that the nodes share."),
    # NCCL: other.
    root(
        "nccl-cuda-999", "Cuda failure", r"Cuda failure (?:999|'unknown error')", "cuda_unknown_999", "device_init", "log", 7, _NCCL, "any",
        "NCCL WARN Cuda failure 999 'unknown error'", "Cuda failure 1 'invalid argument'"),
    root(
        "nccl-shm-open", "NCCL WARN", r"NCCL WARN .*(?:shm_open|/dev/shm|posix_fallocate|shared memory|shmutils|[Cc]reating shared memory|extend /dev/shm)",
        "nccl_shm", "distributed_init", "log", 8, _NCCL, "any", "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 9637892 bytes",
        "NCCL WARN Cuda failure 1 'invalid argument'"),
    root("shm-space", "No space left on device", r"/dev/shm|psm_|nccl-|shm_open|posix_fallocate", "nccl_shm", "distributed_init", "log", 8, _NCCL, "any",
         "OSError: [Errno 28] No space left on device: '/dev/shm/psm_0a1b'", "OSError: [Errno 28] No space left on device: '/root/.cache'"),
    root(
        "nccl-version-mismatch", "NCCL WARN", r"NCCL WARN .*(?:[Mm]ismatched? (?:.*version|collective)|version mismatch|message truncated)", "nccl_mismatch",
        "distributed_init", "log", 8, _NCCL, "any", "bootstrap.cc:209 NCCL WARN Mismatched NCCL version detected : rank 8 has 2.26.2",
        "NCCL WARN Cuda failure 1 'invalid argument'"),
    root(
        "nccl-truncated", "Message truncated", "", "nccl_mismatch", "distributed_init", "log", 7, _NCCL, "any",
        "NCCL WARN Message truncated : received 1024 bytes instead of 256", "message ok"),
    root(
        "nccl-duplicate-gpu", "Duplicate GPU detected", "", "config_error", "distributed_init", "row", 8, _NCCL, "any",
        "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "GPU detected",
        "Give every rank a GPU of its own (CUDA_VISIBLE_DEVICES, ranks per node)."),
    root(
        "nccl-cuda-oom", "NCCL WARN", r"NCCL WARN (?:Cuda failure (?:2 )?'?out of memory|Failed to CUDA (?:malloc|calloc))", "oom_profile_warmup", "", "log",
        7, _NCCL, "any", "NCCL WARN Cuda failure 2 'out of memory'", "NCCL WARN Cuda failure 1 'invalid argument'", cls="oom"),
    root(
        "nccl-gin", "NCCL GIN", r"requires NCCL GIN", "config_error", "distributed_init", "log", 7, "https://github.com/vllm-project/vllm", "0.30-0.33",
        "RuntimeError: DeepEPv2 requires NCCL GIN, which this build lacks", "NCCL GIN ready", "Choose another --all2all-backend or an NCCL with GIN.",
        "gpu_unsupported"),
    root(
        "nccl-cuda-failure", "NCCL WARN", r"NCCL WARN Cuda failure", "nccl_unknown", "distributed_init", "log", 5, _NCCL, "any",
        "NCCL WARN Cuda failure 'invalid argument'", "NCCL WARN socket"),
    root(
        "nccl-lib", "NCCL", r"(?:Failed to load NCCL library|libnccl\S*: cannot open shared object)", "dep_missing_module", "distributed_init", "log", 7,
        "https://github.com/vllm-project/vllm", "any",
        "Failed to load NCCL library from libnccl.so.2 . It is expected if you are not running on NVIDIA/AMD GPUs.", "Found NCCL library"),
    root("nccl-invalid-usage", "NCCL", r"NCCL error:? .{0,60}invalid usage|ncclInvalidUsage", "nccl_unknown", "distributed_init", "log", 5, _NCCL, "any",
         "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)", "NCCL error: internal error"),
    root(
        "nccl-warn", "NCCL WARN", r"NCCL WARN (?!.*(?:Could not find|NCCL_\w+ set by|MLX5 .*missing|NUMA balancing|numa_balancing|[Ii]gnor|deprecated))",
        "nccl_unknown", "distributed_init", "log", 4, _NCCL, "any", "graph/search.cc:1091 NCCL WARN Could not allocate ring",
        "NCCL WARN NCCL_P2P_LEVEL set by environment"),
    # NVSHMEM and DeepEP.
    root("nvshmem-ah", "Unable to create ah", "", "nvshmem_init", "distributed_init", "row", 8, "https://github.com/NVIDIA/nvshmem/issues/33", "3.4",
         "/src/modules/transport/ibgda/ibgda.cpp:2234: NULL value Unable to create ah.", "able to create ah"),
    root(
        "nvshmem-skip-device", "on the specified memory type", r"cannot allocate buffer on the specified memory type", "nvshmem_init", "distributed_init",
        "row", 8, "https://github.com/deepseek-ai/DeepEP/issues/55", "any",
        "WARN: device mlx5_0 cannot allocate buffer on the specified memory type. Skipping...", "on the specified memory type: host",
        "Give the driver what IBGDA needs (NVreg_EnableStreamMemOPs=1, PeerMappingOverride=1) and reboot, or use another all2all back end."),
    root(
        "nvshmem-null", "NULL value", r"NULL value (?:cannot|[Uu]nable|mem|failed|\w+ )", "nvshmem_init", "distributed_init", "row", 8,
        "https://github.com/sgl-project/sglang/issues/12533", "any",
        "/nvshmem/src/modules/transport/ibgda/ibgda.cpp:1889: NULL value cannot allocate mlx5dv_devx_uar", "column has NULL values"),
    root("nvshmem-status", "non-zero status", r"non-zero status: \d+", "nvshmem_init", "distributed_init", "row", 8, _NVSHMEM, "any",
         "/nvshmem/src/host/init/init.cu:989: non-zero status: 7 nvshmem detect topo failed", "process ended with a non-zero exit status"),
    root("nvshmem-transport", "init failed for ", r"init failed for (?:remote )?transport", "nvshmem_init", "distributed_init", "row", 7, _NVSHMEM, "any",
         "transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA", "init failed for plugin"),
    root(
        "nvshmem-transports", "Unable to initialize any transports", "", "nvshmem_init", "distributed_init", "row", 8, _NVSHMEM, "any",
        "Unable to initialize any transports. returning error.", "transports ready"),
    root(
        "nvshmem-memory-type", "emory type", r"(?:nvshmem|ibgda|IBGDA).*[Mm]emory type|[Mm]emory type.*(?:nvshmem|ibgda|not supported by transport)",
        "nvshmem_init", "distributed_init", "row", 8, _NVSHMEM, "any", "ibgda.cpp:2700: error: unsupported memory type for the NIC handler",
        "memory type: HBM3e"),
    root(
        "nvshmem-devx", "mlx5dv_devx", r"mlx5dv_devx\w*.*(?:fail|error|cannot|NULL)|(?:fail|error|cannot).*mlx5dv_devx", "nvshmem_init", "distributed_init",
        "row", 8, "https://github.com/sgl-project/sglang/issues/12533", "any", "mlx5dv_devx_obj_create failed with errno 121", "mlx5dv_devx ok"),
    root(
        "nvshmem-abort", "nvshmem", r"(?i)nvshmem\w*[:. ].{0,160}(?:fail|error|abort|unable|not (?:found|initialized))", "nvshmem_init", "distributed_init",
        "log", 7, _NVSHMEM, "any", "nvshmem_init: failed to bootstrap the team", "nvshmem version 3.4.5"),
    root(
        "nvshmem-upper", "NVSHMEM", r"NVSHMEM (?:ERROR|error|.*(?:fail|abort))", "nvshmem_init", "distributed_init", "log", 7, _NVSHMEM, "any",
        "NVSHMEM ERROR: bootstrap plugin not found", "NVSHMEM 3.4.5"),
    root(
        "ibgda", "ibgda", r"(?i)ibgda\.cpp|ibgda.{0,80}(?:fail|error|not (?:enabled|supported))", "nvshmem_init", "distributed_init", "row", 7, _NVSHMEM,
        "any", "/src/modules/transport/ibgda/ibgda.cpp:3010: ibgda_create failed", "NVSHMEM_IB_ENABLE_IBGDA"),
    root(
        "deepep-timeout", "DeepEP", r"DeepEP.{0,80}(?:timeout|error|fail|CPU recv|barrier)", "nvshmem_init", "", "log", 7,
        "https://github.com/deepseek-ai/DeepEP", "any", "DeepEP error: timeout (dispatch CPU)", "DeepEP buffer ready"),
    root("deepep-assert", "deep_ep.cpp", "", "nvshmem_init", "distributed_init", "log", 7, "https://github.com/deepseek-ai/DeepEP", "any",
         "RuntimeError: Failed: Assertion error /DeepEP/csrc/deep_ep.cpp:96 'low_latency_mode'", "deep_ep import ok"),
    # UCX and NIXL.
    root("nixl-disconnect", "REMOTE_DISCONNECT", "", "nixl_disconnect", "", "log", 8, "https://github.com/wtdcode/vllm-backport/issues/33", "any",
         "nixl._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT", "NIXL_SUCCESS"),
    root(
        "nixl-asymmetric", "kv_cache",
        r"(?:NIXL|nixl|[Hh]andshake|remote).{0,160}(?:tp_size|tp ratio|block_len|block_size|kv_cache_layout|layout)\b.{0,80}(?:mismatch|must|not|differ|"
        r"assert)", "nixl_config", "", "log", 7, _NIXL, "any", "AssertionError: NIXL handshake: remote kv_cache_layout must match the local one",
        "kv_cache sized"),
    root(
        "nixl-hash", "compatibility hash", r"(?i)(?:nixl|kv).{0,120}compatibility hash mismatch|compatibility hash mismatch", "nixl_config", "", "log", 8,
        _NIXL, "0.14-0.33", "NIXL compatibility hash mismatch. Local: ab, Remote: cd.", "compatibility hash ok"),
    root(
        "nixl-tp-assert", "remote_tp_size", r"assert|Error|divisible|must", "nixl_config", "", "log", 7, _NIXL, "any",
        "AssertionError: Local tensor parallel size must be divisible by remote_tp_size", "remote_tp_size=8"),
    root("nixl-tp-words", "remote tensor parallel size", "", "nixl_config", "", "log", 8, _NIXL, "any",
         "AssertionError: Local tensor parallel size 4 is not divisible by remote tensor parallel size 8.", "tensor parallel size 8"),
    root("nixl-handshake-failed", "handshake_failed", "", "nixl_config", "", "log", 8, "https://github.com/ai-dynamo/nixl", "0.26-0.33",
         "NIXL transfer failure: handshake_failed | Context: {'num_local_blocks': 190, 'num_remote_blocks': 96}", "handshake ok",
         "Give the prefill and the decode side the same tensor-parallel size, block size and layout."),
    root(
        "nixl-backend", "NIXL_ERR_BACKEND", "", "nixl_transport", "", "log", 6, "https://github.com/vllm-project/vllm/issues/18322", "any",
        "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND", "NIXL backend ready"),
    root(
        "nixl-error", "NIXL_ERR_", r"NIXL_ERR_(?!NOT_FOUND)\w+", "nixl_transport", "", "log", 6, _NIXL, "any",
        "nixlInvalidParamError: NIXL_ERR_INVALID_PARAM", "NIXL_ERR_NOT_FOUND"),
    root(
        "nixl-handshake", "NIXL",
        r"(?:NIXL|[Nn]ixl).{0,80}handshake.{0,60}(?:fail|timed? ?out|error)|handshake.{0,60}(?:fail|timed? ?out).{0,80}(?:NIXL|[Nn]ixl)", "nixl_transport",
        "", "log", 6, _NIXL, "any", "NIXL handshake with remote engine 7 timed out", "NIXL handshake took 12 ms"),
    root(
        "nixl-transfer", "NIXL transfer failure", "", "nixl_disconnect", "", "log", 5, _NIXL, "any", "NIXL transfer failure: transfer_setup_failed",
        "NIXL transfer done"),
    root(
        "nixl-missing", "NIXL is not available", "", "dep_missing_module", "dependencies", "log", 7, _NIXL, "any", "RuntimeError: NIXL is not available",
        "NIXL is available"),
    root(
        "ucx-disconnect", "UCX  ERROR",
        r"UCX  ERROR .*(?:Connection reset by remote peer|Remote endpoint|remote peer.*(?:unreachable|failure)|Endpoint is not connected|Destination is "
        r"unreachable)", "nixl_disconnect", "", "log", 7, _UCX, "any", "ucp_ep.c:1504 UCX  ERROR ep 0x7f: Connection reset by remote peer",
        "UCX  ERROR Transport retry count exceeded"),
    root(
        "ucx-transport", "no active messages transport", "", "nixl_transport", "", "log", 8, _UCX, "any",
        "select.c:630 UCX  ERROR no active messages transport to <no debug data>: Unsupported operation", "transport tcp"),
    root("ucx-remote-access", "no remote registered memory access transport", "", "nixl_transport", "", "log", 8, _UCX, "any",
         "select.c:630 UCX  ERROR no remote registered memory access transport to host7: cuda_ipc/cuda - no memory registration", "memory access ok"),
    root(
        "ucx-not-available", "are not available, please use", r"UCX  WARN .*(?:transport|device)s? .* (?:are|is) not available", "nixl_transport", "", "log",
        5, "https://github.com/LMCache/LMCache/issues/605", "any",
        "ucp_context.c:1268 UCX  WARN  transports 'cuda_ipc','cuda_copy' are not available, please use one or more of: mm, posix",
        "transports are available"),
    root(
        "ucx-error", "UCX  ERROR", "", "nixl_transport", "", "log", 7, _UCX, "any",
        "cuda_ipc_md.c:50 UCX  ERROR cuMemGetAddressRange failed: invalid argument", "UCX  INFO ready"),
    root("ucx-fatal", "UCX  FATAL", "", "nixl_transport", "", "log", 6, _UCX, "any", "debug.c:1297 UCX  FATAL Caught signal 11", "UCX  INFO ready"),
    # Rendezvous.
    root(
        "store-clients", "waiting for clients", r"Timed out after \d+ seconds waiting for clients", "rendezvous_missing_rank", "distributed_init", "row", 5,
        _TORCH, "any", "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        "server waiting for clients"),
    root("store-keys", "wait timeout after", r"wait timeout after \d+ms, keys", "rendezvous_missing_rank", "distributed_init", "row", 5, _TORCH, "any",
         "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//0//cpu//0/1", "wait timeout is 600 s"),
    root(
        "store-socket", "Socket Timeout", "", "rendezvous_missing_rank", "distributed_init", "row", 5, _TORCH, "any", "RuntimeError: Socket Timeout",
        "Socket timeout is 60"),
    root(
        "store-connect-timeout", "client socket has timed out", "", "rendezvous_unreachable", "distributed_init", "row", 6,
        "https://github.com/vllm-project/vllm/issues/19670", "any",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.1, 29500).",
        "client socket is connected"),
    root(
        "store-connect-failed", "client socket has failed to connect", r"to any network address", "rendezvous_unreachable", "distributed_init", "row", 6,
        _TORCH, "any", "[W socket.cpp:755] [c10d] The client socket has failed to connect to any network address of (10.0.0.1, 29501).",
        "client socket is connected"),
    root(
        "store-ping", "Ping failed, invalid value returned from server", "", "rendezvous_unreachable", "distributed_init", "row", 6, _TORCH, "any",
        "torch.distributed.DistNetworkError: Ping failed, invalid value returned from server. Expected: 20797, Got: 1347703880", "Ping ok",
        "Another service answers at the head's address and port: correct --master-addr and --master-port."),
    root(
        "store-listen", "server socket has failed to listen", r"failed to listen on any local network address.*(?:EADDRINUSE|code: -98|errno: 98)",
        "port_collision", "distributed_init", "row", 7, _TORCH, "any",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, "
        "name: EADDRINUSE", "server socket listens"),
    root("store-bind", "server socket has failed to bind", "", "port_collision", "distributed_init", "row", 5, _TORCH, "any",
         "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", "server socket is bound"),
    root(
        "store-listen-any", "failed to listen on any local network address", "", "config_error", "distributed_init", "row", 6, _TORCH, "any",
        "The server socket has failed to listen on any local network address. code: -99, name: EADDRNOTAVAIL", "listen on any address",
        "Correct --master-addr: it is not an address of this node."),
    root("store-name", "Name or service not known", "", "rendezvous_unreachable", "distributed_init", "row", 6, _TORCH, "any",
         "gai error: -2 - Name or service not known head-0", "service is known", "Correct the head's name or its DNS record."),
    root(
        "gloo-loopback", "Using the loopback address as fallback", "", "gloo_ifname", "distributed_init", "row", 6, "https://github.com/pytorch/gloo", "any",
        "Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback. Manually set the network interface to bind to "
        "with GLOO_SOCKET_IFNAME.", "loopback address in use",
        "Set GLOO_SOCKET_IFNAME in the environment of every node (not of the head alone) and mend the host name in /etc/hosts."),
    root("gloo-ifname", "Unable to find address for:", "", "gloo_ifname", "distributed_init", "row", 7, "https://github.com/pytorch/gloo", "any",
         "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:208] ifa != nullptr. Unable to find address for: eth9", "address for eth0"),
    root("gloo-ifname-2", "Unable to find interface for", "", "gloo_ifname", "distributed_init", "row", 7, "https://github.com/pytorch/gloo", "any",
         "RuntimeError: [gloo/transport/tcp/device.cc:84] Unable to find interface for: [10.0.0.9]", "interface for eth0"),
    root("gloo-mesh", "Gloo connectFullMesh failed", "", "gloo_ifname", "distributed_init", "row", 6, "https://github.com/vllm-project/vllm/issues/9674", "any",
         "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error", "Gloo connectFullMesh done"),
    root(
        "gloo-connect", "gloo/transport", r"(?:connect(?:FullMesh)?|SO_ERROR|Connect).{0,120}(?:refused|timed? ?out|No route|unreachable|failed)",
        "gloo_ifname", "distributed_init", "log", 5, "https://github.com/pytorch/gloo", "any",
        "RuntimeError: [gloo/transport/tcp/pair.cc:797] connect [127.0.1.1]:31000: Connection refused", "gloo/transport/tcp ready"),
    root(
        "connect-refused-store", "Connection refused", r"(?:TCPStore|c10d|rendezvous|tcp://|master).{0,160}Connection refused", "rendezvous_unreachable",
        "distributed_init", "log", 5, _TORCH, "any", "RuntimeError: TCPStore connect to head:29500: Connection refused", "HTTP Connection refused"),
    root(
        "headless-needed", "must use --headless unless in external or hybrid dp lb mode", "", "config_error", "distributed_init", "row", 7,
        "https://github.com/vllm-project/vllm", "0.10-0.33", "RuntimeError: Remote engine 1 must use --headless unless in external or hybrid dp lb mode",
        "--headless given", "Start the worker with --headless, or with a load-balancing mode on every node."),
    root(
        "dp-mismatch", "Configuration mismatch detected for engine", "", "config_error", "distributed_init", "row", 7,
        "https://github.com/vllm-project/vllm", "0.11-0.33",
        "RuntimeError: Configuration mismatch detected for engine 1. All DP workers must have identical configurations", "configuration of engine 1",
        "Give every node of the data-parallel group the same arguments.", "rendezvous"),
    root(
        "frontend-silent", "Did not receive response from front-end process", "", "rendezvous_unreachable", "distributed_init", "row", 6,
        "https://github.com/vllm-project/vllm", "0.9-0.33", "RuntimeError: Did not receive response from front-end process within 5 minutes",
        "received response from front-end", "Correct --data-parallel-address and its RPC port: the head does not answer there."),
    root(
        "follower-rpc", "collective_rpc should not be called on follower node", "", "config_error", "distributed_init", "row", 7,
        "https://github.com/vllm-project/vllm", "0.26-0.33", "RuntimeError: collective_rpc should not be called on follower node", "collective_rpc done",
        "Start nodes of rank above 0 with --headless."),
    root("host-ip-unknown", "Failed to get the IP address, using 0.0.0.0 by default", "", "gloo_ifname", "distributed_init", "row", 2, _VLLM, "any",
         "Failed to get the IP address, using 0.0.0.0 by default. The value can be set by the environment variable VLLM_HOST_IP", "IP address is 10.0.0.2"),
    root(
        "ready-timeout", "Timed out waiting for engine", r"Timed out waiting for engine(?: core)?(?: processes?)?", "startup_timeout", "engine_init", "log",
        5, "https://github.com/vllm-project/vllm", "0.9-0.33",
        "TimeoutError: Timed out waiting for engine core processes to start. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).", "waiting for engine"),
    root(
        "ready-timeout-old", "RPC server did not start", "", "startup_timeout", "engine_init", "log", 5, "https://github.com/vllm-project/vllm", "0.6-0.8",
        "TimeoutError: RPC server did not start within 30 s", "RPC server started"),
    root(
        "ready-timeout-2", "Did not receive ", r"(?:Timed? ?out|TimeoutError|Did not receive (?:READY|HELLO|init)).{0,120}(?:engine|worker|READY|HELLO)",
        "startup_timeout", "engine_init", "log", 5, "https://github.com/vllm-project/vllm", "0.8-0.33",
        "RuntimeError: Did not receive READY from engine 3 in time", "Did not receive a request"),
    root(
        "execute-timeout", "RPC call to ", r"TimeoutError: RPC call to (?:execute_model|sample_tokens|\w+) timed out", "silent_worker_death", "", "log", 4,
        "https://github.com/vllm-project/vllm", "0.8-0.33", "TimeoutError: RPC call to execute_model timed out.", "RPC call to execute_model done"),
)
