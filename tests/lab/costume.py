# SPDX-License-Identifier: GPL-3.0-or-later
"""Dress a running lab node as GPU hardware, so that live collectors see it over SSH.

The node stays what it is: systemd, sshd, its container engine, its storage. Commands and paths that
only hardware could answer are answered by the costume (tests/costume) of the wanted hardware and faults;
see costume_node.py for what stands where, and docs in README.md for what remedies can change.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import apt_repo, lab, ssh, vm
from .costume_node import BASE
from .costume_state import LAB_FAULTS, State, clothes, first_state
from .errors import LabError
from .settings import REPOSITORY, Node, Settings

__all__ = ["LAB_FAULTS", "clothes", "dress", "first_state", "reboot", "state", "undress", "use_repository"]

COLLECTORS = "plugins/module_utils/node"
PLACE = "lib/ansible_collections/inferops/vllm/"
WEAR = f"""\
#!/usr/bin/python3 -I
# Renderer of a lab costume: see tests/lab/costume_node.py of the collection.
import sys

sys.path.insert(0, "{BASE}/lib")
from tests.lab.costume_node import main

sys.exit(main(sys.argv[1:]))
"""


def bundle(first: State) -> bytes:
    """What is copied to the node, as a tar: state, renderer, replaying program, costumes, constants of the collectors."""
    here = Path(__file__).resolve().parent
    files: dict[str, tuple[bytes, int]] = {
        "state.json": (json.dumps(first, indent=1).encode(), 0o644),
        "wear": (WEAR.encode(), 0o755),
        "replay": ((here / "costume_replay.py").read_bytes(), 0o755),
        "lib/tests/__init__.py": (b"", 0o644),
        "lib/tests/lab/__init__.py": (b"", 0o644),
    }
    for name in ("costume_state.py", "costume_node.py", "costume_tools.py"):
        files[f"lib/tests/lab/{name}"] = ((here / name).read_bytes(), 0o644)
    for path in sorted((REPOSITORY / COLLECTORS).glob("*.py")):
        files[f"{PLACE}{COLLECTORS}/{path.name}"] = (path.read_bytes(), 0o644)
    for path in sorted((REPOSITORY / "tests" / "costume").glob("*.py")):
        files[f"lib/tests/costume/{path.name}"] = (path.read_bytes(), 0o644)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, (data, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def find(settings: Settings, name: str) -> Node:
    """The lab's node of that name. Raises LabError when there is none."""
    for node in lab.recorded_nodes(settings):
        if node.name == name:
            return node
    machine = vm.load(settings, name)
    if machine is None:
        raise LabError(f"the lab has no node {name}")
    return machine.node


def run(settings: Settings, node: Node, command: str, data: bytes = b"", timeout: float = 120.0) -> str:
    """Run a shell command on the node, data on its standard input. Raises LabError when it fails."""
    argv = vm.ssh_argv(settings, node.name, command) if node.kind == "vm" else ssh.command(settings, node, command)
    try:
        done = subprocess.run(argv, input=data, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as err:
        raise LabError(f"on {node.name}, `{command[:60]}` took longer than {timeout:.0f} s") from err
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise LabError(f"on {node.name}, `{command[:60]}` failed with exit status {done.returncode}: {said}")
    return done.stdout.decode(errors="replace")


def reboot(settings: Settings, name: str, limit: float = 60.0) -> float:
    """Reboot the node from inside and wait until it takes logins again; returns the seconds it took.

    A container node boots its systemd again on the same kernel. Raises LabError at the limit.
    """
    node = find(settings, name)
    if node.kind == "vm":
        return vm.reboot(settings, name, limit=max(limit, vm.BOOT_LIMIT))
    look = "cat /proc/sys/kernel/random/boot_id"
    before = run(settings, node, look)
    begun = time.monotonic()
    run(settings, node, "systemd-run --quiet --on-active=0.2 --timer-property=AccuracySec=10ms systemctl reboot")
    while time.monotonic() - begun < limit:
        with contextlib.suppress(LabError):
            # Short, since a connection that the reboot cut does not end by itself.
            if run(settings, node, look, timeout=3.0) != before:
                return time.monotonic() - begun
        time.sleep(0.3)
    raise LabError(f"{name} did not come back within {limit:.0f} s after a reboot")


def number(node: Node) -> int:
    """What dressed nodes differ by: 1 for node1, from the node's address as a costume's address is made of its number."""
    return int(node.address.rpartition(".")[2]) - 10


def dress(
    settings: Settings, name: str, hardware: str, faults: Sequence[str] = (), *, sticky: Sequence[str] = (), peers: Sequence[str] = (),
) -> State:
    """Dress the node; one that wears a costume changes it. Returns the state that it starts with.

    sticky: faults that a reboot does not mend. Raises LabError for an unknown node, ValueError for unknown hardware or faults.
    """
    node = find(settings, name)
    first = first_state(
        name, hardware, faults, index=number(node), kind=node.kind, interface="eth0" if node.kind == "vm" else "host0",
        address=node.address, sticky=sticky, peers=peers)
    undress(settings, name)
    run(settings, node, f"mkdir -p {BASE} && tar -xzf - -C {BASE} --no-same-owner && {BASE}/wear dress", bundle(first))
    return first


def use_repository(settings: Settings, name: str) -> None:
    """Let a container node install from the lab's package repository, which is served on the bridge (`apt_repo.serve`)."""
    node = find(settings, name)
    if node.kind == "vm":
        apt_repo.use(settings, name)
        return
    key = apt_repo.build(settings).key.read_bytes()
    run(settings, node, "cat > /usr/share/keyrings/inferops-lab.gpg", key)
    line = apt_repo.source_list(f"{settings.gateway}:{vm.REPOSITORY_PORT}").strip()
    run(settings, node, f"echo '{line}' > /etc/apt/sources.list.d/inferops-lab.list && apt-get -q update")


def undress(settings: Settings, name: str) -> None:
    """Take the costume off, every trace of it; a node that wears none is left alone."""
    node = find(settings, name)
    run(settings, node, f"if [ -e {BASE}/notes.json ]; then {BASE}/wear undress; fi; rm -rf {BASE}")


def state(settings: Settings, name: str) -> dict[str, Any]:
    """State of the costume as it is on the node now, empty when it wears none."""
    text = run(settings, find(settings, name), f"cat {BASE}/state.json 2>/dev/null || echo '{{}}'")
    found: dict[str, Any] = json.loads(text)
    return found
