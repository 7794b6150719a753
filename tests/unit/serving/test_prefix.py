# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 3 against a server with a real block cache: each verdict, by counters, with and without other traffic."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.serving import prefix
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import endpoint
from ansible_collections.inferops.vllm.plugins.module_utils.serving.prefix import Settings

from .servers import MODEL, State, serving


def stage(state: State, **given: Any) -> dict[str, Any]:
    with serving(state) as url:
        return prefix.run(endpoint(url), [endpoint(url)], Settings(MODEL, **{"seconds": 2.0, **given}))


def verdict(found: dict[str, Any]) -> tuple[str, str]:
    return found["status"], found["data"]["verdict"]


def test_working_with_its_numbers() -> None:
    found = stage(State())
    assert verdict(found) == ("passed", "working")
    steps = {s["request"]: s for s in found["data"]["steps"]}
    assert steps["first"]["hit"] == 0 and steps["same prefix 1"]["hit"] > 300 and steps["changed system message"]["hit"] == 0
    assert steps["first"]["queried"] == steps["first"]["prompt_tokens"]
    assert found["data"]["prefix_tokens"] % 16 != 0 and set(found["data"]["latency"]) == set(steps)


@pytest.mark.parametrize("given", [{"reports_cached": False}, {"gives_ids": False}, {"reports_cached": False, "gives_ids": False}])
def test_working_is_seen_by_counters_or_cached_tokens_alone(given: dict[str, Any]) -> None:
    assert verdict(stage(State(**given))) == ("passed", "working")


def test_a_block_of_1536_tokens_gets_a_prefix_that_is_longer() -> None:
    found = stage(State(block=1536))
    assert verdict(found) == ("passed", "working") and found["data"]["prefix_tokens"] > 3072


def test_a_second_run_is_not_fooled_by_the_first() -> None:
    state = State()
    with serving(state) as url:
        for _number in range(2):
            found = prefix.run(endpoint(url), [endpoint(url)], Settings(MODEL))
            assert found["data"]["steps"][0]["hit"] == 0


def test_not_enabled_by_what_the_server_says() -> None:
    found = stage(State(caching=False))
    assert verdict(found) == ("failed", "not enabled") and "enable_prefix_caching=False" in found["findings"][0]["observed"]


def test_not_enabled_when_the_counters_stand_still_and_nothing_is_said() -> None:
    silent = "vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n"
    found = stage(State(caching=False, reports_cached=False, metrics=lambda state: silent))
    assert verdict(found) == ("failed", "not enabled")


@pytest.mark.parametrize("given", [{}, {"reports_cached": False}])
def test_a_changing_session_id_is_a_prefix_that_differs(given: dict[str, Any]) -> None:
    found = stage(State(session=True, **given))
    assert verdict(found) == ("failed", "prefix differs") and "session id" in found["findings"][0]["fix"]
    assert "at token" in found["findings"][0]["observed"]


def test_a_prefix_shorter_than_a_block_is_too_short() -> None:
    found = stage(State(block=512), tokens=100)
    assert verdict(found) == ("failed", "too short") and "512" in found["findings"][0]["observed"]
    assert verdict(stage(State(block=16), tokens=100)) == ("passed", "working")


@pytest.mark.parametrize("given", [{}, {"reports_cached": False}])
def test_not_retained(given: dict[str, Any]) -> None:
    assert verdict(stage(State(retains=False, **given))) == ("failed", "not retained")


def test_other_traffic_is_recognised_and_cached_tokens_decide() -> None:
    found = stage(State(extra_queries=500))
    assert verdict(found) == ("passed", "working")
    assert "prefix.traffic" in [f["id"] for f in found["findings"]]


def test_other_traffic_without_cached_tokens_cannot_be_told() -> None:
    found = stage(State(extra_queries=500, reports_cached=False))
    assert verdict(found) == ("not_verified", "cannot tell") and "other requests" in found["findings"][0]["observed"]


def test_real_other_traffic_does_not_change_the_verdict() -> None:
    state = State()
    stop = threading.Event()

    def others(url: str) -> None:
        target = endpoint(url)
        while not stop.is_set():
            prefix.call(target, prefix.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 200}], "max_tokens": 1}))

    with serving(state) as url:
        thread = threading.Thread(target=others, args=(url,), daemon=True)
        thread.start()
        verdicts = [prefix.run(endpoint(url), [endpoint(url)], Settings(MODEL))["data"]["verdict"] for _number in range(3)]
        stop.set()
        thread.join(5)
    assert verdicts == ["working"] * 3


def test_neither_metrics_nor_cached_tokens() -> None:
    found = stage(State(metrics=lambda state: "", reports_cached=False))
    assert verdict(found) == ("not_verified", "cannot tell")
    assert [f["status"] for f in found["findings"]] == ["unknown", "warn"]


def test_nan_counters_leave_the_reply_to_tell() -> None:
    nan = "vllm:prefix_cache_queries_total NaN\nvllm:prefix_cache_hits_total NaN\n"
    assert verdict(stage(State(metrics=lambda state: nan)))[1] == "working"
    found = stage(State(metrics=lambda state: nan, reports_cached=False))
    assert verdict(found) == ("not_verified", "cannot tell") and "NaN" in json.dumps(found["findings"])


def test_a_restart_between_two_readings_is_no_verdict() -> None:
    counts = iter(range(10000, 0, -100))
    found = stage(State(reports_cached=False, metrics=lambda s: "vllm:prefix_cache_queries_total %d\nvllm:prefix_cache_hits_total 0\n" % next(counts)))
    assert verdict(found) == ("not_verified", "cannot tell") and "restarted" in found["findings"][0]["observed"]


def test_a_prefix_that_does_not_fit_the_model() -> None:
    found = stage(State(block=1536), max_model_len=2048)
    assert verdict(found) == ("not_verified", "cannot tell") and "max_model_len" in found["findings"][0]["observed"]


def test_requests_that_fail_are_a_failure_and_no_verdict() -> None:
    found = stage(State(error_every=1))
    assert found["status"] == "failed" and found["data"]["verdict"] == "cannot tell" and "EngineCore" in found["findings"][0]["observed"]


def test_the_applications_own_requests() -> None:
    system = "You are an agent. " * 30

    def bodies(first: str, second: str) -> tuple[dict[str, Any], ...]:
        return tuple({"messages": [{"role": "system", "content": s}, {"role": "user", "content": "go"}]} for s in (first, second))

    assert verdict(stage(State(), bodies=bodies(system, system)))[1] == "working"
    found = stage(State(), bodies=bodies("session 1 " + system, "session 2 " + system))
    assert verdict(found) == ("failed", "prefix differs") and "share only" in found["findings"][0]["observed"]


def test_filler_is_sent_between() -> None:
    state = State()
    found = stage(state, filler_tokens=3000)
    assert found["data"]["filler_tokens"] >= 3000 and verdict(found)[1] == "working"


def test_twenty_times_no_wrong_verdict() -> None:
    for given, wanted in (({}, "working"), ({"caching": False}, "not enabled"), ({"session": True}, "prefix differs"), ({"retains": False}, "not retained")):
        with serving(State(**given)) as url:
            found = {prefix.run(endpoint(url), [endpoint(url)], Settings(MODEL))["data"]["verdict"] for _number in range(20)}
        assert found == {wanted}


@pytest.mark.parametrize("text", ["", "{}", "[]", "[{}]", "nonsense", '[{"messages": []}, {"messages": []}]'])
def test_requests_of_the_application_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="requests of the application"):
        prefix.bodies(text)


def test_requests_of_the_application_as_list_or_lines() -> None:
    one = {"messages": [{"role": "user", "content": "a"}]}
    assert len(prefix.bodies(json.dumps([one, one]))) == len(prefix.bodies("%s\n%s\n" % (json.dumps(one), json.dumps(one)))) == 2
