# SPDX-License-Identifier: GPL-3.0-or-later
"""The client against real sockets: every way in which a server can fail has its own word, and its bound in time."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.serving import client, wire
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import Deadlines, InputError, Request, call, endpoint, post
from ansible_collections.inferops.vllm.plugins.module_utils.serving.wire import BadHttp, EventParser, ResponseParser, whole_number

from .servers import MODEL, State, certificate, raw, serving

QUICK = Deadlines(0.6, 0.6, 0.9, 0.6)
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def get(url: str, path: str = "/health", stream: bool = False, **given: object) -> client.Reply:
    return call(endpoint(url, **given), Request("GET", path, deadlines=QUICK, stream=stream))  # type: ignore[arg-type]


def trouble(reply: client.Reply) -> tuple[str, str]:
    assert reply.trouble is not None
    return reply.trouble.kind, reply.trouble.point


def test_a_good_answer_has_times_in_order() -> None:
    with serving(State()) as url:
        reply = call(endpoint(url + "/v1"), post("/v1/chat/completions", CHAT, deadlines=QUICK))
    found, wrong = reply.json()
    assert wrong is None and found["usage"]["completion_tokens"] == 5
    assert reply.connected is not None and reply.sent is not None and reply.first_byte is not None and reply.end is not None
    assert 0 <= reply.connected <= reply.sent <= reply.first_byte <= reply.end


def test_a_stream_is_given_event_by_event_as_it_comes() -> None:
    seen: list[tuple[bytes, float]] = []
    with serving(State(token_delay=0.05)) as url:
        reply = call(endpoint(url), post("/v1/chat/completions", dict(CHAT, stream=True), True, Deadlines()), lambda data, now: seen.append((data, now)))
    assert reply.ok and reply.done and reply.events == len(seen) == 7
    assert seen[5][1] - seen[1][1] > 0.1, "events were held back"
    assert reply.first_event is not None and reply.end is not None and reply.first_event < reply.end


def test_nothing_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = "http://127.0.0.1:%d" % free.getsockname()[1]
    assert trouble(get(url)) == ("refused", "connect")


def test_a_name_that_does_not_resolve() -> None:
    assert trouble(get("http://no-such-host.invalid:8000")) == ("address", "resolve")


def test_a_port_that_takes_no_connection_is_bounded() -> None:
    with raw(None, accept=False) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        fillers = []
        for _number in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        began = time.monotonic()
        reply = get(url)
        for filler in fillers:
            filler.close()
    assert trouble(reply) == ("timeout", "connect") and time.monotonic() - began < 2


@pytest.mark.parametrize("stream", [False, True])
def test_half_open_says_where_the_time_went(stream: bool) -> None:
    began = time.monotonic()
    with raw(None, close=False) as url:
        reply = get(url, stream=stream)
    assert trouble(reply) == ("timeout", "first") and time.monotonic() - began < 2
    assert ("first token" in reply.trouble.text) is stream  # type: ignore[union-attr]


@pytest.mark.parametrize(("answer", "kind"), [
    (b"", "closed"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "not_http"),
    (b"\x15\x03\x01\x00\x02\x02\x46", "tls"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "truncated"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "truncated"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "not_http"),
    (b"HTTP/1.1 abc\r\n\r\n", "not_http"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000, "not_http"),
    (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "status"),
])
def test_each_bad_answer_has_its_word(answer: bytes, kind: str) -> None:
    with raw(answer) as url:
        assert trouble(get(url))[0] == kind


def test_an_answer_that_is_too_large_is_not_kept() -> None:
    with raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 50000) as url:
        reply = call(endpoint(url), Request("GET", "/", deadlines=QUICK, limit=10000))
    assert trouble(reply)[0] == "too_large" and len(reply.body) <= 20000


def test_an_answer_without_length_ends_with_the_connection() -> None:
    with raw(b"HTTP/1.0 200 OK\r\n\r\n{\"a\": 1}") as url:
        assert get(url).json() == ({"a": 1}, None)


def test_html_instead_of_json_is_named_with_its_title() -> None:
    with serving(State(html=True)) as url:
        found, wrong = get(url, "/v1/models").json()
    assert found is None and wrong is not None and wrong.kind == "not_json" and "Welcome to nginx!" in wrong.text


def test_html_instead_of_a_stream() -> None:
    with serving(State(html=True)) as url:
        reply = call(endpoint(url), post("/v1/chat/completions", dict(CHAT, stream=True), True, QUICK))
    assert trouble(reply)[0] == "not_json"


def test_json_instead_of_a_stream() -> None:
    with serving(State()) as url:
        reply = call(endpoint(url), post("/v1/chat/completions", CHAT, True, QUICK))
    assert trouble(reply)[0] == "not_stream"


@pytest.mark.parametrize("lie", [False, True])
def test_a_cut_stream_is_truncated_also_when_its_end_looks_proper(lie: bool) -> None:
    with serving(State(stream_cut=2, chunk_lie=lie)) as url:
        reply = call(endpoint(url), post("/v1/chat/completions", dict(CHAT, stream=True), True, QUICK))
    assert trouble(reply) == ("truncated", "body") and "3 events" in reply.trouble.text  # type: ignore[union-attr]


def test_a_stream_that_stands_still() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"choices\":[]}\n\n"
    with raw(head, close=False) as url:
        reply = call(endpoint(url), post("/x", CHAT, True, Deadlines(1, 1, 5, 0.4)))
    assert trouble(reply) == ("timeout", "body") and "stood still" in reply.trouble.text  # type: ignore[union-attr]


def test_an_error_inside_a_stream() -> None:
    answer = b'HTTP/1.1 200 OK\r\n\r\ndata: {"error":{"message":"EngineDeadError"}}\n\ndata: [DONE]\n\n'
    with raw(answer) as url:
        reply = call(endpoint(url), post("/x", CHAT, True, QUICK))
    assert trouble(reply)[0] == "error_event" and "EngineDeadError" in reply.trouble.text  # type: ignore[union-attr]


def test_tls_with_its_ca_without_and_against_it(tmp_path: Path) -> None:
    context, cert = certificate(tmp_path)
    with serving(State(), context) as url:
        assert get(url, ca_file=str(cert)).ok
        assert get(url, insecure=True).ok
        refused = get(url)
        plain = get(url.replace("https", "http"))
    assert trouble(refused) == ("tls", "tls") and "certificate" in refused.trouble.text  # type: ignore[union-attr]
    assert trouble(plain)[0] in ("closed", "tls")
    with serving(State()) as url:
        wrong = get(url.replace("http", "https"))
    assert trouble(wrong)[0] == "tls" and "does not speak TLS" in wrong.trouble.text  # type: ignore[union-attr]


def test_tls_of_another_name_and_a_hanging_handshake(tmp_path: Path) -> None:
    context, cert = certificate(tmp_path, "DNS:elsewhere.example")
    with serving(State(), context) as url:
        assert trouble(get(url, ca_file=str(cert))) == ("tls", "tls")
    with raw(None, close=False) as url:
        assert trouble(get(url.replace("http", "https"))) == ("timeout", "tls")


def test_a_stream_over_tls_is_whole(tmp_path: Path) -> None:
    context, cert = certificate(tmp_path)
    with serving(State(), context) as url:
        reply = call(endpoint(url, ca_file=str(cert)), post("/v1/chat/completions", dict(CHAT, stream=True, max_tokens=500), True, Deadlines()))
    assert reply.ok and reply.events == 502


@pytest.mark.parametrize("url", ["", "host:8000", "ftp://host", "http://", "http://a b", "http://host:99999", "http://host/?x=1", "http://[::1", "http://h\n"])
def test_what_is_no_url_is_refused_in_one_sentence(url: str) -> None:
    if url == "http://h\n":
        assert endpoint(url).host == "h"
        return
    with pytest.raises(InputError) as refused:
        endpoint(url)
    assert "\n" not in str(refused.value)


def test_a_password_in_a_url_is_never_shown() -> None:
    made = endpoint("https://user:hunter22@host/base/v1/")
    assert (made.base, made.port, made.url) == ("/base", 443, "https://host:443/base") and "hunter22" in made.secrets
    with pytest.raises(InputError) as refused:
        endpoint("http://user:hunter22@host:99999")
    assert "hunter22" not in str(refused.value)


def test_the_key_is_read_from_a_file_and_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_text("sesame-1234\n", encoding="utf-8")
    with serving(State(key="sesame-1234")) as url:
        assert get(url, "/v1/models", key=client.read_key("", str(path))).ok
        assert get(url, "/v1/models").status == 401
    monkeypatch.setenv("VERIFY_TEST_KEY", "abc")
    assert client.read_key(variable="VERIFY_TEST_KEY") == "abc"
    path.write_text("two words of a secret", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        client.read_key("", str(path))
    assert "two words" not in str(refused.value)
    with pytest.raises(InputError):
        client.read_key("", str(tmp_path / "none"))
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(InputError):
        client.read_key("", str(path))


def test_many_streams_at_once_do_not_wait_for_each_other() -> None:
    replies: list[client.Reply] = []
    with serving(State(token_delay=0.02)) as url:
        target, _trouble = client.resolved(endpoint(url))
        loop = client.Loop()
        began = time.monotonic()
        for _number in range(48):
            loop.start(target, post("/v1/chat/completions", dict(CHAT, stream=True, max_tokens=20), True, Deadlines()), replies.append)
        loop.run(30)
        loop.close()
    assert len(replies) == 48 and all(reply.ok for reply in replies) and time.monotonic() - began < 8


@contextlib.contextmanager
def slow_reader(context: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[int]]]:
    """A server that takes a request in small pieces, with pauses, and answers once all of it is there; with the count of bytes it took."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    taken: list[int] = []

    def work() -> None:
        with contextlib.suppress(OSError):
            connection, _address = listener.accept()
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                data = bytearray()
                while b"\r\n\r\n" not in data:
                    data += connection.recv(1000)
                head, _sign, rest = bytes(data).partition(b"\r\n\r\n")
                left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(rest)
                taken.append(len(rest))
                while left:
                    time.sleep(0.01)
                    for _turn in range(8):
                        piece = connection.recv(min(left, 32768)) if left else b""
                        left -= len(piece)
                        taken[0] += len(piece)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield "%s://127.0.0.1:%d" % ("https" if context else "http", listener.getsockname()[1]), taken
    finally:
        thread.join(5)
        listener.close()


@pytest.mark.parametrize("tls", [False, True])
def test_a_large_request_goes_out_as_fast_as_the_server_reads(tls: bool, tmp_path: Path) -> None:
    context, cert = certificate(tmp_path) if tls else (None, None)
    with slow_reader(context) as (url, taken):
        target = endpoint(url, ca_file=str(cert)) if tls else endpoint(url)
        reply = call(target, Request("POST", "/v1/x", b"x" * 6_000_000, False, Deadlines(2, 5, 5, 5)))
    assert reply.json() == ({}, None) and taken == [6_000_000]
    assert reply.sent is not None and reply.first_byte is not None and reply.sent <= reply.first_byte


def test_a_server_that_stops_reading_is_still_bounded() -> None:
    began = time.monotonic()
    with raw(None, close=False) as url:
        reply = call(endpoint(url), Request("POST", "/v1/x", b"x" * 20_000_000, False, QUICK))
    assert trouble(reply) == ("timeout", "total") and time.monotonic() - began < 2


def in_a_row(url: str, times: int, pause: float = 0.0, keep: bool = True, **given: Any) -> list[client.Reply]:
    """Replies of streamed requests one after the other through one loop."""
    target, _trouble = client.resolved(endpoint(url, **given))
    replies: list[client.Reply] = []
    loop = client.Loop(keep)
    for _number in range(times):
        time.sleep(pause)
        loop.start(target, post("/v1/chat/completions", dict(CHAT, stream=True), True, QUICK), replies.append)
        loop.run(5)
    loop.close()
    return replies


def test_a_loop_that_keeps_connections_uses_them_again(tmp_path: Path) -> None:
    with serving(State()) as url:
        assert [reply.reused for reply in in_a_row(url, 3)] == [False, True, True]
        assert [reply.reused for reply in in_a_row(url, 2, keep=False)] == [False, False]
    context, cert = certificate(tmp_path)
    with serving(State(), context) as url:
        replies = in_a_row(url, 3, ca_file=str(cert))
    # A session ticket that comes late is nothing that was asked for, and costs a connection at most.
    assert all(reply.ok for reply in replies) and replies[-1].reused


def test_streams_that_run_at_once_share_no_connection() -> None:
    replies: list[client.Reply] = []
    with serving(State(token_delay=0.02)) as url:
        target, _trouble = client.resolved(endpoint(url))
        loop = client.Loop(keep=True)

        def again(reply: client.Reply) -> None:
            replies.append(reply)
            if len(replies) <= 8:
                start()

        def start() -> None:
            loop.start(target, post("/v1/chat/completions", dict(CHAT, stream=True), True, Deadlines()), again)

        for _number in range(8):
            start()
        loop.run(10)
        loop.close()
    assert [reply.ok for reply in replies] == [True] * 16 and sum(not reply.reused for reply in replies) == 8


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n15\r\ndata: {}\n\ndata: [DONE\r\n3\r\n]\n\n\r\n0\r\n\r\n"


@pytest.mark.parametrize("answer", [
    WHOLE.replace(b"chunked\r\n", b"chunked\r\nConnection: close\r\n"), WHOLE.replace(b"/1.1", b"/1.0"), WHOLE + b"HTTP/1.1 200 OK\r\n", WHOLE[:-2],
    b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\ndata: {}\n\ndata: [DONE]\n\nmore"])
def test_a_connection_that_cannot_be_trusted_is_not_used_again(answer: bytes) -> None:
    with raw(answer, close=False) as url:
        replies = in_a_row(url, 2)
    assert [(reply.ok, reply.reused) for reply in replies] == [(True, False)] * 2


def test_a_connection_that_the_server_closed_meanwhile_is_left() -> None:
    with raw(WHOLE) as url:
        replies = in_a_row(url, 2, 0.1)
    assert [(reply.ok, reply.reused) for reply in replies] == [(True, False)] * 2


def test_a_kept_connection_that_dies_with_a_request_is_a_failure() -> None:
    """Sent again, it would hide that a request was lost."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken = []

    def once() -> None:
        connection, _address = listener.accept()
        taken.append(connection)
        connection.recv(65536)
        connection.sendall(WHOLE)
        connection.recv(65536)
        connection.close()

    thread = threading.Thread(target=once, daemon=True)
    thread.start()
    replies = in_a_row("http://127.0.0.1:%d" % listener.getsockname()[1], 2)
    thread.join(5)
    listener.close()
    assert replies[0].ok and replies[1].reused and trouble(replies[1])[0] == "closed"


def test_what_is_unfinished_when_the_loop_ends_is_a_timeout_once() -> None:
    replies: list[client.Reply] = []
    with raw(None, close=False) as url:
        target, _trouble = client.resolved(endpoint(url))
        loop = client.Loop()
        loop.start(target, Request("GET", "/"), replies.append)
        loop.run(0.2)
        loop.close()
    assert [trouble(reply)[0] for reply in replies] == ["timeout"]


@pytest.mark.parametrize(("text", "number"), [
    ("0", 0), ("0128", 128), ("9" * 15, 10 ** 15 - 1), ("9" * 16, 10 ** 15), ("1" * 5000, 10 ** 15), ("", None), ("²", None), ("2²0", None), ("٣", None),
    ("-1", None), ("+1", None), ("1_0", None), (" 1", None), ("1.0", None)])
def test_a_whole_number_is_of_ascii_digits_and_bounded(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(("head", "kind"), [
    ("HTTP/1.1 200 OK\r\nContent-Length: 2", None),
    ("HTTP/1.1 200 OK\r\nContent-Length: ²", None),
    ("HTTP/1.1 200 OK\r\nContent-Length: abc", None),
    ("HTTP/1.1 200 OK\r\nContent-Length: " + "9" * 5000, "truncated"),
    ("HTTP/1.1 2²0 OK", "not_http"),
])
def test_numbers_in_a_head_that_are_none(head: str, kind: str | None) -> None:
    """A length that says nothing is as good as none: the answer ends with the connection."""
    with raw(head.encode("latin-1") + b"\r\n\r\n{}") as url:
        reply = get(url)
    assert (trouble(reply)[0] if kind else reply.trouble) == kind
    assert kind or reply.body == b"{}"


@pytest.mark.parametrize("size", [1000000, 7])
def test_interim_answers_are_passed_over_up_to_a_number(size: int) -> None:
    def parsed(count: int) -> ResponseParser:
        data = b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * count + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        parser = ResponseParser(seen.append)
        for start in range(0, len(data), size):
            parser.feed(data[start:start + size])
        return parser

    seen: list[bytes] = []
    for count in (0, 1, wire.MOST_INTERIM):
        seen.clear()
        found = parsed(count)
        assert found.complete and found.status == 200 and b"".join(seen) == b"{}"
    with pytest.raises(BadHttp, match="interim"):
        parsed(2600)


def test_an_endless_event_is_too_large_and_costs_no_more_than_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LINE_LIMIT", 200000)
    began = time.monotonic()
    for piece, times in ((b"x", 199999), (b"data: x\n", 24000)):
        parser = EventParser(lambda data: None)
        for _number in range(times):
            parser.feed(piece)
        with pytest.raises(BadHttp, match="larger"):
            for _number in range(times):
                parser.feed(piece)
    assert time.monotonic() - began < 1.5
    seen: list[bytes] = []
    parser = EventParser(seen.append)
    for _number in range(3):
        parser.feed(b"data: " + b"x" * 150000 + b"\n\n")
    assert [len(event) for event in seen] == [150000] * 3
    with raw(b"HTTP/1.1 200 OK\r\n\r\ndata: " + b"x" * 300000) as url:
        assert trouble(get(url, stream=True)) == ("too_large", "first")


@pytest.mark.parametrize(("text", "number"), [
    ("12", 12), ("-3", -3), ("1" * 99, int("1" * 99)), ("1" * 400, float("inf")), ("1" * 5000, float("inf")), ("1e999", float("inf"))])
def test_a_number_of_json_that_is_too_large_is_infinite(text: str, number: float) -> None:
    assert client.parse_json(b'{"n": %s}' % text.encode()) == ({"n": number}, None)


def test_an_error_is_read_out_of_anything() -> None:
    assert client.api_error(b'{"error": {"message": "no  such\\nmodel"}}') == "no such model"
    for body in (b"", b"[1]", b'{"error": ' + b"1" * 5000 + b"}", b"[" * 100000, b'{"error": {"message": ' + b"[" * 300 + b"1" + b"]" * 300 + b"}}"):
        assert len(client.api_error(body)) <= 300


@given(st.binary(max_size=400), st.integers(1, 7))
def test_any_bytes_are_parsed_or_refused(data: bytes, size: int) -> None:
    parser = ResponseParser(lambda body: None)
    try:
        for start in range(0, len(data), size):
            parser.feed(data[start:start + size])
    except BadHttp:
        return
    parser.close()


@given(st.lists(st.binary(max_size=20).filter(lambda b: b"\n" not in b and b"\r" not in b), max_size=6), st.integers(1, 9))
def test_events_come_out_the_same_however_they_are_cut(events: list[bytes], size: int) -> None:
    wire = b"".join(b"data: %s\r\n\r\n" % event for event in events)
    seen: list[bytes] = []
    parser = EventParser(seen.append)
    for start in range(0, len(wire), size):
        parser.feed(wire[start:start + size])
    assert seen == events


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.integers(1, 9))
def test_chunks_come_out_the_same_however_they_are_cut(chunks: list[bytes], size: int) -> None:
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    seen: list[bytes] = []
    parser = ResponseParser(seen.append)
    for start in range(0, len(wire), size):
        parser.feed(wire[start:start + size])
    assert b"".join(seen) == b"".join(chunks) and parser.complete


@given(st.binary(max_size=60))
def test_any_body_is_json_or_a_sentence(body: bytes) -> None:
    found, wrong = client.parse_json(body)
    assert wrong is None or (found is None and wrong.kind == "not_json")
    assert wrong is not None or json.dumps(found) is not None
