# SPDX-License-Identifier: GPL-3.0-or-later
"""Section gpudirect of the facts: every precondition of peermem and dma-buf, each by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import gpudirect, host, kernel_log
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Ran
from tests.costume import Spec, Wardrobe, part_rdma

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples"
ABSENT = Ran(1, "", "modinfo: ERROR: Module nvidia_peermem not found.\n")
WITH_OFED = "filename:       /lib/modules/x/nvidia-peermem.ko\nversion:        580.95.05\ndepends:        nvidia,ib_core\n"
WITHOUT_OFED = "version:        580.95.05\ndepends:        \nname:           nvidia_peermem\n"
PLAIN = {gpudirect.MODINFO: WITH_OFED, gpudirect.PEER_SYMBOL: Ran(1), gpudirect.DMABUF_SYMBOL: Ran(1), gpudirect.DATA_DIRECT: ""}


@pytest.fixture
def samples() -> Path:
    if not SAMPLES.is_dir():
        pytest.skip("no folder of captures beside the repository")
    return SAMPLES


def collect(files: Optional[Dict[str, Any]] = None, commands: Optional[Dict[Any, Any]] = None, log: Iterable[str] = (),
            links: Optional[Dict[str, str]] = None, folders: Iterable[str] = (), who: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """Facts of a node with inbox RDMA and the module on disk, changed by the arguments."""
    ring = "".join("[%12.6f] %s\n" % (i + 1, text) for i, text in enumerate(["Linux version 6.8", *log]))
    told: Dict[Any, Any] = {**PLAIN, kernel_log.RING: ring, **(commands or {})}
    probes = {("process", ""): {"kernel": "6.8.0-60-generic", "arch": "x86_64"} if who is None else who}
    return gpudirect.collect(MemoryReader({"/proc/modules": "", **(files or {})}, links, told, probes, folders), Options())


def dressed(hardware: str, faults: Iterable[str] = ()) -> Dict[str, Any]:
    spec = Spec("n1", hardware, 1, frozenset(faults))
    wardrobe = Wardrobe()
    log = part_rdma.dress(spec, wardrobe)
    wardrobe.files["/proc/modules"] = "" if {"peermem_missing", "no_gpu"} & spec.faults else "nvidia_peermem 16384 0 - Live 0x0\n"
    wardrobe.commands[kernel_log.RING] = "".join("[%12.6f] %s\n" % line for line in log)
    reader = MemoryReader(wardrobe.files, wardrobe.links, wardrobe.commands, wardrobe.probes, wardrobe.folders)
    return gpudirect.collect(reader, Options())


# -- dressed nodes -------------------------------------------------------------------------------
@pytest.mark.parametrize("hardware", ["h200", "b300", "gb300"])
def test_a_healthy_node_has_both_ways(hardware: str) -> None:
    facts = dressed(hardware)
    assert facts["peermem"] == {
        "present": True, "loaded": True, "version": "580.95.05", "persisted": True, "legacy_loaded": False, "ib_symbol": True,
        "log": [], "why_not": None}
    assert facts["dmabuf"]["dma_buf_symbol"] is True and facts["dmabuf"]["kernel"] is True
    assert facts["errno524"] == {"evidence": [], "lines": 0}
    assert len(facts["dmabuf"]["data_direct"]) == (4 if hardware == "gb300" else 0)
    assert ("iommu_groups" in facts["dmabuf"]) == (hardware == "gb300")


def test_the_conditions_of_errno_524() -> None:
    facts = dressed("b300", ["peermem_missing", "errno_524"])
    assert facts["peermem"]["present"] is True and facts["peermem"]["loaded"] is False and facts["peermem"]["persisted"] is False
    assert facts["peermem"]["why_not"] is None
    assert [(entry["kind"], entry["count"]) for entry in facts["dmabuf"]["attach_failed"]] == [("topology", 8)]
    assert facts["errno524"]["lines"] == 8 and len(facts["errno524"]["evidence"]) == 1
    assert dressed("gb300", ["errno_524"])["dmabuf"]["attach_failed"][0]["kind"] == "force_pcie"


def test_a_node_without_driver() -> None:
    facts = dressed("b300", ["no_gpu"])
    assert facts["peermem"]["present"] is False and facts["peermem"]["loaded"] is False
    assert facts["dmabuf"]["open_module"] is None and "open_module" not in facts["unknown"]


# -- nvidia_peermem ------------------------------------------------------------------------------
@pytest.mark.parametrize("commands,log,files,words", [
    ({gpudirect.MODINFO: ABSENT}, [], {}, "no nvidia_peermem module"),
    ({gpudirect.MODINFO: WITHOUT_OFED}, [], {}, "built without peer-memory symbols"),
    ({}, [], {}, "has no ib_register_peer_memory_client"),
    ({}, ["nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"], {}, "has no ib_register_peer_memory_client"),
    ({gpudirect.PEER_SYMBOL: Ran(2)}, ["nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err 0)"], {}, "kernel log"),
    ({gpudirect.PEER_SYMBOL: "0 T ib_register_peer_memory_client"},
     ["nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
      "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)"], {}, "another version"),
    ({gpudirect.PEER_SYMBOL: "0 T ib_register_peer_memory_client"}, [], {"/proc/modules": "nv_peer_mem 1 0 - Live 0x0\n"}, "legacy"),
    # an attempt before the right RDMA modules came speaks against nothing now
    ({gpudirect.PEER_SYMBOL: "0 T ib_register_peer_memory_client"},
     ["nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"], {}, None),
    ({gpudirect.PEER_SYMBOL: "0 T ib_register_peer_memory_client"}, [], {}, None),
])
def test_why_it_cannot_load(commands: Dict[Any, Any], log: List[str], files: Dict[str, str], words: Optional[str]) -> None:
    peermem = collect(files, commands, log)["peermem"]
    assert peermem["loaded"] is False
    assert peermem["why_not"] is None if words is None else words in peermem["why_not"]


def test_a_loaded_module_needs_no_reason() -> None:
    log = ["nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"]
    peermem = collect({"/proc/modules": "nvidia_peermem 16384 0 - Live 0x0\n"}, {gpudirect.MODINFO: ABSENT}, log)["peermem"]
    assert peermem["loaded"] is True and peermem["present"] is True and peermem["why_not"] is None


def test_log_kinds_of_peermem() -> None:
    log = ["nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
           "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)",
           "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"]
    assert [entry["kind"] for entry in collect(log=log)["peermem"]["log"]] == ["crc_mismatch", "invalid_context"]
    old = ["nvidia_peermem: Unknown symbol ib_unregister_peer_memory_client (err 0)"]
    assert [entry["kind"] for entry in collect(log=old)["peermem"]["log"]] == ["unknown_symbol"]


@pytest.mark.parametrize("path,text,persisted", [
    ("/etc/modules-load.d/nvidia-peermem.conf", "# peer memory\nnvidia_peermem\n", True),
    ("/usr/lib/modules-load.d/nvidia.conf", "nvidia-peermem\n", True),
    ("/etc/modules", "loop\nnvidia_peermem\n", True),
    ("/etc/modprobe.d/nvidia.conf", "softdep nvidia post: nvidia-uvm nvidia-peermem\n", True),
    ("/etc/systemd/system/openibd.service.d/peermem.conf", "[Service]\nExecStartPost=/sbin/modprobe nvidia-peermem\n", True),
    ("/etc/modules-load.d/nvidia-peermem.conf", "# nvidia_peermem\n", False),
    ("/etc/modules-load.d/nvidia-peermem.conf.bak", "nvidia_peermem\n", False),
    ("/etc/modprobe.d/nvidia.conf", "blacklist nvidia_peermem\n", False),
    ("/etc/modules-load.d/other.conf", "nvidia_peermem_other\n", False),
])
def test_persisted(path: str, text: str, persisted: bool) -> None:
    assert collect({path: text})["peermem"]["persisted"] is persisted


def test_tools_that_do_not_answer_leave_unknowns() -> None:
    facts = collect(commands={
        gpudirect.MODINFO: Ran(None, error="timeout"), gpudirect.PEER_SYMBOL: Ran(None, error="timeout"),
        gpudirect.DMABUF_SYMBOL: Ran(2, "", "grep: denied"), gpudirect.DATA_DIRECT: Ran(None, error="missing")}, who={})
    assert facts["peermem"]["present"] is None and facts["peermem"]["ib_symbol"] is None and facts["peermem"]["loaded"] is False
    assert facts["peermem"]["why_not"] is None
    assert facts["dmabuf"]["dma_buf_symbol"] is None and facts["dmabuf"]["kernel"] is None
    assert set(facts["unknown"]) == {"peermem", "ib_symbol", "dma_buf_symbol", "kernel", "config", "data_direct", "memlock_ok"}


def test_nothing_recorded_is_unknown_and_not_absent() -> None:
    facts = gpudirect.collect(MemoryReader(absent="not_recorded"), Options())
    assert facts["peermem"]["loaded"] is None and facts["peermem"]["present"] is None
    assert set(facts["unknown"]) == {
        "peermem", "ib_symbol", "dma_buf_symbol", "kernel", "config", "data_direct", "memlock_ok", "kernel_log", "open_module"}


# -- dma-buf -------------------------------------------------------------------------------------
@pytest.mark.parametrize("release,symbol,kernel", [
    ("5.11.22", Ran(1), False), ("5.12.0-rc1", Ran(1), True), ("6.8.0-60-generic", Ran(1), True), ("4.18.0-553.el8", Ran(1), False),
    ("4.18.0-553.el8", Ran(0, "0 T ib_umem_dmabuf_get"), True), ("", Ran(1), None),
])
def test_kernel(release: str, symbol: Ran, kernel: Optional[bool]) -> None:
    facts = collect(commands={gpudirect.DMABUF_SYMBOL: symbol}, who={"kernel": release})
    assert facts["dmabuf"]["kernel"] is kernel and ("kernel" in facts["unknown"]) == (kernel is None)


@pytest.mark.parametrize("text,is_open", [
    ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n", True),
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Fri Sep 12\n", False),
])
def test_open_module(text: str, is_open: bool) -> None:
    assert collect({"/proc/driver/nvidia/version": text})["dmabuf"]["open_module"] is is_open
    denied = collect({"/proc/driver/nvidia/version": Content(None, "denied")})
    assert denied["dmabuf"]["open_module"] is None and "open_module" in denied["unknown"]


def test_kernel_configuration() -> None:
    text = "CONFIG_PCI_P2PDMA=y\n# CONFIG_DMABUF_MOVE_NOTIFY is not set\nCONFIG_INFINIBAND=m\nCONFIG_ZONE_DEVICE=y\n"
    expected = {"PCI_P2PDMA": "y", "DMABUF_MOVE_NOTIFY": "n", "DMA_SHARED_BUFFER": "n", "ZONE_DEVICE": "y"}
    for path in ("/boot/config-6.8.0-60-generic", "/lib/modules/6.8.0-60-generic/config"):
        assert collect({path: text})["dmabuf"]["config"] == expected
    packed = collect({"/proc/config.gz": "\x1f"}, {host.ZCAT: text})
    assert packed["dmabuf"]["config"] == expected and "config" not in packed["unknown"]
    assert "config" in collect({"/boot/config-5.15.0": text})["unknown"]


@pytest.mark.parametrize("text,kind", [
    ("NVRM: dma-buf attach failed: topology not supported for mapping type FORCE_PCIE", "force_pcie"),
    ("NVRM: dma-buf attach failed: PCI topology not supported for dma-buf", "topology"),
    ("NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page", "importer"),
])
def test_refused_attachments(text: str, kind: str) -> None:
    facts = collect(log=[text, "usb 1-1: new device", text])
    assert facts["dmabuf"]["attach_failed"] == [{"kind": kind, "text": text, "count": 2}]
    assert facts["errno524"] == {"evidence": [text], "lines": 2}


@pytest.mark.parametrize("text,counts", [
    ("python3: mlx5dv_reg_dmabuf_mr failed: errno 524", True), ("ib_core: registration failed, error -524", True),
    ("infiniband mlx5_0: reg_user_mr_dmabuf = -524", True), ("ata1: error 5241", False), ("EXT4-fs: block 524 freed", False),
    ("IPv6: port -5240 closed", False),
])
def test_lines_of_errno_524(text: str, counts: bool) -> None:
    assert (collect(log=[text])["errno524"]["lines"] == 1) is counts


def test_evidence_is_bounded() -> None:
    errno = collect(log=["mlx5_ib: call %d gave errno 524 %s" % (i, "x" * 900) for i in range(50)])["errno524"]
    assert errno["lines"] == 50 and len(errno["evidence"]) == gpudirect.EVIDENCE_KEPT and max(map(len, errno["evidence"])) <= 200


def test_data_direct_functions_and_groups() -> None:
    links = {
        "/sys/bus/pci/devices/0008:06:00.0/iommu_group": "../../../kernel/iommu_groups/7",
        "/sys/bus/pci/devices/0000:03:00.1/iommu_group": "../../../kernel/iommu_groups/7",
        "/sys/class/infiniband/mlx5_0/device": "../../../0000:03:00.0", "/sys/bus/pci/devices/0000:03:00.0/iommu_group": "../9"}
    gpus = ["/proc/driver/nvidia/gpus/0008:06:00.0"]
    facts = collect(commands={gpudirect.DATA_DIRECT: "0000:03:00.1 0300: 15b3:2100\n"}, links=links, folders=gpus)
    assert facts["dmabuf"]["data_direct"] == ["0000:03:00.1"]
    assert facts["dmabuf"]["iommu_groups"] == {"0008:06:00.0": 7, "0000:03:00.1": 7}
    # without such functions the HCA itself is what writes to the GPU
    plain = collect(links=links, folders=gpus, who={"arch": "aarch64", "kernel": "6.14"})
    assert plain["dmabuf"]["iommu_groups"] == {"0008:06:00.0": 7, "0000:03:00.0": 9}
    bound = collect(commands={gpudirect.DATA_DIRECT: Ran(None, error="missing")}, folders=["/sys/bus/pci/drivers/mlx5_ib/0000:03:00.1"])
    assert bound["dmabuf"]["data_direct"] == ["0000:03:00.1"] and "data_direct" not in bound["unknown"]


# -- locked memory -------------------------------------------------------------------------------
@pytest.mark.parametrize("told,limits,expected", [
    ("DefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE=524288\n", "", True), ("DefaultLimitMEMLOCK=8388608\n", "", False),
    ("DefaultLimitMEMLOCK=137438953472\n", "", True),
    (None, "Max locked memory         unlimited            unlimited            bytes\n", True),
    (None, "Max locked memory         65536                65536                bytes\n", False), (None, "", None),
])
def test_memlock(told: Optional[str], limits: str, expected: Optional[bool]) -> None:
    facts = collect({"/proc/1/limits": limits}, {host.MANAGER: told} if told else {})
    assert facts["memlock_ok"] is expected and ("memlock_ok" in facts["unknown"]) == (expected is None)


# -- captures, when they are there ---------------------------------------------------------------
def test_captures_of_peermem_failures(samples: Path) -> None:
    text = (samples / "peermem_failures.txt").read_text()
    lines = [line.partition("] ")[2] if line.startswith("[") else line for line in text.splitlines()]
    kinds = [entry["kind"] for entry in collect(log=[line for line in lines if line.startswith("nvidia_peermem")])["peermem"]["log"]]
    assert kinds == ["unknown_symbol", "crc_mismatch"]
    context = [line.partition(";")[2] for line in (samples / "kmsg_peermem_invalid_context.log").read_text().splitlines()]
    assert [entry["kind"] for entry in collect(log=context)["peermem"]["log"]] == ["invalid_context"]


# -- anything in, no exception out ---------------------------------------------------------------
WORDS = st.sampled_from([
    "depends:", "nvidia,ib_core", "version:", "nvidia_peermem", "[    1.000000]", "NVRM: dma-buf attach failed:", "errno 524",
    "DefaultLimitMEMLOCK=", "9" * 300, "-1", "\t", "\n", "\r", "\0", "²", "CONFIG_PCI_P2PDMA=", "y", "0000:03:00.1", "15b3:2100",
    "Max locked memory"])
TEXTS = st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=30).map(" ".join), st.lists(WORDS, max_size=30).map("\n".join))


@given(text=TEXTS)
@settings(max_examples=100, deadline=None)
def test_parsers_take_any_text(text: str) -> None:
    assert all(isinstance(value, str) for value in gpudirect.parse_modinfo(text).values())


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_collect_takes_any_answer(data: st.DataObject) -> None:
    errors = st.sampled_from(["", "", "timeout", "missing", "denied", "io:EIO"])
    answers = st.builds(Ran, st.none() | st.integers(-9, 255), TEXTS, TEXTS, errors)
    argvs = [tuple(argv) for argv in gpudirect.commands(Options())] + [host.ZCAT]
    commands = {argv: data.draw(answers) for argv in argvs}
    files = {path: data.draw(TEXTS) for path in (
        "/proc/modules", "/proc/driver/nvidia/version", "/proc/1/limits", "/etc/modules", "/boot/config-6.8",
        "/sys/module/nvidia_peermem/version", "/etc/modules-load.d/a.conf")}
    kernels = st.fixed_dictionaries({"kernel": st.just("6.8") | st.text(max_size=9)})
    probes: Dict[Any, Any] = {("process", ""): data.draw(st.none() | st.just([]) | kernels)}
    json.dumps(gpudirect.collect(MemoryReader(files, None, commands, probes), Options()))
