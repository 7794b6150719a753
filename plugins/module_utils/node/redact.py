# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take secrets out of text before it becomes a fact, a report or a snapshot.

Everything that a reader returns has passed through :func:`redact`, so no collector can leak
a token by forgetting to ask.
"""

from __future__ import annotations

import re
from typing import List, Pattern, Tuple

MASK = "<redacted>"

# Names whose value is a secret, in NAME=value, "NAME": "value" and --name value forms.
_NAME = (
    r"[A-Za-z0-9_.-]*(?:api[_-]?key|secret|passw(?:or)?d|passwd|access[_-]?key|private[_-]?key|"
    r"credential|(?:hf|hub|hugging_?face(?:_hub)?|access|auth|bearer|registry|github|gitlab|wandb|"
    r"session|refresh|id)[_-]?token|^token|(?<![A-Za-z])token)(?![A-Za-z]*(?:izer|s\b|_ids?))"
)

_PATTERNS: List[Tuple[Pattern[str], str]] = [
    # Hugging Face, OpenAI-style, GitHub and AWS identifiers, wherever they stand.
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), MASK),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}"), MASK),
    (re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}"), MASK),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), MASK),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), MASK),
    # Authorization and cookie headers.
    (re.compile(r"(?i)\b(authorization|x-api-key|cookie|set-cookie)(\"?\s*[:=]\s*\"?)(?:(bearer|basic)\s+)?[^\s\"']+"), r"\1\2" + MASK),
    (re.compile(r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 " + MASK),
    # user:password@ in a URL.
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s/:@'\"]*):[^\s/@'\"]+@"), r"\1:" + MASK + "@"),
    # docker's config.json.
    (re.compile(r"(\"auth\"\s*:\s*\")[^\"]+"), r"\1" + MASK),
    # --api-key VALUE, separated by a blank, '=' or the NUL of /proc/PID/cmdline.
    (re.compile(r"(?i)(--?" + _NAME + r")([\s=\0]\s*)(?!-)[^\s\0]+"), r"\1\2" + MASK),
    # NAME=value and "NAME": "value".
    (re.compile(r"(?i)(?<![A-Za-z0-9_-])(" + _NAME + r")(\"?\s*[:=]\s*\"?)(?!<redacted>)[^\s\0\"',;}]+"), r"\1\2" + MASK),
]

# A cheap gate: none of the patterns can match a text without one of these.
_GATE = re.compile(
    r"(?i)hf_|sk-|gh[pousr]_|github_pat|AKIA|eyJ|PRIVATE KEY|authorization|x-api-key|cookie|bearer|://[^\s/]*:|"
    r"\"auth\"|key|secret|passw|credential|token"
)


def redact(text: str) -> str:
    """Return `text` with secrets replaced by ``<redacted>``.

    Known token shapes are masked wherever they stand; values are masked by the name in front
    of them (``HF_TOKEN=…``, ``--api-key …``, ``"password": "…"``). Never raises.
    """
    if not _GATE.search(text):
        return text
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
