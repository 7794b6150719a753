# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stages 1 and 5 need to know of one node, read with deadlines and without changing anything."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..node import kernel_log, service, systemd, xid
from ..node.reader import Reader
from ..node.text import integer
from . import log_marks

SMI = ("nvidia-smi", "--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits")
EXTRA = ("Result", "InvocationID", "ActiveEnterTimestampMonotonic", "StatusText")
RDMA_COUNTERS = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "excessive_buffer_overrun_errors",
                 "local_link_integrity_errors", "port_xmit_discards")
RDMA_HW_COUNTERS = ("rnr_nak_retry_err", "packet_seq_err", "out_of_sequence", "local_ack_timeout_err")
LOG_LINES = "100000"


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
        since: Unix time after which warnings, Xids and errors count as new; 0 for the start of the unit.

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
        found["log"] = _log(reader, unit, systemd.first(block, "InvocationID"), since, unknown)
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
    found["pids"] = victims(found["processes"] or [])
    found["rss"] = _rss(reader, found["processes"] or [])
    found["rdma"] = _rdma(reader)
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
    """Pid of the process that stands for `what` on this node; None when none runs, or only one of another unit."""
    serving = service.collect(reader, _Options([unit]))
    processes = [p for p in serving.get("processes") or [] if p.get("container") or p.get("unit") == unit]
    return victims(processes).get(what)


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


def _log(reader: Reader, unit: str, invocation: str, since: float, unknown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    if not re.match(r"[0-9a-f]{32}\Z", invocation):
        unknown["log"] = "the unit was never started"
        return None
    ran = reader.run(("journalctl", "_SYSTEMD_INVOCATION_ID=" + invocation, "-o", "short-unix", "--no-pager", "-q", "-n", LOG_LINES))
    if not ran.ok:
        unknown["log"] = ran.reason("journalctl")
        return None
    found = log_marks.read(ran.out, since)
    if not found["lines"]:
        unknown["log"] = "the journal holds no line of this start"
    return found


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


def _rdma(reader: Reader) -> Dict[str, int]:
    """Error counters of every RDMA port, ``device/port/name``."""
    found: Dict[str, int] = {}
    base = "/sys/class/infiniband"
    for device in reader.names(base).names[:64]:
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
