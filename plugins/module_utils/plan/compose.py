# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one node runs: layers of flags and variables, its container, its ports, and the reason of each."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..checks.model import Context, Node
from ..checks.wording import listed
from . import recipe, versions
from .flags import VERSION as FLAGS_VERSION
from .flags import render
from .network import Fallback, Place, hcas, host_port
from .notes import Notes
from .profiles import MODELS, STRATEGIES, Hardware
from .recipe import Layer
from .words import Words

ROUTER_VENV = "/opt/vllm-router"
"""Virtual environment of a router without an image."""


class Engine(NamedTuple):
    """Nodes that serve as one: `pool` is ``""``, ``prefill`` or ``decode``; nodes stand in rank order."""

    name: str
    pool: str
    nodes: Tuple[Node, ...]


class Draft:
    """Flags and variables of one node while layers are laid on each other, and the reason of each."""

    def __init__(self) -> None:
        self.flags: Dict[str, Any] = {}
        self.env: Dict[str, str] = {}
        self.why: Dict[str, Tuple[str, str]] = {}
        self.notes: List[Dict[str, str]] = []

    def lay(self, layer: Layer) -> None:
        why = layer.why or "as in the recipe"
        for name, value in layer.flags:
            self.flag(name, value, layer.name, why)
        for name, text in layer.env:
            self.set(name, text, layer.name, why)

    def flag(self, name: str, value: Any, layer: str, why: str) -> None:
        self.flags.pop(name, None)
        self.flags[name] = value
        self.why[name] = (layer, why)

    def set(self, name: str, value: str, layer: str, why: str) -> None:
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
            layer, why = self.why[name]
            made.append({"what": " ".join(render(name, value)), "layer": layer, "why": why})
        for name, text in self.env.items():
            layer, why = self.why[name]
            made.append({"what": "%s=%s" % (name, text), "layer": layer, "why": why})
        return made + self.notes


class Composer:
    """Composes the entries of a plan's nodes; refusals, warnings and assumptions go to `notes`."""

    def __init__(self, context: Context, words: Words, row: Hardware, version: versions.Version, image: str, places: Mapping[str, Place],
                 notes: Notes) -> None:
        self.context = context
        self.words = words
        self.row = row
        self.version = version
        self.image = image
        self.places = places
        self.notes = notes
        self.strategy = STRATEGIES[context.strategy]
        self.model = MODELS[context.profile]
        self.model_name = words.model or self.model.variants[context.variant].model
        self.nvidia = row.vendor == "nvidia"
        self.gpus = row.gpus or 1

    def node(self, engine: Engine, rank: int, node: Node, dmabuf: Optional[Fallback]) -> Dict[str, Any]:
        """The entry of the node that has `rank` in `engine`, in the form of docs/PLAN.md; `dmabuf` is None without RDMA."""
        draft = Draft()
        where = self.places[node.name]
        pool = engine.pool
        self._recipe(draft, engine, rank)
        headless = draft.flags.get("--headless") is True
        self._between(draft, engine, node, dmabuf)
        self._own(draft, engine, node, headless)
        self._spelling(draft)
        self._user(draft)
        self._spelling(draft)
        self._sound(draft, engine, node)
        ports = self._ports(draft, pool, headless)
        if len(engine.nodes) > 1:
            ports["link"] = self.words.link
        url = "" if headless else "http://%s/health" % host_port(where.listen, ports["api"])
        role = pool or ("head" if rank == 0 else "worker")
        argv = ["vllm", "serve", self.model_name]
        for name, value in draft.flags.items():
            argv += render(name, value)
        return {
            "role": role, "rank": rank, "engine": engine.name, "argv": argv, "env": dict(draft.env),
            "image": "" if self.words.runtime == "venv" else self.image, "container": self._container(draft, engine, node),
            "container_engine": self.words.container, "runtime": self.words.runtime, "venv": self.words.venv if self.words.runtime == "venv" else "",
            "version": versions.word(self.version), "ports": ports, "address": where.address, "link": self._link(engine, rank),
            "health_url": url or None, "stop_seconds": self.words.shutdown + 30, "reasons": draft.reasons(),
        }

    def _link(self, engine: Engine, rank: int) -> Optional[Dict[str, Any]]:
        """What the link agent of this rank needs to know of the others; None for an engine on one node, which needs none."""
        if len(engine.nodes) < 2:
            return None
        return {"engine": engine.name, "rank": rank, "port": self.words.link, "addresses": [self.places[node.name].address for node in engine.nodes],
                "names": [node.name for node in engine.nodes]}

    def _recipe(self, draft: Draft, engine: Engine, rank: int) -> None:
        """The layers of the public recipe, in its order."""
        key = (self.context.strategy, engine.pool)
        family = self.row.family
        draft.lay(recipe.BASE)
        draft.lay(recipe.STRATEGY.get(key, recipe.NOTHING))
        self._parallel(draft, engine, rank)
        draft.lay(recipe.STRATEGY_OVERRIDE.get(key, recipe.NOTHING))
        if len(engine.nodes) * self.gpus == 1:
            draft.drop("--data-parallel-hybrid-lb", "own", "left out: vLLM refuses it for a single rank")
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

    def _parallel(self, draft: Draft, engine: Engine, rank: int) -> None:
        count, gpus, layer = len(engine.nodes), self.gpus, "strategy %s" % self.context.strategy
        strategy, pool = self.strategy, engine.pool
        head = self.places[engine.nodes[0].name].address
        total = "%d nodes × %d GPUs = %d" % (count, gpus, count * gpus)

        def multi(tensor: int, why: str) -> None:
            draft.flag("--tensor-parallel-size", str(tensor), layer, why)
            if strategy.pipeline:
                draft.flag("--pipeline-parallel-size", str(count), layer, "one stage a node")
            if count > 1:
                draft.flag("--nnodes", str(count), layer, "nodes of the engine")
                draft.flag("--node-rank", str(rank), layer, "the head has 0")
                draft.flag("--master-addr", head, layer, "address of %s, the head" % engine.nodes[0].name)
                if rank:
                    draft.flag("--headless", True, layer, "a worker serves no API")

        # A model that is tried on CPUs is small and has no experts, which vLLM refuses to spread.
        if strategy.expert and self.context.hardware != "cpu":
            draft.flag("--enable-expert-parallel", True, layer, "experts are spread over the GPUs")
        if pool == "decode":
            draft.flag("--tensor-parallel-size", "1", layer, "a data parallel rank is one GPU")
        if (pool == "decode" and count * gpus > 1) or strategy.name == "multi_node_dep":
            draft.flag("--data-parallel-hybrid-lb", True, layer, "every node serves an API for its own ranks")
            draft.flag("--data-parallel-size", str(count * gpus), layer, total)
            draft.flag("--data-parallel-size-local", str(gpus), layer, "GPUs of a node")
            draft.flag("--data-parallel-address", head, layer, "address of %s, the head" % engine.nodes[0].name)
            if pool or rank:
                draft.flag("--data-parallel-start-rank", str(rank * gpus), layer, "rank %d × %d GPUs" % (rank, gpus))
            if pool:
                draft.flag("--data-parallel-rpc-port", str(recipe.PORTS["dp_rpc"]), layer, "where the ranks of the pool meet")
        elif strategy.data == "node" and not pool:
            draft.flag("--tensor-parallel-size", str(gpus), layer, "inside a node")
            draft.flag("--data-parallel-size", str(count), layer, "one rank a node")
            draft.flag("--data-parallel-size-local", "1", layer, "one rank a node")
            draft.flag("--data-parallel-address", head, layer, "address of %s, the head" % engine.nodes[0].name)
            if rank:
                draft.flag("--data-parallel-start-rank", str(rank), layer, "one rank a node")
                draft.flag("--headless", True, "own", "the recipe leaves it out, and then the head ends: a remote engine must be headless")
        elif strategy.tensor == "all":
            multi(count * gpus, total)
        else:
            multi(gpus, "GPUs of a node")
        if pool == "decode":
            draft.set("VLLM_NIXL_SIDE_CHANNEL_PORT", str(recipe.PORTS["side_channel_decode"]), layer, "as in the recipe")
            draft.set("VLLM_NIXL_SIDE_CHANNEL_HOST", self.places[engine.nodes[rank].name].address, layer, "the node's own address")
        elif pool == "prefill":
            draft.set("VLLM_NIXL_SIDE_CHANNEL_PORT", str(recipe.PORTS["side_channel_prefill"]), layer, "as in the recipe")
            draft.set("VLLM_NIXL_SIDE_CHANNEL_HOST", self.places[engine.nodes[rank].name].address, layer, "the node's own address")

    def _between(self, draft: Draft, engine: Engine, node: Node, dmabuf: Optional[Fallback]) -> None:
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
                    self.notes.warn("dma-buf was refused on %s, and UCX, which moves the KV cache, has no plan for it; watch the first transfer" % (
                        listed(dmabuf.needed, 3)))
            self._hca_list(draft, node)

    def _hca_list(self, draft: Draft, node: Node) -> None:
        found = hcas(node, self.context, recipe.HCAS_MOST)
        if found.nccl:
            left = "; not %s" % listed(("%s (%s)" % item for item in found.left_out.items()), 6) if found.left_out else ""
            draft.set("NCCL_IB_HCA", found.nccl, "interconnect rdma", "%d compute HCAs with an active port, by exact name%s" % (found.usable, left))
            if found.usable < self.row.hcas:
                self.notes.warn("%s has %d usable compute HCAs, and %s usually has %d" % (node.name, found.usable, self.row.name, self.row.hcas))
        elif node.items("rdma.hcas"):
            self.notes.refuse("%s has no compute HCA for RDMA: %s" % (node.name, found.why), "vllm_interconnect: rdma", "HCAs of %s: %s" % (
                node.name, listed(("%s %s" % item for item in found.left_out.items()), 8)))
        else:
            self.notes.assume("the HCAs of %s are not known, so NCCL chooses them itself; plan with the nodes answering for an exact list", node.name)

    def _own(self, draft: Draft, engine: Engine, node: Node, headless: bool) -> None:
        """What the collection adds so that the service is sound on its own."""
        where = self.places[node.name]
        if self.words.revision:
            draft.flag("--revision", self.words.revision, "own", "vllm_revision")
        if self.words.model:
            draft.flag("--served-model-name", self.model.variants[self.context.variant].model, "own", "clients ask for the profile's name")
        if not headless:
            draft.flag("--host", where.listen, "own", "listens on the declared address only")
            port = {"prefill": recipe.PORTS["prefill"], "decode": recipe.PORTS["decode"]}.get(engine.pool, self.words.port)
            draft.flag("--port", str(port), "strategy pd_cluster" if engine.pool else "own", "as in the recipe" if engine.pool else "vllm_port")
            draft.flag("--shutdown-timeout", str(self.words.shutdown), "own", "a stop lets running requests end")
        if self.context.hardware != "cpu" and "VLLM_ENGINE_READY_TIMEOUT_S" not in draft.env:
            draft.set("VLLM_ENGINE_READY_TIMEOUT_S", str(recipe.READY_S), "own", "loading the weights takes longer than the default of 600 s")
        draft.set("HF_HOME", self.words.weights_path, "own", "the weights stand in vllm_weights_path")
        draft.note("API key", "own", "never in argv: VLLM_API_KEY belongs in an environment file of mode 0600")

    def _user(self, draft: Draft) -> None:
        for name, value in self.words.flags.items():
            if value is None:
                draft.drop(name, "vllm_overrides", "taken out")
            else:
                draft.flag(name, value, "vllm_overrides", "asked for")
        for name, value in self.words.env.items():
            if value is None:
                draft.drop(name, "vllm_env_overrides", "taken out")
            else:
                draft.set(name, value, "vllm_env_overrides", "asked for")
        if "--enable-prefix-caching" not in draft.flags:
            state = versions.default("--enable-prefix-caching", self.version)
            draft.flag("--enable-prefix-caching", bool(state), "own", "always stated: vLLM %s has it %s by default" % (
                versions.word(self.version), "on" if state else "off"))
        if self.words.flags and not versions.has(self.version, versions.parse(FLAGS_VERSION)[:2]):
            self.notes.assume("names and values of vllm_overrides were checked against vLLM %s; the plan is for %s" % (
                FLAGS_VERSION, versions.word(self.version)))

    def _spelling(self, draft: Draft) -> None:
        """Names and values as the planned version takes them."""
        for moved in versions.move(draft.flags, draft.env, self.version):
            draft.why.setdefault(moved.new, draft.why.get(moved.old, ("version", moved.why)))
            draft.note("%s → %s" % (moved.old, moved.new or "nothing"), "version", moved.why)

    def _sound(self, draft: Draft, engine: Engine, node: Node) -> None:
        """Combinations that vLLM refuses or dies of, whoever asked for them."""
        flags, env = draft.flags, draft.env
        tensor = _number(flags.get("--tensor-parallel-size"), 1)
        dcp = _number(flags.get("--decode-context-parallel-size"), 1)
        if dcp > 1 and tensor % dcp:
            self.notes.refuse("decode context parallelism of %d does not divide the tensor parallel size: %d / %d = %.2f" % (dcp, tensor, dcp, tensor / dcp),
                              "--tensor-parallel-size %d" % tensor, "--decode-context-parallel-size %d" % dcp)
        pipeline = _number(flags.get("--pipeline-parallel-size"), 1)
        if pipeline > 1 and "dspark" in str(flags.get("--speculative-config", "")) + str(flags.get("--spec-method", "")):
            self.notes.refuse("DSpark does not work with pipeline parallelism", "--pipeline-parallel-size %d" % pipeline, "speculative method dspark")
        interval = flags.get("--prefix-cache-retention-interval", env.get("VLLM_PREFIX_CACHE_RETENTION_INTERVAL"))
        block = _number(flags.get("--block-size"), recipe.BLOCK_TOKENS)
        if interval is not None and not self.words.model:
            value = _number(interval, -1)
            if value < 0 or (block > 0 and value % block):
                self.notes.refuse("a prefix cache retention interval of %s is not 0 or a multiple of the %d tokens of a block" % (interval, block),
                                  "retention interval: %s" % interval,
                                  "block: %d tokens; %s / %d = %.2f" % (block, interval, block, value / block if block else 0))
        if flags.get("--moe-backend") == recipe.MEGA_MOE:
            if self.context.needs_rdma:
                self.notes.refuse("%s does not work between nodes over RDMA" % recipe.MEGA_MOE, "--moe-backend %s" % recipe.MEGA_MOE, "vllm_interconnect: rdma")
            if tensor >= recipe.MEGA_MOE_TP:
                self.notes.warn("%s was seen to crash with a tensor parallel size of %d and more (vllm#51124); this plan has %d" % (
                    recipe.MEGA_MOE, recipe.MEGA_MOE_TP, tensor))
        # Every connector: https://github.com/vllm-project/vllm/pull/40812 (2026-11-29).
        if "--kv-transfer-config" in flags and "expandable_segments:True" in env.get("PYTORCH_CUDA_ALLOC_CONF", ""):
            if flags.get("--enable-cumem-allocator") is not True:
                self.notes.refuse("vLLM refuses a KV connector with expandable_segments:True", "--kv-transfer-config", "PYTORCH_CUDA_ALLOC_CONF=%s" % env[
                    "PYTORCH_CUDA_ALLOC_CONF"])

    def _ports(self, draft: Draft, pool: str, headless: bool) -> Dict[str, int]:
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

    def _container(self, draft: Draft, engine: Engine, node: Node) -> List[str]:
        if self.words.runtime == "venv":
            draft.note("no container", "own", "vllm_runtime: venv runs %s/bin/vllm of the host" % self.words.venv)
            return []
        made = list(recipe.CONTAINER_BASE)
        kind = self.row.vendor
        if kind != "cpu":
            # A machine for tests may be held to a lower limit, which the container could not raise.
            made += recipe.CONTAINER_FILES
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

    def router(self, node: Node, engines: Sequence[Engine]) -> Dict[str, Any]:
        """The entry of the router in front of the pools."""
        where = self.places[node.name]
        argv = ["vllm-router", "--policy", "round_robin", "--vllm-pd-disaggregation"]
        for engine in engines:
            port = recipe.PORTS[engine.pool]
            # Workers of the prefill pool are headless; every node of the decode pool serves its own ranks.
            serving = engine.nodes[:1] if engine.pool == "prefill" else engine.nodes
            for server in serving:
                argv += ["--" + engine.pool, "http://%s" % host_port(self.places[server.name].listen, port)]
        argv += ["--host", where.listen, "--port", str(recipe.PORTS["router"]), "--intra-node-data-parallel-size", "1",
                 "--worker-startup-timeout-secs", str(recipe.READY_S)]
        if not self.words.router_image:
            self.notes.assume("%s: the router runs from a virtual environment (pip install vllm-router); set vllm_router_image for a container"
                              % node.name)
        self.notes.warn("%s: the router asks clients for no key and sends its own to the pools, so whoever reaches port %d is served: keep it on a private "
                        "network, or put a proxy that asks in front" % (node.name, recipe.PORTS["router"]))
        return {
            "role": "router", "rank": 0, "engine": "router", "argv": argv, "env": {}, "image": self.words.router_image,
            "container": ["--network", "host"] if self.words.router_image else [], "container_engine": self.words.container,
            "runtime": "container" if self.words.router_image else "venv", "venv": "" if self.words.router_image else ROUTER_VENV, "version": "",
            "link": None,
            "ports": {"api": recipe.PORTS["router"]}, "address": where.address,
            "health_url": "http://%s/health" % host_port(where.listen, recipe.PORTS["router"]), "stop_seconds": 30,
            "reasons": [{"what": "vllm-router", "layer": "strategy pd_cluster", "why": "one address for clients in front of both pools"}],
        }


def _spans(engine: Engine) -> bool:
    """Something moves between this engine's nodes, or between its pool and the other."""
    return len(engine.nodes) > 1 or bool(engine.pool)


def _number(value: Any, otherwise: int) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.lstrip("-").isdigit() and len(text) < 10 else otherwise
