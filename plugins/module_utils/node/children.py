# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run functions in child processes that can be left behind."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from typing import Any, Callable, Dict, List, Mapping, Tuple

from .reader import error_word


def in_children(jobs: Mapping[str, Callable[[], Any]], deadline: float) -> Dict[str, Tuple[Any, str]]:
    """Run each job in a forked child and return ``{name: (value, error)}``.

    A job returns a JSON-shaped value. A child that has not answered by `deadline` (monotonic
    seconds) is killed and abandoned: its entry is ``(None, "timeout")``. A job that raises gives
    ``(None, "io:…")`` for an OSError and ``(None, "failed: …")`` otherwise. The caller never blocks,
    even when a child is stuck in an uninterruptible system call.
    """
    answers: Dict[str, Tuple[Any, str]] = dict.fromkeys(jobs, (None, "timeout"))
    pipes: Dict[int, Tuple[str, int, List[bytes]]] = {}
    for name, job in jobs.items():
        source, sink = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(job, sink)
        os.close(sink)
        os.set_blocking(source, False)
        pipes[source] = (name, pid, [])
    with selectors.DefaultSelector() as selector:
        for source in pipes:
            selector.register(source, selectors.EVENT_READ)
        while pipes:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for key, _events in selector.select(left):
                source = key.fd
                name, pid, parts = pipes[source]
                try:
                    part = os.read(source, 1 << 20)
                except BlockingIOError:
                    continue
                if part:
                    parts.append(part)
                    continue
                selector.unregister(source)
                os.close(source)
                del pipes[source]
                _reap(pid)
                try:
                    value, error = json.loads(b"".join(parts).decode("utf-8"))
                    answers[name] = (value, str(error))
                except (ValueError, TypeError):
                    answers[name] = (None, "failed: the reading process died")
    for source, (_name, pid, _parts) in pipes.items():
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:
            pass
        try:
            os.waitpid(pid, os.WNOHANG)
        except OSError:
            pass
        os.close(source)
    return answers


def _reap(pid: int) -> None:
    """Take a child's exit status; a child that is stuck on its way out is left to the system."""
    for _attempt in range(20):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except OSError:
            return
        time.sleep(0.005)


def _child(job: Callable[[], Any], sink: int) -> None:
    """Body of a forked child; never returns."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        # Let go of every pipe of the parent: a stuck child must not keep its caller's stdout open.
        os.closerange(3, sink)
        os.closerange(sink + 1, 4096)
        try:
            answer: Tuple[Any, str] = (job(), "")
        except OSError as exc:
            answer = (None, error_word(exc))
        except Exception as exc:  # the parent reports it as the reason of an unknown
            answer = (None, "failed: %s: %s" % (type(exc).__name__, exc))
        data = json.dumps(answer).encode("utf-8")
        while data:
            data = data[os.write(sink, data):]
    finally:
        os._exit(0)
