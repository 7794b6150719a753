# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one way by which anything is learned of a node.

A :class:`Reader` answers six questions (content of a file, names in a folder, target of a link,
kind of a path, output of a command, value of a probe) and remembers every answer. Three readers
exist: :class:`LiveReader` asks the running machine, :class:`MemoryReader` answers from
dictionaries (tests, costumes), and ``snapshot.open_snapshot`` fills a ``MemoryReader`` from a
folder that an earlier run recorded. What a reader remembers *is* the snapshot, so facts read
back from it are the facts that were read from the node.

No method raises for what a node answers: a failure is an ``error`` word in the result.

Error words: ``missing``, ``denied``, ``timeout``, ``not_recorded``, ``too_large``, ``not_executable``
or ``io:<ERRNO>`` (for instance ``io:EINVAL``, which sysfs gives for an unmapped GID).
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

from . import processes
from .redact import redact

READ_LIMIT = 1024 * 1024
"""Bytes kept of one file."""
OUTPUT_LIMIT = 8 * 1024 * 1024
"""Bytes kept of one command's stdout, and of its stderr."""
GRACE = 1.5
"""Seconds that a whole run may last beyond the deadline of one command."""

SEARCH_PATH = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
    "/usr/local/nvidia/bin", "/opt/mellanox/iproute2/sbin",
)


class Content(NamedTuple):
    """Text of a file or a link; `text` is None exactly when `error` is set."""

    text: Optional[str]
    error: str = ""

    def strip(self) -> str:
        """The text without surrounding white space, empty when there is none."""
        return self.text.strip() if self.text is not None else ""


class Names(NamedTuple):
    """Sorted names in a folder."""

    names: List[str]
    error: str = ""


class Ran(NamedTuple):
    """Outcome of a command. `rc` is None when it did not end (then `error` says why).

    `out` and `err` keep what was printed, also by a command that was abandoned.
    """

    rc: Optional[int]
    out: str = ""
    err: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.rc == 0 and not self.error

    def reason(self, what: str) -> str:
        """One phrase for a person: why this command gave no answer."""
        if self.error == "missing":
            return what + " is not installed"
        if self.error == "timeout":
            return what + " did not answer in time and was abandoned"
        if self.error == "denied":
            return what + " may not be run by this user"
        if self.error == "not_recorded":
            return what + " was not recorded in this snapshot"
        if self.error:
            return what + " failed: " + self.error
        first = next((line.strip() for line in (self.err + "\n" + self.out).splitlines() if line.strip()), "")
        return "%s exited with %s%s" % (what, self.rc, ": " + first[:160] if first else "")


class Probed(NamedTuple):
    """A JSON-shaped value that no file or command gives."""

    value: Any
    error: str = ""


def error_word(exc: OSError) -> str:
    """Map an OSError to this module's error words."""
    if exc.errno in (errno.ENOENT, errno.ENOTDIR):
        return "missing"
    if exc.errno in (errno.EACCES, errno.EPERM):
        return "denied"
    if exc.errno == errno.ENOEXEC:
        return "not_executable"
    return "io:" + errno.errorcode.get(exc.errno or 0, "E%s" % exc.errno)


Key = Tuple[str, ...]
T = TypeVar("T")


class Reader:
    """Base of all readers: public questions, each asked once and remembered in `memo`."""

    recorded = False
    """True when the answers come from a snapshot and not from the machine itself."""

    def __init__(self, timeout: float = 10.0) -> None:
        self.timeout = float(timeout)
        self.memo: Dict[Key, Any] = {}

    # -- the questions ------------------------------------------------------------------
    def read(self, path: str) -> Content:
        """Text of `path`, at most READ_LIMIT bytes, undecodable bytes as U+FFFD, secrets redacted."""
        return self._ask(("read", path), lambda: self._clean(self._read(path)))

    def names(self, path: str) -> Names:
        """Sorted names in the folder `path`."""
        return self._ask(("names", path), lambda: self._names(path))

    def link(self, path: str) -> Content:
        """Target of the symbolic link `path`, as written."""
        return self._ask(("link", path), lambda: self._link(path))

    def kind(self, path: str) -> Content:
        """``file``, ``dir``, ``char``, ``block`` or ``other``, links followed."""
        return self._ask(("kind", path), lambda: self._kind(path))

    def run(self, argv: Sequence[str]) -> Ran:
        """Run `argv` (no shell) under the deadline; secrets redacted from the output."""
        key = ("run",) + tuple(argv)
        if key not in self.memo:
            self._run_many([tuple(argv)])
        ran: Ran = self.memo[key]
        return ran

    def prefetch(self, argvs: Iterable[Sequence[str]]) -> None:
        """Run several commands side by side, so that all share one deadline."""
        wanted = [tuple(a) for a in argvs if ("run",) + tuple(a) not in self.memo]
        self._run_many(list(dict.fromkeys(wanted)))

    def probe(self, name: str, arg: str = "") -> Probed:
        """Value of a probe of :data:`PROBES`, for instance ``probe("statvfs", "/var")``."""
        return self._ask(("probe", name, arg), lambda: self._probe(name, arg))

    # -- conveniences --------------------------------------------------------------------
    def exists(self, path: str) -> bool:
        """True when `path` is there; what could not be looked at counts as absent."""
        return self.kind(path).text is not None

    def value(self, path: str) -> Optional[str]:
        """Stripped text of a small file, None when unreadable or empty."""
        return self.read(path).strip() or None

    def _ask(self, key: Key, answer: Callable[[], T]) -> T:
        if key not in self.memo:
            self.memo[key] = answer()
        known: T = self.memo[key]
        return known

    @staticmethod
    def _clean(content: Content) -> Content:
        return content if content.text is None else Content(redact(content.text), content.error)

    def _run_many(self, argvs: List[Tuple[str, ...]]) -> None:
        for argv in argvs:
            ran = self._run(argv)
            self.memo[("run",) + argv] = ran._replace(out=redact(ran.out), err=redact(ran.err))

    # -- what a kind of reader answers ----------------------------------------------------
    def _read(self, path: str) -> Content:
        raise NotImplementedError

    def _names(self, path: str) -> Names:
        raise NotImplementedError

    def _link(self, path: str) -> Content:
        raise NotImplementedError

    def _kind(self, path: str) -> Content:
        raise NotImplementedError

    def _run(self, argv: Tuple[str, ...]) -> Ran:
        raise NotImplementedError

    def _probe(self, name: str, arg: str) -> Probed:
        raise NotImplementedError


class MemoryReader(Reader):
    """Answers from dictionaries.

    Args:
        files: path → text, or an ``OSError`` word such as ``io:EINVAL`` wrapped in a Content.
        links: path → target.
        commands: argv tuple → Ran, or the text of stdout (exit code 0).
        probes: (name, arg) → value.
        folders: further folders that exist though no file in them is given.
        absent: error word for whatever is not given; ``missing`` for an invented node,
            ``not_recorded`` for a snapshot.
    """

    def __init__(
        self,
        files: Optional[Mapping[str, Any]] = None,
        links: Optional[Mapping[str, str]] = None,
        commands: Optional[Mapping[Tuple[str, ...], Any]] = None,
        probes: Optional[Mapping[Tuple[str, str], Any]] = None,
        folders: Iterable[str] = (),
        absent: str = "missing",
        timeout: float = 10.0,
    ) -> None:
        super().__init__(timeout)
        self.files = dict(files or {})
        self.links = dict(links or {})
        self.commands = dict(commands or {})
        self.probes = dict(probes or {})
        self.absent = absent
        self.tree: Dict[str, Set[str]] = {}
        for path in list(self.files) + list(self.links):
            self._plant(path)
        for path in folders:
            self._plant(path)
            self.tree.setdefault(path, set())

    def _plant(self, path: str) -> None:
        while path not in ("", "/"):
            parent, name = path.rsplit("/", 1)
            names = self.tree.setdefault(parent or "/", set())
            if name in names:
                return
            names.add(name)
            path = parent

    def _read(self, path: str) -> Content:
        found = self.files.get(path)
        if found is None:
            return Content(None, "io:EISDIR" if path in self.tree else self.absent)
        return found if isinstance(found, Content) else Content(str(found))

    def _names(self, path: str) -> Names:
        if path in self.tree:
            return Names(sorted(self.tree[path]))
        return Names([], self.absent)

    def _link(self, path: str) -> Content:
        if path in self.links:
            return Content(self.links[path])
        return Content(None, "io:EINVAL" if path in self.files or path in self.tree else self.absent)

    def _kind(self, path: str) -> Content:
        if path in self.tree:
            return Content("dir")
        if path in self.files or path in self.links:
            return Content("char" if path.startswith("/dev/") else "file")
        return Content(None, self.absent)

    def _run(self, argv: Tuple[str, ...]) -> Ran:
        found = self.commands.get(argv)
        if found is None:
            return Ran(None, error=self.absent)
        return found if isinstance(found, Ran) else Ran(0, str(found))

    def _probe(self, name: str, arg: str) -> Probed:
        if (name, arg) in self.probes:
            return Probed(self.probes[(name, arg)])
        return Probed(None, self.absent)


class LiveReader(Reader):
    """Asks the running machine, and never waits for a driver that does not answer.

    Every command runs in its own session and is abandoned, not joined, when it outlives its
    deadline. All commands of a run together are bounded by ``timeout + GRACE`` seconds, counted
    from the creation of the reader.
    """

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
        import stat

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
        try:
            env = command_environment()
            program = argv[0]
            if "/" not in program:
                program = _find(program, env["PATH"])
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
        for stream in self.open.values():
            stream.close()
        self.open = {}

    def result(self) -> Ran:
        out, err = (b"".join(self.parts[k])[:OUTPUT_LIMIT].decode("utf-8", "replace") for k in ("out", "err"))
        if self.timed_out:
            return Ran(None, out, err, "timeout")
        return Ran(self.process.returncode, out, err, "too_large" if self.overflow else "")


def _find(program: str, path: str) -> str:
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
                os.waitpid(pid, 0)
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


# -- probes: what neither a file nor a command gives ------------------------------------------
def _statvfs(path: str) -> Dict[str, int]:
    """Bytes and inodes of the file system that holds `path`, or its nearest existing parent."""
    while path not in ("", "/") and not os.path.exists(path):
        path = os.path.dirname(path)
    found = os.statvfs(path or "/")
    return {
        "total_bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        "free_inodes": found.f_favail,
        "total_inodes": found.f_files,
    }


def _resolve(names: str) -> Dict[str, List[str]]:
    """Addresses of each blank-separated name; an empty list for one that does not resolve."""
    answer: Dict[str, List[str]] = {}
    for name in names.split():
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            found = []
        answer[name] = sorted({str(item[4][0]) for item in found})
    return answer


def _process(_arg: str) -> Dict[str, Any]:
    """Who is reading: user id, host name, wall clock (seconds since the epoch)."""
    system = os.uname()
    return {
        "uid": os.geteuid(), "hostname": system.nodename, "kernel": system.release, "arch": system.machine,
        "now": round(time.time(), 1), "page_size": os.sysconf("SC_PAGE_SIZE"), "cpus": os.cpu_count() or 0,
    }


def _ssh(_arg: str) -> Dict[str, str]:
    """``SSH_CONNECTION`` of this session: client and server address, empty when not over SSH.

    sudo takes the variable out of the environment, so the ancestors are asked too.
    """
    found = os.environ.get("SSH_CONNECTION", "")
    pid = os.getppid()
    for _generation in range(16):
        if found or pid < 2:
            break
        try:
            with open("/proc/%d/environ" % pid, "rb") as source:
                table = source.read(READ_LIMIT).split(b"\0")
            with open("/proc/%d/stat" % pid, "rb") as source:
                # The name in parentheses may hold blanks; state and parent stand behind it.
                pid = int(source.read(4096).rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        found = next((item[15:].decode("ascii", "replace") for item in table if item.startswith(b"SSH_CONNECTION=")), "")
    return {"connection": found}


def _sha256(path: str) -> str:
    """Digest of a file of at most READ_LIMIT bytes: tells two nodes apart without taking the content along."""
    import hashlib

    with open(path, "rb") as source:
        data = source.read(READ_LIMIT + 1)
    if len(data) > READ_LIMIT:
        raise OSError(errno.EFBIG, "too large")
    return hashlib.sha256(data).hexdigest()


def _machine(_arg: str) -> Dict[str, Any]:
    """What the head of two large files says: boot time (seconds since the epoch) and the first processor.

    ``/proc/cpuinfo`` and ``/proc/stat`` reach hundreds of KB on large machines; only these values are remembered.
    """
    with open("/proc/cpuinfo", "rb") as source:
        cpu = source.read(8192).decode("utf-8", "replace").split("\n\n", 1)[0]
    booted = 0
    with open("/proc/stat", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("btime "):
                booted = int(line.split()[1])
                break
    fields = {key.strip(): value.strip() for key, _sign, value in (line.partition(":") for line in cpu.splitlines())}
    return {
        "booted_at": booted, "model_name": fields.get("model name", ""), "implementer": fields.get("CPU implementer", ""),
        "part": fields.get("CPU part", ""), "hypervisor": "hypervisor" in fields.get("flags", "").split(),
    }


def _processes(_arg: str) -> Dict[str, Any]:
    """Processes that are stuck in a driver, hold a GPU or serve vLLM; see :func:`processes.scan`."""
    return processes.scan(in_children)


def _weights(path: str) -> List[Dict[str, Any]]:
    """Checkpoints in `path`, one folder below, and in a Hugging Face cache there; at most 200 folders are looked at.

    Returns:
        ``[{"path", "config": bool, "index": bool, "shards": int, "bytes": int, "missing": shards of the index that are not there}]``,
        the largest first, at most 8.
    """
    import glob
    import re

    # A literal path may hold the characters of a pattern.
    base = glob.escape(path.rstrip("/"))
    patterns = ("", "/*", "/models--*/snapshots/*", "/hub/models--*/snapshots/*")
    folders = [folder for pattern in patterns for folder in sorted(glob.glob(base + pattern or "/"))[:100] if os.path.isdir(folder)]
    found: List[Dict[str, Any]] = []
    for folder in folders[:200]:
        sizes: Dict[str, int] = {}
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= 10000:
                    break
                if entry.name.endswith(".safetensors") or entry.name in ("config.json", "model.safetensors.index.json"):
                    try:
                        sizes[entry.name] = entry.stat().st_size
                    except OSError:  # a link into a cache whose file is not there yet
                        continue
        shards = {name for name in sizes if name.endswith(".safetensors")}
        if not shards and "model.safetensors.index.json" not in sizes:
            continue
        index = os.path.join(folder, "model.safetensors.index.json")
        named = set()
        if "model.safetensors.index.json" in sizes:
            with open(index, "rb") as source:
                named = set(re.findall(r'"([^"/\\\\]{1,200}\.safetensors)"', source.read(64 * READ_LIMIT).decode("utf-8", "replace")))
        found.append({
            "path": folder, "config": "config.json" in sizes, "index": "model.safetensors.index.json" in sizes,
            "shards": len(shards), "bytes": sum(sizes.values()), "missing": len(named - shards),
        })
    return sorted(found, key=lambda item: (-int(item["bytes"]), str(item["path"])))[:8]


PROBES: Dict[str, Callable[[str], Any]] = {
    "statvfs": _statvfs, "resolve": _resolve, "process": _process, "ssh": _ssh, "sha256": _sha256, "machine": _machine,
    "processes": _processes, "process_detail": processes.detail, "weights": _weights,
}
