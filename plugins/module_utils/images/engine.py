# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the two container engines are asked for, whichever it is."""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ..jobs import Tell
from .archive import Archive
from .reference import Reference


class EngineProblem(Exception):
    """What the engine said when it did not do what it was asked for; raw, see trouble.explain."""


class Auth(NamedTuple):
    """Credentials of one registry."""

    registry: str
    user: str
    password: str


class Info(NamedTuple):
    """An engine that answers: its version, the folder that holds images, the processor in the words of images (``amd64``)."""

    version: str
    root: str
    architecture: str


class Engine:
    """One container engine. Methods raise EngineProblem with what the engine said."""

    name = ""

    def info(self) -> Info:
        """Version and folder of the engine."""
        raise NotImplementedError

    def inspect(self, name: str) -> Optional[Dict[str, Any]]:
        """The engine's description of a local image (also by id), None when there is none."""
        raise NotImplementedError

    def pull(self, reference: Reference, auth: Optional[Auth], tell: Tell) -> None:
        """Bring the image of `reference`, by digest where it has one."""
        raise NotImplementedError

    def resolve(self, reference: Reference, auth: Optional[Auth]) -> str:
        """Digest that the tag has in the registry now; empty when this engine cannot ask."""
        return ""

    def load(self, archive: Archive, tell: Tell) -> List[str]:
        """Load a tar archive; returns the names or ids that the engine says it loaded."""
        raise NotImplementedError

    def tag(self, identity: str, repository: str, tag: str) -> None:
        """Give a local image one more name."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Take a name from an image, or the image with its last name."""
        raise NotImplementedError

    def used(self) -> List[str]:
        """Ids of the images that containers, running or not, were made of."""
        raise NotImplementedError

    def layers(self) -> List[List[str]]:
        """Unpacked layers (diff ids) of each local image, lowest first."""
        raise NotImplementedError

    def ask(self, identity: str, argv: Sequence[str], seconds: float) -> str:
        """What the program `argv` prints in a container of the image without network and GPUs, which is gone afterwards."""
        raise NotImplementedError


def loaded(text: str) -> List[str]:
    """Names and ids in ``Loaded image: …`` and ``Loaded image ID: …`` lines."""
    return re.findall(r"Loaded image(?: ID)?(?:\(s\))?: (\S{1,300})", text)


ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def full_id(identity: str) -> str:
    """An image's id with ``sha256:`` in front, as both engines take it."""
    return identity if not identity or ":" in identity else "sha256:" + identity
