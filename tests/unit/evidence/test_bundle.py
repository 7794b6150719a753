# SPDX-License-Identifier: GPL-3.0-or-later
"""A bundle is written whole, never over another one, and what was changed in it is found."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.evidence import bundle
from ansible_collections.inferops.vllm.plugins.module_utils.node import snapshot
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather, open_root
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import MemoryReader
from ansible_collections.inferops.vllm.plugins.module_utils.node.snapshot import SnapshotError

ZSTD = shutil.which("zstd") or ""


def contents(log: bytes = b"one line\n") -> Dict[str, Any]:
    reader = MemoryReader(files={"/etc/os-release": "ID=debian\n" * 300})
    gather(reader, Options())
    files = snapshot.render(reader, "n1", Options().asdict(), 0.0)
    return bundle.assemble(files, {"vllm.service.log.gz": [gzip.compress(log, mtime=0)]}, {"schema": bundle.SCHEMA, "logs": []})


def made(tmp_path: Path, kind: str) -> str:
    path = str(tmp_path / ("n1" if kind == "folder" else "n1." + kind))
    if kind == "folder":
        bundle.write_folder(contents(), path)
    else:
        bundle.write_archive(contents(), path, "n1", ZSTD if kind == "tar.zst" else "")
    return path


KINDS = ["folder", "tar.gz", pytest.param("tar.zst", marks=pytest.mark.skipif(not ZSTD, reason="zstd is not installed"))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_is_a_snapshot_and_a_bundle(tmp_path: Path, kind: str) -> None:
    path = made(tmp_path, kind)
    assert bundle.is_bundle(path)
    opened = bundle.open_bundle(path)
    assert (opened.node, opened.problems, list(opened.logs)) == ("n1", [], ["vllm.service.log.gz"])
    assert gzip.decompress(opened.logs["vllm.service.log.gz"]) == b"one line\n"
    reader, options, _head = open_root(path)
    assert gather(reader, options)["host"]["os"]["id"] == "debian"
    again, account = bundle.repack(path)
    assert {name: b"".join(parts) for name, parts in again.items()} == {name: b"".join(parts) for name, parts in contents().items()}
    assert account["schema"] == bundle.SCHEMA


def test_sha256sum_agrees_with_the_manifest(tmp_path: Path) -> None:
    path = made(tmp_path, "folder")
    subprocess.run(["sha256sum", "--quiet", "-c", "MANIFEST.sha256"], cwd=path, check=True)
    assert os.stat(path).st_mode & 0o77 == 0 and os.stat(path + "/evidence.json").st_mode & 0o77 == 0


@pytest.mark.parametrize("kind", ["folder", "tar.gz"])
def test_nothing_is_written_over(tmp_path: Path, kind: str) -> None:
    path = made(tmp_path, kind)
    before = bundle.open_bundle(path)
    with pytest.raises(OSError, match="never written over"):
        made(tmp_path, kind)
    assert bundle.open_bundle(path) == before and sorted(os.listdir(tmp_path)) == [Path(path).name]


def test_equal_contents_give_equal_archives(tmp_path: Path) -> None:
    sizes = [bundle.write_archive(contents(), str(tmp_path / name), "n1") for name in ("a.tar.gz", "b.tar.gz")]
    assert sizes[0] == sizes[1]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle, "_tar", full)
    with pytest.raises(OSError, match="No space"):
        made(tmp_path, "tar.gz")
    assert os.listdir(tmp_path) == []


def changed_file(path: Path) -> None:
    (path / "logs/vllm.service.log.gz").write_bytes(gzip.compress(b"another line\n"))


def missing_file(path: Path) -> None:
    (path / "logs/vllm.service.log.gz").unlink()


def added_file(path: Path) -> None:
    (path / "logs/more.log.gz").write_bytes(gzip.compress(b"x\n"))


def no_manifest(path: Path) -> None:
    (path / "MANIFEST.sha256").unlink()


@pytest.mark.parametrize(("change", "told"), [
    (changed_file, "logs/vllm.service.log.gz is not what was recorded"), (missing_file, "logs/vllm.service.log.gz is missing"),
    (added_file, "logs/more.log.gz was added"), (no_manifest, "MANIFEST.sha256 is missing"),
])
def test_a_change_is_found(tmp_path: Path, change: Any, told: str) -> None:
    path = made(tmp_path, "folder")
    change(Path(path))
    assert bundle.open_bundle(path).problems == [told]
    with pytest.raises(SnapshotError):
        bundle.repack(path)


def tar(tmp_path: Path, members: List[Any]) -> str:
    path = str(tmp_path / "x.tar.gz")
    with tarfile.open(path, "w:gz") as out:
        for name, data in members:
            member = tarfile.TarInfo(name)
            if data is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
                out.addfile(member)
            else:
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
    return path


def test_a_hostile_archive_is_refused_or_passed_over(tmp_path: Path) -> None:
    hostile = [("n/../../../etc/cron.d/x", b"x"), ("/etc/passwd", b"x"), ("n/logs/../../x", b"x"), ("n/logs/l.log.gz", None)]
    whole = [("n/" + name, b"".join(parts)) for name, parts in contents().items()]
    opened = bundle.open_bundle(tar(tmp_path, hostile + whole))
    assert opened.problems == [] and list(opened.logs) == ["vllm.service.log.gz"]
    with pytest.raises(SnapshotError, match=r"no snapshot\.json"):
        bundle.open_bundle(tar(tmp_path, [("n/a.log", b"x")]))
    with pytest.raises(SnapshotError, match="larger than"):
        bundle.open_bundle(tar(tmp_path, [("n/logs/big.log.gz", b"0" * (snapshot.MAX_INDEX + 1))]))
    with pytest.raises(SnapshotError, match="is not whole JSON"):
        bundle.open_bundle(tar(tmp_path, [("n/snapshot.json", b"[" * 100000)]))
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(Path(made(tmp_path, "tar.gz")).read_bytes()[:-200])
    with pytest.raises(SnapshotError, match="is not a whole"):
        bundle.open_bundle(str(cut))


def test_links_and_devices_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    path = Path(made(tmp_path, "folder"))
    (path / "logs/l.log.gz").symlink_to("/etc/passwd")
    with pytest.raises(SnapshotError, match="cannot be read"):
        bundle.open_bundle(str(path))
    (path / "logs/l.log.gz").unlink()
    os.mkfifo(path / "logs/fifo")
    assert bundle.open_bundle(str(path)).problems == []
    shutil.rmtree(path / "logs")
    (path / "logs").symlink_to("/var/log")
    with pytest.raises(SnapshotError, match="is a link"):
        bundle.open_bundle(str(path))
