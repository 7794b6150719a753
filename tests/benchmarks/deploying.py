# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures of deploying on two nodes of the lab: a deployment without a change, and what the unit adds to a start.

The nodes are those of the molecule scenario `deploy`. Where they are up already they are used as they are and left up.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAIRS = 5
"""Interleaved pairs of starts."""
# Runs on a node: start the service one way or the other, and give the seconds until the first token.
FIRST_TOKEN = r"""
import json, subprocess, sys, time, urllib.request
how, url, key = sys.argv[1:4]
command = json.loads(sys.argv[4])
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
body = json.dumps({"model": "moonshotai/Kimi-K3", "prompt": "a", "max_tokens": 1}).encode()
subprocess.run(["systemctl", "stop", "vllm.service"], check=True)
began = time.monotonic()
if how == "unit":
    # Three starts in two hours are what the unit allows without a person.
    subprocess.run(["systemctl", "reset-failed", "vllm.service"], check=False)
    began = time.monotonic()
    subprocess.run(["systemctl", "start", "--no-block", "vllm.service"], check=True)
else:
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while True:
    try:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
        opener.open(urllib.request.Request(url + "/v1/completions", body, headers), timeout=60).read()
        break
    except OSError:
        if time.monotonic() - began > 900:
            sys.exit("no token in 900 s")
        time.sleep(0.1)
print(time.monotonic() - began)
if how == "hand":
    subprocess.run(["docker", "stop", "vllm"], check=True, stdout=subprocess.DEVNULL)
    started.wait()
"""

Line = Callable[[str, float, float, str, str], None]


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, text=True, capture_output=True, check=False, env={**os.environ, **env})


def inventories() -> list[str]:
    lab = os.environ.get("INFEROPS_LAB_FOLDER", str(ROOT / "inventories" / "lab"))
    return ["-i", lab, "-i", str(ROOT / "molecule" / "deploy" / "inventory" / "hosts.yml")]


def checked(done: subprocess.CompletedProcess[str], what: str) -> str:
    if done.returncode:
        sys.exit("%s failed:\n%s%s" % (what, done.stdout[-3000:], done.stderr[-2000:]))
    return done.stdout


@contextlib.contextmanager
def deployed() -> Iterator[bool]:
    """Two nodes that serve; False where this machine cannot hold them."""
    if os.geteuid() != 0:
        print("skip: the lab needs root")
        yield False
        return
    up = json.loads(checked(run(sys.executable, "-m", "tests.lab", "status"), "the lab's status"))["up"]
    try:
        if not up:
            for step in ("create", "prepare", "converge"):
                checked(run("molecule", step, "-s", "deploy"), "molecule %s" % step)
        yield True
    finally:
        if not up:
            run("molecule", "destroy", "-s", "deploy")


def redeploy(line: Line) -> None:
    """Deployment without a change against ping and preflight of the same two nodes, three interleaved rounds, medians."""
    with deployed() as up, tempfile.TemporaryDirectory() as folder:
        if not up:
            return
        commands: dict[str, list[str]] = {
            "ping": ["ansible", "vllm_nodes", "-m", "ansible.builtin.ping"],
            "preflight": ["ansible-playbook", "inferops.vllm.preflight", "-e", "preflight_fail_on=never", "-e", "preflight_report_dir=%s/reports" % folder],
            "deploy": ["ansible-playbook", "inferops.vllm.deploy"],
        }
        walls: dict[str, list[float]] = {name: [] for name in commands}
        text = ""
        # The first round brings the release of now to the nodes and opens the connections.
        for round_ in range(4):
            for name, argv in commands.items():
                began = time.monotonic()
                text = checked(run(*argv, *inventories(), SCENARIO_FOLDER=folder), name)
                if round_:
                    walls[name].append(time.monotonic() - began)
        changed = sum(int(count) for count in re.findall(r"changed=(\d+)", text))
        tasks = max(int(count) for count in re.findall(r"^node\d+ .*ok=(\d+)", text, re.M))
        middle = {name: sorted(values)[1] for name, values in walls.items()}
        line("re-deploy / (ping + preflight)", middle["deploy"] / (middle["ping"] + middle["preflight"]), 1.5, "x",
             "wall %.1f s / (%.1f s + %.1f s); %d tasks a host, %d changed" % (middle["deploy"], middle["ping"], middle["preflight"], tasks, changed))


def first_token(line: Line) -> None:
    """Seconds from the start to the first token, through the unit and by `docker run` of the same command, interleaved pairs, medians."""
    with deployed() as up:
        if not up:
            return
        told = json.loads(checked(run("ansible-inventory", *inventories(), "--host", "node1", SCENARIO_FOLDER="/nonexistent"), "ansible-inventory"))
        url, key = "http://%s:8000" % told["vllm_host_ip"], told["vllm_api_key"]
        found = checked(run(*_ssh(told), "systemctl", "show", "--property=ExecStart", "--value", "vllm.service"), "systemctl show")
        argv = found.split("argv[]=", 1)[1].split(" ; ", 1)[0].split()
        seconds: dict[str, list[float]] = {"unit": [], "hand": []}
        for pair in range(PAIRS):
            for how in ("unit", "hand") if pair % 2 else ("hand", "unit"):
                script = "python3 - %s %s %s '%s'" % (how, url, key, json.dumps(argv))
                done = subprocess.run([*_ssh(told), script], input=FIRST_TOKEN, text=True, capture_output=True, check=False)
                seconds[how].append(float(checked(done, "a start").split()[-1]))
        checked(run(*_ssh(told), "systemctl", "start", "vllm.service"), "systemctl start")
        ratios = sorted(unit / hand for unit, hand in zip(seconds["unit"], seconds["hand"]))
        noise = (max(seconds["hand"]) - min(seconds["hand"])) / sorted(seconds["hand"])[PAIRS // 2]
        line("start to first token, unit / by hand", ratios[PAIRS // 2], 1.0 + max(0.05, noise), "x", "unit %s s, by hand %s s; noise of the latter %.0f %%" % (
            _seconds(seconds["unit"]), _seconds(seconds["hand"]), 100 * noise))


def _seconds(values: list[float]) -> str:
    return " ".join("%.1f" % value for value in values)


def _ssh(told: dict[str, Any]) -> list[str]:
    return ["ssh", "-i", told["ansible_ssh_private_key_file"], *told["ansible_ssh_common_args"].split(), "root@" + told["ansible_host"]]
