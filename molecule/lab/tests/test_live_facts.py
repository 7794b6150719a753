# SPDX-License-Identifier: GPL-3.0-or-later
"""Every node of the scenario read live and judged by the real playbook, the dressed ones as what they wear."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

INVENTORY = os.environ["LAB_INVENTORY"]
testinfra_hosts = ["local://"]
# As molecule.yml says.
COSTUMES = {"node1": "b300", "node2": None, "vm1": "b300"}
# What nodes of the lab lack, whatever they wear: memory, space for weights, an NTP server; and a name for the lab's own image.
LACKS = {"storage.weights", "image.digest", "host.shm", "host.time", "host.pending_reboot", "image.known_trouble", "plan.fits"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """preflight.json over container nodes and machines together."""
    folder = tmp_path_factory.mktemp("preflight")
    everyone = folder / "everyone.yml"
    # The lab keeps its machines in a group of their own; here they are nodes like the others.
    everyone.write_text(yaml.safe_dump({"all": {"children": {"vllm_nodes": {"children": {"lab_machines": {}}}}}}), encoding="utf-8")
    argv = [
        str(Path(sys.executable).with_name("ansible-playbook")), "inferops.vllm.preflight", "-i", INVENTORY, "-i", str(everyone),
        "-e", "preflight_fail_on=never", "-e", f"preflight_report_dir={folder}",
        # A machine under emulation is slow to start its commands.
        "-e", "preflight_timeout=30",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=Path(os.environ["ANSIBLE_CONFIG"]).parent)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "preflight.json").read_text(encoding="utf-8"))
    return found


def bad(report: dict[str, Any], node: str) -> set[str]:
    """Checks of the node alone that are not passed, but for what every node of the lab lacks."""
    found = {one["id"] for one in report["findings"] if one["node"] == node and one["status"] in ("fail", "unknown", "warn")}
    # A kernel without loadable modules has no list of them, and no costume can make it up.
    found = {name for name in found if not name.startswith("drift.")}
    return found - LACKS - (set() if Path("/proc/modules").exists() else {"fabric.nvlsm"})


def test_every_node_was_read_live_and_judged(report: dict[str, Any]) -> None:
    assert {name: (node["unreachable"], node["recorded"]) for name, node in report["nodes"].items()} == dict.fromkeys(COSTUMES, ("", False))
    assert not {one["node"] for one in report["findings"] if one["id"] == "node.reachable" and one["status"] != "pass"}


def test_a_costume_is_shown_as_one(report: dict[str, Any]) -> None:
    assert {name: node.get("costume") for name, node in report["nodes"].items()} == COSTUMES


def test_the_dressed_container_node_shows_its_hardware_and_no_fault(report: dict[str, Any]) -> None:
    assert report["context"]["hardware"] == "b300"
    node = report["nodes"]["node1"]
    assert (node["gpus"], node["driver"], len(node["topology"]["hcas"])) == ("8 × NVIDIA B300 SXM6 AC", "580.95.05", 13)
    assert bad(report, "node1") == set()


def test_the_dressed_machine_has_gpus_and_no_driver_yet(report: dict[str, Any]) -> None:
    assert report["nodes"]["vm1"]["gpus"].startswith("8 ")
    assert "driver.branch" in bad(report, "vm1") and "gpu.idle" not in bad(report, "vm1")


def test_a_node_without_gpu_is_never_ready(report: dict[str, Any]) -> None:
    assert report["nodes"]["node2"]["verdict"] == "blocked"
    assert {"gpu.count", "driver.branch"} <= bad(report, "node2")
