# SPDX-License-Identifier: GPL-3.0-or-later
"""The private bridge. Nothing is routed or translated: nodes reach each other and the bridge."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from .errors import LabError
from .settings import Settings


def _ip(*args: str) -> str:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"`ip {' '.join(args)}` failed: {done.stderr.strip()}")
    return done.stdout


def links() -> dict[str, dict[str, Any]]:
    """All network links of this machine by name."""
    return {link["ifname"]: link for link in json.loads(_ip("-json", "link", "show") or "[]")}


def up(settings: Settings) -> None:
    """Make the bridge with the lab's address; a bridge that is already right is left alone."""
    if settings.bridge not in links():
        _ip(
            "link", "add", settings.bridge, "type", "bridge", "stp_state", "0", "forward_delay", "0"
        )
    _ip(
        "address", "replace", f"{settings.gateway}/{settings.prefix_length}", "dev", settings.bridge
    )
    _ip("link", "set", settings.bridge, "up")


def down(settings: Settings) -> None:
    """Remove the bridge and every link that is still a port of it."""
    found = links()
    if settings.bridge not in found:
        return
    for name, link in found.items():
        if link.get("master") == settings.bridge:
            _ip("link", "delete", name)
    _ip("link", "delete", settings.bridge)
