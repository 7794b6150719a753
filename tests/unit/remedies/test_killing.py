# SPDX-License-Identifier: GPL-3.0-or-later
"""Ending real processes."""

from __future__ import annotations

import subprocess
import sys
import time

from ansible_collections.inferops.vllm.plugins.module_utils.remedies.killing import end


def started(code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code + "\nprint('ready', flush=True)\nimport time; time.sleep(60)"], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def test_a_process_that_listens_ends_by_itself() -> None:
    process = started("")
    try:
        assert end(process.pid, "python", 5) is False
        assert process.wait(5) == -15
    finally:
        process.kill()
        process.wait()


def test_one_that_does_not_listen_is_killed() -> None:
    process = started("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    try:
        assert end(process.pid, "python", 0.3) is True
        assert process.wait(5) == -9
    finally:
        process.kill()
        process.wait()


def test_a_number_that_another_process_has_by_now_is_left_alone() -> None:
    process = started("")
    try:
        assert end(process.pid, "vllm", 1) is False
        time.sleep(0.1)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_gone_is_no_fault() -> None:
    process = started("")
    process.kill()
    process.wait()
    assert end(process.pid, "python", 1) is False

