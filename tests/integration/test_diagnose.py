# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook diagnose on logs, folders, bundles and recorded nodes, and on what is none of them."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import re
import subprocess
import time
from typing import Any, Callable, Dict, List, NamedTuple

import jsonschema
import pytest

from tests.costume import Spec
from tests.unit.logs import test_placement as placed

from .conftest import ROOT, Run

Playbook = Callable[..., Any]
SCHEMA = json.loads((ROOT / "docs/schemas/diagnosis-1.schema.json").read_text())
HEALTHY = """INFO 11-29 10:00:00 [api_server.py:1] vLLM API server version 0.32.0
(EngineCore pid=7) INFO 11-29 10:00:02 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='/models'
(Worker_TP0 pid=9) INFO 11-29 10:00:03 [parallel_state.py:1] rank 0 in world size 1 is assigned as DP rank 0
(Worker_TP0 pid=9) INFO 11-29 10:00:04 [gpu_model_runner.py:1] Starting to load model /models...
(Worker_TP0 pid=9) INFO 11-29 10:00:09 [gpu_model_runner.py:1] Model loading took 1.0 GiB and 5.0 seconds
(APIServer pid=1) INFO 11-29 10:00:12 [api_server.py:1] Starting vLLM server on http://0.0.0.0:8000
(APIServer pid=1) INFO:     Application startup complete.
"""
BROKEN = HEALTHY.split("(Worker_TP0 pid=9) INFO 11-29 10:00:09", maxsplit=1)[0] + """\
(Worker_TP0 pid=9) ERROR 11-29 10:00:05 [multiproc_executor.py:1] WorkerProc failed to start.
(Worker_TP0 pid=9) ERROR 11-29 10:00:05 [multiproc_executor.py:1] Traceback (most recent call last):
(Worker_TP0 pid=9) ERROR 11-29 10:00:05 [multiproc_executor.py:1]   File "/v/vllm/model_executor/model_loader/default_loader.py", line 1, in load_weights
(Worker_TP0 pid=9) ERROR 11-29 10:00:05 [multiproc_executor.py:1]     x
(Worker_TP0 pid=9) ERROR 11-29 10:00:05 [multiproc_executor.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
(EngineCore pid=7) ERROR 11-29 10:00:06 [core.py:1] RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
OOM_LINE = 9


class Told(NamedTuple):
    run: Run
    document: Dict[str, Any]
    verdict: List[str]


@pytest.fixture
def diagnose(playbook: Playbook, tmp_path: pathlib.Path) -> Callable[..., Told]:
    """``diagnose([paths], *arguments) -> Told``: exit code and text, the document, and the printed verdict."""
    counter = iter(range(100))

    def run(paths: List[Any], *arguments: str, inventory: Any = "localhost,") -> Told:
        folder = tmp_path / ("d%d" % next(counter))
        document = folder / "out.json"
        named = ("-e", json.dumps({"diagnose_paths": [str(path) for path in paths]})) if paths else ()
        done = playbook("inferops.vllm.diagnose", inventory, *named, "-e", "diagnose_json=%s" % document, "-e", "diagnose_report_dir=%s" % folder, *arguments)
        assert "Traceback (most recent call last):\n  File" not in done.text
        found = json.loads(document.read_text()) if document.exists() else {}
        if found:
            jsonschema.validate(found, SCHEMA)
            assert (folder / "diagnosis.html").read_text().startswith("<!DOCTYPE html>")
        told = re.search(r"TASK \[Diagnose (?:what was named|all nodes together)\] \*+\n(?!skipping)(.*?Details: [^\n]*)", done.text, re.DOTALL)
        verdict = told.group(1).splitlines() if told else []
        assert len(verdict) < 25 and all(len(line) <= 100 for line in verdict)
        return Told(done, found, verdict)

    return run


def test_a_pasted_log(diagnose: Callable[..., Told], tmp_path: pathlib.Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(BROKEN)
    told = diagnose([log])
    assert told.run.rc == 0, told.run.text
    case = told.document["cases"][0]
    assert (case["paths"], case["failed"], case["phase"], case["class"]) == ([str(log)], True, "weights_load", "oom_weights")
    first = case["first_failure"]
    assert (first["file"], first["line"]) == (str(log), OOM_LINE) and first["text"] == BROKEN.splitlines()[OOM_LINE - 1]
    assert case["relays"] and "weights_load: oom_weights" in told.verdict[0]
    assert diagnose([log], "-e", "diagnose_fail_on=failure").run.rc == 2


def test_a_healthy_log_ends_with_zero(diagnose: Callable[..., Told], tmp_path: pathlib.Path) -> None:
    log = tmp_path / "server.log.gz"
    log.write_bytes(gzip.compress(HEALTHY.encode()))
    told = diagnose([log])
    assert told.run.rc == 0, told.run.text
    case = told.document["cases"][0]
    assert (case["failed"], case["class"], case["phase"], case["first_failure"]) == (False, "none", "api_ready", None)


def test_a_folder_is_a_case_and_with_each_every_file_is(diagnose: Callable[..., Told], tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_text(BROKEN)
    (folder / "b.log").write_text(HEALTHY)
    assert [case["paths"] for case in diagnose([folder]).document["cases"]] == [[str(folder)]]
    told = diagnose([folder], "-e", "diagnose_each=true")
    assert [(case["paths"], case["failed"]) for case in told.document["cases"]] == [([str(folder / "a.log")], True), ([str(folder / "b.log")], False)]
    assert told.run.rc == 0 and told.verdict[0] == "✘ 1 of 2 cases failed"


def test_nothing_to_diagnose_is_refused(diagnose: Callable[..., Told]) -> None:
    run = diagnose([]).run
    assert run.rc == 2 and "There is nothing to diagnose" in run.text


def bad(folder: pathlib.Path, name: str) -> pathlib.Path:
    path = folder / name
    if name == "empty":
        path.write_bytes(b"")
    elif name == "binary":
        path.write_bytes(os.urandom(300000))
    elif name == "utf8":
        path.write_bytes(BROKEN.encode().replace(b"CUDA out", b"CUDA \xff\xfe out") + b"\xff\xc0 no text\n")
    elif name == "midline":
        path.write_bytes(BROKEN.encode()[:-40])
    elif name == "other":
        path.write_text("Nov 29 10:00:00 host nginx[1]: GET / 200\n" * 500)
    elif name == "longline":
        with path.open("wb") as out:
            for _block in range(500):
                out.write(b"x" * (1 << 20))
    return path


@pytest.mark.parametrize(("name", "rc", "told"), [
    ("empty", 2, "is empty"), ("binary", 2, "not a log"), ("missing", 2, "does not exist"), ("utf8", 0, "failed in"), ("midline", 0, "failed in weights_load"),
    ("other", 0, ""), ("longline", 0, ""),
])
def test_bad_input_is_a_verdict_or_a_refusal(diagnose: Callable[..., Told], tmp_path: pathlib.Path, name: str, rc: int, told: str) -> None:
    started = time.monotonic()
    found = diagnose([bad(tmp_path, name)])
    assert found.run.rc == rc, found.run.text
    assert any(told in line for line in found.verdict)
    assert "could not be diagnosed" not in found.run.text and time.monotonic() - started < 120


def test_refused_and_readable_paths_side_by_side(diagnose: Callable[..., Told], tmp_path: pathlib.Path) -> None:
    log = tmp_path / "ok.log"
    log.write_text(HEALTHY)
    told = diagnose([log, bad(tmp_path, "empty")])
    assert told.run.rc == 2 and told.document["cases"][0]["failed"] is False
    assert told.document["refused"] == [{"path": str(tmp_path / "empty"), "why": "is empty"}]


def test_ten_thousand_files_end_in_a_verdict(diagnose: Callable[..., Told], tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(10000):
        (folder / ("%05d.log" % number)).write_text("INFO 11-29 10:00:00 [x.py:1] rank %d says nothing\n" % number)
    (folder / "05000.log").write_text(BROKEN)
    told = diagnose([folder])
    assert told.run.rc == 0 and told.document["cases"][0]["class"] == "oom_weights"


def test_an_xid_names_rank_and_gpu_in_verdict_document_and_page(diagnose: Callable[..., Told], tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "engine.log").write_text(placed.stamped(placed.ENGINE + placed.OF_TP1 + placed.RELAYS))
    (folder / "kernel.log").write_text(placed.kernel("1b") + placed.kernel("5d"))
    told = diagnose([folder])
    first = told.document["cases"][0]["first_failure"]
    assert (first["node"], first["rank"], first["gpu"], first["address"]) == ("node1", "TP0", 0, "0000:1b:00.0")
    assert "NCCL's line engine.log:" in first["rank_source"] and "node1, rank TP0 on GPU 0 (0000:1b:00.0)" in told.verdict[1]
    assert any("no rank of this engine uses it" in text for text in told.document["cases"][0]["against"])
    page = next(tmp_path.glob("d*/diagnosis.html")).read_text()
    lane, mark = 'lane-name">node1 TP%d', 'class="mark first"'
    assert page.count(mark) == 1 and page.index(lane % 0) < page.index(mark) < page.index(lane % 1)
    switch = "nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 22013, Fatal, Link 12 Minion Link DLREQ interrupt"
    (folder / "kernel.log").write_text(placed.kernel("1b").replace("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", switch))
    told = diagnose([folder])
    assert told.document["cases"][0]["first_failure"]["ranks"] == ["TP0", "TP1"] and "all ranks (TP0, TP1) on 0000:c3:00.0" in told.verdict[1], told.verdict
    assert sorted(tmp_path.glob("d*/diagnosis.html"))[-1].read_text().count(mark) == 2


def test_logs_of_two_clusters_end_in_a_verdict_that_says_so(diagnose: Callable[..., Told], tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "east.log").write_text(BROKEN)
    (folder / "west.log").write_text(HEALTHY.replace("0.32.0", "0.29.0"))
    told = diagnose([folder])
    case = told.document["cases"][0]
    assert told.run.rc == 0 and (case["failed"], case["class"]) == (True, "oom_weights") and case["confidence"] != "high"
    assert "may be of different runs: vLLM 0.29.0 in west.log, 0.32.0 in east.log" in " ".join(" ".join(told.verdict).split())


def test_hostile_lines_reach_neither_terminal_nor_page(diagnose: Callable[..., Told], tmp_path: pathlib.Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J</style><script>document.title='owned'</script><img src=x onerror=alert(1)>"
    log = tmp_path / "server.log"
    log.write_text(BROKEN.replace("Tried to allocate", evil + " Tried to allocate"))
    told = diagnose([log])
    assert told.document["cases"][0]["class"] == "oom_weights"
    assert "\x1b" not in told.run.text and "\x07" not in told.run.text
    page = next(tmp_path.glob("d*/diagnosis.html")).read_text()
    assert "<script" not in page and "<img" not in page and "&lt;script&gt;" in page
    assert told.document["cases"][0]["first_failure"]["text"] == log.read_text().split("\n")[OOM_LINE - 1]


def test_recorded_nodes_and_the_bundle_of_them(diagnose: Callable[..., Told], inventory: Any, tmp_path: pathlib.Path) -> None:
    hosts = inventory({"b300-01": Spec(name="b300-01", hardware="b300"), "b300-02": Spec(name="b300-02", hardware="b300")})
    live = diagnose([], "-e", "evidence_dir=%s" % (tmp_path / "ev"), inventory=hosts)
    assert live.document["cases"][0]["failed"] is False, live.run.text
    folder = next((tmp_path / "ev").iterdir())
    offline = diagnose([folder])
    assert offline.document["cases"] == live.document["cases"]
    # Changed evidence is refused, and read when that is asked for.
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    subprocess.run(["tar", "-xzf", str(folder / "b300-01.tar.gz"), "-C", str(damaged)], check=True)
    (damaged / "b300-01/answers.json").write_text("{}")
    refused = diagnose([damaged / "b300-01"])
    assert refused.run.rc == 2 and "answers.json is not what was recorded" in " ".join(refused.run.text.split())
    assert diagnose([damaged / "b300-01"], "-e", "diagnose_accept_changed=true").run.rc == 0


def test_a_node_that_does_not_answer_is_named_and_the_others_are_diagnosed(diagnose: Callable[..., Told], inventory: Any, tmp_path: pathlib.Path) -> None:
    hosts = inventory({
        "b300-01": Spec(name="b300-01", hardware="b300"),
        "away": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o ConnectTimeout=2"}})
    told = diagnose([], "-e", "evidence_dir=%s" % (tmp_path / "ev"), inventory=hosts)
    case = told.document["cases"][0]
    assert set(case["absent"]) == {"away"} and case["confidence"] == "low" and "away" in case["next_action"]
