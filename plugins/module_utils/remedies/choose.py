# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what is done about a fault: exactly one answer for every fault in every state."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .model import Choice, Decision
from .state import State
from .table import CLASSES, FINDINGS, ORDER, REMEDIES, always


def decide(problem: str, state: State, tried: Optional[Mapping[str, int]] = None) -> Decision:
    """What is done about `problem` on a node in `state`.

    Args:
        problem: a finding id (``driver.branch``) or the class of a diagnosis (``fabric_not_ready``).
        state: of the node.
        tried: remedy id → how often it failed on this node today.

    Raises:
        KeyError: `problem` is neither.
    """
    for choice in _choices(problem):
        if choice.test(state):
            return _of(choice, state, tried)
    # The table ends every fault with a choice that holds always; a test holds it to that.
    return Decision("person", why="No remedy fits; look at the node by hand.")


def check(remedy: str, state: State, tried: Optional[Mapping[str, int]] = None) -> Decision:
    """Whether the remedy that a person asked for by name may be done here.

    Raises:
        KeyError: there is no such remedy.
    """
    return _of(Choice(always, REMEDIES[remedy].id), state, tried)


def _choices(problem: str) -> Sequence[Choice]:
    return FINDINGS[problem] if problem in FINDINGS else CLASSES[problem]


def _of(choice: Choice, state: State, tried: Optional[Mapping[str, int]]) -> Decision:
    if choice.after:
        return Decision("later", why="%s has to be mended first." % choice.after)
    if choice.person:
        return Decision("person", why=choice.person)
    if not choice.remedy:
        return Decision("nothing")
    remedy = REMEDIES[choice.remedy]
    for guard in remedy.guards:
        if guard.test(state):
            return Decision("forbidden", remedy.id, "%s: not here. %s" % (remedy.title, guard.why))
    missing = tuple(word for word in remedy.needs(state) if word not in state.allow)
    if missing:
        return Decision("not_allowed", remedy.id, "%s: needs remediate_allow: [%s]." % (remedy.title, ", ".join(missing)), missing)
    count = (tried or {}).get(remedy.id, 0)
    if count >= remedy.tries:
        return Decision("given_up", remedy.id, "%s: tried %d time%s today without success; a person has to look." % (
            remedy.title, count, "" if count == 1 else "s"))
    return Decision("remedy", remedy.id, remedy.title + ".")


class Step(NamedTuple):
    """One line of a node's programme: the faults that it answers, and what was decided."""

    problems: Tuple[str, ...]
    decision: Decision


def programme(problems: Mapping[str, str], state: State, tried: Optional[Mapping[str, int]] = None) -> List[Step]:
    """All faults of one node in the order in which they are mended; faults with one answer share a line.

    The first line of kind ``remedy`` is what is done now; the rest is decided anew after the re-check.

    Args:
        problems: finding id or class → severity: ``block``, or ``warn`` and ``info`` for what does not keep the node from serving.
        state, tried: as for :func:`decide`.
    """
    made: Dict[Tuple[str, str, str], List[str]] = {}
    decisions: Dict[Tuple[str, str, str], Decision] = {}
    for problem in sorted(problems, key=_rank):
        decision = decide(problem, state, tried)
        if decision.kind == "nothing":
            continue
        # What is only told (info) is never worth an interruption, a warning is where nothing runs.
        harm = REMEDIES[decision.remedy].stops_service if decision.remedy and problems[problem] == "info" else False
        if decision.remedy and problems[problem] != "block" and (harm or disturbs(decision.remedy, state)):
            decision = Decision("person", why="%s at a time of your own: `-e remediate_remedy=%s`. It interrupts the service, and this fault does not." % (
                REMEDIES[decision.remedy].title, decision.remedy))
        key = (decision.kind, decision.remedy, decision.why)
        made.setdefault(key, []).append(problem)
        decisions.setdefault(key, decision)
    return [Step(tuple(found), decisions[key]) for key, found in made.items()]


def disturbs(remedy: str, state: State) -> bool:
    """The remedy interrupts what runs on the node, or starts what does not."""
    row = REMEDIES[remedy]
    return (row.stops_service and state.serving) or row.starts_service or row.reboots(state)


def _rank(problem: str) -> Tuple[int, str]:
    area = problem.split(".")[0]
    # A diagnosis speaks of what failed while it ran: the environment comes first.
    return (ORDER.index(area) if area in ORDER else len(ORDER), problem)
