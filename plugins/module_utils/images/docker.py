# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker by the API of its socket: progress in bytes, and credentials that never leave memory.

https://docs.docker.com/reference/api/engine/ (ImageCreate, ImageLoad, ImageInspect, DistributionInspect, ContainerCreate …), without a
version in the path, so that each daemon uses its own.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union
from urllib.parse import quote, urlencode

from ..jobs import Tell
from .archive import Archive, chunks
from .engine import ARCHITECTURES, Auth, Engine, EngineProblem, Info, full_id, loaded
from .reference import Reference

SOCKET = "/var/run/docker.sock"
SECONDS = 60.0
"""Of silence on a quick call."""
SILENCE = 900.0
"""Seconds of silence on a pull or a load: one large layer is unpacked without a word on some daemons."""
_DOWN = "Cannot connect to the Docker daemon at %s: %s"

Body = Union[bytes, Iterator[bytes], None]


class Docker(Engine):
    """The daemon behind a socket."""

    name = "docker"

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path

    def info(self) -> Info:
        told = _table(self._json("GET", "/info"))
        machine = str(told.get("Architecture") or os.uname().machine)
        return Info(str(told.get("ServerVersion") or ""), str(told.get("DockerRootDir") or ""), ARCHITECTURES.get(machine, machine))

    def inspect(self, name: str) -> Optional[Dict[str, Any]]:
        status, text = self._call("GET", "/images/%s/json" % quote(name, safe="/:@"))
        if status == 404:
            return None
        return _table(_checked(status, text))

    def pull(self, reference: Reference, auth: Optional[Auth], tell: Tell) -> None:
        query = urlencode({"fromImage": reference.name, "tag": reference.digest or reference.tag})
        # The header is asked for even without credentials by daemons before 1.24.
        self._stream("/images/create?" + query, {"X-Registry-Auth": _header(auth)}, None, Layers(tell))

    def resolve(self, reference: Reference, auth: Optional[Auth]) -> str:
        status, text = self._call("GET", "/distribution/%s/json" % quote(reference.text, safe="/:@"), {"X-Registry-Auth": _header(auth)})
        return str(_table(_table(_checked(status, text)).get("Descriptor")).get("digest") or "")

    def load(self, archive: Archive, tell: Tell) -> List[str]:
        headers = {"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked"}
        return loaded(self._stream("/images/load?quiet=1", headers, chunks(archive, tell), None))

    def tag(self, identity: str, repository: str, tag: str) -> None:
        status, text = self._call("POST", "/images/%s/tag?%s" % (quote(identity, safe=":"), urlencode({"repo": repository, "tag": tag})))
        _checked(status, text)

    def remove(self, name: str) -> None:
        status, text = self._call("DELETE", "/images/%s" % quote(name, safe="/:@"))
        if status != 404:
            _checked(status, text)

    def used(self) -> List[str]:
        found = self._json("GET", "/containers/json?all=1")
        return [full_id(str(one.get("ImageID") or "")) for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def layers(self) -> List[List[str]]:
        listed = self._json("GET", "/images/json")
        found: List[List[str]] = []
        for one in listed[:200] if isinstance(listed, list) else []:
            held = _table((self.inspect(str(_table(one).get("Id") or "")) or {}).get("RootFS")).get("Layers")
            found.append([str(layer) for layer in held] if isinstance(held, list) else [])
        return found

    def ask(self, identity: str, argv: Sequence[str], seconds: float) -> str:
        wanted = {
            "Image": identity, "Entrypoint": list(argv[:1]), "Cmd": list(argv[1:]), "Tty": True, "NetworkDisabled": True,
            "Env": ["NVIDIA_VISIBLE_DEVICES=void"], "HostConfig": {"NetworkMode": "none", "ReadonlyRootfs": True},
        }
        body = json.dumps(wanted).encode()
        made = _table(_checked(*self._call("POST", "/containers/create", {"Content-Type": "application/json"}, body)))
        container = quote(str(made.get("Id") or ""))
        try:
            _checked(*self._call("POST", "/containers/%s/start" % container))
            ended = _table(_checked(*self._call("POST", "/containers/%s/wait" % container, seconds=seconds)))
            # With a terminal the log is plain text.
            status, text = self._call("GET", "/containers/%s/logs?stdout=1&stderr=1" % container)
            if status != 200 or ended.get("StatusCode") != 0:
                raise EngineProblem("the program in the image ended with %s: %s" % (ended.get("StatusCode"), text[-200:]))
            return text
        finally:
            self._call("DELETE", "/containers/%s?force=1&v=1" % container)

    # -- the socket ---------------------------------------------------------------------------------
    def _json(self, method: str, path: str) -> Any:
        return _checked(*self._call(method, path))

    def _call(
        self, method: str, path: str, headers: Optional[Dict[str, str]] = None, body: Optional[bytes] = None, seconds: float = SECONDS,
    ) -> Tuple[int, str]:
        connection, answer = self._send(method, path, headers or {}, body, seconds)
        try:
            return answer.status, answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as exc:
            raise EngineProblem("docker broke off while it answered: %s" % exc) from exc
        finally:
            connection.close()

    def _send(
        self, method: str, path: str, headers: Dict[str, str], body: Body, seconds: float,
    ) -> Tuple[_Connection, http.client.HTTPResponse]:
        connection = _Connection(self._path, seconds)
        try:
            connection.connect()
        except PermissionError as exc:
            raise EngineProblem("permission denied while trying to connect to %s" % self._path) from exc
        except OSError as exc:
            raise EngineProblem(_DOWN % (self._path, exc.strerror or exc)) from exc
        try:
            connection.request(method, path, body=body, headers=headers, encode_chunked="Transfer-Encoding" in headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # The daemon may refuse a body before its end; its answer says why.
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise EngineProblem("docker broke off: %s" % exc) from exc
        try:
            return connection, connection.getresponse()
        except socket.timeout as exc:
            connection.close()
            raise EngineProblem("docker said nothing for %.0f s" % seconds) from exc
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise EngineProblem("docker broke off: %s" % (exc or type(exc).__name__)) from exc

    def _stream(self, path: str, headers: Dict[str, str], body: Body, layers: Optional[Layers]) -> str:
        """A call whose answer is one JSON object a line; an error in it is raised, its text is returned."""
        said: List[str] = []
        connection, answer = self._send("POST", path, headers, body, SILENCE)
        try:
            if answer.status >= 400:
                _checked(answer.status, answer.read().decode("utf-8", "replace"))
            for line in answer:
                event = event_of(line)
                if event.get("error") or event.get("errorDetail"):
                    raise EngineProblem(str(_table(event.get("errorDetail")).get("message") or event.get("error")))
                if layers:
                    layers.see(event)
                said += [str(event["stream"])] if "stream" in event and len(said) < 100 else []
            return "".join(said)
        except socket.timeout as exc:
            raise EngineProblem("docker said nothing for %.0f s while it worked" % SILENCE) from exc
        except (OSError, http.client.HTTPException) as exc:
            raise EngineProblem("docker broke off while it worked: %s" % (exc or type(exc).__name__)) from exc
        finally:
            connection.close()


class Layers:
    """Bytes over all layers, from the events of a pull."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._have: Dict[str, int] = {}
        self._whole: Dict[str, int] = {}
        self._unpacked: Dict[str, bool] = {}

    def see(self, event: Dict[str, Any]) -> None:
        """Take one event in; others than those of layers are passed over."""
        layer, status = str(event.get("id") or ""), str(event.get("status") or "")
        if status in ("Pulling fs layer", "Waiting"):
            self._have.setdefault(layer, 0)
        detail = _table(event.get("progressDetail"))
        current, total = detail.get("current"), detail.get("total")
        if status == "Downloading" and isinstance(current, int):
            self._have[layer] = current
            if isinstance(total, int):
                self._whole[layer] = max(total, current)
        elif status in ("Download complete", "Verifying Checksum", "Extracting", "Pull complete") and layer in self._have:
            self._have[layer] = self._whole.get(layer, self._have[layer])
        if status == "Pull complete":
            self._unpacked[layer] = True
        if self._have:
            done, whole = self.bytes()
            loading = done < whole or any(layer not in self._whole for layer in self._have)
            what = "image" if loading else "image unpacked: layer %d of %d" % (len(self._unpacked), len(self._have))
            self._tell(what, done, whole)

    def bytes(self) -> Tuple[int, int]:
        """Bytes that are there, and of how many; layers that did not begin yet are not counted."""
        return sum(self._have.values()), sum(self._whole.values())


def event_of(line: bytes) -> Dict[str, Any]:
    """The JSON object of a line, empty for anything else."""
    try:
        return _table(json.loads(line.decode("utf-8", "replace") or "{}"))
    except (ValueError, RecursionError):
        return {}


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _header(auth: Optional[Auth]) -> str:
    told = {"username": auth.user, "password": auth.password, "serveraddress": auth.registry} if auth else {}
    return base64.urlsafe_b64encode(json.dumps(told).encode()).decode()


def _table(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _checked(status: int, text: str) -> Any:
    """The document of an answer; EngineProblem with the daemon's message when it is a refusal."""
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        found = {}
    if status >= 400:
        raise EngineProblem(str(_table(found).get("message") or text[:300] or "status %d" % status))
    return found
