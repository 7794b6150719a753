# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader over real logs of vLLM and over composed cases, where they are at hand."""

from __future__ import annotations

import pathlib
import re
from typing import List

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.logs.formats import Clock, clean, parse
from ansible_collections.inferops.vllm.plugins.module_utils.logs.reader import Stats, events
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source

SHARED = pathlib.Path(__file__).resolve().parents[4] / "shared"
# A prefix as a reader would see it: written for this test, apart from the expressions under test.
LEVEL = re.compile(r"(?:^|[ )|m])(INFO|WARNING|ERROR|CRITICAL|DEBUG)(?:\x1b\[0m)? \d\d-\d\d \d\d:\d\d:\d\d")
PID = re.compile(r"^(?:\S+ +\| |\S+Z )?\((\w+)[^()]*pid=(\d+)[^()]*\)")
RANK = re.compile(r"^\[rank(\d+)\]:|\(Worker_((?:[DTP]P|DCP|EP)\d+\w*) pid")
CODE = re.compile(r"NCCL (WARN|INFO) |UCX +(ERROR|WARN)|^\[[WEI]\d{3,4} |SXid|NVRM: Xid")


def files() -> List[pathlib.Path]:
    return sorted(SHARED.glob("logs/*.log")) + sorted(SHARED.glob("cases/*.log"))


@pytest.fixture(scope="module")
def corpus() -> List[pathlib.Path]:
    found = files()
    if not found:
        pytest.skip("no logs beside this checkout")
    return found


def test_prefixed_lines_give_their_fields(corpus: List[pathlib.Path]) -> None:
    asked = missed = 0
    wrong: List[str] = []
    for path in corpus:
        for text in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            line = parse(clean(text), Clock(2026))
            level, pid, rank, code = LEVEL.search(text), PID.match(text), RANK.search(text), CODE.search(text)
            if not (level or pid or rank or code):
                continue
            asked += 1
            good = (not level or (line.level == level.group(1) and line.time is not None and re.match(r"\S+:\d+$", line.source))) \
                and (not pid or (line.pid > 0 and line.process)) and (not rank or line.rank) \
                and (not code or line.level or line.process == "kernel") and not LEVEL.match(line.text)
            if not good:
                missed += 1
                wrong.append("%s: %s -> %r" % (path.name, text[:150], line))
    assert asked > 5000
    assert missed * 100 < asked, "\n".join(wrong[:20])


def test_tracebacks_are_whole(corpus: List[pathlib.Path]) -> None:
    """Each line that ends a traceback belongs to an event as its exception, or to the message of one."""
    ends = whole = 0
    for path in corpus:
        data = path.read_bytes()
        known = set()
        for event in events([Source.from_bytes(path.name, data)]):
            known.update(number for _text, number in event.exceptions)
            if event.exceptions:
                known.update(event.body_lines)
        lines = data.decode("utf-8", "replace").split("\n")
        for number, text in enumerate(lines, 1):
            if re.search(r"(?:^|[)\]] )(?:[a-z_]+\.)*[A-Z]\w+(?:Error|Exception): ", text) and " INFO " not in text and "WARN" not in text:
                ends += 1
                whole += number in known
    assert ends > 100
    assert whole >= ends * 0.99, (whole, ends)


def test_scanner_leaves_out_nothing_that_matters(corpus: List[pathlib.Path]) -> None:
    wanted = ("Starting to load model", "Loading weights took", "init engine (profile", "Application startup complete", "distributed_init_method")
    asked = missed = 0
    for path in corpus:
        source = Source.from_bytes(path.name, path.read_bytes(), year=2026)
        some = {(event.line, event.text, event.exceptions, event.body, event.rank) for event in events([source], wanted)}
        for event in events([source]):
            if event.level in ("WARNING", "ERROR", "CRITICAL") or event.exceptions or any(word in event.text for word in wanted):
                asked += 1
                missed += (event.line, event.text, event.exceptions, event.body, event.rank) not in some
    assert asked > 1000 and missed == 0


def test_nothing_is_refused(corpus: List[pathlib.Path]) -> None:
    stats = Stats()
    assert sum(1 for _event in events([Source.from_path(str(path)) for path in corpus], None, stats)) > 5000
    assert stats.refused == [] and stats.reversed == []
    assert stats.lines == sum(data.count(b"\n") + (not data.endswith(b"\n") and bool(data)) for data in (path.read_bytes() for path in corpus))
