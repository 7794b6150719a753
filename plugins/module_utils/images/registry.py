# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A registry asked for sizes and digests before a pull: https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md

Only advice comes from here: the engine may reach a registry by a way that this client does not know (a proxy, a mirror).
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .engine import Auth
from .reference import Reference

_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json",
)
_LIMIT = 8 << 20


class RegistryProblem(Exception):
    """What the registry, or the way to it, said."""


class Content(NamedTuple):
    """What a pull would bring.

    Attributes:
        digest: of the name that was asked for, also when that is an index.
        sizes: compressed bytes of each layer, lowest first.
        diff_ids: of the unpacked layers in the same order; empty when the registry did not tell.
    """

    digest: str
    sizes: List[int]
    diff_ids: List[str]


class _Same(urllib.request.HTTPRedirectHandler):
    """Follows a redirection to storage without carrying the credentials there."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            made.remove_header("Authorization")
        return made


class Registry:
    """One registry over TLS."""

    def __init__(self, host: str, auth: Optional[Auth], authority: str = "", seconds: float = 8.0) -> None:
        self._host, self._auth, self._seconds = host, auth, seconds
        self._token = ""
        context = ssl.create_default_context()
        if authority:
            try:
                if os.path.exists(authority):
                    context.load_verify_locations(cafile=authority)
            except (OSError, ssl.SSLError) as exc:
                raise RegistryProblem("the authority's certificate %s cannot be used: %s" % (authority, exc)) from exc
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Same())

    def content(self, reference: Reference, architecture: str) -> Content:
        """Digest, sizes and layers of an image. Raises RegistryProblem."""
        wanted = reference.digest or reference.tag
        data, _headers = self._get(reference.repository, "manifests/" + wanted)
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        document = _document(data)
        for _depth in range(2):
            if "manifests" not in document:
                break
            chosen = choose(document, architecture)
            if not chosen:
                raise RegistryProblem("no matching manifest for linux/%s" % architecture)
            document = _document(self._get(reference.repository, "manifests/" + chosen)[0])
        sizes, config = layers_of(document)
        diff_ids: List[str] = []
        if config:
            try:
                held = _document(self._get(reference.repository, "blobs/" + config)[0]).get("rootfs")
                listed = held.get("diff_ids") if isinstance(held, dict) else None
                diff_ids = [str(one) for one in listed] if isinstance(listed, list) else []
            except RegistryProblem:
                pass
        return Content(digest, sizes, diff_ids if len(diff_ids) == len(sizes) else [])

    def _get(self, repository: str, path: str, again: bool = True) -> Tuple[bytes, Any]:
        url = "https://%s/v2/%s/%s" % (self._host, repository, path)
        request = urllib.request.Request(url, headers={"Accept": ", ".join(_MANIFESTS)})
        if self._token:
            request.add_header("Authorization", "Bearer " + self._token)
        elif self._auth:
            word = base64.b64encode(("%s:%s" % (self._auth.user, self._auth.password)).encode()).decode()
            request.add_header("Authorization", "Basic " + word)
        try:
            with self._opener.open(request, timeout=self._seconds) as answer:
                return answer.read(_LIMIT), answer.headers
        except urllib.error.HTTPError as exc:
            challenge = exc.headers.get("WWW-Authenticate", "") if exc.headers else ""
            if exc.code == 401 and again and challenge.lower().startswith("bearer "):
                self._token = self._log_in(challenge)
                return self._get(repository, path, again=False)
            raise RegistryProblem("status %d: %s" % (exc.code, exc.read(300).decode("utf-8", "replace"))) from exc
        except (OSError, ValueError, http.client.HTTPException) as exc:
            raise RegistryProblem(str(getattr(exc, "reason", "") or exc)) from exc

    def _log_in(self, challenge: str) -> str:
        told = parse_challenge(challenge)
        realm = told.pop("realm", "")
        if not realm.startswith("https://"):
            raise RegistryProblem("it asks for a login over an unsafe way: %s" % realm[:200])
        request = urllib.request.Request(realm + "?" + urllib.parse.urlencode({k: v for k, v in told.items() if k in ("service", "scope")}))
        if self._auth:
            word = base64.b64encode(("%s:%s" % (self._auth.user, self._auth.password)).encode()).decode()
            request.add_header("Authorization", "Basic " + word)
        try:
            with self._opener.open(request, timeout=self._seconds) as answer:
                found = _document(answer.read(_LIMIT))
        except urllib.error.HTTPError as exc:
            raise RegistryProblem("status %d at the login" % exc.code) from exc
        except (OSError, ValueError, http.client.HTTPException) as exc:
            raise RegistryProblem(str(getattr(exc, "reason", "") or exc)) from exc
        return str(found.get("token") or found.get("access_token") or "")


def parse_challenge(text: str) -> Dict[str, str]:
    """Parameters of a ``WWW-Authenticate: Bearer realm="…",service="…"`` header; never raises."""
    return {key.lower(): value for key, value in re.findall(r'([A-Za-z_]+)="([^"]*)"', text[:4096])}


def choose(index: Dict[str, Any], architecture: str) -> str:
    """Digest of the image for a processor in an index, empty when there is none."""
    listed = index.get("manifests")
    for one in listed if isinstance(listed, list) else []:
        platform = one.get("platform") if isinstance(one, dict) else None
        if isinstance(platform, dict) and platform.get("architecture") == architecture and platform.get("os") == "linux":
            return str(one.get("digest") or "")
    return ""


def layers_of(manifest: Dict[str, Any]) -> Tuple[List[int], str]:
    """Compressed sizes of the layers and digest of the configuration; empty for what is no manifest."""
    listed = manifest.get("layers")
    config = manifest.get("config")
    sizes = [one.get("size") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        return [], ""
    return [size for size in sizes if isinstance(size, int)], str(config.get("digest") or "") if isinstance(config, dict) else ""


def missing_bytes(content: Content, local: Sequence[Sequence[str]]) -> int:
    """Compressed bytes that are not here yet: layers are shared when all below them are the same."""
    best = 0
    for held in local:
        same = 0
        for ours, theirs in zip(content.diff_ids, held):
            if ours != theirs:
                break
            same += 1
        best = max(best, same)
    return sum(content.sizes[best:])


def _document(data: bytes) -> Dict[str, Any]:
    try:
        found = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
