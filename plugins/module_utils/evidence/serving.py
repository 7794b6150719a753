# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a still running server says of itself. Reads only; no request for the model is made."""

from __future__ import annotations

import http.client
import time
from typing import Any, Dict, Sequence

PATHS = ("/health", "/version", "/metrics")
"""Each leaves a line in the access log of the server, so there are few. None needs the API key."""
LIMIT = 8 * 1024 * 1024


def ask(address: str, port: int, timeout: float = 3.0, paths: Sequence[str] = PATHS) -> Dict[str, Dict[str, Any]]:
    """``{path: {"status", "text", "seconds"} or {"error"}}`` of each path; ends within about `timeout` seconds a path that answers.

    A server that does not take the connection is not asked for the other paths.
    """
    found: Dict[str, Dict[str, Any]] = {}
    for path in paths:
        started = time.monotonic()
        connection = http.client.HTTPConnection(address, port, timeout=timeout)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            text = answer.read(LIMIT).decode("utf-8", "replace")
            found[path] = {"status": answer.status, "text": text, "seconds": round(time.monotonic() - started, 3)}
        except (OSError, http.client.HTTPException, ValueError) as exc:
            why = "no answer in %g s" % timeout if isinstance(exc, TimeoutError) else (str(exc) or type(exc).__name__)[:200]
            found[path] = {"error": why, "seconds": round(time.monotonic() - started, 3)}
            break
        finally:
            connection.close()
    return found
