# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi -q -x: whole documents, half ones, hostile ones, and the words of a tool that failed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import smi
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Ran
from tests.costume import Spec, part_gpu

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples"
HEAD = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'


@pytest.fixture
def samples() -> Path:
    if not SAMPLES.is_dir():
        pytest.skip("no folder of captures beside the repository")
    return SAMPLES


def document(hardware: str = "b300", faults: Sequence[str] = ()) -> str:
    spec = Spec("n1", hardware, faults=frozenset(faults))
    return part_gpu.document(spec, part_gpu.gpus(spec))


def one(body: str, header: str = "<attached_gpus>1</attached_gpus>") -> Dict[str, Any]:
    found = smi.parse('%s%s<gpu id="00000000:1B:00.0">%s</gpu></nvidia_smi_log>' % (HEAD, header, body))
    assert len(found["gpus"]) == 1, found
    gpu: Dict[str, Any] = found["gpus"][0]
    return gpu


# -- captures of real machines --------------------------------------------------------------------
# file: driver, CUDA, attached, GPUs described, name, memory, device, addresses
CAPTURES = {
    "smi_qx_hw_a100.xml": ("570.148.08", "12.8", 1, "NVIDIA A100-SXM4-40GB", 40960, "0x20b010de", ["0000:06:00.0"]),
    "smi_qx_hw_h100.xml": ("580.105.08", "13.0", 8, "NVIDIA H100 80GB HBM3", 81559, "0x233010de", None),
    "smi_qx_hw_b200.xml": ("580.105.08", "13.0", 8, "NVIDIA B200", 183359, "0x290110de", [
        "0000:8f:00.0", "0000:90:00.0", "0000:96:00.0", "0000:97:00.0", "0000:c4:00.0", "0000:c5:00.0", "0000:cb:00.0", "0000:cc:00.0"]),
    "smi_qx_hw_gb200.xml": ("580.173.02", "13.0", 4, "NVIDIA GB200", 189471, "0x294110de", [
        "0000:29:00.0", "0000:3f:00.0", "0000:9c:00.0", "0000:b2:00.0"]),
    "smi_qx_hw_gb300.xml": ("580.173.02", "13.0", 4, "NVIDIA GB300", 284208, "0x31c210de", [
        "0008:06:00.0", "0009:06:00.0", "0018:06:00.0", "0019:06:00.0"]),
    "smi_qx_r570.124_rtx3060_v12.xml": ("570.124.04", "12.8", 1, "NVIDIA GeForce RTX 3060", 12288, "0x248710de", ["0000:2d:00.0"]),
}


@pytest.mark.parametrize("name", sorted(CAPTURES))
def test_captured_documents_are_read_whole(samples: Path, name: str) -> None:
    driver, cuda, count, product, memory, device, addresses = CAPTURES[name]
    found = smi.parse((samples / name).read_text())
    assert (found["driver_version"], found["cuda_version"], found["attached"], found["problem"]) == (driver, cuda, count, "")
    assert [gpu["index"] for gpu in found["gpus"]] == sorted(gpu["index"] for gpu in found["gpus"])
    assert len(found["gpus"]) == count and len({gpu["uuid"] for gpu in found["gpus"]}) == count
    for gpu in found["gpus"]:
        assert (gpu["name"], gpu["fb_total_mib"], gpu["pci_device"]) == (product, memory, device)
        assert "lost" not in gpu and "throttle" not in gpu and "processes" not in gpu and gpu["recovery_action"] == "None"
    if addresses:
        assert [gpu["bdf"] for gpu in found["gpus"]] == addresses


def test_captured_fabric_of_each_generation(samples: Path) -> None:
    def fabric(name: str) -> Any:
        return smi.parse((samples / name).read_text())["gpus"][0].get("fabric")

    assert fabric("smi_qx_hw_a100.xml") is None
    assert fabric("smi_qx_hw_h100.xml") == {"state": "Completed", "status": "Success", "clique": "0", "cluster": ""}
    assert fabric("smi_qx_hw_gb200.xml") == {
        "state": "Completed", "status": "Success", "clique": "2", "cluster": "00000001-0000-0000-0000-000000000001"}
    assert fabric("smi_qx_hw_gb300.xml")["clique"] == "32766"


def test_captured_driver_of_2023_has_neither_recovery_action_nor_clique(samples: Path) -> None:
    found = smi.parse((samples / "smi_qx_r535.54_4xa100sxm4_v12.xml").read_text())
    gpu = found["gpus"][0]
    assert found["problem"] == "it counts 4 GPUs and describes 1"
    assert (gpu["mig"], gpu["recovery_action"], gpu["ecc"]["volatile_uncorrectable"]) == ("Enabled", "None", 0)
    assert "fabric" not in gpu and "remap" not in gpu and gpu["pcie"] == {"gen": 4, "gen_max": 4, "width": 16, "width_max": 16}


def test_captured_consumer_gpu_without_ecc(samples: Path) -> None:
    gpu = smi.parse((samples / "smi_qx_r570.124_rtx3060_v12.xml").read_text())["gpus"][0]
    assert "ecc" not in gpu and "mig" not in gpu and "serial" not in gpu
    assert gpu["pcie"] == {"gen": 1, "gen_max": 4, "width": 16, "width_max": 16}


def test_captured_faults(samples: Path) -> None:
    def gpus(fault: str) -> Any:
        found = smi.parse((samples / ("smi_qx_mock_gb200-%s.xml" % fault)).read_text())
        assert (found["attached"], len(found["gpus"]), found["problem"]) == (2, 2, "")
        return found["gpus"]

    assert ["lost" in gpu for gpu in gpus("healthy")] == [False, False]
    lost = gpus("lost")
    assert ["lost" in gpu for gpu in lost] == [False, True]
    assert lost[1]["bdf"] == "0000:0b:00.0" and "fb_total_mib" not in lost[1] and "fabric" not in lost[1] and "remap" not in lost[1]
    degraded = gpus("fabric-degraded")
    assert "health" not in degraded[0]["fabric"]
    assert degraded[1]["fabric"]["health"] == {"summary": "Unhealthy", "route_unhealthy": "True"}
    hurt = gpus("ecc-injected")[0]
    assert hurt["ecc"] == {"current": True, "pending": True, "volatile_uncorrectable": 5, "aggregate_uncorrectable": 8}
    assert hurt["remap"] == {"correctable": 0, "uncorrectable": 1, "pending": False, "failure": True}
    assert all("throttle" not in gpu for gpu in gpus("throttle-counters"))


# -- fields ----------------------------------------------------------------------------------------
def test_words_for_not_known_leave_the_key_out() -> None:
    for word in ("N/A", "[N/A]", "Requested functionality has been deprecated", "GPU is lost", "[GPU is lost]", "Unknown Error",
                 "ERR!", "Insufficient Permissions", "[Not Supported]", "", "Not Found"):
        gpu = one("".join("<%s>%s</%s>" % (tag, word, tag) for tag in ("product_name", "serial", "uuid", "vbios_version"))
                  + "<ecc_errors><volatile><dram_uncorrectable>%s</dram_uncorrectable></volatile></ecc_errors>" % word)
        assert set(gpu) <= {"index", "bdf", "lost"}, (word, gpu)
        assert ("lost" in gpu) == ("lost" in word)


def test_renamed_elements() -> None:
    for folder, prefix in (("clocks_throttle_reasons", "clocks_throttle_reason_"), ("clocks_event_reasons", "clocks_event_reason_")):
        gpu = one("<%s><%shw_slowdown>Active</%shw_slowdown><%shw_thermal_slowdown>Not Active</%shw_thermal_slowdown>"
                  "<%ssw_power_cap>Active</%ssw_power_cap></%s>" % (folder, *([prefix] * 6), folder))
        assert gpu["throttle"] == ["hw_slowdown"]
    gpu = one("<ecc_errors><volatile><sram_uncorrectable>2</sram_uncorrectable><dram_uncorrectable>1</dram_uncorrectable></volatile>"
              "</ecc_errors>")
    assert gpu["ecc"] == {"volatile_uncorrectable": 3}
    gpu = one("<ecc_errors><aggregate><sram_uncorrectable_parity>2</sram_uncorrectable_parity><sram_uncorrectable_secded>4"
              "</sram_uncorrectable_secded><sram_threshold_exceeded>Yes</sram_threshold_exceeded></aggregate>"
              "<tpc_repair_pending>Yes</tpc_repair_pending><unrepairable_memory>Yes</unrepairable_memory></ecc_errors>")
    assert gpu["ecc"] == {"aggregate_uncorrectable": 6, "threshold_exceeded": True, "repair_pending": True, "unrepairable": True}
    found = smi.parse(HEAD + "<kmd_version>610.57.04</kmd_version><cuda_umd_version>13.3</cuda_umd_version></nvidia_smi_log>")
    assert (found["driver_version"], found["cuda_version"]) == ("610.57.04", "13.3")


@pytest.mark.parametrize("flags,action", [
    (("Yes", "No"), "Reset"), (("No", "Yes"), "Drain and Reset"), (("No", "No"), "None"), (("N/A", "N/A"), None)])
def test_reset_flags_of_old_drivers_are_a_recovery_action(flags: Any, action: Any) -> None:
    gpu = one("<gpu_reset_status><reset_required>%s</reset_required><drain_and_reset_recommended>%s</drain_and_reset_recommended>"
              "</gpu_reset_status>" % flags)
    assert gpu.get("recovery_action") == action


def test_fields_that_say_that_the_gpu_requires_a_reset() -> None:
    gpu = one("<gpu_recovery_action>N/A</gpu_recovery_action><serial>[GPU requires reset]</serial>")
    assert gpu == {"index": 0, "bdf": "0000:1b:00.0", "recovery_action": "Reset"}


def test_printed_recovery_action_stands_as_it_is() -> None:
    assert one("<gpu_recovery_action>GPU_RESET</gpu_recovery_action>")["recovery_action"] == "GPU_RESET"


def test_pending_mig_shows_only_when_it_differs() -> None:
    both = "<mig_mode><current_mig>%s</current_mig><pending_mig>%s</pending_mig></mig_mode>"
    assert "mig_pending" not in one(both % ("Disabled", "Disabled"))
    assert one(both % ("Disabled", "Enabled"))["mig_pending"] == "Enabled"


def test_fabric_that_is_being_set_up() -> None:
    assert one("<fabric><state>In Progress</state><status>N/A</status><cliqueId>N/A</cliqueId><clusterUuid>N/A</clusterUuid></fabric>")[
        "fabric"] == {"state": "In Progress"}


def test_unhealthy_fabric_names_only_what_is_wrong() -> None:
    gpu = one("<fabric><state>Completed</state><health><summary>Limited Capacity</summary><bandwidth>Degraded</bandwidth>"
              "<route_recovery_in_progress>False</route_recovery_in_progress><incorrect_configuration>Incompatible GPU FW"
              "</incorrect_configuration><partition_assigned>False</partition_assigned></health></fabric>")
    assert gpu["fabric"]["health"] == {
        "summary": "Limited Capacity", "bandwidth": "Degraded", "incorrect_configuration": "Incompatible GPU FW"}


def test_processes() -> None:
    item = "<process_info><pid>%d</pid><type>C</type><process_name>%s</process_name><used_memory>%s</used_memory></process_info>"
    long = item % (8, "/opt/" + "x" * 90 + "/python3", "N/A")
    gpu = one("<processes>" + item % (7, "/usr/bin/python3", "512 MiB") + long + "</processes>")
    assert gpu["processes"][0] == {"pid": 7, "name": "/usr/bin/python3", "type": "C", "used_mib": 512}
    assert gpu["processes"][1]["name"].startswith("...") and gpu["processes"][1]["name"].endswith("/python3")
    assert len(gpu["processes"][1]["name"]) == 64 and "used_mib" not in gpu["processes"][1]
    gpu = one("<processes>" + "".join(item % (i, "p", "1 MiB") for i in range(40)) + "</processes>")
    assert len(gpu["processes"]) == smi.MAX_PROCESSES and gpu["processes_more"] == 40 - smi.MAX_PROCESSES


def test_gpus_stand_by_bus_address_and_keep_the_index_of_nvidia_smi() -> None:
    found = smi.parse(HEAD + '<gpu id="00000000:9D:00.0"/>'.replace("/>", "></gpu>") + '<gpu id="00000000:1B:00.0"></gpu></nvidia_smi_log>')
    assert [(gpu["bdf"], gpu["index"]) for gpu in found["gpus"]] == [("0000:1b:00.0", 1), ("0000:9d:00.0", 0)]


# -- half and hostile documents --------------------------------------------------------------------
def test_document_of_a_killed_tool_keeps_the_whole_gpus() -> None:
    text = document()
    cut = text.index("</gpu>", text.index('id="00000000:60:00.0"')) - 200
    found = smi.parse(text[:cut])
    assert [gpu["bdf"] for gpu in found["gpus"]] == ["0000:1b:00.0", "0000:3d:00.0", "0000:4f:00.0"]
    assert found["problem"] == "the document ended early, within GPU 0000:60:00.0" and found["attached"] == 8
    found = smi.parse(text[:text.index("</gpu>") + 6])
    assert len(found["gpus"]) == 1 and found["problem"] == "the document ended early, after 1 GPUs"
    assert smi.parse(text)["problem"] == ""


@given(st.integers(min_value=0, max_value=30000))
@settings(max_examples=60, deadline=None)
def test_every_cut_is_told_and_every_gpu_before_it_kept(cut: int) -> None:
    text = document("gb300")
    cut = min(cut, len(text) - 1)
    found = smi.parse(text[:cut])
    assert len(found["gpus"]) == text[:cut].count("</gpu>")
    if cut < text.index("</nvidia_smi_log>"):
        assert found["problem"]


@pytest.mark.parametrize("declaration", [
    '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>',
    '<!DOCTYPE nvidia_smi_log SYSTEM "x.dtd" [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    '<!doctype lolz [<!entity lol "lol">]>', '<! DOCTYPE x [ <!ENTITY a "b"> ]>', '<!DOCTYPE nvidia_smi_log PUBLIC "a" "b">',
])
def test_declarations_are_refused(declaration: str) -> None:
    text = document().split("\n", 2)
    found = smi.parse(text[0] + "\n" + declaration + "\n" + text[2])
    assert found["gpus"] == [] and "refused" in found["problem"]


def test_entity_without_declaration_spoils_only_its_gpu() -> None:
    text = document().replace("<product_name>NVIDIA B300 SXM6 AC", "<product_name>&bomb;", 1)
    found = smi.parse(text)
    assert len(found["gpus"]) == 7 and found["problem"] == "what it says of GPU 0000:1b:00.0 is not XML"


def test_process_name_that_is_not_escaped_costs_only_the_processes() -> None:
    text = document("b300", ["foreign_holder"]).replace("/home/alice/venv/bin/python3", "a <b> & \x01 c", 1)
    found = smi.parse(text)
    assert len(found["gpus"]) == 8 and found["problem"] == ""
    assert ["processes" in gpu for gpu in found["gpus"]] == [False] + [True] * 7
    assert found["gpus"][0]["fb_used_mib"] == 68000


def test_line_of_a_lost_gpu_within_the_document_is_told() -> None:
    line = "Unable to determine the device handle for GPU7: 0000:DD:00.0: Unknown Error\n"
    text = document().replace("</nvidia_smi_log>", line + "</nvidia_smi_log>")
    found = smi.parse(text)
    assert len(found["gpus"]) == 8 and found["problem"].endswith("(Unknown Error) at 0000:dd:00.0")


def test_huge_and_nested_text_is_read_in_bounded_time() -> None:
    started = time.monotonic()
    for text in ("<gpu>" * 300000, "<processes>" * 200000 + "</gpu>", "<gpu " * 300000, HEAD + "<gpu>" + "<a>" * 400000 + "</gpu>",
                 HEAD + "<gpu>" + "<processes>" * 90000 + "</gpu>", "Unable to determine the device handle for GPU" * 20000,
                 "<!DOCTYPE" + " " * 500000, "libnvidia-ml.so" * 50000):
        found = smi.parse(text)
        assert found["gpus"] == [] and found["problem"]
        smi.failure(text)
    assert time.monotonic() - started < 20


@given(st.one_of(
    st.text(), st.text(alphabet="<>/gpu id=\"'&;![]0:\nprocesses"), st.binary().map(lambda raw: raw.decode("utf-8", "replace"))))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_without_an_exception(text: str) -> None:
    for candidate in (text, HEAD + text, HEAD + '<gpu id="a">' + text + "</gpu></nvidia_smi_log>"):
        found = smi.parse(candidate)
        assert isinstance(found["gpus"], list) and isinstance(found["problem"], str)
        smi.failure(candidate)
        smi.library_version(candidate)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_documents_are_read_without_an_exception(data: st.DataObject) -> None:
    text = document("gb300")
    for _change in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 60))
        text = text[:at] + data.draw(st.text(max_size=12)) + text[at + length:]
    found = smi.parse(text)
    assert len(found["gpus"]) <= 64


# -- failures --------------------------------------------------------------------------------------
@pytest.mark.parametrize("text,kind,part", [
    ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n", "mismatch", "library 580.173"),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed "
     "and running.\n", "no_driver", "not loaded or does not answer"),
    ("No devices were found\n", "no_devices", "found no devices"),
    ("Failed to initialize NVML: Unknown Error\n", "unknown_error", "Unknown Error"),
    ("Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error\n", "unknown_error", "at 0000:cb:00.0"),
    ("Unable to determine the device handle for GPU 0000:1B:00.0: GPU is lost.  Reboot the system to recover this GPU\n", "lost",
     "at 0000:1b:00.0"),
    ("Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error\nSun Nov 29\n", "unknown_error", "at 0000:34:00.0"),
    ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "no_library", "libnvidia-ml.so"),
    ("Failed to initialize NVML: Insufficient Permissions", "denied", "Insufficient Permissions"),
    ("Failed to initialize NVML: Some new trouble", "nvml", "Some new trouble"),
    ("all is well", "", ""),
])
def test_failures_by_their_words(text: str, kind: str, part: str) -> None:
    found, sentence = smi.failure(text)
    assert found == kind and part in sentence
    assert part in smi.reason(Ran(9, text, ""))


def test_reason_of_a_command_that_gave_no_answer() -> None:
    assert smi.reason(Ran(None, error="missing")) == "nvidia-smi is not installed"
    assert smi.reason(Ran(None, error="timeout")).startswith("nvidia-smi did not answer in time")
    assert smi.reason(Ran(3, "", "oops")) == "nvidia-smi exited with 3: oops"
    assert smi.reason(Ran(0, "fine")) == ""
    assert smi.library_version("NVML library version: 580.173.") == "580.173" and smi.library_version("") is None
