# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of this machine, of recorded nodes, and of nodes that do not answer."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time
from typing import Any, Callable

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.evidence import bundle
from tests.costume import Spec

from .conftest import ROOT, lines

Playbook = Callable[..., Any]
FAST = ("-e", '{"evidence_parts": ["facts", "processes", "logs"], "evidence_timeout": 3}')


def bundle_of(folder: pathlib.Path) -> pathlib.Path:
    found = sorted(folder.iterdir())
    assert len(found) == 1
    return found[0]


def test_machine_and_recorded_node_are_frozen_and_an_absent_one_is_named(playbook: Playbook, inventory: Any, tmp_path: pathlib.Path) -> None:
    hosts = inventory({
        "here": {}, "b300-01": Spec(name="b300-01", hardware="b300"),
        "away": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o ConnectTimeout=2"}})
    run = playbook("inferops.vllm.evidence", hosts, "-e", "evidence_dir=%s" % (tmp_path / "ev"), *FAST)
    assert run.rc == 4, run.text
    assert lines(run.text, "away: did not answer") and lines(run.text, "here: ") and lines(run.text, "b300-01: ")
    folder = bundle_of(tmp_path / "ev")
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "b300-01.tar.gz", "here.tar.gz", "index.json"]
    index = json.loads((folder / "index.json").read_text())
    assert set(index["nodes"]) == {"here", "b300-01"} and set(index["unreachable"]) == {"away"} and abs(index["nodes"]["here"]["skew"]) < 30
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert folder.stat().st_mode & 0o77 == 0 and (folder / "here.tar.gz").stat().st_mode & 0o77 == 0
    with tarfile.open(folder / "here.tar.gz") as tar:
        names = tar.getnames()
    assert {"here/evidence.json", "here/snapshot.json", "here/MANIFEST.sha256"} <= set(names)

    # The bundle is judged as the recording was.
    again = inventory({"b300-01": {"vllm_node_root": str(folder / "b300-01.tar.gz")}})
    before = playbook("inferops.vllm.preflight", hosts, "--limit", "b300-01", "-e", "preflight_fail_on=never")
    after = playbook("inferops.vllm.preflight", again, "-e", "preflight_fail_on=never")
    assert after.rc == 0 and after.statuses("b300-01")["driver.branch"] == before.statuses("b300-01")["driver.branch"] == "pass"


def test_a_node_on_which_nothing_can_be_written_is_streamed(playbook: Playbook, inventory: Any, tmp_path: pathlib.Path) -> None:
    """Inodes used up or a file system that became read-only: df shows room, and no temporary folder can be made."""
    hosts = inventory({"sealed": {"ansible_remote_tmp": "/proc/nothing"}})
    run = playbook("inferops.vllm.evidence", hosts, "-e", "evidence_dir=%s" % (tmp_path / "ev"), *FAST)
    assert run.rc == 0 and lines(run.text, "sealed: ") and "streamed" in run.text, run.text
    assert (bundle_of(tmp_path / "ev") / "sealed.tar.gz").is_file()


def test_a_second_call_makes_a_second_bundle(playbook: Playbook, inventory: Any, tmp_path: pathlib.Path) -> None:
    hosts = inventory({"b300-01": Spec(name="b300-01", hardware="b300")})
    for _call in range(2):
        assert playbook("inferops.vllm.evidence", hosts, "-e", "evidence_dir=%s" % (tmp_path / "ev")).rc == 0
    assert len(list((tmp_path / "ev").iterdir())) == 2


def test_check_says_what_it_would_do_and_writes_nothing(playbook: Playbook, inventory: Any, tmp_path: pathlib.Path) -> None:
    hosts = inventory({"here": {}, "b300-01": Spec(name="b300-01", hardware="b300")})
    run = playbook("inferops.vllm.evidence", hosts, "--check", "-e", "evidence_dir=%s" % (tmp_path / "ev"))
    assert run.rc == 0 and not (tmp_path / "ev").exists()
    assert lines(run.text, "here: would be frozen") and lines(run.text, "logs of this boot: vllm.service") and lines(run.text, "the recording ")


def test_a_damaged_recording_fails_that_node_alone(playbook: Playbook, inventory: Any, tmp_path: pathlib.Path) -> None:
    hosts = inventory({"good": Spec(name="good", hardware="b300"), "bad": Spec(name="bad", hardware="b300")})
    damaged = hosts.parent / "nodes/bad/commands.json"
    damaged.write_text(damaged.read_text() + " ")
    run = playbook("inferops.vllm.evidence", hosts, "-e", "evidence_dir=%s" % (tmp_path / "ev"))
    assert run.rc == 2 and "commands.json is not what was recorded" in run.text and "Traceback" not in run.text
    assert [path.name for path in bundle_of(tmp_path / "ev").glob("*.tar.gz")] == ["good.tar.gz"]
    assert lines(run.text, "bad: not frozen") or "fatal: [bad]" in run.text


def test_bad_arguments_are_refused_with_one_sentence(playbook: Playbook, inventory: Any, tmp_path: pathlib.Path) -> None:
    hosts = inventory({"here": {}})
    for argument, told in (("evidence_format=rar", "evidence_format"), ("evidence_log_mib=0", "log_mib: 0 is not between")):
        run = playbook("inferops.vllm.evidence", hosts, "-e", "evidence_dir=%s" % (tmp_path / "ev"), "-e", argument)
        assert run.rc == 2 and told in run.text and "Traceback" not in run.text


@pytest.mark.parametrize(("number", "when"), [
    (signal.SIGINT, "opened"), (signal.SIGINT, "archive"), (signal.SIGKILL, "opened"), (signal.SIGKILL, "writing"), (signal.SIGKILL, "archive")])
def test_a_call_that_is_killed_leaves_nothing_half_and_the_next_one_is_whole(
        playbook: Playbook, inventory: Any, tmp_path: pathlib.Path, number: signal.Signals, when: str) -> None:
    """Struck when the folder is there, while an archive is written, and when the first one is whole."""
    hosts = inventory({"b300-%02d" % count: Spec(name="b300-%02d" % count, hardware="b300") for count in range(1, 5)})
    base = tmp_path / "ev"
    wanted = {"opened": "*Z", "writing": "*Z/*.part-*", "archive": "*Z/*.tar.gz"}[when]
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORKS": "1", "ANSIBLE_NOCOLOR": "1"}
    argv = [str(pathlib.Path(sys.executable).with_name("ansible-playbook")), "inferops.vllm.evidence", "-i", str(hosts), "-e", "evidence_dir=%s" % base]
    # What runs in the background of a shell ignores SIGINT, and so would its children.
    process = subprocess.Popen(
        argv, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        end = time.monotonic() + 90
        while not list(base.glob(wanted)) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        assert process.poll() is None, "it had ended before it was struck"
        os.killpg(process.pid, number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            # Ansible can wait for itself for ever when the signal comes between two tasks; a person then kills it.
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(20) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    struck = next(base.iterdir())
    assert not (struck / "index.json").exists()
    for archive in struck.glob("*.tar.gz"):
        assert bundle.open_bundle(str(archive)).problems == []
    asked = ("-e", json.dumps({"diagnose_paths": [str(struck)]}), "-e", "diagnose_report_dir=%s" % (tmp_path / "d"))
    told = playbook("inferops.vllm.diagnose", "localhost,", *asked)
    text = " ".join(told.text.split())
    if list(struck.glob("*.tar.gz")):
        assert told.rc == 0 and "was not finished" in text, told.text
    else:
        assert told.rc == 2 and "holds no log" in text, told.text
    assert playbook("inferops.vllm.evidence", hosts, "-e", "evidence_dir=%s" % base).rc == 0
    whole = next(folder for folder in base.iterdir() if folder != struck)
    assert len(list(whole.glob("*.tar.gz"))) == 4 and json.loads((whole / "index.json").read_text())["nodes"].keys() == {
        "b300-01", "b300-02", "b300-03", "b300-04"}
    assert not list(whole.glob("*.part-*"))
