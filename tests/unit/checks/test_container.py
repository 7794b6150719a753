# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks container.*."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from .healthy import DRIVER, MISSING, b300_context, healthy_b300, put, without
from .run import one, status

IDS = ("container.engine", "container.toolkit", "container.cdi_fresh")
GPU_IDS = ("container.toolkit", "container.cdi_fresh", "container.gpu_visible")
CPU = b300_context()._replace(hardware="cpu")


def changed(**values: Any) -> Dict[str, Any]:
    facts = healthy_b300()
    for path, value in values.items():
        put(facts, "container." + path.replace("__", "."), value)
    return facts


@pytest.mark.parametrize("id", IDS)
def test_a_healthy_node_passes(id: str) -> None:
    found = one(id, healthy_b300())
    assert found["status"] == "pass" and not found.get("assumed")


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("section", [MISSING, None, {}, [], "x", {"unknown": {"all": "stuck"}}])
def test_without_facts_nothing_is_known(id: str, section: Any) -> None:
    assert status(id, put(healthy_b300(), "container", section)) == "unknown"


@pytest.mark.parametrize("id", GPU_IDS)
@pytest.mark.parametrize("hardware", ["cpu", "mi355x"])
def test_without_nvidia_gpus_the_toolkit_does_not_matter(id: str, hardware: str) -> None:
    facts = changed(toolkit={}, cdi=None, probe={"ran": True, "rc": 1})
    assert status(id, facts, b300_context()._replace(hardware=hardware)) == "skip"


# -- engine --------------------------------------------------------------------------------------
def test_no_engine() -> None:
    found = one("container.engine", changed(docker=None, podman=None))
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "block", "neither Docker nor Podman")
    assert "inferops.vllm.provision" in found["fix"]


def test_docker_that_does_not_run_fails_unless_podman_is_there() -> None:
    facts = changed(docker__running=False)
    assert status("container.engine", facts) == "fail"
    assert one("container.engine", put(facts, "container.podman", {"version": "5.2.1"}))["observed"] == "podman 5.2.1"


def test_docker_that_may_not_be_asked_is_unknown() -> None:
    facts = changed(docker=None, unknown__docker="docker's socket may not be used by this user")
    found = one("container.engine", facts)
    assert (found["status"], found["severity"]) == ("unknown", "block")
    assert "socket" in found["observed"]
    assert status("container.engine", put(facts, "container.podman", {"version": "5.2.1"})) == "pass"
    assert status("container.engine", changed(docker__running=None)) == "unknown"


# -- toolkit -------------------------------------------------------------------------------------
def test_no_toolkit() -> None:
    found = one("container.toolkit", changed(toolkit={"version": None, "ctk": False, "hook": False, "configured": False}))
    assert (found["status"], found["severity"], found["observed"]) == ("fail", "block", "not installed")


def test_a_toolkit_that_the_engine_does_not_know() -> None:
    facts = changed(toolkit__configured=False)
    assert one("container.toolkit", facts)["observed"].startswith("1.18.0, but the engine knows neither")
    assert status("container.toolkit", changed(toolkit__configured=None)) == "unknown"
    put(facts, "container.unknown.docker", "docker info hung")
    assert one("container.toolkit", facts)["status"] == "unknown"


def test_a_toolkit_that_could_not_be_asked() -> None:
    assert status("container.toolkit", changed(toolkit={"ctk": None, "hook": None})) == "unknown"
    assert one("container.toolkit", changed(unknown__toolkit="nvidia-ctk printed no version"))["status"] == "unknown"


# -- CDI -----------------------------------------------------------------------------------------
def test_a_stale_specification() -> None:
    found = one("container.cdi_fresh", changed(cdi__0__versions=["570.86.15"]))
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert found["observed"] == "/var/run/cdi/nvidia.yaml names 570.86.15"
    assert found["required"].startswith(DRIVER)


def test_a_second_stale_specification_beside_a_fresh_one() -> None:
    facts = healthy_b300()
    facts["container"]["cdi"].append({"path": "/etc/cdi/nvidia.yaml", "kind": "nvidia.com/gpu", "versions": ["570.86.15"]})
    assert one("container.cdi_fresh", facts)["observed"] == "/etc/cdi/nvidia.yaml names 570.86.15"


def test_a_specification_that_names_no_version() -> None:
    assert status("container.cdi_fresh", changed(cdi__0__versions=[])) == "unknown"


def test_no_specification() -> None:
    assert one("container.cdi_fresh", changed(cdi=[]))["observed"] == "no CDI specification; the engine has the nvidia runtime"
    assert status("container.cdi_fresh", changed(cdi=[{"kind": "nvidia.com/gds", "versions": ["1"]}])) == "skip"
    assert status("container.cdi_fresh", changed(cdi=[], toolkit__configured=False)) == "skip"
    facts = changed(cdi=[], docker=None, podman={"version": "5.2.1"}, toolkit__configured=False)
    assert status("container.cdi_fresh", facts) == "fail"


def test_no_driver_to_compare_with() -> None:
    assert status("container.cdi_fresh", put(healthy_b300(), "driver.loaded", None)) == "unknown"
    assert status("container.cdi_fresh", without(healthy_b300(), "driver")) == "unknown"


# -- a look from inside ----------------------------------------------------------------------------
def test_without_a_probe_nothing_is_claimed() -> None:
    found = one("container.gpu_visible", healthy_b300())
    assert found["status"] == "skip" and "assumed from" in found["observed"]


@pytest.mark.parametrize("probe, expected", [
    ({"ran": True, "rc": 0, "gpus": 8, "text": ""}, "pass"),
    ({"ran": True, "rc": 0, "gpus": 7, "text": ""}, "fail"),
    ({"ran": True, "rc": 0, "gpus": 0, "text": ""}, "fail"),
    ({"ran": True, "rc": 255, "gpus": 0, "text": "Failed to initialize NVML: Unknown Error"}, "fail"),
    ({"ran": False}, "unknown"),
])
def test_a_probe(probe: Dict[str, Any], expected: str) -> None:
    found = one("container.gpu_visible", changed(probe=probe))
    assert (found["status"], found["severity"]) == (expected, "block")
    if probe.get("rc"):
        assert "Unknown Error" in found["observed"]


def test_a_probe_that_gave_up_says_why() -> None:
    found = one("container.gpu_visible", changed(probe={"ran": False}, unknown__probe="docker run did not answer in time"))
    assert found["observed"].endswith("docker run did not answer in time")
    found = one("container.gpu_visible", changed(probe=None, unknown__probe="there is no image to start"))
    assert found["status"] == "unknown"


def test_without_a_known_number_one_gpu_is_enough_and_none_is_not() -> None:
    context = b300_context()._replace(hardware="", gpus_per_node=0)
    assert status("container.gpu_visible", changed(probe={"ran": True, "rc": 0, "gpus": 1}), context) == "pass"
    assert status("container.gpu_visible", changed(probe={"ran": True, "rc": 0, "gpus": 0}), context) == "fail"
