# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks fabric.*."""

from __future__ import annotations

from typing import Any, Dict, Optional

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Context

from .healthy import CLUSTER_UUID, MISSING, b300_context, gb300_context, healthy_b300, healthy_gb300, no_service, put, service, without
from .run import one, over, status

OTHER_UUID = "0b1e7a52-93ae-4a5d-8f11-2f2f4c1b7d22"
TRAYS = ("tray1", "tray2", "tray3", "tray4")
HGX = ("fabric.manager", "fabric.state", "fabric.nvlsm")


def changed(path: str, value: Any) -> Dict[str, Any]:
    return put(healthy_b300(), path, value)


def tray(path: str, value: Any) -> Dict[str, Any]:
    return put(healthy_gb300(), path, value)


def h100() -> Dict[str, Any]:
    """An HGX H100 node: switches on the PCI bus, Fabric Manager without nvlsm."""
    facts = healthy_b300()
    for gpu in facts["gpu"]["gpus"]:
        gpu["name"] = "NVIDIA H100 80GB HBM3"
    facts["fabric"]["nvswitches"] = 4
    facts["fabric"]["sw_mng"] = []
    facts["fabric"]["nvlsm"] = {"version": None, "running": False}
    facts["fabric"]["manager"]["log"] = [{"kind": "pre_nvl5", "text": "…"}, {"kind": "configured", "text": "…"}]
    return facts


H100 = b300_context()._replace(hardware="h100", open_required=False)


@pytest.mark.parametrize("id", HGX)
def test_a_healthy_hgx_node_passes(id: str) -> None:
    assert status(id, healthy_b300()) == "pass"


def test_a_healthy_tray_passes() -> None:
    context = gb300_context()
    assert status("fabric.manager", healthy_gb300(), context) == "skip"
    assert status("fabric.nvlsm", healthy_gb300(), context) == "skip"
    assert status("fabric.state", healthy_gb300(), context) == "pass"
    found = one("fabric.imex", healthy_gb300(), context)
    assert (found["status"], found["observed"]) == ("pass", "READY, domain UP, 4 of 4 nodes, channel 0")


@pytest.mark.parametrize("fabric", [MISSING, None, {}, [], {"unknown": {"all": "reading it got stuck"}}])
@pytest.mark.parametrize("id", ["fabric.manager", "fabric.nvlsm", "fabric.imex"])
def test_without_facts_nothing_is_known(id: str, fabric: Any) -> None:
    imex = id == "fabric.imex"
    facts = put(healthy_gb300() if imex else healthy_b300(), "fabric", fabric)
    assert status(id, facts, gb300_context() if imex else b300_context()) == "unknown"


# --- fabric.manager -------------------------------------------------------------------------------


def test_manager_of_another_version() -> None:
    facts = changed("fabric.manager.version", "580.82.07")
    found = one("fabric.manager", facts)
    assert (found["status"], found["severity"]) == ("fail", "block")
    assert (found["observed"], found["required"]) == ("version 580.82.07, active", "active, version 580.95.05")
    # The loaded driver counts, not the one on disk.
    assert status("fabric.manager", put(changed("fabric.manager.version", "580.126.09"), "driver.installed", "580.126.09")) == "fail"


@pytest.mark.parametrize("state, said", [("failed", "failed"), ("inactive", "inactive")])
def test_manager_that_does_not_run(state: str, said: str) -> None:
    found = one("fabric.manager", changed("fabric.manager.service", service(state)))
    assert (found["status"], found["observed"]) == ("fail", said)


def test_manager_that_is_not_there() -> None:
    facts = changed("fabric.manager", {"version": None, "service": no_service(), "log": []})
    found = one("fabric.manager", facts)
    assert (found["status"], found["observed"]) == ("fail", "not installed")
    assert "inferops.vllm.provision" in found["fix"]


def test_manager_says_why_it_failed() -> None:
    facts = changed("fabric.manager.service", service("failed"))
    assert (
        one("fabric.manager", put(facts, "fabric.manager.log", [{"kind": "version_mismatch", "text": "…"}]))["observed"]
        == "failed: its version is not the driver's"
    )
    assert (
        one("fabric.manager", put(facts, "fabric.manager.log", [{"kind": "nothing_to_do", "text": "…"}]))["observed"]
        == "failed: it found no NVSwitch"
    )
    without(put(facts, "fabric.manager.log", [{"kind": "pre_nvl5", "text": "…"}]), "host.modules.ib_umad")
    assert "ib_umad is not loaded" in one("fabric.manager", facts)["observed"]


def test_pre_nvl5_is_normal_on_h100_and_a_fault_on_b300() -> None:
    assert status("fabric.manager", h100(), H100) == "pass"
    facts = changed("fabric.manager.log", [{"kind": "pre_nvl5", "text": "…"}])
    without(facts, "host.modules.ib_umad")
    found = one("fabric.manager", facts)
    assert found["status"] == "fail"
    assert "ib_umad is not loaded" in found["observed"]
    # An old line of a start that was mended since is no fault.
    assert (
        status("fabric.manager", changed("fabric.manager.log", [{"kind": "pre_nvl5", "text": "…"}, {"kind": "configured", "text": "…"}]))
        == "pass"
    )


@pytest.mark.parametrize(
    "path, value",
    [
        ("fabric.manager.service.active", None),
        ("fabric.manager.service.active", "activating"),
        ("fabric.manager.service", {}),
        ("fabric.manager.version", None),
        ("fabric.unknown", {"manager": "systemctl timed out"}),
        ("driver", {}),
    ],
)
def test_manager_when_something_was_not_read(path: str, value: Any) -> None:
    assert status("fabric.manager", changed(path, value)) == "unknown"


def test_manager_that_keeps_restarting_warns() -> None:
    assert status("fabric.manager", changed("fabric.manager.service.restarts", 3)) == "warn"
    assert status("fabric.manager", changed("fabric.manager.service.restarts", 2)) == "pass"


def test_no_manager_belongs_on_a_tray() -> None:
    found = one("fabric.manager", tray("fabric.manager.service", service("failed")), gb300_context())
    assert (found["status"], found["severity"]) == ("warn", "warn")
    assert found["observed"].startswith("service failed; an NVL72 tray runs none")
    assert status("fabric.manager", tray("fabric.manager.service", service("active")), gb300_context()) == "warn"
    # The GPUs tell it when nothing was declared.
    assert status("fabric.manager", healthy_gb300(), gb300_context()._replace(hardware="")) == "skip"


def guest() -> Dict[str, Any]:
    """A virtual machine that got the GPUs and not the switches."""
    facts = put(h100(), "host.virt", "kvm")
    facts["fabric"]["nvswitches"] = 0
    facts["fabric"]["manager"] = {"version": None, "service": no_service(), "log": []}
    return facts


def test_the_hypervisor_may_run_the_manager() -> None:
    assert status("fabric.manager", guest(), H100) == "skip"
    assert status("fabric.manager", put(guest(), "gpu.gpus.0.fabric.state", "In Progress"), H100) == "fail"
    assert status("fabric.manager", put(guest(), "host.virt", "none"), H100) == "fail"


def test_a_manager_that_failed_in_a_virtual_machine_is_not_the_hypervisors() -> None:
    facts = put(guest(), "fabric.manager", {"version": "580.95.05", "service": service("failed"), "log": []})
    assert status("fabric.manager", facts, H100) == "fail"


def test_switches_that_were_not_looked_for_are_not_absent() -> None:
    facts = healthy_b300()
    for gpu in facts["gpu"]["gpus"]:
        gpu["name"] = "NVIDIA Next"
    facts["fabric"].update({"nvswitches": 0, "sw_mng": None, "manager": {}})
    assert status("fabric.manager", facts, Context()) == "unknown"
    assert status("fabric.manager", put(facts, "fabric.sw_mng", []), Context()) == "skip"


def test_gpus_without_switches_need_no_manager() -> None:
    facts = guest()
    for gpu in facts["gpu"]["gpus"]:
        gpu["name"] = "NVIDIA L40S"
        gpu["fabric"] = {"state": "N/A", "status": "N/A"}
    plain = Context(gpus_per_node=8)
    assert status("fabric.manager", put(facts, "host.virt", "none"), plain) == "skip"
    assert status("fabric.state", facts, plain) == "skip"
    for gpu in facts["gpu"]["gpus"]:
        gpu["fabric"] = {}  # collectors leave N/A out
    assert status("fabric.state", facts, plain) == "skip"
    assert status("fabric.nvlsm", facts, plain) == "skip"


def test_without_a_gpu_nothing_is_asked() -> None:
    facts = changed("gpu", {"pci": [], "unknown": {"smi": "not installed"}})
    for id in HGX:
        assert status(id, facts) == "skip"


# --- fabric.state ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fabric, expected, said",
    [
        ({"state": "In Progress", "status": "N/A"}, "fail", "GPU 2: fabric In Progress"),
        ({"state": "Not Started"}, "fail", "GPU 2: fabric Not Started"),
        ({"state": "N/A"}, "fail", "GPU 2: fabric N/A"),
        ({"state": "Completed", "status": "Insufficient Resources"}, "fail", "GPU 2: fabric Completed, but Insufficient Resources"),
        (
            {"state": "Completed", "status": "Success", "health": {"bandwidth": "Degraded"}},
            "fail",
            "GPU 2: fabric health: bandwidth Degraded",
        ),
        ({"state": "Completed", "status": "Success", "health": {}}, "pass", ""),
        ({"state": "Completed"}, "unknown", "GPU 2: fabric Completed, status not read"),
        ({}, "unknown", "GPU 2: fabric state not read"),
        (None, "unknown", "GPU 2: fabric state not read"),
    ],
)
def test_state(fabric: Any, expected: str, said: str) -> None:
    found = one("fabric.state", changed("gpu.gpus.2.fabric", fabric))
    assert found["status"] == expected
    if said:
        assert found["observed"] == said


def test_state_of_gpus_that_must_have_a_fabric() -> None:
    facts = healthy_b300()
    for gpu in facts["gpu"]["gpus"]:
        gpu["fabric"] = {"state": "N/A", "status": "N/A"}
    assert status("fabric.state", facts) == "unknown"
    for gpu in facts["gpu"]["gpus"]:
        gpu["fabric"] = {}
    assert status("fabric.state", facts) == "unknown"
    assert status("fabric.state", put(facts, "gpu.gpus", [{"index": 0}]), Context(gpus_per_node=1)) == "unknown"
    facts = healthy_b300()
    assert status("fabric.state", put(facts, "gpu", {"unknown": {"smi": "timed out"}})) == "unknown"


# --- fabric.nvlsm ---------------------------------------------------------------------------------


def test_nvlsm() -> None:
    assert one("fabric.nvlsm", changed("fabric.nvlsm.running", False))["observed"] == "nvlsm is not running"
    found = one("fabric.nvlsm", without(healthy_b300(), "host.modules.ib_umad"))
    assert (found["status"], found["observed"]) == ("fail", "ib_umad is not loaded")
    assert status("fabric.nvlsm", changed("fabric.nvlsm.running", None)) == "unknown"
    assert status("fabric.nvlsm", without(healthy_b300(), "host.modules")) == "unknown"
    assert (
        one("fabric.nvlsm", put(changed("fabric.nvlsm.running", False), "fabric.unknown", {"nvlsm": "no process list"}))["status"]
        == "unknown"
    )
    assert status("fabric.nvlsm", h100(), H100) == "skip"


# --- fabric.imex ----------------------------------------------------------------------------------


def imex_of(nodes_total: Optional[int]) -> Dict[str, Any]:
    return tray("fabric.imex.nodes_total", nodes_total)


@pytest.mark.parametrize(
    "path, value, said",
    [
        ("service", service("failed"), "service failed"),
        ("domain", "DEGRADED", "domain DEGRADED"),
        ("domain", "DOWN", "domain DOWN"),
        ("ready", "NOT READY", "NOT READY"),
        ("version", "580.82.07", "version 580.82.07"),
        ("channels", [], "no channel 0"),
        ("channels", [1], "no channel 0"),
        ("nodes_total", 2, "the domain has 2 nodes, the plan 4"),
    ],
)
def test_imex_faults(path: str, value: Any, said: str) -> None:
    found = one("fabric.imex", tray("fabric.imex." + path, value), gb300_context())
    assert (found["status"], found["observed"], found["severity"]) == ("fail", said, "block")


def test_imex_names_who_is_away() -> None:
    facts = put(tray("fabric.imex.domain", "DEGRADED"), "fabric.imex.not_up", ["192.0.2.13"])
    assert one("fabric.imex", facts, gb300_context())["observed"] == "domain DEGRADED (192.0.2.13 not up)"


@pytest.mark.parametrize("path", ["domain", "ready", "version", "channels", "service"])
def test_imex_when_something_was_not_read(path: str) -> None:
    assert status("fabric.imex", tray("fabric.imex." + path, None), gb300_context()) == "unknown"
    facts = put(healthy_gb300(), "fabric.unknown", {"imex": "nvidia-imex-ctl timed out"})
    assert one("fabric.imex", facts, gb300_context())["observed"] == "nvidia-imex-ctl timed out"


def test_imex_is_asked_only_where_the_plan_needs_it() -> None:
    down = tray("fabric.imex.service", service("failed"))
    assert status("fabric.imex", down, gb300_context()._replace(needs_mnnvl=False)) == "skip"
    assert status("fabric.imex", healthy_b300()) == "skip"
    absent = tray("fabric.imex.service", no_service())
    assert one("fabric.imex", absent, gb300_context())["observed"] == "nvidia-imex is not installed"


# --- fabric.clique --------------------------------------------------------------------------------


def rack(**changes: Any) -> Dict[str, Dict[str, Any]]:
    """Facts of four trays; `changes` give (cluster, clique) of some, or a function of the facts."""
    facts = {name: healthy_gb300(name) for name in TRAYS}
    for name, change in changes.items():
        for gpu in facts[name]["gpu"]["gpus"]:
            gpu["fabric"]["cluster"], gpu["fabric"]["clique"] = change
    return facts


def test_clique_is_one() -> None:
    found = over("fabric.clique", rack(), gb300_context())
    assert set(found) == {"*"}
    assert (found["*"]["status"], found["*"]["observed"]) == ("pass", "clique 32766 of 5d0f7c1a on 4 nodes")


@pytest.mark.parametrize(
    "cluster, clique, said", [(CLUSTER_UUID, "32765", "clique 32765 of 5d0f7c1a"), (OTHER_UUID, "32766", "clique 32766 of 0b1e7a52")]
)
def test_clique_names_the_odd_node(cluster: str, clique: str, said: str) -> None:
    found = over("fabric.clique", rack(tray3=(cluster, clique)), gb300_context())
    assert set(found) == {"tray3"}
    assert (found["tray3"]["status"], found["tray3"]["severity"]) == ("fail", "block")
    assert (found["tray3"]["observed"], found["tray3"]["required"]) == (said, "clique 32766 of 5d0f7c1a on 3 of 4 nodes")


def test_clique_of_a_node_outside_any_domain() -> None:
    for zero in ("", "00000000-0000-0000-0000-000000000000"):
        found = over("fabric.clique", rack(tray2=(zero, "0")), gb300_context())
        assert found["tray2"]["observed"] == "no NVLink domain between nodes"
        assert found["tray2"]["status"] == "fail"


def test_clique_that_differs_within_a_node() -> None:
    facts = rack()
    facts["tray1"]["gpu"]["gpus"][0]["fabric"]["clique"] = "1"
    found = over("fabric.clique", facts, gb300_context())
    assert (found["tray1"]["status"], found["tray1"]["observed"]) == ("fail", "GPUs in cliques 1 and 32766")


def test_clique_tie_is_said_to_be_one() -> None:
    found = over("fabric.clique", rack(tray1=(CLUSTER_UUID, "1"), tray2=(CLUSTER_UUID, "1")), gb300_context())
    assert set(found) == {"*"}
    assert (found["*"]["status"], found["*"]["severity"]) == ("fail", "block")
    assert "tie" in found["*"]["observed"] and "tray1, tray2" in found["*"]["observed"] and "tray3, tray4" in found["*"]["observed"]


def test_clique_that_is_not_known_is_not_counted() -> None:
    facts = rack()
    facts["tray4"]["gpu"] = {"unknown": {"smi": "nvidia-smi did not answer in 10 s"}}
    found = over("fabric.clique", facts, gb300_context())
    assert (found["tray4"]["status"], found["tray4"]["observed"]) == ("unknown", "nvidia-smi did not answer in 10 s")
    assert (found["*"]["status"], found["*"]["observed"]) == ("pass", "clique 32766 of 5d0f7c1a on 3 nodes, not on 1")
    for bad in ({}, {"cluster": 5}, {"cluster": CLUSTER_UUID}, None):
        facts["tray4"] = put(healthy_gb300("tray4"), "gpu.gpus.0.fabric", bad)
        assert over("fabric.clique", facts, gb300_context())["tray4"]["status"] == "unknown"


def test_clique_when_nothing_is_known() -> None:
    found = over("fabric.clique", {name: {} for name in TRAYS}, gb300_context())
    assert {name: f["status"] for name, f in found.items()} == dict.fromkeys(TRAYS, "unknown")


def test_clique_is_asked_only_where_the_plan_needs_it() -> None:
    found = over("fabric.clique", rack(tray3=(OTHER_UUID, "1")), gb300_context()._replace(needs_mnnvl=False))
    assert {name: f["status"] for name, f in found.items()} == {"*": "skip"}
