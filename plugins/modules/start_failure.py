#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: start_failure
short_description: Say why a start failed, from what all ranks said
version_added: 0.2.0
description:
  - Takes the journals that M(inferops.vllm.wait_ready) kept, finds the first failure of each engine over all its ranks, and says what to do next.
  - Runs once, on the controller, and needs no connection. Does not fail itself, so that a deployment can go back first.
extends_documentation_fragment:
  - action_common_attributes
options:
  register:
    description: Name of the variable in which each host registered the result of M(inferops.vllm.wait_ready).
    type: str
    default: vllm_deploy_wait
  service:
    description: Name of the variable in which each host registered the result of the role C(service).
    type: str
    default: service_result
  check:
    description: Name of the variable in which each host registered the result of M(inferops.vllm.deploy_check).
    type: str
    default: vllm_deploy_check
  log_dir:
    description: Folder on the controller where the verdict is written as C(failure.json), beside the journals.
    type: path
    default: reports/deploy
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: Nothing is changed.
  platform:
    platforms: posix
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - This is an action plugin; it runs on the controller and needs no connection to a host.
seealso:
  - module: inferops.vllm.wait_ready
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Find the first failure
  inferops.vllm.start_failure:
  run_once: true
  register: vllm_deploy_failure
"""

RETURN = r"""
hosts:
  description: All hosts of the engines that did not become ready.
  returned: always
  type: list
  elements: str
sentence:
  description: What failed first, where, and what to do next.
  returned: always
  type: str
cases:
  description: The verdict of each engine, by the name of its first host.
  returned: always
  type: dict
"""
