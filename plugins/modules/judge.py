#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: judge
short_description: Judge all nodes of a play against a model's needs and against each other
version_added: 0.1.0
description:
  - Takes what M(inferops.vllm.node_facts) returned for every host of the play, compares it with the profile of the model, with the
    declared hardware, strategy and interconnect, and with all other nodes, and returns findings and a verdict for each node.
  - Runs once, on the controller, also when no host could be reached. Prints the report and writes it as JSON, HTML, Markdown and JUnit XML.
  - Fails when O(fail_on) says so. When nothing but unreachable hosts stands in the way, the host is reported as unreachable,
    so that C(ansible-playbook) ends with 4 and not with 2.
  - C(--tags) and C(--skip-tags) with the names of check groups (C(driver), C(gpu), C(fabric), C(rdma), C(gpudirect), C(container),
    C(image), C(host), C(storage), C(plan), C(drift)) select what is judged.
extends_documentation_fragment:
  - inferops.vllm.cluster
options:
  read:
    description:
      - Name of the variable in which each host registered the result of M(inferops.vllm.node_facts).
    type: str
    default: vllm_preflight_read
  validate_only:
    description:
      - Only check the words below against what is allowed, before any node is touched.
    type: bool
    default: false
  fail_on:
    description:
      - What makes the task fail. V(block) means a blocked or unknown node, V(warn) any node that is not ready, V(never) nothing.
    type: str
    choices: [block, warn, never]
    default: block
  report_dir:
    description: Folder on the controller for the report, made when it is not there. Relative to the current folder.
    type: path
    default: reports
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: Nothing on a node is changed in either mode; the report on the controller is written in both.
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: Nothing is ever changed.
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - This is an action plugin; it runs on the controller and needs no connection to a host.
  - Give it C(run_once) on the play of the nodes themselves. On a play of its own for C(localhost) it would be skipped by C(--limit).
seealso:
  - module: inferops.vllm.node_facts
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Judge GPU nodes
  hosts: vllm_nodes
  gather_facts: false
  tasks:
    - name: Read the node
      inferops.vllm.node_facts:
      ignore_unreachable: true
      register: vllm_preflight_read

    - name: Judge the nodes
      inferops.vllm.judge:
        hardware: b300
        interconnect: rdma
        fail_on: warn
      run_once: true
"""

RETURN = r"""
verdicts:
  description: Verdict of each node, one of V(ready), V(warn), V(blocked), V(unknown), V(unreachable).
  returned: success, when judged
  type: dict
  sample: {node-01: ready, node-02: blocked}
summary:
  description: Nodes by verdict, findings by status, and the ids of blocking findings with their counts.
  returned: success, when judged
  type: dict
report:
  description: Paths of the files that were written, by format. When the task fails, the path of the JSON file alone.
  returned: success, when judged
  type: dict
  sample: {json: /srv/reports/preflight.json, html: /srv/reports/preflight.html}
context:
  description: What the nodes were judged as, every V(auto) resolved, and how each value came about.
  returned: success
  type: dict
"""
