# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state file of a node: which remedy is under way, and how the earlier ones ended.

It is written before and after every step, so that a run that was killed anywhere leaves a node that says what was going on. Content::

    {"schema": "inferops.vllm/remediation/1", "machine": "machine id", "current": null or Entry, "history": [Entry, …]}

All functions are pure; times are seconds since the epoch.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

SCHEMA = "inferops.vllm/remediation/1"
PATH = "/var/lib/inferops-vllm/remediation.json"
PHASES = ("frozen", "stopped", "applying", "rechecking", "undoing")
"""What is going on: evidence is frozen; the service is stopped; the remedy runs; it is looked at; it is taken back."""
OUTCOMES = ("mended", "undone", "failed", "refused", "interrupted", "escalated")
"""``refused``: it was not begun, since a package is held, a process uses the GPUs or there is no room. ``interrupted``: the run was killed."""
DAY = 86400.0
STALE = 7 * DAY
"""Age from which a remedy that is under way is none of today's business: too much may have been done by hand since."""
MOST = 200
"""Entries of the history that are kept."""
LARGEST = 262144
"""Bytes of a state file that are read."""
LARGEST_KEPT = 16384
"""Characters of a file that is kept for an undo."""


class JournalError(ValueError):
    """The state file cannot be used; the message says why and what to do."""


WAY_OUT = "look at %s and remove it, or run again with remediate_forget=true" % PATH
FOREIGN = "The state file belongs to another machine; %s." % WAY_OUT


class Kept(NamedTuple):
    """A file as it was before a remedy: `text` is None where it was not there."""

    path: str
    text: Optional[str]
    mode: int


def kept(journal: Mapping[str, Any]) -> List[Kept]:
    """Files of the remedy under way as they were when it began; what cannot be read as such is left out."""
    details = (journal["current"] or {}).get("details")
    files = details.get("files") if isinstance(details, dict) else None
    made = []
    for item in files if isinstance(files, list) else []:
        path, text, mode = (item.get("path"), item.get("text"), item.get("mode")) if isinstance(item, dict) else (None, None, None)
        if isinstance(path, str) and path.startswith("/") and (text is None or isinstance(text, str)) and isinstance(mode, int):
            made.append(Kept(path, text, mode))
    return made


def empty(machine: str) -> Dict[str, Any]:
    """A node that was never remediated."""
    return {"schema": SCHEMA, "machine": machine, "current": None, "history": []}


def parse(text: Optional[str], machine: str, now: float) -> Dict[str, Any]:
    """The journal in `text`; an empty one for None.

    Args:
        text: content of the file.
        machine: machine id of the node.
        now: to tell what is stale.

    Raises:
        JournalError: no journal, that of another machine, from the future, or one whose remedy was left under way long ago.
    """
    if text is None:
        return empty(machine)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise JournalError("The state file is no JSON; %s." % WAY_OUT) from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise JournalError("The state file is of another kind or version; %s." % WAY_OUT)
    if machine and found.get("machine") != machine:
        raise JournalError(FOREIGN)
    entries = found.get("history")
    current = found.get("current")
    if not isinstance(entries, list) or not all(_sound(entry) and entry.get("outcome") in OUTCOMES for entry in entries):
        raise JournalError("The history of the state file cannot be read; %s." % WAY_OUT)
    if current is not None and not (_sound(current) and current.get("phase") in PHASES):
        raise JournalError("The remedy under way in the state file cannot be read; %s." % WAY_OUT)
    if current is not None and current["started"] > now + 3600:
        raise JournalError("The remedy under way in the state file was begun in the future; set the clock, or %s." % WAY_OUT)
    if current is not None and now - current["started"] > STALE:
        raise JournalError("The remedy %s was left under way %d days ago; %s." % (
            str(current["remedy"])[:60], (now - current["started"]) / DAY, WAY_OUT))
    return {"schema": SCHEMA, "machine": str(found.get("machine") or ""), "current": current, "history": list(entries)}


def _sound(entry: Any) -> bool:
    return (isinstance(entry, dict) and isinstance(entry.get("remedy"), str) and isinstance(entry.get("started"), (int, float))
            and not isinstance(entry.get("started"), bool) and abs(entry["started"]) < 1e12)


def render(journal: Mapping[str, Any]) -> str:
    """Text of the file."""
    return json.dumps(journal, indent=1, sort_keys=True) + "\n"


def begin(journal: Mapping[str, Any], remedy: str, problems: Sequence[str], run: str, now: float, details: Mapping[str, Any]) -> Dict[str, Any]:
    """A remedy starts, its evidence being frozen.

    Args:
        details: what an undo needs to know: earlier versions, whether the service ran, where the evidence is.

    Raises:
        JournalError: another one is under way.
    """
    current = journal["current"]
    if current is not None:
        raise JournalError("The remedy %s is still under way; end it first." % current["remedy"])
    entry = {"remedy": remedy, "problems": list(problems), "run": run, "started": now, "phase": "frozen", "details": dict(details)}
    return dict(journal, current=entry)


def advance(journal: Mapping[str, Any], phase: str, now: float, details: Mapping[str, Any]) -> Dict[str, Any]:
    """The remedy under way enters another phase.

    Raises:
        JournalError: none is under way, or the phase is no phase.
    """
    current = journal["current"]
    if current is None:
        raise JournalError("No remedy is under way.")
    if phase not in PHASES:
        raise JournalError("%s is not one of %s." % (phase, ", ".join(PHASES)))
    return dict(journal, current=dict(current, phase=phase, since=now, details=dict(current.get("details") or {}, **details)))


def finish(journal: Mapping[str, Any], outcome: str, now: float, why: str = "") -> Dict[str, Any]:
    """The remedy under way ends; without one nothing changes.

    Raises:
        JournalError: the outcome is none.
    """
    current = journal["current"]
    if outcome not in OUTCOMES:
        raise JournalError("%s is not one of %s." % (outcome, ", ".join(OUTCOMES)))
    if current is None:
        return dict(journal)
    entry = dict(current, outcome=outcome, ended=now, why=why[:300])
    entry.pop("details", None)
    return dict(journal, current=None, history=(journal["history"] + [entry])[-MOST:])


def tried(journal: Mapping[str, Any], now: float) -> Dict[str, int]:
    """Remedy → how often it ended in the last day without mending anything.

    What was refused changed nothing, and an interruption is no fault of the remedy: the first one is not counted. The second is: it may be the
    remedy that takes the node down.
    """
    made: Dict[str, int] = {}
    cut: Dict[str, int] = {}
    for entry in _today(journal, now):
        remedy = entry["remedy"]
        if entry["outcome"] == "interrupted":
            cut[remedy] = cut.get(remedy, 0) + 1
        elif entry["outcome"] not in ("mended", "refused"):
            made[remedy] = made.get(remedy, 0) + 1
    for remedy, count in cut.items():
        if count > 1:
            made[remedy] = made.get(remedy, 0) + count - 1
    return made


def spent(journal: Mapping[str, Any], now: float) -> int:
    """Remedies that were begun in the last day, however they ended."""
    return len(_today(journal, now)) + (1 if journal["current"] else 0)


def _today(journal: Mapping[str, Any], now: float) -> List[Mapping[str, Any]]:
    return [entry for entry in journal["history"] if now - entry["started"] < DAY]
