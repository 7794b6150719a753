# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""All checks over all nodes: verdicts, hostile facts, and nodes as the collectors see them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Sequence, Set, Tuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import (
    CLUSTER,
    OBSERVED_MAX,
    REGISTRY,
    SEVERITIES,
    STATUSES,
    Check,
    Context,
    Node,
    Outcome,
)
from ansible_collections.inferops.vllm.plugins.module_utils.node import smi
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather
from tests.costume import HARDWARE, Spec, dress

from .healthy import IMAGE, b300_context, gb300_context, healthy_b300, healthy_gb300, put
from .run import blockers

NAMES = ("node1", "node2", "node3", "node4")
MINE = ("driver", "gpu", "fabric", "drift")
Findings = List[Dict[str, Any]]


def four(make: Any = healthy_b300) -> List[Node]:
    return [Node(name, make(name, NAMES)) for name in NAMES]


@pytest.fixture
def extra() -> Iterator[Any]:
    """Register a rule for one test."""
    added: List[str] = []

    def register(run: Any, id: str = "test.rule", severity: str = "block", cluster: bool = False) -> str:
        REGISTRY[id] = Check(id, severity, "A rule", "why", "fix", "file", "https://example.org", run, cluster)
        added.append(id)
        return id

    yield register
    for id in added:
        del REGISTRY[id]


# --- judge ----------------------------------------------------------------------------------------


def test_healthy_clusters_are_ready() -> None:
    for make, context in ((healthy_b300, b300_context), (healthy_gb300, gb300_context)):
        nodes = four(make)
        findings = judge.judge(nodes, context(NAMES))
        assert [f for f in findings if f["status"] not in ("pass", "skip")] == []
        assert judge.verdicts(nodes, findings) == dict.fromkeys(NAMES, "ready")
        assert judge.exit_reason(judge.verdicts(nodes, findings), findings, "warn") == ""


def test_the_order_of_the_report_is_nodes_then_cluster_and_areas_within() -> None:
    findings = judge.judge(four(), b300_context(NAMES))
    assert list(dict.fromkeys(f["node"] for f in findings)) == [*NAMES, CLUSTER]
    areas = list(dict.fromkeys(f["id"].split(".")[0] for f in findings if f["node"] == "node1"))
    assert areas == [area for area in judge.groups() if area in areas]
    assert areas[:4] == ["node", "driver", "gpu", "fabric"]
    assert judge.groups()[-1] == "drift"


def test_groups_select_checks() -> None:
    nodes = four()
    only = judge.judge(nodes, b300_context(NAMES), only=["gpu", "drift"])
    assert {f["id"].split(".")[0] for f in only} == {"node", "gpu", "drift"}
    without = judge.judge(nodes, b300_context(NAMES), without=["gpu"])
    assert {f["id"].split(".")[0] for f in without} == set(judge.groups()) - {"gpu"}
    assert judge.judge(nodes, b300_context(NAMES), only=iter(["gpu", "drift"])) == only  # any iterable


def test_an_unreachable_node_is_a_finding_and_the_others_are_judged() -> None:
    nodes = four()
    nodes[1] = Node("node2", None, unreachable="ssh: connect to host 192.0.2.12 port 22: timed out")
    findings = judge.judge(nodes, b300_context(NAMES))
    own = [f for f in findings if f["node"] == "node2"]
    assert [(f["id"], f["status"], f["severity"]) for f in own] == [("node.reachable", "fail", "block")]
    verdict = judge.verdicts(nodes, findings)
    assert verdict == {"node1": "ready", "node2": "unreachable", "node3": "ready", "node4": "ready"}
    assert judge.exit_reason(verdict, findings, "block") == "unreachable"
    assert "3 nodes" in next(f["observed"] for f in findings if f["id"] == "drift.driver")


def test_when_no_node_answers() -> None:
    nodes = [Node(name, None, unreachable="no route to host") for name in NAMES]
    findings = judge.judge(nodes, b300_context(NAMES))
    assert len(findings) == len(NAMES)
    assert judge.exit_reason(judge.verdicts(nodes, findings), findings, "block") == "unreachable"
    assert judge.exit_reason({}, [], "block") == "blocked"
    assert judge.exit_reason({}, [], "never") == ""


@pytest.mark.parametrize(
    "run, said",
    [
        (lambda node, context: 1 // 0, "ZeroDivisionError"),
        (lambda node, context: None, "it answered None"),
        (lambda node, context: Outcome("green"), "it answered"),
        (lambda node, context: Outcome("pass", severity="deadly"), "it answered"),
        (lambda node, context: ("pass", "x"), "it answered"),
    ],
)
def test_a_rule_that_is_broken_passes_nobody(extra: Any, run: Any, said: str) -> None:
    id = extra(run)
    nodes = four()
    findings = judge.judge(nodes, b300_context(NAMES))
    own = [f for f in findings if f["id"] == id]
    assert {f["status"] for f in own} == {"unknown"} and len(own) == 4
    assert said in own[0]["observed"]
    assert set(judge.verdicts(nodes, findings).values()) == {"unknown"}


@pytest.mark.parametrize(
    "run",
    [
        lambda nodes, context: 1 // 0,
        lambda nodes, context: None,
        lambda nodes, context: {"*": None},
        lambda nodes, context: [Outcome("pass")],
    ],
)
def test_a_rule_for_the_cluster_that_is_broken(extra: Any, run: Any) -> None:
    id = extra(run, cluster=True)
    findings = judge.judge(four(), b300_context(NAMES))
    assert [(f["node"], f["status"]) for f in findings if f["id"] == id] == [(CLUSTER, "unknown")]
    assert judge.exit_reason({"node1": "ready"}, findings, "block") == "blocked"


def test_a_finding_on_a_node_that_does_not_exist_is_the_clusters(extra: Any) -> None:
    id = extra(lambda nodes, context: {"nobody": Outcome("fail", "x")}, cluster=True)
    assert [f["node"] for f in judge.judge(four(), b300_context(NAMES)) if f["id"] == id] == [CLUSTER]


# --- verdicts -------------------------------------------------------------------------------------


def said(status: str, severity: str = "block", node: str = "n1", id: str = "gpu.count", **more: Any) -> Dict[str, Any]:
    return dict({"id": id, "node": node, "status": status, "severity": severity}, **more)


@pytest.mark.parametrize(
    "findings, verdict",
    [
        ([said("pass")], "ready"),
        ([said("pass"), said("skip")], "ready"),
        ([said("pass"), said("fail", "info")], "ready"),
        ([said("pass"), said("warn", "warn")], "warn"),
        ([said("pass"), said("fail", "warn")], "warn"),
        ([said("pass"), said("unknown", "warn")], "warn"),
        ([said("pass"), said("unknown")], "unknown"),
        ([said("pass"), said("unknown"), said("fail")], "blocked"),
        ([said("pass"), said("fail"), said("warn", "warn")], "blocked"),
        # Nothing was looked at: never green.
        ([], "unknown"),
        ([said("skip")], "unknown"),
        ([said("pass", id="node.reachable"), said("skip")], "unknown"),
        ([said("pass", assumed=True)], "unknown"),
        ([said("fail", "info")], "unknown"),
        ([said("pass", node="n2")], "unknown"),
        ([said("pass"), said("fail", node=CLUSTER)], "ready"),
    ],
)
def test_verdict_of_a_node(findings: Findings, verdict: str) -> None:
    assert judge.verdicts([Node("n1", {})], findings) == {"n1": verdict}


@pytest.mark.parametrize(
    "words, findings, fail_on, reason",
    [
        (["ready"], [], "block", ""),
        (["ready", "warn"], [], "block", ""),
        (["ready", "warn"], [], "warn", "blocked"),
        (["ready", "blocked"], [], "block", "blocked"),
        (["ready", "unknown"], [], "block", "blocked"),
        (["ready", "unreachable"], [], "block", "unreachable"),
        (["blocked", "unreachable"], [], "block", "blocked"),
        (["blocked", "unreachable"], [], "never", ""),
        (["ready"], [said("fail", node=CLUSTER)], "block", "blocked"),
        (["ready"], [said("unknown", node=CLUSTER)], "block", "blocked"),
        (["ready"], [said("warn", "warn", node=CLUSTER)], "block", ""),
        (["ready"], [said("warn", "warn", node=CLUSTER)], "warn", "blocked"),
    ],
)
def test_exit_reason(words: Sequence[str], findings: Findings, fail_on: str, reason: str) -> None:
    assert judge.exit_reason({"n%d" % i: word for i, word in enumerate(words)}, findings, fail_on) == reason


def test_summary_counts() -> None:
    findings = [
        said("pass"),
        said("fail"),
        said("fail", node="n2"),
        said("unknown", id="gpu.idle"),
        said("fail", "warn", id="gpu.throttle"),
    ]
    found = judge.summary({"n1": "blocked", "n2": "blocked", "n3": "ready"}, findings)
    assert found == {
        "nodes": {"blocked": 2, "ready": 1},
        "findings": {"pass": 1, "fail": 3, "unknown": 1},
        "blocking": {"gpu.count": 2, "gpu.idle": 1},
    }
    assert list(found["blocking"]) == ["gpu.count", "gpu.idle"]


# --- hostile facts --------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-10, 10**12)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["\x1b[31m", "a\nb", "\ud800", "580.95.05"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def keys_of(value: Any, found: Set[str]) -> Set[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            found.add(key)
            keys_of(inner, found)
    elif isinstance(value, list):
        for inner in value:
            keys_of(inner, found)
    return found


SECTIONS = sorted(set(healthy_b300()) - {"schema"})
KEYS = sorted(keys_of(healthy_b300(), set()))
# Tables that use the contract's own keys, with anything as values: what a truncated or forged snapshot gives.
SHAPED = st.recursive(
    JSON, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5), max_leaves=12
)


def check_findings(findings: Findings) -> None:
    for f in findings:
        assert f["status"] in STATUSES and f["severity"] in SEVERITIES
        for part in ("observed", "required", "why", "fix"):
            assert f[part].isprintable()
        assert len(f["observed"]) <= OBSERVED_MAX
    json.dumps(findings).encode("utf-8")


def nothing_passed(findings: Findings, areas: Tuple[str, ...], name: str) -> None:
    passed = [
        f["id"] for f in findings if f["node"] == name and f["status"] == "pass" and f["severity"] == "block" and f["id"].startswith(areas)
    ]
    assert passed == []


@given(st.dictionaries(st.sampled_from(SECTIONS), SHAPED, max_size=6) | JSON, st.sampled_from([b300_context, gb300_context]))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_facts_break_the_judge(facts: Any, make: Any) -> None:
    nodes = [Node("node1", facts), Node("node2", healthy_b300("node2"))]
    findings = judge.judge(nodes, make(["node1", "node2"]))
    check_findings(findings)
    assert not [f for f in findings if "the check itself failed" in f["observed"]]
    assert judge.verdicts(nodes, findings)["node1"] != "ready"


@given(st.dictionaries(st.sampled_from(SECTIONS), JSON, max_size=8) | JSON)
@settings(max_examples=100, deadline=None)
def test_garbage_passes_no_check_of_driver_and_gpu(facts: Any) -> None:
    findings = judge.judge([Node("node1", facts)], b300_context(), only=("driver", "gpu"))
    nothing_passed(findings, ("driver.", "gpu."), "node1")


def paths_of(value: Any, path: Tuple[Any, ...] = ()) -> List[Tuple[Any, ...]]:
    found = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found.extend(paths_of(inner, (*path, key)))
    return found


PATHS = {make: paths_of(make()) for make in (healthy_b300, healthy_gb300)}


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_one_forged_value_breaks_nothing(data: Any) -> None:
    make, context = data.draw(st.sampled_from([(healthy_b300, b300_context), (healthy_gb300, gb300_context)]))
    facts = make("node1", ["node1", "node2"])
    path = data.draw(st.sampled_from(PATHS[make]))
    at: Any = facts
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = data.draw(JSON)
    nodes = [Node("node1", facts), Node("node2", make("node2", ["node1", "node2"]))]
    findings = judge.judge(nodes, context(["node1", "node2"]))
    check_findings(findings)
    assert not [f for f in findings if "the check itself failed" in f["observed"]]
    if path in (("gpu",), ("driver",)):
        nothing_passed(findings, (path[0] + ".",), "node1")


@pytest.mark.parametrize("section", ["driver", "gpu", "fabric"])
def test_a_section_that_was_not_read_is_never_ready(section: str) -> None:
    facts = healthy_b300("node1", NAMES)
    facts[section] = {"unknown": {"all": "reading it got stuck and was abandoned"}}
    nodes = [Node("node1", facts)]
    findings = judge.judge(nodes, b300_context(["node1"]))
    assert judge.verdicts(nodes, findings)["node1"] == "unknown"
    nothing_passed([f for f in findings if f["id"] != "fabric.state"], (section + ".",), "node1")


# --- nodes as the collectors see them -------------------------------------------------------------

MEMORY = {"h100": 81559, "h200": 143771, "b200": 183359, "b300": 275040, "gb200": 189471, "gb300": 284208}


def dressed(name: str, hardware: str, faults: Sequence[str] = ()) -> Dict[str, Any]:
    spec = Spec(name, hardware, int(name[-1]), frozenset(faults), peers=NAMES)
    return gather(dress(spec), Options(image=IMAGE, names=NAMES))


def context_of(hardware: str) -> Context:
    base = (gb300_context if hardware.startswith("gb") else b300_context)(NAMES)
    return base._replace(hardware=hardware, gpu_memory_mib=MEMORY[hardware], open_required=not hardware.startswith("h"))


@pytest.fixture(scope="module")
def sound() -> Mapping[str, List[Dict[str, Any]]]:
    """Facts of four healthy dressed nodes of each hardware."""
    return {hardware: [dressed(name, hardware) for name in NAMES] for hardware in HARDWARE}


def judged(sound: Mapping[str, List[Dict[str, Any]]], hardware: str, faults: Sequence[str] = ()) -> Findings:
    """Findings on four nodes of which the third has `faults`."""
    facts = list(sound[hardware])
    if faults:
        facts[2] = dressed("node3", hardware, faults)
    return judge.judge([Node(name, copy.deepcopy(each)) for name, each in zip(NAMES, facts)], context_of(hardware))


@pytest.mark.parametrize("hardware", HARDWARE)
def test_a_healthy_costume_passes(sound: Any, hardware: str) -> None:
    mine = [f for f in judged(sound, hardware) if f["id"].split(".")[0] in MINE]
    assert [f for f in mine if f["status"] not in ("pass", "skip")] == []
    passed = {f["id"] for f in mine if f["status"] == "pass"}
    assert {"driver.branch", "gpu.count", "gpu.xid", "gpu.nvlink_matrix", "fabric.state", "drift.driver", "drift.gpu"} <= passed
    tray = hardware.startswith("gb")
    assert ("fabric.manager" in passed) == (not tray)
    assert ("fabric.imex" in passed) == tray and ("fabric.clique" in passed) == tray
    assert ("fabric.nvlsm" in passed) == (hardware in ("b200", "b300"))


FOUND: Dict[str, Tuple[str, Set[str]]] = {
    # fault: (the check of these groups that finds it, other blocking ones of these groups that it implies)
    "driver_r575": ("driver.branch", {"drift.driver"}),
    "gpu_lost": ("gpu.count", {"gpu.xid", "drift.gpu"}),
    "image_drift": ("drift.image", set()),
    "gid_drift": ("drift.gid", set()),
    "clique_other": ("fabric.clique", set()),
    "imex_down": ("fabric.imex", set()),
    "fm_mismatch": ("fabric.manager", {"fabric.state", "fabric.nvlsm"}),
    "nvlink_lost": ("gpu.nvlink_matrix", {"gpu.xid", "fabric.state"}),
    "xid_94": ("gpu.ecc", set()),
    "ecc_pending": ("gpu.remap", {"gpu.recovery_action"}),
    "foreign_holder": ("gpu.idle", set()),
    "pending_reboot": ("driver.loaded_is_installed", set()),
    "no_gpu": ("gpu.count", {"driver.branch", "drift.driver", "drift.gpu", "drift.hca"}),
    # Faults of other groups must not disturb these.
    "peermem_missing": ("", set()),
    "errno_524": ("", set()),
    "port_down": ("", set()),
    "stale_cdi": ("", set()),
}


@pytest.mark.parametrize("fault", sorted(FOUND))
def test_each_fault_is_found_by_its_check(sound: Any, fault: str) -> None:
    hardware = "gb300" if fault in ("clique_other", "imex_down") else "b300"
    findings = [f for f in judged(sound, hardware, [fault]) if f["id"].split(".")[0] in MINE]
    expected, implied = FOUND[fault]
    blocking = set(blockers(findings))
    assert blocking <= {expected} | implied, fault
    if expected:
        assert expected in blocking
        assert {f["node"] for f in findings if f["id"] == expected and f["status"] == "fail"} == {"node3"}
    # Only the faulty node is accused.
    assert {f["node"] for f in findings if f["status"] in ("fail", "warn", "unknown")} <= {"node3"}


def test_what_the_faults_look_like(sound: Any) -> None:
    def observed(fault: str, id: str, hardware: str = "b300") -> str:
        return next(str(f["observed"]) for f in judged(sound, hardware, [fault]) if f["id"] == id and f["node"] == "node3")

    assert observed("driver_r575", "driver.branch") == "575.57.08 is loaded"
    assert observed("gpu_lost", "gpu.count").startswith("7 of 8 GPUs: 0000:") and "fell off the bus" in observed("gpu_lost", "gpu.count")
    assert "Xid 79" in observed("gpu_lost", "gpu.xid")
    assert observed("fm_mismatch", "fabric.manager").startswith("version 580.105.08")
    assert "GPU 2" in observed("nvlink_lost", "gpu.nvlink_matrix")
    assert observed("xid_94", "gpu.xid").startswith("Xid 94 on GPU 3")
    assert observed("ecc_pending", "gpu.remap") == "GPU 1: row remap pending"
    assert "python" in observed("foreign_holder", "gpu.idle")
    assert "DEGRADED" in observed("imex_down", "fabric.imex", "gb300")


def test_a_hung_nvidia_smi_is_unknown_and_not_a_pass(sound: Any) -> None:
    findings = judged(sound, "b300", ["smi_hung"])
    own = {f["id"]: f for f in findings if f["node"] == "node3"}
    for id in (
        "gpu.count",
        "gpu.model",
        "gpu.memory",
        "gpu.ecc",
        "gpu.remap",
        "gpu.recovery_action",
        "gpu.mig",
        "gpu.pcie_link",
        "gpu.nvlink_matrix",
        "fabric.state",
    ):
        assert own[id]["status"] == "unknown", id
    for id in ("driver.branch", "driver.loaded_is_installed", "driver.open_modules"):
        assert own[id]["status"] == "pass", id
    assert "node3" not in {f["node"] for f in findings if f["id"].startswith("drift.") and f["status"] == "fail"}


def test_a_machine_without_gpu_is_told_so_once(sound: Any) -> None:
    own = {f["id"]: f for f in judged(sound, "b300", ["no_gpu"]) if f["node"] == "node3"}
    assert {id for id, f in own.items() if id.startswith("gpu.") and f["status"] == "fail"} == {"gpu.count"}
    assert not [id for id, f in own.items() if id.startswith(("gpu.", "fabric.")) and f["status"] == "pass"]
    nodes = [Node("node3", dressed("node3", "b300", ["no_gpu"]))]
    assert judge.verdicts(nodes, judge.judge(nodes, context_of("b300"))) == {"node3": "blocked"}


SAMPLES = Path(__file__).resolve().parents[3].parent / "shared" / "samples"
OF_SMI = (
    "gpu.model",
    "gpu.memory",
    "gpu.ecc",
    "gpu.remap",
    "gpu.recovery_action",
    "gpu.mig",
    "gpu.throttle",
    "gpu.pcie_link",
    "fabric.state",
)


@pytest.mark.parametrize("hardware", ["h100", "b200", "gb200", "gb300"])
def test_real_documents_of_healthy_nodes_pass(hardware: str) -> None:
    path = SAMPLES / ("smi_qx_hw_%s.xml" % hardware)
    if not path.is_file():
        pytest.skip("no captures of real nodes here")
    document = smi.parse(path.read_text())
    facts = put(put(healthy_b300(), "gpu.gpus", document["gpus"]), "gpu.smi.attached", document["attached"])
    findings = judge.judge([Node("node1", facts)], context_of(hardware), only=["gpu", "fabric"])
    assert {f["id"]: f["observed"] for f in findings if f["id"] in OF_SMI and f["status"] != "pass"} == {}


@pytest.mark.parametrize("name, expected", [("ecc-injected", {"gpu.ecc", "gpu.remap"}), ("fabric-degraded", {"fabric.state"})])
def test_documents_of_faulty_nodes_fail(name: str, expected: Set[str]) -> None:
    path = SAMPLES / ("smi_qx_mock_gb200-%s.xml" % name)
    if not path.is_file():
        pytest.skip("no captures of real nodes here")
    document = smi.parse(path.read_text())
    facts = put(put(healthy_b300(), "gpu.gpus", document["gpus"]), "gpu.smi.attached", document["attached"])
    findings = judge.judge([Node("node1", facts)], context_of("gb200"), only=["gpu", "fabric"])
    assert {f["id"] for f in findings if f["id"] in OF_SMI and f["status"] == "fail"} == expected


def test_all_faults_are_spoken_of() -> None:
    from tests.costume import FAULTS

    assert set(FAULTS) == set(FOUND) | {"smi_hung"}


def test_a_faulty_node_among_healthy_ones_only_blocks_itself() -> None:
    nodes = four()
    put(dict(nodes[2].facts), "driver.loaded", "575.57.08")
    findings = judge.judge(nodes, b300_context(NAMES))
    verdict = judge.verdicts(nodes, findings)
    assert {name for name, word in verdict.items() if word == "blocked"} == {"node3"}


def test_several_faults_at_once(sound: Any) -> None:
    faults: FrozenSet[str] = frozenset({"driver_r575", "foreign_holder", "image_drift"})
    blocking = blockers([f for f in judged(sound, "b300", sorted(faults)) if f["node"] == "node3"])
    assert {"driver.branch", "gpu.idle", "drift.image"} <= set(blocking)
