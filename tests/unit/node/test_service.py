# SPDX-License-Identifier: GPL-3.0-or-later
"""Section service of the facts, what systemd says of units, and the probe of processes behind several sections."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import processes, service, systemd
from ansible_collections.inferops.vllm.plugins.module_utils.node.children import in_children
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import MemoryReader, Ran

ID64 = "0123456789abcdef" * 4
SHOWN = (
    "MainPID=4120\nNRestarts=2\nActiveEnterTimestamp=Sat 2026-11-28 10:00:00 UTC\nId=vllm.service\nLoadState=loaded\nActiveState=active\n"
    "SubState=running\nFragmentPath=/etc/systemd/system/vllm.service\nUnitFileState=enabled\n"
    "DropInPaths=/etc/systemd/system/vllm.service.d/10-a.conf /etc/systemd/system/vllm.service.d/20-b.conf\n")
GONE = (
    "MainPID=0\nNRestarts=0\nActiveEnterTimestamp=\nId=other.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n"
    "FragmentPath=\nUnitFileState=\n")


def facts_of(shown: Any, files: Optional[Dict[str, Any]] = None, probes: Optional[Dict[Tuple[str, str], Any]] = None,
             units: Tuple[str, ...] = ("vllm.service",)) -> Dict[str, Any]:
    probes = {("processes", ""): {"vllm": []}, **(probes or {})}
    return service.collect(MemoryReader(files, {}, {systemd.show_command(units): shown}, probes), Options(units=units))


# -- units -------------------------------------------------------------------------------------------
def test_units_are_told_with_their_files() -> None:
    facts = facts_of(SHOWN + "\n" + GONE, units=("vllm.service", "other.service"))
    assert facts["units"][0] == {
        "name": "vllm.service", "installed": True, "active": "active", "sub": "running", "enabled": "enabled",
        "since": "Sat 2026-11-28 10:00:00 UTC",
        "restarts": 2, "main_pid": 4120, "fragment": "/etc/systemd/system/vllm.service",
        "dropins": ["/etc/systemd/system/vllm.service.d/10-a.conf", "/etc/systemd/system/vllm.service.d/20-b.conf"]}
    assert facts["units"][1]["installed"] is False and facts["units"][1]["active"] == "inactive" and facts["unknown"] == {}


@pytest.mark.parametrize("answer", [
    Ran(1, "", "System has not been booted with systemd as init system (PID 1). Can't operate.\n"), Ran(None, error="missing"),
    Ran(None, error="timeout"), Ran(0, "nonsense\n"), Ran(0, "")])
def test_without_systemd_units_are_unknown(answer: Ran) -> None:
    facts = facts_of(answer)
    assert facts["units"] is None and facts["unknown"]["units"]


def test_a_masked_unit_and_a_property_that_repeats() -> None:
    assert systemd.parse_show("Id=a.service\nLoadState=masked\nUnitFileState=\n")["a.service"] == {"installed": True, "enabled": "masked"}
    assert systemd.blocks("A=1\nA=2\n\n\nB=x=y\n") == [{"A": ["1", "2"]}, {"B": ["x=y"]}]
    assert systemd.parse_show("LoadState=loaded\n") == {}


def test_names_that_are_no_units_reach_no_command() -> None:
    assert service.commands(Options(units=("--all", "a b", "/etc/x", "vllm@1.service"))) == [systemd.show_command(["vllm@1.service"])]
    assert service.commands(Options(units=())) == [] and facts_of("", units=("-x",))["units"] == []


@pytest.mark.parametrize(("cgroup", "owner"), [
    ("/system.slice/docker-%s.scope" % ID64, {"container": ID64[:12]}),
    ("/docker/" + ID64, {"container": ID64[:12]}),
    ("/system.slice/docker.service/docker/" + ID64, {"container": ID64[:12]}),
    ("/system.slice/vllm.service/libpod-payload-" + ID64, {"container": ID64[:12], "unit": "vllm.service"}),
    ("/kubepods.slice/kubepods-pod1.slice/cri-containerd-%s.scope" % ID64, {"container": ID64[:12]}),
    ("/system.slice/vllm.service", {"unit": "vllm.service"}),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service", {"unit": "vllm.service"}),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-1.scope", {}),
    ("/user.slice/user-1000.slice/session-4.scope", {}), ("/", {}), ("", {})])
def test_owner_of_a_process(cgroup: str, owner: Dict[str, str]) -> None:
    assert systemd.owner(cgroup) == owner


# -- environment files -------------------------------------------------------------------------------
def test_environment_files_are_digests_and_never_content() -> None:
    files = {
        "/etc/systemd/system/vllm.service": "[Service]\nEnvironmentFile=/etc/old\nEnvironmentFile=\nEnvironmentFile=-/etc/vllm/vllm.env\n"
        "# EnvironmentFile=/etc/comment\nEnvironmentFile=/etc/vllm/conf.d/*.env\nEnvironmentFile=/run/%i\n"
        "ExecStart=/usr/bin/docker run \\\n  --env-file=/etc/vllm/docker.env \\\n  image\n",
        "/etc/systemd/system/vllm.service.d/10-a.conf": "[Service]\nEnvironmentFile=/etc/vllm/gone.env\n",
        "/etc/vllm/conf.d/a.env": "", "/etc/vllm/conf.d/b.txt": "",
    }
    assert service.parse_env_files(files["/etc/systemd/system/vllm.service"]) == [
        "/etc/vllm/vllm.env", "/etc/vllm/conf.d/*.env", "/etc/vllm/docker.env"]
    digests = {path: "d" + path for path in ("/etc/vllm/vllm.env", "/etc/vllm/docker.env", "/etc/vllm/conf.d/a.env")}
    facts = facts_of(SHOWN, files, {("sha256", path): value for path, value in digests.items()})
    assert facts["env_files"] == digests and facts["unknown"] == {}


def test_an_environment_file_that_may_not_be_read_is_unknown(tmp_path: Path) -> None:
    env = tmp_path / "vllm.env"
    env.write_text("A=1\n")
    assert LiveReader(5.0).probe("sha256", str(env)).value == hashlib.sha256(b"A=1\n").hexdigest()
    assert LiveReader(5.0).probe("sha256", str(tmp_path)).error == "io:EISDIR"
    env.write_bytes(b"x" * (1 << 20) + b"y")
    assert LiveReader(5.0).probe("sha256", str(env)).error == "io:EFBIG"
    files = {"/etc/systemd/system/vllm.service": "EnvironmentFile=/etc/secret.env\n"}
    reader = MemoryReader(files, {}, {systemd.show_command(("vllm.service",)): SHOWN}, {("processes", ""): {"vllm": []}}, absent="denied")
    assert service.collect(reader, Options())["unknown"]["env_files"] == "/etc/secret.env could not be read: denied"


# -- processes ---------------------------------------------------------------------------------------
def test_running_servers_are_told_with_unit_and_container() -> None:
    cgroup = "/system.slice/docker-%s.scope" % ID64
    detail = {"argv": ["vllm", "serve", "m"], "env": {"NCCL_DEBUG": "INFO"}, "started": 12.5, "cgroup": cgroup}
    facts = facts_of(SHOWN, probes={("processes", ""): {"vllm": [7, 8]}, ("process_detail", "7"): detail, ("process_detail", "8"): {}})
    assert facts["processes"] == [
        {"pid": 7, "argv": ["vllm", "serve", "m"], "env": {"NCCL_DEBUG": "INFO"}, "started": 12.5, "container": ID64[:12]}]
    assert facts["unknown"] == {}


@pytest.mark.parametrize(("scanned", "detail", "phrase"), [
    (None, {}, "could not be looked through"), ({"vllm": [], "vllm_error": "timeout"}, {}, "command lines"),
    ({"vllm": [], "hidden": True}, {}, "hidden"), ({"vllm": [], "truncated": True}, {}, "more processes"),
    ({"vllm": [7]}, {"argv": ["vllm"], "env": None}, "may not be read")])
def test_what_could_not_be_seen_of_processes(scanned: Any, detail: Any, phrase: str) -> None:
    facts = facts_of(SHOWN, probes={("processes", ""): scanned, ("process_detail", "7"): detail})
    assert phrase in facts["unknown"]["processes"]


@pytest.mark.parametrize(("argv", "expected"), [
    (["vllm", "serve", "m"], True), (["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m"], True),
    (["python3", "-m", "vllm.entrypoints.openai.api_server"], True),
    (["VLLM::EngineCore"], True), (["VLLM::EngineCore_DP0"], True), (["VLLM::Worker_TP0"], False), (["vllm", "bench", "serve"], False),
    (["python3", "-m", "pytest", "vllm", "x"], False), (["python3", "train.py"], False), ([], False), ([""], False)])
def test_what_is_a_server(argv: List[str], expected: bool) -> None:
    assert processes.is_vllm(argv) is expected


def test_secrets_never_leave_a_command_line() -> None:
    argv = [
        "vllm", "serve", "m", "--api-key", "first", "second", "--max-num-batched-tokens", "8192", "--hf-token=abc", "--tokenizer", "t",
        "--token", "x", "--served-model-name", "hf_0123456789abcdefghij",
        "--speculative-config", '{"api_key": "inner", "num_speculative_tokens": 3}',
    ]
    shown = processes.hide(argv)
    assert len(shown) == len(argv)
    for secret in ("first", "second", "abc", "inner", "hf_0123456789abcdefghij"):
        assert not any(secret in part for part in shown)
    assert shown[shown.index("--token") + 1] != "x"
    assert shown[shown.index("--max-num-batched-tokens") + 1] == "8192" and shown[shown.index("--tokenizer") + 1] == "t"
    assert "num_speculative_tokens\": 3" in shown[-1]


def test_only_listed_variables_leave_an_environment() -> None:
    found = processes.wanted_environment(
        "HOME=/root\0NCCL_DEBUG=INFO\0AWS_SECRET=x\0LD_LIBRARY_PATH=/a\0VLLM_API_KEY=hidden\0PG_PASS=y\0NCCL_\0")
    assert set(found) == {"NCCL_DEBUG", "LD_LIBRARY_PATH", "VLLM_API_KEY"} and "hidden" not in found["VLLM_API_KEY"]


class Proc:
    """A /proc of files, with the processes that a test asks for."""

    def __init__(self, root: Path) -> None:
        self.proc, self.dev = root / "proc", root / "dev"
        self.proc.mkdir()
        self.dev.mkdir()
        (self.proc / "uptime").write_text("1000.00 900.00\n")

    def add(self, pid: int, comm: str, state: str = "S", ppid: int = 1, flags: int = 0, started: int = 100, argv: Sequence[str] = (),
            fds: Sequence[str] = (), **files: str) -> None:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "stat").write_text("%d (%s) %s %d 1 1 0 -1 %d 0 0 0 0 5 6 0 0 20 0 1 0 %d 0\n" % (pid, comm, state, ppid, flags, started))
        (folder / "cmdline").write_text("\0".join(argv) + "\0" if argv else "")
        for number, target in enumerate(fds):
            (folder / "fd" / str(number)).symlink_to(target)
        for name, text in files.items():
            (folder / name).write_text(text)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    made = Proc(tmp_path)
    monkeypatch.setattr(processes, "PROC", str(made.proc))
    monkeypatch.setattr(processes, "DEV", str(made.dev))
    monkeypatch.setattr(processes, "SETTLE", 0.01)
    made.add(1, "systemd")
    return made


def test_stuck_processes_are_those_that_wait_in_a_driver(proc: Proc) -> None:
    proc.add(10, "nvidia-smi", "D")
    proc.add(11, "python3", "D", wchan="uvm_ioctl_wait")
    proc.add(12, "python3", "D", wchan="0", stack="[<0>] rwsem_down_read_slowpath+0x1\n[<0>] nvidia_unlocked_ioctl+0x3 [nvidia]\n")
    proc.add(13, "dd", "D", wchan="io_schedule")
    proc.add(14, "calib_tool", "D", wchan="wait_for_x", stack="[<0>] lib_ib_like+0x1\n")
    proc.add(15, "nvidia-smi", "S")
    proc.add(16, "nvidia-smi", "D", started=99990)
    proc.add(17, "kworker/u8:1-mlx5_cmd", "D", flags=0x00200000)
    assert processes.scan(in_children)["stuck"] == [
        {"pid": pid, "comm": comm, "state": "D"} for pid, comm in
        ((10, "nvidia-smi"), (11, "python3"), (12, "python3"), (17, "kworker/u8:1-mlx5_cmd"))]


def test_where_a_process_waits_that_may_not_be_seen_is_not_known(proc: Proc) -> None:
    # What a user without privileges sees of others: wchan holds 0, stack cannot be read.
    proc.add(10, "python3", "D", wchan="0")
    proc.add(11, "dd", "D", wchan="io_schedule")
    proc.add(12, "python3", "D", wchan="0", started=99990)
    found = processes.scan(in_children)
    assert (found["stuck"], found["unseen"]) == ([], 1)
    proc.add(13, "nvidia-smi", "D", wchan="0")
    found = processes.scan(in_children)
    assert ([item["pid"] for item in found["stuck"]], found["unseen"]) == ([13], 1)


@pytest.mark.parametrize("later", ["S 1 1 1 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 100 0", "D 1 1 1 0 -1 0 0 0 0 0 5 7 0 0 20 0 1 0 100 0"])
def test_a_process_that_moves_on_is_not_stuck(proc: Proc, monkeypatch: pytest.MonkeyPatch, later: str) -> None:
    proc.add(10, "nvidia-smi", "D")

    def wake(_seconds: float) -> None:
        (proc.proc / "10" / "stat").write_text("10 (nvidia-smi) %s\n" % later)

    monkeypatch.setattr(processes.time, "sleep", wake)
    assert processes.scan(in_children)["stuck"] == []


def test_the_files_of_a_stuck_process_that_block_are_left_alone(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(10, "python3", "D", argv=["vllm", "serve", "m"])
    proc.add(11, "python3", "S", argv=["vllm", "serve", "m"], environ="NCCL_DEBUG=INFO\0")
    opened: List[str] = []
    real = processes._text
    monkeypatch.setattr(processes, "_text", lambda path: (opened.append(path), real(path))[1])
    # Without a child, so that what is opened can be seen.
    found = processes.scan(lambda jobs, _deadline: {name: (job(), "") for name, job in jobs.items()})
    assert found["vllm"] == [11] and processes.detail("10") == {}
    assert str(proc.proc / "11" / "cmdline") in opened and str(proc.proc / "10" / "cmdline") not in opened


def test_holders_of_gpus(proc: Proc) -> None:
    cgroup = "12:pids:/x\n0::/system.slice/docker-%s.scope\n" % ID64
    open_files = ["/dev/nvidia0", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    proc.add(20, "VLLM::Worker_TP", fds=open_files, cgroup=cgroup)
    proc.add(21, "bash", fds=["/dev/pts/0", "/dev/nvidiactl"])
    proc.add(22, "kthread", flags=0x00200000, fds=["/dev/nvidia0"])
    proc.add(23, "defunct", "Z", fds=["/dev/nvidia0"])
    proc.add(processes.ORIGIN, "python3")
    proc.add(processes.ORIGIN + 100000, "nvidia-smi", ppid=processes.ORIGIN, fds=["/dev/nvidia0"])
    assert processes.scan(in_children)["holders"] == []
    (proc.dev / "nvidia0").write_text("")
    found = processes.scan(in_children)
    assert found["holders"] == [
        {"pid": 20, "comm": "VLLM::Worker_TP", "state": "S", "devices": 2, "cgroup": "/system.slice/docker-%s.scope" % ID64, "orphan": True}]
    assert (found["denied"], found["hidden"], found["truncated"]) == (0, False, False)


def test_an_orphan_is_of_an_engine_whose_server_is_gone(proc: Proc) -> None:
    (proc.dev / "nvidia0").write_text("")
    for pid, comm, ppid in ((20, "vllm", 1), (21, "VLLM::EngineCor", 20), (22, "VLLM::Worker_TP", 21),  # a server that runs
                            (30, "VLLM::EngineCor", 1), (31, "VLLM::Worker_TP", 30),  # one that is gone
                            (40, "VLLM::Worker_TP", 999), (50, "python3", 1)):  # a parent that may not be seen
        proc.add(pid, comm, ppid=ppid, fds=["/dev/nvidia0"])
    assert [holder["pid"] for holder in processes.scan(in_children)["holders"] if holder["orphan"]] == [30, 31]


def test_open_files_that_may_not_be_seen_are_counted(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    (proc.dev / "nvidia0").write_text("")
    proc.add(20, "other")

    def refuse(_pid: int) -> int:
        raise PermissionError

    monkeypatch.setattr(processes, "_open_gpus", refuse)
    assert processes.scan(in_children)["denied"] == 2


def test_a_proc_that_hides_others_says_so(proc: Proc) -> None:
    (proc.proc / "1").rename(proc.proc / "gone")
    found = processes.scan(in_children)
    assert found["hidden"] is True and found["denied"] == 1


def test_command_lines_that_block_cost_only_themselves(proc: Proc) -> None:
    proc.add(30, "python3")
    (proc.proc / "30" / "cmdline").unlink()
    os.mkfifo(proc.proc / "30" / "cmdline")
    started = time.monotonic()
    found = processes.scan(in_children)
    assert found["vllm"] == [] and found["vllm_error"] == "timeout" and time.monotonic() - started < 4


def test_servers_come_before_their_engines_and_at_most_eight(proc: Proc) -> None:
    proc.add(40, "VLLM::EngineCor", ppid=41, started=90, argv=["VLLM::EngineCore"])
    proc.add(41, "vllm", started=200, argv=["/usr/bin/python3", "/usr/bin/vllm", "serve", "m"])
    for pid in range(50, 60):
        proc.add(pid, "VLLM::EngineCor", ppid=41, started=300 + pid, argv=["VLLM::EngineCore_DP%d" % pid])
    assert processes.scan(in_children)["vllm"] == [41, 40, *range(50, 56)]


def test_a_scan_is_bounded_in_number_and_in_time(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(100, 120):
        proc.add(pid, "vllm", argv=["vllm", "serve", "m"])
    assert processes.scan(in_children)["truncated"] is False
    monkeypatch.setattr(processes, "MAX_PIDS", 5)
    found = processes.scan(in_children)
    assert found["truncated"] is True and found["vllm"] == [100, 101, 102, 103]
    monkeypatch.setattr(processes, "BUDGET", -1.0)
    assert processes.scan(in_children)["vllm"] == []


def test_a_live_process_is_found_with_its_command_line_and_environment(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("import time\ntime.sleep(60)\n")
    env = {**os.environ, "NCCL_DEBUG": "INFO", "VLLM_API_KEY": "not-to-be-seen", "PRIVATE": "x"}
    argv = [sys.executable, str(program), "serve", "model", "--api-key", "not-to-be-seen"]
    child = subprocess.Popen(argv, env=env, start_new_session=True)
    try:
        reader = LiveReader(5.0)
        # It is a child of this process, so the scan takes it for one of ours: only its details are looked at.
        until = time.monotonic() + 5
        detail: Dict[str, Any] = {}
        while time.monotonic() < until and "serve" not in detail.get("argv", []):
            reader.memo.clear()
            detail = reader.probe("process_detail", str(child.pid)).value
        assert detail["argv"][1:4] == [str(program), "serve", "model"] and "not-to-be-seen" not in json.dumps(detail)
        assert detail["env"]["NCCL_DEBUG"] == "INFO" and "PRIVATE" not in detail["env"] and detail["started"] > 0
    finally:
        child.kill()
        child.wait()


def test_a_process_that_is_gone_has_no_details() -> None:
    assert LiveReader(5.0).probe("process_detail", "4194999").value == {}
    assert "ValueError" in LiveReader(5.0).probe("process_detail", "x").error


# -- anything in, no exception out -------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(st.text(), st.integers(0, len(SHOWN)))
def test_any_text(text: str, at: int) -> None:
    for form in (text, SHOWN[:at] + text + SHOWN[at:]):
        systemd.parse_show(form)
        systemd.owner(form)
        service.parse_env_files(form)
        processes.parse_stat(form)
        processes.is_vllm(form.split())
        processes.wanted_environment(form)
        json.dumps(facts_of(form))
    words = text.replace("\0", " ").split()
    assert len(processes.hide(words)) == len(words)


def test_a_comm_may_hold_parentheses_and_blanks() -> None:
    found = processes.parse_stat("7 (a) S (b c) D 1 7 7 0 -1 4194304 1 2 3 4 10 20 0 0 20 0 1 0 555 0 0")
    assert found is not None and (found.comm, found.state, found.ppid, found.cpu, found.started) == ("a) S (b c", "D", 1, 30, 555)
    assert processes.parse_stat("7 (a) S") is None


# -- the state file of a remediation -------------------------------------------------------------------------------
@pytest.mark.parametrize(("text", "machine", "expected"), [
    ('{"machine": "0123abcd"}', "0123abcd", False),
    ('{"machine": "0123abcd"}', "ffff0000", True),
    ('{"machine": ""}', "0123abcd", None),
    ('{"machine": 3}', "0123abcd", None),
    ("[]", "0123abcd", None),
    ("{", "0123abcd", None),
    ('{"machine": "0123abcd"}', None, None),
    (None, "0123abcd", None),
])
def test_a_state_file_of_another_machine_is_told(text: Any, machine: Any, expected: Any) -> None:
    probes = {("sha256", "/etc/machine-id"): hashlib.sha256((machine + "\n").encode()).hexdigest()} if machine else {}
    files = {service.REMEDIATION: text} if text is not None else {}
    facts = service.collect(MemoryReader(files, {}, {}, probes), Options(units=()))
    assert facts["remediation_foreign"] is expected and facts["remediation"] == text
