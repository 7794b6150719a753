# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that have a device of the driver open, the control device included."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Sequence

from ..node.processes import cgroup_path
from ..node.systemd import owner

SERVICES = (
    "nvidia-dcgm.service", "dcgm.service", "nvidia-dcgm-exporter.service", "dcgm-exporter.service", "nvidia-imex.service",
    "nvidia-fabricmanager.service", "nvidia-persistenced.service", "nvidia-gridd.service", "nvidia-topologyd.service",
)
"""Services of the driver itself, in the order in which they are stopped; started again the other way round."""


def holders() -> List[Dict[str, Any]]:
    """``[{"pid", "comm", "unit"?, "container"?}]``; only links are read, which does not block on a process that is stuck."""
    found: List[Dict[str, Any]] = []
    for name in sorted((one for one in _names("/proc") if one.isdigit()), key=int):
        folder = "/proc/%s/fd" % name
        if not any(_link(folder + "/" + one).startswith("/dev/nvidia") for one in _names(folder)):
            continue
        try:
            with open("/proc/%s/comm" % name, encoding="utf-8", errors="replace") as stream:
                comm = stream.read().strip()
        except OSError:
            continue
        found.append(dict({"pid": int(name), "comm": comm}, **owner(cgroup_path(int(name)))))
    return found


def foreign(found: Sequence[Mapping[str, Any]]) -> List[str]:
    """Those of :func:`holders` that are none of the driver's own services, as a person names them."""
    named = []
    for one in found:
        unit = str(one.get("unit") or "")
        if unit in SERVICES and not one.get("container"):
            continue
        place = "container %s" % one["container"] if one.get("container") else unit
        named.append("%s (process %s%s)" % (one.get("comm") or "?", one.get("pid"), ", " + place if place else ""))
    return named


def _names(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
