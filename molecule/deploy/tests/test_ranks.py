# SPDX-License-Identifier: GPL-3.0-or-later
"""Deaths and stops of an engine over two nodes, and how its units restart. Runs after the story of the cluster, which stopped it."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import API_KEY, NODES, play, serves

testinfra_hosts = ["local://"]
LIMIT_S = 1200
"""A start on a machine that does much else takes minutes."""
DROPIN = "/run/systemd/system/vllm.service.d/test.conf"


def link(host: Any) -> dict[str, Any]:
    """What the link agent of a node knows."""
    found: dict[str, Any] = json.loads(host.check_output("/usr/local/libexec/inferops-vllm/vllm-link status"))
    return found


def until(true: Any, what: str, seconds: float = LIMIT_S) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(2)


def answers() -> bool:
    try:
        return serves("node1")
    except (OSError, urllib.error.URLError):
        return False


def back(nodes: dict[str, Any], before: str) -> str:
    """All ranks run in one new generation, and serve; gives the generation."""
    def together() -> bool:
        found = [link(host) for host in nodes.values()]
        return {rank["state"] for rank in found} == {"running"} and len({rank["generation"] for rank in found} | {before}) == 2

    until(together, "the ranks did not come back together", 120)
    until(answers, "the engine does not serve again")
    assert together()
    return str(link(nodes["node1"])["generation"])


def kill(host: Any) -> None:
    """kill -9 of the container's main process."""
    host.check_output("kill -9 $(docker inspect --format '{{.State.Pid}}' vllm)")


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    done = play("deploy", vllm_strategy="multi_node_tp")
    assert done.rc == 0, done.text[-4000:]


def test_a_dead_worker_and_a_dead_head_bring_both_ranks_back_in_one_generation(nodes: dict[str, Any]) -> None:
    first = str(link(nodes["node1"])["generation"])
    kill(nodes["node2"])
    second = back(nodes, first)
    kill(nodes["node1"])
    back(nodes, second)


def test_a_stop_lets_a_request_end_and_the_worker_waits(nodes: dict[str, Any]) -> None:
    body = json.dumps({"model": "moonshotai/Kimi-K3", "prompt": "The quick brown fox", "max_tokens": 200, "ignore_eos": True}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}
    request = urllib.request.Request(f"http://{NODES['node1']}:8000/v1/completions", body, headers)
    got: list[int] = []

    def ask() -> None:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300) as answer:
            got.append(json.load(answer)["usage"]["completion_tokens"])

    running = threading.Thread(target=ask)
    running.start()
    time.sleep(1)
    nodes["node1"].check_output("systemctl stop vllm")
    running.join()
    assert got == [200]
    until(lambda: nodes["node2"].check_output("systemctl show --property=SubState --value vllm") == "start-pre", "the worker does not wait", 60)
    until(lambda: "is down (inactive)" in link(nodes["node2"])["waits_for"], "the worker does not say for whom it waits", 30)
    assert nodes["node2"].check_output("docker ps --quiet") == ""
    assert nodes["node1"].check_output("systemctl show --property=ActiveState --value vllm") == "inactive"


# -- how a unit restarts, with a server that is none ----------------------------------------------------------------
@pytest.fixture
def server(nodes: dict[str, Any]) -> Iterator[Any]:
    """Callable ``server(status)``: the unit of node1 with a program that ends with `status` after a second, and no pauses."""
    host = nodes["node1"]
    # It asks for no generation, so the agent would end it when it looks within that second.
    host.check_output("systemctl stop vllm-link")

    def make(status: int) -> dict[str, str]:
        lines = ["[Service]", "ExecStartPre=", "ExecStart=", f"ExecStart=/usr/bin/python3 -c 'import time; time.sleep(1); raise SystemExit({status})'",
                 "RestartSec=1"]
        host.check_output("systemctl stop vllm; mkdir -p $(dirname %s)", DROPIN)
        host.check_output("printf '%%s\\n' %s >%s" % (" ".join('"%s"' % line for line in lines), DROPIN))
        host.check_output("systemctl daemon-reload && systemctl reset-failed vllm; systemctl start vllm")
        time.sleep(14)
        text = host.check_output("systemctl show --property=ActiveState,Result,NRestarts vllm")
        return dict(line.split("=", 1) for line in text.splitlines())

    yield make
    host.check_output("systemctl stop vllm; rm -f %s; systemctl daemon-reload; systemctl reset-failed vllm; systemctl start vllm-link", DROPIN)


def test_an_argument_that_is_refused_is_not_tried_again(server: Any) -> None:
    found = server(2)
    assert (found["ActiveState"], found["Result"], found["NRestarts"]) == ("failed", "exit-code", "0")


@pytest.mark.parametrize("status", [0, 1])
def test_an_engine_that_ends_is_started_three_times_in_all(server: Any, status: int) -> None:
    """Code 0 is what vLLM ends with when its engine died. The third restart is the one that is refused."""
    found = server(status)
    assert (found["ActiveState"], found["NRestarts"]) == ("failed", "3"), found
