# SPDX-License-Identifier: GPL-3.0-or-later
"""The role weights downloads in the real image, with its real huggingface_hub, from a hub that breaks, and counts what it sends.

Asked for with `pytest -m lab tests/unit/lab/test_weights_running.py` (root; about four minutes once root file system and image are in
the cache). Does not touch a lab that is up already. The tests follow each other on one node.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import hub, processes, registry
from tests.lab.image import checkpoint
from tests.lab.played import Played
from tests.lab.settings import REPOSITORY, Settings
from tests.unit.lab import own

MODEL = "lab/tiny"
FIRST, SECOND = "1" * 40, "2" * 40
TOKEN, WRONG = "hf_tokenOfTheLab4711", "hf_wrongTokenOfTheLab0815"
LARGE = "mtp.safetensors"
SIZE = 60_000_000
# What the library reads at a time is lost with a connection that breaks.
LOST = 11_000_000
PORT = 8085
HOME = "/var/lib/vllm"

pytestmark = pytest.mark.lab


class Served:
    """The hub, and the node that downloads from it."""

    def __init__(self, played: Played, folder: Path) -> None:
        self.played, self.folder = played, folder
        self.shell = played.shell
        self.control, self.log = folder / "control.json", folder / "log"

    def serve(self, settings: Settings) -> None:
        first = self.folder / "models" / "first"
        checkpoint.write(first)
        header = json.dumps({"t": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}).encode()
        (first / LARGE).write_bytes(struct.pack("<Q", len(header)) + header + random.Random(4711).randbytes(SIZE))
        second = self.folder / "models" / "second"
        shutil.copytree(first, second)
        config = json.loads((second / "config.json").read_text())
        (second / "config.json").write_text(json.dumps({**config, "second": True}))
        registry.make_certificates(self.folder, settings.gateway)
        options = {
            "folder": str(self.folder / "models"), "models": {MODEL: {FIRST: "first", SECOND: "second"}}, "branches": {MODEL: {"main": SECOND}},
            "token": TOKEN, "address": settings.gateway, "port": PORT, "log": str(self.log), "control": str(self.control),
            "certificate": str(self.folder / "server.crt"), "key": str(self.folder / "server.key")}
        path = self.folder / "options.json"
        path.write_text(json.dumps(options))
        processes.start("hub", [sys.executable, "-m", "tests.lab.hub", str(path)], settings.state / "logs" / "hub.log", env={
            "PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"})
        self.shell("mkdir -p /etc/pki-lab && cat > /etc/pki-lab/hub.pem", (self.folder / "ca.crt").read_bytes())
        self.url = "https://%s:%d" % (settings.gateway, PORT)

    def words(self, **more: Any) -> dict[str, Any]:
        return {
            "weights_model": MODEL, "vllm_revision": FIRST, "vllm_hf_token": TOKEN, "weights_ca_file": "/etc/pki-lab/hub.pem",
            "weights_environment": {"HF_ENDPOINT": self.url}, **more}

    def wish(self, **words: Any) -> None:
        self.control.write_text(json.dumps(words))

    def sent(self, name: str = "") -> int:
        """Bytes of files (of that name) that the hub has sent since it was last forgotten."""
        return sum(one["bytes"] for one in self.requests() if not name or one.get("name") == name)

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def forget(self) -> None:
        self.log.unlink(missing_ok=True)
        self.wish()

    def brings(self, *options: str, **more: Any) -> tuple[bool, str]:
        result, said = self.played.play("weights", *options, **self.words(**more))
        assert result["rc"] == 0, said[-3000:]
        assert TOKEN not in said
        return result["changed"], said

    def fails(self, kind: str, **more: Any) -> str:
        said = self.played.fails("weights", kind, **self.words(**more))
        assert TOKEN not in said and WRONG not in said
        return said

    def until(self, what: Callable[[], bool], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.3)


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = own.asked(request, "boots a node and pulls an image for minutes")
    with own.nodes(settings, image=True):
        try:
            served = Served(Played(settings, tmp_path_factory.mktemp("played")), tmp_path_factory.mktemp("hub"))
            served.serve(settings)
            result, said = served.played.play("image")
            assert result["rc"] == 0, said[-3000:]
            yield served
        finally:
            processes.end("hub")


@pytest.fixture(autouse=True)
def _forget(node: Served) -> Iterator[None]:
    node.forget()
    yield


def test_what_cannot_be_downloaded_is_told_before_the_first_byte(node: Served) -> None:
    assert "the hub refused the token" in node.fails("credentials", vllm_hf_token=WRONG)
    assert "give vllm_hf_token" in node.fails("credentials", vllm_hf_token="")
    assert "has no revision " + "f" * 40 in node.fails("revision", vllm_revision="f" * 40)
    assert "it is the commit %s now" % SECOND in node.fails("revision", vllm_revision="main")
    assert "the hub has no such model" in node.fails("absent", weights_model="lab/other")
    assert "give weights_ca_file" in node.fails("tls", weights_ca_file="")
    assert "there is no file /etc/nowhere.pem" in node.fails("words", weights_ca_file="/etc/nowhere.pem")
    assert "cannot be reached" in node.fails("unreachable", weights_environment={"HF_ENDPOINT": node.url.replace(str(PORT), "9")})
    node.shell("mkdir -p /srv/small && mount -t tmpfs -o size=50m tmpfs /srv/small")
    try:
        assert "0.1 GB − 0.0 GB already there" in node.fails("disk_full", vllm_weights_path="/srv/small")
    finally:
        node.shell("umount /srv/small")
    changed, said = node.brings("--check", "--diff")
    assert changed and "would download %s %s" % (MODEL, FIRST) in said
    assert node.sent() == 0 and node.shell("ls -A %s" % HOME) == ""
    assert node.played.search(TOKEN, WRONG) == [""]


def test_a_killed_download_goes_on_from_its_last_byte(node: Served) -> None:
    node.wish(slow=0.03)  # 2 MB/s
    begun = node.played.start("weights", **node.words())
    path = f"{HOME}/hub/models--lab--tiny/blobs/*.inferops-vllm.incomplete"
    node.until(lambda: int(node.shell(f"cat {path} 2>/dev/null | wc -c")) > 20_000_000)
    # While it runs: the token stands in one file of mode 0600, in a folder of mode 0700, and in no command line.
    assert node.shell("find /run/inferops-vllm -path '*auth-*' -name env -printf '%m %u\n'") == "600 root"
    assert node.shell("find /run/inferops-vllm -name 'auth-*' -printf '%m\n'") == "700"
    assert TOKEN in node.shell("cat /run/inferops-vllm/auth-*/env")
    assert node.shell("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c huggingface_hub") != "0"
    assert node.shell("cat /proc/[0-9]*/cmdline 2>/dev/null | grep -c 'hf_[t]okenOfTheLab' || true") == "0"
    node.shell("docker kill inferops-vllm-weights")
    said = begun.communicate()[0]
    assert begun.returncode == 2 and "the download failed" in said and TOKEN not in said, said[-3000:]
    there = int(node.shell(f"cat {path} | wc -c"))
    assert 20_000_000 < there < SIZE
    assert node.shell("find /run/inferops-vllm -name env") == ""

    # The controller dies; the node goes on, and the next run finds that work.
    node.wish(slow=0.01)
    second = node.played.start("weights", **node.words())
    node.until(lambda: int(node.shell(f"cat {path} 2>/dev/null | wc -c")) > there + 10_000_000)
    os.killpg(second.pid, signal.SIGKILL)
    second.communicate()
    assert node.shell("docker ps -q --filter name=inferops-vllm-weights") != ""
    changed, _said = node.brings()
    assert changed
    asked = [one for one in node.requests() if one.get("name") == LARGE and one["method"] == "GET"]
    assert [one["begin"] for one in asked] == [0, there], asked
    assert SIZE <= node.sent(LARGE) < SIZE + LOST
    assert node.shell(f"ls {HOME}/hub/models--lab--tiny/blobs | grep -c incomplete || true") == "0"


def test_whole_weights_need_no_hub(node: Served) -> None:
    assert not node.brings()[0] and not node.brings("--check")[0]
    assert node.requests() == []
    # The service finds them by the model's id, without network.
    found = node.shell(
        f"docker run --rm --network none -e HF_HOME={HOME} -e HF_HUB_OFFLINE=1 -v {HOME}:{HOME} --entrypoint python3 $(docker images -q | head -n 1) "
        f"-c 'from huggingface_hub import snapshot_download; print(snapshot_download(\"{MODEL}\"))'")
    assert found.split("\n")[-1] == f"{HOME}/hub/models--lab--tiny/snapshots/{FIRST}"


def test_a_damaged_file_is_found_and_fetched_again_alone(node: Served) -> None:
    shard = f"{HOME}/hub/models--lab--tiny/snapshots/{FIRST}/model-00001-of-00001.safetensors"
    size = int(node.shell(f"stat -L -c %s {shard}"))
    changed, said = node.brings(weights_checksums="write")
    assert changed and "wrote sums of 7 files" in said and not node.brings(weights_checksums="write")[0]
    node.shell(f"cd $(dirname {shard}) && sha256sum -c --quiet .inferops-vllm.sha256")
    changed, said = node.brings(weights_checksums="verify")
    assert not changed and '"verified": 7' in said
    node.shell(f"printf xyz | dd of=$(readlink -f {shard}) bs=1 seek=400000 conv=notrunc status=none")
    assert "has another sum" in node.fails("sums", weights_checksums="verify", weights_source="present")
    assert node.sent() == 0
    changed, said = node.brings(weights_checksums="verify")
    assert changed and "took away model-00001-of-00001.safetensors has another sum" in said
    assert node.sent() == size == node.sent("model-00001-of-00001.safetensors")
    assert not node.brings(weights_checksums="verify")[0]

    # A file that was cut needs no sums to be found.
    node.forget()
    node.shell(f"truncate -s 300000 $(readlink -f {shard})")
    assert "model-00001-of-00001.safetensors is cut" in node.fails("incomplete", weights_source="present")
    assert node.brings()[0] and node.sent() == size


def test_another_revision_fetches_what_differs(node: Served) -> None:
    changed, said = node.brings(vllm_revision=SECOND)
    assert changed and f"snapshots/{SECOND}" in said
    assert '"second": true' in node.shell(f"cat {HOME}/hub/models--lab--tiny/snapshots/{SECOND}/config.json")
    assert '"second"' not in node.shell(f"cat {HOME}/hub/models--lab--tiny/snapshots/{FIRST}/config.json")
    assert 0 < node.sent() < 10_000
    assert not node.brings()[0]


def test_a_connection_that_breaks_and_a_mirror_that_lies(node: Served) -> None:
    flat = {"weights_model": "/srv/flat", "weights_repository": MODEL}
    node.wish(damage=LARGE)
    assert "came with another SHA-256" in node.fails("sums", **flat)
    assert node.shell("find /srv/flat -name '*incomplete' -o -name mtp.safetensors") == ""
    node.forget()
    node.wish(cut=LARGE, after=25_000_000)
    assert node.brings(**flat)[0]
    asked = [one for one in node.requests() if one.get("name") == LARGE and one["method"] == "GET"]
    assert len(asked) == 3 and SIZE <= sum(one["bytes"] for one in asked) < SIZE + 2 * LOST, asked
    node.forget()
    assert not node.brings(**flat)[0] and node.requests() == []
    # A server that begins from the start although it was asked to go on does no harm.
    node.shell("rm -rf /srv/flat")
    node.wish(cut=LARGE, after=25_000_000)
    begun = node.played.start("weights", **node.words(**flat))
    node.until(lambda: node.sent(LARGE) >= 25_000_000)
    node.wish(deaf=True)
    said = begun.communicate()[0]
    assert begun.returncode == 0, said[-3000:]
    assert node.shell("sha256sum < /srv/flat/mtp.safetensors").split()[0] == hub.look(node.folder / "models" / "first" / LARGE).sha256


def test_the_token_is_nowhere(node: Served) -> None:
    assert node.played.search(TOKEN, WRONG) == [""]
    # The search itself finds what is there.
    node.shell("cat > /root/planted", f"xx{TOKEN}".encode())
    assert node.played.search(TOKEN) == ["/root/planted"]
