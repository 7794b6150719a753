# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 1: what was planned and could not be read is unknown, and every node must show its ranks."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.serving import start
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import endpoint

from .servers import MODEL, Handler, State, serving


def judged(reading: dict[str, Any], hardware: str) -> dict[str, str]:
    plan = {"hardware": hardware, "nodes": {"a": {"role": "head", "argv": []}}}
    return {f["id"]: f["status"] for f in start.judge(plan, {"a": reading})}


HUNG = {"xids": None, "gpus": None, "unknown": {"gpus": "nvidia-smi did not answer in time and was abandoned"}}


def test_where_gpus_are_planned_they_must_be_read() -> None:
    found = judged(HUNG, "h200")
    assert found["start.xid"] == "unknown" and found["start.gpu_memory"] == "unknown"
    found = judged(HUNG, "cpu")
    assert found["start.xid"] == "skip" and "start.gpu_memory" not in found
    good = judged({"xids": [], "gpus": [{"index": 0, "used": 1, "total": 2}]}, "h200")
    assert good["start.xid"] == "pass" and good["start.gpu_memory"] == "info"
    # GPUs of another maker have no nvidia-smi.
    assert "start.gpu_memory" not in judged({"xids": [], "gpus": None, "unknown": {"gpus": "nvidia-smi is not installed"}}, "mi355x")


def test_without_a_plan_gpus_that_were_read_want_their_xids() -> None:
    read = {"xids": None, "gpus": [{"index": 0, "used": 1, "total": 2}]}
    assert [f["status"] for f in start.judge({}, {"a": read}) if f["id"] == "start.xid"] == ["unknown"]
    assert [f["status"] for f in start.judge({}, {"a": HUNG}) if f["id"] == "start.xid"] == ["skip"]


@pytest.mark.parametrize(("planned", "status"), [("0.32.0", "unknown"), ("", "warn")])
def test_a_version_that_is_planned_must_be_told(planned: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Handler.do_GET
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.answer(500, "no") if self.path == "/version" else plain(self))
    with serving(State()) as url:
        found = {f["id"]: f["status"] for f in start.asked(endpoint(url), MODEL, planned)}
    assert found == {"start.health": "pass", "start.version": status, "start.models": "pass"}


def test_a_version_that_is_told() -> None:
    with serving(State()) as url:
        assert [f["status"] for f in start.asked(endpoint(url), MODEL, "0.32.0")] == ["pass"] * 3
        assert [f["status"] for f in start.asked(endpoint(url), MODEL, "0.31.0")] == ["pass", "fail", "pass"]


def rank(dp: str, pp: int, tp: int, size: int) -> list[Any]:
    return [dp, pp, tp, 0, size]


def ranks(words: str, **seen: list[list[Any]] | None) -> dict[str, Any]:
    plan = {"nodes": {name: {"argv": ["vllm", "serve", "/m", *words.split()]} for name in seen}, "engines": [{"name": "e", "nodes": list(seen)}]}
    readings = {name: {"log": None if listed is None else {"ranks": listed}} for name, listed in seen.items()}
    return next(f for f in start.judge(plan, readings) if f["id"] == "start.ranks")


def test_every_node_shows_its_ranks() -> None:
    one = [rank("0", 0, 0, 1)]
    found = ranks("--data-parallel-size 2", a=one, b=[])
    assert found["status"] == "fail" and found["observed"] == "1 of 2 ranks initialised: b shows 0 of 1"
    assert ranks("--data-parallel-size 2", a=one, b=one)["status"] == "pass"
    assert ranks("--data-parallel-size 2", a=one, b=None)["status"] == "unknown"
    # Experts number the data-parallel ranks.
    assert ranks("--data-parallel-size 2", a=[rank("0", 0, 0, 2)], b=[rank("1", 0, 0, 2)])["observed"] == "2 of 2 ranks initialised, world size 2"
    tensor = [rank("N/A", 0, number, 4) for number in range(4)]
    assert ranks("--tensor-parallel-size 4", a=tensor[:2], b=tensor[2:])["status"] == "pass"
    assert ranks("--tensor-parallel-size 4", a=tensor[:2], b=tensor[2:3])["observed"] == "3 of 4 ranks initialised: b shows 1 of 2"
    assert ranks("--tensor-parallel-size 4", a=tensor)["status"] == "pass"


def test_ranks_that_look_alike_are_not_counted_as_if_they_were_seen() -> None:
    both = [rank("0", 0, number, 2) for number in range(2)]
    words = "--tensor-parallel-size 2 --data-parallel-size 2"
    assert ranks(words, a=both, b=both)["observed"] == "4 ranks seen on 2 nodes, 4 planned; data-parallel ranks of a dense model look alike, world size 2"
    assert ranks(words, a=both)["observed"].startswith("2 ranks seen on 1 nodes, 4 planned")
    assert ranks(words, a=both, b=both[:1])["status"] == "fail"


def test_a_node_that_only_serves_needs_no_rank() -> None:
    plan = {"nodes": {"a": {"argv": ["serve", "/m", "--data-parallel-size", "1", "--data-parallel-size-local", "0"]},
                      "b": {"argv": ["serve", "/m", "--data-parallel-size", "1"]}}, "engines": [{"name": "e", "nodes": ["a", "b"]}]}
    readings = {"a": {"log": {"ranks": []}}, "b": {"log": {"ranks": [rank("0", 0, 0, 1)]}}}
    assert [f["status"] for f in start.judge(plan, readings) if f["id"] == "start.ranks"] == ["pass"]
