# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node serves, read from the files of its release: no plan is needed to follow, stop or roll back a service."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, NamedTuple, Tuple

from ..node import systemd
from .names import SERVICE, SETTINGS

DEFAULT_PORT = 8000

_HOST = re.compile(r"(?:^|\s)--host[=\s]+\"?([0-9A-Za-z.:_-]+)")
_PORT = re.compile(r"(?:^|\s)--port[=\s]+\"?(\d{1,5})\b")
_HEADLESS = re.compile(r"(?:^|\s)--headless(?:\s|$)")
_ENGINE = re.compile(r"^(?:ExecStart=|\s*)\S*/(docker|podman)\s+run\b", re.M)
_READY = re.compile(r"^VLLM_ENGINE_READY_TIMEOUT_S=\"?(\d{1,6})\"?$", re.M)


class Told(NamedTuple):
    """What the unit's file says.

    Attributes:
        health_url: where /health answers, empty for a rank that serves no API.
        engine: program of the container engine, empty without a container.
        ready_s: VLLM_ENGINE_READY_TIMEOUT_S of the service, 0 when it is not set.
    """

    health_url: str
    engine: str
    ready_s: int


def told(unit: str, environment: str = "") -> Told:
    """Read the text of a unit, with the command that starts vLLM, and of its environment file."""
    command = unit.replace("\\\n", " ")
    start = "\n".join(line for line in command.splitlines() if line.startswith("ExecStart="))
    engine = _ENGINE.search(start)
    ready = _READY.search(environment)
    url = ""
    if start and not _HEADLESS.search(start):
        host, port = _HOST.search(start), _PORT.search(start)
        address = host.group(1) if host else "127.0.0.1"
        # What listens everywhere answers on the loopback address, too.
        address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
        url = "http://%s:%d/health" % ("[%s]" % address if ":" in address else address, int(port.group(1)) if port else DEFAULT_PORT)
    return Told(url, engine.group(1) if engine else "", int(ready.group(1)) if ready else 0)


def parse_fragment(text: str) -> str:
    """Path of the unit's file from ``systemctl show --property=FragmentPath``."""
    return systemd.first((systemd.blocks(text) or [{}])[0], "FragmentPath")


def files(service: str = SERVICE) -> Tuple[str, str, str]:
    """Paths of the environment file, of the release's record and of the link agent's configuration."""
    prefix = "" if service == SERVICE else "router-"
    return ("%s/%s.env" % (SETTINGS, "service" if service == SERVICE else "router"), "%s/%srelease.json" % (SETTINGS, prefix),
            SETTINGS + "/link.json" if service == SERVICE else "")


def release(record: str, link: str) -> Dict[str, Any]:
    """``{"role", "rank", "engine", "number", "peers"}`` from release.json and link.json; ``{}`` when nothing is deployed.

    `peers` are the names of all ranks of the engine, in rank order; empty for an engine on one node.
    """
    found, joined = _table(record), _table(link)
    if not found:
        return {}
    names = joined.get("names")
    number = found.get("number")
    return {
        "role": str(found.get("role", "head")), "rank": found.get("rank") if isinstance(found.get("rank"), int) else 0,
        "engine": str(found.get("engine", "")), "number": number if isinstance(number, int) else 0,
        "peers": [str(name) for name in names] if isinstance(names, list) else [],
    }


def _table(text: str) -> Dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
