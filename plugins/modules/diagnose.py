#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: diagnose
short_description: Tell what failed first, where, and what to do next
version_added: 0.2.0
description:
  - Reads logs of vLLM and of what it stands on, from any number of nodes and ranks, and names the first failure, the phase and the layer it
    belongs to, and the next step; or says that the first failure is not in these logs, and what to fetch.
  - Reads single logs, folders of logs, packed logs, and the evidence that M(inferops.vllm.evidence) brought. Compressed files are read as they are.
  - Prints a verdict of at most 24 lines, and writes it as JSON and as an HTML timeline.
options:
  paths:
    description:
      - Logs, folders or bundles on the controller. A folder is one case, whose files are the streams of one run. Files that are named one by
        one are together one case.
    type: list
    elements: path
    required: true
  each:
    description: Make every file, and every bundle, a case of its own.
    type: bool
    default: false
  accept_changed:
    description: Read a bundle although a file of it is not what its manifest says. Left out, such a bundle is refused.
    type: bool
    default: false
  json:
    description: Path of the JSON document. Left out, it is C(diagnosis.json) in O(report_dir).
    type: path
  report_dir:
    description: Folder on the controller for C(diagnosis.json) and C(diagnosis.html), made when it is not there. Relative to the current folder.
    type: path
    default: reports
  fail_on:
    description:
      - What makes the task fail. V(failure) means a case that failed, or a path that was refused; V(refused) only a refused path; V(never) nothing.
    type: str
    choices: [failure, refused, never]
    default: refused
  absent:
    description: Nodes of which nothing could be read, with the reason; they are named in the verdict.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: Nothing on a node is touched in either mode; the report on the controller is written in both.
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: Nothing is ever changed.
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - This is an action plugin; it runs on the controller and needs no connection to a host.
seealso:
  - module: inferops.vllm.evidence
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Diagnose what was pasted into a ticket
  inferops.vllm.diagnose:
    paths: [/tmp/ticket-4711.log]

- name: Diagnose a bundle without access to the cluster
  inferops.vllm.diagnose:
    paths: [/srv/evidence/20260301T120000Z]
    fail_on: never
"""

RETURN = r"""
report:
  description: Paths of C(diagnosis.json) and C(diagnosis.html).
  returned: always
  type: dict
  sample: {json: /srv/reports/diagnosis.json, html: /srv/reports/diagnosis.html}
cases_count:
  description: Number of cases.
  returned: success
  type: int
failed_cases:
  description: Number of cases that failed.
  returned: success
  type: int
verdict:
  description: The verdict in short, where there is one case.
  returned: success, with one case
  type: dict
  sample: {failed: true, phase: weights_load, class: weights, confidence: high, next_action: Complete the checkpoint.}
refused:
  description: Paths that could not be read, with the reason.
  returned: success
  type: list
  elements: dict
"""
