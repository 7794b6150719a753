#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_holders
short_description: End processes that hold the GPUs of a node
version_added: 0.2.0
description:
  - Finds the processes that have a GPU open (C(/dev/nvidia0) and so on), asks them to end, and kills those that do not.
  - Daemons of the node (persistence daemon, DCGM, Fabric Manager) are never touched. A process that cannot be killed makes the module fail.
options:
  whose:
    description:
      - V(ours) ends processes of a vLLM engine whose server is gone. V(foreign) ends processes that are none of ours.
    type: str
    choices: [ours, foreign]
    required: true
  grace:
    description: Seconds between asking and killing.
    type: float
    default: 30
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: Processes are named in RV(ended).
  idempotent:
    description: A second run changes nothing.
    support: full
seealso:
  - module: inferops.vllm.node_facts
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: End what others left on the GPUs
  inferops.vllm.gpu_holders:
    whose: foreign
"""

RETURN = r"""
ended:
  description: The processes that were ended, or would be in check mode.
  returned: always
  type: list
  elements: dict
  sample: [{pid: 4242, comm: python3, killed: false}]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.checks.gpu import holders_of
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.killing import end


def main() -> None:
    """Find them, end them, say which."""
    module = AnsibleModule(
        argument_spec={
            "whose": {"type": "str", "choices": ["ours", "foreign"], "required": True},
            "grace": {"type": "float", "default": 30.0},
        },
        supports_check_mode=True,
    )
    facts = gather(LiveReader(10.0), Options(subset=("gpu", "service")))
    found = holders_of(Node("node", facts))
    if found.why:
        module.fail_json(msg="Who holds the GPUs could not be read: %s" % found.why)
    # A vLLM that somebody else runs has the same names and a server above it.
    chosen = [holder for holder in found.ours + found.foreign if holder.get("orphan")] if module.params["whose"] == "ours" else [
        holder for holder in found.foreign if not holder.get("orphan")]
    if module.params["whose"] == "foreign" and not chosen:
        # Workers of an engine of which nothing is known here belong to somebody else.
        chosen = found.foreign
    ended, left = [], []
    for holder in chosen:
        if module.check_mode:
            ended.append({"pid": holder["pid"], "comm": holder.get("comm", ""), "killed": False})
            continue
        killed = end(int(holder["pid"]), str(holder.get("comm", "")), module.params["grace"])
        if killed is None:
            left.append("%s (pid %s)" % (holder.get("comm", "?"), holder["pid"]))
        else:
            ended.append({"pid": holder["pid"], "comm": holder.get("comm", ""), "killed": killed})
    if left:
        module.fail_json(msg="Could not be ended, and only a reboot helps: %s" % ", ".join(left), ended=ended, changed=bool(ended))
    module.exit_json(changed=bool(ended), ended=ended)


if __name__ == "__main__":
    main()
