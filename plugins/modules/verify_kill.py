#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_kill
short_description: End one process of a serving rank, to see the service recover
version_added: 0.2.0
description:
  - Sends SIGKILL to the API server or to the engine of the unit that serves on this node, as a crash would.
  - Does nothing without O(permitted). Ends no process but one of the named unit or of a container that vLLM runs in.
options:
  unit:
    description: The systemd unit that serves.
    type: str
    default: vllm.service
  what:
    description: Which process. V(server) answers HTTP (or is the parent of a headless rank), V(engine) computes.
    type: str
    choices: [server, engine]
    default: engine
  permitted:
    description: Whether this may be done at all.
    type: bool
    default: false
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: The process is named and left alone.
  diff_mode:
    description: Returns details of what changed.
    support: none
  idempotent:
    description: A second run changes nothing.
    support: none
    details: Every run ends a process.
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: End the engine
  inferops.vllm.verify_kill:
    what: engine
    permitted: true
"""

RETURN = r"""
pid:
  description: The process that was ended, or in check mode would be.
  returned: success
  type: int
ended:
  description: Whether it was ended; V(false) in check mode.
  returned: success
  type: bool
"""

import os
import signal

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.serving import reading


def main() -> None:
    """Parse arguments, find the process, end it."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "default": "vllm.service"},
            "what": {"type": "str", "choices": ["server", "engine"], "default": "engine"},
            "permitted": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not params["permitted"]:
        module.fail_json(msg="permitted: no process is ended without permission (verify_allow_restart)")
    pid = reading.victim(LiveReader(10.0), params["unit"], params["what"])
    if pid is None:
        module.fail_json(msg="no %s process of %s runs on this node" % (params["what"], params["unit"]))
    if module.check_mode:
        module.exit_json(changed=True, pid=pid, ended=False, msg="process %d (%s of %s) would be ended; a check ends none" % (
            pid, params["what"], params["unit"]))
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as exc:
        module.fail_json(msg="process %d could not be ended: %s" % (pid, exc.strerror))
    module.exit_json(changed=True, pid=pid, ended=True)


if __name__ == "__main__":
    main()
