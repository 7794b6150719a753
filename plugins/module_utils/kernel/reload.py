# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Out with the loaded driver and in with the installed one, in the order that its references demand."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..packages.model import Ran, Run
from .explain import Reason, loading, telling, unloading
from .holders import SERVICES, foreign

UNLOAD = (
    "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia_fs", "nvidia_vgpu_vfio", "gdrdrv", "nvidia",
)
"""Order of https://github.com/NVIDIA/k8s-driver-manager/tree/bd62ca7d (unloadDriver, 2026-10), nvidia_drm first."""
LOAD = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_fs", "gdrdrv")
LIMIT = 120


class Node(NamedTuple):
    """The machine: commands, files, folders, and who has the GPUs open (``[{"pid", "comm", "unit"?, "container"?}]``)."""

    run: Run
    read: Callable[[str], Optional[str]]
    names: Callable[[str], List[str]]
    holders: Callable[[], List[Dict[str, Any]]]


class State(NamedTuple):
    """What is loaded, what is on disk, which services run and who holds the GPUs."""

    loaded: str
    installed: str
    modules: List[str]
    services: List[str]
    failed: List[str]
    holders: List[Dict[str, Any]]
    kernel: str
    flavours: List[str]


def look(node: Node) -> State:
    """Read it."""
    listed = node.names("/sys/module")
    modules = [name for name in UNLOAD if name in listed]
    kernel = (node.read("/proc/sys/kernel/osrelease") or "").strip()
    version = node.run(["modinfo", "-F", "version", "nvidia"], 30)
    licence = node.run(["modinfo", "-F", "license", "nvidia"], 30)
    said = node.read("/proc/driver/nvidia/version") or ""
    active = node.run(["systemctl", "is-active", *SERVICES], 30).out.split()
    words = dict(zip(SERVICES, active)) if len(active) == len(SERVICES) else {}
    services = [unit for unit, word in words.items() if word in ("active", "activating")]
    # Between new libraries and the old module they fail; packages restart them just then.
    failed = [unit for unit, word in words.items() if word == "failed"]
    flavours = []
    if said and licence.rc == 0:
        flavours = ["open" if "Open Kernel Module" in said else "proprietary", "open" if "MIT" in licence.out or "GPL" in licence.out else "proprietary"]
    loaded = (node.read("/sys/module/nvidia/version") or "").strip()
    if not loaded:
        found = re.search(r"(?:Module|for \S+)\s+(\d{3,4}(?:\.\d+){1,2})\s", said)
        loaded = found.group(1) if found else ""
    return State(loaded, version.out.strip() if version.rc == 0 else "", modules, services, failed,
                 node.holders(), kernel, flavours)


class Outcome(NamedTuple):
    """What happened. `reason` is empty when the installed driver is loaded now, or would be."""

    changed: bool
    reboot: bool
    reason: str
    kind: str
    steps: List[str]
    before: str
    after: str


def wanted(state: State) -> str:
    """Why the modules must be exchanged, empty when they need not."""
    if not state.installed:
        return ""
    if not state.loaded:
        return "no driver is loaded"
    if state.loaded != state.installed:
        return "%s is loaded, %s is installed" % (state.loaded, state.installed)
    if len(set(state.flavours)) > 1:
        return "the %s modules are loaded, the %s ones are installed" % (state.flavours[0], state.flavours[1])
    return ""


def exchange(node: Node, check: bool, force: bool = False, expected: str = "") -> Outcome:
    """Load the driver that is installed in place of the one that is loaded.

    With `check`, `expected` is the version that will be installed by then, empty for the one that is.
    When a reference stays, everything is brought back as it was and a reboot is asked for; no process is ever ended.
    """
    state = look(node)
    if check and expected and expected != state.installed:
        state = state._replace(installed=expected, flavours=[])
    if not state.installed:
        return Outcome(False, False, "no driver module is installed for the kernel %s: install the driver (role driver)" % state.kernel, "not_installed",
                       [], state.loaded, state.loaded)
    if not wanted(state) and not force:
        return Outcome(False, False, "", "", [], state.loaded, state.loaded)
    users = foreign(state.holders)
    if users and state.modules:
        return Outcome(False, True, "the driver is in use by %s: stop them, or reboot" % ", ".join(users[:6]), "in_use", [], state.loaded, state.loaded)
    steps = ["stop " + unit for unit in state.services] + ["unload " + name for name in state.modules]
    again = [name for name in LOAD if name in state.modules or (name == "nvidia" and not state.modules) or (name == "nvidia_uvm" and not state.modules)]
    steps += ["load " + name for name in again] + ["start " + unit for unit in reversed(_to_start(state))]
    if check:
        return Outcome(True, False, "", "", steps, state.loaded, state.installed)
    return _carry_out(node, state, again, steps)


def _to_start(state: State) -> List[str]:
    """Services that run with the exchanged driver: those that ran, and those that had failed without it. In the order of stopping."""
    return [unit for unit in SERVICES if unit in state.services or unit in state.failed]


def _carry_out(node: Node, state: State, again: Sequence[str], steps: List[str]) -> Outcome:
    for unit in state.services:
        node.run(["systemctl", "stop", unit], LIMIT)
    gone: List[str] = []
    for name in state.modules:
        ran = node.run(["modprobe", "-r", name], LIMIT)
        if ran.rc:
            why = unload_reason(node, name, ran)
            failed = _load(node, [one for one in LOAD if one in gone], state.kernel)
            _start(node, state.services)
            told = "%s could not be unloaded: %s" % (name, why.sentence)
            if failed:
                told += "; and %s did not come back: %s" % (", ".join(failed), failed[next(iter(failed))].sentence)
            return Outcome(bool(gone), True, told, why.kind, steps, state.loaded, state.loaded)
        gone.append(name)
    failed = _load(node, again, state.kernel)
    must = {name: why for name, why in failed.items() if name in ("nvidia", "nvidia_uvm", "nvidia_modeset")}
    if must:
        lost, cause = next(iter(must.items()))
        return Outcome(True, False, "%s could not be loaded: %s" % (lost, cause.sentence), cause.kind, steps, state.loaded, "")
    silent = _start(node, _to_start(state))
    after = look(node)
    partly = ["%s: %s" % (one, reason.sentence) for one, reason in failed.items()]
    partly += ["%s did not start again" % one for one in silent]
    if after.loaded != state.installed:
        return Outcome(True, True, "after the exchange %s is loaded and %s is installed" % (after.loaded or "nothing", state.installed), "other",
                       steps, state.loaded, after.loaded)
    return Outcome(True, False, "; ".join(partly), "partly" if partly else "", steps, state.loaded, after.loaded)


def unload_reason(node: Node, name: str, ran: Ran) -> Reason:
    """Why a module stayed."""
    count = (node.read("/sys/module/%s/refcnt" % name) or "0").strip()
    holders = ["%s (process %s)" % (one.get("comm"), one.get("pid")) for one in node.holders()] if name.startswith("nvidia") else []
    return unloading(name, ran.text, node.names("/sys/module/%s/holders" % name), int(count) if count.isdigit() else 0, holders)


def _load(node: Node, modules: Sequence[str], kernel: str) -> Dict[str, Reason]:
    failed: Dict[str, Reason] = {}
    for name in modules:
        ran = node.run(["modprobe", name], LIMIT)
        if ran.rc:
            failed[name] = loading(name, ran.text, telling(node.run(["dmesg"], 30).out, name), kernel)
    return failed


def _start(node: Node, services: Sequence[str]) -> List[str]:
    return [unit for unit in reversed(services) if node.run(["systemctl", "start", unit], LIMIT).rc]


def report(outcome: Outcome) -> Mapping[str, Any]:
    """The outcome for a module's result."""
    return {
        "changed": outcome.changed, "reboot_needed": outcome.reboot, "reason": outcome.reason, "kind": outcome.kind, "steps": outcome.steps,
        "loaded_before": outcome.before, "loaded": outcome.after,
        "diff": {"before": "driver %s\n" % (outcome.before or "not loaded"), "after": "driver %s\n" % (outcome.after or "not loaded")},
    }
