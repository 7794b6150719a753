# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of modprobe.d and modules-load.d."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.kernel import conf

OTHER = "# a remark\noptions nvidia NVreg_EnableStreamMemOPs=1 \\\n  NVreg_RegistryDwords=\"PeerMappingOverride=1;\"\nblacklist nouveau\n"


def test_a_parameter_stands_once() -> None:
    options = {"nvidia": {"NVreg_EnableStreamMemOPs": "1", "NVreg_CreateImexChannel0": "1"}}
    found = conf.render(options, ["nouveau"], {"/etc/modprobe.d/a.conf": OTHER})
    assert found.text == conf.HEADER + "options nvidia NVreg_CreateImexChannel0=1\n" and found.conflicts == []
    assert found.elsewhere == ["/etc/modprobe.d/a.conf sets nvidia.NVreg_EnableStreamMemOPs", "/etc/modprobe.d/a.conf blocks nouveau"]
    assert conf.render({"nvidia": {"NVreg_EnableStreamMemOPs": "1"}}, [], {"/etc/modprobe.d/a.conf": OTHER}).text is None


def test_another_value_is_a_conflict_that_names_the_file() -> None:
    found = conf.render({"nvidia": {"NVreg_EnableStreamMemOPs": "0"}}, [], {"/etc/modprobe.d/a.conf": OTHER})
    assert found.conflicts == ["/etc/modprobe.d/a.conf sets nvidia.NVreg_EnableStreamMemOPs=1"]


def test_what_is_blocked_reads_back() -> None:
    text = conf.render({}, ["nouveau", "nv_peer_mem"], {}).text
    assert text is not None and conf.blocked(text) == ["nouveau", "nv_peer_mem", "nv_peer_mem"] and "options nouveau modeset=0" in text
    assert conf.blocked("install nv-peer-mem /usr/bin/true\ninstall x /sbin/modprobe y\n#blacklist z\n") == ["nv_peer_mem"]


def test_continued_lines_and_quotes() -> None:
    assert conf.settings(OTHER, "f")[1] == conf.Setting("nvidia", "NVreg_RegistryDwords", "PeerMappingOverride=1;", "f")


def test_modules_that_load_at_boot() -> None:
    assert conf.loads("# ib_umad\n; x\nnvidia-peermem\n\nrdma_ucm\n") == ["nvidia_peermem", "rdma_ucm"]


@pytest.mark.parametrize("key", ["nvidia", "nvidia.", ".x", "nvidia NVreg.x", "a.b.c"])
def test_bad_keys_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is no module and parameter"):
        conf.split({key: "1"})


@pytest.mark.parametrize("value", ["", "a b", 'a"b', "a\nb", "1 # x"])
def test_bad_values_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="may not be empty"):
        conf.split({"nvidia.x": value})


def test_good_keys_are_split() -> None:
    assert conf.split({"nvidia.a": "1", "nvidia.b": "2", "nvidia-uvm.c": "3"}) == {"nvidia": {"a": "1", "b": "2"}, "nvidia_uvm": {"c": "3"}}


@given(st.text())
def test_no_text_raises(text: str) -> None:
    conf.loads(text)
    conf.blocked(text)
    conf.render({"nvidia": {"a": "1"}}, ["nouveau"], {"x": text})
