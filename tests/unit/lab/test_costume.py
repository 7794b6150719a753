# SPDX-License-Identifier: GPL-3.0-or-later
"""Costumes of lab nodes as far as they need no node: state, what follows from it, and the replaying program."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import collect, driver, fabric, gpudirect, kernel_log, smi
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Ran
from tests.costume import FAULTS, HARDWARE, Spec, dress
from tests.lab import costume, costume_node, costume_replay, costume_tools
from tests.lab.costume_state import (
    DRIVER_MODULES,
    LAB_FAULTS,
    PEERMEM,
    State,
    after_boot,
    clothes,
    device_table,
    first_state,
    installed,
    is_real,
    load,
    only_gpus,
    query,
    store,
    tree,
    unload,
)

KERNEL = "6.1.0-57-amd64"
HARDWARE_SECTIONS = ("driver", "gpu", "fabric", "rdma", "gpudirect")


def facts(state: State) -> dict[str, Any]:
    return collect.gather(clothes(state, KERNEL).reader(), collect.Options())


# -- what a state says -----------------------------------------------------------------------------
@pytest.mark.parametrize("hardware", HARDWARE)
def test_a_dressed_node_says_what_the_costume_says_under_its_own_names(hardware: str) -> None:
    mine, plain = facts(first_state("node3", hardware, (), index=3)), collect.gather(dress(Spec("node3", hardware, 3)), collect.Options())
    text = json.dumps([plain[name] for name in HARDWARE_SECTIONS])
    for old, new in (("192.0.2.", "10.203.77."), ("eno1", "host0"), ("ffff:c000:02", "ffff:0acb:4d")):
        text = text.replace(old, new)
    theirs = json.loads(text)
    got = [mine[name] for name in HARDWARE_SECTIONS]
    for found in (got[0]["build"]["dkms"], theirs[0]["build"]["dkms"]):
        assert [entry.pop("kernel") for entry in found]
    # The digest of IMEX's configuration follows the addresses in it.
    for found in (got[2]["imex"], theirs[2]["imex"]):
        found.pop("config_sha256")
    assert got == theirs


def test_the_costume_takes_the_kernel_of_the_node() -> None:
    found = facts(first_state("node1", "b300", ()))
    assert found["host"]["kernel"] == KERNEL
    assert found["driver"]["installed_for_kernel"] is True and found["driver"]["build"]["headers"] is True
    assert {entry["kernel"] for entry in found["driver"]["build"]["dkms"]} == {KERNEL}


def test_a_machine_changes_only_its_own_address() -> None:
    state = first_state("vm1", "b300", (), kind="vm", address="10.203.77.101", interface="eth0")
    (management,) = [hca for hca in facts(state)["rdma"]["hcas"] if hca.get("carries")]
    assert [gid.get("ipv4") for gid in management["ports"][0]["gids"]][-1] == "10.203.77.101"


def test_a_machine_shows_gpus_only_and_keeps_its_own_kernel() -> None:
    state = first_state("vm1", "b300", ["gpu_lost"], kind="vm", address="10.203.77.101", interface="eth0")
    worn = clothes(state, KERNEL)
    assert set(store(state, worn)) == {"nvidia-smi", "lspci"}
    gpus = {gpu["bdf"] for gpu in facts(state)["gpu"]["pci"]}
    plan = only_gpus(tree(worn), sorted(gpus))
    assert {path.split("/")[5] for path in [*plan.files, *plan.links]} == gpus and len(gpus) == 8
    assert after_boot(state, False)["faults"] == []
    with pytest.raises(ValueError, match="driver_r575: on a machine this is real"):
        first_state("vm1", "b300", ["driver_r575"], kind="vm")


@pytest.mark.parametrize("words, said", [
    ({"hardware": "b301"}, "no such costume"), ({"faults": ["gpu_melted"]}, "gpu_melted"),
    ({"faults": ["peermem_crc", "peermem_einval"]}, "exclude each other")])
def test_words_that_no_costume_knows_are_refused(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        first_state("node1", words.get("hardware", "b300"), words.get("faults", ()))


# -- what remedies change --------------------------------------------------------------------------
def test_loading_peermem_is_read_next() -> None:
    state = first_state("node1", "b300", ["peermem_missing"])
    assert facts(state)["gpudirect"]["peermem"]["loaded"] is False
    state, code, text = load(state, "nvidia_peermem")
    assert (code, text) == (0, "")
    found = facts(state)
    assert found["gpudirect"]["peermem"]["loaded"] is True
    assert found["gpudirect"]["peermem"]["version"] == "580.95.05"
    assert "nvidia_peermem" in found["host"]["modules"]["nvidia"]["used_by"]
    assert state["faults"] == []


@pytest.mark.parametrize("fault, said, why", [
    ("peermem_einval", "Invalid argument", "without peer-memory symbols"),
    ("peermem_unknown_symbol", "Unknown symbol", "has no ib_register_peer_memory_client"),
    ("peermem_crc", "Invalid argument", "another version of the RDMA modules"),
    ("peermem_absent", "not found in directory", "no nvidia_peermem module is installed")])
def test_a_refusal_leaves_its_reason(fault: str, said: str, why: str) -> None:
    state, code, text = load(first_state("node1", "b300", [fault]), "nvidia_peermem")
    assert code == 1 and said in text
    found = facts(state)["gpudirect"]["peermem"]
    assert found["loaded"] is False
    assert why in found["why_not"]
    # It stays so: the same again gives the same.
    assert load(state, "nvidia_peermem")[1:] == (code, text)


def test_peermem_comes_back_only_when_it_is_persisted() -> None:
    state, _code, _text = load(first_state("node1", "b300", ["peermem_missing"]), "nvidia_peermem")
    assert facts(after_boot(state, persisted=True))["gpudirect"]["peermem"]["loaded"] is True
    forgotten = after_boot(state, persisted=False)
    assert facts(forgotten)["gpudirect"]["peermem"]["loaded"] is False
    assert forgotten["faults"] == ["peermem_missing"]


def test_a_reboot_brings_a_lost_gpu_back_and_starts_the_kernel_log_anew() -> None:
    state = first_state("node1", "b300", ["gpu_lost"])
    before = facts(state)["gpu"]
    assert (before["smi"]["attached"], len(before["fallen"]), len(before["xid"]) > 0) == (7, 1, True)
    after = facts(after_boot(state, True))["gpu"]
    assert (after["smi"]["attached"], after["fallen"], after["xid"]) == (8, [], [])


def test_a_sticky_fault_outlives_a_reboot() -> None:
    state = first_state("node1", "b300", ["gpu_lost", "xid_94"], sticky=["gpu_lost"])
    assert after_boot(state, True)["faults"] == ["gpu_lost"]


def test_another_driver_is_installed_at_once_and_loaded_after_a_reboot() -> None:
    state = first_state("node1", "b300", ["driver_r575"])
    state["installed"] = "580.126.20"
    found = facts(state)["driver"]
    assert (found["loaded"], found["installed"], found["cuda"]) == ("575.57.08", "580.126.20", "12.9")
    assert found["build"]["dkms"][0]["version"] == "580.126.20"
    found = facts(after_boot(state, True))["driver"]
    assert (found["loaded"], found["installed"], found["cuda"]) == ("580.126.20", "580.126.20", "13.0")
    assert after_boot(state, True)["faults"] == []
    # And back again.
    state = after_boot(state, True)
    state["installed"] = "575.57.08"
    assert facts(after_boot(state, True))["driver"]["loaded"] == "575.57.08"


def test_a_removed_driver_is_gone_after_a_reboot() -> None:
    state = first_state("node1", "b300", ())
    state["installed"] = ""
    found = facts(state)["driver"]
    assert (found["loaded"], found["installed"]) == ("580.95.05", None)
    after = facts(after_boot(state, True))
    assert (after["driver"]["loaded"], "smi" in after["gpu"]["unknown"]) == (None, True)
    assert load(after_boot(state, True), "nvidia")[1] == 1


def test_a_pending_reboot_ends_with_the_newer_driver() -> None:
    state = first_state("node1", "b300", ["pending_reboot"])
    newer = installed(state)
    assert facts(state)["driver"]["installed"] == newer != state["loaded"]
    after = after_boot(state, True)
    assert (after["loaded"], after["faults"]) == (newer, [])


def test_a_package_takes_the_place_of_the_driver_that_waited() -> None:
    state = first_state("node1", "b300", ["pending_reboot"])
    assert "/run/reboot-required" in clothes(state, KERNEL).files
    state["installed"] = "580.126.20"
    assert facts(state)["driver"]["installed"] == "580.126.20"
    assert "/run/reboot-required" not in clothes(state, KERNEL).files


def test_modules_unload_in_the_order_of_their_users() -> None:
    state = first_state("node1", "b300", ())
    assert unload(state, "nvidia")[1:] == (1, "modprobe: FATAL: Module nvidia is in use.\n")
    for name in ("nvidia_peermem", "nvidia_uvm", "nvidia_modeset", "nvidia"):
        state, code, _text = unload(state, name)
        assert code == 0, name
    found = facts(state)
    assert found["driver"]["loaded"] is None and found["gpudirect"]["dmabuf"]["open_module"] is None
    assert "nvidia" not in found["host"]["modules"]
    state["installed"] = "580.126.20"
    state, _code, _text = load(state, "nvidia_uvm")
    assert facts(state)["driver"]["loaded"] == "580.126.20"


def test_a_driver_in_use_does_not_unload() -> None:
    state = {**first_state("node1", "b300", ()), "modules": ["nvidia", "nvidia_uvm"]}
    assert unload(state, "nvidia_uvm", held=True)[1] == 1
    assert unload({**state, "modules": ["nvidia"]}, "nvidia", held=True)[1] == 1


ACTIONS = st.one_of(
    st.tuples(st.just("load"), st.sampled_from(DRIVER_MODULES)), st.tuples(st.just("unload"), st.sampled_from(DRIVER_MODULES)),
    st.tuples(st.just("boot"), st.booleans()), st.tuples(st.just("install"), st.sampled_from(("575.57.08", "580.95.05", "580.126.20", ""))))


@settings(max_examples=40, deadline=None)
@given(
    hardware=st.sampled_from(HARDWARE), faults=st.sets(st.sampled_from(sorted(set(LAB_FAULTS) - set(PEERMEM))), max_size=4),
    mode=st.sampled_from(["", *PEERMEM]), actions=st.lists(ACTIONS, max_size=6))
def test_whatever_is_done_the_state_makes_sense_and_can_be_worn(hardware: str, faults: set[str], mode: str, actions: list[Any]) -> None:
    state = first_state("node1", hardware, sorted(faults | ({mode} if mode else set())))
    for verb, word in actions:
        if verb == "load":
            state = load(state, word)[0]
        elif verb == "unload":
            state = unload(state, word)[0]
        elif verb == "boot":
            state = after_boot(state, word)
        else:
            state["installed"] = word
    assert ("nvidia" in state["modules"]) == (state["loaded"] is not None)
    assert state["loaded"] is not None or not state["modules"]
    worn = clothes(state, KERNEL)
    read = collect.gather(worn.reader(), collect.Options())
    assert read["driver"]["loaded"] == state["loaded"]
    assert read["gpudirect"]["peermem"]["loaded"] == ("nvidia_peermem" in state["modules"])
    assert not [name for name in HARDWARE_SECTIONS if "all" in read[name]["unknown"]]
    json.dumps(store(state, worn))
    plan = tree(worn)
    places = [*plan.files, *plan.links]
    assert not set(plan.files) & set(plan.links)
    solid = set(places)
    for path in [*places, *plan.folders]:
        parent = path.rpartition("/")[0]
        while parent:
            assert parent not in solid, "%s is below %s, which is no folder" % (path, parent)
            parent = parent.rpartition("/")[0]


# -- where it goes ---------------------------------------------------------------------------------
def test_links_of_sysfs_lead_to_where_their_files_are() -> None:
    plan = tree(clothes(first_state("node1", "b300", ()), KERNEL))
    assert plan.links["/sys/class/infiniband/mlx5_0/device"] == "/sys/bus/pci/devices/0000:18:00.0"
    assert plan.files["/sys/bus/pci/devices/0000:18:00.0/current_link_width"] == "16\n"
    assert "/sys/class/infiniband/mlx5_0" not in plan.links
    assert plan.links["/sys/bus/pci/devices/0000:18:00.0/iommu_group"] == "/sys/kernel/iommu_groups/20"
    assert plan.files["/sys/kernel/iommu_groups/20/type"] == "identity\n"


def test_what_makes_the_node_itself_stays_real() -> None:
    plan = tree(clothes(first_state("node1", "b300", ()), KERNEL))
    for path in ("/etc/os-release", "/proc/meminfo", "/proc/net/route", "/etc/docker/daemon.json", "/proc/sys/kernel/random/boot_id"):
        assert is_real(path) and path not in plan.files
    names = store(first_state("node1", "b300", ()), clothes(first_state("node1", "b300", ()), KERNEL))
    assert not {"ip", "docker", "systemctl", "timedatectl", "systemd-detect-virt", "grep"} & set(names)


def test_a_device_table_gains_the_driver_s_lines_only() -> None:
    real = "Character devices:\n  1 mem\n  5 tty\n\nBlock devices:\n254 virtblk\n"
    dressed = clothes(first_state("node1", "gb300", ()), KERNEL).files["/proc/devices"]
    mixed = device_table(real, dressed)
    assert mixed == real.replace("  5 tty\n", "  5 tty\n195 nvidia\n195 nvidiactl\n234 nvidia-caps-imex-channels\n")
    assert device_table(mixed, dressed) == mixed


def test_recorded_answers_carry_exit_code_and_standard_error() -> None:
    state = first_state("node1", "gb300", ["imex_down"])
    answers = store(state, clothes(state, KERNEL))
    (ready,) = [entry for entry in answers["nvidia-imex-ctl"] if entry["argv"] == ["-q"]]
    assert (ready["rc"], ready["out"]) == (1, "UNAVAILABLE\n")
    packages = [entry for entry in answers["dpkg-query"] if entry["argv"] == list(fabric.DPKG[1:])]
    assert packages[0]["merge"] is True and "nvidia-imex" in packages[0]["out"]


def test_only_a_node_without_packages_of_its_own_lists_the_costume_s() -> None:
    state = first_state("node1", "b300", ())
    (listed,) = [entry for entry in store(state, clothes(state, KERNEL))["dpkg-query"] if "docker*" in entry["argv"]]
    names = {line.split("\t")[0] for line in listed["out"].splitlines()}
    assert {"nvidia-open", "nvlsm", "nvidia-container-toolkit"} <= names
    assert not {name for name in names if name.startswith(("docker", "containerd", "linux-image", "rdma-core"))}


def test_the_journal_of_a_unit_is_real_from_the_time_of_dressing_on() -> None:
    state = {**first_state("node1", "b300", ()), "dressed_at": 1795986400}
    told = [entry for entry in store(state, clothes(state, KERNEL))["journalctl"] if entry["argv"] == list(fabric.JOURNAL[1:])]
    assert told == [{"argv": list(fabric.JOURNAL[1:]), "add": ["--since=@1795986400"]}]


def test_every_call_of_a_hung_tool_hangs() -> None:
    state = first_state("node1", "b300", ["smi_hung"])
    assert [(entry["argv"], entry["hang"]) for entry in store(state, clothes(state, KERNEL))["nvidia-smi"]] == [(["*"], True)]


def test_a_query_prints_a_row_for_each_gpu() -> None:
    document = clothes(first_state("node1", "b300", ()), KERNEL).commands[smi.COMMAND]
    rows = query(document, ["index", "name", "memory.total", "pci.bus_id", "driver_version", "nonsense"], units=False)
    assert len(rows) == 8
    assert rows[1] == ["1", "NVIDIA B300 SXM6 AC", "275040", "00000000:3D:00.0", "580.95.05", "[N/A]"]
    assert query("no document", ["index"], units=True) == []


def test_the_kernel_log_keeps_what_a_refusal_wrote() -> None:
    state, _code, _text = load(first_state("node1", "b300", ["peermem_crc"]), "nvidia_peermem")
    reader = clothes(state, KERNEL).reader()
    for argv in (kernel_log.JOURNAL, kernel_log.RING):
        last = kernel_log.parse(reader.run(argv).out)[-1].text
        assert last == "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)"


# -- the program that replays ----------------------------------------------------------------------
@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(costume_replay, "BASE", str(tmp_path))
    (tmp_path / "store").mkdir()
    return tmp_path


def replay(base: Path, monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str, entries: Any = None) -> int:
    if entries is not None:
        (base / "store" / f"{name}.json").write_text(json.dumps(entries), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(base / "sbin" / name), *arguments])
    with pytest.raises(SystemExit) as ended:
        costume_replay.main()
    return int(ended.value.code or 0)


def test_a_recorded_call_is_answered(base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [{"argv": ["-D", "-n"], "rc": 3, "out": "said\n", "err": "moaned\n"}]
    assert replay(base, monkeypatch, "lspci", "-D", "-n", entries=entries) == 3
    assert capsys.readouterr() == ("said\n", "moaned\n")


def test_any_other_call_goes_to_the_real_program(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def become(path: str, argv: list[str]) -> None:
        called.append((path, argv))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", become)
    replay(base, monkeypatch, "cat", "--version", entries=[{"argv": ["-n"], "rc": 0, "out": "", "err": ""}])
    ((path, argv),) = called
    assert (os.path.realpath(path), argv) == (os.path.realpath("/bin/cat"), ["cat", "--version"])


def test_a_program_that_is_nowhere_is_not_found(base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(base, monkeypatch, "nv-no-such-tool", "-x") == 127
    assert "command not found" in capsys.readouterr().err


def test_packages_that_are_really_there_stand_before_the_costume_s(base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = tmp_path / "bin" / "lister"
    real.parent.mkdir()
    real.write_text("#!/bin/sh\nprintf 'nvlsm\\t2025.06.11-1\\tii \\nnvidia-imex\\t\\tun \\n'\n", encoding="ascii")
    real.chmod(0o755)
    monkeypatch.setenv("PATH", str(real.parent))
    monkeypatch.setattr(sys, "argv", [str(base / "sbin" / "lister")])
    assert costume_replay.merged("nvlsm\t2025.06.5-1\thi \nnvidia-open\t580\tii \n", "lister", []) == (
        "nvidia-open\t580\tii \nnvlsm\t2025.06.11-1\tii \n")


def test_a_hung_program_sits_in_uninterruptible_sleep_and_leaves_nothing_when_it_is_killed() -> None:
    program = "from tests.lab.costume_replay import hang; hang()"
    root = str(Path(__file__).resolve().parents[3])
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, start_new_session=True) as hung:
        try:
            deadline = time.monotonic() + 10
            state = ""
            while state != "D" and time.monotonic() < deadline:
                state = Path(f"/proc/{hung.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
                time.sleep(0.05)
            assert state == "D"
            children = Path(f"/proc/{hung.pid}/task/{hung.pid}/children").read_text(encoding="ascii").split()
        finally:
            hung.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{child}") for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children and not any(os.path.exists(f"/proc/{child}") for child in children)


# -- what is copied --------------------------------------------------------------------------------
def test_the_bundle_needs_nothing_of_the_checkout(tmp_path: Path) -> None:
    state = first_state("node1", "b300", ["gpu_lost"])
    with tarfile.open(fileobj=io.BytesIO(costume.bundle(state))) as archive:
        archive.extractall(tmp_path, filter="data")
    program = (
        "import sys; sys.path.insert(0, %r); import json; from tests.lab import costume_node, costume_tools; "
        "from tests.lab.costume_state import clothes, store; state = json.load(open(%r)); "
        "print(len(store(state, clothes(state, 'k'))['nvidia-smi']))" % (str(tmp_path / "lib"), str(tmp_path / "state.json")))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("4\n", "")
    assert os.access(tmp_path / "wear", os.X_OK) and os.access(tmp_path / "replay", os.X_OK)


# -- programs that act, on a node that is only a state ------------------------------------------------
class Node:
    def __init__(self, *faults: str) -> None:
        self.state = first_state("node1", "b300", faults)
        self.kernel = KERNEL
        self.renders = 0

    def render(self) -> None:
        self.renders += 1


def test_modprobe_knows_the_modules_of_the_costume(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costume_tools, "_held", lambda: False)
    node: Any = Node("peermem_missing")
    assert costume_tools.command(node, "modprobe", ["-n", "nvidia-peermem"]) == 0
    assert "nvidia_peermem" not in node.state["modules"]
    assert costume_tools.command(node, "modprobe", ["nvidia-peermem"]) == 0
    assert "nvidia_peermem" in node.state["modules"] and node.renders == 1
    # One that the costume says is loaded is no reason to ask the real program.
    assert costume_tools.command(node, "modprobe", ["ib_umad"]) == 0
    assert costume_tools.command(node, "rmmod", ["nvidia"]) == 1
    assert capsys.readouterr().err == "rmmod: ERROR: Module nvidia is in use.\n"
    assert costume_tools.command(node, "lsmod", []) == 0
    assert any(line.split()[:1] == ["nvidia_peermem"] for line in capsys.readouterr().out.splitlines())


def test_modprobe_leaves_other_modules_to_the_real_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costume_tools, "_real", lambda name, arguments: 77)
    node: Any = Node()
    assert costume_tools.command(node, "modprobe", ["dummy"]) == 77
    assert costume_tools.command(node, "modinfo", ["dummy"]) == 77


def test_modinfo_gives_single_fields(capsys: pytest.CaptureFixture[str]) -> None:
    node: Any = Node()
    assert costume_tools.command(node, "modinfo", ["-F", "version", "nvidia"]) == 0
    assert capsys.readouterr().out == "580.95.05\n"
    node = Node("peermem_absent")
    assert costume_tools.command(node, "modinfo", ["nvidia_peermem"]) == 1
    assert "not found" in capsys.readouterr().err


def test_dkms_notes_what_packages_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    node: Any = Node("driver_r575")
    monkeypatch.setattr(costume_tools.os.path, "isdir", lambda _path: False)
    assert costume_tools.command(node, "dkms", ["install", "-m", "nvidia", "-v", "580.95.05", "-k", KERNEL]) == 21
    assert "headers" in capsys.readouterr().err and node.state["installed"] is None
    monkeypatch.setattr(costume_tools.os.path, "isdir", lambda _path: True)
    assert costume_tools.command(node, "dkms", ["install", "-m", "nvidia", "-v", "580.95.05", "-k", KERNEL]) == 0
    assert node.state["installed"] == "580.95.05"
    # The old version goes after the new one came: that must not take the new one away.
    assert costume_tools.command(node, "dkms", ["remove", "-m", "nvidia", "-v", "575.57.08", "--all"]) == 0
    assert node.state["installed"] == "580.95.05"
    assert costume_tools.command(node, "dkms", ["remove", "nvidia/580.95.05", "--all"]) == 0
    assert node.state["installed"] == ""


def test_commands_of_the_costume_are_those_that_collectors_run() -> None:
    """A collector that asks otherwise tomorrow must not find the real tool unnoticed."""
    state = first_state("node1", "b300", ())
    answers = store(state, clothes(state, KERNEL))
    asked = [argv for module in collect.SECTIONS.values() for argv in module.commands(collect.Options())]
    known = {(name, *entry["argv"]) for name, entries in answers.items() for entry in entries}
    covered = {"nvidia-smi", "ibv_devinfo", "lspci", "modinfo", "dkms", "mokutil", "dmesg", "rdma", "ofed_info", "nvidia-ctk"}
    assert {tuple(argv) for argv in asked if argv[0] in covered} <= known
    assert {driver.MODINFO, gpudirect.MODINFO} <= known


def test_faults_are_those_of_the_costumes() -> None:
    assert set(FAULTS) <= set(LAB_FAULTS)
    worn = clothes(first_state("node1", "b300", ["no_gpu"]), KERNEL)
    assert isinstance(worn.commands[driver.MODINFO], Ran)
    assert costume_node.FOLDERS[0] == "/proc/driver"


def test_the_foreign_holder_has_the_number_of_the_process_that_stands_for_it() -> None:
    state = {**first_state("node1", "b300", ["foreign_holder"]), "holder": 4711}
    assert {process["pid"] for gpu in facts(state)["gpu"]["gpus"] for process in gpu["processes"]} == {4711}
