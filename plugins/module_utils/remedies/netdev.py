# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""MTU, addresses and state of the interfaces of RDMA ports: what has to change, and the unit that brings it back at boot."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

UNIT = "/etc/systemd/system/inferops-vllm-rdma-net.service"
WANTED = "/etc/systemd/system/multi-user.target.wants/inferops-vllm-rdma-net.service"
"""The link that has the unit started at boot. It is made by hand: `systemctl enable` reloads systemd, which takes the GPUs from running containers."""
KEPT = "/var/lib/inferops-vllm/rdma-net.json"
"""What the interfaces were before they were changed first."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}\Z")


class Interface(NamedTuple):
    """One interface: `up` administratively, `mtu`, `addresses` in the form of :func:`canonical`."""

    name: str
    up: bool
    mtu: int
    addresses: Sequence[str]


class NetdevError(ValueError):
    """What is wanted cannot be; the message names the interface or the value."""


def parse(text: str) -> Dict[str, Interface]:
    """Interfaces out of ``ip -json address show``; empty for text that is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    made: Dict[str, Interface] = {}
    for item in found if isinstance(found, list) else []:
        if not isinstance(item, dict) or not isinstance(item.get("ifname"), str):
            continue
        flags = item.get("flags")
        mtu = item.get("mtu")
        addresses = [_plain("%s/%s" % (a.get("local"), a.get("prefixlen"))) for a in item.get("addr_info") or [] if isinstance(a, dict) and a.get("local")] \
            if isinstance(item.get("addr_info"), list) else []
        made[item["ifname"]] = Interface(
            item["ifname"], isinstance(flags, list) and "UP" in flags, mtu if isinstance(mtu, int) and not isinstance(mtu, bool) else 0, addresses)
    return made


def canonical(name: str, address: Any) -> str:
    """The one way of writing the address of the interface `name`: ``FD00::1/64`` is ``fd00::1/64``, ``10.0.0.1/255.255.255.0`` is ``10.0.0.1/24``.

    Raises:
        NetdevError: it is no address with prefix length.
    """
    try:
        if "/" in str(address):
            return str(ipaddress.ip_interface(str(address)))
    except ValueError:
        pass
    raise NetdevError("addresses: %r of %s is no address with prefix length, such as 10.0.0.1/24" % (address, name))


def _plain(address: str) -> str:
    """What a machine or an earlier version wrote, in the form of :func:`canonical` where it is an address."""
    try:
        return canonical("", address)
    except NetdevError:
        return address


def rdma_interfaces(facts: Mapping[str, Any], down: bool = False) -> List[str]:
    """Interfaces of the node's RDMA ports that carry neither SSH nor the default route.

    Args:
        facts: content of ``vllm_node``.
        down: those alone whose port is disabled.
    """
    rdma = facts.get("rdma")
    made: List[str] = []
    hcas = rdma.get("hcas") if isinstance(rdma, dict) else None
    for hca in hcas if isinstance(hcas, list) else []:
        if not isinstance(hca, dict) or hca.get("virtual") or hca.get("sw_mng") or hca.get("carries"):
            continue
        for port in hca.get("ports") or []:
            name = port.get("netdev") if isinstance(port, dict) else None
            if isinstance(name, str) and _NAME.match(name) and (not down or not str(port.get("state")).startswith("ACTIVE")):
                made.append(name)
    return list(dict.fromkeys(made))


def changes(now: Mapping[str, Interface], names: Sequence[str], up: Optional[bool] = None, mtu: Optional[int] = None,
            addresses: Optional[Mapping[str, str]] = None) -> List[List[str]]:
    """Arguments of ``ip`` that bring the interfaces to what is wanted; empty when they are that already.

    Args:
        names: interfaces that `up` and `mtu` are for.
        addresses: interface → address with prefix length.

    Raises:
        NetdevError: an interface that is not there, an MTU or an address that is none.
    """
    if mtu is not None and not 1280 <= mtu <= 65520:
        raise NetdevError("mtu: %s is not between 1280 and 65520" % mtu)
    made: List[List[str]] = []
    addresses = addresses or {}
    for name in list(names) + [name for name in addresses if name not in names]:
        if name not in now:
            raise NetdevError("there is no interface %s on this node" % name[:40])
    for name in names:
        if mtu is not None and now[name].mtu != mtu:
            made.append(["link", "set", "dev", name, "mtu", str(mtu)])
        if up is not None and now[name].up != up:
            made.append(["link", "set", "dev", name, "up" if up else "down"])
    for name, wanted in addresses.items():
        address = canonical(name, wanted)
        if address not in now[name].addresses:
            made.append(["address", "replace", address, "dev", name])
    return made


def unit(lines: Sequence[Sequence[str]], program: str = "/usr/sbin/ip") -> str:
    """A unit that runs `lines` at boot. A line that fails does not keep the others from running."""
    text = ["[Unit]", "Description=RDMA interfaces as inferops.vllm was told", "Wants=network-online.target", "After=network-online.target",
            "Before=vllm.service", "", "[Service]", "Type=oneshot", "RemainAfterExit=yes"]
    text += ["ExecStart=-%s" % " ".join([program] + list(line)) for line in lines]
    return "\n".join(text + ["", "[Install]", "WantedBy=multi-user.target"]) + "\n"


def lines_of(text: str) -> List[List[str]]:
    """The lines of a unit that :func:`unit` wrote."""
    return [line.split()[1:] for line in text.splitlines() if line.startswith("ExecStart=-")]


def merged(before: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> List[List[str]]:
    """Lines for the unit: `new` in place of what `before` said of the same property of the same interface."""
    about = {_about(line) for line in new}
    return [list(line) for line in before if _about(line) not in about] + [list(line) for line in new]


def _about(line: Sequence[str]) -> Any:
    if line[:1] == ["link"]:
        return ("link", line[3], "mtu" if "mtu" in line else "state")
    return ("address", line[-1], _plain(line[2]) if len(line) > 2 else "")


def remember(kept: Mapping[str, Any], now: Mapping[str, Interface], lines: Sequence[Sequence[str]]) -> Dict[str, Any]:
    """`kept` with what the interfaces of `lines` are before they change; what was remembered first stays."""
    made: Dict[str, Any] = {str(name): dict(value) for name, value in kept.items() if isinstance(value, dict)}
    for line in lines:
        name = line[3] if line[0] == "link" else line[-1]
        entry = made.setdefault(name, {})
        if line[0] == "address":
            given = entry.setdefault("given", [])
            if line[2] not in given:
                given.append(line[2])
        elif "mtu" in line:
            entry.setdefault("mtu", now[name].mtu)
    return made


def forgotten(kept: Mapping[str, Any], what: str) -> Dict[str, Any]:
    """`kept` without what was taken back of ``mtu`` or ``addresses``: the next change remembers anew."""
    key = {"mtu": "mtu", "addresses": "given"}[what]
    made = {name: {word: value for word, value in entry.items() if word != key} for name, entry in kept.items() if isinstance(entry, dict)}
    return {name: entry for name, entry in made.items() if entry}


def undo(kept: Mapping[str, Any], now: Mapping[str, Interface], what: str) -> List[List[str]]:
    """Arguments of ``ip`` that take back what was changed of ``mtu`` or ``addresses``."""
    made: List[List[str]] = []
    for name, entry in kept.items():
        if name not in now or not isinstance(entry, dict):
            continue
        mtu = entry.get("mtu")
        if what == "mtu" and isinstance(mtu, int) and now[name].mtu != mtu:
            made.append(["link", "set", "dev", name, "mtu", str(mtu)])
        if what == "addresses":
            given = [_plain(str(address)) for address in entry.get("given") or []]
            made += [["address", "delete", address, "dev", name] for address in given if address in now[name].addresses]
    return made
