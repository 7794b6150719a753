#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: service_release
short_description: Deploy, stage, stop or roll back the service of one rank
version_added: 0.2.0
description:
  - Brings the files of a node's entry of C(plan.json) to the node (environment, secrets, unit, and for an engine over several nodes the link
    agent), tells systemd what it must know, and restarts the service only when something changed that a running service takes over at its
    start. A new description, order or limit restarts nothing.
  - Everything is written and the image looked for before the running service is stopped. What fails leaves it running. Where a later step fails,
    the files that were there are put back, and the service that ran is started again.
  - Each release is recorded in C(/etc/vllm/release.json). Copies of earlier ones, without secrets, are kept for O(state=rolled_back).
  - Does not wait until the service is ready; M(inferops.vllm.wait_ready) does.
options:
  entry:
    description: The node's entry of C(plan.json). Needed for V(started) and V(staged).
    type: dict
  state:
    description:
      - V(started) has the service running from this entry. V(stopped) has it stopped; with O(entry) the files are brought as well.
      - V(staged) writes all files to a folder of their own and switches nothing; C(restart) of the result says what V(started) would do.
      - V(rolled_back) goes back to an earlier release.
      - V(restored) writes the files of O(release) again as they were deployed, with the variables of O(env), and leaves the service running or
        stopped as it was.
    type: str
    choices: [started, stopped, staged, rolled_back, restored]
    default: started
  image:
    description:
      - Reference of the image on this node, by digest (C(name@sha256:…)) or id (C(sha256:…)). Left out means the entry's, which must then be
        by digest.
    type: str
  image_id:
    description: Id of the image, for the record. Left out, it is looked up when the service is started.
    type: str
  plan_sha256:
    description: Digest of C(plan.json), for the record.
    type: str
  api_key:
    description: Key that the server asks of its clients.
    type: str
  hf_token:
    description: Token for the Hugging Face hub.
    type: str
  secrets:
    description: More secrets as C(NAME=value) lines. O(api_key) and O(hf_token) win over it.
    type: str
  enabled:
    description: Whether the service starts at boot.
    type: bool
    default: true
  keep:
    description: Earlier releases that are kept for a rollback.
    type: int
    default: 3
  release:
    description:
      - Number of the release to go back to, for O(state=rolled_back) and O(state=restored).
      - The current one is left as it is, or started where it is down.
      - Left out, it is the one before the current, or with O(state=restored) the current one.
    type: int
  env:
    description: Variables that O(state=restored) sets beside those of the release, such as C(NCCL_DMABUF_ENABLE=0).
    type: dict
    default: {}
  name:
    description: The service, where no O(entry) names it.
    type: str
    choices: [vllm, vllm-router]
    default: vllm
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Returns details of what changed.
    support: full
    details: Of secrets only the names are shown, and whether they change.
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - C(systemctl daemon-reload) takes the GPUs from a running container that got them by C(--gpus). Such a service is stopped before the reload, and where
    it need not be restarted, the reload is left for the next restart (C(reload) of the result is V(deferred)).
  - The service is started without waiting. Ranks of an engine over several nodes wait for each other.
seealso:
  - module: inferops.vllm.plan
  - module: inferops.vllm.wait_ready
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Run the planned rank
  inferops.vllm.service_release:
    entry: "{{ vllm_plan_entry }}"
    image: registry.example/vllm@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    api_key: "{{ vllm_api_key }}"

- name: Go back to the release before
  inferops.vllm.service_release:
    state: rolled_back

- name: Write what is deployed again, with one variable more
  inferops.vllm.service_release:
    state: restored
    env:
      NCCL_DMABUF_ENABLE: "0"

- name: Stop the service
  inferops.vllm.service_release:
    state: stopped
"""

RETURN = r"""
restart:
  description: The running service was restarted, or would be in check mode and with O(state=staged).
  returned: success
  type: bool
files:
  description: Paths that changed.
  returned: success
  type: list
  elements: str
  sample: [/etc/systemd/system/vllm.service]
reload:
  description: V(none), V(done), or V(deferred) until the service is restarted.
  returned: success
  type: str
  sample: done
number:
  description: Number of the release, 0 when there is none.
  returned: success
  type: int
  sample: 4
release:
  description: What is deployed, as it stands in C(/etc/vllm/release.json).
  returned: success
  type: dict
switched:
  description:
    - What the service runs from, or whether it runs, was changed, or would be in check mode. With O(state=staged) it never is.
    - After a failure, that the change could not be put back; C(changed) says the same then.
  returned: always
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.service import agent, node, release


def main() -> None:
    """Parse arguments, bring the release to the node."""
    module = AnsibleModule(
        argument_spec={
            "entry": {"type": "dict"},
            "state": {"type": "str", "choices": ["started", "stopped", "staged", "rolled_back", "restored"], "default": "started"},
            "image": {"type": "str"},
            "image_id": {"type": "str"},
            "plan_sha256": {"type": "str"},
            "api_key": {"type": "str", "no_log": True},
            "hf_token": {"type": "str", "no_log": True},
            "secrets": {"type": "str", "no_log": True},
            "enabled": {"type": "bool", "default": True},
            "keep": {"type": "int", "default": 3},
            "release": {"type": "int"},
            "env": {"type": "dict", "default": {}},
            "name": {"type": "str", "choices": ["vllm", "vllm-router"], "default": "vllm"},
        },
        required_if=[("state", "started", ("entry",)), ("state", "staged", ("entry",))],
        supports_check_mode=True,
    )
    params = module.params
    state, keep = params["state"], params["keep"]
    here = node.Node(check=module.check_mode, agent=(agent.program(), agent.UNIT))
    try:
        if keep < 0 or keep > 100:
            raise release.ReleaseError("keep: %d is not a number from 0 to 100" % keep)
        if state == "rolled_back":
            answer = here.roll_back(params["name"], params["release"] or 0, "started", params["enabled"], keep)
        elif state == "restored":
            answer = here.restore(params["name"], params["release"] or 0, release.environment(params["env"]), keep)
        elif state == "stopped" and not params["entry"]:
            answer = here.stop(params["name"])
        else:
            given = release.secrets({"VLLM_API_KEY": params["api_key"], "HF_TOKEN": params["hf_token"]}, params["secrets"] or "")
            entry = release.checked(params["entry"], params["image"] or "")
            about = {"plan_sha256": params["plan_sha256"], "image_id": params["image_id"]}
            answer = here.deploy(entry, release.for_role(entry, given), about, state, params["enabled"], keep)
    except release.ReleaseError as exc:
        module.fail_json(msg=str(exc), changed=here.switched, switched=here.switched)
    for text in answer.warnings:
        module.warn(text)
    module.exit_json(
        changed=answer.changed, files=answer.files, restart=answer.restart, reload=answer.reload, number=answer.number, release=answer.record,
        state=answer.state, switched=answer.changed and answer.state != "staged",
        **({"diff": answer.diff} if module._diff and answer.diff else {}))


if __name__ == "__main__":
    main()
