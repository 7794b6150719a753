#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Plan the command, environment and unit of every node that serves a model
version_added: 0.1.0
description:
  - Derives from the profile of the model, the hardware, strategy and interconnect, the inventory and, where hosts answered, their facts,
    what each node runs. Says of each flag and variable where it comes from, what had to be assumed, and refuses what cannot work with the
    arithmetic or the facts that contradict each other.
  - Runs once, on the controller, and needs no connection. All hosts of the groups C(vllm_nodes), C(vllm_prefill), C(vllm_decode) and
    C(vllm_router) are planned, also under C(--limit), since an engine needs all its ranks.
  - Writes C(plan.json) and, for each host, C(command.sh), C(service.env) and a systemd unit. Files of an earlier plan that are no longer
    part of it are removed. A refused plan writes C(plan.json) alone and fails.
extends_documentation_fragment:
  - inferops.vllm.cluster
options:
  read:
    description:
      - Name of the variable in which each host registered the result of M(inferops.vllm.node_facts). Hosts without it are planned from
        the inventory.
    type: str
    default: vllm_plan_read
  validate_only:
    description:
      - Only check the words below against what is allowed, before any node is touched.
    type: bool
    default: false
  dir:
    description: Folder on the controller for the plan, made when it is not there. Relative to the current folder.
    type: path
    default: plan
  model:
    description: Id or absolute path of the weights, when they are not those of the variant.
    type: raw
  revision:
    description: Revision of the model's repository, best a commit.
    type: raw
  weights_path:
    description: Folder of the weights on the nodes, which the container sees under the same name; left out means C(/var/lib/vllm).
    type: raw
  port:
    description: Port of the API; left out means 8000. The pools of V(pd_cluster) use 8001 and 8002.
    type: raw
  shutdown_timeout:
    description: Seconds that a stop waits for running requests; left out means 60.
    type: raw
  engine:
    description: Container engine, V(docker) or V(podman); left out means V(docker).
    type: raw
  runtime:
    description:
      - V(container), or V(venv) for hosts that build vLLM themselves into a virtual environment; left out means V(container).
    type: raw
  venv:
    description: Folder of that virtual environment on the nodes; left out means C(/opt/vllm).
    type: raw
  link_port:
    description:
      - Port on which the head of an engine over several nodes tells its workers what state it is in, so that all its ranks restart together;
        left out means 29490.
    type: raw
  router_image:
    description: Image that holds C(vllm-router); left out means a virtual environment on the router's host.
    type: raw
  overrides:
    description:
      - Flags of C(vllm serve) that win over the plan's, as a table of names and values. V(true) and V(false) set and unset a switch, null takes
        a flag out. A flag that vLLM does not know, and one that the plan decides for each node, is refused by name.
    type: raw
  env_overrides:
    description: Variables that win over the plan's, as a table; null takes a variable out. Secrets are refused.
    type: raw
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: Prints the plan and says whether files would change; writes nothing.
  diff_mode:
    description: Returns details of what changed.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - This is an action plugin; it runs on the controller and needs no connection to a host.
seealso:
  - module: inferops.vllm.node_facts
  - module: inferops.vllm.judge
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Plan GPU nodes
  hosts: vllm_nodes
  gather_facts: false
  tasks:
    - name: Read the node
      inferops.vllm.node_facts:
      ignore_unreachable: true
      register: vllm_plan_read

    - name: Plan the nodes
      inferops.vllm.plan:
        hardware: b300
        strategy: multi_node_dep
        interconnect: rdma
        overrides:
          max-num-seqs: 64
        dir: /srv/plan
      run_once: true
"""

RETURN = r"""
plan:
  description: Path of plan.json.
  returned: always, but for O(validate_only=true)
  type: str
  sample: /srv/plan/plan.json
document:
  description: Path of the plan that was made now, in check mode a copy that is gone after the run.
  returned: always, but for O(validate_only=true)
  type: str
  sample: /srv/plan/plan.json
nodes:
  description: Role, rank, engine and health URL of each planned host.
  returned: success
  type: dict
  sample: {hgx-01: {role: head, rank: 0, engine: engine, health_url: "http://10.0.0.1:8000/health"}}
complete:
  description: Nothing in the plan is a placeholder.
  returned: success
  type: bool
image:
  description: Name of the container image.
  returned: with O(validate_only=true)
  type: str
"""
