# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather the facts of one node through a reader.

Each section is a module of this package with two functions::

    def commands(options: Options) -> List[Sequence[str]]   # known beforehand: run side by side
    def collect(reader: Reader, options: Options) -> Dict[str, Any]

A section never raises for what a node answers; it puts the reason under its own ``unknown`` key.
On a live node every section runs in a child process of its own, so that one that gets stuck in a
driver costs only itself.
"""

from __future__ import annotations

import json
import time
from functools import partial
from types import ModuleType
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from . import container, driver, fabric, gpu, gpudirect, host, rdma, service, snapshot, storage
from .reader import Content, Names, Probed, Ran, Reader

SCHEMA = "inferops.vllm/node_facts/1"

SECTIONS: Dict[str, ModuleType] = {
    "host": host, "driver": driver, "gpu": gpu, "fabric": fabric, "rdma": rdma,
    "gpudirect": gpudirect, "container": container, "storage": storage, "service": service,
}
PROCESS_READERS = {"host", "gpu", "service"}
"""Sections that look at running processes."""
COSTUME = "/etc/inferops-costume.json"
"""Marker of a lab node that is dressed as other hardware."""


class Options(NamedTuple):
    """What a collection looks for.

    subset: sections to gather, in the order of SECTIONS.
    paths: folders whose file system and free space are wanted, the first one is where weights go.
    image: container image by name, empty for none.
    names: names of the peers that must resolve on this node.
    units: systemd units that serve vLLM.
    probe_container: start a short-lived container with GPUs to see whether they are visible.
    """

    subset: Tuple[str, ...] = tuple(SECTIONS)
    paths: Tuple[str, ...] = ("/var/lib/vllm",)
    image: str = ""
    names: Tuple[str, ...] = ()
    units: Tuple[str, ...] = ("vllm.service",)
    probe_container: bool = False

    def asdict(self) -> Dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self._asdict().items()}


def options_from(values: Mapping[str, Any]) -> Options:
    """Options of a recorded snapshot; fields that it does not have, or of another type, keep their default."""
    base = Options()
    fields: Dict[str, Any] = {}
    for name, default in base._asdict().items():
        value = values.get(name)
        if isinstance(default, tuple) and isinstance(value, (list, tuple)):
            fields[name] = tuple(str(item) for item in value)
        elif type(value) is type(default):
            fields[name] = value
    options = base._replace(**fields)
    return options._replace(subset=tuple(s for s in SECTIONS if s in options.subset))


def wanted_sections(subset: Sequence[str]) -> Tuple[str, ...]:
    """Resolve ``gather_subset`` words: section names, ``all``, and ``!name`` to leave one out.

    Raises:
        ValueError: for an unknown word, naming the allowed ones.
    """
    chosen: Set[str] = set()
    only_exclusions = all(word.startswith("!") for word in subset)
    if only_exclusions:
        chosen.update(SECTIONS)
    for word in subset:
        name = word.lstrip("!")
        if name != "all" and name not in SECTIONS:
            raise ValueError("gather_subset: %r is not one of all, %s (with ! in front to leave it out)" % (word, ", ".join(SECTIONS)))
        names = set(SECTIONS) if name == "all" else {name}
        chosen = chosen - names if word.startswith("!") else chosen | names
    return tuple(s for s in SECTIONS if s in chosen)


def gather(reader: Reader, options: Options, keep: bool = False) -> Dict[str, Any]:
    """All facts of a node: ``{"schema": …, "collected": …, section: …}``.

    Args:
        reader: live or recorded.
        options: what to look for.
        keep: bring everything that children read back into ``reader.memo`` (needed to record a live node).
    """
    started = time.monotonic()
    sections = {name: SECTIONS[name] for name in options.subset if name in SECTIONS}
    who = reader.probe("process")
    if PROCESS_READERS & set(sections):
        # Asked once, before the sections part ways, so that all of them speak of the same processes.
        reader.probe("processes")
    facts: Dict[str, Any] = {"schema": SCHEMA}
    commands = [list(argv) for module in sections.values() for argv in module.commands(options)]
    reader.prefetch(commands)
    if reader.live:
        gathered = _in_children(reader, sections, options, keep)
    else:
        gathered = {name: _one(module, reader, options) for name, module in sections.items()}
    marker = reader.read(COSTUME)
    value = who.value if isinstance(who.value, dict) else {}
    facts["collected"] = {
        "recorded": reader.recorded,
        "subset": list(sections),
        "timeout": reader.timeout,
        "seconds": 0.0 if reader.recorded else round(time.monotonic() - started, 2),
        "uid": value.get("uid"),
        "now": value.get("now"),
        "costume": _costume(marker),
    }
    facts.update(gathered)
    return facts


def _costume(marker: Content) -> Optional[str]:
    if marker.text is None:
        return None
    try:
        found = json.loads(marker.text)
        return str(found.get("name", "unnamed"))[:80] if isinstance(found, dict) else "unnamed"
    except ValueError:
        return "unnamed"


def _one(module: ModuleType, reader: Reader, options: Options) -> Dict[str, Any]:
    try:
        found: Dict[str, Any] = module.collect(reader, options)
        return found
    except Exception as exc:  # a fault of ours must not cost the other sections
        return {"unknown": {"all": "the collector failed: %s: %s" % (type(exc).__name__, str(exc)[:200])}}


def _in_children(reader: Reader, sections: Mapping[str, ModuleType], options: Options, keep: bool) -> Dict[str, Any]:
    known = set(reader.memo)

    def job(module: ModuleType) -> Any:
        found = _one(module, reader, options)
        if not keep:
            return [found, []]
        return [found, [[list(k), _pack(v)] for k, v in reader.memo.items() if k not in known]]

    jobs: Dict[str, Callable[[], Any]] = {name: partial(job, module) for name, module in sections.items()}
    from .children import in_children

    answers = in_children(jobs, time.monotonic() + max(reader.left() + 0.5, 1.0))
    gathered: Dict[str, Any] = {}
    for name in sections:
        value, error = answers[name]
        if error or not value:
            why = "reading it got stuck and was abandoned" if error == "timeout" else "reading it " + (error or "gave nothing")
            gathered[name] = {"unknown": {"all": why}}
            continue
        gathered[name] = value[0]
        for key, packed in value[1]:
            reader.memo[tuple(key)] = _unpack(key[0], packed)
    return gathered


_SHAPES = {"read": Content, "link": Content, "kind": Content, "names": Names, "run": Ran, "probe": Probed}


def _pack(answer: Any) -> List[Any]:
    return list(answer)


def _unpack(question: str, packed: List[Any]) -> Any:
    return _SHAPES[question](*packed)


def open_root(root: str, timeout: float = 10.0) -> Tuple[Reader, Options, Dict[str, Any]]:
    """Open a recorded node for :func:`gather`.

    Returns:
        the reader, the options it was recorded with, and the head of the snapshot.

    Raises:
        snapshot.SnapshotError: `root` is no usable snapshot.
    """
    reader, head = snapshot.open_snapshot(root, timeout)
    recorded = head.get("options")
    return reader, options_from(recorded if isinstance(recorded, dict) else {}), head
