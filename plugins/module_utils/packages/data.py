# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of the driver's packages by distribution. Which of them are there is asked of the package manager, never assumed."""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Tuple

BRANCH_MIN = 580
"""Lowest branch whose CUDA (13.0) the images need: https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/ (2025-08)."""

GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html (2026-11)"
DRIVER_CONTAINER = "https://github.com/NVIDIA/gpu-driver-container/blob/06a208c/ubuntu24.04/install.sh (2026-10)"
UBUNTU = "https://github.com/NVIDIA/gpu-driver-container/tree/06a208c/ubuntu24.04/precompiled (2026-10)"
SUSE = "https://software.opensuse.org/package/nvidia-open-driver-G06-signed-cuda (2026-11)"

BUILD_BYTES = 1536 << 20
"""Room for DKMS to build one driver. Ours: a built tree of r580 with its installed modules stays below 1.2 GB."""
INITRD_BYTES = 192 << 20
"""Room in /boot for one more initramfs while it is rewritten. Ours."""


class Family(NamedTuple):
    """A distribution release.

    Attributes:
        ids: values of ID in os-release.
        versions: beginnings of VERSION_ID.
        manager: ``apt``, ``dnf`` or ``zypper``.
        headers: package of the running kernel's headers; ``{kernel}`` is ``uname -r``.
        initramfs: command that writes the initramfs anew.
        proven: how it is tested.
    """

    name: str
    ids: Tuple[str, ...]
    versions: Tuple[str, ...]
    manager: str
    headers: str
    initramfs: Tuple[str, ...]
    proven: str


_RHEL = ("rhel", "rocky", "almalinux", "ol", "centos")
_DRACUT = ("dracut", "--force")
_DEBIAN = ("update-initramfs", "-u")

FAMILIES: Dict[str, Family] = {
    row.name: row for row in (
        Family("debian12", ("debian",), ("12",), "apt", "linux-headers-{kernel}", _DEBIAN, "run on lab nodes"),
        Family("debian13", ("debian",), ("13",), "apt", "linux-headers-{kernel}", _DEBIAN, "not run"),
        Family("ubuntu22.04", ("ubuntu",), ("22.04",), "apt", "linux-headers-{kernel}", _DEBIAN, "not run"),
        Family("ubuntu24.04", ("ubuntu",), ("24.04",), "apt", "linux-headers-{kernel}", _DEBIAN, "not run"),
        Family("rhel9", _RHEL, ("9",), "dnf", "kernel-devel", _DRACUT, "not run"),
        Family("rhel10", _RHEL, ("10",), "dnf", "kernel-devel", _DRACUT, "not run"),
        Family("sles15", ("sles", "sles_sap"), ("15",), "zypper", "kernel-default-devel", _DRACUT, "not run"),
    )
}


class Scheme(NamedTuple):
    """One way in which a source names the packages of a branch.

    ``{branch}`` and ``{kernel}`` are filled in. A name that starts with ``~`` carries a version of its own, not the driver's.

    Attributes:
        families: releases that have it.
        branches: branches that have it, empty for all.
        drivers: flavour (``open``, ``proprietary``) → packages that together are the driver.
        components: component → names of which the first that fits is taken.
        stream: module stream by flavour, for dnf of release 9.
        builds: the modules are built on the node, so headers are needed.
    """

    name: str
    families: Tuple[str, ...]
    branches: Tuple[str, ...]
    drivers: Mapping[str, Tuple[str, ...]]
    components: Mapping[str, Tuple[str, ...]]
    stream: Mapping[str, str]
    builds: bool
    source: str


_APT = ("debian12", "debian13", "ubuntu22.04", "ubuntu24.04")
_COMPONENTS: Mapping[str, Tuple[str, ...]] = {
    # From branch 580 NVIDIA's own repository leaves the branch out of the name, distributions keep it.
    "fabricmanager": ("nvidia-fabricmanager", "nvidia-fabricmanager-{branch}"),
    "imex": ("nvidia-imex", "nvidia-imex-{branch}"),
    "nscq": ("libnvidia-nscq", "libnvidia-nscq-{branch}"),
    "nvsdm": ("libnvsdm", "libnvsdm-{branch}"),
    "nvlsm": ("~nvlsm",),
}
COMPONENTS: Tuple[str, ...] = tuple(_COMPONENTS)
TITLES: Mapping[str, str] = {
    "fabricmanager": "Fabric Manager", "imex": "IMEX", "nscq": "NSCQ library", "nvsdm": "NVSDM library", "nvlsm": "NVLink subnet manager",
}

SCHEMES: Tuple[Scheme, ...] = (
    Scheme("nvidia-apt", _APT, (), {"open": ("nvidia-open",), "proprietary": ("cuda-drivers",)}, _COMPONENTS, {}, True,
           GUIDE + "; " + DRIVER_CONTAINER),
    Scheme("ubuntu", ("ubuntu22.04", "ubuntu24.04"), (), {
        "open": ("nvidia-headless-no-dkms-{branch}-server-open", "nvidia-utils-{branch}-server",
                 "~linux-modules-nvidia-{branch}-server-open-{kernel}"),
        "proprietary": ("nvidia-headless-no-dkms-{branch}-server", "nvidia-utils-{branch}-server",
                        "~linux-modules-nvidia-{branch}-server-{kernel}"),
    }, {**_COMPONENTS, "fabricmanager": ("nvidia-fabricmanager-{branch}",), "imex": ("nvidia-imex-{branch}",)}, {}, False, UBUNTU),
    Scheme("nvidia-dnf9", ("rhel9",), (), {"open": ("nvidia-open",), "proprietary": ("cuda-drivers",)},
           {**_COMPONENTS, "fabricmanager": ("nvidia-fabricmanager", "nvidia-fabric-manager"), "imex": ("nvidia-imex",),
            "nscq": ("libnvidia-nscq",), "nvsdm": ("libnvsdm",)},
           {"open": "nvidia-driver:{branch}-open", "proprietary": "nvidia-driver:{branch}-dkms"}, True, GUIDE),
    Scheme("nvidia-dnf10", ("rhel10",), (), {"open": ("nvidia-open",), "proprietary": ("cuda-drivers",)},
           {**_COMPONENTS, "fabricmanager": ("nvidia-fabricmanager", "nvidia-fabric-manager"), "imex": ("nvidia-imex",),
            "nscq": ("libnvidia-nscq",), "nvsdm": ("libnvsdm",)}, {}, True, GUIDE),
    Scheme("nvidia-zypper", ("sles15",), (), {"open": ("nvidia-open",), "proprietary": ("cuda-drivers",)},
           {**_COMPONENTS, "fabricmanager": ("nvidia-fabricmanager", "nvidia-fabric-manager"), "imex": ("nvidia-imex",),
            "nscq": ("libnvidia-nscq",), "nvsdm": ("libnvsdm",)}, {}, True, GUIDE),
    Scheme("suse-g06", ("sles15",), ("580",), {"open": ("nvidia-open-driver-G06-signed-cuda-kmp-default", "nvidia-compute-utils-G06")},
           {**_COMPONENTS, "fabricmanager": ("nvidia-fabricmanager",), "imex": ("nvidia-imex",)}, {}, False, SUSE),
    Scheme("suse-g07", ("sles15",), ("595",), {"open": ("nvidia-open-driver-G07-signed-cuda-kmp-default", "nvidia-compute-utils-G07")},
           {**_COMPONENTS, "fabricmanager": ("nvidia-fabricmanager",), "imex": ("nvidia-imex",)}, {}, False, SUSE),
)


def family(os_id: str, version_id: str) -> str:
    """Key of FAMILIES for ID and VERSION_ID of os-release, empty when there is none."""
    for row in FAMILIES.values():
        if os_id in row.ids and any(version_id == one or version_id.startswith(one + ".") for one in row.versions):
            return row.name
    return ""
