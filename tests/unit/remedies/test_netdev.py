# SPDX-License-Identifier: GPL-3.0-or-later
"""Interfaces of RDMA ports: what has to change, and what it was."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.remedies import netdev as n
from ansible_collections.inferops.vllm.plugins.modules import rdma_netdev

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
        ({"names": [], "addresses": {"a": "10.0.0.1"}}, "with prefix length"),
        ({"names": [], "addresses": {"a": 167772161}}, "with prefix length"),
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


@pytest.mark.parametrize("wanted", ["10.0.0.1/24", "10.0.0.1/255.255.255.0", "FD00::1/64", "fd00:0:0:0:0:0:0:1/64", "fd00::1/64"])
def test_an_address_is_one_however_it_is_written(wanted: str) -> None:
    there = {"a": NOW["a"]._replace(addresses=["10.0.0.1/24", "fd00::1/64"])}
    bare = {"a": NOW["a"]._replace(addresses=[])}
    assert n.changes(there, [], addresses={"a": wanted}) == []
    lines = n.changes(bare, [], addresses={"a": wanted})
    kept = n.remember({}, bare, lines)
    assert len(lines) == 1 and n.undo(kept, there, "addresses") == [["address", "delete", lines[0][2], "dev", "a"]]
    # What an earlier version remembered and wrote for the next boot.
    assert n.undo({"a": {"given": [wanted]}}, there, "addresses") == [["address", "delete", lines[0][2], "dev", "a"]]
    assert n.merged([["address", "replace", wanted, "dev", "a"]], lines) == lines
    told = [{"ifname": "a", "addr_info": [{"local": wanted.split("/")[0], "prefixlen": int(lines[0][2].split("/")[1])}]}]
    assert n.parse(json.dumps(told))["a"].addresses == [lines[0][2]]


class Box:
    """The module on a machine whose `ip` is a stand-in and whose interface has 10.0.0.1/24 and fd00::1/64."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.capsys, self.ip = capsys, folder / "bin" / "ip"
        self.ip.parent.mkdir()
        addresses = [{"local": "10.0.0.1", "prefixlen": 24}, {"local": "fd00::1", "prefixlen": 64}]
        self.answers("echo '%s'" % json.dumps([{"ifname": "a", "flags": ["UP"], "mtu": 1500, "addr_info": addresses}]), "exit 1")
        monkeypatch.setenv("PATH", str(self.ip.parent), prepend=":")
        monkeypatch.setattr(rdma_netdev, "gather", lambda reader, options: {"rdma": {"hcas": [{"ports": [{"netdev": "a"}]}]}})
        monkeypatch.setattr(rdma_netdev, "LIMIT", 1)
        for word in ("UNIT", "KEPT", "WANTED"):
            monkeypatch.setattr(n, word, str(folder / word.lower()))

    def answers(self, show: str, change: str) -> None:
        self.ip.write_text('#!/bin/sh\nif [ "$1" = -json ]; then %s; else %s; fi\n' % (show, change))
        self.ip.chmod(0o755)

    def run(self, **arguments: object) -> dict:
        with patch_module_args(arguments), pytest.raises(SystemExit):
            rdma_netdev.main()
        return json.loads(self.capsys.readouterr().out)


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Box:
    return Box(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("wanted", ["10.0.0.1/255.255.255.0", "FD00::1/64"])
def test_an_address_that_is_there_is_kept_for_the_next_boot_and_changes_once(box: Box, wanted: str) -> None:
    first = box.run(addresses={"a": wanted})
    assert first["changed"] and first["commands"] == [] and "address replace %s dev a" % n.canonical("a", wanted) in first["diff"]["after"]
    assert not box.run(addresses={"a": wanted})["changed"]


@pytest.mark.parametrize(("show", "change", "said"), [
    ("exec sleep 60", "exit 0", "ip -json address show: .*ip did not end within 1 s"),
    ("cat %s", "exec sleep 60", "ip link set dev a mtu 9000: .*ip did not end within 1 s"),
    ("echo no such option >&2; exit 255", "exit 0", "ip -json address show: no such option")])
def test_an_ip_that_does_not_answer_is_given_up(box: Box, tmp_path: Path, show: str, change: str, said: str) -> None:
    (tmp_path / "told").write_text(json.dumps([{"ifname": "a", "flags": ["UP"], "mtu": 1500}]))
    box.answers(show.replace("%s", str(tmp_path / "told")), change)
    began = time.monotonic()
    found = box.run(mtu=9000)
    assert found["failed"] and time.monotonic() - began < 10
    assert re.search(said, found["msg"]), found["msg"]
