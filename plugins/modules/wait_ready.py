#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wait_ready
short_description: Wait until a vLLM service is ready, showing how far its start has come
version_added: 0.2.0
description:
  - Follows the journal of the unit, its state, its C(/health) and the memory of its container, and shows the phase, the shards loaded and
    the memory of each rank as they change.
  - Gives up when a phase takes longer than its own limit, or at once when the unit failed, when vLLM refused its arguments, or when it was
    restarted twice. A rank that fails ends the waiting of the other ranks of its engine. The journal since the start is then kept on the controller.
  - A rank that serves no API is ready when the head of its engine is.
extends_documentation_fragment:
  - action_common_attributes
options:
  service:
    description: The service, C(vllm) or C(vllm-router).
    type: str
    choices: [vllm, vllm-router]
    default: vllm
  peers:
    description: Names of all hosts of the engine, in rank order. Left out, the rank is alone.
    type: list
    elements: str
    default: []
  cursor:
    description: End of the node's journal before the start, as M(inferops.vllm.deploy_check) returns it.
    type: str
    default: ""
  before:
    description: Invocation of the unit that ran before; its lines are not part of the start.
    type: str
    default: ""
  limits:
    description:
      - Seconds by phase that win over the built-in ones. Phases are V(container_init), V(device_init), V(dependencies),
        V(distributed_init), V(weights_load), V(engine_init), V(api_ready).
    type: dict
    default: {}
  log_dir:
    description: Folder on the controller for the journal of a start that failed.
    type: path
    default: reports/deploy
  interval:
    description: Seconds between two lines of one node at least, unless its phase changes.
    type: float
    default: 5.0
  state:
    description: What the look before this one returned. Set by the action.
    type: dict
    default: {}
  seconds:
    description: How long one look may last when nothing changes. Set by the action.
    type: float
    default: 5.0
  collect:
    description: Return the journal since O(cursor) instead. Set by the action.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    details: Returns at once.
  diff_mode:
    support: none
    details: Nothing is changed.
  platform:
    platforms: linux
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - The action plugin of the same name asks the node again and again; one look is one run of the module.
seealso:
  - module: inferops.vllm.deploy_check
  - module: inferops.vllm.start_failure
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Wait until the engine serves
  inferops.vllm.wait_ready:
    peers: "{{ vllm_deploy_check.peers }}"
    cursor: "{{ vllm_deploy_check.cursor }}"
    limits:
      weights_load: 7200
  register: vllm_deploy_wait
"""

RETURN = r"""
ready:
  description: The rank serves, or the head of its engine does.
  returned: always
  type: bool
phase:
  description: The furthest phase.
  returned: always
  type: str
  sample: api_ready
waited:
  description: Seconds that were waited.
  returned: always
  type: float
why:
  description: Why it is not ready, one phrase.
  returned: failure
  type: str
peer:
  description: The rank whose failure ended the waiting; empty when it was this one.
  returned: failure
  type: str
log:
  description: File on the controller with the journal since the start.
  returned: failure
  type: str
invocation_id:
  description: Invocation of the unit that is ready.
  returned: success
  type: str
"""

import base64
import time
import zlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.deploy import watch
from ansible_collections.inferops.vllm.plugins.module_utils.deploy.names import LINK_UNIT

PAUSE = 1.0


def main() -> None:
    """Parse arguments; look until something changes or the time of this look is over."""
    module = AnsibleModule(
        argument_spec={
            "service": {"type": "str", "choices": ["vllm", "vllm-router"], "default": "vllm"},
            "peers": {"type": "list", "elements": "str", "default": []}, "cursor": {"type": "str", "default": ""},
            "before": {"type": "str", "default": ""}, "limits": {"type": "dict", "default": {}}, "log_dir": {"type": "path", "default": "reports/deploy"},
            "interval": {"type": "float", "default": 5.0}, "state": {"type": "dict", "default": {}}, "seconds": {"type": "float", "default": 5.0},
            "collect": {"type": "bool", "default": False}},
        supports_check_mode=True)
    given = module.params
    service = given["service"]
    if given["collect"]:
        text = watch.since([service + ".service", LINK_UNIT], given["cursor"], given["before"])
        module.exit_json(changed=False, journal=base64.b64encode(zlib.compress(text.encode("utf-8", "replace"))).decode("ascii"))
    about = watch.told(service)
    before = now = given["state"]
    until = time.monotonic() + given["seconds"]
    while True:
        now = watch.look(service, about, given["cursor"], now)
        if (now["state"] != "waiting" and not now["headless"]) or now["state"] == "failed" or watch.news(before, now) or time.monotonic() + PAUSE > until:
            break
        time.sleep(PAUSE)
    now["memory"] = watch.memory(about.engine, service) if about.engine and (now["headless"] or now["state"] == "waiting") else None
    module.exit_json(changed=False, look=now)


if __name__ == "__main__":
    main()
