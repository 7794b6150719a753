# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the acceptance has to ask and to compare, out of plan.json."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.serving import requests
from ..plugin_utils.acceptance import baseline, build

FAIL_ON = ("failed", "not_verified", "never")


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.verify_plan``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        result: Dict[str, Any] = super().run(tmp, task_vars or {})
        result["changed"] = False
        _valid, args = self.validate_argument_spec(argument_spec={
            "plan": {"type": "path"},
            "endpoints": {"type": "list", "elements": "str", "default": []},
            "route": {"type": "str", "default": ""},
            "model": {"type": "str", "default": ""},
            "baseline": {"type": "path"},
            "tolerate": {"type": "list", "elements": "str", "default": []},
            "fail_on": {"type": "str", "choices": list(FAIL_ON), "default": "failed"},
        })
        found = build.prepared(read_plan(args["plan"]))
        found["endpoints"] = args["endpoints"] or found["endpoints"]
        found["route"] = args["route"] or found["route"]
        found["model"] = args["model"] or found["model"]
        if not found["endpoints"] and not found["route"]:
            raise AnsibleActionFail("there is nothing to verify: give verify_endpoints, or the plan of what was deployed (plan_dir)")
        if not found["model"]:
            raise AnsibleActionFail("verify_model: without a plan the name under which the model is served must be given")
        wrong = requests.unusable_patterns(args["tolerate"])
        if wrong:
            raise AnsibleActionFail("verify_tolerate: %s" % wrong)
        if args["baseline"]:
            try:
                baseline.load(args["baseline"])
            except baseline.BaselineError as exc:
                raise AnsibleActionFail(str(exc)) from None
        result.update(found)
        return result


def read_plan(path: Optional[str]) -> Dict[str, Any]:
    """plan.json, or an empty table when none is there.

    Raises:
        AnsibleActionFail: the file is there but is no plan.
    """
    if not path or not os.path.exists(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
    except OSError as exc:
        raise AnsibleActionFail("the plan %s cannot be read: %s" % (path, exc.strerror)) from None
    except ValueError:
        plan = None
    if not isinstance(plan, dict) or not isinstance(plan.get("nodes"), dict):
        raise AnsibleActionFail("%s is no plan; make one with inferops.vllm.plan" % path)
    return plan
