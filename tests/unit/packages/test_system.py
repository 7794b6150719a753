# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the running machine."""

from __future__ import annotations

import os
from pathlib import Path

from ansible_collections.inferops.vllm.plugins.module_utils.packages.system import writer


def test_a_file_is_written_in_one_step_and_removed(tmp_path: Path) -> None:
    moved: list[str] = []

    def move(temporary: str, path: str) -> None:
        moved.append(path)
        os.replace(temporary, path)

    write, path = writer(move), tmp_path / "new" / "a.conf"
    write(str(path), "one\n")
    write(str(path), "two\n")
    assert path.read_text() == "two\n" and moved == [str(path)] * 2 and os.listdir(path.parent) == ["a.conf"]
    write(str(path), None)
    write(str(path), None)
    assert os.listdir(path.parent) == []
