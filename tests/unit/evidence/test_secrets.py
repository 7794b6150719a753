# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets of many kinds are planted, and none is found in what leaves the node."""

from __future__ import annotations

import gzip
import json
from typing import List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.evidence import secrets
from ansible_collections.inferops.vllm.plugins.module_utils.evidence.secrets import Cleaner, known_values, listed
from ansible_collections.inferops.vllm.plugins.module_utils.evidence.stream import Keeper
from ansible_collections.inferops.vllm.plugins.module_utils.node.redact import MASK

from .secrets_planted import INNOCENT, KNOWN, PLANTED

CLEANER = Cleaner([KNOWN])


def kept(data: bytes, cuts: List[int], limit: int = 1 << 24) -> bytes:
    """`data` through a Keeper in pieces that end at `cuts`."""
    keeper = Keeper(CLEANER, limit)
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in zip(edges, edges[1:]):
        keeper.feed(data[start:end])
    return gzip.decompress(b"".join(keeper.close().data) or gzip.compress(b""))


def test_at_least_twenty_kinds_are_planted() -> None:
    assert len({kind for kind, _line, _secret in PLANTED}) >= 20
    assert all(secret in line for _kind, line, secret in PLANTED)


@pytest.mark.parametrize(("kind", "line", "secret"), PLANTED, ids=[kind for kind, _line, _secret in PLANTED])
def test_a_planted_secret_is_masked_in_text_and_in_a_log(kind: str, line: str, secret: str) -> None:
    assert secret not in CLEANER.text(line)
    log = "\n".join([*INNOCENT, line, *INNOCENT, ""]).encode()
    clean = kept(log, [])
    assert secret.encode() not in clean and MASK.encode() in clean
    for text in INNOCENT:
        assert clean.count(text.encode()) == 2, "the log lost what is no secret"


@pytest.mark.parametrize(("kind", "line", "secret"), PLANTED, ids=[kind for kind, _line, _secret in PLANTED])
def test_a_planted_secret_is_masked_behind_a_prefix_of_a_journal(kind: str, line: str, secret: str) -> None:
    prefix = "2026-11-29T10:00:00.123456+0000 node1 docker[434]: (APIServer pid=1) "
    log = "".join(prefix + part + "\n" for part in line.split("\n")).encode()
    assert secret.encode() not in kept(log, [])


@given(st.lists(st.integers(0, 6000), max_size=12), st.randoms(use_true_random=False))
def test_no_secret_escapes_at_the_border_of_two_blocks(cuts: List[int], random: object) -> None:
    lines = [line for _kind, line, _secret in PLANTED] + INNOCENT
    random.shuffle(lines)  # type: ignore[attr-defined]
    clean = kept("\n".join([*lines, ""]).encode(), cuts)
    assert [secret for _kind, _line, secret in PLANTED if secret.encode() in clean] == []


@given(st.text())
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    once = CLEANER.text(text)
    assert CLEANER.text(once) == once


@given(st.binary(max_size=3000))
def test_any_bytes_are_cleaned(data: bytes) -> None:
    block = data + b"\n"
    assert CLEANER.block(block).count(b"\n") <= block.count(b"\n")
    if not any(word in block.lower() for word in secrets._SUSPECTS) and KNOWN.encode() not in block:
        assert CLEANER.block(block) == block


@pytest.mark.parametrize("text", INNOCENT)
def test_what_is_no_secret_stays(text: str) -> None:
    assert CLEANER.text(text) == text


def test_redactions_tell_the_place_and_the_kind_and_never_the_value() -> None:
    text = "one\nHF_TOKEN=%s\nvllm serve --api-key %s\nhttps://lab:%s@h/\n%s\nAuthorization: Bearer %s" % (
        ("value-of-token",) + ("value-of-key",) + ("value-of-url",) + (KNOWN,) + ("value-of-bearer",))
    found = listed(CLEANER.text(text))
    assert [place.line for place in found] == [2, 3, 4, 5, 6]
    assert [place.kind for place in found] == [
        "value of HF_TOKEN", "option --api-key", "password in a URL", "known value or shape of a token or key", "value of Authorization"]
    told = json.dumps(secrets.summary({"a.log": found}))
    assert "value-of" not in told and KNOWN not in told and '"count": 5' in told


def test_values_that_the_node_uses_are_known_and_paths_and_numbers_are_not() -> None:
    found = known_values(
        [{"VLLM_API_KEY": "key-from-environment", "HF_TOKEN_PATH": "/root/.cache/token", "PATH": "/usr/bin", "SOME_PASSWORD": "12345678", "HF_TOKEN": "abc"}],
        [["vllm", "serve", "--api-key", "key-from-argv", "--port", "8000"], ["x", "--api-key=key-with-sign"]],
        ["# HF_TOKEN=commented-out-value\nexport HF_TOKEN='token-from-file'\nVLLM_PORT=8000\n"])
    assert found == {"key-from-environment", "key-from-argv", "key-with-sign", "token-from-file"}


def test_values_under_a_secret_name_are_masked_whole() -> None:
    clean = CLEANER.value({"VLLM_API_KEY": "any thing, even; this", "NCCL_DEBUG": "INFO", "list": ["HF_TOKEN=x-y-z-1", 3, None], "deep": {"password": "p p"}})
    assert clean == {"VLLM_API_KEY": MASK, "NCCL_DEBUG": "INFO", "list": ["HF_TOKEN=" + MASK, 3, None], "deep": {"password": MASK}}
