# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual machines: what can be known without running one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.lab import vm, vm_image, vm_modules
from tests.lab.apt_repo import load
from tests.lab.settings import Node, Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache=tmp_path / "cache", state=tmp_path / "state")


def record(settings: Settings, name: str = "vm1") -> vm.Vm:
    found = vm.Vm(name, 1, "10.203.77.101", 40022, "6.1", "/image", "tcg", "socket", 1024, 2)
    vm.folder(settings, name).mkdir(parents=True)
    (vm.folder(settings, name) / "vm.json").write_text(json.dumps(found.__dict__))
    return found


def test_record_is_read_back(settings: Settings) -> None:
    assert vm.load(settings, "vm1") is None
    written = record(settings)
    assert vm.load(settings, "vm1") == written
    assert written.node == Node("vm1", "10.203.77.101", "vm")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "vm1"}', '{"unknown": 1}'])
def test_record_that_makes_no_sense_is_none(settings: Settings, text: str) -> None:
    record(settings)
    (vm.folder(settings, "vm1") / "vm.json").write_text(text)
    assert vm.load(settings, "vm1") is None
    assert vm.status(settings) == {}


@pytest.mark.parametrize("name", ["", "vm", "vm0", "vm10", "node1", "vmx", "../vm1"])
def test_name_of_another_form_is_refused(settings: Settings, name: str) -> None:
    with pytest.raises(ValueError, match="vm1 to vm9"):
        vm.machine_number(name)
    with pytest.raises(ValueError, match="vm1 to vm9"):
        vm.destroy(settings, name)


def test_destroy_removes_what_an_unfinished_create_left(settings: Settings) -> None:
    vm.folder(settings, "vm1").mkdir(parents=True)
    vm.disk(settings, "vm1").parent.mkdir(parents=True)
    vm.disk(settings, "vm1").write_bytes(b"half")
    assert vm.destroy_all(settings) == ["vm1"]
    assert not vm.folder(settings, "vm1").exists()
    assert not vm.disk(settings, "vm1").exists()
    assert vm.destroy_all(settings) == []


def test_seed_names_the_machine_and_its_peers() -> None:
    files = vm.seed_files(
        name="vm2",
        address="10.203.77.102",
        prefix=24,
        number=2,
        public_key="ssh-ed25519 AAAA\n",
        host_key=("PRIVATE\n", "ssh-ed25519 BBBB\n"),
        peers={"vm1": "10.203.77.101"},
    )
    assert files["/etc/hostname"] == (b"vm2\n", 0o644)
    assert files["/etc/hosts"][0] == b"127.0.0.1 localhost\n10.203.77.101 vm1\n10.203.77.102 vm2\n"
    assert files["/etc/ssh/ssh_host_ed25519_key"][1] == 0o600
    assert files["/root/.ssh/authorized_keys"] == (b"ssh-ed25519 AAAA\n", 0o600)
    assert b"Address=10.203.77.102/24" in files["/etc/systemd/network/10-segment.network"][0]
    assert b"kind=vm" in files["/etc/inferops-lab/node"][0]
    assert len(files["/etc/machine-id"][0]) == 33


def test_ssh_of_a_machine_trusts_its_own_key_only(settings: Settings) -> None:
    found = record(settings)
    text = vm.ssh_config(settings, found)
    assert "StrictHostKeyChecking yes" in text
    assert f"UserKnownHostsFile {settings.state}/vm/vm1/known_hosts" in text
    assert vm.inventory_vars(settings, found)["ansible_port"] == 40022


def test_banner_is_the_servers_and_not_the_forwardings() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(2)
        port = server.getsockname()[1]

        def answer() -> None:
            first, _ = server.accept()
            first.close()
            second, _ = server.accept()
            second.sendall(b"SSH-2.0-test\r\n")
            second.close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert vm._banner(port) is False
        assert vm._banner(port) is True
        thread.join()


def test_forwarder_joins_its_streams_with_a_port() -> None:
    program = Path(vm.__file__).with_name("vm_forward.py")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        argv = [sys.executable, str(program), str(server.getsockname()[1])]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            link, _ = server.accept()
            with link:
                assert child.stdin and child.stdout
                child.stdin.write(b"GET")
                child.stdin.flush()
                assert link.recv(3) == b"GET"
                link.sendall(b"200 OK")
            assert child.stdout.read() == b"200 OK"
            assert child.wait(5) == 0


def test_forwarder_ends_when_nobody_serves() -> None:
    program = Path(vm.__file__).with_name("vm_forward.py")
    done = subprocess.run([sys.executable, str(program), str(vm.free_port())], stdin=subprocess.DEVNULL, timeout=10, check=False)
    assert done.returncode == 1


def test_command_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setenv("INFEROPS_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("INFEROPS_LAB_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(vm.os, "geteuid", lambda: 1000)
    assert vm.main(["up", "vm1"]) == 2
    assert "need root" in capsys.readouterr().err
    assert vm.main(["up", "web1"]) == 1
    assert "vm1 to vm9" in capsys.readouterr().err


def test_tree_is_made_without_naming_a_mirror() -> None:
    argv = vm_image.mmdebstrap_argv("bookworm", "/t", ["udev", "kmod"], apt_options=["A 1;"], excluded=["/lib/x/*"])
    assert argv[-3:] == ["bookworm", "/t", "-"]
    assert "--aptopt=A 1;" in argv
    assert "--dpkgopt=path-exclude=/lib/x/*" in argv
    assert "--include=kmod,udev" in argv
    assert not any("://" in word for word in argv)


def test_prepared_tree_has_no_keys_no_mirror_and_no_kernel_image(tmp_path: Path) -> None:
    for name, text in {
        "etc/ssh/ssh_host_rsa_key": "secret",
        "etc/apt/sources.list": "deb http://mirror/ x main",
        "etc/apt/sources.list.d/x.list": "deb",
        "etc/apt/apt.conf.d/99mmdebstrap": "proxy",
        "etc/resolv.conf": "nameserver",
        "boot/vmlinuz-6.1": "kernel",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "var").mkdir()
    vm_image.prepare(tmp_path)
    vm_image.prepare(tmp_path)
    assert not list((tmp_path / "etc/ssh").glob("ssh_host_*"))
    assert (tmp_path / "etc/apt/sources.list").read_text() == ""
    assert not list((tmp_path / "etc/apt/sources.list.d").iterdir())
    assert not (tmp_path / "etc/apt/apt.conf.d/99mmdebstrap").exists()
    assert (tmp_path / "boot/vmlinuz-6.1").read_bytes() == b""
    assert (tmp_path / "etc/systemd/system/fstrim.timer").readlink() == Path("/dev/null")


def test_every_release_gets_its_modules_once() -> None:
    _, releases = load()
    builds = vm_modules.builds(releases["drivers"], releases["ofeds"])
    places = [place for build in builds for _, place in build.results]
    assert len(places) == len(set(places))
    for driver in releases["drivers"]:
        for variant in ("inbox", "ofed-a", "ofed-b"):
            assert f"driver/{driver['VERSION']}/open/{variant}/nvidia-peermem.ko" in places
    assert "legacy/1.3/nv_peer_mem.ko" in places
    names = [build.name for build in builds]
    assert len(names) == len(set(names))


def test_modules_are_built_anew_when_a_source_changes(tmp_path: Path) -> None:
    _, releases = load()
    (tmp_path / "nvidia.c").write_text("one")
    first = vm_modules.key("6.1", releases, tmp_path)
    assert vm_modules.key("6.1", releases, tmp_path) == first
    assert vm_modules.key("6.2", releases, tmp_path) != first
    (tmp_path / "nvidia.c").write_text("two")
    assert vm_modules.key("6.1", releases, tmp_path) != first


@pytest.mark.parametrize("path", sorted(vm_modules.SOURCES.glob("*.c")), ids=lambda path: path.name)
def test_every_module_says_that_it_is_a_stand_in(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "SPDX-License-Identifier: GPL-3.0-or-later" in text
    described = 'MODULE_DESCRIPTION("stand-in' in text or '#include "child.h"' in text or path.name == "library.c"
    assert described, "modinfo must tell a stand-in from a driver"
