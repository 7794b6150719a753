# SPDX-License-Identifier: GPL-3.0-or-later
"""A reverse proxy that spoils what it passes on, to prove that an acceptance sees it. Standard library alone, so that it runs on a node.

    python3 serving_proxy.py --listen 127.0.0.1:9000 --to http://10.203.77.11:8000 --fault session

session: puts a changing session id in front of the system prompt. truncate: ends every stream after some events, properly.
cut: closes the connection in the middle of a stream. html: answers a page.
evict: resets the prefix cache after each completion (needs VLLM_SERVER_DEV_MODE=1).
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("none", "session", "truncate", "cut", "html", "evict")
EVENTS = 5
count = itertools.count(1)


class Proxy(BaseHTTPRequestHandler):
    """Passes each request on over a connection of its own."""

    protocol_version = "HTTP/1.1"
    # As servers of asyncio do: small writes go out at once.
    disable_nagle_algorithm = True
    target = urllib.parse.urlsplit("http://127.0.0.1:8000")
    fault = "none"

    def log_message(self, *_args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.forward(b"")

    def do_POST(self) -> None:
        self.forward(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def forward(self, body: bytes) -> None:
        completion = self.path.endswith("/completions")
        if self.fault == "html":
            self.reply(200, "text/html", b"<!DOCTYPE html><html><head><title>Bad Gateway</title></head></html>")
            return
        if self.fault == "session" and completion:
            asked = json.loads(body)
            asked["messages"][0]["content"] = "session %08x. %s" % (next(count) * 2654435761 % 2**32, asked["messages"][0]["content"])
            body = json.dumps(asked).encode()
        upstream = http.client.HTTPConnection(self.target.hostname or "", self.target.port or 80, timeout=600)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() in ("authorization", "content-type", "accept")}
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            if self.fault in ("truncate", "cut") and "event-stream" in answer.headers.get("Content-Type", ""):
                self.some_events(answer)
            elif "event-stream" in answer.headers.get("Content-Type", ""):
                self.all_events(answer)
            else:
                self.reply(answer.status, answer.headers.get("Content-Type", ""), answer.read())
            if self.fault == "evict" and completion:
                other = http.client.HTTPConnection(self.target.hostname or "", self.target.port or 80, timeout=60)
                other.request("POST", "/reset_prefix_cache")
                other.getresponse().read()
                other.close()
        except OSError:
            self.close_connection = True
        finally:
            upstream.close()

    def reply(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream_head(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def all_events(self, answer: http.client.HTTPResponse) -> None:
        self.stream_head()
        while data := answer.read1(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def some_events(self, answer: http.client.HTTPResponse) -> None:
        self.stream_head()
        for _number in range(2 * EVENTS):
            line = answer.readline()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        if self.fault == "truncate":
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_args: object) -> None:
        """Clients that leave in the middle are part of the tests."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--listen", default="127.0.0.1:9000")
    parser.add_argument("--to", required=True)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    given = parser.parse_args()
    Proxy.target, Proxy.fault = urllib.parse.urlsplit(given.to), given.fault
    host, _colon, port = given.listen.rpartition(":")
    Server((host, int(port)), Proxy).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
