#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: snapshot
short_description: Record one node so that it can be judged without access to it
version_added: 0.1.0
description:
  - Reads the node as M(inferops.vllm.node_facts) does, and writes every file that was read and the output of every command that was
    run to a folder or an archive.
  - M(inferops.vllm.node_facts) with O(inferops.vllm.node_facts#module:root) gives the same facts back from it, so a snapshot is evidence,
    demo node and test fixture at once.
  - Secrets are replaced before anything is written. C(MANIFEST.sha256) holds the digest of every file and can be checked with
    C(sha256sum -c).
extends_documentation_fragment:
  - inferops.vllm.collection
options:
  dest:
    description:
      - Where to write, on the node. A file for an archive, a folder for O(format=folder).
      - A snapshot that is already there is replaced; anything else that is already there is left as it is, and the module fails.
    type: path
    required: true
  format:
    description:
      - V(tar.gz), V(tar.zst) (needs the program C(zstd) on the node) or V(folder).
    type: str
    choices: [tar.gz, tar.zst, folder]
    default: tar.gz
  node:
    description:
      - Name under which the node is recorded. Left out means its host name.
    type: str
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: The node is read, nothing is written.
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: A snapshot is new every time.
  idempotent:
    description: A second run changes nothing.
    support: none
    details: Every run records the node anew.
seealso:
  - module: inferops.vllm.node_facts
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Record the node
  inferops.vllm.snapshot:
    dest: /var/tmp/node.tar.gz
    node: "{{ inventory_hostname }}"

- name: Judge it later, from anywhere
  inferops.vllm.node_facts:
    root: /srv/evidence/node.tar.gz
"""

RETURN = r"""
dest:
  description: Path that was written, or would be in check mode.
  returned: always
  type: str
  sample: /var/tmp/node.tar.gz
files:
  description: Number of files in the snapshot.
  returned: always
  type: int
  sample: 24
size:
  description: Bytes before compression.
  returned: always
  type: int
  sample: 512000
sha256:
  description: Digest of C(MANIFEST.sha256), which names every other file by its own.
  returned: always
  type: str
unknown:
  description: What could not be read, as C(section.part) with the reason.
  returned: always
  type: dict
  sample: {gpu.smi: nvidia-smi did not answer in time and was abandoned}
"""

import hashlib
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.node import arguments, snapshot
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import gather
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader


def main() -> None:
    """Parse arguments, read the node, write what was read."""
    module = AnsibleModule(
        argument_spec=dict(
            arguments.spec(),
            dest={"type": "path", "required": True},
            format={"type": "str", "choices": ["tar.gz", "tar.zst", "folder"], "default": "tar.gz"},
            node={"type": "str"},
        ),
        supports_check_mode=True,
    )
    params = module.params
    try:
        options = arguments.options(params)
    except ValueError as exc:
        module.fail_json(msg=str(exc))
    dest = params["dest"]
    if params["format"] != "folder" and os.path.isdir(dest):
        module.fail_json(msg="dest: %s is a folder; name a file for an archive, or set format=folder" % dest)
    if not os.path.isdir(os.path.dirname(dest) or "."):
        module.fail_json(msg="dest: the folder %s does not exist" % os.path.dirname(dest))
    zstd = (module.get_bin_path("zstd") or "") if params["format"] == "tar.zst" else ""
    if params["format"] == "tar.zst" and not zstd:
        module.fail_json(msg="format: tar.zst needs the program zstd on the node; install it, or use tar.gz")

    reader = LiveReader(params["timeout"])
    facts = gather(reader, options, keep=True)
    node = params["node"] or str(facts.get("host", {}).get("hostname") or os.uname().nodename)
    files = snapshot.render(reader, node, options.asdict())
    result = {
        "changed": True,
        "dest": dest,
        "files": len(files),
        "size": sum(len(data) for data in files.values()),
        "sha256": hashlib.sha256(files["MANIFEST.sha256"]).hexdigest(),
        "unknown": {
            "%s.%s" % (section, part): why
            for section, found in facts.items() if isinstance(found, dict)
            for part, why in (found.get("unknown") or {}).items()
        },
    }
    if not module.check_mode:
        try:
            if params["format"] == "folder":
                snapshot.write_folder(files, dest)
            else:
                snapshot.write_archive(files, dest, node, zstd)
        except snapshot.SnapshotError as exc:
            module.fail_json(msg="dest: %s" % exc)
        except OSError as exc:
            module.fail_json(msg="dest: %s cannot be written: %s" % (exc.filename or dest, exc.strerror or exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
