# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights are whole or named, brought from where they are, and looked at once."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.jobs import quiet
from ansible_collections.inferops.vllm.plugins.module_utils.weights import checkpoint, copying, ensure, hub, hub_script, place
from ansible_collections.inferops.vllm.plugins.module_utils.weights.ensure import Wanted
from ansible_collections.inferops.vllm.plugins.module_utils.weights.place import WeightsProblem

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40
TOKEN = "hf_" + "Q" * 30
NAMES = ["model-%05d-of-00003.safetensors" % number for number in (1, 2, 3)]


def shard(size: int, header_pad: int = 0) -> bytes:
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode() + b" " * header_pad
    return struct.pack("<Q", len(header)) + header + bytes(range(256)) * (size // 256) + b"\0" * (size % 256)


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text('{"a": 1}')
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(shard(1000 + number))
    (folder / checkpoint.INDEX).write_text(json.dumps({"weight_map": {"w%d" % number: name for number, name in enumerate(NAMES)}}))
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    monkeypatch.setattr(ensure, "mounts", list)
    read = ensure.read_text
    monkeypatch.setattr(ensure, "read_text", lambda path: "" if path == "/etc/fstab" else read(path))

    def go(dry: bool = False, quick: bool = False, **words: Any) -> dict[str, Any]:
        words.setdefault("home", str(tmp_path / "home"))
        return ensure.run(ensure.check(Wanted(**words)), quiet, dry, quick, str(tmp_path / "state"))

    return go


def kind_of(run: Callable[..., dict[str, Any]], **words: Any) -> tuple[str, str]:
    with pytest.raises(WeightsProblem) as caught:
        run(**words)
    assert "\n" not in str(caught.value) and TOKEN not in str(caught.value)
    return caught.value.kind, str(caught.value)


# -- what is there ------------------------------------------------------------------------------------
def test_a_folder_that_is_there_is_marked_once(run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(model(tmp_path / "m"))
    told = run(model=folder, dry=True)
    assert told["changed"] and told["present"] and not (tmp_path / "m" / checkpoint.MARKER).exists()
    made = run(model=folder)
    assert made["changed"] and made["shards"] == 3 and made["files"] == 6 and made["folder"] == folder
    opened: list[str] = []
    monkeypatch.setattr(checkpoint, "shard_fault", lambda path, size: opened.append(path) or "")
    again = run(model=folder)
    assert not again["changed"] and not opened
    os.utime(tmp_path / "m" / NAMES[0], (1, 1))
    assert run(model=folder)["changed"] and opened == [folder + "/" + NAMES[0]]


@pytest.mark.parametrize(("spoil", "told"), [
    (lambda f: (f / NAMES[1]).unlink(), NAMES[1] + " is missing"),
    (lambda f: os.truncate(f / NAMES[1], 500), NAMES[1] + " is cut: 500 of "),
    (lambda f: os.truncate(f / NAMES[1], 20), "cut inside of its header"),
    (lambda f: os.truncate(f / NAMES[1], 3), NAMES[1] + " is cut: 3 bytes"),
    (lambda f: (f / NAMES[1]).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1"), "no safetensors file"),
    (lambda f: (f / NAMES[1]).write_bytes(shard(1000) + b"x"), "1 bytes longer"),
    (lambda f: (f / NAMES[1]).write_bytes(struct.pack("<Q", 10) + b"{\"a\": nope"), "damaged header"),
    (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    (lambda f: (f / "config.json").write_text("{"), "config.json is no JSON"),
    (lambda f: (f / checkpoint.INDEX).write_text("{\"weight"), "is no JSON document"),
    (lambda f: (f / checkpoint.INDEX).write_text("{}"), "holds no weight_map"),
    (lambda f: (f / checkpoint.INDEX).write_text('{"weight_map": {"a": "../x"}}'), "outside of its folder"),
    (lambda f: (f / checkpoint.INDEX).unlink(), checkpoint.INDEX + " is missing"),
    (lambda f: [(f / name).unlink() for name in (*NAMES, checkpoint.INDEX)], "no file with tensors"),
    (lambda f: (f / NAMES[1]).unlink() or (f / NAMES[1]).symlink_to("nowhere"), NAMES[1] + " is missing"),
])
def test_what_is_not_whole_is_named(run: Callable[..., dict[str, Any]], tmp_path: Path, spoil: Callable[[Path], Any], told: str) -> None:
    folder = model(tmp_path / "m")
    spoil(folder)
    kind, text = kind_of(run, model=str(folder))
    assert kind == "incomplete" and told in text
    kind, text = kind_of(run, model=str(folder), dry=True)
    assert kind == "incomplete"


def test_a_file_that_was_there_when_marked_is_missed(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    run(model=str(folder))
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json is missing; it was there before" in kind_of(run, model=str(folder))[1]


def test_one_file_without_an_index_will_do(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{}")
    (tmp_path / "m/model.safetensors").write_bytes(shard(10))
    assert run(model=str(tmp_path / "m"))["shards"] == 1


def test_many_faults_are_counted(tmp_path: Path) -> None:
    found = checkpoint.Found({}, 0, ["f%d is missing" % number for number in range(20)], 0)
    assert checkpoint.summary(found).endswith("; and 14 more")


def test_a_folder_that_may_not_be_written_is_marked_on_the_node(
    run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = model(tmp_path / "m")
    write = place.write_text

    def refuse(path: str, text: str) -> None:
        if path.startswith(str(folder)):
            raise OSError(30, "Read-only file system", path)
        write(path, text)

    monkeypatch.setattr(ensure, "write_text", refuse)
    assert run(model=str(folder), checksums="write")["changed"]
    assert not run(model=str(folder), checksums="write")["changed"]
    assert run(model=str(folder), checksums="verify")["verified"] == 6
    assert len(list((tmp_path / "state").iterdir())) == 2


def test_nothing_there_and_no_way_to_get_it(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    assert kind_of(run, model=str(tmp_path / "none"))[0] == "absent"
    assert kind_of(run, model="owner/name", source="present")[0] == "absent"


@pytest.mark.parametrize("words", [
    {"model": "a b"}, {"model": "../x/y"}, {"model": ""}, {"model": "a/b/c"}, {"model": "a/b", "home": "relative"}, {"model": "a/b", "source": "copy"},
    {"model": "a/b", "mirror": "relative"}, {"model": "/a", "source": "download"}, {"model": "/a", "repository": "a b"},
])
def test_words_that_make_no_sense(run: Callable[..., dict[str, Any]], words: dict[str, str]) -> None:
    assert kind_of(run, **words)[0] == "words"


def test_a_mount_that_is_not_mounted_is_refused(tmp_path: Path) -> None:
    fstab = "# x\nfiler:/w /mnt/weights nfs4 ro 0 0\n/dev/sdb1 /data\\040x ext4 noauto 0 0\ntmpfs none swap x 0 0\n/dev/sda1 / ext4 defaults 0 1\n"
    mounted = [place.Mount("/", "ext4", "/dev/sda1", "rw")]
    assert place.unmounted("/mnt/weights/k3", mounted, fstab) == "/mnt/weights"
    assert place.unmounted("/mnt/weights2/k3", mounted, fstab) == "" and place.unmounted("/data x/k", mounted, fstab) == ""
    assert place.unmounted("/srv/k3", mounted, fstab, "/srv") == "/srv"
    mounted.append(place.Mount("/mnt/weights", "nfs4", "filer:/w", "ro"))
    assert place.unmounted("/mnt/weights/k3", mounted, fstab) == ""


def test_the_run_refuses_what_is_not_mounted(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    folder = str(model(tmp_path / "m"))
    kind, text = kind_of(run, model=folder, mount=str(tmp_path))
    assert kind == "mount" and "is not mounted" in text


# -- sums ------------------------------------------------------------------------------------------------
def test_sums_are_written_compared_and_missed(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    assert kind_of(run, model=str(folder), checksums="verify")[0] == "sums"
    assert "wrote sums of 6 files" in run(model=str(folder), checksums="write")["steps"]
    assert not run(model=str(folder), checksums="write")["changed"]
    text = (folder / checkpoint.SUMS).read_text()
    assert "%s  %s\n" % (hashlib.sha256((folder / NAMES[0]).read_bytes()).hexdigest(), NAMES[0]) in text
    assert run(model=str(folder), checksums="verify")["verified"] == 6
    data = bytearray((folder / NAMES[2]).read_bytes())
    data[-1] ^= 1
    (folder / NAMES[2]).write_bytes(data)
    kind, told = kind_of(run, model=str(folder), checksums="verify")
    assert kind == "sums" and told.endswith(NAMES[2] + " has another sum")
    assert run(model=str(folder), checksums="write")["changed"] and run(model=str(folder), checksums="verify")["verified"] == 6


def test_a_hub_cache_tells_the_sums_itself(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    source = model(tmp_path / "m")
    base = tmp_path / "home/hub/models--o--n"
    snapshot, blobs = base / "snapshots" / COMMIT, base / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in source.iterdir():
        name = hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".safetensors" else hashlib.sha256(path.read_bytes()).hexdigest()[:40]
        (blobs / name).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to("../../blobs/" + name)
    made = run(model="o/n", revision=COMMIT, checksums="verify")
    assert made["verified"] == 3 and made["revision"] == COMMIT and "no sum for 3 of 6" in made["notes"][0]
    blob = (snapshot / NAMES[0]).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    assert kind_of(run, model="o/n", revision=COMMIT, checksums="verify")[0] == "sums"


# -- copies -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("packed", [False, True])
def test_a_mirror_is_copied_and_a_half_copy_goes_on(run: Callable[..., dict[str, Any]], tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(tmp_path / "mirror" / "k3")
    mirror = str(source)
    if packed:
        mirror = str(tmp_path / "k3.tar")
        with tarfile.open(mirror, "w") as tar:
            tar.add(source, arcname="./k3")
    folder = tmp_path / "home/hub/models--o--n/snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / NAMES[0]).write_bytes((source / NAMES[0]).read_bytes())
    (folder / NAMES[1]).write_bytes(b"half")
    inode = (folder / NAMES[0]).stat().st_ino
    words = {"model": "o/n", "revision": COMMIT, "mirror": mirror}
    assert run(dry=True, **words)["steps"] == ["would copy %s to %s" % (mirror, folder)]
    assert run(quick=True, **words) == {"long": True}
    made = run(**words)
    assert made["changed"] and made["revision"] == COMMIT and (folder / NAMES[0]).stat().st_ino == inode
    for path in source.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert not run(**words)["changed"] and not run(model="o/n")["changed"]
    assert not [path for path in (tmp_path / "home").rglob("*") if "incomplete" in path.name or "lock" in path.name]


def test_files_of_another_revision_do_not_count_as_copied(
        run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two revisions of a model have shards of the same sizes; a folder of the one never passes for the other, also after a kill."""
    mirrors = {COMMIT: model(tmp_path / "a"), "b" * 40: model(tmp_path / "b")}
    for name in NAMES:
        whole = (mirrors[COMMIT] / name).read_bytes()
        (mirrors["b" * 40] / name).write_bytes(whole[:-5] + b"other")
    folder = tmp_path / "w"

    def copied(revision: str) -> bool:
        return all((folder / name).read_bytes() == (mirrors[revision] / name).read_bytes() for name in NAMES)

    def go(revision: str) -> dict[str, Any]:
        return run(model=str(folder), revision=revision, mirror=str(mirrors[revision]), checksums="write")

    assert go(COMMIT)["revision"] == COMMIT and copied(COMMIT)
    made = go("b" * 40)
    assert made["revision"] == "b" * 40 and copied("b" * 40) and "took away 6 files of revision %s" % COMMIT in made["steps"][0]
    # The sums are those of the new files, too.
    assert run(model=str(folder), checksums="verify")["verified"] == 6
    assert not go("b" * 40)["changed"]

    # A mirror that is the folder itself is never taken away.
    assert run(model=str(folder), revision="c" * 40, mirror=str(folder))["present"] and copied("b" * 40)
    made = go("b" * 40)

    # Killed in the middle of the way back: what was copied goes on, and is no part of the other revision.
    replace = os.replace

    def killed(source: str, target: str) -> None:
        if str(target).endswith(NAMES[1]):
            raise KeyboardInterrupt
        replace(source, target)

    for after in (COMMIT, "b" * 40):
        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            go(COMMIT)
        monkeypatch.setattr(os, "replace", replace)
        inode = (folder / NAMES[0]).stat().st_ino
        assert go(after)["revision"] == after and copied(after)
        assert after != COMMIT or (folder / NAMES[0]).stat().st_ino == inode
        go("b" * 40)


def test_a_copy_under_an_id_needs_the_commit(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    assert kind_of(run, model="o/n", mirror=str(model(tmp_path / "m")))[0] == "revision"
    assert kind_of(run, model="o/n", mirror=str(tmp_path / "m"), revision="main")[0] == "revision"


def test_a_mirror_that_is_none_or_is_damaged(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no tar")
    assert kind_of(run, model="o/n", revision=COMMIT, mirror=str(tmp_path / "file"))[0] == "absent"
    assert kind_of(run, model="o/n", revision=COMMIT, mirror=str(tmp_path / "nothing"))[0] == "absent"
    source = model(tmp_path / "m")
    os.truncate(source / NAMES[0], 300)
    kind, told = kind_of(run, model="o/n", revision=COMMIT, mirror=str(source))
    assert kind == "incomplete" and "after the copy" in told and NAMES[0] in told


def test_an_archive_that_leads_out_is_refused(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("../evil")
        tar.addfile(info)
    assert kind_of(run, model=str(tmp_path / "x"), mirror=str(tmp_path / "a.tar"))[0] == "words"


def test_space_is_looked_at_first_with_the_sum(run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = place.Space(5000 * 10**8, 10**6, "/data", "/dev/md0", True)
    with pytest.raises(WeightsProblem) as caught:
        place.need(1680 * 10**9, 680 * 10**9, 100, room, "/data/k3")
    assert "1,680.0 GB − 680.0 GB already there = 1,000.0 GB, + 10 % = 1,100.0 GB needed, and 500.0 GB are free in /data (/dev/md0)" in str(caught.value)
    place.need(1680 * 10**9, 1300 * 10**9, 100, room, "/data/k3")
    with pytest.raises(WeightsProblem, match="150 inodes left"):
        place.need(1, 0, 100, room._replace(inodes=150), "/data/k3")
    place.need(1, 0, 100, room._replace(inodes=0), "/data/k3")
    source = model(tmp_path / "m")
    monkeypatch.setattr(ensure, "space", lambda path: place.Space(10, 1000, "/", "x", True))
    assert kind_of(run, model=str(tmp_path / "new"), mirror=str(source))[0] == "disk_full"
    monkeypatch.setattr(ensure, "space", lambda path: place.Space(10**12, 1000, "/", "x", False))
    assert "read-only" in kind_of(run, model=str(tmp_path / "new"), mirror=str(source))[1]


def test_a_disk_that_fills_up_says_so_and_keeps_what_is_there(run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(tmp_path / "m")

    def full(*_args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copying, "copy", full)
    kind, told = kind_of(run, model=str(tmp_path / "new"), mirror=str(source))
    assert kind == "disk_full" and "goes on from it" in told
    assert not (tmp_path / "new" / place.LOCK).exists()


# -- one writer ---------------------------------------------------------------------------------------------
def test_of_several_nodes_one_works_and_the_others_wait(run: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, copies = model(tmp_path / "m"), []
    copy = copying.copy

    def slow(*args: Any) -> int:
        copies.append(1)
        time.sleep(0.3)
        return copy(*args)

    monkeypatch.setattr(copying, "copy", slow)
    monkeypatch.setattr(ensure, "wait_for", lambda lock, tell, done: place.wait_for(lock, tell, done, 0.05))
    results: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: results.append(run(model="o/n", revision=COMMIT, mirror=str(source)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(copies) == 1 and len(results) == 3 and all(one["present"] for one in results)


def test_a_dead_owners_lock_is_broken_and_a_living_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / place.LOCK
    first, second = place.Lock(str(tmp_path)), place.Lock(str(tmp_path))
    assert first.take() == "" and second.take() != ""
    first.release()
    assert not path.exists()
    path.write_text("elsewhere 1 1")
    assert second.take() == "elsewhere"
    os.utime(path, (1, 1))
    assert second.take() == "" and not list(tmp_path.glob("*.old.*"))
    second.release()
    path.write_text("%s 999999999 1" % os.uname().nodename)
    assert first.take() == ""
    path.write_text("stolen 1 1")
    first.release()
    assert path.exists()


# -- the hub --------------------------------------------------------------------------------------------------
ENGINE = """#!%s
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
with open(here + "/log", "a") as log:
    log.write(json.dumps(words) + "\\n")
if words[0] == "rm":
    sys.exit(0)
path = words[words.index("--env-file") + 1]
env = dict(line.rstrip("\\n").split("=", 1) for line in open(path))
json.dump({"env": env, "mode": oct(os.stat(path).st_mode & 0o777)}, open(here + "/seen-" + ("ask" if env["W_ASK"] else "get"), "w"))
plan = json.load(open(here + "/plan.json"))
if plan["problem"] and (plan["when"] == "ask") == bool(env["W_ASK"]):
    print("PROBLEM " + plan["problem"].replace("TOKEN", env.get("HF_TOKEN", ""))); sys.exit(3)
source = plan["source"]
files = {name: os.path.getsize(source + "/" + name) for name in sorted(os.listdir(source))}
if env["W_ASK"]:
    print("a warning"); print("TOLD " + json.dumps({"sha": plan["sha"], "files": files}))
else:
    folder = env["W_FOLDER"] or "%%s/hub/models--%%s/snapshots/%%s" %% (env["HF_HOME"], env["W_MODEL"].replace("/", "--"), env["W_REVISION"])
    os.makedirs(folder, exist_ok=True)
    for name in files:
        if name != plan["without"]:
            open(folder + "/" + name, "wb").write(open(source + "/" + name, "rb").read())
"""


class Hub:
    """A container engine whose containers download from a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.path = folder / "docker"
        self.path.write_text(ENGINE % sys.executable)
        self.path.chmod(0o755)
        self.source = model(folder / "source")
        self.plan()

    def plan(self, **words: str) -> None:
        (self.folder / "plan.json").write_text(json.dumps({"problem": "", "when": "ask", "sha": COMMIT, "source": str(self.source), "without": "", **words}))

    def words(self, **more: str) -> dict[str, Any]:
        return {"model": "o/n", "revision": COMMIT, "engine": str(self.path), "image": "img@sha256:1", "token": TOKEN, **more}


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(hub, "RUN", str(tmp_path / "run"))
    return Hub(tmp_path / "engine")


def test_a_commit_is_downloaded_in_the_image(run: Callable[..., dict[str, Any]], fake_hub: Hub, tmp_path: Path) -> None:
    assert run(dry=True, **fake_hub.words())["steps"] == ["would download o/n " + COMMIT]
    assert not (fake_hub.folder / "log").exists()
    made = run(environment={"HF_ENDPOINT": "http://mirror"}, **fake_hub.words())
    assert made["changed"] and made["revision"] == COMMIT and made["folder"].endswith("models--o--n/snapshots/" + COMMIT)
    seen = json.loads((fake_hub.folder / "seen-get").read_text())
    assert seen["mode"] == "0o600" and seen["env"]["HF_TOKEN"] == TOKEN and seen["env"]["HF_ENDPOINT"] == "http://mirror"
    assert TOKEN not in (fake_hub.folder / "log").read_text() and not list((tmp_path / "run").iterdir())
    assert not run(**fake_hub.words())["changed"]
    assert (tmp_path / "home/hub/models--o--n/refs/main").read_text() == COMMIT


def test_a_download_into_a_path(run: Callable[..., dict[str, Any]], fake_hub: Hub, tmp_path: Path) -> None:
    words = fake_hub.words(model=str(tmp_path / "flat"), repository="o/n")
    made = run(**words)
    assert made["folder"] == str(tmp_path / "flat") and made["revision"] == COMMIT
    # The folder is of one revision, and says so.
    assert not run(model=str(tmp_path / "flat"), revision=COMMIT)["changed"]
    assert "holds revision %s, not %s" % (COMMIT, OTHER) in kind_of(run, model=str(tmp_path / "flat"), revision=OTHER)[1]


def test_a_branch_is_refused_with_its_commit(run: Callable[..., dict[str, Any]], fake_hub: Hub) -> None:
    for revision in ("", "main"):
        kind, told = kind_of(run, **fake_hub.words(revision=revision))
        assert kind == "revision" and "it is the commit " + COMMIT in told
    fake_hub.plan(sha=OTHER)
    assert "answers for the commit" in kind_of(run, **fake_hub.words())[1]


def test_a_download_that_left_something_out_is_named(run: Callable[..., dict[str, Any]], fake_hub: Hub) -> None:
    fake_hub.plan(without="tokenizer.json")
    kind, told = kind_of(run, **fake_hub.words())
    assert kind == "incomplete" and "tokenizer.json" in told
    fake_hub.plan()
    assert run(**fake_hub.words())["changed"]


def test_a_file_with_another_sum_is_brought_again(run: Callable[..., dict[str, Any]], fake_hub: Hub, tmp_path: Path) -> None:
    words = fake_hub.words(model=str(tmp_path / "flat"), repository="o/n")
    run(checksums="write", **words)
    shard = next((tmp_path / "flat").glob("*.safetensors"))
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    kind, told = kind_of(run, checksums="verify", **dict(words, source="present"))
    assert kind == "sums" and told.endswith("%s has another sum" % shard.name)
    made = run(checksums="verify", **words)
    assert made["steps"][0] == "took away %s has another sum" % shard.name and made["verified"] == made["files"] and shard.read_bytes() == data
    # What is brought again and still has another sum is not brought a third time.
    (fake_hub.source / shard.name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (fake_hub.folder / "log").unlink()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert kind_of(run, checksums="verify", **words)[0] == "sums"
    assert (fake_hub.folder / "log").read_text().count('"run"') == 2
    # Without a way to bring them, the fault is told.
    assert kind_of(run, model=str(tmp_path / "flat"), checksums="verify")[0] == "sums"


def test_authorities_of_ones_own(run: Callable[..., dict[str, Any]], fake_hub: Hub, tmp_path: Path) -> None:
    assert kind_of(run, **fake_hub.words(authorities="ca.pem")) == ("words", "ca_file: 'ca.pem' is no absolute path")
    assert "there is no file" in kind_of(run, **fake_hub.words(authorities=str(tmp_path / "ca.pem")))[1]
    (tmp_path / "ca.pem").write_text("x")
    run(**fake_hub.words(authorities=str(tmp_path / "ca.pem")))
    told = (fake_hub.folder / "log").read_text()
    assert '"--volume", "%s:/run/inferops-vllm-authorities.pem:ro"' % (tmp_path / "ca.pem") in told
    assert json.loads((fake_hub.folder / "seen-get").read_text())["env"]["SSL_CERT_FILE"] == "/run/inferops-vllm-authorities.pem"


def test_begun_files_of_the_library_do_not_count(tmp_path: Path) -> None:
    for name in ("a.inferops-vllm.incomplete", "b.0011aabb.incomplete", "c"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    assert place.stored(str(tmp_path)) == 3 * 4096 and place.stored(str(tmp_path), hub_script.BEGUN) == 2 * 4096


@pytest.mark.parametrize(("said", "kind"), [
    ("OSError: [Errno 28] No space left on device", "disk_full"),
    ("GatedRepoError: 403 Client Error. Cannot access gated repo", "gated"),
    ("RevisionNotFoundError: 404 Client Error", "revision"),
    ("HfHubHTTPError: 401 Client Error: Unauthorized TOKEN", "credentials"),
    ("RepositoryNotFoundError: 404 Client Error", "absent"),
    # The library's own words, which name gated repositories whatever the trouble is.
    ("RepositoryNotFoundError: 401 Client Error. Repository Not Found for url: x. If you are trying to access a private or gated repo, make sure you are "
     "authenticated", "credentials"),
    ("OSError: checksum: model.safetensors came with another SHA-256 than the hub tells, so it was not kept", "sums"),
    ("ConnectError: [Errno 111] Connection refused", "unreachable"),
    ("LocalEntryNotFoundError: cannot find", "unreachable"),
    ("SSLError: CERTIFICATE_VERIFY_FAILED", "tls"),
    ("ModuleNotFoundError: No module named 'huggingface_hub'", "image"),
    ("Strange: thing", "download"),
])
@pytest.mark.parametrize("when", ["ask", "get"])
def test_each_trouble_of_a_download(run: Callable[..., dict[str, Any]], fake_hub: Hub, tmp_path: Path, said: str, kind: str, when: str) -> None:
    fake_hub.plan(problem=said, when=when)
    assert kind_of(run, **fake_hub.words())[0] == kind
    assert not list((tmp_path / "run").iterdir()) and not list((tmp_path / "home").glob(".*"))


def test_an_engine_that_is_not_there_and_an_image_that_is_not_named(run: Callable[..., dict[str, Any]], fake_hub: Hub) -> None:
    assert kind_of(run, **fake_hub.words(engine="/nowhere/docker"))[0] == "engine"
    assert kind_of(run, **fake_hub.words(image=""))[0] == "words"


# -- any text ---------------------------------------------------------------------------------------------------
@given(st.text(max_size=200), st.binary(max_size=200))
def test_parsers_take_any_text(text: str, data: bytes) -> None:
    assert checkpoint.length_of(data) >= -1 and checkpoint.length_of(text.encode("utf-8", "replace")) >= -1
    assert isinstance(checkpoint.shards_of(text), tuple) and isinstance(checkpoint.parse_mark(text), checkpoint.Mark)
    assert isinstance(copying.parse_sums(text), dict) and (hub.parse_told("TOLD " + text) is None or True)
    assert isinstance(place.unmounted("/a", [], text), str) and isinstance(place.usable_model(text), bool)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(
    ["weight_map", "files", "data_offsets", "a", "sha", "model"]), inner), max_leaves=8))
def test_parsers_take_any_document(found: Any) -> None:
    text = json.dumps(found)
    assert checkpoint.length_of(text.encode()) >= -1
    checkpoint.shards_of(text)
    checkpoint.parse_mark(text)
    hub.parse_told("TOLD " + text)


@given(st.lists(st.integers(0, 10**6), max_size=5), st.integers(0, 50))
def test_the_header_tells_the_length(sizes: list[int], pad: int) -> None:
    at, table = 0, {}
    for number, size in enumerate(sizes):
        table["t%d" % number] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(table).encode() + b" " * pad
    assert checkpoint.length_of(header) == 8 + len(header) + at


@given(st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), min_size=1, max_size=20),
                       st.binary(max_size=5).map(lambda data: hashlib.sha256(data).hexdigest()), max_size=5))
def test_sums_are_read_as_written(table: dict[str, str]) -> None:
    assert copying.parse_sums(copying.sums_text(table)) == table
