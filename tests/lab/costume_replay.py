#!/usr/bin/python3 -IS
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program of a dressed node: answers what was recorded for its arguments, and passes on what was not.

It stands under many names in a folder that comes first in PATH. Kept small, since it starts for every
command of every reading; what acts on the costume is left to the renderer (costume_tools.py).
"""

from __future__ import annotations

import json
import os
import sys

BASE = "/var/lib/inferops-costume"
# Programs that act on the costume, or know more of it than a recording holds.
ACTING = ("modprobe", "rmmod", "lsmod", "dkms", "nvidia-ctk", "modinfo", "nvidia-smi")


def hang() -> None:
    """Wait for ever, in uninterruptible sleep as far as the kernel lets a program: the parent of a vfork is in state D."""
    import ctypes

    libc = ctypes.CDLL(None)
    if libc.vfork() == 0:
        # PR_SET_PDEATHSIG: SIGKILL of the parent ends the child as well.
        libc.prctl(1, 9)
        while True:
            libc.pause()


def real(name: str) -> str:
    """The program that this one stands in front of, empty when there is none."""
    own = os.path.dirname(os.path.abspath(sys.argv[0]))
    for folder in [*os.environ.get("PATH", "").split(":"), "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]:
        path = os.path.join(folder, name)
        if folder and folder not in (own, "/usr/local/sbin") and os.access(path, os.X_OK) and os.path.realpath(path) != BASE + "/replay":
            return path
    return ""


def pass_on(name: str, arguments: list[str]) -> None:
    """Become the real program; like a shell, end with 127 where there is none."""
    path = real(name)
    if path:
        os.execv(path, [name, *arguments])
    sys.stderr.write("%s: command not found\n" % name)
    sys.exit(127)

MANAGER = "nvidia-fabricmanager"


def merged(recorded: str, name: str, arguments: list[str]) -> str:
    """Package lists: what is really installed stands before what the costume says."""
    import subprocess

    path = real(name)
    said = subprocess.run([path, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout.decode() if path else ""
    lines = {line.split("\t")[0]: line for line in recorded.splitlines(True)}
    # A package that was only ever named by others is listed without a version.
    there = {line.split("\t")[0]: line for line in said.splitlines(True) if line.split("\t")[1:2] != [""]}
    if any(package.startswith(MANAGER) for package in there):
        # A distribution's has the branch in its name; the two cannot be installed side by side.
        lines = {package: line for package, line in lines.items() if not package.startswith(MANAGER)}
    lines.update(there)
    return "".join(lines[package] for package in sorted(lines))


def main() -> None:
    name, arguments = sys.argv[0].rpartition("/")[2], sys.argv[1:]
    try:
        with open("%s/store/%s.json" % (BASE, name), encoding="utf-8") as source:
            store = json.load(source)
    except OSError:
        store = []
    if name == "nvidia-smi" and not sys.argv[0].startswith("/usr/local/lib/") and os.access("/usr/bin/nvidia-smi", os.X_OK):
        if any(entry.get("hang") for entry in store):
            hang()
        # A package brought its own, which checks versions first and then calls this one again.
        os.execv("/usr/bin/nvidia-smi", [name, *arguments])
    if name == "nvidia-smi" and os.path.exists(BASE + "/watch"):
        os.spawnl(os.P_WAIT, BASE + "/wear", "wear", "look")
        with open("%s/store/%s.json" % (BASE, name), encoding="utf-8") as source:
            store = json.load(source)
    for entry in store:
        if entry["argv"] == arguments or entry["argv"] == ["*"]:
            if entry.get("hang"):
                hang()
            if entry.get("add"):
                pass_on(name, [*arguments, *entry["add"]])
            out = merged(entry["out"], name, arguments) if entry.get("merge") else entry["out"]
            sys.stderr.write(entry["err"])
            sys.stdout.write(out)
            sys.stdout.flush()
            sys.exit(entry["rc"])
    if name in ACTING:
        os.execv(BASE + "/wear", ["wear", "command", name, *arguments])
    pass_on(name, arguments)


if __name__ == "__main__":
    main()
