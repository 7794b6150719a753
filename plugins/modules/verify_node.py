#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_node
short_description: Read what one node shows of its serving rank
version_added: 0.2.0
description:
  - Reads the unit that serves, its processes with command line and environment, the log of its current start, GPU memory, Xids, containers,
    resident memory, error counters of RDMA ports and TCP segments that were sent again. Judges nothing and changes nothing.
  - Every command has a deadline, so that a stuck driver costs only its own part, which is then named under C(unknown).
options:
  unit:
    description: The systemd unit that serves.
    type: str
    default: vllm.service
  engine:
    description: Container engine whose containers are listed, V(none) for a service that runs without one.
    type: str
    choices: [docker, podman, none]
    default: docker
  since:
    description: Time in seconds since the epoch from which on warnings, errors and Xids count as new. V(0) means the start of the unit.
    type: float
    default: 0.0
  timeout:
    description: Seconds that one command may take.
    type: float
    default: 10.0
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: Nothing is ever changed.
  idempotent:
    description: A second run changes nothing.
    support: full
seealso:
  - module: inferops.vllm.verify
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Read the rank
  inferops.vllm.verify_node:
  register: vllm_verify_read
"""

RETURN = r"""
reading:
  description: What was read; parts that could not be read are null and named under C(unknown).
  returned: success
  type: dict
"""

import re

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.serving import reading


def main() -> None:
    """Parse arguments, read, return."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "default": "vllm.service"},
            "engine": {"type": "str", "choices": ["docker", "podman", "none"], "default": "docker"},
            "since": {"type": "float", "default": 0.0},
            "timeout": {"type": "float", "default": 10.0},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not re.match(r"[A-Za-z0-9][A-Za-z0-9:_.@\\-]{0,250}\Z", params["unit"]):
        module.fail_json(msg="unit: %r is no name of a unit" % params["unit"])
    if not 0.1 <= params["timeout"] <= 600:
        module.fail_json(msg="timeout: %s is outside 0.1 to 600" % params["timeout"])
    engine = "" if params["engine"] == "none" else params["engine"]
    module.exit_json(changed=False, reading=reading.read(LiveReader(params["timeout"]), params["unit"], engine, params["since"]))


if __name__ == "__main__":
    main()
