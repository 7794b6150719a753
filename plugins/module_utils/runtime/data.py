# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of the container engines and of NVIDIA's toolkit, by distribution. Repositories are the user's to configure."""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Tuple

DEBIAN = "https://packages.debian.org/search?keywords=docker.io (2026-11)"
UBUNTU = "https://packages.ubuntu.com/search?keywords=docker.io (2026-11)"
DOCKER = "https://docs.docker.com/engine/install/ (2026-11)"
SUSE = "https://documentation.suse.com/sles/15-SP7/html/SLES-all/cha-containers-engines.html (2026-11)"
TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html (2026-11)"

TOOLKIT_PACKAGES: Tuple[str, ...] = (
    "nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")
"""All of one version; the first pulls the others in. Source: TOOLKIT."""

CDI_FEATURE: Tuple[int, ...] = (25,)
"""Docker from this version on knows CDI, by `features.cdi` (https://docs.docker.com/reference/cli/dockerd/#configure-cdi-devices)."""
QUADLET: Tuple[int, ...] = (4, 4)
"""Podman from this version on has Quadlet (https://docs.podman.io/en/latest/markdown/podman-systemd.unit.5.html)."""

RELOADED = ("runtimes", "live-restore", "features", "default-runtime")
"""Keys of ours that the daemon takes over on SIGHUP (https://docs.docker.com/reference/cli/dockerd/#configuration-reload-behavior)."""


class Packages(NamedTuple):
    """What a distribution release calls the engines.

    Attributes:
        docker: ways to have Docker, the preferred one first; each is a set of packages.
        podman: packages of Podman.
        proven: how it is tested.
    """

    docker: Tuple[Tuple[str, ...], ...]
    podman: Tuple[str, ...]
    source: str
    proven: str


_CE = ("docker-ce", "docker-ce-cli", "containerd.io")

# Keys are those of packages.data.FAMILIES.
PACKAGES: Dict[str, Packages] = {
    "debian12": Packages((("docker.io",), _CE), ("podman", "crun"), DEBIAN, "run on lab nodes"),
    # From Debian 13 on the client is a package of its own.
    "debian13": Packages((("docker.io", "docker-cli"), _CE), ("podman", "crun"), DEBIAN, "not run"),
    "ubuntu22.04": Packages((("docker.io",), _CE), ("podman",), UBUNTU, "not run"),
    "ubuntu24.04": Packages((("docker.io",), _CE), ("podman", "crun"), UBUNTU, "not run"),
    "rhel9": Packages((_CE,), ("podman",), DOCKER, "not run"),
    "rhel10": Packages((_CE,), ("podman",), DOCKER, "not run"),
    "sles15": Packages((("docker",), _CE), ("podman",), SUSE, "not run"),
}

VERSIONED: Mapping[str, str] = {"apt": "%s=%s-1", "dnf": "%s-%s-1", "zypper": "%s=%s-1"}
"""How a package manager is asked for one version of the toolkit."""
