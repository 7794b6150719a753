# SPDX-License-Identifier: GPL-3.0-or-later
"""Starting and ending what the lab runs.

Each process gets a control group of its own (`inferops-lab/NAME` in every hierarchy) before it
executes anything, so all that it starts, containers in containers included, is found again by that
group even when whoever started it was killed. Nothing is ever ended by name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import LabError

CGROUP_ROOT = Path("/sys/fs/cgroup")
# Another name lets a second lab, with another state folder and bridge, stand beside the first.
GROUP = os.environ.get("INFEROPS_LAB_GROUP") or "inferops-lab"


def hierarchies(root: Path = CGROUP_ROOT) -> list[Path]:
    """The mounted cgroup hierarchies: one on a v2 host, one a controller on v1 or hybrid."""
    if (root / "cgroup.procs").exists():
        return [root]
    if not root.is_dir():
        return []
    found: dict[Path, Path] = {}
    for path in sorted(root.iterdir()):
        # cpu and cpuacct are often links to one hierarchy: count it once.
        if (path / "cgroup.procs").exists():
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _make_group(parent: Path, name: str) -> Path:
    path = parent
    for part in (GROUP, name):
        above, path = path, path / part
        path.mkdir(exist_ok=True)
        # A v1 cpuset takes no process before it has cores and memory nodes.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (path / setting).exists() and not (path / setting).read_text().strip():
                with contextlib.suppress(OSError):
                    (path / setting).write_text((above / setting).read_text())
    return path


def start(
    name: str,
    argv: Sequence[str],
    log: Path,
    env: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
) -> int:
    """Start argv as the lab process `name`, detached, with output appended to log. Returns its pid.

    Raises LabError when `name` is already running or the program is missing.
    """
    if members(name):
        raise LabError(f"the lab process {name} is already running")
    groups = [_make_group(root, name) for root in hierarchies()]
    if not groups:
        raise LabError("no control group hierarchy is mounted under /sys/fs/cgroup")

    def enter() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text("0")

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=stdin,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
                preexec_fn=enter,
            )
        except FileNotFoundError as err:
            raise LabError(f"the program {argv[0]} is not installed") from err
    # The process outlives this one: no zombie is ours to reap, and no warning is wanted.
    child.returncode = 0
    return child.pid


def members(name: str) -> set[int]:
    """Process ids in the group of `name`, its subgroups included."""
    pids: set[int] = set()
    for root in hierarchies():
        top = root / GROUP / name
        if not top.is_dir():
            continue
        for folder, _, files in os.walk(top):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    text = (Path(folder) / "cgroup.procs").read_text()
                    # 0 stands for a process outside this pid namespace.
                    pids.update(int(pid) for pid in text.split() if int(pid) > 0)
    return {pid for pid in pids if not _is_zombie(pid)}


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def names() -> set[str]:
    """All lab processes that have a group, running or not."""
    found: set[str] = set()
    for root in hierarchies():
        top = root / GROUP
        if top.is_dir():
            found.update(path.name for path in top.iterdir() if path.is_dir())
    return found


def end(name: str, grace: float = 0.0, limit: float = 20.0) -> None:
    """End the process `name` and all that it started, then remove its groups.

    grace: seconds between SIGTERM and SIGKILL. Raises LabError when something will not die.
    """
    if grace and (pids := members(name)):
        _signal(pids, signal.SIGTERM)
        _wait_empty(name, grace)
    deadline = time.monotonic() + limit
    while pids := members(name):
        _signal(pids, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise LabError(f"processes {sorted(pids)} of the lab's {name} do not end")
        time.sleep(0.05)
    _remove_groups(name)


def _wait_empty(name: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while members(name) and time.monotonic() < deadline:
        time.sleep(0.05)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _remove_groups(name: str) -> None:
    for root in hierarchies():
        top = root / GROUP / name
        for folder, _, _ in os.walk(top, topdown=False):
            for _ in range(20):
                try:
                    Path(folder).rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    # A group stays busy for a moment after its last process went.
                    time.sleep(0.05)
                else:
                    break
        with contextlib.suppress(OSError):
            (root / GROUP).rmdir()


def run(
    name: str,
    argv: Sequence[str],
    log: Path,
    env: Mapping[str, str] | None = None,
    text_in: str | None = None,
) -> int:
    """Run argv to its end as the lab process `name`, output appended to log; returns its status.

    As with start, what it leaves running when this process is killed is found by `down`.
    """
    groups = [_make_group(root, name) for root in hierarchies()]

    def enter() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text("0")

    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as out:
            done = subprocess.run(
                list(argv),
                input=None if text_in is None else text_in.encode(),
                stdin=subprocess.DEVNULL if text_in is None else None,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                preexec_fn=enter,
                check=False,
            )
        return done.returncode
    except FileNotFoundError as err:
        raise LabError(f"the program {argv[0]} is not installed") from err
    finally:
        end(name)
