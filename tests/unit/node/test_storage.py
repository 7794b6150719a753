# SPDX-License-Identifier: GPL-3.0-or-later
"""Section storage of the facts: mounts, free space, and checkpoints that are already there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import storage
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Probed

MOUNTS = (
    "22 1 9:0 / / rw,relatime shared:1 - ext4 /dev/md0p2 rw,errors=remount-ro\n"
    "30 22 0:50 / /srv/my\\040data rw,noatime - nfs4 192.0.2.9:/export rw,vers=4.2\n"
    "31 22 259:9 / /var/lib/vllm rw,noatime shared:29 master:2 - xfs /dev/md1 rw,attr2\n"
    "32 31 259:10 / /var/lib/vllm rw - ext4 /dev/md2 rw\n")
SIZES = {"total_bytes": 100, "free_bytes": 40, "free_inodes": 7, "total_inodes": 9}


def facts_of(paths: Tuple[str, ...], probes: Optional[Dict[Tuple[str, str], Any]] = None, files: Optional[Dict[str, Any]] = None,
             links: Optional[Dict[str, str]] = None, folders: Iterable[str] = ()) -> Dict[str, Any]:
    reader = MemoryReader({storage.MOUNTS: MOUNTS, **(files or {})}, links, None, probes, folders)
    return storage.collect(reader, Options(paths=paths))


def checkpoint(folder: Path, shards: int, named: int, config: bool = True) -> None:
    folder.mkdir(parents=True)
    for number in range(1, shards + 1):
        (folder / ("model-%05d-of-%05d.safetensors" % (number, named))).write_bytes(b"x" * 1000)
    weights = {"layer.%d" % n: "model-%05d-of-%05d.safetensors" % (n, named) for n in range(1, named + 1)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    if config:
        (folder / "config.json").write_text("{}")


# -- mounts and space --------------------------------------------------------------------------------
@pytest.mark.parametrize(("path", "device"), [
    ("/var/lib/vllm/models", "/dev/md2"), ("/var/lib/vllm", "/dev/md2"), ("/var/lib/vllm2", "/dev/md0p2"), ("/", "/dev/md0p2"),
    ("/srv/my data/x", "192.0.2.9:/export")])
def test_the_mount_of_a_path_is_the_longest_and_of_equals_the_last(path: str, device: str) -> None:
    mount = storage.mount_of(path, storage.parse_mounts(MOUNTS))
    assert mount is not None and mount.device == device


def test_options_of_mount_and_file_system_stand_together_once() -> None:
    assert storage.parse_mounts(MOUNTS)[0].options == "rw,relatime,errors=remount-ro"


def test_a_path_that_is_there() -> None:
    probes = {("statvfs", "/var/lib/vllm"): SIZES, ("weights", "/var/lib/vllm"): []}
    facts = facts_of(("/var/lib/vllm/",), probes, folders=["/var/lib/vllm"])
    assert facts == {"weights": None, "unknown": {}, "paths": [{
        "path": "/var/lib/vllm", "exists": True, "mount": "/var/lib/vllm", "fstype": "ext4", "device": "/dev/md2", "options": "rw",
        "total_bytes": 100, "free_bytes": 40, "free_inodes": 7}]}


def test_a_path_to_come_is_measured_where_it_would_be() -> None:
    facts = facts_of(("/data/models",), {("statvfs", "/data/models"): SIZES})
    assert facts["paths"][0]["exists"] is False and facts["paths"][0]["mount"] == "/" and facts["paths"][0]["free_bytes"] == 40
    assert facts["weights"] is None and facts["unknown"] == {}


def test_links_are_followed_to_their_mount() -> None:
    links = {"/models": "srv/my data", "/loop": "/loop"}
    facts = facts_of(("/models/kimi",), {("statvfs", "/models/kimi"): SIZES}, links=links)
    assert facts["paths"][0]["fstype"] == "nfs4"
    assert storage.resolve(MemoryReader(links=links), "/srv/./../models/x") == "/srv/my data/x"
    assert storage.resolve(MemoryReader(links=links), "/loop") == "/loop"
    assert storage.resolve(MemoryReader(links={"/a": "/b", "/b": "/a"}), "/a/x").endswith("/x")


def test_a_file_system_that_counts_no_inodes_has_none_to_tell() -> None:
    facts = facts_of(("/d",), {("statvfs", "/d"): {**SIZES, "total_inodes": 0, "free_inodes": 0}})
    assert "free_inodes" not in facts["paths"][0]


def test_a_file_system_that_hangs_is_unknown_and_nothing_else_is_touched() -> None:
    class Hanging(MemoryReader):
        def _probe(self, name: str, arg: str) -> Probed:
            asked.append((name, arg))
            return Probed(None, "timeout")

        def _kind(self, path: str) -> Content:
            raise AssertionError("a look at %s would block" % path)

    asked: List[Tuple[str, str]] = []
    facts = storage.collect(Hanging({storage.MOUNTS: MOUNTS}), Options(paths=("/srv/my data", "/var/lib/vllm")))
    assert asked == [("statvfs", "/srv/my data")]
    assert facts["paths"][0]["fstype"] == "nfs4" and "exists" not in facts["paths"][0]
    assert "does not answer" in facts["unknown"]["paths"] and facts["unknown"]["weights"]


def test_what_may_not_be_looked_at_is_unknown() -> None:
    facts = facts_of(("/root/models",), files={"/root/models": Content(None, "denied")})
    assert "free_bytes" not in facts["paths"][0] and facts["unknown"]["paths"]


def test_relative_paths_are_not_looked_at() -> None:
    assert facts_of(("models", "")) == {"paths": [], "weights": None, "unknown": {}}


# -- weights -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("place", [
    "", "kimi-k3", "models--moonshotai--Kimi-K3/snapshots/abc", "hub/models--moonshotai--Kimi-K3/snapshots/abc"])
def test_a_checkpoint_is_found_where_people_put_it(tmp_path: Path, place: str) -> None:
    root = tmp_path / "w[1]"
    checkpoint(root / place, shards=3, named=3)
    facts = storage.collect(LiveReader(5.0), Options(paths=(str(root),)))
    weights = facts["weights"]
    assert weights["path"] == str(root / place) and weights["present"] is True
    assert (weights["shards"], weights["missing"], weights["index"]) == (3, 0, True) and weights["bytes"] > 3000
    assert facts["paths"][0]["exists"] is True and facts["paths"][0]["free_bytes"] > 0 and facts["unknown"] == {}


def test_half_a_checkpoint_is_not_present(tmp_path: Path) -> None:
    checkpoint(tmp_path / "w", shards=2, named=5)
    weights = storage.collect(LiveReader(5.0), Options(paths=(str(tmp_path),)))["weights"]
    assert weights["present"] is False and (weights["shards"], weights["missing"]) == (2, 3)


def test_a_link_to_a_file_that_is_not_there_yet_is_missing(tmp_path: Path) -> None:
    checkpoint(tmp_path / "w", shards=1, named=2)
    (tmp_path / "w" / "model-00002-of-00002.safetensors").symlink_to("../blobs/gone")
    weights = storage.collect(LiveReader(5.0), Options(paths=(str(tmp_path),)))["weights"]
    assert weights["present"] is False and weights["missing"] == 1


def test_the_largest_checkpoint_is_told_and_one_without_configuration_is_not_present(tmp_path: Path) -> None:
    checkpoint(tmp_path / "small", shards=1, named=1)
    checkpoint(tmp_path / "large", shards=4, named=4, config=False)
    weights = storage.collect(LiveReader(5.0), Options(paths=(str(tmp_path),)))["weights"]
    assert weights["path"] == str(tmp_path / "large") and weights["present"] is False


def test_a_search_that_fails_is_unknown() -> None:
    facts = facts_of(("/w",), {("statvfs", "/w"): SIZES}, folders=["/w"])
    assert facts["weights"] is None and "searched" in facts["unknown"]["weights"]


# -- anything in, no exception out -------------------------------------------------------------------
@settings(max_examples=50, deadline=None)
@given(st.text(), st.integers(0, len(MOUNTS)))
def test_any_text(text: str, at: int) -> None:
    for form in (text, MOUNTS[:at] + text + MOUNTS[at:]):
        mounts = storage.parse_mounts(form)
        storage.mount_of(text, mounts)
        storage.resolve(MemoryReader(links={"/" + text: text}), "/" + text)
