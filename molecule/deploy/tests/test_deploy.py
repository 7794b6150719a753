# SPDX-License-Identifier: GPL-3.0-or-later
"""The story of a cluster, in order: replicas, faults, one engine over two nodes, data parallelism, rollback, stop."""

from __future__ import annotations

import json
import re
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import API_KEY, FOLDER, NODES, PRINTED, PROCESSES, ask, invocation, play, serves

testinfra_hosts = ["local://"]
HF_TOKEN = "hf_moleculetoken7d41"
TP2 = {"vllm_strategy": "multi_node_tp"}
DP2 = {"vllm_strategy": "multi_node_tp_dp"}


def both(nodes: dict[str, Any]) -> dict[str, str]:
    return {name: invocation(host) for name, host in nodes.items()}


# -- replicas: what molecule's converge deployed -------------------------------------------------------------------
def test_each_replica_serves_and_asks_for_the_key() -> None:
    assert serves("node1") and serves("node2")
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("node1", key="wrong")
    assert refused.value.code == 401


def test_the_unit_runs_the_image_by_digest_and_holds_no_secret(nodes: dict[str, Any]) -> None:
    for name, host in nodes.items():
        unit = host.file("/etc/systemd/system/vllm.service")
        assert (unit.mode, unit.user) == (0o644, "root")
        assert "@sha256:" in unit.content_string and f"--host {NODES[name]}" in unit.content_string
        assert API_KEY not in unit.content_string and HF_TOKEN not in unit.content_string
        assert host.run("systemd-analyze verify /etc/systemd/system/vllm.service").rc == 0
        assert host.service("vllm").is_enabled and host.service("vllm").is_running


def test_modes_of_the_files(nodes: dict[str, Any]) -> None:
    for host in nodes.values():
        modes = {path: host.file(path).mode for path in ("/etc/vllm/service.env", "/etc/vllm/secrets.env", "/etc/vllm/release.json")}
        assert modes == {"/etc/vllm/service.env": 0o640, "/etc/vllm/secrets.env": 0o600, "/etc/vllm/release.json": 0o644}
        assert host.file("/var/lib/inferops-vllm/releases").mode == 0o700


def test_the_running_process_has_the_planned_environment(nodes: dict[str, Any]) -> None:
    for host in nodes.values():
        pid = host.check_output("docker inspect --format '{{.State.Pid}}' vllm")
        environment = host.check_output(f"tr '\\0' '\\n' </proc/{pid}/environ").splitlines()
        assert {"HF_HUB_OFFLINE=1", "VLLM_CPU_KVCACHE_SPACE=1", "HF_HOME=/var/lib/vllm", f"VLLM_API_KEY={API_KEY}"} <= set(environment)


def test_a_changed_flag_restarts_only_what_it_must(nodes: dict[str, Any]) -> None:
    before = both(nodes)
    # Only node2 listens elsewhere, so only node2 is another service.
    done = play("deploy", "--diff", "-i", str(_host_variables("node2", vllm_listen_address="0.0.0.0")), deploy_serial=1)
    assert done.rc == 0, done.text[-4000:]
    assert done.text.count("PLAY [Switch to the new service]") == 2
    after = both(nodes)
    assert after["node1"] == before["node1"] and after["node2"] != before["node2"]
    assert "-    --host 10.203.77.12" in done.text and "+    --host 0.0.0.0" in done.text
    assert serves("node1") and serves("node2")


def _host_variables(host: str, **variables: Any) -> Path:
    path = FOLDER / f"only-{host}.json"
    path.write_text(json.dumps({"vllm_nodes": {"hosts": {host: variables}}}), encoding="utf-8")
    return path


# -- faults that are seen before anything is stopped ---------------------------------------------------------------
@pytest.fixture
def unharmed(nodes: dict[str, Any]) -> Iterator[None]:
    """After the test the same services serve as before it."""
    before = both(nodes)
    yield
    assert both(nodes) == before and serves("node1") and serves("node2")


@pytest.fixture
def full_disk(nodes: dict[str, Any]) -> Iterator[str]:
    """A folder on node1 without room for the model."""
    nodes["node1"].check_output("mkdir -p /mnt/full && mount -t tmpfs -o size=64k tmpfs /mnt/full")
    yield "/mnt/full"
    nodes["node1"].check_output("umount /mnt/full")


@pytest.fixture
def busy_port(nodes: dict[str, Any]) -> Iterator[int]:
    """A port of node1 that another program holds."""
    nodes["node1"].check_output("systemd-run --unit=squatter python3 -m http.server 8123")
    nodes["node1"].check_output("for i in 1 2 3 4 5 6 7 8 9 10; do ss -ltn | grep -q :8123 && break; sleep 0.5; done")
    yield 8123
    nodes["node1"].check_output("systemctl stop squatter")


@pytest.fixture
def half_model(nodes: dict[str, Any]) -> str:
    """A checkpoint on node2 of which a part is missing."""
    nodes["node2"].check_output("truncate --size=100000 /var/lib/vllm/half/model-00001-of-00001.safetensors")
    return "/var/lib/vllm/half"


@pytest.fixture
def firewall(nodes: dict[str, Any]) -> Iterator[None]:
    """node1 drops what comes to the master port."""
    nodes["node1"].check_output("iptables -I INPUT -p tcp --dport 29501 -j DROP")
    yield
    nodes["node1"].check_output("iptables -D INPUT -p tcp --dport 29501 -j DROP")


@pytest.mark.usefixtures("unharmed")
def test_a_wrong_digest(nodes: dict[str, Any]) -> None:
    name = nodes["node1"].ansible.get_variables()["lab_image_name"]
    done = play("deploy", vllm_image=f"{name}@sha256:{'0' * 64}")
    assert done.rc == 2 and "Traceback" not in done.text
    assert f"sha256:{'0' * 12}" in done.message and "PLAY [Switch" not in done.text


@pytest.mark.usefixtures("unharmed")
def test_a_registry_that_is_down(nodes: dict[str, Any]) -> None:
    mine = nodes["node1"].ansible.get_variables()
    registry = mine["lab_registry"].split(":")[0] + ":5999"
    done = play("deploy", vllm_image=f"{registry}/vllm/vllm-openai@sha256:{'1' * 64}", vllm_registry=registry)
    assert done.rc == 2 and "Traceback" not in done.text
    assert registry in done.message and "refused" in done.message and "PLAY [Switch" not in done.text


@pytest.mark.usefixtures("unharmed")
def test_a_full_disk(full_disk: str) -> None:
    done = play("deploy", "--limit", "node1", vllm_model=f"{full_disk}/tiny", weights_source="copy", weights_from="/var/lib/vllm/tiny")
    assert done.rc == 2 and "Traceback" not in done.text
    assert full_disk in done.message and "the weights do not fit" in done.message and "PLAY [Switch" not in done.text


@pytest.mark.usefixtures("unharmed")
def test_weights_that_are_half_there(half_model: str) -> None:
    done = play("deploy", vllm_model=half_model)
    assert done.rc == 2 and "Traceback" not in done.text
    assert "model-00001-of-00001.safetensors" in done.message and "PLAY [Switch" not in done.text


@pytest.mark.usefixtures("unharmed")
def test_a_busy_port(busy_port: int) -> None:
    done = play("deploy", vllm_port=busy_port)
    assert done.rc == 2 and "Traceback" not in done.text
    assert f"node1: port {busy_port} (api) is held by python3" in done.message and "squatter.service" in done.message


@pytest.mark.usefixtures("unharmed")
def test_a_wrong_interface() -> None:
    done = play("deploy", "-i", str(_host_variables("node2", vllm_interface="eth9")), **TP2)
    assert done.rc == 2 and "node2 has no interface eth9 with an address" in done.message and "Traceback" not in done.text


@pytest.mark.usefixtures("unharmed")
def test_a_firewall_between_the_nodes(firewall: None) -> None:
    done = play("deploy", **TP2)
    assert done.rc == 2 and "node2: does not reach node1 (10.203.77.11) on TCP port 29501: no answer in 3 s" in done.message


@pytest.mark.usefixtures("unharmed")
def test_an_engine_without_one_of_its_ranks() -> None:
    done = play("deploy", "--limit", "node1", **TP2)
    assert done.rc == 2 and "--limit leaves out node2, and the engine of node1 needs all its ranks" in done.message


@pytest.mark.usefixtures("unharmed")
def test_check_mode_says_what_would_change_and_changes_nothing(nodes: dict[str, Any]) -> None:
    listing = "find /etc/vllm /etc/systemd /var/lib/inferops-vllm -type f -printf '%p %s %T@ %m\\n' | sort"
    before = {name: host.check_output(listing) for name, host in nodes.items()}
    done = play("deploy", "--check", "--diff", **TP2)
    assert done.rc == 0, done.text[-4000:]
    assert done.changed("node2") > 0 and "+    --tensor-parallel-size 2" in done.text
    assert {name: host.check_output(listing) for name, host in nodes.items()} == before


# -- one engine over both nodes ------------------------------------------------------------------------------------
@pytest.fixture
def absent_worker(nodes: dict[str, Any]) -> Iterator[None]:
    """The worker of the next engine stays in its start for ever."""
    folder = "/etc/systemd/system/vllm.service.d"
    nodes["node2"].check_output(
        f"mkdir -p {folder} && printf '[Service]\\nExecStartPre=/bin/sh -c \"! grep -q headless /etc/systemd/system/vllm.service || exec sleep 9999\"\\n'"
        f" >{folder}/fault.conf && systemctl daemon-reload")
    yield
    nodes["node2"].check_output(f"rm -r {folder} && systemctl daemon-reload")


def test_a_worker_that_never_joins(nodes: dict[str, Any], absent_worker: None) -> None:
    before = both(nodes)
    done = play("deploy", deploy_phase_limits={"distributed_init": 20}, **TP2)
    assert done.rc == 2 and "Traceback" not in done.text
    assert "distributed_init took longer than its limit of 20 s" in done.message, done.message[-3000:]
    assert "and the previous release serves again" in done.message
    assert serves("node1") and serves("node2")
    after = both(nodes)
    assert after["node1"] != before["node1"] and after["node2"] != before["node2"]
    # The release that did not start is no release to go back to.
    for host in nodes.values():
        current = json.loads(host.file("/etc/vllm/release.json").content_string)["number"]
        assert max(int(name) for name in host.file("/var/lib/inferops-vllm/releases").listdir()) == current


def test_tensor_parallelism_over_two_nodes(nodes: dict[str, Any]) -> None:
    done = play("deploy", "--diff", **TP2)
    assert done.rc == 0, done.text[-4000:]
    assert "node2  ready after" in done.text and serves("node1")
    again = play("deploy", **TP2)
    assert again.rc == 0 and again.changed("node1") == again.changed("node2") == 0, again.text[-4000:]
    for host in nodes.values():
        pid = host.check_output("docker inspect --format '{{.State.Pid}}' vllm")
        assert "GLOO_SOCKET_IFNAME=host0" in host.check_output(f"tr '\\0' '\\n' </proc/{pid}/environ").splitlines()


def test_data_parallelism_over_two_nodes(nodes: dict[str, Any]) -> None:
    before = both(nodes)
    done = play("deploy", **DP2)
    assert done.rc == 0, done.text[-4000:]
    assert serves("node1")
    after = both(nodes)
    assert after["node1"] != before["node1"] and after["node2"] != before["node2"]


def test_rollback_brings_the_engine_before_back(nodes: dict[str, Any]) -> None:
    done = play("rollback")
    assert done.rc == 0, done.text[-4000:]
    assert serves("node1")
    assert "--node-rank 1" in nodes["node2"].file("/etc/systemd/system/vllm.service").content_string


def test_stop_ends_all_ranks(nodes: dict[str, Any]) -> None:
    done = play("stop")
    assert done.rc == 0, done.text[-4000:]
    for host in nodes.values():
        assert not host.service("vllm").is_running and host.check_output("docker ps --quiet") == ""
    assert done.changed("node1") == 1
    again = play("stop")
    assert again.rc == 0 and again.changed("node1") == again.changed("node2") == 0


# -- secrets -------------------------------------------------------------------------------------------------------
def test_no_secret_is_anywhere_but_in_its_file(nodes: dict[str, Any]) -> None:
    password = Path(nodes["node1"].ansible.get_variables()["lab_registry_password_file"]).read_text(encoding="utf-8").strip()
    secrets = [API_KEY, HF_TOKEN, password]
    assert b"ansible-playbook" in PROCESSES.read_bytes() and not any(secret.encode() in PROCESSES.read_bytes() for secret in secrets)
    for secret in secrets:
        assert secret not in PRINTED.read_text(encoding="utf-8"), secret[:6]
    for path in FOLDER.rglob("*"):
        # The scenario's own copies of what was declared are no product of a run.
        if path.is_file() and path.parent.name in ("plan", "failed", "previous", *NODES):
            assert not any(secret.encode() in path.read_bytes() for secret in secrets), path
    for name, host in nodes.items():
        seen = host.file("/run/seen-processes").content_string
        assert "docker run" in seen and not any(secret in seen for secret in secrets), name
        # Expressions that find the secrets and not themselves.
        patterns = " ".join(f"-e '{re.escape(secret[:-1])}[{secret[-1]}]'" for secret in secrets)
        found = host.run(f"grep -rlaE {patterns} --exclude-dir=overlay2 /etc /home /opt /root /run /srv /tmp /usr/local /var").stdout.split()
        # The container engine keeps the environment of its containers, for root alone.
        engine = [path for path in found if path.startswith(("/var/lib/docker/", "/var/lib/containerd/", "/run/containerd/"))]
        assert not any(host.run(f"runuser -u nobody -- test -r {path}").rc == 0 for path in engine), (name, engine)
        assert [path for path in found if path not in engine] == ["/etc/vllm/secrets.env"], (name, found)
