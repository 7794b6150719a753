# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller's side of node_facts: a recorded node's folder is found beside the inventory."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Resolve ``root`` against the inventory's folder, then run the module of the same name."""

    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        task_vars = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        root = arguments.get("root")
        if root:
            root = os.path.expanduser(str(root))
            if not os.path.isabs(root):
                root = os.path.join(str(task_vars.get("inventory_dir") or "."), root)
            arguments["root"] = os.path.abspath(root)
        else:
            arguments.pop("root", None)
        result.update(self._execute_module(
            module_name="inferops.vllm.node_facts", module_args=arguments, task_vars=task_vars, wrap_async=self._task.async_val))
        return result
