# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a remediation knows and says on the controller: its cases, its document, its lines on the terminal."""

from __future__ import annotations

import datetime
import json
import os
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.inferops.vllm.plugins.module_utils.checks.fabric import clique_of
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import CLUSTER, Context, Node
from ansible_collections.inferops.vllm.plugins.module_utils.checks.wording import short
from ansible_collections.inferops.vllm.plugins.module_utils.plan.resolve import pools
from ansible_collections.inferops.vllm.plugins.module_utils.remedies import journal
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.rounds import Case, steps_of
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.state import ALLOWED_WORDS, state_of
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.table import CLASSES, FINDINGS, REMEDIES

from .report.files import replace

SCHEMA = "inferops.vllm/remediation-report/1"
BAD = ("fail", "unknown")
STAGES = ("start", "request", "prefix")
"""Stages of the acceptance that prove that a service serves again. The others load it or kill its processes."""

Line = Tuple[str, Optional[str]]
"""Text and colour name of Ansible, or None."""


class RequestError(ValueError):
    """What was asked for means nothing or contradicts itself; the message names the variable."""


class Request(NamedTuple):
    """What the user allows and asks for.

    Attributes:
        allow: words of remediate_allow.
        remedy: the one remedy that was asked for, empty for all.
        areas: finding ids that are looked at, or what they begin with (``driver``), empty for all.
        budget: remedies a node and day.
        most: nodes that may be changed at the same time.
        classes: node → classes of a diagnosis.
        verify: stages of the acceptance that prove afterwards that the service serves again, empty for none.
    """

    allow: Tuple[str, ...] = ()
    remedy: str = ""
    areas: Tuple[str, ...] = ()
    budget: int = 3
    most: int = 1
    classes: Mapping[str, Tuple[str, ...]] = {}
    verify: Tuple[str, ...] = STAGES


def request(values: Mapping[str, Any], names: Sequence[str]) -> Request:
    """Read what was asked for.

    Args:
        values: ``allow, remedy, areas, budget, max_nodes, diagnosis`` (a document of inferops.vllm.diagnose), ``verify``.
        names: nodes of the inventory.

    Raises:
        RequestError: unknown words, a remedy that is none, limits that leave nothing to do, a diagnosis that is none.
    """
    allow = values.get("allow") or []
    if isinstance(allow, str):
        allow = allow.replace(",", " ").split()
    strange = [str(word) for word in allow if word not in ALLOWED_WORDS] if isinstance(allow, (list, tuple)) else [str(allow)]
    if strange:
        raise RequestError("remediate_allow: %r is not one of %s" % (strange[0][:40], ", ".join(ALLOWED_WORDS)))
    remedy = str(values.get("remedy") or "")
    if remedy and remedy not in REMEDIES:
        raise RequestError("remediate_remedy: %r is not one of %s" % (remedy[:40], ", ".join(sorted(REMEDIES))))
    limits = {}
    for word, default in (("budget", 3), ("max_nodes", 1)):
        value = values.get(word)
        try:
            limits[word] = default if value in (None, "") else int(str(value))
        except ValueError:
            limits[word] = 0
        if limits[word] < 1:
            raise RequestError("remediate_%s: %r leaves nothing that may be done; give a whole number from 1" % (word, value))
    areas = tuple(str(area) for area in values.get("areas") or ())
    strange = [area for area in areas if not any(_inside(name, (area,)) for name in FINDINGS)]
    if strange:
        raise RequestError("remediate_areas: no finding is called %r or begins with it" % strange[0][:40])
    if remedy and areas and not any(_inside(name, areas) for name in REMEDIES[remedy].recheck):
        raise RequestError("remediate_remedy: %s mends nothing of %s, which is all that this playbook looks at" % (remedy, ", ".join(areas)))
    verify = STAGES if values.get("verify") is None else values["verify"]
    strange = [str(stage) for stage in verify if stage not in STAGES] if isinstance(verify, (list, tuple)) else [str(verify)]
    if strange:
        raise RequestError("remediate_verify: %r is not one of %s; [] verifies nothing" % (strange[0][:40], ", ".join(STAGES)))
    return Request(tuple(allow), remedy, areas, limits["budget"], limits["max_nodes"], _classes(values.get("diagnosis"), names), tuple(verify))


def _classes(document: Any, names: Sequence[str]) -> Dict[str, Tuple[str, ...]]:
    """Classes of the failed cases of a diagnosis, by the node where the first failure was; of every node when it names none."""
    if not document:
        return {}
    cases = document.get("cases") if isinstance(document, Mapping) else None
    if not isinstance(cases, list) or not str(document.get("schema", "")).startswith("inferops.vllm/diagnosis/"):
        raise RequestError("remediate_diagnosis: the file is no diagnosis; make one with `ansible-playbook inferops.vllm.diagnose -e diagnose_json=FILE`")
    made: Dict[str, List[str]] = {}
    for case in cases:
        if not isinstance(case, Mapping) or not case.get("failed"):
            continue
        word = str(case.get("class") or "")
        if word not in CLASSES:
            raise RequestError("remediate_diagnosis: %r is no class of a diagnosis" % word[:40])
        first = case.get("first_failure")
        node = str(first.get("node") or "") if isinstance(first, Mapping) else ""
        for name in [node] if node in names else names:
            made.setdefault(name, []).append(word)
    return {name: tuple(dict.fromkeys(words)) for name, words in made.items()}


def cases_of(nodes: Sequence[Node], context: Context, findings: Sequence[Mapping[str, Any]], wanted: Request, declared: Mapping[str, Sequence[str]],
             domains: Mapping[str, str], now: float) -> List[Case]:
    """One case a node, in rank order.

    Args:
        declared: node → names of its variables that say what is wanted.
        domains: node → failure domain that the inventory declares.
    """
    engines: Dict[str, Tuple[Node, ...]] = {}
    for pool in pools(nodes, context):
        engines.update({node.name: pool.nodes for node in pool.nodes})
    made = []
    for node in nodes:
        mates = engines.get(node.name, (node,))
        refused, tried, spent = "", {}, 0
        try:
            state = journal.parse(_journal_text(node), "", now)
            tried, spent = journal.tried(state, now), journal.spent(state, now)
            current = state["current"]
            if isinstance(current, dict) and current["remedy"] not in REMEDIES:
                refused = "The state file has %s under way, which is no remedy of this version; run again with remediate_forget=true." % (
                    short(current["remedy"], 60))
        except journal.JournalError as exc:
            refused = str(exc)
        if node.get("service.remediation_foreign") is True:
            refused = journal.FOREIGN
        if node.unreachable:
            refused = "The node does not answer."
        problems = {str(f["id"]): str(f["severity"]) for f in findings if f["node"] == node.name and _bad(f, wanted)}
        problems.update(dict.fromkeys(wanted.classes.get(node.name, ()), "block"))
        made.append(Case(
            node.name, state_of(node, context, mates, wanted.allow, declared.get(node.name, ())), problems, tried, spent,
            domains.get(node.name) or _domain(node, context), tuple(mate.name for mate in mates), refused, wanted.remedy))
    return made


def _bad(f: Mapping[str, Any], wanted: Request) -> bool:
    if f["status"] not in BAD or f["node"] == CLUSTER:
        return False
    # A node that cannot be read at all is a person's, whatever is looked at.
    if f["id"] == "node.reachable":
        return True
    # An unknown is no fault yet: it is looked at again, not mended.
    if f["status"] == "unknown":
        return False
    return not wanted.areas or _inside(str(f["id"]), wanted.areas)


def unread(node: str, findings: Sequence[Mapping[str, Any]], wanted: Request) -> Tuple[Dict[str, Any], bool]:
    """The step of a document for what could keep the node from serving and could not be read, and whether nothing at all could be read of it.

    The step is empty when all was read.
    """
    found = [f for f in findings if f["node"] == node and f["severity"] == "block" and f["status"] != "skip" and f["id"] != "node.reachable"
             and (not wanted.areas or _inside(str(f["id"]), wanted.areas))]
    names = [str(f["id"]) for f in found if f["status"] == "unknown"]
    if not names:
        return {}, False
    why = "Could not be read, so nothing is known of it; look with preflight, then run again."
    return {"problems": names, "kind": "person", "remedy": "", "why": why}, len(names) == len(found)


def _inside(id: str, areas: Sequence[str]) -> bool:
    return any(id == area or id.startswith(area + ".") for area in areas)


def _journal_text(node: Node) -> Optional[str]:
    text = node.get("service.remediation")
    return text if isinstance(text, str) else None


def _domain(node: Node, context: Context) -> str:
    if not context.needs_mnnvl:
        return node.name
    pair = clique_of(node)[0]
    return "NVLink domain %s.%s" % pair if pair and pair[0] else node.name


def interrupted(node: Node, now: float) -> Optional[Dict[str, Any]]:
    """The remedy that an earlier run left under way, None when there is none or the state file cannot be used."""
    if node.get("service.remediation_foreign") is True:
        return None
    try:
        current = journal.parse(_journal_text(node), "", now)["current"]
    except journal.JournalError:
        return None
    return current if isinstance(current, dict) and current["remedy"] in REMEDIES else None


# -- document ----------------------------------------------------------------------------------------------------
def document(run: str, wanted: Request, cases: Sequence[Case], verdicts: Mapping[str, str], now: float) -> Dict[str, Any]:
    """``remediation.json`` at the start of a run."""
    return {
        "schema": SCHEMA, "run": run, "started": stamp(now), "ended": None, "allow": list(wanted.allow),
        "nodes": {case.node: {"before": verdicts.get(case.node, "unknown"), "after": None, "steps": programme_of(case, wanted)} for case in cases},
        "rounds": [], "stopped": [], "proof": proof((), wanted.verify, {}), "outcome": None,
    }


def interrupted_services(cases: Sequence[Case], content: Mapping[str, Any], touched: Iterable[str]) -> List[str]:
    """Nodes whose service has to be proven at the end: it ran while the node was changed, or it is started; all ranks of the engine together.

    Args:
        content: the document; what is to be proven already stays, and so does what is ``stopped``.
        touched: nodes that are changed, or whose service is stopped, now.
    """
    serving = {case.node for case in cases if case.state.serving}
    wanted = set(content["proof"]["nodes"]) | set(content["stopped"]) | (serving & set(touched))
    mates = {name for case in cases if case.node in wanted for name in case.engine if name in serving}
    return [case.node for case in cases if case.node in wanted | mates]


def plan_of(path: str, names: Sequence[str], part: str) -> str:
    """Path of the plan against which the services of `names` are verified: `path`, or `part` with the engines of these nodes alone.

    A router stays in it: it is the way that the users take.

    Raises:
        OSError: `part` cannot be written.
    """
    try:
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
        nodes = {name: entry for name, entry in plan["nodes"].items() if name in names or entry.get("role") == "router"}
        engines = [engine for engine in plan.get("engines") or [] if set(engine["nodes"]) <= set(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # What is no plan, the acceptance refuses with a sentence of its own.
        return path
    if not names or len(nodes) == len(plan["nodes"]):
        return path
    save(part, dict(plan, nodes=nodes, engines=engines))
    return part


def proof(names: Sequence[str], wanted: Sequence[str], found: Mapping[str, Any]) -> Dict[str, Any]:
    """Whether the services that a remediation interrupted serve again, as the document holds it.

    Args:
        names: nodes whose service ran before, or was started.
        wanted: stages that were to be run.
        found: what ``inferops.vllm.verify`` returned, and ``why`` it did not come so far.

    Returns:
        ``{"nodes", "verdict": none | not_run | passed | not_verified | failed, "stages", "why", "report"}``; ``none``: no service was concerned.
    """
    stages = {stage: str((found.get("stages") or {}).get(stage, "not_verified")) for stage in wanted} if found.get("stages") else {}
    why = str(found.get("why") or "")
    if not names or not wanted:
        verdict = "not_run" if names else "none"
    elif why or not stages:
        verdict, why = "failed", why or "it was not verified"
    elif "failed" in stages.values():
        verdict, why = "failed", str(found.get("sentence") or "")
    else:
        verdict = "passed" if set(stages.values()) == {"passed"} else "not_verified"
    return {"nodes": list(names), "verdict": verdict, "stages": stages, "why": short(why, 600), "report": str((found.get("report") or {}).get("json") or "")}


def programme_of(case: Case, wanted: Request) -> List[Dict[str, Any]]:
    """What is to be done about each fault of a node, as the document holds it."""
    return [{"problems": list(step.problems), "kind": step.decision.kind, "remedy": step.decision.remedy, "why": step.decision.why}
            for step in steps_of(case, wanted.budget)]


def tell_failed(left: Sequence[Dict[str, Any]], node: str, rounds: Sequence[Mapping[str, Any]]) -> None:
    """Have each step in `left` that this run tried on `node` in vain say why, instead of what it would do."""
    failed = {r["remedy"]: r["outcomes"][node] for r in rounds if node in r["act"] and not r["outcomes"].get(node, {"mended": True})["mended"]}
    for step in left:
        found = failed.get(step["remedy"])
        if step["kind"] == "remedy" and found:
            why = found["why"] or "still not good: %s" % ", ".join([*found["unmended"], *found["worse"]])
            step.update(kind="given_up", why="%s: %s" % (REMEDIES[step["remedy"]].title, short(why, 300)))


def stamp(now: float) -> str:
    """Time as ``2026-11-29T22:10:00Z``."""
    return datetime.datetime.fromtimestamp(int(now), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def load(path: str) -> Dict[str, Any]:
    """A document that this run wrote earlier.

    Raises:
        RequestError: it is gone or no longer what was written.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as exc:
        raise RequestError("remediate_report_dir: %s cannot be read: %s" % (path, exc)) from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise RequestError("remediate_report_dir: %s is no remediation report" % path)
    return found


def save(path: str, content: Mapping[str, Any]) -> None:
    """Write the document, whole or not at all.

    Raises:
        OSError: no room or no permission.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    replace(path, json.dumps(content, indent=1) + "\n")


# -- terminal ----------------------------------------------------------------------------------------------------
_SIGNS = {"remedy": ("→", "green"), "not_allowed": ("■", "yellow"), "forbidden": ("✘", "red"), "given_up": ("✘", "red"), "person": ("☞", "yellow"),
          "later": ("…", "cyan")}


def plan_lines(content: Mapping[str, Any], nodes: Mapping[str, str], check: bool) -> List[Line]:
    """What would be done on which node and why, nodes with the same programme together.

    Args:
        content: the document.
        nodes: node → what an earlier run left under way, as a sentence.
        check: nothing is going to be done.
    """
    alike: Dict[str, List[str]] = {}
    for name, entry in content["nodes"].items():
        if entry["steps"]:
            alike.setdefault(json.dumps(entry["steps"]), []).append(name)
    lines: List[Line] = []
    for name, said in nodes.items():
        lines.append(("%s: %s" % (short(name, 40), said), "yellow"))
    healthy = [name for name, entry in content["nodes"].items() if not entry["steps"] and entry["before"] in ("ready", "warn")]
    if not alike:
        lines.append(("Nothing to mend on %d node%s." % (len(content["nodes"]), "" if len(content["nodes"]) == 1 else "s"), "green"))
        return lines
    lines.append(("What would be done:" if check else "What is done, one change at a time:", None))
    for steps, names in alike.items():
        lines.append(("", None))
        lines.append(("%s" % short(", ".join(names), 96), None))
        for step in json.loads(steps):
            sign, color = _SIGNS[step["kind"]]
            lines.append(("  %s %s" % (sign, short(", ".join(step["problems"]), 92)), color))
            lines.extend(("      " + part, color) for part in _wrapped(step["why"], 92))
    if healthy:
        lines += [("", None), ("%d node%s nothing." % (len(healthy), " needs" if len(healthy) == 1 else "s need"), "green")]
    return lines


def _wrapped(text: str, width: int) -> List[str]:
    made, line = [], ""
    for word in short(text, 600).split():
        if line and len(line) + 1 + len(word) > width:
            made.append(line)
            line = word
        else:
            line = (line + " " + word).strip()
    return made + ([line] if line else [])


def round_lines(remedy: str, act: Sequence[str], stop: Sequence[str]) -> List[Line]:
    """What is begun now."""
    made: List[Line] = [("%s on %s" % (REMEDIES[remedy].title, short(", ".join(act), 70)), None)]
    if stop:
        made.append(("  the service is drained and stopped first on %s" % short(", ".join(stop), 60), None))
    return made


def proof_lines(found: Mapping[str, Any]) -> List[Line]:
    """Whether the services serve again."""
    said = {"passed": "It serves again", "not_verified": "It serves again, as far as could be seen", "failed": "It does not serve as it did",
            "not_run": "The service ran before; whether it serves again was not asked for (remediate_verify)"}.get(str(found["verdict"]))
    if said is None:
        return []
    words = ["%s %s" % (stage, status.replace("_", " ")) for stage, status in found["stages"].items()] + [found["why"]] * bool(found["why"])
    text = "%s: %s" % (short(", ".join(found["nodes"]), 70), said) + (": " + "; ".join(words) if words else "")
    return [(text, {"passed": "green", "failed": "red"}.get(str(found["verdict"]), "yellow"))]


def outcome_lines(outcomes: Mapping[str, Mapping[str, Any]]) -> List[Line]:
    """How each node came out of a round."""
    made: List[Line] = []
    for name, found in outcomes.items():
        if found["mended"]:
            made.append(("  %s: mended" % short(name, 40), "green"))
        else:
            why = found.get("why") or "; ".join(
                text for text in ("still not good: " + ", ".join(found["unmended"]) if found["unmended"] else "",
                                  "worse than before: " + ", ".join(found["worse"]) if found["worse"] else "") if text)
            made.append(("  %s: %s" % (short(name, 40), short(why, 300)), "red"))
    return made
