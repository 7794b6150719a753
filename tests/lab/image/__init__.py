# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's vLLM image: real vLLM on CPU and a tiny model, built without a container engine."""

from __future__ import annotations
