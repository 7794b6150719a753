# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop a service so that running requests end, and tell how many are left."""

from __future__ import annotations

import errno
import os
import re
from typing import Any, Dict, Optional

from . import progress, watch

_REQUESTS = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}\n]{0,500}\})? ([0-9.eE+]{1,20})$", re.M)
DOWN = ("inactive", "failed")
NO_SYSTEMD = "has not been booted with systemd"
"""What systemctl says where systemd does not run, as in most containers."""


class StateError(Exception):
    """systemd did not say how the unit is; one sentence."""


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


def state(service: str) -> progress.Unit:
    """The unit, now; without systemd it is inactive.

    Raises:
        StateError: systemd could not be asked, so that the service may well run.
    """
    unit = service + ".service"
    rc, out, err = watch.run(["systemctl", "show", "--no-pager", "--property=" + ",".join(progress.PROPERTIES), unit])
    now = progress.unit(out)
    if now.active:
        return now
    if NO_SYSTEMD in err or (rc == 127 and os.strerror(errno.ENOENT) in err):
        return now._replace(active="inactive")
    raise StateError("systemd does not say how %s is: %s" % (unit, " ".join(err.split())[:200] or "exit status %d" % rc))


def left(now: progress.Unit) -> bool:
    """The unit is up or on its way; a start that waits in systemd's queue would come up later."""
    return now.queued or now.active not in DOWN


def up(service: str) -> bool:
    """The unit is up or on its way.

    Raises:
        StateError: systemd could not be asked.
    """
    return left(state(service))


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
    try:
        now = state(service)
    except StateError as exc:
        return {"up": True, "state": str(exc), "requests": None}
    if not left(now):
        # A stop that had to kill leaves the unit failed; it was asked for, so it is none.
        if now.active == "failed":
            watch.run(["systemctl", "reset-failed", service + ".service"])
        return {"up": False, "state": now.active, "requests": None}
    return {"up": True, "state": "its start is queued" if now.queued else now.sub, "requests": requests_left(watch.told(service).health_url)}
