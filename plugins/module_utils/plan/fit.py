# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arithmetic of weights and GPU memory, shown and not only done."""

from __future__ import annotations

import math
from typing import Dict, NamedTuple, Sequence


class Fit(NamedTuple):
    """Weights against the GPU memory of one engine.

    Attributes:
        weights_gb: GPU memory that the weights take, GB.
        memory_gb: GPU memory of all nodes of the engine, GB.
        share: share of it that vLLM may use.
        text: the sum in words and figures.
    """

    weights_gb: float
    memory_gb: float
    share: float
    text: str

    @property
    def usable_gb(self) -> float:
        """GB that vLLM may use."""
        return self.memory_gb * self.share

    @property
    def holds(self) -> bool:
        """The weights fit."""
        return self.usable_gb >= self.weights_gb


def grouped(value: float) -> str:
    """Whole number with a comma a thousand: ``1,680``."""
    return "{:,.0f}".format(value)


def fit(weights_gb: float, nodes_gb: Sequence[float], share: float) -> Fit:
    """Fit `weights_gb` into nodes with `nodes_gb` GB of GPU memory each, since sharding spreads the weights over them.

    The text reads ``1,680 GB of weights into 6 × 2,144 GB × 0.95 = 12,221 GB``.
    """
    counts: Dict[str, int] = {}
    for value in nodes_gb:
        counts[grouped(value)] = counts.get(grouped(value), 0) + 1
    terms = ["%d × %s" % (count, text) for text, count in counts.items()]
    inside = terms[0] if len(terms) == 1 else "(%s)" % " + ".join(terms) if terms else "0"
    total = float(sum(nodes_gb))
    text = "%s GB of weights into %s GB × %g = %s GB" % (grouped(weights_gb), inside, share, grouped(total * share))
    return Fit(float(weights_gb), total, share, text)


def nodes_needed(weights_gb: float, node_gb: float, share: float) -> int:
    """Nodes of `node_gb` GB that hold the weights; 0 when a node has no GPU memory."""
    usable = node_gb * share
    return math.ceil(weights_gb / usable) if usable > 0 else 0
