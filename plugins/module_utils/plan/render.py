# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as files: the command that a person would paste, the environment file, and the systemd unit.

All functions take one entry of ``plan["nodes"]`` and return text; none of them touches a file.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, Dict, List, Mapping, Sequence

from ..checks.wording import short

CONTAINER_NAME = "vllm"
SETTINGS = "/etc/vllm"
"""Folder on a node for the environment file that the unit names."""
ROUTER = "/opt/vllm-router/bin/vllm-router"
"""Program of a router without an image: the virtual environment that holds it."""

_PLAIN = re.compile(r"[A-Za-z0-9@%+=:,./_-]+\Z")
_SYSTEMD_PLAIN = re.compile(r"[A-Za-z0-9@+=:,./_-]+\Z")

Entry = Mapping[str, Any]


def unit_name(entry: Entry) -> str:
    """Name of the node's unit: ``vllm.service``, or ``vllm-router.service`` for a router."""
    return "vllm-router.service" if entry["role"] == "router" else "vllm.service"


def environment(entry: Entry) -> str:
    """``NAME=value`` lines for ``docker run --env-file``, which takes everything after = as it stands."""
    return "".join("%s=%s\n" % (name, _line(value)) for name, value in sorted(entry["env"].items()))


def arguments(entry: Entry) -> List[str]:
    """What follows the image's name: argv without ``vllm serve``, which is the image's entry point."""
    argv = [str(word) for word in entry["argv"]]
    return argv[2:] if argv[:2] == ["vllm", "serve"] else argv


def command(node: str, entry: Entry) -> str:
    """A shell script that starts the node's service in the foreground, to be run beside its service.env."""
    lines = ["#!/bin/sh", "# %s: %s" % (_comment(node), _comment(_what(entry)))]
    if any("IFACE_OF_" in str(value) for value in entry["env"].values()):
        lines.append("# Not complete: IFACE_OF_… in service.env stands for an interface that is not known yet.")
    if entry["role"] == "router" and not entry["image"]:
        lines += ["# vllm-router from a virtual environment: python3 -m venv /opt/vllm-router && /opt/vllm-router/bin/pip install vllm-router"]
        return "\n".join(lines) + "\n\n" + _folded([ROUTER], arguments(entry)[1:])
    lines += ["# An API key is given by one more --env-file of mode 0600 with VLLM_API_KEY=…, never as a flag.", "", 'cd "$(dirname -- "$0")" || exit 1']
    first = ["%s run --rm --name %s" % (entry["container_engine"], CONTAINER_NAME)]
    parts = _pairs([str(word) for word in entry["container"]]) + [["--env-file", "service.env"], [str(entry["image"])]]
    return "\n".join(lines) + "\n" + _folded(first, [], parts + _pairs(arguments(entry)))


def unit(node: str, entry: Entry) -> str:
    """A systemd unit that keeps the node's service running in the foreground.

    A dead engine ends with code 0, so it is restarted always; code 2 is an argument that vLLM refuses, which a
    restart does not mend. Only the main process is told to stop, so that running requests end.
    """
    engine = str(entry["container_engine"])
    program = "/usr/bin/" + engine
    stop = int(entry["stop_seconds"])
    router = entry["role"] == "router" and not entry["image"]
    before = ["network-online.target"] + ([] if router else (["docker.service"] if engine == "docker" else []) + [
        "nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-imex.service"])
    volumes = [] if router else [word.split(":")[0] for word in entry["container"] if word.startswith("/") and ":" in word]
    lines = ["[Unit]", "Description=vLLM: %s" % _systemd_text(_what(entry)), "Wants=network-online.target", "After=" + " ".join(before)]
    if not router and engine == "docker":
        lines.append("Requires=docker.service")
    if volumes:
        lines.append("RequiresMountsFor=" + " ".join(_systemd(path) for path in volumes))
    # Three tries in two hours: a start takes many minutes, and what fails three times needs a person.
    lines += ["StartLimitIntervalSec=7200", "StartLimitBurst=3", "", "[Service]", "Type=exec"]
    if router:
        lines += ["ExecStart=" + " \\\n    ".join([ROUTER] + _systemd_pairs(arguments(entry)[1:])), "DynamicUser=yes"]
    else:
        start = [program, "run", "--rm", "--name", CONTAINER_NAME, "--log-driver", "none"]
        words = _systemd_pairs([str(word) for word in entry["container"]]) + [
            "--env-file %s/service.env" % SETTINGS, _systemd(str(entry["image"]))] + _systemd_pairs(arguments(entry))
        lines += [
            "ExecStartPre=-%s rm --force %s" % (program, CONTAINER_NAME),
            "ExecStart=" + " \\\n    ".join([" ".join(start)] + words),
            "ExecStop=%s stop --time %d %s" % (program, stop, CONTAINER_NAME),
            # The container lives outside of the unit's control group: killing the group does not end it.
            "ExecStopPost=-%s rm --force %s" % (program, CONTAINER_NAME),
        ]
    lines += [
        "KillMode=mixed", "TimeoutStopSec=%d" % (stop + 30), "Restart=always", "RestartSec=15", "RestartPreventExitStatus=2",
        "NoNewPrivileges=yes", "ProtectSystem=full", "ProtectHome=yes", "PrivateTmp=yes", "ProtectKernelModules=yes", "ProtectKernelTunables=yes",
        "ProtectControlGroups=yes", "RestrictRealtime=yes", "LockPersonality=yes", "", "[Install]", "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


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


# -- words -------------------------------------------------------------------------------------------------------
def _what(entry: Entry) -> str:
    model = str(entry["argv"][2]) if len(entry["argv"]) > 2 and entry["role"] != "router" else "router"
    return "%s, rank %d of %s, %s" % (entry["role"], entry["rank"], entry["engine"], model)


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
    """One word of a command line as systemd reads it: specifiers and variables are escaped, the rest is quoted where needed."""
    text = word.replace("%", "%%").replace("$", "$$")
    if _SYSTEMD_PLAIN.match(word):
        return text
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


def _systemd_pairs(words: Sequence[str]) -> List[str]:
    return [" ".join(_systemd(word) for word in part) for part in _pairs(words)]
