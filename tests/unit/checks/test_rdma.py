# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks rdma.*."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node
from ansible_collections.inferops.vllm.plugins.module_utils.checks.rdma import compute_hcas

from .healthy import MISSING, b300_context, gb300_context, healthy_b300, healthy_gb300, put, without
from .run import one, over, status

PAIR = b300_context(("node1", "node2"))
NODE_IDS = ("rdma.ports", "rdma.gid", "rdma.errors")
CLUSTER_IDS = ("rdma.rate", "rdma.mtu")


def changed(path: str, value: Any, name: str = "node1") -> Dict[str, Any]:
    return put(healthy_b300(name), path, value)


def pair(first: Dict[str, Any]) -> Dict[str, Dict[str, Any]]:
    return {"node1": first, "node2": healthy_b300("node2")}


def names(facts: Dict[str, Any]) -> List[str]:
    return [str(hca["name"]) for hca in compute_hcas(Node("node1", facts), PAIR).hcas]


# -- all of them -------------------------------------------------------------------------------
@pytest.mark.parametrize("id", NODE_IDS)
def test_a_healthy_node_passes(id: str) -> None:
    assert one(id, healthy_b300(), PAIR)["status"] == "pass"


@pytest.mark.parametrize("id", CLUSTER_IDS)
def test_healthy_nodes_pass(id: str) -> None:
    assert {f["status"] for f in over(id, pair(healthy_b300()), PAIR).values()} == {"pass"}


@pytest.mark.parametrize("id", NODE_IDS + CLUSTER_IDS)
@pytest.mark.parametrize("section", [
    MISSING, None, {}, [], "x", {"unknown": {"hcas": "sysfs hung"}}, {"hcas": [], "unknown": {"hcas": "sysfs hung"}},
])
def test_without_facts_nothing_is_known(id: str, section: Any) -> None:
    found = over(id, pair(changed("rdma", section)), PAIR)
    assert found["node1"]["status"] == "unknown"
    assert found["node2"]["status"] == "pass"
    if isinstance(section, dict) and section:
        assert found["node1"]["observed"] == "sysfs hung"


@pytest.mark.parametrize("id", NODE_IDS + CLUSTER_IDS)
def test_plans_without_rdma_skip(id: str) -> None:
    found = one(id, changed("rdma", {"hcas": []}), b300_context())
    assert (found["status"], found["observed"]) == ("skip", "the plan keeps each engine on one node")
    found = one(id, healthy_gb300(), gb300_context())
    assert (found["status"], found["observed"]) == ("skip", "the plan joins its nodes by NVLink, not by RDMA")


# -- which HCAs count ----------------------------------------------------------------------------
def test_management_and_switch_devices_are_no_compute_hcas() -> None:
    assert names(healthy_b300()) == ["mlx5_%d" % i for i in range(8)]
    others = compute_hcas(Node("node1", healthy_b300()), PAIR).others
    assert others["mlx5_8"] == "carries the default route and SSH"
    assert others["mlx5_9"] == "manages NVLink switches"


def test_without_topology_the_commonest_kind_of_card_counts() -> None:
    facts = without(healthy_b300(), "gpu.topology")
    facts["rdma"]["hcas"][8].pop("carries")
    assert names(facts) == ["mlx5_%d" % i for i in range(8)]


def test_storage_cards_of_the_same_chip_are_told_by_their_board() -> None:
    facts = without(healthy_b300(), "gpu.topology")
    for i in range(2):
        extra = dict(facts["rdma"]["hcas"][0], name="mlx5_%d" % (20 + i), board="NVD0000000099", ports=[
            {"port": 1, "state": "DOWN", "phys": "Polling", "link_layer": "Ethernet"}])
        facts["rdma"]["hcas"].append(extra)
    assert names(facts) == ["mlx5_%d" % i for i in range(8)]
    assert one("rdma.ports", facts, PAIR)["status"] == "pass"


def test_virtual_devices_never_count() -> None:
    facts = healthy_b300()
    port = {"port": 1, "state": "ACTIVE", "phys": "LinkUp"}
    facts["rdma"]["hcas"] = [{"name": "rxe0", "driver": "rdma_rxe", "virtual": True, "ports": [port]}]
    found = one("rdma.ports", facts, PAIR)
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert "rxe0 virtual" in found["observed"]


def test_the_only_hca_counts_though_it_carries_ssh() -> None:
    facts = without(healthy_b300(), "gpu.topology")
    facts["rdma"]["hcas"] = [facts["rdma"]["hcas"][8]]
    assert names(facts) == ["mlx5_8"]


def test_a_compute_hca_that_carries_ssh_is_still_one() -> None:
    facts = changed("rdma.hcas.3.carries", ["ssh"])
    assert "mlx5_3" in names(facts) and len(names(facts)) == 8


# -- ports ---------------------------------------------------------------------------------------
def test_a_port_that_is_down() -> None:
    facts = changed("rdma.hcas.5.ports.0", {"port": 1, "state": "DOWN", "phys": "Polling", "link_layer": "Ethernet", "netdev": "rdma5"})
    found = one("rdma.ports", facts, PAIR)
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert found["observed"] == "7 of 8 compute HCAs up; mlx5_5/1 DOWN (Polling)"
    assert "inferops.vllm.remediate" in found["fix"]


def test_active_but_without_link_is_down() -> None:
    assert status("rdma.ports", changed("rdma.hcas.0.ports.0.phys", "Disabled"), PAIR) == "fail"


def test_a_port_that_waits_for_a_subnet_manager() -> None:
    found = one("rdma.ports", changed("rdma.hcas.0.ports.0.state", "INIT"), PAIR)
    assert found["status"] == "fail" and "subnet manager" in found["why"]


def test_a_management_port_that_is_down_is_no_fault() -> None:
    facts = changed("rdma.hcas.8.ports.0.state", "DOWN")
    put(facts, "rdma.hcas.10.ports.0.state", "DOWN")
    assert status("rdma.ports", facts, PAIR) == "pass"


def planes(alive: Any) -> List[Dict[str, Any]]:
    up, down = {"state": "ACTIVE", "phys": "LinkUp"}, {"state": "DOWN", "phys": "Disabled"}
    return [{"port": number, "link_layer": "Ethernet", **(up if number in alive else down)} for number in range(1, 13)]


def test_dead_planes_of_a_card_are_no_fault_but_a_lost_one_is() -> None:
    facts = healthy_b300()
    for hca in facts["rdma"]["hcas"][:8]:
        hca["ports"] = planes((3, 6, 9, 12))
    assert status("rdma.ports", facts, PAIR) == "pass"
    facts["rdma"]["hcas"][4]["ports"] = planes((3, 6, 9))
    found = one("rdma.ports", facts, PAIR)
    assert found["observed"] == "7 of 8 compute HCAs up; mlx5_4/12 DOWN (Disabled)"


def test_no_hca_at_all() -> None:
    found = one("rdma.ports", changed("rdma.hcas", []), PAIR)
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "block", "no compute HCA")


def test_fewer_hcas_than_usual() -> None:
    facts = healthy_b300()
    del facts["rdma"]["hcas"][7]
    found = one("rdma.ports", facts, PAIR)
    assert (found["status"], found["observed"], found["required"]) == ("warn", "7 compute HCAs, all up", "8, as b300 usually has")


# -- rate ----------------------------------------------------------------------------------------
def test_one_slow_port() -> None:
    found = over("rdma.rate", pair(changed("rdma.hcas.2.ports.0.rate_gbps", 100.0)), PAIR)
    assert found["node1"]["status"] == "fail" and found["node1"]["observed"] == "mlx5_2/1 at 100 Gb/s"
    assert found["node2"]["status"] == "pass"


def test_a_whole_node_that_is_slow_is_seen_beside_its_peers() -> None:
    slow = healthy_b300()
    for hca in slow["rdma"]["hcas"][:8]:
        hca["ports"][0]["rate_gbps"] = 200.0
    facts = {"node1": slow, "node2": healthy_b300("node2"), "node3": healthy_b300("node3")}
    found = over("rdma.rate", facts, PAIR)
    assert [found[name]["status"] for name in facts] == ["fail", "pass", "pass"]
    assert found["node1"]["observed"].endswith("and 5 more")


def test_a_tie_of_rates_is_said_to_be_one() -> None:
    slow = healthy_b300()
    for hca in slow["rdma"]["hcas"][:8]:
        hca["ports"][0]["rate_gbps"] = 200.0
    assert "a tie of" in over("rdma.rate", pair(slow), PAIR)["node1"]["required"]


def test_a_rate_that_was_not_read() -> None:
    facts = without(healthy_b300(), "rdma.hcas.2.ports.0.rate_gbps")
    assert over("rdma.rate", pair(facts), PAIR)["node1"]["status"] == "unknown"


def test_lost_pcie_lanes() -> None:
    found = over("rdma.rate", pair(changed("rdma.hcas.1.pcie.width", 8)), PAIR)["node1"]
    assert found["observed"] == "mlx5_1 PCIe x8 of x16"


def test_rate_without_an_active_port_skips() -> None:
    facts = healthy_b300()
    for hca in facts["rdma"]["hcas"][:8]:
        hca["ports"][0]["state"] = "DOWN"
    for id in ("rdma.rate", "rdma.mtu", "rdma.gid"):
        assert over(id, pair(facts), PAIR)["node1"]["status"] == "skip"
    assert over("rdma.ports", pair(facts), PAIR)["node1"]["status"] == "fail"


# -- GID -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("gids", [
    MISSING, [], "x",
    [{"i": 1, "gid": "fe80::a", "type": "RoCE v2"}],
    [{"i": 2, "gid": "::ffff:10.1.0.1", "type": "IB/RoCE v1", "ipv4": "10.1.0.1"}],
    [{"i": 3, "gid": "::ffff:0.0.0.0", "type": "RoCE v2", "ipv4": "0.0.0.0"}],
])
def test_a_port_without_a_usable_gid(gids: Any) -> None:
    found = one("rdma.gid", changed("rdma.hcas.6.ports.0.gids", gids), PAIR)
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "block", "none on 1 of 8: mlx5_6")


def test_gids_at_different_indexes() -> None:
    facts = changed("rdma.hcas.0.ports.0.gids", [{"i": 5, "gid": "::ffff:10.1.0.1", "type": "RoCE v2", "ipv4": "10.1.0.1"}])
    found = one("rdma.gid", facts, PAIR)
    assert found["status"] == "warn" and "1 on" not in found["required"]
    assert found["observed"] == "different indexes: 3 on 7 HCAs, 5 on 1 HCAs"


def test_infiniband_ports_need_no_roce_gid() -> None:
    facts = healthy_b300()
    for hca in facts["rdma"]["hcas"][:8]:
        hca["ports"][0].update(link_layer="InfiniBand", gids=[])
    found = one("rdma.gid", facts, PAIR)
    assert found["status"] == "skip" and "InfiniBand" in found["observed"]


def test_a_link_layer_that_was_not_read_is_not_infiniband() -> None:
    facts = healthy_b300()
    for hca in facts["rdma"]["hcas"][:8]:
        del hca["ports"][0]["link_layer"]
    assert status("rdma.gid", facts, PAIR) == "unknown"


# -- MTU -----------------------------------------------------------------------------------------
def test_another_mtu_than_the_others() -> None:
    found = over("rdma.mtu", pair(changed("rdma.hcas.2.ports.0.mtu", 1500)), PAIR)["node1"]
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "warn", "mlx5_2/1: RDMA 4096, interface 1500")
    assert found["required"] == "RDMA 4096, interface 9000"


def test_a_small_mtu_everywhere() -> None:
    facts = pair(healthy_b300())
    for node in facts.values():
        for hca in node["rdma"]["hcas"][:8]:
            hca["ports"][0].update(mtu=1500, active_mtu=1024)
    assert {f["status"] for f in over("rdma.mtu", facts, PAIR).values()} == {"warn"}


def test_a_node_without_ibv_devinfo_is_compared_by_its_interfaces() -> None:
    facts = healthy_b300()
    for hca in facts["rdma"]["hcas"][:8]:
        del hca["ports"][0]["active_mtu"]
    found = over("rdma.mtu", pair(facts), PAIR)["node1"]
    assert (found["status"], found["observed"]) == ("pass", "interface 9000 on 8 ports")
    for hca in facts["rdma"]["hcas"][:8]:
        del hca["ports"][0]["mtu"]
    assert over("rdma.mtu", pair(facts), PAIR)["node1"]["status"] == "unknown"


# -- errors --------------------------------------------------------------------------------------
@pytest.mark.parametrize("counters, expected", [
    ({"local_link_integrity_errors": 1}, "fail"),
    ({"link_downed": 3}, "pass"),
    ({"link_downed": 6}, "fail"),
    ({"symbol_error": 100}, "pass"),
    ({"symbol_error": 100000}, "fail"),
    ({"out_of_sequence": 7}, "pass"),
    ("x", "pass"),
])
def test_error_counters(counters: Any, expected: str) -> None:
    found = one("rdma.errors", changed("rdma.hcas.0.ports.0.counters", counters), PAIR)
    assert (found["status"], found["severity"]) == (expected, "warn")
    if expected == "fail":
        assert found["observed"].startswith("mlx5_0/1 ")


def test_old_counters_are_weighed_by_uptime() -> None:
    facts = changed("rdma.hcas.0.ports.0.counters", {"link_downed": 6})
    assert status("rdma.errors", put(facts, "host.booted_at", 1795986400 - 100 * 86400), PAIR) == "pass"


def test_counters_of_the_management_hca_do_not_matter() -> None:
    assert status("rdma.errors", changed("rdma.hcas.8.ports.0.counters", {"local_link_integrity_errors": 9}), PAIR) == "pass"


def test_a_failing_device_in_the_kernel_log_blocks() -> None:
    found = one("rdma.errors", changed("rdma.log", [{"kind": "health_compromised", "text": "x", "count": 2}]), PAIR)
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert found["observed"] == "kernel log: device health compromised (2)"


def test_a_limited_device_warns() -> None:
    assert status("rdma.errors", changed("rdma.log", [{"kind": "module_temperature", "count": 1}]), PAIR) == "warn"


def test_a_kernel_log_that_could_not_be_read() -> None:
    found = one("rdma.errors", changed("rdma.unknown.kernel_log", "only root may"), PAIR)
    assert found["status"] == "unknown" and "only root may" in found["observed"]


# -- SSH -----------------------------------------------------------------------------------------
def test_management_over_an_hca_of_its_own() -> None:
    found = one("rdma.ssh_path", healthy_b300(), PAIR)
    assert found["status"] == "pass" and found["observed"].startswith("mlx5_8 carries the default route and SSH")


def test_management_over_a_compute_hca() -> None:
    facts = changed("rdma.hcas.0.carries", ["ssh"])
    found = one("rdma.ssh_path", facts, PAIR)
    assert (found["status"], found["severity"]) == ("warn", "warn")
    assert "mlx5_0 carries SSH" in found["observed"]
    assert status("rdma.ssh_path", facts, b300_context()) == "pass"


def test_management_over_no_hca() -> None:
    facts = healthy_b300()
    del facts["rdma"]["hcas"][8]["carries"]
    found = one("rdma.ssh_path", facts, PAIR)
    assert (found["status"], found["observed"]) == ("pass", "no HCA; eno1 carries them")
    facts["rdma"].update(default_route=None, ssh=None)
    assert status("rdma.ssh_path", facts, PAIR) == "unknown"
    put(facts, "rdma.unknown.default_route", "no /proc")
    assert one("rdma.ssh_path", facts, PAIR)["observed"] == "no /proc"


def test_ssh_path_without_hcas_skips_and_without_facts_is_unknown() -> None:
    assert status("rdma.ssh_path", changed("rdma.hcas", []), PAIR) == "skip"
    assert status("rdma.ssh_path", changed("rdma", MISSING), PAIR) == "unknown"


def test_a_hostile_name_does_not_steer_a_terminal() -> None:
    facts = changed("rdma.hcas.5.ports.0.state", "\x1b[31mDOWN" + "y" * 500)
    found = one("rdma.ports", facts, PAIR)
    assert found["status"] == "fail" and "\x1b" not in found["observed"]


def test_switch_devices_are_told_by_either_sign() -> None:
    for path in ("fabric.sw_mng", "rdma.hcas.9.sw_mng"):
        facts = changed(path, MISSING)
        put(facts, "gpu.topology.nics.NIC8", "mlx5_9")
        put(facts, "gpu.topology.gpu_nic.0", "PIX NODE NODE NODE NODE NODE NODE NODE PIX")
        assert compute_hcas(Node("node1", facts), PAIR).others["mlx5_9"] == "manages NVLink switches"


def test_few_errors_are_named() -> None:
    facts = changed("rdma.hcas.0.ports.0.counters", {"link_downed": 3})
    assert one("rdma.errors", facts, PAIR)["observed"] == "few: mlx5_0/1 link_downed=3"
    assert one("rdma.errors", healthy_b300(), PAIR)["observed"] == "none on 8 HCAs"


def test_an_hca_whose_gpu_was_lost_still_counts() -> None:
    facts = healthy_b300()
    facts["gpu"]["topology"]["gpu_nic"].pop()
    assert len(names(facts)) == 8


def test_as_many_cards_of_one_kind_as_of_another_the_faster_ones_count() -> None:
    facts = without(healthy_b300(), "gpu.topology")
    for hca in facts["rdma"]["hcas"][:4]:
        hca["type"] = "MT4129"
        hca["ports"][0]["rate_gbps"] = 100.0
    assert names(facts) == ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]


def test_a_plane_that_works_on_half_of_the_cards_is_no_rule() -> None:
    facts = healthy_b300()
    for i, hca in enumerate(facts["rdma"]["hcas"][:8]):
        hca["ports"] = planes((3, 6) if i < 4 else (3,))
    assert status("rdma.ports", facts, PAIR) == "pass"
    facts["rdma"]["hcas"][4]["ports"] = planes((3, 6))
    assert status("rdma.ports", facts, PAIR) == "fail"
