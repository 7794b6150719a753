# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The running machine, for modules that change it: commands with a limit, files, free room. Nothing raises for what is not there."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

from .model import Ran, Run


def runner(environment: Mapping[str, str]) -> Run:
    """Commands in the C locale with `environment` added, each in a session of its own that ends with its limit.

    A command that is stuck in a driver cannot be killed; it is left alone, and the answer is 124.
    """
    # Many systems have administration programs outside of a user's path.
    path = os.environ.get("PATH", "")
    folders = [one for one in ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin") if one not in path.split(":")]
    full = dict(os.environ, LC_ALL="C", LANGUAGE="C", COLUMNS="200", PATH=":".join([path, *folders]) if path else ":".join(folders), **environment)

    def run(argv: Sequence[str], limit: int) -> Ran:
        try:
            process = subprocess.Popen(
                list(argv), env=full, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        except OSError as exc:
            return Ran(127, "", "%s: %s" % (argv[0], exc.strerror or exc))
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                except OSError:
                    break
                try:
                    process.communicate(timeout=5)
                    break
                except subprocess.TimeoutExpired:
                    continue
            return Ran(124, "", "%s did not end within %d s" % (argv[0], limit))
        return Ran(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    return run


def read(path: str) -> Optional[str]:
    """Text of a file, None when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return None


def writer(move: Callable[[str, str], None]) -> Callable[[str, Optional[str]], None]:
    """What writes the text of a file in one step, by `move` (AnsibleModule.atomic_move), and makes its folder; None removes the file."""
    def write(path: str, text: Optional[str]) -> None:
        if text is None:
            if os.path.lexists(path):
                os.unlink(path)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = "%s.%d.tmp" % (path, os.getpid())
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
        move(temporary, path)

    return write


def names(path: str) -> List[str]:
    """Names in a folder, sorted; empty when there is none."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def free(path: str) -> Tuple[int, int]:
    """Device number and free bytes of the file system that holds `path`, or would hold it."""
    while path != "/" and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        told = os.statvfs(path)
        return os.stat(path).st_dev, told.f_bavail * told.f_frsize
    except OSError:
        return 0, 1 << 62
