# SPDX-License-Identifier: GPL-3.0-or-later
"""What deploy and rollback do when a switch fails: the playbooks as they are, over two ranks whose nodes are played by action plugins."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.integration.conftest import ROOT

# A node is a table in a file: which release is deployed, whether it is up, what fails. Each module that would touch it notes what it was asked for.
PLAYED = '''
import json
import os

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.variables, self.args, self.host = task_vars, dict(self._task.args), task_vars["inventory_hostname"]
        self.path = os.path.join(task_vars["world"], self.host + ".json")
        with open(self.path) as file:
            self.node = json.load(file)
        result.update(self.act())
        with open(self.path, "w") as file:
            json.dump(self.node, file)
        return result

    def note(self, text):
        self.node["asked"].append(text)

    def act(self):
%s
'''
ACTIONS = {
    "deploy_check": '''
        from ansible_collections.inferops.vllm.plugins.action.deploy_check_real import ActionModule as Real
        if self.args.get("checks"):
            return Real(self._task, self._connection, self._play_context, self._loader, self._templar, self._shared_loader_obj).run(None, self.variables)
        number = self.node["release"]
        releases = [{"number": n, "plan": "P%d" % n, "peers": ["a", "b"], "rolled_back": n == number and self.node["back"],
                     "trouble": self.node["trouble"] if n == 2 else ""} for n in range(number, 0, -1)]
        return {"changed": False, "deployed": {"number": number, "peers": ["a", "b"]}, "service": "vllm", "settled": True, "image": "", "cursor": "c",
                "headless": self.host == "b", "peers": ["a", "b"], "serial": "100%", "invocation_id": "i" if self.node["up"] else "", "entry": {},
                "releases": releases}
''',
    "stop_service": '''
        self.note("drain")
        if self.node["fails"] == "drain":
            return {"failed": True, "msg": "it has not ended for 3600 s"}
        self.node["up"] = False
        return {"changed": True, "waited": 1.0}
''',
    "service_release": '''
        state, number = self.args["state"], self.node["release"]
        if state == "staged":
            return {"changed": self.node["staged"], "switched": False, "restart": True, "files": ["/etc/vllm/service.env"], "release": {}}
        self.note(state + (" %d" % self.args["release"] if state == "rolled_back" else ""))
        fails, self.node["fails"] = self.node["fails"], ""
        if fails == "service":
            return {"failed": True, "changed": False, "switched": False, "msg": "systemctl start: refused; all is as it was before"}
        if fails == "died":
            self.node["release"] = 4
            return {"failed": True, "msg": "MODULE FAILURE", "rc": 137}
        wanted = int(self.args["release"]) if state == "rolled_back" else number + 1
        changed = wanted != number or not self.node["up"]
        self.node.update(release=wanted, up=True, back=state == "rolled_back")
        return {"changed": changed, "switched": changed, "restart": changed, "files": [], "release": {"number": wanted}}
''',
    "wait_ready": '''
        self.note("wait")
        ready = self.node["up"] and self.node["release"] != 4
        return {"changed": False, "ready": ready, "failed": not ready, "phase": "weights_load", "why": "" if ready else "it failed"}
''',
    "unit": '''
        self.note("start")
        self.node["up"] = True
        return {"changed": True}
''',
}


@pytest.fixture
def cluster(playbook, inventory, tmp_path):
    """Callable ``cluster(name, a={…}, b={…}) -> Run, {host: table}``; without tables the nodes stay as they are."""
    own = tmp_path / "collections/ansible_collections/inferops/vllm"
    (own / "plugins/action").mkdir(parents=True)
    for path in (ROOT / "plugins/action").glob("*.py"):
        (own / "plugins/action" / ("deploy_check_real.py" if path.stem == "deploy_check" else path.name)).symlink_to(path)
    for name, text in ACTIONS.items():
        (own / "plugins/action" / (name + ".py")).unlink(missing_ok=True)
        (own / "plugins/action" / (name + ".py")).write_text(PLAYED % text)
    for path in [*(ROOT / "plugins").iterdir(), ROOT / "roles", ROOT / "meta", ROOT / "galaxy.yml"]:
        if path.name not in ("action", "__pycache__"):
            (own / path.relative_to(ROOT)).symlink_to(path)
    shutil.copytree(ROOT / "playbooks", own / "playbooks")
    (own / "playbooks/plan.yml").write_text("- hosts: localhost\n  gather_facts: false\n")
    (own / "playbooks/tasks/bring.yml").write_text("[]\n")
    again = own / "playbooks/tasks/start_again.yml"
    again.write_text(again.read_text().replace("ansible.builtin.systemd_service", "inferops.vllm.unit"))
    hosts = inventory({"a": {}, "b": {}})

    def run(name, **nodes):
        tables = [tmp_path / (host + ".json") for host in "ab"]
        for path in tables:
            before = json.loads(path.read_text()) if path.exists() else {"release": 3, "back": False, "trouble": "", "staged": True}
            path.write_text(json.dumps({**before, "up": True, "fails": "", "asked": [], **nodes.get(path.stem, {})}))
        done = playbook("inferops.vllm." + name, hosts, "-e", json.dumps({
            "world": str(tmp_path), "deploy_log_dir": str(tmp_path / "log"), "vllm_plan_made": {"document": "none"}}),
            env={"ANSIBLE_COLLECTIONS_PATH": "%s:%s" % (tmp_path / "collections", ROOT / "collections")})
        return done, *(json.loads(path.read_text()) for path in tables)

    return run


def test_a_rank_that_was_not_switched_starts_again_and_the_other_goes_back(cluster):
    run, a, b = cluster("deploy", a={"fails": "service"})
    assert run.rc == 2 and "the previous release serves again: a systemctl start: refused" in " ".join(run.text.split()), run.text[-3000:]
    assert a["asked"] == ["drain", "started", "start", "wait"] and b["asked"] == ["started", "rolled_back 3", "wait"]
    assert (a["release"], b["release"], a["up"], b["up"]) == (3, 3, True, True)


def test_a_module_that_died_says_nothing_and_its_rank_goes_back_too(cluster):
    run, a, b = cluster("deploy", a={"fails": "died"})
    assert run.rc == 2 and "the previous release serves again" in " ".join(run.text.split()), run.text[-3000:]
    assert "rolled_back 3" in a["asked"] and "rolled_back 3" in b["asked"] and (a["release"], b["release"], a["up"], b["up"]) == (3, 3, True, True)


@pytest.mark.parametrize("staged", [True, False])
def test_a_drain_that_fails_switches_nothing_and_is_said(cluster, staged):
    run, a, b = cluster("deploy", a={"fails": "drain", "staged": staged}, b={"staged": staged})
    assert run.rc == 2 and "not ended for 3600 s" in run.text, run.text[-3000:]
    assert a["asked"] == ["drain", "start", "wait"] and b["asked"] == ["start", "wait"] and (a["release"], b["release"]) == (3, 3)


def test_a_rollback_that_cannot_be_is_refused_before_anything_is_stopped(cluster):
    run, a, b = cluster("rollback", b={"trouble": "the image x is not on this node"})
    assert run.rc == 2 and "b cannot go back to release 2: the image x is not on this node" in " ".join(run.text.split()), run.text[-3000:]
    assert a["asked"] == b["asked"] == []


def test_a_rollback_that_ended_half_way_is_ended_by_the_next(cluster):
    run, a, b = cluster("rollback", b={"fails": "service"})
    text = " ".join(run.text.split())
    assert run.rc == 2 and "b systemctl start: refused" in text and "run rollback again" in text, run.text[-3000:]
    assert (a["release"], b["release"]) == (2, 3) and b["asked"][-1] == "start" and "start" not in a["asked"]
    run, a, b = cluster("rollback")
    assert run.rc == 0 and (a["release"], b["release"]) == (2, 2), run.text[-3000:]
    run, a, b = cluster("rollback", a={"back": True}, b={"back": True})
    assert run.rc == 0 and (a["release"], b["release"]) == (1, 1), run.text[-3000:]
