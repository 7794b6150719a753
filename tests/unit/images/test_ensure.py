# SPDX-License-Identifier: GPL-3.0-or-later
"""Images are found, brought, verified and remembered, and every trouble has its sentence."""

from __future__ import annotations

import http.client
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.images import ensure
from ansible_collections.inferops.vllm.plugins.module_utils.images import podman as podman_module
from ansible_collections.inferops.vllm.plugins.module_utils.images.archive import Archive
from ansible_collections.inferops.vllm.plugins.module_utils.images.docker import Docker
from ansible_collections.inferops.vllm.plugins.module_utils.images.engine import EngineProblem
from ansible_collections.inferops.vllm.plugins.module_utils.images.ensure import Paths, Wanted
from ansible_collections.inferops.vllm.plugins.module_utils.images.podman import Podman
from ansible_collections.inferops.vllm.plugins.module_utils.images.reference import parse
from ansible_collections.inferops.vllm.plugins.module_utils.images.registry import Content, Registry, RegistryProblem
from ansible_collections.inferops.vllm.plugins.module_utils.images.trouble import ImageProblem
from ansible_collections.inferops.vllm.plugins.module_utils.jobs import quiet
from tests.unit.images import fakes

PASSWORD = "pw-Zx81-quartz"
IMAGE = fakes.NAME + "@" + fakes.DIGEST
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"


class Node:
    """A node with a fake daemon."""

    def __init__(self, folder: Path, daemon: fakes.Daemon) -> None:
        self.folder, self.daemon = folder, daemon
        self.paths = Paths(str(folder / "lib/images.json"), str(folder / "docker-certs"), str(folder / "podman-certs"))
        self.told: list[tuple[str, int, int]] = []

    def run(self, wanted: Wanted, dry: bool = False, quick: bool = False) -> dict[str, Any]:
        engine = Docker(str(self.folder / "sock"))
        return ensure.run(ensure.check(wanted), engine, self.paths, lambda *words: self.told.append(words), dry, quick)

    def problem(self, wanted: Wanted, dry: bool = False) -> ImageProblem:
        with pytest.raises(ImageProblem) as caught:
            self.run(wanted, dry)
        text = str(caught.value)
        assert PASSWORD not in text and "\n" not in text and len(text) < 1500
        return caught.value

    def offer(self, name: str = IMAGE, **words: Any) -> None:
        self.daemon.remote[name] = {"digest": name.partition("@")[2], "document": fakes.document(names=(name,), **words)}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    def unknown(*_args: Any) -> Content:
        raise RegistryProblem("not asked in this test")

    monkeypatch.setattr(Registry, "content", unknown)
    with fakes.daemon(tmp_path / "sock", str(tmp_path)) as daemon:
        yield Node(tmp_path, daemon)


WANTED = Wanted(IMAGE, user="puller", password=PASSWORD, cuda=13, vllm="0.27.1")


def test_it_is_pulled_once_and_then_costs_one_question(node: Node) -> None:
    node.offer()
    made = node.run(WANTED)
    assert made["changed"] and made["reference"] == IMAGE and made["vllm_version"] == "0.27.1" and made["cuda"] == "13.0.2"
    assert node.daemon.auth[-1] == {"username": "puller", "password": PASSWORD, "serveraddress": "registry.example.com:5443"}
    assert ("image unpacked: layer 1 of 1", 100, 100) in node.told
    assert node.daemon.images[fakes.IDENTITY]["RepoTags"] == ["inferops-vllm/kept:" + fakes.IDENTITY[7:27]]
    node.daemon.calls.clear()
    again = node.run(WANTED)
    assert not again["changed"] and again["reference"] == IMAGE
    assert node.daemon.calls == ["GET /images/%s/json" % IMAGE]
    assert PASSWORD not in Path(node.paths.record).read_text()


def test_a_quick_run_only_says_that_it_would_be_long(node: Node) -> None:
    node.offer()
    assert node.run(WANTED, quick=True) == {"long": True}
    assert not node.daemon.images and not Path(node.paths.record).exists()
    node.run(WANTED)
    assert "long" not in node.run(WANTED, quick=True)


def test_check_mode_tells_and_touches_nothing(node: Node) -> None:
    node.offer()
    told = node.run(WANTED._replace(authority=CERTIFICATE), dry=True)
    assert told["changed"] and not told["present"]
    assert told["steps"] == ["would trust the authority of registry.example.com:5443", "would pull " + IMAGE]
    assert not node.daemon.images and not Path(node.paths.record).exists() and not Path(node.paths.docker_certs).exists()
    node.run(WANTED)
    assert not node.run(WANTED, dry=True)["changed"]


def test_check_mode_on_a_node_without_an_engine(tmp_path: Path) -> None:
    engine = Docker(str(tmp_path / "nothing"))
    told = ensure.run(ensure.check(WANTED), engine, Paths(str(tmp_path / "r")), quiet, dry=True)
    assert told["changed"] and told["steps"] == ["would pull " + IMAGE] and "no image is here" in told["notes"][0]
    with pytest.raises(ImageProblem, match="docker does not answer on this node") as caught:
        ensure.run(ensure.check(WANTED), engine, Paths(str(tmp_path / "r")), quiet, dry=False)
    assert caught.value.kind == "daemon_down"


@pytest.mark.parametrize(("said", "kind", "told"), [
    ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "disk_full", "the disk is full while the image is unpacked"),
    ("failed to register layer: Error processing tar file(exit status 1): write /x: no space left on device", "disk_full", "free space there"),
    ("Get \"https://registry.example.com:5443/v2/\": dial tcp 10.0.0.1:5443: connect: connection refused", "unreachable", "cannot be reached"),
    ("Get \"https://r/v2/\": dial tcp: lookup r on 127.0.0.53:53: no such host", "unreachable", "cannot be reached"),
    ("Get \"https://r/v2/\": net/http: request canceled while waiting for connection (Client.Timeout exceeded)", "unreachable", "cannot be reached"),
    ("Get \"https://r/v2/\": net/http: TLS handshake timeout", "unreachable", "cannot be reached"),
    ("Get \"https://r/v2/\": x509: certificate signed by unknown authority", "tls", "vllm_registry_ca_file"),
    ("Get \"https://r/v2/\": http: server gave HTTP response to HTTPS client", "tls", "TLS to the registry"),
    ("unauthorized: authentication required", "credentials", "refused the password of puller"),
    ("Get \"https://r/v2/x\": no basic auth credentials", "credentials", "refused the password of puller"),
    ("pull access denied for x, repository does not exist or may require 'docker login': denied: requested access", "credentials", "refused"),
    ("manifest unknown: manifest unknown", "absent", "has no digest sha256:ddd"),
    ("toomanyrequests: You have reached your pull rate limit", "rate", "limits how much"),
    ("filesystem layer verification failed for digest sha256:1", "corrupt", "damaged"),
    ("no matching manifest for linux/arm64/v8 in the manifest list entries", "platform", "processor"),
    ("something that nobody knows", "", "could not be brought"),
])
def test_each_trouble_of_a_pull_has_its_sentence(node: Node, said: str, kind: str, told: str) -> None:
    node.daemon.pull_error = said + " with " + PASSWORD
    problem = node.problem(WANTED)
    assert problem.kind == kind and told in str(problem), str(problem)
    assert not Path(node.paths.record).exists()


def test_a_digest_that_the_registry_has_not(node: Node) -> None:
    problem = node.problem(WANTED)
    assert problem.kind == "absent" and fakes.DIGEST in str(problem)


def test_a_tag_is_refused_with_the_digest_that_it_is(node: Node) -> None:
    node.daemon.remote[fakes.NAME + ":kimi-k3"] = {"digest": fakes.DIGEST}
    problem = node.problem(WANTED._replace(image=fakes.NAME + ":kimi-k3"))
    assert problem.kind == "tag" and "it is %s now: set vllm_image to that" % IMAGE in str(problem)
    assert node.problem(WANTED._replace(image=fakes.NAME + ":kimi-k3"), dry=True).kind == "tag"
    assert "did not tell" in str(node.problem(WANTED._replace(image=fakes.NAME + ":other")))


def test_a_tag_is_resolved_once_where_that_is_allowed(node: Node) -> None:
    node.daemon.remote[fakes.NAME + ":kimi-k3"] = {"digest": fakes.DIGEST}
    node.offer()
    wanted = WANTED._replace(image=fakes.NAME + ":kimi-k3", digest_required=False)
    assert node.run(wanted)["reference"] == IMAGE
    node.daemon.remote.clear()
    again = node.run(wanted)
    assert not again["changed"] and again["reference"] == IMAGE


def test_what_is_found_under_the_name_must_have_the_digest(node: Node) -> None:
    liar = fakes.document(names=(fakes.NAME + "@" + fakes.OTHER,))
    liar["RepoTags"] = [IMAGE]
    node.daemon.images[fakes.IDENTITY] = liar
    problem = node.problem(WANTED)
    assert problem.kind == "digest" and fakes.OTHER in str(problem)
    node.daemon.images[fakes.IDENTITY] = fakes.document(names=(IMAGE,))
    assert "has the id" in str(node.problem(WANTED._replace(image_id=fakes.OTHER)))


@pytest.mark.parametrize(("inside", "wanted", "kind"), [
    ({"env": ("CUDA_VERSION=12.9.1",)}, {}, "cuda"), ({"vllm": "0.32.0"}, {}, "vllm"), ({"vllm": "0.27.2"}, {}, "vllm"),
])
def test_what_is_inside_must_be_what_the_plan_needs(node: Node, inside: dict[str, Any], wanted: dict[str, Any], kind: str) -> None:
    node.offer(**inside)
    assert node.problem(WANTED._replace(**wanted)).kind == kind
    # The image is there now, and is refused again.
    assert node.problem(WANTED._replace(**wanted)).kind == kind


@pytest.mark.parametrize(("version", "plan"), [("0.27.1", "0.27.1"), ("0.27.1.dev4+gabc", "0.27.1"), ("0.27.1+cu130", "0.27.1"), ("0.32", "0.32.0")])
def test_a_build_of_the_same_release_will_do(node: Node, version: str, plan: str) -> None:
    assert ensure.release(version) == ensure.release(plan)


def test_newer_cuda_will_do_and_none_is_said(node: Node) -> None:
    node.offer(env=("CUDA_VERSION=14.1.0",))
    assert node.run(WANTED)["cuda"] == "14.1.0"
    other = fakes.NAME + "@" + fakes.OTHER
    node.daemon.remote[other] = {"digest": fakes.OTHER, "document": fakes.document("sha256:" + "9" * 64, (other,), env=())}
    assert "does not tell its CUDA version" in node.run(WANTED._replace(image=other))["notes"][0]


def test_without_a_label_the_image_is_asked_for_its_vllm(node: Node) -> None:
    node.offer(vllm="")
    assert node.run(WANTED)["vllm_version"] == "0.27.1"
    assert "POST /containers/create" in node.daemon.calls and node.daemon.calls.count("DELETE /containers/c0ffee") == 1
    node.daemon.calls.clear()
    node.run(WANTED)
    assert "POST /containers/create" not in node.daemon.calls


def test_an_image_that_cannot_be_asked_is_said_not_failed(node: Node) -> None:
    node.offer(vllm="")
    node.daemon.asked_status, node.daemon.asked = 127, "python3: not found"
    notes = node.run(WANTED)["notes"]
    assert "could not be asked for" in notes[0] and "not known" in notes[1]
    assert node.daemon.calls.count("DELETE /containers/c0ffee") == 1


def test_the_image_before_is_remembered_and_kept(node: Node) -> None:
    node.offer()
    assert node.run(WANTED)["previous"] == {}
    second, identity = fakes.NAME + "@" + fakes.OTHER, "sha256:" + "9" * 64
    node.daemon.remote[second] = {"digest": fakes.OTHER, "document": fakes.document(identity, (second,))}
    made = node.run(WANTED._replace(image=second))
    assert made["previous"] == {"reference": IMAGE, "id": fakes.IDENTITY} and fakes.IDENTITY in node.daemon.images
    back = node.run(WANTED)
    assert back["changed"] and back["steps"] == ["recorded it"] and back["previous"]["id"] == identity


def test_old_images_go_only_when_asked_and_not_used(node: Node) -> None:
    names = [fakes.NAME + "@sha256:" + mark * 64 for mark in "abc"]
    ids = ["sha256:" + mark * 64 for mark in "123"]
    for name, identity in zip(names, ids, strict=True):
        node.daemon.remote[name] = {"digest": name.partition("@")[2], "document": fakes.document(identity, (name,))}
        node.run(WANTED._replace(image=name))
    assert set(node.daemon.images) == set(ids)
    last = WANTED._replace(image=names[2], keep=1)
    node.daemon.containers = [ids[0]]
    assert node.run(last, dry=True)["steps"] == ["would remove " + names[0], "would remove " + names[1]]
    made = node.run(last)
    assert made["removed"] == [names[1]] and set(node.daemon.images) == {ids[0], ids[2]}
    assert "a container uses it" in made["notes"][0]
    node.daemon.containers = []
    assert node.run(last)["removed"] == [names[0]] and set(node.daemon.images) == {ids[2]}
    assert not node.run(last)["changed"]


def test_a_disk_that_is_too_small_is_refused_with_the_sum(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "content", lambda *_args: Content(fakes.DIGEST, [10**15, 10**15], ["sha256:" + "1" * 64, "sha256:2"]))
    node.offer()
    problem = node.problem(WANTED)
    assert problem.kind == "disk_full" and "2,000,000.0 GB of layers to pull × 3.5 to unpack them = 7,000,000.0 GB" in str(problem)
    # A layer that another image has unpacked already is not pulled again.
    node.daemon.images["sha256:" + "9" * 64] = fakes.document("sha256:" + "9" * 64)
    assert "1,000,000.0 GB of layers to pull" in str(node.problem(WANTED))
    assert not any(call.startswith("POST /images/create") for call in node.daemon.calls)


def test_the_authority_is_trusted_by_a_file(node: Node) -> None:
    node.offer()
    wanted = WANTED._replace(authority=CERTIFICATE)
    assert node.run(wanted)["changed"]
    path = Path(node.paths.docker_certs, "registry.example.com:5443", "ca.crt")
    assert path.read_text() == CERTIFICATE + "\n"
    assert not node.run(wanted)["changed"]
    path.write_text("other")
    assert node.run(wanted)["steps"] == ["trusted the authority of registry.example.com:5443"]
    assert node.problem(WANTED._replace(authority="no certificate")).kind == "words"


@pytest.mark.parametrize(("wanted", "told"), [
    (Wanted(""), "name the image"),
    (Wanted("x@sha256:12"), "no digest"),
    (Wanted("UPPER/case@" + fakes.DIGEST, registry="r.example.com", user="u", password="p"), "credentials are for r.example.com"),
    (Wanted(IMAGE, registry="other.example.com", user="u", password="p"), "comes from the registry registry.example.com:5443"),
    (Wanted(IMAGE, user="u"), "registry_user is given without registry_password"),
    (Wanted(IMAGE, password="p"), "registry_password is given without registry_user"),
    (Wanted(IMAGE, image_id="latest"), "no image id"),
    (Wanted(IMAGE, registry="https://x"), "no host"),
])
def test_words_that_make_no_sense_are_refused_before_anything(wanted: Wanted, told: str) -> None:
    with pytest.raises(ImageProblem, match=told.replace(".", r"\.")) as caught:
        ensure.check(wanted)
    assert caught.value.kind == "words"


def test_a_registry_is_put_before_a_name_that_has_none() -> None:
    request = ensure.check(Wanted("vllm/vllm-openai@" + fakes.DIGEST, registry="r.example.com", user="u", password="p"))
    assert request.reference is not None and request.reference.by_digest == "r.example.com/vllm/vllm-openai@" + fakes.DIGEST
    assert request.auth is not None and request.auth.registry == "r.example.com"


# -- archives --------------------------------------------------------------------------------------
def test_an_archive_of_docker_save_is_known_by_its_id(node: Node, tmp_path: Path) -> None:
    path = str(fakes.saved(tmp_path / "a.tar"))
    problem = node.problem(WANTED._replace(archive=path))
    assert problem.kind == "digest" and "only the image id " + fakes.IDENTITY in str(problem)
    assert "not " + fakes.OTHER in str(node.problem(WANTED._replace(archive=path, image_id=fakes.OTHER)))
    assert not node.daemon.loaded
    wanted = WANTED._replace(archive=path, image_id=fakes.IDENTITY)
    assert node.run(wanted, dry=True)["steps"] == ["would load " + path]
    made = node.run(wanted)
    assert made["reference"] == fakes.IDENTITY and node.daemon.loaded == [Path(path).read_bytes()]
    node.daemon.calls.clear()
    again = node.run(wanted)
    assert not again["changed"] and again["reference"] == fakes.IDENTITY and len(node.daemon.loaded) == 1


def test_a_layout_proves_the_digest_and_is_given_what_docker_reads(node: Node, tmp_path: Path) -> None:
    path, digest = fakes.layout(tmp_path / "a.tar")
    name = fakes.NAME + "@" + digest
    assert node.problem(WANTED._replace(archive=str(path))).kind == "digest"
    assert node.run(WANTED._replace(image=name, archive=str(path)))["reference"] == fakes.IDENTITY
    (tmp_path / "sent.tar").write_bytes(node.daemon.loaded[0])
    import tarfile

    with tarfile.open(tmp_path / "sent.tar") as tar:
        file = tar.extractfile("manifest.json")
        assert file is not None
        manifest = json.loads(file.read())
        assert manifest[0]["Config"] == "blobs/sha256/" + fakes.IDENTITY[7:]
        assert all(layer in tar.getnames() for layer in manifest[0]["Layers"])


@pytest.mark.parametrize("damage", ["manifest", "config", "layer"])
def test_a_damaged_layout_is_not_loaded(node: Node, tmp_path: Path, damage: str) -> None:
    path, digest = fakes.layout(tmp_path / "a.tar", damage)
    problem = node.problem(WANTED._replace(image=fakes.NAME + "@" + digest, archive=str(path)))
    assert problem.kind == "archive" and not node.daemon.loaded


def test_a_cut_archive_is_not_loaded(node: Node, tmp_path: Path) -> None:
    whole = fakes.saved(tmp_path / "a.tar").read_bytes()
    cut = tmp_path / "cut.tar"
    for length in (0, 100, 512, 700, 1024, 2000, 3000):
        cut.write_bytes(whole[:length])
        assert node.problem(WANTED._replace(archive=str(cut), image_id=fakes.IDENTITY)).kind == "archive", length
    assert node.problem(WANTED._replace(archive=str(tmp_path / "none.tar"), image_id=fakes.IDENTITY)).kind == "archive"
    assert not node.daemon.loaded


def test_a_layout_of_several_processors(node: Node, tmp_path: Path) -> None:
    path, digest = fakes.layout(tmp_path / "a.tar", platforms=("arm64", "amd64"))
    assert node.run(WANTED._replace(image=fakes.NAME + "@" + digest, archive=str(path)))["changed"]
    path, digest = fakes.layout(tmp_path / "b.tar", platforms=("arm64",))
    assert "holds no image for amd64" in str(node.problem(WANTED._replace(image=fakes.NAME + "@" + digest, archive=str(path), image_id=fakes.OTHER)))
    path, digest = fakes.layout(tmp_path / "c.tar", platforms=("amd64", "amd64"))
    assert "holds 2 images" in str(node.problem(WANTED._replace(image="", archive=str(path), image_id=fakes.OTHER)))


def test_a_compressed_archive_is_verified_after_loading(node: Node, tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(fakes.saved(tmp_path / "a.tar").read_bytes()))
    assert "give image_id" in str(node.problem(WANTED._replace(archive=str(path))))
    assert "holds the image " + fakes.IDENTITY in str(node.problem(WANTED._replace(archive=str(path), image_id=fakes.OTHER)))
    assert node.run(WANTED._replace(archive=str(path), image_id=fakes.IDENTITY))["changed"]


def test_an_engine_that_refuses_an_archive(node: Node, tmp_path: Path) -> None:
    path = str(fakes.saved(tmp_path / "a.tar"))
    node.daemon.load_error = "Error processing tar file: no space left on device"
    assert node.problem(WANTED._replace(archive=path, image_id=fakes.IDENTITY)).kind == "disk_full"


# -- podman -------------------------------------------------------------------------------------------
@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fakes.PodmanProgram:
    monkeypatch.setattr(Registry, "content", lambda *_args: Content(fakes.DIGEST, [100], []))
    return fakes.PodmanProgram(tmp_path, fakes.document(names=(IMAGE,)))


def podman_run(program: fakes.PodmanProgram, wanted: Wanted, dry: bool = False) -> dict[str, Any]:
    folder = program.folder
    paths = Paths(str(folder / "lib/images.json"), str(folder / "docker-certs"), str(folder / "podman-certs"))
    return ensure.run(ensure.check(wanted), Podman(str(program.path), str(folder / "run")), paths, quiet, dry)


def test_podman_gets_the_password_by_a_file_that_is_gone_afterwards(podman: fakes.PodmanProgram) -> None:
    made = podman_run(podman, WANTED._replace(authority=CERTIFICATE))
    assert made["changed"] and made["reference"] == IMAGE
    seen = json.loads((podman.folder / "auth-seen").read_text())
    assert seen["mode"] == "0o600" and seen["folder"] == "0o700" and "registry.example.com:5443" in seen["text"]
    assert not list((podman.folder / "run").iterdir())
    assert (podman.folder / "podman-certs/registry.example.com:5443/ca.crt").exists()
    assert PASSWORD not in json.dumps(podman.calls())
    assert not podman_run(podman, WANTED)["changed"]


def test_podmans_file_is_gone_also_after_a_failure(podman: fakes.PodmanProgram) -> None:
    podman.set(fakes.document(names=(IMAGE,)), pull="Error: unable to retrieve auth token: invalid username/password: unauthorized: " + PASSWORD)
    with pytest.raises(ImageProblem, match="refused the password of puller") as caught:
        podman_run(podman, WANTED)
    assert PASSWORD not in str(caught.value) and not list((podman.folder / "run").iterdir())


@pytest.mark.parametrize(("said", "kind"), [
    ("Error: initializing source docker://r/x@sha256:1: reading manifest sha256:1 in r/x: manifest unknown", "absent"),
    ("Error: initializing source docker://r/x: pinging container registry r: Get \"https://r/v2/\": tls: failed to verify certificate: x509: x", "tls"),
    ("Error: short-name resolution enforced but cannot prompt without a TTY", "short_name"),
    ("Error: writing blob: storing blob to file: write /var/tmp/x: no space left on device", "disk_full"),
])
def test_troubles_as_podman_tells_them(podman: fakes.PodmanProgram, said: str, kind: str) -> None:
    podman.set(fakes.document(names=(IMAGE,)), pull=said)
    with pytest.raises(ImageProblem) as caught:
        podman_run(podman, WANTED)
    assert caught.value.kind == kind


def test_podman_loads_and_is_missing(podman: fakes.PodmanProgram, tmp_path: Path) -> None:
    path, digest = fakes.layout(tmp_path / "a.tar")
    made = podman_run(podman, WANTED._replace(image=fakes.NAME + "@" + digest, archive=str(path)))
    assert made["reference"] == fakes.IDENTITY and ["load", "--quiet", "--input", str(path)] in podman.calls()
    podman.path.unlink()
    with pytest.raises(ImageProblem, match="podman is not installed"):
        podman_run(podman, WANTED)


def test_a_layout_with_a_digest_for_a_name_is_given_to_podman_in_dockers_form(podman: fakes.PodmanProgram, tmp_path: Path) -> None:
    import tarfile

    podman.set(fakes.document(names=(IMAGE,)), named=True)
    path, digest = fakes.layout(tmp_path / "a.tar")
    assert podman_run(podman, WANTED._replace(image=fakes.NAME + "@" + digest, archive=str(path)))["reference"] == fakes.IDENTITY
    with tarfile.open(tmp_path / "fed.tar") as tar:
        assert tar.getnames()[-1] == "manifest.json"


def test_warnings_of_podmans_log_are_no_complaint(podman: fakes.PodmanProgram) -> None:
    podman.set(fakes.document(names=(IMAGE,)), pull='time="2026-11-29T23:59:23Z" level=warning msg="Using cgroups-v1"\nError: connection refused')
    with pytest.raises(ImageProblem, match="cannot be reached") as caught:
        podman_run(podman, WANTED)
    assert "cgroups" not in str(caught.value)


def test_what_a_killed_run_left_is_swept(podman: fakes.PodmanProgram) -> None:
    old = podman.folder / "run" / "auth-999999999-x"
    old.mkdir(parents=True)
    (old / "auth.json").write_text("secret")
    podman_run(podman, WANTED)
    assert not old.exists()


@pytest.mark.parametrize(("trap", "seconds"), [("", 8.0), ("trap '' TERM; ", 9.0)])
def test_a_program_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str, seconds: float) -> None:
    program = tmp_path / "podman"
    program.write_text("#!/bin/sh\n%swhile :; do sleep 0.2; done\n" % trap)
    program.chmod(0o755)
    monkeypatch.setattr(podman_module, "PULL_SECONDS", 0.1)
    monkeypatch.setattr(podman_module, "END_SECONDS", 0.5)
    begun = time.monotonic()
    with pytest.raises(EngineProblem, match="did not end"):
        Podman(str(program), str(tmp_path / "run")).load(Archive(str(tmp_path / "a.tar"), "", "", ()), quiet)
    assert time.monotonic() - begun < seconds


@pytest.mark.parametrize("answer", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n{}"])
def test_a_registry_that_speaks_no_http_is_no_more_than_silent(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    asked = Registry("registry.invalid", None)

    def opened(*_args: Any, **_words: Any) -> Any:
        connection: Any = SimpleNamespace(makefile=lambda _mode: io.BytesIO(answer))
        made = http.client.HTTPResponse(connection)
        made.begin()
        return made

    monkeypatch.setattr(asked, "_opener", SimpleNamespace(open=opened))
    with pytest.raises(RegistryProblem):
        asked.content(parse("registry.invalid/a@" + fakes.DIGEST), "amd64")
