# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changed between versions of vLLM from 0.27 to 0.33, as far as a plan meets it.

A row holds from its `since` on. Where only the two ends of a range were looked at, `since` is the later one
and the note says so: between the two a plan keeps what the older version is known to take.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from .profiles import Source

Version = Tuple[int, ...]

LAST: Version = (0, 33)
"""Newest version that the table speaks of; a newer one is planned like the last, and the plan says so."""

SEEN_032 = Source("https://docs.vllm.ai/en/v0.32.0/cli/serve.html", "2026-11-29", "looked at in 0.27.1 and in 0.32.0, not between")


class Change(NamedTuple):
    """A variable or flag that another one replaces.

    Attributes:
        since: first version that has `new` and not `old`.
        old, new: names; a flag starts with ``--``. `new` is empty when nothing took its place.
        values: old value → new value, for those that differ.
        note: one sentence.
    """

    since: Version
    old: str
    new: str
    values: Mapping[str, str]
    note: str
    source: Source


class Default(NamedTuple):
    """A default that moved: from `since` on, `name` is `value` when it is not stated."""

    since: Version
    name: str
    value: Any
    before: Any
    note: str
    source: Source


CHANGES: Tuple[Change, ...] = (
    Change((0, 32), "VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "--prefix-cache-retention-interval", {},
           "the variable became a flag", SEEN_032),
    Change((0, 32), "VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4", "VLLM_ROCM_USE_AITER_MOE_SITUV2", {"1": "a8w4", "0": "0"},
           "the variable took more formats; 1 now means a4w4, so the format is named", SEEN_032),
)

REMOVED: Dict[str, str] = {
    "--swap-space": "it is gone; the scheduler recomputes what it preempts",
    "--disable-log-requests": "use --no-enable-log-requests",
    "--num-scheduler-steps": "it is gone; use async-scheduling",
    "--guided-decoding-backend": "use structured-outputs-config",
}
"""Flags of the 0.2x series that every version since 0.27 refuses → what to use."""

DEFAULTS: Tuple[Default, ...] = (
    Default((0, 32), "--enable-prefix-caching", True, False, "prefix caching of this model is on by default from 0.32 on", SEEN_032),
)

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


def parse(text: Any) -> Version:
    """Leading numbers of a version (``v0.32.0``, ``0.27.1.dev3+cu130``); () for anything else."""
    found = _VERSION.match(text) if isinstance(text, str) else None
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def word(version: Version) -> str:
    """``0.27.1`` for (0, 27, 1)."""
    return ".".join(str(part) for part in version)


def has(version: Version, since: Version) -> bool:
    """`version` is `since` or newer."""
    return version[: len(since)] >= since


def default(name: str, version: Version) -> Any:
    """What `name` is when it is not stated; None when this table does not know."""
    for row in DEFAULTS:
        if row.name == name:
            return row.value if has(version, row.since) else row.before
    return None


class Moved(NamedTuple):
    """What :func:`move` changed: text for a person."""

    old: str
    new: str
    why: str


def move(flags: Dict[str, Any], env: Dict[str, str], version: Version) -> List[Moved]:
    """Spell `flags` and `env`, in place, as `version` takes them; returns what was changed.

    Works both ways: an old name on a new version and a new name on an old one. A value that was set under
    both names keeps that of the name that the version knows.
    """
    moved: List[Moved] = []
    for row in CHANGES:
        newer = has(version, row.since)
        here, there = (row.new, row.old) if newer else (row.old, row.new)
        if not there or not (there in flags or there in env):
            continue
        value = flags.pop(there) if there in flags else env.pop(there)
        names = {str(v): k for k, v in row.values.items()} if not newer else row.values
        text = names.get(str(value), str(value))
        target = flags if here.startswith("--") else env
        if here and here not in target:
            target[here] = text
        moved.append(Moved(there, here, "vLLM %s: %s" % (word(version), row.note)))
    return moved
