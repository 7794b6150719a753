#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: remediation_state
short_description: Keep on a node what its remediation is doing
version_added: 0.2.0
description:
  - Writes the state file of a node before and after every step of a remedy, so that a run that was killed anywhere can be continued
    or taken back by the next one.
  - The file is written whole or not at all, and is on disk before the module returns.
options:
  action:
    description:
      - V(begin) a remedy, V(advance) it to another phase, V(finish) it, or V(forget) a state file that cannot be used.
      - V(finish) without a remedy under way changes nothing.
      - V(restore) gives the O(files) that the remedy under way began with their content back, and takes away those that were not there.
    type: str
    choices: [begin, advance, finish, forget, restore]
    required: true
  remedy:
    description: The remedy that begins.
    type: str
  problems:
    description: Findings that it is to mend.
    type: list
    elements: str
    default: []
  run:
    description: Id of the run that does it.
    type: str
    default: ""
  phase:
    description: The phase that O(action=advance) enters.
    type: str
    choices: [frozen, stopped, applying, rechecking, undoing]
  outcome:
    description: How O(action=finish) ends.
    type: str
    choices: [mended, undone, failed, refused, interrupted, escalated]
  why:
    description: One sentence for the history.
    type: str
    default: ""
  details:
    description: What an undo has to know.
    type: dict
    default: {}
  files:
    description: Files that the remedy which begins may write, kept for V(restore).
    type: list
    elements: path
    default: []
  path:
    description: The state file.
    type: path
    default: /var/lib/inferops-vllm/remediation.json
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: The file is the history of what was done.
  idempotent:
    description: A second run changes nothing.
    support: partial
    details: V(finish), V(forget) and V(restore) do; a remedy begins once.
seealso:
  - module: inferops.vllm.node_facts
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Say that a remedy begins
  inferops.vllm.remediation_state:
    action: begin
    remedy: peermem_load
    problems: [gpudirect.peermem]
    run: 20261129-2210

- name: Say how it ended
  inferops.vllm.remediation_state:
    action: finish
    outcome: mended
"""

RETURN = r"""
state:
  description: The state file as it is now, or would be in check mode.
  returned: always
  type: dict
files:
  description: Files that were written or taken away, or would be in check mode.
  returned: with O(action=restore)
  type: list
  elements: str
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.remedies import journal


def main() -> None:
    """Read the state file, take one step, write it."""
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["begin", "advance", "finish", "forget", "restore"], "required": True},
            "remedy": {"type": "str"},
            "problems": {"type": "list", "elements": "str", "default": []},
            "run": {"type": "str", "default": ""},
            "phase": {"type": "str", "choices": list(journal.PHASES)},
            "outcome": {"type": "str", "choices": list(journal.OUTCOMES)},
            "why": {"type": "str", "default": ""},
            "details": {"type": "dict", "default": {}},
            "files": {"type": "list", "elements": "path", "default": []},
            "path": {"type": "path", "default": journal.PATH},
        },
        required_if=[("action", "begin", ["remedy"]), ("action", "advance", ["phase"]), ("action", "finish", ["outcome"])],
        supports_check_mode=True,
    )
    p = module.params
    path, now = p["path"], time.time()
    machine = read("/etc/machine-id") or ""
    try:
        text = read(path)
        if p["action"] == "forget":
            changed = text is not None and unusable(text, machine.strip(), now)
            if changed and not module.check_mode:
                os.replace(path, path + ".forgotten")
            module.exit_json(changed=changed, state=journal.empty(machine.strip()))
        before = journal.parse(text, machine.strip(), now)
        if p["action"] == "restore":
            differing = [kept for kept in journal.kept(before) if keep(kept.path) != kept]
            for kept in differing if not module.check_mode else []:
                put_back(kept)
            module.exit_json(changed=bool(differing), state=before, files=[kept.path for kept in differing])
        if p["action"] == "begin":
            details = dict(p["details"], files=[dict(keep(name)._asdict()) for name in p["files"]])
            after = journal.begin(before, p["remedy"], p["problems"], p["run"], now, details)
            if len(journal.render(after)) > journal.LARGEST:
                raise journal.JournalError("%s are too large to be restored; they are left alone." % ", ".join(p["files"]))
        elif p["action"] == "advance":
            after = journal.advance(before, p["phase"], now, p["details"])
        else:
            after = journal.finish(before, p["outcome"], now, p["why"])
        if after != before and not module.check_mode:
            write(path, journal.render(after))
    except journal.JournalError as exc:
        module.fail_json(msg=str(exc))
    except OSError as exc:
        module.fail_json(msg="%s cannot be written: %s" % (exc.filename or path, exc.strerror or exc))
    module.exit_json(changed=after != before, state=after)


def unusable(text: str, machine: str, now: float) -> bool:
    """The file is one that no run can go on from."""
    try:
        return journal.parse(text, machine, now)["current"] is not None
    except journal.JournalError:
        return True


def read(path: str):
    """Text of a file, None when it is not there.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(journal.LARGEST)
    except FileNotFoundError:
        return None


def keep(path: str) -> journal.Kept:
    """The file as it is now.

    Raises:
        JournalError: it is too large to be kept.
        OSError: it is there and cannot be read.
    """
    try:
        # Bytes that are no text come back as they were.
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            found = journal.Kept(path, file.read(journal.LARGEST_KEPT + 1), os.stat(path).st_mode & 0o7777)
    except FileNotFoundError:
        return journal.Kept(path, None, 0)
    if len(found.text or "") > journal.LARGEST_KEPT:
        raise journal.JournalError("%s is larger than %d bytes, so that it could not be restored; it is left alone." % (path, journal.LARGEST_KEPT))
    return found


def put_back(kept: journal.Kept) -> None:
    """Give a file its earlier content and mode, or take it away where there was none.

    Raises:
        OSError: no room or no permission.
    """
    if kept.text is None:
        os.unlink(kept.path)
        return
    os.makedirs(os.path.dirname(kept.path), exist_ok=True)
    write(kept.path, kept.text, kept.mode)


def write(path: str, text: str, mode: int = 0o600) -> None:
    """Replace the file, with its content on disk before and its name after: a power cut leaves the old file or the new one.

    Raises:
        OSError: no folder, no room or no permission.
    """
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    handle = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


if __name__ == "__main__":
    main()
