# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model needs and what hardware gives: typed tables, every value with its source and date.

Each row carries ``sources``: a field's name → :class:`Source`; the key ``*`` stands for all fields that
have no source of their own. Nothing is computed at import, and no table knows a host.

Memory figures come in two kinds. ``memory_gb`` is the published figure of a node that the recipe
calculates with; ``memory_mib`` is what nvidia-smi shows as the total of one GPU. They differ by a few
percent (the first is a rounded figure, the second leaves out what the driver reserves).
"""

from __future__ import annotations

import re
from typing import Dict, Mapping, NamedTuple, Tuple


class Source(NamedTuple):
    """Where a value comes from: `url`, `date` of the source as it was read (YYYY-MM-DD), and a remark."""

    url: str
    date: str
    note: str = ""


RECIPE = Source("https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml", "2026-08-20")
RECIPE_HARDWARE = RECIPE._replace(note="GPUs and GPU memory of a node as the recipes calculate with them")
RECIPE_DP = Source("https://github.com/vllm-project/recipes/blob/main/strategies/multi_node_dep.yaml", "2026-08-20")
OPEN_MODULES = Source("https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules/", "2024-07-17")
CUDA_COMPAT = Source("https://docs.nvidia.com/deploy/cuda-compatibility/", "2026-11-01", "CUDA 13.x needs driver 580 or newer")
SMI = Source("https://github.com/NVIDIA/k8s-test-infra", "2026-11-01", "published nvidia-smi -q -x output")
SMI_PUBLISHED = Source("https://github.com/vllm-project/vllm/issues", "2026-11-01", "published nvidia-smi output of such hosts")
PCI_IDS = Source("https://pci-ids.ucw.cz/read/PC/10de", "2026-11-01")
PLATFORMS = Source("https://github.com/NVIDIA/deepops", "2026-11-01", "roles/nvidia-dgx: which platform runs which fabric software")
NVLINK = Source("https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/", "2026-11-01", "Hopper and Blackwell: 18 links a GPU")
HGX = Source("https://docs.nvidia.com/dgx/", "2026-11-01", "one compute HCA a GPU; some systems have more")
CDNA4 = Source("https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html", "2026-11-01", "288 GB a GPU")
OURS = Source("https://github.com/vllm-project/recipes", "2026-08-20", "not in the recipe: it serves to try the collection without GPUs")

Sources = Mapping[str, Source]


# -- models ---------------------------------------------------------------------------------
class Variant(NamedTuple):
    """One set of weights of a model.

    Attributes:
        model: id on the Hugging Face hub.
        weights_gb: GPU memory that the weights take in all, GB.
        families: hardware families that can run it, empty for all.
    """

    name: str
    model: str
    weights_gb: float
    families: Tuple[str, ...]
    sources: Sources


class Feature(NamedTuple):
    """A word of ``vllm_features``.

    Attributes:
        default: on when ``vllm_features`` is left out.
        strategies: strategies it works with, empty for all.
        not_with: strategies it does not work with.
    """

    name: str
    default: bool
    strategies: Tuple[str, ...]
    not_with: Tuple[str, ...]
    sources: Sources


class Model(NamedTuple):
    """A model profile.

    Attributes:
        images: vendor (``nvidia``, ``amd``) → image name; identity is the digest behind it.
        image_cuda_major: CUDA major version inside the NVIDIA image.
        image_nccl: NCCL version that the NVIDIA image ships, as far as it is published.
        driver_min: lowest NVIDIA driver, as a tuple of ints.
        vllm_min: lowest vLLM version, as a tuple of ints.
        context: tokens of context at most.
        memory_share: share of the GPU memory that vLLM may use unless hardware or strategy say otherwise.
        strategies: names of the strategies that the recipe offers for it.
    """

    name: str
    title: str
    variants: Mapping[str, Variant]
    images: Mapping[str, str]
    image_cuda_major: int
    image_nccl: str
    driver_min: Tuple[int, ...]
    vllm_min: Tuple[int, ...]
    context: int
    memory_share: float
    strategies: Tuple[str, ...]
    features: Mapping[str, Feature]
    sources: Sources


# -- hardware -------------------------------------------------------------------------------
class Hardware(NamedTuple):
    """A kind of node.

    Attributes:
        vendor: ``nvidia``, ``amd`` or ``cpu``.
        family: ``hopper``, ``blackwell``, ``cdna4`` or ``cpu``.
        arch: architecture of the host, as ``uname -m`` says it, empty when either will do.
        gpus: GPUs of a node.
        memory_gb: published GPU memory of a node, GB.
        memory_mib: memory of one GPU as nvidia-smi shows it, MiB; 0 where that tool does not exist.
        names: regular expressions of which one matches the product name.
        pci: PCI device ids of vendor 10de.
        open_modules: the GPU runs with the open kernel modules only.
        nvlink_links: NVLink links of one GPU.
        fabric: what joins the GPUs: ``nvswitch`` (up to NVLink 4), ``nvlink5`` (HGX with nvlsm),
            ``mnnvl`` (NVL72: the domain spans nodes, IMEX), ``none``.
        hcas: usual number of compute HCAs of a node.
        memory_share: share of the GPU memory that vLLM may use, 0 to leave it to strategy and model.
        min_gpus: lowest number of GPUs of an engine on this hardware, whatever the strategy.
    """

    name: str
    title: str
    vendor: str
    family: str
    arch: str
    gpus: int
    memory_gb: float
    memory_mib: int
    names: Tuple[str, ...]
    pci: Tuple[str, ...]
    open_modules: bool
    nvlink_links: int
    fabric: str
    hcas: int
    memory_share: float
    min_gpus: int
    sources: Sources


def _nvidia(memory_mib: Source) -> Sources:
    """Sources of an NVIDIA row; only the origin of the MiB figure differs."""
    return {
        "*": RECIPE_HARDWARE, "memory_mib": memory_mib, "names": memory_mib, "pci": PCI_IDS, "open_modules": OPEN_MODULES,
        "nvlink_links": NVLINK, "fabric": PLATFORMS, "hcas": HGX,
    }


HARDWARE: Dict[str, Hardware] = {
    row.name: row for row in (
        Hardware("h100", "HGX H100 80GB", "nvidia", "hopper", "x86_64", 8, 640.0, 81559,
                 (r"\bH100\b(?!.*(?:NVL|PCIe))",), ("0x2330",), False, 18, "nvswitch", 8, 0.97, 32, _nvidia(SMI)),
        Hardware("h200", "HGX H200", "nvidia", "hopper", "x86_64", 8, 1128.0, 143771,
                 (r"\bH200\b(?!.*NVL)",), ("0x2335",), False, 18, "nvswitch", 8, 0.97, 0, _nvidia(SMI_PUBLISHED)),
        Hardware("b200", "HGX B200", "nvidia", "blackwell", "x86_64", 8, 1440.0, 183359,
                 (r"\bB200\b",), ("0x2901",), True, 18, "nvlink5", 8, 0.0, 0, _nvidia(SMI)),
        Hardware("b300", "HGX B300", "nvidia", "blackwell", "x86_64", 8, 2144.0, 275040,
                 (r"\bB300\b",), ("0x3182",), True, 18, "nvlink5", 8, 0.0, 0, _nvidia(SMI_PUBLISHED)),
        Hardware("gb200", "GB200 NVL72 tray", "nvidia", "blackwell", "aarch64", 4, 768.0, 189471,
                 (r"\bGB200\b",), ("0x2941",), True, 18, "mnnvl", 4, 0.0, 0, _nvidia(SMI)),
        Hardware("gb300", "GB300 NVL72 tray", "nvidia", "blackwell", "aarch64", 4, 1152.0, 284208,
                 (r"\bGB300\b",), ("0x31c2",), True, 18, "mnnvl", 4, 0.0, 0, _nvidia(SMI)),
        Hardware("mi355x", "AMD Instinct MI355X", "amd", "cdna4", "x86_64", 8, 2304.0, 0,
                 (r"\bMI355X\b",), (), False, 0, "none", 8, 0.0, 0,
                 {"*": RECIPE_HARDWARE, "memory_gb": CDNA4, "names": CDNA4, "hcas": CDNA4}),
        Hardware("cpu", "no GPU (to try the collection)", "cpu", "cpu", "", 0, 0.0, 0,
                 (), (), False, 0, "none", 0, 0.0, 0, {"*": OURS}),
    )
}


# -- strategies -----------------------------------------------------------------------------
class Strategy(NamedTuple):
    """How a model is spread over GPUs, under its recipe name.

    Attributes:
        span: ``one`` (every node is an engine), ``many`` (all nodes are one engine) or
            ``pools`` (a prefill and a decode pool, each an engine).
        min_gpus: GPUs of an engine at least; for pools, those of the prefill pool.
        min_gpus_decode: the same for the decode pool, 0 without pools.
        tensor: what tensor parallelism spans: ``node``, ``all``, ``one`` (a GPU by itself).
        pipeline: layers are cut into stages, one a node.
        data: data parallel ranks: ``""``, ``gpu`` (one a GPU) or ``node`` (one a node).
        expert: experts are spread over the GPUs.
        only_on: hardware names that support it, empty for all.
        not_on: hardware names and families that do not.
        memory_share: share of the GPU memory that vLLM may use, 0 to leave it to the model.
    """

    name: str
    title: str
    span: str
    min_gpus: int
    min_gpus_decode: int
    tensor: str
    pipeline: bool
    data: str
    expert: bool
    only_on: Tuple[str, ...]
    not_on: Tuple[str, ...]
    memory_share: float
    sources: Sources


STRATEGIES: Dict[str, Strategy] = {
    row.name: row for row in (
        Strategy("single_node_tp", "tensor parallel inside each node", "one", 8, 0, "node", False, "", False, (), (), 0.0, {"*": RECIPE}),
        Strategy("multi_node_tp", "tensor parallel over all nodes", "many", 8, 0, "all", False, "", False, (), (), 0.0, {"*": RECIPE}),
        Strategy("multi_node_tep", "tensor and expert parallel over all nodes", "many", 8, 0, "all", False, "", True,
                 (), (), 0.0, {"*": RECIPE}),
        Strategy("multi_node_tp_pp", "tensor parallel inside a node, one pipeline stage a node", "many", 16, 0, "node", True, "", False,
                 (), (), 0.90, {"*": RECIPE}),
        Strategy("multi_node_dep", "data and expert parallel over all GPUs", "many", 16, 0, "one", False, "gpu", True, (), ("hopper",), 0.0,
                 {"*": RECIPE, "data": RECIPE_DP}),
        Strategy("multi_node_tp_dp", "tensor parallel inside a node, one data parallel rank a node", "many", 16, 0, "node", False, "node",
                 False, ("h200", "gb200", "gb300"), (), 0.0, {"*": RECIPE}),
        Strategy("pd_cluster", "a prefill pool (TEP) and a decode pool (DEP)", "pools", 8, 16, "all", False, "gpu", True,
                 (), (), 0.0, {"*": RECIPE}),
    )
}

INTERCONNECTS: Tuple[str, ...] = ("nvlink", "rdma", "none")
"""What joins the nodes of one engine."""


MODELS: Dict[str, Model] = {
    "kimi_k3": Model(
        name="kimi_k3",
        title="Kimi K3",
        variants={
            "default": Variant("default", "moonshotai/Kimi-K3", 1680.0, (), {"*": RECIPE}),
            "nvfp4": Variant("nvfp4", "RedHatAI/Kimi-K3-NVFP4", 1650.0, ("blackwell",), {"*": RECIPE}),
        },
        images={"nvidia": "vllm/vllm-openai:kimi-k3", "amd": "vllm/vllm-openai-rocm:kimi-k3"},
        image_cuda_major=13,
        image_nccl="2.30.7",
        driver_min=(580,),
        vllm_min=(0, 27, 1),
        context=1048576,
        memory_share=0.95,
        strategies=tuple(STRATEGIES),
        features={
            row.name: row for row in (
                Feature("tool_calling", True, (), (), {"*": RECIPE}),
                Feature("reasoning", True, (), (), {"*": RECIPE}),
                Feature("text_only", False, (), (), {"*": RECIPE}),
                Feature("spec_decoding", False, (), ("multi_node_tp_pp",),
                        {"*": RECIPE, "not_with": Source("https://github.com/vllm-project/vllm/issues/50098", "2026-08-14")}),
                Feature("dcp", False, ("single_node_tp",), (), {"*": RECIPE}),
                Feature("prefix_caching", False, (), (), {"*": Source("https://github.com/vllm-project/vllm/issues/50235", "2026-08-20")}),
            )
        },
        sources={
            "*": RECIPE, "driver_min": CUDA_COMPAT,
            "image_nccl": Source("https://github.com/NVIDIA/nccl/issues/2167", "2026-08-20"),
        },
    ),
}

# -- questions to the tables ------------------------------------------------------------------


def hardware_of_name(product: str) -> str:
    """Key of HARDWARE for a product name such as ``NVIDIA B300 SXM6 AC``, empty when none matches."""
    for row in HARDWARE.values():
        if any(re.search(pattern, product, re.IGNORECASE) for pattern in row.names):
            return row.name
    return ""


def hardware_of_pci(device: str) -> str:
    """Key of HARDWARE for a PCI device id such as ``0x3182`` (also ``0x318210de``), empty when none matches."""
    word = device.lower()[:6]
    return next((row.name for row in HARDWARE.values() if word in row.pci), "")


def minimum_gpus(strategy: str, hardware: str, pool: str = "") -> int:
    """GPUs that an engine needs at least; `pool` is ``decode`` for the decode pool of pd_cluster."""
    row = STRATEGIES[strategy]
    floor = row.min_gpus_decode if pool == "decode" and row.min_gpus_decode else row.min_gpus
    return max(floor, HARDWARE[hardware].min_gpus) if hardware in HARDWARE else floor


def memory_share(model: str, hardware: str, strategy: str) -> float:
    """Share of the GPU memory that vLLM may use: the hardware's, else the strategy's, else the model's (later layers win)."""
    row = HARDWARE.get(hardware)
    return (row.memory_share if row else 0.0) or STRATEGIES[strategy].memory_share or MODELS[model].memory_share


def unsupported(model: str, variant: str, hardware: str, strategy: str) -> str:
    """One sentence that says why these do not go together, empty when nothing speaks against it."""
    row = HARDWARE.get(hardware)
    if row is None or row.vendor == "cpu":
        return ""
    chosen, plan = MODELS[model].variants[variant], STRATEGIES[strategy]
    if chosen.families and row.family not in chosen.families:
        return "variant %s runs on %s only, and %s is %s" % (variant, " and ".join(chosen.families), hardware, row.family)
    if plan.only_on and hardware not in plan.only_on:
        return "%s is supported on %s only, not on %s" % (strategy, ", ".join(plan.only_on), hardware)
    if hardware in plan.not_on or row.family in plan.not_on:
        return "%s is not supported on %s (%s)" % (strategy, hardware, row.family)
    return ""
