# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks storage.*."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from .healthy import MISSING, b300_context, healthy_b300, put
from .run import one, status

ID = "storage.weights"
CHECKPOINT = {"path": "/var/lib/vllm/k3", "present": True, "bytes": 1560 * 10**9, "shards": 96, "index": True, "missing": 0}


def changed(weights: Any = None, **values: Any) -> Dict[str, Any]:
    facts = put(healthy_b300(), "storage.weights", weights)
    for name, value in values.items():
        put(facts, "storage.paths.0." + name, value)
    return facts


def test_room_enough() -> None:
    found = one(ID, healthy_b300())
    assert found["status"] == "pass"
    assert found["required"] == "1,848 GB free (1,680 GB of weights × 1.1), or a complete checkpoint"


@pytest.mark.parametrize("free, expected", [(1848 * 10**9, "pass"), (1847 * 10**9, "fail"), (0, "fail"), (None, "unknown")])
def test_free_space(free: Any, expected: str) -> None:
    found = one(ID, changed(free_bytes=free))
    assert (found["status"], found["severity"]) == (expected, "block")
    if expected == "fail":
        assert found["observed"].endswith("GB free, /var/lib/vllm on /var/lib/vllm (xfs)")


@pytest.mark.parametrize("section", [MISSING, None, {}, [], "x", {"unknown": {"all": "the file system hangs"}}, {"paths": []}])
def test_without_facts_nothing_is_known(section: Any) -> None:
    found = one(ID, put(healthy_b300(), "storage", section))
    assert found["status"] == "unknown" and "failed" not in found["observed"]


def test_a_file_system_that_hangs_says_so() -> None:
    facts = changed(free_bytes=None)
    put(facts, "storage.unknown.paths", "/var/lib/vllm could not be looked at: the file system does not answer")
    assert "does not answer" in one(ID, facts)["observed"]


@pytest.mark.parametrize("change, expected", [
    ({}, "pass"), ({"bytes": 1344 * 10**9}, "pass"), ({"bytes": 1343 * 10**9}, "fail"), ({"index": False}, "fail"),
    ({"present": False}, "fail"), ({"shards": 0}, "fail"),
])
def test_a_checkpoint_that_is_there(change: Dict[str, Any], expected: str) -> None:
    facts = changed(dict(CHECKPOINT, **change), free_bytes=10 * 10**9)
    assert status(ID, facts) == expected


def test_what_is_already_there_need_not_fit_again() -> None:
    part = dict(CHECKPOINT, present=False, missing=20, bytes=1000 * 10**9)
    found = one(ID, changed(part, free_bytes=900 * 10**9))
    assert found["status"] == "pass" and "1,000 GB already there" in found["observed"]
    assert status(ID, changed(part, free_bytes=800 * 10**9)) == "fail"


def test_the_whole_checkpoint_of_another_model_is_no_room() -> None:
    other = {"path": "/var/lib/vllm/DeepSeek-R1", "present": True, "bytes": 688 * 10**9, "shards": 163, "index": True, "missing": 0}
    found = one(ID, changed(other, free_bytes=1200 * 10**9))
    assert found["status"] == "fail" and found["observed"].startswith("1,200 GB free, ")
    assert status(ID, changed(other, free_bytes=1900 * 10**9)) == "pass"


def test_a_small_model_serves_on_hardware_cpu() -> None:
    small = changed(dict(CHECKPOINT, bytes=5 * 10**6, shards=1), free_bytes=10**9)
    assert status(ID, small, b300_context()._replace(hardware="cpu")) == "pass"
    assert status(ID, small) == "fail"


def test_a_disk_that_takes_no_files() -> None:
    assert "read-only" in one(ID, changed(options="ro,noatime"))["observed"]
    assert "inode" in one(ID, changed(free_inodes=0))["observed"]
    assert status(ID, changed(free_inodes=0, fstype="btrfs")) == "pass"
    assert status(ID, changed(options="rw,errors=remount-ro")) == "pass"
