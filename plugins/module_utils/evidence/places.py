# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What evidence is taken from a node beside its facts: commands, files and logs. Data and pure functions alone."""

from __future__ import annotations

import json
import re
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

PARTS = ("facts", "commands", "processes", "server", "logs")
"""Parts of a bundle that can be asked for; ``kubernetes`` joins them only when it is named."""
OPTIONAL_PARTS = ("kubernetes",)

SMI = (
    ("nvidia-smi",), ("nvidia-smi", "-q"), ("nvidia-smi", "topo", "-m"), ("nvidia-smi", "nvlink", "-s"), ("nvidia-smi", "nvlink", "-e"),
    ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv"),
)
RDMA = (
    ("ibv_devinfo", "-v"), ("ibstat",), ("rdma", "link", "show"), ("rdma", "resource", "show"), ("ip", "-d", "-s", "link"), ("ip", "address"),
    ("ip", "route", "show", "table", "all"), ("ip", "rule"), ("ip", "neighbour"), ("ss", "-tulnp"), ("ss", "-tnp"),
)
SYSTEM = (
    ("lsmod",), ("modinfo", "nvidia"), ("lspci", "-tv"), ("numactl", "-H"), ("free", "-m"), ("df", "-PkTl"), ("df", "-Pil"), ("uptime",),
    ("ps", "-eo", "pid,ppid,user,state,lstart,rss,nlwp,wchan:32,comm"), ("timedatectl", "show"), ("chronyc", "-n", "tracking"), ("dmesg",),
    ("systemctl", "--failed", "--no-pager", "--no-legend"), ("systemctl", "list-jobs", "--no-pager", "--no-legend"),
    ("journalctl", "--list-boots", "-q", "--no-pager"), ("coredumpctl", "list", "-q", "--no-pager"), ("nvidia-imex-ctl", "-N"), ("ipcs", "-m"),
)
ENGINES = ("docker", "podman")
FILES = (
    "/etc/os-release", "/etc/hosts", "/etc/resolv.conf", "/proc/cmdline", "/proc/meminfo", "/proc/mounts", "/proc/loadavg", "/proc/modules",
    "/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io", "/proc/sys/kernel/random/boot_id", "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/params", "/etc/docker/daemon.json", "/etc/containers/containers.conf", "/etc/nvidia-container-runtime/config.toml", "/etc/nccl.conf",
    "/etc/vllm/service.env", "/etc/vllm/link.json", "/etc/vllm/release.json", "/etc/nvidia-imex/nodes_config.cfg", "/etc/nvidia-imex/config.cfg",
    "/etc/security/limits.conf", "/usr/share/nvidia/nvswitch/fabricmanager.cfg",
)
FOLDERS = ("/etc/modprobe.d", "/etc/modules-load.d", "/etc/security/limits.d", "/run/vllm-link")
"""Folders whose plain files are all taken, at most 40 of each."""
SECRET_FILES = ("/etc/vllm/secrets.env",)
"""Read for the values to mask, and never taken along."""
RELATED_UNITS = (
    "vllm-link.service", "docker.service", "containerd.service", "nvidia-fabricmanager.service", "nvidia-imex.service", "nvidia-persistenced.service",
    "nvlsm.service", "slurmd.service", "kubelet.service", "systemd-oomd.service", "ray.service",
)

_UNIT = re.compile(r"^[A-Za-z0-9][A-Za-z0-9:_.@\\-]{0,250}\Z")
_ID = re.compile(r"^[0-9a-f]{12,64}\Z")
_POD = re.compile(r"^[a-z0-9][a-z0-9.-]{0,252}\Z")


class Log(NamedTuple):
    """One log to take along.

    name: file name in the bundle, without ``.log.gz``.
    kind: ``engine``, ``container``, ``kernel``, ``related``, ``file``, ``pod`` (what a diagnosis reads) or ``journal`` (all units together).
    argv: command that prints it; empty for a plain file.
    path: the plain file.
    tail: command that prints its end, for when reading all of it takes longer than allowed.
    origin: unit, container or pod.
    """

    name: str
    kind: str
    argv: Tuple[str, ...] = ()
    path: str = ""
    tail: Tuple[str, ...] = ()
    origin: str = ""


def _journal(*extra: str) -> Tuple[str, ...]:
    return ("journalctl", "-q", "--no-pager", "-a", "-o", "short-iso-precise", "-b", "0") + extra


def unit_commands(units: Sequence[str]) -> List[Tuple[str, ...]]:
    """Text and every property of `units`, with all their overrides."""
    found: List[Tuple[str, ...]] = []
    for unit in units:
        found += [("systemctl", "cat", "--no-pager", unit), ("systemctl", "show", "--no-pager", unit)]
    return found


def engine_commands(engine: str) -> List[Tuple[str, ...]]:
    """What is asked of a container engine at first."""
    return [(engine, "ps", "-a", "--no-trunc", "--format", "{{json .}}"), (engine, "version"), (engine, "info"), (engine, "images", "--digests", "--no-trunc")]


def usable_units(units: Iterable[str]) -> List[str]:
    """Unit names that systemd could have; anything else is never handed to a command."""
    return [unit for unit in units if _UNIT.match(unit)][:16]


def containers(text: str, extra: Sequence[str] = ()) -> List[Dict[str, str]]:
    """Containers of vLLM in the output of ``ps --format {{json .}}``, newest first as printed, at most 24.

    One counts when its image, name or command speaks of vLLM, or when its name or id stands in `extra`.

    Returns:
        ``[{"id", "name", "image", "state", "status", "created"}]``
    """
    found: List[Dict[str, str]] = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for row in value if isinstance(value, list) else [value]:
            if not isinstance(row, dict):
                continue
            names = row.get("Names")
            name = str(names[0] if isinstance(names, list) and names else names or "")
            container = str(row.get("ID") or row.get("Id") or "")
            image, command = str(row.get("Image") or ""), str(row.get("Command") or "")
            wanted = "vllm" in (image + name + command).lower() or name in extra or any(container.startswith(word) for word in extra if _ID.match(word))
            if wanted and _ID.match(container) and len(found) < 24:
                found.append({
                    "id": container, "name": name[:120], "image": image[:300], "state": str(row.get("State") or "")[:40],
                    "status": str(row.get("Status") or "")[:80], "created": str(row.get("CreatedAt") or row.get("Created") or "")[:60]})
    return found


def own_containers(unit_text: str) -> List[str]:
    """Names that the commands of a unit give its containers: their output is in the journal of the unit."""
    return list(dict.fromkeys(re.findall(r"--name[=\s]+[\"']?([A-Za-z0-9][A-Za-z0-9_.-]{0,120})", unit_text)))[:8]


def output_files(show: str) -> List[str]:
    """Files that a unit writes its output to, from ``systemctl show``."""
    found = re.findall(r"^Standard(?:Output|Error)=(?:file|append|truncate):(/\S{1,400})$", show, re.MULTILINE)
    return list(dict.fromkeys(found))


def logs(units: Sequence[str], stray: Sequence[Tuple[str, Dict[str, str]]], files: Sequence[str], lines: int) -> List[Log]:
    """All logs to take along, the most telling first, since they share one time limit.

    Args:
        units: units that serve vLLM.
        stray: ``(engine, container)`` whose output is in no journal of `units`.
        files: plain files.
        lines: lines of the whole journal.
    """
    found = [Log(unit, "engine", _journal("-u", unit), tail=_journal("-u", unit, "-n", "50000"), origin=unit) for unit in units]
    for engine, container in stray:
        base = (engine, "logs", "--timestamps")
        found.append(Log(
            "%s-%s" % (_plain(container["name"] or "container"), container["id"][:12]), "container", base + (container["id"],),
            tail=base + ("--tail", "50000", container["id"]), origin=container["name"] or container["id"][:12]))
    for path in files:
        found.append(Log(_plain(path.strip("/")), "file", path=path, tail=("tail", "-n", "50000", "--", path), origin=path))
    found.append(Log("kernel", "kernel", _journal("-k"), tail=_journal("-k", "-n", "50000"), origin="kernel"))
    for unit in RELATED_UNITS:
        if unit not in units:
            found.append(Log(unit, "related", _journal("-u", unit, "-n", "20000"), origin=unit))
    found.append(Log("journal", "journal", _journal("-n", str(lines)), origin="journal"))
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+=@,-]+", "_", re.sub(r"\.\.+", ".", name)).strip("_.+=@,-")[:100] or "log"


def kubernetes_commands(namespace: str, selector: str) -> List[Tuple[str, ...]]:
    """What is asked of kubectl: objects as applied, their description and events, never Secrets."""
    where = ("-n", namespace) if namespace else ()
    which = ("-l", selector) if selector else ()
    kinds = "pods,deployments,statefulsets,daemonsets,jobs,services,configmaps,persistentvolumeclaims"
    return [
        ("kubectl", "version", "-o", "yaml"), ("kubectl", "get", kinds, *where, *which, "-o", "yaml", "--request-timeout=8s"),
        ("kubectl", "describe", "pods", *where, *which, "--request-timeout=8s"),
        ("kubectl", "get", "events", *where, "--sort-by=.lastTimestamp", "--request-timeout=8s"),
        ("kubectl", "get", "pods", *where, *which, "-o", "name", "--request-timeout=8s"), ("kubectl", "get", "nodes", "-o", "wide", "--request-timeout=8s"),
    ]


def pod_logs(names: str, namespace: str) -> List[Log]:
    """Logs of the pods in the output of ``kubectl get pods -o name``: the running containers and the ones before them."""
    where = ("-n", namespace) if namespace else ()
    found: List[Log] = []
    for line in names.splitlines()[:32]:
        pod = line.strip().rpartition("/")[2]
        if _POD.match(pod):
            base = ("kubectl", "logs", *where, pod, "--all-containers", "--timestamps", "--request-timeout=20s")
            found.append(Log("pod-" + pod, "pod", base, tail=base + ("--tail=50000",), origin=pod))
            found.append(Log("pod-%s-previous" % pod, "pod", base + ("--previous",), origin=pod))
    return found
