# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read on a node while its rank starts: unit, journal, /health, memory. Every command has a deadline."""

from __future__ import annotations

import http.client
import json
import subprocess
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from ..node.processes import cgroup_path
from ..node.redact import redact
from . import deployed, progress
from .names import LINK_UNIT

COMMAND_S = 15.0
HEALTH_S = 3.0
FIRST_BYTES = 1024 * 1024
LAST_BYTES = 3 * 1024 * 1024
"""Of a long journal the begin and the end are kept: the first failure stands early, the last words late."""
_CGROUP_FILES = ("/sys/fs/cgroup%s/memory.stat", "/sys/fs/cgroup/unified%s/memory.stat", "/sys/fs/cgroup/memory%s/memory.stat")
_CGROUP_FIELDS = ("anon", "shmem", "total_rss", "total_mapped_file")


class Line(NamedTuple):
    """One line of the journal; `invocation` is that of the unit's run which printed it, or which systemd speaks of."""

    text: str
    invocation: str
    cursor: str


def run(argv: Sequence[str], seconds: float = COMMAND_S) -> Tuple[int, str, str]:
    """Exit status, stdout and stderr; status 127 for a program that is not there, 124 for one that did not end."""
    try:
        done = subprocess.run(list(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return 124, "", "%s did not answer in %d s" % (argv[0], seconds)
    except OSError as exc:
        return 127, "", "%s: %s" % (argv[0], exc.strerror or exc)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def show(unit: str) -> progress.Unit:
    """State of the unit, now."""
    _rc, out, _err = run(["systemctl", "show", "--no-pager", "--property=" + ",".join(progress.PROPERTIES), unit])
    return progress.unit(out)


def running(unit: str) -> str:
    """Invocation of the unit when it is up or on its way, else empty."""
    now = show(unit)
    return now.invocation if now.active in ("active", "activating", "reloading", "deactivating") else ""


def settled(service: str, linked: bool) -> bool:
    """The service is up, starts at boot and, where it has an API, answers; with `linked` its link agent is up, too."""
    now = show(service + ".service")
    if now.active != "active" or not now.enabled or (linked and show(LINK_UNIT).active != "active"):
        return False
    about = told(service)
    return not about.health_url or healthy(about.health_url)


def container_id(engine: str, container: str) -> str:
    """Id of the container of that name, empty when there is none."""
    rc, out, _err = run([engine, "inspect", "--format", "{{.Id}}", container], 5.0)
    return "" if rc else out.strip()


def parse_journal(text: str) -> List[Line]:
    """Lines of ``journalctl --output=json``; a line that is no JSON object is left out. Text that is not UTF-8 is a list of bytes there."""
    found: List[Line] = []
    for row in text.splitlines():
        try:
            entry = json.loads(row)
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict):
            continue
        message = entry.get("MESSAGE")
        if isinstance(message, list):
            try:
                message = bytes(message).decode("utf-8", "replace")
            except (TypeError, ValueError):
                continue
        if isinstance(message, str):
            invocation = entry.get("_SYSTEMD_INVOCATION_ID") or entry.get("INVOCATION_ID") or ""
            found.append(Line(message, str(invocation), str(entry.get("__CURSOR", ""))))
    return found


def journal(units: Sequence[str], cursor: str = "", invocation: str = "") -> List[Line]:
    """Lines of `units` after `cursor`; without a cursor those of one `invocation`, and none when neither is known."""
    if not cursor and not invocation:
        return []
    argv = ["journalctl", "--no-pager", "--quiet", "--all", "--output=json", "--output-fields=MESSAGE,_SYSTEMD_INVOCATION_ID,INVOCATION_ID"]
    if cursor:
        argv += ["--after-cursor=" + cursor] + ["--unit=" + unit for unit in units]
    else:
        argv += ["_SYSTEMD_INVOCATION_ID=" + invocation]
    _rc, out, _err = run(argv, 60.0)
    return parse_journal(out)


def cursor_now() -> str:
    """Cursor of the journal's end, empty when there is no journal."""
    _rc, out, _err = run(["journalctl", "--no-pager", "--quiet", "--lines=1", "--output=json", "--output-fields=MESSAGE"])
    lines = parse_journal(out)
    return lines[-1].cursor if lines else ""


def healthy(url: str) -> bool:
    """/health answers 200; no proxy is asked, as the address is on this node."""
    return fetch(url, 0) is not None


def fetch(url: str, most: int) -> Optional[bytes]:
    """At most `most` bytes that `url` (``http://host:port/path``) answers with status 200, else None."""
    # http.client alone: urllib.request takes a tenth of a second to import, on every node and for each look.
    parts = urlsplit(url)
    try:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=HEALTH_S)
        try:
            connection.request("GET", parts.path or "/")
            answer = connection.getresponse()
            return answer.read(most) if answer.status == 200 else None
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return None


def memory(engine: str, container: str) -> Optional[float]:
    """GiB of host memory that the container holds (without the page cache), None when that cannot be told."""
    rc, out, _err = run([engine, "inspect", "--format", "{{.State.Pid}}", container], 5.0)
    pid = out.strip()
    if rc or not pid.isdigit() or pid == "0":
        return None
    path = cgroup_path(int(pid))
    for pattern in _CGROUP_FILES:
        try:
            with open(pattern % path.rstrip("/"), encoding="ascii", errors="replace") as source:
                found = parse_memory(source.read(65536))
        except OSError:
            continue
        if found is not None:
            return found
    return None


def parse_memory(text: str) -> Optional[float]:
    """GiB of anonymous and shared memory in a cgroup's ``memory.stat`` (both versions)."""
    total, seen = 0, False
    for row in text.splitlines():
        name, _blank, value = row.partition(" ")
        if name in _CGROUP_FIELDS and value.strip().isascii() and value.strip().isdigit():
            total, seen = total + int(value), True
    return total / 1024.0 ** 3 if seen else None


def bounded(text: str, first: int = FIRST_BYTES, last: int = LAST_BYTES) -> str:
    """`text` with its middle left out when it is longer than `first` + `last` characters; cut at the ends of lines."""
    if len(text) <= first + last:
        return text
    head = text[:first].rsplit("\n", 1)[0]
    tail = text[-last:].split("\n", 1)[-1]
    return "%s\n… %d characters left out …\n%s" % (head, len(text) - len(head) - len(tail), tail)


def since(units: Sequence[str], cursor: str, without: str) -> str:
    """Journal of `units` after `cursor` as text, without secrets and without the lines of the invocation `without` (the service that was there before)."""
    lines = (found.text for found in journal(units, cursor) if not without or found.invocation != without)
    return redact(bounded("\n".join(lines)))


def read(path: str) -> str:
    """Text of a file, empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read(1024 * 1024)
    except OSError:
        return ""


def told(service: str) -> deployed.Told:
    """What the unit of `service` says of where it answers."""
    _rc, out, _err = run(["systemctl", "show", "--no-pager", "--property=FragmentPath", service + ".service"])
    return deployed.told(read(deployed.parse_fragment(out)), read(deployed.files(service)[0]))


def look(service: str, about: deployed.Told, begin: str, before: Mapping[str, Any]) -> Dict[str, Any]:
    """One look at the rank.

    Args:
        begin: cursor of the journal before the start.
        before: what the look before returned, ``{}`` for the first.

    Returns:
        ``{"state": waiting | ready | failed, "why", "progress", "cursor", "restarts", "first_restarts", "invocation", "ended", "headless", "ready_s"}``
    """
    unit = service + ".service"
    now = show(unit)
    cursor = str(before.get("cursor") or begin)
    lines = journal([unit], cursor, now.invocation)
    moved = progress.advance(progress.from_dict(before.get("progress")), now.invocation, [
        found.text for found in lines if found.invocation == now.invocation])
    # A unit that is not up cannot be what answers on its port.
    answer = None if not about.health_url else now.active == "active" and healthy(about.health_url)
    first = before.get("first_restarts")
    first = first if isinstance(first, int) else now.restarts
    # A start that is still at its first steps says nothing of how the one before it ended.
    ended = str(before.get("ended") or "") if now.status is None and now.result == "success" else progress.ended(now)
    verdict = progress.judge(now, answer, first, ended)
    return {
        "state": verdict.state, "why": verdict.why, "progress": moved._asdict(), "cursor": lines[-1].cursor if lines else cursor,
        "restarts": now.restarts, "first_restarts": first, "invocation": now.invocation, "ended": ended, "headless": not about.health_url,
        "ready_s": about.ready_s,
    }


def news(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Something that a person would want to see at once: another phase or a restart."""
    earlier = progress.from_dict(before.get("progress"))
    later = progress.from_dict(now.get("progress"))
    return not before or (earlier.phase, earlier.invocation) != (later.phase, later.invocation) or before.get("restarts") != now.get("restarts")
