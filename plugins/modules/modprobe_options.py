#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: modprobe_options
short_description: Set options of kernel modules once, and keep modules out
version_added: 0.2.0
description:
  - Writes one file of our own in C(/etc/modprobe.d). A parameter that another file sets to the same value is left to that file, so that
    each stands once. A parameter that another file sets to another value is refused, and the file is named.
  - Writes the initial RAM file system anew when the file changed, since modules load from it at boot. Where that fails, the file is put
    back as it was, so that the next run does both again.
options:
  path:
    description: Our file.
    type: path
    required: true
  options:
    description: Parameters by module and name, such as C(nvidia.NVreg_CreateImexChannel0).
    type: dict
    default: {}
  block:
    description: Modules that must not load.
    type: list
    elements: str
    default: []
  initramfs:
    description: Write the initial RAM file system anew when the file changed.
    type: bool
    default: true
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Returns details of what changed.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Keep nouveau out
  inferops.vllm.modprobe_options:
    path: /etc/modprobe.d/inferops-vllm-nouveau.conf
    block: [nouveau]

- name: Make IMEX channel 0 with the driver
  inferops.vllm.modprobe_options:
    path: /etc/modprobe.d/inferops-vllm-nvidia.conf
    options:
      nvidia.NVreg_CreateImexChannel0: "1"
"""

RETURN = r"""
elsewhere:
  description: What other files say already, so that ours does not.
  returned: success
  type: list
  elements: str
initramfs:
  description: The command that wrote the initial RAM file system anew, or would; empty when none was needed or none is known here.
  returned: success
  type: str
conflicts:
  description: Files that set a parameter to another value.
  returned: failure
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.kernel import conf
from ansible_collections.inferops.vllm.plugins.module_utils.packages.system import names, read, runner, writer

REBUILD = (("update-initramfs", "-u"), ("dracut", "--force"))


def main() -> None:
    """Parse arguments, compare with the other files, write ours."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "options": {"type": "dict", "default": {}},
            "block": {"type": "list", "elements": "str", "default": []},
            "initramfs": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    path = params["path"]
    if os.path.dirname(path) != "/etc/modprobe.d" or not path.endswith(".conf"):
        module.fail_json(msg="path: %s is no file such as /etc/modprobe.d/NAME.conf" % path)
    try:
        options = conf.split({key: str(value) for key, value in params["options"].items()})
    except ValueError as exc:
        module.fail_json(msg="options: %s" % exc)
    files = ["%s/%s" % (folder, name) for folder in conf.MODPROBE_FOLDERS for name in names(folder) if name.endswith(".conf")]
    before = read(path)
    rendered = conf.render(options, params["block"], {one: read(one) or "" for one in files if one != path}, before or "")
    if rendered.conflicts:
        module.fail_json(msg="a parameter must stand once: %s; take it out there, or ask for that value" % "; ".join(rendered.conflicts),
                         conflicts=rendered.conflicts)
    changed = before != rendered.text
    programs = [(module.get_bin_path(argv[0], opt_dirs=["/usr/sbin", "/sbin"]), argv) for argv in REBUILD]
    rebuild = next(([program, *argv[1:]] for program, argv in programs if program), []) if changed and params["initramfs"] else []
    write = writer(module.atomic_move)
    if changed and not module.check_mode:
        try:
            write(path, rendered.text)
            ran = runner({})(rebuild, 900) if rebuild else None
            if ran and ran.rc:
                # Left in place, the next run would find nothing to do, and modules would load without it at boot.
                write(path, before)
                module.fail_json(msg="%s failed, so %s was put back as it was: %s" % (rebuild[0], path, ran.text[-300:]))
        except OSError as exc:
            module.fail_json(msg="%s: %s" % (exc.filename or path, exc.strerror or exc))
    module.exit_json(
        changed=changed, elsewhere=rendered.elsewhere, initramfs=" ".join(rebuild),
        diff={"before_header": path, "after_header": path, "before": before or "", "after": rendered.text or ""})


if __name__ == "__main__":
    main()
