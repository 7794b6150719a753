# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan/render.py: what is written is what was planned, whatever the words."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import shutil
import subprocess
from typing import Any, Dict, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.plan import render
from ansible_collections.inferops.vllm.plugins.module_utils.service import agent
from ansible_collections.inferops.vllm.plugins.plugin_utils.plan_text import summary
from tests.unit.plan.cluster import cluster, dressed, every_case, planned, pools, sound


def shell_words(script: str) -> List[str]:
    """Words of the script's one long command."""
    lines = [line for line in script.splitlines() if not line.startswith(("#", "cd "))]
    return shlex.split("\n".join(lines).replace("\\\n", " "))


def systemd_words(unit: str, key: str) -> List[str]:
    """Words of a command line of a unit, read by the rules of systemd.service(5) for quotes, specifiers and variables."""
    text = unit.replace("\\\n", " ")
    line = re.search(r"^%s=(.*)$" % key, text, re.M)
    assert line
    words, word, quoted, started = [], "", False, False
    chars = iter(line.group(1))
    for char in chars:
        if char == "\\" and quoted:
            char = next(chars)
            word += chr(int("".join(next(chars) for _digit in range(4)), 16)) if char == "u" else char
        elif char == '"':
            quoted, started = not quoted, True
        elif char.isspace() and not quoted:
            if word or started:
                words.append(word)
            word, started = "", False
        else:
            word += char
    words += [word] if word or started else []
    assert not re.search(r"%(?!%)", "".join(words).replace("%%", "")) and not re.search(r"\$", "".join(words).replace("$$", ""))
    return [item.replace("%%", "%").replace("$$", "$") for item in words]


def dep() -> Dict[str, Any]:
    return sound([dressed(1), dressed(2)], hardware="b300", strategy="multi_node_dep", interconnect="rdma")


def test_command_and_unit_run_exactly_the_planned_argv() -> None:
    for name, entry in dep()["nodes"].items():
        for words in (shell_words(render.command(name, entry)), systemd_words(render.unit(name, entry), "ExecStart")):
            assert words[0].rsplit("/", 1)[-1] == "docker" and words[1:5] == ["run", "--rm", "--name", "vllm"]
            at = words.index(entry["image"])
            assert words[at + 1:] == entry["argv"][2:]
            assert [word for word in entry["container"] if word not in words[:at]] == []


word = st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable() and text.strip() == text and not text.startswith("-"))


@given(word)
def test_any_value_comes_through_shell_and_systemd(value: str) -> None:
    entry = {"role": "head", "rank": 0, "engine": "e", "argv": ["vllm", "serve", "m", "--chat-template", value], "env": {}, "image": "i", "container": [],
             "container_engine": "docker", "stop_seconds": 90}
    assert shell_words(render.command("n", entry))[-2:] == ["--chat-template", value]
    assert systemd_words(render.unit("n", entry), "ExecStart")[-2:] == ["--chat-template", value]


@pytest.mark.parametrize("value", ["{\n  \"level\": 3\n}\n", "a\rb", "\n", "a\x0bb\x7f\x85\u2028", "a\\\nb", "\\u000a"])
def test_no_control_character_breaks_the_line_of_a_unit(value: str) -> None:
    entry = {"role": "head", "rank": 0, "engine": "e", "argv": ["vllm", "serve", "m", "--x", value, "--port", "1"], "env": {}, "image": "i", "container": [],
             "container_engine": "docker", "stop_seconds": 90}
    unit = render.unit("n", entry)
    assert not any(char < " " for char in unit.replace("\n", "")) and len(unit.splitlines()) == unit.count("\n")
    assert systemd_words(unit, "ExecStart")[-4:] == ["--x", value, "--port", "1"]


def test_environment_is_what_docker_reads() -> None:
    entry = dep()["nodes"]["n1"]
    lines = render.environment(entry).splitlines()
    assert dict(line.split("=", 1) for line in lines) == entry["env"] and lines == sorted(lines)
    assert render.environment_text({"A": "1\n2"}, False) == "A=1 2\n"


def test_the_unit_stops_by_the_engine_restarts_a_dead_engine_and_not_a_refused_argument() -> None:
    unit = render.unit("n1", dep()["nodes"]["n1"])
    assert {"Restart=always", "RestartPreventExitStatus=2", "KillMode=mixed", "Requires=docker.service", "ExecStop=-/usr/bin/docker stop --time 90 vllm",
            "TimeoutStopSec=120", "ExecStopPost=-/usr/bin/docker rm --force vllm", "RequiresMountsFor=/var/lib/vllm"} <= set(unit.splitlines())
    assert "VLLM_" not in unit and "NCCL_" not in unit


def test_podman_uses_cdi_and_does_not_wait_for_docker() -> None:
    entry = sound(cluster(1), hardware="b300", strategy="single_node_tp", engine="podman")["nodes"]["n1"]
    unit = render.unit("n1", entry)
    assert render.unit_name(entry) == "vllm.container" and "docker" not in unit and "ExecStart=" not in unit
    assert systemd_words(unit, "Exec") == entry["argv"][2:]
    given = [word for line in re.findall(r"^PodmanArgs=(.*)$", unit, re.M) for word in shlex.split(line)]
    assert given == ["--pull", "never", "--log-driver", "passthrough", "--stop-timeout", "90"] + entry["container"] and "nvidia.com/gpu=all" in given


def test_router_has_a_unit_of_its_own() -> None:
    plan = sound(pools(1, 2), hardware="b300", strategy="pd_cluster", interconnect="rdma")
    entry = plan["nodes"]["n4"]
    assert render.unit_name(entry) == "vllm-router.service" and render.unit_name(plan["nodes"]["n1"]) == "vllm.service"
    assert systemd_words(render.unit("n4", entry), "ExecStart")[1:] == entry["argv"][1:]
    assert shell_words(render.command("n4", entry))[1:] == entry["argv"][1:]
    boxed = sound(pools(1, 2), hardware="b300", strategy="pd_cluster", interconnect="rdma", router_image="registry.example/router:1")["nodes"]["n4"]
    words = shell_words(render.command("n4", boxed))
    assert words[words.index("registry.example/router:1") + 1:] == boxed["argv"]


def test_files_are_named_by_node_and_a_refusal_has_only_the_plan() -> None:
    plan = dep()
    assert sorted(render.files(plan)) == sorted(["plan.json"] + ["%s/%s" % (node, name) for node in ("n1", "n2") for name in (
        "command.sh", "service.env", "vllm.service")])
    assert json.loads(render.files(plan)["plan.json"]) == plan
    assert list(render.files(planned(cluster(1), hardware="b200", strategy="single_node_tp"))) == ["plan.json"]


def test_a_placeholder_is_said_in_the_command() -> None:
    plan = sound(cluster(2, interface=None), hardware="b300", strategy="multi_node_tp", interconnect="rdma")
    assert "IFACE_OF_" in render.command("n1", plan["nodes"]["n1"])
    assert "IFACE_OF_" not in render.command("n1", dep()["nodes"]["n1"])


@pytest.mark.skipif(not shutil.which("sh"), reason="needs a shell")
def test_scripts_parse(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "command.sh"
    for name, entry in dep()["nodes"].items():
        script.write_text(render.command(name, entry))
        subprocess.run(["sh", "-n", str(script)], check=True)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_accepts_every_unit(tmp_path: pathlib.Path) -> None:
    units = {}
    plans = [dep(), sound(pools(1, 2), hardware="b300", strategy="pd_cluster", interconnect="rdma"),
             sound(cluster(1), hardware="mi355x", strategy="single_node_tp", runtime="venv"),
             sound(cluster(1), hardware="b300", strategy="single_node_tp", overrides={"chat-template": 'a "b" $HOME %h \\ c'}),
             sound(cluster(1), hardware="b300", strategy="single_node_tp", overrides={"compilation_config": '{\n  "level": 3\n}\n'})]
    for entry in plans[0]["nodes"].values():
        # What a plan would not take in still must not break the unit.
        entry["argv"] += ["--x", "a\nb\rc\x0b\x85\u2028"]
    for number, plan in enumerate(plans):
        for name, entry in plan["nodes"].items():
            # The programs are not on this machine, and neither is what the unit waits for.
            text = re.sub(r"/usr/bin/docker|/opt/vllm(?:-router)?/bin/vllm(?:-router)?|/usr/local/libexec/\S+", "/bin/true", render.unit(name, entry))
            units[tmp_path / ("p%d-%s.service" % (number, name))] = text.replace("Requires=docker.service\n", "")
    for path, text in units.items():
        path.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *map(str, units)], capture_output=True, text=True, check=False, timeout=60)
    about = [line for line in done.stderr.splitlines() if any(path.name in line for path in units)]
    assert done.returncode == 0 and about == [], done.stderr
    broken = tmp_path / "broken.service"
    broken.write_text("[Service]\nExecStart=/bin/true\nRestart=maybe\n")
    assert "maybe" in subprocess.run(["systemd-analyze", "verify", str(broken)], capture_output=True, text=True, check=False, timeout=60).stderr


def exposure(folder: pathlib.Path, unit: str) -> float:
    """Exposure level of `unit` by systemd-analyze, 0 (safe) to 10."""
    path = folder / "vllm.service"
    path.write_text(unit)
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)], capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"Overall exposure level for vllm\.service: ([0-9.]+)", done.stdout)
    if not found:
        pytest.skip("systemd-analyze cannot judge a file: %s" % done.stderr.strip()[:100])
    return float(found.group(1))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_units_may_do_no_more_than_they_must(tmp_path: pathlib.Path) -> None:
    docker = dep()["nodes"]["n1"]
    venv = sound(cluster(1), hardware="b300", strategy="single_node_tp", runtime="venv")["nodes"]["n1"]
    assert exposure(tmp_path, render.unit("n1", docker)) <= 0.7
    assert exposure(tmp_path, render.unit("n1", venv)) <= 2.0
    assert exposure(tmp_path, agent.UNIT) <= 1.6
    assert exposure(tmp_path, re.sub(r"(?m)^(?:Protect|Private|Restrict|Capability|SystemCall).*\n", "", render.unit("n1", docker))) > 5


def test_a_virtual_environment_runs_the_planned_argv_as_a_user_of_its_own() -> None:
    entry = sound(cluster(1), hardware="b300", strategy="single_node_tp", runtime="venv", venv="/srv/vllm", env_overrides={"A": 'x "y" $z'})["nodes"]["n1"]
    unit = render.unit("n1", entry)
    assert systemd_words(unit, "ExecStart") == ["/srv/vllm/bin/vllm"] + entry["argv"][1:]
    assert {"DynamicUser=yes", "KillMode=mixed", "TimeoutStopSec=90", "EnvironmentFile=/etc/vllm/service.env", "EnvironmentFile=-/etc/vllm/secrets.env"} <= set(
        unit.splitlines())
    assert entry["image"] == "" and entry["container"] == [] and "docker" not in unit
    assert 'A="x \\"y\\" \\$z"\n' in render.environment(entry)
    words = shell_words(render.command("n1", entry).replace("set -a\n. ./service.env\nset +a\n", ""))
    assert words == ["exec", "/srv/vllm/bin/vllm", "serve"] + entry["argv"][2:]


def test_ranks_of_one_engine_wait_for_each_other_and_starts_are_counted_on_the_head() -> None:
    plan = sound(cluster(2), hardware="b300", strategy="multi_node_tp", interconnect="rdma")["nodes"]
    head, worker = (render.unit(name, plan[name]).splitlines() for name in ("n1", "n2"))
    for unit in (head, worker):
        at = [unit.index(line) for line in ("ExecStartPre=/usr/local/libexec/inferops-vllm/vllm-link wait",
                                            "ExecStartPre=-/usr/bin/install --mode=0644 /etc/vllm/release.json /run/vllm/started.json")]
        assert at == sorted(at) and "TimeoutStartSec=infinity" in unit and "vllm-link.service" in next(line for line in unit if line.startswith("After="))
    assert "StartLimitBurst=3" in head and "StartLimitIntervalSec=0" in worker and "StartLimitBurst=3" not in worker
    alone = render.unit("n1", sound(cluster(1), hardware="b300", strategy="single_node_tp")["nodes"]["n1"])
    assert "vllm-link" not in alone and "infinity" not in alone and render.link_config({"link": None}) == ""


def test_nothing_is_pulled_and_the_log_is_the_journals() -> None:
    unit = render.unit("n1", dep()["nodes"]["n1"])
    words = systemd_words(unit, "ExecStart")
    assert words[words.index("--pull") + 1] == "never" and words[words.index("--log-driver") + 1] == "none" and "LogRateLimitIntervalSec=0" in unit
    assert [words[at + 1] for at, word in enumerate(words) if word == "--env-file"] == ["/etc/vllm/service.env", "/etc/vllm/secrets.env"]


# -- the summary -------------------------------------------------------------------------------------------------
def text_of(plan: Dict[str, Any]) -> str:
    lines = [line for line, _color in summary(plan, "The plan stands in /srv/plan")]
    assert all(len(line) <= 100 for line in lines), max(lines, key=len)
    return "\n".join(lines)


def test_every_summary_fits_100_columns() -> None:
    for case in every_case(("",)):
        plan = case.plan()
        text = text_of(plan)
        assert ("PLAN REFUSED" in text) == bool(plan["refused"])


def test_summary_names_engines_flags_and_what_was_assumed() -> None:
    text = text_of(dep())
    assert "ENGINE   2 nodes, 16 GPUs" in text and "1,680 GB of weights into 2 × 2,144 GB" in text
    assert "--all2all-backend deepep_v2" in text and "NCCL_IB_HCA==mlx5_0" in text and "http://192.0.2.11:8000" in text


def test_summary_shows_refusals_first_and_folds_many_engines() -> None:
    text = text_of(planned(cluster(1), hardware="b200", strategy="single_node_tp"))
    assert text.index("✘ the weights do not fit") < text.index("ASSUMED")
    many = text_of(sound(cluster(72), hardware="b300", strategy="single_node_tp"))
    assert "and 71 more engines like it: n2..72" in many and len(many.splitlines()) < 40


def test_summary_survives_a_plan_of_bad_words() -> None:
    assert "vllm_hardware" in text_of(planned(cluster(1), hardware="\x1b[31mevil"))
