# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of RDMA, containers, hosts, storage and the plan on dressed nodes, and on facts that make no sense."""

from __future__ import annotations

import copy
import functools
from typing import Any, Dict, FrozenSet, List, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather
from ansible_collections.inferops.vllm.plugins.module_utils.plan.resolve import resolve
from tests.costume import FAULTS, HARDWARE, Spec, dress

from .healthy import b300_context, gb300_context, healthy_b300, healthy_gb300
from .run import Finding

GROUPS = ("rdma", "gpudirect", "container", "image", "host", "storage", "plan")
NAMES = ("node1", "node2", "node3", "node4")
FAULTY = "node2"


@functools.lru_cache(maxsize=64)
def facts(hardware: str, name: str, faults: FrozenSet[str]) -> Dict[str, Any]:
    spec = Spec(name, hardware, NAMES.index(name) + 1, faults, peers=NAMES)
    return gather(dress(spec), Options(image="vllm/vllm-openai:kimi-k3", names=NAMES))


def judged(hardware: str, *faults: str) -> List[Finding]:
    """Findings over four nodes that work together, of which node2 has the faults."""
    nodes = [Node(name, copy.deepcopy(facts(hardware, name, frozenset(faults if name == FAULTY else ())))) for name in NAMES]
    declared = {} if hardware.startswith("gb") else {"vllm_interconnect": "rdma"}
    return judge.judge(nodes, resolve(declared, nodes), only=GROUPS)


def troubles(findings: List[Finding]) -> Dict[Tuple[str, str], Tuple[str, str]]:
    return {(f["id"], f["node"]): (f["status"], f["severity"]) for f in findings if f["status"] not in ("pass", "skip")}


@pytest.mark.parametrize("hardware", HARDWARE)
def test_healthy_nodes_have_no_trouble(hardware: str) -> None:
    found = troubles(judged(hardware))
    # H200 has a report of its own that warns whoever plans with it.
    assert found == ({("image.known_trouble", "*"): ("warn", "warn")} if hardware == "h200" else {})
    passing = {f["id"] for f in judged(hardware) if f["status"] == "pass"}
    assert {"container.engine", "image.digest", "host.kernel", "storage.weights", "plan.fits", "plan.hardware"} <= passing
    assert ("rdma.ports" in passing) is not hardware.startswith("gb")


EXPECTED = {
    ("peermem_missing",): {("gpudirect.peermem", FAULTY): ("fail", "info")},
    ("errno_524",): {("gpudirect.dmabuf_fallback", "*"): ("warn", "warn")},
    ("peermem_missing", "errno_524"): {
        ("gpudirect.path", FAULTY): ("fail", "block"), ("gpudirect.peermem", FAULTY): ("fail", "block"),
        ("gpudirect.dmabuf_fallback", "*"): ("fail", "block")},
    ("port_down",): {("rdma.ports", FAULTY): ("fail", "block")},
    ("stale_cdi",): {("container.cdi_fresh", FAULTY): ("fail", "block")},
    ("smi_hung",): {("host.stuck", FAULTY): ("fail", "block")},
    ("pending_reboot",): {("host.pending_reboot", FAULTY): ("fail", "warn")},
}


@pytest.mark.parametrize("faults", EXPECTED, ids=["+".join(faults) for faults in EXPECTED])
def test_a_fault_is_found_by_its_check_and_by_no_other(faults: Tuple[str, ...]) -> None:
    assert troubles(judged("b300", *faults)) == EXPECTED[faults]


# What other groups find; here it must raise no false alarm. no_gpu and gpu_lost have tests of their own.
@pytest.mark.parametrize("fault", [f for f in FAULTS if (f,) not in EXPECTED and f != "no_gpu"])
def test_faults_of_other_groups_raise_no_alarm_here(fault: str) -> None:
    hardware = "gb300" if fault in ("clique_other", "imex_down") else "b300"
    assert troubles(judged(hardware, fault)) == {}


def test_a_machine_without_gpu_is_blocked_by_what_it_lacks() -> None:
    found = troubles(judged("b300", "no_gpu"))
    for id in ("plan.hardware", "gpudirect.path", "container.toolkit"):
        assert found[(id, FAULTY)] == ("fail", "block")
    assert not any(node in ("node1", "node3", "node4") for _id, node in found)


def test_a_lost_gpu_is_not_counted_as_memory() -> None:
    plan = [f for f in judged("b300", "gpu_lost") if f["id"] == "plan.fits"]
    assert plan[0]["observed"] == "1,680 GB of weights into (3 × 2,144 + 1 × 1,876) GB × 0.95 = 7,893 GB"


# -- facts that make no sense ------------------------------------------------------------------------
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("\x1b[31m<b>"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "port", "i", "state", "all"]), inner, max_size=3),
    max_leaves=6)


@st.composite
def damaged(draw: Any) -> Dict[str, Any]:
    """Facts of a healthy node in which up to four values, wherever they stand, are replaced or gone."""
    found = healthy_b300() if draw(st.booleans()) else healthy_gb300()
    for _again in range(draw(st.integers(1, 4))):
        at: Any = found
        while True:
            if isinstance(at, dict) and at:
                key: Any = draw(st.sampled_from(sorted(at, key=str)))
            elif isinstance(at, list) and at:
                key = draw(st.integers(0, len(at) - 1))
            else:
                break
            deeper = isinstance(at[key], (dict, list)) and bool(at[key]) and draw(st.integers(0, 4)) > 0
            if not deeper:
                at[key] = draw(JUNK)
                break
            at = at[key]
    return found


@settings(max_examples=150, deadline=None)
@given(damaged(), damaged(), st.sampled_from([b300_context(("node1", "node2")), b300_context(), gb300_context(("node1", "node2"))]))
def test_no_check_breaks_on_facts_that_make_no_sense(first: Dict[str, Any], second: Dict[str, Any], context: Any) -> None:
    nodes = [Node("node1", first, {"host_ip": "192.0.2.11", "groups": ["vllm_nodes"]}), Node("node2", second)]
    for f in judge.judge(nodes, context, only=GROUPS):
        assert "the check itself failed" not in f["observed"], f
        assert f["observed"] and f["observed"].isprintable() and len(f["observed"]) < 120, f
        assert f["required"].isprintable() and len(f["required"]) < 200, f
        if f["status"] in ("fail", "warn", "unknown"):
            assert f["why"] and f["fix"]
