# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's packages as they should be: look, choose, simulate, decide, apply, look again.

Everything that touches the node goes through :class:`Node`, so the whole course can be played in tests.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..node.driver import DKMS, parse_dkms
from ..node.text import table
from ..node.text import version as numbers
from . import apt, rpm
from .choose import (
    Choice,
    Request,
    any_driver_version,
    choose,
    extend,
    family_row,
    installed_version,
    leftovers,
    names_to_ask,
    schemes,
    unsatisfied,
    validate,
)
from .data import BUILD_BYTES, INITRD_BYTES, Family, family
from .model import Installed, Pin, Ran, Refused, Run, Transaction, branch_of, is_driver, is_kernel, newest, upstream

QUERY, APPLY = 120, 3600
"""Limits in seconds of a question, and of a step that changes packages (DKMS builds for minutes)."""


class Node(NamedTuple):
    """The machine: each member does one thing and never raises.

    Attributes:
        run: a command with a limit in seconds.
        read: text of a file, None when there is none.
        names: names in a folder.
        free: device and free bytes of the file system that holds a path.
        write: put text into a file, None removes it.
        scratch: a folder for files that nobody else reads.
        holders: processes outside of the driver's own services that use the GPUs, as a person names them.
        say: a line for the log of the node.
    """

    run: Run
    read: Callable[[str], Optional[str]]
    names: Callable[[str], List[str]]
    free: Callable[[str], Tuple[int, int]]
    write: Callable[[str, Optional[str]], None]
    scratch: str
    holders: Callable[[], List[str]]
    say: Callable[[str], None]


class State(NamedTuple):
    """What is there now."""

    family: Family
    kernel: str
    installed: Dict[str, Installed]
    broken: Dict[str, str]
    held: List[str]
    pins: List[Pin]
    headers: bool
    built: bool
    kernels: Tuple[str, ...]


def look(node: Node) -> State:
    """Read the state of the packages. Raises Refused where they cannot be read."""
    release = table(node.read("/etc/os-release") or node.read("/usr/lib/os-release") or "")
    row = family_row(family(release.get("ID", ""), release.get("VERSION_ID", "")), release.get("PRETTY_NAME", ""))
    kernel = (node.read("/proc/sys/kernel/osrelease") or "").strip()
    held: List[str] = []
    pins: List[Pin] = []
    broken: Dict[str, str] = {}
    if row.manager == "apt":
        listed = node.run(apt.INSTALLED, QUERY)
        if listed.rc not in (0, 1):
            raise Refused("the installed packages could not be read: %s" % _short(listed), "packages")
        installed = apt.parse_installed(listed.out)
        broken = apt.parse_broken(node.run(apt.AUDIT, QUERY).out, installed)
        if node.names(apt.INTERRUPTED):
            broken.setdefault("dpkg", "was interrupted")
        held = apt.parse_holds(node.run(apt.HOLDS, QUERY).out)
        folder = "/etc/apt/preferences.d"
        # apt reads files without an ending or with .pref.
        files = ["/etc/apt/preferences"] + [folder + "/" + name for name in node.names(folder) if "." not in name or name.endswith(".pref")]
        for path in files:
            if path != apt.PREFERENCES:
                pins += apt.parse_preferences(node.read(path) or "", path)
    else:
        listed = node.run(rpm.INSTALLED, QUERY)
        if listed.rc != 0:
            raise Refused("the installed packages could not be read: %s" % _short(listed), "packages")
        installed = rpm.parse_installed(listed.out)
        for path in rpm.LOCK_FILES:
            pins += rpm.parse_locks(node.read(path) or "", path)
    kernels = tuple(sorted(name for name in node.names("/boot") if name.startswith(("vmlinuz-", "vmlinux-"))))
    built = _has_module(node)
    return State(row, kernel, installed, broken, held, pins, bool(node.names("/lib/modules/%s/build" % kernel)), built, kernels)


def available(node: Node, state: State, request: Request) -> Dict[str, List[str]]:
    """What the repositories offer by the lists on this node, together with what is installed."""
    names = names_to_ask(state.family.name, request, state.kernel, state.installed)
    if state.family.manager == "apt":
        found = apt.parse_available(node.run(apt.available_command(names), QUERY).out)
    else:
        manager = _rpm(state)
        ran = node.run(rpm.available_command(manager, names), QUERY)
        found = rpm.parse_available(manager, ran.out)
    return _with_installed(found, state)


def _with_installed(found: Mapping[str, Sequence[str]], state: State) -> Dict[str, List[str]]:
    both = {name: list(versions) for name, versions in found.items()}
    for name, one in state.installed.items():
        if one.version not in both.setdefault(name, []):
            both[name].append(one.version)
    return both


def _rpm(state: State) -> rpm.Manager:
    return rpm.ZYPPER if state.family.manager == "zypper" else rpm.DNF


def _short(ran: Ran) -> str:
    lines = [line.strip() for line in ran.text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no output, exit status %d" % ran.rc)[:300]


def keep_version(state: State, request: Request) -> str:
    """The driver version that is there and may stay: of the branch, whole, and no update was asked for. Empty for none."""
    if request.version:
        return request.version
    if not request.driver:
        return any_driver_version(state.installed)
    if request.update:
        return ""
    for scheme in schemes(state.family.name, request):
        found = installed_version(scheme, request, state.kernel, state.installed)
        if found and branch_of(found) == request.branch:
            return found
    return ""


def target(node: Node, state: State, request: Request, offered: Mapping[str, Sequence[str]]) -> Choice:
    """The packages to have, with the headers of the running kernel where modules are built. Raises Refused."""
    kept = keep_version(state, request)
    if not request.driver and not kept:
        raise Refused("no driver is installed by packages, so none can be named that would fit it: install the driver first", "driver")
    if not request.driver and branch_of(kept) != request.branch and not request.version:
        request = request._replace(branch=branch_of(kept))
    choice = extend(choose(request, state.family.name, state.kernel, offered, state.installed, kept), request, offered, state.installed)
    if request.headers and choice.builds and not state.headers:
        name, version = _headers(state, offered)
        choice = choice._replace(wanted={**choice.wanted, name: version})
    if request.driver and not request.downgrade:
        now = any_driver_version(state.installed)
        if now and numbers(now) > numbers(choice.version):
            raise Refused(
                "driver %s is installed, which is newer than %s: ask for branch %s, or allow the downgrade" % (now, choice.version, branch_of(now)),
                "downgrade", [now])
    return choice


def _headers(state: State, offered: Mapping[str, Sequence[str]]) -> Tuple[str, str]:
    name = state.family.headers.format(kernel=state.kernel)
    if state.family.manager == "apt":
        if offered.get(name):
            return name, ""
    else:
        # A release of the kernel ends with its architecture (Red Hat) or flavour (SUSE), which no package version has.
        release = state.kernel.rsplit(".", 1)[0] if state.family.manager == "dnf" else state.kernel.rpartition("-")[0]
        for version in newest(offered.get(name, ())):
            if version.split(":", 1)[-1] == release or version.startswith(release + "."):
                return name, version
    raise Refused(
        "no repository offers the headers of the running kernel %s (%s), and the driver's modules are built from them: "
        "offer them, or boot a kernel whose headers are offered" % (state.kernel, name), "headers", [name])


def decide(state: State, request: Request, choice: Choice, change: Transaction) -> None:
    """Raise Refused when the transaction must not be carried out."""
    if change.error:
        raise Refused("the package manager refuses: %s" % change.error, "resolver")
    kernels = [name for name in change.touched if is_kernel(name)]
    if kernels:
        raise Refused("the transaction would change the kernel (%s); the driver never does" % ", ".join(kernels), "kernel", kernels)
    foreign = [name for name in sorted(change.remove) if not is_driver(name) and name not in choice.remove]
    if foreign:
        raise Refused("the transaction would remove %s, which is no part of the driver" % ", ".join(foreign), "remove", foreign)
    held = [name for name in change.touched if name in state.held]
    if held and not request.unhold:
        raise Refused(_held(held), "held", held)
    down = [name for name, (old, new) in change.change.items() if old and numbers(upstream(old)) > numbers(upstream(new))]
    if down and not request.downgrade:
        raise Refused("the transaction would downgrade %s: allow it to go on" % ", ".join(sorted(down)), "downgrade", sorted(down))


def _held(names: Sequence[str]) -> str:
    return "held: %s; lift the hold (apt-mark unhold), or allow it with unhold" % ", ".join(sorted(names))


def guard(state: State, request: Request, choice: Choice, needs: Mapping[str, str]) -> None:
    """Raise Refused for holds, pins and broken packages, by name, before the resolver is asked (its own words name none of them)."""
    if state.broken and not request.repair:
        told = ["%s (%s)" % pair for pair in sorted(state.broken.items())]
        raise Refused("packages are not whole: %s; mend them, or allow it with repair" % ", ".join(told[:8]), "broken", sorted(state.broken))
    if request.unhold:
        return
    held = sorted(name for name in state.held if name in needs or name in choice.remove)
    if held:
        raise Refused(_held(held), "held", held)
    blocked: Dict[str, List[str]] = {}
    for pin in state.pins:
        for name, version in needs.items():
            if state.family.manager == "apt":
                against = bool(version) and apt.against(pin, name, version)
            else:
                against = rpm.against(pin, name, version, state.installed.get(name))
            if against:
                blocked.setdefault(pin.where, []).append(name)
    if blocked:
        told = ["%s keeps %s from it" % (where, ", ".join(sorted(set(names))[:6])) for where, names in sorted(blocked.items())]
        raise Refused("driver %s is pinned away: %s; change the pin, or allow it with unhold" % (choice.version, "; ".join(told)), "pinned", sorted(blocked))


def pin_file(state: State, request: Request, choice: Choice) -> Tuple[str, Optional[str]]:
    """Path and text of the pin that belongs to the request; the text is None where the file must not be. An empty path leaves it alone."""
    if state.family.manager == "apt" and request.driver:
        words = {"version": choice.version, "branch": request.branch}
        return apt.PREFERENCES, apt.preferences(words[request.pin]) if request.pin in words else None
    return "", None


def simulate(node: Node, state: State, request: Request, choice: Choice, needs: Mapping[str, str], pin: Optional[str]) -> Transaction:
    """What the package manager would do to fulfil the choice. Changes nothing."""
    if not needs and not choice.remove:
        return Transaction({}, {}, {})
    if state.family.manager == "apt":
        path = node.scratch + "/preferences"
        node.write(path, (node.read("/etc/apt/preferences") or "") + "\n\n" + (pin or ""))
        actions, sizes = apt.simulate_commands(needs, choice.remove, request.unhold, _reinstall(state), path)
        ran = node.run(actions, QUERY)
        told = node.run(sizes, QUERY) if ran.rc == 0 else Ran(0, "")
        return apt.parse_simulation(ran.text if ran.rc else ran.out, ran.rc, told.out)
    manager = _rpm(state)
    ran = node.run(rpm.simulate_command(manager, needs, choice.remove), QUERY)
    return rpm.parse_zypper(ran.text, ran.rc) if manager is rpm.ZYPPER else rpm.parse_dnf(ran.text, ran.rc, state.installed)


def _reinstall(state: State) -> bool:
    return any(word in ("must be reinstalled", "half-installed") for word in state.broken.values())


def space(node: Node, state: State, change: Transaction, choice: Choice) -> None:
    """Raise Refused where a file system has less room than the transaction needs."""
    if change.empty:
        return
    cache = {"apt": "/var/cache/apt/archives", "dnf": "/var/cache/dnf", "zypper": "/var/cache/zypp"}[state.family.manager]
    modules = any(name.startswith(("nvidia-dkms", "nvidia-kernel", "kmod-nvidia", "nvidia-open")) for name in change.touched)
    needs = [(cache, change.download), ("/usr", max(change.disk, 0))]
    needs += [("/var/lib", BUILD_BYTES)] if modules and choice.builds else []
    needs += [("/boot", INITRD_BYTES)] if modules else []
    devices: Dict[int, Tuple[List[str], int, int]] = {}
    for path, wanted in needs:
        device, free = node.free(path)
        paths, total, _free = devices.get(device, ([], 0, 0))
        devices[device] = (paths + [path], total + wanted, free)
    for paths, total, free in devices.values():
        if total > free:
            raise Refused("not enough room for %s: %d MB free, %d MB needed" % (", ".join(paths), free >> 20, -(-total >> 20)), "space", paths)


class Outcome(NamedTuple):
    """What was done, or would be."""

    changed: bool
    result: Dict[str, Any]


def ensure(node: Node, request: Request, check: bool) -> Outcome:
    """Bring the packages to what `request` asks for; with `check` say what that would change.

    Raises Refused when it cannot or must not be done. Then nothing was changed, unless ``args[0]`` says otherwise.
    """
    validate(request)
    state = look(node)
    choice, needs, notes = _choose(node, state, request, check)
    path, pin = pin_file(state, request, choice)
    pin_now = node.read(path) if path else None
    pin_changes = bool(path) and pin_now != pin and not (pin is None and pin_now is None)
    broken_only = bool(state.broken) and request.repair
    change = Transaction({}, {}, {})
    if needs or choice.remove or broken_only:
        guard(state, request, choice, needs)
        change = simulate(node, state, request, choice, needs, pin)
        if change.error and broken_only and not check:
            _configure(node)
            change = simulate(node, look(node), request, choice, needs, pin)
        if not (change.error and broken_only and check):
            decide(state, request, choice, change)
        space(node, state, change, choice)
    elif state.broken:
        # What has nothing to do with the driver is somebody else's, as long as nothing is to be installed.
        if any(is_driver(name) or name == "dpkg" for name in state.broken):
            guard(state, request, choice, needs)
        notes.append("not whole, and no part of the driver: %s" % ", ".join(sorted(state.broken)))
    # Some releases of DKMS leave a driver without modules when the headers were missing, and call it configured.
    build = choice.builds and request.headers and not state.built and change.empty and not broken_only
    changed = not change.empty or pin_changes or broken_only or build
    if not request.while_used and (not change.empty or broken_only):
        users = node.holders()
        if users:
            raise Refused(
                "the GPUs are in use by %s: a change of packages reloads systemd and parts the libraries from the loaded module; "
                "stop them, or allow it with while_used" % ", ".join(users[:6]), "in_use", users)
    result = _report(state, request, choice, change, notes)
    result["diff"] = _diff(state, choice, change, path if pin_changes else "", pin_now, pin)
    if check or not changed:
        return Outcome(changed, result)
    if pin_changes:
        node.write(path, pin)
    try:
        _apply(node, state, request, choice, needs, change, broken_only)
    except Refused as exc:
        if pin_changes and exc.kind == "download":
            node.write(path, pin_now)
        raise
    if choice.builds and request.headers:
        _build(node, state.kernel)
    # DKMS does not wait for the disk: after a power cut its modules would be empty files that it calls installed.
    node.run(["sync"], APPLY)
    after = look(node)
    _verify(state, after, choice, request)
    if state.family.manager == "dnf" and request.driver and request.pin != "none":
        _lock(node, after, choice)
    result["installed"] = _driver_packages(after.installed)
    return Outcome(True, result)


def _choose(node: Node, state: State, request: Request, check: bool) -> Tuple[Choice, Dict[str, str], List[str]]:
    """The choice; repositories are asked only when what is installed does not do."""
    if not request.update:
        try:
            choice = target(node, state, request, _with_installed({}, state))
            if not unsatisfied(choice, state.installed) and not choice.remove and not leftovers(choice, state.installed):
                return choice, {}, []
        except Refused as exc:
            if exc.kind not in ("unavailable", "headers", "downgrade"):
                raise
    notes: List[str] = []
    refreshed = Ran(0, "")
    # The lists are a cache: reading them anew is no change, but it writes, so check mode goes by what is there.
    if not check:
        node.say("reading the lists of the repositories")
        refreshed = node.run(apt.REFRESH if state.family.manager == "apt" else rpm.refresh_command(_rpm(state)), 600)
    trouble = ""
    if refreshed.rc:
        reason = apt.why(refreshed.text) if state.family.manager == "apt" else rpm.why(refreshed.text)
        trouble = "; the repositories could not be read: %s" % reason
        notes.append("the repositories could not be read: %s" % reason)
    offered = available(node, state, request)
    try:
        choice = target(node, state, request, offered)
    except Refused as exc:
        hint = " (by the lists that are on this node)" if check and exc.kind in ("unavailable", "headers") else ""
        raise Refused(str(exc) + hint + trouble, exc.kind, exc.names) from exc
    left = leftovers(choice, state.installed)
    staying = [one for one in left if one.split(" ")[0] not in choice.wanted and one.split(" ")[0] not in choice.remove]
    if staying:
        notes.append("not offered in version %s and left as they are: %s" % (choice.version, ", ".join(staying)))
    return choice, unsatisfied(choice, state.installed), notes


def _configure(node: Node) -> None:
    """Finish what dpkg left half done, as far as that goes."""
    node.say("finishing packages that were left half configured")
    node.run(apt.CONFIGURE, APPLY)


def _apply(
    node: Node, state: State, request: Request, choice: Choice, needs: Mapping[str, str], change: Transaction, broken: bool,
) -> None:
    if "dpkg" in state.broken:
        # After an interruption apt does nothing before dpkg has gone through its own notes.
        _configure(node)
    if needs or choice.remove:
        if state.family.manager == "apt":
            steps = apt.apply_commands(needs, choice.remove, request.unhold, _reinstall(state))
        else:
            steps = rpm.apply_commands(_rpm(state), needs, choice.remove, choice.stream)
        for number, argv in enumerate(steps):
            node.say(("fetching " if number == 0 else "installing ") + "driver %s" % choice.version)
            ran = node.run(argv, APPLY)
            if ran.rc:
                reason = apt.why(ran.text) if state.family.manager == "apt" else rpm.why(ran.text)
                if number == 0:
                    raise Refused("the packages could not be fetched, nothing was changed: %s" % reason, "download")
                raise Refused(_half(node, reason), "install")
    held = [name for name in state.held if name in change.touched and name not in change.remove]
    if held:
        # Allowing apt to change a held package takes the hold away.
        node.run(apt.hold_command(held), QUERY)
    if broken and look(node).broken:
        _configure(node)


def _build(node: Node, kernel: str) -> None:
    """Have DKMS build what is not there. Raises Refused when it cannot."""
    if _has_module(node):
        return
    node.say("building the driver's modules for %s" % kernel)
    ran = node.run(["dkms", "autoinstall", "-k", kernel], APPLY)
    if not _has_module(node):
        # It takes what it built once for installed; a file that a power cut left empty is built anew only after it was taken away.
        for same in _installed_modules(node, kernel):
            node.run(["dkms", "remove", *same], APPLY)
            ran = node.run(["dkms", "install", *same], APPLY)
    if not _has_module(node):
        raise Refused("DKMS did not build the driver's modules for %s: %s" % (kernel, apt.why(ran.text)), "build")


def _has_module(node: Node) -> bool:
    return node.run(["modinfo", "-F", "version", "nvidia"], QUERY).rc == 0


def _installed_modules(node: Node, kernel: str) -> List[List[str]]:
    """Arguments that name to DKMS each NVIDIA module that it calls installed for `kernel`."""
    return [["-m", known["module"], "-v", known["version"], "-k", kernel] for known in parse_dkms(node.run(DKMS, QUERY).text)
            if known["module"] != "gdrdrv" and known.get("kernel") == kernel and known["status"].startswith("installed")]


def _half(node: Node, reason: str) -> str:
    broken = sorted(look(node).broken.items())
    told = ", ".join("%s (%s)" % pair for pair in broken[:8])
    return "the installation failed: %s; %s" % (reason, "not whole now: %s" % told if told else "no package was left half done")


def _verify(before: State, after: State, choice: Choice, request: Request) -> None:
    if after.broken:
        raise Refused("after the change packages are not whole: %s" % ", ".join("%s (%s)" % pair for pair in sorted(after.broken.items())), "verify")
    lacking = unsatisfied(choice, after.installed)
    if lacking:
        raise Refused("after the change these are not there as they should be: %s" % ", ".join(sorted(lacking)), "verify")
    if after.kernels != before.kernels:
        raise Refused("the installed kernels changed: %s" % ", ".join(sorted(set(after.kernels) ^ set(before.kernels))), "kernel")


def _lock(node: Node, after: State, choice: Choice) -> None:
    own = {name: one.version for name, one in after.installed.items() if is_driver(name) and upstream(one.version) == choice.version}
    text = node.read(rpm.DNF_LOCKS) or ""
    node.write(rpm.DNF_LOCKS, rpm.lock_text(text, own))


def _driver_packages(installed: Mapping[str, Installed]) -> Dict[str, str]:
    return {name: one.version for name, one in sorted(installed.items()) if is_driver(name) or name == "nvlsm"}


def _report(state: State, request: Request, choice: Choice, change: Transaction, notes: Sequence[str]) -> Dict[str, Any]:
    return {
        "version": choice.version,
        "branch": branch_of(choice.version),
        "scheme": choice.scheme,
        "family": state.family.name,
        "kernel": state.kernel,
        "before": _driver_packages(state.installed),
        "transaction": {
            "install": change.install, "change": {name: list(pair) for name, pair in change.change.items()}, "remove": change.remove,
            "configure": list(change.configure), "download_bytes": change.download, "disk_bytes": change.disk,
        },
        "broken": state.broken,
        "notes": list(notes),
    }


def _diff(
    state: State, choice: Choice, change: Transaction, path: str, pin_now: Optional[str], pin: Optional[str],
) -> Dict[str, str]:
    """Package versions before and after, one a line, and the pin when it changes."""
    before: Dict[str, str] = {name: old for name, (old, _new) in change.change.items()}
    before.update(change.remove)
    after: Dict[str, str] = {name: new for name, (_old, new) in change.change.items()}
    after.update(change.install)
    for name, word in state.broken.items():
        now = state.installed[name].version if name in state.installed else ""
        before[name] = ("%s %s" % (before.get(name, now), word)).strip()
        after.setdefault(name, now)
    rows = [["%s %s\n" % pair for pair in sorted(side.items())] for side in (before, after)]
    if path:
        for side, text in zip(rows, (pin_now, pin)):
            side += ["%s: %s\n" % (path, line) for line in (text or "").splitlines() if not line.startswith("#")]
    return {"before_header": "driver packages", "after_header": "driver packages", "before": "".join(rows[0]), "after": "".join(rows[1])}
