# SPDX-License-Identifier: GPL-3.0-or-later
"""Real nodes to test on: containers, virtual machines, a registry and a model, from one command."""

from __future__ import annotations
