# SPDX-License-Identifier: GPL-3.0-or-later
"""Interfaces of RDMA ports: what has to change, and what it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.remedies import netdev as n

NOW = {"a": n.Interface("a", True, 1500, ["10.0.0.1/24"]), "b": n.Interface("b", False, 9000, [])}


def test_ip_is_read() -> None:
    text = json.dumps(
        [
            {"ifname": "a", "flags": ["BROADCAST", "UP"], "mtu": 1500, "addr_info": [{"local": "10.0.0.1", "prefixlen": 24}]},
            {"ifname": "b", "flags": ["BROADCAST"], "mtu": 9000, "addr_info": []},
        ]
    )
    assert n.parse(text) == NOW


@given(
    st.text()
    | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["ifname", "mtu", "addr_info"]), x)).map(
        json.dumps
    )
)
def test_any_text_is_read(text: str) -> None:
    assert isinstance(n.parse(text), dict)


def test_only_what_differs_is_changed() -> None:
    assert n.changes(NOW, ["a", "b"], mtu=9000) == [["link", "set", "dev", "a", "mtu", "9000"]]
    assert n.changes(NOW, ["a", "b"], up=True) == [["link", "set", "dev", "b", "up"]]
    assert n.changes(NOW, [], addresses={"a": "10.0.0.1/24", "b": "10.0.0.2/24"}) == [["address", "replace", "10.0.0.2/24", "dev", "b"]]
    assert n.changes(NOW, ["b"], mtu=9000) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"names": ["c"], "mtu": 9000}, "no interface c"),
        ({"names": ["a"], "mtu": 70000}, "between 1280"),
        ({"names": [], "addresses": {"a": "10.0.0"}}, "no address"),
        ({"names": [], "addresses": {"c": "10.0.0.1/24"}}, "no interface c"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict, said: str) -> None:
    with pytest.raises(n.NetdevError, match=said):
        n.changes(NOW, **arguments)


def test_the_unit_says_each_thing_once() -> None:
    lines = n.merged(
        [["link", "set", "dev", "a", "mtu", "4200"], ["address", "replace", "10.0.0.1/24", "dev", "a"]], [["link", "set", "dev", "a", "mtu", "9000"]]
    )
    assert lines == [["address", "replace", "10.0.0.1/24", "dev", "a"], ["link", "set", "dev", "a", "mtu", "9000"]]
    assert n.lines_of(n.unit(lines)) == lines


def test_undo_gives_back_what_was_there_first() -> None:
    kept = n.remember({}, NOW, n.changes(NOW, ["a"], mtu=4200, addresses={"a": "10.9.0.1/24"}))
    kept = n.remember(kept, {**NOW, "a": NOW["a"]._replace(mtu=4200)}, [["link", "set", "dev", "a", "mtu", "9000"]])
    assert kept == {"a": {"mtu": 1500, "given": ["10.9.0.1/24"]}}
    later = {"a": n.Interface("a", True, 9000, ["10.0.0.1/24", "10.9.0.1/24"])}
    assert n.undo(kept, later, "mtu") == [["link", "set", "dev", "a", "mtu", "1500"]]
    assert n.undo(kept, later, "addresses") == [["address", "delete", "10.9.0.1/24", "dev", "a"]]
    assert n.undo(kept, NOW, "mtu") == []


def test_an_interface_that_carries_ssh_is_left_out() -> None:
    port = {"state": "DOWN", "netdev": "a"}
    facts = {
        "rdma": {
            "hcas": [
                {"name": "mlx5_0", "ports": [port]},
                {"name": "mlx5_1", "carries": ["ssh"], "ports": [{"state": "DOWN", "netdev": "b"}]},
                {"name": "mlx5_2", "ports": [{"state": "ACTIVE", "netdev": "c"}]},
            ]
        }
    }
    assert n.rdma_interfaces(facts) == ["a", "c"]
    assert n.rdma_interfaces(facts, down=True) == ["a"]
    assert n.rdma_interfaces({}) == []


def test_what_was_taken_back_is_remembered_anew() -> None:
    kept = n.remember({}, NOW, [["link", "set", "dev", "a", "mtu", "9000"], ["address", "replace", "10.0.0.2/24", "dev", "a"]])
    assert n.forgotten(kept, "mtu") == {"a": {"given": ["10.0.0.2/24"]}}
    assert n.forgotten(n.forgotten(kept, "mtu"), "addresses") == {}
