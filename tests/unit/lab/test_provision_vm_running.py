# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver and modules on a real kernel: install, exchange under use and without, modules that load, refuse and persist.

Asked for with `pytest -m lab tests/unit/lab/test_provision_vm_running.py` (root, qemu; two minutes on an idle machine of two cores once the
image and the packages are in the cache). The tests build on each other, in this order, on one machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import vm
from tests.lab.settings import REPOSITORY, Settings
from tests.unit.lab import own

NAME = "vm8"
pytestmark = pytest.mark.lab


class Machine:
    """The machine, changed through Ansible and looked at without it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def ok(self, command: str) -> str:
        done = vm.ssh(self.settings, NAME, command, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def module(self, name: str, /, *options: str, **arguments: Any) -> dict[str, Any]:
        config = vm.folder(self.settings, NAME) / "ssh_config"
        argv = [str(Path(sys.executable).with_name("ansible")), "-i", NAME + ",", "-u", "root", "-T", "120", f"--ssh-common-args=-F {config}"]
        argv += [NAME, "-m", "inferops.vllm." + name, "-e", "ansible_python_interpreter=/usr/bin/python3", *options]
        argv += ["-a", json.dumps(arguments)] if arguments else []
        env = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
        done = subprocess.run(argv, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
        found = re.search(r"(?:SUCCESS|CHANGED|FAILED!) => (\{.*\})", done.stdout, re.S)
        assert found, done.stdout + done.stderr
        result: dict[str, Any] = json.loads(found.group(1))
        return result


@pytest.fixture(scope="module")
def box(request: pytest.FixtureRequest) -> Iterator[Machine]:
    own.wanted(request, "runs a virtual machine for minutes", vm.missing)
    settings = Settings.from_environment()
    with own.virtual_machine(settings, NAME):
        yield Machine(settings)


def test_the_driver_is_built_for_the_running_kernel(box: Machine) -> None:
    result = box.module("driver_packages", branch="580", version="580.95.05")
    kernel = box.ok("uname -r")
    assert result["changed"] and "linux-headers-" + kernel in result["transaction"]["install"]
    assert box.ok("modinfo -F version nvidia; dpkg --audit; ls /boot/vmlinuz-*") == f"580.95.05\n/boot/vmlinuz-{kernel}"
    # The package of the persistence daemon may have loaded it already.
    loaded = box.module("driver_modules")
    assert loaded["loaded"] == "580.95.05" and not loaded["reboot_needed"]
    assert box.ok("cat /sys/module/nvidia/version") == "580.95.05"
    box.ok("systemctl start nvidia-persistenced")


def test_peermem_says_why_it_refuses_before_and_after_it_is_tried(box: Machine) -> None:
    expected = box.module("kernel_module", "--check", name=["nvidia_peermem"], persistent=True)
    # Foretold from what the module links to: the driver was built where no vendor's RDMA stack was.
    assert expected["failed_modules"][0]["kind"] == "expected" and "loading gives Invalid argument: use dma-buf" in expected["msg"]
    refused = box.module("kernel_module", name=["nvidia_peermem"], persistent=True)
    assert refused["failed_modules"][0]["kind"] == "no_peer_symbols" and "use dma-buf" in refused["msg"]
    assert "nvidia_peermem" not in box.ok("cat /etc/modules-load.d/*.conf /proc/modules || true")


def test_peermem_loads_and_persists_beside_the_vendors_rdma_stack(box: Machine) -> None:
    box.ok("apt-get -q -y install mlnx-ofed-kernel-dkms=24.10.OFED.24.10.1.1.4.1-1 && dkms remove -m nvidia -v 580.95.05 --all && "
           "dkms install -m nvidia -v 580.95.05")
    done = box.module("kernel_module", name=["nvidia_peermem", "ib_umad"], persistent=True)
    assert done["changed"] and done["loaded"] == ["nvidia_peermem", "ib_umad"]
    assert box.ok("cat /sys/module/nvidia_peermem/version") == "580.95.05"
    assert box.ok("grep -hv '^#' /etc/modules-load.d/inferops-vllm-*.conf") == "ib_umad\nnvidia_peermem"
    assert not box.module("kernel_module", name=["nvidia_peermem", "ib_umad"], persistent=True)["changed"]
    # A machine that boots loads them by just this service.
    box.ok("modprobe -r nvidia_peermem && systemctl restart systemd-modules-load && test -e /sys/module/nvidia_peermem")


def test_a_driver_in_use_waits_for_a_reboot_and_a_free_one_is_exchanged(box: Machine) -> None:
    assert box.module("driver_packages", branch="580", update=True)["version"] == "580.126.20"
    box.ok("systemd-run --quiet --unit=holder sh -c 'exec sleep 3600 < /dev/nvidia0'; sleep 1; test -e /dev/nvidia0")
    held = box.module("driver_modules")
    assert held["reboot_needed"] and not held["changed"] and "holder.service" in held["reason"]
    assert box.ok("cat /sys/module/nvidia/version") == "580.95.05"
    box.ok("systemctl stop holder; modprobe -r nvidia_peermem")
    free = box.module("driver_modules")
    assert free["changed"] and free["loaded"] == "580.126.20", free
    assert box.ok("cat /sys/module/nvidia/version; systemctl is-active nvidia-persistenced") == "580.126.20\nactive"
    assert not box.module("driver_modules")["changed"]
