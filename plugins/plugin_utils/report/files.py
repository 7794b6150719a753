# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write all forms of a report into a folder."""

from __future__ import annotations

import json
import os
import secrets
from typing import Any, Dict, Mapping

from .junit_xml import junit
from .page import html
from .ticket import markdown

INDENT_BELOW = 5000
"""Findings up to which the JSON file is indented for the eye; 70,000 findings would grow by a third."""


def write(document: Mapping[str, Any], folder: str) -> Dict[str, str]:
    """Write ``preflight.json``, ``.html``, ``.md`` and ``.junit.xml`` and return ``{"json": path, "html": …, "md": …, "junit": …}``.

    The folder is made when it is absent. Each file is complete or absent: it is written under
    another name in the same folder and then renamed.

    Raises:
        OSError: the folder or a file could not be written; files of an earlier report stay as they were.
    """
    os.makedirs(folder, exist_ok=True)
    indent = 1 if len(document["findings"]) <= INDENT_BELOW else None
    contents = {
        "json": ("preflight.json", json.dumps(document, indent=indent, separators=(",", ": " if indent else ":")) + "\n"),
        "html": ("preflight.html", html(document)),
        "md": ("preflight.md", markdown(document)),
        "junit": ("preflight.junit.xml", junit(document)),
    }
    paths: Dict[str, str] = {}
    for key, (name, text) in contents.items():
        paths[key] = os.path.join(folder, name)
        replace(paths[key], text)
    return paths


def replace(path: str, text: str) -> None:
    """Write `text` to `path`, complete or not at all."""
    temporary = "%s.%s.tmp" % (path, secrets.token_hex(6))
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
