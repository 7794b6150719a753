# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Open and close the controller's folder of evidence."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..plugin_utils.report.text import cut, fold, plain

display = Display()

SCHEMA = "inferops.vllm/evidence_index/1"


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.evidence_bundle``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, variables)
        _valid, args = self.validate_argument_spec(argument_spec={
            "state": {"type": "str", "choices": ["opened", "closed"], "required": True},
            "dest": {"type": "path"}, "folder": {"type": "path"}, "read": {"type": "str", "default": "evidence_frozen"},
            "require_all": {"type": "bool", "default": False}, "quiet": {"type": "bool", "default": False},
        })
        check = bool(self._task.check_mode)
        if args["state"] == "opened":
            if not args["dest"]:
                raise AnsibleActionFail("dest: the folder for evidence is missing")
            result.update(changed=True, folder=_opened(os.path.abspath(os.path.expanduser(args["dest"])), check))
            return result
        if not args["folder"]:
            raise AnsibleActionFail("folder: the folder that was opened is missing")
        nodes, unreachable, failed = _nodes(variables, args["read"])
        # A key `unreachable` would make Ansible think that this host is.
        result.update(changed=not check, folder=args["folder"], frozen=sorted(nodes), absent=unreachable, not_frozen=failed)
        if not check:
            _index(args["folder"], nodes, unreachable, failed)
        if not args["quiet"]:
            for text, color in _lines(args["folder"], nodes, unreachable, failed, check):
                display.display(cut(text, 100), color=color)
        if unreachable and args["require_all"]:
            raise AnsibleConnectionFailure("%d of %d nodes did not answer, the others are frozen in %s: %s" % (
                len(unreachable), len(unreachable) + len(nodes) + len(failed), args["folder"], fold(list(unreachable), 80)))
        return result


def _opened(base: str, check: bool) -> str:
    """A new folder in `base`, named after the time; in check mode only its name."""
    stem = os.path.join(base, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    for number in range(1, 1000):
        folder = stem if number == 1 else "%s-%d" % (stem, number)
        if check and not os.path.lexists(folder):
            return folder
        try:
            os.makedirs(base, mode=0o700, exist_ok=True)
            os.mkdir(folder, 0o700)
            return folder
        except FileExistsError:
            continue
        except OSError as exc:
            raise AnsibleActionFail("evidence_dir: %s cannot be made: %s" % (exc.filename or folder, exc.strerror)) from None
    raise AnsibleActionFail("evidence_dir: %s holds a thousand bundles of this second" % base)


def _nodes(variables: Mapping[str, Any], read: str) -> Tuple[Dict[str, Any], Dict[str, str], Dict[str, str]]:
    """What each host of the play registered: frozen nodes, unreachable ones and failed ones, the two with the reason."""
    nodes: Dict[str, Any] = {}
    unreachable: Dict[str, str] = {}
    failed: Dict[str, str] = {}
    hostvars = variables["hostvars"]
    for name in variables.get("ansible_play_hosts_all") or []:
        found = hostvars[name].get(read)
        found = found if isinstance(found, Mapping) else {}
        why = " ".join(str(found.get("msg") or "nothing was read").split())[:300]
        why = why[13:] if why.startswith("Task failed: ") else why
        if found.get("unreachable"):
            unreachable[str(name)] = why
        elif found.get("failed") or not (found.get("archive") or found.get("would")):
            failed[str(name)] = why
        else:
            keys = ("archive", "size", "sha256", "seconds", "logs", "services", "cut", "missing", "redactions", "streamed", "skew", "would")
            nodes[str(name)] = {key: found[key] for key in keys if key in found}
    return nodes, unreachable, failed


def _index(folder: str, nodes: Mapping[str, Any], unreachable: Mapping[str, str], failed: Mapping[str, str]) -> None:
    """Write ``index.json`` and ``SHA256SUMS``."""
    document = {
        "schema": SCHEMA, "closed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "unreachable": unreachable, "failed": failed,
        "nodes": {name: {**node, "archive": str(node.get("archive", "")).rpartition("/")[2]} for name, node in nodes.items()},
    }
    sums = "".join("%s  %s\n" % (node["sha256"], str(node["archive"]).rpartition("/")[2]) for node in nodes.values() if node.get("archive"))
    try:
        for name, text in (("SHA256SUMS", sums), ("index.json", json.dumps(document, indent=1) + "\n")):
            # Whole or not at all: who reads the folder takes an index for the end of the work.
            staging = os.path.join(folder, "%s.part-%d" % (name, os.getpid()))
            handle = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
            os.rename(staging, os.path.join(folder, name))
    except OSError as exc:
        raise AnsibleActionFail("folder: %s cannot be written: %s" % (exc.filename or folder, exc.strerror)) from None


def _lines(folder: str, nodes: Mapping[str, Any], unreachable: Mapping[str, str], failed: Mapping[str, str], check: bool) -> List[Tuple[str, Optional[str]]]:
    """One line a node for the terminal."""
    lines: List[Tuple[str, Optional[str]]] = []
    for name, node in nodes.items():
        if "would" in node:
            lines.append(("  %s: would be frozen" % plain(name), "yellow"))
            lines.extend(("    %s" % plain(text), None) for text in node["would"])
            continue
        logs = [log for log in node.get("logs") or [] if log.get("kind") in ("engine", "container", "pod", "file")]
        parts = ["%.1f MiB in %.0f s" % (node["size"] / 1048576.0, node.get("seconds") or 0)]
        parts.append("%d lines of vLLM" % sum(log["lines"] for log in logs) if logs else "no log of vLLM")
        for service in node.get("services") or []:
            if service.get("restarts"):
                parts.append("%s restarted %d times" % (plain(service["name"]), service["restarts"]))
        count = (node.get("redactions") or {}).get("count")
        parts += ["%d secrets masked" % count] if count else []
        parts += ["%d cut" % len(node["cut"])] if node.get("cut") else []
        parts += ["streamed, its disk is full or cannot be written"] if node.get("streamed") else []
        lines.append(("  %s: %s" % (plain(name), ", ".join(parts)), "green"))
    lines.extend(("  %s: not frozen: %s" % (plain(name), plain(why)), "red") for name, why in failed.items())
    lines.extend(("  %s: did not answer: %s" % (plain(name), plain(why)), "bright red") for name, why in unreachable.items())
    head = "Evidence of %d nodes %s %s" % (len(nodes), "would go to" if check else "is in", plain(folder))
    return [(head if len(nodes) != 1 else head.replace("1 nodes", "1 node"), None)] + lines
