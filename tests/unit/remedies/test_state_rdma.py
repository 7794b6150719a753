# SPDX-License-Identifier: GPL-3.0-or-later
"""What remedies know of RDMA: why nvidia_peermem does not load, and which ports can be brought up from here."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node
from ansible_collections.inferops.vllm.plugins.module_utils.node.gpudirect import why_not
from ansible_collections.inferops.vllm.plugins.module_utils.plan.resolve import resolve
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.state import closed_interfaces, state_of

CONTEXT = resolve({"vllm_hardware": "b300", "vllm_interconnect": "rdma"}, [])
CRC = {"kind": "crc_mismatch", "text": "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client"}
GONE = {"kind": "unknown_symbol", "text": "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"}


def peermem(depends: str, offered: bool | None, *log: dict[str, str], **more: Any) -> str:
    facts = {"present": True, "loaded": False, "legacy_loaded": False, "ib_symbol": offered, "log": list(log), **more}
    facts["why_not"] = why_not(facts, {"depends": depends})
    return state_of(Node("a", {"gpudirect": {"peermem": facts}}, {}), CONTEXT).peermem


@pytest.mark.parametrize(
    ("depends", "offered", "log", "word"),
    [
        ("nvidia", False, (), "einval"),
        ("nvidia", None, (), "einval"),
        ("nvidia", True, (), "unbuilt"),
        ("nvidia,ib_core", False, (), "symbol"),
        ("nvidia,ib_core", None, (GONE,), "symbol"),
        ("nvidia,ib_core", True, (GONE,), "loadable"),
        ("nvidia,ib_core", True, (CRC, GONE), "disagrees"),
        # The kernel's own modules run by now: built anew against these it would be without peer memory.
        ("nvidia,ib_core", False, (CRC,), "symbol"),
        ("nvidia,ib_core", True, (), "loadable"),
    ],
)
def test_why_peermem_does_not_load(depends: str, offered: bool | None, log: tuple[dict[str, str], ...], word: str) -> None:
    assert peermem(depends, offered, *log) == word


def hca(name: str, state: str, phys: str, **more: Any) -> dict[str, Any]:
    port = {"port": 1, "state": state, "phys": phys, "link_layer": "Ethernet", "netdev": "e" + name, **more.pop("port", {})}
    return {"name": name, "driver": "mlx5_core", "type": "MT4129", "ports": [port], **more}


def state(*hcas: dict[str, Any], modules: dict[str, Any] | None = None) -> Any:
    return state_of(Node("a", {"rdma": {"hcas": list(hcas)}, "host": {"modules": modules or {}}}, {}), CONTEXT)


@pytest.mark.parametrize(
    ("hcas", "word"),
    [
        ((hca("mlx5_0", "ACTIVE", "LinkUp"),), "ok"),
        ((hca("mlx5_0", "DOWN", "Disabled", port={"admin_up": False}),), "admin_down"),
        # An Ethernet port without a cable says Disabled as well; its interface is up.
        ((hca("mlx5_0", "DOWN", "Disabled", port={"admin_up": True}),), "down"),
        ((hca("mlx5_0", "DOWN", "Disabled"),), "admin_down"),
        ((hca("mlx5_0", "INIT", "LinkUp"),), "init"),
        # A dead cable beside a port that was taken down: what can be mended comes first.
        ((hca("mlx5_0", "DOWN", "Polling", port={"admin_up": True}), hca("mlx5_1", "DOWN", "Disabled", port={"admin_up": False})), "admin_down"),
        # A card of another kind, for storage, is nobody's business.
        ((hca("mlx5_0", "ACTIVE", "LinkUp"), hca("mlx5_1", "ACTIVE", "LinkUp"), {**hca("mlx5_9", "DOWN", "Disabled"), "type": "MT4115"}), "ok"),
    ],
)
def test_the_worst_of_the_compute_ports(hcas: tuple[dict[str, Any], ...], word: str) -> None:
    assert state(*hcas).ports == word


def test_without_devices_the_modules_decide() -> None:
    assert state(modules={"ext4": {}}).ports == "no_modules"
    assert state(modules={"mlx5_core": {}, "mlx5_ib": {}}).ports == "unknown"


def test_only_a_compute_hca_that_carries_ssh_forbids() -> None:
    compute = hca("mlx5_0", "ACTIVE", "LinkUp")
    assert state(compute, {**hca("mlx5_9", "ACTIVE", "LinkUp", carries=["ssh"]), "type": "MT4115"}).ssh == ()
    assert state(compute, hca("mlx5_1", "ACTIVE", "LinkUp", carries=["ssh"])).ssh == ("mlx5_1",)


def test_only_interfaces_of_planned_hcas_that_were_taken_down_are_brought_up() -> None:
    closed: dict[str, Any] = {"admin_up": False}
    hcas = (
        hca("mlx5_0", "ACTIVE", "LinkUp"),
        hca("mlx5_1", "DOWN", "Disabled", port=closed),
        hca("mlx5_2", "DOWN", "Disabled", port={"admin_up": True}),
        hca("mlx5_3", "DOWN", "Disabled", port=closed, type="MT4127"),
        hca("mlx5_4", "DOWN", "Disabled", port=closed, virtual=True),
        hca("mlx5_5", "DOWN", "Disabled", port=closed, carries=["ssh"]),
        hca("mlx5_6", "DOWN", "Disabled", port={**closed, "netdev": None}),
    )
    node = Node("a", {"rdma": {"hcas": list(hcas)}}, {})
    # mlx5_3 is another card than its siblings, and no part of the plan.
    assert closed_interfaces(node, CONTEXT) == ["emlx5_1"]
    planes = hca("mlx5_0", "ACTIVE", "LinkUp")
    planes["ports"].append({"port": 2, "state": "DOWN", "phys": "Disabled", "netdev": "e2", "admin_up": False})
    assert closed_interfaces(Node("a", {"rdma": {"hcas": [planes]}}, {}), CONTEXT) == [], "the other plane carries its data"
    assert closed_interfaces(Node("a", {}, {}), CONTEXT) == []
