# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd says of units, and which unit or container a process belongs to."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Sequence, Tuple

from .text import integer

PROPERTIES = (
    "Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "NRestarts", "MainPID", "ActiveEnterTimestamp",
    "FragmentPath", "DropInPaths",
)

_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_UNIT = re.compile(r"^[^/]{1,250}\.service$")
_ENGINES = ("docker.service", "containerd.service", "podman.service", "crio.service", "cri-docker.service", "kubelet.service")


def show_command(units: Sequence[str], extra: Sequence[str] = ()) -> Tuple[str, ...]:
    """argv of ``systemctl show`` for `units`, with the properties that :func:`parse_show` reads and those of `extra`."""
    return ("systemctl", "show", "--no-pager", "--property=" + ",".join(PROPERTIES + tuple(extra))) + tuple(units)


def blocks(text: str) -> List[Dict[str, List[str]]]:
    """Output of ``systemctl show`` as one table a unit: property → its values (a property may stand several times).

    Units stand in the order they were asked for; a block without ``Id`` is kept.
    """
    found: List[Dict[str, List[str]]] = []
    current: Dict[str, List[str]] = {}
    for line in text.split("\n") + [""]:
        if not line.strip():
            if current:
                found.append(current)
            current = {}
            continue
        key, sign, value = line.partition("=")
        if sign and key.replace("_", "").isalnum():
            current.setdefault(key, []).append(value.strip())
    return found


def first(block: Dict[str, List[str]], key: str) -> str:
    """First value of a property, empty when there is none."""
    return (block.get(key) or [""])[0]


def service_fields(block: Dict[str, List[str]]) -> Dict[str, Any]:
    """The ``service`` table of docs/FACTS.md from one block of :func:`blocks`; what systemd did not say is left out."""
    load = first(block, "LoadState")
    fields: Dict[str, Any] = {"installed": load not in ("", "not-found")}
    for name, key in (("active", "ActiveState"), ("sub", "SubState"), ("enabled", "UnitFileState"), ("since", "ActiveEnterTimestamp")):
        value = first(block, key)
        if value and value != "n/a":
            fields[name] = value[:100]
    if load == "masked":
        fields["enabled"] = "masked"
    for name, key in (("restarts", "NRestarts"), ("main_pid", "MainPID")):
        count = integer(first(block, key))
        if count is not None:
            fields[name] = count
    return fields


def parse_show(text: str) -> Dict[str, Dict[str, Any]]:
    """``{unit: service table}`` from the output of :func:`show_command`; units without a name are left out."""
    return {first(block, "Id"): service_fields(block) for block in blocks(text) if first(block, "Id")}


def owner(cgroup: str) -> Dict[str, str]:
    """``{"unit": …, "container": first 12 digits of the id}`` of a process from its cgroup path; each only when there is one.

    Knows docker, containerd, CRI-O and podman, with the systemd and the cgroupfs driver. The engine's own
    service is not named as the unit of a container.
    """
    found: Dict[str, str] = {}
    ids = _CONTAINER.findall(cgroup)
    if ids:
        found["container"] = ids[-1][:12]
    units = [part for part in cgroup.split("/") if _UNIT.match(part) and not part.startswith("user@")]
    if units and not (ids and units[-1] in _ENGINES):
        found["unit"] = units[-1]
    return found
