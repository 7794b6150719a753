# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of GPUDirect RDMA: dma-buf, nvidia_peermem, and the fallback from one to the other."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence

from ..plan.resolve import pools
from .model import CLUSTER, Context, Node, Outcome, check, cluster_check, failed, passed, skipped, unsure, warned
from .wording import listed, missing, number, short, without_nvidia, without_rdma

RDMA_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html"
RECIPE = "https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml"


ATTACH = {
    "force_pcie": "topology not supported for FORCE_PCIE",
    "topology": "PCI topology not supported",
    "importer": "importer needs struct page",
}
"""What the driver's refusals mean, by their kind."""


class DmaBuf(NamedTuple):
    """Whether dma-buf serves: `usable` is None when it is not known; `why` says why not, or why it is not known."""

    usable: Optional[bool]
    why: str


def refused(node: Node) -> List[str]:
    """Evidence that this node refused to register GPU memory as dma-buf (errno 524), empty when there is none."""
    found: List[str] = []
    for line in node.items("gpudirect.dmabuf.attach_failed"):
        found.append(ATTACH.get(str(line.get("kind"))) or short(line.get("text") or line.get("kind"), 50))
    evidence = node.get("gpudirect.errno524.evidence")
    if isinstance(evidence, list):
        found += [short(text, 50) for text in evidence if text]
    if not found and number(node.get("gpudirect.errno524.lines")) > 0:
        found.append("%d lines of errno 524" % number(node.get("gpudirect.errno524.lines")))
    return found


def dmabuf(node: Node) -> DmaBuf:
    """Judge the preconditions of dma-buf one by one: refusals seen, open module, kernel, the import in verbs."""
    if refused(node):
        return DmaBuf(False, "refused: " + refused(node)[0])
    if _without_driver(node):
        return DmaBuf(False, "no NVIDIA driver is loaded")
    unknown: List[str] = []
    for path, no, what in (
        ("gpudirect.dmabuf.open_module", "the driver is not the open kernel module", "the driver's flavour"),
        ("gpudirect.dmabuf.kernel", "the kernel does not support it", "the kernel's support"),
        ("gpudirect.dmabuf.dma_buf_symbol", "the RDMA modules cannot import dma-buf", "the RDMA modules' support"),
    ):
        value = node.get(path)
        if value is False:
            return DmaBuf(False, no)
        if value is not True:
            unknown.append(what)
    if unknown:
        parts = ("gpudirect.dmabuf", "gpudirect.open_module", "gpudirect.kernel", "gpudirect.dma_buf_symbol")
        reason = node.why_unknown(*parts) or "%s is not known" % listed(unknown)
        return DmaBuf(None, short(reason))
    return DmaBuf(True, "")


def _without_driver(node: Node) -> bool:
    """The driver's facts were read, and no driver is loaded."""
    facts = node.facts.get("driver")
    known = isinstance(facts, dict) and "loaded" in facts and not node.why_unknown("driver.loaded")
    return known and node.get("driver.loaded") is None and node.get("gpudirect.dmabuf.open_module") is None


def peermem_loaded(node: Node) -> Optional[bool]:
    """nvidia_peermem (or the legacy nv_peer_mem) is loaded; None when that is not known."""
    value = node.get("gpudirect.peermem.loaded")
    if value is True or node.get("gpudirect.peermem.legacy_loaded") is True:
        return True
    return False if value is False else None


def _why_not(node: Node) -> str:
    value = node.get("gpudirect.peermem.why_not")
    if value:
        return short(value, 90)
    if node.get("gpudirect.peermem.present") is False:
        return "the module is not on disk for this kernel"
    return "nothing speaks against loading it"


@check(
    id="gpudirect.path", severity="block", title="GPUDirect RDMA",
    why="With neither dma-buf nor nvidia_peermem the HCAs cannot reach GPU memory: RDMA plans fail to start or crawl through host memory.",
    fix="Use the open kernel modules (dma-buf) or load nvidia_peermem: `ansible-playbook inferops.vllm.remediate --limit NODE`.",
    read_from="/proc/kallsyms, /proc/modules, kernel configuration, kernel log", source=RDMA_GUIDE)
def path(node: Node, context: Context) -> Outcome:
    """dma-buf or nvidia_peermem works."""
    reason = without_nvidia(context) or without_rdma(context)
    if reason:
        return skipped(reason)
    required = "dma-buf or nvidia_peermem"
    why = node.why_unknown("gpudirect")
    if why:
        return unsure(short(why), required)
    buf, peer = dmabuf(node), peermem_loaded(node)
    if buf.usable:
        return passed("dma-buf%s" % (" and nvidia_peermem" if peer else ""), required)
    if peer:
        return passed(short("nvidia_peermem (dma-buf: %s)" % buf.why), required)
    if buf.usable is None or peer is None:
        if buf.usable is None:
            return unsure(short("dma-buf: %s" % buf.why), required)
        return unsure(short("nvidia_peermem: %s" % (missing(node, "gpudirect.peermem.loaded") or "not known")), required)
    return failed(short("neither: nvidia_peermem not loaded; dma-buf: %s" % buf.why), required)


@check(
    id="gpudirect.peermem", severity="block", title="nvidia_peermem",
    why="Where dma-buf does not serve, NCCL and UCX reach GPU memory only through nvidia_peermem.",
    fix="Load and persist it, or mend what keeps it from loading, with `ansible-playbook inferops.vllm.remediate --limit NODE`.",
    read_from="/sys/module/nvidia_peermem, /proc/kallsyms, /etc/modules-load.d, kernel log", source=RDMA_GUIDE)
def peermem(node: Node, context: Context) -> Outcome:
    """Loaded and persisted where the plan or the errno-524 fallback needs it; alone in its place."""
    reason = without_nvidia(context) or without_rdma(context)
    if reason:
        return skipped(reason)
    required = "loaded, where dma-buf does not serve"
    buf, loaded = dmabuf(node), peermem_loaded(node)
    needed = buf.usable is False
    if loaded is None:
        why = missing(node, "gpudirect.peermem.loaded") or "not known"
        return unsure(why, required, severity=None if buf.usable is not True else "info")
    if loaded:
        if node.get("gpudirect.peermem.loaded") and node.get("gpudirect.peermem.legacy_loaded"):
            return warned("nvidia_peermem and nv_peer_mem are both loaded", "nvidia_peermem alone",
                          "Both modules register as the same client of the RDMA core and get in each other's way.")
        if node.get("gpudirect.peermem.persisted") is False and needed:
            return warned("loaded, not persisted: gone after a reboot", "loaded and persisted")
        return passed("loaded", required)
    if needed:
        return failed(short("not loaded (%s)" % _why_not(node)), short("loaded, since dma-buf does not serve: %s" % buf.why))
    if buf.usable is None:
        return unsure(short("not loaded, and whether dma-buf serves is not known: %s" % buf.why), required)
    # Many sound clusters run on dma-buf alone: said, but no fault of the node.
    return failed(short("not loaded (%s); dma-buf serves" % _why_not(node)), "nothing: it is only the fallback for errno 524",
                  "If dma-buf is refused at run time (errno 524), the fallback is not there.", severity="info")


@cluster_check(
    id="gpudirect.dmabuf_fallback", severity="block", title="errno 524 fallback",
    why="After errno 524 an engine runs with NCCL_DMABUF_ENABLE=0 only, and then every one of its nodes needs nvidia_peermem.",
    fix="Load nvidia_peermem on every node of the engine: `ansible-playbook inferops.vllm.remediate --limit NODES`.",
    read_from="kernel log, /sys/module/nvidia_peermem", source=RECIPE)
def dmabuf_fallback(nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
    """Say for each engine whether NCCL_DMABUF_ENABLE=0 is needed and allowed; one answer for the cluster."""
    reason = without_nvidia(context) or without_rdma(context)
    if reason:
        return {CLUSTER: skipped(reason)}
    required = "nvidia_peermem on every node, where dma-buf is refused"
    wanting: List[str] = []
    affected: List[str] = []
    unclear: List[str] = []
    unread: List[str] = []
    loaded = 0
    total = 0
    for pool in pools(nodes, context):
        hit = [node.name for node in pool.nodes if refused(node)]
        affected += hit
        total += len(pool.nodes)
        unread += [node.name for node in pool.nodes if not refused(node) and _log_unread(node)]
        for node in pool.nodes:
            state = peermem_loaded(node)
            loaded += state is True
            if hit and state is False:
                wanting.append(node.name)
            elif hit and state is None:
                unclear.append(node.name)
    seen = "errno 524 on %s" % listed(affected, 2)
    if wanting:
        return {CLUSTER: failed(short("%s; NCCL_DMABUF_ENABLE=0 not allowed: no nvidia_peermem on %s" % (seen, listed(wanting))), required)}
    if unclear:
        return {CLUSTER: unsure(short("%s, and nvidia_peermem is not known on %s" % (seen, listed(unclear))), required)}
    if affected:
        return {CLUSTER: warned(
            short("%s; NCCL_DMABUF_ENABLE=0 is allowed: nvidia_peermem on all %d nodes" % (seen, total)), required,
            "dma-buf was refused, so the engine must run with NCCL_DMABUF_ENABLE=0; it stays GPUDirect RDMA through nvidia_peermem.",
            "Set NCCL_DMABUF_ENABLE=0 on every node of the engine, and keep nvidia_peermem loaded.")}
    if unread and loaded < total:
        text = short("the signs of errno 524 could not be read on %s" % listed(unread))
        return {CLUSTER: unsure(text, required, severity="warn")}
    there = "is there (nvidia_peermem on all nodes)" if loaded == total else "is not needed"
    return {CLUSTER: passed("no errno 524; the fallback %s" % there, required)}


def _log_unread(node: Node) -> str:
    return node.why_unknown("gpudirect.kernel_log") or missing(node, "gpudirect.errno524.evidence")
