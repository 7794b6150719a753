# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook provision refuses, and what it leaves alone. What it installs is tried on nodes of the lab (tests/unit/lab)."""

from __future__ import annotations

import pathlib
from typing import Any, Callable

import yaml

from .conftest import ROOT


def inventory(folder: pathlib.Path, **variables: Any) -> pathlib.Path:
    """One node: this machine."""
    path = folder / "hosts.yml"
    here = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}", **variables}
    path.write_text(yaml.safe_dump({"vllm_nodes": {"hosts": {"here": here}}}), encoding="utf-8")
    return path


def test_recordings_are_refused(playbook: Callable[..., Any]) -> None:
    run = playbook("inferops.vllm.provision", ROOT / "inventories/demo")
    assert run.rc == 2 and "only a live node can be provisioned" in run.text
    assert "Bring the nodes to it" not in run.text, "one recording stops the play before anything is touched"


def test_an_inventory_without_nodes_is_refused(playbook: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {x: {ansible_connection: local}}}\n", encoding="utf-8")
    run = playbook("inferops.vllm.provision", path)
    assert run.rc == 2 and "no host in vllm_nodes" in run.text


def test_a_node_without_gpus_gets_no_driver(playbook: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    run = playbook("inferops.vllm.provision", inventory(tmp_path, vllm_hardware="cpu"), "--check", "--tags", "driver,fabric")
    assert run.rc == 0 and "no driver (hardware cpu has no GPU)" in run.text, run.text
    assert "changed=0" in run.text and "Install driver branch" not in run.text


def test_what_does_not_go_together_is_refused_before_anything_is_done(playbook: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    run = playbook("inferops.vllm.provision", inventory(tmp_path, vllm_hardware="b300", driver_flavour="proprietary"), "--check", "--tags", "driver")
    assert run.rc == 2 and "runs with the open kernel modules only" in run.text, run.text
    assert "Bring the nodes to it" not in run.text


def test_unknown_words_are_refused(playbook: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    run = playbook("inferops.vllm.provision", inventory(tmp_path, vllm_hardware="cpu", driver_pin="always"), "--check", "--tags", "driver")
    assert run.rc == 2 and "driver_pin" in run.text and "always" in run.text, run.text
