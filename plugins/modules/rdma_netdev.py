#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_netdev
short_description: Set state, MTU and addresses of the interfaces of RDMA ports
version_added: 0.2.0
description:
  - Sets them with C(ip) now, and by one unit of its own at each boot, whatever else manages the network of the node. Reloads nothing.
  - Interfaces that carry SSH or the default route are refused.
options:
  state:
    description:
      - V(present) sets O(mtu) and O(addresses). V(up) and V(down) set the administrative state, for this boot.
      - V(restored) takes back what V(present) changed of O(what), and no longer sets it at boot.
    type: str
    choices: [present, up, down, restored]
    default: present
  name:
    description: Interfaces; left out means all of RDMA ports, with O(state=up) those whose port is not active.
    type: list
    elements: str
  mtu:
    description: MTU in bytes.
    type: int
  addresses:
    description: Interface → address with prefix length.
    type: dict
    default: {}
  what:
    description: What O(state=restored) takes back.
    type: str
    choices: [mtu, addresses]
    default: mtu
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
seealso:
  - module: inferops.vllm.node_facts
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: One MTU on all RDMA interfaces
  inferops.vllm.rdma_netdev:
    mtu: 9000

- name: Their addresses
  inferops.vllm.rdma_netdev:
    addresses: {ens1f0np0: 10.0.0.1/24}
"""

RETURN = r"""
interfaces:
  description: Interfaces that were changed, or would be.
  returned: always
  type: list
  elements: str
commands:
  description: Arguments of C(ip), or what would be run.
  returned: always
  type: list
  elements: str
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.packages.system import runner
from ansible_collections.inferops.vllm.plugins.module_utils.remedies import netdev

LIMIT = 30
"""Seconds that one call of `ip` may take; a network driver that is stuck holds it for ever."""


def main() -> None:
    """Look, compare, set."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "up", "down", "restored"], "default": "present"},
            "name": {"type": "list", "elements": "str"},
            "mtu": {"type": "int"},
            "addresses": {"type": "dict", "default": {}},
            "what": {"type": "str", "choices": ["mtu", "addresses"], "default": "mtu"},
        },
        supports_check_mode=True,
    )
    p = module.params
    ip = module.get_bin_path("ip", required=True)
    facts = gather(LiveReader(10.0), Options(subset=("rdma",)))
    run = runner({})
    ran = run([ip, "-json", "address", "show"], LIMIT)
    if ran.rc:
        module.fail_json(msg="ip -json address show: %s" % " ".join(ran.err.split())[:200])
    now = netdev.parse(ran.out)
    all_names = netdev.rdma_interfaces(facts)
    names = p["name"] if p["name"] is not None else netdev.rdma_interfaces(facts, down=p["state"] == "up")
    if p["state"] == "present" and p["mtu"] is None:
        names = []
    strange = [name for name in list(names) + list(p["addresses"]) if name not in all_names]
    if strange:
        module.fail_json(msg="%s is no interface of an RDMA port of this node, or it carries SSH or the default route" % strange[0])
    kept = load(netdev.KEPT)
    try:
        addresses = {name: netdev.canonical(name, address) for name, address in p["addresses"].items()}
        if p["state"] == "restored":
            lines = netdev.undo(kept, now, p["what"])
        else:
            up = {"up": True, "down": False}.get(p["state"])
            lines = netdev.changes(now, names, up, p["mtu"] if p["state"] == "present" else None, addresses if p["state"] == "present" else {})
    except netdev.NetdevError as exc:
        module.fail_json(msg=str(exc))
    before = read(netdev.UNIT)
    after = wanted_unit(p, addresses, names, before)
    linked = os.path.lexists(netdev.WANTED)
    changed = bool(lines) or after != before or linked != bool(after)
    result = {
        "changed": changed, "interfaces": sorted({line[3] if line[0] == "link" else line[-1] for line in lines}),
        "commands": [" ".join(line) for line in lines],
        "diff": {"before": before, "after": after, "before_header": netdev.UNIT, "after_header": netdev.UNIT},
    }
    if not changed or module.check_mode:
        module.exit_json(**result)
    try:
        if p["state"] == "present":
            write(netdev.KEPT, json.dumps(netdev.remember(kept, now, lines)), 0o600)
        for line in lines:
            ran = run([ip] + line, LIMIT)
            if ran.rc:
                module.fail_json(msg="ip %s: %s" % (" ".join(line), " ".join(ran.err.split())[:200]), **result)
        if p["state"] == "restored" and kept:
            write(netdev.KEPT, json.dumps(netdev.forgotten(kept, p["what"])), 0o600)
        if after and after != before:
            write(netdev.UNIT, after, 0o644)
        if after and not linked:
            os.makedirs(os.path.dirname(netdev.WANTED), exist_ok=True)
            os.symlink("../" + netdev.UNIT.rpartition("/")[2], netdev.WANTED)
        if not after:
            for path in (netdev.WANTED, netdev.UNIT):
                if os.path.lexists(path):
                    os.unlink(path)
    except OSError as exc:
        module.fail_json(msg="%s cannot be written: %s" % (exc.filename, exc.strerror), **result)
    module.exit_json(**result)


def wanted_unit(p, addresses, names, before):
    """Text of the unit, empty when it has nothing to do at boot."""
    lines = netdev.lines_of(before)
    if p["state"] == "present":
        new = [["link", "set", "dev", name, "mtu", str(p["mtu"])] for name in names if p["mtu"] is not None]
        new += [["address", "replace", address, "dev", name] for name, address in addresses.items()]
        lines = netdev.merged(lines, new)
    elif p["state"] == "restored":
        lines = [line for line in lines if (line[0] == "address") != (p["what"] == "addresses")]
    return netdev.unit(lines) if lines else ""


def read(path):
    """Text of a file, empty when it is not there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(262144)
    except OSError:
        return ""


def load(path):
    """Table in a JSON file, empty when there is none."""
    try:
        found = json.loads(read(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def write(path, text, mode):
    """Replace a file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        os.chmod(path + ".new", mode)
        file.write(text)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
