# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declared words of a plan that are not part of a Context, read and checked."""

from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple, Pattern, Sequence, Tuple

from ..checks.wording import short
from . import overrides, recipe, versions
from .profiles import MODELS, Model
from .resolve import DEFAULT_PROFILE, InputError, features

DEFAULT_WEIGHTS = "/var/lib/vllm"
DEFAULT_VENV = "/opt/vllm"
ENGINES = ("docker", "podman")
RUNTIMES = ("container", "venv")

_PATH = re.compile(r"/[A-Za-z0-9._/+@=-]{0,254}\Z")
_MODEL = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._/+@=-]{0,254}\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}\Z")


class Words(NamedTuple):
    """Checked words.

    Attributes:
        version: declared version of vLLM, () when it is left out.
        model: id or path of other weights than the variant's, empty for none.
        container: container engine, ``docker`` or ``podman``.
        runtime: ``container``, or ``venv`` for a virtual environment on the node.
        venv: folder of that environment.
        link: port on which the head tells the other ranks of its engine what state it is in.
        flags, env: overrides as :mod:`.overrides` gives them.
    """

    features: Tuple[str, ...]
    version: versions.Version
    model: str
    revision: str
    weights_path: str
    port: int
    shutdown: int
    container: str
    runtime: str
    venv: str
    link: int
    router_image: str
    flags: Mapping[str, Any]
    env: Mapping[str, Any]


def read(declared: Mapping[str, Any]) -> Words:
    """The words of the inventory, defaults filled in.

    Raises:
        InputError: a word that means nothing; the message names the variable and what is allowed.
    """
    profile = declared.get("vllm_profile")
    known = profile if isinstance(profile, str) and profile in MODELS else DEFAULT_PROFILE
    return Words(
        features=features(declared, known),
        version=_declared_version(declared, MODELS[known]),
        model=_matching(declared, "vllm_model", _MODEL, "an id on the Hugging Face hub or an absolute path"),
        revision=_matching(declared, "vllm_revision", _REVISION, "a commit of the model's repository"),
        weights_path=_matching(declared, "vllm_weights_path", _PATH, "an absolute path") or DEFAULT_WEIGHTS,
        port=_whole(declared, "vllm_port", recipe.PORTS["api"], 1, 65535),
        shutdown=_whole(declared, "vllm_shutdown_timeout", recipe.SHUTDOWN_S, 0, 86400),
        container=_one(declared, "vllm_engine", ENGINES),
        runtime=_one(declared, "vllm_runtime", RUNTIMES),
        venv=_matching(declared, "vllm_venv", _PATH, "an absolute path") or DEFAULT_VENV,
        link=_whole(declared, "vllm_link_port", recipe.PORTS["link"], 1, 65535),
        router_image=_matching(declared, "vllm_router_image", _IMAGE, "the name of an image"),
        flags=overrides.flags(declared.get("vllm_overrides")),
        env=overrides.env(declared.get("vllm_env_overrides")),
    )


def _declared_version(declared: Mapping[str, Any], model: Model) -> versions.Version:
    value = declared.get("vllm_version")
    if value in (None, "", "auto"):
        return ()
    found = versions.parse(value)
    lowest = versions.word(model.vllm_min)
    if not found:
        raise InputError("vllm_version: %s is not a version such as %s (in quotes), or auto" % (short(repr(value), 60), lowest))
    if found < model.vllm_min:
        raise InputError("vllm_version: %s is older than %s, the first that runs %s" % (short(repr(value), 60), lowest, model.title))
    return found


def _matching(declared: Mapping[str, Any], variable: str, pattern: Pattern[str], what: str) -> str:
    value = declared.get(variable)
    if value in (None, "", "auto"):
        return ""
    if not isinstance(value, str) or not pattern.match(value) or ".." in value.split("/"):
        raise InputError("%s: %s is not %s" % (variable, short(repr(value), 60), what))
    return value


def _whole(declared: Mapping[str, Any], variable: str, otherwise: int, low: int, high: int) -> int:
    value = declared.get(variable)
    if value in (None, "", "auto"):
        return otherwise
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or not low <= int(text[:9]) <= high or len(text) > 9:
        raise InputError("%s: %s is not a whole number from %d to %d" % (variable, short(repr(value), 60), low, high))
    return int(text)


def _one(declared: Mapping[str, Any], variable: str, allowed: Sequence[str]) -> str:
    value = declared.get(variable)
    if value in (None, "", "auto"):
        return allowed[0]
    if value not in allowed:
        raise InputError("%s: %s is not one of %s" % (variable, short(repr(value), 60), ", ".join(allowed)))
    return str(value)
