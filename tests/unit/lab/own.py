# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes of their own for tests that are asked for with ``-m lab``, and Ansible over them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import apt_repo, lab, machine, processes, vm
from tests.lab.settings import REPOSITORY, Settings


def wanted(request: pytest.FixtureRequest, why: str, *lacks: Callable[[], str | None]) -> None:
    """Skip what was not asked for with ``-m lab``, saying `why` it is not run otherwise, or what one of `lacks` says that it needs."""
    if "lab" not in (request.config.getoption("-m") or ""):
        pytest.skip(f"{why}: ask for it with -m lab")
    for lack in lacks:
        if reason := lack():
            pytest.skip(reason)


def asked(request: pytest.FixtureRequest, why: str, *lacks: Callable[[], str | None]) -> Settings:
    """Settings of the lab that a test may bring up; skips it where it was not asked for, cannot run, or a lab is up already.

    Args:
        why: what the test takes, for whoever did not ask for it.
        lacks: each says why it cannot run here, beyond what every lab needs.
    """
    wanted(request, why, machine.obstacle, *lacks)
    settings = Settings.from_environment()
    if lab.recorded(settings):
        pytest.skip("a lab is up already, which this would take down")
    return settings


@contextlib.contextmanager
def nodes(settings: Settings, count: int = 1, image: bool = False) -> Iterator[None]:
    """`count` container nodes and the registry, with the image of vLLM where it is wanted; gone afterwards."""
    try:
        lab.up(settings, [settings.container_node(number + 1) for number in range(count)], [], image, print)
        yield
    finally:
        lab.down(settings, print)


@contextlib.contextmanager
def virtual_machine(settings: Settings, name: str) -> Iterator[None]:
    """A virtual machine beside any lab, which takes driver packages from the repository; gone afterwards."""
    served_before = bool(processes.members(apt_repo.PROCESS))
    vm.destroy(settings, name)
    try:
        apt_repo.serve(settings)
        vm.create(settings, name, segment="socket")
        vm.start(settings, name)
        vm.wait(settings, name)
        apt_repo.use(settings, name)
        yield
    finally:
        vm.destroy(settings, name)
        if not served_before:
            apt_repo.stop(settings)


@contextlib.contextmanager
def packages(settings: Settings) -> Iterator[None]:
    """The repository of driver packages beside the nodes; gone afterwards."""
    try:
        apt_repo.serve(settings)
        yield
    finally:
        apt_repo.stop(settings)


def ansible(
    settings: Settings, program: str, *arguments: str, inventory: str = "", cwd: Path = REPOSITORY, **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a program of Ansible over the nodes, or over another inventory, with more variables of the environment; all that it prints is in ``stdout``."""
    argv = [str(Path(sys.executable).with_name(program)), "-i", inventory or str(settings.inventory), *arguments]
    env = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), **variables}
    return subprocess.run(argv, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
