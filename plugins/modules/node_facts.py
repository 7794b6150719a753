#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: Read everything about a GPU node that serving depends on
version_added: 0.1.0
description:
  - Reads driver, GPUs, NVLink fabric, RDMA, GPUDirect, container engine, storage and service of one node in a single call
    and returns them under C(ansible_facts.vllm_node).
  - Only reads. Nothing on the node is changed, and no privileges are required; what this user may not see is reported as
    unknown with the reason.
  - A command that hangs, is missing, or prints nonsense or half a document never fails the module. The rest is returned, and
    the section says under C(unknown) what could not be read and why.
  - Secrets (tokens, API keys, passwords in command lines, environments and URLs) are replaced before anything is returned.
extends_documentation_fragment:
  - inferops.vllm.collection
options:
  root:
    description:
      - A recorded node to read instead of the running machine, as a folder or a C(.tar.gz) that M(inferops.vllm.snapshot) wrote.
        The path is on the node that the module runs on; a relative one is taken from the folder of the inventory.
      - The other options except O(gather_subset) are then those of the recording.
    type: path
  as_text:
    description:
      - Return the facts as one JSON text under C(text) and set no C(ansible_facts).
      - Ansible copies and inspects every value of a result several times. For a play that only hands the facts on to
        M(inferops.vllm.judge) this saves a good part of the time a host takes.
    type: bool
    default: false
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
notes:
  - Needs Python 3.9 or newer on the node, and nothing else.
  - The facts of an 8-GPU, 16-HCA node take at most 32 KB.
seealso:
  - module: inferops.vllm.snapshot
  - module: inferops.vllm.judge
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Read the node
  inferops.vllm.node_facts:
    paths: [/mnt/weights]
    image: vllm/vllm-openai:kimi-k3

- name: Show the loaded driver
  ansible.builtin.debug:
    var: ansible_facts.vllm_node.driver.loaded

- name: Read only driver and GPUs of a recorded node
  inferops.vllm.node_facts:
    gather_subset: [driver, gpu]
    root: /srv/evidence/node-07.tar.gz
"""

RETURN = r"""
text:
  description: The content of C(vllm_node) as compact JSON.
  returned: when O(as_text=true)
  type: str
ansible_facts:
  description: Facts to be used in later tasks.
  returned: unless O(as_text=true)
  type: dict
  contains:
    vllm_node:
      description:
        - The facts of the node, section by section. C(docs/FACTS.md) of the collection describes every key.
        - In each section C(unknown) maps a part that could not be read to one phrase that says why.
      returned: always
      type: dict
      contains:
        schema:
          description: Version of this structure, C(inferops.vllm/node_facts/1).
          type: str
          returned: always
          sample: inferops.vllm/node_facts/1
        collected:
          description: How the facts came about; whether from a recording (C(recorded), C(recorded_at)), as which C(uid), within which
            C(timeout), in how many C(seconds), and whether the node wears a lab C(costume).
          type: dict
          returned: always
        host:
          description: Operating system, kernel and its configuration, modules, memory, limits, time, names, packages, stuck processes.
          type: dict
          returned: when gathered
        driver:
          description: NVIDIA driver as loaded, as installed and as user space has it; what its build needs; Secure Boot; load failures.
          type: dict
          returned: when gathered
          sample: {loaded: 580.95.05, loaded_flavour: open, installed: 580.95.05, userspace: 580.95.05, cuda: "13.0"}
        gpu:
          description: GPUs by C(nvidia-smi) and by PCI, topology matrix, NVLink, holders, Xid and SXid of this boot.
          type: dict
          returned: when gathered
        fabric:
          description: NVSwitches, Fabric Manager, nvlsm, IMEX.
          type: dict
          returned: when gathered
        rdma:
          description: HCAs and their ports, GIDs, counters; routes that ride on them; ACS and IOMMU.
          type: dict
          returned: when gathered
        gpudirect:
          description: State of C(nvidia_peermem) and every precondition of dma-buf by itself; signs of errno 524.
          type: dict
          returned: when gathered
        container:
          description: Engine, NVIDIA toolkit, CDI specifications, and the image by tag and digest.
          type: dict
          returned: when gathered
        storage:
          description: File systems of O(paths), and a checkpoint that is already there.
          type: dict
          returned: when gathered
        service:
          description: Units, and the command line and environment of running vLLM processes, secrets redacted.
          type: dict
          returned: when gathered
"""

import json

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.node import arguments
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import gather, open_root
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Reader
from ansible_collections.inferops.vllm.plugins.module_utils.node.snapshot import SnapshotError


def main() -> None:
    """Parse arguments, read the node, return the facts."""
    module = AnsibleModule(argument_spec=dict(
        arguments.spec(), root={"type": "path"}, as_text={"type": "bool", "default": False}), supports_check_mode=True)
    try:
        options = arguments.options(module.params)
    except ValueError as exc:
        module.fail_json(msg=str(exc))
    head = None
    reader: Reader
    if module.params["root"]:
        try:
            reader, recorded, head = open_root(module.params["root"], module.params["timeout"])
        except SnapshotError as exc:
            module.fail_json(msg="root: %s" % exc)
        options = recorded._replace(subset=tuple(s for s in options.subset if s in recorded.subset))
    else:
        # Imported here: a recorded node needs none of it, and every line that a module imports costs time on each node.
        from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader

        reader = LiveReader(module.params["timeout"])
    facts = gather(reader, options)
    if head:
        facts["collected"]["recorded_at"] = str(head.get("recorded_at", ""))[:40]
        facts["collected"]["node"] = str(head.get("node", ""))[:80]
    if module.params["as_text"]:
        module.exit_json(changed=False, text=json.dumps(facts, separators=(",", ":")))
    module.exit_json(changed=False, ansible_facts={"vllm_node": facts})


if __name__ == "__main__":
    main()
