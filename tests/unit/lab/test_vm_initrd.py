# SPDX-License-Identifier: GPL-3.0-or-later
"""The RAM disk and kernel image of virtual machines, as bytes."""

from __future__ import annotations

import lzma
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import pytest

from tests.lab import vm_initrd
from tests.lab.vm_initrd import Entry, cpio, file_entry, link_entry, module_order, uncompressed_kernel


def parse_cpio(data: bytes) -> dict[str, tuple[int, bytes]]:
    """path → (mode, content) of a newc archive."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        start = (at + 110 + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        assert name not in found, f"{name} is there twice"
        found[name] = (mode, data[start : start + size])
        at = (start + size + 3) // 4 * 4


def test_archive_holds_files_links_and_their_folders_once() -> None:
    entries = [file_entry("a/b/one", b"1"), file_entry("a/b/two", b"22", 0o755), link_entry("a/three", "b/one")]
    found = parse_cpio(cpio(entries))
    assert list(found) == ["a", "a/b", "a/b/one", "a/b/two", "a/three"]
    assert stat.S_ISDIR(found["a"][0])
    assert found["a/b/two"] == (stat.S_IFREG | 0o755, b"22")
    assert found["a/three"] == (stat.S_IFLNK | 0o777, b"b/one")


def test_archive_of_equal_entries_is_equal() -> None:
    entries = [file_entry("x", b"x"), Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))]
    assert cpio(entries) == cpio(entries)


@pytest.mark.skipif(shutil.which("cpio") is None, reason="no cpio program here")
def test_cpio_program_reads_the_archive() -> None:
    data = cpio([file_entry("a/one", b"abc"), link_entry("a/two", "one")])
    done = subprocess.run(["cpio", "-t", "--quiet"], input=data, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["a", "a/one", "a/two"]


MODULES_DEP = """\
kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/jbd2/jbd2.ko
kernel/lib/crc16.ko:
kernel/fs/jbd2/jbd2.ko:
kernel/lib/other.ko:
nonsense without a colon
"""


def test_modules_come_after_what_they_need() -> None:
    order = module_order(MODULES_DEP, ["virtio-blk", "ext4", "not_there"])
    assert [vm_initrd.module_name(path) for path in order] == ["virtio_ring", "virtio", "virtio_blk", "jbd2", "crc16", "ext4"]


def test_module_name_of_a_compressed_file() -> None:
    assert vm_initrd.module_name("kernel/drivers/x/nvidia-peermem.ko.xz") == "nvidia_peermem"


def bzimage(payload: bytes, sectors: int = 2) -> bytes:
    image = bytearray((sectors + 1) * 512 + 16)
    image[0x1F1] = sectors
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 16, len(payload))
    return bytes(image) + payload


def test_kernel_is_taken_out_of_its_compressed_image() -> None:
    elf = b"\x7fELF" + b"kernel" * 100
    # The build appends the length, which is not part of the xz stream.
    assert uncompressed_kernel(bzimage(lzma.compress(elf) + struct.pack("<I", len(elf)))) == elf


@pytest.mark.parametrize("image", [b"", b"short", bzimage(b"unknown packing"), bzimage(lzma.compress(b"no ELF"))])
def test_kernel_image_of_another_form_is_used_as_it_is(image: bytes) -> None:
    assert uncompressed_kernel(image) == image


def test_seed_protects_the_ssh_folder_and_carries_its_identity() -> None:
    files = {"/root/.ssh/authorized_keys": (b"key\n", 0o600), "/etc/hostname": (b"vm1\n", 0o644)}
    found = parse_cpio(vm_initrd.seed("abc", files))
    assert found["seed/id"][1] == b"abc"
    assert found["seed/files/root/.ssh"][0] == stat.S_IFDIR | 0o700
    assert found["seed/files/root/.ssh/authorized_keys"] == (stat.S_IFREG | 0o600, b"key\n")
    assert found["seed/files/etc/hostname"][1] == b"vm1\n"


def test_shared_part_lists_modules_in_loading_order(tmp_path: Path) -> None:
    folder = tmp_path / "lib/modules/6.1"
    for path in ("kernel/fs/ext4.ko", "kernel/fs/jbd2.ko"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())
    (folder / "modules.dep").write_text("kernel/fs/ext4.ko: kernel/fs/jbd2.ko\nkernel/fs/jbd2.ko:\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/busybox").write_bytes(b"busybox")
    found = parse_cpio(vm_initrd.base(tmp_path, "6.1"))
    assert found["modules.order"][1] == b"jbd2.ko\next4.ko\n"
    assert found["lib/modules/jbd2.ko"][1] == b"kernel/fs/jbd2.ko"
    assert found["init"][0] == stat.S_IFREG | 0o755
    assert stat.S_ISCHR(found["dev/console"][0])
