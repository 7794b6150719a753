# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 4: from one stream to the declared number, step by step, until it is reached or the error budget is spent."""

from __future__ import annotations

import json
import re
import resource
import secrets
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import metrics
from .client import Deadlines, Endpoint, Loop, Reply, Request, call, post, resolved
from .prefix import text_of
from .requests import CHAT, broken
from .result import finding, not_run, result
from .wire import whole_number

MOST_STREAMS = 4096
MOST_TOKENS = 1048576
SAMPLE_SECONDS = 1.0
KNEE_POWER = 0.38
"""Below it a step up is beyond the knee: twice the streams must give at least 1.3 times the tokens (2 to the power of 0.38)."""
STEPS = 10
PERCENTILES = (50, 90, 95, 99)
CLIENT_LIMIT = 0.85
"""Share of a core from which on the client itself may bound what is measured."""
NO_TOKEN = "no token"
"""Kind of error of a stream that ended as it should and brought nothing."""
KV_FULL = 0.9
"""Share of the KV cache from which on it is what keeps requests waiting."""
# Routers write JSON anew, with blanks. Searching costs a tenth of reading each event as JSON.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_NO_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\]')


class Settings(NamedTuple):
    """The declared load, and the bounds of the stage.

    concurrency: streams at once. input_tokens, output_tokens: of each request. error_budget: share of requests that may fail.
    level_seconds: how long each step sends new requests. seconds: bound of the whole stage. request_seconds: bound of one request.
    ttft_ms, itl_ms: 95th percentiles that must hold at the target, None for no bound. agents, turns: sessions with growing history after
    the ramp, 0 for none. level_requests: requests of each step for a given number of streams, 0 for as many as the time allows.
    """

    model: str
    concurrency: int = 8
    input_tokens: int = 256
    output_tokens: int = 64
    error_budget: float = 0.01
    level_seconds: float = 10.0
    seconds: float = 300.0
    request_seconds: float = 120.0
    ttft_ms: Optional[float] = None
    itl_ms: Optional[float] = None
    agents: int = 0
    turns: int = 4
    max_preemptions: int = 0
    max_model_len: Optional[int] = None
    flags: Mapping[str, Any] = {}  # noqa: RUF012
    key_given: bool = False
    levels: Tuple[int, ...] = ()
    level_requests: int = 0


def refused(settings: Settings) -> str:
    """Why the declared load cannot be sent, empty when it can."""
    if not 1 <= settings.concurrency <= MOST_STREAMS:
        return "the target of %d streams is outside 1 to %d" % (settings.concurrency, MOST_STREAMS)
    for name, value in (("input", settings.input_tokens), ("output", settings.output_tokens)):
        if not 1 <= value <= MOST_TOKENS:
            return "%d %s tokens is outside 1 to %d" % (value, name, MOST_TOKENS)
    if not 0 <= settings.error_budget < 1:
        return "an error budget of %g is outside 0 to 1" % settings.error_budget
    room = settings.max_model_len
    if room is not None and settings.input_tokens + settings.output_tokens > room:
        return "%d input and %d output tokens do not fit into %d (max_model_len)" % (settings.input_tokens, settings.output_tokens, room)
    return _files(settings.concurrency + 32)


def _files(needed: int) -> str:
    """Raise the limit of open files as far as it goes; why that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard))
    except (OSError, ValueError):
        pass
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return "" if soft >= needed else "this machine allows %d open files, %d are needed (ulimit -n)" % (soft, needed)


def steps_to(target: int) -> List[int]:
    """Numbers of streams from 1 to `target`, at most :data:`STEPS` of them, each about the same factor above the one before."""
    if target <= 1:
        return [1]
    factor = max(2.0, target ** (1.0 / (STEPS - 1)))
    found, at = [1], 1.0
    while True:
        at *= factor
        if round(at) >= target:
            return [*found, target]
        found.append(round(at))


def percentile(values: Sequence[float], share: float) -> Optional[float]:
    """The percentile by linear interpolation, None of nothing. `values` must be sorted."""
    if not values:
        return None
    at = (len(values) - 1) * share / 100.0
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def summary(values: List[float]) -> Dict[str, Optional[float]]:
    """Percentiles and mean in milliseconds."""
    values.sort()
    found: Dict[str, Optional[float]] = {}
    for share in PERCENTILES:
        at = percentile(values, share)
        found["p%d" % share] = None if at is None else round(at * 1000, 3)
    found["mean"] = round(sum(values) / len(values) * 1000, 3) if values else None
    return found


class _Stream:
    """Times of one streamed request."""

    __slots__ = ("first", "gaps", "inputs", "last", "outputs", "parts", "role")

    def __init__(self, keep: bool = False) -> None:
        self.first: Optional[float] = None
        self.last = 0.0
        self.gaps: List[float] = []
        self.inputs = 0
        self.outputs: Optional[int] = None
        """Output tokens as the usage tells them."""
        self.role = False
        self.parts: Optional[List[bytes]] = [] if keep else None

    def take(self, data: bytes, now: float) -> None:
        """One event. Only the first, with the role, and the last, with the usage, are read as JSON: the others are only counted."""
        if _USAGE.search(data):
            self._usage(data)
        if _NO_CHOICE.search(data):
            return
        if not self.role and b'"role"' in data:
            self.role = True
            if not any(value for name, value in _delta(data).items() if name != "role"):
                return
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now
        if self.parts is not None:
            self.parts.append(data)

    def _usage(self, data: bytes) -> None:
        try:
            usage = json.loads(data.decode("utf-8", "replace"))["usage"]
            inputs, outputs = _count(usage["prompt_tokens"]), _count(usage["completion_tokens"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if inputs is not None and outputs is not None:
            self.inputs, self.outputs = inputs, outputs

    @property
    def empty(self) -> bool:
        """Whether not one output token came."""
        return self.first is None or self.outputs == 0

    @property
    def tokens(self) -> int:
        """Output tokens; the events that brought some where the usage does not tell."""
        return len(self.gaps) + (self.first is not None) if self.outputs is None else self.outputs

    def text(self) -> str:
        """What was written, when the parts were kept."""
        return "".join(str(_delta(data).get("content") or "") for data in self.parts or [])


def _delta(data: bytes) -> Mapping[str, Any]:
    """What an event adds to the message, empty when it cannot be read."""
    try:
        found = json.loads(data.decode("utf-8", "replace"))["choices"][0]["delta"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _count(value: Any) -> Optional[int]:
    """A number of tokens out of a usage, None for what cannot be one (1e999 is infinite)."""
    return int(value) if isinstance(value, (int, float)) and 0 <= value <= 10 ** 12 else None


class _Watch:
    """Samples of /metrics while requests run, in the same loop."""

    def __init__(self, loop: Loop, servers: Sequence[Endpoint]) -> None:
        self.loop = loop
        self.servers = servers
        self.next = 0.0
        self.most: Dict[str, float] = {}
        self.first: List[Optional[metrics.Reading]] = [None] * len(servers)
        self.latest: List[Optional[metrics.Reading]] = [None] * len(servers)
        self.asked = 0
        self.waiting = 0
        self.failures = 0
        self.flat = True
        self.busy = False
        self.steady: List[Tuple[float, float]] = []
        """Requests running and waiting, in each sample that was asked for while every stream had a request open."""

    def tick(self, now: float, busy: bool) -> None:
        """Ask when it is time; an unanswered question is not asked again. `busy`: every stream has a request open."""
        if now < self.next or self.waiting or not self.flat:
            return
        self.next = now + SAMPLE_SECONDS
        self.busy = busy
        for position, server in enumerate(self.servers):
            if server.addresses:
                self.waiting += 1
                self.asked += 1
                self.loop.start(
                    server, Request("GET", "/metrics", deadlines=Deadlines(3.0, 5.0, 5.0, 5.0), limit=metrics.TEXT_LIMIT),
                    lambda reply, at=position: self._got(at, reply))  # type: ignore[misc]

    def _got(self, position: int, reply: Reply) -> None:
        self.waiting -= 1
        reading, trouble = metrics.understood(reply.body, reply.trouble)
        if reading is None or trouble is not None:
            self.failures += 1
            return
        self.latest[position] = reading
        if self.first[position] is None:
            self.first[position] = reading
        for name in ("running", "waiting", "kv_usage"):
            values = [r.values[name] for r in self.latest if r is not None and name in r.values]
            if values:
                value = max(values) if name == "kv_usage" else sum(values)
                self.most[name] = max(self.most.get(name, 0.0), value)
        known = [(r.values["running"], r.values["waiting"]) for r in self.latest if r is not None and "running" in r.values and "waiting" in r.values]
        if self.busy and not self.waiting and len(known) == len(self.servers):
            self.steady.append((sum(running for running, _waiting in known), sum(waiting for _running, waiting in known)))

    def waited(self) -> Optional[float]:
        """Share of the samples in which requests waited while about as many ran as ever did; None of fewer than three."""
        if len(self.steady) < 3:
            return None
        # Those that end in a step of the engine no longer count as running.
        full = 0.95 * max(running for running, _waiting in self.steady)
        return round(sum(1 for running, waiting in self.steady if waiting >= 1 and running >= full) / len(self.steady), 3)

    def rose(self, name: str) -> Optional[float]:
        """By how much a counter rose over all servers since the first sample."""
        total = 0.0
        for before, after in zip(self.first, self.latest):
            if before is None or after is None:
                return None
            moved, _why = metrics.difference(before, after, name)
            if moved is None:
                return None
            total += moved
        return total if self.first else None


class Level:
    """One step of the ramp: so many streams, each with a connection that it keeps, starting its next request when one ends.

    Times count from before a request is sent (the first one of a stream connects, too) to the event that brings a token; what ends the
    stream behind its last token (usage, ``[DONE]``) is waited for and not counted.
    """

    def __init__(self, target: Endpoint, servers: Sequence[Endpoint], settings: Settings, streams: int, words: int, until: float) -> None:
        self.target = target
        self.settings = settings
        self.streams = streams
        self.words = words
        self.loop = Loop(keep=True)
        self.watch = _Watch(self.loop, servers)
        self.until = until
        self.started = 0
        self.finished = 0
        self.errors: Dict[str, int] = {}
        self.examples: Dict[str, str] = {}
        self.cut = False
        self.over_budget = False
        self.ttft: List[float] = []
        self.gaps: List[float] = []
        self.per_token: List[float] = []
        self.totals: List[float] = []
        self.inputs = 0
        self.outputs = 0
        self.short = 0
        self.began = 0.0
        self.last_end = 0.0
        self.open: Dict[_Stream, float] = {}
        """Streams without an end yet, and when they were sent."""
        self.due = 0
        self.connections = 0
        self.sending = False

    def run(self) -> Dict[str, Any]:
        """Send, and return the numbers of this step."""
        cpu = time.process_time()
        before = metrics.read(list(self.watch.servers))[0] if self.watch.servers else None
        self.began = self.last_end = time.monotonic()
        self._next(self.streams)
        while self.loop.active and time.monotonic() < self.until and not self._stop():
            self.loop.step(0.1)
        self.cut = True
        left = [] if self.over_budget else [time.monotonic() - sent for sent in self.open.values()]
        wall = max(1e-6, self.last_end - self.began)
        cpu = time.process_time() - cpu
        self.loop.close()
        after = metrics.read(list(self.watch.servers))[0] if self.watch.servers else None
        moved = {}
        for name in ("preemptions", "prefix_hits", "prefix_queries", "rejections"):
            moved[name] = metrics.difference(before, after, name)[0] if before is not None and after is not None else self.watch.rose(name)
        ok = len(self.totals)
        reading = after or before
        return {
            "concurrency": self.streams, "requests": self.finished, "ok": ok, "errors": dict(self.errors), "error_texts": dict(self.examples),
            "connections": self.connections, "seconds": round(wall, 3), "input_tokens": self.inputs, "output_tokens": self.outputs,
            "output_tps": round(self.outputs / wall, 2), "total_tps": round((self.inputs + self.outputs) / wall, 2), "rps": round(ok / wall, 3),
            "ttft_ms": summary(self.ttft), "itl_ms": summary(self.gaps), "tpot_ms": summary(self.per_token), "e2e_ms": summary(self.totals),
            "running_max": self.watch.most.get("running"), "waiting_max": self.watch.most.get("waiting"),
            "kv_usage_max": self.watch.most.get("kv_usage"), "preemptions": moved["preemptions"], "prefix_hits": moved["prefix_hits"],
            "prefix_queries": moved["prefix_queries"], "short_answers": self.short, "client_cpu": round(cpu / wall, 3),
            "over_budget": self.over_budget, "metrics_read": before is not None and after is not None,
            "unanswered": len(left), "unanswered_seconds": round(max(left, default=0.0), 3), "waiting_share": self.watch.waited(),
            "engines": len(self.watch.servers) * _size(self.settings, "data-parallel-size", 1) if reading is None else reading.engine_count(),
        }

    def _stop(self) -> bool:
        if self.open and not self.over_budget:
            self.watch.tick(time.monotonic(), len(self.open) == self.streams)
            return False
        # Only samples of the metrics are left, or what was cut: nothing to wait for.
        return True

    def _more(self) -> bool:
        if self.settings.level_requests:
            return self.started < self.settings.level_requests
        return time.monotonic() - self.began < self.settings.level_seconds

    def _next(self, count: int = 1) -> None:
        """Send `count` requests. One that fails at once is followed by the next from here, so that many in a row need no deep stack."""
        self.due += count
        if self.sending:
            return
        self.sending = True
        while self.due > 0 and not self.over_budget:
            self.due -= 1
            self._send()
        self.sending = False

    def _send(self) -> None:
        settings = self.settings
        body = {
            "model": settings.model, "messages": [{"role": "user", "content": text_of(self.words, secrets.token_hex(6))}],
            "max_tokens": settings.output_tokens, "ignore_eos": True, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        }
        stream = _Stream()
        self.started += 1
        self.open[stream] = time.monotonic()
        limits = Deadlines(10.0, settings.request_seconds, settings.request_seconds, settings.request_seconds)
        self.loop.start(self.target, post(CHAT, body, True, limits), lambda reply: self._done(stream, reply), stream.take)

    def _done(self, stream: _Stream, reply: Reply) -> None:
        del self.open[stream]
        if self.cut:
            return
        self.finished += 1
        self.connections += not reply.reused
        self.last_end = time.monotonic()
        kind, text = _error(stream, reply)
        if kind:
            self.errors[kind] = self.errors.get(kind, 0) + 1
            self.examples.setdefault(kind, text)
            if sum(self.errors.values()) > self.settings.error_budget * max(self.finished, self.streams):
                self.over_budget = True
                return
        else:
            self.totals.append(stream.last)
            if stream.first is not None:
                self.ttft.append(stream.first)
                if stream.tokens > 1:
                    self.per_token.append((stream.last - stream.first) / (stream.tokens - 1))
            self.gaps += stream.gaps
            self.inputs += stream.inputs
            self.outputs += stream.tokens
            if stream.tokens < self.settings.output_tokens:
                self.short += 1
        if self._more():
            self._next()


def _error(stream: _Stream, reply: Reply) -> Tuple[str, str]:
    """Kind and text of what is wrong with an answer, empty when it is right."""
    trouble = reply.trouble
    if trouble is None:
        return (NO_TOKEN, "the stream ended without an output token") if stream.empty else ("", "")
    if trouble.kind == "status":
        return "HTTP %d" % reply.status, trouble.text
    return "timeout at %s" % trouble.point if trouble.kind == "timeout" else trouble.kind, trouble.text


def run(target: Endpoint, servers: Sequence[Endpoint], settings: Settings, progress: Optional[Callable[[str], None]] = None) -> Dict[str, Any]:
    """Stage 4 through `target`, watching `servers`; ends after about ``seconds`` at the latest.

    Returns:
        the stage's result. ``data``: ``levels`` (a table each, times in milliseconds), ``knee``, ``headroom``, ``agents``, the declared load.
    """
    began = time.monotonic()
    where = target.url
    why = refused(settings)
    if why:
        return not_run("concurrency", why)
    data: Dict[str, Any] = {"endpoint": where, "target": settings.concurrency, "input_tokens": settings.input_tokens,
                            "output_tokens": settings.output_tokens, "levels": []}
    target, trouble = resolved(target)
    if trouble is not None:
        return result("concurrency", [broken("concurrency.reach", trouble, where, settings.key_given)], time.monotonic() - began, data)
    known = [s for s, t in (resolved(server) for server in servers) if t is None]
    until = began + settings.seconds
    words, wrong = words_for(target, settings)
    if wrong is not None:
        return result("concurrency", [wrong], time.monotonic() - began, data)
    levels: List[Dict[str, Any]] = data["levels"]
    out_of_time = False
    for streams in settings.levels or steps_to(settings.concurrency):
        if time.monotonic() >= until - 1.0:
            out_of_time = True
            break
        if progress is not None:
            progress("%d streams" % streams)
        level = Level(target, known, settings, streams, words, until)
        levels.append(level.run())
        if levels[-1]["over_budget"]:
            break
        if levels[-1]["unanswered"] or levels[-1]["requests"] < streams:
            out_of_time = True
            break
    data["knee"] = knee(levels)
    findings = judged(settings, levels, out_of_time, where)
    if settings.agents > 0 and not any(f["status"] == "fail" and f["id"] == "concurrency.errors" for f in findings):
        data["agents"] = agent_loop(target, known, settings, until)
        findings += judged_agents(data["agents"], where)
    data["headroom"] = headroom(settings, levels)
    findings += judged_headroom(settings, data["headroom"], where)
    last = levels[-1] if levels else {}
    text = "%s streams: %s tokens/s, first token %s ms, between tokens %s ms (medians)" % (
        last.get("concurrency"), last.get("output_tps"), (last.get("ttft_ms") or {}).get("p50"), (last.get("itl_ms") or {}).get("p50"))
    bad = any(f["status"] in ("fail", "unknown") for f in findings)
    return result("concurrency", findings, time.monotonic() - began, data, "" if bad else text)


def words_for(target: Endpoint, settings: Settings) -> Tuple[int, Optional[Dict[str, Any]]]:
    """Words that make a prompt of the declared length, found by two short requests."""
    lengths = []
    for count in (8, 72):
        body = {"model": settings.model, "messages": [{"role": "user", "content": text_of(count, secrets.token_hex(6))}], "max_tokens": 1, "temperature": 0}
        limit = min(60.0, settings.request_seconds)
        reply = call(target, post(CHAT, body, False, Deadlines(5.0, limit, limit, limit)))
        found, trouble = reply.json()
        if trouble is not None:
            return 0, broken("concurrency.reach", trouble, target.url, settings.key_given, reply.status)
        usage = found.get("usage") if isinstance(found, dict) else None
        prompt = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        lengths.append(_count(prompt) or 0)
    a_word = (lengths[1] - lengths[0]) / 64.0
    if a_word <= 0:
        return 0, finding("concurrency.reach", "fail", "the replies do not tell the tokens of a prompt", "usage.prompt_tokens", where=target.url)
    fixed = lengths[0] - 8 * a_word
    return max(1, int((settings.input_tokens - fixed) / a_word)), None


def knee(levels: Sequence[Mapping[str, Any]]) -> Optional[int]:
    """The number of streams from which on every step up gives little more; None when throughput still grows at the last step.

    From one step to another n times as large, throughput must grow by at least n to the power of :data:`KNEE_POWER`.
    """
    good = [lv for lv in levels if not lv["over_budget"] and lv["output_tps"] > 0]
    for position, at in enumerate(good[:-1]):
        if all(lv["output_tps"] / at["output_tps"] < (lv["concurrency"] / at["concurrency"]) ** KNEE_POWER for lv in good[position + 1:]):
            return int(at["concurrency"])
    return None


def headroom(settings: Settings, levels: Sequence[Mapping[str, Any]]) -> Dict[str, Optional[float]]:
    """What is left at the target: shares of the KV cache and of the time bounds, 0 to 1; None where it is not known."""
    at = next((lv for lv in levels if lv["concurrency"] == settings.concurrency and not lv["over_budget"] and not lv["unanswered"]), None)
    found: Dict[str, Optional[float]] = {"kv": None, "ttft": None, "itl": None, "throughput": None}
    if at is None:
        return found
    if at["kv_usage_max"] is not None:
        found["kv"] = round(max(0.0, 1 - at["kv_usage_max"]), 3)
    for name, bound in (("ttft", settings.ttft_ms), ("itl", settings.itl_ms)):
        seen = at["%s_ms" % name]["p95"]
        if bound and seen is not None:
            found[name] = round(1 - seen / bound, 3)
    best = max(lv["output_tps"] for lv in levels)
    if best > 0:
        found["throughput"] = round(at["output_tps"] / best, 3)
    return found


def judged_headroom(settings: Settings, room: Mapping[str, Optional[float]], where: str) -> List[Dict[str, Any]]:
    """What is left at the target, in words; nothing when it was not reached or nothing is known."""
    parts = []
    if room["kv"] is not None:
        parts.append("%d %% of the KV cache" % round(100 * room["kv"]))
    for name, word in (("ttft", "first token"), ("itl", "time between tokens")):
        left = room[name]
        if left is not None:
            parts.append("%d %% of the bound of the %s" % (max(0, round(100 * left)), word))
    if not parts:
        return []
    return [finding("concurrency.headroom", "info", "left at %d streams: %s" % (settings.concurrency, ", ".join(parts)), where=where)]


def judged(settings: Settings, levels: Sequence[Mapping[str, Any]], out_of_time: bool, where: str) -> List[Dict[str, Any]]:
    """The findings of a ramp."""
    found: List[Dict[str, Any]] = []
    if not levels:
        return [finding("concurrency.target", "unknown", "no step was finished within %g s" % settings.seconds, where=where,
                        fix="give the stage more time (verify_ramp_seconds)")]
    last = levels[-1]
    reached = last["concurrency"] == settings.concurrency and not last["over_budget"]
    failed = sum(last["errors"].values())
    if last["over_budget"]:
        kinds = ", ".join("%d × %s" % (count, kind) for kind, count in sorted(last["errors"].items(), key=lambda item: -item[1]))
        text = next(iter(last["error_texts"].values()), "")
        found.append(finding(
            "concurrency.errors", "fail", "at %d streams %d of %d requests failed: %s (%s)" % (
                last["concurrency"], failed, last["requests"], kinds, text),
            "at most %g %% errors" % (100 * settings.error_budget), where=where, why="users see these errors at this load",
            fix="read the log of vllm.service at this time; stage 1 tells whether a process restarted"))
    elif out_of_time:
        text = "time was up at %d of %d streams" % (last["concurrency"], settings.concurrency)
        if last["unanswered"]:
            text += ", %d requests unanswered, the oldest for %.1f s" % (last["unanswered"], last["unanswered_seconds"])
        found.append(finding("concurrency.target", "unknown", text, "%d streams" % settings.concurrency, where=where,
                             fix="give the stage more time (verify_ramp_seconds)"))
    elif reached:
        found.append(finding(
            "concurrency.target", "pass", "%d streams, %d requests, %s output tokens/s" % (last["concurrency"], last["ok"], last["output_tps"]),
            "%d streams" % settings.concurrency, where=where))
        errors = sum(sum(lv["errors"].values()) for lv in levels)
        sent = sum(lv["requests"] for lv in levels)
        found.append(finding("concurrency.errors", "pass" if not errors else "warn", "%d of %d requests failed" % (errors, sent),
                             "at most %g %%" % (100 * settings.error_budget), where=where))
    else:
        found.append(finding("concurrency.target", "unknown", "the last step had %d streams" % last["concurrency"], "%d streams" % settings.concurrency,
                             where=where, why="the declared load was not sent", fix="let the steps (levels) end with the target"))
    found += _resources(settings, last, where)
    if reached:
        for name, bound, word in (("ttft", settings.ttft_ms, "time to the first token"), ("itl", settings.itl_ms, "time between tokens")):
            seen = last["%s_ms" % name]["p95"]
            # When time was up a bound may be broken already, and is not held yet.
            if bound is not None and not (out_of_time and (seen is None or seen <= bound)):
                bad = seen is None or seen > bound
                found.append(finding("concurrency.%s" % name, "fail" if bad else "pass", "%s ms (95th percentile of the %s)" % (seen, word),
                                     "at most %g ms" % bound, "users wait longer than declared" if bad else "",
                                     "lower the target for each replica, or add replicas" if bad else "", where))
    bend = knee(levels)
    if bend is not None:
        found.append(finding("concurrency.knee", "info", "beyond %d streams throughput hardly grows" % bend, where=where,
                             why="more streams then only wait longer"))
    if last["short_answers"] and not last["over_budget"]:
        found.append(finding("concurrency.lengths", "warn", "%d answers were shorter than %d tokens" % (last["short_answers"], settings.output_tokens),
                             where=where, why="the server ends answers before max_tokens, so the load was lighter than declared"))
    if last["client_cpu"] > CLIENT_LIMIT:
        found.append(finding("concurrency.client", "warn", "the client used %d %% of a core" % (100 * last["client_cpu"]), where=where,
                             why="the client itself may bound what was measured", fix="run verify from another machine (verify_from)"))
    return found


def _resources(settings: Settings, last: Mapping[str, Any], where: str) -> List[Dict[str, Any]]:
    found = _slots(settings, last, where)
    streams = last["concurrency"]
    if not last["metrics_read"] and last["running_max"] is None:
        return [*found, finding("concurrency.metrics", "warn", "no metrics of vLLM", where=where, fix="let verify read /metrics (verify_endpoints)",
                                why="whether requests waited or were preempted is not known")]
    preempted = last["preemptions"]
    if preempted is None:
        found.append(finding("concurrency.preemptions", "warn", "not known: the counter is missing, no number, or was reset", where=where))
    elif preempted > settings.max_preemptions:
        found.append(finding(
            "concurrency.preemptions", "fail", "%d preemptions at %d streams, KV cache at most %s full" % (preempted, streams, _share(last["kv_usage_max"])),
            "at most %d" % settings.max_preemptions, where=where, why="the KV cache does not hold this load: requests are thrown out and computed again",
            fix="give the KV cache more memory, shorten the context, or lower --max-num-seqs"))
    else:
        found.append(finding("concurrency.preemptions", "pass", "%d, KV cache at most %s full" % (preempted, _share(last["kv_usage_max"])),
                             "at most %d" % settings.max_preemptions, where=where))
    return found


def _slots(settings: Settings, last: Mapping[str, Any], where: str) -> List[Dict[str, Any]]:
    """Whether as many requests as declared can run at once: by --max-num-seqs, else by what ran while others waited."""
    target, limit, engines = settings.concurrency, _size(settings, "max-num-seqs", 0), last["engines"]
    seats = limit * engines or None
    running, waiting = (last["running_max"], last["waiting_max"]) if last["concurrency"] == target else (None, None)
    short = seats is not None and seats < target and (running or 0) <= seats
    full = False
    if running is not None and waiting and running < target:
        # With seats left and room in the KV cache it is the scheduler that lets long prompts wait for their turn.
        capped = seats is None or (last["kv_usage_max"] or 0) >= KV_FULL
        full = (running < 0.8 * target <= running + waiting) or (capped and (last["waiting_share"] or 0) > 0.5)
    if not short and not full:
        return []
    parts = [] if running is None else ["at most %d of %d requests ran at once, %d waited" % (running, target, waiting or 0)]
    if limit:
        parts.append("--max-num-seqs %d%s" % (limit, " with %d engines" % engines if engines > 1 else ""))
    return [finding(
        "concurrency.slots", "fail", "; ".join(parts), "%d at once" % target, where=where,
        why="the server takes fewer requests at once than declared: --max-num-seqs is too small, or the KV cache holds no more",
        fix="raise --max-num-seqs, or declare the smaller target (verify_concurrency)")]


def _size(settings: Settings, flag: str, default: int) -> int:
    """The number that a planned flag gives, `default` when it gives none."""
    return whole_number(str(settings.flags.get(flag, ""))) or default


def _share(value: Optional[float]) -> str:
    return "?" if value is None else "%d %%" % round(100 * value)


def agent_loop(target: Endpoint, servers: Sequence[Endpoint], settings: Settings, until: float) -> Dict[str, Any]:
    """Sessions that ask again and again with all that was said before, as agents do.

    Returns:
        ``turns``: for each turn the number of answers, prompt tokens and the median time to the first token; ``errors`` by kind;
        ``unanswered``: sessions that were not at their end when the time of the stage was up; ``hit_share``: tokens out of the prefix cache,
        None when the counters do not say.
    """
    sessions = min(settings.agents, settings.concurrency)
    turns = max(1, min(64, settings.turns))
    words, wrong = words_for(target, settings._replace(
        input_tokens=max(32, settings.input_tokens // turns), request_seconds=min(settings.request_seconds, max(0.1, until - time.monotonic()))))
    found: Dict[str, Any] = {"sessions": sessions, "turns": [], "errors": {}, "unanswered": 0, "hit_share": None}
    if time.monotonic() >= until:
        found["unanswered"] = sessions
        return found
    if wrong is not None:
        found["errors"][wrong["observed"]] = 1
        return found
    salt = secrets.token_hex(6)
    system = {"role": "system", "content": text_of(words, salt)}
    before = metrics.read(list(servers))[0] if servers else None
    ttft: List[List[float]] = [[] for _turn in range(turns)]
    inputs: List[List[int]] = [[] for _turn in range(turns)]
    loop = Loop(keep=True)
    limits = Deadlines(10.0, settings.request_seconds, settings.request_seconds, settings.request_seconds)

    def ask(history: List[Dict[str, str]], turn: int) -> None:
        history.append({"role": "user", "content": text_of(words, secrets.token_hex(4))})
        body = {"model": settings.model, "messages": list(history), "max_tokens": settings.output_tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        stream = _Stream(keep=True)

        def done(reply: Reply) -> None:
            kind, _text = _error(stream, reply)
            if kind:
                found["errors"][kind] = found["errors"].get(kind, 0) + 1
                return
            if stream.first is not None:
                ttft[turn].append(stream.first)
            inputs[turn].append(stream.inputs)
            history.append({"role": "assistant", "content": stream.text() or "-"})
            room = settings.max_model_len
            if turn + 1 < turns and (room is None or 2 * stream.inputs + settings.output_tokens < room):
                ask(history, turn + 1)

        loop.start(target, post(CHAT, body, True, limits), done, stream.take)

    for _session in range(sessions):
        ask([system], 0)
    while loop.active and time.monotonic() < until:
        loop.step(0.1)
    found["unanswered"] = len(loop.active)
    loop.close()
    after = metrics.read(list(servers))[0] if servers else None
    if before is not None and after is not None:
        hits, queries = metrics.difference(before, after, "prefix_hits")[0], metrics.difference(before, after, "prefix_queries")[0]
        if hits is not None and queries:
            found["hit_share"] = round(hits / queries, 4)
    for turn in range(turns):
        if inputs[turn]:
            found["turns"].append({"turn": turn + 1, "answers": len(inputs[turn]), "prompt_tokens": round(sum(inputs[turn]) / len(inputs[turn])),
                                   "ttft_ms": summary(ttft[turn])["p50"]})
    return found


def judged_agents(found: Mapping[str, Any], where: str) -> List[Dict[str, Any]]:
    """The findings of the agent loop."""
    errors = sum(found["errors"].values())
    if errors:
        return [finding("concurrency.agents", "fail", "%d of the sessions failed: %s" % (errors, ", ".join(found["errors"])), "no error", where=where,
                        why="agents lose their work")]
    if found["unanswered"]:
        return [finding("concurrency.agents", "unknown", "time was up while %d of %d sessions waited for an answer" % (
            found["unanswered"], found["sessions"]), "no error", where=where, fix="give the stage more time (verify_ramp_seconds)")]
    last = found["turns"][-1] if found["turns"] else {}
    share = "" if found["hit_share"] is None else ", %d %% of the prompt tokens out of the cache" % round(100 * found["hit_share"])
    return [finding("concurrency.agents", "pass", "%d sessions, %s turns, %s prompt tokens at the end%s" % (
        found["sessions"], last.get("turn"), last.get("prompt_tokens"), share), where=where)]
