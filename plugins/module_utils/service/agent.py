# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The link agent ``vllm-link``: all ranks of an engine over several nodes start together and end together.

Why: a dead head leaves its headless workers running for ever, a dead engine ends with code 0, and a worker that starts anew
cannot join a head that runs. So each start of the whole engine is a *generation*.

    vllm-link wait     before the server starts (ExecStartPre): returns when all ranks stand here, and a generation was opened for them
    vllm-link serve    the agent of this node: the head's answers, the workers' ask it every two seconds
    vllm-link status   what the agent of this node knows, as JSON

The head opens a generation for exactly the starts (systemd's invocation ids) that wait for it. A worker whose head is not in
its generation any more ends its own service, and so does a head that misses a worker; systemd starts them anew, and they wait for
each other again. Nothing is said about a rank whose state is not known. This file runs alone, with the standard library.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

CONFIG = "/etc/vllm/link.json"
RUN = "/run/vllm-link"
POLL_S = 2.0
"""Between two looks at the own service, and between two questions of a worker."""
FRESH_S = 8.0
"""A report that is older says nothing about now."""
SILENT_S = 30.0
"""A head that heard nothing of a worker for so long ends its service."""
AGAIN_S = 30.0
"""Before the same start is killed a second time."""
ANSWER_S = 3.0
SAY_S = 30.0
LINE = 4096
MOST = 256
"""Questions that are answered at the same time."""

Reply = Dict[str, Any]


class Unit(NamedTuple):
    """What systemd says of the service; `active` is empty when it did not say."""

    active: str
    sub: str
    invocation: str
    result: str = ""


class Seen(NamedTuple):
    """State of a rank: ``down``, ``waiting`` (this start waits), ``running`` (this start has a generation), ``stray`` or ``unknown``."""

    state: str
    invocation: str = ""
    generation: str = ""
    detail: str = ""
    plan: str = ""


class Report(NamedTuple):
    """What another rank said, and when, by the own clock."""

    seen: Seen
    at: float


class Config(NamedTuple):
    """link.json: `addresses` and `names` of the nodes in rank order, the own `rank`, and a digest of what all run together."""

    engine: str
    rank: int
    port: int
    addresses: Tuple[str, ...]
    names: Tuple[str, ...]
    plan: str
    unit: str


def parse_config(text: str) -> Config:
    """Read link.json.

    Raises:
        ValueError: it is not one; the message is one sentence.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("%s is not JSON" % CONFIG) from None
    if not isinstance(found, dict):
        raise ValueError("%s is not a table" % CONFIG)
    addresses, names = found.get("addresses"), found.get("names")
    rank, port = found.get("rank"), found.get("port")
    if not isinstance(addresses, list) or len(addresses) < 2 or not all(isinstance(item, str) and item for item in addresses):
        raise ValueError("%s: addresses are those of two or more ranks" % CONFIG)
    if not isinstance(names, list) or len(names) != len(addresses):
        names = addresses
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < len(addresses):
        raise ValueError("%s: rank is a number from 0 to %d" % (CONFIG, len(addresses) - 1))
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise ValueError("%s: port is a number from 1 to 65535" % CONFIG)
    unit = str(found.get("unit") or "vllm.service")
    return Config(str(found.get("engine") or ""), rank, port, tuple(addresses), tuple(str(name) for name in names), str(found.get("plan") or ""), unit)


class Rank:
    """One rank of an engine: what it was told, and what follows. Knows no clock, no socket and no systemd."""

    def __init__(self, config: Config, now: float, token: Callable[[], str], kept: Optional[Mapping[str, Any]] = None) -> None:
        self.config = config
        self.token = token
        self.begun = now
        self.unit = Unit("", "", "")
        self.arrived = ""
        self.generation = ""
        self.members: Dict[int, str] = {}
        self.joined: Tuple[str, str] = ("", "")
        self.reports: Dict[int, Report] = {}
        self.killed: Tuple[str, float] = ("", 0.0)
        self.opened = now
        self._restore(kept or {})

    def _restore(self, kept: Mapping[str, Any]) -> None:
        if kept.get("engine") != self.config.engine or kept.get("rank") != self.config.rank:
            return
        joined, members = kept.get("joined"), kept.get("members")
        if isinstance(joined, list) and len(joined) == 2:
            self.joined = (str(joined[0]), str(joined[1]))
        if isinstance(members, dict):
            self.members = {int(key): str(value) for key, value in members.items() if str(key).isdigit()}
        self.generation = str(kept.get("generation") or "")

    def kept(self) -> Dict[str, Any]:
        """What a new agent of the same boot must know."""
        return {"engine": self.config.engine, "rank": self.config.rank, "generation": self.generation, "joined": list(self.joined),
                "members": {str(rank): invocation for rank, invocation in self.members.items()}}

    @property
    def head(self) -> bool:
        return self.config.rank == 0

    def own(self) -> Seen:
        """State of the own rank."""
        active, sub, invocation, result = self.unit
        if not active:
            return Seen("unknown", plan=self.config.plan)
        detail = active if result in ("", "success") else "%s (%s)" % (active, result)
        if active in ("inactive", "failed", "maintenance") or sub.startswith("auto-restart") or not invocation:
            return Seen("down", "", "", detail, self.config.plan)
        if self.joined[0] == invocation:
            return Seen("running", invocation, self.joined[1], detail, self.config.plan)
        if active == "activating":
            return Seen("waiting" if self.arrived == invocation else "down", invocation, "", detail, self.config.plan)
        return Seen("stray", invocation, "", detail, self.config.plan)

    def arrive(self, invocation: str) -> None:
        """A start of the own service stands before the server."""
        self.arrived = invocation

    def may_go(self, invocation: str) -> bool:
        """That start has a generation."""
        return bool(invocation) and self.joined[0] == invocation

    def hear(self, rank: int, seen: Seen, now: float) -> None:
        """Another rank said how it is; a worker hears its head (rank 0), the head its workers."""
        self.reports[rank] = Report(seen, now)

    def step(self, now: float) -> str:
        """Conclude from all that is known; gives the reason for which the own service must end now, or nothing."""
        own = self.own()
        why = ""
        if own.state == "stray":
            why = "the service runs outside of a generation"
        elif self.head:
            if own.state == "waiting" and not self.missing(now):
                self._open(own, now)
            elif own.state == "running" and self.unit.active != "deactivating":
                why = self._broken(now)
        else:
            why = self._follow(own, now)
        if not why or (self.killed[0] == own.invocation and now - self.killed[1] < AGAIN_S):
            return ""
        self.killed = (own.invocation, now)
        return why

    def missing(self, now: float) -> List[str]:
        """Why the head cannot open a generation yet, one text a rank; empty when all wait."""
        made = []
        for rank in range(1, len(self.config.addresses)):
            report = self.reports.get(rank)
            name = "rank %d (%s)" % (rank, self.config.names[rank])
            if report is None:
                made.append("%s has not called yet" % name)
            elif now - report.at > FRESH_S:
                made.append("%s is silent for %.0f s" % (name, now - report.at))
            elif report.seen.state != "waiting":
                made.append("%s is %s" % (name, _said(report.seen)))
            elif report.seen.plan != self.config.plan:
                made.append("%s waits with another plan" % name)
        return made

    def _open(self, own: Seen, now: float) -> None:
        self.generation = self.token()
        self.members = {rank: self.reports[rank].seen.invocation for rank in range(1, len(self.config.addresses))}
        self.members[0] = own.invocation
        self.joined = (own.invocation, self.generation)
        self.opened = now

    def _broken(self, now: float) -> str:
        """What keeps the head's generation from being whole."""
        for rank in range(1, len(self.config.addresses)):
            report = self.reports.get(rank)
            name = "rank %d (%s)" % (rank, self.config.names[rank])
            since = now - max(report.at if report else self.begun, self.begun, self.opened)
            if since > SILENT_S:
                return "no word from %s for %.0f s" % (name, since)
            if report is None or report.seen.state == "unknown":
                continue
            seen = report.seen
            if seen.state not in ("waiting", "running") or seen.invocation != self.members.get(rank):
                return "%s is not in this generation any more: it is %s" % (name, _said(seen))
            if seen.state == "running" and seen.generation != self.generation:
                return "%s is in another generation" % name
        return ""

    def _follow(self, own: Seen, now: float) -> str:
        report = self.reports.get(0)
        if report is None or now - report.at > FRESH_S:
            return ""
        head = report.seen
        if own.state == "waiting" and head.state == "running" and head.generation and self.members.get(self.config.rank) == own.invocation:
            self.generation = head.generation
            self.joined = (own.invocation, head.generation)
        elif own.state == "running" and head.state != "unknown" and (head.state != "running" or head.generation != own.generation):
            return "the head (%s) is not in this generation any more: it is %s" % (self.config.names[0], _said(head))
        return ""

    def waits_for(self, now: float) -> str:
        """What a waiting start waits for, in words."""
        if self.head:
            return "; ".join(self.missing(now)[:8]) or "a generation, which is opened in a moment"
        report = self.reports.get(0)
        name = "the head (%s, port %d)" % (self.config.names[0], self.config.port)
        if report is None:
            return "%s has not answered yet" % name
        if now - report.at > FRESH_S:
            return "%s is silent for %.0f s" % (name, now - report.at)
        return "%s is %s" % (name, _said(report.seen))

    # -- what ranks tell each other --------------------------------------------------------------------------
    def question(self) -> Dict[str, Any]:
        """A worker's message to its head."""
        own = self.own()
        return {"engine": self.config.engine, "rank": self.config.rank, "state": own.state, "invocation": own.invocation, "generation": own.generation,
                "detail": own.detail, "plan": self.config.plan}

    def answer(self, asked: Any, address: str, now: float) -> Reply:
        """The head's answer to a worker's message from `address`; what is none is not heard."""
        rank = asked.get("rank") if isinstance(asked, dict) else None
        if not self.head:
            return {"error": "this node has rank %d of %s and is no head" % (self.config.rank, self.config.engine)}
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 < rank < len(self.config.addresses):
            return {"error": "no rank of this engine"}
        if asked.get("engine") != self.config.engine:
            return {"error": "this is the head of %s" % self.config.engine}
        if address != self.config.addresses[rank]:
            return {"error": "rank %d has the address %s" % (rank, self.config.addresses[rank])}
        self.hear(rank, _seen(asked), now)
        own = self.own()
        # A start that waits is not known to be over when it goes on: the generation is what counts.
        return {"engine": self.config.engine, "state": own.state, "generation": own.generation, "detail": own.detail,
                "member": self.members.get(rank, "") if own.state == "running" else "", "plan": self.config.plan}

    def answered(self, reply: Any, now: float) -> str:
        """A worker takes its head's answer; gives what is wrong with it, or nothing."""
        if not isinstance(reply, dict) or "error" in reply:
            return "the head refused: %s" % str(reply.get("error"))[:200] if isinstance(reply, dict) else "the head's answer is not understood"
        if reply.get("engine") != self.config.engine:
            return "the head answers for another engine"
        self.members = {self.config.rank: str(reply.get("member") or "")[:64]}
        self.hear(0, _seen(reply), now)
        return ""

    def status(self, now: float) -> Dict[str, Any]:
        """All that is known, for a person or a program."""
        own = self.own()
        return {
            "engine": self.config.engine, "rank": self.config.rank, "state": own.state, "generation": own.generation, "detail": own.detail,
            "waits_for": self.waits_for(now) if own.state == "waiting" else "",
            "ranks": {str(rank): {"state": report.seen.state, "detail": report.seen.detail, "age": round(now - report.at, 1)}
                      for rank, report in sorted(self.reports.items())},
        }


def _said(seen: Seen) -> str:
    words = {"down": "down", "waiting": "waiting", "running": "running", "stray": "running outside of a generation"}
    text = words.get(seen.state, "in an unknown state")
    return "%s (%s)" % (text, seen.detail) if seen.state == "down" and seen.detail else text


def _seen(message: Mapping[str, Any]) -> Seen:
    state = str(message.get("state"))
    if state not in ("down", "waiting", "running", "stray"):
        state = "unknown"
    texts = {key: "".join(c for c in str(message.get(key) or "")[:64] if c.isprintable()) for key in ("invocation", "generation", "detail", "plan")}
    return Seen(state, texts["invocation"], texts["generation"], texts["detail"], texts["plan"])


# -- systemd, sockets, files: everything below touches the node ---------------------------------------------------
def look(unit: str) -> Unit:
    """Ask systemd for the state of `unit`; a state without words when it does not answer in time."""
    try:
        done = subprocess.run(["systemctl", "show", "--property=ActiveState,SubState,InvocationID,Result", unit], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Unit("", "", "")
    found = dict(line.split("=", 1) for line in done.stdout.decode("ascii", "replace").splitlines() if "=" in line)
    return Unit(found.get("ActiveState", ""), found.get("SubState", ""), found.get("InvocationID", ""), found.get("Result", ""))


def kill(unit: str) -> None:
    """End the service at once; its ExecStopPost removes the container, and Restart= starts it anew."""
    try:
        subprocess.run(["systemctl", "kill", "--signal=SIGKILL", unit], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        say("systemctl kill %s: %s" % (unit, exc))


def say(text: str) -> None:
    """One line for the journal."""
    sys.stdout.write("vllm-link: %s\n" % text)
    sys.stdout.flush()


def exchange(family: int, address: Any, message: Any, source: Any = None) -> Any:
    """Send one line of JSON and read one back.

    Raises:
        OSError: nobody there, or no whole answer in time.
        ValueError: the answer is not JSON.
    """
    with socket.socket(family, socket.SOCK_STREAM) as link:
        link.settimeout(ANSWER_S)
        if source is not None:
            link.bind(source)
        link.connect(address)
        link.sendall(json.dumps(message).encode() + b"\n")
        return json.loads(read_line(link))


def read_line(link: socket.socket) -> bytes:
    """One line of at most LINE bytes, within ANSWER_S altogether.

    Raises:
        OSError: too long, too slow, or closed before its end.
    """
    found = b""
    end = time.monotonic() + ANSWER_S
    while b"\n" not in found:
        link.settimeout(max(0.01, end - time.monotonic()))
        part = link.recv(LINE)
        if not part or len(found) + len(part) > LINE or time.monotonic() > end:
            raise OSError("no whole line")
        found += part
    return found.split(b"\n", 1)[0]


class Agent:
    """Runs a Rank on a node: looks at its service, listens, asks, and ends the service when that must be."""

    def __init__(self, config: Config, run: str = RUN, see: Callable[[str], Unit] = look, end: Callable[[str], None] = kill) -> None:
        self.run = run
        self.see, self.end = see, end
        self.lock = threading.Lock()
        self.slots = threading.BoundedSemaphore(MOST)
        self.over = threading.Event()
        self.rank = Rank(config, time.monotonic(), lambda: "%032x" % random.SystemRandom().getrandbits(128), _json(_read(self._file)))
        self.written = json.dumps(self.rank.kept())
        self.trouble = ""
        self.refused = ""

    @property
    def _file(self) -> str:
        return os.path.join(self.run, "state.json")

    @property
    def socket_path(self) -> str:
        return os.path.join(self.run, "agent.sock")

    def loop(self) -> None:
        """Until `over`: look, ask, conclude."""
        config = self.rank.config
        self._listen(socket.AF_UNIX, self.socket_path)
        if self.rank.head:
            family, address = _place(config.addresses[0], config.port)
            threading.Thread(target=self._listen_when_there, args=(family, address), daemon=True).start()
        while not self.over.is_set():
            self.turn()
            self.over.wait(POLL_S)

    def turn(self) -> None:
        """One look at the service and what follows from it."""
        config = self.rank.config
        unit = self.see(config.unit)
        with self.lock:
            self.rank.unit = unit
            question = self.rank.question()
        if not self.rank.head:
            self._ask(question)
        with self.lock:
            why = self.rank.step(time.monotonic())
            invocation = self.rank.unit.invocation
            self._keep()
        if why:
            # Between the look and now it may have been started anew; that start has done nothing wrong.
            if self.see(config.unit).invocation == invocation:
                say("%s is ended: %s" % (config.unit, why))
                self.end(config.unit)

    def _ask(self, question: Mapping[str, Any]) -> None:
        config = self.rank.config
        family, address = _place(config.addresses[0], config.port)
        _family, source = _place(config.addresses[config.rank], 0)
        try:
            reply = exchange(family, address, question, source)
        except (OSError, ValueError) as exc:
            trouble = "the head does not answer: %s" % exc
        else:
            with self.lock:
                trouble = self.rank.answered(reply, time.monotonic())
        if trouble != self.trouble:
            say(trouble or "the head answers")
        self.trouble = trouble

    def _keep(self) -> None:
        text = json.dumps(self.rank.kept())
        if text == self.written:
            return
        with open(self._file + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(self._file + ".new", self._file)
        self.written = text

    # -- questions -------------------------------------------------------------------------------------------
    def _listen_when_there(self, family: int, address: Any) -> None:
        told = ""
        while not self.over.is_set():
            try:
                self._listen(family, address)
                say("answers on %s, port %d" % (address[0], address[1]))
                return
            except OSError as exc:
                if str(exc) != told:
                    say("cannot listen on %s, port %d yet: %s" % (address[0], address[1], exc.strerror or exc))
                told = str(exc)
            self.over.wait(POLL_S)

    def _listen(self, family: int, address: Any) -> None:
        server = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_UNIX:
                if os.path.exists(address):
                    os.unlink(address)
            else:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            if family == socket.AF_UNIX:
                os.chmod(address, 0o600)
            server.listen(MOST)
        except OSError:
            server.close()
            raise
        threading.Thread(target=self._accept, args=(server, family == socket.AF_UNIX), daemon=True).start()

    def _accept(self, server: socket.socket, local: bool) -> None:
        with server:
            server.settimeout(1.0)
            while not self.over.is_set():
                try:
                    link, peer = server.accept()
                except socket.timeout:
                    continue
                except OSError:
                    self.over.wait(0.1)
                    continue
                if not self.slots.acquire(blocking=False):
                    link.close()
                    continue
                threading.Thread(target=self._serve, args=(link, local, "" if local else str(peer[0])), daemon=True).start()

    def _serve(self, link: socket.socket, local: bool, address: str) -> None:
        try:
            with link:
                try:
                    asked = json.loads(read_line(link))
                except (ValueError, RecursionError):
                    return
                reply = self.local(asked) if local else self.remote(asked, address)
                link.settimeout(ANSWER_S)
                link.sendall(json.dumps(reply).encode() + b"\n")
        except OSError:
            pass
        finally:
            self.slots.release()

    def remote(self, asked: Any, address: str) -> Reply:
        """A worker's question."""
        with self.lock:
            reply = self.rank.answer(asked, address, time.monotonic())
        refused = "%s from %s" % (reply["error"], address) if "error" in reply else ""
        if refused and refused != self.refused:
            say("refused a question: %s" % refused)
            self.refused = refused
        return reply

    def local(self, asked: Any) -> Reply:
        """A question from this node: a start that waits, or someone who wants to know."""
        op = asked.get("op") if isinstance(asked, dict) else None
        with self.lock:
            now = time.monotonic()
            if op == "status":
                return self.rank.status(now)
            if op != "wait" or not isinstance(asked.get("invocation"), str):
                return {"error": "not understood"}
            self.rank.arrive(asked["invocation"])
            return {"go": self.rank.may_go(asked["invocation"]), "generation": self.rank.joined[1], "text": self.rank.waits_for(now)}


def wait(run: str = RUN, invocation: str = "", pause: float = 1.0) -> int:
    """Return 0 when this start has a generation; has no limit, since the last rank may come late. Says every 30 s what it waits for."""
    invocation = invocation or os.environ.get("INVOCATION_ID", "")
    if not invocation:
        say("wait is for ExecStartPre= of the service: INVOCATION_ID is not set")
        return 2
    told, at = "", 0.0
    while True:
        try:
            reply = exchange(socket.AF_UNIX, os.path.join(run, "agent.sock"), {"op": "wait", "invocation": invocation})
            text = str(reply.get("text"))
            if reply.get("go") is True:
                say("all ranks are here: generation %s" % str(reply.get("generation"))[:8])
                return 0
        except (OSError, ValueError, AttributeError) as exc:
            text = "the link agent of this node does not answer: %s" % exc
        now = time.monotonic()
        if not at or now - at >= SAY_S or (text.split(" for ")[0] != told and now - at >= POLL_S):
            say("waiting: %s" % text)
            told, at = text.split(" for ")[0], now
        time.sleep(pause)


def _place(address: str, port: int) -> Tuple[int, Any]:
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICSERV)
    return found[0][0], found[0][4]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _json(text: str) -> Dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def main(argv: Sequence[str]) -> int:
    """The program; gives its exit status."""
    verb = argv[0] if len(argv) == 1 else ""
    if verb == "wait":
        return wait()
    if verb == "status":
        try:
            sys.stdout.write(json.dumps(exchange(socket.AF_UNIX, os.path.join(RUN, "agent.sock"), {"op": "status"}), indent=2) + "\n")
            return 0
        except (OSError, ValueError) as exc:
            sys.stderr.write("vllm-link: the agent does not answer: %s\n" % exc)
            return 1
    if verb != "serve":
        sys.stderr.write("usage: vllm-link serve | wait | status\n")
        return 2
    try:
        config = parse_config(_read(CONFIG))
    except ValueError as exc:
        sys.stderr.write("vllm-link: %s\n" % exc)
        return 2
    Agent(config).loop()
    return 0


UNIT = """[Unit]
Description=vLLM: link between the ranks of an engine over several nodes
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart=/usr/local/libexec/inferops-vllm/vllm-link serve
Restart=always
RestartSec=2
RestartPreventExitStatus=2
RuntimeDirectory=vllm-link
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateMounts=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
ProcSubset=pid
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
LockPersonality=yes
MemoryDenyWriteExecute=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
CapabilityBoundingSet=
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def program() -> str:
    """This file as a program to install; its source, wherever it was imported from."""
    loader = globals()["__loader__"]
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    return "#!%s -I\n%s" % (python, loader.get_source(__name__))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
