# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that compare all nodes with each other: whoever differs from the majority is named.

Every check is one row: a function gives the values of a node by item (an HCA's address, a file's
name, or "" for a single value), and :func:`compare` does the rest in time linear in the number of
nodes and items.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .driver import loaded
from .fabric import clique_of, clique_text
from .gpu import gpus_of
from .model import CLUSTER, Context, Node, Outcome, cluster_check, failed, passed, skipped, unsure, warned
from .values import flag, table, tables, text, whole
from .wording import listed, plural, short

Values = Optional[Mapping[str, str]]
"""Values of one node by item; empty when there is nothing of the kind on it, None when it is not known."""

MISSING = "missing"
_LIMIT = 118


class Row(NamedTuple):
    """A comparison.

    values: gives a node's values.
    what: what is compared, in words, for texts ("driver", "GID index").
    nothing: reason to skip when no node has anything of the kind.
    absence: an item that a node lacks is a difference (and not only left out of the count).
    blocks: whether a difference blocks in this context; otherwise it warns. None: the check's own severity stands.
    applies: reason not to compare in this context, empty to compare.
    own: an item that has another value on every one of at least three nodes is each node's own, and no drift.
    """

    values: Callable[[Node, Context], Values]
    what: str
    nothing: str
    absence: bool = False
    blocks: Optional[Callable[[Context], bool]] = None
    applies: Optional[Callable[[Context], str]] = None
    own: bool = False


def compare(nodes: Sequence[Node], context: Context, row: Row) -> Dict[str, Outcome]:
    """Compare `row`'s values over `nodes`.

    Returns:
        one finding on ``*`` when all agree, when nothing can be compared, and one that lists the groups when
        there is no majority; besides that one failed finding for every node that differs from the majority.
    """
    why = row.applies(context) if row.applies else ""
    if why:
        return {CLUSTER: skipped(why)}
    if len(nodes) < 2:
        return {CLUSTER: skipped("one node: nothing to compare")}
    read = [(node.name, row.values(node, context)) for node in nodes]
    unknown = [name for name, values in read if values is None]
    known = [(name, values) for name, values in read if values is not None and (values or row.absence)]
    if not any(values for _name, values in known):
        if unknown:
            return {CLUSTER: unsure("%s not known on %s" % (row.what, _named(unknown)), "one value")}
        return {CLUSTER: skipped(row.nothing)}
    if len(known) < 2 or len(known) < len(unknown):
        return {
            CLUSTER: unsure(
                "%s known on %d of %s only; not on %s" % (row.what, len(known), plural(len(nodes), "node"), _named(unknown)), "one value"
            )
        }
    return _judged(known, unknown, context, row)


def _judged(known: Sequence[Tuple[str, Mapping[str, str]]], unknown: Sequence[str], context: Context, row: Row) -> Dict[str, Outcome]:
    counts = _counts(known, row)
    majority: Dict[str, Tuple[str, int]] = {}
    tied: List[str] = []
    owned: List[str] = []
    present: Dict[str, int] = {}
    for item, seen in counts.items():
        present[item] = sum(seen.values())
        top = max(seen.values())
        if len(seen) == 1:
            continue
        if row.own and top == 1 and len(seen) >= 3:
            owned.append(item)
        elif sum(1 for n in seen.values() if n == top) > 1:
            tied.append(item)
        else:
            majority[item] = (next(value for value, n in seen.items() if n == top), top)
    outcomes: Dict[str, Outcome] = {}
    blocks = row.blocks(context) if row.blocks else None
    severity = None if blocks is None else "block" if blocks else "warn"
    beside = " (not known on %s)" % _named(unknown) if unknown else ""
    # What most nodes have and some lack; bounded by twice the average number of items, so nodes times this stays linear.
    expected = [item for item, (value, _n) in majority.items() if value != MISSING and MISSING in counts[item]]
    for name, values in known:
        odd = [item for item in values if item in majority and values[item] != majority[item][0]]
        odd += [item for item in expected if item not in values]
        if odd:
            outcomes[name] = _odd(values, odd, majority, present, beside, severity)
    note = "; not known on " + _named(unknown) if unknown else ""
    if tied:
        outcomes[CLUSTER] = warned(
            _tie(known, tied, counts, note), "one value", why="There is no majority to compare with, so either side may be the right one."
        )
    elif not outcomes:
        outcomes[CLUSTER] = passed(_agreed(known, counts, owned, row, note), "one value")
    return outcomes


def _counts(known: Sequence[Tuple[str, Mapping[str, str]]], row: Row) -> Dict[str, Dict[str, int]]:
    counts: Dict[str, Dict[str, int]] = {}
    for _name, values in known:
        for item, value in values.items():
            seen = counts.setdefault(item, {})
            seen[value] = seen.get(value, 0) + 1
    if row.absence:
        for seen in counts.values():
            lacking = len(known) - sum(seen.values())
            if lacking:
                seen[MISSING] = lacking
    return counts


def _odd(
    values: Mapping[str, str],
    odd: Sequence[str],
    majority: Mapping[str, Tuple[str, int]],
    present: Mapping[str, int],
    beside: str,
    severity: Optional[str],
) -> Outcome:
    first = odd[0]
    value, n = majority[first]
    more = " and %d more" % (len(odd) - 1) if len(odd) > 1 else ""
    observed = short(_item(first, values.get(first, MISSING)), 100) + more
    required = short(value, 70) + " on %d of %s%s" % (n, plural(present[first], "node"), beside)
    return failed(observed, required, severity=severity)


def _item(item: str, value: str) -> str:
    return "%s: %s" % (item, value) if item else value


def _named(names: Sequence[str]) -> str:
    return listed(names, 3)


def _tie(known: Sequence[Tuple[str, Mapping[str, str]]], tied: Sequence[str], counts: Mapping[str, Mapping[str, int]], note: str) -> str:
    item = tied[0]
    groups: Dict[str, List[str]] = {}
    for name, values in known:
        if item in values or MISSING in counts[item]:
            groups.setdefault(values.get(item, MISSING), []).append(name)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    told = "; ".join("%s on %s" % (short(value, 40), listed(names, 2)) for value, names in ordered[:3])
    more = "; " + plural(len(ordered) - 3, "other value") if len(ordered) > 3 else ""
    others = "; %d more items tie" % (len(tied) - 1) if len(tied) > 1 else ""
    return short("tie" + (" of " + item if item else "") + ": " + told + more + others + note, 180)


def _agreed(
    known: Sequence[Tuple[str, Mapping[str, str]]], counts: Mapping[str, Mapping[str, int]], owned: Sequence[str], row: Row, note: str
) -> str:
    single = len(counts) == 1 and not owned
    item = next(iter(counts))
    said = _item(item, next(iter(counts[item]))) if single else "%s the same" % row.what
    own = "; %s is each node's own" % listed(owned, 2) if owned else ""
    return short("%s on %s%s%s" % (short(said, 60), plural(len(known), "node"), own, note))


# --- values ---------------------------------------------------------------------------------------


def _driver(node: Node, context: Context) -> Values:
    value, why = loaded(node)
    return None if why else {"": value or "no driver loaded"}


def _kernel(node: Node, context: Context) -> Values:
    value = text(node.get("host"), "kernel")
    return {"": value} if value else None


def _gpu(node: Node, context: Context) -> Values:
    found = gpus_of(node)
    if found.none:
        return {"": "no GPU"}
    names = [text(gpu, "name") for gpu in found.items if not flag(gpu, "lost")]
    known = sorted({name for name in names if name})
    if found.why or not known or None in names:
        return None
    return {"": "%d × %s" % (len(names), ", ".join(known))}


def _vbios(node: Node, context: Context) -> Values:
    found = gpus_of(node)
    if found.none:
        return {}
    seen = [text(gpu, "vbios") for gpu in found.items if not flag(gpu, "lost")]
    known = sorted({vbios for vbios in seen if vbios})
    return {"": ", ".join(known)} if known and None not in seen and not found.why else None


def _hcas(node: Node) -> Optional[List[Mapping[str, Any]]]:
    """Physical HCAs of a node, without those that manage NVSwitches."""
    found = tables(node.get("rdma"), "hcas")
    if found is None or node.why_unknown("rdma.hcas"):
        return None
    return [hca for hca in found if not flag(hca, "virtual") and not flag(hca, "sw_mng")]


def _hca(node: Node, context: Context) -> Values:
    found = _hcas(node)
    if found is None:
        return None
    return {text(hca, "bdf") or text(hca, "name") or "?": text(hca, "type") or "HCA" for hca in found}


def _data_ports(node: Node) -> Optional[List[Tuple[str, Mapping[str, Any]]]]:
    """(address of the HCA and port, port) of active ports that do not carry management traffic."""
    found = _hcas(node)
    if found is None:
        return None
    ports = []
    for hca in found:
        if hca.get("carries"):
            continue
        for port in tables(hca, "ports") or []:
            if (text(port, "state") or "").upper() == "ACTIVE":
                number = whole(port, "port") or 1
                ports.append(((text(hca, "bdf") or text(hca, "name") or "?") + ("" if number == 1 else "/%d" % number), port))
    return ports


def _gid(node: Node, context: Context) -> Values:
    ports = _data_ports(node)
    if ports is None:
        return None
    values = {}
    for name, port in ports:
        if text(port, "link_layer") != "Ethernet":
            continue
        gids = [whole(gid, "i") for gid in tables(port, "gids") or [] if text(gid, "type") == "RoCE v2" and text(gid, "ipv4")]
        known = [i for i in gids if i is not None]
        values[name] = "RoCE v2 GID at index %d" % min(known) if known else "no RoCE v2 GID with an IPv4 address"
    return values


def _mtu(node: Node, context: Context) -> Values:
    ports = _data_ports(node)
    if ports is None:
        return None
    values = {}
    for name, port in ports:
        mtu, active = whole(port, "mtu"), whole(port, "active_mtu")
        told = [said for said in ("MTU %d" % mtu if mtu else "", "RDMA MTU %d" % active if active else "") if said]
        if told:
            values[name] = ", ".join(told)
    return values


def _clique(node: Node, context: Context) -> Values:
    pair, _why = clique_of(node)
    return None if pair is None else {"": clique_text(pair)}


def _imex_config(node: Node, context: Context) -> Values:
    facts = node.get("fabric.imex")
    if node.why_unknown("fabric.imex") or not isinstance(facts, dict):
        return None
    value = text(facts, "config_sha256")
    return {"": "nodes_config.cfg " + value[:12]} if value else {}


def _image(node: Node, context: Context) -> Values:
    facts = node.get("container.image")
    if node.why_unknown("container.image") or not isinstance(facts, dict) or flag(facts, "present") is None:
        return None
    if not flag(facts, "present"):
        return {}
    digests = [digest for digest in facts.get("digests") or [] if isinstance(digest, str)] if isinstance(facts.get("digests"), list) else []
    # The same image may have been pulled under several names, each with a digest: that of the planned name counts.
    repository = (text(facts, "name") or "").split("@")[0].rsplit(":", 1)[0]
    named = [digest for digest in digests if repository and digest.split("@")[0].endswith(repository)]
    found = sorted({digest.split("@")[-1][:19] for digest in named or digests})
    if found:
        return {"": ", ".join(found)}
    value = text(facts, "id")
    return {"": "id " + value[:19]} if value else None


def _toolkit(node: Node, context: Context) -> Values:
    facts = node.get("container.toolkit")
    if node.why_unknown("container.toolkit") or not isinstance(facts, dict):
        return None
    value = text(facts, "version")
    return {"": value} if value else {}


def _env(node: Node, context: Context) -> Values:
    facts = node.get("service")
    files = table(facts, "env_files")
    if node.why_unknown("service.env_files") or not isinstance(facts, dict) or not isinstance(facts.get("env_files"), dict):
        return None
    return {short(path, 60): value[:12] for path, value in files.items() if isinstance(value, str)}


def _mnnvl_only(context: Context) -> str:
    return "" if context.needs_mnnvl else "the plan uses no NVLink between nodes"


def _needs_rdma(context: Context) -> bool:
    return context.needs_rdma


# --- checks ---------------------------------------------------------------------------------------

_PROVISION = "`ansible-playbook inferops.vllm.provision --limit NODE`"
_DOCS_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_MNNVL_GUIDE = "https://docs.nvidia.com/multi-node-nvlink-systems/mnnvl-user-guide/overview.html"
_VLLM_PARALLEL = "https://docs.vllm.ai/en/latest/serving/parallelism_scaling/"

_TABLE: Tuple[Tuple[str, str, str, str, str, str, str, Row], ...] = (
    (
        "drift.driver",
        "block",
        "Same driver",
        "Ranks on different drivers disagree about what they can do, and IMEX refuses to join them.",
        "Bring the node to the driver of the others: " + _PROVISION + ".",
        "/sys/module/nvidia/version",
        "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/overview.html",
        Row(_driver, "driver", "no node has a driver"),
    ),
    (
        "drift.kernel",
        "warn",
        "Same kernel",
        "Another kernel brings other RDMA and dma-buf behaviour, and the driver's module has to be built for it.",
        "Bring the node to the kernel of the others and reboot; no playbook changes a kernel.",
        "uname -r",
        "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
        Row(_kernel, "kernel", "no node has a kernel"),
    ),
    (
        "drift.gpu",
        "block",
        "Same GPUs",
        "Tensor and expert parallelism split the work evenly, so every node needs the same number of the same GPU.",
        "Mend the node's GPUs (see gpu.count and gpu.model) or leave the node out.",
        "nvidia-smi -q -x",
        _VLLM_PARALLEL,
        Row(_gpu, "GPUs", "no node has a GPU"),
    ),
    (
        "drift.vbios",
        "warn",
        "Same VBIOS",
        "Another VBIOS means another power, memory or NVLink behaviour of one GPU among equals.",
        "Update the GPU firmware of the node with its vendor's package; no playbook does that.",
        "nvidia-smi -q -x",
        "https://docs.nvidia.com/deploy/nvidia-smi/index.html",
        Row(_vbios, "VBIOS", "no node has a GPU"),
    ),
    (
        "drift.hca",
        "block",
        "Same HCAs",
        "Ranks pair the HCAs of two nodes by their place; one that is missing or another model leaves a rail without a partner.",
        "Look for the HCA on the PCI bus (lspci -d 15b3:), reseat or replace it; no playbook mends that.",
        "/sys/class/infiniband",
        _DOCS_NCCL,
        Row(_hca, "HCAs", "no node has an HCA", absence=True, blocks=_needs_rdma),
    ),
    (
        "drift.gid",
        "block",
        "Same GID index",
        "Settings such as NCCL_IB_GID_INDEX and UCX_IB_GID_INDEX name one index for all nodes; a rank with another table cannot connect.",
        "Give the port its IPv4 address as on the other nodes: `ansible-playbook inferops.vllm.remediate --limit NODE`.",
        "/sys/class/infiniband/*/ports/*/gid_attrs",
        _DOCS_NCCL,
        Row(_gid, "GID index of every RoCE port", "no node has an active RoCE port", blocks=_needs_rdma),
    ),
    (
        "drift.mtu",
        "warn",
        "Same MTU",
        "Two ends with different MTUs stall on large messages, or connect at the smaller one.",
        "Set the MTU of the other nodes on the port: `ansible-playbook inferops.vllm.remediate --limit NODE`.",
        "/sys/class/net/*/mtu, ibv_devinfo",
        _DOCS_NCCL,
        Row(_mtu, "MTU of every port", "no node has an active RDMA port"),
    ),
    (
        "drift.clique",
        "warn",
        "Same clique",
        "A node in another NVLink clique is reached over the network only.",
        "Leave the node out, or have the rack's partition changed; no playbook mends that.",
        "nvidia-smi -q -x (fabric)",
        _MNNVL_GUIDE,
        Row(_clique, "NVLink clique", "no node is in an NVLink domain", applies=_mnnvl_only),
    ),
    (
        "drift.imex_config",
        "block",
        "Same IMEX nodes",
        "IMEX daemons with different lists of nodes do not form one domain.",
        "Write the same nodes_config.cfg on all nodes and restart nvidia-imex: " + _PROVISION + ".",
        "/etc/nvidia-imex/nodes_config.cfg",
        "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/config.html",
        Row(_imex_config, "IMEX configuration", "no node has an IMEX configuration", absence=True, applies=_mnnvl_only),
    ),
    (
        "drift.image",
        "block",
        "Same image",
        "The tag was built again and again: ranks from different digests speak different versions of NCCL and vLLM to each other.",
        "Pull the digest of the other nodes: `ansible-playbook inferops.vllm.deploy --limit NODE`.",
        "docker image inspect",
        "https://hub.docker.com/r/vllm/vllm-openai/tags",
        Row(_image, "image digest", "no node holds the image yet"),
    ),
    (
        "drift.toolkit",
        "warn",
        "Same toolkit",
        "Another version of the NVIDIA container toolkit gives containers other devices and libraries.",
        "Bring the toolkit to the version of the others: " + _PROVISION + ".",
        "nvidia-ctk --version",
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/release-notes.html",
        Row(_toolkit, "container toolkit", "no node has the container toolkit", absence=True),
    ),
    (
        "drift.env",
        "warn",
        "Same env files",
        "A setting that only one node has (an NCCL variable above all) makes ranks hang or take different paths.",
        "Write the planned settings again: `ansible-playbook inferops.vllm.deploy --limit NODE`.",
        "env files of the service's units",
        _VLLM_PARALLEL,
        Row(_env, "env files", "no service has an env file", absence=True, own=True),
    ),
)


def _rule(row: Row) -> Callable[[Sequence[Node], Context], Dict[str, Outcome]]:
    def run(nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
        return compare(nodes, context, row)

    return run


for _id, _severity, _title, _why, _fix, _read_from, _source, _row in _TABLE:
    cluster_check(id=_id, severity=_severity, title=_title, why=_why, fix=_fix, read_from=_read_from, source=_source)(_rule(_row))
