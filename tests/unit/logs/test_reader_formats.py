# SPDX-License-Identifier: GPL-3.0-or-later
"""Every prefix format of the wild, one line or more each, with the fields that it must give."""

from __future__ import annotations

import calendar
from typing import Any, Dict, List, Tuple

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.logs.formats import Clock, clean, parse
from ansible_collections.inferops.vllm.plugins.module_utils.logs.kernel import fault
from ansible_collections.inferops.vllm.plugins.module_utils.logs.reader import events
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source

YEAR = 2026


def at(month: int, day: int, hour: int, minute: int, second: float, year: int = YEAR) -> float:
    return calendar.timegm((year, month, day, hour, minute, 0, 0, 0, 0)) + second


ESC = "\x1b"
CASES: List[Tuple[str, str, Dict[str, Any]]] = [
    # 1: vLLM up to 0.6
    ("vllm-0.6", "INFO 06-28 23:40:03 api_server.py:206] vLLM API server version 0.4.3",
     {"level": "INFO", "source": "api_server.py:206", "time": at(6, 28, 23, 40, 3), "text": "vLLM API server version 0.4.3", "process": ""}),
    ("vllm-0.6-error", "ERROR 02-09 02:31:09 engine.py:389] Traceback (most recent call last):",
     {"level": "ERROR", "source": "engine.py:389", "text": "Traceback (most recent call last):"}),
    # 2: 0.8 to 0.9
    ("vllm-0.8", "ERROR 05-26 07:50:26 [core.py:396] EngineCore failed to start.",
     {"level": "ERROR", "source": "core.py:396", "time": at(5, 26, 7, 50, 26), "text": "EngineCore failed to start."}),
    ("vllm-0.8-frame", 'ERROR 05-26 07:50:26 [core.py:396]   File "/x.py", line 1, in f', {"text": '  File "/x.py", line 1, in f'}),
    # 3
    ("vllmworker-rank", "(VllmWorker rank=3 pid=8627) ERROR 01-06 08:00:12 [multiproc_executor.py:492] WorkerProc failed to start.",
     {"process": "Worker", "rank": "3", "pid": 8627, "level": "ERROR", "source": "multiproc_executor.py:492"}),
    ("vllmworker-tp", "(VllmWorker TP1 pid=61) INFO 07-30 08:00:12 [gpu_worker.py:2] x", {"process": "Worker", "rank": "TP1", "pid": 61, "level": "INFO"}),
    ("vllmworker-number", "(VllmWorker-1 pid=7) WARNING 01-06 08:00:12 [vllm.py:2] x", {"process": "Worker", "rank": "1", "pid": 7, "level": "WARNING"}),
    # 4
    ("workerprocess", "(VllmWorkerProcess pid=77) ERROR 11-06 08:00:12 multiproc_worker_utils.py:233] Exception in worker",
     {"process": "Worker", "rank": "", "pid": 77, "source": "multiproc_worker_utils.py:233", "text": "Exception in worker"}),
    ("rayworker", "(RayWorkerWrapper pid=4707, ip=10.1.2.3) ERROR 06-05 16:29:50 worker_base.py:148] Error executing method init_device.",
     {"process": "Worker", "pid": 4707, "node": "10.1.2.3", "level": "ERROR"}),
    ("rayworker-new", "(EngineCore_DP0 pid=68) (RayWorkerWrapper pid=9, ip=10.0.0.2) ERROR 06-05 16:29:50 [worker_base.py:148] x",
     {"process": "Worker", "pid": 9, "node": "10.0.0.2"}),
    ("raylet", "(raylet, ip=10.0.0.3) [2026-10-30 06:14:20,118 E 123 123] (raylet) node_manager.cc:3065: 1 Workers killed due to memory pressure",
     {"level": "ERROR", "source": "node_manager.cc:3065", "node": "10.0.0.3"}),
    # 5
    ("enginecore-0", "(EngineCore_0 pid=228) INFO 08-19 20:13:54 [core.py:619] Waiting", {"process": "EngineCore", "rank": "DP0", "pid": 228}),
    ("enginecore-dp", "(EngineCore_DP3 pid=228) INFO 08-19 20:13:54 [core.py:619] Waiting", {"process": "EngineCore", "rank": "DP3"}),
    ("enginecore", "(EngineCore pid=228) ERROR 08-19 20:13:54 [core.py:619] x", {"process": "EngineCore", "rank": "", "level": "ERROR"}),
    # 6
    ("apiserver", "(APIServer pid=1) INFO 08-19 20:13:54 [api_server.py:1912] x", {"process": "APIServer", "pid": 1, "rank": ""}),
    ("apiserver-n", "(ApiServer_5 pid=91) INFO 08-19 20:13:54 [launcher.py:2] x", {"process": "APIServer", "pid": 91, "rank": ""}),
    # 7
    ("worker", "(Worker pid=3) INFO 08-19 20:13:54 [a.py:1] x", {"process": "Worker", "rank": "", "pid": 3}),
    ("worker-tp", "(Worker_TP0 pid=3) INFO 08-19 20:13:54 [a.py:1] x", {"process": "Worker", "rank": "TP0"}),
    ("worker-tp-ep", "(Worker_TP1_EP1 pid=3) INFO 08-19 20:13:54 [a.py:1] x", {"rank": "TP1_EP1"}),
    ("worker-dp-ep", "(Worker_DP0_EP0 pid=3) INFO 08-19 20:13:54 [a.py:1] x", {"rank": "DP0_EP0"}),
    ("worker-pp-tp", "(Worker_PP1_TP7 pid=3) INFO 08-19 20:13:54 [a.py:1] x", {"rank": "PP1_TP7"}),
    ("worker-pp-tp-ep", "(Worker_PP0_TP4_EP4 pid=3) INFO 08-19 20:13:54 [a.py:1] x", {"rank": "PP0_TP4_EP4"}),
    ("worker-dcp", "(Worker_TP1_DCP1_EP1 pid=3) INFO 08-19 20:13:54 [a.py:1] x", {"process": "Worker", "rank": "TP1_DCP1_EP1"}),
    ("worker-bare", "(Worker_TP0 pid=1950) Loading safetensors checkpoint shards:   0% Completed | 0/64",
     {"rank": "TP0", "level": "", "text": "Loading safetensors checkpoint shards:   0% Completed | 0/64"}),
    ("worker-indented", '(APIServer pid=5)   File "/x.py", line 9, in g', {"process": "APIServer", "text": '  File "/x.py", line 9, in g'}),
    # 8
    ("stacked", "(APIServer pid=1) (EngineCore_DP0 pid=68) ERROR 02-06 16:33:54 [core.py:936] EngineCore failed to start.",
     {"process": "EngineCore", "rank": "DP0", "pid": 68, "level": "ERROR", "text": "EngineCore failed to start."}),
    ("stacked-workers", "(Worker_PP1_TP7 pid=9) (Worker_PP1_TP2 pid=4) ERROR 02-06 16:33:54 [a.py:9] x", {"rank": "PP1_TP2", "pid": 4}),
    # 9
    ("path-source", "ERROR 05-26 07:50:26 [v1/executor/multiproc_executor.py:558] x", {"source": "multiproc_executor.py:558", "text": "x"}),
    ("stage", "[Stage-0] (EngineCore pid=3) ERROR 05-26 07:50:26 [core.py:5] x", {"process": "EngineCore", "level": "ERROR"}),
    ("stage-behind", "ERROR 05-26 07:50:26 [core.py:5] [Stage-0] x", {"text": "x"}),
    # 10
    ("ansi", ESC + "[1;36m(EngineCore_DP0 pid=7)" + ESC + "[0;0m ERROR 05-26 07:50:26 [core.py:5] x", {"process": "EngineCore", "rank": "DP0", "text": "x"}),
    ("ansi-level", ESC + "[1;36m(EngineCore_DP0 pid=7)" + ESC + "[0;0m " + ESC + "[33mWARNING" + ESC + "[0m " + ESC + "[90m05-26 07:50:26" + ESC + "[0m "
     + ESC + "[90m[core.py:5]" + ESC + "[0m x", {"level": "WARNING", "source": "core.py:5", "text": "x"}),
    ("ansi-lost", "[1;36m(EngineCore_DP0 pid=7)[0;0m ERROR 05-26 07:50:26 [core.py:5] x", {"process": "EngineCore", "text": "x"}),
    ("ansi-written", "\\x1b[1;36m(EngineCore_DP0 pid=7)\\x1b[0;0m ERROR 05-26 07:50:26 [core.py:5] x", {"process": "EngineCore", "text": "x"}),
    ("ansi-syslog", "#033[1;36m(EngineCore_DP0 pid=7)#033[0;0m ERROR 05-26 07:50:26 [core.py:5] x", {"process": "EngineCore", "text": "x"}),
    ("osc", ESC + "]8;;http://x" + ESC + "\\ERROR 05-26 07:50:26 [core.py:5] x" + ESC + "]8;;\x07", {"level": "ERROR", "text": "x"}),
    # 11
    ("torch-rank", "[rank3]:[W801 01:16:39.100623596 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl",
     {"rank": "3", "level": "WARNING", "source": "TCPStore.cpp:125", "time": at(8, 1, 1, 16, 39.100623), "text": "[c10d] recvValue failed on SocketImpl"}),
    ("torch-python", "[rank2]:E0716 18:21:22.792000 4711 torch/_dynamo/utils.py:874] x",
     {"rank": "2", "level": "ERROR", "pid": 4711, "source": "utils.py:874", "time": at(7, 16, 18, 21, 22.792), "text": "x"}),
    ("glog-year", "E20250716 18:21:22.792000  4711 rdma_transport.cpp:820] Failed to connect",
     {"level": "ERROR", "pid": 4711, "time": at(7, 16, 18, 21, 22.792, 2025), "source": "rdma_transport.cpp:820", "text": "Failed to connect"}),
    ("torch-python-norank", "E0716 18:21:22.792000 4711 site-packages/torch/distributed/elastic/api.py:874] failed", {"level": "ERROR", "pid": 4711}),
    ("torch-old", "[E ProcessGroupNCCL.cpp:474] [Rank 1] Watchdog caught collective operation timeout",
     {"level": "ERROR", "source": "ProcessGroupNCCL.cpp:474", "text": "[Rank 1] Watchdog caught collective operation timeout"}),
    ("torch-october", "[E1031 11:45:10.267960555 ProcessGroupNCCL.cpp:685] x", {"level": "ERROR", "time": at(10, 31, 11, 45, 10.26796)}),
    ("torch-bare-time", "[W 08:12:01 socket.cpp:464] [c10d] x", {"level": "WARNING", "source": "socket.cpp:464"}),
    ("torch-plain-rank", "[rank3]: ncclUnhandledCudaError: Call to CUDA function failed.",
     {"rank": "3", "text": "ncclUnhandledCudaError: Call to CUDA function failed."}),
    # 12
    ("nccl", "pod0:5563:5591 [0] NCCL INFO Using network IB", {"node": "pod0", "pid": 5563, "level": "INFO", "text": "Using network IB"}),
    ("nccl-warn", "b200-n1.x.y:4393:4438 [3] init.cc:529 NCCL WARN Cuda failure 802 'system not yet initialized'",
     {"node": "b200-n1.x.y", "pid": 4393, "level": "WARNING", "source": "init.cc:529", "text": "Cuda failure 802 'system not yet initialized'"}),
    ("nccl-dated", "[2026-03-13 22:26:02] hgx-05:4120:4188 [5] ibvwrap.c:262 NCCL WARN Call failed",
     {"node": "hgx-05", "pid": 4120, "level": "WARNING", "time": at(3, 13, 22, 26, 2), "source": "ibvwrap.c:262"}),
    ("nccl-path", "h:1:2 [3] transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion", {"source": "p2p.cc:688"}),
    # 13
    ("ucx", "[1778059001.120034] [gb200-21:40112:0]  cuda_ipc_ep.c:166  UCX  ERROR cuMemcpyDtoDAsync() failed: invalid argument",
     {"node": "gb200-21", "pid": 40112, "level": "ERROR", "source": "cuda_ipc_ep.c:166", "time": 1778059001.120034,
      "text": "cuMemcpyDtoDAsync() failed: invalid argument"}),
    ("ucx-spaces", "[1780394401.22] [gb200-01:3045 :0]          ib_md.c:295  UCX  WARN  x", {"node": "gb200-01", "pid": 3045, "level": "WARNING"}),
    ("nvshmem", "/opt/nvshmem/src/host/init/init.cu:989: non-zero status: 7 nvshmem setup connections failed",
     {"source": "init.cu:989", "level": "ERROR", "text": "non-zero status: 7 nvshmem setup connections failed"}),
    # 14
    ("flashinfer", "2026-07-25 15:14:08,784 - INFO - autotuner.py:651 - flashinfer.jit: [Autotuner]: tuning",
     {"level": "INFO", "source": "autotuner.py:651", "time": at(7, 25, 15, 14, 8.784), "text": "flashinfer.jit: [Autotuner]: tuning"}),
    ("logging-name", "2026-07-25 15:14:08,784 - vllm.lmcache - ERROR - cannot connect", {"level": "ERROR", "source": "vllm.lmcache", "text": "cannot connect"}),
    ("ray-python", "2026-10-30 06:14:20,118\tWARNING worker.py:2037 -- A worker died or was killed",
     {"level": "WARNING", "source": "worker.py:2037", "text": "A worker died or was killed"}),
    ("rust", "2026-03-11T17:57:10.976518Z  INFO vllm_frontend::server: OpenAI server is ready to accept requests",
     {"level": "INFO", "text": "OpenAI server is ready to accept requests"}),
    ("uvicorn", "INFO:     Application startup complete.", {"level": "INFO", "text": "Application startup complete."}),
    ("uvicorn-error", "(APIServer pid=1) ERROR:    Exception in ASGI application",
     {"process": "APIServer", "level": "ERROR", "text": "Exception in ASGI application"}),
    # 15
    ("compose", "vllm-1  | (APIServer pid=1) INFO 07-28 03:34:27 [api_server.py:1912] x", {"process": "APIServer", "level": "INFO", "text": "x"}),
    ("compose-indented", 'vllm-1  |   File "/x.py", line 4, in f', {"text": '  File "/x.py", line 4, in f'}),
    ("kubernetes", "2026-03-11T17:57:10.976518836Z (Worker_TP3 pid=4) ERROR 03-11 18:57:10 [a.py:1] x",
     {"rank": "TP3", "level": "ERROR", "time": at(3, 11, 17, 57, 10.976518), "text": "x"}),
    ("kubernetes-indented", '2026-03-11T17:57:10.976518836Z   File "/x.py", line 4, in f', {"text": '  File "/x.py", line 4, in f'}),
    ("cri", "2026-03-11T17:57:10.976518836Z stderr F ERROR 03-11 17:57:10 [a.py:1] x", {"level": "ERROR", "text": "x"}),
    ("cri-zone", "2026-03-11T19:57:10.5+02:00 stdout F ERROR 03-11 17:57:10 [a.py:1] x", {"level": "ERROR", "time": at(3, 11, 17, 57, 10.5)}),
    ("kubectl-prefix", "[pod/vllm-0/vllm] (Worker_TP3 pid=4) ERROR 03-11 17:57:10 [a.py:1] x", {"rank": "TP3", "text": "x"}),
    ("journal-short", "Aug 19 18:34:27 gpu-7 vllm-serve[4242]: (Worker_TP3 pid=4) ERROR 08-19 18:34:27 [a.py:1] x",
     {"node": "gpu-7", "rank": "TP3", "pid": 4, "time": at(8, 19, 18, 34, 27), "text": "x"}),
    ("journal-bare", "Aug  9 18:34:27 gpu-7 docker[4242]: usage: vllm serve",
     {"node": "gpu-7", "pid": 4242, "time": at(8, 9, 18, 34, 27), "text": "usage: vllm serve"}),
    ("journal-precise", "Aug 19 18:34:27.123456 gpu-7 vllm[1]: x", {"time": at(8, 19, 18, 34, 27.123456), "node": "gpu-7"}),
    ("journal-iso", "2026-08-19T18:34:27+0000 gpu-7 vllm[1]: ERROR 08-19 18:34:27 [a.py:1] x",
     {"node": "gpu-7", "level": "ERROR", "time": at(8, 19, 18, 34, 27)}),
    ("journal-full", "Wed 2026-08-19 18:34:27 UTC gpu-7 vllm[1]: ERROR 08-19 18:34:27 [a.py:1] x", {"node": "gpu-7", "level": "ERROR"}),
    ("journal-unix", "1787164467.123456 gpu-7 vllm[1]: ERROR 08-19 18:34:27 [a.py:1] x", {"node": "gpu-7", "level": "ERROR", "time": 1787164467.123456}),
    ("journal-kernel", "Aug 19 18:34:27 gpu-7 kernel: NVRM: Xid (PCI:0000:6a:00): 79, pid=1, GPU has fallen off the bus.",
     {"node": "gpu-7", "process": "kernel", "text": "NVRM: Xid (PCI:0000:6a:00): 79, pid=1, GPU has fallen off the bus."}),
    ("srun", "srun: error: node2: task 3: Exited with exit code 1", {"process": "srun", "level": "ERROR", "text": "node2: task 3: Exited with exit code 1"}),
    ("slurmstepd", "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-10-30T06:14:20 ***", {"process": "slurmstepd", "level": "ERROR"}),
    ("slurmstepd-node", "slurmstepd-n1: error: Detected 1 oom_kill event", {"process": "slurmstepd", "level": "ERROR", "text": "Detected 1 oom_kill event"}),
    ("srun-label", "3: (Worker_TP3 pid=4) ERROR 03-11 17:57:10 [a.py:1] x", {"rank": "TP3", "level": "ERROR"}),
    ("torchrun", "[default5]:ERROR 03-11 17:57:10 [a.py:1] x", {"rank": "5", "level": "ERROR"}),
    ("mpirun", "[1,6]<stderr>:ERROR 03-11 17:57:10 [a.py:1] x", {"rank": "6", "level": "ERROR"}),
    # 16
    ("dmesg", "[ 1843.334530] NVRM: Xid (PCI:0000:6a:00): 13, pid='<unknown>'", {"process": "kernel", "clock": "boot", "time": 1843.33453}),
    ("dmesg-caller", "[ 1843.334530][ T1234] NVRM: Xid (PCI:0000:6a:00): 13", {"process": "kernel", "text": "NVRM: Xid (PCI:0000:6a:00): 13"}),
    ("dmesg-raw", "<4>[ 1843.334530] NVRM: loading", {"process": "kernel", "level": "WARNING", "text": "NVRM: loading"}),
    ("dmesg-T", "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:6a:00): 13", {"process": "kernel", "clock": "wall", "time": at(2, 23, 16, 24, 18, 2025)}),
    ("dmesg-iso", "kern  :warn  : 2025-02-23T16:24:18,123456+00:00 NVRM: Xid (PCI:0000:6a:00): 13",
     {"process": "kernel", "level": "WARNING", "time": at(2, 23, 16, 24, 18.123456, 2025), "text": "NVRM: Xid (PCI:0000:6a:00): 13"}),
    ("dmesg-x", "kern  :err   : [ 1843.334530] mlx5_core 0000:1a:00.0: x", {"process": "kernel", "level": "ERROR", "clock": "boot", "time": 1843.33453}),
    ("kmsg", "3,3973,227996636,-;NVRM: Xid (PCI:0000:6a:00): 13", {"process": "kernel", "level": "ERROR", "clock": "boot", "time": 227.996636}),
    ("kmsg-caller", "6,3973,227996636,-,caller=T12;NVRM: x", {"process": "kernel", "level": "INFO", "text": "NVRM: x"}),
    ("talos", "10.0.0.9: kern:     err: [2026-04-22T21:31:04.201884110Z]: nvidia-nvswitch1: SXid (PCI:0000:c6:00.0): 24007, Severity 1",
     {"node": "10.0.0.9", "process": "kernel", "level": "ERROR", "time": at(4, 22, 21, 31, 4.201884)}),
    ("short-monotonic", "[ 1843.334530] gpu-7 kernel: NVRM: x", {"process": "kernel", "node": "gpu-7", "text": "NVRM: x"}),
    ("kernel-naked", "NVRM: Xid (PCI:0000:6a:00): 13, pid=7", {"process": "kernel", "clock": ""}),
    # collectors that are not known
    ("pdsh", "gpu-7: (Worker_TP3 pid=4) ERROR 03-11 17:57:10 [a.py:1] x", {"node": "gpu-7", "rank": "TP3", "level": "ERROR", "text": "x"}),
    ("stern", "vllm-0 vllm ERROR 03-11 17:57:10 [a.py:1] x", {"level": "ERROR", "text": "x"}),
    ("store", 'ts=1 app="vllm" | (Worker_TP3 pid=4) ERROR 03-11 17:57:10 [a.py:1] x', {"rank": "TP3", "level": "ERROR", "text": "x"}),
    ("quoted", "> ERROR 05-26 07:50:26 [core.py:396] x", {"level": "ERROR", "text": "x"}),
    ("message-before", "RuntimeError: boom (Worker_TP3 pid=4) INFO 03-11 17:57:10 [a.py:1] x",
     {"text": "RuntimeError: boom (Worker_TP3 pid=4) INFO 03-11 17:57:10 [a.py:1] x", "rank": ""}),
    # none of them
    ("plain", "Killed", {"process": "", "level": "", "text": "Killed", "time": None}),
    ("llvm", "LLVM ERROR: Cannot select", {"text": "LLVM ERROR: Cannot select"}),
    ("bracket-text", "[shutdown] Engine", {"text": "[shutdown] Engine"}),
    ("paren-text", "(see above) text", {"text": "(see above) text", "process": ""}),
    ("python-warning", "/usr/lib/python3/x.py:128: UserWarning: CUDA initialization: too old", {"level": "WARNING", "source": "x.py:128"}),
    ("not-compose", "a | b", {"text": "b"}),
    ("access", 'INFO:     10.0.0.1:12 - "GET /health HTTP/1.1" 200 OK', {"level": "INFO", "text": '10.0.0.1:12 - "GET /health HTTP/1.1" 200 OK'}),
    ("bar-then-line", "Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s](Worker_TP3 pid=4) ERROR 03-11 17:57:10 [a.py:1] x",
     {"rank": "TP3", "level": "ERROR", "text": "x"}),
    ("bad-date", "ERROR 13-41 27:61:99 [a.py:1] x", {"level": "ERROR", "time": None, "text": "x"}),
    ("leap-day", "ERROR 02-29 10:00:00 [a.py:1] x", {"level": "ERROR", "text": "x"}),
]


@pytest.mark.parametrize(("line", "wanted"), [pytest.param(line, wanted, id=name) for name, line, wanted in CASES])
def test_prefix(line: str, wanted: Dict[str, Any]) -> None:
    found = parse(clean(line), Clock(YEAR))
    for field, value in wanted.items():
        got = getattr(found, field)
        if field == "time" and value is not None:
            assert got == pytest.approx(value, abs=1e-5), field
        else:
            assert got == value, field


def one(data: str, **more: Any) -> Any:
    found = list(events([Source.from_bytes("x", data.encode(), year=YEAR, **more)]))
    assert len(found) == 1, found
    return found[0]


def test_docker_json() -> None:
    event = one('{"log":"\\u001b[1;36m(Worker_TP1 pid=9)\\u001b[0;0m ERROR 03-11 17:57:10 [a.py:1] x\\n","stream":"stderr","time":"2026-03-11T17:57:10.5Z"}\n')
    assert (event.rank, event.pid, event.level, event.text, event.time) == ("TP1", 9, "ERROR", "x", at(3, 11, 17, 57, 10.5))
    assert event.raw.startswith('{"log"')


def test_journal_json() -> None:
    event = one('{"__REALTIME_TIMESTAMP":"1787164467123456","_HOSTNAME":"gpu-7","SYSLOG_IDENTIFIER":"vllm","_PID":"4242",'
                '"MESSAGE":"ERROR 08-19 18:34:27 [a.py:1] x"}\n')
    assert (event.node, event.pid, event.level, event.text, event.time) == ("gpu-7", 4242, "ERROR", "x", 1787164467.123456)


def test_journal_json_of_bytes_and_several_lines() -> None:
    message = str(list(b"RuntimeError: a\nsecond line\x1b[0m"))
    event = one('{"__REALTIME_TIMESTAMP":"1787164467123456","_HOSTNAME":"gpu-7","_PID":"4242","MESSAGE":%s}\n' % message)
    assert (event.text, event.body, event.exceptions) == ("RuntimeError: a", ("second line",), (("RuntimeError: a", 1),))


def test_journal_json_of_kernel() -> None:
    event = one('{"__REALTIME_TIMESTAMP":"1787164467123456","_HOSTNAME":"g","_TRANSPORT":"kernel","PRIORITY":"3",'
                '"MESSAGE":"NVRM: Xid (PCI:0000:6a:00): 13"}\n')
    assert (event.process, event.level, event.text) == ("kernel", "ERROR", "NVRM: Xid (PCI:0000:6a:00): 13")


def test_json_of_a_logger() -> None:
    event = one('{"timestamp": "2026-03-11T17:57:10Z", "level": "error", "message": "boom", "name": "vllm.x", "lineno": 4, "process": 12}\n')
    assert (event.level, event.text, event.source, event.pid, event.time) == ("ERROR", "boom", "vllm.x:4", 12, at(3, 11, 17, 57, 10))


def test_json_behind_a_prefix() -> None:
    event = one('2026-03-11T17:57:10.5Z {"level": "error", "msg": "boom", "time": ""}\n')
    assert (event.level, event.text, event.time) == ("ERROR", "boom", at(3, 11, 17, 57, 10.5))


@pytest.mark.parametrize("text", ["{", "{}", '{"log": 5}', '{"MESSAGE": null, "PRIORITY": []}', "{" * 2000 + "}", '{"MESSAGE": [1, 999], "PRIORITY": "x"}',
                                  '{"__REALTIME_TIMESTAMP": "1e999", "MESSAGE": "x"}', '{"level": "error", "message": "x", "time": 5, "pid": 1e300}'])
def test_odd_json_is_an_event_of_its_own_text_or_none(text: str) -> None:
    assert len(list(events([Source.from_bytes("x", text.encode())]))) <= 1


def test_boot_seconds_become_wall_time_when_the_boot_is_known() -> None:
    event = one("[  100.500000] NVRM: x\n", boot=1.7e9, offset=2.0)
    assert (event.clock, event.time) == ("wall", 1.7e9 + 102.5)


def test_offset_moves_wall_time() -> None:
    assert one("ERROR 08-19 18:34:27 [a.py:1] x\n", offset=-3.0).time == at(8, 19, 18, 34, 24)


def test_year_of_another_stream_completes_times_without_one() -> None:
    found = list(events([Source.from_bytes("a", b"ERROR 08-19 18:34:27 [a.py:1] x\n"),
                         Source.from_bytes("b", b"[2024-08-19 18:34:30] h:1:2 [0] NCCL INFO x\n")]))
    assert found[0].time == at(8, 19, 18, 34, 27, 2024)


def test_lines_of_an_unknown_collector_stay_together() -> None:
    text = "ERROR 03-11 17:57:10 [a.py:1] it failed\nTraceback (most recent call last):\n  File \"/x.py\", line 1, in f\nValueError: x\n"
    data = "".join("gpu-%d: %s\n" % (node, line) for line in text.splitlines() for node in (1, 2))
    for wanted in (None, ()):
        found = sorted(events([Source.from_bytes("a", data.encode())], wanted), key=lambda event: event.line)
        assert [(event.node, event.line, event.exceptions) for event in found] == [("gpu-1", 1, (("ValueError: x", 7),)), ("gpu-2", 2, (("ValueError: x", 8),))]


def test_process_of_an_xid() -> None:
    event = one("[ 1843.334530] NVRM: Xid (PCI:0000:6A:00): 31, pid=4711, name=VLLM::Worker, Ch 00000008, MMU Fault\n")
    assert (event.process, event.pid) == ("kernel", 4711)
    found = fault(event.text, event.body)
    assert found is not None
    assert found[:7] == ("xid", "0000:6a:00.0", 31, 4711, "VLLM::Worker", "RESTART_APP", "application")


def test_faults_of_the_kernel() -> None:
    switch = fault("nvidia-nvswitch1: SXid (PCI:0000:c6:00.0): 24007, Severity 1 Engine instance 12 Sub-engine instance 00")
    assert switch is not None and (switch.kind, switch.address, switch.code, switch.group) == ("sxid", "0000:c6:00.0", 24007, "reset")
    lost = fault("NVRM: The NVIDIA GPU 0000:e1:00.0", ("  NVRM: (PCI ID: 10de:26b5) installed in this system has", "  NVRM: fallen off the bus."))
    assert lost is not None and (lost.kind, lost.address, lost.group) == ("fallen", "0000:e1:00.0", "reboot")
    assert fault("NVRM: loading NVIDIA UNIX Open Kernel Module") is None and fault("") is None


def test_new_year_in_a_log_without_years() -> None:
    found = list(events([Source.from_bytes("a", b"ERROR 12-31 23:59:59 [a.py:1] x\nERROR 01-01 00:00:01 [a.py:1] y\n", year=2025)]))
    assert found[1].time is not None and found[0].time is not None
    assert found[1].time - found[0].time == 2


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\x1b]0;title\x07b", "a\u202eb", "a\u200bb", "a\x9b31mb", "a\x1bPdata\x1b\\b",
                                  "a\x00b", "a\x08b", "a\ufeffb", "a\x7fb", "a\x85b"])
def test_clean_takes_hostile_characters_out(text: str) -> None:
    assert clean(text).replace(" ", "") == "ab"


def test_clean_keeps_words_of_other_languages() -> None:
    assert clean("Größe 中文 – ▄▄ 💥") == "Größe 中文 – ▄▄ 💥"
