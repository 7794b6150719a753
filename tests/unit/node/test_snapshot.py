# SPDX-License-Identifier: GPL-3.0-or-later
"""A snapshot gives back what was recorded, and one from a stranger can do no harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import collect, snapshot
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Names, Probed, Ran, Reader
from tests.costume import FAULTS, HARDWARE, Spec, dress

OPTIONS = collect.Options(image="vllm/vllm-openai:kimi-k3", names=("a", "b"))


def recorded(files: Dict[str, bytes], folder: Path) -> str:
    snapshot.write_folder(files, str(folder))
    return str(folder)


def small() -> Dict[str, bytes]:
    """A snapshot of a few answers, one of them a body."""
    reader = Reader()
    reader.memo.update({
        ("read", "/proc/version"): Content("Linux\n"), ("read", "/long"): Content("x" * 5000),
        ("read", "/no"): Content(None, "denied"),
        ("run", "tool", "-x"): Ran(0, "out", "err"), ("run", "hung"): Ran(None, "half", "", "timeout"),
        ("names", "/d"): Names(["a", "b"]), ("names", "/no"): Names([], "missing"), ("link", "/l"): Content("target"),
        ("kind", "/d"): Content("dir"), ("probe", "statvfs", "/a b"): Probed({"n": [1, None, 1.5, "é"]}),
        ("probe", "x", ""): Probed(None, "timeout"),
    })
    return snapshot.render(reader, "n1", {"image": "i"}, 0.0)


def refused(root: Any, *words: str) -> str:
    """The message with which the snapshot at `root` is refused."""
    with pytest.raises(snapshot.SnapshotError) as caught:
        snapshot.open_snapshot(str(root))
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message and len(message) < 600, message
    return message


# -- the way there and back ------------------------------------------------------------------------
COSTUMES = [(hardware, ()) for hardware in HARDWARE] + [("b300", (fault,)) for fault in FAULTS] + [
    ("gb300", (fault,)) for fault in FAULTS] + [("b300", tuple(f for f in FAULTS if f != "no_gpu"))]


@pytest.mark.parametrize("hardware,faults", COSTUMES, ids=lambda value: value if isinstance(value, str) else "-".join(value)[:30])
def test_every_costume_comes_back_the_same(hardware: str, faults: Any, tmp_path: Path) -> None:
    reader = dress(Spec("n1", hardware, 2, frozenset(faults), peers=("a", "b")))
    facts = collect.gather(reader, OPTIONS)
    files = snapshot.render(reader, "n1", OPTIONS.asdict(), 0.0)
    archive = tmp_path / "n1.tar.gz"
    snapshot.write_archive(files, str(archive), "n1")
    for root in (recorded(files, tmp_path / "n1"), str(archive)):
        again, options, head = collect.open_root(root)
        assert options == OPTIONS and head["node"] == "n1"
        assert again.memo == reader.memo
        told = collect.gather(again, options)
        assert again.memo == reader.memo, "reading the snapshot asked for something that was not recorded"
        assert told.pop("collected").pop("recorded") is True
        assert told == {key: value for key, value in facts.items() if key != "collected"}
        assert snapshot.render(again, "n1", OPTIONS.asdict(), 0.0) == files


def test_this_machine_comes_back_the_same(tmp_path: Path) -> None:
    reader = LiveReader(5)
    options = collect.Options(names=("localhost",))
    facts = collect.gather(reader, options, keep=True)
    again, options, _head = collect.open_root(recorded(snapshot.render(reader, "here", options.asdict()), tmp_path / "here"))
    told = collect.gather(again, options)
    assert {k: v for k, v in told.items() if k != "collected"} == {k: v for k, v in facts.items() if k != "collected"}
    assert told["collected"]["now"] == facts["collected"]["now"]


NONE = st.just("")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LONG = TEXTS | TEXTS.map(lambda text: text * 300)
ERRORS = st.sampled_from(["missing", "denied", "timeout", "io:EINVAL"])
CONTENTS = st.builds(Content, LONG, NONE) | ERRORS.map(lambda error: Content(None, error))
SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
MEMOS = st.fixed_dictionaries({
    "texts": st.dictionaries(st.tuples(st.sampled_from(["read", "link", "kind"]), TEXTS), CONTENTS, max_size=6),
    "run": st.dictionaries(
        st.lists(TEXTS, min_size=1, max_size=3).map(tuple),
        st.builds(Ran, st.none() | st.integers(-64, 255), LONG, LONG, NONE | ERRORS, seconds=st.sampled_from([0.0, 0.125])), max_size=4),
    "names": st.dictionaries(
        TEXTS, st.builds(Names, st.lists(TEXTS, max_size=4), NONE) | ERRORS.map(lambda error: Names([], error)), max_size=3),
    "probe": st.dictionaries(
        st.sampled_from(["statvfs", "resolve"]), st.builds(Probed, SCALARS | st.lists(SCALARS, max_size=3), NONE), max_size=2),
})


@given(parts=MEMOS)
@settings(max_examples=40, deadline=None)
def test_any_memory_comes_back(parts: Dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    reader = Reader()
    reader.memo.update(parts["texts"])
    reader.memo.update({("run", *argv): ran for argv, ran in parts["run"].items()})
    reader.memo.update({("names", path): names for path, names in parts["names"].items()})
    reader.memo.update({("probe", name, "x y"): value for name, value in parts["probe"].items()})
    root = recorded(snapshot.render(reader, "n", {}, 0.0), tmp_path_factory.mktemp("s") / "n")
    assert snapshot.open_snapshot(root)[0].memo == reader.memo


def test_labels_that_give_one_name_keep_their_texts(tmp_path: Path) -> None:
    reader = Reader()
    paths = ["/a/b", "/a_b", "a b", "/a_b-2", "/a/b-2", "/../a/b", "/a//b", "...", "/", "/é"]
    reader.memo.update({("read", path): Content(path + "x" * 3000) for path in paths})
    reader.memo[("run", "/a/b")] = Ran(0, "out" * 2000, "err" * 2000)
    files = snapshot.render(reader, "n", {}, 0.0)
    assert len(files) == len(paths) + 2 + 4
    assert snapshot.open_snapshot(recorded(files, tmp_path / "n"))[0].memo == reader.memo


def test_what_was_not_recorded_says_so_and_the_rest_stands(tmp_path: Path) -> None:
    reader, head = snapshot.open_snapshot(recorded(small(), tmp_path / "n"), 7.0)
    assert reader.recorded and reader.timeout == 7.0 and head["recorded_at"] == "1970-01-01T00:00:00Z"
    assert reader.read("/long").text == "x" * 5000
    assert reader.read("/no").error == "denied" and reader.read("/other").error == "not_recorded"
    assert reader.run(["hung"]) == Ran(None, "half", "", "timeout") and reader.run(["other"]).error == "not_recorded"
    assert reader.names("/other").error == reader.probe("other").error == "not_recorded"


def test_equal_readers_give_equal_bytes_and_a_true_manifest(tmp_path: Path) -> None:
    files = small()
    assert files == small()
    for name, path in (("a", tmp_path / "a.tar.gz"), ("b", tmp_path / "b.tar.gz")):
        snapshot.write_archive(files, str(path), "n")
        assert name in path.name
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    assert (tmp_path / "a.tar.gz").read_bytes()[4:8] == bytes(4), "gzip's header holds a time"
    lines = [line.split("  ") for line in files["MANIFEST.sha256"].decode().splitlines()]
    assert {name: digest for digest, name in lines} == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "MANIFEST.sha256"}


def test_one_answer_a_line() -> None:
    lines = small()["answers.json"].decode().splitlines()
    assert '"/proc/version": "Linux\\n"' in lines or '"/proc/version": "Linux\\n",' in lines
    assert sum('"argv"' in line for line in small()["commands.json"].decode().splitlines()) == 2


# -- writing -----------------------------------------------------------------------------------------
def test_a_snapshot_is_for_its_owner_alone(tmp_path: Path) -> None:
    recorded(small(), tmp_path / "n")
    snapshot.write_archive(small(), str(tmp_path / "n.tar.gz"), "n")
    for path in [tmp_path / "n", tmp_path / "n.tar.gz", *(tmp_path / "n").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_snapshot_replaces_a_snapshot_whole(tmp_path: Path) -> None:
    recorded(small(), tmp_path / "n")
    (tmp_path / "n" / "bodies" / "left-over").write_text("x")
    recorded(small(), tmp_path / "n")
    assert not (tmp_path / "n" / "bodies" / "left-over").exists()
    (tmp_path / "empty").mkdir()
    recorded(small(), tmp_path / "empty")
    recorded(small(), tmp_path / "new" / "parents" / "n")
    assert sorted(os.listdir(tmp_path)) == ["empty", "n", "new"]


def _foreign_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


def _foreign_json(path: Path) -> None:
    path.mkdir()
    (path / "snapshot.json").write_text('{"schema": "of another program"}')


def _link_to_snapshot(path: Path) -> None:
    recorded(small(), path.parent / "real")
    path.symlink_to(path.parent / "real")


@pytest.mark.parametrize("make", [
    _foreign_folder, _foreign_json, _link_to_snapshot, lambda path: path.write_text("a file"), lambda path: path.symlink_to("/nowhere"),
    lambda path: os.mkfifo(path)])
def test_what_is_no_snapshot_is_left_as_it_is(make: Callable[[Path], Any], tmp_path: Path) -> None:
    make(tmp_path / "n")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(snapshot.SnapshotError, match="is not a snapshot"):
        snapshot.write_folder(small(), str(tmp_path / "n"))
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("root", ["/", "", "///"])
def test_the_root_folder_is_never_replaced(root: str) -> None:
    with pytest.raises(snapshot.SnapshotError):
        snapshot.write_folder(small(), root)


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(small(), tmp_path / "n")
    before = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    broken: Dict[str, Any] = {**small(), "zz": "not bytes"}
    with pytest.raises(TypeError):
        snapshot.write_folder(broken, str(tmp_path / "n"))
    with pytest.raises(TypeError):
        snapshot.write_archive(broken, str(tmp_path / "n.tar.gz"), "n")
    real = os.rename

    def fails_at_the_end(source: str, target: str) -> None:
        if source.split("/")[-1].startswith("n.part-"):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "rename", fails_at_the_end)
    with pytest.raises(OSError, match="No space"):
        snapshot.write_folder(small(), str(tmp_path / "n"))
    assert {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# -- snapshots of strangers: folders -------------------------------------------------------------------
@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(recorded(small(), tmp_path / "n"))


def change(root: Path, name: str, edit: Callable[[Any], Any]) -> None:
    path = root / name
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))


def test_what_is_not_there_or_no_folder(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "does not exist")
    refused(tmp_path, "snapshot.json")
    (tmp_path / "text").write_text("hello")
    refused(tmp_path / "text", "tar.gz")
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", "is not a folder")
    refused("/dev/null", "is not a folder")


@pytest.mark.parametrize("name", ["snapshot.json", "answers.json", "commands.json"])
@pytest.mark.parametrize("data", [
    b"", b"{", b"\xff\xfe\0junk", os.urandom(4096), b"[" * 200000, b'{"a":' * 200000, b"NaN", b"null", b'"text"', b"3", b"1" * 1000000,
    b'{"schema": Infinity}'],
    ids=["empty", "half", "binary", "random", "deep-list", "deep-table", "nan", "null", "text", "number", "long-number", "infinity"])
def test_broken_json(root: Path, name: str, data: bytes) -> None:
    (root / name).write_bytes(data)
    started = time.monotonic()
    refused(root)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("name", ["snapshot.json", "answers.json", "commands.json", "bodies/long"])
def test_truncated_missing_linked_and_strange_files(root: Path, name: str) -> None:
    path, whole = root / name, (root / name).read_bytes()
    if not name.startswith("bodies"):
        path.write_bytes(whole[:len(whole) // 2])
        refused(root, "not whole JSON")
    path.unlink()
    refused(root, name)
    path.symlink_to("/etc/hostname")
    refused(root, name)
    path.unlink()
    os.mkfifo(path)
    started = time.monotonic()
    refused(root, name)
    assert time.monotonic() - started < 2
    path.unlink()
    path.mkdir()
    refused(root, name)


def test_bodies_is_a_link_or_a_file(root: Path, tmp_path: Path) -> None:
    (root / "bodies").rename(tmp_path / "elsewhere")
    (root / "bodies").symlink_to(tmp_path / "elsewhere")
    refused(root, "bodies", "link")
    (root / "bodies").unlink()
    (root / "bodies").write_text("x")
    refused(root, "bodies/long")


@pytest.mark.parametrize("name", ["snapshot.json", "answers.json", "bodies/long"])
def test_a_sparse_gigabyte_is_refused_by_its_size(root: Path, name: str) -> None:
    with open(root / name, "r+b") as out:
        out.truncate(1 << 30)
    started = time.monotonic()
    refused(root, name, "MiB")
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("body", [
    "/etc/passwd", "../secret", "bodies/../../secret", "bodies/..", "bodies/.", "bodies/", "bodies/a/b", "bodies//etc/passwd",
    "bodies/.hidden", "",
    "snapshot.json", "bodies/a\0b", "bodies/long\n", "bodies/" + "x" * 5000, "bodies/é", None, 3, ["bodies/long"], {"body": "bodies/long"}])
def test_no_body_leads_out_of_the_folder(root: Path, tmp_path: Path, body: Any) -> None:
    (tmp_path / "secret").write_text("secret")
    change(root, "answers.json", lambda answers: {**answers, "read": {"/x": {"body": body}}})
    refused(root, "body")


def test_texts_are_bounded_together(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_TOTAL", 1 << 20)
    change(root, "answers.json", lambda answers: {**answers, "read": {"/%d" % i: {"body": "bodies/long"} for i in range(300)}})
    refused(root, "1 MiB of text")


@pytest.mark.parametrize("schema", ["inferops.vllm/snapshot/2", "", None, 1, ["x"], "<script>" * 100])
def test_another_schema_is_named(root: Path, schema: Any) -> None:
    change(root, "snapshot.json", lambda head: {**head, "schema": schema})
    refused(root, "schema", "inferops.vllm/snapshot/1")


@pytest.mark.parametrize("edit", [
    lambda a: {**a, "read": []}, lambda a: {**a, "names": 3}, lambda a: {**a, "read": {"/x": 5}}, lambda a: {**a, "read": {"/x": None}},
    lambda a: {**a, "kind": {"/x": ["file"]}}])
def test_answers_of_another_shape_are_refused(root: Path, edit: Callable[[Any], Any]) -> None:
    change(root, "answers.json", edit)
    refused(root)


@pytest.mark.parametrize("entry", [3, None, [], {}, {"argv": []}, {"argv": "ls"}, {"argv": ["ls", 3]}, {"argv": ["ls"], "out": 7}])
def test_commands_of_another_shape_are_refused(root: Path, entry: Any) -> None:
    change(root, "commands.json", lambda commands: [*commands, entry])
    refused(root)


ODD_KEYS = st.sampled_from(["body", "error", "value", "argv", "out", "rc", "/x", "read"])
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_KEYS, inner, max_size=3), max_leaves=8)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_snapshot_of_any_shape_is_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("odd")
    answers = data.draw(st.dictionaries(st.sampled_from(["read", "names", "link", "kind", "probe", "x"]), st.dictionaries(
        st.sampled_from(["/x", "process ", "ssh ", "/proc/modules"]), ODD, max_size=3) | ODD, max_size=5))
    (folder / "snapshot.json").write_text(json.dumps({"schema": snapshot.SCHEMA, "options": data.draw(ODD), "node": data.draw(ODD)}))
    (folder / "answers.json").write_text(json.dumps(answers))
    (folder / "commands.json").write_text(json.dumps(data.draw(ODD | st.lists(ODD, max_size=3))))
    try:
        reader, options, _head = collect.open_root(str(folder))
    except snapshot.SnapshotError:
        return
    json.dumps(collect.gather(reader, options))


# -- snapshots of strangers: archives --------------------------------------------------------------------
def archive(path: Path, members: List[tarfile.TarInfo], data: Optional[Dict[str, bytes]] = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            body = (data or {}).get(member.name, b"")
            member.size = len(body) if member.isreg() else member.size
            tar.addfile(member, io.BytesIO(body))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_archives_that_are_none(tmp_path: Path) -> None:
    snapshot.write_archive(small(), str(tmp_path / "n.tar.gz"), "n")
    whole = (tmp_path / "n.tar.gz").read_bytes()
    broken = [b"", whole[:40], whole[:-20], whole[:-1], whole[:len(whole) // 2], os.urandom(5000)]
    broken += [gzip.compress(b"x" * 5000), gzip.compress(b"")]
    for number, data in enumerate(broken):
        path = tmp_path / ("broken%d.tar.gz" % number)
        path.write_bytes(data)
        refused(path)
    for at in range(0, len(whole), 61):
        (tmp_path / "flipped").write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1:])
        # Only bytes of gzip's own header (time, system) may change without harm.
        if at > 10:
            refused(tmp_path / "flipped")


def test_links_devices_and_foreign_names_in_an_archive_are_not_read(tmp_path: Path) -> None:
    files = {"n/" + name: data for name, data in small().items() if name != "bodies/long"}
    plain = [member(name) for name in files]
    for odd in (
            member("n/bodies/long", tarfile.SYMTYPE, "/etc/passwd"), member("n/bodies/long", tarfile.LNKTYPE, "n/snapshot.json"),
            member("n/bodies/long", tarfile.FIFOTYPE), member("n/bodies/long", tarfile.CHRTYPE), member("/etc/bodies/long"),
            member("../../x/bodies/long")):
        refused(archive(tmp_path / "odd.tar.gz", [*plain, odd], files), "bodies/long")
    assert not (tmp_path.parent.parent / "x").exists()


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    def bomb(name: str, kind: bytes, size: int) -> Path:
        path = tmp_path / "bomb.tar.gz"
        head = tarfile.TarInfo(name)
        head.type, head.size = kind, size
        with gzip.open(path, "wb", compresslevel=1) as out:
            out.write(head.tobuf(tarfile.GNU_FORMAT))
            for _block in range(min(size, 600 << 20) >> 20):
                out.write(bytes(1 << 20))
        return path

    for name, kind, size in (("n/answers.json", tarfile.REGTYPE, 1 << 33), ("n/other", tarfile.REGTYPE, 1 << 33)):
        started = time.monotonic()
        refused(bomb(name, kind, size), "larger than a snapshot may be")
        assert time.monotonic() - started < 30
    refused(bomb("n/long-name", tarfile.GNUTYPE_LONGNAME, 500 << 20), "unpacks to more than")


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_FILES", 50)
    refused(archive(tmp_path / "many.tar.gz", [member("n/%d" % i) for i in range(60)]), "more than 50 files")


def test_an_empty_memory_reader_renders() -> None:
    empty = json.loads(snapshot.render(MemoryReader(), "n", {})["answers.json"])
    assert empty == {"kind": {}, "link": {}, "names": {}, "probe": {}, "read": {}}


@pytest.mark.skipif(not shutil.which("zstd"), reason="no program zstd")
def test_zstd_archives_whole_cut_and_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "n.tar.zst"
    snapshot.write_archive(small(), str(path), "n", shutil.which("zstd") or "")
    assert snapshot.open_snapshot(str(path))[0].read("/long").text == "x" * 5000
    whole = path.read_bytes()
    for cut in (20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refused(path)
    path.write_bytes(whole)
    monkeypatch.setattr(snapshot, "MAX_TOTAL", 1000)
    refused(path, "larger than a snapshot may be")
