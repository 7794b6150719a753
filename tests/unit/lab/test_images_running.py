# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles image and weights on a real node, against the real registry, with every fault that a deployment must survive.

Asked for with `pytest -m lab tests/unit/lab/test_images_running.py` (root; two to three minutes once root file system
and image are in the cache). Does not touch a lab that is up already.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from tests.lab import registry
from tests.lab.played import Played
from tests.unit.lab import own

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WRONG = "wrong-Pw-7d1c2f"

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    settings = own.asked(request, "boots a node and pulls an image for minutes")
    with own.nodes(settings, image=True):
        yield Played(settings, tmp_path_factory.mktemp("images"))


def test_no_fault_of_a_registry_leaves_more_than_a_sentence(node: Played) -> None:
    node.forget()
    said = node.fails("image", "credentials", wrong_password=WRONG)
    assert WRONG not in said
    name = f"{node.settings.registry}/vllm/vllm-openai"
    assert "has no digest" in node.fails("image", "absent", vllm_image=f"{name}@sha256:{'ab' * 32}")
    assert f"it is {name}@sha256:" in node.fails("image", "tag", vllm_image=f"{name}:kimi-k3")
    registry.stop()
    try:
        assert "cannot be reached" in node.fails("image", "unreachable")
    finally:
        registry.start(node.settings)
    assert node.shell("docker images -q") == ""
    assert node.search(WRONG, base64.b64encode(f"lab:{WRONG}".encode()).decode()) == [""]


def test_a_small_disk_is_told_before_and_a_full_one_after(node: Played) -> None:
    node.forget()
    config = '{"exec-opts": ["native.cgroupdriver=cgroupfs"], "storage-driver": "overlay2", "data-root": "/mnt/small"}'
    node.shell(
        "systemctl stop docker.socket docker && mkdir -p /mnt/small && mount -t tmpfs -o size=300m tmpfs /mnt/small && "
        "cp /etc/docker/daemon.json /root/daemon.json && cat > /etc/docker/daemon.json && systemctl start docker", config.encode())
    certificate = f"/etc/docker/certs.d/{node.settings.registry}"
    try:
        assert "of layers to pull" in node.fails("image", "disk_full")
        # Docker trusts any *.crt, our look before the pull only ours: without it the pull runs into the end of the disk.
        node.shell(f"mv {certificate}/ca.crt {certificate}/other.crt")
        assert "the disk is full while the image is unpacked" in node.fails("image", "disk_full", vllm_registry_ca_file="")
    finally:
        node.shell(
            f"mv -n {certificate}/other.crt {certificate}/ca.crt; systemctl stop docker.socket docker; umount /mnt/small; "
            "cp /root/daemon.json /etc/docker/daemon.json; systemctl start docker")


def test_it_is_pulled_once_and_the_password_is_nowhere(node: Played) -> None:
    node.forget()
    result, said = node.play("image", "--check", "--diff")
    assert result["rc"] == 0 and "would pull" in said and node.shell("docker images -q") == ""
    result, said = node.play("image", "--diff")
    assert result["rc"] == 0 and "pulled " in said, said[-3000:]
    password = registry.password_file(node.settings).read_text(encoding="ascii")
    assert password not in said
    registry.stop()
    try:
        result, said = node.play("image")
        assert result["rc"] == 0 and not result["changed"], said[-3000:]
    finally:
        registry.start(node.settings)
    assert node.search(password, base64.b64encode(f"lab:{password}".encode()).decode()) == [""]
    # The search itself finds what is there.
    node.shell("cat > /root/planted", f"xx{password}".encode())
    assert node.search(password) == ["/root/planted"]


def test_an_archive_needs_no_network(node: Played) -> None:
    node.play("image")
    identity = node.shell("docker images -q --no-trunc | head -n 1")
    node.shell(f"mkdir -p /srv && docker save {identity} -o /srv/image.tar")
    node.forget()
    said = node.fails("image", "digest", vllm_image_archive="/srv/image.tar")
    assert identity in said
    registry.stop()
    try:
        result, said = node.play("image", vllm_image_archive="/srv/image.tar", image_id=identity)
        assert result["rc"] == 0 and result["changed"], said[-3000:]
        result, said = node.play("image", vllm_image_archive="/srv/image.tar", image_id=identity)
        assert result["rc"] == 0 and not result["changed"]
    finally:
        registry.start(node.settings)
        node.shell("rm /srv/image.tar")


def test_weights_that_are_half_there_are_named_and_then_completed(node: Played) -> None:
    node.play("image")
    node.shell(
        "rm -rf /srv/mirror /srv/k3 && c=$(docker create $(docker images -q | head -n 1)) && docker cp $c:/models-tiny /srv/mirror && docker rm $c && "
        "cp -r /srv/mirror /srv/k3 && truncate -s 1000 /srv/k3/*.safetensors")
    assert "model-00001-of-00001.safetensors is cut" in node.fails("weights", "incomplete", weights_model="/srv/k3")
    result, said = node.play("weights", weights_model="/srv/k3", weights_from="/srv/mirror", weights_checksums="write")
    assert result["rc"] == 0 and result["changed"], said[-3000:]
    result, said = node.play("weights", weights_model="/srv/k3", weights_from="/srv/mirror", weights_checksums="write")
    assert result["rc"] == 0 and not result["changed"], said[-3000:]
    node.shell("cd /srv/k3 && sha256sum -c .inferops-vllm.sha256")
    result, said = node.play("weights", weights_model="moonshotai/Kimi-K3", weights_from="/srv/mirror", vllm_revision=COMMIT)
    assert result["rc"] == 0 and result["changed"], said[-3000:]
    assert node.shell("cat /var/lib/vllm/hub/models--moonshotai--Kimi-K3/refs/main") == COMMIT
    node.shell("mount -t tmpfs -o size=200k tmpfs /srv/k3")
    try:
        assert "the weights do not fit" in node.fails("weights", "disk_full", weights_model="/srv/k3", weights_from="/srv/mirror")
    finally:
        node.shell("umount /srv/k3")
