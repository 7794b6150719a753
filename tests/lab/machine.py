# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether this machine can hold a lab, and the packages it needs for that."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from .errors import CannotRunHere, LabError

HERE = Path(__file__).resolve().parent

# Program → Debian package.
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "docker-registry": "docker-registry",
    "htpasswd": "apache2-utils",
    "openssl": "openssl",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "strip": "binutils",
    "mount": "mount",
}
# Administrators' folders, which a user's PATH may lack.
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


def complete_path() -> None:
    """Put the administrators' folders on PATH."""
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"


def package_names(texts: Iterable[str]) -> list[str]:
    """Package names in list files: one a line, # begins a comment."""
    found: list[str] = []
    for text in texts:
        for line in text.splitlines():
            name = line.split("#")[0].strip()
            if name and name not in found:
                found.append(name)
    return found


def system_packages() -> list[str]:
    """What the lists beside this file name."""
    return package_names(
        path.read_text(encoding="utf-8") for path in sorted(HERE.glob("system-packages*.txt"))
    )


def obstacle(
    system: str | None = None,
    user: int | None = None,
    find: Callable[[str], str | None] = shutil.which,
) -> str | None:
    """One sentence that says why this machine holds no lab, or None when it does."""
    system = platform.system() if system is None else system
    user = os.geteuid() if user is None else user
    if system != "Linux":
        return (
            f"The lab needs Linux, and this is {system}: unit and preflight tests run without it."
        )
    if user != 0:
        return (
            "The lab needs root, since it mounts file systems and makes a network bridge: "
            "run it with sudo; unit and preflight tests run without it."
        )
    missing = sorted({package for name, package in PROGRAMS.items() if not find(name)})
    if missing:
        return (
            f"The lab needs these packages: {', '.join(missing)}; "
            "`python -m tests.lab packages --install` installs them."
        )
    return None


def require() -> None:
    """Raise CannotRunHere when this machine holds no lab."""
    complete_path()
    if reason := obstacle():
        raise CannotRunHere(reason)


def install_packages() -> list[str]:
    """Install the listed packages that are missing; returns their names. Debian, Ubuntu; root."""
    if not shutil.which("apt-get"):
        raise CannotRunHere("The lab's packages can be installed on Debian and Ubuntu only.")
    if os.geteuid() != 0:
        raise CannotRunHere("Installing packages needs root: run it with sudo.")
    missing = [name for name in system_packages() if not _installed(name)]
    if not missing:
        return []
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300"]
    for command in (
        [*apt, "update"],
        [*apt, "install", "--yes", "--no-install-recommends", *missing],
    ):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"`{' '.join(command[:6])} …` failed: {done.stderr.strip()[-400:]}")
    return missing


def _installed(package: str) -> bool:
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout == "installed"
