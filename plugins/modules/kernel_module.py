#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_module
short_description: Load kernel modules now and at boot, and say why one refuses
version_added: 0.2.0
description:
  - Loads or unloads kernel modules and has them loaded, or kept out, at every boot.
  - Does not keep nvidia_peermem out while an environment file in C(/etc/vllm) sets C(NCCL_DMABUF_ENABLE=0), which needs it.
  - When the kernel refuses, the module says what its words mean (C(Invalid argument), C(Unknown symbol), C(disagrees about version),
    C(Key was rejected), not found, in use) and what to do, with the lines of the kernel log that belong to it.
options:
  name:
    description: Names of modules, in the order in which they are loaded or unloaded.
    type: list
    elements: str
    required: true
  state:
    description: Whether they are to be loaded.
    type: str
    choices: [present, absent]
    default: present
  persistent:
    description:
      - With O(state=present), load them at boot by C(/etc/modules-load.d/inferops-vllm-NAME.conf), unless another file does already.
      - With O(state=absent), keep them from loading by C(/etc/modprobe.d/inferops-vllm-NAME.conf).
    type: bool
    default: false
  load:
    description: With O(state=present), load them now. V(false) only looks after the boot.
    type: bool
    default: true
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: A module that cannot be found, or that is known to refuse by what it was built with, fails in check mode as well.
  diff_mode:
    description: Returns details of what changed.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Load nvidia_peermem now and at boot
  inferops.vllm.kernel_module:
    name: [nvidia_peermem]
    persistent: true

- name: Take the legacy module out of the way for good
  inferops.vllm.kernel_module:
    name: [nv_peer_mem]
    state: absent
    persistent: true
"""

RETURN = r"""
loaded:
  description: Those of the named modules that are loaded now, or would be.
  returned: always
  type: list
  elements: str
  sample: [nvidia_peermem]
failed_modules:
  description: Modules that refused.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the module.
      type: str
      returned: always
    kind:
      description: The cause in a word, such as C(no_peer_symbols), C(unknown_symbol), C(version), C(key_rejected), C(not_found) or C(in_use).
      type: str
      returned: always
    why:
      description: The cause in a sentence.
      type: str
      returned: always
    fix:
      description: What to do then.
      type: str
      returned: always
    log:
      description: Lines of the kernel log.
      type: list
      elements: str
      returned: always
"""

import re

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.kernel.module import Node, absent, present, summary
from ansible_collections.inferops.vllm.plugins.module_utils.packages.system import names, read, runner, writer


def main() -> None:
    """Parse arguments, load or unload, explain."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "persistent": {"type": "bool", "default": False},
            "load": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    wrong = [name for name in params["name"] if not re.match(r"^[A-Za-z0-9_-]{1,60}\Z", name)]
    if wrong or not params["name"]:
        module.fail_json(msg="name: %s is no name of a kernel module" % (", ".join(wrong) or "an empty list"))

    node = Node(runner({}), read, names, writer(module.atomic_move))
    outcomes = []
    try:
        for name in params["name"]:
            if params["state"] == "present":
                outcome = present(node, name, params["persistent"], params["load"], module.check_mode)
            else:
                outcome = absent(node, name, params["persistent"], module.check_mode)
            outcomes.append((name, outcome))
            if outcome.failed and params["state"] == "absent":
                # What is loaded below it has to stay, too.
                break
    except OSError as exc:
        module.fail_json(msg="%s: %s" % (exc.filename, exc.strerror or exc), **summary(outcomes))
    result = summary(outcomes)
    if result["failed_modules"]:
        module.fail_json(msg="; ".join(one.failed.sentence for _name, one in outcomes if one.failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
