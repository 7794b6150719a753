# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images in tar archives: what is in one is told and verified before the engine gets it.

Two forms: that of `docker save` (manifest.json, https://github.com/moby/moby/blob/v28.0.0/image/tarexport) and an OCI image layout
(index.json, https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md). Newer engines write both into one archive.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from ..jobs import Tell
from .trouble import ImageProblem

_SMALL = 8 << 20
_CHUNK = 1 << 20
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


class Archive(NamedTuple):
    """An archive with one image.

    Attributes:
        path: of the file.
        kind: ``docker``, ``oci``, or ``compressed``: not looked into, since that would unpack it twice.
        identity: id of the image (digest of its configuration); empty when compressed.
        digests: digests that name it in a registry: of its manifest and of the index above; empty for docker's form.
        end: where the members end, 0 when all bytes of the file are to be loaded.
        extra: tar form of a manifest.json, for engines that read no OCI layout; empty when there is one already.
    """

    path: str
    kind: str
    identity: str
    digests: List[str]
    end: int = 0
    extra: bytes = b""


def read(path: str, architecture: str) -> Archive:
    """Look into the archive at `path`.

    Args:
        architecture: which image is meant when the index lists several, ``amd64``.

    Raises:
        ImageProblem: it cannot be read, is no archive of one image, or its parts do not have the digests that name them.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(6)
        if start[:2] == b"\x1f\x8b" or start[:4] == b"\x28\xb5\x2f\xfd" or start[:3] == b"BZh" or start == b"\xfd7zXZ\0":
            return Archive(path, "compressed", "", [])
        with tarfile.open(path, "r:") as tar:
            return _read(path, tar, architecture)
    except OSError as exc:
        raise ImageProblem("image_archive: %s cannot be read: %s" % (path, exc.strerror or exc), "archive") from exc
    except (tarfile.TarError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, EOFError) as exc:
        raise ImageProblem("image_archive: %s is no archive of an image, or it is cut: %s" % (path, exc), "archive") from exc


def _read(path: str, tar: tarfile.TarFile, architecture: str) -> Archive:
    members = {member.name.lstrip("./"): member for member in tar.getmembers() if member.isfile() or member.islnk() or member.issym()}
    last = tar.getmembers()[-1] if tar.getmembers() else None
    if last is None:
        raise ImageProblem("image_archive: %s is empty" % path, "archive")
    # A tar that was cut inside a member has fewer bytes than its headers say; one cut between members lacks what manifests name.
    if last.offset_data + last.size > os.stat(path).st_size:
        raise ImageProblem("image_archive: %s is cut: it ends inside of %s" % (path, last.name), "archive")

    def bytes_of(name: str) -> bytes:
        member = members.get(name)
        if member is None:
            raise ImageProblem("image_archive: %s lacks %s, so it is cut or no image" % (path, name), "archive")
        file = tar.extractfile(member)
        if file is None or member.size > _SMALL:
            raise ImageProblem("image_archive: %s: %s is no description of an image" % (path, name), "archive")
        return file.read()

    def blob(digest: str) -> bytes:
        data = bytes_of("blobs/" + digest.replace(":", "/"))
        if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
            raise ImageProblem("image_archive: %s: the content of %s has another digest; the archive is damaged" % (path, digest), "archive")
        return data

    if "manifest.json" in members:
        listed = json.loads(bytes_of("manifest.json"))
        if len(listed) != 1:
            raise ImageProblem("image_archive: %s holds %d images; save the one that is meant" % (path, len(listed)), "archive")
        config = str(listed[0]["Config"])
        for layer in listed[0]["Layers"]:
            if str(layer) not in members:
                raise ImageProblem("image_archive: %s lacks the layer %s, so it is cut" % (path, layer), "archive")
        identity = "sha256:" + hashlib.sha256(bytes_of(config)).hexdigest()
        named = re.search(r"[0-9a-f]{64}", config)
        if named and named.group() != identity[7:]:
            raise ImageProblem("image_archive: %s: the content of %s has another digest; the archive is damaged" % (path, config), "archive")
        digests = _digests(json.loads(bytes_of("index.json")), blob, architecture, path)[1] if "index.json" in members else []
        return Archive(path, "docker", identity, digests)
    manifest, digests = _digests(json.loads(bytes_of("index.json")), blob, architecture, path)
    if manifest is None:
        raise ImageProblem("image_archive: %s holds no image for %s" % (path, architecture), "archive")
    config = str(manifest["config"]["digest"])
    layers = ["blobs/" + str(layer["digest"]).replace(":", "/") for layer in manifest["layers"]]
    for layer, told in zip(layers, manifest["layers"]):
        if layer not in members or members[layer].size != told["size"]:
            raise ImageProblem("image_archive: %s lacks the layer %s, so it is cut" % (path, told["digest"]), "archive")
    blob(config)
    description = json.dumps([{"Config": "blobs/" + config.replace(":", "/"), "RepoTags": None, "Layers": layers}]).encode()
    size = -(-last.size // 512) * 512 if last.isfile() else 0
    return Archive(path, "oci", config, digests, last.offset_data + size, member("manifest.json", description))


def _digests(index: Any, blob: Any, architecture: str, path: str) -> Any:
    """The manifest for this processor and every digest on the way to it."""
    found: List[str] = []
    listed = index["manifests"]
    for _depth in range(3):
        fitting = [one for one in listed if _fits(one, architecture)]
        if len(fitting) != 1:
            if not fitting:
                return None, found
            raise ImageProblem("image_archive: %s holds %d images; save the one that is meant" % (path, len(fitting)), "archive")
        digest = str(fitting[0]["digest"])
        document: Dict[str, Any] = json.loads(blob(digest))
        found.append(digest)
        if fitting[0].get("mediaType") not in _INDEXES and "manifests" not in document:
            return document, found
        listed = document["manifests"]
    return None, found


def _fits(entry: Dict[str, Any], architecture: str) -> bool:
    platform: Optional[Dict[str, Any]] = entry.get("platform")
    return not platform or (platform.get("architecture") == architecture and platform.get("os") == "linux")


def chunks(archive: Archive, tell: Tell) -> Iterator[bytes]:
    """The bytes of an archive, with the description that it lacks in the place of its end."""
    left = total = archive.end or os.stat(archive.path).st_size
    with open(archive.path, "rb") as file:
        while left > 0:
            data = file.read(min(_CHUNK, left))
            if not data:
                break
            left -= len(data)
            tell("image loaded from its archive", total - left, total)
            yield data
    if archive.extra:
        yield archive.extra


def member(name: str, data: bytes) -> bytes:
    """One file in tar form, with the end of an archive behind it."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()
