# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write what a reader remembers to a folder, and read it back.

A snapshot is a folder (or a ``.tar.gz`` of one) holding

``snapshot.json``
    ``{"schema": "inferops.vllm/snapshot/1", "node": …, "recorded_at": …, "options": {…}}``
``answers.json``
    ``{"read": {path: text | {"error": …} | {"body": …}}, "names": …, "link": …, "kind": …, "probe": …}``
``commands.json``
    ``[{"argv": […], "rc": 0, "error": "", "out": text | {"body": …}, "err": …, "seconds": only of a live node}]``
``bodies/``
    texts longer than 2 KiB, one plain file each, named after the path or command
``MANIFEST.sha256``
    digest of every other file, in the format of sha256sum(1)

A snapshot may come from a stranger: nothing in it is executed, no name in it is used as a path
outside the folder, no link is followed, and sizes are bounded before anything is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from contextlib import contextmanager
from typing import IO, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, cast

from .reader import Content, MemoryReader, Names, Probed, Ran, Reader

SCHEMA = "inferops.vllm/snapshot/1"
BODY_FROM = 2048
"""Texts of more characters than this become files of their own."""
MAX_INDEX = 32 * 1024 * 1024
MAX_BODY = 16 * 1024 * 1024
MAX_TOTAL = 256 * 1024 * 1024
MAX_FILES = 20000

_BODY_NAME = re.compile(r"bodies/[A-Za-z0-9][A-Za-z0-9._+=@,-]{0,200}\Z")


class SnapshotError(Exception):
    """The folder is not a usable snapshot; the message says why in one sentence."""


# -- writing ---------------------------------------------------------------------------------
def render(reader: Reader, node: str, options: Mapping[str, Any], recorded_at: Optional[float] = None) -> Dict[str, bytes]:
    """All files of a snapshot as ``{relative name: bytes}``, in a stable order.

    Args:
        reader: a reader whose memory is to be kept.
        node: name of the node, as the inventory calls it.
        options: the options that collection ran with (subset, paths, image …), replayed on reading.
        recorded_at: seconds since the epoch, default now.
    """
    files: Dict[str, bytes] = {}
    used: Dict[str, int] = {}

    def body(label: str, text: str) -> Any:
        if len(text) <= BODY_FROM:
            return text
        stem = re.sub(r"[^A-Za-z0-9._+=@,-]+", "_", re.sub(r"\.\.+", ".", label)).strip("_.+=@,-")[:120] or "body"
        name = "bodies/" + stem
        # Two labels may give one name: /a/b and "a b".
        while name in files:
            used[stem] = used.get(stem, 1) + 1
            name = "bodies/%s-%d" % (stem, used[stem])
        files[name] = text.encode("utf-8", "replace")
        return {"body": name}

    answers: Dict[str, Dict[str, Any]] = {"read": {}, "names": {}, "link": {}, "kind": {}, "probe": {}}
    commands: List[Dict[str, Any]] = []
    for key in sorted(reader.memo):
        answer = reader.memo[key]
        if key[0] == "run":
            label = " ".join(part.rsplit("/", 1)[-1] for part in key[1:])
            entry = {
                "argv": list(key[1:]), "rc": answer.rc, "error": answer.error,
                "out": body(label, answer.out), "err": body(label + " stderr", answer.err),
            }
            if answer.seconds:
                entry["seconds"] = answer.seconds
            commands.append(entry)
        elif key[0] == "probe":
            answers["probe"]["%s %s" % key[1:]] = {"error": answer.error} if answer.error else {"value": answer.value}
        elif answer.error:
            answers[key[0]][key[1]] = {"error": answer.error}
        elif key[0] == "names":
            answers["names"][key[1]] = answer.names
        else:
            answers[key[0]][key[1]] = body(key[1], answer.text)
    head = {
        "schema": SCHEMA, "node": node, "options": dict(options),
        "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(recorded_at if recorded_at is not None else time.time())),
    }
    files["snapshot.json"] = _dump(head)
    tables = ",\n".join("%s: {\n%s\n}" % (json.dumps(q), ",\n".join(
        "%s: %s" % (json.dumps(path), _line(answers[q][path])) for path in sorted(answers[q]))) for q in sorted(answers))
    files["answers.json"] = ("{\n%s\n}\n" % tables).encode("ascii")
    files["commands.json"] = ("[\n%s\n]\n" % ",\n".join(_line(entry) for entry in commands)).encode("ascii")
    manifest = "".join("%s  %s\n" % (hashlib.sha256(files[name]).hexdigest(), name) for name in sorted(files))
    files["MANIFEST.sha256"] = manifest.encode("ascii")
    return files


def _line(value: Any) -> str:
    """JSON on one line: one answer a line is what a person can read and diff(1) can compare."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True)


def _dump(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode("ascii")


def write_folder(files: Mapping[str, bytes], folder: str) -> None:
    """Write rendered `files` as `folder`, whole or not at all; the folder must not exist yet, be empty, or be a snapshot.

    Raises:
        SnapshotError: `folder` exists and is something else than a snapshot.
        OSError: no space, no permission.
    """
    import shutil

    folder = folder.rstrip("/")
    if not folder or (os.path.lexists(folder) and not _replaceable(folder)):
        raise SnapshotError("%s exists and is not a snapshot: it is left as it is" % (folder or "/"))
    staging = "%s.part-%d" % (folder, os.getpid())
    old = "%s.old-%d" % (folder, os.getpid())
    os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
    os.mkdir(staging, 0o700)
    try:
        if any(name.startswith("bodies/") for name in files):
            os.mkdir(os.path.join(staging, "bodies"), 0o700)
        for name in sorted(files):
            handle = os.open(os.path.join(staging, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as out:
                out.write(files[name])
        # The old one goes only when the new one stands.
        if os.path.lexists(folder):
            os.rename(folder, old)
        try:
            os.rename(staging, folder)
        except OSError:
            if os.path.lexists(old):
                os.rename(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replaceable(folder: str) -> bool:
    """True for a real folder that is empty or holds a snapshot, by the word of its own head."""
    if os.path.islink(folder) or not os.path.isdir(folder):
        return False
    try:
        if not os.listdir(folder):
            return True
        return bool(_load(_folder(folder), "snapshot.json", dict).get("schema") == SCHEMA)
    except (SnapshotError, OSError):
        return False


def write_archive(files: Mapping[str, bytes], path: str, top: str, zstd: str = "") -> None:
    """Write rendered `files` as a compressed tar under the folder name `top`, mode 0600, whole or not at all.

    Equal files give an equal archive: times and owners are zero. Compressed with gzip, or with the program `zstd` when its
    path is given.

    Raises:
        OSError: no space, no permission, or zstd failed.
    """
    import gzip
    import subprocess

    data = _tar(files, top)
    if zstd:
        done = subprocess.run([zstd, "-q", "-c"], input=data, capture_output=True, check=False)
        if done.returncode:
            raise OSError(0, "zstd failed: %s" % done.stderr.decode("utf-8", "replace").strip()[:200], path)
        data = done.stdout
    staging = "%s.part-%d" % (path, os.getpid())
    try:
        handle = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as raw:
            if zstd:
                raw.write(data)
            else:
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                    packed.write(data)
        os.rename(staging, path)
    finally:
        if os.path.exists(staging):
            os.unlink(staging)


def _tar(files: Mapping[str, bytes], top: str) -> bytes:
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo("%s/%s" % (top, name))
            member.size = len(files[name])
            member.mode = 0o600
            tar.addfile(member, io.BytesIO(files[name]))
    return out.getvalue()


# -- reading ---------------------------------------------------------------------------------
def open_snapshot(root: str, timeout: float = 10.0) -> Tuple[MemoryReader, Dict[str, Any]]:
    """Open the folder or ``.tar.gz`` at `root`.

    Returns:
        a reader that answers from it, and the content of ``snapshot.json``.

    Raises:
        SnapshotError: it is missing, not a snapshot, damaged, or larger than the bounds above.
    """
    fetch = _archive(root) if os.path.isfile(root) else _folder(root)
    head = _load(fetch, "snapshot.json", dict)
    if head.get("schema") != SCHEMA:
        raise SnapshotError("%s has schema %r, this collection reads %r" % (root, str(head.get("schema"))[:60], SCHEMA))
    answers = _load(fetch, "answers.json", dict)
    commands = _load(fetch, "commands.json", list)
    budget = [MAX_TOTAL]

    def text(value: Any) -> str:
        if isinstance(value, str):
            return value
        name = value.get("body") if isinstance(value, dict) else None
        if not isinstance(name, str) or not _BODY_NAME.match(name) or ".." in name:
            raise SnapshotError("%s names a body that is no file of the snapshot: %.80r" % (root, name))
        data = fetch(name, MAX_BODY)
        budget[0] -= len(data)
        if budget[0] < 0:
            raise SnapshotError("%s holds more than %d MiB of text" % (root, MAX_TOTAL >> 20))
        return data.decode("utf-8", "replace")

    reader = MemoryReader(absent="not_recorded", timeout=timeout)
    reader.recorded = True
    memo = reader.memo
    for question in ("read", "names", "link", "kind", "probe"):
        table = answers.get(question, {})
        if not isinstance(table, dict):
            raise SnapshotError("%s: answers.json: %r is not a table" % (root, question))
        for path, value in table.items():
            error = _word(value.get("error")) if isinstance(value, dict) and "error" in value else ""
            if question == "probe":
                name, _blank, arg = path.partition(" ")
                found = value.get("value") if isinstance(value, dict) else None
                memo[("probe", name, arg)] = Probed(None if error else found, error)
            elif question == "names":
                names = [str(n) for n in value] if isinstance(value, list) else []
                memo[("names", path)] = Names(names, error)
            else:
                memo[(question, path)] = Content(None, error) if error else Content(text(value))
    for entry in commands:
        argv = entry.get("argv") if isinstance(entry, dict) else None
        if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
            raise SnapshotError("%s: commands.json: an entry has no argv" % root)
        rc, seconds = entry.get("rc"), entry.get("seconds")
        memo[("run",) + tuple(argv)] = Ran(
            rc if isinstance(rc, int) else None, text(entry.get("out", "")), text(entry.get("err", "")), _word(entry.get("error")),
            seconds if isinstance(seconds, float) else 0.0)
    return reader, head


def _word(value: Any) -> str:
    return str(value or "")[:80]


def _whole_number(text: str) -> int:
    # Reading a number of a million digits takes a time that grows with its square.
    if len(text) > 40:
        raise ValueError("a number of %d digits" % len(text))
    return int(text)


def _no_constant(text: str) -> Any:
    raise ValueError(text + " is no JSON")


def _load(fetch: Callable[[str, int], bytes], name: str, kind: type) -> Any:
    try:
        value = json.loads(fetch(name, MAX_INDEX).decode("utf-8"), parse_int=_whole_number, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise SnapshotError("%s is not whole JSON: %s" % (name, str(exc)[:100])) from None
    if not isinstance(value, kind):
        raise SnapshotError("%s does not hold a %s" % (name, kind.__name__))
    return value


def _folder(root: str) -> Callable[[str, int], bytes]:
    if not os.path.isdir(root):
        raise SnapshotError("%s is not a folder" % root if os.path.lexists(root) else "%s does not exist" % root)
    if not os.path.lexists(os.path.join(root, "snapshot.json")):
        raise SnapshotError("%s is not a snapshot: it has no snapshot.json" % root)
    bodies = os.path.join(root, "bodies")
    if os.path.islink(bodies):
        raise SnapshotError("%s: bodies is a link, which a snapshot never holds" % root)

    def fetch(name: str, limit: int) -> bytes:
        try:
            handle = os.open(os.path.join(root, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            raise SnapshotError("%s: %s cannot be read: %s" % (root, name, exc.strerror)) from None
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise SnapshotError("%s: %s is not a plain file" % (root, name))
        with os.fdopen(handle, "rb") as source:
            if status.st_size > limit:
                raise SnapshotError("%s: %s has %d bytes, more than the %d MiB allowed" % (root, name, status.st_size, limit >> 20))
            return source.read(limit)

    return fetch


class Bounded:
    """A stream that ends in an error after MAX_TOTAL bytes and the headers of MAX_FILES files."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.left = MAX_TOTAL + 1024 * MAX_FILES

    def read(self, size: int) -> bytes:
        data: bytes = self.source.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise OSError("it unpacks to more than %d MiB" % (MAX_TOTAL >> 20))
        return data


@contextmanager
def unpacked(path: str) -> Iterator[IO[bytes]]:
    """The tar inside `path` as a stream, unpacked by gzip or, by its first four bytes, by the program zstd."""
    with open(path, "rb") as packed:
        magic = packed.read(4)
    if magic != b"\x28\xb5\x2f\xfd":
        import gzip

        with gzip.open(path) as stream:
            yield cast(IO[bytes], stream)
        return
    import shutil
    import subprocess

    program = shutil.which("zstd")
    if not program:
        raise SnapshotError("%s is compressed with zstd, and the program zstd is not installed here" % path)
    process = subprocess.Popen(
        [program, "-q", "-dc", "--", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield cast(IO[bytes], process.stdout)
        # Read to its end by now: its exit code tells a whole archive from a cut one.
        if process.wait(10):
            raise OSError("zstd ended with %s" % process.returncode)
    finally:
        # Closing our end stops it, should the archive be larger than what is read of it.
        cast(IO[bytes], process.stdout).close()
        process.kill()
        process.wait()


def _members(path: str, stream: Bounded) -> Dict[str, bytes]:
    """Files of a snapshot in the tar `stream`, by name without the top folder; everything else is passed over.

    A stream, so that sizes are checked before a member is unpacked; and a bounded one, since headers have sizes too.
    """
    import tarfile

    members: Dict[str, bytes] = {}
    total = 0
    with tarfile.open(fileobj=cast(Any, stream), mode="r|") as tar:
        for count, member in enumerate(tar):
            if count > MAX_FILES:
                raise SnapshotError("%s holds more than %d files" % (path, MAX_FILES))
            name = member.name.split("/", 1)[-1]
            total += max(0, member.size)
            if member.size > MAX_INDEX or total > MAX_TOTAL:
                raise SnapshotError("%s: %.80r is larger than a snapshot may be" % (path, name))
            known = name in ("snapshot.json", "answers.json", "commands.json") or _BODY_NAME.match(name)
            if not member.isreg() or not known:
                continue
            source = tar.extractfile(member)
            members[name] = source.read() if source is not None else b""
    return members


def _archive(path: str) -> Callable[[str, int], bytes]:
    import tarfile
    import zlib

    members: Dict[str, bytes] = {}
    try:
        with unpacked(path) as packed:
            stream = Bounded(packed)
            members = _members(path, stream)
            # To the end, so that a cut or changed archive is found by its checksum.
            while stream.read(1 << 20):
                pass
    # tarfile raises ValueError and its kin for some broken headers.
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, ArithmeticError, LookupError, RecursionError) as exc:
        raise SnapshotError("%s is not a whole .tar.gz or .tar.zst: %s" % (path, str(exc)[:100])) from None

    def fetch(name: str, limit: int) -> bytes:
        if name not in members:
            raise SnapshotError("%s has no %s" % (path, name))
        if len(members[name]) > limit:
            raise SnapshotError("%s: %s is larger than the %d MiB allowed" % (path, name, limit >> 20))
        return members[name]

    return fetch
