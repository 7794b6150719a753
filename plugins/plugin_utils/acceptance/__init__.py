# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of an acceptance: one document, and its forms for a terminal, a browser, a CI system and Prometheus."""

from __future__ import annotations

from .baseline import compare
from .build import SCHEMA, document
from .console import terminal
from .files import write

__all__ = ("SCHEMA", "compare", "document", "terminal", "write")
