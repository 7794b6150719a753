# SPDX-License-Identifier: GPL-3.0-or-later
"""Container nodes: systemd-nspawn machines that boot systemd and run their own container engine.

They share this machine's kernel. What needs a kernel of its own belongs on a VM node.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from pathlib import Path

from . import gpu_hook, mounts, processes, ssh
from .settings import Node, Settings

# systemd-nspawn's own traces, which it leaves behind when it is killed.
NSPAWN_RUN = Path("/run/systemd/nspawn")
NSPAWN_PARTS = ("propagate", "unix-export", "locks")

# Engines stack layers by overlay, which cannot live on an overlay: these folders are plain ones.
ENGINE_FOLDERS = ("docker", "containerd", "containers")

_CGROUP_UNIT = """\
[Unit]
Description=Make the control groups writable for containers inside this lab node
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
# systemd-nspawn mounts cgroup v1 controllers read-only; container engines must write there.
# On a v2 host nothing here is read-only and the loop does nothing.
ExecStart=/bin/sh -c 'for d in /sys/fs/cgroup/*/; do \
    [ -e "$d/tasks" ] && mount -o remount,rw,bind "$d"; done; true'

[Install]
WantedBy=sysinit.target
"""

_ROUTE_UNIT = """\
[Match]
Name=host0

[Network]
Address={address}/{prefix}
Gateway={gateway}
LinkLocalAddressing=no
IPv6AcceptRA=no
"""

_SSHD = """\
PermitRootLogin prohibit-password
PasswordAuthentication no
HostKey /etc/ssh/ssh_host_ed25519_key
UseDNS no
"""

# `--exec-opt native.cgroupdriver=cgroupfs`: systemd inside is not the manager of the host's tree.
_DOCKER_DAEMON = """\
{
  "exec-opts": ["native.cgroupdriver=cgroupfs"],
  "storage-driver": "overlay2",
  "log-driver": "json-file"
}
"""


def _home(settings: Settings, node: Node) -> Path:
    return settings.scratch / "nodes" / node.name


def root(settings: Settings, node: Node) -> Path:
    """Where the node's root file system is mounted on this machine."""
    return _home(settings, node) / "root"


def process_name(node: Node) -> str:
    return f"node-{node.name}"


def hosts_text(nodes: list[Node]) -> str:
    """The /etc/hosts of every node: each knows the others, none has a resolver."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{node.address} {node.name}" for node in nodes]
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def _dress(settings: Settings, node: Node, nodes: list[Node]) -> None:
    """Write into the node's own layer all that makes it this node."""
    top = root(settings, node)
    _write(top / "etc/hostname", node.name + "\n")
    _write(top / "etc/hosts", hosts_text(nodes))
    _write(top / "etc/machine-id", uuid.uuid4().hex + "\n", 0o444)
    _write(
        top / "etc/systemd/network/10-host0.network",
        _ROUTE_UNIT.format(
            address=node.address, prefix=settings.prefix_length, gateway=settings.gateway
        ),
    )
    # Debian's image ships a DHCP rule for host0: ours sorts first and wins.
    _write(top / "etc/systemd/system/lab-cgroup.service", _CGROUP_UNIT)
    wants = top / "etc/systemd/system/sysinit.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    link = wants / "lab-cgroup.service"
    link.unlink(missing_ok=True)
    link.symlink_to("/etc/systemd/system/lab-cgroup.service")
    _write(top / "etc/ssh/sshd_config.d/lab.conf", _SSHD)
    _write(top / "etc/docker/daemon.json", _DOCKER_DAEMON)
    _write(top / "etc/inferops-lab-node", f"kind={node.kind}\nname={node.name}\n")
    _write(top / "root/.ssh/authorized_keys", ssh.ensure_login_key(settings) + "\n", 0o600)
    (top / "root/.ssh").chmod(0o700)
    key = ssh.ensure_host_key(settings, node)
    for source, mode in ((key, 0o600), (key.with_suffix(".pub"), 0o644)):
        target = top / "etc/ssh" / f"ssh_host_ed25519_key{'.pub' if mode == 0o644 else ''}"
        shutil.copyfile(source, target)
        target.chmod(mode)
    authority = settings.state / "registry" / "ca.crt"
    if authority.exists():
        _write(
            top / "etc/docker/certs.d" / settings.registry / "ca.crt",
            authority.read_text(encoding="ascii"),
        )
    gpu_hook.install(top)


def nspawn_argv(settings: Settings, node: Node) -> list[str]:
    """The command line that boots the node."""
    # systemd 256 and newer start on a cgroup v1 host only when told to; older ones ignore the word.
    legacy = ["SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"] if len(processes.hierarchies()) > 1 else []
    home = _home(settings, node)
    return [
        "systemd-nspawn",
        "--quiet",
        "--boot",
        "--register=no",
        "--keep-unit",
        f"--machine={node.name}",
        f"--directory={root(settings, node)}",
        f"--network-bridge={settings.bridge}",
        "--capability=all",
        "--system-call-filter=add_key keyctl bpf @privileged",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--console=pipe",
        *(f"--bind={home / part}:/var/lib/{part}" for part in ENGINE_FOLDERS),
        *legacy,
    ]


def running(node: Node) -> bool:
    return bool(processes.members(process_name(node)))


def start(settings: Settings, node: Node, nodes: list[Node], tree: Path) -> None:
    """Boot the node on a copy-on-write layer over tree; a running one is left alone."""
    if running(node):
        return
    home = _home(settings, node)
    remove(settings, node)
    for part in ENGINE_FOLDERS:
        (home / part).mkdir(parents=True, exist_ok=True)
    mounts.overlay(tree, home / "upper", root(settings, node))
    _dress(settings, node, nodes)
    processes.start(
        process_name(node),
        # In this mode systemd-nspawn ends with 133 when the node asks for a reboot, for a supervisor to start it again.
        ["/bin/sh", "-c", 'while "$@"; [ $? -eq 133 ]; do :; done', "sh", *nspawn_argv(settings, node)],
        settings.state / "logs" / f"{node.name}.log",
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def nspawn_traces(settings: Settings, node: Node) -> list[Path]:
    """What systemd-nspawn leaves in /run for this node when it is killed. Ask before unmounting."""
    found = [NSPAWN_RUN / part / node.name for part in NSPAWN_PARTS]
    top = root(settings, node)
    if top.exists():
        stat = top.stat()
        found.append(NSPAWN_RUN / "locks" / f"inode-{stat.st_dev}:{stat.st_ino}")
    return found


def remove(settings: Settings, node: Node) -> None:
    """End the node and remove its layer; also right for one that is half there, or not at all."""
    processes.end(process_name(node))
    home = _home(settings, node)
    traces = nspawn_traces(settings, node)
    if home.exists():
        mounts.unmount_below(home)
        shutil.rmtree(home)
    for left in traces:
        if left.is_dir():
            mounts.unmount_below(left)
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
    for folder in (*(NSPAWN_RUN / part for part in NSPAWN_PARTS), NSPAWN_RUN):
        # Ours or not: an empty one holds nothing of anybody.
        with contextlib.suppress(OSError):
            folder.rmdir()
