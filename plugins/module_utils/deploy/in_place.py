# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether what a rank is planned to start from is on its node already. Looks only; what is not told to be there is brought, or refused, later."""

from __future__ import annotations

from .. import jobs
from ..images import ensure as images
from ..images.docker import Docker
from ..images.engine import Engine
from ..images.podman import Podman
from ..images.trouble import ImageProblem
from ..weights import ensure as weights
from ..weights.place import WeightsProblem

PATHS = images.Paths()


def image(name: str, registry: str, program: str, paths: images.Paths = PATHS, socket: str = "/var/run/docker.sock") -> str:
    """Name to start the image by when it is here as the role `image` left it, else empty.

    Args:
        name: the image of the plan. registry: where a name without a registry comes from. program: ``docker`` or ``podman``.
        paths: where the record of images stands. socket: of Docker.
    """
    engine: Engine = Podman() if program == "podman" else Docker(socket)
    try:
        found = images.run(images.check(images.Wanted(name, registry=registry, digest_required=False)), engine, paths, jobs.quiet, dry=True)
    except ImageProblem:
        return ""
    return "" if found["changed"] or not found["present"] else str(found["reference"])


def has_weights(model: str, home: str, revision: str) -> bool:
    """The weights are whole by names and sizes, and marked so by the role `weights`.

    Args:
        model: id in the hub, or the model's folder. home: HF_HOME of the service. revision: commit, empty for any.
    """
    try:
        found = weights.run(weights.check(weights.Wanted(model, home, revision)), jobs.quiet, dry=True)
    except WeightsProblem:
        return False
    return bool(found["present"]) and not found["changed"]
