# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The running processes of vLLM as they really are: command line, environment, libraries, packages inside their container.

Read through /proc alone: nothing is run inside the container, and no process is stopped for it. Functions that read a process
are called in child processes with a deadline, since a file of a process that is stuck in a driver can block for ever.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..node.processes import PROC, Stat, parse_stat

MAX_PROCESSES = 64
MAX_PACKAGES = 800
LIBRARIES = re.compile(
    r"^lib(?:nccl|cuda|cudart|nvidia|nvrtc|cublas|cudnn|ucp|ucs|uct|ucx|nixl|nvshmem|mlx5|ibverbs|rdmacm|efa|fabric|gdrapi|torch_cuda|rccl|amdhip64|"
    r"vllm)[A-Za-z0-9_-]*\.so")
_SITE = re.compile(r"(/\S{0,300}?/(?:site|dist)-packages)/")
_DIST = re.compile(r"^(.{1,120})-([^-]{1,80})\.(?:dist-info|egg-info)\Z")


def _bytes(path: str, limit: int = 1 << 20) -> bytes:
    try:
        with open(path, "rb") as source:
            return source.read(limit)
    except OSError:
        return b""


def _text(path: str, limit: int = 1 << 20) -> str:
    return _bytes(path, limit).decode("utf-8", "replace")


def family(roots: Sequence[int]) -> List[Stat]:
    """The processes `roots` and all that descend from them, parents first, at most MAX_PROCESSES."""
    table: Dict[int, Stat] = {}
    for name in os.listdir(PROC):
        if name.isdigit():
            found = parse_stat(_text("%s/%s/stat" % (PROC, name), 4096))
            if found:
                table[found.pid] = found
    children: Dict[int, List[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    todo = [pid for pid in roots if pid in table]
    order: List[Stat] = []
    seen = set()
    while todo and len(order) < MAX_PROCESSES:
        pid = todo.pop(0)
        if pid in seen:
            continue
        seen.add(pid)
        order.append(table[pid])
        todo.extend(sorted(children.get(pid, [])))
    return order


def raw(pid: int) -> Dict[str, Any]:
    """Command line, environment and state of one process, nothing masked yet: the result stays in memory until it is cleaned.

    A process in uninterruptible sleep gives its state and where it waits, and nothing that needs its memory.
    """
    base = "%s/%d" % (PROC, pid)
    process = parse_stat(_text(base + "/stat", 4096))
    if process is None:
        return {}
    status = dict(line.split(":\t", 1) for line in _text(base + "/status", 65536).splitlines() if ":\t" in line)
    found: Dict[str, Any] = {
        "pid": pid, "ppid": process.ppid, "comm": process.comm, "state": process.state,
        "started": round(process.started / float(os.sysconf("SC_CLK_TCK")), 1),
        "threads": status.get("Threads", "").strip(), "rss": status.get("VmRSS", "").strip(), "locked": status.get("VmLck", "").strip(),
        "inner_pid": status.get("NSpid", "").split()[-1:] and status["NSpid"].split()[-1],
        "wchan": _text(base + "/wchan", 200), "stack": _text(base + "/stack", 8192), "cgroup": _text(base + "/cgroup", 8192).strip(),
        "limits": _text(base + "/limits", 8192), "oom_score_adj": _text(base + "/oom_score_adj", 20).strip(),
    }
    if process.state == "D":
        return found
    found["argv"] = _text(base + "/cmdline").rstrip("\0").split("\0")[:400]
    environment = {}
    for pair in _text(base + "/environ").split("\0"):
        name, sign, value = pair.partition("=")
        if sign:
            environment[name[:200]] = value[:4000]
    found["env"] = environment
    try:
        found["descriptors"] = len(os.listdir(base + "/fd"))
    except OSError:
        pass
    return found


def mapped(pid: int) -> Dict[str, Any]:
    """Libraries that the process has loaded and the folders of its Python packages: ``{"libraries": [paths], "sites": [paths]}``."""
    libraries, sites = {}, {}
    with open("%s/%d/maps" % (PROC, pid), encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines):
            if number > 200000:
                break
            at = line.find("/")
            if at < 0:
                continue
            path = line[at:].rstrip("\n")
            site = _SITE.match(path)
            if site:
                sites[site.group(1)] = True
            if LIBRARIES.match(path.rpartition("/")[2]):
                libraries[path[:300]] = True
    return {"libraries": sorted(libraries)[:200], "sites": sorted(sites)[:8]}


def packages(pid: int, sites: Sequence[str]) -> Dict[str, str]:
    """Python packages and their versions in `sites`, as the process sees them: ``{"vllm": "0.32.0", …}``."""
    found: Dict[str, str] = {}
    for site in sites:
        folder = "%s/%d/root%s" % (PROC, pid, site)
        if ".." in site:
            continue
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            match = _DIST.match(name)
            if match and len(found) < MAX_PACKAGES:
                found[match.group(1).replace("_", "-")] = match.group(2)
    return found


def inner_files(pid: int) -> Dict[str, str]:
    """Small files of the process's own file system that decide how it behaves."""
    found: Dict[str, str] = {}
    for path in ("/etc/os-release", "/etc/nccl.conf", "/etc/hosts", "/etc/resolv.conf"):
        # Not followed out of the container: an absolute link would lead to the node's own file.
        whole = "%s/%d/root%s" % (PROC, pid, path)
        text = _text(whole, 65536) if not os.path.islink(whole) else ""
        if text:
            found[path] = text
    return found


_RANKS = {
    "--node-rank": "node_rank", "--nnodes": "nodes", "--master-addr": "master_addr", "--master-port": "master_port",
    "--data-parallel-rank": "data_parallel_rank", "--data-parallel-start-rank": "data_parallel_start_rank",
    "--data-parallel-address": "data_parallel_address", "--data-parallel-size": "data_parallel_size",
    "--data-parallel-size-local": "data_parallel_size_local", "--tensor-parallel-size": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size", "--port": "port", "--host": "host", "--served-model-name": "served_model_name",
    "-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "--max-model-len": "max_model_len", "--revision": "revision",
    "--root-path": "root_path", "--uds": "uds",
}
_SWITCHES = {"--headless": "headless", "--enforce-eager": "enforce_eager", "--enable-expert-parallel": "expert_parallel"}


def identity(argv: Sequence[str]) -> Dict[str, Any]:
    """Which rank a server is and where it listens, from its command line: ``{"node_rank": "1", "headless": true, "port": "8000", …}``."""
    found: Dict[str, Any] = {}
    for at, word in enumerate(argv):
        name, sign, value = word.partition("=")
        if name in _RANKS:
            if not sign:
                value = argv[at + 1] if at + 1 < len(argv) else ""
            found[_RANKS[name]] = value[:200]
        elif word in _SWITCHES:
            found[_SWITCHES[word]] = True
        elif word == "serve" and at + 1 < len(argv) and not argv[at + 1].startswith("-"):
            found["model"] = argv[at + 1][:300]
    return found


def endpoint(argv: Sequence[str]) -> Optional[Tuple[str, int]]:
    """Where the server of this command line answers HTTP: ``(address, port)``, None for one that does not (a headless rank)."""
    who = identity(argv)
    if who.get("headless") or who.get("uds"):
        return None
    try:
        port = int(who.get("port", "8000"))
    except ValueError:
        return None
    host = str(who.get("host") or "").strip("[]")
    if host in ("", "0.0.0.0", "*"):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return (host, port) if 0 < port < 65536 else None


def differing(environment: Mapping[str, str], base: Mapping[str, str]) -> Dict[str, str]:
    """Variables that `environment` has beyond `base` or with another value.

    Those that it lacks tell nothing: a process that renames itself writes over the place where they stood.
    """
    return {name: value for name, value in environment.items() if base.get(name) != value}
