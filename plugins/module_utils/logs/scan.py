# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the lines of a log that matter, at the speed of C."""

from __future__ import annotations

from typing import Iterable


class Scanner:
    """Lines that hold one of the wanted literals."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = tuple(wanted)
