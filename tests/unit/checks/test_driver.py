# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks driver.*."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from .healthy import DRIVER, MISSING, b300_context, healthy_b300, put, without
from .run import one, status

IDS = (
    "driver.branch",
    "driver.loaded_is_installed",
    "driver.open_modules",
    "driver.userspace_match",
    "driver.nouveau",
    "driver.build_ready",
    "driver.secure_boot",
)


def changed(path: str, value: Any) -> Dict[str, Any]:
    return put(healthy_b300(), path, value)


def no_driver() -> Dict[str, Any]:
    """A machine whose driver section was read and which has no driver at all."""
    facts = healthy_b300()
    facts["driver"].update(
        {
            "loaded": None,
            "loaded_flavour": None,
            "installed": None,
            "installed_flavour": None,
            "installed_for_kernel": False,
            "userspace": None,
            "cuda": None,
            "unknown": {},
        }
    )
    return facts


@pytest.mark.parametrize("id", IDS)
def test_a_healthy_node_passes(id: str) -> None:
    found = one(id, healthy_b300())
    assert found["status"] == "pass"
    assert not found.get("assumed")


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("driver", [MISSING, None, {}, [], "580.95.05", {"unknown": {"all": "modinfo hung"}}])
def test_without_facts_nothing_is_known(id: str, driver: Any) -> None:
    facts = healthy_b300()
    put(facts, "driver", driver)
    if isinstance(driver, dict) and driver:
        assert one(id, facts)["observed"] == "modinfo hung"
    assert status(id, facts) == "unknown"


def test_branch_of_an_old_driver() -> None:
    found = one("driver.branch", put(changed("driver.loaded", "575.57.08"), "driver.cuda", "12.9"))
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert found["observed"] == "575.57.08 is loaded"
    assert found["required"].startswith(">= 580")
    assert "inferops.vllm.provision" in found["fix"]


@pytest.mark.parametrize("version, passes", [("580.65.06", True), ("580", True), ("610.57", True), ("579.99.99", False), ("58.1", False)])
def test_branch_compares_numbers(version: str, passes: bool) -> None:
    assert status("driver.branch", changed("driver.loaded", version)) == ("pass" if passes else "fail")


def test_branch_compares_with_all_parts_of_the_minimum() -> None:
    context = b300_context()._replace(driver_min=(580, 82, 7))
    assert status("driver.branch", changed("driver.loaded", "580.65.06"), context) == "fail"
    assert status("driver.branch", changed("driver.loaded", "580.82.07"), context) == "pass"


def test_branch_when_nothing_is_loaded_says_what_the_kernel_said() -> None:
    facts = no_driver()
    assert one("driver.branch", facts)["observed"] == "no NVIDIA driver is loaded"
    facts["driver"]["log"] = ["noise", {"kind": 5}, {"kind": "gsp_missing", "text": "…", "count": 8}]
    assert one("driver.branch", facts)["observed"] == "no NVIDIA driver is loaded: GSP firmware is missing"
    assert status("driver.branch", facts) == "fail"


def test_branch_against_the_cuda_of_the_image() -> None:
    assert status("driver.branch", changed("driver.cuda", "12.9")) == "fail"
    # A newer minor version in the image runs on the same major version of the driver.
    assert status("driver.branch", changed("container.image.cuda", "13.2")) == "pass"
    found = one("driver.branch", changed("container.image.cuda", "14.0"))
    assert found["status"] == "fail"
    assert found["observed"] == "580.95.05 gives CUDA 13.0"
    assert "CUDA >= 14" in found["required"]


def test_branch_when_no_cuda_is_asked_for() -> None:
    facts = put(changed("container.image", None), "driver.cuda", None)
    found = one("driver.branch", facts, b300_context()._replace(image_cuda_major=0))
    assert (found["status"], found["observed"], found["required"]) == ("pass", "580.95.05", ">= 580")


def test_branch_when_nvidia_smi_hung() -> None:
    facts = without(healthy_b300(), "driver.cuda")
    assert one("driver.branch", facts)["observed"] == "580.95.05 (its CUDA version was not read)"
    # The branch answers for the planned CUDA only, not for another one in the image.
    assert status("driver.branch", put(facts, "container.image.cuda", "14.0")) == "unknown"


@pytest.mark.parametrize("loaded", ["N/A", "", "580.95.05; rm -rf /", "580\n", 580, True, ["580.95.05"]])
def test_a_version_that_is_none_is_not_known(loaded: Any) -> None:
    for id in ("driver.branch", "driver.loaded_is_installed", "driver.userspace_match", "driver.open_modules"):
        assert status(id, changed("driver.loaded", loaded)) == "unknown"


def test_loaded_is_installed() -> None:
    found = one("driver.loaded_is_installed", changed("driver.installed", "580.126.09"))
    assert found["status"] == "fail"
    assert found["observed"] == "580.95.05 is loaded, 580.126.09 is on disk"
    assert "inferops.vllm.remediate" in found["fix"]
    assert status("driver.loaded_is_installed", changed("driver.installed_flavour", "proprietary")) == "fail"
    assert status("driver.loaded_is_installed", changed("driver.installed_for_kernel", False)) == "fail"
    assert status("driver.loaded_is_installed", changed("driver.installed", None)) == "fail"
    assert status("driver.loaded_is_installed", put(healthy_b300(), "driver.loaded", None)) == "fail"
    assert status("driver.loaded_is_installed", without(healthy_b300(), "driver.installed")) == "unknown"
    facts = put(changed("driver.installed", None), "driver.unknown", {"installed": "modinfo timed out"})
    assert one("driver.loaded_is_installed", facts)["observed"] == "modinfo timed out"


def test_without_any_driver_one_check_says_so_and_the_others_point_to_it() -> None:
    facts = no_driver()
    assert status("driver.branch", facts) == "fail"
    for id in ("driver.loaded_is_installed", "driver.open_modules", "driver.userspace_match", "driver.build_ready"):
        assert status(id, facts) == "skip"
        assert "driver.branch" in one(id, facts)["observed"]


def test_open_modules() -> None:
    assert status("driver.open_modules", changed("driver.loaded_flavour", "proprietary")) == "fail"
    assert status("driver.open_modules", changed("driver.loaded_flavour", None)) == "unknown"
    assert status("driver.open_modules", changed("driver.loaded_flavour", "half-open")) == "unknown"
    hopper = b300_context()._replace(hardware="h100", open_required=False)
    assert status("driver.open_modules", changed("driver.loaded_flavour", "proprietary"), hopper) == "skip"


def test_userspace_match() -> None:
    found = one("driver.userspace_match", changed("driver.userspace", "580.126.09"))
    assert (found["status"], found["observed"]) == ("fail", "module 580.95.05, library 580.126.09")
    assert status("driver.userspace_match", changed("driver.mismatch", True)) == "fail"
    assert status("driver.userspace_match", changed("gpu.smi.driver_version", "580.126.09")) == "fail"
    assert status("driver.userspace_match", without(healthy_b300(), "gpu.smi")) == "pass"
    assert status("driver.userspace_match", changed("driver.userspace", None)) == "unknown"


def test_mismatch_is_a_failure_even_when_versions_were_not_read() -> None:
    facts = healthy_b300()
    facts["driver"] = {"mismatch": True, "unknown": {"loaded": "no /sys"}}
    assert one("driver.userspace_match", facts)["observed"].endswith("mismatch (module not known, library not known)")
    assert status("driver.userspace_match", facts) == "fail"


def test_nouveau() -> None:
    assert status("driver.nouveau", changed("driver.nouveau.loaded", True)) == "fail"
    found = one("driver.nouveau", changed("driver.nouveau.blacklisted", False))
    assert (found["status"], found["severity"]) == ("warn", "warn")
    assert status("driver.nouveau", put(changed("driver.nouveau.blacklisted", False), "gpu.pci", [])) == "skip"
    assert status("driver.nouveau", changed("driver.nouveau.loaded", None)) == "unknown"
    found = one("driver.nouveau", changed("driver.nouveau.blacklisted", None))
    assert (found["status"], found["severity"]) == ("unknown", "warn")


def dkms(**other: Any) -> Dict[str, Any]:
    entry = {"module": "nvidia", "version": DRIVER, "kernel": "6.8.0-85-generic", "status": "installed"}
    return {"headers": True, "compiler": True, "dkms": [dict(entry, **other)]}


def test_build_ready() -> None:
    assert status("driver.build_ready", changed("driver.build", dkms())) == "pass"
    assert (
        one("driver.build_ready", changed("driver.build", dict(dkms(), headers=False)))["observed"]
        == "headers missing for the running kernel"
    )
    assert status("driver.build_ready", changed("driver.build", dict(dkms(), headers=None))) == "unknown"
    assert status("driver.build_ready", changed("driver.build", {"headers": True})) == "unknown"
    old = changed("driver.build", dkms(kernel="6.8.0-60-generic"))
    put(old, "driver.installed_for_kernel", False)
    found = one("driver.build_ready", old)
    assert (found["status"], found["severity"]) == ("fail", "warn")
    assert found["observed"] == "DKMS has 580.95.05 installed, none for 6.8.0-85-generic"
    assert status("driver.build_ready", without(changed("driver.build", dkms()), "host.kernel")) == "unknown"
    damaged = one("driver.build_ready", put(changed("driver.build", dkms()), "driver.installed_for_kernel", False))
    assert damaged["status"] == "fail" and damaged["observed"] == "DKMS calls 580.95.05 built for 6.8.0-85-generic, and its file is damaged"


def test_build_ready_of_packaged_modules() -> None:
    facts = changed("driver.build", {"headers": False, "compiler": False, "dkms": []})
    assert status("driver.build_ready", facts) == "pass"
    assert status("driver.build_ready", put(facts, "driver.installed_for_kernel", None)) == "unknown"
    found = one("driver.build_ready", put(facts, "driver.installed_for_kernel", False))
    assert (found["status"], found["severity"]) == ("fail", "block")


def test_secure_boot() -> None:
    on = {"enabled": True, "signer": "Canonical Ltd. Kernel Module Signing"}
    assert status("driver.secure_boot", changed("driver.secure_boot", on)) == "pass"
    # A module that is loaded was accepted; the one on disk without signer is the next boot's trouble.
    assert status("driver.secure_boot", changed("driver.secure_boot", {"enabled": True, "signer": None})) == "warn"
    found = one("driver.secure_boot", changed("driver.secure_boot", {"enabled": None}))
    assert found["status"] == "pass" and found["assumed"] is True
    off = put(changed("driver.loaded", None), "driver.secure_boot", {"enabled": True, "signer": None})
    assert status("driver.secure_boot", off) == "fail"
    signed = one("driver.secure_boot", put(off, "driver.secure_boot", {"enabled": True, "signer": "Example Key"}))
    assert (signed["status"], signed["observed"], signed["assumed"]) == ("pass", "on, signed by Example Key", True)
    assert one("driver.secure_boot", put(off, "driver.secure_boot", {"enabled": False, "signer": None}))["observed"] == "off"
    assert status("driver.secure_boot", put(off, "driver.secure_boot", {"enabled": None})) == "unknown"
    rejected = put(off, "driver.log", [{"kind": "key_rejected", "text": "…", "count": 1}])
    assert one("driver.secure_boot", rejected)["observed"] == "the kernel rejected the module's key"
    assert status("driver.secure_boot", put(no_driver(), "driver.secure_boot", {"enabled": True})) == "skip"
