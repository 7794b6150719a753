# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From declared words and nodes, with or without facts, to a plan: what runs on each node, and why.

:func:`build` is pure: the same words and facts give the same plan. What cannot work is refused, with the
arithmetic or the facts that contradict each other; what had to be assumed is said.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..checks.model import Context, Node
from ..checks.plan import gpu_memory
from ..checks.troubles import matching
from ..checks.wording import commonest, listed, short
from . import overrides, recipe, versions
from .fit import fit, nodes_needed
from .flags import VERSION as FLAGS_VERSION
from .flags import render
from .network import Fallback, Place, Refusal, clique, fallback, hcas, host_port, items, place
from .profiles import HARDWARE, MODELS, STRATEGIES, Hardware, Model, Strategy, memory_share, minimum_gpus, unsupported
from .recipe import Layer
from .resolve import DECLARED, InputError, contradictions, features, hardware_of, resolve

SCHEMA = "inferops.vllm/plan/1"
GROUPS = ("vllm_nodes", "vllm_prefill", "vllm_decode", "vllm_router")
DEFAULT_WEIGHTS = "/var/lib/vllm"
ENGINES = ("docker", "podman")

_PATH = re.compile(r"/[A-Za-z0-9._/+@=-]{0,254}\Z")
_MODEL = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._/+@=-]{0,254}\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}\Z")
_NO_ADDRESS = Place("", "", "", "nothing", (), ())

Document = Dict[str, Any]


class Words(NamedTuple):
    """Declared words that are not part of a Context, checked."""

    features: Tuple[str, ...]
    version: versions.Version
    model: str
    revision: str
    weights_path: str
    port: int
    shutdown: int
    container: str
    router_image: str
    flags: Mapping[str, Any]
    env: Mapping[str, Any]


class Engine(NamedTuple):
    """Nodes that serve as one: `pool` is ``""``, ``prefill`` or ``decode``; nodes stand in rank order."""

    name: str
    pool: str
    nodes: Tuple[Node, ...]


class _Draft:
    """Flags and variables of one node while layers are laid on each other, and the reason of each."""

    def __init__(self) -> None:
        self.flags: Dict[str, Any] = {}
        self.env: Dict[str, str] = {}
        self.why: Dict[str, Tuple[str, str]] = {}
        self.notes: List[Dict[str, str]] = []

    def lay(self, layer: Layer, only: Optional[Sequence[str]] = None) -> None:
        for name, value in layer.flags:
            if only is None or name in only:
                self.flag(name, value, layer.name, layer.why)
        for name, value in layer.env:
            if only is None or name in only:
                self.set(name, value, layer.name, layer.why)

    def flag(self, name: str, value: Any, layer: str, why: str = "") -> None:
        self.flags.pop(name, None)
        self.flags[name] = value
        self.why[name] = (layer, why)

    def set(self, name: str, value: str, layer: str, why: str = "") -> None:
        self.env.pop(name, None)
        self.env[name] = value
        self.why[name] = (layer, why)

    def drop(self, name: str, layer: str, why: str) -> None:
        if name in self.flags or name in self.env:
            self.flags.pop(name, None)
            self.env.pop(name, None)
            self.note(name, layer, why)

    def note(self, what: str, layer: str, why: str) -> None:
        self.notes.append({"what": what, "layer": layer, "why": why})

    def reasons(self) -> List[Dict[str, str]]:
        made = []
        for name, value in self.flags.items():
            layer, why = self.why.get(name, ("", ""))
            made.append({"what": " ".join(render(name, value)), "layer": layer, "why": why})
        for name, text in self.env.items():
            layer, why = self.why.get(name, ("", ""))
            made.append({"what": "%s=%s" % (name, text), "layer": layer, "why": why})
        return made + self.notes


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
        words = _words(declared)
        chosen, beside = _chosen(declared, nodes)
        context = resolve(declared, chosen)
        return _Plan(context, words, chosen, [node for node in nodes if "vllm_router" in _groups(node)], beside).document()
    except InputError as exc:
        return _empty([(str(exc), [])])


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


# -- words -----------------------------------------------------------------------------------------------------
def _words(declared: Mapping[str, Any]) -> Words:
    profile = declared.get("vllm_profile")
    known = profile if isinstance(profile, str) and profile in MODELS else "kimi_k3"
    return Words(
        features=features(declared, known),
        version=_declared_version(declared, MODELS[known]),
        model=_matching(declared, "vllm_model", _MODEL, "an id on the Hugging Face hub or an absolute path"),
        revision=_matching(declared, "vllm_revision", _REVISION, "a commit of the model's repository"),
        weights_path=_matching(declared, "vllm_weights_path", _PATH, "an absolute path") or DEFAULT_WEIGHTS,
        port=_whole(declared, "vllm_port", recipe.PORTS["api"], 1, 65535),
        shutdown=_whole(declared, "vllm_shutdown_timeout", recipe.SHUTDOWN_S, 0, 86400),
        container=_one(declared, "vllm_engine", ENGINES),
        router_image=_matching(declared, "vllm_router_image", re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}\Z"), "the name of an image"),
        flags=overrides.flags(declared.get("vllm_overrides")),
        env=overrides.env(declared.get("vllm_env_overrides")),
    )


def _declared_version(declared: Mapping[str, Any], model: Model) -> versions.Version:
    value = declared.get("vllm_version")
    if value in (None, "", "auto"):
        return ()
    found = versions.parse(value)
    lowest = versions.word(model.vllm_min)
    if not found:
        raise InputError("vllm_version: %s is not a version such as %s (in quotes), or auto" % (short(repr(value), 60), lowest))
    if found < model.vllm_min:
        raise InputError("vllm_version: %s is older than %s, the first that runs %s" % (short(repr(value), 60), lowest, model.title))
    return found


def _matching(declared: Mapping[str, Any], variable: str, pattern: re.Pattern[str], what: str) -> str:
    value = declared.get(variable)
    if value in (None, "", "auto"):
        return ""
    if not isinstance(value, str) or not pattern.match(value) or ".." in value.split("/"):
        raise InputError("%s: %s is not %s" % (variable, short(repr(value), 60), what))
    return value


def _whole(declared: Mapping[str, Any], variable: str, otherwise: int, low: int, high: int) -> int:
    value = declared.get(variable)
    if value in (None, "", "auto"):
        return otherwise
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or not low <= int(text[:9]) <= high or len(text) > 9:
        raise InputError("%s: %s is not a whole number from %d to %d" % (variable, short(repr(value), 60), low, high))
    return int(text)


def _one(declared: Mapping[str, Any], variable: str, allowed: Sequence[str]) -> str:
    value = declared.get(variable)
    if value in (None, "", "auto"):
        return allowed[0]
    if value not in allowed:
        raise InputError("%s: %s is not one of %s" % (variable, short(repr(value), 60), ", ".join(allowed)))
    return str(value)


# -- the plan ----------------------------------------------------------------------------------------------------
class _Plan:
    """One planning run; methods add to ``refused``, ``warnings`` and ``assumed`` as they go."""

    def __init__(self, context: Context, words: Words, nodes: Sequence[Node], routers: Sequence[Node], beside: Sequence[str]) -> None:
        self.context = context
        self.words = words
        self.nodes = nodes
        self.strategy: Strategy = STRATEGIES[context.strategy]
        self.routers = routers if self.strategy.span == "pools" else []
        self.row: Optional[Hardware] = HARDWARE.get(context.hardware)
        self.model: Model = MODELS[context.profile]
        self.refused: List[Refusal] = []
        self.warnings: List[str] = []
        self.assumed: List[str] = []
        self.together: Dict[str, List[str]] = {}
        self.alike: Dict[Tuple[str, Tuple[str, ...]], List[str]] = {}
        self.places: Dict[str, Place] = {}
        self.fits: Dict[str, str] = {}
        self.nvidia = self.row is not None and self.row.vendor == "nvidia"
        self.gpus = (self.row.gpus or 1) if self.row else 0
        self.version: versions.Version = self.model.vllm_min
        self.image = context.image
        if beside:
            self.assumed.append("no part of this plan: %s" % listed(beside, 6))

    def refuse(self, why: str, *facts: str) -> None:
        self.refused.append((short(why, 400), [short(fact, 300) for fact in facts]))

    def _assume(self, text: str, name: str) -> None:
        """`text` has a place for the names of all nodes of which it holds."""
        names = self.together.setdefault(text, [])
        if name not in names:
            names.append(name)

    def _refuse_alike(self, label: str, why: str, *facts: str) -> None:
        """A refusal that many engines may share; `why` has a place for their names."""
        self.alike.setdefault((why, facts), []).append(label)

    def document(self) -> Document:
        engines = self._engines()
        self._words_together(engines)
        self._version()
        self._image()
        if self.row is not None:
            for engine in engines:
                self._memory(engine)
            for (why, facts), names in self.alike.items():
                self.refuse(why % listed(names, 4), *facts)
            self._hardware()
            self._places(engines)
            self._interconnect(engines)
        entries: Dict[str, Dict[str, Any]] = {}
        complete = True
        if self.row is not None and not self.refused:
            dmabuf = fallback(self.nodes) if self.context.needs_rdma and self.nvidia else None
            for engine in engines:
                for rank, node in enumerate(engine.nodes):
                    entries[node.name] = self._node(engine, rank, node, dmabuf)
            for node in self.routers:
                entries[node.name] = self._router(node, engines)
            complete = not any("IFACE_OF_" in text for entry in entries.values() for text in entry["env"].values())
        self._troubles()
        self._concluded()
        self.assumed += [text % listed(names, 4) for text, names in self.together.items()]
        made = _empty(self.refused)
        made.update({
            "profile": self.context.profile, "variant": self.context.variant, "hardware": self.context.hardware,
            "strategy": self.context.strategy, "interconnect": self.context.interconnect, "features": list(self.words.features),
            "model": self._model(), "image": self.image, "vllm_version": versions.word(self.version),
            "nodes": {} if self.refused else entries,
            "engines": [self._engine_line(engine, entries) for engine in engines],
            "warnings": _once(self.warnings), "assumed": _once(self.assumed),
            "complete": complete and not self.refused, "sources": self._sources(),
        })
        return made

    def _engine_line(self, engine: Engine, entries: Mapping[str, Any]) -> Dict[str, Any]:
        urls = [entries[node.name]["health_url"] for node in engine.nodes if node.name in entries and entries[node.name]["health_url"]]
        return {
            "name": engine.name, "pool": engine.pool, "nodes": [node.name for node in engine.nodes],
            "gpus": self.gpus * len(engine.nodes) if self.row and self.row.gpus else 0, "fits": self.fits.get(engine.name, ""),
            "endpoints": [url.rsplit("/", 1)[0] for url in urls],
        }

    def _model(self) -> str:
        return self.words.model or self.model.variants[self.context.variant].model

    def _sources(self) -> Dict[str, str]:
        rows = {"recipe": recipe.RECIPE_PD if self.strategy.span == "pools" else recipe.BASE.source, "interconnect": recipe.MNNVL,
                "addresses": recipe.TROUBLESHOOTING, "nccl": recipe.NCCL_ENV, "versions": versions.SEEN_032}
        return {name: "%s (%s)" % (row.url, row.date) for name, row in rows.items()}

    # -- engines, ranks, roles -------------------------------------------------------------------------------
    def _engines(self) -> List[Engine]:
        if self.strategy.span == "one":
            return [Engine(node.name, "", (node,)) for node in self.nodes]
        if self.strategy.span == "many":
            return [Engine("engine", "", self._ordered("vllm_nodes", self.nodes))] if self.nodes else []
        made = []
        for pool in ("prefill", "decode"):
            inside = [node for node in self.nodes if "vllm_" + pool in _groups(node)]
            made.append(Engine(pool, pool, self._ordered("vllm_" + pool, inside)))
        return made

    def _ordered(self, group: str, nodes: Sequence[Node]) -> Tuple[Node, ...]:
        """Nodes in rank order: the inventory's, or that of vllm_rank where hosts declare it."""
        ranks: Dict[str, int] = {}
        for node in nodes:
            value = node.declared.get("rank")
            if value in (None, ""):
                continue
            if isinstance(value, bool) or not str(value).isascii() or not str(value).isdigit() or len(str(value)) > 6:
                self.refuse("vllm_rank of %s is no rank" % node.name, "vllm_rank: %s" % short(repr(value), 60))
                return tuple(nodes)
            ranks[node.name] = int(value)
        if ranks:
            for rank in sorted(set(ranks.values())):
                same = [name for name, other in ranks.items() if other == rank]
                if len(same) > 1:
                    self.refuse("rank %d is given to %d hosts of %s" % (rank, len(same), group), *["vllm_rank of %s: %d" % (
                        name, rank) for name in same])
                    return tuple(nodes)
            if sorted(ranks.values()) != list(range(len(nodes))):
                self.refuse("the ranks of %s are not 0 to %d, each once" % (group, len(nodes) - 1), "vllm_rank: %s" % listed(
                    ("%s %s" % (node.name, ranks.get(node.name, "not declared")) for node in nodes), 8))
                return tuple(nodes)
            nodes = sorted(nodes, key=lambda node: ranks[node.name])
        return self._with_head(group, nodes, bool(ranks))

    def _with_head(self, group: str, nodes: Sequence[Node], ranked: bool) -> Tuple[Node, ...]:
        roles = {node.name: node.declared.get("role") for node in nodes if node.declared.get("role") not in (None, "")}
        for name, role in roles.items():
            if role not in ("head", "worker"):
                self.refuse("vllm_role of %s is not head or worker" % name, "vllm_role: %s" % short(repr(role), 60))
                return tuple(nodes)
        heads = [name for name, role in roles.items() if role == "head"]
        if len(heads) > 1:
            self.refuse("%s has %d heads" % (group, len(heads)), *["vllm_role of %s: head" % name for name in heads])
        elif roles and not heads and len(roles) == len(nodes):
            self.refuse("%s has no head" % group, *["vllm_role of %s: worker" % name for name in list(roles)[:4]])
        elif heads and nodes[0].name != heads[0]:
            if ranked:
                self.refuse("the head of %s is not its rank 0" % group, "vllm_role of %s: head" % heads[0], "vllm_rank of %s: 0" % nodes[0].name)
            else:
                return tuple(sorted(nodes, key=lambda node: node.name != heads[0]))
        elif roles.get(nodes[0].name if nodes else "") == "worker":
            self.refuse("the first host of %s is the head, and it is declared a worker" % group, "vllm_role of %s: worker" % nodes[0].name)
        return tuple(nodes)

    # -- what goes together ----------------------------------------------------------------------------------
    def _words_together(self, engines: Sequence[Engine]) -> None:
        context = self.context
        if self.row is None:
            self.refuse("the hardware is not known", "vllm_hardware: %s" % context.sources.get("vllm_hardware", "not declared"))
            return
        problem = unsupported(context.profile, context.variant, context.hardware, context.strategy)
        if problem:
            self.refuse(problem, "vllm_hardware: %s" % context.hardware, "vllm_strategy: %s" % context.strategy)
        for text in contradictions(context):
            self.refuse(text, "vllm_interconnect: %s" % context.interconnect, "vllm_hardware: %s" % context.hardware)
        if self.strategy.span == "pools" and self.row.family == "hopper":
            self.refuse("pd_cluster does not start on %s" % context.hardware,
                        "the decode pool is data and expert parallel, which the recipe does not support on Hopper",
                        "Hopper is served with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and vLLM refuses the NixlConnector with it")
        for name in self.words.features:
            families = recipe.FEATURE_FAMILIES.get(name, ())
            if families and self.row.family not in families:
                self.refuse("feature %s does not run on %s" % (name, context.hardware), "vllm_features: %s" % name, recipe.DCP_KERNEL.note)
        if not self.nodes:
            self.refuse("no host is in the plan", "groups: %s" % ", ".join(GROUPS[:3]))
        count = len(self.nodes)
        if self.strategy.span == "many" and count == 1 and self.strategy.min_gpus > self.row.gpus and self.row.vendor != "cpu":
            self.refuse("%s spans several nodes, and the inventory has 1" % context.strategy, "vllm_nodes: %s" % self.nodes[0].name)
        if self.strategy.span == "pools":
            self._pools(engines)
        self._replicas(engines)

    def _pools(self, engines: Sequence[Engine]) -> None:
        for engine in engines:
            if not engine.nodes:
                self.refuse("pd_cluster has no host in vllm_%s" % engine.pool, "vllm_strategy: pd_cluster", "vllm_%s: empty" % engine.pool)
        if not self.routers:
            self.refuse("pd_cluster has no host in vllm_router, and clients need one address", "vllm_strategy: pd_cluster", "vllm_router: empty")
        if len(self.routers) > 1:
            self.refuse("vllm_router has %d hosts, and one router is planned" % len(self.routers), *[
                "vllm_router: %s" % node.name for node in self.routers])
        for node in list(self.nodes) + [node for node in self.routers if node not in self.nodes]:
            inside = [group for group in GROUPS[1:] if group in _groups(node)]
            if len(inside) > 1:
                self.refuse("%s is in %s, and a host runs one service" % (node.name, " and ".join(inside)),
                            "give the machine a second name in the inventory (ansible_host), if it shall run both")

    def _replicas(self, engines: Sequence[Engine]) -> None:
        if self.strategy.span == "one" and len(engines) > 1:
            self.assumed.append("%d nodes are %d independent replicas, each with its own address; put a load balancer in front" % (
                len(engines), len(engines)))

    def _memory(self, engine: Engine) -> None:
        row, context = self.row, self.context
        if row is None or row.vendor == "cpu" or not engine.nodes:
            return
        memories = [(node, gpu_memory(node, context)) for node in engine.nodes]
        known = [(node, memory) for node, memory in memories if memory.gpus is not None]
        for node, memory in known:
            if not memory.assumed and memory.gpus != row.gpus:
                self.refuse("%s has %d working GPUs, and the plan needs %d" % (node.name, memory.gpus or 0, row.gpus),
                            "nvidia-smi on %s: %d GPUs" % (node.name, memory.gpus or 0), "%s: %d GPUs a node" % (row.name, row.gpus))
        for node, memory in memories:
            if memory.gpus is None or memory.assumed:
                self._assume("GPUs and their memory were not looked at on %s: taken as " + row.title, node.name)
        share = self._share(engine)
        nodes_gb = [memory.gb if memory.gpus is not None else row.memory_gb for _node, memory in memories]
        sums = fit(context.weights_gb, nodes_gb, share)
        self.fits[engine.name] = sums.text
        gpus = row.gpus * len(engine.nodes)
        floor = minimum_gpus(context.strategy, context.hardware, engine.pool)
        label = "the %s pool" % engine.pool if engine.pool else "the engine" if self.strategy.span == "many" else engine.name
        if not sums.holds:
            needed = max(nodes_needed(context.weights_gb, row.memory_gb, share), -(-floor // row.gpus))
            self._refuse_alike(label, "the weights do not fit into %s: " + sums.text, "weights of %s %s: %s GB" % (
                self.model.title, context.variant, "{:,.0f}".format(context.weights_gb)), "%d nodes of %s are needed, and %s" % (
                needed, context.hardware, "an engine of single_node_tp has 1; choose a multi_node strategy" if self.strategy.span == "one"
                else "%d are there" % len(engine.nodes)))
        if gpus < floor:
            self._refuse_alike(label, "%s needs %d GPUs on %s, and %%s has %d × %d = %d" % (
                context.strategy, floor, context.hardware, len(engine.nodes), row.gpus, gpus),
                "GPUs at least (%s%s): %d" % (context.strategy, ", decode pool" if engine.pool == "decode" else "", floor), "GPUs there: %d" % gpus)
        if not self.words.model and self.strategy.tensor == "all" and engine.pool != "decode" and recipe.ATTENTION_HEADS % gpus:
            self.refuse("tensor parallelism over %d GPUs does not divide the %d attention heads of %s: %d / %d = %.2f" % (
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
                self.refuse("%s is %s, and the plan is for %s" % (node.name, found, self.context.hardware),
                            "GPUs of %s: %s" % (node.name, found), "vllm_hardware: %s%s" % (self.context.hardware, "" if self.context.sources.get(
                                "vllm_hardware") == DECLARED else " (%s)" % self.context.sources.get("vllm_hardware")))
        silent: Dict[str, List[str]] = {}
        for node in self.nodes:
            if not node.facts:
                silent.setdefault(short(node.unreachable or "not read", 80), []).append(node.name)
        for why, names in silent.items():
            self.assumed.append("no facts of %s (%s); what is said of them is what the inventory says" % (listed(names, 4), why))

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
                self.warnings.append("the nodes have different versions of vLLM in %s: %s" % (self.context.image, listed(
                    ("%s %s" % (name, versions.word(version)) for name, version in found.items()), 4)))
            if declared and declared[:2] != best[0][:2]:
                self.refuse("vllm_version says %s, and %s holds %s" % (versions.word(declared), self.context.image, versions.word(best[0])),
                            "vllm_version: %s" % versions.word(declared), "image on %s: vLLM %s" % (
                                next(name for name, version in found.items() if version == best[0]), versions.word(best[0])))
            self.version = best[0]
            if self.version < self.model.vllm_min:
                self.refuse("vLLM %s does not know %s; %s is the first that does" % (
                    versions.word(self.version), self.model.title, versions.word(self.model.vllm_min)),
                    "image %s: vLLM %s" % (self.context.image, versions.word(self.version)))
        elif not declared:
            self.assumed.append("flags and variables are those of vLLM %s, the version of the image of %s; set vllm_version for another" % (
                versions.word(self.version), self.model.title))
        if not versions.has(versions.LAST + (9999,), self.version[:2]):
            self.warnings.append("vLLM %s is newer than what is known here (%s); what changed since is not in the plan" % (
                versions.word(self.version), versions.word(versions.LAST)))

    def _image(self) -> None:
        if not self.context.image and self.row is not None and self.row.vendor == "cpu":
            self.image = self.model.images["nvidia"]
            self.assumed.append("hardware cpu has no image of its own: %s is taken; set vllm_image" % self.image)
            return
        if "@sha256:" in self.context.image or not self.context.image:
            return
        found: Dict[str, List[str]] = {}
        for node in self.nodes:
            image = node.get("container.image")
            if not isinstance(image, dict) or image.get("name") != self.context.image or not image.get("present"):
                continue
            for digest in items(image.get("digests")):
                if re.match(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,200}@sha256:[0-9a-f]{64}\Z", str(digest)):
                    found.setdefault(str(digest), []).append(node.name)
        if len(found) == 1:
            self.image, names = next(iter(found.items()))
            if len(names) < len(self.nodes):
                self.assumed.append("the digest of %s is that of %s; the other nodes were not looked at or do not have it yet" % (
                    self.context.image, listed(names, 4)))
            return
        if found:
            self.warnings.append("%s is not the same image everywhere, so the plan keeps the tag: %s" % (self.context.image, listed(
                ("%s on %s" % (digest.split("@")[-1][:19], listed(names, 3)) for digest, names in found.items()), 4)))
        else:
            self.assumed.append("the digest of %s is not known, so the plan names the tag; a tag may come to mean another image" % self.context.image)

    # -- network ---------------------------------------------------------------------------------------------
    def _places(self, engines: Sequence[Engine]) -> None:
        several = self.strategy.span != "one"
        for node in list(self.nodes) + list(self.routers):
            spans = several and (node in self.routers or self.strategy.span == "pools" or len(self.nodes) > 1)
            found = place(node, spans)
            self.places[node.name] = found
            self.refused += found.refused
            for text in found.assumed:
                if "IFACE_OF_" not in text or node not in self.routers:
                    self._assume(text, node.name)
        for engine in engines:
            seen: Dict[str, str] = {}
            for node in engine.nodes:
                address = self.places[node.name].address
                if address and address in seen and len(engine.nodes) > 1:
                    self.refuse("%s and %s have the same address" % (seen[address], node.name), "address of %s: %s" % (seen[address], address),
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
                self.refuse("NCCL_DMABUF_ENABLE=0 is needed and not allowed: nvidia_peermem is not loaded on every node", cause, *facts)
            elif found.needed and given not in (None, "0"):
                self.refuse("NCCL_DMABUF_ENABLE=%s cannot work: dma-buf was refused on %s" % (given, listed(found.needed, 3)),
                            "vllm_env_overrides: NCCL_DMABUF_ENABLE=%s" % given, "kernel log: %s" % found.evidence)
        if context.needs_mnnvl and self.nvidia:
            for engine in engines:
                cliques = {node.name: clique(node) for node in engine.nodes}
                known = {name: text for name, text in cliques.items() if text}
                if len(set(known.values())) > 1:
                    self.refuse("the nodes of %s are not in one NVLink clique" % engine.name, *["%s: %s" % item for item in list(known.items())[:6]])
        for name in self.words.env:
            if self.words.env[name] is None:
                continue
            if name in recipe.NVLINK_ONLY and not context.needs_mnnvl:
                self.refuse("%s is for NVLink between nodes, and this plan has none" % name, "vllm_env_overrides: %s=%s" % (name, self.words.env[name]),
                            "vllm_interconnect: %s" % context.interconnect)
            if name in recipe.RDMA_ONLY and not context.needs_rdma:
                self.refuse("%s is for RDMA between nodes, and this plan has none" % name, "vllm_env_overrides: %s=%s" % (name, self.words.env[name]),
                            "vllm_interconnect: %s" % context.interconnect)
            if name == "VLLM_USE_RUST_FRONTEND" and self.context.hardware == "cpu":
                self.refuse("VLLM_USE_RUST_FRONTEND is not for hardware cpu, whose build lacks the program", "vllm_hardware: cpu",
                            "vllm_env_overrides: VLLM_USE_RUST_FRONTEND=%s" % self.words.env[name])

    # -- one node --------------------------------------------------------------------------------------------
    def _node(self, engine: Engine, rank: int, node: Node, dmabuf: Optional[Fallback]) -> Dict[str, Any]:
        draft = _Draft()
        where = self.places[node.name]
        pool = engine.pool
        self._recipe(draft, engine, rank)
        headless = draft.flags.get("--headless") is True
        self._between(draft, engine, node, dmabuf)
        self._own(draft, engine, node, headless)
        for moved in versions.move(draft.flags, draft.env, self.version):
            draft.why.setdefault(moved.new, draft.why.get(moved.old, ("version", "")))
            draft.note("%s → %s" % (moved.old, moved.new or "nothing"), "version", moved.why)
        self._user(draft)
        self._sound(draft, engine, node)
        ports = self._ports(draft, pool, headless)
        url = "" if headless else "http://%s/health" % host_port(where.listen, ports["api"])
        role = pool or ("head" if rank == 0 else "worker")
        argv = ["vllm", "serve", self._model()]
        for name, value in draft.flags.items():
            argv += render(name, value)
        return {
            "role": role, "rank": rank, "engine": engine.name, "argv": argv, "env": dict(draft.env), "image": self.image,
            "container": self._container(draft, engine, node), "container_engine": self.words.container, "ports": ports, "address": where.address,
            "health_url": url or None, "stop_seconds": self.words.shutdown + 30, "reasons": draft.reasons(),
        }

    def _recipe(self, draft: _Draft, engine: Engine, rank: int) -> None:
        """The layers of the public recipe, in its order."""
        assert self.row is not None
        key = (self.context.strategy, engine.pool)
        family = self.row.family
        draft.lay(recipe.BASE)
        draft.lay(recipe.STRATEGY.get(key, recipe.NOTHING))
        self._parallel(draft, engine, rank)
        draft.lay(recipe.STRATEGY_OVERRIDE.get(key, recipe.NOTHING))
        draft.lay(recipe.REPLACED.get((self.context.strategy, family)) or recipe.HARDWARE_OVERRIDE.get(family, recipe.NOTHING))
        exact = recipe.GPU_OVERRIDE.get(key + (self.context.hardware,))
        if exact is not None and self.context.interconnect == "rdma":
            draft.note("--moe-backend %s" % recipe.MEGA_MOE, exact.name, "left out: mega-MoE does not work between nodes over RDMA")
        elif exact is not None:
            draft.lay(exact)
        if self.strategy.span == "pools" and self.row.fabric == "mnnvl" and self.context.needs_mnnvl:
            draft.lay(Layer("strategy pd_cluster", (), recipe.TRAY_ENV, recipe.RECIPE_PD, "trays of an NVL72 rack"))
        for name in self.words.features:
            if name == "prefix_caching" and engine.pool == "decode":
                draft.note("--enable-prefix-caching", "feature prefix_caching", "left off in the decode pool, which gets its cache from the prefill pool")
                continue
            draft.lay(recipe.FEATURE[name])

    def _parallel(self, draft: _Draft, engine: Engine, rank: int) -> None:
        count, gpus, layer = len(engine.nodes), self.gpus, "strategy %s" % self.context.strategy
        strategy, pool = self.strategy, engine.pool
        head = self.places[engine.nodes[0].name].address
        total = "%d nodes × %d GPUs = %d" % (count, gpus, count * gpus)

        def multi(tensor: int, why: str) -> None:
            draft.flag("--tensor-parallel-size", str(tensor), layer, why)
            if strategy.pipeline:
                draft.flag("--pipeline-parallel-size", str(count), layer, "one stage a node")
            if count > 1:
                draft.flag("--nnodes", str(count), layer)
                draft.flag("--node-rank", str(rank), layer)
                draft.flag("--master-addr", head, layer, "address of %s, the head" % engine.nodes[0].name)
                if rank:
                    draft.flag("--headless", True, layer, "a worker serves no API")

        if strategy.expert:
            draft.flag("--enable-expert-parallel", True, layer, "experts are spread over the GPUs")
        if pool == "decode":
            draft.flag("--tensor-parallel-size", "1", layer)
        if pool == "decode" or strategy.name == "multi_node_dep":
            draft.flag("--data-parallel-hybrid-lb", True, layer, "every node serves an API for its own ranks")
            draft.flag("--data-parallel-size", str(count * gpus), layer, total)
            draft.flag("--data-parallel-size-local", str(gpus), layer)
            draft.flag("--data-parallel-address", head, layer, "address of %s, the head" % engine.nodes[0].name)
            if pool or rank:
                draft.flag("--data-parallel-start-rank", str(rank * gpus), layer)
            if pool:
                draft.flag("--data-parallel-rpc-port", str(recipe.PORTS["dp_rpc"]), layer)
        elif strategy.data == "node" and not pool:
            draft.flag("--tensor-parallel-size", str(gpus), layer, "inside a node")
            draft.flag("--data-parallel-size", str(count), layer, "one rank a node")
            draft.flag("--data-parallel-size-local", "1", layer)
            draft.flag("--data-parallel-address", head, layer, "address of %s, the head" % engine.nodes[0].name)
            if rank:
                draft.flag("--data-parallel-start-rank", str(rank), layer)
                draft.flag("--headless", True, "own", "the recipe leaves it out, and then the head ends: a remote engine must be headless")
        elif strategy.tensor == "all":
            multi(count * gpus, total)
        else:
            multi(gpus, "GPUs of a node")
        if pool == "decode":
            draft.set("VLLM_NIXL_SIDE_CHANNEL_PORT", str(recipe.PORTS["side_channel_decode"]), layer)
            draft.set("VLLM_NIXL_SIDE_CHANNEL_HOST", self.places[engine.nodes[rank].name].address, layer, "the node's own address")
        elif pool == "prefill":
            draft.set("VLLM_NIXL_SIDE_CHANNEL_PORT", str(recipe.PORTS["side_channel_prefill"]), layer)
            draft.set("VLLM_NIXL_SIDE_CHANNEL_HOST", self.places[engine.nodes[rank].name].address, layer, "the node's own address")

    def _between(self, draft: _Draft, engine: Engine, node: Node, dmabuf: Optional[Fallback]) -> None:
        """Interconnect: what the recipe leaves to the reader."""
        context, where = self.context, self.places[node.name]
        spans = _spans(engine)
        if spans:
            draft.set("VLLM_HOST_IP", where.address, "addresses", "from %s; unset or loopback, both sides hang after the weights" % where.told)
            interface = where.interface or "IFACE_OF_%s" % node.name
            draft.set("GLOO_SOCKET_IFNAME", interface, "strategy %s" % context.strategy, "the interface of %s" % where.address)
            if context.hardware != "cpu":
                draft.set("NCCL_SOCKET_IFNAME", "=" + interface, "strategy %s" % context.strategy, "exactly this interface: without = NCCL takes a prefix")
        if not self.nvidia:
            if context.needs_rdma and spans:
                self._hca_list(draft, node)
            return
        backend = recipe.ALL2ALL.get(context.interconnect)
        if self.strategy.expert and spans and backend and len(engine.nodes) > 1:
            draft.flag("--all2all-backend", backend, "interconnect %s" % context.interconnect, "expert parallelism between nodes")
        if context.needs_mnnvl and spans:
            for name, value in recipe.INTERCONNECT_ENV["nvlink"]:
                draft.set(name, value, "interconnect nvlink", "NVLink between the nodes")
            for name in recipe.RDMA_ONLY:
                draft.drop(name, "interconnect nvlink", "left out: it is for RDMA, and the nodes exchange over NVLink")
        if context.needs_rdma and spans:
            for name in recipe.NVLINK_ONLY:
                draft.drop(name, "interconnect rdma", "left out: it is for NVLink between nodes")
            if dmabuf is not None and dmabuf.needed:
                draft.set("NCCL_DMABUF_ENABLE", "0", "interconnect rdma", "dma-buf was refused on %s (%s); nvidia_peermem is loaded on every node" % (
                    listed(dmabuf.needed, 3), dmabuf.evidence))
                if self.strategy.span == "pools":
                    self.warnings.append("dma-buf was refused on %s, and UCX, which moves the KV cache, has no plan for it; watch the first transfer"
                                         % listed(dmabuf.needed, 3))
            self._hca_list(draft, node)

    def _hca_list(self, draft: _Draft, node: Node) -> None:
        found = hcas(node, self.context, recipe.HCAS_MOST)
        if found.nccl:
            left = "; not %s" % listed(("%s (%s)" % item for item in found.left_out.items()), 6) if found.left_out else ""
            draft.set("NCCL_IB_HCA", found.nccl, "interconnect rdma", "%d compute HCAs with an active port, by exact name%s" % (found.usable, left))
            if self.row and found.usable < self.row.hcas:
                self.warnings.append("%s has %d usable compute HCAs, and %s usually has %d" % (node.name, found.usable, self.row.name, self.row.hcas))
        elif node.items("rdma.hcas"):
            self.refuse("%s has no compute HCA for RDMA: %s" % (node.name, found.why), "vllm_interconnect: rdma", "HCAs of %s: %s" % (
                node.name, listed(("%s %s" % item for item in found.left_out.items()), 8)))
        else:
            self._assume("the HCAs of %s are not known, so NCCL chooses them itself; plan with the nodes answering for an exact list", node.name)

    def _own(self, draft: _Draft, engine: Engine, node: Node, headless: bool) -> None:
        """What the collection adds so that the service is sound on its own."""
        where = self.places[node.name]
        if "--enable-prefix-caching" not in draft.flags:
            state = versions.default("--enable-prefix-caching", self.version)
            draft.flag("--enable-prefix-caching", bool(state), "own", "always stated: vLLM %s has it %s by default" % (
                versions.word(self.version), "on" if state else "off"))
        if self.words.revision:
            draft.flag("--revision", self.words.revision, "own", "vllm_revision")
        if self.words.model:
            draft.flag("--served-model-name", self.model.variants[self.context.variant].model, "own", "clients ask for the profile's name")
        if not headless:
            draft.flag("--host", where.listen, "own", "listens on the declared address only")
            port = {"prefill": recipe.PORTS["prefill"], "decode": recipe.PORTS["decode"]}.get(engine.pool, self.words.port)
            draft.flag("--port", str(port), "own" if not engine.pool else "strategy pd_cluster")
            draft.flag("--shutdown-timeout", str(self.words.shutdown), "own", "a stop lets running requests end")
        if self.context.hardware != "cpu" and "VLLM_ENGINE_READY_TIMEOUT_S" not in draft.env:
            draft.set("VLLM_ENGINE_READY_TIMEOUT_S", str(recipe.READY_S), "own", "loading the weights takes longer than the default of 600 s")
        draft.set("HF_HOME", self.words.weights_path, "own", "the weights stand in vllm_weights_path")
        draft.note("API key", "own", "never in argv: VLLM_API_KEY belongs in an environment file of mode 0600")

    def _user(self, draft: _Draft) -> None:
        for name, value in self.words.flags.items():
            if value is None:
                draft.drop(name, "vllm_overrides", "taken out")
            else:
                draft.flag(name, value, "vllm_overrides")
        for name, value in self.words.env.items():
            if value is None:
                draft.drop(name, "vllm_env_overrides", "taken out")
            else:
                draft.set(name, value, "vllm_env_overrides")
        for moved in versions.move(draft.flags, draft.env, self.version):
            draft.why[moved.new] = draft.why.get(moved.old, ("version", ""))
            draft.note("%s → %s" % (moved.old, moved.new or "nothing"), "version", moved.why)
        if self.words.flags and not versions.has(self.version, versions.parse(FLAGS_VERSION)[:2]):
            self.assumed.append("names and values of vllm_overrides were checked against vLLM %s; the plan is for %s" % (
                FLAGS_VERSION, versions.word(self.version)))

    def _sound(self, draft: _Draft, engine: Engine, node: Node) -> None:
        """Combinations that vLLM refuses or dies of, whoever asked for them."""
        def once(why: str, *facts: str) -> None:
            if not any(why == known for known, _facts in self.refused):
                self.refuse(why, *facts)

        flags, env = draft.flags, draft.env
        tensor = _number(flags.get("--tensor-parallel-size"), 1)
        dcp = _number(flags.get("--decode-context-parallel-size"), 1)
        if dcp > 1 and tensor % dcp:
            once("decode context parallelism of %d does not divide the tensor parallel size: %d / %d = %.2f" % (dcp, tensor, dcp, tensor / dcp),
                 "--tensor-parallel-size %d" % tensor, "--decode-context-parallel-size %d" % dcp)
        pipeline = _number(flags.get("--pipeline-parallel-size"), 1)
        if pipeline > 1 and "dspark" in str(flags.get("--speculative-config", "")) + str(flags.get("--spec-method", "")):
            once("DSpark does not work with pipeline parallelism", "--pipeline-parallel-size %d" % pipeline, "speculative method dspark")
        interval = flags.get("--prefix-cache-retention-interval", env.get("VLLM_PREFIX_CACHE_RETENTION_INTERVAL"))
        block = _number(flags.get("--block-size"), recipe.BLOCK_TOKENS)
        if interval is not None and not self.words.model:
            value = _number(interval, -1)
            if value < 0 or (block > 0 and value % block):
                once("a prefix cache retention interval of %s is not 0 or a multiple of the %d tokens of a block" % (interval, block),
                     "retention interval: %s" % interval, "block: %d tokens; %s / %d = %.2f" % (block, interval, block, value / block if block else 0))
        if flags.get("--moe-backend") == recipe.MEGA_MOE:
            if self.context.needs_rdma:
                once("%s does not work between nodes over RDMA" % recipe.MEGA_MOE, "--moe-backend %s" % recipe.MEGA_MOE, "vllm_interconnect: rdma")
            if tensor >= recipe.MEGA_MOE_TP:
                self.warnings.append("%s was seen to crash with a tensor parallel size of %d and more (vllm#51124); this plan has %d" % (
                    recipe.MEGA_MOE, recipe.MEGA_MOE_TP, tensor))
        if "--kv-transfer-config" in flags and "expandable_segments:True" in env.get("PYTORCH_CUDA_ALLOC_CONF", ""):
            if flags.get("--enable-cumem-allocator") is not True:
                once("vLLM refuses a KV connector with expandable_segments:True", "--kv-transfer-config", "PYTORCH_CUDA_ALLOC_CONF=%s" % env[
                    "PYTORCH_CUDA_ALLOC_CONF"])

    def _ports(self, draft: _Draft, pool: str, headless: bool) -> Dict[str, int]:
        made: Dict[str, int] = {}
        if not headless:
            made["api"] = _number(draft.flags.get("--port"), self.words.port)
        if "--nnodes" in draft.flags:
            made["master"] = _number(draft.flags.get("--master-port"), recipe.PORTS["master"])
        if "--data-parallel-address" in draft.flags:
            made["dp_rpc"] = _number(draft.flags.get("--data-parallel-rpc-port"), recipe.PORTS["dp_rpc"])
        if pool:
            made["side_channel"] = _number(draft.env.get("VLLM_NIXL_SIDE_CHANNEL_PORT"), recipe.PORTS["side_channel_" + pool])
        return made

    def _container(self, draft: _Draft, engine: Engine, node: Node) -> List[str]:
        assert self.row is not None
        made = list(recipe.CONTAINER_BASE)
        kind = self.row.vendor
        if kind == "nvidia":
            listed_cdi = any(spec.get("kind") == "nvidia.com/gpu" for spec in node.items("container.cdi"))
            if self.words.container == "podman" or (listed_cdi and node.get("container.docker.cdi") is True):
                kind = "cdi"
            draft.note(" ".join(recipe.CONTAINER_GPUS[kind]), "container", "by CDI, which names the driver's files itself" if kind == "cdi"
                       else "CDI is not known to be on in the engine")
        made += recipe.CONTAINER_GPUS[kind]
        if self.context.needs_rdma and _spans(engine):
            made += recipe.CONTAINER_RDMA
            draft.note("/dev/infiniband, memlock, IPC_LOCK", "container", "RDMA needs them; the recipe's --privileged gives far more")
        if self.context.needs_mnnvl and self.nvidia and _spans(engine):
            made += recipe.CONTAINER_IMEX
            draft.note("IMEX channel 0", "container", "NVLink between nodes needs it")
        made += ["--volume", "%s:%s" % (self.words.weights_path, self.words.weights_path)]
        if self.words.model.startswith("/") and not (self.words.model + "/").startswith(self.words.weights_path.rstrip("/") + "/"):
            made += ["--volume", "%s:%s:ro" % (self.words.model, self.words.model)]
        return made

    def _router(self, node: Node, engines: Sequence[Engine]) -> Dict[str, Any]:
        where = self.places[node.name]
        argv = ["vllm-router", "--policy", "round_robin", "--vllm-pd-disaggregation"]
        for engine in engines:
            port = recipe.PORTS[engine.pool]
            # Workers of the prefill pool are headless; every node of the decode pool serves its own ranks.
            serving = engine.nodes[:1] if engine.pool == "prefill" else engine.nodes
            for server in serving:
                argv += ["--" + engine.pool, "http://%s" % host_port(self.places[server.name].listen, port)]
        argv += ["--host", where.listen, "--port", str(recipe.PORTS["router"]), "--intra-node-data-parallel-size", "1"]
        if not self.words.router_image:
            self.assumed.append("%s: the router runs from a virtual environment (pip install vllm-router); set vllm_router_image for a container"
                                % node.name)
        return {
            "role": "router", "rank": 0, "engine": "router", "argv": argv, "env": {}, "image": self.words.router_image,
            "container": ["--network", "host"] if self.words.router_image else [], "container_engine": self.words.container,
            "ports": {"api": recipe.PORTS["router"]}, "address": where.address,
            "health_url": "http://%s/health" % host_port(where.listen, recipe.PORTS["router"]), "stop_seconds": 30,
            "reasons": [{"what": "vllm-router", "layer": "strategy pd_cluster", "why": "one address for clients in front of both pools"}],
        }

    # -- what is said besides --------------------------------------------------------------------------------
    def _troubles(self) -> None:
        if self.row is None:
            return
        seen = [str(node.get("container.image.nccl")) for node in self.nodes if node.get("container.image.nccl")]
        nccl = versions.parse(seen[0]) if seen else versions.parse(self.model.image_nccl) if self.context.image in self.model.images.values() else ()
        for trouble in matching(self.context, nccl, self.version):
            self.warnings.append("%s. %s (%s)" % (trouble.text, trouble.remedy, trouble.source))

    def _concluded(self) -> None:
        for variable, told in self.context.sources.items():
            if told != DECLARED and variable in ("vllm_hardware", "vllm_strategy", "vllm_interconnect"):
                self.assumed.append("%s: %s" % (variable, told))


def _spans(engine: Engine) -> bool:
    """Something moves between this engine's nodes, or between its pool and the other."""
    return len(engine.nodes) > 1 or bool(engine.pool)


def _number(value: Any, otherwise: int) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.lstrip("-").isdigit() and len(text) < 10 else otherwise


def _once(items: Sequence[str]) -> List[str]:
    return list(dict.fromkeys(items))
