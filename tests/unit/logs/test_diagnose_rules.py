# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of the verdict, one small composed log each."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.logs.diagnose import diagnose
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source

BEGIN = """(APIServer pid=1) INFO 08-01 10:00:00 [api_server.py:1912] vLLM API server version 0.17.0
(EngineCore pid=2) INFO 08-01 10:00:05 [core.py:97] Initializing a V1 LLM engine (v0.17.0) with config: model='/m'
(Worker_TP0 pid=3) INFO 08-01 10:00:06 [parallel_state.py:1] world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.0.0.1:2 backend=nccl
(Worker_TP0 pid=3) INFO 08-01 10:00:07 [parallel_state.py:2] rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, TP rank 0, EP rank 0
"""
LOAD = """(Worker_TP0 pid=3) INFO 08-01 10:00:08 [gpu_model_runner.py:1] Starting to load model /m...
(Worker_TP0 pid=3) INFO 08-01 10:01:00 [default_loader.py:1] Loading weights took 50.00 seconds
(Worker_TP0 pid=3) INFO 08-01 10:01:01 [gpu_model_runner.py:2] Model loading took 97.25 GiB memory and 100.1 seconds
"""
READY = """(EngineCore pid=2) INFO 08-01 10:02:00 [core.py:282] init engine (profile, create kv cache, warmup model) took 58.00 seconds
(APIServer pid=1) INFO 08-01 10:02:01 [api_server.py:1] Starting vLLM server on http://0.0.0.0:8000
(APIServer pid=1) INFO:     Application startup complete.
"""
STOP = """(APIServer pid=1) INFO 08-01 11:00:00 [launcher.py:254] [shutdown] API server: shutdown triggered
(APIServer pid=1) INFO 08-01 11:00:00 [core_client.py:777] [shutdown] MPClient: complete
(APIServer pid=1) ERROR 08-01 11:00:00 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=1) ERROR 08-01 11:00:00 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=1) ERROR 08-01 11:00:00 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).
INFO:     Application shutdown complete.
"""
RELAYS = """(EngineCore pid=2) ERROR 08-01 10:09:01 [core.py:1] EngineCore encountered a fatal error.
(EngineCore pid=2) ERROR 08-01 10:09:01 [core.py:1] Traceback (most recent call last):
(EngineCore pid=2) ERROR 08-01 10:09:01 [core.py:1]   File "/v/core.py", line 1, in run_busy_loop
(EngineCore pid=2) ERROR 08-01 10:09:01 [core.py:1] RuntimeError: Worker failed with error 'x', please check the stack trace above for the root cause
(APIServer pid=1) ERROR 08-01 10:09:01 [async_llm.py:9] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).
"""
FAILED_START = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"


def trace(where: str, error: str, time: str = "10:00:30", writer: str = "Worker_TP0 pid=3", first: str = "WorkerProc failed to start.") -> str:
    head = "(%s) ERROR 08-01 %s [multiproc_executor.py:7] " % (writer, time)
    return "".join(
        head + line + "\n"
        for line in (first, "Traceback (most recent call last):", '  File "/v/vllm/v1/worker/gpu_worker.py", line 5, in %s' % where, "    call()", error)
    )


def judge(*logs: str, **named: str) -> Dict[str, Any]:
    sources = [Source.from_bytes("log%d" % index, text.encode()) for index, text in enumerate(logs)]
    sources += [Source.from_bytes(name, text.encode(), node=name) for name, text in named.items()]
    return diagnose(sources)


def said(verdict: Dict[str, Any]) -> Tuple[bool, str, str]:
    return verdict["failed"], verdict["phase"], verdict["class"]


def test_a_healthy_run() -> None:
    verdict = judge(BEGIN + LOAD + READY)
    assert said(verdict) == (False, "api_ready", "none") and verdict["first_failure"] is None


def test_a_stop_is_no_failure() -> None:
    verdict = judge(BEGIN + LOAD + READY + STOP)
    assert said(verdict) == (False, "shutdown", "none") and verdict["confidence"] == "high"


def test_the_same_lines_without_a_stop_are_a_failure() -> None:
    """What makes them harmless is the stop before them."""
    rest = STOP.split("\n", 2)[2]
    assert said(judge(BEGIN + LOAD + READY + rest))[0]


def test_allocator_warnings_of_a_healthy_run() -> None:
    noise = "[rank6]:[W904 12:09:31.2 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 6 while trying to allocate 25 bytes.\n"
    assert said(judge(BEGIN + LOAD + noise * 300 + READY)) == (False, "api_ready", "none")


def test_a_retry_that_was_healed() -> None:
    warned = (
        "(Worker_TP0 pid=3) WARNING 08-01 10:00:20 [a.py:1] RuntimeError: The client socket has failed to connect to any network address of (10.0.0.1, 2).\n"
    )
    verdict = judge(BEGIN + warned + LOAD + READY)
    assert said(verdict) == (False, "api_ready", "none") and any("became ready" in text for text in verdict["against"])


def test_errors_of_requests_are_not_of_the_engine() -> None:
    request = trace("create_completion", "ValueError: temperature must be in [0, 2]", "10:05:00", "APIServer pid=1", "Error creating something")
    verdict = judge(
        BEGIN
        + LOAD
        + READY
        + request
        + "(APIServer pid=1) INFO 08-01 10:06:00 [loggers.py:2] Engine 000: Avg prompt throughput: 3.0 tokens/s, Running: 0 reqs\n"
    )
    assert not verdict["failed"]


@pytest.mark.parametrize(
    "where, cls, phase",
    [
        ("load_model", "oom_weights", "weights_load"),
        ("profile_run", "oom_warmup", "engine_init"),
        ("capture_model", "oom_warmup", "engine_init"),
        ("initialize_kv_cache", "oom_kv_sizing", "engine_init"),
        ("init_device", "gpu_busy", "device_init"),
    ],
)
def test_memory_is_split_by_phase(where: str, cls: str, phase: str) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB. GPU 0 has a total capacity of 79.20 GiB of which 241.06 MiB is free."
    verdict = judge(BEGIN + trace(where, error) + FAILED_START)
    assert said(verdict) == (True, phase, cls)
    assert "context" not in verdict["next_action"] and "max-model-len" not in verdict["next_action"]


def test_memory_while_serving() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB."
    served = 'INFO:     10.0.0.9:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    assert said(judge(BEGIN + LOAD + READY + served + trace("execute_model", error, "10:09:00", first="WorkerProc hit an exception.") + RELAYS)) == (
        True,
        "decode",
        "oom_runtime",
    )
    assert said(judge(BEGIN + LOAD + READY + trace("execute_model", error, "10:09:00", first="WorkerProc hit an exception.") + RELAYS)) == (
        True,
        "prefill",
        "oom_runtime",
    )


def test_memory_of_another_process() -> None:
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.20 GiB of which 1.00 GiB is free. "
        "Process 4711 has 40.00 GiB memory in use. Including non-PyTorch memory, this process has 30.00 GiB memory in use."
    )
    assert said(judge(BEGIN + trace("load_model", error))) == (True, "weights_load", "gpu_busy")


def test_of_a_chain_the_original() -> None:
    head = "(EngineCore pid=2) ERROR 08-01 10:00:30 [core.py:7] "
    lines = (
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/x/load.py", line 1, in read',
        "ModuleNotFoundError: No module named 'blobfile'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/x/t.py", line 1, in f',
        "ImportError: blobfile is not installed.",
    )
    verdict = judge(BEGIN + "".join(head + line + "\n" for line in lines))
    assert (
        verdict["class"] == "dependency" and verdict["first_failure"]["text"].endswith("No module named 'blobfile'") and verdict["first_failure"]["line"] == 8
    )


def test_asynchronous_cuda_errors_are_not_where_they_are_reported() -> None:
    first = trace(
        "execute_model",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
        "10:09:00",
        first="WorkerProc hit an exception.",
    )
    second = trace(
        "execute_model", "RuntimeError: CUDA error: an illegal memory access was encountered", "10:09:01", "Worker_TP1 pid=4", "WorkerProc hit an exception."
    )
    verdict = judge(BEGIN + LOAD + READY + first + second + RELAYS)
    assert verdict["class"] == "cuda_crash" and "illegal memory access" in verdict["first_failure"]["text"]


def test_the_cause_on_another_node_wins() -> None:
    head = (
        BEGIN
        + trace("init_device", "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.", "10:10:00")
        + FAILED_START
    )
    worker = BEGIN.replace("rank=0", "rank=1") + trace("load_model", "ModuleNotFoundError: No module named 'fastsafetensors'", "10:11:00", "Worker_TP1 pid=9")
    verdict = judge(head=head, worker=worker)
    assert verdict["first_failure"]["node"] == "worker" and verdict["class"] == "dependency"


def test_the_earliest_of_two_causes_wins_over_the_clock() -> None:
    """The worker's clock is an hour ahead; the places in the group, printed together, tell by how much."""
    head = BEGIN + LOAD + trace("execute_model", "RuntimeError: CUDA error: an illegal memory access was encountered", "10:01:10")
    worker = BEGIN.replace(" 10:", " 11:") + trace(
        "load_model", "safetensors_rust.SafetensorError: Error while deserializing header: header too small", "11:00:40", "Worker_TP1 pid=9"
    )
    verdict = judge(head=head, worker=worker)
    assert verdict["skew"]["known"] and verdict["skew"]["offsets"]["worker"] == 3600
    assert verdict["first_failure"]["node"] == "worker" and verdict["class"] == "weights"


def test_skew_that_nobody_can_know_is_said() -> None:
    verdict = judge(head=BEGIN, worker="ERROR 08-01 10:00:00 [a.py:1] x\n")
    assert not verdict["skew"]["known"] and "as they stand" in verdict["skew"]["why"]


def test_only_relays_is_an_abstention() -> None:
    died = "(EngineCore pid=2) ERROR 08-01 10:09:00 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: -9).\n"
    verdict = judge(BEGIN + LOAD + READY + died + RELAYS)
    assert verdict["class"] == "worker_lost" and verdict["first_failure"] is None and verdict["confidence"] == "low" and verdict["collect"]


def test_nccl_without_its_warning_is_an_abstention() -> None:
    verdict = judge(
        BEGIN + trace("init_worker_distributed_environment", "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)")
    )
    assert verdict["class"] == "nccl_other" and verdict["first_failure"] is None and any("NCCL_DEBUG" in text for text in verdict["collect"])


def test_a_hang_in_nvls() -> None:
    verdict = judge(BEGIN + "b300:5824:5877 [0] NCCL INFO NVLS tuning: nChannels 24\n")
    assert said(verdict) == (True, "distributed_init", "nccl_other") and verdict["first_failure"] is None


def test_a_hang_of_one_node_names_it() -> None:
    verdict = judge(head=BEGIN + LOAD, worker=BEGIN.split("(Worker_TP0", 1)[0])
    assert verdict["failed"] and verdict["confidence"] != "high" and any(text.startswith("worker never reached") for text in verdict["why"])


def test_a_start_that_goes_on_is_none_for_who_knows() -> None:
    source = Source.from_bytes("x", (BEGIN + LOAD).encode())
    assert not diagnose([source], unready_is_failure=False)["failed"]


def test_kernel_lines_join_by_address() -> None:
    kernel = "[71420.330127] NVRM: Xid (PCI:0000:6a:00): 79, pid=4711, GPU has fallen off the bus.\n"
    crash = trace("execute_model", "RuntimeError: CUDA error: unspecified launch failure", "10:09:00", first="WorkerProc hit an exception.")
    verdict = judge(node1=BEGIN + LOAD + READY + crash + RELAYS, dmesg=kernel)
    assert verdict["class"] == "gpu_fault" and "Xid 79" in verdict["next_action"] and "0000:6a:00" in verdict["next_action"]


def test_an_xid_that_a_program_causes_is_no_fault_of_the_gpu() -> None:
    kernel = "[71420.330127] NVRM: Xid (PCI:0000:6a:00): 31, pid=4711, name=VLLM::Worker, Ch 00000010\n"
    verdict = judge(node1=BEGIN + LOAD + READY + RELAYS, dmesg=kernel)
    assert verdict["class"] == "cuda_crash"


def test_a_stop_that_hangs() -> None:
    unit = "Aug 01 11:01:30 node1 systemd[1]: vllm.service: State 'stop-sigterm' timed out. Killing.\n"
    asked = STOP.split("\n", 1)[0] + "\n"
    verdict = judge(BEGIN + LOAD + READY + asked, unit)
    assert said(verdict) == (True, "shutdown", "shutdown_hang")


def test_an_unknown_exception_is_told_with_little_confidence() -> None:
    verdict = judge(BEGIN + LOAD + trace("profile_run", "FrobnicationError: the frob is out of reach"))
    assert (
        verdict["failed"] and verdict["confidence"] == "low" and "FrobnicationError" in verdict["first_failure"]["text"] and verdict["phase"] == "engine_init"
    )


def test_an_unknown_message_is_placed_by_where_it_was_raised() -> None:
    head = "(EngineCore pid=2) ERROR 08-01 10:09:00 [core.py:7] "
    lines = (
        "EngineCore encountered a fatal error.", "Traceback (most recent call last):", '  File "/v/vllm/v1/engine/core.py", line 5, in run_busy_loop',
        '  File "/v/vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py", line 734, in update_state_after_alloc', "AssertionError")
    verdict = judge(BEGIN + LOAD + READY + "".join(head + line + "\n" for line in lines))
    assert verdict["cause"] == "kv_offload_connector_bug" and verdict["confidence"] == "low"


def test_first_failure_is_the_line_of_the_file() -> None:
    text = BEGIN + trace("load_model", "ValueError: Load format `fastsafe` is not supported")
    verdict = judge(text)
    found = verdict["first_failure"]
    assert text.split("\n")[found["line"] - 1] == found["text"] and found["rank"] == "TP0"


def test_a_second_start_counts() -> None:
    failed = BEGIN + trace("load_model", "ValueError: Load format `fastsafe` is not supported") + FAILED_START
    assert not judge(failed + (BEGIN + LOAD + READY).replace("pid=1)", "pid=11)"))["failed"]
    assert judge(failed + BEGIN.replace("pid=1)", "pid=11)"))["class"] == "configuration"


@pytest.mark.parametrize("text", ["", "\n\n", "Hello, world\nthis is another program\n"])
def test_other_logs_are_refused_in_words(text: str) -> None:
    verdict = judge(text)
    assert not verdict["failed"] and verdict["class"] == "none" and verdict["phase"] is None and verdict["collect"] and verdict["confidence"] == "low"


def test_a_binary_file_is_named() -> None:
    verdict = diagnose([Source.from_bytes("core", b"\x7fELF" + bytes(4000))])
    assert verdict["refused"][0]["path"] == "core" and not verdict["failed"]


def test_no_source_at_all() -> None:
    assert diagnose([])["class"] == "none"


def test_hostile_text_stays_text() -> None:
    text = BEGIN + trace("load_model", "ValueError: \x1b]0;owned\x07<script>alert(1)</script>")
    found = judge(text)
    assert found["failed"] and "\x1b" not in found["next_action"] and all("\x1b" not in one for one in found["why"])


def test_prefix_cache_without_hits_under_load() -> None:
    line = (
        "(APIServer pid=1) INFO 08-01 10:0%d:00 [loggers.py:1] Engine 000: Avg prompt throughput: %s tokens/s, Avg generation throughput: 80.1 tokens/s, "
        "Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%%, Prefix cache hit rate: %s%%\n")
    assert judge(BEGIN + LOAD + READY + "".join(line % (minute, "5120.4", "0.0") for minute in range(3, 7)))["class"] == "prefix_cache"
    assert judge(BEGIN + LOAD + READY + "".join(line % (minute, "5120.4", "3.0") for minute in range(3, 7)))["class"] == "none"
    assert judge(BEGIN + LOAD + READY + "".join(line % (minute, "0.2", "0.0") for minute in range(3, 7)))["class"] == "none"


def test_advisories_match_versions() -> None:
    nccl = "(Worker_TP0 pid=3) INFO 08-01 10:00:07 [pynccl.py:69] vLLM is using nccl==%s\n"
    hang = "b300:5824:5877 [0] NCCL INFO NVLS tuning: nChannels 24\n"
    assert [one["id"] for one in judge(BEGIN + nccl % "2.30.7" + hang)["advisories"]] == ["nccl-nvls-hang"]
    assert judge(BEGIN + nccl % "2.28.9" + hang)["advisories"] == []


def test_the_timeline_has_a_lane_for_every_rank() -> None:
    verdict = judge(head=BEGIN + LOAD + READY, worker=BEGIN.replace("TP0", "TP1"))
    lanes = {(lane["node"], lane["rank"]): lane["reached"] for lane in verdict["timeline"]["lanes"]}
    assert lanes[("head", "TP0")] == "engine_init" and lanes[("worker", "TP1")] == "distributed_init" and lanes[("head", "APIServer")] == "api_ready"
    for lane in verdict["timeline"]["lanes"]:
        assert all(band["start"] <= band["end"] for band in lane["phases"])


WATCHDOG = """[rank3]:[E1012 22:31:22.267261276 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, \
OpType=GATHER, NumelIn=32064, NumelOut=0, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.
[rank3]:[E1012 22:31:22.268214341 ProcessGroupNCCL.cpp:1664] [PG 3 Rank 3] Exception (either an error or timeout) detected by watchdog at work: 9, last \
enqueued NCCL work: 9, last completed NCCL work: 8.
[rank3]:[E1012 22:31:22.268279156 ProcessGroupNCCL.cpp:621] [Rank 3] Some NCCL operations have failed or timed out. Due to the asynchronous nature
"""


@pytest.mark.parametrize(("number", "phase"), [(1, "distributed_init"), (203441, "decode")])
def test_a_collective_that_did_not_end_is_no_first_failure(number: int, phase: str) -> None:
    """Some rank did not take part; which, these lines do not say. The number of the collective tells a start from serving."""
    verdict = judge(WATCHDOG % number)
    assert said(verdict) == (True, phase, "nccl_other") and verdict["first_failure"] is None and verdict["collect"]


def test_a_compiler_that_failed_is_a_cause_and_a_launcher_is_none() -> None:
    compiler = trace("profile_run", "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/main.c', '-O3']' returned non-zero exit status 1.")
    assert judge(BEGIN + LOAD + compiler)["class"] == "dependency"
    launcher = "subprocess.CalledProcessError: Command '['torchrun', 'x']' returned non-zero exit status 1.\n"
    assert judge(BEGIN + LOAD + launcher)["first_failure"] is None


def test_symmetric_memory_fails_between_the_gpus() -> None:
    head = "(Worker_TP0 pid=3) ERROR 08-01 10:00:07 [multiproc_executor.py:597] "
    lines = (
        "WorkerProc failed to start.", "Traceback (most recent call last):", '  File "/v/device_communicators/symm_mem.py", line 88, in __init__',
        "    handle = rendezvous()", '  File "/t/torch/distributed/_symmetric_memory/__init__.py", line 1711, in rendezvous', "    return inner()",
        "RuntimeError: CUDA driver error: %s")
    text = BEGIN + "".join(head + line + "\n" for line in lines)
    assert said(judge(text % "invalid argument")) == (True, "distributed_init", "nvlink")
    assert judge(text % "system not yet initialized")["class"] == "fabric_not_ready"


def test_what_happens_between_ranks_is_no_phase_of_the_device() -> None:
    error = trace("init_device", "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", "10:00:05")
    assert judge(error)["phase"] == "distributed_init"
    assert judge(trace("init_device", "RuntimeError: CUDA error: initialization error", "10:00:05"))["phase"] == "device_init"


def test_logs_of_different_runs_are_told() -> None:
    """Two clusters in one folder: a verdict, with the doubt said."""
    other = (BEGIN + LOAD + READY).replace("version 0.17.0", "version 0.32.0").replace("(v0.17.0)", "(v0.32.0)")
    crash = BEGIN + LOAD + trace("load_weights", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "10:01:30")
    mixed = judge(node1=crash, node2=other)
    assert mixed["failed"] and mixed["confidence"] != "high" and "0.17.0 in node1, 0.32.0 in node2" in mixed["against"][0]
    later = judge(node1=crash, node2=(BEGIN + LOAD + READY).replace(" 08-01 ", " 08-04 "))
    assert "node2 begins 2 d after node1 ended" in later["against"][0]
    one = judge(node1=crash, node2=BEGIN + LOAD)
    assert one["confidence"] == "high" and not any("different runs" in text for text in one["against"])


def ranks(*reached: str) -> str:
    """Workers of one node, each up to the named place; all log all their lines."""
    steps = (
        ("groups", "[parallel_state.py:1] world_size=4 rank=%d local_rank=%d distributed_init_method=tcp://10.0.0.1:2 backend=nccl"),
        ("load", "[gpu_model_runner.py:1] Starting to load model /m... %d %d"), ("loaded", "[gpu_model_runner.py:2] Model loading took 9 GiB %d %d"))
    text = BEGIN.splitlines()[0] + "\n"
    for number, step in enumerate(steps):
        for rank, last in enumerate(reached):
            if [name for name, _line in steps].index(last) >= number:
                text += "(Worker_TP%d pid=%d) INFO 08-01 10:0%d:0%d %s\n" % (rank, 20 + rank, number, rank, step[1] % (rank, rank))
    return text


def test_one_rank_that_stops_before_the_others_is_named() -> None:
    verdict = judge(node1=ranks("loaded", "loaded", "groups", "loaded"))
    assert said(verdict) == (True, "distributed_init", "rendezvous") and verdict["confidence"] == "medium"
    assert verdict["why"][0] == "rank TP2 of node1 never reached engine_init, which 3 of 4 ranks reached"
    assert "rank TP2 of node1 (pid 22)" in verdict["next_action"]
    slow = judge(node1=ranks("loaded", "load", "loaded", "loaded"))
    assert said(slow) == (True, "weights_load", "startup_timeout") and "storage" in slow["next_action"] and "rank TP1 of node1 (pid 21)" in slow["collect"][0]


def test_a_line_that_only_the_first_rank_prints_makes_the_others_no_stragglers() -> None:
    verdict = judge(node1=ranks("loaded", "load", "load", "load"))
    assert verdict["phase"] == "engine_init" and not any("never reached" in text for text in verdict["why"])


TOO_SMALL = "ValueError: To serve at least one request with the models's max seq len (1048576), (120.00 GiB KV cache is needed)."
NO_ROOM = BEGIN + LOAD + trace("_initialize_kv_caches", TOO_SMALL, "10:02:00", "EngineCore pid=2", "EngineCore failed to start.") + FAILED_START
DIED = "(APIServer pid=1) ERROR 08-01 10:02:01 [async_llm.py:9] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"


def host(what: str, when: str = "07-28T03:11:00", who: str = "kernel") -> str:
    return "2026-%s.123456+0000 node1 %s: %s\n" % (when, who, what)


@pytest.mark.parametrize(
    "line",
    [
        host("Memory cgroup out of memory: Killed process 4711 (VLLM::Worker_TP) total-vm:91421kB"),
        host("dcgm-exporter[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libdcgm.so.4[7f00+1000]"),
        host("watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [khugepaged:771]"),
        host("pcieport 0000:20:01.1: AER: Uncorrected (Non-Fatal) error received: 0000:21:00.0"),
        host("failed to establish the domain: not ready on 2 nodes", who="nvidia-imex[812]"),
        host("fabric manager failed to initialize: NVSwitch driver version mismatch", who="nv-fabricmanager[812]"),
        host('level=error msg="could not select device driver \\"nvidia\\" with capabilities: [[gpu]]"', who="dockerd[812]"),
    ],
)
def test_what_the_host_said_days_before_the_start_is_not_the_cause(line: str) -> None:
    verdict = judge(NO_ROOM, node1=line)
    assert said(verdict) == (True, "engine_init", "oom_kv_sizing") and verdict["first_failure"]["file"] == "log0"
    assert any("4 d before this start" in text for text in verdict["against"])
    # In the minutes before the failure, the same line counts.
    assert judge(NO_ROOM, node1=line.replace("07-28T03:11:00", "08-01T10:01:30"))["first_failure"]["file"] == "node1"


def test_a_fabric_that_failed_at_boot_explains_what_looks_like_it() -> None:
    unknown = BEGIN + trace("init_device", "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment") + FAILED_START
    verdict = judge(unknown, node1=host("fabric manager failed to initialize: NVSwitch driver version mismatch", who="nv-fabricmanager[812]"))
    assert said(verdict)[2] == "fabric_not_ready"


@pytest.mark.parametrize("log, cls", [(NO_ROOM, "oom_kv_sizing"), (BEGIN + LOAD + READY, "none")])
def test_another_program_that_the_kernel_killed_is_none_of_the_engine(log: str, cls: str) -> None:
    lines = (
        "node_exporter invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE)",
        "Memory cgroup out of memory: Killed process 991 (node_exporter) total-vm:9kB",
        "INFO: task jbd2/sda1-8:771 blocked for more than 120 seconds.", "INFO: task kworker/3:1:71 blocked for more than 120 seconds.")
    text = "".join(host(line, "08-01T10:01:59" if cls != "none" else "08-01T12:00:00") for line in lines)
    assert said(judge(log, node1=text))[2] == cls
    own = text.replace("(node_exporter)", "(VLLM::Worker_TP)")
    assert said(judge(log, node1=own))[2] == "oom_host"


def test_a_kill_that_ended_the_start_before_is_told_while_the_next_goes_on() -> None:
    again = (BEGIN + LOAD).replace(" 10:0", " 10:3").replace("pid=", "pid=1")
    verdict = judge(BEGIN + LOAD + DIED + again, node1=host("Memory cgroup out of memory: Killed process 4711 (VLLM::Worker_TP)", "08-01T10:02:00"))
    assert said(verdict) == (True, "engine_init", "oom_host") and not any("before this start" in text for text in verdict["against"])


@pytest.mark.parametrize("head", ["2026-08-01T10:05:00.123456+0000 node1 kernel: ", "[ 8000.123456] ", "[Sat Aug  1 10:05:00 2026] "])
def test_a_task_of_the_engine_that_hangs_in_the_kernel(head: str) -> None:
    """The kernel itself begins this line with INFO."""
    verdict = judge(BEGIN + LOAD, node1=head + "INFO: task VLLM::Worker:4711 blocked for more than 120 seconds.\n")
    assert verdict["cause"] == "host_driver_hang" and verdict["first_failure"]["line"] == 1


def test_a_secret_in_a_line_is_not_in_the_verdict() -> None:
    """Logs that are named by hand have been cleaned by nobody, and reports are read by many."""
    error = "huggingface_hub.errors.HfHubHTTPError: 401 Client Error for url: https://lab:planted-password@hub.lan/api, token hf_AbCdEfGhIjKlMnOpQrStUvWx"
    verdict = judge(BEGIN + trace("load_model", error) + FAILED_START)
    assert "<redacted>" in verdict["first_failure"]["text"] and "401 Client Error" in verdict["first_failure"]["text"]
    assert "planted-password" not in str(verdict) and "hf_AbCd" not in str(verdict)
