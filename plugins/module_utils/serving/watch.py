# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Light load while a process is restarted on purpose: when did it fail, when was it right again, did anyone wait for ever?"""

from __future__ import annotations

import time
from typing import Any, Dict, List, NamedTuple, Optional

from .client import Deadlines, Endpoint, Loop, Reply, post, resolved
from .requests import CHAT

STREAMS = 2
RIGHT_AGAIN = 4
"""Answers in a row that count as serving again."""
PAUSE = 0.5
"""Seconds between the requests of one stream, so that a refused connection is not asked thousands of times."""


class _Answer(NamedTuple):
    began: float
    ended: float
    ok: bool
    kind: str
    text: str


def watch(target: Endpoint, model: str, limit: float, grace: float = 60.0, request_seconds: float = 30.0) -> Dict[str, Any]:
    """Ask with :data:`STREAMS` streams until the service failed and was right again.

    Args:
        limit: seconds from the first failure within which it must be right again.
        grace: seconds to wait for the first failure.
        request_seconds: bound of one request; one that reaches it had neither answer nor error, and counts as hung.

    Returns:
        ``{"failed": whether a request failed at all, "seconds": from the first failure to the first of the right answers or None,
        "hung": count, "requests", "errors": {kind: count}, "text": of the latest failure}``.
    """
    target, trouble = resolved(target)
    found: Dict[str, Any] = {"failed": False, "seconds": None, "hung": 0, "requests": 0, "errors": {}, "text": ""}
    if trouble is not None:
        found.update(failed=True, text=trouble.text)
        return found
    began = time.monotonic()
    answers: List[_Answer] = []
    loop = Loop()
    waiting: List[float] = [0.0] * STREAMS
    first_failure: List[float] = []
    right: List[_Answer] = []

    def send() -> None:
        body = {"model": model, "messages": [{"role": "user", "content": "Say one word."}], "max_tokens": 8, "temperature": 0}
        limits = Deadlines(5.0, request_seconds, request_seconds, request_seconds)
        loop.start(target, post(CHAT, body, False, limits), done)

    def done(reply: Reply) -> None:
        now = time.monotonic()
        _body, wrong = reply.json()
        answers.append(_Answer(reply.started, now, wrong is None, wrong.kind if wrong else "", wrong.text if wrong else ""))
        one = answers[-1]
        if not one.ok:
            if not first_failure:
                first_failure.append(now)
            right.clear()
        elif first_failure and one.began >= first_failure[0]:
            right.append(one)
        waiting.append(now + PAUSE)

    def over() -> bool:
        now = time.monotonic()
        if len(right) >= RIGHT_AGAIN:
            return True
        return now - first_failure[0] > limit if first_failure else now - began > grace

    while not over():
        now = time.monotonic()
        due = [at for at in waiting if at <= now]
        waiting[:] = [at for at in waiting if at > now]
        for _at in due:
            send()
        if loop.active:
            loop.step(0.1)
        else:
            time.sleep(0.05)
    loop.close()
    found["requests"] = len(answers)
    for one in answers:
        if not one.ok:
            found["errors"][one.kind] = found["errors"].get(one.kind, 0) + 1
            found["text"] = one.text
            if one.kind == "timeout":
                found["hung"] += 1
    if first_failure:
        found["failed"] = True
        if len(right) >= RIGHT_AGAIN:
            found["seconds"] = round(right[0].ended - first_failure[0], 2)
    return found


def outcome(found: Dict[str, Any], node: str, what: str) -> Dict[str, Any]:
    """What :func:`stability.restart` takes."""
    event: Optional[float] = found["seconds"]
    if not found["failed"]:
        # A router with another replica, or a kill that nobody noticed.
        event = 0.0
    return {"node": node, "what": what, "seconds": event, "text": found["text"], "hung": found["hung"], "errors": found["errors"]}
