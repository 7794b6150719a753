# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ramp as a picture: throughput and time to the first token over the number of streams. Plain SVG, nothing fetched."""

from __future__ import annotations

import math
from typing import Any, List, Mapping, Optional, Sequence, Tuple

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 70, 24, 44


def svg(ramp: Mapping[str, Any]) -> str:
    """An SVG element of one ramp's data; empty when it has no step with an answer. Holds numbers only, no text from outside."""
    levels = [lv for lv in ramp.get("levels") or [] if lv["ok"] > 0]
    if not levels:
        return ""
    streams = [int(lv["concurrency"]) for lv in levels]
    rates = [float(lv["output_tps"]) for lv in levels]
    medians = [lv["ttft_ms"]["p50"] for lv in levels]
    tails = [lv["ttft_ms"]["p95"] for lv in levels]
    top_rate = _nice(max(rates))
    top_time = _nice(max([t for t in medians + tails if t is not None] or [1.0]))
    at = _across(streams)
    parts = [
        '<svg viewBox="0 0 %d %d" role="img" aria-label="Throughput and time to the first token over the number of streams">' % (WIDTH, HEIGHT),
        '<rect x="%d" y="%d" width="%d" height="%d" class="frame"/>' % (LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM),
    ]
    for step in range(5):
        share = step / 4.0
        y = _down(share)
        parts.append('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" class="grid"/>' % (LEFT, y, WIDTH - RIGHT, y))
        parts.append('<text x="%d" y="%.1f" class="left">%s</text>' % (LEFT - 8, y + 4, _short(top_rate * share)))
        parts.append('<text x="%d" y="%.1f" class="right">%s</text>' % (WIDTH - RIGHT + 8, y + 4, _short(top_time * share)))
    for count, x in zip(streams, at):
        parts.append('<text x="%.1f" y="%d" class="below">%d</text>' % (x, HEIGHT - BOTTOM + 18, count))
    bend = ramp.get("knee")
    if bend in streams:
        x = at[streams.index(bend)]
        parts.append('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" class="knee"/>' % (x, TOP, x, HEIGHT - BOTTOM))
        parts.append('<text x="%.1f" y="%d" class="kneetext">knee</text>' % (x + 5, TOP + 14))
    parts.append(_line(at, [r / top_rate for r in rates], "rate"))
    parts.append(_line(at, [None if t is None else t / top_time for t in medians], "median"))
    parts.append(_line(at, [None if t is None else t / top_time for t in tails], "tail"))
    parts.append('<text x="%d" y="%d" class="left axis">tokens/s</text>' % (LEFT - 8, TOP - 8))
    parts.append('<text x="%d" y="%d" class="right axis">ms</text>' % (WIDTH - RIGHT + 8, TOP - 8))
    parts.append('<text x="%d" y="%d" class="below axis">streams</text>' % ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6))
    parts.append("</svg>")
    return "".join(parts)


def _across(streams: Sequence[int]) -> List[float]:
    """Positions on a logarithmic axis."""
    low, high = math.log(max(1, min(streams))), math.log(max(1, *streams))
    room = WIDTH - LEFT - RIGHT - 40
    return [LEFT + 20 + (room * (math.log(max(1, s)) - low) / (high - low) if high > low else room / 2.0) for s in streams]


def _down(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _line(at: Sequence[float], shares: Sequence[Optional[float]], name: str) -> str:
    points: List[Tuple[float, float]] = [(x, _down(s)) for x, s in zip(at, shares) if s is not None]
    dots = "".join('<circle cx="%.1f" cy="%.1f" r="3" class="%s"/>' % (x, y, name) for x, y in points)
    return '<polyline points="%s" class="%s"/>%s' % (" ".join("%.1f,%.1f" % point for point in points), name, dots)


def _nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten above `value`."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _short(value: float) -> str:
    return "%g" % value if value < 10000 else "%gk" % (value / 1000)
