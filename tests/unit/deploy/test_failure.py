# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of a start that failed."""

from __future__ import annotations

from ansible_collections.inferops.vllm.plugins.module_utils.deploy.failure import Rank, explain

BANNER = "(APIServer pid=1) INFO 11-29 17:55:54 [api_utils.py:286] non-default args: {'model_tag': '/m'}\n"
BUSY = BANNER + "(APIServer pid=1) OSError: [Errno 98] Address already in use\n"


def test_the_log_s_first_failure_is_named_with_its_node() -> None:
    case = explain([Rank("a", False, "dependencies", "the unit failed: exit status 1", "", BUSY.encode()), Rank("b", False, "container_init", "", "", b"")])
    assert case["first_failure"]["node"] == "a" and "Address already in use" in case["sentence"] and case["sentence"].startswith("a failed first")
    assert "Next: " in case["sentence"]


def test_without_a_log_it_is_how_the_waiting_ended() -> None:
    case = explain([Rank("a", False, "container_init", "the node has not answered for 90 s", "", b""), Rank("b", True, "api_ready", "", "", b"")])
    assert case["sentence"] == "a (container_init): the node has not answered for 90 s."


def test_a_task_that_failed_before_the_waiting_is_said() -> None:
    case = explain([Rank("a", False, "container_init", "", "the image is not on this node", b""), Rank("b", False, "container_init", "", "", b"")])
    assert case["sentence"] == "a the image is not on this node."
