# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop a service so that running requests end, and tell how many are left."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

from . import watch

_REQUESTS = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}\n]{0,500}\})? ([0-9.eE+]{1,20})$", re.M)
DOWN = ("", "inactive", "failed")


def parse_requests(text: str) -> Optional[int]:
    """Running and waiting requests in the text of /metrics, None when it has no such number."""
    found = _REQUESTS.findall(text)
    try:
        return int(sum(float(value) for value in found)) if found else None
    except (ValueError, OverflowError):
        return None


def requests_left(health_url: str) -> Optional[int]:
    """Running and waiting requests of the server beside `health_url`, None when it does not tell."""
    if not health_url:
        return None
    answer = watch.fetch(health_url.rsplit("/", 1)[0] + "/metrics", 4 * 1024 * 1024)
    return None if answer is None else parse_requests(answer.decode("utf-8", "replace"))


def up(service: str) -> bool:
    """The unit is up or on its way."""
    return watch.show(service + ".service").active not in DOWN


def begin(service: str, force: bool) -> str:
    """Ask systemd to stop the unit without waiting for it; with `force` everything of it is killed. Empty, or why it could not be asked."""
    unit = service + ".service"
    rc, _out, err = watch.run(["systemctl", "stop", "--no-block", unit])
    if rc:
        return "systemctl stop %s: %s" % (unit, err.strip()[:200] or "exit status %d" % rc)
    if force:
        engine = watch.told(service).engine
        # The container is outside of the unit's control group.
        if engine:
            watch.run([engine, "kill", service])
        watch.run(["systemctl", "kill", "--signal=SIGKILL", unit])
    return ""


def look(service: str) -> Dict[str, Any]:
    """``{"up", "state", "requests"}``: whether something of the unit is left, and the requests that it still serves."""
    now = watch.show(service + ".service")
    if now.active in DOWN:
        # A stop that had to kill leaves the unit failed; it was asked for, so it is none.
        if now.active == "failed":
            watch.run(["systemctl", "reset-failed", service + ".service"])
        return {"up": False, "state": now.active, "requests": None}
    return {"up": True, "state": now.sub, "requests": requests_left(watch.told(service).health_url)}
