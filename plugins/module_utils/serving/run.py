# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stages 1 (over HTTP) to 4 at given endpoints, in order, and what is left out when an earlier one fails."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import prefix, ramp, requests, start
from .client import Endpoint, InputError, endpoint, read_key
from .result import merged, not_run, scrub

HTTP_STAGES = ("start", "request", "prefix", "concurrency")


class Options(NamedTuple):
    """Everything that the stages over HTTP are told.

    endpoints: URLs of every API server. route: URL that the users will take, empty for none; then the ramp goes to the first endpoint.
    flags: planned flags of ``vllm serve``, for what /metrics does not say. requests: (), for the built-in set.
    """

    model: str
    endpoints: Tuple[str, ...]
    route: str = ""
    stages: Tuple[str, ...] = HTTP_STAGES
    version: str = ""
    key: str = ""
    key_file: str = ""
    ca_file: str = ""
    insecure: bool = False
    features: Tuple[str, ...] = requests.FEATURES
    flags: Mapping[str, Any] = {}  # noqa: RUF012
    repeat: int = 3
    request_seconds: float = 30.0
    requests: Tuple[Dict[str, Any], ...] = ()
    prefix_tokens: int = 0
    prefix_filler_tokens: int = 0
    prefix_bodies: Tuple[Mapping[str, Any], ...] = ()
    concurrency: int = 8
    input_tokens: int = 256
    output_tokens: int = 64
    error_budget: float = 0.01
    level_seconds: float = 10.0
    ramp_seconds: float = 300.0
    ttft_ms: Optional[float] = None
    itl_ms: Optional[float] = None
    agents: int = 0
    turns: int = 4
    max_preemptions: int = 0
    levels: Tuple[int, ...] = ()
    earlier: Mapping[str, Any] = {}  # noqa: RUF012


def run(options: Options, progress: Optional[Callable[[str], None]] = None) -> Dict[str, Dict[str, Any]]:
    """``{stage: result}`` of the stages asked for.

    Raises:
        InputError: the endpoints, the key or the certificate cannot be used; one sentence without secrets.
    """
    say = progress or (lambda text: None)
    key = read_key(options.key, options.key_file)
    urls = list(dict.fromkeys(options.endpoints))
    servers = [endpoint(url, key, options.ca_file, options.insecure) for url in urls]
    route = endpoint(options.route, key, options.ca_file, options.insecure) if options.route else None
    if not servers and route is None:
        raise InputError("no endpoint: give verify_endpoints, or a plan whose engines have endpoints")
    doors: List[Endpoint] = ([route] if route is not None else []) + servers
    found: Dict[str, Dict[str, Any]] = {}
    secrets = [s for door in doors for s in door.secrets]
    lengths: Dict[str, Optional[int]] = {}
    silent: Dict[str, str] = {}
    for one in _results(options.earlier.get("request")):
        _note(one, lengths, silent)
    if "start" in options.stages:
        began = time.monotonic()
        http: List[Dict[str, Any]] = []
        for door in servers or doors:
            say("start: %s" % door.url)
            http += start.asked(door, options.model, options.version, bool(key))
        found["start"] = {"stage": "start", "findings": http, "seconds": round(time.monotonic() - began, 3)}
    if "request" in options.stages:
        results = []
        settings = requests.Settings(options.model, options.features, options.repeat, options.request_seconds,
                                     options.requests or requests.REQUESTS, bool(key))
        for door in doors:
            say("request: %s" % door.url)
            one = requests.run(door, settings)
            results.append(one)
            _note({"data": one["data"], "findings": one["findings"]}, lengths, silent)
        found["request"] = merged("request", results)
    if "prefix" in options.stages:
        found["prefix"] = _each(doors, silent, "prefix", lambda door: prefix.run(door, _counted(door, route, servers), prefix.Settings(
            options.model, lengths.get(door.url), options.prefix_tokens, options.prefix_filler_tokens, max(30.0, options.request_seconds),
            options.flags, tuple(options.prefix_bodies), bool(key))), say)
    if "concurrency" in options.stages:
        found["concurrency"] = _each(doors[:1], silent, "concurrency", lambda door: ramp.run(door, servers, ramp.Settings(
            options.model, options.concurrency, options.input_tokens, options.output_tokens, options.error_budget, options.level_seconds,
            options.ramp_seconds, max(60.0, options.request_seconds), options.ttft_ms, options.itl_ms, options.agents, options.turns,
            options.max_preemptions, lengths.get(door.url), options.flags, bool(key), options.levels), say), say)
    clean: Dict[str, Dict[str, Any]] = scrub(found, secrets)
    return clean


_BASIC = ("request.reach", "request.key", "request.models", "request.model", "request.health", "request.text", "request.stream", "request.engine")


def _results(result: Any) -> List[Dict[str, Any]]:
    """The parts of a merged result, one an endpoint, each with the findings of that endpoint."""
    if not isinstance(result, Mapping):
        return []
    data = result.get("data")
    data = data if isinstance(data, Mapping) else {}
    parts = data.get("endpoints") if isinstance(data.get("endpoints"), list) else [data]
    findings = [f for f in result.get("findings") or [] if isinstance(f, Mapping)]
    return [{"data": part, "findings": [f for f in findings if f.get("where") == part.get("endpoint")]}
            for part in parts or [] if isinstance(part, Mapping)]


def _note(one: Mapping[str, Any], lengths: Dict[str, Optional[int]], silent: Dict[str, str]) -> None:
    """Remember what stage 2 found out at one endpoint: room of the model, and whether later stages make sense."""
    url = str(one["data"].get("endpoint") or "")
    room = one["data"].get("max_model_len")
    lengths[url] = room if isinstance(room, int) else None
    basic = [f for f in one["findings"] if f.get("status") == "fail" and f.get("id") in _BASIC]
    if basic:
        silent[url] = "left out, since stage 2 failed: %s: %s" % (basic[0]["id"], basic[0].get("observed"))


def _counted(door: Endpoint, route: Optional[Endpoint], servers: Sequence[Endpoint]) -> List[Endpoint]:
    """The servers whose counters move by a request to `door`."""
    return list(servers) if route is not None and door is route else [door]


def _each(doors: Sequence[Endpoint], silent: Mapping[str, str], stage: str, work: Callable[[Endpoint], Dict[str, Any]],
          say: Callable[[str], None]) -> Dict[str, Any]:
    results = []
    for door in doors:
        if door.url in silent:
            results.append(not_run(stage, silent[door.url]))
            continue
        say("%s: %s" % (stage, door.url))
        results.append(work(door))
    return merged(stage, results)
