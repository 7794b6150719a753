#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_runtime
short_description: Configure Docker or Podman, and NVIDIA's toolkit for it
version_added: 0.2.0
description:
  - Names the packages that are missing, and configures what is installed. The role C(container_runtime) installs in between.
  - Refuses missing packages while a container has GPUs open, since their installation reloads systemd, which takes the GPUs from it.
  - Puts what is needed into Docker's C(daemon.json); every key that is there keeps its value. A file that Docker refuses is taken back.
  - Docker is reloaded, which touches no container. Where only a restart will do, it is restarted if no container runs or
    O(restart_allowed) is set; else RV(restart) says what waits for it.
  - Makes the CDI specification anew when none names the running driver, by the toolkit's refresh unit where there is one, and proves it.
options:
  engine:
    description:
      - The container engine.
    type: str
    choices: [docker, podman]
    default: docker
  gpus:
    description:
      - Whether containers are to see GPUs by NVIDIA's toolkit. V(auto) looks for one on the PCI bus.
    type: str
    choices: [auto, nvidia, none]
    default: auto
  toolkit_version:
    description:
      - Exact version of the toolkit's packages; empty for the one that is there, else the newest.
    type: str
    default: ""
  install:
    description:
      - Look for missing packages. V(false) takes the node as somebody else installed it.
    type: bool
    default: true
  log_max_size:
    description:
      - Size at which Docker begins a new log of a container; empty for no limit.
    type: str
    default: 100m
  log_max_file:
    description:
      - Logs of a container that Docker keeps.
    type: int
    default: 5
  restart_allowed:
    description:
      - Restart Docker although containers run.
    type: bool
    default: false
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
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Configure Docker with NVIDIA's toolkit
  inferops.vllm.container_runtime:
    engine: docker
  register: runtime

- name: Say what waits for a restart
  ansible.builtin.debug:
    msg: "{{ runtime.restart }}"
  when: runtime.restart | length > 0
"""

RETURN = r"""
packages:
  description: Packages that are missing, as the package manager is asked for them. Nothing is configured before they are there.
  returned: success
  type: list
  elements: str
  sample: [nvidia-container-toolkit]
toolkit:
  description: NVIDIA's toolkit is wanted on this node.
  returned: success
  type: bool
  sample: true
driver:
  description: Version of the running NVIDIA driver, which the CDI specification names; empty without one.
  returned: success
  type: str
  sample: 580.95.05
restart:
  description: Why Docker has to be restarted and was not; empty when it has not.
  returned: success
  type: str
steps:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: str
notes:
  description: What was left as it was.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.packages.system import runner
from ansible_collections.inferops.vllm.plugins.module_utils.runtime import ensure


def main() -> None:
    """Parse arguments, bring the runtime to what is wanted, say what was done."""
    module = AnsibleModule(
        argument_spec={
            "engine": {"type": "str", "choices": ["docker", "podman"], "default": "docker"},
            "gpus": {"type": "str", "choices": ["auto", "nvidia", "none"], "default": "auto"},
            "toolkit_version": {"type": "str", "default": ""},
            "install": {"type": "bool", "default": True},
            "log_max_size": {"type": "str", "default": "100m"},
            "log_max_file": {"type": "int", "default": 5},
            "restart_allowed": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    log = {"max-size": params["log_max_size"], "max-file": str(params["log_max_file"])} if params["log_max_size"] else {}
    wanted = ensure.Wanted(params["engine"], params["gpus"], params["toolkit_version"], log, params["restart_allowed"])
    try:
        result = ensure.run(wanted, ensure.System(runner({})), module.check_mode, params["install"])
    except ensure.RuntimeProblem as exc:
        module.fail_json(msg=str(exc))
    except OSError as exc:
        module.fail_json(msg="%s cannot be written: %s" % (exc.filename or "a file", exc.strerror or exc))
    for note in result["notes"]:
        module.warn(note)
    if not result["diff"]:
        result["diff"] = {"before": "", "after": "".join("%s\n" % step for step in result["steps"])}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
