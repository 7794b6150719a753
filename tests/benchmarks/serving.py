# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures of the acceptance against a running server: our ramp against `vllm bench serve` of the same vLLM, and verdicts again and again.

Both need a server that is up, given in the environment:

    INFEROPS_BENCH_URL=http://10.203.77.11:8000 INFEROPS_BENCH_MODEL=moonshotai/Kimi-K3 \\
    INFEROPS_BENCH_COMMAND="ssh … node1 docker run --rm --network host --entrypoint env IMAGE HF_HUB_OFFLINE=1" \\
        python -m tests.benchmarks ramp_against_vllm client_cpu first_three

For ramp_against_vllm start the server with --no-enable-prefix-caching: the random prompts of `vllm bench serve` are runs of successive token
ids, and with the few ids of a tiny vocabulary many are the same, so that they come out of the cache where ours do not. The share of hits is
printed beside each run.

INFEROPS_BENCH_COMMAND is put in front of `vllm bench serve`, so that it runs in the server's own image; in a container of its own, since a client
inside the server's container shares the server's CPU group, and the two sides must stand in the same place to be compared. With
INFEROPS_BENCH_PLAYBOOK="-i INVENTORY -i …" the first three stages are also run as the playbook, on all nodes of that inventory.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.inferops.vllm.plugins.module_utils.serving import metrics, prefix, ramp, run
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import call, endpoint, post

Line = Callable[[str, float, float, str, str], None]
PAIRS = 5
STREAMS = 16
REQUESTS = 480
INPUT, OUTPUT = 256, 64


def given() -> tuple[str, str, list[str]]:
    """URL, model and command of the environment; the URL is empty when there is none, and says so."""
    url = os.environ.get("INFEROPS_BENCH_URL", "")
    if not url:
        print("skip a running server is needed: INFEROPS_BENCH_URL, INFEROPS_BENCH_MODEL, INFEROPS_BENCH_COMMAND", flush=True)
    return url, os.environ.get("INFEROPS_BENCH_MODEL", "moonshotai/Kimi-K3"), shlex.split(os.environ.get("INFEROPS_BENCH_COMMAND", ""))


def hit_share(url: str, work: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], float]:
    """What `work` gives, and the share of prompt tokens that came out of the prefix cache meanwhile."""
    target = endpoint(url)
    before = metrics.read([target])[0]
    found = work()
    after = metrics.read([target])[0]
    if before is None or after is None:
        return found, 0.0
    hits, queries = (metrics.difference(before, after, name)[0] or 0.0 for name in ("prefix_hits", "prefix_queries"))
    return found, hits / queries if queries else 0.0


def template(url: str, model: str) -> int:
    """Tokens that the chat template puts around a prompt of one word."""
    body = {"model": model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    found, trouble = call(endpoint(url), post("/v1/chat/completions", body)).json()
    if trouble is not None:
        sys.exit("the server does not answer: %s" % trouble.text)
    return int(found["usage"]["prompt_tokens"]) - 1


def theirs(url: str, model: str, command: list[str], streams: int, requests: int, prompt: int) -> dict[str, float]:
    """One run of `vllm bench serve` with the same endpoint, sampling and lengths as the ramp."""
    argv = [
        *command, "vllm", "bench", "serve", "--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions", "--model", model,
        "--tokenizer", os.environ.get("INFEROPS_BENCH_TOKENIZER", "/models-tiny"), "--dataset-name", "random", "--random-input-len", str(prompt),
        "--random-output-len", str(OUTPUT), "--num-prompts", str(requests), "--max-concurrency", str(streams), "--ignore-eos",
        "--temperature", "0", "--percentile-metrics", "ttft,tpot,itl,e2el", "--num-warmups", "0",
        # Its prompts follow from the seed: those of an earlier run would come out of the prefix cache.
        "--seed", str(secrets.randbelow(2 ** 31))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = {}
    for name, pattern in (("tps", r"Output token throughput \(tok/s\):\s+([\d.]+)"), ("ttft", r"Median TTFT \(ms\):\s+([\d.]+)"),
                          ("tpot", r"Median TPOT \(ms\):\s+([\d.]+)"), ("itl", r"Median ITL \(ms\):\s+([\d.]+)"),
                          ("e2e", r"Median E2EL \(ms\):\s+([\d.]+)"), ("ok", r"Successful requests:\s+(\d+)"),
                          ("inputs", r"Total input tokens:\s+(\d+)"), ("outputs", r"Total generated tokens:\s+(\d+)")):
        match = re.search(pattern, done.stdout)
        if match is None:
            sys.exit("vllm bench serve printed no %s:\n%s" % (name, (done.stdout + done.stderr)[-2000:]))
        found[name] = float(match.group(1))
    return found


def ours(url: str, model: str, streams: int, requests: int) -> dict[str, Any]:
    """One step of our ramp with as many requests."""
    target = endpoint(url)
    settings = ramp.Settings(model, streams, INPUT, OUTPUT, level_requests=requests, levels=(streams,), seconds=600)
    found = ramp.run(target, [target], settings)
    if not found["data"].get("levels"):
        sys.exit("the ramp gave nothing: %s" % found["summary"])
    level: dict[str, Any] = found["data"]["levels"][-1]
    return level


def ramp_against_vllm(line: Line) -> None:
    """Throughput and medians of five interleaved pairs at the same concurrency and lengths."""
    url, model, command = given()
    if not url:
        return
    prompt = INPUT - template(url, model)
    ours(url, model, STREAMS, STREAMS)
    pairs = []
    for number in range(PAIRS):
        # Who goes first changes, so that neither always meets the warmer machine.
        sides = {"ours": lambda: ours(url, model, STREAMS, REQUESTS), "theirs": lambda: theirs(url, model, command, STREAMS, REQUESTS, prompt)}
        seen = {name: hit_share(url, sides[name]) for name in (sorted(sides) if number % 2 else sorted(sides, reverse=True))}
        (level, our_hits), (other, their_hits) = seen["ours"], seen["theirs"]
        pairs.append((level, other))
        print("     pair %d: ours %d requests, %d + %d tokens, %.1f/s; theirs %d requests, %d + %d tokens, %.1f/s" % (
            number + 1, level["ok"], level["input_tokens"], level["output_tokens"], level["output_tps"], other["ok"], other["inputs"],
            other["outputs"], other["tps"]), "; out of the prefix cache %.0f %% and %.0f %%" % (100 * our_hits, 100 * their_hits), flush=True)
    ratios = [level["output_tps"] / other["tps"] for level, other in pairs]
    line("ramp / vllm bench serve, slower by", 1 / statistics.median(ratios), 1 / 0.95, "x", "throughput ratios %s" % ", ".join("%.2f" % r for r in ratios))
    for name, mine, their in (("ttft", "ttft_ms", "ttft"), ("itl", "itl_ms", "itl"), ("tpot", "tpot_ms", "tpot"), ("total", "e2e_ms", "e2e")):
        left, right = [p[0][mine]["p50"] for p in pairs], [p[1][their] for p in pairs]
        apart = abs(statistics.median(left) / statistics.median(right) - 1)
        noise = max((max(side) - min(side)) / statistics.median(side) for side in (left, right))
        line("median %s apart" % name, 100 * apart, max(5.0, 100 * noise), "%", "ours %.1f ms, theirs %.1f ms; spread of five %.0f %%; ours %s, theirs %s" % (
            statistics.median(left), statistics.median(right), 100 * noise, _row(left), _row(right)))


def _row(values: list[float]) -> str:
    return " ".join("%.1f" % value for value in values)


def client_cpu(line: Line) -> None:
    """CPU of our client for 64 streams, as a share of a core."""
    url, model, _command = given()
    if not url:
        return
    level = ours(url, model, 64, 256)
    line("client, 64 streams", level["client_cpu"], 0.5, "cores", "%s tokens/s" % level["output_tps"])


def first_three(line: Line) -> None:
    """Stages 1 to 3 over HTTP on a ready server, and twenty repetitions of stage 3."""
    url, model, _command = given()
    if not url:
        return
    began = time.monotonic()
    found = run.run(run.Options(model, (url,), stages=("start", "request", "prefix"), features=()))
    line("stages 1 to 3", time.monotonic() - began, 20.0, "s", "request %s, prefix %s" % (found["request"]["status"], found["prefix"]["status"]))
    words = shlex.split(os.environ.get("INFEROPS_BENCH_PLAYBOOK", ""))
    if words:
        with tempfile.TemporaryDirectory() as folder:
            given_words = {"verify_stages": ["start", "request", "prefix"], "verify_report_dir": folder, "verify_fail_on": "not_verified"}
            walls = []
            for _number in range(3):
                began = time.monotonic()
                done = subprocess.run(["ansible-playbook", "inferops.vllm.verify", *words, "-e", json.dumps(given_words)], capture_output=True, text=True,
                                      check=False)
                walls.append(time.monotonic() - began)
                if done.returncode:
                    sys.exit("the playbook did not accept the server:\n%s" % done.stdout[-3000:])
        line("stages 1 to 3 as the playbook", statistics.median(walls), 20.0, "s", "median of 3: %s" % _row(walls))
    target = endpoint(url)
    expected = os.environ.get("INFEROPS_BENCH_VERDICT", "working")
    verdicts = [prefix.run(target, [target], prefix.Settings(model))["data"]["verdict"] for _number in range(20)]
    line("wrong verdicts of twenty", sum(v != expected for v in verdicts), 0, "", "expected %s" % expected)
