# SPDX-License-Identifier: GPL-3.0-or-later
"""What apt and dpkg print. The texts are those of apt 2.6 and dpkg 1.21 (Debian 12), of packages that were really installed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.packages import apt
from ansible_collections.inferops.vllm.plugins.module_utils.packages.model import Installed

SIMULATED = """\
Reading package lists...
Building dependency tree...
Reading state information...
The following additional packages will be installed:
  libnvidia-compute nvidia-dkms-open
The following packages will be REMOVED:
  cuda-drivers nvidia-dkms
The following NEW packages will be installed:
  linux-headers-6.1.0-57-amd64 nvidia-dkms-open
The following packages will be upgraded:
  libnvidia-compute
1 upgraded, 2 newly installed, 2 to remove and 0 not upgraded.
Remv cuda-drivers [575.57.08-1] [nvidia-utils:amd64 ]
Remv nvidia-dkms [575.57.08-1]
Inst linux-headers-6.1.0-57-amd64 (6.1.192-3 Debian:12.11/stable [amd64])
Inst libnvidia-compute [575.57.08-1] (580.95.05-1 NVIDIA:CUDA [amd64]) []
Inst nvidia-dkms-open (580.95.05-1 NVIDIA:CUDA [amd64])
Conf linux-headers-6.1.0-57-amd64 (6.1.192-3 Debian:12.11/stable [amd64])
Conf libnvidia-compute (580.95.05-1 NVIDIA:CUDA [amd64])
Conf nvidia-open (575.57.08-1 NVIDIA:CUDA [all])
Conf nvidia-dkms-open (580.95.05-1 NVIDIA:CUDA [amd64])
"""
SIZES = """\
1 upgraded, 2 newly installed, 2 to remove and 0 not upgraded.
Need to get 12.5 MB/350 MB of archives.
After this operation, 1,234 MB of additional disk space will be used.
'http://repo/pool/a.deb' a.deb 784
"""


def test_simulation_is_read_whole() -> None:
    change = apt.parse_simulation(SIMULATED, 0, SIZES)
    assert change.install == {"linux-headers-6.1.0-57-amd64": "6.1.192-3", "nvidia-dkms-open": "580.95.05-1"}
    assert change.change == {"libnvidia-compute": ("575.57.08-1", "580.95.05-1")}
    assert change.remove == {"cuda-drivers": "575.57.08-1", "nvidia-dkms": "575.57.08-1"}
    assert change.configure == ("nvidia-open",), "what is only configured was left half done before"
    assert (change.download, change.disk, change.error) == (350_000_000, 1_234_000_000, "")


def test_what_is_purged_is_removed() -> None:
    assert apt.parse_simulation("Purg nvidia-driver-pinning-575 [575-1]\n", 0).remove == {"nvidia-driver-pinning-575": "575-1"}


def test_freed_space_is_negative_and_nothing_to_do_is_empty() -> None:
    assert apt.parse_simulation("", 0, "After this operation, 21.8 kB disk space will be freed.\n").disk == -21_800
    assert apt.parse_simulation("0 upgraded, 0 newly installed\n", 0).empty


@pytest.mark.parametrize(("text", "part"), [
    ("The following packages have unmet dependencies:\n nvidia-open : Depends: nvidia-dkms-open (= 580.95.05-1) but 575.57.08-1 is to be "
     "installed\nE: Unable to correct problems, you have held broken packages.\n", "nvidia-open : Depends: nvidia-dkms-open (= 580.95.05-1) but"),
    ("Reading package lists...\nE: Version '580.1-1' for 'nvidia-open' was not found\n", "E: Version '580.1-1' for 'nvidia-open' was not found"),
    ("Err:1 http://repo ./ nvidia-open\n  Connection failed\nE: Failed to fetch http://repo/x.deb  Connection failed\n", "E: Failed to fetch"),
    ("Loading new nvidia-580 DKMS files...\nError! Bad return status for module build on kernel: 6.1 (x86_64)\n", "Bad return status"),
    ("", "apt-get gave no reason"),
])
def test_the_reason_is_found(text: str, part: str) -> None:
    change = apt.parse_simulation(text, 100)
    assert part in change.error


def test_installed_and_broken_packages() -> None:
    found = apt.parse_installed(
        "libnvidia-compute\t575.57.08-1\tii \nnvidia-dkms\t\tun \nnvidia-dkms-open\t575.57.08-1\tiF \nnvidia-open\t575.57.08-1\tiU \n"
        "nvidia-old\t1-1\trc \nnvidia-imex\t580.95.05-1\thi \nnvidia-utils\t575.57.08-1\tiHR\nnot a line\n")
    assert found == {
        "libnvidia-compute": Installed("575.57.08-1"), "nvidia-dkms-open": Installed("575.57.08-1", "half-configured"),
        "nvidia-open": Installed("575.57.08-1", "unpacked"), "nvidia-imex": Installed("580.95.05-1"),
        "nvidia-utils": Installed("575.57.08-1", "must be reinstalled"),
    }
    audit = "The following packages have been unpacked but not yet configured.\nThey must be configured:\n man-db   manual\n\n"
    assert apt.parse_broken(audit, found) == {
        "nvidia-dkms-open": "half-configured", "nvidia-open": "unpacked", "nvidia-utils": "must be reinstalled", "man-db": "unpacked"}


def test_available_versions_come_without_sources() -> None:
    text = ("nvidia-open | 590.48.01-1 | http://repo ./ Packages\nnvidia-open | 580.95.05-1 | http://repo ./ Packages\n"
            "nvidia-open | 580.95.05-1 | http://other ./ Packages\n linux-headers-amd64 |  6.1.192-3 | http://repo ./ Packages\n"
            "nvidia-open | 580.95.05-1 | http://repo ./ Sources\nN: Unable to locate package nonexist\n")
    assert apt.parse_available(text) == {"nvidia-open": ["590.48.01-1", "580.95.05-1"], "linux-headers-amd64": ["6.1.192-3"]}


PINS = """\
# a remark
Package: *nvidia* cuda-drivers*
Pin: version 575.*
Pin-Priority: 1000

Package: nvidia-open
Pin: version 580.126.*
Pin-Priority: -1

Package: *
Pin: release a=stable
Pin-Priority: 900

Package: nvidia-utils
Pin: version 575.*
Pin-Priority: 100
"""


def test_only_pins_that_decide_a_version_count() -> None:
    first, second = apt.parse_preferences(PINS, "/etc/apt/preferences.d/x")
    assert apt.against(first, "nvidia-open", "580.95.05-1") and not apt.against(first, "nvidia-open", "575.57.08-1")
    assert not apt.against(first, "linux-headers-amd64", "6.1-1")
    assert apt.against(second, "nvidia-open", "580.126.20-1") and not apt.against(second, "nvidia-open", "580.95.05-1")


def test_our_pin_reads_back_and_holds_the_version() -> None:
    text = apt.preferences("580.95.05")
    assert "Pin: version /^([0-9]+:)?580\\.95\\.05[.-]/" in text and "Pin-Priority: 1001" in text
    assert len(apt.parse_preferences(text, "ours")) == 1


def test_held_names_are_names() -> None:
    assert apt.parse_holds("nvidia-dkms-open\nlibc6:amd64\nE: broken\n") == ["nvidia-dkms-open", "libc6:amd64"]


def test_commands_name_every_version_and_never_touch_in_a_simulation() -> None:
    actions, sizes = apt.simulate_commands({"nvidia-open": "580.95.05-1", "nvlsm": ""}, ["nvidia-imex-575"], True, False, "/x/preferences")
    assert "-s" in actions and "--print-uris" in sizes and "Dir::Etc::Preferences=/x/preferences" in actions
    assert actions[-3:] == ["nvidia-open=580.95.05-1", "nvlsm", "nvidia-imex-575-"]
    assert "--purge" in actions and "--purge" in apt.apply_commands({}, ["nvidia-driver-pinning-575"], False, False)[1]
    fetch, install = apt.apply_commands({"nvidia-open": "580.95.05-1"}, [], False, False)
    assert "--purge" not in install
    assert "--download-only" in fetch and "--no-download" in install and "--allow-change-held-packages" not in install


@given(st.text())
def test_no_text_raises(text: str) -> None:
    installed = apt.parse_installed(text)
    apt.parse_broken(text, installed)
    apt.parse_available(text)
    apt.parse_holds(text)
    for pin in apt.parse_preferences(text, "x"):
        apt.against(pin, "nvidia-open", "580.95.05-1")
    assert apt.parse_simulation(text, 100, text).error


def test_a_full_disk_is_named_though_dpkg_says_it_on_the_next_line() -> None:
    text = ("Unpacking nvidia-dkms-open (580.126.20-1) ...\ndpkg: error processing archive /tmp/a/4-nvidia-dkms-open.deb (--unpack):\n"
            " cannot copy extracted data for './usr/src/a' to '/usr/src/a.dpkg-new': failed to write (No space left on device)\n"
            "E: Sub-process /usr/bin/dpkg returned an error code (1)\n")
    assert "(--unpack): cannot copy extracted data" in apt.why(text) and "No space left on device" in apt.why(text)
    assert apt.why("dpkg: error processing package a (--configure):\n") == "dpkg: error processing package a (--configure):"
