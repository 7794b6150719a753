# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow the start of one rank from the controller, and end together with the other ranks of its engine."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
import zlib
from typing import Any, Dict, List, Mapping, Optional

from ansible import constants as C
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.deploy import progress

display = Display()

LOOK_S = 8.0
SILENT_S = 90.0
"""Seconds for which a node may not answer before its start counts as failed: a loaded node is slow, not gone."""
GRACE_S = 20.0
"""Seconds that a rank which was ended by another's failure still gets to print its own last words."""


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.wait_ready``; its documentation stands in the module of the same name."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, variables)
        result["changed"] = False
        _valid, args = self.validate_argument_spec(argument_spec={
            "service": {"type": "str", "default": "vllm"}, "peers": {"type": "list", "elements": "str", "default": []},
            "cursor": {"type": "str", "default": ""}, "before": {"type": "str", "default": ""}, "limits": {"type": "dict", "default": {}},
            "log_dir": {"type": "path", "default": "reports/deploy"}, "interval": {"type": "float", "default": 5.0}})
        try:
            progress.limits(args["limits"])
        except ValueError as exc:
            raise AnsibleActionFail(str(exc)) from None
        if self._play_context.check_mode:
            result.update(ready=True, phase="", waited=0.0, msg="Nothing is waited for in check mode.")
            return result
        node = str(variables["inventory_hostname"])
        self.variables = variables
        self.args = args
        self.options = {name: args[name] for name in ("service", "cursor", "before")}
        board = Board(str(self._task._uuid), args["peers"] or [node], node)
        page = Page(node, board.peers, args["interval"])
        outcome = self._wait(board, page)
        result.update(outcome)
        if not outcome["ready"]:
            result["failed"] = True
            result["log"] = self._keep_journal(node)
            result["msg"] = "%s is not ready: %s" % (node, outcome["why"])
        return result

    def _wait(self, board: Board, page: Page) -> Dict[str, Any]:
        """Look until the rank is ready or given up."""
        began = entered = answered = time.monotonic()
        look: Dict[str, Any] = {}
        now = progress.Progress()
        ended_by = ""

        def outcome(ready: bool, why: str = "", peer: str = "") -> Dict[str, Any]:
            seconds = round(time.monotonic() - began, 1)
            if not ready and not peer:
                board.put("failed", why)
            made = {"ready": ready, "phase": now.phase, "waited": seconds, "why": why, "peer": peer, "invocation_id": look.get("invocation", "")}
            page.end(ready, now, seconds, why)
            return made

        while True:
            found = self._look(look)
            if found is None:
                if time.monotonic() - answered > SILENT_S:
                    return outcome(False, "the node has not answered for %d s" % SILENT_S)
                time.sleep(2)
                continue
            answered = time.monotonic()
            later = progress.from_dict(found["progress"])
            if (later.phase, later.invocation) != (now.phase, now.invocation):
                entered = answered
            restarts = found["restarts"] - look.get("restarts", found["restarts"])
            look, now = found, later
            # Of a service that served before there is nothing to tell.
            if now.last or look["state"] != "ready":
                page.show(now, look.get("memory"), "it ended with %s and is started again" % look["ended"] if restarts > 0 else "")
            if look["state"] == "failed":
                return outcome(False, look["why"])
            if look["state"] == "ready" and (not look["headless"] or board.ready(board.peers[0]) or board.peers == [board.node]):
                board.put("ready", "")
                return outcome(True)
            failed = board.failed()
            if failed and not ended_by:
                ended_by, entered = failed, answered
            if ended_by and answered - entered > GRACE_S:
                return outcome(False, "%s failed" % ended_by, ended_by)
            if ended_by:
                continue
            limits = progress.limits(self.args["limits"], look["ready_s"])
            limit = limits.get(now.phase, limits["api_ready"])
            if answered - entered > limit:
                last = "; its last line: %s" % now.last if now.last else "; %s" % look["why"] if look["why"] else ""
                return outcome(False, "%s took longer than its limit of %d s (deploy_phase_limits)%s" % (now.phase, limit, last))

    def _look(self, before: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
        """One run of the module on the node, None when it did not answer."""
        arguments = dict(self.options, state=dict(before), seconds=LOOK_S)
        try:
            done = self._execute_module(module_name="inferops.vllm.wait_ready", module_args=arguments, task_vars=self.variables)
        except AnsibleConnectionFailure:
            return None
        if done.get("failed") or not isinstance(done.get("look"), dict):
            if done.get("unreachable"):
                return None
            raise AnsibleActionFail("the start could not be followed: %s" % done.get("msg", "the module gave no answer"))
        return done["look"]

    def _keep_journal(self, node: str) -> str:
        """Write the journal since the start to the controller; its path, empty when there is none."""
        try:
            done = self._execute_module(
                module_name="inferops.vllm.wait_ready", module_args=dict(self.options, collect=True), task_vars=self.variables)
            text = zlib.decompress(base64.b64decode(done["journal"]))
        except (AnsibleConnectionFailure, KeyError, ValueError, zlib.error) as exc:
            display.warning("the journal of %s could not be fetched: %s" % (node, exc))
            return ""
        folder = os.path.abspath(os.path.expanduser(self.args["log_dir"]))
        path = os.path.join(folder, node + ".log")
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(text)
        except OSError as exc:
            display.warning("the journal of %s could not be kept: %s: %s" % (node, path, exc.strerror))
            return ""
        return path


class Board:
    """Where the ranks of one engine, each followed by a process of its own on this machine, tell each other how they are.

    Ranks that Ansible has not begun to follow (more hosts than forks) are not waited for: the head is ready only when all ranks have joined.
    """

    def __init__(self, task: str, peers: List[str], node: str) -> None:
        self.peers = peers
        self.node = node
        key = hashlib.sha256("\0".join([task] + peers).encode()).hexdigest()[:16]
        self.folder = os.path.join(C.DEFAULT_LOCAL_TMP, "vllm-wait-" + key)
        os.makedirs(self.folder, exist_ok=True)

    def put(self, state: str, why: str) -> None:
        path = os.path.join(self.folder, self.node)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump({"state": state, "why": why}, file)
        os.replace(path + ".new", path)

    def state(self, node: str) -> str:
        try:
            with open(os.path.join(self.folder, node), encoding="utf-8") as file:
                return str(json.load(file)["state"])
        except (OSError, ValueError, KeyError):
            return ""

    def ready(self, node: str) -> bool:
        return self.state(node) == "ready"

    def failed(self) -> str:
        """A rank of the engine that failed, empty when none has."""
        return next((name for name in self.peers if name != self.node and self.state(name) == "failed"), "")


class Page:
    """Lines for a person: each change of phase, and in between one line every few seconds at most."""

    def __init__(self, node: str, peers: List[str], interval: float) -> None:
        self.node = node
        self.width = max([len(name) for name in peers] + [len(node)])
        self.interval = interval
        self.shown = ("", "")
        self.at = 0.0

    def show(self, now: progress.Progress, memory: Optional[float], event: str) -> None:
        text = progress.line(self.node, now, memory, self.width)
        if event:
            display.display("%s  %s" % (self.node.ljust(self.width), event), color="yellow")
        if now.phase == self.shown[0] and (text == self.shown[1] or time.monotonic() - self.at < self.interval):
            return
        display.display(text)
        self.shown, self.at = (now.phase, text), time.monotonic()

    def end(self, ready: bool, now: progress.Progress, seconds: float, why: str) -> None:
        if ready and not self.shown[0]:
            return
        text = "ready after %.0f s" % seconds if ready else "not ready after %.0f s, in %s: %s" % (seconds, now.phase, why)
        display.display("%s  %s" % (self.node.ljust(self.width), text), color="green" if ready else "red")
