# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop a service from the controller, showing the requests that are left."""

from __future__ import annotations

import time
from typing import Any, Dict, Optional

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

INTERVAL_S = 5.0


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.stop_service``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, variables)
        _valid, args = self.validate_argument_spec(argument_spec={
            "service": {"type": "str", "default": "vllm"}, "force": {"type": "bool", "default": False}, "limit": {"type": "float", "default": 3600.0}})
        node = str(variables["inventory_hostname"])
        began = shown = time.monotonic()
        step = "begin"
        while True:
            done = self._execute_module(module_name="inferops.vllm.stop_service", module_args=dict(args, step=step), task_vars=variables)
            look = done.get("look")
            if done.get("failed") or done.get("unreachable") or not isinstance(look, dict):
                result.update(done)
                return result
            if step == "begin":
                result["changed"] = bool(done.get("changed"))
            step = "look"
            seconds = time.monotonic() - began
            result.update(look=look, waited=round(seconds, 1))
            if not look["up"]:
                if result["changed"] and not self._play_context.check_mode:
                    display.display("%s  stopped after %.0f s" % (node, seconds), color="green")
                return result
            if seconds > args["limit"]:
                result.update(failed=True, msg="%s.service on %s has not ended for %.0f s (%s); -e stop_force=true kills it" % (
                    args["service"], node, seconds, look["state"]))
                return result
            if time.monotonic() - shown >= INTERVAL_S or seconds < INTERVAL_S:
                left = "%d requests left" % look["requests"] if look["requests"] is not None else look["state"]
                display.display("%s  stops: %s, %.0f s" % (node, left, seconds))
                shown = time.monotonic()
