# SPDX-License-Identifier: GPL-3.0-or-later
"""The decision table over the whole product of faults and states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.remedies import state as states
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.choose import check, decide, disturbs, programme
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.model import KINDS, RADIUS
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.state import ALLOWED_WORDS, State
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.table import CLASSES, FINDINGS, ORDER, REMEDIES

TRI = st.sampled_from([True, False, None])
ANY = st.builds(
    State,
    recorded=st.booleans(),
    modules=TRI,
    driver=st.sampled_from(states.DRIVER),
    headers=TRI,
    packages=st.sampled_from([(), ("nvidia-open: half-configured",)]),
    secure_boot=TRI,
    nouveau=TRI,
    holders=st.sampled_from(states.HOLDERS),
    serving=st.booleans(),
    gpu=st.sampled_from(states.GPU),
    fabric=st.sampled_from(states.FABRIC),
    manager=st.sampled_from(states.MANAGER),
    imex=st.sampled_from(states.IMEX),
    umad=TRI,
    peermem=st.sampled_from(states.PEERMEM),
    legacy_peermem=st.booleans(),
    dmabuf=TRI,
    peermem_everywhere=TRI,
    ports=st.sampled_from(states.PORTS),
    ssh=st.sampled_from([(), ("mlx5_0",)]),
    engine=st.sampled_from(states.ENGINE),
    toolkit=st.sampled_from(states.TOOLKIT),
    cdi=st.sampled_from(states.CDI),
    declared=st.sets(st.sampled_from(["rdma_mtu", "rdma_addresses", "image_digest"])).map(lambda words: tuple(sorted(words))),
    deployed=st.booleans(),
    allow=st.sets(st.sampled_from(ALLOWED_WORDS)).map(lambda words: tuple(w for w in ALLOWED_WORDS if w in words)),
)
PROBLEMS = sorted(FINDINGS) + sorted(CLASSES)


def words_of_diagnosis() -> set[str]:
    readme = Path(__file__).resolve().parents[4] / "shared" / "cases" / "README.md"
    if not readme.exists():
        pytest.skip("the words of the diagnosis cases are not here")
    rows = [line.split("|")[1].strip() for line in readme.read_text().splitlines() if line.startswith("| ")]
    return {row for row in rows if row and row != "class" and not row.startswith("-")}


def test_every_finding_has_an_entry() -> None:
    assert {rule.id for rule in judge.checks()} | {judge.REACHABLE.id} == set(FINDINGS)


def test_every_class_has_an_entry() -> None:
    assert words_of_diagnosis() == set(CLASSES)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_last_choice_holds_always_and_says_one_thing(problem: str) -> None:
    choices = FINDINGS.get(problem) or CLASSES[problem]
    for choice in choices:
        assert sum(bool(word) for word in (choice.remedy, choice.person, choice.after)) == (0 if problem == "none" else 1)
        assert not choice.remedy or choice.remedy in REMEDIES
        assert not choice.after or choice.after in FINDINGS
    assert all(choices[-1].test(state) for state in (State(), State(recorded=True, driver="unknown", holders="unknown", gpu="unknown", manager="unknown")))


@given(st.sampled_from(PROBLEMS), ANY)
def test_exactly_one_outcome(problem: str, state: State) -> None:
    found = decide(problem, state)
    assert found.kind in KINDS
    assert (found.kind == "nothing") == (problem == "none")
    assert found.kind == "nothing" or found.why.endswith((".", "`.")) or found.why.endswith("`"), found.why
    assert bool(found.missing) == (found.kind == "not_allowed")


@given(st.sampled_from(PROBLEMS), ANY)
def test_no_remedy_against_a_guard_or_without_leave(problem: str, state: State) -> None:
    found = decide(problem, state)
    if found.kind != "remedy":
        return
    remedy = REMEDIES[found.remedy]
    assert not state.recorded
    assert not any(guard.test(state) for guard in remedy.guards)
    assert set(remedy.needs(state)) <= set(state.allow)
    # The laws, said once more without the table's own words.
    if remedy.reboots(state):
        assert "reboot" in state.allow
    if any(role == "driver" and file in ("packages", "activate", "rebuild") for role, file in remedy.steps):
        assert "driver" in state.allow and state.modules is True
    if "kill" in remedy.id:
        assert "kill" in state.allow
    if state.holders == "foreign" and remedy.id in ("gpu_reset", "mig_off", "fabric_restart", "driver_upgrade"):
        raise AssertionError("%s while another process holds the GPUs" % remedy.id)
    if state.ssh and remedy.id in ("port_up", "rdma_mtu", "rdma_gid"):
        raise AssertionError("%s on a node whose SSH may ride on it" % remedy.id)
    if remedy.id == "dmabuf_off":
        assert state.peermem_everywhere is True


@given(st.sampled_from(PROBLEMS), ANY)
def test_unknown_is_never_taken_for_a_yes(problem: str, state: State) -> None:
    """What could not be read never leads to a change of just that thing."""
    blind = state._replace(
        driver="unknown",
        holders="unknown",
        gpu="unknown",
        manager="unknown",
        imex="unknown",
        peermem="unknown",
        ports="unknown",
        engine="unknown",
        toolkit="unknown",
        cdi="unknown",
        umad=None,
        nouveau=None,
        modules=None,
        headers=None,
        dmabuf=None,
        peermem_everywhere=None,
        packages=(),
        legacy_peermem=False,
    )
    found = decide(problem, blind)
    assert found.kind != "remedy" or not set(REMEDIES[found.remedy].needs(blind)) & {"driver", "kill"}


@pytest.mark.parametrize("remedy", sorted(REMEDIES))
def test_each_remedy_is_whole(remedy: str) -> None:
    row = REMEDIES[remedy]
    assert row.id == remedy and row.title and row.steps and row.changes and row.source.startswith("https://")
    assert bool(row.undo[0]) != bool(row.permanent), "an undo, or the reason why there is none"
    assert row.radius in RADIUS and 1 <= row.tries <= 3
    assert row.recheck and set(row.recheck) <= set(FINDINGS)
    assert row.harm and set(row.harm) <= {name.split(".")[0] for name in FINDINGS}
    assert set(row.needs(State(holders="unknown", modules=None))) <= set(ALLOWED_WORDS)


def test_every_remedy_is_reached() -> None:
    named = {choice.remedy for choices in list(FINDINGS.values()) + list(CLASSES.values()) for choice in choices if choice.remedy}
    assert named == set(REMEDIES)


@given(st.dictionaries(st.sampled_from(PROBLEMS), st.sampled_from(["block", "warn", "info"]), max_size=12), ANY)
def test_a_programme_answers_every_fault_once(problems: dict[str, str], state: State) -> None:
    steps = programme(problems, state)
    answered = [problem for step in steps for problem in step.problems]
    assert sorted(answered) == sorted(set(problems) - {"none"})
    for step in steps:
        if step.decision.kind == "remedy" and disturbs(step.decision.remedy, state):
            assert any(problems[problem] == "block" for problem in step.problems)


def test_environment_before_memory() -> None:
    state = State(driver="old", manager="stopped", peermem="loadable", holders="none", toolkit="absent", allow=ALLOWED_WORDS)
    steps = programme({"container.toolkit": "block", "gpudirect.peermem": "block", "fabric.manager": "block", "driver.branch": "block"}, state)
    assert [step.problems for step in steps] == [("driver.branch",), ("fabric.manager", "gpudirect.peermem"), ("container.toolkit",)]
    assert [step.decision.kind for step in steps] == ["remedy", "later", "remedy"]
    assert set(ORDER) >= {name.split(".")[0] for name in FINDINGS}


def test_a_warning_is_mended_where_nothing_is_interrupted() -> None:
    idle, busy = State(declared=("rdma_mtu",)), State(declared=("rdma_mtu",), serving=True, holders="ours")
    assert programme({"rdma.mtu": "warn"}, idle)[0].decision.kind == "remedy"
    assert "-e remediate_remedy=rdma_mtu" in programme({"rdma.mtu": "warn"}, busy)[0].decision.why
    # What is only told never leads to a remedy that stops a service.
    assert programme({"rdma.mtu": "info"}, idle)[0].decision.kind == "person"


def test_the_second_identical_failure_goes_to_a_person() -> None:
    state = State(peermem="loadable")
    assert decide("gpudirect.peermem", state).kind == "remedy"
    assert decide("gpudirect.peermem", state, {"peermem_load": 1}).kind == "given_up"


@pytest.mark.parametrize(
    ("problem", "state", "kind", "remedy"),
    [
        ("driver.branch", State(driver="old", allow=("driver",)), "remedy", "driver_upgrade"),
        ("driver.branch", State(driver="old"), "not_allowed", "driver_upgrade"),
        ("driver.branch", State(driver="old", holders="stuck", allow=("driver", "reboot")), "remedy", "reboot"),
        ("driver.branch", State(driver="old", holders="foreign", allow=("driver", "reboot")), "forbidden", "driver_upgrade"),
        ("driver.branch", State(driver="old", packages=("x: half-configured",), allow=("driver",)), "remedy", "driver_repair"),
        ("driver.loaded_is_installed", State(driver="pending", holders="foreign", allow=("driver",)), "not_allowed", "driver_activate"),
        ("driver.loaded_is_installed", State(driver="pending", holders="foreign", allow=("driver", "reboot")), "remedy", "driver_activate"),
        ("gpudirect.peermem", State(peermem="einval"), "person", ""),
        ("gpudirect.peermem", State(peermem="disagrees", allow=("driver",)), "remedy", "peermem_rebuild"),
        ("gpudirect.peermem", State(peermem="unbuilt", allow=("driver",)), "remedy", "peermem_rebuild"),
        ("gpudirect.peermem", State(peermem="unbuilt"), "not_allowed", "peermem_rebuild"),
        # What is built anew against the kernel's own modules has no peer memory either.
        ("gpudirect.peermem", State(peermem="symbol", allow=("driver",)), "person", ""),
        ("gpudirect.peermem", State(peermem="symbol", dmabuf=False, allow=("driver",)), "person", ""),
        ("gpudirect.peermem", State(peermem="absent", legacy_peermem=True, allow=("driver",)), "remedy", "peermem_legacy"),
        ("rdma_registration", State(dmabuf=False, peermem_everywhere=True, deployed=True), "remedy", "dmabuf_off"),
        ("rdma_registration", State(dmabuf=False, peermem="loadable", peermem_everywhere=False), "later", ""),
        ("rdma.ports", State(ports="init"), "person", ""),
        ("rdma.ports", State(ports="admin_down"), "remedy", "port_up"),
        ("rdma.ports", State(ports="admin_down", ssh=("mlx5_2",)), "forbidden", "port_up"),
        ("gpu.idle", State(holders="foreign"), "not_allowed", "holders_kill"),
        ("gpu.idle", State(holders="foreign", allow=("kill",)), "remedy", "holders_kill"),
        ("gpu.idle", State(holders="orphans", deployed=True), "remedy", "engine_clear"),
        ("fabric.imex", State(fabric="nvl72", imex="absent", allow=("driver",)), "remedy", "fabric_packages"),
        ("drift.imex_config", State(fabric="nvl72", imex="other_version", allow=("driver",)), "remedy", "fabric_packages"),
        ("fabric.state", State(fabric="nvl72"), "person", ""),
        ("fabric.state", State(fabric="hgx5"), "remedy", "fabric_restart"),
        ("container.gpu_visible", State(deployed=True), "remedy", "container_recreate"),
        ("image.digest", State(), "forbidden", "image_pull"),
        ("nvlink", State(fabric="nvl72", deployed=True), "forbidden", "nvls_off"),
        ("worker_lost", State(deployed=True, holders="ours"), "remedy", "engine_clear"),
    ],
)
def test_answers_that_matter(problem: str, state: State, kind: str, remedy: str) -> None:
    found = decide(problem, state)
    assert (found.kind, found.remedy) == (kind, remedy), found.why


def test_a_remedy_by_name_obeys_the_same_guards() -> None:
    assert check("gpu_reset", State(allow=("driver",))).kind == "remedy"
    assert check("gpu_reset", State(holders="foreign", allow=("driver",))).kind == "forbidden"
    with pytest.raises(KeyError):
        check("format_disk", State())


def test_the_table_is_data() -> None:
    """Every entry can be told to a machine."""
    for row in REMEDIES.values():
        json.dumps({key: value for key, value in row._asdict().items() if not callable(value) and key != "guards"})


def test_every_step_is_a_file_of_a_role() -> None:
    roles = Path(__file__).resolve().parents[3] / "roles"
    steps = {step for row in REMEDIES.values() for step in (*row.steps, row.undo) if step[0]}
    assert not {step for step in steps if not (roles / step[0] / "tasks" / (step[1] + ".yml")).exists()}


def test_packages_that_bring_imex_do_not_start_fabric_manager() -> None:
    """What runs then is told by the node's fabric, as what is installed is."""
    assert REMEDIES["fabric_packages"].steps == (("fabric", "packages"), ("fabric", "start"))
    assert REMEDIES["fabric_start"].steps == (("remediation", "fabric_start"),)


def tasks_in(found: object) -> list[dict]:
    """Tasks of a file, those in blocks included."""
    made = []
    for task in found if isinstance(found, list) else []:
        made += [task] + [inner for word in ("block", "rescue", "always") for inner in tasks_in(task.get(word))]
    return made


def test_no_role_reloads_systemd() -> None:
    """A reload takes the GPUs from running containers; `systemctl enable` reloads unless it goes past systemd."""
    seen = 0
    for path in sorted((Path(__file__).resolve().parents[3] / "roles").glob("*/*/*.yml")):
        for task in tasks_in(yaml.safe_load(path.read_text(encoding="utf-8"))):
            words = task.get("ansible.builtin.systemd_service") or {}
            assert "daemon_reload" not in words, path
            assert "daemon_reexec" not in words or "rdma_facts.gpu.unknown.holders is not defined" in task["when"], path
            if "enabled" in words:
                seen += 1
                # What is told to start or stop needs systemd, so it is a task of its own.
                assert task["environment"] == {"SYSTEMD_OFFLINE": "1"} and "state" not in words, path
    assert seen > 5
