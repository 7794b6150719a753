# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the plan: the weights fit, the hardware is the declared one, and the words go together."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence

from ..plan.fit import fit, nodes_needed
from ..plan.profiles import HARDWARE, STRATEGIES, hardware_of_name, hardware_of_pci, memory_share, minimum_gpus, unsupported
from ..plan.resolve import DECLARED, Pool, contradictions, pools
from .model import CLUSTER, Context, Node, Outcome, check, cluster_check, failed, passed, skipped, unsure
from .wording import listed, number, short

RECIPE = "https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml"
GB_PER_MIB = 1024.0 * 1024.0 / 1e9


class Memory(NamedTuple):
    """GPU memory of one node.

    Attributes:
        gpus: working GPUs; 0 when there are none.
        gb: their memory, GB.
        assumed: taken from the declared hardware, not looked at.
        why: why it was assumed, or why it is not known (then `gpus` is None).
    """

    gpus: Optional[int]
    gb: float
    assumed: bool
    why: str


def gpu_memory(node: Node, context: Context) -> Memory:
    """GPU memory that works on this node.

    A GPU counts with the published figure of its hardware, or with what nvidia-smi shows when that is less:
    the arithmetic is that of the recipe, and no GPU is taken for more than it has.
    """
    row = HARDWARE.get(context.hardware)
    published = row.memory_gb / row.gpus if row and row.gpus else 0.0
    why = node.why_unknown("gpu.smi", "gpu.gpus")
    gpus = node.items("gpu.gpus")
    if gpus and not node.why_unknown("gpu"):
        working = [gpu for gpu in gpus if not gpu.get("lost")]
        measured = [number(gpu.get("fb_total_mib")) * GB_PER_MIB for gpu in working]
        gb = sum(min(value, published) if value and published else value or published for value in measured)
        return Memory(len(working), gb, False, "")
    pci = node.items("gpu.pci")
    if node.get("gpu.pci") is not None and not node.why_unknown("gpu.pci"):
        alive = [device for device in pci if not device.get("rev_ff")]
        # nvidia-smi is silent, but the bus was read: no device on it means no GPU.
        if not alive or not published:
            return Memory(0 if not alive else None, 0.0, False, "no GPU on the PCI bus" if not alive else short(why or "no GPU facts"))
        known = min(len(alive), row.gpus if row else len(alive))
        return Memory(known, known * published, True, short(why or "nvidia-smi gave no GPU facts"))
    if row and row.gpus:
        return Memory(row.gpus, row.memory_gb, True, short(why or "no GPU facts"))
    return Memory(None, 0.0, True, short(why or "no GPU facts"))


@cluster_check(
    id="plan.fits", severity="block", title="The weights fit",
    why="Weights that do not fit into the GPU memory of the engine end in an out-of-memory error after minutes of loading.",
    fix="Add nodes to vllm_nodes, choose another vllm_strategy or vllm_variant, or mend the GPUs that are missing.",
    read_from="nvidia-smi -q -x, the profile", source=RECIPE)
def fits(nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
    """The weights against the GPU memory of each engine: a finding a node where every node is an engine, else one for the cluster."""
    row = HARDWARE.get(context.hardware)
    span = STRATEGIES[context.strategy].span if context.strategy in STRATEGIES else "one"
    if row is not None and row.vendor == "cpu":
        reason = skipped("hardware cpu has no GPU memory to fit into")
        return {node.name: reason for node in nodes} if span == "one" else {CLUSTER: reason}
    engines = pools(nodes, context)
    if span == "one":
        return {engine.nodes[0].name: _fits(engine, context, 0) for engine in engines}
    away = len(context.nodes) - len(nodes) if span == "many" else 0
    outcomes = [(engine, _fits(engine, context, away)) for engine in engines]
    worst = ("fail", "unknown", "warn", "skip", "pass")
    outcomes.sort(key=lambda item: worst.index(item[1].status))
    if not outcomes:
        return {CLUSTER: unsure("no node answered")}
    engine, outcome = outcomes[0]
    if len(outcomes) > 1:
        outcome = outcome._replace(observed=short("%s: %s" % (engine.label, outcome.observed)))
    return {CLUSTER: outcome}


def _fits(engine: Pool, context: Context, away: int) -> Outcome:
    """`away`: nodes of this engine that did not answer; they count neither way."""
    share = memory_share(context.profile, context.hardware, context.strategy)
    required = "%s GB or more" % "{:,.0f}".format(context.weights_gb)
    if not engine.nodes:
        return failed("no node is in %s" % engine.label, required)
    memories = [(node, gpu_memory(node, context)) for node in engine.nodes]
    unknown = [(node, memory) for node, memory in memories if memory.gpus is None]
    counted = [(node, memory) for node, memory in memories if memory.gpus]
    empty = [node.name for node, memory in memories if memory.gpus == 0]
    assumed = any(memory.assumed for _node, memory in counted)
    sums = fit(context.weights_gb, [memory.gb for _node, memory in counted], share)
    gpus = sum(memory.gpus or 0 for _node, memory in counted)
    floor = minimum_gpus(context.strategy, context.hardware, engine.role) if context.strategy in STRATEGIES else 0
    notes: List[str] = []
    if empty:
        notes.append("without a GPU: %s" % listed(empty, 2))
    if away:
        notes.append("%d not looked at" % away)
    if assumed:
        notes.append("assumed, not looked at, on %s" % listed((n.name for n, m in counted if m.assumed), 2))
    text = short("; ".join([sums.text] + notes))
    if sums.holds and gpus >= floor:
        return passed(text, required, assumed=assumed)
    row = HARDWARE.get(context.hardware)
    if sums.holds:
        text = short("; ".join(["%d GPUs" % gpus] + notes))
        required = "%d GPUs for %s%s" % (floor, context.strategy, " on " + context.hardware if row and row.min_gpus == floor else "")
    if away and row:
        rest = fit(context.weights_gb, [m.gb for _n, m in counted] + [row.memory_gb] * away, share)
        if rest.holds and gpus + away * row.gpus >= floor:
            return unsure(text, required, "Bring back the silent nodes, then run `ansible-playbook inferops.vllm.preflight` again.", "warn")
    if unknown:
        return unsure(short("GPU memory of %s is not known: %s" % (listed((n.name for n, _m in unknown), 2), unknown[0][1].why)), required)
    why = None
    if not sums.holds and row and row.gpus:
        needed = max(nodes_needed(context.weights_gb, row.memory_gb, share), -(-floor // row.gpus))
        why = "The weights do not fit into the GPU memory of %s; %d whole %s nodes are needed." % (engine.label, needed, context.hardware)
    return failed(text, required, why)


@check(
    id="plan.hardware", severity="block", title="Declared hardware",
    why="Flags, memory and fabric software are chosen for the declared hardware, and this node is something else.",
    fix="Take the node out of the inventory, or declare what it is (vllm_hardware).",
    read_from="nvidia-smi -q -x, lspci", source=RECIPE)
def hardware(node: Node, context: Context) -> Outcome:
    """The GPUs found are those of the declared (or concluded) hardware."""
    row = HARDWARE.get(context.hardware)
    told = context.sources.get("vllm_hardware", "")
    if row is None:
        return unsure(short(told if told and told != DECLARED else "the hardware is not known"), "one of %s" % ", ".join(HARDWARE))
    if row.vendor == "cpu":
        return skipped("hardware cpu was declared: no GPU is expected")
    if row.vendor != "nvidia":
        return skipped("GPUs of %s are not looked at" % row.title)
    required = short("%s%s" % (row.title, "" if told == DECLARED else " (%s)" % told if told else ""))
    names = [str(gpu.get("name")) for gpu in node.items("gpu.gpus") if gpu.get("name")]
    if names:
        wrong = [name for name in names if hardware_of_name(name) != row.name]
        if wrong:
            some = "" if len(wrong) == len(names) else " on %d of %d" % (len(wrong), len(names))
            return failed(short(listed(sorted(set(wrong)), 2) + some), required)
        return passed(short("%d × %s" % (len(names), names[0])), required)
    why = node.why_unknown("gpu.smi", "gpu.gpus")
    if node.get("gpu.pci") is None or node.why_unknown("gpu.pci"):
        return unsure(short(why or node.why_unknown("gpu.pci") or "the GPUs were not looked at"), required)
    devices = [str(item.get("device")) for item in node.items("gpu.pci") if item.get("device") and not item.get("rev_ff")]
    if not devices:
        return failed("no GPU on the PCI bus", required, "This node has no NVIDIA GPU, so nothing of the plan can run here.")
    wrong = [device for device in devices if hardware_of_pci(device) != row.name]
    if wrong:
        known = sorted({hardware_of_pci(device) or device for device in wrong})
        return failed(short("PCI devices of %s" % listed(known)), required)
    return passed(short("%d × PCI %s (%s)" % (len(devices), devices[0], why or "no names read"), 110), required, assumed=True)


@cluster_check(
    id="plan.strategy", severity="block", title="Strategy and hardware",
    why="The recipe does not support this combination: the engine refuses it or fails while it starts.",
    fix="Choose another vllm_strategy, vllm_variant or vllm_interconnect, or leave them on auto.",
    read_from="the inventory, the profile", source=RECIPE)
def strategy(nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
    """Variant, hardware, strategy and interconnect go together."""
    required = "a combination that the recipe supports"
    if context.strategy not in STRATEGIES:
        return {CLUSTER: unsure("strategy %s is not known" % short(context.strategy, 40), required)}
    words = "%s, %s, %s" % (context.hardware or "hardware not known", context.strategy, context.interconnect)
    if not context.hardware:
        return {CLUSTER: unsure(words, required)}
    problem = unsupported(context.profile, context.variant, context.hardware, context.strategy)
    problems = ([problem] if problem else []) + contradictions(context)
    span = STRATEGIES[context.strategy].span
    count = max(len(context.nodes), len(nodes))
    if span == "many" and count < 2 and not STRATEGIES[context.strategy].min_gpus <= HARDWARE[context.hardware].gpus:
        problems.append("%s spans several nodes, and the inventory has %d" % (context.strategy, count))
    if problems:
        return {CLUSTER: failed(short("; ".join(problems)), required)}
    return {CLUSTER: passed(short(words), required)}
