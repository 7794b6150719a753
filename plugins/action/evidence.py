# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Freeze a node and bring the archive to the controller, also when nothing can be written on the node."""

from __future__ import annotations

import os
import pkgutil
import re
import shlex
import time
from hashlib import sha256
from typing import Any, Dict, Optional, Tuple

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.action import ActionBase
from ansible.utils.hashing import secure_hash

from ..module_utils.evidence import arguments, bundle, streamed
from ..module_utils.node.snapshot import SnapshotError

NEEDED_KIB = 192 * 1024
"""Free space that the ordinary way wants on the node: the module, its archive, and some for the node itself."""
STREAMED_MIB = 24
"""Logs of an archive that is streamed: it is held in memory on both sides."""
PACKAGES = ("node", "evidence")
"""Packages of module_utils that freezing a node needs."""
_ROW = re.compile(r"^\S.*?\s+\d+\s+\d+\s+(-?\d+)\s+\d+%\s+(/.*)$")
_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|errno: 28|write error|Read-only file system|Failed to create temporary directory", re.IGNORECASE)


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
        found: Dict[str, Any] = {}
        full = self._full()
        if not full:
            try:
                found = self._frozen(args, variables)
            except AnsibleError as exc:
                # A lost connection as well, but Ansible calls it so, too, when the node has no inode left or a file system that is read-only now.
                if not _FULL.search(str(exc)):
                    raise
                found = {"failed": True, "msg": str(exc)}
            full = bool(found.get("failed")) and (found.get("errno") in (28, 30, 122) or bool(_FULL.search(_words(found))))
        if full:
            self._forget()
            found, data = self._streamed(args, variables)
            if not found.get("failed"):
                found.update(changed=True, size=len(data), sha256=sha256(data).hexdigest(), archive=_kept(data, folder, node))
            result.update(found)
        else:
            result.update(found)
            if not result.get("failed"):
                try:
                    result["archive"] = self._fetched(str(found["archive"]), str(found["sha256"]), folder, node, suffix)
                finally:
                    self._forget()
        result["streamed"] = full
        result["skew"] = self.skew
        return result

    def _forget(self) -> None:
        """Remove the temporary folder on the node, if there is one."""
        if self._connection._shell.tmpdir:
            self._remove_tmp_path(self._connection._shell.tmpdir)
            self._connection._shell.tmpdir = None

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
            contents, account = bundle.repack(root)
            size, digest = bundle.write_archive(contents, archive, node)
        except SnapshotError as exc:
            raise AnsibleActionFail("root: %s" % exc) from None
        except OSError as exc:
            raise AnsibleActionFail("dest: %s cannot be written: %s" % (exc.filename or archive, exc.strerror)) from None
        result.update({**arguments.result(account), "node": node, "archive": archive, "size": size, "sha256": digest, "streamed": False})
        return result

    def _ready(self, folder: str) -> None:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as exc:
            raise AnsibleActionFail("dest: %s cannot be made on the controller: %s" % (exc.filename or folder, exc.strerror)) from None

    def _full(self) -> bool:
        """True when the node's disk has no room for the ordinary way. Looks at the node's clock as well."""
        before = time.time()
        answer = self._low_level_execute_command("date +%s.%N; df -Pk -- ~ /tmp 2>/dev/null; exit 0")
        clock = re.match(r"\s*(\d{9,11}\.\d{1,9})\s", str(answer.get("stdout", "")))
        if clock:
            # The node was asked somewhere between the two looks at our own clock.
            self.skew = round(float(clock.group(1)) - (before + time.time()) / 2, 2)
        rows = [int(found.group(1)) for found in map(_ROW.match, str(answer.get("stdout", "")).splitlines()) if found]
        return bool(rows) and min(rows) < NEEDED_KIB

    def _frozen(self, args: Dict[str, Any], variables: Dict[str, Any]) -> Dict[str, Any]:
        """Run the module with its archive in the temporary folder of this task on the node."""
        place = self._connection._shell.tmpdir or self._make_tmp_path()
        found: Dict[str, Any] = self._execute_module(module_name="inferops.vllm.evidence", module_args=dict(args, dest=place), task_vars=variables)
        return found

    def _streamed(self, args: Dict[str, Any], variables: Dict[str, Any]) -> Tuple[Dict[str, Any], bytes]:
        """Freeze the node without writing anything on it: the code goes in by standard input, the archive comes out by standard output."""
        checked = ArgumentSpecValidator(arguments.spec()).validate(dict(args, dest="/", format="tar.gz"))
        if checked.error_messages:
            raise AnsibleActionFail("; ".join(checked.error_messages))
        params = dict(checked.validated_parameters)
        params["total_mib"] = min(params["total_mib"], STREAMED_MIB)
        facts = variables.get("ansible_facts") or {}
        known = (variables.get("ansible_python_interpreter"), facts.get("discovered_interpreter_python"), "/usr/bin/python3")
        python = next(str(path) for path in known if str(path or "").startswith("/") or path == "python3")
        answer = self._low_level_execute_command(
            "%s -c %s" % (shlex.quote(python), shlex.quote(streamed.BOOTSTRAP.strip())), in_data=streamed.payload(_sources(), params), sudoable=True)
        try:
            return streamed.parse(str(answer.get("stdout", "")))
        except ValueError as exc:
            why = " ".join(str(answer.get("stderr", "")).split())[-300:]
            raise AnsibleActionFail("nothing can be written on the node, and streaming failed: %s %s" % (exc, why)) from None

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


def _kept(data: bytes, folder: str, node: str) -> str:
    """Write an archive that was streamed, whole or not at all."""
    path = _free_name(folder, node, "tar.gz")
    staging = "%s.part-%d" % (path, os.getpid())
    try:
        with os.fdopen(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(data)
        os.rename(staging, path)
    except OSError as exc:
        raise AnsibleActionFail("dest: %s cannot be written on the controller: %s" % (exc.filename or staging, exc.strerror)) from None
    finally:
        if os.path.exists(staging):
            os.unlink(staging)
    return path


def _sources() -> Dict[str, Tuple[bool, str]]:
    """Sources of everything that freezing a node needs, by dotted name."""
    top = streamed.__name__.rpartition(".evidence.")[0]
    parts = top.split(".")
    found: Dict[str, Tuple[bool, str]] = {".".join(parts[:count]): (True, "") for count in range(1, len(parts) + 1)}
    base = os.path.dirname(os.path.dirname(os.path.abspath(streamed.__file__)))
    for package in PACKAGES:
        folder = os.path.join(base, package)
        found["%s.%s" % (top, package)] = (True, _read(os.path.join(folder, "__init__.py")))
        for module in pkgutil.iter_modules([folder]):
            if not module.ispkg:
                found["%s.%s.%s" % (top, package, module.name)] = (False, _read(os.path.join(folder, module.name + ".py")))
    return found


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
