# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the section ``service`` (docs/FACTS.md): units that serve vLLM, and what really runs."""

from __future__ import annotations

import hashlib
import json
import re
from fnmatch import fnmatchcase
from typing import Any, Dict, List, Optional, Sequence

from . import systemd
from .reader import Reader
from .text import integer

MAX_UNITS = 16
MAX_FILES = 20
MAX_ENV = 60
REMEDIATION = "/var/lib/inferops-vllm/remediation.json"
"""State file of a node that was remediated (module remediation_state)."""


def usable_units(options: Any) -> List[str]:
    """Unit names that systemd could have; anything else is never handed to a command."""
    return [str(u) for u in options.units if re.match(r"^[A-Za-z0-9][A-Za-z0-9:_.@\\-]{0,250}\Z", str(u))][:MAX_UNITS]


def commands(options: Any) -> List[Sequence[str]]:
    """Commands known beforehand."""
    units = usable_units(options)
    return [systemd.show_command(units)] if units else []


def collect(reader: Reader, options: Any) -> Dict[str, Any]:
    """Facts of this section; never raises for what the node answers."""
    unknown: Dict[str, str] = {}
    units = _units(reader, options, unknown)
    state = _remediation(reader, unknown)
    return {
        "units": units,
        "processes": _processes(reader, unknown),
        "env_files": _env_files(reader, units or [], unknown),
        "remediation": state,
        "remediation_foreign": _foreign(reader, state),
        "unknown": unknown,
    }


def _remediation(reader: Reader, unknown: Dict[str, str]) -> Optional[str]:
    """Text of the state file, as it stands: what it means is told by those who remediate."""
    content = reader.read(REMEDIATION)
    if content.text is None and content.error != "missing":
        unknown["remediation"] = "%s could not be read: %s" % (REMEDIATION, content.error)
    return content.text


def _foreign(reader: Reader, state: Optional[str]) -> Optional[bool]:
    """The state file names another machine, as on a cloned disk; None when that cannot be told. The machine's id itself is no fact."""
    try:
        machine = json.loads(state)["machine"] if state else None
    except (ValueError, RecursionError, KeyError, TypeError):
        machine = None
    here = reader.probe("sha256", "/etc/machine-id") if isinstance(machine, str) and machine else None
    if here is None or not isinstance(here.value, str):
        return None
    return here.value != hashlib.sha256((str(machine) + "\n").encode("utf-8", "replace")).hexdigest()


def _units(reader: Reader, options: Any, unknown: Dict[str, str]) -> Optional[List[Dict[str, Any]]]:
    wanted = usable_units(options)
    if not wanted:
        return []
    ran = reader.run(systemd.show_command(wanted))
    blocks = systemd.blocks(ran.out) if ran.ok else []
    if not any(systemd.first(block, "LoadState") for block in blocks):
        unknown["units"] = ran.reason("systemctl") if not ran.ok else "systemctl show printed nothing that could be understood"
        return None
    units: List[Dict[str, Any]] = []
    for block in blocks:
        name = systemd.first(block, "Id")
        if name:
            dropins = systemd.first(block, "DropInPaths").split()
            units.append({
                "name": name[:256], **systemd.service_fields(block), "fragment": systemd.first(block, "FragmentPath")[:300] or None,
                "dropins": [path[:300] for path in dropins][:20],
            })
    return units


def _processes(reader: Reader, unknown: Dict[str, str]) -> Optional[List[Dict[str, Any]]]:
    probed = reader.probe("processes")
    scanned = probed.value if isinstance(probed.value, dict) else {}
    pids = scanned.get("vllm")
    if not isinstance(pids, list):
        unknown["processes"] = "the processes could not be looked through: " + (probed.error or "no answer")
        return None
    if scanned.get("vllm_error"):
        unknown["processes"] = "the command lines could not be read: %s" % scanned["vllm_error"]
    elif scanned.get("hidden") and not pids:
        unknown["processes"] = "the processes of others are hidden from this user"
    elif scanned.get("truncated") and not pids:
        unknown["processes"] = "there are more processes than could be looked through"
    found: List[Dict[str, Any]] = []
    for pid in pids[:8]:
        answer = reader.probe("process_detail", str(pid))
        detail = answer.value if isinstance(answer.value, dict) else {}
        if answer.error:
            unknown["processes"] = "process %s could not be read: %s" % (pid, answer.error)
        argv = detail.get("argv")
        if not isinstance(argv, list) or not argv:
            continue
        env = detail.get("env")
        facts: Dict[str, Any] = {
            "pid": integer(pid), "argv": [str(part)[:1000] for part in argv][:120],
            "env": {str(k): str(v)[:300] for k, v in sorted(env.items())[:MAX_ENV]} if isinstance(env, dict) else None,
            "started": detail.get("started"),
        }
        if env is None:
            unknown["processes"] = "the environment of process %s may not be read by this user" % pid
        facts.update(systemd.owner(str(detail.get("cgroup") or "")))
        found.append(facts)
    return found


def parse_env_files(text: str) -> List[str]:
    """Paths of ``EnvironmentFile=`` lines of a unit and of ``--env-file`` in its commands, in order.

    An empty ``EnvironmentFile=`` takes the earlier ones back, as in systemd. Paths with specifiers are left out.
    """
    found: List[str] = []
    # A backslash at the end continues the line.
    for line in re.sub(r"\\\n", " ", text).splitlines():
        key, sign, value = line.strip().partition("=")
        if key.strip() == "EnvironmentFile" and sign:
            path = value.strip().lstrip("-").strip("\"'")
            if not path:
                found = []
            found.append(path)
        elif not line.lstrip().startswith(("#", ";")):
            found.extend(re.findall(r"--env-file[=\s]+[\"']?([^\s\"']+)", line))
    return [path for path in dict.fromkeys(found) if path.startswith("/") and "%" not in path]


def _env_files(reader: Reader, units: Sequence[Dict[str, Any]], unknown: Dict[str, str]) -> Dict[str, str]:
    paths: List[str] = []
    for unit in units:
        files = [path for path in [unit.get("fragment")] + list(unit.get("dropins") or []) if path]
        paths.extend(parse_env_files("\n".join(reader.read(str(path)).text or "" for path in files)))
    digests: Dict[str, str] = {}
    for path in _expanded(reader, list(dict.fromkeys(paths)))[:MAX_FILES]:
        probed = reader.probe("sha256", path)
        if isinstance(probed.value, str):
            digests[path] = probed.value
        elif probed.error != "missing":
            unknown["env_files"] = "%s could not be read: %s" % (path, probed.error or "no answer")
    return digests


def _expanded(reader: Reader, paths: Sequence[str]) -> List[str]:
    """`paths` with a pattern in the last part resolved, as systemd does."""
    found: List[str] = []
    for path in paths:
        folder, _slash, name = path.rpartition("/")
        if any(sign in name for sign in "*?["):
            found.extend(folder + "/" + entry for entry in reader.names(folder or "/").names if fnmatchcase(entry, name))
        else:
            found.append(path)
    return found
