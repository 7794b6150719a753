# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of real nodes: a service that restarts, a full disk, a node that is down; and the diagnosis of it without them.

Asked for with `pytest -m lab tests/unit/lab/test_evidence_running.py` (root; a minute or two once the root file system is in the
cache). Does not touch a lab that is up already.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.evidence import bundle
from tests.integration.test_diagnose import BROKEN, HEALTHY
from tests.lab import costume
from tests.lab.settings import Settings
from tests.unit.evidence.secrets_planted import KNOWN, PLANTED
from tests.unit.lab import own

UNIT = """[Service]
EnvironmentFile=/etc/vllm/secrets.env
ExecStart=/bin/sh -c "cat /root/server.log; %s"
Restart=always
RestartSec=1
StartLimitIntervalSec=0
"""

TRACES = "systemctl show -p MainPID vllm; find /tmp /var/tmp /root /etc /var/lib/inferops-vllm -type f 2>/dev/null | sort"

pytestmark = pytest.mark.lab


class Lab:
    """Two container nodes whose service prints logs."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.count = 0

    def shell(self, node: str, command: str, data: bytes = b"") -> str:
        return costume.run(self.settings, costume.find(self.settings, node), command, data).strip()

    def play(self, name: str, *options: str, inventory: str = "") -> tuple[int, str, Path]:
        """Exit code, all that was printed, and the folder for what it wrote."""
        self.count += 1
        folder = self.folder / f"run{self.count}"
        done = own.ansible(
            self.settings, "ansible-playbook", name, "-e", f"evidence_dir={folder}", "-e", f"diagnose_report_dir={folder}-d", *options,
            inventory=inventory, ANSIBLE_NOCOLOR="1", ANSIBLE_TIMEOUT="5", COLUMNS="100")
        assert "Traceback (most recent call last):\n  File" not in done.stdout
        return done.returncode, done.stdout, folder


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    settings = own.asked(request, "boots nodes")
    with own.nodes(settings, 2):
        made = Lab(settings, tmp_path_factory.mktemp("evidence"))
        planted = "".join(line + "\n" for _kind, line, _secret in PLANTED)
        for node, log, end in (("node1", HEALTHY, "sleep 3600"), ("node2", BROKEN, "sleep 2; exit 1")):
            made.shell(node, "cat > /root/server.log", (planted + log).encode())
            made.shell(node, "mkdir -p /etc/vllm; umask 077; cat > /etc/vllm/secrets.env", f"VLLM_API_KEY={KNOWN}\n".encode())
            made.shell(node, "cat > /etc/systemd/system/vllm.service; systemctl daemon-reload; systemctl start vllm; sleep 8", (UNIT % end).encode())
        yield made


def only(folder: Path) -> Path:
    found = list(folder.iterdir())
    assert len(found) == 1
    return found[0]


def opened(folder: Path, node: str) -> bundle.Opened:
    found = bundle.open_bundle(str(only(folder) / f"{node}.tar.gz"))
    assert found.problems == []
    return found


def test_two_nodes_are_frozen_without_a_trace_and_diagnosed_without_them(nodes: Lab) -> None:
    before = nodes.shell("node1", TRACES)
    rc, said, folder = nodes.play("inferops.vllm.evidence")
    assert rc == 0, said
    assert nodes.shell("node1", TRACES) == before
    second = opened(folder, "node2")
    service: dict[str, Any] = second.account["services"][0]
    assert service["restarts"] >= 2 and service["starts_this_boot"] >= 2 and "vllm.service restarted" in said
    for node in ("node1", "node2"):
        found = opened(folder, node)
        log = gzip.decompress(found.logs["vllm.service.log.gz"])
        assert [kind for kind, _line, secret in PLANTED if secret.encode() in log] == []
        assert found.account["redactions"]["count"] >= 20 and found.account["seconds"] < 60
    rc, said, _folder = nodes.play("inferops.vllm.diagnose", "-e", json.dumps({"diagnose_paths": [str(only(folder))]}), inventory="localhost,")
    assert rc == 0 and "failed in weights_load: oom_weights" in said and "node2" in said
    hosts = nodes.folder / "recorded.yml"
    recorded = {node: {"vllm_node_root": str(only(folder) / f"{node}.tar.gz")} for node in ("node1", "node2")}
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts.write_text(json.dumps({"vllm_nodes": {"hosts": recorded, "vars": local}}))
    quiet = ("-e", f"preflight_report_dir={nodes.folder}/p", "-e", "preflight_fail_on=never")
    rc, said, _folder = nodes.play("inferops.vllm.preflight", *quiet, inventory=str(hosts))
    assert rc == 0 and "all nodes: recorded" in said, said


@pytest.mark.parametrize("full", ["/tmp", "/root/.ansible", "/tmp /var/tmp /dev/shm /root/.ansible"])
def test_a_full_disk_is_streamed_past(nodes: Lab, full: str) -> None:
    fill = "mkdir -p $d; mount -t tmpfs -o size=64k tmpfs $d; dd if=/dev/zero of=$d/f bs=1k count=100 2>/dev/null || true"
    nodes.shell("node1", f"for d in {full}; do {fill}; done")
    try:
        rc, said, folder = nodes.play("inferops.vllm.evidence", "--limit", "node1")
    finally:
        nodes.shell("node1", f"for d in {full}; do umount $d; done")
    assert rc == 0 and "streamed, its disk is full" in said, said
    assert "vllm.service.log.gz" in opened(folder, "node1").logs


def test_a_node_that_is_down_is_named_and_the_other_is_frozen(nodes: Lab) -> None:
    # Last: the node does not come back.
    stop = "systemctl mask --runtime --now ssh.socket ssh.service; pkill -KILL sshd"
    nodes.shell("node2", f"systemd-run --on-active=2 sh -c '{stop}'")
    time.sleep(6)
    rc, said, folder = nodes.play("inferops.vllm.evidence")
    assert rc == 4 and "node2: did not answer" in said, said
    assert "vllm.service.log.gz" in opened(folder, "node1").logs
    assert json.loads((only(folder) / "index.json").read_text())["unreachable"]
