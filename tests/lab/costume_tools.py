# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs and daemons of a dressed node that act on its state: modprobe, rmmod, dkms, nvidia-ctk, Fabric Manager, …"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

from ansible_collections.inferops.vllm.plugins.module_utils.node import fabric, smi
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Ran

from .costume_node import BASE, Node
from .costume_state import DRIVER_MODULES, clothes, installed, load, query, spec_of, unload


def command(node: Node, name: str, arguments: list[str]) -> int:
    """A program that acts on the costume; returns its exit code."""
    if name in ("modprobe", "rmmod"):
        return _module_tool(node, name, arguments)
    if name == "lsmod":
        rows = [line.split() for line in str(clothes(node.state, node.kernel).files["/proc/modules"]).splitlines()]
        print("Module                  Size  Used by")
        for row in rows:
            print("%-19s %8s  %s %s" % (row[0], row[1], row[2], row[3].strip("-,")))
        return 0
    if name == "modinfo":
        return _modinfo(node, arguments)
    if name == "dkms":
        return _dkms(node, arguments)
    if name == "nvidia-ctk" and arguments[:2] == ["cdi", "generate"]:
        return _cdi_generate(node, arguments)
    if name == "nvidia-smi":
        return _smi(node, arguments)
    return _real(name, arguments)


def _real(name: str, arguments: list[str]) -> int:
    for folder in ("/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            os.execv(path, [name, *arguments])
    print("%s: command not found" % name, file=sys.stderr)
    return 127


def _module_tool(node: Node, name: str, arguments: list[str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    flags = {word for word in arguments if word.startswith("-")}
    away = name == "rmmod" or bool(flags & {"-r", "--remove"})
    every = away or bool(flags & {"-a", "--all"})
    wanted = [word.replace("-", "_") for word in (words if every else words[:1])]
    known = set(DRIVER_MODULES) | {line.split(" ")[0] for line in str(clothes(node.state, node.kernel).files["/proc/modules"]).splitlines()}
    if node.state["kind"] != "container" or not wanted or not set(wanted) <= known or flags & {"-c", "--showconfig", "--show-depends", "-D"}:
        return _real(name, arguments)
    if flags & {"-n", "--dry-run", "--show"}:
        return 0
    for module in wanted:
        if module not in DRIVER_MODULES:
            continue
        if away and name == "rmmod" and module not in node.state["modules"]:
            print("rmmod: ERROR: Module %s is not currently loaded" % module, file=sys.stderr)
            return 1
        node.state, code, text = unload(node.state, module, _held()) if away else load(node.state, module)
        node.render()
        if code:
            if not flags & {"-q", "--quiet"}:
                sys.stderr.write(text.replace("modprobe: FATAL:", "rmmod: ERROR:") if name == "rmmod" else text)
            return code
    return 0


def _held() -> bool:
    """Whether a process has a GPU open."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(re.match(r"/dev/nvidia\d", os.readlink(entry)) for entry in folder.iterdir()):
                return True
    return False


def _modinfo(node: Node, arguments: list[str]) -> int:
    field = ""
    words = list(arguments)
    if "-F" in words[:-1]:
        field = words[words.index("-F") + 1]
        del words[words.index("-F"):words.index("-F") + 2]
    recorded = clothes(node.state, node.kernel).commands.get(("modinfo", words[-1].replace("-", "_"))) if len(words) == 1 else None
    if recorded is None:
        return _real("modinfo", arguments)
    ran = recorded if isinstance(recorded, Ran) else Ran(0, str(recorded))
    lines = ran.out.splitlines()
    if field:
        lines = [line.partition(":")[2].strip() for line in lines if line.partition(":")[0] == field]
    print("\n".join(lines))
    sys.stderr.write(ran.err)
    return int(ran.rc or 0)


def _dkms(node: Node, arguments: list[str]) -> int:
    """`dkms install|remove -m NAME -v VERSION`: what packages call. Modules are not built, only noted."""
    action = arguments[0] if arguments else "status"

    def option(short: str) -> str:
        return arguments[arguments.index(short) + 1] if short in arguments[:-1] else ""

    module, version = option("-m"), option("-v")
    for word in arguments[1:]:
        if "/" in word and not module:
            module, _slash, version = word.partition("/")
    build = "/lib/modules/%s/build" % node.kernel
    if action == "install" and not os.path.isdir(build):
        print("Error! Your kernel headers for kernel %s cannot be found at %s or /lib/modules/%s/source." % (node.kernel, build, node.kernel), file=sys.stderr)
        return 21
    if action == "install" and os.path.exists("/etc/inferops-lab/dkms-build-fails"):
        print("Error! Bad return status for module build on kernel: %s (x86_64)" % node.kernel, file=sys.stderr)
        return 10
    if module == "nvidia" and action == "install":
        node.state["installed"] = version
        # A package that is there now stands for what the fault was about.
        node.state["faults"] = [fault for fault in node.state["faults"] if fault != "pending_reboot"]
    elif module == "nvidia" and action == "remove" and installed(node.state) == version:
        node.state["installed"] = ""
    elif module == "nvidia-peer-memory":
        return 0
    node.render()
    print("%s/%s: %s" % (module, version, action))
    return 0


def _cdi_generate(node: Node, arguments: list[str]) -> int:
    text = (BASE / "cdi").read_text(encoding="utf-8")
    target = next((word.partition("=")[2] for word in arguments if word.startswith("--output=")), "")
    if "--output" in arguments[:-1]:
        target = arguments[arguments.index("--output") + 1]
    if not target:
        print(text, end="")
        return 0
    node.state["faults"] = [fault for fault in node.state["faults"] if fault != "stale_cdi"]
    node.render()
    node.put(target, text)
    return 0


def _smi(node: Node, arguments: list[str]) -> int:
    said = clothes(node.state, node.kernel).commands.get(smi.COMMAND)
    if isinstance(said, Ran):
        sys.stdout.write(said.out)
        return int(said.rc or 0)
    fields = next((word.partition("=")[2] for word in arguments if word.startswith("--query-gpu=")), "")
    if said and fields:
        form = next((word for word in arguments if word.startswith("--format=")), "")
        if "noheader" not in form:
            print(", ".join(fields.split(",")))
        for row in query(said, fields.split(","), "nounits" not in form):
            print(", ".join(row))
        return 0
    if arguments == ["--version"] and said:
        spec = spec_of(node.state)
        version = spec.loaded_driver
        print("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %s" % (
            version, version.rsplit(".", 1)[0], version, spec.cuda))
        return 0
    if "-pm" in arguments:
        return 0
    print("this nvidia-smi is a costume and knows no answer to: %s" % " ".join(arguments), file=sys.stderr)
    return 2


def service(node: Node, name: str) -> int:
    """Persistence or Fabric Manager: says what the costume's journal says, and stays or fails as it does."""
    if name == "persistenced":
        for path in sorted(Path("/dev").glob("nvidia[0-9]*")):
            os.set_inheritable(os.open(path, os.O_RDONLY), True)
        os.execv(str(BASE / "bin/nvidia-persistenced"), ["nvidia-persistenced", "infinity"])
    worn = clothes(node.state, node.kernel)
    said = str(worn.commands[fabric.JOURNAL]).splitlines()
    for line in said:
        if not line.startswith(("Starting ", "Started ", "Failed ", fabric.MANAGER)):
            print(line, flush=True)
    if "fm_mismatch" in node.state["faults"] or node.state["loaded"] is None:
        return 1
    os.execv(str(BASE / "bin/nv-fabricmanager"), ["nv-fabricmanager", "infinity"])
    return 0
