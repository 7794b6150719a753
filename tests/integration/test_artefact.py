# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection works in place and as an artefact installed elsewhere."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from .conftest import ROOT

FARM = ROOT / "collections" / "ansible_collections" / "inferops" / "vllm"
IN_PLACE = ("galaxy.yml", "README.md", "LICENSE", "CHANGELOG.md", "meta", "plugins", "playbooks", "roles", "tests", "changelogs", "inventories", "docs")


def command(*argv: str, cwd: pathlib.Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        argv, cwd=cwd, text=True, capture_output=True, timeout=300, check=False,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")}, **env})


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> pathlib.Path:
    work = tmp_path_factory.mktemp("artefact")
    built = command("ansible-galaxy", "collection", "build", "--output-path", str(work), str(ROOT), cwd=work)
    assert built.returncode == 0, built.stderr
    artefact = next(work.glob("inferops-vllm-*.tar.gz"))
    done = command("ansible-galaxy", "collection", "install", "--offline", "--no-deps", "-p", str(work / "collections"), str(artefact), cwd=work)
    assert done.returncode == 0, done.stderr
    return work


def test_symlink_farm_is_complete_and_leads_home():
    for name in IN_PLACE:
        link = FARM / name
        assert link.is_symlink(), "%s is missing from the farm" % name
        assert link.resolve() == (ROOT / name).resolve()


def test_artefact_holds_what_users_need_and_nothing_else(installed):
    with tarfile.open(next(installed.glob("inferops-vllm-*.tar.gz"))) as tar:
        names = tar.getnames()
    tops = {name.split("/")[0] for name in names}
    assert {"plugins", "playbooks", "roles", "meta", "README.md", "LICENSE", "CHANGELOG.md", "inventories", "docs"} <= tops
    assert not tops & {"tests", "molecule", ".ci", ".config", ".venv", "collections", "requirements", "Makefile", "pyproject.toml", "ansible.cfg"}
    assert {"inventories/demo/hosts.yml", "inventories/recorded/b300-01/snapshot.json", "plugins/plugin_utils/report/templates/report.js"} <= set(names)
    assert not [name for name in names if name.startswith("inventories/lab") or "__pycache__" in name]


def test_links_of_the_readme_lead_somewhere_in_the_artefact(installed):
    home = installed / "collections/ansible_collections/inferops/vllm"
    targets = [t for t in re.findall(r"\]\(([^)#\s]+)", (home / "README.md").read_text(encoding="utf-8")) if "://" not in t]
    assert "docs/images/preflight-light.png" in targets
    assert not [target for target in targets if not (home / target).exists()]


def test_installed_artefact_judges_the_demo_from_any_folder(installed, tmp_path):
    inventory = installed / "collections/ansible_collections/inferops/vllm/inventories/demo"
    done = command(
        "ansible-playbook", "inferops.vllm.preflight", "-i", str(inventory), "-e", "preflight_fail_on=never", cwd=tmp_path,
        ANSIBLE_COLLECTIONS_PATH=str(installed / "collections"), ANSIBLE_HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "reports" / "preflight.json").exists()


@pytest.mark.parametrize("plugin", ["inferops.vllm.node_facts", "inferops.vllm.judge", "inferops.vllm.snapshot"])
def test_documentation_is_enough_to_call_each_module(installed, tmp_path, plugin):
    done = command("ansible-doc", "-t", "module", plugin, cwd=tmp_path, ANSIBLE_COLLECTIONS_PATH=str(installed / "collections"))
    assert done.returncode == 0, done.stderr
    for heading in ("OPTIONS", "EXAMPLES", "RETURN VALUES"):
        assert heading in done.stdout


def test_module_code_imports_with_the_oldest_supported_python():
    roots = pathlib.Path(os.environ.get("PYENV_ROOT", "/nonexistent")).glob("versions/3.9.*/bin/python3.9")
    candidates = [str(path) for path in roots] + [path for path in [shutil.which("python3.9")] if path]
    for candidate in candidates:
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode:
            continue
        script = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "from module_utils.node import collect\nfrom module_utils.checks import judge\nprint(len(judge.groups()))")
        done = subprocess.run([candidate, "-c", script, str(ROOT / "plugins")], text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return
    pytest.skip("no Python 3.9 on this machine (have %s)" % sys.version.split()[0])
