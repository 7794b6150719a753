# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the first failure of engines that did not become ready, over all their ranks."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Optional

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.checks.wording import short
from ..module_utils.deploy.failure import Rank, explain

display = Display()

MOST_LINES = 8


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.start_failure``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, variables)
        result["changed"] = False
        _valid, args = self.validate_argument_spec(argument_spec={
            "register": {"type": "str", "default": "vllm_deploy_wait"}, "service": {"type": "str", "default": "service_result"},
            "check": {"type": "str", "default": "vllm_deploy_check"}, "log_dir": {"type": "path", "default": "reports/deploy"}})
        batch = [str(name) for name in variables.get("ansible_play_batch") or []]
        # Hosts that failed are no longer part of the batch; those of the play that were reached in it are known by what they registered.
        names = list(dict.fromkeys(batch + [str(name) for name in variables.get("ansible_play_hosts_all") or []]))
        ranks: Dict[str, Rank] = {}
        engines: Dict[str, List[str]] = {}
        for name in names:
            host = variables["hostvars"][name]
            check = host.get(args["check"]) or {}
            if name not in batch and not _failed(host, args):
                continue
            ranks[name] = rank(name, host, args)
            engines.setdefault(str((check.get("peers") or [name])[0]), []).append(name)
        failed = {head: members for head, members in engines.items() if not all(ranks[name].ready for name in members)}
        cases = {head: explain([ranks[name] for name in members]) for head, members in failed.items()}
        for head, case in cases.items():
            display.display("\nWHY IT FAILED   engine of %s" % head, color="red")
            for text in told(case):
                display.display("  " + text)
        result.update(hosts=[name for members in failed.values() for name in members], cases=cases,
                      sentence=" ".join(case["sentence"] for case in cases.values()))
        self._write(os.path.abspath(os.path.expanduser(args["log_dir"])), cases)
        return result

    def _write(self, folder: str, cases: Mapping[str, Any]) -> None:
        path = os.path.join(folder, "failure.json")
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(cases, file, indent=2)
        except OSError as exc:
            display.warning("the verdict could not be written to %s: %s" % (path, exc.strerror))


def _failed(host: Mapping[str, Any], args: Mapping[str, Any]) -> bool:
    return any(isinstance(host.get(args[key]), Mapping) and bool(host[args[key]].get("failed") or host[args[key]].get("unreachable"))
               for key in ("register", "service"))


def rank(name: str, host: Mapping[str, Any], args: Mapping[str, Any]) -> Rank:
    """How the rank on host `name` ended, from what it registered."""
    wait = host.get(args["register"])
    wait = wait if isinstance(wait, Mapping) else {}
    service = host.get(args["service"])
    service = service if isinstance(service, Mapping) else {}
    error = str(service.get("msg") or "") if service.get("failed") else ""
    if not error and wait.get("failed") and "ready" not in wait:
        error = str(wait.get("msg") or "")
    journal = b""
    if wait.get("log"):
        try:
            with open(str(wait["log"]), "rb") as file:
                journal = file.read()
        except OSError:
            journal = b""
    check = host.get(args["check"])
    # A service that was left as it was is not waited for.
    idle = not wait and not error and isinstance(check, Mapping) and bool(check.get("settled")) and not service.get("changed")
    return Rank(name, bool(wait.get("ready")) or idle, str(wait.get("phase") or "container_init"), "" if wait.get("peer") else str(wait.get("why") or ""),
                error, journal)


def told(case: Mapping[str, Any]) -> List[str]:
    """The verdict for a terminal."""
    first = case.get("first_failure")
    lines = []
    if isinstance(first, Mapping) and first.get("text"):
        lines += ["first failure   %s" % short(first["text"], 400), "where           %s, line %s" % (short(first.get("file"), 100), first.get("line"))]
        lines += ["phase, class    %s, %s%s" % (case.get("phase"), case.get("class"), " (%s)" % case["cause"] if case.get("cause") else "")]
        lines += ["confidence      %s" % case.get("confidence")]
    for word in (case.get("why"), ):
        lines += ["why             %s" % short(item, 300) for item in ([word] if isinstance(word, str) else word or [])][:MOST_LINES]
    if case.get("next_action"):
        lines.append("next            %s" % short(case["next_action"], 400))
    return lines or [short(case.get("sentence", ""), 400)]
