# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as files: the command that a person would paste, the environment file, and the systemd unit.

All functions take one entry of ``plan["nodes"]`` and return text; none of them touches a file.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ..checks.wording import short
from .flags import CONTROL

SETTINGS = "/etc/vllm"
"""Folder on a node for the files that the unit names."""
RUN = "/run"
"""Folder whose ``NAME/started.json`` says what the running service was started from."""
LINK = "/usr/local/libexec/inferops-vllm/vllm-link"
"""The link agent, which lets all ranks of an engine over several nodes start and end together."""
LINK_UNIT = "vllm-link.service"
START_TRIES, START_SPAN_S = 3, 7200
"""Starts that are tried in that time: a start takes many minutes, and what fails three times needs a person."""

_PLAIN = re.compile(r"[A-Za-z0-9@%+=:,./_-]+\Z")
_SYSTEMD_PLAIN = re.compile(r"[A-Za-z0-9@+=:,./_-]+\Z")

Entry = Mapping[str, Any]


def service_name(entry: Entry) -> str:
    """Name of the node's service without ending: ``vllm``, or ``vllm-router``. Its container has the same name."""
    return "vllm-router" if entry["role"] == "router" else "vllm"


def runtime(entry: Entry) -> str:
    """What runs the service: ``docker``, ``podman`` or ``venv``."""
    if entry.get("runtime") == "venv" or (entry["role"] == "router" and not entry["image"]):
        return "venv"
    return str(entry["container_engine"])


def unit_name(entry: Entry) -> str:
    """File of the node's unit: ``vllm.service``; with Podman ``vllm.container``, from which Quadlet makes vllm.service."""
    return service_name(entry) + (".container" if runtime(entry) == "podman" else ".service")


def env_file(entry: Entry) -> str:
    """Path on the node of the service's environment file."""
    return "%s/%s.env" % (SETTINGS, "router" if entry["role"] == "router" else "service")


def secrets_file(entry: Entry) -> str:
    """Path on the node of the service's secrets, 0600."""
    return "%s/%ssecrets.env" % (SETTINGS, "router-" if entry["role"] == "router" else "")


def release_file(entry: Entry) -> str:
    """Path on the node of the record of what is deployed."""
    return "%s/%srelease.json" % (SETTINGS, "router-" if entry["role"] == "router" else "")


def environment(entry: Entry) -> str:
    """Sorted ``NAME=value`` lines, as the reader of the file takes them.

    ``docker run --env-file`` takes everything after = as it stands; systemd reads quotes and escapes, as a shell does.
    """
    return environment_text(entry["env"], runtime(entry) == "venv")


def environment_text(env: Mapping[str, Any], quoted: bool) -> str:
    """Sorted ``NAME=value`` lines; `quoted` for systemd and shells."""
    quote = env_quoted if quoted else str
    return "".join("%s=%s\n" % (name, quote(_line(value))) for name, value in sorted(env.items()))


def env_quoted(value: str) -> str:
    """`value` as systemd and a shell both read it in an environment file."""
    return value if _SYSTEMD_PLAIN.match(value) or not value else '"%s"' % re.sub(r'([\\"$`])', r"\\\1", value)


def link_config(entry: Entry) -> str:
    """link.json of an engine over several nodes; empty for any other."""
    link = entry.get("link")
    return json.dumps(dict(link, unit=service_name(entry) + ".service"), indent=2, sort_keys=True) + "\n" if link else ""


def arguments(entry: Entry) -> List[str]:
    """What follows the image's name: argv without ``vllm serve``, which is the image's entry point."""
    argv = [str(word) for word in entry["argv"]]
    return argv[2:] if argv[:2] == ["vllm", "serve"] else argv


def command(node: str, entry: Entry) -> str:
    """A shell script that starts the node's service in the foreground, to be run beside its service.env."""
    lines = ["#!/bin/sh", "# %s: %s" % (_comment(node), _comment(_what(entry)))]
    if any("IFACE_OF_" in str(value) for value in entry["env"].values()):
        lines.append("# Not complete: IFACE_OF_… in service.env stands for an interface that is not known yet.")
    if entry["role"] == "router" and runtime(entry) == "venv":
        lines += ["# vllm-router from a virtual environment: python3 -m venv {0} && {0}/bin/pip install vllm-router".format(venv_folder(entry))]
        return "\n".join(lines) + "\n\n" + _folded([_program(entry)], arguments(entry)[1:])
    here = 'cd "$(dirname -- "$0")" || exit 1'
    if runtime(entry) == "venv":
        lines += ["# An API key is given by VLLM_API_KEY in the environment, never as a flag.", "", here, "set -a", ". ./service.env", "set +a"]
        return "\n".join(lines) + "\n" + _folded(["exec %s serve" % _program(entry)], [], _pairs(arguments(entry)))
    lines += ["# An API key is given by one more --env-file of mode 0600 with VLLM_API_KEY=…, never as a flag.", "", here]
    first = ["%s run --rm --name %s" % (runtime(entry), service_name(entry))]
    parts = _pairs([str(word) for word in entry["container"]]) + [["--env-file", "service.env"], [str(entry["image"])]]
    return "\n".join(lines) + "\n" + _folded(first, [], parts + _pairs(arguments(entry)))


def unit(node: str, entry: Entry) -> str:
    """The unit that keeps the node's service running in the foreground: a systemd unit, or with Podman a Quadlet.

    A dead engine ends with code 0, so it is restarted always; code 2 is an argument that vLLM refuses, which a
    restart does not mend. Only the main process is told to stop, so that running requests end.
    """
    kind = runtime(entry)
    sections = [("Unit", _unit_section(entry, kind))]
    if kind == "podman":
        sections.append(("Container", _quadlet(entry)))
    sections += [("Service", _service_section(entry, kind)), ("Install", ["WantedBy=multi-user.target"])]
    return "\n".join("[%s]\n%s\n" % (name, "\n".join(lines)) for name, lines in sections)


def _unit_section(entry: Entry, kind: str) -> List[str]:
    link = [LINK_UNIT] if entry.get("link") else []
    after = ["network-online.target"] + link + (["docker.service"] if kind == "docker" else [])
    if entry["role"] != "router":
        after += ["nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-imex.service", "nvidia-cdi-refresh.service"]
    lines = ["Description=vLLM: %s" % _systemd_text(_what(entry)), "Wants=" + " ".join(["network-online.target"] + link), "After=" + " ".join(after)]
    if kind == "docker":
        lines.append("Requires=docker.service")
    mounts = [word.split(":")[0] for word in entry["container"] if word.startswith("/") and ":" in word]
    mounts += [entry["env"]["HF_HOME"]] if kind == "venv" and entry["env"].get("HF_HOME") else []
    if mounts:
        lines.append("RequiresMountsFor=" + " ".join(_systemd(path) for path in mounts))
    if entry.get("link") and entry["rank"]:
        # A worker follows its head, whose starts are counted.
        return lines + ["StartLimitIntervalSec=0"]
    return lines + ["StartLimitIntervalSec=%d" % START_SPAN_S, "StartLimitBurst=%d" % START_TRIES]


def _service_section(entry: Entry, kind: str) -> List[str]:
    name = service_name(entry)
    stop = int(entry["stop_seconds"])
    program = "/usr/bin/" + kind
    # A virtual environment runs as a user of its own: the agent answers root alone, and the settings' folder may be closed to others.
    root = "+" if kind == "venv" else ""
    lines = [] if kind == "podman" else ["Type=exec"]
    lines.append("RuntimeDirectory=%s" % name)
    if kind == "docker":
        lines.append("ExecStartPre=-%s rm --force %s" % (program, name))
    if entry.get("link"):
        # All ranks start together, however long the last one takes to come.
        lines += ["ExecStartPre=%s%s wait" % (root, LINK), "TimeoutStartSec=infinity"]
    else:
        lines.append("TimeoutStartSec=300")
    # What the service was started from, for whoever asks whether it still is what is deployed.
    lines.append("ExecStartPre=-%s/usr/bin/install --mode=0644 %s %s/%s/started.json" % (root, release_file(entry), RUN, name))
    if kind == "docker":
        start = [program, "run", "--rm", "--name", name, "--pull", "never", "--log-driver", "none"]
        words = _systemd_pairs([str(word) for word in entry["container"]]) + [
            "--env-file %s" % env_file(entry), "--env-file %s" % secrets_file(entry), _systemd(str(entry["image"]))] + _systemd_pairs(arguments(entry))
        lines += [
            "ExecStart=" + " \\\n    ".join([" ".join(start)] + words),
            "ExecStop=-%s stop --time %d %s" % (program, stop, name),
            # The container lives outside of the unit's control group: killing the group does not end it.
            "ExecStopPost=-%s rm --force %s" % (program, name),
        ]
    elif kind == "venv":
        lines += ["EnvironmentFile=%s" % env_file(entry), "EnvironmentFile=-%s" % secrets_file(entry)]
        words = arguments(entry)[1:] if entry["role"] == "router" else ["serve"] + arguments(entry)
        lines.append("ExecStart=" + " \\\n    ".join([_program(entry)] + _systemd_pairs(words)))
    lines += [
        "KillMode=mixed", "TimeoutStopSec=%d" % (stop + (0 if kind == "venv" else 30)), "Restart=always",
        "RestartSec=%d" % (5 if entry.get("link") and entry["rank"] else 15), "RestartPreventExitStatus=2", "SuccessExitStatus=137 143",
        "LogRateLimitIntervalSec=0",
    ]
    return lines + list(SANDBOX[kind])


def _quadlet(entry: Entry) -> List[str]:
    """The section from which Quadlet (Podman 4.4 and newer) makes ``podman run``; flags stand in PodmanArgs as planned."""
    words = ["--pull", "never", "--log-driver", "passthrough", "--stop-timeout", str(int(entry["stop_seconds"]))] + [str(word) for word in entry["container"]]
    return (["ContainerName=%s" % service_name(entry), "Image=%s" % _systemd(str(entry["image"])), "EnvironmentFile=%s" % env_file(entry),
             "EnvironmentFile=%s" % secrets_file(entry)] + ["PodmanArgs=" + part for part in _systemd_pairs(words)]
            + ["Exec=" + " \\\n    ".join(_systemd_pairs(arguments(entry)))])


def document(plan: Mapping[str, Any]) -> str:
    """plan.json."""
    return json.dumps(plan, indent=2, sort_keys=False, ensure_ascii=False) + "\n"


def files(plan: Mapping[str, Any]) -> Dict[str, str]:
    """Relative path → text of everything that a plan writes."""
    made = {"plan.json": document(plan)}
    for node, entry in plan["nodes"].items():
        made["%s/command.sh" % node] = command(node, entry)
        made["%s/service.env" % node] = environment(entry)
        made["%s/%s" % (node, unit_name(entry))] = unit(node, entry)
    return made


# -- what the unit may do ----------------------------------------------------------------------------------------
_COMMON = (
    "NoNewPrivileges=yes", "ProtectHome=yes", "PrivateTmp=yes", "PrivateMounts=yes", "ProtectClock=yes", "ProtectHostname=yes", "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes", "ProtectKernelTunables=yes", "ProtectControlGroups=yes", "RestrictNamespaces=yes", "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes", "LockPersonality=yes", "KeyringMode=private", "SystemCallArchitectures=native", "CapabilityBoundingSet=", "UMask=0077",
)
SANDBOX: Dict[str, Tuple[str, ...]] = {
    # The unit drives the client of the engine and nothing else: no device, no network, no capability.
    "docker": _COMMON + (
        "Environment=DOCKER_CONFIG=/run/vllm", "ProtectSystem=strict", "PrivateDevices=yes", "PrivateNetwork=yes", "IPAddressDeny=any",
        "RestrictAddressFamilies=AF_UNIX", "MemoryDenyWriteExecute=yes", "ProtectProc=invisible", "ProcSubset=pid",
        "SystemCallFilter=@system-service", "SystemCallFilter=~@privileged @resources", "SystemCallErrorNumber=EPERM",
    ),
    # Podman has no daemon: the container is a child of the unit, and what holds the unit would hold the container.
    "podman": (),
    # The server itself: it compiles kernels, opens GPUs and RDMA devices, and talks to the other nodes.
    "venv": _COMMON + (
        "DynamicUser=yes", "SupplementaryGroups=video render", "CacheDirectory=vllm", "Environment=HOME=/var/cache/vllm",
        "Environment=XDG_CACHE_HOME=/var/cache/vllm", "Environment=HF_MODULES_CACHE=/var/cache/vllm/modules", "ProtectSystem=strict",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "LimitMEMLOCK=infinity", "LimitNOFILE=1048576", "ProtectProc=invisible",
        "SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap",
    ),
}
"""Lines of the unit's section Service, by runtime."""


# -- words -------------------------------------------------------------------------------------------------------
def _what(entry: Entry) -> str:
    model = str(entry["argv"][2]) if len(entry["argv"]) > 2 and entry["role"] != "router" else "router"
    return "%s, rank %d of %s, %s" % (entry["role"], entry["rank"], entry["engine"], model)


def venv_folder(entry: Entry) -> str:
    return str(entry.get("venv") or ("/opt/vllm-router" if entry["role"] == "router" else "/opt/vllm"))


def _program(entry: Entry) -> str:
    return "%s/bin/%s" % (venv_folder(entry), service_name(entry))


def _pairs(words: Sequence[str]) -> List[List[str]]:
    """Each flag with the values that follow it."""
    made: List[List[str]] = []
    for word in words:
        if (word.startswith("-") and not re.match(r"-\d", word)) or not made or not made[-1][0].startswith("-"):
            made.append([word])
        else:
            made[-1].append(word)
    return made


def _folded(first: List[str], words: Sequence[str], parts: Sequence[Sequence[str]] = ()) -> str:
    rows = first + [" ".join(_shell(word) for word in part) for part in list(_pairs(words)) + list(parts)]
    return " \\\n  ".join(rows) + "\n"


def _shell(word: str) -> str:
    return word if _PLAIN.match(word) else shlex.quote(word)


def _line(value: Any) -> str:
    return " ".join(str(value).splitlines())


def _comment(text: str) -> str:
    return short(text, 200)


def _systemd_text(text: str) -> str:
    return short(text, 200).replace("%", "%%")


def _systemd(word: str) -> str:
    """One word of a command line as systemd reads it: specifiers, variables and control characters are escaped, the rest is quoted where needed."""
    text = word.replace("%", "%%").replace("$", "$$")
    if _SYSTEMD_PLAIN.match(word):
        return text
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    # A line break would end the unit's line in the middle of a word.
    return '"%s"' % CONTROL.sub(lambda found: "\\u%04x" % ord(found.group()), text)


def _systemd_pairs(words: Sequence[str]) -> List[str]:
    return [" ".join(_systemd(word) for word in part) for part in _pairs(words)]
