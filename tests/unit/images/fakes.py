# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines that are not there: a daemon behind a Unix socket, a program named podman, and archives of images."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import socketserver
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

NAME = "registry.example.com:5443/vllm/vllm-openai"
CONFIG = {
    "architecture": "amd64", "os": "linux", "config": {"Env": ["CUDA_VERSION=13.0.2", "PATH=/bin"], "Labels": {"vllm.version": "0.27.1"}},
    "rootfs": {"type": "layers", "diff_ids": []},
}


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


IDENTITY = digest_of(json.dumps(CONFIG).encode())
DIGEST = "sha256:" + "d" * 64
OTHER = "sha256:" + "e" * 64


def document(identity: str = IDENTITY, names: tuple[str, ...] = (), env: tuple[str, ...] = ("CUDA_VERSION=13.0.2",), vllm: str = "0.27.1") -> dict[str, Any]:
    labels = {"vllm.version": vllm} if vllm else {}
    return {
        "Id": identity, "RepoTags": [name for name in names if "@" not in name], "RepoDigests": [name for name in names if "@" in name], "Size": 1000,
        "Config": {"Env": list(env), "Labels": labels}, "RootFS": {"Layers": ["sha256:" + "1" * 64]},
    }


class Daemon:
    """State of a fake daemon: images by id, what it was asked, and how it fails."""

    def __init__(self, root: str) -> None:
        self.images: dict[str, dict[str, Any]] = {}
        self.remote: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.auth: list[dict[str, str]] = []
        self.loaded: list[bytes] = []
        self.pull_error, self.load_error, self.tags, self.containers = "", "", {}, []
        self.asked = "vllm=0.27.1\r\n"
        self.asked_status = 0
        self.root = root
        self.load_gives: dict[str, Any] | None = None

    def find(self, name: str) -> dict[str, Any] | None:
        for identity, one in self.images.items():
            if name in (identity, *one["RepoTags"], *one["RepoDigests"]):
                return one
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    daemon: Daemon

    def log_message(self, *_args: Any) -> None:
        pass

    def address_string(self) -> str:
        return "socket"

    def _send(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _json(self, status: int, what: Any) -> None:
        self._send(status, json.dumps(what).encode())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _any(self) -> None:
        daemon, body = self.daemon, self._body()
        url = urlsplit(self.path)
        path, query = unquote(url.path), {key: values[0] for key, values in parse_qs(url.query).items()}
        daemon.calls.append("%s %s" % (self.command, path))
        if header := self.headers.get("X-Registry-Auth"):
            daemon.auth.append(json.loads(base64.urlsafe_b64decode(header)))
        if path == "/info":
            self._json(200, {"ServerVersion": "20.10.24", "DockerRootDir": daemon.root, "Architecture": "x86_64"})
        elif path == "/images/json":
            self._json(200, [{"Id": identity} for identity in daemon.images])
        elif path == "/images/create":
            self._pull(query)
        elif path == "/images/load":
            daemon.loaded.append(body)
            if daemon.load_error:
                self._json(200, {"errorDetail": {"message": daemon.load_error}})
                return
            made = daemon.load_gives or document()
            daemon.images[made["Id"]] = made
            self._json(200, {"stream": "Loaded image ID: %s\n" % made["Id"]})
        elif path.startswith("/distribution/"):
            found = daemon.remote.get(path[len("/distribution/"):-len("/json")])
            self._json(200, {"Descriptor": {"digest": found["digest"]}}) if found else self._json(404, {"message": "manifest unknown"})
        elif path == "/containers/json":
            self._json(200, [{"ImageID": one} for one in daemon.containers])
        elif path == "/containers/create":
            self._json(201, {"Id": "c0ffee"})
        elif path.startswith("/containers/"):
            self._container(path)
        elif self.command == "DELETE":
            self._remove(path[len("/images/"):])
        elif path.endswith("/tag"):
            found = daemon.find(path[len("/images/"):-len("/tag")])
            assert found is not None
            found["RepoTags"].append("%s:%s" % (query["repo"], query["tag"]))
            self._send(201, b"")
        elif path.endswith("/json"):
            found = daemon.find(path[len("/images/"):-len("/json")])
            self._json(200, found) if found else self._json(404, {"message": "No such image"})
        else:
            self._json(500, {"message": "unexpected: " + path})

    do_GET = do_POST = do_DELETE = _any

    def _pull(self, query: dict[str, str]) -> None:
        name = "%s@%s" % (query["fromImage"], query["tag"])
        lines = [
            {"status": "Pulling from x", "id": query["tag"]}, {"status": "Pulling fs layer", "id": "aa"},
            {"status": "Downloading", "id": "aa", "progressDetail": {"current": 50, "total": 100}},
            {"status": "Download complete", "id": "aa"}, {"status": "Pull complete", "id": "aa"},
        ]
        if self.daemon.pull_error:
            lines.append({"errorDetail": {"message": self.daemon.pull_error}, "error": self.daemon.pull_error})
        elif name in self.daemon.remote:
            made = self.daemon.remote[name]["document"]
            self.daemon.images[made["Id"]] = made
        else:
            self._json(404, {"message": "manifest for %s not found: manifest unknown: manifest unknown" % name})
            return
        self._send(200, b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def _container(self, path: str) -> None:
        if path.endswith("/wait"):
            self._json(200, {"StatusCode": self.daemon.asked_status})
        elif path.endswith("/logs"):
            self._send(200, self.daemon.asked.encode(), "text/plain")
        else:
            self._send(204, b"")

    def _remove(self, name: str) -> None:
        found = self.daemon.find(name)
        if not found:
            self._json(404, {"message": "No such image"})
            return
        for kind in ("RepoTags", "RepoDigests"):
            found[kind] = [one for one in found[kind] if one != name]
        if not found["RepoTags"] and not found["RepoDigests"]:
            del self.daemon.images[found["Id"]]
        self._json(200, [])


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up early is no error of the daemon."""

    def get_request(self) -> Any:
        request, _address = super().get_request()
        return request, ("socket", 0)


@contextmanager
def daemon(path: Path, root: str) -> Iterator[Daemon]:
    """A daemon that answers at `path` while the block runs."""
    state = Daemon(root)
    handler = type("Handler", (_Handler,), {"daemon": state})
    server = _Server(str(path), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


PODMAN = """#!%s
import json, os, sys
home = os.path.dirname(os.path.abspath(__file__))
with open(home + "/log", "a") as log:
    log.write(json.dumps({"argv": sys.argv[1:], "auth": os.environ.get("REGISTRY_AUTH_FILE", "")}) + "\\n")
auth = os.environ.get("REGISTRY_AUTH_FILE")
if auth:
    told = os.stat(auth)
    with open(home + "/auth-seen", "w") as seen:
        json.dump({"mode": oct(told.st_mode & 0o777), "folder": oct(os.stat(os.path.dirname(auth)).st_mode & 0o777), "text": open(auth).read()}, seen)
state = json.load(open(home + "/state.json"))
words = sys.argv[1:]
if words[0] in state["errors"]:
    sys.stderr.write(state["errors"][words[0]] + "\\n"); sys.exit(125)
def find(name):
    for one in state["images"]:
        if name in [one["Id"], *one["RepoTags"], *one["RepoDigests"]]:
            return one
if words[0] == "info":
    print(json.dumps({"store": {"graphRoot": home}, "host": {"arch": "amd64"}, "version": {"Version": "5.4.2"}}))
elif words[:2] == ["image", "inspect"]:
    found = find(words[2])
    if not found:
        sys.stderr.write("Error: %%s: image not known\\n" %% words[2]); sys.exit(125)
    print(json.dumps([found]))
elif words[0] == "load" and state["named"] and "--input" in words:
    sys.stderr.write("Error: payload: oci-archive: Digest of source image's manifest would not match destination reference\\n"); sys.exit(125)
elif words[0] in ("pull", "load"):
    if words[0] == "load" and "--input" not in words:
        open(home + "/fed.tar", "wb").write(sys.stdin.buffer.read())
    state["images"].append(state["remote"])
    print("Loaded image: " + state["remote"]["Id"])
elif words[0] == "tag":
    find(words[1])["RepoTags"].append(words[2])
elif words[0] == "run":
    print("vllm=0.27.1")
elif words[0] in ("ps", "images"):
    print("[]")
json.dump(state, open(home + "/state.json", "w"))
"""


class PodmanProgram:
    """A program that stands for podman in `folder`."""

    def __init__(self, folder: Path, remote: dict[str, Any]) -> None:
        self.folder, self.path = folder, folder / "podman"
        self.path.write_text(PODMAN % sys.executable)
        self.path.chmod(0o755)
        self.set(remote=remote)

    def set(self, remote: dict[str, Any], named: bool = False, **errors: str) -> None:
        (self.folder / "state.json").write_text(json.dumps({"images": [], "remote": remote, "errors": errors, "named": named}))

    def calls(self) -> list[list[str]]:
        return [json.loads(line)["argv"] for line in (self.folder / "log").read_text().splitlines()]


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def saved(path: Path, config: bytes = json.dumps(CONFIG).encode()) -> Path:
    """As `docker save` of 20.10 writes it."""
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": name, "RepoTags": None, "Layers": ["a/layer.tar"]}]).encode()
    return tar(path, {name: config, "a/layer.tar": b"layer" * 300, "manifest.json": manifest})


def layout(path: Path, damage: str = "", platforms: tuple[str, ...] = ("",)) -> tuple[Path, str]:
    """An OCI image layout and the digest of its manifest."""
    config, layer = json.dumps(CONFIG).encode(), b"layer" * 300
    manifest = json.dumps({
        "schemaVersion": 2, "config": {"digest": digest_of(config), "size": len(config)}, "layers": [{"digest": digest_of(layer), "size": len(layer)}],
    }).encode()
    entries = [
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest_of(manifest), "size": len(manifest),
         **({"platform": {"os": "linux", "architecture": one}} if one else {})} for one in platforms]
    blobs = {"blobs/sha256/" + digest_of(data)[7:]: data for data in (config, layer, manifest)}
    if damage == "manifest":
        blobs["blobs/sha256/" + digest_of(manifest)[7:]] = manifest + b" "
    if damage == "config":
        blobs["blobs/sha256/" + digest_of(config)[7:]] = config + b" "
    if damage == "layer":
        del blobs["blobs/sha256/" + digest_of(layer)[7:]]
    return tar(path, {"oci-layout": b"{}", "index.json": json.dumps({"manifests": entries}).encode(), **blobs}), digest_of(manifest)


def size(path: Path) -> int:
    return os.stat(path).st_size
