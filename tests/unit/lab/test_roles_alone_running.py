# SPDX-License-Identifier: GPL-3.0-or-later
"""Each role by itself on a node, as the play in its README says: a dry run that tells the truth, a run, and a second one that changes nothing.

Asked for with `pytest -m lab tests/unit/lab/test_roles_alone_running.py` (root; about four minutes once root file system, packages and
image are in the cache). Does not touch a lab that is up already. The node is dressed as an HGX B300 with the driver of an earlier branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import costume, vm, wheels
from tests.lab.image import checkpoint
from tests.lab.played import Played
from tests.lab.settings import REPOSITORY
from tests.unit.lab import own

NODE = "node1"
ROLES = ("driver", "fabric", "rdma", "container_runtime", "interconnect", "image", "weights", "service", "evidence")
"""In an order in which each finds what it needs. `acceptance` asks a service that is up and `remediation` mends faults: they have scenarios of their own."""
# What a reader fills in where the README has an example's value.
WORDS: dict[str, dict[str, Any]] = {
    "image": {
        "image_name": "{{ lab_image }}", "image_registry": "{{ lab_registry }}", "image_registry_user": "{{ lab_registry_user }}",
        "vault_registry_password": "{{ lookup('ansible.builtin.file', lab_registry_password_file) }}", "image_registry_ca_file": "{{ lab_registry_ca_file }}"},
    "service": {"service_image": "{{ lab_image }}"},
}
# What a role may change, in short.
LOOK = (
    "systemctl list-units --all --plain --no-legend 'vllm*' 'nvidia*' | awk '{print $1, $3}'; dpkg-query -W -f '${Package} ${Version}\\n' | sha256sum; "
    "ls -la /etc/vllm /etc/docker/daemon.json /etc/modules-load.d /etc/modprobe.d /etc/cdi /etc/systemd/system 2>/dev/null; docker images -q")

pytestmark = pytest.mark.lab


def example(role: str) -> str:
    """The play in a role's README, fenced or indented."""
    text = (REPOSITORY / "roles" / role / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^( *)- hosts: .*\n(?:\1  .*\n|\n(?=\1  ))+", text, re.M)
    assert found, f"the README of {role} has no play"
    return "\n".join(line[len(found[1]):] for line in found[0].splitlines()) + "\n"


class Alone:
    """The node, and the READMEs' plays."""

    def __init__(self, played: Played) -> None:
        self.played, self.shell = played, played.shell

    def play(self, role: str, *options: str) -> tuple[int, str]:
        """Changed tasks, and what was printed."""
        book = self.played.folder / f"alone-{role}.yml"
        book.write_text(example(role))
        words = {"vllm_hardware": "b300", **WORDS.get(role, {})}
        if role == "evidence":
            words["evidence_dir"] = str(self.played.folder / "evidence")
        process = self.played.begin(str(book), ("--diff", *options), words)
        said = process.communicate()[0]
        assert process.returncode == 0, said[-5000:]
        assert "Traceback" not in said
        found = re.search(NODE + r"\s+: .*changed=(\d+)", said)
        assert found
        return int(found.group(1)), said


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    settings = own.asked(request, "boots a node for minutes", vm.missing)
    folder = tmp_path_factory.mktemp("alone")
    checkpoint.write(folder / "tiny")
    with own.nodes(settings, image=True), own.packages(settings):
        costume.dress(settings, NODE, "b300", ["driver_r575", "peermem_missing"])
        costume.use_repository(settings, NODE)
        played = Played(settings, folder)
        # DKMS of the costume builds nothing, but looks for headers. The README's weights stand on a file system of their own.
        played.shell("mkdir -p /lib/modules/$(uname -r)/build && touch /lib/modules/$(uname -r)/build/Makefile")
        played.shell("mkdir -p /mnt/weights && mount -t tmpfs tmpfs /mnt/weights && mkdir /mnt/weights/Kimi-K3 && tar -x -C /mnt/weights/Kimi-K3",
                     wheels.packed(folder / "tiny"))
        yield Alone(played)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_alone(node: Alone, role: str) -> None:
    if role == "service":
        words = {"plan_dir": str(node.played.folder / "plan"), "plan_read_nodes": False, "vllm_hardware": "cpu", "vllm_model": "/mnt/weights/Kimi-K3"}
        rc, said = node.played.playbook("plan", **words)
        assert rc == 0, said[-3000:]
    announced, foretold = node.play(role, "--check")
    before = node.shell(LOOK)
    assert node.play(role, "--check")[0] == announced
    made, said = node.play(role)
    assert (announced > 0) == (made > 0), (announced, made, foretold[-3000:], said[-3000:])
    after = node.shell(LOOK)
    if role not in ("weights", "evidence"):
        assert before != after, "a dry run left nothing to do"
    if role == "evidence":
        # Each run freezes the scene of its time in a new bundle on the controller, and changes nothing on the node.
        assert node.shell(LOOK) == before
        return
    again, said = node.play(role)
    assert again == 0, said[-4000:]
    assert node.play(role, "--check")[0] == 0
