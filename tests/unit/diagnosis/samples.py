# SPDX-License-Identifier: GPL-3.0-or-later
"""Cases as the diagnosis returns them."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

BEGIN = 1796000000.0
STEPS = (("device_init", 15.0), ("distributed_init", 40.0), ("weights_load", 400.0), ("engine_init", 30.0))


def lane(node: str, rank: str, steps: Sequence[Tuple[str, float]] = STEPS, begin: float = BEGIN) -> Dict[str, Any]:
    phases: List[Dict[str, Any]] = []
    for phase, seconds in steps:
        phases.append({"phase": phase, "start": begin, "end": begin + seconds})
        begin += seconds
    return {"node": node, "rank": rank, "phases": phases, "reached": steps[-1][0] if steps else ""}


def place(text: str, node: str = "b300-02", rank: str = "TP13", time: float = BEGIN + 80) -> Dict[str, Any]:
    file = "evidence/t/%s.tar.gz:logs/vllm.service.log.gz" % node
    return {"text": text, "file": file, "line": 4312, "node": node, "rank": rank, "time": time, "process": "Worker"}


def case(**changes: Any) -> Dict[str, Any]:
    """A rank of sixteen that broke off; `changes` replace keys."""
    lanes = [lane("b300-01", "APIServer", (("dependencies", 12.0), ("distributed_init", 90.0)))]
    for rank in range(16):
        lanes.append(lane("b300-0%d" % (1 + rank // 8), "TP%d" % rank, STEPS[:2] if rank == 13 else STEPS, BEGIN + 12))
    made = {
        "paths": ["evidence/t"], "failed": True, "phase": "distributed_init", "class": "gpu_fault", "cause": "gpu_hw_xid", "confidence": "high",
        "first_failure": place("(Worker_TP13 pid=7) ERROR 11-29 10:11:12 [x.py:1] torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
        "relays": [place("ncclRemoteError: a remote process exited", "b300-01", "TP%d" % rank, BEGIN + 380 + rank) for rank in range(8)],
        "next_action": "Drain b300-02 and reset the GPU (ansible-playbook inferops.vllm.remediate -i INVENTORY --limit b300-02).",
        "remedy": "ansible-playbook inferops.vllm.remediate -i INVENTORY --limit b300-02", "collect": [], "why": ["signature ecc", "kernel: Xid 94"],
        "against": ["an earlier warning"], "signature": "ecc",
        "advisories": [{"text": "the driver cannot contain this", "remedy": "Use 580.", "source": "https://x.lan/1"}],
        "timeline": {"lanes": lanes}, "lines": 912312, "bytes": 84000000, "skew": {"known": True, "offsets": {"b300-02": 2.0}, "why": "shared events"},
        "notes": [], "absent": {"b300-03": "did not answer: timed out"},
    }
    made.update(changes)
    return made


def healthy(**changes: Any) -> Dict[str, Any]:
    return case(**{
        "failed": False, "class": "none", "cause": "", "phase": "decode", "first_failure": None, "relays": [], "next_action": "Nothing to do.", "remedy": None,
        "absent": {}, "against": [], "advisories": [], **changes})


def abstention(**changes: Any) -> Dict[str, Any]:
    return case(**{
        "first_failure": None, "class": "worker_lost", "cause": "silent_worker_death", "confidence": "low",
        "collect": ["the kernel log of b300-02 around 10:11", "the log of rank 13"], **changes})
