# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of the lab: one to log in with, one a node to be recognised by, made anew for each lab."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from .errors import LabError
from .settings import Node, Settings


def _keygen(path: Path, comment: str) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)], check=True
    )


def ensure_login_key(settings: Settings) -> str:
    """Make the key to log in with; returns the public half, one line."""
    _keygen(settings.ssh_key, "inferops-lab")
    return settings.ssh_key.with_suffix(".pub").read_text(encoding="ascii").strip()


def ensure_host_key(settings: Settings, node: Node) -> Path:
    """Make the host key of a node and note it as known; returns the private half's path."""
    path = settings.state / "ssh" / f"{node.name}_host_ed25519"
    _keygen(path, node.name)
    public = " ".join(path.with_suffix(".pub").read_text(encoding="ascii").split()[:2])
    line = f"{node.name},{node.address} {public}\n"
    known = settings.known_hosts
    text = known.read_text(encoding="ascii") if known.exists() else ""
    if line not in text:
        known.write_text(text + line, encoding="ascii")
    return path


def config_text(settings: Settings, nodes: Iterable[Node]) -> str:
    """An ssh_config that reaches every node by name: `ssh -F FILE node1`."""
    parts = [
        f"Host {node.name}\n  HostName {node.address}\n  HostKeyAlias {node.name}\n"
        for node in nodes
    ]
    common = (
        "Host *\n  User root\n"
        f"  IdentityFile {settings.ssh_key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {settings.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 5\n  LogLevel ERROR\n"
        # A node whose servers have all cores to themselves may be silent for long.
        "  ServerAliveInterval 5\n  ServerAliveCountMax 12\n"
    )
    return "".join(parts) + common


def command(settings: Settings, node: Node, *remote: str) -> list[str]:
    """The argv that runs `remote` on node."""
    return ["ssh", "-F", str(settings.ssh_config), node.name, *remote]


def wait(settings: Settings, node: Node, seconds: float) -> float:
    """Wait until the node takes a login; returns the seconds it took. LabError at the limit."""
    begun = time.monotonic()
    while True:
        try:
            done = subprocess.run(
                command(settings, node, "true"), capture_output=True, timeout=10, check=False
            )
            error = done.stderr.decode(errors="replace").strip()
            if done.returncode == 0:
                return time.monotonic() - begun
        except subprocess.TimeoutExpired:
            error = "no answer"
        if time.monotonic() - begun > seconds:
            raise LabError(f"{node.name} takes no SSH login after {seconds:.0f} s: {error}")
        time.sleep(0.25)
