# SPDX-License-Identifier: GPL-3.0-or-later
"""Work that outlives its caller: started once, asked how far it is, found dead when it was killed; and its line on the terminal."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils import jobs
from ansible_collections.inferops.vllm.plugins.plugin_utils import long_work


def wait(folder: str, seconds: float = 10.0) -> jobs.State:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        state = jobs.state("job", folder)
        if not state.running:
            return state
        time.sleep(0.02)
    raise AssertionError("the job does not end")


def until(path: Path) -> None:
    limit = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_job_works_apart_and_leaves_its_result(tmp_path: Path) -> None:
    folder = str(tmp_path)

    def work(tell: jobs.Tell) -> dict[str, Any]:
        tell("image", 1, 2)
        until(tmp_path / "go")
        return {"changed": True, "session": os.getsid(0), "in": os.readlink("/proc/self/fd/0")}

    assert jobs.state("job", folder) == jobs.State(False, {}, None)
    assert jobs.start("job", "a", work, folder) is True
    until(tmp_path / "job" / "progress.json")
    state = jobs.state("job", folder)
    assert state.running and state.progress["what"] == "image" and state.result is None
    assert jobs.start("job", "a", work, folder) is False
    with pytest.raises(jobs.Busy):
        jobs.start("job", "b", work, folder)
    (tmp_path / "go").touch()
    result = wait(folder).result
    assert result is not None and result["changed"] and result["session"] != os.getsid(0) and result["in"] == "/dev/null"
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o700


def test_a_job_that_raises_says_so(tmp_path: Path) -> None:
    def work(tell: jobs.Tell) -> dict[str, Any]:
        raise ValueError("no")

    jobs.start("job", "a", work, str(tmp_path))
    assert wait(str(tmp_path)).result == {"failed": True, "msg": "job failed: ValueError: no"}


@pytest.mark.parametrize(("number", "result"), [(signal.SIGTERM, {"failed": True, "msg": "job was ended by a signal"}), (signal.SIGKILL, None)])
def test_a_job_that_is_ended(tmp_path: Path, number: int, result: Any) -> None:
    def work(tell: jobs.Tell) -> dict[str, Any]:
        (tmp_path / "pid.new").write_text(str(os.getpid()))
        (tmp_path / "pid.new").rename(tmp_path / "pid")
        time.sleep(60)
        return {}

    jobs.start("job", "a", work, str(tmp_path))
    until(tmp_path / "pid")
    os.kill(int((tmp_path / "pid").read_text()), number)
    assert wait(str(tmp_path)) == jobs.State(False, {}, result)
    # The next one starts anew.
    assert jobs.start("job", "b", lambda tell: {"n": 1}, str(tmp_path)) is True
    assert wait(str(tmp_path)).result == {"n": 1}


def test_an_old_result_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    jobs.start("job", "a", lambda tell: {"n": 1}, str(tmp_path))
    wait(str(tmp_path))
    (tmp_path / "job" / "result.json").write_text("{nonsense")
    assert jobs.state("job", str(tmp_path)).result is None


def test_progress_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    listener = jobs.Listener(str(tmp_path / "p"))
    for number in range(1000):
        listener.tell("x", number, 0)
    assert json.loads((tmp_path / "p").read_text())["done"] == 0


@pytest.mark.parametrize(("progress", "before", "line"), [
    ({"what": "image", "done": 4_100_000_000, "total": 9_800_000_000, "at": 15.0}, None, "image: 4.1 of 9.8 GB (41 %)"),
    ({"what": "image", "done": 4_100_000_000, "total": 9_800_000_000, "at": 15.0}, {"what": "image", "done": 2_600_000_000, "at": 0.0},
     "image: 4.1 of 9.8 GB (41 %), 100 MB/s, about 57 s left"),
    ({"what": "image", "done": 1_000_000_000, "total": 1_000_000_000_000, "at": 10}, {"what": "image", "done": 0, "at": 0},
     "image: 1.0 of 1000.0 GB (0 %), 100 MB/s, about 2.8 h left"),
    ({"what": "waiting for node3", "done": 0, "total": 0}, None, "waiting for node3"),
    ({"what": "b", "done": 5_000_000_000, "total": 0, "at": 2}, {"what": "a", "done": 1, "at": 1}, "b: 5.0 GB"),
    ({}, {}, "working"),
    ({"what": 3, "done": "x", "total": None}, {"what": 3}, "3"),
])
def test_the_line_on_the_terminal(progress: dict[str, Any], before: Any, line: str) -> None:
    assert long_work.line(progress, before) == line
