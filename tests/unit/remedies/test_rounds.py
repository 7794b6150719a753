# SPDX-License-Identifier: GPL-3.0-or-later
"""Who acts next, and how the act is judged."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.remedies.rounds import Case, Round, choose_round, judge_round, steps_of
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.state import ALLOWED_WORDS, State

PEERMEM = {"gpudirect.peermem": "block"}
LACKS = State(peermem="loadable", peermem_everywhere=False, allow=ALLOWED_WORDS)
OLD = State(driver="old", serving=True, deployed=True, allow=ALLOWED_WORDS)
BRANCH = {"driver.branch": "block"}


def finding(id: str, status: str, severity: str = "block") -> dict[str, Any]:
    return {"id": id, "status": status, "severity": severity}


def test_one_failure_domain_at_a_time() -> None:
    cases = [Case("a", LACKS, PEERMEM, domain="rack1"), Case("b", LACKS, PEERMEM, domain="rack2"), Case("c", LACKS, PEERMEM, domain="rack1")]
    assert choose_round(cases, 3, 8).act == ("a", "c")
    assert choose_round(cases, 3, 1).act == ("a",)
    assert choose_round([case._replace(domain="") for case in cases], 3, 8).act == ("a",)


def test_all_nodes_of_an_engine_stop_together_and_only_those_that_serve() -> None:
    cases = [
        Case("a", OLD, BRANCH, engine=("a", "b", "c")),
        Case("b", State(serving=True), {}, engine=("a", "b", "c")),
        Case("c", State(), {}, engine=("a", "b", "c")),
        Case("d", State(serving=True), {}, engine=("d",)),
    ]
    assert choose_round(cases, 3, 8) == Round("driver_upgrade", ("a",), ("a", "b"), {"a": ("driver.branch",)})


def test_a_remedy_of_an_engine_is_done_on_all_its_nodes() -> None:
    state = State(dmabuf=False, peermem_everywhere=True, deployed=True, serving=True)
    cases = [Case(name, state, {"rdma_registration": "block"}, engine=("a", "b"), domain=name) for name in "ab"]
    assert choose_round(cases, 3, 1).act == ("a", "b")


def test_what_did_not_mend_is_not_done_again_and_nothing_after_it() -> None:
    cases = [Case("a", LACKS._replace(toolkit="absent"), {**PEERMEM, "container.toolkit": "block"}), Case("b", LACKS, PEERMEM)]
    assert choose_round(cases, 3, 8).act == ("a",)
    assert choose_round(cases, 3, 8, [("a", "peermem_load")]).act == ("b",)
    assert choose_round(cases, 3, 8, [("a", "peermem_load"), ("b", "peermem_load")]) == Round()


@pytest.mark.parametrize(
    ("case", "kind", "said"),
    [
        (Case("a", LACKS, PEERMEM, spent=3), "given_up", "budget of 3"),
        (Case("a", LACKS, PEERMEM, refused="The state file belongs to another machine."), "forbidden", "another machine"),
        (Case("a", LACKS, PEERMEM, tried={"peermem_load": 1}), "given_up", "tried 1 time"),
        (Case("a", LACKS._replace(recorded=True), PEERMEM), "forbidden", "recording"),
    ],
)
def test_a_node_that_may_not_be_touched_is_told(case: Case, kind: str, said: str) -> None:
    steps = steps_of(case, 3)
    assert steps[0].decision.kind == kind and said in steps[0].decision.why
    assert choose_round([case], 3, 8) == Round()


def test_a_person_asks_for_one_remedy_by_name() -> None:
    assert choose_round([Case("a", State(), {}, only="reboot")], 3, 8) == Round()
    assert choose_round([Case("a", State(allow=("reboot",)), {}, only="reboot")], 3, 8).remedy == "reboot"


@pytest.mark.parametrize(
    ("before", "after", "mended", "unmended", "worse"),
    [
        ([finding("gpudirect.peermem", "fail")], [finding("gpudirect.peermem", "pass")], True, (), ()),
        ([finding("gpudirect.peermem", "fail")], [finding("gpudirect.peermem", "skip")], True, (), ()),
        ([finding("gpudirect.peermem", "fail")], [finding("gpudirect.peermem", "unknown")], False, ("gpudirect.peermem",), ()),
        ([finding("gpudirect.peermem", "fail")], [], False, ("gpudirect.peermem",), ()),
        (
            [finding("gpudirect.peermem", "fail"), finding("driver.branch", "pass")],
            [finding("gpudirect.peermem", "pass"), finding("driver.branch", "fail")],
            False,
            (),
            ("driver.branch",),
        ),
        (
            [finding("gpudirect.peermem", "fail"), finding("driver.branch", "fail")],
            [finding("gpudirect.peermem", "pass"), finding("driver.branch", "fail")],
            True,
            (),
            (),
        ),
        (
            [finding("gpudirect.peermem", "fail"), finding("rdma.ports", "pass")],
            [finding("gpudirect.peermem", "pass"), finding("rdma.ports", "fail")],
            True,
            (),
            (),
        ),
        (
            [finding("gpudirect.peermem", "fail"), finding("node.reachable", "pass")],
            [finding("gpudirect.peermem", "pass"), finding("node.reachable", "fail")],
            False,
            (),
            ("node.reachable",),
        ),
        (
            [finding("gpudirect.peermem", "fail"), finding("driver.build_ready", "warn", "warn")],
            [finding("gpudirect.peermem", "pass"), finding("driver.build_ready", "fail", "warn")],
            True,
            (),
            (),
        ),
    ],
)
def test_a_remedy_is_judged_by_its_recheck_and_by_what_it_could_harm(
    before: list[dict[str, Any]], after: list[dict[str, Any]], mended: bool, unmended: tuple[str, ...], worse: tuple[str, ...]
) -> None:
    assert judge_round("peermem_load", before, after) == (mended, unmended, worse)
