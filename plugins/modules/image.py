#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image
short_description: Bring a container image to a node by digest, and verify it
version_added: 0.2.0
description:
  - Sees to it that the image is in Docker or Podman on the node, pulled from a registry or loaded from an archive, and that it is the
    one that was named, by its digest.
  - Holds the CUDA version and the version of vLLM in the image against what the plan needs.
  - An image that is there already and was verified before costs one question to the engine, and none to the network.
  - Images that were used before stay, for a rollback, unless O(keep) says otherwise.
  - While a pull runs, the terminal shows how far it is. A run that is interrupted leaves the pull running, and the next one watches it.
  - The password is held in memory alone with Docker, and with Podman in a file of mode 0600 while it pulls.
options:
  image:
    description:
      - Name of the image with its digest, C([registry/]repository@sha256:…).
    type: str
    default: ""
  engine:
    description:
      - The container engine.
    type: str
    choices: [docker, podman]
    default: docker
  archive:
    description:
      - A tar archive on the node to load the image from, instead of a registry. That of C(docker save), or an OCI image layout.
      - An OCI layout tells the digest of O(image). An archive of C(docker save) mostly tells the image's id alone, so give O(image_id).
    type: path
  image_id:
    description:
      - Id that the image must have, C(sha256:…).
    type: str
    default: ""
  registry:
    description:
      - Registry that O(registry_user), O(registry_password) and O(registry_ca) belong to, C(host) or C(host:port). They are used for no other.
      - It is put in front of a name in O(image) that has no registry.
    type: str
    default: ""
  registry_user:
    description:
      - User of the registry.
    type: str
    default: ""
  registry_password:
    description:
      - Password or token of the user.
    type: str
    default: ""
  registry_ca:
    description:
      - Certificate of the registry's authority in PEM form, the text itself. It goes to the engine's folder C(certs.d).
    type: str
    default: ""
  profile:
    description:
      - Hold the image against what this profile needs (CUDA for NVIDIA's image). Empty holds it against nothing.
    type: str
    choices: ["", kimi_k3]
    default: ""
  cuda_major:
    description:
      - Major version of CUDA that the image must hold at least; V(0) for any, left out for what O(profile) needs.
    type: int
  vllm_version:
    description:
      - Version of vLLM that the plan was made for; the image must hold the same release. Empty for any.
    type: str
    default: ""
  digest_required:
    description:
      - Refuse a tag, saying its digest. With V(false) a tag is resolved once on this node and stays what it was then.
    type: bool
    default: true
  keep:
    description:
      - How many of the images that this module brought are kept, the newest first; older ones are removed unless a container uses them.
        V(0) keeps all.
    type: int
    default: 0
  docker_socket:
    description:
      - Socket of the Docker daemon.
    type: path
    default: /var/run/docker.sock
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
    details: Says what would be pulled, also where no engine is installed yet. An image is held against the plan only when it is there.
  diff_mode:
    description: Returns details of what changed.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
seealso:
  - module: inferops.vllm.weights
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Bring the image
  inferops.vllm.image:
    image: registry.example.com/vllm/vllm-openai@sha256:82d6470fd7076f04a501b8ba94a1ddfc30b3135ab826c3323fb4f53564594480
    registry: registry.example.com
    registry_user: puller
    registry_password: "{{ vault_registry_password }}"
    profile: kimi_k3

- name: Load it where there is no network
  inferops.vllm.image:
    archive: /srv/images/vllm-kimi-k3.tar
    image_id: sha256:0d3a…
"""

RETURN = r"""
reference:
  description: The name to start the image by. C(name@digest), or the image's id when it came from an archive.
  returned: success
  type: str
  sample: vllm/vllm-openai@sha256:82d6…
id:
  description: The engine's id of the image.
  returned: success
  type: str
  sample: sha256:0d3a…
digest:
  description: The digest that it was verified by, empty when its id was what counted.
  returned: success
  type: str
  sample: sha256:82d6…
vllm_version:
  description: Version of vLLM in the image, empty when it could not be told.
  returned: success
  type: str
  sample: 0.27.1
cuda:
  description: CUDA version of the image, empty when it does not tell.
  returned: success
  type: str
  sample: 13.0.2
size_bytes:
  description: Unpacked size.
  returned: success
  type: int
  sample: 31000000000
present:
  description: The image is on the node; false only in check mode.
  returned: success
  type: bool
  sample: true
previous:
  description: The image that this node had before, C(reference) and C(id). Empty for the first one.
  returned: success
  type: dict
  sample: {reference: vllm/vllm-openai@sha256:9c1e…, id: sha256:77ab…}
removed:
  description: Images that were removed because of O(keep).
  returned: success
  type: list
  elements: str
steps:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [pulled vllm/vllm-openai@sha256:82d6…]
notes:
  description: What could not be told.
  returned: success
  type: list
  elements: str
kind:
  description: Kind of the trouble, such as V(unreachable), V(credentials), V(tls), V(absent), V(disk_full), V(daemon_down), V(tag), V(digest),
    V(archive), V(cuda), V(vllm), V(words).
  returned: failure
  type: str
  sample: unreachable
"""

import hashlib
import json

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils import jobs
from ansible_collections.inferops.vllm.plugins.module_utils.images import ensure
from ansible_collections.inferops.vllm.plugins.module_utils.images.docker import Docker
from ansible_collections.inferops.vllm.plugins.module_utils.images.podman import Podman
from ansible_collections.inferops.vllm.plugins.module_utils.images.trouble import ImageProblem
from ansible_collections.inferops.vllm.plugins.module_utils.plan.profiles import MODELS

JOB = "image"


def cuda_major(params):
    """What was asked for, else what the profile needs; the profile's image for AMD holds no CUDA."""
    if params["cuda_major"] is not None or not params["profile"]:
        return params["cuda_major"] or 0
    model = MODELS[params["profile"]]
    name = params["image"].partition("@")[0]
    return 0 if "rocm" in name else model.image_cuda_major


def work(request, engine, tell, dry=False, quick=False):
    """What ensure.run returns, a problem as a failed result."""
    try:
        return ensure.run(request, engine, ensure.Paths(), tell, dry, quick)
    except ImageProblem as exc:
        return {"failed": True, "msg": str(exc), "kind": exc.kind}


def main() -> None:
    """Parse arguments, look for the image, bring it or start to."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "default": ""},
            "engine": {"type": "str", "choices": ["docker", "podman"], "default": "docker"},
            "archive": {"type": "path"},
            "image_id": {"type": "str", "default": ""},
            "registry": {"type": "str", "default": ""},
            "registry_user": {"type": "str", "default": ""},
            "registry_password": {"type": "str", "default": "", "no_log": True},
            "registry_ca": {"type": "str", "default": ""},
            "profile": {"type": "str", "choices": ["", *MODELS], "default": ""},
            "cuda_major": {"type": "int"},
            "vllm_version": {"type": "str", "default": ""},
            "digest_required": {"type": "bool", "default": True},
            "keep": {"type": "int", "default": 0},
            "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
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
        jobs.finish(module, told.result or {"failed": True, "msg": "the work on the image was killed on this node; run it again", "kind": "killed"})

    wanted = ensure.Wanted(
        params["image"], params["archive"] or "", params["image_id"], params["registry"], params["registry_user"], params["registry_password"],
        params["registry_ca"], cuda_major(params), params["vllm_version"], params["digest_required"], params["keep"])
    try:
        request = ensure.check(wanted)
    except ImageProblem as exc:
        module.fail_json(msg=str(exc), kind=exc.kind)
    engine = Docker(params["docker_socket"]) if params["engine"] == "docker" else Podman()
    result = work(request, engine, jobs.quiet, dry=module.check_mode, quick=params["background"])
    if not result.get("long"):
        jobs.finish(module, result)
    # Equal requests are told by everything but the password.
    asked = json.dumps([params["engine"], wanted._replace(password="")._asdict()], sort_keys=True)
    try:
        jobs.start(JOB, hashlib.sha256(asked.encode()).hexdigest(), lambda tell: work(request, engine, tell))
    except jobs.Busy as exc:
        module.fail_json(msg=str(exc), kind="busy")
    except OSError as exc:
        module.fail_json(msg="%s cannot be written: %s" % (exc.filename or jobs.FOLDER, exc.strerror or exc), kind="file")
    module.exit_json(changed=False, job=JOB)


if __name__ == "__main__":
    main()
