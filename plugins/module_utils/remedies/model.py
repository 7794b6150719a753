# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a remedy is, and what is decided of a fault."""

from __future__ import annotations

from typing import Callable, NamedTuple, Tuple

from .state import State

Test = Callable[[State], bool]

RADIUS = ("node", "engine", "domain", "cluster")
"""What a remedy can disturb: one node; all nodes of one engine; an NVLink domain; every node."""

KINDS = ("remedy", "not_allowed", "forbidden", "given_up", "person", "later", "nothing")
"""Outcomes of a decision.

``remedy``: do it. ``not_allowed``: it needs a word of remediate_allow. ``forbidden``: a guard speaks against it. ``given_up``: it was tried
often enough. ``person``: no playbook mends this. ``later``: another fault has to be mended first. ``nothing``: there is no fault.
"""


class Guard(NamedTuple):
    """Forbids a remedy where `test` holds; `why` is one sentence that says what to do instead."""

    test: Test
    why: str


class Remedy(NamedTuple):
    """One change of a node.

    Attributes:
        id: stable word.
        title: what is done, as an imperative.
        steps: (role, file of its tasks), run in order.
        changes: what is different afterwards.
        undo: (role, file) that takes it back; empty when nothing does, and then `permanent` says why.
        permanent: why it cannot be undone.
        needs: words of remediate_allow that it takes in this state.
        guards: what forbids it.
        stops_service: the engine is drained and stopped first, on all its nodes.
        starts_service: the engine is started afterwards, also where it did not run before.
        reboots: it may restart the machine in this state.
        onward: when a run was killed in the middle of it, the next one goes on from what the node is then, instead of taking it back first.
        radius: what it can disturb.
        recheck: findings that must pass afterwards.
        harm: groups of checks that must not be worse afterwards.
        files: what its steps may write; an undo gives these files the content that they had.
        tries: how often on one node and day, before a person has to look.
        source: where the remedy comes from.
    """

    id: str
    title: str
    steps: Tuple[Tuple[str, str], ...]
    changes: str
    undo: Tuple[str, str] = ("", "")
    permanent: str = ""
    needs: Callable[[State], Tuple[str, ...]] = lambda state: ()
    guards: Tuple[Guard, ...] = ()
    stops_service: bool = False
    starts_service: bool = False
    reboots: Test = lambda state: False
    onward: bool = False
    radius: str = "node"
    recheck: Tuple[str, ...] = ()
    harm: Tuple[str, ...] = ()
    files: Tuple[str, ...] = ()
    tries: int = 1
    source: str = ""


class Choice(NamedTuple):
    """One row of the table: where `test` holds, `remedy` (an id), or `person`: what a person has to do.

    `after` names a finding that has to be mended first.
    """

    test: Test
    remedy: str = ""
    person: str = ""
    after: str = ""


class Decision(NamedTuple):
    """What is done about one fault on one node.

    Attributes:
        kind: one of KINDS.
        remedy: id of the remedy, empty when there is none.
        why: one sentence.
        missing: words of remediate_allow that would be needed.
    """

    kind: str
    remedy: str = ""
    why: str = ""
    missing: Tuple[str, ...] = ()
