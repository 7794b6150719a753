# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups of the inventory."""

from __future__ import annotations

NODE_GROUPS = ("vllm_nodes", "vllm_prefill", "vllm_decode")
"""Groups whose hosts are GPU nodes. Order of hosts is rank; the first of vllm_nodes is the head."""
