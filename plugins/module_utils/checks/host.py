# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the host: kernel, limits, shared memory, time, names, reboot, swap, stuck processes."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Sequence, Set

from ..plan.profiles import HARDWARE, STRATEGIES
from .model import Context, Node, Outcome, check, cluster_check, failed, passed, skipped, unsure, warned
from .thresholds import KERNEL_DMABUF, SHM_BYTES, SWAP_USED_BYTES
from .wording import listed, mapping, missing, number, short, version, without_nvidia, without_rdma

RDMA_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html"
VLLM_SCALING = "https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html"
VLLM_TROUBLES = "https://docs.vllm.ai/en/latest/usage/troubleshooting.html"
GIB = 1024.0**3


@check(
    id="host.kernel", severity="block", title="Kernel",
    why="The image is built for the hardware's architecture, and dma-buf needs a kernel that can lend GPU memory to HCAs.",
    fix="Install a newer kernel of the distribution, reboot, and run `ansible-playbook inferops.vllm.preflight` again.",
    read_from="uname -r, uname -m, /boot/config", source=RDMA_GUIDE)
def kernel(node: Node, context: Context) -> Outcome:
    """The architecture is the hardware's (block); the kernel and its configuration allow dma-buf where RDMA is planned (warn)."""
    row = HARDWARE.get(context.hardware)
    wanted = row.arch if row else ""
    lowest = ".".join(str(part) for part in KERNEL_DMABUF)
    required = ", ".join(word for word in (wanted, "%s or newer" % lowest if context.needs_rdma else "") if word) or "any"
    paths = ["host.kernel"] + (["host.arch"] if wanted else [])
    why = missing(node, *paths)
    if why:
        return unsure(why, required)
    arch, release = node.get("host.arch"), node.get("host.kernel")
    text = short("%s %s" % (release, arch or ""), 80)
    if wanted and arch != wanted:
        return failed(text, required, "%s nodes are %s: this is another kind of machine." % (context.hardware, wanted),
                      "Take the node out of the inventory or declare the hardware that it is (vllm_hardware).")
    if without_rdma(context) or without_nvidia(context):
        return passed(text, required)
    have = version(release)
    if not have:
        return unsure("the kernel's version %s cannot be read" % short(release, 40), required, severity="warn")
    if have < KERNEL_DMABUF:
        return warned(text, required, "Kernels before %s cannot register GPU memory as dma-buf, which leaves nvidia_peermem only." % lowest)
    config = mapping(node.get("host.kernel_config"))
    lacking = [name for name in ("DMA_SHARED_BUFFER", "PCI_P2PDMA") if config.get(name) == "n"]
    if lacking:
        return warned("%s without %s" % (text, " and ".join("CONFIG_" + name for name in lacking)), required,
                      "dma-buf between GPU and HCA needs these options in the kernel, which leaves nvidia_peermem only.")
    return passed(text, required)


@check(
    id="host.limits", severity="warn", title="Locked memory limit",
    why="RDMA registers memory that must be locked; where the limit is low, ibv_reg_mr fails and the engine does not start.",
    fix="Set it to unlimited for services with `ansible-playbook inferops.vllm.provision --limit NODE`.",
    read_from="systemctl show, /etc/security/limits.d", source="https://github.com/linux-system-roles/hpc")
def limits(node: Node, context: Context) -> Outcome:
    """Locked memory is unlimited for what starts containers: docker's own limit where docker has one, else that of services."""
    reason = without_rdma(context)
    if reason:
        return skipped(reason)
    required = "memlock unlimited"
    why = node.why_unknown("host.limits")
    if why:
        return unsure(short(why), required)
    docker, services = node.get("host.limits.docker_memlock"), node.get("host.limits.memlock")
    value, whose = (docker, "docker") if docker is not None else (services, "services")
    if value is None:
        return unsure("the limit of services is not known", required)
    if value == "unlimited":
        return passed("unlimited (%s)" % whose, required)
    return failed("%s (%s)" % (_size(value), whose), required)


def _size(value: Any) -> str:
    size = number(value, -1.0)
    if size < 0:
        return short(value, 30)
    return "%.0f GiB" % (size / GIB) if size >= GIB else "%.0f MiB" % (size / GIB * 1024) if size >= 1024**2 else "%.0f KiB" % (size / 1024)


@check(
    id="host.shm", severity="warn", title="Shared memory",
    why="vLLM's processes pass tensors through /dev/shm and fail with a bus error when it is full.",
    fix="Enlarge /dev/shm or remove what fills it, then run `ansible-playbook inferops.vllm.preflight` again.",
    read_from="/dev/shm", source=VLLM_SCALING)
def shm(node: Node, context: Context) -> Outcome:
    """/dev/shm has room for the worker processes."""
    required = "%.0f GiB free" % (SHM_BYTES / GIB)
    why = missing(node, "host.shm.free_bytes")
    if why:
        return unsure(why, required)
    free = number(node.get("host.shm.free_bytes"))
    text = "%.1f GiB free" % (free / GIB)
    return passed(text, required) if free >= SHM_BYTES else failed(text, required)


@check(
    id="host.time", severity="warn", title="Clock",
    why="With clocks apart, logs of several nodes cannot be put in order, and certificates and tokens fail.",
    fix="Run chrony or systemd-timesyncd: `ansible-playbook inferops.vllm.provision --limit NODE`.",
    read_from="timedatectl show, chronyc tracking", source="https://chrony-project.org/documentation.html")
def time(node: Node, context: Context) -> Outcome:
    """The clock is synchronised."""
    required = "synchronised"
    why = missing(node, "host.time.synchronized")
    if why:
        return unsure(why, required)
    source = short(node.get("host.time.source") or "", 30)
    if node.get("host.time.synchronized") is True:
        return passed("synchronised%s" % (" by " + source if source else ""), required)
    return failed("not synchronised%s" % (" (%s)" % source if source else ""), required)


@cluster_check(
    id="host.names", severity="block", title="Names of the peers",
    why="Ranks that resolve a peer's name to a loopback address, or not at all, wait for each other without a word.",
    fix="Put every node's address into DNS or /etc/hosts, or declare vllm_host_ip for every node in the inventory.",
    read_from="getaddrinfo", source=VLLM_TROUBLES)
def names(nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
    """Peers resolve, and to no loopback address, unless the inventory declares their addresses."""
    span = STRATEGIES[context.strategy].span if context.strategy in STRATEGIES else "one"
    if span == "one":
        return {node.name: skipped("the plan keeps each engine on one node") for node in nodes}
    if len(context.nodes) < 2 and len(nodes) < 2:
        return {node.name: skipped("the cluster has one node") for node in nodes}
    declared = {node.name for node in nodes if node.declared.get("host_ip")}
    everywhere = all(name in declared for name in context.nodes or [node.name for node in nodes])
    return {node.name: _names(node, declared, everywhere) for node in nodes}


def _names(node: Node, declared: Set[str], everywhere: bool) -> Outcome:
    """`declared`: nodes with vllm_host_ip; `everywhere`: all have it, so that names do not matter."""
    required = "every peer resolves to a routable address"
    own_ip = str(node.declared.get("host_ip") or "")
    if own_ip and _loopback(own_ip):
        return failed(short("vllm_host_ip %s" % own_ip), required, fix="Declare the node's address on the private network as vllm_host_ip.")
    interfaces = mapping(node.get("host.addresses"))
    here = {str(a).partition("/")[0] for found in interfaces.values() if isinstance(found, list) for a in found}
    if own_ip and here and _is_address(own_ip) and own_ip not in here:
        return failed(short("vllm_host_ip %s is on no interface of the node" % own_ip), required,
                      "Ranks connect to the address that is declared, and nothing listens there.",
                      "Declare an address of the node as vllm_host_ip.")
    why = missing(node, "host.names")
    table = mapping(node.get("host.names"))
    if (why or not table) and everywhere:
        return passed("the inventory declares every address (vllm_host_ip)", required)
    if why:
        return unsure(why, required)
    if not table:
        return unsure("the names of the peers were not looked up", required, severity="warn")
    own = {node.name, str(node.get("host.hostname"))}
    bad: List[str] = []
    soft: List[str] = []
    for peer, found in table.items():
        addresses = [str(a) for a in found] if isinstance(found, list) else []
        if addresses and not any(_loopback(a) for a in addresses):
            continue
        text = "%s → %s" % (short(peer, 40), listed(addresses, 1) if addresses else "nothing")
        # Strategies over several nodes name the interface, so a node's own loopback entry only misleads others.
        (soft if peer in own or peer in declared else bad).append(text)
    if bad:
        return failed(short(listed(bad)), required)
    if soft and any(not item.startswith(tuple(declared)) for item in soft):
        return warned(short(listed(soft)), required, "A node whose own name is a loopback address may advertise it to the others.")
    if soft:
        return passed(short("%s, but the inventory declares the address" % listed(soft, 2)), required)
    return passed("%d names" % len(table), required)


def _is_address(text: str) -> bool:
    return bool(re.match(r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)\Z", text))


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "0.0.0.0", "::") or address.lower().startswith("::ffff:127.")


@check(
    id="host.pending_reboot", severity="warn", title="Pending reboot",
    why="What the next boot changes is not what was judged today, and a reboot later may take the node out of service.",
    fix="Reboot at a convenient time before the service starts, then run `ansible-playbook inferops.vllm.preflight` again.",
    read_from="/run/reboot-required, installed kernels, needs-restarting",
    source="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/")
def pending_reboot(node: Node, context: Context) -> Outcome:
    """No update waits for a reboot (the driver has checks of its own)."""
    required = "none"
    why = missing(node, "host.pending_reboot.required")
    if why:
        return unsure(why, required)
    if node.get("host.pending_reboot.required") is not True:
        return passed("none", required)
    reasons = node.get("host.pending_reboot.reasons")
    told = [str(reason) for reason in reasons] if isinstance(reasons, list) else []
    return failed(short("pending: " + ("; ".join(told[:3]) or "no reason given")), required)


@check(
    id="host.swap", severity="info", title="Swap",
    why="A host that swaps while it serves answers late and by fits and starts.",
    fix="Find what takes the memory, and turn swap off (`swapoff -a`) on a node that serves.",
    read_from="/proc/meminfo", source="https://docs.kernel.org/admin-guide/sysctl/vm.html")
def swap(node: Node, context: Context) -> Outcome:
    """No swap, or swap that is not used."""
    required = "not used"
    why = missing(node, "host.memory.swap_total_bytes")
    if why:
        return unsure(why, required)
    total = number(node.get("host.memory.swap_total_bytes"))
    if total <= 0:
        return passed("no swap", required)
    why = missing(node, "host.memory.swap_free_bytes")
    if why:
        return unsure(why, required)
    used = total - number(node.get("host.memory.swap_free_bytes"))
    text = "%.1f of %.1f GiB used" % (max(used, 0.0) / GIB, total / GIB)
    return warned(text, required) if used > SWAP_USED_BYTES else passed(text, required)


@check(
    id="host.stuck", severity="block", title="Processes stuck in a driver",
    why="A process that sleeps uninterruptibly in a driver cannot be killed, and whatever asks that driver next will hang too.",
    fix="Freeze evidence with `ansible-playbook inferops.vllm.evidence --limit NODE`, then reboot the node.",
    read_from="/proc/*/stat, /proc/*/wchan", source="https://github.com/NVIDIA/NVSentinel/issues/1748")
def stuck(node: Node, context: Context) -> Outcome:
    """No process is in D state in a GPU or RDMA driver."""
    required = "none"
    why = missing(node, "host.stuck")
    if why:
        return unsure(why, required)
    found = ["%s (pid %d)" % (short(p.get("comm"), 20), number(p.get("pid"))) for p in node.items("host.stuck")]
    return failed(short("in D state: " + listed(found)), required) if found else passed("none", required)
