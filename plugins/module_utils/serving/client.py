# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An HTTP client that never waits longer than it was told, for one request or for thousands at once.

One loop drives every connection with non-blocking sockets, so that a deadline holds at each point (connect, TLS, first token, end) and 64
streams need no 64 threads. A request has a connection of its own; a loop that keeps connections gives it one that an earlier request of the
same loop left open, as the libraries of users and routers do.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import select
import selectors
import socket
import ssl
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple
from urllib.parse import unquote, urlsplit

from .wire import BadHttp, EventParser, ResponseParser, Trouble, html_title, request_bytes

READ_SIZE = 65536
BODY_LIMIT = 16 * 1024 * 1024
"""Bytes kept of one answer."""
KEY_LIMIT = 8192

Address = Tuple[int, Tuple[Any, ...]]
"""Address family and address, as socket.connect takes it."""


class InputError(ValueError):
    """What was given cannot be used; the text is one sentence for a person."""


class Deadlines(NamedTuple):
    """Seconds from the start of a request.

    connect: until the connection (with TLS) stands. first: until the first event of a stream. total: until the end. gap: between two
    events of a stream.
    """

    connect: float = 5.0
    first: float = 30.0
    total: float = 120.0
    gap: float = 30.0


DEFAULT = Deadlines()


class Endpoint(NamedTuple):
    """Where to ask. Made by :func:`endpoint`."""

    url: str
    scheme: str
    host: str
    port: int
    base: str
    headers: Dict[str, str]
    context: Optional[ssl.SSLContext]
    secrets: Tuple[str, ...]
    addresses: Tuple[Address, ...]


def read_key(key: str = "", path: str = "", variable: str = "") -> str:
    """The API key itself, from a file, or from a variable of the environment; empty when none is named.

    Raises:
        InputError: the file cannot be read or the key is not one line of printable ASCII. The text never holds the key.
    """
    source = "the API key"
    if not key and path:
        source = "the API key in %s" % path
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                key = file.read(KEY_LIMIT).strip()
        except OSError as exc:
            raise InputError("the API key file %s cannot be read: %s" % (path, exc.strerror or exc)) from None
        if not key:
            raise InputError("the API key file %s is empty" % path)
    elif not key and variable:
        source = "the API key in the variable %s" % variable
        key = os.environ.get(variable, "")
    if key and not re.match(r"[\x21-\x7e]+\Z", key):
        raise InputError("%s is not one word of printable ASCII" % source)
    return key


def endpoint(url: str, key: str = "", ca_file: str = "", insecure: bool = False, headers: Optional[Dict[str, str]] = None) -> Endpoint:
    """Make an endpoint of a URL such as ``https://router.example:8443/prefix``; ``/v1`` at its end is taken off.

    Raises:
        InputError: the URL, the CA file or a header cannot be used.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
        host = parts.hostname or ""
    except ValueError:
        raise InputError("%s is not a URL" % _shown(url)) from None
    if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f]", url.strip()):
        raise InputError("%s is not a URL that begins with http:// or https:// and names a host" % _shown(url))
    if parts.query or parts.fragment:
        raise InputError("%s: give the address of the server without ? and #" % _shown(url))
    base = re.sub(r"/v1/?\Z", "", parts.path).rstrip("/")
    sent = dict(headers or {})
    secrets = [key] if key else []
    if key:
        sent["Authorization"] = "Bearer " + key
    elif parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
        sent["Authorization"] = "Basic " + base64.b64encode(("%s:%s" % (user, password)).encode()).decode()
        secrets += [password, sent["Authorization"][6:]]
    for name, value in sent.items():
        if not re.match(r"[A-Za-z0-9_-]+\Z", name) or re.search(r"[\r\n\x00]", value):
            raise InputError("the header %r is none" % name)
    context = _context(ca_file, insecure) if parts.scheme == "https" else None
    number = port if port is not None else (443 if context else 80)
    clean = "%s://%s:%d%s" % (parts.scheme, "[%s]" % host if ":" in host else host, number, base)
    return Endpoint(clean, parts.scheme, host, number, base, sent, context, tuple(s for s in secrets if s), ())


def _shown(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)[:200] or "an empty text"


def _context(ca_file: str, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as exc:
        raise InputError("the CA file %s cannot be used: %s" % (ca_file, getattr(exc, "strerror", None) or exc)) from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def resolved(target: Endpoint, seconds: float = 5.0) -> Tuple[Endpoint, Optional[Trouble]]:
    """`target` with its addresses, asked for once. A resolver that hangs is left behind after `seconds`."""
    if target.addresses:
        return target, None
    found: List[Address] = []
    failed: List[str] = []

    def ask() -> None:
        try:
            for item in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM):
                found.append((int(item[0]), tuple(item[4])))
        except (OSError, UnicodeError) as exc:
            failed.append(str(getattr(exc, "strerror", None) or exc))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if found:
        return target._replace(addresses=tuple(dict.fromkeys(found))[:8]), None
    why = failed[0] if failed else "no answer within %g s" % seconds
    return target, Trouble("address", "resolve", "the name %s does not resolve: %s" % (target.host, why))


class Request(NamedTuple):
    """One request. `path` begins with a slash and is put behind the endpoint's own path."""

    method: str
    path: str
    body: bytes = b""
    stream: bool = False
    deadlines: Deadlines = DEFAULT
    headers: Tuple[Tuple[str, str], ...] = ()
    limit: int = BODY_LIMIT


def post(path: str, body: Any, stream: bool = False, deadlines: Deadlines = DEFAULT) -> Request:
    """A request with a JSON body."""
    return Request("POST", path, json.dumps(body, separators=(",", ":")).encode(), stream, deadlines)


class Reply:
    """What came back. Times are seconds from the start of the request; None when the point was not reached.

    status, headers, body: of the answer (body is empty for a stream that was understood). trouble: None when all went well.
    connected, sent, first_byte, first_event, end: points in time. events: count of events. reused: whether the connection stood before.
    """

    __slots__ = ("body", "connected", "done", "end", "events", "first_byte", "first_event", "headers", "reused", "sent", "started", "status", "trouble")

    def __init__(self) -> None:
        self.status = 0
        self.headers: Dict[str, str] = {}
        self.body = b""
        self.trouble: Optional[Trouble] = None
        self.started = 0.0
        self.connected: Optional[float] = None
        self.sent: Optional[float] = None
        self.first_byte: Optional[float] = None
        self.first_event: Optional[float] = None
        self.end: Optional[float] = None
        self.events = 0
        self.reused = False
        self.done = False
        """Whether the stream said ``[DONE]``."""

    @property
    def ok(self) -> bool:
        """Whether an answer of status 200 came whole."""
        return self.trouble is None

    def json(self) -> Tuple[Any, Optional[Trouble]]:
        """The body as JSON, or why it is none."""
        if self.trouble is not None:
            return None, self.trouble
        return parse_json(self.body)


def parse_json(body: bytes) -> Tuple[Any, Optional[Trouble]]:
    """`body` as JSON, or the trouble ``not_json`` with what it is instead. A whole number of 100 digits and more becomes a float, like 1e999."""
    try:
        return json.loads(body.decode("utf-8"), parse_int=lambda text: int(text) if len(text) < 100 else float(text)), None
    except (ValueError, RecursionError):
        page, title = html_title(body)
        if page:
            text = "a page for a browser came instead of JSON%s: is this the API server?" % (" (%s)" % title if title else "")
        elif not body.strip():
            text = "the answer is empty"
        else:
            text = "the answer is not JSON: %r" % body[:60].decode("utf-8", "replace")
        return None, Trouble("not_json", "body", text)


OnEvent = Callable[[bytes, float], None]
OnDone = Callable[[Reply], None]


class Loop:
    """Drives exchanges until all are done.

    ``start`` begins one; its `on_done` is called once, with the reply, and may start others. ``run`` returns when none is left, or when
    its deadline is past or `stop` returned True; what is then unfinished ends as a time-out at its point.

    With `keep`, a connection whose answer came whole is kept for the next request to the same endpoint, unless the server closes it. One
    that was closed meanwhile is left; a request that was sent is never sent again, so that no failure is hidden.
    """

    def __init__(self, keep: bool = False) -> None:
        self.selector = selectors.DefaultSelector()
        self.active: Set[_Exchange] = set()
        self.keep = keep
        self._check = 0.0
        self._idle: Dict[str, List[socket.socket]] = {}

    def start(self, target: Endpoint, request: Request, on_done: OnDone, on_event: Optional[OnEvent] = None) -> None:
        """Begin one exchange; the addresses of `target` must be known."""
        exchange = _Exchange(self, target, request, on_done, on_event)
        self.active.add(exchange)
        exchange.begin()

    def run(self, seconds: float = 3600.0, stop: Optional[Callable[[], bool]] = None) -> None:
        """Work until nothing is left, at most `seconds`."""
        until = time.monotonic() + seconds
        while self.active and time.monotonic() < until and not (stop is not None and stop()):
            self.step(until - time.monotonic())
        for exchange in list(self.active):
            exchange.fail("timeout", "the time for the whole stage was up", final=True)
        self.active.clear()

    def step(self, seconds: float) -> None:
        """Wait for sockets once, at most `seconds` and at most until the clock must be looked at, and work on those that are ready."""
        now = time.monotonic()
        if now >= self._check:
            for exchange in list(self.active):
                exchange.look_at_the_clock(now)
            self._check = now + 0.05
        if not self.active:
            return
        try:
            ready = self.selector.select(max(0.0, min(self._check - now, seconds)))
        except OSError:
            ready = []
        for key, _events in ready:
            key.data.work()

    def close(self) -> None:
        """Close every connection that is left, without a word to anyone, and give the selector back."""
        for exchange in list(self.active):
            exchange.drop()
        self.active.clear()
        for sock in [sock for kept in self._idle.values() for sock in kept]:
            _shut(sock)
        self._idle.clear()
        self.selector.close()

    def idle(self, target: Endpoint) -> Optional[socket.socket]:
        """A connection to `target` that an earlier request left open, None when there is none."""
        kept = self._idle.get(target.url, [])
        while kept:
            sock = kept.pop()
            if _quiet(sock):
                return sock
            _shut(sock)
        return None

    def put(self, target: Endpoint, sock: socket.socket) -> None:
        """Keep a connection to `target` for the next request."""
        self._idle.setdefault(target.url, []).append(sock)


def _quiet(sock: socket.socket) -> bool:
    """Whether nothing waits to be read: an end or bytes that nobody asked for make a kept connection useless."""
    ready = select.poll()
    try:
        ready.register(sock, select.POLLIN)
        return not ready.poll(0)
    except (OSError, ValueError):
        return False


def _shut(sock: socket.socket) -> None:
    try:
        sock.close()
    except OSError:
        pass


class _Exchange:
    """One connection: connect, TLS, send, receive."""

    def __init__(self, loop: Loop, target: Endpoint, request: Request, on_done: OnDone, on_event: Optional[OnEvent]) -> None:
        self.loop = loop
        self.target = target
        self.request = request
        self.on_done = on_done
        self.on_event = on_event
        self.reply = Reply()
        self.kept = bytearray()
        self.size = 0
        self.parser = ResponseParser(self._body)
        self.events = EventParser(self._event)
        self.point = "connect"
        self.left: Any = b""
        self.sock: Optional[socket.socket] = None
        self.registered = 0
        self.addresses = list(target.addresses)
        self.last = 0.0
        self.error_event = ""

    def begin(self) -> None:
        self.reply.started = time.monotonic()
        headers = {"Accept": "text/event-stream" if self.request.stream else "application/json"}
        headers.update(self.target.headers)
        headers.update(self.request.headers)
        if self.request.body:
            headers["Content-Type"] = "application/json"
        host = "[%s]" % self.target.host if ":" in self.target.host else self.target.host
        data = request_bytes(
            self.request.method, self.target.base + self.request.path, "%s:%d" % (host, self.target.port), headers, self.request.body, self.loop.keep)
        self.left = memoryview(data)
        self.sock = self.loop.idle(self.target)
        if self.sock is None:
            self._next_address()
        else:
            self.reply.reused = True
            self._ready()
            self.work()

    def _next_address(self) -> None:
        if not self.addresses:
            self.fail("address", "%s has no address that was resolved" % self.target.host)
            return
        family, address = self.addresses.pop(0)
        try:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self.sock.connect_ex(address)
        except OSError as exc:
            self._connect_failed(exc.errno or 0)
            return
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._connect_failed(code)
            return
        self._want(selectors.EVENT_WRITE)

    def _connect_failed(self, code: int) -> None:
        if self.addresses:
            self.drop()
            self._next_address()
            return
        at = "%s port %d" % (self.target.host, self.target.port)
        if code == errno.ECONNREFUSED:
            self.fail("refused", "nothing listens on %s" % at)
        elif code in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT):
            self.fail("unreachable", "there is no way to %s: %s" % (at, os.strerror(code)))
        elif code in (errno.EMFILE, errno.ENFILE):
            self.fail("network", "this machine allows no more open connections (ulimit -n)")
        else:
            self.fail("network", "%s: %s" % (at, os.strerror(code) if code else "no connection"))

    def _want(self, events: int) -> None:
        if events == self.registered or self.sock is None:
            return
        if self.registered:
            self.loop.selector.modify(self.sock, events, self)
        else:
            self.loop.selector.register(self.sock, events, self)
        self.registered = events

    def work(self) -> None:
        """The socket is ready for what was waited for."""
        if self.sock is None:
            return
        try:
            if self.point == "connect":
                code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._connect_failed(code)
                    return
                self._connected()
            if self.point == "tls":
                self.sock.do_handshake()  # type: ignore[attr-defined]
                self._ready()
            if self.point == "send":
                self._send()
                return
            if self.point in ("first", "body"):
                self._receive()
        except BlockingIOError:
            # While a large request is sent, the buffer is full.
            self._want(selectors.EVENT_WRITE if self.point == "send" else selectors.EVENT_READ)
        except ssl.SSLWantReadError:
            self._want(selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._want(selectors.EVENT_WRITE)
        except ssl.SSLError as exc:
            self.fail("tls", _tls_text(exc, self.target))
        except BadHttp as exc:
            text = str(exc)
            self.fail("tls" if "TLS" in text else "not_http", text)
        except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError):
            self._ended("was reset")
        except OSError as exc:
            self.fail("network", exc.strerror or str(exc))

    def _connected(self) -> None:
        if self.target.context is None:
            self._ready()
            return
        self.point = "tls"
        plain = self.sock
        if plain is None:
            return
        self._unregister()
        self.sock = self.target.context.wrap_socket(plain, server_hostname=self.target.host, do_handshake_on_connect=False)
        self._want(selectors.EVENT_WRITE)

    def _ready(self) -> None:
        self.reply.connected = self._since()
        self.point = "send"
        self._want(selectors.EVENT_WRITE)

    def _send(self) -> None:
        if self.sock is None:
            return
        while self.left:
            sent = self.sock.send(self.left)
            self.left = self.left[sent:]
        self.left = b""
        self.reply.sent = self._since()
        self.point = "first"
        self._want(selectors.EVENT_READ)

    def _receive(self) -> None:
        # Some reads in a row, so that one fast stream does not starve the others.
        for _turn in range(16):
            if self.sock is None:
                return
            data = self.sock.recv(READ_SIZE)
            if not data:
                self._ended("was closed")
                return
            if self.reply.first_byte is None:
                self.reply.first_byte = self._since()
            self.parser.feed(data)
            if self.parser.in_body and self.point == "first" and not self.request.stream:
                self.point = "body"
            if self.parser.complete:
                self._ended("was closed")
                return
            if self.sock is not None and len(data) < READ_SIZE and self.target.context is None:
                self._want(selectors.EVENT_READ)
                return
        self._want(selectors.EVENT_READ)

    def _body(self, data: bytes) -> None:
        if self.request.stream and self.parser.status == 200:
            self.events.feed(data)
            # What is no stream of events is kept, to say what it is.
            if self.reply.events or self.size > 4096:
                return
        self.size += len(data)
        if self.size > self.request.limit:
            raise BadHttp("the answer is larger than %d bytes" % self.request.limit)
        self.kept += data

    def _event(self, data: bytes) -> None:
        now = time.monotonic()
        reply = self.reply
        self.last = now
        if data == b"[DONE]":
            reply.done = True
            return
        reply.events += 1
        if reply.first_event is None:
            reply.first_event = now - reply.started
            self.point = "body"
        if data[:9] == b'{"error":' or (data[:10] == b'{"object":' and b'"error"' in data[:40]):
            self.error_event = self.error_event or api_error(data)
        if self.on_event is not None:
            self.on_event(data, now - reply.started)

    def _ended(self, how: str) -> None:
        """The connection is over, or the answer complete."""
        reply = self.reply
        whole = self.parser.close() and how == "was closed"
        reply.status, reply.headers = self.parser.status, self.parser.headers
        reply.body = bytes(self.kept)
        if not self.parser.in_body:
            self.fail("closed", "the connection %s without an answer" % how)
        elif reply.status != 200:
            self.fail("status", "HTTP %d%s" % (reply.status, _status_text(reply.body, self.parser.reason)))
        elif self.error_event:
            self.fail("error_event", "the stream holds an error: %s" % self.error_event)
        elif self.request.stream and not reply.events:
            page, title = html_title(reply.body)
            if page:
                self.fail("not_json", "a page for a browser came instead of a stream%s" % (" (%s)" % title if title else ""))
            elif not whole:
                self.fail("truncated", "the connection %s before the first event" % how)
            else:
                self.fail("not_stream", "the answer is not a stream of events but %s" % (reply.headers.get("content-type") or "nothing"))
        elif not whole:
            self.fail("truncated", "the connection %s in the middle of the answer%s" % (
                how, ", after %d events" % reply.events if self.request.stream else ""))
        elif self.request.stream and not reply.done:
            self.fail("truncated", "the stream ended after %d events without [DONE]" % reply.events)
        else:
            self._finish()

    def look_at_the_clock(self, now: float) -> None:
        """End the exchange when a deadline is past."""
        since = now - self.reply.started
        limits = self.request.deadlines
        if self.reply.connected is None and since >= limits.connect:
            where = "no connection within" if self.point == "connect" else "no TLS handshake within"
            self.fail("timeout", "%s %g s" % (where, limits.connect))
        elif since >= limits.total:
            seen = ", after %d events" % self.reply.events if self.request.stream else ""
            self.fail("timeout", "no end within %g s%s" % (limits.total, seen), point="first" if self.point == "first" else "total")
        elif self.request.stream and self.reply.first_event is None and since >= limits.first:
            self.fail("timeout", "no first token within %g s" % limits.first)
        elif self.request.stream and self.reply.first_event is not None and now - self.last >= limits.gap:
            self.fail("timeout", "the stream stood still for %g s after %d events" % (limits.gap, self.reply.events))

    def fail(self, kind: str, text: str, point: str = "", final: bool = False) -> None:
        """End with a trouble."""
        if kind == "not_http" and "larger" in text:
            kind = "too_large"
        reply = self.reply
        if not reply.status:
            reply.status, reply.headers = self.parser.status, self.parser.headers
        reply.trouble = Trouble(kind, point or self.point, text)
        self._finish(final)

    def _finish(self, final: bool = False) -> None:
        if self.loop.keep and self.sock is not None and self.reply.trouble is None and self.parser.reusable and not final:
            self._unregister()
            self.loop.put(self.target, self.sock)
            self.sock = None
        self.drop()
        if self.reply.end is None:
            self.reply.end = self._since()
        if self in self.loop.active or final:
            self.loop.active.discard(self)
            self.on_done(self.reply)

    def _unregister(self) -> None:
        if self.registered and self.sock is not None:
            try:
                self.loop.selector.unregister(self.sock)
            except (KeyError, ValueError, OSError):
                pass
        self.registered = 0

    def drop(self) -> None:
        """Close the connection."""
        self._unregister()
        if self.sock is not None:
            _shut(self.sock)
        self.sock = None

    def _since(self) -> float:
        return time.monotonic() - self.reply.started


def _tls_text(exc: ssl.SSLError, target: Endpoint) -> str:
    reason = str(getattr(exc, "reason", None) or "").lower().replace("_", " ")
    verify = getattr(exc, "verify_message", "")
    if verify:
        return "the certificate of %s:%d is not accepted: %s" % (target.host, target.port, verify)
    if reason in ("wrong version number", "http request", "record layer failure", "unknown protocol", "packet length too long"):
        return "%s:%d does not speak TLS; use http://" % (target.host, target.port)
    return "no TLS with %s:%d: %s" % (target.host, target.port, reason or "the connection was closed in the handshake")


def api_error(data: bytes) -> str:
    """The message of an error that the API wrote, at most 300 characters; empty when there is none."""
    found, _trouble = parse_json(data)
    if isinstance(found, dict):
        inner = found.get("error", found)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if not message:
            message = found.get("message") or found.get("detail")
        return " ".join(str(message or "").split())[:300]
    return ""


def _status_text(body: bytes, reason: str) -> str:
    message = api_error(body)
    if message:
        return ": " + message
    page, title = html_title(body)
    if page:
        return " (a page for a browser%s)" % (": " + title if title else "")
    text = " ".join(body[:200].decode("utf-8", "replace").split())
    return ": " + (text or reason) if text or reason else ""


def call(target: Endpoint, request: Request, on_event: Optional[OnEvent] = None) -> Reply:
    """One request, from its name to its end."""
    target, trouble = resolved(target, request.deadlines.connect)
    if trouble is not None:
        reply = Reply()
        reply.trouble = trouble
        reply.end = 0.0
        return reply
    done: List[Reply] = []
    loop = Loop()
    try:
        loop.start(target, request, done.append, on_event)
        loop.run(request.deadlines.total + request.deadlines.connect + 1.0)
    finally:
        loop.close()
    return done[0]
