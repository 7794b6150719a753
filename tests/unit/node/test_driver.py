# SPDX-License-Identifier: GPL-3.0-or-later
"""Section driver of the facts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import collect, driver, kernel_log, smi
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, MemoryReader, Ran
from tests.costume import HARDWARE, Spec, dress

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples"
KERNEL = "6.8.0-86-generic"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n"


@pytest.fixture
def samples() -> Path:
    if not SAMPLES.is_dir():
        pytest.skip("no folder of captures beside the repository")
    return SAMPLES


def dressed(hardware: str = "b300", faults: Iterable[str] = (), change: Optional[Callable[[MemoryReader], Any]] = None) -> Dict[str, Any]:
    reader = dress(Spec("n1", hardware, faults=frozenset(faults)))
    if change:
        change(reader)
    return driver.collect(reader, collect.Options())


def bare(files: Optional[Dict[str, Any]] = None, links: Optional[Dict[str, str]] = None, commands: Optional[Dict[Any, Any]] = None,
         folders: Iterable[str] = (), absent: str = "missing") -> Dict[str, Any]:
    ring = {kernel_log.RING: "[    0.000000] Linux version\n", driver.MODINFO: Ran(1, "", "modinfo: ERROR: Module nvidia not found.\n")}
    probes = {("process", ""): {"uid": 0, "kernel": KERNEL}}
    return driver.collect(MemoryReader(files, links, {**ring, **(commands or {})}, probes, folders, absent), collect.Options())


# -- whole nodes ---------------------------------------------------------------------------------
@pytest.mark.parametrize("hardware", HARDWARE)
def test_every_fact_of_a_healthy_node(hardware: str) -> None:
    facts = dressed(hardware)
    kernel = facts["build"]["dkms"][0]["kernel"]
    assert facts == {
        "loaded": "580.95.05", "loaded_flavour": "open",
        "installed": "580.95.05", "installed_flavour": "open", "installed_for_kernel": True,
        "userspace": "580.95.05", "cuda": "13.0", "mismatch": False, "nouveau": {"loaded": False, "blacklisted": True},
        "params": {"EnableStreamMemOPs": "0", "PeerMappingOverride": "0", "GrdmaPciTopoCheckOverride": "0", "NvLinkDisable": "0",
                   "CreateImexChannel0": "1" if hardware.startswith("gb") else "0"},
        "build": {"headers": True, "dkms": [{"module": "nvidia", "version": "580.95.05", "kernel": kernel, "status": "installed"}],
                  "compiler": True},
        "secure_boot": {"enabled": False, "signer": "example Secure Boot Module Signature key"}, "log": [], "unknown": {}}


def test_older_branch_shows_in_every_version() -> None:
    facts = dressed("b300", ["driver_r575"])
    assert [facts[name] for name in ("loaded", "installed", "userspace", "cuda")] == ["575.57.08"] * 3 + ["12.9"]


def test_newer_driver_on_disk() -> None:
    facts = dressed("b300", ["pending_reboot"])
    assert (facts["loaded"], facts["installed"], facts["build"]["dkms"][0]["version"]) == ("580.95.05", "580.105.08", "580.105.08")


def test_tool_that_hangs_leaves_all_but_its_own_words() -> None:
    facts = dressed("b300", ["smi_hung"])
    why = "nvidia-smi did not answer in time and was abandoned"
    assert (facts["cuda"], facts["mismatch"], facts["unknown"]) == (None, None, {"cuda": why, "mismatch": why})
    assert (facts["loaded"], facts["userspace"]) == ("580.95.05", "580.95.05")


def test_machine_without_driver_knows_that_there_is_none() -> None:
    facts = dressed("b300", ["no_gpu"])
    assert facts["unknown"] == {}
    assert [facts[name] for name in ("loaded", "loaded_flavour", "installed", "installed_for_kernel", "userspace", "cuda", "mismatch")] == [
        None, None, None, False, None, None, False]


def test_snapshot_that_recorded_nothing_knows_nothing() -> None:
    facts = driver.collect(MemoryReader(absent="not_recorded"), collect.Options())
    assert set(facts["unknown"]) == {"loaded", "installed", "cuda", "mismatch", "build", "secure_boot", "kernel_log"}
    assert facts["installed_for_kernel"] is None and facts["log"] is None and facts["mismatch"] is None
    assert facts["build"]["headers"] is None and facts["build"]["dkms"] is None


# -- versions ------------------------------------------------------------------------------------
@pytest.mark.parametrize("letter,version,flavour", [
    ("A", "580.126.20", "proprietary"), ("B", "580.126.20", "open"), ("C", "580.95.05", "open"), ("D", "580.126.09", "open"),
    ("E", "580.142", "open"), ("F", "580.173.02", "proprietary"), ("G", "525.60.11", "open"), ("H", "565.57.01", "open"),
    ("I", "550.163.01", "proprietary")])
def test_captured_forms_of_the_version_file(samples: Path, letter: str, version: str, flavour: str) -> None:
    text = (samples / "proc_driver_nvidia_version_variants.txt").read_text()
    block = text.split("# [%s]" % letter)[1].split("\n", 1)[1].split("\n# ")[0]
    assert driver.parse_version(block) == (version, flavour)


def test_version_file_of_several_lines_and_of_none() -> None:
    text = "GCC version:  gcc\n  of many\n  lines\nNVRM version: NVIDIA UNIX aarch64 Kernel Module  580.173.02  Wed\n"
    assert driver.parse_version(text) == ("580.173.02", "proprietary")
    assert driver.parse_version("NVRM version: something else") == (None, None) == driver.parse_version("")


def test_loaded_version_comes_from_either_file() -> None:
    proc = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build  (x)\n"}
    facts = bare(proc)
    assert (facts["loaded"], facts["loaded_flavour"], facts["unknown"]) == ("580.142", "open", {})
    facts = bare({"/sys/module/nvidia/version": "580.142\n"})
    assert (facts["loaded"], facts["loaded_flavour"]) == ("580.142", None) and "loaded_flavour" in facts["unknown"]
    facts = bare({"/sys/module/nvidia/version": Content(None, "denied")})
    assert facts["loaded"] is None and "denied" in facts["unknown"]["loaded"]
    facts = bare({"/sys/module/nvidia/version": "garbage", "/proc/driver/nvidia/version": "garbage"})
    assert facts["loaded"] is None and "no version in them" in facts["unknown"]["loaded"]


@pytest.mark.parametrize("licence,expected", [
    ("Dual MIT/GPL", "open"), ("GPL v2", "open"), ("NVIDIA", "proprietary"), ("", None), ("x", None)])
def test_flavour_by_licence(licence: str, expected: Any) -> None:
    assert driver.flavour(licence) == expected


def test_module_of_another_kernel_is_not_for_this_one() -> None:
    text = "filename: /x/nvidia.ko\nversion:        580.142\nlicense:        NVIDIA\nvermagic:       %s SMP mod_unload\n"
    facts = bare(commands={driver.MODINFO: text % KERNEL})
    assert (facts["installed"], facts["installed_flavour"], facts["installed_for_kernel"]) == ("580.142", "proprietary", True)
    assert bare(commands={driver.MODINFO: text % "5.15.0-1-generic"})["installed_for_kernel"] is False
    facts = bare(commands={driver.MODINFO: "nonsense\n"})
    assert facts["installed"] is None and facts["unknown"]["installed"] == "modinfo nvidia named no version"
    facts = bare(commands={driver.MODINFO: Ran(1, "", "modinfo: ERROR: could not load index\n")})
    assert "exited with 1" in facts["unknown"]["installed"] and facts["installed_for_kernel"] is None


def test_a_file_that_a_power_cut_left_empty_is_told_from_a_module_that_is_not_there() -> None:
    said = "modinfo: ERROR: could not get modinfo from 'nvidia': Invalid argument\n"
    facts = bare(commands={driver.MODINFO: Ran(1, "filename:       /lib/modules/x/updates/dkms/nvidia.ko\n", said)})
    assert facts["installed"] is None and facts["unknown"]["installed"] == driver.DAMAGED and facts["installed_for_kernel"] is False
    facts = bare(commands={driver.MODINFO: Ran(1, "", "modinfo: ERROR: Module nvidia not found.\n")})
    assert facts["installed"] is None and "installed" not in facts["unknown"]


def test_library_is_found_over_several_links() -> None:
    folder = "/usr/lib/x86_64-linux-gnu/"
    assert bare(links={
        folder + "libnvidia-ml.so.1": "/etc/alternatives/glx--libnvidia-ml.so.1-x86_64-linux-gnu",
        "/etc/alternatives/glx--libnvidia-ml.so.1-x86_64-linux-gnu": folder + "nvidia/current/libnvidia-ml.so.1",
        folder + "nvidia/current/libnvidia-ml.so.1": "libnvidia-ml.so.550.163.01"})["userspace"] == "550.163.01"
    assert bare(links={"/usr/lib64/libcuda.so.1": "libcuda.so.580.142"})["userspace"] == "580.142"
    assert bare(links={"/usr/lib64/libcuda.so.1": "libcuda.so.1"})["userspace"] is None


def test_mismatch_of_driver_and_library() -> None:
    facts = dressed(change=lambda reader: reader.commands.update({smi.COMMAND: Ran(18, MISMATCH, "")}))
    assert facts["mismatch"] is True and facts["cuda"] is None and "library 580.173" in facts["unknown"]["cuda"]
    assert "mismatch" not in facts["unknown"] and facts["userspace"] == "580.95.05"
    assert bare(commands={smi.COMMAND: Ran(18, MISMATCH, "")})["userspace"] == "580.173"
    # A process that calls itself so is no mismatch.
    text = '<?xml version="1.0" ?>\n<nvidia_smi_log><cuda_version>13.0</cuda_version><gpu><x>Driver/library version mismatch</x></gpu>'
    facts = bare(commands={smi.COMMAND: text})
    assert (facts["mismatch"], facts["cuda"]) == (False, "13.0")


# -- what stands in the way ----------------------------------------------------------------------
@pytest.mark.parametrize("path,text,expected", [
    ("/etc/modprobe.d/a.conf", "blacklist nouveau\n", True),
    ("/usr/lib/modprobe.d/b.conf", "options x\n  install nouveau /bin/false\n", True),
    ("/etc/modprobe.d/a.conf", "# blacklist nouveau\n", False), ("/etc/modprobe.d/a.conf.bak", "blacklist nouveau\n", False),
    ("/etc/modprobe.d/a.conf", "blacklist nouveau_more\n", False),
    ("/proc/cmdline", "ro modprobe.blacklist=nouveau,x quiet", True), ("/proc/cmdline", "ro rd.driver.blacklist=a,nouveau", True),
    ("/proc/cmdline", "ro nouveau.modeset=0", False)])
def test_nouveau_is_kept_out(path: str, text: str, expected: bool) -> None:
    assert bare({path: text})["nouveau"] == {"loaded": False, "blacklisted": expected}


def test_nouveau_is_loaded() -> None:
    assert bare(folders=["/sys/module/nouveau"])["nouveau"]["loaded"] is True


def test_dkms_forms() -> None:
    assert driver.parse_dkms(
        "nvidia/580.95.05, 6.8.0-90-generic, x86_64: installed\nnvidia, 550.163.01, 6.1.0-1-amd64, x86_64: installed\n"
        "nvidia-open/580.142: added\nmlnx-ofed-kernel/25.07, 6.8.0-90-generic, x86_64: installed\n"
        "nvidia/580.1, 6.8.0-91-generic, x86_64: installed (WARNING! Diff between built and installed module!)\n"
        "Error! Could not locate dkms.conf file.\ngdrdrv/2.5, 6.8.0-90-generic, x86_64: built\n") == [
        {"module": "nvidia", "version": "580.95.05", "kernel": "6.8.0-90-generic", "status": "installed"},
        {"module": "nvidia", "version": "550.163.01", "kernel": "6.1.0-1-amd64", "status": "installed"},
        {"module": "nvidia-open", "version": "580.142", "status": "added"},
        {"module": "nvidia", "version": "580.1", "kernel": "6.8.0-91-generic",
         "status": "installed (WARNING! Diff between built and installed module!)"},
        {"module": "gdrdrv", "version": "2.5", "kernel": "6.8.0-90-generic", "status": "built"}]
    assert len(driver.parse_dkms("nvidia/1.0: added\n" * 50)) == 12


def test_headers_and_compiler() -> None:
    assert bare()["build"] == {"headers": False, "dkms": [], "compiler": False}
    assert bare({"/usr/bin/cc": ""}, folders=["/lib/modules/%s/build" % KERNEL])["build"] == {"headers": True, "dkms": [], "compiler": True}
    facts = bare(commands={driver.DKMS: Ran(2, "", "Error! Your dkms is broken")})
    assert facts["build"]["dkms"] is None and "Your dkms is broken" in facts["unknown"]["build"]


@pytest.mark.parametrize("said,files,folders,expected", [
    ("SecureBoot enabled\n", {}, (), True), ("SecureBoot disabled\nPlatform is in Setup Mode\n", {}, (), False),
    (Ran(1, "", "EFI variables are not supported on this system\n"), {}, (), False),
    (None, {}, (), False), (None, {driver.EFI_SECURE_BOOT: "\x06\0\0\0\x01"}, (), True),
    (None, {driver.EFI_SECURE_BOOT: "\x06\0\0\0\0"}, (), False), (None, {}, ("/sys/firmware/efi",), None),
    (Ran(None, "", "", "timeout"), {}, ("/sys/firmware/efi",), None)])
def test_secure_boot(said: Any, files: Dict[str, str], folders: List[str], expected: Any) -> None:
    facts = bare(files, commands={} if said is None else {driver.SECURE_BOOT: said}, folders=folders)
    assert facts["secure_boot"]["enabled"] is expected
    assert ("secure_boot" in facts["unknown"]) == (expected is None)


@pytest.mark.parametrize("kind,lines", [
    ("api_mismatch", ["NVRM: API mismatch: the client 'nvidia-smi' (pid 77)"]),
    ("key_rejected", ["Loading of module with unavailable key is rejected"]),
    ("key_rejected", ["Loading of unsigned module is rejected"]),
    ("gsp_missing", ["nvidia 0000:06:00.0: loading /lib/firmware/nvidia/570.172.08/gsp_ga10x.bin failed with error -4"]),
    ("open_unsupported", ["NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80)\n               NVRM: installed in this system is not "
                          "supported by open\n               NVRM: nvidia.ko because it does not include the required GPU"]),
    ("open_required", ["NVRM: installed in this system requires use of the NVIDIA open kernel modules."]),
    ("not_supported", ["NVRM: installed in this system is not supported by the NVIDIA 580.95.05 driver release."]),
    ("not_supported", ["NVRM: installed in this system is not supported by the\n               NVRM: NVIDIA 580.95.05 driver release."]),
    ("not_supported", ["NVRM: installed in this system is not supported by the"]),
    ("rm_init_failed", ["NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x65:2453)"]),
    ("no_gpu", ["NVRM: No NVIDIA GPU found."]), ("no_gpu", ["NVRM: The NVIDIA probe routine was not called for 8 device(s)."]),
    ("no_gpu", ["NVRM: None of the NVIDIA devices were initialized."]),
    ("bar_invalid", ["NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:"])])
def test_kernel_messages(kind: str, lines: List[str]) -> None:
    text = "".join("[    5.000000] %s\n" % line for line in lines + lines)
    facts = bare(commands={kernel_log.RING: text + "[    6.000000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n"})
    assert [(entry["kind"], entry["count"]) for entry in facts["log"]] == [(kind, 2)]


def test_kernel_messages_of_a_long_uptime_are_read_in_bounded_time() -> None:
    text = "".join("[%12.6f] Loading of module %s\n" % (number, "Loading of module " * 50) for number in range(3000))
    started = time.monotonic()
    assert bare(commands={kernel_log.RING: text})["log"] == []
    assert time.monotonic() - started < 10


def test_captured_load_failures(samples: Path) -> None:
    text = "".join("[    1.000000] %s\n" % line for line in (samples / "driver_load_failures.txt").read_text().splitlines())
    facts = bare(commands={kernel_log.RING: text})
    assert {entry["kind"]: entry["count"] for entry in facts["log"]} == {"api_mismatch": 1, "key_rejected": 2, "gsp_missing": 1}


def test_kernel_log_that_may_not_be_read() -> None:
    facts = bare(commands={kernel_log.RING: Ran(1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")})
    assert facts["log"] is None and "Operation not permitted" in facts["unknown"]["kernel_log"]


# -- any text ------------------------------------------------------------------------------------
@given(st.one_of(st.text(), st.text(alphabet="nvidia/, .:0123456789x\n()NVRMUXOpenKlMdufr")))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_without_an_exception(text: str) -> None:
    driver.parse_secure_boot(text)
    driver.flavour(text)
    commands = dict.fromkeys(driver.commands(collect.Options()), text)
    files = dict.fromkeys((
        "/sys/module/nvidia/version", "/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/etc/modprobe.d/x.conf",
        "/proc/cmdline", driver.EFI_SECURE_BOOT), text)
    facts = bare(files, {"/usr/lib64/libcuda.so.1": text}, commands)
    assert set(facts["build"]) == {"headers", "dkms", "compiler"}
