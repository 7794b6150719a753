# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel modules loaded or unloaded now, and after every boot."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..node.gpudirect import parse_modinfo, why_not
from ..packages.model import Ran, Run
from .conf import HEADER, LOAD_FOLDERS, MODPROBE_FOLDERS, blocked, loads
from .explain import Reason, loading, plain, telling, unloading

LIMIT = 120
PEER_SYMBOL = "ib_register_peer_memory_client"
FALLBACK = "NCCL_DMABUF_ENABLE"
"""With 0, GPU memory is reached through nvidia_peermem alone."""
SETTINGS = "/etc/vllm"
"""Where the environment files of services are."""
OWN_LOAD = "/etc/modules-load.d/inferops-vllm-%s.conf"
OWN_BLOCK = "/etc/modprobe.d/inferops-vllm-%s.conf"


class Node(NamedTuple):
    """The machine; `write` with None removes the file."""

    run: Run
    read: Callable[[str], Optional[str]]
    names: Callable[[str], List[str]]
    write: Callable[[str, Optional[str]], None]


class Outcome(NamedTuple):
    """What happened to one module; `failed` is empty when it is as it should be."""

    changed: bool
    failed: Optional[Reason]
    loaded: bool
    before: List[str]
    after: List[str]


def is_loaded(node: Node, name: str) -> bool:
    """Loaded, or part of the kernel."""
    return plain(name) in node.names("/sys/module")


def loaded_by(node: Node, name: str) -> List[str]:
    """Files that load the module at boot."""
    return _files(node, LOAD_FOLDERS, lambda text: plain(name) in loads(text), ("/etc/modules",))


def blocked_by(node: Node, name: str) -> List[str]:
    """Files that keep the module from loading."""
    return _files(node, MODPROBE_FOLDERS, lambda text: plain(name) in blocked(text))


def fallback_refused(env: Mapping[str, str], modules: Sequence[str]) -> str:
    """Why the environment of a service must not be written, empty when it may; `modules` are those that are loaded."""
    if env.get(FALLBACK, "").strip() != "0" or "nvidia_peermem" in modules:
        return ""
    return "%s=0 is not allowed: nvidia_peermem, through which alone GPU memory is reached then, is not loaded on this node; load it (role rdma)" % FALLBACK


def _needed(node: Node) -> List[str]:
    """Environment files of services that reach GPU memory through nvidia_peermem alone."""
    wanted = re.compile(r"(?m)^%s=[\"']?\s*0\s*[\"']?\s*$" % FALLBACK)
    paths = ["%s/%s" % (SETTINGS, name) for name in node.names(SETTINGS) if name.endswith(".env")]
    return [path for path in paths if wanted.search(node.read(path) or "")]


def _files(node: Node, folders: Sequence[str], wanted: Callable[[str], bool], more: Sequence[str] = ()) -> List[str]:
    paths = list(more) + ["%s/%s" % (folder, name) for folder in folders for name in node.names(folder) if name.endswith(".conf")]
    return [path for path in paths if wanted(node.read(path) or "")]


def present(node: Node, name: str, persistent: bool, load: bool, check: bool) -> Outcome:
    """Load the module and have it loaded at boot."""
    module = plain(name)
    there = is_loaded(node, module)
    files = loaded_by(node, module)
    stops = blocked_by(node, module)
    before = (["%s loaded" % module] if there else []) + ["%s loads %s" % (path, module) for path in files]
    after = list(before)
    if stops and ((load and not there) or (persistent and not files)):
        own = OWN_BLOCK % module
        foreign = [path for path in stops if path != own]
        if foreign:
            why = Reason("blocked", "%s keeps %s from loading" % (", ".join(foreign), module), "take it out of there", [])
            return Outcome(False, why, there, before, before)
        if not check:
            node.write(own, None)
        before.append("%s blocks %s" % (own, module))
    changed = bool(len(before) > len(after))
    if load and not there:
        failed = _expected(node, module) if check else _load(node, module)
        if failed:
            return Outcome(changed, failed, False, before, before)
        changed, there = True, True
        after.append("%s loaded" % module)
    if persistent and not files:
        changed = True
        after.append("%s loads %s" % (OWN_LOAD % module, module))
        if not check:
            node.write(OWN_LOAD % module, HEADER + module + "\n")
    return Outcome(changed, None, there, before, after)


def absent(node: Node, name: str, block: bool, check: bool) -> Outcome:
    """Unload the module, load it at no boot, and with `block` keep it from loading."""
    module = plain(name)
    there = is_loaded(node, module)
    files = loaded_by(node, module)
    stops = blocked_by(node, module)
    own = OWN_LOAD % module
    before = (["%s loaded" % module] if there else []) + ["%s loads %s" % (path, module) for path in files] + [
        "%s blocks %s" % (path, module) for path in stops]
    foreign = [path for path in files if path != own]
    needed = _needed(node) if block and module == "nvidia_peermem" else []
    if needed:
        return Outcome(False, Reason("needed", "%s sets %s=0, which needs nvidia_peermem" % (", ".join(needed), FALLBACK),
                                     "deploy the service without it first, or leave rdma_peermem at auto", []), there, before, before)
    if foreign and not block:
        return Outcome(False, Reason("persisted", "%s loads %s at every boot" % (", ".join(foreign), module), "take it out of there", []),
                       there, before, before)
    after = [line for line in before if not line.endswith("loaded") and not line.startswith(own)]
    if there and not check:
        ran = node.run(["modprobe", "-r", module], LIMIT)
        if ran.rc:
            return Outcome(False, _stays(node, module, ran), True, before, before)
    elif there:
        users = node.names("/sys/module/%s/holders" % module)
        references = (node.read("/sys/module/%s/refcnt" % module) or "0").strip()
        if users or references not in ("", "0"):
            return Outcome(False, _stays(node, module, Ran(1, "")), True, before, before)
    if own in files and not check:
        node.write(own, None)
    if block and not stops:
        after.append("%s blocks %s" % (OWN_BLOCK % module, module))
        if not check:
            node.write(OWN_BLOCK % module, HEADER + "blacklist %s\ninstall %s /bin/false\n" % (module, module))
    return Outcome(before != after, None, False, before, after)


def _stays(node: Node, module: str, ran: Ran) -> Reason:
    count = (node.read("/sys/module/%s/refcnt" % module) or "0").strip()
    return unloading(module, ran.text, node.names("/sys/module/%s/holders" % module), int(count) if count.isdigit() else 0, [])


def _kernel(node: Node) -> str:
    return (node.read("/proc/sys/kernel/osrelease") or "").strip()


def _load(node: Node, module: str) -> Optional[Reason]:
    before = set(node.run(["dmesg"], 30).out.splitlines())
    ran = node.run(["modprobe", module], LIMIT)
    if ran.rc == 0:
        return None
    # Refusals of earlier tries stand there, too, in the same words but for their times.
    fresh = [line for line in node.run(["dmesg"], 30).out.splitlines() if line not in before]
    return loading(module, ran.text, telling("\n".join(fresh), module), _kernel(node))


def _expected(node: Node, module: str) -> Optional[Reason]:
    """What would keep the module from loading, as far as that can be seen without trying."""
    ran = node.run(["modprobe", "-n", module], 30)
    if ran.rc:
        return loading(module, ran.text, [], _kernel(node))
    if module != "nvidia_peermem":
        return None
    info = node.run(["modinfo", module], 30)
    facts: Dict[str, Any] = {"present": info.rc == 0, "legacy_loaded": is_loaded(node, "nv_peer_mem"), "log": [], "ib_symbol": _peer_symbol(node)}
    why = why_not(facts, parse_modinfo(info.out))
    return Reason("expected", why, "", []) if why else None


def _peer_symbol(node: Node) -> Optional[bool]:
    """Whether the RDMA core has the peer memory interface: the one that is loaded, or, where none is, one that would be. None: not known."""
    loaded = node.run(["grep", "-m1", "-wE", PEER_SYMBOL, "/proc/kallsyms"], 30)
    if loaded.rc == 0 or is_loaded(node, "ib_core"):
        return {0: True, 1: False}.get(loaded.rc)
    on_disk = node.run(["grep", "-m1", "-w", "symbol:" + PEER_SYMBOL, "/lib/modules/%s/modules.symbols" % _kernel(node)], 30)
    return {0: True, 1: False}.get(on_disk.rc)


def summary(outcomes: Sequence[Tuple[str, Outcome]]) -> Dict[str, Any]:
    """Result of a module call over several kernel modules."""
    failed = [(name, one.failed) for name, one in outcomes if one.failed]
    return {
        "changed": any(one.changed for _name, one in outcomes),
        "loaded": [plain(name) for name, one in outcomes if one.loaded],
        "failed_modules": [
            {"name": plain(name), "kind": why.kind, "why": why.why, "fix": why.fix, "log": why.lines} for name, why in failed],
        "diff": {
            "before": "".join(line + "\n" for _name, one in outcomes for line in one.before),
            "after": "".join(line + "\n" for _name, one in outcomes for line in one.after),
        },
    }
