# SPDX-License-Identifier: GPL-3.0-or-later
"""Section gpu of the facts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import collect, gpu, kernel_log, smi, topology
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Ran
from tests.costume import HARDWARE, Spec, dress, part_gpu, part_host

CONTAINER = "4f2a" * 16


def dressed(hardware: str = "b300", faults: Iterable[str] = (), change: Optional[Callable[[MemoryReader], Any]] = None,
            index: int = 1) -> Dict[str, Any]:
    reader = dress(Spec("n%d" % index, hardware, index, frozenset(faults)))
    if change:
        change(reader)
    return gpu.collect(reader, collect.Options())


def size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


# -- whole nodes ---------------------------------------------------------------------------------
@pytest.mark.parametrize("hardware", HARDWARE)
def test_every_fact_of_a_healthy_node(hardware: str) -> None:
    facts = dressed(hardware)
    model, grace = part_gpu.MODELS[hardware], hardware.startswith("gb")
    count = 4 if grace else 8
    assert facts["unknown"] == {}
    assert set(facts) == {"smi", "pci", "devices", "gpus", "topology", "nvlink", "holders", "xid", "sxid", "fallen", "unknown"}
    assert facts["smi"] == {"driver_version": "580.95.05", "cuda_version": "13.0", "attached": count}
    assert facts["devices"] == count == len(facts["pci"])
    device = "0x" + model.device.lower()
    expected = part_gpu.gpus(Spec("n1", hardware))
    assert facts["pci"] == [{"bdf": one.bdf, "device": device, "driver": "nvidia", "numa": one.numa} for one in expected]
    for number, (found, one) in enumerate(zip(facts["gpus"], expected)):
        own = {"addressing_mode": "ATS", "numa": (2, 10, 18, 26)[number]} if grace else {}
        if model.arch == "Hopper":
            own = {"addressing_mode": "HMM"}
        assert found == {
            "index": number, "bdf": one.bdf, "uuid": one.uuid, "name": model.name, "arch": model.arch, "serial": one.serial,
            "vbios": model.vbios, "pci_device": device + "10de", "fb_total_mib": model.memory, "fb_used_mib": 0, "persistence": True,
            "mig": "Disabled", "ecc": {"current": True, "pending": True, "volatile_uncorrectable": 0, "aggregate_uncorrectable": 0},
            "remap": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
            "pcie": {"gen": model.gen, "gen_max": model.gen, "width": 16, "width_max": 16}, "temperature": 31 + number % 4,
            "recovery_action": "None",
            "fabric": {"state": "Completed", "status": "Success", "clique": "32766" if grace else "0",
                       "cluster": part_gpu.CLUSTER if grace else ""}, **own}
    assert len(facts["gpus"]) == count
    assert facts["topology"]["matrix"] == [" ".join("X" if i == j else "NV18" for j in range(count)) for i in range(count)]
    assert facts["topology"]["gpus"] == ["GPU%d" % i for i in range(count)]
    assert list(facts["topology"]["nics"].values())[:count] == ["mlx5_%d" % i for i in range(count)]
    for number, row in enumerate(facts["topology"]["gpu_nic"]):
        assert row.split().count("PIX") == (0 if grace else 1) and (grace or row.split().index("PIX") == number)
    assert facts["nvlink"] == [{"index": i, "links": 18, "active": 18, "min_gbs": float(model.link)} for i in range(count)]
    assert facts["holders"] == [{"pid": part_host.PERSISTENCED_PID, "comm": "nvidia-persiste", "state": "S", "devices": count}]
    assert facts["xid"] == facts["sxid"] == facts["fallen"] == []


def test_nodes_have_their_own_serials_and_uuids() -> None:
    seen = [one[name] for index in (1, 2, 40) for one in dressed("b300", index=index)["gpus"] for name in ("serial", "uuid")]
    assert len(set(seen)) == len(seen) == 48


@pytest.mark.parametrize("hardware", HARDWARE)
def test_three_sections_of_a_node_stay_small(hardware: str) -> None:
    facts = collect.gather(dress(Spec("n1", hardware)), collect.Options())
    assert size([facts[name] for name in ("driver", "gpu", "fabric")]) < 9 * 1024
    assert size(facts) < 32 * 1024


def test_lost_gpu_is_in_pci_and_not_in_nvidia_smi() -> None:
    facts = dressed("b300", ["gpu_lost"])
    assert facts["unknown"] == {} and facts["smi"]["attached"] == 7 == len(facts["gpus"]) and facts["devices"] == 8
    assert [entry["bdf"] for entry in facts["pci"] if entry.get("rev_ff")] == ["0000:dd:00.0"] == facts["fallen"]
    assert [(group["code"], group["bdf"], group.get("index")) for group in facts["xid"]] == [
        (79, "0000:dd:00.0", None), (154, "0000:dd:00.0", None)]
    assert facts["topology"]["gpus"] == ["GPU%d" % i for i in range(7)] and len(facts["nvlink"]) == 7


def test_tool_that_hangs_leaves_pci_holders_and_kernel_log() -> None:
    facts = dressed("b300", ["smi_hung"])
    assert set(facts["unknown"]) == {"smi", "topology", "nvlink"} and "gpus" not in facts and "smi" not in facts
    assert all("did not answer in time" in why for why in facts["unknown"].values())
    assert [entry.get("rev_ff") for entry in facts["pci"]] == [None] * 8 and facts["devices"] == 8
    assert [(group["code"], group["name"]) for group in facts["xid"]] == [(119, "nvidia-smi")]


def test_lost_nvlink() -> None:
    facts = dressed("h200", ["nvlink_lost"])
    assert facts["topology"]["matrix"][2] == "SYS SYS X SYS SYS SYS SYS SYS"
    assert facts["nvlink"][2] == {"index": 2, "links": 0, "active": 0} and facts["nvlink"][3]["active"] == 18
    assert [one["fabric"]["state"] for one in facts["gpus"]] == ["Completed"] * 2 + ["In Progress"] + ["Completed"] * 5
    assert [(group["code"], group["index"]) for group in facts["xid"]] == [(74, 2)]
    assert [group["code"] for group in dressed("b200", ["nvlink_lost"])["xid"]] == [149]


def test_memory_errors() -> None:
    facts = dressed("b300", ["ecc_pending"])
    one = facts["gpus"][1]
    assert one["remap"] == {"correctable": 0, "uncorrectable": 1, "pending": True, "failure": False} and one["recovery_action"] == "Reset"
    facts = dressed("b300", ["xid_94"])
    assert facts["gpus"][3]["ecc"]["volatile_uncorrectable"] == 1
    assert [(group["code"], group["index"], group["name"]) for group in facts["xid"]] == [(94, 3, "VLLM::Worker_TP3")]


def test_other_clique_and_older_driver() -> None:
    assert {one["fabric"]["clique"] for one in dressed("gb300", ["clique_other"])["gpus"]} == {part_gpu.OTHER_CLIQUE}
    facts = dressed("b300", ["driver_r575"])
    assert facts["smi"] == {"driver_version": "575.57.08", "cuda_version": "12.9", "attached": 8}
    assert facts["gpus"][0]["fabric"]["status"] == "Success" and facts["gpus"][0]["recovery_action"] == "None"


def test_foreign_holder() -> None:
    facts = dressed("b300", ["foreign_holder"])
    assert {"pid": part_host.FOREIGN_PID, "comm": "python3", "state": "S", "devices": 8} in facts["holders"]
    assert [one["processes"] for one in facts["gpus"]] == [
        [{"pid": part_host.FOREIGN_PID, "name": "/home/alice/venv/bin/python3", "type": "C", "used_mib": 68000}]] * 8


def test_machine_without_gpu() -> None:
    facts = dressed("b300", ["no_gpu"])
    assert facts["pci"] == [] and facts["devices"] == 0 and facts["holders"] == []
    assert facts["unknown"]["smi"] == "nvidia-smi is not installed" and set(facts["unknown"]) == {"smi", "topology", "nvlink"}


def test_snapshot_that_recorded_nothing_knows_nothing() -> None:
    facts = gpu.collect(MemoryReader(absent="not_recorded"), collect.Options())
    assert set(facts["unknown"]) == {"smi", "topology", "nvlink", "holders", "kernel_log", "pci", "devices"}
    assert facts["pci"] is None and facts["devices"] is None and not {"gpus", "xid", "holders", "topology", "nvlink"} & set(facts)


# -- nvidia-smi that answers in part --------------------------------------------------------------
def test_half_a_document_of_a_killed_tool() -> None:
    text = part_gpu.document(Spec("n1"), part_gpu.gpus(Spec("n1")))
    half = text[:text.index('id="00000000:60:00.0"')]
    facts = dressed(change=lambda reader: reader.commands.update({smi.COMMAND: Ran(None, half, "", "timeout")}))
    assert [one["bdf"] for one in facts["gpus"]] == ["0000:1b:00.0", "0000:3d:00.0", "0000:4f:00.0"]
    assert facts["unknown"]["smi"].startswith("nvidia-smi did not answer in time") and "ended early" in facts["unknown"]["smi"]
    facts = dressed(change=lambda reader: reader.commands.update({smi.COMMAND: half}))
    assert facts["unknown"]["smi"] == "the document ended early, after 3 GPUs" and facts["smi"]["attached"] == 8


@pytest.mark.parametrize("text,part", [
    ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n", "Driver/library version mismatch"),
    ("No devices were found\n", "found no devices"),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "could not communicate"),
    ("Failed to initialize NVML: Unknown Error\n", "Unknown Error"), ("\x00\x01 nonsense", "exited with 9"), ("", "exited with 9")])
def test_failing_tool_says_why(text: str, part: str) -> None:
    def fail(reader: MemoryReader) -> None:
        for argv in (smi.COMMAND, topology.MATRIX, topology.LINKS):
            reader.commands[argv] = Ran(9, text, "")

    facts = dressed(change=fail)
    assert set(facts["unknown"]) == {"smi", "topology", "nvlink"}
    assert all(part in why for why in facts["unknown"].values())
    assert "gpus" not in facts and len(facts["pci"]) == 8


def test_gpu_without_nvlink_is_not_unknown() -> None:
    facts = dressed(change=lambda reader: reader.commands.update({topology.LINKS: ""}))
    assert facts["nvlink"] == [] and facts["unknown"] == {}


# -- PCI -----------------------------------------------------------------------------------------
def test_only_what_is_needed_of_pci_is_read() -> None:
    reader = dress(Spec("n1", "h100"))
    for bus in range(0x20, 0x60):
        for function in range(8):
            folder = "/sys/bus/pci/devices/0001:%02x:1f.%d/" % (bus, function)
            for name, text in (("class", "0x088000\n"), ("vendor", "0x8086\n"), ("device", "0x3000\n")):
                reader.files[folder + name] = text
                reader._plant(folder + name)
    facts = gpu.collect(reader, collect.Options())
    assert len(facts["pci"]) == 8
    read = [key[1] for key in reader.memo if key[0] == "read" and key[1].startswith("/sys/bus/pci/devices/0001:")]
    assert len(read) == 64 and all(path.endswith(".0/class") for path in read)
    # Healthy GPUs that nvidia-smi lists need no look at their configuration space.
    assert not any(key[1].endswith("/config") for key in reader.memo if key[0] == "read")


def test_class_vendor_and_binding_of_controllers() -> None:
    def device(address: str, kind: str, vendor: str, bound: str = "", revision: str = "0xa1") -> Dict[str, str]:
        folder = "/sys/bus/pci/devices/%s/" % address
        files.update({folder + "class": kind, folder + "vendor": vendor, folder + "device": "0x2330\n", folder + "revision": revision,
                      folder + "numa_node": "-1\n"})
        if bound:
            links[folder + "driver"] = "../../../bus/pci/drivers/" + bound
            links["/sys/bus/pci/drivers/%s/%s" % (bound, address)] = "x"
        return files

    files: Dict[str, Any] = {}
    links: Dict[str, str] = {}
    device("0000:01:00.0", "0x030000\n", "0x10de\n")
    device("0000:02:00.0", "0x030200\n", "0x10de\n", "vfio-pci")
    device("0000:03:00.1", "0x030200\n", "0x10de\n", "nvidia")
    device("0000:04:00.0", "0x068000\n", "0x10de\n", "nvidia-nvswitch")
    device("0000:05:00.0", "0x030000\n", "0x1a03\n", "ast")
    device("0000:06:00.1", "0x040300\n", "0x10de\n", "snd_hda_intel")
    device("0000:07:00.0", "0x030200\n", "0x10de\n", "nvidia", "0xff\n")
    device("10000:08:00.0", "0x030200\n", "0x10de\n", "nvidia")
    reader = MemoryReader(files, links, {kernel_log.RING: ""})
    assert gpu.collect(reader, collect.Options())["pci"] == [
        {"bdf": "0000:01:00.0", "device": "0x2330"}, {"bdf": "0000:02:00.0", "device": "0x2330", "driver": "vfio-pci"},
        {"bdf": "0000:03:00.1", "device": "0x2330", "driver": "nvidia"},
        {"bdf": "0000:07:00.0", "device": "0x2330", "driver": "nvidia", "rev_ff": True},
        {"bdf": "10000:08:00.0", "device": "0x2330", "driver": "nvidia"}]


def test_nvswitches_are_no_gpus() -> None:
    reader = dress(Spec("n1", "h100"))
    assert reader.read("/sys/bus/pci/devices/0000:05:00.0/class").strip() == "0x068000"
    assert len(gpu.collect(reader, collect.Options())["pci"]) == 8


# -- holders -------------------------------------------------------------------------------------
@pytest.mark.parametrize("cgroup,container", [
    ("/system.slice/docker-%s.scope" % CONTAINER, True), ("/docker/" + CONTAINER, True), ("/user.slice/session-3.scope", False),
    ("/kubepods.slice/kubepods-burstable.slice/cri-containerd-%s.scope" % CONTAINER, True),
    ("/machine.slice/libpod-%s.scope/container" % CONTAINER, True), (None, False)])
def test_container_of_a_holder(cgroup: Any, container: bool) -> None:
    table = {"holders": [{"pid": 9, "comm": "python3", "state": "S", "devices": 8, "cgroup": cgroup}], "denied": 0}
    facts = dressed(change=lambda reader: reader.probes.update({("processes", ""): table}))
    assert facts["holders"] == [
        {"pid": 9, "comm": "python3", "state": "S", "devices": 8, **({"container": CONTAINER[:12]} if container else {})}]


def test_processes_that_only_root_may_look_at() -> None:
    def change(uid: int, **more: Any) -> Callable[[MemoryReader], None]:
        def apply(reader: MemoryReader) -> None:
            reader.probes[("process", "")] = {**reader.probes[("process", "")], "uid": uid}
            reader.probes[("processes", "")] = {**reader.probes[("processes", "")], **more}
        return apply

    assert "holders" not in dressed(change=change(0, denied=3))["unknown"]
    facts = dressed(change=change(1000, denied=3))
    assert facts["unknown"]["holders"] == "the open files of 3 processes may only be read by root" and facts["holders"]
    assert "hidden" in dressed(change=change(1000, denied=1, hidden=True))["unknown"]["holders"]
    assert "in time" in dressed(change=change(0, truncated=True))["unknown"]["holders"]


@pytest.mark.parametrize("table", [None, [], "x", {"holders": "x"}, {"holders": [1, {"pid": "x"}, {"pid": 3}]}])
def test_odd_table_of_processes(table: Any) -> None:
    facts = dressed(change=lambda reader: reader.probes.update({("processes", ""): table}))
    assert facts.get("holders", []) in ([], [{"pid": 3}]) and ("holders" in facts["unknown"]) == (not isinstance(table, dict))


def test_kernel_log_that_may_not_be_read() -> None:
    def change(reader: MemoryReader) -> None:
        reader.commands[kernel_log.JOURNAL] = Ran(1, "", "no journal")
        reader.commands[kernel_log.RING] = Ran(1, "", "dmesg: Operation not permitted")

    facts = dressed(change=change)
    assert set(facts["unknown"]) == {"kernel_log"} and not {"xid", "sxid", "fallen"} & set(facts)


def test_faults_in_a_journal_that_was_cut_are_told() -> None:
    def change(reader: MemoryReader) -> None:
        text = "[  100.000000] h kernel: NVRM: Xid (PCI:0000:1b:00): 95, pid='<unknown>', name=<unknown>, Uncontained error.\n"
        reader.commands[kernel_log.JOURNAL] = Ran(0, text, "", "too_large")
        reader.commands[kernel_log.RING] = "[90000.000000] docker0: port 1(veth1) entered forwarding state\n"

    facts = dressed(change=change)
    assert [(group["bdf"], group["code"]) for group in facts["xid"]] == [("0000:1b:00.0", 95)]
    assert set(facts["unknown"]) == {"kernel_log"} and "larger" in facts["unknown"]["kernel_log"]


# -- any text ------------------------------------------------------------------------------------
@given(st.one_of(st.text(), st.binary().map(lambda raw: raw.decode("utf-8", "replace"))))
@settings(max_examples=80, deadline=None)
def test_any_answers_are_read_without_an_exception(text: str) -> None:
    commands = {argv: Ran(0, text, text) for argv in gpu.commands(collect.Options())}
    folder = "/sys/bus/pci/devices/0000:01:00.0/"
    files = {folder + name: text for name in ("vendor", "device", "revision", "numa_node", "config")}
    files[folder + "class"] = "0x030200\n"
    files["/sys/bus/pci/devices/odd name/class"] = text
    files["/dev/nvidia0"] = Content(None, "denied")
    facts = gpu.collect(MemoryReader(files, {folder + "driver": text}, commands), collect.Options())
    assert facts["devices"] == 1 and isinstance(facts["unknown"], dict)


# -- a live tool ---------------------------------------------------------------------------------
def test_live_tool_that_prints_half_a_document_and_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = part_gpu.document(Spec("n1"), part_gpu.gpus(Spec("n1")))
    (tmp_path / "half.xml").write_text(text[:text.index('id="00000000:4F:00.0"') + 400])
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ntrap "" TERM INT HUP\n[ "$1" = -q ] && cat "%s"\nsleep 60 &\nwait\nsleep 60\n' % (tmp_path / "half.xml"))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:/usr/bin:/bin" % tmp_path)
    started = time.monotonic()
    facts = collect.gather(LiveReader(timeout=1.0), collect.Options(subset=("driver", "gpu")))
    assert time.monotonic() - started < 4.0
    assert [one["bdf"] for one in facts["gpu"]["gpus"]] == ["0000:1b:00.0", "0000:3d:00.0"]
    assert facts["gpu"]["unknown"]["smi"] == (
        "nvidia-smi did not answer in time and was abandoned; the document ended early, within GPU 0000:4f:00.0")
    assert {"topology", "nvlink"} <= set(facts["gpu"]["unknown"]) and facts["driver"]["cuda"] == "13.0"
