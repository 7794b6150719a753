# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.lab import container, gpu_hook, inventory, registry, ssh
from tests.lab.settings import Settings

SETTINGS = Settings.from_environment({"HOME": "/home/a"})
NODES = [SETTINGS.container_node(1), SETTINGS.container_node(2)]


def test_the_inventory_reaches_every_node_and_holds_no_secret() -> None:
    text = inventory.text(SETTINGS, NODES, "sha256:" + "b" * 64)
    read = yaml.safe_load(text)["all"]
    hosts = read["children"]["vllm_nodes"]["hosts"]
    assert list(hosts) == ["node1", "node2"]
    assert hosts["node2"]["vllm_host_ip"] == "10.203.77.12"
    assert hosts["node1"]["vllm_interface"] == "host0"
    assert read["vars"]["lab_image"].startswith("10.203.77.1:5443/vllm/vllm-openai@sha256:bbb")
    assert "lab_registry_password_file" in read["vars"]
    assert not [name for name in read["vars"] if name.endswith("password")]


def test_without_an_image_the_inventory_names_none() -> None:
    assert "lab_image" not in yaml.safe_load(inventory.text(SETTINGS, NODES, None))["all"]["vars"]


def test_ssh_config_has_each_node_by_name() -> None:
    text = ssh.config_text(SETTINGS, NODES)
    assert "Host node1\n  HostName 10.203.77.11\n" in text
    assert text.count("Host *") == 1
    assert "StrictHostKeyChecking yes" in text


def test_every_node_knows_the_others() -> None:
    lines = container.hosts_text(NODES).splitlines()
    assert "10.203.77.11 node1" in lines
    assert "10.203.77.12 node2" in lines
    # A node's own name must not be a loopback address: engines would tell others to call there.
    assert not [line for line in lines if line.startswith("127.") and "node" in line]


def test_nspawn_gets_bridge_engine_folder_and_capabilities() -> None:
    argv = container.nspawn_argv(SETTINGS, NODES[0])
    assert "--network-bridge=iolab0" in argv
    assert "--capability=all" in argv
    assert any(word.endswith("node1/docker:/var/lib/docker") for word in argv)


def test_the_registry_asks_for_tls_and_a_password() -> None:
    read = json.loads(registry.config_text(SETTINGS))
    assert read["http"]["addr"] == "10.203.77.1:5443"
    assert set(read["http"]["tls"]) == {"certificate", "key"}
    assert "htpasswd" in read["auth"]


@pytest.mark.parametrize(
    ("visible", "injected"), [("all", True), ("0,1", True), ("void", False), (None, False)]
)
def test_the_gpu_hook_gives_nvidia_smi_to_containers_that_ask(
    tmp_path: Path, visible: str | None, injected: bool
) -> None:
    node, bundle = tmp_path / "node", tmp_path / "bundle"
    gpu_hook.install(node)
    (bundle / "rootfs").mkdir(parents=True)
    env = ["PATH=/bin", *([f"NVIDIA_VISIBLE_DEVICES={visible}"] if visible else [])]
    config = {"process": {"env": env}, "root": {"path": "rootfs"}}
    (bundle / "config.json").write_text(json.dumps(config))
    hook = tmp_path / "hook.py"
    hook.write_text(gpu_hook.HOOK_TEXT.replace('"/usr/local', f'"{node}/usr/local'))
    subprocess.run(
        [sys.executable, str(hook), "prestart"],
        input=json.dumps({"bundle": str(bundle), "id": "x", "pid": 1}),
        text=True,
        check=True,
    )
    target = bundle / "rootfs/usr/bin/nvidia-smi"
    assert target.exists() is injected
    if injected:
        assert os.access(target, os.X_OK)
        said = subprocess.run([str(target), "-L"], capture_output=True, text=True, check=True)
        assert said.stdout.startswith("GPU 0: Lab stand-in")
