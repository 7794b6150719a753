# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of packages, what is asked, and what a transaction would do. No input or output here."""

from __future__ import annotations

import re
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

from ..node.text import version as numbers


class Ran(NamedTuple):
    """What a command gave back. `rc` is 124 when it ran out of time."""

    rc: int
    out: str
    err: str = ""

    @property
    def text(self) -> str:
        """Both outputs, for messages."""
        return (self.out + "\n" + self.err).strip()


Run = Callable[[Sequence[str], int], Ran]
"""Runs a command with a limit in seconds."""


class Refused(Exception):
    """The request cannot or must not be carried out; nothing was changed. `args[0]` is one sentence, `names` what it is about."""

    def __init__(self, why: str, kind: str = "", names: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.kind, self.names = kind, list(names)


class Installed(NamedTuple):
    """An installed package. `state` is ``ok`` or a word such as ``half-configured``."""

    version: str
    state: str = "ok"


class Pin(NamedTuple):
    """A rule that keeps packages at a version: glob patterns of names, a glob of versions, and the file that says so."""

    patterns: Tuple[str, ...]
    version: str
    where: str


class Transaction(NamedTuple):
    """What the package manager would do.

    Attributes:
        install, remove: name → version.
        change: name → (version now, version then), up or down.
        configure: names that only are configured.
        download, disk: bytes to fetch and bytes that the disk holds more; None when not told.
        error: why it cannot be done, empty when it can.
        held: names that it changes although they are held.
    """

    install: Dict[str, str]
    change: Dict[str, Tuple[str, str]]
    remove: Dict[str, str]
    configure: Tuple[str, ...] = ()
    download: int = 0
    disk: int = 0
    error: str = ""

    @property
    def touched(self) -> List[str]:
        return sorted({*self.install, *self.change, *self.remove})

    @property
    def empty(self) -> bool:
        return not (self.install or self.change or self.remove or self.configure)


def upstream(version: str) -> str:
    """Version without epoch and revision: ``3:580.95.05-1.el9`` → ``580.95.05``; SUSE adds the kernel it was built for (``_k6.4.0``)."""
    return version.split(":", 1)[-1].split("-", 1)[0].split("_k", 1)[0]


def branch_of(version: str) -> str:
    """Branch of a driver version: ``580.95.05`` → ``580``; empty when it is none."""
    found = re.match(r"(\d{3,4})\.\d", upstream(version))
    return found.group(1) if found else ""


def newest(versions: Sequence[str]) -> List[str]:
    """`versions` with the newest first, by their numbers."""
    return sorted(versions, key=lambda one: (numbers(upstream(one)), numbers(one.split(":", 1)[-1].partition("-")[2]), one), reverse=True)


_DRIVER = re.compile(
    r"^(?:lib(?:32)?nvidia-|nvidia-|xserver-xorg-video-nvidia|linux-(?:modules|objects|signatures)-nvidia-|cuda-drivers|kmod-nvidia|"
    r"dkms-nvidia|libnvsdm|libcuda1$|libnvcuvid|libxnvctrl|firmware-nvidia)")
_NO_DRIVER = re.compile(
    r"^(?:lib)?nvidia-(?:container|docker|cuda|ctk|peer-memory|peermem-loader|mlnx|nsight|gds|fs|driver-pinning|dgx|tools|cufile)")
_KERNEL = re.compile(
    r"^(?:linux-(?:image|modules(?!-nvidia)|kernel|generic|virtual|aws|azure|gcp|oracle|nvidia)(?:-|$)|linux-(?:amd64|arm64)$|"
    r"kernel(?:-(?:core|modules|modules-core|modules-extra|default|64k|rt|uek|64kb|azure|default-base)(?:-(?:core|modules|modules-core|extra))?)?$)")
# Headers and NVIDIA's prebuilt modules look like kernels and are none.
_NO_KERNEL = re.compile(
    r"^linux-(?:headers|modules-nvidia|objects-nvidia|signatures-nvidia|kbuild|libc|source|tools|doc)|-(?:devel|headers|source|tools)(?:-|$)")


def is_driver(name: str) -> bool:
    """Whether a package belongs to the driver, so that it carries the driver's version and may be replaced with it."""
    return bool(_DRIVER.match(name)) and not _NO_DRIVER.match(name)


def is_kernel(name: str) -> bool:
    """Whether a package holds a kernel or its own modules."""
    return bool(_KERNEL.match(name)) and not _NO_KERNEL.search(name)


def size(number: str, unit: str) -> int:
    """Bytes from a number and a unit as package managers print them: apt counts in thousands, dnf and zypper in 1024.

    ``B kB MB GB`` are powers of 1000, ``k M G`` and ``KiB MiB GiB`` powers of 1024. 0 for what is no number.
    """
    try:
        value = float(number.replace(",", ""))
    except ValueError:
        return 0
    word = unit.strip()
    power = " kmgt".find(word[:1].lower()) if word[:1].lower() in "kmgt" and word else 0
    return int(value * (1000 if word.endswith("B") and "i" not in word else 1024) ** power)
