# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read ``nvidia-smi topo -m`` and ``nvidia-smi nvlink -s``.

The matrix is separated by tabs when the tool prints it and by blanks when a person pasted it; its
header may be underlined by terminal codes, and narrow terminals glue labels and cells together
(``NIC11CPU Affinity``, ``PXBNODE``). Cells are therefore read by their own words, not by columns.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from .text import drop_empty, number

MATRIX = ("nvidia-smi", "topo", "-m")
LINKS = ("nvidia-smi", "nvlink", "-s")

MAX_LINES = 2000
MAX_DEVICES = 200

_TERMINAL = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\r")
_LABEL = re.compile(r"GPU\d{1,3}|NIC\d{1,3}|mlx\d_(?:bond_)?\d{1,3}")
_ROW = re.compile(r"\s*(GPU\d{1,3}|NIC\d{1,3}|mlx\d_(?:bond_)?\d{1,3})(?=[\s]|X\s|NV|SYS|NODE|P[HXI]|SOC)")
_CELL = re.compile(r"\s*(NV\d{1,2}|SYS|NODE|PHB|PXB|PIX|SOC|C2C|X)")
_LEGEND = re.compile(r"^\s*(NIC\d{1,3})\s*:\s*(\S{1,60})\s*$")
_NUMA = re.compile(r"\s(\d{1,4}|N/A)\s*$")
_GPU = re.compile(r"^\s*GPU\s+(\d{1,3})\s*:")
_LINK = re.compile(r"^\s*Link\s+(\d{1,3})\s*:\s*(.*)$", re.I)


def parse_matrix(text: str) -> Dict[str, Any]:
    """Read the matrix.

    Returns:
        ``{"gpus": ["GPU0", …], "matrix": [row of cells joined by blanks, …], "nics": {"NIC0": "mlx5_0"},
        "gpu_nic": [row, …], "numa": {"GPU0": 2}, "problem": ""}``: rows belong to `gpus` in order, their columns are `gpus` and
        the NICs of `nics` in order. `numa` has the GPUs' own memory nodes (Grace). `problem` says in one phrase what is
        missing; `matrix` and `gpu_nic` are then what there is, and not to be relied on.
    """
    columns: List[str] = []
    rows: Dict[str, List[str]] = {}
    names: Dict[str, str] = {}
    numa: Dict[str, int] = {}
    with_numa = False
    for raw in text.split("\n", MAX_LINES)[:MAX_LINES]:
        line = _TERMINAL.sub("", raw[:4000])
        legend = _LEGEND.match(line)
        if legend:
            names[legend.group(1)] = legend.group(2)
            continue
        row = _ROW.match(line)
        cells = _cells(line[row.end():]) if row else []
        if row and cells:
            rows.setdefault(row.group(1), cells)
            own = _NUMA.search(line) if with_numa and row.group(1).startswith("GPU") else None
            if own and own.group(1) != "N/A":
                numa[row.group(1)] = int(own.group(1))
        elif not columns and _LABEL.match(line.strip()):
            columns = list(dict.fromkeys(_LABEL.findall(line)))[:MAX_DEVICES]
            with_numa = "GPU NUMA ID" in line
    gpus = [label for label in columns if label.startswith("GPU")]
    nics = [label for label in columns if not label.startswith("GPU")]
    found: Dict[str, Any] = {
        "gpus": gpus, "matrix": [], "gpu_nic": [], "numa": numa,
        # Old drivers put the device's own name into the header.
        "nics": {label: names.get(label, "" if label.startswith("NIC") else label) for label in nics},
        "problem": "",
    }
    if not gpus:
        found["problem"] = "nvidia-smi topo -m printed no matrix"
        return found
    missing = [label for label in gpus if label not in rows]
    short = [label for label in gpus if label in rows and len(rows[label]) < len(columns)]
    if missing:
        found["problem"] = "the matrix has no row for " + ", ".join(missing[:8])
    elif short:
        found["problem"] = "the row of %s has %d of %d cells" % (short[0], len(rows[short[0]]), len(columns))
    for label in gpus:
        if label in rows:
            at = dict(zip(columns, rows[label]))
            found["matrix"].append(" ".join(at.get(other, "?") for other in gpus))
            if nics:
                found["gpu_nic"].append(" ".join(at.get(other, "?") for other in nics))
    return found


def _cells(rest: str) -> List[str]:
    cells: List[str] = []
    position = 0
    while len(cells) < MAX_DEVICES:
        cell = _CELL.match(rest, position)
        if not cell:
            break
        cells.append(cell.group(1))
        position = cell.end()
    return cells


def parse_links(text: str) -> List[Dict[str, Any]]:
    """Read ``nvidia-smi nvlink -s``.

    Returns:
        one table a GPU: ``{"index", "links", "active", "min_gbs"?: slowest active link in GB/s, "inactive"?: [numbers]}``.
        A GPU of which the tool says that all links are inactive has ``links: 0, active: 0``.
    """
    found: List[Dict[str, Any]] = []
    current: Optional[Dict[str, Any]] = None
    rates: List[float] = []
    for raw in text.split("\n", 20000)[:20000]:
        line = _TERMINAL.sub("", raw[:500])
        gpu = _GPU.match(line)
        if gpu:
            if len(found) >= MAX_DEVICES:
                break
            current, rates = {"index": int(gpu.group(1)), "links": 0, "active": 0, "min_gbs": None, "inactive": []}, []
            found.append(current)
            continue
        link = _LINK.match(line)
        if not link or current is None or current["links"] >= MAX_DEVICES:
            continue
        current["links"] += 1
        rate = None if "inactive" in link.group(2).lower() else number(link.group(2))
        if rate:
            rates.append(rate)
            current["active"] += 1
            current["min_gbs"] = min(rates)
        else:
            current["inactive"].append(int(link.group(1)))
    return [drop_empty(gpu) for gpu in found]
