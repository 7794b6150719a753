# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far the start of one rank has come, and when to give it up. Pure: what systemd and the journal said goes in."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from ..checks.wording import short
from ..logs.phases import ORDER, PHASES, progress
from ..node import systemd
from ..node.text import integer

AGENT = "vllm-link:"
"""Begin of the lines of the link agent, which says what a rank waits for before its start."""
STARTING = PHASES[:PHASES.index("api_ready") + 1]
"""Phases of a start, which have limits."""
PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "NRestarts", "ExecMainStatus", "ExecMainCode", "InvocationID", "StatusText", "UnitFileState",
              "Job")
ARGUMENTS = 2
"""Exit status of vLLM for arguments that it refuses: another try gives the same."""
MOST_RESTARTS = 2
READY_DEFAULT = 600
"""Default of VLLM_ENGINE_READY_TIMEOUT_S in vLLM 0.32: after it the API server gives up on its engine."""
LIMITS: Dict[str, int] = {
    # Waiting for the agents of the other ranks, the container, and Python's imports from a cold disk.
    "container_init": 900,
    "dependencies": 600,
    "device_init": 600,
    # NCCL gives up after 600 s by itself, and what it says then is better than our own limit.
    "distributed_init": 900,
    # Kernels are compiled and graphs captured after the weights; vLLM bounds both together (see limits()).
    "weights_load": 300,
    "engine_init": 300,
    "api_ready": 300,
}
"""Seconds without leaving a phase after which a start is given up. Measured starts: about 40 s in all on two CPU cores with a tiny
model; 20 to 40 minutes for Kimi K3 from a shared file system, most of it weights (https://recipes.vllm.ai, 2026-08-20)."""


class Unit(NamedTuple):
    """What ``systemctl show`` says of the unit; `status` is the last exit status of its main process, None while it is not known."""

    load: str
    active: str
    sub: str
    result: str
    restarts: int
    status: Optional[int]
    signal: bool
    invocation: str
    text: str
    enabled: bool = False
    job: int = 0

    @property
    def queued(self) -> bool:
        """Not up, with a job in systemd's queue: a start that waits for the units that this one comes after."""
        return self.active in ("inactive", "failed") and self.job > 0


def unit(text: str) -> Unit:
    """The unit from the output of ``systemctl show --property=…``; empty fields for what was not said."""
    block = (systemd.blocks(text) or [{}])[0]

    def say(key: str) -> str:
        return systemd.first(block, key)[:300]

    code = say("ExecMainCode")
    now = Unit(say("LoadState"), say("ActiveState"), say("SubState"), say("Result"), integer(say("NRestarts")) or 0,
               integer(say("ExecMainStatus")) if code not in ("", "0") else None, code in ("2", "3"), say("InvocationID"), say("StatusText"),
               say("UnitFileState") in ("enabled", "generated"), integer(say("Job")) or 0)
    # Until a start leaves the queue, systemd tells of the run before it.
    return now._replace(result="success", restarts=0, status=None, signal=False, invocation="", text="") if now.queued else now


def limits(overrides: Any, ready_s: int = 0) -> Dict[str, int]:
    """Seconds by phase; vLLM's own limit on its engine (`ready_s`, 0 for its default) is added to the two long phases.

    Raises:
        ValueError: an override that is no phase or no whole number of seconds; one sentence.
    """
    made = {phase: seconds + ((ready_s or READY_DEFAULT) if phase in ("weights_load", "engine_init") else 0) for phase, seconds in LIMITS.items()}
    if not isinstance(overrides, Mapping):
        raise ValueError("deploy_phase_limits: %s is not a table of phases and seconds" % short(repr(overrides), 40))
    for phase, value in overrides.items():
        if phase not in made:
            raise ValueError("deploy_phase_limits: %s is no phase of a start; phases are %s" % (short(repr(phase), 40), ", ".join(STARTING)))
        seconds = None if isinstance(value, bool) else integer(str(value))
        if seconds is None or not 1 <= seconds <= 86400:
            raise ValueError("deploy_phase_limits: %s: %s is not a number of seconds from 1 to 86400" % (phase, short(repr(value), 40)))
        made[phase] = seconds
    return made


class Progress(NamedTuple):
    """How far one invocation of the unit has come.

    Attributes:
        phase: furthest phase, ``container_init`` before the first marker.
        done, total: shards of the weights, None while unknown.
        last: the last line that was printed, shortened.
    """

    invocation: str = ""
    phase: str = STARTING[0]
    stage: str = ""
    done: Optional[int] = None
    total: Optional[int] = None
    last: str = ""


def from_dict(value: Any) -> Progress:
    """A Progress that went through JSON; a fresh one for anything else."""
    fields = value if isinstance(value, Mapping) else {}
    phase = str(fields.get("phase", ""))
    numbers = [fields.get(key) if isinstance(fields.get(key), int) else None for key in ("done", "total")]
    return Progress(str(fields.get("invocation", ""))[:64], phase if phase in ORDER else STARTING[0], str(fields.get("stage", ""))[:40],
                    numbers[0], numbers[1], str(fields.get("last", ""))[:300])


def advance(before: Progress, invocation: str, lines: List[str]) -> Progress:
    """`before` and the new `lines` of `invocation`: a new invocation starts from the beginning, a phase is never left backwards."""
    now = before if before.invocation == invocation else Progress(invocation)
    found = progress("\n".join(lines))
    if found["phase"] and ORDER[found["phase"]] >= ORDER[now.phase]:
        now = now._replace(phase=found["phase"], stage=found["stage"])
    if found["total"]:
        now = now._replace(done=found["done"], total=found["total"])
    last = next((line for line in reversed(lines) if line.strip()), "")
    return now._replace(last=short(last, 200)) if last else now


class Verdict(NamedTuple):
    """``waiting``, ``ready`` or ``failed``, and why in one phrase."""

    state: str
    why: str = ""


def judge(now: Unit, healthy: Optional[bool], restarts_before: int = 0, last_end: str = "") -> Verdict:
    """Whether one rank is up.

    Args:
        now: the unit.
        healthy: answer of its /health; None for a rank that serves no API, which is up as far as it can tell when its unit is active.
        restarts_before: restarts that were counted before the start.
        last_end: how it ended the last time, where `now` does not say it any more.
    """
    if now.load in ("not-found", "masked", "error", "bad-setting"):
        return Verdict("failed", "the unit is %s" % now.load.replace("-", " "))
    if now.queued:
        return Verdict("waiting", "its start waits for the units that it comes after (job %d of systemctl list-jobs)" % now.job)
    if now.active == "failed":
        return Verdict("failed", "the unit failed: %s" % ended(now))
    if now.status == ARGUMENTS and not now.signal and now.sub in ("auto-restart", "dead", "failed", "final-sigterm", "stop-post"):
        return Verdict("failed", "vLLM refused its arguments (exit status 2)")
    if now.restarts - restarts_before >= MOST_RESTARTS and now.active != "active":
        return Verdict("failed", "it ended and was restarted %d times, the last time with %s" % (
            now.restarts - restarts_before, last_end or ended(now)))
    if now.active == "inactive":
        return Verdict("failed", "the unit is stopped")
    if now.active == "active" and healthy is not False:
        return Verdict("ready")
    return Verdict("waiting", now.text or "%s (%s)" % (now.active or "unknown", now.sub or "unknown"))


def ended(now: Unit) -> str:
    """How the main process ended: ``exit status 1``, ``signal 9``; a process that was never started has no status."""
    if now.status is None:
        return "a step before vLLM itself failing (%s)" % (now.result or "no exit status")
    if now.signal:
        return "signal %d" % now.status
    return "exit status %d" % now.status


def line(node: str, now: Progress, memory: Optional[float], width: int = 0) -> str:
    """``node1  weights_load  41/96 shards  12.3 GiB`` for a person; `memory` in GiB, `width` of the column of names."""
    words = [node.ljust(width), now.phase.ljust(16)]
    if now.phase == "weights_load" and now.total:
        words.append("%d/%d shards" % (now.done or 0, now.total))
    if memory is not None:
        words.append("%.1f GiB" % memory)
    if now.phase == STARTING[0] and now.last.startswith(AGENT):
        words.append(now.last[len(AGENT):].strip())
    return "  ".join(words).rstrip()
