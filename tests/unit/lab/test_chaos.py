# SPDX-License-Identifier: GPL-3.0-or-later
"""What the seeds of the chaos test do, and how its verdict is reached."""

from __future__ import annotations

import datetime

import pytest

from tests.lab import chaos


def test_a_seed_does_the_same_every_time_and_all_three_things_die() -> None:
    blows = [chaos.blow(seed) for seed in chaos.SEEDS]
    assert blows == [chaos.blow(seed) for seed in chaos.SEEDS] and len(blows) == 20
    assert {one.what for one in blows} == {"controller", "node", "network"}
    assert {(one.kind, one.what) for one in blows} >= {("vm", "node"), ("vm", "controller"), ("container", "node"), ("container", "network")}
    assert all(0 < one.task <= chaos.TASKS for one in blows)


def test_a_week_of_days_meets_every_seed_of_a_container_node() -> None:
    days = [chaos.today(datetime.date(2026, 11, 29) + datetime.timedelta(days=at)) for at in range(7)]
    assert all(len(set(three)) == 3 for three in days)
    assert {seed for three in days for seed in three} == set(chaos.SHORT_SEEDS)
    assert {chaos.blow(seed).kind for seed in chaos.SHORT_SEEDS} == {"container"}


@pytest.mark.parametrize(
    ("healthy", "escalation", "faults", "right"),
    [
        (True, "", [], True),
        (False, "", [], False),
        (False, "tried once today; a person has to look", [], True),
        (False, "a person has to look", ["driver 575 is loaded and 580 is installed"], True),
        (False, "a person has to look", ["dpkg is not whole: nvidia-open"], False),
        (False, "a person has to look", ["a remedy is under way: driver_upgrade"], False),
        (True, "", ["driver 575 is loaded and 580 is installed"], False),
    ],
)
def test_healthy_or_named_and_never_half(healthy: bool, escalation: str, faults: list[str], right: bool) -> None:
    ended = chaos.Ended(chaos.blow(1), healthy, escalation, faults, "20 (Install)", 12.0, "")
    assert ended.right is right
    assert ended.row.startswith("| 1 | container | node | task 20 (Install)") and ended.row.count("|") == 7
