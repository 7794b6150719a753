# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.settings import Settings


def test_folders_come_from_the_environment() -> None:
    settings = Settings.from_environment(
        {"HOME": "/home/a", "INFEROPS_LAB_CACHE": "/big/lab", "INFEROPS_LAB_STATE": "/run/other"}
    )
    assert settings.cache == Path("/big/lab")
    assert settings.scratch == Path("/big/lab/scratch")
    assert settings.ssh_key == Path("/run/other/ssh/id_ed25519")


def test_defaults_are_below_home_and_run() -> None:
    settings = Settings.from_environment({"HOME": "/home/a"})
    assert settings.cache == Path("/home/a/.cache/inferops-lab")
    assert settings.state == Path("/run/inferops-lab")
    assert settings.registry == "10.203.77.1:5443"


def test_addresses_of_nodes_stay_inside_the_range() -> None:
    settings = Settings.from_environment({})
    assert settings.container_node(1).address == "10.203.77.11"
    assert settings.container_node(2).name == "node2"
    with pytest.raises(ValueError, match="1 to 9"):
        settings.container_node(10)
