# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write all forms of the report, and the requests for replay, into a folder."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping, Sequence

from ..report.files import replace
from .junit_xml import junit
from .page import html
from .textfile import textfile


def write(document: Mapping[str, Any], folder: str, requests: Sequence[Mapping[str, Any]], model: str) -> Dict[str, str]:
    """Write ``verify.json``, ``.html``, ``.junit.xml``, ``.prom`` and ``requests/ID.json``; ``{"json": path, …}``.

    Each request is one body for ``curl -d @requests/text.json URL/v1/chat/completions``.

    Raises:
        OSError: the folder or a file could not be written.
    """
    os.makedirs(os.path.join(folder, "requests"), exist_ok=True)
    contents = {
        "json": ("verify.json", json.dumps(document, indent=1) + "\n"),
        "html": ("verify.html", html(document)),
        "junit": ("verify.junit.xml", junit(document)),
        "textfile": ("verify.prom", textfile(document)),
    }
    paths: Dict[str, str] = {}
    for key, (name, text) in contents.items():
        paths[key] = os.path.join(folder, name)
        replace(paths[key], text)
    for case in requests:
        replace(os.path.join(folder, "requests", "%s.json" % case["id"]), json.dumps(dict(case["body"], model=model), indent=1) + "\n")
    return paths
