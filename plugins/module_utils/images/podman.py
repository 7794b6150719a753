# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman by its command line. Credentials go through a file of mode 0600 in a folder of mode 0700, which is gone afterwards."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence

from ..jobs import Tell, quiet
from .archive import Archive, chunks
from .engine import ARCHITECTURES, Auth, Engine, EngineProblem, Info, full_id, loaded
from .reference import Reference

RUN = "/run/inferops-vllm"
SECONDS = 60.0
PULL_SECONDS = 14400.0
END_SECONDS = 10.0
"""For a program that was told to end, before it is killed."""
_PREFIX = "auth-"


class Podman(Engine):
    """The program ``podman``."""

    name = "podman"

    def __init__(self, program: str = "podman", run: str = RUN) -> None:
        self._program, self._run_folder = program, run

    def info(self) -> Info:
        told = self._document(["info", "--format", "json"])
        store, host, version = _table(told.get("store")), _table(told.get("host")), _table(told.get("version"))
        machine = str(host.get("arch") or os.uname().machine)
        return Info(str(version.get("Version") or ""), str(store.get("graphRoot") or ""), ARCHITECTURES.get(machine, machine))

    def inspect(self, name: str) -> Optional[Dict[str, Any]]:
        ran = self._call(["image", "inspect", name])
        if ran.returncode:
            if re.search(r"(?i)no such image|image not known|unable to inspect|not found", ran.stderr):
                return None
            raise EngineProblem(plain(ran.stderr).strip() or "podman image inspect ended with %d" % ran.returncode)
        return _first(ran.stdout)

    def pull(self, reference: Reference, auth: Optional[Auth], tell: Tell) -> None:
        argv = ["pull", "--quiet", reference.by_digest if reference.digest else reference.text]
        if not auth:
            self._long(argv, {}, tell)
            return
        os.makedirs(self._run_folder, mode=0o700, exist_ok=True)
        sweep(self._run_folder)
        folder = tempfile.mkdtemp(prefix="%s%d-" % (_PREFIX, os.getpid()), dir=self._run_folder)
        try:
            path = os.path.join(folder, "auth.json")
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                word = base64.b64encode(("%s:%s" % (auth.user, auth.password)).encode()).decode()
                json.dump({"auths": {auth.registry: {"auth": word}}}, file)
            self._long(argv, {"REGISTRY_AUTH_FILE": path}, tell)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def load(self, archive: Archive, tell: Tell) -> List[str]:
        try:
            return loaded(self._long(["load", "--quiet", "--input", archive.path], {}, tell))
        except EngineProblem as exc:
            if not archive.extra or "not match destination reference" not in str(exc):
                raise
        # A layout that Podman saved under a digest bears that digest as its name, which its own new manifest does not have. In
        # docker's form it has no name.
        return loaded(self._long(["load", "--quiet"], {}, quiet, chunks(archive, tell)))

    def tag(self, identity: str, repository: str, tag: str) -> None:
        self._text(["tag", identity, "%s:%s" % (repository, tag)])

    def remove(self, name: str) -> None:
        ran = self._call(["image", "rm", name])
        if ran.returncode and self.inspect(name) is not None:
            raise EngineProblem(plain(ran.stderr).strip())

    def used(self) -> List[str]:
        listed = _list(self._text(["ps", "--all", "--format", "json"]))
        return [full_id(str(one.get("ImageID") or "")) for one in listed]

    def layers(self) -> List[List[str]]:
        found: List[List[str]] = []
        for one in _list(self._text(["images", "--format", "json"]))[:200]:
            held = _table((self.inspect(str(one.get("Id") or "")) or {}).get("RootFS")).get("Layers")
            found.append([str(layer) for layer in held] if isinstance(held, list) else [])
        return found

    def ask(self, identity: str, argv: Sequence[str], seconds: float) -> str:
        ran = self._call([
            "run", "--rm", "--pull", "never", "--network", "none", "--read-only", "--entrypoint", json.dumps(list(argv[:1])), identity,
            *argv[1:]], seconds=seconds)
        if ran.returncode:
            raise EngineProblem("the program in the image ended with %d: %s" % (ran.returncode, ran.stderr.strip()[-200:]))
        return ran.stdout

    # -- the program ----------------------------------------------------------------------------------
    def _call(self, arguments: Sequence[str], seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self._program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
        except FileNotFoundError as exc:
            raise EngineProblem("podman is not installed on this node; the role container_runtime installs it") from exc
        except subprocess.TimeoutExpired as exc:
            raise EngineProblem("`podman %s` said nothing for %.0f s" % (arguments[0], seconds)) from exc
        except OSError as exc:
            raise EngineProblem("podman cannot be run: %s" % (exc.strerror or exc)) from exc

    def _text(self, arguments: Sequence[str]) -> str:
        ran = self._call(arguments)
        if ran.returncode:
            raise EngineProblem(plain(ran.stderr).strip() or "podman %s ended with %d" % (arguments[0], ran.returncode))
        return ran.stdout

    def _document(self, arguments: Sequence[str]) -> Dict[str, Any]:
        return _first(self._text(arguments))

    def _long(self, arguments: Sequence[str], env: Dict[str, str], tell: Tell = quiet, feed: Optional[Iterator[bytes]] = None) -> str:
        """Run it in a session of its own, which is ended with us, with `feed` on its standard input; what it prints is returned."""
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as out:
            try:
                process = subprocess.Popen(
                    [self._program, *arguments], stdin=subprocess.DEVNULL if feed is None else subprocess.PIPE, stdout=out, stderr=said,
                    env={**os.environ, **env}, start_new_session=True)
            except FileNotFoundError as exc:
                raise EngineProblem("podman is not installed on this node; the role container_runtime installs it") from exc
            begun = time.monotonic()
            try:
                if process.stdin is not None and feed is not None:
                    try:
                        with process.stdin as pipe:
                            for data in feed:
                                pipe.write(data)
                    except BrokenPipeError:
                        pass  # It says why itself.
                while True:
                    try:
                        process.wait(timeout=2.0)
                        break
                    except subprocess.TimeoutExpired:
                        tell("image: podman %s for %.0f s" % (arguments[0], time.monotonic() - begun), 0, 0)
                    if time.monotonic() - begun > PULL_SECONDS:
                        raise EngineProblem("`podman %s` did not end in %.0f s" % (arguments[0], PULL_SECONDS))
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
                    try:
                        process.wait(timeout=END_SECONDS)
                    except subprocess.TimeoutExpired:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait(timeout=END_SECONDS)
            said.seek(0)
            text = plain(said.read(1 << 16).decode("utf-8", "replace"))
            out.seek(0)
            printed = out.read(1 << 16).decode("utf-8", "replace")
        if process.returncode:
            raise EngineProblem(text.strip() or "podman %s ended with %d" % (arguments[0], process.returncode))
        return printed


def plain(text: str) -> str:
    """What podman complains of, without the warnings of its log."""
    return "\n".join(line for line in text.splitlines() if not re.match(r'time="[^"]*" level=(?:warning|info|debug) ', line))


def sweep(folder: str) -> None:
    """Remove what a killed run left: folders of credentials whose process is gone."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        owner = re.match(_PREFIX + r"(\d+)-", name)
        if owner and not os.path.exists("/proc/" + owner.group(1)):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _table(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(text: str) -> List[Dict[str, Any]]:
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _first(text: str) -> Dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, list):
        found = found[0] if found else {}
    return _table(found)
