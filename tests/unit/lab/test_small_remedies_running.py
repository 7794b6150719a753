# SPDX-License-Identifier: GPL-3.0-or-later
"""Remedies that touch no package: services that are down, a driver that is not loaded, shared memory that is too small, on one dressed node.

Asked for with `pytest -m lab tests/unit/lab/test_small_remedies_running.py` (root; about two minutes once root file system and packages are in
the cache). Does not touch a lab that is up already. The tests build on each other, in this order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import costume
from tests.lab.chaos import INSTALL, NEW
from tests.lab.settings import Settings
from tests.unit.lab import own

INVENTORY = "all: {children: {vllm_nodes: {hosts: {node1: {}}}}}\n"
SERVICES = ("docker", "nvidia-fabricmanager")

pytestmark = pytest.mark.lab


class Box:
    """The node, changed through the playbook and looked at without it."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        (folder / "nodes.yml").write_text(INVENTORY, encoding="utf-8")

    def run(self, command: str) -> str:
        return costume.run(self.settings, costume.find(self.settings, "node1"), command, timeout=600.0).strip()

    def remediate(self, **words: Any) -> list[tuple[str, bool]]:
        """Remedies of the run in their order, and whether each mended what it was for."""
        given = {"vllm_hardware": "b300", "vllm_interconnect": "rdma", "preflight_timeout": 60, "remediate_budget": 40,
                 "remediate_report_dir": str(self.folder), "evidence_dir": str(self.folder / "evidence"), **words}
        began = time.monotonic()
        done = own.ansible(self.settings, "ansible-playbook", "inferops.vllm.remediate", "-i", str(self.folder / "nodes.yml"), "-e", json.dumps(given))
        print(f"{words}: {time.monotonic() - began:.0f} s")
        # The disk of a container is too small for the weights, which a person has to mend.
        assert done.returncode == 2 and "still to do: storage.weights" in done.stdout, done.stdout[-4000:]
        report = json.loads((self.folder / "remediation.json").read_text(encoding="utf-8"))
        return [(one["remedy"], one["outcomes"]["node1"]["mended"]) for one in report["rounds"]]


@pytest.fixture(scope="module")
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    settings = own.asked(request, "boots a node and installs a driver")
    with own.nodes(settings), own.packages(settings):
        one = Box(settings, tmp_path_factory.mktemp("remedies"))
        costume.dress(settings, "node1", "b300")
        costume.use_repository(settings, "node1")
        one.run("mkdir -p /lib/modules/$(uname -r)/build && touch /lib/modules/$(uname -r)/build/Makefile")
        one.run(INSTALL + "nvidia-driver-pinning-580")
        one.run(INSTALL + "nvidia-open nvidia-fabricmanager-580 nvlsm")
        yield one


def test_shared_memory_is_enlarged_and_the_installed_driver_loaded(box: Box) -> None:
    assert box.run("cat /sys/module/nvidia/version") != NEW == box.run("modinfo -F version nvidia")
    size = int(box.run("findmnt -bnro SIZE /dev/shm"))
    done = box.remediate(remediate_allow=["driver"])
    assert ("shm_size", True) in done and ("driver_activate", True) in done, done
    assert box.run("cat /sys/module/nvidia/version") == NEW
    assert int(box.run("findmnt -bnro SIZE /dev/shm")) > size and "/dev/shm" in box.run("cat /etc/fstab")


def test_services_that_are_down_are_started_for_every_boot(box: Box) -> None:
    box.run("systemctl disable --now nvidia-fabricmanager docker.socket docker")
    assert sorted(box.remediate()) == [("fabric_start", True), ("runtime_start", True)]
    for service in SERVICES:
        assert box.run(f"systemctl is-active {service}; systemctl is-enabled {service}") == "active\nenabled", service


def test_a_second_run_changes_nothing(box: Box) -> None:
    assert box.remediate(remediate_allow=["driver"]) == []
