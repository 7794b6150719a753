# SPDX-License-Identifier: GPL-3.0-or-later
"""What a virtual machine boots: kernel, shared RAM disk and root disk, made once and cached."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import mounts, rootfs, vm_initrd
from .errors import CannotRunHere, LabError
from .settings import Settings

# Raised when the recipe below changes what comes out for the same packages.
RECIPE = 2

PACKAGES = (
    "busybox-static",
    "dbus",
    "ibverbs-utils",
    "iproute2",
    "iputils-ping",
    "kmod",
    "linux-image-amd64",
    "openssh-server",
    "pciutils",
    "perftest",
    "procps",
    "python3",
    "python3-apt",
    "rdma-core",
    "systemd-sysv",
    "udev",
)

# Kernel modules for hardware that qemu is never given. RDMA, networks and file systems stay.
LEFT_OUT = (
    "arch/x86/kvm",
    "drivers/ata",
    "drivers/block/floppy.ko",
    "drivers/bluetooth",
    "drivers/comedi",
    "drivers/cpufreq",
    "drivers/gpu",
    "drivers/hid",
    "drivers/hwmon",
    "drivers/iio",
    "drivers/input",
    "drivers/isdn",
    "drivers/md",
    "drivers/media",
    "drivers/mmc",
    "drivers/mtd",
    "drivers/net/can",
    "drivers/net/usb",
    "drivers/net/wireless",
    "drivers/platform",
    "drivers/scsi",
    "drivers/staging",
    "drivers/target",
    "drivers/usb",
    "drivers/video",
    "fs/btrfs",
    "fs/ceph",
    "fs/cifs",
    "fs/f2fs",
    "fs/gfs2",
    "fs/ocfs2",
    "fs/xfs",
    "net/bluetooth",
    "net/mac80211",
    "net/wireless",
    "sound",
)

# Nothing to wait for, nothing to clean, no screen and no clock source in a lab machine.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "systemd-binfmt.service",
    "systemd-networkd-wait-online.service",
    "systemd-pstore.service",
    "systemd-timesyncd.service",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "modprobe@configfs.service",
    "modprobe@dm_mod.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
    "modprobe@loop.service",
)

DISK_BYTES = 3 << 30

# A soft device goes with each reboot; a real HCA comes back by itself. Lines "DEVICE NETDEV" in
# /etc/inferops-lab/rxe name the devices that this unit brings back.
RXE_UNIT = """\
[Unit]
Description=Soft RoCE devices in place of HCAs (lab)
ConditionPathExists=/etc/inferops-lab/rxe
After=systemd-networkd.service
Before=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/lib/inferops-lab/rxe-up

[Install]
WantedBy=multi-user.target
"""
RXE_SCRIPT = """\
#!/bin/sh
# Make the soft RoCE devices named in /etc/inferops-lab/rxe.
set -e
modprobe -a mlx5_ib rdma_rxe
while read -r device netdev; do
    [ -e "/sys/class/infiniband/$device" ] || rdma link add "$device" type rxe netdev "$netdev"
done < /etc/inferops-lab/rxe
"""


@dataclass(frozen=True)
class Image:
    """Files that any number of machines share. The disk is only read: each has a layer of its own."""

    folder: Path
    release: str
    version: str

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinux"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd.cpio"

    @property
    def disk(self) -> Path:
        return self.folder / "root.ext4"


def mmdebstrap_argv(
    suite: str,
    target: str,
    packages: Sequence[str],
    *,
    variant: str = "apt",
    apt_options: Sequence[str] = (),
    excluded: Sequence[str] = (),
) -> list[str]:
    """The command that makes a Debian tree; sources are read from standard input."""
    argv = ["mmdebstrap", "--mode=root", f"--variant={variant}", "--format=directory"]
    argv += ["--skip=check/empty"]
    argv += [f"--aptopt={line}" for line in apt_options]
    argv += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in excluded]
    argv += [f"--include={','.join(sorted(packages))}", suite, target, "-"]
    return argv


def bootstrap(
    suite: str,
    target: Path,
    packages: Sequence[str],
    log: Path,
    *,
    variant: str = "apt",
    excluded: Sequence[str] = (),
) -> None:
    """Make a Debian tree in the folder target, from the mirror that this machine's apt uses.

    Raises CannotRunHere without mmdebstrap or mirror, LabError when the build fails.
    """
    if shutil.which("mmdebstrap") is None:
        raise CannotRunHere("mmdebstrap is not installed (apt-get install mmdebstrap)")
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", rootfs._INDEX_FORMAT, "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    sources = rootfs.apt_sources(targets, suite)
    if not sources:
        raise CannotRunHere("this machine's apt knows no Debian archive (run `apt-get update`, or use Debian)")
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    patterns = [f"/usr/share/{part}/*" for part in ("man", "doc", "locale", "info")]
    argv = mmdebstrap_argv(
        suite,
        str(target),
        packages,
        variant=variant,
        apt_options=rootfs.passed_on_options(dump),
        excluded=[*patterns, *excluded],
    )
    # INITRD=No: Debian's kernel hook would spend a minute on a RAM disk that nothing boots.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "INITRD": "No"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(
            argv,
            input="\n".join(sources) + "\n",
            text=True,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            check=False,
        )
    if done.returncode:
        raise LabError(f"mmdebstrap could not make a {suite} tree; its log is {log}")


def prepare(tree: Path) -> None:
    """Turn a Debian tree into a machine's: nothing that differs between machines or reaches out."""
    for path in (tree / "etc/ssh").glob("ssh_host_*"):
        path.unlink()
    for name in ("etc/hostname", "etc/resolv.conf", "etc/apt/apt.conf.d/99mmdebstrap"):
        (tree / name).unlink(missing_ok=True)
    (tree / "etc/resolv.conf").write_text("")
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/fstab").write_text("# the root disk is mounted by the RAM disk\n")
    (tree / "etc/apt/sources.list").write_text("")
    for path in (tree / "etc/apt/sources.list.d").glob("*"):
        path.unlink()
    for folder in ("var/lib/apt/lists", "var/cache/apt"):
        shutil.rmtree(tree / folder, ignore_errors=True)
        (tree / folder / ("partial" if "lists" in folder else "archives/partial")).mkdir(parents=True)
    conf = {
        "etc/apt/apt.conf.d/90lab": ('APT::Install-Recommends "false";\nAcquire::Languages "none";\nAcquire::Retries "0";\nAcquire::http::Timeout "10";\n'),
        "etc/ssh/sshd_config.d/lab.conf": (
            "HostKey /etc/ssh/ssh_host_ed25519_key\nUseDNS no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nX11Forwarding no\nPrintMotd no\n"
        ),
        "etc/default/locale": "LANG=C.UTF-8\n",
        "etc/systemd/system/inferops-lab-rxe.service": RXE_UNIT,
        "usr/local/lib/inferops-lab/rxe-up": RXE_SCRIPT,
    }
    for name, text in conf.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "usr/local/lib/inferops-lab/rxe-up").chmod(0o755)
    units = dict.fromkeys(MASKED, "/dev/null")
    units["multi-user.target.wants/systemd-networkd.service"] = "/lib/systemd/system/systemd-networkd.service"
    units["multi-user.target.wants/inferops-lab-rxe.service"] = "../inferops-lab-rxe.service"
    units["default.target"] = "/lib/systemd/system/multi-user.target"
    for name, target in units.items():
        link = tree / "etc/systemd/system" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    # The kernel is booted from outside; a copy in the disk would only cost space.
    for path in (tree / "boot").glob("vmlinuz-*"):
        path.write_bytes(b"")
    # Stamps newer than /usr: otherwise the first boot rebuilds caches for half a minute.
    now = time.time() + 60
    for name in ("etc/.updated", "var/.updated"):
        (tree / name).write_text("")
        os.utime(tree / name, (now, now))


def make_disk(tree: Path, disk: Path, size: int = DISK_BYTES) -> None:
    """An ext4 file system of `size` bytes with the content of tree, as a sparse file."""
    with disk.open("wb") as out:
        out.truncate(size)
    argv = ["mkfs.ext4", "-q", "-F", "-L", "lab-root", "-m", "1", "-d", str(tree)]
    argv += ["-E", "lazy_itable_init=0,lazy_journal_init=0", str(disk)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"mkfs.ext4 could not make the root disk: {done.stderr.strip()}")


def name(suite: str) -> str:
    """The image's name in the cache: it changes with everything that the image is made of."""
    recipe = [RECIPE, LEFT_OUT, MASKED, DISK_BYTES, RXE_UNIT, RXE_SCRIPT]
    recipe += [vm_initrd.INIT, list(vm_initrd.BOOT_MODULES)]
    return f"vm-{suite}-{rootfs.key(suite, PACKAGES, recipe)}"


def cached(settings: Settings) -> Image | None:
    """The image when it is in the cache already."""
    folder = settings.cache / "vm" / name(settings.suite)
    if not (folder / "image.json").is_file():
        return None
    facts = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    return Image(folder, facts["release"], facts["version"])


def ensure(settings: Settings) -> Image:
    """The image of this suite: from the cache, or made now (about two minutes on two cores)."""
    if image := cached(settings):
        return image
    if os.geteuid() != 0:
        raise CannotRunHere("making the root disk of virtual machines needs root")
    final = settings.cache / "vm" / name(settings.suite)
    final.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(final, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        work.chmod(0o755)
        tree = work / "tree"
        tree.mkdir()
        began = time.monotonic()
        patterns = [f"/lib/modules/*/kernel/{part}{'' if part.endswith('.ko') else '/*'}" for part in LEFT_OUT]
        bootstrap(
            settings.suite,
            tree,
            PACKAGES,
            settings.cache / "vm" / f"{final.name}.log",
            excluded=patterns,
        )
        release = max(path.name for path in (tree / "lib/modules").iterdir())
        query = ["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f=${Version}", f"linux-image-{release}"]
        version = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        image = Image(work, release, version)
        kernel = (tree / "boot" / f"vmlinuz-{release}").read_bytes()
        image.kernel.write_bytes(vm_initrd.uncompressed_kernel(kernel))
        image.initrd.write_bytes(vm_initrd.base(tree, release))
        prepare(tree)
        make_disk(tree, image.disk)
        shutil.rmtree(tree)
        facts = {"release": release, "version": version, "seconds": round(time.monotonic() - began, 1)}
        (work / "image.json").write_text(json.dumps(facts) + "\n")
        work.rename(final)
    finally:
        if work.exists():
            mounts.unmount_below(work)
            shutil.rmtree(work, ignore_errors=True)
    return Image(final, release, version)
