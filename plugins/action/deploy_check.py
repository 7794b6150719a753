# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take the host's entry out of a plan, and refuse what cannot be deployed before the node is touched."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.deploy import prepare, progress


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.deploy_check``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, variables)
        _valid, args = self.validate_argument_spec(argument_spec={
            "plan": {"type": "path"}, "earlier": {"type": "bool", "default": False}, "checks": {"type": "str", "default": ""},
            "serial": {"type": "raw", "default": 1}, "limits": {"type": "raw", "default": {}}, "service": {"type": "str", "default": ""},
            "timeout": {"type": "float", "default": 3.0}})
        node = str(variables["inventory_hostname"])
        play = [str(name) for name in variables.get("ansible_play_hosts_all") or []]
        hostvars: Mapping[str, Any] = variables["hostvars"]
        recorded = bool(hostvars[node].get("vllm_node_root"))
        try:
            prepare.serial(True, args["serial"])
            progress.limits(args["limits"])
            if args["checks"]:
                result.update(changed=False, **_back(node, args, {name: hostvars[name].get(args["checks"]) or {} for name in play}))
                return result
            if args["plan"]:
                plan = read(args["plan"])
                prepare.refuse(plan, node, play, recorded)
                declared = {name for name in plan["nodes"] if hostvars[name].get("vllm_host_ip")}
                wanted = prepare.wanted(plan, node, declared)
                wanted["registry"] = str(hostvars[node].get("vllm_registry") or "")
                wanted["names"] = list(dict.fromkeys(wanted["names"] + [str(name) for name in hostvars[node].get("preflight_names") or []]))
            else:
                prepare.refuse_recorded(node, recorded)
                # A router may be the second name of a machine that has a rank, too.
                wanted = {"service": args["service"] or prepare.service_by_groups(hostvars[node].get("group_names") or []), "earlier": args["earlier"]}
        except (prepare.Refused, ValueError) as exc:
            raise AnsibleActionFail(str(exc)) from None
        result.update(self._execute_module(module_name="inferops.vllm.deploy_check", module_args=dict(wanted, timeout=args["timeout"]), task_vars=variables))
        if result.get("failed"):
            if result.get("problems"):
                result["msg"] = "%s: %s" % (node, result["msg"])
            return result
        if args["plan"]:
            entry = {key: value for key, value in plan["nodes"][node].items() if key != "reasons"}
            result.update(entry=entry, peers=prepare.ranks(plan, node), serial=prepare.serial(prepare.independent(plan), args["serial"]))
            return result
        peers = result["deployed"].get("peers") or [node]
        try:
            prepare.complete(node, peers, play)
        except prepare.Refused as exc:
            raise AnsibleActionFail(str(exc)) from None
        result.update(peers=peers, serial=prepare.serial(len(peers) == 1, args["serial"]))
        return result


def _back(node: str, args: Mapping[str, Any], checks: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """The release that `node` goes back to, by what all hosts of the play registered.

    Raises:
        Refused: there is none.
    """
    service = str(checks[node]["service"])
    chosen = prepare.going_back(node, service, {name: check["releases"] for name, check in checks.items() if check.get("releases")})
    peers = chosen["peers"] or [node]
    alone = len(peers) == 1 and len(checks[node]["peers"]) == 1
    return {"release": chosen["number"], "peers": peers, "service": service, "serial": prepare.serial(alone, args["serial"])}


def read(path: str) -> Dict[str, Any]:
    """The plan of a plan.json.

    Raises:
        Refused: there is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
    except (OSError, ValueError, RecursionError) as exc:
        raise prepare.Refused("plan: %s cannot be read: %s" % (path, getattr(exc, "strerror", None) or "it is no JSON")) from None
    if not isinstance(plan, dict) or not isinstance(plan.get("nodes"), dict):
        raise prepare.Refused("plan: %s is no plan" % path)
    return plan
