# SPDX-License-Identifier: GPL-3.0-or-later
"""A dressed container node read over SSH by the real collectors and judged by the real playbook.

Asked for with `pytest -m lab tests/unit/lab/test_costume_running.py` (root; two minutes once the root file
system is in the cache). Does not touch a lab that is up already.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.node import collect
from tests.lab import apt_repo, costume, vm
from tests.lab.errors import LabError
from tests.lab.settings import Settings
from tests.unit.lab import own

NODE = "node1"
SECTIONS = ("driver", "gpu", "fabric", "rdma", "gpudirect")
# What differs between a recording and processes that really run.
VOLATILE = {"pid", "main_pid", "since", "restarts"}
# What a container node of the lab really lacks, whatever it wears.
LACKS = {"storage.weights", "image.digest", "host.shm", "host.time", "host.pending_reboot", "image.known_trouble"}

pytestmark = pytest.mark.lab


class Lab:
    """One container node, and what is asked of it."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder

    def run(self, command: str) -> str:
        return costume.run(self.settings, costume.find(self.settings, NODE), command)

    def dress(self, *faults: str, sticky: tuple[str, ...] = ()) -> None:
        costume.dress(self.settings, NODE, "b300", (*faults, *sticky), sticky=sticky)

    def reboot(self) -> None:
        costume.reboot(self.settings, NODE)

    def facts(self) -> dict[str, Any]:
        done = own.ansible(self.settings, "ansible", NODE, "-m", "inferops.vllm.node_facts", "-a", "timeout=4", "-t", str(self.folder / "facts"))
        assert done.returncode == 0, done.stdout
        found: dict[str, Any] = json.loads((self.folder / "facts" / NODE).read_text(encoding="utf-8"))["ansible_facts"]["vllm_node"]
        return found

    def failing(self) -> tuple[str, set[str]]:
        """Verdict of the node, and what fails or is unknown beyond what every container lacks."""
        report = self.folder / "reports"
        options = ["preflight_fail_on=never", "preflight_timeout=4", f"preflight_report_dir={report}"]
        done = own.ansible(self.settings, "ansible-playbook", "inferops.vllm.preflight", *(word for option in options for word in ("-e", option)))
        assert done.returncode == 0, done.stdout
        read = json.loads((report / "preflight.json").read_text(encoding="utf-8"))
        bad = {finding["id"] for finding in read["findings"] if finding["status"] in ("fail", "unknown", "warn")}
        return read["nodes"][NODE]["verdict"], bad - LACKS - self.unseen()

    @staticmethod
    def unseen() -> set[str]:
        """A kernel without loadable modules has no /proc/modules, and no costume can make it up."""
        return set() if Path("/proc/modules").exists() else {"fabric.nvlsm"}


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    settings = own.asked(request, "boots a node for minutes")
    with own.nodes(settings):
        yield Lab(settings, tmp_path_factory.mktemp("costume"))


def plain(value: Any) -> Any:
    """Facts without what is different every time."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in VOLATILE}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_a_healthy_costume_reads_over_ssh_as_it_was_made(node: Lab) -> None:
    node.dress()
    live = node.facts()
    made = collect.gather(costume.clothes(costume.state(node.settings, NODE), live["host"]["kernel"]).reader(), collect.Options())
    assert live["collected"]["recorded"] is False and live["collected"]["costume"] == "b300"
    for section in SECTIONS:
        assert plain(live[section]) == plain(made[section]), section
    assert live["host"]["addresses"]["rdma0"] == ["198.51.100.1/24"]
    assert node.failing() == ("blocked", set())


def test_an_old_driver_blocks(node: Lab) -> None:
    node.dress("driver_r575")
    assert node.facts()["driver"]["loaded"] == "575.57.08"
    assert node.failing() == ("blocked", {"driver.branch"})


def test_a_lost_gpu_comes_back_with_a_reboot(node: Lab) -> None:
    node.dress("gpu_lost")
    facts = node.facts()
    assert (len(facts["gpu"]["gpus"]), facts["gpu"]["fallen"]) == (7, ["0000:dd:00.0"])
    verdict, failing = node.failing()
    assert verdict == "blocked" and {"gpu.count", "gpu.xid"} <= failing
    node.reboot()
    assert (len(node.facts()["gpu"]["gpus"]), node.failing()) == (8, ("blocked", set()))


def test_a_sticky_fault_stays(node: Lab) -> None:
    node.dress("xid_94", sticky=("gpu_lost",))
    node.reboot()
    facts = node.facts()
    assert facts["collected"]["costume"] == "b300, gpu_lost"
    assert {entry["code"] for entry in facts["gpu"]["xid"]} == {79, 154}


def test_a_hung_tool_costs_its_own_parts_only(node: Lab) -> None:
    node.dress("smi_hung")
    # A process counts as stuck once it has waited for two seconds.
    time.sleep(2.5)
    facts = node.facts()
    assert "did not answer" in facts["gpu"]["unknown"]["smi"]
    assert len(facts["gpu"]["pci"]) == 8 and len(facts["rdma"]["hcas"]) == 13
    assert [stuck["comm"] for stuck in facts["host"]["stuck"]] == ["nvidia-smi"]
    verdict, failing = node.failing()
    assert verdict == "blocked" and {"host.stuck", "gpu.count", "gpu.memory"} <= failing


def test_peermem_loads_and_stays_when_it_is_persisted(node: Lab) -> None:
    node.dress("peermem_missing", "errno_524")
    before = node.facts()["gpudirect"]
    assert (before["peermem"]["loaded"], before["peermem"]["why_not"], before["errno524"]["lines"]) == (False, None, 8)
    node.run("modprobe nvidia-peermem")
    assert node.facts()["gpudirect"]["peermem"]["loaded"] is True
    node.reboot()
    assert node.facts()["gpudirect"]["peermem"]["loaded"] is False
    node.run("echo nvidia_peermem > /etc/modules-load.d/nvidia-peermem.conf")
    node.reboot()
    after = node.facts()["gpudirect"]
    assert (after["peermem"]["loaded"], after["peermem"]["persisted"], after["errno524"]["lines"]) == (True, True, 0)


def test_a_module_that_refuses_says_why(node: Lab) -> None:
    node.dress("peermem_einval")
    with pytest.raises(LabError, match="could not insert 'nvidia_peermem': Invalid argument"):
        node.run("modprobe nvidia_peermem")
    assert "without peer-memory symbols" in node.facts()["gpudirect"]["peermem"]["why_not"]


def test_a_holder_is_a_process_that_can_be_ended(node: Lab) -> None:
    node.dress("foreign_holder")
    facts = node.facts()
    (holder,) = [one for one in facts["gpu"]["holders"] if one["comm"] == "python3"]
    assert holder["devices"] == 8
    assert [process["pid"] for process in facts["gpu"]["gpus"][0]["processes"]] == [holder["pid"]]
    assert "gpu.idle" in node.failing()[1]
    node.run(f"kill -9 {holder['pid']}")
    facts = node.facts()
    assert [one["comm"] for one in facts["gpu"]["holders"]] == ["nvidia-persiste"]
    assert "processes" not in facts["gpu"]["gpus"][0]
    assert node.failing() == ("blocked", set())


def test_a_package_changes_the_driver_on_disk_now_and_the_loaded_one_with_a_reboot(node: Lab) -> None:
    if lack := vm.missing():
        pytest.skip(f"the package repository is built with the machines' kernel: {lack}")
    node.dress("driver_r575")
    apt_repo.serve(node.settings)
    try:
        costume.use_repository(node.settings, NODE)
        names = ("nvidia-open", "nvidia-dkms-open", "libnvidia-compute", "nvidia-utils", "nvidia-modprobe", "nvidia-persistenced",
                 "nvidia-kernel-common", "nvidia-fabricmanager")
        node.run("DEBIAN_FRONTEND=noninteractive apt-get -q -y install " + " ".join(f"{name}=580.95.05-1" for name in names))
    finally:
        apt_repo.stop(node.settings)
    driver = node.facts()["driver"]
    assert (driver["loaded"], driver["installed"], driver["mismatch"]) == ("575.57.08", "580.95.05", True)
    assert {"driver.branch", "driver.loaded_is_installed", "driver.userspace_match"} <= node.failing()[1]
    node.reboot()
    facts = node.facts()
    driver = facts["driver"]
    assert (driver["loaded"], driver["installed"], driver["mismatch"]) == ("580.95.05", "580.95.05", False)
    # Now the real package's, and it fits.
    assert (facts["fabric"]["manager"]["version"], facts["fabric"]["manager"]["service"]["active"]) == ("580.95.05", "active")
    assert facts["host"]["packages"]["versions"]["nvidia-open"] == "580.95.05-1"
    assert node.failing() == ("blocked", set())
    node.run("apt-get -q -y purge 'nvidia-*' libnvidia-compute dkms")


def test_links_are_real(node: Lab) -> None:
    node.dress()
    node.run("ip link set rdma3 mtu 1500; ip link set vethrdma4 down")
    ports = {hca["name"]: hca["ports"][0] for hca in node.facts()["rdma"]["hcas"]}
    assert (ports["mlx5_3"]["mtu"], ports["mlx5_4"].get("operstate")) == (1500, "lowerlayerdown")


def test_the_costume_comes_off_without_a_trace(node: Lab) -> None:
    look = (
        "(find / -xdev \\( -path /proc -o -path /tmp -o -path '/var/tmp/systemd-private*' -o -path /var/log \\) -prune -o -print; "
        "cut -d' ' -f5 /proc/self/mountinfo | grep -v credentials; ls /sys /dev; "
        "ip -br address; systemctl list-unit-files --no-legend; cat /etc/docker/daemon.json) | sort")
    costume.undress(node.settings, NODE)
    before = node.run(look)
    node.dress("foreign_holder", "smi_hung")
    assert node.run(look) != before
    costume.undress(node.settings, NODE)
    assert node.run(look).splitlines() == before.splitlines()
    assert node.run("ps -eo comm | grep -E 'nvidia|nvlsm|nv-fab' || true") == ""
    assert node.facts()["collected"]["costume"] is None


def test_imex_that_failed_runs_after_a_restart(node: Lab) -> None:
    costume.dress(node.settings, NODE, "gb300", ["imex_down"])
    imex = node.facts()["fabric"]["imex"]
    assert (imex["service"]["active"], imex["ready"], imex["domain"]) == ("failed", "UNAVAILABLE", "DEGRADED")
    node.run("systemctl restart nvidia-imex")
    imex = node.facts()["fabric"]["imex"]
    assert (imex["service"]["active"], imex["ready"], imex["domain"], imex["nodes_up"]) == ("active", "READY", "UP", 4)
    assert imex["nodes"] == [f"10.203.77.{number}" for number in range(11, 15)]
