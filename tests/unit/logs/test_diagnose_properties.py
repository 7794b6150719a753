# SPDX-License-Identifier: GPL-3.0-or-later
"""Any bytes, any mixture of real lines: a document of the right shape, and what it points at exists."""

from __future__ import annotations

from typing import List

from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.logs import signatures
from ansible_collections.inferops.vllm.plugins.module_utils.logs.diagnose import diagnose
from ansible_collections.inferops.vllm.plugins.module_utils.logs.phases import PHASES
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source
from tests.unit.logs.test_diagnose_rules import BEGIN, FAILED_START, LOAD, READY, RELAYS, STOP

LINES = [line for text in (BEGIN, LOAD, READY, STOP, RELAYS, FAILED_START) for line in text.split("\n")]
LINES += [row.positive for row in signatures.rows()] + [row.negative for row in signatures.rows()]
LINES += ["Traceback (most recent call last):", '  File "/x.py", line 5, in load_model', "    raise x", "", "\x1b[31m", "\r"]


# A verdict over a few logs costs milliseconds, a hundred of them seconds: few in every run, all that the profile asks for when it asks for many.
ASKED = (settings.default or settings()).max_examples
FEW = settings(max_examples=40 if ASKED <= 100 else ASKED)


def check(logs: List[bytes]) -> None:
    found = diagnose([Source.from_bytes("log%d" % index, data) for index, data in enumerate(logs)])
    assert isinstance(found["failed"], bool) and (found["phase"] is None or found["phase"] in PHASES) and found["class"] in signatures.CLASSES
    assert found["confidence"] in ("high", "medium", "low") and found["next_action"] and "\n" not in found["next_action"]
    assert found["failed"] == (found["class"] != "none")
    first = found["first_failure"]
    if first is not None:
        assert found["failed"]
        data = logs[int(first["file"][3:])]
        lines = data.decode("utf-8", "replace").split("\n")
        assert 1 <= first["line"] <= len(lines)
        if b"\0" not in data and not data.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"{")) and b"{" not in data[:1]:
            assert first["text"] in lines[first["line"] - 1] or first["text"].startswith(lines[first["line"] - 1][:3000].rstrip("\r"))
    if not found["failed"]:
        assert found["class"] == "none"
    for lane in found["timeline"]["lanes"]:
        assert lane["reached"] in PHASES


@FEW
@given(st.lists(st.binary(max_size=400), max_size=3))
def test_any_bytes(logs: List[bytes]) -> None:
    check(logs)


@FEW
@given(st.lists(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=60)), max_size=40), min_size=1, max_size=3), st.booleans())
def test_any_mixture_of_lines(logs: List[List[str]], cut: bool) -> None:
    texts = ["\n".join(lines) for lines in logs]
    check([(text[: len(text) * 2 // 3] if cut else text).encode("utf-8", "surrogatepass") for text in texts])
