# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles service and interconnect as a user calls them: in check mode, which works where nothing is installed."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict

import pytest

from tests.unit.plan.cluster import cluster, sound

SECRET = "s3cret-value-of-a-key"
IMAGE = "registry.example/vllm@sha256:" + "a" * 64
HOST = {"ansible_connection": "local"}


def entry(**words: Any) -> Dict[str, Any]:
    return sound(cluster(1), hardware="b300", strategy="single_node_tp", **{"image": IMAGE, **words})["nodes"]["n1"]


@pytest.fixture
def role(playbook, inventory, tmp_path):
    """Callable ``role(name, tasks_from="main", **variables) -> Run``, with --check --diff."""

    def run(name: str, tasks_from: str = "main", **variables: Any):
        play = tmp_path / "play.yml"
        play.write_text(json.dumps([{"hosts": "vllm_nodes", "gather_facts": False, "tasks": [
            {"ansible.builtin.include_role": {"name": "inferops.vllm.%s" % name, "tasks_from": tasks_from}}]}]))
        return playbook(str(play), inventory({"a": HOST}, **variables), "--check", "--diff")

    return run


def untouched() -> bool:
    return not pathlib.Path("/etc/vllm").exists() and not pathlib.Path("/var/lib/inferops-vllm").exists()


@pytest.fixture(autouse=True)
def clean_machine():
    if not untouched():
        pytest.skip("this machine has files of a service")
    yield
    assert untouched()


def test_a_look_shows_all_files_and_no_secret(role):
    run = role("service", vllm_plan_entry=entry(), vllm_api_key=SECRET)
    assert run.rc == 0, run.text
    for shown in ("+++ after: /etc/vllm/service.env", "+++ after: /etc/systemd/system/vllm.service", "+VLLM_API_KEY=<hidden, changed>", "changed=1"):
        assert shown in run.text
    assert SECRET not in run.text


def test_secrets_of_a_file_are_not_shown_either(role, tmp_path):
    (tmp_path / "secrets").write_text("VLLM_API_KEY=%s\nHF_TOKEN=%s-2\n" % (SECRET, SECRET))
    run = role("service", vllm_plan_entry=entry(), vllm_secrets_file=str(tmp_path / "secrets"))
    assert run.rc == 0 and "+HF_TOKEN=<hidden, changed>" in run.text and SECRET not in run.text
    (tmp_path / "secrets").write_text("%s\n" % SECRET)
    run = role("service", vllm_plan_entry=entry(), vllm_secrets_file=str(tmp_path / "secrets"))
    assert run.rc == 2 and "line 1 is not NAME=value" in run.text and SECRET not in run.text and "Traceback" not in run.text


@pytest.mark.parametrize("variables,why", [
    ({"service_state": "running"}, "service_state"), ({"service_keep": "many"}, "service_keep"), ({"vllm_plan_entry": {}}, "not a node's entry"),
    ({"vllm_plan_entry": {"role": "head"}}, "it lacks rank"), ({"service_image": "vllm:latest"}, "named by a tag"),
])
def test_what_means_nothing_is_refused_by_name(role, variables, why):
    run = role("service", **{"vllm_plan_entry": entry(), **variables})
    assert run.rc == 2 and why in run.text and "Traceback" not in run.text


def test_staged_and_stop_work_where_nothing_is(role):
    run = role("service", vllm_plan_entry=entry(), service_state="staged")
    assert run.rc == 0 and "changed=1" in run.text
    run = role("service", "stop")
    assert run.rc == 0 and "changed=0" in run.text
    run = role("service", "rollback")
    assert run.rc == 2 and "no earlier release of vllm is kept on this node" in run.text


def test_interconnect_writes_what_it_is_given_and_no_secret(role):
    run = role("interconnect", interconnect_env={"VLLM_HOST_IP": "10.0.0.1", "NCCL_IB_HCA": "=mlx5_0", "NCCL_CUMEM_ENABLE": True})
    assert run.rc == 0 and "+NCCL_CUMEM_ENABLE=1\n+NCCL_IB_HCA==mlx5_0\n+VLLM_HOST_IP=10.0.0.1" in run.text
    run = role("interconnect", vllm_plan_entry=entry())
    assert run.rc == 0 and "+HF_HOME=/var/lib/vllm" in run.text
    run = role("interconnect", interconnect_env={"HF_TOKEN": "x"})
    assert run.rc == 2 and "HF_TOKEN is a secret" in run.text
    run = role("interconnect", interconnect_reader="windows")
    assert run.rc == 2 and "interconnect_reader" in run.text
