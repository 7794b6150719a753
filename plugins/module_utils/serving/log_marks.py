# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log of one start says of ranks, readiness, warnings and the transport really used. Takes text, returns small tables."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Pattern, Tuple

MOST_KEPT = 40
LINE_LIMIT = 4000

# Wording of vLLM 0.32 as seen on real servers; the Rust frontend says readiness in other words.
_RANK = re.compile(
    r"rank (\d{1,5}) in world size (\d{1,5}) is assigned as DP rank (\S{1,8}), PP rank (\d{1,5}),(?: PCP rank \d{1,5},)? TP rank (\d{1,5})")
READY = re.compile(r"Application startup complete|OpenAI server is ready to accept requests")
MARKS: Tuple[Tuple[str, Pattern[str]], ...] = (
    ("ready", READY),
    ("engine", re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]{1,12})")),
    ("weights", re.compile(r"Loading weights took ([\d.]{1,12}) seconds|Model loading took")),
    ("kv_tokens", re.compile(r"KV cache size: ([\d,]{1,20}) tokens")),
    ("headless", re.compile(r"[Hh]eadless mode|headless")),
)

# Warnings that a normal start prints; they say nothing of a fault. An error is never among them.
HARMLESS = re.compile(
    r"Found ulimit of|Enforce eager set|Inductor compilation was disabled|Triton is not installed|requires Triton|Reset SSM cache type|"
    r"is not found in LD_PRELOAD|numa_|set_mempolicy|get_mempolicy|FutureWarning|DeprecationWarning|Default (?:vLLM )?sampling parameters|"
    r"Using default|You may|will be (?:ignored|removed)|deprecated|Scale-out endpoints|Current vLLM config is not set|"
    r"does not support|SM count|NVLS is|torch\.distributed\.reduce_op")
_LEVEL = re.compile(r"(?:^|[\s)])(WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d \[([^\]]{1,80})\]\s?(.*)$")
# "ERROR:    Exception in ASGI application" of uvicorn, alone or behind the prefix of the journal or of the process.
_UVICORN = re.compile(r"(?:^|\]: |\) )(ERROR|CRITICAL):\s{1,8}(\S.*)$")
_WHEN = re.compile(r"^(\d{9,11}\.\d{1,9}) ")

# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_DEBUG=INFO) and the logs of NCCL 2.27 to 2.30; UCX_LOG_LEVEL=info.
TRANSPORTS: Tuple[Tuple[str, Pattern[str]], ...] = (
    ("nccl_gdrdma", re.compile(r"via NET/IB\S{0,200}/GDRDMA|via NET/\S{0,200}GDRDMA")),
    ("nccl_ib", re.compile(r"via NET/IB")),
    ("nccl_mnnvl", re.compile(r"via P2P/MNNVL|MNNVL 1\b")),
    ("nccl_p2p", re.compile(r"via P2P/")),
    ("nccl_socket", re.compile(r"via NET/Socket")),
    ("nccl_shm", re.compile(r"via SHM/")),
    # What NCCL would take between nodes; whether a channel needs it, only the channels tell.
    ("nccl_net_ib", re.compile(r"NET/IB : Using \[0\]|Using network IB")),
    ("nccl_net_socket", re.compile(r"NET/Socket : Using|Using network Socket")),
    ("ucx_rdma", re.compile(r"UCX.{0,200}\b(?:rc_mlx5|dc_mlx5|rc_verbs)\b")),
    ("ucx_tcp", re.compile(r"UCX.{0,200}\btcp/")),
)
NCCL_ERRORS = re.compile(r"NCCL WARN|NCCL error|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError")
LOUD = "WARNING|ERROR|CRITICAL|%s|via (?:NET|P2P|SHM)/|UCX" % NCCL_ERRORS.pattern
"""What ``journalctl --grep`` is given: every line that says something after the start, and none of those that each request prints."""


def read(text: str, since: float = 0.0) -> Dict[str, Any]:
    """Marks of the log of one start.

    Args:
        text: lines of the log, each with or without a Unix time in front (``journalctl -o short-unix``, which also names the program).
        since: lines with an earlier time are counted as the start's, later ones as new.

    Returns:
        ``{"lines", "ranks": [[dp, pp, tp, rank, world]], "marks": {name: first line's value or ""}, "warnings": [{"text", "count", "level"}],
        "new_warnings": [the same, of lines after `since`], "transports": {name: count}, "nccl_errors": [texts]}``.
    """
    found: Dict[str, Any] = {"lines": 0, "ranks": [], "marks": {}, "transports": {}, "nccl_errors": []}
    groups: Dict[str, Dict[str, Dict[str, Any]]] = {"warnings": {}, "new_warnings": {}}
    ranks: List[List[Any]] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        found["lines"] += 1
        line = line[:LINE_LIMIT]
        when = _WHEN.match(line)
        new = bool(since and when and float(when.group(1)) >= since)
        rank = _RANK.search(line) if "in world size" in line else None
        if rank:
            entry = [rank.group(3).rstrip(","), int(rank.group(4)), int(rank.group(5)), int(rank.group(1)), int(rank.group(2))]
            if entry not in ranks and len(ranks) < 1024:
                ranks.append(entry)
        for name, pattern in MARKS:
            if name not in found["marks"]:
                match = pattern.search(line)
                if match:
                    found["marks"][name] = (match.group(1) or "") if match.groups() else ""
        for name, pattern in TRANSPORTS:
            if pattern.search(line):
                found["transports"][name] = found["transports"].get(name, 0) + 1
                break
        if NCCL_ERRORS.search(line) and len(found["nccl_errors"]) < MOST_KEPT:
            found["nccl_errors"].append(line.strip()[-300:])
        said = _said(line)
        if said:
            _count(groups["new_warnings" if new else "warnings"], *said)
    found["ranks"] = ranks
    for name, group in groups.items():
        found[name] = sorted(group.values(), key=lambda one: (one["level"] == "WARNING", -one["count"]))[:MOST_KEPT]
    return found


def _said(line: str) -> Optional[Tuple[str, str, str]]:
    """Level, place and text of a warning or error that counts."""
    level = _LEVEL.search(line)
    if level:
        # Of a traceback only its last line, the error itself, says something.
        text = level.group(3)
        if not text.strip() or text.startswith(("  ", "Traceback (most recent call last)")) or (level.group(1) == "WARNING" and HARMLESS.search(line)):
            return None
        return level.group(1), level.group(2), text
    server = _UVICORN.search(line)
    if server:
        return server.group(1), "uvicorn", server.group(2)
    at = line.find("NCCL WARN")
    return ("WARNING", "nccl", line[at:]) if at >= 0 else None


def _count(group: Dict[str, Dict[str, Any]], level: str, place: str, text: str) -> None:
    # Numbers vary from line to line of the same message.
    key = place.split(":")[0] + re.sub(r"\d+", "#", text)[:120]
    if key in group:
        group[key]["count"] += 1
    elif len(group) < 500:
        group[key] = {"level": level, "text": text.strip()[:300], "count": 1}
