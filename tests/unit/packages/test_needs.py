# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node needs, by its hardware and its facts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.filter import provision
from ansible_collections.inferops.vllm.plugins.module_utils.packages import needs


def facts(device: str = "0x3182", **words: Any) -> dict[str, Any]:
    return {"gpu": {"pci": [{"bdf": "0000:1b:00.0", "device": device}], "unknown": {}}, "host": {"virt": "none"},
            "fabric": {"nvswitches": 0, "sw_mng": [], "unknown": {}}, **words}


@pytest.mark.parametrize(("device", "hardware", "components"), [
    ("0x2330", "h100", ["fabricmanager"]), ("0x2335", "h200", ["fabricmanager"]), ("0x2901", "b200", ["fabricmanager", "nvlsm"]),
    ("0x3182", "b300", ["fabricmanager", "nvlsm"]), ("0x2941", "gb200", ["imex"]), ("0x31c2", "gb300", ["imex"]), ("0x26b9", "", []),
])
def test_components_by_hardware(device: str, hardware: str, components: list[str]) -> None:
    found = needs.needs(facts(device))
    assert (found["hardware"], found["components"], found["skip"], found["refuse"], found["flavour"]) == (hardware, components, "", "", "open")


def test_nodes_without_a_gpu_get_no_driver() -> None:
    assert needs.needs({}, "cpu")["skip"] and needs.needs({}, "mi355x")["skip"] == "AMD Instinct MI355X has no NVIDIA GPU"
    bare = facts()
    bare["gpu"]["pci"] = []
    assert needs.needs(bare)["skip"] == "no NVIDIA GPU is on the bus"
    assert not needs.needs(bare, "b300")["skip"], "the inventory knows better: the GPUs may be off the bus"
    bare["gpu"]["unknown"]["pci"] = "could not be read"
    assert not needs.needs(bare)["skip"]


def test_what_does_not_go_together_is_refused() -> None:
    assert "GPUs on the bus are b300" in needs.needs(facts(), "h200")["refuse"]
    assert "open kernel modules only" in needs.needs(facts(), "auto", "proprietary")["refuse"]
    assert needs.needs(facts("0x2330"), "auto", "proprietary")["flavour"] == "proprietary"


def test_the_facts_decide_for_hardware_that_is_in_no_table() -> None:
    assert needs.needs(facts("0x20b5", fabric={"nvswitches": 6, "sw_mng": []}))["components"] == ["fabricmanager"]
    assert needs.needs(facts("0x9999", fabric={"nvswitches": 0, "sw_mng": ["mlx5_4"]}))["components"] == ["fabricmanager", "nvlsm"]


def test_a_virtual_machine_without_switches_runs_no_manager() -> None:
    guest = facts(host={"virt": "kvm"})
    assert needs.needs(guest)["components"] == [] and needs.needs(guest, fabric="nvlink5")["manager"]
    assert needs.needs(facts(host={"virt": "kvm"}, fabric={"nvswitches": 4}))["manager"]


def test_imex_domains_are_the_same_on_every_tray() -> None:
    hosts = {"t%d" % number: {"vllm_host_ip": "10.0.1.%d" % number} for number in range(1, 5)}
    groups = {"vllm_nodes": list(hosts)}
    assert {tuple(needs.imex_nodes(groups, hosts, host)) for host in hosts} == {("10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4")}
    hosts["t3"]["vllm_nvlink_domain"] = hosts["t4"]["vllm_nvlink_domain"] = "rack2"
    assert needs.imex_nodes(groups, hosts, "t1") == ["10.0.1.1", "10.0.1.2"] and needs.imex_nodes(groups, hosts, "t4") == ["10.0.1.3", "10.0.1.4"]


def test_imex_without_addresses_is_refused() -> None:
    hosts = {"t1": {"vllm_host_ip": "10.0.1.1"}, "t2": {}}
    with pytest.raises(AnsibleFilterError, match="set vllm_host_ip for t2"):
        provision.imex_nodes({"vllm_nodes": ["t1", "t2"]}, hosts, "t1")
    with pytest.raises(AnsibleFilterError, match=r"10\.0\.1\.1 is the vllm_host_ip of two hosts"):
        provision.imex_nodes({"vllm_nodes": ["t1", "t2"]}, {**hosts, "t2": {"vllm_host_ip": "10.0.1.1"}}, "t1")


def test_dangers_of_a_network_restart() -> None:
    network = {"rdma": {"hcas": [{"name": "mlx5_0", "carries": ["default_route", "ssh"]}, {"name": "mlx5_1"}], "unknown": {}}}
    assert needs.restart_dangers(network, ["mlx5_core"]) == ["mlx5_0 carries the default route and this SSH session"]
    assert needs.restart_dangers(network, ["nvidia_peermem"]) == []
    network["rdma"]["hcas"] = [{"name": "mlx5_1"}]
    assert needs.restart_dangers(network, ["mlx5-core"]) == []
    network["rdma"]["unknown"] = {"ssh": "no answer"}
    assert needs.restart_dangers(network, ["mlx5_core"]) == ["it is not known over which interface this SSH session runs (no answer)"]
    assert needs.restart_dangers({}, ["mlx5_core"]) == ["the network of this node was not read"]


@pytest.mark.parametrize(("manage", "interconnect", "hcas", "skip"), [
    ("false", "rdma", True, "rdma_manage is false"), ("auto", "nvlink", True, "the nodes are joined by NVLink"), ("auto", "auto", False, "there is no HCA"),
    ("auto", "auto", True, ""), ("auto", "rdma", False, ""), ("true", "none", False, ""),
])
def test_when_rdma_is_set_up(manage: str, interconnect: str, hcas: bool, skip: str) -> None:
    assert needs.rdma_needs({"rdma": {"hcas": [{"name": "mlx5_0"}] if hcas else []}}, manage, interconnect)["skip"] == skip


def test_peermem_is_loaded_where_it_can_work() -> None:
    node = {"rdma": {"hcas": [{"name": "mlx5_0"}], "ofed": {"flavour": "ofed"}}}
    assert needs.rdma_needs(node)["peermem"] == "present"
    node["rdma"]["ofed"] = {"flavour": "inbox"}
    assert needs.rdma_needs(node)["peermem"] == ""
    assert needs.rdma_needs(node, peermem="present")["peermem"] == "present"


def test_faults_of_the_driver() -> None:
    good = {"driver": {"loaded": "580.95.05", "installed": "580.95.05", "userspace": "580.95.05", "nouveau": {"loaded": False}}}
    assert needs.driver_faults(good, "580.95.05") == [] and needs.driver_faults(good) == []
    assert needs.driver_faults(good, "580.126.20") == ["module 580.95.05 is installed, 580.126.20 was wanted"]
    bad = {"driver": {"loaded": "575.57.08", "installed": "580.95.05", "userspace": "580.126.20", "nouveau": {"loaded": True}}}
    assert [fault.split(":")[0] for fault in needs.driver_faults(bad)] == [
        "575.57.08 is loaded and 580.95.05 is installed", "the libraries are of 580.126.20, the module on disk is of 580.95.05", "nouveau is still loaded"]
    assert needs.driver_faults({}) == ["no driver module is installed for the running kernel", "no driver is loaded"]


def test_faults_of_the_fabric() -> None:
    wanted = {"manager": True, "nvlsm": True, "imex": False}
    seen: dict[str, Any] = {
        "driver": {"loaded": "580.95.05"},
        "fabric": {"manager": {"version": "580.95.05", "service": {"active": "active"}, "log": []}, "nvlsm": {"version": "2025.06.11"}}}
    assert needs.fabric_faults(seen, wanted) == []
    seen["fabric"] = {"manager": {"version": "580.82.07", "service": {"active": "failed"}, "log": [{"kind": "version_mismatch", "text": "don't match"}]}}
    assert needs.fabric_faults(seen, wanted) == [
        "Fabric Manager is of 580.82.07, the loaded driver of 580.95.05", "Fabric Manager is failed: don't match", "nvlsm is not installed"]
    assert needs.fabric_faults({"driver": {}, "fabric": {}}, {"imex": True}) == ["IMEX is not there"]


@pytest.mark.parametrize(("driver", "version", "part"), [
    ({"installed": "575.57.08", "loaded": "575.57.08"}, "",
     "driver 575.57.08 installed, 575.57.08 loaded, to branch 580 (open modules); Fabric Manager, nvlsm"),
    ({"installed": "580.95.05", "loaded": "575.57.08"}, "", "stays, to be loaded"), ({"installed": "580.95.05", "loaded": "580.95.05"}, "", "stays; Fabric"),
    ({"installed": "580.95.05", "loaded": "580.95.05"}, "580.126.20", "to 580.126.20"), ({}, "", "driver none installed, none loaded"),
])
def test_the_plan_in_one_line(driver: dict[str, str], version: str, part: str) -> None:
    node = facts(driver=driver)
    assert part in provision.driver_plan(node, provision.driver_needs(node), "580", version)


def test_the_plan_of_a_node_that_gets_none() -> None:
    assert provision.driver_plan({}, provision.driver_needs({}, "cpu"), 580) == "no driver (hardware cpu has no GPU)"
    assert provision.driver_plan(facts(), provision.driver_needs(facts(), "h100"), "580").startswith("refused: ")


def test_filters_refuse_what_are_no_facts() -> None:
    for name, function in provision.FilterModule().filters().items():
        if name != "imex_nodes":
            with pytest.raises(AnsibleFilterError, match="facts of a node"):
                function("text", {}) if name in ("fabric_faults", "restart_dangers") else function("text", *([{}, "580"] if name == "driver_plan" else []))
    with pytest.raises(AnsibleFilterError, match="there is no fabric mesh"):
        provision.driver_needs({}, "", "auto", "mesh")


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["gpu", "pci", "gpus", "device", "name", "unknown", "fabric", "host", "virt", "rdma", "hcas", "carries", "driver", "manager", "service"]),
    inner, max_size=5), max_leaves=12)


@example({"gpu": {"pci": True, "gpus": True}, "rdma": {"hcas": True}, "fabric": {"nvswitches": "x", "manager": {"log": 1}}})
@example({"rdma": {"hcas": [{"carries": True}, 1]}, "gpu": {"pci": [1]}})
@given(st.dictionaries(st.sampled_from(["gpu", "fabric", "host", "rdma", "driver"]), JSON))
def test_odd_facts_raise_nothing(odd: dict[str, Any]) -> None:
    answer = needs.needs(odd)
    needs.plan_line(odd, answer, "580")
    needs.driver_faults(odd)
    needs.fabric_faults(odd, {"manager": True, "imex": True, "nvlsm": True})
    needs.rdma_needs(odd)
    needs.restart_dangers(odd, ["mlx5_core"])
