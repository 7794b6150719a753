# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan playbook: what it writes, exit codes, refusals, and that it touches nothing else."""

from __future__ import annotations

import json
import os
import pathlib
import stat
from typing import Any, Dict

import pytest

from tests.costume import Spec

from .conftest import ROOT

EXAMPLES = sorted((ROOT / "inventories" / "examples").glob("*.yml"))
DEMO = ROOT / "inventories" / "demo"
NVL72 = ROOT / "inventories" / "demo-nvl72"
CLOSED = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o ConnectTimeout=3",
          "vllm_host_ip": "192.0.2.99", "vllm_interface": "eno1"}
WORDS = {"vllm_hardware": "b300", "vllm_interconnect": "rdma", "vllm_strategy": "multi_node_dep"}


def b300(index: int, *faults: str) -> Spec:
    return Spec(name="", hardware="b300", index=index, faults=frozenset(faults))


def read(folder: pathlib.Path) -> Dict[str, Any]:
    return json.loads((folder / "plan.json").read_text())


def tree(folder: pathlib.Path) -> Dict[str, Any]:
    return {str(path.relative_to(folder)): (path.read_text(), stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def plan(playbook, tmp_path):
    """Callable ``plan(inventory, *arguments) -> (run, folder)``."""
    folder = tmp_path / "plan"

    def run(inventory: Any, *arguments: str):
        return playbook("inferops.vllm.plan", inventory, "-e", "plan_dir=%s" % folder, *arguments), folder

    return run


def test_two_recorded_nodes_become_one_engine(plan, inventory):
    run, folder = plan(inventory({"a": b300(1), "b": b300(2)}, **WORDS))
    assert run.rc == 0, run.text
    document = read(folder)
    assert document["schema"] == "inferops.vllm/plan/1" and document["refused"] == [] and document["complete"] is True
    assert sorted(tree(folder)) == ["a/command.sh", "a/service.env", "a/vllm.service", "b/command.sh", "b/service.env", "b/vllm.service", "plan.json"]
    assert {mode for name, (_text, mode) in tree(folder).items() if name.endswith(".env")} == {0o640}
    assert os.access(folder / "a" / "command.sh", os.X_OK)
    assert document["nodes"]["b"]["env"]["VLLM_HOST_IP"] == "192.0.2.12" and "NCCL_IB_HCA" in document["nodes"]["b"]["env"]
    start = run.text.index("TASK [Plan all nodes together]")
    shown = run.text[start:run.text.index("PLAY RECAP")].splitlines()[1:]
    assert all(len(line) <= 100 for line in shown), max(shown, key=len)
    assert "ENGINE   2 nodes, 16 GPUs" in run.text


def test_a_second_run_changes_nothing_and_a_changed_flag_is_shown(plan, inventory):
    where = inventory({"a": b300(1), "b": b300(2)}, **WORDS)
    run, folder = plan(where)
    assert run.rc == 0 and "changed=1" in run.text
    before = tree(folder)
    run, _folder = plan(where)
    assert run.rc == 0 and "changed=1" not in run.text and tree(folder) == before
    run, _folder = plan(where, "-e", json.dumps({"vllm_overrides": {"max-num-seqs": 77}}), "--check", "--diff")
    assert run.rc == 0 and "changed=1" in run.text and "+  --max-num-seqs 77" in run.text
    assert tree(folder) == before
    run, _folder = plan(where, "-e", json.dumps({"vllm_overrides": {"max-num-seqs": 77}}))
    assert "--max-num-seqs 77" in (folder / "a" / "command.sh").read_text()


def test_check_mode_prints_and_writes_nothing(plan, inventory):
    run, folder = plan(inventory({"a": b300(1), "b": b300(2)}, **WORDS), "--check")
    assert run.rc == 0 and "ENGINE" in run.text and "would be written" in run.text and "changed=1" in run.text
    assert not folder.exists()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_inventory_is_a_complete_plan(plan, example):
    run, folder = plan(example, "-e", "plan_read_nodes=false")
    assert run.rc == 0, run.text
    document = read(folder)
    assert document["refused"] == [] and document["complete"] is True and document["nodes"]
    for name in document["nodes"]:
        assert {"command.sh", "service.env"} < {path.name for path in (folder / name).iterdir()}


def test_the_examples_are_those_that_are_promised():
    assert [path.stem for path in EXAMPLES] == [
        "gb300-nvl72", "h200-rdma", "hgx-b300-rdma-2", "hgx-b300-rdma-4", "mi355x", "pd-disaggregated"]


def test_nodes_that_do_not_answer_do_not_keep_a_plan_from_being_made(plan, inventory):
    run, folder = plan(inventory({"a": b300(1), "down": CLOSED}, **WORDS))
    assert run.rc == 0, run.text
    document = read(folder)
    assert document["nodes"]["down"]["env"]["VLLM_HOST_IP"] == "192.0.2.99" and "NCCL_IB_HCA" not in document["nodes"]["down"]["env"]
    assert any(text.startswith("no facts of down (did not answer") for text in document["assumed"])


def test_no_node_answers_at_all(plan, inventory):
    run, folder = plan(inventory({"down": CLOSED}, vllm_hardware="b300", vllm_strategy="single_node_tp"))
    assert run.rc == 0, run.text
    assert read(folder)["nodes"]["down"]["health_url"] == "http://192.0.2.99:8000/health"


def test_a_recording_that_is_none_is_said_and_the_plan_goes_on(plan, inventory, tmp_path):
    (tmp_path / "junk").mkdir()
    where = inventory({"a": b300(1), "bad": {**CLOSED, "ansible_connection": "local", "vllm_node_root": str(tmp_path / "junk")}}, **WORDS)
    run, folder = plan(where)
    assert run.rc == 0, run.text
    assert any("could not be read" in text and "bad" in text for text in read(folder)["assumed"])


def test_limit_still_plans_the_whole_engine(plan, inventory):
    hosts = {name: {"vllm_host_ip": "10.0.0.%d" % index, "vllm_interface": "eth0"} for index, name in enumerate("ab", 1)}
    run, folder = plan(inventory(hosts, **WORDS), "--limit", "b", "-e", "plan_read_nodes=false")
    assert run.rc == 0, run.text
    assert list(read(folder)["nodes"]) == ["a", "b"] and read(folder)["nodes"]["b"]["rank"] == 1


def test_demo_is_refused_for_what_is_wrong_with_its_nodes(plan):
    run, folder = plan(DEMO)
    assert run.rc == 2
    document = read(folder)
    text = json.dumps(document["refused"], ensure_ascii=False)
    assert document["nodes"] == {} and sorted(tree(folder)) == ["plan.json"]
    assert "b300-04 has 7 working GPUs" in text and "nvidia_peermem not loaded: b300-03" in text
    assert run.text.index("PLAN REFUSED") < run.text.index("fatal:") and "Traceback" not in run.text


def test_nvl72_demo_is_refused_for_the_clique(plan):
    run, folder = plan(NVL72)
    assert run.rc == 2
    assert "not in one NVLink clique" in read(folder)["refused"][0]["why"]


def test_a_refusal_takes_the_commands_of_an_earlier_plan_away(plan, inventory, tmp_path):
    where = inventory({"a": b300(1), "b": b300(2)}, **WORDS)
    _run, folder = plan(where)
    (folder / "a" / "notes.txt").write_text("mine")
    run, _folder = plan(where, "-e", "vllm_strategy=multi_node_tp_dp")
    assert run.rc == 2
    assert sorted(tree(folder)) == ["a/notes.txt", "plan.json"] and read(folder)["nodes"] == {}


def test_an_earlier_plan_json_of_another_kind_is_not_trusted(plan, inventory, tmp_path):
    where = inventory({"a": b300(1)}, vllm_hardware="b300", vllm_strategy="single_node_tp")
    folder = tmp_path / "plan"
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "command.sh").write_text("mine")
    (folder / "plan.json").write_text(json.dumps({"schema": "inferops.vllm/plan/1", "nodes": {"../victim": {"role": "head"}}}))
    run, _folder = plan(where)
    assert run.rc == 0 and (victim / "command.sh").read_text() == "mine"


@pytest.mark.parametrize("variable,value,allowed", [
    ("vllm_hardware", "b3000", "b300"), ("vllm_strategy", "tensor", "single_node_tp"), ("vllm_interconnect", "token-ring", "rdma"),
    ("vllm_profile", "llama", "kimi_k3"), ("vllm_variant", "fp2", "nvfp4"), ("vllm_features", ["telepathy"], "tool_calling"),
    ("vllm_version", "latest", "0.27.1"), ("vllm_image", "a b", "vllm/vllm-openai"), ("vllm_port", 70000, "65535"),
    ("vllm_overrides", {"max-num-seq": 1}, "--max-num-seqs"), ("vllm_overrides", {"api-key": "s3cret-value"}, "environment file"),
    ("vllm_overrides", "--max-num-seqs 5", "table"), ("vllm_env_overrides", {"HF_TOKEN": "s3cret-value"}, "environment file"),
    ("vllm_engine", "lxc", "podman"),
])
def test_unknown_words_are_refused_by_name_and_before_a_node_is_asked(plan, inventory, variable, value, allowed):
    run, folder = plan(inventory({"down": CLOSED}, vllm_hardware="b300", vllm_strategy="single_node_tp"), "-e", json.dumps({variable: value}))
    assert run.rc == 2
    assert variable in run.text and allowed in run.text and "Traceback" not in run.text and "TASK [Read the node]" not in run.text
    document = read(folder)
    assert document["nodes"] == {} and variable in document["refused"][0]["why"]
    assert "s3cret-value" not in run.text and "s3cret-value" not in (folder / "plan.json").read_text()


@pytest.mark.parametrize("first,second,expected", [
    ({"vllm_role": "head"}, {"vllm_role": "head"}, "2 heads"), ({"vllm_role": "worker"}, {"vllm_role": "worker"}, "no head"),
    ({"vllm_rank": 0}, {"vllm_rank": 0}, "rank 0 is given to 2 hosts"), ({}, {"vllm_interface": "eth0; reboot"}, "no name of an interface"),
    ({}, {"vllm_host_ip": "no-such-host.invalid"}, "does not resolve"),
    ({}, {"vllm_host_ip": "", "ansible_host": "no-such-host.invalid"}, "the address of b is not known"),
])
def test_an_inventory_that_contradicts_itself_is_refused(plan, inventory, first, second, expected):
    hosts = {"a": {"vllm_host_ip": "10.0.0.1", "vllm_interface": "eth0", **first}, "b": {"vllm_host_ip": "10.0.0.2", "vllm_interface": "eth0", **second}}
    run, folder = plan(inventory(hosts, **WORDS), "-e", "plan_read_nodes=false")
    assert run.rc == 2
    assert expected in json.dumps(read(folder)["refused"]), run.text


def test_an_interface_that_a_recorded_node_does_not_have_is_refused(plan, inventory):
    run, folder = plan(inventory({"a": b300(1), "b": b300(2)}, vllm_interface="ib7", **WORDS))
    assert run.rc == 2
    assert "a has no interface ib7" in read(folder)["refused"][0]["why"]


def test_weights_that_do_not_fit_are_shown_as_a_sum(plan, inventory):
    run, _folder = plan(inventory({"a": {"vllm_host_ip": "10.0.0.1"}}, vllm_hardware="b200", vllm_strategy="single_node_tp"), "-e", "plan_read_nodes=false")
    assert run.rc == 2 and "1,680 GB of weights into 1 × 1,440 GB × 0.95 = 1,368 GB" in run.text


def test_an_inventory_without_nodes_is_refused(plan, tmp_path):
    empty = tmp_path / "empty.yml"
    empty.write_text("all:\n  hosts:\n    somewhere:\n")
    run, _folder = plan(empty)
    assert run.rc == 2 and "vllm_nodes" in run.text


def test_a_folder_that_cannot_be_written_is_named(playbook, inventory, tmp_path):
    (tmp_path / "file").write_text("")
    where = inventory({"a": {"vllm_host_ip": "10.0.0.1"}}, vllm_hardware="b300", vllm_strategy="single_node_tp")
    run = playbook("inferops.vllm.plan", where, "-e", "plan_dir=%s/file/plan" % tmp_path, "-e", "plan_read_nodes=false")
    assert run.rc == 2 and "plan_dir" in run.text and "Traceback" not in run.text


def test_hostile_facts_stay_text(plan, inventory):
    where = inventory({"evil": b300(1)}, vllm_hardware="b300", vllm_strategy="single_node_tp")
    for path in (where.parent / "nodes").rglob("*"):
        if path.is_file():
            path.write_text(path.read_text().replace("NVIDIA B300 SXM6 AC", "{{ 7*7 }} \\u001b[31m").replace("eno1", "$(id)"))
    run, folder = plan(where)
    assert "Traceback" not in run.text and "\x1b[31m" not in run.text
    assert "$(id)" not in "".join(text for name, (text, _mode) in tree(folder).items() if name != "plan.json")
