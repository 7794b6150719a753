# SPDX-License-Identifier: GPL-3.0-or-later
"""The state file of a node."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.remedies import journal as j

NOW = 1_796_000_000.0


def under_way(phase: str = "applying", started: float = NOW - 60) -> dict:
    made = j.begin(j.empty("m1"), "peermem_load", ["gpudirect.peermem"], "run1", started, {"serving": True})
    return j.advance(made, phase, started, {})


def test_a_remedy_runs_its_course() -> None:
    made = under_way()
    assert made["current"]["phase"] == "applying" and made["current"]["details"] == {"serving": True}
    made = j.finish(j.advance(made, "rechecking", NOW, {"x": 1}), "mended", NOW)
    assert made["current"] is None
    assert [(entry["remedy"], entry["outcome"]) for entry in made["history"]] == [("peermem_load", "mended")]
    assert j.tried(made, NOW) == {} and j.spent(made, NOW) == 1
    assert j.parse(j.render(made), "m1", NOW) == made


def test_failures_of_today_count_and_those_of_yesterday_do_not() -> None:
    made = j.empty("m1")
    for outcome, age in (("failed", 10), ("undone", 20), ("mended", 30), ("interrupted", j.DAY + 10)):
        made = j.finish(j.begin(made, "port_up", [], "r", NOW - age, {}), outcome, NOW - age + 1)
    assert j.tried(made, NOW) == {"port_up": 2}
    assert j.spent(made, NOW) == 3


def test_what_was_refused_is_no_failure_and_only_the_second_interruption_is_one() -> None:
    made = j.empty("m1")
    tried = []
    for outcome in ("refused", "interrupted", "interrupted", "interrupted"):
        made = j.finish(j.begin(made, "driver_upgrade", [], "r", NOW, {}), outcome, NOW)
        tried.append(j.tried(made, NOW).get("driver_upgrade", 0))
    assert tried == [0, 0, 1, 2] and j.spent(made, NOW) == 4


def test_only_one_remedy_at_a_time() -> None:
    with pytest.raises(j.JournalError, match="still under way"):
        j.begin(under_way(), "reboot", [], "run2", NOW, {})
    with pytest.raises(j.JournalError, match="No remedy"):
        j.advance(j.empty("m1"), "applying", NOW, {})
    with pytest.raises(j.JournalError, match="not one of"):
        j.advance(under_way(), "dancing", NOW, {})
    with pytest.raises(j.JournalError, match="not one of"):
        j.finish(under_way(), "perhaps", NOW)
    assert j.finish(j.empty("m1"), "mended", NOW) == j.empty("m1")


@pytest.mark.parametrize(("text", "said"), [
    ("{", "no JSON"), ("[]", "another kind"), ('{"schema": "inferops.vllm/remediation/2"}', "another kind"),
    (j.render(j.empty("m2")), "another machine"),
    (json.dumps({"schema": j.SCHEMA, "machine": "m1", "current": None, "history": [{"remedy": 1}]}), "history"),
    (json.dumps({"schema": j.SCHEMA, "machine": "m1", "current": {"remedy": "x", "started": 1, "phase": "?"}, "history": []}), "cannot be read"),
    (j.render(under_way(started=NOW - 8 * j.DAY)), "8 days ago"),
    (j.render(under_way(started=NOW + 7200)), "in the future"),
])
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(j.JournalError, match=said) as refused:
        j.parse(text, "m1", NOW)
    assert "remediate_forget" in str(refused.value)


def test_no_file_is_an_empty_journal() -> None:
    assert j.parse(None, "m1", NOW) == j.empty("m1")


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(json.dumps))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        j.parse(text, "m1", NOW)
    except j.JournalError:
        return
    assert json.loads(text)["schema"] == j.SCHEMA


def test_the_history_is_bounded() -> None:
    made = j.empty("m1")
    for number in range(j.MOST + 20):
        made = j.finish(j.begin(made, "port_up", [], str(number), NOW, {}), "failed", NOW)
    assert len(made["history"]) == j.MOST and made["history"][-1]["run"] == str(j.MOST + 19)
