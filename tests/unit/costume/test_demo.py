# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded nodes that are committed are those that the generator makes now."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
import yaml

from ansible_collections.inferops.vllm.plugins.module_utils.node import collect
from tests.costume import record

SPECS = {spec.name: spec for inventory in record.DEMOS for spec in record.specs(inventory)}
MAX_NODE = 150 * 1024


def committed(name: str) -> Dict[str, bytes]:
    root = record.RECORDED / name
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_no_other_node_is_recorded() -> None:
    assert sorted(path.name for path in record.RECORDED.iterdir()) == sorted(SPECS)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_recorded_node_is_up_to_date(name: str) -> None:
    made, there = record.record(SPECS[name]), committed(name)
    assert sorted(made) == sorted(there), "run: python -m tests.costume.record"
    assert [part for part in made if made[part] != there[part]] == [], "run: python -m tests.costume.record"


@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_recorded_node_is_small_and_answers_every_question(name: str) -> None:
    assert sum(map(len, committed(name).values())) < MAX_NODE
    reader, options, head = collect.open_root(str(record.RECORDED / name))
    assert head["node"] == name and options.image == record.IMAGE and options.names == SPECS[name].peers
    facts = collect.gather(reader, options)
    assert facts["collected"]["recorded"] is True
    assert [key for key, answer in reader.memo.items() if answer.error == "not_recorded"] == []
    whys = [why for section in facts.values() if isinstance(section, dict) for why in section.get("unknown", {}).values()]
    assert bool(whys) == ("smi_hung" in SPECS[name].faults), whys


@pytest.mark.parametrize("inventory", sorted(record.DEMOS))
def test_the_inventory_names_the_recorded_nodes(inventory: str) -> None:
    folder = record.RECORDED.parent / inventory
    hosts: Dict[str, Any] = yaml.safe_load((folder / "hosts.yml").read_text())["vllm_nodes"]["hosts"]
    shared: Dict[str, Any] = yaml.safe_load((folder / "group_vars" / "all.yml").read_text())
    assert list(hosts) == list(record.DEMOS[inventory][1])
    assert {name: entry["vllm_host_ip"] for name, entry in hosts.items()} == {spec.name: spec.address for spec in record.specs(inventory)}
    assert shared["vllm_hardware"] == record.DEMOS[inventory][0] and shared["ansible_connection"] == "local"
    for name in hosts:
        root = Path(folder, shared["vllm_node_root"].replace("{{ inventory_hostname }}", name))
        assert root.resolve() == record.RECORDED / name
        reader, _options, _head = collect.open_root(str(root))
        assert reader.read("/sys/class/net/%s/mtu" % shared["vllm_interface"]).text
