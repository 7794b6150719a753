# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the NVLink fabric: switches, Fabric Manager, NVLink subnet manager, and IMEX between nodes."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from . import systemd
from .reader import Ran, Reader

if TYPE_CHECKING:
    from .collect import Options

SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
HCAS = "/sys/class/infiniband"
CHANNELS = "/dev/nvidia-caps-imex-channels"
NODES_CONFIG = "/etc/nvidia-imex/nodes_config.cfg"
CONFIG = "/etc/nvidia-imex/config.cfg"
MANAGER = "nvidia-fabricmanager.service"
IMEX = "nvidia-imex.service"

_PATTERNS = ("nvidia-fabric*manager*", "nvlsm*", "nvidia-imex*")
DPKG = ("dpkg-query", "-W", "-f=${Package}\\t${Version}\\t${db:Status-Abbrev}\\n") + _PATTERNS
RPM = ("rpm", "-qa", "--qf", "%{NAME}\\t%{VERSION}\\tii\\n") + _PATTERNS
SERVICES = systemd.show_command((MANAGER, IMEX))
JOURNAL = ("journalctl", "-u", MANAGER, "-b", "0", "-n", "200", "-o", "cat", "--no-pager", "-q")
NVLSM = ("pgrep", "-x", "nvlsm")
IMEX_NODES = ("nvidia-imex-ctl", "-N", "-j")
IMEX_STATE = ("nvidia-imex-ctl", "-q")
MANAGER_VERSION = ("nv-fabricmanager", "--version")
IMEX_VERSION = ("nvidia-imex", "--version")

MAX_HCAS = 64
MAX_NODES = 80

_VERSION = re.compile(r"(?<![\d.])(\d{3,4}(?:\.\d{1,5}){1,3})(?![\d.])")
_HOST = re.compile(r"^[A-Za-z0-9:._-]{1,80}$")
_CHANNEL = re.compile(r"^channel(\d{1,5})$")
_MAJOR = re.compile(r"^\s*(\d{1,4})\s+nvidia-caps-imex-channels\s*$", re.M)
_NODE_LINE = re.compile(r"^\s*Node #(\d{1,4})\s+-\s*(\S{1,80})\s+-\s*([A-Z_]{1,40})\s+-")
_DOMAIN_LINE = re.compile(r"^\s*Domain State:\s*([A-Z_]{1,20})\s*$", re.M)
_STATE = re.compile(r"^[A-Z][A-Z_]{1,39}$")

Services = Dict[str, Dict[str, Any]]

LOG_KINDS = (
    ("configured", re.compile(r"Successfully configured all the available")),
    ("pre_nvl5", re.compile(r"Detected Pre-NVL5 system")),
    ("nothing_to_do", re.compile(r"NV_WARN_NOTHING_TO_DO")),
    ("version_mismatch", re.compile(r"don'?t match with driver version|fabric manager version is incompatible with", re.I)),
    ("failed", re.compile(r"\bfail(?:ed|ure)\b|(?<!non-)\bfatal\b|\babort(?:ed|ing)?\b", re.I)),
)


def commands(options: Options) -> List[Sequence[str]]:
    """Commands known beforehand, for :func:`collect.gather`."""
    return [DPKG, RPM, SERVICES, JOURNAL, NVLSM, IMEX_NODES, IMEX_STATE]


def parse_packages(text: str) -> Dict[str, str]:
    """``{"manager": version, "nvlsm": version, "imex": version}`` from ``name\\tversion\\tstate`` lines of dpkg-query or rpm.

    Epoch and distribution release are taken off. Development files and transitional packages do not count.
    """
    found: Dict[str, str] = {}
    for line in text.split("\n")[:500]:
        name, _tab, rest = line.partition("\t")
        raw, _tab, state = rest.partition("\t")
        version = raw.split(":", 1)[-1].split("-", 1)[0].strip()[:40]
        # The first letter is what is wanted (i or h, held), the second what is there.
        if state[1:2] != "i" or not version[:1].isdigit() or "dev" in name.split("-"):
            continue
        if re.match(r"nvidia-fabric-?manager(?:-\d+)?$", name):
            found.setdefault("manager", version)
        elif re.match(r"nvlsm$", name):
            found.setdefault("nvlsm", version)
        elif re.match(r"nvidia-imex(?:-\d+)?$", name):
            found.setdefault("imex", version)
    return found


def parse_log(text: str) -> List[Dict[str, str]]:
    """Telling lines of Fabric Manager's journal as ``{"kind", "text"}``, one a kind (its newest), the newest kind last.

    Lines of systemd about the unit stand in for a reason only where the manager itself gave none.
    """
    found: Dict[str, str] = {}
    for raw in text.split("\n"):
        line = raw.strip()
        for kind, pattern in LOG_KINDS:
            if not pattern.search(line):
                continue
            of_systemd = line.startswith((MANAGER, "Failed to start", "systemd"))
            newest = next(reversed(found), "configured")
            if not of_systemd or newest == "configured":
                found.pop(kind, None)
                found[kind] = line[:200]
            break
    return [{"kind": kind, "text": line} for kind, line in found.items()]


def parse_imex_nodes(text: str) -> Dict[str, Any]:
    """Read ``nvidia-imex-ctl -N -j``, or the table that versions without ``-j`` print.

    Returns:
        ``{"domain": "UP"…, "nodes_up", "nodes_total", "not_up": [hosts]}``, empty when `text` is neither. A node is up when it
        is READY and at least one other node is connected to it: a node of another driver version is READY by itself, too.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and isinstance(document.get("nodes"), dict):
        nodes = {str(key): node for key, node in document["nodes"].items() if isinstance(node, dict)}
        up = {key: node.get("status") == "READY" and _connected(key, nodes) for key, node in nodes.items()}
        hosts = {key: str(node.get("host") or key)[:80] for key, node in nodes.items()}
        domain = document.get("status")
    else:
        lines = [match for match in map(_NODE_LINE.match, text.split("\n")[:2000]) if match]
        up = {match.group(1): match.group(3) == "READY" for match in lines}
        hosts = {match.group(1): match.group(2) for match in lines}
        state = _DOMAIN_LINE.search(text)
        domain = state.group(1) if state else None
        if not lines and not domain:
            return {}
    return {
        "domain": domain if isinstance(domain, str) and _STATE.match(domain) else None,
        "nodes_up": sum(up.values()), "nodes_total": len(up),
        "not_up": sorted(hosts[key] for key, is_up in up.items() if not is_up)[:MAX_NODES],
    }


def _connected(key: str, nodes: Dict[str, Dict[str, Any]]) -> bool:
    """True when some other node reports a connection to `key`, and when nobody reports on it."""
    reports = []
    for other, node in nodes.items():
        connections = node.get("connections")
        connection = connections.get(key) if isinstance(connections, dict) and other != key else None
        if isinstance(connection, dict):
            reports.append(connection.get("status") == "CONNECTED")
    return any(reports) or not reports


def significant(text: str) -> List[str]:
    """Lines of a configuration file without comments, blanks and empty lines."""
    return [line for line in (raw.split("#", 1)[0].strip() for raw in text.split("\n")) if line]


def collect(reader: Reader, options: Options) -> Dict[str, Any]:
    """Section ``fabric`` of docs/FACTS.md."""
    unknown: Dict[str, str] = {}
    packages = _packages(reader)
    shown = reader.run(SERVICES)
    services = systemd.parse_show(shown.out) if shown.ok else {}
    return {
        "nvswitches": _switches(reader, unknown),
        "sw_mng": _switch_management(reader, unknown),
        "manager": _manager(reader, packages, services, shown, unknown),
        "nvlsm": _nvlsm(reader, packages, unknown),
        "imex": _imex(reader, packages, services, shown, unknown),
        "unknown": unknown,
    }


def _packages(reader: Reader) -> Dict[str, str]:
    # dpkg-query exits with 1 when one pattern of several matches nothing.
    packages = parse_packages(reader.run(DPKG).out + "\n" + reader.run(RPM).out)
    for part, program, argv in (("manager", "/usr/bin/nv-fabricmanager", MANAGER_VERSION), ("imex", "/usr/bin/nvidia-imex", IMEX_VERSION)):
        if part not in packages and reader.exists(program):
            ran = reader.run(argv)
            printed = _VERSION.search(ran.out + "\n" + ran.err)
            if printed:
                packages[part] = printed.group(1)
    return packages


def _switches(reader: Reader, unknown: Dict[str, str]) -> Optional[int]:
    found = reader.names(SWITCHES)
    if found.error and found.error != "missing":
        unknown["nvswitches"] = "%s could not be read (%s)" % (SWITCHES, found.error)
        return None
    return sum(1 for name in found.names if ":" in name)


def _switch_management(reader: Reader, unknown: Dict[str, str]) -> Optional[List[str]]:
    """HCAs that manage NVLink5 switches: the vital product data says so, and only root may read it."""
    found = reader.names(HCAS)
    if found.error and found.error != "missing":
        unknown["sw_mng"] = "%s could not be read (%s)" % (HCAS, found.error)
        return None
    names, errors = [], []
    for name in found.names[:MAX_HCAS]:
        data = reader.read("%s/%s/device/vpd" % (HCAS, name))
        if data.text is None:
            # Virtual functions have no product data.
            errors += [data.error] if data.error not in ("missing", "io:EISDIR") else []
        elif "SW_MNG" in data.text:
            names.append(name)
    if errors and not names:
        unknown["sw_mng"] = (
            "the product data of the HCAs may only be read by root" if "denied" in errors
            else "the product data of the HCAs could not be read (%s)" % errors[0])
        return None
    # mlx5_9 stands before mlx5_10.
    return sorted(names, key=lambda name: (re.sub(r"\d+", "", name), [int(digits) for digits in re.findall(r"\d{1,9}", name)]))


def _service(unit: str, part: str, services: Services, shown: Ran, unknown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    if unit in services:
        return services[unit]
    unknown[part] = shown.reason("systemctl") if not shown.ok else "systemctl show said nothing of " + unit
    return None


def _manager(reader: Reader, packages: Dict[str, str], services: Services, shown: Ran, unknown: Dict[str, str]) -> Dict[str, Any]:
    service = _service(MANAGER, "manager", services, shown, unknown)
    manager: Dict[str, Any] = {"version": packages.get("manager"), "service": service, "log": []}
    if service is None or service.get("installed"):
        journal = reader.run(JOURNAL)
        if journal.ok:
            manager["log"] = parse_log(journal.out)
        else:
            manager["log"] = None
            unknown["manager_log"] = journal.reason("journalctl")
    return manager


def _nvlsm(reader: Reader, packages: Dict[str, str], unknown: Dict[str, str]) -> Dict[str, Any]:
    ran = reader.run(NVLSM)
    running = True if ran.rc == 0 else False if ran.rc == 1 else None
    if running is None:
        unknown["nvlsm"] = ran.reason("pgrep")
    return {"version": packages.get("nvlsm"), "running": running}


def _imex(reader: Reader, packages: Dict[str, str], services: Services, shown: Ran, unknown: Dict[str, str]) -> Dict[str, Any]:
    state, nodes = reader.run(IMEX_STATE), reader.run(IMEX_NODES)
    domain = parse_imex_nodes(nodes.out)
    first = next((line.strip() for line in state.out.split("\n") if line.strip()), "")
    listed, settings = reader.read(NODES_CONFIG), reader.read(CONFIG)
    channels = reader.names(CHANNELS)
    major = _MAJOR.search(reader.read("/proc/devices").text or "")
    imex: Dict[str, Any] = {
        "version": packages.get("imex"),
        "service": _service(IMEX, "imex", services, shown, unknown),
        "ready": first if _STATE.match(first) else None,
        "domain": domain.get("domain"),
        "nodes_up": domain.get("nodes_up", 0),
        "nodes_total": domain.get("nodes_total", 0),
        "not_up": domain.get("not_up", []),
        "config_sha256": None,
        "nodes": [line for line in significant(listed.text or "") if _HOST.match(line)][:MAX_NODES],
        "channels": sorted(int(match.group(1)) for match in map(_CHANNEL.match, channels.names) if match)[:MAX_NODES],
        "major": int(major.group(1)) if major else None,
    }
    if listed.text is not None or settings.text is not None:
        # Comments and blanks may differ between nodes, what the daemon reads may not.
        text = "\n".join(significant(listed.text or "") + ["--"] + sorted(significant(settings.text or "")))
        imex["config_sha256"] = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    troubles = [
        ran.reason(" ".join(argv)) for ran, argv in ((state, IMEX_STATE), (nodes, IMEX_NODES)) if ran.error not in ("", "missing")]
    troubles += [
        "%s could not be read (%s)" % (path, error)
        for path, error in ((NODES_CONFIG, listed.error), (CONFIG, settings.error), (CHANNELS, channels.error))
        if error not in ("", "missing")]
    if troubles:
        unknown["imex"] = "; ".join(([unknown["imex"]] if "imex" in unknown else []) + troubles)[:300]
    return imex
