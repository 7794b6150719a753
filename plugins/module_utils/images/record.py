# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which images this node was given, newest last: what a rollback goes back to, and what archives were verified to be."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List

SCHEMA = "inferops.vllm/images/1"
PATH = "/var/lib/inferops-vllm/images.json"
_KEPT = 20

Entry = Dict[str, Any]
"""``{reference, id, digest, run, vllm, cuda, size, source}``, all text but size."""


def parse(text: str) -> List[Entry]:
    """Entries of a record; what is no record has none."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return []
    listed = found.get("images") if isinstance(found, dict) else None
    tables = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [one for one in tables if all(_word(one.get(key)) for key in ("id", "run", "reference"))]


def _word(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def load(path: str) -> List[Entry]:
    """Entries of the file, none when there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read(1 << 20))
    except (OSError, ValueError):
        return []


def with_newest(entries: List[Entry], entry: Entry) -> List[Entry]:
    """`entries` with `entry` at the end, in place of an older one of the same name and image."""
    others = [one for one in entries if (one.get("id"), one.get("reference")) != (entry["id"], entry["reference"])]
    return (others + [entry])[-_KEPT:]


def save(path: str, entries: List[Entry]) -> None:
    """Write the record at once or not at all. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    draft = "%s.%d" % (path, os.getpid())
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(json.dumps({"schema": SCHEMA, "images": entries}, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
