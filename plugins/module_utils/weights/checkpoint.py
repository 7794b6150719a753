# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder of weights: are all its files there, and whole?

The header of a safetensors file tells its exact length (https://github.com/huggingface/safetensors#format): eight bytes with the
header's length, the header, and tensors up to the largest of its data_offsets. So a cut file is found without reading its tensors.
"""

from __future__ import annotations

import json
import os
import re
import struct
from typing import Any, Dict, List, NamedTuple, Tuple

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
MARKER = ".inferops-vllm.json"
SUMS = ".inferops-vllm.sha256"
LARGEST_HEADER = 100 << 20
_INDEX_LIMIT = 256 << 20
_PART = re.compile(r"-\d+-of-\d+\.safetensors\Z")
_OWN = ".inferops-vllm."

Stamp = Tuple[int, int]
"""Size in bytes, and time of the last change in ns."""


class Found(NamedTuple):
    """What is in a folder.

    Attributes:
        files: path relative to the folder → stamp, of all files but ours and those of a download's bookkeeping.
        shards: number of files with tensors that belong to it.
        faults: one phrase for each file that is missing, cut or unreadable, by name.
        bytes: of all files.
    """

    files: Dict[str, Stamp]
    shards: int
    faults: List[str]
    bytes: int

    @property
    def whole(self) -> bool:
        """Everything is there."""
        return not self.faults


def stamps(folder: str) -> Dict[str, Stamp]:
    """All files below `folder` with their stamps; links are followed, links to nothing are passed over.

    Raises OSError when the folder cannot be listed.
    """
    found: Dict[str, Stamp] = {}
    todo = [""]
    while todo:
        part = todo.pop()
        with os.scandir(os.path.join(folder, part) if part else folder) as listed:
            for entry in listed:
                name = part + entry.name
                if entry.is_dir():
                    if entry.name not in (".cache", ".git"):
                        todo.append(name + "/")
                    continue
                if entry.name.startswith(_OWN) or entry.name.endswith(".incomplete"):
                    continue
                try:
                    told = entry.stat()
                except OSError:
                    continue
                found[name] = (told.st_size, told.st_mtime_ns)
    return found


def look(folder: str, known: Dict[str, Stamp]) -> Found:
    """What is in `folder`. Files whose stamp is that in `known` were looked into before and are not opened again;
    files that are in `known` and not there any more are missed.

    Never raises: what cannot be read is a fault.
    """
    try:
        files = stamps(folder)
    except OSError as exc:
        return Found({}, 0, ["%s cannot be read: %s" % (folder, exc.strerror or exc)], 0)
    faults: List[str] = []
    if CONFIG not in files:
        faults.append("%s is missing" % CONFIG)
    elif known.get(CONFIG) != files[CONFIG]:
        faults += _document_faults(folder, CONFIG)
    if INDEX in files:
        named, problem = shards_of(_read(os.path.join(folder, INDEX)))
        if problem:
            faults.append("%s %s" % (INDEX, problem))
    else:
        named = sorted(name for name in files if name.endswith(".safetensors") and "/" not in name)
        if not named:
            faults.append("no file with tensors (*.safetensors) is there")
        elif any(_PART.search(name) for name in named):
            # Without the index nobody knows whether these are all parts.
            faults.append("%s is missing" % INDEX)
    for name in named:
        if name not in files:
            faults.append("%s is missing" % name)
        elif known.get(name) != files[name]:
            problem = shard_fault(os.path.join(folder, name), files[name][0])
            if problem:
                faults.append("%s %s" % (name, problem))
    faults += ["%s is missing; it was there before" % name for name in sorted(known) if name not in files and name not in named and name != CONFIG]
    return Found(files, len(named), faults, sum(stamp[0] for stamp in files.values()))


def shards_of(text: str) -> Tuple[List[str], str]:
    """Names of the files in an index, and what is wrong with it; never raises."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [], "is no JSON document, so it is cut or damaged"
    table = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(table, dict) or not table:
        return [], "holds no weight_map"
    names = sorted({str(name) for name in table.values()})
    strange = [name for name in names if name.startswith("/") or ".." in name.split("/") or "\0" in name]
    return ([], "names a file outside of its folder: %r" % strange[0][:80]) if strange else (names, "")


def shard_fault(path: str, size: int) -> str:
    """What is wrong with a safetensors file of `size` bytes, empty when it is whole."""
    try:
        with open(path, "rb") as file:
            start = file.read(8)
            if len(start) < 8:
                return "is cut: %d bytes" % size
            length = struct.unpack("<Q", start)[0]
            if length > LARGEST_HEADER or length < 2:
                return "is no safetensors file: its header would have %d bytes" % length
            header = file.read(length)
    except OSError as exc:
        return "cannot be read: %s" % (exc.strerror or exc)
    if len(header) < length:
        return "is cut inside of its header: %d bytes" % size
    wanted = length_of(header)
    if wanted < 0:
        return "has a damaged header"
    if size != wanted:
        return "is cut: %s of %s bytes" % ("{:,}".format(size), "{:,}".format(wanted)) if size < wanted else (
            "is %s bytes longer than its header says" % "{:,}".format(size - wanted))
    return ""


def length_of(header: bytes) -> int:
    """Bytes that a safetensors file with this header has, -1 when it is no such header; never raises."""
    try:
        table = json.loads(header.decode("utf-8"))
        ends = [entry["data_offsets"][1] for name, entry in table.items() if name != "__metadata__"]
        if not all(isinstance(end, int) and end >= 0 for end in ends):
            return -1
        return 8 + len(header) + max(ends, default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return -1


def summary(found: Found, limit: int = 6) -> str:
    """The faults in one phrase: the first few by name, the rest counted."""
    shown = "; ".join(found.faults[:limit])
    rest = len(found.faults) - limit
    return shown + ("; and %d more" % rest if rest > 0 else "")


def _document_faults(folder: str, name: str) -> List[str]:
    try:
        whole = isinstance(json.loads(_read(os.path.join(folder, name))), dict)
    except (ValueError, RecursionError):
        whole = False
    return [] if whole else ["%s is no JSON document, so it is cut or damaged" % name]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_INDEX_LIMIT)
    except (OSError, ValueError):
        return ""


# -- the marker -----------------------------------------------------------------------------------
class Mark(NamedTuple):
    """What was verified once: of which model and revision a folder is, and the stamps of its files."""

    model: str
    revision: str
    files: Dict[str, Stamp]


def parse_mark(text: str) -> Mark:
    """A mark from its JSON; what is none is an empty mark. Never raises."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return Mark("", "", {})
    table: Any = found.get("files") if isinstance(found, dict) else None
    if not isinstance(table, dict):
        return Mark("", "", {})
    files = {
        str(name): (stamp[0], stamp[1]) for name, stamp in table.items()
        if isinstance(stamp, list) and len(stamp) == 2 and all(isinstance(part, int) for part in stamp)}
    return Mark(str(found.get("model") or ""), str(found.get("revision") or ""), files)


def mark_text(mark: Mark) -> str:
    """The JSON of a mark."""
    return json.dumps({
        "schema": "inferops.vllm/weights/1", "model": mark.model, "revision": mark.revision,
        "files": {name: list(stamp) for name, stamp in sorted(mark.files.items())},
    }, indent=0) + "\n"
