# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From declared words and nodes, with or without facts, to a plan: what runs on each node, and why.

:func:`build` is pure: the same words and facts give the same plan. What cannot work is refused, with the
arithmetic or the facts that contradict each other; what had to be assumed is said.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..checks.model import Context, Node
from ..checks.plan import gpu_memory
from ..checks.troubles import matching
from ..checks.wording import commonest, listed, short
from . import recipe, versions
from .compose import Composer, Engine
from .fit import fit, nodes_needed
from .groups import NODE_GROUPS
from .network import Place, clique, fallback, items, place
from .notes import Notes, Refusal
from .profiles import HARDWARE, MODELS, STRATEGIES, Hardware, Model, Strategy, memory_share, minimum_gpus, unsupported
from .ranks import ordered
from .resolve import DECLARED, InputError, contradictions, hardware_of, resolve
from .words import Words, read

SCHEMA = "inferops.vllm/plan/1"
GROUPS = NODE_GROUPS + ("vllm_router",)
"""Groups whose hosts a plan looks at."""

_DIGEST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,200}@sha256:[0-9a-f]{64}\Z")

Document = Dict[str, Any]


def build(declared: Mapping[str, Any], nodes: Sequence[Node]) -> Document:
    """Plan what runs on each node.

    Args:
        declared: the inventory's words: ``vllm_profile``, ``vllm_variant``, ``vllm_hardware``, ``vllm_strategy``,
            ``vllm_interconnect``, ``vllm_features``, ``vllm_image``, ``vllm_version``, ``vllm_model``, ``vllm_revision``,
            ``vllm_weights_path``, ``vllm_port``, ``vllm_shutdown_timeout``, ``vllm_engine``, ``vllm_router_image``,
            ``vllm_overrides``, ``vllm_env_overrides``; each may be absent, empty or (the first seven) ``auto``.
        nodes: in inventory order. ``declared`` of a node may hold ``host_ip``, ``interface``, ``groups``, ``rank``, ``role``,
            ``listen``, ``ansible_host`` and ``resolved`` (addresses that its name has); ``facts`` may be empty.

    Returns:
        the plan (docs/PLAN.md): ``nodes`` is empty when ``refused`` is not.
    """
    try:
        words = read(declared)
        chosen, beside = _chosen(declared, nodes)
        context = resolve(declared, chosen)
        return _Plan(context, words, chosen, [node for node in nodes if "vllm_router" in _groups(node)], beside).document()
    except InputError as exc:
        return _empty([(str(exc), [])])


def _mark(engine: Engine, entries: Mapping[str, Dict[str, Any]]) -> None:
    """Give all ranks of `engine` one digest of what they run together, so that none starts beside a rank of another plan."""
    own = [entries[node.name] for node in engine.nodes]
    text = json.dumps([[entry[key] for key in ("argv", "env", "image", "container", "venv")] for entry in own], sort_keys=True)
    for entry in own:
        if entry["link"]:
            entry["link"]["plan"] = hashlib.sha256(text.encode()).hexdigest()[:16]


def _empty(refused: Sequence[Refusal]) -> Document:
    return {
        "schema": SCHEMA, "nodes": {}, "engines": [], "refused": [{"why": why, "facts": list(facts)} for why, facts in refused],
        "warnings": [], "assumed": [], "complete": False,
    }


def _groups(node: Node) -> Tuple[str, ...]:
    value = node.declared.get("groups")
    return tuple(str(group) for group in value) if isinstance(value, (list, tuple)) else ()


def _chosen(declared: Mapping[str, Any], nodes: Sequence[Node]) -> Tuple[List[Node], List[str]]:
    """Nodes that hold GPUs of the plan, and names of hosts that are no part of it."""
    pools = [node for node in nodes if {"vllm_prefill", "vllm_decode"} & set(_groups(node))]
    plain = [node for node in nodes if "vllm_nodes" in _groups(node) or not set(GROUPS) & set(_groups(node))]
    wanted = declared.get("vllm_strategy")
    by_pool = wanted == "pd_cluster" or (wanted in (None, "", "auto") and bool(pools) and {
        "vllm_prefill", "vllm_decode"} <= {group for node in pools for group in _groups(node)})
    chosen = pools if by_pool else plain or pools
    inside = {node.name for node in chosen}
    beside = [node.name for node in nodes if node.name not in inside and not (by_pool and "vllm_router" in _groups(node))]
    return list(chosen), beside


class _Plan:
    """One planning run; what is found on the way goes to ``notes``."""

    def __init__(self, context: Context, words: Words, nodes: Sequence[Node], routers: Sequence[Node], beside: Sequence[str]) -> None:
        self.context = context
        self.words = words
        self.nodes = nodes
        self.strategy: Strategy = STRATEGIES[context.strategy]
        self.routers = routers if self.strategy.span == "pools" else []
        self.row: Optional[Hardware] = HARDWARE.get(context.hardware)
        self.model: Model = MODELS[context.profile]
        self.notes = Notes()
        self.places: Dict[str, Place] = {}
        self.fits: Dict[str, str] = {}
        self.nvidia = self.row is not None and self.row.vendor == "nvidia"
        self.version: versions.Version = self.model.vllm_min
        self.image = context.image
        if beside:
            self.notes.assume("no part of this plan: %s" % listed(beside, 6))

    def document(self) -> Document:
        """The plan; nodes are composed only when nothing speaks against them."""
        engines = self._engines()
        self._words_together(engines)
        self._version()
        self._image()
        entries: Dict[str, Dict[str, Any]] = {}
        if self.row is not None:
            for engine in engines:
                self._memory(engine)
            self.notes.flush()
            self._hardware()
            self._places(engines)
            self._interconnect(engines)
            if not self.notes.refused:
                entries = self._entries(engines, self.row)
        self._troubles()
        self._concluded()
        made = _empty(self.notes.refused)
        # Composing may still refuse what only the finished command shows.
        entries = {} if self.notes.refused else entries
        placeholder = any("IFACE_OF_" in text for entry in entries.values() for text in entry["env"].values())
        made.update({
            "profile": self.context.profile, "variant": self.context.variant, "hardware": self.context.hardware,
            "strategy": self.context.strategy, "interconnect": self.context.interconnect, "features": list(self.words.features),
            "model": self.words.model or self.model.variants[self.context.variant].model, "image": self.image,
            "vllm_version": versions.word(self.version), "nodes": entries,
            "engines": [self._engine_line(engine, entries) for engine in engines],
            "warnings": self.notes.warnings, "assumed": self.notes.assumed, "complete": bool(entries) and not placeholder, "sources": self._sources(),
        })
        return made

    def _entries(self, engines: Sequence[Engine], row: Hardware) -> Dict[str, Dict[str, Any]]:
        composer = Composer(self.context, self.words, row, self.version, self.image, self.places, self.notes)
        dmabuf = fallback(self.nodes) if self.context.needs_rdma and self.nvidia else None
        made = {node.name: composer.node(engine, rank, node, dmabuf) for engine in engines for rank, node in enumerate(engine.nodes)}
        for engine in engines:
            _mark(engine, made)
        made.update({node.name: composer.router(node, engines) for node in self.routers})
        return made

    def _engine_line(self, engine: Engine, entries: Mapping[str, Any]) -> Dict[str, Any]:
        urls = [entries[node.name]["health_url"] for node in engine.nodes if node.name in entries and entries[node.name]["health_url"]]
        return {
            "name": engine.name, "pool": engine.pool, "nodes": [node.name for node in engine.nodes],
            "gpus": self.row.gpus * len(engine.nodes) if self.row else 0, "fits": self.fits.get(engine.name, ""),
            "endpoints": [url.rsplit("/", 1)[0] for url in urls],
        }

    def _sources(self) -> Dict[str, str]:
        rows = {"recipe": recipe.RECIPE_PD if self.strategy.span == "pools" else recipe.BASE.source, "interconnect": recipe.MNNVL,
                "addresses": recipe.TROUBLESHOOTING, "nccl": recipe.NCCL_ENV, "versions": versions.SEEN_032}
        return {name: "%s (%s)" % (row.url, row.date) for name, row in rows.items()}

    # -- engines, ranks, roles -------------------------------------------------------------------------------
    def _engines(self) -> List[Engine]:
        if self.strategy.span == "one":
            return [Engine(node.name, "", (node,)) for node in self.nodes]
        if self.strategy.span == "many":
            return [Engine("engine", "", ordered("vllm_nodes", self.nodes, self.notes))] if self.nodes else []
        made = []
        for pool in ("prefill", "decode"):
            inside = [node for node in self.nodes if "vllm_" + pool in _groups(node)]
            made.append(Engine(pool, pool, ordered("vllm_" + pool, inside, self.notes)))
        return made

    # -- what goes together ----------------------------------------------------------------------------------
    def _words_together(self, engines: Sequence[Engine]) -> None:
        context = self.context
        if self.row is None:
            self.notes.refuse("the hardware is not known", "vllm_hardware: %s" % context.sources.get("vllm_hardware", "not declared"))
            return
        problem = unsupported(context.profile, context.variant, context.hardware, context.strategy)
        if problem:
            self.notes.refuse(problem, "vllm_hardware: %s" % context.hardware, "vllm_strategy: %s" % context.strategy)
        for text in contradictions(context):
            self.notes.refuse(text, "vllm_interconnect: %s" % context.interconnect, "vllm_hardware: %s" % context.hardware)
        if self.strategy.span == "pools" and self.row.family == "hopper":
            self.notes.refuse("pd_cluster does not start on %s" % context.hardware,
                              "the decode pool is data and expert parallel, which the recipe does not support on Hopper",
                              "Hopper is served with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and vLLM refuses the NixlConnector with it")
        for name in self.words.features:
            families = recipe.FEATURE_FAMILIES.get(name, ())
            if families and self.row.family not in families:
                self.notes.refuse("feature %s does not run on %s" % (name, context.hardware), "vllm_features: %s" % name, recipe.DCP_KERNEL.note)
        if not self.nodes:
            self.notes.refuse("no host is in the plan", "groups: %s" % ", ".join(GROUPS[:3]))
        count = len(self.nodes)
        if self.strategy.span == "many" and count == 1 and self.strategy.min_gpus > self.row.gpus and self.row.vendor != "cpu":
            self.notes.refuse("%s spans several nodes, and the inventory has 1" % context.strategy, "vllm_nodes: %s" % self.nodes[0].name)
        if self.strategy.span == "pools":
            self._pools(engines)
        self._replicas(engines)

    def _pools(self, engines: Sequence[Engine]) -> None:
        for engine in engines:
            if not engine.nodes:
                self.notes.refuse("pd_cluster has no host in vllm_%s" % engine.pool, "vllm_strategy: pd_cluster", "vllm_%s: empty" % engine.pool)
        if not self.routers:
            self.notes.refuse("pd_cluster has no host in vllm_router, and clients need one address", "vllm_strategy: pd_cluster", "vllm_router: empty")
        if len(self.routers) > 1:
            self.notes.refuse("vllm_router has %d hosts, and one router is planned" % len(self.routers), *[
                "vllm_router: %s" % node.name for node in self.routers])
        for node in list(self.nodes) + [node for node in self.routers if node not in self.nodes]:
            inside = [group for group in GROUPS[1:] if group in _groups(node)]
            if len(inside) > 1:
                self.notes.refuse("%s is in %s, and a host runs one service" % (node.name, " and ".join(inside)),
                                  "give the machine a second name in the inventory (ansible_host), if it shall run both")

    def _replicas(self, engines: Sequence[Engine]) -> None:
        if self.strategy.span == "one" and len(engines) > 1:
            self.notes.assume("%d nodes are %d independent replicas, each with its own address; put a load balancer in front" % (
                len(engines), len(engines)))

    def _memory(self, engine: Engine) -> None:
        row, context = self.row, self.context
        if row is None or row.vendor == "cpu" or not engine.nodes:
            return
        memories = [(node, gpu_memory(node, context)) for node in engine.nodes]
        known = [(node, memory) for node, memory in memories if memory.gpus is not None]
        for node, memory in known:
            if not memory.assumed and memory.gpus != row.gpus:
                self.notes.refuse("%s has %d working GPUs, and the plan needs %d" % (node.name, memory.gpus or 0, row.gpus),
                                  "nvidia-smi on %s: %d GPUs" % (node.name, memory.gpus or 0), "%s: %d GPUs a node" % (row.name, row.gpus))
        for node, memory in memories:
            if memory.gpus is None or memory.assumed:
                self.notes.assume("GPUs and their memory were not looked at on %s: taken as " + row.title, node.name)
        share = self._share(engine)
        nodes_gb = [memory.gb if memory.gpus is not None else row.memory_gb for _node, memory in memories]
        sums = fit(context.weights_gb, nodes_gb, share)
        self.fits[engine.name] = sums.text
        gpus = row.gpus * len(engine.nodes)
        floor = minimum_gpus(context.strategy, context.hardware, engine.pool)
        label = "the %s pool" % engine.pool if engine.pool else "the engine" if self.strategy.span == "many" else engine.name
        if not sums.holds:
            needed = max(nodes_needed(context.weights_gb, row.memory_gb, share), -(-floor // row.gpus))
            self.notes.refuse_alike(label, "the weights do not fit into %s: " + sums.text, "weights of %s %s: %s GB" % (
                self.model.title, context.variant, "{:,.0f}".format(context.weights_gb)), "%d nodes of %s are needed, and %s" % (
                needed, context.hardware, "an engine of single_node_tp has 1; choose a multi_node strategy" if self.strategy.span == "one"
                else "%d are there" % len(engine.nodes)))
        if gpus < floor:
            self.notes.refuse_alike(label, "%s needs %d GPUs on %s, and %%s has %d × %d = %d" % (
                context.strategy, floor, context.hardware, len(engine.nodes), row.gpus, gpus),
                "GPUs at least (%s%s): %d" % (context.strategy, ", decode pool" if engine.pool == "decode" else "", floor), "GPUs there: %d" % gpus)
        if not self.words.model and self.strategy.tensor == "all" and engine.pool != "decode" and recipe.ATTENTION_HEADS % gpus:
            self.notes.refuse("tensor parallelism over %d GPUs does not divide the %d attention heads of %s: %d / %d = %.2f" % (
                gpus, recipe.ATTENTION_HEADS, self.model.title, recipe.ATTENTION_HEADS, gpus, recipe.ATTENTION_HEADS / gpus),
                "GPUs of %s: %d" % (label, gpus), "attention heads: %d" % recipe.ATTENTION_HEADS)

    def _share(self, engine: Engine) -> float:
        given = self.words.flags.get("--gpu-memory-utilization")
        if given is not None:
            return float(given)
        if self.row and (self.context.strategy, self.row.family) in recipe.REPLACED:
            return self.model.memory_share
        return memory_share(self.context.profile, self.context.hardware, self.context.strategy)

    def _hardware(self) -> None:
        for node in self.nodes:
            found, _how = hardware_of(node)
            if found and found != self.context.hardware:
                how = self.context.sources.get("vllm_hardware", "")
                self.notes.refuse("%s is %s, and the plan is for %s" % (node.name, found, self.context.hardware), "GPUs of %s: %s" % (node.name, found),
                                  "vllm_hardware: %s%s" % (self.context.hardware, "" if how == DECLARED else " (%s)" % how))
        silent: Dict[str, List[str]] = {}
        for node in self.nodes:
            if not node.facts:
                silent.setdefault(short(node.unreachable or "not read", 80), []).append(node.name)
        for why, names in silent.items():
            self.notes.assume("no facts of %s (%s); what is said of them is what the inventory says" % (listed(names, 4), why))

    # -- versions, image -------------------------------------------------------------------------------------
    def _version(self) -> None:
        declared = self.words.version
        found: Dict[str, versions.Version] = {}
        for node in self.nodes:
            image = node.get("container.image")
            if isinstance(image, dict) and image.get("present") and image.get("name") == self.context.image:
                version = versions.parse(image.get("vllm"))
                if version:
                    found[node.name] = version
        self.version = declared or self.model.vllm_min
        if found:
            best, _count = commonest(list(found.values()))
            if len(set(found.values())) > 1:
                self.notes.warn("the nodes have different versions of vLLM in %s: %s" % (self.context.image, listed(
                    ("%s %s" % (name, versions.word(version)) for name, version in found.items()), 4)))
            if declared and declared[:2] != best[0][:2]:
                holder = next(name for name, version in found.items() if version == best[0])
                self.notes.refuse("vllm_version says %s, and %s holds %s" % (versions.word(declared), self.context.image, versions.word(best[0])),
                                  "vllm_version: %s" % versions.word(declared), "image on %s: vLLM %s" % (holder, versions.word(best[0])))
            self.version = best[0]
            if self.version < self.model.vllm_min:
                self.notes.refuse("vLLM %s does not know %s; %s is the first that does" % (
                    versions.word(self.version), self.model.title, versions.word(self.model.vllm_min)),
                    "image %s: vLLM %s" % (self.context.image, versions.word(self.version)))
        elif not declared:
            self.notes.assume("flags and variables are those of vLLM %s, the version of the image of %s; set vllm_version for another" % (
                versions.word(self.version), self.model.title))
        if not versions.has(versions.LAST + (9999,), self.version[:2]):
            self.notes.warn("vLLM %s is newer than what is known here (%s); what changed since is not in the plan" % (
                versions.word(self.version), versions.word(versions.LAST)))

    def _image(self) -> None:
        if not self.context.image and self.row is not None and self.row.vendor == "cpu":
            self.image = self.model.images["nvidia"]
            self.notes.assume("hardware cpu has no image of its own: %s is taken; set vllm_image" % self.image)
            return
        if "@sha256:" in self.context.image or not self.context.image:
            return
        found: Dict[str, List[str]] = {}
        for node in self.nodes:
            image = node.get("container.image")
            if not isinstance(image, dict) or image.get("name") != self.context.image or not image.get("present"):
                continue
            for digest in items(image.get("digests")):
                if _DIGEST.match(str(digest)):
                    found.setdefault(str(digest), []).append(node.name)
        if len(found) == 1:
            self.image, names = next(iter(found.items()))
            if len(names) < len(self.nodes):
                self.notes.assume("the digest of %s is that of %s; the other nodes were not looked at or do not have it yet" % (
                    self.context.image, listed(names, 4)))
            return
        if found:
            self.notes.warn("%s is not the same image everywhere, so the plan keeps the tag: %s" % (self.context.image, listed(
                ("%s on %s" % (digest.split("@")[-1][:19], listed(names, 3)) for digest, names in found.items()), 4)))
        else:
            self.notes.assume("the digest of %s is not known, so the plan names the tag; a tag may come to mean another image" % self.context.image)

    # -- network ---------------------------------------------------------------------------------------------
    def _places(self, engines: Sequence[Engine]) -> None:
        several = self.strategy.span != "one"
        for node in list(self.nodes) + list(self.routers):
            spans = several and (node in self.routers or self.strategy.span == "pools" or len(self.nodes) > 1)
            found = place(node, spans)
            self.places[node.name] = found
            for why, facts in found.refused:
                self.notes.refuse(why, *facts)
            for text in found.assumed:
                if "IFACE_OF_" not in text or node not in self.routers:
                    self.notes.assume(text, node.name)
        for engine in engines:
            seen: Dict[str, str] = {}
            for node in engine.nodes:
                address = self.places[node.name].address
                if address and address in seen and len(engine.nodes) > 1:
                    self.notes.refuse("%s and %s have the same address" % (seen[address], node.name), "address of %s: %s" % (seen[address], address),
                                      "address of %s: %s" % (node.name, address))
                seen[address] = node.name

    def _interconnect(self, engines: Sequence[Engine]) -> None:
        context = self.context
        if context.needs_rdma and self.nvidia:
            given = self.words.env.get("NCCL_DMABUF_ENABLE")
            found = fallback(self.nodes)
            if (found.needed or given == "0") and not found.allowed:
                cause = "errno 524 on %s (%s)" % (listed(found.needed, 3), found.evidence) if found.needed else "vllm_env_overrides asks for it"
                facts = ["nvidia_peermem not loaded: %s" % listed(found.without, 8)] if found.without else []
                facts += ["nvidia_peermem not known: %s" % listed(found.unknown, 8)] if found.unknown else []
                self.notes.refuse("NCCL_DMABUF_ENABLE=0 is needed and not allowed: nvidia_peermem is not loaded on every node", cause, *facts)
            elif found.needed and given not in (None, "0"):
                self.notes.refuse("NCCL_DMABUF_ENABLE=%s cannot work: dma-buf was refused on %s" % (given, listed(found.needed, 3)),
                                  "vllm_env_overrides: NCCL_DMABUF_ENABLE=%s" % given, "kernel log: %s" % found.evidence)
        if context.needs_mnnvl and self.nvidia:
            for engine in engines:
                cliques = {node.name: clique(node) for node in engine.nodes}
                known = {name: text for name, text in cliques.items() if text}
                if len(set(known.values())) > 1:
                    self.notes.refuse("the nodes of %s are not in one NVLink clique" % engine.name, *["%s: %s" % item for item in list(known.items())[:6]])
        for name in self.words.env:
            if self.words.env[name] is None:
                continue
            if name in recipe.NVLINK_ONLY and not context.needs_mnnvl:
                self.notes.refuse("%s is for NVLink between nodes, and this plan has none" % name, "vllm_env_overrides: %s=%s" % (name, self.words.env[name]),
                                  "vllm_interconnect: %s" % context.interconnect)
            if name in recipe.RDMA_ONLY and not context.needs_rdma:
                self.notes.refuse("%s is for RDMA between nodes, and this plan has none" % name, "vllm_env_overrides: %s=%s" % (name, self.words.env[name]),
                                  "vllm_interconnect: %s" % context.interconnect)
            if name == "VLLM_USE_RUST_FRONTEND" and self.context.hardware == "cpu":
                self.notes.refuse("VLLM_USE_RUST_FRONTEND is not for hardware cpu, whose build lacks the program", "vllm_hardware: cpu",
                                  "vllm_env_overrides: VLLM_USE_RUST_FRONTEND=%s" % self.words.env[name])

    # -- what is said besides --------------------------------------------------------------------------------
    def _troubles(self) -> None:
        if self.row is None:
            return
        seen = [str(node.get("container.image.nccl")) for node in self.nodes if node.get("container.image.nccl")]
        nccl = versions.parse(seen[0]) if seen else versions.parse(self.model.image_nccl) if self.context.image in self.model.images.values() else ()
        for trouble in matching(self.context, nccl, self.version):
            self.notes.warn("%s. %s (%s)" % (trouble.text, trouble.remedy, trouble.source))

    def _concluded(self) -> None:
        for variable, told in self.context.sources.items():
            if told != DECLARED and variable in ("vllm_hardware", "vllm_strategy", "vllm_interconnect"):
                self.notes.assume("%s: %s" % (variable, told))
