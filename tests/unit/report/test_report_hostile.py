# SPDX-License-Identifier: GPL-3.0-or-later
"""Any text in any field: the report keeps its width, its markup and its structure."""

from __future__ import annotations

import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from typing import Any, Dict, List, Optional, Set, Tuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Context, Node
from ansible_collections.inferops.vllm.plugins.plugin_utils import report
from ansible_collections.inferops.vllm.plugins.plugin_utils.report import page
from ansible_collections.inferops.vllm.plugins.plugin_utils.report.text import cut, fold, plain, width, wrap

from . import samples

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "<!--",
    "]]>",
    "\x1b[31mred\x1b]0;title\x07",
    "a\nb\r\nc\td",
    "\u202ereversed",
    "|",
    "`code`",
    "a|b|c",
    "\\|",
    "![x](http://e.example)",
    "@everyone",
    "中文名字節點節點節點節點",
    "e\u0301\u0301\u0301",
    "\ud800",
    "\x00",
    "\u2028",
    "&lt;b&gt;",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "\ufffe",
    "👩‍👩‍👧",
    "javascript:alert(1)",
    "x" * 5000,
    " ",
    "",
    "``",
    "`",
    "--- | ---",
    "__proto__",
    "</style>",
    "NODE",
    "`NODE`",
    "`ansible-playbook a.b.c --limit NODE`",
    "%s %d {0}",
    "\x9b31m",
    'http://a.example/"onmouseover=alert(1)',
]
TEXT = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=60), st.text(alphabet="<>&\"'`|\\\x1b[]()*_\n 中\u0301a1-.", max_size=40))
FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def documents(draw: Any) -> Dict[str, Any]:
    names = draw(st.lists(TEXT.filter(lambda name: name != "*"), min_size=1, max_size=4, unique=True))
    if draw(st.booleans()):
        names += ["node-%03d" % i for i in range(30)]
    texts = {name: st.builds(str, TEXT) for name in ("observed", "required", "read_from", "why", "fix", "source")}
    findings = draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "id": TEXT,
                    "node": st.sampled_from(names + ["*"]),
                    "status": st.sampled_from(["pass", "warn", "fail", "unknown", "skip"]),
                    "severity": st.sampled_from(["block", "warn", "info"]),
                    "assumed": st.booleans(),
                    **texts,
                }
            ),
            max_size=8,
        )
    )
    facts = {
        "collected": {"recorded": True, "costume": draw(TEXT)},
        "driver": {"loaded": draw(TEXT)},
        "host": {"kernel": draw(TEXT)},
        "gpu": {
            "gpus": [{"name": draw(TEXT)}],
            "topology": {"gpus": [draw(TEXT)], "matrix": [draw(TEXT)], "nics": {draw(TEXT): draw(TEXT)}, "gpu_nic": [draw(TEXT)]},
        },
        "rdma": {"hcas": [{"name": draw(TEXT)}]},
    }
    nodes = [
        Node(
            name, facts if position % 2 == 0 else None, {"host_ip": draw(TEXT) if position < 3 else ""}, draw(TEXT) if position == 1 else ""
        )
        for position, name in enumerate(names)
    ]
    context = Context(
        hardware=draw(TEXT), strategy=draw(TEXT), variant=draw(TEXT), sources={"hardware": draw(TEXT), draw(TEXT): draw(TEXT)}
    )
    return report.document(draw(TEXT), context, judge.verdicts(nodes, findings), findings, nodes, samples.NOW)


@FEW
@given(documents(), st.sampled_from([40, 79, 100]), st.booleans(), TEXT)
def test_terminal_keeps_its_width_and_is_harmless(document: Dict[str, Any], columns: int, ascii_only: bool, where: str) -> None:
    for line, color in report.terminal(document, width=columns, ascii_only=ascii_only, where=where):
        assert width(line) <= columns, repr(line)
        assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in line), repr(line)
        assert color is None or color in ("green", "yellow", "red", "purple", "bright red", "cyan")
        assert not ascii_only or line.isascii()
        line.encode("utf-8")


class Page(HTMLParser):
    """Elements with their attributes, and the text of the data script."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: List[Tuple[str, Tuple[Tuple[str, Optional[str]], ...]]] = []
        self.open: List[str] = []
        self.data: List[str] = []
        self.comments = 0

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self.seen.append((tag, tuple(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        self.comments += 1

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and self.seen[-1][1] == (("type", "application/json"), ("id", "data")):
            self.data.append(data)


@FEW
@given(documents())
def test_html_has_its_own_elements_only(document: Dict[str, Any]) -> None:
    text = report.html(document)
    text.encode("utf-8")
    parser = Page()
    parser.feed(text)
    parser.close()
    assert parser.open == [] and parser.comments == 0
    allowed: Set[str] = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "noscript",
        "main",
        "h1",
        "h2",
        "p",
        "ul",
        "li",
        "b",
        "div",
        "script",
    }
    assert {tag for tag, _attrs in parser.seen} <= allowed
    assert [tag for tag, _attrs in parser.seen].count("script") == 2
    for tag, attrs in parser.seen:
        if tag not in ("meta", "html", "div", "script", "main"):
            assert attrs == (), (tag, attrs)
    data = json.loads("".join(parser.data))
    assert [node[0] for node in data["nodes"]] == [name.encode("utf-8", "replace").decode() for name in document["nodes"]]


@FEW
@given(documents())
def test_junit_is_well_formed_and_counts_right(document: Dict[str, Any]) -> None:
    text = report.junit(document)
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert len(root.findall("testsuite/testcase")) == len(document["findings"])
    assert {child.tag for child in root.iter()} <= {"testsuites", "testsuite", "testcase", "failure", "skipped", "system-out"}


@FEW
@given(documents())
def test_markdown_tables_stay_whole(document: Dict[str, Any]) -> None:
    text = report.markdown(document)
    text.encode("utf-8")
    columns = 0
    for line in text.split("\n"):
        if re.fullmatch(r"(\|-+:?)+\|", line):
            columns = line.count("|") - 1
        elif line.startswith("|"):
            if line.startswith(("| Node |", "| Check |")):
                continue
            assert line.count("|") - 1 == columns, line
            assert line.endswith(" |")
        else:
            columns = 0
        assert "`" not in line and "![" not in line and "](" not in line
        assert re.sub(r"</?code>", "", line).find("<") < 0
        assert all(unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp") for c in line)


@FEW
@given(TEXT, st.integers(1, 60))
def test_cut_and_wrap_keep_the_width(text: str, columns: int) -> None:
    clean = plain(text)
    assert width(cut(clean, columns)) <= columns
    if columns >= 10:
        lines = wrap(clean, columns)
        assert all(width(line) <= columns for line in lines)
        # Nothing is lost but blanks.
        assert "".join(lines).replace(" ", "") == clean.replace(" ", "")


@FEW
@given(st.lists(TEXT, max_size=12), st.integers(1, 60))
def test_fold_counts_every_name(names: List[str], columns: int) -> None:
    clean = [plain(name).replace(",", "").replace("..", "").replace(" and ", "") or "n" for name in names]
    text = fold(clean, columns)
    found = re.search(r" and (\d+) more\Z", text)
    shown = text[: found.start()] if found else text
    count = 0
    for part in shown.split(", ") if shown else []:
        span = re.fullmatch(r"(.*?)(\d+)\.\.(\d+)", part, re.S)
        count += int(span.group(3)) - int(span.group(2)) + 1 if span else 1
    assert count + (int(found.group(1)) if found else 0) == len(clean)


@pytest.mark.parametrize("text", HOSTILE)
def test_script_json_cannot_leave_its_element(text: str) -> None:
    embedded = page.script_json({"a": text})
    assert not set("<>&\u2028\u2029") & set(embedded)
    assert json.loads(embedded) == {"a": text.encode("utf-8", "replace").decode()}


def test_a_reference_in_the_text_is_shown_and_not_read() -> None:
    document = samples.cluster(1, {1: [("gpu.ecc", "fail", "block", "&lt;b&gt;", "", "", "")]})
    assert "&amp;lt;b&amp;gt;" in report.html(document)
    assert "&amp;lt;b&amp;gt;" in report.markdown(document)
