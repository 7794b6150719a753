# SPDX-License-Identifier: GPL-3.0-or-later
"""An undo gives files the content that they had, whatever that was."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.remedies import journal
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.table import REMEDIES
from ansible_collections.inferops.vllm.plugins.modules.remediation_state import keep, put_back

NOW = 1.8e9


def begun(*files: pathlib.Path) -> dict[str, object]:
    details = {"files": [dict(keep(str(path))._asdict()) for path in files]}
    return journal.begin(journal.empty("m"), "memlock", [], "r", NOW, details)


@pytest.mark.parametrize("content", [b"", b"mlx5_core\n", b"# by hand\r\nmlx5_core", "ümläut\n".encode(), b"\xff\xfe\x00 no text\n"])
def test_what_was_there_stands_there_again(tmp_path: pathlib.Path, content: bytes) -> None:
    there, missing = tmp_path / "there.conf", tmp_path / "sub" / "missing.conf"
    there.write_bytes(content)
    there.chmod(0o600)
    # Through the text of the state file, as a later run reads it.
    state = journal.parse(journal.render(begun(there, missing)), "m", NOW)
    there.write_bytes(b"by the remedy\n")
    there.chmod(0o644)
    missing.parent.mkdir()
    missing.write_text("by the remedy")
    differing = [kept for kept in journal.kept(state) if keep(kept.path) != kept]
    assert [kept.path for kept in differing] == [str(there), str(missing)]
    for kept in differing:
        put_back(kept)
    assert there.read_bytes() == content and there.stat().st_mode & 0o777 == 0o600 and not missing.exists()
    assert not [kept for kept in journal.kept(state) if keep(kept.path) != kept], "a second time there is nothing to do"


def test_a_file_that_was_taken_away_by_hand_comes_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "sub" / "a.conf"
    path.parent.mkdir()
    path.write_text("x\n")
    state = begun(path)
    path.unlink()
    path.parent.rmdir()
    put_back(journal.kept(state)[0])
    assert path.read_text() == "x\n"


def test_a_file_that_could_not_be_restored_is_not_touched_at_all(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "large"
    path.write_text("x" * (journal.LARGEST_KEPT + 1))
    with pytest.raises(journal.JournalError, match="could not be restored"):
        keep(str(path))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["files", "path", "text", "mode", "x"]), inner), max_leaves=20))
def test_whatever_an_older_state_file_holds_is_read(details: object) -> None:
    assert all(one.path.startswith("/") for one in journal.kept({"current": {"details": details}}))
    assert journal.kept({"current": None}) == []


def test_what_is_kept_is_given_back() -> None:
    for remedy in REMEDIES.values():
        assert all(path.startswith("/etc/") for path in remedy.files)
        assert not remedy.files or remedy.undo[0], remedy.id
