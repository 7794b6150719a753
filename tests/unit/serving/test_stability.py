# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 5: what can no longer be read is unknown, one wrong channel fails, and nothing passes that was asked for and not seen."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.action import verify
from ansible_collections.inferops.vllm.plugins.module_utils.serving import result, stability
from ansible_collections.inferops.vllm.plugins.modules import verify_kill, verify_watch

from .test_judgement import node

EVENT = {"node": "a", "what": "engine", "failed": ["http://a:1"], "seconds": 40.0, "hung": 0, "text": "", "errors": {}}


def statuses(found: list[dict[str, Any]]) -> dict[str, str]:
    """Status by id, the worst where there are several."""
    order = ("pass", "info", "skip", "warn", "unknown", "fail")
    return {f["id"]: max((g["status"] for g in found if g["id"] == f["id"]), key=order.index) for f in found}


# -- readings ------------------------------------------------------------------------------------------------------
def soaked(after: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, str]:
    whole = copy.deepcopy(node(0))
    return statuses(stability.soak("a", {**whole, **(before or {})}, {**whole, **after}, 1.0))


@pytest.mark.parametrize(("part", "nothing", "id"), [
    ("log", None, "stability.log"), ("xids", None, "stability.xid"), ("gpus", None, "stability.gpu_memory"), ("rdma", None, "stability.ports"),
    ("retransmitted", None, "stability.retransmissions"), ("unit", None, "stability.restarts")])
def test_what_the_soak_made_unreadable_is_unknown(part: str, nothing: Any, id: str) -> None:
    assert set(soaked({}).values()) == {"pass"} and soaked({})[id] == "pass"
    assert soaked({part: nothing})[id] == "unknown"
    # What was never readable says as much as before: a node without it can still pass.
    assert soaked({part: nothing}, {part: nothing}).get(id) in (None, "unknown" if part == "xids" else None)


def test_a_log_without_a_line_is_none() -> None:
    empty = {"log": dict(node(0)["log"], lines=0), "unknown": {"log": "the journal holds no line of this start"}}
    assert soaked(empty)["stability.log"] == "unknown" and soaked(empty, empty)["stability.log"] == "pass"


def test_processes_that_cannot_be_read_did_not_die() -> None:
    assert soaked({"rss": {}, "processes": None})["stability.memory"] == "unknown"
    assert soaked({"rss": {}, "processes": []})["stability.restarts"] == "fail"


def test_a_port_that_vanished_fails_and_a_counter_that_vanished_is_unknown() -> None:
    two = {"mlx5_0/1/link_downed": 1, "mlx5_1/1/link_downed": 1, "mlx5_1/1/symbol_error": 0}
    assert soaked({"rdma": two}, {"rdma": two})["stability.ports"] == "pass"
    assert soaked({"rdma": {"mlx5_0/1/link_downed": 1}}, {"rdma": two})["stability.ports"] == "fail"
    assert soaked({"rdma": {}})["stability.ports"] == "fail"
    assert soaked({"rdma": {k: v for k, v in two.items() if "symbol" not in k}}, {"rdma": two})["stability.ports"] == "unknown"


def test_gpu_memory_after_a_soak() -> None:
    assert soaked({"gpus": [{"index": 0, "used": 900, "total": 2000}]})["stability.gpu_memory"] == "warn"
    assert soaked({"gpus": [{"index": 7, "used": 100, "total": 2000}]})["stability.gpu_memory"] == "fail"


def test_gpus_that_no_longer_answer_after_a_restart() -> None:
    assert statuses(stability.left_behind("a", node(0), dict(node(0), gpus=None)))["stability.gpu_memory"] == "unknown"
    assert "stability.gpu_memory" not in statuses(stability.left_behind("a", dict(node(0), gpus=None), dict(node(0), gpus=None)))


# -- transport -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("planned", "seen", "status"), [
    ("rdma", {"nccl_gdrdma": 16, "nccl_p2p": 8}, "pass"), ("rdma", {"nccl_gdrdma": 16, "nccl_socket": 1}, "fail"),
    ("rdma", {"nccl_ib": 1, "nccl_socket": 16}, "fail"), ("rdma", {"nccl_ib": 16}, "warn"),
    ("rdma", {"nccl_net_ib": 1}, "warn"), ("rdma", {"nccl_net_socket": 1}, "fail"), ("nvlink", {"nccl_mnnvl": 16, "nccl_net_socket": 1}, "pass"),
    ("nvlink", {"nccl_mnnvl": 16, "nccl_p2p": 8}, "pass"), ("nvlink", {"nccl_p2p": 2, "nccl_socket": 4}, "fail"),
    ("nvlink", {"nccl_mnnvl": 16, "nccl_socket": 1}, "fail"), ("nvlink", {"nccl_p2p": 8}, "fail"), ("nvlink", {"nccl_mnnvl": 2, "nccl_ib": 4}, "fail")])
def test_one_channel_over_another_transport_than_planned_fails(planned: str, seen: dict[str, int], status: str) -> None:
    assert [f["status"] for f in stability.transports(planned, {"a": {"log": {"transports": seen}}}, True)] == [status]


def test_requests_that_hang_are_told_of_a_service_that_did_not_come_back_as_well() -> None:
    lost = dict(EVENT, seconds=None)
    assert statuses(stability.restart(lost, 60)) == {"stability.recovery": "fail"}
    assert statuses(stability.restart(dict(lost, hung=2), 60)) == {"stability.recovery": "fail", "stability.hang": "fail"}


# -- the whole stage -----------------------------------------------------------------------------------------------
PASSED = result.result("request", [result.finding("request.text", "pass")], 1.0, {"endpoint": "http://a:1", "answers": {"text": "1"}})
LOAD = result.result("concurrency", [result.finding("concurrency.target", "pass"), result.finding("concurrency.errors", "pass")], 5.0)
REGISTERS = {"acceptance_restarted_engine": {"event": EVENT}}
READINGS = {"acceptance_read_restarted": {"reading": node(0)}, "acceptance_read_soaked": {"reading": node(0)}}


def stage(registers: Any = None, load: Any = LOAD, soak: float = 5.0, allowed: bool = True, request: Any = PASSED, readings: Any = None) -> dict[str, Any]:
    """Stage 5 of one node, as the role asks for it."""
    host = READINGS if readings is None else readings
    variables = {**(REGISTERS if registers is None else registers), "ansible_play_hosts_all": ["a"], "hostvars": {"a": host}}
    args = {"read_restarted": "acceptance_read_restarted", "read_soaked": "acceptance_read_soaked", "restarts": list(variables), "allow_restart": allowed,
            "restart_limit": 60.0, "soak_seconds": soak, "memory_growth_percent": 10.0, "served_again": {"stages": {"request": PASSED}},
            "soaked": {"stages": {"concurrency": load}} if load else {}}
    action: Any = verify.ActionModule.__new__(verify.ActionModule)
    found: dict[str, Any] = action._stability(args, {}, {"a": node(0)}, {"request": request}, variables)
    return found


def said(found: dict[str, Any], status: str = "unknown") -> str:
    return " | ".join("%s: %s" % (f["id"], f["observed"]) for f in found["findings"] if f["status"] == status)


def test_restarts_and_a_soak_that_were_seen_pass() -> None:
    assert stage()["status"] == "passed", stage()["findings"]
    # Machines without GPUs, kernel log and journal, before and after.
    blind = dict(node(0), gpus=None, xids=None, rdma={})
    assert statuses(stability.soak("a", blind, blind, 1.0))["stability.xid"] == "skip"


def test_no_soak_is_said() -> None:
    found = stage(soak=0.0, load=None, readings={"acceptance_read_restarted": {"reading": node(0)}})
    assert found["status"] == "passed" and "no soak was asked for" in said(found, "info")


@pytest.mark.parametrize(("load", "words"), [
    (result.not_run("concurrency", "4096 tokens do not fit into 300"), "do not fit into 300"),
    (result.result("concurrency", [result.finding("concurrency.target", "unknown", "no step was finished within 120 s")]), "no step was finished"),
    (result.result("concurrency", [result.finding("concurrency.errors", "pass"), result.finding("concurrency.other", "unknown", "who knows")]), "who knows"),
    (None, "no load was kept up")])
def test_a_soak_that_was_not_seen_is_not_verified(load: Any, words: str) -> None:
    assert stage(load=load)["status"] == "not_verified" and words in said(stage(load=load))


def test_a_soak_that_failed_fails_whatever_failed() -> None:
    load = result.result("concurrency", [result.finding("concurrency.preemptions", "fail", "7 preemptions")])
    assert stage(load=load)["status"] == "failed" and "7 preemptions" in said(stage(load=load), "fail")


def test_a_node_that_cannot_be_read_afterwards_is_unknown() -> None:
    gone = {"unreachable": True, "msg": "did not answer"}
    for name in READINGS:
        for readings in ({**READINGS, name: gone}, {k: v for k, v in READINGS.items() if k != name}):
            assert stage(readings=readings)["status"] == "not_verified" and "could not be read" in said(stage(readings=readings))


def test_no_restart_is_not_verified() -> None:
    found = stage(registers={})
    assert found["status"] == "not_verified" and "no process was ended" in said(found)
    assert stage(registers={}, load=None, soak=0.0, readings={})["status"] == "not_verified"
    assert stage(registers={}, allowed=False)["status"] == "not_verified"


@pytest.mark.parametrize("trouble", [
    {"failed": True, "msg": "no server process of vllm.service runs on this node"}, {"unreachable": True, "msg": "no server process of vllm.service runs"},
    {"changed": True, "pid": 7, "ended": False, "msg": "no server process of vllm.service runs: said as a check would"}])
def test_a_restart_that_was_not_made_is_not_verified_and_says_why(trouble: dict[str, Any]) -> None:
    found = stage(registers={**REGISTERS, "acceptance_ended_server": trouble})
    assert found["status"] == "not_verified" and "no server process of vllm.service runs" in said(found)
    assert stage(registers={**REGISTERS, "acceptance_ended_server": {"changed": True, "pid": 7, "ended": True}})["status"] == "passed"
    assert stage(registers={**REGISTERS, "acceptance_ended_server": {"skipped": True}})["status"] == "passed"


def test_nothing_is_ended_after_a_stage_that_did_not_pass_and_the_stage_says_which() -> None:
    failed = result.result("request", [result.finding("request.model", "fail", "serves K3")])
    found = stage(registers={}, request=failed)
    assert found["status"] == "not_verified" and "stage request did not pass" in said(found) and "serves K3" in said(found)


# -- modules -------------------------------------------------------------------------------------------------------
class Ended(Exception):
    """What a module returned."""


class Module:
    """AnsibleModule with given parameters."""

    def __init__(self, params: dict[str, Any], check: bool = False) -> None:
        self.params, self.check_mode = params, check

    def exit_json(self, **found: Any) -> None:
        raise Ended(found)

    fail_json = exit_json


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Callable ``kill(pid, check) -> (what the module returned, pids that were ended)``."""

    def call(pid: int | None, check: bool = False) -> Any:
        ended: list[int] = []
        monkeypatch.setattr(verify_kill.reading, "victim", lambda *_args: pid)
        monkeypatch.setattr(os, "kill", lambda pid, _signal: ended.append(pid))
        monkeypatch.setattr(verify_kill, "AnsibleModule",
                            lambda **_spec: Module({"unit": "vllm.service", "what": "server", "permitted": True}, check))
        with pytest.raises(Ended) as found:
            verify_kill.main()
        return found.value.args[0], ended

    return call


def test_a_check_ends_no_process_and_does_not_look_as_if(kill: Any) -> None:
    found, ended = kill(4242, check=True)
    assert ended == [] and found["ended"] is False and "would be ended" in found["msg"]
    found, ended = kill(4242)
    assert ended == [4242] and found["ended"] is True and found["pid"] == 4242
    found, ended = kill(None)
    assert ended == [] and found["msg"] == "no server process of vllm.service runs on this node"


@pytest.mark.parametrize(("url", "key", "echo"), [
    ("http://127.0.0.1:1", "sesame-secret-1234", "invalid key: Bearer sesame-secret-1234"),
    ("http://bob:hunter2!@127.0.0.1:1", "", "invalid: Basic Ym9iOmh1bnRlcjIh hunter2!")])
def test_no_secret_of_any_address_is_in_the_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, url: str, key: str, echo: str) -> None:
    path = tmp_path / "key"
    path.write_text(key, encoding="utf-8")
    params = {"endpoints": ["http://127.0.0.1:2", url], "model": "m", "limit": 1.0, "grace": 1.0, "request_seconds": 1.0, "node": "a", "what": "engine",
              "api_key": None, "api_key_file": str(path) if key else None, "ca_file": None, "insecure": False}
    monkeypatch.setattr(verify_watch, "AnsibleModule", lambda **_spec: Module(params))
    monkeypatch.setattr(verify_watch.watch, "watch", lambda *_args: {
        "failed": [], "seconds": None, "text": "HTTP 401: " + echo, "hung": 0, "errors": {"status": 1}})
    with pytest.raises(Ended) as found:
        verify_watch.main()
    text = found.value.args[0]["event"]["text"]
    assert "<hidden>" in text and not any(secret in text for secret in ("sesame", "hunter2", "Ym9iOmh1bnRlcjIh")), text
