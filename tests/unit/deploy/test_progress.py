# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a start has come, and when it is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.deploy import progress
from ansible_collections.inferops.vllm.plugins.module_utils.deploy.progress import Progress, Unit, advance, judge, limits, line, unit

SHOWN = """LoadState=loaded
ActiveState=activating
SubState=auto-restart
Result=exit-code
NRestarts=1
ExecMainStatus=1
ExecMainCode=1
InvocationID=abc
StatusText=
"""


def state(**fields: object) -> Unit:
    return Unit("loaded", "active", "running", "success", 0, None, False, "abc", "")._replace(**fields)


def test_what_systemd_says() -> None:
    assert unit(SHOWN) == Unit("loaded", "activating", "auto-restart", "exit-code", 1, 1, False, "abc", "")
    killed = unit(SHOWN.replace("ExecMainCode=1", "ExecMainCode=2").replace("ExecMainStatus=1", "ExecMainStatus=9"))
    assert progress.ended(killed) == "signal 9"
    never = unit(SHOWN.replace("ExecMainCode=1", "ExecMainCode=0"))
    assert unit(SHOWN + "UnitFileState=enabled\n").enabled and not unit(SHOWN + "UnitFileState=disabled\n").enabled
    assert progress.ended(never) == "a step before vLLM itself failing (exit-code)"


@pytest.mark.parametrize("changes, healthy, verdict", [
    ({}, True, "ready"),
    ({}, None, "ready"),
    ({}, False, "waiting"),
    ({"active": "activating", "sub": "start-pre"}, False, "waiting"),
    ({"active": "activating", "sub": "start-pre"}, None, "waiting"),
    ({"active": "activating", "sub": "auto-restart", "status": 1, "restarts": 1}, False, "waiting"),
    ({"active": "activating", "sub": "auto-restart", "status": 1, "restarts": 2}, False, "failed"),
    ({"active": "active", "restarts": 7}, True, "ready"),
    ({"active": "failed", "sub": "failed", "status": 1}, False, "failed"),
    ({"active": "inactive", "sub": "dead"}, None, "failed"),
    ({"active": "inactive", "sub": "dead", "job": 16}, None, "waiting"),
    ({"active": "failed", "sub": "failed", "job": 16}, False, "waiting"),
    ({"active": "active", "job": 16}, False, "waiting"),
    ({"active": "activating", "sub": "auto-restart", "status": 2}, False, "failed"),
    ({"active": "activating", "sub": "auto-restart", "status": 2, "signal": True}, False, "waiting"),
    ({"load": "not-found", "active": "inactive"}, None, "failed"),
    ({"load": "masked", "active": "inactive", "job": 16}, None, "failed"),
])
def test_verdict(changes: dict, healthy: object, verdict: str) -> None:
    assert judge(state(**changes), healthy).state == verdict


QUEUED = """LoadState=loaded
ActiveState=%s
SubState=dead
Result=exit-code
NRestarts=3
ExecMainStatus=2
ExecMainCode=1
InvocationID=abc
StatusText=serves
Job=16
"""


@pytest.mark.parametrize("active", ["inactive", "failed"])
def test_a_start_in_the_queue_is_waited_for_and_is_not_the_run_before(active: str) -> None:
    now = unit(QUEUED % active)
    assert now == Unit("loaded", active, "dead", "success", 0, None, False, "", "", False, 16)
    assert judge(now, False) == ("waiting", "its start waits for the units that it comes after (job 16 of systemctl list-jobs)")


@pytest.mark.parametrize("job", ["", "Job=\n", "Job=0\n"])
def test_without_a_job_nothing_is_waited_for(job: str) -> None:
    now = unit((QUEUED % "inactive").replace("Job=16\n", job).replace("ExecMainStatus=2", "ExecMainStatus=0"))
    assert not now.queued and now.invocation == "abc" and judge(now, False, 3) == ("failed", "the unit is stopped")


def test_restarts_of_before_do_not_count() -> None:
    again = state(active="activating", sub="auto-restart", status=1, restarts=5)
    assert judge(again, False, 4).state == "waiting"
    assert judge(again, False, 3) == ("failed", "it ended and was restarted 2 times, the last time with exit status 1")
    assert judge(again._replace(status=None, result="success"), False, 3, "exit status 125").why.endswith("with exit status 125")


def test_phases_go_forward_and_start_anew_with_another_invocation() -> None:
    now = advance(Progress(), "a", ["(Worker pid=1) INFO 11-29 17:56:34 [x.py:1] Starting to load model /m..."])
    assert now.phase == "weights_load"
    now = advance(now, "a", ["Loading safetensors checkpoint shards:  43% Completed | 41/96 [00:00<00:00, 573.07it/s]"])
    assert (now.done, now.total) == (41, 96)
    assert line("node1", now, 12.34, 6) == "node1   weights_load      41/96 shards  12.3 GiB"
    assert advance(now, "a", ["(APIServer pid=1) INFO 11-29 17:55:54 [x.py:1] Using max model len 2048"]).phase == "weights_load"
    assert advance(now, "b", []) == Progress("b")


def test_limits() -> None:
    assert limits({})["weights_load"] == 900 and limits({}, 3600)["engine_init"] == 3900
    assert limits({"distributed_init": "30"})["distributed_init"] == 30
    for wrong in ({"loading": 3}, {"weights_load": 0}, {"weights_load": "soon"}, {"weights_load": True}, {"weights_load": 10**9}, {7: 7}):
        with pytest.raises(ValueError, match=r"^deploy_phase_limits: "):
            limits(wrong)


@given(st.text(), st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_text_in_no_exception_out(text: str, value: object) -> None:
    judge(unit(text), False)
    advance(progress.from_dict(value), text, text.splitlines())
    for key in Progress._fields:
        progress.from_dict({key: value})
