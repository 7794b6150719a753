# SPDX-License-Identifier: GPL-3.0-or-later
"""The verify playbook against a server that acts like vLLM: exit codes, reports, bad input, and no secret anywhere."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from tests.unit.serving.servers import MODEL, State, raw, serving

from .conftest import ROOT

SCHEMA = json.loads((ROOT / "docs/schemas/verify-1.schema.json").read_text(encoding="utf-8"))
QUICK = {"verify_model": MODEL, "verify_features": [], "verify_concurrency": 2, "verify_level_seconds": 0.5, "verify_input_tokens": 64,
         "verify_output_tokens": 8, "verify_request_seconds": 2}
SERVED = ["request", "prefix", "concurrency"]


@pytest.fixture
def verify(playbook: Any, inventory: Any, tmp_path: pathlib.Path) -> Callable[..., Any]:
    """Callable ``verify(url, **variables) -> (run, verify.json or None, report folder)``."""

    def run(url: str, **given: Any) -> Any:
        reports = tmp_path / ("verified%d" % len(list(tmp_path.glob("verified*"))))
        words = {**QUICK, "verify_endpoints": [url], "plan_dir": str(tmp_path / "none"), "verify_report_dir": str(reports), **given}
        words = {name: value for name, value in words.items() if value is not None}
        done = playbook("inferops.vllm.verify", inventory({"n1": {}}), "-e", json.dumps(words))
        path = reports / "verify.json"
        assert "Traceback" not in done.text
        document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        if document is not None:
            jsonschema.validate(document, SCHEMA)
        return done, document, reports

    return run


def states(document: Any) -> dict[str, str]:
    return {stage["stage"]: stage["status"] for stage in document["stages"]}


def test_a_server_that_serves_is_accepted_and_a_missing_unit_is_not(verify: Any) -> None:
    with serving(State(key="sesame-1234")) as url:
        done, document, reports = verify(url, verify_stages=SERVED, vllm_api_key="sesame-1234")
        again, second, _reports = verify(url, verify_api_key="sesame-1234", verify_baseline=str(reports / "verify.json"), verify_regression_percent=100000)
    assert done.rc == 0 and document["verdict"] == "not_verified", done.text
    assert states(document) == {"start": "not_verified", "request": "passed", "prefix": "passed", "concurrency": "passed", "stability": "not_verified"}
    assert {path.name for path in reports.iterdir()} == {"verify.json", "verify.html", "verify.junit.xml", "verify.prom", "requests"}
    texts = done.text + again.text + "".join(path.read_text(encoding="utf-8") for path in reports.glob("verify.*"))
    assert "sesame" not in texts
    # This machine runs no vllm.service, so stage 1 cannot pass: it fails, or without systemd nobody knows.
    assert states(second)["start"] != "passed" and second["baseline"]["regressions"] == [] and second["verdict"] != "passed"


@pytest.mark.parametrize(("plan", "asked"), [(None, True), ({"features": ["tool_calling", "reasoning"]}, True), ({"features": []}, False)])
def test_features_are_those_of_the_plan(verify: Any, tmp_path: pathlib.Path, plan: Any, asked: bool) -> None:
    if plan is not None:
        (tmp_path / "none").mkdir()
        (tmp_path / "none" / "plan.json").write_text(json.dumps({"nodes": {}, **plan}), encoding="utf-8")
    with serving(State()) as url:
        done, document, _reports = verify(url, verify_stages=["request"], verify_features=None, verify_fail_on="never")
    assert done.rc == 0, done.text
    skipped = {found["id"] for stage in document["stages"] if stage["stage"] == "request" for found in stage["findings"] if found["status"] == "skip"}
    assert bool(skipped) is not asked, skipped


def test_an_engine_that_fails_ends_with_2_and_says_why(verify: Any) -> None:
    with serving(State(session=True)) as url:
        done, document, _reports = verify(url, verify_stages=SERVED)
    assert done.rc == 2 and states(document)["prefix"] == "failed" and "prefix differs" in done.text
    with serving(State(session=True)) as url:
        assert verify(url, verify_stages=SERVED, verify_fail_on="never")[0].rc == 0


@pytest.mark.parametrize("target", [0, 1000000])
def test_an_impossible_target_is_not_verified(verify: Any, target: int) -> None:
    with serving(State()) as url:
        done, document, _reports = verify(url, verify_stages=["concurrency"], verify_concurrency=target)
        strict, _document, _reports = verify(url, verify_stages=["concurrency"], verify_concurrency=target, verify_fail_on="not_verified")
    assert done.rc == 0 and states(document)["concurrency"] == "not_verified" and "outside 1 to 4096" in done.text
    assert strict.rc == 2


def test_a_half_open_server_is_bounded(verify: Any) -> None:
    with raw(None, close=False) as url:
        done, document, _reports = verify(url, verify_stages=SERVED)
    assert done.rc == 2 and states(document)["request"] == "failed" and states(document)["prefix"] == "not_verified"


@pytest.mark.parametrize(("state", "scheme", "words"), [
    (State(html=True), "http", "a page for a browser came instead"), (State(), "https", "does not speak TLS"), (None, "http", "nothing listens on")])
def test_what_is_no_sound_server_is_named_and_later_stages_say_why_they_were_left_out(verify: Any, state: State | None, scheme: str, words: str) -> None:
    with serving(state or State()) as url:
        if state is not None:
            done, document, _reports = verify(url.replace("http", scheme))
    if state is None:
        done, document, _reports = verify(url)
    assert done.rc == 2 and words in json.dumps(document["stages"][1]["findings"]) and states(document)["request"] == "failed"
    assert states(document)["prefix"] == states(document)["concurrency"] == "not_verified"
    assert all("stage 2 failed" in document["stages"][number]["summary"] for number in (2, 3))


def test_metrics_that_are_no_numbers_are_no_verdict(verify: Any) -> None:
    nan = "vllm:prefix_cache_queries_total NaN\nvllm:prefix_cache_hits_total NaN\nvllm:num_preemptions_total NaN\n"
    with serving(State(metrics=lambda state: nan, reports_cached=False)) as url:
        done, document, _reports = verify(url, verify_stages=SERVED)
    assert done.rc == 0 and states(document)["prefix"] == "not_verified" and "cannot tell" in document["stages"][2]["summary"]


@pytest.mark.parametrize(("model", "status", "words"), [
    (MODEL, "passed", "no engine process of vllm-router.service runs on this node"), ("another", "failed", "since stage request did not pass: request.model")])
def test_a_restart_that_is_not_made_loses_no_report_and_says_why(verify: Any, tmp_path: pathlib.Path, model: str, status: str, words: str) -> None:
    # A unit of which no process of vLLM can be, whatever else runs on this machine.
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "plan.json").write_text(json.dumps({"nodes": {"n1": {"role": "router"}}, "features": []}), encoding="utf-8")
    with serving(State()) as url:
        done, document, _reports = verify(url, verify_stages=["request", "stability"], verify_model=model, verify_allow_restart=True, verify_restart_seconds=1)
    assert states(document)["request"] == status and states(document)["stability"] == "not_verified", done.text
    assert words in json.dumps(document["stages"][4]["findings"]) and done.rc == (0 if status == "passed" else 2)


@pytest.mark.parametrize(("words", "sentence"), [
    ({"verify_endpoints": []}, "nothing to verify"), ({"verify_endpoints": ["nonsense"]}, "is not a URL"), ({"verify_model": ""}, "must be given"),
    ({"verify_baseline": "/no/such/file"}, "cannot be read"), ({"verify_api_key_file": "/no/such/key"}, "cannot be read"),
    ({"verify_fail_on": "sometimes"}, "must be one of"), ({"verify_stages": ["all"]}, "must be one or more of"), ({"verify_repeat": 0}, "outside 1 to 1000"),
    ({"verify_tolerate": ["fine", "KV block ("]}, "verify_tolerate: 'KV block (' is no regular expression"),
])
def test_a_wrong_word_is_refused_in_one_sentence(verify: Any, words: dict[str, Any], sentence: str) -> None:
    done, _document, _reports = verify("http://127.0.0.1:1", **words)
    assert done.rc == 2 and sentence in " ".join(done.text.split()), done.text
