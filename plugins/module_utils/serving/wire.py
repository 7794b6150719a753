# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of HTTP/1.1 and of server-sent events, without any socket: what comes in, what it says, what is wrong with it."""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

HEAD_LIMIT = 64 * 1024
LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of one server-sent event and of its line: a long answer with token ids is one line."""
MOST_INTERIM = 32
"""Interim answers (1xx) before the answer itself."""


class Trouble(NamedTuple):
    """What went wrong with an exchange.

    kind: a word of :data:`KINDS`. point: where it happened (resolve, connect, tls, send, first, body, total). text: one sentence.
    """

    kind: str
    point: str
    text: str


KINDS = {
    "address": "the URL or its host name is no address that can be asked",
    "refused": "nothing listens there",
    "unreachable": "no way to the host",
    "timeout": "time was up",
    "tls": "TLS could not be agreed on",
    "closed": "the connection was closed without an answer",
    "truncated": "the answer ended before its end",
    "not_http": "the answer is not HTTP",
    "not_json": "the answer is not JSON",
    "not_stream": "the answer is not a stream of events",
    "too_large": "the answer is larger than what is read",
    "status": "an HTTP status other than 200",
    "error_event": "an error inside a stream",
    "network": "another error of the network",
}


class BadHttp(Exception):
    """The bytes are not what HTTP/1.1 allows; the text says why."""


def whole_number(text: str, digits: int = 15) -> Optional[int]:
    """`text` as a whole number, None when it is none. One of more than `digits` digits is taken as 10 to the power of `digits`."""
    # isdigit alone holds for a superscript as well, and int takes neither that nor very many digits.
    if not (text.isascii() and text.isdigit()):
        return None
    return int(text) if len(text) <= digits else 10 ** digits


class ResponseParser:
    """Takes bytes of one HTTP/1.1 response as they come, and hands body bytes to `on_body`.

    `complete` is True at the proper end of the body. :meth:`close` tells whether the end of the connection was a proper end.

    Raises:
        BadHttp: from :meth:`feed`, when the bytes are no HTTP/1.1 response.
    """

    def __init__(self, on_body: Callable[[bytes], None]) -> None:
        self.on_body = on_body
        self.status = 0
        self.reason = ""
        self.headers: Dict[str, str] = {}
        self.complete = False
        self._newer = False
        self._interim = 0
        self._buffer = bytearray()
        self._left: Optional[int] = None
        self._chunked = False
        self._state = "head"

    @property
    def in_body(self) -> bool:
        """Whether the head has been read."""
        return self._state != "head"

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request: the body is whole, nothing follows it, and the server keeps it open."""
        # The empty line behind the last chunk comes with it; a server that sends it later gets a new connection.
        rest = b"\r\n" if self._chunked else b""
        whole = self.complete and self._left == 0 and bytes(self._buffer[:3]) == rest
        return whole and self._newer and "close" not in self.headers.get("connection", "").lower()

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if self._state == "head":
            self._buffer += data
            data = b""
            while self._state == "head":
                if not self._head():
                    return
        if self._chunked:
            self._buffer += data
            self._chunks()
            return
        if self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        if self._left is None:
            if data:
                self.on_body(data)
            return
        if data:
            self.on_body(data[:self._left])
            # What is longer than announced is no second answer.
            self._buffer += data[self._left:]
            self._left -= min(len(data), self._left)
        self.complete = self._left == 0

    def close(self) -> bool:
        """The connection ended; whether that is the end that the server announced."""
        if self.in_body and not self._chunked and self._left is None:
            self.complete = True
        return self.complete

    def _head(self) -> bool:
        """Take one head, that of the answer or of an interim one; whether it was there."""
        start = bytes(self._buffer[:8])
        if start[:5] != b"HTTP/"[:len(start[:5])]:
            raise BadHttp(_foreign(start))
        end = self._buffer.find(b"\r\n\r\n")
        size = 4
        if end < 0:
            end, size = self._buffer.find(b"\n\n"), 2
        if end < 0:
            if len(self._buffer) > HEAD_LIMIT:
                raise BadHttp("the header of the answer does not end")
            return False
        lines = self._buffer[:end].decode("latin-1").splitlines()
        del self._buffer[:end + size]
        parts = lines[0].split(None, 2)
        if len(parts) < 2 or len(parts[1]) != 3 or whole_number(parts[1]) is None:
            raise BadHttp("the answer has no status: %r" % lines[0][:80])
        self.status = int(parts[1])
        self._newer = parts[0] == "HTTP/1.1"
        self.reason = parts[2][:100] if len(parts) > 2 else ""
        if 100 <= self.status < 200:
            self._interim += 1
            if self._interim > MOST_INTERIM:
                raise BadHttp("%d interim answers (HTTP 1xx) came and no answer" % self._interim)
            return True
        self.headers = {}
        for line in lines[1:]:
            name, sign, value = line.partition(":")
            if sign:
                self.headers[name.strip().lower()] = value.strip()
        self._state = "body"
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length", "")
        if not self._chunked:
            self._left = whole_number(length, 18)
        if self.status in (204, 304):
            self._left = 0
        return True

    def _chunks(self) -> None:
        buffer = self._buffer
        at = 0
        while not self.complete:
            if self._left is None:
                end = buffer.find(b"\n", at)
                if end < 0:
                    if len(buffer) - at > 1024:
                        raise BadHttp("the answer's chunks have no sizes")
                    break
                size = bytes(buffer[at:end]).split(b";")[0].strip()
                at = end + 1
                if not size:
                    continue
                try:
                    self._left = int(size, 16)
                except ValueError:
                    raise BadHttp("the answer's chunks have no sizes") from None
                if self._left < 0:
                    raise BadHttp("the answer's chunks have no sizes")
                if self._left == 0:
                    self.complete = True
                    break
            have = min(self._left, len(buffer) - at)
            if have:
                self.on_body(bytes(buffer[at:at + have]))
                at += have
                self._left -= have
            if self._left:
                break
            self._left = None
        del buffer[:at]


def _foreign(start: bytes) -> str:
    if start[:1] in (b"\x15", b"\x16") and start[1:2] == b"\x03":
        return "the server speaks TLS there; use https://"
    if start[:4] == b"SSH-":
        return "an SSH server answers there"
    return "the answer does not begin with HTTP but with %r" % start


class EventParser:
    """Takes bytes of a stream of server-sent events and hands the data of each event to `on_data`.

    Only ``data:`` fields count here; comments, names and ids are passed over, as vLLM sends none of weight. Several data lines of one
    event are joined with a line feed, as the format says.

    Raises:
        BadHttp: from :meth:`feed`, when an event is larger than :data:`LINE_LIMIT`.
    """

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self.on_data = on_data
        self._rest = bytearray()
        self._data: List[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._rest += data
        if b"\n" in data:
            lines = bytes(self._rest).split(b"\n")
            self._rest = bytearray(lines.pop())
            for line in lines:
                self._line(line[:-1] if line[-1:] == b"\r" else line)
        if len(self._rest) + self._size > LINE_LIMIT:
            raise BadHttp("an event of the stream is larger than %d bytes" % LINE_LIMIT)

    def _line(self, line: bytes) -> None:
        if line[:5] == b"data:":
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._size += len(line)
        elif not line and self._data:
            found, self._data, self._size = self._data, [], 0
            self.on_data(found[0] if len(found) == 1 else b"\n".join(found))


def request_bytes(method: str, target: str, host: str, headers: Dict[str, str], body: bytes, keep: bool = False) -> bytes:
    """The bytes of one request that asks for the connection to be closed after the answer, or with `keep` to be kept open."""
    lines = ["%s %s HTTP/1.1" % (method, target), "Host: " + host, "Connection: " + ("keep-alive" if keep else "close"),
             "User-Agent: inferops-vllm-verify"]
    lines += ["%s: %s" % item for item in headers.items()]
    if body or method == "POST":
        lines.append("Content-Length: %d" % len(body))
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + body


def html_title(body: bytes) -> Tuple[bool, str]:
    """Whether `body` looks like a page for a browser, and its title."""
    text = body[:4096].decode("utf-8", "replace")
    low = text.lower()
    if "<html" not in low and "<!doctype html" not in low:
        return False, ""
    start = low.find("<title>")
    end = low.find("</title>", start)
    return True, " ".join(text[start + 7:end].split())[:80] if 0 <= start < end else ""
