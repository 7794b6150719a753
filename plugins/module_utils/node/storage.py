# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the section ``storage`` (docs/FACTS.md): space where weights go, and weights that are already there."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from .reader import Reader
from .text import integer

MOUNTS = "/proc/self/mountinfo"
MAX_PATHS = 12
_HANGS = "the file system does not answer"
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of mountinfo."""

    point: str
    fstype: str
    device: str
    options: str


def commands(options: Any) -> List[Sequence[str]]:
    """None: everything comes from files and probes."""
    return []


def parse_mounts(text: str) -> List[Mount]:
    """Mounts of a /proc/PID/mountinfo in its order; lines of another form are passed over."""
    found: List[Mount] = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if not dash or len(fields) < 6 or len(rest) < 2:
            continue
        # Options of the mount, then those of the file system, each once.
        words = list(dict.fromkeys(fields[5].split(",") + (rest[2].split(",") if len(rest) > 2 else [])))
        found.append(Mount(_plain(fields[4]), _plain(rest[0]), _plain(rest[1]), ",".join(words)))
    return found


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8) & 0xFF), text)


def mount_of(path: str, mounts: Sequence[Mount]) -> Optional[Mount]:
    """The mount that holds `path`: the longest mount point above it, of equal ones the last, which covers the others."""
    best: Optional[Mount] = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        if path == point or path.startswith(point + "/"):
            if best is None or len(mount.point) >= len(best.point):
                best = mount
    return best


def collect(reader: Reader, options: Any) -> Dict[str, Any]:
    """Facts of this section; never raises for what the node answers."""
    unknown: Dict[str, str] = {}
    content = reader.read(MOUNTS)
    mounts = parse_mounts(content.text or "")
    if not mounts:
        unknown["paths"] = "%s could not be read%s" % (MOUNTS, ": " + content.error if content.error else "")
    paths: List[Dict[str, Any]] = []
    for path in [str(p).rstrip("/") or "/" for p in options.paths if str(p).startswith("/")][:MAX_PATHS]:
        # A file system that hangs costs the whole deadline: after one, no other is touched.
        if not _hung(unknown):
            paths.append(_path(reader, path, mounts, unknown))
        else:
            paths.append({"path": path})
    return {"paths": paths, "weights": _weights(reader, paths, unknown), "unknown": unknown}


def _hung(unknown: Mapping[str, str]) -> bool:
    return unknown.get("paths", "").endswith(_HANGS)


def resolve(reader: Reader, path: str) -> str:
    """`path` with every symbolic link in it followed, at most 20 of them; parts that do not exist stay as they are."""
    done, todo, links = "", [part for part in path.split("/") if part], 0
    while todo:
        part = todo.pop(0)
        if part == ".":
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        target = reader.link(done + "/" + part).text
        if target and links < 20:
            links += 1
            todo = [piece for piece in target.split("/") if piece] + todo
            done = "" if target.startswith("/") else done
        else:
            done += "/" + part
    return done or "/"


def _path(reader: Reader, path: str, mounts: Sequence[Mount], unknown: Dict[str, str]) -> Dict[str, Any]:
    probed = reader.probe("statvfs", path)
    facts: Dict[str, Any] = {"path": path}
    if probed.error == "timeout":
        unknown["paths"] = "%s could not be looked at: %s" % (path, _HANGS)
        mount = mount_of(path, mounts)
    else:
        kind = reader.kind(path)
        if kind.error in ("", "missing"):
            facts["exists"] = kind.text is not None
        else:
            unknown["paths"] = "%s could not be looked at: %s" % (path, kind.error)
        mount = mount_of(resolve(reader, path), mounts)
    if mount:
        facts.update(mount=mount.point, fstype=mount.fstype, device=mount.device[:200], options=mount.options[:300])
    sizes: Mapping[str, Any] = probed.value if isinstance(probed.value, dict) else {}
    for name in ("total_bytes", "free_bytes", "free_inodes"):
        if isinstance(sizes.get(name), int):
            facts[name] = sizes[name]
    if "free_bytes" not in facts:
        unknown.setdefault("paths", "the free space of %s could not be read: %s" % (path, probed.error or "no answer"))
    if sizes.get("total_inodes") == 0:
        # btrfs and some network file systems do not count inodes: 0 would look like none left.
        facts.pop("free_inodes", None)
    return facts


def _weights(reader: Reader, paths: Sequence[Mapping[str, Any]], unknown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    path = str(paths[0]["path"]) if paths else ""
    if not path or _hung(unknown):
        if path:
            unknown["weights"] = unknown["paths"]
        return None
    if paths[0].get("exists") is False:
        return None
    probed = reader.probe("weights", path)
    if not isinstance(probed.value, list):
        unknown["weights"] = "%s could not be searched for a checkpoint: %s" % (path, probed.error or "no answer")
        return None
    found = [item for item in probed.value if isinstance(item, dict) and isinstance(item.get("path"), str)]
    if not found:
        return None
    largest = found[0]
    shards, missing = integer(largest.get("shards")) or 0, integer(largest.get("missing")) or 0
    return {
        "path": largest["path"], "present": bool(largest.get("config")) and shards > 0 and missing == 0,
        "bytes": integer(largest.get("bytes")) or 0, "shards": shards, "index": bool(largest.get("index")), "missing": missing,
    }
