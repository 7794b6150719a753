# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks host.*."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node

from .healthy import MISSING, b300_context, gb300_context, healthy_b300, healthy_gb300, put
from .run import one, over, status

PAIR = b300_context(("node1", "node2"))
IDS = ("host.kernel", "host.limits", "host.shm", "host.time", "host.names", "host.pending_reboot", "host.swap", "host.stuck")
PEERS = {"node1": ["192.0.2.11"], "node2": ["192.0.2.12"]}
GIB = 1 << 30


def changed(**values: Any) -> Dict[str, Any]:
    facts = put(healthy_b300(), "host.names", dict(PEERS))
    for path, value in values.items():
        put(facts, "host." + path.replace("__", "."), value)
    return facts


@pytest.mark.parametrize("id", IDS)
def test_a_healthy_node_passes(id: str) -> None:
    assert one(id, changed(), PAIR)["status"] == "pass"


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("section", [MISSING, None, {}, [], "x", {"unknown": {"all": "stuck"}}])
def test_without_facts_nothing_is_known(id: str, section: Any) -> None:
    assert status(id, put(healthy_b300(), "host", section), PAIR) == "unknown"


@pytest.mark.parametrize("id, part", [
    ("host.limits", "limits"), ("host.shm", "shm"), ("host.time", "time"), ("host.names", "names"),
    ("host.pending_reboot", "pending_reboot"),
    ("host.swap", "memory"), ("host.stuck", "stuck"), ("host.kernel", "kernel"),
])
def test_a_part_that_could_not_be_read_says_why(id: str, part: str) -> None:
    found = one(id, changed(**{part: None, "unknown": {part: "it did not answer"}}), PAIR)
    assert (found["status"], found["observed"]) == ("unknown", "it did not answer")


# -- kernel --------------------------------------------------------------------------------------
def test_another_architecture_blocks() -> None:
    found = one("host.kernel", changed(arch="aarch64"), PAIR)
    assert (found["status"], found["severity"], found["required"]) == ("fail", "block", "x86_64, 5.12 or newer")
    assert one("host.kernel", changed(), b300_context())["required"] == "x86_64"
    assert status("host.kernel", healthy_gb300(), gb300_context()) == "pass"
    assert status("host.kernel", changed(arch="aarch64"), PAIR._replace(hardware="")) == "pass"
    assert status("host.kernel", changed(arch=None), PAIR) == "unknown"


@pytest.mark.parametrize("kernel, expected", [("5.12.0", "pass"), ("5.4.0-216-generic", "warn"), ("6.8", "pass"), ("next", "unknown")])
def test_kernels_that_cannot_lend_gpu_memory_warn_where_rdma_is_planned(kernel: str, expected: str) -> None:
    found = one("host.kernel", changed(kernel=kernel), PAIR)
    assert found["status"] == expected and (expected == "pass" or found["severity"] == "warn")
    assert status("host.kernel", changed(kernel=kernel), b300_context()) == "pass"


def test_kernel_options_for_dmabuf() -> None:
    found = one("host.kernel", changed(kernel_config__PCI_P2PDMA="n"), PAIR)
    assert found["status"] == "warn" and "CONFIG_PCI_P2PDMA" in found["observed"]
    assert status("host.kernel", changed(kernel_config=None), PAIR) == "pass"


# -- limits --------------------------------------------------------------------------------------
@pytest.mark.parametrize("docker, services, expected, text", [
    ("unlimited", 8 << 20, "pass", "unlimited (docker)"),
    (8 << 20, "unlimited", "fail", "8 MiB (docker)"),
    (None, "unlimited", "pass", "unlimited (services)"),
    (None, 65536, "fail", "64 KiB (services)"),
    (None, 64 * GIB, "fail", "64 GiB (services)"),
    (None, None, "unknown", "the limit of services is not known"),
    (None, "plenty", "fail", "plenty (services)"),
])
def test_locked_memory(docker: Any, services: Any, expected: str, text: str) -> None:
    found = one("host.limits", changed(limits={"docker_memlock": docker, "memlock": services}), PAIR)
    assert (found["status"], found["severity"], found["observed"]) == (expected, "warn", text)


def test_locked_memory_does_not_matter_without_rdma() -> None:
    assert status("host.limits", changed(limits={"memlock": 65536}), b300_context()) == "skip"


# -- shared memory, time, reboot, swap, stuck --------------------------------------------------------
@pytest.mark.parametrize("free, expected", [(16 * GIB, "pass"), (16 * GIB - 1, "fail"), (0, "fail"), (None, "unknown")])
def test_shared_memory(free: Optional[int], expected: str) -> None:
    assert status("host.shm", changed(shm={"total_bytes": 1024 * GIB, "free_bytes": free})) == expected


def test_a_clock_that_runs_free() -> None:
    found = one("host.time", changed(time={"synchronized": False, "source": "chrony"}))
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "warn", "not synchronised (chrony)")
    assert status("host.time", changed(time={"synchronized": None})) == "unknown"


def test_a_pending_reboot() -> None:
    found = one("host.pending_reboot", changed(pending_reboot={"required": True, "reasons": ["kernel 6.8.0-90 is installed"]}))
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "warn", "pending: kernel 6.8.0-90 is installed")
    assert one("host.pending_reboot", changed(pending_reboot={"required": True}))["observed"] == "pending: no reason given"


@pytest.mark.parametrize("total, free, expected", [
    (0, 0, "pass"), (8 * GIB, 8 * GIB, "pass"), (8 * GIB, 6 * GIB, "warn"), (8 * GIB, None, "unknown"),
])
def test_swap(total: int, free: Optional[int], expected: str) -> None:
    assert status("host.swap", changed(memory={"swap_total_bytes": total, "swap_free_bytes": free})) == expected


def test_a_process_stuck_in_a_driver() -> None:
    found = one("host.stuck", changed(stuck=[{"pid": 4242, "comm": "nvidia-smi", "state": "D"}]))
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "block", "in D state: nvidia-smi (pid 4242)")


# -- names ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("addresses, text", [([], "node2 → nothing"), (["127.0.1.1"], "node2 → 127.0.1.1"), (["::1"], "node2 → ::1")])
def test_a_peer_that_resolves_to_nothing_or_to_itself(addresses: Any, text: str) -> None:
    found = one("host.names", changed(names={"node1": ["192.0.2.11"], "node2": addresses}), PAIR)
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "block", text)


def test_a_nodes_own_loopback_name_warns() -> None:
    assert status("host.names", changed(names={"node1": ["127.0.1.1"], "node2": ["192.0.2.12"]}), PAIR) == "warn"


def test_names_that_were_not_looked_up() -> None:
    found = one("host.names", changed(names={}), PAIR)
    assert (found["status"], found["severity"]) == ("unknown", "warn")


def test_names_do_not_matter_to_single_nodes() -> None:
    assert status("host.names", changed(names={"node2": []}), b300_context()) == "skip"
    assert status("host.names", changed(names={"node2": []}), PAIR._replace(nodes=("node1",))) == "skip"


def names(facts: Dict[str, Dict[str, Any]], ips: Mapping[str, Any]) -> Dict[str, str]:
    nodes = [Node(name, value, {"host_ip": ips.get(name)}) for name, value in facts.items()]
    return {f["node"]: f["status"] for f in judge.judge(nodes, PAIR, only=["host"]) if f["id"] == "host.names"}


def test_declared_addresses_stand_in_for_names() -> None:
    bad = changed(names={"node1": ["192.0.2.11"], "node2": []})
    other = put(healthy_b300("node2"), "host.names", dict(PEERS))
    assert names({"node1": bad, "node2": other}, {}) == {"node1": "fail", "node2": "pass"}
    ips = {"node1": "192.0.2.11", "node2": "192.0.2.12"}
    assert names({"node1": bad, "node2": other}, ips) == {"node1": "pass", "node2": "pass"}
    assert names({"node1": changed(names={}), "node2": other}, ips) == {"node1": "pass", "node2": "pass"}


@pytest.mark.parametrize("address, expected", [
    ("127.0.0.1", "fail"), ("198.51.100.77", "fail"), ("192.0.2.11", "pass"), ("node1.example", "pass"),
])
def test_a_declared_address_must_be_the_nodes_own(address: str, expected: str) -> None:
    found = names({"node1": changed(), "node2": put(healthy_b300("node2"), "host.names", dict(PEERS))}, {"node1": address})
    assert found["node1"] == expected


def test_a_declared_loopback_address_is_called_that() -> None:
    node = Node("node1", changed(addresses=None), {"host_ip": "127.0.0.1"})
    found = next(f for f in judge.judge([node], PAIR, only=["host"]) if f["id"] == "host.names")
    assert (found["status"], found["observed"]) == ("fail", "vllm_host_ip 127.0.0.1")


def test_a_declared_address_of_a_node_whose_interfaces_were_not_read() -> None:
    assert names({"node1": changed(addresses=None)}, {"node1": "198.51.100.77"})["node1"] == "pass"


def test_names_are_judged_for_every_node_of_the_cluster() -> None:
    found = over("host.names", {"node1": changed(), "node2": put(healthy_b300("node2"), "host.names", {"node1": []})}, PAIR)
    assert [found[name]["status"] for name in ("node1", "node2")] == ["pass", "fail"]
