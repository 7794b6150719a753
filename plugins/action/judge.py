# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge all hosts of the play at once, on the controller."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.checks import judge as judging
from ..module_utils.checks.model import Context, Node
from ..module_utils.plan.groups import NODE_GROUPS
from ..module_utils.plan.resolve import InputError, resolve
from ..plugin_utils import report
from ..plugin_utils.cluster import WORDS, facts_of, why_silent

display = Display()

FAIL_ON = ("block", "warn", "never")


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.judge``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, variables)
        result["changed"] = False
        _valid, args = self.validate_argument_spec(argument_spec={
            "read": {"type": "str", "default": "vllm_preflight_read"},
            "validate_only": {"type": "bool", "default": False},
            **{word: {"type": "raw"} for word in WORDS},
            "fail_on": {"type": "str", "default": "block"},
            "report_dir": {"type": "path", "default": "reports"},
        })
        if args["fail_on"] not in FAIL_ON:
            raise AnsibleActionFail("preflight_fail_on: %r is not one of %s" % (args["fail_on"], ", ".join(FAIL_ON)))
        declared = {
            "vllm_%s" % name: args[name]
            for name in WORDS
            if args[name] is not None
        }
        nodes = [] if args["validate_only"] else play_nodes(variables, args["read"])
        try:
            # The plan is that of the whole inventory, also when --limit lets only a part of it be looked at.
            context = resolve(declared, nodes and whole_inventory(variables, nodes))
        except InputError as exc:
            raise AnsibleActionFail(str(exc)) from None
        result["context"] = dict(context._asdict(), sources=dict(context.sources))
        if args["validate_only"]:
            return result
        return self._judge(nodes, context, args, variables, result)

    def _judge(self, nodes: List[Node], context: Context, args: Mapping[str, Any], variables: Mapping[str, Any],
               result: Dict[str, Any]) -> Dict[str, Any]:
        only, without, strange = selection(variables)
        if strange:
            display.warning("no check group is called %s; groups are %s" % (", ".join(strange), ", ".join(judging.groups())))
        findings = judging.judge(nodes, context, only, without)
        verdicts = judging.verdicts(nodes, findings)
        document = report.document(
            profile=context.profile, context=context, verdicts=verdicts, findings=findings, nodes=nodes, now=time.time())
        folder = os.path.abspath(os.path.expanduser(args["report_dir"]))
        try:
            result["report"] = report.write(document, folder)
        except OSError as exc:
            raise AnsibleActionFail("preflight_report_dir: %s cannot be written: %s" % (exc.filename or folder, exc.strerror)) from None
        for text, color in report.terminal(document, where=result["report"]["html"]):
            display.display(text, color=color)
        reason = judging.exit_reason(verdicts, findings, args["fail_on"])
        if reason == "unreachable":
            names = [name for name, verdict in verdicts.items() if verdict == "unreachable"]
            raise AnsibleConnectionFailure("%d of %d nodes did not answer, the others are fine: %s" % (
                len(names), len(verdicts), report.fold(names, 80)))
        if reason:
            bad = [name for name, verdict in verdicts.items() if verdict not in ("ready", "warn")]
            # The report has just been printed; a failed task repeats everything that it returns.
            return {"failed": True, "changed": False, "report": result["report"]["json"],
                    "msg": "Not ready: %s. The report names what blocks and which call mends it." % report.fold(bad or list(verdicts), 80)}
        result["verdicts"] = verdicts
        result["summary"] = judging.summary(verdicts, findings)
        return result


def play_nodes(variables: Mapping[str, Any], register: str) -> List[Node]:
    """All hosts of the play in inventory order, with what was read of each or why nothing was."""
    hostvars = variables["hostvars"]
    nodes = []
    for name in variables.get("ansible_play_hosts_all") or []:
        host = hostvars[name]
        read = host.get(register)
        read = read if isinstance(read, Mapping) else {}
        facts = facts_of(read)
        why = "" if facts else why_silent(read)
        declared = {
            "host_ip": host.get("vllm_host_ip"),
            "interface": host.get("vllm_interface"),
            "groups": list(host.get("group_names") or []),
            "recorded": bool(host.get("vllm_node_root")),
        }
        nodes.append(Node(str(name), facts, declared, why, answered=bool(why) and not read.get("unreachable")))
    return nodes


def whole_inventory(variables: Mapping[str, Any], nodes: Sequence[Node]) -> List[Node]:
    """All nodes of the inventory's node groups in rank order, those of the play with what was read of them."""
    known = {node.name: node for node in nodes}
    groups = variables.get("groups") or {}
    names = dict.fromkeys(str(name) for group in NODE_GROUPS for name in groups.get(group) or [])
    hostvars = variables["hostvars"]
    for name in names:
        if name not in known:
            known[name] = Node(name, None, {"groups": list(hostvars[name].get("group_names") or [])}, "left out by --limit")
    return [known[name] for name in dict.fromkeys(list(names) + list(known))]


def selection(variables: Mapping[str, Any]) -> Tuple[Optional[List[str]], Optional[List[str]], List[str]]:
    """Check groups named by ``--tags`` and ``--skip-tags``, and words that are no group where others are."""
    known = set(judging.groups())
    run = [str(tag) for tag in variables.get("ansible_run_tags") or []]
    skip = [str(tag) for tag in variables.get("ansible_skip_tags") or []]
    only = [tag for tag in run if tag in known]
    without = [tag for tag in skip if tag in known]
    strange = [tag for tag in run if tag not in known and tag not in ("all", "always", "preflight", "untagged", "tagged")]
    return only or None, without or None, strange
