# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a release is, and what its differences ask for."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.plan import render
from ansible_collections.inferops.vllm.plugins.module_utils.service import release, venv
from ansible_collections.inferops.vllm.plugins.module_utils.service.release import ReleaseError
from tests.unit.plan.cluster import cluster, pools, sound

IMAGE = "registry.example/vllm@sha256:" + "a" * 64


def entry(**words: Any) -> Dict[str, Any]:
    return sound(cluster(1), hardware="b300", strategy="single_node_tp", image=IMAGE, **words)["nodes"]["n1"]


def paths(items: List[release.Item], there: bool = True) -> List[str]:
    return [item.path for item in items if (item.text is not None) == there]


def files(given: Any, secrets: Any = None) -> List[release.Item]:
    return release.items(release.checked(given), secrets or {}, "agent", "unit")


def test_one_node_has_three_files_and_no_link() -> None:
    made = files(entry())
    assert paths(made) == ["/etc/vllm/service.env", "/etc/vllm/secrets.env", "/etc/systemd/system/vllm.service"]
    assert {item.path: item.mode for item in made}["/etc/vllm/secrets.env"] == 0o600
    assert "/etc/vllm/link.json" in paths(made, False) and "/etc/containers/systemd/vllm.container" in paths(made, False)


def test_several_nodes_have_the_link_and_podman_a_quadlet() -> None:
    plan = sound(cluster(2), hardware="b300", strategy="multi_node_tp", interconnect="rdma", image=IMAGE)
    made = files(plan["nodes"]["n2"])
    config = json.loads(next(str(item.text) for item in made if item.path == "/etc/vllm/link.json"))
    assert (config["rank"], config["addresses"], config["names"], config["unit"]) == (1, ["10.0.0.1", "10.0.0.2"], ["n1", "n2"], "vllm.service")
    assert config["plan"] == plan["nodes"]["n1"]["link"]["plan"]
    quadlet = files(entry(engine="podman"))
    assert "/etc/containers/systemd/vllm.container" in paths(quadlet) and "/etc/systemd/system/vllm.service" in paths(quadlet, False)


def test_ranks_of_one_engine_share_a_digest_that_follows_every_rank() -> None:
    words = {"hardware": "b300", "strategy": "multi_node_tp", "interconnect": "rdma"}
    first = sound(cluster(2), **words)["nodes"]
    other = sound(cluster(2), overrides={"max-num-seqs": 3}, **words)["nodes"]
    assert first["n1"]["link"]["plan"] == first["n2"]["link"]["plan"] != other["n1"]["link"]["plan"]
    assert sound(cluster(1), hardware="b300", strategy="single_node_tp")["nodes"]["n1"]["link"] is None


def test_a_router_has_files_of_its_own() -> None:
    plan = sound(pools(1, 2), hardware="b300", strategy="pd_cluster", interconnect="rdma", router_image=IMAGE, image=IMAGE)
    assert paths(files(plan["nodes"]["n4"])) == ["/etc/vllm/router.env", "/etc/vllm/router-secrets.env", "/etc/systemd/system/vllm-router.service"]


@pytest.mark.parametrize("change,why", [
    ({"image": "vllm/vllm-openai:kimi-k3"}, "named by a tag"), ({"env": {"HF_TOKEN": "x"}}, "HF_TOKEN is a secret"), ({"env": {"A": "1\n2"}}, "one line"),
    ({"env": {"A B": "1"}}, "not the name of a variable"), ({"env": {"GLOO_SOCKET_IFNAME": "IFACE_OF_n1"}}, "not complete"), ({"env": []}, "not a table"),
])
def test_what_cannot_be_a_release_is_refused(change: Dict[str, Any], why: str) -> None:
    with pytest.raises(ReleaseError, match=why):
        release.checked({**entry(), **change})


@pytest.mark.parametrize("given", [None, [], {}, {"role": "head"}])
def test_an_entry_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(ReleaseError, match="not a node's entry"):
        release.checked(given)


def test_an_image_on_the_node_takes_the_place_of_the_entrys() -> None:
    assert release.checked({**entry(), "image": "x:tag"}, "sha256:" + "b" * 64)["image"] == "sha256:" + "b" * 64
    with pytest.raises(ReleaseError, match="venv"):
        release.checked(entry(runtime="venv"), IMAGE)


def test_secrets_come_from_words_and_lines_and_their_values_are_never_told() -> None:
    assert release.secrets({"VLLM_API_KEY": "k", "HF_TOKEN": ""}, "# mine\nOTHER = a=b\nVLLM_API_KEY=old\n") == {"VLLM_API_KEY": "k", "OTHER": "a=b"}
    for text in ("just-a-secret", "A B=just-a-secret", "K=just-a-secret\x07"):
        with pytest.raises(ReleaseError) as caught:
            release.secrets({}, text)
        assert "just-a-secret" not in str(caught.value)


def key(given: Any, stamp: str = "1") -> str:
    return release.start_key(files(given), stamp)


def test_only_what_a_service_takes_over_at_its_start_changes_the_key() -> None:
    base = entry()
    assert key(base) == key(entry())
    assert key({**base, "engine": "renamed"}) == key(base)
    assert key({**base, "stop_seconds": 17}) != "" and release.start_lines("[Unit]\nAfter=x\n[Service]\nRestart=no\nTimeoutStopSec=3\nExecStop=x\n") == []
    for change in ({"argv": base["argv"] + ["--max-num-seqs", "3"]}, {"env": {**base["env"], "A": "1"}}, {"image": IMAGE[:-1] + "b"},
                   {"container": base["container"] + ["--shm-size", "1g"]}):
        assert key({**base, **change}) != key(base), change
    assert key(base, "2") != key(base)


def test_the_key_does_not_hang_on_the_order_of_files() -> None:
    made = files(entry())
    assert release.start_key(made, "1") == release.start_key(list(reversed(made)), "1")


def test_another_rank_of_the_engine_changes_the_key() -> None:
    words = {"hardware": "b300", "strategy": "multi_node_tp", "interconnect": "rdma", "image": IMAGE}
    first, other = sound(cluster(2), **words)["nodes"]["n1"], sound(cluster(2), **words)["nodes"]["n1"]
    assert key(first) == key(other)
    other["link"]["plan"] = "0" * 16
    assert key(first) != key(other)


def test_the_router_gets_the_key_by_the_name_that_it_reads() -> None:
    given = {"VLLM_API_KEY": "k", "HF_TOKEN": "t", "PROXY_PASSWORD": "p"}
    assert release.for_role({"role": "router"}, given) == {"OPENAI_API_KEY": "k", "PROXY_PASSWORD": "p"}
    assert release.for_role({"role": "router"}, dict(given, OPENAI_API_KEY="own"))["OPENAI_API_KEY"] == "own"
    assert release.for_role({"role": "router"}, {"HF_TOKEN": "t"}) == {}
    assert release.for_role({"role": "decode"}, given) == given


def test_a_record_holds_no_secret_and_no_agent() -> None:
    plan = sound(cluster(2), hardware="b300", strategy="multi_node_tp", interconnect="rdma", image=IMAGE, revision="abc")
    given = release.checked(plan["nodes"]["n1"])
    wanted = release.items(given, {"VLLM_API_KEY": "s3cret"}, "agent", "unit")
    found = release.record(given, wanted, {"plan_sha256": "p", "image_id": "i"})
    assert sorted(found["files"]) == ["/etc/systemd/system/vllm.service", "/etc/vllm/link.json", "/etc/vllm/service.env"]
    assert (found["model"], found["revision"], found["image"], found["version"]) == ("moonshotai/Kimi-K3", "abc", IMAGE, "0.27.1")
    assert "s3cret" not in json.dumps(found) and release.digest("VLLM_API_KEY=s3cret\n") not in json.dumps(found)


def test_a_diff_of_secrets_shows_names_alone() -> None:
    item = release.Item("/etc/vllm/secrets.env", "A=one\nB=two\n", 0o600, True)
    shown = release.shown(item, "A=one\nB=old\nC=gone\n", 0o644)
    assert shown["before"] == "A=<hidden>\nB=<hidden>\nC=<hidden>\n" and shown["after"] == "A=<hidden>\nB=<hidden, changed>\n"
    assert shown["before_header"].endswith("(mode 0644)")


@given(st.text())
def test_any_text_is_a_record_or_none(text: str) -> None:
    assert isinstance(release.number_of(release.parse_record(text)), int)


@given(st.text())
def test_any_text_is_a_unit_to_compare(text: str) -> None:
    assert isinstance(release.start_lines(text), list) and release.legacy_gpus(text) in (True, False)


def test_gpus_by_the_legacy_hook_are_seen() -> None:
    assert release.legacy_gpus(render.unit("n", entry()))
    assert not release.legacy_gpus(render.unit("n", entry(engine="podman")))


def test_quoted_values_are_read_alike_by_a_shell_and_systemd() -> None:
    made = render.environment_text({"A": 'x "y" $HOME `id` \\ z', "B": "plain=1", "C": ""}, True)
    assert made == 'A="x \\"y\\" \\$HOME \\`id\\` \\\\ z"\nB=plain=1\nC=\n'


def test_a_virtual_environment_says_what_it_is(tmp_path: Any) -> None:
    assert venv.read(str(tmp_path)) is None
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    for folder in ("vllm", "torch", "vllm-0.32.1.dist-info"):
        (site / folder).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").write_text("")
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.3\n")
    (site / "vllm-0.32.1.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.32.1+g0123abcd\n")
    (site / "torch" / "version.py").write_text("__version__ = '2.12.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\n")
    found = venv.read(str(tmp_path)) or {}
    assert (found["vllm"], found["commit"], found["torch"], found["cuda"], found["base"], found["python"]) == (
        "0.32.1+g0123abcd", "0123abcd", "2.12.0+cu130", "13.0", "/usr/bin", "3.12.3")
    (site / "vllm-0.32.1.dist-info" / "direct_url.json").write_text(json.dumps({"vcs_info": {"commit_id": "f" * 40}}))
    assert (venv.read(str(tmp_path)) or {})["commit"] == "f" * 40


@given(st.text(), st.text(), st.text())
def test_any_text_has_a_commit_or_none(version: str, source: str, built: str) -> None:
    found = venv.commit(version, source, built)
    assert found is None or 7 <= len(found) <= 40


def test_what_ranks_run_together() -> None:
    assert release.joined('{"plan": "5d0c", "names": ["n1", "n2"]}') == ("5d0c", ["n1", "n2"])
    assert release.joined(None) == release.joined("") == release.joined("nonsense") == release.joined("[]") == release.joined('{"names": 3}') == ("", [])


def test_the_record_of_a_start_is_copied_by_root_where_the_service_has_a_user_of_its_own() -> None:
    """/etc/vllm may be closed to others, and a service without that copy would be restarted at every deployment."""
    copied = "/usr/bin/install --mode=0644 /etc/vllm/release.json /run/vllm/started.json"
    assert "ExecStartPre=-+" + copied in render.unit("n1", entry(runtime="venv")).splitlines()
    assert "ExecStartPre=-" + copied in render.unit("n1", entry()).splitlines()
