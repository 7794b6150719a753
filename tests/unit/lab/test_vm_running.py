# SPDX-License-Identifier: GPL-3.0-or-later
"""A real machine: RDMA device, modules that load and refuse, an upgrade of the driver, a reboot.

Asked for with `pytest -m lab tests/unit/lab/test_vm_running.py` (root, qemu; four minutes on an idle
machine of two cores, and four more when the image and the packages are not in the cache yet). The tests build on each
other, in this order, on one machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.lab import apt_repo, vm
from tests.lab.settings import Settings
from tests.unit.lab import own

NAME = "vm9"
pytestmark = pytest.mark.lab


class Machine:
    """Shell commands on the machine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def run(self, command: str, *, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
        return vm.ssh(self.settings, NAME, command, timeout=timeout, check=False)

    def ok(self, command: str, *, timeout: float = 240.0) -> str:
        done = self.run(command, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def apt(self, words: str) -> subprocess.CompletedProcess[str]:
        return self.run(f"DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 {words}", timeout=400)

    def reboot(self) -> float:
        return vm.reboot(self.settings, NAME)


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    own.wanted(request, "runs a virtual machine for minutes", vm.missing)
    settings = Settings.from_environment()
    with own.virtual_machine(settings, NAME):
        yield Machine(settings)


def test_machine_is_a_machine(machine: Machine) -> None:
    assert machine.ok("cat /proc/1/comm; systemctl is-system-running --wait") == "systemd\nrunning"
    assert "kind=vm" in machine.ok("cat /etc/inferops-lab/node")


def test_rdma_device_is_active(machine: Machine) -> None:
    (link,) = vm.rxe(machine.settings, NAME)
    assert (link["ifname"], link["state"], link["physical_state"], link["netdev"]) == ("rxe0", "ACTIVE", "LINK_UP", "eth0")
    assert "PORT_ACTIVE (4)" in machine.ok("ibv_devinfo")
    assert machine.ok("cat /sys/class/infiniband/rxe0/ports/1/state") == "4: ACTIVE"


def test_driver_without_headers_is_left_half_configured(machine: Machine) -> None:
    done = machine.apt(f"install {pinned('575.57.08')}")
    assert done.returncode == 100
    assert "Your kernel headers for kernel" in done.stdout + done.stderr
    assert "exit status 10" in done.stdout + done.stderr
    assert machine.ok("dpkg-query -W -f '${db:Status-Abbrev}' nvidia-dkms-open").strip() == "iF"
    assert machine.run("nvidia-smi").returncode == 9


def pinned(version: str) -> str:
    names = ["nvidia-open", "nvidia-dkms-open", "nvidia-kernel-common", "libnvidia-compute"]
    names += ["nvidia-utils", "nvidia-modprobe", "nvidia-persistenced"]
    return " ".join(f"{name}={version}-1" for name in names)


def test_headers_mend_it(machine: Machine) -> None:
    assert machine.apt("install linux-headers-amd64").returncode == 0
    assert machine.ok("dpkg-query -W -f '${db:Status-Abbrev}' nvidia-dkms-open").strip() == "ii"
    assert "nvidia/575.57.08" in machine.ok("dkms status")


def test_modules_load_and_refuse_in_the_words_of_the_real_ones(machine: Machine) -> None:
    machine.ok("modprobe nvidia")
    text = machine.ok("cat /proc/driver/nvidia/version")
    assert text.startswith("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (")
    assert machine.ok("cat /sys/module/nvidia/version") == "575.57.08"
    assert machine.ok("modinfo -F license nvidia") == "Dual MIT/GPL"
    assert "stand-in" in machine.ok("modinfo -F description nvidia")
    machine.ok("dmesg --clear")
    refused = machine.run("modprobe nvidia_peermem")
    assert refused.returncode == 1
    assert refused.stderr.strip() == "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument"
    assert "peermem" not in machine.ok("dmesg")


def test_peermem_loads_with_the_vendors_rdma_stack(machine: Machine) -> None:
    assert machine.apt("install mlnx-ofed-kernel-dkms=24.10.OFED.24.10.1.1.4.1-1").returncode == 0
    assert machine.run("modprobe nvidia_peermem").returncode == 1, "built before the stack was there"
    machine.ok("dkms remove -m nvidia -v 575.57.08 --all; dkms install -m nvidia -v 575.57.08")
    machine.ok("modprobe nvidia_peermem")
    assert machine.ok("cat /sys/module/nvidia_peermem/version") == "575.57.08"
    assert machine.ok("grep -c ' ib_register_peer_memory_client' /proc/kallsyms") != "0"
    assert machine.run("modprobe -r nvidia").returncode != 0, "a module that another needs does not go"
    machine.ok("modprobe -r nvidia_peermem")


def test_peermem_lacks_a_symbol_or_disagrees_about_it(machine: Machine) -> None:
    kernel = machine.ok("uname -r")
    machine.ok("modprobe -r mlx_compat; dmesg --clear")
    machine.ok(f"mv /lib/modules/{kernel}/updates/dkms/mlx_compat.ko /root/ && depmod")
    refused = machine.run("modprobe nvidia_peermem")
    assert "Unknown symbol in module, or unknown parameter (see dmesg)" in refused.stderr
    assert "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)" in machine.ok("dmesg")
    machine.ok(f"mv /root/mlx_compat.ko /lib/modules/{kernel}/updates/dkms/ && depmod && dmesg --clear")
    assert machine.apt("install mlnx-ofed-kernel-dkms=25.04.OFED.25.04.0.6.1.1-1").returncode == 0
    refused = machine.run("modprobe nvidia_peermem")
    assert "Invalid argument" in refused.stderr
    assert "disagrees about version of symbol ib_register_peer_memory_client" in machine.ok("dmesg")


def test_pin_and_hold_decide_what_an_upgrade_does(machine: Machine) -> None:
    def candidate() -> str:
        text = machine.ok("apt-cache policy nvidia-open")
        return text.split("Candidate: ")[1].split()[0]

    assert candidate().startswith("590.")
    assert machine.apt("install nvidia-driver-pinning-580").returncode == 0
    assert candidate() == "580.126.20-1"
    machine.ok("apt-mark hold nvidia-dkms-open")
    done = machine.apt("install nvidia-open")
    assert done.returncode == 100
    assert "held" in (done.stdout + done.stderr).lower()
    machine.ok("apt-mark unhold nvidia-dkms-open")


def test_upgrade_is_a_mismatch_until_the_reboot(machine: Machine) -> None:
    machine.ok("systemctl is-active nvidia-persistenced || systemctl start nvidia-persistenced")
    assert machine.apt("install nvidia-open nvidia-fabricmanager nvidia-container-toolkit").returncode == 0
    assert machine.ok("cat /sys/module/nvidia/version") == "575.57.08"
    assert machine.ok("modinfo -F version nvidia") == "580.126.20"
    done = machine.run("nvidia-smi")
    assert done.returncode == 18
    assert done.stdout.startswith("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126")
    assert machine.run("systemctl start nvidia-fabricmanager; sleep 2; systemctl is-active nvidia-fabricmanager").stdout.strip() == "failed"
    log = machine.ok("cat /var/log/fabricmanager.log")
    assert "interface version 580.126.20 don't match with driver version 575.57.08" in log
    machine.ok("systemctl enable nvidia-fabricmanager")
    machine.reboot()
    assert machine.ok("cat /sys/module/nvidia/version") == "580.126.20"
    assert "Driver Version: 580.126.20" in machine.ok("nvidia-smi")
    assert machine.ok("systemctl is-active nvidia-fabricmanager nvidia-persistenced") == "active\nactive"
    assert "libcuda.so.580.126.20" in machine.ok("cat /var/run/cdi/nvidia.yaml")
    assert machine.ok("systemctl is-system-running --wait") == "running"
    (link,) = vm.rxe(machine.settings, NAME)
    assert link["state"] == "ACTIVE"


def test_repository_that_goes_away_is_an_error_and_not_a_wait(machine: Machine) -> None:
    apt_repo.serve(machine.settings, cut="nvidia-imex_580.126.20*", cut_after=200)
    done = machine.apt("install nvidia-imex")
    assert done.returncode == 100
    assert "Failed to fetch" in done.stdout + done.stderr
    apt_repo.stop(machine.settings)
    assert machine.apt("install nvlsm").returncode == 100
    apt_repo.serve(machine.settings)
    assert machine.apt("install nvlsm").returncode == 0


def test_machine_comes_back_after_the_plug_is_pulled(machine: Machine) -> None:
    machine.ok("echo kept > /root/kept && sync")
    vm.stop(machine.settings, NAME, hard=True)
    assert not vm.status(machine.settings)[NAME]["running"]
    vm.start(machine.settings, NAME)
    vm.wait(machine.settings, NAME)
    assert machine.ok("cat /root/kept") == "kept"
