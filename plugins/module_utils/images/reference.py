# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of images: registry, repository, tag and digest."""

from __future__ import annotations

import re
from typing import NamedTuple

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-{1,8})[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-{1,8})[a-z0-9]+)*)*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?)(?::[0-9]{1,5})?\Z")


class ReferenceProblem(ValueError):
    """What is wrong with a name, in one sentence."""


class Reference(NamedTuple):
    """A name of an image.

    Attributes:
        registry: ``host`` or ``host:port``, empty for the engine's default registry.
        repository: path in the registry, ``vllm/vllm-openai``.
        tag: empty when there is none.
        digest: ``sha256:`` and 64 hexadecimal digits, empty when there is none.
    """

    registry: str
    repository: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """Name without tag and digest."""
        return (self.registry + "/" if self.registry else "") + self.repository

    @property
    def by_digest(self) -> str:
        """``name@digest``; the name alone without a digest."""
        return self.name + ("@" + self.digest if self.digest else "")

    @property
    def text(self) -> str:
        """The name as it is written."""
        return self.name + (":" + self.tag if self.tag else "") + ("@" + self.digest if self.digest else "")


def parse(text: str) -> Reference:
    """Parts of ``[registry/]repository[:tag][@digest]``.

    Raises:
        ReferenceProblem: `text` is no such name.
    """
    shown = repr(text[:120])
    if len(text) > 512:
        raise ReferenceProblem("%s… is too long for the name of an image" % shown)
    rest, sign, digest = text.partition("@")
    if sign and not _DIGEST.match(digest):
        raise ReferenceProblem("%s: what follows @ is no digest; it has to be sha256: and 64 digits of 0-9a-f" % shown)
    first, slash, path = rest.partition("/")
    # As the engines read it: the first part is a host when it could not be a name of a repository.
    registry = first if slash and ("." in first or ":" in first or first == "localhost" or first.lower() != first) else ""
    repository, colon, tag = (path if registry else rest).partition(":")
    if registry and not _HOST.match(registry):
        raise ReferenceProblem("%s: %r is no registry" % (shown, registry[:80]))
    if not _REPOSITORY.match(repository):
        raise ReferenceProblem("%s is no name of an image: [registry/]repository[:tag][@sha256:…], the repository in lower case" % shown)
    if colon and not _TAG.match(tag):
        raise ReferenceProblem("%s: %r is no tag" % (shown, tag[:80]))
    return Reference(registry, repository, tag, digest)
