# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as a whole: up, down, status. Each may be called again at any point, after any crash."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import container, inventory, machine, mounts, network, processes, registry, rootfs, ssh, vm
from .errors import LabError
from .image import build
from .settings import IMAGE_NAME, IMAGE_TAG, Node, Settings

Say = Callable[[str], None]


# Seconds until a container node must take a login.
BOOT_LIMIT = 60.0


def _birth(pid: int) -> str:
    """When the process was started, in clock ticks since boot; empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _end_holder(lock: Path) -> None:
    """Kill the `up` that holds the lock: it may be the orphan of a test run that was killed."""
    try:
        pid, birth = lock.read_text().split()
    except (OSError, ValueError):
        return
    # A number that has since been given to another process has another birth.
    if birth and _birth(int(pid)) == birth:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@contextlib.contextmanager
def _lock(settings: Settings, seconds: float, interrupt: bool = False) -> Iterator[None]:
    """Only one `up` or `down` at a time. The kernel drops the lock of a killed process.

    interrupt: end an `up` that holds it, instead of waiting.
    """
    settings.cache.mkdir(parents=True, exist_ok=True)
    path = settings.cache / "lock"
    with path.open("a+") as handle:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as err:
                if time.monotonic() > deadline:
                    raise LabError("another `up` or `down` of the lab is still at work") from err
                if interrupt:
                    _end_holder(path)
                time.sleep(0.2)
        # `down` notes nobody: it is never interrupted.
        path.write_text("" if interrupt else f"{os.getpid()} {_birth(os.getpid())}")
        try:
            yield
        finally:
            path.write_text("")


def _record(settings: Settings) -> Path:
    return settings.state / "lab.json"


def recorded(settings: Settings) -> dict[str, Any]:
    """What `up` noted of the lab, empty when there is none."""
    try:
        found = json.loads(_record(settings).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def recorded_nodes(settings: Settings) -> list[Node]:
    return [Node(**entry) for entry in recorded(settings).get("nodes", [])]


def _note(settings: Settings, **values: Any) -> None:
    draft = _record(settings).with_suffix(".new")
    draft.write_text(json.dumps({**recorded(settings), **values}, indent=1) + "\n")
    draft.rename(_record(settings))


def up(
    settings: Settings,
    nodes: Sequence[Node],
    machines: Sequence[str],
    with_image: bool,
    say: Say,
) -> None:
    """Bring up the registry, container `nodes` and virtual `machines`; what runs already is kept.

    Raises CannotRunHere where there can be no lab, LabError when a part of it fails.
    """
    machine.require()
    with _lock(settings, 1800):
        begun = time.monotonic()
        for folder in ("", "ssh", "ssh/cp", "logs"):
            (settings.state / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        known = {node.name: node for node in recorded_nodes(settings)}
        everyone = list({**known, **{node.name: node for node in nodes}}.values())
        # Noted before anything is made, so that `down` knows of what a crash leaves half done.
        _note(settings, nodes=[asdict(node) for node in everyone])
        ssh.ensure_login_key(settings)
        settings.ssh_config.write_text(ssh.config_text(settings, everyone), encoding="utf-8")
        with ThreadPoolExecutor(max_workers=1) as pool:
            logs = settings.cache / "logs"
            image = pool.submit(build.ensure, settings, logs / "image.log") if with_image else None
            trees = {
                suite: rootfs.ensure(settings.cache, suite, logs / f"rootfs-{suite}.log")
                for suite in sorted({node.suite for node in nodes})
            }
            network.up(settings)
            # They take the longest to boot, so they boot while the rest is made.
            for name in machines:
                vm.create(settings, name)
                vm.start(settings, name)
            registry.start(settings)
            say(f"registry {settings.registry} is up")
            for node in nodes:
                container.start(settings, node, everyone, trees[node.suite])
            for node in nodes:
                took = ssh.wait(settings, node, BOOT_LIMIT)
                say(f"container {node.name} at {node.address} takes logins after {took:.1f} s")
            if image is not None:
                _publish(settings, image.result(), say)
            for name in machines:
                say(f"virtual machine {name} takes logins after {vm.wait(settings, name):.1f} s")
        write_inventory(settings)
        say(f"lab is up after {time.monotonic() - begun:.1f} s")


def write_inventory(settings: Settings) -> None:
    """The inventory of the nodes and machines that are recorded now; a machine that was made anew has another port."""
    digest = recorded(settings).get("image", {}).get("digest")
    settings.inventory.parent.mkdir(parents=True, exist_ok=True)
    settings.inventory.write_text(
        inventory.text(settings, recorded_nodes(settings), digest, machine_vars(settings)), encoding="utf-8"
    )


def machine_vars(settings: Settings) -> dict[str, dict[str, Any]]:
    """How Ansible reaches each virtual machine."""
    found = {}
    for name in vm.status(settings):
        if (record := vm.load(settings, name)) is not None:
            found[name] = vm.inventory_vars(settings, record)
    return found


def _publish(settings: Settings, made: build.Image, say: Say) -> None:
    """Push the image unless the registry has it, and note it."""
    client = registry.client(settings)
    digest = client.digest(IMAGE_NAME, IMAGE_TAG)
    if digest != made.digest:
        digest = build.push(made, client, IMAGE_NAME, IMAGE_TAG)
    _note(settings, image={**asdict(made), "digest": digest})
    say(
        f"image {settings.registry}/{IMAGE_NAME}:{IMAGE_TAG} is {digest}, "
        f"{made.size / 1e9:.2f} GB, vLLM {made.vllm_version}"
    )


def down(settings: Settings, say: Say) -> None:
    """End and remove all that any `up` made, however far it came. The cache stays."""
    machine.complete_path()
    with _lock(settings, 60, interrupt=True):
        begun = time.monotonic()
        nodes = recorded_nodes(settings)
        _end_ssh_masters(settings)
        # Builders and the registry too: whatever stands in a group of the lab.
        for name in sorted(processes.names()):
            processes.end(name)
        for node in nodes:
            container.remove(settings, node)
        vm.destroy_all(settings)
        network.down(settings)
        drafts = [path for path in (settings.cache / "trees").glob(".*") if path.is_dir()]
        for folder in (settings.scratch, *drafts, settings.state):
            if folder.exists():
                mounts.unmount_below(folder)
                shutil.rmtree(folder)
        settings.inventory.unlink(missing_ok=True)
        say(f"lab is down after {time.monotonic() - begun:.1f} s")


def _end_ssh_masters(settings: Settings) -> None:
    """Close the shared SSH connections that Ansible keeps open to the nodes."""
    for socket in (settings.state / "ssh" / "cp").glob("*"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["ssh", "-F", "/dev/null", "-o", f"ControlPath={socket}", "-O", "exit", "lab"],
                capture_output=True,
                timeout=5,
                check=False,
            )


def status(settings: Settings) -> dict[str, Any]:
    """What is there of the lab."""
    found = recorded(settings)
    image = found.get("image") or {}
    return {
        "up": bool(found),
        "bridge": settings.bridge in network.links(),
        "registry": settings.registry if registry.running() else None,
        "image": {key: image[key] for key in ("digest", "size", "build_seconds") if key in image},
        "nodes": [
            {**asdict(node), "running": container.running(node)}
            for node in recorded_nodes(settings)
        ],
        "machines": vm.status(settings),
    }
