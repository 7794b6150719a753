# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of an acceptance in all its forms, the comparison with a baseline, and the files that go with it."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import yaml

from ansible_collections.inferops.vllm.plugins.module_utils.serving import metrics, ramp, requests, result
from ansible_collections.inferops.vllm.plugins.plugin_utils import acceptance
from ansible_collections.inferops.vllm.plugins.plugin_utils.acceptance import baseline, build
from ansible_collections.inferops.vllm.plugins.plugin_utils.acceptance.console import terminal
from ansible_collections.inferops.vllm.plugins.plugin_utils.acceptance.curve import svg
from ansible_collections.inferops.vllm.plugins.plugin_utils.acceptance.junit_xml import junit
from ansible_collections.inferops.vllm.plugins.plugin_utils.acceptance.page import html
from ansible_collections.inferops.vllm.plugins.plugin_utils.acceptance.textfile import textfile

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "docs/schemas/verify-1.schema.json").read_text(encoding="utf-8"))
EVIL = "<script>alert(1)</script>\x1b[31m\u202e\ud800 & \"'"


def level(streams: int, rate: float = 100.0, ttft: float = 50.0, **given: Any) -> dict[str, Any]:
    times = {"p50": ttft, "p90": ttft * 1.5, "p95": ttft * 2, "p99": ttft * 3, "mean": ttft}
    found = {
        "concurrency": streams, "requests": 10, "ok": 10, "errors": {}, "error_texts": {}, "connections": 1, "seconds": 5.0,
        "input_tokens": 100, "output_tokens": 100, "output_tps": rate, "total_tps": 2 * rate, "rps": 2.0, "ttft_ms": times, "itl_ms": times,
        "tpot_ms": times, "e2e_ms": times,
        "running_max": 2.0, "waiting_max": 0.0, "kv_usage_max": 0.5, "preemptions": 0.0, "prefix_hits": 0.0, "prefix_queries": 0.0,
        "short_answers": 0, "client_cpu": 0.1,
        "over_budget": False, "metrics_read": True, "unanswered": 0, "unanswered_seconds": 0.0, "waiting_share": 0.0, "engines": 1}
    return {**found, **given}


def document(bad: str = "", **given: Any) -> dict[str, Any]:
    levels = [level(1, 100), level(2, 190), level(4, 200, given.get("ttft", 80.0))]
    good = [result.finding("start.unit", "pass", "up", where="n")]
    stages = {name: result.result(name, [dict(good[0], id="%s.x" % name)], 1.0) for name in result.STAGES}
    stages["concurrency"]["data"] = {"endpoint": "http://h:1", "target": 4, "input_tokens": 1, "output_tokens": 2, "levels": levels, "knee": 2,
                                     "headroom": {}, "agents": None}
    if bad:
        stages[bad] = result.result(bad, [result.finding("%s.x" % bad, "fail", EVIL, EVIL, EVIL, EVIL, EVIL)], 1.0, stages[bad]["data"])
    record = build.record({"model": "K3", "nodes": {"a": {"image": "i@sha256:" + "a" * 64}}}, "b" * 64, {"a": {"driver": "580.1"}}, "c" * 64, ["0.32.0"])
    return acceptance.document(stages, record, 1795990000.0)


def test_the_page_numbers_the_stages_also_when_some_were_not_run() -> None:
    stages = {"prefix": result.result("prefix", [result.finding("prefix.verdict", "pass", "working", where="n")])}
    page = html(acceptance.document(stages, document()["record"], 1795990000.0))
    assert "<h2>3 Prefix cache</h2>" in page and page.count("<h2>") == 2


def test_the_document_is_valid_and_its_verdict_follows_the_stages() -> None:
    found = document()
    jsonschema.validate(found, SCHEMA)
    assert found["verdict"] == "passed" and found["record"]["image_digest"] == ["sha256:" + "a" * 64] and found["record"]["driver"] == ["580.1"]
    assert document("prefix")["verdict"] == "failed"
    part = acceptance.document({"start": result.result("start", [result.finding("start.x", "pass")])}, found["record"], 0)
    assert part["verdict"] == "not_verified" and [s["status"] for s in part["stages"]] == ["passed"] + ["not_verified"] * 4


def test_the_terminal_shows_each_stage_and_what_failed() -> None:
    text = "\n".join(line for line, _color in terminal(document("prefix"), where="/x/verify.html"))
    assert "FAILED" in text and "3 Prefix cache" in text and "prefix.x" in text and "\x1b" not in text and "/x/verify.html" in text
    assert "fix:" in text and max(map(len, text.splitlines())) <= 130
    assert "What failed" not in "\n".join(line for line, _color in terminal(document()))


def test_the_page_escapes_everything_and_asks_for_nothing() -> None:
    page = html(document("request"))
    assert "<script" not in page and "&lt;script&gt;" in page and "default-src 'none'" in page and "\x1b" not in page
    assert page.count("<svg") == 1 and not re.search(r"(?:src|href)=", page)
    page.encode("utf-8")


def test_the_picture_holds_numbers_only_and_its_knee() -> None:
    picture = svg({"levels": [level(1), level(2), level(64, 1e6)], "knee": 2})
    ElementTree.fromstring(picture)
    assert "knee" in picture and picture.count("<polyline") == 3
    assert svg({"levels": [level(1, ok=0)]}) == "" and svg({}) == ""
    assert svg({"levels": [level(3)], "knee": None})


def test_junit_counts_what_was_not_run_as_skipped() -> None:
    found = document("start")
    found["stages"][4] = result.not_run("stability", EVIL)
    root = ElementTree.fromstring(junit(found))
    assert (root.get("failures"), root.get("skipped"), root.get("tests")) == ("1", "1", "5")


def test_the_textfile_is_read_by_a_parser_of_metrics() -> None:
    found = document("start")
    found["record"]["model"] = 'a"b\\c\nd'
    samples = metrics.parse(textfile(found))
    passed = {s.labels["stage"]: s.value for s in samples if s.name == "inferops_vllm_verify_passed"}
    assert passed == {"start": 0, "request": 1, "prefix": 1, "concurrency": 1, "stability": 1}
    assert {s.labels["model"] for s in samples} == {'a"b\\c d'}
    assert any(s.name == "inferops_vllm_verify_ttft_seconds" and s.value == 0.08 for s in samples)


def test_files_and_requests_for_replay(tmp_path: Path) -> None:
    paths = acceptance.write(document(), str(tmp_path / "r"), requests.REQUESTS, "K3")
    assert set(paths) == {"json", "html", "junit", "textfile"}
    jsonschema.validate(json.loads(Path(paths["json"]).read_text(encoding="utf-8")), SCHEMA)
    bodies = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "r/requests").iterdir()}
    assert set(bodies) == {"text", "stream", "tool_call", "reasoning"} and all(body["model"] == "K3" for body in bodies.values())


def test_a_baseline_names_regressions_by_threshold() -> None:
    before, after = document(), document("prefix")
    ramped = after["stages"][3]["data"]["levels"]
    ramped[2]["output_tps"] = 150.0
    ramped[1]["ttft_ms"] = dict(ramped[1]["ttft_ms"], p50=54.0)
    after["record"]["driver"] = ["590"]
    found = acceptance.compare(before, after, None, "x")
    assert found["regressions"] == ["stage prefix", "output tokens/s at 4 streams"]
    assert any(text.startswith("driver") for text in found["other"])
    after["baseline"] = found
    jsonschema.validate(after, SCHEMA)
    assert "regressions" in "\n".join(line for line, _c in terminal(after)) and "output tokens/s at 4 streams" in html(after)
    assert ElementTree.fromstring(junit(after)).get("failures") == "3"
    assert "first token p50 ms at 2 streams" in acceptance.compare(before, after, 5.0)["regressions"]
    assert acceptance.compare(before, copy.deepcopy(before))["regressions"] == []


@pytest.mark.parametrize(("name", "value"), [("input_tokens", 4096), ("output_tokens", 512), ("input_tokens", None)])
def test_steps_of_another_load_are_not_compared(name: str, value: int | None) -> None:
    before, after = document(), document(ttft=800.0)
    assert "first token p50 ms at 4 streams" in acceptance.compare(before, after)["regressions"] and not acceptance.compare(before, after)["other"]
    was = before["stages"][3]["data"][name]
    after["stages"][3]["data"][name] = value
    found = acceptance.compare(before, after)
    assert (found["rows"], found["regressions"], found["other"]) == ([], [], ["%s: %s, was %s" % (name, value, was)])


def test_a_ramp_that_was_not_run_has_no_other_load() -> None:
    after = document()
    after["stages"][3]["data"] = {}
    assert acceptance.compare(document(), after)["other"] == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "inferops.vllm/verify/1"}', "nonsense"])
def test_what_is_no_baseline_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(baseline.BaselineError):
        baseline.load(str(path))
    with pytest.raises(baseline.BaselineError):
        baseline.load(str(tmp_path / "none"))


@pytest.mark.parametrize("broken", [{"stages": [None, 3, {"stage": "concurrency", "data": {"levels": [None, {"concurrency": 1}]}}]}, {"stages": []}, {}])
def test_a_strange_baseline_gives_no_row(broken: dict[str, Any]) -> None:
    assert acceptance.compare(broken, document())["regressions"] == []


def test_what_the_plan_says_is_asked() -> None:
    plan = {
        "model": "m", "vllm_version": "0.32.0", "features": ["reasoning"], "engines": [{"name": "e", "nodes": ["a", "b"]}],
        "nodes": {"a": {"role": "head", "argv": ["vllm", "serve", "/m", "--served-model-name", "K3"], "health_url": "http://a:8000/health",
                        "container_engine": "podman"},
                  "b": {"role": "worker", "argv": ["vllm", "serve", "/m"], "health_url": None}}}
    found = build.prepared(plan)
    assert (found["endpoints"], found["route"], found["model"], found["engine"]) == (["http://a:8000"], "", "K3", "podman")
    plan["nodes"]["r"] = {"role": "router", "argv": ["vllm-router"], "health_url": "http://r:30000/health"}  # type: ignore[index]
    assert build.prepared(plan)["route"] == "http://r:30000" and build.prepared({})["endpoints"] == []


@pytest.mark.parametrize(("words", "engines", "streams"), [
    ([], 1, 8), (["--max-num-seqs", "5"], 1, 5), (["--max-num-seqs", "5"], 2, 8), (["--max-num-seqs", "2", "--data-parallel-size", "2"], 1, 4),
    (["--max-num-seqs", "many"], 1, 8)])
def test_no_more_streams_are_asked_for_than_the_plan_has_slots(words: list[str], engines: int, streams: int) -> None:
    plan = {"nodes": {"a": {"argv": ["vllm", "serve", "/m", *words]}}, "engines": [{"name": str(n), "nodes": ["a"]} for n in range(engines)]}
    assert build.prepared(plan)["concurrency"] == streams and build.prepared({})["concurrency"] == 8


def test_a_plan_without_features_has_none_asked() -> None:
    assert build.prepared({"features": ["reasoning"]})["features"] == ["reasoning"] and build.prepared({"features": []})["features"] == []
    assert build.prepared({})["features"] == ["tool_calling", "reasoning"], "no plan says what is served"


def test_the_ramps_own_numbers_fit_the_report() -> None:
    assert set(level(1)) == set(_level_fields())


def _level_fields() -> list[str]:
    source = Path(ramp.__file__).read_text(encoding="utf-8")
    body = source[source.index('        return {\n            "concurrency"'):source.index("    def _stop")]
    return re.findall(r'"(\w+)":', body)


RULES = ROOT / "roles/acceptance/files/prometheus-rules.yml"
BOARD = ROOT / "roles/acceptance/files/grafana-vllm.json"


def test_alert_rules_are_valid_for_promtool() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    done = subprocess.run([tool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("series", "values", "fires"), [
    ('process_start_time_seconds{job="vllm",instance="a"}', "1 1 60 60 120 120", True),
    ('process_start_time_seconds{job="vllm",instance="a"}', "1 1 1 60 60 60", False),
    ('vllm:prompt_tokens_total{job="vllm",instance="a",engine="0"}', "5 90 3 80 2 70", True),
    ('vllm:prompt_tokens_total{job="vllm",instance="a",engine="0"}', "5 90 3 80 82 83", False)])
def test_two_restarts_within_an_hour_are_told_of(tmp_path: Path, series: str, values: str, fires: bool) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    wanted = [{"exp_labels": {"job": "vllm", "instance": "a", "severity": "warning"},
               "exp_annotations": {"summary": "a was started 2 times within an hour",
                                   "description": "A restart loop, if it goes on. Run inferops.vllm.diagnose."}}] if fires else []
    case = {"rule_files": [str(RULES)], "tests": [{
        "interval": "1m", "input_series": [{"series": series, "values": values}],
        "alert_rule_test": [{"eval_time": "5m", "alertname": "VllmRestarted", "exp_alerts": wanted}]}]}
    (tmp_path / "case.yml").write_text(yaml.safe_dump(case), encoding="utf-8")
    done = subprocess.run([tool, "test", "rules", str(tmp_path / "case.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboard_ask_for_metrics_that_are_known() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    texts = [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]
    known = {name for names in metrics.NAMES.values() for name in names} | {"vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"}
    # Histograms that the stages do not read themselves; seen on a real 0.32 server.
    known |= {"vllm:e2e_request_latency_seconds"}
    asked = {name for text in texts for name in re.findall(r"vllm:\w+", text)}
    assert asked and {re.sub(r"_(?:total|bucket)$", "", name) for name in asked} <= known
    ours = {name for text in texts for name in re.findall(r"inferops_vllm_\w+", text)}
    assert ours <= {sample.name for sample in metrics.parse(textfile(document()))}
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] in ("critical", "warning", "info") for rule in rules)
