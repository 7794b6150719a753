# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as a whole: up, down, status. Each may be called again at any point, after any crash."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from . import container, inventory, machine, mounts, network, processes, registry, rootfs, ssh
from .errors import LabError
from .image import build
from .settings import IMAGE_NAME, IMAGE_TAG, Node, Settings

Say = Callable[[str], None]


class Kind(Protocol):
    """What each kind of node offers; modules do."""

    def start(self, settings: Settings, node: Node, nodes: list[Node], tree: Path) -> None: ...

    def remove(self, settings: Settings, node: Node) -> None: ...

    def running(self, node: Node) -> bool: ...


# A kind of node is one entry here and one module.
KINDS: dict[str, Any] = {"container": container}
# Seconds until a node of the kind must take a login.
BOOT_LIMIT = {"container": 60.0, "vm": 240.0}


@contextlib.contextmanager
def _lock(settings: Settings, seconds: float) -> Iterator[None]:
    """Only one `up` or `down` at a time. The kernel drops the lock of a killed process."""
    settings.cache.mkdir(parents=True, exist_ok=True)
    with (settings.cache / "lock").open("w") as handle:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as err:
                if time.monotonic() > deadline:
                    raise LabError("another `up` or `down` of the lab is still at work") from err
                time.sleep(0.2)
        yield


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


def up(settings: Settings, nodes: Sequence[Node], with_image: bool, say: Say) -> None:
    """Bring up the registry and `nodes`; nodes that run already are kept.

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
        _note(
            settings,
            cache=str(settings.cache),
            nodes=[asdict(node) for node in everyone],
        )
        ssh.ensure_login_key(settings)
        settings.ssh_config.write_text(ssh.config_text(settings, everyone), encoding="utf-8")
        with ThreadPoolExecutor(max_workers=2) as pool:
            logs = settings.cache / "logs"
            image = pool.submit(build.ensure, settings, logs / "image.log") if with_image else None
            trees = {
                suite: rootfs.ensure(settings.cache, suite, logs / f"rootfs-{suite}.log")
                for suite in sorted({node.suite for node in nodes if node.kind == "container"})
            }
            network.up(settings)
            registry.start(settings)
            say(f"registry {settings.registry} is up")
            _start_nodes(settings, nodes, everyone, trees, say)
            digest = None
            if image is not None:
                made = image.result()
                client = registry.client(settings)
                digest = client.digest(IMAGE_NAME, IMAGE_TAG)
                if digest != made.digest:
                    digest = build.push(made, client, IMAGE_NAME, IMAGE_TAG)
                say(
                    f"image {settings.registry}/{IMAGE_NAME}:{IMAGE_TAG} is {digest}, "
                    f"{made.size / 1e9:.2f} GB, vLLM {made.vllm_version}"
                )
                _note(settings, image=asdict(made))
        settings.inventory.parent.mkdir(parents=True, exist_ok=True)
        settings.inventory.write_text(inventory.text(settings, everyone, digest), encoding="utf-8")
        say(f"lab is up after {time.monotonic() - begun:.1f} s")


def _start_nodes(
    settings: Settings,
    nodes: Sequence[Node],
    everyone: list[Node],
    trees: dict[str, Path],
    say: Say,
) -> None:
    for node in nodes:
        KINDS[node.kind].start(settings, node, everyone, trees.get(node.suite, Path()))
    for node in nodes:
        took = ssh.wait(settings, node, BOOT_LIMIT[node.kind])
        say(f"{node.kind} node {node.name} at {node.address} takes logins after {took:.1f} s")


def down(settings: Settings, say: Say) -> None:
    """End and remove all that any `up` made, however far it came. The cache stays."""
    machine.complete_path()
    with _lock(settings, 60):
        begun = time.monotonic()
        nodes = recorded_nodes(settings)
        _end_ssh_masters(settings)
        # Builders and the registry too: whatever stands in a group of the lab.
        for name in sorted(processes.names()):
            processes.end(name)
        for node in nodes:
            KINDS[node.kind].remove(settings, node)
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
            {**asdict(node), "running": KINDS[node.kind].running(node)}
            for node in recorded_nodes(settings)
        ],
    }
