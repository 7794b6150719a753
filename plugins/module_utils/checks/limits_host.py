# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers that the checks of rdma, gpudirect, container, image, host, storage and plan compare with.

Each stands here once, with its source and the date it was read.
"""

from __future__ import annotations

from typing import Dict, Tuple

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

# Share by which GPU memory may differ from the published figure: boards reserve a little more or less.
MEMORY_TOLERANCE = 0.02

# Kinds of mlx5 kernel messages that mean a failing device, and those that only limit it (2026-11-01): https://github.com/leptonai/gpud
BAD_LOG: Dict[str, str] = {
    "command_timeout": "a command timed out",
    "health_compromised": "device health compromised",
    "hardware_error": "unrecoverable hardware error",
}
LIMITING_LOG: Dict[str, str] = {
    "pcie_limited": "PCIe bandwidth limited", "module_temperature": "module temperature high", "slot_power": "slot power too low",
}
