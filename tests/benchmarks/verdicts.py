# SPDX-License-Identifier: GPL-3.0-or-later
"""Stages 2 and 3 against planted faults of a real vLLM, twenty times each for stage 3, and a reader of metrics beside them.

    python -m tests.benchmarks verdicts

runs on node2 of a lab that is up and has the image (`molecule converge -s verify`); its own service is stopped meanwhile.
INFEROPS_BENCH_DOCTOR=/path/to/vllm-doctor asks that tool of the same server right after each fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from ansible_collections.inferops.vllm.plugins.module_utils.serving import prefix, run
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import call, endpoint, post

Line = Callable[[str, float, float, str, str], None]
ROOT = pathlib.Path(__file__).resolve().parents[2]
NODE, ADDRESS, PORT = "node2", "10.203.77.12", 8300
TIMES = 20
MODEL = "K3"
COMMON = ("--served-model-name", MODEL, "--enforce-eager", "--host", "0.0.0.0", "--port", str(PORT), "--block-size", "128", "--enable-prompt-tokens-details")
SERVERS = {
    "sound": (("--max-model-len", "4096"), {"VLLM_SERVER_DEV_MODE": "1"}),
    "no caching, a key": (("--max-model-len", "4096", "--no-enable-prefix-caching"), {"VLLM_API_KEY": "sesame-1234"}),
    "six blocks": (("--max-model-len", "512", "--num-gpu-blocks-override", "6"), {}),
}


def on_node(*words: str, check: bool = True) -> str:
    config = os.path.join(os.environ.get("INFEROPS_LAB_STATE", "/run/inferops-lab"), "ssh", "config")
    done = subprocess.run(["ssh", "-F", config, NODE, shlex.join(words)], capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit("on %s: %s" % (NODE, done.stderr.strip()[-500:]))
    return done.stdout + done.stderr


def inventory() -> pathlib.Path:
    return pathlib.Path(os.environ.get("INFEROPS_LAB_FOLDER", str(ROOT / "inventories" / "lab"))) / "generated.yml"


def image() -> str:
    return str(yaml.safe_load(inventory().read_text(encoding="utf-8"))["all"]["vars"]["lab_image"])


@contextlib.contextmanager
def server(kind: str) -> Iterator[str]:
    """The URL of a real vLLM of one kind."""
    flags, variables = SERVERS[kind]
    on_node("docker", "rm", "--force", "verdicts", check=False)
    given = [word for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **variables}.items() for word in ("-e", f"{name}={value}")]
    on_node("docker", "run", "-d", "--name", "verdicts", "--network", "host", "--ipc", "host", *given, image(), "/models-tiny", *COMMON, *flags)
    try:
        until = time.monotonic() + 300
        while "startup complete" not in on_node("docker", "logs", "--tail", "40", "verdicts"):
            if time.monotonic() > until:
                sys.exit("the server (%s) did not start:\n%s" % (kind, on_node("docker", "logs", "--tail", "40", "verdicts")))
            time.sleep(1)
        yield f"http://{ADDRESS}:{PORT}"
    finally:
        on_node("docker", "rm", "--force", "verdicts", check=False)


@contextlib.contextmanager
def proxy(fault: str, url: str) -> Iterator[str]:
    """The URL of the lab's spoiling proxy in front of `url`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = subprocess.Popen([sys.executable, str(ROOT / "tests/lab/serving_proxy.py"), "--listen", f"127.0.0.1:{port}", "--to", url, "--fault", fault])
    try:
        until = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if started.poll() is not None or time.monotonic() > until:
                sys.exit("the proxy does not listen")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        started.terminate()
        started.wait(10)


@contextlib.contextmanager
def other_traffic(url: str) -> Iterator[None]:
    """Requests of others, one after the other, as long as it is open."""
    over = threading.Event()

    def work() -> None:
        target, number = endpoint(url), 0
        while not over.is_set():
            number += 1
            words = "what others ask, number %d " % number * 20
            call(target, post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": 2}))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(30)


def doctor(url: str) -> str:
    """What vllm-doctor says: its health and the rules that fired, or why it says nothing."""
    program = os.environ.get("INFEROPS_BENCH_DOCTOR")
    if not program:
        return "not asked"
    done = subprocess.run([program, "diagnose", url + "/metrics", "-o", "json"], capture_output=True, text=True, check=False, timeout=60)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        words = " ".join((done.stdout + done.stderr).split())
        return "exit %d: %s" % (done.returncode, words[-160:])
    fired = [str(check.get("name") or check.get("rule")) for check in found["checks"] if check.get("finding")]
    return "%s (%s)" % (found["health"], ", ".join(fired) or "no rule fired")


class Case:
    """One fault, and how often stage 3 was right about it."""

    def __init__(self, line: Line) -> None:
        self.line = line

    def twenty(self, name: str, url: str, door: str, expected: str, key: str = "", **given: Any) -> None:
        """Stage 3 through `door` with the counters of `url`."""
        began = time.monotonic()
        found = [prefix.run(endpoint(door, key), [endpoint(url)], prefix.Settings(MODEL, **given))["data"]["verdict"] for _number in range(TIMES)]
        wrong = [verdict for verdict in found if verdict != expected]
        self.line("wrong verdicts: " + name, len(wrong), 0, "of %d" % TIMES, "expected %s%s; %.1f s each; vllm-doctor: %s" % (
            expected, ", got also " + ", ".join(sorted(set(wrong))) if wrong else "", (time.monotonic() - began) / TIMES, doctor(door)))

    def once(self, name: str, door: str, wanted: str, model: str = MODEL, key: str = "", seconds: float = 10.0) -> None:
        """Stages 1 (over HTTP) and 2: the finding that names the fault."""
        began = time.monotonic()
        found = run.run(run.Options(model, (door,), stages=("start", "request"), features=(), repeat=1, request_seconds=seconds, key=key))
        failed = {f["id"]: f["observed"] for stage in found.values() for f in stage["findings"] if f["status"] == "fail"}
        self.line("named: " + name, float(wanted not in failed), 0, "missed", "%s: %s; %.1f s; vllm-doctor: %s" % (
            wanted, failed.get(wanted, "not among %s" % sorted(failed)), time.monotonic() - began, doctor(door)))


def verdicts(line: Line) -> None:
    """All faults that stages 2 and 3 have a name for, one server start for each kind of server."""
    if not inventory().exists():
        print("skip verdicts: a lab whose nodes hold the image is needed (molecule converge -s verify)", flush=True)
        return
    on_node("systemctl", "stop", "vllm.service", check=False)
    case = Case(line)
    with server("sound") as url:
        print("     vllm-doctor before any request: %s" % doctor(url), flush=True)
        case.twenty("a healthy server", url, url, prefix.WORKING)
        with other_traffic(url):
            case.twenty("a healthy server beside other traffic", url, url, prefix.WORKING)
        with proxy("session", url) as door:
            case.twenty("a session id in the system prompt", url, door, prefix.DIFFERS)
        case.twenty("a prefix shorter than a block", url, url, prefix.TOO_SHORT, tokens=60)
        with proxy("evict", url) as door:
            case.twenty("a cache that is reset", url, door, prefix.NOT_RETAINED)
        case.once("another model name", url, "request.model", model="K4")
        for fault, wanted in (("truncate", "request.stream"), ("cut", "request.stream"), ("html", "request.models")):
            with proxy(fault, url) as door:
                case.once("a proxy: " + fault, door, wanted)
        on_node("pkill", "-STOP", "-f", "[V]LLM::EngineCore")
        case.once("an engine that was stopped", url, "request.engine", seconds=5.0)
        on_node("pkill", "-CONT", "-f", "[V]LLM::EngineCore")
    case.once("a server that is down", f"http://{ADDRESS}:{PORT}", "start.health")
    with server("no caching, a key") as url:
        case.once("a missing key", url, "request.key")
        case.once("a wrong key", url, "request.key", key="sesame-9999")
        case.twenty("prefix caching off", url, url, prefix.NOT_ENABLED, key="sesame-1234")
    with server("six blocks") as url:
        case.twenty("a KV cache that holds too little", url, url, prefix.NOT_RETAINED, filler_tokens=2000, max_model_len=512)
