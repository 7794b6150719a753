# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights on a node: found whole, or brought there, and marked so that the next look costs one pass of stat."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..jobs import Tell
from . import copying, hub
from .checkpoint import MARKER, SUMS, Found, Mark, look, mark_text, parse_mark, summary
from .hub_script import BEGUN
from .place import (
    COMMIT,
    Lock,
    WeightsProblem,
    disk_problem,
    existing,
    hub_folder,
    mounts,
    need,
    read_text,
    snapshot,
    space,
    stored,
    unmounted,
    usable_model,
    wait_for,
    write_text,
)

STATE = "/var/lib/inferops-vllm/weights"
"""Marks of folders that this node may not write into."""
ANOTHER = " has another sum"


class Wanted(NamedTuple):
    """What is to be on the node.

    Attributes:
        model: id in the hub, or absolute path of the model's folder.
        home: HF_HOME: where the hub's layout is, and where the service finds a model by its id.
        revision: commit.
        source: ``auto``, ``present``, ``copy`` or ``download``.
        mirror: folder or tar archive on the node to copy from.
        repository: id in the hub, when `model` is a path.
        mount: mount point that must be mounted.
        checksums: ``no``, ``write`` or ``verify``.
        engine, image: what runs the download.
        token: HF_TOKEN.
        environment: more variables of the download.
        workers: files at a time.
        authorities: PEM file with the authorities that TLS to the hub is held against.
    """

    model: str
    home: str
    revision: str = ""
    source: str = "auto"
    mirror: str = ""
    repository: str = ""
    mount: str = ""
    checksums: str = "no"
    engine: str = "docker"
    image: str = ""
    token: str = ""
    environment: Mapping[str, str] = {}
    workers: int = 8
    authorities: str = ""


def check(wanted: Wanted) -> Wanted:
    """Read the words. Raises WeightsProblem for those that make no sense, before anything is touched."""
    if not wanted.home.startswith("/"):
        raise WeightsProblem("path: %r is no absolute path" % wanted.home[:80], "words")
    if not wanted.model.startswith("/") and not usable_model(wanted.model):
        raise WeightsProblem("model: %r is neither the id of a model (owner/name) nor an absolute path" % wanted.model[:80], "words")
    if wanted.repository and not usable_model(wanted.repository):
        raise WeightsProblem("repository: %r is no id of a model (owner/name)" % wanted.repository[:80], "words")
    if wanted.source == "copy" and not wanted.mirror:
        raise WeightsProblem("source: copy needs the folder or archive in `from`", "words")
    if wanted.mirror and not wanted.mirror.startswith("/"):
        raise WeightsProblem("from: %r is no absolute path" % wanted.mirror[:80], "words")
    if wanted.authorities and not wanted.authorities.startswith("/"):
        raise WeightsProblem("ca_file: %r is no absolute path" % wanted.authorities[:80], "words")
    if wanted.source == "download" and wanted.model.startswith("/") and not wanted.repository:
        raise WeightsProblem("source: a download into %s needs `repository`, the id of the model" % wanted.model, "words")
    return wanted._replace(model=_plain(wanted.model) if wanted.model.startswith("/") else wanted.model, home=_plain(wanted.home))


def run(wanted: Wanted, tell: Tell, dry: bool, quick: bool = False, state: str = STATE) -> Dict[str, Any]:
    """Find or bring the weights and say what became of it; see the module's RETURN.

    Args:
        dry: only say what would be done.
        quick: return ``{"long": True}`` instead of doing what takes long.

    Raises:
        WeightsProblem: with the sentence to show.
    """
    try:
        return _Run(wanted, tell, dry, state).run(quick)
    except OSError as exc:
        raise disk_problem(exc, wanted.home) from exc


def _plain(path: str) -> str:
    return os.path.normpath(path)


class _Run:
    """One run over one node."""

    def __init__(self, wanted: Wanted, tell: Tell, dry: bool, state: str) -> None:
        self.wanted, self.tell, self.dry, self.state = wanted, tell, dry, state
        self.steps: List[str] = []
        self.notes: List[str] = []
        self.verified = 0
        self.renewed = False

    def run(self, quick: bool) -> Dict[str, Any]:
        wanted = self.wanted
        point = unmounted(self._folder() or wanted.home, mounts(), read_text("/etc/fstab"), wanted.mount)
        if point:
            raise WeightsProblem("%s: %s is not mounted on this node, so the weights would go to the disk below it; mount it" % (
                self._folder() or wanted.home, point), "mount")
        folder = self._folder()
        mark = self._mark(folder)
        found = look(folder, mark.files if self._of(mark) else {}) if folder and os.path.isdir(folder) else None
        if found and found.whole and self._of(mark):
            return self._there(folder, found, mark, quick)
        how = self._how(folder, found)
        if self.dry:
            self.steps.append("would %s" % how)
            return self._result(folder or hub_folder(wanted.home, wanted.model), found, False)
        if quick:
            return {"long": True}
        folder = self._bring(how)
        mark = self._mark(folder)
        found = look(folder, mark.files)
        if not found.whole:
            raise WeightsProblem("%s: after the %s the weights are still not whole: %s" % (folder, how.split(" ")[0], summary(found)), "incomplete")
        return self._there(folder, found, mark, False)

    # -- finding --------------------------------------------------------------------------------------
    def _folder(self) -> str:
        """Folder of the model; empty when the hub's layout does not tell the commit yet."""
        wanted = self.wanted
        return wanted.model if wanted.model.startswith("/") else snapshot(wanted.home, wanted.model, wanted.revision)

    def _mark(self, folder: str) -> Mark:
        if not folder:
            return Mark("", "", {})
        mark = parse_mark(read_text(os.path.join(folder, MARKER)))
        return mark if mark.files or mark.revision else parse_mark(read_text(self._own_mark(folder)))

    def _own_mark(self, folder: str) -> str:
        return os.path.join(self.state, hashlib.sha256(folder.encode()).hexdigest()[:20] + ".json")

    def _of(self, mark: Mark) -> bool:
        """The mark speaks of the wanted revision, or of none: a folder that was put there by hand."""
        return not self.wanted.revision or not mark.revision or mark.revision == self.wanted.revision

    def _revision(self, folder: str, mark: Mark) -> str:
        name = folder.rpartition("/")[2]
        return mark.revision or (name if COMMIT.match(name) else "")

    def _there(self, folder: str, found: Found, mark: Mark, quick: bool) -> Dict[str, Any]:
        """The weights are whole: mark them, and see to the sums."""
        wanted = self.wanted
        revision = self._revision(folder, mark) or (wanted.revision if self.steps else "")
        if wanted.revision and not revision:
            self.notes.append("%s was put there by hand, so its revision is not known; it was not held against %s" % (folder, wanted.revision))
        work = self._sums_work(folder, found, mark)
        if work and quick and not self.dry:
            return {"long": True}
        wrong = [] if (self.dry and work == "verify") or not work else self._sums(folder, found, work)
        if wrong:
            return self._renew(folder, wrong)
        fresh = mark.files != found.files
        if fresh:
            self.steps.append("%s %d files with %s bytes in %s" % (
                "would mark" if self.dry else "marked", len(found.files), "{:,}".format(found.bytes), folder))
        if fresh and not self.dry:
            self._save(folder, Mark(wanted.repository or ("" if wanted.model.startswith("/") else wanted.model), revision, found.files))
        return self._result(folder, found, True, revision)

    def _save(self, folder: str, mark: Mark) -> None:
        text = mark_text(mark)
        try:
            write_text(os.path.join(folder, MARKER), text)
        except OSError:
            os.makedirs(self.state, mode=0o755, exist_ok=True)
            write_text(self._own_mark(folder), text)

    # -- sums -------------------------------------------------------------------------------------------
    def _sums_path(self, folder: str) -> str:
        own = self._own_mark(folder)[:-5] + ".sha256"
        return own if os.path.exists(own) and not os.path.exists(os.path.join(folder, SUMS)) else os.path.join(folder, SUMS)

    def _sums_work(self, folder: str, found: Found, mark: Mark) -> str:
        if self.wanted.checksums == "write":
            known = copying.parse_sums(read_text(self._sums_path(folder)))
            return "write" if set(known) != set(found.files) or mark.files != found.files else ""
        return "verify" if self.wanted.checksums == "verify" else ""

    def _sums(self, folder: str, found: Found, work: str) -> List[str]:
        """Write the sums, or hold the files against them; returns one phrase for each file that is not what it should be."""
        names = sorted(found.files)
        if work == "write":
            self.steps.append("%s sums of %d files" % ("would write" if self.dry else "wrote", len(names)))
            if self.dry:
                return []
            known = {}
        else:
            known = {**copying.blob_sums(folder, names), **copying.parse_sums(read_text(self._sums_path(folder)))}
            names = [name for name in names if name in known]
            if not names:
                raise WeightsProblem("%s: there are no sums to hold the weights against; write them first (checksums: write)" % folder, "sums")
        sizes = {name: stamp[0] for name, stamp in found.files.items()}
        table = copying.sums(folder, names, sizes, self.tell, self.wanted.workers)
        if work == "verify":
            wrong = [name + ANOTHER for name in names if table[name] != known[name]]
            wrong += ["%s is missing" % name for name in sorted(known) if name not in found.files]
            if wrong:
                return wrong
            self.verified = len(names)
            if len(names) < len(found.files):
                self.notes.append("%s: there is no sum for %d of %d files" % (folder, len(found.files) - len(names), len(found.files)))
            return []
        text = copying.sums_text(table)
        try:
            write_text(os.path.join(folder, SUMS), text)
        except OSError:
            os.makedirs(self.state, mode=0o755, exist_ok=True)
            write_text(self._own_mark(folder)[:-5] + ".sha256", text)
        return []

    def _renew(self, folder: str, wrong: List[str]) -> Dict[str, Any]:
        """Bring files again whose sums are not what they should be: once, and only where weights may be brought at all."""
        trouble = WeightsProblem("%s: %s" % (folder, summary(Found({}, 0, wrong, 0))), "sums")
        if self.renewed or self.wanted.source == "present":
            raise trouble
        try:
            how = self._how(folder, None)
        except WeightsProblem:
            raise trouble from None
        self.renewed = True
        self.steps.append("took away %s" % ", ".join(wrong[:20]))
        folder = self._bring(how, [phrase[:-len(ANOTHER)] for phrase in wrong if phrase.endswith(ANOTHER)])
        found = look(folder, {})
        if not found.whole:
            raise WeightsProblem("%s: after the %s the weights are still not whole: %s" % (folder, how.split(" ")[0], summary(found)), "incomplete")
        return self._there(folder, found, self._mark(folder), False)

    # -- bringing -----------------------------------------------------------------------------------------
    def _how(self, folder: str, found: Optional[Found]) -> str:
        """``copy from …`` or ``download …``; refused when there is no way to get what is missing."""
        wanted = self.wanted
        mirror, model = wanted.mirror, self._model()
        if wanted.source == "copy" or (wanted.source == "auto" and mirror):
            if not wanted.model.startswith("/") and not COMMIT.match(wanted.revision):
                raise WeightsProblem("revision: name the commit that %s is of, so that the service finds it under its id" % mirror, "revision")
            return "copy %s to %s" % (mirror, folder)
        if wanted.source == "present" or not model:
            where = folder or hub_folder(wanted.home, wanted.model)
            if found and found.faults and found.files:
                raise WeightsProblem("%s: the weights are not whole: %s" % (where, summary(found)), "incomplete")
            if found and found.whole:
                raise WeightsProblem("%s holds revision %s, not %s" % (where, self._mark(folder).revision, wanted.revision), "revision")
            raise WeightsProblem("%s: no weights are there%s" % (where, "" if wanted.source == "present" else "; name where they come from (weights_from, "
                                 "or weights_repository for a download)"), "absent")
        if wanted.authorities and not os.path.isfile(wanted.authorities):
            raise WeightsProblem("ca_file: there is no file %s on this node" % wanted.authorities, "words")
        if not wanted.image:
            raise WeightsProblem("image: a download of %s runs in the image of the service; name it" % model, "words")
        return "download %s %s" % (model, wanted.revision or "(no revision)")

    def _model(self) -> str:
        return self.wanted.repository or ("" if self.wanted.model.startswith("/") else self.wanted.model)

    def _bring(self, how: str, damaged: Sequence[str] = ()) -> str:
        """Copy or download, one node at a time; files in `damaged` are taken away before. Returns the folder."""
        wanted = self.wanted
        source = hub.Source(
            wanted.engine, wanted.image, self._model(), wanted.revision, wanted.home, wanted.model if wanted.model.startswith("/") else "", wanted.token,
            wanted.environment, wanted.workers, wanted.authorities)
        download = how.startswith("download")
        if download and not COMMIT.match(wanted.revision):
            told = hub.ask(source, lambda: self.tell("weights: asking the hub for the revision", 0, 0))
            raise WeightsProblem("revision: %s of %s moves; it is the commit %s now: set vllm_revision to that" % (
                wanted.revision or "the newest revision", source.model, told.commit), "revision")
        top = wanted.model if wanted.model.startswith("/") else wanted.home
        if not space(top).writable:
            raise WeightsProblem("%s is mounted read-only on this node, and the weights are not there yet" % top, "file")
        os.makedirs(top, mode=0o755, exist_ok=True)
        lock = Lock(top)
        if not wait_for(lock, self.tell, self._whole_now):
            return self._folder()

        def tell(what: str, done: int, total: int) -> None:
            lock.beat()
            self.tell(what, done, total)

        try:
            for name in damaged:
                for path in (os.path.realpath(os.path.join(self._folder(), name)), os.path.join(self._folder(), name)):
                    if os.path.lexists(path):
                        os.unlink(path)
            if download:
                self._download(source, top, tell)
            else:
                self._copy(tell)
        finally:
            lock.release()
        self.steps.append(how.replace("copy ", "copied ", 1).replace("download ", "downloaded ", 1))
        return self._folder()

    def _whole_now(self) -> bool:
        """Another node has brought them meanwhile."""
        folder = self._folder()
        mark = self._mark(folder)
        return bool(folder and mark.files and self._of(mark) and look(folder, mark.files).whole)

    def _copy(self, tell: Tell) -> None:
        wanted, folder = self.wanted, self._folder()
        files = copying.listing(wanted.mirror)
        if not files:
            raise WeightsProblem("weights_from: %s is empty" % wanted.mirror, "absent")
        there = {name: stamp[0] for name, stamp in look(folder, {}).files.items()}
        mark = self._mark(folder)
        # The next revision of a model mostly has files of the same sizes. A link into the mirror is what it should be.
        old = [] if self._of(mark) else sorted(
            name for name in files if name in there and not _same(os.path.join(wanted.mirror, name), os.path.join(folder, name)))
        total = sum(files.values())
        kept = sum(there[name] for name in old) or sum(size for name, size in files.items() if there.get(name) == size)
        need(total, min(total, kept), len(files), space(folder), folder)
        os.makedirs(folder, mode=0o755, exist_ok=True)
        for path in [os.path.join(folder, name) for name in old] + ([self._sums_path(folder)] if old else []):
            if os.path.lexists(path):
                os.unlink(path)
        if old:
            self.steps.append("took away %d files of revision %s" % (len(old), mark.revision))
        if wanted.revision:
            # Also a copy that was killed is known for what it is.
            self._save(folder, Mark(self._model(), wanted.revision, {}))
        copying.copy(wanted.mirror, files, folder, tell)
        self._finish(folder)

    def _download(self, source: hub.Source, top: str, tell: Tell) -> None:
        told = hub.ask(source, lambda: tell("weights: asking the hub what there is", 0, 0))
        if told.commit != source.revision:
            raise WeightsProblem("%s: the hub answers for the commit %s, not %s" % (source.model, told.commit, source.revision), "revision")
        where = source.folder or hub_folder(source.home, source.model)
        total = sum(told.files.values())
        # Other revisions in the same cache share blobs; what is there counts at most once.
        need(total, min(total, stored(where, BEGUN)), len(told.files), space(top), top)

        def progress() -> int:
            there = stored(where)
            tell("weights downloaded", min(there, total), total)
            return there

        hub.download(source, progress)
        folder = self._folder()
        there = {name: _size(folder, name) for name in told.files}
        short = ["%s: %d of %d bytes" % (name, there[name], size) for name, size in sorted(told.files.items()) if size and there[name] != size]
        if short:
            raise WeightsProblem("%s: after the download files are missing or cut: %s" % (folder, summary(Found({}, 0, short, 0))), "incomplete")
        self._finish(folder)

    def _finish(self, folder: str) -> None:
        """Mark whole weights while the lock is held, so that a waiting node sees them finished."""
        found = look(folder, {})
        if found.whole and self.wanted.revision:
            self._name(folder)
            self._save(folder, Mark(self._model(), self.wanted.revision, found.files))

    def _name(self, folder: str) -> None:
        """Without --revision a service looks for the branch main: without network it finds the commit by this file alone."""
        wanted = self.wanted
        path = os.path.join(hub_folder(wanted.home, wanted.model), "refs", "main")
        if not wanted.model.startswith("/") and not os.path.exists(path):
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            write_text(path, folder.rpartition("/")[2])

    def _result(self, folder: str, found: Optional[Found], present: bool, revision: str = "") -> Dict[str, Any]:
        try:
            room = space(existing(folder))
            free, mount, device = room.free, room.mount, room.device
        except OSError:
            free, mount, device = 0, "", ""
        return {
            "changed": bool(self.steps), "folder": folder, "model": self.wanted.model, "revision": revision, "present": present,
            "bytes": found.bytes if found else 0, "files": len(found.files) if found else 0, "shards": found.shards if found else 0,
            "free_bytes": free, "mount": mount, "device": device, "steps": self.steps, "notes": self.notes, "verified": self.verified,
        }


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _size(folder: str, name: str) -> int:
    try:
        return os.stat(os.path.join(folder, name)).st_size
    except OSError:
        return -1
