# SPDX-License-Identifier: GPL-3.0-or-later
"""Section rdma of the facts: sysfs as it is, as it may be broken, and the tools beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import kernel_log, rdma
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Ran
from tests.costume import HARDWARE, Spec, Wardrobe, part_rdma

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples"
IB = "/sys/class/infiniband"


@pytest.fixture
def samples() -> Path:
    if not SAMPLES.is_dir():
        pytest.skip("no folder of captures beside the repository")
    return SAMPLES


def dressed(hardware: str = "b300", faults: Iterable[str] = (), change: Optional[Any] = None, index: int = 1) -> Dict[str, Any]:
    """Facts of a node that wears this part of a costume alone."""
    spec = Spec("n1", hardware, index, frozenset(faults))
    wardrobe = Wardrobe()
    log = part_rdma.dress(spec, wardrobe)
    wardrobe.commands[kernel_log.RING] = "".join("[%12.6f] %s\n" % line for line in log)
    wardrobe.commands[rdma.ADDRESSES] = json.dumps([
        {"ifname": name, "addr_info": [{"local": address, "prefixlen": length}]}
        for name, address, length, _mtu in part_rdma.interfaces(spec)])
    if change:
        change(wardrobe)
    reader = MemoryReader(wardrobe.files, wardrobe.links, wardrobe.commands, wardrobe.probes, wardrobe.folders)
    return rdma.collect(reader, Options())


def minimal(files: Optional[Dict[str, Any]] = None, links: Optional[Dict[str, str]] = None, commands: Optional[Dict[Any, Any]] = None,
            probes: Optional[Dict[Any, Any]] = None, folders: Iterable[str] = ()) -> Dict[str, Any]:
    return rdma.collect(MemoryReader(files, links, commands, probes, folders), Options())


def by_name(facts: Dict[str, Any]) -> Dict[str, Dict[str, Any]]:
    return {hca["name"]: hca for hca in facts["hcas"]}


# -- whole nodes ---------------------------------------------------------------------------------
def test_hgx_b300_has_eight_compute_one_management_and_four_switch_hcas() -> None:
    facts = dressed()
    assert [hca["name"] for hca in facts["hcas"]] == ["mlx5_%d" % i for i in range(13)]
    assert facts["unknown"] == {}
    hcas = by_name(facts)
    assert hcas["mlx5_0"] == {
        "name": "mlx5_0", "bdf": "0000:18:00.0", "driver": "mlx5_core", "type": "MT4131", "firmware": "40.46.1006",
        "board": "MT_0000001222", "numa": 0, "pcie": {"gen": 5, "gen_max": 5, "width": 16, "width_max": 16},
        "ports": [
            {"port": 1, "state": "ACTIVE", "phys": "LinkUp", "rate_gbps": 400.0, "link_layer": "Ethernet", "netdev": "rdma0", "mtu": 9000,
             "active_mtu": 4096, "gids": [
                 {"i": 0, "gid": "fe80:0000:0000:0000:0200:5eff:fe00:0100", "type": "IB/RoCE v1"},
                 {"i": 1, "gid": "fe80:0000:0000:0000:0200:5eff:fe00:0100", "type": "RoCE v2"},
                 {"i": 2, "gid": "0000:0000:0000:0000:0000:ffff:c633:6401", "type": "IB/RoCE v1", "ipv4": "198.51.100.1"},
                 {"i": 3, "gid": "0000:0000:0000:0000:0000:ffff:c633:6401", "type": "RoCE v2", "ipv4": "198.51.100.1"}]},
            {"port": 2, "state": "DOWN", "phys": "Disabled", "link_layer": "Ethernet"}],
    }
    assert [name for name, hca in hcas.items() if hca.get("sw_mng")] == ["mlx5_9", "mlx5_10", "mlx5_11", "mlx5_12"]
    assert [name for name, hca in hcas.items() if "carries" in hca] == ["mlx5_8"]
    assert hcas["mlx5_8"]["carries"] == ["default_route", "ssh"]
    assert facts["default_route"] == facts["ssh"] == "eno1"
    assert facts["netdevs"] == dict([("rdma%d" % i, "mlx5_%d" % i) for i in range(8)] + [("eno1", "mlx5_8")])
    assert facts["acs"] == {"checked": True, "srcvalid": []}
    assert facts["iommu"]["mode"] == "passthrough" and facts["iommu"]["groups"] == 13
    assert facts["ofed"] == {"version": "25.07-0.9.7", "flavour": "ofed"}
    assert facts["userspace"] == {"libmlx5": "1.25.56.0", "rdma_core": "56.0"}
    assert facts["log"] == []


def test_grace_tray_has_four_compute_hcas_and_access_control_on() -> None:
    facts = dressed("gb300")
    assert len(facts["hcas"]) == 5
    assert len(facts["acs"]["srcvalid"]) == 4
    assert by_name(facts)["mlx5_4"]["carries"] == ["default_route", "ssh"]
    assert not any("sw_mng" in hca for hca in facts["hcas"])


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("faults", [(), ("port_down", "gid_drift")])
def test_facts_of_a_dressed_node_are_small_and_whole(hardware: str, faults: List[str]) -> None:
    facts = dressed(hardware, faults)
    assert facts["unknown"] == {}
    assert len(json.dumps(facts, separators=(",", ":"))) < 12000
    for hca in facts["hcas"]:
        assert None not in hca.values() and "" not in hca.values()


def test_a_port_that_lost_its_link_keeps_its_gids_and_shows_no_rate() -> None:
    port = by_name(dressed(faults=["port_down"]))["mlx5_5"]["ports"][0]
    assert (port["state"], port["phys"], port["operstate"]) == ("DOWN", "Polling", "down")
    assert "rate_gbps" not in port and "active_mtu" not in port
    assert [gid["i"] for gid in port["gids"] if gid.get("ipv4") and gid["type"] == "RoCE v2"] == [3]


def test_a_drifted_gid_table_moves_the_index_of_compute_ports_alone() -> None:
    hcas = by_name(dressed(faults=["gid_drift"]))
    index = {name: [g["i"] for g in hca["ports"][0]["gids"] if g.get("ipv4") and g["type"] == "RoCE v2"] for name, hca in hcas.items()}
    assert index["mlx5_0"] == index["mlx5_7"] == [5] and index["mlx5_8"] == [3]


def test_compute_addresses_of_nodes_differ() -> None:
    addresses = [a for index in range(1, 8) for _n, a, _l, _m in part_rdma.interfaces(Spec("n", "b300", index))]
    assert len(addresses) == len(set(addresses))


# -- no answers, and odd ones ----------------------------------------------------------------------
def test_no_rdma_core_means_no_hcas_and_not_unknown() -> None:
    facts = minimal()
    assert facts["hcas"] == [] and "hcas" not in facts["unknown"] and "active_mtu" not in facts["unknown"]


def test_a_folder_that_cannot_be_listed_is_unknown() -> None:
    class Denied(MemoryReader):
        def _names(self, path: str) -> Any:
            found = super()._names(path)
            return found._replace(names=[], error="denied") if path == IB else found

    facts = rdma.collect(Denied({IB + "/mlx5_0/fw_ver": "1"}), Options())
    assert facts["hcas"] == [] and "denied" in facts["unknown"]["hcas"]


def test_nothing_recorded_is_unknown() -> None:
    facts = rdma.collect(MemoryReader(absent="not_recorded"), Options())
    assert set(facts["unknown"]) >= {"hcas", "default_route", "ssh", "acs", "iommu", "kernel_log"}


def test_without_ibv_devinfo_the_active_mtu_is_unknown_and_the_rest_stands() -> None:
    facts = dressed(change=lambda w: w.hang(*rdma.DEVINFO))
    assert "abandoned" in facts["unknown"]["active_mtu"]
    assert by_name(facts)["mlx5_0"]["ports"][0]["state"] == "ACTIVE"


def test_unreadable_product_data_is_said_and_not_taken_for_a_plain_hca() -> None:
    def deny(wardrobe: Wardrobe) -> None:
        wardrobe.files[IB + "/mlx5_9/device/vpd"] = Content(None, "denied")

    facts = dressed(change=deny)
    assert "mlx5_9" in facts["unknown"]["sw_mng"]
    assert "sw_mng" not in by_name(facts)["mlx5_9"] and by_name(facts)["mlx5_10"]["sw_mng"] is True


def test_an_infiniband_hca_whose_product_data_says_nothing_is_a_plain_one() -> None:
    base = IB + "/mlx5_0"
    files = {base + "/device/vpd": "an adapter", base + "/device/numa_node": "-1\n", base + "/ports/1/link_layer": "InfiniBand"}
    hca = minimal(files, {base + "/device": "../../../0000:18:00.0", base + "/device/driver": "../drivers/mlx5_core"})["hcas"][0]
    assert hca["bdf"] == "0000:18:00.0" and "sw_mng" not in hca and "numa" not in hca


def test_an_hca_with_nothing_but_a_name_is_kept() -> None:
    facts = minimal(folders=[IB + "/mlx5_0"])
    assert facts["hcas"] == [{"name": "mlx5_0"}]


VIRTUAL = "../../devices/virtual/infiniband/"


@pytest.mark.parametrize("files,links,driver", [
    ({IB + "/rxe0/parent": "eth0\n", IB + "/rxe0/node_type": "1: CA\n"}, {IB + "/rxe0": VIRTUAL + "rxe0"}, "rdma_rxe"),
    # an older kernel hangs the device below the PCI function of its interface
    ({IB + "/rxe0/parent": "eth0\n"},
     {IB + "/rxe0/device": "../../../0000:00:03.0", IB + "/rxe0/device/driver": "../bus/pci/drivers/virtio-pci"}, "rdma_rxe"),
    ({IB + "/siw0/node_type": "4: RNIC\n"}, {IB + "/siw0": VIRTUAL + "siw0"}, "siw"),
    ({IB + "/soft/node_type": "1: CA\n"}, {IB + "/soft": VIRTUAL + "soft"}, "rdma_rxe"),
])
def test_software_hcas_are_marked(files: Dict[str, str], links: Dict[str, str], driver: str) -> None:
    hca = minimal(files, links)["hcas"][0]
    assert hca["virtual"] is True and hca["driver"] == driver
    assert not {"bdf", "pcie", "numa"} & set(hca)


def test_soft_roce_takes_its_interface_from_its_gid_table() -> None:
    port = IB + "/rxe0/ports/1"
    facts = minimal({
        IB + "/rxe0/parent": "eth1\n", port + "/state": "4: ACTIVE\n", port + "/phys_state": "5: LinkUp\n",
        port + "/rate": "2.5 Gb/sec (1X SDR)\n", port + "/link_layer": "Ethernet\n",
        port + "/gids/0": "fe80:0000:0000:0000:5054:00ff:fe12:3456\n", port + "/gid_attrs/types/0": "RoCE v2\n",
        port + "/gid_attrs/ndevs/0": "eth1\n", "/sys/class/net/eth1/mtu": "1500\n", "/sys/class/net/eth1/operstate": "up\n",
    })
    assert facts["hcas"][0]["ports"] == [{
        "port": 1, "state": "ACTIVE", "phys": "LinkUp", "rate_gbps": 2.5, "link_layer": "Ethernet", "netdev": "eth1", "mtu": 1500,
        "gids": [{"i": 0, "gid": "fe80:0000:0000:0000:5054:00ff:fe12:3456", "type": "RoCE v2"}]}]


def _gids(table: Dict[int, Any], types: Dict[int, Any]) -> List[Dict[str, Any]]:
    port = IB + "/mlx5_0/ports/1"
    files: Dict[str, Any] = {"%s/gids/%d" % (port, i): gid for i, gid in table.items()}
    files.update({"%s/gid_attrs/types/%d" % (port, i): kind for i, kind in types.items()})
    files[port + "/link_layer"] = "Ethernet"
    found: List[Dict[str, Any]] = minimal(files)["hcas"][0]["ports"][0].get("gids", [])
    return found


def test_gids_beyond_a_hole_are_found_and_an_unmapped_type_is_left_out() -> None:
    table: Dict[int, Any] = dict.fromkeys(range(40), part_rdma.ZERO)
    table[0] = "fe80:0000:0000:0000:0000:5eff:fe00:0001"
    table[10] = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    table[3] = Content(None, "io:EINVAL")
    found = _gids(table, {0: Content(None, "io:EINVAL"), 10: "RoCE v2"})
    assert found == [
        {"i": 0, "gid": "fe80:0000:0000:0000:0000:5eff:fe00:0001"},
        {"i": 10, "gid": "0000:0000:0000:0000:0000:ffff:0a00:0001", "type": "RoCE v2", "ipv4": "10.0.0.1"}]


def test_gids_are_kept_to_a_bound_and_an_unset_link_local_is_none() -> None:
    table = {i: "0000:0000:0000:0000:0000:ffff:0a00:%04x" % (i + 1) for i in range(100)}
    assert len(_gids(table, {})) == rdma.GIDS_KEPT
    assert _gids({0: "fe80:0000:0000:0000:0000:0000:0000:0000"}, {}) == []


def test_counters_keep_what_is_not_zero_and_are_not_asked_of_a_dead_port() -> None:
    port = IB + "/mlx5_0/ports/"
    files = {port + "1/state": "4: ACTIVE", port + "1/counters/link_downed": "3", port + "1/counters/symbol_error": "0",
             port + "1/counters/port_xmit_data": "99", port + "1/hw_counters/packet_seq_err": "7",
             port + "2/state": "1: DOWN", port + "2/counters/link_downed": "9"}
    ports = minimal(files)["hcas"][0]["ports"]
    assert ports[0]["counters"] == {"link_downed": 3, "packet_seq_err": 7} and "counters" not in ports[1]


# -- which interface belongs to a port -------------------------------------------------------------
def test_a_port_without_gid_interfaces_is_found_through_rdma_link_then_through_its_port_number() -> None:
    base = IB + "/mlx5_0"
    files = {base + "/ports/1/link_layer": "Ethernet", base + "/ports/2/link_layer": "Ethernet",
             "/sys/class/net/ens1/dev_port": "0\n", "/sys/class/net/ens2/dev_port": "1\n"}
    folders = [base + "/device/net/ens1", base + "/device/net/ens2"]
    ports = minimal(files, folders=folders)["hcas"][0]["ports"]
    assert [p["netdev"] for p in ports] == ["ens1", "ens2"]
    told = {rdma.RDMA_LINK: '[{"ifname":"mlx5_0","port":2,"netdev":"ens9"}]'}
    ports = minimal(files, commands=told, folders=folders)["hcas"][0]["ports"]
    assert [p["netdev"] for p in ports] == ["ens1", "ens9"]


def test_an_infiniband_port_has_its_ipoib_interface() -> None:
    base = IB + "/mlx5_0"
    port = minimal({base + "/ports/1/link_layer": "InfiniBand", base + "/ports/1/lid": "0x1f\n", base + "/ports/1/sm_lid": "0x0\n",
                    base + "/ports/1/state": "2: INIT"}, folders=[base + "/device/net/ibp24s0"])["hcas"][0]["ports"][0]
    assert port["netdev"] == "ibp24s0" and port["lid"] == 31 and port["sm_lid"] == 0 and port["state"] == "INIT"


# -- what carries the node's own traffic -------------------------------------------------------------
ROUTES = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n%s\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\n"


def _carrying(route: str, files: Dict[str, str], links: Dict[str, str], folders: Iterable[str] = ()) -> List[str]:
    files = dict(files)
    files["/proc/net/route"] = ROUTES % route
    for name, netdev in (("mlx5_0", "eth0"), ("mlx5_1", "eth1"), ("mlx5_2", "eth2")):
        files["%s/%s/ports/1/link_layer" % (IB, name)] = "Ethernet"
        files["%s/%s/ports/1/gid_attrs/ndevs/0" % (IB, name)] = netdev
    return [hca["name"] for hca in minimal(files, links, folders=folders)["hcas"] if "default_route" in hca.get("carries", [])]


def test_members_of_a_bond_carry_what_the_bond_carries() -> None:
    masters = {"/sys/class/net/eth0/master": "../../../virtual/net/bond0", "/sys/class/net/eth1/master": "../../../virtual/net/bond0"}
    assert _carrying("bond0", {}, masters) == ["mlx5_0", "mlx5_1"]


def test_the_parent_of_a_vlan_on_a_bond_carries_too() -> None:
    vlans = "VLAN Dev name    | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\nbond0.100      | 100  | bond0\n"
    assert _carrying("bond0.100", {"/proc/net/vlan/config": vlans}, {"/sys/class/net/eth2/master": "../bond0"}) == ["mlx5_2"]
    lower = {"/sys/class/net/br0/lower_bond0": "../bond0", "/sys/class/net/bond0/lower_eth1": "../eth1"}
    assert _carrying("br0", {}, lower) == ["mlx5_1"]


def test_interfaces_that_name_each_other_do_not_loop() -> None:
    lower = {"/sys/class/net/a/lower_b": "../b", "/sys/class/net/b/lower_a": "../a", "/sys/class/net/b/lower_eth0": "../eth0"}
    assert _carrying("a", {}, lower) == ["mlx5_0"]


def test_default_route_prefers_the_lowest_metric_and_falls_back_to_ipv6() -> None:
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    row = "%s\t%s\t0100000A\t%s\t0\t0\t%d\t%s\t0\t0\t0\n"
    text = head + row % ("wlan0", "00000000", "0003", 600, "00000000") + row % ("eth0", "00000000", "0003", 100, "00000000")
    assert rdma.parse_route(text) == "eth0"
    others = row % ("eth0", "00000000", "0003", 0, "000000FF") + row % ("eth1", "0000000A", "0001", 0, "00000000")
    assert rdma.parse_route(head + others) is None
    assert rdma.parse_route(head + row % ("eth0", "00000000", "0000", 0, "00000000")) is None
    zero = "0" * 32
    six = "%s 00 %s 00 fe800000000000000000000000000001 00000400 00000001 00000000 00450003    eth5\n" % (zero, zero)
    reject = "%s 00 %s 00 %s ffffffff 00000001 00000000 00200200       lo\n" % (zero, zero, zero)
    assert rdma.parse_ipv6_route(reject + six) == "eth5" and rdma.parse_ipv6_route(reject) is None
    assert minimal({"/proc/net/route": head, "/proc/net/ipv6_route": six})["default_route"] == "eth5"


@pytest.mark.parametrize("connection,interface,reason", [
    ("192.0.2.9 5000 192.0.2.11 22", "eth0", None),
    ("::ffff:192.0.2.9 5000 ::ffff:192.0.2.11 22", "eth0", None),
    ("fe80::1%eth1 5000 fe80::2%eth1 22", "eth1", None),
    ("", None, None),
    ("192.0.2.9 5000 203.0.113.5 22", None, "203.0.113.5"),
])
def test_ssh_interface(connection: str, interface: Optional[str], reason: Optional[str]) -> None:
    addresses = json.dumps([
        {"ifname": "eth0", "addr_info": [{"local": "192.0.2.11"}]}, {"ifname": "eth1", "addr_info": [{"local": "fe80::2"}, {}]}, {}])
    facts = minimal(commands={rdma.ADDRESSES: addresses}, probes={("ssh", ""): {"connection": connection}})
    assert facts["ssh"] == interface
    assert reason in facts["unknown"]["ssh"] if reason else "ssh" not in facts["unknown"]


# -- tools -------------------------------------------------------------------------------------------
def test_rdma_link_in_its_three_forms() -> None:
    new = [{"hca": "mlx5_0", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP", "netdev": "eth0"}]
    tail = '"state":"ACTIVE","physical_state":"LINK_UP","netdev":"eth0"}]'
    assert rdma.parse_rdma_link('[{"ifindex":0,"ifname":"mlx5_0","port":1,' + tail) == new
    assert rdma.parse_rdma_link('[{"ifindex":0,"ifname":"mlx5_0/1",' + tail) == new
    assert rdma.parse_rdma_link("link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0 \n") == new
    assert rdma.parse_rdma_link("1/1: mlx5_0/1: state ACTIVE physical_state LINK_UP netdev eth0\n") == new


def test_devinfo_gives_the_mtu_of_active_ports_only() -> None:
    text = ("hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tactive_mtu:\t\t4096 (5)\n"
            "\t\tport:\t2\n\t\t\tstate:\t\t\tPORT_DOWN (1)\n\t\t\tactive_mtu:\t\t1024 (3)\n"
            "hca_id:\tmlx5_1\n\t\t\tactive_mtu:\t\t2048 (4)\n")
    assert rdma.parse_devinfo(text) == {("mlx5_0", 1): 4096}
    headless = "hca_id:\tmlx5_0\n\tport:\t1\n\tstate:\tPORT_ACTIVE (4)\nhca_id:\tmlx5_1\n\tactive_mtu:\t2048 (4)\n"
    assert rdma.parse_devinfo(headless) == {}


def test_bridges_with_source_validation_and_hidden_capabilities() -> None:
    on = ("0000:15:01.0 PCI bridge: Maker Bridge (rev b0)\n\tCapabilities: [100] ACS\n"
          "\t\tACSCap:\tSrcValid+ TransBlk+\n\t\tACSCtl:\tSrcValid%s TransBlk-\n\n")
    assert rdma.parse_bridges(on % "+") == (["0000:15:01.0"], False)
    assert rdma.parse_bridges(on % "-") == ([], False)
    hidden = "0000:15:01.0 PCI bridge: Maker Bridge\n\tCapabilities: <access denied>\n"
    facts = minimal(commands={rdma.BRIDGES: hidden})
    assert facts["acs"] == {"checked": False, "srcvalid": []} and "root" in facts["unknown"]["acs"]
    facts = minimal(commands={rdma.BRIDGES: Ran(None, error="timeout")})
    assert facts["acs"]["checked"] is False and "abandoned" in facts["unknown"]["acs"]
    many = "".join("0000:%02x:01.0 PCI bridge: M\n\t\tACSCtl:\tSrcValid+ T\n" % i for i in range(90))
    assert len(minimal(commands={rdma.BRIDGES: many})["acs"]["srcvalid"]) == rdma.ACS_KEPT


@pytest.mark.parametrize("cmdline,kind,mode", [
    ("quiet iommu=pt", None, "passthrough"), ("quiet iommu.passthrough=1", None, "passthrough"), ("intel_iommu=on", None, "translated"),
    ("quiet", None, None), ("quiet", "identity", "passthrough"), ("iommu=pt", "DMA-FQ", "translated"),
])
def test_iommu_mode(cmdline: str, kind: Optional[str], mode: Optional[str]) -> None:
    files: Dict[str, Any] = {"/proc/cmdline": cmdline}
    links = {IB + "/mlx5_0/device": "../../../0000:18:00.0"}
    if kind:
        files["/sys/bus/pci/devices/0000:18:00.0/iommu_group/type"] = kind
    facts = minimal(files, links, folders=["/sys/kernel/iommu_groups/0", "/sys/kernel/iommu_groups/1"])
    assert facts["iommu"] == {"groups": 2, "mode": mode}
    assert ("iommu" in facts["unknown"]) == (mode is None)
    assert minimal(files, links)["iommu"] == {"groups": 0, "mode": "off"}


@pytest.mark.parametrize("files,folders,told,expected", [
    ({"/sys/module/mlx5_core/version": "24.10-1.1.4\n"}, [], "", {"version": "24.10-1.1.4", "flavour": "ofed"}),
    ({"/sys/module/mlx5_core/version": "5.0-0\n"}, [], "", {"version": None, "flavour": "inbox"}),
    ({}, ["/sys/module/mlx5_core"], "", {"version": None, "flavour": "inbox"}),
    ({}, ["/sys/module/mlx_compat"], "MLNX_OFED_LINUX-23.10-2.1.3.1:\n", {"version": "23.10-2.1.3.1", "flavour": "ofed"}),
    # tools of OFED over the kernel's own modules: the running modules count
    ({}, ["/sys/module/mlx5_core"], "OFED-internal-24.10-1.1.4:\n", {"version": "24.10-1.1.4", "flavour": "inbox"}),
])
def test_ofed(files: Dict[str, str], folders: List[str], told: str, expected: Dict[str, Any]) -> None:
    assert minimal(files, commands={rdma.OFED_INFO: told} if told else {}, folders=folders)["ofed"] == expected


@pytest.mark.parametrize("kind,text", [
    ("command_timeout", "mlx5_core 0000:18:00.0: wait_func:1195:(pid 1): ACCESS_REG(0x805) timeout. Will cause a leak"),
    ("health_compromised", "mlx5_core 0000:18:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count"),
    ("hardware_error", "mlx5_core 0000:18:00.0: print_health_info:431:(pid 0): synd 0x8: unrecoverable hardware error"),
    ("pcie_limited", "mlx5_core 0000:18:00.0: 126.016 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x4 link at 0000:15:01.0"),
    ("module_temperature", "mlx5_core 0000:18:00.0: Port module event[error]: module 0, Cable error, High Temperature"),
    ("slot_power", "mlx5_core 0000:18:00.0: mlx5_pcie_event:304:(pid 9): Detected insufficient power on the PCIe slot (27W)."),
])
def test_kernel_log_kinds(kind: str, text: str) -> None:
    facts = minimal(commands={kernel_log.RING: "[    5.100000] %s\n[    6.200000] %s\n" % (text, text)})
    assert [(entry["kind"], entry["count"]) for entry in facts["log"]] == [(kind, 2)]
    healthy = "[    5.100000] mlx5_core 0000:18:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)\n"
    assert minimal(commands={kernel_log.RING: healthy})["log"] == []


# -- captures, when they are there -------------------------------------------------------------------
def test_real_sysfs_tree(samples: Path) -> None:
    root = str(samples / "sys-class-infiniband-h100")
    files = {}
    for folder, _folders, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            files[IB + path[len(root):]] = Path(path).read_text(encoding="utf-8", errors="replace")
    facts = minimal(files)
    assert len(facts["hcas"]) == 9
    hcas = by_name(facts)
    assert hcas["mlx5_0"]["ports"][0]["rate_gbps"] == 400.0 and hcas["mlx5_0"]["ports"][0]["link_layer"] == "InfiniBand"
    assert hcas["mlx5_bond_0"]["type"] == "MT41692" and hcas["mlx5_bond_0"]["ports"][0]["link_layer"] == "Ethernet"
    assert all(hca["ports"][0]["state"] == "ACTIVE" and hca["ports"][0]["phys"] == "LinkUp" for hca in facts["hcas"])
    assert hcas["mlx5_1"]["ports"][0]["counters"]["link_downed"] == 255
    assert not any("virtual" in hca for hca in facts["hcas"])


def test_captures_of_rdma_tools(samples: Path) -> None:
    links = rdma.parse_rdma_link((samples / "rdma_link_GB300_oci.txt").read_text())
    assert len(links) == 10 and links[9] == {"hca": "mlx5_9", "port": 1, "state": "DOWN", "physical_state": "DISABLED", "netdev": "eth1"}
    assert [link["netdev"] for link in rdma.parse_rdma_link((samples / "rdma_link_j_new.json").read_text())] == ["ens1f0np0", "ens1f1np1"]
    assert rdma.parse_rdma_link((samples / "rdma_link_text_b300_cx8_multiplane.txt").read_text())[0]["port"] == 3
    assert rdma.parse_devinfo((samples / "ibv_devinfo_ib_active_eth_down.txt").read_text()) == {("mlx5_0", 1): 4096}


# -- anything in, no exception out ---------------------------------------------------------------------
PARSERS = (rdma.parse_route, rdma.parse_ipv6_route, rdma.parse_addresses, rdma.parse_vlans, rdma.parse_rdma_link, rdma.parse_devinfo,
           rdma.parse_bridges, rdma.mapped_ipv4)
WORDS = st.sampled_from([
    "hca_id:", "port:", "state:", "PORT_ACTIVE", "active_mtu:", "4096 (5)", "link", "mlx5_0/1", "1/1:", "netdev", "00000000", "0003",
    "eth0", "|", "100", "[{", '"ifname":', '"port":', "}]", "null", "ACSCtl:", "SrcValid+", "0000:18:00.0", "<access denied>", "\t", "\n",
    "\r",
    "\0", "٣", "²", "9" * 400, "-1", "NaN", "1e999"])
TEXTS = st.one_of(st.text(max_size=300), st.lists(WORDS, max_size=40).map(" ".join), st.lists(WORDS, max_size=40).map("\n".join))
KEYS = st.sampled_from(["ifname", "port", "netdev", "addr_info", "local", "state"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=15).map(json.dumps)


@given(text=TEXTS | JSON)
@settings(max_examples=150, deadline=None)
def test_parsers_take_any_text(text: str) -> None:
    for parse in PARSERS:
        parse(text)


@pytest.fixture(scope="module")
def wardrobe_files() -> Dict[str, Any]:
    wardrobe = Wardrobe()
    part_rdma.dress(Spec("n1", "gb300"), wardrobe)
    return wardrobe.files


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_collect_takes_any_content_of_any_file(wardrobe_files: Dict[str, Any], data: st.DataObject) -> None:
    wardrobe = Wardrobe()
    part_rdma.dress(Spec("n1", "gb300"), wardrobe)
    paths = sorted(wardrobe_files)
    for path in data.draw(st.lists(st.sampled_from(paths), max_size=12)):
        wardrobe.files[path] = data.draw(TEXTS | st.sampled_from([Content(None, "io:EIO"), Content(None, "denied")]))
    for command in (rdma.DEVINFO, rdma.RDMA_LINK, rdma.BRIDGES, rdma.OFED_INFO):
        wardrobe.commands[command] = data.draw(TEXTS | JSON)
    connections = st.fixed_dictionaries({"connection": st.none() | st.text(max_size=40)})
    wardrobe.probes[("ssh", "")] = data.draw(st.none() | st.text(max_size=5) | connections)
    facts = rdma.collect(MemoryReader(wardrobe.files, wardrobe.links, wardrobe.commands, wardrobe.probes, wardrobe.folders), Options())
    json.dumps(facts)
