# SPDX-License-Identifier: GPL-3.0-or-later
"""How often the diagnosis is right on labelled logs, beside the first and the last line that look like an error."""

from __future__ import annotations

from typing import List

import pytest

from tests.benchmarks import diagnosis
from tests.benchmarks.diagnosis import Example, Score


@pytest.fixture(scope="module", name="everything")
def _everything() -> List[Example]:
    found = diagnosis.examples()
    if not found:
        pytest.skip("no labelled logs beside this checkout")
    return found


@pytest.fixture(scope="module", name="scored")
def _scored(everything: List[Example]) -> Score:
    return diagnosis.score(everything, diagnosis.ours)


def test_phase_class_and_line(scored: Score) -> None:
    assert scored.phase >= 0.95 * scored.count
    assert scored.cls >= 0.92 * scored.count
    assert scored.line >= 0.92 * scored.count


def test_no_false_alarm(scored: Score) -> None:
    assert scored.healthy >= 10 and scored.false_alarms == 0


def test_never_sure_where_the_cause_is_not_in_the_log(scored: Score) -> None:
    assert scored.sure_but_wrong == 0


def test_naive_answers_are_far_worse(everything: List[Example], scored: Score) -> None:
    """A measure that a naive answer passes too would measure nothing."""
    for naive in (diagnosis.first_error, diagnosis.last_error):
        other = diagnosis.score(everything, naive)
        assert other.line < 0.7 * other.count < scored.line and other.false_alarms > 0
