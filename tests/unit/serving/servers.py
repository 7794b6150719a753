# SPDX-License-Identifier: GPL-3.0-or-later
"""Small real servers in threads: one that acts like vLLM, and those that a client must survive."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODEL = "moonshotai/Kimi-K3"


class State:
    """What the server does, and what it counted."""

    def __init__(self, **given: Any) -> None:
        self.caching = True
        self.block = 16
        self.retains = True
        self.reports_cached = True
        self.gives_ids = True
        self.session = False
        self.key = ""
        self.model = MODEL
        self.health = 200
        self.hang = False
        self.stream_cut = 0
        self.chunk_lie = False
        self.metrics: Callable[[State], str] | None = None
        self.tool: list[Any] = []
        self.extra_queries = 0
        self.slots = 0
        self.preemptions = 0
        self.token_delay = 0.0
        self.error_every = 0
        self.html = False
        self.reasoning = "because"
        self.content = "Paris."
        self.__dict__.update(given)
        self.queries = 0
        self.hits = 0
        self.requests = 0
        self.running = 0
        self.waiting = 0
        self.seen: set[tuple[int, ...]] = set()
        self.bodies: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.gate = threading.Semaphore(self.slots or 100000)

    def tokens(self, body: dict[str, Any]) -> list[int]:
        """One token a byte, as the lab's tokenizer does."""
        text = "".join("<%s>%s" % (m["role"], m["content"]) for m in body["messages"])
        if self.session:
            text = "session %d %s" % (self.requests, text)
        return list(text.encode())

    def cached(self, ids: list[int]) -> int:
        """Look up, then keep every block."""
        with self.lock:
            self.queries += len(ids) + self.extra_queries if self.caching else 0
            length = 0
            if self.caching and self.retains:
                while length + self.block < len(ids) and tuple(ids[: length + self.block]) in self.seen:
                    length += self.block
                for end in range(self.block, len(ids) + 1, self.block):
                    self.seen.add(tuple(ids[:end]))
            self.hits += length
            return length

    def text(self) -> str:
        if self.metrics is not None:
            return self.metrics(self)
        return (
            '# TYPE vllm:prefix_cache_queries counter\n'
            f'vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {self.queries}\n'
            f'vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {self.hits}\n'
            f'vllm:num_requests_running{{engine="0"}} {self.running}\nvllm:num_requests_waiting{{engine="0"}} {self.waiting}\n'
            f'vllm:num_preemptions_total{{engine="0"}} {self.preemptions}\nvllm:kv_cache_usage_perc{{engine="0"}} 0.5\n'
            f'vllm:cache_config_info{{enable_prefix_caching="{self.caching}",block_size="{self.block}",engine="0"}} 1.0\n'
        )


class Handler(BaseHTTPRequestHandler):
    """The part of vLLM's API that the stages use."""

    protocol_version = "HTTP/1.1"
    # As servers of asyncio do: small writes go out at once.
    disable_nagle_algorithm = True
    state: State

    def log_message(self, *_args: Any) -> None:
        pass

    def answer(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        state = self.state
        if state.html:
            self.answer(200, "<!DOCTYPE html><html><head><title>Welcome to nginx!</title></head></html>", "text/html")
        elif self.path == "/health":
            self.answer(state.health, "")
        elif self.path == "/version":
            self.answer(200, {"version": "0.32.0"})
        elif self.path == "/metrics":
            self.answer(200, state.text(), "text/plain")
        elif state.key and self.headers.get("Authorization") != "Bearer " + state.key:
            self.answer(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": state.model, "max_model_len": 32768}]})
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        state = self.state
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if state.html:
            self.answer(200, "<html></html>", "text/html")
            return
        if state.key and self.headers.get("Authorization") != "Bearer " + state.key:
            self.answer(401, {"error": "Unauthorized"})
            return
        with state.lock:
            state.requests += 1
            number = state.requests
            state.bodies.append(body)
            state.waiting += 1
        while state.hang:
            time.sleep(0.02)
        with state.gate:
            with state.lock:
                state.waiting -= 1
                state.running += 1
            try:
                if state.error_every and number % state.error_every == 0:
                    self.answer(500, {"error": {"message": "EngineCore encountered an issue."}})
                    return
                self.complete(body)
            finally:
                with state.lock:
                    state.running -= 1

    def complete(self, body: dict[str, Any]) -> None:
        state = self.state
        ids = state.tokens(body)
        cached = state.cached(ids)
        wanted = int(body.get("max_tokens", 8))
        usage: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": wanted, "total_tokens": len(ids) + wanted}
        if state.reports_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if body.get("stream"):
            self.stream(wanted, usage)
            return
        message: dict[str, Any] = {"role": "assistant", "content": state.content, "reasoning": state.reasoning}
        finish = "stop"
        if body.get("tools"):
            message["tool_calls"] = state.tool.pop(0) if state.tool else []
            finish = "tool_calls"
        time.sleep(state.token_delay * wanted)
        found: dict[str, Any] = {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}
        if body.get("return_token_ids") and state.gives_ids:
            found["prompt_token_ids"] = ids
        self.answer(200, found)

    def stream(self, wanted: int, usage: dict[str, Any]) -> None:
        state = self.state
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def event(data: str) -> None:
            text = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.wfile.flush()

        event('{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}')
        for number in range(wanted):
            if state.stream_cut and number >= state.stream_cut:
                if state.chunk_lie:
                    self.wfile.write(b"0\r\n\r\n")
                self.close_connection = True
                return
            time.sleep(state.token_delay)
            text = state.content if number == 0 else ""
            extra = ',"reasoning":"%s"' % state.reasoning if number == 0 and state.reasoning else ""
            finish = '"stop"' if number == wanted - 1 else "null"
            event('{"choices":[{"index":0,"delta":{"content":"%s"%s},"finish_reason":%s}]}' % (text, extra, finish))
        event(json.dumps({"choices": [], "usage": usage}, separators=(",", ":")))
        event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    # Clients that leave in the middle are part of the tests.

    def handle_error(self, *_args: Any) -> None:
        pass


@contextlib.contextmanager
def serving(state: State, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of a server that acts like vLLM as `state` says."""
    server = Server(("127.0.0.1", 0), type("Own", (Handler,), {"state": state}))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield "%s://127.0.0.1:%d" % ("https" if context else "http", server.server_address[1])
    finally:
        state.hang = False
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def raw(answer: bytes | None, close: bool = True, accept: bool = True) -> Iterator[str]:
    """A TCP server that says `answer` to everyone (None: not a word), and closes or keeps the connection. Without `accept` none is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1 if accept else 0)
    kept: list[socket.socket] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                connection, _address = listener.accept()
            except OSError:
                return
            kept.append(connection)
            if answer is not None:
                with contextlib.suppress(OSError):
                    connection.settimeout(2)
                    connection.recv(65536)
                    connection.sendall(answer)
            if close:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    if accept:
        threading.Thread(target=work, daemon=True).start()
    try:
        yield "http://127.0.0.1:%d" % listener.getsockname()[1]
    finally:
        ended.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in kept:
            connection.close()


def certificate(folder: Path, name: str = "IP:127.0.0.1") -> tuple[ssl.SSLContext, Path]:
    """A server's TLS context with a certificate of its own, and the file to trust."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key), "-out", str(cert),
         "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=" + name], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert
