#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: evidence_bundle
short_description: Open and close the folder that holds the evidence of all nodes
version_added: 0.2.0
description:
  - With O(state=opened) makes a new folder on the controller, named after the time, and never one that is there already.
  - With O(state=closed) writes C(index.json) and C(SHA256SUMS) beside the archives that M(inferops.vllm.evidence) put there, prints one
    line a node, and names the nodes that did not answer.
options:
  state:
    description: Whether the folder is opened or closed.
    type: str
    choices: [opened, closed]
    required: true
  dest:
    description: Folder that holds the folders of all runs. Needed with O(state=opened). Relative to the current folder.
    type: path
  folder:
    description: The folder that O(state=opened) returned. Needed with O(state=closed).
    type: path
  read:
    description: Name of the variable in which each host registered the result of M(inferops.vllm.evidence).
    type: str
    default: evidence_frozen
  require_all:
    description:
      - Report the host as unreachable when a node did not answer, so that C(ansible-playbook) ends with 4. The archives of the others are
        there in any case.
    type: bool
    default: false
  quiet:
    description: Print nothing.
    type: bool
    default: false
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: Nothing is written; what would be read of each node is printed.
  diff_mode:
    description: Returns details of what changed.
    support: none
  idempotent:
    description: A second run changes nothing.
    support: none
    details: Every O(state=opened) makes a new folder.
notes:
  - This is an action plugin; it runs on the controller and needs no connection to a host. Give it C(run_once).
seealso:
  - module: inferops.vllm.evidence
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Open a bundle
  inferops.vllm.evidence_bundle:
    state: opened
    dest: evidence
  run_once: true
  register: evidence_opened

- name: Freeze the node
  inferops.vllm.evidence:
    dest: "{{ evidence_opened.folder }}"
  ignore_unreachable: true
  register: evidence_frozen

- name: Close the bundle
  inferops.vllm.evidence_bundle:
    state: closed
    folder: "{{ evidence_opened.folder }}"
  run_once: true
"""

RETURN = r"""
folder:
  description: The folder of this run.
  returned: always
  type: str
  sample: /srv/evidence/20260301T120000Z
frozen:
  description: Names of the nodes that were frozen. What was frozen of each stands in C(index.json).
  returned: with O(state=closed)
  type: list
  elements: str
absent:
  description: Nodes that did not answer, with the reason.
  returned: with O(state=closed)
  type: dict
not_frozen:
  description: Nodes that answered and could not be frozen, with the reason.
  returned: with O(state=closed)
  type: dict
"""
