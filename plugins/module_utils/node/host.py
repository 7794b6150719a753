# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the section ``host`` (docs/FACTS.md)."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from .reader import Reader


def commands(options: Any) -> List[Sequence[str]]:
    """Commands known beforehand."""
    return []


def collect(reader: Reader, options: Any) -> Dict[str, Any]:
    """Facts of this section."""
    return {"unknown": {}}
