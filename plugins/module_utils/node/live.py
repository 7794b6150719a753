# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader of the running machine."""

from __future__ import annotations

import os
import selectors
import signal
import stat
import subprocess
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from .children import in_children
from .probes import PROBES
from .reader import READ_LIMIT, Content, Names, Probed, Ran, Reader, error_word
from .redact import redact

OUTPUT_LIMIT = 12 * 1024 * 1024
"""Bytes kept of one command's stdout, and of its stderr: the 100,000 kernel messages that are asked for have about 115 each."""
GRACE = 1.5
"""Seconds that a whole run may last beyond the deadline of one command."""

SEARCH_PATH = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
    "/usr/local/nvidia/bin", "/opt/mellanox/iproute2/sbin",
)


class LiveReader(Reader):
    """Asks the running machine, and never waits for a driver that does not answer.

    Every command runs in its own session and is abandoned, not joined, when it outlives its
    deadline. All commands of a run together are bounded by ``timeout + GRACE`` seconds, counted
    from the creation of the reader.
    """

    live = True

    def __init__(self, timeout: float = 10.0) -> None:
        super().__init__(timeout)
        self.deadline = time.monotonic() + self.timeout + GRACE
        self.hung: Set[str] = set()

    def left(self) -> float:
        """Seconds that a command started now may take."""
        return max(0.1, min(self.timeout, self.deadline - time.monotonic()))

    def _read(self, path: str) -> Content:
        try:
            # O_NONBLOCK: a FIFO or a character device must not hold us.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            return Content(None, error_word(exc))
        try:
            parts: List[bytes] = []
            size = 0
            while size < READ_LIMIT:
                part = os.read(handle, min(65536, READ_LIMIT - size))
                if not part:
                    break
                parts.append(part)
                size += len(part)
        except OSError as exc:
            return Content(None, error_word(exc))
        finally:
            os.close(handle)
        return Content(b"".join(parts).decode("utf-8", "replace"))

    def _names(self, path: str) -> Names:
        try:
            return Names(sorted(os.listdir(path)))
        except OSError as exc:
            return Names([], error_word(exc))

    def _link(self, path: str) -> Content:
        try:
            return Content(os.readlink(path))
        except OSError as exc:
            return Content(None, error_word(exc))

    def _kind(self, path: str) -> Content:
        try:
            mode = os.stat(path).st_mode
        except OSError as exc:
            return Content(None, error_word(exc))
        for word, test in (("file", stat.S_ISREG), ("dir", stat.S_ISDIR), ("char", stat.S_ISCHR), ("block", stat.S_ISBLK)):
            if test(mode):
                return Content(word)
        return Content("other")

    def _probe(self, name: str, arg: str) -> Probed:
        probe = PROBES.get(name)
        if probe is None:
            return Probed(None, "missing")
        answers = in_children({name: lambda: probe(arg)}, time.monotonic() + self.left())
        value, error = answers[name]
        return Probed(value, error)

    def _run(self, argv: Tuple[str, ...]) -> Ran:
        return self.run(argv)

    def _run_many(self, argvs: List[Tuple[str, ...]]) -> None:
        started: List[_Command] = []
        for argv in argvs:
            if argv[0] in self.hung:
                self.memo[("run",) + argv] = Ran(None, error="timeout")
                continue
            command = _Command(argv)
            if command.failed:
                self.memo[("run",) + argv] = Ran(None, error=command.failed)
            else:
                started.append(command)
        _await(started, time.monotonic() + self.left())
        for command in started:
            ran = command.result()
            if ran.error == "timeout":
                self.hung.add(command.argv[0])
            self.memo[("run",) + command.argv] = ran._replace(out=redact(ran.out), err=redact(ran.err))


def command_environment() -> Dict[str, str]:
    """Environment for commands: the caller's, with the C locale and the system's own folders in PATH."""
    env = dict(os.environ)
    env.update(LC_ALL="C", LANG="C", LANGUAGE="", TERM="dumb", SYSTEMD_PAGER="", SYSTEMD_COLORS="0")
    have = [p for p in env.get("PATH", "").split(":") if p]
    env["PATH"] = ":".join(have + [p for p in SEARCH_PATH if p not in have])
    return env


class _Command:
    """One started command and what it has printed so far."""

    def __init__(self, argv: Tuple[str, ...]) -> None:
        self.argv = argv
        self.failed = ""
        self.timed_out = False
        self.overflow = False
        self.parts: Dict[str, List[bytes]] = {"out": [], "err": []}
        self.sizes = {"out": 0, "err": 0}
        self.open: Dict[str, Any] = {}
        self.started = time.monotonic()
        self.ended: Optional[float] = None
        try:
            env = command_environment()
            program = argv[0]
            if "/" not in program:
                program = find_program(program, env["PATH"])
                if not program:
                    self.failed = "missing"
                    return
            self.process = subprocess.Popen(
                (program,) + argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, close_fds=True, cwd="/", env=env,
            )
        except OSError as exc:
            self.failed = error_word(exc)
            return
        self.open = {"out": self.process.stdout, "err": self.process.stderr}
        for stream in self.open.values():
            os.set_blocking(stream.fileno(), False)

    def pull(self, name: str) -> bool:
        """Take what the stream has; False when it is at its end."""
        try:
            part = os.read(self.open[name].fileno(), 65536)
        except BlockingIOError:
            return True
        except OSError:
            part = b""
        if not part:
            return False
        if self.sizes[name] < OUTPUT_LIMIT:
            self.parts[name].append(part)
            self.sizes[name] += len(part)
        else:
            self.overflow = True
        return True

    def abandon(self) -> None:
        """Ask the command's session to die, and walk away."""
        self.timed_out = True
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass

    def close(self) -> None:
        if self.ended is None:
            self.ended = time.monotonic()
        for stream in self.open.values():
            stream.close()
        self.open = {}

    def result(self) -> Ran:
        out, err = (b"".join(self.parts[k])[:OUTPUT_LIMIT].decode("utf-8", "replace") for k in ("out", "err"))
        seconds = round((self.ended or time.monotonic()) - self.started, 3)
        if self.timed_out:
            return Ran(None, out, err, "timeout", seconds)
        return Ran(self.process.returncode, out, err, "too_large" if self.overflow else "", seconds)


def find_program(program: str, path: str) -> str:
    """Full path of `program` in the folders of `path`, empty when it is in none."""
    for folder in path.split(":"):
        candidate = os.path.join(folder, program)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return ""


def _await(commands: List[_Command], deadline: float) -> None:
    """Collect the output of all `commands` until each has ended or `deadline` (monotonic) is past."""
    running = list(commands)
    with selectors.DefaultSelector() as selector:
        for command in running:
            for name, stream in command.open.items():
                selector.register(stream, selectors.EVENT_READ, (command, name))
        ended: Dict[int, float] = {}
        while running:
            now = time.monotonic()
            if now >= deadline:
                break
            # A command whose streams are closed is only waited for by polling.
            for key, _events in selector.select(min(deadline - now, 0.02 if ended else 0.05)):
                command, name = key.data
                if not command.pull(name):
                    selector.unregister(key.fileobj)
                    command.open.pop(name).close()
            now = time.monotonic()
            for command in list(running):
                if command.process.poll() is None:
                    continue
                since = ended.setdefault(id(command), now)
                # A grandchild may hold the pipe: half a second after the end is enough.
                if not command.open or now - since > 0.5:
                    for stream in command.open.values():
                        selector.unregister(stream)
                    command.close()
                    running.remove(command)
                    ended.pop(id(command), None)
    for command in running:
        command.abandon()
    until = time.monotonic() + 0.2
    while any(c.process.poll() is None for c in running) and time.monotonic() < until:
        time.sleep(0.01)
    for command in running:
        command.close()
