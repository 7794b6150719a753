# SPDX-License-Identifier: GPL-3.0-or-later
"""The qemu command line, the monitor and the trial of KVM."""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from pathlib import Path

import pytest

from tests.lab import vm_qemu
from tests.lab.errors import LabError
from tests.lab.settings import Settings


def machine(**changes: object) -> vm_qemu.Machine:
    values: dict[str, object] = {
        "name": "vm3",
        "number": 3,
        "kernel": Path("/k"),
        "initrd": Path("/i"),
        "disk": Path("/d.qcow2"),
        "console": Path("/c"),
        "monitor": Path("/m"),
        "ssh_port": 40022,
        "repository_port": 8477,
    }
    return vm_qemu.Machine(**{**values, **changes})  # type: ignore[arg-type]


def after(argv: list[str], option: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == option]


def test_everything_listens_on_loopback_and_nothing_leads_out() -> None:
    argv = vm_qemu.argv(machine())
    segment, management = after(argv, "-netdev")
    assert "restrict=on" in management
    assert "hostfwd=tcp:127.0.0.1:40022-10.203.77.250:22" in management
    assert segment == "socket,id=segment,mcast=230.77.0.1:17701,localaddr=127.0.0.1"


def test_segment_on_the_bridge_is_a_tap_without_scripts() -> None:
    segment, _ = after(vm_qemu.argv(machine(segment="bridge", tap="iolab-vm3")), "-netdev")
    assert segment == "tap,id=segment,ifname=iolab-vm3,script=no,downscript=no"


@pytest.mark.parametrize(("accelerator", "given", "cpu"), [("tcg", "tcg,thread=multi,tb-size=256", "qemu64"), ("kvm", "kvm", "host")])
def test_accelerator(accelerator: str, given: str, cpu: str) -> None:
    argv = vm_qemu.argv(machine(accelerator=accelerator))
    assert after(argv, "-accel") == [given]
    assert after(argv, "-cpu")[0].startswith(cpu)


def test_cards_differ_between_machines_and_the_segment_comes_first() -> None:
    found = {vm_qemu.mac(number, card) for number in range(1, 10) for card in (0, 1)}
    assert len(found) == 18
    devices = [value for value in after(vm_qemu.argv(machine()), "-device") if "virtio-net" in value]
    assert [value.split(",")[1] for value in devices] == ["netdev=segment", "netdev=management"]


def test_kernel_arguments_can_be_added() -> None:
    argv = vm_qemu.argv(machine(), ["iommu=pt"])
    assert after(argv, "-append")[0].endswith(" iommu=pt")


def test_management_addresses_lie_in_the_lab_range_and_away_from_its_nodes() -> None:
    settings = Settings(cache=Path("/c"))
    management = ipaddress.IPv4Network(vm_qemu.MANAGEMENT_NETWORK)
    assert management.subnet_of(settings.network)
    for address in (vm_qemu.MANAGEMENT_HOST, vm_qemu.REPOSITORY_ADDRESS, vm_qemu.MANAGEMENT_ADDRESS):
        assert ipaddress.IPv4Address(address) in management
    nodes = [settings.container_node(number).address for number in range(1, 10)]
    nodes += [str(settings.network[100 + number]) for number in range(1, 10)]
    assert not any(ipaddress.IPv4Address(address) in management for address in nodes)


def serve_monitor(path: Path, replies: list[dict[str, object]]) -> threading.Thread:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)

    def answer() -> None:
        link, _ = server.accept()
        with link, server, link.makefile("rwb") as stream:
            stream.write(b'{"QMP": {}}\n')
            stream.flush()
            for reply in replies:
                stream.readline()
                stream.write(json.dumps(reply).encode() + b"\n")
                stream.flush()

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_monitor_passes_over_events_until_the_link_closes(tmp_path: Path) -> None:
    thread = serve_monitor(tmp_path / "m", [{"return": {}}, {"event": "RESET"}])
    assert vm_qemu.monitor(tmp_path / "m", "quit", timeout=2) is None
    thread.join()


def test_monitor_returns_the_answer(tmp_path: Path) -> None:
    thread = serve_monitor(tmp_path / "m", [{"return": {}}, {"return": {"status": "running"}}])
    assert vm_qemu.monitor(tmp_path / "m", "query-status") == {"status": "running"}
    thread.join()


def test_monitor_says_what_qemu_refused(tmp_path: Path) -> None:
    thread = serve_monitor(tmp_path / "m", [{"return": {}}, {"error": {"desc": "no such command"}}])
    with pytest.raises(LabError, match="no such command"):
        vm_qemu.monitor(tmp_path / "m", "nonsense")
    thread.join()


def test_monitor_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="does not answer"):
        vm_qemu.monitor(tmp_path / "none", "quit", timeout=0.5)


def test_kvm_answer_is_remembered_for_this_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(vm_qemu.os, "access", lambda *_: True)
    monkeypatch.setattr(vm_qemu, "_try_kvm", lambda *_: bool(tried.append(1)))
    assert vm_qemu.kvm_works(Path("/k"), tmp_path) is False
    assert vm_qemu.kvm_works(Path("/k"), tmp_path) is False
    assert len(tried) == 1
    (tmp_path / "vm/kvm").write_text("another-boot yes\n")
    assert vm_qemu.kvm_works(Path("/k"), tmp_path) is False
    assert len(tried) == 2


def test_kvm_that_hangs_is_given_up_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "qemu"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(vm_qemu, "PROGRAM", str(hanging))
    assert vm_qemu._try_kvm(Path("/k"), deadline=0.3) is False
