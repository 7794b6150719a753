#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_modules
short_description: Load the NVIDIA driver that is installed in place of the one that is loaded
version_added: 0.2.0
description:
  - Stops the driver's own services (persistence daemon, Fabric Manager, IMEX, DCGM), unloads its modules in the order of their references,
    loads those that are installed, and starts the services again.
  - Ends no process. When something else uses the GPUs nothing is touched, and when a module stays everything is brought back;
    either way RV(reboot_needed) is true and RV(reason) names what holds it.
  - Does nothing when the installed driver is loaded already. Never reloads systemd.
options:
  force:
    description: Exchange the modules although the versions are equal, so that they take up new options.
    type: bool
    default: false
  version:
    description: In check mode, the version that will be installed by the time that this runs. Left out means the one that is.
    type: str
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Returns details of what changed.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
    details: Not with O(force=true).
seealso:
  - module: inferops.vllm.driver_packages
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Load the installed driver
  inferops.vllm.driver_modules:
  register: driver_modules

- name: Say what stands in the way
  ansible.builtin.debug:
    var: driver_modules.reason
  when: driver_modules.reboot_needed
"""

RETURN = r"""
reboot_needed:
  description: The installed driver can be loaded only by a reboot, or after what RV(reason) names has ended.
  returned: always
  type: bool
reason:
  description: What stands in the way, or what did not come back; empty when nothing.
  returned: always
  type: str
kind:
  description: The same in a word, such as C(in_use), C(key_rejected), C(not_found) or C(partly).
  returned: always
  type: str
steps:
  description: What was done, or would be, in order.
  returned: always
  type: list
  elements: str
  sample: [stop nvidia-persistenced.service, unload nvidia_uvm, unload nvidia, load nvidia, load nvidia_uvm, start nvidia-persistenced.service]
loaded_before:
  description: Version that was loaded; empty for none.
  returned: always
  type: str
  sample: 575.57.08
loaded:
  description: Version that is loaded now, or would be.
  returned: always
  type: str
  sample: 580.95.05
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.kernel.holders import holders
from ansible_collections.inferops.vllm.plugins.module_utils.kernel.reload import Node, exchange, report
from ansible_collections.inferops.vllm.plugins.module_utils.packages.system import names, read, runner


def main() -> None:
    """Parse arguments, exchange the modules, say what happened."""
    module = AnsibleModule(argument_spec={"force": {"type": "bool", "default": False}, "version": {"type": "str"}}, supports_check_mode=True)
    outcome = exchange(Node(runner({}), read, names, holders), module.check_mode, module.params["force"], module.params["version"] or "")
    result = dict(report(outcome))
    if outcome.kind and not outcome.reboot and outcome.kind != "partly":
        module.fail_json(msg=outcome.reason, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
