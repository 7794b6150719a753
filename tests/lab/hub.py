# SPDX-License-Identifier: GPL-3.0-or-later
"""A hub of models for the lab: as much of the Hugging Face hub's HTTP API as its client needs to download a model.

Files above a size are "large", as those of Git LFS are: `resolve` sends the client to a second server, which stands for the CDN, refuses a
request that carries the token, and can break. Every request is noted with the bytes that were sent, so that a test counts them.

API: https://huggingface.co/docs/hub/api, and what huggingface_hub 2.4 (in the lab's image) reads of it.
usage: hub.py OPTIONS.json, which holds {folder, models: {id: {commit: subfolder}}, branches, token, address, port, certificate, key, log, control}
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import http.server
import json
import re
import ssl
import sys
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any, NamedTuple

LARGE = 4096
"""Bytes from which a file is large."""
CHUNK = 1 << 16


class File(NamedTuple):
    path: Path
    size: int
    sha256: str
    git: str


@functools.lru_cache(maxsize=1024)
def _look(path: Path, size: int, _changed: int) -> File:
    data = path.read_bytes()
    return File(path, size, hashlib.sha256(data).hexdigest(), hashlib.sha1(b"blob %d\0" % size + data).hexdigest())


def look(path: Path) -> File:
    """A file with its sums; read once."""
    told = path.stat()
    return _look(path, told.st_size, told.st_mtime_ns)


class Hub:
    """What is served, and how."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.folder, self.token = Path(options["folder"]), str(options["token"])
        self.models: dict[str, dict[str, str]] = options["models"]
        self.branches: dict[str, dict[str, str]] = options["branches"]
        self.scheme = "https" if options.get("certificate") else "http"
        self.cdn = "%s://%s:%d" % (self.scheme, options["address"], options["port"] + 1)
        self.log, self.control = Path(options["log"]), Path(options["control"])
        self._guard = threading.Lock()

    def note(self, **words: Any) -> None:
        with self._guard, self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(words) + "\n")

    def wish(self) -> dict[str, Any]:
        """How transfers are to break now: {cut: pattern, after: bytes, damage: pattern, slow: seconds a chunk, deaf: no ranges}."""
        try:
            found = json.loads(self.control.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def files(self, model: str, revision: str) -> tuple[str, dict[str, File]] | None:
        """Commit and files of a revision, None when there is none."""
        commit = self.branches.get(model, {}).get(revision, revision)
        place = self.models[model].get(commit)
        if place is None:
            return None
        top = self.folder / place
        return commit, {str(path.relative_to(top)): look(path) for path in sorted(top.rglob("*")) if path.is_file()}


class Handler(http.server.BaseHTTPRequestHandler):
    """Both servers; `hub` and `is_cdn` are set on a subclass."""

    protocol_version = "HTTP/1.1"
    hub: Hub
    is_cdn = False

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are noted by the hub, without their headers."""

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, body: bool) -> None:
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        if self.is_cdn:
            self._large(path, body)
            return
        route = re.fullmatch(r"/api/models/(.+?)/(?:revision|tree)/([^/]+)|/([^/]+/[^/]+)/resolve/([^/]+)/(.+)|/api/models/(.+)", path)
        model = (route.group(1) or route.group(3) or route.group(6)) if route else ""
        revision = (route.group(2) or route.group(4) or "main") if route else ""
        given = self.headers.get("Authorization", "")
        if given and given != "Bearer " + self.hub.token:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif not given:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif not route or model not in self.hub.models:
            self._refuse(404, "RepoNotFound", "Repository not found")
        else:
            found = self.hub.files(model, revision)
            if found is None:
                self._refuse(404, "RevisionNotFound", "Invalid rev id: %s" % revision)
            elif route.group(5):
                self._resolve(found[0], found[1].get(route.group(5)), body)
            elif "/tree/" in path:
                self._document([{"type": "file", "path": name, **self._told(one)} for name, one in found[1].items()], body)
            else:
                self._document({"_id": "0" * 24, "id": model, "modelId": model, "sha": found[0], "private": True, "disabled": False, "tags": [],
                                "downloads": 0, "likes": 0, "siblings": [self._sibling(name, one) for name, one in found[1].items()]}, body)

    @staticmethod
    def _told(one: File) -> dict[str, Any]:
        large = {"lfs": {"oid": one.sha256, "size": one.size, "pointerSize": 134}} if one.size > LARGE else {}
        return {"size": one.size, "oid": one.git, **large}

    @staticmethod
    def _sibling(name: str, one: File) -> dict[str, Any]:
        large = {"lfs": {"sha256": one.sha256, "size": one.size, "pointerSize": 134}} if one.size > LARGE else {}
        return {"rfilename": name, "size": one.size, "blobId": one.git, **large}

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.hub.note(method=self.command, path=self.path, status=status, bytes=0)
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _document(self, document: Any, body: bool) -> None:
        data = json.dumps(document).encode()
        self.hub.note(method=self.command, path=self.path, status=200, bytes=0)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _resolve(self, commit: str, one: File | None, body: bool) -> None:
        if one is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": commit}
        if one.size <= LARGE:
            self._send(one, one.path.name, {**headers, "ETag": '"%s"' % one.git}, body)
            return
        self.hub.note(method=self.command, path=self.path, status=302, bytes=0)
        self.send_response(302)
        place = one.path.relative_to(self.hub.folder)
        for name, value in {**headers, "X-Linked-Etag": '"%s"' % one.sha256, "X-Linked-Size": str(one.size), "Content-Length": "0",
                            "Location": "%s/%s?signature=%s" % (self.hub.cdn, urllib.parse.quote(str(place)), one.sha256)}.items():
            self.send_header(name, value)
        self.end_headers()

    def _large(self, path: str, body: bool) -> None:
        place = (self.hub.folder / path.lstrip("/")).resolve()
        if self.headers.get("Authorization"):
            # A signed address takes no second word of who asks; and the token has no business here.
            self._refuse(400, "", "Only one auth mechanism allowed")
        elif not place.is_relative_to(self.hub.folder.resolve()) or not place.is_file():
            self._refuse(404, "", "No such key")
        else:
            one = look(place)
            self._send(one, place.name, {"ETag": '"%s"' % one.sha256}, body)

    def _send(self, one: File, name: str, headers: dict[str, str], body: bool) -> None:
        """A file, or its part from the byte that is asked for; breaks as the control file says."""
        wish = self.hub.wish()
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if not wish.get("deaf") else None
        begin = min(int(asked.group(1)), one.size) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", "bytes %d-%d/%d" % (begin, one.size - 1, one.size))
        for key, value in {**headers, "Accept-Ranges": "bytes", "Content-Length": str(one.size - begin)}.items():
            self.send_header(key, value)
        self.end_headers()
        sent = 0
        try:
            if body:
                cut = int(wish["after"]) if fnmatch.fnmatchcase(name, wish.get("cut", "")) else one.size
                damage = fnmatch.fnmatchcase(name, wish.get("damage", ""))
                with one.path.open("rb") as file:
                    file.seek(begin)
                    while data := file.read(min(CHUNK, cut - sent)):
                        self.wfile.write(bytes(len(data)) if damage else data)
                        sent += len(data)
                        time.sleep(float(wish.get("slow", 0)))
                if sent < one.size - begin:
                    self.close_connection = True
        except OSError:
            # The client went away.
            self.close_connection = True
        finally:
            self.hub.note(method=self.command, path=self.path, status=206 if asked else 200, name=name, begin=begin, bytes=sent)


def serve(options: dict[str, Any]) -> list[http.server.ThreadingHTTPServer]:
    """The hub and its CDN, each in a thread of its own."""
    hub, servers = Hub(options), []
    for offset, is_cdn in ((0, False), (1, True)):
        handler = type("One", (Handler,), {"hub": hub, "is_cdn": is_cdn})
        server = http.server.ThreadingHTTPServer((options["address"], options["port"] + offset), handler)
        server.daemon_threads = True
        if options.get("certificate"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(options["certificate"], options["key"])
            # The handshake belongs to the connection's own thread.
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    return servers


def main() -> int:
    options = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    serve(options)
    print("serving", flush=True)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
