# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers that checks compare with: each stands here once, with its source and the date it was read."""

from __future__ import annotations

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
