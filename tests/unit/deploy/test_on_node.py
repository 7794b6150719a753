# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read on a node while its service starts, runs and stops."""

from __future__ import annotations

import http.server
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.deploy import deployed, drain, watch
from ansible_collections.inferops.vllm.plugins.module_utils.deploy.deployed import Told, told
from ansible_collections.inferops.vllm.plugins.modules import stop_service

UNIT = """[Service]
ExecStartPre=-/usr/bin/docker rm --force vllm
ExecStart=/usr/bin/docker run --rm --name vllm \\
    --network host \\
    image@sha256:0 \\
    /model \\
    --host 10.0.0.1 \\
    --port 8001
"""


def test_where_a_unit_answers() -> None:
    assert told(UNIT, "A=1\nVLLM_ENGINE_READY_TIMEOUT_S=3600\n") == Told("http://10.0.0.1:8001/health", "docker", 3600)
    assert told(UNIT.replace("10.0.0.1", "0.0.0.0")).health_url == "http://127.0.0.1:8001/health"
    assert told(UNIT.replace("10.0.0.1", "2001:db8::1")).health_url == "http://[2001:db8::1]:8001/health"
    assert told(UNIT.replace("--port 8001", "--headless")) == Told("", "docker", 0)
    assert told("[Service]\nExecStart=/opt/vllm/bin/vllm serve /model\n") == Told("http://127.0.0.1:8000/health", "", 0)
    assert told("") == Told("", "", 0)


def test_what_is_deployed() -> None:
    record = json.dumps({"role": "worker", "rank": 1, "engine": "e", "number": 4})
    assert deployed.release(record, '{"names": ["a", "b"]}') == {"role": "worker", "rank": 1, "engine": "e", "number": 4, "peers": ["a", "b"]}
    assert deployed.release("", "") == {} and deployed.release("nonsense", "[]") == {}


def test_the_journal() -> None:
    text = "\n".join(json.dumps(entry) for entry in (
        {"MESSAGE": "one", "_SYSTEMD_INVOCATION_ID": "a", "__CURSOR": "c1"}, {"MESSAGE": list("zwö\x1b".encode()), "INVOCATION_ID": "b"},
        {"MESSAGE": None}, {"MESSAGE": ["no bytes"]}, [1], "text")) + "\nnonsense\n"
    assert watch.parse_journal(text) == [("one", "a", "c1"), ("zwö\x1b", "b", "")]


def test_memory_of_both_versions_of_control_groups() -> None:
    gib = 1024 ** 3
    assert watch.parse_memory("anon %d\nfile 9\nshmem %d\n" % (gib, gib)) == 2.0
    assert watch.parse_memory("cache 5\nrss 5\ntotal_rss %d\ntotal_cache 9\n" % gib) == 1.0
    assert watch.parse_memory("file 9\n") is None and watch.parse_memory("anon x\n") is None


def test_a_long_journal_keeps_its_begin_and_its_end() -> None:
    text = "\n".join("line %d" % number for number in range(10000))
    cut = watch.bounded(text, 100, 200)
    assert len(cut) < 400 and cut.startswith("line 0\n") and cut.endswith("line 9999") and "characters left out" in cut
    assert watch.bounded("short") == "short"


def test_requests_that_are_left() -> None:
    metrics = 'vllm:num_requests_running{engine="0",model_name="m"} 3.0\nvllm:num_requests_waiting{engine="0"} 2.0\nvllm:num_requests_running_x 9\n'
    assert drain.parse_requests(metrics) == 5 and drain.parse_requests("") is None


@given(st.text())
def test_any_text_in_no_exception_out(text: str) -> None:
    told(text, text)
    deployed.release(text, text)
    watch.parse_journal(text)
    watch.parse_memory(text)
    drain.parse_requests(text)


@pytest.mark.parametrize("status, good", [(200, True), (503, False)])
def test_health(status: int, good: bool) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert watch.healthy("http://127.0.0.1:%d/health" % server.server_port) is good
        server.shutdown()
    assert watch.healthy("http://127.0.0.1:1/health") is False


def test_programs_that_are_not_there_or_hang(tmp_path: Path) -> None:
    assert watch.run([str(tmp_path / "none")])[0] == 127
    assert watch.run(["sleep", "5"], 0.1)[0] == 124


def test_a_look_takes_the_last_end_from_the_look_before(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([
        "LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nResult=exit-code\nNRestarts=0\nExecMainStatus=125\nExecMainCode=1\nInvocationID=a\n",
        "LoadState=loaded\nActiveState=activating\nSubState=start-pre\nResult=success\nNRestarts=2\nExecMainStatus=0\nExecMainCode=0\nInvocationID=b\n"])
    monkeypatch.setattr(watch, "run", lambda argv, seconds=0.0: (0, next(states) if argv[0] == "systemctl" else "", ""))
    first = watch.look("vllm", Told("", "", 0), "c", {})
    assert first["state"] == "waiting" and first["ended"] == "exit status 125" and first["headless"] is True
    second = watch.look("vllm", Told("", "", 0), "c", first)
    assert second["state"] == "failed" and second["why"].endswith("the last time with exit status 125") and watch.news(first, second)


def test_a_look_at_a_start_in_the_queue_does_not_take_the_run_before_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = json.dumps({"MESSAGE": "(APIServer pid=1) INFO: Application shutdown complete.", "_SYSTEMD_INVOCATION_ID": "old", "__CURSOR": "c1"})
    states = iter(["LoadState=loaded\nActiveState=inactive\nSubState=dead\nResult=success\nNRestarts=3\nInvocationID=old\nJob=16\n",
                   "LoadState=loaded\nActiveState=activating\nSubState=start-pre\nResult=success\nNRestarts=0\nInvocationID=new\nJob=16\n"])
    monkeypatch.setattr(watch, "run", lambda argv, seconds=0.0: (0, next(states) if argv[0] == "systemctl" else old, ""))
    first = watch.look("vllm", Told("", "", 0), "c", {})
    assert (first["state"], first["first_restarts"], first["invocation"]) == ("waiting", 0, "") and first["progress"]["phase"] == "container_init"
    second = watch.look("vllm", Told("", "", 0), "c", first)
    assert (second["state"], second["invocation"]) == ("waiting", "new") and watch.news(first, second)


@pytest.mark.parametrize("service, link, answers, linked, settled", [
    ("active", "active", True, True, True), ("active", "failed", True, True, False), ("active", "failed", True, False, True),
    ("activating", "active", True, True, False), ("active", "active", False, True, False),
])
def test_settled(monkeypatch: pytest.MonkeyPatch, service: str, link: str, answers: bool, linked: bool, settled: bool) -> None:
    def run(argv: list, seconds: float = 0.0) -> tuple:
        return 0, "ActiveState=%s\nUnitFileState=enabled\n" % (link if argv[-1] == "vllm-link.service" else service), ""

    monkeypatch.setattr(watch, "run", run)
    monkeypatch.setattr(watch, "told", lambda service: Told("http://127.0.0.1:1/health", "", 0))
    monkeypatch.setattr(watch, "healthy", lambda url: answers)
    assert watch.settled("vllm", linked) is settled


# -- stopping ------------------------------------------------------------------------------------------------------
HUNG = (124, "", "systemctl did not answer in 15 s")


def shown(active: str, sub: str = "dead", job: str = "", load: str = "loaded") -> tuple:
    return 0, "LoadState=%s\nActiveState=%s\nSubState=%s\n%s" % (load, active, sub, "Job=%s\n" % job if job else ""), ""


class Ended(Exception):
    """What a module returned."""


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Callable ``stop(step, *answers) -> (what the module returned, verbs that systemctl was asked for)``; the last answer of ``show`` stays."""
    def call(step: str, *answers: tuple, check: bool = False) -> tuple:
        left, verbs = list(answers), []

        def run(argv: list, seconds: float = 0.0) -> tuple:
            if argv[0] != "systemctl" or "--property=FragmentPath" in argv:
                return 127, "", ""
            verbs.append(argv[1])
            return (left.pop(0) if len(left) > 1 else left[0]) if argv[1] == "show" else (0, "", "")

        class Module:
            params = {"service": "vllm", "force": False, "limit": 9.0, "step": step}
            check_mode = check

            def exit_json(self, **found: Any) -> None:
                raise Ended(found)

            def fail_json(self, **found: Any) -> None:
                raise Ended(dict(found, failed=True))

        monkeypatch.setattr(watch, "run", run)
        monkeypatch.setattr(stop_service, "AnsibleModule", lambda **_spec: Module())
        monkeypatch.setattr(stop_service, "LOOK_S", 0.0)
        with pytest.raises(Ended) as found:
            stop_service.main()
        return found.value.args[0], [verb for verb in verbs if verb != "show"]

    return call


@pytest.mark.parametrize("answer", [HUNG, (1, "", "Failed to connect to bus: Connection refused\n"), (0, "", ""),
                                    (127, "", "systemctl: " + os.strerror(12))])
@pytest.mark.parametrize("check", [True, False])
def test_a_service_is_not_stopped_because_systemd_does_not_answer(stop: Any, answer: tuple, check: bool) -> None:
    found, verbs = stop("begin", answer, check=check)
    assert found["failed"] and found["msg"].startswith("systemd does not say how vllm.service is: ") and "nothing was stopped" in found["msg"] and verbs == []
    assert (answer[2].strip() or "exit status 0") in found["msg"]


def test_a_stop_is_looked_at_until_systemd_answers(stop: Any) -> None:
    found, _verbs = stop("begin", shown("active", "running"), HUNG)
    assert found["changed"] and found["look"]["up"] and "did not answer in 15 s" in found["look"]["state"] and found["look"]["requests"] is None
    assert stop("look", shown("inactive"))[0]["look"]["up"] is False


@pytest.mark.parametrize("answer", [
    shown("inactive"), shown("inactive", load="not-found"), shown("inactive", job="0"), shown("failed"),
    (1, "", "System has not been booted with systemd as init system (PID 1). Can't operate.\nFailed to connect to bus: Host is down\n"),
    (127, "", "systemctl: " + os.strerror(2))])
def test_what_is_not_there_or_ended_is_stopped(stop: Any, answer: tuple) -> None:
    found, verbs = stop("begin", answer)
    assert not found.get("failed") and found["changed"] is False and found["look"]["up"] is False and verbs == []
    assert stop("look", answer)[0]["look"]["up"] is False


@pytest.mark.parametrize("active", ["inactive", "failed"])
def test_a_start_in_the_queue_is_taken_back(stop: Any, active: str) -> None:
    found, verbs = stop("begin", shown(active, job="16"), shown("inactive"))
    assert found == {"changed": True, "look": {"up": False, "state": "inactive", "requests": None}} and verbs == ["stop"]
    found, verbs = stop("look", shown(active, job="16"))
    assert found["look"] == {"up": True, "state": "its start is queued", "requests": None} and verbs == []
