# SPDX-License-Identifier: GPL-3.0-or-later
"""inferops.vllm.remediate as a user calls it, on nodes that are recordings: everything that it says, nothing that it does.

At the end steps of remedies on a systemd that is a stand-in.
"""

from __future__ import annotations

import json
import os
import pathlib
import re

import jsonschema
import pytest
import yaml

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


# -- steps on a stand-in ------------------------------------------------------------------------------------------
SYSTEMCTL = """#!/bin/sh
# What systemctl says of the units in $UNITS: UNIT holds its state, UNIT.boot is there when it starts at each boot. Without systemd it reads files alone.
say() { [ "$SYSTEMD_OFFLINE" != 1 ] || { echo "Running in chroot, ignoring command '$1'" >&2; exit 0; }; }
unit="$UNITS/${2:-none}"
case $1 in
    show) say show; if [ -f "$unit" ]; then echo LoadState=loaded; echo "ActiveState=$(cat "$unit")"; else echo LoadState=not-found; fi; exit ;;
    is-enabled) if [ -f "$unit.boot" ]; then echo enabled; else echo disabled; exit 1; fi; exit ;;
    list-unit-files) [ -f "$unit" ]; exit ;;
esac
echo "$1 $2${SYSTEMD_OFFLINE:+ past systemd}" >> "$UNITS/log"
case $1 in
    start|restart) echo active > "$unit" ;;
    stop) echo inactive > "$unit" ;;
    enable) touch "$unit.boot" ;;
    disable) rm -f "$unit.boot" ;;
esac
"""


class Systemd:
    """A systemd that is a stand-in, and a play on the machine that has it."""

    def __init__(self, playbook, folder, **units) -> None:
        self.playbook, self.folder, self.units, self.state = playbook, folder, folder / "units", folder / "remediation.json"
        self.units.mkdir()
        for name, words in units.items():
            self.set(name, words)
        self.program("systemctl", SYSTEMCTL)

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def set(self, name: str, words: str) -> None:
        """Give a unit its state, such as ``active`` or ``inactive boot``."""
        (self.units / (name + ".service")).write_text(words.split()[0] + "\n")
        if "boot" in words:
            (self.units / (name + ".service.boot")).touch()

    def active(self, name: str) -> str:
        return (self.units / (name + ".service")).read_text().strip()

    def play(self, tasks, *arguments, **variables):
        """Changed tasks, and the commands that changed something."""
        log = self.units / "log"
        log.write_text("")
        path = self.folder / "play.yml"
        path.write_text(yaml.safe_dump([{
            "hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks,
            "vars": {"ansible_python_interpreter": "{{ ansible_playbook_python }}", **variables},
            "module_defaults": {"inferops.vllm.remediation_state": {"path": str(self.state)}},
        }]))
        run = self.playbook(str(path), "localhost,", *arguments, env={
            "PATH": os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]]), "UNITS": str(self.units), "STATE": str(self.state)})
        assert run.rc == 0, run.text
        return int(re.search(r"changed=(\d+)", run.text).group(1)), log.read_text().splitlines()


def step(role: str, file: str):
    return {"ansible.builtin.include_role": {"name": "inferops.vllm." + role, "tasks_from": file}}


def test_what_starts_at_boot_is_set_past_systemd(playbook, tmp_path) -> None:
    """A reload takes the GPUs from containers that run with --gpus."""
    node = Systemd(playbook, tmp_path, **{"nvidia-persistenced": "inactive", "nvidia-fabricmanager": "active boot"})
    steps = [step("driver", "persistence"), step("fabric", "no_fabricmanager")]
    facts = {"fabric": {"manager": {"service": {"installed": True}}}}
    assert node.play(steps, "--check", fabric_facts=facts) == (4, [])
    # A second time nothing changes; then they are taken back.
    undo = [step("remediation", "persistence_undo"), step("remediation", "fabric_start")]
    assert node.play(steps + steps + undo, fabric_facts=facts) == (8, [
        "enable nvidia-persistenced.service past systemd", "start nvidia-persistenced.service",
        "disable nvidia-fabricmanager.service past systemd", "stop nvidia-fabricmanager.service",
        "disable nvidia-persistenced.service past systemd", "stop nvidia-persistenced.service",
        "enable nvidia-fabricmanager.service past systemd", "start nvidia-fabricmanager.service"])


@pytest.mark.parametrize(("hardware", "service"), [("gb200", "nvidia-imex"), ("b300", "nvidia-fabricmanager")])
def test_new_fabric_software_runs_in_the_place_of_the_old(playbook, tmp_path, hardware, service) -> None:
    node = Systemd(playbook, tmp_path, **{"nvidia-imex": "active", "nvidia-fabricmanager": "active"})
    new, same = ({**step("fabric", "start"), "vars": {"fabric_packages": {"changed": changed}}} for changed in (True, False))
    assert node.play([new, same], fabric_hardware=hardware, fabric_facts={"host": {}}) == (2, [
        f"enable {service}.service past systemd", f"restart {service}.service"])


def test_a_reset_that_was_killed_leaves_no_daemon_stopped(playbook, tmp_path) -> None:
    node = Systemd(playbook, tmp_path, **{"nvidia-persistenced": "active", "nvidia-dcgm": "inactive"})
    node.program("nvidia-smi", '#!/bin/sh\ncp "$STATE" "$STATE.killed"\ncp "$UNITS/nvidia-persistenced.service" "$STATE.daemon"\n')
    begin = {"inferops.vllm.remediation_state": {"action": "begin", "remedy": "gpu_reset", "run": "first"}}
    _changed, done = node.play([begin, step("remediation", "gpu_reset")])
    assert done == ["stop nvidia-persistenced.service", "start nvidia-persistenced.service"]
    assert (tmp_path / "remediation.json.daemon").read_text() == "inactive\n"
    # As it is after a kill at the reset: the next run reads the node and ends what was left.
    os.replace(tmp_path / "remediation.json.killed", node.state)
    node.set("nvidia-persistenced", "inactive")
    left = {"remediation_read": {"text": json.dumps({"service": {"remediation": node.state.read_text()}})},
            "remediation_round": {"undo": [], "outcome": "interrupted"}}
    recover, gone = step("remediation", "recover"), {"ansible.builtin.file": {"path": str(node.units / "nvidia-persistenced.service"), "state": "absent"}}
    _changed, done = node.play([recover, begin, gone, recover], **left)
    assert done == ["start nvidia-persistenced.service"] and node.active("nvidia-dcgm") == "inactive"
    ended = json.loads(node.state.read_text())
    assert ended["current"] is None and [entry["outcome"] for entry in ended["history"]] == ["interrupted", "failed"]
    assert "nvidia-persistenced.service does not start again" in ended["history"][1]["why"]


def test_systemd_is_told_of_a_limit_only_where_nobody_is_known_to_lose_the_gpus(playbook, tmp_path) -> None:
    node = Systemd(playbook, tmp_path)
    tasks = [{"ansible.builtin.include_tasks": str(ROOT / "roles" / "rdma" / "handlers" / "main.yml"), "vars": {"rdma_facts": facts}} for facts in (
        {"gpu": {"unknown": {"holders": "the processes could not be looked at (timeout)"}}},
        {"gpu": {"unknown": {"holders": "not all processes could be looked at in time"}, "holders": []}},
        {"gpu": {"unknown": {}, "holders": [{"pid": 1, "container": "0123456789ab"}]}},
        {})]
    assert node.play(tasks)[1] == []
    took = node.play([dict(tasks[0], vars={"rdma_facts": {"gpu": {"unknown": {}, "holders": [{"pid": 1}]}}})])[1]
    assert took == ["daemon-reexec "]
