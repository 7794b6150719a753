# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stage 2: fixed requests that can be replayed with curl, and what a right answer to each looks like."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .client import Deadlines, Endpoint, Reply, Request, call, parse_json, post, resolved
from .result import finding, result
from .wire import Trouble

Finding = Dict[str, Any]

CHAT = "/v1/chat/completions"
RETRIES = 3
"""Tries for a tool call: Kimi K3 sometimes writes a form that its parser does not expect, which shows as empty tool_calls
(known trouble of the vLLM recipe of Kimi K3, 2026-08-20): validate, and ask again."""

MARKERS = ("<think>", "</think>", "◁think▷", "◁/think▷", "<|open|>think")
"""Marks of thinking of Kimi K2 and K3; in the content they show that nothing parsed the reasoning."""

REQUESTS: Tuple[Dict[str, Any], ...] = (
    {
        "id": "text",
        "body": {
            "messages": [
                {"role": "system", "content": "You answer in one short sentence."},
                {"role": "user", "content": "What is the capital of France?"},
            ],
            "max_tokens": 32, "temperature": 0, "seed": 7,
        },
        "expect": {"finish": ["stop", "length"], "tokens": 1},
    },
    {
        "id": "stream",
        "stream": True,
        "same_as": "text",
        "body": {
            "messages": [
                {"role": "system", "content": "You answer in one short sentence."},
                {"role": "user", "content": "What is the capital of France?"},
            ],
            "max_tokens": 32, "temperature": 0, "seed": 7, "stream": True, "stream_options": {"include_usage": True},
        },
        "expect": {"finish": ["stop", "length"], "tokens": 1},
    },
    {
        "id": "tool_call",
        "feature": "tool_calling",
        "retries": RETRIES,
        "body": {
            "messages": [
                {"role": "system", "content": "Use the tool get_weather to answer. Do not answer yourself."},
                {"role": "user", "content": "What is the weather in Rome, in celsius?"},
            ],
            "tools": [{
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "The weather of a city, now.",
                    "strict": True,
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "enum": ["Rome", "Paris"]}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
                        "required": ["city", "unit"],
                        "additionalProperties": False,
                    },
                },
            }],
            "tool_choice": "required", "max_tokens": 1024, "temperature": 1, "seed": 7,
        },
        "expect": {"finish": ["tool_calls", "stop"], "tool": "get_weather"},
    },
    {
        "id": "reasoning",
        "feature": "reasoning",
        "body": {
            "messages": [{"role": "user", "content": "Is 91 a prime number? Think first."}],
            "max_tokens": 256, "temperature": 0, "seed": 7,
        },
        "expect": {"finish": ["stop", "length"], "tokens": 1, "reasoning": True},
    },
)
"""The request set. `feature` names the part of ``vllm_features`` that it needs; `expect` says what is checked of every answer."""
FEATURES = ("tool_calling", "reasoning")
"""Parts of ``vllm_features`` that requests are for: all of them are sent where nothing says what is served."""
QUICK = Deadlines(5.0, 10.0, 10.0, 10.0)
"""Bounds of what needs no engine: health, version, models."""


class Settings(NamedTuple):
    """How stage 2 is run.

    features: parts of ``vllm_features`` that are served. repeat: how often each request is sent. seconds: bound of one request.
    """

    model: str
    features: Tuple[str, ...] = FEATURES
    repeat: int = 3
    seconds: float = 30.0
    requests: Tuple[Dict[str, Any], ...] = REQUESTS
    key_given: bool = False


def set_hash(requests: Sequence[Mapping[str, Any]] = REQUESTS) -> str:
    """SHA-256 of the request set, the same for the same requests on every machine."""
    return hashlib.sha256(json.dumps(list(requests), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()).hexdigest()


def unusable(requests: Sequence[Any]) -> str:
    """Why a request set of a user cannot be sent, empty when it can."""
    names = set()
    for position, case in enumerate(requests):
        name = case.get("id") if isinstance(case, Mapping) else None
        if not isinstance(name, str) or not re.match(r"[a-z0-9_]{1,40}\Z", name) or name in names:
            return "entry %d needs an id of its own, of small letters, digits and _" % (position + 1)
        names.add(name)
        body = case.get("body")
        if not isinstance(body, Mapping) or not isinstance(body.get("messages"), list) or not body["messages"]:
            return "%s needs a body with messages" % name
        expect = case.get("expect", {})
        finish = expect.get("finish", []) if isinstance(expect, Mapping) else None
        if not isinstance(finish, list) or not all(isinstance(word, str) for word in finish):
            return "%s: expect is a table, and finish in it a list of words" % name
        if not isinstance(case.get("retries", 1), int) or not isinstance(expect.get("tokens", 0), int):
            return "%s: retries and tokens are numbers" % name
        tools = body.get("tools") or []
        if not isinstance(tools, list):
            return "%s: tools is a list" % name
        for tool in tools:
            function = tool.get("function") if isinstance(tool, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                return "%s: every tool is a function with a name" % name
    return ""


def unusable_patterns(patterns: Sequence[Any]) -> str:
    """Why patterns of warnings to tolerate cannot be used, empty when they can."""
    for pattern in patterns:
        try:
            re.compile(str(pattern))
        except (re.error, OverflowError, RecursionError) as exc:
            return "%r is no regular expression: %s" % (str(pattern)[:100], exc)
    return ""


class Answer(NamedTuple):
    """What one request gave: outcome is ``ok`` or one sentence of what is wrong. text is what the model wrote."""

    outcome: str
    text: str
    reply: Reply
    usage: Dict[str, Any]
    tries: int = 1
    message: Dict[str, Any] = {}  # noqa: RUF012


def run(target: Endpoint, settings: Settings, progress: Optional[Callable[[str], None]] = None) -> Dict[str, Any]:
    """Stage 2 at one endpoint; ends within about ``seconds`` after the first request that hangs."""
    began = time.monotonic()
    target, trouble = resolved(target)
    where = target.url
    data: Dict[str, Any] = {"endpoint": where, "model": settings.model, "request_set": set_hash(settings.requests), "latency": {}, "answers": {}}
    if trouble is not None:
        return result("request", [broken("request.reach", trouble, where, settings.key_given)], time.monotonic() - began, data)
    findings = entry(target, settings.model, settings.key_given, data)
    if any(f["status"] == "fail" for f in findings):
        return result("request", findings, time.monotonic() - began, data)
    answers: Dict[str, Answer] = {}
    hung = False
    for case in settings.requests:
        feature = case.get("feature")
        name = "request.%s" % case["id"]
        if feature and feature not in settings.features:
            findings.append(finding(name, "skip", "%s is not among vllm_features" % feature, where=where))
            continue
        if hung:
            findings.append(finding(name, "skip", "left out, since a request before it got no answer", where=where))
            continue
        if progress is not None:
            progress(str(case["id"]))
        found, answers[case["id"]] = repeated(target, case, settings, answers.get(str(case.get("same_as", ""))), data)
        findings += found
        trouble = answers[case["id"]].reply.trouble
        hung = trouble is not None and trouble.kind in ("timeout", "refused", "closed", "unreachable")
    if hung:
        # First, since it says more than the request that hung.
        findings = still_healthy(target) + findings
    return result("request", findings, time.monotonic() - began, data)


def entry(target: Endpoint, model: str, key_given: bool, data: Dict[str, Any]) -> List[Finding]:
    """Health, version, key and model: what every further request needs."""
    where = target.url
    findings: List[Finding] = []
    reply = call(target, Request("GET", "/health", deadlines=QUICK))
    if reply.trouble is not None and reply.trouble.kind != "status":
        return [broken("request.reach", reply.trouble, where, key_given)]
    if reply.trouble is not None and reply.status not in (401, 403, 404):
        findings.append(finding("request.health", "fail", "/health answers %s" % reply.trouble.text, "HTTP 200", where=where,
                                why="the server itself says that its engine does not run", fix="read the log of vllm.service"))
    reply = call(target, Request("GET", "/v1/models", deadlines=QUICK))
    found, trouble = reply.json()
    if trouble is not None:
        return [*findings, broken("request.models", trouble, where, key_given, reply.status)]
    listed = found.get("data") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        return [*findings, finding("request.models", "fail", "/v1/models holds no list of models", "an OpenAI-compatible server", where=where,
                                   why="a server of another kind answers there", fix="check the address and what the router does with /v1")]
    names = [str(m.get("id")) for m in listed if isinstance(m, dict)]
    lengths = [m.get("max_model_len") for m in listed if isinstance(m, dict) and m.get("id") == model]
    data["max_model_len"] = lengths[0] if lengths and isinstance(lengths[0], int) else None
    data["served"] = names[:20]
    if model not in names:
        return [*findings, finding(
            "request.model", "fail", "serves %s" % (", ".join(names[:5]) or "nothing"), model, where=where,
            why="a request for the planned model is refused", fix="set --served-model-name or vllm_model so that both say the same name")]
    findings.append(finding("request.model", "pass", model, model, where=where))
    reply = call(target, Request("GET", "/version", deadlines=QUICK))
    version, trouble = reply.json()
    data["version"] = str(version.get("version"))[:60] if isinstance(version, dict) and version.get("version") else None
    return findings


def broken(id: str, trouble: Trouble, where: str, key_given: bool, status: int = 0) -> Finding:
    """A finding out of a trouble, with the next step for each kind."""
    why, fix = {
        "address": ("the endpoint cannot be asked", "check the host name in verify_endpoints"),
        "refused": ("no server listens there", "check that vllm.service runs and listens on this address and port"),
        "unreachable": ("no way leads there", "check addresses, routes and firewalls between here and the server"),
        "timeout": ("the server accepted the connection but did not answer in time", "look at the log of vllm.service and at the load"),
        "tls": ("no request can be sent", "check https or http, the certificate, and verify_ca_file"),
        "closed": ("the server, or what stands before it, hung up", "look at the log of the router and of vllm.service"),
        "truncated": ("users get half an answer", "look at time-outs and buffering of the proxy, and at the log of vllm.service"),
        "not_http": ("a server of another kind answers there", "check the address and the port"),
        "not_json": ("a server of another kind answers there", "check the address, and what the router sends for /v1"),
        "not_stream": ("streaming is lost on the way", "turn off buffering of the proxy for text/event-stream"),
        "error_event": ("the engine failed during the answer", "read the log of vllm.service"),
    }.get(trouble.kind, ("the request failed", "read the log of vllm.service"))
    if status in (401, 403) or trouble.text.startswith(("HTTP 401", "HTTP 403")):
        id = id.partition(".")[0] + ".key"
        if key_given:
            why, fix = "the server does not take the API key that was given", "give the key of this server in verify_api_key_file"
        else:
            why, fix = "the server wants an API key and none was given", "give the key in vllm_api_key or verify_api_key_file"
    return finding(id, "fail", "%s (at: %s)" % (trouble.text, trouble.point), "an answer", why, fix, where)


def still_healthy(target: Endpoint) -> List[Finding]:
    """After a request that hung: does /health say so?"""
    reply = call(target, Request("GET", "/health", deadlines=Deadlines(3.0, 3.0, 3.0, 3.0)))
    if reply.ok:
        return [finding("request.engine", "fail", "/health answers 200 while a completion gets no answer", "an answer", where=target.url,
                        why="the engine hangs behind a living API server; load balancers that ask /health go on sending requests",
                        fix="collect evidence, then restart vllm.service on every rank of the engine")]
    text = reply.trouble.text if reply.trouble is not None else ""
    return [finding("request.engine", "fail", "/health no longer answers: %s" % text, "HTTP 200", where=target.url,
                    why="the server went away during the request", fix="read the log of vllm.service")]


def repeated(target: Endpoint, case: Mapping[str, Any], settings: Settings, other: Optional[Answer],
             data: Dict[str, Any]) -> Tuple[List[Finding], Answer]:
    """Send one request ``repeat`` times; stops at the first that fails."""
    where = target.url
    name = "request.%s" % case["id"]
    answers: List[Answer] = []
    for _number in range(max(1, settings.repeat)):
        answers.append(ask(target, case, settings))
        if answers[-1].outcome != "ok":
            break
    last = answers[-1]
    times = sorted(a.reply.end or 0.0 for a in answers)
    first = sorted(a.reply.first_event for a in answers if a.reply.first_event is not None)
    data["latency"][case["id"]] = {
        "requests": len(answers), "median_s": round(times[len(times) // 2], 4), "first_token_s": round(first[len(first) // 2], 4) if first else None}
    if last.outcome != "ok":
        trouble = last.reply.trouble
        if trouble is not None:
            found = broken(name, trouble, where, settings.key_given, last.reply.status)
        else:
            found = finding(name, "fail", last.outcome, "a right answer", "the answer is not what the request asked for",
                            "replay the request from the report and compare with the model's documentation", where)
        if len(answers) > 1:
            found["observed"] += "; %d of the same requests before it were fine" % (len(answers) - 1)
        return [found], last
    data["answers"][case["id"]] = hashlib.sha256(last.text.encode()).hexdigest()
    findings = []
    tries = max(a.tries for a in answers)
    if tries > 1:
        findings.append(finding("%s.retried" % name, "warn", "tool_calls was empty at first, right at try %d" % tries, "right at once", where=where,
                                why="the model wrote a form that its parser does not expect", fix="let clients validate and ask again"))
    texts = {a.text for a in answers}
    if len(texts) > 1:
        findings.append(finding("%s.same" % name, "warn", "%d different texts from %d equal requests at temperature 0" % (len(texts), len(answers)),
                                "one text", where=where, why="batching can change the last bits of a sum, and so a word"))
    elif other is not None and other.outcome == "ok" and other.text != last.text:
        findings.append(finding("%s.same" % name, "warn", "another text than without streaming", "the same text", where=where,
                                why="batching can change the last bits of a sum, and so a word"))
    findings.insert(0, finding(name, "pass", "%d of %d right, median %.3f s" % (len(answers), len(answers), times[len(times) // 2]),
                               "an answer within %g s" % settings.seconds, where=where))
    return findings, last


def ask(target: Endpoint, case: Mapping[str, Any], settings: Settings) -> Answer:
    """Send one request of the set, with its retries, and judge the answer."""
    tries = max(1, min(10, int(case.get("retries", 1))))
    answer = Answer("was not sent", "", Reply(), {})
    for number in range(1, tries + 1):
        answer = _once(target, case, settings)._replace(tries=number)
        if answer.outcome == "ok" or answer.reply.trouble is not None or not answer.outcome.startswith("tool_calls is empty"):
            break
    return answer


def _once(target: Endpoint, case: Mapping[str, Any], settings: Settings) -> Answer:
    body = dict(copy.deepcopy(case["body"]), model=settings.model)
    limits = Deadlines(5.0, settings.seconds, settings.seconds, settings.seconds)
    if case.get("stream"):
        collected = Collector()
        reply = call(target, post(CHAT, body, True, limits), collected.take)
        message, finish, usage, trouble = collected.message(), collected.finish, collected.usage, reply.trouble
        if trouble is None and collected.bad:
            trouble = Trouble("not_json", "body", "an event of the stream is not JSON: %s" % collected.bad)
    else:
        reply = call(target, post(CHAT, body, False, limits))
        found, trouble = reply.json()
        message, finish, usage = opened(found)
    if trouble is not None:
        reply.trouble = trouble
        return Answer("failed: " + trouble.text, "", reply, {})
    # The ids of tool calls are new each time.
    made = message.get("tool_calls")
    calls = [c.get("function") for c in made if isinstance(c, dict)] if isinstance(made, list) else []
    text = json.dumps([message.get("content") or "", message.get("reasoning") or "", calls], sort_keys=True)
    return Answer(judged(case, message, finish, usage, settings.model), text, reply, usage, 1, message)


def aftermath(name: str, before: Mapping[str, Any], after: Mapping[str, Any], stage: str, tolerated: Sequence[str] = ()) -> List[Finding]:
    """What the requests of a stage left behind on one node: new warnings and errors in the log, Xids, errors of ports, restarts.

    A part that was read before and cannot be read any more is unknown; one that never could be read is left out.

    Args:
        name: of the node. before, after: readings; `after` was asked for what is new since `before`.
        stage: whose findings these are. tolerated: patterns of warnings that do not count.
    """
    found: List[Finding] = []
    log = after.get("log")
    if isinstance(log, Mapping):
        # A pattern that cannot be used tolerates nothing; it is refused before anything runs.
        usable = [pattern for pattern in tolerated if not unusable_patterns([pattern])]
        fresh = [w for w in log.get("new_warnings") or [] if not any(re.search(pattern, str(w.get("text"))) for pattern in usable)]
        if fresh:
            found.append(finding("%s.log" % stage, "fail", "%s: %s (%d kinds of new warnings)" % (fresh[0].get("level"), fresh[0].get("text"), len(fresh)),
                                 "no new warning", "the server complained of these requests", "read journalctl -u vllm.service; "
                                 "a warning that is known and harmless can be named in verify_tolerate", name))
        else:
            found.append(finding("%s.log" % stage, "pass", "no new warning", "no new warning", where=name))
    elif isinstance(before.get("log"), Mapping):
        found.append(unread("%s.log" % stage, name, after, "log", "the log could not be read"))
    xids = after.get("xids")
    if xids:
        found.append(finding("%s.xid" % stage, "fail", "Xid %s on %s: %s" % (xids[-1].get("code"), xids[-1].get("bdf"), xids[-1].get("text")), "no Xid",
                             "a GPU reported a fault", "run inferops.vllm.diagnose", name))
    elif xids is None and before.get("xids") is not None:
        found.append(unread("%s.xid" % stage, name, after, "xids", "the kernel log could not be read"))
    if before.get("gpus") and not after.get("gpus") and stage != "concurrency":
        # Stage 4 compares the memory of the GPUs, and says it there.
        found.append(unread("%s.gpu_memory" % stage, name, after, "gpus", "nvidia-smi names no GPU any more"))
    ports = port_errors(before, after)
    if ports.rose or ports.lost:
        found.append(finding("%s.ports" % stage, "fail", ", ".join((["%s is gone" % port for port in ports.lost] + sorted(ports.rose))[:5]),
                             "no rise of an error counter", "a port went away" if ports.lost else "a link errs under load", "look at cable and switch port",
                             name))
    elif ports.missing:
        what = "the RDMA ports" if after.get("rdma") is None else ", ".join(ports.missing[:5])
        found.append(unread("%s.ports" % stage, name, after, "rdma", "%s could not be read" % what))
    old_pids, new_pids = before.get("pids") or {}, after.get("pids") or {}
    gone = sorted(kind for kind in old_pids if new_pids.get(kind) != old_pids[kind])
    if gone:
        found.append(finding("%s.restart" % stage, "fail", "the %s process is not the one from before" % " and the ".join(gone), "no restart",
                             "a process died during this stage", "read journalctl -u vllm.service", name))
    return found


def unread(id: str, name: str, after: Mapping[str, Any], part: str, text: str) -> Finding:
    """What could be read before and cannot be read any more: nobody knows."""
    return finding(id, "unknown", (after.get("unknown") or {}).get(part) or text, "a reading, as before", where=name,
                   why="it could be read before and cannot be read any more")


class PortErrors(NamedTuple):
    """Error counters ``device/port/name`` of RDMA ports: those that `rose`, and by how much; those `missing` though their port is there, all
    where none could be read; and the ports that are `lost`."""

    rose: Dict[str, int]
    missing: List[str]
    lost: List[str]


def port_errors(before: Mapping[str, Any], after: Mapping[str, Any]) -> PortErrors:
    """What became of the counters between two readings."""
    old, new = before.get("rdma") or {}, after.get("rdma")
    if new is None:
        return PortErrors({}, sorted(old), [])
    there = {key.rpartition("/")[0] for key in new}
    silent = [key for key in sorted(old) if key not in new]
    return PortErrors({key: new[key] - old[key] for key in old if key in new and new[key] > old[key]},
                      [key for key in silent if key.rpartition("/")[0] in there],
                      sorted({key.rpartition("/")[0] for key in silent} - there))


def opened(found: Any) -> Tuple[Dict[str, Any], str, Dict[str, Any]]:
    """Message, finish reason and usage of a chat completion; empty where something else came."""
    if not isinstance(found, dict):
        return {}, "", {}
    choices = found.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    raw = choice.get("message")
    message = dict(raw) if isinstance(raw, dict) else {}
    # The field was called reasoning_content before.
    message["reasoning"] = message.get("reasoning") or message.get("reasoning_content")
    usage = found.get("usage")
    return message, str(choice.get("finish_reason") or ""), usage if isinstance(usage, dict) else {}


class Collector:
    """Puts the message of a streamed chat completion together."""

    def __init__(self) -> None:
        self.parts: Dict[str, List[str]] = {"content": [], "reasoning": []}
        self.calls: Dict[int, Dict[str, Any]] = {}
        self.finish = ""
        self.usage: Dict[str, Any] = {}
        self.bad = ""
        self.role = ""

    def take(self, data: bytes, _now: float) -> None:
        """One event."""
        found, trouble = parse_json(data)
        if trouble is not None or not isinstance(found, dict):
            self.bad = self.bad or repr(data[:60])
            return
        usage = found.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        choices = found.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        self.finish = str(choice.get("finish_reason") or self.finish)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        for name, field in (("content", "content"), ("reasoning", "reasoning"), ("reasoning", "reasoning_content")):
            if isinstance(delta.get(field), str):
                self.parts[name].append(delta[field])
        pieces = delta.get("tool_calls")
        for piece in pieces if isinstance(pieces, list) else []:
            if isinstance(piece, dict) and isinstance(piece.get("index"), int):
                whole = self.calls.setdefault(piece["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
                inner = piece.get("function")
                if isinstance(inner, dict):
                    for field in ("name", "arguments"):
                        if isinstance(inner.get(field), str):
                            whole["function"][field] += inner[field]

    def message(self) -> Dict[str, Any]:
        """The message as a reply without streaming would hold it."""
        return {
            "content": "".join(self.parts["content"]), "reasoning": "".join(self.parts["reasoning"]) or None,
            "tool_calls": [self.calls[k] for k in sorted(self.calls)],
        }


def judged(case: Mapping[str, Any], message: Mapping[str, Any], finish: str, usage: Mapping[str, Any], model: str) -> str:
    """``ok``, or one sentence of what is wrong with an answer."""
    expect = case.get("expect") or {}
    if not message:
        return "the answer holds no message"
    content, reasoning = message.get("content"), message.get("reasoning")
    if expect.get("tool"):
        return _tool_outcome(case, message, str(expect["tool"]))
    if finish not in (expect.get("finish") or [finish]):
        return "finish_reason is %r, not one of %s" % (finish, ", ".join(expect["finish"]))
    spent = usage.get("completion_tokens")
    most = case["body"].get("max_tokens")
    if not isinstance(spent, int) or not isinstance(usage.get("prompt_tokens"), int):
        return "the answer says nothing of the tokens used"
    if spent < int(expect.get("tokens", 0)):
        return "the model wrote %d tokens" % spent
    if isinstance(most, int) and spent > most:
        return "%d tokens, but max_tokens is %d" % (spent, most)
    if not content and not reasoning:
        return "the answer is empty, though %d tokens were used" % spent
    if expect.get("reasoning"):
        mark = next((m for m in MARKERS if m in str(content or "")), "")
        if mark:
            return "the content holds %s: the reasoning was not parsed" % mark
        if not reasoning:
            return "the answer has no reasoning of its own"
    return "ok"


def _tool_outcome(case: Mapping[str, Any], message: Mapping[str, Any], wanted: str) -> str:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return "tool_calls is empty; the content begins with %r" % str(message.get("content") or "")[:60]
    schemas = {t["function"]["name"]: t["function"].get("parameters") or {} for t in case["body"].get("tools") or []}
    for made in calls:
        function = made.get("function") if isinstance(made, dict) else None
        if not isinstance(function, dict):
            return "tool_calls holds something that is no function call"
        name = str(function.get("name") or "")
        if name not in schemas:
            return "a tool %r was called that the request does not offer" % name[:60]
        arguments, trouble = parse_json(str(function.get("arguments") or "").encode())
        if trouble is not None:
            return "the arguments of %s are not JSON: %r" % (name, str(function.get("arguments"))[:60])
        wrong = mismatch(arguments, schemas[name], "arguments")
        if wrong:
            return "the arguments of %s do not fit their schema: %s" % (name, wrong)
    if wanted not in [str(c["function"].get("name")) for c in calls]:
        return "%s was not called" % wanted
    return "ok"


_TYPES: Dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
}


def mismatch(value: Any, schema: Mapping[str, Any], path: str, depth: int = 0) -> str:
    """Why `value` does not fit `schema`, empty when it does.

    Knows type, enum, const, properties, required, additionalProperties, items, maxLength and minimum/maximum: what tools use.
    """
    if depth > 20:
        return "%s is nested too deeply" % path
    kinds = schema.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if names and not any(_TYPES.get(str(n), lambda v: True)(value) for n in names):
        return "%s is not %s" % (path, " or ".join(map(str, names)))
    if "enum" in schema and value not in schema["enum"]:
        return "%s is %r, not one of %s" % (path, str(value)[:40], ", ".join(map(str, schema["enum"])))
    if "const" in schema and value != schema["const"]:
        return "%s is not %r" % (path, schema["const"])
    if isinstance(value, str) and isinstance(schema.get("maxLength"), int) and len(value) > schema["maxLength"]:
        return "%s is longer than %d characters" % (path, schema["maxLength"])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if isinstance(schema.get("minimum"), (int, float)) and value < schema["minimum"]:
            return "%s is below %s" % (path, schema["minimum"])
        if isinstance(schema.get("maximum"), (int, float)) and value > schema["maximum"]:
            return "%s is above %s" % (path, schema["maximum"])
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        missing = [n for n in schema.get("required") or [] if n not in value]
        if missing:
            return "%s lacks %s" % (path, missing[0])
        for name, inner in value.items():
            if name in properties:
                wrong = mismatch(inner, properties[name], "%s.%s" % (path, name), depth + 1)
                if wrong:
                    return wrong
            elif schema.get("additionalProperties") is False:
                return "%s holds %r, which the schema does not know" % (path, str(name)[:40])
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for position, inner in enumerate(value[:1000]):
            wrong = mismatch(inner, schema["items"], "%s[%d]" % (path, position), depth + 1)
            if wrong:
                return wrong
    return ""
