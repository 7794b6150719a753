# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m tests.benchmarks [NAME …]: run the measures and print each as a ratio against its limit.

These are measures, not tests: they compare two things in one run on one machine, so that the
ratio means the same on a slow machine as on a fast one.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import yaml

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge as judging
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Node
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import SECTIONS, Options, gather
from ansible_collections.inferops.vllm.plugins.module_utils.plan.build import build
from ansible_collections.inferops.vllm.plugins.module_utils.plan.render import files
from ansible_collections.inferops.vllm.plugins.module_utils.plan.resolve import resolve
from tests.benchmarks import deploying, serving, verdicts
from tests.costume import Spec, dress

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "inventories" / "demo"
IMAGE = "vllm/vllm-openai:kimi-k3"


def run(*argv: str, **env: str) -> Tuple[float, float, subprocess.CompletedProcess]:
    """Wall and CPU seconds (children included) of a command, and its outcome."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, text=True, capture_output=True, check=False, env={**os.environ, **env})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - started, cpu, done


def line(name: str, value: float, limit: float, unit: str, note: str) -> None:
    mark = "ok  " if value <= limit else "OVER"
    print("%s %-34s %8.2f %-6s limit %-7g %s" % (mark, name, value, unit, limit, note), flush=True)


def preflight_200() -> None:
    """200 recorded nodes against a ping of the same 200 hosts, same forks, three interleaved pairs, medians."""
    roots = sorted(str(path) for path in (ROOT / "inventories" / "recorded").glob("b300-*"))
    hosts = {
        "node-%03d" % i: {"vllm_node_root": roots[i % len(roots)], "ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        for i in range(200)
    }
    with tempfile.TemporaryDirectory() as folder:
        inventory = pathlib.Path(folder) / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"vllm_nodes": {"hosts": hosts}}))
        walls: Dict[str, List[float]] = {"ping": [], "preflight": []}
        cpus: Dict[str, List[float]] = {"ping": [], "preflight": []}
        for _pair in range(3):
            for name, argv in (
                ("ping", ("ansible", "all", "-i", str(inventory), "-m", "ansible.builtin.ping", "-f", "10")),
                ("preflight", ("ansible-playbook", "inferops.vllm.preflight", "-i", str(inventory), "-f", "10",
                               "-e", "preflight_fail_on=never", "-e", "preflight_report_dir=%s/reports" % folder)),
            ):
                wall, cpu, done = run(*argv)
                if done.returncode:
                    sys.exit("%s failed:\n%s%s" % (name, done.stdout[-2000:], done.stderr[-2000:]))
                walls[name].append(wall)
                cpus[name].append(cpu)
        middle = {name: sorted(values)[1] for name, values in walls.items()}
        spent = {name: sorted(values)[1] for name, values in cpus.items()}
        line("preflight of 200 nodes / ping", middle["preflight"] / middle["ping"], 1.5, "x",
             "aim 1.25; wall %.1f s / %.1f s, CPU %.1f s / %.1f s" % (middle["preflight"], middle["ping"], spent["preflight"], spent["ping"]))


def remediate_200() -> None:
    """`remediate --check` of 200 healthy recorded nodes against their preflight, same forks, three interleaved pairs, medians.

    BENCH_NODES takes fewer nodes, BENCH_PAIRS fewer pairs where the machine is busy.
    """
    pairs = int(os.environ.get("BENCH_PAIRS", "3"))
    count = int(os.environ.get("BENCH_NODES", "200"))
    roots = sorted(str(path) for path in (ROOT / "inventories" / "recorded").glob("b300-01"))
    hosts = {
        "node-%03d" % i: {"vllm_node_root": roots[i % len(roots)], "ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        for i in range(count)
    }
    with tempfile.TemporaryDirectory() as folder:
        inventory = pathlib.Path(folder) / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"vllm_nodes": {"hosts": hosts}}))
        walls: Dict[str, List[float]] = {"preflight": [], "remediate": []}
        cpus: Dict[str, List[float]] = {"preflight": [], "remediate": []}
        for _pair in range(pairs):
            for name, argv in (
                ("preflight", ("-e", "preflight_fail_on=never", "-e", "preflight_report_dir=%s/reports" % folder)),
                ("remediate", ("--check", "-e", "remediate_report_dir=%s/reports" % folder)),
            ):
                wall, cpu, done = run("ansible-playbook", "inferops.vllm." + name, "-i", str(inventory), "-f", "10", *argv)
                if done.returncode:
                    sys.exit("%s failed:\n%s%s" % (name, done.stdout[-2000:], done.stderr[-2000:]))
                walls[name].append(wall)
                cpus[name].append(cpu)
        middle = {name: sorted(values)[pairs // 2] for name, values in walls.items()}
        spent = {name: sorted(values)[pairs // 2] for name, values in cpus.items()}
        line("remediate --check of %d nodes / preflight" % count, middle["remediate"] / middle["preflight"], 1.3, "x",
             "wall %.1f s / %.1f s, CPU %.1f s / %.1f s" % (middle["remediate"], middle["preflight"], spent["remediate"], spent["preflight"]))


def judging_time() -> None:
    """CPU seconds to judge 1,000 and 10,000 nodes with all checks."""
    base = [json.dumps(gather(dress(Spec("b300-%02d" % i, index=i, faults=faults)), Options(image=IMAGE)))
            for i, faults in enumerate((frozenset(), frozenset(), frozenset({"driver_r575"}), frozenset({"image_drift"})), 1)]

    def seconds(count: int) -> Tuple[float, int]:
        # Every node has facts of its own, as in a real run.
        nodes = [Node("node-%05d" % i, json.loads(base[i % len(base)]), {"host_ip": None, "interface": None, "groups": ["vllm_nodes"]}) for i in range(count)]
        started = time.process_time()
        findings = judging.judge(nodes, resolve({}, nodes))
        judging.verdicts(nodes, findings)
        return time.process_time() - started, len(findings)

    seconds(10)
    small, findings = seconds(1000)
    line("judging 1,000 nodes", small, 5.0, "s CPU", "%d findings" % findings)
    large, findings = seconds(10000)
    line("judging 10,000 / 1,000 nodes", large / small, 12.0, "x", "%.1f s CPU, %d findings, peak memory %d MiB" % (
        large, findings, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))


def facts_size() -> None:
    """Bytes of the facts of an 8-GPU node and of an NVL72 tray."""
    for hardware in ("b300", "gb300"):
        facts = gather(dress(Spec("%s-01" % hardware, hardware)), Options(image=IMAGE))
        size = len(json.dumps(facts, separators=(",", ":")))
        parts = {k: len(json.dumps(v, separators=(",", ":"))) for k, v in facts.items() if isinstance(v, dict)}
        line("facts of one %s node" % hardware, size / 1024, 32, "KB", ", ".join("%s %.1f" % (k, v / 1024) for k, v in parts.items()))


LIVE = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
started = time.monotonic()
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader
facts = gather(LiveReader(float(sys.argv[2])), Options())
print(json.dumps([time.monotonic() - started, sorted("%s.%s" % (s, p) for s, v in facts.items() if isinstance(v, dict) for p in v.get("unknown", {}))]))
"""


def live_facts() -> None:
    """node_facts on this machine, and with every external command hanging."""
    _wall, _cpu, done = run(sys.executable, "-c", LIVE, str(ROOT / "collections"), "10")
    seconds, _unknown = json.loads(done.stdout)
    line("node_facts, live", seconds, 2.0, "s", "Python start not counted")
    with tempfile.TemporaryDirectory() as folder:
        names = {str(argv[0]) for module in SECTIONS.values() for argv in module.commands(Options(image=IMAGE))}
        for name in names:
            script = pathlib.Path(folder) / name
            script.write_text("#!/bin/sh\nsleep 60\n")
            script.chmod(0o755)
        _wall, _cpu, done = run(sys.executable, "-c", LIVE, str(ROOT / "collections"), "3", PATH="%s:%s" % (folder, os.environ["PATH"]))
        seconds, unknown = json.loads(done.stdout)
        line("node_facts, %d commands hanging" % len(names), seconds, 3.0 + 3.0, "s", "timeout 3 s; %d parts unknown" % len(unknown))


def plan_72() -> None:
    """CPU seconds to plan 72 nodes with facts and to render all their files, the slowest of the usual shapes."""
    facts = {hardware: [gather(dress(Spec("node-%d" % i, hardware, i)), Options(image=IMAGE)) for i in range(1, 73)] for hardware in ("b300", "gb300")}
    slowest, which, size = 0.0, "", 0
    for hardware, strategy in (("b300", "single_node_tp"), ("b300", "multi_node_dep"), ("gb300", "multi_node_dep")):
        nodes = [Node("node-%02d" % i, one, {"groups": ["vllm_nodes"]}) for i, one in enumerate(facts[hardware], 1)]
        started = time.process_time()
        made = files(build({"vllm_hardware": hardware, "vllm_strategy": strategy}, nodes))
        seconds = time.process_time() - started
        if len(made) != 1 + 72 * 3:
            sys.exit("the plan of 72 %s nodes was refused" % hardware)
        if seconds > slowest:
            slowest, which, size = seconds, "%s %s" % (hardware, strategy), len(made["plan.json"]) // 1024
    line("plan for 72 nodes", slowest, 1.0, "s CPU", "%s; plan.json %d KB" % (which, size))


def lab_ssh() -> None:
    """Preflight of four container nodes of the lab over SSH: wall time in all. Brings the nodes up and takes them down again."""
    lab = (sys.executable, "-m", "tests.lab")
    if os.geteuid() != 0:
        print("skip lab_ssh: the lab needs root")
        return
    _wall, _cpu, done = run(*lab, "status")
    if done.returncode or json.loads(done.stdout)["up"]:
        print("skip lab_ssh: a lab is up already, which this would take down")
        return
    try:
        _wall, _cpu, done = run(*lab, "up", "--nodes", "4", "--no-image")
        if done.returncode == 2:
            print("skip lab_ssh: %s" % done.stderr.strip()[-300:])
            return
        if done.returncode:
            sys.exit("the lab did not come up:\n%s" % done.stderr[-2000:])
        # `up` prints where it wrote the inventory.
        inventory = done.stderr.rsplit(" -i ", 1)[-1].split()[0]
        walls = []
        with tempfile.TemporaryDirectory() as folder:
            # The first run opens the connections; they are closed again after each.
            for _run in range(3):
                wall, cpu, done = run(
                    "ansible-playbook", "inferops.vllm.preflight", "-i", inventory, "-e", "preflight_fail_on=never",
                    "-e", "preflight_report_dir=%s/reports" % folder, ANSIBLE_SSH_ARGS="-o ControlMaster=no")
                verdicts = json.loads(pathlib.Path(folder, "reports", "preflight.json").read_text())["nodes"]
                if done.returncode or "unreachable" in {node["verdict"] for node in verdicts.values()} or len(verdicts) != 4:
                    sys.exit("preflight failed:\n%s%s" % (done.stdout[-2000:], done.stderr[-2000:]))
                walls.append(wall)
        line("preflight of 4 SSH nodes", sorted(walls)[1], 10.0, "s", "new connections each time, slowest of 3 %.1f s, CPU %.1f s here" % (
            max(walls), cpu))
    finally:
        run(*lab, "down")


BENCHMARKS: Dict[str, Callable[[], Any]] = {
    "size": facts_size, "judge": judging_time, "live": live_facts, "preflight": preflight_200, "remediate": remediate_200, "plan": plan_72,
    "lab_ssh": lab_ssh, "redeploy": lambda: deploying.redeploy(line), "first_token": lambda: deploying.first_token(line),
    "ramp_against_vllm": lambda: serving.ramp_against_vllm(line), "client_cpu": lambda: serving.client_cpu(line),
    "first_three": lambda: serving.first_three(line), "verdicts": lambda: verdicts.verdicts(line),
}


def main() -> None:
    wanted = sys.argv[1:] or list(BENCHMARKS)
    for name in wanted:
        if name not in BENCHMARKS:
            sys.exit("no benchmark is called %r; there are %s" % (name, ", ".join(BENCHMARKS)))
    os.environ["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")
    for name in wanted:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
