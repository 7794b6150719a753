# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks drift.*: nodes against the majority of their peers."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.checks import drift
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import REGISTRY, Node

from .healthy import DIGEST, MISSING, OTHER_DIGEST, b300_context, gb300_context, healthy_b300, healthy_gb300, put
from .run import over

IDS = tuple(id for id in REGISTRY if id.startswith("drift."))
NAMES = ("node1", "node2", "node3", "node4", "node5", "node6")
Facts = Dict[str, Any]


def cluster(id: str = "", names: Any = NAMES) -> Dict[str, Facts]:
    make = healthy_gb300 if id in ("drift.clique", "drift.imex_config") else healthy_b300
    facts = {name: make(name) for name in names}
    for each in facts.values():
        each["service"]["env_files"] = {"/etc/vllm/vllm.env": "ab" * 32}
    return facts


def context(id: str = "", names: Any = NAMES) -> Any:
    return (gb300_context if id in ("drift.clique", "drift.imex_config") else b300_context)(names)


def all_gpus(path: str, value: Any) -> Callable[[Facts], None]:
    def change(facts: Facts) -> None:
        for i in range(len(facts["gpu"]["gpus"])):
            put(facts, "gpu.gpus.%d.%s" % (i, path), value)

    return change


def at(path: str, value: Any) -> Callable[[Facts], None]:
    return lambda facts: put(facts, path, value) and None


CHANGES = {
    # id: (what to change on one node, what is then observed there, what was required, severity)
    "drift.driver": (at("driver.loaded", "575.57.08"), "575.57.08", "580.95.05 on 5 of 6 nodes", "block"),
    "drift.kernel": (at("host.kernel", "6.8.0-60-generic"), "6.8.0-60-generic", "6.8.0-85-generic on 5 of 6 nodes", "warn"),
    "drift.gpu": (all_gpus("name", "NVIDIA B200"), "8 × NVIDIA B200", "8 × NVIDIA B300 SXM6 AC on 5 of 6 nodes", "block"),
    "drift.vbios": (all_gpus("vbios", "97.10.40.00.02"), "97.10.40.00.02", "97.10.45.00.01 on 5 of 6 nodes", "warn"),
    "drift.hca": (lambda facts: facts["rdma"]["hcas"].pop(3) and None, "0000:60:00.0: missing", "MT4131 on 5 of 6 nodes", "block"),
    "drift.gid": (
        at("rdma.hcas.2.ports.0.gids.3.i", 5),
        "0000:51:00.0: RoCE v2 GID at index 5",
        "RoCE v2 GID at index 3 on 5 of 6 nodes",
        "block",
    ),
    "drift.mtu": (
        at("rdma.hcas.2.ports.0.mtu", 1500),
        "0000:51:00.0: MTU 1500, RDMA MTU 4096",
        "MTU 9000, RDMA MTU 4096 on 5 of 6 nodes",
        "warn",
    ),
    "drift.clique": (all_gpus("fabric.clique", "7"), "clique 7 of 5d0f7c1a", "clique 32766 of 5d0f7c1a on 5 of 6 nodes", "warn"),
    "drift.imex_config": (
        at("fabric.imex.config_sha256", "77" * 32),
        "nodes_config.cfg 777777777777",
        "nodes_config.cfg 9b9b9b9b9b9b on 5 of 6 nodes",
        "block",
    ),
    "drift.image": (at("container.image.digests", [OTHER_DIGEST]), "sha256:d4d4d4d4d4d4", "sha256:3c3c3c3c3c3c on 5 of 6 nodes", "block"),
    "drift.toolkit": (at("container.toolkit.version", "1.17.8"), "1.17.8", "1.18.0 on 5 of 6 nodes", "warn"),
    "drift.env": (
        at("service.env_files", {"/etc/vllm/vllm.env": "cd" * 32}),
        "/etc/vllm/vllm.env: cdcdcdcdcdcd",
        "abababababab on 5 of 6 nodes",
        "warn",
    ),
}
UNKNOWN = {
    "drift.driver": "driver",
    "drift.kernel": "host",
    "drift.gpu": "gpu",
    "drift.vbios": "gpu",
    "drift.hca": "rdma",
    "drift.gid": "rdma",
    "drift.mtu": "rdma",
    "drift.clique": "gpu",
    "drift.imex_config": "fabric",
    "drift.image": "container",
    "drift.toolkit": "container",
    "drift.env": "service",
}


def test_every_comparison_is_tested() -> None:
    assert set(IDS) == set(CHANGES) == set(UNKNOWN)


@pytest.mark.parametrize("id", IDS)
def test_all_alike_is_one_finding(id: str) -> None:
    found = over(id, cluster(id), context(id))
    assert set(found) == {"*"}
    assert found["*"]["status"] == "pass"
    assert "6 nodes" in found["*"]["observed"]


@pytest.mark.parametrize("id", IDS)
def test_the_odd_node_is_named(id: str) -> None:
    change, observed, required, severity = CHANGES[id]
    facts = cluster(id)
    change(facts["node3"])
    found = over(id, facts, context(id))
    assert set(found) == {"node3"}
    assert found["node3"]["status"] == "fail"
    assert (found["node3"]["observed"], found["node3"]["required"], found["node3"]["severity"]) == (observed, required, severity)


@pytest.mark.parametrize("id", IDS)
def test_a_tie_is_said_to_be_one(id: str) -> None:
    change = CHANGES[id][0]
    facts = cluster(id)
    for name in NAMES[:3]:
        change(facts[name])
    found = over(id, facts, context(id))
    assert set(found) == {"*"}
    assert (found["*"]["status"], found["*"]["severity"]) == ("warn", "warn")
    assert found["*"]["observed"].startswith("tie")
    assert "node1, node2 and 1 more" in found["*"]["observed"] and "node4, node5 and 1 more" in found["*"]["observed"]


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("section", [MISSING, None, {}, {"unknown": {"all": "stuck"}}, "garbage"])
def test_who_is_not_known_is_left_out_and_named(id: str, section: Any) -> None:
    facts = cluster(id)
    put(facts["node5"], UNKNOWN[id], section)
    found = over(id, facts, context(id))
    assert set(found) == {"*"}
    assert found["*"]["status"] == "pass"
    assert "5 nodes" in found["*"]["observed"] and "node5" in found["*"]["observed"]
    CHANGES[id][0](facts["node3"])
    found = over(id, facts, context(id))
    assert set(found) == {"node3"}
    assert found["node3"]["required"].endswith("on 4 of 5 nodes (not known on node5)")


@pytest.mark.parametrize("id", IDS)
def test_when_most_are_not_known_nothing_is_said(id: str) -> None:
    facts = cluster(id)
    for name in NAMES[1:]:
        facts[name] = {}
    assert {name: f["status"] for name, f in over(id, facts, context(id)).items()} == {"*": "unknown"}
    facts["node1"] = {}
    assert {name: f["status"] for name, f in over(id, facts, context(id)).items()} == {"*": "unknown"}


@pytest.mark.parametrize("id", IDS)
def test_one_node_has_no_peers(id: str) -> None:
    found = over(id, cluster(id, ["node1"]), context(id, ["node1"]))
    assert (set(found), found["*"]["status"]) == ({"*"}, "skip")


@pytest.mark.parametrize("known, total", [(1, 2), (2, 5)])
def test_too_few_known_nodes_agree_with_nobody(known: int, total: int) -> None:
    facts = cluster(names=NAMES[:total])
    for name in NAMES[known:total]:
        facts[name] = {}
    found = over("drift.driver", facts, context(names=NAMES[:total]))
    assert (set(found), found["*"]["status"]) == ({"*"}, "unknown")
    assert "known on %d of %d nodes only" % (known, total) in found["*"]["observed"]


def test_the_second_port_of_an_hca_is_compared_with_second_ports() -> None:
    facts = cluster()
    for each in facts.values():
        port = dict(each["rdma"]["hcas"][0]["ports"][0], port=2, mtu=4200)
        each["rdma"]["hcas"][0]["ports"].append(port)
    assert over("drift.mtu", facts, context())["*"]["status"] == "pass"
    put(facts["node4"], "rdma.hcas.0.ports.1.mtu", 1500)
    assert over("drift.mtu", facts, context())["node4"]["observed"] == "0000:1a:00.0/2: MTU 1500, RDMA MTU 4096"


def test_two_nodes_that_differ_tie() -> None:
    facts = cluster(names=["node1", "node2"])
    put(facts["node1"], "driver.loaded", "575.57.08")
    found = over("drift.driver", facts, context(names=["node1", "node2"]))
    assert found["*"]["observed"] == "tie: 575.57.08 on node1; 580.95.05 on node2"


def test_no_majority_among_three_values() -> None:
    facts = cluster()
    for name, version in zip(NAMES, ("575.1", "575.1", "580.2", "580.2", "590.3", "590.4")):
        put(facts[name], "driver.loaded", version)
    observed = over("drift.driver", facts, context())["*"]["observed"]
    assert observed == "tie: 575.1 on node1, node2; 580.2 on node3, node4; 590.3 on node5; 1 other value"


def test_the_largest_group_counts_even_below_half() -> None:
    facts = cluster()
    for name, version in zip(NAMES, ("580.1", "580.1", "580.1", "580.2", "580.3", "580.4")):
        put(facts[name], "driver.loaded", version)
    assert set(over("drift.driver", facts, context())) == {"node4", "node5", "node6"}


def test_hcas_are_compared_by_place_and_not_by_name() -> None:
    facts = cluster()
    for i, hca in enumerate(reversed(facts["node2"]["rdma"]["hcas"])):
        hca["name"] = "renamed%d" % i
    assert over("drift.hca", facts, context())["*"]["status"] == "pass"
    facts["node2"]["rdma"]["hcas"][0]["type"] = "MT4129"
    assert over("drift.hca", facts, context())["node2"]["observed"] == "0000:1a:00.0: MT4129"


def test_an_hca_that_only_one_node_has_is_odd() -> None:
    facts = cluster()
    facts["node2"]["rdma"]["hcas"].append({"name": "mlx5_99", "bdf": "0000:f9:00.0", "type": "MT4129", "ports": []})
    found = over("drift.hca", facts, context())
    assert (set(found), found["node2"]["observed"], found["node2"]["required"]) == (
        {"node2"},
        "0000:f9:00.0: MT4129",
        "missing on 5 of 6 nodes",
    )


def test_hcas_of_switches_and_virtual_functions_are_not_compared() -> None:
    facts = cluster()
    facts["node2"]["rdma"]["hcas"].append({"name": "mlx5_99", "bdf": "0000:f9:00.1", "type": "MT4129", "virtual": True, "ports": []})
    facts["node3"]["rdma"]["hcas"].pop()  # one that manages NVSwitches
    assert over("drift.hca", facts, context())["*"]["status"] == "pass"


def test_a_difference_of_hcas_blocks_only_where_rdma_is_planned() -> None:
    facts = cluster()
    facts["node2"]["rdma"]["hcas"].pop(0)
    assert over("drift.hca", facts, context()._replace(needs_rdma=False))["node2"]["severity"] == "warn"


def test_management_ports_and_ports_that_are_down_have_no_part_in_gid_and_mtu() -> None:
    facts = cluster()
    put(facts["node2"], "rdma.hcas.8.ports.0.mtu", 9216)
    put(facts["node2"], "rdma.hcas.8.ports.0.gids", [])
    put(facts["node3"], "rdma.hcas.1.ports.0", {"port": 1, "state": "DOWN", "link_layer": "Ethernet", "mtu": 1500, "gids": []})
    for id in ("drift.gid", "drift.mtu"):
        assert set(over(id, facts, context())) == {"*"}
        assert over(id, facts, context())["*"]["status"] == "pass"


def test_a_port_without_gid_is_odd() -> None:
    facts = cluster()
    put(facts["node2"], "rdma.hcas.0.ports.0.gids", [{"i": 0, "gid": "fe80::1", "type": "RoCE v2"}])
    assert over("drift.gid", facts, context())["node2"]["observed"] == "0000:1a:00.0: no RoCE v2 GID with an IPv4 address"


def test_infiniband_has_no_gid_index_to_compare() -> None:
    facts = cluster()
    for each in facts.values():
        for hca in each["rdma"]["hcas"]:
            hca["ports"][0]["link_layer"] = "InfiniBand"
    assert over("drift.gid", facts, context())["*"]["status"] == "skip"


def test_several_odd_ports_are_one_finding() -> None:
    facts = cluster()
    for i in range(4):
        put(facts["node2"], "rdma.hcas.%d.ports.0.gids.3.i" % i, 5)
    assert over("drift.gid", facts, context())["node2"]["observed"] == "0000:1a:00.0: RoCE v2 GID at index 5 and 3 more"


def test_nodes_that_do_not_hold_the_image_yet_are_no_drift() -> None:
    facts = cluster()
    for name in NAMES[:2]:
        put(facts[name], "container.image", {"name": "vllm/vllm-openai:kimi-k3", "present": False})
    assert over("drift.image", facts, context())["*"]["observed"] == "sha256:3c3c3c3c3c3c on 4 nodes"
    for name in NAMES:
        put(facts[name], "container.image.present", False)
    assert over("drift.image", facts, context())["*"]["status"] == "skip"


def test_the_digest_of_the_planned_name_counts() -> None:
    facts = cluster()
    put(facts["node2"], "container.image.digests", ["mirror.example/k3@sha256:" + "99" * 32, DIGEST])
    assert over("drift.image", facts, context())["*"]["status"] == "pass"
    put(facts["node2"], "container.image.digests", [])
    assert over("drift.image", facts, context())["node2"]["observed"] == "id sha256:7a7a7a7a7a7a"


def test_a_toolkit_that_is_missing_is_odd() -> None:
    facts = cluster()
    put(facts["node2"], "container.toolkit", {"version": None, "ctk": False, "hook": False, "configured": False, "mode": None})
    assert over("drift.toolkit", facts, context())["node2"]["observed"] == "missing"


def test_env_files_by_name() -> None:
    facts = cluster()
    facts["node2"]["service"]["env_files"]["/etc/vllm/extra.env"] = "11" * 32
    found = over("drift.env", facts, context())
    assert (set(found), found["node2"]["observed"]) == ({"node2"}, "/etc/vllm/extra.env: 111111111111")
    del facts["node2"]["service"]["env_files"]["/etc/vllm/extra.env"]
    del facts["node2"]["service"]["env_files"]["/etc/vllm/vllm.env"]
    assert over("drift.env", facts, context())["node2"]["observed"] == "/etc/vllm/vllm.env: missing"


def test_an_env_file_that_is_each_nodes_own_is_no_drift() -> None:
    facts = cluster()
    for i, name in enumerate(NAMES):
        facts[name]["service"]["env_files"]["/etc/vllm/node.env"] = ("%02d" % i) * 32
    found = over("drift.env", facts, context())
    assert found["*"]["status"] == "pass"
    assert "/etc/vllm/node.env is each node's own" in found["*"]["observed"]
    # Two nodes that differ cannot be told from drift.
    two = {name: facts[name] for name in NAMES[:2]}
    assert over("drift.env", two, context(names=NAMES[:2]))["*"]["observed"].startswith("tie of /etc/vllm/node.env")


def test_a_node_without_gpu_is_odd() -> None:
    facts = cluster()
    put(facts["node6"], "gpu", {"pci": [], "unknown": {"smi": "nvidia-smi is not installed"}})
    put(facts["node6"], "driver.loaded", None)
    assert over("drift.gpu", facts, context())["node6"]["observed"] == "no GPU"
    assert over("drift.driver", facts, context())["node6"]["observed"] == "no driver loaded"


def test_fewer_gpus_are_odd() -> None:
    facts = cluster()
    facts["node6"]["gpu"]["gpus"][7] = {"index": 7, "bdf": "0000:df:00.0", "lost": True}
    assert over("drift.gpu", facts, context())["node6"]["observed"] == "7 × NVIDIA B300 SXM6 AC"


def test_cliques_and_imex_are_compared_only_where_nvlink_joins_nodes() -> None:
    facts = {name: healthy_gb300(name) for name in NAMES}
    for id in ("drift.clique", "drift.imex_config"):
        CHANGES[id][0](facts["node3"])
        assert over(id, facts, gb300_context(NAMES)._replace(needs_mnnvl=False))["*"]["status"] == "skip"


# --- the comparison itself ------------------------------------------------------------------------


def compared(values: Mapping[str, Optional[Mapping[str, str]]], **row: Any) -> Dict[str, Any]:
    nodes = [Node(name, {}) for name in values]
    return drift.compare(nodes, b300_context(list(values)), drift.Row(lambda node, _context: values[node.name], "value", "nothing", **row))


VALUES = st.dictionaries(
    st.integers(0, 40).map(lambda i: "n%d" % i),
    st.none() | st.dictionaries(st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["1", "2", "3"]), max_size=4),
    min_size=2,
    max_size=40,
)


@given(VALUES, st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_what_comes_out_of_any_comparison(values: Dict[str, Any], absence: bool, own: bool) -> None:
    found = compared(values, absence=absence, own=own)
    assert found
    odd = {name: f for name, f in found.items() if name != "*"}
    assert all(f.status == "fail" and values[name] is not None for name, f in odd.items())
    # Someone is odd or something is said of all; a pass never stands beside an odd node or a tie.
    assert "*" in found or odd
    if "*" in found:
        assert found["*"].status in ("pass", "warn", "skip", "unknown")
        assert found["*"].status == "warn" or not odd
    known: List[Any] = [v for v in values.values() if v is not None and (v or absence)]
    if found.get("*") is not None and found["*"].status == "pass" and not own:
        items = {item for v in known for item in v}
        for item in items:
            seen = {v.get(item, "missing" if absence else None) for v in known} - {None}
            assert len(seen) == 1
    # The odd nodes of an item are never as many as the majority they are measured by.
    assert len(odd) < max(1, len(known)) or len({tuple(sorted(v.items())) for v in known}) > 1


def test_ten_thousand_nodes_are_compared_in_linear_time() -> None:
    def measured(size: int) -> float:
        # The worst kind of drift: an item on every node that no other node has.
        values = {"n%d" % i: {"": "same", "own%d" % i: "x", "a": str(i % 7)} for i in range(size)}
        started = time.process_time()
        compared(values, absence=True)
        return time.process_time() - started

    small, large = measured(1000), measured(10000)
    assert large < max(30 * small, 0.5)
