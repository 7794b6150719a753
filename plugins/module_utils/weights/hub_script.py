# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that runs in the container of a download: asks the hub, or downloads.

huggingface_hub throws a begun file away when its process ends (since its pull request 4228), and an earlier one's file it never uses
again: with shards of 17 GB, eight at a time, a killed download would fetch up to 140 GB twice. So large files are written here, go on
from their last byte, and are held against the SHA-256 that the hub tells; the library does the layout and the small files.
Only names that the library has had for years are used, since the image brings its own release of it.
"""

from __future__ import annotations

BEGUN = ".inferops-vllm.incomplete"
"""End of the name of a file that goes on where it was stopped."""

SCRIPT = r"""
import concurrent.futures, hashlib, json, os, sys, time
from huggingface_hub import HfApi, hf_hub_url, snapshot_download
from huggingface_hub.utils import build_hf_headers
model, revision, local = os.environ["W_MODEL"], os.environ["W_REVISION"] or None, os.environ["W_FOLDER"] or None
workers, END = int(os.environ["W_WORKERS"]), "@BEGUN@"
# The hub serves larger files by Xet alone.
LARGEST = 50 * 10**9


class Begun:
    # A file that grows, and its sum.
    def __init__(self, path):
        self.file = open(path, "r+b" if os.path.exists(path) else "w+b")
        self.read()

    def read(self):
        self.sum = hashlib.sha256()
        self.file.seek(0)
        while True:
            data = self.file.read(8 << 20)
            if not data:
                break
            self.sum.update(data)

    def write(self, data):
        self.sum.update(data)
        return self.file.write(data)

    def tell(self):
        return self.file.tell()

    def seek(self, *where):
        return self.file.seek(*where)

    def truncate(self, *size):
        # The library does this when a server begins from the start although it was asked to go on.
        self.file.truncate(*size)
        self.read()


def folder_of():
    return os.path.join(os.environ["HF_HOME"], "hub", "models--" + model.replace("/", "--"))


def drop(path):
    for one in {os.path.realpath(path), path}:
        if os.path.lexists(one):
            os.unlink(one)


def grow(http_get, name, one, size):
    # Some releases of the library give up with the first connection that breaks; as long as bytes come, it goes on.
    idle = 0
    while one.tell() < size:
        before = one.tell()
        try:
            http_get(hf_hub_url(model, name, revision=revision), one, resume_size=before, headers=build_hf_headers(), expected_size=size)
        except Exception as exc:
            status = getattr(getattr(exc, "response", None), "status_code", None) or 500
            idle = 0 if one.tell() > before else idle + 1
            if getattr(exc, "errno", None) == 28 or status < 500 or idle > 3:
                raise
            time.sleep(idle + 1)


def bring(http_get, name, digest, size):
    if local:
        place, begun = os.path.join(local, name), os.path.join(local, ".cache", "inferops-vllm", digest + END)
    else:
        place = os.path.join(folder_of(), "blobs", digest)
        begun = place + END
    if os.path.isfile(place) and os.path.getsize(place) == size:
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    os.makedirs(os.path.dirname(begun), exist_ok=True)
    drop(place)
    one = Begun(begun)
    with one.file:
        if one.tell() > size:
            one.seek(0)
            one.truncate(0)
        for again in (one.tell() > 0, False):
            grow(http_get, name, one, size)
            one.file.flush()
            os.fsync(one.file.fileno())
            if one.sum.hexdigest() == digest:
                os.replace(begun, place)
                break
            # What was begun earlier may be damaged: once from the start.
            one.seek(0)
            one.truncate(0)
            if not again:
                os.unlink(begun)
                raise OSError("checksum: %s came with another SHA-256 than the hub tells, so it was not kept" % name)
    if local:
        try:
            from huggingface_hub._local_folder import write_download_metadata
            from pathlib import Path
            write_download_metadata(Path(local), name, revision, digest)
        except ImportError:
            pass


def download():
    found = HfApi().model_info(model, revision=revision, files_metadata=True).siblings
    large = {}
    for one in found:
        told = one.lfs or {}
        if told.get("sha256") and told.get("size") and told["size"] <= LARGEST:
            large[one.rfilename] = (told["sha256"], told["size"])
        # A file that is there is there for the library, also when it was cut.
        path = os.path.join(local or os.path.join(folder_of(), "snapshots", revision), one.rfilename)
        if one.size is not None and os.path.isfile(path) and os.path.getsize(path) != one.size:
            drop(path)
    known = {digest for digest, size in large.values()}
    for top in (os.path.join(folder_of(), "blobs"), os.path.join(local or "/nowhere", ".cache", "inferops-vllm")):
        for name in os.listdir(top) if os.path.isdir(top) else ():
            path = os.path.join(top, name)
            # Of another revision, or what the library left when it was killed.
            if name.endswith(END) and name[:-len(END)] not in known or (
                    name.endswith(".incomplete") and not name.endswith(END) and time.time() - os.path.getmtime(path) > 3600):
                os.unlink(path)
    try:
        from huggingface_hub.file_download import http_get
    except ImportError:
        http_get = None
    if http_get and not os.environ.get("HF_XET_HIGH_PERFORMANCE"):
        # Never waited for by `with`: what fails ends the others, which go on with the next run.
        pool = concurrent.futures.ThreadPoolExecutor(workers)
        for one in concurrent.futures.as_completed([pool.submit(bring, http_get, name, *told) for name, told in sorted(large.items())]):
            one.result()
        if local:
            try:
                os.rmdir(os.path.join(local, ".cache", "inferops-vllm"))
            except OSError:
                pass
    snapshot_download(model, revision=revision, local_dir=local, max_workers=workers)


try:
    if os.environ["W_ASK"]:
        found = HfApi().model_info(model, revision=revision, files_metadata=True)
        print("TOLD " + json.dumps({"sha": found.sha, "files": {one.rfilename: one.size or 0 for one in found.siblings}}))
    else:
        download()
except Exception as exc:
    cause, chain = exc, []
    while cause is not None and len(chain) < 6:
        told = "%s: %s" % (type(cause).__name__, " ".join(str(cause).split())[:400])
        # Each try of a transfer is the cause of the next.
        if told not in chain:
            chain.append(told)
        cause = cause.__cause__ or cause.__context__
    print("PROBLEM " + " | ".join(chain), flush=True)
    os._exit(3)
""".replace("@BEGUN@", BEGUN)
