# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a release to its node: files in one step, systemd told only what it must be, the old service ended only when all is ready."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..plan import render
from . import release, venv
from .release import Item, ReleaseError

Ran = Tuple[int, str, str]
Runner = Callable[[Sequence[str], float], Ran]

PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload"
STAGED = release.STATE + "/staged"
RELEASES = release.STATE + "/releases"


def run(argv: Sequence[str], limit: float) -> Ran:
    """Exit status, output and errors of a command; 127 when it is not there, 124 when it took longer than `limit` seconds."""
    try:
        done = subprocess.run(list(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False, start_new_session=True,
                              env=dict(os.environ, LC_ALL="C"))
    except subprocess.TimeoutExpired:
        return 124, "", "%s gave no answer in %.0f s" % (argv[0], limit)
    except OSError as exc:
        return 127, "", "%s: %s" % (argv[0], exc.strerror)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


class Wanted(NamedTuple):
    """A release to be: name of its service, its files, its record without number, and where the record stands."""

    name: str
    items: List[Item]
    record: Dict[str, Any]
    record_path: str

    @property
    def unit(self) -> Item:
        """The service's own unit, or the Quadlet that it is made from."""
        ends = ("/%s.service" % self.name, "/%s.container" % self.name)
        return next(item for item in self.items if item.path.endswith(ends) and item.text is not None)


class Answer(NamedTuple):
    """What was done, or would be: paths that changed, `restart` of the running service, and the diffs."""

    changed: bool
    files: List[str]
    restart: bool
    reload: str
    state: str
    number: int
    diff: List[Dict[str, str]]
    warnings: List[str]
    record: Dict[str, Any]


class Node:
    """One node, below `root`; `check` looks and changes nothing."""

    def __init__(self, runner: Runner = run, root: str = "", check: bool = False, agent: Tuple[str, str] = ("", "")) -> None:
        self.run = runner
        self.root = root
        self.check = check
        self.agent, self.agent_unit = agent
        self.warnings: List[str] = []

    # -- what a person asks for ------------------------------------------------------------------------------
    def deploy(self, entry: Mapping[str, Any], given: Mapping[str, str], about: Mapping[str, Any], state: str, enabled: bool = True, keep: int = 3) -> Answer:
        """Bring a checked `entry` (:func:`.release.checked`) to this node.

        Args:
            given: secrets by name. about: as :func:`.release.record` takes it.
            state: ``started``, ``stopped`` (files in place, service down) or ``staged`` (files ready in a folder, nothing switched).

        Raises:
            ReleaseError: what keeps it from being done; the service that ran before runs on.
        """
        told = dict(about)
        name = render.service_name(entry)
        if render.runtime(entry) == "venv":
            told["venv"] = venv.read(self.path(render.venv_folder(entry)), name)
            if told["venv"]:
                told["venv"]["path"] = render.venv_folder(entry)
            elif not self.check:
                raise ReleaseError("%s/bin/%s is not on this node; build the virtual environment first, or set vllm_venv" % (render.venv_folder(entry), name))
        wanted = release.items(entry, given, self.agent, self.agent_unit)
        made = Wanted(name, wanted, release.record(entry, wanted, told), render.release_file(entry))
        return self._stage(made) if state == "staged" else self._switch(made, state, enabled, keep)

    def roll_back(self, name: str, number: int = 0, state: str = "started", enabled: bool = True, keep: int = 3) -> Answer:
        """Go back to release `number`, or with 0 to the one before the current.

        Raises:
            ReleaseError: there is none, or its copy is damaged.
        """
        record_path = "%s/%srelease.json" % (render.SETTINGS, "" if name == "vllm" else "router-")
        current = release.parse_record(self.text(record_path))
        here = release.number_of(current)
        kept = [found for found in self._numbers(name) if found != here]
        if number and number not in kept:
            raise ReleaseError("release %d of %s is not kept on this node (kept: %s)" % (number, name, ", ".join(map(str, kept)) or "none"))
        earlier = [found for found in kept if found < here]
        if not number and not earlier:
            raise ReleaseError("no earlier release of %s is kept on this node" % name)
        chosen = number or earlier[-1]
        made = self._kept(name, chosen, record_path)
        if here:
            made.record["rolled_back_from"] = here
        return self._switch(made, state, enabled, keep)

    def restore(self, name: str, number: int = 0, extra: Optional[Mapping[str, str]] = None, keep: int = 3) -> Answer:
        """Write the files of release `number` (0: the current one) as they were deployed; the service runs on, or stays down, as it was.

        Args:
            extra: variables that are set beside those of the release. What differs by them is a release of its own, and a rollback leads back.

        Raises:
            ReleaseError: nothing is deployed here, or its copy is damaged.
        """
        record_path = "%s/%srelease.json" % (render.SETTINGS, "" if name == "vllm" else "router-")
        chosen = number or release.number_of(release.parse_record(self.text(record_path)))
        if not chosen:
            numbers = self._numbers(name)
            if not numbers:
                raise ReleaseError("no release of %s is kept on this node; deploy first" % name)
            # The record itself is what was lost.
            chosen = numbers[-1]
        made = self._kept(name, chosen, record_path)
        if extra:
            items = [item._replace(text=release.with_env(str(item.text), extra)) if item.path.endswith("service.env") and item.text is not None else item
                     for item in made.items]
            if items != made.items:
                made.record.pop("number", None)
                made = made._replace(items=items, record=dict(made.record, files=release.recorded(items)))
        service = self._states(name)[0]
        running = service.get("ActiveState", "") not in ("", "inactive", "failed")
        return self._switch(made, "started" if running else "stopped", service.get("UnitFileState") == "enabled", keep)

    def _kept(self, name: str, number: int, record_path: str) -> Wanted:
        """Release `number` from the copy that is kept of it."""
        folder = self._folder(name, number)
        found = release.parse_record(self.text(folder + "/release.json"))
        if not found:
            raise ReleaseError("the copy of release %d is damaged: it has no record" % number)
        items = []
        for path, wanted in found["files"].items():
            text = self.text("%s/%s" % (folder, _base(path)))
            if text is None or release.digest(text) != wanted or not path.startswith("/etc/"):
                raise ReleaseError("the copy of release %d is damaged: %s is not what was deployed" % (number, _base(path)))
            items.append(Item(path, text, 0o640 if path.endswith(".env") else 0o644))
        unit = next((item.path for item in items if item.path.endswith(("/%s.service" % name, "/%s.container" % name))), "")
        if not unit:
            raise ReleaseError("the copy of release %d is damaged: it has no unit" % number)
        other = "%s/%s" % ((release.UNITS, name + ".service") if unit.endswith(".container") else (release.QUADLETS, name + ".container"))
        items.append(Item(other, None, 0o644))
        if name == "vllm":
            config = next((str(item.text) for item in items if item.path == release.LINK_CONFIG), "")
            items = [item for item in items if item.path != release.LINK_CONFIG] + release.link_items(config, self.agent, self.agent_unit)
        record = {key: value for key, value in found.items() if key not in ("deployed", "start")}
        return Wanted(name, items, record, record_path)

    def stop(self, name: str) -> Answer:
        """End the service `name`, whatever it runs; one that is not there is stopped."""
        active = self._states(name)[0].get("ActiveState", "")
        busy = active not in ("", "inactive", "failed")
        if busy and not self.check:
            self._stop(name, self._stop_limit(name))
        found = release.parse_record(self.text("%s/%srelease.json" % (render.SETTINGS, "" if name == "vllm" else "router-")))
        return Answer(busy, [], False, "none", "stopped", release.number_of(found), [], self.warnings, found)

    def write(self, item: Item) -> Tuple[bool, Dict[str, str]]:
        """Bring one file; gives whether it changes, and the diff.

        Raises:
            ReleaseError: it cannot be written.
        """
        if not self._differs(item):
            return False, {}
        diff = release.shown(item, self.text(item.path), self.mode(item.path))
        if not self.check:
            self._commit(self._prepare([item]))
        return True, diff

    # -- steps -----------------------------------------------------------------------------------------------
    def _differences(self, items: Sequence[Item]) -> List[Item]:
        return [item for item in items if self._differs(item)]

    def _stage(self, made: Wanted) -> Answer:
        folder = STAGED + "/" + made.name
        changes = self._differences(made.items)
        plan = self._decide(made, changes, "started", True)
        staged = [Item("%s/%s" % (folder, _base(item.path)), item.text, 0o600, item.secret) for item in made.items if item.text is not None]
        if not changes and not plan.restart and release.same(plan.old, made.record):
            if not self.check:
                shutil.rmtree(self.path(folder), ignore_errors=True)
            return Answer(False, [], False, "none", "staged", release.number_of(plan.old), [], self.warnings, plan.old)
        self._startable(made)
        new = self._differences(staged)
        if new and not self.check:
            os.makedirs(self.path(folder), mode=0o700, exist_ok=True)
            os.chmod(self.path(STAGED), 0o700)
            self._commit(self._prepare(new))
        diff = [release.shown(item, self.text(item.path), self.mode(item.path)) for item in changes]
        return Answer(bool(new), [item.path for item in changes], plan.restart, "none", "staged", release.number_of(plan.old), diff if new else [],
                      self.warnings, made.record)

    def _decide(self, made: Wanted, changes: Sequence[Item], state: str, enabled: bool) -> _Steps:
        service, link = self._states(made.name)
        secret = next((item for item in made.items if item.secret), None)
        stamp = "" if secret in changes else self._stamp(made)
        key = release.start_key(made.items, stamp)
        old = release.parse_record(self.text(made.record_path))
        if not made.record.get("image_id") and old.get("image") == made.record["image"]:
            made.record["image_id"] = old.get("image_id", "")
        active = service.get("ActiveState", "")
        if active in ("active", "reloading", "deactivating"):
            began = release.parse_record(self.text("%s/%s/started.json" % (render.RUN, made.name)))
        else:
            # On its way: what it will have been started from is what is deployed.
            began = old
        running = active not in ("", "inactive", "failed")
        again = running and (began.get("start") != key or secret in changes)
        units = [item for item in changes if item.path.startswith((release.UNITS, release.QUADLETS))]
        stale = "yes" in (service.get("NeedDaemonReload"), link.get("NeedDaemonReload"))
        before = self.text(made.unit.path) or ""
        held = running and not again and state == "started" and (release.legacy_gpus(before) or release.legacy_gpus(str(made.unit.text)))
        quadlet = made.unit.path.endswith(".container")
        return _Steps(
            old, service, link, bool(units) or stale, held, state == "started" and again, state == "started" and not running, state == "stopped" and running,
            None if quadlet or (service.get("UnitFileState") == "enabled") == enabled else enabled)

    def _switch(self, made: Wanted, state: str, enabled: bool, keep: int) -> Answer:
        changes = self._differences(made.items)
        plan = self._decide(made, changes, state, enabled)
        link_on = any(item.path == release.LINK_CONFIG and item.text is not None for item in made.items)
        agent = [item for item in changes if item.path in (render.LINK, release.LINK_UNIT_PATH, release.LINK_CONFIG)]
        link_start = link_on and (bool(agent) or plan.link.get("ActiveState") != "active" or plan.link.get("UnitFileState") != "enabled")
        record_changes = not release.same(plan.old, made.record)
        changed = bool(changes) or record_changes or plan.restart or plan.start or plan.stop or plan.enable is not None or link_start
        diff = [release.shown(item, self.text(item.path), self.mode(item.path)) for item in changes]
        told = "deferred" if plan.reload and plan.held else "done" if plan.reload else "none"
        if told == "deferred":
            self.warnings.append("systemd was not reloaded: %s runs with GPUs by --gpus, which a reload takes from it; the new unit is read at the next "
                                 "deployment that restarts it" % made.name)
        number = self._number(made, plan.old, any(item.secret for item in changes))
        if not changed and told in ("none", "deferred"):
            return Answer(False, [], False, told, state, number, [], self.warnings, plan.old)
        if plan.start or plan.restart:
            self._startable(made)
        if record_changes and not diff:
            diff.append(release.shown(Item(made.record_path, release.told(made.record), 0o644), release.told(plan.old), None))
        if not self.check:
            self._act(made, changes, plan, link_on, link_start, told, state, number, keep)
        return Answer(True, [item.path for item in changes], plan.restart, told, state, number, diff, self.warnings, dict(made.record, number=number))

    def _act(self, made: Wanted, changes: Sequence[Item], plan: _Steps, link_on: bool, link_start: bool, told: str, state: str, number: int,
             keep: int) -> None:
        unit = made.name + ".service"
        ready = self._prepare(changes)
        down = plan.restart or plan.stop
        try:
            if down:
                self._stop(made.name, self._stop_limit(made.name))
            if not link_on and plan.link.get("LoadState") == "loaded":
                self._systemctl("disable", "--now", "--no-reload", render.LINK_UNIT)
            self._commit(ready)
            if told == "done":
                self._systemctl("daemon-reload")
            self._keep(made, number, keep)
            if plan.enable is not None:
                self._systemctl("enable" if plan.enable else "disable", "--no-reload", unit)
            if link_start:
                self._systemctl("enable", "--no-reload", render.LINK_UNIT)
                self._systemctl("restart", render.LINK_UNIT)
        except (OSError, ReleaseError):
            self._discard(ready)
            if plan.restart:
                self.run(("systemctl", "start", "--no-block", unit), 30.0)
            raise
        if plan.start or plan.restart:
            # Starts are counted; those of a deployment are not the service's own.
            self.run(("systemctl", "reset-failed", unit), 30.0)
            self._systemctl("start", "--no-block", unit)
        if state == "started":
            shutil.rmtree(self.path(STAGED + "/" + made.name), ignore_errors=True)

    def _startable(self, made: Wanted) -> None:
        """Refuse a start that cannot work before anything is switched, and note the image's id."""
        kind = str(made.record.get("runtime"))
        if kind == "venv":
            return
        reference = str(made.record["image"])
        code, out, err = self.run((kind, "image", "inspect", "--format", "{{.Id}}", reference), 60.0)
        if code:
            said = " ".join(err.split())[:200] or "exit status %d" % code
            if self.check:
                self.warnings.append("the image %s is not on this node yet (%s)" % (reference, said))
                return
            raise ReleaseError("the image %s is not on this node (%s); nothing was switched" % (reference, said))
        if not made.record.get("image_id"):
            made.record["image_id"] = out.strip()[:100]

    def _number(self, made: Wanted, old: Mapping[str, Any], other_secrets: bool) -> int:
        given = release.number_of(made.record)
        if given:
            return given
        here = release.number_of(old)
        alike = old.get("files") == made.record["files"] and all(old.get(key) == made.record[key] for key in ("image", "runtime", "venv"))
        if here and alike and not other_secrets:
            return here
        return max([here] + self._numbers(made.name)) + 1

    def _keep(self, made: Wanted, number: int, keep: int) -> None:
        """Write the record, and a copy of the release for a rollback; forget all but `keep` earlier ones."""
        record = dict(made.record, number=number, start=release.start_key(made.items, self._stamp(made)),
                      deployed=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        text = json.dumps(record, indent=2, sort_keys=True) + "\n"
        folder = self._folder(made.name, number)
        os.makedirs(self.path(folder), mode=0o700, exist_ok=True)
        os.chmod(self.path(RELEASES), 0o700)
        copies = [Item("%s/%s" % (folder, _base(item.path)), item.text, 0o600) for item in made.items if item.path in made.record["files"]]
        # A copy that was rolled back to keeps its own record: it is the same release.
        kept = {key: value for key, value in record.items() if key != "rolled_back_from"}
        copies.append(Item(folder + "/release.json", json.dumps(kept, indent=2, sort_keys=True) + "\n", 0o600))
        self._commit(self._prepare(copies))
        self._commit(self._prepare([Item(made.record_path, text, 0o644)]))
        numbers = [found for found in self._numbers(made.name) if found != number]
        for old in numbers[: max(0, len(numbers) - keep)]:
            shutil.rmtree(self.path(self._folder(made.name, old)), ignore_errors=True)

    # -- systemd ---------------------------------------------------------------------------------------------
    def _states(self, name: str) -> Tuple[Dict[str, str], Dict[str, str]]:
        code, out, err = self.run(("systemctl", "show", "--no-pager", "--property=" + PROPERTIES, name + ".service", render.LINK_UNIT), 30.0)
        found = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in re.split(r"\n\s*\n", out.strip())]
        if code or not found or "ActiveState" not in found[0]:
            if self.check:
                # Nothing is installed yet, or systemd does not run: a look says what would be, and a run says what is wrong.
                return {}, {}
            raise ReleaseError("systemd does not say how %s.service is: %s" % (name, " ".join(err.split())[:200] or "exit status %d" % code))
        return found[0], found[1] if len(found) > 1 else {}

    def _systemctl(self, *words: str, limit: float = 60.0) -> None:
        code, out, err = self.run(("systemctl",) + words, limit)
        if code:
            raise ReleaseError("systemctl %s: %s" % (" ".join(words), " ".join((err or out).split())[:300] or "exit status %d" % code))

    def _stop(self, name: str, limit: float) -> None:
        self._systemctl("stop", name + ".service", limit=limit)
        # A stop that had to kill leaves the unit failed; it was asked for, so it is none.
        self.run(("systemctl", "reset-failed", name + ".service"), 30.0)

    def _stop_limit(self, name: str) -> float:
        for path in ("%s/%s.service" % (release.UNITS, name), "%s/%s.container" % (release.QUADLETS, name)):
            found = re.search(r"^TimeoutStopSec=(\d{1,6})$", self.text(path) or "", re.M)
            if found:
                return 3.0 * int(found.group(1)) + 60.0
        return 600.0

    # -- files -----------------------------------------------------------------------------------------------
    def path(self, path: str) -> str:
        """`path` below the root."""
        return self.root + path

    def text(self, path: str) -> Optional[str]:
        """Text of a file, None when there is none."""
        try:
            with open(self.path(path), encoding="utf-8", errors="surrogateescape", newline="") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except OSError as exc:
            raise ReleaseError("%s cannot be read: %s" % (path, exc.strerror)) from None

    def mode(self, path: str) -> Optional[int]:
        """Permissions of a file, None when there is none."""
        try:
            return stat.S_IMODE(os.lstat(self.path(path)).st_mode)
        except OSError:
            return None

    def _differs(self, item: Item) -> bool:
        found = self.text(item.path)
        if found != item.text:
            return True
        if found is None:
            return False
        status = os.lstat(self.path(item.path))
        return stat.S_ISLNK(status.st_mode) or stat.S_IMODE(status.st_mode) != item.mode or (
            os.geteuid() == 0 and (status.st_uid, status.st_gid) != (0, 0))

    def _stamp(self, made: Wanted) -> str:
        """Tells one secrets file from the next, and nothing of what is in it."""
        secret = next((item for item in made.items if item.secret), None)
        path = secret.path if secret else "%s/%ssecrets.env" % (render.SETTINGS, "" if made.name == "vllm" else "router-")
        try:
            return str(os.lstat(self.path(path)).st_mtime_ns)
        except OSError:
            return "none"

    def _prepare(self, items: Sequence[Item]) -> List[Tuple[str, Item]]:
        """Write each text beside its place, to the disk; nothing is switched yet."""
        ready: List[Tuple[str, Item]] = []
        try:
            for item in items:
                path = self.path(item.path)
                temporary = ""
                if item.text is not None:
                    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
                    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".inferops-")
                    ready.append((temporary, item))
                    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                        file.write(item.text)
                        file.flush()
                        os.fsync(file.fileno())
                    os.chmod(temporary, item.mode)
                    if os.geteuid() == 0:
                        os.chown(temporary, 0, 0)
                else:
                    ready.append(("", item))
        except OSError as exc:
            self._discard(ready)
            raise ReleaseError("%s cannot be written: %s; nothing was switched" % (item.path, exc.strerror)) from None
        return ready

    def _commit(self, ready: Sequence[Tuple[str, Item]]) -> None:
        """Put what was prepared in its place, each file in one step."""
        for temporary, item in ready:
            if temporary:
                os.replace(temporary, self.path(item.path))
            else:
                try:
                    os.unlink(self.path(item.path))
                except FileNotFoundError:
                    pass
        if ready and os.path.exists("/sys/fs/selinux/enforce") and not self.root:
            self.run(["restorecon"] + [item.path for _temporary, item in ready if item.text is not None], 30.0)

    @staticmethod
    def _discard(ready: Sequence[Tuple[str, Item]]) -> None:
        for temporary, _item in ready:
            try:
                os.unlink(temporary)
            except OSError:
                pass

    def _folder(self, name: str, number: int) -> str:
        return "%s/%s%d" % (RELEASES, "" if name == "vllm" else name + "-", number)

    def _numbers(self, name: str) -> List[int]:
        """Numbers of the releases that are kept, oldest first."""
        prefix = "" if name == "vllm" else name + "-"
        try:
            found = os.listdir(self.path(RELEASES))
        except OSError:
            return []
        return sorted(int(text[len(prefix):]) for text in found if text.startswith(prefix) and text[len(prefix):].isdigit() and len(text) < 30)


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


class _Steps(NamedTuple):
    """What a release asks of systemd. `held`: a reload would take the GPUs from what runs. `enable`: None when it is as wanted."""

    old: Dict[str, Any]
    service: Dict[str, str]
    link: Dict[str, str]
    reload: bool
    held: bool
    restart: bool
    start: bool
    stop: bool
    enable: Optional[bool]
