# SPDX-License-Identifier: GPL-3.0-or-later
"""Which services are verified after a remediation, against which plan, and what its outcome means."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.remedies.rounds import Case
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.state import State
from ansible_collections.inferops.vllm.plugins.plugin_utils.remediation import STAGES, RequestError, interrupted_services, plan_of, proof, proof_lines, request

GOOD = {"stages": {"start": "passed", "request": "passed", "prefix": "passed", "concurrency": "not_verified", "stability": "not_verified"},
        "sentence": "accepted", "report": {"json": "/r/verify.json"}}


def case(name: str, serving: bool, *engine: str) -> Case:
    return Case(name, State(serving=serving), {}, engine=engine or (name,))


def content(*nodes: str, stopped: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"proof": {"nodes": list(nodes)}, "stopped": list(stopped)}


def test_what_served_while_its_node_was_changed_is_proven_and_nothing_else() -> None:
    cases = [case("a", True), case("b", False), case("c", True)]
    assert interrupted_services(cases, content(), {"a", "b"}) == ["a"]


def test_all_ranks_of_the_engine_are_proven_together() -> None:
    cases = [case("a", True, "a", "b"), case("b", True, "a", "b"), case("c", True)]
    assert interrupted_services(cases, content(), {"b"}) == ["a", "b"]


def test_what_was_stopped_in_an_earlier_round_is_not_forgotten() -> None:
    cases = [case("a", False), case("b", False), case("c", False)]
    assert interrupted_services(cases, content("a", stopped=("c",)), set()) == ["a", "c"]


def test_the_plan_holds_the_engines_of_these_nodes_and_the_router(tmp_path: pathlib.Path) -> None:
    plan = {"model": "m", "nodes": {"a": {"role": "head"}, "b": {"role": "head"}, "r": {"role": "router"}},
            "engines": [{"name": "one", "nodes": ["a"]}, {"name": "two", "nodes": ["b"]}]}
    path, part = tmp_path / "plan.json", tmp_path / "verify" / "plan.json"
    path.write_text(json.dumps(plan))
    assert plan_of(str(path), ["a"], str(part)) == str(part)
    found = json.loads(part.read_text())
    assert list(found["nodes"]) == ["a", "r"] and [engine["name"] for engine in found["engines"]] == ["one"] and found["model"] == "m"
    assert plan_of(str(path), ["a", "b"], str(part)) == str(path), "all of it is the plan itself"
    assert plan_of(str(path), [], str(part)) == str(path)


@pytest.mark.parametrize("text", [None, "", "[]", '{"nodes": 3}', '{"nodes": {"a": 1}}', '{"nodes": {"b": {}}, "engines": [1]}'])
def test_what_is_no_plan_is_left_to_the_acceptance_to_refuse(tmp_path: pathlib.Path, text: str | None) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    assert plan_of(str(path), ["a"], str(tmp_path / "part.json")) == str(path)


@pytest.mark.parametrize(
    ("names", "wanted", "found", "verdict", "why"),
    [
        ((), STAGES, {}, "none", ""),
        (("a",), (), {}, "not_run", ""),
        (("a",), STAGES, GOOD, "passed", ""),
        (("a",), STAGES, {**GOOD, "stages": {**GOOD["stages"], "prefix": "not_verified"}}, "not_verified", ""),
        (("a",), STAGES, {**GOOD, "stages": {**GOOD["stages"], "request": "failed"}, "sentence": "stage request: no answer"}, "failed",
         "stage request: no answer"),
        # A stage that was not asked for does not count.
        (("a",), ("start",), {**GOOD, "stages": {**GOOD["stages"], "request": "failed"}}, "passed", ""),
        (("a",), STAGES, {"why": "a is not ready: it ended"}, "failed", "a is not ready: it ended"),
        (("a",), STAGES, {**GOOD, "why": "b does not answer"}, "failed", "b does not answer"),
        (("a",), STAGES, {}, "failed", "it was not verified"),
    ],
)
def test_the_verdict(names: tuple[str, ...], wanted: tuple[str, ...], found: dict[str, Any], verdict: str, why: str) -> None:
    made = proof(names, wanted, found)
    assert (made["verdict"], made["why"]) == (verdict, why)
    lines = proof_lines(made)
    assert bool(lines) is (verdict != "none") and all(why in text for text, _color in lines)


def test_stages_that_load_or_kill_are_refused() -> None:
    assert request({}, []).verify == STAGES and request({"verify": []}, []).verify == () and request({"verify": ["start"]}, []).verify == ("start",)
    for wrong in (["stability"], "start", 3):
        with pytest.raises(RequestError, match="remediate_verify"):
            request({"verify": wrong}, [])
