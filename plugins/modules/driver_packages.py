#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_packages
short_description: Install the NVIDIA driver and what must have its version
version_added: 0.2.0
description:
  - Brings the packages of the NVIDIA driver, of Fabric Manager, IMEX and their libraries to one and the same version of a branch.
  - Names differ between sources and branches. The package manager is asked which of the known names it offers.
  - The transaction is simulated first. It is refused when it would install, remove or upgrade a kernel, remove what is no part of the
    driver, or when there is not enough room; packages on hold, pins of others and packages that are not whole are refused by name.
  - Everything is fetched before anything is installed, so a repository that goes away leaves the node as it was.
  - Nothing is loaded or unloaded. M(inferops.vllm.driver_modules) does that.
options:
  branch:
    description: Driver branch, 580 or newer.
    type: str
    default: "580"
  version:
    description: Exact driver version of O(branch). Left out, an installed version of the branch stays, else the newest one is taken.
    type: str
  update:
    description: Move to the newest version of O(branch) although another one of it is installed.
    type: bool
    default: false
  flavour:
    description: Kind of the kernel modules.
    type: str
    choices: [open, proprietary]
    default: open
  driver:
    description: Install the driver itself. V(false) installs only O(components), in the version of the driver that is installed.
    type: bool
    default: true
  components:
    description: What else must be there. All but V(nvlsm), which has versions of its own, get exactly the driver's version.
    type: list
    elements: str
    choices: [fabricmanager, imex, nscq, nvsdm, nvlsm]
    default: []
  headers:
    description: Install the headers of the running kernel where the driver's modules are built on the node.
    type: bool
    default: true
  pin:
    description:
      - What the package manager is told to keep. V(version) the version, V(branch) the branch, V(none) nothing.
      - A file of our own on Debian and Ubuntu, a block in the version lock of dnf on Red Hat's family. Not done on SUSE.
    type: str
    choices: [version, branch, none]
    default: version
  unhold:
    description: Change packages although they are on hold or pinned to other versions. A hold stays on the package afterwards.
    type: bool
    default: false
  downgrade:
    description: Go back to an older driver than the one that is installed.
    type: bool
    default: false
  repair:
    description: Finish or reinstall packages that were left half installed or half configured.
    type: bool
    default: false
  while_used:
    description: Change packages although something uses the GPUs. Whatever runs in containers may then lose them.
    type: bool
    default: false
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: The transaction is simulated by the package manager. The lists of the repositories are not read anew.
  diff_mode:
    description: Returns details of what changed.
    support: full
    details: Lists packages with their versions.
  idempotent:
    description: A second run changes nothing.
    support: full
seealso:
  - module: inferops.vllm.driver_modules
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Install branch 580 with Fabric Manager and the NVLink subnet manager
  inferops.vllm.driver_packages:
    branch: "580"
    components: [fabricmanager, nvlsm]

- name: Put Fabric Manager beside the driver that is installed
  inferops.vllm.driver_packages:
    driver: false
    components: [fabricmanager]
"""

RETURN = r"""
version:
  description: Driver version that is installed now, or would be.
  returned: success
  type: str
  sample: 580.95.05
before:
  description: Packages of the driver before the change, by name.
  returned: success
  type: dict
  sample: {nvidia-open: 575.57.08-1}
installed:
  description: Packages of the driver after the change.
  returned: when packages were changed
  type: dict
  sample: {nvidia-open: 580.95.05-1}
transaction:
  description: What the package manager said it would do, as C(install), C(change) (from, to), C(remove), C(configure), and the bytes to
    download and to store.
  returned: success
  type: dict
notes:
  description: What else should be known.
  returned: success
  type: list
  elements: str
kind:
  description: Why it was refused, in a word. C(input), C(family), C(unavailable), C(headers), C(held), C(pinned), C(broken), C(kernel),
    C(remove), C(downgrade), C(space), C(download), C(resolver), C(install), C(build), C(verify), C(in_use), C(packages) or C(driver).
  returned: failure
  type: str
names:
  description: The packages, files or folders that the refusal is about.
  returned: failure
  type: list
  elements: str
"""

from typing import List

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.kernel.holders import foreign, holders
from ansible_collections.inferops.vllm.plugins.module_utils.packages import apt
from ansible_collections.inferops.vllm.plugins.module_utils.packages.choose import Request
from ansible_collections.inferops.vllm.plugins.module_utils.packages.data import COMPONENTS
from ansible_collections.inferops.vllm.plugins.module_utils.packages.driver import Node, ensure
from ansible_collections.inferops.vllm.plugins.module_utils.packages.model import Refused
from ansible_collections.inferops.vllm.plugins.module_utils.packages.system import free, names, read, runner, writer


def main() -> None:
    """Parse arguments, look, simulate, decide, apply."""
    module = AnsibleModule(
        argument_spec={
            "branch": {"type": "str", "default": "580"},
            "version": {"type": "str"},
            "update": {"type": "bool", "default": False},
            "flavour": {"type": "str", "choices": ["open", "proprietary"], "default": "open"},
            "driver": {"type": "bool", "default": True},
            "components": {"type": "list", "elements": "str", "choices": list(COMPONENTS), "default": []},
            "headers": {"type": "bool", "default": True},
            "pin": {"type": "str", "choices": ["version", "branch", "none"], "default": "version"},
            "unhold": {"type": "bool", "default": False},
            "downgrade": {"type": "bool", "default": False},
            "repair": {"type": "bool", "default": False},
            "while_used": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = dict(module.params, version=module.params["version"] or "", components=tuple(module.params["components"]))

    def users() -> List[str]:
        return foreign(holders())

    node = Node(runner(apt.ENVIRONMENT), read, names, free, writer(module.atomic_move), module.tmpdir, users, module.log)
    try:
        outcome = ensure(node, Request(**params), module.check_mode)
    except Refused as exc:
        module.fail_json(msg=str(exc), kind=exc.kind, names=exc.names)
    except OSError as exc:
        module.fail_json(msg="%s: %s" % (exc.filename or "the node", exc.strerror or exc), kind="packages", names=[])
    module.exit_json(changed=outcome.changed, **outcome.result)


if __name__ == "__main__":
    main()
