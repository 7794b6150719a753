# SPDX-License-Identifier: GPL-3.0-or-later
"""What a virtual machine promises, asked of each one."""

from __future__ import annotations

import json
import os
from typing import Any

INVENTORY = os.environ["LAB_INVENTORY"]
testinfra_hosts = [f"ansible://lab_machines?ansible_inventory={INVENTORY}"]


def boot_id(host: Any) -> str:
    found: str = host.check_output("cat /proc/sys/kernel/random/boot_id")
    return found


def rdma_links(host: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(host.check_output("rdma -j link"))
    return found


def test_systemd_is_the_first_process_and_nothing_failed(host: Any) -> None:
    assert host.check_output("cat /proc/1/comm") == "systemd"
    state = host.run("systemctl is-system-running --wait")
    assert state.stdout.strip() == "running", host.check_output("systemctl --failed --no-legend")


def test_the_machine_has_a_kernel_of_its_own_and_says_what_it_is(host: Any) -> None:
    assert host.check_output("systemd-detect-virt") in ("qemu", "kvm")
    assert host.file("/etc/inferops-lab/node").contains("kind=vm")


def test_the_machine_reaches_the_lab_bridge_over_the_segment(host: Any) -> None:
    mine = host.ansible.get_variables()
    assert mine["vllm_host_ip"] in host.interface(mine["vllm_interface"]).addresses
    assert host.run("ping -c 1 -W 5 10.203.77.1").rc == 0


def test_the_rdma_device_is_active(host: Any) -> None:
    (link,) = rdma_links(host)
    assert (link["state"], link["physical_state"]) == ("ACTIVE", "LINK_UP")
    assert host.file("/sys/class/infiniband/rxe0/ports/1/state").content_string.strip() == "4: ACTIVE"
    assert "PORT_ACTIVE (4)" in host.check_output("ibv_devinfo")


def test_a_reboot_comes_back_with_the_rdma_device(host: Any) -> None:
    before = boot_id(host)
    host.ansible("ansible.builtin.reboot", "reboot_timeout=300", check=False)
    assert boot_id(host) != before
    assert host.run("systemctl is-system-running --wait").stdout.strip() == "running"
    assert rdma_links(host)[0]["state"] == "ACTIVE"
