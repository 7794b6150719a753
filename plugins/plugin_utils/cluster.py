# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What judge and plan both take from the inventory and from node_facts."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional

WORDS = ("profile", "variant", "hardware", "strategy", "interconnect", "features", "image", "version")
"""Words of the doc fragment ``inferops.vllm.cluster``, each ``vllm_WORD`` in the inventory."""


def facts_of(read: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Facts in a registered result of node_facts, given as text or as facts; None when there are none."""
    found = read.get("ansible_facts")
    facts = found.get("vllm_node") if isinstance(found, Mapping) else None
    if facts is None and isinstance(read.get("text"), str):
        try:
            facts = json.loads(str(read["text"]))
        except ValueError:
            return None
    return facts if isinstance(facts, dict) else None


def why_silent(read: Mapping[str, Any]) -> str:
    """Why a registered result of node_facts holds no facts, in one line of at most 300 characters."""
    text = " ".join(str(read.get("msg") or "").split())
    if read.get("unreachable"):
        return ("did not answer" + (": " + text if text else ""))[:300]
    if text or read.get("failed"):
        return ("could not be read" + (": " + text if text else ""))[:300]
    return "not read"
