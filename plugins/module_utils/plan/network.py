# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses, interfaces and HCAs of the nodes of a plan: from host variables, else from facts, else assumed."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..checks.gpudirect import peermem_loaded, refused
from ..checks.model import Context, Node
from ..checks.rdma import compute_hcas
from ..checks.wording import listed, short
from .notes import Refusal

_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,14}\Z")


class Place(NamedTuple):
    """Where a node is reached.

    Attributes:
        address: IP address between nodes, empty when it is not known.
        interface: interface of that address, empty when it is not known.
        listen: address that the service listens on.
        told: how the address came about, one phrase.
        assumed: sentences on what was not declared and not read, each with ``%s`` for the node's name.
        refused: contradictions and what is wanting.
    """

    address: str
    interface: str
    listen: str
    told: str
    assumed: Tuple[str, ...]
    refused: Tuple[Refusal, ...]


def host_port(address: str, port: int) -> str:
    """``10.0.0.1:8000``, ``[2001:db8::1]:8000``."""
    return "%s:%d" % ("[%s]" % address if ":" in address else address, port)


def ip(value: Any) -> str:
    """`value` as an IP address in its usual form, empty when it is none."""
    try:
        return str(ipaddress.ip_address(str(value).partition("/")[0].strip()))
    except ValueError:
        return ""


def items(value: Any) -> Sequence[Any]:
    """`value` when it is a list, else an empty one."""
    return value if isinstance(value, (list, tuple)) else ()


def addresses(node: Node) -> Dict[str, List[str]]:
    """Interface → IP addresses that were read on the node; ``{}`` when none were."""
    value = node.get("host.addresses")
    found: Dict[str, List[str]] = {}
    for name, given in value.items() if isinstance(value, dict) else ():
        plain = [ip(item) for item in items(given)]
        if any(plain):
            found[str(name)] = [item for item in plain if item]
    return found


def place(node: Node, several: bool) -> Place:
    """Where `node` is reached; `several` when other nodes of the plan must reach it."""
    wrong: List[Refusal] = []
    assumed: List[str] = []
    here = addresses(node)
    interface = _declared_interface(node, here, wrong)
    address, told = _address(node, here, interface, several, wrong, assumed)
    if address and not wrong:
        _unusable(node, address, several, wrong)
    holder = next((name for name, known in here.items() if address in known), "") if address else ""
    if address and here and not holder and told == "vllm_host_ip" and not wrong:
        wrong.append(("vllm_host_ip %s is not an address of %s" % (address, node.name), [
            "vllm_host_ip: %s" % address, "addresses of %s: %s" % (node.name, _shown(here))]))
    if holder and interface and holder != interface and not wrong:
        wrong.append(("vllm_interface and vllm_host_ip of %s do not go together" % node.name, [
            "vllm_interface: %s" % interface, "%s is an address of %s" % (address, holder)]))
    interface = interface or holder
    if several and not interface and not wrong:
        assumed.append("the interface of the address of %s is not known, so IFACE_OF_… stands for it; declare vllm_interface")
    listen = ip(node.declared.get("listen")) if node.declared.get("listen") not in (None, "") else address
    if node.declared.get("listen") not in (None, "") and not listen:
        wrong.append(("vllm_listen_address of %s is no IP address" % node.name, ["vllm_listen_address: %s" % short(
            node.declared.get("listen"), 60)]))
    if listen and ipaddress.ip_address(listen).is_unspecified:
        assumed.append("%s listens on all addresses, and what an API key does not guard (/invocations, /metrics) is open on them")
    return Place(address, interface, listen, told, tuple(assumed), tuple(wrong))


def _declared_interface(node: Node, here: Mapping[str, List[str]], wrong: List[Refusal]) -> str:
    value = node.declared.get("interface")
    if value in (None, ""):
        return ""
    if not isinstance(value, str) or not _INTERFACE.match(value):
        wrong.append(("vllm_interface of %s is no name of an interface" % node.name, ["vllm_interface: %s" % short(repr(value), 60)]))
        return ""
    if here and value not in here:
        wrong.append(("%s has no interface %s with an address" % (node.name, value), [
            "vllm_interface: %s" % value, "addresses of %s: %s" % (node.name, _shown(here))]))
    return value


def _address(node: Node, here: Mapping[str, List[str]], interface: str, several: bool, wrong: List[Refusal],
             assumed: List[str]) -> Tuple[str, str]:
    value = node.declared.get("host_ip")
    resolved = [ip(item) for item in items(node.declared.get("resolved")) if ip(item)]
    if value not in (None, ""):
        if ip(value):
            return ip(value), "vllm_host_ip"
        if resolved:
            assumed.append("the name in vllm_host_ip of %s was resolved where the plan was made")
            return resolved[0], "the name in vllm_host_ip"
        wrong.append(("the name %s of %s does not resolve" % (short(value, 60), node.name), ["vllm_host_ip: %s" % short(value, 60)]))
        return "", ""
    if interface and here.get(interface):
        return _first(here[interface]), "the address of vllm_interface"
    route = node.get("rdma.default_route")
    if not interface and isinstance(route, str) and here.get(route):
        found = _first(here[route])
        if several:
            assumed.append("vllm_host_ip of %s is not declared, so the address of the interface with the default route is taken")
        return found, "the interface of the default route"
    if ip(node.declared.get("ansible_host")) and not _loopback(ip(node.declared.get("ansible_host"))):
        found = ip(node.declared.get("ansible_host"))
        if several:
            assumed.append("vllm_host_ip of %s is not declared, so ansible_host is taken")
        return found, "ansible_host"
    if resolved and not _loopback(resolved[0]):
        assumed.append("vllm_host_ip of %s is not declared, so the name was resolved where the plan was made")
        return resolved[0], "its name"
    if several:
        wrong.append(("the address of %s is not known" % node.name, [
            "vllm_host_ip of %s: not declared" % node.name,
            "the name %s: does not resolve" % node.name if not resolved else "the name %s: resolves to %s" % (node.name, resolved[0]),
            "facts of %s: %s" % (node.name, short(node.unreachable, 80) if node.unreachable else "no usable address")]))
        return "", ""
    assumed.append("no address of %s is declared or known, so it listens on 127.0.0.1 only; declare vllm_host_ip")
    return "127.0.0.1", "nothing"


def _unusable(node: Node, address: str, several: bool, wrong: List[Refusal]) -> None:
    parsed = ipaddress.ip_address(address)
    kind = "a loopback address" if parsed.is_loopback else "no address of one node" if parsed.is_unspecified or parsed.is_multicast \
        else "a link-local address" if parsed.is_link_local else ""
    if kind and (several or not parsed.is_loopback):
        wrong.append(("%s of %s is %s, which other nodes cannot reach" % (address, node.name, kind), ["address of %s: %s" % (
            node.name, address)]))


def _loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _first(known: Sequence[str]) -> str:
    """The first IPv4 address, else the first of all."""
    return next((item for item in known if ":" not in item), known[0])


def _shown(here: Mapping[str, List[str]]) -> str:
    return listed(("%s %s" % (name, ", ".join(known)) for name, known in here.items()), 12)


# -- HCAs ------------------------------------------------------------------------------------------------------
class Hcas(NamedTuple):
    """Compute HCAs with an active port, as NCCL and UCX take them; `why` when there is no list."""

    nccl: str
    usable: int
    left_out: Dict[str, str]
    why: str


def hcas(node: Node, context: Context, most: int) -> Hcas:
    """``=mlx5_0,mlx5_1``: exact names, since NCCL would take ``mlx5_1`` for ``mlx5_10`` too.

    A port is named (``mlx5_0:3``) where an HCA has ports that are not active. Management, switch-management
    and virtual devices and dead ports are left out, each with its reason.
    """
    if not node.items("rdma.hcas"):
        return Hcas("", 0, {}, node.why_unknown("rdma.hcas") or ("no HCA was found" if node.get("rdma.hcas") is not None else ""))
    compute = compute_hcas(node, context)
    words: List[str] = []
    left = dict(compute.others)
    count = 0
    for hca in compute.hcas:
        ports = [port for port in items(hca.get("ports")) if isinstance(port, dict)]
        alive = [port for port in ports if port.get("state") == "ACTIVE" and port.get("phys", "LinkUp") == "LinkUp"]
        name = str(hca.get("name"))
        if not alive:
            left[name] = "no active port"
            continue
        count += 1
        words += [name] if len(alive) == len(ports) else ["%s:%s" % (name, port.get("port")) for port in alive]
    return Hcas("=" + ",".join(words[:most]) if words else "", count, left, "" if words else "no compute HCA has an active port")


# -- errno 524 ---------------------------------------------------------------------------------------------------
class Fallback(NamedTuple):
    """NCCL_DMABUF_ENABLE=0: `needed` by which nodes, and the nodes where nvidia_peermem is not loaded or not known."""

    needed: Tuple[str, ...]
    evidence: str
    without: Tuple[str, ...]
    unknown: Tuple[str, ...]

    @property
    def allowed(self) -> bool:
        """nvidia_peermem is loaded on every node."""
        return not self.without and not self.unknown


def fallback(nodes: Sequence[Node]) -> Fallback:
    """Whether the nodes, which exchange over RDMA, need the fallback from dma-buf to nvidia_peermem and may take it."""
    hit: List[str] = []
    evidence = ""
    without: List[str] = []
    unknown: List[str] = []
    for node in nodes:
        signs = refused(node)
        if signs:
            hit.append(node.name)
            evidence = evidence or signs[0]
        loaded = peermem_loaded(node)
        if loaded is False:
            without.append(node.name)
        elif loaded is None:
            unknown.append(node.name)
    return Fallback(tuple(hit), evidence, tuple(without), tuple(unknown))


def clique(node: Node) -> Optional[str]:
    """NVLink domain and clique of the node's GPUs, None when they are not known or not complete."""
    found = set()
    for gpu in node.items("gpu.gpus"):
        fabric = gpu.get("fabric")
        if not isinstance(fabric, dict) or not fabric.get("cluster") or fabric.get("clique") in (None, ""):
            return None
        found.add("%s clique %s" % (fabric["cluster"], fabric["clique"]))
    return " and ".join(sorted(found)) if found else None
