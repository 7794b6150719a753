# SPDX-License-Identifier: GPL-3.0-or-later
"""Xid and SXid messages, and devices that fell off the bus."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, List

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import kernel_log, xid
from ansible_collections.inferops.vllm.plugins.module_utils.node.kernel_log import Line

SHARED = Path(__file__).resolve().parents[4] / "shared"


def capture(name: str) -> List[Line]:
    """Messages of a capture, whatever its time looks like, one a second."""
    if not (SHARED / name).is_file():
        pytest.skip("no folder of captures beside the repository")
    lines = []
    for number, raw in enumerate((SHARED / name).read_text().splitlines()):
        text = re.sub(r"^(?:\S+: kern:\s+\w+: )?\[[^\]]*\]:? ?", "", raw)
        lines.append(("[%5d.000000] %s" % (number, text)) if text != raw else raw)
    return kernel_log.parse("\n".join(lines))


def at(*texts: str) -> List[Line]:
    return [Line(float(number), text) for number, text in enumerate(texts)]


def one(text: str) -> Any:
    found = xid.xids(at(text))
    assert len(found) == 1, found
    return found[0]


# -- captures --------------------------------------------------------------------------------------
def test_captured_timeout_of_the_gsp_is_one_group() -> None:
    found = xid.xids(capture("samples/dmesg_xid119_gpud.log"), {"0000:9b:00.0": 4})
    assert [(group["bdf"], group["code"], group["count"], group["pid"], group["name"], group["index"]) for group in found] == [
        ("0000:9b:00.0", 119, 5, 2024380, "nvidia-smi", 4)]
    assert found[0]["text"].startswith("Timeout after 6s of waiting for RPC response from GPU4 GSP!")
    assert found[0]["first"] < found[0]["last"]


def test_captured_switch_fault_with_its_first_line_lost() -> None:
    messages = capture("cases/121-kimi-k26-a100-nvswitch-sxid.dmesg.log")
    assert xid.sxids(messages) == [{
        "bdf": "0000:c6:00.0", "code": 24007, "count": 1, "first": 0.0, "last": 0.0, "fatal": True,
        "text": "Severity 1 Engine instance 12 Sub-engine instance 00"}]
    assert [(group["code"], group.get("name")) for group in xid.xids(messages)] == [(62, None), (45, "VLLM::Worker")]


def test_captured_process_that_is_not_known() -> None:
    found = xid.xids(capture("cases/123-async-engine-dead-xid13.dmesg.log"))
    assert [(group["bdf"], group["code"]) for group in found] == [("0000:6a:00.0", 13)]
    assert "pid" not in found[0] and "name" not in found[0] and found[0]["text"].startswith("Graphics Exception")


def test_captured_fall_in_three_lines() -> None:
    assert xid.fallen(capture("cases/120-fallen-off-bus-without-xid.log")) == ["0000:e1:00.0"]


# -- forms -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("text,expected", [
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
     ("0000:3b:00.0", 79, None, None, "GPU has fallen off the bus.")),
    ("NVRM: Xid (PCI:0008:06:00): 31, pid=4711, name=ray::WorkerDict.init model, Ch 00000010, intr 00000000. MMU Fault",
     ("0008:06:00.0", 31, 4711, "ray::WorkerDict.init model", "Ch 00000010, intr 00000000. MMU Fault")),
    ("NVRM: Xid (PCI:0000:00:1e GPU-I:05): 94, pid=12, name=VLLM::Worker_TP3, Contained",
     ("0000:00:1e.0", 94, 12, "VLLM::Worker_TP3", "Contained")),
    ("NVRM: Xid (0000:03:00): 6, PE0001", ("0000:03:00.0", 6, None, None, "PE0001")),
    ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)",
     ("0018:01:00.0", 149, None, None, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)")),
    ("NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.",
     ("0000:01:00.0", 79, 1122, None, "GPU has fallen off the bus.")),
    ("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149",
     ("0000:dc:00.0", 45, 18, "python3", "Ch 00000001 caused by previous Xid 149")),
    ("NVRM: Xid (PCI:0000:dc:00): 43", ("0000:dc:00.0", 43, None, None, "")),
])
def test_forms_of_a_message(text: str, expected: Any) -> None:
    found = one(text)
    assert (found["bdf"], found["code"], found.get("pid"), found.get("name"), found["text"]) == expected


def test_groups_keep_the_first_message_and_of_154_the_newest() -> None:
    change = "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from %s to %s"
    found = xid.xids(at(
        change % ("0x0 (None)", "0x1 (GPU Reset Required)"), "NVRM: Xid (PCI:0000:1b:00): 13, first", "usb 1-1: new device",
        "NVRM: Xid (PCI:0000:1b:00): 13, second", change % ("0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"),
        "NVRM: Xid (PCI:0000:3d:00): 13, other GPU"), {"0000:1b:00.0": 0})
    assert [(g["bdf"], g["code"], g["count"], g["first"], g["last"]) for g in found] == [
        ("0000:1b:00.0", 13, 2, 1.0, 3.0), ("0000:1b:00.0", 154, 2, 0.0, 4.0), ("0000:3d:00.0", 13, 1, 5.0, 5.0)]
    assert found[0]["text"] == "first" and found[1]["text"].endswith("(Node Reboot Required)")
    assert found[0]["index"] == 0 and "index" not in found[2]


def test_only_the_newest_groups_are_kept() -> None:
    found = xid.xids(at(*("NVRM: Xid (PCI:0000:1b:00): %d, x" % code for code in range(1, 60))))
    assert [group["code"] for group in found] == list(range(60 - xid.MAX_GROUPS, 60))


@pytest.mark.parametrize("text", [
    "NVRM: Xid (PCI:garbled): 79, x", "NVRM: Xid error: xyz", "NVRM: Xid (PCI:0000:1b:00): 999999, x", "Xid (PCI:0000:1b:00): 79"])
def test_what_is_no_xid(text: str) -> None:
    assert xid.xids(at(text)) == []


def test_switch_faults() -> None:
    found = xid.sxids(at(
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00000000}",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 29 LTSSM Fault Up",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, Severity 1 Engine instance 29 Sub-engine instance 00",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): garbled, Fatal"))
    assert [(g["bdf"], g["code"], g["count"], g["fatal"], g["text"]) for g in found] == [
        ("0000:05:00.0", 12028, 1, False, "Link 32 egress non-posted PRIV error (First)"),
        ("0000:c3:00.0", 20034, 2, True, "Link 28 LTSSM Fault Up")]
    assert (found[1]["first"], found[1]["last"]) == (3.0, 4.0)


def test_devices_that_fell_off_the_bus() -> None:
    assert xid.fallen(at(
        "NVRM: Xid (PCI:0000:dd:00): 79, pid=1, name=x, GPU has fallen off the bus.", "NVRM: GPU 0000:dd:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0019:06:00.0: GPU has fallen off the bus.")) == ["0000:dd:00.0", "0019:06:00.0"]
    joined = kernel_log.parse(
        "[ 2210.114530] NVRM: The NVIDIA GPU 0000:e1:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n[ 2210.251871] NVRM: The probe routine failed\n")
    assert xid.fallen(joined) == ["0000:e1:00.0"]
    assert xid.fallen(at("NVRM: The NVIDIA GPU 0000:e1:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this system has",
                         "NVRM: fallen off the bus and is not responding to commands.")) == ["0000:e1:00.0"]
    # The Xid alone names it, too.
    assert xid.fallen(at("NVRM: Xid (PCI:0000:dd:00): 79, pid=1, name=x, GPU has fallen off the bus.")) == ["0000:dd:00.0"]
    assert xid.fallen(at("nvidia: a GPU has fallen off the bus")) == ["unknown"]
    assert xid.fallen(at("e1000e 0000:02:00.0: adapter has fallen off the bus")) == []


# -- any text --------------------------------------------------------------------------------------
MESSAGES = st.one_of(
    st.text(),
    st.builds("NVRM: Xid (PCI:{}): {}, {}".format, st.text(alphabet="0123456789abcdef:.", max_size=22), st.integers(), st.text()),
    st.builds("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {}, {}".format, st.integers(0, 99999), st.text()),
    st.builds("NVRM: {} fallen off the bus {}".format, st.text(), st.text()))


@given(st.lists(MESSAGES, max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_messages_are_read_without_an_exception(texts: List[str]) -> None:
    messages = at(*texts)
    for group in xid.xids(messages) + xid.sxids(messages):
        assert group["count"] >= 1 and group["first"] <= group["last"] and len(group["text"]) <= xid.MAX_TEXT
    assert all(isinstance(address, str) for address in xid.fallen(messages))
