# SPDX-License-Identifier: GPL-3.0-or-later
"""A healthy cluster passes all five stages; each planted fault is caught by the right stage and named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

testinfra_hosts = ["local://"]
ROOT = Path(os.environ["ANSIBLE_CONFIG"]).parent
FOLDER = Path(os.environ["SCENARIO_FOLDER"])
NODES = {"node1": "10.203.77.11", "node2": "10.203.77.12"}
MODEL = "/var/lib/vllm/tiny"
QUICK = {"verify_concurrency": 4, "verify_level_seconds": 3, "verify_output_tokens": 32, "verify_input_tokens": 64, "verify_repeat": 2,
         "verify_request_seconds": 60}
FIRST_THREE = ["start", "request", "prefix"]


def verify(name: str, *arguments: str, **given: Any) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]], str]:
    """Exit code, verify.json, its failed findings by id, and what was printed."""
    report = FOLDER / "verify" / name
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "inferops.vllm.verify", "-i", os.environ["LAB_INVENTORY"],
            "-i", os.environ["SCENARIO_INVENTORY"], "-e", json.dumps({**QUICK, "verify_report_dir": str(report), **given}), *arguments]
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert (report / "verify.json").exists(), done.stdout[-3000:] + done.stderr[-2000:]
    document: dict[str, Any] = json.loads((report / "verify.json").read_text(encoding="utf-8"))
    failed = {f["id"]: f for stage in document["stages"] for f in stage["findings"] if f["status"] == "fail"}
    return done.returncode, document, failed, done.stdout


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


@contextlib.contextmanager
def proxy(fault: str) -> Iterator[str]:
    """The lab's spoiling proxy in front of node1."""
    port = 9100
    started = subprocess.Popen([sys.executable, str(ROOT / "tests/lab/serving_proxy.py"), "--listen", f"127.0.0.1:{port}",
                                "--to", f"http://{NODES['node1']}:8000", "--fault", fault])
    time.sleep(1)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        started.terminate()
        started.wait(10)


def through(name: str, url: str, **given: Any) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]], str]:
    """Only through the users' route, from the controller."""
    return verify(name, verify_endpoints=[f"http://{NODES['node1']}:8000"], verify_route=url, verify_from="localhost",
                  verify_stages=["request", "prefix"], **given)


def test_a_healthy_cluster_passes_all_five() -> None:
    rc, document, _failed, text = verify("healthy", verify_allow_restart=True, verify_soak_seconds=5, verify_agents=2, verify_restart_seconds=400)
    assert states(document) == dict.fromkeys(states(document), "passed"), text[-4000:]
    assert rc == 0 and document["verdict"] == "passed"
    record = document["record"]
    assert record["plan_sha256"] and record["request_set"] and record["image_digest"] and record["vllm"] == ["0.32.0"]
    assert document["stages"][2]["data"]["endpoints"][0]["verdict"] == "working"


def test_the_first_three_are_quick_and_a_baseline_compares() -> None:
    rc, document, _failed, _text = verify("again", verify_stages=FIRST_THREE, verify_baseline=str(FOLDER / "verify/healthy/verify.json"))
    # What was not run again is shown, and is no regression.
    assert rc == 0 and document["baseline"]["regressions"] == [] and len(document["baseline"]["rows"]) == 2


def test_a_changing_session_id() -> None:
    with proxy("session") as url:
        rc, document, failed, _text = through("session", url)
    assert rc == 2 and states(document)["request"] == "passed" and "prefix differs" in failed["prefix.verdict"]["observed"]
    assert failed["prefix.verdict"]["where"] == url


def test_a_proxy_that_truncates_streams() -> None:
    with proxy("truncate") as url:
        rc, _document, failed, _text = through("truncate", url)
    assert rc == 2 and "without [DONE]" in failed["request.stream"]["observed"]


def test_a_prefix_that_is_too_short() -> None:
    rc, _document, failed, _text = verify("short", verify_stages=["prefix"], verify_prefix_tokens=60)
    assert rc == 2 and "too short" in failed["prefix.verdict"]["observed"]


def test_a_wrong_model_name() -> None:
    rc, document, failed, _text = verify("model", verify_stages=FIRST_THREE, verify_model="moonshotai/Kimi-K4")
    assert rc == 2 and failed["request.model"]["observed"] == f"serves {MODEL}" and states(document)["prefix"] == "not_verified"


def test_an_engine_that_stands_still_behind_health() -> None:
    pid = on("node1", "pgrep -f VLLM::EngineCore | head -1").strip()
    on("node1", f"kill -STOP {pid}")
    try:
        rc, _document, failed, _text = verify("stopped", verify_stages=["start", "request"], verify_request_seconds=8)
    finally:
        on("node1", f"kill -CONT {pid}")
    assert rc == 2 and "/health answers 200 while a completion gets no answer" in failed["request.engine"]["observed"]
    assert "start.health" not in failed


def test_a_process_that_dies_in_the_ramp() -> None:
    wait("node1")

    def kill() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{NODES['node1']}:8000/metrics", timeout=5) as answer:
                found = re.search(r"^vllm:num_requests_running\{[^}]*\} ([\d.]+)", answer.read().decode(), re.M)
                if found and float(found.group(1)) >= 3:
                    on("node1", "pkill -9 -f VLLM::EngineCore")
                    return
            time.sleep(0.3)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    rc, _document, failed, _text = verify("killed", verify_stages=["request", "concurrency"], verify_level_seconds=15)
    thread.join(1)
    assert rc == 2 and "concurrency.errors" in failed and "engine process" in failed["concurrency.restart"]["observed"]
    assert "request.text" not in failed


@pytest.fixture(scope="module")
def bad_server() -> Iterator[dict[str, Any]]:
    """A server on node2 without prefix caching, with two slots, a KV cache of five blocks and an API key."""
    on("node2", "systemctl stop vllm.service")
    image = lab()["lab_image"]
    flags = ("--served-model-name K3 --enforce-eager --host 0.0.0.0 --port 8000 --no-enable-prefix-caching --max-num-seqs 3 --max-model-len 512 "
             "--num-gpu-blocks-override 6 --block-size 128 --enable-prompt-tokens-details")
    on("node2", "docker run -d --name bad --network host --ipc host -v /var/lib/vllm:/var/lib/vllm -e VLLM_CPU_KVCACHE_SPACE=1 -e HF_HUB_OFFLINE=1 "
                f"-e VLLM_API_KEY=sesame-1234 {image} {MODEL} {flags}")
    until = time.monotonic() + 300
    while "startup complete" not in on("node2", "docker logs bad 2>&1 | tail -40"):
        assert time.monotonic() < until
        time.sleep(2)
    try:
        yield {"verify_endpoints": [f"http://{NODES['node2']}:8000"], "verify_model": "K3", "verify_plan": "/none", "verify_features": []}
    finally:
        on("node2", "docker rm -f bad")


def test_a_missing_key(bad_server: dict[str, Any]) -> None:
    _rc, document, failed, _text = verify("key", verify_stages=FIRST_THREE, **bad_server)
    assert "none was given" in failed["request.key"]["why"] and states(document)["prefix"] == "not_verified"


def test_caching_off_too_few_slots_and_a_tiny_cache(bad_server: dict[str, Any]) -> None:
    _rc, document, failed, text = verify("tiny", verify_stages=["request", "prefix", "concurrency"], verify_api_key="sesame-1234", verify_concurrency=8,
                                         verify_input_tokens=200, verify_output_tokens=200, verify_level_seconds=4, **bad_server)
    assert "not enabled" in failed["prefix.verdict"]["observed"], text[-3000:]
    assert "ran at once" in failed["concurrency.slots"]["observed"] and "preemptions" in failed["concurrency.preemptions"]["observed"], text[-3000:]
    assert "request.text" not in failed and "sesame-1234" not in json.dumps(document) + text


def test_a_restart_loop() -> None:
    on("node2", "mkdir -p /run/systemd/system/vllm.service.d; printf '[Service]\\nExecStartPre=/bin/false\\nRestartSec=1\\n' "
                "> /run/systemd/system/vllm.service.d/loop.conf; systemctl daemon-reload; systemctl start vllm.service --no-block; sleep 6")
    try:
        rc, _document, failed, _text = verify("loop", verify_stages=["start"])
    finally:
        on("node2", "rm -rf /run/systemd/system/vllm.service.d; systemctl daemon-reload; systemctl stop vllm.service")
    assert rc == 2 and "restart" in failed["start.unit"]["observed"] and failed["start.unit"]["where"] == "node2"
