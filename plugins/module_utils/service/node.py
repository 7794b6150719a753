# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a release to its node: files in one step, systemd told only what it must be, the old service ended only when all is ready."""

from __future__ import annotations

import contextlib
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
Ready = List[Tuple[str, Item]]
"""Files on the disk beside the places that they will take; no name for one that is to be taken away."""

PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,Job"
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
    """One node, below `root`; `check` looks and changes nothing.

    Attributes:
        switched: after a ReleaseError: not all that was changed could be put back.
    """

    def __init__(self, runner: Runner = run, root: str = "", check: bool = False, agent: Tuple[str, str] = ("", "")) -> None:
        self.run = runner
        self.root = root
        self.check = check
        self.agent, self.agent_unit = agent
        self.warnings: List[str] = []
        self.switched = False

    # -- what a person asks for ------------------------------------------------------------------------------
    def deploy(self, entry: Mapping[str, Any], given: Mapping[str, str], about: Mapping[str, Any], state: str, enabled: bool = True, keep: int = 3) -> Answer:
        """Bring a checked `entry` (:func:`.release.checked`) to this node.

        Args:
            given: secrets by name. about: as :func:`.release.record` takes it.
            state: ``started``, ``stopped`` (files in place, service down) or ``staged`` (files ready in a folder, nothing switched).

        Raises:
            ReleaseError: what keeps it from being done; the service that ran before runs on, or again, unless the message says that it could not be.
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
        """Go back to release `number`, or with 0 to the one before the current. Where `number` is the current one, it is left, or started.

        Raises:
            ReleaseError: there is none, or its copy is damaged; or as :meth:`deploy`.
        """
        record_path = _record_path(name)
        here = release.number_of(release.parse_record(self.text(record_path)))
        kept = self._numbers(name)
        if number and number not in kept:
            raise ReleaseError("release %d of %s is not kept on this node (kept: %s)" % (number, name, ", ".join(map(str, kept)) or "none"))
        earlier = [found for found in kept if found < here]
        if not number and not earlier:
            raise ReleaseError("no earlier release of %s is kept on this node" % name)
        chosen = number or earlier[-1]
        made = self._kept(name, chosen, record_path)
        if here not in (0, chosen):
            made.record["rolled_back_from"] = here
        return self._switch(made, state, enabled, keep)

    def releases(self, name: str) -> List[Dict[str, Any]]:
        """What :meth:`roll_back` may lead to: the current release and the earlier ones that are kept, newest first; empty when nothing is deployed.

        Returns:
            ``{"number", "plan", "peers", "rolled_back", "trouble"}`` of each: what its ranks run together and their hosts (both empty for an engine
            on one node), whether a rollback led to it (of the current one alone), and why it could not be started, empty when it could.
        """
        current = release.parse_record(self.text(_record_path(name)))
        here = release.number_of(current)
        made = []
        for number in [here] * bool(here) + [found for found in reversed(self._numbers(name)) if found < here]:
            link = release.LINK_CONFIG if number == here else "%s/%s" % (self._folder(name, number), _base(release.LINK_CONFIG))
            plan, peers = release.joined(self.text(link) if name == "vllm" else None)
            trouble = ""
            try:
                self._startable(self._kept(name, number, ""))
            except ReleaseError as exc:
                trouble = str(exc)
            made.append({"number": number, "plan": plan, "peers": peers, "rolled_back": number == here and bool(current.get("rolled_back_from")),
                         "trouble": trouble})
        return made

    def restore(self, name: str, number: int = 0, extra: Optional[Mapping[str, str]] = None, keep: int = 3) -> Answer:
        """Write the files of release `number` (0: the current one) as they were deployed; the service runs on, or stays down, as it was.

        Args:
            extra: variables that are set beside those of the release. What differs by them is a release of its own, and a rollback leads back.

        Raises:
            ReleaseError: nothing is deployed here, or its copy is damaged.
        """
        record_path = _record_path(name)
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
        return self._switch(made, "started" if _up(service) else "stopped", service.get("UnitFileState") == "enabled", keep)

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
        busy = _up(self._states(name)[0])
        if busy and not self.check:
            self._stop(name, self._stop_limit(name))
        found = release.parse_record(self.text(_record_path(name)))
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
            self._make_folders(STAGED, folder)
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
        if service.get("ActiveState", "") in ("active", "reloading", "deactivating"):
            began = release.parse_record(self.text("%s/%s/started.json" % (render.RUN, made.name)))
        else:
            # On its way: what it will have been started from is what is deployed.
            began = old
        running = _up(service)
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
        ready, before = self._made_ready(made, changes, plan.old, number)
        started = False
        try:
            if plan.restart or plan.stop:
                self._stop(made.name, self._stop_limit(made.name))
            if not link_on and plan.link.get("LoadState") == "loaded":
                self._systemctl("disable", "--now", "--no-reload", render.LINK_UNIT)
            self.switched = True
            self._commit(ready)
            if told == "done":
                self._systemctl("daemon-reload")
            if plan.enable is not None:
                self._systemctl("enable" if plan.enable else "disable", "--no-reload", unit)
            if link_start:
                self._systemctl("enable", "--no-reload", render.LINK_UNIT)
                self._systemctl("restart", render.LINK_UNIT)
            if plan.start or plan.restart:
                started = True
                self._start(made.name)
        except (OSError, ReleaseError) as exc:
            self._discard(ready)
            raise ReleaseError("%s; %s" % (exc, self._put_back(made, before, plan, link_on, link_start, started, number))) from None
        self.switched = False
        self._discard(before)
        # What served until now is the last to be forgotten, whatever its number: a deployment that fails later goes back to it.
        here = release.number_of(plan.old)
        numbers = sorted((found for found in self._numbers(made.name) if found != number), key=lambda found: (found == here, found))
        for old in numbers[: max(0, len(numbers) - keep)]:
            shutil.rmtree(self.path(self._folder(made.name, old)), ignore_errors=True)
        if state == "started":
            shutil.rmtree(self.path(STAGED + "/" + made.name), ignore_errors=True)

    def _made_ready(self, made: Wanted, changes: Sequence[Item], old: Mapping[str, Any], number: int) -> Tuple[Ready, Ready]:
        """All that a switch writes, and what stands in its places now, prepared while the service still runs: afterwards the disk may be full."""
        ready: Ready = []
        before: Ready = []
        folder = self._folder(made.name, number)
        try:
            self._make_folders(RELEASES, folder)
            ready = self._prepare(changes)
            ready += self._prepare(self._differences(self._records(made, old, number, ready)))
            before = self._prepare([Item(item.path, self.text(item.path), self.mode(item.path) or item.mode, item.secret) for _temporary, item in ready])
            for temporary, item in before:
                if temporary:
                    # A secrets file is told from the next by its time.
                    shutil.copystat(self.path(item.path), temporary)
        except (OSError, ReleaseError) as exc:
            self._discard(ready + before)
            self._forget_empty(folder)
            raise exc if isinstance(exc, ReleaseError) else ReleaseError("%s; nothing was switched" % exc) from None
        return ready, before

    def _put_back(self, made: Wanted, before: Ready, plan: _Steps, link_on: bool, link_start: bool, started: bool, number: int) -> str:
        """After a switch that failed: files, systemd and service as they were, as far as can be. Gives what became of it, for the message.

        Args:
            before: what stood in the places of the files. started: the new service may have been started.
        """
        unit = made.name + ".service"
        link_ran = plan.link.get("ActiveState") == "active"
        troubles: List[str] = []
        restored: List[str] = []

        def step(act: Callable[..., None], *given: Any) -> None:
            try:
                act(*given)
            except (OSError, ReleaseError) as exc:
                troubles.append(str(exc))

        def end_new() -> None:
            if _up(self._states(made.name)[0]):
                self._stop(made.name, self._stop_limit(made.name))

        def restore(temporary: str, item: Item) -> None:
            if self._differs(item):
                self._commit([(temporary, item)])
                restored.append(item.path)

        # While their units are still there.
        if started:
            step(end_new)
        if link_start and not link_ran:
            step(self._systemctl, "disable", "--now", "--no-reload", render.LINK_UNIT)
        if plan.enable:
            step(self._systemctl, "disable", "--no-reload", unit)
        for one in before if self.switched else []:
            step(restore, *one)
        self._discard(before)
        self._forget_empty(self._folder(made.name, number))
        # What still runs may have GPUs that a reload takes from it.
        if not plan.held and any(path.startswith((release.UNITS, release.QUADLETS)) for path in restored):
            step(self._systemctl, "daemon-reload")
        if plan.enable is False:
            step(self._systemctl, "enable", "--no-reload", unit)
        if link_ran and (link_start or not link_on):
            step(self._systemctl, "enable", "--no-reload", render.LINK_UNIT)
            step(self._systemctl, "restart", render.LINK_UNIT)
        ran = plan.restart or plan.stop
        if ran:
            step(self._start, made.name)
        self.switched = bool(troubles)
        if troubles:
            return "not all could be put back as it was: %s" % "; ".join(troubles[:3])
        return "the files are as they were, and the service was started again" if ran else "all is as it was before"

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

    def _records(self, made: Wanted, old: Mapping[str, Any], number: int, ready: Ready) -> List[Item]:
        """A copy of the release for a rollback, and its record at the very last; `ready` is what else is switched."""
        start = release.start_key(made.items, self._stamp(made, ready))
        record = dict(made.record, number=number, start=start, deployed=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        if release.same(old, record) and (old.get("number"), old.get("start")) == (number, start):
            record = dict(old)
        folder = self._folder(made.name, number)
        copies = [Item("%s/%s" % (folder, _base(item.path)), item.text, 0o600) for item in made.items if item.path in made.record["files"]]
        # A copy that was rolled back to keeps its own record: it is the same release.
        kept = {key: value for key, value in record.items() if key != "rolled_back_from"}
        return copies + [Item(path, json.dumps(said, indent=2, sort_keys=True) + "\n", mode) for path, said, mode in (
            (folder + "/release.json", kept, 0o600), (made.record_path, record, 0o644))]

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

    def _start(self, name: str) -> None:
        # Starts are counted; those of a deployment are not the service's own.
        self.run(("systemctl", "reset-failed", name + ".service"), 30.0)
        self._systemctl("start", "--no-block", name + ".service")

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

    def _stamp(self, made: Wanted, ready: Sequence[Tuple[str, Item]] = ()) -> str:
        """Tells one secrets file from the next, and nothing of what is in it; the one of `ready` when it is about to take its place."""
        secret = next((item for item in made.items if item.secret), None)
        path = secret.path if secret else "%s/%ssecrets.env" % (render.SETTINGS, "" if made.name == "vllm" else "router-")
        new = next((temporary for temporary, item in ready if item.secret), "")
        try:
            return str(os.lstat(new or self.path(path)).st_mtime_ns)
        except OSError:
            return "none"

    def _prepare(self, items: Sequence[Item]) -> Ready:
        """Write each text beside its place, to the disk; nothing is switched yet."""
        ready: Ready = []
        try:
            for item in items:
                path = self.path(item.path)
                temporary = ""
                if item.text is not None:
                    _make_folder(os.path.dirname(path))
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

    def _commit(self, ready: Ready) -> None:
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
    def _discard(ready: Ready) -> None:
        for temporary, _item in ready:
            try:
                os.unlink(temporary)
            except OSError:
                pass

    def _make_folders(self, top: str, folder: str) -> None:
        """Make `top` and `folder` in it, which are for root alone."""
        try:
            _make_folder(self.path(release.STATE))
            _make_folder(self.path(folder), 0o700)
            os.chmod(self.path(top), 0o700)
        except OSError as exc:
            raise ReleaseError("%s cannot be made: %s; nothing was switched" % (folder, exc.strerror)) from None

    def _forget_empty(self, folder: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self.path(folder))

    def _folder(self, name: str, number: int) -> str:
        return "%s/%s%d" % (RELEASES, "" if name == "vllm" else name + "-", number)

    def _numbers(self, name: str) -> List[int]:
        """Numbers of the releases that are kept, oldest first; a folder without a record was begun and never became one."""
        prefix = "" if name == "vllm" else name + "-"
        try:
            found = os.listdir(self.path(RELEASES))
        except OSError:
            return []
        numbers = [int(text[len(prefix):]) for text in found if text.startswith(prefix) and text[len(prefix):].isdigit() and len(text) < 30]
        return sorted(number for number in numbers if os.path.exists(self.path(self._folder(name, number) + "/release.json")))


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _record_path(name: str) -> str:
    return "%s/%srelease.json" % (render.SETTINGS, "" if name == "vllm" else "router-")


def _up(service: Mapping[str, str]) -> bool:
    """The service runs, or a start of it waits in systemd's queue for what it needs."""
    return service.get("ActiveState", "") not in ("", "inactive", "failed") or service.get("Job", "") not in ("", "0")


def _make_folder(path: str, mode: int = 0o755) -> None:
    """Make a folder and those that lead to it. What is made gets `mode` whatever the umask is; what is there keeps its own."""
    if os.path.isdir(path):
        return
    _make_folder(os.path.dirname(path), mode)
    os.mkdir(path)
    os.chmod(path, mode)


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
