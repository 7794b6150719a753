# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide on the controller what is mended next, for all hosts of the play at once."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.checks import judge as judging
from ..module_utils.checks.model import Context, Node
from ..module_utils.checks.wording import short
from ..module_utils.plan.resolve import InputError, resolve
from ..module_utils.remedies.rounds import GOOD, Case, choose_round, judge_round
from ..module_utils.remedies.state import closed_interfaces
from ..module_utils.remedies.table import CLASSES, REMEDIES
from ..plugin_utils import remediation
from ..plugin_utils.cluster import WORDS
from .judge import play_nodes, whole_inventory

display = Display()

WANTED = ("allow", "remedy", "areas", "budget", "max_nodes", "diagnosis", "verify")
DECLARED = ("rdma_mtu", "rdma_addresses")
"""Host variables that say what a remedy shall bring about."""


class Look(NamedTuple):
    """All nodes as they are now."""

    nodes: List[Node]
    context: Context
    findings: List[Dict[str, Any]]
    verdicts: Dict[str, str]
    cases: List[Case]


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.remediate``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, variables)
        result["changed"] = False
        _valid, args = self.validate_argument_spec(argument_spec={
            "step": {"type": "str", "choices": ["validate", "plan", "next", "judge", "report"], "required": True},
            "read": {"type": "str", "default": "remediation_read"},
            "run": {"type": "str", "default": ""},
            "report_dir": {"type": "path", "default": "reports"},
            "failed": {"type": "dict", "default": {}},
            "service_plan": {"type": "path", "default": "plan/plan.json"},
            **{word: {"type": "raw"} for word in WORDS + WANTED},
        })
        declared = {"vllm_%s" % name: args[name] for name in WORDS if args[name] is not None}
        path = os.path.join(os.path.abspath(os.path.expanduser(args["report_dir"])), "remediation.json")
        try:
            names = [str(name) for name in variables.get("ansible_play_hosts_all") or []]
            wanted = remediation.request(args, names)
            if args["step"] == "validate":
                result["image"] = resolve(declared, []).image
                return result
            look = _look(variables, args["read"], declared, wanted)
            if args["step"] == "report":
                result.update(self._report(look, wanted, variables, path))
                return result
            step = {"plan": self._plan, "next": self._next, "judge": self._judge}[args["step"]]
            result.update(step(look, wanted, args, path))
        except (InputError, remediation.RequestError) as exc:
            raise AnsibleActionFail(str(exc)) from None
        except OSError as exc:
            raise AnsibleActionFail("remediate_report_dir: %s cannot be written: %s" % (exc.filename or path, exc.strerror)) from None
        return result

    def _plan(self, look: Look, wanted: remediation.Request, args: Mapping[str, Any], path: str) -> Dict[str, Any]:
        """Say what would be done on which node and why, and begin the report."""
        now = time.time()
        content = remediation.document(args["run"] or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now)), wanted, look.cases, look.verdicts, now)
        left = {}
        for node in look.nodes:
            entry = remediation.interrupted(node, now)
            if entry:
                left[node.name] = "an earlier run left %s under way (%s); it is looked at first" % (entry["remedy"], entry["phase"])
                content["nodes"][node.name]["interrupted"] = {"remedy": entry["remedy"], "phase": entry["phase"], "run": str(entry.get("run", ""))}
        for text, color in remediation.plan_lines(content, left, self._play_context.check_mode):
            display.display(text, color=color)
        remediation.save(path, content)
        idle = not left and not any(step["kind"] == "remedy" for entry in content["nodes"].values() for step in entry["steps"])
        return {"report": path, "run": content["run"], "idle": idle}

    def _next(self, look: Look, wanted: remediation.Request, args: Mapping[str, Any], path: str) -> Dict[str, Any]:
        """Choose the next round; an earlier run's remedy is ended before anything else."""
        content = remediation.load(path)
        for node in look.nodes:
            entry = remediation.interrupted(node, time.time())
            # What this run began is ended by it; the facts are from before that.
            if entry and not node.unreachable and entry.get("run") != content["run"]:
                return self._recover(node, entry, look, content, path)
        # A finding that was mended asks for nothing any more; the class of a diagnosis, or a remedy by name, would for ever.
        lasting = {name for name, words in wanted.classes.items() if words} if not wanted.remedy else {case.node for case in look.cases}
        done = [(name, r["remedy"]) for r in content["rounds"] for name, found in r["outcomes"].items() if not found["mended"] or name in lasting]
        if any(found["worse"] for r in content["rounds"] for found in r["outcomes"].values()):
            display.display("The rollout stops here: a node is worse than before.", color="red")
            return self._last(look, content, args, path)
        chosen = choose_round(look.cases, wanted.budget, wanted.most, done)
        if not chosen.act:
            return self._last(look, content, args, path)
        remedy = REMEDIES[chosen.remedy]
        for text, color in remediation.round_lines(chosen.remedy, chosen.act, chosen.stop):
            display.display(text, color=color)
        touched = set(chosen.act) | set(chosen.stop)
        content["rounds"].append({
            "remedy": chosen.remedy, "act": list(chosen.act), "stop": list(chosen.stop), "began": remediation.stamp(time.time()), "outcomes": {},
            "findings": {name: [f for f in look.findings if f["node"] == name] for name in touched},
        })
        content["stopped"] = list(dict.fromkeys(content["stopped"] + list(chosen.stop) + (list(chosen.act) if remedy.starts_service else [])))
        content["proof"]["nodes"] = remediation.interrupted_services(look.cases, content, touched)
        remediation.save(path, content)
        return {
            "remedy": remedy.id, "act": list(chosen.act), "stop": list(chosen.stop), "steps": _steps(remedy.steps), "undo": _steps((remedy.undo,)),
            "problems": {name: list(found) for name, found in chosen.problems.items()}, "recover": False, "stopped": content["stopped"],
            "files": list(remedy.files), "interfaces": {node.name: closed_interfaces(node, look.context) for node in look.nodes if node.name in chosen.act},
        }

    def _last(self, look: Look, content: Mapping[str, Any], args: Mapping[str, Any], path: str) -> Dict[str, Any]:
        """Nothing is left to do: whose service starts again, and what of the plan is to be verified then."""
        names = content["proof"]["nodes"]
        return {"act": [], "stop": [], "stopped": content["stopped"], "prove": names,
                "peers": {case.node: [name for name in case.engine if name in names] for case in look.cases if case.node in names},
                "plan": remediation.plan_of(args["service_plan"], names, os.path.join(os.path.dirname(path), "verify", "plan.json"))}

    def _recover(self, node: Node, entry: Mapping[str, Any], look: Look, content: Dict[str, Any], path: str) -> Dict[str, Any]:
        """End what an earlier run left under way: it is done when its re-check is good, else it is taken back."""
        remedy = REMEDIES[entry["remedy"]]
        now = {f["id"]: f["status"] for f in look.findings if f["node"] == node.name}
        good = all(now.get(name, "pass") in GOOD for name in remedy.recheck)
        phases = ("undoing",) if remedy.onward else ("applying", "rechecking", "undoing")
        undo = entry["phase"] in phases and not good and bool(remedy.undo[0])
        outcome = "mended" if good else "undone" if undo else "interrupted"
        said = {"mended": "was done", "undone": "is taken back", "interrupted": "is begun anew"}[outcome]
        display.display("%s on %s, left by an earlier run, %s" % (remedy.title, node.name, said), color="yellow")
        details = entry.get("details")
        if isinstance(details, Mapping) and details.get("serving"):
            content["stopped"] = list(dict.fromkeys(content["stopped"] + [node.name]))
            content["proof"]["nodes"] = remediation.interrupted_services(look.cases, content, {node.name})
            remediation.save(path, content)
        return {"remedy": remedy.id, "act": [node.name], "stop": [], "steps": [], "undo": _steps((remedy.undo,)) if undo else [], "problems": {},
                "recover": True, "outcome": outcome, "stopped": content["stopped"]}

    def _judge(self, look: Look, wanted: remediation.Request, args: Mapping[str, Any], path: str) -> Dict[str, Any]:
        """Say how each node of the round came out of it."""
        content = remediation.load(path)
        current = content["rounds"][-1]
        failed = args["failed"] if isinstance(args["failed"], Mapping) else {}
        outcomes: Dict[str, Dict[str, Any]] = {}
        for name, before in current["findings"].items():
            after = [f for f in look.findings if f["node"] == name]
            verdict = judge_round(current["remedy"], before, after)
            acted = name in current["act"]
            why = str(failed.get(name) or "")
            mended = verdict.mended and not why if acted else not verdict.worse
            outcomes[name] = {"mended": mended, "unmended": list(verdict.unmended) if acted else [], "worse": list(verdict.worse), "why": why}
        for text, color in remediation.outcome_lines({name: found for name, found in outcomes.items() if name in current["act"] or found["worse"]}):
            display.display(text, color=color)
        current["outcomes"] = outcomes
        current["ended"] = remediation.stamp(time.time())
        current.pop("findings")
        remediation.save(path, content)
        return {"outcomes": outcomes}

    def _report(self, look: Look, wanted: remediation.Request, variables: Mapping[str, Any], path: str) -> Dict[str, Any]:
        """End the report: what is still to do, and whether those that served serve again."""
        content = remediation.load(path)
        left: Dict[str, List[str]] = {}
        for case in look.cases:
            entry = content["nodes"].setdefault(case.node, {"before": "unknown", "steps": []})
            entry["after"] = look.verdicts.get(case.node, "unknown")
            mended = {r["remedy"] for r in content["rounds"] if r["outcomes"].get(case.node, {}).get("mended")}
            # A diagnosis tells of an earlier start: whether it still holds, the next start shows.
            entry["left"] = [step for step in remediation.programme_of(case, wanted)
                             if not (step["remedy"] in mended and all(p in CLASSES for p in step["problems"]))]
            remediation.tell_failed(entry["left"], case.node, content["rounds"])
            blocking = [p for step in entry["left"] for p in step["problems"] if case.problems.get(p) == "block"
                        and not (p in CLASSES and step["remedy"] in mended)]
            unread, blind = remediation.unread(case.node, look.findings, wanted)
            if unread:
                entry["left"].append(unread)
            if blind and not case.refused:
                # Of a node that is too slow for the time-outs nothing is known, which is not healthy.
                blocking += unread["problems"]
            if blocking:
                left[case.node] = blocking
        proof = content["proof"] = remediation.proof(content["proof"]["nodes"], wanted.verify, _proven(variables, content["proof"]["nodes"]))
        content["ended"] = remediation.stamp(time.time())
        content["outcome"] = "left" if left or proof["verdict"] == "failed" else "healthy"
        remediation.save(path, content)
        done = sum(1 for r in content["rounds"] for found in r["outcomes"].values() if found["mended"])
        display.display("%d change%s made. Report: %s" % (done, "" if done == 1 else "s", path))
        for name, problems in left.items():
            display.display("  %s: still to do: %s" % (name, ", ".join(problems)), color="yellow")
            for step in content["nodes"][name]["left"]:
                if set(step["problems"]) & set(problems):
                    display.display("    %s" % short(step["why"], 200), color="yellow")
        for text, color in remediation.proof_lines(proof):
            display.display(text, color=color)
        answer: Dict[str, Any] = {"report": path, "left": left}
        if proof["verdict"] == "failed":
            answer.update(failed=True, msg="The service is not what it was on %s: %s" % (", ".join(proof["nodes"])[:100], proof["why"][:300]))
        elif left and all(problems == ["node.reachable"] for problems in left.values()):
            raise AnsibleConnectionFailure("%d of %d nodes did not answer, so nothing is known of them: %s" % (
                len(left), len(look.cases), ", ".join(sorted(left))[:200]))
        if left:
            answer.update(failed=True, msg="Not mended: %s. The report says what is left and why." % ", ".join(sorted(left))[:200])
        return answer


def _proven(variables: Mapping[str, Any], names: Sequence[str]) -> Dict[str, Any]:
    """What the acceptance came to, for the services of `names`; ``why`` is there when it came to nothing."""
    answering = set(variables.get("ansible_play_hosts") or [])
    hostvars = variables["hostvars"]
    told = ["%s does not answer" % name if name not in answering else str(hostvars[name].get("remediation_unready") or "") for name in names]
    told.append(str(variables.get("remediation_unproven") or ""))
    report = variables.get("acceptance_report")
    return {"why": "; ".join(text for text in told if text), **(report if isinstance(report, Mapping) else {})}


def _steps(steps: Sequence[Any]) -> List[Dict[str, str]]:
    return [{"role": "inferops.vllm.%s" % role, "file": file} for role, file in steps if role]


def _look(variables: Mapping[str, Any], register: str, declared: Mapping[str, Any], wanted: remediation.Request) -> Look:
    answering = set(variables.get("ansible_play_hosts") or [])
    # A host that dropped out of the play keeps what was registered of it before; it is not what it is now.
    nodes = [node if node.name in answering or node.unreachable else Node(node.name, None, node.declared, "did not answer while it was changed")
             for node in play_nodes(variables, register)]
    context = resolve(declared, nodes and whole_inventory(variables, nodes))
    findings = judging.judge(nodes, context)
    hostvars = variables["hostvars"]
    says: Dict[str, Sequence[str]] = {}
    domains: Dict[str, str] = {}
    for node in nodes:
        host = hostvars[node.name]
        says[node.name] = [word for word in DECLARED if host.get(word)] + (["image_digest"] if "@sha256:" in context.image else [])
        domains[node.name] = str(host.get("vllm_domain") or "")
    cases = remediation.cases_of(nodes, context, findings, wanted, says, domains, time.time())
    return Look(nodes, context, findings, judging.verdicts(nodes, findings), cases)
