# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What vLLM's /metrics says, under names of our own that stay when vLLM renames one."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .client import Deadlines, Endpoint, Request, call
from .wire import Trouble, whole_number

NAMES: Dict[str, Tuple[str, ...]] = {
    # our name: vLLM's names, newest first. Seen on a real 0.32.0 server; older ones from vLLM's documentation of its metrics
    # (https://docs.vllm.ai/en/v0.32.0/usage/metrics/, 2026-11-29; the gpu_ names were kept as hidden metrics for some releases).
    # A counter of prometheus_client ends in _total, that of the Rust frontend as well; some proxies leave it off, so both are looked for.
    "prefix_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    "external_queries": ("vllm:external_prefix_cache_queries", "vllm:connector_prefix_cache_queries"),
    "external_hits": ("vllm:external_prefix_cache_hits", "vllm:connector_prefix_cache_hits"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "preemptions": ("vllm:num_preemptions",),
    "prompt_tokens": ("vllm:prompt_tokens",),
    "generation_tokens": ("vllm:generation_tokens",),
    "success": ("vllm:request_success",),
    "rejections": ("vllm:admission_rejections",),
    "ttft_sum": ("vllm:time_to_first_token_seconds_sum",),
    "ttft_count": ("vllm:time_to_first_token_seconds_count",),
    "itl_sum": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    "itl_count": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
    "cache_config": ("vllm:cache_config_info",),
    "process_start": ("process_start_time_seconds",),
    "resident_bytes": ("process_resident_memory_bytes",),
}

COUNTERS = ("prefix_queries", "prefix_hits", "external_queries", "external_hits", "preemptions", "prompt_tokens", "generation_tokens",
            "success", "rejections", "ttft_sum", "ttft_count", "itl_sum", "itl_count")

BLOCK_LABELS = ("block_size", "effective_attention_block_size", "mamba_block_size", "cache_hit_alignment_tokens", "prefix_match_unit")
"""Labels of cache_config_info that a shared prefix must reach; the largest number counts. Hybrid models keep state at the larger ones."""

TEXT_LIMIT = 8 * 1024 * 1024
LINE_LIMIT = 1024 * 1024
"""Letters of a line that is looked at."""
MOST_SAMPLES = 200000
MOST_VALUE = 1e18
"""No count of tokens or bytes and no time is larger."""
MOST_BLOCK = 10000000

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})?[ \t]+([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*\Z")
# A name begins where no letter stands before it: else a line of letters is read again from each of them.
_LABEL = re.compile(r'(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*)="([^"\\]*(?:\\.[^"\\]*)*)"')
_ESCAPE = re.compile(r'\\(.)')


class Sample(NamedTuple):
    """One line of the exposition: name, labels, value (may be NaN or infinite)."""

    name: str
    labels: Dict[str, str]
    value: float


def parse(text: str) -> List[Sample]:
    """All samples of a Prometheus text exposition; lines that are none are left out. Never raises."""
    found: List[Sample] = []
    for line in text[:TEXT_LIMIT].splitlines():
        if not line or line[0] == "#" or len(line) > LINE_LIMIT:
            continue
        match = _SAMPLE.match(line)
        if not match:
            continue
        value = number(match.group(3))
        if value is None:
            continue
        labels = {name: _ESCAPE.sub(_unescaped, raw) for name, raw in _LABEL.findall(match.group(2) or "")}
        found.append(Sample(match.group(1), labels, value))
        if len(found) >= MOST_SAMPLES:
            break
    return found


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n"}.get(match.group(1), match.group(1))


def number(text: str) -> Optional[float]:
    """A number as the exposition writes it (``NaN``, ``+Inf``, ``1e3``), None for anything else."""
    # float() takes "1_000" and "infinity" as well, which no exposition holds.
    if "_" in text or len(text) > 64:
        return None
    try:
        return float(text)
    except ValueError:
        return None


class Reading:
    """One reading of /metrics of one or more servers.

    `values` holds sums over all engines (the largest for kv_usage); a name that was not there, or was NaN, is missing.
    """

    def __init__(self, samples: List[Sample]) -> None:
        self.values: Dict[str, float] = {}
        self.broken: List[str] = []
        """Our names whose values were NaN, beyond MOST_VALUE or, for a counter, negative."""
        self.engines: Dict[str, Dict[str, float]] = {}
        self.config: List[Dict[str, str]] = []
        self.vllm = any(sample.name.startswith("vllm:") for sample in samples)
        wanted: Dict[str, Tuple[str, int]] = {}
        for ours, theirs in NAMES.items():
            for rank, name in enumerate(theirs):
                wanted[name] = (ours, 2 * rank)
                wanted[name + "_total"] = (ours, 2 * rank)
        # Where an old and a new name are both there, only the newest counts.
        best: Dict[str, int] = {}
        for sample in samples:
            if sample.name in wanted:
                ours, rank = wanted[sample.name]
                best[ours] = min(rank, best.get(ours, rank))
        for sample in samples:
            if sample.name not in wanted:
                continue
            ours, rank = wanted[sample.name]
            if rank == best[ours]:
                self._take(ours, sample)

    def _take(self, ours: str, sample: Sample) -> None:
        if ours == "cache_config":
            self.config.append(dict(sample.labels))
            return
        value = sample.value
        if math.isnan(value) or abs(value) > MOST_VALUE or (ours in COUNTERS and value < 0):
            if ours not in self.broken:
                self.broken.append(ours)
            self.values.pop(ours, None)
            return
        if ours in self.broken:
            return
        engine = self.engines.setdefault(sample.labels.get("engine", ""), {})
        if ours == "kv_usage":
            self.values[ours] = max(self.values.get(ours, 0.0), value)
            engine[ours] = max(engine.get(ours, 0.0), value)
        else:
            self.values[ours] = self.values.get(ours, 0.0) + value
            engine[ours] = engine.get(ours, 0.0) + value

    def get(self, name: str) -> Optional[float]:
        """The value under our name, or None."""
        return self.values.get(name)

    def engine_count(self) -> int:
        """Number of engines that report a prefix cache or a running gauge, at least 1."""
        return max(1, len([e for e in self.engines.values() if "prefix_queries" in e or "running" in e]))

    def caching(self) -> Optional[bool]:
        """Whether prefix caching runs, by the configuration that the server shows; None when it does not say or engines differ."""
        said = {config.get("enable_prefix_caching", "").lower() for config in self.config}
        if said == {"true"}:
            return True
        return False if said == {"false"} else None

    def block(self) -> Optional[int]:
        """Tokens of the block at which a shared prefix can be found again: the largest that the configuration names."""
        sizes = [whole_number(config.get(label, "")) or 0 for config in self.config for label in BLOCK_LABELS
                 if not (label == "mamba_block_size" and config.get("mamba_cache_mode") == "none")]
        return max((size for size in sizes if 0 < size <= MOST_BLOCK), default=None)

    def retention(self) -> int:
        """Tokens between kept checkpoints (``prefix_cache_retention_interval``), 0 for every block."""
        found = [whole_number(config.get("prefix_cache_retention_interval", "")) or 0 for config in self.config]
        return max((size for size in found if size <= MOST_BLOCK), default=0)

    def kv_tokens(self) -> Optional[int]:
        """Tokens that the KV cache of one engine holds."""
        found = [size for config in self.config for size in (whole_number(config.get("kv_cache_size_tokens", "")),) if size is not None]
        if found:
            return min(found)
        sizes = []
        for config in self.config:
            blocks, size = whole_number(config.get("num_gpu_blocks", "")), whole_number(config.get("block_size", ""))
            if blocks is not None and size is not None:
                sizes.append(blocks * size)
        return min(sizes) if sizes else None


def difference(before: Reading, after: Reading, name: str) -> Tuple[Optional[float], str]:
    """By how much a counter rose, or None and why that cannot be told (missing, broken, reset)."""
    old, new = before.get(name), after.get(name)
    if name in before.broken or name in after.broken:
        return None, "%s is NaN or negative" % name
    if new is None:
        return None, "%s is missing" % name
    if old is None:
        # A counter with labels appears with its first event.
        return new, ""
    if new < old:
        return None, "%s went back from %g to %g: the server was restarted" % (name, old, new)
    return new - old, ""


def merged(readings: List[Reading]) -> Reading:
    """Several servers as one: sums, all engines, all configurations."""
    if len(readings) == 1:
        return readings[0]
    whole = Reading([])
    for position, reading in enumerate(readings):
        whole.vllm = whole.vllm or reading.vllm
        whole.config += reading.config
        whole.broken += [b for b in reading.broken if b not in whole.broken]
        for key, values in reading.engines.items():
            whole.engines["%d/%s" % (position, key)] = values
        for name, value in reading.values.items():
            if name == "kv_usage":
                whole.values[name] = max(value, whole.values.get(name, 0.0))
            else:
                whole.values[name] = whole.values.get(name, 0.0) + value
    # A sum that lacks one server is no sum.
    for name in list(whole.values):
        if any(name not in reading.values for reading in readings) and name in ("prefix_queries", "prefix_hits"):
            del whole.values[name]
    return whole


def read(targets: List[Endpoint], deadlines: Deadlines = Deadlines(3.0, 5.0, 5.0, 5.0)) -> Tuple[Optional[Reading], Optional[Trouble]]:  # noqa: B008
    """Read /metrics of all `targets` one after the other; a reading, or the trouble of the first that gave none."""
    readings: List[Reading] = []
    for target in targets:
        reply = call(target, Request("GET", "/metrics", deadlines=deadlines, limit=TEXT_LIMIT))
        reading, trouble = understood(reply.body, reply.trouble)
        if reading is None:
            return None, trouble
        readings.append(reading)
    if not readings:
        return None, Trouble("address", "resolve", "no server to ask for metrics")
    return merged(readings), None


def understood(body: bytes, trouble: Optional[Trouble]) -> Tuple[Optional[Reading], Optional[Trouble]]:
    """The reading in the body of an answer, or why there is none."""
    if trouble is not None:
        return None, trouble
    samples = parse(body.decode("utf-8", "replace"))
    if not samples:
        return None, Trouble("not_json", "body", "/metrics holds no metric of Prometheus: %r" % body[:40].decode("utf-8", "replace"))
    reading = Reading(samples)
    if not reading.vllm:
        return None, Trouble("not_json", "body", "/metrics holds metrics, but none of vLLM: a server of another kind")
    return reading, None


def as_dict(reading: Optional[Reading]) -> Dict[str, Any]:
    """What a report keeps of a reading."""
    return {} if reading is None else {name: round(value, 6) for name, value in sorted(reading.values.items())}
