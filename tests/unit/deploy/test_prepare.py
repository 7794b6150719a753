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


# -- the release that all ranks of an engine go back to --------------------------------------------------------------
def kept(*releases: tuple, peers: str = "ab", rolled_back: bool = False) -> list[dict[str, Any]]:
    """Releases of one host from (number, plan), the current one first; those without a plan have no peers."""
    return [{"number": number, "plan": plan, "peers": list(peers) if plan else [], "rolled_back": rolled_back and not at, "trouble": ""}
            for at, (number, plan) in enumerate(releases)]


def back(node: str, **hosts: list) -> int:
    return int(prepare.going_back(node, "vllm", hosts)["number"])


@pytest.mark.parametrize("first, second, numbers", [
    # Sound: one release back, also once more after a rollback, and whatever the numbers are.
    (kept((3, "P3"), (2, "P2"), (1, "P1")), kept((3, "P3"), (2, "P2"), (1, "P1")), (2, 2)),
    (kept((2, "P2"), (1, "P1"), rolled_back=True), kept((2, "P2"), (1, "P1"), rolled_back=True), (1, 1)),
    (kept((3, "P3"), (2, "P2")), kept((7, "P3"), (5, "P2")), (2, 5)),
    # An earlier rollback reached one rank only: the other follows, the first stays.
    (kept((2, "P2"), (1, "P1"), rolled_back=True), kept((3, "P3"), (2, "P2"), (1, "P1")), (2, 2)),
    (kept((3, "P3"), (2, "P2"), (1, "P1")), kept((2, "P2"), (1, "P1"), rolled_back=True), (2, 2)),
    # The same where the releases differ by secrets alone, so that all run one plan.
    (kept((2, "P"), (1, "P"), rolled_back=True), kept((3, "P"), (2, "P"), (1, "P")), (2, 2)),
    # An earlier plan was deployed anew: to where the rollback led, not to where it came from.
    (kept((3, "P1"), (2, "P2"), (1, "P1")), kept((2, "P2"), (1, "P1"), rolled_back=True), (2, 2)),
    # A deployment reached one rank only.
    (kept((4, "P4"), (3, "P3")), kept((3, "P3"), (2, "P2")), (3, 3)),
    # The rank that went back is an engine of its own again, with nothing before it.
    (kept((1, ""), rolled_back=True), kept((2, "P2"), (1, "")), (1, 1)),
    # From replicas to the engine that was there before them.
    (kept((2, ""), (1, "P1")), kept((2, ""), (1, "P1")), (1, 1)),
])
def test_ranks_go_back_together(first: list, second: list, numbers: tuple) -> None:
    assert (back("a", a=first, b=second), back("b", a=first, b=second)) == numbers


def test_engines_of_their_own_go_back_by_themselves() -> None:
    assert back("a", a=kept((5, ""), (4, "")), b=kept((2, ""))) == 4
    assert back("a", a=kept((5, ""), (4, ""), (3, ""), rolled_back=True), b=kept((2, ""))) == 4


@pytest.mark.parametrize("hosts, text", [
    ({"a": kept((1, ""))}, "a: no earlier release of vllm is kept"),
    ({"a": kept((2, "P2"), (1, "P1")), "b": kept((2, "P2"))}, "b: no earlier release of vllm is kept"),
    ({"a": kept((3, "P3"), (2, "P2")), "b": kept((3, "P3"), (1, "P1"))}, "a would go back to release 2 and b to release 1, which do not run together"),
    ({"a": kept((3, "P3"), (2, "P2")), "b": kept((4, "P4"), (1, "P1"))}, "a, b do not run the same, and no release that all of them could go back to"),
    ({"a": kept((2, ""), (1, "P1"))}, "--limit leaves out b"),
    ({"a": [kept((2, ""))[0], dict(kept((1, ""))[0], trouble="the image x is not on this node")]},
     "a cannot go back to release 1: the image x is not on this node; deploy"),
])
def test_ranks_that_cannot_go_back_together_are_refused(hosts: dict, text: str) -> None:
    with pytest.raises(Refused, match=text):
        back("a", **hosts)
