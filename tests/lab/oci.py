# SPDX-License-Identifier: GPL-3.0-or-later
"""Container images without a container engine: layers from folders, manifests, and pushing."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import LabError

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
# Not compressed: it never leaves this machine, and nodes pull it faster than they could unpack it.
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar"
CHUNK = 1 << 20


@dataclass(frozen=True)
class Blob:
    """Something in the registry that is named by its content."""

    digest: str
    size: int


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def blob_of_file(path: Path) -> Blob:
    seen = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            seen.update(chunk)
    return Blob("sha256:" + seen.hexdigest(), path.stat().st_size)


def make_layer(top: Path, parts: Sequence[str], target: Path) -> Blob:
    """Write the folders `parts` of top as a tar whose bytes depend on nothing but their content."""
    argv = ["tar", "--create", "--file", str(target), "--directory", str(top), "--format=posix"]
    argv += ["--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"]
    argv += ["--sort=name", "--mtime=@1", "--numeric-owner", "--one-file-system", *parts]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"cannot write an image layer: {done.stderr.strip()}")
    return blob_of_file(target)


def image_config(
    layers: Sequence[Blob],
    *,
    entrypoint: Sequence[str],
    env: Mapping[str, str],
    labels: Mapping[str, str],
    working_dir: str = "/",
) -> bytes:
    """The image's configuration; its digest is the image id."""
    return canonical(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "1970-01-01T00:00:01Z",
            "config": {
                "Entrypoint": list(entrypoint),
                "Env": [f"{name}={value}" for name, value in env.items()],
                "Labels": dict(labels),
                "WorkingDir": working_dir,
                "ExposedPorts": {"8000/tcp": {}},
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            "history": [
                {"created": "1970-01-01T00:00:01Z", "created_by": "inferops lab"} for _ in layers
            ],
        }
    )


def image_manifest(config: bytes, layers: Sequence[Blob]) -> bytes:
    """The image's manifest; its digest is what `docker pull NAME@…` names."""
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {
                "mediaType": CONFIG_TYPE,
                "size": len(config),
                "digest": digest_of(config),
            },
            "layers": [
                {"mediaType": LAYER_TYPE, "size": layer.size, "digest": layer.digest}
                for layer in layers
            ],
        }
    )


class Registry:
    """A client of the registry's HTTP API, for what the lab needs of it."""

    def __init__(
        self, host: str, authority: Path, user: str, password: str, timeout: float = 60
    ) -> None:
        self._host = host
        self._context = ssl.create_default_context(cafile=str(authority))
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}
        self._timeout = timeout

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """One request: status, headers in lower case, body."""
        connection = http.client.HTTPSConnection(
            self._host, timeout=self._timeout, context=self._context, blocksize=CHUNK
        )
        try:
            connection.request(method, path, body, {**self._headers, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def _expect(self, wanted: int, answer: tuple[int, dict[str, str], bytes], doing: str) -> None:
        if answer[0] != wanted:
            raise LabError(f"the registry answered {answer[0]} to {doing}: {answer[2][:200]!r}")

    def digest(self, name: str, reference: str) -> str | None:
        """The digest behind a tag or digest, None when it is not there."""
        status, headers, _ = self.request(
            "HEAD", f"/v2/{name}/manifests/{reference}", headers={"Accept": MANIFEST_TYPE}
        )
        return headers.get("docker-content-digest") if status == 200 else None

    def push_blob(self, name: str, content: bytes | Path) -> Blob:
        """Upload bytes or a file unless it is there already."""
        if isinstance(content, Path):
            blob = blob_of_file(content)
        else:
            blob = Blob(digest_of(content), len(content))
        if self.request("HEAD", f"/v2/{name}/blobs/{blob.digest}")[0] == 200:
            return blob
        opened = self.request("POST", f"/v2/{name}/blobs/uploads/")
        self._expect(202, opened, f"opening an upload to {name}")
        place = urlsplit(opened[1]["location"])
        query = f"{place.query}&" if place.query else ""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        path = f"{place.path}?{query}digest={blob.digest}"
        if isinstance(content, Path):
            with content.open("rb") as handle:
                stored = self.request("PUT", path, handle, headers)
        else:
            stored = self.request("PUT", path, content, headers)
        self._expect(201, stored, f"the upload of {blob.digest}")
        return blob

    def push_manifest(self, name: str, tag: str, manifest: bytes) -> str:
        """Store the manifest under the tag; returns its digest."""
        stored = self.request(
            "PUT", f"/v2/{name}/manifests/{tag}", manifest, {"Content-Type": MANIFEST_TYPE}
        )
        self._expect(201, stored, f"the manifest of {name}:{tag}")
        return digest_of(manifest)
