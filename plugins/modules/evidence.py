#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: evidence
short_description: Freeze the scene of one node before anything is changed
version_added: 0.2.0
description:
  - Reads everything that tells why vLLM does not serve, and writes it as one archive on the controller; the facts that
    M(inferops.vllm.node_facts) reads, the real command line and environment of the running processes, unit and overrides, containers, the
    logs of this boot complete (also those of earlier starts and containers), kernel log, GPUs, RDMA, versions inside the container, and
    the metrics of a server that still answers.
  - Nothing on the node is changed and no process is stopped or entered. The archive is a snapshot, so M(inferops.vllm.node_facts) with
    O(inferops.vllm.node_facts#module:root), the preflight playbook and the diagnose playbook work on it without access to the node.
  - Works with a driver that does not answer (every command has a deadline), and with a full disk; then nothing is written on the node, and the
    archive is streamed to the controller.
  - Secrets are masked by name, by shape, and by the values that the node is known to use. Where something was masked stands in
    C(evidence.json).
extends_documentation_fragment:
  - inferops.vllm.collection
options:
  dest:
    description:
      - Folder on the controller for the archive, made when it is not there. The archive is named after O(node), with a number when that name is
        taken; nothing is ever written over.
    type: path
    required: true
  node:
    description: Name under which the node is recorded. Left out means the name in the inventory.
    type: str
  format:
    description: V(tar.gz), or V(tar.zst) (needs the program C(zstd) on the node).
    type: str
    choices: [tar.gz, tar.zst]
    default: tar.gz
  parts:
    description:
      - What to take along. V(kubernetes) (objects, events and pod logs through C(kubectl) on the node) is taken only when it is named.
    type: list
    elements: str
    choices: [facts, commands, processes, server, logs, kubernetes]
    default: [facts, commands, processes, server, logs]
  log_seconds:
    description: Seconds that reading all logs together may take. Of a log that takes longer the beginning and the end are kept.
    type: float
    default: 20.0
  log_mib:
    description: MiB kept of one log before compression, a quarter from its beginning and the rest from its end.
    type: int
    default: 128
  total_mib:
    description: MiB of all logs together in the archive, after compression.
    type: int
    default: 128
  journal_lines:
    description: Lines of the whole journal of this boot, counted from its end. The journals of the units and of the kernel are complete.
    type: int
    default: 50000
  log_paths:
    description: Further plain files on the node that hold logs.
    type: list
    elements: str
    default: []
  namespace:
    description: Namespace that C(kubectl) is asked about.
    type: str
    default: ""
  selector:
    description: Label selector that C(kubectl) is asked with.
    type: str
    default: ""
  root:
    description:
      - A recorded node whose recording is taken along as it is, instead of reading the machine; absolute, or relative to the folder of the inventory.
    type: path
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: The node is not read; what would be read is returned.
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: Evidence is new every time.
  idempotent:
    description: A second run changes nothing.
    support: none
    details: Every run makes a new archive beside the earlier ones.
notes:
  - Run as root (C(become)), it sees all. What an ordinary user may not see is named in RV(missing).
seealso:
  - module: inferops.vllm.snapshot
  - module: inferops.vllm.evidence_bundle
  - module: inferops.vllm.diagnose
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Freeze the node
  inferops.vllm.evidence:
    dest: /srv/evidence/2026-03-01
  become: true

- name: Take nothing but the logs
  inferops.vllm.evidence:
    dest: /srv/evidence/2026-03-01
    parts: [logs]
    log_paths: [/var/log/vllm/server.log]
"""

RETURN = r"""
archive:
  description: Path of the archive on the controller.
  returned: success, not in check mode
  type: str
  sample: /srv/evidence/2026-03-01/node-01.tar.gz
node:
  description: Name under which the node was recorded.
  returned: success
  type: str
size:
  description: Bytes of the archive.
  returned: success, not in check mode
  type: int
sha256:
  description: Digest of the archive.
  returned: success, not in check mode
  type: str
seconds:
  description: Seconds that reading the node took.
  returned: success, not in check mode
  type: float
logs:
  description: Every log that was found, with C(file) in the archive, C(kind), C(lines) and what was cut.
  returned: success, not in check mode
  type: list
  elements: dict
services:
  description: Units that serve, with C(restarts) by systemd and C(starts_this_boot) in their journal.
  returned: success, not in check mode
  type: list
  elements: dict
cut:
  description: What was cut, one sentence each.
  returned: success, not in check mode
  type: list
  elements: str
missing:
  description: What could not be collected, with the reason.
  returned: success, not in check mode
  type: dict
redactions:
  description: How many secrets were masked, and of which kinds. The places stand in C(evidence.json) of the archive.
  returned: success, not in check mode
  type: dict
  sample: {count: 2, kinds: {value of HF_TOKEN: 2}}
would:
  description: What would be read.
  returned: in check mode
  type: list
  elements: str
skew:
  description: Seconds that the clock of the node is ahead of the controller's.
  returned: success, not in check mode
  type: float
streamed:
  description: Whether the archive was streamed to the controller, because the node's disk is full or cannot be written.
  returned: success, not in check mode
  type: bool
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.evidence import arguments, bundle, freeze


def main() -> None:
    """Parse arguments, freeze the node, write the archive."""
    module = AnsibleModule(argument_spec=arguments.spec(), supports_check_mode=True)
    params = module.params
    if params["root"]:
        module.fail_json(msg="root: a recording is taken along by the action plugin on the controller, which was passed over here")
    try:
        wanted = arguments.wanted(params)
    except ValueError as exc:
        module.fail_json(msg=str(exc))
    if module.check_mode:
        module.exit_json(changed=True, node=wanted.node, would=freeze.would(wanted))
    zstd = (module.get_bin_path("zstd") or "") if params["format"] == "tar.zst" else ""
    if params["format"] == "tar.zst" and not zstd:
        module.fail_json(msg="format: tar.zst needs the program zstd on the node; install it, or use tar.gz")
    frozen = freeze.freeze(wanted)
    archive = os.path.join(params["dest"], "%s.%s" % (wanted.node.replace(":", "_"), params["format"]))
    try:
        size, digest = bundle.write_archive(frozen.contents, archive, wanted.node, zstd)
        owner = os.stat(params["dest"])
        if os.geteuid() == 0 and owner.st_uid:
            # Whoever owns the folder is to fetch the archive.
            os.chown(archive, owner.st_uid, owner.st_gid)
    except OSError as exc:
        module.fail_json(msg="dest: %s cannot be written: %s" % (exc.filename or archive, exc.strerror or exc), errno=exc.errno or 0)
    module.exit_json(changed=True, archive=archive, size=size, sha256=digest, **arguments.result(frozen.account))


if __name__ == "__main__":
    main()
