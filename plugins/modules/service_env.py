#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: service_env
short_description: Write the environment file of a vLLM service
version_added: 0.2.0
description:
  - Writes variables as C(NAME=value) lines, sorted, owned by root and readable for its group alone, in one step.
  - Refuses what is a secret by its name. Secrets are the affair of M(inferops.vllm.service_release).
  - Refuses C(NCCL_DMABUF_ENABLE=0) where nvidia_peermem is not loaded, since GPU memory is reached through it alone then.
options:
  env:
    description: Variables and their values. V(true) and V(false) become C(1) and C(0).
    type: dict
    required: true
  path:
    description: The file, on the node. Its folder is made when it is not there.
    type: path
    default: /etc/vllm/service.env
  reader:
    description:
      - Who reads the file. C(docker run --env-file) takes a value as it stands, systemd and a shell read quotes.
    type: str
    choices: [container, systemd]
    default: container
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
seealso:
  - module: inferops.vllm.service_release
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Write the environment file
  inferops.vllm.service_env:
    env:
      VLLM_HOST_IP: 10.0.0.11
      GLOO_SOCKET_IFNAME: eth1
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
  sample: /etc/vllm/service.env
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.kernel.module import fallback_refused
from ansible_collections.inferops.vllm.plugins.module_utils.packages.system import names
from ansible_collections.inferops.vllm.plugins.module_utils.plan import render
from ansible_collections.inferops.vllm.plugins.module_utils.service import node, release


def main() -> None:
    """Parse arguments, write one file."""
    module = AnsibleModule(
        argument_spec={
            "env": {"type": "dict", "required": True},
            "path": {"type": "path", "default": "/etc/vllm/service.env"},
            "reader": {"type": "str", "choices": ["container", "systemd"], "default": "container"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        env = release.environment(params["env"])
        refused = fallback_refused(env, names("/sys/module"))
        if refused:
            raise release.ReleaseError(refused)
        text = render.environment_text(env, params["reader"] == "systemd")
        item = release.Item(params["path"], text, 0o640)
        changed, diff = node.Node(check=module.check_mode).write(item)
    except release.ReleaseError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=changed, path=params["path"], **({"diff": [diff]} if changed and module._diff else {}))


if __name__ == "__main__":
    main()
