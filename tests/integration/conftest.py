# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a playbook of the collection and look at what a user would see."""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import ansible_runner
import pytest
import yaml

from ansible_collections.inferops.vllm.plugins.module_utils.node import snapshot
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options, gather
from tests.costume import NOW, Spec, dress

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The programs of the environment that pytest itself runs in, also where its bin folder is not in PATH.
os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
IMAGE = "vllm/vllm-openai:kimi-k3"


class Run(NamedTuple):
    """Outcome of one playbook run: exit code, terminal text without colours, and the report's document."""

    rc: int
    text: str
    document: Optional[Dict[str, Any]]
    reports: pathlib.Path

    @property
    def verdicts(self) -> Dict[str, str]:
        return {name: node["verdict"] for name, node in (self.document or {"nodes": {}})["nodes"].items()}

    def statuses(self, node: str) -> Dict[str, str]:
        return {f["id"]: f["status"] for f in (self.document or {"findings": []})["findings"] if f["node"] == node}


@pytest.fixture
def playbook(tmp_path: pathlib.Path) -> Callable[..., Run]:
    """Callable ``playbook(name, inventory, *arguments, env={}) -> Run``."""
    counter = iter(range(1000))

    def run(name: str, inventory: Any, *arguments: str, env: Optional[Dict[str, str]] = None, cwd: pathlib.Path = ROOT) -> Run:
        here = tmp_path / ("run%d" % next(counter))
        here.mkdir()
        reports = here / "reports"
        out, _err, rc = ansible_runner.run_command(
            executable_cmd="ansible-playbook",
            cmdline_args=[name, "-i", str(inventory), "-e", "preflight_report_dir=%s" % reports, *arguments],
            host_cwd=str(cwd),
            envvars={
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "home"), "ANSIBLE_NOCOLOR": "1",
                "HOME": os.environ.get("HOME", "/root"), "PATH": os.environ["PATH"], "COLUMNS": "100", **(env or {}),
            },
            private_data_dir=str(here / "runner"), quiet=True,
        )
        found = reports / "preflight.json"
        document = json.loads(found.read_text()) if found.exists() else None
        return Run(rc, re.sub(r"\x1b\[[0-9;]*m", "", out), document, reports)

    return run


@pytest.fixture
def inventory(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Callable ``inventory({name: host variables or Spec}, group="vllm_nodes", **group variables) -> hosts.yml``.

    A Spec is dressed and recorded beside the inventory, so the host is a recorded node.
    """

    def make(hosts: Dict[str, Any], group: str = "vllm_nodes", **variables: Any) -> pathlib.Path:
        folder = tmp_path / ("inventory%d" % len(list(tmp_path.glob("inventory*"))))
        folder.mkdir()
        entries: Dict[str, Any] = {}
        for name, value in hosts.items():
            if isinstance(value, Spec):
                record(value._replace(name=name), folder / "nodes" / name, tuple(hosts))
                value = {"vllm_node_root": "nodes/%s" % name}
            entries[name] = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}", **value}
        (folder / "hosts.yml").write_text(yaml.safe_dump({group: {"hosts": entries, "vars": variables}}))
        # The file, not the folder: Ansible would read every recording in the folder as an inventory of its own.
        return folder / "hosts.yml"

    return make


def record(spec: Spec, folder: pathlib.Path, peers: Any = ()) -> None:
    """Record the node of `spec` as a snapshot folder."""
    reader = dress(spec)
    options = Options(image=IMAGE, names=tuple(peers))
    gather(reader, options)
    folder.parent.mkdir(parents=True, exist_ok=True)
    snapshot.write_folder(snapshot.render(reader, spec.name, options.asdict(), NOW), str(folder))


def lines(text: str, start: str) -> List[str]:
    """Lines of `text` that begin with `start`, white space aside."""
    return [line for line in text.splitlines() if line.strip().startswith(start)]
