# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where weights stand: the folder of a model, the file system below it, its space, and who may write there.

Layout of a hub cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import time
from typing import Callable, List, NamedTuple

from ..node.storage import Mount, mount_of, parse_mounts

MARGIN = 0.10
"""Share of the missing bytes that must be free beyond them."""
HEARTBEAT = 20.0
STALE = 180.0
LOCK = ".inferops-vllm.lock"
COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?\Z")


class WeightsProblem(Exception):
    """Why weights cannot be brought here: one sentence, with the kind of the trouble."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


def usable_model(model: str) -> bool:
    """True for the id of a model (``owner/name``)."""
    return bool(_MODEL.match(model)) and ".." not in model and "--" not in model


def hub_folder(home: str, model: str) -> str:
    """Folder of a model in the hub cache below HF_HOME."""
    return os.path.join(home, "hub", "models--" + model.replace("/", "--"))


def snapshot(home: str, model: str, revision: str) -> str:
    """Folder of one revision; empty when the revision is a name that nothing here tells the commit of."""
    folder = hub_folder(home, model)
    commit = revision if COMMIT.match(revision) else _first_line(os.path.join(folder, "refs", revision or "main"))
    return os.path.join(folder, "snapshots", commit) if COMMIT.match(commit) else ""


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(100).strip()
    except (OSError, ValueError):
        return ""


# -- the file system --------------------------------------------------------------------------------
def mounts() -> List[Mount]:
    """All mounts of this process."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return parse_mounts(file.read())
    except OSError:
        return []


def unmounted(path: str, mounted: List[Mount], fstab: str, demanded: str = "") -> str:
    """A mount point above `path` that should be mounted and is not, empty when all is well.

    Args:
        fstab: text of /etc/fstab.
        demanded: mount point that the user says must be there.
    """
    points = {mount.point.rstrip("/") for mount in mounted}
    wanted = [demanded.rstrip("/")] if demanded else []
    for line in fstab.splitlines():
        fields = line.split("#")[0].split()
        if len(fields) >= 4 and fields[1].startswith("/") and fields[2] != "swap" and "noauto" not in fields[3].split(","):
            wanted.append(re.sub(r"\\040", " ", fields[1]).rstrip("/"))
    for point in wanted:
        if point and (path == point or path.startswith(point + "/")) and point not in points:
            return point
    return ""


def existing(path: str) -> str:
    """The nearest folder at or above `path` that is there."""
    while path != "/" and not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    return path


class Space(NamedTuple):
    """What is free: bytes, inodes (0 where they are not counted), the mount point, its device, and whether it can be written."""

    free: int
    inodes: int
    mount: str
    device: str
    writable: bool


def space(path: str) -> Space:
    """Free space where `path` is or would be. Raises OSError."""
    told = os.statvfs(existing(path))
    mount = mount_of(os.path.realpath(existing(path)), mounts())
    return Space(
        told.f_bavail * told.f_frsize, told.f_favail if told.f_files else 0, mount.point if mount else "?", mount.device if mount else "?",
        not told.f_flag & os.ST_RDONLY)


def need(total: int, there: int, files: int, room: Space, path: str) -> None:
    """Refuse what does not fit, with the arithmetic.

    Args:
        total: bytes of all files; `there`: bytes of them that are here already; `files`: how many are to be made.

    Raises:
        WeightsProblem: too few bytes or inodes.
    """
    missing = max(0, total - there)
    needed = int(missing * (1 + MARGIN))
    if needed > room.free:
        raise WeightsProblem("%s: the weights do not fit: %s − %s already there = %s, + %.0f %% = %s needed, and %s are free in %s (%s)" % (
            path, gigabytes(total), gigabytes(there), gigabytes(missing), MARGIN * 100, gigabytes(needed), gigabytes(room.free), room.mount, room.device),
            "disk_full")
    if room.inodes and files + 100 > room.inodes:
        raise WeightsProblem("%s: %d files are to be made, and %s has %d inodes left" % (path, files, room.mount, room.inodes), "disk_full")


def gigabytes(count: int) -> str:
    """Bytes as ``1,680.0 GB``."""
    return "{:,.1f} GB".format(count / 1e9)


def disk_problem(exc: OSError, path: str) -> WeightsProblem:
    """An error of the file system as one sentence."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            free = " (%s free)" % gigabytes(space(path).free)
        except OSError:
            free = ""
        return WeightsProblem("%s: the disk is full%s; what is there stays, and the next run goes on from it" % (path, free), "disk_full")
    return WeightsProblem("%s: %s" % (exc.filename or path, exc.strerror or exc), "file")


# -- one writer -----------------------------------------------------------------------------------------
class Lock:
    """One writer for a folder that several nodes may share.

    A file that only one can create, kept young by its owner: unlike flock it works on every network file system. Ages are
    measured by the file system's own clock.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, LOCK)
        self._mine = "%s %d %d" % (socket.gethostname(), os.getpid(), time.time_ns())
        self._next = 0.0

    def take(self) -> str:
        """Empty when the lock is ours now, else the host that holds it. Raises OSError."""
        for _try in range(3):
            try:
                handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                holder = _first_line(self._path)
                if not self._stale(holder):
                    return holder.split(" ")[0] or "another node"
                self._break(holder)
                continue
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(self._mine)
            return ""
        return "another node"

    def beat(self) -> None:
        """Say that the owner lives; cheap to call often."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + HEARTBEAT
            try:
                os.utime(self._path)
            except OSError:
                pass

    def release(self) -> None:
        """Give it back, if it is still ours."""
        if _first_line(self._path) == self._mine:
            os.unlink(self._path)

    def _stale(self, holder: str) -> bool:
        words = holder.split(" ")
        if len(words) == 3 and words[0] == socket.gethostname() and words[1].isdigit() and not os.path.exists("/proc/" + words[1]):
            return True
        probe = "%s.%s.%d" % (self._path, socket.gethostname(), os.getpid())
        try:
            with open(probe, "w", encoding="utf-8"):
                pass
            now = os.stat(probe).st_mtime
            os.unlink(probe)
            return now - os.stat(self._path).st_mtime > STALE
        except FileNotFoundError:
            return False

    def _break(self, holder: str) -> None:
        """Take a dead owner's lock away; of several that try, one succeeds."""
        aside = "%s.old.%s.%d" % (self._path, socket.gethostname(), os.getpid())
        try:
            os.rename(self._path, aside)
            if _first_line(aside) != holder:
                # Somebody else was quicker and holds a new one: give it back.
                os.link(aside, self._path)
            os.unlink(aside)
        except OSError:
            pass


def wait_for(lock: Lock, tell: Callable[[str, int, int], None], done: Callable[[], bool], every: float = 5.0) -> bool:
    """Wait for the lock; True when it is ours, False when `done` came true meanwhile: another node did the work."""
    while True:
        holder = lock.take()
        if not holder:
            return True
        tell("weights: waiting for %s, which brings them to the same file system" % holder, 0, 0)
        time.sleep(every)
        if done():
            return False


def read_text(path: str) -> str:
    """Text of a small file, empty when there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(64 << 20)
    except (OSError, ValueError):
        return ""


def write_text(path: str, text: str) -> None:
    """Write a file at once or not at all. Raises OSError."""
    draft = "%s.new.%d" % (path, os.getpid())
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        try:
            os.unlink(draft)
        except OSError:
            pass
        raise


def stored(folder: str, kept: str = "") -> int:
    """Bytes that a download has brought so far below `folder`, finished or not; links count nothing. Never raises.

    With `kept` only those begun files count whose name ends so: those that go on, where others begin anew.
    """
    size = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            try:
                told = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            if stat.S_ISREG(told.st_mode) and (not kept or name.endswith(kept) or not name.endswith(".incomplete")):
                # A file that is written out of order has holes.
                size += min(told.st_size, told.st_blocks * 512) if name.endswith(".incomplete") else told.st_size
    return size
