# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures of the log reader and the diagnosis: throughput and memory on a gigabyte, time of a verdict on two megabytes."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
from typing import Any, Dict, List

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIGABYTE = 10**9
RANKS = 16
_WORDS = tuple(re.findall(
    "[a-z]+", "the model prompt answer please write code function value error table river mountain context window token stream json parse list failed "
    "explain detail summary city history of and a to in why does my server say cannot allocate"))

# Each measured part runs in a process of its own, so that its memory is its own.
_BARE = """
import json, re, resource, sys, time
pattern = re.compile(rb'ERROR|WARN|Traceback')
started, found = time.process_time(), 0
with open(sys.argv[1], 'rb') as stream:
    while True:
        data = stream.read(1 << 20)
        if not data:
            break
        for _match in pattern.finditer(data):
            found += 1
print(json.dumps({'seconds': time.process_time() - started, 'found': found, 'mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
_READER = """
import json, resource, sys, time
from ansible_collections.inferops.vllm.plugins.module_utils.logs import diagnose, reader
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source
wanted, stats = diagnose.wanted(), reader.Stats()
started, found = time.process_time(), 0
for _event in reader.events([Source.from_path(sys.argv[1])], wanted, stats):
    found += 1
print(json.dumps({'seconds': time.process_time() - started, 'found': found, 'lines': stats.lines, 'literals': len(wanted),
                  'mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
_VERDICT = """
import json, resource, sys, time
started = time.process_time()
from ansible_collections.inferops.vllm.plugins.module_utils.logs.diagnose import diagnose
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source
case = diagnose([Source.from_path(sys.argv[1])])
print(json.dumps({'seconds': time.process_time() - started, 'class': case['class'], 'phase': case['phase'],
                  'mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def generate(path: pathlib.Path, size: int, seed: int = 5, failure: bool = True) -> None:
    """Write a log of about `size` bytes: a start of :data:`RANKS` ranks, hours of serving with request ids and prompts, NCCL reports, warnings,
    tracebacks of single requests, and at its end an engine that dies. The same seed gives the same bytes."""
    rnd = random.Random(seed)
    uniform, below, bits = rnd.random, rnd.randrange, rnd.getrandbits
    clock, written = 0.0, 0
    with path.open("wb") as stream:
        def put(lines: List[str]) -> None:
            nonlocal written
            block = ("\n".join(lines) + "\n").encode()
            written += len(block)
            stream.write(block)

        put(["(APIServer pid=1) INFO 01-01 00:00:00 [api_server.py:1912] vLLM API server version 0.19.0"] + [
            "(Worker_TP%d pid=%d) INFO 01-01 00:00:01 [parallel_state.py:1395] world_size=%d rank=%d local_rank=%d distributed_init_method=tcp://10.0.0.1:1 "
            "backend=nccl" % (rank, 100 + rank, RANKS, rank, rank % 8) for rank in range(RANKS)])
        while written < size:
            lines: List[str] = []
            for _line in range(5000):
                clock += 0.004
                seconds = int(clock)
                stamp = "%02d-%02d %02d:%02d:%02d" % (
                    1 + seconds // 2419200 % 12, 1 + seconds // 86400 % 28, seconds // 3600 % 24, seconds // 60 % 60, seconds % 60)
                kind = uniform()
                rank = int(uniform() * RANKS)
                if kind < 0.38:
                    lines.append('(APIServer pid=1) INFO:     10.0.%d.%d:%d - "POST /v1/chat/completions HTTP/1.1" 200 OK' % (
                        rank, kind * 600, kind * 99999))
                elif kind < 0.52:
                    lines.append("(APIServer pid=1) INFO %s [async_llm.py:270] Added request chatcmpl-%032x." % (stamp, bits(128)))
                elif kind < 0.62:
                    lines.append(
                        "(APIServer pid=1) INFO %s [loggers.py:257] Engine %03d: Avg prompt throughput: %.1f tokens/s, "
                        "Avg generation throughput: %.1f tokens/s, Running: %d reqs, Waiting: %d reqs, GPU KV cache usage: %.1f%%, "
                        "Prefix cache hit rate: %.1f%%"
                        % (stamp, rank % 8, kind * 9000, kind * 900, kind * 70, rank, kind * 160, uniform() * 100))
                elif kind < 0.68:
                    lines.append(
                        "(APIServer pid=1) INFO %s [logger.py:43] Received request chatcmpl-%032x: prompt: '%s', params: SamplingParams(n=1, temperature=0.7, "
                        "top_p=0.95, max_tokens=512), prompt_token_ids: None, lora_request: None." % (stamp, bits(128), " ".join(rnd.choices(_WORDS, k=24))))
                elif kind < 0.86:
                    lines.append("node%d:%d:%d [%d] NCCL INFO Channel %02d/0 : %d[%d] -> %d[%d] [send] via NET/IB/%d/GDRDMA" % (
                        rank // 8, 100 + rank, 200 + rank, rank % 8, kind * 20, rank, rank % 8, (rank + 1) % RANKS, (rank + 1) % 8, rank % 8))
                elif kind < 0.97:
                    lines.append("(Worker_TP%d pid=%d) INFO %s [gpu_model_runner.py:4261] step %d took %.2f ms" % (
                        rank, 100 + rank, stamp, bits(20), kind * 90))
                elif kind < 0.995:
                    lines.append("(Worker_TP%d pid=%d) INFO %s [block_pool.py:%d] Evicted block %016x of sequence %s-%x" % (
                        rank, 100 + rank, stamp, below(400), bits(64), rnd.choice(_WORDS), bits(40)))
                elif kind < 0.9998:
                    lines.append("(Worker_TP%d pid=%d) WARNING %s [scheduler.py:%d] Sequence group %d is preempted by RECOMPUTE mode" % (
                        rank, 100 + rank, stamp, below(100), bits(20)))
                else:
                    lines.extend("(APIServer pid=1) ERROR %s [serving_chat.py:201] %s" % (stamp, text) for text in (
                        "Error in preprocessing prompt inputs", "Traceback (most recent call last):",
                        '  File "/vllm/x.py", line 5, in create_chat_completion', "    g()", "ValueError: request %d is too long" % bits(20)))
            put(lines)
        if failure:
            put(["(Worker_TP3 pid=103) ERROR %s [multiproc_executor.py:1018] %s" % (stamp, text) for text in (
                "WorkerProc hit an exception.", "Traceback (most recent call last):", '  File "/vllm/v1/worker/gpu_worker.py", line 5, in execute_model',
                "    output = f()", "RuntimeError: CUDA error: an illegal memory access was encountered")])
            put(["(EngineCore pid=9) ERROR %s [core.py:1239] %s" % (stamp, text) for text in (
                "EngineCore encountered a fatal error.", "Traceback (most recent call last):", '  File "/vllm/v1/engine/core.py", line 98, in run_engine_core',
                "RuntimeError: Worker failed with error 'CUDA error: an illegal memory access was encountered', please check the stack trace above "
                "for the root cause")])


def _measured(code: str, path: pathlib.Path) -> Dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "collections"), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=env, stdout=subprocess.PIPE, check=True, text=True)
    found: Dict[str, Any] = json.loads(done.stdout)
    return found


def _say(name: str, value: float, limit: float, unit: str, note: str, least: bool = False) -> None:
    good = value >= limit if least else value <= limit
    print("%s %-34s %8.2f %-6s %s %-7g %s" % ("ok  " if good else "OVER", name, value, unit, "least" if least else "limit", limit, note), flush=True)


def logs_gigabyte(size: int = GIGABYTE) -> None:
    """Reader with the literals of all signatures against a loop over three words and against grep, on the same file; CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "big.log"
        generate(path, size)
        bytes_ = path.stat().st_size
        bare, mine = _measured(_BARE, path), _measured(_READER, path)
        before = os.times()
        # Not to /dev/null: grep then stops at the first match.
        subprocess.run(["grep", "-cE", "ERROR|WARN|Traceback", str(path)], stdout=subprocess.PIPE, check=False)
        after = os.times()
        grep = after.children_user + after.children_system - before.children_user - before.children_system
        _say("log reader / bare loop, throughput", bare["seconds"] / mine["seconds"], 1 / 3, "ratio",
             "%.0f MB: reader %.1f s (%d literals, %d events of %d lines), loop %.1f s, grep %.1f s" % (
                 bytes_ / 1e6, mine["seconds"], mine["literals"], mine["found"], mine["lines"], bare["seconds"], grep), least=True)
        _say("log reader, peak memory", mine["mib"], 150, "MiB", "bare loop %.0f MiB" % bare["mib"])


def logs_verdict(size: int = 2 * 10**6) -> None:
    """A verdict on a log of two megabytes, Python's start included."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "run.log"
        generate(path, size)
        runs = []
        for _run in range(5):
            before = os.times()
            found = _measured(_VERDICT, path)
            after = os.times()
            runs.append(after.children_user + after.children_system - before.children_user - before.children_system)
        _say("verdict on a 2 MB log", sorted(runs)[2], 1, "s", "median of 5, CPU with Python's start; %s in %s, %.0f MiB" % (
            found["class"], found["phase"], found["mib"]))


if __name__ == "__main__":
    logs_verdict()
    logs_gigabyte(int(float(sys.argv[1])) if len(sys.argv) > 1 else GIGABYTE)
