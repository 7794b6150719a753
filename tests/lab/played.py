# SPDX-License-Identifier: GPL-3.0-or-later
"""A role played on one node of the lab, and what became of it; for tests of roles on real nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import costume
from .settings import REPOSITORY, Settings

NODE = "node1"
PLAY = """\
- hosts: node1
  gather_facts: false
  vars:
    vllm_image: "{{ lab_image }}"
    vllm_registry: "{{ lab_registry }}"
    vllm_registry_user: "{{ lab_registry_user }}"
    vllm_registry_password: "{{ wrong_password | default(lookup('ansible.builtin.file', lab_registry_password_file)) }}"
    vllm_registry_ca_file: "{{ lab_registry_ca_file }}"
  roles: ["inferops.vllm.%s"]
"""
# Every process, every file below these, and the journal; the words to look for come on standard input.
SEARCH = r"""
import os, subprocess, sys
words = [word.encode() for word in sys.stdin.read().split()]
found = set()
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("cmdline", "environ"):
        try:
            data = open("/proc/%s/%s" % (pid, name), "rb").read()
        except OSError:
            continue
        if any(word in data for word in words):
            found.add("process " + pid)
for top in ("/etc", "/root", "/run", "/tmp", "/home", "/var/lib/inferops-vllm", "/var/log", "/var/tmp", "/usr/local"):
    for folder, _names, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                held = os.path.isfile(path) and not os.path.islink(path) and open(path, "rb").read()
            except OSError:
                continue
            if held and any(word in held for word in words):
                found.add(path)
log = subprocess.run(["journalctl", "--no-pager", "--quiet"], capture_output=True).stdout
if any(word in log for word in words):
    found.add("journal")
print("\n".join(sorted(found)))
"""


class Played:
    """The lab's node1 beside the registry, and playbooks over all nodes."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder

    def shell(self, command: str, data: bytes = b"", node: str = NODE) -> str:
        return costume.run(self.settings, costume.find(self.settings, node), command, data).strip()

    def playbook(self, name: str, *options: str, **variables: Any) -> tuple[int, str]:
        """Exit status of a playbook of the collection over the lab, and all that was printed."""
        done = self.begin("inferops.vllm." + name, options, variables)
        said = done.communicate()[0]
        return done.returncode, said

    def start(self, role: str, *options: str, **variables: str) -> subprocess.Popen[str]:
        """The role on its way, in a session of its own."""
        book = self.folder / f"{role}.yml"
        book.write_text(PLAY % role)
        return self.begin(str(book), ("-vv", *options), variables)

    def begin(self, book: str, options: Sequence[str], variables: dict[str, Any]) -> subprocess.Popen[str]:
        """A playbook on its way over the lab, in a session of its own."""
        env = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_NOCOLOR": "1"}
        program = Path(sys.executable).with_name("ansible-playbook")
        argv = [str(program), "-i", str(self.settings.inventory), book, "-e", json.dumps(variables), *options]
        return subprocess.Popen(argv, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def play(self, role: str, *options: str, **variables: str) -> tuple[dict[str, Any], str]:
        """Result of the role's task, and all that was printed."""
        process = self.start(role, *options, **variables)
        said = process.communicate()[0]
        return {"rc": process.returncode, "changed": "changed=0 " not in said.rpartition("PLAY RECAP")[2]}, said

    def fails(self, role: str, kind: str, *options: str, **variables: str) -> str:
        result, said = self.play(role, *options, **variables)
        assert result["rc"] == 2 and f'"kind": "{kind}"' in said, said[-3000:]
        assert "Traceback" not in said
        return said

    def search(self, *words: str) -> list[str]:
        """Where any of the words stands on the node: files, processes, journal."""
        return self.shell("python3 -c '%s'" % SEARCH.replace("'", "'\\''"), " ".join(words).encode()).split("\n")

    def forget(self) -> None:
        self.shell("docker images -q --no-trunc | sort -u | xargs -r docker rmi -f; rm -f /var/lib/inferops-vllm/images.json")
