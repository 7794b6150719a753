# SPDX-License-Identifier: GPL-3.0-or-later
"""A healthy cluster passes all five stages; each planted fault is caught by the right stage and named.

The tests are one story in this order, since a start of vLLM takes the better part of a minute: while node2 dies again and again, node1 is
asked through proxies; while node1 starts again, node2 is another server; at the end both are one engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

testinfra_hosts = ["local://"]
ROOT = Path(os.environ["ANSIBLE_CONFIG"]).parent
FOLDER = Path(os.environ["SCENARIO_FOLDER"])
NODES = {"node1": "10.203.77.11", "node2": "10.203.77.12"}
WEIGHTS = "/var/lib/vllm/tiny"
MODEL = "moonshotai/Kimi-K3"
QUICK = {"verify_concurrency": 4, "verify_level_seconds": 3, "verify_output_tokens": 32, "verify_input_tokens": 64, "verify_repeat": 2,
         "verify_request_seconds": 60}
FIRST_THREE = ["start", "request", "prefix"]


def verify(name: str, *arguments: str, **given: Any) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]], str]:
    """Exit code, verify.json, its failed findings by id, and what was printed."""
    report = FOLDER / "verify" / name
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "inferops.vllm.verify", "-i", os.environ["LAB_INVENTORY"],
            "-i", os.environ["SCENARIO_INVENTORY"], "-e", json.dumps({**QUICK, "verify_report_dir": str(report), **given}), *arguments]
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1"}
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    with (FOLDER / "seconds.log").open("a", encoding="utf-8") as sink:
        sink.write(f"{name} {time.monotonic() - began:.1f}\n")
    assert (report / "verify.json").exists(), done.stdout[-3000:] + done.stderr[-2000:]
    document: dict[str, Any] = json.loads((report / "verify.json").read_text(encoding="utf-8"))
    failed = {f["id"]: f for stage in document["stages"] for f in stage["findings"] if f["status"] == "fail"}
    return done.returncode, document, failed, done.stdout


def fails(document: dict[str, Any], id: str) -> dict[str, str]:
    """What failed findings of this id say, by where."""
    return {f["where"]: f["observed"] for stage in document["stages"] for f in stage["findings"] if f["id"] == id and f["status"] == "fail"}


def states(document: dict[str, Any]) -> dict[str, str]:
    return {stage["stage"]: stage["status"] for stage in document["stages"]}


def lab() -> dict[str, Any]:
    """Variables of the lab's own inventory."""
    folder = Path(os.environ["LAB_INVENTORY"])
    path = folder / "generated.yml" if folder.is_dir() else folder
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["all"]["vars"]
    return found


def on(node: str, command: str) -> str:
    """Run a command on the node over SSH."""
    settings = lab()
    argv = ["ssh", "-i", settings["ansible_ssh_private_key_file"], *settings["ansible_ssh_common_args"].split(), f"root@{NODES[node]}", command]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def wait(node: str, seconds: float = 300.0) -> None:
    """Until a completion comes."""
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1}).encode()
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(
                    f"http://{NODES[node]}:8000/v1/completions", body, {"Content-Type": "application/json"}), timeout=30):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def wait_for(true: Callable[[], Any], what: str, seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.5)


def metric(node: str, name: str) -> float:
    """The sum of one of vLLM's metrics, 0 when nothing answers."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{NODES[node]}:8000/metrics", timeout=5) as answer:
        return sum(float(value) for value in re.findall(rf"^{name}\{{[^}}]*\}} ([\d.]+)", answer.read().decode(), re.M))
    return 0.0


@contextlib.contextmanager
def under_load(node: str, streams: int, command: str) -> Iterator[None]:
    """Run `command` on `node` as soon as node1 runs so many requests at once."""
    def work() -> None:
        wait_for(lambda: metric("node1", "vllm:num_requests_running") >= streams, "the load never came", 200)
        on(node, command)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(1)
    assert not thread.is_alive(), "nothing was ended"


@contextlib.contextmanager
def proxy(fault: str) -> Iterator[str]:
    """The lab's spoiling proxy in front of node1."""
    port = 9100
    started = subprocess.Popen([sys.executable, str(ROOT / "tests/lab/serving_proxy.py"), "--listen", f"127.0.0.1:{port}",
                                "--to", f"http://{NODES['node1']}:8000", "--fault", fault])
    try:
        wait_for(lambda: _listens(port), "the proxy does not listen", 20)
        yield f"http://127.0.0.1:{port}"
    finally:
        started.terminate()
        started.wait(10)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def at_node1(name: str, *stages: str, **given: Any) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]], str]:
    """Only at node1's API server."""
    return verify(name, verify_endpoints=[f"http://{NODES['node1']}:8000"], verify_stages=list(stages), **given)


def through(name: str, url: str, *stages: str) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]], str]:
    """Through the users' route and at node1, from the controller."""
    return at_node1(name, *stages, verify_route=url, verify_from="localhost")


# -- both replicas, healthy ----------------------------------------------------------------------------------------
def test_a_healthy_cluster_passes_all_five() -> None:
    rc, document, _failed, text = verify("healthy", verify_allow_restart=True, verify_soak_seconds=5, verify_agents=2, verify_restart_seconds=400)
    assert states(document) == dict.fromkeys(states(document), "passed"), text[-4000:]
    assert rc == 0 and document["verdict"] == "passed"
    record = document["record"]
    assert record["plan_sha256"] and record["request_set"] and record["image_digest"] and record["vllm"] == ["0.32.0"]
    assert [part["verdict"] for part in document["stages"][2]["data"]["endpoints"]] == ["working"] * 2
    # Each replica went down and came back when its process was ended, and only it.
    restarts = document["stages"][4]["data"]["restarts"]
    assert [event["failed"] for event in restarts] == [[f"http://{NODES[name]}:8000"] for name in ("node2", "node1")]
    assert all(event["seconds"] > 10 and event["hung"] == 0 for event in restarts)
    # What was asked for counts neither against the limit of starts nor as a restart loop.
    assert [on(name, "systemctl show --property=NRestarts --value vllm").strip() for name in NODES] == ["0", "0"]


def test_a_baseline_compares() -> None:
    rc, document, _failed, text = verify("again", verify_stages=FIRST_THREE, verify_baseline=str(FOLDER / "verify/healthy/verify.json"))
    # What was not run again is shown, and is no regression.
    assert rc == 0 and document["baseline"]["regressions"] == [] and len(document["baseline"]["rows"]) == 2, text[-3000:]


# -- node2 starts and dies, node1 serves ---------------------------------------------------------------------------
@pytest.fixture(scope="class")
def looping() -> Iterator[None]:
    """From here on vLLM on node2 starts, finds half of its weights, dies, and systemd starts it again."""
    weights = f"{WEIGHTS}/*.safetensors"
    on("node2", f"for f in {weights}; do cp $f $f.whole; truncate --size=100000 $f; done; systemctl reset-failed vllm; systemctl restart --no-block vllm")
    yield
    on("node2", f"systemctl stop vllm; systemctl reset-failed vllm; for f in {weights}; do mv $f.whole $f; done")


@pytest.mark.usefixtures("looping")
class TestWhileNode2StartsAndDies:
    def test_a_changing_session_id(self) -> None:
        with proxy("session") as url:
            rc, document, failed, _text = through("session", url, "request", "prefix")
        assert rc == 2 and "prefix differs" in failed["prefix.verdict"]["observed"]
        assert failed["prefix.verdict"]["where"] == url and "request.text" not in failed
        assert [part["verdict"] for part in document["stages"][2]["data"]["endpoints"]] == ["prefix differs", "working"]

    def test_a_proxy_that_truncates_streams(self) -> None:
        with proxy("truncate") as url:
            rc, document, _failed, _text = through("truncate", url, "request")
        assert rc == 2 and list(fails(document, "request.stream")) == [url] and "without [DONE]" in fails(document, "request.stream")[url]

    def test_a_prefix_that_is_too_short(self) -> None:
        rc, _document, failed, _text = at_node1("short", "prefix", verify_prefix_tokens=60)
        assert rc == 2 and "too short" in failed["prefix.verdict"]["observed"]

    def test_a_wrong_model_name(self) -> None:
        rc, document, failed, _text = at_node1("model", *FIRST_THREE, verify_model="moonshotai/Kimi-K4")
        assert rc == 2 and failed["request.model"]["observed"] == f"serves {MODEL}" and states(document)["prefix"] == "not_verified"
        assert failed["start.models"]["observed"] == MODEL

    def test_an_engine_that_stands_still_behind_health(self) -> None:
        pid = on("node1", "pgrep -f [V]LLM::EngineCore | head -1").strip()
        on("node1", f"kill -STOP {pid}")
        try:
            rc, document, failed, _text = at_node1("stopped", "start", "request", verify_request_seconds=8)
        finally:
            on("node1", f"kill -CONT {pid}")
        assert rc == 2 and "/health answers 200 while a completion gets no answer" in failed["request.engine"]["observed"]
        assert not fails(document, "start.health")

    def test_a_restart_loop(self) -> None:
        wait_for(lambda: int(on("node2", "systemctl show --property=NRestarts --value vllm")) >= 2, "node2 was not restarted twice")
        rc, document, _failed, _text = verify("loop", verify_stages=["start"])
        assert rc == 2 and list(fails(document, "start.unit")) == ["node2"] and "a restart loop" in fails(document, "start.unit")["node2"]
        assert list(fails(document, "start.health")) == [f"http://{NODES['node2']}:8000"]


# -- node1 dies ----------------------------------------------------------------------------------------------------
def test_a_process_that_dies_in_the_ramp() -> None:
    wait("node1")
    with under_load("node1", 3, "pkill -9 -f [V]LLM::EngineCore"):
        rc, document, failed, _text = at_node1("killed", "request", "concurrency", verify_level_seconds=6)
    assert rc == 2 and failed["concurrency.errors"] and "engine process" in fails(document, "concurrency.restart")["node1"]
    assert "request.text" not in failed


# -- another server on node2 ---------------------------------------------------------------------------------------
@pytest.fixture(scope="class")
def bad_server() -> Iterator[dict[str, Any]]:
    """A server on node2 without prefix caching, with three slots, a KV cache of six blocks and an API key."""
    image = lab()["lab_image"]
    flags = ("--served-model-name K3 --enforce-eager --host 0.0.0.0 --port 8000 --no-enable-prefix-caching --max-num-seqs 3 --max-model-len 512 "
             "--num-gpu-blocks-override 6 --block-size 128 --enable-prompt-tokens-details")
    on("node2", "docker run -d --name bad --network host --ipc host -v /var/lib/vllm:/var/lib/vllm -e VLLM_CPU_KVCACHE_SPACE=1 -e HF_HUB_OFFLINE=1 "
                f"-e VLLM_API_KEY=sesame-1234 {image} {WEIGHTS} {flags}")
    wait_for(lambda: "startup complete" in on("node2", "docker logs bad 2>&1 | tail -40"), "the server did not start")
    try:
        yield {"verify_endpoints": [f"http://{NODES['node2']}:8000"], "verify_model": "K3", "verify_plan": "/none", "verify_features": []}
    finally:
        on("node2", "docker rm -f bad")


class TestAnotherServer:
    def test_a_missing_key(self, bad_server: dict[str, Any]) -> None:
        _rc, document, failed, _text = verify("key", verify_stages=FIRST_THREE, **bad_server)
        assert "none was given" in failed["request.key"]["why"] and states(document)["prefix"] == "not_verified"

    def test_caching_off_too_few_slots_and_a_tiny_cache(self, bad_server: dict[str, Any]) -> None:
        _rc, document, failed, text = verify("tiny", verify_stages=["request", "prefix", "concurrency"], verify_api_key="sesame-1234", verify_concurrency=8,
                                             verify_input_tokens=200, verify_output_tokens=200, verify_level_seconds=4, **bad_server)
        assert "not enabled" in failed["prefix.verdict"]["observed"], text[-3000:]
        assert "ran at once" in failed["concurrency.slots"]["observed"] and "preemptions" in failed["concurrency.preemptions"]["observed"], text[-3000:]
        assert "request.text" not in failed and "sesame-1234" not in json.dumps(document) + text


# -- one engine over both nodes ------------------------------------------------------------------------------------
def test_a_rank_on_the_second_node_dies_in_the_ramp() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "inferops.vllm.deploy", "-i", os.environ["LAB_INVENTORY"], "-i",
         os.environ["SCENARIO_INVENTORY"], "-e", json.dumps({"vllm_strategy": "multi_node_tp"})], capture_output=True, text=True, check=False,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    with under_load("node2", 3, "kill -9 $(docker inspect --format '{{.State.Pid}}' vllm)"):
        rc, document, failed, text = verify("rank", verify_stages=[*FIRST_THREE, "concurrency"], verify_level_seconds=6)
    assert [stage["status"] for stage in document["stages"][:4]] == ["passed", "passed", "passed", "failed"], text[-4000:]
    ranks = [f["observed"] for f in document["stages"][0]["findings"] if f["id"] == "start.ranks"]
    assert ranks == ["2 of 2 ranks initialised, world size 2"] and document["record"]["vllm"] == ["0.32.0"]
    assert rc == 2 and failed["concurrency.errors"] and "server process" in fails(document, "concurrency.restart")["node2"]


def test_right_after_it_the_start_is_not_sound() -> None:
    rc, document, _failed, _text = verify("after", verify_stages=["start"])
    assert rc == 2 and "node2" in fails(document, "start.unit"), document["stages"][0]
