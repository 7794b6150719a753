# SPDX-License-Identifier: GPL-3.0-or-later
"""The repository of stand-in packages: definitions, texts and one real package."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import apt_repo, vm
from tests.lab.apt_repo import File, Package
from tests.lab.errors import LabError

WORDS = {"KERNEL": "6.1.0-57-amd64", "KERNEL_VERSION": "6.1.192-3"}


@pytest.fixture(scope="module")
def packages() -> list[Package]:
    entries, releases = apt_repo.load()
    return apt_repo.expand(entries, releases, WORDS)


def versions(packages: list[Package], name: str) -> list[str]:
    return [package.version for package in packages if package.name == name]


def one(packages: list[Package], name: str, version: str) -> Package:
    (found,) = [package for package in packages if (package.name, package.version) == (name, version)]
    return found


def test_both_branches_are_there_under_the_real_names(packages: list[Package]) -> None:
    for name in ("nvidia-open", "nvidia-dkms-open", "libnvidia-compute", "nvidia-utils", "nvidia-persistenced"):
        assert {version.split(".")[0] for version in versions(packages, name)} >= {"575", "580"}
    assert versions(packages, "nvidia-fabricmanager-575") == ["575.57.08-1"]
    assert "580.95.05-1" in versions(packages, "nvidia-fabricmanager")
    assert versions(packages, "nvidia-driver-pinning-580") == ["580-1"]


def test_a_fabric_manager_of_no_driver_version_exists(packages: list[Package]) -> None:
    (lagging,) = versions(packages, "nvidia-fabricmanager-580")
    drivers = {version.rpartition("-")[0] for version in versions(packages, "nvidia-open")}
    assert lagging.rpartition("-")[0] not in drivers
    (text,) = [file.text for path, file in one(packages, "nvidia-fabricmanager-580", lagging).files if path == "/usr/bin/nv-fabricmanager"]
    assert text and f'"{lagging.rpartition("-")[0]}"' in text


def test_every_relation_can_be_met_inside_the_repository_or_by_debian(packages: list[Package]) -> None:
    debian = {"kmod", "python3"}
    names = {package.name for package in packages} | debian
    exact = {(package.name, package.version) for package in packages}
    for package in packages:
        for kind, value in package.relations:
            if kind != "depends":
                continue
            for relation in value.split(", "):
                name, _, condition = relation.partition(" ")
                assert name in names, f"{package.name} depends on {name}, which is nowhere"
                if condition.startswith("(= "):
                    assert (name, condition[3:-1]) in exact, f"{package.name} depends on {relation}"


def test_every_package_says_that_it_is_a_stand_in(packages: list[Package]) -> None:
    assert all("(stand-in)" in apt_repo.control(package, 1) for package in packages)


def test_no_word_is_left_unfilled(packages: list[Package]) -> None:
    for package in packages:
        texts = [apt_repo.control(package, 1), *(text for _, text in package.scripts)]
        texts += [path + (file.text or "") + (file.link or "") for path, file in package.files]
        assert not any("@VERSION@" in text or "@KERNEL@" in text or "@MODULE" in text for text in texts)


@pytest.mark.parametrize("shell", [path for path in (shutil.which("dash"), shutil.which("bash")) if path])
def test_scripts_are_valid_shell(packages: list[Package], shell: str) -> None:
    seen = set()
    for package in packages:
        texts = [text for _, text in package.scripts] + [file.text or "" for _, file in package.files]
        for text in texts:
            if text.startswith("#!/bin/sh") and text not in seen:
                seen.add(text)
                done = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True, check=False)
                assert done.returncode == 0, (package.name, done.stderr)
    assert len(seen) > 10


def test_python_in_packages_compiles(packages: list[Package]) -> None:
    texts = [file.text for package in packages for _, file in package.files if (file.text or "").startswith("#!/usr/bin/python3")]
    assert texts
    for text in texts:
        compile(text or "", "nvidia-ctk", "exec")


def test_unknown_word_is_an_error() -> None:
    assert apt_repo.fill("a @X@ b@c.d", {"X": "1"}) == "a 1 b@c.d"
    with pytest.raises(LabError, match="@NO@"):
        apt_repo.fill("@NO@", {})


def test_package_defined_twice_is_an_error() -> None:
    entry: dict[str, Any] = {"name": "a", "each": "singles", "version": "1", "summary": "s"}
    with pytest.raises(LabError, match="twice"):
        apt_repo.expand([entry, entry], {"singles": [{}]}, {})


def test_only_restricts_releases() -> None:
    entry: dict[str, Any] = {"name": "a", "each": "d", "only": {"B": ["2"]}, "version": "@B@", "summary": "s"}
    assert [package.version for package in apt_repo.expand([entry], {"d": [{"B": "1"}, {"B": "2"}]}, {})] == ["2"]


def test_control_lists_relations_and_size() -> None:
    package = Package("a", "1-1", "all", "does a", (("depends", "b (= 1), c"), ("conflicts", "d")))
    assert apt_repo.control(package, 7) == (
        "Package: a\nVersion: 1-1\nArchitecture: all\nMaintainer: inferops lab <lab@localhost>\nInstalled-Size: 7\n"
        "Depends: b (= 1), c\nConflicts: d\nSection: misc\nPriority: optional\nDescription: does a (stand-in)\n"
        " Stand-in of a test lab: drives no hardware and comes from no vendor.\n"
    )


def test_release_names_each_index_with_checksum_and_size() -> None:
    text = apt_repo.release_text({"Packages": b"abc"}, "Sun, 29 Nov 2026 20:00:00 UTC")
    assert f" {hashlib.sha256(b'abc').hexdigest()}                3 Packages\n" in text
    assert "Date: Sun, 29 Nov 2026 20:00:00 UTC\n" in text


@pytest.mark.parametrize(
    ("pattern", "left_out"),
    [("nvlsm", True), ("nvlsm=2025*", True), ("nvlsm=2024*", False), ("nv*", True), ("nvidia*", False), ("nvlsm=*", True)],
)
def test_patterns_leave_packages_out(pattern: str, left_out: bool) -> None:
    assert apt_repo.left_out("nvlsm", "2025.06.11-1", [pattern]) is left_out


def test_prebuilt_files_of_a_driver_land_by_kernel_and_rdma_stack(tmp_path: Path) -> None:
    folder = tmp_path / "driver/580.95.05/open"
    for name in ("nvidia.ko", "inbox/nvidia-peermem.ko", "ofed-a/nvidia-peermem.ko"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"ko")
    modules = {"driver": "580.95.05", "flavour": "open", "into": "/usr/src/nvidia-580.95.05"}
    package = Package("p", "1", "amd64", "s", modules=modules)
    assert sorted(apt_repo.module_files(package, tmp_path, "6.1")) == [
        "/usr/src/nvidia-580.95.05/6.1/inbox/nvidia-peermem.ko",
        "/usr/src/nvidia-580.95.05/6.1/nvidia.ko",
        "/usr/src/nvidia-580.95.05/6.1/ofed-a/nvidia-peermem.ko",
    ]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb here")
def test_package_is_built_as_described(tmp_path: Path) -> None:
    package = Package(
        "demo",
        "1.0-1",
        "all",
        "demonstrates",
        (("depends", "kmod"),),
        (("/usr/bin/demo", File(text="#!/bin/sh\n", mode=0o755)), ("/etc/demo.conf", File(text="a\n")), ("/usr/bin/d", File(link="demo"))),
        (("postinst", "#!/bin/sh\nexit 0\n"),),
    )
    (entry,) = apt_repo._build_packages([package], tmp_path, "6.1", tmp_path)
    path = tmp_path / "pool/demo_1.0-1_all.deb"
    listing = subprocess.run(["dpkg-deb", "-c", str(path)], capture_output=True, text=True, check=True).stdout
    assert "-rwxr-xr-x root/root" in listing
    assert "./usr/bin/d -> demo" in listing
    fields = subprocess.run(["dpkg-deb", "-f", str(path), "Depends", "Version"], capture_output=True, text=True, check=True).stdout
    assert "Depends: kmod" in fields
    assert f"SHA256: {hashlib.sha256(path.read_bytes()).hexdigest()}" in entry["paragraph"]
    control = subprocess.run(["dpkg-deb", "-I", str(path), "conffiles"], capture_output=True, text=True, check=True).stdout
    assert control == "/etc/demo.conf\n"
    first = path.read_bytes()
    shutil.rmtree(tmp_path / "pool")
    apt_repo._build_packages([package], tmp_path, "6.1", tmp_path)
    assert path.read_bytes() == first


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "whole.deb").write_bytes(b"w" * 5000)
    (tmp_path / "broken_1.deb").write_bytes(b"b" * 5000)
    port = vm.free_port()
    program = Path(apt_repo.__file__).with_name("apt_repo_server.py")
    argv = [sys.executable, str(program), str(tmp_path), str(port), "127.0.0.1", "--cut", "broken*", "--cut-after", "100"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout and child.stdout.readline() == b"serving\n"
        yield port
        child.kill()


def test_server_keeps_a_connection_and_breaks_the_chosen_transfer(server: int) -> None:
    link = http.client.HTTPConnection("127.0.0.1", server, timeout=5)
    for _ in range(2):
        link.request("GET", "/whole.deb")
        assert len(link.getresponse().read()) == 5000
    link.request("GET", "/broken_1.deb")
    with pytest.raises(http.client.IncompleteRead) as broken:
        link.getresponse().read()
    assert len(broken.value.partial) == 100
    link.close()


SMI = {"@VERSION@": "580.95.05", "@NVML@": "580.95", "@CUDA@": "13.0"}


@pytest.fixture
def smi(tmp_path: Path) -> Path:
    """nvidia-smi of 580.95.05 with the paths it reads moved below tmp_path."""
    text = (apt_repo.DEFINITIONS / "files/nvidia-smi").read_text()
    for word, value in SMI.items():
        text = text.replace(word, value)
    for path in ("/sys/module/nvidia", "/usr/lib/x86_64-linux-gnu", "/usr/bin/nvidia-modprobe", "/dev/kmsg", "/etc/inferops-lab"):
        text = text.replace(path, f"{tmp_path}{path}")
    program = tmp_path / "nvidia-smi"
    program.write_text(text)
    program.chmod(0o755)
    (tmp_path / "dev").mkdir()
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.95.05")
    return program


def run_smi(smi: Path, *arguments: str, loaded: str = "") -> subprocess.CompletedProcess[str]:
    if loaded:
        (smi.parent / "sys/module/nvidia").mkdir(parents=True, exist_ok=True)
        (smi.parent / "sys/module/nvidia/version").write_text(loaded + "\n")
    return subprocess.run([str(smi), *arguments], capture_output=True, text=True, check=False)


def test_smi_without_a_driver(smi: Path) -> None:
    done = run_smi(smi)
    assert done.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in done.stdout


def test_smi_beside_another_drivers_module(smi: Path) -> None:
    done = run_smi(smi, loaded="575.57.08")
    assert done.returncode == 18
    assert done.stdout == "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
    assert "API mismatch" in (smi.parent / "dev/kmsg").read_text()


def test_smi_beside_its_own_module(smi: Path) -> None:
    done = run_smi(smi, loaded="580.95.05")
    assert done.returncode == 0
    assert "Driver Version: 580.95.05" in done.stdout
    assert "CUDA Version: 13.0" in done.stdout
    done = run_smi(smi, "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader")
    assert done.stdout.splitlines()[0] == "0, NVIDIA B300 SXM6 AC, 580.95.05, 275040 MiB"
    assert len(done.stdout.splitlines()) == 8
    assert run_smi(smi, "-q", "-x").stdout.count("<gpu id=") == 8


def test_smi_shows_the_gpus_that_the_machine_is_said_to_have(smi: Path) -> None:
    (smi.parent / "etc/inferops-lab").mkdir(parents=True)
    (smi.parent / "etc/inferops-lab/gpus").write_text("gpus=2\nproduct=NVIDIA H200\nmemory=143771\n")
    done = run_smi(smi, "-L", loaded="580.95.05")
    assert [line.split(" (")[0] for line in done.stdout.splitlines()] == ["GPU 0: NVIDIA H200", "GPU 1: NVIDIA H200"]
