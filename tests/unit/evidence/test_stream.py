# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs of any size and shape are taken along within bounds."""

from __future__ import annotations

import gzip
import os
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.evidence import stream
from ansible_collections.inferops.vllm.plugins.module_utils.evidence.secrets import Cleaner
from ansible_collections.inferops.vllm.plugins.module_utils.evidence.stream import Keeper, Kept


def text(kept: Kept) -> str:
    return gzip.decompress(b"".join(kept.data) or gzip.compress(b"")).decode("utf-8", "surrogateescape")


def test_a_log_within_the_bounds_comes_whole_also_without_a_last_newline() -> None:
    keeper = Keeper(Cleaner(), 1 << 20)
    keeper.feed(b"one\ntwo\nthr")
    keeper.feed(b"ee")
    kept = keeper.close()
    assert text(kept) == "one\ntwo\nthree" and kept.cut_lines == 0 and kept.bytes == 13


@given(st.binary(max_size=5000), st.lists(st.integers(0, 5000), max_size=5))
def test_any_bytes_without_secrets_come_back(data: bytes, cuts: list[int]) -> None:
    data = bytes(byte for byte in data if not chr(byte).isalpha() and byte not in b":/?&=-_.")
    keeper = Keeper(Cleaner(), 1 << 20)
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in zip(edges, edges[1:]):
        keeper.feed(data[start:end])
    assert text(keeper.close()).encode("utf-8", "surrogateescape") == data


def test_of_a_long_log_the_beginning_and_the_end_stay_and_the_cut_is_marked() -> None:
    keeper = Keeper(Cleaner(), 4 << 20)
    for number in range(100):
        keeper.feed(b"".join(b"%08d line of the log\n" % (number * 5000 + line) for line in range(5000)))
    kept = keeper.close()
    found = text(kept)
    assert found.startswith("00000000 line") and found.endswith("00499999 line of the log\n")
    assert "[evidence: %d lines (%d bytes) were cut here" % (kept.cut_lines, kept.cut_bytes) in found
    assert kept.lines == 500000 and found.count("line of the log") == 500000 - kept.cut_lines
    assert kept.kept <= 4 << 20 and kept.cut_lines > 200000


def test_a_line_without_end_costs_no_memory_and_says_that_it_was_cut() -> None:
    keeper = Keeper(Cleaner(), 1 << 20)
    block = b"x" * (1 << 20)
    tracemalloc.start()
    for _block in range(500):
        keeper.feed(block)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    keeper.feed(b"\nand then\n")
    kept = keeper.close()
    lines = text(kept).splitlines()
    assert peak < 16 << 20
    assert lines == ["x" * stream.LINE_LIMIT + stream.CUT.decode(), "and then"]
    assert kept.long_lines == 1 and kept.cut_bytes == 500 * (1 << 20) - stream.LINE_LIMIT


def test_a_long_line_inside_a_block_is_cut_too() -> None:
    keeper = Keeper(Cleaner(), 1 << 20)
    keeper.feed(b"a\n" + b"y" * 100000 + b"\nb\n")
    kept = keeper.close()
    assert [len(line) for line in text(kept).splitlines()] == [1, stream.LINE_LIMIT + len(stream.CUT), 1] and kept.long_lines == 1


def test_starts_of_units_are_counted_once_whichever_word_systemd_used() -> None:
    keeper = Keeper(Cleaner(), 1 << 20)
    for _start in range(3):
        keeper.feed(b"T node systemd[1]: Starting vllm.service - vLLM...\nT node systemd[1]: Started vllm.service - vLLM.\n")
    keeper.feed(b"T node systemd[1]: Starting vllm.service - vLLM...\n")
    assert keeper.close().starts == {"vllm.service": 4}


def test_commands_end_with_their_code_their_words_or_their_deadline() -> None:
    def ran(*argv: str, seconds: float = 20.0) -> tuple[stream.Outcome, str]:
        keeper = Keeper(Cleaner(), 1 << 20)
        outcome = stream.run(argv, keeper, time.monotonic() + seconds)
        return outcome, text(keeper.close())

    outcome, out = ran("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (outcome.rc, outcome.error) == (3, "") and sorted(out.split()) == ["err", "out"]
    assert ran("no-such-program-here")[0].error == "missing"
    started = time.monotonic()
    outcome, out = ran("sh", "-c", "echo first; sleep 60", seconds=0.7)
    assert (outcome.rc, outcome.error, out) == (None, "timeout", "first\n") and time.monotonic() - started < 15
    # An endless one does not get past its deadline, nor its bounds.
    outcome, out = ran("yes", seconds=0.5)
    assert outcome.error == "timeout" and len(out) <= (1 << 20) + 200


def test_only_plain_files_are_copied(tmp_path: Path) -> None:
    def copied(path: Path) -> tuple[str, str]:
        keeper = Keeper(Cleaner(), 1 << 20)
        outcome = stream.copy(str(path), keeper, time.monotonic() + 5)
        return outcome.error, text(keeper.close())

    (tmp_path / "a.log").write_text("hello\n")
    (tmp_path / "link.log").symlink_to(tmp_path / "a.log")
    assert copied(tmp_path / "a.log") == ("", "hello\n")
    assert copied(tmp_path / "none")[0] == "missing" and copied(tmp_path / "link.log")[0] == "io:ELOOP"
    assert copied(tmp_path)[0] == "not_a_file" and copied(Path("/dev/zero"))[0] == "not_a_file"


def test_a_file_on_a_file_system_that_hangs_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def hanging(path: str, *args: int, **named: int) -> int:
        if str(path).endswith("server.log"):
            time.sleep(20)
        return real(path, *args, **named)

    (tmp_path / "server.log").write_text("hello\n")
    monkeypatch.setattr(os, "open", hanging)
    started = time.monotonic()
    outcome = stream.copy(str(tmp_path / "server.log"), Keeper(Cleaner(), 1 << 20), started + 0.5)
    assert outcome.error == "timeout" and time.monotonic() - started < 10
