# SPDX-License-Identifier: GPL-3.0-or-later
"""Section fabric of the facts: Fabric Manager, NVLSM, IMEX."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import collect, fabric
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Ran
from tests.costume import Spec, dress

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples"
ABSENT = {"installed": False, "active": "inactive", "sub": "dead", "restarts": 0, "main_pid": 0}
NO_IMEX = {
    "version": None, "service": ABSENT, "ready": None, "domain": None, "nodes_up": 0, "nodes_total": 0, "not_up": [], "config_sha256": None,
    "nodes": [], "channels": [], "major": None}


@pytest.fixture
def samples() -> Path:
    if not SAMPLES.is_dir():
        pytest.skip("no folder of captures beside the repository")
    return SAMPLES


def dressed(hardware: str = "b300", faults: Iterable[str] = (), change: Optional[Callable[[MemoryReader], Any]] = None,
            index: int = 1) -> Dict[str, Any]:
    reader = dress(Spec("n%d" % index, hardware, index, frozenset(faults)))
    if change:
        change(reader)
    return fabric.collect(reader, collect.Options())


def running(pid: int) -> Dict[str, Any]:
    return {"installed": True, "active": "active", "sub": "running", "enabled": "enabled", "since": "Sat 2026-11-28 21:06:30 UTC",
            "restarts": 0, "main_pid": pid}


def journal(text: str) -> str:
    """Messages of a log file or a ``systemctl status`` page as the journal's ``cat`` output gives them."""
    return "\n".join(re.sub(r"^\w{3} \d\d [\d:]{8} \S+ [\w.-]+\[\d+\]: ", "", line) for line in text.splitlines())


# -- whole nodes ---------------------------------------------------------------------------------
@pytest.mark.parametrize("hardware", ["h100", "h200"])
def test_every_fact_of_a_healthy_hopper_node(hardware: str) -> None:
    assert dressed(hardware) == {
        "nvswitches": 4, "sw_mng": [],
        "manager": {"version": "580.95.05", "service": running(2100), "log": [
            {"kind": "pre_nvl5", "text": "Detected Pre-NVL5 system"},
            {"kind": "configured", "text": "Successfully configured all the available NVSwitches to route GPU NVLink traffic."}]},
        "nvlsm": {"version": None, "running": False}, "imex": NO_IMEX, "unknown": {}}


@pytest.mark.parametrize("hardware", ["b200", "b300"])
def test_every_fact_of_a_healthy_blackwell_node(hardware: str) -> None:
    assert dressed(hardware) == {
        "nvswitches": 0, "sw_mng": ["mlx5_9", "mlx5_10", "mlx5_11", "mlx5_12"],
        "manager": {"version": "580.95.05", "service": running(2100), "log": [
            {"kind": "configured", "text": "Successfully configured all the available GPUs and NVSwitches to route NVLink traffic."}]},
        "nvlsm": {"version": "2025.06.5", "running": True}, "imex": NO_IMEX, "unknown": {}}


@pytest.mark.parametrize("hardware", ["gb200", "gb300"])
def test_every_fact_of_a_healthy_tray(hardware: str) -> None:
    facts = dressed(hardware)
    digest = facts["imex"].pop("config_sha256")
    assert re.match(r"^[0-9a-f]{64}$", digest)
    assert facts == {
        "nvswitches": 0, "sw_mng": [], "manager": {"version": None, "service": ABSENT, "log": []},
        "nvlsm": {"version": None, "running": False},
        "imex": {"version": "580.95.05", "service": running(2200), "ready": "READY", "domain": "UP", "nodes_up": 4, "nodes_total": 4,
                 "not_up": [], "nodes": ["192.0.2.11", "192.0.2.12", "192.0.2.13", "192.0.2.14"], "channels": [0], "major": 234},
        "unknown": {}}
    assert dressed(hardware, index=4)["imex"]["config_sha256"] == digest != dressed(hardware, index=5)["imex"]["config_sha256"]


def test_manager_of_another_version() -> None:
    for hardware in ("h100", "b300"):
        facts = dressed(hardware, ["fm_mismatch"])
        manager = facts["manager"]
        assert manager["version"] == "580.105.08" and manager["service"]["active"] == "failed" and manager["service"]["restarts"] == 5
        kinds = [entry["kind"] for entry in manager["log"] if entry["kind"] != "pre_nvl5"]
        # What systemd says of the unit afterwards is no reason of its own.
        assert kinds == ["version_mismatch"] and not facts["nvlsm"]["running"]
    assert "580.105.08 don't match with driver version 580.95.05" in manager["log"][0]["text"]


def test_imex_that_is_down() -> None:
    facts = dressed("gb300", ["imex_down"], index=3)
    imex = facts["imex"]
    assert (imex["service"]["active"], imex["ready"], imex["domain"], imex["nodes_up"], imex["nodes_total"], imex["not_up"]) == (
        "failed", "UNAVAILABLE", "DEGRADED", 3, 4, ["192.0.2.13"])
    assert facts["unknown"] == {}


def test_older_driver_and_none() -> None:
    assert dressed("b300", ["driver_r575"])["manager"]["version"] == "575.57.08"
    facts = dressed("b300", ["no_gpu"])
    assert facts["manager"] == {"version": None, "service": ABSENT, "log": []} and facts["imex"] == NO_IMEX and facts["unknown"] == {}


def test_snapshot_that_recorded_nothing_knows_nothing() -> None:
    facts = fabric.collect(MemoryReader(absent="not_recorded"), collect.Options())
    assert set(facts["unknown"]) == {"nvswitches", "sw_mng", "manager", "manager_log", "nvlsm", "imex"}
    assert facts["nvswitches"] is None and facts["sw_mng"] is None and facts["manager"]["log"] is None and facts["nvlsm"]["running"] is None


# -- versions ------------------------------------------------------------------------------------
def test_packages_by_every_name() -> None:
    assert fabric.parse_packages(
        "nvidia-fabricmanager\t580.95.05-1\tii \nnvlsm\t2025.03.1-1\tii \nnvidia-imex\t1:580.95.05-0ubuntu1\thi \n") == {
        "manager": "580.95.05", "nvlsm": "2025.03.1", "imex": "580.95.05"}
    assert fabric.parse_packages("nvidia-fabricmanager-580\t580.159.03-0ubuntu0.24.04.1\tii \nnvidia-imex-580\t580.159.03\tii ") == {
        "manager": "580.159.03", "imex": "580.159.03"}
    assert fabric.parse_packages("nvidia-fabric-manager\t570.172.08\tii\n") == {"manager": "570.172.08"}
    assert fabric.parse_packages(
        "nvidia-fabricmanager-535\t535.1-1\trc \nnvidia-fabricmanager-dev-580\t580.1\tii \nnvidia-imex\t\tun \nodd\n"
        "nvlsm-extra\t1\tii ") == {}


def test_programs_without_a_package_are_asked() -> None:
    def change(reader: MemoryReader) -> None:
        reader.commands[fabric.DPKG] = Ran(1)
        for path in ("/usr/bin/nv-fabricmanager", "/usr/bin/nvidia-imex"):
            reader.files[path] = ""
            reader._plant(path)
        reader.commands[fabric.MANAGER_VERSION] = Ran(0, "", "\n\n\tFabric Manager version is : 580.142\n")
        reader.commands[fabric.IMEX_VERSION] = Ran(1, "", "no")

    facts = dressed(change=change)
    assert facts["manager"]["version"] == "580.142" and facts["imex"]["version"] is None
    # With a package nothing is started.
    reader = dress(Spec("n1"))
    fabric.collect(reader, collect.Options())
    assert ("run",) + fabric.MANAGER_VERSION not in reader.memo


def test_rpm_answers_where_dpkg_is_missing() -> None:
    def change(reader: MemoryReader) -> None:
        del reader.commands[fabric.DPKG]
        reader.commands[fabric.RPM] = "nvidia-fabric-manager\t580.95.05\tii\nnvlsm\t2025.06.5\tii\n"

    facts = dressed(change=change)
    assert (facts["manager"]["version"], facts["nvlsm"]["version"]) == ("580.95.05", "2025.06.5")


# -- Fabric Manager's journal --------------------------------------------------------------------
@pytest.mark.parametrize("name,kinds", [
    ("fabricmanager_ok_journal_h100.txt", ["pre_nvl5", "configured"]),
    ("fabricmanager_nvlsm_ok_b300_r610.txt", ["configured"]),
    ("fabricmanager_fail_no_local_nvswitch.txt", ["pre_nvl5", "nothing_to_do"]),
    ("fabricmanager_log_gpud.log", []),
])
def test_captured_journals(samples: Path, name: str, kinds: List[str]) -> None:
    assert [entry["kind"] for entry in fabric.parse_log(journal((samples / name).read_text()))] == kinds


def test_newest_kind_stands_last() -> None:
    good, bad = "Successfully configured all the available NVSwitches", "fabric manager failed with error: timeout"
    unit = "nvidia-fabricmanager.service: Failed with result 'exit-code'."
    assert [e["kind"] for e in fabric.parse_log("\n".join((good, bad)))] == ["configured", "failed"]
    assert [e["kind"] for e in fabric.parse_log("\n".join((bad, good)))] == ["failed", "configured"]
    assert fabric.parse_log("\n".join((bad, unit))) == [{"kind": "failed", "text": bad}]
    assert fabric.parse_log(unit) == [{"kind": "failed", "text": unit}]
    assert fabric.parse_log("x\n\n") == []
    text = "fabric manager version is incompatible with NVSwitch driver. Please update with matching NVIDIA driver package"
    assert fabric.parse_log(text) == [{"kind": "version_mismatch", "text": text}]
    assert [e["kind"] for e in fabric.parse_log("\n".join((good, text, unit)))] == ["configured", "version_mismatch"]
    assert [e["kind"] for e in fabric.parse_log("\n".join((text, unit, good, unit)))] == ["version_mismatch", "configured", "failed"]
    assert fabric.parse_log("detected NVSwitch non-fatal error 12028 on fid 0") == []
    assert [e["kind"] for e in fabric.parse_log("detected NVSwitch fatal error 20034 on fid 0")] == ["failed"]


def test_journal_that_may_not_be_read() -> None:
    facts = dressed(change=lambda reader: reader.commands.update({fabric.JOURNAL: Ran(1, "", "denied")}))
    assert facts["manager"]["log"] is None and facts["unknown"] == {"manager_log": "journalctl exited with 1: denied"}


def test_machine_without_systemd() -> None:
    facts = dressed(change=lambda reader: reader.commands.pop(fabric.SERVICES))
    assert facts["unknown"]["manager"] == facts["unknown"]["imex"] == "systemctl is not installed"
    assert facts["manager"]["service"] is None and facts["manager"]["version"] == "580.95.05" and facts["manager"]["log"]


# -- switch management ---------------------------------------------------------------------------
def test_product_data_that_only_root_may_read() -> None:
    def change(reader: MemoryReader) -> None:
        for path in reader.files:
            if path.endswith("/device/vpd"):
                reader.files[path] = Content(None, "denied")

    facts = dressed(change=change)
    assert facts["sw_mng"] is None and facts["unknown"] == {"sw_mng": "the product data of the HCAs may only be read by root"}


def test_product_data_is_binary() -> None:
    files = {"/sys/class/infiniband/mlx5_%d/device/vpd" % i: text for i, text in enumerate((
        "\ufffd\x82\0ConnectX-7\ufffdSW_MNG\0", "\ufffd\x82\0ConnectX-7", Content(None, "io:EIO")))}
    facts = fabric.collect(MemoryReader(files), collect.Options())
    assert facts["sw_mng"] == ["mlx5_0"] and "sw_mng" not in facts["unknown"]
    del files["/sys/class/infiniband/mlx5_0/device/vpd"]
    assert "io:EIO" in fabric.collect(MemoryReader(files), collect.Options())["unknown"]["sw_mng"]


# -- IMEX ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name,expected", [
    ("imex_ctl_N_18nodes_up.txt", {"domain": "UP", "nodes_up": 18, "nodes_total": 18, "not_up": []}),
    ("imex_ctl_N_j_H_up.json", {"domain": "UP", "nodes_up": 2, "nodes_total": 2, "not_up": []}),
    ("imex_ctl_N_j_H_down.json", {"domain": "DOWN", "nodes_up": 0, "nodes_total": 2, "not_up": ["10.0.0.1", "10.0.0.2"]}),
])
def test_captured_domains(samples: Path, name: str, expected: Dict[str, Any]) -> None:
    assert fabric.parse_imex_nodes((samples / name).read_text()) == expected


def test_ready_node_that_nobody_reaches_is_not_up() -> None:
    reader = dress(Spec("n1", "gb300"))
    document = json.loads(reader.commands[fabric.IMEX_NODES])
    for node in document["nodes"].values():
        node["connections"]["2"]["status"] = "VERSION_MISMATCH"
    assert fabric.parse_imex_nodes(json.dumps(document))["not_up"] == ["192.0.2.13"]
    alone = {"nodes": {"0": {"status": "READY", "host": "a", "connections": {"0": {"status": "INVALID"}}}}, "status": "UP"}
    assert fabric.parse_imex_nodes(json.dumps(alone)) == {"domain": "UP", "nodes_up": 1, "nodes_total": 1, "not_up": []}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"nodes": []}', '{"nodes": {"0": 3}, "status": 7}', "connection refused", "[" * 100000])
def test_odd_answers_of_the_control_program(text: str) -> None:
    found = fabric.parse_imex_nodes(text)
    assert found in ({}, {"domain": None, "nodes_up": 0, "nodes_total": 0, "not_up": []})


def test_control_program_that_hangs() -> None:
    def change(reader: MemoryReader) -> None:
        for argv in (fabric.IMEX_STATE, fabric.IMEX_NODES):
            reader.commands[argv] = Ran(None, "", "", "timeout")

    facts = dressed("gb300", change=change)
    assert "nvidia-imex-ctl -q did not answer in time" in facts["unknown"]["imex"]
    assert facts["imex"]["ready"] is None and facts["imex"]["service"] == running(2200) and len(facts["imex"]["nodes"]) == 4


def test_configuration_is_compared_without_comments() -> None:
    def with_nodes(text: str) -> Dict[str, Any]:
        imex: Dict[str, Any] = dressed("gb300", change=lambda reader: reader.files.update({fabric.NODES_CONFIG: text}))["imex"]
        return imex

    plain = with_nodes("192.0.2.11\n192.0.2.12\n")
    assert with_nodes("# rack 7\n\n 192.0.2.11 # first\r\n192.0.2.12")["config_sha256"] == plain["config_sha256"]
    assert with_nodes("192.0.2.11\n192.0.2.13\n")["config_sha256"] != plain["config_sha256"]
    assert plain["nodes"] == ["192.0.2.11", "192.0.2.12"]
    assert with_nodes("two words\nfd00::1\ntray-1.example\n")["nodes"] == ["fd00::1", "tray-1.example"]


def test_channels() -> None:
    def change(reader: MemoryReader) -> None:
        for name in ("channel10", "channel2", "other"):
            reader.files[fabric.CHANNELS + "/" + name] = ""
            reader._plant(fabric.CHANNELS + "/" + name)

    assert dressed("gb300", change=change)["imex"]["channels"] == [0, 2, 10]


# -- any text ------------------------------------------------------------------------------------
@given(st.one_of(st.text(), st.text(alphabet='{}[]":, nodeshtaukci0#-READY\n')))
@settings(max_examples=120, deadline=None)
def test_any_answers_are_read_without_an_exception(text: str) -> None:
    commands = dict.fromkeys(fabric.commands(collect.Options()), Ran(0, text, text))
    files = dict.fromkeys((fabric.NODES_CONFIG, fabric.CONFIG, "/proc/devices", "/sys/class/infiniband/mlx5_0/device/vpd"), text)
    facts = fabric.collect(MemoryReader(files, commands=commands), collect.Options())
    assert facts["imex"]["nodes_up"] <= facts["imex"]["nodes_total"] and isinstance(facts["unknown"], dict)


@given(st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
                    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(
                        st.sampled_from(["nodes", "status", "host", "connections", "0", "1"]), inner, max_size=4)), max_leaves=12))
@settings(max_examples=150, deadline=None)
def test_any_json_is_read_without_an_exception(value: Any) -> None:
    for document in (value, {"nodes": {"0": value, "1": {"status": "READY", "connections": value}}, "status": value}):
        fabric.parse_imex_nodes(json.dumps(document))
