# SPDX-License-Identifier: GPL-3.0-or-later
"""Behaviour of the report on clusters of several sizes."""

from __future__ import annotations

import copy
import json
import os
import stat
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, Dict, List

import jsonschema
import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Context, Node
from ansible_collections.inferops.vllm.plugins.plugin_utils import report
from ansible_collections.inferops.vllm.plugins.plugin_utils.report import groups, page
from ansible_collections.inferops.vllm.plugins.plugin_utils.report.text import fold, plain, width, wrap

from . import samples

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "docs/schemas/preflight-1.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def demo() -> Dict[str, Any]:
    return samples.demo()


@pytest.fixture(scope="module")
def large() -> Dict[str, Any]:
    return samples.large()


def said(document: Dict[str, Any], **options: Any) -> List[str]:
    return [text for text, _color in report.terminal(document, **options)]


def position(lines: List[str], part: str) -> int:
    found = [number for number, line in enumerate(lines) if part in line]
    assert found, "%r is in no line of\n%s" % (part, "\n".join(lines))
    return found[0]


# --- document -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [samples.demo, samples.healthy, lambda: samples.cluster(1), lambda: samples.cluster(0)])
def test_the_document_is_valid_under_its_schema(make: Any) -> None:
    document = json.loads(json.dumps(make()))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


@pytest.mark.parametrize(
    "path,value", [("summary.verdict", "fine"), ("generated_at", "today"), ("nodes.b300-01.recorded", "yes"), ("context", [])]
)
def test_the_schema_refuses_what_is_wrong(demo: Dict[str, Any], path: str, value: Any) -> None:
    wrong: Any = copy.deepcopy(demo)
    at = wrong
    *parents, last = path.split(".")
    for part in parents:
        at = at[part]
    at[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_the_document_says_what_each_node_is(demo: Dict[str, Any]) -> None:
    assert demo["nodes"]["b300-01"]["gpus"] == "8 × NVIDIA B300 SXM6 AC"
    assert demo["nodes"]["b300-01"]["driver"] == "580.95.05"
    assert demo["nodes"]["b300-01"]["topology"]["hcas"] == ["mlx5_%d" % i for i in range(8)]
    assert demo["nodes"]["b300-04"]["gpus"] == "7 × NVIDIA B300 SXM6 AC, 1 lost"
    assert demo["nodes"]["b300-06"]["gpus"] == "8 on PCI, nvidia-smi gave none"
    assert demo["nodes"]["b300-07"] == {
        "verdict": "unreachable",
        "recorded": False,
        "costume": None,
        "gpus": None,
        "driver": None,
        "kernel": None,
        "address": "192.0.2.8",
        "topology": None,
        "unreachable": "ssh: connect to host 192.0.2.7 port 22: No route to host",
    }
    assert {name: node["verdict"] for name, node in demo["nodes"].items()} == {
        "b300-01": "ready",
        "b300-02": "blocked",
        "b300-03": "blocked",
        "b300-04": "blocked",
        "b300-05": "blocked",
        "b300-06": "unknown",
        "b300-07": "unreachable",
    }


def test_calls_name_the_node_where_the_check_says_node() -> None:
    fix = "Do it on every NODE: `ansible-playbook inferops.vllm.remediate --limit NODES`."
    findings = [samples.finding("gpu.ecc", name, "fail", fix=fix) for name in ("n1", "bad name; rm", "*")]
    document = report.document("kimi_k3", Context(), {"n1": "blocked"}, findings, [Node("n1", {})], samples.NOW)
    assert [f["fix"] for f in document["findings"]] == [
        "Do it on every NODE: `ansible-playbook inferops.vllm.remediate --limit n1`.",
        fix,
        "Do it on every NODE: `ansible-playbook inferops.vllm.remediate --limit vllm_nodes`.",
    ]


def test_facts_of_any_shape_give_a_document() -> None:
    facts: Dict[str, Any] = {
        "gpu": {"gpus": "eight", "pci": {"a": 1}, "topology": [1]},
        "host": {"addresses": {"eth0": None, "eth1": [3, "10.0.0.9/24"]}, "kernel": ["6"]},
        "driver": "580",
        "rdma": {"hcas": [None, {"name": None}], "default_route": {}},
        "collected": [],
    }
    node = Node("n", facts, {})
    document = report.document("p", Context(), {"n": "ready"}, [], [node], samples.NOW)
    jsonschema.validate(document, SCHEMA)
    assert document["nodes"]["n"]["gpus"] is None
    assert document["nodes"]["n"]["address"] == "10.0.0.9"


@pytest.mark.parametrize(
    "verdicts,cluster_finding,expected",
    [
        ({"a": "ready"}, None, "ready"),
        ({"a": "ready", "b": "warn"}, None, "warn"),
        ({"a": "warn", "b": "unreachable"}, None, "unreachable"),
        ({"a": "unreachable", "b": "unknown"}, None, "unknown"),
        ({"a": "unknown", "b": "blocked"}, None, "blocked"),
        ({"a": "ready"}, ("fail", "block"), "blocked"),
        ({"a": "ready"}, ("unknown", "block"), "unknown"),
        ({"a": "ready"}, ("warn", "block"), "warn"),
        ({"a": "ready"}, ("fail", "info"), "ready"),
        ({}, None, "unknown"),
    ],
)
def test_the_cluster_is_as_bad_as_its_worst_part(verdicts: Dict[str, str], cluster_finding: Any, expected: str) -> None:
    findings = [samples.finding("plan.fits", "*", *cluster_finding)] if cluster_finding else []
    nodes = [Node(name, {}) for name in verdicts]
    document = report.document("p", Context(), verdicts, findings, nodes, samples.NOW)
    assert document["summary"]["verdict"] == expected
    first = said(document)[0]
    assert expected.upper() in first
    # A cluster that is not fit never gets a headline that says so.
    assert ("ready for" in first or "fit for" in first) == (expected in ("ready", "warn"))


# --- terminal -------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_asked(demo: Dict[str, Any], columns: int, ascii_only: bool) -> None:
    lines = said(demo, width=columns, ascii_only=ascii_only, where="reports/preflight.html")
    assert max(width(line) for line in lines) <= columns
    if ascii_only:
        assert all(line.isascii() for line in lines)


def test_blockers_come_first_and_only_what_is_not_pass(demo: Dict[str, Any]) -> None:
    lines = said(demo, where="reports/preflight.html")
    assert lines[0].startswith("✘ BLOCKED: 4 of 7 nodes are blocked")
    assert position(lines, "assumed hardware: concluded from the GPU name") < position(lines, "b300-01")
    assert (
        position(lines, "What blocks") < position(lines, "driver.branch") < position(lines, "Differences") < position(lines, "Worth a look")
    )
    assert position(lines, "could not be looked at") > position(lines, "node.reachable")
    assert position(lines, "host.swap") > position(lines, "Worth a look")
    text = "\n".join(lines)
    assert "575.57.08 → 580 or newer" in text and "--limit b300-02" in text
    assert "gpu.model" not in text, "a check that passed everywhere stands in the report"
    assert "8 → 8" not in text
    assert lines[-1] == "Details: reports/preflight.html"
    assert [line for line in lines if line.startswith("▲ drift.driver")] == ["▲ drift.driver: b300-02: 575.57.08, 4 others: 580.95.05"]


def test_every_node_has_a_line_with_counts(demo: Dict[str, Any]) -> None:
    lines = said(demo)
    row = lines[position(lines, "✘ b300-02")].split()
    assert row[:3] == ["✘", "b300-02", "blocked"] and row[-3:] == ["2", "-", "-"] and "575.57.08" in row
    row = lines[position(lines, "? b300-06")].split()
    assert row[-3:] == ["-", "1", "2"]
    assert dict(report.terminal(demo))[lines[position(lines, "✔ b300-01")]] == "green"


def test_the_same_finding_on_several_nodes_is_one_entry_with_one_call() -> None:
    document = samples.cluster(6, {n: [samples.PEERMEM] for n in (1, 2, 3, 4, 6)})
    lines = said(document)
    entries = [line for line in lines if "gpudirect.peermem" in line]
    assert len(entries) == 1 and "b300-01..04, b300-06" in entries[0]
    assert sum("remediate_rdma" in line for line in lines) == 1
    two = said(samples.cluster(3, {n: [samples.PEERMEM] for n in (1, 2)}))
    assert any("--limit b300-01,b300-02" in line for line in two)


def test_one_reason_that_hides_several_checks_is_one_entry(demo: Dict[str, Any]) -> None:
    document = samples.cluster(2, {2: [samples.HUNG_ECC, ("gpu.remap", "unknown", "block", samples.HUNG_ECC[3], "", "", "Replace it.")]})
    lines = said(document)
    start = position(lines, "2 checks could not be looked at: b300-02")
    assert "nvidia-smi did not answer" in lines[start + 1]
    assert "gpu.ecc, gpu.remap" in lines[start + 2]
    assert "--limit b300-02" in "".join(lines[start + 3 : start + 5])
    assert not any("Replace it" in line for line in lines), "a remedy was named for what nobody could look at"


def test_a_healthy_cluster_is_short() -> None:
    lines = said(samples.healthy(4))
    assert lines[0] == "✔ READY: All 4 nodes are ready for kimi_k3"
    assert "Every check that applies has passed." in lines
    assert len(lines) < 18


def test_a_thousand_nodes_fit_on_two_screens(large: Dict[str, Any]) -> None:
    lines = said(large, where="reports/preflight.html")
    assert len(lines) <= 80
    assert max(width(line) for line in lines) <= 100
    text = "\n".join(lines)
    for part in (
        "83 of 1000",
        "driver.branch",
        "40 nodes: b300-0120..0159",
        "gpu.nvlink_matrix",
        "drift.driver",
        "host.time",
        "and 198 other values",
    ):
        assert part in text
    assert not any(line.lstrip().startswith("b300-0001 ") for line in lines)


def test_lines_stay_bounded_when_everything_is_wrong() -> None:
    faults = {
        n: [("gpu.ecc", "fail", "block", "value %d" % n, "0", "why", "fix %d" % n)]
        + [
            (id, "fail", severity, "bad", "good", "why", "Mend it with `ansible-playbook inferops.vllm.remediate --limit NODE`.")
            for id, severity in zip(samples.CHECKS, ["block", "warn"] * 30)
        ]
        for n in range(1, 61)
    }
    lines = said(samples.cluster(60, faults), where="x.html")
    assert len(lines) <= 80
    assert any("more checks with findings" in line for line in lines)
    assert "Worth a look" in lines


def test_recorded_and_dressed_nodes_are_marked() -> None:
    node = Node("n1", {"collected": {"recorded": True, "costume": "b300"}})
    document = report.document("p", Context(), {"n1": "ready"}, [], [node], samples.NOW)
    assert any("recorded, dressed as b300" in line for line in said(document))
    assert "dressed as b300" in report.markdown(document)
    assert any(
        "1 recorded, 1 dressed" in line
        for line in said(
            {
                **document,
                "nodes": {
                    **document["nodes"],
                    **{"m%d" % i: {**document["nodes"]["n1"], "recorded": False, "costume": None} for i in range(30)},
                },
            }
        )
    )


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names,columns,expected",
    [
        (["b300-01", "b300-02", "b300-03", "b300-04", "b300-09", "x"], 30, "b300-01..04, b300-09, x"),
        (["b300-01", "b300-02", "b300-03", "b300-04", "c", "d"], 16, "b300-01..04 and 2 more"),
        (["n9", "n10", "n11"], 40, "n9..11"),
        (["n09", "n010", "n011"], 40, "n09, n010, n011"),
        (["a", "b"], 1, "a and 1 more"),
        (["n1", "n2"], 40, "n1, n2"),
        ([], 10, ""),
    ],
)
def test_names_fold(names: List[str], columns: int, expected: str) -> None:
    assert fold(names, columns) == expected


def test_a_command_is_not_broken_where_it_fits_on_a_line() -> None:
    lines = wrap("Install the driver with `ansible-playbook inferops.vllm.provision --limit a` (then reboot).", 60)
    assert any("`ansible-playbook inferops.vllm.provision --limit a`" in line for line in lines)
    assert max(map(len, wrap("a`" + "b c" * 80 + "`", 30))) <= 30


def test_a_long_path_of_the_report_is_not_cut() -> None:
    where = "/srv/" + "reports-of-a-cluster/" * 8 + "preflight.html"
    lines = said(samples.healthy(1), where=where)
    assert max(width(line) for line in lines) <= 100
    assert "".join(lines).endswith(where)


def test_wide_characters_take_two_columns() -> None:
    assert width("a") == 1 and width("中") == 2 and width("🚀") == 2 and width("é") == 1
    lines = said(samples.cluster(2, prefix="節點" * 20, name="顯示卡" * 20))
    assert all(len(line) + sum("\u2e80" < c < "\uff00" for c in line) <= 100 for line in lines)
    assert plain("e\u0301 \u202e\x1b[1m\n\u200d") == "é ??[1m ?"


# --- other forms ----------------------------------------------------------------------------------


def test_junit_has_a_suite_a_node_and_fails_what_blocks(demo: Dict[str, Any]) -> None:
    root = ElementTree.fromstring(report.junit(demo))
    suites = {suite.get("name"): suite for suite in root.findall("testsuite")}
    assert list(suites) == list(demo["nodes"]) + ["cluster"]
    assert suites["b300-02"].get("failures") == "2" and suites["b300-02"].get("timestamp") == demo["generated_at"].rstrip("Z")
    hung = {case.get("name"): case for case in suites["b300-06"].findall("testcase")}
    failure = hung["gpu.count"].find("failure")
    assert failure is not None and failure.get("type") == "unknown" and "abandoned" in (failure.get("message") or "")
    assert hung["host.swap"].find("failure") is None and "8 GiB" in (hung["host.swap"].findtext("system-out") or "")
    assert hung["fabric.imex"].find("skipped") is not None
    assert hung["driver.branch"].find("failure") is None
    assert int(root.get("tests") or 0) == len(demo["findings"]) == len(root.findall("testsuite/testcase"))
    assert int(root.get("failures") or 0) == len(root.findall("testsuite/testcase/failure")) == sum(demo["summary"]["blocking"].values())


def test_markdown_lists_nodes_and_blockers(demo: Dict[str, Any]) -> None:
    text = report.markdown(demo)
    assert "| b300-02 | blocked (recorded) |" in text
    assert "<code>ansible-playbook inferops.vllm.remediate&#95;driver --limit b300-02</code>" in text
    assert text.index("## What blocks") < text.index("## Differences between nodes") < text.index("## Worth a look")
    assert "assumed: concluded from the GPU name" in text


def test_html_embeds_every_text_once_and_stays_small(large: Dict[str, Any]) -> None:
    text = report.html(large)
    assert len(text.encode()) < 12_000_000
    assert text.count("Install driver branch 580 with") <= 3
    data = page.compact(large)
    assert len(data["rows"]) == 1000 and len(data["variants"]) < 1000
    back = [data["variants"][v] for v in data["rows"][119]]
    assert [data["checks"][v[0]][0] for v in back if v[1] == "fail"] == ["driver.branch", "image.cuda"]


def test_html_stays_small_when_no_two_texts_are_equal() -> None:
    document = samples.healthy(4)
    names = ["n%04d" % i for i in range(1000)]
    document["nodes"] = dict.fromkeys(names, document["nodes"]["b300-01"])
    document["findings"] = [
        samples.finding(id, name, observed="%s as read on %s" % (id, name)) for name in names for id in (samples.CHECKS * 2)[:70]
    ]
    assert len(report.html(document).encode()) < 12_000_000


def test_html_asks_nothing_of_any_other_place(demo: Dict[str, Any]) -> None:
    text = report.html(demo)
    start = text[:600]
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" in start
    style, script = page._template("report.css"), page._template("report.js")
    assert "url(" not in style and "@import" not in style
    for word in ("fetch(", "XMLHttpRequest", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in script, word
    assert "</script" not in script.lower() and "</style" not in style.lower()


def test_write_leaves_four_complete_files(tmp_path: Path, demo: Dict[str, Any]) -> None:
    folder = tmp_path / "a" / "b"
    paths = report.write(demo, str(folder))
    assert sorted(os.listdir(folder)) == ["preflight.html", "preflight.json", "preflight.junit.xml", "preflight.md"]
    assert sorted(paths) == ["html", "json", "junit", "md"]
    assert json.loads(Path(paths["json"]).read_text(encoding="utf-8")) == demo
    assert stat.S_IMODE(os.stat(paths["html"]).st_mode) & 0o400
    before = Path(paths["md"]).read_text(encoding="utf-8")
    report.write(samples.healthy(), str(folder))
    assert Path(paths["md"]).read_text(encoding="utf-8") != before


def test_write_says_what_it_could_not_do_and_leaves_no_rest(tmp_path: Path, demo: Dict[str, Any]) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(OSError):
        report.write(demo, str(tmp_path / "file"))
    (tmp_path / "taken" / "preflight.json").mkdir(parents=True)
    with pytest.raises(OSError):
        report.write(demo, str(tmp_path / "taken"))
    assert os.listdir(tmp_path / "taken") == ["preflight.json"]


def test_problems_are_ordered_by_weight() -> None:
    ranks = [group.rank for group in groups.problems(samples.demo())]
    assert ranks == sorted(ranks) and ranks[0] == 0 and ranks[-1] >= 2


def test_real_checks_give_a_valid_report() -> None:
    healthy = pytest.importorskip("tests.unit.checks.healthy")
    names = ["b300-01", "b300-02", "b300-03"]
    nodes = [Node(name, healthy.healthy_b300(name, names)) for name in names]
    nodes[1].facts["driver"]["loaded"] = "575.57.08"
    context = healthy.b300_context(names)
    findings = judge.judge(nodes, context)
    document = report.document("kimi_k3", context, judge.verdicts(nodes, findings), findings, nodes, samples.NOW)
    jsonschema.validate(document, SCHEMA)
    assert set(document["checks"].values()) & {"Driver branch"}
    lines = said(document)
    assert any("driver.branch" in line and "b300-02" in line for line in lines)
    assert max(width(line) for line in lines) <= 100
    ElementTree.fromstring(report.junit(document))
