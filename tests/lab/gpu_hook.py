# SPDX-License-Identifier: GPL-3.0-or-later
"""What `docker run --gpus all` needs on a node without a GPU.

Docker's --gpus looks for an executable `nvidia-container-runtime-hook` in PATH and runs it before
a container starts. The lab's stand-in copies the tree INJECTED into the container, as the real one
mounts the driver's files: whatever a costume puts there is what containers with GPUs see.
"""

from __future__ import annotations

from pathlib import Path

# On the node. Mirrors a container's root: INJECTED/usr/bin/nvidia-smi becomes /usr/bin/nvidia-smi.
INJECTED = "usr/local/lib/inferops-lab/inject"
HOOK = "usr/bin/nvidia-container-runtime-hook"

HOOK_TEXT = f"""\
#!/usr/bin/python3
# Stand-in of the lab, not NVIDIA's: see tests/lab/gpu_hook.py of the collection.
import json, os, shutil, sys

if sys.argv[1:] != ["prestart"]:
    sys.exit(0)
state = json.load(sys.stdin)
with open(os.path.join(state["bundle"], "config.json"), encoding="utf-8") as handle:
    config = json.load(handle)
environment = dict(v.partition("=")[::2] for v in config["process"].get("env", []))
if environment.get("NVIDIA_VISIBLE_DEVICES", "") in ("", "void", "none"):
    sys.exit(0)
root = config["root"]["path"]
if not os.path.isabs(root):
    root = os.path.join(state["bundle"], root)
top = "/{INJECTED}"
for folder, _, names in os.walk(top):
    inside = os.path.join(root, os.path.relpath(folder, top))
    os.makedirs(inside, exist_ok=True)
    for name in names:
        target = os.path.join(inside, name)
        if os.path.lexists(target):
            os.unlink(target)
        shutil.copy2(os.path.join(folder, name), target)
"""

NVIDIA_SMI_TEXT = """\
#!/bin/sh
# Stand-in of the lab for a node in no costume: it says so in the GPU's name.
case "$*" in
  -L) echo "GPU 0: Lab stand-in (UUID: GPU-00000000-0000-4000-8000-000000000001)" ;;
  --version) echo "NVIDIA-SMI version  : 580.0.lab" ;;
  *) echo "this nvidia-smi is a stand-in of the lab and answers -L only" >&2; exit 9 ;;
esac
"""


def install(root: Path) -> None:
    """Write hook and injected tree into the root file system of a node."""
    for path, text in ((HOOK, HOOK_TEXT), (f"{INJECTED}/usr/bin/nvidia-smi", NVIDIA_SMI_TEXT)):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(0o755)
