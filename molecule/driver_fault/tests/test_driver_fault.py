# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of drivers, in order: planted, refused by name or mended, and looked at on the node itself."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from .conftest import remediate, repository, took

testinfra_hosts = ["local://"]
NEWEST = "580.126.20"
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 --allow-downgrades --allow-change-held-packages install "


def packages(host: Any) -> dict[str, str]:
    """Driver packages that are whole, with their versions."""
    rows = host.check_output("/usr/bin/dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n' 'nvidia-*' 'libnvidia-compute'").splitlines()
    return {row.split()[0]: row.split()[1] for row in rows if row.split()[-1] in ("ii", "hi")}


def loaded(host: Any) -> str:
    text: str = host.check_output("cat /sys/module/nvidia/version")
    return text.strip()


def journal(host: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.check_output("cat /var/lib/inferops-vllm/remediation.json"))
    assert found["current"] is None, "nothing is left under way"
    return found


def last(host: Any) -> tuple[str, str]:
    entry = journal(host)["history"][-1]
    return entry["remedy"], entry["outcome"]


def test_without_the_word_nothing_happens(nodes: dict[str, Any]) -> None:
    before = {name: packages(nodes[name]) for name in ("node1", "node2")}
    assert before["node1"]["nvidia-open"] == "575.57.08-1"
    run = remediate("node1,node2")
    assert run.rc == 2 and "needs remediate_allow: [driver]" in run.words and run.report["rounds"] == []
    for name in ("node1", "node2"):
        assert packages(nodes[name]) == before[name] and loaded(nodes[name]) == "575.57.08"
        assert not nodes[name].file("/var/lib/inferops-vllm/remediation.json").exists


def test_pins_and_holds_are_named_and_left_alone(nodes: dict[str, Any]) -> None:
    nodes["node1"].check_output("apt-mark hold nvidia-dkms-open")
    run = remediate("node1,node2", "driver")
    took("575 with a pin, another node with a hold: refused", run)
    assert run.rc == 2
    assert "held: nvidia-dkms-open" in run.words and "/etc/apt/preferences.d/nvidia-driver-pinning-575 keeps" in run.words
    for name in ("node1", "node2"):
        assert packages(nodes[name])["nvidia-open"] == "575.57.08-1" and loaded(nodes[name]) == "575.57.08"
        assert last(nodes[name]) == ("driver_upgrade", "refused")
        assert nodes[name].check_output("ls /etc/apt/preferences.d") == "nvidia-driver-pinning-575"


def test_no_room_and_no_repository_leave_the_node_as_it_was(nodes: dict[str, Any]) -> None:
    nodes["node1"].check_output("apt-get clean")
    nodes["node2"].check_output("mount -t tmpfs -o size=1m tmpfs /boot")
    repository("--cut", "nvidia-utils_580*", "--cut-after", "200")
    try:
        run = remediate("node1,node2", "driver", driver_unhold=True)
    finally:
        repository()
        nodes["node2"].check_output("umount /boot")
    took("full disk, another node with a repository that goes away: refused", run)
    assert run.rc == 2
    assert "not enough room for /boot" in run.words and "could not be fetched, nothing was changed" in run.words
    for name in ("node1", "node2"):
        assert packages(nodes[name])["nvidia-open"] == "575.57.08-1" and loaded(nodes[name]) == "575.57.08"
        assert nodes[name].check_output("/usr/bin/dpkg --audit") == "" and last(nodes[name]) == ("driver_upgrade", "refused")
        assert nodes[name].check_output("ls /etc/apt/preferences.d") == "nvidia-driver-pinning-575"


def test_the_upgrade_is_carried_through(nodes: dict[str, Any]) -> None:
    run = remediate("node1,node2", "driver", driver_unhold=True)
    took("575 → 580 with pins and a hold, two nodes", run)
    assert run.rc == 0, run.text[-3000:]
    for name in ("node1", "node2"):
        host = nodes[name]
        assert run.remedies(name) == [("driver_upgrade", True)]
        versions = packages(host)
        assert set(versions.values()) <= {NEWEST + "-1", "580-1"} and versions["nvidia-fabricmanager"] == NEWEST + "-1", versions
        assert loaded(host) == NEWEST and host.check_output("/usr/bin/dpkg --audit") == ""
        assert host.check_output("systemctl is-active nvidia-fabricmanager nvidia-persistenced") == "active\nactive"
        assert "nvidia_peermem" in host.check_output("lsmod"), "what was loaded beside the driver is loaded again"
        assert last(host) == ("driver_upgrade", "mended")
    assert nodes["node1"].check_output("apt-mark showhold") == "nvidia-dkms-open", "the hold is back"


def test_a_second_run_changes_nothing(nodes: dict[str, Any]) -> None:
    run = remediate("node1,node2", "driver", "reboot", "kill")
    assert run.rc == 0 and run.report["rounds"] == [], run.text[-3000:]
    assert (run.changed("node1"), run.changed("node2")) == (0, 0)


def test_a_state_file_that_is_stale_or_foreign_is_refused_until_it_is_forgotten(nodes: dict[str, Any]) -> None:
    """Node 1 has another machine's, node 2 a remedy that was left under way last month; both have a Fabric Manager that was stopped."""
    path = "/var/lib/inferops-vllm/remediation.json"
    for name in ("node1", "node2"):
        state = journal(nodes[name])
        if name == "node1":
            state["machine"] = "0123456789abcdef0123456789abcdef"
        else:
            state["current"] = {"remedy": "driver_upgrade", "problems": [], "run": "x", "started": time.time() - 30 * 86400, "phase": "applying", "details": {}}
        nodes[name].check_output("systemctl stop nvidia-fabricmanager && printf '%%s' %s > %s", json.dumps(state), path)
    run = remediate("node1,node2", "driver")
    assert run.rc == 2 and run.report["rounds"] == []
    assert "The state file belongs to another machine; look at " + path in run.words
    assert "The remedy driver_upgrade was left under way 30 days ago" in run.words and "remediate_forget=true" in run.words
    for name in ("node1", "node2"):
        assert nodes[name].run("systemctl is-active nvidia-fabricmanager").stdout.strip() != "active", "nothing was done"
    again = remediate("node1,node2", "driver", remediate_forget=True)
    assert again.rc == 0, again.text[-3000:]
    for name in ("node1", "node2"):
        assert again.remedies(name) == [("fabric_start", True)] and last(nodes[name]) == ("fabric_start", "mended")
        assert nodes[name].check_output("systemctl is-active nvidia-fabricmanager") == "active"
        assert nodes[name].file(path + ".forgotten").exists


def test_half_configured_packages_and_a_foreign_fabric_manager(nodes: dict[str, Any]) -> None:
    broken, other = nodes["node1"], nodes["node2"]
    broken.check_output("apt-mark unhold nvidia-dkms-open; mkdir -p /etc/inferops-lab; touch /etc/inferops-lab/dkms-build-fails; "
                        "DEBIAN_FRONTEND=noninteractive apt-get -q -y install --reinstall nvidia-dkms-open || true; rm /etc/inferops-lab/dkms-build-fails")
    assert broken.check_output("/usr/bin/dpkg-query -W -f '${db:Status-Abbrev}' nvidia-dkms-open").strip() == "iF"
    other.check_output("rm -f /etc/apt/preferences.d/inferops-vllm-driver; " + INSTALL + "nvidia-fabricmanager-580=580.82.07-0ubuntu1; "
                       "systemctl restart nvidia-fabricmanager || true")
    before = packages(other)
    silent = remediate("node1,node2")
    assert silent.report["rounds"] == [] and packages(other) == before
    assert broken.check_output("/usr/bin/dpkg-query -W -f '${db:Status-Abbrev}' nvidia-dkms-open").strip() == "iF"
    run = remediate("node1,node2", "driver", driver_unhold=True)
    took("half-configured dpkg, another node with a Fabric Manager of another version", run)
    assert run.rc == 0, run.text[-3000:]
    assert run.remedies("node1") == [("driver_repair", True)] and broken.check_output("/usr/bin/dpkg --audit") == ""
    # A kernel without a list of its modules does not show ib_umad, so that the remedy cannot be proven there by facts.
    assert run.remedies("node2") == [("fabric_packages", Path("/proc/modules").exists())]
    assert packages(other)["nvidia-fabricmanager"] == NEWEST + "-1" and "nvidia-fabricmanager-580" not in packages(other)
    assert other.check_output("systemctl is-active nvidia-fabricmanager") == "active" and loaded(other) == NEWEST


def test_a_kernel_without_headers_gets_them_and_the_driver(nodes: dict[str, Any]) -> None:
    host = nodes["vm1"]
    assert host.check_output("dpkg-query -W -f '${db:Status-Abbrev}' nvidia-dkms-open").strip() == "iF"
    assert not host.file("/sys/module/nvidia").exists
    kernels = host.check_output("ls /boot")
    run = remediate("vm1", "driver", name="remediate", remediate_areas=["driver"])
    took("kernel without headers, dpkg half configured, driver not loaded (virtual machine)", run)
    assert run.rc == 0, run.text[-3000:]
    assert all(mended for _remedy, mended in run.remedies("vm1"))
    assert host.check_output("dpkg --audit") == "" and host.check_output("ls /boot") == kernels, "no other kernel"
    assert host.check_output("uname -r") in host.check_output("dpkg-query -W -f '${Package}\\n' 'linux-headers-*'")
    assert loaded(host) == host.check_output("modinfo -F version nvidia") == "580.95.05"


def test_a_driver_in_use_is_exchanged_by_a_reboot_alone(nodes: dict[str, Any]) -> None:
    host = nodes["vm1"]
    host.check_output("rm -f /etc/apt/preferences.d/inferops-vllm-driver")
    host.check_output("systemd-run --quiet --unit=holder sh -c 'exec sleep 36000 < /dev/nvidia0'; sleep 1; test -e /dev/nvidia0")
    words = " ".join(f"{name}={NEWEST}-1" for name in packages(host) if packages(host)[name] == "580.95.05-1")
    host.check_output(INSTALL + words)
    boot = host.check_output("cat /proc/sys/kernel/random/boot_id")
    assert (loaded(host), host.check_output("modinfo -F version nvidia")) == ("580.95.05", NEWEST)
    refused = remediate("vm1", "driver", name="remediate", remediate_areas=["driver"])
    assert refused.rc == 2 and "needs remediate_allow: [reboot]" in refused.words
    assert host.check_output("cat /proc/sys/kernel/random/boot_id") == boot and host.check_output("systemctl is-active holder") == "active"
    run = remediate("vm1", "driver", "reboot", name="remediate", remediate_areas=["driver"])
    took("driver of another version than the libraries, in use: a real reboot (virtual machine)", run)
    assert run.rc == 0, run.text[-3000:]
    assert run.remedies("vm1") == [("driver_activate", True)]
    assert host.check_output("cat /proc/sys/kernel/random/boot_id") != boot
    assert loaded(host) == host.check_output("modinfo -F version nvidia") == NEWEST
    again = remediate("vm1", "driver", "reboot", "kill", name="remediate", remediate_areas=["driver"])
    assert again.rc == 0 and again.changed("vm1") == 0
