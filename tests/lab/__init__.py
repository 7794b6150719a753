# SPDX-License-Identifier: GPL-3.0-or-later
"""Real nodes to test on: container nodes, virtual machines, a registry and a served model, from one command."""

from __future__ import annotations
