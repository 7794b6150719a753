# SPDX-License-Identifier: GPL-3.0-or-later
"""The timeline of a diagnosis in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import pytest

from ansible_collections.inferops.vllm.plugins.plugin_utils.report import diagnosis
from tests.unit.diagnosis import samples

from .test_report_browser import CHROMIUM, Browse, browse, png_size  # noqa: F401  # pytest finds the fixture here

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
MEASURE = """<script>addEventListener('load', function () {
  document.querySelectorAll('.band, .mark, .lane').forEach(function (e) {
    var r = e.getBoundingClientRect();
    e.setAttribute('data-x', Math.round(r.left)); e.setAttribute('data-w', Math.round(r.width)); e.setAttribute('data-h', Math.round(r.height));
    e.setAttribute('data-bg', getComputedStyle(e).backgroundColor);
  });
  document.body.setAttribute('data-over', document.documentElement.scrollWidth - innerWidth);
});</script></body>"""


def page(*cases: Any, measured: bool = False) -> str:
    text = diagnosis.html(diagnosis.document(cases, [], samples.BEGIN))
    if measured:
        # The page itself runs nothing; the measuring needs its policy loosened.
        text = text.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';").replace("</body>", MEASURE)
    return text


def test_lanes_bands_and_marks_are_drawn_where_they_belong(browse: Browse) -> None:  # noqa: F811
    dom = browse(page(samples.case(), measured=True))
    lanes = dom.all("lane")
    assert len(lanes) == 17 and all(int(attrs["data-h"] or 0) >= 24 for _t, attrs, _x in lanes)
    assert lanes[0][2].strip().startswith("b300-02 TP13stopped at distributed_init"), "the lane of the first failure does not come first"
    bands = dom.all("band")
    assert all(int(attrs["data-w"] or 0) >= 2 for _t, attrs, _x in bands)
    weights = [attrs for _t, attrs, _x in bands if "b-weights_load" in str(attrs["class"])]
    assert len(weights) == 15 and len({attrs["data-x"] for attrs in weights}) == 1 and len({attrs["data-bg"] for attrs in weights}) == 1
    assert all(str(attrs["data-bg"]) not in ("rgba(0, 0, 0, 0)", "") for _t, attrs, _x in bands)
    first = dom.one("first", "span")
    relays = [int(attrs["data-x"] or 0) for _t, attrs, _x in dom.all("relay", "span")]
    assert len(relays) == 8 and int(first[1]["data-x"] or 0) < min(relays) and relays == sorted(relays)
    assert "First failure: b300-02, rank TP13" in str(first[1]["title"])


@pytest.mark.parametrize("width", [1400, 900, 600])
def test_nothing_runs_over_the_edge(browse: Browse, width: int) -> None:  # noqa: F811
    long = samples.case(paths=["a/" + "very-long-name-" * 20], why=["x" * 300])
    dom = browse(page(long, samples.healthy(), samples.abstention(), measured=True), size=(width, 900))
    assert int(dom.one(tag="body")[1]["data-over"] or "999") <= 0


@pytest.mark.parametrize("dark", [False, True])
def test_screenshot_in_light_and_dark(browse: Browse, tmp_path: Path, dark: bool) -> None:  # noqa: F811
    picture = tmp_path / "diagnosis.png"
    browse(page(samples.case()), size=(1280, 1000), dark=dark, arguments=("--screenshot=%s" % picture,))
    assert png_size(picture) == (1280, 1000) and picture.stat().st_size > 30_000


def test_colours_differ_between_light_and_dark(browse: Browse) -> None:  # noqa: F811
    def colours(dark: bool) -> List[Any]:
        return [attrs["data-bg"] for _t, attrs, _x in browse(page(samples.case(), measured=True), dark=dark).all("band")]

    assert colours(False) != colours(True)


def test_a_case_without_times_shows_phases_in_their_order(browse: Browse) -> None:  # noqa: F811
    lane = {"node": "n", "rank": "TP0", "reached": "engine_init", "phases": [{"phase": phase, "start": None, "end": None} for phase, _s in samples.STEPS]}
    dom = browse(page(samples.case(timeline={"lanes": [lane]}), measured=True))
    places = [int(attrs["data-x"] or 0) for _t, attrs, _x in dom.all("band")]
    assert len(places) == 4 and places == sorted(places)
    assert "Without times" in "".join(text for _t, _a, text in dom.all("legend"))
