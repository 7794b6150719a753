# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks gpudirect.*."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from .healthy import MISSING, b300_context, gb300_context, healthy_b300, healthy_gb300, put
from .run import one, over, status

PAIR = b300_context(("node1", "node2"))
IDS = ("gpudirect.path", "gpudirect.peermem", "gpudirect.dmabuf_fallback")
FORCED = [{"kind": "topology", "text": "dma-buf attach failed", "count": 8}]
WHY = "the RDMA core lacks ib_register_peer_memory_client"


def changed(**values: Any) -> Dict[str, Any]:
    facts = healthy_b300()
    for path, value in values.items():
        put(facts, "gpudirect." + path.replace("__", "."), value)
    return facts


def no_peermem(**values: Any) -> Dict[str, Any]:
    return changed(peermem__loaded=False, peermem__why_not=WHY, peermem__persisted=False, **values)


@pytest.mark.parametrize("id", IDS)
def test_a_healthy_node_passes(id: str) -> None:
    assert one(id, healthy_b300(), PAIR)["status"] == "pass"


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("section", [MISSING, None, {}, [], "x", {"unknown": {"all": "stuck"}}])
def test_without_facts_nothing_is_known(id: str, section: Any) -> None:
    facts = healthy_b300()
    put(facts, "gpudirect", section)
    assert status(id, facts, PAIR) == "unknown"


@pytest.mark.parametrize("id", IDS)
def test_plans_without_rdma_skip(id: str) -> None:
    broken = no_peermem(dmabuf__open_module=False)
    assert one(id, broken, b300_context())["observed"] == "the plan keeps each engine on one node"
    assert one(id, healthy_gb300(), gb300_context())["status"] == "skip"
    assert one(id, broken, PAIR._replace(hardware="cpu"))["status"] == "skip"


# -- path ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("values", [
    {"dmabuf__open_module": False}, {"dmabuf__kernel": False}, {"dmabuf__dma_buf_symbol": False}, {"dmabuf__attach_failed": FORCED},
    {"errno524__evidence": ["mlx5dv_reg_dmabuf_mr errno 524"]}, {"errno524__lines": 3},
])
def test_either_way_serves_and_neither_blocks(values: Dict[str, Any]) -> None:
    found = one("gpudirect.path", changed(**values), PAIR)
    assert found["status"] == "pass" and found["observed"].startswith("nvidia_peermem (dma-buf: ")
    found = one("gpudirect.path", no_peermem(**values), PAIR)
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert found["observed"].startswith("neither: nvidia_peermem not loaded; dma-buf: ")
    found = one("gpudirect.peermem", no_peermem(**values), PAIR)
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert WHY in found["observed"]


def test_dmabuf_alone_serves() -> None:
    assert one("gpudirect.path", no_peermem(), PAIR)["observed"] == "dma-buf"


def test_the_legacy_module_serves() -> None:
    facts = changed(peermem__loaded=False, peermem__legacy_loaded=True, dmabuf__open_module=False)
    assert status("gpudirect.path", facts, PAIR) == "pass"


@pytest.mark.parametrize("part", ["open_module", "kernel", "dma_buf_symbol"])
def test_a_precondition_that_is_not_known_passes_only_with_peermem(part: str) -> None:
    unread = {"dmabuf__" + part: None, "unknown__" + part: "only root may read it"}
    assert status("gpudirect.path", changed(**unread), PAIR) == "pass"
    found = one("gpudirect.path", no_peermem(**unread), PAIR)
    assert (found["status"], found["severity"]) == ("unknown", "block")
    assert "only root may read it" in found["observed"]
    assert status("gpudirect.peermem", no_peermem(**unread), PAIR) == "unknown"


def test_peermem_that_is_not_known_does_not_save_a_node() -> None:
    facts = changed(dmabuf__open_module=False, peermem__loaded=None, unknown__peermem="no /proc/modules")
    found = one("gpudirect.path", facts, PAIR)
    assert (found["status"], found["observed"]) == ("unknown", "nvidia_peermem: no /proc/modules")
    found = one("gpudirect.peermem", facts, PAIR)
    assert (found["status"], found["severity"]) == ("unknown", "block")


# -- peermem -------------------------------------------------------------------------------------
def test_peermem_that_nothing_needs_is_said_without_weight() -> None:
    found = one("gpudirect.peermem", no_peermem(), PAIR)
    assert (found["status"], found["severity"]) == ("fail", "info")
    assert "dma-buf serves" in found["observed"]


def test_peermem_that_a_reboot_would_lose() -> None:
    facts = changed(dmabuf__attach_failed=FORCED, peermem__persisted=False)
    assert one("gpudirect.peermem", facts, PAIR)["observed"] == "loaded, not persisted: gone after a reboot"
    assert status("gpudirect.peermem", changed(peermem__persisted=False), PAIR) == "pass"


def test_two_modules_for_one_client() -> None:
    assert status("gpudirect.peermem", changed(peermem__legacy_loaded=True), PAIR) == "warn"


def test_peermem_that_is_not_installed_says_so() -> None:
    facts = changed(peermem__loaded=False, peermem__present=False, peermem__why_not=None, dmabuf__kernel=False)
    assert "not on disk" in one("gpudirect.peermem", facts, PAIR)["observed"]


# -- fallback ------------------------------------------------------------------------------------
def fallback(first: Dict[str, Any], second: Dict[str, Any]) -> Dict[str, Any]:
    found = over("gpudirect.dmabuf_fallback", {"node1": first, "node2": second}, PAIR)
    assert list(found) == ["*"]
    return found["*"]


def test_the_fallback_is_allowed_with_peermem_everywhere() -> None:
    found = fallback(changed(dmabuf__attach_failed=FORCED), healthy_b300("node2"))
    assert found["status"] == "warn"
    assert found["observed"] == "errno 524 on node1; NCCL_DMABUF_ENABLE=0 is allowed: nvidia_peermem on all 2 nodes"


def test_the_fallback_is_blocked_by_one_node_without_peermem() -> None:
    found = fallback(changed(dmabuf__attach_failed=FORCED), no_peermem())
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert found["observed"] == "errno 524 on node1; NCCL_DMABUF_ENABLE=0 not allowed: no nvidia_peermem on node2"
    assert "inferops.vllm.remediate" in found["fix"]


def test_the_fallback_with_an_unread_node() -> None:
    unread = changed(peermem__loaded=None, unknown__peermem="stuck")
    found = fallback(changed(dmabuf__attach_failed=FORCED), unread)
    assert (found["status"], found["severity"]) == ("unknown", "block")


def test_no_evidence_and_no_log_is_not_known_unless_peermem_is_everywhere() -> None:
    unread = no_peermem(unknown__kernel_log="only root may read it")
    found = fallback(unread, healthy_b300("node2"))
    assert (found["status"], found["severity"]) == ("unknown", "warn")
    assert fallback(changed(unknown__kernel_log="only root may read it"), healthy_b300("node2"))["status"] == "pass"


def test_without_peermem_and_without_refusals_nothing_is_needed() -> None:
    assert fallback(no_peermem(), no_peermem())["status"] == "pass"


def test_what_is_said_of_the_fallback() -> None:
    assert fallback(healthy_b300(), healthy_b300("node2"))["observed"].endswith("the fallback is there (nvidia_peermem on all nodes)")
    assert fallback(no_peermem(), healthy_b300("node2"))["observed"].endswith("the fallback is not needed")


def test_a_node_without_a_driver_has_no_dmabuf() -> None:
    facts = no_peermem(dmabuf__open_module=None)
    put(facts, "driver.loaded", None)
    assert status("gpudirect.path", facts, PAIR) == "fail"
    put(facts, "driver.unknown.loaded", "stuck")
    assert status("gpudirect.path", facts, PAIR) == "unknown"
    put(facts, "driver", {"unknown": {}})
    assert status("gpudirect.path", facts, PAIR) == "unknown"
