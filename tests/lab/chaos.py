# SPDX-License-Identifier: GPL-3.0-or-later
"""Kill a driver remediation at random points, run it again, and look at what it left.

    PYTHONPATH=collections python -m tests.lab.chaos                  the three seeds of today
    PYTHONPATH=collections python -m tests.lab.chaos --all            all twenty
    PYTHONPATH=collections python -m tests.lab.chaos --seeds 3 17     these

A seed says what dies (the controller, the node, or the network between them) and when: at which task of the run, and how many seconds into it.
Then the same playbook runs once more, and the node must be healthy, or the report must name what a person has to do; in both cases
no remedy is left under way, dpkg is whole, and the driver that is loaded is the one that is installed unless that is what was named.
Prints one line of a table a seed; docs/MEASURES.md keeps them.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import apt_repo, container, costume, lab, machine, mounts, processes, ssh, vm
from .errors import LabError
from .settings import REPOSITORY, Settings

SEEDS = tuple(range(1, 21))
MACHINE_SEEDS = (7, 10, 18)
"""Seeds that run on a virtual machine: a kernel, modules and a disk of its own, and minutes instead of seconds."""
SHORT_SEEDS = tuple(seed for seed in SEEDS if seed not in MACHINE_SEEDS)
"""Those of which three are run every day."""
OLD, NEW = "575.57.08", "580.126.20"
TASKS = 42
"""Tasks that an undisturbed run of one remedy begins, less the last few, after which nothing is left to interrupt."""
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 --allow-downgrades --allow-change-held-packages install "
LONG = 1800.0
ESCALATED = ("person", "given_up", "forbidden", "not_allowed")


@dataclass(frozen=True)
class Blow:
    """What a seed does: `what` dies, `delay` seconds after the first task that holds `word`, or after task number `task`; the network for `cut` seconds."""

    seed: int
    kind: str
    what: str
    word: str
    task: int
    delay: float
    cut: float


def blow(seed: int) -> Blow:
    """What the seed does; the same on every machine."""
    dice = random.Random(seed)
    kind = "vm" if seed in MACHINE_SEEDS else "container"
    what = ("controller", "node", "network")[seed % 3]
    # The packages take most of the time, and are where a half state could stay.
    word = dice.choice(["Install driver branch", "Install driver branch", "Load the installed driver", ""])
    stretch = 6.0 if kind == "vm" else 1.0
    return Blow(seed, kind, what, word, dice.randint(8, TASKS), dice.uniform(0.0, 5.0 * stretch), dice.uniform(5.0, 45.0))


def today(day: datetime.date) -> tuple[int, ...]:
    """Three seeds of a container node, others on the next day."""
    first = day.toordinal() * 3
    return tuple(SHORT_SEEDS[(first + at) % len(SHORT_SEEDS)] for at in range(3))


class Target:
    """One node of the lab, looked at without Ansible."""

    def __init__(self, settings: Settings, kind: str) -> None:
        self.settings = settings
        self.kind = kind
        self.name = "vm1" if kind == "vm" else "node1"

    def run(self, command: str, timeout: float = 900.0) -> str:
        return costume.run(self.settings, costume.find(self.settings, self.name), command, timeout=timeout).strip()

    def reset(self) -> None:
        """The old driver, loaded, with the pin of its branch; nothing of an earlier seed."""
        if self.kind == "vm":
            # A new disk: nothing of what an earlier seed did to it stays.
            vm.destroy(self.settings, self.name)
            vm.create(self.settings, self.name)
            vm.start(self.settings, self.name)
            vm.wait(self.settings, self.name, limit=LONG)
            lab.write_inventory(self.settings)
            costume.dress(self.settings, self.name, "b300")
            costume.use_repository(self.settings, self.name)
            names = ("nvidia-open", "nvidia-dkms-open", "nvidia-kernel-common", "libnvidia-compute", "nvidia-utils", "nvidia-modprobe", "nvidia-persistenced")
            self.run(INSTALL + "linux-headers-$(uname -r) " + " ".join(f"{name}={OLD}-1" for name in names), LONG)
            self.run("modprobe nvidia && systemctl start nvidia-persistenced")
        else:
            costume.dress(self.settings, self.name, "b300", ["driver_r575"])
            costume.use_repository(self.settings, self.name)
            self.run("mkdir -p /lib/modules/$(uname -r)/build && touch /lib/modules/$(uname -r)/build/Makefile")
            self.run("rm -f /etc/apt/preferences.d/inferops-vllm-driver /etc/modules-load.d/inferops-vllm-*; dpkg --configure -a; "
                     "DEBIAN_FRONTEND=noninteractive apt-get -q -y purge 'nvidia-driver-pinning-*' 'nvidia-fabricmanager*' nvlsm || true")
            self.run(INSTALL + "nvidia-driver-pinning-575")
            self.run(INSTALL + "nvidia-open nvidia-fabricmanager-575")
            self.run("systemctl enable --now nvidia-fabricmanager nvidia-persistenced")
        self.run("rm -rf /var/lib/inferops-vllm; sync")

    def die(self) -> None:
        """The plug is pulled, and the node boots again."""
        if self.kind == "vm":
            vm.stop(self.settings, self.name, hard=True)
            vm.start(self.settings, self.name)
            vm.wait(self.settings, self.name, limit=LONG)
            return
        node = costume.find(self.settings, self.name)
        group = container.process_name(node)
        traces = container.nspawn_traces(self.settings, node)
        processes.end(group)
        for left in traces:
            if left.is_dir():
                mounts.unmount_below(left)
            else:
                left.unlink(missing_ok=True)
        boot = ["/bin/sh", "-c", 'while "$@"; [ $? -eq 133 ]; do :; done', "sh", *container.nspawn_argv(self.settings, node)]
        processes.start(group, boot, self.settings.state / "logs" / f"{node.name}.log", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        ssh.wait(self.settings, node, 300.0)

    def network(self, up: bool) -> None:
        """Cut the node off, or join it again."""
        if self.kind == "vm":
            # SSH of a machine goes through qemu: one that stands still answers nobody.
            for pid in processes.members(f"vm-{self.name}"):
                os.kill(pid, signal.SIGCONT if up else signal.SIGSTOP)
        else:
            subprocess.run(["ip", "link", "set", f"vb-{self.name}", "up" if up else "down"], check=True)

    def faults(self) -> list[str]:
        """What is half done on the node, in plain words; empty when nothing is."""
        found = []
        text = self.run("cat /var/lib/inferops-vllm/remediation.json 2>/dev/null || true")
        if text and json.loads(text)["current"] is not None:
            found.append("a remedy is under way: %s" % json.loads(text)["current"]["remedy"])
        if audit := self.run("/usr/bin/dpkg --audit; ls /var/lib/dpkg/updates"):
            found.append("dpkg is not whole: " + " ".join(audit.split())[:120])
        if self.run("fuser /var/lib/dpkg/lock-frontend 2>/dev/null || true"):
            found.append("something still installs")
        loaded, installed = self.run("cat /sys/module/nvidia/version 2>/dev/null || true"), self.run("modinfo -F version nvidia 2>/dev/null || true")
        if not loaded or loaded != installed:
            found.append(f"driver {loaded or 'none'} is loaded and {installed or 'none'} is installed")
        return found


@dataclass
class Ended:
    """How the second run left the node."""

    blow: Blow
    healthy: bool
    escalation: str
    faults: list[str]
    at: str
    seconds: float
    text: str

    @property
    def right(self) -> bool:
        """Healthy, or named; a difference between loaded and installed driver is allowed when it is what was named."""
        serious = [fault for fault in self.faults if not (self.escalation and fault.startswith("driver "))]
        return not serious and (self.healthy or bool(self.escalation))

    @property
    def row(self) -> str:
        """One line of the table in docs/MEASURES.md."""
        said = "healthy" if self.healthy else "escalated: " + self.escalation if self.escalation else "neither healthy nor escalated"
        where = f"task {self.at}, {self.blow.delay:.1f} s in"
        said = "; ".join([said, *self.faults])
        return f"| {self.blow.seed} | {self.blow.kind} | {self.blow.what} | {where} | {said} | {self.seconds:.0f} |"


def _argv(settings: Settings, target: Target, folder: Path) -> list[str]:
    everyone = folder / "everyone.yml"
    everyone.write_text("all: {children: {vllm_nodes: {children: {lab_machines: {}}}}}\n", encoding="utf-8")
    words = {"vllm_hardware": "b300", "remediate_allow": ["driver", "reboot"], "driver_unhold": True, "remediate_report_dir": str(folder / "reports"),
             "evidence_dir": str(folder / "evidence"), "preflight_timeout": 240, "remediate_areas": ["driver"], "remediate_budget": 6}
    return [str(Path(sys.executable).with_name("ansible-playbook")), "inferops.vllm.remediate", "-i", str(settings.inventory), "-i", str(everyone),
            "--limit", f"{target.name},localhost", "-e", json.dumps(words), "--timeout", "30"]


def _environment() -> dict[str, str]:
    return {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "PYTHONUNBUFFERED": "1",
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=10 -o ServerAliveCountMax=6"}


def disturbed(settings: Settings, target: Target, one: Blow, folder: Path, say: Callable[[str], None]) -> str:
    """Run the playbook and strike it; returns the name of the task that was struck, empty when the run was over before."""
    started = subprocess.Popen(_argv(settings, target, folder), cwd=REPOSITORY, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)
    struck: list[str] = []
    hit = threading.Event()

    def read() -> None:
        number = 0
        assert started.stdout is not None
        with (folder / "first.log").open("w", encoding="utf-8") as sink:
            for line in started.stdout:
                sink.write(line)
                if line.startswith("TASK ["):
                    number += 1
                    # The check of a role's arguments names what follows at its end.
                    name = line[6:].split("]")[0].split(" : ")[-1].split(" - ")[-1]
                    if not hit.is_set() and (one.word in name if one.word else number >= one.task):
                        struck.append(f"{number} ({name})")
                        hit.set()
        hit.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    hit.wait(LONG)
    if struck:
        time.sleep(one.delay)
        if started.poll() is None:
            say(f"seed {one.seed}: {one.what} dies at task {struck[0]}")
        if one.what == "controller":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
        elif one.what == "node":
            target.die()
        else:
            target.network(False)
            time.sleep(one.cut)
            target.network(True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(600.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    reader.join(10.0)
    return struck[0] if struck else ""


def strike(settings: Settings, seed: int, say: Callable[[str], None]) -> Ended:
    """One seed, from a fresh old driver to the look at what is left. Raises LabError when the lab itself fails."""
    one = blow(seed)
    target = Target(settings, one.kind)
    target.reset()
    with tempfile.TemporaryDirectory(prefix="inferops-chaos.") as name:
        folder = Path(name)
        at = disturbed(settings, target, one, folder, say)
        (folder / "reports" / "remediation.json").unlink(missing_ok=True)
        began = time.monotonic()
        again = subprocess.run(_argv(settings, target, folder), cwd=REPOSITORY, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, timeout=LONG, check=False)
        seconds = time.monotonic() - began
        report = folder / "reports" / "remediation.json"
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        text = (folder / "first.log").read_text(encoding="utf-8") + "\n==== again ====\n" + again.stdout
    left = (found.get("nodes") or {}).get(target.name, {}).get("left") or []
    named = [step["why"] for step in left if step["kind"] in ESCALATED]
    faults = target.faults()
    loaded = target.run("cat /sys/module/nvidia/version 2>/dev/null || true")
    healthy = again.returncode == 0 and found.get("outcome") == "healthy" and loaded == NEW and not faults
    return Ended(one, healthy, "; ".join(named)[:200], faults, at or "none: it was over", seconds, text)


@contextlib.contextmanager
def arena(settings: Settings, seeds: Sequence[int], say: Callable[[str], None]) -> Iterator[None]:
    """A lab with what the seeds need; one that is up is used, and stays."""
    kinds = {blow(seed).kind for seed in seeds}
    mine = not lab.recorded(settings)
    try:
        if mine or "vm" in kinds:
            lab.up(settings, [settings.container_node(1)] if mine else [], ["vm1"] if "vm" in kinds else [], False, say)
        apt_repo.serve(settings)
        yield
    finally:
        if mine:
            apt_repo.stop(settings)
            lab.down(settings, say)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.chaos", description="Kill a driver remediation at random points, and run it again.")
    parser.add_argument("--seeds", type=int, nargs="+", choices=SEEDS, metavar="N")
    parser.add_argument("--all", action="store_true", help="all twenty seeds")
    parser.add_argument("--log", type=Path, help="folder for what the runs print, one file a seed")
    options = parser.parse_args(arguments)
    seeds = tuple(options.seeds or (SEEDS if options.all else today(datetime.datetime.now(datetime.timezone.utc).date())))

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if reason := machine.obstacle() or vm.missing():
        say(f"chaos: left out: {reason}")
        return 2
    settings = Settings.from_environment()
    wrong = 0
    try:
        with arena(settings, seeds, say):
            print(f"Run of {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, seeds {', '.join(map(str, seeds))}\n")
            print("| seed | node | what died | when | after one more run | seconds of that run |\n|---|---|---|---|---|---|", flush=True)
            for seed in seeds:
                ended = strike(settings, seed, say)
                if options.log:
                    options.log.mkdir(parents=True, exist_ok=True)
                    (options.log / f"seed-{seed}.log").write_text(ended.text, encoding="utf-8")
                wrong += not ended.right
                print(ended.row, flush=True)
    except LabError as err:
        say(f"chaos: {err}")
        return err.exit_code
    say(f"chaos: {len(seeds) - wrong} of {len(seeds)} seeds ended healthy or named")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
