# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which names of variables stand for secrets."""

from __future__ import annotations

import re

SECRET = re.compile(r"(?:api_?key|token|passw(?:or)?d|secret|credential)s?\Z", re.IGNORECASE)
