# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages in which versions, by what a repository offers and what is installed."""

from __future__ import annotations

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.packages import data
from ansible_collections.inferops.vllm.plugins.module_utils.packages.choose import (
    Request,
    choose,
    extend,
    leftovers,
    names_to_ask,
    unsatisfied,
    validate,
)
from ansible_collections.inferops.vllm.plugins.module_utils.packages.model import Installed, Refused, is_driver, is_kernel, size, upstream

KERNEL = "6.8.0-90-generic"
VENDOR = {
    "nvidia-open": ["590.48.01-1", "580.126.20-1", "580.95.05-1", "575.57.08-1"],
    "nvidia-fabricmanager": ["590.48.01-1", "580.95.05-1"],
    "nvidia-fabricmanager-580": ["580.82.07-0ubuntu1"],
    "nvlsm": ["2025.06.11-1"],
}
UBUNTU = {
    "nvidia-headless-no-dkms-580-server-open": ["580.95.05-0ubuntu0.24.04.1"],
    "nvidia-utils-580-server": ["580.95.05-0ubuntu0.24.04.1"],
    "linux-modules-nvidia-580-server-open-" + KERNEL: ["6.8.0-90.91+1"],
    "nvidia-fabricmanager-580": ["580.95.05-0ubuntu0.24.04.1"],
}


def test_the_newest_version_that_is_complete_is_taken() -> None:
    alone = choose(Request(), "debian12", KERNEL, VENDOR, {})
    assert (alone.version, alone.wanted) == ("580.126.20", {"nvidia-open": "580.126.20-1"})
    both = choose(Request(components=("fabricmanager", "nvlsm")), "debian12", KERNEL, VENDOR, {})
    assert both.version == "580.95.05", "Fabric Manager must equal the driver, so the newer driver is passed over"
    assert both.wanted == {"nvidia-open": "580.95.05-1", "nvidia-fabricmanager": "580.95.05-1", "nvlsm": ""}


def test_what_is_missing_is_named() -> None:
    with pytest.raises(Refused, match=r"no repository offers Fabric Manager \(.*580\.126\.20; there is .*580\.95\.05"):
        choose(Request(components=("fabricmanager",), version="580.126.20"), "debian12", KERNEL, VENDOR, {})
    with pytest.raises(Refused, match=r"no repository offers nvidia-open of branch 595; there are 575\.57\.08, 580\.95\.05"):
        choose(Request(branch="595"), "debian12", KERNEL, VENDOR, {})
    with pytest.raises(Refused, match="no repository offers nvidia-open"):
        choose(Request(), "debian12", KERNEL, {}, {})


def test_a_distributions_own_names_are_found() -> None:
    found = choose(Request(components=("fabricmanager",)), "ubuntu24.04", KERNEL, UBUNTU, {})
    assert (found.scheme, found.builds, found.version) == ("ubuntu", False, "580.95.05")
    assert found.wanted["nvidia-fabricmanager-580"] == "580.95.05-0ubuntu0.24.04.1"
    assert found.wanted["linux-modules-nvidia-580-server-open-" + KERNEL] == "", "prebuilt modules carry the kernel's version"


def test_sources_are_not_mixed_once_one_is_installed() -> None:
    both = {**VENDOR, **UBUNTU}
    assert choose(Request(), "ubuntu24.04", KERNEL, both, {}).scheme == "nvidia-apt"
    installed = {name: Installed("580.95.05-0ubuntu0.24.04.1") for name in ("nvidia-headless-no-dkms-580-server-open", "nvidia-utils-580-server")}
    assert choose(Request(), "ubuntu24.04", KERNEL, both, installed).scheme == "ubuntu"


def test_red_hat_names_its_module_stream() -> None:
    offered = {"nvidia-open": ["3:580.95.05-1.el9"], "nvidia-fabric-manager": ["3:580.95.05-1.el9"]}
    found = choose(Request(components=("fabricmanager",)), "rhel9", "5.14.0-503.el9.x86_64", offered, {})
    assert (found.stream, found.wanted["nvidia-fabric-manager"]) == ("nvidia-driver:580-open", "3:580.95.05-1.el9")
    assert choose(Request(), "rhel10", "6.12.0-55.el10.x86_64", offered, {}).stream == ""


def test_suse_signs_its_own_modules() -> None:
    names = data.SCHEMES[[row.name for row in data.SCHEMES].index("suse-g06")].drivers["open"]
    offered = {name: ["580.95.05_k6.4.0_150600.21-1"] for name in names}
    assert choose(Request(), "sles15", "6.4.0-150600.23.7-default", offered, {}).version == "580.95.05"


def test_nothing_of_the_driver_stays_behind() -> None:
    installed = {
        "nvidia-open": Installed("575.57.08-1"), "nvidia-utils": Installed("575.57.08-1"), "nvidia-fabricmanager-575": Installed("575.57.08-1"),
        "nvidia-driver-pinning-575": Installed("575-1"), "nvidia-container-toolkit": Installed("1.17.8-1"),
    }
    offered = {**VENDOR, "nvidia-utils": ["580.126.20-1", "580.95.05-1", "575.57.08-1"], "nvidia-driver-pinning-580": ["580-1"],
               "nvidia-fabricmanager-575": ["575.57.08-1"]}
    request = Request(components=("fabricmanager",))
    found = extend(choose(request, "debian12", KERNEL, offered, installed), request, offered, installed)
    assert found.wanted["nvidia-utils"] == "580.95.05-1" and found.wanted["nvidia-driver-pinning-580"] == ""
    assert sorted(found.remove) == ["nvidia-driver-pinning-575", "nvidia-fabricmanager-575"]
    assert "nvidia-container-toolkit" not in unsatisfied(found, installed)
    assert leftovers(found, installed) == ["nvidia-fabricmanager-575 575.57.08-1", "nvidia-open 575.57.08-1", "nvidia-utils 575.57.08-1"]


@pytest.mark.parametrize(("words", "part"), [
    ({"branch": "575"}, "older than 580"), ({"branch": "575", "downgrade": True}, "older than 580"), ({"branch": "new"}, "older than 580"),
    ({"version": "latest"}, "no driver version"),
    ({"version": "590.48.01"}, "is not of branch 580"), ({"components": ("gds",)}, "there is no gds"), ({"version": "580.95.05-1"}, "no driver version"),
])
def test_senseless_requests_are_refused(words: dict[str, object], part: str) -> None:
    with pytest.raises(Refused, match=part):
        validate(Request(**words))  # type: ignore[arg-type]


def test_a_good_request_passes() -> None:
    validate(Request(version="580.95.05", components=("fabricmanager", "nvlsm", "imex")))


def test_every_scheme_belongs_to_known_releases_and_has_a_source() -> None:
    for scheme in data.SCHEMES:
        assert set(scheme.families) <= set(data.FAMILIES) and scheme.source.startswith("https://")
        assert set(scheme.components) == set(data.COMPONENTS)
    for family in data.FAMILIES:
        assert names_to_ask(family, Request(components=data.COMPONENTS), KERNEL, {})


@pytest.mark.parametrize(("os_id", "version", "family"), [
    ("debian", "12", "debian12"), ("ubuntu", "24.04", "ubuntu24.04"), ("rocky", "9.5", "rhel9"), ("rhel", "10.0", "rhel10"), ("sles", "15.6", "sles15"),
    ("ubuntu", "20.04", ""), ("fedora", "42", ""), ("", "", ""), ("rocky", "90.1", ""),
])
def test_releases(os_id: str, version: str, family: str) -> None:
    assert data.family(os_id, version) == family


@pytest.mark.parametrize(("name", "kernel", "driver"), [
    ("linux-image-6.8.0-90-generic", True, False), ("linux-image-amd64", True, False), ("linux-modules-6.8.0-90-generic", True, False),
    ("linux-modules-extra-6.8.0-90-generic", True, False), ("linux-generic", True, False), ("kernel-core", True, False), ("kernel", True, False),
    ("kernel-default", True, False), ("kernel-64k-core", True, False), ("linux-nvidia-64k-6.14", True, False), ("kernel-modules-extra", True, False),
    ("linux-headers-6.8.0-90-generic", False, False), ("kernel-devel", False, False), ("kernel-devel-matched", False, False),
    ("kernel-default-devel", False, False), ("kernel-headers", False, False), ("linux-modules-nvidia-580-server-open-6.8.0-90-generic", False, True),
    ("nvidia-open", False, True), ("libnvidia-compute", False, True), ("cuda-drivers", False, True), ("kmod-nvidia-open-dkms", False, True),
    ("nvidia-container-toolkit", False, False), ("libnvidia-container1", False, False), ("nvidia-driver-pinning-580", False, False),
    ("nvidia-peer-memory-dkms", False, False), ("docker-ce", False, False), ("linux-libc-dev", False, False),
])
def test_what_is_a_kernel_and_what_is_the_driver(name: str, kernel: bool, driver: bool) -> None:
    assert (is_kernel(name), is_driver(name)) == (kernel, driver)


def test_versions_and_sizes() -> None:
    assert [upstream(one) for one in ("3:580.95.05-1.el9", "580.95.05-0ubuntu1", "580.95.05_k6.4.0-1", "575.57.08-1")] == ["580.95.05"] * 3 + ["575.57.08"]
    assert (size("1,234", "MB"), size("350", "M"), size("1.5", "GiB"), size("7", "B"), size("x", "kB")) == (1_234_000_000, 350 << 20, 3 << 29, 7, 0)
