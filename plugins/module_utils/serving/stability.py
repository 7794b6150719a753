# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 5: what a restart and a soak left behind. Pure judgement of readings taken before and after."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import start
from .requests import port_errors, unread
from .result import finding, not_run, result

Finding = Dict[str, Any]

GROWTH_PERCENT = 10.0
"""Growth of resident memory during the soak that is too much, together with :data:`GROWTH_FLOOR`."""
GROWTH_FLOOR_KIB = 128 * 1024
"""Growth that says nothing, in KiB: allocators and caches fill at first."""
GPU_FLOOR_MIB = 256
RETRANSMITTED_MOST = 1000

TRANSPORTS: Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...]]] = {
    "rdma": (("nccl_gdrdma", "nccl_ib", "nccl_net_ib", "ucx_rdma"), ("nccl_socket", "nccl_net_socket")),
    "nvlink": (("nccl_mnnvl",), ("nccl_socket", "nccl_ib", "nccl_gdrdma")),
}
"""What channels between nodes take when it is planned, one of them at least, and what none of them may take."""


def transports(interconnect: str, readings: Mapping[str, Optional[Mapping[str, Any]]], several_nodes: bool) -> List[Finding]:
    """What the ranks really talk over, from the NCCL and UCX lines of this start. One channel over TCP is enough to slow all ranks down.

    Args:
        interconnect: rdma, nvlink or none, as planned.
        readings: of the nodes of one engine.
        several_nodes: whether the engine spans nodes at all.
    """
    found: List[Finding] = []
    if not several_nodes or interconnect not in TRANSPORTS:
        return [finding("stability.transport", "skip", "no RDMA or NVLink between nodes was planned")]
    for name, reading in readings.items():
        log = (reading or {}).get("log")
        seen = (log or {}).get("transports") if isinstance(log, Mapping) else None
        if not seen:
            found.append(finding("stability.transport", "unknown", "the log names no transport", "lines of NCCL or UCX", where=name,
                                 why="NCCL says it only with NCCL_DEBUG=INFO", fix="set vllm_env_overrides: {NCCL_DEBUG: INFO} and start once with it"))
            continue
        text = ", ".join("%s × %d" % item for item in sorted(seen.items()))
        good, wrong = TRANSPORTS[interconnect]
        wanted = "RDMA" if interconnect == "rdma" else "NVLink"
        if any(seen.get(word) for word in wrong):
            why, fix = "ranks talk over another transport than the planned one", ""
            if any("socket" in word for word in wrong if seen.get(word)):
                why, fix = "ranks talk over TCP, which is many times slower", "run inferops.vllm.preflight --tags rdma,gpudirect and look at NCCL_IB_HCA"
            found.append(finding("stability.transport", "fail", text, wanted, why, fix, name))
        elif not any(seen.get(word) for word in good):
            found.append(finding("stability.transport", "fail", text, wanted, where=name, why="the planned transport is not among those used"))
        elif interconnect == "rdma" and not seen.get("nccl_gdrdma") and not seen.get("ucx_rdma"):
            found.append(finding("stability.transport", "warn", text, "GDRDMA", where=name, why="RDMA goes through host memory, not straight to the GPU",
                                 fix="run inferops.vllm.preflight --tags gpudirect"))
        else:
            found.append(finding("stability.transport", "pass", text, wanted, where=name))
    return found


def restart(event: Mapping[str, Any], limit: float) -> List[Finding]:
    """One restart that was made on purpose.

    Args:
        event: what :func:`watch.outcome` gives: ``{"node", "what", "failed": addresses, "seconds": until all of them were right again or
            None, "text", "hung", "errors"}``.
        limit: seconds that it may take.
    """
    name = "%s (%s)" % (event.get("node"), event.get("what"))
    seconds = event.get("seconds")
    if not event.get("failed"):
        return [finding("stability.recovery", "unknown", "no request failed after the process was ended", "a failure, then right answers", where=name,
                        why="what was not seen to fail was not seen to recover",
                        fix="give every API server in verify_endpoints, so that the one whose process is ended is watched")]
    found: List[Finding] = []
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        text = "%s did not serve again within %g s: %s" % (", ".join(map(str, event["failed"])), limit, event.get("text") or "no answer")
        found.append(finding("stability.recovery", "fail", text, "serves again", where=name,
                             why="a process that dies takes the service with it", fix="look at the restart policy of the units and at the logs of all ranks"))
    else:
        status = "pass" if seconds <= limit else "fail"
        text = "%s served again after %.0f s" % (", ".join(map(str, event["failed"])), seconds)
        found.append(finding("stability.recovery", status, text, "within %g s" % limit, where=name))
    hung = event.get("hung")
    # What was in flight is waited for only when the service was right again; until then none is no pass.
    if isinstance(hung, int) and not isinstance(hung, bool) and (hung or isinstance(seconds, (int, float))):
        found.append(finding("stability.hang", "fail" if hung else "pass", "%d requests during the restart got neither answer nor error" % hung, "none",
                             "clients wait for ever" if hung else "", where=name))
    return found


def answers(before: Mapping[str, Any], after: Mapping[str, Any]) -> Finding:
    """Whether the fixed requests have the same answers as before (digests by request)."""
    if not before or not after:
        return finding("stability.answers", "unknown", "the answers before or after were not taken", "the same answers")
    other = sorted(name for name in before if name in after and before[name] != after[name])
    gone = sorted(name for name in before if name not in after)
    if gone:
        return finding("stability.answers", "fail", "no right answer any more: %s" % ", ".join(gone), "the same answers",
                       "the service came back broken", "compare stage 2 before and after")
    if other:
        return finding("stability.answers", "warn", "other text than before: %s" % ", ".join(other), "the same answers",
                       why="batching can change the last bits of a sum, and so a word; other weights or flags can as well")
    return finding("stability.answers", "pass", "%d requests answered as before" % len(before), "the same answers")


def left_behind(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> List[Finding]:
    """Orphan containers and GPU memory that stayed on one node."""
    found: List[Finding] = []
    old, new = before.get("containers"), after.get("containers")
    if old is None or new is None:
        found.append(finding("stability.containers", "skip" if old is None and new is None else "unknown",
                             (after.get("unknown") or {}).get("containers") or "no container engine", "no orphan", where=name))
    else:
        known = {c["name"] for c in old}
        running_ids = {str(p.get("container")) for p in after.get("processes") or [] if p.get("container")}
        extra = [c for c in new if c["name"] not in known or (c["name"].startswith("vllm") and not c["status"].startswith("Up"))]
        strays = sorted({c["name"] for c in extra if c["id"] not in running_ids})
        text = "left behind: %s" % ", ".join(strays) if strays else "no container left behind"
        found.append(finding("stability.containers", "fail" if strays else "pass", text,
                             "no orphan", "a container without its unit holds GPUs and memory" if strays else "",
                             "remove it with the container engine, then look at ExecStopPost of the unit" if strays else "", name))
    return found + gpu_growth(name, before, after)


def gpu_growth(name: str, before: Mapping[str, Any], after: Mapping[str, Any], id: str = "stability.gpu_memory", grown: str = "fail") -> List[Finding]:
    """GPU memory that is used more than before, as a finding `id` of status `grown` when it is much; a GPU that is gone always fails."""
    old, new = before.get("gpus"), after.get("gpus")
    if not old:
        return []
    if not new:
        return [unread(id, name, after, "gpus", "nvidia-smi names no GPU any more")]
    was = {g["index"]: g["used"] or 0 for g in old}
    more = {g["index"]: (g["used"] or 0) - was[g["index"]] for g in new if g["index"] in was}
    lost = sorted(set(was) - {g["index"] for g in new})
    if lost:
        return [finding(id, "fail", "GPU %s is gone" % ", ".join(map(str, lost)), "all GPUs", where=name)]
    most = max(more.values() or [0])
    bad = most > GPU_FLOOR_MIB
    text = "%d to %d MiB used, %d to %d before; at most %d more" % (
        min(g["used"] or 0 for g in new), max(g["used"] or 0 for g in new), min(was.values()), max(was.values()), most)
    return [finding(id, grown if bad else "pass", text, "at most %d MiB more" % GPU_FLOOR_MIB,
                    "memory of a dead process stayed on the GPU, or the engine leaks" if bad else "", where=name)]


def soak(name: str, before: Mapping[str, Any], after: Mapping[str, Any], minutes: float, percent: float = GROWTH_PERCENT) -> List[Finding]:
    """One node before and after the soak: memory, restarts, faults, errors of the links."""
    found: List[Finding] = []
    old, new = before.get("rss") or {}, after.get("rss") or {}
    shared = [pid for pid in old if pid in new]
    if old and after.get("processes") is None and not new:
        found.append(unread("stability.memory", name, after, "service.processes", "the processes could not be read"))
    elif old and not shared:
        found.append(finding("stability.restarts", "fail", "the processes are not those from before the soak", "no restart", where=name,
                             why="the service died and came again during the soak", fix="read journalctl -u vllm.service"))
    elif shared:
        was, now = sum(old[pid] for pid in shared), sum(new[pid] for pid in shared)
        share = 100.0 * (now - was) / max(1, was)
        bad = now - was > GROWTH_FLOOR_KIB and share > percent
        text = "%d MiB, then %d MiB (%+.1f %%) in %.1f minutes" % (was / 1024, now / 1024, share, minutes)
        found.append(finding("stability.memory", "fail" if bad else "pass", text,
                             "at most %g %% more" % percent, "memory grows under steady load" if bad else "", where=name))
    else:
        found.append(finding("stability.memory", "unknown", "no process of vLLM was seen", "its memory", where=name))
    units = (before.get("unit") or {}, after.get("unit") or {})
    if units[0].get("restarts") is not None and units[1].get("restarts") is not None:
        more = units[1]["restarts"] - units[0]["restarts"]
        text = "%d restarts during the soak" % more if more >= 0 else "the unit was started anew"
        found.append(finding("stability.restarts", "fail" if more else "pass", text, "no restart", where=name))
    elif units[0].get("restarts") is not None:
        found.append(unread("stability.restarts", name, after, "unit", "the unit could not be read"))
    if before.get("xids") is not None and after.get("xids") is None:
        found.append(unread("stability.xid", name, after, "xids", "the kernel log could not be read"))
    else:
        found.append(start.faults(name, after, "stability.xid"))
    found += links(name, before, after)
    # Graphs and caches may still grow under load; that is worth a look, and no failure.
    found += gpu_growth(name, before, after, grown="warn")
    fresh = ((after.get("log") or {}).get("new_warnings") or []) if isinstance(after.get("log"), Mapping) else []
    errors = [w for w in fresh if w.get("level") != "WARNING"]
    if _has_log(before) and not _has_log(after):
        found.append(unread("stability.log", name, after, "log", "the log could not be read"))
    elif errors:
        found.append(finding("stability.log", "fail", "%s (%d kinds of new errors)" % (errors[0].get("text"), len(errors)), "no new error", where=name))
    elif isinstance(after.get("log"), Mapping):
        found.append(finding("stability.log", "pass", "%d kinds of new warnings, no new error" % len(fresh), "no new error", where=name))
    old_nccl = set((before.get("log") or {}).get("nccl_errors") or [])
    new_nccl = [line for line in ((after.get("log") or {}).get("nccl_errors") or []) if line not in old_nccl]
    if new_nccl:
        found.append(finding("stability.nccl", "fail", new_nccl[0], "no error of NCCL", where=name))
    return found


def _has_log(reading: Mapping[str, Any]) -> bool:
    """Whether the log was read, as far as the reading knows."""
    return isinstance(reading.get("log"), Mapping) and not (reading.get("unknown") or {}).get("log")


def links(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> List[Finding]:
    """Errors of RDMA ports and TCP segments that were sent again."""
    found: List[Finding] = []
    old, ports = before.get("rdma") or {}, port_errors(before, after)
    if ports.lost:
        found.append(finding("stability.ports", "fail", "%s: gone" % ", ".join(ports.lost[:5]), "all ports", "an RDMA port vanished",
                             "look at dmesg, cable and switch port", name))
    elif ports.missing and not ports.rose:
        found.append(unread("stability.ports", name, after, "rdma", "%d of %d error counters could not be read" % (len(ports.missing), len(old))))
    elif old:
        rose = ports.rose
        text = ", ".join("%s +%d" % item for item in sorted(rose.items())[:5])
        found.append(finding("stability.ports", "fail" if rose else "pass", text or "no error counter of %d rose" % len(old), "no rise", where=name,
                             why="a link that errs under load gets worse" if rose else "", fix="look at cable and switch port" if rose else ""))
    was, now = before.get("retransmitted"), after.get("retransmitted")
    if was is not None and now is not None:
        more = now - was
        found.append(finding("stability.retransmissions", "warn" if more > RETRANSMITTED_MOST else "pass", "%d TCP segments were sent again" % more,
                             "at most %d" % RETRANSMITTED_MOST, where=name))
    elif was is not None:
        found.append(unread("stability.retransmissions", name, after, "retransmitted", "/proc/net/snmp could not be read"))
    return found


def stage(parts: Sequence[Finding], allowed: bool, seconds: float, data: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    """Stage 5 out of all its findings; without permission to restart it was not verified."""
    if not parts:
        return not_run("stability", "not run" if allowed else "not run: it restarts processes, which verify_allow_restart permits")
    whole = result("stability", parts, seconds, data)
    if not allowed and whole["status"] == "passed":
        whole["status"] = "not_verified"
        whole["summary"] = "soak and transport only; restarts were not permitted (verify_allow_restart)"
    return whole
