# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 4 against a server that acts like vLLM: numbers that are known beforehand, and each fault by its name."""

from __future__ import annotations

import json
import statistics
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.serving import ramp
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import Endpoint, endpoint, resolved
from ansible_collections.inferops.vllm.plugins.module_utils.serving.ramp import Settings

from .servers import MODEL, Handler, State, serving


def stage(state: State, **given: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    values = {"concurrency": 4, "level_seconds": 0.4, "input_tokens": 100, "output_tokens": 10, "request_seconds": 3.0, "seconds": 30.0}
    with serving(state) as url:
        found = ramp.run(endpoint(url), [endpoint(url)], Settings(MODEL, **{**values, **given}))
    return found, {f["id"]: f for f in found["findings"]}


def test_numbers_are_those_of_the_server() -> None:
    found, by = stage(State(token_delay=0.02), concurrency=2, level_seconds=0.6)
    assert found["status"] == "passed", found["findings"]
    last = found["data"]["levels"][-1]
    assert last["concurrency"] == 2 and last["output_tokens"] == 10 * last["ok"] and not last["errors"]
    # Ten tokens, 20 ms apart: a little over 200 ms for each request, 20 ms between tokens.
    assert 19 < last["itl_ms"]["p50"] < 40 and 190 < last["e2e_ms"]["p50"] < 400
    assert abs(last["output_tps"] - 2 * 10 / (last["e2e_ms"]["mean"] / 1000)) < 0.25 * last["output_tps"]
    assert 90 <= last["input_tokens"] / last["ok"] <= 110
    assert by["concurrency.preemptions"]["status"] == "pass"


def test_the_ramp_is_gradual() -> None:
    assert ramp.steps_to(1) == [1] and ramp.steps_to(2) == [1, 2] and ramp.steps_to(16) == [1, 2, 4, 8, 16] and ramp.steps_to(20) == [1, 2, 4, 8, 16, 20]
    for target in (3, 100, 1000, 4096):
        steps = ramp.steps_to(target)
        assert steps[0] == 1 and steps[-1] == target and len(steps) <= ramp.STEPS + 1 and steps == sorted(set(steps))


@pytest.mark.parametrize("given", [
    {"concurrency": 0}, {"concurrency": -3}, {"concurrency": 1000000}, {"output_tokens": 0}, {"input_tokens": 10 ** 9}, {"error_budget": 1.0},
    {"max_model_len": 64}])
def test_a_target_that_cannot_be_is_not_verified_at_once(given: dict[str, Any]) -> None:
    began = time.monotonic()
    found = ramp.run(endpoint("http://127.0.0.1:1"), [], Settings(MODEL, **given))
    assert found["status"] == "not_verified" and found["summary"] and time.monotonic() - began < 0.5


def test_errors_stop_the_ramp_at_the_first_overrun() -> None:
    found, by = stage(State(error_every=7), concurrency=16)
    assert by["concurrency.errors"]["status"] == "fail" and "HTTP 500" in by["concurrency.errors"]["observed"]
    assert found["data"]["levels"][-1]["over_budget"] and len(found["data"]["levels"]) < 5


def test_each_stream_keeps_its_connection() -> None:
    found, _by = stage(State(), concurrency=4)
    for one in found["data"]["levels"]:
        # A stream that begins later may take the connection over which the metrics were read.
        assert one["concurrency"] - 1 <= one["connections"] <= one["concurrency"] < one["requests"]


def test_what_ends_a_stream_is_waited_for_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Handler.stream

    def late(self: Handler, wanted: int, usage: dict[str, Any]) -> None:
        written = self.wfile.write

        def write(data: Any) -> int:
            time.sleep(0.1 if b"[DONE]" in data else 0)
            return written(data)

        monkeypatch.setattr(self.wfile, "write", write, raising=False)
        plain(self, wanted, usage)

    monkeypatch.setattr(Handler, "stream", late)
    found, _by = stage(State(token_delay=0.01), concurrency=1)
    last = found["data"]["levels"][-1]
    assert last["e2e_ms"]["p50"] < 160 and last["seconds"] / last["ok"] > 0.2


def test_thousands_of_requests_that_fail_at_once_end_at_the_budget() -> None:
    """Each is followed by the next one without a deeper stack."""
    level = ramp.Level(endpoint("http://never-resolved.invalid"), [], Settings(MODEL, error_budget=0.9), 4000, 8, time.monotonic() + 30)
    found = level.run()
    assert found["over_budget"] and found["errors"] == {"address": 3601}


def test_an_error_budget_allows_what_it_says() -> None:
    found, by = stage(State(error_every=50), error_budget=0.5, concurrency=2)
    assert found["status"] == "passed" and by["concurrency.errors"]["status"] in ("pass", "warn")


def test_cut_streams_are_named() -> None:
    _found, by = stage(State(stream_cut=3))
    assert by["concurrency.errors"]["status"] == "fail" and "truncated" in by["concurrency.errors"]["observed"]


def test_too_few_slots_are_named_with_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ramp, "SAMPLE_SECONDS", 0.1)
    found, by = stage(State(slots=2, token_delay=0.03), concurrency=8, flags={"max-num-seqs": "2"}, level_seconds=0.8)
    assert by["concurrency.slots"]["status"] == "fail" and "--max-num-seqs 2" in by["concurrency.slots"]["observed"] and found["status"] == "failed"


def slots(**given: Any) -> str:
    """What is said of the slots at 120 streams, empty for nothing."""
    seen = {"concurrency": 120, "running_max": 100.0, "waiting_max": 20.0, "waiting_share": 0.9, "kv_usage_max": 0.5, "engines": 1, "flags": {}, **given}
    found = ramp._slots(Settings(MODEL, concurrency=120, flags=seen.pop("flags")), seen, "")
    assert len(found) <= 1 and all(f["id"] == "concurrency.slots" and f["status"] == "fail" for f in found)
    return found[0]["observed"] if found else ""


@pytest.mark.parametrize(("given", "words"), [
    ({"flags": {"max-num-seqs": "100"}}, "at most 100 of 120 requests ran at once, 20 waited; --max-num-seqs 100"),
    ({"flags": {"max-num-seqs": 50}, "engines": 2}, "--max-num-seqs 50 with 2 engines"),
    # The flag says enough, whatever was sampled.
    ({"flags": {"max-num-seqs": "119"}, "waiting_max": 0.0, "waiting_share": None, "running_max": None}, "--max-num-seqs 119"),
    ({"flags": {"max-num-seqs": "100"}, "concurrency": 64}, "--max-num-seqs 100"),
    ({}, "at most 100 of 120 requests ran at once, 20 waited"),
    ({"flags": {"max-num-seqs": "256"}, "kv_usage_max": 0.99}, "at most 100 of 120 requests ran at once"),
    ({"flags": {"max-num-seqs": "256"}, "running_max": 60.0, "waiting_max": 60.0}, "at most 60 of 120"),
])
def test_fewer_slots_than_streams(given: dict[str, Any], words: str) -> None:
    assert words in slots(**given)


@pytest.mark.parametrize("given", [
    {"flags": {"max-num-seqs": "120"}}, {"flags": {"max-num-seqs": "60"}, "engines": 2}, {"running_max": 120.0},
    # Some waited for an instant.
    {"running_max": 119.0, "waiting_max": 2.0, "waiting_share": 0.2}, {"running_max": 119.0, "waiting_max": 2.0, "waiting_share": None},
    # Long prompts wait for their turn while slots are free.
    {"flags": {"max-num-seqs": "256"}, "running_max": 110.0},
    # The plan is of another server: more ran than it allows.
    {"flags": {"max-num-seqs": "64"}, "running_max": 118.0, "waiting_max": 1.0, "waiting_share": 0.1},
    {"flags": {"max-num-seqs": "many"}, "waiting_share": 0.1}, {"flags": {"max-num-seqs": "100"}, "engines": 0, "running_max": None},
    {"concurrency": 64}])
def test_enough_slots(given: dict[str, Any]) -> None:
    assert slots(**given) == ""


@pytest.mark.parametrize(("free", "status"), [(9, "fail"), (10, None)])
def test_one_slot_too_few_is_seen_without_the_flag(free: int, status: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ramp, "SAMPLE_SECONDS", 0.05)
    found, by = stage(State(slots=free, token_delay=0.01), concurrency=10, levels=(10,), level_seconds=0.7)
    assert by.get("concurrency.slots", {}).get("status") == status, found["data"]["levels"]
    assert found["data"]["levels"][0]["engines"] == 1


def test_engines_without_metrics_are_those_of_the_plan() -> None:
    flags = {"max-num-seqs": "2", "data-parallel-size": "2"}
    found, by = stage(State(metrics=lambda state: ""), concurrency=4, levels=(4,), flags=flags)
    assert found["status"] == "passed" and found["data"]["levels"][0]["engines"] == 2 and "concurrency.slots" not in by
    found, by = stage(State(metrics=lambda state: ""), concurrency=5, levels=(5,), flags=flags)
    assert by["concurrency.slots"]["observed"] == "--max-num-seqs 2 with 2 engines" and found["status"] == "failed"


def test_requests_without_an_answer_when_time_is_up_are_not_verified() -> None:
    state = State(token_delay=0.005)
    timer = threading.Timer(0.5, setattr, (state, "hang", True))
    timer.start()
    found, by = stage(state, levels=(4,), seconds=1.6, level_seconds=1.0, request_seconds=60.0, ttft_ms=5000.0, agents=1)
    timer.join()
    last = found["data"]["levels"][0]
    assert found["status"] == "not_verified" and last["ok"] > 4 and last["unanswered"] == 4 and 0.5 < last["unanswered_seconds"] < 2
    assert by["concurrency.target"]["status"] == "unknown" and "4 requests unanswered, the oldest for" in by["concurrency.target"]["observed"]
    # A bound is not held by those that were answered alone, and agents had no time.
    assert "concurrency.ttft" not in by and "concurrency.headroom" not in by and by["concurrency.agents"]["status"] == "unknown"


def test_a_last_step_below_the_target_is_not_verified() -> None:
    found, by = stage(State(), concurrency=8, levels=(1,), level_seconds=0.2)
    assert found["status"] == "not_verified" and by["concurrency.target"]["observed"] == "the last step had 1 streams"
    assert stage(State(), concurrency=3, levels=(3,), level_seconds=0.2)[0]["status"] == "passed"


def test_answers_without_a_token_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Handler.stream
    monkeypatch.setattr(Handler, "stream", lambda self, wanted, usage: plain(self, 0, {**usage, "completion_tokens": 0}))
    found, by = stage(State())
    assert by["concurrency.errors"]["status"] == "fail" and "1 × no token" in by["concurrency.errors"]["observed"] and found["status"] == "failed"
    with serving(State()) as url:
        agents = ramp.agent_loop(resolved(endpoint(url))[0], [], Settings(MODEL, agents=2), time.monotonic() + 5)
    assert agents["errors"] == {"no token": 2} and ramp.judged_agents(agents, "")[0]["status"] == "fail"


def test_json_that_a_router_wrote_anew_is_read_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Handler.stream

    def spaced(self: Handler, wanted: int, usage: dict[str, Any]) -> None:
        written = self.wfile.write

        def write(data: Any) -> int:
            if b"data: {" in data:
                event = b"data: %s\n\n" % json.dumps(json.loads(data[data.index(b"{"):data.rindex(b"}") + 1])).encode()
                data = b"%x\r\n%s\r\n" % (len(event), event)
            return written(data)

        monkeypatch.setattr(self.wfile, "write", write, raising=False)
        plain(self, wanted, usage)

    monkeypatch.setattr(Handler, "stream", spaced)
    found, _by = stage(State(token_delay=0.03), levels=(2,), concurrency=2)
    last = found["data"]["levels"][0]
    assert found["status"] == "passed" and last["output_tokens"] == 10 * last["ok"] > 0 and 90 <= last["input_tokens"] / last["ok"] <= 110
    assert last["ttft_ms"]["p50"] >= 29 and not last["short_answers"]


def taken(*events: str) -> ramp._Stream:
    stream = ramp._Stream()
    for number, data in enumerate(events, 1):
        stream.take(data.encode(), float(number))
    return stream


ROLE = '{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
TOKEN = '{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'
USAGE = '{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}'


@pytest.mark.parametrize("change", [lambda text: text, lambda text: json.dumps(json.loads(text)), lambda text: json.dumps(json.loads(text), indent=1)])
def test_only_tokens_count_as_such_however_the_json_is_written(change: Any) -> None:
    stream = taken(*map(change, (ROLE, TOKEN, TOKEN, '{"choices":[]}', USAGE)))
    assert (stream.first, stream.gaps, stream.inputs, stream.tokens, stream.empty) == (2.0, [1.0], 5, 2, False)
    # A role and a word in one event are a token, a role and nothing are none.
    assert taken(change(ROLE.replace('""', '"a"')), change(USAGE)).first == 1.0
    assert taken(change(ROLE.replace('""', 'null')), change(TOKEN)).first == 2.0


@pytest.mark.parametrize("number", ["1e999", "-1", "NaN", "null", '"2"', "9" * 400, "1e300"])
def test_a_usage_that_is_no_number_is_not_told(number: str) -> None:
    stream = taken(ROLE, TOKEN, TOKEN, TOKEN, USAGE.replace(":2}", ":%s}" % number))
    assert (stream.outputs, stream.tokens, stream.empty) == (None, 3, False)


def test_a_prompt_of_400_digits_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Handler.answer

    def answer(self: Handler, status: int, body: Any, kind: str = "application/json") -> None:
        if isinstance(body, dict) and "usage" in body:
            body["usage"]["prompt_tokens"] = int("9" * 400) * len(self.state.bodies)
        plain(self, status, body, kind)

    monkeypatch.setattr(Handler, "answer", answer)
    found, by = stage(State())
    assert found["status"] == "failed" and "do not tell the tokens" in by["concurrency.reach"]["observed"]


def test_preemptions_are_named() -> None:
    state = State()
    before = state.text

    def text(self: State) -> str:
        self.preemptions += 1
        self.metrics = None
        found = before()
        self.metrics = text
        return found

    state.metrics = text
    _found, by = stage(state)
    assert by["concurrency.preemptions"]["status"] == "fail" and "preemptions" in by["concurrency.preemptions"]["observed"]


def test_bounds_of_time_hold_or_fail() -> None:
    _found, by = stage(State(token_delay=0.02), ttft_ms=1.0, itl_ms=5000.0, concurrency=1)
    assert by["concurrency.ttft"]["status"] == "fail" and by["concurrency.itl"]["status"] == "pass"
    room = by["concurrency.headroom"]["observed"]
    assert "left at 1 streams: 50 % of the KV cache" in room and "% of the bound of the time between tokens" in room


def test_no_headroom_is_told_of_a_target_that_was_not_reached() -> None:
    # The very first step is the target here.
    assert "concurrency.headroom" not in stage(State(error_every=4), concurrency=1)[1]
    assert "concurrency.headroom" not in stage(State(error_every=2))[1] and "concurrency.headroom" not in stage(State(metrics=lambda state: ""))[1]


def test_time_that_is_up_is_not_verified() -> None:
    found, by = stage(State(token_delay=0.02), concurrency=8, seconds=1.2, level_seconds=0.5)
    assert found["status"] == "not_verified" and "time was up" in by["concurrency.target"]["observed"]


def test_a_server_that_hangs_in_the_ramp_is_bounded() -> None:
    began = time.monotonic()
    found, by = stage(State(hang=True), request_seconds=0.7)
    assert found["status"] == "failed" and "concurrency.reach" in by and time.monotonic() - began < 10


def test_a_server_without_metrics_still_has_a_curve() -> None:
    found, by = stage(State(metrics=lambda state: ""), concurrency=2)
    assert found["status"] == "passed" and by["concurrency.metrics"]["status"] == "warn"


def test_agents_grow_their_history() -> None:
    state = State()
    found, by = stage(state, agents=2, turns=3, concurrency=2)
    assert by["concurrency.agents"]["status"] == "pass" and found["data"]["agents"]["turns"][-1]["turn"] == 3
    tokens = [turn["prompt_tokens"] for turn in found["data"]["agents"]["turns"]]
    assert tokens == sorted(tokens) and tokens[0] < tokens[-1] and found["data"]["agents"]["hit_share"] > 0.2
    history = max((body["messages"] for body in state.bodies), key=len)
    assert [m["role"] for m in history] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_agents_whose_time_was_up_are_not_verified() -> None:
    found, by = stage(State(token_delay=0.03), agents=2, turns=8, concurrency=2, levels=(2,), level_seconds=0.2, seconds=1.7)
    assert by["concurrency.target"]["status"] == "pass" and by["concurrency.agents"]["status"] == "unknown" and found["status"] == "not_verified"
    assert by["concurrency.agents"]["observed"] == "time was up while 2 of 2 sessions waited for an answer" and not found["data"]["agents"]["errors"]


def test_agents_that_fail_before_their_time_fail() -> None:
    def loop(target: Endpoint) -> dict[str, Any]:
        return ramp.agent_loop(target, [], Settings(MODEL, agents=2, turns=2, request_seconds=0.3), time.monotonic() + 5)

    with serving(State(token_delay=0.1)) as url:
        found = loop(resolved(endpoint(url))[0])
    assert found["errors"] == {"timeout at total": 2} and ramp.judged_agents({**found, "unanswered": 1}, "")[0]["status"] == "fail"


def level(streams: int, rate: float, bad: bool = False) -> dict[str, Any]:
    return {"concurrency": streams, "output_tps": rate, "over_budget": bad}


def test_the_knee_is_where_nothing_more_is_gained() -> None:
    assert ramp.knee([level(1, 100), level(2, 200), level(4, 380), level(8, 400), level(16, 410)]) == 4
    assert ramp.knee([level(1, 100), level(2, 105), level(4, 400)]) is None
    assert ramp.knee([level(1, 100), level(2, 190), level(4, 370)]) is None
    assert ramp.knee([]) is None and ramp.knee([level(1, 0)]) is None


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=50))
def test_percentiles_lie_between_the_ends(values: list[float]) -> None:
    values.sort()
    assert ramp.percentile(values, 0) == values[0] and ramp.percentile(values, 100) == values[-1]
    assert ramp.percentile(values, 50) == pytest.approx(statistics.median(values))


@given(st.binary(max_size=120))
def test_any_event_is_taken(data: bytes) -> None:
    stream = ramp._Stream(keep=True)
    stream.take(data, 1.0)
    stream.take(b'{"usage":{' + data, 2.0)
    assert isinstance(stream.text(), str)
