# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian and Ubuntu: what apt and dpkg print, and what to call them with."""

from __future__ import annotations

import fnmatch
import re
from typing import Dict, List, Mapping, Sequence, Tuple

from ..node import host
from .model import Installed, Pin, Transaction, size

NAME = "apt"
PREFERENCES = "/etc/apt/preferences.d/inferops-vllm-driver"
"""Our pin; apt reads files without an ending here."""
INTERRUPTED = "/var/lib/dpkg/updates"
"""Holds files while dpkg was cut off in the middle."""

INSTALLED = (
    "dpkg-query", "-W", "-f=${Package}\\t${Version}\\t${db:Status-Abbrev}\\n",
    "*nvidia*", "cuda-drivers*", "nvlsm*", "libnvsdm*", "libcuda*", "dkms", "linux-headers-*",
)
AUDIT = ("dpkg", "--audit")
HOLDS = ("apt-mark", "showhold")
REFRESH = ("apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "-o", "DPkg::Lock::Timeout=300", "update")
CONFIGURE = ("dpkg", "--configure", "-a", "--force-confold")
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "NEEDRESTART_MODE": "l"}

_QUIET = ("-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=300", "--no-install-recommends")
_INST = re.compile(r"^Inst (\S+)(?: \[([^\]]*)\])? \((\S+) ")
_REMV = re.compile(r"^(?:Remv|Purg) (\S+)(?: \[([^\]]*)\])?")
_CONF = re.compile(r"^Conf (\S+)")
_NEED = re.compile(r"^Need to get (?:[\d.,]+ \w?B/)?([\d.,]+) (\w?B) of archives", re.M)
_MORE = re.compile(r"^After this operation, ([\d.,]+) (\w?B) (of additional disk space will be used|disk space will be freed)", re.M)
_BROKEN_STATES = {"U": "unpacked", "F": "half-configured", "H": "half-installed", "W": "triggers-awaited", "t": "triggers-pending"}


def parse_installed(text: str) -> Dict[str, Installed]:
    """Packages of INSTALLED that are there in any state, the broken ones with the word for it."""
    found: Dict[str, Installed] = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) != 3 or len(fields[2]) < 2 or not fields[1] or fields[2][1] in "nc":
            continue
        state = "must be reinstalled" if fields[2][2:3] == "R" else _BROKEN_STATES.get(fields[2][1], "ok")
        found[fields[0]] = Installed(fields[1], state)
    return found


def parse_available(text: str) -> Dict[str, List[str]]:
    """``{name: [versions]}`` in the order of ``apt-cache madison``, which lists the newest first; sources are left out."""
    found: Dict[str, List[str]] = {}
    for line in text.splitlines():
        fields = [part.strip() for part in line.split("|")]
        if len(fields) == 3 and fields[0] and fields[1] and not fields[2].endswith("Sources"):
            versions = found.setdefault(fields[0], [])
            if fields[1] not in versions:
                versions.append(fields[1])
    return found


def available_command(names: Sequence[str]) -> List[str]:
    """Which of `names` can be had, in which versions."""
    return ["apt-cache", "madison", *names]


def parse_holds(text: str) -> List[str]:
    """Names that ``apt-mark showhold`` prints."""
    return [line.strip() for line in text.splitlines() if re.match(r"[a-z0-9][a-z0-9+.-]*(?::\w+)?\s*$", line)]


def hold_command(names: Sequence[str]) -> List[str]:
    """Put packages on hold."""
    return ["apt-mark", "hold", *names]


def parse_broken(audit: str, installed: Mapping[str, Installed]) -> Dict[str, str]:
    """Packages that dpkg complains of, name → state."""
    found = {name: one.state for name, one in installed.items() if one.state != "ok"}
    for entry in host.parse_audit(audit):
        name, _colon, state = entry.partition(": ")
        found.setdefault(name, state)
    return found


def parse_preferences(text: str, where: str) -> List[Pin]:
    """Rules of a preferences file that name versions; those that only rank origins say nothing of a version.

    A rule counts when it decides: a priority of 500 and less is what every package has.
    """
    found: List[Pin] = []
    for block in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
        fields = {key.lower(): value.strip() for key, _sign, value in (line.partition(":") for line in block.splitlines()) if value}
        pin = fields.get("pin", "")
        priority = re.match(r"-?\d{1,5}$", fields.get("pin-priority", ""))
        if not fields.get("package") or not pin.lower().startswith("version ") or not priority or 0 <= int(priority.group()) <= 500:
            continue
        versions = pin[len("version "):].strip()
        found.append(Pin(tuple(fields["package"].split()), versions if int(priority.group()) > 0 else "!" + versions, where))
    return found


def against(pin: Pin, name: str, version: str) -> bool:
    """Whether `pin` keeps `name` from `version`."""
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in pin.patterns):
        return False
    unwanted = pin.version.startswith("!")
    return fnmatch.fnmatchcase(version, pin.version.lstrip("!")) == unwanted


def preferences(version: str) -> str:
    """Our pin: the driver stays at `version` (``580.95.05`` or ``580``), whatever else is offered."""
    return (
        "# Written by inferops.vllm: user space and kernel modules of the driver must not drift apart.\n"
        "Package: *nvidia* cuda-drivers* libcuda1\n"
        "Pin: version /^([0-9]+:)?%s[.-]/\n"
        "Pin-Priority: 1001\n" % version.replace(".", "\\.")
    )


def _specs(wanted: Mapping[str, str], remove: Sequence[str]) -> List[str]:
    return ["%s=%s" % (name, version) if version else name for name, version in sorted(wanted.items())] + [name + "-" for name in remove]


def _purge(remove: Sequence[str]) -> List[str]:
    """A pinning package that is only removed leaves its pin behind, since files below /etc stay."""
    return ["--purge"] if remove else []


def simulate_commands(
    wanted: Mapping[str, str], remove: Sequence[str], unhold: bool, reinstall: bool, preferences_file: str,
) -> List[List[str]]:
    """Two calls that change nothing: the actions, and the sizes. `preferences_file` takes the place of /etc/apt/preferences."""
    options = ["-o", "Dir::Etc::Preferences=" + preferences_file]
    options += ["--allow-change-held-packages"] if unhold else []
    options += ["--reinstall"] if reinstall else []
    options += ["--allow-downgrades", "--no-install-recommends", *_purge(remove)]
    return [
        ["apt-get", "-q", "-s", *options, "install", *_specs(wanted, remove)],
        ["apt-get", "-q", "-y", "--print-uris", *options, "install", *_specs(wanted, remove)],
    ]


def apply_commands(wanted: Mapping[str, str], remove: Sequence[str], unhold: bool, reinstall: bool) -> List[List[str]]:
    """Fetch everything, then install without the network: a repository that goes away leaves nothing half done."""
    options = [*_QUIET, "--allow-downgrades", *_purge(remove), *(["--allow-change-held-packages"] if unhold else []), *(["--reinstall"] if reinstall else [])]
    return [
        ["apt-get", *options, "--download-only", "install", *_specs(wanted, remove)],
        ["apt-get", *options, "--no-download", "install", *_specs(wanted, remove)],
    ]


def parse_simulation(text: str, rc: int, sizes: str = "") -> Transaction:
    """The actions of ``apt-get -s``, with the sizes of ``apt-get --print-uris``."""
    install: Dict[str, str] = {}
    change: Dict[str, Tuple[str, str]] = {}
    remove: Dict[str, str] = {}
    configure: List[str] = []
    for line in text.splitlines():
        one = _INST.match(line)
        if one:
            name, old, new = one.groups()
            if old:
                change[name] = (old, new)
            else:
                install[name] = new
            continue
        one = _REMV.match(line)
        if one:
            remove[one.group(1)] = one.group(2) or ""
            continue
        one = _CONF.match(line)
        if one:
            configure.append(one.group(1))
    need, more = _NEED.search(sizes), _MORE.search(sizes)
    disk = size(more.group(1), more.group(2)) if more else 0
    return Transaction(
        install, change, remove, tuple(name for name in configure if name not in install and name not in change),
        size(need.group(1), need.group(2)) if need else 0, -disk if more and "freed" in more.group(3) else disk,
        why(text) if rc else "")


def why(text: str) -> str:
    """The reason in what apt prints when it gives up, as one line; never empty."""
    # dpkg names the archive first and what is wrong with it, such as a full disk, on the line below.
    lines = [line.strip() for line in re.sub(r"(dpkg: error processing [^\n]*:)\n+[ \t]+", r"\1 ", text).splitlines()]
    needs = [line for line in lines if re.search(r" : (?:Depends|Conflicts|Breaks|PreDepends):|^(?:Depends|Conflicts): .*but ", line)]
    errors = [line for line in lines if re.match(r"(?:E|Err\S*|W): ", line) or "dpkg: error" in line or line.startswith("Error! ")]
    chosen = needs[:3] or errors[:3] or [line for line in lines if line][-2:]
    return "; ".join(re.sub(r"\s+", " ", line) for line in chosen)[:500] or "apt-get gave no reason"
