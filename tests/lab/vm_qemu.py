# SPDX-License-Identifier: GPL-3.0-or-later
"""The qemu command line of a lab machine, its monitor, and whether KVM can be trusted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import LabError

PROGRAM = "qemu-system-x86_64"

# Inside the lab's own range: the address block that exists only in each machine's management card.
MANAGEMENT_NETWORK = "10.203.77.240/28"
MANAGEMENT_HOST = "10.203.77.241"
REPOSITORY_ADDRESS = "10.203.77.242"
MANAGEMENT_ADDRESS = "10.203.77.250"
MANAGEMENT_PREFIX = 28

# The shared segment without a bridge: one multicast group, on loopback alone.
SEGMENT_GROUP = "230.77.0.1:17701"

KERNEL_ARGUMENTS = (
    "root=/dev/vda",
    "rw",
    "console=ttyS0",
    "quiet",
    "loglevel=3",
    "panic=10",
    "net.ifnames=0",
    "mitigations=off",
    "tsc=reliable",
    "no_timer_check",
    "random.trust_cpu=on",
    "8250.nr_uarts=1",
    "cryptomgr.notests",
    "systemd.show_status=0",
    "systemd.gpt_auto=0",
)


@dataclass(frozen=True)
class Machine:
    """All that the command line is made of."""

    name: str
    number: int
    kernel: Path
    initrd: Path
    disk: Path
    console: Path
    monitor: Path
    ssh_port: int
    repository_port: int
    segment: str = "socket"
    tap: str = ""
    accelerator: str = "tcg"
    memory: int = 1024
    cpus: int = 1


def mac(number: int, card: int) -> str:
    """Locally administered address of a machine's card: 0 segment (eth0), 1 management (eth1)."""
    return f"52:54:00:77:{number:02x}:{card:02x}"


def argv(machine: Machine, extra_kernel_arguments: Sequence[str] = ()) -> list[str]:
    """The command that runs the machine in the foreground, without a screen."""
    kvm = machine.accelerator == "kvm"
    forward = " ".join(
        [
            sys.executable,
            str(Path(__file__).with_name("vm_forward.py")),
            str(machine.repository_port),
        ]
    )
    management = ",".join(
        [
            "user",
            "id=management",
            f"net={MANAGEMENT_NETWORK}",
            f"host={MANAGEMENT_HOST}",
            # Nothing gets out of the machine but to the repository below.
            "restrict=on",
            f"hostfwd=tcp:127.0.0.1:{machine.ssh_port}-{MANAGEMENT_ADDRESS}:22",
            f"guestfwd=tcp:{REPOSITORY_ADDRESS}:80-cmd:{forward}".replace(",", ",,"),
        ]
    )
    if machine.segment == "bridge":
        segment = f"tap,id=segment,ifname={machine.tap},script=no,downscript=no"
    else:
        segment = f"socket,id=segment,mcast={SEGMENT_GROUP},localaddr=127.0.0.1"
    command = [PROGRAM, "-name", f"inferops-lab-{machine.name}", "-nodefaults", "-no-user-config"]
    command += ["-machine", "pc,usb=off,vmport=off", "-no-hpet"]
    command += ["-accel", "kvm" if kvm else "tcg,thread=multi,tb-size=256"]
    command += ["-cpu", "host" if kvm else "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"]
    command += ["-smp", str(machine.cpus), "-m", str(machine.memory), "-display", "none"]
    command += ["-serial", f"file:{machine.console}"]
    command += ["-qmp", f"unix:{machine.monitor},server=on,wait=off"]
    command += ["-kernel", str(machine.kernel), "-initrd", str(machine.initrd)]
    command += ["-append", " ".join([*KERNEL_ARGUMENTS, *extra_kernel_arguments])]
    command += ["-drive", f"if=none,id=root,format=qcow2,discard=unmap,file={machine.disk}"]
    command += ["-device", "virtio-blk-pci,drive=root"]
    for card, (name, backend) in enumerate((("segment", segment), ("management", management))):
        command += ["-netdev", backend, "-device"]
        command += [f"virtio-net-pci,netdev={name},mac={mac(machine.number, card)},romfile="]
    command += ["-object", "rng-random,id=random,filename=/dev/urandom"]
    command += ["-device", "virtio-rng-pci,rng=random"]
    return command


def monitor(path: Path, command: str, timeout: float = 5.0, **arguments: Any) -> Any:
    """Ask a running machine's monitor (QMP). Raises LabError when it does not answer in time."""
    deadline = time.monotonic() + timeout
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout)
            link.connect(str(path))
            stream = link.makefile("rwb")
            stream.readline()
            for name, values in (("qmp_capabilities", {}), (command, arguments)):
                stream.write(json.dumps({"execute": name, "arguments": values}).encode() + b"\n")
                stream.flush()
                while time.monotonic() < deadline:
                    line = stream.readline()
                    if not line:
                        # `quit` may close the link before it answers.
                        return None
                    reply = json.loads(line)
                    if "error" in reply:
                        raise LabError(f"qemu refused {name}: {reply['error'].get('desc')}")
                    if "return" in reply:
                        break
            return reply.get("return")
    except (OSError, ValueError) as err:
        raise LabError(f"the machine's monitor at {path} does not answer: {err}") from err


def kvm_works(kernel: Path, state: Path, deadline: float = 8.0) -> bool:
    """Whether a kernel starts under KVM before the deadline; remembered until the next boot.

    The device may be there and every call on it hang, so a child tries it, and a child that does
    not even die is left behind, not waited for.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    note = state / "vm" / "kvm"
    with contextlib.suppress(OSError):
        known, _, answer = note.read_text().strip().partition(" ")
        if known == boot:
            return answer == "yes"
    works = _try_kvm(kernel, deadline)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(f"{boot} {'yes' if works else 'no'}\n")
    return works


def _try_kvm(kernel: Path, deadline: float) -> bool:
    if shutil.which(PROGRAM) is None:
        return False
    with tempfile.TemporaryDirectory(prefix="inferops-lab-kvm.") as folder:
        console = Path(folder) / "console"
        command = [PROGRAM, "-nodefaults", "-no-user-config", "-machine", "pc", "-accel", "kvm"]
        command += ["-cpu", "host", "-m", "256", "-display", "none", "-serial", f"file:{console}"]
        command += ["-kernel", str(kernel), "-append", "console=ttyS0 earlyprintk=ttyS0"]
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        end = time.monotonic() + deadline
        started = False
        while time.monotonic() < end and child.poll() is None and not started:
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                started = b"Linux version" in console.read_bytes()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
        return started
