# SPDX-License-Identifier: GPL-3.0-or-later
"""What dnf 4, rpm and zypper print. Written after their sources and manuals; none of it was run here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.packages import rpm
from ansible_collections.inferops.vllm.plugins.module_utils.packages.model import Installed

INSTALLED = {"libnvidia-ml": Installed("3:575.57.08-1.el9")}
DNF = """\
Last metadata expiration check: 0:12:03 ago on Sun 29 Nov 2026 10:00:00 AM UTC.
Dependencies resolved.
================================================================================
 Package                 Arch     Version                Repository        Size
================================================================================
Installing:
 nvidia-open             noarch   3:580.95.05-1.el9      cuda-rhel9-x86_64 7.5 k
Upgrading:
 libnvidia-ml            x86_64   3:580.95.05-1.el9      cuda-rhel9-x86_64 550 k
Installing dependencies:
 kernel-devel-matched    x86_64   5.14.0-503.11.1.el9_5  appstream         2.0 M
 a-very-long-package-name-of-nvidia-that-wraps
                         noarch   3:580.95.05-1.el9      cuda-rhel9-x86_64 1.0 M
Removing dependent packages:
 kmod-nvidia-latest-dkms x86_64   3:575.57.08-1.el9      @cuda-rhel9-x86_64  70 M
Enabling module streams:
 nvidia-driver                    580-open

Transaction Summary
================================================================================
Install  3 Packages
Upgrade  1 Package
Remove   1 Package

Total download size: 350 M
Operation aborted.
"""
ZYPPER = """\
<?xml version='1.0'?>
<stream>
<message type="info">Resolving package dependencies...</message>
<install-summary download-size="367001600" space-usage-diff="1288490188" packages-to-change="3">
<to-install>
<solvable type="package" name="nvidia-open" edition="580.95.05-0" arch="noarch" summary="x"/>
</to-install>
<to-upgrade>
<solvable type="package" name="nvidia-compute-G06" edition="580.95.05-0" arch="x86_64" edition-old="575.57.08-0" summary="x"/>
</to-upgrade>
<to-remove>
<solvable type="package" name="nvidia-gfxG05" edition="470.1-0" arch="x86_64"/>
</to-remove>
</install-summary>
</stream>
"""


def test_dnf_table_is_read_with_wrapped_rows() -> None:
    change = rpm.parse_dnf(DNF, 1, INSTALLED)
    assert change.install == {
        "nvidia-open": "3:580.95.05-1.el9", "kernel-devel-matched": "5.14.0-503.11.1.el9_5",
        "a-very-long-package-name-of-nvidia-that-wraps": "3:580.95.05-1.el9"}
    assert change.change == {"libnvidia-ml": ("3:575.57.08-1.el9", "3:580.95.05-1.el9")}
    assert change.remove == {"kmod-nvidia-latest-dkms": "3:575.57.08-1.el9"}
    assert (change.download, change.error) == (350 << 20, "")


def test_dnf_that_cannot_says_why() -> None:
    assert rpm.parse_dnf("Error: Unable to find a match: nvidia-open-580.95.05\n", 1, {}).error.startswith("Error: Unable to find a match")
    problem = "Error: \n Problem: conflicting requests\n  - nothing provides dkms needed by kmod-nvidia-open-dkms\n"
    assert "nothing provides dkms" in rpm.parse_dnf(problem, 1, {}).error
    assert rpm.parse_dnf("Dependencies resolved.\nNothing to do.\nComplete!\n", 0, {}).empty


def test_zypper_summary_is_read() -> None:
    change = rpm.parse_zypper(ZYPPER, 0)
    assert change.install == {"nvidia-open": "580.95.05-0"}
    assert change.change == {"nvidia-compute-G06": ("575.57.08-0", "580.95.05-0")}
    assert change.remove == {"nvidia-gfxG05": "470.1-0"}
    assert (change.download, change.disk, change.error) == (367001600, 1288490188, "")
    failed = rpm.parse_zypper('<stream><message type="error">No provider of \'nvidia-open = 580\' found.</message></stream>', 104)
    assert failed.error == "No provider of 'nvidia-open = 580' found."


@pytest.mark.parametrize("manager", [rpm.DNF, rpm.ZYPPER])
def test_commands_simulate_and_fetch_before_they_install(manager: rpm.Manager) -> None:
    simulate = rpm.simulate_command(manager, {"nvidia-open": "3:580.95.05-1.el9"}, [])
    assert "--assumeno" in simulate or "--dry-run" in simulate
    fetch, *_more, install = rpm.apply_commands(manager, {"nvidia-open": "3:580.95.05-1.el9"}, [], "nvidia-driver:580-open")
    assert {"--downloadonly", "--download-only"} & set(fetch) and not {"--downloadonly", "--download-only"} & set(install)


def test_stream_is_enabled_after_the_download() -> None:
    steps = rpm.apply_commands(rpm.DNF, {"nvidia-open": "3:580.95.05-1.el9"}, [], "nvidia-driver:580-open")
    assert ["dnf", "-q", "-y", "module", "enable", "nvidia-driver:580-open"] in steps[1:-1]


def test_available_versions() -> None:
    assert rpm.parse_available(rpm.DNF, "nvidia-open\t3:580.95.05-1.el9\nnvidia-open\t3:575.57.08-1.el9\njunk\n") == {
        "nvidia-open": ["3:580.95.05-1.el9", "3:575.57.08-1.el9"]}
    text = ('<stream><search-result><solvable-list><solvable status="not-installed" name="nvidia-open" kind="package" edition="580.95.05-0" '
            'arch="x86_64" repository="cuda"/><solvable status="installed" name="nvidia-open" kind="package" edition="575.57.08-0" '
            'arch="x86_64" repository="(System Packages)"/></solvable-list></search-result></stream>')
    assert rpm.parse_available(rpm.ZYPPER, text) == {"nvidia-open": ["580.95.05-0"]}


def test_installed_packages_keep_their_epoch() -> None:
    assert rpm.parse_installed("nvidia-open\t3:580.95.05-1.el9\ndkms\t0:3.0.12-1.el9\n") == {
        "nvidia-open": Installed("3:580.95.05-1.el9"), "dkms": Installed("3.0.12-1.el9")}


def test_own_locks_are_replaced_and_do_not_stand_in_the_way() -> None:
    once = rpm.lock_text("kernel-0:5.14.0-503.el9.*\n", {"nvidia-open": "3:580.95.05-1.el9"})
    assert "nvidia-open-3:580.95.05-1.el9.*" in once and once.startswith("kernel-0:5.14.0-503.el9.*\n")
    twice = rpm.lock_text(once, {"nvidia-open": "3:580.126.20-1.el9"})
    assert twice.count(rpm.BEGIN) == 1 and "580.95.05" not in twice
    assert [pin.patterns for pin in rpm.parse_locks(twice, "x")] == [("kernel",)]
    assert rpm.lock_text(twice, {}) == "kernel-0:5.14.0-503.el9.*\n"


def test_a_lock_keeps_from_every_version_but_the_installed_one() -> None:
    (pin,) = rpm.parse_locks("nvidia-open-3:575.57.08-1.el9.*\n", "/etc/dnf/plugins/versionlock.list")
    now = Installed("3:575.57.08-1.el9")
    assert rpm.against(pin, "nvidia-open", "3:580.95.05-1.el9", now) and not rpm.against(pin, "nvidia-open", now.version, now)
    assert not rpm.against(pin, "nvidia-utils", "3:580.95.05-1.el9", now)


@given(st.text())
def test_no_text_raises(text: str) -> None:
    rpm.parse_installed(text)
    rpm.parse_available(rpm.DNF, text)
    rpm.parse_available(rpm.ZYPPER, text)
    rpm.parse_locks(text, "x")
    rpm.lock_text(text, {"a": "1-1"})
    assert rpm.parse_dnf(text, 3, {}).error and rpm.parse_zypper(text, 4).error
