# SPDX-License-Identifier: GPL-3.0-or-later
"""Every RDMA fault that has a remedy is mended on a real kernel and stays mended; every other is explained, and nothing is touched.

The tests build on each other, in this order, on the machines that converge has mended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from .conftest import FOLDER, ROOT, Machine, remediate

testinfra_hosts = ["local://"]
MODULES = {"mlx5_core", "mlx5_ib", "ib_umad", "rdma_ucm"}
OFED_B = "25.04.OFED.25.04.0.6.1.1"
DRIVER = "580.95.05"
BUILT = f"/usr/src/nvidia-{DRIVER}/$(uname -r)"
ON_DISK = "/lib/modules/$(uname -r)/updates/dkms"
MTU = 4200


def test_the_modules_of_the_cards_were_loaded_now_and_for_every_boot(vm1: Machine, vm2: Machine) -> None:
    for machine in (vm1, vm2):
        assert machine.modules() >= MODULES, machine.name
        assert machine.loaded_at_boot() >= MODULES, machine.name
        assert machine.ok("cat /sys/class/infiniband/mlx5_0/ports/1/state") == "4: ACTIVE"
        assert ("rdma_modules", "mended") in machine.history()


def test_peermem_was_loaded_where_it_fits_and_left_alone_where_a_driver_would_have_to_change(vm1: Machine, vm2: Machine) -> None:
    assert "nvidia_peermem" in vm1.modules() & vm1.loaded_at_boot()
    assert vm1.history().count(("peermem_load", "mended")) == 1
    assert "nvidia_peermem" not in vm2.modules() | vm2.loaded_at_boot()
    assert not {remedy for remedy, _outcome in vm2.history()} & {"peermem_load", "peermem_rebuild"}


def test_services_may_lock_memory(vm1: Machine, vm2: Machine) -> None:
    for machine in (vm1, vm2):
        assert machine.ok("systemctl show --value --property=DefaultLimitMEMLOCK") == "infinity"


def test_the_fallback_is_refused_while_one_machine_lacks_peermem(vm1: Machine) -> None:
    # What a program hears as errno 524 stands there in the driver's words.
    assert "dma-buf attach failed" in vm1.ok("dmesg"), "the first machine met errno 524"
    by_name = remediate("fallback-early", remediate_remedy="dmabuf_off")
    for node in ("vm1", "vm2"):
        step = by_name.document["nodes"][node]["steps"][0]
        assert (step["kind"], step["remedy"]) == ("forbidden", "dmabuf_off")
        assert "needs nvidia_peermem loaded on every node of the engine" in step["why"]
    assert by_name.document["rounds"] == []
    failed = {"failed": True, "class": "rdma_registration", "first_failure": {"node": "vm1", "text": "mlx5dv_reg_dmabuf_mr failed with errno 524"}}
    diagnosed = remediate("fallback-diagnosis", "--check", remediate_diagnosis={"schema": "inferops.vllm/diagnosis/1", "cases": [failed]})
    step = diagnosed.step("vm1", "rdma_registration")
    assert step["kind"] == "person" and "Another node of the engine lacks nvidia_peermem" in step["why"]


def test_port_mtu_and_build_are_mended_in_one_run(vm1: Machine, vm2: Machine) -> None:
    vm1.ok(f"ip link set dev eth0 mtu {MTU} && ip link set dev eth0 down")
    assert vm1.ok("cat /sys/class/infiniband/mlx5_0/ports/1/state") == "1: DOWN"
    answer = remediate("port-mtu-build", rdma_mtu=MTU, remediate_allow=["driver"])
    assert answer.rc == 0, answer.text[-3000:]
    assert sorted(answer.done()) == [("peermem_rebuild", "vm2", True), ("port_up", "vm1", True), ("rdma_mtu", "vm2", True)]
    assert "UP" in vm1.interface()["flags"] and vm1.ok("cat /sys/class/infiniband/mlx5_0/ports/1/state") == "4: ACTIVE"
    assert [machine.interface()["mtu"] for machine in (vm1, vm2)] == [MTU, MTU]
    assert vm2.ok("systemctl is-enabled inferops-vllm-rdma-net.service") == "enabled"
    assert "nvidia_peermem" in vm2.modules() & vm2.loaded_at_boot()
    assert vm2.ok("cat /sys/module/nvidia_peermem/version") == DRIVER


def test_a_second_run_changes_nothing(vm1: Machine, vm2: Machine) -> None:
    before = [machine.history() for machine in (vm1, vm2)]
    answer = remediate("second", rdma_mtu=MTU, remediate_allow=["driver"])
    assert answer.rc == 0 and answer.document["rounds"] == [] and answer.document["outcome"] == "healthy", answer.text[-3000:]
    assert "changed=0" in answer.text and "changed=1" not in answer.text
    assert [machine.history() for machine in (vm1, vm2)] == before


def test_all_of_it_is_there_after_a_reboot(vm1: Machine, vm2: Machine) -> None:
    boots = {machine.name: machine.ok("cat /proc/sys/kernel/random/boot_id") for machine in (vm1, vm2)}
    for machine in (vm1, vm2):
        machine.host.run("systemd-run --on-active=1 systemctl reboot")
    for machine in (vm1, vm2):
        until = time.monotonic() + 400
        while machine.settled() in ("", boots[machine.name]):
            assert time.monotonic() < until, machine.name
            time.sleep(2)
    for machine in (vm1, vm2):
        assert machine.modules() >= MODULES | {"nvidia_peermem"}, machine.name
        assert machine.ok("cat /sys/class/infiniband/mlx5_0/ports/1/state") == "4: ACTIVE"
    # The first machine's MTU was set by hand and went; the second's was declared.
    assert [machine.interface()["mtu"] for machine in (vm1, vm2)] == [1500, MTU]


def test_the_fallback_now_waits_for_a_release_alone() -> None:
    answer = remediate("fallback-late", "--check", remediate_remedy="dmabuf_off")
    for node in ("vm1", "vm2"):
        assert "No release of this collection stands on the node" in answer.document["nodes"][node]["steps"][0]["why"]


def test_invalid_argument_is_foreseen_explained_and_leaves_nothing_behind(vm2: Machine) -> None:
    """The module has no peer memory, nor has the RDMA core."""
    vm2.ok(f"modprobe -r nvidia_peermem mlx_compat && mv {ON_DISK}/mlx_compat.ko /root/ && cp {BUILT}/inbox/nvidia-peermem.ko {ON_DISK}/ && depmod && "
           "rm /etc/modules-load.d/inferops-vllm-nvidia_peermem.conf")
    step = remediate("einval", "--check", "--limit", "vm2").step("vm2", "gpudirect.peermem")
    assert step["kind"] == "person" and "Invalid argument" in step["why"] and "use dma-buf" in step["why"]
    forced = remediate("einval-forced", "--limit", "vm2", remediate_remedy="peermem_load")
    assert forced.document["rounds"][0]["outcomes"]["vm2"]["why"].startswith("nvidia_peermem was built without the peer memory interface")
    assert vm2.history()[-1] == ("peermem_load", "undone")
    assert "nvidia_peermem" not in vm2.modules() | vm2.loaded_at_boot()
    again = remediate("einval-again", "--check", "--limit", "vm2", remediate_remedy="peermem_load")
    assert again.document["nodes"]["vm2"]["steps"][0]["kind"] == "given_up", "tried once today"


def test_a_symbol_that_is_missing_is_not_built_for(vm2: Machine) -> None:
    """The module was built for the vendor's RDMA core, and another one runs; building it anew would help nobody."""
    vm2.ok(f"cp {BUILT}/ofed-a/nvidia-peermem.ko {ON_DISK}/ && depmod")
    refused = vm2.host.run("modprobe nvidia_peermem")
    assert "Unknown symbol" in refused.stderr
    vm2.ok("echo '<4>mlx5_0: mlx5dv_reg_dmabuf_mr failed with errno 524' > /dev/kmsg")
    answer = remediate("symbol", "--check", "--limit", "vm2", remediate_allow=["driver", "reboot", "kill"])
    step = answer.step("vm2", "gpudirect.peermem")
    assert step["kind"] == "person" and "build DOCA-OFED's modules for this kernel" in step["why"]


def test_versions_that_disagree_are_mended_by_building_where_that_is_allowed(vm2: Machine) -> None:
    vm2.ok(f"mv /root/mlx_compat.ko {ON_DISK}/ && depmod && DEBIAN_FRONTEND=noninteractive apt-get -qq install mlnx-ofed-kernel-dkms={OFED_B}-1")
    refused = vm2.host.run("modprobe mlx_compat && modprobe nvidia_peermem")
    assert "Invalid argument" in refused.stderr and "disagrees about version" in vm2.ok("dmesg")
    answer = remediate("disagrees", "--check", "--limit", "vm2")
    step = answer.step("vm2", "gpudirect.peermem")
    assert (step["kind"], step["remedy"]) == ("not_allowed", "peermem_rebuild") and "remediate_allow: [driver]" in step["why"]
    mended = remediate("disagrees-mended", "--limit", "vm2", remediate_allow=["driver"])
    assert mended.done() == [("peermem_rebuild", "vm2", True)], mended.text[-3000:]
    assert "nvidia_peermem" in vm2.modules() & vm2.loaded_at_boot()


def test_what_carries_ssh_is_never_changed(vm1: Machine, vm2: Machine) -> None:
    vm1.ok(f"ip link set dev eth0 mtu {MTU}")
    vm2.ok("echo mlx5_0 eth1 > /etc/inferops-lab/hcas && rdma link delete mlx5_0 && /usr/local/lib/inferops-lab/hcas")
    before = vm2.ok("ip -json link show eth1; ls /etc/modules-load.d /etc/systemd/system")
    answer = remediate("ssh", rdma_mtu=MTU)
    step = answer.step("vm2", "rdma.mtu")
    assert (step["kind"], step["remedy"]) == ("forbidden", "rdma_mtu") and "SSH or the default route runs over a compute HCA" in step["why"]
    assert answer.document["rounds"] == []
    for arguments in ({"state": "down", "name": ["eth1"]}, {"mtu": MTU, "name": ["eth1"]}):
        argv = [str(Path(sys.executable).with_name("ansible")), "vm2", "-i", os.environ["LAB_INVENTORY"], "-m", "inferops.vllm.rdma_netdev"]
        done = subprocess.run([*argv, "-a", json.dumps(arguments)], capture_output=True, text=True, check=False,
                              env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")})
        assert "carries SSH or the default route" in done.stdout
    assert vm2.ok("ip -json link show eth1; ls /etc/modules-load.d /etc/systemd/system") == before


def test_the_evidence_of_what_was_changed_was_frozen_first() -> None:
    for run, machines in (("port-mtu-build", {"vm1", "vm2"}), ("disagrees-mended", {"vm2"})):
        assert {path.name.split(".")[0] for path in (FOLDER / "runs" / run / "evidence").rglob("*.tar.gz")} == machines
    assert not (FOLDER / "runs" / "ssh" / "evidence").exists(), "where nothing is changed, nothing is frozen"
