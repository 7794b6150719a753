#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify
short_description: Judge an acceptance in five stages and report it
version_added: 0.2.0
description:
  - Takes what M(inferops.vllm.verify_node) read on every host of the play and what M(inferops.vllm.verify_requests) was answered, judges the
    five stages C(start), C(request), C(prefix), C(concurrency) and C(stability), and writes C(verify.json), C(verify.html),
    C(verify.junit.xml), C(verify.prom) and the requests for replay.
  - A stage that was not run is V(not_verified), never V(passed).
  - Does not fail because of the verdict; RV(accepted) says whether O(fail_on) lets it pass.
options:
  plan:
    description: Path of C(plan.json). One that is not there counts as no plan; then nothing is compared with it.
    type: path
  stages:
    description: Stages that were asked for.
    type: list
    elements: str
    choices: [start, request, prefix, concurrency, stability]
    default: [start, request, prefix, concurrency, stability]
  read:
    description: Variable in which each host registered the reading from before.
    type: str
    default: acceptance_read
  read_served:
    description: The same after stage C(request).
    type: str
    default: acceptance_read_served
  read_ramped:
    description: The same after stage C(concurrency).
    type: str
    default: acceptance_read_ramped
  read_restarted:
    description: The same after the restarts of stage C(stability).
    type: str
    default: acceptance_read_restarted
  read_soaked:
    description: The same after the soak.
    type: str
    default: acceptance_read_soaked
  served:
    description: Result of M(inferops.vllm.verify_requests) for the stages C(start), C(request) and C(prefix).
    type: dict
    default: {}
  ramped:
    description: Result of M(inferops.vllm.verify_requests) for the stage C(concurrency).
    type: dict
    default: {}
  restarts:
    description:
      - Variables in which results of M(inferops.vllm.verify_watch) and M(inferops.vllm.verify_kill) were registered. Those that are not there
        are passed over; one that failed makes stage C(stability) V(not_verified).
    type: list
    elements: str
    default: []
  served_again:
    description: Result of the stage C(request) after the restarts.
    type: dict
    default: {}
  soaked:
    description: Result of the stage C(concurrency) of the soak.
    type: dict
    default: {}
  allow_restart:
    description: Whether restarts were permitted. Without them stage C(stability) is at best V(not_verified).
    type: bool
    default: false
  restart_limit:
    description: Seconds within which the service must be right again after a restart.
    type: float
    default: 600.0
  soak_seconds:
    description: Length of the soak.
    type: float
    default: 0.0
  memory_growth_percent:
    description: Growth of resident memory during the soak that is too much.
    type: float
    default: 10.0
  tolerate:
    description: Regular expressions of warnings in the log that do not count against stages C(request) and C(concurrency).
    type: list
    elements: str
    default: []
  requests:
    description: The request set that was sent, when it was not the built-in one.
    type: list
    elements: dict
    default: []
  baseline:
    description: An earlier C(verify.json) to compare with.
    type: path
  regression_percent:
    description: Change of a number from which on it is a regression. Left out means each number's own (5 for throughput, 10 to 15 for times).
    type: float
  report:
    description: Whether to write the report. Without it only RV(stages), RV(accepted) and RV(sentence) are told.
    type: bool
    default: true
  report_dir:
    description: Folder on the controller for the report, made when it is not there.
    type: path
    default: reports
  fail_on:
    description: What is not accepted. V(failed) a failed stage or a regression, V(not_verified) also a stage without a result, V(never) nothing.
    type: str
    choices: [failed, not_verified, never]
    default: failed
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: Nothing on a node is changed in either mode.
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: Nothing is ever changed.
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - This is an action plugin; it runs on the controller and needs no connection to a host. Give it C(run_once).
seealso:
  - module: inferops.vllm.verify_node
  - module: inferops.vllm.verify_requests
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Judge and report
  inferops.vllm.verify:
    plan: plan/plan.json
    served: "{{ acceptance_served }}"
    stages: [start, request, prefix]
  run_once: true
"""

RETURN = r"""
verdict:
  description: V(passed) when all five stages passed, V(failed) when one failed, else V(not_verified).
  returned: success
  type: str
stages:
  description: Status of each stage.
  returned: success
  type: dict
  sample: {start: passed, request: passed, prefix: failed, concurrency: not_verified, stability: not_verified}
regressions:
  description: Names of the measures that got worse than O(baseline) by more than their threshold.
  returned: success
  type: list
  elements: str
accepted:
  description: Whether O(fail_on) lets the verdict pass.
  returned: success
  type: bool
sentence:
  description: What stands in the way, in one line.
  returned: success
  type: str
report:
  description: Paths of the files that were written.
  returned: when O(report)
  type: dict
"""
