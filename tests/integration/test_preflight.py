# SPDX-License-Identifier: GPL-3.0-or-later
"""The preflight playbook: verdicts, exit codes, refusals, and what it must survive."""

from __future__ import annotations

import json
import pathlib

import jsonschema
import pytest

from tests.costume import Spec

from .conftest import ROOT

DEMO = ROOT / "inventories" / "demo"
NVL72 = ROOT / "inventories" / "demo-nvl72"
CLOSED = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o ConnectTimeout=3"}


def healthy(index: int = 1) -> Spec:
    return Spec(name="", hardware="b300", index=index)


def test_demo_has_the_expected_verdicts(playbook):
    run = playbook("inferops.vllm.preflight", DEMO)
    assert run.verdicts == {
        "b300-01": "ready", "b300-02": "blocked", "b300-03": "blocked",
        "b300-04": "blocked", "b300-05": "blocked", "b300-06": "blocked",
    }
    assert run.rc == 2
    jsonschema.validate(run.document, json.loads((ROOT / "docs/schemas/preflight-1.schema.json").read_text()))


def test_nvl72_demo_has_the_expected_verdicts(playbook):
    run = playbook("inferops.vllm.preflight", NVL72)
    assert run.verdicts == {"gb300-01": "ready", "gb300-02": "ready", "gb300-03": "blocked", "gb300-04": "blocked"}
    assert run.rc == 2
    assert run.statuses("gb300-03")["fabric.clique"] == "fail"
    assert run.statuses("gb300-04")["fabric.imex"] == "fail"


def test_never_fails_when_told_so_and_changes_nothing(playbook):
    for arguments in ([], ["--check"], ["--check", "--diff"]):
        run = playbook("inferops.vllm.preflight", DEMO, "-e", "preflight_fail_on=never", *arguments)
        assert run.rc == 0, run.text
        assert "changed=0" in run.text and "changed=1" not in run.text
        assert len(run.verdicts) == 6


def test_limit_judges_what_is_left(playbook):
    run = playbook("inferops.vllm.preflight", DEMO, "--limit", "b300-01")
    assert run.rc == 0, run.text
    assert run.verdicts == {"b300-01": "ready"}


def test_tags_select_check_groups(playbook):
    run = playbook("inferops.vllm.preflight", DEMO, "--tags", "rdma")
    groups = {f["id"].split(".")[0] for f in run.document["findings"]}
    assert groups == {"node", "rdma"}
    run = playbook("inferops.vllm.preflight", DEMO, "--skip-tags", "rdma,drift", "-e", "preflight_fail_on=never")
    groups = {f["id"].split(".")[0] for f in run.document["findings"]}
    assert "rdma" not in groups and "drift" not in groups and "gpu" in groups


def test_terminal_report_fits_100_columns_and_names_the_call(playbook):
    run = playbook("inferops.vllm.preflight", DEMO, "-e", "preflight_fail_on=never")
    start = run.text.index("TASK [Judge all nodes together]")
    report = run.text[start:run.text.index("PLAY RECAP")].splitlines()[1:]
    assert all(len(line) <= 100 for line in report), max(report, key=len)
    assert "inferops.vllm.remediate" in "\n".join(report)


@pytest.mark.parametrize("variable,value,allowed", [
    ("vllm_profile", "llama", "kimi_k3"),
    ("vllm_hardware", "b3000", "b300"),
    ("vllm_strategy", "tensor", "single_node_tp"),
    ("vllm_interconnect", "token-ring", "rdma"),
    ("vllm_variant", "fp2", "nvfp4"),
    ("vllm_features", '["telepathy"]', "tool_calling"),
    ("preflight_fail_on", "always", "never"),
    ("preflight_timeout", "soon", "timeout"),
    ("preflight_timeout", "0", "0.1"),
])
def test_unknown_words_are_refused_by_name(playbook, variable, value, allowed):
    value = json.loads(value) if value.startswith("[") else value
    run = playbook("inferops.vllm.preflight", DEMO, "-e", json.dumps({variable: value}))
    assert run.rc == 2
    assert variable.replace("preflight_timeout", "timeout") in run.text and allowed in run.text
    assert "Traceback" not in run.text
    assert run.document is None or variable == "preflight_timeout"


def test_inventory_without_nodes_is_refused(playbook, tmp_path):
    empty = tmp_path / "empty.yml"
    empty.write_text("all:\n  hosts:\n    somewhere:\n")
    run = playbook("inferops.vllm.preflight", empty)
    assert run.rc == 2
    assert "vllm_nodes" in run.text


def test_root_that_is_no_snapshot_is_refused_and_the_others_are_judged(playbook, inventory, tmp_path):
    (tmp_path / "junk").mkdir()
    where = inventory({"good": healthy(), "bad": {"vllm_node_root": str(tmp_path / "junk")}})
    run = playbook("inferops.vllm.preflight", where)
    assert run.rc == 2
    assert "is not a snapshot" in run.text and "Traceback" not in run.text
    assert run.verdicts["good"] in ("ready", "warn") and run.verdicts["bad"] == "blocked"
    assert "is not a snapshot" in next(f for f in run.document["findings"] if f["node"] == "bad")["observed"]


def test_unreachable_node_is_a_finding_and_ends_with_4(playbook, inventory):
    run = playbook("inferops.vllm.preflight", inventory({"up": healthy(), "down": CLOSED}, vllm_strategy="single_node_tp"))
    assert run.verdicts == {"up": "ready", "down": "unreachable"}
    assert run.rc == 4, run.text


def test_unreachable_first_node_does_not_hide_the_others(playbook, inventory):
    run = playbook("inferops.vllm.preflight", inventory({"down": CLOSED, "up": healthy()}, vllm_strategy="single_node_tp"))
    assert run.verdicts == {"down": "unreachable", "up": "ready"}
    assert run.rc == 4, run.text


def test_all_unreachable_is_still_reported(playbook, inventory):
    run = playbook("inferops.vllm.preflight", inventory({"down1": CLOSED, "down2": CLOSED}))
    assert run.verdicts == {"down1": "unreachable", "down2": "unreachable"}
    assert run.rc == 4, run.text
    assert (run.reports / "preflight.html").exists()


def test_blocked_wins_over_unreachable(playbook, inventory):
    broken = healthy()._replace(faults=frozenset({"driver_r575"}))
    run = playbook("inferops.vllm.preflight", inventory({"old": broken, "down": CLOSED}))
    assert run.verdicts["old"] == "blocked" and run.verdicts["down"] == "unreachable"
    assert run.rc == 2


def test_machine_without_gpu_is_never_green(playbook, inventory):
    run = playbook("inferops.vllm.preflight", inventory({"bare": healthy()._replace(faults=frozenset({"no_gpu"}))}))
    assert run.verdicts == {"bare": "blocked"}
    assert run.rc == 2


def test_this_machine_live_is_judged_honestly(playbook):
    run = playbook("inferops.vllm.preflight", ROOT / "inventories" / "local", "-e", "preflight_timeout=3")
    if pathlib.Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver; the expectation is for one without")
    assert run.rc == 2
    assert run.verdicts == {"localhost": "blocked"}
    assert run.statuses("localhost")["gpu.count"] == "fail"


def test_report_folder_that_cannot_be_written_is_named(playbook, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    run = playbook("inferops.vllm.preflight", DEMO, "-e", "preflight_report_dir=%s/reports" % blocker)
    assert run.rc == 2
    assert "preflight_report_dir" in run.text and "Traceback" not in run.text


def test_hostile_names_stay_text(playbook, inventory):
    where = inventory({"evil": healthy()})
    root = where.parent / "nodes" / "evil"
    for path in root.rglob("*"):
        if path.is_file():
            path.write_text(path.read_text().replace("NVIDIA B300 SXM6 AC", "&lt;img src=x onerror=alert(1)&gt; {{ 7*7 }} \\u001b[31m"))
    run = playbook("inferops.vllm.preflight", where, "-e", "preflight_fail_on=never", "-e", "vllm_hardware=b300")
    assert run.rc == 0, run.text
    page = (run.reports / "preflight.html").read_text()
    assert "<img src=x" not in page
    assert "49" not in json.dumps(run.document["nodes"]["evil"].get("gpus", ""))
    assert "\x1b[31m" not in run.text
