#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_plan
short_description: Tell what an acceptance has to ask, out of the plan
version_added: 0.2.0
description:
  - Reads C(plan.json) on the controller and returns endpoints, model, version, features and flags for M(inferops.vllm.verify_requests).
  - Refuses a plan, a baseline or a call that names nothing to verify, before anything is asked.
options:
  plan:
    description: Path of C(plan.json). One that is not there counts as no plan.
    type: path
  endpoints:
    description: URLs of all API servers, instead of those of the plan.
    type: list
    elements: str
    default: []
  route:
    description: URL that the users take, instead of the router of the plan.
    type: str
    default: ""
  model:
    description: Name under which the model is served, instead of that of the plan.
    type: str
    default: ""
  baseline:
    description: An earlier C(verify.json), looked at so that a wrong path is refused at once.
    type: path
  tolerate:
    description: As in M(inferops.vllm.verify), so that a pattern that is no regular expression is refused at once.
    type: list
    elements: str
    default: []
  fail_on:
    description: As in M(inferops.vllm.verify), so that a wrong word is refused at once.
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
  - This is an action plugin; it runs on the controller and needs no connection to a host.
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: See what is to be verified
  inferops.vllm.verify_plan:
    plan: plan/plan.json
  run_once: true
  register: asked
"""

RETURN = r"""
endpoints:
  description: URLs of all API servers.
  returned: success
  type: list
  elements: str
route:
  description: URL of the router, empty when there is none.
  returned: success
  type: str
model:
  description: Name under which the model is served.
  returned: success
  type: str
version:
  description: Version of vLLM that was planned, empty when it is not known.
  returned: success
  type: str
features:
  description: What is served.
  returned: success
  type: list
  elements: str
flags:
  description: Planned flags of C(vllm serve) of the first node.
  returned: success
  type: dict
engine:
  description: Container engine, V(none) without containers.
  returned: success
  type: str
units:
  description: Unit that serves, by node.
  returned: success
  type: dict
engines:
  description: Engines with the names of their nodes, in rank order.
  returned: success
  type: list
  elements: dict
concurrency:
  description: Streams at once that the cluster must hold when nobody says how many, 8 or the slots of all engines where these are fewer.
  returned: success
  type: int
"""
