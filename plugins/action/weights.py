# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller's side of weights: shows how far a download is."""

from __future__ import annotations

from ansible_collections.inferops.vllm.plugins.plugin_utils.long_work import LongAction


class ActionModule(LongAction):
    """Run the module of the same name, with progress."""

    module = "inferops.vllm.weights"
