# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a diagnosis: one document, a verdict for the terminal, and an HTML timeline.

Texts come from logs, so from anywhere: every form makes them harmless for itself.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .files import replace
from .page import TEMPLATES
from .text import cut, fold, plain, width, wrap

SCHEMA = "inferops.vllm/diagnosis/1"
PHASES = (
    "container_init", "device_init", "dependencies", "distributed_init", "weights_load", "engine_init", "api_ready", "prefill", "decode", "shutdown",
)
LONGEST = 4000
MOST_LINES = 24
"""Lines of the terminal verdict."""
MOST_RELAYS = 200
MOST_LANES = 400
MOST_CASES = 17
"""Cases that have a line of their own on the terminal, where there are several."""

Line = Tuple[str, Optional[str]]


def document(cases: Iterable[Mapping[str, Any]], refused: Iterable[Tuple[str, str]], now: float) -> Dict[str, Any]:
    """The content of ``diagnosis.json`` (``docs/schemas/diagnosis-1.schema.json``).

    Args:
        cases: what ``logs.diagnose`` returned for each case, with ``paths``, ``notes`` and ``absent`` added.
        refused: paths that could not be diagnosed, with the reason.
        now: seconds since the epoch.
    """
    return {
        "schema": SCHEMA,
        "generated_at": datetime.datetime.fromtimestamp(int(now), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cases": [_case(case) for case in cases],
        "refused": [{"path": _text(path), "why": _text(why)} for path, why in refused],
    }


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    # A lone surrogate has no UTF-8 form.
    return (text if len(text) <= LONGEST else text[:LONGEST] + "…").encode("utf-8", "replace").decode("utf-8")


def _texts(value: Any, most: int = 50) -> List[str]:
    if isinstance(value, str):
        return [_text(value)] if value else []
    return [_text(item) for item in list(value)[:most]] if isinstance(value, (list, tuple)) else []


def _place(value: Any) -> Optional[Dict[str, Any]]:
    """A line of a log: ``{text, file, line, node, rank}`` and what else is known of it; of a kernel line also whose GPU it names."""
    if not isinstance(value, Mapping):
        return None
    found: Dict[str, Any] = {name: _text(value.get(name)) for name in ("text", "file", "node", "rank")}
    line = value.get("line")
    found["line"] = line if isinstance(line, int) else 0
    for name in ("process", "phase", "address", "rank_source"):
        if value.get(name):
            found[name] = _text(value[name])
    if value.get("ranks"):
        found["ranks"] = _texts(value["ranks"], 1024)
    if isinstance(value.get("time"), (int, float)):
        found["time"] = float(value["time"])
    for name in ("count", "pid", "gpu"):
        if isinstance(value.get(name), int):
            found[name] = value[name]
    return found


def _case(case: Mapping[str, Any]) -> Dict[str, Any]:
    timeline = case.get("timeline")
    timeline = timeline if isinstance(timeline, Mapping) else {}
    lanes = [_lane(lane) for lane in (timeline.get("lanes") or []) if isinstance(lane, Mapping)]
    relays = [place for place in map(_place, list(case.get("relays") or [])[:MOST_RELAYS]) if place]
    confidence = str(case.get("confidence") or "low")
    made: Dict[str, Any] = {
        "paths": [_text(path) for path in case.get("paths") or []],
        "failed": bool(case.get("failed")),
        "phase": _text(case.get("phase")) or None,
        "class": _text(case.get("class")) or None,
        "first_failure": _place(case.get("first_failure")),
        "relays": relays,
        "confidence": confidence if confidence in ("high", "medium", "low") else "low",
        "next_action": _text(case.get("next_action")),
        "collect": _texts(case.get("collect")),
        "cause": _text(case.get("cause")) or None,
        "signature": _text(case.get("signature")) or None,
        "remedy": _text(case.get("remedy")) or None,
        "why": _texts(case.get("why")),
        "against": _texts(case.get("against")),
        "advisories": [_advisory(item) for item in (case.get("advisories") or [])[:20]],
        "timeline": {"lanes": lanes[:MOST_LANES], "left_out": max(0, len(lanes) - MOST_LANES)},
        "behind": behind(lanes) if case.get("failed") else [],
        "notes": _texts(case.get("notes")) + ["%s %s" % (_text(item.get("path")), _text(item.get("why"))) for item in (case.get("refused") or [])[:20]],
        "absent": {_text(name): _text(why) for name, why in (case.get("absent") or {}).items()},
        "skew": _skew(case.get("skew")),
    }
    if made["absent"] and not made["failed"]:
        # Nothing is known of a node that did not answer, so nothing is sure of the whole.
        names = fold([plain(name) for name in made["absent"]], 60)
        made["confidence"] = "low"
        made["next_action"] = "Get the logs of %s: without them this holds for the other nodes alone." % names
        made["collect"].append("the logs of %s" % names)
    for name in ("lines", "bytes"):
        made[name] = case[name] if isinstance(case.get(name), int) else 0
    return made


def _skew(value: Any) -> Dict[str, Any]:
    value = value if isinstance(value, Mapping) else {}
    offsets = value.get("offsets")
    offsets = offsets if isinstance(offsets, Mapping) else {}
    return {
        "known": bool(value.get("known")), "why": _text(value.get("why")),
        "offsets": {_text(name): round(float(item), 3) for name, item in offsets.items() if isinstance(item, (int, float))}}


def _advisory(item: Any) -> Dict[str, str]:
    if isinstance(item, Mapping):
        return {_text(key): _text(value) for key, value in item.items()}
    return {"text": _text(item)}


def _lane(lane: Mapping[str, Any]) -> Dict[str, Any]:
    phases = []
    for item in lane.get("phases") or []:
        if isinstance(item, Mapping):
            start, end = item.get("start"), item.get("end")
            phases.append({
                "phase": _text(item.get("phase")), "start": float(start) if isinstance(start, (int, float)) else None,
                "end": float(end) if isinstance(end, (int, float)) else None})
    made: Dict[str, Any] = {
        "node": _text(lane.get("node")), "rank": _text(lane.get("rank")), "phases": phases[:200], "reached": _text(lane.get("reached")) or None}
    for name in ("process", "file"):
        if lane.get(name):
            made[name] = _text(lane[name])
    return made


def _order(phase: Optional[str]) -> int:
    return PHASES.index(phase) if phase in PHASES else -1


_WORKER = re.compile(r"^(?:Worker|(?:TP|PP|DP|EP|DCP|PCP)?\d)", re.IGNORECASE)


def behind(lanes: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Ranks that never reached the phase which others reached: ``[{"node", "rank", "reached", "others"}]``.

    Workers are compared with workers, and where there are not two of them, nodes with nodes: a server goes through phases that no
    worker has, so what comes after ``engine_init`` does not count.
    """
    named = {lane["node"] for lane in lanes if _WORKER.match(lane["rank"]) and not lane["rank"].isdigit()}
    # A worker is known by a bare number until it knows its place; where a node has names, numbers are the same workers once more.
    compared = [lane for lane in lanes if _WORKER.match(lane["rank"]) and not (lane["rank"].isdigit() and lane["node"] in named)]
    if len(compared) < 2:
        nodes: Dict[str, Dict[str, Any]] = {}
        for lane in lanes:
            known = nodes.setdefault(lane["node"], {"node": lane["node"], "rank": "", "reached": lane["reached"]})
            if _order(lane["reached"]) > _order(known["reached"]):
                known["reached"] = lane["reached"]
        compared = list(nodes.values())
    reached = [min(_order(lane["reached"]), _order("engine_init")) for lane in compared]
    # What most of them reached, not what one did: many lines are printed by the first rank of a node alone.
    best = sorted(reached, reverse=True)[(len(reached) - 1) // 2] if reached else -1
    return [
        {"node": lane["node"], "rank": lane["rank"], "reached": lane["reached"], "others": PHASES[best]}
        for lane, order in zip(compared, reached) if order < best]


# -- terminal ----------------------------------------------------------------------------------
def who(place: Mapping[str, Any]) -> str:
    """``node1, rank TP0 on GPU 0 (0000:1b:00.0), server.log:12``, as far as it is known."""
    parts = [plain(place["node"])] if place["node"] else []
    ranks = [plain(name) for name in place.get("ranks", [])]
    whose = "rank " + plain(place["rank"]) if place["rank"] else "all ranks (%s)" % fold(ranks, 40) if ranks else ""
    gpu = "GPU %d" % place["gpu"] if "gpu" in place else ""
    gpu += "%s%s" % (" (" if gpu else "", plain(place["address"])) + (")" if gpu else "") if place.get("address") else ""
    parts += [" on ".join(part for part in (whose, gpu) if part)] if whose or gpu else []
    parts += [plain(place["file"]) + (":%d" % place["line"] if place["line"] else "")] if place["file"] else []
    return ", ".join(parts)


def advice(item: Mapping[str, str]) -> str:
    """A known trouble and what helps, as sentences."""
    parts = [part.strip().rstrip(".") + "." for part in (item.get("text", ""), item.get("remedy", "")) if part.strip()]
    return " ".join(part[:1].upper() + part[1:] for part in parts) or item.get("id", "")


def headline(case: Mapping[str, Any]) -> str:
    """One line for a case."""
    phase, kind = plain(case["phase"] or "an unknown phase"), plain(case["class"] or "unknown")
    if not case["failed"]:
        what = "no failure on the nodes that answered" if case["absent"] else "no failure"
        return "%s; the last phase reached is %s" % (what, phase)
    cause = " (%s)" % plain(case["cause"]) if case["cause"] and case["cause"] != case["class"] else ""
    if case["first_failure"] is None and str(case["signature"]).startswith("hang-"):
        return "stopped in %s without an error%s, confidence %s" % (phase, "" if kind in ("unknown", "none") else ", by all signs %s%s" % (kind, cause),
                                                                    case["confidence"])
    if case["first_failure"] is None:
        return "failed in %s; the first failure is not in these logs%s" % (phase, "" if kind in ("unknown", "none") else ", by all signs %s" % kind)
    return "failed in %s: %s%s, confidence %s" % (phase, kind, cause, case["confidence"])


class _Lines:
    """At most `most` lines of at most `columns` columns."""

    def __init__(self, columns: int, most: int) -> None:
        self.columns, self.most = columns, most
        self.lines: List[Line] = []

    def add(self, text: str, color: Optional[str] = None) -> None:
        if len(self.lines) < self.most:
            self.lines.append((cut(text, self.columns).rstrip(), color))

    def field(self, name: str, text: Any, limit: int, color: Optional[str] = None) -> None:
        """`text` behind a name of ten columns, on at most `limit` lines."""
        text = plain(text)
        if not text:
            return
        for number, line in enumerate(wrap(text, self.columns - 12, limit)):
            self.add("  %-9s %s" % (name if not number else "", line), color)


def terminal(document: Mapping[str, Any], columns: int = 100, where: str = "") -> List[Line]:
    """The verdict as ``[(text, colour name of Ansible or None)]``: at most MOST_LINES lines, none wider than `columns`."""
    cases, refused = document["cases"], document["refused"]
    foot: List[Line] = []
    for item in refused[:3]:
        path = plain(item["path"])
        text = "refused: %s %s" % (path if width(path) <= 48 else "…" + path[-46:], plain(item["why"]))
        foot.extend(("  " + line, "red") for line in wrap(text, columns - 2, 2))
    if len(refused) > 3:
        foot.append(("  and %d more refused" % (len(refused) - 3), "red"))
    if where:
        # Wrapped, not cut: a path that lacks its end helps nobody.
        foot.extend((line, None) for line in wrap("Details: " + plain(where), columns, 3))
    room = MOST_LINES - len(foot)
    if len(cases) == 1:
        lines = _verdict(cases[0], columns, room)
    else:
        lines = _several(cases, columns, room)
    return lines + foot


def _verdict(case: Mapping[str, Any], columns: int, most: int) -> List[Line]:
    page = _Lines(columns, most)
    sign, color = ("✘", "red") if case["failed"] else ("✔", "green")
    if (case["failed"] and case["first_failure"] is None) or (case["absent"] and not case["failed"]):
        sign, color = "?", "purple"
    page.add("%s %s" % (sign, headline(case)), color)
    first = case["first_failure"]
    if first:
        page.field("first", who(first), 2)
        page.field("", first["text"], 4, "red")
    page.field("because", "; ".join(case["why"][:3]), 3)
    page.field("against", "; ".join(case["against"][:2]), 2)
    if case["relays"]:
        places = [place["node"] or place["rank"] or place["file"].rpartition("/")[2] for place in case["relays"]]
        page.field("relays", "%d later %s (%s) only pass it on" % (
            len(places), "line" if len(places) == 1 else "lines", fold([plain(name) for name in dict.fromkeys(places)], 50)), 2, "bright gray")
    for text in stragglers(case)[:2]:
        page.field("behind", text, 2, "yellow")
    page.field("next", case["next_action"], 3, "cyan")
    if case["remedy"] and plain(case["remedy"]) not in plain(case["next_action"]):
        page.field("remedy", case["remedy"], 2, "cyan")
    if case["collect"]:
        page.field("fetch", "; ".join(case["collect"][:4]), 3, "yellow")
    for item in case["advisories"][:2]:
        page.field("known", advice(item), 2)
    for name, why in list(case["absent"].items())[:2]:
        page.field("absent", "%s: %s" % (name, why), 1, "yellow")
    page.field("note", "; ".join(case["notes"][:2]), 2)
    page.add("  %d lines (%.1f MB) of %s" % (case["lines"], case["bytes"] / 1e6, fold([plain(path) for path in case["paths"]], 60)), "bright gray")
    return page.lines


def stragglers(case: Mapping[str, Any]) -> List[str]:
    """Sentences on the ranks that never reached what others reached, one for each phase that some stopped in."""
    groups: Dict[Tuple[str, str], List[str]] = {}
    for item in case["behind"]:
        name = " ".join(part for part in (plain(item["node"]), plain(item["rank"])) if part) or "a stream without a name"
        groups.setdefault((item["reached"] or "no phase", item["others"]), []).append(name)
    return ["%s stopped at %s, others reached %s" % (fold(names, 60), reached, others) for (reached, others), names in groups.items()]


def _several(cases: Sequence[Mapping[str, Any]], columns: int, most: int) -> List[Line]:
    page = _Lines(columns, most)
    if not cases:
        page.add("? nothing was diagnosed", "purple")
        return page.lines
    failed = sum(1 for case in cases if case["failed"])
    page.add("%s %d of %d cases failed" % ("✘" if failed else "✔", failed, len(cases)), "red" if failed else "green")
    shown = sorted(cases, key=lambda case: not case["failed"])[:min(MOST_CASES, most - 2)]
    names = [plain(case["paths"][0] if case["paths"] else "").rstrip("/").rpartition("/")[2] for case in shown]
    room = min(max((width(name) for name in names), default=10), columns // 3)
    for case, name in zip(shown, names):
        color = "green" if not case["failed"] else "red" if case["first_failure"] else "purple"
        page.add("  %s %s  %s" % ("✘" if case["failed"] else "✔", cut(name, room).ljust(room), headline(case)), color)
    if len(shown) < len(cases):
        page.add("  and %d more" % (len(cases) - len(shown)))
    return page.lines


# -- page --------------------------------------------------------------------------------------
def html(document: Mapping[str, Any]) -> str:
    """The whole page: one file, no script, no request."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    cases = [_view(case, number) for number, case in enumerate(document["cases"])]
    failed = sum(1 for case in document["cases"] if case["failed"])
    if len(cases) == 1:
        title = headline(document["cases"][0])
    else:
        title = "%d of %d cases failed" % (failed, len(cases))
    style = ""
    for name in ("report.css", "diagnosis.css"):
        with open(os.path.join(TEMPLATES, name), encoding="utf-8") as file:
            style += file.read()
    return environment.get_template("diagnosis.html.j2").render(
        title="Diagnosis: " + title, headline=title[:1].upper() + title[1:], generated_at=plain(document["generated_at"]), cases=cases, failed=failed,
        refused=[{"path": plain(item["path"]), "why": plain(item["why"])} for item in document["refused"]], style=Markup(style), phases=PHASES)


def _view(case: Mapping[str, Any], number: int) -> Dict[str, Any]:
    """What the template shows of a case; every text is plain, and the template escapes it."""
    first = case["first_failure"]
    return {
        "id": "case-%d" % number,
        "state": "ready" if not case["failed"] else "blocked" if first else "unknown",
        "word": "healthy" if not case["failed"] else "failed" if first else "root not found",
        "headline": headline(case),
        "paths": [plain(path) for path in case["paths"]],
        "first": {"where": who(first), "text": plain(first["text"])} if first else None,
        "facts": [(name, plain(value)) for name, value in (
            ("phase", case["phase"]), ("class", case["class"]), ("cause", case["cause"]), ("confidence", case["confidence"]),
            ("lines read", "{:,}".format(case["lines"]))) if value],
        "why": [plain(text) for text in case["why"]], "against": [plain(text) for text in case["against"]],
        "next": plain(case["next_action"]), "collect": [plain(text) for text in case["collect"]],
        "remedy": "" if plain(case["remedy"] or "") in plain(case["next_action"]) else plain(case["remedy"] or ""),
        "advisories": [{"text": plain(advice(item)),
                        "source": item["source"] if str(item.get("source", "")).startswith("https://") else ""} for item in case["advisories"]],
        "relays": [{"where": who(place), "text": plain(place["text"])} for place in case["relays"][:100]],
        "relays_more": max(0, len(case["relays"]) - 100),
        "behind": stragglers(case), "absent": [(plain(name), plain(why)) for name, why in case["absent"].items()],
        "notes": [plain(text) for text in case["notes"]], "chart": chart(case),
    }


class Axis:
    """Places of times on a line of 0 to 100 per cent.

    A start takes minutes and serving takes days, so time is not linear: each stretch between two moments that matter gets a
    width by the root of its length, and at least a little.
    """

    def __init__(self, times: Iterable[float]) -> None:
        self.times = sorted(set(times))
        widths = [min(max((later - earlier) ** 0.5, 0.6), 40.0) for earlier, later in zip(self.times, self.times[1:])]
        total = sum(widths) or 1.0
        self.places = [0.0]
        for item in widths:
            self.places.append(self.places[-1] + 100.0 * item / total)

    def at(self, time: float) -> float:
        """Per cent of `time`, which is one of those that were given."""
        from bisect import bisect_left

        return self.places[min(bisect_left(self.times, time), len(self.places) - 1)]

    def ticks(self) -> List[Tuple[float, str]]:
        """Marks that are not too close together: per cent and seconds since the beginning."""
        found: List[Tuple[float, str]] = []
        for time, place in zip(self.times, self.places):
            if not found or (place - found[-1][0] >= 9 and place <= 94):
                found.append((place, duration(time - self.times[0])))
        return found


def duration(seconds: float) -> str:
    """``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole < 120:
        return "%d s" % whole
    if whole < 7200:
        return "%d min %d s" % divmod(whole, 60) if whole % 60 else "%d min" % (whole // 60)
    if whole < 172800:
        return "%d h %d min" % (whole // 3600, whole % 3600 // 60)
    return "%d d %d h" % (whole // 86400, whole % 86400 // 3600)


def chart(case: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Lanes with bands and marks in per cent, None when no lane is known.

    Where a lane has no times its phases stand one behind the other, each as wide as the next.
    """
    lanes = case["timeline"]["lanes"]
    if not lanes:
        return None
    first = case["first_failure"] or {}
    times = [moment for lane in lanes for band in lane["phases"] for moment in (band["start"], band["end"]) if moment is not None]
    # Marks alone make no axis: lanes without times stand in the order of their phases.
    marks = [place for place in [first, *case["relays"]] if times and place and place.get("time")]
    times += [place["time"] for place in marks]
    # Seconds since boot and since the epoch have no common line.
    if times and max(times) > 3e8:
        times = [moment for moment in times if moment > 3e8]
    axis = Axis(times) if len(set(times)) > 1 else None
    rows: List[Dict[str, Any]] = []
    for lane in lanes:
        rows.append({
            "name": " ".join(part for part in (plain(lane["node"]), plain(lane["rank"])) if part) or plain(lane.get("process", "")) or plain(
                lane.get("file", "").rpartition("/")[2]) or "log",
            "node": plain(lane["node"]), "rank": plain(lane["rank"]), "reached": plain(lane["reached"] or "nothing known"),
            "bands": _timed(lane, axis) if axis else _untimed(lane), "marks": [],
            "behind": any(item["node"] == lane["node"] and item["rank"] in ("", lane["rank"]) for item in case["behind"]),
        })
    # A fault of a switch hits every rank of its node.
    for rank in first.get("ranks") or ([first["rank"]] if first else []):
        _mark(rows, lanes, {**first, "rank": rank}, axis, "first")
    for place in case["relays"]:
        _mark(rows, lanes, place, axis, "relay")
    order = sorted(range(len(rows)), key=lambda number: (not any(mark["kind"] == "first" for mark in rows[number]["marks"]), not rows[number]["behind"]))
    return {
        "rows": [rows[number] for number in order], "ticks": axis.ticks() if axis else [], "timed": axis is not None,
        "left_out": case["timeline"]["left_out"], "phases": [phase for phase in PHASES if any(b["phase"] == phase for lane in lanes for b in lane["phases"])],
    }


def _timed(lane: Mapping[str, Any], axis: Axis) -> List[Dict[str, Any]]:
    """Bands of a lane; the last one goes on, pale, to the end of the case: a rank stays in a phase until it says otherwise."""
    bands: List[Dict[str, Any]] = []
    for band in lane["phases"]:
        start, end = band["start"], band["end"]
        start = end if start is None else start
        if start is None or start not in axis.times:
            continue
        end = start if end is None or end not in axis.times else end
        left, right = axis.at(start), axis.at(max(start, end))
        # A band of no length has a width nevertheless, and does not hang over the end.
        left = min(left, 99.2)
        bands.append({"phase": plain(band["phase"]), "left": left, "width": max(right - left, 0.4), "lasted": duration(max(0.0, end - start)), "open": False})
    if bands:
        last = bands[-1]
        begin = last["left"] + last["width"]
        if begin < 99.5:
            bands.append({"phase": last["phase"], "left": begin, "width": 100.0 - begin, "lasted": "nothing later is known", "open": True})
    return bands


def _untimed(lane: Mapping[str, Any]) -> List[Dict[str, Any]]:
    step = 100.0 / len(PHASES)
    return [
        {"phase": plain(band["phase"]), "left": step * max(0, _order(band["phase"])), "width": step, "lasted": "", "open": False}
        for band in lane["phases"]]


def _mark(rows: List[Dict[str, Any]], lanes: Sequence[Mapping[str, Any]], place: Mapping[str, Any], axis: Optional[Axis], kind: str) -> None:
    """Put `place` on the lane that it belongs to: the same node and rank, else the same node, else the first."""
    def closeness(lane: Mapping[str, Any]) -> int:
        same_file = bool(lane.get("file")) and lane.get("file") == place["file"]
        return 2 * int(lane["node"] == place["node"]) + int(lane["rank"] == place["rank"]) + 4 * int(same_file)

    number = max(range(len(lanes)), key=lambda at: (closeness(lanes[at]), -at))
    if axis and place.get("time") in axis.times:
        left = axis.at(float(place["time"]))
    elif axis or not lanes[number]["phases"]:
        if kind == "relay":
            return
        left = max((band["left"] + band["width"] for band in rows[number]["bands"] if not band["open"]), default=0.0)
    else:
        left = 100.0 / len(PHASES) * (max(_order(lanes[number]["reached"]), 0) + 0.9)
    rows[number]["marks"].append({"kind": kind, "left": min(left, 100.0), "text": plain(place["text"])[:200], "where": who(place)})


def write(document: Mapping[str, Any], folder: str, path: str = "") -> Dict[str, str]:
    """Write ``diagnosis.json`` and ``diagnosis.html`` into `folder`, and the JSON also to `path` when given.

    Returns:
        paths by ``json`` and ``html``.

    Raises:
        OSError: one could not be written.
    """
    text = json.dumps(document, indent=1 if len(document["cases"]) < 200 else None) + "\n"
    os.makedirs(folder, exist_ok=True)
    paths = {"json": path or os.path.join(folder, "diagnosis.json"), "html": os.path.join(folder, "diagnosis.html")}
    if path:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    replace(paths["json"], text)
    replace(paths["html"], html(document))
    return paths
