#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: deploy_check
short_description: Refuse a deployment that cannot work on this node before anything is touched
version_added: 0.2.0
description:
  - Takes the host's entry out of a plan, and refuses a plan that is refused or not complete, a recorded node, and an engine of which
    C(--limit) leaves ranks out. Without a plan it looks at what is deployed on the node.
  - Looks on the node whether it reaches the addresses of the other ranks on the ports of the plan, whether the names of ranks without a
    declared address resolve there, and whether the ports that this rank listens on are free or held by the service that is replaced.
  - Changes nothing.
extends_documentation_fragment:
  - action_common_attributes
options:
  plan:
    description: Path of plan.json on the controller. Left out, what is deployed on the node takes its place.
    type: path
  earlier:
    description: Refuse a node on which nothing is deployed, and look at the earlier releases that are kept. Only without O(plan).
    type: bool
    default: false
  checks:
    description:
      - Name of the variable in which each host of the play registered what this module returned with O(earlier). No node is looked at then.
      - Chooses the release that the host goes back to, so that all ranks of an engine run the same again. Refused is one that is not kept, whose copy
        is damaged or whose image is not on the node any more, and ranks that would not run together.
      - Ranks that run the same go back by one release. Where an earlier run ended half way, those that lag behind go to where the others are.
    type: str
    default: ""
  serial:
    description:
      - How many independent engines are changed at once. An engine over several nodes is always changed on all of them together.
    type: raw
    default: 1
  limits:
    description: Seconds by phase for M(inferops.vllm.wait_ready), refused here where they mean nothing.
    type: dict
    default: {}
  service:
    description: The service; left out means that of the plan, else the one that is deployed.
    type: str
    choices: ["", vllm, vllm-router]
    default: ""
  peers:
    description: Nodes that must be reached, with name, address and ports. Set by the action.
    type: list
    elements: dict
    default: []
  ports:
    description: Ports that this node will listen on, with what, address and port. Set by the action.
    type: list
    elements: dict
    default: []
  names:
    description: Names that must resolve on this node. Set by the action.
    type: list
    elements: str
    default: []
  source:
    description: The node's own address between the nodes. Set by the action.
    type: str
    default: ""
  engine:
    description: Program of the container engine, empty without one. Set by the action.
    type: str
    default: ""
  image:
    description: The image of the plan, empty without one. Set by the action.
    type: str
    default: ""
  registry:
    description: Registry that an image without one comes from. Set by the action.
    type: str
    default: ""
  weights:
    description: V(model), V(path) and V(revision) of the plan, as M(inferops.vllm.weights) takes them; empty without weights. Set by the action.
    type: dict
    default: {}
  timeout:
    description: Seconds that a peer may take to answer.
    type: float
    default: 3.0
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: Nothing is changed.
  platform:
    platforms: linux
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - The action plugin of the same name reads the plan on the controller and fills in what the module looks for.
seealso:
  - module: inferops.vllm.plan
  - module: inferops.vllm.wait_ready
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Look whether the plan can be deployed here
  inferops.vllm.deploy_check:
    plan: plan/plan.json
  register: vllm_deploy_check
"""

RETURN = r"""
entry:
  description: The host's entry of the plan, without its reasons.
  returned: with O(plan)
  type: dict
deployed:
  description: What is deployed, C(role), C(rank), C(engine), C(number) and C(peers); empty when nothing is.
  returned: success
  type: dict
service:
  description: The service of this node.
  returned: success
  type: str
  sample: vllm
releases:
  description:
    - The current release and the earlier ones that are kept, newest first. C(plan) and C(peers) are what the ranks run together
      and their hosts, C(trouble) says why it could not be started, C(rolled_back) whether a rollback led to it.
  returned: with O(earlier)
  type: list
  elements: dict
  sample: [{number: 4, plan: 5d0c6b2f1a9e7c34, peers: [n1, n2], rolled_back: false, trouble: ""}]
release:
  description: Number of the release to go back to.
  returned: with O(checks)
  type: int
  sample: 3
settled:
  description: The service that is deployed is up, starts at boot and answers, and the image and the weights of the plan are here.
  returned: success
  type: bool
image:
  description: Name to start the image of the plan by, empty when it is not here or nothing serves that it could be compared with.
  returned: success
  type: str
  sample: vllm/vllm-openai@sha256:82d6…
headless:
  description: The deployed rank serves no API.
  returned: success
  type: bool
peers:
  description: Names of all hosts of the same engine, in rank order; with O(checks) those of RV(release).
  returned: success
  type: list
  elements: str
serial:
  description: Value for C(serial) of the play that switches.
  returned: success
  type: raw
  sample: 1
cursor:
  description: End of the node's journal.
  returned: success
  type: str
invocation_id:
  description: Invocation of the unit that runs now, empty when none does.
  returned: success
  type: str
problems:
  description: What speaks against the deployment, one sentence each.
  returned: failure
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.deploy import deployed, in_place, reach, watch
from ansible_collections.inferops.vllm.plugins.module_utils.deploy.names import LINK_UNIT, ROUTER, SERVICE
from ansible_collections.inferops.vllm.plugins.module_utils.service.node import Node


def main() -> None:
    """Parse arguments, look, return."""
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "path"}, "earlier": {"type": "bool", "default": False}, "checks": {"type": "str", "default": ""},
            "serial": {"type": "raw", "default": 1}, "limits": {"type": "dict", "default": {}},
            "service": {"type": "str", "choices": ["", "vllm", "vllm-router"], "default": ""},
            "peers": {"type": "list", "elements": "dict", "default": []}, "ports": {"type": "list", "elements": "dict", "default": []},
            "names": {"type": "list", "elements": "str", "default": []}, "source": {"type": "str", "default": ""},
            "engine": {"type": "str", "default": ""}, "image": {"type": "str", "default": ""}, "registry": {"type": "str", "default": ""},
            "weights": {"type": "dict", "default": {}}, "timeout": {"type": "float", "default": 3.0}},
        supports_check_mode=True)
    given = module.params
    problems = reach.unresolved(given["names"]) + reach.unreached(given["source"], given["peers"], given["timeout"])
    if given["ports"]:
        def containers() -> list:
            return [watch.container_id(given["engine"], given["service"] or SERVICE)] if given["engine"] else []

        ours = reach.own([SERVICE + ".service", ROUTER + ".service", LINK_UNIT], containers)
        problems += reach.busy(given["ports"], reach.listening(), reach.holders, ours)
    service, found = given["service"], {}
    for name in [service] if service else [SERVICE, ROUTER]:
        found = found or dict(deployed.release(watch.read(deployed.files(name)[1]), watch.read(deployed.files(name)[2])), service=name)
        found = found if "role" in found else {}
    service = service or found.get("service", SERVICE)
    if given["earlier"] and not found:
        problems.append("nothing is deployed")
    if problems:
        module.fail_json(msg="; ".join(problems[:6]), problems=problems)
    image, settled = "", bool(found) and watch.settled(service, bool(found["peers"]))
    if settled and given["engine"]:
        image = in_place.image(given["image"], given["registry"], given["engine"])
        settled = bool(image)
    if settled and given["weights"]:
        settled = in_place.has_weights(given["weights"]["model"], given["weights"]["path"], given["weights"]["revision"])
    module.exit_json(changed=False, cursor=watch.cursor_now(), invocation_id=watch.running(service + ".service"), deployed=found, service=service,
                     settled=settled, image=image,
                     headless=bool(found) and not watch.told(service).health_url,
                     **({"releases": Node().releases(service)} if given["earlier"] else {}))


if __name__ == "__main__":
    main()
