# SPDX-License-Identifier: GPL-3.0-or-later
"""Record this machine, live, and get the same facts back from the recording."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from .conftest import ROOT

# What may differ between a live reading and a later live reading of the same machine.
VOLATILE = {
    "collected": {"seconds", "timeout", "recorded", "recorded_at", "node", "now"},
    "host": {"memory", "shm", "hugepages", "stuck"},
    "storage": {"paths"},
    "service": {"processes"},
}


CALL = """
import importlib, json, sys
from ansible.module_utils.testing import patch_module_args
with patch_module_args(json.loads(sys.argv[2])):
    importlib.import_module("ansible_collections.inferops.vllm.plugins.modules." + sys.argv[1]).main()
"""


@pytest.fixture
def module():
    """Callable that runs a module on this machine as Ansible would, in a process of its own, and returns its result."""

    def run(name: str, arguments: dict) -> dict:
        done = subprocess.run(
            [sys.executable, "-c", CALL, name, json.dumps(arguments)], text=True, capture_output=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")})
        assert done.stdout.strip().startswith("{"), done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


def stable(found: dict) -> dict:
    return {
        section: {k: v for k, v in value.items() if k not in VOLATILE.get(section, ())} if isinstance(value, dict) else value
        for section, value in found.items()
    }


@pytest.mark.parametrize("form", ["folder", "tar.gz", "tar.zst"])
def test_facts_from_the_recording_are_the_live_facts(module, tmp_path, form):
    if form == "tar.zst" and not shutil.which("zstd"):
        pytest.skip("the program zstd is not installed")
    dest = tmp_path / ("node" if form == "folder" else "node." + form)
    made = module("snapshot", {"dest": str(dest), "format": form, "timeout": 5})
    assert made["changed"] and made["files"] > 3
    live = module("node_facts", {"timeout": 5})["ansible_facts"]["vllm_node"]
    again = module("node_facts", {"root": str(dest)})["ansible_facts"]["vllm_node"]
    assert again["collected"]["recorded"] is True and live["collected"]["recorded"] is False
    assert stable(again) == stable(live)


def test_manifest_agrees_with_every_file(module, tmp_path):
    dest = tmp_path / "node"
    module("snapshot", {"dest": str(dest), "format": "folder", "timeout": 5})
    listed = dict(reversed(line.split("  ", 1)) for line in (dest / "MANIFEST.sha256").read_text().splitlines())
    files = {str(p.relative_to(dest)) for p in dest.rglob("*") if p.is_file()} - {"MANIFEST.sha256"}
    assert set(listed) == files
    for name, digest in listed.items():
        assert hashlib.sha256((dest / name).read_bytes()).hexdigest() == digest


def test_check_mode_writes_nothing_and_a_foreign_folder_is_left_alone(module, tmp_path):
    foreign = tmp_path / "data"
    foreign.mkdir()
    (foreign / "precious").write_text("x")
    made = module("snapshot", {"dest": str(foreign), "format": "folder", "timeout": 2})
    assert made["failed"] and "not a snapshot" in made["msg"]
    assert (foreign / "precious").read_text() == "x"


def test_playbook_brings_archives_to_the_controller(playbook, tmp_path):
    kept = tmp_path / "kept"
    run = playbook("inferops.vllm.snapshot", ROOT / "inventories" / "local", "-e", "snapshot_dir=%s" % kept, "-e", "preflight_timeout=3", "-v")
    assert run.rc == 0, run.text
    archive = kept / "localhost.tar.gz"
    with tarfile.open(archive) as tar:
        assert "localhost/snapshot.json" in tar.getnames()
    assert archive.stat().st_mode & 0o077 == 0 or archive.stat().st_mode & 0o044 == 0o044
    used = set(re.findall(r"/[^\s'\"]+\.vllm-snapshot", run.text))
    assert used, run.text
    assert not [folder for folder in used if os.path.exists(folder)], "the node's temporary folder must be gone"


def test_a_relative_folder_is_one_of_the_current_folder(playbook, tmp_path):
    run = playbook("inferops.vllm.snapshot", ROOT / "inventories" / "local", "-e", "snapshot_dir=before", "-e", "preflight_timeout=3", cwd=tmp_path)
    assert run.rc == 0, run.text
    assert (tmp_path / "before" / "localhost.tar.gz").is_file()
    assert not (ROOT / "playbooks" / "before").exists()


def test_recorded_archive_is_judged_like_the_node(playbook, inventory, tmp_path):
    kept = tmp_path / "kept"
    playbook("inferops.vllm.snapshot", ROOT / "inventories" / "local", "-e", "snapshot_dir=%s" % kept, "-e", "preflight_timeout=3")
    live = playbook("inferops.vllm.preflight", ROOT / "inventories" / "local", "-e", "preflight_timeout=3")
    recorded = playbook("inferops.vllm.preflight", inventory({"localhost": {"vllm_node_root": str(kept / "localhost.tar.gz")}}))
    assert recorded.verdicts == live.verdicts
    differing = {k for k, v in recorded.statuses("localhost").items() if live.statuses("localhost").get(k) != v}
    assert not differing, differing
