# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the section ``container`` (docs/FACTS.md): engines, NVIDIA toolkit, CDI specifications, the image."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from .reader import Ran, Reader
from .text import drop_empty, integer, version

DOCKER_VERSION = ("docker", "version", "--format", "{{json .}}")
DOCKER_INFO = ("docker", "info", "--format", "{{json .}}")
PODMAN_VERSION = ("podman", "version", "--format", "json")
CTK = ("nvidia-ctk", "--version")
DAEMON = "/etc/docker/daemon.json"
RUNTIME_CONFIG = "/etc/nvidia-container-runtime/config.toml"
HOOKS = ("/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-container-toolkit")
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
MAX_SPECS = 16
MAX_DEVICES = 64

# Not every denial is the socket's: the client also complains of a configuration file that it may not read.
_DENIED = re.compile(r"(?i)permission denied while trying to connect|connect: permission denied")
_KIND = re.compile(r"^\s*-?\s*[\"']?kind[\"']?\s*:\s*[\"']?([A-Za-z0-9._/-]{1,120})", re.MULTILINE)
_DEVICE = re.compile(r"^\s*-?\s*[\"']?name[\"']?\s*:\s*[\"']?([^\"',\s}]{1,80})", re.MULTILINE)
# Driver libraries carry the driver's version; those of other projects have other forms (libnvidia-egl-wayland.so.1.1.13).
_DRIVER_FILE = re.compile(r"\.so\.(\d{3,4}\.\d{2,3}(?:\.\d{2})?)(?![\d.])|firmware/nvidia/(\d{3,4}\.\d{2,3}(?:\.\d{2})?)/")


def inspect_command(engine: str, image: str) -> Tuple[str, ...]:
    """argv that describes a local `image`; :func:`usable_name` sees to it that the name cannot be taken for an option."""
    return (engine, "image", "inspect", image)


def probe_command(engine: str, image: str, cdi: bool) -> Tuple[str, ...]:
    """argv of a short-lived container that lists the GPUs it sees; it never pulls and has no network."""
    gpus: Tuple[str, ...] = ("--device", "nvidia.com/gpu=all") if cdi or engine == "podman" else ("--gpus", "all")
    labels: Tuple[str, ...] = ("--security-opt", "label=disable") if engine == "podman" else ()
    return (engine, "run", "--rm", "--pull", "never", "--network", "none") + gpus + labels + ("--entrypoint", "nvidia-smi", image, "-L")


def commands(options: Any) -> List[Sequence[str]]:
    """Commands known beforehand."""
    found: List[Sequence[str]] = [DOCKER_VERSION, DOCKER_INFO, PODMAN_VERSION, CTK]
    if usable_name(options.image):
        found += [inspect_command(engine, options.image) for engine in ("docker", "podman")]
    return found


def usable_name(image: Any) -> bool:
    """True for what can be a name of an image; anything else is never handed to a command."""
    return isinstance(image, str) and bool(re.match(r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,250}\Z", image))


def collect(reader: Reader, options: Any) -> Dict[str, Any]:
    """Facts of this section; never raises for what the node answers."""
    unknown: Dict[str, str] = {}
    docker = _docker(reader, unknown)
    podman = _podman(reader, unknown)
    specs = _cdi(reader, unknown)
    image = _image(reader, options, docker, podman, unknown)
    return {
        "docker": docker,
        "podman": podman,
        "toolkit": _toolkit(reader, docker, podman, specs, unknown),
        "cdi": specs,
        "image": image,
        "probe": _probe(reader, options, docker, image, unknown) if options.probe_container else None,
        "unknown": unknown,
    }


def document(text: Optional[str]) -> Dict[str, Any]:
    """JSON object in `text` (the first one when it is a list of objects), empty for anything else."""
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, list):
        found = found[0] if found else {}
    return found if isinstance(found, dict) else {}


def _table(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _word(value: Any, limit: int = 80) -> Optional[str]:
    return value[:limit] if isinstance(value, str) and value else None


# -- engines ------------------------------------------------------------------------------------
def _docker(reader: Reader, unknown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    shown, info_ran = reader.run(DOCKER_VERSION), reader.run(DOCKER_INFO)
    if shown.error == "missing":
        return None
    told, info = document(shown.out), document(info_ran.out)
    if (shown.ok and told and "Server" not in told) or "host" in info or "Emulate Docker CLI" in shown.err:
        # podman under docker's name; it is told as podman.
        return None
    server, client = _table(told.get("Server")), _table(told.get("Client"))
    running = bool(_word(server.get("Version")) or _word(info.get("ServerVersion")))
    if not running:
        complaint = " ".join((shown.err, info_ran.err, str(info.get("ServerErrors") or "")))
        if _DENIED.search(complaint) or shown.error:
            unknown["docker"] = "docker's socket may not be used by this user" if _DENIED.search(complaint) else shown.reason("docker")
            return None
        if not client and not info:
            unknown["docker"] = shown.reason("docker") if not shown.ok else "docker version printed nothing that could be understood"
            return None
        return {"version": _word(client.get("Version")), "api": None, "running": False, "runtimes": [], "cdi": _cdi_of_file(reader)}
    if not info.get("ServerVersion"):
        unknown["docker"] = "docker version answered, but " + (info_ran.reason("docker info") if not info_ran.ok else "docker info did not")
    folders = info.get("CDISpecDirs")
    engine = version(_word(server.get("Version")) or _word(info.get("ServerVersion")))
    live = info.get("LiveRestoreEnabled")
    return drop_empty({
        "version": _word(server.get("Version")) or _word(info.get("ServerVersion")),
        "api": _word(server.get("ApiVersion") or server.get("APIVersion")),
        "running": True,
        "cgroup_driver": _word(info.get("CgroupDriver")),
        "storage_driver": _word(info.get("Driver")),
        "root": _word(info.get("DockerRootDir"), 300),
        "default_runtime": _word(info.get("DefaultRuntime")),
        "live_restore": live if isinstance(live, bool) else None,
    }) | {
        "runtimes": sorted(str(name)[:40] for name in _table(info.get("Runtimes")))[:20],
        # An engine that has CDI lists its folders; null stands for none where CDI is known at all (25 and later).
        "cdi": bool(folders) if isinstance(folders, list) or (info and engine >= (25,)) else False if engine and engine < (25,) else None,
    }


def _cdi_of_file(reader: Reader) -> Optional[bool]:
    value = _table(document(reader.read(DAEMON).text).get("features")).get("cdi")
    return value if isinstance(value, bool) else None


def _podman(reader: Reader, unknown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    ran = reader.run(PODMAN_VERSION)
    if ran.error == "missing":
        return None
    client = _table(document(ran.out).get("Client"))
    found = _word(client.get("Version"))
    if found:
        return {"version": found}
    unknown["podman"] = ran.reason("podman") if not ran.ok else "podman version printed nothing that could be understood"
    return None


# -- toolkit and CDI ----------------------------------------------------------------------------
def parse_mode(text: str) -> Optional[str]:
    """``mode`` of the section ``[nvidia-container-runtime]`` in the toolkit's config.toml."""
    section = ""
    for line in text.splitlines():
        header = re.match(r"^\s*\[([^\]]+)\]\s*(?:#.*)?$", line)
        if header:
            section = header.group(1).strip()
        found = re.match(r"^\s*mode\s*=\s*[\"']([a-z-]{1,20})[\"']", line)
        if found and section == "nvidia-container-runtime":
            return found.group(1)
    return None


def _toolkit(
    reader: Reader, docker: Optional[Mapping[str, Any]], podman: Optional[Mapping[str, Any]], specs: Optional[Sequence[Mapping[str, Any]]],
    unknown: Dict[str, str],
) -> Dict[str, Any]:
    ran = reader.run(CTK)
    found = re.search(r"version\s+v?(\d+\.\d+(?:\.\d+)?(?:[-~+][\w.]+)?)", ran.out)
    if ran.error != "missing" and not found:
        unknown["toolkit"] = ran.reason("nvidia-ctk") if not ran.ok else "nvidia-ctk printed no version"
    # A daemon that was not reloaded does not know what its file says.
    runtimes = (docker or {}).get("runtimes") or list(_table(document(reader.read(DAEMON).text).get("runtimes")))
    gpu_spec = any(spec.get("kind") == "nvidia.com/gpu" for spec in specs or [])
    has_cdi = (docker or {}).get("cdi") is True or podman is not None
    return {
        "version": found.group(1) if found else None,
        "ctk": ran.error not in ("missing", "not_recorded"),
        "hook": any(reader.exists(path) for path in HOOKS),
        "configured": "nvidia" in runtimes or (gpu_spec and has_cdi),
        "mode": parse_mode(reader.read(RUNTIME_CONFIG).text or ""),
    }


def parse_spec(text: str) -> Dict[str, Any]:
    """``{kind, devices, versions}`` of a CDI specification in YAML or JSON; what is not there is empty.

    Read by lines, not as YAML: in a specification only devices have a ``name``.
    """
    whole = document(text) if text.lstrip().startswith(("{", "[")) else {}
    if whole:
        kind = str(whole.get("kind") or "")[:120]
        listed = whole.get("devices")
        tables = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        devices: Iterable[str] = [str(item.get("name"))[:80] for item in tables if item.get("name")]
    else:
        named = _KIND.search(text)
        kind = named.group(1) if named else ""
        devices = _DEVICE.findall(text)
    versions = {first or second for first, second in _DRIVER_FILE.findall(text)}
    return {"kind": kind, "devices": list(dict.fromkeys(devices))[:MAX_DEVICES], "versions": sorted(versions)[:8]}


def _cdi(reader: Reader, unknown: Dict[str, str]) -> Optional[List[Dict[str, Any]]]:
    specs: List[Dict[str, Any]] = []
    for folder in CDI_FOLDERS:
        listed = reader.names(folder)
        if listed.error and listed.error != "missing":
            unknown["cdi"] = "%s could not be listed: %s" % (folder, listed.error)
        for name in [n for n in listed.names if n.endswith((".yaml", ".yml", ".json"))][:MAX_SPECS]:
            path = folder + "/" + name
            content = reader.read(path)
            if content.text is None:
                if content.error != "missing":
                    unknown["cdi"] = "%s could not be read: %s" % (path, content.error)
                continue
            spec = parse_spec(content.text)
            if "nvidia" in spec["kind"] or (not spec["kind"] and "nvidia" in name):
                specs.append({"path": path, **spec})
    return specs


# -- image ---------------------------------------------------------------------------------------
def environment(entries: Any) -> Dict[str, str]:
    """Table of an image's ``Env`` list."""
    pairs = [entry.partition("=") for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []
    return {key: value for key, sign, value in pairs if sign}


def parse_image(text: str) -> Optional[Dict[str, Any]]:
    """Facts of an image from ``docker image inspect`` or ``podman image inspect``, None when it is no such document."""
    found = document(text)
    identity = _word(found.get("Id"), 100)
    if not identity:
        return None
    config = _table(found.get("Config"))
    labels = {str(k): str(v)[:200] for k, v in (_table(config.get("Labels")) or _table(found.get("Labels"))).items()}
    env = environment(config.get("Env"))
    digests = found.get("RepoDigests")

    def told(names: Sequence[str], pattern: str) -> Optional[str]:
        for name in names:
            match = re.search(pattern, labels.get(name) or env.get(name) or "")
            if match:
                return match.group(1)
        return None

    title = (labels.get("org.opencontainers.image.title", "") + labels.get("org.opencontainers.image.source", "")).lower()
    own = ("org.opencontainers.image.version",) if "vllm" in title else ()
    return {
        "id": identity if ":" in identity else "sha256:" + identity,
        "digests": [str(d)[:300] for d in digests if isinstance(d, str)][:8] if isinstance(digests, list) else [],
        "cuda": told(("CUDA_VERSION", "com.nvidia.cuda.version", "NV_CUDA_CUDART_VERSION"), r"^\D{0,8}(\d+\.\d+(?:\.\d+)?)"),
        "vllm": told(("vllm.version", "ai.vllm.version", "VLLM_VERSION") + own + ("VLLM_IMAGE_TAG",), r"(?:^|[:v])(\d+\.\d+\.\d+[\w.+-]*)"),
        "nccl": told(("vllm.nccl", "vllm.nccl.version", "NCCL_VERSION", "NV_LIBNCCL_PACKAGE_VERSION"), r"^(\d+\.\d+\.\d+)"),
        "created": _word(found.get("Created")),
        "size_bytes": integer(found.get("Size")),
        "labels": dict(sorted((k[:100], v) for k, v in labels.items() if k.startswith(("org.opencontainers.image.", "vllm.")))[:16]),
    }


def _image(
    reader: Reader, options: Any, docker: Optional[Mapping[str, Any]], podman: Optional[Mapping[str, Any]], unknown: Dict[str, str],
) -> Optional[Dict[str, Any]]:
    name = options.image
    if not name:
        return None
    if not usable_name(name):
        unknown["image"] = "%r is not the name of an image" % str(name)[:80]
        return None
    reasons: List[str] = []
    absent = False
    for engine, facts in (("docker", docker), ("podman", podman)):
        ran = reader.run(inspect_command(engine, name))
        if ran.error == "missing" or (engine == "docker" and facts is None and "docker" not in unknown):
            continue
        found = parse_image(ran.out) if ran.ok else None
        if found:
            return {"name": name, "present": True, "engine": engine, **found}
        if ran.rc and re.search(r"(?i)no such (?:image|object)|image not known|no such file", ran.err):
            absent = True
        elif engine in unknown:
            reasons.append(unknown[engine])
        elif engine == "docker" and docker is not None and not docker.get("running"):
            reasons.append("docker's daemon is not running")
        else:
            reasons.append(ran.reason(engine + " image inspect") if not ran.ok else engine + " image inspect printed no description")
    if reasons:
        unknown["image"] = "; ".join(reasons)
        return None
    if absent:
        return {"name": name, "present": False, "digests": []}
    unknown["image"] = "neither docker nor podman is installed"
    return None


def count_gpus(text: str) -> int:
    """Number of GPUs that ``nvidia-smi -L`` lists."""
    return len(re.findall(r"^GPU \d+: ", text, re.MULTILINE))


def _probe(
    reader: Reader, options: Any, docker: Optional[Mapping[str, Any]], image: Optional[Mapping[str, Any]], unknown: Dict[str, str],
) -> Optional[Dict[str, Any]]:
    if not image or not image.get("present"):
        unknown["probe"] = "there is no image to start: " + unknown.get("image", "it is not on this node" if image else "none is named")
        return {"ran": False}
    engine = str(image.get("engine"))
    ran: Ran = reader.run(probe_command(engine, options.image, bool((docker or {}).get("cdi"))))
    if ran.rc is None:
        unknown["probe"] = ran.reason(engine + " run")
        return {"ran": False}
    lines = [line.strip() for line in (ran.out if ran.rc == 0 else ran.err + "\n" + ran.out).splitlines() if line.strip()]
    return {"ran": True, "rc": ran.rc, "gpus": count_gpus(ran.out), "text": "\n".join(lines)[:600]}
