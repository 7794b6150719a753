# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lab import processes


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["cgroup.procs"], [""]),
        (["cpu/cgroup.procs", "memory/cgroup.procs", "plain/x"], ["cpu", "memory"]),
        ([], []),
    ],
)
def test_hierarchies_of_both_layouts(tmp_path: Path, files: list[str], expected: list[str]) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert processes.hierarchies(tmp_path) == [tmp_path / name for name in expected]


def test_linked_controllers_count_once(tmp_path: Path) -> None:
    (tmp_path / "cpu,cpuacct").mkdir()
    (tmp_path / "cpu,cpuacct/cgroup.procs").touch()
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    assert len(processes.hierarchies(tmp_path)) == 1


def test_no_hierarchy_no_process(tmp_path: Path) -> None:
    assert processes.hierarchies(tmp_path / "absent") == []


def test_members_of_a_group_and_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / processes.GROUP / "node-a/docker/x"
    inner.mkdir(parents=True)
    (tmp_path / "cgroup.procs").touch()
    (inner / "cgroup.procs").write_text(f"0\n{os.getpid()}\n")
    monkeypatch.setattr(processes, "hierarchies", lambda: [tmp_path])
    assert processes.members("node-a") == {os.getpid()}
    assert processes.members("node") == set()
    assert processes.names() == {"node-a"}
