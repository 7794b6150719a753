# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules in and out, now and at boot, and the driver exchanged, on a node that is played."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.kernel import module, reload
from ansible_collections.inferops.vllm.plugins.module_utils.kernel.holders import SERVICES, foreign
from ansible_collections.inferops.vllm.plugins.module_utils.packages.model import Ran
from ansible_collections.inferops.vllm.plugins.modules import service_env

PEER = "ib_register_peer_memory_client"


class Linux:
    """Modules, who uses whom, files, services."""

    def __init__(self, *loaded: str) -> None:
        self.loaded = list(loaded)
        self.uses: dict[str, list[str]] = {"nvidia": ["nvidia_uvm", "nvidia_modeset", "nvidia_peermem"]}
        self.refused: dict[str, str] = {}
        self.stuck: list[str] = []
        self.dmesg = ""
        self.disk = "580.95.05"
        self.version = "575.57.08"
        self.licence = "Dual MIT/GPL"
        self.services: list[str] = []
        self.broken_services: list[str] = []
        self.failed_services: list[str] = []
        self.users: list[dict[str, Any]] = []
        self.files: dict[str, str] = {"/proc/sys/kernel/osrelease": "6.1.0\n"}
        self.depends = "nvidia,ib_core"
        self.symbol = {"kallsyms": 1, "modules.symbols": 0}
        self.calls: list[str] = []

    def run(self, argv: Sequence[str], limit: int) -> Ran:
        self.calls.append(" ".join(argv))
        name = argv[-1]
        if argv[:2] == ["modprobe", "-r"]:
            using = [one for one in self.uses.get(name, []) if one in self.loaded]
            if using or name in self.stuck:
                return Ran(1, "", "modprobe: FATAL: Module %s is in use.\n" % name)
            if name in self.loaded:
                self.loaded.remove(name)
            return Ran(0, "")
        if argv[0] == "modprobe":
            if self.refused.get(name) == "absent":
                return Ran(1, "", "modprobe: FATAL: Module %s not found in directory /lib/modules/6.1.0\n" % name)
            if name in self.refused and argv[1] != "-n":
                if "Unknown" in self.refused[name]:
                    self.dmesg += "[1.0] %s: Unknown symbol %s (err -2)\n" % (name, PEER)
                return Ran(1, "", "modprobe: ERROR: could not insert '%s': %s\n" % (name, self.refused[name]))
            if argv[1] != "-n" and name not in self.loaded:
                self.loaded.append(name)
                if name == "nvidia":
                    self.version = self.disk
            return Ran(0, "")
        if argv[0] == "modinfo":
            if not self.disk:
                return Ran(1, "", "modinfo: ERROR: Module nvidia not found.")
            field = argv[2] if argv[1] == "-F" else ""
            return Ran(0, {"version": self.disk, "license": self.licence}.get(field, "depends:        %s" % self.depends) + "\n")
        if argv[0] == "grep":
            return Ran(self.symbol.get(name.rsplit("/", 1)[1], 2), "")
        if argv[0] == "dmesg":
            return Ran(0, self.dmesg)
        if argv[:2] == ["systemctl", "is-active"]:
            words = ["active" if unit in self.services else "failed" if unit in self.failed_services else "inactive" for unit in argv[2:]]
            return Ran(3, "\n".join(words) + "\n")
        if argv[0] == "systemctl":
            (self.services.remove if argv[1] == "stop" else self.services.append)(name)
            return Ran(1 if name in self.broken_services else 0, "")
        raise AssertionError(argv)

    def read(self, path: str) -> str | None:
        if path == "/sys/module/nvidia/version":
            return self.version + "\n" if "nvidia" in self.loaded else None
        if path == "/proc/driver/nvidia/version":
            return "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build" % self.version if "nvidia" in self.loaded else None
        if path.endswith("/refcnt"):
            return "%d\n" % len([one for one in self.uses.get(path.split("/")[3], []) if one in self.loaded])
        return self.files.get(path)

    def names(self, path: str) -> list[str]:
        if path == "/sys/module":
            return list(self.loaded)
        if path.endswith("/holders"):
            return [one for one in self.uses.get(path.split("/")[3], []) if one in self.loaded]
        return sorted(one.rsplit("/", 1)[1] for one in self.files if one.rsplit("/", 1)[0] == path)

    def write(self, path: str, text: str | None) -> None:
        self.files.pop(path, None)
        if text is not None:
            self.files[path] = text

    @property
    def node(self) -> module.Node:
        return module.Node(self.run, self.read, self.names, self.write)

    def exchange(self, check: bool = False, **words: Any) -> reload.Outcome:
        return reload.exchange(reload.Node(self.run, self.read, self.names, lambda: self.users), check, **words)


LOAD, BLOCK = "/etc/modules-load.d/inferops-vllm-ib_umad.conf", "/etc/modprobe.d/inferops-vllm-ib_umad.conf"


def test_a_module_is_loaded_and_stays_loaded() -> None:
    linux = Linux()
    checked = module.present(linux.node, "ib-umad", True, True, True)
    assert checked.changed and linux.loaded == [] and LOAD not in linux.files
    done = module.present(linux.node, "ib-umad", True, True, False)
    assert (done.changed, done.after) == (True, checked.after) and linux.loaded == ["ib_umad"] and "ib_umad\n" in linux.files[LOAD]
    assert not module.present(linux.node, "ib_umad", True, True, False).changed


def test_another_file_that_loads_it_is_enough() -> None:
    linux = Linux("nvidia_peermem")
    linux.files["/usr/lib/modules-load.d/nvidia-peermem.conf"] = "nvidia-peermem\n"
    assert not module.present(linux.node, "nvidia_peermem", True, True, False).changed


def test_what_keeps_it_out_is_named() -> None:
    linux = Linux()
    linux.files["/etc/modprobe.d/hardening.conf"] = "install ib_umad /bin/false\n"
    failed = module.present(linux.node, "ib_umad", True, True, True).failed
    assert failed and "/etc/modprobe.d/hardening.conf keeps ib_umad from loading" in failed.sentence
    linux.files = {BLOCK: "blacklist ib_umad\n"}
    assert module.present(linux.node, "ib_umad", True, True, False).changed and BLOCK not in linux.files, "our own block is lifted"


def test_a_refusal_is_explained_and_nothing_is_persisted() -> None:
    linux = Linux()
    linux.refused["nvidia_peermem"] = "Unknown symbol in module, or unknown parameter (see dmesg)"
    outcome = module.present(linux.node, "nvidia_peermem", True, True, False)
    assert outcome.failed and outcome.failed.kind == "unknown_symbol" and outcome.failed.lines == ["nvidia_peermem: Unknown symbol %s (err -2)" % PEER]
    assert not [path for path in linux.files if "modules-load" in path]
    result = module.summary([("nvidia_peermem", outcome)])
    assert not result["changed"] and result["failed_modules"][0]["kind"] == "unknown_symbol" and result["loaded"] == []


def test_refusals_of_earlier_tries_do_not_count() -> None:
    linux = Linux()
    linux.dmesg = "[0.5] nvidia_peermem: disagrees about version of symbol %s\n[0.6] nvidia_peermem: module verification failed: tainting kernel\n" % PEER
    linux.refused["nvidia_peermem"] = "Invalid argument"
    failed = module.present(linux.node, "nvidia_peermem", False, True, False).failed
    assert failed and (failed.kind, failed.lines) == ("no_peer_symbols", [])


@pytest.mark.parametrize("what", ["absent", "built without", "legacy", "core without", "no core with it on disk"])
def test_check_mode_sees_what_would_refuse(what: str) -> None:
    linux = Linux(*(["nv_peer_mem"] if what == "legacy" else ["ib_core"] if what == "core without" else []))
    linux.symbol["modules.symbols"] = 1 if what == "no core with it on disk" else 0
    if what == "absent":
        linux.refused["nvidia_peermem"] = "absent"
    if what == "built without":
        linux.depends = "nvidia"
    assert module.present(linux.node, "nvidia_peermem", False, True, True).failed
    assert "nvidia_peermem" not in linux.loaded


def test_check_mode_does_not_guess() -> None:
    linux = Linux()
    assert not module.present(linux.node, "nvidia_peermem", False, True, True).failed
    linux.symbol = {"kallsyms": 2, "modules.symbols": 2}
    assert not module.present(linux.node, "nvidia_peermem", False, True, True).failed, "what cannot be read is not held against it"
    linux.symbol, linux.loaded = {"kallsyms": 0}, ["ib_core"]
    assert not module.present(linux.node, "nvidia_peermem", False, True, True).failed


def test_a_module_goes_and_stays_away() -> None:
    linux = Linux("nv_peer_mem")
    linux.files["/etc/modules-load.d/inferops-vllm-nv_peer_mem.conf"] = "nv_peer_mem\n"
    checked = module.absent(linux.node, "nv_peer_mem", True, True)
    assert checked.changed and linux.loaded
    done = module.absent(linux.node, "nv_peer_mem", True, False)
    assert done.after == checked.after and not linux.loaded and list(linux.files)[1:] == ["/etc/modprobe.d/inferops-vllm-nv_peer_mem.conf"]
    assert not module.absent(linux.node, "nv_peer_mem", True, False).changed


@pytest.mark.parametrize("line", ["NCCL_DMABUF_ENABLE=0", 'NCCL_DMABUF_ENABLE="0"'])
def test_peermem_stays_while_a_service_needs_it(line: str) -> None:
    linux = Linux("nvidia_peermem")
    linux.files["/etc/vllm/service.env"] = "NCCL_DEBUG=INFO\n%s\nVLLM_HOST_IP=10.0.0.1\n" % line
    files = dict(linux.files)
    for check in (True, False):
        failed = module.absent(linux.node, "nvidia_peermem", True, check).failed
        assert failed and failed.kind == "needed" and "/etc/vllm/service.env sets NCCL_DMABUF_ENABLE=0" in failed.why
    assert linux.loaded == ["nvidia_peermem"] and linux.files == files
    linux.files["/etc/vllm/service.env"] = "NCCL_DMABUF_ENABLE=1\n#NCCL_DMABUF_ENABLE=0\n"
    assert module.absent(linux.node, "nvidia_peermem", True, False).changed and not linux.loaded


@pytest.mark.parametrize(("value", "modules", "allowed"), [
    ("0", ["nvidia_peermem", "nvidia"], True), ("0", ["nvidia", "nv_peer_mem"], False), ("0", [], False), (0, [], False), ("1", [], True), (None, [], True),
])
def test_the_environment_of_a_service_needs_peermem_for_the_fallback(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: object, modules: list[str], allowed: bool) -> None:
    class Ended(Exception):
        """What the module returned."""

    class Module:
        params = {"env": {"NCCL_DMABUF_ENABLE": value} if value is not None else {"A": "1"}, "path": str(tmp_path / "service.env"), "reader": "container"}
        check_mode = _diff = False

        def exit_json(self, **found: Any) -> None:
            raise Ended(found)

        def fail_json(self, **found: Any) -> None:
            raise Ended(dict(found, failed=True))

    monkeypatch.setattr(service_env, "AnsibleModule", lambda **_spec: Module())
    monkeypatch.setattr(service_env, "names", lambda folder: modules if folder == "/sys/module" else [])
    with pytest.raises(Ended) as ended:
        service_env.main()
    found = ended.value.args[0]
    assert allowed == bool(found.get("changed")) == (tmp_path / "service.env").exists()
    assert allowed or ("nvidia_peermem" in found["msg"] and "is not loaded on this node" in found["msg"])


def test_a_module_in_use_stays_and_its_users_are_named() -> None:
    linux = Linux("nvidia", "nvidia_uvm")
    for check in (True, False):
        failed = module.absent(linux.node, "nvidia", False, check).failed
        assert failed and "used by the modules nvidia_uvm" in failed.why
    assert linux.loaded == ["nvidia", "nvidia_uvm"]


def test_a_module_that_others_load_at_boot() -> None:
    linux = Linux()
    linux.files["/etc/modules-load.d/other.conf"] = "nv_peer_mem\n"
    failed = module.absent(linux.node, "nv_peer_mem", False, True).failed
    assert failed and "/etc/modules-load.d/other.conf loads nv_peer_mem at every boot" in failed.why


# -- the driver ----------------------------------------------------------------------------------
def loaded() -> Linux:
    linux = Linux("nvidia", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem")
    linux.services = ["nvidia-persistenced.service", "nvidia-fabricmanager.service"]
    return linux


def test_the_driver_is_exchanged_in_the_order_of_its_references() -> None:
    linux = loaded()
    checked = linux.exchange(True)
    assert checked.changed and linux.version == "575.57.08" and not [call for call in linux.calls if call.startswith(("modprobe", "systemctl st"))]
    done = linux.exchange()
    assert (done.changed, done.reboot, done.before, done.after) == (True, False, "575.57.08", "580.95.05") and done.steps == checked.steps
    assert [call for call in linux.calls if call.startswith(("modprobe", "systemctl st"))] == [
        "systemctl stop nvidia-fabricmanager.service", "systemctl stop nvidia-persistenced.service",
        "modprobe -r nvidia_modeset", "modprobe -r nvidia_uvm", "modprobe -r nvidia_peermem", "modprobe -r nvidia",
        "modprobe nvidia", "modprobe nvidia_uvm", "modprobe nvidia_modeset", "modprobe nvidia_peermem",
        "systemctl start nvidia-persistenced.service", "systemctl start nvidia-fabricmanager.service"]
    assert not linux.exchange().changed
    assert linux.exchange(force=True).changed


def test_a_driver_in_use_is_left_alone() -> None:
    linux = loaded()
    linux.users = [{"pid": 7, "comm": "python3", "container": "0123456789ab"}, {"pid": 8, "comm": "nv-fabricmanager", "unit": SERVICES[5]}]
    for check in (True, False):
        outcome = linux.exchange(check)
        assert outcome.reboot and not outcome.changed and "python3 (process 7, container 0123456789ab)" in outcome.reason and "fabric" not in outcome.reason
    assert len(linux.services) == 2 and linux.version == "575.57.08"


def test_what_went_comes_back_when_a_reference_stays() -> None:
    linux = loaded()
    linux.stuck = ["nvidia_uvm"]
    outcome = linux.exchange()
    assert outcome.reboot and outcome.kind == "in_use" and "nvidia_uvm could not be unloaded" in outcome.reason
    assert sorted(linux.loaded) == sorted(loaded().loaded) and len(linux.services) == 2


def test_a_driver_that_does_not_load_is_no_reboot_but_a_fault() -> None:
    linux = loaded()
    linux.refused["nvidia"] = "Key was rejected by service"
    outcome = linux.exchange()
    assert (outcome.reboot, outcome.kind) == (False, "key_rejected") and "Secure Boot" in outcome.reason


def test_a_service_that_failed_beside_the_old_module_is_started_again() -> None:
    linux = loaded()
    linux.services, linux.failed_services = [], ["nvidia-persistenced.service"]
    outcome = linux.exchange()
    assert outcome.steps[-1] == "start nvidia-persistenced.service" and linux.services == ["nvidia-persistenced.service"]
    assert "systemctl stop nvidia-persistenced.service" not in linux.calls


def test_what_does_not_come_back_is_told() -> None:
    linux = loaded()
    linux.refused["nvidia_peermem"] = "Invalid argument"
    linux.broken_services = ["nvidia-fabricmanager.service"]
    outcome = linux.exchange()
    assert (outcome.changed, outcome.kind, outcome.after) == (True, "partly", "580.95.05")
    assert "nvidia_peermem: nvidia_peermem was built without" in outcome.reason and "nvidia-fabricmanager.service did not start again" in outcome.reason


def test_first_load_and_no_driver() -> None:
    linux = Linux()
    outcome = linux.exchange()
    assert outcome.changed and linux.loaded == ["nvidia", "nvidia_uvm"] and outcome.before == ""
    linux = Linux()
    linux.disk = ""
    assert linux.exchange().kind == "not_installed"
    assert linux.exchange(True, expected="580.95.05").after == "580.95.05", "the packages come first, so check mode goes by what they will bring"


def test_another_flavour_of_the_same_version() -> None:
    linux = loaded()
    linux.version, linux.licence = linux.disk, "NVIDIA"
    assert linux.exchange(True).changed


def test_own_services_are_no_foreign_users_but_containers_are() -> None:
    assert foreign([{"pid": 1, "comm": "nv-hostengine", "unit": "nvidia-dcgm.service"}]) == []
    assert foreign([{"pid": 1, "comm": "dcgm", "unit": "dcgm.service", "container": "0123456789ab"}]) != []
    assert foreign([{"pid": 2, "comm": "python3", "unit": "vllm.service"}]) == ["python3 (process 2, vllm.service)"]
