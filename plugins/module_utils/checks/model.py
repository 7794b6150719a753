# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a check is, what it sees and what it says.

A check is a pure function from a :class:`Node` and a :class:`Context` to an :class:`Outcome`.
It reads facts only; it changes nothing and knows no role. Two kinds exist:

* ``@check(...)``: called once a node, returns one Outcome;
* ``@cluster_check(...)``: called once with all nodes, returns ``{node name: Outcome}``, where the
  name :data:`CLUSTER` stands for the cluster as a whole.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

CLUSTER = "*"
"""Node name of a finding that is about all nodes together."""

STATUSES = ("pass", "warn", "fail", "unknown", "skip")
SEVERITIES = ("block", "warn", "info")


class Outcome(NamedTuple):
    """What a check says of one node; None keeps the text of the check itself."""

    status: str
    observed: str = ""
    required: str = ""
    why: Optional[str] = None
    fix: Optional[str] = None
    read_from: Optional[str] = None
    severity: Optional[str] = None
    assumed: bool = False


def passed(observed: Any, required: Any = "", assumed: bool = False) -> Outcome:
    """All is well; `assumed` when it was concluded and not looked at."""
    return Outcome("pass", str(observed), str(required), assumed=assumed)


def failed(observed: Any, required: Any, why: Optional[str] = None, fix: Optional[str] = None,
           severity: Optional[str] = None, read_from: Optional[str] = None) -> Outcome:
    """The rule is broken. `severity` overrides that of the check."""
    return Outcome("fail", str(observed), str(required), why, fix, read_from, severity)


def warned(observed: Any, required: Any, why: Optional[str] = None, fix: Optional[str] = None,
           read_from: Optional[str] = None) -> Outcome:
    """Worth a look, never blocks."""
    return Outcome("warn", str(observed), str(required), why, fix, read_from, "warn")


def unsure(reason: Any, required: Any = "", fix: Optional[str] = None, severity: Optional[str] = None) -> Outcome:
    """It could not be looked at; `reason` says why. An unknown blocker blocks."""
    return Outcome("unknown", str(reason), str(required), fix=fix, severity=severity)


def skipped(reason: Any) -> Outcome:
    """The rule does not apply here; `reason` says why."""
    return Outcome("skip", str(reason))


class Node:
    """One node as a check sees it.

    Attributes:
        name: inventory name.
        facts: content of ``vllm_node`` (docs/FACTS.md), ``{}`` when nothing could be read.
        declared: what the inventory says: ``host_ip``, ``interface``, ``groups``, ``recorded``.
        unreachable: why nothing was read of the node, empty when something was.
        answered: the node was reached all the same, and reading it failed (no Python, a recording that is none).
    """

    __slots__ = ("answered", "declared", "facts", "name", "unreachable")

    def __init__(self, name: str, facts: Optional[Mapping[str, Any]], declared: Optional[Mapping[str, Any]] = None,
                 unreachable: str = "", answered: bool = False) -> None:
        self.name = name
        # Tables inside are dicts, for which isinstance is several times cheaper than for Mapping.
        self.facts: Mapping[str, Any] = facts if isinstance(facts, dict) else dict(facts) if isinstance(facts, Mapping) else {}
        self.declared: Mapping[str, Any] = declared if isinstance(declared, Mapping) else {}
        self.unreachable = unreachable
        self.answered = answered

    def get(self, path: str, default: Any = None) -> Any:
        """Value at a dotted path such as ``driver.loaded``; `default` when absent or null."""
        value: Any = self.facts
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
            if value is None:
                return default
        return value

    def items(self, path: str) -> List[Dict[str, Any]]:
        """List of tables at `path`, without anything in it that is not a table."""
        value = self.get(path)
        return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

    def why_unknown(self, *paths: str) -> str:
        """Why the facts at `paths` could not be read, empty when they could.

        ``why_unknown("gpu.smi", "gpu.pci")`` looks at ``gpu.unknown.smi``, ``gpu.unknown.pci`` and ``gpu.unknown.all``.
        """
        for path in paths:
            section, _dot, part = path.partition(".")
            facts = self.facts.get(section)
            if not isinstance(facts, dict):
                return "the %s facts were not gathered" % section
            unknown = facts.get("unknown")
            if isinstance(unknown, dict):
                why = unknown.get("all") or (unknown.get(part.split(".")[0]) if part else None)
                if why:
                    return str(why)
        return ""


class Context(NamedTuple):
    """What the cluster is meant to be. All names are resolved (never ``auto``).

    Attributes:
        profile: name of the model profile, ``kimi_k3``.
        variant: ``default`` or ``nvfp4``.
        hardware: key of plan.profiles.HARDWARE (``b300``), empty when it could not be told.
        strategy: recipe name, ``single_node_tp`` …
        interconnect: ``nvlink``, ``rdma`` or ``none``: what joins the nodes of one engine.
        nodes: names in rank order, all that were judged.
        needs_rdma: the plan moves data over RDMA between nodes.
        needs_mnnvl: the plan uses NVLink between nodes, so IMEX matters.
        gpus_per_node: expected number, 0 when unknown.
        gpu_memory_mib: expected memory of one GPU, 0 when unknown.
        weights_gb: GPU memory that the weights take in all, in GB (10^9).
        driver_min: lowest driver that the image's CUDA accepts, as a tuple of ints.
        image: name of the image that is planned.
        image_cuda_major: CUDA major version that the image must hold.
        open_required: the GPU demands open kernel modules.
        nvlink_links: NVLink links of one GPU, 0 where there are none.
        sources: variable → how its value came about: ``declared`` or a sentence that says what was concluded.
    """

    profile: str = "kimi_k3"
    variant: str = "default"
    hardware: str = ""
    strategy: str = "single_node_tp"
    interconnect: str = "none"
    nodes: Tuple[str, ...] = ()
    needs_rdma: bool = False
    needs_mnnvl: bool = False
    gpus_per_node: int = 0
    gpu_memory_mib: int = 0
    weights_gb: float = 0.0
    driver_min: Tuple[int, ...] = (580,)
    image: str = ""
    image_cuda_major: int = 13
    open_required: bool = False
    nvlink_links: int = 0
    sources: Mapping[str, str] = {}


class Check(NamedTuple):
    """A rule and its standing text.

    Attributes:
        id: dotted and stable, ``driver.branch``; its first part is the tag that selects it.
        severity: ``block``, ``warn`` or ``info`` when it fails.
        title: two to five words for a table heading.
        why: one sentence: what breaks when the rule is broken.
        fix: one sentence that ends in the playbook call, where one mends it.
        read_from: file or command the facts come from.
        source: URL of where the rule comes from.
    """

    id: str
    severity: str
    title: str
    why: str
    fix: str
    read_from: str
    source: str
    run: Callable[..., Any]
    cluster: bool


NodeRule = Callable[[Node, Context], Outcome]
ClusterRule = Callable[[Sequence[Node], Context], Dict[str, Outcome]]

REGISTRY: Dict[str, Check] = {}


def check(id: str, severity: str, title: str, why: str, fix: str, read_from: str, source: str) -> Callable[[NodeRule], NodeRule]:
    """Register a rule that looks at one node at a time."""

    def register(rule: NodeRule) -> NodeRule:
        _add(Check(id, severity, title, why, fix, read_from, source, rule, False))
        return rule

    return register


def cluster_check(id: str, severity: str, title: str, why: str, fix: str, read_from: str,
                  source: str) -> Callable[[ClusterRule], ClusterRule]:
    """Register a rule that compares all nodes."""

    def register(rule: ClusterRule) -> ClusterRule:
        _add(Check(id, severity, title, why, fix, read_from, source, rule, True))
        return rule

    return register


def _add(new: Check) -> None:
    if new.id in REGISTRY:
        raise ValueError("two checks are called %s" % new.id)
    if new.severity not in SEVERITIES:
        raise ValueError("%s: severity %r is not one of %s" % (new.id, new.severity, ", ".join(SEVERITIES)))
    REGISTRY[new.id] = new


Finding = Dict[str, Any]
OBSERVED_MAX = 300
"""Characters of what was observed or required that a finding keeps; a check stays far below."""


def _line(text: str) -> str:
    """One line without control characters, at most OBSERVED_MAX long: facts may hold anything."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text[:OBSERVED_MAX + 1])
    return text if len(text) <= OBSERVED_MAX else text[:OBSERVED_MAX - 1] + "…"


LOOK_AGAIN = "Clear that reason, then look again: `ansible-playbook inferops.vllm.preflight --limit NODE`."
"""What mends an unknown; the standing fix of a check mends a failure, and nobody knows yet that there is one."""


def finding(rule: Check, node: str, outcome: Outcome) -> Finding:
    """A judged fact, in the form that reports, schemas and playbooks use."""
    bad = outcome.status in ("fail", "warn", "unknown")
    made: Finding = {
        "id": rule.id,
        "node": node,
        "status": outcome.status,
        "severity": outcome.severity or rule.severity,
        "observed": _line(outcome.observed),
        "required": _line(outcome.required),
        "read_from": outcome.read_from or rule.read_from,
        "why": (outcome.why or rule.why) if bad else "",
        "fix": (outcome.fix or (LOOK_AGAIN if outcome.status == "unknown" else rule.fix)) if bad else "",
        "source": rule.source,
    }
    if outcome.assumed:
        made["assumed"] = True
    return made
