# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Freeze a node and bring the archive to the controller, also when the node's disk is full."""

from __future__ import annotations

import os
import re
import time
from hashlib import sha256
from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.hashing import secure_hash

from ..module_utils.evidence import bundle
from ..module_utils.node.snapshot import SnapshotError

NEEDED_KIB = 192 * 1024
"""Free space that the ordinary way wants on the node: the module, its archive, and some for the node itself."""
LEAST_KIB = 24 * 1024
"""Free memory file system with which the way through memory is tried."""
MEMORY = ("/dev/shm", "/run")
_ROW = re.compile(r"^\S.*?\s+\d+\s+\d+\s+(-?\d+)\s+\d+%\s+(/.*)$")
_FULL = re.compile(r"No space left on device|Disk quota exceeded|errno: 28|write error", re.IGNORECASE)


class ActionModule(ActionBase):
    """Action plugin ``inferops.vllm.evidence``; its documentation stands in the module of the same name."""

    _supports_check_mode = True
    _supports_async = False
    skew: Optional[float] = None
    """Seconds that the clock of the node is ahead of the controller's, None unknown."""

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        variables = task_vars or {}
        result: Dict[str, Any] = super().run(tmp, variables)
        args = dict(self._task.args)
        if not args.get("dest"):
            raise AnsibleActionFail("dest: the folder on the controller is missing")
        folder = os.path.abspath(os.path.expanduser(str(args["dest"])))
        node = str(args.get("node") or variables.get("inventory_hostname") or "node")
        if not re.match(r"^[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,120}\Z", node):
            raise AnsibleActionFail("node: %r is not a name that a file could have" % node)
        args["node"] = node
        suffix = str(args.get("format") or "tar.gz")
        root = args.pop("root", None)
        if root:
            return self._recorded(os.path.expanduser(str(root)), folder, node, variables, result)
        if self._task.check_mode:
            result.update(self._execute_module(module_name="inferops.vllm.evidence", module_args=args, task_vars=variables))
            return result
        self._ready(folder)
        memory = self._full()
        found: Dict[str, Any] = {}
        if not memory:
            try:
                found = self._frozen(args, variables)
            except AnsibleConnectionFailure:
                raise
            except AnsibleError as exc:
                if not _FULL.search(str(exc)):
                    raise
                found = {"failed": True, "msg": str(exc)}
            if found.get("failed") and (found.get("errno") in (28, 122) or _FULL.search(_words(found))):
                memory = self._full(force=True)
        if memory:
            found = self._through_memory(memory, args, variables)
        result.update(found)
        if result.get("failed"):
            return result
        try:
            result["archive"] = self._fetched(str(found["archive"]), str(found["sha256"]), folder, node, suffix)
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        result["memory"] = bool(memory)
        result["skew"] = self.skew
        return result

    def _recorded(self, root: str, folder: str, node: str, variables: Dict[str, Any], result: Dict[str, Any]) -> Dict[str, Any]:
        """Take the recording of a node along."""
        root = os.path.abspath(os.path.join(str(variables.get("inventory_dir") or "."), root))
        result.update(changed=True, node=node)
        if self._task.check_mode:
            result["would"] = ["the recording %s as it is" % root]
            return result
        self._ready(folder)
        archive = _free_name(folder, node, "tar.gz")
        try:
            contents = bundle.repack(root)
            size, digest = bundle.write_archive(contents, archive, node)
        except SnapshotError as exc:
            raise AnsibleActionFail("root: %s" % exc) from None
        except OSError as exc:
            raise AnsibleActionFail("dest: %s cannot be written: %s" % (exc.filename or archive, exc.strerror)) from None
        result.update(archive=archive, size=size, sha256=digest, seconds=0.0, logs=[], services=[], cut=[], missing={}, memory=False,
                      redactions={"count": 0, "kinds": {}}, recorded=True)
        return result

    def _ready(self, folder: str) -> None:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as exc:
            raise AnsibleActionFail("dest: %s cannot be made on the controller: %s" % (exc.filename or folder, exc.strerror)) from None

    def _full(self, force: bool = False) -> str:
        """Folder in memory to go through when the node's disk is full, empty when there is room on the disk."""
        before = time.time()
        answer = self._low_level_execute_command("date +%%s.%%N; df -Pk -- ~ /tmp %s 2>/dev/null; exit 0" % " ".join(MEMORY))
        clock = re.match(r"\s*(\d{9,11}\.\d{1,9})\s", str(answer.get("stdout", "")))
        if clock and not force:
            # The node was asked somewhere between the two looks at our own clock.
            self.skew = round(float(clock.group(1)) - (before + time.time()) / 2, 2)
        rows = [(int(found.group(1)), found.group(2)) for found in map(_ROW.match, str(answer.get("stdout", "")).splitlines()) if found]
        # Home and /tmp come first, in that order, each with the mount that holds it.
        if len(rows) < 2 or (not force and min(free for free, _mount in rows[:2]) >= NEEDED_KIB):
            return ""
        memory = [mount for free, mount in rows[2:] if free >= LEAST_KIB and mount in MEMORY]
        if not memory:
            # Nothing better is known: the ordinary way says itself what it lacks.
            return ""
        return memory[0]

    def _frozen(self, args: Dict[str, Any], variables: Dict[str, Any]) -> Dict[str, Any]:
        """Run the module with its archive in the temporary folder of this task on the node."""
        place = self._connection._shell.tmpdir or self._make_tmp_path()
        found: Dict[str, Any] = self._execute_module(module_name="inferops.vllm.evidence", module_args=dict(args, dest=place), task_vars=variables)
        return found

    def _through_memory(self, memory: str, args: Dict[str, Any], variables: Dict[str, Any]) -> Dict[str, Any]:
        """The same with every file of it, the module's too, in a file system in memory."""
        if self._connection._shell.tmpdir:
            self._remove_tmp_path(self._connection._shell.tmpdir)
            self._connection._shell.tmpdir = None
        self._connection._shell.set_option("remote_tmp", memory)
        self._make_tmp_path()
        environment: List[Any] = list(self._task.environment or [])
        self._task.environment = environment + [{"TMPDIR": self._connection._shell.tmpdir}]
        # What stays in memory until it is fetched must be small.
        args = dict(args, total_mib=min(int(args.get("total_mib") or 128), 16))
        return self._frozen(args, variables)

    def _fetched(self, remote: str, digest: str, folder: str, node: str, suffix: str) -> str:
        """Bring the archive here, whole, under a name that is free."""
        archive = _free_name(folder, node, suffix)
        staging = "%s.part-%d" % (archive, os.getpid())
        try:
            self._connection.fetch_file(remote, staging)
            os.chmod(staging, 0o600)
            found = secure_hash(staging, hash_func=sha256)
            if found != digest:
                raise AnsibleActionFail("the archive of %s did not arrive whole: its digest is %s instead of %s" % (node, found, digest))
            os.rename(staging, archive)
        except OSError as exc:
            raise AnsibleActionFail("dest: %s cannot be written on the controller: %s" % (exc.filename or staging, exc.strerror)) from None
        finally:
            if os.path.exists(staging):
                os.unlink(staging)
        return archive


def _words(found: Dict[str, Any]) -> str:
    return " ".join(str(found.get(key) or "") for key in ("msg", "module_stdout", "module_stderr", "exception"))


def _free_name(folder: str, node: str, suffix: str) -> str:
    """A path in `folder` that nothing has yet."""
    stem = os.path.join(folder, node.replace(":", "_"))
    path = "%s.%s" % (stem, suffix)
    number = 2
    while os.path.lexists(path):
        path = "%s-%d.%s" % (stem, number, suffix)
        number += 1
    return path
