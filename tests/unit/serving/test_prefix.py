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

from .servers import MODEL, Handler, State, serving


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


def test_without_a_known_block_nothing_found_tells_nothing() -> None:
    silent = "vllm:prefix_cache_queries_total %d\nvllm:prefix_cache_hits_total %d\n"
    hidden = {"metrics": lambda state: silent % (state.queries, state.hits)}
    found = stage(State(block=1536, **hidden))
    assert verdict(found) == ("not_verified", "cannot tell") and "block" in found["findings"][0]["observed"]
    assert verdict(stage(State(block=1536, **hidden), tokens=4000)) == ("passed", "working")
    assert verdict(stage(State(retains=False, **hidden), tokens=4000)) == ("failed", "not retained")


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


NONSENSE = ["1" * 400, "1" * 5000, "1e999", "-1e999", "NaN", "-7", "true", "1.5", "null", '"many"', "[]", "1000000000000"]


def told(monkeypatch: pytest.MonkeyPatch, field: str, text: str, after: int = 0) -> None:
    """The replies, but the first `after`, say `text` for a field of their usage."""
    plain = Handler.answer

    def answer(self: Handler, status: int, body: Any, kind: str = "application/json") -> None:
        whole = json.dumps(body)
        if isinstance(body, dict) and "usage" in body and self.state.requests > after:
            usage = {**body["usage"], "prompt_tokens_details": dict(body["usage"].get("prompt_tokens_details", {}))}
            (usage["prompt_tokens_details"] if field == "cached_tokens" else usage)[field] = "@"
            whole = json.dumps({**body, "usage": usage}).replace('"@"', text)
        plain(self, status, whole if isinstance(body, dict) else body, kind)

    monkeypatch.setattr(Handler, "answer", answer)


@pytest.mark.parametrize("after", [0, 1, 2, 4])
@pytest.mark.parametrize("text", NONSENSE)
def test_a_prompt_without_a_number_of_tokens_cannot_be_told(text: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, "prompt_tokens", text, after)
    found = stage(State())
    assert verdict(found) == ("not_verified", "cannot tell") and "not tell the tokens of" in found["findings"][0]["observed"]


@pytest.mark.parametrize("text", NONSENSE)
def test_cached_tokens_that_are_no_number_are_left_to_the_counters(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, "cached_tokens", text)
    assert verdict(stage(State())) == ("passed", "working")
    found = stage(State(metrics=lambda state: ""))
    assert verdict(found) == ("not_verified", "cannot tell") and all(s["cached_tokens"] is None for s in found["data"]["steps"])


def test_one_reply_without_its_tokens_cannot_be_told() -> None:
    good = prefix.Step("first", 500, 500.0, 0.0, 0, 0.1, (), None)
    steps = [good, good._replace(name="same", cached=320), good._replace(name="changed")]
    assert prefix.judge(steps, 16, 16, True, 320, False, 0).verdict == "working"
    for at in range(3):
        told = [step._replace(prompt=0, cached=None) if number == at else step for number, step in enumerate(steps)]
        assert prefix.judge(told, 16, 16, True, 320, False, 0).verdict == "cannot tell"


@pytest.mark.parametrize("hits", [1e17, 600.0])
def test_more_hits_than_the_prompt_has_tokens_are_not_of_this_request(hits: float) -> None:
    step = prefix.Step("same", 500, 500.0, hits, None, 0.1, (), None)
    assert (step.alone, step.found()) == (False, None)
    assert (step._replace(hits=500.0).alone, step._replace(hits=500.0).found()) == (True, 500.0)


@pytest.mark.parametrize(("label", "value", "good"), [
    ("block_size", "²", True), ("block_size", "9" * 5000, True), ("block_size", "9999999", False), ("prefix_cache_retention_interval", "9999999", False),
    ("prefix_cache_retention_interval", "9" * 400, True), ("prefix_cache_retention_interval", "²", True)])
def test_a_block_that_no_prompt_fills_is_not_tried(label: str, value: str, good: bool) -> None:
    text = "vllm:prefix_cache_queries_total %%d\nvllm:prefix_cache_hits_total %%d\nvllm:cache_config_info{%s=\"%s\"} 1\n" % (label, value)
    state = State(metrics=lambda state: text % (state.queries, state.hits))
    found = stage(state)
    assert verdict(found) == (("passed", "working") if good else ("not_verified", "cannot tell"))
    assert good or ("does not fit" in found["findings"][0]["observed"] and state.requests == 2)


@pytest.mark.parametrize(("value", "block"), [(16, 16), ("16", 16), ("²", None), ("9" * 9, None), ("9" * 5000, None), (None, None), (True, None)])
def test_a_flag_that_is_no_number(value: Any, block: int | None) -> None:
    assert prefix._flag_number({"block-size": value}, "block-size") == block


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


@pytest.mark.parametrize("text", ["", "{}", "[]", "[{}]", "nonsense", '[{"messages": []}, {"messages": []}]', pytest.param("[" * 100000, id="deep")])
def test_requests_of_the_application_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="requests of the application"):
        prefix.bodies(text)


def test_requests_of_the_application_as_list_or_lines() -> None:
    one = {"messages": [{"role": "user", "content": "a"}]}
    assert len(prefix.bodies(json.dumps([one, one]))) == len(prefix.bodies("%s\n%s\n" % (json.dumps(one), json.dumps(one)))) == 2
