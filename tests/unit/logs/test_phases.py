# SPDX-License-Identifier: GPL-3.0-or-later
"""Phases from markers and tracebacks, and how far a start has come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.logs import phases

START = """(APIServer pid=1) INFO 08-01 10:00:00 [api_server.py:1912] vLLM API server version 0.17.0
(EngineCore pid=2) INFO 08-01 10:00:05 [core.py:97] Initializing a V1 LLM engine (v0.17.0) with config: model='/m'
(Worker_TP0 pid=3) INFO 08-01 10:00:06 [parallel_state.py:1] world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.0.0.1:2 backend=nccl
(Worker_TP0 pid=3) INFO 08-01 10:00:07 [gpu_model_runner.py:1] Starting to load model /m...
"""


def test_progress_counts_shards_through_carriage_returns() -> None:
    text = START + "Loading safetensors checkpoint shards:   0% Completed | 0/96 [00:00<?, ?it/s]\r"
    text += "Loading safetensors checkpoint shards:  43% Completed | 41/96 [00:10<00:12]\r"
    found = phases.progress(text)
    assert (found["phase"], found["done"], found["total"]) == ("weights_load", 41, 96)


def test_progress_keeps_memory_numbers() -> None:
    text = START + """(Worker_TP0 pid=3) INFO x [a.py:1] Model loading took 97.25 GiB memory and 100.1 seconds
(Worker_TP0 pid=3) INFO x [a.py:1] Available KV cache memory: 21.40 GiB
(EngineCore pid=2) INFO x [a.py:1] GPU KV cache size: 434,978 tokens
(Worker_TP0 pid=3) INFO x [a.py:1] Graph capturing finished in 12 secs, took 1.25 GiB
"""
    found = phases.progress(text)
    assert found["memory"] == {"model_gib": 97.25, "kv_gib": 21.4, "kv_tokens": 434978, "graphs_gib": 1.25}
    assert found["phase"] == "engine_init"


def test_progress_begins_anew_with_a_new_start() -> None:
    found = phases.progress(START + "Application startup complete.\n" + START)
    assert found["phase"] == "weights_load" and found["done"] is None


def test_progress_of_nothing() -> None:
    assert phases.progress("")["phase"] == ""
    assert phases.progress("some other program\n")["phase"] == ""


@given(st.text())
def test_progress_takes_any_text(text: str) -> None:
    assert phases.progress(text)["phase"] in ("",) + phases.PHASES


@pytest.mark.parametrize("frames, phase, stage", [
    ('File "/v/gpu_worker.py", line 1, in init_device\nFile "/v/x.py", line 2, in init_worker_distributed_environment', "distributed_init", "group"),
    ('File "/v/gpu_worker.py", line 1, in init_device\n', "device_init", "device"),
    ('File "/v/gpu_model_runner.py", line 1, in load_model', "weights_load", "load"),
    ('File "/v/w.py", line 1, in determine_available_memory\nFile "/v/w.py", line 1, in execute_model', "engine_init", "profile"),
    ('File "/v/w.py", line 1, in capture_model', "engine_init", "capture"),
    ('File "/v/w.py", line 1, in initialize_kv_cache', "engine_init", "kv"),
    ('File "/v/w.py", line 1, in execute_model', "decode", "step"),
    ('File "/v/w.py", line 1, in something_else', "", ""),
])
def test_frames_tell_the_phase(frames: str, phase: str, stage: str) -> None:
    assert phases.phase_of_frames(frames) == (phase, stage)


def test_markers_find_their_needles() -> None:
    for marker in phases.MARKERS:
        assert marker.phase in phases.PHASES and marker.versions
    assert phases.marker_of("INFO:     Application startup complete.").phase == "api_ready"  # type: ignore[union-attr]
    assert phases.marker_of("[shutdown] API server: shutdown triggered").phase == "shutdown"  # type: ignore[union-attr]
    assert phases.marker_of("Shutting down the executor because of an error") is None
