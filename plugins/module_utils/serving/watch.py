# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Light load while a process is restarted on purpose: when did it fail, when was it right again, did anyone wait for ever?"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Sequence

from .client import Deadlines, Endpoint, Loop, Reply, post, resolved
from .requests import CHAT

STREAMS = 2
"""At each address."""
RIGHT_AGAIN = 4
"""Answers in a row that count as serving again."""
PAUSE = 0.5
"""Seconds between the requests of one stream, so that a refused connection is not asked thousands of times."""


class _Door:
    """One address under watch. Times are those of the monotonic clock."""

    def __init__(self, target: Endpoint) -> None:
        self.target = target
        self.due = [0.0] * STREAMS
        self.failed: Optional[float] = None
        self.right: List[float] = []
        self.requests = 0
        self.errors: Dict[str, int] = {}
        self.hung = 0
        self.text = ""

    def take(self, reply: Reply, now: float) -> None:
        """One answer. Right ones count when they were asked for after the first failure and none failed since.

        One that hung since before the first right answer says nothing of the service after it.
        """
        self.requests += 1
        self.due.append(now + PAUSE)
        wrong = reply.json()[1]
        if wrong is not None:
            self.failed = now if self.failed is None else self.failed
            # Without a connection nobody waits for an answer: that is a failure like any other.
            hung = wrong.kind == "timeout" and wrong.point not in ("connect", "tls")
            self.hung += hung
            if not (hung and self.right and reply.started < self.right[0]):
                self.right.clear()
            self.errors[wrong.kind] = self.errors.get(wrong.kind, 0) + 1
            self.text = wrong.text
        elif self.failed is not None and reply.started >= self.failed:
            self.right.append(now)

    @property
    def back(self) -> bool:
        return len(self.right) >= RIGHT_AGAIN


def watch(targets: Sequence[Endpoint], model: str, limit: float, grace: float = 60.0, request_seconds: float = 30.0) -> Dict[str, Any]:
    """Ask every address with :data:`STREAMS` streams until one failed and all that failed are right again.

    All API servers are asked, since only the one whose engine lost a process shows it; a router in front may hide it.

    Args:
        targets: addresses of the API servers and of the router, if there is one.
        limit: seconds from the first failure within which all must be right again.
        grace: seconds to wait for the first failure.
        request_seconds: bound of one request; one that reaches it had neither answer nor error, and counts as hung. What is in flight when
            all are right again, or when the grace is over, is waited for.

    Returns:
        ``{"failed": addresses at which a request failed, "seconds": from the first failure to the first of the last right answers or None,
        "hung": count, "requests", "errors": {kind: count}, "text": of a failure}``.
    """
    began = time.monotonic()
    doors: List[_Door] = []
    for target in targets:
        target, trouble = resolved(target)
        doors.append(_Door(target))
        if trouble is not None:
            doors[-1].failed, doors[-1].text, doors[-1].due = began, trouble.text, []
            doors[-1].errors = {trouble.kind: 1}
    body = {"model": model, "messages": [{"role": "user", "content": "Say one word."}], "max_tokens": 8, "temperature": 0}
    request = post(CHAT, body, False, Deadlines(min(5.0, request_seconds), request_seconds, request_seconds, request_seconds))
    loop = Loop()

    def ask(door: _Door) -> None:
        loop.start(door.target, request, lambda reply: door.take(reply, time.monotonic()))

    def settled(now: float) -> bool:
        """Whether nothing more has to be asked, only what is in flight waited for."""
        down = [door for door in doors if door.failed is not None]
        return all(door.back for door in down) if down else now - began > grace

    def late(now: float) -> bool:
        return any(now - door.failed > limit for door in doors if door.failed is not None and not door.back)

    while True:
        now = time.monotonic()
        if settled(now):
            if not loop.active:
                break
        elif late(now):
            break
        else:
            for door in doors:
                due = [at for at in door.due if at <= now]
                door.due = [at for at in door.due if at > now]
                for _at in due:
                    ask(door)
        if loop.active:
            loop.step(0.1)
        else:
            time.sleep(0.05)
    loop.close()
    down = [door for door in doors if door.failed is not None]
    errors: Dict[str, int] = {}
    for door in down:
        for kind, count in door.errors.items():
            errors[kind] = errors.get(kind, 0) + count
    seconds = None
    if down and all(door.back for door in down):
        seconds = round(max(door.right[0] for door in down) - min(door.failed or 0.0 for door in down), 2)
    return {
        "failed": [door.target.url for door in down], "seconds": seconds, "hung": sum(door.hung for door in doors),
        "requests": sum(door.requests for door in doors), "errors": errors,
        # Of one that is not back, if any is not.
        "text": next((door.text for door in down if not door.back), down[-1].text if down else ""),
    }


def outcome(found: Dict[str, Any], node: str, what: str) -> Dict[str, Any]:
    """What :func:`stability.restart` takes."""
    return {"node": node, "what": what, **{name: found[name] for name in ("failed", "seconds", "text", "hung", "errors")}}
