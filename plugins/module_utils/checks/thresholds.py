# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers that checks compare with: each stands here once, with its source and the date it was read."""

from __future__ import annotations

from typing import Dict, Tuple

# driver, gpu, fabric, drift ---------------------------------------------------------------------

ECC_AGGREGATE_MAX = 4
"""Aggregate uncorrectable errors above which a GPU is suspect. https://github.com/scitix/sichek (nvidia component), 2026-10."""

REMAP_UNCORRECTABLE_MAX = 512
"""Rows remapped for uncorrectable errors above which a GPU is replaced. https://github.com/oracle-quickstart/oci-hpc, 2026-10."""

GPU_MEMORY_SHARE_MIN = 0.95
"""Smallest share of the expected memory that a GPU of the right model shows: data sheets round, and the driver keeps a reserve
(H100 "80 GB" shows 81,559 MiB, B300 "268 GB" 275,040 MiB). https://github.com/NVIDIA/k8s-test-infra (nvml mock captures), 2026-10."""

GPU_MEMORY_USED_SHARE_MAX = 0.03
"""Share of an idle GPU's memory that may be in use: the recipe's highest --gpu-memory-utilization is 0.97, and vLLM does not start
when less than that is free. https://github.com/vllm-project/recipes (models/moonshotai/Kimi-K3.yaml), 2026-08-20."""

GPU_MEMORY_USED_NOTE_MIB = 1024
"""Use of an idle GPU above which somebody should look: captures of idle data-centre GPUs show 0 to 12 MiB, and
a few hundred are no cause for alarm. https://github.com/NVIDIA/k8s-test-infra (nvml mock captures), 2026-10."""

NVLINK_GBS_MIN = {"h100": 25.0, "h200": 25.0, "b200": 50.0, "b300": 50.0, "gb200": 50.0, "gb300": 50.0}
"""Lowest speed of one NVLink link in GB/s, by hardware. https://github.com/oracle-quickstart/oci-hpc (get_nvlink_speed), 2026-10."""

XID_RECENT_S = 86400.0
"""Age in seconds up to which an Xid that asks for a GPU reset counts as not yet dealt with, unless the driver itself still asks
for it (gpu_recovery_action). A day is this project's choice; a reset leaves no line in the kernel log. 2026-11."""

SERVICE_RESTARTS_MAX = 2
"""Restarts of a service above which it is flapping. https://github.com/leptonai/gpud (three restarts), 2026-10."""

# rdma, gpudirect, container, image, host, storage, plan -----------------------------------------

# Kernel that can import GPU memory into verbs as dma-buf (2026-11-01):
# https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html
KERNEL_DMABUF: Tuple[int, ...] = (5, 12)

# Path MTU of RDMA ports that data-centre fabrics run, bytes (2026-11-01): https://github.com/NVIDIA/nccl (docs/userguide)
ACTIVE_MTU = 4096
# MTU of a RoCE port's interface that leaves room for 4,096 bytes of payload and headers.
NETDEV_MTU = 4200

# Link flaps a day from which a port counts as unstable (2026-11-01): https://github.com/Azure/azurehpc-health-checks
FLAPS_A_DAY = 5.0
# Symbol errors an hour from which a link counts as failing (2026-11-01): https://github.com/NVIDIA/NVSentinel
SYMBOL_ERRORS_AN_HOUR = 120.0
# Counters of which any rise is an error of the link (2026-11-01): https://github.com/NVIDIA/NVSentinel
FATAL_COUNTERS: Tuple[str, ...] = ("excessive_buffer_overrun_errors", "local_link_integrity_errors", "rnr_nak_retry_err")

# Shared memory that vLLM's processes ask for, bytes (2026-11-01): https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html
SHM_BYTES = 16 * 1024**3

# Swapped-out memory from which a node is short of memory, bytes: a proposal of this project.
SWAP_USED_BYTES = 1024**3

# Room for weights on disk beyond their size (a partial download, index files): a proposal of this project.
WEIGHTS_ROOM = 1.1
# Share of the expected bytes from which a checkpoint with an index counts as complete: sizes are published rounded.
WEIGHTS_COMPLETE = 0.8

# Kinds of mlx5 kernel messages that mean a failing device, and those that only limit it (2026-11-01): https://github.com/leptonai/gpud
BAD_LOG: Dict[str, str] = {
    "command_timeout": "a command timed out",
    "health_compromised": "device health compromised",
    "hardware_error": "unrecoverable hardware error",
}
LIMITING_LOG: Dict[str, str] = {
    "pcie_limited": "PCIe bandwidth limited", "module_temperature": "module temperature high", "slot_power": "slot power too low",
}
