# SPDX-License-Identifier: GPL-3.0-or-later
"""The renderer of a dressed node: keeps what the node shows in step with its state (costume_state.py).

It runs on the node as `/var/lib/inferops-costume/wear VERB`, beside copies of tests/costume and of the collectors:

    wear dress      put the costume on (state.json is there already)
    wear boot       what a reboot changes; called by a unit before SSH takes logins
    wear look       render again when something that the costume follows has changed
    wear packages   the same after dpkg ran
    wear command NAME ARGUMENT …   a stand-in program that acts, and
    wear service NAME              a stand-in daemon: both in costume_tools.py
    wear imex       what happens before IMEX starts
    wear undress    take everything off again
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.inferops.vllm.plugins.module_utils.node import container, gpudirect, kernel_log
from tests.costume import dress, part_gpu, part_rdma

from .costume_state import Clothes, State, Tree, after_boot, clothes, device_table, listing, only_gpus, spec_of, store, tree

BASE = Path("/var/lib/inferops-costume")
MARKER = Path("/etc/inferops-costume.json")
PROGRAMS = Path("/usr/local/sbin")
HOOK = Path("/usr/local/lib/inferops-lab/nvidia-smi")
INJECTED = Path("/usr/local/lib/inferops-lab/inject/usr/bin/nvidia-smi")
UNITS = Path("/lib/systemd/system")
MOUNTED = Path("/run/inferops-costume.mounts")
FOLDERS = ("/proc/driver", "/sys/module", "/sys/class/infiniband", "/sys/bus/pci/devices", "/sys/bus/pci/drivers", "/sys/kernel/iommu_groups")
"""Covered as a whole, so that what is rendered shows at once."""
COVERED_FILES = ("/proc/cmdline", "/proc/modules", "/proc/devices", "/proc/kallsyms")
LIVE = ("/sys/class/net",)
"""Folders whose content comes and goes."""
MACHINE_FOLDERS = ("/sys/bus/pci/devices",)


class Node:
    """This machine, and what was done to it: every change is noted before it is made, so that it can be taken back."""

    def __init__(self) -> None:
        self.notes = BASE / "notes.json"
        self.state: State = json.loads((BASE / "state.json").read_text(encoding="utf-8"))
        self.done: dict[str, Any] = json.loads(self.notes.read_text(encoding="utf-8")) if self.notes.exists() else {"paths": {}}
        self.kernel = os.uname().release
        self.started: list[str] = []

    def save(self) -> None:
        _replace(BASE / "state.json", json.dumps(self.state, indent=1))
        kept = {"name": "%s%s" % (self.state["hardware"], "".join(", " + fault for fault in self.state["faults"]))}
        marker = {**kept, "hardware": self.state["hardware"], "faults": self.state["faults"]}
        self.put(str(MARKER), json.dumps(marker) + "\n")

    # Plain files, links and device nodes, with what stood there before.
    def note(self, path: str, *, replace: bool) -> bool:
        """Whether the costume may write `path`; keeps what stood there when it may be replaced."""
        if path in self.done["paths"]:
            return True
        kept = ""
        if os.path.lexists(path):
            if not replace:
                return False
            kept = str(BASE / "kept" / str(len(self.done["paths"])))
            Path(kept).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, kept, follow_symlinks=False)
        made = []
        folder = os.path.dirname(path)
        while not os.path.isdir(folder):
            made.append(folder)
            folder = os.path.dirname(folder)
        self.done["paths"][path] = {"kept": kept, "folders": made}
        _replace(self.notes, json.dumps(self.done))
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return True

    def put(self, path: str, text: str, mode: int = 0o644, *, replace: bool = True) -> None:
        if self.note(path, replace=replace):
            if os.path.islink(path):
                os.unlink(path)
            _write(Path(path), text)
            os.chmod(path, mode)

    def link(self, path: str, target: str, *, replace: bool = False) -> None:
        if self.note(path, replace=replace):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.symlink(target, path)

    # -- rendering -------------------------------------------------------------------------------
    def render(self) -> None:
        """Bring the shadow tree and the recorded answers in step with the state."""
        self.save()
        worn = clothes(self.state, self.kernel)
        answers = store(self.state, worn)
        for name, entries in answers.items():
            _replace(BASE / "store" / (name + ".json"), json.dumps(entries))
        plan = tree(worn)
        covered = self.covered()
        wanted: set[str] = set()
        top = BASE / "shadow"
        if self.state["kind"] == "vm":
            plan = only_gpus(plan, [gpu.bdf for gpu in part_gpu.gpus(spec_of(self.state))])
        for path in sorted(plan.folders):
            if path.startswith(covered):
                wanted.add(path)
                (top / path[1:]).mkdir(parents=True, exist_ok=True)
        for path, target in plan.links.items():
            if path.startswith(covered):
                wanted.add(path)
                _shadow_link(top / path[1:], target)
        for path, text in plan.files.items():
            if path.startswith(covered):
                wanted.add(path)
                # What is no UTF-8 came as U+FFFD; a byte of ones is such a byte again.
                _shadow_file(top / path[1:], text.encode("utf-8").replace("\ufffd".encode(), b"\xff"))
        if self.state["kind"] == "vm":
            for name, place in self.real_devices().items():
                wanted.add("/sys/bus/pci/devices/" + name)
                _shadow_link(top / "sys/bus/pci/devices" / name, place)
        _prune(top, wanted, set(covered))
        if self.state["kind"] == "container":
            self.single_files(worn)
        self.driver_files(worn, plan)
        (BASE / "watch").unlink(missing_ok=True)
        if self.state["kind"] == "vm" or "foreign_holder" in self.state["faults"]:
            (BASE / "watch").touch()

    def covered(self) -> tuple[str, ...]:
        return FOLDERS if self.state["kind"] == "container" else MACHINE_FOLDERS

    @staticmethod
    def real_devices() -> dict[str, str]:
        """PCI functions that the machine really has, name to folder; looked for while nothing covers them."""
        folder, kept = Path("/sys/bus/pci/devices"), BASE / "real-devices.json"
        if folder.is_dir() and not os.path.ismount(folder):
            _replace(kept, json.dumps({entry.name: str(entry.resolve()) for entry in folder.iterdir()}))
        found: dict[str, str] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        return found

    def single_files(self, worn: Clothes) -> None:
        """Files of /proc that are covered one by one; written in place, since a mount holds on to the file."""
        texts = {path: str(worn.files[path]) for path in ("/proc/cmdline", "/proc/modules")}
        real = BASE / "real-devices"
        if not real.exists():
            _write(real, Path("/proc/devices").read_text(encoding="utf-8"))
        texts["/proc/devices"] = device_table(real.read_text(encoding="utf-8"), str(worn.files["/proc/devices"]))
        symbols = [worn.commands[argv] for argv in (gpudirect.DMABUF_SYMBOL, gpudirect.PEER_SYMBOL)]
        texts["/proc/kallsyms"] = "".join(said for said in symbols if isinstance(said, str))
        for path, text in texts.items():
            _shadow_file(BASE / "shadow" / path[1:], text.encode("utf-8"))

    def driver_files(self, worn: Clothes, plan: Tree) -> None:
        """Device files, CDI, and the libraries of the driver, unless a package brought its own."""
        spec = spec_of(self.state)
        if self.state["kind"] == "vm":
            return
        for path in plan.files:
            if path.startswith("/dev/"):
                self.device(path)
        for path, target in plan.links.items():
            if path.startswith("/usr/lib/") and not self.of_package(path):
                # ldconfig removes links that lead nowhere.
                self.put(os.path.join(os.path.dirname(path), target), "", replace=False)
                self.link(path, target)
        for path, text in plan.files.items():
            if path.startswith(("/var/run/cdi/", "/run/reboot-required")):
                self.put(path.replace("/var/run/", "/run/"), text)
        fresh = dress(spec._replace(faults=spec.faults - {"stale_cdi"})).files.get("/var/run/cdi/nvidia.yaml")
        if fresh:
            _replace(BASE / "cdi", str(fresh))

    def device(self, path: str) -> None:
        if self.note(path, replace=False) and not os.path.exists(path):
            # The numbers of /dev/null: a process can hold it open, and nothing can be broken by it.
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            os.chmod(path, 0o666)

    @staticmethod
    def of_package(path: str) -> bool:
        return subprocess.run(["/usr/bin/dpkg", "-S", path], capture_output=True, check=False).returncode == 0

    # -- mounts and links ------------------------------------------------------------------------
    def cover(self) -> None:
        """Mount the shadow over what the kernel shows; nothing is mounted twice."""
        single = COVERED_FILES if self.state["kind"] == "container" else ()
        for path in [*self.covered(), *single]:
            source = BASE / "shadow" / path[1:]
            if path in self.covered():
                source.mkdir(parents=True, exist_ok=True)
                self.exist(path)
            if not os.path.exists(path) or _covers(path, source):
                continue
            _mount(path, "--bind", str(source))

    @staticmethod
    def exist(path: str) -> None:
        """Make a folder that the kernel of this machine does not have, by a layer over its nearest parent."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        if parent == "/sys":
            # In a container this one is no sysfs, but a memory file system that holds parts of it.
            _run("mount", "-o", "remount,rw", "/sys")
            os.makedirs(path)
            _run("mount", "-o", "remount,ro", "/sys")
            return
        skeleton, below = BASE / "skeleton" / parent[1:], BASE / "below" / parent[1:]
        (skeleton / path[len(parent) + 1:]).mkdir(parents=True, exist_ok=True)
        below.mkdir(parents=True, exist_ok=True)
        _mount(str(below), "--bind", "--make-private", parent)
        _mount(parent, "-t", "overlay", "-o", "ro,lowerdir=%s:%s" % (skeleton, below), "inferops-costume")
        for name in LIVE:
            # A layer remembers what was not there: interfaces that come later would stay unseen.
            if os.path.dirname(name) == parent and (below / Path(name).name).is_dir():
                _mount(name, "--bind", str(below / Path(name).name))

    @staticmethod
    def uncover() -> None:
        """Take off every mount of the costume, the newest first."""
        points = MOUNTED.read_text(encoding="utf-8").split() if MOUNTED.exists() else []
        for point in reversed(points):
            # Detached rather than waited for: a reading may be at work in it.
            subprocess.run(["umount", "--lazy", "--", point], check=False, capture_output=True)
        MOUNTED.unlink(missing_ok=True)

    def interfaces(self) -> None:
        """The network interfaces of the compute HCAs: real ones, so that what is set on them is what is read."""
        if self.state["kind"] != "container":
            return
        spec = spec_of(self.state)
        for name, address, prefix, mtu in part_rdma.interfaces(spec):
            if name == part_rdma.MANAGEMENT or os.path.exists("/sys/class/net/" + name):
                continue
            peer = "veth" + name
            _run("ip", "link", "add", name, "type", "veth", "peer", "name", peer)
            for one in (name, peer):
                _sysctl("net/ipv6/conf/%s/disable_ipv6" % one, "1")
                _run("ip", "link", "set", one, "mtu", str(mtu))
            _run("ip", "address", "add", "%s/%d" % (address, prefix), "dev", name, "noprefixroute")
            _run("ip", "link", "set", name, "up")
            lost = any(hca.netdev == name and part_rdma.down(spec, hca) for hca in part_rdma.hcas(spec))
            if not lost:
                _run("ip", "link", "set", peer, "up")

    def no_interfaces(self) -> None:
        for name, _address, _prefix, _mtu in part_rdma.interfaces(spec_of(self.state)):
            if self.state["kind"] == "container" and name != part_rdma.MANAGEMENT:
                subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)

    # -- units -----------------------------------------------------------------------------------
    def units(self) -> list[str]:
        """Write the units of the costume; returns those to start now."""
        spec = spec_of(self.state)
        wear = BASE / "wear"
        self.put("/etc/systemd/system/inferops-costume.service", (
            "[Unit]\nDescription=Costume of this lab node\nDefaultDependencies=no\nAfter=local-fs.target lab-cgroup.service\n"
            "Before=ssh.service docker.service nvidia-fabricmanager.service nvidia-imex.service nvidia-persistenced.service\n\n"
            "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=%s boot\n\n[Install]\nWantedBy=multi-user.target\n" % wear))
        self.enable("inferops-costume.service")
        if spec.hardware in ("b200", "b300") and spec.gpus:
            # Fabric Manager starts the subnet manager, and the packages' stand-in for it does not.
            self.put("/etc/systemd/system/nvidia-fabricmanager.service.d/inferops-costume.conf", (
                "[Service]\nExecStartPost=/bin/sh -c 'exec %s/bin/nvlsm infinity &'\n" % BASE))
        if self.state["kind"] == "vm":
            return []
        found = []
        if spec.gpus:
            found.append(self.unit("nvidia-persistenced.service", "%s service persistenced" % wear))
            if spec.grace:
                found.append(self.unit("nvidia-imex.service", "%s/bin/nvidia-imex infinity" % BASE, check="%s imex" % wear))
            else:
                found.append(self.unit("nvidia-fabricmanager.service", "%s service fabricmanager" % wear))
        if "foreign_holder" in self.state["faults"]:
            program = "import glob,time; held=[open(p) for p in glob.glob(\"/dev/nvidia[0-9]*\")]; time.sleep(10**9)"
            found.append(self.unit("inferops-costume-holder.service", "/usr/bin/python3 -c '%s'" % program, enabled="foreign_holder" in self.state["sticky"]))
        if "smi_hung" in self.state["faults"]:
            found.append(self.unit("inferops-costume-stuck.service", "%s/nvidia-smi" % PROGRAMS, enabled="smi_hung" in self.state["sticky"]))
        return [name for name in found if name]

    def unit(self, name: str, start: str, enabled: bool = True, check: str = "") -> str:
        """Write a unit unless a package brought one of that name; `check`: a command that must succeed before it starts."""
        path = str(UNITS / name)
        if path not in self.done["paths"] and os.path.exists(path):
            return ""
        before = "ExecStartPre=%s\n" % check if check else ""
        self.put(path, (
            "[Unit]\nDescription=%s of a lab costume\nAfter=inferops-costume.service\n\n[Service]\n%sExecStart=%s\nKillMode=control-group\n"
            "TimeoutStopSec=2\nSendSIGKILL=yes\n\n[Install]\nWantedBy=multi-user.target\n" % (name.rsplit(".", 1)[0], before, start)))
        if enabled:
            self.enable(name)
        return name

    def enable(self, name: str) -> None:
        self.link("/etc/systemd/system/multi-user.target.wants/" + name, "../" + name)

    # -- verbs -----------------------------------------------------------------------------------
    def dress(self) -> None:
        worn = clothes(self.state, self.kernel)
        machine = self.state["kind"] == "vm"
        self.state.update(boot_id=_boot_id(), dressed_at=int(time.time()))
        if machine:
            self.state["loaded"] = _loaded()
        (BASE / "bin").mkdir(exist_ok=True)
        for name in ("nvidia-persistenced", "nv-fabricmanager", "nvidia-imex", "nvlsm"):
            (BASE / "bin" / name).symlink_to("/bin/sleep")
        self.render()
        for name in store(self.state, worn):
            # The driver's packages bring a machine's nvidia-smi, which asks the costume through HOOK.
            if not (machine and name == "nvidia-smi"):
                self.link(str(PROGRAMS / name), str(BASE / "replay"))
        self.link(str(HOOK), str(BASE / "replay"))
        if machine:
            model = part_gpu.MODELS[self.state["hardware"]]
            self.put("/etc/inferops-lab/gpus", "gpus=%d\nproduct=%s\nmemory=%d\n" % (spec_of(self.state).gpus, model.name, model.memory))
            self.kernel_messages(worn)
        else:
            self.engine_and_packages()
            self.plain_files(tree(worn))
            self.limits()
            self.runtime()
        self.cover()
        self.interfaces()
        self.started = self.units()
        _run("systemctl", "daemon-reload")

    def engine_and_packages(self) -> None:
        """What containers with GPUs see, and how dpkg tells of what it did."""
        injected = "".join("echo '%s'\n" % line for line in listing(spec_of(self.state)).splitlines())
        self.put(str(INJECTED), "#!/bin/sh\n# Costume of a lab node.\ncase \"$*\" in\n-L)\n%s;;\n*) exit 9 ;;\nesac\n" % injected, 0o755)
        self.put("/etc/dpkg/dpkg.cfg.d/inferops-costume", 'post-invoke="%s packages || :"\n' % (BASE / "wear"))
        # apt gives scripts of packages a PATH of its own, without the folder of the costume's programs.
        self.put("/etc/apt/apt.conf.d/99inferops-costume", 'DPkg::Path "%s:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";\n' % PROGRAMS)

    def kernel_messages(self, worn: Clothes) -> None:
        """A machine has a kernel log of its own: faults are written into it, and are gone after a reboot as real ones are."""
        lines = [line.split("] ", 1)[1] for line in str(worn.commands[kernel_log.RING]).splitlines()]
        for line in lines:
            if re.search(r"NVRM: (?:Xid|GPU .* fallen|dma-buf)", line):
                Path("/dev/kmsg").write_text("<4>%s\n" % line, encoding="ascii")

    def settle(self) -> None:
        """Note the process that stands for the foreign holder: nvidia-smi tells its number as long as it lives."""
        if "foreign_holder" in self.state["faults"] and self.state["kind"] == "container":
            said = subprocess.run(["systemctl", "show", "-P", "MainPID", "inferops-costume-holder.service"], capture_output=True, text=True, check=False)
            self.state["holder"] = int(said.stdout.strip() or 0)
            self.render()

    def plain_files(self, plan: Tree) -> None:
        """What stands on disk: made once, so that what a remedy writes stays."""
        for path, text in plan.files.items():
            if path.startswith(("/proc/", "/sys/", "/dev/", "/var/run/", "/run/")):
                continue
            program = path.startswith("/usr/bin/")
            self.put(path, "#!/bin/sh\nexit 1\n" if program else text, 0o755 if program else 0o644, replace=False)
        for path in plan.folders:
            if not path.startswith(("/proc", "/sys", "/dev")) and self.note(path + "/.", replace=False):
                Path(path).mkdir(parents=True, exist_ok=True)

    def limits(self) -> None:
        """Locked memory without limit for new services, as the costume's nodes have it."""
        self.put("/etc/systemd/system.conf.d/inferops-costume.conf", "[Manager]\nDefaultLimitMEMLOCK=infinity\n")
        _run("systemctl", "daemon-reexec")

    def runtime(self) -> None:
        """Docker's runtime of the NVIDIA toolkit; it starts containers as the usual one does."""
        path = Path(container.DAEMON)
        if not path.exists() or not spec_of(self.state).gpus:
            return
        self.put("/usr/bin/nvidia-container-runtime", '#!/bin/sh\nexec runc "$@"\n', 0o755, replace=False)
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings.setdefault("runtimes", {})["nvidia"] = {"path": "nvidia-container-runtime", "runtimeArgs": []}
        self.put(str(path), json.dumps(settings, indent=2) + "\n")
        subprocess.run(["systemctl", "try-reload-or-restart", "docker.service"], check=False, capture_output=True)

    def boot(self) -> None:
        """A reboot loads what is on disk, forgets the kernel log, and mends what reboots mend."""
        if self.state.get("boot_id") != _boot_id():
            self.state = after_boot(self.state, _persisted())
            self.state["boot_id"] = _boot_id()
            if self.state["kind"] == "vm":
                self.state["loaded"] = _loaded()
                # Sticky faults are told again, in the log of the new boot.
                self.kernel_messages(clothes(self.state, self.kernel))
        for path in list(self.done["paths"]):
            # /dev and /run are new.
            if path.startswith(("/dev/", "/run/")) and not os.path.lexists(path):
                del self.done["paths"][path]
        self.render()
        self.cover()
        self.interfaces()

    def look(self) -> None:
        """Follow what changed outside: the holder that ended, the driver that a machine really loaded."""
        before = json.dumps(self.state)
        holder = self.state.get("holder")
        if holder and not os.path.exists("/proc/%d" % holder):
            self.state["holder"] = None
            self.state["faults"] = [fault for fault in self.state["faults"] if fault != "foreign_holder"]
        if self.state["kind"] == "vm":
            self.state["loaded"] = _loaded()
        if json.dumps(self.state) != before:
            self.render()

    def imex(self) -> None:
        """Before IMEX starts: the first start fails where the costume says so, the next one is the remedy's, and works."""
        if "imex_down" in self.state["faults"]:
            if not self.state["imex_starts"]:
                self.state["imex_starts"] = 1
                self.save()
                raise SystemExit("IMEX could not be started")
            self.state["faults"] = [fault for fault in self.state["faults"] if fault != "imex_down"]
            self.render()

    def packages(self) -> None:
        """After dpkg: a Fabric Manager that really fits mends the costume's that did not."""
        if self.state["kind"] == "container" and "fm_mismatch" in self.state["faults"]:
            said = subprocess.run(
                ["/usr/bin/dpkg-query", "-W", "-f=${Version} ${db:Status-Abbrev}", "nvidia-fabricmanager"], capture_output=True, text=True, check=False)
            version, _blank, status = said.stdout.partition(" ")
            if status.startswith("ii") and version.split("-")[0] == self.state["loaded"]:
                self.state["faults"] = [fault for fault in self.state["faults"] if fault != "fm_mismatch"]
        self.render()

    def undress(self) -> None:
        """Take off everything; what stood in a place before stands there again."""
        units = [Path(path).name for path in self.done["paths"] if path.endswith(".service") and "multi-user" not in path]
        for name in units:
            subprocess.run(["systemctl", "stop", name], check=False, capture_output=True)
        self.uncover()
        self.no_interfaces()
        for path, note in reversed(list(self.done["paths"].items())):
            bare = path[:-2] if path.endswith("/.") else path
            if note["kept"]:
                if os.path.lexists(bare):
                    os.unlink(bare)
                shutil.copy2(note["kept"], bare, follow_symlinks=False)
            elif path != bare:
                with contextlib.suppress(OSError):
                    os.rmdir(bare)
            elif os.path.lexists(bare) and not (bare.startswith(("/usr/", "/lib/")) and self.of_package(bare)):
                os.unlink(bare)
            for folder in note["folders"]:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        if os.path.isdir("/sys/module") and not os.listdir("/sys/module") and not os.path.ismount("/sys/module"):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                _run("mount", "-o", "remount,rw", "/sys")
                os.rmdir("/sys/module")
                _run("mount", "-o", "remount,ro", "/sys")
        _run("systemctl", "daemon-reexec")
        subprocess.run(["systemctl", "try-reload-or-restart", "docker.service"], check=False, capture_output=True)
        shutil.rmtree(BASE)


# -- small things --------------------------------------------------------------------------------
def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit("`%s` failed: %s" % (" ".join(argv), done.stderr.strip() or done.stdout.strip()))
    return done.stdout


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _replace(path: Path, text: str) -> None:
    """Write as a whole: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(text, encoding="utf-8")
    draft.rename(path)


def _shadow_file(path: Path, data: bytes) -> None:
    if path.is_symlink() or path.is_dir():
        _remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)


def _shadow_link(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:
        return
    if os.path.lexists(path):
        _remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _prune(top: Path, wanted: set[str], roots: set[str]) -> None:
    """Remove from the shadow below `roots` what is no longer wanted; the roots stay, since mounts hold on to them."""
    keep = set(roots)
    for path in wanted:
        while path not in keep and path != "":
            keep.add(path)
            path = path.rpartition("/")[0]
    for root in roots:
        for folder, names, files in os.walk(top / root[1:], topdown=False):
            for name in [*files, *names]:
                entry = Path(folder) / name
                if "/" + str(entry.relative_to(top)) not in keep and os.path.lexists(entry):
                    _remove(entry)


def _mount(point: str, *how: str) -> None:
    """Mount on `point`, noted first. /run is new after a reboot, as all mounts are."""
    with MOUNTED.open("a", encoding="utf-8") as noted:
        noted.write(point + "\n")
    _run("mount", *how, point)


def _covers(path: str, source: Path) -> bool:
    one, two = os.stat(path), os.stat(source)
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)


def _sysctl(name: str, value: str) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/sys", name).write_text(value, encoding="ascii")


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _loaded() -> str | None:
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _persisted() -> bool:
    """Whether modules-load.d or /etc/modules names nvidia_peermem."""
    files = [Path("/etc/modules")]
    for folder in ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d"):
        files += sorted(Path(folder).glob("*.conf"))
    for path in files:
        with contextlib.suppress(OSError):
            if re.search(r"^\s*nvidia[-_]peermem\s*$", path.read_text(encoding="utf-8"), re.M):
                return True
    return False


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One change at a time."""
    with (BASE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    """Run one verb; returns the exit code."""
    from . import costume_tools

    verb, *words = arguments
    if verb == "service":
        return costume_tools.service(Node(), words[0])
    with _alone():
        node = Node()
        if verb == "command":
            return costume_tools.command(node, words[0], words[1:])
        getattr(node, verb)()
    if verb == "dress":
        # Units ask for the lock themselves, and some are meant to fail.
        subprocess.run(["systemctl", "restart", *node.started], check=False, capture_output=True)
        with _alone():
            Node().settle()
    return 0
