# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Known troubles that fit what a log shows of itself: versions, hardware, and how far the run came."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

Version = Tuple[int, ...]


class Advisory(NamedTuple):
    """One known trouble; every condition that is set must hold.

    Attributes:
        id: stable word; ids of ``checks/troubles.py`` take their text and remedy from there.
        component, low, high: versions that have it, both included; () leaves an end open, an empty component asks for none.
        classes: classes of the verdict for which it is worth a line, empty for all.
        pattern: text that must stand in the log's own description of itself (arguments, model, hardware), empty for none.
        text, remedy, source: what happens, what helps, where it was reported.
    """

    id: str
    component: str
    low: Version
    high: Version
    classes: Tuple[str, ...]
    pattern: str
    text: str
    remedy: str
    source: str


ADVISORIES: Tuple[Advisory, ...] = (
    Advisory("nccl-nvls-hang", "nccl", (2, 30, 4), (2, 30, 7), ("nccl_other", "nvlink", "startup_timeout", "rendezvous"), "", "", "", ""),
    Advisory("vllm-h200-tp-pp", "", (), (), ("configuration",), r"cp_world_size", "", "", ""),
    Advisory("moe-padding", "vllm", (), (), ("oom_weights", "oom_warmup"), r"(?i)kimi[-_]?k3|deep_gemm_mega_moe",
             "MoE weights are padded more the larger the tensor-parallel size is", "Use fewer tensor-parallel ranks with data or pipeline parallelism.",
             "https://github.com/vllm-project/vllm/issues/51124"),
    Advisory(
        "pp-offload", "vllm", (0, 27), (0, 33), ("engine_bug", "cuda_crash"),
        r"(?i)pipeline_parallel_size['\"]?[:=] ?[2-9].*(?:kv_offload|OffloadingConnector|kv_transfer)",
        "pipeline parallelism with the KV offload connector hands out block ids that are out of range", "Use one of the two.",
        "https://github.com/vllm-project/vllm/issues/50821"),
    Advisory("health-while-hung", "", (), (), ("worker_lost", "rendezvous"), "", "/health can answer 200 while the engine hangs",
             "Judge by a real completion with a deadline.", "https://github.com/vllm-project/vllm/issues/39863"),
    Advisory("allocator-warnings", "", (), (), ("none",), r"memory allocation failed with OOM", "the allocator's OOM warnings were retried with success",
             "Nothing to do; they are fatal only when an OutOfMemoryError follows.", "https://github.com/vllm-project/vllm/pull/55407"),
    Advisory(
        "prefix-boundary", "vllm", (0, 27), (0, 27, 9), ("prefix_cache",), "",
        "prompts that end exactly on a block boundary missed the cache in early builds", "Use a later build.",
        "https://github.com/vllm-project/vllm/issues/50235"),
    Advisory(
        "daemon-reload", "", (), (), ("container_runtime",), r"(?:Unknown Error|no CUDA-capable device)",
        "a systemd reload can take the GPUs from running containers", "Use CDI or explicit devices.",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48"),
)

_VLLM = re.compile(r"(?:API server version|LLM engine \(v|█  version |vLLM version|vllm-)\s?v?(\d{1,3}\.\d{1,4}(?:\.\d{1,4})?)")
_NCCL = re.compile(r"(?:nccl==|NCCL version )(\d{1,3}\.\d{1,4}(?:\.\d{1,4})?)")


def versions_of(text: str) -> Dict[str, str]:
    """Versions that a line tells: ``{"vllm": "0.32.0", "nccl": "2.30.7"}``, those that it has."""
    found = {}
    for name, pattern in (("vllm", _VLLM), ("nccl", _NCCL)):
        match = pattern.search(text)
        if match:
            found[name] = match.group(1)
    return found


def parse(version: str) -> Version:
    """``2.30.7`` as numbers, () for what is none."""
    return tuple(int(part) for part in version.split(".")) if re.match(r"\d{1,9}(?:\.\d{1,9}){0,5}$", version) else ()


def matching(cls: str, versions: Dict[str, str], words: str) -> List[Dict[str, str]]:
    """Advisories for a verdict of class `cls`; `words` is what the log says of itself (arguments, lines of the failure)."""
    found = []
    for row in ADVISORIES:
        if row.classes and cls not in row.classes:
            continue
        if row.component and (row.low or row.high):
            have = parse(versions.get(row.component, ""))
            if not have or (row.low and have < row.low) or (row.high and have[: len(row.high)] > row.high):
                continue
        if row.pattern and not re.search(row.pattern, words):
            continue
        text, remedy, source = row.text, row.remedy, row.source
        if not text:
            known = _trouble(row.id)
            if known is None:
                continue
            text, remedy, source = known
        found.append({"id": row.id, "text": text, "remedy": remedy, "source": source})
    return found


def _trouble(name: str) -> Optional[Sequence[str]]:
    from ..checks.troubles import TROUBLES

    for row in TROUBLES:
        if row.id == name:
            return row.text, row.remedy, row.source
    return None
