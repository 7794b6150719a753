#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: stop_service
short_description: Stop a vLLM service, letting running requests end
version_added: 0.2.0
description:
  - Tells the service to stop and shows how many requests it still serves until it has ended. The unit itself bounds the time.
  - A start that waits in systemd's queue is taken back. When systemd cannot be asked how the service is, the module fails.
  - What starts at boot stays as it is.
extends_documentation_fragment:
  - action_common_attributes
options:
  service:
    description: The service, C(vllm) or C(vllm-router).
    type: str
    choices: [vllm, vllm-router]
    default: vllm
  force:
    description: Kill everything of it at once. Running requests are lost.
    type: bool
    default: false
  limit:
    description: Seconds after which the service counts as not to be stopped.
    type: float
    default: 3600.0
  step:
    description: Whether to ask for the stop, or only to look how far it is. Set by the action.
    type: str
    choices: [begin, look]
    default: begin
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: linux
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - The action plugin of the same name asks the node again and again.
seealso:
  - module: inferops.vllm.service_release
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Stop the service
  inferops.vllm.stop_service:
    service: vllm
"""

RETURN = r"""
waited:
  description: Seconds that the stop took.
  returned: success
  type: float
look:
  description: What is left of the service, C(up), C(state) and C(requests).
  returned: always
  type: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.deploy import drain

LOOK_S = 3.0


def main() -> None:
    """Parse arguments, ask for the stop, look what is left."""
    module = AnsibleModule(
        argument_spec={
            "service": {"type": "str", "choices": ["vllm", "vllm-router"], "default": "vllm"}, "force": {"type": "bool", "default": False},
            "limit": {"type": "float", "default": 3600.0}, "step": {"type": "str", "choices": ["begin", "look"], "default": "begin"}},
        supports_check_mode=True)
    service = module.params["service"]
    if module.params["step"] == "begin":
        try:
            running = drain.up(service)
        except drain.StateError as exc:
            module.fail_json(msg="%s; nothing was stopped. Look at systemctl status %s.service on the node and stop it again" % (exc, service))
        if module.check_mode or not running:
            module.exit_json(changed=running, look={"up": False, "state": "", "requests": None})
        problem = drain.begin(service, module.params["force"])
        if problem:
            module.fail_json(msg=problem)
    until = time.monotonic() + LOOK_S
    now = drain.look(service)
    while now["up"] and time.monotonic() < until:
        time.sleep(0.5)
        now = drain.look(service)
    module.exit_json(changed=True, look=now)


if __name__ == "__main__":
    main()
