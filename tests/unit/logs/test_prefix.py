# SPDX-License-Identifier: GPL-3.0-or-later
"""Why the prefix cache does not hit."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.logs.prefix import diagnose_prefix, first_difference, parts

LONG = "You are a careful assistant of the house. " * 400
MISS = {"queries": 18432.0, "hits": 0.0}


def chat(system: str, user: str = "hello", **more: Any) -> Dict[str, Any]:
    return {"model": "k3", "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}], **more}


def words(text: str) -> List[int]:
    return [hash(word) for word in text.split()]


def test_off_in_the_process_that_runs() -> None:
    found = diagnose_prefix({"enable_prefix_caching": False, "block_size": 1536}, MISS)
    assert found["reason"] == "not_enabled" and found["ineffective"] and found["confidence"] == "high"


def test_hits_are_hits() -> None:
    found = diagnose_prefix({"enable_prefix_caching": True}, {"queries": 200.0, "hits": 150.0}, {"queries": 100.0, "hits": 0.0})
    assert found["reason"] == "works" and not found["ineffective"]


def test_without_traffic_nothing_is_said() -> None:
    found = diagnose_prefix({"enable_prefix_caching": True}, MISS, MISS)
    assert found["reason"] == "no_traffic" and not found["ineffective"] and found["collect"]


def test_a_server_that_was_started_anew() -> None:
    assert diagnose_prefix({}, {"queries": 10.0, "hits": 5.0}, {"queries": 1000.0, "hits": 900.0})["reason"] == "works"


@pytest.mark.parametrize(
    "ours, theirs, kind",
    [
        ("Now is 2026-08-01T10:00. " + LONG, "Now is 2026-08-01T10:05. " + LONG, "time stamp"),
        ("session_id: ab12cd34 " + LONG, "session_id: ef56ab78 " + LONG, "identifier"),
        ("Be kind. " + LONG, "Be brief. " + LONG, "system prompt"),
    ],
)
def test_what_differs_at_the_head(ours: str, theirs: str, kind: str) -> None:
    found = diagnose_prefix({"enable_prefix_caching": True, "block_size": 1536}, MISS, None, (chat(ours), chat(theirs)))
    assert found["reason"] == "prefix_differs" and found["difference"]["kind"] == kind and found["difference"]["part"] == "messages[0] (system)"


def test_tools_in_another_order() -> None:
    one, two = {"type": "function", "function": {"name": "a"}}, {"type": "function", "function": {"name": "b"}}
    found = diagnose_prefix({"enable_prefix_caching": True, "block_size": 1536}, MISS, None, (chat(LONG, tools=[one, two]), chat(LONG, tools=[two, one])))
    assert found["difference"]["kind"] == "order of tools" and "same order" in found["next_action"]


def test_the_first_differing_byte_and_token() -> None:
    found = first_difference({"prompt": "äbc one two three"}, {"prompt": "äbc one two drei"}, words)
    assert found is not None and found.byte == len("äbc one two ".encode()) and (found.token, found.exact) == (3, True)
    near = first_difference({"prompt": "äbc one two three"}, {"prompt": "äbc one two drei"})
    assert near is not None and not near.exact


def test_shorter_than_a_block() -> None:
    found = diagnose_prefix({"enable_prefix_caching": True, "block_size": 1920}, MISS, None, (chat("Be kind.", "one"), chat("Be kind.", "two")), words)
    assert found["reason"] == "shorter_than_block" and "1920" in found["text"] and found["confidence"] == "high"


def test_long_enough_and_not_kept() -> None:
    running = {"enable_prefix_caching": True, "block_size": 128, "hybrid": True, "retention_interval": 12800}
    found = diagnose_prefix(running, MISS, None, (chat(LONG, "one"), chat(LONG, "two")))
    assert found["reason"] == "not_retained" and "12800" in found["text"]
    found = diagnose_prefix({"enable_prefix_caching": True, "block_size": 128}, MISS, None, (chat(LONG, "one"), chat(LONG, "two")))
    assert found["reason"] == "not_retained" and found["confidence"] == "low" and found["collect"]


def test_a_prompt_that_goes_on_where_another_ends_is_one_prefix() -> None:
    assert first_difference(chat(LONG, "one"), chat(LONG, "one and two")) is None
    assert first_difference(chat(LONG), chat(LONG)) is None


def test_one_request_is_not_enough() -> None:
    found = diagnose_prefix({"enable_prefix_caching": None}, MISS)
    assert found["reason"] == "unknown" and any("two request bodies" in text for text in found["collect"])


def test_what_is_no_request() -> None:
    assert parts("x") == [] and parts({"messages": "no"}) == []
    assert diagnose_prefix({"block_size": 16}, MISS, None, ("x", 5))["reason"] == "unknown"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=True) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["messages", "prompt", "tools", "role", "content", "tool_calls", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    JSON,
    JSON,
    st.dictionaries(st.sampled_from(["queries", "hits"]), st.floats(allow_nan=True)),
    st.dictionaries(
        st.sampled_from(["enable_prefix_caching", "block_size", "retention_interval", "kv_usage", "hybrid", "preemptions"]),
        st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    ),
)
def test_takes_anything(one: Any, two: Any, counted: Dict[str, float], running: Dict[str, Any]) -> None:
    found = diagnose_prefix(running, counted, None, (one, two))
    assert found["reason"] in ("not_enabled", "prefix_differs", "shorter_than_block", "not_retained", "no_traffic", "works", "unknown")
