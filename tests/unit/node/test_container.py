# SPDX-License-Identifier: GPL-3.0-or-later
"""Section container of the facts: engines, toolkit, CDI specifications, image, and the probe with GPUs."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import container
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Ran
from tests.costume import Spec, Wardrobe, part_host

IMAGE = part_host.IMAGE
DOCKER_INSPECT = container.inspect_command("docker", IMAGE)
PODMAN_INSPECT = container.inspect_command("podman", IMAGE)
DENIED = "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock"
CLIENT_ONLY = json.dumps({"Client": {"Version": "28.2.2", "ApiVersion": "1.50"}, "Server": None})


def dressed(faults: Iterable[str] = (), change: Optional[Callable[[Wardrobe], Any]] = None, **options: Any) -> Dict[str, Any]:
    wardrobe = Wardrobe()
    part_host.dress(Spec("n1", "b300", 1, frozenset(faults)), wardrobe)
    if change:
        change(wardrobe)
    reader = MemoryReader(wardrobe.files, wardrobe.links, wardrobe.commands, wardrobe.probes, wardrobe.folders)
    return container.collect(reader, Options(**{"image": IMAGE, **options}))


def facts_of(
    commands: Optional[Dict[Tuple[str, ...], Any]] = None, files: Optional[Dict[str, Any]] = None, **options: Any,
) -> Dict[str, Any]:
    return container.collect(MemoryReader(files, {}, commands), Options(**options))


# -- a dressed node and its faults -------------------------------------------------------------------
def test_a_healthy_node() -> None:
    facts = dressed()
    assert facts["docker"]["version"] == part_host.DOCKER and facts["docker"]["cdi"] is True and "nvidia" in facts["docker"]["runtimes"]
    assert facts["toolkit"] == {"version": part_host.TOOLKIT, "ctk": True, "hook": True, "configured": True, "mode": "auto"}
    assert facts["cdi"] == [{
        "path": "/var/run/cdi/nvidia.yaml", "kind": "nvidia.com/gpu", "devices": [*"01234567", "all"], "versions": ["580.95.05"]}]
    assert facts["image"]["digests"] == ["vllm/vllm-openai@" + part_host.digest(Spec("n1"))]
    assert (facts["image"]["cuda"], facts["image"]["vllm"], facts["image"]["nccl"]) == ("13.0.2", part_host.VLLM, part_host.NCCL)
    assert "maintainer" not in facts["image"]["labels"]


def test_drift_shows_in_digest_and_id() -> None:
    plain, drifted = dressed()["image"], dressed(["image_drift"])["image"]
    assert plain["digests"] != drifted["digests"] and plain["id"] != drifted["id"] and plain["name"] == drifted["name"]


def test_a_stale_specification_names_another_driver() -> None:
    assert dressed(["stale_cdi"])["cdi"][0]["versions"] == ["575.57.08"]
    assert dressed(["driver_r575"])["cdi"][0]["versions"] == ["575.57.08"]
    assert dressed(["driver_r575", "stale_cdi"])["cdi"][0]["versions"] == ["570.172.08"]


def test_a_node_without_gpus_has_an_engine_and_nothing_of_nvidia() -> None:
    facts = dressed(["no_gpu"])
    assert facts["docker"]["running"] is True and facts["docker"]["runtimes"] == ["io.containerd.runc.v2", "runc"]
    assert facts["toolkit"] == {"version": None, "ctk": False, "hook": False, "configured": False, "mode": None}
    assert facts["cdi"] == [] and facts["image"] == {"name": IMAGE, "present": False, "digests": []} and facts["unknown"] == {}


# -- engines -----------------------------------------------------------------------------------------
def test_no_engine_is_absent_and_the_image_then_unknown() -> None:
    facts = facts_of(image=IMAGE)
    assert facts["docker"] is None and facts["podman"] is None
    assert facts["unknown"] == {"image": "neither docker nor podman is installed"}
    assert facts_of()["unknown"] == {}


def test_a_socket_that_may_not_be_used_is_unknown_and_never_absent() -> None:
    refused = Ran(1, CLIENT_ONLY + "\n", DENIED)
    empty = Ran(1, "[]", DENIED)
    facts = facts_of({container.DOCKER_VERSION: refused, container.DOCKER_INFO: empty, DOCKER_INSPECT: empty}, image=IMAGE)
    assert facts["docker"] is None and facts["image"] is None
    assert facts["unknown"] == {
        "docker": "docker's socket may not be used by this user", "image": "docker's socket may not be used by this user"}


@pytest.mark.parametrize("warning", ["", "WARNING: Error loading config file: open /root/.docker/config.json: permission denied\n"])
def test_a_daemon_that_does_not_run_is_known(warning: str) -> None:
    down = warning + "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    facts = facts_of({container.DOCKER_VERSION: Ran(1, CLIENT_ONLY, down), container.DOCKER_INFO: Ran(1, '{"ServerVersion": ""}', down),
                      DOCKER_INSPECT: Ran(1, "[]", down)}, image=IMAGE)
    assert facts["docker"]["running"] is False and facts["docker"]["version"] == "28.2.2"
    assert facts["unknown"] == {"image": "docker's daemon is not running"} and facts["image"] is None


@pytest.mark.parametrize("answer", [Ran(None, error="timeout"), Ran(0, "nonsense"), Ran(0, "[1]"), Ran(2, "", "panic")])
def test_a_daemon_that_hangs_or_prints_nonsense_is_unknown(answer: Ran) -> None:
    facts = facts_of({container.DOCKER_VERSION: answer, container.DOCKER_INFO: answer, DOCKER_INSPECT: answer}, image=IMAGE)
    assert facts["docker"] is None and facts["unknown"]["docker"] and facts["unknown"]["image"]


def test_half_an_answer_is_marked() -> None:
    facts = dressed(change=lambda w: w.commands.update({container.DOCKER_INFO: Ran(None, error="timeout")}))
    assert facts["docker"]["running"] is True and facts["docker"]["cdi"] is None and "docker info" in facts["unknown"]["docker"]


@pytest.mark.parametrize(("version", "folders", "cdi"), [
    ("28.5.1", ["/etc/cdi"], True), ("28.5.1", [], False), ("27.0.3", None, False), ("24.0.7", None, False)])
def test_whether_the_engine_has_cdi(version: str, folders: Optional[List[str]], cdi: bool) -> None:
    facts = facts_of({container.DOCKER_VERSION: json.dumps({"Server": {"Version": version}}),
                      container.DOCKER_INFO: json.dumps({"ServerVersion": version, "CDISpecDirs": folders})})
    assert facts["docker"]["cdi"] is cdi


def test_podman_under_the_name_of_docker_is_podman() -> None:
    shown = json.dumps({"Client": {"Version": "5.2.2", "APIVersion": "5.2.2"}})
    image = json.dumps([{"Id": "ab" * 32, "RepoDigests": ["docker.io/vllm/vllm-openai@sha256:" + "1" * 64], "Labels": {}, "Size": 5}])
    facts = facts_of({container.DOCKER_VERSION: Ran(0, shown, "Emulate Docker CLI using podman."), container.PODMAN_VERSION: shown,
                      container.DOCKER_INFO: json.dumps({"host": {}}), DOCKER_INSPECT: image, PODMAN_INSPECT: image}, image=IMAGE)
    assert facts["docker"] is None and facts["podman"] == {"version": "5.2.2"} and facts["unknown"] == {}
    assert facts["image"]["engine"] == "podman" and facts["image"]["id"] == "sha256:" + "ab" * 32


def test_podman_without_the_image() -> None:
    shown = json.dumps({"Client": {"Version": "5.2.2"}})
    absent = Ran(125, "[]", "Error: %s: image not known" % IMAGE)
    facts = facts_of({container.PODMAN_VERSION: shown, PODMAN_INSPECT: absent}, image=IMAGE)
    assert facts["image"] == {"name": IMAGE, "present": False, "digests": []} and facts["unknown"] == {}


# -- toolkit and CDI ---------------------------------------------------------------------------------
@pytest.mark.parametrize("running, expected", [(["runc"], False), (["nvidia", "runc"], True), ([], True)])
def test_a_daemon_that_does_not_know_its_file_yet_is_not_configured(running: List[str], expected: bool) -> None:
    shown = {"Client": {"Version": "28.1.1"}, "Server": {"Version": "28.1.1", "ApiVersion": "1.49"}}
    told = {"ServerVersion": "28.1.1", "Runtimes": {name: {} for name in running}, "CDISpecDirs": []} if running else {}
    facts = facts_of({container.DOCKER_VERSION: json.dumps(shown), container.DOCKER_INFO: json.dumps(told), container.CTK: "cli version 1.18.0\n"},
                     {container.DAEMON: json.dumps({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}})})
    assert facts["toolkit"]["configured"] is expected


def test_cdi_with_podman_is_a_configured_toolkit() -> None:
    spec = "kind: nvidia.com/gpu\ndevices:\n- name: all\n"
    podman = {
        container.PODMAN_VERSION: json.dumps({"Client": {"Version": "5"}}),
        container.CTK: "NVIDIA Container Toolkit CLI version 1.20.0-rc.1\n",
    }
    assert facts_of(podman, {"/etc/cdi/nvidia.yaml": spec})["toolkit"]["configured"] is True
    bare = facts_of(podman)["toolkit"]
    assert bare["configured"] is False and bare["version"] == "1.20.0-rc.1"


def test_the_mode_is_read_from_its_own_section() -> None:
    assert container.parse_mode('[nvidia-container-runtime]\n#mode = "csv"\nmode = "cdi"\n[nvidia-container-runtime.modes.csv]\n') == "cdi"
    assert container.parse_mode('[nvidia-ctk]\nmode = "cdi"\n') is None


def test_a_specification_in_json_reads_as_in_yaml() -> None:
    spec = {
        "cdiVersion": "0.7.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "all"}],
        "containerEdits": {"hooks": [{"hookName": "createContainer", "args": ["name: not-a-device"]}],
                           "mounts": [{"hostPath": "/usr/lib64/libcuda.so.580.95.05"}, {"hostPath": "/usr/lib64/libother.so.1.1.13"}]}}
    expected = {"kind": "nvidia.com/gpu", "devices": ["0", "all"], "versions": ["580.95.05"]}
    assert container.parse_spec(json.dumps(spec)) == expected
    assert container.parse_spec(json.dumps(spec, indent=2)) == expected
    yaml = (
        "---\ncdiVersion: 0.7.0\ncontainerEdits:\n  hooks:\n  - hookName: createContainer\n  mounts:\n"
        "  - hostPath: /usr/lib64/libcuda.so.580.95.05\n  - hostPath: /lib/firmware/nvidia/580.95.05/gsp_ga10x.bin\n"
        "devices:\n- containerEdits: {}\n  name: \"0\"\n- name: all\nkind: nvidia.com/gpu\n")
    assert container.parse_spec(yaml) == expected


def test_specifications_of_other_vendors_are_left_out_and_unreadable_ones_named() -> None:
    facts = facts_of(files={
        "/etc/cdi/nvidia.yaml": Content(None, "denied"), "/etc/cdi/other.yaml": "kind: vendor.example/nic\n",
        "/var/run/cdi/nvidia.json": "", "/var/run/cdi/readme.txt": "kind: nvidia.com/gpu"})
    assert facts["cdi"] == [{"path": "/var/run/cdi/nvidia.json", "kind": "", "devices": [], "versions": []}]
    assert facts["unknown"]["cdi"] == "/etc/cdi/nvidia.yaml could not be read: denied"


# -- image and probe ---------------------------------------------------------------------------------
def test_a_name_that_could_be_an_option_reaches_no_command() -> None:
    for name in ("--help", "a b", "x;y", "-v", "a\n", "$(x)"):
        options = Options(image=name)
        assert container.commands(options) == container.commands(Options())
        assert "not the name of an image" in facts_of(image=name)["unknown"]["image"]


def test_versions_from_labels_come_before_those_of_the_base_image() -> None:
    def image(labels: Dict[str, str], env: List[str]) -> Dict[str, Any]:
        found = container.parse_image(json.dumps([{"Id": "sha256:1", "Config": {"Labels": labels, "Env": env}}]))
        assert found
        return found

    found = image({"vllm.version": "v0.32.1", "vllm.nccl": "2.30.7"}, ["CUDA_VERSION=13.0.2", "NCCL_VERSION=2.27.3-1"])
    assert (found["vllm"], found["nccl"], found["cuda"]) == ("0.32.1", "2.30.7", "13.0.2")
    # The version of a base image is not that of vLLM.
    assert image({"org.opencontainers.image.version": "24.04.1", "org.opencontainers.image.title": "ubuntu"}, [])["vllm"] is None
    assert container.parse_image("[]") is None and container.parse_image('{"Id": 5}') is None


def test_the_probe_runs_only_when_asked_and_counts_gpus() -> None:
    command = container.probe_command("docker", IMAGE, True)
    assert command[:7] == ("docker", "run", "--rm", "--pull", "never", "--network", "none") and "nvidia.com/gpu=all" in command
    listing = "".join("GPU %d: NVIDIA B300 SXM6 AC (UUID: GPU-0000)\n" % i for i in range(8))

    def change(wardrobe: Wardrobe) -> None:
        wardrobe.commands[command] = listing

    assert dressed(change=change)["probe"] is None
    probe = dressed(change=change, probe_container=True)["probe"]
    assert (probe["ran"], probe["rc"], probe["gpus"]) == (True, 0, 8)


def test_a_probe_that_fails_says_why() -> None:
    command = container.probe_command("docker", IMAGE, True)
    error = "docker: Error response from daemon: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all\n"
    probe = dressed(change=lambda w: w.commands.update({command: Ran(125, "", error)}), probe_container=True)["probe"]
    assert (probe["ran"], probe["rc"], probe["gpus"]) == (True, 125, 0) and "unresolvable CDI" in probe["text"]
    hung = dressed(change=lambda w: w.commands.update({command: Ran(None, error="timeout")}), probe_container=True)
    assert hung["probe"] == {"ran": False} and "in time" in hung["unknown"]["probe"]
    absent = dressed(["no_gpu"], probe_container=True)
    assert absent["probe"] == {"ran": False} and "not on this node" in absent["unknown"]["probe"]


def test_the_forms_of_the_probe() -> None:
    assert "--gpus" in container.probe_command("docker", IMAGE, False)
    podman = container.probe_command("podman", IMAGE, False)
    assert "label=disable" in podman and "--gpus" not in podman


# -- anything in, no exception out -------------------------------------------------------------------
KEYS = st.sampled_from((
    "Id", "Config", "Env", "Labels", "RepoDigests", "Client", "Server", "Version", "Runtimes", "CDISpecDirs", "ServerErrors",
    "ServerVersion", "kind", "devices", "name", "runtimes", "features", "default-ulimits", "Size", "Created",
))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12)


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_any_text(text: str) -> None:
    for parse in (container.parse_spec, container.parse_image, container.parse_mode, container.document, container.count_gpus):
        parse(text)


@settings(max_examples=150, deadline=None)
@given(JSON, JSON, JSON)
def test_any_json(one: Any, two: Any, three: Any) -> None:
    facts = facts_of(
        {container.DOCKER_VERSION: json.dumps(one), container.DOCKER_INFO: json.dumps(two), container.PODMAN_VERSION: json.dumps(three),
         DOCKER_INSPECT: json.dumps(two), PODMAN_INSPECT: json.dumps(three)},
        {container.DAEMON: json.dumps(one), "/etc/cdi/nvidia.json": json.dumps(three)}, image=IMAGE, probe_container=True)
    json.dumps(facts)
    container.parse_spec(json.dumps(one))
