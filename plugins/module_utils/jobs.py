# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Long work on a node that outlives the connection which started it, and can be asked how far it is.

A job is a folder: ``lock`` is held by the process that works, ``progress.json`` and ``result.json`` are what it says. What it
needs to know, secrets too, it gets by fork, so none of it is written anywhere.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, NamedTuple, Optional

FOLDER = "/run/inferops-vllm"
"""Jobs of this boot; a reboot ends and forgets them."""

Tell = Callable[[str, int, int], None]
"""``tell(what, done, total)``: what is done now, and bytes of it; `total` is 0 when it is not known."""


class Busy(Exception):
    """Another job of that name works on something else."""


class State(NamedTuple):
    """What a job says.

    Attributes:
        running: its process lives.
        progress: the last ``{what, done, total, at}``; empty before the first.
        result: what the work returned; None while it runs, and when its process was killed.
    """

    running: bool
    progress: Dict[str, Any]
    result: Optional[Dict[str, Any]]


def quiet(what: str, done: int, total: int) -> None:
    """A listener that does not listen."""


def start(name: str, request: str, work: Callable[[Tell], Dict[str, Any]], folder: str = FOLDER) -> bool:
    """Run `work` in a process of its own; True when it was started, False when the same `request` runs already.

    Args:
        name: of the job; one job of a name runs at a time.
        request: says what is asked for, without secrets; equal requests are the same job.
        work: gets a listener for its progress, returns a result that JSON can hold. Everything that it imports must have
            been imported: the module's archive is gone by the time it runs.

    Raises:
        Busy: a job of that name works on another request.
        OSError: the folder cannot be written.
    """
    place = os.path.join(folder, name)
    os.makedirs(place, mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(place, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _held(lock):
            if _text(os.path.join(place, "request")) == request:
                return False
            raise Busy("%s is busy with another request on this node; wait for it to end" % name)
        for old in ("result.json", "progress.json"):
            _forget(os.path.join(place, old))
        _write(os.path.join(place, "request"), request)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _work(name, place, lock, work)
        os.waitpid(child, 0)
        return True
    finally:
        os.close(lock)


def state(name: str, folder: str = FOLDER) -> State:
    """What the job `name` says now. Never raises: a job that is not there is neither running nor has a result."""
    place = os.path.join(folder, name)
    running = False
    try:
        lock = os.open(os.path.join(place, "lock"), os.O_RDWR)
    except OSError:
        return State(False, {}, None)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        running = True
    finally:
        os.close(lock)
    progress, result = _table(os.path.join(place, "progress.json")), _table(os.path.join(place, "result.json"))
    return State(running, progress, None if running else result or None)


class Listener:
    """Keeps the newest progress in a file, at most one write a second."""

    def __init__(self, path: str) -> None:
        self._path, self._next = path, 0.0

    def tell(self, what: str, done: int, total: int) -> None:
        """Note that `done` of `total` bytes are there."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 1.0
            _write(self._path, json.dumps({"what": what, "done": done, "total": total, "at": round(now, 1)}))


# -- the process that works -----------------------------------------------------------------------
def _work(name: str, place: str, lock: int, work: Callable[[Tell], Dict[str, Any]]) -> None:
    """Detach from the caller, work, leave the result; does not return."""
    try:
        os.setsid()
        # The first child ends at once, so that nobody has to wait for the one that works.
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _end)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        for other in range(3, 256):
            if other != lock:
                try:
                    os.close(other)
                except OSError:
                    pass
        os.chdir("/")
        os.umask(0o022)
        result: Dict[str, Any]
        try:
            result = work(Listener(os.path.join(place, "progress.json")).tell)
        except SystemExit:
            result = {"failed": True, "msg": "%s was ended by a signal" % name}
        except Exception as exc:  # pylint: disable=broad-except
            result = {"failed": True, "msg": "%s failed: %s: %s" % (name, type(exc).__name__, exc)}
        _write(os.path.join(place, "result.json"), json.dumps(result))
    finally:
        os._exit(0)


def _end(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _held(lock: int) -> bool:
    """Take the lock; a reader of the state may hold it for a moment."""
    for _try in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.02)
    return False


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(1 << 20)
    except (OSError, ValueError):
        return ""


def _table(path: str) -> Dict[str, Any]:
    try:
        found = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: str, text: str) -> None:
    draft = path + ".new"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)


def finish(module: Any, result: Dict[str, Any]) -> None:
    """Leave an AnsibleModule with the result of a job, its steps as the difference."""
    if result.get("failed"):
        module.fail_json(**{key: value for key, value in result.items() if key != "failed"})
    for note in result.get("notes", []):
        module.warn(note)
    if result.get("changed"):
        result = dict(result, diff={"before": "", "after": "".join("%s\n" % step for step in result["steps"])})
    module.exit_json(**result)
