#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: remediate
short_description: Decide what is mended next, for all hosts of the play at once
version_added: 0.2.0
description:
  - Judges all hosts of the play from what M(inferops.vllm.node_facts) registered, looks every fault up in the table of remedies, and says which
    remedy is done on which hosts next. It changes no host; the role P(inferops.vllm.remediation#role) does what it says.
  - It runs on the controller, once for the whole play (use C(run_once)).
extends_documentation_fragment:
  - inferops.vllm.cluster
options:
  step:
    description:
      - V(validate) looks at the words alone. V(plan) says what would be done and begins the report. V(next) chooses the next round.
        V(judge) compares what was before and after a round. V(report) ends the report and fails when something is left, or when a service that ran
        before does not serve again.
    type: str
    choices: [validate, plan, next, judge, report]
    required: true
  read:
    description: Name under which the facts of each host are registered.
    type: str
    default: remediation_read
  run:
    description: Id of this run; left out means the time.
    type: str
    default: ""
  report_dir:
    description: Folder of C(remediation.json) on the controller.
    type: path
    default: reports
  failed:
    description: Host → message of the task that failed on it in this round, for V(judge).
    type: dict
    default: {}
  allow:
    description:
      - What may be done beside changes that harm nobody. V(reboot) restarts machines, V(kill) ends processes that are not ours, V(driver) changes,
        unloads or resets the driver.
    type: list
    elements: str
    choices: [reboot, kill, driver]
  remedy:
    description: The one remedy to do, by its id, on all hosts of the play. Guards hold all the same.
    type: str
  areas:
    description: Findings that are looked at, by their ids or what these begin with, such as V(driver).
    type: list
    elements: str
  budget:
    description: Remedies that one node gets in 24 hours, before a person has to look.
    type: int
    default: 3
  max_nodes:
    description: Nodes of one failure domain that are changed at the same time.
    type: int
    default: 1
  diagnosis:
    description: A document of C(ansible-playbook inferops.vllm.diagnose -e diagnose_json=FILE), whose classes are faults too.
    type: dict
  verify:
    description: Stages of the acceptance that V(report) waits for where a service ran before; left out means all three, empty none.
    type: list
    elements: str
    choices: [start, request, prefix]
  service_plan:
    description: Path of C(plan.json) of what is deployed, for V(next).
    type: path
    default: plan/plan.json
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: It changes no host.
  idempotent:
    description: A second run changes nothing.
    support: full
seealso:
  - module: inferops.vllm.remediation_state
  - module: inferops.vllm.judge
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Say what would be done
  inferops.vllm.remediate:
    step: plan
    allow: [driver]
  run_once: true
  register: remediation_plan
"""

RETURN = r"""
idle:
  description: There is nothing that may be done.
  returned: with O(step=plan)
  type: bool
run:
  description: Id of this run.
  returned: with O(step=plan)
  type: str
  sample: 20261129T221000Z
act:
  description: Hosts that do the remedy now; empty when nothing is left to do.
  returned: with O(step=next)
  type: list
  elements: str
stop:
  description: Hosts whose service is drained and stopped first.
  returned: with O(step=next)
  type: list
  elements: str
stopped:
  description: Hosts whose service is to be started at the end.
  returned: with O(step=next)
  type: list
  elements: str
prove:
  description: Hosts whose service ran before and is to be verified now.
  returned: with O(step=next), when nothing is left to do
  type: list
  elements: str
peers:
  description: Host → all of RV(prove) that are ranks of its engine.
  returned: with O(step=next), when nothing is left to do
  type: dict
plan:
  description: Path of the plan with these hosts alone.
  returned: with O(step=next), when nothing is left to do
  type: str
remedy:
  description: The remedy.
  returned: with O(step=next), when there is one
  type: str
  sample: peermem_load
steps:
  description: Roles and files of tasks that do it.
  returned: with O(step=next), when there is one
  type: list
  elements: dict
  sample: [{role: inferops.vllm.rdma, file: peermem}]
undo:
  description: Role and file of tasks that take it back; empty when nothing does.
  returned: with O(step=next), when there is one
  type: list
  elements: dict
files:
  description: What its steps may write.
  returned: with O(step=next), when there is one
  type: list
  elements: str
interfaces:
  description: Host → interfaces of planned HCAs that were taken down.
  returned: with O(step=next), when there is one
  type: dict
recover:
  description: It is the remedy of an earlier run that is ended, not one that begins.
  returned: with O(step=next), when there is one
  type: bool
outcomes:
  description: Host → C(mended), C(unmended), C(worse), C(why).
  returned: with O(step=judge)
  type: dict
report:
  description: Path of the report.
  returned: with O(step=plan) and O(step=report)
  type: str
left:
  description: Host → blocking faults that are left.
  returned: with O(step=report)
  type: dict
"""
