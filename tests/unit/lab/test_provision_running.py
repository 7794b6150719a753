# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver packages on a dressed container node: old branch, pins, holds, half-configured packages, mixed sources, no repository, no room.

Asked for with `pytest -m lab tests/unit/lab/test_provision_running.py` (root; four minutes on an idle machine once the root file system and
the packages are in the cache). Does not touch a lab that is up already. The tests build on each other, in this order, on one node; two more nodes
are brought from bare to the container runtime in one run.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import apt_repo, costume, vm
from tests.lab.settings import Settings
from tests.unit.lab import own

NODE = "node1"
FRESH = ("node2", "node3")
NEWEST = "580.126.20"

pytestmark = pytest.mark.lab


def changes_of(text: str, node: str) -> int:
    """Changed tasks of the node, -1 when the recap does not name it."""
    found = re.search(node + r"\s+: .*changed=(\d+)", text)
    return int(found.group(1)) if found else -1


class Lab:
    """One dressed node, changed through Ansible and looked at without it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def run(self, command: str, node: str = NODE) -> str:
        return costume.run(self.settings, costume.find(self.settings, node), command).strip()

    def ansible(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return own.ansible(self.settings, program, *arguments, ANSIBLE_CALLBACK_RESULT_FORMAT="json")

    def module(self, name: str, /, *options: str, **arguments: Any) -> dict[str, Any]:
        """Result of a module, failed or not."""
        done = self.ansible("ansible", NODE, "-m", "inferops.vllm." + name, "-a", json.dumps(arguments), *options)
        found = re.search(r"(?:SUCCESS|CHANGED|FAILED!) => (\{.*\})", done.stdout, re.S)
        assert found, done.stdout
        result: dict[str, Any] = json.loads(found.group(1))
        return result

    def packages(self, *options: str, **arguments: Any) -> dict[str, Any]:
        return self.module("driver_packages", *options, **arguments)

    def play(self, *arguments: str) -> tuple[int, int, str]:
        """Exit status, changed tasks of the node, and what was printed."""
        options = ("--limit", NODE + ",localhost", "--skip-tags", "container_runtime", "-e", "vllm_hardware=b300")
        done = self.ansible("ansible-playbook", "inferops.vllm.provision", *options, *arguments)
        return done.returncode, changes_of(done.stdout, NODE), done.stdout

    def versions(self) -> dict[str, str]:
        rows = self.run("/usr/bin/dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n' 'nvidia-*' 'libnvidia-compute'").splitlines()
        return {row.split()[0]: row.split()[1] for row in rows if row.split()[-1] in ("ii", "hi")}

    def install(self, words: str) -> None:
        self.run("DEBIAN_FRONTEND=noninteractive apt-get -q -y --allow-downgrades --allow-change-held-packages install " + words)


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Iterator[Lab]:
    settings = own.asked(request, "boots a node for minutes", vm.missing)
    with own.nodes(settings, 3), own.packages(settings):
        one = Lab(settings)
        for name in (NODE, *FRESH):
            costume.dress(settings, name, "b300", ["driver_r575"])
            costume.use_repository(settings, name)
            # DKMS of the costume builds nothing, but looks for headers.
            one.run("mkdir -p /lib/modules/$(uname -r)/build && touch /lib/modules/$(uname -r)/build/Makefile", name)
        one.install("nvidia-driver-pinning-575")
        one.install("nvidia-open nvidia-fabricmanager-575")
        yield one


def test_pins_and_holds_are_named_before_anything_is_touched(node: Lab) -> None:
    before = node.versions()
    assert before["nvidia-open"] == "575.57.08-1" and before["nvidia-fabricmanager-575"] == "575.57.08-1"
    pinned = node.packages(branch="580")
    assert (pinned["kind"], pinned["names"]) == ("pinned", ["/etc/apt/preferences.d/nvidia-driver-pinning-575"])
    node.run("apt-mark hold nvidia-dkms-open")
    held = node.packages(branch="580")
    assert (held["kind"], held["names"]) == ("held", ["nvidia-dkms-open"]) and "unhold" in held["msg"]
    assert node.versions() == before and not node.run("ls /etc/apt/preferences.d").count("inferops")


def test_check_mode_says_what_then_happens(node: Lab) -> None:
    rc, changed, text = node.play("--check", "--diff", "-e", "driver_unhold=true")
    assert rc == 0 and changed > 0, text
    assert "-nvidia-open 575.57.08-1" in text and f"+nvidia-open {NEWEST}-1" in text and f"+driver {NEWEST}" in text
    assert "driver 575.57.08 installed, 575.57.08 loaded, to branch 580 (open modules); Fabric Manager, nvlsm" in text
    assert node.versions()["nvidia-open"] == "575.57.08-1"


def test_provision_brings_the_branch_and_a_second_run_changes_nothing(node: Lab) -> None:
    rc, changed, text = node.play("-e", "driver_unhold=true")
    assert rc == 0 and changed > 0, text
    versions = node.versions()
    assert set(versions.values()) == {NEWEST + "-1", "580-1"}, versions
    assert versions["nvidia-fabricmanager"] == NEWEST + "-1" and "nvidia-fabricmanager-575" not in versions
    assert versions["nvidia-driver-pinning-580"] == "580-1" and "nvidia-driver-pinning-575" not in versions
    assert node.run("ls /etc/apt/preferences.d") == "inferops-vllm-driver\nnvidia-driver-pinning-580", "no pin of the old branch is left"
    assert node.run("apt-mark showhold") == "nvidia-dkms-open", "the hold is back"
    assert node.run("cat /sys/module/nvidia/version") == NEWEST
    assert node.run("systemctl is-active nvidia-fabricmanager nvidia-persistenced") == "active\nactive"
    assert node.run("systemctl is-enabled nvidia-fabricmanager nvidia-persistenced") == "enabled\nenabled"
    assert node.run("apt-cache policy nvidia-open | grep Candidate") == f"Candidate: {NEWEST}-1", "590 is offered and pinned away"
    assert node.run("apt-get -s -q dist-upgrade | grep -c ^Inst.*nvidia || true") == "0"
    rc, changed, text = node.play()
    assert (rc, changed) == (0, 0), text


def test_two_bare_nodes_are_brought_to_the_container_runtime(node: Lab) -> None:
    """The whole of provision on two nodes at once: what the dry run announces is what then changes, and a second run changes nothing."""
    def provision(*options: str) -> tuple[str, dict[str, int], list[str]]:
        done = node.ansible("ansible-playbook", "inferops.vllm.provision", "--limit", ",".join((*FRESH, "localhost")), "-e", "vllm_hardware=b300", *options)
        assert done.returncode == 0, done.stdout[-5000:]
        counts = {name: changes_of(done.stdout, name) for name in FRESH}
        # A set: a module that two roles want is announced by both, and brought by the first.
        return done.stdout, counts, sorted({line for line in done.stdout.splitlines() if re.match(r"[+-](?![+-]{2} )", line)})

    text, announced, foretold = provision("--check", "--diff")
    assert "NEW packages will be installed" in text and f"+driver {NEWEST}" in foretold and '+  "live-restore": true,' in foretold
    for name in FRESH:
        assert node.run("/usr/bin/dpkg-query -W -f '${Package}\\n' 'nvidia-*' 2>/dev/null | wc -l; ls /etc/security/limits.d | wc -l", name) == "0\n0"
        assert "live-restore" not in node.run("cat /etc/docker/daemon.json", name)
    text, changed, made = provision("--diff")
    # The engine is configured after its packages instead of before: one task for another.
    assert changed == announced and made == foretold, (announced, changed, set(made) ^ set(foretold))
    for name in FRESH:
        assert node.run("cat /sys/module/nvidia/version", name) == NEWEST
        assert node.run("systemctl is-active docker nvidia-fabricmanager nvidia-persistenced; systemctl is-enabled nvidia-cdi-refresh.path", name) == (
            "active\nactive\nactive\nenabled")
        assert NEWEST in node.run("cat $(ls /etc/cdi/*.yaml /var/run/cdi/*.yaml 2>/dev/null)", name), "CDI names the driver that runs now"
        assert "nvidia" in json.loads(node.run("docker info --format '{{json .Runtimes}}'", name))
    text, changed, made = provision("--diff")
    assert changed == dict.fromkeys(FRESH, 0) and made == [], text[-4000:]
    assert provision("--check", "--diff")[1] == dict.fromkeys(FRESH, 0)


def test_fabric_manager_of_another_source_is_replaced(node: Lab) -> None:
    node.install("nvidia-fabricmanager-580=580.82.07-0ubuntu1")
    result = node.packages(driver=False, headers=False, components=["fabricmanager", "nvlsm"])
    assert result["changed"], result
    assert result["transaction"]["remove"] == {"nvidia-fabricmanager-580": "580.82.07-0ubuntu1"}
    assert node.versions()["nvidia-fabricmanager"] == NEWEST + "-1"


def test_half_configured_packages_are_mended_only_when_asked(node: Lab) -> None:
    node.run("apt-mark unhold nvidia-dkms-open; mkdir -p /etc/inferops-lab; touch /etc/inferops-lab/dkms-build-fails; "
             "DEBIAN_FRONTEND=noninteractive apt-get -q -y install --reinstall nvidia-dkms-open || true")
    assert node.run("/usr/bin/dpkg-query -W -f '${db:Status-Abbrev}' nvidia-dkms-open") == "iF"
    refused = node.packages(branch="580")
    assert refused["kind"] == "broken" and "nvidia-dkms-open (half-configured)" in refused["msg"]
    failed = node.packages(branch="580", repair=True)
    assert failed["kind"] == "install" and "Bad return status for module build" in failed["msg"] and "nvidia-dkms-open" in failed["msg"]
    node.run("rm /etc/inferops-lab/dkms-build-fails")
    mended = node.packages(branch="580", repair=True)
    assert mended["changed"] and mended["broken"] == {"nvidia-dkms-open": "half-configured"}
    assert node.run("dpkg --audit") == "" and not node.packages(branch="580", repair=True)["changed"]


def test_no_room_is_seen_before_the_download(node: Lab) -> None:
    node.run("mount -t tmpfs -o size=1m tmpfs /boot")
    try:
        refused = node.packages(branch="580", version="580.95.05", downgrade=True)
        assert refused["kind"] == "space" and "not enough room for /boot: 1 MB free, 192 MB needed" in refused["msg"]
    finally:
        node.run("umount /boot")
    assert node.versions()["nvidia-open"] == NEWEST + "-1"


def test_a_repository_that_goes_away_leaves_the_node_as_it_was(node: Lab) -> None:
    before = node.versions()
    apt_repo.serve(node.settings, cut="nvidia-utils_580.95.05*", cut_after=200)
    cut = node.packages(branch="580", version="580.95.05", downgrade=True)
    assert cut["kind"] == "download" and "nothing was changed" in cut["msg"] and node.versions() == before
    assert NEWEST.replace(".", "\\.") in node.run("cat /etc/apt/preferences.d/inferops-vllm-driver"), "the pin is that of before"
    apt_repo.stop(node.settings)
    gone = node.packages(branch="580", components=["imex"])
    assert gone["kind"] == "download" and "Failed to fetch" in gone["msg"], gone
    assert not node.packages(branch="580")["changed"], "what is there needs no repository"
    assert node.versions() == before


def test_a_gpu_in_use_keeps_its_driver(node: Lab) -> None:
    apt_repo.serve(node.settings)
    costume.dress(node.settings, NODE, "b300", ["foreign_holder"])
    refused = node.packages(branch="580", version="580.95.05", downgrade=True)
    assert refused["kind"] == "in_use" and "python3" in refused["msg"]
    exchange = node.module("driver_modules", force=True)
    assert exchange["reboot_needed"] and not exchange["changed"] and "python3" in exchange["reason"]
