# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel messages: forms of a line, the choice between journal and ring buffer, grouping."""

from __future__ import annotations

import re
from typing import Any, Dict

from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import kernel_log
from ansible_collections.inferops.vllm.plugins.module_utils.node.kernel_log import Line
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import MemoryReader, Ran


def reader(journal: Any = None, ring: Any = None) -> MemoryReader:
    commands: Dict[Any, Any] = {}
    if journal is not None:
        commands[kernel_log.JOURNAL] = journal
    if ring is not None:
        commands[kernel_log.RING] = ring
    return MemoryReader(commands=commands)


def test_forms_of_a_line() -> None:
    text = (
        "[    0.000000] Linux version 6.8\n[    1.250000] host.example kernel: NVRM: loading\n<6>[   12.5] with its level\n"
        "[   13.000000][  T123] with its caller\n[   14.000000][    C7] on a processor\n[   15.000000]\n")
    assert kernel_log.parse(text) == [
        Line(0.0, "Linux version 6.8"), Line(1.25, "NVRM: loading"), Line(12.5, "with its level"), Line(13.0, "with its caller"),
        Line(14.0, "on a processor"), Line(15.0, "")]


def test_lines_without_a_time() -> None:
    text = "-- Logs begin --\n  early\n[    1.0] first\n          second\n\tthird\nforeign\n   \n[    2.0] next\n"
    assert kernel_log.parse(text) == [Line(1.0, "first second third"), Line(2.0, "next")]


def test_messages_are_bounded() -> None:
    text = "[    1.0] " + "x" * 5000 + "\n" + "   more\n" * 5000
    assert [len(line.text) for line in kernel_log.parse(text)] == [kernel_log.MAX_TEXT]


def test_journal_is_preferred_as_it_remembers_longer() -> None:
    old, new = "[    1.000000] h kernel: old\n[    9.000000] h kernel: new\n", "[    9.000000] new\n"
    assert kernel_log.lines(reader(old, new)) == ([Line(1.0, "old"), Line(9.0, "new")], "")
    # A journal that was rotated begins later than the ring buffer.
    assert kernel_log.lines(reader("[    9.000000] h kernel: new\n", "[    1.000000] old\n"))[0] == [Line(1.0, "old")]
    assert kernel_log.lines(reader(old, Ran(1, "", "dmesg: Operation not permitted\n")))[0][0] == Line(1.0, "old")
    assert kernel_log.lines(reader(Ran(1, "", "No journal files were opened"), new)) == ([Line(9.0, "new")], "")


def test_a_journal_that_was_cut_is_completed_by_the_ring_buffer() -> None:
    old, new = "[    1.000000] h kernel: old\n[    5.000000] h kernel: both\n[    9.000000] h kernel: ne", "[    4.000000] both\n[    9.000000] new\n"
    for error in ("too_large", "timeout"):
        cut = Ran(0 if error == "too_large" else None, old, "", error)
        assert kernel_log.lines(reader(cut, new)) == ([Line(1.0, "old"), Line(5.0, "both"), Line(9.0, "new")], "")
        # What was said between them is not known; what was read still tells of a fault.
        found, why = kernel_log.lines(reader(cut, "[    7.000000] late\n"))
        assert found == [Line(1.0, "old"), Line(5.0, "both"), Line(7.0, "late")] and "up to 5 s" in why
        assert kernel_log.lines(reader(cut))[1]
    hung = Ran(None, "", "", "timeout")
    assert kernel_log.lines(reader(hung, "[    0.000000] Linux\n")) == ([Line(0.0, "Linux")], "")
    found, why = kernel_log.lines(reader(hung, "[  900.000000] late\n"))
    assert found == [Line(900.0, "late")] and "did not answer in time" in why


def test_why_there_are_none() -> None:
    assert kernel_log.lines(reader()) == ([], "dmesg is not installed")
    assert kernel_log.lines(reader("", "")) == ([], "the kernel's ring buffer is empty")
    denied = Ran(1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")
    assert kernel_log.lines(reader("", denied)) == (
        [], "dmesg exited with 1: dmesg: read kernel buffer failed: Operation not permitted")


def test_grouping_takes_the_first_pattern_that_matches() -> None:
    patterns = (("a", re.compile("alpha")), ("b", re.compile("beta")))
    found = kernel_log.classify(
        [Line(1.0, "beta one"), Line(2.0, "alpha and beta"), Line(3.0, "gamma"), Line(4.0, "beta two")], patterns)
    assert [(g.kind, g.text, g.count, g.first, g.last) for g in found] == [
        ("b", "beta one", 2, 1.0, 4.0), ("a", "alpha and beta", 1, 2.0, 2.0)]


@given(st.one_of(st.text(), st.text(alphabet="[]0123456789. \t\n<>TCkernel:")))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_without_an_exception(text: str) -> None:
    for line in kernel_log.parse(text) + kernel_log.parse("[    1.0] x\n" + text):
        assert isinstance(line.at, float) and len(line.text) <= kernel_log.MAX_TEXT


@given(st.lists(st.tuples(st.integers(0, 10**6), st.from_regex(r"[!-~]([ -~]{0,60}[!-~])?", fullmatch=True)), max_size=10))
def test_what_was_printed_is_read_back(messages: Any) -> None:
    text = "".join("[%5d.000000] %s\n" % message for message in messages)
    expected = [Line(float(at), re.sub(r"^\S{1,255} kernel: ", "", words).strip()) for at, words in messages]
    assert kernel_log.parse(text) == expected
