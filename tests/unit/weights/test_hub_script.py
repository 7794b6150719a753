# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that downloads in a container, run here against the lab's hub, with a stand-in of the hub's library that gives up as releases 0.36 and 1.2 do.

The real library is met in tests/unit/lab/test_weights_running.py.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.weights import hub_script
from tests.lab import hub

COMMIT = "ab" * 20
TOKEN = "hf_scripted"
SIZE = 3_000_000
# As much of huggingface_hub as the script uses, with its names and its ways.
LIBRARY = {
    "__init__.py": '''
import json, os, types, urllib.request
END = os.environ["HF_ENDPOINT"]
def ask(path):
    wanted = urllib.request.Request(END + path, headers={"Authorization": "Bearer " + os.environ["HF_TOKEN"]})
    return urllib.request.urlopen(wanted).read()
class HfApi:
    def model_info(self, model, revision, files_metadata):
        told = json.loads(ask("/api/models/%s/revision/%s?blobs=true" % (model, revision)))
        return types.SimpleNamespace(sha=told["sha"], siblings=[
            types.SimpleNamespace(rfilename=one["rfilename"], size=one["size"], lfs=one.get("lfs")) for one in told["siblings"]])
def hf_hub_url(model, name, revision):
    return "%s/%s/resolve/%s/%s" % (END, model, revision, name)
def snapshot_download(model, revision, local_dir, max_workers):
    top = os.path.join(os.environ["HF_HOME"], "hub", "models--" + model.replace("/", "--"))
    folder = local_dir or os.path.join(top, "snapshots", revision)
    os.makedirs(folder, exist_ok=True)
    for one in HfApi().model_info(model, revision, True).siblings:
        path = os.path.join(folder, one.rfilename)
        blob = os.path.join(top, "blobs", one.lfs["sha256"] if one.lfs else one.rfilename)
        if os.path.exists(path):
            continue
        if local_dir or not os.path.exists(blob):
            assert not one.lfs, "a large file is left to the library"
            open(path, "wb").write(ask("/%s/resolve/%s/%s" % (model, revision, one.rfilename)))
        else:
            os.symlink(os.path.relpath(blob, folder), path)
''',
    "utils.py": '''
import os
def build_hf_headers():
    return {"authorization": "Bearer " + os.environ["HF_TOKEN"]}
''',
    "file_download.py": '''
import urllib.parse, http.client
def http_get(url, temp_file, *, resume_size=0, headers=None, expected_size=None):
    for _hop in range(2):
        part = urllib.parse.urlsplit(url)
        line = http.client.HTTPConnection(part.netloc)
        line.request("GET", part.path + "?" + part.query, headers={**headers, **({"Range": "bytes=%d-" % resume_size} if resume_size else {})})
        answer = line.getresponse()
        if answer.status != 302:
            break
        url, headers = answer.headers["Location"], {}
    if answer.status == 200 and resume_size:
        temp_file.seek(max(temp_file.tell() - resume_size, 0))
        temp_file.truncate()
    while True:
        data = answer.read(100_000)
        temp_file.write(data)
        if not data:
            break
    if temp_file.tell() != expected_size:
        raise ConnectionError("the connection broke")
''',
}


class Served:
    """A hub on this machine, and the script against it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.log, self.control = folder / "log", folder / "control"
        source = folder / "models" / "one"
        source.mkdir(parents=True)
        (source / "config.json").write_text("{}")
        (source / "big.bin").write_bytes(random.Random(1).randbytes(SIZE))
        (source / "other.bin").write_bytes(random.Random(2).randbytes(100_000))
        library = folder / "library" / "huggingface_hub"
        library.mkdir(parents=True)
        for name, text in LIBRARY.items():
            (library / name).write_text(text)
        self.blob = self.home / "hub" / "models--o--n" / "blobs" / hub.look(source / "big.bin").sha256
        self.begun = self.blob.with_name(self.blob.name + hub_script.BEGUN)
        self.place = self.home / "hub" / "models--o--n" / "snapshots" / COMMIT / "big.bin"
        for _try in range(5):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            try:
                self.servers = hub.serve({
                    "folder": str(folder / "models"), "models": {"o/n": {COMMIT: "one"}}, "branches": {}, "token": TOKEN, "address": "127.0.0.1",
                    "port": self.port, "log": str(self.log), "control": str(self.control)})
                return
            except OSError:
                # The port above is another's.
                continue
        pytest.fail("no two ports in a row are free")

    def run(self, **more: str) -> tuple[int, str]:
        env = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder / "library"), "PYTHONDONTWRITEBYTECODE": "1", "HF_HOME": str(self.home),
            "HF_TOKEN": TOKEN, "HF_ENDPOINT": "http://127.0.0.1:%d" % self.port, "W_MODEL": "o/n", "W_REVISION": COMMIT, "W_FOLDER": "", "W_ASK": "",
            "W_WORKERS": "2", **more}
        done = subprocess.run([sys.executable, "-c", hub_script.SCRIPT], env=env, capture_output=True, text=True, check=False, timeout=120)
        assert "Traceback" not in done.stderr, done.stderr[-2000:]
        return done.returncode, done.stdout

    def wish(self, **words: Any) -> None:
        self.control.write_text(json.dumps(words))

    def begins(self) -> list[tuple[int, int]]:
        """First byte and number of bytes of each transfer of the large file."""
        told = [json.loads(line) for line in self.log.read_text().splitlines()]
        self.log.unlink()
        return [(one["begin"], one["bytes"]) for one in told if one.get("name") == "big.bin" and one["method"] == "GET"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    for server in made.servers:
        server.shutdown()
        server.server_close()


def whole(served: Served, path: Path) -> bool:
    return path.read_bytes() == (served.folder / "models" / "one" / "big.bin").read_bytes()


def test_a_connection_that_breaks_goes_on_while_bytes_come(served: Served) -> None:
    served.wish(cut="big.bin", after=1_200_000)
    assert served.run() == (0, "") and whole(served, served.place)
    begins = served.begins()
    assert len(begins) == 3 and sum(count for _begin, count in begins) == SIZE and [begin for begin, _count in begins] == [0, 1_200_000, 2_400_000]


def test_a_run_that_was_killed_is_gone_on_with_and_what_others_left_is_taken_away(served: Served) -> None:
    served.begun.parent.mkdir(parents=True)
    served.begun.write_bytes((served.folder / "models" / "one" / "big.bin").read_bytes()[:2_000_000])
    old, young, other = (served.begun.with_name(name) for name in ("x.11223344.incomplete", "y.11223344.incomplete", "z" + hub_script.BEGUN))
    for path in (old, young, other):
        path.write_bytes(b"left")
    os.utime(old, (1, 1))
    assert served.run()[0] == 0 and whole(served, served.place) and served.begins() == [(2_000_000, SIZE - 2_000_000)]
    # A young one may be that of a service which downloads for itself.
    assert [path.exists() for path in (old, young, other, served.begun)] == [False, True, False, False]


def test_what_was_begun_and_is_damaged_begins_once_anew(served: Served) -> None:
    served.begun.parent.mkdir(parents=True)
    served.begun.write_bytes(bytes(2_000_000))
    assert served.run()[0] == 0 and whole(served, served.place)
    assert served.begins() == [(2_000_000, SIZE - 2_000_000), (0, SIZE)]


def test_a_server_without_ranges_does_no_harm(served: Served) -> None:
    served.begun.parent.mkdir(parents=True)
    served.begun.write_bytes((served.folder / "models" / "one" / "big.bin").read_bytes()[:2_000_000])
    served.wish(deaf=True)
    assert served.run()[0] == 0 and whole(served, served.place) and served.begins() == [(0, SIZE)]


def test_wrong_bytes_are_not_kept(served: Served) -> None:
    served.wish(damage="big.bin")
    rc, said = served.run()
    assert rc == 3 and "PROBLEM OSError: checksum: big.bin came with another SHA-256" in said
    assert not served.begun.exists() and not served.blob.exists()


def test_a_file_that_was_cut_is_fetched_again(served: Served) -> None:
    served.run()
    served.begins()
    os.truncate(served.blob, 5)
    assert served.run()[0] == 0 and whole(served, served.place) and served.begins() == [(0, SIZE)]
    assert served.run()[0] == 0 and served.begins() == []


def test_a_folder_of_ones_own(served: Served) -> None:
    flat = served.folder / "flat"
    assert served.run(W_FOLDER=str(flat))[0] == 0 and whole(served, flat / "big.bin") and (flat / "config.json").exists()
    assert not (flat / ".cache" / "inferops-vllm").exists() and not served.home.exists()


def test_a_hub_that_sends_nothing_ends_it(served: Served) -> None:
    served.wish(cut="big.bin", after=0)
    rc, said = served.run()
    assert rc == 3 and "PROBLEM ConnectionError: the connection broke" in said and len(served.begins()) == 4


def test_the_hub_of_the_lab_keeps_the_token_from_its_cdn(served: Served) -> None:
    """What would refuse a client that sends the token on, as signed addresses do."""
    line = http.client.HTTPConnection("127.0.0.1", served.port + 1)
    line.request("GET", "/one/big.bin", headers={"Authorization": "Bearer " + TOKEN})
    assert line.getresponse().status == 400
    line.close()
