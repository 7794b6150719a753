# SPDX-License-Identifier: GPL-3.0-or-later
"""Any bytes give events or a refusal; lines keep their numbers; the scanner leaves out nothing that matters."""

from __future__ import annotations

import re
from typing import List

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.logs.event import MAX_BODY, MAX_RAW
from ansible_collections.inferops.vllm.plugins.module_utils.logs.formats import Clock, clean, parse
from ansible_collections.inferops.vllm.plugins.module_utils.logs.reader import Stats, events
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source
from tests.unit.logs.test_reader_formats import CASES

NEEDLES = ("Starting to load model", "is dead", "802", "failed to allocate")
LINES = [line for _name, line, _wanted in CASES] + [
    "Traceback (most recent call last):", '  File "/x.py", line 5, in f', "    raise x", "RuntimeError: boom", "", "During handling of the above exception, "
    "another exception occurred:", "usage: vllm", "vllm: error: no", "  + Exception Group Traceback (most recent call last):", "    | ValueError: x",
    "frame #0: f + 0x1", "Process EngineCore_DP0:", '{"log":"ERROR 05-26 07:50:26 [a.py:1] x\\n","stream":"stderr","time":"2026-05-26T07:50:26Z"}',
    '{"MESSAGE":"x\\ny","PRIORITY":"3","_HOSTNAME":"h"}', "INFO 05-26 07:50:26 [a.py:1] the engine is dead", "INFO 05-26 07:50:26 [a.py:1] code 802",
    "INFO 05-26 07:50:26 [a.py:1] it failed to allocate", "INFO 05-26 07:50:26 [a.py:1] request deadbeef01 added", "\r 10%| 1/9 [00:01<?, ?it/s]\rx"]
PIECES = [b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\x1b[", b"\x1b]0;", b"{", b"}", b'"', b"(", b")", b"[", b"]", b" ", b"|", b":", b"\xe2\x80\xae", b"pid=",
          b"9" * 30]


def check(data: bytes) -> None:
    for wanted in (None, NEEDLES):
        stats = Stats()
        found = list(events([Source.from_bytes("log", data)], wanted, stats))
        if any("binary" in why or "not a log" in why for _name, why in stats.refused):
            assert not found
            continue
        body = data[3:] if data.startswith(b"\xef\xbb\xbf") else data
        utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        lines = body.split(b"\n")
        if not utf16 and not stats.refused:
            assert stats.lines == len(lines) - (not lines[-1])
        for event in found:
            assert len(event.body) <= MAX_BODY and len(event.raw) <= MAX_RAW
            assert len(event.body) == len(event.body_lines) == len(event.body_raw) and len(event.exceptions) == len(event.exceptions_raw)
            for text in (event.text, event.node, event.process, event.rank, event.source) + event.body + tuple(text for text, _line in event.exceptions):
                assert text.isprintable(), repr(text)
            if utf16 or stats.refused:
                continue
            for number, raw in [(event.line, event.raw)] + list(zip(event.body_lines, event.body_raw)):
                assert raw in lines[number - 1].decode("utf-8", "replace")


@given(st.binary(max_size=3000))
def test_any_bytes(data: bytes) -> None:
    check(data)


@given(st.lists(st.one_of(st.sampled_from(LINES).map(str.encode), st.sampled_from(PIECES), st.binary(max_size=6)), max_size=60))
def test_pieces_of_logs_in_any_order(parts: List[bytes]) -> None:
    check(b"".join(parts))


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=40), st.data())
def test_damaged_lines(lines: List[str], draw: st.DataObject) -> None:
    data = bytearray("\n".join(lines).encode())
    for _round in range(draw.draw(st.integers(1, 8))):
        at = draw.draw(st.integers(0, len(data)))
        what = draw.draw(st.sampled_from(("cut", "insert", "double", "flip")))
        if what == "cut":
            del data[at:at + draw.draw(st.integers(1, 40))]
        elif what == "insert":
            data[at:at] = draw.draw(st.sampled_from(PIECES))
        elif what == "double":
            data[at:at] = data[at:at + 50]
        elif at < len(data):
            data[at] = draw.draw(st.integers(0, 255))
    check(bytes(data))


@given(st.text(max_size=400))
def test_any_text_is_parsed_and_cleaned(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable() and clean(cleaned).isprintable()
    found = parse(cleaned, Clock(2026))
    assert cleaned.endswith(found.text)


CALM = ["(Worker_TP%d pid=%d) INFO 05-26 07:50:%02d [a.py:1] step", "(APIServer pid=1) INFO 05-26 07:50:%02d [a.py:%d] request ab%dcdef added",
        "h:%d:%d [%d] NCCL INFO x"]
BAD = ["(Worker_TP%d pid=3) WARNING 05-26 07:50:26 [b.py:%d] slow", "(Worker_TP%d pid=4) ERROR 05-26 07:50:26 [b.py:%d] hit",
       "INFO 05-26 07:5%d:26 [c.py:%d] decode is dead",
       "LLVM ERROR: %d %d", "[rank%d]:[W801 01:16:39.1%d TCPStore.cpp:1] x", "INFO 05-26 07:5%d:26 [c.py:%d] Starting to load model /m", "RuntimeError: %d %d"]


@given(st.lists(st.one_of(st.tuples(st.sampled_from(CALM), st.tuples(*[st.integers(0, 59)] * 3)),
                          st.tuples(st.sampled_from(BAD), st.tuples(*[st.integers(0, 9)] * 2))), max_size=120))
def test_scanner_gives_what_reading_everything_gives(parts: List[tuple]) -> None:
    data = "\n".join(form % numbers for form, numbers in parts).encode()
    whole = {(event.line, event.text, event.level, event.rank, event.exceptions) for event in events([Source.from_bytes("log", data)])
             if event.level in ("WARNING", "ERROR") or event.exceptions or re.search("is dead|Starting to load|LLVM", event.text)}
    some = {(event.line, event.text, event.level, event.rank, event.exceptions) for event in events([Source.from_bytes("log", data)], NEEDLES)}
    assert whole <= some, whole - some
