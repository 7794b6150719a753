# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why the prefix cache does not hit: a diagnosis of its own, from what runs, its counters and two requests; never from latency.

The cache works on whole blocks from the first token on: two prompts share only what is equal up to the first difference, rounded
down to blocks, and only while the blocks (and, on models with state layers, the state at a block's end) are kept.
https://docs.vllm.ai/en/latest/design/prefix_caching.html
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

Tokenizer = Callable[[str], List[int]]

BYTES_PER_TOKEN = 4.0
"""Rule of thumb for English text where no tokenizer is given."""
VOLATILE = (
    ("time stamp", re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2})?|\b\d{1,2}:\d{2}(?::\d{2})?\b|\b1[6-9]\d{8}(?:\d{3})?\b")),
    (
        "identifier",
        re.compile(
            r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|"
            r"\b(?:sess|session|req|request|trace|user|conv|chat|run)[-_]?(?:id)?[-_:= ]{1,3}[\w-]{4,64}|\b[0-9a-f]{16,64}\b"
        ),
    ),
    ("random number", re.compile(r"\b\d{6,20}\b")),
)
"""What callers put at the head of prompts and what differs in every request."""


class Difference(NamedTuple):
    """Where two requests differ first, in the text that becomes the prompt."""

    part: str
    place: int
    offset: int
    byte: int
    token: int
    exact: bool
    kind: str
    ours: str
    theirs: str


def parts(body: Any) -> List[Tuple[str, str]]:
    """The prompt of a request body in the order in which chat templates render it: tools, then messages (system first), or the raw prompt.

    Args:
        body: the decoded JSON of a request to ``/v1/chat/completions`` or ``/v1/completions``.

    Returns:
        ``[(name, text)]``; names are ``tools``, ``messages[0] (system)``, ``prompt`` …; empty for what is no request.
    """
    if not isinstance(body, dict):
        return []
    found: List[Tuple[str, str]] = []
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        prompt = json.dumps(prompt)
    if isinstance(prompt, str):
        found.append(("prompt", prompt))
    messages = body.get("messages")
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        found.append(("tools", json.dumps(tools, ensure_ascii=False)))
    if isinstance(messages, list):
        for index, message in enumerate(messages[:10000]):
            if not isinstance(message, dict):
                continue
            content = message.get("content")
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            if message.get("tool_calls"):
                text += json.dumps(message["tool_calls"], ensure_ascii=False)
            found.append(("messages[%d] (%s)" % (index, str(message.get("role", "?"))[:20]), text))
    return found


def first_difference(ours: Any, theirs: Any, tokenizer: Optional[Tokenizer] = None) -> Optional[Difference]:
    """Where two request bodies differ first, None when one's prompt is the beginning of the other's (or they are equal).

    Args:
        ours, theirs: decoded request bodies.
        tokenizer: gives token ids of a text; without it the token is an estimate at :data:`BYTES_PER_TOKEN`.
    """
    left, right = parts(ours), parts(theirs)
    before = 0
    shared: List[str] = []
    for index, ((name, text), (other_name, other)) in enumerate(zip(left, right)):
        if name == other_name and text == other:
            before += len(text.encode("utf-8", "replace"))
            shared.append(text)
            continue
        offset = _common(text, other) if name == other_name else 0
        if name == other_name and offset == min(len(text), len(other)) and index + 1 in (len(left), len(right)):
            # One message goes on where the other ends: still one prefix.
            return None
        byte = before + len(text[:offset].encode("utf-8", "replace"))
        token, exact = _token("".join(shared) + text[:offset], byte, tokenizer)
        kind = _kind(name, other_name, text, other, offset)
        return Difference(
            name if name == other_name else "%s / %s" % (name, other_name),
            index,
            offset,
            byte,
            token,
            exact,
            kind,
            text[max(0, offset - 20) : offset + 60],
            other[max(0, offset - 20) : offset + 60],
        )
    return None


def _common(left: str, right: str) -> int:
    size = min(len(left), len(right))
    low, high = 0, size
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _token(text: str, size: int, tokenizer: Optional[Tokenizer]) -> Tuple[int, bool]:
    if tokenizer is not None:
        try:
            return len(tokenizer(text)), True
        except Exception:  # a caller's function may fail in any way: the estimate stays
            return int(size / BYTES_PER_TOKEN), False
    return int(size / BYTES_PER_TOKEN), False


def _kind(name: str, other_name: str, left: str, right: str, offset: int) -> str:
    """What differs: order of tools, a time stamp, an identifier, the system prompt, or the text itself."""
    if name == "tools" and other_name == "tools":
        return "order of tools" if _same_tools(left, right) else "tools"
    if name != other_name:
        return "shape of the request"
    around_left, around_right = left[max(0, offset - 40) : offset + 60], right[max(0, offset - 40) : offset + 60]
    for word, pattern in VOLATILE:
        for found in pattern.finditer(around_left):
            start = max(0, offset - 40)
            if found.start() + start <= offset < found.end() + start and pattern.search(around_right):
                return word
    if "(system)" in name or "(developer)" in name:
        return "system prompt"
    return "text"


def _same_tools(left: str, right: str) -> bool:
    try:
        one, two = json.loads(left), json.loads(right)
    except ValueError:
        return False

    def key(tool: Any) -> str:
        return json.dumps(tool, sort_keys=True)

    return sorted(map(key, one)) == sorted(map(key, two)) if isinstance(one, list) and isinstance(two, list) else False


def counters(before: Optional[Dict[str, float]], after: Dict[str, float]) -> Tuple[float, float]:
    """Tokens asked and tokens hit between two readings of ``{"queries", "hits"}`` (totals of the server when there is no first)."""
    first = before or {}
    queries = _number(after.get("queries")) - _number(first.get("queries"))
    hits = _number(after.get("hits")) - _number(first.get("hits"))
    if queries < 0 or hits < 0:
        # The server was started anew in between.
        queries, hits = _number(after.get("queries")), _number(after.get("hits"))
    return queries, hits


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0.0
    return float(value)


def diagnose_prefix(
    running: Dict[str, Any],
    after: Dict[str, float],
    before: Optional[Dict[str, float]] = None,
    requests: Tuple[Any, ...] = (),
    tokenizer: Optional[Tokenizer] = None,
) -> Dict[str, Any]:
    """Why prompts do not hit the prefix cache.

    Args:
        running: facts of the process that runs: ``enable_prefix_caching`` (bool or None unknown), ``block_size`` (tokens, the
            scheduler's), ``retention_interval`` (0 or a multiple of the block), ``hybrid`` (model with state layers), ``preemptions``,
            ``kv_usage`` (0 to 1), as ``vllm:cache_config_info``, the command line and the metrics tell them.
        after, before: ``{"queries", "hits"}``: the prefix-cache counters in tokens, before and after the requests in question.
        requests: two request bodies that should have shared a prefix, in the order in which they were sent.
        tokenizer: text to token ids, for exact places.

    Returns:
        ``{"ineffective", "reason", "text", "next_action", "confidence", "difference", "shared_tokens", "block_size", "queries", "hits", "collect"}``;
        `reason` is ``not_enabled``, ``prefix_differs``, ``shorter_than_block``, ``not_retained``, ``no_traffic``, ``works`` or ``unknown``.
    """
    queries, hits = counters(before, after)
    enabled = running.get("enable_prefix_caching")
    block = int(_number(running.get("block_size")))
    result: Dict[str, Any] = {
        "ineffective": False,
        "reason": "unknown",
        "text": "",
        "next_action": "",
        "confidence": "medium",
        "difference": None,
        "shared_tokens": None,
        "block_size": block or None,
        "queries": queries,
        "hits": hits,
        "collect": [],
    }

    def say(reason: str, text: str, action: str, confidence: str, ineffective: bool = True) -> Dict[str, Any]:
        result.update(reason=reason, text=text, next_action=action, confidence=confidence, ineffective=ineffective)
        return result

    if enabled is False:
        return say(
            "not_enabled",
            "prefix caching is off in the process that runs",
            "Start the server with --enable-prefix-caching; what the plan says does not matter until it is restarted.",
            "high",
        )
    if queries <= 0:
        result["collect"] = ["the counters vllm:prefix_cache_queries_total and vllm:prefix_cache_hits_total before and after two requests"]
        return say(
            "no_traffic",
            "no prompt was looked up between the two readings",
            "Send the two requests between the readings; without counters nothing can be said (latency proves nothing).",
            "low",
            False,
        )
    if hits > 0:
        return say("works", "%d of %d tokens came from the cache" % (hits, queries), "Nothing to do: the cache hits.", "high", False)
    if len(requests) < 2:
        result["collect"] = ["two request bodies that should share a prefix"] + ([] if block else ["block_size of vllm:cache_config_info"])
        if enabled is None:
            result["collect"].append("whether prefix caching is on in the running process (vllm:cache_config_info)")
        return say("unknown", "%d tokens were looked up and none was hit" % queries, "Give two request bodies that should share a prefix.", "low")
    difference = first_difference(requests[0], requests[1], tokenizer)
    if difference is not None:
        result["difference"] = dict(difference._asdict())
        shared, exact = difference.token, difference.exact
    else:
        text = "".join(text for _name, text in min((parts(request) for request in requests[:2]), key=lambda found: sum(len(text) for _name, text in found)))
        shared, exact = _token(text, len(text.encode("utf-8", "replace")), tokenizer)
    result["shared_tokens"] = shared
    if not parts(requests[0]) or not parts(requests[1]):
        return say(
            "unknown",
            "a request body holds neither messages nor a prompt",
            "Give the bodies as they were sent to /v1/chat/completions or /v1/completions.",
            "low",
        )
    margin = 1.0 if exact else 0.5
    if block and shared < block * margin:
        where = " (they differ first in %s: %s)" % (difference.part, difference.kind) if difference else ""
        if difference is not None and difference.kind in (
            "time stamp",
            "identifier",
            "random number",
            "order of tools",
            "system prompt",
            "shape of the request",
            "tools",
        ):
            return say(
                "prefix_differs",
                "the prompts share about %d tokens, less than one block of %d%s" % (shared, block, where),
                _cure(difference),
                "high" if exact or shared * 4 < block else "medium",
            )
        return say(
            "shorter_than_block",
            "the prompts share about %d tokens, and only whole blocks of %d are kept%s" % (shared, block, where),
            "Use a longer common prefix, or a smaller match unit where this version has one.",
            "high" if exact or shared * 4 < block else "medium",
        )
    if difference is not None and not block:
        result["collect"] = ["block_size of vllm:cache_config_info"]
        return say(
            "prefix_differs",
            "the prompts differ first in %s (%s), after about %d tokens" % (difference.part, difference.kind, shared),
            _cure(difference),
            "medium",
        )
    kept = []
    retention = running.get("retention_interval")
    if running.get("hybrid") and _number(retention) > 0 and block and shared < _number(retention):
        kept.append("state is kept only every %d tokens, and the prompts share %d" % (int(_number(retention)), shared))
    if _number(running.get("kv_usage")) > 0.95:
        kept.append("the cache is %.0f %% full" % (100 * _number(running.get("kv_usage"))))
    if _number(running.get("preemptions")) > 0:
        kept.append("%d sequences were preempted" % int(_number(running.get("preemptions"))))
    if kept:
        return say(
            "not_retained",
            "the prefix is long enough (about %d tokens) but was not kept: %s" % (shared, "; ".join(kept)),
            "Keep it: a smaller retention interval, more room for the cache, or requests that follow each other sooner.",
            "medium",
        )
    result["collect"] = ["whether both requests reached the same server (data-parallel ranks and replicas have caches of their own)", "the time between them"]
    return say(
        "not_retained",
        "the prompts share about %d tokens, enough for %s, yet nothing was hit" % (shared, "%d blocks" % (shared // block) if block else "a hit"),
        "See that both requests reach the same engine (session affinity), soon after each other.",
        "low",
    )


def _cure(difference: Difference) -> str:
    if difference.kind in ("time stamp", "identifier", "random number"):
        return "Move the %s out of %s to the end of the prompt: everything behind it is new in every request." % (difference.kind, difference.part)
    if difference.kind == "order of tools":
        return "Send the tools in the same order in every request."
    if difference.kind == "tools":
        return "Send the same tools in every request; a tool that is added or changed renews everything behind it."
    if difference.kind == "shape of the request":
        return "Send the same parts (tools, system prompt) in every request."
    return "Make the common part equal from the first byte: they differ first in %s." % difference.part
