# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 3: does a long shared prefix really come out of the cache? Judged by counters of tokens, never by time."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import metrics
from .client import Deadlines, Endpoint, call, post, resolved
from .requests import CHAT, broken
from .result import finding, result
from .wire import Trouble, whole_number

WORKING, NOT_ENABLED, DIFFERS, NOT_RETAINED, CANNOT_TELL, TOO_SHORT = (
    "working", "not enabled", "prefix differs", "not retained", "cannot tell", "too short")
"""The verdicts. `too short` is said only when a length of the shared prefix was declared that no block fits in."""

LEAST_PREFIX = 320
"""Tokens of the shared prefix at least, also when the block is small."""
MOST_PREFIX = 4 * 1024 * 1024
"""Tokens of the shared prefix at most, when no max_model_len says less."""
MOST_TOKENS = 10 ** 9
"""A count of tokens in a reply that is larger is none."""
MOST_ENGINES = 32
"""Engines behind one endpoint up to which requests are repeated until two must have met the same engine."""
SETTLE_SECONDS = 3.0

_WORDS = ("water", "stone", "river", "table", "green", "seven", "house", "light", "paper", "north", "sugar", "clock", "bread", "metal",
          "music", "plant")


class Settings(NamedTuple):
    """How stage 3 is run.

    tokens: length of the prefix that the application shares, 0 to choose one that must work. filler_tokens: tokens of other prompts that
    are sent between the first request and the next, as other users would. flags: ``vllm serve`` flags of the plan, for what /metrics does
    not say. bodies: two chat requests of the application itself, whose shared prefix is to be looked at instead of ours.
    """

    model: str
    max_model_len: Optional[int] = None
    tokens: int = 0
    filler_tokens: int = 0
    seconds: float = 60.0
    flags: Mapping[str, Any] = {}  # noqa: RUF012
    bodies: Tuple[Mapping[str, Any], ...] = ()
    key_given: bool = False


class Step(NamedTuple):
    """One request and what the counters say of it. Tokens; None where it was not told, 0 for `prompt`."""

    name: str
    prompt: int
    queries: Optional[float]
    hits: Optional[float]
    cached: Optional[int]
    seconds: float
    ids: Tuple[int, ...]
    trouble: Optional[Trouble]
    note: str = ""

    @property
    def alone(self) -> Optional[bool]:
        """Whether the counters moved by this request alone; None when they do not say."""
        if self.queries is None or not self.prompt:
            return None
        return max(self.queries, self.hits or 0.0) <= self.prompt

    def found(self) -> Optional[float]:
        """Tokens of this request that came out of the cache: what the reply says, else the counter when nothing else ran."""
        if self.cached is not None:
            return float(self.cached)
        return self.hits if self.alone else None

    def asdict(self) -> Dict[str, Any]:
        return {"request": self.name, "prompt_tokens": self.prompt, "queried": self.queries, "hit": self.hits, "cached_tokens": self.cached,
                "seconds": round(self.seconds, 4), "other_traffic": self.alone is False}


class Verdict(NamedTuple):
    """The answer, with the sentences that carry it."""

    verdict: str
    observed: str
    why: str
    fix: str


def run(target: Endpoint, servers: Sequence[Endpoint], settings: Settings) -> Dict[str, Any]:
    """Stage 3 through `target`, with the counters of `servers` (the API servers behind it).

    Returns:
        the stage's result; ``data`` holds the verdict, every step, block and prefix in tokens, and latencies that nothing was judged by.
    """
    began = time.monotonic()
    where = target.url
    data: Dict[str, Any] = {"endpoint": where, "steps": []}
    target, trouble = resolved(target)
    if trouble is not None:
        return result("prefix", [broken("prefix.reach", trouble, where, settings.key_given)], time.monotonic() - began, data)
    known: List[Endpoint] = []
    for server in servers or [target]:
        known.append(resolved(server)[0])
    reading, unread = metrics.read(known)
    data["caching"] = reading.caching() if reading else None
    block = (reading.block() if reading else None) or _flag_number(settings.flags, "block-size")
    data["block"] = block
    retention = (reading.retention() if reading else 0) or _flag_number(settings.flags, "prefix-cache-retention-interval") or 0
    probe = _Probe(target, known, settings, reading)
    if settings.bodies:
        steps, verdict = _own_bodies(probe, block)
    else:
        steps, verdict = _ours(probe, block, retention, data)
    data["steps"] = [step.asdict() for step in steps]
    data["verdict"] = verdict.verdict
    data["latency"] = {step.name: round(step.seconds, 4) for step in steps}
    return result("prefix", _findings(verdict, steps, reading, unread, probe, where), time.monotonic() - began, data,
                  "%s: %s" % (verdict.verdict, verdict.observed))


def _findings(verdict: Verdict, steps: Sequence[Step], reading: Optional[metrics.Reading], unread: Optional[Trouble], probe: _Probe,
              where: str) -> List[Dict[str, Any]]:
    status = {WORKING: "pass", CANNOT_TELL: "unknown"}.get(verdict.verdict, "fail")
    if probe.failed is not None:
        status = "fail"
    found = [finding("prefix.verdict", status, "%s: %s" % (verdict.verdict, verdict.observed), WORKING, verdict.why, verdict.fix, where)]
    if reading is None:
        found.append(finding("prefix.metrics", "warn", unread.text if unread else "not read", "vLLM's counters", where=where,
                             why="without the counters only the reply's own cached tokens can say it",
                             fix="let verify read /metrics of every API server (verify_endpoints)"))
    elif reading.broken:
        found.append(finding("prefix.metrics", "warn", "no number: %s" % ", ".join(reading.broken), "numbers", where=where,
                             why="a counter that is NaN says nothing"))
    elif any(step.alone is False for step in steps):
        found.append(finding("prefix.traffic", "info", "other requests ran at the same time", where=where,
                             why="the counters are those of all requests; the reply's own cached tokens were used where they are reported"))
    return found


class _Probe:
    """Sends requests and reads the counters around each."""

    def __init__(self, target: Endpoint, servers: List[Endpoint], settings: Settings, reading: Optional[metrics.Reading]) -> None:
        self.target = target
        self.servers = servers
        self.settings = settings
        self.reading = reading
        self.failed: Optional[Trouble] = None
        self.ids_known = True

    def send(self, name: str, body: Mapping[str, Any], count: bool = True) -> Step:
        """One request; with `count` the counters before and after it."""
        before = metrics.read(self.servers)[0] if count and self.reading is not None else None
        sent = dict(body, model=self.settings.model, max_tokens=1, temperature=0, stream=False)
        sent.pop("stream_options", None)
        if self.ids_known:
            sent["return_token_ids"] = True
        limits = Deadlines(5.0, self.settings.seconds, self.settings.seconds, self.settings.seconds)
        reply = call(self.target, post(CHAT, sent, False, limits))
        if reply.status in (400, 422) and self.ids_known:
            # Another frontend may not know the field.
            self.ids_known = False
            sent.pop("return_token_ids")
            reply = call(self.target, post(CHAT, sent, False, limits))
        found, trouble = reply.json()
        if trouble is not None:
            self.failed = self.failed or trouble
            return Step(name, 0, None, None, None, reply.end or 0.0, (), trouble)
        usage = found.get("usage") if isinstance(found, dict) else None
        usage = usage if isinstance(usage, dict) else {}
        prompt = _tokens(usage.get("prompt_tokens"), MOST_TOKENS) or 0
        details = usage.get("prompt_tokens_details")
        cached = _tokens(details.get("cached_tokens"), prompt) if isinstance(details, dict) else None
        ids = found.get("prompt_token_ids") if isinstance(found, dict) else None
        ids = tuple(i for i in ids if isinstance(i, int)) if isinstance(ids, list) else ()
        queries = hits = None
        note = ""
        if before is not None:
            queries, hits, note = self._moved(before, prompt)
        return Step(name, prompt, queries, hits, cached, reply.end or 0.0, ids, None, note)

    def _moved(self, before: metrics.Reading, prompt: int) -> Tuple[Optional[float], Optional[float], str]:
        """How far the counters moved; waits a little until they show the request."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            after = metrics.read(self.servers)[0]
            if after is None:
                return None, None, "/metrics could not be read again"
            queries, why = metrics.difference(before, after, "prefix_queries")
            hits, why_not = metrics.difference(before, after, "prefix_hits")
            external, _why = metrics.difference(before, after, "external_hits")
            if queries is None or queries >= prompt or time.monotonic() >= until:
                # What a connector brought from elsewhere counts as found, too.
                return queries, None if hits is None else hits + (external or 0.0), why or why_not
            if queries == 0 and after.caching() is False:
                return queries, hits, ""
            time.sleep(0.05)


def _tokens(value: Any, most: int) -> Optional[int]:
    """A count of tokens out of JSON; None when it can be none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def text_of(count: int, salt: str) -> str:
    """About `count` words that no cache can hold: the salt comes first, and again inside."""
    words = [salt]
    state = sum(salt.encode()) + 1
    for number in range(count):
        state = (state * 1103515245 + 12345) % 2147483648
        words.append(_WORDS[(state >> 16) % len(_WORDS)] if number % 50 else salt)
    return " ".join(words)


def conversation(system: str, user: str) -> Dict[str, Any]:
    """A chat request of one system and one user message."""
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    length = 0
    for a, b in zip(one, other):
        if a != b:
            break
        length += 1
    return length


def _ours(probe: _Probe, block: Optional[int], retention: int, data: Dict[str, Any]) -> Tuple[List[Step], Verdict]:
    settings, reading = probe.settings, probe.reading
    salt = secrets.token_hex(6)
    # Two short requests tell how many tokens a word takes, and how many the template adds.
    short = probe.send("measure 1", conversation(text_of(8, secrets.token_hex(6)), "1"), count=False)
    longer = probe.send("measure 2", conversation(text_of(72, secrets.token_hex(6)), "1"), count=False)
    if short.trouble is not None or longer.trouble is not None:
        return [], _failed(probe)
    a_word = (longer.prompt - short.prompt) / 64.0
    # A word of ours is a token at least.
    if not short.prompt or a_word < 0.5:
        return [], Verdict(CANNOT_TELL, "the replies do not tell the tokens of a prompt", "usage.prompt_tokens is missing or does not grow",
                           "look at what the router does with the field usage")
    step = max(block or 16, retention)
    wanted = settings.tokens or max(2 * step + step // 2, LEAST_PREFIX)
    # Off the boundary: early builds missed a prefix that ended exactly on one.
    if wanted % step == 0:
        wanted += max(1, step // 2)
    data["prefix_tokens"] = wanted
    room = min(settings.max_model_len or MOST_PREFIX, MOST_PREFIX)
    if wanted + 64 > room:
        bound = " (max_model_len)" if room == settings.max_model_len else ""
        return [], Verdict(CANNOT_TELL, "a prefix of %d tokens does not fit into %d%s" % (wanted, room, bound),
                           "the block of %d tokens leaves no room for a prefix that could be found again" % step, "raise --max-model-len")
    template = max(0, int(short.prompt - 8 * a_word))
    words = max(1, int((wanted - min(template, wanted // 2)) / a_word))
    system = text_of(words, salt)
    first = probe.send("first", conversation(system, "Tell me one thing. " + salt[:3]))
    steps = [first]
    if first.trouble is not None:
        return steps, _failed(probe)
    if settings.filler_tokens > 0:
        filled = _fill(probe, settings.filler_tokens, a_word, room)
        data["filler_tokens"] = filled
        if probe.failed is not None:
            return steps, _failed(probe)
    engines = reading.engine_count() if reading is not None else 1
    most = min(engines, MOST_ENGINES)
    for number in range(most):
        tail = "What do you say to the number %d? Answer in %d words, please." % (number * 37 + 11, number + 3)
        steps.append(probe.send("same prefix %d" % (number + 1), conversation(system, tail)))
        if steps[-1].trouble is not None:
            return steps, _failed(probe)
        if (steps[-1].found() or 0) > 0:
            break
    changed = probe.send("changed system message", conversation("Changed %s. " % secrets.token_hex(4) + system, "Tell me one thing."))
    steps.append(changed)
    if changed.trouble is not None:
        return steps, _failed(probe)
    verdict = judge(steps, block, step, reading.caching() if reading else None, wanted, bool(settings.tokens), settings.filler_tokens)
    if verdict.verdict in (NOT_RETAINED, CANNOT_TELL) and not first.ids and not settings.filler_tokens:
        # Without token ids: does the very same request hit? If not even that, something changes it on the way, or nothing stays.
        again = probe.send("the same again", conversation(system, "Tell me one thing. " + salt[:3]))
        steps.append(again)
        if again.trouble is None and again.prompt and again.prompt != first.prompt:
            verdict = Verdict(DIFFERS, "the same request had %d tokens, then %d" % (first.prompt, again.prompt),
                              "something between here and the engine adds text that changes", "look for a session id or a time in what the router adds")
    return steps, verdict


def _own_bodies(probe: _Probe, block: Optional[int]) -> Tuple[List[Step], Verdict]:
    """The application's own requests, as they are."""
    steps = [probe.send("application %d" % (number + 1), body) for number, body in enumerate(probe.settings.bodies[:4])]
    if any(step.trouble is not None for step in steps) or len(steps) < 2:
        return steps, _failed(probe)
    verdict = judge([*steps, steps[0]._replace(name="none", cached=0, hits=0.0)], block, block or 16,
                    probe.reading.caching() if probe.reading else None, 0, True, 0)
    if verdict.verdict in (WORKING, NOT_RETAINED):
        texts = [_written(body) for body in probe.settings.bodies[:2]]
        shared, rest = common(texts[0], texts[1]), resemblance(texts[0], texts[1])
        if shared < 0.5 * min(map(len, texts)) and rest > 0.5:
            verdict = Verdict(
                DIFFERS, "the two requests share only their first %d characters, though %d %% of what follows is the same (%s)" % (
                    shared, 100 * rest, verdict.observed), "a prefix is shared only up to the first token that differs",
                "move what changes (a session id, a time) behind what stays the same: %r" % bytes(texts[0][shared:shared + 40]).decode("utf-8", "replace"))
    return steps, verdict


def _written(body: Mapping[str, Any]) -> bytes:
    """All messages of a request as they follow each other."""
    return json.dumps(body.get("messages"), ensure_ascii=False, sort_keys=True).encode("utf-8", "replace")


def resemblance(one: bytes, other: bytes, width: int = 24) -> float:
    """Share, 0 to 1, of what follows the common beginning of `one` that stands in `other` as well."""
    start = common(one, other)
    rest = one[start:]
    pieces = [rest[at:at + width] for at in range(0, max(0, len(rest) - width), width)]
    return sum(piece in other for piece in pieces) / len(pieces) if pieces else 0.0


def _fill(probe: _Probe, tokens: int, a_word: float, room: int) -> int:
    """Prompts of other users, about `tokens` tokens in all."""
    each = max(64, min(4096, room - 64, tokens))
    sent = 0
    while sent < tokens and sent < 100 * each:
        one = probe.send("filler", conversation(text_of(max(1, int(each / a_word)), secrets.token_hex(6)), "1"), count=False)
        if one.trouble is not None:
            break
        sent += max(1, one.prompt)
    return sent


def _failed(probe: _Probe) -> Verdict:
    trouble = probe.failed
    text = trouble.text if trouble is not None else "too few requests"
    return Verdict(CANNOT_TELL, "a request failed: %s" % text, "no cache can be judged by requests that fail", "see stage 2")


def judge(steps: Sequence[Step], block: Optional[int], reach: int, caching: Optional[bool], wanted: int, declared: bool,
          filler: int) -> Verdict:
    """The verdict of the first request, those with the same prefix, and the changed one (the last).

    Args:
        steps: in the order in which they were sent.
        block: tokens of a block, None when it is not known. reach: tokens that a prefix must have to be found again.
        caching: what the server says of itself. wanted: tokens of the prefix that was sent.
        declared: whether that length is the application's own. filler: tokens of other prompts in between.
    """
    first, same, changed = steps[0], list(steps[1:-1]), steps[-1]
    if caching is False:
        return Verdict(NOT_ENABLED, "cache_config_info says enable_prefix_caching=False", "the engine keeps no prefix at all",
                       "start vllm serve with --enable-prefix-caching")
    if not all(s.prompt for s in steps):
        return Verdict(CANNOT_TELL, "a reply does not tell the tokens of its prompt", "usage.prompt_tokens is missing or no number of tokens",
                       "look at what the router does with the field usage")
    shared = min([common(first.ids, s.ids) for s in same if s.ids and first.ids] or [-1])
    found = [s.found() for s in same]
    best = max([f for f in found if f is not None] or [0.0])
    control = changed.found() or 0.0
    whole = (wanted or 0) // max(1, reach) * reach
    if 0 <= shared < 0.8 * wanted and best > control and not declared:
        return Verdict(DIFFERS, "only the first %d of about %d tokens of the same text reached the engine as the same (%d came out of the cache)" % (
            shared, wanted, best), "a prefix is shared only up to the first token that differs",
            "look at that place for a session id, a time or another order of tools that the client or the router puts in")
    if control < best < 0.5 * whole and shared < 0:
        return Verdict(CANNOT_TELL, "only %d of about %d shared tokens came out of the cache" % (best, wanted),
                       "the rest was changed on the way or was gone, and the server does not report its token ids",
                       "ask an API server directly (verify_endpoints) and compare")
    if best > 0 and best > control:
        share = 100.0 * best / max(1, max(s.prompt for s in same))
        return Verdict(WORKING, "%d of %d tokens of a request with the same prefix came out of the cache (%d %%), %d with a changed one" % (
            best, max(s.prompt for s in same), share, control), "counters of tokens say so", "")
    if best > 0:
        return Verdict(CANNOT_TELL, "a changed system message hit as many tokens (%d) as the same one (%d)" % (control, best),
                       "the hits are of text that the template puts before every request", "let the stage use a longer prefix (verify_prefix_tokens)")
    moved = [s.queries for s in steps if s.queries is not None]
    reported = any(s.cached is not None for s in steps)
    if moved and not any(moved) and caching is None:
        return Verdict(NOT_ENABLED, "the counter of queried tokens does not move", "an engine without prefix caching counts no queries",
                       "start vllm serve with --enable-prefix-caching")
    if 0 <= shared < min(reach, wanted or reach) and not (declared and wanted and shared >= wanted // 2 and wanted < reach):
        return Verdict(DIFFERS, "at token %d of %d the prompts that reached the engine differ, though the same text was sent" % (
            shared, max(s.prompt for s in same)) if not declared or wanted else "the two requests share only their first %d tokens" % shared,
            "a prefix is shared only up to the first token that differs",
            "look at that place for a session id, a time or another order of tools that the client or the router puts in")
    if declared and wanted and wanted < reach:
        return Verdict(TOO_SHORT, "a shared prefix of %d tokens, a block of %d" % (wanted, reach),
                       "state is kept only at the end of a block, so this prefix can never be found again",
                       "share at least %d tokens, or set a smaller --block-size where the model allows it" % (reach + 1))
    if not moved and not reported:
        why = next((s.note for s in steps if s.note), "") or "neither counters nor cached tokens were to be had"
        return Verdict(CANNOT_TELL, why, "only counters tell a cache hit", "let verify read /metrics (verify_endpoints), or set --enable-prompt-tokens-details")
    if any(f is None for f in found):
        return Verdict(CANNOT_TELL, "other requests ran at the same time, and replies do not report cached tokens",
                       "the counters are those of all requests together", "set --enable-prompt-tokens-details, or run the stage at a quiet time")
    lengths = {s.prompt for s in same}
    if shared < 0 and wanted and declared is False and any(abs(s.prompt - first.prompt) > 200 for s in same):
        return Verdict(DIFFERS, "prompts of almost the same text had %d and %s tokens" % (first.prompt, ", ".join(map(str, sorted(lengths)))),
                       "something between here and the engine adds text that changes", "look for a session id or a time in what the router adds")
    if block is None and not (declared and wanted):
        return Verdict(CANNOT_TELL, "nothing was found, and the server does not tell the tokens of its block", "a hybrid model keeps state only at the end "
                       "of a block, which can be longer than what was shared", "set verify_prefix_tokens to more than two blocks (the server's log names them)")
    after = " after %d tokens of other prompts" % filler if filler else ""
    return Verdict(NOT_RETAINED, "%s tokens are shared, yet nothing was found%s" % (shared if shared >= 0 else "about %d" % wanted, after),
                   "the blocks were gone before the next request came: the KV cache is too small for the traffic, or something resets it"
                   if shared >= 0 else "the blocks were gone, or the request is changed on the way (the server does not report its token ids)",
                   "give the KV cache more memory, let fewer requests share it, or route a session always to the same server")


def _flag_number(flags: Mapping[str, Any], name: str) -> Optional[int]:
    value = flags.get(name)
    number = whole_number(str(value), 8)
    return number if number is not None and number < 10 ** 8 else None


def bodies(text: str) -> Tuple[Dict[str, Any], ...]:
    """Chat requests out of a JSON text: one request a line, or a list of them.

    Raises:
        ValueError: the text holds no two chat requests; it is one sentence.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise ValueError("the requests of the application are not JSON") from None
    listed = found if isinstance(found, list) else [found]
    good = tuple(one for one in listed if isinstance(one, dict) and isinstance(one.get("messages"), list) and one["messages"])
    if len(good) < 2:
        raise ValueError("the requests of the application: two chat requests with messages are needed, %d found" % len(good))
    return good
