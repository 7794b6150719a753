# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module arguments that say what to look for on a node, and their reading."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from .collect import Options, wanted_sections

MAX_TIMEOUT = 600.0
"""Seconds; a deadline beyond it would be none."""


def spec() -> Dict[str, Dict[str, Any]]:
    """Argument spec of the doc fragment ``inferops.vllm.collection``."""
    return {
        "gather_subset": {"type": "list", "elements": "str", "default": ["all"]},
        "timeout": {"type": "float", "default": 10.0},
        "paths": {"type": "list", "elements": "str", "default": ["/var/lib/vllm"]},
        "image": {"type": "str", "default": ""},
        "names": {"type": "list", "elements": "str", "default": []},
        "units": {"type": "list", "elements": "str", "default": ["vllm.service"]},
        "probe_container": {"type": "bool", "default": False},
    }


def options(params: Mapping[str, Any]) -> Options:
    """Options for :func:`collect.gather` from module parameters.

    Raises:
        ValueError: a value that cannot be used; the message names the parameter and what it allows.
    """
    timeout = params["timeout"]
    if not 0.1 <= timeout <= MAX_TIMEOUT:
        raise ValueError("timeout: %s is not between 0.1 and %d seconds" % (timeout, MAX_TIMEOUT))
    for path in params["paths"]:
        if not path.startswith("/"):
            raise ValueError("paths: %r is not an absolute path" % path)
    for name in ("names", "units"):
        for value in params[name]:
            if not value or value.startswith("-") or any(c.isspace() for c in value):
                raise ValueError("%s: %r is not a name" % (name, value))
    if params["image"].startswith("-") or any(c.isspace() for c in params["image"]):
        raise ValueError("image: %r is not an image name" % params["image"])
    return Options(
        subset=wanted_sections(params["gather_subset"]), paths=tuple(params["paths"]), image=params["image"],
        names=tuple(params["names"]), units=tuple(params["units"]), probe_container=params["probe_container"],
    )
