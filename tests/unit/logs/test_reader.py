# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines to events: what belongs together, in which order, from which bytes, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pathlib
import shutil
import subprocess
import sys
import tracemalloc
from typing import Any, Iterable, List, Optional

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.logs import reader, sources
from ansible_collections.inferops.vllm.plugins.module_utils.logs.event import MAX_BODY, MAX_RAW, Event
from ansible_collections.inferops.vllm.plugins.module_utils.logs.reader import Stats, events, newest_first
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source, expand

NEEDLES = ("Starting to load model", "Loading weights took", "Application startup complete")
BOTH = pytest.mark.parametrize("wanted", [None, NEEDLES], ids=["all", "wanted"])


def read(text: Any, wanted: Optional[Iterable[str]] = None, stats: Optional[Stats] = None) -> List[Event]:
    data = text.encode() if isinstance(text, str) else text
    return sorted(events([Source.from_bytes("log", data, year=2026)], wanted, stats), key=lambda event: event.line)


def record(who: str, message: str, where: str = "a.py:1", level: str = "ERROR", stamp: str = "05-26 07:50:26") -> str:
    """A record as vLLM's formatter writes it: the prefix on each line."""
    return "".join("%s%s %s [%s] %s\n" % (who, level, stamp, where, line) for line in message.split("\n"))


TRACE = 'Traceback (most recent call last):\n  File "/x.py", line 5, in f\n    g()\n    ^^^\nRuntimeError: CUDA error: out of luck'


@BOTH
def test_record_of_many_lines_is_one_event(wanted: Any) -> None:
    found = read(record("(Worker_TP1 pid=7) ", "WorkerProc hit an exception.\n" + TRACE), wanted)
    assert len(found) == 1
    event = found[0]
    assert (event.text, event.rank, event.line) == ("WorkerProc hit an exception.", "TP1", 1)
    assert event.body == tuple(TRACE.split("\n"))
    assert event.exceptions == (("RuntimeError: CUDA error: out of luck", 6),)
    assert event.raw_at(6) == "(Worker_TP1 pid=7) ERROR 05-26 07:50:26 [a.py:1] RuntimeError: CUDA error: out of luck"
    assert event.raw_at(1) == event.raw and event.raw_at(99) == ""


@BOTH
def test_tracebacks_of_two_ranks_line_by_line(wanted: Any) -> None:
    one = record("(Worker_TP1 pid=7) ", "hit\n" + TRACE).splitlines(True)
    two = record("(Worker_TP2 pid=8) ", "hit\n" + TRACE.replace("luck", "time")).splitlines(True)
    found = read("".join(line for pair in zip(one, two) for line in pair), wanted)
    assert [(event.rank, event.exceptions) for event in found] == [
        ("TP1", (("RuntimeError: CUDA error: out of luck", 11),)), ("TP2", (("RuntimeError: CUDA error: out of time", 12),))]
    assert all(len(event.body) == 5 for event in found)


@BOTH
def test_traceback_cut_by_a_report_of_another_rank(wanted: Any) -> None:
    lines = record("(Worker_TP3 pid=7) ", "hit\n" + TRACE).splitlines(True)
    other = record("(Worker_TP1 pid=8) ", "step done", level="INFO")
    found = [event for event in read(lines[0] + lines[1] + lines[2] + other * 40 + "".join(lines[3:]), wanted) if event.level == "ERROR"]
    assert len(found) == 1 and found[0].exceptions[0][1] == 46 and len(found[0].body) == 5


@BOTH
def test_bare_traceback_is_cut_by_prefixed_lines(wanted: Any) -> None:
    lines = TRACE.split("\n")
    found = read("\n".join(lines[:2]) + "\n" + record("(Worker_TP1 pid=8) ", "step", level="INFO") + "\n".join(lines[2:]) + "\n", wanted)
    event = next(event for event in found if event.exceptions)
    assert (event.line, event.exceptions, event.process) == (1, (("RuntimeError: CUDA error: out of luck", 6),), "")


@BOTH
def test_lines_without_prefix_belong_to_the_last_writer(wanted: Any) -> None:
    found = read("(Worker_PP1_TP7 pid=9) (Worker_PP1_TP2 pid=4) ERROR 02-06 16:33:54 [a.py:9] WorkerProc hit an exception.\n" + TRACE + "\n", wanted)
    assert len(found) == 1 and found[0].rank == "PP1_TP2" and found[0].exceptions[0][1] == 6


@BOTH
def test_chain_gives_the_original_first(wanted: Any) -> None:
    chain = ('Traceback (most recent call last):\n  File "/a.py", line 1, in f\nModuleNotFoundError: No module named \'blobfile\'\n\n'
             "The above exception was the direct cause of the following exception:\n\n"
             'Traceback (most recent call last):\n  File "/b.py", line 1, in g\nImportError: blobfile is not installed.\n\n'
             "During handling of the above exception, another exception occurred:\n\n"
             'Traceback (most recent call last):\n  File "/c.py", line 1, in h\nRuntimeError: third\n')
    for text in (chain, "".join("vllm-1  | %s\n" % line for line in chain.splitlines()), record("(APIServer pid=1) ", "failed\n" + chain.rstrip()),
                 "".join("(APIServer pid=1) %s\n" % line for line in chain.splitlines())):
        found = read(text, wanted)
        assert len(found) == 1, found
        assert [name.split(":")[0] for name, _line in found[0].exceptions] == ["ModuleNotFoundError", "ImportError", "RuntimeError"]
        assert found[0].exceptions_raw[0].endswith("No module named 'blobfile'")


@BOTH
def test_two_tracebacks_without_a_chain_are_two_events(wanted: Any) -> None:
    found = read(TRACE + "\n" + TRACE.replace("luck", "time") + "\n", wanted)
    assert [event.exceptions[0][0][-4:] for event in found] == ["luck", "time"]


@BOTH
def test_process_line_names_the_writer_of_the_traceback(wanted: Any) -> None:
    event, = read("Process EngineCore_DP0:\n" + TRACE + "\n", wanted)
    assert (event.process, event.rank, event.exceptions[0][1]) == ("EngineCore", "DP0", 6)


@BOTH
def test_exception_group_gives_its_members_first(wanted: Any) -> None:
    group = ("  + Exception Group Traceback (most recent call last):\n  |   File \"/a.py\", line 1, in f\n  |     raise x\n"
             "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n"
             "    | Traceback (most recent call last):\n    |   File \"/a.py\", line 2, in g\n    |     y()\n    | ValueError: first\n"
             "    +---------------- 2 ----------------\n    | Traceback (most recent call last):\n    |   File \"/a.py\", line 3, in h\n"
             "    | KeyError: 'second'\n    +------------------------------------\n")
    event, = read(group, wanted)
    assert event.exceptions == (("ValueError: first", 9), ("KeyError: 'second'", 13), ("ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)", 4))


@BOTH
def test_message_of_several_lines_stays_with_its_exception(wanted: Any) -> None:
    tail = "CUDA kernel errors might be asynchronously reported at some other API call.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    event, = read(TRACE + "\n" + tail, wanted)
    assert event.body[-2:] == tuple(tail.splitlines()) and len(event.exceptions) == 1


@BOTH
def test_cpp_stack_stays_with_its_message(wanted: Any) -> None:
    text = ("[rank1]:[E820 11:45:10.267960555 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout\n"
            "Exception raised from checkTimeout at /pytorch/x.cpp:685 (most recent call first):\n"
            "frame #0: c10::Error::Error(c10::SourceLocation) + 0x96 (0x7f in /lib/libc10.so)\nframe #1: clone + 0x3f (0x7f)\n\n"
            "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0] x\n")
    found = read(text, wanted)
    assert [(event.rank, event.line, len(event.body)) for event in found] == [("1", 1, 3), ("", 6, 1)]


@BOTH
def test_usage_text_is_one_event_with_its_error(wanted: Any) -> None:
    text = "usage: vllm [-h] [-v]\n            {chat,serve}\n            ...\nvllm: error: unrecognized arguments: --no-such-flag 1\n"
    event, = read("Triton is installed, but doesn't include CPU backend.\n" + text if wanted else text, wanted)
    assert event.body[-1] == "vllm: error: unrecognized arguments: --no-such-flag 1"
    assert event.body_raw[-1] == event.body[-1] and event.body_lines[-1] == event.line + 3


@BOTH
def test_validation_error_is_one_event(wanted: Any) -> None:
    text = (TRACE.rpartition("\n")[0] + "\npydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, Invalid repository ID or local directory specified: '/models/no_config'.\nPlease verify the following requirements:\n"
            "1. Provide a valid Hugging Face repository ID.\n   - For Mistral models: ensure the presence of a 'params.json'.\n"
            " [type=value_error, input_value=ArgsKwargs((), {'model': 1}), input_type=ArgsKwargs]\n    For further information visit https://x\n")
    event, = read(text, wanted)
    assert len(event.exceptions) == 1 and event.body[-1].strip().startswith("For further information")


@BOTH
def test_traceback_without_its_head(wanted: Any) -> None:
    event = read('  File "/a.py", line 1, in f\n    x()\nValueError: late\n', wanted)[-1]
    assert event.exceptions == (("ValueError: late", 3),)


@BOTH
def test_traceback_without_its_end(wanted: Any) -> None:
    event, = read(TRACE.rpartition("\n")[0] + "\n", wanted)
    assert event.exceptions == () and event.line == 1


@BOTH
def test_log_that_ends_in_the_middle_of_a_line(wanted: Any) -> None:
    found = read(record("", "first") + "ERROR 05-26 07:50:27 [a.py:2] sec", wanted)
    assert [event.text for event in found] == ["first", "sec"]


@BOTH
def test_progress_keeps_its_last_state_and_the_numbers_stay(wanted: Any) -> None:
    bar = "\rLoading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]\r"
    bar += "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:01<00:00,  2.31it/s]\n"
    found = read(bar + record("", "boom"), wanted)
    assert found[-1].line == 2
    if wanted is None:
        assert len(found) == 2 and found[0].text.startswith("Loading safetensors checkpoint shards: 100%")


@BOTH
def test_error_between_two_states_of_a_bar_is_found(wanted: Any) -> None:
    found = read("\r 0%| | 0/4 [00:00<?, ?it/s]\rERROR 05-26 07:50:27 [a.py:2] boom\r 50%| | 2/4 [00:00<?, 1.00it/s]\n", wanted)
    assert [(event.text, event.line) for event in found if event.level == "ERROR"] == [("boom", 1)]


@BOTH
def test_windows_line_ends(wanted: Any) -> None:
    event, = read(record("(Worker_TP1 pid=7) ", "hit\n" + TRACE).replace("\n", "\r\n"), wanted)
    assert event.exceptions == (("RuntimeError: CUDA error: out of luck", 6),) and not event.raw.endswith("\r")


def stamped(second: int, text: str) -> str:
    return "ERROR 05-26 07:50:%02d [a.py:%d] %s\n" % (second, second, text)


@BOTH
def test_newest_first_is_turned_round(wanted: Any) -> None:
    lines = [stamped(second, "message %s" % "abcdefghij"[second]) for second in range(10)]
    stats = Stats()
    found = list(events([Source.from_bytes("log", "".join(reversed(lines)).encode(), year=2026)], wanted, stats))
    assert [event.text[-1] for event in found] == list("abcdefghij")
    assert [event.line for event in found] == list(range(10, 0, -1)) and stats.reversed == ["log"] and stats.lines == 10


@BOTH
def test_newest_first_with_traceback_lines_reversed(wanted: Any) -> None:
    lines = [stamped(second, "m") for second in range(8)] + record("(Worker_TP1 pid=7) ", "hit\n" + TRACE, stamp="05-26 07:50:30").splitlines(True)
    event = next(event for event in read("".join(reversed(lines)), wanted) if event.exceptions)
    assert (event.text, event.line, event.exceptions[0][1], event.body_lines) == ("hit", 6, 1, (5, 4, 3, 2, 1))


@BOTH
def test_newest_first_with_records_in_order(wanted: Any) -> None:
    records = [stamped(second, "m%s" % "abcdefgh"[second]) for second in range(8)]
    records[3] = stamped(3, "it failed") + TRACE + "\n"
    found = list(events([Source.from_bytes("log", "".join(reversed(records)).encode(), year=2026)], wanted))
    event = next(event for event in found if event.exceptions)
    assert (event.text, event.line, event.exceptions[0][1]) == ("it failed", 5, 10)


@pytest.mark.parametrize("text", ["", "x\n" * 100, "".join(stamped(5, "x") for _ in range(50)), "".join(stamped(second, "x") for second in range(50)),
                                  "".join(stamped((second * 7) % 50, "x") for second in range(50))])
def test_other_orders_stay(text: str) -> None:
    assert not newest_first(text.encode())


def test_time_of_a_line_without_one_is_that_of_its_neighbour() -> None:
    found = read(stamped(4, "x") + "\nKilled\n")
    assert (found[1].text, found[1].clock, found[1].time) == ("Killed", "near", found[0].time)


def test_writer_of_a_line_that_has_only_a_pid() -> None:
    found = read(record("(Worker_TP3 pid=8327) ", "x", level="INFO") + "h20-4:8327:8354 [3] net_ib.cc:2201 NCCL WARN NET/IB : x\n")
    assert (found[1].process, found[1].rank, found[1].node) == ("Worker", "TP3", "h20-4")


def test_node_of_the_source_where_the_line_names_none() -> None:
    data = b"ERROR 05-26 07:50:26 [a.py:1] x\nh:1:2 [0] NCCL WARN y\n"
    assert [event.node for event in events([Source.from_bytes("log", data, "n7")])] == ["n7", "h"]


# -- repetition


def test_a_flood_of_equal_warnings_is_counted() -> None:
    text = "".join(record("(Worker_TP%d pid=%d) " % (i % 8, i % 8), "step %d is slow" % i, level="WARNING", stamp="05-26 07:%02d:%02d" % (i // 60 % 60, i % 60))
                   for i in range(5000))
    for wanted in (None, NEEDLES):
        stats = Stats()
        found = read(text + record("", "boom"), wanted, stats)
        assert 100 <= len(found) <= 300 and found[-1].text == "boom"
        assert len(found) - 1 + sum(stats.repeats.values()) == 5000, wanted


def test_errors_behind_a_flood_of_tracebacks_are_seen_whole() -> None:
    text = "".join(record("(APIServer pid=1) ", "client went\n" + TRACE, stamp="05-26 07:%02d:%02d" % (i // 60, i % 60)) for i in range(300))
    found = read(text + record("(EngineCore pid=2) ", "EngineCore died.\n" + TRACE.replace("luck", "memory")), NEEDLES)
    assert found[-1].text == "EngineCore died." and len(found[-1].body) == 5


def test_a_million_frames_do_not_pile_up() -> None:
    text = "Traceback (most recent call last):\n" + '  File "/x.py", line 5, in f\n    f()\n' * 20000 + "RecursionError: maximum recursion depth exceeded\n"
    event, = read(text)
    assert len(event.body) == MAX_BODY and event.exceptions == (("RecursionError: maximum recursion depth exceeded", 40002),)
    assert event.raw_at(40002).startswith("RecursionError")


# -- sources


def test_gzip_zstd_xz_bzip2(tmp_path: pathlib.Path) -> None:
    data = record("", "boom").encode() * 3
    packed = [gzip.compress(data), gzip.compress(data[:40]) + gzip.compress(data[40:]), lzma.compress(data), bz2.compress(data)]
    if shutil.which("zstd"):
        packed.append(subprocess.run(["zstd", "-q"], input=data, stdout=subprocess.PIPE, check=True).stdout)
    for blob in packed:
        stats = Stats()
        assert [event.line for event in read(blob, None, stats)] == [1, 2, 3] and not stats.refused
        path = tmp_path / "log.bin"
        path.write_bytes(blob)
        assert len(list(events([Source.from_path(str(path))]))) == 3


def test_zstd_without_its_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    stats = Stats()
    assert read(b"\x28\xb5\x2f\xfdxxxx", None, stats) == []
    assert "zstd is not installed" in stats.refused[0][1]


@pytest.mark.skipif(not shutil.which("zstd"), reason="needs the program zstd")
def test_zstd_that_nobody_reads_to_its_end_leaves_no_process() -> None:
    data = subprocess.run(["zstd", "-q"], input=os.urandom(1 << 16).hex().encode() * 200, stdout=subprocess.PIPE, check=True).stdout
    stream = sources.chunks(Source.from_bytes("x", data), 4096)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    children = pathlib.Path("/proc/%d/task/%d/children" % (os.getpid(), os.getpid())).read_text().split()
    assert all("zstd" not in pathlib.Path("/proc/%s/comm" % child).read_text() for child in children)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress], ids=["gzip", "xz", "bzip2"])
def test_compressed_data_that_break_off(pack: Any) -> None:
    data = "".join(record("", "boom %d %s" % (i, os.urandom(30).hex())) for i in range(20000)).encode()
    blob = pack(data)
    for broken in (blob[:len(blob) // 2], blob[:len(blob) // 2] + b"garbage" + blob[len(blob) // 2 + 7:]):
        stats = Stats()
        read(broken, None, stats)
        assert len(stats.refused) == 1 and stats.refused[0][0] == "log"


@pytest.mark.parametrize(("data", "word"), [
    (b"\x7fELF\x02\x01" + bytes(100), "program"), (b"PK\x03\x04" + bytes(100), "zip"), (os.urandom(5000), "binary"), (bytes(5000), "NUL"),
    (b"LPKSHHRH" + bytes(100), "journal"), (b"x" * 257 + b"ustar" + b"x" * 200, "bundle"), (bytes(range(256)) * 20, "binary")])
def test_what_is_no_log_is_refused(data: bytes, word: str) -> None:
    stats = Stats()
    assert read(data, None, stats) == [] and word in stats.refused[0][1]


def test_nul_and_invalid_bytes_in_a_log_are_read_over() -> None:
    data = record("", "first").encode() + bytes(64) + b"\xff\xfe caf\xe9\n" + record("", "second", where="b.py:1").encode()
    assert [(event.text, event.line) for event in read(data) if event.level] == [("first", 1), ("second", 3)]


def test_utf16_and_byte_order_mark() -> None:
    assert [event.text for event in read(record("", "boom").encode("utf-16"))] == ["boom"]
    assert [event.text for event in read(b"\xef\xbb\xbf" + record("", "boom").encode())] == ["boom"]


def test_empty_and_missing_and_folder(tmp_path: pathlib.Path) -> None:
    stats = Stats()
    assert read(b"", None, stats) == [] and stats.refused == [] and stats.lines == 0
    assert list(events([Source.from_path(str(tmp_path / "none")), Source.from_path(str(tmp_path))], None, stats)) == []
    assert [sentence for _name, sentence in stats.refused] == ["cannot be opened: No such file or directory", "is a folder"]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stats = Stats()
    list(events([Source.from_path(str(fifo))], None, stats))
    assert stats.refused[0][1] == "is not a regular file"


def test_expand(tmp_path: pathlib.Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/2.log", "a.log", "b/1.log"):
        (tmp_path / name).write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    found, refused = expand([str(tmp_path), "-", str(tmp_path / "none"), str(tmp_path / "empty")])
    assert [source.name.replace(str(tmp_path), "") for source in found] == ["/a.log", "/b/1.log", "/b/2.log", "-"]
    assert refused == [(str(tmp_path / "none"), "does not exist"), (str(tmp_path / "empty"), "holds no files")]


def test_ten_thousand_files(tmp_path: pathlib.Path) -> None:
    for number in range(10000):
        (tmp_path / ("%05d.log" % number)).write_text("ERROR 05-26 07:50:26 [a.py:1] boom\n")
    found, refused = expand([str(tmp_path)])
    stats = Stats()
    assert sum(1 for _event in events(found, NEEDLES, stats)) == 10000 and stats.files == 10000 and not refused


def test_more_files_than_are_taken(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).write_text("x")
    found, refused = expand([str(tmp_path)])
    assert len(found) == 3 and "more than 3 files" in refused[0][1]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        buffer = io.BytesIO(record("", "boom").encode())
    monkeypatch.setattr(sys, "stdin", Fake)
    assert [(event.file, event.text) for event in events([Source.from_stdin()])] == [("-", "boom")]


# -- bounds


class Endless(io.RawIOBase):
    """Bytes that repeat, made while they are read."""

    def __init__(self, piece: bytes, size: int, tail: bytes = b"") -> None:
        super().__init__()
        self._piece, self._left, self._tail = piece, size, tail

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._left <= 0:
            tail, self._tail = self._tail, b""
            return tail
        size = min(size, self._left)
        self._left -= size
        return (self._piece * (size // len(self._piece) + 1))[:size]


@pytest.mark.parametrize("piece", [b"x", b"lorem ipsum ", b"\r 10%|# | 1/9 [00:01<?, ?it/s]", b'{"a":"', b"\x1b[", b"(A pid="],
                         ids=["x", "words", "bar", "json", "escape", "paren"])
@BOTH
def test_one_line_of_32_megabytes(piece: bytes, wanted: Any) -> None:
    tail = b" ERROR\n" + record("", "boom").encode()
    source = Source("log", "", lambda: Endless(piece, 32 << 20, tail))  # type: ignore[arg-type,return-value]
    tracemalloc.start()
    stats = Stats()
    found = [event for event in events([source], wanted, stats, year=2026) if event.text == "boom"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [event.line for event in found] == [2] and stats.lines == 2
    assert peak < 40 << 20, peak


def test_raw_is_cut() -> None:
    event, = read(record("", "x" * 50000))
    assert len(event.raw) == MAX_RAW and len(event.text) <= reader.MAX_TEXT


def test_hostile_text_is_clean_and_raw_is_not() -> None:
    event, = read("ERROR 05-26 07:50:26 [a.py:1] \x1b]0;owned\x07\u202egnp\x1b[2J\x00\u200b\n  more\n  \x1b[31mred\n")
    assert event.text == "gnp" and "\x1b" in event.raw
    assert all(part.isprintable() for part in (event.text,) + event.body)


# -- needles


def test_wanted_literals_are_found_and_others_are_not() -> None:
    lines = ["INFO 05-26 07:50:26 [a.py:1] nothing %s" % "abcdefgh"[i % 8] for i in range(200)]
    lines[77] = "INFO 05-26 07:50:26 [a.py:1] Starting to load model /m"
    found = read("\n".join(lines), NEEDLES)
    assert [(event.line, event.text) for event in found if "Starting" in event.text] == [(78, "Starting to load model /m")]
    assert len(found) < 10


def test_literals_with_digits_are_found_and_bare_numbers_want_nothing() -> None:
    lines = ["INFO 05-26 07:50:26 [a.py:1] code %s" % word for word in ("x", "y", "status=12", "802", "z")] * 20
    assert {event.text for event in read("\n".join(lines), ["code status=12", "802"])} == {"code status=12"}
    assert "error 802" in [event.text for event in read("\n".join(lines) + "\nerror 802\n", ["802"])]


def test_literals_with_letters_of_hexadecimal_numbers_are_found() -> None:
    lines = ["INFO 05-26 07:50:26 [a.py:1] Added request %032x." % (i * 7919 ** 5) for i in range(300)]
    lines[150] = "INFO 05-26 07:50:26 [a.py:1] decoder is dead"
    lines[151] = "INFO 05-26 07:50:26 [a.py:1] cafe babe"
    found = [event.line for event in read("\n".join(lines), ["is dead", "cafe"])]
    assert 151 in found and 152 in found


def test_prompts_are_no_messages() -> None:
    text = "INFO 05-26 07:50:26 [logger.py:43] Received request cmpl-1: prompt: 'why do I get RuntimeError: CUDA out of memory? ERROR', params: x\n"
    assert read(text * 3, NEEDLES) == []


def test_wanted_none_gives_every_line() -> None:
    assert len(read("".join(record("", "m", level="INFO", stamp="05-26 07:50:%02d" % i) for i in range(60)))) == 60


def test_a_place_that_says_ever_new_things_is_bounded_and_a_real_error_still_comes() -> None:
    words = ("".join(chr(97 + (i // 26 ** k) % 26) for k in range(4)) for i in range(6000))
    text = "".join(record("(Worker_TP1 pid=7) ", "peculiar %s" % word, level="WARNING") for word in words)
    stats = Stats()
    found = read(text + record("(Worker_TP1 pid=7) ", "RuntimeError: boom", level="WARNING"), NEEDLES, stats)
    assert 2900 <= len(found) <= 3100 and found[-1].text == "RuntimeError: boom"
    assert len(found) - 1 + sum(stats.repeats.values()) == 6000


def test_scanner_serves_many_sources_alike() -> None:
    text = "".join(record("", "slow %d" % i, level="WARNING") for i in range(400))
    stats = Stats()
    found = list(events([Source.from_bytes(name, text.encode()) for name in "ab"], NEEDLES, stats))
    assert [sum(event.file == name for event in found) for name in "ab"] == [200, 200]
    assert sorted(stats.repeats.values()) == [200, 200]
