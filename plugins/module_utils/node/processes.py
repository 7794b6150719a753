# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few processes of a node that matter: stuck in a driver, holding a GPU, serving vLLM.

Only what is named here leaves the node: a snapshot does not hold the process list. The files of a
process in uninterruptible sleep that need its memory map (``cmdline``, ``environ``) are never read,
since reading them can block for ever.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .redact import redact

PROC = "/proc"
DEV = "/dev"
MAX_PIDS = 20000
MAX_STUCK = 50
MAX_HOLDERS = 64
MAX_VLLM = 8
BUDGET = 4.0
"""Seconds after which a scan returns what it has."""
SETTLE = 0.25
"""Seconds between two looks at a process in D state: short waits for a device are normal."""
MIN_AGE = 2.0
"""Seconds that a process must have lived to count as stuck."""
ORIGIN = os.getpid()
"""The process that collects facts; it and its children are no foreign holders."""
ENV_PREFIXES = ("NCCL_", "UCX_", "VLLM_", "CUDA_", "GLOO_", "NVSHMEM_", "NIXL_", "PYTORCH_")
ENV_NAMES = ("LD_LIBRARY_PATH",)

_KTHREAD = 0x00200000
_DRIVER = re.compile(r"(?:^|[^A-Za-z0-9_])_{0,2}(?:nvidia|nv_|nv-|nvkms|nvswitch|uvm_|mlx5|ib_|rdma_)")
_GPU_NODE = re.compile(r"^/dev/nvidia\d+$")
ENGINE_COMM = "VLLM::"
"""What the processes of an engine begin their names with."""
_VLLM_COMM = re.compile(r"^(?:vllm|python|pypy)", re.IGNORECASE)
Isolate = Callable[[Mapping[str, Callable[[], Any]], float], Dict[str, Tuple[Any, str]]]


class Stat(NamedTuple):
    """What one line of /proc/PID/stat says; times in clock ticks, `started` since boot."""

    pid: int
    comm: str
    state: str
    ppid: int
    flags: int
    cpu: int
    started: int


def parse_stat(text: str) -> Optional[Stat]:
    """A line of /proc/PID/stat, None when it is none. A comm may hold blanks and parentheses."""
    opening, closing = text.find("("), text.rfind(")")
    fields = text[closing + 1:].split()
    if opening < 1 or closing < opening or len(fields) < 20:
        return None
    try:
        return Stat(int(text[:opening]), text[opening + 1:closing][:64], fields[0][:1], int(fields[1]), int(fields[6]),
                    int(fields[11]) + int(fields[12]), int(fields[19]))
    except ValueError:
        return None


def is_vllm(argv: List[str]) -> bool:
    """True for the command line of a server (``vllm serve``, ``-m vllm.entrypoints…``) or of an engine core."""
    head = argv[0] if argv else ""
    if head.startswith(("VLLM::EngineCore", "VLLM::APIServer", "VLLM::API_SERVER")):
        return True
    for at, part in enumerate(argv[:4]):
        following = argv[at + 1] if at + 1 < len(argv) else ""
        if part.rpartition("/")[2] == "vllm" and following == "serve":
            return True
        if part == "-m" and (following.startswith("vllm.entrypoints.") or following == "vllm"):
            return True
    return False


def hide(argv: List[str]) -> List[str]:
    """`argv` without secrets, word by word; they are looked for in the whole line, since a secret stands behind its option."""
    return redact("\0".join(argv)).split("\0") if argv else []


def _text(path: str) -> str:
    try:
        with open(path, "rb") as source:
            return source.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""


def _uptime() -> float:
    try:
        return float(_text(PROC + "/uptime").split()[0])
    except (ValueError, IndexError):
        return 0.0


def cgroup_path(pid: int) -> str:
    """Path of the process in the unified hierarchy, else in that of systemd or the longest of all."""
    paths: Dict[str, str] = {}
    for line in _text("%s/%d/cgroup" % (PROC, pid)).splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            paths[parts[1]] = parts[2][:512]
    named = paths.get("", "") or paths.get("name=systemd", "")
    return max([named] + list(paths.values()), key=lambda path: (len(path) > 1 and path == named, len(path))) if paths else ""


def _in_driver(process: Stat) -> Optional[bool]:
    """Whether the process waits in a driver; None when where it waits may not be seen."""
    if _DRIVER.search(process.comm):
        return True
    waits = [_text("%s/%d/%s" % (PROC, process.pid, name)).strip() for name in ("wchan", "stack")]
    if any(_DRIVER.search(text) for text in waits):
        return True
    # Without the right to look, wchan holds 0 and stack cannot be read.
    return None if waits[0] in ("", "0") and not waits[1] else False


def _stuck(candidates: List[Stat], now: float, ticks: float) -> Tuple[List[Dict[str, Any]], int]:
    """Those of `candidates` (state D at the first look) that wait in a driver, unmoved, at a second look; and how many wait where may not be seen."""
    judged = [(c, _in_driver(c)) for c in candidates if now - c.started / ticks >= MIN_AGE]
    named = [(c, in_driver) for c, in_driver in judged if in_driver is not False]
    if not named:
        return [], 0
    time.sleep(SETTLE)
    still: List[Dict[str, Any]] = []
    unseen = 0
    for old, in_driver in named:
        new = parse_stat(_text("%s/%d/stat" % (PROC, old.pid)))
        if new and new.state == "D" and (new.started, new.cpu) == (old.started, old.cpu):
            if in_driver is None:
                unseen += 1
            elif len(still) < MAX_STUCK:
                still.append({"pid": old.pid, "comm": old.comm, "state": "D"})
    return still, unseen


def _open_gpus(pid: int) -> int:
    """Number of different GPUs that the process has open; OSError when that may not be seen."""
    found = set()
    folder = "%s/%d/fd" % (PROC, pid)
    for name in os.listdir(folder):
        try:
            target = os.readlink(folder + "/" + name)
        except OSError:
            continue
        if _GPU_NODE.match(target):
            found.add(target)
    return len(found)


def _ours(processes: Mapping[int, Stat]) -> set[int]:
    """ORIGIN and all that it started."""
    children: Dict[int, List[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    ours = {ORIGIN, os.getpid()}
    todo = list(ours)
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in ours:
                ours.add(child)
                todo.append(child)
    return ours


def _serving(candidates: List[Stat]) -> List[int]:
    """Pids among `candidates` whose command line is vLLM's."""
    found = []
    for process in candidates:
        argv = _text("%s/%d/cmdline" % (PROC, process.pid)).rstrip("\0 ").split("\0")
        # A process that renamed itself has one string that holds all.
        if is_vllm(argv if len(argv) > 1 else argv[0].split(" ")):
            found.append(process.pid)
    return found


def scan(isolate: Isolate) -> Dict[str, Any]:
    """Look through /proc once.

    Args:
        isolate: ``in_children`` of the reader; command lines are read behind it, since a process may
            enter uninterruptible sleep between two looks.

    Returns:
        ``{"stuck": [{pid, comm, state}], "unseen": processes that wait where this user may not look,
        "holders": [{pid, comm, state, devices, cgroup, orphan}], "vllm": [pids],
        "denied": processes whose open files could not be read, "truncated": bool, "hidden": the processes of
        others cannot be seen at all, "vllm_error": str}``; open files are looked at only where a GPU device exists.

    Raises:
        OSError: /proc cannot be listed.
    """
    until = time.monotonic() + BUDGET
    ticks = float(os.sysconf("SC_CLK_TCK"))
    pids = sorted(int(name) for name in os.listdir(PROC) if name.isdigit())
    truncated = len(pids) > MAX_PIDS
    # Mounted with hidepid, /proc shows no process of others, not even the first.
    hidden = 1 not in pids
    processes: Dict[int, Stat] = {}
    for pid in pids[:MAX_PIDS]:
        if time.monotonic() > until:
            truncated = True
            break
        process = parse_stat(_text("%s/%d/stat" % (PROC, pid)))
        if process:
            processes[pid] = process
    stuck, unseen = _stuck([p for p in processes.values() if p.state == "D"], _uptime(), ticks)
    ours = _ours(processes)
    theirs = [p for p in processes.values() if p.pid not in ours and not p.flags & _KTHREAD and p.state != "Z"]
    holders: List[Dict[str, Any]] = []
    denied = int(hidden)
    if any(re.match(r"nvidia\d+$", name) for name in os.listdir(DEV)):
        for process in theirs:
            if time.monotonic() > until:
                truncated = True
                break
            try:
                devices = _open_gpus(process.pid)
            except PermissionError:
                denied += 1
                continue
            except OSError:
                continue
            if devices and len(holders) < MAX_HOLDERS:
                holders.append({
                    "pid": process.pid, "comm": process.comm, "state": process.state, "devices": devices, "cgroup": cgroup_path(process.pid),
                    "orphan": _orphan(process, processes),
                })
    candidates = [p for p in theirs if p.state != "D" and _VLLM_COMM.match(p.comm)]
    value, error = isolate({"vllm": lambda: _serving(candidates)}, time.monotonic() + 1.5)["vllm"]
    serving = _parents(value or [], processes)
    return {
        "stuck": stuck, "unseen": unseen, "holders": holders, "vllm": serving,
        "denied": denied, "truncated": truncated, "hidden": hidden, "vllm_error": error,
    }


def _orphan(process: Stat, processes: Mapping[int, Stat]) -> bool:
    """Whether the process is of a vLLM engine whose server is gone: the engine's processes, by their own names, lead up to init."""
    seen = set()
    while process.comm.startswith(ENGINE_COMM) and process.pid not in seen:
        seen.add(process.pid)
        if process.ppid == 1:
            return True
        # A parent that could not be seen may be a server.
        process = processes.get(process.ppid, process)
    return False


def _parents(pids: List[int], processes: Mapping[int, Stat]) -> List[int]:
    """Servers before engine cores, oldest first, at most MAX_VLLM."""
    def rank(pid: int) -> Tuple[bool, int]:
        process = processes[pid]
        return (process.ppid in pids, process.started)

    return sorted(pids, key=rank)[:MAX_VLLM]


def wanted_environment(text: str) -> Dict[str, str]:
    """The variables of a /proc/PID/environ that are told, redacted; all others stay unread."""
    found: Dict[str, str] = {}
    for pair in text.split("\0"):
        name, sign, value = pair.partition("=")
        if sign and (name.startswith(ENV_PREFIXES) or name in ENV_NAMES):
            found[name[:100]] = redact(name + "=" + value).partition("=")[2][:2000]
    return found


def detail(pid: str) -> Dict[str, Any]:
    """Command line and environment of one process.

    Returns:
        ``{"argv": [redacted], "env": {only ENV_PREFIXES and ENV_NAMES, redacted}, "started": seconds since boot, "cgroup": path}``;
        `env` is None when it may not be read. ``{}`` for a process that is gone or in D state.

    Raises:
        ValueError: `pid` is no number.
    """
    number = int(pid)
    process = parse_stat(_text("%s/%d/stat" % (PROC, number)))
    if process is None or process.state == "D":
        return {}
    argv = [part[:4000] for part in _text("%s/%d/cmdline" % (PROC, number)).rstrip("\0").split("\0")][:300]
    env: Optional[Dict[str, str]] = None
    try:
        with open("%s/%d/environ" % (PROC, number), "rb") as source:
            env = wanted_environment(source.read(1 << 20).decode("utf-8", "replace"))
    except OSError:
        pass
    return {
        "argv": hide(argv), "env": env, "started": round(process.started / float(os.sysconf("SC_CLK_TCK")), 1), "cgroup": cgroup_path(number),
    }
