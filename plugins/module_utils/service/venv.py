# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in a virtual environment that serves: versions and commits, read from its files without starting it."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any, Dict, Optional, Tuple

_COMMIT = re.compile(r"[0-9a-f]{7,40}\Z")


def read(folder: str, program: str = "vllm") -> Optional[Dict[str, Any]]:
    """``{"path", "python", "base", "vllm", "commit", "torch", "cuda", "host"}`` of the environment in `folder`; None when it has no `program`.

    ``base`` is the folder of the Python that it was made from, ``host`` the release of the operating system. What cannot be
    read is None; a commit comes from what pip recorded of its source, else from the version.
    """
    if not os.path.isfile(os.path.join(folder, "bin", program)):
        return None
    sites = sorted(glob.glob(os.path.join(folder, "lib*", "python3*", "site-packages")))
    site = next((path for path in sites if os.path.isdir(path)), "")
    config = dict(_pair(line, "=") for line in _text(os.path.join(folder, "pyvenv.cfg")).splitlines() if "=" in line)
    version, source = _distribution(site, "vllm")
    built = _text(os.path.join(site, "vllm", "_version.py")) if site else ""
    torch = _text(os.path.join(site, "torch", "version.py")) if site else ""
    return {
        "path": folder, "python": config.get("version") or config.get("version_info") or None, "base": config.get("home") or None, "vllm": version,
        "commit": commit(version or "", source, built), "torch": assigned(torch, "__version__"), "cuda": assigned(torch, "cuda"),
        "host": _pair(next((line for line in _text("/etc/os-release").splitlines() if line.startswith("PRETTY_NAME=")), "="), "=")[1].strip('"') or None,
    }


def assigned(text: str, name: str) -> Optional[str]:
    """Text that a Python file assigns to `name`, with or without a type; None for None or nothing."""
    found = re.search(r"^%s\s*(?::[^=\n]+)?=\s*(?:[A-Za-z_]\w*\s*=\s*)*['\"]([^'\"\n]{1,100})['\"]" % re.escape(name), text, re.M)
    return found.group(1) if found else None


def commit(version: str, source: str, built: str) -> Optional[str]:
    """Commit of a build, from its direct_url.json (`source`), its _version.py (`built`), or its version (``0.32.1+g0123abcd``)."""
    try:
        told = json.loads(source or "{}")
        told = told.get("vcs_info", {}).get("commit_id") if isinstance(told, dict) and isinstance(told.get("vcs_info"), dict) else None
    except (ValueError, RecursionError):
        told = None
    if isinstance(told, str) and _COMMIT.match(told):
        return told
    for name in ("__commit_id__", "commit_id"):
        stated = (assigned(built, name) or "").lstrip("g")
        if _COMMIT.match(stated):
            return stated
    for part in re.split(r"[+.]", version.partition("+")[2]):
        if part.startswith("g") and _COMMIT.match(part[1:]):
            return part[1:]
    return None


def _distribution(site: str, name: str) -> Tuple[Optional[str], str]:
    for folder in sorted(glob.glob(os.path.join(site, name + "*.dist-info"))) if site else []:
        found = re.search(r"^Version:\s*(\S{1,80})", _text(os.path.join(folder, "METADATA")), re.M)
        if found:
            return found.group(1), _text(os.path.join(folder, "direct_url.json"))
    return None, ""


def _pair(line: str, sign: str) -> Tuple[str, str]:
    name, _sign, value = line.partition(sign)
    return name.strip(), value.strip()


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
