# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the GPUs: all there, sound, idle, and joined by every NVLink."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from . import thresholds, xids
from .driver import refusal
from .model import Context, Node, Outcome, check, failed, passed, skipped, unsure, warned
from .values import counted, flag, number, table, tables, text, whole, words
from .wording import listed, plural, short

Gpu = Mapping[str, Any]

_SMI = "nvidia-smi -q -x"
_MEMORY_ERRORS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"
_RECOVERY_FLOWS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html"
_SMI_MANUAL = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
_FM_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
_REMEDIATE = "`ansible-playbook inferops.vllm.remediate --limit NODE`"

PRODUCTS = {"h100": "H100", "h200": "H200", "b200": "B200", "b300": "B300", "gb200": "GB200", "gb300": "GB300"}
"""Word that the product name of a GPU holds, by hardware. https://github.com/NVIDIA/k8s-test-infra (nvml mock captures), 2026-10."""

# Daemons of the node that hold /dev/nvidia* without using the GPUs; the kernel cuts `comm` at 15 characters.
_DAEMONS = re.compile(
    r"^(nvidia-persiste.*|nv-hostengine|dcgm.*|nvidia-smi|nv-fabricmanage.*|nvidia-fabricma.*|nvlsm|nvidia-imex.*|nvidia-modprobe|"
    r"nvidia-ctk|nvidia-containe.*|nvidia-cdi-hook|nvidia-gridd|nvidia-topology.*|gpud|nvsm.*)$"
)


_RUNNING = ("active", "activating", "reloading", "deactivating")
"""States of a unit that may have processes."""


class Gpus(NamedTuple):
    """The GPUs of a node.

    items: one table a GPU as nvidia-smi describes it, lost ones too.
    why: why there are none, or not all, empty when `items` is the whole list.
    none: the node is known to have no NVIDIA GPU at all.
    """

    items: List[Gpu]
    why: str
    none: bool


def gpus_of(node: Node) -> Gpus:
    """GPUs as nvidia-smi describes them; half a document is no document."""
    facts = node.get("gpu")
    items = tables(facts, "gpus")
    attached = whole(node.get("gpu.smi"), "attached")
    if items:
        if attached is not None and attached > len(items):
            return Gpus(items, "nvidia-smi names %s and describes %d" % (plural(attached, "GPU"), len(items)), False)
        return Gpus(items, node.why_unknown("gpu.smi", "gpu.gpus"), False)
    pci = tables(facts, "pci")
    if pci == [] and not node.why_unknown("gpu.pci"):
        return Gpus([], "no NVIDIA GPU on the PCI bus", True)
    why = node.why_unknown("gpu.smi", "gpu.gpus")
    return Gpus([], why or ("nvidia-smi describes no GPU" if items == [] else "nvidia-smi was not read"), False)


def _answering(found: Gpus) -> List[Gpu]:
    return [gpu for gpu in found.items if not flag(gpu, "lost")]


def label(gpu: Gpu) -> str:
    """``GPU 3``, or the bus address where the index is not known."""
    index = whole(gpu, "index")
    return "GPU %d" % index if index is not None else "GPU %s" % short(text(gpu, "bdf") or "?", 20)


def labels(gpus: Sequence[Gpu]) -> str:
    """``GPU 1, 4, 5`` or ``all 8 GPUs`` are named by the callers; here the short list."""
    indexes = [whole(gpu, "index") for gpu in gpus]
    if all(index is not None for index in indexes):
        return "GPU " + listed([str(index) for index in indexes], 8)
    return listed([label(gpu) for gpu in gpus], 4)


Judged = Tuple[str, str]
"""Status word and short text of one GPU: ``("fail", "row remap pending")``."""


def each(node: Node, required: str, rule: Callable[[Gpu], Judged], good: str) -> Outcome:
    """Judge every GPU by `rule` and say the worst.

    Args:
        required: what is asked of each.
        rule: gives (status, text) for one GPU.
        good: text for ``%s`` GPUs when every one passed.
    """
    found = gpus_of(node)
    if found.none:
        return skipped("no NVIDIA GPU on this node: see gpu.count")
    gpus = _answering(found)
    if not gpus:
        return unsure(found.why or "no GPU answers", required)
    judged = [(gpu, rule(gpu)) for gpu in gpus]
    for status in ("fail", "unknown", "warn"):
        bad = [(gpu, said) for gpu, (word, said) in judged if word == status]
        if bad:
            observed = _grouped(bad)
            if status == "fail":
                return failed(observed, required)
            if status == "unknown":
                return unsure(node.why_unknown("gpu.gpus") or observed, required)
            if found.why:
                return unsure(found.why, required)
            return warned(observed, required)
    if found.why:
        return unsure(found.why, required)
    return passed("%s: %s" % (plural(len(gpus), "GPU"), good), required)


def _grouped(bad: Sequence[Tuple[Gpu, str]]) -> str:
    groups: Dict[str, List[Gpu]] = {}
    for gpu, said in bad:
        groups.setdefault(said, []).append(gpu)
    return short("; ".join("%s: %s" % (labels(gpus), said) for said, gpus in list(groups.items())[:3]))


# --- number, model, memory ------------------------------------------------------------------------


@check(
    id="gpu.count",
    severity="block",
    title="GPUs present",
    why="The engine is planned for a fixed number of GPUs a node and does not start with fewer.",
    fix="Reboot the node; when the GPU stays away, reseat or replace it; no playbook mends that.",
    read_from="nvidia-smi -q -x, /sys/bus/pci/devices",
    source="https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
)
def count(node: Node, context: Context) -> Outcome:
    facts = node.get("gpu")
    found = gpus_of(node)
    pci = tables(facts, "pci") if not node.why_unknown("gpu.pci") else None
    expected = context.gpus_per_node
    required = "%d in nvidia-smi and on PCI" % expected if expected else "the same number in nvidia-smi and on PCI, at least 1"
    if found.none:
        return failed("no NVIDIA GPU on the PCI bus", required)
    alive = {text(gpu, "bdf") for gpu in _answering(found)}
    gone = [text(d, "bdf") or "?" for d in pci or [] if flag(d, "rev_ff")]
    gone += [text(gpu, "bdf") or "?" for gpu in found.items if flag(gpu, "lost") and text(gpu, "bdf") not in gone]
    gone += [bdf for bdf in words(facts, "fallen") or [] if bdf not in gone and bdf not in alive]
    whole_number = expected or len(pci or []) or len(found.items)
    if gone:
        left = len([bdf for bdf in alive if bdf not in gone]) if found.items else max(0, len(pci or []) - len(gone))
        return failed("%d of %s: %s fell off the bus" % (left, plural(whole_number, "GPU"), listed(gone, 4)), required)
    if pci is not None and expected and len(pci) < expected:
        return failed("%d of %s on PCI" % (len(pci), plural(expected, "GPU")), required)
    if found.items and pci is not None and len(found.items) < len(pci) and not found.why:
        seen = {text(gpu, "bdf") for gpu in found.items}
        missing = [text(d, "bdf") or "?" for d in pci if text(d, "bdf") not in seen]
        said = refusal(node)
        return failed(
            "%d of %s in nvidia-smi: %s missing%s"
            % (len(found.items), plural(len(pci), "GPU"), listed(missing, 4), ": " + said if said else ""),
            required,
        )
    if found.items and expected and len(found.items) < expected and not found.why:
        return failed("%d of %s in nvidia-smi" % (len(found.items), plural(expected, "GPU")), required)
    if not found.items or found.why:
        on_bus = "%d on PCI, " % len(pci) if pci else ""
        return unsure(short(on_bus + (found.why or "nvidia-smi was not read")), required)
    if pci is None:
        return unsure(
            "%d in nvidia-smi, PCI not read: %s" % (len(found.items), short(node.why_unknown("gpu.pci") or "no list", 60)), required
        )
    if len(pci) != len(found.items) or (expected and len(pci) != expected):
        return failed("%d in nvidia-smi, %d on PCI" % (len(found.items), len(pci)), required)
    if any(text(gpu, "bdf") is None for gpu in found.items):
        return unsure("a GPU without bus address", required)
    return passed("%s in nvidia-smi and on PCI" % plural(len(pci), "GPU"), required)


@check(
    id="gpu.model",
    severity="block",
    title="GPU model",
    why="Flags, memory and kernels are planned for one model; another one in the node fails or is slow.",
    fix="Declare the hardware that is there (vllm_hardware), or take the node out of the group; no playbook mends that.",
    read_from=_SMI,
    source=_SMI_MANUAL,
)
def model(node: Node, context: Context) -> Outcome:
    found = gpus_of(node)
    wanted = PRODUCTS.get(context.hardware, "")
    required = "NVIDIA %s" % wanted if wanted else "one model in the node"
    if found.none:
        return skipped("no NVIDIA GPU on this node: see gpu.count")
    names = [text(gpu, "name") for gpu in _answering(found)]
    known = [name for name in names if name]
    if known:
        kinds = counted(known)
        if len(kinds) > 1:
            return failed(short(", ".join("%d × %s" % (n, short(name, 40)) for name, n in list(kinds.items())[:3])), required)
        if wanted and not re.search(r"\b%s\b" % wanted, known[0]):
            return failed(short(known[0], 60), required)
    if not known or len(known) < len(names) or found.why:
        return unsure(found.why or "a GPU without name", required)
    return passed("%d × %s" % (len(known), short(known[0], 60)), required)


def _is_daemon(comm: str) -> bool:
    return bool(_DAEMONS.match(comm))


class Holders(NamedTuple):
    """Who has the GPUs open: `ours` runs vLLM for this collection, `daemons` belong to the node, the rest is `foreign`."""

    ours: List[Mapping[str, Any]]
    daemons: List[Mapping[str, Any]]
    foreign: List[Mapping[str, Any]]
    why: str


def holders_of(node: Node) -> Holders:
    """Sort the processes that hold ``/dev/nvidia[0-9]*``; dead ones (zombies) hold nothing."""
    found = tables(node.get("gpu"), "holders")
    why = node.why_unknown("gpu.holders") or ("" if found is not None else "who holds the GPUs was not read")
    ours: List[Mapping[str, Any]] = []
    daemons: List[Mapping[str, Any]] = []
    foreign: List[Mapping[str, Any]] = []
    pids, containers, serving = _our_processes(node)
    if pids and not why:
        why = node.why_unknown("service.units")
    for holder in node.items("gpu.holders"):
        comm = text(holder, "comm") or ""
        if text(holder, "state") in ("Z", "X"):
            continue
        if whole(holder, "pid") in pids or (text(holder, "container") or "-") in containers or (serving and comm.startswith("VLLM::")):
            ours.append(holder)
        elif _is_daemon(comm):
            daemons.append(holder)
        else:
            foreign.append(holder)
    return Holders(ours, daemons, foreign, why)


def _our_processes(node: Node) -> Tuple[Set[Any], Set[str], bool]:
    """pids and containers of our services, and whether one of them runs outside a container (its workers call themselves VLLM::…).

    Where no unit of ours runs, whatever vLLM runs is not ours: started by hand, or left of an engine that ended.
    """
    pids: Set[Any] = set()
    containers: Set[str] = set()
    serving = False
    facts = node.get("service")
    read = tables(facts, "units")
    if read is not None and not any(text(unit, "active") in _RUNNING for unit in read):
        return pids, containers, serving
    units = {text(unit, "name") for unit in read or []}
    for unit in read or []:
        if whole(unit, "main_pid"):
            pids.add(whole(unit, "main_pid"))
    for process in tables(facts, "processes") or []:
        if whole(process, "pid"):
            pids.add(whole(process, "pid"))
        container = text(process, "container")
        if container:
            containers.add(container)
        elif text(process, "unit") in units and text(process, "unit"):
            serving = True
    return pids, containers, serving


@check(
    id="gpu.idle",
    severity="block",
    title="GPUs free",
    why="Memory that another process holds is not there for the weights, and the engine does not start.",
    fix="Stop the process, or ask the playbook to (it kills nothing unasked): " + _REMEDIATE + ".",
    read_from="/proc/*/fd",
    source="https://docs.vllm.ai/en/latest/usage/troubleshooting/",
)
def idle(node: Node, context: Context) -> Outcome:
    required = "no process but our service and the node's daemons"
    if gpus_of(node).none:
        return skipped("no NVIDIA GPU on this node: see gpu.count")
    found = holders_of(node)
    if found.foreign:
        names = [
            "%s (pid %s%s)"
            % (
                short(text(h, "comm") or "?", 20),
                whole(h, "pid") or "?",
                ", container %s" % short(text(h, "container"), 12) if text(h, "container") else "",
            )
            for h in found.foreign
        ]
        return failed(short("held by " + listed(names, 3, 60)), required)
    if found.why:
        return unsure(found.why, required)
    if found.ours:
        return passed("held by our own service (%s)" % plural(len(found.ours), "process").replace("processs", "processes"), required)
    return passed(
        "held by nobody" if not found.daemons else "held by %s only" % listed(sorted({text(h, "comm") or "?" for h in found.daemons}), 3),
        required,
    )


@check(
    id="gpu.memory",
    severity="block",
    title="GPU memory",
    why="The plan counts with the whole memory of every GPU; what is missing or in use does not hold weights.",
    fix="Find who uses the memory (nvidia-smi, fuser /dev/nvidia*) or reset the GPU: " + _REMEDIATE + ".",
    read_from=_SMI,
    source="https://docs.vllm.ai/en/latest/configuration/conserving_memory/",
)
def memory(node: Node, context: Context) -> Outcome:
    least = int(context.gpu_memory_mib * thresholds.GPU_MEMORY_SHARE_MIN)
    found = holders_of(node)
    is_idle = not (found.ours or found.foreign or found.why)
    required = ("%d MiB a GPU" % context.gpu_memory_mib if context.gpu_memory_mib else "one size") + (", free" if is_idle else "")
    sizes = [whole(gpu, "fb_total_mib") for gpu in _answering(gpus_of(node))]
    largest = max([size for size in sizes if size] or [0])

    def rule(gpu: Gpu) -> Judged:
        total, used = whole(gpu, "fb_total_mib"), whole(gpu, "fb_used_mib")
        if total is None or total <= 0:
            return "unknown", "memory size not read"
        if total < least or total < thresholds.GPU_MEMORY_SHARE_MIN * largest:
            return "fail", "%d MiB" % total
        if found.ours or found.foreign:
            return "pass", ""
        if used is None:
            return "unknown", "memory in use not read"
        if used > total * thresholds.GPU_MEMORY_USED_SHARE_MAX:
            if found.why:
                return "unknown", "%d MiB in use, holders not known" % used
            return "fail", "%d MiB in use, though no process holds it" % used
        return ("warn", "%d MiB in use" % used) if used > thresholds.GPU_MEMORY_USED_NOTE_MIB else ("pass", "")

    return each(
        node, required, rule, "%d MiB each%s" % (largest, ", free" if is_idle else ", in use" if found.ours or found.foreign else "")
    )


# --- health ---------------------------------------------------------------------------------------


@check(
    id="gpu.ecc",
    severity="block",
    title="ECC",
    why="Without ECC, or with errors that it could not correct, answers are silently wrong or the engine dies.",
    fix="Reset the GPU (this also applies a pending ECC mode): " + _REMEDIATE + "; replace it when errors come back.",
    read_from=_SMI,
    source=_MEMORY_ERRORS,
)
def ecc(node: Node, context: Context) -> Outcome:
    def rule(gpu: Gpu) -> Judged:
        facts = table(gpu, "ecc")
        current, pending = flag(facts, "current"), flag(facts, "pending")
        volatile, aggregate = whole(facts, "volatile_uncorrectable"), whole(facts, "aggregate_uncorrectable")
        if current is False:
            return "fail", "ECC is off"
        if flag(facts, "threshold_exceeded"):
            return "fail", "threshold of uncorrectable SRAM errors exceeded"
        if flag(facts, "unrepairable"):
            return "fail", "memory that cannot be repaired: replace the GPU"
        if volatile:
            return "fail", plural(volatile, "uncorrectable error") + " since the driver was loaded"
        if flag(facts, "repair_pending"):
            return "fail", "a memory repair waits for a reset"
        if current is None or volatile is None:
            return "unknown", "ECC not read"
        if pending is False:
            return "fail", "ECC will be off after the next reset"
        if aggregate is not None and aggregate > thresholds.ECC_AGGREGATE_MAX:
            return "warn", "%d uncorrectable errors in its life" % aggregate
        return "pass", ""

    return each(node, "on, no uncorrectable error", rule, "ECC on, no uncorrectable error")


@check(
    id="gpu.remap",
    severity="block",
    title="Row remapping",
    why="A pending remap waits for a reset with faulty rows in use; a failed one means that the GPU has no spare rows left.",
    fix="Reset the GPU for a pending remap: " + _REMEDIATE + "; replace it when remapping failed.",
    read_from=_SMI,
    source=_MEMORY_ERRORS,
)
def remap(node: Node, context: Context) -> Outcome:
    def rule(gpu: Gpu) -> Judged:
        facts = table(gpu, "remap")
        pending, failure, rows = flag(facts, "pending"), flag(facts, "failure"), whole(facts, "uncorrectable")
        if failure:
            return "fail", "row remapping failed: replace the GPU"
        if pending:
            return "fail", "row remap pending"
        if rows is not None and rows > thresholds.REMAP_UNCORRECTABLE_MAX:
            return "fail", "%d rows remapped: replace the GPU" % rows
        if pending is None or failure is None:
            return "unknown", "row remapping not read"
        return "pass", ""

    return each(node, "nothing pending, nothing failed", rule, "nothing pending")


@check(
    id="gpu.recovery_action",
    severity="block",
    title="Recovery action",
    why="The driver itself says that the GPU does not work until this action was taken.",
    fix="Do what it asks, a GPU reset or a reboot: " + _REMEDIATE + ".",
    read_from=_SMI,
    source=_RECOVERY_FLOWS,
)
def recovery_action(node: Node, context: Context) -> Outcome:
    def rule(gpu: Gpu) -> Judged:
        action = text(gpu, "recovery_action")
        kind = xids.recovery_class(action)
        if kind == "ignored":
            return "pass", ""
        if kind:
            return "fail", short(action, 40)
        return "unknown", "recovery action %s" % short(action, 40) if action else "recovery action not read"

    return each(node, "None", rule, "none asked for")


class _Event(NamedTuple):
    rank: int
    text: str
    kind: str
    action: str


_FIXES = {
    "application": "Start the service again if it is affected: " + _REMEDIATE + ".",
    "reset": "Stop the service and reset the GPU: " + _REMEDIATE + "; reboot when it comes back.",
    "reboot": "Reboot the node (the playbook does so only when asked): " + _REMEDIATE + "; replace the GPU when it comes back.",
    "support": "Take the node out of service and call its vendor; no playbook mends that.",
}


@check(
    id="gpu.xid",
    severity="block",
    title="Xid errors",
    why="The driver reported a GPU fault since boot that NVIDIA's catalogue answers with more than restarting the process.",
    fix="Reset the GPU or reboot, as the catalogue says for the code: " + _REMEDIATE + ".",
    read_from="kernel log of this boot",
    source=xids.SOURCE,
)
def xid(node: Node, context: Context) -> Outcome:
    required = "none that asks for a reset, a reboot or support"
    facts = node.get("gpu")
    lines, fallen = node.items("gpu.xid"), words(facts, "fallen")
    events = [_xid_event(node, line) for line in lines] + [_sxid_event(line) for line in node.items("gpu.sxid")]
    named = {text(line, "bdf") for line in lines if whole(line, "code") == 79}
    events += [
        _Event(xids.CLASSES.index("reboot"), "%s fell off the bus" % short(bdf, 20), "reboot", "RESTART_BM")
        for bdf in fallen or []
        if bdf not in named
    ]
    worst = max(events, key=lambda event: event.rank) if events else None
    if worst is not None and worst.rank >= xids.CLASSES.index("reset"):
        return failed(_listed(events), required, fix=_FIXES[worst.kind])
    if gpus_of(node).none:
        return skipped("no NVIDIA GPU on this node: see gpu.count")
    why = node.why_unknown("gpu.kernel_log", "gpu.xid")
    if why or tables(facts, "xid") is None or tables(facts, "sxid") is None or fallen is None:
        return unsure(why or "Xid lines of the kernel log were not read", required)
    if worst is None:
        return passed("none since boot", required)
    if worst.kind == "application":
        return warned(
            _listed(events),
            required,
            why="A process was hit by a GPU fault since boot; the GPU itself is sound.",
            fix=_FIXES["application"],
        )
    return passed(_listed(events), required)


def _xid_event(node: Node, line: Mapping[str, Any]) -> _Event:
    code, times = whole(line, "code"), whole(line, "count") or 1
    if code is None:
        return _Event(xids.CLASSES.index("application"), "an Xid line without code", "application", "")
    known = xids.classify(code, text(line, "text") or "")
    kind, note = known.kind, ""
    if kind == "reset" and _dealt_with(node, line):
        kind, note = "application", ", over a day ago"
    index = whole(line, "index")
    where = "GPU %d" % index if index is not None else short(text(line, "bdf") or "?", 20)
    told = "Xid %d on %s%s: %s%s" % (code, where, " ×%d" % times if times > 1 else "", known.text, note)
    return _Event(xids.CLASSES.index(kind), told, kind, known.action)


def _dealt_with(node: Node, line: Mapping[str, Any]) -> bool:
    """An old Xid of a GPU that answers and for which the driver asks nothing more: a reset leaves no line in the kernel log."""
    now, booted, last = number(node.get("collected"), "now"), number(node.get("host"), "booted_at"), number(line, "last")
    if now is None or booted is None or last is None or now - booted - last < thresholds.XID_RECENT_S:
        return False
    bdf = text(line, "bdf")
    return any(
        text(gpu, "bdf") == bdf and not flag(gpu, "lost") and xids.recovery_class(text(gpu, "recovery_action")) == "ignored"
        for gpu in gpus_of(node).items
    )


def _sxid_event(line: Mapping[str, Any]) -> _Event:
    code = whole(line, "code")
    fatal = flag(line, "fatal") is not False
    kind = "reset" if fatal else "application"
    told = "%s SXid %s on NVSwitch %s" % (
        "fatal" if fatal else "non-fatal",
        code if code is not None else "?",
        short(text(line, "bdf") or "?", 20),
    )
    return _Event(xids.CLASSES.index(kind), told, kind, "")


def _listed(events: Sequence[_Event]) -> str:
    ordered = sorted(events, key=lambda event: -event.rank)
    more = "" if len(ordered) <= 2 else " and %d more" % (len(ordered) - 2)
    return short("; ".join(event.text for event in ordered[:2]), 105) + more


@check(
    id="gpu.mig",
    severity="block",
    title="MIG off",
    why="A GPU in MIG mode is split into slices that cannot hold a tensor-parallel rank.",
    fix="Turn MIG off (`nvidia-smi -mig 0`) and reset the GPU: " + _REMEDIATE + ".",
    read_from=_SMI,
    source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
)
def mig(node: Node, context: Context) -> Outcome:
    def rule(gpu: Gpu) -> Judged:
        mode, pending = text(gpu, "mig"), text(gpu, "mig_pending")
        if mode == "Enabled":
            return "fail", "MIG is on"
        if pending == "Enabled":
            return "fail", "MIG will be on after the next reset"
        return ("pass", "") if mode in ("Disabled", "N/A") else ("unknown", "MIG mode not read")

    return each(node, "off", rule, "MIG off")


@check(
    id="gpu.persistence",
    severity="warn",
    title="Persistence",
    why="Without persistence the driver lets go of an idle GPU, and every start takes seconds longer and loses its settings.",
    fix="Enable nvidia-persistenced: `ansible-playbook inferops.vllm.provision --limit NODE`.",
    read_from=_SMI,
    source="https://docs.nvidia.com/deploy/driver-persistence/",
)
def persistence(node: Node, context: Context) -> Outcome:
    def rule(gpu: Gpu) -> Judged:
        mode = flag(gpu, "persistence")
        return ("unknown", "persistence mode not read") if mode is None else ("pass", "") if mode else ("fail", "persistence is off")

    return each(node, "on", rule, "persistence on")


_SLOWDOWNS = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "power brake",
    "sw_thermal_slowdown": "thermal slowdown",
}


@check(
    id="gpu.throttle",
    severity="warn",
    title="Throttling",
    why="One GPU that is slowed down slows every rank, since all wait for each other.",
    fix="Look at cooling, power supplies and the power cap of the node; no playbook mends that.",
    read_from=_SMI,
    source=_SMI_MANUAL,
)
def throttle(node: Node, context: Context) -> Outcome:
    def rule(gpu: Gpu) -> Judged:
        if "throttle" not in gpu:
            # Left out when nothing slows it down; a table without PCIe and ECC is not a whole description.
            return ("pass", "") if table(gpu, "pcie") and table(gpu, "ecc") else ("unknown", "throttle reasons not read")
        reasons = words(gpu, "throttle")
        if reasons is None:
            return "unknown", "throttle reasons not read"
        slow = [_SLOWDOWNS.get(reason, short(reason, 30)) for reason in reasons]
        heat = whole(gpu, "temperature")
        return ("fail", ", ".join(slow[:3]) + (" at %d C" % heat if heat is not None else "")) if slow else ("pass", "")

    return each(node, "no slowdown", rule, "no slowdown")


@check(
    id="gpu.pcie_link",
    severity="block",
    title="PCIe link",
    why="A link of fewer lanes halves the speed at which weights load and RDMA moves, and is the mark of a bad seat or riser.",
    fix="Reboot the node; when the width stays low, reseat or replace the GPU board; no playbook mends that.",
    read_from=_SMI,
    source=_SMI_MANUAL,
)
def pcie_link(node: Node, context: Context) -> Outcome:
    def rule(gpu: Gpu) -> Judged:
        facts = table(gpu, "pcie")
        width, width_max = whole(facts, "width"), whole(facts, "width_max")
        if not width or not width_max:
            return "unknown", "PCIe width not read"
        # The generation falls while a GPU is idle, to save power; the width does not.
        return ("fail", "x%d of x%d lanes" % (width, width_max)) if width < width_max else ("pass", "")

    widths = [whole(table(gpu, "pcie"), "width_max") or 0 for gpu in gpus_of(node).items]
    return each(node, "the full width", rule, "x%d" % max(widths or [0]))


# --- NVLink ---------------------------------------------------------------------------------------

_NV = re.compile(r"^NV(\d{1,3})$")


@check(
    id="gpu.nvlink_matrix",
    severity="block",
    title="NVLink complete",
    why="With a link missing NCCL falls back to a slow path or fails, and one slow pair slows every collective.",
    fix="Restart Fabric Manager or reset the GPUs: " + _REMEDIATE + "; have the board looked at when the link stays away.",
    read_from="nvidia-smi topo -m, nvidia-smi nvlink -s",
    source=_FM_GUIDE,
)
def nvlink_matrix(node: Node, context: Context) -> Outcome:
    found = gpus_of(node)
    links = context.nvlink_links
    required = "NV%d between all GPUs, every link active" % links if links else "NVLink between all GPUs"
    if found.none:
        return skipped("no NVIDIA GPU on this node: see gpu.count")
    names, cells, why = _matrix(node)
    wanted = links or max([n for row in cells for n in row if n and n > 0] or [0])
    if not links and not why and not wanted:
        return skipped("the GPUs of this node have no NVLink")
    faults = _link_faults(node, context, links) or _cell_faults(names, cells, wanted)
    if faults:
        return failed(short("; ".join(faults)), required)
    if not why and found.items and len(names) < len(_answering(found)):
        why = "nvidia-smi topo -m shows %d of %s" % (len(names), plural(len(_answering(found)), "GPU"))
    if why or not found.items:
        return unsure(short(why or found.why), required)
    if len(names) < 2:
        return skipped("one GPU has no peer")
    return passed("NV%d between all %s" % (wanted, plural(len(names), "GPU")), required)


def _matrix(node: Node) -> Tuple[List[str], List[List[Optional[int]]], str]:
    """Names, and per row the number of links to each GPU (None: no NVLink; -1: the GPU itself), and why it could not be read."""
    topology = node.get("gpu.topology")
    names, rows = words(topology, "gpus"), words(topology, "matrix")
    why = node.why_unknown("gpu.topology")
    if why or not names or not rows:
        return [], [], why or "nvidia-smi topo -m was not read"
    if len(rows) != len(names) or any(len(row.split()) != len(names) for row in rows):
        return [], [], "nvidia-smi topo -m gave half a matrix"
    cells: List[List[Optional[int]]] = []
    for i, row in enumerate(rows):
        parsed: List[Optional[int]] = []
        for j, cell in enumerate(row.split()):
            nv = _NV.match(cell)
            parsed.append(-1 if i == j else int(nv.group(1)) if nv else None)
        cells.append(parsed)
    return names, cells, ""


def _cell_faults(names: Sequence[str], cells: Sequence[Sequence[Optional[int]]], wanted: int) -> List[str]:
    """Pairs of GPUs with fewer links than `wanted`; a GPU that lost most of its peers is named alone."""
    bad = [(i, j, n) for i, row in enumerate(cells) for j, n in enumerate(row) if i < j and n != -1 and (n or 0) < wanted]
    if not bad:
        return []
    lost: Dict[int, int] = {}
    for i, j, _n in bad:
        lost[i] = lost.get(i, 0) + 1
        lost[j] = lost.get(j, 0) + 1
    alone = [i for i, n in lost.items() if n > (len(names) - 1) // 2]
    faults = ["%s lost NVLink to %d of %d peers" % (short(names[i], 10), lost[i], len(names) - 1) for i in sorted(alone)]
    rest = [(i, j, n) for i, j, n in bad if i not in alone and j not in alone]
    faults += ["%s-%s %s" % (short(names[i], 10), short(names[j], 10), "NV%d" % n if n else "no NVLink") for i, j, n in rest]
    return faults[:3] + (["%d more" % (len(faults) - 3)] if len(faults) > 3 else [])


def _link_faults(node: Node, context: Context, links: int) -> List[str]:
    """Links that `nvidia-smi nvlink -s` calls inactive, missing or slow."""
    slowest = thresholds.NVLINK_GBS_MIN.get(context.hardware, 0.0)
    faults = []
    for item in tables(node.get("gpu"), "nvlink") or []:
        index, there, active, speed = whole(item, "index"), whole(item, "links"), whole(item, "active"), number(item, "min_gbs")
        name = "GPU %s" % (index if index is not None else "?")
        down = item.get("inactive")
        expected = max(links, there or 0)
        if active is not None and active < expected:
            which = (
                ", link %s" % listed([str(n) for n in down], 3)
                if isinstance(down, list) and down and all(isinstance(n, int) for n in down)
                else ""
            )
            faults.append("%s: %d of %d links active%s" % (name, active, expected, which))
        elif speed is not None and speed < slowest:
            faults.append("%s: a link runs at %g GB/s" % (name, speed))
    return faults[:3] + (["%d more GPUs" % (len(faults) - 3)] if len(faults) > 3 else [])
