# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work of many minutes on a node: started by one call of a module, watched by short ones, told on the terminal meanwhile.

The module that is run takes two more options: with ``background`` it starts its work as a job and returns ``job``, unless there is
nothing to do; with ``job`` it says how far that is, and in the end what the work returned.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Optional, Tuple

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

EVERY = 15.0
"""Seconds between two lines on the terminal."""
LONGEST_WAIT = 5.0


class LongAction(ActionBase):  # type: ignore[misc]
    """Runs the module ``module`` and shows a line of progress while it works."""

    module = ""
    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """Start, watch, return what the work returned."""
        task_vars = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        own = bool(arguments.get("job")) or "background" in arguments
        if self._task.async_val or own:
            result.update(self._execute_module(module_name=self.module, module_args=arguments, task_vars=task_vars, wrap_async=self._task.async_val))
            return result
        told = self._execute_module(module_name=self.module, module_args=dict(arguments, background=True), task_vars=task_vars)
        job = told.get("job")
        if job and not told.get("failed"):
            told = self._watch(str(job), str(task_vars.get("inventory_hostname") or ""), arguments, task_vars)
        told.pop("job", None)
        result.update(told)
        return result

    def _watch(self, job: str, host: str, arguments: Dict[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        wait, shown, before, lost = 1.0, time.monotonic(), None, 0
        while True:
            time.sleep(wait)
            wait = min(LONGEST_WAIT, wait * 1.5)
            told: Dict[str, Any] = self._execute_module(module_name=self.module, module_args=self.job_arguments(job, arguments), task_vars=task_vars)
            if told.get("unreachable") and lost < 5:
                # The work goes on without us; a connection that comes back finds it.
                lost += 1
                continue
            if not told.get("running"):
                return told
            lost = 0
            now = time.monotonic()
            if now - shown >= EVERY:
                shown = now
                progress = told.get("progress") or {}
                display.display("  %s: %s" % (host, line(progress, before)))
                before = progress

    def job_arguments(self, job: str, arguments: Dict[str, Any]) -> Dict[str, Any]:
        """Options of the short call: no secret is among them."""
        return {"job": job}


def line(progress: Dict[str, Any], before: Optional[Dict[str, Any]]) -> str:
    """One line about a job's progress, with its speed since the line `before`.

    ``image: 4.1 of 9.8 GB (42 %), 85 MB/s, about 1 min left``
    """
    what, done, total = str(progress.get("what") or "working"), _count(progress.get("done")), _count(progress.get("total"))
    if not done and not total:
        return what
    text = "%s: %s" % (what, "%.1f of %.1f GB (%d %%)" % (done / 1e9, total / 1e9, done * 100 // total) if total else "%.1f GB" % (done / 1e9))
    speed, left = _speed(progress, before), total - done
    if speed <= 0:
        return text
    text += ", %.0f MB/s" % (speed / 1e6)
    return text + (", about %s left" % _time(left / speed) if left > 0 else "")


def _speed(progress: Dict[str, Any], before: Optional[Dict[str, Any]]) -> float:
    if not before or before.get("what") != progress.get("what"):
        return 0.0
    spent: Tuple[float, float] = float(progress.get("at") or 0), float(before.get("at") or 0)
    seconds = spent[0] - spent[1]
    return (_count(progress.get("done")) - _count(before.get("done"))) / seconds if seconds > 0 else 0.0


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _time(seconds: float) -> str:
    return "%.0f s" % seconds if seconds < 90 else "%.0f min" % (seconds / 60) if seconds < 5400 else "%.1f h" % (seconds / 3600)
