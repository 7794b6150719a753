# SPDX-License-Identifier: GPL-3.0-or-later
"""Section host of the facts, and that a costume fills every key of the sections host, container, storage and service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import host
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Ran
from tests.costume import HARDWARE, KERNEL_LOG_START, Spec, Wardrobe, dress, part_host, part_rdma

ROOT = Path(__file__).resolve().parents[3]
MINE = ("host", "container", "storage", "service")


def dressed(hardware: str = "b300", faults: Iterable[str] = (), change: Optional[Callable[[Wardrobe], Any]] = None,
            options: Optional[Options] = None) -> Dict[str, Any]:
    """Facts of the four sections of a node in this part of its costume."""
    spec = Spec("n1", hardware, 1, frozenset(faults), peers=("n1", "n2"))
    wardrobe = Wardrobe()
    log = [(0.0, KERNEL_LOG_START % part_host.kernel(spec)), *part_host.dress(spec, wardrobe)]
    part_host.kernel_log(spec, wardrobe, sorted(log))
    if change:
        change(wardrobe)
    reader = MemoryReader(wardrobe.files, wardrobe.links, wardrobe.commands, wardrobe.probes, wardrobe.folders)
    return gather(reader, options or Options(subset=MINE, names=("n1", "n2"), image=part_host.IMAGE))


def facts_of(files: Optional[Dict[str, Any]] = None, commands: Optional[Dict[Tuple[str, ...], Any]] = None,
             probes: Optional[Dict[Tuple[str, str], Any]] = None) -> Dict[str, Any]:
    return host.collect(MemoryReader(files, {}, commands, probes), Options())


def keys_of(section: str) -> List[str]:
    """Top-level keys of a section of docs/FACTS.md."""
    page = (ROOT / "docs" / "FACTS.md").read_text(encoding="utf-8")
    block = re.search(r"^%s:\n((?:  .*\n)+)" % section, page, re.MULTILINE)
    assert block
    return re.findall(r"^  (\w+):", block.group(1), re.MULTILINE)


# -- the contract ----------------------------------------------------------------------------------
@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("section", MINE)
def test_a_costume_fills_every_key_of_the_contract(hardware: str, section: str) -> None:
    options = Options(names=("n1", "n2"), image=part_host.IMAGE)
    facts = gather(dress(Spec("n1", hardware, peers=("n1", "n2"))), options)[section]
    assert sorted(facts) == sorted(keys_of(section))
    assert facts["unknown"] == {}
    # What a healthy node does not have: another engine, an asked-for probe, weights, a remediation.
    absent = {key for key, value in facts.items() if value is None}
    assert absent <= {"podman", "probe", "weights", "remediation", "remediation_foreign"}


def test_the_four_sections_fit_in_a_third_of_what_a_node_may_take() -> None:
    facts = dressed()
    assert len(json.dumps({name: facts[name] for name in MINE}, separators=(",", ":"))) < 32768 // 3


def test_facts_are_equal_from_a_snapshot(tmp_path: Path) -> None:
    from ansible_collections.inferops.vllm.plugins.module_utils.node import snapshot

    spec = Spec("n1", "b300", 1, frozenset({"smi_hung"}))
    wardrobe = Wardrobe()
    part_host.kernel_log(spec, wardrobe, sorted(part_host.dress(spec, wardrobe)))
    reader = MemoryReader(wardrobe.files, wardrobe.links, wardrobe.commands, wardrobe.probes, wardrobe.folders)
    options = Options(subset=MINE, image=part_host.IMAGE)
    first = gather(reader, options)
    snapshot.write_folder(snapshot.render(reader, "n1", options.asdict()), str(tmp_path / "n1"))
    recorded, _head = snapshot.open_snapshot(str(tmp_path / "n1"))
    again = gather(recorded, options)
    for section in MINE:
        assert again[section] == first[section]


def test_an_empty_node_is_unknown_and_never_well() -> None:
    facts = facts_of()
    for key in keys_of("host"):
        if facts[key] is None:
            assert key in facts["unknown"] or key in ("hostname", "arch", "governor"), key
    assert facts["pending_reboot"] is None and facts["time"] is None and facts["limits"]["memlock"] is None
    assert {"os", "virt", "packages", "time", "limits", "stuck", "addresses", "memory", "shm"} <= set(facts["unknown"])


# -- faults of a costume ---------------------------------------------------------------------------
def test_a_hung_nvidia_smi_is_stuck() -> None:
    assert dressed()["host"]["stuck"] == []
    assert dressed(faults=["smi_hung"])["host"]["stuck"] == [{"pid": part_host.STUCK_PID, "comm": "nvidia-smi", "state": "D"}]


def test_a_pending_reboot_has_its_reason() -> None:
    assert dressed()["host"]["pending_reboot"] == {"required": False, "reasons": []}
    found = dressed(faults=["pending_reboot"])["host"]
    assert found["pending_reboot"] == {"required": True, "reasons": ["/run/reboot-required exists (for nvidia-dkms-open)"]}
    assert found["packages"]["versions"]["nvidia-open"].startswith(part_host.NEWER_DRIVER)


def test_versions_of_packages_follow_the_driver() -> None:
    assert dressed(faults=["driver_r575"])["host"]["packages"]["versions"]["nvidia-open"] == "575.57.08-1ubuntu1"
    bare = dressed(faults=["no_gpu"])["host"]
    assert not [name for name in bare["packages"]["versions"] if "nvidia" in name]
    assert not [name for name in bare["modules"] if "nvidia" in name]


def test_a_port_that_is_down_is_down_as_a_link() -> None:
    spec = Spec("n1", "b300", 1, frozenset({"port_down"}))
    lost = next(h.netdev for h in part_rdma.hcas(spec) if part_rdma.down(spec, h))
    links = dressed(faults=["port_down"])["host"]["links"]
    assert [name for name, link in links.items() if link["state"] == "DOWN"] == [lost, "docker0"]


def test_peers_resolve_to_their_own_addresses() -> None:
    assert dressed()["host"]["names"] == {"n1": ["192.0.2.11"], "n2": ["192.0.2.12"]}


# -- kernel ----------------------------------------------------------------------------------------
def test_options_that_are_not_set_are_n_only_when_a_configuration_was_read() -> None:
    read = host.parse_config("CONFIG_PCI_P2PDMA=y\nCONFIG_INFINIBAND=m\n# CONFIG_DMABUF_MOVE_NOTIFY is not set\n")
    assert read == {
        "PCI_P2PDMA": "y", "DMABUF_MOVE_NOTIFY": "n", "DMA_SHARED_BUFFER": "n", "ZONE_DEVICE": "n", "INFINIBAND": "m",
        "INFINIBAND_USER_MEM": "n", "MLX5_INFINIBAND": "n"}
    assert host.parse_config("CONFIG_PCI_P2PDMA=y\n", whole=False) == {"PCI_P2PDMA": "y"}
    assert host.parse_config("404 page not found") == {}


def test_the_configuration_is_found_where_each_distribution_keeps_it() -> None:
    who = {("process", ""): {"kernel": "5.14.0-1.el9.x86_64"}}
    text = "CONFIG_PCI_P2PDMA=y\n"
    assert facts_of({"/lib/modules/5.14.0-1.el9.x86_64/config": text}, probes=who)["kernel_config"]["PCI_P2PDMA"] == "y"
    zipped = facts_of({"/proc/config.gz": "\x1f"}, {host.ZCAT: text}, who)
    assert zipped["kernel_config"]["PCI_P2PDMA"] == "y" and zipped["kernel_config"]["INFINIBAND"] == "n"
    assert "kernel_config" in facts_of(probes=who)["unknown"]


def test_modules_keep_those_that_matter() -> None:
    text = (
        "nvidia_peermem 16384 0 - Live 0x0\nnvidia 14000000 40 nvidia_uvm,nvidia_peermem, Live 0x0 (POE)\n"
        "ext4 900 1 - Live 0x0\nib_core 5 2 nvidia_peermem,[permanent], Live 0x0\nbroken\n")
    assert host.parse_modules(text) == {
        "nvidia_peermem": {"refs": 0, "used_by": []}, "nvidia": {"refs": 40, "used_by": ["nvidia_uvm", "nvidia_peermem"]},
        "ib_core": {"refs": 2, "used_by": ["nvidia_peermem"]}}


@pytest.mark.parametrize(("text", "count"), [
    ("0", 1), ("0-1", 2), ("0-1,2,10,18,26", 6), ("0-3,8-11\n", 8), ("", None), ("x-y", None), (None, None)])
def test_lists_of_the_kernel_are_counted(text: Optional[str], count: Optional[int]) -> None:
    assert host.count_list(text) == count


def test_processors_have_names() -> None:
    assert host.cpu_model({"model_name": "Example CPU"}) == "Example CPU"
    assert host.cpu_model({"implementer": "0x41", "part": "0xd4f"}) == "Neoverse-V2"
    assert host.cpu_model({"implementer": "0x48", "part": "0xd01"}) == "Arm implementer 0x48 part 0xd01"
    assert host.cpu_model({}) is None


# -- packages --------------------------------------------------------------------------------------
def test_dpkg_tells_installed_broken_and_held_packages() -> None:
    text = (
        "nvidia-open\t580.95.05-1\thi \nlibnvidia-compute\t580.95.05-1\tii \nnvidia-dkms-open\t580.95.05-1\tiF \n"
        "nvidia-driver-570\t570.1\trc \nlinux-image-6.8.0-86-generic\t6.8\tii \nnvlsm\t\tun \n"
        "linux-image-6.8.0-71-generic\t6.8\tii \nlinux-image-6.8.0-90-generic\t6.8\thi \nrubbish\n")
    versions, broken, held = host.parse_dpkg(text, "6.8.0-86-generic")
    assert versions == {"nvidia-open": "580.95.05-1", "libnvidia-compute": "580.95.05-1", "linux-image-6.8.0-86-generic": "6.8"}
    assert broken == ["nvidia-dkms-open: half-configured"]
    assert held == ["nvidia-open", "linux-image-6.8.0-90-generic"]


def test_the_audit_names_what_stands_in_the_way_of_an_installation() -> None:
    text = (
        "The following packages are only half configured, probably due to problems\n"
        "configuring them the first time.  Try dpkg --configure:\n nvidia-dkms-open     NVIDIA open kernel modules\n\n"
        "The following packages are missing the md5sums control file in the\ndatabase, they need to be reinstalled:\n"
        " harmless   a package\n\n"
        "The following packages have been unpacked but not yet configured.\n rdma-core            RDMA core\n")
    assert host.parse_audit(text) == ["nvidia-dkms-open: half-configured", "rdma-core: unpacked"]


def test_a_red_hat_node_is_read_with_rpm() -> None:
    kernel = "5.14.0-570.12.1.el9_6.x86_64"
    files = {
        "/etc/os-release": 'ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.6"\n',
        "/etc/dnf/plugins/versionlock.list": "# held\nkmod-nvidia-open-dkms-3:580.95.05-1.el9.*\n!bad-0:1-1.*\n",
        "/etc/systemd/system/timers.target.wants/dnf-automatic.timer": "", "/etc/dnf/automatic.conf": "[commands]\napply_updates = yes\n",
        "/boot/vmlinuz-" + kernel: "", "/boot/vmlinuz-5.14.0-570.19.1.el9_6.x86_64": "", "/boot/vmlinuz-0-rescue-0123456789abcdef": "",
    }
    rows = (
        "nvidia-fabricmanager\t580.95.05-1\tx86_64\nkernel-core\t5.14.0-570.12.1.el9_6\tx86_64\nkernel-core\t5.14.0-570.19.1.el9_6\tx86_64\n"
        "docker-ce\t28.5.1-1.el9\tx86_64\nbash\t5\tx86_64\n")
    facts = facts_of(files, {host.RPM: rows, host.VIRT: Ran(1, "none\n")}, {("process", ""): {"kernel": kernel}})
    assert facts["packages"] == {
        "manager": "rpm", "broken": [], "held": ["kmod-nvidia-open-dkms"],
        "versions": {"docker-ce": "28.5.1-1.el9", "kernel-core": "5.14.0-570.12.1.el9_6", "nvidia-fabricmanager": "580.95.05-1"}}
    assert facts["unattended_upgrades"] is True
    assert facts["pending_reboot"] == {
        "required": True, "reasons": ["kernel 5.14.0-570.19.1.el9_6.x86_64 is installed, %s is running" % kernel]}


def test_locks_of_other_tools() -> None:
    assert host.parse_versionlock('version = "1.0"\n[[packages]]\nname = "nvidia-open"\n') == ["nvidia-open"]
    assert host.parse_versionlock("type: package\nmatch_type: glob\nsolvable_name: kernel-default\n") == ["kernel-default"]


def test_at_most_sixty_packages_and_the_driver_is_among_them() -> None:
    rows = "".join("doca-extra-%03d\t1\tii \n" % i for i in range(100)) + "nvidia-open\t580.95.05-1\tii \n"
    found = facts_of({"/etc/os-release": "ID=ubuntu\nID_LIKE=debian\n"}, {host.DPKG: Ran(1, rows)})["packages"]["versions"]
    assert len(found) == 60 and "nvidia-open" in found


def test_rpm_on_debian_is_not_the_package_manager() -> None:
    files = {"/etc/os-release": "ID=debian\n"}
    commands = {host.RPM: "", host.DPKG: Ran(None, error="timeout")}
    facts = facts_of(files, commands)
    assert facts["packages"]["manager"] is None and "in time" in facts["unknown"]["packages"]


@pytest.mark.parametrize(("running", "installed", "newer"), [
    ("6.8.0-86-generic", ["6.8.0-71-generic", "6.8.0-86-generic"], None),
    ("6.8.0-86-generic", ["6.8.0-100-generic", "6.8.0-86-generic"], "6.8.0-100-generic"),
    ("6.8.0-86-generic", ["6.14.0-1013-nvidia-64k", "6.8.0-86-generic"], None),
    ("6.14.0-1013-nvidia-64k", ["6.14.0-1015-nvidia-64k", "6.14.0-1016-nvidia"], "6.14.0-1015-nvidia-64k"),
    ("5.14.0-503.el9_5.x86_64", ["5.14.0-570.12.1.el9_6.x86_64"], "5.14.0-570.12.1.el9_6.x86_64"),
    ("5.14.0-570.el9.x86_64", ["5.14.0-570.2.1.el9_6.x86_64"], "5.14.0-570.2.1.el9_6.x86_64"),
    ("5.14.0-570.12.1.el9_6.x86_64", ["5.14.0-570.el9.x86_64", "5.14.0-570.2.1.el9_6.x86_64"], None),
    ("6.12.41+deb13-amd64", ["6.12.48+deb13-amd64", "6.12.48+deb13-cloud-amd64"], "6.12.48+deb13-amd64"),
    ("5.14.0-570.el9.aarch64+64k", ["5.14.0-611.el9.aarch64"], None),
    ("6.4.0-150600.23-default", ["6.4.0-150600.25-default"], "6.4.0-150600.25-default"),
    ("6.1.0-37-amd64", ["6.1.0-40-amd64", "6.1.0-9-amd64"], "6.1.0-40-amd64"),
    ("6.1.0-37-amd64", [], None),
])
def test_only_a_newer_kernel_of_the_same_flavour_asks_for_a_reboot(running: str, installed: List[str], newer: Optional[str]) -> None:
    assert host.newer_kernel(running, installed) == newer


def test_kernels_of_another_machine_prove_nothing() -> None:
    facts = facts_of(
        {"/boot/vmlinuz-6.9.0-1-generic": "", "/etc/os-release": "ID=ubuntu\n"}, {host.DPKG: Ran(0, ""), host.VIRT: "docker\n"},
        {("process", ""): {"kernel": "6.8.0-86-generic"}})
    assert facts["pending_reboot"] is None and "container" in facts["unknown"]["pending_reboot"]


def test_needs_restarting_is_heard_only_when_it_says_so() -> None:
    files = {"/etc/os-release": "ID=rhel\n"}
    said = Ran(1, "Core libraries or services have been updated since boot-up:\n  * kernel\n\nReboot is required.\n")
    assert facts_of(files, {host.RPM: "", host.RESTARTING: said})["pending_reboot"]["required"] is True
    assert facts_of(files, {host.RPM: "", host.RESTARTING: Ran(1, "", "Traceback")})["pending_reboot"]["required"] is False


@pytest.mark.parametrize(("text", "on"), [
    ('APT::Periodic::Unattended-Upgrade "1";\n', True), ('APT::Periodic::Unattended-Upgrade "0";\n', False),
    ('// APT::Periodic::Unattended-Upgrade "1";\n', False)])
def test_unattended_upgrades_without_an_answer_of_the_package_manager(text: str, on: bool) -> None:
    files = {"/usr/bin/unattended-upgrade": "", "/etc/apt/apt.conf.d/20auto-upgrades": text}
    assert facts_of(files, {host.DPKG: Ran(None, error="timeout")})["unattended_upgrades"] is on


@pytest.mark.parametrize(("timer", "on"), [
    ("dnf-automatic-install.timer", True), ("os-update.timer", True), ("dnf-automatic.timer", False)])
def test_automatic_updates_of_rpm_systems(timer: str, on: bool) -> None:
    files = {"/etc/systemd/system/timers.target.wants/" + timer: "", "/etc/dnf/automatic.conf": "[commands]\napply_updates = no\n"}
    assert facts_of(files, {host.RPM: ""})["unattended_upgrades"] is on


@pytest.mark.parametrize(("text", "on"), [
    ('APT::Periodic::Unattended-Upgrade "1";\n', True), ('APT::Periodic::Unattended-Upgrade "0";\n', False)])
def test_unattended_upgrades(text: str, on: bool) -> None:
    files = {"/etc/os-release": "ID=ubuntu\n", "/usr/bin/unattended-upgrade": "", "/etc/apt/apt.conf.d/20auto-upgrades": text}
    assert facts_of(files, {host.DPKG: ""})["unattended_upgrades"] is on


# -- time, memory, limits --------------------------------------------------------------------------
def test_time_comes_from_systemd_or_chrony() -> None:
    leap = "Reference ID    : C0000201 (192.0.2.1)\nLeap status     : %s\n"
    def time(*commands: Tuple[Tuple[str, ...], Any]) -> Any:
        return facts_of(commands=dict(commands))["time"]

    assert time((host.TIME, "NTPSynchronized=yes\n")) == {"synchronized": True, "source": None}
    assert time((host.TIME, "NTPSynchronized=no\n")) == {"synchronized": False, "source": None}
    assert time((host.CHRONY, leap % "Normal")) == {"synchronized": True, "source": "chrony"}
    assert time((host.CHRONY, leap % "Not synchronised")) == {"synchronized": False, "source": "chrony"}
    assert time((host.TIME, Ran(1, "", "not booted with systemd")), (host.CHRONY, Ran(1, "506 Cannot talk to daemon\n"))) is None


def test_memory_is_in_bytes() -> None:
    found = host.parse_meminfo(
        "MemTotal: 1024 kB\nMemAvailable: 512 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nHugePages_Total: 3\nHugepagesize: 2048 kB\n")
    assert found["memory"] == {"total_bytes": 1048576, "available_bytes": 524288, "swap_total_bytes": 0, "swap_free_bytes": 0}
    assert found["hugepages"] == {"total": 3, "size_bytes": 2097152}


def test_shared_memory_that_is_not_there_is_not_measured_as_its_parent() -> None:
    facts = facts_of(probes={("statvfs", "/dev/shm"): {"total_bytes": 5, "free_bytes": 5}})
    assert facts["shm"] is None and "not there" in facts["unknown"]["shm"]


@pytest.mark.parametrize(("text", "unit", "value"), [
    ("infinity", 1, "unlimited"), ("unlimited", 1024, "unlimited"), ("-1", 1, "unlimited"), ("18446744073709551615", 1, "unlimited"),
    ("64M", 1, 64 << 20), ("65536", 1024, 64 << 20), ("1024:524288", 1, 524288), ("many", 1, None), ("", 1, None), (None, 1, None)])
def test_limits(text: Optional[str], unit: int, value: Any) -> None:
    assert host.limit(text, unit) == value


def test_the_lowest_of_limits() -> None:
    assert host.lowest([5, None, 3, "unlimited"]) == 3
    assert host.lowest(["unlimited", None]) == "unlimited" and host.lowest([None]) is None


def test_limits_come_from_the_manager_then_its_files_then_the_first_process() -> None:
    one = (
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max locked memory         8388608              unlimited            bytes\n"
        "Max open files            1024                 4096                 files\n")
    base = {"/proc/1/limits": one}
    assert facts_of(base)["limits"] == {
        "memlock": 8388608, "memlock_from": "/proc/1/limits", "nofile": 4096, "docker_memlock": None, "pam_memlock": None}
    files = {
        **base, "/usr/lib/systemd/system.conf": "[Manager]\n#DefaultLimitMEMLOCK=\n",
        "/etc/systemd/system.conf.d/50-a.conf": "[Manager]\nDefaultLimitMEMLOCK=64M\n",
        "/usr/lib/systemd/system.conf.d/90-b.conf": "[Manager]\nDefaultLimitMEMLOCK=infinity\n",
        "/usr/lib/systemd/system.conf.d/50-a.conf": "[Manager]\nDefaultLimitMEMLOCK=1\n",
    }
    limits = facts_of(files)["limits"]
    assert (limits["memlock"], limits["memlock_from"]) == ("unlimited", "/usr/lib/systemd/system.conf.d/90-b.conf")
    limits = facts_of(files, {host.MANAGER: "DefaultLimitMEMLOCK=8388608\nDefaultLimitNOFILE=524288\n"})["limits"]
    assert (limits["memlock"], limits["nofile"]) == (8388608, 524288)


def test_the_limit_of_containers_is_the_lowest_of_the_engines_or_the_daemons_own() -> None:
    shown = "Id=docker.service\nLoadState=loaded\nLimitMEMLOCK=infinity\n\nId=containerd.service\nLoadState=loaded\nLimitMEMLOCK=8388608\n"
    assert facts_of(commands={host.ENGINES: shown})["limits"]["docker_memlock"] == 8388608
    daemon = json.dumps({"default-ulimits": {"memlock": {"Name": "memlock", "Soft": -1, "Hard": -1}}})
    assert facts_of({"/etc/docker/daemon.json": daemon}, {host.ENGINES: shown})["limits"]["docker_memlock"] == "unlimited"
    gone = "Id=docker.service\nLoadState=not-found\nLimitMEMLOCK=8388608\n"
    assert facts_of(commands={host.ENGINES: gone})["limits"]["docker_memlock"] is None


def test_pam_limits_are_in_bytes_and_the_lower_counts() -> None:
    assert host.parse_pam("* - memlock unlimited # all\n@admin hard memlock 64\nroot soft nofile 5\n") == {
        "*": {"soft": "unlimited", "hard": "unlimited"}, "@admin": {"hard": 65536}}
    files = {"/etc/security/limits.conf": "* hard memlock unlimited\n", "/etc/security/limits.d/10-x.conf": "* soft memlock 64\n"}
    assert facts_of(files)["limits"]["pam_memlock"] == 65536


# -- interfaces ------------------------------------------------------------------------------------
def test_interfaces_with_an_address_are_told() -> None:
    document = json.dumps([
        {"ifname": "lo", "mtu": 65536, "addr_info": [{"local": "127.0.0.1", "prefixlen": 8, "scope": "host"}]},
        {"ifname": "eth0", "mtu": 1500, "operstate": "UP", "addr_info": [
            {"local": "192.0.2.5", "prefixlen": 24, "scope": "global"}, {"local": "fe80::1", "prefixlen": 64, "scope": "link"}]},
        {"ifname": "ib0", "mtu": 2044, "operstate": "UP", "addr_info": [{"local": "fe80::2", "prefixlen": 64, "scope": "link"}]},
        {"ifname": "veth12", "mtu": 1500, "addr_info": [{"local": "fe80::3", "prefixlen": 64, "scope": "link"}]},
        {"ifname": "eth1", "mtu": 1500, "operstate": "DOWN", "addr_info": []}, 7, {},
    ])
    assert host.parse_addresses(document) == (
        {"eth0": ["192.0.2.5/24"], "ib0": ["fe80::2/64"]},
        {"eth0": {"state": "UP", "mtu": 1500}, "ib0": {"state": "UP", "mtu": 2044}})
    assert host.parse_addresses("Option -j is unknown") is None
    facts = facts_of(commands={host.ADDRESSES: Ran(None, error="timeout")})
    assert facts["addresses"] is None and "in time" in facts["unknown"]["links"]


@pytest.mark.parametrize(("ran", "files", "hypervisor", "virt"), [
    (Ran(1, "none\n"), {}, True, "none"), (Ran(0, "kvm\n"), {}, False, "kvm"),
    (Ran(None, error="missing"), {"/.dockerenv": ""}, False, "docker"), (Ran(None, error="missing"), {}, True, "vm-other"),
    (Ran(None, error="missing"), {}, False, None), (Ran(127, "Segmentation fault"), {}, False, None)])
def test_virtualisation(ran: Ran, files: Dict[str, Any], hypervisor: bool, virt: Optional[str]) -> None:
    facts = facts_of(files, {host.VIRT: ran}, {("machine", ""): {"hypervisor": hypervisor}})
    assert facts["virt"] == virt and ("virt" in facts["unknown"]) is (virt is None)


def test_hidden_processes_are_not_called_well() -> None:
    facts = facts_of(probes={("processes", ""): {"stuck": [], "hidden": True}})
    assert facts["stuck"] == [] and "hidden" in facts["unknown"]["stuck"]


def test_where_processes_wait_that_may_not_be_seen_is_not_called_well() -> None:
    facts = facts_of(probes={("processes", ""): {"stuck": [], "unseen": 2}})
    assert facts["stuck"] == [] and "root" in facts["unknown"]["stuck"]
    # One that is known to be stuck is a fault, whatever the others are.
    stuck = {"pid": 9, "comm": "nvidia-smi", "state": "D"}
    facts = facts_of(probes={("processes", ""): {"stuck": [stuck], "unseen": 2}})
    assert facts["stuck"] == [stuck] and "stuck" not in facts["unknown"]
    assert "stuck" not in facts_of(probes={("processes", ""): {"stuck": [], "unseen": 0}})["unknown"]


# -- anything in, no exception out -----------------------------------------------------------------
PARSERS: List[Callable[[str], Any]] = [
    host.parse_config, host.parse_modules, host.parse_audit, host.parse_versionlock, host.parse_meminfo, host.parse_pam,
    host.parse_addresses, host.count_list, host.limit, lambda text: host.parse_dpkg(text, "6.8"), lambda text: host.parse_rpm(text, "6.8"),
    lambda text: host.parse_proc_limits(text, "Max"), lambda text: host.newer_kernel(text, [text, text[1:]]),
    lambda text: host.cpu_model({"model_name": text}),
]


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_any_text(text: str) -> None:
    for parse in PARSERS:
        parse(text)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_mutations_of_a_node(data: st.DataObject) -> None:
    """Cut and changed answers, wrong types of probes: facts still come, and stay JSON."""
    spec = Spec("n1", "gb300", 1, frozenset(), peers=("n1",))
    wardrobe = Wardrobe()
    part_host.dress(spec, wardrobe)
    for table in (wardrobe.files, wardrobe.commands):
        key = data.draw(st.sampled_from(sorted(table)))
        value = table[key]
        if isinstance(value, str):
            at = data.draw(st.integers(0, len(value)))
            table[key] = value[:at] + data.draw(st.text(max_size=12)) + value[at + data.draw(st.integers(0, 30)):]
        refused: Any = Ran(None, error="timeout") if table is wardrobe.commands else Content(None, "denied")
        table[key] = data.draw(st.sampled_from([table[key], refused]))
    probe = data.draw(st.sampled_from(sorted(wardrobe.probes)))
    wardrobe.probes[probe] = data.draw(st.sampled_from([None, 7, "x", [], {}, {"stuck": [1]}, {"total_bytes": "many"}, {"vllm": [None]}]))
    reader = MemoryReader(wardrobe.files, wardrobe.links, wardrobe.commands, wardrobe.probes, wardrobe.folders)
    facts = gather(reader, Options(subset=MINE, names=("n1",), image=part_host.IMAGE))
    json.dumps(facts)
    for section in MINE:
        assert "the collector failed" not in str(facts[section]["unknown"].get("all", "")), facts[section]


# -- this machine ----------------------------------------------------------------------------------
def test_a_live_machine_gives_what_it_has() -> None:
    facts = gather(LiveReader(5.0), Options(subset=("host",), names=("localhost", "no-such-name.invalid")))["host"]
    assert facts["memory"]["total_bytes"] > 1 << 28 and facts["cpus"] >= 1 and facts["booted_at"] > 1_000_000_000
    assert facts["names"] == {"localhost": facts["names"]["localhost"], "no-such-name.invalid": []}
    assert facts["kernel"] and facts["os"]["id"]
    for key, value in facts.items():
        assert value is not None or key in facts["unknown"] or key == "governor", key
