# SPDX-License-Identifier: GPL-3.0-or-later
"""Container engine and toolkit: what is missing by distribution, how daemon.json is merged, when Docker is restarted, CDI.

Lists of packages of systems other than Debian 12 are tested here only: not run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.packages.data import FAMILIES
from ansible_collections.inferops.vllm.plugins.module_utils.packages.model import Ran
from ansible_collections.inferops.vllm.plugins.module_utils.runtime import cdi, daemon, data, ensure
from ansible_collections.inferops.vllm.plugins.module_utils.runtime.ensure import RuntimeProblem, System, Wanted

LOG = {"max-size": "100m", "max-file": "5"}
DRIVER = "580.95.05"
RELEASES = {
    "debian12": ("debian", "12"), "debian13": ("debian", "13"), "ubuntu22.04": ("ubuntu", "22.04"), "ubuntu24.04": ("ubuntu", "24.04"),
    "rhel9": ("rocky", "9.6"), "rhel10": ("rhel", "10.0"), "sles15": ("sles", "15.7"),
}


def spec(driver: str) -> str:
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so." + driver
    return 'cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: "0"\n- name: all\ncontainerEdits:\n  mounts:\n  - hostPath: %s\n' % library


class Node:
    """A node whose commands are answered from a table."""

    def __init__(self, root: Path, system: str = "debian12") -> None:
        self.root, self.calls = root, []
        self.packages = {"docker.io": "20.10.24"}
        self.info: dict[str, Any] = {"ServerVersion": "27.5.1", "Runtimes": {"runc": {}, "nvidia": {}}, "CDISpecDirs": ["/etc/cdi"]}
        self.containers, self.active, self.enabled = "", "active", "enabled"
        self.fails: dict[str, int] = {}
        self.refresh, self.refreshed, self.generated = "not-found", "", DRIVER
        self.podman = "5.4.2"
        self.users: list[dict[str, Any]] = []
        os_id, version = RELEASES[system]
        self.put("/etc/os-release", 'ID="%s"\nVERSION_ID="%s"\n' % (os_id, version))

    def put(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def text(self, path: str) -> str:
        target = self.root / path.lstrip("/")
        return target.read_text() if target.exists() else ""

    def gpu(self, driver: str = DRIVER) -> None:
        self.put("/sys/bus/pci/devices/0000:1b:00.0/vendor", "0x10de\n")
        self.put("/sys/bus/pci/devices/0000:1b:00.0/class", "0x030200\n")
        self.packages.update(dict.fromkeys(data.TOOLKIT_PACKAGES, "1.18.0-1"))
        if driver:
            self.put("/sys/module/nvidia/version", driver + "\n")

    def answer(self, argv: Sequence[str], _limit: int) -> Ran:
        words = " ".join(argv)
        self.calls.append(words)
        for start, code in self.fails.items():
            if words.startswith(start) and code:
                self.fails[start] -= 1
                return Ran(1, "", "it failed")
        if argv[0] in ("dpkg-query", "rpm"):
            return Ran(0, "".join("%s\t%s\tinstalled\n" % one for one in self.packages.items() if one[0] in argv))
        if words.startswith("docker info"):
            return Ran(0, json.dumps(self.info))
        if words.startswith("docker ps"):
            return Ran(0, self.containers)
        if "ActiveState" in words:
            # As the manager saw it at its last reload, which never comes.
            return Ran(0, "ActiveState=%s\nUnitFileState=disabled\n" % self.active)
        if words.startswith("systemctl is-enabled"):
            return Ran(0 if self.enabled == "enabled" else 1, self.enabled + "\n")
        if words.endswith("systemctl enable docker.service"):
            self.enabled = "enabled"
        if words == "systemctl start docker.service":
            self.active = "active"
        if "LoadState" in words:
            return Ran(0, "LoadState=%s\n" % self.refresh)
        if words.startswith("systemctl restart nvidia-cdi-refresh") and self.refreshed:
            self.put("/var/run/cdi/nvidia.yaml", spec(self.refreshed))
        if words.startswith("nvidia-ctk cdi generate"):
            self.put("/etc/cdi/nvidia.yaml", spec(self.generated))
        return Ran(0, self.podman if argv[0] == "podman" else "MainPID=0\n")

    def run(self, dry: bool = False, install: bool = True, **words: Any) -> dict[str, Any]:
        return ensure.run(Wanted(**{"log": LOG, **words}), System(self.answer, str(self.root), lambda: self.users), dry, install)

    def called(self, start: str) -> bool:
        return any(words.startswith(start) for words in self.calls)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# -- packages ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("system", "docker", "podman"), [
    ("debian12", ["docker.io"], ["podman", "crun"]), ("debian13", ["docker.io", "docker-cli"], ["podman", "crun"]), ("ubuntu22.04", ["docker.io"], ["podman"]),
    ("ubuntu24.04", ["docker.io"], ["podman", "crun"]), ("rhel9", ["docker-ce", "docker-ce-cli", "containerd.io"], ["podman"]),
    ("rhel10", ["docker-ce", "docker-ce-cli", "containerd.io"], ["podman"]), ("sles15", ["docker"], ["podman"]),
])
def test_packages_by_distribution(tmp_path: Path, system: str, docker: list[str], podman: list[str]) -> None:
    toolkit = list(data.TOOLKIT_PACKAGES)
    node = Node(tmp_path, system)
    node.packages = {}
    assert node.run(gpus="nvidia")["packages"] == docker + toolkit
    assert node.run(gpus="nvidia", engine="podman")["packages"] == podman + toolkit
    # A node without GPUs gets no toolkit.
    assert node.run(gpus="auto")["packages"] == docker and node.run(gpus="none")["packages"] == docker
    assert not node.called("systemctl") and not node.text(daemon.PATH)
    assert data.PACKAGES[system].source and FAMILIES[system]
    pinned = node.run(gpus="nvidia", toolkit_version="1.18.0")["packages"][-1]
    assert pinned == "libnvidia-container1%s1.18.0-1" % ("-" if FAMILIES[system].manager == "dnf" else "=")


@pytest.mark.parametrize("dry", [True, False])
def test_no_package_is_installed_under_a_container_with_gpus(node: Node, dry: bool) -> None:
    node.gpu()
    node.put("/etc/cdi/nvidia.yaml", spec(DRIVER))
    node.users = [{"pid": 7, "comm": "VLLM::Worker", "container": "4f0c1d2e3a4b", "unit": "vllm.service"}]
    # Nothing to install: nothing reloads systemd.
    assert node.run(dry=dry)["packages"] == []
    with pytest.raises(RuntimeProblem, match=r"libnvidia-container1=1\.19\.0-1 would be installed.*takes the GPUs from VLLM::Worker.*4f0c1d2e3a4b"):
        node.run(dry=dry, toolkit_version="1.19.0")
    # The driver's own services, and a process outside of containers, lose nothing by a reload.
    node.users = [{"pid": 3, "comm": "nvidia-persistenced", "unit": "nvidia-persistenced.service"}, {"pid": 8, "comm": "python3"}]
    assert len(node.run(dry=dry, toolkit_version="1.19.0")["packages"]) == 4


def test_every_distribution_of_the_driver_is_known() -> None:
    assert set(data.PACKAGES) == set(FAMILIES)


def test_what_is_installed_in_either_way_will_do(node: Node) -> None:
    node.packages = dict.fromkeys(("docker-ce", "docker-ce-cli", "containerd.io"), "27")
    assert node.run()["packages"] == []
    del node.packages["docker-ce-cli"]
    assert node.run()["packages"] == ["docker-ce-cli"]


def test_the_toolkit_of_another_version_is_named(node: Node) -> None:
    node.gpu()
    assert node.run(toolkit_version="1.18.0", dry=True)["packages"] == []
    node.packages["libnvidia-container1"] = "1.17.8-1"
    assert node.run(toolkit_version="1.18.0", dry=True)["packages"] == ["libnvidia-container1=1.18.0-1"]


def test_an_unknown_system_is_refused_unless_nothing_is_installed(node: Node) -> None:
    node.put("/etc/os-release", "ID=arch\n")
    with pytest.raises(RuntimeProblem, match="arch  is none of the systems"):
        node.run()
    assert node.run(install=False)["packages"] == []


def test_only_display_controllers_of_nvidia_are_gpus(node: Node) -> None:
    node.put("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    node.put("/sys/bus/pci/devices/0000:01:00.0/class", "0x020700\n")
    assert node.run()["toolkit"] is False
    node.gpu()
    assert node.run()["toolkit"] is True


# -- daemon.json ---------------------------------------------------------------------------------------
def merged(text: str, toolkit: bool = True, docker: str = "27.5.1", flags: Sequence[str] = (), swarm: bool = False) -> daemon.Merged:
    return daemon.merge(text, docker, toolkit, LOG, flags, swarm)


def test_an_empty_file_gets_all_of_ours() -> None:
    made = merged("")
    assert json.loads(made.text) == {
        "live-restore": True, "log-opts": LOG, "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}, "features": {"cdi": True}}
    assert made.restart == ["log-opts.max-file", "log-opts.max-size"]
    assert not merged(made.text).changed


def test_what_is_there_stays() -> None:
    own = {
        "live-restore": False, "log-driver": "journald", "data-root": "/data", "exec-opts": ["a"], "runtimes": {"nvidia": {"path": "/opt/x"}, "other": {}},
        "features": {"cdi": False, "buildkit": True},
    }
    made = merged(json.dumps(own))
    assert not made.changed and made.text == json.dumps(own)
    assert any("live-restore: false" in note for note in made.notes) and any("features.cdi: false" in note for note in made.notes)


def test_ours_joins_what_is_there() -> None:
    made = merged(json.dumps({"log-opts": {"max-size": "1g", "tag": "x"}, "runtimes": {"other": {"path": "y"}}}))
    found = json.loads(made.text)
    assert found["log-opts"] == {"max-size": "1g", "tag": "x", "max-file": "5"} and set(found["runtimes"]) == {"other", "nvidia"}


def test_older_docker_gets_no_cdi_and_a_node_without_gpus_no_runtime() -> None:
    assert "features" not in json.loads(merged("", docker="20.10.24").text)
    assert set(json.loads(merged("", toolkit=False).text)) == {"live-restore", "log-opts"}


def test_flags_of_the_daemon_are_not_repeated() -> None:
    made = merged("", flags=["/usr/bin/dockerd", "--live-restore", "--log-opt", "max-size=1g", "--add-runtime=x=y", "--feature=a"])
    assert not made.changed and made.text == "" and len(made.notes) == 5


def test_a_swarm_gets_no_live_restore() -> None:
    assert "live-restore" not in json.loads(merged("", swarm=True).text)


@pytest.mark.parametrize("text", ["{", "[]", "null1", '"x"'])
def test_a_file_that_is_no_document_is_left_alone(node: Node, text: str) -> None:
    node.put(daemon.PATH, text)
    with pytest.raises(RuntimeProblem, match="is no JSON"):
        node.run()
    assert node.text(daemon.PATH) == text and not node.called("systemctl")


def test_a_key_of_another_kind_is_left_alone() -> None:
    made = merged('{"runtimes": [], "log-opts": 3}')
    assert json.loads(made.text)["runtimes"] == [] and any("runtimes" in note for note in made.notes)


# -- restarts --------------------------------------------------------------------------------------------
def test_docker_is_configured_and_the_second_run_does_nothing(node: Node) -> None:
    told = node.run(dry=True)
    assert told["changed"] and not node.text(daemon.PATH) and not node.called("systemctl re")
    made = node.run()
    assert made["changed"] and made["restart"] == "" and "restarted docker.service" in made["steps"][-1]
    node.calls.clear()
    again = node.run()
    assert not again["changed"] and not node.called("systemctl re")


def test_docker_is_not_restarted_under_containers(node: Node) -> None:
    node.containers = "vllm\n"
    assert "would end the foreground of vllm" in node.run(dry=True)["restart"]
    made = node.run()
    assert made["changed"] and "would end the foreground of vllm" in made["restart"]
    assert node.called("systemctl reload docker.service") and not node.called("systemctl restart")
    again = node.run()
    assert not again["changed"] and "log-opts.max-size" in again["restart"]
    assert node.run(restart_allowed=True)["steps"] == ["restarted docker.service for log-opts.max-file, log-opts.max-size"]
    assert not node.run()["changed"]


def test_what_a_reload_did_not_bring_asks_for_a_restart(node: Node) -> None:
    node.gpu()
    node.put("/etc/cdi/nvidia.yaml", spec(DRIVER))
    node.put(daemon.PATH, merged("").text)
    node.info["Runtimes"] = {"runc": {}}
    node.containers = "vllm"
    assert "runtimes.nvidia" in node.run()["restart"]
    # It waits for the restart from now on, and no run after it changes anything.
    again = node.run()
    assert "runtimes.nvidia" in again["restart"] and not again["changed"]


def test_docker_is_not_restarted_when_its_containers_could_not_be_read(node: Node) -> None:
    node.containers = "vllm"
    for dry in (True, False):
        node.fails["docker ps"] = 1
        with pytest.raises(RuntimeProblem, match="did not tell which containers run"):
            node.run(dry=dry)
    assert not node.called("systemctl restart")
    # What was written waits for the restart, and comes with the next run.
    node.containers = ""
    assert node.run()["steps"] == ["restarted docker.service for log-opts.max-file, log-opts.max-size"]


def test_a_file_that_docker_refuses_is_taken_back(node: Node) -> None:
    node.put(daemon.PATH, '{"debug": true}')
    node.fails["systemctl restart docker"] = 1
    with pytest.raises(RuntimeProblem, match="was taken back, and docker runs again"):
        node.run()
    assert node.text(daemon.PATH) == '{"debug": true}'
    node.fails = {"systemctl reload docker": 1}
    with pytest.raises(RuntimeProblem, match="refused to read"):
        node.run()
    assert node.text(daemon.PATH) == '{"debug": true}'


def test_a_daemon_that_is_stopped_is_started_and_one_that_is_dead_is_said(node: Node) -> None:
    node.active, node.enabled = "inactive", "disabled"
    node.containers, answers = "vllm", dict(node.info)
    assert node.run(dry=True)["steps"][:2] == ["would enable docker.service", "would start docker.service"]
    assert node.run()["steps"][:2] == ["enabled docker.service", "started docker.service"]
    # Past systemd: a reload would take the GPUs from running containers.
    assert node.called("env SYSTEMD_OFFLINE=1 systemctl enable") and not node.called("systemctl enable")
    assert not node.run()["changed"]
    node.active = "inactive"
    node.info, node.fails = {}, {"docker ps": 1}
    assert node.run(dry=True)["steps"] == ["would start docker.service"]
    node.info, node.fails = answers, {}
    node.info = {}
    with pytest.raises(RuntimeProblem, match="does not answer"):
        node.run()
    node.active = "inactive"
    node.fails["systemctl start"] = 1
    with pytest.raises(RuntimeProblem, match=r"systemctl start docker\.service failed"):
        node.run()


# -- CDI ---------------------------------------------------------------------------------------------------
def test_a_specification_is_made_and_proven(node: Node) -> None:
    node.gpu()
    assert "would refresh the CDI specification for driver " + DRIVER in node.run(dry=True)["steps"][-1]
    made = node.run()
    assert made["driver"] == DRIVER and "refreshed the CDI specification" in made["steps"][-1] and node.text("/etc/cdi/nvidia.yaml")
    node.calls.clear()
    assert not node.run()["changed"] and not node.called("nvidia-ctk")


def test_the_refresh_unit_is_used_and_a_stale_file_beside_it_goes(node: Node) -> None:
    node.gpu()
    node.refresh, node.refreshed = "loaded", DRIVER
    node.put("/etc/cdi/nvidia.yaml", spec("575.57.08"))
    made = node.run()
    assert "/etc/cdi/nvidia.yaml named 575.57.08" in made["steps"][-1]
    assert not node.text("/etc/cdi/nvidia.yaml") and not node.called("nvidia-ctk") and not node.run()["changed"]


def test_a_unit_that_did_nothing_is_helped(node: Node) -> None:
    node.gpu()
    node.refresh = "loaded"
    node.run()
    assert node.called("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")


def test_a_specification_that_still_names_another_driver_fails(node: Node) -> None:
    node.gpu()
    node.generated = "575.57.08"
    with pytest.raises(RuntimeProblem, match="still does not name the running driver"):
        node.run()
    node.fails["nvidia-ctk"] = 1
    with pytest.raises(RuntimeProblem, match="nvidia-ctk cdi generate failed"):
        node.run()


def test_without_a_loaded_driver_nothing_is_made(node: Node) -> None:
    node.gpu(driver="")
    assert any("not loaded" in note for note in node.run()["notes"]) and not node.called("nvidia-ctk")


def test_other_vendors_specifications_are_none_of_ours() -> None:
    verdict = cdi.judge({"/etc/cdi/amd.yaml": "kind: amd.com/gpu\n", "/etc/cdi/n.yaml": spec(DRIVER)}, DRIVER)
    assert verdict.sound and verdict.devices == ["0", "all"]
    assert not cdi.judge({}, DRIVER).sound
    assert cdi.judge({"a": spec("575.57.08"), "b": spec(DRIVER)}, DRIVER).stale == {"a": ["575.57.08"]}


# -- podman --------------------------------------------------------------------------------------------------
def test_podman_needs_no_daemon(node: Node) -> None:
    node.packages = {"podman": "5", "crun": "1"}
    made = node.run(engine="podman")
    assert not made["changed"] and not made["notes"] and not node.text(daemon.PATH)
    node.podman = "4.3.1"
    assert "has no Quadlet" in node.run(engine="podman")["notes"][0]
    node.fails["podman"] = 1
    with pytest.raises(RuntimeProblem, match="podman does not answer"):
        node.run(engine="podman")


@given(st.text(max_size=200) | st.recursive(st.none() | st.booleans() | st.text(max_size=4), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["runtimes", "nvidia", "log-opts", "log-driver", "features", "cdi", "live-restore", "max-size"]), inner), max_leaves=10).map(json.dumps))
def test_any_daemon_json(text: str) -> None:
    document, problem = daemon.parse(text)
    if problem:
        return
    made = merged(text)
    assert not merged(made.text).changed
    after = json.loads(made.text) if made.text.strip() else {}
    for key, value in document.items():
        assert after[key] == value or (isinstance(value, dict) and value.items() <= after[key].items())


@given(st.text(max_size=300), st.text(max_size=20))
def test_any_specification(text: str, driver: str) -> None:
    assert isinstance(cdi.judge({"a": text}, driver), cdi.Verdict) and isinstance(cdi.driver_version(text, text), str)
