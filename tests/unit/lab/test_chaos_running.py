# SPDX-License-Identifier: GPL-3.0-or-later
"""Three seeds of the chaos test, others every day: what dies in the middle of a driver remediation, and what the next run makes of it.

Asked for with `pytest -m lab tests/unit/lab/test_chaos_running.py` (root; about two minutes a seed on an idle machine). `make test-chaos` runs all
twenty, also those of a virtual machine.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest

from tests.lab import chaos, vm
from tests.lab.settings import Settings
from tests.unit.lab import own

pytestmark = pytest.mark.lab
SEEDS = chaos.today(datetime.datetime.now(datetime.timezone.utc).date())


@pytest.fixture(scope="module")
def settings(request: pytest.FixtureRequest) -> Iterator[Settings]:
    found = own.asked(request, "boots a node for minutes", vm.missing)
    with chaos.arena(found, SEEDS, print):
        yield found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_next_run_heals_the_node_or_names_a_person(settings: Settings, seed: int) -> None:
    ended = chaos.strike(settings, seed, print)
    assert ended.right, ended.row + "\n" + ended.text[-6000:]
