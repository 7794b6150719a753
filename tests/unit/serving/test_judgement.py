# SPDX-License-Identifier: GPL-3.0-or-later
"""Stages 1 and 5 from readings: each fault by its name, and what was not seen never passes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.action.verify import aftermath
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import MemoryReader
from ansible_collections.inferops.vllm.plugins.module_utils.serving import log_marks, reading, result, stability, start

ARGV = ["vllm", "serve", "/m", "--tensor-parallel-size", "2", "--nnodes", "2", "--served-model-name", "K3", "--enable-prefix-caching"]
HTTP = [result.finding("start.health", "pass")]


def entry(rank: int) -> dict[str, Any]:
    argv = [*ARGV, "--node-rank", str(rank)]
    return {"role": "worker" if rank else "head", "rank": rank, "argv": argv, "env": {"VLLM_HOST_IP": "10.0.0.%d" % rank, "HF_HOME": "/x"},
            "health_url": None if rank else "http://h/health"}


PLAN: dict[str, Any] = {"nodes": {"a": entry(0), "b": entry(1)}, "engines": [{"name": "all", "nodes": ["a", "b"]}]}


def node(rank: int) -> dict[str, Any]:
    return {
        "unit": {"name": "vllm.service", "installed": True, "active": "active", "sub": "running", "restarts": 0, "active_seconds": 900.0, "result": "success"},
        "processes": [{"pid": 10, "argv": ["python3", "/usr/bin/vllm", *entry(rank)["argv"][1:]], "env": {"VLLM_HOST_IP": "10.0.0.%d" % rank}}],
        "log": {"ranks": [["N/A", 0, rank, rank, 2]], "marks": {} if rank else {"ready": ""}, "warnings": [], "new_warnings": [], "nccl_errors": [],
                "transports": {"nccl_gdrdma": 4}},
        "gpus": [{"index": 0, "used": 100, "total": 200}], "xids": [], "containers": [{"id": "c", "name": "vllm", "status": "Up 1 hour", "image": "i"}],
        "rss": {"10": 1000000}, "rdma": {"mlx5_0/1/link_downed": 1}, "retransmitted": 5, "pids": {"server": 10}, "unknown": {}, "now": 1.0,
    }


def judged(change: Any = None) -> dict[str, dict[str, Any]]:
    nodes = {"a": node(0), "b": node(1)}
    if change is not None:
        change(nodes)
    return {"%s %s" % (f["id"], f["where"]): f for f in start.judge(PLAN, nodes)}


def bad(found: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, f in found.items() if f["status"] in ("fail", "unknown")]


def test_a_sound_start_passes() -> None:
    assert bad(judged()) == []
    assert start.stage(PLAN, {"a": node(0), "b": node(1)}, {}, HTTP)["status"] == "passed"
    assert start.stage(PLAN, {"a": node(0), "b": node(1)}, {}, [])["status"] == "not_verified"


def test_every_fault_of_a_start_is_named() -> None:
    def put(path: str, value: Any) -> Any:
        def change(nodes: dict[str, Any]) -> None:
            at: Any = nodes["a"]
            *parts, last = path.split(".")
            for part in parts:
                at = at[part]
            at[last] = value
        return change

    for path, value, wanted in (
        ("unit.installed", False, "start.unit a"), ("unit.active", "failed", "start.unit a"), ("unit.restarts", 3, None),
        ("unit", None, "start.unit a"),
        ("processes", [], "start.argv a"), ("processes", None, "start.argv a"), ("log", None, "start.log a"), ("log.marks", {}, "start.ready a"),
        ("log.ranks", [], "start.ranks engine all"), ("xids", [{"code": 79, "bdf": "0", "text": "off the bus"}], "start.xid a"),
        ("xids", None, "start.xid a"),
    ):
        found = judged(put(path, value))
        assert (wanted is None and not bad(found)) or wanted in bad(found), (path, bad(found))

    found = judged(put("unit", dict(node(0)["unit"], restarts=4, active_seconds=20.0)))
    assert "restart loop" in found["start.unit a"]["observed"] and found["start.unit a"]["status"] == "fail"
    found = judged(put("unit", dict(node(0)["unit"], active="activating", sub="auto-restart", restarts=2)))
    assert "restart loop" in found["start.unit a"]["observed"]
    # One death is no loop.
    found = judged(put("unit", dict(node(0)["unit"], active="activating", sub="auto-restart", restarts=0)))
    assert "is started again" in found["start.unit a"]["observed"] and "loop" not in found["start.unit a"]["observed"]


def test_another_command_line_and_environment_are_named() -> None:
    def change(nodes: dict[str, Any]) -> None:
        argv = nodes["a"]["processes"][0]["argv"]
        argv.remove("--enable-prefix-caching")
        argv[argv.index("K3")] = "K4"
        argv.append("--swap-space=4")
        nodes["a"]["processes"][0]["env"] = {"VLLM_HOST_IP": "127.0.0.1"}

    found = judged(change)
    text = found["start.argv a"]["observed"]
    assert "lacks enable-prefix-caching" in text and "served-model-name is K4, planned K3" in text and "has swap-space 4" in text
    assert "VLLM_HOST_IP is 127.0.0.1" in found["start.env a"]["observed"]


def test_a_node_that_was_not_read_is_unknown() -> None:
    found = start.judge(PLAN, {"a": node(0), "b": None}, {"b": "did not answer"})
    states = {(f["id"], f["where"]): f["status"] for f in found}
    assert states["start.node", "b"] == "unknown" and states["start.ranks", "engine all"] == "unknown"


def test_a_node_that_cannot_be_read_after_a_stage_is_unknown_and_has_lost_no_process() -> None:
    assert aftermath("a", node(0), None, "request", [])[0]["status"] == "unknown"
    assert aftermath("a", None, node(0), "request", []) == []
    assert aftermath("a", node(0), node(0), "concurrency", [])[-1] == result.finding(
        "concurrency.gpu_memory", "pass", "100 to 100 MiB used, 100 to 100 before; at most 0 more", "at most 256 MiB more", where="a")
    grown = dict(node(0), gpus=[{"index": 0, "used": 900, "total": 2000}])
    assert aftermath("a", node(0), grown, "concurrency", [])[-1]["status"] == "warn"
    assert aftermath("a", node(0), dict(node(0), gpus=[{"index": 7, "used": 1, "total": 2}]), "concurrency", [])[-1]["status"] == "fail"
    assert [f["id"] for f in aftermath("a", node(0), dict(node(0), pids={}), "request", []) if f["status"] == "fail"] == ["request.restart"]


@pytest.mark.parametrize(("one", "other", "same"), [
    ("0.32.0", "0.32.0+cpu", True), ("0.32", "0.32.1", True), ("0.32.0", "0.32.1", False), ("v0.27.1", "0.27.1", True),
    ("", "0.32", False), ("x", "0.1", False)])
def test_versions(one: str, other: str, same: bool) -> None:
    assert start.same_version(one, other) is same


def test_flags_of_a_command_line() -> None:
    assert start.flags(["python", "vllm", "serve", "/m", "--a", "1", "--b=2", "--no_c", "--d", "x", "y"]) == {
        "model": "/m", "a": "1", "b": "2", "no-c": "", "d": "x y"}


LOG = """1795990000.1 node docker[1]: (Worker pid=33) INFO 11-29 22:53:27 [parallel_state.py:2350] rank 1 in world size 2 \
is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 1, ETP rank 1, EP rank N/A
1795990001.1 node docker[1]: (APIServer pid=1) WARNING 11-29 22:53:07 [x.py:255] Found ulimit of 20000 and failed
1795990002.1 node docker[1]: (EngineCore pid=1) WARNING 11-29 22:53:07 [y.py:1] KV block 7 is odd
1795990003.1 node docker[1]: (EngineCore pid=1) WARNING 11-29 22:53:08 [y.py:1] KV block 8 is odd
1795990004.1 node docker[1]: INFO:     Application startup complete.
1795990005.1 node docker[1]: node:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
1795990006.1 node docker[1]: node:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via NET/Socket/0
1795990009.1 node docker[1]: (EngineCore pid=1) ERROR 11-29 22:55:07 [z.py:1] something new
1795990009.2 node docker[1]: NCCL WARN Timeout
"""


def test_marks_of_a_log() -> None:
    found = log_marks.read(LOG, 1795990008.0)
    assert found["ranks"] == [["0", 0, 1, 1, 2]] and "ready" in found["marks"]
    assert [(w["text"], w["count"]) for w in found["warnings"]] == [("KV block 7 is odd", 2)]
    assert [(w["level"], w["text"]) for w in found["new_warnings"]] == [("ERROR", "something new"), ("WARNING", "NCCL WARN Timeout")]
    assert found["transports"] == {"nccl_gdrdma": 1, "nccl_socket": 1} and len(found["nccl_errors"]) == 1


def test_of_a_traceback_only_the_error_counts() -> None:
    head = "1795990009.1 node docker[1]: (APIServer pid=1) ERROR 11-30 03:34:33 [serving.py:929] "
    lines = ["Error in stream.", "Traceback (most recent call last):", '  File "/x/vllm/serving.py", line 527, in stream', "    async for res in results:",
             "                     ^^^^^", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."]
    found = log_marks.read("\n".join(head + line for line in lines))
    assert [w["text"] for w in found["warnings"]] == [lines[0], lines[-1]]


@given(st.text(max_size=300))
def test_any_log_is_read(text: str) -> None:
    assert log_marks.read(text)["lines"] >= 0


def test_the_transport_really_used() -> None:
    def states(seen: dict[str, int] | None, planned: str = "rdma", several: bool = True) -> list[str]:
        return [f["status"] for f in stability.transports(planned, {"a": {"log": {"transports": seen}}}, several)]

    assert states({"nccl_gdrdma": 2, "nccl_p2p": 1}) == ["pass"]
    assert states({"nccl_socket": 8}) == ["fail"]
    assert states({"nccl_ib": 8}) == ["warn"]
    assert states({"nccl_shm": 8}) == ["fail"]
    assert states({}) == ["unknown"] and states(None) == ["unknown"]
    assert states({"nccl_mnnvl": 1}, "nvlink") == ["pass"] and states({"nccl_socket": 1}, "nvlink") == ["fail"]
    assert states({"nccl_socket": 8}, "none") == ["skip"] and states({"nccl_socket": 8}, "rdma", False) == ["skip"]


def test_restarts() -> None:
    good = {"node": "a", "what": "engine", "failed": ["http://a:1"], "seconds": 40.0, "hung": 0, "text": ""}
    assert [f["status"] for f in stability.restart(good, 60)] == ["pass", "pass"]
    assert [f["status"] for f in stability.restart(dict(good, seconds=90.0), 60)] == ["fail", "pass"]
    assert [f["status"] for f in stability.restart(dict(good, seconds=None), 60)] == ["fail"]
    assert [f["status"] for f in stability.restart(dict(good, hung=2), 60)] == ["pass", "fail"]
    # What was not seen to fail was not seen to recover.
    assert [f["status"] for f in stability.restart(dict(good, failed=[], seconds=None), 60)] == ["unknown"]


def test_the_same_answers() -> None:
    assert stability.answers({"a": "1"}, {"a": "1"})["status"] == "pass"
    assert stability.answers({"a": "1"}, {"a": "2"})["status"] == "warn"
    assert stability.answers({"a": "1"}, {"b": "2"})["status"] == "fail"
    assert stability.answers({}, {"b": "2"})["status"] == "unknown"


def test_what_is_left_behind() -> None:
    before, after = node(0), node(0)
    assert [f["status"] for f in stability.left_behind("a", before, after)] == ["pass", "pass"]
    after["containers"].append({"id": "d", "name": "vllm-old", "status": "Exited (137)", "image": "i"})
    after["gpus"][0]["used"] = 5000
    assert [f["status"] for f in stability.left_behind("a", before, after)] == ["fail", "fail"]
    assert stability.gpu_growth("a", before, dict(after, gpus=[{"index": 1, "used": 0, "total": 1}]))[0]["status"] == "fail"


def test_a_soak() -> None:
    def states(change: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        for f in stability.soak("a", node(0), dict(copy.deepcopy(node(0)), **change), 1.0):
            found[f["id"]] = "fail" if "fail" in (f["status"], found.get(f["id"])) else f["status"]
        return found

    assert set(states({}).values()) == {"pass"}
    assert states({"rss": {"10": 1300000}})["stability.memory"] == "fail"
    assert states({"rss": {"10": 1050000}})["stability.memory"] == "pass"
    assert states({"rss": {"77": 1000000}})["stability.restarts"] == "fail"
    assert states({"rss": {}})["stability.restarts"] == "fail"
    assert states({"unit": dict(node(0)["unit"], restarts=1)})["stability.restarts"] == "fail"
    assert states({"rdma": {"mlx5_0/1/link_downed": 2}})["stability.ports"] == "fail"
    assert states({"retransmitted": 50000})["stability.retransmissions"] == "warn"
    assert states({"xids": [{"code": 13, "bdf": "0", "text": "x"}]})["stability.xid"] == "fail"
    assert states({"log": dict(node(0)["log"], new_warnings=[{"level": "ERROR", "text": "x"}])})["stability.log"] == "fail"
    assert states({"log": dict(node(0)["log"], nccl_errors=["NCCL WARN"])})["stability.nccl"] == "fail"


def test_without_permission_it_is_not_verified() -> None:
    passed = [result.finding("stability.memory", "pass")]
    assert stability.stage(passed, True, 1.0)["status"] == "passed"
    assert stability.stage(passed, False, 1.0)["status"] == "not_verified"
    assert stability.stage([], False, 0.0)["status"] == "not_verified" and "verify_allow_restart" in stability.stage([], False, 0.0)["summary"]


def test_a_reading_of_a_node_that_has_nothing_names_what_is_missing() -> None:
    found = reading.read(MemoryReader(), "vllm.service")
    assert found["unit"] is None and found["gpus"] is None and {"unit", "gpus"} <= set(found["unknown"])
    assert bad({str(n): f for n, f in enumerate(start.judge({}, {"a": found}))})


def test_gpus_and_containers() -> None:
    assert reading.gpus("0, 10, 20\n1, [N/A], 20\n") == [{"index": 0, "used": 10, "total": 20}, {"index": 1, "used": None, "total": 20}]
    assert reading.gpus("nonsense") is None
    assert reading.listed("a" * 64 + "\tvllm\tUp\timage\nbad\n") == [{"id": "a" * 12, "name": "vllm", "status": "Up", "image": "image"}]


def test_who_stands_for_the_ways_to_die() -> None:
    server = {"pid": 5, "argv": ["python3", "/usr/bin/vllm", "serve", "/m"], "container": "c"}
    assert reading.victims([server, {"pid": 6, "argv": ["VLLM::EngineCore"]}]) == {"server": 5, "engine": 6}
    assert reading.victims([server]) == {"server": 5, "engine": 5} and reading.victims([{"pid": 1, "argv": ["vllm", "serve"]}]) == {}


def test_results() -> None:
    assert result.result("start", [])["status"] == "not_verified"
    assert result.result("start", [result.finding("a", "skip")])["status"] == "not_verified"
    assert result.result("start", [result.finding("a", "pass"), result.finding("b", "warn")])["status"] == "passed"
    both = result.merged("start", [result.not_run("start", "left out"), result.result("start", [result.finding("a", "pass")])])
    assert both["status"] == "not_verified" and both["summary"] == "left out"
    assert result.scrub({"a": ["x key-1234 y"]}, ["key-1234", ""]) == {"a": ["x <hidden> y"]}


