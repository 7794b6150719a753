# SPDX-License-Identifier: GPL-3.0-or-later
"""Which streams belong to a case, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.evidence import bundle
from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import chunks
from ansible_collections.inferops.vllm.plugins.module_utils.node import snapshot
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import MemoryReader, Ran
from ansible_collections.inferops.vllm.plugins.plugin_utils import casebook
from ansible_collections.inferops.vllm.plugins.plugin_utils.casebook import Refusal

LINE = "INFO 11-29 10:00:00 [api_server.py:1] vLLM API server version 0.32.0\n"


def evidence(path: Path, node: str, logs: Optional[Dict[str, str]] = None, **account: Any) -> None:
    """A bundle of `node` at `path`: {name: kind} of its logs, each of one line."""
    logs = {"vllm.service": "engine", "kernel": "kernel", "journal": "journal"} if logs is None else logs
    reader = MemoryReader()
    reader.memo[("run", "dmesg")] = Ran(0, "[    1.000000] Linux version 6\n")
    files = snapshot.render(reader, node, Options().asdict(), 0.0)
    records = [{"file": "logs/%s.log.gz" % name, "kind": kind} for name, kind in logs.items()]
    packed = {name + ".log.gz": [gzip.compress((node + " " + LINE).encode(), mtime=0)] for name in logs}
    whole = bundle.assemble(files, packed, {"schema": bundle.SCHEMA, "logs": records, **account})
    if path.name.endswith(".tar.gz"):
        bundle.write_archive(whole, str(path), node)
    else:
        bundle.write_folder(whole, str(path))


def named(found: casebook.Case) -> List[str]:
    return [source.name.rpartition("/")[2] for source in found.sources]


def test_loose_files_are_one_case_and_a_folder_is_one(tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "run/x.log", "run/deep/y.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(LINE)
    paths = [str(tmp_path / name) for name in ("a.log", "run", "b.log")]
    found, refused = casebook.cases(paths)
    assert refused == [] and [sorted(named(case)) for case in found] == [["a.log", "b.log"], ["x.log", "y.log"]]
    assert [case.paths for case in found] == [[paths[0], paths[2]], [paths[1]]]
    each, _refused = casebook.cases(paths, each=True)
    assert [len(case.sources) for case in each] == [1, 1, 1, 1]


def test_a_bundle_gives_its_logs_once_with_node_boot_and_clock(tmp_path: Path) -> None:
    evidence(tmp_path / "n1.tar.gz", "n1", boot={"at": 1700000000}, cut=["journal: 3 of 9 lines were cut from its middle"])
    evidence(tmp_path / "n2", "n2", {"vllm.service": "engine"})
    index = {"schema": "inferops.vllm/evidence_index/1", "nodes": {"n1": {"skew": 4.0}, "n2": {"skew": 0.01}}, "unreachable": {"n3": "timed out"}, "failed": {}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    (tmp_path / "SHA256SUMS").write_text("x\n")
    found, refused = casebook.cases([str(tmp_path)])
    assert refused == [] and len(found) == 1
    case = found[0]
    by_node = {(source.node, source.name.rpartition("/")[2]): source for source in case.sources}
    assert set(by_node) == {("n1", "vllm.service.log.gz"), ("n1", "kernel.log.gz"), ("n2", "vllm.service.log.gz"), ("n2", "kernel log")}
    first = by_node["n1", "vllm.service.log.gz"]
    assert (first.boot, first.offset) == (1700000000.0, -4.0) and by_node["n2", "vllm.service.log.gz"].offset == 0.0
    assert first.name == "%s:logs/vllm.service.log.gz" % (tmp_path / "n1.tar.gz")
    assert b"".join(chunks(first)).decode() == "n1 " + LINE
    assert case.absent == {"n3": "timed out"} and case.notes == ["n1: journal: 3 of 9 lines were cut from its middle"]


def test_a_young_server_is_starting_and_an_old_one_is_not(tmp_path: Path) -> None:
    young = {"clock": 1000.0, "boot": {"at": 100}, "processes": [{"started": 600.0}]}
    evidence(tmp_path / "n1.tar.gz", "n1", **young)
    assert casebook.cases([str(tmp_path)])[0][0].starting
    evidence(tmp_path / "n2.tar.gz", "n2", **{**young, "clock": 9000.0})
    assert not casebook.cases([str(tmp_path)])[0][0].starting


def test_changed_evidence_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    evidence(tmp_path / "n1", "n1")
    (tmp_path / "n1/logs/vllm.service.log.gz").write_bytes(gzip.compress(b"other\n"))
    found, refused = casebook.cases([str(tmp_path / "n1")])
    assert found == [] and "was changed after it was recorded: logs/vllm.service.log.gz is not what was recorded" in refused[0].why
    found, refused = casebook.cases([str(tmp_path / "n1")], accept_changed=True)
    assert refused == [] and "was changed after it was recorded" in found[0].notes[0]


def test_packed_logs_that_are_no_bundle_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LINE)
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as out:
        out.add(tmp_path / "a.log", "ticket/node1/a.log")
    found, refused = casebook.cases([str(tmp_path / "logs.tar.gz")])
    assert refused == [] and found[0].sources[0].name == "%s:ticket/node1/a.log" % (tmp_path / "logs.tar.gz")


def wrong(path: Path, name: str) -> str:
    if name == "empty":
        path.write_bytes(b"")
    elif name == "binary":
        path.write_bytes(bytes(range(256)) * 300)
    elif name == "program":
        path.write_bytes(Path("/bin/true").read_bytes())
    elif name == "folder":
        path.mkdir()
    elif name == "fifo":
        os.mkfifo(path)
    elif name == "dangling":
        path.symlink_to("/no/such/file")
    return str(path)


@pytest.mark.parametrize(("name", "why"), [
    ("missing", "does not exist"), ("empty", "is empty"), ("binary", "not a log: binary data"), ("program", "not a log: a program"), ("folder", "holds no log"),
    ("fifo", "is not a plain file"), ("dangling", "is not a plain file"),
])
def test_what_is_no_log_is_refused_with_a_sentence(tmp_path: Path, name: str, why: str) -> None:
    path = wrong(tmp_path / name, name)
    assert casebook.cases([path]) == ([], [Refusal(path, why)])


def test_a_broken_archive_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "broken.tar.gz").write_bytes(b"\x1f\x8b no gzip")
    (tmp_path / "fine.log").write_text(LINE)
    found, refused = casebook.cases([str(tmp_path)])
    assert named(found[0]) == ["fine.log"] and [refusal.path for refusal in refused] == [str(tmp_path / "broken.tar.gz")]
    assert refused[0].why.startswith("is not a whole")
    assert casebook.cases(["-"])[1][0].why.startswith("standard input")


def test_ten_thousand_files_are_listed_in_seconds(tmp_path: Path) -> None:
    for number in range(10000):
        (tmp_path / ("%05d.log" % number)).write_text(LINE)
    started = time.monotonic()
    found, refused = casebook.cases([str(tmp_path)])
    assert len(found[0].sources) == 10000 and refused == []
    # Generous, for a busy machine.
    assert time.monotonic() - started < 60


SMI = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log><driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version><attached_gpus>2</attached_gpus>
<gpu id="00000000:1B:00.0"><product_name>NVIDIA H200</product_name><uuid>GPU-1b</uuid><minor_number>0</minor_number></gpu>
<gpu id="00000000:43:00.0"><product_name>NVIDIA H200</product_name><uuid>GPU-43</uuid><minor_number>1</minor_number>
<processes><process_info><pid>4711</pid><type>C</type><process_name>VLLM::Worker</process_name><used_memory>1000 MiB</used_memory></process_info></processes>
</gpu>
</nvidia_smi_log>
"""
XID = """2026-08-01T10:08:57.000000+00:00 gpu-7 kernel: NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus.
"""


@pytest.mark.parametrize("environment", [{"CUDA_VISIBLE_DEVICES": "1,0", "NVIDIA_VISIBLE_DEVICES": "all"}, {"CUDA_VISIBLE_DEVICES": "0"}, None])
def test_a_bundle_tells_whose_gpu_the_kernel_means(tmp_path: Path, environment: Optional[Dict[str, str]]) -> None:
    """nvidia-smi's addresses, the variables of the recorded process and vLLM's local_rank: from the archive to the verdict."""
    from ansible_collections.inferops.vllm.plugins.module_utils.logs.diagnose import diagnose
    from tests.unit.logs.test_diagnose_rules import BEGIN, LOAD, trace
    from tests.unit.logs.test_placement import stamped, worker

    crash = trace("load_model", "RuntimeError: CUDA error: unspecified launch failure", "10:09:00")
    logs = {"vllm.service": stamped(BEGIN + worker(1, 4) + LOAD + crash, "gpu-7"), "kernel": XID}
    reader = MemoryReader()
    reader.memo[("run", "nvidia-smi", "-q", "-x")] = Ran(0, SMI.replace("4711", "99"))
    files = snapshot.render(reader, "gpu-7", Options().asdict(), 0.0)
    records = [{"file": "logs/vllm.service.log.gz", "kind": "engine"}, {"file": "logs/kernel.log.gz", "kind": "kernel"}]
    processes = [] if environment is None else [
        {"pid": 4700, "inner_pid": "1", "env": environment}, {"pid": 4711, "inner_pid": "4", "env_differs": {}}, {"pid": 4710, "inner_pid": "3"}]
    whole = bundle.assemble(
        files, {name + ".log.gz": [gzip.compress(text.encode(), mtime=0)] for name, text in logs.items()},
        {"schema": bundle.SCHEMA, "logs": records, "processes": processes})
    bundle.write_archive(whole, str(tmp_path / "gpu-7.tar.gz"), "gpu-7")
    cases, refused = casebook.cases([str(tmp_path)])
    assert refused == []
    found = dict(cases[0].facts)["gpu-7"]
    assert found.gpus == (("0000:1b:00.0", 0, "GPU-1b"), ("0000:43:00.0", 1, "GPU-43")) and found.users == ((99, "0000:43:00.0"),)
    assert found.pids == (() if environment is None else ((4700, 1), (4711, 4), (4710, 3)))
    verdict = diagnose(cases[0].sources, facts=dict(cases[0].facts))
    first = verdict["first_failure"]
    if environment is None:
        assert (first["rank"], first["gpu"]) == ("", 1)
    elif environment["CUDA_VISIBLE_DEVICES"] == "1,0":
        assert (first["rank"], first["gpu"], first["node"]) == ("TP0", 1, "gpu-7") and "CUDA_VISIBLE_DEVICES" in first["rank_source"]
    else:
        assert verdict["class"] == "cuda_crash" and any("GPU 1" in text for text in verdict["against"])


def test_evidence_that_was_not_finished_is_told_and_its_pieces_are_not_read(tmp_path: Path) -> None:
    """What a killed playbook leaves behind is taken for nothing whole."""
    folder = tmp_path / "20261130T020000Z"
    folder.mkdir()
    evidence(folder / "n1.tar.gz", "n1")
    whole = (folder / "n1.tar.gz").read_bytes()
    (folder / "n2.tar.gz.part-4711").write_bytes(whole[:len(whole) // 2])
    (folder / "n3.part-4712").mkdir()
    (folder / "n3.part-4712" / "a.log").write_text(LINE)
    cases, refused = casebook.cases([str(folder)])
    assert refused == [] and {source.node for source in cases[0].sources} == {"n1"}
    assert any("was not finished (2 archives are incomplete and were not read)" in note for note in cases[0].notes)
    (folder / "n2.tar.gz.part-4711").unlink()
    (folder / "n3.part-4712" / "a.log").unlink()
    (folder / "n3.part-4712").rmdir()
    assert any("20261130T020000Z has no index.json" in note for note in casebook.cases([str(folder)])[0][0].notes)
    (folder / "index.json").write_text(json.dumps({"schema": "inferops.vllm/evidence_index/1", "nodes": {}, "unreachable": {}, "failed": {}}))
    assert not any("not finished" in note for note in casebook.cases([str(folder)])[0][0].notes)
    # A folder that somebody filled by hand has no index, and lacks nothing.
    (tmp_path / "ticket").mkdir()
    evidence(tmp_path / "ticket" / "n1.tar.gz", "n1")
    assert not any("not finished" in note for note in casebook.cases([str(tmp_path / "ticket")])[0][0].notes)
