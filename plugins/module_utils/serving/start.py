# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 1: is what runs on every node what was planned, did every rank start, and does it stay up? Pure judgement of readings."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..node.redact import MASK
from .client import Endpoint, Request, call, resolved
from .requests import QUICK, broken
from .result import finding, result

SETTLED = 60.0
"""Seconds that a unit must have been up for a restart before to count as past."""
LOOPING = 600.0
"""Seconds within which a restart makes a service that is up suspicious."""

Finding = Dict[str, Any]

# Flags that a wrapper or an image may add without changing what is served.
IGNORED_FLAGS = ("disable-log-requests", "uvicorn-log-level", "enable-log-requests")


def flags(argv: Sequence[str]) -> Dict[str, str]:
    """``{flag without dashes: value}`` of a ``vllm serve`` command line; a switch has an empty value, ``--no-x`` stands as ``no-x``.

    The model stands under ``model``. Words before ``serve`` are left out.
    """
    words = [str(word) for word in argv]
    for position, word in enumerate(words[:8]):
        if word == "serve":
            words = words[position + 1:]
            break
    found: Dict[str, str] = {}
    name = ""
    for position, word in enumerate(words):
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            name = name.replace("_", "-")
            found[name] = value if sign else ""
            name = "" if sign else name
        elif name:
            found[name] = (found[name] + " " + word).strip()
        elif position == 0:
            found["model"] = word
    return found


def differences(planned: Mapping[str, str], running: Mapping[str, str]) -> List[str]:
    """How two tables differ, a short text each: missing, more, other."""
    found = []
    for name in sorted(set(planned) | set(running)):
        old, new = planned.get(name), running.get(name)
        if old == new or name in IGNORED_FLAGS or MASK in (old or "") or MASK in (new or ""):
            continue
        if new is None:
            found.append("lacks %s%s" % (name, " " + old if old else ""))
        elif old is None:
            found.append("has %s%s" % (name, " " + new if new else ""))
        else:
            found.append("%s is %s, planned %s" % (name, new or "set", old or "set"))
    return found


def judge(plan: Mapping[str, Any], readings: Mapping[str, Optional[Mapping[str, Any]]], unreachable: Optional[Mapping[str, str]] = None) -> List[Finding]:
    """The findings of all nodes.

    Args:
        plan: plan.json, or a table with ``nodes`` and ``engines`` of the same shape; may be empty.
        readings: ``{node: reading.read(…)}``, None for a node that could not be read.
        unreachable: why a node could not be read.
    """
    found: List[Finding] = []
    nodes = plan.get("nodes") or {}
    for name in list(nodes) + [n for n in readings if n not in nodes]:
        entry = nodes.get(name)
        if isinstance(entry, Mapping) and entry.get("role") == "router" and name not in readings:
            continue
        reading = readings.get(name)
        if not isinstance(reading, Mapping):
            found.append(finding("start.node", "unknown", (unreachable or {}).get(name) or "was not read", "a reading", where=name,
                                 why="nothing is known of this rank", fix="make the node reachable, or plan without it"))
            continue
        planned = isinstance(entry, Mapping) and entry.get("role") != "router" and plan.get("hardware") not in (None, "", "cpu")
        found += _node(name, entry if isinstance(entry, Mapping) else None, reading, planned)
    for engine in plan.get("engines") or []:
        if isinstance(engine, Mapping):
            found += _world(engine, nodes, readings)
    return found


def _node(name: str, entry: Optional[Mapping[str, Any]], reading: Mapping[str, Any], planned: bool) -> List[Finding]:
    """One node; `planned` when it is planned to have GPUs."""
    found = [_unit(name, reading)]
    found += _plan(name, entry, reading)
    log = reading.get("log")
    if isinstance(log, Mapping):
        found += _log(name, entry, log)
    else:
        found.append(finding("start.log", "unknown", (reading.get("unknown") or {}).get("log") or "not read", "the log of this start", where=name,
                             why="whether all ranks started is in the log"))
    found.append(faults(name, reading, "start.xid", planned))
    gpus = reading.get("gpus")
    if gpus:
        used = [g["used"] or 0 for g in gpus]
        total = [g["total"] or 0 for g in gpus]
        text = "%d GPUs, %d to %d of %d MiB used after load" % (len(gpus), min(used), max(used), max(total))
        found.append(finding("start.gpu_memory", "info", text, where=name))
    elif planned and not str((reading.get("unknown") or {}).get("gpus")).endswith("is not installed"):
        # Without nvidia-smi there is nothing to ask; one that does not answer may be a driver that hangs.
        found.append(finding("start.gpu_memory", "unknown", (reading.get("unknown") or {}).get("gpus") or "nvidia-smi names no GPU", "the planned GPUs",
                             where=name, why="a driver that hangs shows first in nvidia-smi", fix="run inferops.vllm.diagnose"))
    return found


def _unit(name: str, reading: Mapping[str, Any]) -> Finding:
    unit = reading.get("unit")
    if not isinstance(unit, Mapping):
        return finding("start.unit", "unknown", (reading.get("unknown") or {}).get("unit") or "not read", "active", where=name)
    title = str(unit.get("name") or "vllm.service")
    if not unit.get("installed"):
        return finding("start.unit", "fail", "%s is not installed" % title, "active", "nothing serves here", "run inferops.vllm.deploy", name)
    active, sub = str(unit.get("active") or ""), str(unit.get("sub") or "")
    restarts = unit.get("restarts") or 0
    seconds = unit.get("active_seconds")
    if active != "active" or sub != "running":
        again = ""
        if restarts >= 2:
            again = ", restarted %d times: a restart loop" % restarts
        elif restarts or sub == "auto-restart":
            again = ", ended on its own and is started again"
        return finding("start.unit", "fail", "%s is %s (%s)%s%s" % (
            title, active, sub, ", result %s" % unit["result"] if unit.get("result") not in (None, "", "success") else "", again), "active (running)",
            "the rank does not serve", "read the log: journalctl -u %s; then run inferops.vllm.diagnose" % title, name)
    if restarts and seconds is not None and seconds < LOOPING:
        status = "fail" if restarts >= 2 or seconds < SETTLED else "warn"
        return finding("start.unit", status, "%s was restarted %d times, the last time %d s ago%s" % (
            title, restarts, seconds, ": a restart loop" if restarts >= 2 else ""), "no restart", "the service dies and comes again",
            "read why it ended: journalctl -u %s" % title, name)
    if restarts:
        return finding("start.unit", "warn", "%s was restarted %d times, up for %s" % (title, restarts, _span(seconds)), "no restart", where=name,
                       why="it ended on its own before")
    return finding("start.unit", "pass", "%s is up for %s, never restarted" % (title, _span(seconds)), "active (running)", where=name)


def _span(seconds: Optional[float]) -> str:
    if seconds is None:
        return "an unknown time"
    return "%d s" % seconds if seconds < 600 else "%d min" % (seconds / 60) if seconds < 36000 else "%d h" % (seconds / 3600)


def _plan(name: str, entry: Optional[Mapping[str, Any]], reading: Mapping[str, Any]) -> List[Finding]:
    if entry is None:
        return [finding("start.argv", "skip", "no plan was given", where=name)]
    if entry.get("role") == "router":
        return []
    processes = reading.get("processes")
    why = (reading.get("unknown") or {}).get("service.processes") or "the processes could not be read"
    if processes is None:
        return [finding("start.argv", "unknown", why, "the planned command line", where=name)]
    servers = [p for p in processes if "serve" in [str(w) for w in p.get("argv") or []][:8]]
    if not servers:
        return [finding("start.argv", "fail", "no process `vllm serve` runs", "the planned command line", "nothing serves here",
                        "look at the unit's log", name)]
    process = servers[0]
    other = differences(flags(entry.get("argv") or []), flags(process.get("argv") or []))
    found = [finding(
        "start.argv", "fail" if other else "pass", "; ".join(other[:6]) + (" and %d more" % (len(other) - 6) if len(other) > 6 else "") or "as planned",
        "as planned", "what runs is not what was planned" if other else "", "run inferops.vllm.deploy" if other else "", name)]
    env = process.get("env")
    if not isinstance(env, Mapping):
        found.append(finding("start.env", "unknown", "the environment may not be read", "the planned variables", where=name))
    else:
        # Only variables that a reading holds are compared: others never leave the node.
        told = ("NCCL_", "UCX_", "VLLM_", "CUDA_", "GLOO_", "NVSHMEM_", "NIXL_", "PYTORCH_")
        planned = {k: str(v) for k, v in (entry.get("env") or {}).items() if k.startswith(told)}
        wrong = differences(planned, {k: str(v) for k, v in env.items() if k in planned})
        found.append(finding("start.env", "fail" if wrong else "pass", "; ".join(wrong[:6]) or "%d variables as planned" % len(planned), "as planned",
                             "what runs is not what was planned" if wrong else "", "run inferops.vllm.deploy" if wrong else "", name))
    return found


def _log(name: str, entry: Optional[Mapping[str, Any]], log: Mapping[str, Any]) -> List[Finding]:
    found: List[Finding] = []
    marks = log.get("marks") or {}
    serves = entry is None or bool(entry.get("health_url"))
    if serves:
        found.append(finding("start.ready", "pass" if "ready" in marks else "fail",
                             "the log says ready" if "ready" in marks else "the log never says that the server is ready", "Application startup complete",
                             "" if "ready" in marks else "the start did not come to its end", "" if "ready" in marks else "run inferops.vllm.diagnose", name))
    bad = [w for w in log.get("warnings") or [] if w.get("level") != "WARNING"]
    soft = [w for w in log.get("warnings") or [] if w.get("level") == "WARNING"]
    if bad:
        found.append(finding("start.errors", "warn", "%d kinds of errors in the log, first: %s" % (len(bad), bad[0].get("text")), "none", where=name,
                             why="the start went on in spite of them"))
    if soft:
        found.append(finding("start.warnings", "info", "%d kinds of warnings in the log, most often: %s" % (len(soft), soft[0].get("text")), where=name))
    if log.get("nccl_errors"):
        found.append(finding("start.nccl", "warn", log["nccl_errors"][0], "no error of NCCL", where=name))
    return found


def faults(name: str, reading: Mapping[str, Any], id: str, planned: bool = False) -> Finding:
    """Xids since the start (or since the time that the reading was asked for); `planned` when the node is planned to have GPUs."""
    xids = reading.get("xids")
    if xids is None:
        gpu = planned or reading.get("gpus") is not None
        return finding(id, "unknown" if gpu else "skip", (reading.get("unknown") or {}).get("xids") or "the kernel log was not read", "no Xid", where=name)
    if xids:
        one = xids[-1]
        text = "Xid %s on %s (%d times): %s" % (one.get("code"), one.get("bdf"), one.get("count", 1), one.get("text"))
        return finding(id, "fail", text, "no Xid since the start", "a GPU reported a fault", "run inferops.vllm.diagnose", name)
    return finding(id, "pass", "no Xid since the start", "no Xid", where=name)


def world(entry: Mapping[str, Any]) -> Tuple[int, int]:
    """Ranks of one data-parallel rank (tensor × pipeline), and data-parallel ranks, by the planned flags."""
    given = flags(entry.get("argv") or [])

    def number(name: str) -> int:
        text = given.get(name, "1")
        return int(text) if text.isdigit() and int(text[:6]) > 0 else 1

    return number("tensor-parallel-size") * number("pipeline-parallel-size"), number("data-parallel-size")


def _world(engine: Mapping[str, Any], nodes: Mapping[str, Any], readings: Mapping[str, Optional[Mapping[str, Any]]]) -> List[Finding]:
    names = [str(n) for n in engine.get("nodes") or []]
    entry = next((nodes[n] for n in names if isinstance(nodes.get(n), Mapping)), None)
    if entry is None:
        return []
    inner, data = world(entry)
    wanted = inner * data
    seen: Dict[Tuple[str, int, int], str] = {}
    shown: Dict[str, Set[Tuple[str, int, int]]] = {}
    sizes = set()
    blind = []
    for node in names:
        log = (readings.get(node) or {}).get("log")
        if not isinstance(log, Mapping):
            blind.append(node)
            continue
        if flags((nodes.get(node) or {}).get("argv") or []).get("data-parallel-size-local") != "0":
            shown[node] = set()
        for dp, pp, tp, _rank, size in log.get("ranks") or []:
            # A dense model numbers the data-parallel ranks of each process as 0.
            key = (str(dp) if str(dp) not in ("N/A", "0") or inner > 1 else node + str(dp), int(pp), int(tp))
            seen.setdefault(key, node)
            shown.setdefault(node, set()).add(key)
            sizes.add(int(size))
    title = "engine %s" % engine.get("name")
    # Ranks of a dense model over several data-parallel processes look the same, so that each node must show its own share.
    share = max(1, min(inner, wanted // max(1, len(shown) + len(blind))))
    short = ["%s shows %d of %d" % (node, len(keys), share) for node, keys in shown.items() if len(keys) < share]
    alike = data > 1 and len(seen) >= inner and not blind and len(seen) * data >= wanted and sizes == {inner}
    text = "%d of %d ranks initialised" % (len(seen), wanted)
    if not short and (len(seen) >= wanted or alike):
        if len(seen) < wanted:
            text = "%d ranks seen on %d nodes, %d planned; data-parallel ranks of a dense model look alike" % (
                sum(map(len, shown.values())), len(shown), wanted)
        return [finding("start.ranks", "pass", "%s, world size %s" % (text, ", ".join(map(str, sorted(sizes)))), "%d ranks" % wanted, where=title)]
    if blind and not short:
        return [finding("start.ranks", "unknown", "%d of %d ranks seen; the log of %s was not read" % (len(seen), wanted, ", ".join(blind[:4])),
                        "%d ranks" % wanted, where=title)]
    return [finding("start.ranks", "fail", text + (": " + ", ".join(short[:4]) if short else ""), "%d ranks" % wanted,
                    "the engine waits for the others", "run inferops.vllm.diagnose on the nodes without a rank", title)]


def asked(target: Endpoint, model: str, version: str = "", key_given: bool = False) -> List[Finding]:
    """Health, version and models of one API server, as its users see them."""
    where = target.url
    target, trouble = resolved(target)
    if trouble is not None:
        return [broken("start.health", trouble, where, key_given)]
    reply = call(target, Request("GET", "/health", deadlines=QUICK))
    if reply.trouble is not None:
        return [broken("start.health", reply.trouble, where, key_given, reply.status)]
    found = [finding("start.health", "pass", "HTTP 200 in %d ms" % round(1000 * (reply.end or 0)), "HTTP 200", where=where)]
    said, trouble = call(target, Request("GET", "/version", deadlines=QUICK)).json()
    running = str(said.get("version") or "") if isinstance(said, dict) else ""
    if trouble is not None or not running:
        found.append(finding("start.version", "unknown" if version else "warn", trouble.text if trouble else "no version", version, where=where,
                             why="what runs cannot be compared"))
    elif version and not same_version(version, running):
        found.append(finding("start.version", "fail", running, version, "another vLLM runs than planned",
                             "run inferops.vllm.deploy with the planned image", where))
    else:
        found.append(finding("start.version", "pass", running, version, where=where))
    reply = call(target, Request("GET", "/v1/models", deadlines=QUICK))
    listed, trouble = reply.json()
    if trouble is not None:
        return [*found, broken("start.models", trouble, where, key_given, reply.status)]
    data = listed.get("data") if isinstance(listed, dict) else None
    names = [str(m.get("id")) for m in data if isinstance(m, dict)] if isinstance(data, list) else []
    good = model in names
    found.append(finding("start.models", "pass" if good else "fail", ", ".join(names[:5]) or "no model", model,
                         "" if good else "a request for the planned model is refused",
                         "" if good else "set --served-model-name or vllm_model so that both say the same name", where))
    return found


def same_version(planned: str, running: str) -> bool:
    """Whether two versions are the same up to what the shorter one says (0.32 and 0.32.0, 0.32.0+cpu)."""
    def numbers(text: str) -> List[int]:
        match = re.match(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})", text.strip())
        return [int(part) for part in match.group(1).split(".")] if match else []

    one, other = numbers(planned), numbers(running)
    length = min(len(one), len(other))
    return length > 0 and one[:length] == other[:length]


def stage(plan: Mapping[str, Any], readings: Mapping[str, Optional[Mapping[str, Any]]], unreachable: Mapping[str, str],
          http: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Stage 1 out of the nodes' readings and what the API servers answered."""
    findings = judge(plan, readings, unreachable) + [dict(f) for f in http]
    if not http:
        findings.append(finding("start.health", "unknown", "no API server was asked", "HTTP 200"))
    data = {
        "gpus": {name: reading.get("gpus") for name, reading in readings.items() if reading and reading.get("gpus")},
        "rss_kib": {name: reading.get("rss") for name, reading in readings.items() if reading and reading.get("rss")},
    }
    return result("start", findings, 0.0, data)
