# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Known troubles as data: where each bites, what was seen, what helps, and who reported it.

A trouble says of itself whether it is *proven*: only then may a check block. All others warn.
"""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from ..plan.profiles import HARDWARE
from .model import Context

Version = Tuple[int, ...]


class Trouble(NamedTuple):
    """One known trouble; every condition that is set must hold.

    Attributes:
        id: stable word.
        text: what happens, one sentence.
        component: what `low` and `high` are versions of: ``nccl``, ``vllm``, or empty when the plan alone decides.
        low, high: first and last version that has it, both included; () leaves an end open.
        families: hardware families that have it, empty for all.
        hardware: names of hardware that have it, empty for all.
        strategies: strategies that have it, empty for all.
        proven: its reporters reproduced it every time.
        remedy: what helps, one sentence.
        source, date: where it was reported, and when that was read.
    """

    id: str
    text: str
    component: str
    low: Version
    high: Version
    families: Tuple[str, ...]
    hardware: Tuple[str, ...]
    strategies: Tuple[str, ...]
    proven: bool
    remedy: str
    source: str
    date: str


TROUBLES: Tuple[Trouble, ...] = (
    Trouble(
        "nccl-nvls-hang", "NCCL 2.30.4 to 2.30.7 can hang in its NVLS path while weights load on Blackwell", "nccl", (2, 30, 4), (2, 30, 7),
        ("blackwell",), (), (), False,
        "If a start stops at `NVLS tuning` with idle GPUs, use NCCL 2.28.9 or, outside NVL72, NCCL_NVLS_ENABLE=0.",
        "https://github.com/NVIDIA/nccl/issues/2167", "2026-08-20"),
    Trouble(
        "vllm-h200-tp-pp", "on H200 TP+PP was seen to fail with `cp_world_size must be positive`", "", (), (),
        (), ("h200",), ("multi_node_tp_pp",), False,
        "Use vllm_strategy multi_node_tp or multi_node_tp_dp on H200.",
        "https://github.com/vllm-project/recipes/issues/698", "2026-08-20"),
    Trouble(
        "vllm-h200-memory", "on H200 the recipe as printed was seen to run out of memory", "", (), (),
        (), ("h200",), (), False,
        "Keep the context and the number of sequences small at first.",
        "https://github.com/vllm-project/recipes/issues/698", "2026-08-20"),
)


def matching(context: Context, nccl: Version = (), vllm: Version = ()) -> List[Trouble]:
    """Troubles that this plan with these versions has; a version of () matches no trouble that asks for one."""
    row = HARDWARE.get(context.hardware)
    versions = {"nccl": nccl, "vllm": vllm}
    found: List[Trouble] = []
    for trouble in TROUBLES:
        if trouble.families and (row is None or row.family not in trouble.families):
            continue
        if trouble.hardware and context.hardware not in trouble.hardware:
            continue
        if trouble.strategies and context.strategy not in trouble.strategies:
            continue
        if trouble.component:
            have = versions[trouble.component]
            if not have or (trouble.low and have < trouble.low) or (trouble.high and have[: len(trouble.high)] > trouble.high):
                continue
        found.append(trouble)
    return found


def asks_for(context: Context, component: str) -> bool:
    """Some trouble of `component` could apply to this plan, so its version matters."""
    row = HARDWARE.get(context.hardware)
    return any(
        trouble.component == component
        and (not trouble.families or (row is not None and row.family in trouble.families))
        and (not trouble.hardware or context.hardware in trouble.hardware)
        and (not trouble.strategies or context.strategy in trouble.strategies)
        for trouble in TROUBLES)
