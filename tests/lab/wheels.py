# SPDX-License-Identifier: GPL-3.0-or-later
"""Python packages for the nodes, which reach no index themselves: fetched once into the cache, unpacked there by pip."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .errors import CannotRunHere
from .settings import Settings

ROUTER = ("vllm-router==0.1.17", "pip==25.3")
"""The router, all that it needs, and pip for a virtual environment without one."""
NIXL = ("nixl==1.5.1", "nixl-cu12==1.5.1")
"""NIXL alone: what it asks for is in the image. It moves memory of CPUs by UCX too."""


def fetch(settings: Settings, requirements: tuple[str, ...], alone: bool = False) -> Path:
    """Folder with the wheels of `requirements` for the nodes' Python 3.11; `alone`: without what they require.

    Raises:
        CannotRunHere: they are not in the cache, and pip cannot fetch them.
    """
    folder = settings.cache / "trees" / ("wheels-" + hashlib.sha256(repr((requirements, alone)).encode()).hexdigest()[:16])
    if folder.is_dir():
        return folder
    draft = folder.with_name(folder.name + ".draft-%d" % os.getpid())
    argv = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--python-version=3.11", "--dest", str(draft)]
    argv += ["--platform=" + name for name in ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")] + ["--no-deps"] * alone + list(requirements)
    said = ""
    for python in (sys.executable, "python3", "/usr/bin/python3"):
        try:
            done = subprocess.run([python, *argv], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        if done.returncode == 0:
            draft.rename(folder)
            return folder
        said = done.stderr.strip()[-300:]
        shutil.rmtree(draft, ignore_errors=True)
    raise CannotRunHere(f"pip cannot fetch {' '.join(requirements)}: {said}")


def packed(folder: Path) -> bytes:
    """The wheels as a tar archive."""
    return subprocess.run(["tar", "--create", "--directory", str(folder), "."], capture_output=True, check=True).stdout
