# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbooks as a user would, and keep every word they print."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(os.environ["ANSIBLE_CONFIG"]).parent
FOLDER = Path(os.environ["SCENARIO_FOLDER"])
FOLDER.mkdir(parents=True, exist_ok=True)
PRINTED = FOLDER / "printed.log"
PROCESSES = FOLDER / "processes.log"
NODES = {"node1": "10.203.77.11", "node2": "10.203.77.12"}
API_KEY = "molecule-api-key-5f2a9c"


class Run(NamedTuple):
    """Outcome of one playbook run."""

    rc: int
    text: str
    seconds: float

    def changed(self, node: str) -> int:
        """Changed tasks of the node."""
        found = re.search(rf"^{node} .*changed=(\d+)", self.text, re.M)
        assert found, self.text[-2000:]
        return int(found.group(1))

    @property
    def message(self) -> str:
        """What the failed task said, on one line."""
        return " ".join(self.text[self.text.find("fatal:"):].split())


def play(name: str, *arguments: str, **variables: Any) -> Run:
    """Run a playbook of the collection over the lab."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), f"inferops.vllm.{name}", "-i", os.environ["LAB_INVENTORY"],
            "-i", os.environ["SCENARIO_INVENTORY"], "-e", json.dumps(variables), *arguments]
    began = time.monotonic()
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as started:
        watch = threading.Thread(target=watch_processes, args=(started,), daemon=True)
        watch.start()
        text = started.communicate()[0]
    watch.join()
    with PRINTED.open("a", encoding="utf-8") as sink:
        sink.write(text)
    return Run(started.returncode, text, time.monotonic() - began)


def watch_processes(started: subprocess.Popen[str]) -> None:
    """Keep every command line that is seen on this machine while a playbook runs."""
    seen = set()
    while started.poll() is None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                seen.add(path.read_bytes().replace(b"\0", b" "))
        time.sleep(0.2)
    with PROCESSES.open("ab") as sink:
        sink.write(b"\n".join(sorted(seen)) + b"\n")


def ask(node: str, path: str = "/v1/completions", port: int = 8000, key: str = API_KEY) -> dict[str, Any]:
    """A real completion from the server on the node, asked from this machine."""
    import urllib.request

    body = json.dumps({"model": "moonshotai/Kimi-K3", "prompt": "The quick brown fox", "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"http://{NODES[node]}:{port}{path}", body, {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def serves(node: str, port: int = 8000) -> bool:
    """The node answers a completion with tokens."""
    return bool(ask(node, port=port)["usage"]["completion_tokens"] > 0)


def invocation(host: Any) -> str:
    """Which start of vllm.service runs."""
    found: str = host.check_output("systemctl show --property=InvocationID --value vllm.service")
    assert found
    return found


@pytest.fixture(scope="session")
def nodes() -> dict[str, Any]:
    """Testinfra hosts by name."""
    import testinfra

    return {name: testinfra.get_host(f"ansible://{name}?ansible_inventory={os.environ['LAB_INVENTORY']}") for name in NODES}
