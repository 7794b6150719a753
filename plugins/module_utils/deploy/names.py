# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names on a node that deploying has to know."""

from __future__ import annotations

SERVICE = "vllm"
"""Name of the service, of its unit without ending, and of its container."""
ROUTER = "vllm-router"
LINK_UNIT = "vllm-link.service"
SETTINGS = "/etc/vllm"


def service_of(role: str) -> str:
    """The service of a rank with this role."""
    return ROUTER if role == "router" else SERVICE
