# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian root file systems, made once with mmdebstrap and then only read.

The mirror is whatever this machine's own apt uses: no host name is written in this repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from . import mounts, processes
from .errors import CannotRunHere, LabError

# What a container node has beyond Debian's essential packages.
NODE_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "udev",
    "openssh-server",
    "sudo",
    "python3",
    "python3-apt",
    "python3-requests",
    "docker.io",
    "iptables",
    "iproute2",
    "iputils-ping",
    "rdma-core",
    "ibverbs-utils",
    "infiniband-diags",
    "ca-certificates",
    "curl",
    "kmod",
    "pciutils",
    "procps",
)

# Debian 13 splits the client off Docker, and its Podman has Quadlet.
SUITE_PACKAGES: dict[str, tuple[str, ...]] = {
    "trixie": ("docker-cli", "podman", "crun", "netavark", "aardvark-dns", "nftables"),
}


def node_packages(suite: str) -> tuple[str, ...]:
    """What a container node of the release has beyond Debian's essential packages."""
    return NODE_PACKAGES + SUITE_PACKAGES.get(suite, ())


# Raised when the recipe below changes what comes out for the same packages.
RECIPE = 1

_INDEX_FORMAT = (
    "$(REPO_URI)\t$(CODENAME)\t$(SUITE)\t$(RELEASE)\t$(COMPONENT)\t$(ORIGIN)\t$(SIGNED_BY)"
)


def apt_sources(index_targets: str, suite: str) -> list[str]:
    """One-line apt sources for `suite` out of the output of `apt-get indextargets`.

    A machine that follows another Debian release still names the mirror: its main archive is then
    used with `suite` in place of its own release (updates and security archives likewise).
    """
    rows = [line.split("\t") for line in index_targets.splitlines() if line.count("\t") == 6]
    lines: list[str] = []
    for uri, codename, _suite, release, component, origin, signed_by in rows:
        if origin != "Debian" or component != "main":
            continue
        own = codename.split("-")[0]
        if not release.startswith(own):
            own = release.split("-")[0].split("/")[0]
        wanted = suite + release[len(own) :]
        signed = f"[signed-by={signed_by}] " if signed_by.startswith("/") else ""
        line = f"deb {signed}{uri} {wanted} {component}"
        if line not in lines:
            lines.append(line)
    return lines


def passed_on_options(apt_config: str) -> list[str]:
    """The lines of `apt-config dump` that a mirror may need: proxies and lenient dates."""
    keep = ("Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-")
    return [
        line.strip()
        for line in apt_config.splitlines()
        if line.startswith(keep) and '""' not in line
    ]


def key(suite: str, packages: Sequence[str], extra: object = None) -> str:
    """Content hash that names a root file system in the cache."""
    text = json.dumps([RECIPE, suite, sorted(packages), extra])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def bootstrap(suite: str, packages: Sequence[str], target: Path, log: Path) -> None:
    """Make a Debian tree of `suite` with `packages` in the folder target. About 20 to 60 s.

    Raises CannotRunHere without a Debian mirror, LabError when mmdebstrap fails.
    """
    sources = apt_sources(
        _output("apt-get", "indextargets", "--format", _INDEX_FORMAT, "Created-By: Packages"), suite
    )
    if not sources:
        raise CannotRunHere(
            "this machine's apt knows no Debian archive (run `apt-get update`, or use Debian)"
        )
    argv = ["mmdebstrap", "--mode=root", "--variant=minbase", "--skip=check/empty"]
    argv += [f"--aptopt={line}" for line in passed_on_options(_output("apt-config", "dump"))]
    argv += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    argv += [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale")]
    argv += [f"--include={','.join(packages)}", suite, str(target), "-"]
    # Beside the tree, so that what a killed build leaves goes with the tree's own draft.
    temporary = target.with_name(target.name + ".tmp")
    temporary.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(temporary),
    }
    try:
        status = processes.run(f"build-{target.name}", argv, log, env, "\n".join(sources) + "\n")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if status:
        raise LabError(f"mmdebstrap could not make a {suite} root file system; its log is {log}")


def _prepare_node_tree(tree: Path) -> None:
    """Leave nothing in the shared tree that must differ between nodes or that reaches out."""
    (tree / "etc/machine-id").write_text("")
    for path in (tree / "etc/ssh").glob("ssh_host_*"):
        path.unlink()
    # Nodes have no way out: an empty list makes `apt-get update` a success, not a time-out.
    (tree / "etc/apt/sources.list").write_text("")
    (tree / "etc/hostname").unlink(missing_ok=True)
    # mmdebstrap copies the builder's resolver; nodes have none.
    (tree / "etc/resolv.conf").unlink(missing_ok=True)
    (tree / "etc/resolv.conf").write_text("")
    units = {
        # No network to wait for, no clock to set, no disk to trim inside a container.
        "systemd-networkd-wait-online.service": "/dev/null",
        "systemd-timesyncd.service": "/dev/null",
        "fstrim.timer": "/dev/null",
        "apt-daily.timer": "/dev/null",
        "apt-daily-upgrade.timer": "/dev/null",
        "e2scrub_all.timer": "/dev/null",
        "multi-user.target.wants/systemd-networkd.service": (
            "/lib/systemd/system/systemd-networkd.service"
        ),
    }
    for name, target in units.items():
        link = tree / "etc/systemd/system" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def ensure(cache: Path, suite: str, log: Path) -> Path:
    """The node root file system of `suite`: from the cache, or made now. Never written to again."""
    name = f"node-{suite}-{key(suite, node_packages(suite))}"
    return ensure_tree(cache, name, lambda tree: _build_node(suite, tree, log))


def _build_node(suite: str, tree: Path, log: Path) -> None:
    bootstrap(suite, node_packages(suite), tree, log)
    _prepare_node_tree(tree)


def ensure_tree(cache: Path, name: str, build: Callable[[Path], None]) -> Path:
    """The folder cache/trees/NAME, made by build(folder) when absent; half-made ones are no use."""
    final = cache / "trees" / name
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=final.parent))
    try:
        work.chmod(0o755)
        build(work)
        work.rename(final)
    finally:
        if work.exists():
            mounts.unmount_below(work)
            shutil.rmtree(work, ignore_errors=True)
    return final
