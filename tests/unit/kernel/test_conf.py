# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of modprobe.d and modules-load.d."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.kernel import conf
from ansible_collections.inferops.vllm.plugins.module_utils.packages.model import Ran
from ansible_collections.inferops.vllm.plugins.modules import modprobe_options

OTHER = "# a remark\noptions nvidia NVreg_EnableStreamMemOPs=1 \\\n  NVreg_RegistryDwords=\"PeerMappingOverride=1;\"\nblacklist nouveau\n"


def test_a_parameter_stands_once() -> None:
    options = {"nvidia": {"NVreg_EnableStreamMemOPs": "1", "NVreg_CreateImexChannel0": "1"}}
    found = conf.render(options, ["nouveau"], {"/etc/modprobe.d/a.conf": OTHER})
    assert found.text == conf.HEADER + "options nvidia NVreg_CreateImexChannel0=1\n" and found.conflicts == []
    assert found.elsewhere == ["/etc/modprobe.d/a.conf sets nvidia.NVreg_EnableStreamMemOPs", "/etc/modprobe.d/a.conf blocks nouveau"]
    assert conf.render({"nvidia": {"NVreg_EnableStreamMemOPs": "1"}}, [], {"/etc/modprobe.d/a.conf": OTHER}).text is None


def test_what_ours_says_stays_when_another_file_comes_to_say_it() -> None:
    """The first run keeps nouveau out; then the driver's packages bring a file that does so, too."""
    wanted = ({"nvidia": {"NVreg_EnableStreamMemOPs": "1"}}, ["nouveau"])
    own = conf.render(*wanted, {}).text
    assert own and conf.render(*wanted, {"/etc/modprobe.d/nvidia-graphics-drivers.conf": OTHER}, own).text == own
    # A value that ours has otherwise is not kept beside theirs.
    older = own.replace("MemOPs=1", "MemOPs=0")
    assert "MemOPs" not in str(conf.render(*wanted, {"/etc/modprobe.d/a.conf": OTHER}, older).text)


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


class Ended(Exception):
    """What the module returned."""


@pytest.mark.parametrize("before", [None, conf.HEADER + "blacklist nouveau\n"])
def test_a_file_whose_initramfs_was_not_written_is_put_back(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    path = "/etc/modprobe.d/inferops-vllm-nvidia.conf"
    files: dict[str, str | None] = {path: before}
    answers = [Ran(1, "", "cp: error writing: No space left on device"), Ran(0, "")]

    class Module:
        params = {"path": path, "options": {"nvidia.NVreg_X": "1"}, "block": [], "initramfs": True}
        check_mode = False

        def get_bin_path(self, name: str, opt_dirs: Any = None) -> str | None:
            return "/usr/sbin/" + name if name == "update-initramfs" else None

        def atomic_move(self, _temporary: str, _path: str) -> None:
            pass

        def exit_json(self, **found: Any) -> None:
            raise Ended(found)

        def fail_json(self, **found: Any) -> None:
            raise Ended(dict(found, failed=True))

    monkeypatch.setattr(modprobe_options, "AnsibleModule", lambda **_spec: Module())
    monkeypatch.setattr(modprobe_options, "read", files.get)
    monkeypatch.setattr(modprobe_options, "names", lambda _folder: [])
    monkeypatch.setattr(modprobe_options, "writer", lambda _move: lambda where, text: files.update({where: text}))
    monkeypatch.setattr(modprobe_options, "runner", lambda _environment: lambda argv, _limit: answers.pop(0))

    def run() -> Any:
        with pytest.raises(Ended) as found:
            modprobe_options.main()
        return found.value.args[0]

    failed = run()
    assert failed["failed"] and "No space left" in failed["msg"] and files[path] == before
    # The next run does both again, and the one after it nothing.
    done = run()
    assert done["changed"] and done["initramfs"] == "/usr/sbin/update-initramfs -u" and "NVreg_X=1" in str(files[path])
    assert not run()["changed"] and not answers
