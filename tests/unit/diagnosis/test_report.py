# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict in a terminal, the document and the page: short, valid, and harmless whatever stands in a log."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Dict, List

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.logs import phases
from ansible_collections.inferops.vllm.plugins.module_utils.logs.signatures import CLASSES
from ansible_collections.inferops.vllm.plugins.plugin_utils.report import diagnosis
from ansible_collections.inferops.vllm.plugins.plugin_utils.report.text import width

from . import samples

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/schemas/diagnosis-1.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
HOSTILE = ["\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "\u202egnp.exe", "</style><script>document.title='owned'</script>",
           "<img src=x onerror=alert(1)>", "a\r\nb\x00c\x9b31m", "'\"><a href=javascript:alert(1)>x</a>", "{{ 7 * 7 }}{% for x in y %}",
           "x" * 9000, "\ud800 lone"]


def document(*cases: Dict[str, Any], refused: Any = ()) -> Dict[str, Any]:
    made = diagnosis.document(cases, refused, samples.BEGIN)
    VALIDATOR.validate(made)
    return made


def shown(made: Dict[str, Any], columns: int = 100) -> List[str]:
    lines = [text for text, _color in diagnosis.terminal(made, columns, "/srv/reports/diagnosis.html")]
    assert len(lines) < 25 and all(width(line) <= columns for line in lines)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", "".join(lines))
    return lines


def test_the_schema_knows_the_words_of_the_diagnosis() -> None:
    assert set(SCHEMA["$defs"]["phase"]["enum"]) - {None} == set(phases.PHASES) == set(diagnosis.PHASES)
    assert set(SCHEMA["$defs"]["class"]["enum"]) - {None} == set(CLASSES)


def test_a_verdict_names_place_line_reason_and_next_step() -> None:
    text = "\n".join(shown(document(samples.case())))
    for part in ("✘ failed in distributed_init: gpu_fault (gpu_hw_xid), confidence high", "b300-02, rank TP13", "logs/vllm.service.log.gz:4312",
                 "uncorrectable ECC error encountered", "signature ecc; kernel: Xid 94", "8 later lines (b300-01) only pass it on",
                 "b300-02 TP13 stopped at distributed_init, others reached engine_init", "--limit b300-02", "b300-03: did not answer", "diagnosis.html"):
        assert part in text, part
    assert text.count("ansible-playbook") == 1, "the remedy is told twice"


def test_a_healthy_run_and_an_abstention_say_so() -> None:
    assert shown(document(samples.healthy()))[0] == "✔ no failure; the last phase reached is decode"
    lines = shown(document(samples.abstention()))
    assert lines[0] == "? failed in distributed_init; the first failure is not in these logs, by all signs worker_lost"
    assert any("the kernel log of b300-02" in line for line in lines) and not any("first  " in line for line in lines)


def test_a_healthy_verdict_over_a_part_of_the_nodes_is_not_sure() -> None:
    made = document(samples.healthy(absent={"b300-02": "timed out"}, confidence="high"))
    assert shown(made)[0] == "? no failure on the nodes that answered; the last phase reached is decode"
    assert made["cases"][0]["confidence"] == "low" and "the logs of b300-02" in made["cases"][0]["collect"]


def test_several_cases_have_a_line_each_and_failures_come_first() -> None:
    fine = [samples.healthy(paths=["logs/ok%d.log" % number]) for number in range(30)]
    made = document(*fine, samples.case(paths=["logs/bad.log"]), refused=[("x.bin", "is no log")] * 9)
    lines = shown(made)
    assert lines[0] == "✘ 1 of 31 cases failed" and "bad.log" in lines[1] and "ok0.log" in lines[2]
    assert any(re.match(r"  and \d+ more$", line) for line in lines)
    assert "  and 6 more refused" in lines


def test_nothing_diagnosed_is_no_success() -> None:
    assert shown(document(refused=[("a", "does not exist")]))[:2] == ["? nothing was diagnosed", "  refused: a does not exist"]


def test_ranks_are_compared_with_ranks_and_nodes_with_nodes() -> None:
    made = document(samples.case())["cases"][0]
    assert made["behind"] == [{"node": "b300-02", "rank": "TP13", "reached": "distributed_init", "others": "engine_init"}]
    nodes = [samples.lane("n1", "APIServer", (("weights_load", 1.0), ("api_ready", 1.0))), samples.lane("n2", "Launcher", samples.STEPS[:1])]
    assert diagnosis.behind([diagnosis._lane(lane) for lane in nodes]) == [{"node": "n2", "rank": "", "reached": "device_init", "others": "engine_init"}]
    # A server that is ready is not ahead of workers that are done.
    nodes = [samples.lane("n1", "APIServer", (("api_ready", 1.0),)), samples.lane("n2", "Launcher")]
    assert diagnosis.behind([diagnosis._lane(lane) for lane in nodes]) == []
    # A worker has a bare number until it knows its place.
    lanes = [samples.lane("n1", "0", samples.STEPS[:2]), samples.lane("n1", "TP0"), samples.lane("n1", "TP1")]
    assert diagnosis.behind([diagnosis._lane(lane) for lane in lanes]) == []
    assert document(samples.healthy())["cases"][0]["behind"] == []


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: List[Any] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_asks_for_nothing_and_runs_nothing() -> None:
    page = Page(diagnosis.html(document(samples.case())))
    assert not [tag for tag, attrs in page.tags if tag in ("script", "img", "iframe", "link", "object") or "src" in attrs]
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "script-src" not in policy
    classes = [attrs.get("class", "") for _tag, attrs in page.tags]
    assert len([name for name in classes if name.split()[:1] == ["lane"]]) == 17
    assert len([name for name in classes if name == "mark first"]) == 1 and len([name for name in classes if name == "mark relay"]) == 8
    assert len([name for name in classes if name == "lane behind"]) == 1


@pytest.mark.parametrize("evil", HOSTILE)
def test_hostile_text_is_harmless_everywhere(evil: str) -> None:
    bad = samples.case(
        paths=[evil], cause=evil, next_action=evil, remedy=evil, why=[evil], against=[evil], collect=[evil], notes=[evil],
        absent={evil: evil},
        first_failure=samples.place(evil, evil, evil), relays=[samples.place(evil, evil, evil)], signature=evil,
        advisories=[{"text": evil, "remedy": evil, "source": "javascript:alert(1)"}, evil],
        timeline={"lanes": [samples.lane(evil, evil), samples.lane("n", "TP1")]})
    made = document(bad, refused=[(evil, evil)])
    shown(made)
    page = Page(diagnosis.html(made))
    assert not [tag for tag, attrs in page.tags if tag in ("script", "img") or any(name.startswith("on") for name in attrs)]
    assert not [attrs["href"] for _tag, attrs in page.tags if "javascript" in (attrs.get("href") or "")]
    json.dumps(made).encode("utf-8")


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
PLACES = st.none() | st.dictionaries(st.sampled_from(["text", "file", "line", "node", "rank", "time", "process", "x"]), VALUES, max_size=8)
TIMES = st.none() | st.floats(0, 2e9)
BANDS = st.lists(st.fixed_dictionaries({"phase": st.sampled_from(diagnosis.PHASES) | st.text(max_size=5), "start": TIMES, "end": TIMES}), max_size=4)
LANES = st.fixed_dictionaries({"phases": BANDS}, optional=dict.fromkeys(("node", "rank", "reached"), st.text(max_size=8)))


@given(
    first=PLACES, relays=st.lists(PLACES, max_size=4), lanes=st.lists(LANES, max_size=5), texts=st.lists(st.text(max_size=300), max_size=6),
    failed=st.booleans(), word=st.text(max_size=300), columns=st.integers(60, 140))
@settings(max_examples=60)
def test_any_case_has_a_verdict_a_page_and_a_document(first: Any, relays: Any, lanes: Any, texts: List[str], failed: bool, word: str, columns: int) -> None:
    made = diagnosis.document([samples.case(
        failed=failed, first_failure=first, relays=relays, timeline={"lanes": lanes}, why=texts, against=texts, collect=texts, notes=texts,
        next_action=word, remedy=word, cause=word, absent=dict.fromkeys(texts, word))], [], samples.BEGIN)
    shown(made, columns)
    diagnosis.html(made)
    json.dumps(made)


def test_durations_and_compressed_time() -> None:
    assert [diagnosis.duration(value) for value in (3, 119, 120, 185, 7500, 300000)] == ["3 s", "119 s", "2 min", "3 min 5 s", "2 h 5 min", "3 d 11 h"]
    axis = diagnosis.Axis([0.0, 10.0, 1000000.0])
    assert axis.at(0.0) == 0.0 and axis.at(1000000.0) == pytest.approx(100.0) and axis.at(10.0) > 5


def test_files_are_written_whole_where_they_are_asked_for(tmp_path: Path) -> None:
    made = document(samples.case())
    paths = diagnosis.write(made, str(tmp_path / "reports"), str(tmp_path / "new" / "d.json"))
    assert json.loads(Path(paths["json"]).read_text()) == made and paths["json"].endswith("new/d.json")
    assert sorted(os.listdir(tmp_path / "reports")) == ["diagnosis.html"]
    diagnosis.write(made, str(tmp_path / "reports"))
    assert sorted(os.listdir(tmp_path / "reports")) == ["diagnosis.html", "diagnosis.json"]
