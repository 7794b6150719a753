# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes act next, and how their act is judged.

One round is one remedy on the nodes of one failure domain. After it all nodes are read and judged again, and the next round is decided from what
they are then: nothing is remembered but the state files of the nodes.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from .choose import Step, check, programme
from .model import Decision
from .state import State
from .table import REMEDIES

GOOD = ("pass", "warn", "skip")


class Case(NamedTuple):
    """One node in this run.

    Attributes:
        node: name.
        state: what remedies may know of it.
        problems: finding id or class → severity.
        tried: remedy → failures today.
        spent: remedies begun today.
        domain: failure domain: nodes that may be changed at the same time (NVLink domain, rack, or the node itself).
        engine: names of all nodes of its engine.
        refused: why the node may not be touched at all, empty when it may.
        only: the one remedy that a person asked for, empty for all.
    """

    node: str
    state: State
    problems: Mapping[str, str]
    tried: Mapping[str, int] = {}
    spent: int = 0
    domain: str = ""
    engine: Tuple[str, ...] = ()
    refused: str = ""
    only: str = ""


class Round(NamedTuple):
    """What is done next: `remedy` on `act`, after the services of `stop` were drained and stopped. Empty `act`: nothing is left to do."""

    remedy: str = ""
    act: Tuple[str, ...] = ()
    stop: Tuple[str, ...] = ()
    problems: Mapping[str, Tuple[str, ...]] = {}


def steps_of(case: Case, budget: int) -> List[Step]:
    """The programme of one node. What a refused or exhausted node needs is told, not done."""
    if case.only:
        found = [Step(tuple(sorted(case.problems)), check(case.only, case.state, case.tried))]
    else:
        found = programme(case.problems, case.state, case.tried)
    why = case.refused
    if not why and case.spent >= budget:
        why = "The node's budget of %d remedies a day is spent; a person has to look." % budget
    if not why:
        return found
    return [step._replace(decision=Decision("forbidden" if case.refused else "given_up", step.decision.remedy, why))
            if step.decision.kind == "remedy" else step for step in found]


def choose_round(cases: Sequence[Case], budget: int, most: int, done: Iterable[Tuple[str, str]] = ()) -> Round:
    """The next round.

    Args:
        cases: all nodes, in rank order.
        budget: remedies a node and day.
        most: nodes that may be changed at the same time.
        done: (node, remedy) of this run that did not mend: they are not done again in this run.
    """
    gone = set(done)
    firsts: Dict[str, Step] = {}
    for case in cases:
        for step in steps_of(case, budget):
            if step.decision.kind == "remedy":
                if (case.node, step.decision.remedy) not in gone:
                    firsts[case.node] = step
                # One after the other: what comes later may be gone once this is mended.
                break
    leader = next((case for case in cases if case.node in firsts), None)
    if leader is None:
        return Round()
    remedy = REMEDIES[firsts[leader.node].decision.remedy]
    same = [case for case in cases if case.node in firsts and firsts[case.node].decision.remedy == remedy.id]
    if remedy.radius == "node":
        act = [case for case in same if _domain(case) == _domain(leader)][:most]
    elif remedy.radius == "cluster":
        act = same
    elif remedy.radius == "domain":
        act = [case for case in same if _domain(case) == _domain(leader)]
    else:
        act = [case for case in same if case.node in (leader.engine or (leader.node,))]
    stop: Dict[str, None] = {}
    if remedy.stops_service:
        serving = {case.node for case in cases if case.state.serving}
        for case in act:
            stop.update(dict.fromkeys(name for name in (case.engine or (case.node,)) if name in serving))
    return Round(remedy.id, tuple(case.node for case in act), tuple(stop), {case.node: firsts[case.node].problems for case in act})


def _domain(case: Case) -> str:
    return case.domain or case.node


class Verdict(NamedTuple):
    """What a remedy did to one node: `mended`, `unmended` ids, and ids that are `worse` than before."""

    mended: bool
    unmended: Tuple[str, ...]
    worse: Tuple[str, ...]


def judge_round(remedy: str, before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> Verdict:
    """Compare the findings of one node from before and after a remedy.

    A finding of the remedy's re-check that is there afterwards must be good; a finding of the groups that it could have harmed must not be worse.
    An answer that is not known is no good one.
    """
    row = REMEDIES[remedy]
    was = {str(f["id"]): f for f in before}
    now = {str(f["id"]): f for f in after}
    # A node that cannot be judged at all has lost every finding.
    unmended = [name for name in row.recheck if name in was and was[name]["status"] not in GOOD and (name not in now or now[name]["status"] not in GOOD)]
    harmed = [name for name, f in was.items() if name.split(".")[0] in row.harm and name not in unmended and f["status"] in GOOD
              and (name not in now or _worse(f, now[name]))]
    if "node.reachable" in now and now["node.reachable"]["status"] not in GOOD:
        harmed.append("node.reachable")
    return Verdict(not unmended and not harmed, tuple(unmended), tuple(dict.fromkeys(harmed)))


def _worse(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    if after["status"] in GOOD:
        return False
    return bool(after.get("severity") == "block" or before["status"] == "pass")
