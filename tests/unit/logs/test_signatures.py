# SPDX-License-Identifier: GPL-3.0-or-later
"""Every signature: its own examples, its words, and that no other row hides it."""

from __future__ import annotations

import re

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.logs import signatures, verdict
from ansible_collections.inferops.vllm.plugins.module_utils.logs.phases import PHASES
from ansible_collections.inferops.vllm.plugins.module_utils.logs.signatures import CAUSES, CLASSES, ROLES, Signature

ROWS = signatures.rows()


def hit(row: Signature, text: str) -> bool:
    return row.needle in text and (not row.pattern or bool(re.search(row.pattern, text)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_row(row: Signature) -> None:
    assert hit(row, row.positive), "the positive example does not match"
    assert not hit(row, row.negative), "the negative example matches"
    found = verdict.match(row.positive)
    assert found is not None
    # A weightier row may speak for it, but it must say the same.
    assert (found.role, found.cls if row.cls != "oom" else "") == (row.role, row.cls if row.cls != "oom" else "") or found.weight > row.weight
    assert row.role in ROLES and row.how in ("row", "frames", "log", "start") and row.phase in ("",) + PHASES
    assert row.source.startswith("https://") and row.versions
    if row.role == "root":
        assert row.cause in CAUSES and row.cls in CLASSES + ("oom",) and row.weight < 10
    elif row.role == "relay":
        assert (row.cause in CAUSES) if row.cause else not row.cls
    else:
        assert not row.cls and not row.cause


def test_ids_are_unique() -> None:
    names = [row.id for row in ROWS]
    assert len(set(names)) == len(names)


def test_causes_speak_in_one_sentence() -> None:
    for name, cause in CAUSES.items():
        assert cause.cls in CLASSES and cause.action.endswith("."), name
    assert {cause.cls for cause in CAUSES.values()} | {"none"} >= set(CLASSES)


def test_nobody_shortens_the_context_for_a_start_that_failed() -> None:
    """A failure before the engine was ready says nothing about the length of requests."""
    said = [row.action for row in ROWS] + [cause.action for cause in CAUSES.values()]
    for action in said:
        assert not re.search(r"(?i)(?:lower|reduce|decrease|shorten|smaller).{0,30}(?:max[-_]model[-_]len|context)", action), action


def test_every_class_has_a_root_or_a_rule() -> None:
    covered = {row.cls for row in ROWS if row.role == "root"} | {row.cls for row in ROWS if row.role == "relay"}
    # The memory classes are split by phase, and these come from rules, not from one line.
    by_rule = {"oom_weights", "oom_warmup", "oom_runtime", "none"}
    assert set(CLASSES) - covered - by_rule == set()


@pytest.mark.parametrize(
    "text, name",
    [
        ("RuntimeError: Worker failed with error 'CUDA error: an illegal memory access was encountered'", "worker-failed-echo"),
        ("WARNING Unknown vLLM environment variable detected: VLLM_X", "unknown-env"),
        ("ValueError: Unknown vLLM environment variable detected: VLLM_X", "unknown-env-strict"),
        ("NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1", "modify-qp-gid"),
        ("NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1", "modify-qp-routing"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_0'", "shm-space"),
        ("OSError: [Errno 28] No space left on device: '/root/.cache'", "no-space"),
    ],
)
def test_near_relatives(text: str, name: str) -> None:
    found = verdict.match(text)
    assert found is not None and found.id == name


def test_plain_lines_are_nothing() -> None:
    for text in ("INFO 05-26 07:50:26 [core.py:1] all is well", "", "hello", "200 OK"):
        assert verdict.match(text) is None
