# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of section `driver`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from .reader import Reader

if TYPE_CHECKING:
    from .collect import Options


def commands(options: Options) -> List[Sequence[str]]:
    """Commands known beforehand."""
    return []


def collect(reader: Reader, options: Options) -> Dict[str, Any]:
    """Facts of this section."""
    return {"unknown": {}}
