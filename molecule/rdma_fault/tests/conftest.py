# SPDX-License-Identifier: GPL-3.0-or-later
"""The two machines, looked at without the product's own facts, and the playbook as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import testinfra

ROOT = Path(os.environ["ANSIBLE_CONFIG"]).parent
FOLDER = Path(os.environ["SCENARIO_FOLDER"])
MACHINES = ("vm1", "vm2")


class Answer:
    """A run of remediate_rdma: exit code, report and text."""

    def __init__(self, done: subprocess.CompletedProcess[str], report: Path) -> None:
        self.rc = done.returncode
        self.text = " ".join(done.stdout.split())
        assert report.exists(), done.stdout[-3000:] + done.stderr[-2000:]
        self.document: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))

    def step(self, node: str, problem: str, when: str = "steps") -> Mapping[str, Any]:
        """What was decided of a fault."""
        found: list[Mapping[str, Any]] = [step for step in self.document["nodes"][node][when] if problem in step["problems"]]
        assert len(found) == 1, (node, problem, self.document["nodes"][node])
        return found[0]

    def done(self) -> list[tuple[str, str, bool]]:
        """(remedy, node, mended) in the order of the rounds."""
        return [(one["remedy"], node, one["outcomes"][node]["mended"]) for one in self.document["rounds"] for node in one["act"]]


def remediate(name: str, *options: str, **given: Any) -> Answer:
    folder = FOLDER / "runs" / name
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "inferops.vllm.remediate_rdma"]
    argv += ["-i", os.environ["LAB_INVENTORY"], "-i", os.environ["SCENARIO_INVENTORY"], *options]
    argv += ["-e", json.dumps({"remediate_report_dir": str(folder), "evidence_dir": str(folder / "evidence"), **given})]
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    (FOLDER / "runs").mkdir(exist_ok=True)
    with (FOLDER / "runs" / "seconds.txt").open("a", encoding="utf-8") as file:
        file.write("%s %.1f\n" % (name, time.monotonic() - began))
    folder.mkdir(exist_ok=True)
    (folder / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return Answer(done, folder / "remediation.json")


class Machine:
    """One machine by testinfra."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = testinfra.get_host(f"ansible://{name}?ansible_inventory={os.environ['LAB_INVENTORY']}")

    def ok(self, command: str) -> str:
        found: str = self.host.check_output(command)
        return found

    def settled(self) -> str:
        """Id of the boot whose units have all started, empty while the machine does not answer."""
        try:
            found: str = self.host.run("cat /proc/sys/kernel/random/boot_id && systemctl is-system-running --wait").stdout
        except RuntimeError:
            # testinfra's word for a machine that cannot be reached.
            return ""
        return found[:36]

    def modules(self) -> set[str]:
        return {line.split()[0] for line in self.ok("lsmod").splitlines()[1:]}

    def loaded_at_boot(self) -> set[str]:
        return set(self.ok("cat /etc/modules-load.d/inferops-vllm-*.conf 2>/dev/null | grep -v '^#' || :").split())

    def interface(self, name: str = "eth0") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ok(f"ip -json link show {name}"))[0]
        return found

    def history(self) -> list[tuple[str, str]]:
        """(remedy, outcome) of the node's own state file."""
        state = json.loads(self.ok("cat /var/lib/inferops-vllm/remediation.json"))
        assert state["current"] is None
        return [(entry["remedy"], entry["outcome"]) for entry in state["history"]]


@pytest.fixture(scope="session")
def vm1() -> Machine:
    return Machine("vm1")


@pytest.fixture(scope="session")
def vm2() -> Machine:
    return Machine("vm2")
