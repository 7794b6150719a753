# SPDX-License-Identifier: GPL-3.0-or-later
"""pd_cluster for real, on CPUs: prefill and decode on two nodes, the KV cache moved by NIXL, vllm-router in front, all by `deploy`.

Asked for with `pytest -m lab tests/unit/lab/test_disaggregated_running.py` (root; about eight minutes once root file system, image and
wheels are in the cache). Does not touch a lab that is up already. The tests follow each other on the same nodes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import costume, wheels
from tests.lab.errors import CannotRunHere
from tests.lab.image import checkpoint
from tests.lab.played import Played
from tests.unit.lab import own

KEY = "lab-api-key-of-the-pools-3310"
# More than one block of the KV cache, which is 128 tokens on CPUs; a token is a byte.
WORDS = "Ten nodes of a cluster, " * 10
SERVICES = {"node1": ("vllm.service", "vllm-router.service"), "node2": ("vllm.service",)}
INVENTORY = """\
vllm_prefill:
  hosts: {node1: {}}
vllm_decode:
  hosts: {node2: {}}
vllm_router:
  hosts:
    # A second name of a machine that has a rank already.
    front: {ansible_host: "%(first)s", vllm_host_ip: "%(first)s", vllm_interface: host0}
all:
  vars:
    vllm_hardware: cpu
    vllm_strategy: pd_cluster
    vllm_features: []
    vllm_model: /var/lib/vllm/tiny
    vllm_image: "{{ lab_image }}"
    vllm_version: "0.32.0"
    vllm_overrides: {max-model-len: 512}
    # The image has no NIXL; the folder of the weights is what its containers see of the node.
    vllm_env_overrides: {VLLM_CPU_KVCACHE_SPACE: "1", HF_HUB_OFFLINE: "1", PYTHONPATH: /var/lib/vllm/nixl}
    vllm_registry: "{{ lab_registry }}"
    vllm_registry_user: "{{ lab_registry_user }}"
    vllm_registry_password: "{{ lookup('ansible.builtin.file', lab_registry_password_file) }}"
    vllm_registry_ca_file: "{{ lab_registry_ca_file }}"
    vllm_api_key: %(key)s
    deploy_serial: 3
    plan_dir: %(folder)s/plan
    deploy_log_dir: %(folder)s/failed
"""
ROLE = """\
- hosts: front
  gather_facts: false
  roles:
    - role: inferops.vllm.service
      vars:
        service_entry: "{{ lookup('ansible.builtin.file', entry) | from_json }}"
"""
# Runs on a node: one completion, greedy; prints status and text.
ASK = r"""
import json, sys, urllib.error, urllib.request
url, key, words = sys.argv[1:4]
body = json.dumps({"model": "moonshotai/Kimi-K3", "prompt": words, "max_tokens": 12, "temperature": 0}).encode()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    answer = opener.open(urllib.request.Request(url + "/v1/completions", body, headers), timeout=60)
    print(json.dumps([answer.status, json.load(answer)["choices"][0]["text"]]))
except urllib.error.HTTPError as exc:
    print(json.dumps([exc.code, ""]))
except OSError as exc:
    print(json.dumps([0, str(exc)]))
"""

pytestmark = pytest.mark.lab


class Cluster:
    """Two nodes, and the router on the first."""

    def __init__(self, played: Played, inventory: Path) -> None:
        self.played, self.shell, self.inventory = played, played.shell, inventory
        self.first, self.second = (costume.find(played.settings, name).address for name in ("node1", "node2"))

    def playbook(self, name: str, *options: str, **variables: Any) -> tuple[int, str]:
        return self.played.playbook(name, "-i", str(self.inventory), *options, **variables)

    def deploys(self, *options: str, **variables: Any) -> str:
        rc, said = self.playbook("deploy", *options, **variables)
        assert rc == 0, said[-6000:]
        assert KEY not in said
        return said

    def ask(self, url: str = "", words: str = WORDS, key: str = KEY) -> tuple[int, str]:
        url = url or f"http://{self.first}:30000"
        status, text = json.loads(self.shell(f"python3 - {url} {key} '{words}'", ASK.encode()).split("\n")[-1])
        return status, text

    def metric(self, name: str, node: str, port: int) -> float:
        """Sum of a metric over its labels."""
        told = self.shell(
            f"python3 -c \"import urllib.request as u; print(u.build_opener(u.ProxyHandler({{}})).open('http://{node}:{port}/metrics').read().decode())\"")
        return sum(float(line.rsplit(" ", 1)[1]) for line in told.splitlines() if re.match(re.escape(name) + r"[{ ]", line))

    def started(self) -> dict[str, str]:
        """Which start of each service runs."""
        return {f"{node} {unit}": self.shell(f"systemctl show --property=InvocationID --value {unit}", node=node)
                for node, units in SERVICES.items() for unit in units}

    def router(self, name: str) -> str:
        return self.shell(f"systemctl show --property={name} --value vllm-router.service")


def changed(said: str) -> int:
    return sum(int(count) for count in re.findall(r"changed=(\d+)", said.rpartition("PLAY RECAP")[2]))


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = own.asked(request, "boots two nodes and starts two servers for minutes")
    try:
        router, nixl = wheels.fetch(settings, wheels.ROUTER), wheels.fetch(settings, wheels.NIXL, alone=True)
    except CannotRunHere as err:
        pytest.skip(str(err))
    folder = tmp_path_factory.mktemp("pools")
    checkpoint.write(folder / "tiny")
    with own.nodes(settings, 2, image=True):
        played = Played(settings, folder)
        for node in ("node1", "node2"):
            played.shell("mkdir -p /var/lib/vllm/tiny /var/lib/vllm/nixl && tar -x -C /var/lib/vllm/tiny", wheels.packed(folder / "tiny"), node)
            played.shell("mkdir -p /srv/nixl && tar -x -C /srv/nixl && cd /var/lib/vllm/nixl && for one in /srv/nixl/*.whl; do python3 -m zipfile -e $one .; "
                         "done && rm -r /srv/nixl", wheels.packed(nixl), node)
        played.shell("mkdir -p /srv/router && tar -x -C /srv/router", wheels.packed(router))
        inventory = folder / "pools.yml"
        inventory.write_text(INVENTORY % {"first": costume.find(settings, "node1").address, "key": KEY, "folder": folder})
        yield Cluster(played, inventory)


def test_a_router_that_is_not_there_is_told_before_anything_runs(cluster: Cluster) -> None:
    rc, said = cluster.playbook("deploy")
    assert rc == 2 and "/opt/vllm-router/bin/vllm-router is not on this node; build the virtual environment first" in " ".join(said.split()), said[-4000:]
    for node in ("node1", "node2"):
        assert cluster.shell("ls /etc/systemd/system/vllm* 2>/dev/null; docker ps -q", node=node) == ""


def test_a_prompt_goes_through_router_prefill_and_decode(cluster: Cluster) -> None:
    # As the unit's first line says, but that these nodes reach no index and Debian's Python lacks pip.
    cluster.shell("python3 -m venv --without-pip /opt/vllm-router && /opt/vllm-router/bin/python $(echo /srv/router/pip-*.whl)/pip install --quiet --no-index "
                  "--find-links /srv/router vllm-router")
    cluster.deploys()
    status, text = cluster.ask()
    assert status == 200 and text
    # The KV cache came from the other node, and what it says is what one node alone says.
    assert cluster.metric("vllm:prompt_tokens_total", cluster.first, 8001) >= len(WORDS)
    assert cluster.metric("vllm:nixl_bytes_transferred_sum", cluster.second, 8002) > 0
    assert cluster.ask(f"http://{cluster.second}:8002") == (200, text)
    # The pools ask for the key; the router sends its own for whoever asks it, which the plan warns of.
    assert cluster.ask(f"http://{cluster.second}:8002", key="wrong")[0] == cluster.ask(f"http://{cluster.first}:8001", key="wrong")[0] == 401
    assert cluster.ask(key="wrong") == (200, text)
    for node, port in ((cluster.first, 8001), (cluster.first, 30000), (cluster.second, 8002)):
        where = "node1" if node == cluster.first else "node2"
        assert cluster.shell(f"ss -Hltn sport = :{port} | awk '{{print $4}}'", node=where) == f"{node}:{port}"
    # What root alone reads: the file, and what the engine keeps of the container that runs. Processes have it in their environment.
    found = [place for place in cluster.played.search(KEY) if not place.startswith(("process ", "/run/docker/", "/run/containerd/"))]
    assert found == ["/etc/vllm/router-secrets.env", "/etc/vllm/secrets.env"]
    assert cluster.shell("stat -c %a /etc/vllm/router-secrets.env /etc/vllm/secrets.env") == "600\n600"


def test_a_second_deployment_changes_nothing(cluster: Cluster) -> None:
    before = cluster.started()
    assert changed(cluster.deploys()) == 0
    assert cluster.started() == before


def test_the_router_comes_back(cluster: Cluster) -> None:
    before = cluster.router("InvocationID")
    assert cluster.router("User") == "vllm-router" and cluster.router("DynamicUser") == "yes"
    cluster.shell("systemctl kill --signal=KILL vllm-router.service")
    deadline = time.monotonic() + 60
    while cluster.ask()[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(1)
    assert cluster.router("InvocationID") != before and cluster.router("NRestarts") == "1"


def test_a_pool_that_restarts_is_found_again(cluster: Cluster) -> None:
    """The router does not restart with the servers behind it."""
    before = cluster.started()
    cluster.deploys(vllm_overrides={"max-model-len": 384})
    after = cluster.started()
    assert [name for name in before if before[name] != after[name]] == ["node1 vllm.service", "node2 vllm.service"]
    deadline = time.monotonic() + 90
    while cluster.ask()[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(1)


def test_the_role_changes_the_router_alone_and_rolls_back(cluster: Cluster) -> None:
    entry = json.loads((cluster.played.folder / "plan" / "plan.json").read_text())["nodes"]["front"]
    path = cluster.played.folder / "entry.json"
    path.write_text(json.dumps({**entry, "argv": [*entry["argv"], "--log-level", "debug"]}))
    book = cluster.played.folder / "router.yml"
    book.write_text(ROLE)
    before = cluster.started()
    done = cluster.played.begin(str(book), ("-i", str(cluster.inventory)), {"entry": str(path)})
    said = done.communicate()[0]
    assert done.returncode == 0 and changed(said) == 1, said[-3000:]
    assert "--log-level debug" in cluster.router("ExecStart")
    rc, said = cluster.playbook("rollback", "--limit", "front")
    assert rc == 0, said[-3000:]
    assert "--log-level" not in cluster.router("ExecStart")
    assert cluster.ask()[0] == 200
    after = cluster.started()
    assert [name for name in before if before[name] != after[name]] == ["node1 vllm-router.service"]


def test_stop_ends_the_router_first(cluster: Cluster) -> None:
    rc, said = cluster.playbook("stop")
    assert rc == 0, said[-3000:]
    ended = {}
    for node, units in SERVICES.items():
        for unit in units:
            assert cluster.shell(f"systemctl is-active {unit} || true", node=node) == "inactive"
            ended[f"{node} {unit}"] = int(cluster.shell(f"systemctl show --property=InactiveEnterTimestampMonotonic --value {unit}", node=node))
    assert min(ended, key=lambda name: ended[name]) == "node1 vllm-router.service"
    assert cluster.ask()[0] == 0
