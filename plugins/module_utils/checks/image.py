# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the group ``image``."""

from __future__ import annotations
