#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: weights
short_description: Bring the weights of a model to a node, and see that they are whole
version_added: 0.2.0
description:
  - Finds the weights in a local or shared folder, copies them from a mirror, or downloads one commit of them with C(huggingface_hub) in the
    container image of the service. Each of the last two goes on where it was stopped.
  - Whole means that every file which the index names is there and has the length that its own header tells; no tensor is read for that.
    A mark beside the weights remembers it, so that the next look costs one pass of C(stat).
  - Free space is looked at first, by what is missing and a tenth more; so are inodes, and mount points of C(/etc/fstab) that are not mounted.
  - Of several nodes with the same shared folder, one brings the weights and the others wait for it.
  - While it works, the terminal shows how far it is. A run that is interrupted leaves the work running, and the next one watches it.
options:
  model:
    description:
      - Id of the model in the hub, as the service is started with it, or the absolute path of its folder.
    type: str
    default: ""
  path:
    description:
      - Folder that the service has as C(HF_HOME). A model that is named by its id stands below it in the layout of the hub's cache.
    type: path
    default: /var/lib/vllm
  revision:
    description:
      - Commit of the model's repository. A download or a copy under the model's id needs it.
    type: str
    default: ""
  source:
    description:
      - V(present) takes what is there or fails, V(copy) copies from O(from), V(download) asks the hub.
      - V(auto) takes what is there, else copies if O(from) is given, else downloads if the model has an id.
    type: str
    choices: [auto, present, copy, download]
    default: auto
  from:
    description:
      - A mirror on the node, a folder with the model's files or an uncompressed tar archive of one.
    type: path
  repository:
    description:
      - Id of the model in the hub, for a download into a path in O(model).
    type: str
    default: ""
  mount:
    description:
      - Mount point that must be mounted, such as that of a shared file system.
    type: path
  checksums:
    description:
      - V(write) reads all files once and writes their SHA-256 beside them, V(verify) reads all files and compares; both take as long as
        reading them does.
      - A file whose sum is another is named, and brought again from O(from) or the hub where O(source) allows it.
      - In the layout of the hub's cache V(verify) needs no V(write), since large files are named by their sum there.
    type: str
    choices: ["no", write, verify]
    default: "no"
  image:
    description:
      - Image to download with; it must be on the node.
    type: str
    default: ""
  engine:
    description:
      - The container engine.
    type: str
    choices: [docker, podman]
    default: docker
  hf_token:
    description:
      - Token of the hub. It goes to the container by a file of mode 0600 that is gone afterwards.
    type: str
    default: ""
  environment:
    description:
      - Variables for the download, such as C(HF_ENDPOINT) or C(HTTPS_PROXY). No secrets.
    type: dict
    default: {}
  ca_file:
    description:
      - PEM file on the node with the authorities that TLS to the hub, a mirror of it, or a proxy is held against, instead of those of the image.
    type: path
  workers:
    description:
      - Files that are downloaded or read at a time.
    type: int
    default: 8
  background:
    description:
      - Start what takes long as a job and return its name. The module's controller side uses it.
    type: bool
    default: false
  job:
    description:
      - Say how far this job is, and do nothing else. The module's controller side uses it.
    type: str
    default: ""
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: Says what would be copied or downloaded; sums are not verified.
  diff_mode:
    description: Returns details of what changed.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
seealso:
  - module: inferops.vllm.image
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: See that the weights on the shared file system are whole
  inferops.vllm.weights:
    model: /mnt/weights/Kimi-K3
    mount: /mnt/weights
    source: present

- name: Download one commit into the node's own disk
  inferops.vllm.weights:
    model: moonshotai/Kimi-K3
    revision: 0123456789abcdef0123456789abcdef01234567
    path: /var/lib/vllm
    image: vllm/vllm-openai@sha256:82d6470fd7076f04a501b8ba94a1ddfc30b3135ab826c3323fb4f53564594480
    hf_token: "{{ vault_hf_token }}"
"""

RETURN = r"""
folder:
  description: Folder of the model's files.
  returned: success
  type: str
  sample: /mnt/weights/Kimi-K3
model:
  description: O(model).
  returned: success
  type: str
  sample: /mnt/weights/Kimi-K3
revision:
  description: Commit of the weights, empty when it is not known.
  returned: success
  type: str
  sample: 0123456789abcdef0123456789abcdef01234567
present:
  description: The weights are there and whole; false only in check mode.
  returned: success
  type: bool
  sample: true
bytes:
  description: Bytes of all files.
  returned: success
  type: int
  sample: 1680000000000
files:
  description: Number of files.
  returned: success
  type: int
  sample: 110
shards:
  description: Number of files with tensors.
  returned: success
  type: int
  sample: 96
free_bytes:
  description: Bytes free on the file system of the weights.
  returned: success
  type: int
  sample: 2000000000000
mount:
  description: Mount point of that file system.
  returned: success
  type: str
  sample: /mnt/weights
device:
  description: Its device or export.
  returned: success
  type: str
  sample: filer:/export/weights
steps:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: str
verified:
  description: Number of files whose sums were compared, and were what they should be.
  returned: success
  type: int
  sample: 110
notes:
  description: What could not be told.
  returned: success
  type: list
  elements: str
kind:
  description: Kind of the trouble, such as V(incomplete), V(absent), V(disk_full), V(mount), V(revision), V(sums), V(unreachable),
    V(credentials), V(gated), V(words).
  returned: failure
  type: str
  sample: incomplete
"""

import hashlib
import json

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils import jobs
from ansible_collections.inferops.vllm.plugins.module_utils.weights import ensure
from ansible_collections.inferops.vllm.plugins.module_utils.weights.place import WeightsProblem

JOB = "weights"


def work(wanted, tell, dry=False, quick=False):
    """What ensure.run returns, a problem as a failed result."""
    try:
        return ensure.run(wanted, tell, dry, quick)
    except WeightsProblem as exc:
        return {"failed": True, "msg": str(exc), "kind": exc.kind}


def main() -> None:
    """Parse arguments, look at the weights, bring them or start to."""
    module = AnsibleModule(
        argument_spec={
            "model": {"type": "str", "default": ""},
            "path": {"type": "path", "default": "/var/lib/vllm"},
            "revision": {"type": "str", "default": ""},
            "source": {"type": "str", "choices": ["auto", "present", "copy", "download"], "default": "auto"},
            "from": {"type": "path"},
            "repository": {"type": "str", "default": ""},
            "mount": {"type": "path"},
            "checksums": {"type": "str", "choices": ["no", "write", "verify"], "default": "no"},
            "image": {"type": "str", "default": ""},
            "engine": {"type": "str", "choices": ["docker", "podman"], "default": "docker"},
            "hf_token": {"type": "str", "default": "", "no_log": True},
            "environment": {"type": "dict", "default": {}},
            "ca_file": {"type": "path"},
            "workers": {"type": "int", "default": 8},
            "background": {"type": "bool", "default": False},
            "job": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["job"]:
        told = jobs.state(JOB)
        if told.running:
            module.exit_json(changed=False, running=True, progress=told.progress)
        jobs.finish(module, told.result or {
            "failed": True, "msg": "the work on the weights was killed on this node; run it again, it goes on", "kind": "killed"})

    try:
        wanted = ensure.check(ensure.Wanted(
            params["model"], params["path"], params["revision"], params["source"], params["from"] or "", params["repository"], params["mount"] or "",
            params["checksums"], params["engine"], params["image"], params["hf_token"],
            {str(name): str(value) for name, value in params["environment"].items()}, max(1, min(64, params["workers"])), params["ca_file"] or ""))
    except WeightsProblem as exc:
        module.fail_json(msg=str(exc), kind=exc.kind)
    result = work(wanted, jobs.quiet, dry=module.check_mode, quick=params["background"])
    if not result.get("long"):
        jobs.finish(module, result)
    asked = json.dumps(wanted._replace(token="")._asdict(), sort_keys=True)
    try:
        jobs.start(JOB, hashlib.sha256(asked.encode()).hexdigest(), lambda tell: work(wanted, tell))
    except jobs.Busy as exc:
        module.fail_json(msg=str(exc), kind="busy")
    except OSError as exc:
        module.fail_json(msg="%s cannot be written: %s" % (exc.filename or jobs.FOLDER, exc.strerror or exc), kind="file")
    module.exit_json(changed=False, job=JOB)


if __name__ == "__main__":
    main()
