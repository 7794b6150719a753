# SPDX-License-Identifier: GPL-3.0-or-later
"""A node has what its rank starts from only when the roles that bring it would change nothing."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.inferops.vllm.plugins.module_utils.deploy import in_place
from ansible_collections.inferops.vllm.plugins.module_utils.images import ensure as images
from ansible_collections.inferops.vllm.plugins.module_utils.images.docker import Docker
from ansible_collections.inferops.vllm.plugins.module_utils.jobs import quiet
from ansible_collections.inferops.vllm.plugins.module_utils.weights import ensure as weights
from tests.unit.images import fakes
from tests.unit.weights.test_weights import NAMES, model

REGISTRY, _slash, NAME = (fakes.NAME + "@" + fakes.DIGEST).partition("/")


def test_an_image_is_there_once_it_was_brought_and_recorded(tmp_path: Path) -> None:
    paths, socket = images.Paths(str(tmp_path / "images.json"), str(tmp_path), str(tmp_path)), str(tmp_path / "sock")
    assert in_place.image(NAME, REGISTRY, "docker", paths, socket) == "", "no engine"
    with fakes.daemon(tmp_path / "sock", str(tmp_path)) as daemon:
        assert in_place.image(NAME, REGISTRY, "docker", paths, socket) == "", "no image"
        whole = fakes.NAME + "@" + fakes.DIGEST
        daemon.images[fakes.IDENTITY] = fakes.document(names=(whole,))
        assert in_place.image(NAME, REGISTRY, "docker", paths, socket) == "", "not recorded, so a later clean-up would not know it"
        images.run(images.check(images.Wanted(NAME, registry=REGISTRY)), Docker(socket), paths, quiet, False)
        assert in_place.image(NAME, REGISTRY, "docker", paths, socket) == whole
        assert in_place.image(fakes.NAME + "@" + fakes.OTHER, "", "docker", paths, socket) == ""
        assert in_place.image("no image at all", "", "docker", paths, socket) == ""
        assert not any(call.startswith("POST /images/create") for call in daemon.calls)


def test_weights_are_there_while_they_are_whole_and_marked(tmp_path: Path) -> None:
    folder = str(model(tmp_path / "m"))
    assert not in_place.has_weights(folder, str(tmp_path), ""), "never looked at"
    assert weights.run(weights.check(weights.Wanted(folder, str(tmp_path))), quiet, False)["changed"]
    assert in_place.has_weights(folder, str(tmp_path), "")
    (tmp_path / "m" / NAMES[1]).unlink()
    assert not in_place.has_weights(folder, str(tmp_path), "")
    assert not in_place.has_weights("no/model", str(tmp_path), "") and not in_place.has_weights("?", "relative", "")
