# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a node decides between remedies.

The facts of a node are many; what a remedy may do depends on few of them. :class:`State` holds just these, each with
a small set of values, so that the table of remedies can be tried over all of them. Every field has a value for
*not known*, and no remedy takes that for a yes.
"""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ..checks import xids
from ..checks.driver import loaded
from ..checks.gpu import gpus_of, holders_of
from ..checks.model import Context, Node
from ..checks.rdma import compute_hcas
from ..checks.values import flag, table, tables, text, version, whole, words

UNKNOWN = "unknown"

ALLOWED_WORDS = ("reboot", "kill", "driver")
"""Words of ``remediate_allow``: restart the machine; end a process that is not ours; change, unload or reset the driver."""

DRIVER = ("ok", "pending", "old", "proprietary", "absent", "not_built", UNKNOWN)
PEERMEM = ("loaded", "loadable", "einval", "unbuilt", "symbol", "disagrees", "key", "absent", UNKNOWN)
MANAGER = ("ok", "absent", "other_version", "stopped", "pre_nvl5", "unneeded", UNKNOWN)
IMEX = ("ok", "absent", "other_version", "no_channel", "stopped", "degraded", "not_planned", UNKNOWN)
FABRIC = ("hgx4", "hgx5", "nvl72", "none", UNKNOWN)
GPU = ("ok", "application", "reset", "reboot", "support", UNKNOWN)
HOLDERS = ("none", "ours", "orphans", "foreign", "stuck", UNKNOWN)
PORTS = ("ok", "no_modules", "admin_down", "init", "down", UNKNOWN)
ENGINE = ("ok", "absent", "stopped", UNKNOWN)
TOOLKIT = ("ok", "absent", "unconfigured", "not_needed", UNKNOWN)
CDI = ("ok", "stale", "none", UNKNOWN)


class State(NamedTuple):
    """One node, as far as remedies care.

    Attributes:
        recorded: the facts are those of a recording; nothing can be changed.
        modules: the node can load kernel modules (it is no container); None not known.
        driver: ``old``: what is on disk is too old as well. ``pending``: the disk is fine and the loaded module is another. ``proprietary``: open
            modules are demanded. ``not_built``: installed, not for this kernel, or its file is damaged. ``absent``: none on disk.
        headers: headers of the running kernel are there.
        packages: names of packages that are broken (half configured), empty when none.
        secure_boot: Secure Boot is on.
        nouveau: nouveau is loaded.
        holders: who has the GPUs open. ``orphans``: processes of a vLLM engine whose server is gone. ``stuck``: one that cannot be killed.
        serving: our unit is active here.
        gpu: the worst that the driver asks for.
        fabric: what joins the GPUs here.
        manager, imex: Fabric Manager and IMEX.
        umad: ib_umad is loaded.
        peermem: nvidia_peermem, and why it does not load. ``einval``: it and the RDMA core that runs are without peer memory. ``unbuilt``: it alone is.
            ``symbol``: the RDMA core alone is. ``disagrees``: it was built against another version of that core.
        legacy_peermem: the old nv_peer_mem is loaded in its place.
        dmabuf: dma-buf serves here (False: the kernel refused it, errno 524).
        peermem_everywhere: nvidia_peermem is loaded on every node of the engine.
        ports: the worst of the compute ports.
        ssh: compute HCAs that carry SSH or the default route.
        engine, toolkit, cdi: container engine, NVIDIA toolkit, CDI specification.
        declared: names of host variables that say what is wanted (``rdma_mtu``, ``rdma_addresses``, ``vllm_image`` by digest …).
        deployed: a release of ours stands on the node.
        allow: words of remediate_allow.
    """

    recorded: bool = False
    modules: Optional[bool] = True
    driver: str = "ok"
    headers: Optional[bool] = True
    packages: Tuple[str, ...] = ()
    secure_boot: Optional[bool] = False
    nouveau: Optional[bool] = False
    holders: str = "none"
    serving: bool = False
    gpu: str = "ok"
    fabric: str = "hgx5"
    manager: str = "ok"
    imex: str = "not_planned"
    umad: Optional[bool] = True
    peermem: str = "loaded"
    legacy_peermem: bool = False
    dmabuf: Optional[bool] = True
    peermem_everywhere: Optional[bool] = True
    ports: str = "ok"
    ssh: Tuple[str, ...] = ()
    engine: str = "ok"
    toolkit: str = "ok"
    cdi: str = "ok"
    declared: Tuple[str, ...] = ()
    deployed: bool = False
    allow: Tuple[str, ...] = ()


def state_of(node: Node, context: Context, engine_nodes: Iterable[Node] = (), allow: Iterable[str] = (), declared: Iterable[str] = ()) -> State:
    """The state of one node.

    Args:
        node: its facts.
        context: what it is meant to be.
        engine_nodes: all nodes of its engine, itself included.
        allow: words of remediate_allow.
        declared: names of the host's variables that say what is wanted.
    """
    return State(
        recorded=bool(node.declared.get("recorded")) or node.get("collected.recorded") is True,
        modules=_modules(node),
        driver=_driver(node, context),
        headers=flag(table(node.get("driver"), "build"), "headers"),
        packages=tuple(words(table(node.get("host"), "packages"), "broken") or ()),
        secure_boot=flag(table(node.get("driver"), "secure_boot"), "enabled"),
        nouveau=flag(table(node.get("driver"), "nouveau"), "loaded"),
        holders=_holders(node),
        serving=_serving(node),
        gpu=_gpu(node),
        fabric=_fabric(node, context),
        manager=_manager(node, context),
        imex=_imex(node, context),
        umad=_module_loaded(node, "ib_umad"),
        peermem=_peermem(node),
        legacy_peermem=flag(table(node.get("gpudirect"), "peermem"), "legacy_loaded") is True,
        dmabuf=_dmabuf(node),
        peermem_everywhere=_everywhere([_peermem(other) for other in engine_nodes]),
        ports=_ports(node, context),
        ssh=_ssh(node, context),
        engine=_engine(node),
        toolkit=_toolkit(node, context),
        cdi=_cdi(node),
        declared=tuple(sorted(declared)),
        deployed=_deployed(node),
        allow=tuple(word for word in ALLOWED_WORDS if word in set(allow)),
    )


# -- driver and GPUs ---------------------------------------------------------------------------------------------
def _modules(node: Node) -> Optional[bool]:
    if node.get("collected.costume"):
        # A container that is dressed as a machine plays the modules of one.
        return True
    virt = node.get("host.virt")
    if not isinstance(virt, str):
        return None
    return virt not in ("docker", "podman", "lxc", "lxc-libvirt", "systemd-nspawn", "container-other", "openvz", "wsl", "rkt")


def _driver(node: Node, context: Context) -> str:
    facts = node.get("driver")
    value, why = loaded(node)
    disk = text(facts, "installed")
    if why and not disk:
        return UNKNOWN
    if disk is None and not isinstance(facts, dict):
        return UNKNOWN
    lowest = tuple(context.driver_min)
    if disk is None:
        unread = bool(node.why_unknown("driver.installed"))
        if value is not None or (unread and flag(facts, "installed_for_kernel") is False):
            return "not_built"
        return UNKNOWN if unread else "absent"
    if version(disk)[: len(lowest)] < lowest:
        return "old"
    if context.open_required and text(facts, "installed_flavour") == "proprietary":
        return "proprietary"
    if flag(facts, "installed_for_kernel") is False:
        return "not_built"
    if value != disk or flag(facts, "mismatch"):
        return "pending"
    flavours = text(facts, "loaded_flavour"), text(facts, "installed_flavour")
    return "pending" if all(flavours) and flavours[0] != flavours[1] else "ok"


def _holders(node: Node) -> str:
    if node.items("host.stuck"):
        return "stuck"
    found = holders_of(node)
    if any(text(holder, "state") == "D" for holder in found.ours + found.foreign):
        return "stuck"
    if found.foreign:
        return "orphans" if all(holder.get("orphan") is True for holder in found.foreign) else "foreign"
    if found.ours:
        return "ours" if _serving(node) else "orphans"
    return UNKNOWN if found.why and not gpus_of(node).none else "none"


def _serving(node: Node) -> bool:
    return any(text(unit, "active") in ("active", "activating", "reloading", "deactivating") for unit in node.items("service.units"))


def _deployed(node: Node) -> bool:
    return any(flag(unit, "installed") for unit in node.items("service.units"))


_ACTIONS = {
    "none": "ok",
    "reset": "reset",
    "gpu_reset": "reset",
    "gpu reset": "reset",
    "gpu reset required": "reset",
    "drain and reset": "reset",
    "drain_and_reset": "reset",
    "reboot": "reboot",
    "node reboot required": "reboot",
    "node_reboot": "reboot",
    "drain p2p": "reset",
    "drain_p2p": "reset",
}


def _gpu(node: Node) -> str:
    found = gpus_of(node)
    if found.none:
        return "ok"
    asked: List[str] = []
    for gpu in found.items:
        remap, ecc = table(gpu, "remap"), table(gpu, "ecc")
        if flag(remap, "failure") or flag(ecc, "unrepairable") or flag(ecc, "threshold_exceeded"):
            asked.append("support")
        if flag(gpu, "lost"):
            asked.append("reboot")
        if flag(remap, "pending") or (whole(ecc, "volatile_uncorrectable") or 0) > 0 or flag(ecc, "repair_pending"):
            asked.append("reset")
        action = text(gpu, "recovery_action")
        if action:
            asked.append(_ACTIONS.get(action.strip().lower(), "support"))
    if words(node.get("gpu"), "fallen") or any(flag(device, "rev_ff") for device in tables(node.get("gpu"), "pci") or []):
        asked.append("reboot")
    for line in node.items("gpu.xid"):
        row = xids.CATALOGUE.get(whole(line, "code") or 0)
        if row:
            asked.append("ok" if row.kind == "ignored" else row.kind)
    order = ("ok", "application", "reset", "reboot", "support")
    worst = max(asked, key=order.index) if asked else ""
    if worst in ("reset", "reboot", "support"):
        return worst
    return worst or ("ok" if found.items and not found.why else UNKNOWN)


# -- fabric ------------------------------------------------------------------------------------------------------
def _fabric(node: Node, context: Context) -> str:
    from ..checks.fabric import NVL72, NVLINK4_HGX, NVLINK5_HGX, hardware_of

    hardware = hardware_of(node, context)
    for word, kinds in (("hgx5", NVLINK5_HGX), ("hgx4", NVLINK4_HGX), ("nvl72", NVL72)):
        if hardware in kinds:
            return word
    return "none" if hardware else UNKNOWN


def _manager(node: Node, context: Context) -> str:
    facts = table(node.get("fabric"), "manager")
    service = table(facts, "service")
    active, driver = text(service, "active"), loaded(node)[0]
    told = [text(line, "kind") for line in node.items("fabric.manager.log")]
    kinds = set(told)
    if _fabric(node, context) == "nvl72":
        return "unneeded" if active in ("active", "activating", "failed") else "ok"
    if flag(service, "installed") is False:
        return "absent"
    if node.why_unknown("fabric.manager") or active is None:
        return UNKNOWN
    found = text(facts, "version")
    if found and driver and found != driver:
        return "other_version"
    if active == "failed" and told[-1:] == ["version_mismatch"]:
        # Its own last word, also where the package's version could not be told.
        return "other_version"
    if active == "active":
        return "pre_nvl5" if _fabric(node, context) == "hgx5" and "pre_nvl5" in kinds and "configured" not in kinds else "ok"
    return "stopped" if active in ("inactive", "failed", "deactivating") else UNKNOWN


def _imex(node: Node, context: Context) -> str:
    if not context.needs_mnnvl:
        return "not_planned"
    facts = table(node.get("fabric"), "imex")
    service = table(facts, "service")
    active, driver, found = text(service, "active"), loaded(node)[0], text(facts, "version")
    if flag(service, "installed") is False:
        return "absent"
    if node.why_unknown("fabric.imex") or active is None:
        return UNKNOWN
    if found and driver and found != driver:
        return "other_version"
    channels = facts.get("channels")
    if isinstance(channels, list) and 0 not in channels:
        return "no_channel"
    if active in ("inactive", "failed", "deactivating"):
        return "stopped"
    domain, ready = text(facts, "domain"), text(facts, "ready")
    if (domain and domain.upper() != "UP") or (ready and ready.upper() != "READY"):
        return "degraded"
    return "ok" if domain and ready else UNKNOWN


# -- RDMA --------------------------------------------------------------------------------------------------------
def _module_loaded(node: Node, name: str) -> Optional[bool]:
    modules = node.get("host.modules")
    return name in modules if isinstance(modules, dict) and not node.why_unknown("host.modules") else None


def _peermem(node: Node) -> str:
    facts = table(node.get("gpudirect"), "peermem")
    if flag(facts, "loaded") is True:
        return "loaded"
    if flag(facts, "loaded") is None or node.why_unknown("gpudirect.peermem"):
        return UNKNOWN
    if flag(facts, "present") is False:
        return "absent"
    kinds = {text(line, "kind") for line in tables(facts, "log") or []}
    why = (text(facts, "why_not") or "").lower()
    offered = flag(facts, "ib_symbol")
    if "key" in why and "reject" in why:
        return "key"
    if "built without" in why or "invalid argument" in why:
        return "unbuilt" if offered else "einval"
    if offered is False:
        return "symbol"
    # Lines of the kernel log are of an earlier try, and stay there when the cause is gone.
    if "crc_mismatch" in kinds or "another version" in why:
        return "disagrees"
    return "symbol" if offered is None and "unknown_symbol" in kinds else "loadable"


def _dmabuf(node: Node) -> Optional[bool]:
    from ..checks.gpudirect import refused

    if refused(node):
        return False
    return None if node.why_unknown("gpudirect.kernel_log") else True


def _everywhere(states: List[str]) -> Optional[bool]:
    if not states or UNKNOWN in states:
        return False if any(word not in ("loaded", UNKNOWN) for word in states) else None
    return all(word == "loaded" for word in states)


def _ports(node: Node, context: Context) -> str:
    if node.why_unknown("rdma.hcas"):
        return UNKNOWN
    hcas = compute_hcas(node, context).hcas
    if not hcas:
        return "no_modules" if _module_loaded(node, "mlx5_core") is False or _module_loaded(node, "mlx5_ib") is False else UNKNOWN
    worst = "ok"
    # What can be mended from here comes first.
    order = ("ok", "down", "init", "admin_down")
    for hca in hcas:
        states = [_port(port) for port in tables(hca, "ports") or []]
        # Of a multi-plane HCA only some ports carry data; it is sound when one of them does.
        best = "ok" if "ok" in states else max(states, key=order.index) if states else "down"
        worst = max(worst, best, key=order.index)
    return worst


def closed_interfaces(node: Node, context: Context) -> List[str]:
    """Interfaces of the planned HCAs that carry nothing because they were taken down.

    Interfaces of other HCAs stay as they are, whoever took them down, and so do those of an HCA that carries data on another port.
    """
    made: List[str] = []
    for hca in compute_hcas(node, context).hcas:
        ports = tables(hca, "ports") or []
        if hca.get("carries") or any(_port(port) == "ok" for port in ports):
            continue
        made += [text(port, "netdev") or "" for port in ports if _port(port) == "admin_down"]
    return [name for name in dict.fromkeys(made) if name]


def _port(port: Mapping[str, Any]) -> str:
    state = (text(port, "state") or "").upper()
    if state.startswith("ACTIVE"):
        return "ok"
    if state in ("INIT", "ARMED"):
        return "init"
    # An Ethernet port without a cable is "Disabled", too: whether its interface was taken down is told apart where that could be read.
    taken_down = flag(port, "admin_up")
    return "admin_down" if taken_down is False or (taken_down is None and text(port, "phys") == "Disabled") else "down"


def _ssh(node: Node, context: Context) -> Tuple[str, ...]:
    return tuple(text(hca, "name") or "?" for hca in compute_hcas(node, context).hcas if hca.get("carries"))


# -- containers --------------------------------------------------------------------------------------------------
def _engine(node: Node) -> str:
    docker, podman = node.get("container.docker"), node.get("container.podman")
    if isinstance(docker, dict):
        return "ok" if docker.get("running") is True else "stopped"
    if isinstance(podman, dict):
        return "ok"
    return UNKNOWN if node.why_unknown("container.docker", "container.podman") else "absent"


def _toolkit(node: Node, context: Context) -> str:
    from ..checks.wording import without_nvidia

    if without_nvidia(context):
        return "not_needed"
    facts = table(node.get("container"), "toolkit")
    if not facts or node.why_unknown("container.toolkit"):
        return UNKNOWN
    if flag(facts, "ctk") is False:
        return "absent"
    return "ok" if flag(facts, "configured") else "unconfigured"


def _cdi(node: Node) -> str:
    specs = tables(node.get("container"), "cdi")
    driver = loaded(node)[0]
    if specs is None or node.why_unknown("container.cdi"):
        return UNKNOWN
    if not specs:
        return "none"
    named = {found for spec in specs for found in words(spec, "versions") or []}
    if not named or not driver:
        return UNKNOWN
    return "ok" if named == {driver} else "stale"
