# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""End one process, and be sure that it is the one that was meant."""

from __future__ import annotations

import os
import signal
import time
from typing import Optional

from ..node import processes

AFTER_KILL = 10.0
"""Seconds that a killed process may take to be gone; one that takes longer waits in a driver."""


def end(pid: int, comm: str, grace: float) -> Optional[bool]:
    """Ask the process to end, kill it when it does not.

    Args:
        pid: its number.
        comm: its name; a process of another name got the number since, and is left alone.
        grace: seconds between asking and killing.

    Returns:
        False when it ended by itself or was gone, True when it was killed, None when it could not be ended.
    """
    first = _stat(pid)
    if first is None or (comm and not first.comm.startswith(comm[:15])):
        return False
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, AFTER_KILL)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return number == signal.SIGKILL
        except PermissionError:
            return None
        if _gone(pid, first.started, patience):
            return number == signal.SIGKILL
    return None


def _stat(pid: int) -> Optional[processes.Stat]:
    try:
        with open("%s/%d/stat" % (processes.PROC, pid), encoding="utf-8", errors="replace") as file:
            return processes.parse_stat(file.read(4096))
    except OSError:
        return None


def _gone(pid: int, started: int, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        now = _stat(pid)
        # A zombie holds nothing any more.
        if now is None or now.started != started or now.state in ("Z", "X"):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(min(0.2, max(patience / 20, 0.01)))
