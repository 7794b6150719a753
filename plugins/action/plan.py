# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan what runs on each host of the inventory, on the controller."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from typing import Any, Dict, List, Mapping, Optional

from ansible import constants as C
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.checks.model import Node
from ..module_utils.plan import build as planning
from ..module_utils.plan.network import addresses, ip
from ..module_utils.plan.render import files, unit_name
from ..plugin_utils import cluster
from ..plugin_utils.plan_text import summary

display = Display()

WORDS = cluster.WORDS + ("model", "revision", "weights_path", "port", "shutdown_timeout", "engine", "runtime", "venv", "link_port", "router_image",
                         "overrides", "env_overrides")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@:+-]{0,200}\Z")


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.plan``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, variables)
        spec: Dict[str, Any] = {name: {"type": "raw"} for name in WORDS}
        spec.update({
            "read": {"type": "str", "default": "vllm_plan_read"}, "dir": {"type": "path", "default": "plan"},
            "validate_only": {"type": "bool", "default": False},
        })
        _valid, args = self.validate_argument_spec(argument_spec=spec)
        declared = {"vllm_%s" % name: args[name] for name in WORDS if args[name] is not None}
        nodes = inventory_nodes(variables, args["read"], look_up=not args["validate_only"])
        folder = os.path.abspath(os.path.expanduser(args["dir"]))
        strange = [node.name for node in nodes if not _NAME.match(node.name)]
        if strange:
            raise AnsibleActionFail("%r cannot be the name of a folder; rename the host" % strange[0])
        plan = planning.build(declared, nodes)
        if args["validate_only"] and not (plan["refused"] and not plan["engines"] and not plan.get("profile")):
            # Only words that mean nothing are refused before a node is read: facts may decide the rest.
            result["changed"] = False
            result["image"] = plan.get("image", "")
            return result
        wanted = files(plan)
        try:
            changes = compare(folder, wanted)
            if changes and not self._play_context.check_mode:
                write(folder, wanted, changes)
        except OSError as exc:
            raise AnsibleActionFail("plan_dir: %s cannot be written: %s" % (exc.filename or folder, exc.strerror)) from None
        result["changed"] = bool(changes)
        if self._play_context.diff:
            # plan.json says again what the other files say; it is shown when nothing else differs.
            shown = [change for change in changes if change["path"] != "plan.json"] or changes
            result["diff"] = [change["diff"] for change in shown]
        done = "would be written to" if self._play_context.check_mode and changes else "stands in"
        for text, color in summary(plan, "The plan %s %s" % (done, folder)):
            display.display(text, color=color)
        result["plan"] = result["document"] = os.path.join(folder, "plan.json")
        if self._play_context.check_mode and changes:
            # What is looked at later in this run is the plan as it would be; Ansible removes this folder at the end.
            result["document"] = os.path.join(C.DEFAULT_LOCAL_TMP, "vllm-plan", "plan.json")
            write(os.path.dirname(result["document"]), wanted, [{"path": "plan.json", "text": wanted["plan.json"]}])
        if plan["refused"]:
            result["failed"] = True
            result["msg"] = "The plan is refused: %s" % "; ".join(item["why"] for item in plan["refused"][:6])
            return result
        result["complete"] = plan["complete"]
        result["nodes"] = {name: {key: entry[key] for key in ("role", "rank", "engine", "health_url")} for name, entry in plan["nodes"].items()}
        return result


def inventory_nodes(variables: Mapping[str, Any], register: str, look_up: bool = True) -> List[Node]:
    """All hosts of the groups of a plan in rank order, ``--limit`` or not: an engine needs all its ranks.

    With `look_up` the name of a host whose address can come from nothing else is resolved on this machine.
    """
    groups, hostvars = variables.get("groups") or {}, variables["hostvars"]
    names = list(dict.fromkeys(str(name) for group in planning.GROUPS for name in groups.get(group) or []))
    made = []
    for name in names:
        host = hostvars[name]
        read = host.get(register)
        read = read if isinstance(read, Mapping) else {}
        facts = cluster.facts_of(read)
        declared: Dict[str, Any] = {
            "host_ip": host.get("vllm_host_ip"), "interface": host.get("vllm_interface"), "groups": list(host.get("group_names") or []),
            "listen": host.get("vllm_listen_address"), "rank": host.get("vllm_rank"), "role": host.get("vllm_role"),
            "ansible_host": host.get("ansible_host"), "recorded": bool(host.get("vllm_node_root")),
        }
        node = Node(name, facts, declared, "" if facts else cluster.why_silent(read))
        if look_up and wants_name(node):
            declared["resolved"] = resolved(str(declared["host_ip"] or declared["ansible_host"] or name))
        made.append(node)
    return made


def wants_name(node: Node) -> bool:
    """The address of the node can only come from its name."""
    given = node.declared.get("host_ip")
    if given not in (None, ""):
        return not ip(given)
    return not addresses(node) and not ip(node.declared.get("ansible_host"))


def resolved(name: str) -> List[str]:
    """Addresses of a name, as this machine resolves it; IPv4 first."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    items = list(dict.fromkeys(str(item[4][0]) for item in found))
    return sorted((item for item in items if ip(item)), key=lambda item: ":" in item)


def compare(folder: str, wanted: Mapping[str, str]) -> List[Dict[str, Any]]:
    """Files that differ from `wanted`, and those of an earlier plan that are no longer part of it: ``{"path", "text", "diff"}``."""
    changes = []
    for path, text in list(wanted.items()) + [(path, None) for path in earlier(folder) if path not in wanted]:
        before = read_text(os.path.join(folder, path))
        if (before is None and text is None) or before == text:
            continue
        changes.append({"path": path, "text": text, "diff": {
            "before": before or "", "after": text or "", "before_header": path, "after_header": path if text is not None else path + " (removed)"}})
    return changes


def earlier(folder: str) -> List[str]:
    """Files that an earlier plan wrote here, by its own plan.json; empty when there is none that is one."""
    try:
        plan = json.loads(read_text(os.path.join(folder, "plan.json")) or "{}")
        if not isinstance(plan, dict) or plan.get("schema") != planning.SCHEMA or not isinstance(plan.get("nodes"), dict):
            return []
        return ["%s/%s" % (name, file) for name, entry in plan["nodes"].items() if _NAME.match(name)
                for file in ("command.sh", "service.env", unit_name(entry))]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def read_text(path: str) -> Optional[str]:
    """Content of a file, None when there is none or it is no text."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return None


def write(folder: str, wanted: Mapping[str, str], changes: List[Dict[str, Any]]) -> None:
    """Write what changed, each file at once; plan.json last, so that it never speaks of files that are not there."""
    for change in sorted(changes, key=lambda change: change["path"] == "plan.json"):
        path = os.path.join(folder, change["path"])
        if change["text"] is None:
            os.unlink(path)
            if not os.listdir(os.path.dirname(path)):
                os.rmdir(os.path.dirname(path))
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".plan-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(change["text"])
            os.chmod(temporary, 0o755 if path.endswith(".sh") else 0o640 if path.endswith(".env") else 0o644)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
