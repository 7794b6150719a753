# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of what makes NVLink work: Fabric Manager and nvlsm in an HGX node, IMEX and cliques in an NVL72 rack."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Tuple

from . import thresholds
from .driver import loaded
from .gpu import Gpu, Judged, each, gpus_of
from .model import CLUSTER, Context, Node, Outcome, check, cluster_check, failed, passed, skipped, unsure, warned
from .values import flag, table, text, whole, words
from .wording import listed, plural, short

_FM_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
_IMEX_GUIDE = "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/overview.html"
_MNNVL_GUIDE = "https://docs.nvidia.com/multi-node-nvlink-systems/mnnvl-user-guide/overview.html"
_REMEDIATE = "`ansible-playbook inferops.vllm.remediate --limit NODE`"

NVL72 = ("gb200", "gb300")
"""Trays of a rack: the switches are managed outside the node, which runs no Fabric Manager."""
NVLINK5_HGX = ("b200", "b300")
"""Switches managed through HCAs of their own: Fabric Manager needs nvlsm and ib_umad."""
NVLINK4_HGX = ("h100", "h200")
"""Switches on the PCI bus: Fabric Manager alone."""

_PRODUCT = re.compile(r"\b(H100|H200|B200|B300|GB200|GB300)\b")


def hardware_of(node: Node, context: Context) -> str:
    """The declared hardware, else what the GPUs call themselves, else empty."""
    if context.hardware:
        return context.hardware
    for gpu in gpus_of(node).items:
        found = _PRODUCT.search(text(gpu, "name") or "")
        if found:
            return found.group(1).lower()
    return ""


def _not_here(node: Node, context: Context) -> str:
    """Why no Fabric Manager belongs on this node, empty when one does."""
    hardware = hardware_of(node, context)
    if gpus_of(node).none:
        return "no NVIDIA GPU on this node: see gpu.count"
    if hardware in NVL72:
        return "an NVL72 tray runs none: the rack's switch trays manage the fabric"
    if hardware not in NVLINK5_HGX + NVLINK4_HGX:
        facts = node.get("fabric")
        if whole(facts, "nvswitches") == 0 and words(facts, "sw_mng") == []:
            return "no NVSwitch on this node"
    if _hypervisor_runs_it(node):
        return "no NVSwitch is visible in this virtual machine and its fabric is up: the hypervisor runs the manager"
    return ""


def _hypervisor_runs_it(node: Node) -> bool:
    facts = node.get("fabric")
    virt = text(node.get("host"), "virt")
    if virt in (None, "none") or whole(facts, "nvswitches") != 0 or words(facts, "sw_mng") != []:
        return False
    if flag(table(table(facts, "manager"), "service"), "installed") is not False:
        return False
    gpus = gpus_of(node)
    return bool(gpus.items) and not gpus.why and all(_state(gpu)[0] == "pass" for gpu in gpus.items)


def _umad_loaded(node: Node) -> Optional[bool]:
    modules = node.get("host.modules")
    return "ib_umad" in modules if isinstance(modules, dict) and not node.why_unknown("host.modules") else None


@check(
    id="fabric.manager",
    severity="block",
    title="Fabric Manager",
    why="Without a Fabric Manager of the driver's own version the GPUs of an HGX node never join the NVLink fabric (CUDA error 802).",
    fix="Install the Fabric Manager of the loaded driver's version and start it: " + _REMEDIATE + ".",
    read_from="systemctl show nvidia-fabricmanager, nv-fabricmanager --version",
    source=_FM_GUIDE,
)
def manager(node: Node, context: Context) -> Outcome:
    facts = table(node.get("fabric"), "manager")
    service = table(facts, "service")
    active = text(service, "active")
    absent = _not_here(node, context)
    if absent:
        if active in ("active", "activating", "failed") and not gpus_of(node).none:
            return warned(
                short("service %s; %s" % (active, absent)),
                "none",
                why="Fabric Manager finds nothing to manage here and only adds failed units.",
                fix="Disable nvidia-fabricmanager.service: `ansible-playbook inferops.vllm.provision --limit NODE`.",
            )
        return skipped(absent)
    driver, why = loaded(node)
    required = "active, version %s" % (driver or "of the loaded driver")
    why = node.why_unknown("fabric.manager") or why
    kinds = {text(line, "kind") for line in node.items("fabric.manager.log")}
    version = text(facts, "version")
    if flag(service, "installed") is False:
        return failed(
            "not installed",
            required,
            fix="Install it in the loaded driver's version: `ansible-playbook inferops.vllm.provision --limit NODE`.",
        )
    if version and driver and version != driver:
        return failed("version %s, %s" % (short(version, 30), short(active or "state not read", 20)), required)
    if active in ("inactive", "failed", "deactivating"):
        said = ""
        if hardware_of(node, context) in NVLINK5_HGX and "pre_nvl5" in kinds:
            said = (
                ": it took the node for one before NVLink 5 (ib_umad is not loaded)"
                if _umad_loaded(node) is False
                else ": it found no NVLink 5 switch"
            )
        elif "version_mismatch" in kinds:
            said = ": its version is not the driver's"
        elif "nothing_to_do" in kinds:
            said = ": it found no NVSwitch"
        return failed("%s%s" % (active, said), required)
    if active == "active" and hardware_of(node, context) in NVLINK5_HGX and "pre_nvl5" in kinds and "configured" not in kinds:
        umad = _umad_loaded(node)
        return failed(
            "active, but it took the node for one before NVLink 5%s" % (" (ib_umad is not loaded)" if umad is False else ""),
            required,
            fix="Load ib_umad at every boot and restart Fabric Manager: " + _REMEDIATE + ".",
        )
    if why:
        return unsure(why, required)
    if active != "active":
        return unsure("state of its service: %s" % short(active or "not read", 30), required)
    if version is None:
        return unsure("active, its version was not read", required)
    if driver is None:
        return skipped("no driver is loaded: see driver.branch")
    restarts = whole(service, "restarts")
    if restarts is not None and restarts > thresholds.SERVICE_RESTARTS_MAX:
        return warned(
            "active, but restarted %d times" % restarts,
            required,
            why="A Fabric Manager that keeps restarting takes the fabric down each time.",
        )
    return passed("active, version %s" % version, required)


def _state(gpu: Gpu) -> Judged:
    fabric = table(gpu, "fabric")
    state, status = text(fabric, "state"), text(fabric, "status")
    if state is None:
        return "unknown", "fabric state not read"
    if _unsupported(gpu):
        return "fail", "fabric %s" % short(state, 30)
    if state.lower() != "completed":
        return "fail", "fabric %s" % short(state, 30)
    if status is None:
        return "unknown", "fabric Completed, status not read"
    if status.lower() != "success":
        return "fail", "fabric Completed, but %s" % short(status, 40)
    health = table(fabric, "health")
    if health:
        return "fail", short("fabric health: " + ", ".join("%s %s" % (short(k, 30), short(v, 20)) for k, v in list(health.items())[:2]), 80)
    return "pass", ""


def _unsupported(gpu: Gpu) -> bool:
    """nvidia-smi says N/A for the state, which collectors leave out like any value that is none."""
    state = text(table(gpu, "fabric"), "state")
    return bool(table(gpu, "pcie")) and text(gpu, "name") is not None if state is None else state.lower() in ("n/a", "not supported")


@check(
    id="fabric.state",
    severity="block",
    title="Fabric state",
    why="A GPU that has not joined the NVLink fabric makes CUDA fail with error 802 or hang at the first call.",
    fix="Restart Fabric Manager, or on an NVL72 tray ask the rack's fabric manager: " + _REMEDIATE + ".",
    read_from="nvidia-smi -q -x (fabric)",
    source=_FM_GUIDE,
)
def state(node: Node, context: Context) -> Outcome:
    found = gpus_of(node)
    required = "Completed, Success on every GPU"
    answering = [gpu for gpu in found.items if not flag(gpu, "lost")]
    if answering and not found.why and all(_unsupported(gpu) for gpu in answering):
        hardware = hardware_of(node, context)
        if hardware in NVL72 + NVLINK5_HGX + NVLINK4_HGX and context.gpus_per_node != 1:
            return unsure("nvidia-smi gives no fabric state, which %s has" % hardware, required)
        return skipped("GPUs without an NVLink fabric")

    return each(node, required, _state, "Completed, Success")


@check(
    id="fabric.nvlsm",
    severity="block",
    title="NVLink subnet manager",
    why="On B200 and B300 the NVLink switches are set up by nvlsm through ib_umad; without either the fabric stays down.",
    fix="Install nvlsm, load ib_umad at every boot and restart Fabric Manager: " + _REMEDIATE + ".",
    read_from="/proc/modules, process list",
    source=_FM_GUIDE,
)
def nvlsm(node: Node, context: Context) -> Outcome:
    if hardware_of(node, context) not in NVLINK5_HGX:
        return skipped("only HGX B200 and B300 run nvlsm")
    absent = _not_here(node, context)
    if absent:
        return skipped(absent)
    facts = table(node.get("fabric"), "nvlsm")
    running, umad = flag(facts, "running"), _umad_loaded(node)
    required = "nvlsm running, ib_umad loaded"
    lacking = [said for wrong, said in ((umad is False, "ib_umad is not loaded"), (running is False, "nvlsm is not running")) if wrong]
    if lacking and not (running is False and node.why_unknown("fabric.nvlsm")):
        return failed(" and ".join(lacking), required)
    if running is None or umad is None or node.why_unknown("fabric.nvlsm"):
        return unsure(
            node.why_unknown("fabric.nvlsm", "host.modules") or "%s not read" % ("nvlsm" if running is None else "ib_umad"), required
        )
    version = text(facts, "version")
    return passed("nvlsm %srunning, ib_umad loaded" % (short(version, 20) + " " if version else ""), required)


@check(
    id="fabric.imex",
    severity="block",
    title="IMEX domain",
    why="GPU memory is shared between trays through IMEX; when it is down NCCL cannot use NVLink between nodes.",
    fix="Write the same nodes_config.cfg everywhere and restart nvidia-imex on all trays: " + _REMEDIATE + ".",
    read_from="nvidia-imex-ctl -N -j, systemctl show nvidia-imex, /dev/nvidia-caps-imex-channels",
    source=_IMEX_GUIDE,
)
def imex(node: Node, context: Context) -> Outcome:
    if not context.needs_mnnvl:
        return skipped("the plan uses no NVLink between nodes")
    facts = table(node.get("fabric"), "imex")
    service = table(facts, "service")
    active, ready, domain = text(service, "active"), text(facts, "ready"), text(facts, "domain")
    version = text(facts, "version")
    driver, why = loaded(node)
    channels = facts.get("channels") if isinstance(facts.get("channels"), list) else None
    up, total = whole(facts, "nodes_up"), whole(facts, "nodes_total")
    required = "active, READY, domain UP, version %s, channel 0" % (driver or "of the driver")
    why = node.why_unknown("fabric.imex") or why
    faults: List[str] = []
    if flag(service, "installed") is False:
        return failed("nvidia-imex is not installed", required, fix="Install it: `ansible-playbook inferops.vllm.provision --limit NODE`.")
    if active in ("inactive", "failed", "deactivating"):
        faults.append("service %s" % active)
    if domain is not None and domain.upper() != "UP":
        away = words(facts, "not_up") or []
        faults.append("domain %s%s" % (short(domain, 12), " (%s not up)" % listed(away, 2) if away else ""))
    if ready is not None and ready.upper() != "READY":
        faults.append(short(ready, 30))
    if version and driver and version != driver:
        faults.append("version %s" % short(version, 24))
    if channels is not None and 0 not in channels and not why:
        faults.append("no channel 0")
    if total and len(context.nodes) > total and not why:
        faults.append("the domain has %s, the plan %d" % (plural(total, "node"), len(context.nodes)))
    if faults:
        return failed(short(", ".join(faults)), required)
    if why:
        return unsure(why, required)
    unread = [
        word
        for word, value in (("service", active), ("domain", domain), ("READY", ready), ("version", version), ("channels", channels))
        if value is None
    ]
    if unread or active != "active":
        return unsure("not read: %s" % ", ".join(unread) if unread else "service %s" % short(active, 20), required)
    if driver is None:
        return skipped("no driver is loaded: see driver.branch")
    return passed(
        "READY, domain UP%s, channel 0" % (", %d of %s" % (up, plural(total, "node")) if up is not None and total else ""), required
    )


def clique_of(node: Node) -> Tuple[Optional[Tuple[str, str]], str]:
    """(cluster UUID, clique) of a node; ``("", "")`` when it is in no NVLink domain between nodes; None and the reason when not known.

    Raises nothing; GPUs that disagree give None and say so.
    """
    found = gpus_of(node)
    if found.none:
        return ("", ""), ""
    gpus = [gpu for gpu in found.items if not flag(gpu, "lost")]
    if found.why or not gpus:
        return None, found.why or "no GPU answers"
    seen: Dict[Tuple[str, str], int] = {}
    for gpu in gpus:
        fabric = gpu.get("fabric")
        if not isinstance(fabric, dict) or not isinstance(fabric.get("cluster"), str):
            return None, "fabric of %s not read" % short(text(gpu, "bdf") or "a GPU", 20)
        cluster = "" if not fabric["cluster"].strip("0-") else fabric["cluster"]
        clique = text(fabric, "clique") or ("" if whole(fabric, "clique") is None else str(whole(fabric, "clique")))
        if cluster and not clique:
            return None, "clique of %s not read" % short(text(gpu, "bdf") or "a GPU", 20)
        pair = (cluster, clique if cluster else "")
        seen[pair] = seen.get(pair, 0) + 1
    if len(seen) > 1:
        return ("mixed", " and ".join(sorted(clique or "none" for _cluster, clique in seen))), ""
    return next(iter(seen)), ""


def clique_text(pair: Tuple[str, str]) -> str:
    """``clique 32766 of 5d0f7c1a``; what a report shows of a pair of :func:`clique_of`."""
    if pair[0] == "mixed":
        return "GPUs in cliques %s" % short(pair[1], 60)
    return "clique %s of %s" % (short(pair[1], 20), short(pair[0].split("-")[0], 12)) if pair[0] else "no NVLink domain"


@cluster_check(
    id="fabric.clique",
    severity="block",
    title="One NVLink domain",
    why="Only GPUs of one cluster UUID and one clique reach each other over NVLink; NCCL treats the rest as another machine.",
    fix="Put only trays of one rack and one partition into the group, or have the rack's partition changed; no playbook mends that.",
    read_from="nvidia-smi -q -x (fabric)",
    source=_MNNVL_GUIDE,
)
def clique(nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
    if not context.needs_mnnvl:
        return {CLUSTER: skipped("the plan uses no NVLink between nodes")}
    required = "one cluster UUID and one clique on all nodes"
    outcomes: Dict[str, Outcome] = {}
    groups: Dict[Tuple[str, str], List[str]] = {}
    for node in nodes:
        pair, why = clique_of(node)
        if pair is None:
            outcomes[node.name] = unsure(short(why), required)
        elif not pair[0]:
            outcomes[node.name] = failed("no NVLink domain between nodes", required)
        elif pair[0] == "mixed":
            outcomes[node.name] = failed(clique_text(pair), required)
        else:
            groups.setdefault(pair, []).append(node.name)
    known = sum(len(names) for names in groups.values())
    if not known:
        return outcomes
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    first, names = ordered[0]
    if len(ordered) > 1 and len(ordered[1][1]) == len(names):
        told = "; ".join("%s: %s" % (clique_text(pair), listed(members, 2)) for pair, members in ordered[:3])
        outcomes[CLUSTER] = failed(short("a tie: " + told), required)
        return outcomes
    for pair, members in ordered[1:]:
        for name in members:
            outcomes[name] = failed(clique_text(pair), "%s on %d of %s" % (clique_text(first), len(names), plural(known, "node")))
    if len(ordered) == 1:
        left = len(outcomes)
        outcomes[CLUSTER] = passed(
            "%s on %s%s" % (clique_text(first), plural(known, "node"), ", not on %d" % left if left else ""), required
        )
    return outcomes
