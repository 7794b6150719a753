# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Red Hat's family (dnf 4) and SUSE (zypper): what they print, and what to call them with. Tested on recorded output only, not run."""

from __future__ import annotations

import fnmatch
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..node import host
from .model import Installed, Pin, Transaction, size

INSTALLED = (
    "rpm", "-qa", "--qf", "%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n",
    "*nvidia*", "cuda-drivers*", "nvlsm*", "libnvsdm*", "dkms", "kernel-devel*", "kernel-default-devel*",
)
LOCK_FILES = ("/etc/dnf/plugins/versionlock.list", "/etc/yum/pluginconf.d/versionlock.list", "/etc/dnf/versionlock.toml", "/etc/zypp/locks")
DNF_LOCKS = LOCK_FILES[0]
BEGIN, END = "# inferops.vllm driver: begin", "# inferops.vllm driver: end"

# The version is named with every package, so that the modular filter must not hide it before its stream is enabled.
_HOTFIXES = "--setopt=*.module_hotfixes=1"
_ROW = re.compile(r"^ (\S+)\s+(x86_64|aarch64|noarch|i686|src)\s+(\S+)\s+(\S+)\s+([\d.]+)\s*([kMGT]?)\s*$")
_NEED = re.compile(r"^Total download size: ([\d.]+) ?([kMGT]?)", re.M)
_MORE = re.compile(r"^(Installed size|Freed space): ([\d.]+) ?([kMGT]?)", re.M)
_SUMMARY = re.compile(r"<install-summary\b([^>]*)>")
_SOLVABLE = re.compile(r"<solvable\b([^>]*?)/?>")
_ATTRIBUTE = re.compile(r"([\w-]+)=\"([^\"]*)\"")


class Manager(NamedTuple):
    """dnf or zypper."""

    name: str


DNF, ZYPPER = Manager("dnf"), Manager("zypper")


def refresh_command(manager: Manager) -> List[str]:
    """Read the lists of the repositories anew."""
    return ["zypper", "--non-interactive", "refresh"] if manager is ZYPPER else ["dnf", "-q", "-y", "makecache"]


def parse_installed(text: str) -> Dict[str, Installed]:
    """``{name: version}`` with epoch and release; of kernel headers the last one stands."""
    found = {}
    for line in text.splitlines():
        name, tab, version = line.partition("\t")
        if tab and name and version[:1].isdigit():
            found[name] = Installed(version.strip()[2:] if version.startswith("0:") else version.strip())
    return found


def available_command(manager: Manager, names: Sequence[str]) -> List[str]:
    """Which of `names` can be had, in which versions."""
    if manager is ZYPPER:
        return ["zypper", "--non-interactive", "--xmlout", "--no-refresh", "search", "--details", "--match-exact", "--type", "package", *names]
    return ["dnf", "-q", "repoquery", _HOTFIXES, "--available", "--qf", "%{name}\t%{evr}", *names]


def parse_available(manager: Manager, text: str) -> Dict[str, List[str]]:
    """``{name: [versions]}`` as they come."""
    found: Dict[str, List[str]] = {}
    if manager is ZYPPER:
        pairs = [(one.get("name", ""), one.get("edition", "")) for one in map(_attributes, _SOLVABLE.findall(text))
                 if one.get("kind", "package") == "package" and one.get("repository", "") != "(System Packages)"]
    else:
        # dnf 5 prints no line end by itself, dnf 4 does.
        pairs = [(name.strip(), version.strip()) for name, tab, version in (line.partition("\t") for line in text.splitlines()) if tab]
    for name, version in pairs:
        if name and version[:1].isdigit() and version not in found.setdefault(name, []):
            found[name].append(version)
    return {name: versions for name, versions in found.items() if versions}


def _attributes(text: str) -> Dict[str, str]:
    return dict(_ATTRIBUTE.findall(text))


def parse_locks(text: str, where: str) -> List[Pin]:
    """Locks of one file, without those that we wrote. A lock keeps what is installed, so every other version is against it."""
    ours = re.sub(r"(?ms)^%s$.*?^%s$\n?" % (re.escape(BEGIN), re.escape(END)), "", text)
    return [Pin((name,), "", where) for name in host.parse_versionlock(ours)]


def against(pin: Pin, name: str, version: str, installed: Optional[Installed]) -> bool:
    """Whether the lock `pin` keeps `name` from `version`."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in pin.patterns) and (installed is None or installed.version != version)


def lock_text(text: str, wanted: Mapping[str, str]) -> str:
    """`text` of DNF_LOCKS with our block put in, or replaced."""
    lines = ["%s-%s.*" % (name, version if ":" in version else "0:" + version) for name, version in sorted(wanted.items()) if version]
    block = "\n".join([BEGIN, *lines, END]) + "\n" if lines else ""
    without = re.sub(r"(?ms)^%s$.*?^%s$\n?" % (re.escape(BEGIN), re.escape(END)), "", text)
    return without + ("\n" if without and not without.endswith("\n") else "") + block


def _specs(wanted: Mapping[str, str]) -> List[str]:
    return ["%s-%s" % (name, version) if version else name for name, version in sorted(wanted.items())]


def simulate_command(manager: Manager, wanted: Mapping[str, str], remove: Sequence[str]) -> List[str]:
    """One call that changes nothing."""
    if manager is ZYPPER:
        return ["zypper", "--non-interactive", "--xmlout", "--no-refresh", "install", "--dry-run", "--details", "--no-recommends", "--oldpackage",
                *_zypper(wanted, remove)]
    return ["dnf", "--assumeno", _HOTFIXES, "--setopt=install_weak_deps=0", "--allowerasing", "install", *_specs(wanted)]


def _zypper(wanted: Mapping[str, str], remove: Sequence[str]) -> List[str]:
    return ["%s=%s" % (name, version) if version else name for name, version in sorted(wanted.items())] + ["-" + name for name in remove]


def apply_commands(manager: Manager, wanted: Mapping[str, str], remove: Sequence[str], stream: str = "") -> List[List[str]]:
    """Fetch, then install. `stream` is the module stream that dnf of release 8 and 9 must have enabled."""
    if manager is ZYPPER:
        base = ["zypper", "--non-interactive", "install", "--no-recommends", "--oldpackage", "--auto-agree-with-licenses"]
        return [[*base, "--download-only", *_zypper(wanted, remove)], [*base, *_zypper(wanted, remove)]]
    base = ["dnf", "-q", "-y", _HOTFIXES, "--setopt=install_weak_deps=0", "--allowerasing", "install"]
    modules = [["dnf", "-q", "-y", "module", "reset", stream.split(":")[0]], ["dnf", "-q", "-y", "module", "enable", stream]] if stream else []
    return [[*base, "--downloadonly", *_specs(wanted)], *modules, [*base, *_specs(wanted)]]


def parse_dnf(text: str, rc: int, installed: Mapping[str, Installed]) -> Transaction:
    """The table of ``dnf --assumeno install``. It exits with 1 when it was not allowed to go on, which is no error."""
    install: Dict[str, str] = {}
    change: Dict[str, Tuple[str, str]] = {}
    remove: Dict[str, str] = {}
    part = ""
    for line in _joined(text.splitlines()):
        heading = re.match(r"^([A-Z][a-z][A-Za-z ]*):$", line)
        if heading:
            part = heading.group(1).lower()
            continue
        row = _ROW.match(line)
        if not row or not part:
            continue
        name, version = row.group(1), row.group(3)
        if part.startswith(("upgrad", "downgrad", "reinstall")):
            change[name] = (installed[name].version if name in installed else "", version)
        elif part.startswith("install"):
            install[name] = version
        elif part.startswith("remov"):
            remove[name] = version
    need = _NEED.search(text)
    more = _MORE.search(text)
    known = bool(install or change or remove) or "Nothing to do" in text
    disk = size(more.group(2), more.group(3)) if more else 0
    return Transaction(install, change, remove, (), size(need.group(1), need.group(2)) if need else 0,
                       -disk if more and more.group(1) == "Freed space" else disk, "" if known and rc in (0, 1) else why(text))


def _joined(lines: Sequence[str]) -> List[str]:
    """dnf puts a long name on a line of its own and the rest of the row below it."""
    found: List[str] = []
    for line in lines:
        if found and re.match(r"^ \S+$", found[-1]) and re.match(r"^\s{2,}\S", line):
            found[-1] += " " + line.strip()
        else:
            found.append(line.rstrip())
    return found


def parse_zypper(text: str, rc: int) -> Transaction:
    """The summary of ``zypper --xmlout install --dry-run``."""
    groups: Dict[str, List[Dict[str, str]]] = {}
    for kind in ("install", "upgrade", "downgrade", "remove", "reinstall"):
        found = re.search(r"<to-%s\b[^>]*>(.*?)</to-%s>" % (kind, kind), text, re.S)
        packages = map(_attributes, _SOLVABLE.findall(found.group(1))) if found else []
        groups[kind] = [one for one in packages if one.get("type", "package") == "package" and one.get("name")]
    summary = _SUMMARY.search(text)
    told = _attributes(summary.group(1)) if summary else {}

    def bytes_of(name: str) -> int:
        value = told.get(name, "0")
        return int(value) if re.match(r"-?\d{1,15}$", value) else 0

    changed = groups["upgrade"] + groups["downgrade"] + groups["reinstall"]
    return Transaction(
        {one["name"]: one.get("edition", "") for one in groups["install"]},
        {one["name"]: (one.get("edition-old", ""), one.get("edition", "")) for one in changed},
        {one["name"]: one.get("edition", "") for one in groups["remove"]}, (),
        bytes_of("download-size"), bytes_of("space-usage-diff"),
        "" if rc in (0, 100, 101, 102, 103) and (summary or "Nothing to do" in text) else why(text))


def why(text: str) -> str:
    """The reason in what dnf or zypper prints when it gives up, as one line; never empty."""
    messages = [re.sub(r"\s+", " ", one).strip() for one in re.findall(r"<message type=\"error\">(.*?)</message>", text, re.S)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = messages or [line for line in lines if re.match(r"(?:Error|Problem|No match|Unable)\b|- (?:nothing provides|cannot install|package )", line)]
    return "; ".join((told or lines[-2:])[:3])[:500] or "the package manager gave no reason"
