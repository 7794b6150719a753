# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from a mirror, which is a folder or a tar archive; and sums of files. Both go on where they were stopped."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from concurrent.futures import ThreadPoolExecutor
from threading import Lock as ThreadLock
from typing import Callable, Dict, List, Mapping, Tuple

from ..jobs import Tell
from .checkpoint import stamps
from .place import WeightsProblem

CHUNK = 8 << 20


def listing(source: str) -> Dict[str, int]:
    """Files of a mirror and their sizes. Raises WeightsProblem when it is neither a folder nor a tar archive."""
    if os.path.isdir(source):
        try:
            return {name: stamp[0] for name, stamp in stamps(source).items()}
        except OSError as exc:
            raise WeightsProblem("weights_from: %s cannot be read: %s" % (source, exc.strerror or exc), "absent") from exc
    try:
        with tarfile.open(source, "r:") as tar:
            names = {member.name: member.size for member in tar if member.isfile()}
    except (OSError, tarfile.TarError) as exc:
        raise WeightsProblem("weights_from: %s is neither a folder nor a tar archive: %s" % (source, exc), "absent") from exc
    top = prefix(list(names))
    return {safe(name[len(top):]): size for name, size in names.items()}


def prefix(names: List[str]) -> str:
    """The folder that all files of an archive stand in: that of config.json; empty when there is none."""
    found = sorted((name for name in names if name == "config.json" or name.endswith("/config.json")), key=len)
    top = found[0][:-len("config.json")] if found else ""
    return top if all(name.startswith(top) for name in names) else ""


def safe(name: str) -> str:
    """`name` when it stays in its folder. Raises WeightsProblem."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise WeightsProblem("weights_from: the archive holds %r, which leads out of its folder" % name[:80], "words")
    return name[2:] if name.startswith("./") else name


def copy(source: str, files: Mapping[str, int], folder: str, tell: Tell) -> int:
    """Bring the files that are not there in their size; returns how many. A file appears under its name when it is whole.

    Raises OSError, WeightsProblem.
    """
    total = sum(files.values())
    there = {name: stamp[0] for name, stamp in stamps(folder).items()} if os.path.isdir(folder) else {}
    done, made = sum(size for name, size in files.items() if there.get(name) == size), 0
    wanted = {name for name, size in files.items() if there.get(name) != size}
    if not wanted:
        return 0

    def one(name: str, read: Callable[[int], bytes]) -> None:
        nonlocal done
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        draft = path + ".incomplete"
        with open(draft, "wb") as out:
            while True:
                data = read(CHUNK)
                if not data:
                    break
                out.write(data)
                done += len(data)
                tell("weights copied", done, total)
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, path)

    if os.path.isdir(source):
        for name in sorted(wanted):
            with open(os.path.join(source, name), "rb") as file:
                one(name, file.read)
            made += 1
        return made
    with tarfile.open(source, "r:") as tar:
        top = prefix([member.name for member in tar.getmembers() if member.isfile()])
        for member in tar.getmembers():
            name = safe(member.name[len(top):]) if member.isfile() else ""
            inside = tar.extractfile(member) if name in wanted else None
            if inside:
                one(name, inside.read)
                made += 1
    return made


# -- sums --------------------------------------------------------------------------------------------
def sums(folder: str, names: List[str], sizes: Mapping[str, int], tell: Tell, workers: int) -> Dict[str, str]:
    """SHA-256 of each file, several at a time. Raises OSError."""
    total, done, guard = sum(sizes[name] for name in names), 0, ThreadLock()

    def one(name: str) -> Tuple[str, str]:
        nonlocal done
        digest = hashlib.sha256()
        with open(os.path.join(folder, name), "rb", buffering=0) as file:
            while True:
                data = file.read(CHUNK)
                if not data:
                    return name, digest.hexdigest()
                digest.update(data)
                with guard:
                    done += len(data)
                    tell("weights read for their sums", done, total)

    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        return dict(pool.map(one, names))


def sums_text(table: Mapping[str, str]) -> str:
    """As ``sha256sum`` writes it, so that ``sha256sum -c`` reads it."""
    return "".join("%s  %s\n" % (digest, name) for name, digest in sorted(table.items()))


def parse_sums(text: str) -> Dict[str, str]:
    """Name → digest of ``sha256sum`` lines; other lines are passed over."""
    found = {}
    for line in text.splitlines():
        told = re.match(r"([0-9a-f]{64}) [ *](.{1,4096})\Z", line)
        if told:
            found[told.group(2)] = told.group(1)
    return found


def blob_sums(folder: str, names: List[str]) -> Dict[str, str]:
    """Digests that a hub cache tells itself: large files are links to blobs that are named by their SHA-256."""
    found = {}
    for name in names:
        try:
            target = os.readlink(os.path.join(folder, name)).rpartition("/")[2]
        except OSError:
            continue
        if re.match(r"[0-9a-f]{64}\Z", target):
            found[name] = target
    return found
