# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks gpu.*."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.checks import xids

from .healthy import B300_BUSES, MISSING, b300_context, gb300_context, healthy_b300, healthy_gb300, put, without
from .run import one, status

IDS = (
    "gpu.count",
    "gpu.model",
    "gpu.idle",
    "gpu.memory",
    "gpu.ecc",
    "gpu.remap",
    "gpu.recovery_action",
    "gpu.xid",
    "gpu.mig",
    "gpu.persistence",
    "gpu.throttle",
    "gpu.pcie_link",
    "gpu.nvlink_matrix",
)
FROM_SMI = tuple(id for id in IDS if id not in ("gpu.idle", "gpu.xid"))
LAST = "0000:df:00.0"


def changed(path: str, value: Any) -> Dict[str, Any]:
    return put(healthy_b300(), path, value)


def no_gpu() -> Dict[str, Any]:
    """A machine that was looked at and has no GPU and no driver."""
    facts = healthy_b300()
    facts["driver"].update({"loaded": None, "installed": None, "userspace": None, "cuda": None})
    facts["gpu"] = {
        "pci": [],
        "devices": 0,
        "holders": [],
        "xid": [],
        "sxid": [],
        "fallen": [],
        "unknown": {"smi": "nvidia-smi is not installed", "topology": "nvidia-smi is not installed"},
    }
    return facts


def hung() -> Dict[str, Any]:
    """nvidia-smi never answered; files could be read."""
    facts = healthy_b300()
    facts["gpu"] = {
        "pci": facts["gpu"]["pci"],
        "devices": 8,
        "holders": [{"pid": 91, "comm": "nvidia-smi", "state": "D", "devices": 1}],
        "xid": [],
        "sxid": [],
        "fallen": [],
        "unknown": {
            "smi": "nvidia-smi did not answer in 10 s",
            "topology": "nvidia-smi did not answer in 10 s",
            "nvlink": "nvidia-smi did not answer in 10 s",
        },
    }
    return facts


def lost_gpu() -> Dict[str, Any]:
    """The last GPU fell off the bus."""
    facts = healthy_b300()
    gpu = facts["gpu"]
    gpu["gpus"].pop()
    gpu["smi"]["attached"] = 7
    gpu["pci"][7] = {"bdf": LAST, "device": "0x3182", "rev_ff": True, "driver": "nvidia"}
    gpu["fallen"] = [LAST]
    gpu["topology"] = {"gpus": ["GPU%d" % i for i in range(7)], "matrix": matrix(7)}
    gpu["nvlink"].pop()
    return facts


def matrix(size: int, changes: Any = None) -> List[str]:
    cells = [["X" if i == j else "NV18" for j in range(size)] for i in range(size)]
    for (i, j), cell in (changes or {}).items():
        cells[i][j] = cells[j][i] = cell
    return [" ".join(row) for row in cells]


@pytest.mark.parametrize("id", IDS)
def test_healthy_nodes_pass(id: str) -> None:
    assert status(id, healthy_b300()) == "pass"
    assert status(id, healthy_gb300(), gb300_context()) == "pass"


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("gpu", [MISSING, None, {}, [], "8 GPUs", {"unknown": {"all": "reading it got stuck"}}])
def test_without_facts_nothing_is_known(id: str, gpu: Any) -> None:
    assert status(id, changed("gpu", gpu)) == "unknown"


@pytest.mark.parametrize("id", FROM_SMI)
def test_a_hung_nvidia_smi_is_unknown_and_says_so(id: str) -> None:
    found = one(id, hung())
    assert found["status"] == "unknown"
    assert "did not answer in 10 s" in found["observed"]


@pytest.mark.parametrize("id", FROM_SMI)
def test_half_a_document_is_no_document(id: str) -> None:
    facts = healthy_b300()
    facts["gpu"]["gpus"] = [{"index": 0, "bdf": "0000:1b:00.0"}]
    facts["gpu"]["topology"]["matrix"] = facts["gpu"]["topology"]["matrix"][:3]
    assert status(id, facts) == "unknown"
    assert status(id, put(facts, "gpu.gpus", [])) == "unknown"


@pytest.mark.parametrize("id", FROM_SMI)
def test_what_a_killed_nvidia_smi_left_is_not_the_whole(id: str) -> None:
    facts = changed("gpu.unknown", {"smi": "nvidia-smi was killed"})
    if id != "gpu.nvlink_matrix":
        assert status(id, facts) == "unknown"
    facts["gpu"]["gpus"] = facts["gpu"]["gpus"][:2]
    facts["gpu"]["gpus"][1].update(mig="Enabled", recovery_action="Reset")
    if id in ("gpu.mig", "gpu.recovery_action"):
        assert status(id, facts) == "fail"  # what was seen counts
    elif id != "gpu.nvlink_matrix":
        assert status(id, facts) == "unknown"


@pytest.mark.parametrize("id", [id for id in FROM_SMI if id not in ("gpu.count", "gpu.nvlink_matrix")])
def test_a_gpu_of_which_nothing_is_told_is_unknown(id: str) -> None:
    facts = changed("gpu.gpus.3", {"index": 3, "bdf": "0000:61:00.0"})
    assert status(id, facts) == "unknown"


@pytest.mark.parametrize("id", IDS)
def test_a_machine_without_gpu_fails_the_count_and_passes_nothing(id: str) -> None:
    found = one(id, no_gpu())
    if id == "gpu.count":
        assert (found["status"], found["severity"]) == ("fail", "block")
        assert found["observed"] == "no NVIDIA GPU on the PCI bus"
    else:
        assert found["status"] == "skip"
        assert "gpu.count" in found["observed"]


# --- gpu.count ------------------------------------------------------------------------------------


def test_count_of_a_gpu_that_fell_off_the_bus() -> None:
    found = one("gpu.count", lost_gpu())
    assert found["status"] == "fail"
    assert found["observed"] == "7 of 8 GPUs: 0000:df:00.0 fell off the bus"


def test_count_of_a_gpu_that_smi_calls_lost() -> None:
    facts = healthy_b300()
    facts["gpu"]["gpus"][7] = {"index": 7, "bdf": LAST, "lost": True}
    assert one("gpu.count", facts)["observed"] == "7 of 8 GPUs: 0000:df:00.0 fell off the bus"
    for id in ("gpu.model", "gpu.memory", "gpu.ecc", "gpu.mig"):
        assert status(id, facts) == "pass"  # of those that answer


def test_count_names_what_smi_does_not_show() -> None:
    facts = healthy_b300()
    facts["gpu"]["gpus"].pop(3)
    facts["gpu"]["smi"]["attached"] = 7
    found = one("gpu.count", facts)
    assert (found["status"], found["observed"]) == ("fail", "7 of 8 GPUs in nvidia-smi: 0000:61:00.0 missing")
    put(facts, "driver.log", [{"kind": "rm_init_failed", "text": "…", "count": 1}])
    assert one("gpu.count", facts)["observed"].endswith("missing: RmInitAdapter failed")


def test_count_of_a_gpu_that_is_nowhere() -> None:
    facts = healthy_b300()
    facts["gpu"]["gpus"].pop()
    facts["gpu"]["pci"].pop()
    facts["gpu"]["smi"]["attached"] = 7
    assert one("gpu.count", facts)["observed"] == "7 of 8 GPUs on PCI"
    assert one("gpu.count", put(hung(), "gpu.pci", facts["gpu"]["pci"]))["observed"] == "7 of 8 GPUs on PCI"
    # Without a profile 7 of 7 cannot be told from a whole node.
    assert status("gpu.count", facts, b300_context()._replace(gpus_per_node=0)) == "pass"


def test_count_of_more_gpus_than_planned() -> None:
    assert status("gpu.count", healthy_b300(), b300_context()._replace(gpus_per_node=4)) == "fail"


def test_count_of_a_gpu_without_address() -> None:
    assert status("gpu.count", changed("gpu.gpus.7.bdf", None)) == "unknown"


def test_count_needs_both_views() -> None:
    facts = without(healthy_b300(), "gpu.pci")
    assert status("gpu.count", facts) == "unknown"
    facts = healthy_b300()
    facts["gpu"]["gpus"].pop()  # attached still says 8
    assert status("gpu.count", put(facts, "gpu.unknown", {"pci": "no sysfs"})) == "unknown"
    assert one("gpu.count", hung())["observed"] == "8 on PCI, nvidia-smi did not answer in 10 s"


def test_a_gpu_that_fell_and_came_back_is_there() -> None:
    assert status("gpu.count", changed("gpu.fallen", [LAST])) == "pass"
    assert status("gpu.xid", changed("gpu.fallen", [LAST])) == "fail"


# --- gpu.model, gpu.memory ------------------------------------------------------------------------


def test_model() -> None:
    facts = healthy_b300()
    for gpu in facts["gpu"]["gpus"]:
        gpu["name"] = "NVIDIA B200"
    found = one("gpu.model", facts)
    assert (found["status"], found["observed"], found["required"]) == ("fail", "NVIDIA B200", "NVIDIA B300")
    assert one("gpu.model", changed("gpu.gpus.2.name", "NVIDIA B200"))["observed"] == "7 × NVIDIA B300 SXM6 AC, 1 × NVIDIA B200"
    assert status("gpu.model", healthy_b300(), b300_context()._replace(hardware="")) == "pass"


def test_model_does_not_take_gb200_for_b200() -> None:
    facts = healthy_b300()
    for gpu in facts["gpu"]["gpus"]:
        gpu["name"] = "NVIDIA GB200"
    assert status("gpu.model", facts, b300_context()._replace(hardware="b200")) == "fail"
    assert status("gpu.model", facts, b300_context()._replace(hardware="gb200")) == "pass"


def test_model_with_markup_stays_text() -> None:
    found = one("gpu.model", changed("gpu.gpus.0.name", "<img src=x>\x1b[31m\nB300"))
    assert found["status"] == "fail"
    assert "\x1b" not in found["observed"] and "\n" not in found["observed"]


def test_memory_size() -> None:
    found = one("gpu.memory", changed("gpu.gpus.4.fb_total_mib", 183359))
    assert (found["status"], found["observed"]) == ("fail", "GPU 4: 183359 MiB")
    assert status("gpu.memory", changed("gpu.gpus.4.fb_total_mib", 274000)) == "pass"
    assert status("gpu.memory", changed("gpu.gpus.4.fb_total_mib", None)) == "unknown"
    # Where the profile is not known, the GPUs are compared with each other.
    assert status("gpu.memory", changed("gpu.gpus.4.fb_total_mib", 183359), b300_context()._replace(gpu_memory_mib=0)) == "fail"


def test_memory_in_use_on_an_idle_gpu() -> None:
    found = one("gpu.memory", changed("gpu.gpus.5.fb_used_mib", 41000))
    assert (found["status"], found["observed"]) == ("fail", "GPU 5: 41000 MiB in use, though no process holds it")
    assert status("gpu.memory", changed("gpu.gpus.5.fb_used_mib", 2000)) == "warn"
    assert status("gpu.memory", changed("gpu.gpus.5.fb_used_mib", 600)) == "pass"
    facts = put(changed("gpu.gpus.5.fb_used_mib", 41000), "gpu.unknown", {"holders": "needs root"})
    assert status("gpu.memory", facts) == "unknown"
    busy = put(changed("gpu.gpus.5.fb_used_mib", 250000), "gpu.holders", [{"pid": 7, "comm": "python3", "state": "S", "devices": 8}])
    assert status("gpu.memory", busy) == "pass"
    assert status("gpu.idle", busy) == "fail"


# --- gpu.idle -------------------------------------------------------------------------------------


def holder(pid: int, comm: str, state: str = "S", **more: Any) -> Dict[str, Any]:
    return dict({"pid": pid, "comm": comm, "state": state, "devices": 8}, **more)


def test_idle_with_a_foreign_process() -> None:
    found = one("gpu.idle", changed("gpu.holders", [holder(4242, "python3"), holder(1801, "nvidia-persiste")]))
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert found["observed"] == "held by python3 (pid 4242)"
    found = one("gpu.idle", changed("gpu.holders", [holder(4242, "python3", container="0123456789ab")]))
    assert found["observed"] == "held by python3 (pid 4242, container 0123456789ab)"


@pytest.mark.parametrize(
    "comm", ["nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-smi", "nv-fabricmanage", "nvidia-imex", "nvlsm"]
)
def test_idle_with_daemons_of_the_node(comm: str) -> None:
    assert status("gpu.idle", changed("gpu.holders", [holder(9, comm)])) == "pass"


@pytest.mark.parametrize("comm", ["nvidia-smi.py", "not-nvidia-smi", "nvlsmx", "", "python3"])
def test_a_name_like_that_of_a_daemon_is_none(comm: str) -> None:
    assert status("gpu.idle", changed("gpu.holders", [holder(9, comm)])) == "fail"


def test_idle_ignores_dead_processes() -> None:
    assert status("gpu.idle", changed("gpu.holders", [holder(9, "python3", "Z"), holder(10, "python3", "X")])) == "pass"
    # nvidia-smi may name pids that no longer exist; only who has the devices open counts.
    assert status("gpu.idle", changed("gpu.gpus.0.processes", [{"pid": 9, "name": "python3", "type": "C", "used_mib": 10}])) == "pass"


def test_idle_with_our_own_service() -> None:
    facts = changed("gpu.holders", [holder(70, "VLLM::Worker_TP"), holder(71, "VLLM::Worker_TP"), holder(60, "vllm")])
    assert status("gpu.idle", facts) == "fail"
    facts["service"]["units"] = [{"name": "vllm.service", "installed": True, "active": "active", "main_pid": 60}]
    facts["service"]["processes"] = [{"pid": 60, "argv": ["vllm", "serve"], "unit": "vllm.service"}]
    found = one("gpu.idle", facts)
    assert (found["status"], found["observed"]) == ("pass", "held by our own service (3 processes)")
    in_container = changed("gpu.holders", [holder(70, "VLLM::Worker_TP", container="0123456789ab")])
    in_container["service"]["units"] = facts["service"]["units"]
    in_container["service"]["processes"] = [{"pid": 60, "argv": ["vllm"], "unit": "vllm.service", "container": "0123456789ab"}]
    assert status("gpu.idle", in_container) == "pass"
    in_container["gpu"]["holders"][0]["container"] = "ba9876543210"
    assert status("gpu.idle", in_container) == "fail"


@pytest.mark.parametrize("active, expected", [
    ("active", "pass"), ("activating", "pass"), ("deactivating", "pass"), ("failed", "fail"), ("inactive", "fail")])
def test_what_runs_vllm_while_no_unit_of_ours_runs_is_not_ours(active: str, expected: str) -> None:
    facts = changed("gpu.holders", [holder(60, "vllm", container="0123456789ab"), holder(61, "VLLM::EngineCor", container="0123456789ab")])
    facts["service"]["units"] = [{"name": "vllm.service", "installed": True, "active": active, "main_pid": 0}]
    facts["service"]["processes"] = [{"pid": 60, "argv": ["vllm", "serve", "m"], "container": "0123456789ab"}]
    found = one("gpu.idle", facts)
    assert found["status"] == expected
    if expected == "fail":
        assert "vllm (pid 60, container 0123456789ab)" in found["observed"]


def test_whose_vllm_it_is_cannot_be_told_without_the_units() -> None:
    facts = changed("gpu.holders", [holder(60, "vllm")])
    facts["service"].update(units=None, processes=[{"pid": 60, "argv": ["vllm", "serve", "m"]}], unknown={"units": "systemctl hung"})
    assert (one("gpu.idle", facts)["status"], one("gpu.idle", facts)["observed"]) == ("unknown", "systemctl hung")


def test_idle_when_holders_are_not_known() -> None:
    assert one("gpu.idle", changed("gpu.unknown", {"holders": "needs root"}))["observed"] == "needs root"
    assert status("gpu.idle", without(healthy_b300(), "gpu.holders")) == "unknown"
    assert status("gpu.idle", changed("gpu.holders", ["python3"])) == "unknown"
    # What was seen counts, though others may be hidden.
    assert status("gpu.idle", put(changed("gpu.unknown", {"holders": "not all"}), "gpu.holders", [holder(4, "python3")])) == "fail"


# --- health ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, value, expected, said",
    [
        ("ecc.current", False, "fail", "GPU 1: ECC is off"),
        ("ecc.pending", False, "fail", "GPU 1: ECC will be off after the next reset"),
        ("ecc.volatile_uncorrectable", 2, "fail", "GPU 1: 2 uncorrectable errors since the driver was loaded"),
        ("ecc.threshold_exceeded", True, "fail", "GPU 1: threshold of uncorrectable SRAM errors exceeded"),
        ("ecc.repair_pending", True, "fail", "GPU 1: a memory repair waits for a reset"),
        ("ecc.unrepairable", True, "fail", "GPU 1: memory that cannot be repaired: replace the GPU"),
        ("ecc.aggregate_uncorrectable", 5, "warn", "GPU 1: 5 uncorrectable errors in its life"),
        ("ecc.aggregate_uncorrectable", 4, "pass", ""),
        ("ecc.current", None, "unknown", "GPU 1: ECC not read"),
        ("ecc.volatile_uncorrectable", "N/A", "unknown", "GPU 1: ECC not read"),
        ("remap.pending", True, "fail", "GPU 1: row remap pending"),
        ("remap.failure", True, "fail", "GPU 1: row remapping failed: replace the GPU"),
        ("remap.uncorrectable", 513, "fail", "GPU 1: 513 rows remapped: replace the GPU"),
        ("remap.uncorrectable", 512, "pass", ""),
        ("remap.pending", None, "unknown", "GPU 1: row remapping not read"),
        ("mig", "Enabled", "fail", "GPU 1: MIG is on"),
        ("mig_pending", "Enabled", "fail", "GPU 1: MIG will be on after the next reset"),
        ("mig", None, "unknown", "GPU 1: MIG mode not read"),
        ("mig", "N/A", "pass", ""),
        ("persistence", False, "fail", "GPU 1: persistence is off"),
        ("persistence", None, "unknown", "GPU 1: persistence mode not read"),
        ("throttle", ["hw_thermal_slowdown", "hw_slowdown"], "fail", "GPU 1: hardware thermal slowdown, hardware slowdown at 34 C"),
        ("throttle", [], "pass", ""),
        ("throttle", "hw_slowdown", "unknown", "GPU 1: throttle reasons not read"),
        ("pcie.width", 8, "fail", "GPU 1: x8 of x16 lanes"),
        ("pcie.gen", 1, "pass", ""),
        ("pcie.width", None, "unknown", "GPU 1: PCIe width not read"),
        ("recovery_action", "GPU Reset", "fail", "GPU 1: GPU Reset"),
        ("recovery_action", "GPU_RESET", "fail", "GPU 1: GPU_RESET"),
        ("recovery_action", "Node Reboot Required", "fail", "GPU 1: Node Reboot Required"),
        ("recovery_action", "Drain P2P", "fail", "GPU 1: Drain P2P"),
        ("recovery_action", "N/A", "unknown", "GPU 1: recovery action N/A"),
        ("recovery_action", None, "unknown", "GPU 1: recovery action not read"),
    ],
)
def test_one_gpu(path: str, value: Any, expected: str, said: str) -> None:
    id = {"mig_pending": "gpu.mig", "pcie": "gpu.pcie_link"}.get(path.split(".")[0], "gpu." + path.split(".")[0])
    found = one(id, changed("gpu.gpus.1." + path, value))
    assert found["status"] == expected
    if said:
        assert found["observed"] == said
    # Nothing else is touched by it.
    for other in set(IDS) - {id, "gpu.throttle"}:
        assert status(other, changed("gpu.gpus.1." + path, value)) == "pass", other


def test_the_same_on_several_gpus_is_said_once() -> None:
    facts = healthy_b300()
    for gpu in facts["gpu"]["gpus"]:
        gpu["mig"] = "Enabled"
    assert one("gpu.mig", facts)["observed"] == "GPU 0, 1, 2, 3, 4, 5, 6, 7: MIG is on"
    assert one("gpu.persistence", put(facts, "gpu.gpus.0.persistence", False))["severity"] == "warn"


# --- gpu.xid --------------------------------------------------------------------------------------


def xid(code: int, text: str = "", **more: Any) -> Dict[str, Any]:
    line = {"bdf": "0000:61:00.0", "code": code, "count": 1, "first": 80000.0, "last": 80000.0, "text": text, "index": 3}
    return changed("gpu.xid", [dict(line, **more)])


@pytest.mark.parametrize(
    "code, expected",
    [
        (43, "pass"),
        (63, "pass"),
        (92, "pass"),
        (121, "pass"),
        (141, "pass"),
        (13, "warn"),
        (31, "warn"),
        (45, "warn"),
        (94, "warn"),
        (171, "warn"),
        (999, "warn"),
        (103, "warn"),
        (127, "warn"),
        (46, "fail"),
        (48, "fail"),
        (62, "fail"),
        (64, "fail"),
        (74, "fail"),
        (79, "fail"),
        (95, "fail"),
        (109, "fail"),
        (119, "fail"),
        (120, "fail"),
        (125, "fail"),
        (136, "fail"),
        (140, "fail"),
        (142, "fail"),
        (143, "fail"),
        (145, "fail"),
        (151, "fail"),
        (154, "fail"),
        (155, "fail"),
        (156, "fail"),
        (158, "fail"),
    ],
)
def test_xid_by_class(code: int, expected: str) -> None:
    found = one("gpu.xid", xid(code))
    assert found["status"] == expected
    assert "Xid %d on GPU 3" % code in found["observed"]


@pytest.mark.parametrize(
    "code, text, expected",
    [
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "fail"),
        (154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", "pass"),
        (149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 04 (0x1 0x2)", "warn"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x1 0x2)", "fail"),
    ],
)
def test_xid_whose_text_decides(code: int, text: str, expected: str) -> None:
    assert status("gpu.xid", xid(code, text)) == expected


def test_xid_names_the_gpu_the_number_and_what_it_means() -> None:
    assert one("gpu.xid", xid(79, count=3))["observed"] == "Xid 79 on GPU 3 ×3: GPU has fallen off the bus"
    assert "reboot" in one("gpu.xid", xid(79))["fix"].lower()
    facts = xid(94)
    facts["gpu"]["xid"].append(dict(facts["gpu"]["xid"][0], code=79, index=None, bdf=LAST))
    found = one("gpu.xid", facts)
    assert found["observed"] == "Xid 79 on 0000:df:00.0: GPU has fallen off the bus; Xid 94 on GPU 3: contained memory error"


def test_an_old_xid_that_was_dealt_with_only_warns() -> None:
    facts = xid(119, last=600.0)
    put(facts, "collected.now", 1795900000.0 + 600 + 86400 * 2)
    found = one("gpu.xid", facts)
    assert found["status"] == "warn"
    assert "over a day ago" in found["observed"]
    assert status("gpu.xid", put(facts, "gpu.gpus.3.recovery_action", "GPU Reset")) == "fail"
    assert status("gpu.xid", put(put(facts, "gpu.gpus.3.recovery_action", "None"), "gpu.xid.0.code", 79)) == "fail"
    assert status("gpu.xid", without(put(facts, "gpu.xid.0.code", 119), "collected.now")) == "fail"


def test_xid_when_the_kernel_log_is_closed() -> None:
    assert one("gpu.xid", changed("gpu.unknown", {"kernel_log": "dmesg: not permitted"}))["observed"] == "dmesg: not permitted"
    for part in ("xid", "sxid", "fallen"):
        assert status("gpu.xid", without(healthy_b300(), "gpu." + part)) == "unknown"
    assert status("gpu.xid", changed("gpu.xid", "Xid 79")) == "unknown"
    assert status("gpu.xid", put(xid(79), "gpu.unknown", {"kernel_log": "cut off"})) == "fail"
    assert status("gpu.xid", put(xid(31), "gpu.unknown", {"kernel_log": "cut off"})) == "unknown"


def test_sxid() -> None:
    line = {"bdf": "0000:05:00.0", "code": 20034, "count": 1, "first": 1.0, "last": 1.0, "text": "…", "fatal": True}
    found = one("gpu.xid", changed("gpu.sxid", [line]))
    assert (found["status"], found["observed"]) == ("fail", "fatal SXid 20034 on NVSwitch 0000:05:00.0")
    assert status("gpu.xid", changed("gpu.sxid", [dict(line, fatal=False)])) == "warn"


def test_the_catalogue_is_whole() -> None:
    assert all(known.code == code and known.kind in xids.CLASSES and known.text for code, known in xids.CATALOGUE.items())
    assert {known.kind for known in xids.CATALOGUE.values()} == set(xids.CLASSES)
    # The codes that NVIDIA calls unused have no entry; all others up to 172 have one.
    for code in (8, 13, 31, 43, 45, 46, 48, 62, 63, 64, 74, 79, 92, 94, 95, *range(119, 126), *range(136, 138), *range(139, 173)):
        assert code in xids.CATALOGUE, code


@pytest.mark.parametrize(
    "action, expected",
    [
        ("None", "ignored"),
        ("NONE", "ignored"),
        ("GPU Reset", "reset"),
        ("GPU_RESET", "reset"),
        ("Reset", "reset"),
        ("Reboot", "reboot"),
        ("NODE_REBOOT", "reboot"),
        ("Drain and Reset", "reset"),
        ("DRAIN_P2P", "reset"),
        ("Recover IMEX Domain", "reset"),
        ("SYSTEM_REBOOT", "reboot"),
        ("BUS_RESET", "reset"),
        ("", ""),
        (None, ""),
        ("N/A", ""),
        ("Unknown", ""),
    ],
)
def test_recovery_class(action: Any, expected: str) -> None:
    assert xids.recovery_class(action) == expected


# --- gpu.nvlink_matrix ----------------------------------------------------------------------------


def test_nvlink_of_a_gpu_that_lost_all() -> None:
    facts = changed("gpu.topology.matrix", matrix(8, {(2, j): "SYS" for j in range(8) if j != 2}))
    found = one("gpu.nvlink_matrix", facts)
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert found["observed"] == "GPU2 lost NVLink to 7 of 7 peers"


def test_nvlink_of_one_lost_link() -> None:
    assert one("gpu.nvlink_matrix", changed("gpu.topology.matrix", matrix(8, {(0, 3): "NV17"})))["observed"] == "GPU0-GPU3 NV17"
    assert one("gpu.nvlink_matrix", changed("gpu.topology.matrix", matrix(8, {(0, 3): "NODE"})))["observed"] == "GPU0-GPU3 no NVLink"
    # Without a profile the best pair says what the others should be.
    assert (
        status("gpu.nvlink_matrix", changed("gpu.topology.matrix", matrix(8, {(0, 3): "NV17"})), b300_context()._replace(nvlink_links=0))
        == "fail"
    )


def test_nvlink_status_of_inactive_and_slow_links() -> None:
    facts = changed("gpu.nvlink.2", {"index": 2, "links": 18, "active": 17, "min_gbs": 53.125, "inactive": [3]})
    found = one("gpu.nvlink_matrix", facts)
    assert (found["status"], found["observed"]) == ("fail", "GPU 2: 17 of 18 links active, link 3")
    assert status("gpu.nvlink_matrix", changed("gpu.nvlink.2", {"index": 2, "links": 12, "active": 12})) == "fail"
    found = one("gpu.nvlink_matrix", changed("gpu.nvlink.2.min_gbs", 26.562))
    assert (found["status"], found["observed"]) == ("fail", "GPU 2: a link runs at 26.562 GB/s")


def test_nvlink_needs_the_matrix() -> None:
    assert status("gpu.nvlink_matrix", without(healthy_b300(), "gpu.topology")) == "unknown"
    assert status("gpu.nvlink_matrix", changed("gpu.topology.matrix", matrix(8)[:5])) == "unknown"
    assert status("gpu.nvlink_matrix", changed("gpu.topology.matrix", ["X NV18NV18"] * 8)) == "unknown"
    assert one("gpu.nvlink_matrix", changed("gpu.unknown", {"topology": "timed out"}))["observed"] == "timed out"
    # NV18 in every cell counts the active links itself.
    assert status("gpu.nvlink_matrix", without(healthy_b300(), "gpu.nvlink")) == "pass"
    facts = changed("gpu.topology", {"gpus": ["GPU0", "GPU1"], "matrix": matrix(2)})
    assert status("gpu.nvlink_matrix", facts) == "unknown"


def test_sys_between_gpu_and_nic_of_a_tray_is_normal() -> None:
    facts = healthy_gb300()
    assert facts["gpu"]["topology"]["gpu_nic"] == ["SYS SYS SYS SYS"] * 4
    assert status("gpu.nvlink_matrix", facts, gb300_context()) == "pass"


def test_nvlink_is_not_asked_of_gpus_without_any() -> None:
    cells = [" ".join("X" if i == j else "SYS" for j in range(8)) for i in range(8)]
    facts = without(changed("gpu.topology.matrix", cells), "gpu.nvlink")
    assert status("gpu.nvlink_matrix", facts, b300_context()._replace(nvlink_links=0, hardware="")) == "skip"
    assert status("gpu.nvlink_matrix", facts) == "fail"


def test_the_lost_gpu_is_named_by_its_address() -> None:
    assert "0000:%s:00.0" % B300_BUSES[-1] == LAST
    assert status("gpu.nvlink_matrix", lost_gpu()) == "pass"
