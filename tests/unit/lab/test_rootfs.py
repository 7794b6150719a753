# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import rootfs

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def row(*fields: str) -> str:
    return "\t".join(fields)


OWN = "\n".join(
    [
        row(
            "http://m.test/debian/", "bookworm", "oldstable", "bookworm", "main", "Debian", KEYRING
        ),
        row(
            "http://m.test/debian/",
            "bookworm-updates",
            "oldstable-updates",
            "bookworm-updates",
            "main",
            "Debian",
            KEYRING,
        ),
        row(
            "http://m.test/debian-security/",
            "bookworm-security",
            "oldstable-security",
            "bookworm-security",
            "main",
            "Debian",
            "",
        ),
        row("https://other.test/", "nodistro", "", "nodistro", "main", "Other", ""),
        "broken line",
    ]
)


def test_sources_are_the_machine_s_own_debian_archives() -> None:
    assert rootfs.apt_sources(OWN, "bookworm") == [
        f"deb [signed-by={KEYRING}] http://m.test/debian/ bookworm main",
        f"deb [signed-by={KEYRING}] http://m.test/debian/ bookworm-updates main",
        "deb http://m.test/debian-security/ bookworm-security main",
    ]


def test_another_release_is_asked_of_the_same_mirror() -> None:
    lines = rootfs.apt_sources(OWN, "trixie")
    assert [line.split()[-2] for line in lines] == ["trixie", "trixie-updates", "trixie-security"]


def test_a_release_named_by_its_suite_is_read_too() -> None:
    text = row("http://m.test/debian/", "bookworm", "stable", "stable", "main", "Debian", "")
    assert rootfs.apt_sources(text, "bookworm") == ["deb http://m.test/debian/ bookworm main"]


def test_a_machine_without_debian_names_no_source() -> None:
    text = row("http://m.test/ubuntu/", "noble", "noble", "noble", "main", "Ubuntu", "")
    assert rootfs.apt_sources(text, "bookworm") == []


def test_only_proxies_and_date_checks_are_passed_on() -> None:
    dump = (
        'APT::Architecture "amd64";\nAcquire::http::Proxy "http://p.test:3128";\n'
        'Acquire::https::Proxy "";\nAcquire::Check-Valid-Until "false";\n'
    )
    assert rootfs.passed_on_options(dump) == [
        'Acquire::http::Proxy "http://p.test:3128";',
        'Acquire::Check-Valid-Until "false";',
    ]


def test_the_key_follows_content_not_order() -> None:
    assert rootfs.key("bookworm", ["a", "b"]) == rootfs.key("bookworm", ["b", "a"])
    assert rootfs.key("bookworm", ["a"]) != rootfs.key("trixie", ["a"])


def test_a_tree_is_built_once(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "etc").mkdir()

    first = rootfs.ensure_tree(tmp_path, "node-x", build)
    assert rootfs.ensure_tree(tmp_path, "node-x", build) == first
    assert len(built) == 1
    assert (first / "etc").is_dir()


def test_a_half_built_tree_is_no_tree(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "etc").mkdir()
        raise RuntimeError("no more disk")

    with pytest.raises(RuntimeError):
        rootfs.ensure_tree(tmp_path, "node-x", fail)
    assert list((tmp_path / "trees").iterdir()) == []
