# SPDX-License-Identifier: GPL-3.0-or-later
"""The initial RAM disk of a virtual machine, and the kernel image it boots with.

Both are made from the files of Debian's kernel package: no image is built inside the tree, and
nothing that the machine's disk holds decides what is booted. Pure functions of bytes and text.
"""

from __future__ import annotations

import gzip
import lzma
import stat
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# What the root disk, the network cards and the random source of the machine need.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "virtio_net", "virtio_rng")

INIT = """\
#!/bin/sh
# First process of a lab machine: load drivers, mount the root disk, plant the seed, hand over.
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r module; do insmod "/lib/modules/$module"; done < /modules.order
tries=0
until [ -b /dev/vda ] || [ "$tries" -ge 100 ]; do tries=$((tries + 1)); sleep 0.1; done
mount -t ext4 -o noatime /dev/vda /root || { echo "lab: no root disk" > /dev/console; poweroff -f; }
# The seed (name, keys, addresses) is planted once: what the machine changes later stays changed.
if [ -f /seed/id ] && ! cmp -s /seed/id /root/var/lib/inferops-lab/seed; then
    cp -a /seed/files/. /root/
    mkdir -p /root/var/lib/inferops-lab
    cp /seed/id /root/var/lib/inferops-lab/seed
fi
mount --move /dev /root/dev
umount /sys /proc
exec switch_root /root /sbin/init
"""


@dataclass(frozen=True)
class Entry:
    """One file of an archive. mode holds the file type as in stat(2)."""

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def file_entry(path: str, data: bytes, mode: int = 0o644) -> Entry:
    return Entry(path, stat.S_IFREG | mode, data)


def link_entry(path: str, target: str) -> Entry:
    return Entry(path, stat.S_IFLNK | 0o777, target.encode())


def cpio(entries: Iterable[Entry]) -> bytes:
    """A "newc" cpio archive, all owned by root, with the folders that entries need.

    Equal entries give equal bytes: times are zero and inode numbers count up.
    """
    out = bytearray()
    made: set[str] = set()
    number = 0

    def add(entry: Entry) -> None:
        nonlocal number
        number += 1
        name = entry.path.encode() + b"\0"
        fields = (
            number,
            entry.mode,
            0,
            0,
            2 if stat.S_ISDIR(entry.mode) else 1,
            0,
            len(entry.data),
            0,
            0,
            *entry.device,
            len(name),
            0,
        )
        out.extend(b"070701" + b"".join(b"%08x" % value for value in fields) + name)
        out.extend(b"\0" * (-len(out) % 4))
        out.extend(entry.data)
        out.extend(b"\0" * (-len(out) % 4))

    for entry in entries:
        for parent in reversed(PurePosixPath(entry.path).parents):
            if str(parent) not in (".", "/") and str(parent) not in made:
                made.add(str(parent))
                add(Entry(str(parent), stat.S_IFDIR | 0o755))
        if stat.S_ISDIR(entry.mode):
            if entry.path in made:
                continue
            made.add(entry.path)
        add(entry)
    number = -1
    add(Entry("TRAILER!!!", 0))
    return bytes(out)


def module_order(modules_dep: str, wanted: Iterable[str]) -> list[str]:
    """Paths of the wanted modules and all they need, in an order in which insmod takes them.

    modules_dep: text of modules.dep. A name may use "-" or "_". A module that is not listed is
    left out (it may be built in).
    """
    needs: dict[str, list[str]] = {}
    by_name: dict[str, str] = {}
    for line in modules_dep.splitlines():
        path, colon, rest = line.partition(":")
        if colon:
            needs[path] = rest.split()
            by_name[module_name(path)] = path
    order: list[str] = []

    def visit(path: str) -> None:
        if path not in order:
            for other in reversed(needs.get(path, [])):
                visit(other)
            order.append(path)

    for name in wanted:
        if found := by_name.get(name.replace("-", "_")):
            visit(found)
    return order


def module_name(path: str) -> str:
    """Name as in /proc/modules of a module file's path."""
    return PurePosixPath(path).name.split(".ko")[0].replace("-", "_")


def uncompressed_kernel(image: bytes) -> bytes:
    """The ELF kernel inside a bzImage, else the image as it is.

    Unpacking takes seconds under emulation and nothing here; the ELF boots by its PVH entry.
    Fields as in Documentation/arch/x86/boot.rst: setup_sects 0x1f1, payload at 0x248 and 0x24c.
    """
    if image[0x202:0x206] != b"HdrS":
        return image
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    payload = image[start : start + length]
    if payload[:6] == b"\xfd7zXZ\0":
        kernel = lzma.LZMADecompressor().decompress(payload)
    elif payload[:2] == b"\x1f\x8b":
        kernel = gzip.decompress(payload)
    else:
        return image
    return kernel if kernel[:4] == b"\x7fELF" else image


def base(tree: Path, release: str) -> bytes:
    """The part of the RAM disk that all machines with this root file system share."""
    folder = tree / "lib/modules" / release
    order = module_order((folder / "modules.dep").read_text(encoding="utf-8"), BOOT_MODULES)
    names = [PurePosixPath(path).name for path in order]
    entries = [
        file_entry("init", INIT.encode(), 0o755),
        file_entry("bin/busybox", (tree / "bin/busybox").read_bytes(), 0o755),
        file_entry("modules.order", "".join(f"{name}\n" for name in names).encode()),
        *(Entry(name, stat.S_IFDIR | 0o755) for name in ("dev", "proc", "sys", "root")),
        Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
    ]
    for applet in (
        "sh", "mount", "umount", "insmod", "sleep", "cp", "cmp", "mkdir", "switch_root", "poweroff"
    ):  # fmt: skip
        entries.append(link_entry(f"bin/{applet}", "busybox"))
    for path, name in zip(order, names):
        entries.append(file_entry(f"lib/modules/{name}", (folder / path).read_bytes()))
    return cpio(entries)


def seed(identity: str, files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """The part of the RAM disk that is one machine's own: files to plant, by absolute path."""
    entries = [file_entry("seed/id", identity.encode())]
    for path, (data, mode) in sorted(files.items()):
        # cp -a keeps the mode of folders too, and sshd refuses a readable /root/.ssh.
        if path.startswith("/root/.ssh/"):
            entries.append(Entry("seed/files/root", stat.S_IFDIR | 0o700))
            entries.append(Entry("seed/files/root/.ssh", stat.S_IFDIR | 0o700))
        entries.append(file_entry(f"seed/files{path}", data, mode))
    return cpio(entries)
