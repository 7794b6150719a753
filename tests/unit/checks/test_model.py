# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a check, a node and a finding are."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge, model, values, wording
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import (
    OBSERVED_MAX,
    REGISTRY,
    SEVERITIES,
    Check,
    Node,
    Outcome,
    check,
    failed,
    finding,
    passed,
    skipped,
    unsure,
    warned,
)

IN_ISSUE = [
    "driver.branch",
    "driver.loaded_is_installed",
    "driver.open_modules",
    "driver.userspace_match",
    "driver.nouveau",
    "driver.build_ready",
    "driver.secure_boot",
    "gpu.count",
    "gpu.model",
    "gpu.idle",
    "gpu.memory",
    "gpu.ecc",
    "gpu.remap",
    "gpu.recovery_action",
    "gpu.xid",
    "gpu.mig",
    "gpu.persistence",
    "gpu.throttle",
    "gpu.pcie_link",
    "gpu.nvlink_matrix",
    "fabric.manager",
    "fabric.state",
    "fabric.nvlsm",
    "fabric.imex",
    "fabric.clique",
    "rdma.ports",
    "rdma.rate",
    "rdma.gid",
    "rdma.mtu",
    "rdma.errors",
    "rdma.ssh_path",
    "gpudirect.path",
    "gpudirect.peermem",
    "gpudirect.dmabuf_fallback",
    "container.engine",
    "container.toolkit",
    "container.cdi_fresh",
    "container.gpu_visible",
    "image.digest",
    "image.cuda",
    "image.known_trouble",
    "host.kernel",
    "host.limits",
    "host.shm",
    "host.time",
    "host.names",
    "host.pending_reboot",
    "host.swap",
    "storage.weights",
    "plan.fits",
    "drift.driver",
    "drift.kernel",
    "drift.gpu",
    "drift.vbios",
    "drift.hca",
    "drift.gid",
    "drift.mtu",
    "drift.clique",
    "drift.imex_config",
    "drift.image",
    "drift.toolkit",
    "drift.env",
]

RULE = Check("test.rule", "block", "A rule", "why", "fix", "a file", "https://example.org", lambda node, context: Outcome("pass"), False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def test_all_checks_exist() -> None:
    assert set(IN_ISSUE) <= set(REGISTRY)


@pytest.mark.parametrize("rule", judge.checks(), ids=lambda rule: rule.id)
def test_every_check_explains_itself(rule: Check) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z0-9_]+", rule.id)
    assert rule.severity in SEVERITIES
    assert 1 <= len(rule.title.split()) <= 6 and len(rule.title) <= 32
    for sentence in (rule.why, rule.fix):
        assert sentence.endswith("."), sentence
        assert len(sentence) <= 200 and sentence.isprintable(), sentence
    assert rule.source.startswith("https://")
    assert rule.read_from
    for call in re.findall(r"`(ansible-playbook [^`]*)`", rule.fix):
        assert re.match(r"ansible-playbook inferops\.vllm\.[a-z_]+( |$)", call), call


def test_two_checks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("two checks are called gpu.count")):
        check(id="gpu.count", severity="block", title="x", why="x", fix="x", read_from="x", source="x")(
            lambda node, context: Outcome("pass")
        )


def test_a_severity_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'fatal' is not one of block, warn, info"):
        check(id="test.severity", severity="fatal", title="x", why="x", fix="x", read_from="x", source="x")(lambda n, c: Outcome("pass"))
    assert "test.severity" not in REGISTRY


def test_a_finding_of_each_status() -> None:
    good = finding(RULE, "n1", passed("8 GPUs", 8))
    assert good == {
        "id": "test.rule",
        "node": "n1",
        "status": "pass",
        "severity": "block",
        "observed": "8 GPUs",
        "required": "8",
        "read_from": "a file",
        "why": "",
        "fix": "",
        "source": "https://example.org",
    }
    assert finding(RULE, "n1", passed("8", assumed=True))["assumed"] is True
    assert finding(RULE, "n1", skipped("no"))["why"] == ""
    bad = finding(RULE, "n1", failed("7", "8"))
    assert (bad["why"], bad["fix"], bad["severity"]) == ("why", "fix", "block")
    own = finding(RULE, "n1", failed("7", "8", why="because", fix="do", severity="warn", read_from="there"))
    assert (own["why"], own["fix"], own["severity"], own["read_from"]) == ("because", "do", "warn", "there")
    assert finding(RULE, "n1", warned("7", "8"))["severity"] == "warn"
    assert finding(RULE, "n1", unsure("hung"))["why"] == "why"


@given(st.text(max_size=700))
def test_what_is_observed_is_one_short_printable_line(text: str) -> None:
    line = finding(RULE, "n1", Outcome("fail", text, text))["observed"]
    assert line.isprintable()
    assert len(line) <= OBSERVED_MAX
    line.encode("utf-8")
    if text.isprintable() and len(text) <= OBSERVED_MAX:
        assert line == text


def test_a_node_without_facts_has_none() -> None:
    for facts in (None, [], "x", 5):
        node = Node("n1", facts)  # type: ignore[arg-type]
        assert node.get("gpu.count", 3) == 3
        assert node.items("gpu.gpus") == []
        assert node.why_unknown("gpu.smi") == "the gpu facts were not gathered"


def test_paths_reach_into_tables_only() -> None:
    node = Node("n1", {"gpu": {"smi": {"attached": 8}, "gpus": [{"index": 0}, "junk", 5], "none": None}, "driver": "text"})
    assert node.get("gpu.smi.attached") == 8
    assert node.get("gpu.gpus.index") is None
    assert node.get("gpu.none", "default") == "default"
    assert node.get("driver.loaded") is None
    assert node.items("gpu.gpus") == [{"index": 0}]
    assert node.items("gpu.smi") == []


def test_why_something_is_unknown() -> None:
    node = Node(
        "n1", {"gpu": {"unknown": {"smi": "hung", "pci": ""}}, "rdma": {"unknown": {"all": "stuck", "hcas": "x"}}, "host": {"unknown": 5}}
    )
    assert node.why_unknown("gpu.smi") == "hung"
    assert node.why_unknown("gpu.pci") == ""
    assert node.why_unknown("gpu.pci", "gpu.smi") == "hung"
    assert node.why_unknown("gpu") == ""
    assert node.why_unknown("rdma.hcas") == "stuck"
    assert node.why_unknown("host.kernel") == ""
    assert node.why_unknown("fabric.imex") == "the fabric facts were not gathered"


@given(JSON, st.text(max_size=5))
def test_values_have_the_asked_type_or_none(value: Any, key: str) -> None:
    for holder in (value, {key: value}):
        assert isinstance(values.text(holder, key), (str, type(None)))
        assert type(values.whole(holder, key)) in (int, type(None))
        assert type(values.number(holder, key)) in (float, type(None))
        assert type(values.flag(holder, key)) in (bool, type(None))
        assert hasattr(values.table(holder, key), "get")
        for found in (values.tables(holder, key), values.words(holder, key)):
            assert found is None or isinstance(found, list)
    assert wording.short(value).isprintable() and len(wording.short(value)) <= wording.LONGEST


@given(st.text(max_size=20))
def test_a_version_is_numbers_and_dots(text: str) -> None:
    parts = values.version(text)
    assert all(isinstance(part, int) for part in parts)
    assert bool(parts) == bool(re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,4}", text))


@pytest.mark.parametrize(
    "text, parts", [("580.95.05", (580, 95, 5)), ("580", (580,)), ("580.95.05-1", ()), ("", ()), (None, ()), ("٥٨٠", ())]
)
def test_versions(text: Any, parts: Any) -> None:
    assert values.version(text) == parts


def test_some_names_of_many() -> None:
    assert wording.listed(["a", "b"]) == "a, b"
    assert wording.listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert wording.plural(1, "GPU") == "1 GPU" and wording.plural(2, "GPU") == "2 GPUs"
    assert values.counted(["a", "b", "a"]) == {"a": 2, "b": 1}
    assert values.dotted((580, 95)) == "580.95"


def test_an_unknown_asks_to_look_again_and_a_failure_to_mend() -> None:
    rule = next(iter(judge.checks()))
    assert model.finding(rule, "n", model.failed("a", "b"))["fix"] == rule.fix
    assert "inferops.vllm.preflight --limit NODE" in model.finding(rule, "n", model.unsure("hung"))["fix"]
    assert model.finding(rule, "n", model.unsure("hung", fix="Do this."))["fix"] == "Do this."
    assert model.finding(rule, "n", model.passed("a"))["fix"] == ""
