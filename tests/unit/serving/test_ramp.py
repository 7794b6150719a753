# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 4 against a server that acts like vLLM: numbers that are known beforehand, and each fault by its name."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.serving import ramp
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import endpoint
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
