# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The preflight report: one document, and its forms for a terminal, a browser, a ticket and a CI system.

:func:`document` joins verdicts, findings and a few facts of every node into the table that
``preflight.json`` holds (``docs/schemas/preflight-1.schema.json``). Every other function takes
that document alone, so a report can be drawn again from a stored JSON file. All of them accept
any text in any field and make it harmless in their own form.
"""

from __future__ import annotations

from .build import SCHEMA, document
from .console import terminal
from .files import write
from .junit_xml import junit
from .page import html
from .text import fold
from .ticket import markdown

__all__ = ("SCHEMA", "document", "fold", "html", "junit", "markdown", "terminal", "write")
