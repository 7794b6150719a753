# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one way by which anything is learned of a node.

A :class:`Reader` answers six questions (content of a file, names in a folder, target of a link,
kind of a path, output of a command, value of a probe) and remembers every answer. Three readers
exist: ``live.LiveReader`` asks the running machine, :class:`MemoryReader` answers from
dictionaries (tests, costumes), and ``snapshot.open_snapshot`` fills a ``MemoryReader`` from a
folder that an earlier run recorded. What a reader remembers *is* the snapshot, so facts read
back from it are the facts that were read from the node.

No method raises for what a node answers: a failure is an ``error`` word in the result.

Error words: ``missing``, ``denied``, ``timeout``, ``not_recorded``, ``too_large``, ``not_executable``
or ``io:<ERRNO>`` (for instance ``io:EINVAL``, which sysfs gives for an unmapped GID).
"""

from __future__ import annotations

import errno
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

READ_LIMIT = 1024 * 1024
"""Bytes kept of one file."""


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

    `out` and `err` keep what was printed, also by a command that was abandoned. `seconds` is how long it ran on a live node.
    """

    rc: Optional[int]
    out: str = ""
    err: str = ""
    error: str = ""
    seconds: float = 0.0

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
    live = False
    """True when a question can hang, so that sections must be read in child processes."""

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
        """Value of a probe of ``probes.PROBES``, for instance ``probe("statvfs", "/var")``."""
        return self._ask(("probe", name, arg), lambda: self._probe(name, arg))

    def left(self) -> float:
        """Seconds that a question asked now may take."""
        return self.timeout

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
        if content.text is None:
            return content
        # Imported late: what a snapshot holds was redacted when it was recorded, and never comes here.
        from .redact import redact

        return Content(redact(content.text), content.error)

    def _run_many(self, argvs: List[Tuple[str, ...]]) -> None:
        for argv in argvs:
            ran = self._run(argv)
            if ran.out or ran.err:
                from .redact import redact

                ran = ran._replace(out=redact(ran.out), err=redact(ran.err))
            self.memo[("run",) + argv] = ran

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
