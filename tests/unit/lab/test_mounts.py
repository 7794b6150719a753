# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

from tests.lab import mounts


def test_mount_points_are_read_with_their_escapes() -> None:
    text = (
        "22 1 8:1 / / rw - ext4 /dev/a rw\n"
        "30 22 0:5 / /run/a\\040b rw,nosuid shared:1 - tmpfs tmpfs rw\n"
        "short\n"
    )
    assert mounts.parse_mountinfo(text) == ["/", "/run/a b"]


def test_nothing_is_mounted_below_a_new_folder(tmp_path: Path) -> None:
    assert mounts.below(tmp_path) == []
    mounts.unmount_below(tmp_path)
