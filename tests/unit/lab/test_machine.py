# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from tests.lab import __main__ as cli
from tests.lab import machine


def test_a_complete_machine_has_no_obstacle() -> None:
    assert machine.obstacle("Linux", 0, lambda name: f"/usr/bin/{name}") is None


@pytest.mark.parametrize(
    ("system", "user", "words"),
    [("Darwin", 0, "needs Linux"), ("Linux", 1000, "needs root")],
)
def test_the_obstacle_is_one_sentence(system: str, user: int, words: str) -> None:
    reason = machine.obstacle(system, user, lambda name: name)
    assert reason is not None
    assert words in reason
    assert "\n" not in reason


def test_missing_programs_are_named_by_package() -> None:
    reason = machine.obstacle("Linux", 0, lambda name: None if name == "systemd-nspawn" else name)
    assert reason is not None
    assert "systemd-container" in reason
    assert "mmdebstrap" not in reason


def test_every_program_has_its_package_in_the_list() -> None:
    listed = machine.system_packages()
    assert set(machine.PROGRAMS.values()) - {"mount"} <= set(listed)


def test_package_lists_drop_comments_and_doubles() -> None:
    assert machine.package_names(["# x\na\nb # why\n\n", "b\nc\n"]) == ["a", "b", "c"]


@pytest.mark.parametrize("verb", ["up", "down"])
def test_without_root_the_exit_code_is_two(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert cli.main([verb]) == 2
    assert capsys.readouterr().err.count("\n") == 1
