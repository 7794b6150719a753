# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as one HTML file without script that asks nothing of any other place."""

from __future__ import annotations

import os
from typing import Any, Mapping

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..report.text import plain
from .build import TITLES
from .console import number, ramps, share, words
from .curve import svg

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")


def html(document: Mapping[str, Any]) -> str:
    """The whole page; every text is escaped by the template, the pictures hold numbers only."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(plain=plain, words=words, number=number, share=share)
    text = environment.get_template("verify.html.j2").render(
        document=document, titles=TITLES, ramps=[{"data": one, "svg": Markup(svg(one))} for one in ramps(document)])
    # A lone surrogate has no UTF-8 form.
    return text.encode("utf-8", "replace").decode("utf-8")
