# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual machines of the lab: own kernel, real modules, real reboots.

    python -m tests.lab.vm up vm1 [vm2 …]      create, start and wait for SSH
    python -m tests.lab.vm ssh vm1 [command …]
    python -m tests.lab.vm reboot|stop|start|kill vm1
    python -m tests.lab.vm rxe vm1             soft RoCE device rxe0 on the segment card
    python -m tests.lab.vm status
    python -m tests.lab.vm down [vm1 …]        remove, all when none is named

A machine has two cards: eth0 on a segment shared with the other machines (and with the container
nodes when the lab bridge is up), eth1 for SSH from this machine (127.0.0.1, a port of its own) and
for the package repository. Nothing leads out of this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import network, processes, vm_image, vm_initrd, vm_qemu
from . import ssh as ssh_keys
from .errors import CannotRunHere, LabError
from .settings import Node, Settings

# Where tests.lab.apt_repo serves; machines reach it as http://10.203.77.242/ (container nodes
# through the bridge address).
REPOSITORY_PORT = 8477

BOOT_LIMIT = 300.0


@dataclass(frozen=True)
class Vm:
    """One machine as recorded in the state folder."""

    name: str
    number: int
    address: str
    ssh_port: int
    release: str
    image: str
    accelerator: str
    segment: str
    memory: int
    cpus: int

    @property
    def node(self) -> Node:
        return Node(self.name, self.address, "vm")


def missing() -> str:
    """What this machine lacks to run virtual machines, as one sentence; empty when nothing."""
    if os.geteuid() != 0:
        return "virtual machines need root here"
    for program, package in (
        (vm_qemu.PROGRAM, "qemu-system-x86"),
        ("qemu-img", "qemu-utils"),
        ("mkfs.ext4", "e2fsprogs"),
        ("mmdebstrap", "mmdebstrap"),
        ("ssh-keygen", "openssh-client"),
    ):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install {package})"
    return ""


def machine_number(name: str) -> int:
    """The number in vm1 to vm9. Raises ValueError for any other name."""
    if len(name) != 3 or not name.startswith("vm") or name[2] not in "123456789":
        raise ValueError(f"a virtual machine is called vm1 to vm9, not {name!r}")
    return int(name[2])


def segment_address(settings: Settings, number: int) -> str:
    return str(settings.network[100 + number])


def folder(settings: Settings, name: str) -> Path:
    """Small files of one machine: record, keys, monitor, console."""
    return settings.state / "vm" / name


def disk(settings: Settings, name: str) -> Path:
    """The machine's copy-on-write layer."""
    return settings.scratch / "vm" / name / "root.qcow2"


def _group(name: str) -> str:
    return f"vm-{name}"


def _run(argv: Sequence[str], timeout: float = 60.0) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise LabError(f"`{shlex.join(argv)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextlib.contextmanager
def _locked(settings: Settings, name: str) -> Iterator[None]:
    """One change to a machine at a time, whoever asks."""
    path = settings.state / "vm" / f".{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load(settings: Settings, name: str) -> Vm | None:
    """The recorded machine, None when there is none or its record is unreadable."""
    try:
        record = json.loads((folder(settings, name) / "vm.json").read_text(encoding="utf-8"))
        return Vm(**record)
    except (OSError, ValueError, TypeError):
        return None


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def seed_files(
    *,
    name: str,
    address: str,
    prefix: int,
    number: int,
    public_key: str,
    host_key: tuple[str, str],
    peers: Mapping[str, str] | None = None,
) -> dict[str, tuple[bytes, int]]:
    """The files that make a machine of the shared disk: path to (content, mode).

    peers: name to address of the other nodes.
    """
    everyone = {**(peers or {}), name: address}
    hosts = "".join(f"{value} {key}\n" for key, value in sorted(everyone.items()))

    def network(card: int, cidr: str) -> str:
        return f"[Match]\nMACAddress={vm_qemu.mac(number, card)}\n\n[Network]\nAddress={cidr}\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"

    management = f"{vm_qemu.MANAGEMENT_ADDRESS}/{vm_qemu.MANAGEMENT_PREFIX}"
    texts = {
        "/etc/hostname": (f"{name}\n", 0o644),
        "/etc/hosts": (f"127.0.0.1 localhost\n{hosts}", 0o644),
        "/etc/machine-id": (f"{0x1AB0000 + number:032x}\n", 0o444),
        "/etc/systemd/network/10-segment.network": (network(0, f"{address}/{prefix}"), 0o644),
        "/etc/systemd/network/20-management.network": (network(1, management), 0o644),
        "/etc/ssh/ssh_host_ed25519_key": (host_key[0], 0o600),
        "/etc/ssh/ssh_host_ed25519_key.pub": (host_key[1], 0o644),
        "/root/.ssh/authorized_keys": (public_key, 0o600),
        # Says to whoever reads this machine that it is none of the real ones.
        "/etc/inferops-lab/node": (f"name={name}\nkind=vm\n", 0o644),
    }
    return {path: (text.encode(), mode) for path, (text, mode) in texts.items()}


def create(
    settings: Settings,
    name: str,
    *,
    memory: int = 1024,
    cpus: int = 1,
    segment: str = "auto",
    accelerator: str = "auto",
    peers: Mapping[str, str] | None = None,
) -> Vm:
    """Make the machine's disk, keys and record; a machine that exists is returned as it is.

    segment: bridge (a tap on the lab bridge), socket (machines only), auto (bridge when it is up).
    accelerator: kvm, tcg, auto. peers: names and addresses for its /etc/hosts.
    Raises CannotRunHere, LabError, and ValueError for a bad name.
    """
    number = machine_number(name)
    if lack := missing():
        raise CannotRunHere(lack)
    image = vm_image.ensure(settings)
    with _locked(settings, name):
        found = load(settings, name)
        # A machine whose shared disk went from the cache cannot start again.
        if found and disk(settings, name).is_file() and Path(found.image).is_dir():
            return found
        _remove(settings, name)
        if segment == "auto":
            segment = "bridge" if settings.bridge in network.links() else "socket"
        if accelerator == "auto":
            works = vm_qemu.kvm_works(image.kernel, settings.state)
            accelerator = "kvm" if works else "tcg"
        home = folder(settings, name)
        home.mkdir(parents=True, mode=0o700)
        node = Node(name, segment_address(settings, number), "vm", settings.suite)
        login_key = ssh_keys.ensure_login_key(settings) + "\n"
        host_key = ssh_keys.ensure_host_key(settings, node)
        public = host_key.with_suffix(".pub").read_text(encoding="utf-8")
        vm = Vm(
            name=name,
            number=number,
            address=node.address,
            ssh_port=free_port(),
            release=image.release,
            image=str(image.folder),
            accelerator=accelerator,
            segment=segment,
            memory=memory,
            cpus=cpus,
        )
        files = seed_files(
            name=name,
            address=vm.address,
            prefix=settings.prefix_length,
            number=number,
            public_key=login_key,
            host_key=(host_key.read_text(encoding="utf-8"), public),
            peers=peers,
        )
        initrd = image.initrd.read_bytes() + vm_initrd.seed(secrets.token_hex(8), files)
        (home / "initrd").write_bytes(initrd)
        (home / "known_hosts").write_text(f"[127.0.0.1]:{vm.ssh_port} {public}")
        (home / "ssh_config").write_text(ssh_config(settings, vm))
        layer = disk(settings, name)
        layer.parent.mkdir(parents=True, exist_ok=True)
        _run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image.disk)] + [str(layer)])
        (home / "vm.json").write_text(json.dumps(dataclasses.asdict(vm)) + "\n")
        return vm


def ssh_config(settings: Settings, vm: Vm) -> str:
    return (
        f"Host {vm.name}\n  HostName 127.0.0.1\n  Port {vm.ssh_port}\n  User root\n"
        f"  IdentityFile {settings.ssh_key}\n  IdentitiesOnly yes\n  BatchMode yes\n"
        f"  UserKnownHostsFile {folder(settings, vm.name) / 'known_hosts'}\n"
        "  StrictHostKeyChecking yes\n  ConnectTimeout 30\n  ServerAliveInterval 10\n"
        "  LogLevel ERROR\n"
    )


def inventory_vars(settings: Settings, vm: Vm) -> dict[str, Any]:
    """How Ansible reaches the machine."""
    return {
        "ansible_host": "127.0.0.1",
        "ansible_port": vm.ssh_port,
        "ansible_user": "root",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(settings.ssh_key),
        "ansible_ssh_common_args": (
            f"-o UserKnownHostsFile={folder(settings, vm.name) / 'known_hosts'} -o GlobalKnownHostsFile=/dev/null"
            " -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes"
        ),
        "lab_kind": "vm",
        "vllm_host_ip": vm.address,
        "vllm_interface": "eth0",
    }


def _tap(name: str) -> str:
    return f"iolab-{name}"


def start(settings: Settings, name: str) -> Vm:
    """Start the machine; one that runs is left alone. Does not wait for SSH."""
    with _locked(settings, name):
        vm = load(settings, name)
        if vm is None:
            raise LabError(f"there is no virtual machine {name}: create it first")
        if processes.members(_group(name)):
            return vm
        processes.end(_group(name))
        home = folder(settings, name)
        (home / "monitor").unlink(missing_ok=True)
        if vm.segment == "bridge":
            _remove_tap(name)
            _run(["ip", "tuntap", "add", "dev", _tap(name), "mode", "tap"])
            _run(["ip", "link", "set", _tap(name), "master", settings.bridge, "up"])
        machine = vm_qemu.Machine(
            name=name,
            number=vm.number,
            kernel=Path(vm.image) / "vmlinux",
            initrd=home / "initrd",
            disk=disk(settings, name),
            console=home / "console",
            monitor=home / "monitor",
            ssh_port=vm.ssh_port,
            repository_port=REPOSITORY_PORT,
            segment=vm.segment,
            tap=_tap(name),
            accelerator=vm.accelerator,
            memory=vm.memory,
            cpus=vm.cpus,
        )
        processes.start(_group(name), vm_qemu.argv(machine), home / "qemu.log")
        time.sleep(0.3)
        if not processes.members(_group(name)):
            log = (home / "qemu.log").read_text(encoding="utf-8", errors="replace")
            raise LabError(f"qemu did not start {name}: {log.strip().splitlines()[-1:]}")
        return vm


def _remove_tap(name: str) -> None:
    # Not from /sys, which may be that of another network namespace.
    if _tap(name) in network.links():
        _run(["ip", "link", "delete", _tap(name)])


def ssh_argv(settings: Settings, name: str, *command: str) -> list[str]:
    argv = ["ssh", "-F", str(folder(settings, name) / "ssh_config"), name]
    return [*argv, "--", *command] if command else argv


def ssh(settings: Settings, name: str, command: str, *, timeout: float = 120.0, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a shell command on the machine. Raises LabError when it fails and check is true."""
    try:
        done = subprocess.run(
            ssh_argv(settings, name, command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise LabError(f"on {name}, `{command}` took longer than {timeout:.0f} s") from err
    if check and done.returncode:
        raise LabError(f"on {name}, `{command}` ended with {done.returncode}: {done.stderr.strip()} {done.stdout.strip()}")
    return done


def _banner(port: int) -> bool:
    """Whether an SSH server, and not only qemu's forwarding, answers on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as link:
            # A machine that is still booting on a busy host may take seconds over its greeting.
            link.settimeout(8)
            return link.recv(4) == b"SSH-"
    except OSError:
        return False


def boot_id(settings: Settings, name: str) -> str:
    """Changes with every boot; empty when the machine does not answer."""
    try:
        done = ssh(settings, name, "cat /proc/sys/kernel/random/boot_id", timeout=40.0, check=False)
    except LabError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def wait(settings: Settings, name: str, *, limit: float = BOOT_LIMIT, after: str = "") -> float:
    """Wait until the machine answers over SSH; returns the seconds waited.

    after: the boot id that must be gone (wait for the next boot). Raises LabError at the limit or
    when qemu has ended.
    """
    began = time.monotonic()
    vm = load(settings, name)
    if vm is None:
        raise LabError(f"there is no virtual machine {name}")
    while time.monotonic() - began < limit:
        if not processes.members(_group(name)):
            raise LabError(f"qemu of {name} has ended: see {folder(settings, name) / 'qemu.log'}")
        if _banner(vm.ssh_port) and boot_id(settings, name) not in ("", after):
            return time.monotonic() - began
        time.sleep(0.5)
    raise LabError(f"{name} did not answer over SSH within {limit:.0f} s: see {folder(settings, name) / 'console'}")


def reboot(settings: Settings, name: str, *, limit: float = BOOT_LIMIT) -> float:
    """Reboot from inside, as a role does, and wait; returns the seconds until SSH answers."""
    before = boot_id(settings, name)
    if not before:
        raise LabError(f"{name} does not answer, so it cannot be asked to reboot")
    began = time.monotonic()
    ssh(settings, name, "systemctl reboot", check=False)
    wait(settings, name, limit=limit, after=before)
    return time.monotonic() - began


def stop(settings: Settings, name: str, *, hard: bool = False, limit: float = 60.0) -> None:
    """Power the machine off; hard: pull the plug. One that does not run is left alone."""
    if not hard and processes.members(_group(name)):
        with contextlib.suppress(LabError):
            ssh(settings, name, "systemctl poweroff", timeout=10.0, check=False)
        deadline = time.monotonic() + limit
        while processes.members(_group(name)) and time.monotonic() < deadline:
            time.sleep(0.2)
    with _locked(settings, name):
        processes.end(_group(name))
        _remove_tap(name)


def _remove(settings: Settings, name: str) -> None:
    processes.end(_group(name))
    _remove_tap(name)
    shutil.rmtree(folder(settings, name), ignore_errors=True)
    shutil.rmtree(disk(settings, name).parent, ignore_errors=True)


def destroy(settings: Settings, name: str) -> None:
    """Remove the machine with everything it left, also after a crash half-way."""
    machine_number(name)
    with _locked(settings, name):
        _remove(settings, name)
    (settings.state / "vm" / f".{name}.lock").unlink(missing_ok=True)


def destroy_all(settings: Settings) -> list[str]:
    """Remove every machine that left a record, a disk, a card or a process; returns their names."""
    found = {group[3:] for group in processes.names() if group.startswith("vm-")}
    found |= {link[len(_tap("")) :] for link in network.links() if link.startswith(_tap("vm"))}
    for place in (settings.state / "vm", settings.scratch / "vm"):
        if place.is_dir():
            found |= {path.name for path in place.iterdir() if path.is_dir()}
    names = []
    for name in sorted(found):
        with contextlib.suppress(ValueError):
            destroy(settings, name)
            names.append(name)
    (settings.state / "vm" / "kvm").unlink(missing_ok=True)
    for place in (settings.scratch / "vm", settings.state / "vm"):
        with contextlib.suppress(OSError):
            place.rmdir()
    return names


def status(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every recorded machine: how it runs and what its disk layer takes."""
    found: dict[str, dict[str, Any]] = {}
    home = settings.state / "vm"
    for path in sorted(home.iterdir()) if home.is_dir() else []:
        if not path.is_dir() or (vm := load(settings, path.name)) is None:
            continue
        layer = disk(settings, path.name)
        found[path.name] = {
            "running": bool(processes.members(_group(path.name))),
            "answers": _banner(vm.ssh_port),
            "ssh": f"127.0.0.1:{vm.ssh_port}",
            "address": vm.address,
            "segment": vm.segment,
            "accelerator": vm.accelerator,
            "kernel": vm.release,
            "disk_mib": round(layer.stat().st_blocks * 512 / 2**20, 1) if layer.exists() else 0,
        }
    return found


def rxe(settings: Settings, name: str, device: str = "rxe0") -> list[dict[str, Any]]:
    """A soft RoCE device on the segment card, now and after each reboot.

    Returns the machine's `rdma -j link`.
    """
    ssh(
        settings,
        name,
        f"echo {shlex.quote(device)} eth0 > /etc/inferops-lab/rxe && /usr/local/lib/inferops-lab/rxe-up",
    )
    links: list[dict[str, Any]] = json.loads(ssh(settings, name, "rdma -j link").stdout)
    return links


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.vm", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "verb",
        choices=["up", "ssh", "reboot", "stop", "start", "kill", "rxe", "status", "down", "image"],
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--memory", type=int, default=1024, help="MiB a machine")
    parser.add_argument("--cpus", type=int, default=1, help="under emulation one boots faster than two")
    parser.add_argument("--segment", choices=["auto", "bridge", "socket"], default="auto")
    parser.add_argument("--accelerator", choices=["auto", "kvm", "tcg"], default="auto")
    options, rest = parser.parse_known_args(arguments)
    settings = Settings.from_environment()
    try:
        return _main(settings, options, [*options.names, *rest])
    except (LabError, ValueError) as err:
        print(f"lab: {err}", file=sys.stderr)
        return getattr(err, "exit_code", 1)


def _main(settings: Settings, options: argparse.Namespace, names: list[str]) -> int:
    verb = options.verb
    if verb == "status":
        print(json.dumps(status(settings), indent=2))
    elif verb == "image":
        print(vm_image.ensure(settings).folder)
    elif verb == "down":
        for name in names:
            destroy(settings, name)
        print(*(names or destroy_all(settings)))
    elif verb == "up":
        for name in names or ["vm1"]:
            create(
                settings,
                name,
                memory=options.memory,
                cpus=options.cpus,
                segment=options.segment,
                accelerator=options.accelerator,
            )
            start(settings, name)
        for name in names or ["vm1"]:
            print(f"{name}: SSH after {wait(settings, name):.1f} s")
    elif not names:
        raise LabError(f"name the machine to {verb}")
    elif verb == "ssh":
        os.execvp("ssh", ssh_argv(settings, names[0], *names[1:]))
    elif verb == "rxe":
        print(json.dumps(rxe(settings, names[0])))
    elif verb == "reboot":
        print(f"{names[0]}: SSH again after {reboot(settings, names[0]):.1f} s")
    elif verb == "start":
        start(settings, names[0])
        print(f"{names[0]}: SSH after {wait(settings, names[0]):.1f} s")
    else:
        stop(settings, names[0], hard=verb == "kill")
    return 0


if __name__ == "__main__":
    sys.exit(main())
