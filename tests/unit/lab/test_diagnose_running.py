# SPDX-License-Identifier: GPL-3.0-or-later
"""The diagnosis of a live node whose real vLLM does not start, for real causes; and of one that serves.

Asked for with `pytest -m lab tests/unit/lab/test_diagnose_running.py` (root; some minutes once root file system and image are in
the cache). Does not touch a lab that is up already.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import wheels
from tests.lab.image import checkpoint
from tests.lab.played import Played
from tests.unit.lab import own

UNIT = """[Service]
ExecStart=/usr/bin/docker run --rm --name vllm --network host --ipc host -e VLLM_CPU_KVCACHE_SPACE=1 -e HF_HUB_OFFLINE=1 \
  -v /root/model:/model:ro %s /model --enforce-eager --max-model-len 256 %s
ExecStop=/usr/bin/docker stop -t 20 vllm
"""
LIMIT = 300.0

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    settings = own.asked(request, "boots a node and starts vLLM for minutes")
    with own.nodes(settings, image=True):
        made = Played(settings, tmp_path_factory.mktemp("diagnose"))
        result, said = made.play("image")
        assert result["rc"] == 0, said[-3000:]
        model = made.folder / "model"
        checkpoint.write(model)
        made.shell("mkdir -p /root/model /root/good && tar -x -C /root/good", wheels.packed(model))
        yield made


def begin(node: Played, flags: str, before: str = "true") -> None:
    """Start vllm.service anew, with an empty journal, after the shell command `before`."""
    image = node.shell("docker images -q --no-trunc | head -1")
    node.shell("systemctl stop vllm; systemctl reset-failed vllm; journalctl --rotate -q; journalctl --vacuum-time=1s -q; true")
    node.shell(f"rm -rf /root/model; cp -r /root/good /root/model; {before}")
    node.shell("cat > /etc/systemd/system/vllm.service; systemctl daemon-reload; systemctl start vllm", (UNIT % (image, flags)).encode())


def until(node: Played, command: str) -> None:
    """Wait until the shell command says yes."""
    end = time.monotonic() + LIMIT
    while node.shell(command) != "yes":
        gone = node.shell("systemctl is-failed vllm || true") == "failed" and "is-active" not in command
        assert time.monotonic() < end and not gone, node.shell("journalctl -u vllm --no-pager | tail -30")
        time.sleep(3)


def diagnosed(node: Played) -> tuple[dict[str, Any], str]:
    """Verdict of the live playbook, and what it printed."""
    target = node.folder / "d.json"
    rc, said = node.playbook("diagnose", diagnose_json=str(target), diagnose_report_dir=str(node.folder / "report"), evidence_dir=str(node.folder / "ev"))
    assert rc == 0, said[-3000:]
    assert "Traceback (most recent call last):\n  File" not in said
    cases = json.loads(target.read_text())["cases"]
    assert len(cases) == 1
    return cases[0], said


@pytest.mark.parametrize(("flags", "before", "phase", "kind", "line"), [
    ("--kv-cache-dtype fp9", "true", "engine_init", "configuration", "invalid choice: 'fp9'"),
    ("", "systemd-run -q --unit=squatter python3 -m http.server 8000; sleep 2", None, "configuration", "Address already in use"),
    ("", "truncate -s -1000 /root/model/*.safetensors", "weights_load", "weights", "SafetensorError")])
def test_a_real_start_that_fails(node: Played, flags: str, before: str, phase: str | None, kind: str, line: str) -> None:
    begin(node, flags, before)
    try:
        until(node, "systemctl is-active vllm | grep -qE 'failed|^inactive' && echo yes || true")
    finally:
        node.shell("systemctl stop squatter 2>/dev/null || true")
    case, said = diagnosed(node)
    first = case["first_failure"]
    assert case["failed"] and first is not None, said[-3000:]
    assert (case["class"], line in first["text"], first["node"]) == (kind, True, "node1"), first
    assert phase is None or case["phase"] == phase
    journal = node.shell("journalctl -u vllm --no-pager -o short-iso-precise -b 0 -q").splitlines()
    assert journal[first["line"] - 1] == first["text"], "the line is the journal's own"
    shown = " ".join(said.split())
    assert f"failed in {case['phase']}: {kind}" in shown and line in shown


def test_a_server_that_serves_is_healthy(node: Played) -> None:
    begin(node, "")
    until(node, "curl -sf http://127.0.0.1:8000/health >/dev/null && echo yes || true")
    case, said = diagnosed(node)
    assert (case["failed"], case["class"]) == (False, "none") and case["phase"] in ("api_ready", "decode"), said[-2000:]
    assert node.shell("curl -sf http://127.0.0.1:8000/health && systemctl is-active vllm") == "active"
