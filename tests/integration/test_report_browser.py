# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTML report in a real browser: Debian's headless Chromium draws it, and what it drew is looked at."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple
from urllib.parse import quote

import pytest

from ansible_collections.inferops.vllm.plugins.plugin_utils import report
from ansible_collections.inferops.vllm.plugins.plugin_utils.report import groups
from tests.unit.report import samples

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=4000",
)  # fmt: skip
VOID = {"meta", "br", "hr", "img", "input", "link", "line", "circle", "rect"}
IMAGE_TAG = "<img src=x onerror=document.title='owned'>"


class Dom(HTMLParser):
    """What the browser drew: every element as ``(tag, attributes, text inside)``."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: List[Tuple[str, Dict[str, Optional[str]], List[str]]] = []
        self.open: List[int] = []
        self.silent = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        # Where scripts run, what stands in noscript is text that nobody sees.
        self.silent += tag == "noscript"
        if self.silent:
            return
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        if self.silent:
            self.silent -= tag == "noscript"
            return
        while self.open:
            if self.elements[self.open.pop()][0] == tag:
                return

    def handle_data(self, data: str) -> None:
        if not self.silent and not any(self.elements[number][0] in ("script", "style") for number in self.open):
            for number in self.open:
                self.elements[number][2].append(data)

    def all(self, word: str = "", tag: str = "", **attributes: str) -> List[Tuple[str, Dict[str, Optional[str]], str]]:
        """Elements with `word` among their classes, in order."""
        return [
            (found, attrs, "".join(text))
            for found, attrs, text in self.elements
            if (not tag or tag == found) and (not word or word in (attrs.get("class") or "").split())
            and all(attrs.get(key.replace("_", "-")) == value for key, value in attributes.items())
        ]  # fmt: skip

    def one(self, word: str = "", tag: str = "", **attributes: str) -> Tuple[str, Dict[str, Optional[str]], str]:
        found = self.all(word, tag, **attributes)
        assert len(found) == 1, "%d elements of %s %s %s" % (len(found), tag, word, attributes)
        return found[0]


Browse = Callable[..., Any]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """``browse(document, fragment="", size=(1440, 1200), dark=False) -> Dom``; `arguments` replace ``--dump-dom``."""
    counter = iter(range(100))

    def run(
        document: Any,
        fragment: str = "",
        size: Tuple[int, int] = (1440, 1200),
        dark: bool = False,
        arguments: Tuple[str, ...] = ("--dump-dom",),
    ) -> Any:
        number = next(counter)
        page = tmp_path / ("page%d.html" % number)
        page.write_text(document if isinstance(document, str) else report.html(document), encoding="utf-8")
        command = [
            str(CHROMIUM), *FLAGS, "--user-data-dir=%s" % (tmp_path / ("profile%d" % number)), "--window-size=%d,%d" % size,
            "--blink-settings=preferredColorScheme=%d" % (0 if dark else 1), *arguments, page.as_uri() + fragment,
        ]  # fmt: skip
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            out, _err = child.communicate(timeout=90)
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        assert child.returncode == 0
        return Dom(out.decode("utf-8"))

    return run


def drawn(dom: Dom) -> Dom:
    assert dom.one(tag="div", id="app")[1].get("data-ready") == "yes", "the script of the page did not run to its end"
    return dom


def test_demo_shows_what_blocks_and_every_cell(browse: Browse) -> None:
    document = samples.demo()
    dom = drawn(browse(document))
    assert dom.one(tag="h1")[2] == "4 of 7 nodes are blocked for kimi_k3"
    columns = [id for id in document["checks"] if not id.startswith("drift.")]
    assert len(dom.all(role="gridcell")) == 7 * len(columns)
    rows = [text for _t, _a, text in dom.all("name", role="rowheader")]
    assert rows == [name + node["verdict"] for name, node in document["nodes"].items()]
    labels = [str(attrs["aria-label"]) for _t, attrs, _x in dom.all(role="gridcell")]
    failed = [label for label in labels if "failed, blocks" in label]
    assert len(failed) == 8 and "b300-02 driver.branch: failed, blocks" in failed
    blocks = [text for _t, _a, text in dom.all("prob") if "575.57.08" in text]
    assert blocks and "580 or newer" in blocks[0] and "ansible-playbook inferops.vllm.remediate_driver --limit b300-02" in blocks[0]
    first = dom.all("prob")[0]
    assert first[1]["data-id"] == "driver.branch", "what blocks does not come first"
    assert "assumed" in "".join(text for _t, _a, text in dom.all("context"))
    assert {text for _t, _a, text in dom.all("tile")} == {"4blocked", "1unknown", "1unreachable", "1ready"}
    assert any("b300-02: 575.57.08" in text for _t, _a, text in dom.all("drift"))


def test_a_lost_gpu_and_a_lost_link_stand_out(browse: Browse) -> None:
    dom = drawn(browse(samples.cluster(3, {1: [samples.LOST], 2: [samples.NVLINK]}, lost_link=[2])))
    says = [text for _t, _a, text in dom.all("bad")]
    assert says == ["1 GPU missing", "7 pairs without NV18"]
    assert len(dom.all("gone", tag="circle")) == 1
    assert len(dom.all("lost", tag="line")) == 7 and len(dom.all("lost", tag="td")) == 14
    assert len(dom.all("topo")) == 3


def test_address_opens_the_details_of_a_finding_and_of_a_node(browse: Browse) -> None:
    document = samples.demo()
    text = drawn(browse(document, "#node=b300-04&check=gpu.count")).one("drawer")[2]
    for part in (
        "7 in nvidia-smi, 8 on PCI",
        "Tensor parallel size 8 needs 8 GPUs.", "nvidia-smi -q -x", "reboot=true --limit b300-04", samples.SOURCE,
    ):  # fmt: skip
        assert part in text
    drawer = drawn(browse(document, "#node=b300-06")).one("drawer")
    assert "hidden" not in drawer[1]
    assert "8 on PCI, nvidia-smi gave none" in drawer[2] and "3 findings" in drawer[2]
    assert "hidden" in drawn(browse(document, "#node=nobody")).one("drawer")[1]


def test_hostile_text_is_shown_and_never_run(browse: Browse) -> None:
    names = [IMAGE_TAG, "</script><script>document.title='owned'</script>", "a\"onmouseover=\"document.title='owned'"]
    fault = ("gpu.model", "fail", "block", names[0], names[1], names[2], "`ansible-playbook %s`" % names[0])
    document = samples.cluster(2, {1: [fault]}, name=IMAGE_TAG)
    evil = samples.cluster(2, name=IMAGE_TAG)["nodes"]["b300-01"]
    document["nodes"][IMAGE_TAG] = evil
    evil["topology"]["gpus"][0] = evil["topology"]["hcas"][0] = names[1]
    evil["topology"]["nics"]["NIC0"] = IMAGE_TAG
    script = "javascript:document.title='owned'"
    document["findings"].append(samples.finding("gpu.model", IMAGE_TAG, "warn", "warn", names[1], source=script))
    for fragment in ("", "#node=b300-01", "#node=" + quote(IMAGE_TAG) + "&check=gpu.model"):
        dom = drawn(browse(document, fragment))
        assert dom.all(tag="title")[0][2] == "Preflight: 1 of 3 nodes is blocked for kimi_k3"
        assert not dom.all(tag="img") and not dom.all(tag="iframe")
        assert len(dom.all(tag="script")) == 2
        for _tag, attrs, _text in dom.elements:
            assert not [name for name in attrs if name.startswith("on")], attrs
            assert not str(attrs.get("href") or "").startswith("javascript:")
    # The name of the GPU is text in the details of the node.
    assert "8 × " + IMAGE_TAG in drawn(browse(document, "#node=b300-01")).one("drawer")[2]
    assert "javascript:document.title" in dom.one("drawer")[2]


class Counter(http.server.BaseHTTPRequestHandler):
    """Answers everything, and counts what is asked beside the page itself."""

    asked: List[str] = []
    page = b""

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        if self.path == "/report.html":
            self.wfile.write(self.page)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Counter.asked = []
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counter)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield "http://127.0.0.1:%d" % running.server_address[1]
    running.shutdown()
    running.server_close()
    thread.join(5)


def test_page_requests_nothing(browse: Browse, server: str, tmp_path: Path) -> None:
    text = report.html(samples.cluster(1, {1: [("gpu.model", "fail", "block", '<img src="%s/x">' % server, "", "", "")]}))
    Counter.page = text.encode()
    frame = "<!DOCTYPE html><title>frame</title><iframe src='%s/report.html'></iframe>" % server
    browse(frame)
    assert "/report.html" in Counter.asked
    assert [path for path in Counter.asked if path not in ("/report.html", "/favicon.ico")] == []
    # The policy of the page stops a request even when something asks for one.
    Counter.asked = []
    Counter.page = text.replace('<div id="app"', '<img src="%s/leak"><div id="app"' % server).encode()
    browse(frame)
    assert "/report.html" in Counter.asked and "/leak" not in Counter.asked


def test_a_thousand_nodes_open_in_seconds_and_draw_only_what_is_seen(browse: Browse) -> None:
    document = samples.large()
    text = report.html(document)
    assert len(text) < 12_000_000
    empty = time.monotonic()
    browse("<!DOCTYPE html><title>empty</title>")
    started = time.monotonic()
    dom = drawn(browse(text))
    took = (time.monotonic() - started) - (started - empty)
    assert dom.one(tag="h1")[2] == "83 of 1000 nodes are blocked for kimi_k3"
    rows = dom.all("row", role="row")
    assert 20 <= len(rows) <= 80, "%d rows exist" % len(rows)
    assert dom.one("grid")[1]["aria-rowcount"] == "1001"
    assert len(dom.all("strip")) == 1 and len([1 for _t, a, _x in dom.elements if "data-node" in a]) == 1000
    assert sum(1 for _ in dom.elements) < 15_000
    # Generous: the machine that tests may have other work.
    assert took < 12, "%.1f s beyond an empty page" % took


def after(document: Any, steps: str) -> str:
    """The page with a script behind its own that acts as a user does."""
    return report.html(document).replace("</body>", "<script>setTimeout(function () { %s }, 100);</script></body>" % steps)


TYPE = "var q = document.querySelector('input[type=search]'); q.value = '%s'; q.dispatchEvent(new Event('input'));"
KEY = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}));"


def test_filters_narrow_lists_and_matrix(browse: Browse) -> None:
    document = samples.demo()
    dom = drawn(browse(after(document, TYPE % "b300-03")))
    assert [text for _t, _a, text in dom.all("name", role="rowheader")] == ["b300-03blocked"]
    assert {attrs["data-id"] for _t, attrs, _x in dom.all("prob")} == {"gpudirect.peermem", "gpudirect.dmabuf_fallback"}
    dom = drawn(browse(after(document, TYPE % "no such text")))
    assert not dom.all("name", role="rowheader") and not dom.all("prob")
    assert "No blocker matches the filters." in dom.one(tag="section", id="blocks")[2]
    dom = drawn(browse(after(document, "document.querySelector('.tile[data-verdict=unknown]').click();")))
    assert [text for _t, _a, text in dom.all("name", role="rowheader")] == ["b300-06unknown"]
    area = "var a = document.querySelector('.bar select'); a.value = 'image'; a.dispatchEvent(new Event('change'));"
    dom = drawn(browse(after(document, area)))
    assert {str(attrs["title"]).split(":")[0] for _t, attrs, _x in dom.all("label", role="columnheader")} == {
        name for name in samples.CHECKS if name.startswith("image.")}


def test_matrix_is_used_with_the_keyboard(browse: Browse) -> None:
    steps = "document.querySelector('[role=rowheader]').focus();" + KEY % "ArrowDown" + (KEY % "ArrowRight") * 2 + KEY % "Enter"
    dom = drawn(browse(after(samples.demo(), steps)))
    assert dom.one("at")[1]["aria-label"] == "b300-02 driver.branch: failed, blocks"
    assert "575.57.08" in dom.one("drawer")[2]
    assert len([1 for _t, attrs, _x in dom.all(role="gridcell") + dom.all(role="rowheader") if attrs["tabindex"] == "0"]) == 1
    back = KEY % "Escape" + "document.body.setAttribute('data-focus', document.activeElement.getAttribute('aria-label'));"
    dom = drawn(browse(after(samples.demo(), steps + back), size=(1500, 1200)))
    assert "hidden" in dom.one("drawer")[1]
    assert dom.one(tag="body")[1]["data-focus"] == "b300-02 driver.branch: failed, blocks"


def test_scrolling_draws_the_rows_that_come_into_view(browse: Browse) -> None:
    steps = "var s = document.querySelector('[aria-label=\"Order of nodes\"]'); s.value = 'rank'; s.dispatchEvent(new Event('change'));"
    steps += "document.querySelector('.grid').scrollTop = 500 * 28;"
    # Rows are drawn with the next frame, which a loaded machine may not come to within the browser's budget.
    for _attempt in range(4):
        rows = [text for _t, _a, text in drawn(browse(after(samples.large(), steps))).all("name", role="rowheader")]
        if any(text.startswith("b300-0510") for text in rows):
            break
    assert any(text.startswith("b300-0510") for text in rows) and not any(text.startswith("b300-0001") for text in rows)
    assert len(rows) < 80


def png_size(path: Path) -> Tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return int(width), int(height)


@pytest.mark.parametrize("dark", [False, True])
def test_screenshot_in_light_and_dark(browse: Browse, tmp_path: Path, dark: bool) -> None:
    picture = tmp_path / "report.png"
    browse(samples.demo(), size=(1280, 900), dark=dark, arguments=("--screenshot=%s" % picture,))
    assert png_size(picture) == (1280, 900)
    # A page that was not drawn is one colour and compresses to nearly nothing.
    assert picture.stat().st_size > 30_000


def test_nothing_runs_over_the_edge_of_a_narrow_window(browse: Browse) -> None:
    over = "document.body.setAttribute('data-over', document.documentElement.scrollWidth - innerWidth)"
    probe = "<script>addEventListener('load', function () { %s; });</script></body>" % over
    for width in (900, 640):
        dom = browse(report.html(samples.demo()).replace("</body>", probe), size=(width, 900))
        assert int(dom.one(tag="body")[1]["data-over"] or "999") <= 0


def test_without_javascript_the_blockers_are_a_list(browse: Browse) -> None:
    text = report.html(samples.demo())
    start, end = text.index("<noscript>") + len("<noscript>"), text.index("</noscript>")
    dom = browse("<!DOCTYPE html><title>plain</title>" + text[start:end])
    items = [found for _t, _a, found in dom.all(tag="li")]
    assert items[0].startswith("blocks: driver.branch (fail), b300-02: 575.57.08")
    assert len(items) == sum(len(group.variants) for group in groups.problems(samples.demo())) and dom.one(tag="h1")[2].startswith("4 of 7")
