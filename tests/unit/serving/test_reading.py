# SPDX-License-Identifier: GPL-3.0-or-later
"""The reading of one node: its log however long it is, the process that stage 5 may end, and what could not be read."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.node import systemd
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import OUTPUT_LIMIT
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import MemoryReader, Names, Ran
from ansible_collections.inferops.vllm.plugins.module_utils.serving import reading, requests, start

INVOCATION = "a" * 32
RANK = ("(Worker pid=1) INFO 11-29 16:58:44 [parallel_state.py:2350] rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, PCP rank 0, "
        "TP rank 0, ETP rank 0")
READY = "(APIServer pid=1) INFO:     Application startup complete."
ACCESS = '(APIServer pid=1) INFO:     127.0.0.1:50000 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
ERROR = "(EngineCore pid=1) ERROR 11-29 22:55:07 [z.py:1] something new"


class Node(MemoryReader):
    """A node whose unit is up for `age` seconds; journalctl answers from `lines` (seconds before now, text) as that of systemd 252 does."""

    def __init__(self, lines: list[tuple[float, str]], age: float = 100000.0, readable: bool = True, limit: int = OUTPUT_LIMIT, **given: Any) -> None:
        show = "Id=vllm.service\nLoadState=loaded\nActiveState=active\nSubState=running\nNRestarts=0\nInvocationID=%s\n%s\n" % (
            INVOCATION, "ActiveEnterTimestampMonotonic=%d" % ((1000000 - age) * 1e6))
        super().__init__(files={"/proc/uptime": "1000000.0 1\n", **given.pop("files", {})},
                         commands={systemd.show_command(["vllm.service"], reading.EXTRA): show, **given.pop("commands", {})}, **given)
        self.limit = limit
        self.readable = readable
        now = time.time()
        self.lines = [(now - ago, text) for ago, text in lines]

    def _run(self, argv: tuple[str, ...]) -> Ran:
        if argv[0] != "journalctl" or "_SYSTEMD_INVOCATION_ID=" + INVOCATION not in argv:
            return super()._run(argv)
        words = dict(zip(argv[6:], argv[7:]))
        since, until = (float(words.get(name, default)[1:]) for name, default in (("--since", "@0"), ("--until", "@9999999999")))
        found = [(at, text) for at, text in self.lines if since <= at <= until and re.search(words.get("--grep", ""), text)] if self.readable else []
        out = "".join("%.6f node docker[1]: %s\n" % line for line in found[-int(words.get("-n", "10000000")):])
        if "--grep" in words and not found:
            return Ran(1)
        return Ran(0, out) if len(out) <= self.limit else Ran(0, out[:self.limit], "", "too_large")


def busy(*late: tuple[float, str], count: int = 90000, text: str = ACCESS) -> Node:
    """A day of traffic behind a sound start, and then `late`."""
    return Node([(99990.0, RANK), (99900.0, READY), *((99800.0 - k * 86400.0 / count, text) for k in range(count)), *late])


@pytest.mark.parametrize(("count", "text"), [(90000, ACCESS), (100001, "x")])
def test_a_day_of_traffic_hides_neither_the_start_nor_an_error(count: int, text: str) -> None:
    node = busy((50.0, ERROR), count=count, text=text)
    found = reading.read(node, "vllm.service", "")
    assert "ready" in found["log"]["marks"] and len(found["log"]["ranks"]) == 1 and "log" not in found["unknown"]
    assert [w["text"] for w in found["log"]["warnings"]] == ["something new"]
    node.memo.clear()
    after = reading.read(node, "vllm.service", "", time.time() - 60.0)
    assert [w["text"] for w in after["log"]["new_warnings"]] == ["something new"]
    assert {f["id"]: f["status"] for f in requests.aftermath("n", found, after, "request")}["request.log"] == "fail"
    node.memo.clear()
    quiet = reading.read(node, "vllm.service", "", time.time() - 20.0)
    assert [f["status"] for f in requests.aftermath("n", found, quiet, "request")] == ["pass"]


def test_an_error_behind_what_was_cut_off_is_seen() -> None:
    lines = [(400.0, RANK), (390.0, READY), *((380.0 - k / 50, ACCESS) for k in range(5000)), (10.0, ERROR)]
    found = reading.read(Node(lines, 401.0, limit=50000), "vllm.service", "")
    assert "ready" in found["log"]["marks"] and [w["text"] for w in found["log"]["warnings"]] == ["something new"]


def test_a_start_of_an_hour_is_read_to_its_end() -> None:
    found = reading.read(Node([(19900.0, RANK), (16500.0, READY), (9000.0, ACCESS)], 20000.0), "vllm.service", "")
    assert "ready" in found["log"]["marks"]
    found = reading.read(Node([(300.0, RANK), (200.0, READY)], 301.0), "vllm.service", "")
    assert "ready" in found["log"]["marks"] and found["log"]["warnings"] == []


def test_a_line_is_counted_once() -> None:
    found = reading.read(Node([(9000.0, RANK), (8990.0, READY), (8980.0, ERROR), (8300.0, ERROR)], 9001.0), "vllm.service", "")
    assert [w["count"] for w in found["log"]["warnings"]] == [2]


def test_a_start_that_is_too_long_to_be_read() -> None:
    ready = Node([(9000.0, RANK), (8990.0, READY), *[(8900.0, ACCESS)] * 200], 9001.0, limit=5000)
    assert "ready" in (reading.read(ready, "vllm.service", "")["log"] or {})["marks"]
    never = reading.read(Node([(9000.0, RANK), *[(8900.0, ACCESS)] * 200], 9001.0, limit=5000), "vllm.service", "")
    assert never["log"] is None and "too_large" in never["unknown"]["log"]


@pytest.mark.parametrize("since", [0.0, 1.0])
def test_a_journal_that_shows_nothing_is_not_read(since: float) -> None:
    found = reading.read(Node([(50.0, READY)], readable=False), "vllm.service", "", since and time.time() - 60)
    assert found["log"] is None and "no line of this start" in found["unknown"]["log"]
    assert {f["id"]: f["status"] for f in start.judge({}, {"n": found})}["start.log"] == "unknown"


def test_a_journal_that_dropped_the_start_says_nothing_of_it() -> None:
    found = reading.read(Node([(50.0, ACCESS), (40.0, ERROR)]), "vllm.service", "")
    assert found["log"] is None and "no line of this start" in found["unknown"]["log"]


def test_errors_that_flood_are_unknown() -> None:
    node = Node([(9000.0, RANK), (8990.0, READY), *[(30.0, ERROR)] * 200], 9001.0, limit=5000)
    assert reading.read(node, "vllm.service", "", time.time() - 60)["log"] is None
    node.memo.clear()
    found = reading.read(node, "vllm.service", "")
    assert found["log"]["warnings"] and "too_large" in found["unknown"]["log.recent"]


def test_ports() -> None:
    files = {"/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": "3\n"}
    assert reading.read(Node([], files=files), "vllm.service", "")["rdma"] == {"mlx5_0/1/symbol_error": 3}
    assert reading.read(Node([]), "vllm.service", "")["rdma"] == {}

    class Hidden(Node):
        def _names(self, path: str) -> Names:
            return Names([], "io:EIO")

    found = reading.read(Hidden([]), "vllm.service", "")
    assert found["rdma"] is None and "io:EIO" in found["unknown"]["rdma"]


OURS, FOREIGN = "1" * 64, "f" * 64
INSPECT = ("docker", "inspect", "--type", "container", "--format", "{{.Id}}", "vllm")


def processes(*listed: tuple[int, list[str], str]) -> dict[tuple[str, str], Any]:
    probes: dict[tuple[str, str], Any] = {("processes", ""): {"vllm": [pid for pid, _argv, _cgroup in listed]}}
    probes.update({("process_detail", str(pid)): {"argv": argv, "cgroup": cgroup, "env": {}} for pid, argv, cgroup in listed})
    return probes


SERVE, ENGINE = ["python3", "/usr/bin/vllm", "serve", "/m"], ["VLLM::EngineCore"]
STRANGER = [(500, SERVE, "/system.slice/docker-%s.scope" % FOREIGN), (501, ENGINE, "/system.slice/docker-%s.scope" % FOREIGN)]


@pytest.mark.parametrize(("cgroup", "docker"), [
    ("/system.slice/vllm.service", None),
    ("/system.slice/vllm.service/libpod-payload-%s" % OURS, None),
    ("/system.slice/docker-%s.scope" % OURS, OURS),
])
def test_only_a_process_of_the_unit_is_ended(cgroup: str, docker: str | None) -> None:
    probes = processes(*STRANGER, (900, SERVE, cgroup), (901, ENGINE, cgroup))
    node = Node([], probes=probes, commands={INSPECT: docker + "\n"} if docker else {})
    assert (reading.victim(node, "vllm.service", "server"), reading.victim(node, "vllm.service", "engine")) == (900, 901)


def test_no_process_of_the_unit_is_nothing() -> None:
    for commands in ({}, {INSPECT: OURS + "\n"}, {INSPECT: Ran(1, "", "Error: No such container: vllm")}):
        assert reading.victim(Node([], probes=processes(*STRANGER), commands=commands), "vllm.service", "engine") is None
    assert reading.victim(Node([]), "vllm.service", "server") is None


def test_the_process_to_watch_is_that_of_the_unit_too() -> None:
    ps = ("docker", "ps", "--all", "--no-trunc", "--format", "{{.ID}}\t{{.Names}}\t{{.Status}}\t{{.Image}}")
    table = "%s\tvllm\tUp\ti\n%s\tother\tUp\ti\n" % (OURS, FOREIGN)
    probes = processes(*STRANGER, (900, SERVE, "/system.slice/docker-%s.scope" % OURS))
    assert reading.read(Node([], probes=probes, commands={ps: table}), "vllm.service")["pids"] == {"server": 900, "engine": 900}
    # Where no process can be told to be of the unit, as on a node that runs it in another way, any one is watched.
    assert reading.read(Node([], probes=processes(*STRANGER)), "vllm.service")["pids"] == {"server": 500, "engine": 501}
