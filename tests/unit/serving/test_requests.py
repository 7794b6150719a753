# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 2 against a server that acts like vLLM: right answers pass, and each wrong one is named."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.serving import requests, run
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import InputError, endpoint
from ansible_collections.inferops.vllm.plugins.module_utils.serving.requests import REQUESTS, Settings, mismatch, set_hash, unusable

from .servers import MODEL, State, raw, serving


def call(name: str, arguments: Any) -> list[Any]:
    return [{"id": "x", "type": "function", "function": {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}}]


GOOD = call("get_weather", {"city": "Rome", "unit": "celsius"})


def stage(state: State, **given: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    key = given.pop("key", "")
    with serving(state) as url:
        found = requests.run(endpoint(url, key), Settings(MODEL, **{"seconds": 1.0, "key_given": bool(key), **given}))
    return found, {f["id"]: f for f in found["findings"]}


def test_a_healthy_server_passes_everything() -> None:
    found, by = stage(State(tool=[GOOD, GOOD, GOOD]))
    assert found["status"] == "passed", found
    assert {name: f["status"] for name, f in by.items()} == {
        "request.model": "pass", "request.text": "pass", "request.stream": "pass", "request.tool_call": "pass", "request.reasoning": "pass"}
    assert found["data"]["request_set"] == set_hash() and set(found["data"]["answers"]) == {"text", "stream", "tool_call", "reasoning"}
    assert found["data"]["max_model_len"] == 32768 and found["data"]["version"] == "0.32.0"


def test_what_is_not_served_is_skipped_not_passed() -> None:
    found, by = stage(State(), features=())
    assert found["status"] == "passed" and by["request.tool_call"]["status"] == by["request.reasoning"]["status"] == "skip"


def test_empty_tool_calls_are_asked_again_and_said() -> None:
    found, by = stage(State(tool=[[], GOOD, GOOD, GOOD]))
    assert found["status"] == "passed" and "try 2" in by["request.tool_call.retried"]["observed"]
    found, by = stage(State(tool=[]))
    assert by["request.tool_call"]["status"] == "fail" and "tool_calls is empty" in by["request.tool_call"]["observed"]


@pytest.mark.parametrize(("made", "word"), [
    (call("other", {}), "does not offer"),
    (call("get_weather", "{not json"), "not JSON"),
    (call("get_weather", {"city": "Rome"}), "lacks unit"),
    (call("get_weather", {"city": "Rome", "unit": "kelvin"}), "not one of"),
    (call("get_weather", {"city": "Rome", "unit": "celsius", "day": 1}), "does not know"),
    ([{"function": None}], "no function call"),
])
def test_a_tool_call_that_does_not_fit_its_schema_is_not_retried(made: list[Any], word: str) -> None:
    state = State(tool=[made, GOOD, GOOD])
    found, by = stage(state)
    assert by["request.tool_call"]["status"] == "fail" and word in by["request.tool_call"]["observed"]
    assert len(state.tool) == 2 and found["status"] == "failed"


@pytest.mark.parametrize("mark", ["<think>", "</think>"])
def test_reasoning_in_the_content_was_not_parsed(mark: str) -> None:
    _found, by = stage(State(content=mark + " because. Paris.", tool=[GOOD] * 3))
    assert by["request.reasoning"]["status"] == "fail" and "not parsed" in by["request.reasoning"]["observed"]


def test_no_reasoning_at_all() -> None:
    _found, by = stage(State(reasoning="", tool=[GOOD] * 3))
    assert by["request.reasoning"]["status"] == "fail" and "no reasoning" in by["request.reasoning"]["observed"]


def test_an_empty_answer_is_no_answer() -> None:
    _found, by = stage(State(content="", reasoning=""), features=())
    assert by["request.text"]["status"] == "fail" and "empty" in by["request.text"]["observed"]


def test_the_wrong_model_name_is_named_with_what_is_served() -> None:
    found, by = stage(State(model="other/model"))
    assert found["status"] == "failed" and by["request.model"]["observed"] == "serves other/model" and by["request.model"]["required"] == MODEL
    assert "request.text" not in by


def test_a_missing_and_a_wrong_key() -> None:
    _found, by = stage(State(key="sesame-1234"))
    assert by["request.key"]["status"] == "fail" and "none was given" in by["request.key"]["why"]
    found, by = stage(State(key="sesame-1234"), key="wrong-key-999")
    assert "does not take" in by["request.key"]["why"] and "wrong-key-999" not in json.dumps(found)
    assert stage(State(key="sesame-1234"), key="sesame-1234", features=())[0]["status"] == "passed"


def test_an_engine_that_hangs_behind_health_is_named_in_bounded_time() -> None:
    began = time.monotonic()
    found, by = stage(State(hang=True), seconds=0.6)
    assert time.monotonic() - began < 5 and found["status"] == "failed"
    assert "/health answers 200 while a completion gets no answer" in by["request.engine"]["observed"]
    assert by["request.stream"]["status"] == "skip"


def test_health_that_fails_and_html_and_truncation() -> None:
    assert stage(State(health=503))[1]["request.health"]["status"] == "fail"
    _found, by = stage(State(html=True))
    assert "page for a browser" in by["request.models"]["observed"]
    _found, by = stage(State(stream_cut=2), features=())
    assert by["request.text"]["status"] == "pass" and by["request.stream"]["status"] == "fail" and "after 3 events" in by["request.stream"]["observed"]


@pytest.mark.parametrize(("answer", "id"), [(None, "request.reach"), (b"", "request.reach"), (b"SSH-2.0\r\n", "request.reach")])
def test_no_server_at_all(answer: bytes | None, id: str) -> None:
    with raw(answer, close=answer is not None) as url:
        began = time.monotonic()
        found = requests.run(endpoint(url), Settings(MODEL, seconds=0.5))
    assert [f["id"] for f in found["findings"]] == [id] and found["status"] == "failed" and time.monotonic() - began < 12


def test_the_hash_is_that_of_the_requests() -> None:
    other = copy.deepcopy(REQUESTS)
    other[0]["body"]["seed"] = 8
    assert set_hash(REQUESTS) == set_hash(copy.deepcopy(REQUESTS)) != set_hash(other)
    assert unusable(REQUESTS) == ""


@pytest.mark.parametrize("case", [
    "text", {"id": "UPPER", "body": {"messages": [1]}}, {"id": "a"}, {"id": "a", "body": {"messages": []}}, {"id": "a", "body": {"messages": [1]}, "expect": 3},
    {"id": "a", "body": {"messages": [1], "tools": [{}]}}, {"id": "a", "body": {"messages": [1]}, "retries": "x"},
    {"id": "a", "body": {"messages": [1], "tools": 5}}, {"id": "a", "body": {"messages": [1]}, "expect": {"finish": [5]}},
])
def test_a_request_set_that_cannot_be_sent_is_refused(case: Any) -> None:
    assert unusable([case])


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["choices", "message", "usage", "delta", "tool_calls", "function", "content", "a"]), inner, max_size=4), max_leaves=12)


@given(JSON)
def test_any_answer_is_judged_without_falling(answer: Any) -> None:
    message, finish, usage = requests.opened(answer)
    for case in REQUESTS:
        assert isinstance(requests.judged(case, message, finish, usage, MODEL), str)
    collector = requests.Collector()
    collector.take(json.dumps(answer).encode(), 0.0)
    assert isinstance(collector.message(), dict)


@given(JSON)
def test_any_value_fits_a_schema_or_not(value: Any) -> None:
    assert mismatch(value, {}, "x") == ""
    assert mismatch({"a": value}, {"type": "object", "properties": {"a": {"enum": [value]}}, "required": ["a"]}, "x") == ""


def test_what_the_requests_left_behind_on_a_node() -> None:
    before = {"pids": {"server": 5, "engine": 6}, "rdma": {"mlx5_0/1/symbol_error": 1}}
    clean = {"log": {"new_warnings": []}, "xids": [], "pids": {"server": 5, "engine": 6}, "rdma": {"mlx5_0/1/symbol_error": 1}}
    assert [f["status"] for f in requests.aftermath("n", before, clean, "request")] == ["pass"]
    bad = {"log": {"new_warnings": [{"level": "WARNING", "text": "KV is slow"}]}, "xids": [{"code": 79, "bdf": "b", "text": "off"}],
           "pids": {"server": 5, "engine": 9}, "rdma": {"mlx5_0/1/symbol_error": 2}}
    found = {f["id"]: f["status"] for f in requests.aftermath("n", before, bad, "request")}
    assert found == {"request.log": "fail", "request.xid": "fail", "request.ports": "fail", "request.restart": "fail"}
    assert requests.aftermath("n", before, bad, "request", ["KV is"])[0]["status"] == "pass"


BEFORE: dict[str, Any] = {"log": {"new_warnings": []}, "xids": [], "gpus": [{"index": 0, "used": 1, "total": 2}],
                          "rdma": {"mlx5_0/1/symbol_error": 1, "mlx5_0/1/link_downed": 0}, "pids": {}}


@pytest.mark.parametrize(("change", "wanted"), [
    ({}, {"request.log": "pass"}),
    ({"log": None}, {"request.log": "unknown"}),
    ({"xids": None}, {"request.log": "pass", "request.xid": "unknown"}),
    ({"gpus": None}, {"request.log": "pass", "request.gpu_memory": "unknown"}),
    ({"rdma": None}, {"request.log": "pass", "request.ports": "unknown"}),
    ({"rdma": {"mlx5_0/1/symbol_error": 1}}, {"request.log": "pass", "request.ports": "unknown"}),
    ({"rdma": {}}, {"request.log": "pass", "request.ports": "fail"}),
    ({"rdma": {"mlx5_1/1/symbol_error": 1}}, {"request.log": "pass", "request.ports": "fail"}),
])
def test_what_could_be_read_before_and_not_after_is_unknown(change: dict[str, Any], wanted: dict[str, str]) -> None:
    assert {f["id"]: f["status"] for f in requests.aftermath("n", BEFORE, {**BEFORE, **change}, "request")} == wanted


def test_what_never_could_be_read_is_left_out() -> None:
    nothing = {"log": None, "xids": None, "gpus": None, "rdma": {}, "pids": {}}
    assert requests.aftermath("n", nothing, nothing, "request") == []


def test_patterns_that_are_none_are_refused_and_tolerate_nothing() -> None:
    assert "'*.foo' is no regular expression" in requests.unusable_patterns(["KV", "*.foo"]) and requests.unusable_patterns(["KV is", ".*foo"]) == ""
    after = {**BEFORE, "log": {"new_warnings": [{"level": "WARNING", "text": "KV is slow"}]}}
    assert requests.aftermath("n", BEFORE, after, "request", ["*.foo"])[0]["status"] == "fail"
    assert requests.aftermath("n", BEFORE, after, "request", ["*.foo", "KV is"])[0]["status"] == "pass"


@pytest.mark.parametrize("calls", [5, True, {"a": 1}, "x", [5], [None], [{"function": 5}], [{"function": []}]])
def test_tool_calls_of_any_kind_are_judged(calls: Any) -> None:
    found, by = stage(State(tool=[calls] * 9), repeat=1)
    assert found["status"] == "failed" and by["request.tool_call"]["status"] == "fail"
    collector = requests.Collector()
    collector.take(json.dumps({"choices": [{"delta": {"tool_calls": calls}}]}).encode(), 0.0)
    assert collector.message()["tool_calls"] == []


def test_all_stages_in_order_and_what_is_left_out_after_a_failure() -> None:
    with serving(State()) as url:
        found = run.run(run.Options(MODEL, (url,), features=(), concurrency=2, level_seconds=0.3, input_tokens=64, output_tokens=8, agents=1, turns=2))
    assert {name: one.get("status") for name, one in found.items()} == {
        "start": None, "request": "passed", "prefix": "passed", "concurrency": "passed"}
    with serving(State(model="other")) as url:
        found = run.run(run.Options(MODEL, (url,), features=()))
        again = run.run(run.Options(MODEL, (url,), stages=("concurrency",), earlier=found))
    for one in (found["prefix"], found["concurrency"], again["concurrency"]):
        assert one["status"] == "not_verified" and "stage 2 failed: request.model" in one["summary"]


def test_secrets_never_come_back_even_when_the_server_echoes_them() -> None:
    answer = b'HTTP/1.1 403 No\r\n\r\n{"error": {"message": "the key sesame-1234 is not known"}}'
    with raw(answer) as url:
        found = run.run(run.Options(MODEL, (url,), key="sesame-1234", stages=("start", "request")))
    assert "sesame" not in json.dumps(found) and "<hidden>" in json.dumps(found)


def test_no_endpoint_is_refused() -> None:
    with pytest.raises(InputError):
        run.run(run.Options(MODEL, ()))
