# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 5's watch against servers that go away and come back: how long, where, and who waited for ever."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.serving import watch
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import endpoint

from .servers import MODEL, State, raw, serving


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PAUSE", 0.02)


@pytest.fixture
def replicas() -> Iterator[tuple[list[State], list[str]]]:
    states = [State(), State()]
    with serving(states[0]) as one, serving(states[1]) as other:
        yield states, [one, other]


def later(seconds: float, state: State, **changes: Any) -> None:
    threading.Timer(seconds, lambda: state.__dict__.update(changes)).start()


def seen(urls: list[str], limit: float = 5.0, grace: float = 3.0, request_seconds: float = 2.0) -> dict[str, Any]:
    return watch.watch([endpoint(url) for url in urls], MODEL, limit, grace, request_seconds)


def test_the_replica_that_went_down_is_measured_and_not_the_other(replicas: tuple[list[State], list[str]]) -> None:
    states, urls = replicas
    later(0.3, states[1], error_every=1)
    later(1.3, states[1], error_every=0)
    found = seen(urls)
    assert found["failed"] == [urls[1]] and 0.4 < found["seconds"] < 3 and found["hung"] == 0 and set(found["errors"]) == {"status"}
    event = watch.outcome(found, "n2", "engine")
    assert (event["node"], event["what"], event["failed"], event["seconds"]) == ("n2", "engine", [urls[1]], found["seconds"])


def test_all_that_failed_must_be_back(replicas: tuple[list[State], list[str]]) -> None:
    states, urls = replicas
    for state, back in zip(states, (0.5, 1.5)):
        later(0.2, state, error_every=1)
        later(back, state, error_every=0)
    found = seen(urls)
    assert found["failed"] == urls and 0.8 < found["seconds"] < 4


def test_one_right_answer_among_errors_is_not_back(replicas: tuple[list[State], list[str]]) -> None:
    states, urls = replicas
    later(0.2, states[0], error_every=3)
    found = seen(urls, limit=1.0)
    assert found["failed"] == [urls[0]] and found["seconds"] is None and "EngineCore" in found["text"]


def test_nothing_that_fails_is_told_after_the_grace(replicas: tuple[list[State], list[str]]) -> None:
    began = time.monotonic()
    found = seen(replicas[1], grace=0.5)
    assert found["failed"] == [] and found["seconds"] is None and found["requests"] > 4 and time.monotonic() - began < 3


def test_requests_without_answer_or_error_are_counted() -> None:
    state = State()
    with serving(state) as url:
        later(0.2, state, hang=True)
        later(1.5, state, hang=False)
        found = seen([url], request_seconds=0.4)
    assert found["hung"] >= watch.STREAMS and found["seconds"] is not None


class Stuck(State):
    """Never answers the first request, closes the connection of the second, and serves every other."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.ended = threading.Event()

    def tokens(self, body: dict[str, Any]) -> list[int]:
        number = next(self.numbers)
        if number == 1:
            self.ended.wait(10)
        if number == 2:
            raise ConnectionError
        return super().tokens(body)


def test_a_request_that_hangs_while_all_others_are_right_again_is_waited_for() -> None:
    state = Stuck()
    with serving(state) as url:
        found = seen([url], request_seconds=0.8)
        state.ended.set()
    assert found["hung"] == 1 and found["errors"]["timeout"] == 1 and found["seconds"] < 0.6, found


def test_a_request_that_hangs_and_no_failure_within_the_grace_is_waited_for(replicas: tuple[list[State], list[str]]) -> None:
    states, urls = replicas
    later(0.1, states[0], hang=True)
    later(0.7, states[0], hang=False)
    found = seen(urls, grace=0.3, request_seconds=0.5)
    assert found["failed"] == [urls[0]] and found["hung"] >= watch.STREAMS and found["seconds"] is not None, found


def test_no_connection_is_a_failure_and_no_request_that_hangs() -> None:
    with raw(None, accept=False) as url, contextlib.ExitStack() as stack:
        for _number in range(3):
            full = stack.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(("127.0.0.1", int(url.rpartition(":")[2])))
        found = seen([url], limit=0.4, request_seconds=0.3)
    assert found["failed"] == [url] and found["hung"] == 0 and set(found["errors"]) == {"timeout"} and "no connection" in found["text"], found


def test_what_never_comes_back_is_bounded() -> None:
    with raw(b"") as url:
        began = time.monotonic()
        found = seen([url, "http://no-such-host.invalid"], limit=0.8)
    assert found["seconds"] is None and len(found["failed"]) == 2 and found["text"] and time.monotonic() - began < 8
