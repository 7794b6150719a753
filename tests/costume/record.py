# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the recorded nodes of the demo inventories: ``python -m tests.costume.record``.

Every node is a snapshot, recorded as a live node would be; equal costumes give equal bytes. They stand
beside the inventories and not in them: given a folder, Ansible reads every file below it as an inventory.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Dict, FrozenSet, Iterator, Tuple

from ansible_collections.inferops.vllm.plugins.module_utils.node import collect, snapshot

from . import NOW, Spec, dress

RECORDED = Path(__file__).resolve().parents[2] / "inventories" / "recorded"
IMAGE = "vllm/vllm-openai:kimi-k3"
WEIGHTS = "/var/lib/vllm"

# Inventory → (hardware, {node: faults}); the order of nodes is their rank.
DEMOS: Dict[str, Tuple[str, Dict[str, FrozenSet[str]]]] = {
    "demo": ("b300", {
        "b300-01": frozenset(),
        "b300-02": frozenset({"driver_r575"}),
        "b300-03": frozenset({"peermem_missing", "errno_524"}),
        "b300-04": frozenset({"gpu_lost"}),
        "b300-05": frozenset({"image_drift", "gid_drift"}),
        "b300-06": frozenset({"smi_hung"}),
    }),
    "demo-nvl72": ("gb300", {
        "gb300-01": frozenset(),
        "gb300-02": frozenset(),
        "gb300-03": frozenset({"clique_other"}),
        "gb300-04": frozenset({"imex_down"}),
    }),
}


def specs(inventory: str) -> Iterator[Spec]:
    """Costumes of the nodes of one demo inventory."""
    hardware, nodes = DEMOS[inventory]
    names = tuple(nodes)
    for index, (name, faults) in enumerate(nodes.items(), 1):
        yield Spec(name, hardware, index, faults, peers=names)


def record(spec: Spec) -> Dict[str, bytes]:
    """Files of the snapshot of a dressed node, by name."""
    reader = dress(spec)
    options = collect.Options(image=IMAGE, names=spec.peers, paths=(WEIGHTS,))
    collect.gather(reader, options)
    return snapshot.render(reader, spec.name, options.asdict(), float(NOW))


def main() -> None:
    """Replace the recorded nodes of all demo inventories."""
    wanted = {spec.name: record(spec) for inventory in DEMOS for spec in specs(inventory)}
    RECORDED.mkdir(parents=True, exist_ok=True)
    for folder in RECORDED.iterdir():
        if folder.name not in wanted:
            shutil.rmtree(folder)
    for name, files in wanted.items():
        snapshot.write_folder(files, str(RECORDED / name))
        # Committed files are for everyone; what a live node records is for its owner alone.
        for path in [RECORDED / name, *(RECORDED / name).rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        print("%s: %d files, %d KB" % (name, len(files), sum(map(len, files.values())) // 1024))


if __name__ == "__main__":
    main()
