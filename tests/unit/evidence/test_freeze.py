# SPDX-License-Identifier: GPL-3.0-or-later
"""This machine is frozen, with stand-ins for the programs that it lacks; among them a driver that hangs."""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.action import evidence as action
from ansible_collections.inferops.vllm.plugins.module_utils.evidence import arguments, bundle, freeze, places, process, serving, streamed
from ansible_collections.inferops.vllm.plugins.module_utils.evidence.freeze import Wanted
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather, open_root

from .secrets_planted import INNOCENT, KNOWN, PLANTED

UNIT = """# /etc/systemd/system/vllm.service
[Service]
Environment=%s=%s
ExecStart=/usr/bin/docker run --name vllm image
""" % ("VLLM_API_KEY", KNOWN)
ROWS = [
    {"ID": "a" * 64, "Names": "vllm", "Image": "vllm/vllm-openai:kimi-k3", "State": "running", "Command": "vllm serve"},
    {"ID": "b" * 64, "Names": "old_one", "Image": "vllm/vllm-openai:kimi-k3", "State": "exited", "Command": "vllm serve"},
    {"ID": "c" * 64, "Names": "db", "Image": "postgres", "State": "running", "Command": "postgres"},
]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins in front of PATH; what they print lies beside them."""
    log = "\n".join(["node systemd[1]: Started vllm.service - vLLM."] * 2 + INNOCENT + [line for _kind, line, _secret in PLANTED] + [""])
    (tmp_path / "log").write_text(log)
    (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "inspect").write_text(json.dumps([{
        "RestartCount": 2, "State": {"ExitCode": 137, "OOMKilled": True}, "Config": {"Env": [line for _kind, line, _secret in PLANTED]}}]))
    (tmp_path / "unit").write_text(UNIT)
    here = str(tmp_path)
    programs = {
        "journalctl": 'case "$*" in *"-u vllm.service"*) cat %s/log;; esac' % here,
        "systemctl": 'case "$1" in cat) cat %s/unit;; *) exit 1;; esac' % here,
        "docker": 'cd %s; case "$1 $2" in "ps -a") cat rows;; "container inspect") cat inspect;; "logs --timestamps") cat log >&2;; *) exit 1;; esac' % here,
        "nvidia-smi": "sleep 300",
        "podman": "exit 125", "kubectl": "exit 1", "dmesg": "exit 1", "modinfo": "exit 1",
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in programs.items():
        (folder / name).write_text("#!/bin/sh\n%s\n" % body)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (folder, os.environ["PATH"]))
    return tmp_path


@pytest.fixture
def frozen(machine: Path, monkeypatch: pytest.MonkeyPatch) -> freeze.Frozen:
    secrets_file = machine / "secrets.env"
    secrets_file.write_text("VLLM_API_KEY=%s\n" % KNOWN)
    monkeypatch.setattr(places, "SECRET_FILES", (str(secrets_file),))
    started = time.monotonic()
    found = freeze.freeze(Wanted("n1", Options(), timeout=2.0))
    # A driver that hangs costs its deadline, once for the facts and once for everything else; generous for a busy machine.
    assert time.monotonic() - started < 40
    return found


def everything(found: freeze.Frozen) -> bytes:
    """All files of the bundle as one text, logs unpacked."""
    return b"\n".join(gzip.decompress(b"".join(parts)) if name.startswith("logs/") else b"".join(parts) for name, parts in found.contents.items())


def test_a_bundle_of_a_machine_whose_driver_hangs(frozen: freeze.Frozen, tmp_path: Path) -> None:
    account = frozen.account
    json.dumps(account)
    assert any(entry["argv"] == ["nvidia-smi"] and entry["error"] == "timeout" and entry["limit_seconds"] == 2.0 for entry in account["commands"])
    assert all(entry["seconds"] >= 0 and "rc" in entry for entry in account["commands"]) and any(entry["seconds"] > 0 for entry in account["commands"])
    logs = {record["origin"]: record for record in account["logs"]}
    assert logs["vllm.service"]["rc"] == 0 and logs["vllm.service"]["kind"] == "engine" and logs["vllm.service"]["starts"] == {"vllm.service": 2}
    assert logs["old_one"]["kind"] == "container" and logs["old_one"]["lines"] == logs["vllm.service"]["lines"]
    assert "vllm" not in logs, "the log of the unit's own container stands in its journal"
    assert [(row["name"], row["restarts"], row["oom_killed"]) for row in account["containers"]] == [("vllm", 2, True), ("old_one", 2, True)]
    path = str(tmp_path / "b.tar.gz")
    bundle.write_archive(frozen.contents, path, "n1")
    assert bundle.open_bundle(path).problems == []
    reader, options, _head = open_root(path)
    assert "abandoned" in gather(reader, options)["gpu"]["unknown"]["smi"]


def test_no_planted_secret_is_in_the_bundle_and_the_redactions_are_listed(frozen: freeze.Frozen) -> None:
    whole = everything(frozen)
    assert [kind for kind, _line, secret in PLANTED if secret.encode() in whole or json.dumps(secret)[1:-1].encode() in whole] == []
    told = frozen.account["redactions"]
    assert told["count"] >= 3 * 20 and told["known_values"] >= 1
    files = {place["file"] for place in told["places"]}
    assert {"logs/vllm.service.log.gz", "logs/old_one-bbbbbbbbbbbb.log.gz", "systemctl cat --no-pager vllm.service"} <= files
    assert not [secret for _kind, _line, secret in PLANTED if secret in json.dumps(told)]
    assert all(place["line"] > 0 and place["kind"] for place in told["places"])


def test_logs_keep_to_their_time_and_say_so(machine: Path) -> None:
    (machine / "bin/journalctl").write_text('#!/bin/sh\ncase "$*" in *"-n 50000"*) echo the end;; *"-u vllm.service"*) echo begin; sleep 60;; esac\n')
    found = freeze.freeze(Wanted("n1", Options(subset=("service",)), parts=("logs",), timeout=1.0, log_seconds=1.0))
    logs = [record for record in found.account["logs"] if record["origin"] == "vllm.service"]
    assert [(record["file"], record["error"]) for record in logs] == [
        ("logs/vllm.service.log.gz", "timeout"), ("logs/vllm.service-end.log.gz", "timeout")]
    assert gzip.decompress(b"".join(found.contents["logs/vllm.service-end.log.gz"])) == b"the end\n"
    assert any("vllm.service" in text and "longer than allowed" in text for text in found.account["cut"])


def test_logs_that_do_not_fit_are_named(machine: Path) -> None:
    found = freeze.freeze(Wanted("n1", Options(subset=("service",)), parts=("logs",), timeout=1.0, total_bytes=10))
    assert not [name for name in found.contents if name.startswith("logs/")]
    assert any("the bundle was full" in text for text in found.account["cut"])


def test_kubernetes_is_asked_only_when_it_is_named(machine: Path) -> None:
    answers = 'case "$*" in *"-o name"*) echo pod/vllm-0;; *previous*) exit 1;; logs*) cat %s/log;; *) echo "kind: List";; esac' % machine
    (machine / "bin/kubectl").write_text("#!/bin/sh\n%s\n" % answers)
    wanted = Wanted("n1", Options(subset=("service",)), parts=("logs",), timeout=5.0, namespace="inference", selector="app=vllm")
    assert not [entry for entry in freeze.freeze(wanted).account["commands"] if entry["argv"][0] == "kubectl"]
    found = freeze.freeze(wanted._replace(parts=("kubernetes",)))
    asked = [entry["argv"] for entry in found.account["commands"] if entry["argv"][0] == "kubectl"]
    assert all("secrets" not in " ".join(argv) for argv in asked) and any("yaml" in argv and "inference" in argv for argv in asked)
    assert [(log["origin"], log["kind"], bool(log["file"])) for log in found.account["logs"]] == [("vllm-0", "pod", True), ("vllm-0", "pod", False)]
    assert not [kind for kind, _line, secret in PLANTED if kind != "secret of this node" and secret.encode() in everything(found)]


def test_the_stream_gives_the_same_bundle(machine: Path) -> None:
    params = {name: option.get("default") for name, option in arguments.spec().items()}
    params.update(dest="/", node="n1", parts=["logs", "processes"], timeout=1.0, gather_subset=["host", "service"])
    done = subprocess.run(
        [sys.executable, "-I", "-c", streamed.BOOTSTRAP.strip()], input=streamed.payload(action._sources(), params), capture_output=True,
        timeout=120, check=True)
    told, data = streamed.parse("Last login: today\n" + done.stdout.decode())
    assert told["node"] == "n1" and [log["origin"] for log in told["logs"]] == ["vllm.service", "old_one"]
    archive = machine / "n1.tar.gz"
    archive.write_bytes(data)
    opened = bundle.open_bundle(str(archive))
    assert opened.problems == [] and "vllm.service.log.gz" in opened.logs
    log = gzip.decompress(opened.logs["vllm.service.log.gz"])
    assert not [secret for kind, _line, secret in PLANTED if kind != "secret of this node" and secret.encode() in log]


@pytest.mark.parametrize("text", ["", "bash: python3: not found", streamed.MARK, streamed.MARK + "[]\nAAAA", streamed.MARK + "{}\nnot base64!"])
def test_a_broken_stream_is_one_sentence(text: str) -> None:
    with pytest.raises(ValueError):
        streamed.parse(text)


@given(st.binary(max_size=300))
def test_a_stream_survives_line_ends_of_a_terminal(data: bytes) -> None:
    text = "x\r\n%s%s\r\n%s\r\n" % (streamed.MARK, json.dumps({"node": "n"}), base64.b64encode(data).decode())
    assert streamed.parse(text) == ({"node": "n"}, data)


@pytest.mark.parametrize(("values", "why"), [
    ({"log_paths": ["relative.log"]}, "log_paths"), ({"log_seconds": 0.0}, "log_seconds"), ({"total_mib": 1000}, "total_mib"), ({"node": "../x"}, "node"),
    ({"selector": "--all"}, "selector"), ({"namespace": "a b"}, "namespace"), ({"timeout": -1.0}, "timeout"), ({"units": ["-x"]}, "units"),
])
def test_bad_arguments_are_one_sentence(values: Dict[str, Any], why: str) -> None:
    params = {name: option.get("default") for name, option in arguments.spec().items()}
    with pytest.raises(ValueError, match="^%s: " % why):
        arguments.wanted({**params, "node": "n1", **values})
    assert arguments.wanted({**params, "node": "n1"}).node == "n1"


def test_what_would_be_read_is_told_without_reading() -> None:
    told = freeze.would(Wanted("n1", Options(), parts=(*places.PARTS, "kubernetes"), log_paths=("/var/log/x.log",)))
    assert len(told) == 6 and any("/var/log/x.log" in text for text in told)


@given(st.text())
def test_any_list_of_containers_is_read(text: str) -> None:
    for row in places.containers(text, ("x",)):
        assert row["id"]


def test_pods_with_names_that_are_options_are_left_alone() -> None:
    logs = places.pod_logs("pod/good-1\npod/--all\npod/UPPER\n;rm\n", "ns")
    assert [log.origin for log in logs] == ["good-1", "good-1"] and logs[1].argv[-1] == "--previous" and "-n" in logs[0].argv


def test_ranks_and_addresses_are_read_from_a_command_line() -> None:
    argv = ["python3", "/usr/bin/vllm", "serve", "/models", "--node-rank", "1", "--nnodes=2", "--headless", "-tp", "16", "--port", "9000"]
    assert process.identity(argv) == {"model": "/models", "node_rank": "1", "nodes": "2", "headless": True, "tensor_parallel_size": "16", "port": "9000"}
    assert process.endpoint(argv) is None
    assert process.endpoint(["vllm", "serve", "m"]) == ("127.0.0.1", 8000)
    assert process.endpoint(["vllm", "serve", "m", "--host", "10.0.0.5", "--port=81"]) == ("10.0.0.5", 81)
    assert process.endpoint(["vllm", "serve", "m", "--host", "::"]) == ("::1", 8000)
    assert process.endpoint(["vllm", "serve", "m", "--port", "many"]) is None and process.endpoint(["vllm", "serve", "m", "--uds", "/s"]) is None


@given(st.lists(st.text(max_size=20), max_size=12))
def test_any_command_line_is_read(argv: List[str]) -> None:
    process.identity(argv)
    process.endpoint(argv)


def test_this_process_is_read_with_its_children() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], env={**os.environ, "NCCL_DEBUG": "INFO"})
    try:
        pids = [stat.pid for stat in process.family([os.getpid()])]
        assert pids[0] == os.getpid() and child.pid in pids
        time.sleep(0.3)
        raw = process.raw(child.pid)
        assert raw["argv"][0] == sys.executable and raw["env"]["NCCL_DEBUG"] == "INFO" and raw["ppid"] == os.getpid()
        assert process.differing({"A": "1", "B": "2"}, {"A": "1", "C": "3"}) == {"B": "2"}
        sites = process.mapped(os.getpid())["sites"]
        assert "pytest" in process.packages(os.getpid(), sites or [next(path for path in sys.path if path.endswith("site-packages"))])
    finally:
        child.kill()
        child.wait()
    assert process.raw(child.pid) == {}


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/version":
            time.sleep(3)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"vllm:num_requests_running 0\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_a_server_is_asked_and_one_that_hangs_is_left(port: int) -> None:
    assert "num_requests" in serving.ask("127.0.0.1", port, 5.0, ("/metrics",))["/metrics"]["text"]
    found = serving.ask("127.0.0.1", port, 0.5)
    assert found["/health"]["status"] == 200 and "no answer" in found["/version"]["error"] and "/metrics" not in found
    assert "error" in serving.ask("127.0.0.1", 1, 0.5)["/health"]
