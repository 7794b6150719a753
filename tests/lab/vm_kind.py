# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual machines as a kind of node of the lab: start, remove, running."""

from __future__ import annotations

from pathlib import Path

from . import processes, vm
from .settings import Node, Settings


def node(settings: Settings, number: int) -> Node:
    """Virtual machine 1, 2, …: addresses .101, .102, … Raises ValueError outside 1 to 9."""
    name = f"vm{number}"
    return Node(name, vm.segment_address(settings, vm.machine_number(name)), "vm", settings.suite)


def start(settings: Settings, node: Node, nodes: list[Node], tree: Path) -> None:
    """Create the machine on the lab bridge unless it exists, and switch it on. tree is not used."""
    peers = {other.name: other.address for other in nodes}
    vm.create(settings, node.name, segment="bridge", peers=peers)
    vm.start(settings, node.name)


def remove(settings: Settings, node: Node) -> None:
    vm.destroy(settings, node.name)


def running(node: Node) -> bool:
    return bool(processes.members(f"vm-{node.name}"))
