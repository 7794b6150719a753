# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks image.* and the table of known troubles."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.checks.troubles import TROUBLES, Trouble, matching
from ansible_collections.inferops.vllm.plugins.module_utils.plan.profiles import HARDWARE, STRATEGIES

from .healthy import DIGEST, IMAGE, MISSING, b300_context, healthy_b300, put
from .run import one, over, status

IDS = ("image.digest", "image.cuda", "image.vllm", "image.known_trouble")
SHA = DIGEST.partition("@")[2]
DECLARED = b300_context()._replace(image=DIGEST)


def changed(**values: Any) -> Dict[str, Any]:
    facts = healthy_b300()
    for path, value in values.items():
        put(facts, "container.image." + path, value)
    return facts


def absent() -> Dict[str, Any]:
    return put(healthy_b300(), "container.image", {"name": IMAGE, "present": False, "digests": []})


@pytest.mark.parametrize("id", IDS)
def test_a_healthy_node_passes(id: str) -> None:
    found = one(id, healthy_b300())
    assert found["status"] == "pass" and not found.get("assumed")


@pytest.mark.parametrize("id", IDS[:3])
@pytest.mark.parametrize("image", [MISSING, None, [], "x", {}])
def test_without_facts_nothing_is_known(id: str, image: Any) -> None:
    assert status(id, put(healthy_b300(), "container.image", image)) == "unknown"


@pytest.mark.parametrize("id", IDS[:3])
def test_an_engine_that_did_not_answer(id: str) -> None:
    facts = put(put(healthy_b300(), "container.image", None), "container.unknown.image", "docker's daemon is not running")
    found = one(id, facts)
    assert (found["status"], found["observed"]) == ("unknown", "docker's daemon is not running")


@pytest.mark.parametrize("id", IDS[:3])
def test_a_plan_without_an_image_skips(id: str) -> None:
    assert status(id, healthy_b300(), b300_context()._replace(image="", hardware="cpu")) == "skip"


# -- digest --------------------------------------------------------------------------------------
def test_an_image_that_is_not_pulled_yet_blocks_nothing() -> None:
    found = one("image.digest", absent())
    assert (found["status"], found["severity"]) == ("fail", "warn")
    assert "inferops.vllm.provision" in found["fix"]


def test_the_declared_digest() -> None:
    assert status("image.digest", healthy_b300(), DECLARED) == "pass"
    other = changed(digests=["vllm/vllm-openai@sha256:" + "4d" * 32])
    found = one("image.digest", other, DECLARED)
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert found["required"] == SHA
    assert status("image.digest", other) == "pass"


def test_an_image_without_a_registry_digest() -> None:
    assert status("image.digest", changed(digests=[])) == "warn"
    found = one("image.digest", changed(digests=[]), DECLARED)
    assert (found["status"], found["severity"]) == ("unknown", "block")
    assert status("image.digest", changed(digests=[], id=SHA), DECLARED) == "pass"


# -- CUDA ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("cuda, expected", [
    ("13.0.2", "pass"), ("13.1", "pass"), ("12.9.1", "fail"), (None, "unknown"), ("latest", "unknown"),
])
def test_cuda_in_the_image(cuda: Any, expected: str) -> None:
    found = one("image.cuda", changed(cuda=cuda))
    assert (found["status"], found["severity"]) == (expected, "block")


def test_cuda_of_an_image_that_is_not_here_is_assumed_for_the_profiles_own_only() -> None:
    found = one("image.cuda", absent())
    assert found["status"] == "pass" and found["assumed"] is True
    assert status("image.cuda", absent(), b300_context()._replace(image="example.com/own:1")) == "skip"


def test_images_without_cuda_skip() -> None:
    assert status("image.cuda", changed(cuda="12.9"), b300_context()._replace(image_cuda_major=0)) == "skip"


# -- vLLM ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("version, expected", [
    ("0.27.1", "pass"), ("0.32.0", "pass"), ("v0.27.1+cu130", "pass"), ("0.27.0", "fail"), ("0.9.2", "fail"),
])
def test_vllm_in_the_image(version: str, expected: str) -> None:
    found = one("image.vllm", changed(vllm=version))
    assert (found["status"], found["severity"]) == (expected, "block")


def test_a_vllm_that_is_not_known_blocks_nothing() -> None:
    found = one("image.vllm", changed(vllm=None))
    assert found["status"] == "pass" and found["assumed"] is True
    own = b300_context()._replace(image="example.com/own:1")
    for version in (None, "0.1.dev1234"):
        found = one("image.vllm", changed(vllm=version), own)
        assert (found["status"], found["severity"]) == ("unknown", "info")
    assert status("image.vllm", absent()) == "skip"


# -- known troubles --------------------------------------------------------------------------------
@pytest.mark.parametrize("nccl, expected", [
    ("2.30.3", "pass"), ("2.30.4", "warn"), ("2.30.7", "warn"), ("2.30.8", "pass"), ("2.28.9", "pass"),
])
def test_nccl_versions_that_can_hang(nccl: str, expected: str) -> None:
    found = over("image.known_trouble", {"node1": changed(nccl=nccl)}, b300_context())
    assert list(found) == ["*"]
    assert (found["*"]["status"], found["*"]["severity"]) == (expected, "warn")
    if expected == "warn":
        assert "NCCL 2.30.4 to 2.30.7" in found["*"]["observed"]
        assert "https://github.com/NVIDIA/nccl/issues/2167" in found["*"]["why"]
        assert "NCCL_NVLS_ENABLE=0" in found["*"]["fix"]


def test_the_nodes_that_have_it_are_named() -> None:
    found = over("image.known_trouble", {"node1": healthy_b300(), "node2": changed(nccl="2.30.7")}, b300_context(("node1", "node2")))
    assert found["*"]["observed"].startswith("node2: ")


def test_hopper_does_not_have_the_trouble_of_blackwell() -> None:
    context = b300_context()._replace(hardware="h100", strategy="multi_node_tp")
    assert over("image.known_trouble", {"node1": changed(nccl="2.30.7")}, context)["*"]["status"] == "pass"


def test_an_image_that_does_not_say_its_nccl() -> None:
    found = over("image.known_trouble", {"node1": changed(nccl=None)}, b300_context())["*"]
    assert found["status"] == "warn" and found["assumed"] is True
    own = b300_context()._replace(image="example.com/own:1")
    found = over("image.known_trouble", {"node1": changed(nccl=None)}, own)["*"]
    assert (found["status"], found["severity"]) == ("unknown", "info")


def test_troubles_of_a_plan() -> None:
    context = b300_context(("node1", "node2"))._replace(hardware="h200", strategy="multi_node_tp_pp")
    found = over("image.known_trouble", {"node1": healthy_b300()}, context)["*"]
    assert found["status"] == "warn" and "recipes/issues/698" in found["why"]
    assert found["observed"].endswith("; and 1 more")
    assert "cp_world_size" in found["why"]


@pytest.mark.parametrize("hardware", ["", "cpu"])
def test_without_known_hardware_no_trouble_is_on_record(hardware: str) -> None:
    assert over("image.known_trouble", {"node1": healthy_b300()}, b300_context()._replace(hardware=hardware))["*"]["status"] == "skip"


def test_only_a_proven_trouble_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.inferops.vllm.plugins.module_utils.checks import troubles

    proven = TROUBLES[0]._replace(id="proven", proven=True)
    monkeypatch.setattr(troubles, "TROUBLES", (*TROUBLES, proven))
    found = over("image.known_trouble", {"node1": changed(nccl="2.30.7")}, b300_context())["*"]
    assert (found["status"], found["severity"]) == ("fail", "block")


@pytest.mark.parametrize("trouble", TROUBLES, ids=[t.id for t in TROUBLES])
def test_every_trouble_is_sourced_and_can_match(trouble: Trouble) -> None:
    assert trouble.source.startswith("https://") and len(trouble.date) == 10
    assert trouble.remedy.endswith(".") and not trouble.text.endswith(".")
    assert trouble.component in ("", "nccl", "vllm") and (not trouble.component or trouble.high or trouble.low)
    assert set(trouble.hardware) <= set(HARDWARE) and set(trouble.strategies) <= set(STRATEGIES)
    hardware = next(
        name for name, row in HARDWARE.items()
        if name in (trouble.hardware or (name,)) and row.family in (trouble.families or (row.family,)))
    context = b300_context()._replace(hardware=hardware, strategy=next(iter(trouble.strategies or ("single_node_tp",))))
    assert trouble in matching(context, nccl=trouble.high, vllm=trouble.high)


def test_an_nccl_that_no_trouble_asks_for_need_not_be_known() -> None:
    own = b300_context()._replace(image="example.com/own:1", hardware="h100", strategy="multi_node_tp")
    assert over("image.known_trouble", {"node1": changed(nccl=None)}, own)["*"]["status"] == "pass"
