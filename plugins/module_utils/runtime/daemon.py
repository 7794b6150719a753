# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker's daemon.json: what is ours is put in, what is there stays."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from ..node.text import version
from .data import CDI_FEATURE, RELOADED

PATH = "/etc/docker/daemon.json"
LIMITED = ("json-file", "local")
"""Log drivers that know max-size and max-file."""

_FLAGS = {"live-restore": "--live-restore", "log-opts": "--log-opt", "runtimes": "--add-runtime", "features": "--feature"}
"""Flags of dockerd that must not be given beside the key."""


class Merged(NamedTuple):
    """A daemon.json with what is needed.

    Attributes:
        text: the new content; the old one when nothing changes.
        changed: paths of the keys that are new, such as ``log-opts.max-size``.
        restart: those of them that the daemon takes over by a restart only.
        notes: what was left as it was, and why.
    """

    text: str
    changed: List[str]
    restart: List[str]
    notes: List[str]


def parse(text: str) -> Tuple[Dict[str, Any], str]:
    """The document and what is wrong with it; an absent or empty file is an empty document. Never raises."""
    if not text.strip():
        return {}, ""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        return {}, "is no JSON document: %s" % str(exc)[:120]
    return (found, "") if isinstance(found, dict) else ({}, "is no JSON object")


def merge(text: str, docker: str, toolkit: bool, log: Mapping[str, str], flags: Sequence[str], swarm: bool) -> Merged:
    """Put in what is needed. A key that is there keeps its value.

    Args:
        text: the file as it is; must parse.
        docker: version of the daemon.
        toolkit: the runtime of NVIDIA is wanted.
        log: ``max-size`` and ``max-file``; empty for no limits.
        flags: command line of the daemon: what stands there must not stand in the file too, or the daemon does not start.
        swarm: live-restore does not go together with it.
    """
    document, notes = parse(text)[0], []
    changed: List[str] = []

    def put(key: str, value: Any, inside: str = "") -> None:
        table = document.setdefault(inside, {}) if inside else document
        path = inside + "." + key if inside else key
        if not isinstance(table, dict):
            notes.append("%s in %s is no table and was left alone" % (inside, PATH))
        elif key in table:
            if table[key] != value and not isinstance(value, dict):
                notes.append("%s: %s in %s was left as it is" % (path, json.dumps(table[key]), PATH))
        elif any(flag.split("=")[0] == _FLAGS.get(inside or key) for flag in flags):
            notes.append("%s is set on the daemon's command line and was left out of %s" % (path, PATH))
        else:
            table[key] = value
            changed.append(path)
        if inside and document.get(inside) == {}:
            del document[inside]

    if swarm:
        notes.append("live-restore was left out, since the node is in a swarm")
    else:
        put("live-restore", True)
    if log and str(document.get("log-driver", "json-file")) in LIMITED:
        for key, value in sorted(log.items()):
            put(key, str(value), "log-opts")
    if toolkit:
        # What `nvidia-ctk runtime configure --runtime=docker` writes.
        put("nvidia", {"args": [], "path": "nvidia-container-runtime"}, "runtimes")
        if version(docker) >= CDI_FEATURE:
            put("cdi", True, "features")
    if not changed:
        return Merged(text, [], [], notes)
    restart = [path for path in changed if path.split(".")[0] not in RELOADED]
    return Merged(json.dumps(document, indent=2) + "\n", changed, restart, notes)


def lacking(info: Mapping[str, Any], docker: str, toolkit: bool) -> List[str]:
    """What the running daemon does not have yet of what a reload brings, by ``docker info``."""
    found: List[str] = []
    runtimes = info.get("Runtimes")
    if toolkit and isinstance(runtimes, dict) and "nvidia" not in runtimes:
        found.append("runtimes.nvidia")
    if toolkit and version(docker) >= CDI_FEATURE and not info.get("CDISpecDirs"):
        found.append("features.cdi")
    return found
