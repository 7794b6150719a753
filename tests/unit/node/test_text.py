# SPDX-License-Identifier: GPL-3.0-or-later
"""Small readings of text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import text as reading


@pytest.mark.parametrize("given_text,expected", [
    ("183359 MiB", 183359), ("16x", 16), ("-5 C", -5), ("26.9", 26), ("N/A", None), ("", None), (None, None), (7, 7), ("9" * 30, None)])
def test_integer(given_text: Any, expected: Any) -> None:
    assert reading.integer(given_text) == expected


@pytest.mark.parametrize("given_text,expected", [("53.125 GB/s", 53.125), ("25 GB/s", 25.0), ("N/A", None), (None, None), ("9" * 30, None)])
def test_number(given_text: Any, expected: Any) -> None:
    assert reading.number(given_text) == expected


@pytest.mark.parametrize("given_text,expected", [
    ("00000000:1B:00.0", "0000:1b:00.0"), ("00000008:06:00.0", "0008:06:00.0"), ("PCI:0008:06:00", "0008:06:00.0"),
    ("1b:00.0", "0000:1b:00.0"), ("0000:1B:00", "0000:1b:00.0"), ("00010000:01:00.0", "10000:01:00.0"), (" 0000:0a:1f.7\n", "0000:0a:1f.7"),
    ("not an address", "not an address"), ("", ""), ("0000:1b:00.8", "0000:1b:00.8")])
def test_bus_address(given_text: str, expected: str) -> None:
    assert reading.bus_address(given_text) == expected


@pytest.mark.parametrize("given_text,expected", [
    ("580.95.05", (580, 95, 5)), ("580.142", (580, 142)), ("580.95.05-0ubuntu1", (580, 95, 5)), ("", ()), (None, ()), ("none", ())])
def test_version(given_text: Any, expected: Any) -> None:
    assert reading.version(given_text) == expected


def test_table() -> None:
    assert reading.table('A=1\nB="two words"\nC = \'x\'\nno sign\n=y\nA=3\nD=a=b') == {"A": "3", "B": "two words", "C": "x", "D": "a=b"}
    assert reading.table("EnableStreamMemOPs: 1\n", ":") == {"EnableStreamMemOPs": "1"}


def test_drop_empty_keeps_zero_and_false() -> None:
    assert reading.drop_empty({"a": None, "b": "", "c": [], "d": {}, "e": 0, "f": False, "g": "x"}) == {"e": 0, "f": False, "g": "x"}


@given(st.text())
def test_any_text_is_read_without_an_exception(any_text: str) -> None:
    assert reading.integer(any_text) is None or isinstance(reading.integer(any_text), int)
    assert reading.number(any_text) is None or isinstance(reading.number(any_text), float)
    assert all(isinstance(part, int) for part in reading.version(any_text))
    assert isinstance(reading.table(any_text), dict)
    address = reading.bus_address(any_text)
    assert address == any_text.strip() or re.match(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", address)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))
def test_every_form_of_an_address_reads_the_same(domain: int, bus: int, device: int, function: int) -> None:
    expected = "%04x:%02x:%02x.%d" % (domain, bus, device, function)
    assert reading.bus_address(expected) == reading.bus_address("%08X:%02X:%02X.%d" % (domain, bus, device, function)) == expected
    assert reading.bus_address("PCI:" + expected) == expected
