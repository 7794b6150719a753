# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container node promises, asked of each one."""

from __future__ import annotations

import os
from typing import Any

INVENTORY = os.environ["LAB_INVENTORY"]
testinfra_hosts = [f"ansible://vllm_nodes?ansible_inventory={INVENTORY}"]


def variables(host: Any) -> dict[str, Any]:
    found: dict[str, Any] = host.ansible.get_variables()
    return found


def test_systemd_is_the_first_process_and_nothing_failed(host: Any) -> None:
    assert host.check_output("cat /proc/1/comm") == "systemd"
    state = host.run("systemctl is-system-running --wait")
    assert state.stdout.strip() == "running", host.check_output("systemctl --failed --no-legend")


def test_the_node_has_its_own_name_and_address(host: Any) -> None:
    mine = variables(host)
    assert host.check_output("hostname") == mine["inventory_hostname"]
    interface = host.interface(mine["vllm_interface"])
    assert mine["vllm_host_ip"] in interface.addresses


def test_nodes_reach_each_other_by_name(host: Any) -> None:
    for name in ("node1", "node2"):
        assert host.run(f"ping -c 1 -W 2 {name}").rc == 0
        assert not host.check_output(f"getent hosts {name}").startswith("127.")


def test_python_and_ssh_are_ready_for_ansible(host: Any) -> None:
    assert host.service("ssh").is_running
    assert host.run("/usr/bin/python3 -c 'import apt, ssl'").rc == 0


def test_docker_runs_with_its_own_storage(host: Any) -> None:
    assert host.service("docker").is_running
    assert host.check_output("docker info --format '{{.Driver}}'") == "overlay2"


def test_a_bridged_container_runs(host: Any) -> None:
    image = variables(host)["lab_image"]
    said = host.check_output(f"docker run --rm --entrypoint hostname {image} -I")
    assert said.startswith("172.17.")


def test_a_host_networked_container_sees_the_node_s_address(host: Any) -> None:
    mine = variables(host)
    said = host.check_output(f"docker run --rm --network host --ipc host --entrypoint hostname {mine['lab_image']} -I")
    assert mine["vllm_host_ip"] in said.split()


def test_the_image_was_pulled_by_its_digest(host: Any) -> None:
    image = variables(host)["lab_image"]
    assert "@sha256:" in image
    digests = host.check_output(f"docker image inspect --format '{{{{.RepoDigests}}}}' {image}")
    assert image in digests


def test_the_registry_refuses_a_client_without_the_password(host: Any) -> None:
    mine = variables(host)
    answer = host.check_output(
        "curl --silent --output /dev/null --write-out '%{http_code}' --cacert "
        f"/etc/docker/certs.d/{mine['lab_registry']}/ca.crt https://{mine['lab_registry']}/v2/"
    )
    assert answer == "401"


def test_the_registry_is_not_trusted_without_its_authority(host: Any) -> None:
    registry = variables(host)["lab_registry"]
    assert host.run(f"curl --silent https://{registry}/v2/").rc == 60


def test_the_image_holds_vllm_and_names_its_cuda(host: Any) -> None:
    image = variables(host)["lab_image"]
    inspect = "docker image inspect --format"
    assert host.check_output(f"{inspect} '{{{{.Config.Entrypoint}}}}' {image}") == "[vllm serve]"
    label = '{{ index .Config.Labels "com.nvidia.cuda.version" }}'
    assert host.check_output(f"{inspect} '{label}' {image}").startswith("13.")
    version = host.check_output(
        f"docker run --rm --entrypoint python3 {image} -c 'import importlib.metadata as m; print(m.version(\"vllm\"))'"
    )
    assert version == "0.32.0"


def test_the_gpu_flag_gives_containers_an_nvidia_smi(host: Any) -> None:
    image = variables(host)["lab_image"]
    with_flag = host.run(f"docker run --rm --gpus all --entrypoint nvidia-smi {image} -L")
    assert with_flag.stdout.startswith("GPU 0:")
    assert host.run(f"docker run --rm --entrypoint nvidia-smi {image} -L").rc != 0
