# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of RDMA: HCAs, their ports, rates, GIDs, MTU, errors, and which of them carries SSH."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ..plan.profiles import HARDWARE
from .model import Context, Node, Outcome, check, cluster_check, failed, passed, skipped, unsure, warned
from .thresholds import ACTIVE_MTU, BAD_LOG, FATAL_COUNTERS, FLAPS_A_DAY, LIMITING_LOG, NETDEV_MTU, SYMBOL_ERRORS_AN_HOUR
from .wording import commonest, listed, mapping, missing, number, short, without_rdma

NEAR = ("PIX", "PXB")
"""Words of ``nvidia-smi topo -m`` for a GPU and a NIC behind one PCIe switch."""


class Compute(NamedTuple):
    """HCAs that carry the data of the engine, and why the others do not (name → reason)."""

    hcas: List[Dict[str, Any]]
    others: Dict[str, str]


def compute_hcas(node: Node, context: Context) -> Compute:
    """Tell compute HCAs from management, switch-management, virtual and storage ones.

    Virtual and switch-management devices never count; one that carries SSH or the default route counts only
    when there is no other. Of the rest, those count that share a PCIe switch with a GPU; where the topology
    names none (Grace, or no topology), the most frequent kind of card counts. Names of devices differ between
    nodes and say nothing.
    """
    managing = node.get("fabric.sw_mng")
    switch_names = {str(name) for name in managing} if isinstance(managing, list) else set()
    others: Dict[str, str] = {}
    free: List[Dict[str, Any]] = []
    carrying: List[Dict[str, Any]] = []
    for hca in node.items("rdma.hcas"):
        name = str(hca.get("name"))
        if hca.get("virtual"):
            others[name] = "virtual"
        elif hca.get("sw_mng") or name in switch_names:
            others[name] = "manages NVLink switches"
        else:
            (carrying if hca.get("carries") else free).append(hca)
    row = HARDWARE.get(context.hardware)
    usual = row.hcas if row else 0
    near = _near_gpus(node)
    pool = [hca for hca in free if str(hca.get("name")) in near]
    if pool:
        # A lost GPU has no row in the topology, though its HCA is there: cards of the same kind count up to the usual number.
        kinds = {_kind(hca, ("type", "link_layer", "board")) for hca in pool}
        alike = [hca for hca in free if hca not in pool and _kind(hca, ("type", "link_layer", "board")) in kinds]
        pool += alike[: max(0, usual - len(pool))]
    else:
        pool = _commonest_kind(free, ("type", "link_layer"))
    if usual and len(pool) > usual:
        same = _commonest_kind(pool, ("type", "link_layer", "board"))
        pool = same if len(same) >= usual else pool
    if usual and pool and len(pool) < usual:
        # A compute card may carry SSH too: it counts when it is of the same kind and one is wanting.
        kinds = {_kind(hca, ("type", "link_layer", "board")) for hca in pool}
        pool = pool + [hca for hca in carrying if _kind(hca, ("type", "link_layer", "board")) in kinds][: usual - len(pool)]
    pool = pool or carrying
    chosen = {id(hca) for hca in pool}
    for hca in free + carrying:
        if id(hca) not in chosen:
            others[str(hca.get("name"))] = "carries %s" % _carried(hca) if hca.get("carries") else "for storage or other traffic"
    return Compute(pool, others)


def _near_gpus(node: Node) -> Dict[str, bool]:
    nics = mapping(node.get("gpu.topology.nics"))
    rows = node.get("gpu.topology.gpu_nic")
    names = [str(name) for name in nics.values()]
    near: Dict[str, bool] = {}
    for line in rows if isinstance(rows, list) else []:
        for name, word in zip(names, str(line).split()):
            if word in NEAR:
                near[name] = True
    return near


def _kind(hca: Dict[str, Any], keys: Sequence[str]) -> Tuple[str, ...]:
    first = next(iter(_ports(hca)), {})
    return tuple(str((first if key == "link_layer" else hca).get(key)) for key in keys)


def _commonest_kind(hcas: Sequence[Dict[str, Any]], keys: Sequence[str]) -> List[Dict[str, Any]]:
    best, _count = commonest([_kind(hca, keys) for hca in hcas])
    if len(best) > 1:
        # As many of one kind as of another: the faster one carries the data.
        best = [max(best, key=lambda kind: max(
            (number(port.get("rate_gbps")) for hca in hcas if _kind(hca, keys) == kind for port in _ports(hca)), default=0.0))]
    return [hca for hca in hcas if _kind(hca, keys) in best]


def _ports(hca: Dict[str, Any]) -> List[Dict[str, Any]]:
    value = hca.get("ports")
    return [port for port in value if isinstance(port, dict)] if isinstance(value, list) else []


def _up(port: Dict[str, Any]) -> bool:
    return port.get("state") == "ACTIVE" and port.get("phys", "LinkUp") == "LinkUp"


def _label(hca: Dict[str, Any], port: Dict[str, Any]) -> str:
    return "%s/%s" % (hca.get("name"), port.get("port"))


def _carried(hca: Dict[str, Any]) -> str:
    words = {"default_route": "the default route", "ssh": "SSH"}
    value = hca.get("carries")
    return " and ".join(words.get(str(word), str(word)) for word in value) if isinstance(value, list) else "other traffic"


def _active_ports(hcas: Sequence[Dict[str, Any]]) -> List[Tuple[Dict[str, Any], Dict[str, Any]]]:
    return [(hca, port) for hca in hcas for port in _ports(hca) if _up(port)]


@check(
    id="rdma.ports", severity="block", title="RDMA ports are up",
    why="A rank whose HCA is down cannot join the engine, or drags all others onto fewer links.",
    fix="Check cable, switch port and interface, then run `ansible-playbook inferops.vllm.remediate --limit NODE`.",
    read_from="/sys/class/infiniband/*/ports/*/{state,phys_state}", source="https://github.com/scitix/sichek")
def ports(node: Node, context: Context) -> Outcome:
    """Every compute HCA has an active port, and every port that carries data on most of its siblings is active."""
    reason = without_rdma(context)
    if reason:
        return skipped(reason)
    required = "every compute HCA active"
    why = missing(node, "rdma.hcas")
    if why:
        return unsure(why, required)
    compute = compute_hcas(node, context)
    if not compute.hcas:
        not_counted = listed("%s %s" % item for item in compute.others.items())
        seen = "no compute HCA" + (" (not counted: %s)" % not_counted if not_counted else "")
        return failed(short(seen), required, "The plan moves data over RDMA, and this node has no HCA to move it with.")
    faults: List[str] = []
    half = len(compute.hcas) / 2.0
    carried: Dict[str, int] = {}
    for _hca, port in _active_ports(compute.hcas):
        carried[str(port.get("port"))] = carried.get(str(port.get("port")), 0) + 1
    waiting = False
    sound = 0
    for hca in compute.hcas:
        up = [port for port in _ports(hca) if _up(port)]
        # Dead ports of a multi-plane card are dead on its siblings too; a port that works there is missed here.
        down = [port for port in _ports(hca) if not _up(port) and (not up or carried.get(str(port.get("port")), 0) > half)]
        if not up and not down:
            faults.append("%s has no port" % hca.get("name"))
        for port in down if up else down[:1]:
            faults.append("%s %s (%s)" % (_label(hca, port), port.get("state") or "?", port.get("phys") or "?"))
            waiting = waiting or port.get("state") in ("INIT", "ARMED")
        sound += not down and bool(up)
    if faults:
        return failed(
            short("%d of %d compute HCAs up; %s" % (sound, len(compute.hcas), listed(faults))), required,
            "A port in INIT or ARMED waits for a subnet manager, and carries no data until it has one." if waiting else None,
            "Start the subnet manager of this fabric, then run `ansible-playbook inferops.vllm.preflight` again." if waiting else None)
    row = HARDWARE.get(context.hardware)
    if row is not None and row.hcas > len(compute.hcas):
        return warned(
            "%d compute HCAs, all up" % len(compute.hcas), "%d, as %s usually has" % (row.hcas, row.name),
            "Fewer HCAs than usual share the traffic of all GPUs; one may be gone from the PCI bus.")
    return passed("%d compute HCAs, all up" % len(compute.hcas), required)


@cluster_check(
    id="rdma.rate", severity="block", title="RDMA link rate",
    why="Collectives run at the pace of the slowest link, so one slow port slows the whole engine.",
    fix="Reseat or replace the cable or module and look at the switch port, then run `ansible-playbook inferops.vllm.preflight` again.",
    read_from="/sys/class/infiniband/*/ports/*/rate", source="https://github.com/Azure/azurehpc-health-checks")
def rate(nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
    """No active compute port is slower than the commonest rate of the cluster, and no HCA lost PCIe width."""
    reason = without_rdma(context)
    if reason:
        return {node.name: skipped(reason) for node in nodes}
    found: Dict[str, List[Tuple[str, float]]] = {}
    outcomes: Dict[str, Outcome] = {}
    narrow: Dict[str, List[str]] = {}
    for node in nodes:
        why = missing(node, "rdma.hcas")
        hcas = [] if why else compute_hcas(node, context).hcas
        rates = [(_label(hca, port), number(port.get("rate_gbps"))) for hca, port in _active_ports(hcas)]
        if why:
            outcomes[node.name] = unsure(why, "one rate")
        elif not rates:
            outcomes[node.name] = skipped("no active compute port (see rdma.ports)")
        elif any(value <= 0 for _name, value in rates):
            outcomes[node.name] = unsure("no rate could be read of %s" % listed(name for name, value in rates if value <= 0), "one rate")
        else:
            found[node.name] = rates
            narrow[node.name] = [
                "%s PCIe x%d of x%d" % (hca.get("name"), number(pcie.get("width")), number(pcie.get("width_max")))
                for hca in hcas for pcie in [mapping(hca.get("pcie"))] if 0 < number(pcie.get("width")) < number(pcie.get("width_max"))]
    best, _count = commonest([value for rates in found.values() for _name, value in rates])
    expected = max(best, default=0.0)
    tie = " (a tie of %s; the fastest was taken)" % listed("%g" % value for value in best)
    required = "%g Gb/s%s" % (expected, ", the commonest rate" if len(best) == 1 else tie)
    for node in nodes:
        if node.name not in found:
            continue
        slow = ["%s at %g Gb/s" % (name, value) for name, value in found[node.name] if value < expected]
        bad = slow + narrow[node.name]
        text = "%d ports at %g Gb/s" % (len(found[node.name]), expected)
        outcomes[node.name] = failed(short(listed(bad)), required) if bad else passed(text, required)
    return outcomes


@check(
    id="rdma.gid", severity="block", title="RoCE v2 GID",
    why="Without an IPv4 address on the port there is no RoCE v2 GID, and NCCL fails or hangs when it connects.",
    fix="Give the port's interface its IPv4 address, then run `ansible-playbook inferops.vllm.remediate --limit NODE`.",
    read_from="/sys/class/infiniband/*/ports/*/{gids,gid_attrs}", source="https://github.com/NVIDIA/nccl/blob/master/docs/userguide/source/env.rst")
def gid(node: Node, context: Context) -> Outcome:
    """Every compute HCA on Ethernet has a RoCE v2 GID with a non-zero IPv4 address."""
    reason = without_rdma(context)
    if reason:
        return skipped(reason)
    required = "a RoCE v2 GID with an IPv4 address on every compute HCA"
    why = missing(node, "rdma.hcas")
    if why:
        return unsure(why, required)
    active = _active_ports(compute_hcas(node, context).hcas)
    if not active:
        return skipped("no active compute port (see rdma.ports)")
    roce = [(hca, port) for hca, port in active if port.get("link_layer") == "Ethernet"]
    if not roce:
        if any(port.get("link_layer") != "InfiniBand" for _hca, port in active):
            return unsure("the link layer of the ports could not be read", required)
        return skipped("the compute ports are InfiniBand, which needs no RoCE GID")
    indexes: Dict[str, List[int]] = {}
    for hca, port in roce:
        # A port without the key has no GID that is not zero: empty lists are left out of the facts.
        gids = port.get("gids")
        found = [int(number(g.get("i"), -1)) for g in gids if isinstance(g, dict) and _roce_v2(g)] if isinstance(gids, list) else []
        indexes.setdefault(str(hca.get("name")), []).extend(found)
    bare = [name for name, found in indexes.items() if not found]
    if bare:
        return failed(short("none on %d of %d: %s" % (len(bare), len(indexes), listed(bare))), required)
    sets: List[Tuple[int, ...]] = [tuple(sorted(found_at)) for found_at in indexes.values()]
    shared = set(sets[0]).intersection(*sets)
    if not shared:
        by_index: Dict[int, int] = {}
        for positions in sets:
            by_index[positions[0]] = by_index.get(positions[0], 0) + 1
        return warned(
            short("different indexes: " + listed("%d on %d HCAs" % item for item in sorted(by_index.items()))), "one index",
            "A fixed GID index cannot serve HCAs whose RoCE v2 GIDs stand at different indexes.",
            "Leave NCCL_IB_GID_INDEX unset, or configure the interfaces alike: `ansible-playbook inferops.vllm.remediate --limit NODE`.")
    return passed("index %d on %d HCAs" % (min(shared), len(indexes)), required)


def _roce_v2(entry: Dict[str, Any]) -> bool:
    return entry.get("type") == "RoCE v2" and bool(entry.get("ipv4")) and not str(entry.get("ipv4")).startswith("0.")


@cluster_check(
    id="rdma.mtu", severity="warn", title="RDMA MTU",
    why="Ports with different MTUs drop large packets and stall, and a small MTU costs bandwidth.",
    fix="Set the same MTU on every compute interface and its switch port with `ansible-playbook inferops.vllm.remediate --limit NODE`.",
    read_from="/sys/class/net/*/mtu, active_mtu of the ports", source="https://github.com/linux-rdma/rdma-core")
def mtu(nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
    """Compute ports have the commonest MTU of the cluster, and one that carries 4,096 bytes."""
    reason = without_rdma(context)
    if reason:
        return {node.name: skipped(reason) for node in nodes}
    outcomes: Dict[str, Outcome] = {}
    found: Dict[str, List[Tuple[str, Tuple[float, float]]]] = {}
    for node in nodes:
        why = missing(node, "rdma.hcas")
        active = [] if why else _active_ports(compute_hcas(node, context).hcas)
        values = [(_label(hca, port), (number(port.get("active_mtu")), _netdev_mtu(port))) for hca, port in active]
        if why:
            outcomes[node.name] = unsure(why, "one MTU")
        elif not values:
            outcomes[node.name] = skipped("no active compute port (see rdma.ports)")
        elif all(not any(value) for _name, value in values):
            outcomes[node.name] = unsure("the MTU of no port could be read", "one MTU")
        else:
            found[node.name] = values
    # The two kinds of MTU are compared apart: a node without ibv_devinfo knows only that of the interface.
    expected = (0.0, 0.0)
    tie = False
    for part in (0, 1):
        best, _count = commonest([value[part] for values in found.values() for _name, value in values if value[part] > 0])
        expected = (max(best, default=0.0), 0.0) if part == 0 else (expected[0], max(best, default=0.0))
        tie = tie or len(best) > 1
    required = _mtu_text(expected) + (" (a tie; the largest was taken)" if tie else "")
    for name, values in found.items():
        odd = ["%s: %s" % (port, _mtu_text(value)) for port, value in values
               if any(have and have != want for have, want in zip(value, expected))]
        if odd:
            outcomes[name] = failed(short(listed(odd, 2)), required)
        elif 0 < expected[0] < ACTIVE_MTU or 0 < expected[1] < NETDEV_MTU:
            outcomes[name] = warned(_mtu_text(expected) + " on all ports", "RDMA %d, interface at least %d" % (ACTIVE_MTU, NETDEV_MTU))
        else:
            outcomes[name] = passed("%s on %d ports" % (_mtu_text(values[0][1]), len(values)), required)
    return outcomes


def _netdev_mtu(port: Dict[str, Any]) -> float:
    # IPoIB's interface MTU says nothing of the path that verbs use.
    return number(port.get("mtu")) if port.get("link_layer") == "Ethernet" else 0.0


def _mtu_text(value: Tuple[float, float]) -> str:
    parts = ["RDMA %d" % value[0]] if value[0] else []
    return ", ".join(parts + (["interface %d" % value[1]] if value[1] else [])) or "not read"


@check(
    id="rdma.errors", severity="warn", title="RDMA errors",
    why="A port that counts errors or flaps will stall collectives under load.",
    fix="Clean or replace cable and module, and freeze evidence with `ansible-playbook inferops.vllm.evidence --limit NODE`.",
    read_from="/sys/class/infiniband/*/ports/*/{counters,hw_counters}, kernel log", source="https://github.com/NVIDIA/NVSentinel")
def errors(node: Node, context: Context) -> Outcome:
    """No failing device in the kernel log, and no error counter above what the time since boot allows."""
    reason = without_rdma(context)
    if reason:
        return skipped(reason)
    required = "no link errors since boot"
    why = missing(node, "rdma.hcas")
    if why:
        return unsure(why, required)
    compute = compute_hcas(node, context).hcas
    if not compute:
        return skipped("no compute HCA (see rdma.ports)")
    log = {str(line.get("kind")): int(number(line.get("count"), 1)) for line in node.items("rdma.log")}
    broken = ["%s (%d)" % (text, log[kind]) for kind, text in BAD_LOG.items() if kind in log]
    if broken:
        return failed(
            short("kernel log: " + listed(broken)), required, "The mlx5 driver reported a failing device; what runs on it will die.",
            "Power-cycle the node, and replace the HCA when it comes back.", "block", "kernel log")
    seconds = number(node.get("collected.now")) - number(node.get("host.booted_at"))
    known = seconds > 0 and node.get("host.booted_at") is not None
    # Counters grow from boot on: an hour at least, so that a few at link-up do not read as a rate.
    hours = max(1.0, seconds / 3600.0) if known else 24.0
    bad: List[str] = []
    some: List[str] = []
    for hca in compute:
        for port in _ports(hca):
            counters = mapping(port.get("counters"))
            for name in FATAL_COUNTERS:
                if number(counters.get(name)) > 0:
                    bad.append("%s %s=%d" % (_label(hca, port), name, number(counters.get(name))))
            if not _up(port):
                continue
            downs, symbols = number(counters.get("link_downed")), number(counters.get("symbol_error"))
            if downs > FLAPS_A_DAY * max(1.0, hours / 24.0):
                bad.append("%s link_downed=%d" % (_label(hca, port), downs))
            if symbols > SYMBOL_ERRORS_AN_HOUR * hours:
                bad.append("%s symbol_error=%d" % (_label(hca, port), symbols))
            some += ["%s %s=%d" % (_label(hca, port), name, number(value)) for name, value in counters.items()
                     if name not in FATAL_COUNTERS and number(value) > 0]
    if bad:
        return failed(short(listed(bad)), required)
    limited = ["%s (%d)" % (text, log[kind]) for kind, text in LIMITING_LOG.items() if kind in log]
    if limited:
        return warned(short("kernel log: " + listed(limited)), required, read_from="kernel log")
    why = node.why_unknown("rdma.log") or node.why_unknown("rdma.kernel_log")
    if why:
        return unsure("counters are clean; the kernel log: %s" % short(why, 80), required)
    return passed(short("few: " + listed(some)) if some else "none on %d HCAs" % len(compute), required)


@check(
    id="rdma.ssh_path", severity="warn", title="HCA that carries SSH",
    why="A compute HCA that carries SSH or the default route shares its link with them, and its driver cannot be restarted from afar.",
    fix="Move management to an interface of its own; until then no NIC driver is restarted here, and "
        "`ansible-playbook inferops.vllm.remediate --limit NODE` leaves it alone.",
    read_from="/proc/net/route, SSH_CONNECTION, /sys/class/infiniband/*/device/net",
    source="https://github.com/Mellanox/network-operator/issues/2176")
def ssh_path(node: Node, context: Context) -> Outcome:
    """Management traffic does not run over a compute HCA; where it runs over an HCA at all, that is said."""
    required = "no compute HCA"
    why = missing(node, "rdma.hcas")
    if why:
        return unsure(why, required)
    hcas = node.items("rdma.hcas")
    if not hcas:
        return skipped("no HCA on this node")
    carrying = [hca for hca in hcas if hca.get("carries")]
    route_known = node.get("rdma.default_route") is not None or node.get("rdma.ssh") is not None
    if not carrying:
        reason = node.why_unknown("rdma.default_route", "rdma.ssh")
        if reason or not route_known:
            return unsure(short(reason or "neither the default route nor the SSH interface is known"), required)
        return passed(short("no HCA; %s carries them" % (node.get("rdma.ssh") or node.get("rdma.default_route"))), required)
    text = short(listed("%s carries %s" % (hca.get("name"), _carried(hca)) for hca in carrying))
    compute = {str(hca.get("name")) for hca in compute_hcas(node, context).hcas}
    if context.needs_rdma and any(str(hca.get("name")) in compute for hca in carrying):
        return warned(text, required)
    return passed(short(text + ": no restart of its driver"), required)
