# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers that checks compare with: each stands here once, with its source and the date it was read."""

from __future__ import annotations

# driver, gpu, fabric, drift ---------------------------------------------------------------------

# rdma, gpudirect, container, image, host, storage, plan -----------------------------------------
