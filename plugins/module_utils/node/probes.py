# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What neither a file nor a command of the running machine gives. Each probe takes one text and returns a JSON-shaped value."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from typing import Any, Callable, Dict, List

from . import processes
from .children import in_children
from .reader import READ_LIMIT


def _statvfs(path: str) -> Dict[str, int]:
    """Bytes and inodes of the file system that holds `path`, or its nearest existing parent."""
    while path not in ("", "/") and not os.path.exists(path):
        path = os.path.dirname(path)
    found = os.statvfs(path or "/")
    return {
        "total_bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        "free_inodes": found.f_favail,
        "total_inodes": found.f_files,
    }


def _resolve(names: str) -> Dict[str, List[str]]:
    """Addresses of each blank-separated name; an empty list for one that does not resolve."""
    answer: Dict[str, List[str]] = {}
    for name in names.split():
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            found = []
        answer[name] = sorted({str(item[4][0]) for item in found})
    return answer


def _process(_arg: str) -> Dict[str, Any]:
    """Who is reading: user id, host name, wall clock (seconds since the epoch)."""
    system = os.uname()
    return {
        "uid": os.geteuid(), "hostname": system.nodename, "kernel": system.release, "arch": system.machine,
        "now": round(time.time(), 1), "page_size": os.sysconf("SC_PAGE_SIZE"), "cpus": os.cpu_count() or 0,
    }


def _ssh(_arg: str) -> Dict[str, str]:
    """``SSH_CONNECTION`` of this session: client and server address, empty when not over SSH.

    sudo takes the variable out of the environment, so the ancestors are asked too.
    """
    found = os.environ.get("SSH_CONNECTION", "")
    pid = os.getppid()
    for _generation in range(16):
        if found or pid < 2:
            break
        try:
            with open("/proc/%d/environ" % pid, "rb") as source:
                table = source.read(READ_LIMIT).split(b"\0")
            with open("/proc/%d/stat" % pid, "rb") as source:
                # The name in parentheses may hold blanks; state and parent stand behind it.
                pid = int(source.read(4096).rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        found = next((item[15:].decode("ascii", "replace") for item in table if item.startswith(b"SSH_CONNECTION=")), "")
    return {"connection": found}


def _sha256(path: str) -> str:
    """Digest of a file of at most READ_LIMIT bytes: tells two nodes apart without taking the content along."""
    import hashlib

    with open(path, "rb") as source:
        data = source.read(READ_LIMIT + 1)
    if len(data) > READ_LIMIT:
        raise OSError(errno.EFBIG, "too large")
    return hashlib.sha256(data).hexdigest()


def _machine(_arg: str) -> Dict[str, Any]:
    """What the head of two large files says: boot time (seconds since the epoch) and the first processor.

    ``/proc/cpuinfo`` and ``/proc/stat`` reach hundreds of KB on large machines; only these values are remembered.
    """
    with open("/proc/cpuinfo", "rb") as source:
        cpu = source.read(8192).decode("utf-8", "replace").split("\n\n", 1)[0]
    booted = 0
    with open("/proc/stat", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("btime "):
                booted = int(line.split()[1])
                break
    fields = {key.strip(): value.strip() for key, _sign, value in (line.partition(":") for line in cpu.splitlines())}
    return {
        "booted_at": booted, "model_name": fields.get("model name", ""), "implementer": fields.get("CPU implementer", ""),
        "part": fields.get("CPU part", ""), "hypervisor": "hypervisor" in fields.get("flags", "").split(),
    }


def _processes(_arg: str) -> Dict[str, Any]:
    """Processes that are stuck in a driver, hold a GPU or serve vLLM; see :func:`processes.scan`."""
    return processes.scan(in_children)


def _weights(path: str) -> List[Dict[str, Any]]:
    """Checkpoints in `path`, one folder below, and in a Hugging Face cache there; at most 200 folders are looked at.

    Returns:
        ``[{"path", "config": bool, "index": bool, "shards": int, "bytes": int, "missing": shards of the index that are not there}]``,
        the largest first, at most 8.
    """
    import glob

    # A literal path may hold the characters of a pattern.
    base = glob.escape(path.rstrip("/"))
    patterns = ("", "/*", "/models--*/snapshots/*", "/hub/models--*/snapshots/*")
    folders = [folder for pattern in patterns for folder in sorted(glob.glob(base + pattern or "/"))[:100] if os.path.isdir(folder)]
    found: List[Dict[str, Any]] = []
    for folder in folders[:200]:
        sizes: Dict[str, int] = {}
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= 10000:
                    break
                if entry.name.endswith(".safetensors") or entry.name in ("config.json", "model.safetensors.index.json"):
                    try:
                        sizes[entry.name] = entry.stat().st_size
                    except OSError:  # a link into a cache whose file is not there yet
                        continue
        shards = {name for name in sizes if name.endswith(".safetensors")}
        if not shards and "model.safetensors.index.json" not in sizes:
            continue
        index = os.path.join(folder, "model.safetensors.index.json")
        named = set()
        if "model.safetensors.index.json" in sizes:
            with open(index, "rb") as source:
                named = set(re.findall(r'"([^"/\\\\]{1,200}\.safetensors)"', source.read(64 * READ_LIMIT).decode("utf-8", "replace")))
        found.append({
            "path": folder, "config": "config.json" in sizes, "index": "model.safetensors.index.json" in sizes,
            "shards": len(shards), "bytes": sum(sizes.values()), "missing": len(named - shards),
        })
    return sorted(found, key=lambda item: (-int(item["bytes"]), str(item["path"])))[:8]


PROBES: Dict[str, Callable[[str], Any]] = {
    "statvfs": _statvfs, "resolve": _resolve, "process": _process, "ssh": _ssh, "sha256": _sha256, "machine": _machine,
    "processes": _processes, "process_detail": processes.detail, "weights": _weights,
}
