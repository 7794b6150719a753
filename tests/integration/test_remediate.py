# SPDX-License-Identifier: GPL-3.0-or-later
"""inferops.vllm.remediate as a user calls it, on nodes that are recordings: everything that it says, nothing that it does."""

from __future__ import annotations

import json
import pathlib

import jsonschema
import pytest

from tests.costume import Spec

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "remediation-report-1.schema.json").read_text())


def b300(*faults: str, index: int = 1) -> Spec:
    return Spec(name="", hardware="b300", index=index, faults=frozenset(faults))


def remediate(playbook, inventory_file, folder, *arguments, name="inferops.vllm.remediate"):
    run = playbook(name, inventory_file, "-e", "remediate_report_dir=%s" % folder, *arguments)
    path = folder / "remediation.json"
    document = json.loads(path.read_text()) if path.exists() else None
    if document:
        jsonschema.validate(document, SCHEMA)
    return run, document


def test_check_names_for_each_node_what_would_be_done_and_why(playbook, inventory, tmp_path) -> None:
    hosts = inventory({"sound": b300(), "old": b300("driver_r575", index=2), "bare": b300("peermem_missing", index=3)}, vllm_hardware="b300")
    run, document = remediate(playbook, hosts, tmp_path / "r", "--check")
    assert run.rc == 0, run.text
    kinds = {name: {problem: step["kind"] for step in entry["steps"] for problem in step["problems"]} for name, entry in document["nodes"].items()}
    assert kinds["old"]["driver.branch"] == "forbidden"
    assert kinds["sound"] == {}
    assert "Install the driver of the planned branch and load it: not here. These facts are a recording" in " ".join(run.text.split())
    assert document["ended"] is None and document["rounds"] == []


def test_a_recorded_node_is_never_changed(playbook, inventory, tmp_path) -> None:
    hosts = inventory({"old": b300("driver_r575")}, vllm_hardware="b300")
    run, document = remediate(playbook, hosts, tmp_path / "r", "-e", '{"remediate_allow": ["driver", "reboot", "kill"]}')
    assert run.rc == 2
    assert document["rounds"] == [] and document["outcome"] == "left"
    assert "still to do: driver.branch" in run.text
    assert "These facts are a recording; a recorded node cannot be changed." in " ".join(run.text.split())
    assert document["proof"]["verdict"] == "none"


def test_a_remedy_by_name_changes_no_recorded_node_either(playbook, inventory, tmp_path) -> None:
    hosts = inventory({"sound": b300()}, vllm_hardware="b300")
    run, document = remediate(playbook, hosts, tmp_path / "r", "-e", '{"remediate_allow": ["driver", "reboot", "kill"], "remediate_remedy": "memlock"}')
    step = document["nodes"]["sound"]["steps"][0]
    assert (step["kind"], step["remedy"]) == ("forbidden", "memlock") and "These facts are a recording" in step["why"]
    assert document["rounds"] == [] and "changed=0" in run.text.split("PLAY RECAP")[1]


def test_one_area_alone(playbook, inventory, tmp_path) -> None:
    hosts = inventory({"both": b300("driver_r575", "peermem_missing")}, vllm_hardware="b300")
    _run, document = remediate(playbook, hosts, tmp_path / "r", "--check", name="inferops.vllm.remediate_rdma")
    problems = {problem for step in document["nodes"]["both"]["steps"] for problem in step["problems"]}
    assert not {problem for problem in problems if problem.startswith("driver.")}
    _run, document = remediate(playbook, hosts, tmp_path / "r", "--check", name="inferops.vllm.remediate_driver")
    assert "driver.branch" in {problem for step in document["nodes"]["both"]["steps"] for problem in step["problems"]}


def test_a_diagnosis_is_a_fault_as_well(playbook, inventory, tmp_path) -> None:
    hosts = inventory({"a": b300(), "b": b300(index=2)}, vllm_hardware="b300")
    diagnosis = {
        "schema": "inferops.vllm/diagnosis/1",
        "cases": [{"failed": True, "class": "oom_weights", "first_failure": {"node": "b", "text": "CUDA out of memory"}}],
    }
    _run, document = remediate(playbook, hosts, tmp_path / "r", "--check", "-e", json.dumps({"remediate_diagnosis": diagnosis}))
    assert document["nodes"]["a"]["steps"] == []
    assert [step["problems"] for step in document["nodes"]["b"]["steps"]] == [["oom_weights"]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"remediate_allow": ["everything"]}, "remediate_allow"),
        ({"remediate_allow": "driver, sudo"}, "remediate_allow: 'sudo' is not one of reboot, kill, driver"),
        ({"remediate_verify": ["stability"]}, "remediate_verify: 'stability' is not one of start, request, prefix"),
        ({"remediate_budget": "many"}, "remediate_budget: 'many' leaves nothing"),
        ({"remediate_remedy": "format_disk"}, "remediate_remedy: 'format_disk' is not one of"),
        ({"remediate_budget": 0}, "remediate_budget: 0 leaves nothing"),
        ({"remediate_max_nodes": -1}, "remediate_max_nodes: -1 leaves nothing"),
        ({"remediate_areas": ["engines"]}, "no finding is called 'engines'"),
        ({"remediate_areas": ["rdma"], "remediate_remedy": "driver_activate"}, "mends nothing of rdma"),
        ({"remediate_diagnosis": {"cases": 1}}, "is no diagnosis"),
        ({"remediate_diagnosis": {"schema": "inferops.vllm/diagnosis/1", "cases": [{"failed": True, "class": "moon"}]}}, "'moon' is no class"),
    ],
)
def test_bad_input_is_refused_before_a_node_is_read(playbook, inventory, tmp_path, given, said) -> None:
    run, document = remediate(playbook, inventory({"a": b300()}), tmp_path / "r", "-e", json.dumps(given))
    assert run.rc == 2 and document is None
    assert said in " ".join(run.text.split()), run.text
    assert "Traceback" not in run.text


@pytest.mark.parametrize("name", ["inferops.vllm.remediate", "inferops.vllm.remediate_driver", "inferops.vllm.remediate_rdma"])
def test_a_node_that_does_not_answer_is_never_healthy(playbook, inventory, tmp_path, name) -> None:
    hosts = inventory({"sound": b300(), "down": {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_connection": "ssh"}}, vllm_hardware="b300")
    run, document = remediate(playbook, hosts, tmp_path / "r", name=name)
    assert run.rc == 4, run.text
    assert document["outcome"] == "left" and document["nodes"]["down"]["after"] == "unreachable"
    assert [step["problems"] for step in document["nodes"]["down"]["left"]] == [["node.reachable"]]
    assert "down: still to do: node.reachable" in run.text and "1 node needs nothing." in run.text, run.text
    _run, document = remediate(playbook, hosts, tmp_path / "c", "--check", name=name)
    assert [step["problems"] for step in document["nodes"]["down"]["steps"]] == [["node.reachable"]]
