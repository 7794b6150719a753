# SPDX-License-Identifier: GPL-3.0-or-later
"""All stages over HTTP against what is no sound server: each ends in bounded time with a clear finding, and no exception comes out."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.serving import metrics, ramp, requests, run, start
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import Deadlines

from .servers import MODEL, Handler, State, certificate, raw, serving

SECONDS = 12.0
"""Within which all four stages must be over, with the short deadlines of these tests."""
Stages = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same points in time, a tenth of the seconds."""
    short = Deadlines(0.5, 1.0, 1.0, 1.0)
    monkeypatch.setattr(requests, "QUICK", short)
    monkeypatch.setattr(start, "QUICK", short)
    monkeypatch.setattr(metrics.read, "__defaults__", (short,))


def verified(url: str, **given: Any) -> Stages:
    """All stages; they end in time and are whole."""
    began = time.monotonic()
    words = {"features": (), "repeat": 1, "request_seconds": 1.0, "concurrency": 2, "level_seconds": 0.3, "input_tokens": 64, "output_tokens": 4, **given}
    found = run.run(run.Options(MODEL, (url,), **words))
    assert time.monotonic() - began < SECONDS
    assert set(found) == {"start", "request", "prefix", "concurrency"} and json.dumps(found)
    for stage in found.values():
        for f in stage["findings"]:
            assert f["status"] in ("pass", "skip", "info") or (f["observed"] and f["where"]), f
            assert "Traceback" not in f["observed"] and "\n" not in f["observed"]
    return found


def failed(stage: dict[str, Any]) -> dict[str, str]:
    return {f["id"]: f["observed"] for f in stage["findings"] if f["status"] == "fail"}


@contextlib.contextmanager
def free_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    yield "http://127.0.0.1:%d" % port


@contextlib.contextmanager
def full_backlog() -> Iterator[str]:
    """A port that takes no connection: the SYN is dropped, as by a firewall."""
    with raw(None, accept=False) as url:
        fillers = []
        for _number in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", int(url.rpartition(":")[2])))
            fillers.append(filler)
        yield url
        for filler in fillers:
            filler.close()


@contextlib.contextmanager
def dripping() -> Iterator[str]:
    """A server whose header never ends, a byte at a time."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def one(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.is_set():
                connection.sendall(b"x")
                time.sleep(0.05)

    def work() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=work, daemon=True).start()
    yield "http://127.0.0.1:%d" % listener.getsockname()[1]
    over.set()
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 " + status, "Content-Length: %d" % len(body), "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(("server", "words"), [
    (free_port, "nothing listens on"),
    (full_backlog, "no connection within"),
    (lambda: raw(None, close=False), "no end within"),
    (dripping, "no end within"),
    (lambda: raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", close=False), "no end within"),
    (lambda: raw(b""), "without an answer"),
    (lambda: raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"), "in the middle of the answer"),
    (lambda: raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "an SSH server answers there"),
    (lambda: raw(b"-ERR unknown command 'GET'\r\n"), "does not begin with HTTP"),
    (lambda: raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "chunks have no sizes"),
    (lambda: raw(b"\x15\x03\x03\x00\x02\x02\x46"), "use https://"),
])
def test_what_cannot_be_reached(server: Callable[[], contextlib.AbstractContextManager[str]], words: str) -> None:
    with server() as url:
        found = verified(url)
    assert words in failed(found["start"])["start.health"] and words in failed(found["request"])["request.reach"]
    assert found["request"]["status"] == "failed"
    # What can say nothing says so, with the reason.
    for name in ("prefix", "concurrency"):
        assert found[name]["status"] == "not_verified" and "stage 2 failed: request.reach" in found[name]["summary"]


def test_a_name_that_does_not_resolve() -> None:
    found = verified("http://no-such-host.invalid:8000")
    assert "does not resolve" in failed(found["start"])["start.health"] and "request.reach" in failed(found["request"])


def test_wrong_tls(tmp_path: Path) -> None:
    context, cert = certificate(tmp_path)
    with serving(State(), context) as url:
        assert "certificate" in failed(verified(url)["request"])["request.reach"]
        assert "request.reach" in failed(verified(url.replace("https", "http"))["request"])
        sound = verified(url, ca_file=str(cert))
    assert [sound[name]["status"] for name in ("request", "prefix", "concurrency")] == ["passed"] * 3
    with serving(State()) as url:
        assert "does not speak TLS" in failed(verified(url.replace("http", "https"))["request"])["request.reach"]


@pytest.mark.parametrize(("answer", "words"), [
    (http("200 OK", b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>", "Content-Type: text/html"), "a page for a browser came instead"),
    (http("200 OK", b"Ollama is running"), "not JSON"),
    (http("200 OK", b""), "the answer is empty"),
    (http("200 OK", b"\x1f\x8b\x08\x00\x00\x00"), "not JSON"),
    (http("200 OK", b"[" * 100000), "not JSON"),
    (http("200 OK", b'{"data": 5}'), "no list of models"),
    (http("200 OK", b"null"), "no list of models"),
    (http("302 Found", b"", "Location: https://login.example/"), "HTTP 302"),
    (http("404 Not Found", b'{"detail":"Not Found"}'), "HTTP 404: Not Found"),
    (http("502 Bad Gateway", b"<html><head><title>502 Bad Gateway</title></head></html>"), "HTTP 502"),
    (http("503 Service Unavailable", b""), "HTTP 503"),
])
def test_a_server_of_another_kind(answer: bytes, words: str) -> None:
    with raw(answer) as url:
        found = verified(url)
    assert words in failed(found["request"])["request.models"] and found["request"]["status"] == "failed"
    assert [found[name]["status"] for name in ("prefix", "concurrency")] == ["not_verified"] * 2


@pytest.mark.parametrize("answer", [b"{}", b"[]", b"null", b'"text"', b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": [{"message": null}], "usage": 3}',
                                    b'{"choices": [{"message": {"content": "Paris."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": "many"}}'])
def test_answers_that_are_json_and_no_completion(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(self: Handler, body: dict[str, Any]) -> None:
        self.answer(200, answer.decode())

    monkeypatch.setattr(Handler, "complete", complete)
    with serving(State()) as url:
        found = verified(url)
    assert "request.text" in failed(found["request"]) or "request.stream" in failed(found["request"])
    assert [found[name]["status"] for name in ("prefix", "concurrency")] == ["not_verified"] * 2


NAN = "".join('vllm:%s{engine="0"} NaN\n' % name for name in (
    "prefix_cache_queries_total", "prefix_cache_hits_total", "num_requests_running", "num_requests_waiting", "num_preemptions_total", "kv_cache_usage_perc"))


@pytest.mark.parametrize("text", [
    NAN, NAN.replace("NaN", "-1"), NAN.replace("NaN", "+Inf"), NAN.replace("NaN", "1e999999"), "", "<html></html>", "go_goroutines 7\n", "vllm:", "\x00" * 2000,
    'vllm:cache_config_info{block_size="-5",enable_prefix_caching="perhaps"} 1\n'])
def test_metrics_that_say_nothing(text: str) -> None:
    """The replies' own cached tokens carry stage 3, and stage 4 has its curve; what the metrics would have told is unknown, not fine."""
    with serving(State(metrics=lambda state: text)) as url:
        found = verified(url)
    assert found["request"]["status"] == "passed" and found["prefix"]["data"]["verdict"] == "working"
    told = {f["id"]: f["status"] for f in found["concurrency"]["findings"]}
    assert found["concurrency"]["status"] == "passed" and "pass" not in (told.get("concurrency.preemptions"), told.get("concurrency.metrics"))
    with serving(State(metrics=lambda state: text, reports_cached=False)) as url:
        found = verified(url)
    assert (found["prefix"]["status"], found["prefix"]["data"]["verdict"]) == ("not_verified", "cannot tell")


@pytest.mark.parametrize("how", ["missing", "hanging", "refused", "endless"])
def test_a_metrics_endpoint_that_gives_none(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Handler.do_GET

    def get(self: Handler) -> None:
        if self.path != "/metrics":
            plain(self)
        elif how == "hanging":
            time.sleep(2)
        elif how == "endless":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"# HELP x y\n" * 1000)
        else:
            self.answer(404 if how == "missing" else 403, {"detail": "no"})

    monkeypatch.setattr(Handler, "do_GET", get)
    monkeypatch.setattr(ramp, "SAMPLE_SECONDS", 0.1)
    with serving(State()) as url:
        found = verified(url)
    assert found["prefix"]["data"]["verdict"] == "working" and "prefix.metrics" in [f["id"] for f in found["prefix"]["findings"]]
    told = {f["id"]: f["status"] for f in found["concurrency"]["findings"]}
    assert found["concurrency"]["status"] == "passed" and told["concurrency.metrics"] == "warn"


@pytest.mark.parametrize("target", [0, -1, 1000000])
def test_a_target_that_cannot_be(target: int) -> None:
    with serving(State()) as url:
        found = verified(url, concurrency=target)
    assert found["concurrency"]["status"] == "not_verified" and "outside 1 to 4096" in found["concurrency"]["summary"]
    assert found["request"]["status"] == found["prefix"]["status"] == "passed"
