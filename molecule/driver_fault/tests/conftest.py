# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the playbook as a user would, and look at the nodes without it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(os.environ["ANSIBLE_CONFIG"]).parent
FOLDER = Path(os.environ["SCENARIO_FOLDER"])
NODES = ("node1", "node2", "vm1")


class Run(NamedTuple):
    """Outcome of one playbook run, with remediation.json."""

    rc: int
    text: str
    seconds: float
    report: dict[str, Any]

    def changed(self, node: str) -> int:
        found = re.search(rf"^{node} .*changed=(\d+)", self.text, re.M)
        assert found, self.text[-2000:]
        return int(found.group(1))

    def remedies(self, node: str) -> list[tuple[str, bool]]:
        """What was done on the node, and whether it mended."""
        return [(one["remedy"], one["outcomes"][node]["mended"]) for one in self.report["rounds"] if node in one["act"]]

    @property
    def words(self) -> str:
        """All that was printed, on one line."""
        return " ".join(self.text.split())


def remediate(nodes: str, *allow: str, name: str = "remediate_driver", **variables: Any) -> Run:
    """Run the playbook on some nodes."""
    words = {"vllm_hardware": "b300", "remediate_allow": list(allow), "remediate_report_dir": str(FOLDER / "reports"),
             "evidence_dir": str(FOLDER / "evidence"), "remediate_budget": 20, "preflight_timeout": 240, **variables}
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), f"inferops.vllm.{name}", "-i", os.environ["LAB_INVENTORY"],
            "-i", str(FOLDER / "everyone.yml"), "--limit", f"{nodes},localhost", "-e", json.dumps(words)]
    # The lab keeps its machines in a group of their own; here they are nodes like the others.
    (FOLDER / "everyone.yml").write_text("all: {children: {vllm_nodes: {children: {lab_machines: {}}}}}\n", encoding="utf-8")
    (FOLDER / "reports" / "remediation.json").unlink(missing_ok=True)
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
    began = time.monotonic()
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, check=False)
    with (FOLDER / "printed.log").open("a", encoding="utf-8") as sink:
        sink.write(done.stdout)
    report = FOLDER / "reports" / "remediation.json"
    return Run(done.returncode, done.stdout, time.monotonic() - began, json.loads(report.read_text(encoding="utf-8")) if report.exists() else {})


def took(fault: str, run: Run) -> None:
    """Keep how long a fault took; the table in docs/MEASURES.md is made of it."""
    with (FOLDER / "faults.txt").open("a", encoding="utf-8") as sink:
        sink.write(f"{fault}: {run.seconds:.0f} s\n")


def repository(*words: str) -> None:
    """Serve the package repository anew."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'collections'}"}
    subprocess.run([sys.executable, "-m", "tests.lab.apt_repo", "serve", *words], cwd=ROOT, env=env, check=True)


@pytest.fixture(scope="session")
def nodes() -> dict[str, Any]:
    """Testinfra hosts by name."""
    import testinfra

    return {name: testinfra.get_host(f"ansible://{name}?ansible_inventory={os.environ['LAB_INVENTORY']}") for name in NODES}
