# SPDX-License-Identifier: GPL-3.0-or-later
"""The example rulebook: valid, and run for real where Java 17 is present."""

from __future__ import annotations

import importlib.resources
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import jsonschema
import pytest
import yaml

from tests.costume import Spec

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULEBOOK = ROOT / "docs" / "examples" / "remediate-rulebook.yml"


def test_the_rulebook_is_valid() -> None:
    schema = json.loads((importlib.resources.files("ansible_rulebook") / "schema" / "ruleset_schema.json").read_text())
    jsonschema.validate(yaml.safe_load(RULEBOOK.read_text()), schema)


def test_its_playbooks_and_variables_are_there() -> None:
    for rule in yaml.safe_load(RULEBOOK.read_text())[0]["rules"]:
        action = rule["action"]["run_playbook"]
        assert (ROOT / "playbooks" / (action["name"].rsplit(".", 1)[1] + ".yml")).exists()
        assert set(action["extra_vars"]) <= {"remediate_allow", "remediate_report_dir"}


def java() -> int:
    """Major version of Java, 0 when there is none."""
    if not shutil.which("java"):
        return 0
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found.group(1)) if found else 0


@pytest.mark.skipif(java() < 17, reason="ansible-rulebook needs Java 17")
def test_an_alert_starts_the_remediation_of_its_node_alone(inventory, tmp_path) -> None:
    faulty = Spec(name="", hardware="b300", index=1, faults=frozenset(("peermem_missing",)))
    hosts = inventory({"one": faulty, "two": faulty._replace(index=2)}, vllm_hardware="b300", vllm_interconnect="rdma")
    content = yaml.safe_load(hosts.read_text())
    # The rulebook engine copies the inventory elsewhere, where a relative path leads nowhere.
    for variables in content["vllm_nodes"]["hosts"].values():
        variables["vllm_node_root"] = str(hosts.parent / variables["vllm_node_root"])
    hosts.write_text(yaml.safe_dump(content))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    reports = tmp_path / "reports"
    (tmp_path / "vars.yml").write_text(json.dumps({"listen": "127.0.0.1", "port": port, "report_dir": str(reports)}))
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
    with open(tmp_path / "log", "wb") as log:
        engine = subprocess.Popen(
            [sys.executable, "-m", "ansible_rulebook", "--rulebook", str(RULEBOOK), "-i", str(hosts), "--vars", str(tmp_path / "vars.yml")],
            cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        alerts = [{"status": "firing", "labels": {"alertname": "VllmRdmaPathLost", "node": "one"}},
                  {"status": "resolved", "labels": {"alertname": "VllmRdmaPathLost", "node": "two"}}]
        post("http://127.0.0.1:%d/" % port, {"version": "4", "alerts": alerts}, time.monotonic() + 60)
        deadline = time.monotonic() + 120
        report = reports / "remediation.json"
        while not (report.exists() and json.loads(report.read_text())["ended"]):
            assert time.monotonic() < deadline and engine.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.5)
        document = json.loads(report.read_text())
        assert list(document["nodes"]) == ["one"]
        assert document["nodes"]["one"]["steps"][0]["remedy"] == "peermem_load"
    finally:
        engine.terminate()
        try:
            engine.wait(20)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()


def post(url: str, body: object, deadline: float) -> None:
    """Send until somebody listens."""
    while True:
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=10):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)
