# SPDX-License-Identifier: GPL-3.0-or-later
"""What deploy, rollback and stop refuse, seen without a node: exit codes and messages."""

from __future__ import annotations

import json

import pytest

from tests.costume import Spec

CLOSED = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o ConnectTimeout=3",
          "vllm_host_ip": "192.0.2.99", "vllm_interface": "eno1"}
WORDS = {"vllm_hardware": "b300", "vllm_interconnect": "rdma", "vllm_strategy": "multi_node_dep"}
CPU = {"vllm_hardware": "cpu", "vllm_interconnect": "none", "vllm_strategy": "single_node_tp", "vllm_model": "/var/lib/vllm/tiny"}


def b300(index: int) -> Spec:
    return Spec(name="", hardware="b300", index=index)


@pytest.fixture
def deploy(playbook, tmp_path):
    """Callable ``deploy(inventory, *arguments, name="deploy") -> Run``."""
    def run(inventory, *arguments, name="deploy"):
        return playbook("inferops.vllm." + name, inventory, "-e", "plan_dir=%s/plan" % tmp_path, "-e", "deploy_log_dir=%s/log" % tmp_path, *arguments)

    return run


def test_recorded_nodes_are_planned_and_refused(deploy, inventory):
    run = deploy(inventory({"a": b300(1), "b": b300(2)}, **WORDS))
    assert run.rc == 2, run.text
    assert "a is a recorded node (vllm_node_root): there is no machine that could serve" in " ".join(run.text.split())
    assert "Traceback" not in run.text and "PLAY [Switch" not in run.text and "image :" not in run.text


def test_a_refused_plan_ends_before_a_node_is_looked_at(deploy, inventory):
    run = deploy(inventory({"a": {"vllm_host_ip": "10.0.0.1"}}, vllm_hardware="b200", vllm_strategy="single_node_tp"), "-e", "plan_read_nodes=false")
    assert run.rc == 2 and "PLAN REFUSED" in run.text and "Refuse what cannot work" not in run.text, run.text


@pytest.mark.parametrize(("first", "second", "expected"), [
    ({"vllm_role": "head"}, {"vllm_role": "head"}, "vllm_nodes has 2 heads"), ({"vllm_role": "worker"}, {"vllm_role": "worker"}, "vllm_nodes has no head"),
    ({"vllm_rank": 1}, {"vllm_rank": 1}, "rank 1 is given to 2 hosts"), ({"vllm_host_ip": "no-such-host.invalid"}, {}, "does not resolve"),
    ({"vllm_host_ip": "10.0.0.2"}, {}, "10.0.0.2"), ({}, {"vllm_interface": "eth0; reboot"}, "no name of an interface"),
])
def test_an_inventory_that_contradicts_itself_touches_no_node(deploy, inventory, first, second, expected):
    nodes = {"a": {**CLOSED, "vllm_host_ip": "10.0.0.1", **first}, "b": {**CLOSED, "vllm_host_ip": "10.0.0.2", **second}}
    run = deploy(inventory(nodes, **WORDS), "-e", "plan_read_nodes=false")
    assert run.rc == 2 and expected in " ".join(run.text.split()) and "Traceback" not in run.text, run.text[-2000:]
    assert "Refuse what cannot work" not in run.text and "UNREACHABLE" not in run.text


def test_an_interface_that_the_node_does_not_have_touches_no_node(deploy, inventory):
    run = deploy(inventory({"a": b300(1), "b": b300(2)}, vllm_interface="ib7", **WORDS))
    assert run.rc == 2 and "a has no interface ib7" in " ".join(run.text.split()) and "Refuse what cannot work" not in run.text


def test_names_that_do_not_resolve_between_nodes_are_refused_on_the_live_node(deploy, inventory):
    """The controller knows the addresses, the node does not know the names: only the node can tell."""
    node = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}", "vllm_host_ip": "127.0.0.1"}
    names = ["no-such-node-1.invalid", "no-such-node-2.invalid"]
    run = deploy(inventory({"a": node}, **dict(CPU, preflight_names=names)), "-e", "plan_read_nodes=false")
    text = " ".join(run.text.split())
    assert run.rc == 2 and all("%s does not resolve" % name in text for name in names), run.text[-2000:]
    assert "image :" not in run.text and "service :" not in run.text and "PLAY [Switch" not in run.text


def test_a_plan_with_an_unknown_interface_is_refused(deploy, inventory):
    run = deploy(inventory({"a": {"vllm_host_ip": "10.0.0.1"}, "b": {"vllm_host_ip": "10.0.0.2"}}, **WORDS), "-e", "plan_read_nodes=false")
    text = " ".join(run.text.split())
    assert run.rc == 2 and "the plan is not complete: the interface of a, b is not known; declare vllm_interface" in text, run.text[-1500:]


def test_a_rank_left_out_is_refused(deploy, inventory):
    nodes = {name: {"vllm_host_ip": "10.0.0.%d" % at, "vllm_interface": "eth0"} for at, name in enumerate("ab", 1)}
    run = deploy(inventory(nodes, **WORDS), "-e", "plan_read_nodes=false", "--limit", "a")
    assert run.rc == 2 and "--limit leaves out b, and the engine of a needs all its ranks" in " ".join(run.text.split())


@pytest.mark.parametrize("variables, text", [
    ({"deploy_serial": 0}, "deploy_serial: 0 is not a number of replicas"),
    ({"deploy_serial": "all"}, "deploy_serial: 'all' is not a number of replicas"),
    ({"deploy_phase_limits": {"loading": 5}}, "deploy_phase_limits: 'loading' is no phase of a start"),
    ({"deploy_phase_limits": {"weights_load": "soon"}}, "deploy_phase_limits: weights_load: 'soon' is not a number of seconds"),
    ({"deploy_phase_limits": 30}, "deploy_phase_limits: 30 is not a table"),
    ({"vllm_overrides": {"no-such-flag": 1}}, "no-such-flag"),
])
def test_words_that_mean_nothing_are_refused(deploy, inventory, variables, text):
    run = deploy(inventory({"a": {"vllm_host_ip": "127.0.0.1"}}, **CPU), "-e", "plan_read_nodes=false", "-e", json.dumps(variables))
    assert run.rc == 2 and text in " ".join(run.text.split()) and "Traceback" not in run.text, run.text[-1500:]
    assert "PLAY [Switch" not in run.text and "image :" not in run.text


def test_a_node_that_does_not_answer_ends_the_deployment(deploy, inventory):
    nodes = {"a": dict(CLOSED, vllm_host_ip="10.0.0.1"), "b": dict(CLOSED, vllm_host_ip="10.0.0.2")}
    run = deploy(inventory(nodes, **dict(WORDS, vllm_image="r/x@sha256:%s" % ("0" * 64))))
    assert run.rc == 4 and "image :" not in run.text and "service :" not in run.text and "Traceback" not in run.text


@pytest.mark.parametrize("name", ["rollback", "stop"])
def test_recorded_nodes_cannot_be_rolled_back_or_stopped(deploy, inventory, name):
    run = deploy(inventory({"a": b300(1)}, **WORDS), name=name)
    assert run.rc == 2 and "a is a recorded node" in run.text and "Traceback" not in run.text
