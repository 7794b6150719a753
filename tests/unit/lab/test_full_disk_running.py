# SPDX-License-Identifier: GPL-3.0-or-later
"""A disk that fills in the middle of the installation of a driver: named, and mended by the next run once there is room.

Asked for with `pytest -m lab tests/unit/lab/test_full_disk_running.py` (root; two minutes). Does not touch a lab that is up already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import chaos, vm
from tests.unit.lab import own

pytestmark = pytest.mark.lab


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[chaos.Target]:
    settings = own.asked(request, "boots a node", vm.missing)
    with chaos.arena(settings, (1,), print):
        one = chaos.Target(settings, "container")
        one.reset()
        yield one


def remediate(target: chaos.Target, folder: Path) -> tuple[int, str, dict[str, Any]]:
    words = {"vllm_hardware": "b300", "remediate_allow": ["driver"], "driver_unhold": True, "remediate_report_dir": str(folder), "preflight_timeout": 240,
             "evidence_dir": str(folder / "evidence"), "remediate_budget": 20}
    done = own.ansible(target.settings, "ansible-playbook", "inferops.vllm.remediate_driver", "-e", json.dumps(words), ANSIBLE_NOCOLOR="1")
    return done.returncode, " ".join(done.stdout.split()), json.loads((folder / "remediation.json").read_text(encoding="utf-8"))


def test_it_is_named_and_the_next_run_mends_it(target: chaos.Target, tmp_path: Path) -> None:
    # The sources of the modules lie on a disk of their own, which nothing asks beforehand for its room.
    target.run("mount -t tmpfs -o size=2m tmpfs /mnt && cp -a /usr/src/. /mnt/ && (cat /dev/zero > /mnt/full || true) && "
               "mount --bind /mnt /usr/src && umount /mnt")
    rc, text, report = remediate(target, tmp_path / "full")
    assert rc == 2 and "No space left on device" in text, text[-3000:]
    assert [step["kind"] for step in report["nodes"]["node1"]["left"] if "driver.branch" in step["problems"]] == ["remedy"]
    state = json.loads(target.run("cat /var/lib/inferops-vllm/remediation.json"))
    assert state["current"] is None and (state["history"][-1]["remedy"], state["history"][-1]["outcome"]) == ("driver_upgrade", "failed")
    assert target.run("cat /sys/module/nvidia/version") == chaos.OLD, "what ran runs"
    target.run("umount /usr/src")
    rc, text, report = remediate(target, tmp_path / "room")
    assert rc == 0 and report["outcome"] == "healthy", text[-3000:]
    assert target.faults() == [] and target.run("cat /sys/module/nvidia/version") == chaos.NEW
    assert report["rounds"][0]["remedy"] == "driver_repair" and all(one["outcomes"]["node1"]["mended"] for one in report["rounds"])
