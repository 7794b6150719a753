# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An evidence bundle: a snapshot (``node.snapshot``) with logs and an account of how it came about.

Beside the files of a snapshot it holds

``evidence.json``
    ``{"schema": "inferops.vllm/evidence/1", …}``: node, boot, services and restarts, containers, processes, rank, versions, answers
    of the server, every command with its exit code, seconds and time limit, every log with what was cut, what could not be
    collected and why, and where secrets were masked. docs/EVIDENCE.md describes it.
``logs/*.log.gz``
    logs in gzip members.

``MANIFEST.sha256`` covers these too.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import stat
import tarfile
import zlib
from typing import IO, Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple, cast

from ..node import snapshot
from ..node.snapshot import SnapshotError

SCHEMA = "inferops.vllm/evidence/1"
_NAME = re.compile(r"(?:(?:bodies|logs)/)?[A-Za-z0-9][A-Za-z0-9._+=@,-]{0,200}\Z")
_LINE = re.compile(r"^([0-9a-f]{64})  (\S.{0,300})$")

Contents = Mapping[str, Sequence[bytes]]
"""Name → parts that are joined; a log is kept in parts, so that it is never copied."""


def manifest(contents: Contents) -> bytes:
    """Text of ``MANIFEST.sha256`` for `contents`, in the format of sha256sum(1)."""
    lines = []
    for name in sorted(contents):
        digest = hashlib.sha256()
        for part in contents[name]:
            digest.update(part)
        lines.append("%s  %s\n" % (digest.hexdigest(), name))
    return "".join(lines).encode("ascii")


def assemble(files: Mapping[str, bytes], logs: Mapping[str, Sequence[bytes]], account: Mapping[str, Any]) -> Dict[str, Sequence[bytes]]:
    """All files of a bundle, the manifest last: `files` of a snapshot, `logs` by file name, and the account."""
    contents: Dict[str, Sequence[bytes]] = {name: [data] for name, data in files.items() if name != "MANIFEST.sha256"}
    contents.update({"logs/" + name: parts for name, parts in logs.items()})
    contents["evidence.json"] = [(json.dumps(account, indent=1, sort_keys=True) + "\n").encode("ascii")]
    whole = dict(contents)
    whole["MANIFEST.sha256"] = [manifest(contents)]
    return whole


def write_archive(contents: Contents, path: str, top: str, zstd: str = "") -> Tuple[int, str]:
    """Write `contents` as a compressed tar under the folder name `top`, mode 0600, whole or not at all, never over another file.

    Returns:
        size in bytes and sha256 of the archive.

    Raises:
        OSError: no space, no permission, `path` exists, or zstd failed.
    """
    import subprocess

    staging = "%s.part-%d" % (path, os.getpid())
    try:
        handle = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            if zstd:
                process = subprocess.Popen([zstd, "-q", "-c"], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE)
                try:
                    _tar(contents, top, cast(IO[bytes], process.stdin))
                except BrokenPipeError:
                    pass
                _out, err = process.communicate()
                if process.returncode:
                    raise OSError(28 if b"space" in err else 5, err.decode("utf-8", "replace").strip()[:200] or "zstd failed", path)
            else:
                pack(contents, file, top)
            file.flush()
            os.fsync(file.fileno())
        if os.path.lexists(path):
            raise FileExistsError(17, "exists; a bundle is never written over another one", path)
        os.rename(staging, path)
    finally:
        if os.path.exists(staging):
            os.unlink(staging)
    digest = hashlib.sha256()
    with open(path, "rb") as written:
        for part in iter(lambda: written.read(1 << 20), b""):
            digest.update(part)
    return os.path.getsize(path), digest.hexdigest()


def pack(contents: Contents, sink: IO[bytes], top: str) -> None:
    """Write `contents` as a ``.tar.gz`` to `sink`. Equal files give equal bytes: times and owners are zero."""
    with gzip.GzipFile(filename="", fileobj=sink, mode="wb", compresslevel=6, mtime=0) as packed:
        _tar(contents, top, cast(IO[bytes], packed))


def _tar(contents: Contents, top: str, sink: IO[bytes]) -> None:
    # What a snapshot holds comes first, so that its reader is not kept by the logs.
    order = sorted(contents, key=lambda name: (name == "MANIFEST.sha256", name.startswith("logs/"), name))
    with tarfile.open(fileobj=cast(Any, sink), mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name in order:
            member = tarfile.TarInfo("%s/%s" % (top, name))
            member.size = sum(len(part) for part in contents[name])
            member.mode = 0o600
            tar.addfile(member, cast(IO[bytes], _Joined(contents[name])))


class _Joined:
    """Parts read as one file."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = iter(parts)
        self.rest = b""

    def read(self, size: int = -1) -> bytes:
        taken: List[bytes] = []
        need = size
        while size < 0 or need > 0:
            if not self.rest:
                self.rest = next(self.parts, b"")
                if not self.rest:
                    break
            part = self.rest if size < 0 else self.rest[:need]
            self.rest = self.rest[len(part):]
            need -= len(part)
            taken.append(part)
        return b"".join(taken)


def write_folder(contents: Contents, folder: str) -> None:
    """Write `contents` as the new folder `folder`, mode 0700, whole or not at all.

    Raises:
        OSError: `folder` exists, no space, no permission.
    """
    import shutil

    folder = folder.rstrip("/")
    if os.path.lexists(folder):
        raise FileExistsError(17, "exists; a bundle is never written over another one", folder)
    staging = "%s.part-%d" % (folder, os.getpid())
    os.mkdir(staging, 0o700)
    try:
        for name in contents:
            if "/" in name:
                os.makedirs(os.path.join(staging, os.path.dirname(name)), 0o700, exist_ok=True)
            handle = os.open(os.path.join(staging, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as out:
                for part in contents[name]:
                    out.write(part)
        os.rename(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


# -- reading ---------------------------------------------------------------------------------
class Opened(NamedTuple):
    """A bundle that was read: `logs` are the compressed logs by file name, `head` and `account` its two documents.

    `problems` say what does not agree with the manifest; an empty list means that every file is as it was written.
    """

    root: str
    node: str
    head: Dict[str, Any]
    account: Dict[str, Any]
    logs: Dict[str, bytes]
    problems: List[str]


ARCHIVES = (".tar.gz", ".tgz", ".tar.zst", ".tar.zstd")


def is_archive(root: str) -> bool:
    """True for a file that is named as an archive which this module opens."""
    return root.endswith(ARCHIVES) and os.path.isfile(root)


def is_bundle(root: str) -> bool:
    """True for a folder with ``snapshot.json``, and for an archive that holds one or cannot be read; nothing is judged yet."""
    if os.path.isdir(root):
        return os.path.isfile(os.path.join(root, "snapshot.json"))
    if not is_archive(root):
        return False
    try:
        # The documents come before everything else but bodies.
        return any(name == "snapshot.json" for name, _data in _members(root, most=0))
    except SnapshotError:
        # Refused where it is opened, with the reason.
        return True


def open_bundle(root: str) -> Opened:
    """Read the logs and documents of the bundle at `root`, and compare every file with the manifest.

    Raises:
        SnapshotError: it is missing, damaged, or larger than the bounds of ``node.snapshot``.
    """
    digests: Dict[str, str] = {}
    kept: Dict[str, bytes] = {}
    for name, data in _folder(root) if os.path.isdir(root) else _members(root):
        digests[name] = hashlib.sha256(data).hexdigest()
        if name in ("snapshot.json", "evidence.json", "MANIFEST.sha256") or name.startswith("logs/"):
            kept[name] = data
    if "snapshot.json" not in kept:
        raise SnapshotError("%s is not a bundle: it has no snapshot.json" % root)
    head = _json(root, "snapshot.json", kept["snapshot.json"])
    account = _json(root, "evidence.json", kept["evidence.json"]) if "evidence.json" in kept else {}
    if head.get("schema") != snapshot.SCHEMA:
        raise SnapshotError("%s has schema %.60r, this collection reads %r" % (root, str(head.get("schema")), snapshot.SCHEMA))
    logs = {name[5:]: data for name, data in kept.items() if name.startswith("logs/")}
    return Opened(root, str(head.get("node") or "")[:80], head, account, logs, _differences(kept.get("MANIFEST.sha256"), digests))


def _differences(listed: Any, digests: Mapping[str, str]) -> List[str]:
    if listed is None:
        return ["MANIFEST.sha256 is missing"]
    named: Dict[str, str] = {}
    for line in listed.decode("utf-8", "replace").splitlines():
        found = _LINE.match(line)
        if found:
            named[found.group(2)] = found.group(1)
    problems = ["%s is not what was recorded" % name for name in sorted(named) if name in digests and digests[name] != named[name]]
    problems += ["%s is missing" % name for name in sorted(named) if name not in digests]
    problems += ["%s was added" % name for name in sorted(digests) if name not in named and name != "MANIFEST.sha256"]
    return problems


def _json(root: str, name: str, data: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise SnapshotError("%s: %s is not whole JSON: %s" % (root, name, str(exc)[:100])) from None
    if not isinstance(value, dict):
        raise SnapshotError("%s: %s does not hold a table" % (root, name))
    return value


class _Budget:
    """Refuses what is too large before it is read."""

    def __init__(self, root: str, most: int) -> None:
        self.root, self.most, self.left = root, most, snapshot.MAX_TOTAL

    def take(self, name: str, size: int) -> None:
        self.left -= size
        if size > self.most or self.left < 0:
            raise SnapshotError("%s: %.80r is larger than a bundle may be" % (self.root, name))


def _folder(root: str) -> Iterator[Tuple[str, bytes]]:
    """Plain files of a bundle's folder with what they hold."""
    count = 0
    budget = _Budget(root, snapshot.MAX_INDEX)
    for part in ("", "bodies", "logs"):
        folder = os.path.join(root, part)
        if os.path.islink(folder.rstrip("/")) and part:
            raise SnapshotError("%s: %s is a link, which a bundle never holds" % (root, part))
        if not os.path.isdir(folder):
            continue
        for entry in sorted(os.listdir(folder)):
            name = "%s/%s" % (part, entry) if part else entry
            if not part and entry in ("bodies", "logs"):
                continue
            count += 1
            if count > snapshot.MAX_FILES:
                raise SnapshotError("%s holds more than %d files" % (root, snapshot.MAX_FILES))
            try:
                handle = os.open(os.path.join(root, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as exc:
                raise SnapshotError("%s: %s cannot be read: %s" % (root, name, exc.strerror)) from None
            with os.fdopen(handle, "rb") as source:
                status = os.fstat(source.fileno())
                if not stat.S_ISREG(status.st_mode):
                    continue
                budget.take(name, status.st_size)
                yield name, source.read(status.st_size + 1)


def _members(path: str, any_name: bool = False, most: int = snapshot.MAX_INDEX) -> Iterator[Tuple[str, bytes]]:
    """Plain files of an archive with what they hold, each at most `most` bytes; with 0 nothing is read of them but their names.

    Raises:
        SnapshotError: it is damaged or too large; what came before has been given.
    """
    budget = _Budget(path, most)
    try:
        with snapshot.unpacked(path) as packed:
            stream = snapshot.Bounded(packed)
            with tarfile.open(fileobj=cast(Any, stream), mode="r|") as tar:
                for count, member in enumerate(tar):
                    if count > snapshot.MAX_FILES:
                        raise SnapshotError("%s holds more than %d files" % (path, snapshot.MAX_FILES))
                    name = member.name if any_name else member.name.split("/", 1)[-1]
                    source = tar.extractfile(member) if member.isreg() and (any_name or _NAME.match(name)) else None
                    if source is None:
                        continue
                    if most:
                        budget.take(name, max(0, member.size))
                    yield name, source.read() if most else b""
            while stream.read(1 << 20):
                pass
    # tarfile raises ValueError and its kin for some broken headers.
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, ArithmeticError, LookupError, RecursionError) as exc:
        raise SnapshotError("%s is not a whole .tar.gz or .tar.zst: %s" % (path, str(exc)[:100])) from None


def repack(root: str) -> Tuple[Dict[str, Sequence[bytes]], Dict[str, Any]]:
    """All files of the bundle or snapshot at `root`, as they stand, to be written elsewhere, and its account.

    Raises:
        SnapshotError: it is no whole bundle, or a file is not what its manifest says.
    """
    opened = open_bundle(root)
    if opened.problems:
        raise SnapshotError("%s: %s" % (root, "; ".join(opened.problems[:3])))
    return {name: [data] for name, data in (_folder(root) if os.path.isdir(root) else _members(root))}, opened.account


def open_logs(root: str) -> Dict[str, bytes]:
    """Plain files of an archive that is no bundle, by name: somebody's logs, packed. Links and devices are passed over.

    Raises:
        SnapshotError: it is damaged, or larger than the bounds of ``node.snapshot``.
    """
    return dict(_members(root, any_name=True, most=snapshot.MAX_TOTAL))
