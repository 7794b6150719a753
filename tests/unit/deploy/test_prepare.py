# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a plan is asked on a node, and what is refused before that."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.deploy import prepare
from ansible_collections.inferops.vllm.plugins.module_utils.deploy.prepare import Refused


def plan(**changes: Any) -> dict[str, Any]:
    def node(rank: int) -> dict[str, Any]:
        ports = {"master": 29501, "link": 29490}
        return {
            "role": "worker" if rank else "head", "rank": rank, "engine": "engine", "env": {}, "argv": ["vllm", "serve", "/m"],
            "image": "i@sha256:0", "container_engine": "docker",
            "ports": ports if rank else dict(ports, api=8000), "address": "10.0.0.%d" % (rank + 1), "reasons": [],
            "health_url": None if rank else "http://10.0.0.1:8000/health"}

    return {"nodes": {"a": node(0), "b": node(1)}, "engines": [{"name": "engine", "pool": "", "nodes": ["a", "b"]}], "refused": [], "complete": True, **changes}


def test_a_plan_that_can_be_deployed_is_not_refused() -> None:
    prepare.refuse(plan(), "a", ["a", "b"], False)


@pytest.mark.parametrize("changes, node, play, recorded, text", [
    ({"refused": [{"why": "it does not fit"}]}, "a", "ab", False, "the plan is refused: it does not fit"),
    ({}, "a", "ab", True, "a is a recorded node"),
    ({}, "c", "abc", False, "c is no part of the plan"),
    ({}, "b", "b", False, "--limit leaves out a, and the engine of b needs all its ranks"),
])
def test_refusals(changes: dict, node: str, play: str, recorded: bool, text: str) -> None:
    with pytest.raises(Refused, match=text):
        prepare.refuse(plan(**changes), node, list(play), recorded)


def test_a_plan_with_a_placeholder_is_refused() -> None:
    made = plan(complete=False)
    made["nodes"]["b"]["env"]["GLOO_SOCKET_IFNAME"] = "IFACE_OF_b"
    with pytest.raises(Refused, match="the interface of b is not known; declare vllm_interface"):
        prepare.refuse(made, "a", ["a", "b"], False)


def test_serial() -> None:
    assert prepare.serial(True, 1) == 1 and prepare.serial(True, "3") == 3 and prepare.serial(True, "25%") == "25%"
    assert prepare.serial(False, 1) == "100%"
    for wrong in (0, -1, True, "x", "", None, "1.5", "²"):
        with pytest.raises(Refused, match=r"^deploy_serial: "):
            prepare.serial(True, wrong)
    assert not prepare.independent(plan()) and prepare.independent({"engines": [{"pool": "", "nodes": ["a"]}, {"pool": "", "nodes": ["b"]}]})
    assert not prepare.independent({"engines": [{"pool": "prefill", "nodes": ["a"]}]})


def test_what_is_looked_for() -> None:
    head, worker = prepare.wanted(plan(), "a", ["a", "b"]), prepare.wanted(plan(), "b", ["b"])
    assert head["peers"] == [{"name": "b", "address": "10.0.0.2", "ports": [29490]}] and head["names"] == []
    assert worker["peers"] == [{"name": "a", "address": "10.0.0.1", "ports": [8000, 29490, 29501]}] and worker["names"] == ["a"]
    assert {port["what"] for port in head["ports"]} == {"api", "master", "link"} and worker["ports"] == []
    assert head["ports"][-1] == {"what": "api", "address": "10.0.0.1", "port": 8000} and head["engine"] == "docker"


def test_what_has_to_be_there_for_a_start() -> None:
    made = plan()
    assert prepare.wanted(made, "a")["image"] == "i@sha256:0"
    assert prepare.wanted(made, "a")["weights"] == {"model": "/m", "path": "/var/lib/vllm", "revision": ""}
    made["nodes"]["a"].update(argv=["vllm", "serve", "o/m", "--revision", "c0"], env={"HF_HOME": "/w"}, image="")
    assert prepare.wanted(made, "a")["image"] == "" and prepare.wanted(made, "a")["weights"] == {"model": "o/m", "path": "/w", "revision": "c0"}
    made["nodes"]["b"].update(role="router", argv=["vllm-router"])
    assert prepare.wanted(made, "b")["weights"] == {}


def test_an_engine_on_one_node_asks_for_no_peer() -> None:
    made = plan(engines=[{"name": "a", "pool": "", "nodes": ["a"]}, {"name": "b", "pool": "", "nodes": ["b"]}])
    assert prepare.wanted(made, "a")["peers"] == [] and prepare.wanted(made, "a")["source"] == ""


def test_pools_ask_for_each_other() -> None:
    made = plan(engines=[{"name": "p", "pool": "prefill", "nodes": ["a"]}, {"name": "d", "pool": "decode", "nodes": ["b"]}])
    assert [peer["name"] for peer in prepare.wanted(made, "a")["peers"]] == ["b"]


@pytest.mark.parametrize(("groups", "service"), [
    (["vllm_router"], "vllm-router"), (["all", "vllm_decode"], "vllm"), (["vllm_nodes", "vllm_prefill"], "vllm"), (["vllm_nodes", "vllm_router"], ""), ([], ""),
])
def test_a_second_name_of_a_machine_has_a_service_of_its_own(groups, service):
    assert prepare.service_by_groups(groups) == service
