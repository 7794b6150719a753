# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stages 1 and 5 need to know of one node, read with deadlines and without changing anything."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..node import kernel_log, service, systemd, xid
from ..node.reader import Ran, Reader
from ..node.text import integer
from . import log_marks

SMI = ("nvidia-smi", "--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits")
EXTRA = ("Result", "InvocationID", "ActiveEnterTimestampMonotonic", "StatusText")
RDMA_COUNTERS = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "excessive_buffer_overrun_errors",
                 "local_link_integrity_errors", "port_xmit_discards")
RDMA_HW_COUNTERS = ("rnr_nak_retry_err", "packet_seq_err", "out_of_sequence", "local_ack_timeout_err")
START_SPANS = (600, 3600, 14400)
"""Seconds after the start of the unit within which the log is looked through for the marks of the start, the next when one was too short."""
RECENT = 86400
"""Seconds back to which a log that goes on after the start is looked through for errors."""


class _Options:
    """What the collector of the service looks for."""

    def __init__(self, units: Sequence[str]) -> None:
        self.units = list(units)


def read(reader: Reader, unit: str, engine: str = "docker", since: float = 0.0) -> Dict[str, Any]:
    """One node's reading.

    Args:
        reader: live or recorded.
        unit: the systemd unit that serves.
        engine: docker, podman, or empty for none.
        since: Unix time after which warnings, Xids and errors count as new; the log then holds only those.
            0 for the start of the unit.

    Returns:
        ``{"now", "uptime", "unit", "processes", "log", "gpus", "xids", "containers", "rss", "rdma", "retransmitted", "unknown"}``; what
        could not be read is None and named in ``unknown``.
    """
    unknown: Dict[str, str] = {}
    show = systemd.show_command([unit], EXTRA)
    containers = (engine, "ps", "--all", "--no-trunc", "--format", "{{.ID}}\t{{.Names}}\t{{.Status}}\t{{.Image}}") if engine else ()
    reader.prefetch([list(argv) for argv in (show, SMI, containers, *kernel_log.COMMANDS) if argv])
    serving = service.collect(reader, _Options([unit]))
    unknown.update({"service." + k: v for k, v in serving.get("unknown", {}).items()})
    uptime = _uptime(reader)
    found: Dict[str, Any] = {
        "now": round(time.time(), 3), "uptime": uptime, "unit": None, "processes": serving.get("processes"), "log": None, "gpus": None,
        "xids": None, "containers": None, "driver": (reader.read("/sys/module/nvidia/version").text or "").strip() or None, "unknown": unknown,
    }
    ran = reader.run(show)
    blocks = systemd.blocks(ran.out) if ran.ok else []
    if not blocks:
        unknown["unit"] = ran.reason("systemctl")
    else:
        block = blocks[0]
        found["unit"] = dict(systemd.service_fields(block), name=unit, result=systemd.first(block, "Result"))
        entered = integer(systemd.first(block, "ActiveEnterTimestampMonotonic"))
        found["unit"]["active_seconds"] = round(uptime - entered / 1e6, 1) if uptime is not None and entered else None
        found["log"] = _log(reader, systemd.first(block, "InvocationID"), since, found["unit"]["active_seconds"], unknown)
    started = _started(found, since)
    found["gpus"] = gpus(reader.run(SMI).out) if reader.run(SMI).ok else None
    if found["gpus"] is None:
        unknown["gpus"] = reader.run(SMI).reason("nvidia-smi")
    lines, why = kernel_log.lines(reader)
    if lines:
        found["xids"] = [g for g in xid.xids(lines) if started is None or g["last"] >= started]
    else:
        unknown["xids"] = why or "no kernel message"
    if containers:
        ran = reader.run(containers)
        if ran.ok:
            found["containers"] = listed(ran.out)
        else:
            unknown["containers"] = ran.reason(engine)
    processes = found["processes"] or []
    ids = {c["id"] for c in found["containers"] or [] if c["name"] == unit.rpartition(".")[0]}
    found["pids"] = victims(owned(processes, unit, ids) or processes)
    found["rss"] = _rss(reader, processes)
    found["rdma"] = _rdma(reader, unknown)
    found["retransmitted"] = _retransmitted(reader)
    return found


def victims(processes: Sequence[Mapping[str, Any]]) -> Dict[str, int]:
    """Pids that stand for the two ways to die: ``server`` (what answers HTTP, or the headless parent) and ``engine`` (what computes)."""
    found: Dict[str, int] = {}
    for process in processes:
        words = [str(word) for word in process.get("argv") or []]
        pid = process.get("pid")
        if not isinstance(pid, int) or pid <= 1:
            continue
        if "serve" in words[:8]:
            found.setdefault("server", pid)
        elif words and words[0].startswith("VLLM::EngineCore"):
            found.setdefault("engine", pid)
    if "server" in found:
        # A headless rank of an engine over several nodes has no engine core of its own.
        found.setdefault("engine", found["server"])
    return found


def victim(reader: Reader, unit: str, what: str) -> Optional[int]:
    """Pid of the process that stands for `what` on this node; None when none runs, or only one that the unit did not start."""
    processes = service.collect(reader, _Options([unit])).get("processes") or []
    # Docker's containers live outside of the unit's control group; the unit's own has the name of the unit (plan/render.py).
    inspected = reader.run(("docker", "inspect", "--type", "container", "--format", "{{.Id}}", unit.rpartition(".")[0])) if processes else None
    ids = {inspected.out.strip()[:12]} if inspected is not None and inspected.ok else set()
    return victims(owned(processes, unit, ids)).get(what)


def owned(processes: Sequence[Mapping[str, Any]], unit: str, ids: Set[str]) -> List[Mapping[str, Any]]:
    """The processes that run in the unit itself or in a container of `ids` (12 digits each)."""
    return [p for p in processes if p.get("unit") == unit or p.get("container") in ids]


def _uptime(reader: Reader) -> Optional[float]:
    words = (reader.read("/proc/uptime").text or "").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return None


def _started(found: Mapping[str, Any], since: float) -> Optional[float]:
    """Seconds since boot at which what is new begins."""
    uptime = found["uptime"]
    if uptime is None:
        return None
    if since:
        return float(uptime) - (time.time() - since)
    active = (found["unit"] or {}).get("active_seconds")
    # Weights load before the unit counts as started in no type of service that is used here, but a second of rounding is given.
    return None if active is None else float(uptime) - float(active) - 1.0


def _log(reader: Reader, invocation: str, since: float, active: Optional[float], unknown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    """Marks of the log: what is new after `since`, or, without it, the beginning and what was loud after it.

    A busy server prints a line for each request; neither part holds them all, however long it runs.
    """
    if not re.match(r"[0-9a-f]{32}\Z", invocation):
        unknown["log"] = "the unit was never started"
        return None
    command = ("journalctl", "_SYSTEMD_INVOCATION_ID=" + invocation, "-o", "short-unix", "--no-pager", "-q")
    if since:
        # A journal that may not be read looks empty: any line of this start shows that it can be.
        ran = reader.run((*command, "-n", "1"))
        seen = ran.out.strip()
        if ran.ok and seen:
            ran = _loud(reader, command, since)
        text = ran.out
    else:
        ran, text = _whole(reader, command, active, unknown)
        # The journal may have dropped the beginning: then nothing is known of the start.
        seen = ran.out.strip()
    if not ran.ok:
        unknown["log"] = ran.reason("journalctl")
        return None
    if not seen:
        unknown["log"] = "the journal holds no line of this start"
        return None
    return log_marks.read(text, since)


def _whole(reader: Reader, command: Sequence[str], active: Optional[float], unknown: Dict[str, str]) -> Tuple[Ran, str]:
    """How the beginning could be read, and the text of the beginning with what was loud after it."""
    now = time.time()
    if active is None:
        ran = reader.run(command)
        return ran, ran.out
    for span in START_SPANS:
        end = int(now - active) + span
        ran = reader.run((*command, "--until", "@%d" % end))
        ready = log_marks.READY.search(ran.out)
        if ready or not ran.ok or end >= now:
            break
    if ran.error == "too_large" and ready:
        # What was cut off is the end: go on from there.
        ran = Ran(0, ran.out)
        end = min(end, int((re.findall(r"^(\d{9,11})\.\d", ran.out[-100000:], re.M) or [end])[-1]))
    if not ran.ok or end >= now:
        return ran, ran.out
    more = _loud(reader, command, max(end, now - RECENT))
    if not more.ok:
        unknown["log.recent"] = more.reason("journalctl")
    return ran, ran.out + "\n" + more.out


def _loud(reader: Reader, command: Sequence[str], since: float) -> Ran:
    """Lines from then on that say something of a fault or of a transport."""
    ran = reader.run((*command, "--since", "@%d" % since, "--grep", log_marks.LOUD))
    # Exit code 1 without a word: no line matches.
    return Ran(0) if ran.rc == 1 and not ran.error and not (ran.out + ran.err).strip() else ran


def gpus(text: str) -> Optional[List[Dict[str, Optional[int]]]]:
    """Memory of each GPU in MiB from nvidia-smi's table; None when it is none."""
    found = []
    for line in text.splitlines():
        parts = [integer(part.strip()) for part in line.split(",")]
        if len(parts) == 3 and parts[0] is not None:
            found.append({"index": parts[0], "used": parts[1], "total": parts[2]})
    return found or None


def listed(text: str) -> List[Dict[str, str]]:
    """Containers from ``ps --format``: id (12 digits), name, status, image."""
    found = []
    for line in text.splitlines()[:200]:
        parts = line.split("\t")
        if len(parts) == 4:
            found.append({"id": parts[0][:12], "name": parts[1][:200], "status": parts[2][:100], "image": parts[3][:300]})
    return found


def _rss(reader: Reader, processes: Sequence[Mapping[str, Any]]) -> Dict[str, int]:
    """Resident memory in KiB by pid of the serving processes."""
    found: Dict[str, int] = {}
    for process in processes:
        match = re.search(r"^VmRSS:\s+(\d{1,15}) kB", reader.read("/proc/%s/status" % process.get("pid")).text or "", re.M)
        if match:
            found[str(process.get("pid"))] = int(match.group(1))
    return found


def _rdma(reader: Reader, unknown: Dict[str, str]) -> Optional[Dict[str, int]]:
    """Error counters of every RDMA port, ``device/port/name``; None when they could not be looked for."""
    found: Dict[str, int] = {}
    base = "/sys/class/infiniband"
    devices = reader.names(base)
    if devices.error not in ("", "missing"):
        unknown["rdma"] = "%s could not be read: %s" % (base, devices.error)
        return None
    for device in devices.names[:64]:
        for port in reader.names("%s/%s/ports" % (base, device)).names[:8]:
            for folder, names in (("counters", RDMA_COUNTERS), ("hw_counters", RDMA_HW_COUNTERS)):
                for name in names:
                    value = integer((reader.read("%s/%s/ports/%s/%s/%s" % (base, device, port, folder, name)).text or "").strip())
                    if value is not None:
                        found["%s/%s/%s" % (device, port, name)] = value
    return found


def _retransmitted(reader: Reader) -> Optional[int]:
    """TCP segments sent again since boot."""
    rows = [line.split() for line in (reader.read("/proc/net/snmp").text or "").splitlines() if line.startswith("Tcp:")]
    if len(rows) == 2 and "RetransSegs" in rows[0]:
        at = rows[0].index("RetransSegs")
        return integer(rows[1][at]) if at < len(rows[1]) else None
    return None
