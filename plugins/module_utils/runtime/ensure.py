# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Container engine and NVIDIA's toolkit on a node: what is missing, what is configured, what has to be restarted."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

from ..kernel.holders import foreign, holders
from ..node.text import table, version
from ..packages.data import FAMILIES, family
from ..packages.model import Ran, Run
from . import cdi, daemon
from .data import PACKAGES, QUADLET, TOOLKIT_PACKAGES, VERSIONED

PENDING = "/run/inferops-vllm/docker-restart"
"""Keys that wait for a restart of the daemon."""


class RuntimeProblem(Exception):
    """Why the runtime cannot be brought to what is wanted: one sentence."""


class Wanted(NamedTuple):
    """What is to be on the node.

    Attributes:
        engine: ``docker`` or ``podman``.
        gpus: ``nvidia``, ``none`` or ``auto``: by the PCI devices.
        toolkit_version: exact version of the toolkit, empty for any.
        log: ``max-size`` and ``max-file`` of container logs, empty for no limits.
        restart_allowed: restart the daemon although containers run.
    """

    engine: str = "docker"
    gpus: str = "auto"
    toolkit_version: str = ""
    log: Mapping[str, str] = {}
    restart_allowed: bool = False


class System(NamedTuple):
    """The node: commands, a root for its files (tests have another), and who has the GPUs open."""

    run: Run
    root: str = ""
    holders: Callable[[], List[Dict[str, Any]]] = holders

    def read(self, path: str) -> str:
        """Text of a file, empty when there is none."""
        try:
            with open(self.root + path, encoding="utf-8", errors="replace") as file:
                return file.read(4 << 20)
        except OSError:
            return ""

    def names(self, path: str) -> List[str]:
        """Names in a folder, empty when there is none."""
        try:
            return sorted(os.listdir(self.root + path))
        except OSError:
            return []

    def write(self, path: str, text: str) -> None:
        """Write a file at once, keeping its mode; a new one gets 0644. Raises OSError."""
        target = self.root + path
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        draft = "%s.%d" % (target, os.getpid())
        mode = os.stat(target).st_mode & 0o7777 if os.path.exists(target) else 0o644
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, mode)
        os.replace(draft, target)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        try:
            os.unlink(self.root + path)
        except FileNotFoundError:
            pass


def has_gpus(system: System) -> bool:
    """A display or 3D controller of NVIDIA is on the PCI bus."""
    base = "/sys/bus/pci/devices"
    for name in system.names(base):
        if system.read("%s/%s/vendor" % (base, name)).strip() == "0x10de" and system.read("%s/%s/class" % (base, name)).startswith("0x03"):
            return True
    return False


def release(system: System) -> str:
    """Key of FAMILIES for this node. Raises RuntimeProblem for a release that is in no table."""
    told = table(system.read("/etc/os-release"))
    found = family(told.get("ID", ""), told.get("VERSION_ID", ""))
    if not found:
        raise RuntimeProblem("%s %s is none of the systems that this role knows packages for: %s; install the engine and the toolkit yourself and set "
                             "container_runtime_install: false" % (told.get("ID") or "this system", told.get("VERSION_ID") or "", ", ".join(FAMILIES)))
    return found


def installed(system: System, manager: str, names: Sequence[str]) -> Dict[str, str]:
    """Name → version of those of `names` that are installed."""
    if manager == "apt":
        ran = system.run(["dpkg-query", "-W", "-f=${Package}\\t${Version}\\t${db:Status-Status}\\n", *names], 60)
    else:
        ran = system.run(["rpm", "-q", "--queryformat", "%{NAME}\\t%{VERSION}-%{RELEASE}\\tinstalled\\n", *names], 60)
    found: Dict[str, str] = {}
    for line in ran.out.splitlines():
        fields = line.split("\t")
        if len(fields) == 3 and fields[2] == "installed":
            found[fields[0]] = fields[1]
    return found


def missing(wanted: Wanted, toolkit: bool, os_family: str, there: Mapping[str, str]) -> List[str]:
    """Packages to install, as the package manager is asked for them."""
    row, manager = PACKAGES[os_family], FAMILIES[os_family].manager
    names: List[str] = []
    if wanted.engine == "podman":
        names += [name for name in row.podman if name not in there]
    elif not any(all(name in there for name in way) for way in row.docker):
        # A way that was begun (docker-ce without its client) is finished rather than another added.
        way = next((one for one in row.docker if any(name in there for name in one)), row.docker[0])
        names += [name for name in way if name not in there]
    if toolkit:
        for name in TOOLKIT_PACKAGES:
            if wanted.toolkit_version and there.get(name, "").split("-")[0] != wanted.toolkit_version:
                names.append(VERSIONED[manager] % (name, wanted.toolkit_version))
            elif name not in there and not wanted.toolkit_version:
                names.append(name)
    return names


def run(wanted: Wanted, system: System, dry: bool, install: bool) -> Dict[str, Any]:
    """Look, configure what can be configured, and say what is left; see the module's RETURN.

    Raises:
        RuntimeProblem: with the sentence to show.
    """
    return _Run(wanted, system, dry).run(install)


class _Run:
    """One run over one node."""

    def __init__(self, wanted: Wanted, system: System, dry: bool) -> None:
        self.wanted, self.system, self.dry = wanted, system, dry
        self.steps: List[str] = []
        self.notes: List[str] = []
        self.before: Dict[str, str] = {}
        self.after: Dict[str, str] = {}

    def run(self, install: bool) -> Dict[str, Any]:
        wanted, system = self.wanted, self.system
        toolkit = has_gpus(system) if wanted.gpus == "auto" else wanted.gpus == "nvidia"
        packages: List[str] = []
        if install:
            os_family = release(system)
            row = PACKAGES[os_family]
            names = sorted({name for way in row.docker for name in way} | set(row.podman) | set(TOOLKIT_PACKAGES))
            packages = missing(wanted, toolkit, os_family, installed(system, FAMILIES[os_family].manager, names))
        users = foreign([one for one in system.holders() if one.get("container")]) if packages else []
        if users:
            raise RuntimeProblem("%s would be installed, and packages reload systemd, which takes the GPUs from %s; stop them first" % (
                ", ".join(packages), ", ".join(users[:6])))
        restart = ""
        if not packages or self.dry:
            if wanted.engine == "docker":
                restart = self._docker(toolkit, bool(packages))
            else:
                self._podman(bool(packages))
            if toolkit:
                self._cdi(bool(packages))
        return {
            "changed": bool(self.steps), "packages": packages, "toolkit": toolkit, "steps": self.steps, "notes": self.notes, "restart": restart,
            "driver": self._driver() if toolkit else "",
            "diff": [{"before": self.before.get(path, ""), "after": text, "before_header": path, "after_header": path} for path, text in self.after.items()],
        }

    # -- docker ---------------------------------------------------------------------------------------
    def _docker(self, toolkit: bool, absent: bool) -> str:
        """Configure the daemon; returns why it should be restarted and was not."""
        system, wanted = self.system, self.wanted
        text = system.read(daemon.PATH)
        problem = daemon.parse(text)[1]
        if problem:
            raise RuntimeProblem("%s %s; it was left as it is, mend it" % (daemon.PATH, problem))
        if not absent:
            self._start("docker.service")
        info = self._info()
        docker = str(info.get("ServerVersion") or "")
        swarm = info.get("Swarm")
        merged = daemon.merge(text, docker, toolkit, wanted.log, self._flags(), isinstance(swarm, dict) and swarm.get("LocalNodeState") == "active")
        self.notes += merged.notes
        waiting = self._pending() + merged.restart
        if merged.changed:
            self._note(daemon.PATH, text, merged.text)
            self.steps.append("%s %s in %s" % ("would set" if self.dry else "set", ", ".join(merged.changed), daemon.PATH))
            if not self.dry:
                system.write(daemon.PATH, merged.text)
                if waiting:
                    system.write(PENDING, "\n".join(waiting) + "\n")
        if absent:
            return ""
        lacks = daemon.lacking(info, docker, toolkit)
        if self.dry:
            return self._would_restart(waiting) if docker else ""
        if merged.changed or lacks:
            self._reload(text, merged.changed)
            left = daemon.lacking(self._info(), docker, toolkit)
            if merged.changed or left != lacks:
                self.steps.append("reloaded docker.service")
            lacks = left
        waiting = list(dict.fromkeys(waiting + lacks))
        return self._restart(waiting, text, merged.changed) if waiting else ""

    def _info(self) -> Dict[str, Any]:
        try:
            found = json.loads(self.system.run(["docker", "info", "--format", "{{json .}}"], 60).out or "{}")
        except (ValueError, RecursionError):
            found = {}
        info = found if isinstance(found, dict) else {}
        if not info.get("ServerVersion") and not self.dry:
            raise RuntimeProblem("docker is installed, but its daemon does not answer; look into journalctl -u docker")
        return info

    def _flags(self) -> List[str]:
        pid = self._main_pid()
        return self.system.read("/proc/%s/cmdline" % pid).split("\0") if pid else []

    def _main_pid(self) -> str:
        told = table(self.system.run(["systemctl", "show", "--property=MainPID", "docker.service"], 30).out).get("MainPID", "")
        return told if told.isdigit() and told != "0" else ""

    def _pending(self) -> List[str]:
        """Keys that an earlier run left to a restart; forgotten when the daemon was started since."""
        words = self.system.read(PENDING).split()
        pid = self._main_pid()
        if not words or not pid:
            return words
        try:
            if os.stat("/proc/" + pid).st_ctime > os.stat(self.system.root + PENDING).st_mtime:
                if not self.dry:
                    self.system.remove(PENDING)
                return []
        except OSError:
            pass
        return words

    def _containers(self) -> List[str]:
        ran = self.system.run(["docker", "ps", "--format", "{{.Names}}"], 60)
        if ran.rc:
            raise RuntimeProblem("docker has to be restarted, but did not tell which containers run, so it was left alone: %s" % _last(ran))
        return ran.out.split()

    def _start(self, unit: str) -> None:
        told = table(self.system.run(["systemctl", "show", "--property=ActiveState", unit], 30).out)
        # The manager's own UnitFileState is as old as its last reload.
        at_boot = self.system.run(["systemctl", "is-enabled", unit], 30).out.strip()
        for verb, done, missing_state in (("enable", "enabled", at_boot not in ("enabled", "alias", "static", "indirect")),
                                          ("start", "started", told.get("ActiveState") != "active")):
            if missing_state:
                self.steps.append("%s %s" % ("would " + verb if self.dry else done, unit))
                if not self.dry:
                    self._systemctl(verb, unit)

    def _systemctl(self, verb: str, unit: str) -> None:
        # Enabled past systemd, which would reload: that takes the GPUs from running containers.
        ran = self.system.run([*(["env", "SYSTEMD_OFFLINE=1"] if verb == "enable" else []), "systemctl", verb, unit], 180)
        if ran.rc:
            raise RuntimeProblem("systemctl %s %s failed: %s" % (verb, unit, _last(ran)))

    def _reload(self, before: str, changed: Sequence[str]) -> None:
        """Let the daemon read its file again, which touches no container; a file that it refuses is taken back."""
        ran = self.system.run(["systemctl", "reload", "docker.service"], 60)
        if ran.rc:
            self._take_back(before, changed)
            raise RuntimeProblem("docker refused to read %s again, so it was taken back: %s" % (daemon.PATH, _last(ran)))
        # The signal is taken up after systemctl has returned.
        time.sleep(0.5 if not self.system.root else 0)

    def _take_back(self, before: str, changed: Sequence[str]) -> None:
        if changed and before:
            self.system.write(daemon.PATH, before)
        elif changed:
            self.system.remove(daemon.PATH)

    def _would_restart(self, waiting: Sequence[str]) -> str:
        if not waiting:
            return ""
        running = self._containers()
        if running and not self.wanted.restart_allowed:
            return _refused(waiting, running)
        self.steps.append("would restart docker.service for %s" % ", ".join(waiting))
        return ""

    def _restart(self, waiting: Sequence[str], before: str, changed: Sequence[str]) -> str:
        running = self._containers()
        if running and not self.wanted.restart_allowed:
            return _refused(waiting, running)
        ran = self.system.run(["systemctl", "restart", "docker.service"], 180)
        if ran.rc:
            self._take_back(before, changed)
            self.system.run(["systemctl", "reset-failed", "docker.service"], 30)
            again = self.system.run(["systemctl", "restart", "docker.service"], 180)
            raise RuntimeProblem("docker did not start with the new %s, so it was taken back, and docker %s: %s" % (
                daemon.PATH, "runs again" if not again.rc else "still does not start", _last(ran)))
        self.steps.append("restarted docker.service for %s" % ", ".join(waiting))
        self.system.remove(PENDING)
        return ""

    # -- podman ---------------------------------------------------------------------------------------
    def _podman(self, absent: bool) -> None:
        if absent:
            return
        ran = self.system.run(["podman", "version", "--format", "{{.Client.Version}}"], 60)
        have = ran.out.strip()
        if ran.rc:
            raise RuntimeProblem("podman does not answer: %s" % _last(ran))
        if version(have) < QUADLET:
            self.notes.append("Podman %s has no Quadlet, which the service needs from %s on" % (have, ".".join(str(part) for part in QUADLET)))

    # -- CDI --------------------------------------------------------------------------------------------
    def _driver(self) -> str:
        return cdi.driver_version(self.system.read("/sys/module/nvidia/version"), self.system.read("/proc/driver/nvidia/version"))

    def _verdict(self, driver: str) -> cdi.Verdict:
        specs = {
            "%s/%s" % (folder, name): self.system.read("%s/%s" % (folder, name))
            for folder in cdi.FOLDERS for name in self.system.names(folder) if name.endswith((".yaml", ".yml", ".json"))}
        return cdi.judge(specs, driver)

    def _cdi(self, absent: bool) -> None:
        driver = self._driver()
        if not driver:
            self.notes.append("the NVIDIA driver is not loaded, so the CDI specification was left alone; it is made when it is")
            return
        verdict = self._verdict(driver)
        if verdict.sound:
            return
        unit = self._refresh_unit()
        said = "CDI specification for driver %s%s" % (driver, "".join(
            "; %s named %s" % (path, ", ".join(versions) or "no driver") for path, versions in verdict.stale.items()))
        if self.dry or absent:
            self.steps.append("would refresh the " + said)
            return
        if unit:
            # The unit writes to /var/run/cdi; a specification of another driver beside it would be a conflict.
            for path in verdict.stale:
                if path.startswith("/etc/cdi/"):
                    self._note(path, self.system.read(path), "")
                    self.system.remove(path)
            self._systemctl("restart", unit)
        if not self._verdict(driver).good:
            ran = self.system.run(["nvidia-ctk", "cdi", "generate", "--output=" + cdi.OWN], 120)
            if ran.rc:
                raise RuntimeProblem("nvidia-ctk cdi generate failed: %s" % _last(ran))
        self.steps.append("refreshed the " + said)
        verdict = self._verdict(driver)
        if not verdict.sound:
            raise RuntimeProblem("the CDI specification was made anew and still does not name the running driver %s alone: %s" % (driver, "; ".join(
                "%s names %s" % (path, ", ".join(versions) or "no driver") for path, versions in verdict.stale.items()) or "there is none"))

    def _refresh_unit(self) -> str:
        told = table(self.system.run(["systemctl", "show", "--property=LoadState", cdi.REFRESH], 30).out)
        return cdi.REFRESH if told.get("LoadState") == "loaded" else ""

    def _note(self, path: str, before: str, after: str) -> None:
        self.before[path], self.after[path] = before, after


def _refused(waiting: Sequence[str], running: Sequence[str]) -> str:
    return "docker has to be restarted for %s, which would end the foreground of %s; stop it, or set container_runtime_restart_allowed: true" % (
        ", ".join(waiting), ", ".join(running[:4]))


def _last(ran: Ran) -> str:
    return " ".join(ran.text.split())[-300:] or "status %d" % ran.rc
