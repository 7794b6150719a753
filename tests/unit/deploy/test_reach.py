# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports that are held, peers that are not reached, names that mislead."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.deploy import reach
from ansible_collections.inferops.vllm.plugins.module_utils.deploy.reach import Holder, Listener, busy, own, parse_listeners, same_place

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0B4DCB0A:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41 1 0 100 0 0 10 0
   1: 0100007F:1F41 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 42 1 0 100 0 0 10 0
   nonsense
"""
TCP6 = """  sl  local_address                         remote_address                        st tx rx tr uid timeout inode
   0: 00000000000000000000000000000000:1F42 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 43 1 0
   1: 0000000000000000FFFF00000B4DCB0A:1F43 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 44 1 0
"""


def test_listeners() -> None:
    assert parse_listeners(TCP) == [Listener("10.203.77.11", 8000, "41")]
    assert parse_listeners(TCP6) == [Listener("::", 8002, "43"), Listener("::ffff:10.203.77.11", 8003, "44")]


@given(st.text())
def test_any_text_in_no_exception_out(text: str) -> None:
    parse_listeners(text)
    parse_listeners("header\n" + text)


def test_what_holds_a_port() -> None:
    mine = Listener("10.0.0.1", 8000, "1")
    assert same_place(mine, "10.0.0.1", 8000) and same_place(mine, "0.0.0.0", 8000)
    assert not same_place(mine, "10.0.0.2", 8000) and not same_place(mine, "10.0.0.1", 8001)
    assert same_place(Listener("::", 8000, "1"), "10.0.0.1", 8000) and same_place(Listener("::ffff:10.0.0.1", 8000, "1"), "10.0.0.1", 8000)


def test_a_port_of_our_own_service_is_free() -> None:
    wanted = [{"what": "api", "address": "10.0.0.1", "port": 8000}]
    listeners = [Listener("0.0.0.0", 8000, "1")]
    ours = own(["vllm.service"], lambda: ["f" * 64, ""])
    for holder, free in ((Holder(7, "python3", "nginx.service", ""), False), (Holder(7, "vllm", "vllm.service", ""), True),
                         (Holder(7, "vllm", "", "f" * 12), True), (Holder(7, "vllm", "", "e" * 12), False), (Holder(7, "vllm", "", ""), False)):
        assert (busy(wanted, listeners, lambda inodes, found=holder: {"1": found}, ours) == []) is free, holder
    unseen = busy(wanted, listeners, lambda inodes: {}, ours)
    assert unseen == ["port 8000 (api) is held by a process that cannot be seen"]
    named = busy(wanted, listeners, lambda inodes: {"1": Holder(7, "nginx", "nginx.service", "")}, ours)
    assert named == ["port 8000 (api) is held by nginx (pid 7, nginx.service)"]


@pytest.fixture
def server():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def test_this_machine_s_own_sockets(server: socket.socket) -> None:
    port = server.getsockname()[1]
    (mine,) = [listener for listener in reach.listening() if listener.port == port]
    assert mine.address == "127.0.0.1" and reach.holders([mine.inode])[mine.inode].pid == os.getpid()


def test_an_open_and_a_closed_port_are_reached_and_a_silent_one_is_not(server: socket.socket) -> None:
    assert reach.connect("127.0.0.1", "127.0.0.1", server.getsockname()[1]) == ""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert reach.connect("127.0.0.1", "127.0.0.1", free.getsockname()[1]) == ""
    assert "is not an address of this node" in reach.connect("192.0.2.7", "127.0.0.1", 9)


def test_peers_that_are_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "connect", lambda source, address, port, seconds: "no answer in 3 s" if port == 29501 else "")
    peers = [{"name": "far", "address": "10.0.0.9", "ports": [8000, 29501]}, {"name": "near", "address": "10.0.0.8", "ports": [8000]}]
    assert reach.unreached("10.0.0.1", peers) == ["does not reach far (10.0.0.9) on TCP port 29501: no answer in 3 s"]


def test_a_socket_that_never_answers() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # The kernel drops what comes to a queue that is full.
        with socket.socket() as first, socket.socket() as second:
            for one in (first, second):
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            assert reach.connect("", "127.0.0.1", full.getsockname()[1], 0.3) == "no answer in 0 s"


def test_names() -> None:
    assert reach.unresolved([]) == []
    assert reach.unresolved(["no-such-host.invalid", "localhost"]) == [
        "no-such-host.invalid does not resolve", "localhost resolves to %s, which is this node" % reach.socket.gethostbyname("localhost")]
