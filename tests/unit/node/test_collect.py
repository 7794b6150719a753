# SPDX-License-Identifier: GPL-3.0-or-later
"""Gathering all sections: bounded in time and size, and no section costs another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import collect
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import MemoryReader, Ran
from tests.costume import FAULTS, HARDWARE, Spec, dress

ROOT = Path(__file__).resolve().parents[3]
ALL = tuple(collect.SECTIONS)


# -- whole nodes -------------------------------------------------------------------------------------
@pytest.mark.parametrize("hardware", HARDWARE)
def test_a_healthy_node_is_known_in_every_part_and_small(hardware: str) -> None:
    reader = dress(Spec("n1", hardware))
    facts = collect.gather(reader, collect.Options(image="vllm/vllm-openai:kimi-k3"))
    assert list(facts) == ["schema", "collected", *ALL]
    assert facts["schema"] == collect.SCHEMA and facts["collected"]["subset"] == list(ALL) and facts["collected"]["recorded"] is False
    assert {name: facts[name]["unknown"] for name in ALL} == {name: {} for name in ALL}
    assert len(json.dumps(facts, separators=(",", ":"))) < 32 * 1024
    assert len(facts["rdma"]["hcas"]) == (5 if hardware.startswith("gb") else 13 if hardware.startswith("b") else 9)


@pytest.mark.parametrize("hardware", ["b300", "gb300"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_makes_a_collector_fail(hardware: str, fault: str) -> None:
    facts = collect.gather(dress(Spec("n1", hardware, 1, frozenset({fault}))), collect.Options())
    assert "the collector failed" not in json.dumps(facts)
    assert len(json.dumps(facts, separators=(",", ":"))) < 32 * 1024


def test_no_device_address_belongs_to_two_devices() -> None:
    for hardware in HARDWARE:
        facts = collect.gather(dress(Spec("n1", hardware)), collect.Options())
        addresses = [device["bdf"] for device in facts["rdma"]["hcas"] + facts["gpu"]["gpus"]]
        addresses += facts["gpudirect"]["dmabuf"]["data_direct"]
        assert len(addresses) == len(set(addresses))
        assert set(facts["gpu"]["topology"]["nics"].values()) <= {hca["name"] for hca in facts["rdma"]["hcas"]}
        for netdev in facts["rdma"]["netdevs"]:
            assert facts["host"]["addresses"][netdev]


def test_the_costume_is_named() -> None:
    reader = dress(Spec("n1"))
    reader.files[collect.COSTUME] = '{"name": "b300"}'
    assert collect.gather(reader, collect.Options())["collected"]["costume"] == "b300"
    for text in ("{", "[]", "3"):
        reader = MemoryReader({collect.COSTUME: text})
        assert collect.gather(reader, collect.Options(subset=()))["collected"]["costume"] == "unnamed"
    assert collect.gather(MemoryReader(), collect.Options(subset=()))["collected"]["costume"] is None


def test_an_empty_machine_and_an_empty_recording() -> None:
    for absent in ("missing", "not_recorded"):
        facts = collect.gather(MemoryReader(absent=absent), collect.Options())
        assert set(ALL) <= set(facts) and "the collector failed" not in json.dumps(facts)
        if absent == "not_recorded":
            assert [name for name in ALL if not facts[name]["unknown"]] == []


# -- no section costs another ------------------------------------------------------------------------
def _section(act: Callable[[], Any]) -> Any:
    return SimpleNamespace(commands=lambda options: [], collect=lambda reader, options: act())


@pytest.fixture
def sections(monkeypatch: pytest.MonkeyPatch) -> Callable[[Dict[str, Callable[[], Any]]], None]:
    def put(actions: Dict[str, Callable[[], Any]]) -> None:
        monkeypatch.setattr(collect, "SECTIONS", {name: _section(act) for name, act in actions.items()})

    return put


def _raises() -> Any:
    raise RuntimeError("a fault of ours")


def test_a_section_that_raises_costs_only_itself(sections: Any) -> None:
    sections({"good": lambda: {"a": 1}, "bad": _raises})
    for reader in (MemoryReader(), LiveReader(2)):
        facts = collect.gather(reader, collect.Options(subset=("good", "bad")))
        assert facts["good"] == {"a": 1}
        assert facts["bad"] == {"unknown": {"all": "the collector failed: RuntimeError: a fault of ours"}}


def test_a_section_that_is_stuck_costs_only_itself(sections: Any) -> None:
    sections({"good": lambda: {"a": 1}, "stuck": lambda: time.sleep(600), "dies": lambda: os._exit(1)})
    started = time.monotonic()
    facts = collect.gather(LiveReader(1), collect.Options(subset=("good", "stuck", "dies")))
    assert time.monotonic() - started < 1 + 3
    assert facts["good"] == {"a": 1}
    assert "stuck" in facts["stuck"]["unknown"]["all"] and "died" in facts["dies"]["unknown"]["all"]


def test_children_bring_back_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(reader: Any, options: Any) -> Dict[str, Any]:
        return {"text": reader.read("/proc/version").text, "out": reader.run(["echo", "x"]).out,
            "who": reader.probe("process").value["uid"]}

    monkeypatch.setattr(collect, "SECTIONS", {"a": SimpleNamespace(commands=lambda options: [["echo", "x"]], collect=reads)})
    for keep in (False, True):
        reader = LiveReader(5)
        facts = collect.gather(reader, collect.Options(subset=("a",)), keep=keep)
        assert facts["a"]["out"] == "x\n" and facts["a"]["who"] == os.geteuid()
        assert (("read", "/proc/version") in reader.memo) is keep
    assert reader.memo[("read", "/proc/version")].text == facts["a"]["text"]
    ran = reader.memo[("run", "echo", "x")]
    assert ran._replace(seconds=0.0) == Ran(0, "x\n", "") and ran.seconds > 0


# -- a live machine whose every tool hangs -------------------------------------------------------------
def test_every_command_hangs(tmp_path: Path) -> None:
    """All tools that the collectors call hang: the whole stays below timeout + 3 s and says why."""
    tools = {argv[0] for module in collect.SECTIONS.values() for argv in module.commands(collect.Options(image="x"))} | {
        "docker", "podman", "zcat", "nvidia-ctk", "systemctl", "sha256sum", "df"}
    for tool in tools:
        path = tmp_path / tool
        path.write_text("#!/bin/sh\necho begun\nexec sleep 600\n")
        path.chmod(0o755)
    code = (
        "import json, time\n"
        "from ansible_collections.inferops.vllm.plugins.module_utils.node import collect\n"
        "from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader\n"
        "started = time.monotonic()\n"
        "facts = collect.gather(LiveReader(2), collect.Options(image='x', names=('localhost',)), keep=True)\n"
        "print(json.dumps([time.monotonic() - started, facts]))\n")
    env = {**os.environ, "PATH": "%s:%s" % (tmp_path, os.environ["PATH"]), "PYTHONPATH": str(ROOT / "collections")}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    seconds, facts = json.loads(told.stdout)
    assert seconds < 2 + 3
    assert "abandoned" in facts["gpu"]["unknown"]["smi"]
    assert facts["host"]["kernel"] == os.uname().release
    assert "the collector failed" not in told.stdout


def test_this_machine_is_read_quickly() -> None:
    reader = LiveReader(10)
    started = time.monotonic()
    facts = collect.gather(reader, collect.Options())
    assert time.monotonic() - started < 8  # 2 s are promised on an idle machine; the benchmark measures that
    assert facts["host"]["kernel"] == os.uname().release and facts["collected"]["uid"] == os.geteuid()
    assert "the collector failed" not in json.dumps(facts)


# -- options -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("words,expected", [
    ([], ALL), (["all"], ALL), (["gpu", "host"], ("host", "gpu")), (["!gpu"], tuple(s for s in ALL if s != "gpu")),
    (["all", "!gpu", "!rdma"], tuple(s for s in ALL if s not in ("gpu", "rdma"))), (["gpu", "!gpu"], ()),
])
def test_gather_subset(words: List[str], expected: Any) -> None:
    assert collect.wanted_sections(words) == expected


@pytest.mark.parametrize("word", ["gpus", "!nothing", "", "GPU"])
def test_an_unknown_section_is_refused_with_the_allowed_ones(word: str) -> None:
    with pytest.raises(ValueError, match=r"gather_subset.*gpudirect"):
        collect.wanted_sections([word])


def test_only_the_wanted_sections_are_gathered() -> None:
    facts = collect.gather(dress(Spec("n1")), collect.Options(subset=("rdma",)))
    assert list(facts) == ["schema", "collected", "rdma"]


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=5), max_size=3)


@given(values=st.dictionaries(st.sampled_from([*collect.Options._fields, "other"]), VALUES))
@settings(max_examples=100, deadline=None)
def test_options_of_any_snapshot(values: Dict[str, Any]) -> None:
    options = collect.options_from(values)
    assert set(options.subset) <= set(ALL) and isinstance(options.image, str) and all(isinstance(name, str) for name in options.names)
    assert collect.options_from(options.asdict()) == options


# -- any answer to any question --------------------------------------------------------------------------
TEXTS = st.sampled_from(["", "\0", "junk\n", "[]", "{}", "null", "<a", "-1", "9" * 200, "N/A", "\ufffd\ufffd", "a: b\nc=d\n", "x\t" * 50,
    "[{}]", '{"a": [1]}'])


@given(seed=st.data(), hardware=st.sampled_from(["b300", "gb300"]))
@settings(max_examples=60, deadline=None)
def test_no_answer_makes_a_collector_fail(seed: st.DataObject, hardware: str) -> None:
    """Some files and commands of a healthy node are replaced by junk."""
    reader = dress(Spec("n1", hardware))
    for path in seed.draw(st.lists(st.sampled_from(sorted(reader.files)), max_size=25)):
        reader.files[path] = seed.draw(TEXTS)
    errors = st.sampled_from(["", "timeout", "missing", "denied"])
    for argv in seed.draw(st.lists(st.sampled_from(sorted(reader.commands)), max_size=15)):
        reader.commands[argv] = Ran(seed.draw(st.sampled_from([0, 0, 1, None])), seed.draw(TEXTS), seed.draw(TEXTS), seed.draw(errors))
    for key in seed.draw(st.lists(st.sampled_from(sorted(reader.probes)), max_size=6)):
        reader.probes[key] = seed.draw(st.integers() | st.sampled_from([None, "x", [], {}, [{}], {"a": None}]))
    facts = json.dumps(collect.gather(reader, collect.Options(image="vllm/vllm-openai:kimi-k3")))
    assert "the collector failed" not in facts
