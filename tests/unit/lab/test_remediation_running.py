# SPDX-License-Identifier: GPL-3.0-or-later
"""Remedies on nodes where a real vLLM serves: the files of the release, its variables, and whether it serves again afterwards.

Asked for with `pytest -m lab tests/unit/lab/test_remediation_running.py` (root; a few minutes on an idle machine once root file system and image
are in the cache). Does not touch a lab that is up already. The tests build on each other, in this order, on two replicas.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.lab import costume
from tests.lab.image import checkpoint
from tests.lab.settings import REPOSITORY, Settings
from tests.unit.lab import own

KEY = "remediation-key-71c0"
SCHEMA = json.loads((REPOSITORY / "docs" / "schemas" / "remediation-report-1.schema.json").read_text(encoding="utf-8"))
DECLARED = {"vllm_nodes": {"vars": {
    "vllm_hardware": "cpu", "vllm_interconnect": "none", "vllm_strategy": "single_node_tp", "vllm_features": [], "vllm_model": "/var/lib/vllm/tiny",
    "vllm_image": "{{ lab_image }}", "vllm_version": "0.32.0", "vllm_env_overrides": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    "vllm_registry": "{{ lab_registry }}", "vllm_registry_user": "{{ lab_registry_user }}", "vllm_registry_ca_file": "{{ lab_registry_ca_file }}",
    "vllm_registry_password": "{{ lookup('ansible.builtin.file', lab_registry_password_file) }}", "vllm_api_key": KEY,
    "verify_features": [], "deploy_serial": 2, "preflight_timeout": 60, "remediate_budget": 20}}}

pytestmark = pytest.mark.lab


class Run:
    """Outcome of one remediation."""

    def __init__(self, rc: int, text: str, report: dict[str, Any]) -> None:
        self.rc, self.text, self.report = rc, text, report

    @property
    def done(self) -> list[tuple[str, str, bool]]:
        return [(one["remedy"], node, one["outcomes"][node]["mended"]) for one in self.report["rounds"] for node in one["act"]]


class Lab:
    """Two replicas, changed through playbooks and looked at without them."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        (folder / "declared.json").write_text(json.dumps(DECLARED), encoding="utf-8")

    def shell(self, node: str, command: str) -> str:
        return costume.run(self.settings, costume.find(self.settings, node), command).strip()

    def ansible(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return own.ansible(self.settings, program, "-i", str(self.folder / "declared.json"), *arguments, cwd=self.folder, ANSIBLE_NOCOLOR="1",
                           ANSIBLE_FORCE_COLOR="0")

    def remediate(self, *options: str, **words: Any) -> Run:
        folder = self.folder / "reports"
        (folder / "remediation.json").unlink(missing_ok=True)
        began = time.monotonic()
        done = self.ansible("ansible-playbook", "inferops.vllm.remediate", "-e", json.dumps(words), *options)
        print(f"{words} {options}: {time.monotonic() - began:.0f} s")
        assert (folder / "remediation.json").exists(), done.stdout[-3000:]
        report = json.loads((folder / "remediation.json").read_text(encoding="utf-8"))
        jsonschema.validate(report, SCHEMA)
        return Run(done.returncode, done.stdout, report)

    def start(self, node: str) -> str:
        return self.shell(node, "systemctl show --property=InvocationID --value vllm.service")

    def environment(self, node: str) -> dict[str, str]:
        """Variables of the server that runs."""
        text = self.shell(node, "tr '\\0' '\\n' < /proc/$(pgrep -of 'vllm serve')/environ")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


@pytest.fixture(scope="module")
def replicas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    settings = own.asked(request, "boots nodes and serves a model for minutes")
    folder = tmp_path_factory.mktemp("remediation")
    with own.nodes(settings, 2, image=True):
        one = Lab(settings, folder)
        checkpoint.write(folder / "tiny")
        copied = one.ansible("ansible", "vllm_nodes", "-m", "ansible.builtin.copy", "-a", f"src={folder}/tiny/ dest=/var/lib/vllm/tiny/ mode=preserve")
        assert copied.returncode == 0, copied.stdout
        deployed = one.ansible("ansible-playbook", "inferops.vllm.deploy")
        assert deployed.returncode == 0, deployed.stdout[-4000:]
        yield one


def test_settings_that_drifted_are_written_again_and_the_service_is_proven(replicas: Lab) -> None:
    path = replicas.shell("node2", "ls /etc/vllm/*.env | grep -v secrets | head -1")
    deployed = replicas.shell("node2", f"cat {path}")
    replicas.shell("node2", f"echo NCCL_DEBUG=TRACE >> {path}")
    before = {node: replicas.start(node) for node in ("node1", "node2")}
    looked = replicas.remediate("--check", remediate_remedy="settings_write", remediate_areas=["drift"])
    assert looked.rc == 0 and {node: replicas.start(node) for node in before} == before
    run = replicas.remediate("--limit", "node2,localhost", remediate_remedy="settings_write", remediate_areas=["drift"])
    assert run.rc == 0, run.text[-4000:]
    assert run.done == [("settings_write", "node2", True)]
    # Nobody named a folder for it.
    assert [path.name.split(".")[0] for path in (replicas.folder / "evidence").rglob("*.tar.gz")] == ["node2"]
    assert replicas.shell("node2", f"cat {path}") == deployed
    assert replicas.start("node1") == before["node1"] and replicas.start("node2") != before["node2"]
    assert "NCCL_DEBUG" not in replicas.environment("node2")
    proof = run.report["proof"]
    assert (proof["nodes"], proof["verdict"]) == (["node2"], "passed"), proof
    assert proof["stages"] == {"start": "passed", "request": "passed", "prefix": "passed"}
    assert json.loads(Path(proof["report"]).read_text(encoding="utf-8"))["record"]["nodes"] == ["node2"], "the other replica is none of its business"


def test_errno_524_turns_dma_buf_off_where_peermem_is_loaded(replicas: Lab) -> None:
    # Deployed for processors, and dressed afterwards: the plan would refuse the costume.
    costume.dress(replicas.settings, "node1", "b300", ["errno_524"])
    before = replicas.start("node2")
    failed = {"failed": True, "class": "rdma_registration", "first_failure": {"node": "node1", "text": "mlx5dv_reg_dmabuf_mr failed with errno 524"}}
    run = replicas.remediate(remediate_diagnosis={"schema": "inferops.vllm/diagnosis/1", "cases": [failed]}, remediate_areas=["gpudirect"])
    assert run.done == [("dmabuf_off", "node1", True)], run.text[-4000:]
    assert replicas.environment("node1")["NCCL_DMABUF_ENABLE"] == "0"
    assert replicas.start("node2") == before, "another engine is left alone"
    assert (run.report["proof"]["nodes"], run.report["proof"]["verdict"], run.rc) == (["node1"], "passed", 0), run.text[-4000:]


def test_a_service_that_does_not_answer_as_before_decides_the_exit_code(replicas: Lab) -> None:
    failed = {"failed": True, "class": "nvlink", "first_failure": {"node": "node2", "text": "NCCL WARN NVLS"}}
    run = replicas.remediate(
        "-e", "verify_api_key=not-the-key", remediate_diagnosis={"schema": "inferops.vllm/diagnosis/1", "cases": [failed]}, remediate_areas=["gpudirect"])
    assert run.done == [("nvls_off", "node2", True)], run.text[-4000:]
    assert replicas.environment("node2")["NCCL_NVLS_ENABLE"] == "0" and replicas.environment("node1")["NCCL_DMABUF_ENABLE"] == "0"
    assert run.rc == 2 and run.report["outcome"] == "left" and run.report["proof"]["verdict"] == "failed"
    assert "key" in run.report["proof"]["why"] and run.report["nodes"]["node2"]["left"] == []
    assert "not-the-key" not in run.text.split("PLAY [Look at the inventory]")[1]
