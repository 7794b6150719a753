# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge an acceptance out of what nodes and endpoints showed, and report it."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Dict, List, Mapping, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.serving import requests, stability, start
from ..module_utils.serving.result import FAILED, NOT_VERIFIED, PASSED, STAGES, finding, result, scrub
from ..plugin_utils import acceptance
from ..plugin_utils.acceptance import baseline, build
from .verify_plan import FAIL_ON, read_plan

display = Display()


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.verify``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        outcome: Dict[str, Any] = super().run(tmp, variables)
        outcome["changed"] = False
        _valid, args = self.validate_argument_spec(argument_spec={
            "plan": {"type": "path"},
            "stages": {"type": "list", "elements": "str", "choices": list(STAGES), "default": list(STAGES)},
            "read": {"type": "str", "default": "acceptance_read"},
            "read_served": {"type": "str", "default": "acceptance_read_served"},
            "read_ramped": {"type": "str", "default": "acceptance_read_ramped"},
            "read_restarted": {"type": "str", "default": "acceptance_read_restarted"},
            "read_soaked": {"type": "str", "default": "acceptance_read_soaked"},
            "served": {"type": "dict", "default": {}},
            "ramped": {"type": "dict", "default": {}},
            "restarts": {"type": "list", "elements": "str", "default": []},
            "served_again": {"type": "dict", "default": {}},
            "soaked": {"type": "dict", "default": {}},
            "allow_restart": {"type": "bool", "default": False},
            "restart_limit": {"type": "float", "default": 600.0},
            "soak_seconds": {"type": "float", "default": 0.0},
            "memory_growth_percent": {"type": "float", "default": stability.GROWTH_PERCENT},
            "tolerate": {"type": "list", "elements": "str", "default": []},
            "requests": {"type": "list", "elements": "dict", "default": []},
            "baseline": {"type": "path"},
            "regression_percent": {"type": "float"},
            "report": {"type": "bool", "default": True},
            "report_dir": {"type": "path", "default": "reports"},
            "fail_on": {"type": "str", "choices": list(FAIL_ON), "default": "failed"},
        })
        plan = read_plan(args["plan"])
        stages = self._stages(args, plan, variables)
        readings = play_readings(variables, args["read"])[0]
        if not args["report"]:
            return self._accepted(outcome, args, scrub(acceptance.document(stages, {}, time.time()), secrets(variables)))
        request_set = str(args["served"].get("request_set") or requests.set_hash(args["requests"] or requests.REQUESTS))
        record = build.record(plan, digest(args["plan"]), readings, request_set, versions(stages))
        if not record["model"]:
            record["model"] = next((p["data"].get("model") for p in parts(stages.get("request")) if p["data"].get("model")), None)
        now = time.time()
        document = scrub(acceptance.document(stages, record, now), secrets(variables))
        if args["baseline"]:
            try:
                before = baseline.load(args["baseline"])
            except baseline.BaselineError as exc:
                raise AnsibleActionFail(str(exc)) from None
            document["baseline"] = acceptance.compare(before, document, args["regression_percent"], args["baseline"].rpartition("/")[2])
        folder = os.path.abspath(os.path.expanduser(args["report_dir"]))
        try:
            outcome["report"] = acceptance.write(document, folder, args["requests"] or requests.REQUESTS, str(record["model"] or ""))
        except OSError as exc:
            raise AnsibleActionFail("verify_report_dir: %s cannot be written: %s" % (exc.filename or folder, exc.strerror)) from None
        for text, color in acceptance.terminal(document, where=outcome["report"]["html"]):
            display.display(text, color=color)
        return self._accepted(outcome, args, document)

    def _accepted(self, outcome: Dict[str, Any], args: Mapping[str, Any], document: Mapping[str, Any]) -> Dict[str, Any]:
        """`outcome` with the verdict, and whether it is accepted."""
        regressions = (document["baseline"] or {}).get("regressions") or []
        wanted = [stage for stage in document["stages"] if stage["stage"] in args["stages"]]
        bad = [stage["stage"] for stage in wanted if stage["status"] == FAILED or (args["fail_on"] == NOT_VERIFIED and stage["status"] == NOT_VERIFIED)]
        outcome.update(
            verdict=document["verdict"], stages={stage["stage"]: stage["status"] for stage in document["stages"]}, regressions=regressions,
            accepted=args["fail_on"] == "never" or not (bad or regressions),
            sentence="; ".join(["stage %s: %s" % (s["stage"], s["summary"]) for s in wanted if s["stage"] in bad] + [
                "regression: %s" % name for name in regressions])[:2000] or "accepted",
        )
        return outcome

    def _stages(self, args: Mapping[str, Any], plan: Mapping[str, Any], variables: Mapping[str, Any]) -> Dict[str, Any]:
        stages: Dict[str, Any] = {}
        before, silent = play_readings(variables, args["read"])
        served = args["served"].get("stages") or {}
        chosen = args["stages"]
        if "start" in chosen:
            http = (served.get("start") or {}).get("findings") or []
            stages["start"] = start.stage(plan, before, silent, http)
            stages["start"]["seconds"] = float((served.get("start") or {}).get("seconds") or 0)
        ramped = args["ramped"].get("stages") or {}
        for name, found, register in (("request", served, "read_served"), ("prefix", served, ""), ("concurrency", ramped, "read_ramped")):
            if name in chosen and isinstance(found.get(name), dict):
                stages[name] = found[name]
                if register and name in found:
                    after = play_readings(variables, args[register])[0]
                    extra = [f for node in before for f in aftermath(node, before[node], after.get(node), name, args["tolerate"])]
                    stages[name] = with_findings(stages[name], extra)
        if "stability" in chosen:
            stages["stability"] = self._stability(args, plan, before, stages, variables)
        return stages

    def _stability(self, args: Mapping[str, Any], plan: Mapping[str, Any], before: Mapping[str, Any], stages: Mapping[str, Any],
                   variables: Mapping[str, Any]) -> Dict[str, Any]:
        restarted = play_readings(variables, args["read_restarted"])[0]
        soaked = play_readings(variables, args["read_soaked"])[0]
        known = [variables[name] for name in args["restarts"] if isinstance(variables.get(name), Mapping)]
        events = [one["event"] for one in known if isinstance(one.get("event"), Mapping)]
        if not args["allow_restart"] and not args["soak_seconds"]:
            return stability.stage([], False, 0.0)
        several = any(len(engine.get("nodes") or []) > 1 for engine in plan.get("engines") or [])
        found = stability.transports(str(plan.get("interconnect") or "none"), before, several)
        for event in events:
            found += stability.restart(event, args["restart_limit"])
        if args["allow_restart"]:
            found += not_restarted(known, events, stages)
        read = [name for name in before if before[name]]
        if events:
            again = (args["served_again"].get("stages") or {}).get("request") or {}
            found.append(stability.answers(answers_of(stages.get("request")), answers_of(again)))
            for name in read:
                found += stability.left_behind(name, before[name], restarted[name]) if restarted.get(name) else [unread(name, "stability")]
        load = (args["soaked"].get("stages") or {}).get("concurrency") or {}
        if args["soak_seconds"]:
            found += soak_load(load)
            for name in read:
                found += stability.soak(name, restarted.get(name) or before[name], soaked[name], args["soak_seconds"] / 60.0,
                                        args["memory_growth_percent"]) if soaked.get(name) else [unread(name, "stability")]
        else:
            found.append(finding("stability.soak", "info", "no soak was asked for", fix="verify_soak_seconds"))
        seconds = sum(float(event.get("seconds") or 0) for event in events) + float(load.get("seconds") or 0)
        return stability.stage(found, args["allow_restart"], seconds, {"restarts": events, "soak_seconds": args["soak_seconds"]})


def not_restarted(known: List[Mapping[str, Any]], events: List[Any], stages: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Why a process was not ended or not watched, out of what the modules returned; empty when all went as asked."""
    why = [str(one.get("msg") or "it could not be done") for one in known if one.get("failed") or one.get("unreachable") or one.get("ended") is False]
    held = next((stages[name] for name in ("start", "request") if name in stages and stages[name]["status"] != PASSED), None)
    if not why and not events:
        why = ["no process was ended" + (", since stage %s did not pass: %s" % (held["stage"], held["summary"]) if held else "")]
    return [finding("stability.recovery", "unknown", " ".join(text.split()), "a failure, then right answers", why="what was not ended was not seen to recover")
            for text in dict.fromkeys(why)]


def soak_load(load: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """What the load of the soak says: all that is bad or not known, and that it went well only when it did."""
    found = [dict(f, id="stability.load") for f in load.get("findings") or []
             if f.get("status") in ("fail", "unknown") or f.get("id") in ("concurrency.errors", "concurrency.reach")]
    if load.get("status") != PASSED and not any(f["status"] in ("fail", "unknown") for f in found):
        found.append(finding("stability.load", "unknown", str(load.get("summary") or "no load was kept up"), "a soak"))
    return found


def unread(node: str, stage: str) -> Dict[str, Any]:
    """A node that could be read before `stage` and not after it."""
    return finding("%s.node" % stage, "unknown", "could not be read after this stage", "a reading", where=node,
                   why="what the requests left behind is not known", fix="make the node reachable and run the stage again")


def aftermath(node: str, before: Optional[Mapping[str, Any]], after: Optional[Mapping[str, Any]], stage: str, tolerated: List[str]) -> List[Dict[str, Any]]:
    """What a stage left behind on a node; a node that could be read before and not after it is unknown."""
    if before is None:
        return []
    if after is None:
        return [unread(node, stage)]
    found = requests.aftermath(node, before, after, stage, tolerated)
    if stage == "concurrency":
        # Graphs and caches may still grow in the first load; that is worth a look, and no failure.
        found += stability.gpu_growth(node, before, after, "concurrency.gpu_memory", "warn")
    return found


def with_findings(stage: Mapping[str, Any], extra: List[Dict[str, Any]]) -> Dict[str, Any]:
    """A stage's result with more findings; one that was not run stays so."""
    if not extra or not stage.get("findings"):
        return dict(stage)
    whole = result(str(stage["stage"]), list(stage["findings"]) + extra, float(stage["seconds"]), stage["data"])
    if whole["status"] == stage["status"]:
        whole["summary"] = stage["summary"]
    return whole


def parts(stage: Optional[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """The data of each endpoint of a stage."""
    data = (stage or {}).get("data") or {}
    return [{"data": one} for one in (data.get("endpoints") or [data]) if isinstance(one, Mapping)]


def answers_of(stage: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    """Digests of the answers by endpoint and request."""
    return {"%s at %s" % (name, one["data"].get("endpoint")): str(sha)
            for one in parts(stage) for name, sha in (one["data"].get("answers") or {}).items()}


def versions(stages: Mapping[str, Any]) -> List[str]:
    """Versions that the API servers gave."""
    return sorted({str(one["data"]["version"]) for one in parts(stages.get("request")) if one["data"].get("version")})


def play_readings(variables: Mapping[str, Any], register: str) -> Any:
    """Readings of all hosts of the play by name (None where there is none), and why."""
    hostvars = variables["hostvars"]
    readings: Dict[str, Any] = {}
    silent: Dict[str, str] = {}
    for name in variables.get("ansible_play_hosts_all") or []:
        found = hostvars[name].get(register)
        reading = found.get("reading") if isinstance(found, Mapping) else None
        if isinstance(reading, Mapping):
            readings[str(name)] = dict(reading)
        elif isinstance(found, Mapping) and not found.get("skipped"):
            readings[str(name)] = None
            silent[str(name)] = " ".join(str(found.get("msg") or "could not be read").split())[:300]
    return readings, silent


def digest(path: Optional[str]) -> str:
    """SHA-256 of the plan's file, empty when there is none."""
    if not path or not os.path.exists(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def secrets(variables: Mapping[str, Any]) -> List[str]:
    """Values that must not stand in a report, whatever a server echoes."""
    return [str(variables[name]) for name in ("vllm_api_key", "verify_api_key", "vllm_hf_token") if variables.get(name)]
