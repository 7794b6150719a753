# SPDX-License-Identifier: GPL-3.0-or-later
"""Mounts: copy-on-write layers, and finding and removing every mount below a folder."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from .errors import LabError


def parse_mountinfo(text: str) -> list[str]:
    """Mount points of /proc/self/mountinfo, in mounting order, with its octal escapes undone."""
    points = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 4:
            points.append(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4]))
    return points


def below(folder: Path) -> list[str]:
    """Mount points at or below folder, the innermost first."""
    prefix = str(folder.resolve())
    points = parse_mountinfo(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    return [p for p in reversed(points) if p == prefix or p.startswith(prefix + "/")]


def unmount_below(folder: Path, seconds: float = 5.0) -> None:
    """Unmount everything at or below folder; what stays busy is detached from the tree."""
    deadline = time.monotonic() + seconds
    while points := below(folder):
        lazy = time.monotonic() > deadline
        for point in points:
            command = ["umount", *(["--lazy"] if lazy else []), "--", point]
            subprocess.run(command, capture_output=True, check=False)
        if lazy and below(folder):
            raise LabError(f"these mounts cannot be removed: {', '.join(below(folder))}")
        time.sleep(0.05)


def overlay(lower: Path, upper: Path, target: Path) -> None:
    """Mount at target a writable copy of lower whose changes land in upper (work beside it)."""
    work = upper.with_name(upper.name + ".work")
    for path in (upper, work, target):
        path.mkdir(parents=True, exist_ok=True)
    if str(target.resolve()) in below(target):
        return
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    done = subprocess.run(
        ["mount", "-t", "overlay", "-o", options, "lab-overlay", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LabError(f"cannot mount a copy-on-write layer on {target}: {done.stderr.strip()}")
