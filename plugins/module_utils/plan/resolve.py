# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the inventory's words, each of which may be ``auto``, to a :class:`Context` without any ``auto``.

Only words that mean nothing raise :class:`InputError`. Words that mean something but do not go together
(NVLink between HGX nodes, DEP on Hopper, too few GPUs) give a context all the same, and the checks
``plan.*`` say what is wrong, so that the nodes are judged in the same run.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from ..checks.model import Context, Node
from .fit import grouped, nodes_needed
from .profiles import HARDWARE, INTERCONNECTS, MODELS, STRATEGIES, hardware_of_name, hardware_of_pci, memory_share, minimum_gpus

DECLARED = "declared"
"""Word in ``Context.sources`` for a value that the inventory gave."""
DEFAULT_PROFILE = "kimi_k3"

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}\Z")
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?([A-Za-z0-9.+-]{0,30})\Z")


class InputError(ValueError):
    """A declared word that means nothing; the message names the variable and what is allowed."""


class Pool(NamedTuple):
    """Nodes of one engine: `label` for a person, `role` ``""``, ``prefill`` or ``decode``."""

    label: str
    role: str
    nodes: Tuple[Node, ...]


def resolve(declared: Mapping[str, Any], nodes: Sequence[Node]) -> Context:
    """Conclude what the cluster is meant to be.

    Args:
        declared: ``vllm_profile``, ``vllm_variant``, ``vllm_hardware``, ``vllm_strategy``, ``vllm_interconnect``,
            ``vllm_features``, ``vllm_image``, ``vllm_version``; each may be absent, empty or ``auto``.
        nodes: all nodes in rank order, unreachable ones too.

    Returns:
        the context; its ``sources`` say for every variable ``declared`` or, in a sentence, what was concluded.

    Raises:
        InputError: a word that is not one of the allowed ones, or features that exclude the strategy.
    """
    sources: Dict[str, str] = {}
    profile = _word(declared, "vllm_profile", tuple(MODELS))
    sources["vllm_profile"] = DECLARED if profile else "%s is the profile of this collection" % DEFAULT_PROFILE
    profile = profile or DEFAULT_PROFILE
    model = MODELS[profile]
    variant = _word(declared, "vllm_variant", tuple(model.variants))
    sources["vllm_variant"] = DECLARED if variant else "the default variant of %s" % model.title
    variant = variant or "default"
    hardware = _word(declared, "vllm_hardware", tuple(HARDWARE))
    strategy = _word(declared, "vllm_strategy", model.strategies)
    interconnect = _word(declared, "vllm_interconnect", INTERCONNECTS)

    if hardware:
        sources["vllm_hardware"] = DECLARED
    else:
        hardware, sources["vllm_hardware"] = _hardware(nodes)
    weights = model.variants[variant].weights_gb
    if strategy:
        sources["vllm_strategy"] = DECLARED
    else:
        strategy, sources["vllm_strategy"] = _strategy(profile, hardware, weights, interconnect, nodes)
    if interconnect:
        sources["vllm_interconnect"] = DECLARED
    else:
        interconnect, sources["vllm_interconnect"] = _interconnect(hardware, strategy)
    _chosen, sources["vllm_features"] = _check_features(declared, profile, strategy, sources["vllm_strategy"])
    row = HARDWARE.get(hardware)
    vendor = row.vendor if row else "nvidia"
    image, sources["vllm_image"] = _image(declared, profile, vendor)
    several = STRATEGIES[strategy].span != "one"
    return Context(
        profile=profile, variant=variant, hardware=hardware, strategy=strategy, interconnect=interconnect,
        nodes=tuple(node.name for node in nodes),
        needs_rdma=several and interconnect == "rdma",
        needs_mnnvl=several and interconnect == "nvlink",
        gpus_per_node=row.gpus if row else 0,
        gpu_memory_mib=row.memory_mib if row else 0,
        weights_gb=weights,
        driver_min=model.driver_min if vendor == "nvidia" else (),
        image=image,
        image_cuda_major=model.image_cuda_major if vendor == "nvidia" else 0,
        open_required=row.open_modules if row else False,
        nvlink_links=row.nvlink_links if row else 0,
        sources=sources,
    )


def features(declared: Mapping[str, Any], profile: str = DEFAULT_PROFILE) -> Tuple[str, ...]:
    """Features that are on: the declared list, or the profile's default when it is left out.

    Raises:
        InputError: a word that is no feature.
    """
    table = MODELS[profile].features
    value = declared.get("vllm_features")
    if value is None or value == "auto" or value == "":
        return tuple(name for name, row in table.items() if row.default)
    words = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)):
        raise InputError("vllm_features: %s is not a list of words out of %s" % (_shown(value), ", ".join(table)))
    for word in words:
        if not isinstance(word, str) or word not in table:
            raise InputError("vllm_features: %s is not one of %s" % (_shown(word), ", ".join(table)))
    return tuple(name for name in table if name in words)


def pools(nodes: Sequence[Node], context: Context) -> List[Pool]:
    """The engines of the plan: every node, all nodes, or the prefill and the decode pool."""
    span = STRATEGIES[context.strategy].span if context.strategy in STRATEGIES else "one"
    if span == "one":
        return [Pool(node.name, "", (node,)) for node in nodes]
    if span == "many":
        return [Pool("the engine", "", tuple(nodes))] if nodes else []
    return [
        Pool("the %s pool" % role, role, tuple(node for node in nodes if "vllm_" + role in _groups(node)))
        for role in ("prefill", "decode")
    ]


def _groups(node: Node) -> Tuple[str, ...]:
    value = node.declared.get("groups")
    return tuple(str(group) for group in value) if isinstance(value, (list, tuple)) else ()


# -- words ----------------------------------------------------------------------------------
def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _word(declared: Mapping[str, Any], variable: str, allowed: Sequence[str]) -> str:
    """The declared word, empty for ``auto`` or when it is left out."""
    value = declared.get(variable)
    if value is None or value == "" or value == "auto":
        return ""
    if not isinstance(value, str) or value not in allowed:
        raise InputError("%s: %s is not one of auto, %s" % (variable, _shown(value), ", ".join(allowed)))
    return value


def _image(declared: Mapping[str, Any], profile: str, vendor: str) -> Tuple[str, str]:
    value, release = declared.get("vllm_image"), _release(declared, profile)
    model = MODELS[profile]
    if value not in (None, "", "auto"):
        if not isinstance(value, str) or not _IMAGE.match(value):
            raise InputError("vllm_image: %s is not the name of an image, such as %s, or auto" % (_shown(value), model.images["nvidia"]))
        return value, DECLARED
    if release:
        name = model.images.get(vendor, "").split(":")[0]
        return ("%s:v%s" % (name, release) if name else ""), "from vllm_version %s" % release
    image = model.images.get(vendor, "")
    return image, "the image of %s for %s" % (model.title, vendor) if image else "the profile has no image for hardware %s" % vendor


def _release(declared: Mapping[str, Any], profile: str) -> str:
    """The declared version of vLLM without a leading v, empty when it is left out; refused also where an image is declared beside it."""
    release, model = declared.get("vllm_version"), MODELS[profile]
    if release in (None, "", "auto"):
        return ""
    lowest = ".".join(str(part) for part in model.vllm_min)
    found = _VERSION.match(release) if isinstance(release, str) else None
    if not found:
        raise InputError("vllm_version: %s is not a version such as %s (in quotes), or auto" % (_shown(release), lowest))
    if tuple(int(part or 0) for part in found.groups()[:3]) < model.vllm_min:
        raise InputError("vllm_version: %s is older than %s, the first that runs %s" % (_shown(release), lowest, model.title))
    return str(release).lstrip("v")


def _check_features(declared: Mapping[str, Any], profile: str, strategy: str, why: str) -> Tuple[Tuple[str, ...], str]:
    chosen = features(declared, profile)
    table = MODELS[profile].features
    for name in chosen:
        row = table[name]
        reason = "" if why == DECLARED else " (%s)" % why
        if row.strategies and strategy not in row.strategies:
            raise InputError("vllm_features: %s works with vllm_strategy %s only, and the strategy is %s%s" % (
                name, ", ".join(row.strategies), strategy, reason))
        if strategy in row.not_with:
            raise InputError("vllm_features: %s does not work with vllm_strategy %s%s" % (name, strategy, reason))
    given = declared.get("vllm_features") not in (None, "", "auto")
    return chosen, DECLARED if given else "the default features of %s" % MODELS[profile].title


# -- conclusions ------------------------------------------------------------------------------
def hardware_of(node: Node) -> Tuple[str, str]:
    """Key of HARDWARE that the node's GPUs are, and ``names``, ``pci`` or empty: what it was told by.

    The commonest kind counts when a node holds several.
    """
    for path, key, ask, how in (("gpu.gpus", "name", hardware_of_name, "names"), ("gpu.pci", "device", hardware_of_pci, "pci")):
        votes: Dict[str, int] = {}
        for item in node.items(path):
            word = ask(str(item.get(key) or ""))
            if word:
                votes[word] = votes.get(word, 0) + 1
        if votes:
            return max(votes, key=lambda word: votes[word]), how
    return "", ""


def _hardware(nodes: Sequence[Node]) -> Tuple[str, str]:
    votes: Dict[str, int] = {}
    for node in nodes:
        word = hardware_of(node)[0]
        if word:
            votes[word] = votes.get(word, 0) + 1
    if not votes:
        return "", "no node named a GPU that is known here, so the hardware is not known; declare vllm_hardware"
    most = max(votes.values())
    best = [word for word, count in votes.items() if count == most]
    if len(best) > 1:
        return best[0], "%s, a tie: %d nodes each have %s; the first in rank order was taken" % (best[0], most, " and ".join(best))
    return best[0], "%s, from the GPUs of %d of %d nodes" % (best[0], most, len(nodes))


def _strategy(profile: str, hardware: str, weights: float, interconnect: str, nodes: Sequence[Node]) -> Tuple[str, str]:
    row = HARDWARE.get(hardware)
    groups = {group for node in nodes for group in _groups(node)}
    if {"vllm_prefill", "vllm_decode"} <= groups:
        return "pd_cluster", "pd_cluster, since the inventory has the groups vllm_prefill and vllm_decode"
    if row is None:
        return "single_node_tp", "single_node_tp, since the hardware is not known"
    if row.vendor == "cpu":
        if interconnect not in ("", "none") and len(nodes) > 1:
            return "multi_node_tp", "multi_node_tp, since vllm_interconnect %s asks for nodes that work together" % interconnect
        return "single_node_tp", "single_node_tp, since hardware cpu runs one small engine a node"
    share = memory_share(profile, hardware, "single_node_tp")
    usable = row.memory_gb * share
    one = usable >= weights and row.gpus >= minimum_gpus("single_node_tp", hardware)
    told = "%s GB of weights, %s GB of GPU memory usable a node" % (grouped(weights), grouped(usable))
    joined = interconnect in ("rdma", "nvlink") and len(nodes) > 1
    if one and not joined:
        return "single_node_tp", "single_node_tp, since one node holds the model (%s); every node is a replica" % told
    if one:
        reason = "since vllm_interconnect %s asks for nodes that work together" % interconnect
    else:
        reason = "since one node does not hold the model (%s; %d nodes do)" % (told, _nodes_for(profile, hardware, weights))
    if row.family == "hopper":
        return "multi_node_tp", "multi_node_tp, %s; DEP is not supported on Hopper, and TP+PP was seen to fail there" % reason
    return "multi_node_tep", "multi_node_tep, %s" % reason


def _nodes_for(profile: str, hardware: str, weights: float) -> int:
    row = HARDWARE[hardware]
    strategy = "multi_node_tp" if row.family == "hopper" else "multi_node_tep"
    by_memory = nodes_needed(weights, row.memory_gb, memory_share(profile, hardware, strategy))
    floor = minimum_gpus(strategy, hardware)
    return max(by_memory, -(-floor // row.gpus) if row.gpus else 0)


def _interconnect(hardware: str, strategy: str) -> Tuple[str, str]:
    row = HARDWARE.get(hardware)
    if STRATEGIES[strategy].span == "one":
        return "none", "none, since %s keeps each engine on one node" % strategy
    if row is not None and row.fabric == "mnnvl":
        return "nvlink", "nvlink, since the trays of %s share an NVLink domain" % hardware
    if row is not None and row.vendor == "cpu":
        return "none", "none, since hardware cpu talks over plain TCP"
    return "rdma", "rdma, since %s spans nodes and %s has no NVLink between nodes" % (strategy, hardware or "the hardware")


def contradictions(context: Context) -> List[str]:
    """Sentences on declared words that do not go together; empty when all do."""
    row = HARDWARE.get(context.hardware)
    several = context.strategy in STRATEGIES and STRATEGIES[context.strategy].span != "one"
    found: List[str] = []
    if not several or row is None:
        return found
    if context.interconnect == "nvlink" and row.fabric != "mnnvl":
        found.append("vllm_interconnect nvlink needs an NVL72 domain, and NVLink of %s ends at the node" % context.hardware)
    if context.interconnect == "none" and row.vendor != "cpu":
        found.append("vllm_interconnect none joins no nodes, and %s spans nodes" % context.strategy)
    return found
