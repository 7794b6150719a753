# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments of the module ``inferops.vllm.evidence``, and what they ask for."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Mapping

from ..node import arguments
from . import places
from .freeze import Wanted

NODE = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,120}\Z")
_BOUNDS = (("log_seconds", 1, 3600), ("log_mib", 1, 4096), ("total_mib", 1, 200), ("journal_lines", 0, 10000000))


def spec() -> Dict[str, Dict[str, Any]]:
    """Argument spec of the module."""
    return dict(
        arguments.spec(),
        dest={"type": "path", "required": True},
        node={"type": "str"},
        format={"type": "str", "choices": ["tar.gz", "tar.zst"], "default": "tar.gz"},
        parts={"type": "list", "elements": "str", "choices": list(places.PARTS + places.OPTIONAL_PARTS), "default": list(places.PARTS)},
        log_seconds={"type": "float", "default": 20.0},
        log_mib={"type": "int", "default": 128},
        total_mib={"type": "int", "default": 128},
        journal_lines={"type": "int", "default": 50000},
        log_paths={"type": "list", "elements": "str", "default": []},
        namespace={"type": "str", "default": ""},
        selector={"type": "str", "default": ""},
        root={"type": "path"},
    )


def wanted(params: Mapping[str, Any]) -> Wanted:
    """What `params`, which have passed :func:`spec`, ask for.

    Raises:
        ValueError: a value that cannot be used; the message names the parameter and what it allows.
    """
    node = params["node"] or os.uname().nodename
    if not NODE.match(node):
        raise ValueError("node: %r is not a name that a file could have" % node)
    for name, least, most in _BOUNDS:
        if not least <= params[name] <= most:
            raise ValueError("%s: %s is not between %d and %d" % (name, params[name], least, most))
    for path in params["log_paths"]:
        if not path.startswith("/"):
            raise ValueError("log_paths: %r is not an absolute path" % path)
    for name in ("namespace", "selector"):
        if not re.match(r"^[A-Za-z0-9./_=,!()-]{0,250}\Z", params[name]) or params[name].startswith("-"):
            raise ValueError("%s: %r is not one" % (name, params[name]))
    return Wanted(
        node=node, options=arguments.options(params), parts=tuple(params["parts"]), timeout=params["timeout"], log_seconds=params["log_seconds"],
        log_bytes=params["log_mib"] << 20, total_bytes=params["total_mib"] << 20, journal_lines=params["journal_lines"],
        log_paths=tuple(params["log_paths"]), namespace=params["namespace"], selector=params["selector"])


def result(account: Mapping[str, Any]) -> Dict[str, Any]:
    """What a caller is told of a frozen node; the whole account stands in the archive. A plain snapshot has none."""
    redactions = account.get("redactions") or {}
    return {
        "node": account.get("node"), "seconds": account.get("seconds", 0.0), "cut": account.get("cut", []),
        "logs": [
            {key: record.get(key) for key in ("file", "kind", "origin", "lines", "cut_lines", "error")}
            for record in account.get("logs", []) if record.get("lines")],
        "services": account.get("services", []), "missing": account.get("not_collected", {}), "stages": account.get("stages", {}),
        "redactions": {"count": redactions.get("count", 0), "kinds": redactions.get("kinds", {})},
    }
