#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dress the nodes of the scenario and give them the drivers that are to be mended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.lab import apt_repo, costume
from tests.lab.settings import Settings

INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 install "
NAMES = ("nvidia-open", "nvidia-dkms-open", "nvidia-kernel-common", "libnvidia-compute", "nvidia-utils", "nvidia-modprobe", "nvidia-persistenced")


def container(settings: Settings, name: str) -> None:
    """An old driver with the pin of its branch and a Fabric Manager that runs."""
    costume.dress(settings, name, "b300", ["driver_r575"])
    costume.use_repository(settings, name)

    def run(command: str) -> str:
        return costume.run(settings, costume.find(settings, name), command, timeout=900)

    # DKMS of the costume builds nothing, but looks for headers.
    run("mkdir -p /lib/modules/$(uname -r)/build && touch /lib/modules/$(uname -r)/build/Makefile")
    run(INSTALL + "nvidia-driver-pinning-575")
    run(INSTALL + "nvidia-open nvidia-fabricmanager-575")
    run("systemctl enable --now nvidia-fabricmanager")


def machine(settings: Settings, name: str) -> None:
    """A driver without the headers of the kernel: DKMS fails, and dpkg is left half configured."""
    costume.dress(settings, name, "b300")
    costume.use_repository(settings, name)
    words = " ".join(f"{package}=580.95.05-1" for package in NAMES)
    costume.run(settings, costume.find(settings, name), f"{INSTALL} {words} || true", timeout=900)


def main() -> None:
    settings = Settings.from_environment()
    apt_repo.serve(settings)
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(container, settings, "node1"), pool.submit(container, settings, "node2"), pool.submit(machine, settings, "vm1")]:
            done.result()


if __name__ == "__main__":
    main()
