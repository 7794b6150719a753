# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell what failed first, from logs and evidence on the controller."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..plugin_utils import casebook
from ..plugin_utils.report import diagnosis

display = Display()

FAIL_ON = ("failure", "refused", "never")


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.diagnose``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        result: Dict[str, Any] = super().run(tmp, task_vars or {})
        result["changed"] = False
        _valid, args = self.validate_argument_spec(argument_spec={
            "paths": {"type": "list", "elements": "path", "required": True}, "each": {"type": "bool", "default": False},
            "accept_changed": {"type": "bool", "default": False}, "json": {"type": "path"}, "report_dir": {"type": "path", "default": "reports"},
            "fail_on": {"type": "str", "default": "refused"}, "absent": {"type": "dict", "default": {}},
        })
        if args["fail_on"] not in FAIL_ON:
            raise AnsibleActionFail("diagnose_fail_on: %r is not one of %s" % (args["fail_on"], ", ".join(FAIL_ON)))
        if not args["paths"]:
            raise AnsibleActionFail("diagnose_paths: the list is empty; name a log, a folder of logs or a bundle of evidence")
        cases, refused = casebook.cases([str(path) for path in args["paths"]], args["each"], args["accept_changed"])
        documents: List[Dict[str, Any]] = []
        for case in cases:
            found = self._diagnosed(case)
            if "refusal" in found:
                refused.append(casebook.Refusal(", ".join(case.paths)[:300], str(found["refusal"])))
                continue
            absent = {**case.absent, **{str(name): str(why) for name, why in args["absent"].items()}}
            notes = list(case.notes)
            if case.starting and not found.get("failed") and found.get("phase") not in ("api_ready", "prefill", "decode", "shutdown"):
                notes.append("The server had been started less than %d minutes before its logs were taken: it may be loading still." % (
                    casebook.STARTING // 60))
            documents.append({**found, "paths": case.paths, "notes": notes, "absent": absent})
        document = diagnosis.document(documents, refused, time.time())
        folder = os.path.abspath(os.path.expanduser(args["report_dir"]))
        target = os.path.abspath(os.path.expanduser(args["json"])) if args["json"] else ""
        try:
            result["report"] = diagnosis.write(document, folder, target)
        except OSError as exc:
            what = "diagnose_json" if target and exc.filename and str(exc.filename).startswith(target) else "diagnose_report_dir"
            raise AnsibleActionFail("%s: %s cannot be written: %s" % (what, exc.filename or folder, exc.strerror)) from None
        for text, color in diagnosis.terminal(document, where=result["report"]["html"]):
            display.display(text, color=color)
        failed = sum(1 for case in document["cases"] if case["failed"])
        result.update(failed_cases=failed, cases_count=len(document["cases"]), refused=[refusal._asdict() for refusal in refused])
        if len(document["cases"]) == 1:
            result["verdict"] = {key: document["cases"][0][key] for key in ("failed", "phase", "class", "confidence", "next_action")}
        message = _message(failed, len(document["cases"]), len(refused))
        if args["fail_on"] != "never" and (refused or (failed and args["fail_on"] == "failure")):
            # The verdict has just been printed; a failed task repeats everything that it returns.
            return {"failed": True, "changed": False, "report": result["report"], "msg": message}
        return result

    @staticmethod
    def _diagnosed(case: casebook.Case) -> Dict[str, Any]:
        """What the logs of a case tell. A fault of the diagnosis itself costs this case, and is said."""
        from ..module_utils.logs.diagnose import diagnose
        from ..module_utils.logs.sources import Refused

        try:
            found: Dict[str, Any] = diagnose(case.sources, case.paths, not case.starting, dict(case.facts))
            return found
        except Refused as exc:
            return {"refusal": str(exc)}
        except Exception as exc:  # one case must not cost the others
            return {"refusal": "could not be diagnosed: %s: %s" % (type(exc).__name__, str(exc)[:200])}


def _message(failed: int, count: int, refused: int) -> str:
    parts = []
    if failed:
        parts.append("A failure was found" if count == 1 else "Failures were found in %d of %d cases" % (failed, count))
    if refused:
        parts.append("%d %s refused" % (refused, "path was" if refused == 1 else "paths were"))
    return "; ".join(parts) + ". The verdict above says what and why."
