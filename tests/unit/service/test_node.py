# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bringing a release to a node, with systemd and Docker played by a fake that keeps their rules."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import stat
from typing import Any, Dict, List, Sequence

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.service import node as module
from ansible_collections.inferops.vllm.plugins.module_utils.service import release
from ansible_collections.inferops.vllm.plugins.module_utils.service.node import Node
from ansible_collections.inferops.vllm.plugins.module_utils.service.release import ReleaseError
from tests.unit.plan.cluster import cluster, pools, sound

IMAGE = "registry.example/vllm@sha256:" + "a" * 64
OTHER = "registry.example/vllm@sha256:" + "b" * 64


class Fake:
    """systemctl and docker.

    `said` is what was asked for, in order; `refuse` is how refused commands begin, where vllm.service holds `only`; `jobs` wait in the queue.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.active: Dict[str, str] = {}
        self.enabled: Dict[str, bool] = {}
        self.loaded: Dict[str, str] = {}
        self.images = {IMAGE: "sha256:" + "1" * 64, OTHER: "sha256:" + "2" * 64}
        self.said: List[str] = []
        self.refuse = self.only = ""
        self.jobs: Dict[str, str] = {}

    def file(self, unit: str) -> str:
        path = self.root / "etc/systemd/system" / unit
        quadlet = self.root / "etc/containers/systemd" / unit.replace(".service", ".container")
        return next((found.read_text() for found in (path, quadlet) if found.exists()), "")

    def __call__(self, argv: Sequence[str], limit: float) -> module.Ran:
        words = [word for word in argv if not word.startswith("--")]
        if words[0] in ("docker", "podman"):
            reference = words[-1]
            return (0, self.images[reference] + "\n", "") if reference in self.images else (1, "", "Error: No such image: %s" % reference)
        verb, units = words[1], words[2:]
        if verb == "show":
            blocks = []
            for unit in units:
                text = self.file(unit)
                blocks.append("Id=%s\nLoadState=%s\nActiveState=%s\nSubState=x\nUnitFileState=%s\nNeedDaemonReload=%s%s" % (
                    unit, "loaded" if text else "not-found", self.active.get(unit, "inactive"), "enabled" if self.enabled.get(unit) else "disabled",
                    "yes" if unit in self.loaded and self.loaded[unit] != text else "no",
                    "\nJob=" + self.jobs[unit] if unit in self.jobs else ""))
            return 0, "\n\n".join(blocks) + "\n", ""
        self.said.append(" ".join([verb] + units))
        if self.refuse and self.said[-1].startswith(self.refuse) and self.only in self.file("vllm.service"):
            return 1, "", "Failed: refused"
        for unit in units:
            if verb in ("start", "restart"):
                self.active[unit] = "active"
                self.loaded.setdefault(unit, self.file(unit))
                self.started(unit)
            elif verb == "stop" or (verb == "disable" and "--now" in argv):
                self.active[unit] = "inactive"
                self.jobs.pop(unit, None)
                shutil.rmtree(self.root / "run" / unit.split(".")[0], ignore_errors=True)
            if verb in ("enable", "disable"):
                self.enabled[unit] = verb == "enable"
        if verb == "daemon-reload":
            self.loaded = {unit: self.file(unit) for unit in ("vllm.service", "vllm-link.service")}
        return 0, "", ""

    def started(self, unit: str) -> None:
        """The unit's ExecStartPre: what it was started from."""
        record = self.root / "etc/vllm/release.json"
        if unit == "vllm.service" and record.exists():
            folder = self.root / "run/vllm"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "started.json").write_text(record.read_text())

    def asked(self) -> List[str]:
        said, self.said = self.said, []
        return said


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> Fake:
    return Fake(tmp_path)


def here(fake: Fake, check: bool = False) -> Node:
    return Node(fake, str(fake.root), check, ("#!agent\n", "[Service]\nExecStart=agent\n"))


def entry(count: int = 1, at: str = "n1", image: str = IMAGE, **words: Any) -> Dict[str, Any]:
    several = {"strategy": "multi_node_tp", "interconnect": "rdma"} if count > 1 else {"strategy": "single_node_tp"}
    return release.checked(sound(cluster(count), hardware="b300", image=image, **several, **words)["nodes"][at])


def cdi(given: Dict[str, Any]) -> Dict[str, Any]:
    words = list(given["container"])
    at = words.index("--gpus")
    return {**given, "container": words[:at] + ["--device", "nvidia.com/gpu=all"] + words[at + 2:]}


def deploy(fake: Fake, given: Dict[str, Any], state: str = "started", secrets: Any = None, check: bool = False, **more: Any) -> module.Answer:
    return here(fake, check).deploy(given, secrets or {}, {}, state, **more)


def text(fake: Fake, path: str) -> str:
    return (fake.root / path.lstrip("/")).read_text()


def tree(fake: Fake) -> Dict[str, Any]:
    return {str(path): (path.read_text(), path.stat().st_mtime_ns) for path in fake.root.rglob("*") if path.is_file()}


def test_a_first_deployment_writes_enables_and_starts_and_a_second_does_nothing(fake: Fake) -> None:
    answer = deploy(fake, entry(), secrets={"VLLM_API_KEY": "s3cret"})
    assert (answer.changed, answer.restart, answer.number, answer.reload) == (True, False, 1, "done")
    assert fake.asked() == ["daemon-reload", "enable vllm.service", "reset-failed vllm.service", "start vllm.service"]
    modes = {name: stat.S_IMODE(os.stat(fake.root / "etc/vllm" / name).st_mode) for name in ("service.env", "secrets.env", "release.json")}
    assert modes == {"service.env": 0o640, "secrets.env": 0o600, "release.json": 0o644}
    assert json.loads(text(fake, "/etc/vllm/release.json"))["image_id"] == fake.images[IMAGE]
    before = tree(fake)
    answer = deploy(fake, entry(), secrets={"VLLM_API_KEY": "s3cret"})
    assert (answer.changed, answer.files, answer.diff, answer.number) == (False, [], [], 1)
    assert fake.asked() == [] and tree(fake) == before


def test_check_mode_tells_the_truth_and_touches_nothing(fake: Fake) -> None:
    for _time in range(2):
        answer = deploy(fake, entry(), check=True)
        assert answer.changed and fake.asked() == [] and tree(fake) == {}
        assert {change["after_header"] for change in answer.diff} == {"/etc/vllm/service.env", "/etc/vllm/secrets.env", "/etc/systemd/system/vllm.service"}
    deploy(fake, entry())
    assert deploy(fake, entry(), check=True).changed is False


def test_a_new_digest_of_the_plan_alone_changes_the_record_and_shows_it(fake: Fake) -> None:
    deploy(fake, entry())
    fake.asked()
    answer = here(fake).deploy(entry(), {}, {"plan_sha256": "feed"}, "started")
    assert (answer.changed, answer.restart, answer.number) == (True, False, 1) and fake.asked() == []
    assert '"plan_sha256": "feed"' in answer.diff[0]["after"] and '"plan_sha256": ""' in answer.diff[0]["before"]
    assert here(fake).deploy(entry(), {}, {"plan_sha256": "feed"}, "started").changed is False


def test_check_mode_works_where_nothing_is_installed(fake: Fake) -> None:
    def nothing(argv: Sequence[str], limit: float) -> module.Ran:
        return 127, "", "%s: No such file or directory" % argv[0]

    assert Node(nothing, str(fake.root), True, ("a", "b")).deploy(entry(), {}, {}, "started").changed
    with pytest.raises(ReleaseError, match="systemd does not say"):
        Node(nothing, str(fake.root), False, ("a", "b")).deploy(entry(), {}, {}, "started")


@pytest.mark.parametrize("change", ["flag", "env", "image", "secret"])
def test_what_a_running_service_took_over_restarts_it(fake: Fake, change: str) -> None:
    deploy(fake, entry(), secrets={"VLLM_API_KEY": "k-first"})
    fake.asked()
    words: Dict[str, Any] = {"flag": {"overrides": {"max-num-seqs": 3}}, "env": {"env_overrides": {"A": "1"}}, "image": {"image": OTHER}}.get(change, {})
    secrets = {"VLLM_API_KEY": "k-second" if change == "secret" else "k-first"}
    answer = deploy(fake, entry(**words), secrets=secrets, check=True)
    assert answer.restart and fake.asked() == []
    answer = deploy(fake, entry(**words), secrets=secrets)
    said = fake.asked()
    assert answer.restart and [word for word in said if word.startswith(("stop", "start"))] == ["stop vllm.service", "start vllm.service"]
    # A reload between stop and start: no container runs that could lose its GPUs.
    assert "daemon-reload" not in said or said.index("stop vllm.service") < said.index("daemon-reload") < said.index("start vllm.service")
    assert "k-first" not in json.dumps(answer.diff) and "k-second" not in json.dumps(answer.diff)
    assert deploy(fake, entry(**words), secrets=secrets).changed is False


def test_a_new_description_reloads_with_cdi_and_waits_with_legacy_gpus(fake: Fake) -> None:
    deploy(fake, cdi(entry()))
    fake.asked()
    answer = deploy(fake, {**cdi(entry()), "engine": "renamed"})
    assert (answer.changed, answer.restart, answer.reload) == (True, False, "done") and fake.asked() == ["daemon-reload"]
    deploy(fake, entry())
    fake.asked()
    for changed in (True, False):
        answer = deploy(fake, {**entry(), "engine": "again"})
        assert (answer.changed, answer.restart, answer.reload) == (changed, False, "deferred") and fake.asked() == []
        assert "--gpus" in answer.warnings[0]
    answer = deploy(fake, {**entry(overrides={"max-num-seqs": 3}), "engine": "again"})
    assert answer.reload == "done" and fake.asked()[:2] == ["stop vllm.service", "reset-failed vllm.service"]


def test_an_image_that_is_not_there_leaves_the_old_service_running(fake: Fake) -> None:
    deploy(fake, entry())
    del fake.images[OTHER]
    before, _said = tree(fake), fake.asked()
    with pytest.raises(ReleaseError, match=r"is not on this node .*nothing was switched"):
        deploy(fake, entry(image=OTHER))
    assert tree(fake) == before and fake.asked() == [] and fake.active["vllm.service"] == "active"


def test_a_full_disk_leaves_the_old_service_running(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(fake, entry())
    before, _said = tree(fake), fake.asked()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(ReleaseError, match="cannot be written: No space left on device; nothing was switched"):
        deploy(fake, entry(overrides={"max-num-seqs": 3}))
    monkeypatch.undo()
    assert tree(fake) == before and fake.asked() == []


def test_a_reload_that_fails_starts_the_service_again(fake: Fake) -> None:
    deploy(fake, entry())
    fake.asked()
    fake.refuse = "daemon-reload"
    with pytest.raises(ReleaseError, match="daemon-reload: Failed: refused"):
        deploy(fake, entry(overrides={"max-num-seqs": 3}))
    assert fake.asked()[-1] == "start vllm.service"
    fake.refuse = ""
    answer = deploy(fake, entry(overrides={"max-num-seqs": 3}))
    assert answer.restart and "daemon-reload" in fake.asked()


@pytest.mark.parametrize("refuse", ["start vllm.service", "daemon-reload"])
def test_a_switch_that_fails_puts_back_what_was_there(fake: Fake, refuse: str) -> None:
    deploy(fake, entry(), secrets={"VLLM_API_KEY": "k1"})
    before, _said = tree(fake), fake.asked()
    fake.refuse, fake.only = refuse, "--max-num-seqs 3"
    node = here(fake)
    with pytest.raises(ReleaseError, match="Failed: refused; the files are as they were, and the service was started again"):
        node.deploy(entry(overrides={"max-num-seqs": 3}), {"VLLM_API_KEY": "k2"}, {}, "started")
    assert not node.switched and fake.asked()[-2:] == ["reset-failed vllm.service", "start vllm.service"]
    assert fake.active["vllm.service"] == "active" and fake.loaded["vllm.service"] == fake.file("vllm.service")
    after = tree(fake)
    started = str(fake.root / "run/vllm/started.json")
    assert after.pop(started)[0] == before.pop(started)[0] and after == before
    assert not (fake.root / "var/lib/inferops-vllm/releases/2").exists()
    # The old secrets count as those that the service was started with.
    assert deploy(fake, entry(), secrets={"VLLM_API_KEY": "k1"}).changed is False
    fake.refuse = ""
    assert deploy(fake, entry(overrides={"max-num-seqs": 3}), secrets={"VLLM_API_KEY": "k2"}).number == 2


def test_a_first_deployment_that_fails_leaves_nothing(fake: Fake) -> None:
    fake.refuse = "start vllm.service"
    with pytest.raises(ReleaseError, match="Failed: refused; all is as it was before"):
        deploy(fake, entry(2, "n2"))
    assert tree(fake) == {} and not any(fake.enabled.values()) and fake.active.get("vllm-link.service") == "inactive"
    assert os.listdir(fake.root / "var/lib/inferops-vllm/releases") == []
    fake.refuse = ""
    assert deploy(fake, entry(2, "n2")).number == 1 and fake.active["vllm.service"] == fake.active["vllm-link.service"] == "active"


@pytest.mark.parametrize("first, second", [(1, 2), (2, 1)])
def test_the_link_agent_is_put_back_too(fake: Fake, first: int, second: int) -> None:
    at = {1: entry(overrides={"max-num-seqs": 3}), 2: entry(2, "n2")}
    deploy(fake, at[first])
    before = {path: said for path, said in tree(fake).items() if "/run/" not in path}
    active, enabled = {unit: state for unit, state in fake.active.items() if state == "active"}, dict(fake.enabled)
    fake.refuse, fake.only = "start vllm.service", "--max-num-seqs 3" if second == 1 else "--node-rank 1"
    with pytest.raises(ReleaseError, match="started again"):
        deploy(fake, at[second])
    assert {path: said for path, said in tree(fake).items() if "/run/" not in path} == before
    assert {unit: state for unit, state in fake.active.items() if state == "active"} == active
    assert {unit for unit, on in fake.enabled.items() if on} == {unit for unit, on in enabled.items() if on}


def test_what_could_not_be_put_back_is_said(fake: Fake) -> None:
    deploy(fake, entry())
    fake.refuse = "start vllm.service"
    node = here(fake)
    with pytest.raises(ReleaseError, match=r"not all could be put back as it was: systemctl start --no-block vllm\.service: Failed: refused"):
        node.deploy(entry(overrides={"max-num-seqs": 3}), {}, {}, "started")
    assert node.switched
    fake.refuse = ""
    # Where a deployment then goes back to what served: nothing is left to write, and it starts.
    answer = here(fake).roll_back("vllm", 1)
    assert (answer.changed, answer.files, answer.number) == (True, [], 1) and "rolled_back_from" not in answer.record
    assert fake.active["vllm.service"] == "active" and here(fake).roll_back("vllm", 1).changed is False


def test_a_stop_that_fails_reloads_nothing(fake: Fake) -> None:
    """The container may still run, with GPUs that a reload takes from it."""
    deploy(fake, entry())
    before, _said = tree(fake), fake.asked()
    fake.refuse = "stop vllm.service"
    with pytest.raises(ReleaseError, match="refused; the files are as they were"):
        deploy(fake, entry(overrides={"max-num-seqs": 3}))
    said = fake.asked()
    assert "daemon-reload" not in said and said[-1] == "start vllm.service"
    started = str(fake.root / "run/vllm/started.json")
    assert {path: told for path, told in tree(fake).items() if path != started} == {path: told for path, told in before.items() if path != started}


def test_a_full_var_is_met_before_anything_is_stopped(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(fake, entry())
    before, _said = tree(fake), fake.asked()
    fsync = os.fsync

    def full(handle: int) -> None:
        if "/releases/" in os.readlink("/proc/self/fd/%d" % handle):
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(module.os, "fsync", full)
    node = here(fake)
    with pytest.raises(ReleaseError, match=r"releases/2/.* cannot be written: No space left on device; nothing was switched"):
        node.deploy(entry(overrides={"max-num-seqs": 3}), {}, {}, "started")
    assert tree(fake) == before and fake.asked() == [] and not node.switched
    assert os.listdir(fake.root / "var/lib/inferops-vllm/releases") == ["1"]


@pytest.mark.parametrize("died_at", ["stop", "daemon-reload", "enable", "start"])
def test_a_killed_switch_is_ended_by_the_next_deployment(fake: Fake, died_at: str) -> None:
    class Killed(BaseException):
        pass

    def dies(argv: Sequence[str], limit: float) -> module.Ran:
        if died_at in argv:
            raise Killed
        return fake(argv, limit)

    deploy(fake, entry(), enabled=died_at != "enable")
    with pytest.raises(Killed):
        Node(dies, str(fake.root), False, ("#!agent\n", "")).deploy(entry(overrides={"max-num-seqs": 3}), {}, {}, "started")
    fake.asked()
    answer = deploy(fake, entry(overrides={"max-num-seqs": 3}))
    assert answer.number == 2 and fake.asked()[-1] == "start vllm.service" and fake.loaded["vllm.service"] == fake.file("vllm.service")
    assert fake.enabled["vllm.service"] and deploy(fake, entry(overrides={"max-num-seqs": 3})).changed is False
    assert here(fake).roll_back("vllm").number == 1


def test_a_start_between_two_writes_is_noticed(fake: Fake) -> None:
    deploy(fake, entry())
    (fake.root / "run/vllm/started.json").write_text("{}")
    assert deploy(fake, entry()).restart


def test_a_dead_service_is_started_again_without_a_change_of_files(fake: Fake) -> None:
    deploy(fake, entry())
    fake.asked()
    fake.active["vllm.service"] = "failed"
    answer = deploy(fake, entry())
    assert answer.changed and answer.files == [] and fake.asked() == ["reset-failed vllm.service", "start vllm.service"]


def test_stopped_brings_the_files_and_stages_nothing_else(fake: Fake) -> None:
    assert deploy(fake, entry(), "stopped").changed and "start vllm.service" not in fake.asked()
    assert deploy(fake, entry(), "stopped").changed is False
    deploy(fake, entry())
    fake.asked()
    assert deploy(fake, entry(), "stopped").changed and fake.asked()[0] == "stop vllm.service"


def test_stop_needs_no_entry_and_a_service_that_is_not_there_is_stopped(fake: Fake) -> None:
    assert here(fake).stop("vllm").changed is False
    deploy(fake, entry())
    fake.asked()
    assert here(fake, True).stop("vllm").changed and fake.asked() == []
    assert here(fake).stop("vllm").changed and fake.asked()[0] == "stop vllm.service"
    assert here(fake).stop("vllm").changed is False


def test_a_start_that_waits_in_the_queue_is_stopped_and_not_begun_again(fake: Fake) -> None:
    deploy(fake, entry())
    here(fake).stop("vllm")
    fake.asked()
    fake.jobs["vllm.service"] = "812"
    assert deploy(fake, entry()).changed is False and fake.asked() == []
    assert here(fake, True).stop("vllm").changed and here(fake).stop("vllm").changed and fake.asked()[0] == "stop vllm.service"
    assert here(fake).stop("vllm").changed is False and fake.asked() == []
    fake.jobs["vllm.service"] = "813"
    assert deploy(fake, entry(overrides={"max-num-seqs": 3})).restart and fake.asked()[0] == "stop vllm.service"


def test_staged_switches_nothing_and_says_what_would_restart(fake: Fake) -> None:
    deploy(fake, entry())
    before, _said = tree(fake), fake.asked()
    new = entry(overrides={"max-num-seqs": 3})
    answer = deploy(fake, new, "staged")
    assert (answer.changed, answer.restart) == (True, True) and fake.asked() == []
    assert {key: value for key, value in tree(fake).items() if "/staged/" not in key} == before
    assert "--max-num-seqs 3" in text(fake, "/var/lib/inferops-vllm/staged/vllm/vllm.service")
    assert stat.S_IMODE(os.stat(fake.root / "var/lib/inferops-vllm/staged").st_mode) == 0o700
    assert deploy(fake, new, "staged").changed is False
    deploy(fake, new)
    assert not (fake.root / "var/lib/inferops-vllm/staged/vllm").exists()
    assert deploy(fake, new, "staged").changed is False
    del fake.images[OTHER]
    with pytest.raises(ReleaseError, match="not on this node"):
        deploy(fake, entry(image=OTHER), "staged")


def test_rollback_goes_back_step_by_step_and_forward_by_a_deployment(fake: Fake) -> None:
    for number in range(1, 6):
        assert deploy(fake, entry(overrides={"max-num-seqs": number}), secrets={"VLLM_API_KEY": "k%d" % number}).number == number
    kept = sorted(path.name for path in (fake.root / "var/lib/inferops-vllm/releases").iterdir())
    assert kept == ["2", "3", "4", "5"]
    assert all("secrets.env" not in os.listdir(fake.root / "var/lib/inferops-vllm/releases" / name) for name in kept)
    fake.asked()
    answer = here(fake).roll_back("vllm")
    assert (answer.number, answer.restart) == (4, True) and "--max-num-seqs 4" in text(fake, "/etc/systemd/system/vllm.service")
    assert text(fake, "/etc/vllm/secrets.env") == "VLLM_API_KEY=k5\n"
    assert json.loads(text(fake, "/etc/vllm/release.json"))["rolled_back_from"] == 5
    assert here(fake).roll_back("vllm").number == 3 and here(fake).roll_back("vllm", 5).number == 5
    assert json.loads(text(fake, "/etc/vllm/release.json")).get("rolled_back_from") == 3
    same = deploy(fake, entry(overrides={"max-num-seqs": 5}), secrets={"VLLM_API_KEY": "k5"})
    assert (same.changed, same.number) == (False, 5)
    assert deploy(fake, entry(overrides={"max-num-seqs": 9}), secrets={"VLLM_API_KEY": "k5"}).number == 6


def test_what_served_is_not_forgotten_for_releases_that_were_rolled_back(fake: Fake) -> None:
    for number in range(1, 6):
        deploy(fake, entry(overrides={"max-num-seqs": number}))
    for _time in range(3):
        here(fake).roll_back("vllm")
    assert deploy(fake, entry(overrides={"max-num-seqs": 9})).number == 6
    assert [found["number"] for found in here(fake).releases("vllm")] == [6, 5, 4, 2] and here(fake).roll_back("vllm", 2).number == 2


def test_releases_tell_what_a_rollback_may_lead_to(fake: Fake) -> None:
    assert here(fake).releases("vllm") == []
    deploy(fake, entry())
    deploy(fake, entry(2, "n2"))
    deploy(fake, entry(2, "n2", OTHER))
    (fake.root / "var/lib/inferops-vllm/releases/9").mkdir()
    third, second, first = here(fake).releases("vllm")
    assert first == {"number": 1, "plan": "", "peers": [], "rolled_back": False, "trouble": ""}
    assert (third["number"], second["number"], second["peers"]) == (3, 2, ["n1", "n2"]) and second["plan"] and third["plan"] not in ("", second["plan"])
    here(fake).roll_back("vllm")
    assert [(found["number"], found["rolled_back"], found["plan"]) for found in here(fake).releases("vllm")] == [(2, True, second["plan"]), (1, False, "")]
    del fake.images[IMAGE]
    assert all("is not on this node" in found["trouble"] for found in here(fake).releases("vllm"))
    (fake.root / "var/lib/inferops-vllm/releases/1/service.env").write_text("X=1\n")
    assert "damaged" in here(fake).releases("vllm")[1]["trouble"]


def test_a_router_beside_a_rank_is_rolled_back_and_stopped_alone(fake: Fake) -> None:
    program = fake.root / "opt/vllm-router/bin/vllm-router"
    program.parent.mkdir(parents=True)
    program.write_text("")
    made = sound(pools(1, 1), hardware="cpu", strategy="pd_cluster", interconnect="none", image=IMAGE)["nodes"]
    rank, router = release.checked(made["n1"]), release.checked(made["n3"])
    deploy(fake, rank, secrets={"VLLM_API_KEY": "k"})
    deploy(fake, router, secrets=release.for_role(router, {"VLLM_API_KEY": "k"}))
    assert deploy(fake, {**router, "argv": [*router["argv"], "--log-level", "debug"]}, secrets={"OPENAI_API_KEY": "k"}).number == 2
    assert "--log-level debug" in text(fake, "/etc/systemd/system/vllm-router.service")
    before, record = text(fake, "/etc/systemd/system/vllm.service"), text(fake, "/etc/vllm/release.json")
    fake.asked()
    answer = here(fake).roll_back("vllm-router")
    assert answer.number == 1 and "--log-level" not in text(fake, "/etc/systemd/system/vllm-router.service")
    assert here(fake).stop("vllm-router").changed and fake.active == {"vllm.service": "active", "vllm-router.service": "inactive"}
    assert not [said for said in fake.asked() if "vllm.service" in said]
    assert (text(fake, "/etc/systemd/system/vllm.service"), text(fake, "/etc/vllm/release.json")) == (before, record)
    assert text(fake, "/etc/vllm/router-secrets.env") == "OPENAI_API_KEY=k\n" and text(fake, "/etc/vllm/secrets.env") == "VLLM_API_KEY=k\n"


def test_new_secrets_are_a_release_of_their_own(fake: Fake) -> None:
    deploy(fake, entry(), secrets={"VLLM_API_KEY": "k1"})
    assert deploy(fake, entry(), secrets={"VLLM_API_KEY": "k2"}).number == 2
    assert here(fake).roll_back("vllm").number == 1 and text(fake, "/etc/vllm/secrets.env") == "VLLM_API_KEY=k2\n"


def test_a_rollback_that_cannot_be_is_refused(fake: Fake) -> None:
    with pytest.raises(ReleaseError, match="no earlier release"):
        here(fake).roll_back("vllm")
    deploy(fake, entry())
    deploy(fake, entry(overrides={"max-num-seqs": 2}))
    with pytest.raises(ReleaseError, match="release 7 of vllm is not kept"):
        here(fake).roll_back("vllm", 7)
    copy = fake.root / "var/lib/inferops-vllm/releases/1/vllm.service"
    copy.write_text(copy.read_text() + "# touched\n")
    fake.asked()
    with pytest.raises(ReleaseError, match=r"damaged: vllm\.service"):
        here(fake).roll_back("vllm")
    assert fake.asked() == []


def test_a_drifted_release_is_restored_and_the_service_stays_as_it_was(fake: Fake) -> None:
    deploy(fake, entry(), secrets={"HF_TOKEN": "x"})
    deployed = text(fake, "/etc/vllm/service.env")
    (fake.root / "etc/vllm/service.env").write_text(deployed + "NCCL_DEBUG=TRACE\n")
    unit = fake.root / "etc/systemd/system/vllm.service"
    unit.write_text(unit.read_text().replace("docker run", "docker run --init"))
    fake.asked()
    answer = here(fake).restore("vllm")
    assert (answer.changed, answer.number) == (True, 1) and set(answer.files) == {"/etc/vllm/service.env", "/etc/systemd/system/vllm.service"}
    assert text(fake, "/etc/vllm/service.env") == deployed and text(fake, "/etc/vllm/secrets.env") == "HF_TOKEN=x\n"
    assert fake.active["vllm.service"] == "active" and not here(fake).restore("vllm").changed
    here(fake).stop("vllm")
    (fake.root / "etc/vllm/service.env").write_text("X=1\n")
    fake.asked()
    assert here(fake).restore("vllm").changed and fake.active["vllm.service"] == "inactive" and "start vllm.service" not in fake.asked()


def test_one_variable_more_is_a_release_of_its_own_and_the_way_back_is_kept(fake: Fake) -> None:
    deploy(fake, entry())
    deployed = text(fake, "/etc/vllm/service.env")
    answer = here(fake).restore("vllm", 0, {"NCCL_NVLS_ENABLE": "0"})
    assert (answer.number, answer.restart) == (2, True)
    lines = text(fake, "/etc/vllm/service.env").splitlines()
    assert lines == sorted(lines) and "NCCL_NVLS_ENABLE=0" in lines and "NCCL_NVLS_ENABLE=1" not in lines
    assert {line for line in deployed.splitlines() if not line.startswith("NCCL_NVLS")} == set(lines) - {"NCCL_NVLS_ENABLE=0"}
    again = here(fake).restore("vllm", 0, {"NCCL_NVLS_ENABLE": "0"})
    assert (again.changed, again.number) == (False, 2)
    back = here(fake).restore("vllm", 1)
    assert (back.number, text(fake, "/etc/vllm/service.env")) == (1, deployed) and not here(fake).restore("vllm", 1).changed


def test_nothing_is_restored_where_nothing_is_deployed(fake: Fake) -> None:
    with pytest.raises(ReleaseError, match="deploy first"):
        here(fake).restore("vllm")
    deploy(fake, entry())
    (fake.root / "etc/vllm/release.json").write_text("{")
    assert here(fake).restore("vllm").number == 1 and json.loads(text(fake, "/etc/vllm/release.json"))["number"] == 1


def test_several_nodes_get_the_agent_and_one_node_loses_it(fake: Fake) -> None:
    deploy(fake, entry(2, "n2"))
    assert [word for word in fake.asked() if "link" in word] == ["enable vllm-link.service", "restart vllm-link.service"]
    assert os.access(fake.root / "usr/local/libexec/inferops-vllm/vllm-link", os.X_OK)
    assert deploy(fake, entry(2, "n2")).changed is False
    fake.active["vllm-link.service"] = "failed"
    assert deploy(fake, entry(2, "n2")).restart is False and fake.asked() == ["enable vllm-link.service", "restart vllm-link.service"]
    deploy(fake, entry())
    said = fake.asked()
    assert said.index("stop vllm.service") < said.index("disable vllm-link.service") < said.index("daemon-reload")
    assert not (fake.root / "etc/vllm/link.json").exists() and not (fake.root / "etc/systemd/system/vllm-link.service").exists()
    assert here(fake).roll_back("vllm").number == 1 and (fake.root / "etc/vllm/link.json").exists()


def test_podman_takes_the_place_of_docker(fake: Fake) -> None:
    deploy(fake, entry())
    fake.asked()
    deploy(fake, entry(engine="podman"))
    assert not (fake.root / "etc/systemd/system/vllm.service").exists() and (fake.root / "etc/containers/systemd/vllm.container").exists()
    assert "enable vllm.service" not in fake.asked()
    assert deploy(fake, entry(engine="podman")).changed is False


def test_a_file_that_someone_else_owns_up_to_is_put_right(fake: Fake) -> None:
    deploy(fake, entry(), secrets={"HF_TOKEN": "x"})
    os.chmod(fake.root / "etc/vllm/secrets.env", 0o644)
    answer = deploy(fake, entry(), secrets={"HF_TOKEN": "x"})
    assert answer.files == ["/etc/vllm/secrets.env"] and stat.S_IMODE(os.stat(fake.root / "etc/vllm/secrets.env").st_mode) == 0o600


def test_a_virtual_environment_that_is_not_there_is_refused(fake: Fake) -> None:
    with pytest.raises(ReleaseError, match="/opt/vllm/bin/vllm is not on this node"):
        deploy(fake, entry(runtime="venv", image=""))
    folder = fake.root / "opt/vllm/bin"
    folder.mkdir(parents=True)
    (folder / "vllm").write_text("")
    assert deploy(fake, entry(runtime="venv", image="")).changed
    assert json.loads(text(fake, "/etc/vllm/release.json"))["venv"]["path"] == "/opt/vllm"
    assert deploy(fake, entry(runtime="venv", image="")).changed is False


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_a_service_user_can_enter_the_folders_whatever_the_umask(fake: Fake, umask: int) -> None:
    closed = fake.root / "usr"
    closed.mkdir(0o750)
    os.chmod(closed, 0o750)
    before = os.umask(umask)
    try:
        deploy(fake, entry(2, "n2"))
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE(os.stat(fake.root / name).st_mode) for name in (
        "etc/vllm", "etc/systemd/system", "usr", "usr/local/libexec", "var/lib/inferops-vllm", "var/lib/inferops-vllm/releases")}
    assert modes == {"etc/vllm": 0o755, "etc/systemd/system": 0o755, "usr": 0o750, "usr/local/libexec": 0o755, "var/lib/inferops-vllm": 0o755,
                     "var/lib/inferops-vllm/releases": 0o700}


def test_one_file_is_written_as_told(fake: Fake) -> None:
    item = release.Item("/etc/vllm/service.env", "A=1\n", 0o640)
    assert here(fake, True).write(item)[0] and not (fake.root / "etc/vllm/service.env").exists()
    assert here(fake).write(item)[0] and here(fake).write(item) == (False, {})


def test_commands_have_a_limit_and_a_missing_one_is_said() -> None:
    assert module.run(["sleep", "5"], 0.1)[0] == 124
    assert module.run(["/no/such/program"], 1.0)[0] == 127
    assert module.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 5.0) == (3, "out\n", "err\n")
