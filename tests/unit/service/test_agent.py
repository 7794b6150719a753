# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The link agent with real sockets, a real program, and a systemd that is played."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.service import agent as module
from ansible_collections.inferops.vllm.plugins.module_utils.service.agent import Agent, Config, Rank, Seen, Unit, parse_config

NAMES = ("n0", "n1")
ADDRESSES = ("127.0.0.1", "127.0.0.2")


def config(rank: int, port: int = 1, **more: Any) -> Config:
    return Config("engine", rank, port, ADDRESSES, NAMES, "plan", "vllm.service")._replace(**more)


class Side:
    """One node: its agent in threads, its service a variable."""

    def __init__(self, folder: pathlib.Path, rank: int, port: int) -> None:
        self.unit = Unit("inactive", "dead", "")
        self.killed: List[str] = []
        self.folder = folder / str(rank)
        self.folder.mkdir(exist_ok=True)
        self.config = config(rank, port)
        self.agent = self.begin()

    def begin(self) -> Agent:
        made = Agent(self.config, str(self.folder), lambda unit: self.unit, self.end)
        threading.Thread(target=made.loop, daemon=True).start()
        return made

    def end(self, unit: str) -> None:
        self.killed.append(self.unit.invocation)
        self.unit = Unit("activating", "auto-restart", self.unit.invocation)

    def ask(self, **question: Any) -> Any:
        return module.exchange(socket.AF_UNIX, self.agent.socket_path, question)

    def start(self, invocation: str) -> None:
        self.unit = Unit("activating", "start-pre", invocation)
        module.wait(str(self.folder), invocation, 0.05)
        self.unit = Unit("active", "running", invocation)


def until(true: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind((ADDRESSES[0], 0))
        return int(free.getsockname()[1])


@pytest.fixture
def sides(tmp_path: pathlib.Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[List[Side]]:
    monkeypatch.setattr(module, "POLL_S", 0.05)
    made = [Side(tmp_path, rank, port) for rank in (0, 1)]
    yield made
    for side in made:
        side.agent.over.set()


def both_start(sides: List[Side], suffix: str) -> str:
    threads = [threading.Thread(target=side.start, args=("%d-%s" % (rank, suffix),)) for rank, side in enumerate(sides)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    generations = {side.agent.rank.joined[1] for side in sides}
    assert len(generations) == 1 and generations != {""}
    return generations.pop()


def test_ranks_start_together_and_a_death_ends_the_other(sides: List[Side], capfd: pytest.CaptureFixture[str]) -> None:
    first = both_start(sides, "a")
    assert [side.killed for side in sides] == [[], []]
    sides[1].unit = Unit("activating", "auto-restart", "1-a", "signal")
    until(lambda: sides[0].killed)
    assert sides[0].killed == ["0-a"] and sides[1].killed == []
    assert both_start(sides, "b") != first
    sides[0].unit = Unit("inactive", "dead", "0-b")
    until(lambda: sides[1].killed)
    assert sides[1].killed == ["1-b"]
    said = capfd.readouterr().out
    assert "vllm.service is ended: the head (n0) is not in this generation any more: it is down (inactive)" in said
    assert "vllm.service is ended: rank 1 (n1) is not in this generation any more: it is down (activating (signal))" in said


def test_a_new_agent_of_the_same_boot_ends_nothing(sides: List[Side]) -> None:
    both_start(sides, "a")
    for side in sides:
        side.agent.over.set()
        time.sleep(1.2)
        side.agent = side.begin()
    time.sleep(0.6)
    assert [side.killed for side in sides] == [[], []]
    assert [side.agent.rank.own().state for side in sides] == ["running", "running"]


def test_a_head_alone_waits_and_says_for_whom(sides: List[Side]) -> None:
    sides[0].unit = Unit("activating", "start-pre", "x")
    until(lambda: sides[0].agent.rank.unit.invocation == "x")
    answer = sides[0].ask(op="wait", invocation="x")
    assert answer["go"] is False and "rank 1 (n1)" in answer["text"]
    until(lambda: "down (inactive)" in sides[0].ask(op="status")["waits_for"])
    assert sides[0].ask(op="status")["ranks"]["1"]["state"] == "down"


def test_a_service_that_was_started_anew_meanwhile_is_not_ended(sides: List[Side]) -> None:
    both_start(sides, "a")
    head = sides[0]
    looks = iter([Unit("active", "running", "0-a")])
    head.agent.see = lambda unit: next(looks, Unit("activating", "start-pre", "0-new"))
    head.agent.rank.hear(1, Seen("down"), time.monotonic())
    head.agent.rank.reports[1] = head.agent.rank.reports[1]._replace(at=time.monotonic() + 100)
    head.agent.turn()
    assert head.killed == []


def test_junk_on_the_wire_is_borne(sides: List[Side], port: int) -> None:
    until(lambda: _connects(port))
    for junk in (b"", b"\n", b"{\n", b"[1]\n", b"null\n", b"\xff\xfe\n", b"{" * 3000 + b"\n", b"x" * 100000, json.dumps({"rank": True}).encode() + b"\n"):
        with socket.create_connection((ADDRESSES[0], port), timeout=5) as link:
            try:
                link.sendall(junk)
                link.shutdown(socket.SHUT_WR)
                link.recv(5000)
            except OSError:
                pass
    assert "error" in module.exchange(socket.AF_INET, (ADDRESSES[0], port), {"engine": "engine", "rank": 1, "state": "down"})
    assert both_start(sides, "a")


def _connects(port: int) -> bool:
    try:
        socket.create_connection((ADDRESSES[0], port), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_peer_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    one, two = socket.socketpair()
    with one, two:
        begun = time.monotonic()
        with pytest.raises(OSError):
            module.read_line(one)
        for _byte in range(10):
            two.send(b"x")
        with pytest.raises(OSError):
            module.read_line(one)
        assert time.monotonic() - begun < 3


@pytest.mark.parametrize("asked,address,error", [
    ({"engine": "engine", "rank": 1}, "127.0.0.9", "has the address"), ({"engine": "other", "rank": 1}, "127.0.0.2", "head of engine"),
    ({"engine": "engine", "rank": 0}, "127.0.0.1", "no rank"), ({"engine": "engine", "rank": 2}, "127.0.0.2", "no rank"), (None, "127.0.0.2", "no rank"),
])
def test_only_a_rank_of_this_engine_from_its_own_address_is_heard(asked: Any, address: str, error: str) -> None:
    head = Rank(config(0), 0.0, lambda: "g")
    assert error in head.answer(asked, address, 1.0)["error"] and head.reports == {}
    assert "is no head" in Rank(config(1), 0.0, lambda: "g").answer({"engine": "engine", "rank": 1}, "127.0.0.2", 1.0)["error"]


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4))
MESSAGE = JSON | st.dictionaries(st.sampled_from(["engine", "rank", "state", "invocation", "generation", "member", "plan", "detail", "error"]),
                                 JSON | st.sampled_from(["engine", "running", "waiting", "down"]), max_size=8)


@given(st.lists(st.tuples(st.sampled_from([0, 1]), MESSAGE, st.floats(0, 1000)), max_size=6))
def test_any_message_is_borne(messages: List[Any]) -> None:
    for rank in (0, 1):
        side = Rank(config(rank), 0.0, lambda: "g")
        side.unit = Unit("active", "running", "x")
        for _rank, message, now in messages:
            side.answer(message, "127.0.0.2", now)
            side.answered(message, now)
            side.step(now)
            json.dumps([side.kept(), side.status(now), side.waits_for(now)])


@given(st.text() | JSON.map(json.dumps))
def test_any_config_is_read_or_refused(text: str) -> None:
    try:
        parse_config(text)
    except ValueError as exc:
        assert str(exc).startswith(module.CONFIG)


@pytest.mark.parametrize("change,why", [
    ({"addresses": ["a"]}, "addresses"), ({"rank": 2}, "rank"), ({"rank": True}, "rank"), ({"port": 0}, "port"), ({"port": "1"}, "port"),
    ({"addresses": [1, 2]}, "addresses"),
])
def test_a_config_that_means_nothing_is_refused(change: Dict[str, Any], why: str) -> None:
    good: Dict[str, Any] = {"engine": "e", "rank": 1, "port": 5, "addresses": ["a", "b"], "names": ["x", "y"], "plan": "p"}
    assert parse_config(json.dumps(good)).rank == 1
    with pytest.raises(ValueError, match=why):
        parse_config(json.dumps({**good, **change}))


def test_what_was_kept_by_another_rank_is_not_taken() -> None:
    head = Rank(config(0), 0.0, lambda: "g")
    head.joined = ("i", "g")
    assert Rank(config(0), 0.0, lambda: "g", head.kept()).joined == ("i", "g")
    assert Rank(config(1), 0.0, lambda: "g", head.kept()).joined == ("", "")
    assert Rank(config(0, engine="other"), 0.0, lambda: "g", head.kept()).joined == ("", "")


def test_the_installed_program_runs_alone(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "vllm-link"
    program.write_text(module.program())
    assert program.read_text().startswith("#!") and "\n# Copyright" in program.read_text()[:80]
    oldest = sorted(pathlib.Path(os.environ.get("PYENV_ROOT", "/root/.pyenv")).glob("versions/3.9.*/bin/python3.9"))
    for python in [sys.executable] + [str(path) for path in oldest]:
        done = subprocess.run([python, "-I", str(program)], capture_output=True, text=True, check=False, timeout=30)
        assert (done.returncode, done.stderr) == (2, "usage: vllm-link serve | wait | status\n")
        done = subprocess.run([python, "-I", str(program), "wait"], capture_output=True, text=True, check=False, timeout=30, env={})
        assert done.returncode == 2 and "INVOCATION_ID" in done.stdout
