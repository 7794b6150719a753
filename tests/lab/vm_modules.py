# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in kernel modules, compiled once against the headers of the machines' kernel.

Layout of the result: driver/VERSION/FLAVOUR/*.ko with nvidia-peermem.ko below inbox/, ofed-a/ and
ofed-b/ (what it was built against), ofed/VERSION/mlx_compat.ko, legacy/1.3/nv_peer_mem.ko,
library/VERSION/*.so.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import mounts, vm_image
from .errors import LabError
from .settings import Settings

SOURCES = Path(__file__).resolve().with_name("modules")
DRIVER_MODULES = ("nvidia.ko", "nvidia-uvm.ko", "nvidia-modeset.ko")
LIBRARIES = ("libnvidia-ml.so", "libcuda.so")


@dataclass(frozen=True)
class Build:
    """One run of make: what it is given, and where its modules go (file to path in the result)."""

    name: str
    variables: tuple[tuple[str, str], ...]
    results: tuple[tuple[str, str], ...]

    def argv(self, release: str) -> list[str]:
        return ["make", "-s", "-C", f"/build/{self.name}", f"KERNEL={release}"] + [f"{k}={v}" for k, v in self.variables]


def builds(drivers: Sequence[Mapping[str, str]], ofeds: Sequence[Mapping[str, str]]) -> list[Build]:
    """Every run of make that the releases need.

    drivers and ofeds are the lists of packages/releases.yml. The proprietary flavour is built
    against the kernel's own RDMA stack only.
    """
    found = []
    for driver in drivers:
        version = driver["VERSION"]
        common = [("NV_VERSION", version), ("NV_DATE", driver["DATE"])]
        for flavour in ("open", "proprietary"):
            place = f"driver/{version}/{flavour}"
            results = [(name, f"{place}/{name}") for name in DRIVER_MODULES]
            results.append(("nvidia-peermem.ko", f"{place}/inbox/nvidia-peermem.ko"))
            found.append(Build(f"{version}-{flavour}", (*common, ("NV_FLAVOUR", flavour)), tuple(results)))
        for ofed in ofeds:
            letter = ofed["BUILD"]
            more = [("OFED_VERSION", ofed["OFED_VERSION"])]
            if letter != "a":
                more.append(("PEER_OTHER_BUILD", "1"))
            results = [("nvidia-peermem.ko", f"driver/{version}/open/ofed-{letter}/nvidia-peermem.ko")]
            if driver is drivers[-1]:
                # What does not depend on the driver's version is taken from one of the runs.
                results.append(("mlx_compat.ko", f"ofed/{ofed['OFED']}/mlx_compat.ko"))
                if letter == "a":
                    results.append(("nv_peer_mem.ko", "legacy/1.3/nv_peer_mem.ko"))
            found.append(Build(f"{version}-ofed-{letter}", (*common, *more), tuple(results)))
    return found


def key(release: str, releases: Mapping[str, Any], sources: Path = SOURCES) -> str:
    digest = hashlib.sha256(repr((release, releases["drivers"], releases["ofeds"])).encode())
    for path in sorted(sources.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _chroot(stage: Path, argv: Sequence[str]) -> None:
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/"}
    done = subprocess.run(["chroot", str(stage), *argv], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"`{shlex.join(argv)}` failed: {(done.stderr or done.stdout)[-2000:]}")


def _compile(stage: Path, release: str, build: Build, target: Path) -> None:
    work = stage / "build" / build.name
    shutil.copytree(SOURCES, work)
    _chroot(stage, build.argv(release))
    names = sorted({name for name, _ in build.results})
    _chroot(stage, ["strip", "--strip-debug", *(f"/build/{build.name}/{name}" for name in names)])
    for name, place in build.results:
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(work / name, target / place)
    shutil.rmtree(work)


def _link(stage: Path, version: str, target: Path) -> None:
    (stage / "build").mkdir(exist_ok=True)
    shutil.copyfile(SOURCES / "library.c", stage / "build/library.c")
    folder = target / "library" / version
    folder.mkdir(parents=True)
    for name in LIBRARIES:
        argv = ["gcc", "-shared", "-nostdlib", f'-DNV_VERSION="{version}"', f"-Wl,-soname,{name}.1", "-Wl,--build-id=none"]
        _chroot(stage, [*argv, "-s", "-o", f"/build/{name}", "/build/library.c"])
        (stage / "build" / name).replace(folder / name)


def ensure(settings: Settings, release: str, releases: Mapping[str, Any]) -> Path:
    """The folder of compiled modules: from the cache, or made now (about 90 s on two cores).

    Raises CannotRunHere without a Debian mirror, LabError when a build fails.
    """
    final = settings.cache / "vm" / f"modules-{release}-{key(release, releases)}"
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        work.chmod(0o755)
        stage, target = work / "stage", work / "result"
        stage.mkdir()
        target.mkdir()
        log = final.parent / f"{final.name}.log"
        vm_image.bootstrap(settings.suite, stage, [f"linux-headers-{release}", "gcc", "make"], log, variant="essential")
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            jobs = [pool.submit(_compile, stage, release, build, target) for build in builds(releases["drivers"], releases["ofeds"])]
            for job in jobs:
                job.result()
        for driver in releases["drivers"]:
            _link(stage, driver["VERSION"], target)
        target.rename(final)
    finally:
        mounts.unmount_below(work)
        shutil.rmtree(work, ignore_errors=True)
    return final
