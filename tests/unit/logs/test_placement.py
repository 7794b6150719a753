# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose GPU a message of the kernel is about: by NCCL's bus numbers, by processes, by the evidence; and when it is of another run."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.logs import placement
from ansible_collections.inferops.vllm.plugins.module_utils.logs.diagnose import diagnose
from ansible_collections.inferops.vllm.plugins.module_utils.logs.placement import Facts
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source
from tests.unit.logs.test_diagnose_rules import BEGIN, LOAD, READY, RELAYS, trace

DATE = "2026-08-01T"
CRASH = trace("execute_model", "RuntimeError: CUDA error: unspecified launch failure", "10:09:00", first="WorkerProc hit an exception.")
OF_TP1 = CRASH.replace("Worker_TP0 pid=3", "Worker_TP1 pid=4")


def worker(rank: int, pid: int) -> str:
    return (
        "(Worker_TP%d pid=%d) INFO 08-01 10:00:06 [parallel_state.py:1] world_size=2 rank=%d local_rank=%d distributed_init_method=tcp://10.0.0.1:2 "
        "backend=nccl\n" % (rank, pid, rank, rank))


def nccl(host: str = "node1", ranks: int = 2, first: int = 0x1B, count: int = 2, pid: int = 3) -> str:
    """Lines of NCCL 2.28: rank N on the GPU with the bus number `first` + N."""
    return "".join(
        "%s:%d:%d [%d] NCCL INFO ncclCommInitRankConfig comm 0x55d0 rank %d nranks %d cudaDev %d nvmlDev %d busId %x commId 0xf00d - Init COMPLETE\n"
        % (host, pid + rank, 900 + rank, rank, rank, count, rank, rank, (first + rank) << 12) for rank in range(ranks))


def stamped(text: str, node: str = "node1") -> str:
    """Every line as the journal shows it, with a zone, the day of BEGIN at the vLLM's own time."""
    shown: List[str] = []
    time = "10:00:00"
    for line in text.splitlines():
        own = re.search(r" (\d\d:\d\d:\d\d) ", line)
        time = own.group(1) if own else time
        shown.append("%s%s.000000+00:00 %s vllm[77]: %s\n" % (DATE, time, node, line))
    return "".join(shown)


ENGINE = BEGIN + worker(1, 4) + nccl() + LOAD + READY


def kernel(address: str, code: int = 79, time: str = "10:08:57", node: str = "node1", pid: int = 0, text: str = "GPU has fallen off the bus.") -> str:
    named = "pid=%d, name=VLLM::Worker_TP, " % pid if pid else ""
    return "%s%s.000000+00:00 %s kernel: NVRM: Xid (PCI:0000:%s:00): %d, %s%s\n" % (DATE, time, node, address, code, named, text)


def judge(engine: str, log: str, facts: Optional[Dict[str, Facts]] = None, boot: Optional[float] = None, node: str = "") -> Dict[str, Any]:
    return diagnose(
        [Source.from_bytes("engine.log", engine.encode(), node=node), Source.from_bytes("kernel.log", log.encode(), node=node, boot=boot)], facts=facts)


def place(verdict: Dict[str, Any]) -> Any:
    first = verdict["first_failure"]
    return first["file"], first["rank"], first.get("gpu"), first.get("address")


def test_ncc_bus_numbers() -> None:
    assert [placement.bus_address(text) for text in ("1b000", "901000", "3000", "10a1f3", "c30000", "ffff0ff1f7")] == [
        "0000:1b:00.0", "0009:01:00.0", "0000:03:00.0", "0001:0a:1f.3", "000c:30:00.0", "ffff0:ff:1f.7"]
    assert placement.bus_address("xyz") == "" and placement.bus_address("f" * 16) == ""


@given(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_a_bus_number_is_what_nccl_makes_of_the_address(domain: int, bus: int, dev: int, function: int) -> None:
    """NCCL strips ':' and '.' from the address and reads the rest as one hexadecimal number."""
    address = "%04x:%02x:%02x.%x" % (domain, bus, dev, function)
    assert placement.bus_address("%x" % int(address.replace(":", "").replace(".", ""), 16)) == address


@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    for line in (text, "rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId " + text, "world_size=1 rank=0 local_rank=" + text):
        placement.comm(line, 1, "n", 1, "")
        placement.worker(line, "n", 1, "")
        placement.local_ranks(line)


@pytest.mark.parametrize(("text", "rank", "address", "index"), [
    ("ncclCommInitRankConfig comm 0x1 rank 5 nranks 16 cudaDev 5 nvmlDev 3 busId ab000 commId 0x1 - Init START", 5, "0000:ab:00.0", 3),
    ("comm 0x7f0 rank 0 nranks 8 cudaDev 0 busId 10000000 - Init COMPLETE", 0, "0100:00:00.0", -1),
    ("[Rank 2] ncclCommGrow comm 0x1 rank 2 nranks 4 cudaDev 2 nvmlDev 2 busId 4a000 commId 0x2 - Init START", 2, "0000:4a:00.0", 2)])
def test_lines_of_a_communicator(text: str, rank: int, address: str, index: int) -> None:
    found = placement.comm(text, 7, "n1", 4, "TP5")
    assert found is not None and (found.rank, found.address, found.smi, found.name) == (rank, address, index, "TP5")
    assert placement.comm(text.replace("busId", "bus"), 7, "n1", 4, "TP5") is None


@pytest.mark.parametrize(("address", "rank", "gpu"), [("1b", "TP0", 0), ("1c", "TP1", 1)])
def test_an_xid_names_the_rank_of_its_gpu(address: str, rank: str, gpu: int) -> None:
    """Also where another rank complained first: TP1's error follows from the GPU of TP0."""
    verdict = judge(stamped(ENGINE + OF_TP1 + RELAYS), kernel(address))
    assert verdict["class"] == "gpu_fault" and place(verdict) == ("kernel.log", rank, gpu, "0000:%s:00.0" % address)
    assert "NCCL's line engine.log:" in verdict["first_failure"]["rank_source"] and "GPU %d, rank %s" % (gpu, rank) in verdict["next_action"]
    assert any("3 s before the engine's first complaint" in text for text in verdict["why"]), verdict["why"]


def test_an_xid_of_a_gpu_outside_is_no_first_failure() -> None:
    verdict = judge(stamped(ENGINE + OF_TP1 + RELAYS), kernel("5d"))
    assert verdict["class"] == "cuda_crash" and place(verdict)[:2] == ("engine.log", "TP1")
    assert any("Xid 79" in text and "no rank of this engine uses it" in text for text in verdict["against"])
    # One rank whose GPU is not known, and it may be that one.
    verdict = judge(stamped(BEGIN + worker(1, 4) + nccl(ranks=1) + LOAD + READY + OF_TP1 + RELAYS), kernel("5d"))
    assert verdict["class"] == "gpu_fault" and place(verdict) == ("kernel.log", "", None, "0000:5d:00.0")


def test_a_healthy_engine_beside_a_broken_gpu_is_healthy() -> None:
    verdict = judge(stamped(ENGINE), kernel("5d", time="11:00:00"))
    assert not verdict["failed"] and any("no rank of this engine uses it" in text for text in verdict["against"])
    assert judge(stamped(ENGINE), kernel("1c", time="11:00:00"))["failed"]


def test_without_a_map_the_rank_is_said_to_be_unknown() -> None:
    verdict = judge(stamped(BEGIN + LOAD + READY + CRASH + RELAYS), kernel("6a"))
    assert verdict["class"] == "gpu_fault" and place(verdict) == ("kernel.log", "", None, "0000:6a:00.0")
    assert verdict["first_failure"]["rank_source"] == "no line tells which rank uses this GPU" and "rank unknown" in verdict["why"][0]


def test_the_process_that_the_driver_names() -> None:
    engine = stamped(BEGIN + worker(1, 4) + LOAD + READY + CRASH + RELAYS)
    assert place(judge(engine, kernel("6a", pid=4)))[1] == "TP1"
    assert place(judge(engine, kernel("6a", pid=4711)))[1] == ""
    # In a container the numbers differ; the evidence has both.
    facts = {"node1": Facts(pids=((4711, 4), (4710, 3)))}
    assert place(judge(engine, kernel("6a", pid=4711), facts))[1] == "TP1"
    assert place(judge(engine, kernel("6a", pid=4), facts))[1] == ""
    facts = {"node1": Facts(pids=((4711, 4), (4710, 3)), users=((4710, "0000:6a:00.0"),))}
    assert place(judge(engine, kernel("6a"), facts))[1] == "TP0"


GPUS = tuple(("0000:%s:00.0" % bus, number, "GPU-%s-0000" % bus) for number, bus in enumerate(("1b", "43", "52", "9d")))


@pytest.mark.parametrize(("visible", "granted", "expected"), [
    (None, None, ["1b", "43", "52", "9d"]), ("2,0", None, ["52", "1b"]), ("GPU-9d,GPU-43", None, ["9d", "43"]), (None, "3,1", ["43", "9d"]),
    ("1", "3,1", ["9d"]), (None, "all", ["1b", "43", "52", "9d"]), ("0", "void", None), ("7", None, None), ("MIG-1", None, None), ("GPU-", None, None),
    ("", None, [])])
def test_the_order_in_which_cuda_numbers_gpus(visible: Optional[str], granted: Optional[str], expected: Optional[List[str]]) -> None:
    order = placement.device_order(Facts(GPUS, known=True, visible=visible, granted=granted))
    assert order == (None if expected is None else ["0000:%s:00.0" % bus for bus in expected])
    assert placement.device_order(Facts(GPUS, visible=visible, granted=granted)) is None
    assert placement.device_order(Facts(GPUS, alike=False, known=True, visible=visible, granted=granted)) is None


def test_evidence_and_local_rank_name_the_rank() -> None:
    engine = stamped(BEGIN + worker(1, 4) + LOAD + READY + CRASH + RELAYS)
    facts = {"node1": Facts(GPUS, known=True, visible="2,0")}
    assert place(judge(engine, kernel("1b"), facts)) == ("kernel.log", "TP1", 0, "0000:1b:00.0")
    assert place(judge(engine, kernel("52"), facts)) == ("kernel.log", "TP0", 2, "0000:52:00.0")
    outside = judge(engine, kernel("9d"), facts)
    assert outside["class"] == "cuda_crash" and any("GPU 3" in text and "CUDA_VISIBLE_DEVICES" in text for text in outside["against"])
    # Under Ray every worker sees one GPU, so its local_rank tells nothing.
    assert place(judge(engine.replace("Worker_TP1", "RayWorkerWrapper"), kernel("1b"), facts))[1] == ""


def test_a_switch_hits_every_rank_of_its_node() -> None:
    line = "%s10:08:57.000000+00:00 node1 kernel: nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 22013, %s, Link 12 Minion Link DLREQ interrupt\n"
    verdict = judge(stamped(ENGINE + OF_TP1 + RELAYS), line % (DATE, "Fatal"))
    assert verdict["class"] == "gpu_fault" and place(verdict) == ("kernel.log", "", None, "0000:c3:00.0")
    assert verdict["first_failure"]["ranks"] == ["TP0", "TP1"] and "reset all its GPUs and NVSwitches together" in verdict["next_action"]
    assert judge(stamped(ENGINE + OF_TP1 + RELAYS), line % (DATE, "Non-fatal"))["class"] == "cuda_crash"


def test_an_xid_of_an_earlier_run_is_not_its_cause() -> None:
    """What a reset has to mend stays broken: it counts for a start that fails as on a lost GPU. What a program did is over."""
    start = BEGIN + worker(1, 4) + nccl()
    error = trace("init_device", "RuntimeError: CUDA error: initialization error", "10:00:08")
    verdict = judge(stamped(start + error), kernel("1b", 31, "04:00:00", text="MMU Fault"))
    assert verdict["first_failure"]["file"] == "engine.log" and any("Xid 31" in text and "6 h before this start" in text for text in verdict["against"])
    verdict = judge(stamped(start + error), kernel("1b", 79, "04:00:00"))
    assert place(verdict)[:2] == ("kernel.log", "TP0") and any("6 h before this start" in text for text in verdict["against"])
    missing = trace("load_model", "ModuleNotFoundError: No module named 'blobfile'", "10:00:08")
    assert judge(stamped(start + missing), kernel("1b", 79, "04:00:00"))["class"] == "dependency"
    assert judge(stamped(start + missing), kernel("1b", 79, "10:00:07"))["class"] == "gpu_fault"


def test_an_xid_long_after_the_failure_is_not_its_cause() -> None:
    engine = stamped(ENGINE + OF_TP1 + RELAYS)
    verdict = judge(engine, kernel("1c", 79, "15:00:00"))
    assert verdict["first_failure"]["file"] == "engine.log" and any("4 h after the engine had failed" in text for text in verdict["against"])
    assert judge(engine, kernel("1c", 79, "10:09:05"))["first_failure"]["file"] == "kernel.log"


def test_seconds_since_boot_need_the_time_of_boot() -> None:
    line = "[ 1000.000000] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"
    engine = stamped(ENGINE + OF_TP1 + RELAYS)
    day = 1785542400.0
    assert judge(engine, line, node="node1")["first_failure"]["rank"] == "TP0"
    unknown = judge(engine, line, node="node1")
    assert any("time of boot of node1" in text for text in unknown["collect"]) and unknown["confidence"] == "medium"
    known = judge(engine, line, node="node1", boot=day + 10 * 3600 + 8 * 60 + 57 - 1000)
    assert place(known)[:2] == ("kernel.log", "TP0") and not known["collect"] and known["confidence"] == "high"
    start = stamped(BEGIN + nccl() + trace("load_model", "ModuleNotFoundError: No module named 'blobfile'", "10:00:08"))
    assert judge(start, line, node="node1")["class"] == "gpu_fault"
    earlier = judge(start, line, node="node1", boot=day)
    assert earlier["class"] == "dependency" and "9 h before this start" in earlier["against"][0]


def test_two_nodes_have_the_same_addresses() -> None:
    """Whose GPU it is depends on the node that wrote the kernel log."""
    other = nccl("node2", 2, pid=7, count=4).replace(" rank 0 ", " rank 2 ").replace(" rank 1 ", " rank 3 ")
    sources = [
        Source.from_bytes("head.log", stamped(BEGIN + worker(1, 4) + nccl(count=4) + LOAD + READY + CRASH + RELAYS).encode()),
        Source.from_bytes("second.log", stamped(other, "node2").encode())]
    for node, rank in (("node1", "TP0"), ("node2", "2")):
        verdict = diagnose([*sources, Source.from_bytes("kernel.log", kernel("1b", node=node).encode())])
        assert (verdict["first_failure"]["node"], verdict["first_failure"]["rank"]) == (node, rank)
    bare = "[ 1000.000000] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"
    verdict = diagnose([*sources, Source.from_bytes("dmesg", bare.encode())])
    assert verdict["first_failure"]["rank"] == "" and "which of node1, node2" in verdict["first_failure"]["rank_source"]
    # A third node, of whose ranks nothing is known.
    verdict = diagnose([*sources, Source.from_bytes("kernel.log", kernel("1b", node="node3").encode())])
    assert verdict["first_failure"]["rank"] == ""


def test_one_file_of_two_nodes() -> None:
    """srun mixes the nodes: NCCL names its host in each line, and pids join vLLM's lines to it."""
    mixed = BEGIN + worker(1, 4) + nccl("gpu-1", 1) + nccl("gpu-2", 1, pid=4).replace(" rank 0 ", " rank 1 ") + LOAD + READY + CRASH + RELAYS
    verdict = judge(mixed, kernel("1b", node="gpu-2"))
    assert (verdict["first_failure"]["node"], verdict["first_failure"]["rank"]) == ("gpu-2", "TP1")


def test_a_container_that_calls_itself_otherwise() -> None:
    engine = (BEGIN + worker(1, 4) + nccl("0f3a6c21be90") + LOAD + READY + CRASH + RELAYS).replace("08-01 ", "08-01 ")
    verdict = judge(engine, kernel("1c", node="gpu-7"))
    assert place(verdict)[1] == "TP1" and "if the kernel log is of the same node" in verdict["first_failure"]["rank_source"]
    # Another node with a name of its own is not this one.
    assert place(judge(stamped(ENGINE + CRASH + RELAYS), kernel("1c", node="gpu-7")))[1] == ""
