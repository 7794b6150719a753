# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where logs come from: files, folders, standard input, bytes in memory; plain or compressed."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import stat
import subprocess
import sys
import threading
import zlib
from typing import BinaryIO, Callable, Iterable, Iterator, List, NamedTuple, Optional, Tuple

BLOCK = 1 << 20
"""Bytes read at once."""
MAX_FILES = 20000
"""Files taken from folders."""
_SKIPPED_FOLDERS = frozenset((".git", "__pycache__", "node_modules"))


class Refused(Exception):
    """A source that cannot be read as a log; its text is one sentence for the user."""


class Source(NamedTuple):
    """One stream of log bytes."""

    name: str
    """Path or name, as events give it in `file`."""
    node: str
    """Node that wrote it, empty unknown; prefixes that name a node win."""
    opener: Callable[[], BinaryIO]
    """Opens the bytes, still compressed; may be called more than once, except for standard input."""
    offset: float = 0.0
    """Seconds added to every wall time of this source, for a node whose clock is wrong."""
    boot: Optional[float] = None
    """Time of the node's boot, seconds since the epoch: gives kernel lines a wall time."""
    year: int = 0
    """Year for times without one, 0 unknown."""

    @classmethod
    def from_bytes(cls, name: str, data: bytes, node: str = "", offset: float = 0.0, boot: Optional[float] = None, year: int = 0) -> Source:
        """A log held in memory."""
        return cls(name, node, lambda: io.BytesIO(data), offset, boot, year)

    @classmethod
    def from_path(cls, path: str, node: str = "", offset: float = 0.0, boot: Optional[float] = None, year: int = 0) -> Source:
        """A file; opened only when it is read."""
        return cls(path, node, lambda: _open_regular(path), offset, boot, year)

    @classmethod
    def from_stdin(cls, node: str = "") -> Source:
        """Standard input, which can be read once."""
        return cls("-", node, lambda: sys.stdin.buffer)


def _open_regular(path: str) -> BinaryIO:
    """Open a file for reading; a named pipe or a device that would block or never end is refused."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise Refused("is a folder")
    if not stat.S_ISREG(mode):
        raise Refused("is not a regular file")
    return open(path, "rb")


def expand(paths: Iterable[str]) -> Tuple[List[Source], List[Tuple[str, str]]]:
    """Sources of `paths`: files, folders (all files in them, sorted, at most :data:`MAX_FILES`) and ``-`` for standard input.

    Returns:
        The sources, and ``(path, sentence)`` for each path that cannot be used.
    """
    sources: List[Source] = []
    refused: List[Tuple[str, str]] = []
    for path in paths:
        if path == "-":
            sources.append(Source.from_stdin())
        elif os.path.isdir(path):
            found, problem = _files(path, MAX_FILES - len(sources))
            sources.extend(Source.from_path(name) for name in found)
            if problem:
                refused.append((path, problem))
        elif os.path.exists(path):
            sources.append(Source.from_path(path))
        else:
            refused.append((path, "does not exist"))
    return sources, refused


def _files(folder: str, limit: int) -> Tuple[List[str], str]:
    """Regular files below `folder`, sorted; links to folders are not followed."""
    found: List[str] = []
    unreadable: List[str] = []
    for root, folders, names in os.walk(folder, onerror=lambda error: unreadable.append(str(error.filename))):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(root, name)
            if not os.path.isfile(path):
                continue
            if len(found) >= limit:
                return found, "holds more than %d files; only the first are read" % MAX_FILES
            found.append(path)
    if unreadable:
        return found, "folder %s cannot be read" % unreadable[0]
    return found, "" if found else "holds no files"


# First bytes of what is no log, with a word for it. Gzip, zstd, xz and bzip2 are opened.
_MAGIC = (
    (b"\x7fELF", "a program"), (b"PK\x03\x04", "a zip archive"), (b"\x89PNG", "a picture"), (b"\xff\xd8\xff", "a picture"), (b"GIF8", "a picture"),
    (b"%PDF", "a PDF document"), (b"SQLite format 3", "a database"), (b"LPKSHHRH", "a binary journal: export it with journalctl"),
    (b"\x93NUMPY", "an array"), (b"MZ", "a program"), (b"\xd4\xc3\xb2\xa1", "a packet capture"), (b"\x0a\x0d\x0d\x0a", "a packet capture"),
    (b"\xca\xfe\xba\xbe", "a program"), (b"Rar!", "an archive"), (b"7z\xbc\xaf", "an archive"), (b"\x04\x22\x4d\x18", "compressed with lz4"))
_TEXT_CONTROLS = b"\t\n\v\f\r\b\x1b\x07\x00"
_CONTROLS = bytes(value for value in range(32) if value not in _TEXT_CONTROLS) + b"\x7f"


def not_a_log(head: bytes) -> str:
    """Why the first bytes of a stream are none of a log, empty when they may be."""
    for magic, word in _MAGIC:
        if head.startswith(magic):
            return "not a log: %s" % word
    if head[257:262] == b"ustar":
        return "not a log but a tar archive: open it as an evidence bundle"
    if not head:
        return ""
    # Runs of NUL come from a file system after a power loss; what is left has to look like text.
    rest = head.replace(b"\0", b"")
    if not rest:
        return "not a log: nothing but NUL bytes"
    controls = len(rest) - len(rest.translate(None, _CONTROLS))
    nulls = len(head) - len(rest)
    invalid = rest.decode("utf-8", "replace").count("\ufffd")
    if controls * 10 > len(rest) or (nulls * 5 > len(head) and (controls or invalid * 10 > len(rest))) or invalid * 3 > len(rest):
        return "not a log: binary data"
    return ""


def chunks(source: Source, block: int = BLOCK) -> Iterator[bytes]:
    """Decompressed bytes of a source in blocks.

    Raises:
        Refused: the source cannot be opened, is compressed in a way that cannot be opened here, or is no log. A stream that breaks
            off or turns out corrupt raises it too, after everything before has been given.
    """
    try:
        stream = source.opener()
    except Refused:
        raise
    except (OSError, ValueError) as exc:
        raise Refused("cannot be opened: %s" % (getattr(exc, "strerror", None) or exc)) from exc
    try:
        yield from _decoded(_decompressed(_read(stream, block), source), source)
    finally:
        if stream is not sys.stdin.buffer:
            stream.close()


def _read(stream: BinaryIO, block: int) -> Iterator[bytes]:
    while True:
        try:
            data = stream.read(block)
        except (OSError, ValueError) as exc:
            raise Refused("cannot be read to its end: %s" % (getattr(exc, "strerror", None) or exc)) from exc
        if not data:
            return
        yield data


def _decompressed(blocks: Iterator[bytes], source: Source) -> Iterator[bytes]:
    head = next(blocks, b"")
    if head.startswith(b"\x1f\x8b"):
        yield from _zlib(head, blocks)
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        yield from _zstd(head, blocks)
    elif head.startswith((b"\xfd7zXZ\x00", b"BZh")):
        yield from _stdlib(head, blocks)
    else:
        if head:
            yield head
        yield from blocks


def _zlib(head: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Gzip, of one or several members; output in pieces of bounded size."""
    machine = zlib.decompressobj(31)
    data = head
    fresh = True
    while data:
        try:
            piece = machine.decompress(data, BLOCK)
        except zlib.error as exc:
            raise Refused("gzip data are damaged; what came before was read") from exc
        fresh = False
        if piece:
            yield piece
        if machine.eof:
            data = machine.unused_data.lstrip(b"\0") or next(blocks, b"")
            if data and not data.startswith(b"\x1f"):
                raise Refused("something that is no gzip data follows the gzip data; what came before was read")
            machine = zlib.decompressobj(31)
            fresh = True
        else:
            data = machine.unconsumed_tail or next(blocks, b"")
    if not fresh:
        raise Refused("gzip data end too early; what there is was read")


def _stdlib(head: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """xz and bzip2, where this Python has them."""
    try:
        if head.startswith(b"BZh"):
            import bz2
            machine = bz2.BZ2Decompressor()  # pylint: disable=consider-using-with
        else:
            import lzma
            machine = lzma.LZMADecompressor(memlimit=256 << 20)  # type: ignore[assignment]
    except ImportError as exc:
        raise Refused("compressed, and this Python cannot open it: unpack it first") from exc
    data = head
    try:
        while True:
            piece = machine.decompress(data, BLOCK)
            if piece:
                yield piece
            # Attributes of C classes, which pylint takes for constants.
            if machine.eof:  # pylint: disable=using-constant-test
                return
            data = b""
            if machine.needs_input:  # pylint: disable=using-constant-test
                data = next(blocks, b"")
                if not data:
                    break
    except (OSError, ValueError, EOFError) as exc:
        raise Refused("compressed data are damaged; what came before was read") from exc
    except Exception as exc:  # lzma.LZMAError, whose module may be missing
        raise Refused("compressed data are damaged; what came before was read") from exc
    raise Refused("compressed data end too early; what there is was read")


def _zstd(head: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Zstandard through its program: Python has it in the library only from 3.14."""
    program = shutil.which("zstd")
    if not program:
        raise Refused("compressed with zstd, and the program zstd is not installed here: unpack it first")
    with subprocess.Popen([program, "-dcq", "--memory=128MB"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        stdin, stdout = child.stdin, child.stdout
        if stdin is None or stdout is None:
            raise Refused("zstd could not be started")

        def feed() -> None:
            try:
                stdin.write(head)
                for data in blocks:
                    stdin.write(data)
            except (OSError, ValueError, Refused):
                pass
            finally:
                try:
                    stdin.close()
                except OSError:
                    pass

        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        finished = False
        try:
            while True:
                data = stdout.read(BLOCK)
                if not data:
                    break
                yield data
            finished = True
        finally:
            # A reader that stops early leaves the child blocked on its output.
            if not finished:
                child.kill()
            code = child.wait()
            feeder.join(5)
    if code:
        raise Refused("zstd data are damaged or end too early; what there is was read")


def _decoded(blocks: Iterator[bytes], source: Source) -> Iterator[bytes]:
    """Refuse what is no text; turn UTF-16 into UTF-8."""
    head = next(blocks, b"")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        yield decoder.decode(head).encode("utf-8", "replace")
        for data in blocks:
            yield decoder.decode(data).encode("utf-8", "replace")
        return
    problem = not_a_log(head[:65536])
    if problem:
        raise Refused(problem)
    if head.startswith(b"\xef\xbb\xbf"):
        head = head[3:]
    if head:
        yield head
    yield from blocks
