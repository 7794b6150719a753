# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the paths that a user names to cases that can be diagnosed: which streams belong together, and of which node each is."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..module_utils.evidence import bundle
from ..module_utils.logs.placement import Facts
from ..module_utils.logs.sources import Refused, Source, chunks
from ..module_utils.node import collect, kernel_log, snapshot
from ..module_utils.node.reader import Reader

MAX_FILES = 20000
SKEW = 0.5
"""Seconds by which a clock may be wrong before times are corrected: the measurement itself is not better."""
STARTING = 900.0
"""Seconds after its start in which a server that does not serve yet may still be loading."""
READ_KINDS = ("engine", "container", "kernel", "related", "file", "pod")
"""Logs of a bundle that are read; ``journal`` repeats them."""
_PAPERS = frozenset((
    "index.json", "SHA256SUMS", "MANIFEST.sha256", "evidence.json", "snapshot.json", "answers.json", "commands.json", "truth.jsonl", "index.jsonl"))
"""Documents that stand beside logs and are none."""
_PAGES = (".html", ".md", ".csv", ".py", ".pyc", ".svg")
_SKIPPED_FOLDERS = frozenset((".git", "__pycache__", "node_modules"))
_PART = re.compile(r"\.part-\d{1,10}\Z")
"""What evidence is called until it is whole."""
_EVIDENCE = re.compile(r"\d{8}T\d{6}Z(?:-\d{1,3})?\Z")
"""What the playbook evidence calls its folders."""


class Case(NamedTuple):
    """Streams of one run.

    paths: what the user named. sources: the streams. notes: what the reader of the verdict should know of them.
    absent: nodes of which nothing is there, with the reason.
    """

    paths: List[str]
    sources: List[Source]
    notes: List[str]
    absent: Dict[str, str]
    starting: bool = False
    """The engine was started so shortly before the logs were taken that it cannot be expected to serve."""
    facts: Tuple[Tuple[str, Facts], ...] = ()
    """Node and what its evidence knows of its GPUs."""


class Refusal(NamedTuple):
    """A path that cannot be diagnosed, and why in one sentence."""

    path: str
    why: str


def cases(
    paths: Iterable[str], each: bool = False, accept_changed: bool = False, skews: Optional[Mapping[str, float]] = None,
) -> Tuple[List[Case], List[Refusal]]:
    """Cases of `paths`.

    A folder is one case, loose files together are one; with `each` every file (and every bundle) is a case of its own.

    Args:
        accept_changed: read a bundle although a file of it is not what its manifest says.
        skews: seconds by which each node's clock is ahead, where this was measured.
    """
    found: List[Case] = []
    refused: List[Refusal] = []
    loose: Optional[Case] = None
    for path in paths:
        path = os.path.expanduser(path)
        if path == "-":
            refused.append(Refusal(path, "standard input does not reach a playbook: save the log to a file"))
            continue
        if not os.path.lexists(path):
            refused.append(Refusal(path, "does not exist"))
            continue
        folder = os.path.isdir(path) and not bundle.is_bundle(path)
        here: List[Case] = []
        try:
            items = _walk(path, refused) if folder else [path]
        except OSError as exc:
            refused.append(Refusal(path, "cannot be read: %s" % exc.strerror))
            continue
        index = _index(path) if folder else _index(os.path.dirname(path))
        known = {**index[0], **(skews or {})}
        for item in items:
            try:
                case = _one(item, accept_changed, known)
            except (snapshot.SnapshotError, Refused) as exc:
                why = str(exc)
                refused.append(Refusal(item, why[len(item):].lstrip(": ") if why.startswith(item) else why))
                continue
            here.append(case)
        if each:
            found.extend(here)
        elif folder:
            if here:
                case = _joined([path], here, index[1])
                found.append(case._replace(notes=case.notes + _unfinished(path)))
            elif not any(refusal.path.startswith(path) for refusal in refused):
                refused.append(Refusal(path, "holds no log"))
        elif here:
            if loose is None:
                loose = here[0]
                found.append(loose)
            else:
                place = next(number for number, case in enumerate(found) if case is loose)
                loose = _joined(loose.paths + here[0].paths, [loose] + here, {})
                found[place] = loose
    return found, refused


def _joined(paths: List[str], parts: Sequence[Case], absent: Mapping[str, str]) -> Case:
    notes = list(dict.fromkeys(note for part in parts for note in part.notes))
    # All parts must say so: a rank that hangs is older.
    starting = any(part.starting for part in parts) and all(part.starting for part in parts if part.sources)
    facts = tuple(item for part in parts for item in part.facts)
    return Case(paths, [source for part in parts for source in part.sources], notes, dict(absent), starting, facts)


def _walk(folder: str, refused: List[Refusal]) -> List[str]:
    """Files and bundles below `folder`, sorted, at most MAX_FILES; links to folders are not followed."""
    found: List[str] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        folders[:] = [name for name in folders if not _PART.search(name)]
        for name in list(folders):
            if bundle.is_bundle(os.path.join(root, name)):
                folders.remove(name)
                found.append(os.path.join(root, name))
        for name in sorted(names):
            path = os.path.join(root, name)
            if name in _PAPERS or name.startswith(".") or name.endswith(_PAGES) or _PART.search(name) or not os.path.isfile(path):
                continue
            if len(found) >= MAX_FILES:
                refused.append(Refusal(folder, "holds more than %d files: only the first are read" % MAX_FILES))
                return found
            found.append(path)
    return found


def _unfinished(folder: str) -> List[str]:
    """A note where the playbook evidence did not come to its end in `folder`."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    parts = sum(1 for name in names if _PART.search(name))
    if parts or (_EVIDENCE.match(os.path.abspath(folder).rpartition("/")[2]) and "index.json" not in names):
        return ["The evidence was not finished (%s): nodes may be missing." % (
            "%d archives are incomplete and were not read" % parts if parts else "%s has no index.json" % os.path.abspath(folder).rpartition("/")[2])]
    return []


def _index(folder: str) -> Tuple[Dict[str, float], Dict[str, str]]:
    """Clock skews and absent nodes of the evidence folder `folder`, from its index."""
    try:
        with open(os.path.join(folder or ".", "index.json"), "rb") as source:
            document = json.loads(source.read(8 << 20))
        if not str(document["schema"]).startswith("inferops.vllm/evidence_index/"):
            return {}, {}
        skews = {str(name): float(node["skew"]) for name, node in document["nodes"].items() if isinstance(node.get("skew"), (int, float))}
        absent = {str(name): str(why) for key in ("unreachable", "failed") for name, why in document[key].items()}
        return skews, absent
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}, {}


def _one(path: str, accept_changed: bool, skews: Mapping[str, float]) -> Case:
    """The streams of one bundle, archive or file.

    Raises:
        SnapshotError, Refused: it cannot be read; the message says why.
    """
    if bundle.is_bundle(path):
        return _bundle(path, accept_changed, skews)
    if bundle.is_archive(path):
        sources = [Source.from_bytes("%s:%s" % (path, name), data) for name, data in sorted(bundle.open_logs(path).items()) if data]
        sources = [source for source in sources if not _why_not(source)]
        if not sources:
            raise Refused("holds no log")
        return Case([path], sources, [], {})
    if not os.path.isfile(path):
        raise Refused("is not a plain file")
    if not os.path.getsize(path):
        raise Refused("is empty")
    source = Source.from_path(path)
    why = _why_not(source)
    if why:
        raise Refused(why)
    return Case([path], [source], [], {})


def _why_not(source: Source) -> str:
    """Why the beginning of `source` is no log, empty when it may be one."""
    pieces = chunks(source, 65536)
    try:
        return "" if next(pieces, b"") else "is empty"
    except Refused as exc:
        return str(exc)
    except (OSError, MemoryError) as exc:
        return "cannot be read: %s" % exc
    finally:
        pieces.close()  # type: ignore[attr-defined]


def _bundle(path: str, accept_changed: bool, skews: Mapping[str, float]) -> Case:
    opened = bundle.open_bundle(path)
    notes: List[str] = []
    if opened.problems:
        what = "; ".join(opened.problems[:3]) + (" and %d more" % (len(opened.problems) - 3) if len(opened.problems) > 3 else "")
        if not accept_changed:
            raise Refused("was changed after it was recorded: %s. Set diagnose_accept_changed=true to read it nevertheless." % what)
        notes.append("The evidence of %s was changed after it was recorded: %s." % (opened.node, what))
    kinds = {str(record.get("file", "")): str(record.get("kind", "")) for record in _records(opened.account)}
    boot = opened.account.get("boot")
    booted = boot.get("at") if isinstance(boot, Mapping) else None
    skew = skews.get(opened.node, 0.0)
    offset = -skew if abs(skew) > SKEW else 0.0
    separator = "/" if os.path.isdir(path) else ":"

    def source(name: str, data: bytes) -> Source:
        return Source.from_bytes(path + separator + name, data, opened.node, offset, float(booted) if isinstance(booted, (int, float)) else None)

    sources = [
        source("logs/" + name, data) for name, data in sorted(opened.logs.items()) if data and kinds.get("logs/" + name, "file") in READ_KINDS]
    recorded = _recorded(path)
    if recorded is not None and not any(kinds.get("logs/" + name) == "kernel" for name in opened.logs):
        text = _kernel(recorded[0])
        if text:
            sources.append(source("kernel log", text.encode("utf-8", "replace")))
    cut = opened.account.get("cut")
    notes += ["%s: %s" % (opened.node, str(line)[:200]) for line in (cut if isinstance(cut, list) else [])[:6]]
    if not sources:
        notes.append("The evidence of %s holds no log." % opened.node)
    age = _age(opened.account)
    return Case([path], sources, notes, {}, age is not None and age < STARTING, ((opened.node, placement(recorded, opened.account)),))


def _recorded(path: str) -> Optional[Tuple[Reader, collect.Options]]:
    """The snapshot inside a bundle, None where there is no whole one."""
    try:
        reader, options, _head = collect.open_root(path)
    except snapshot.SnapshotError:
        return None
    return reader, options


def placement(recorded: Optional[Tuple[Reader, collect.Options]], account: Mapping[str, Any]) -> Facts:
    """What a snapshot and its account know of the node's GPUs and of the processes that use them; empty where they know nothing."""
    gpu = collect.gather(recorded[0], recorded[1]._replace(subset=("gpu",))).get("gpu") if recorded is not None else None
    rows = [row for row in (gpu.get("gpus") if isinstance(gpu, dict) else None) or [] if isinstance(row, dict) and row.get("bdf")]
    users = [(user.get("pid"), row["bdf"]) for row in rows for user in row.get("processes") or [] if isinstance(user, dict)]
    listed = account.get("processes")
    processes = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    first = processes[0].get("env") if processes else None
    environment = first if isinstance(first, Mapping) else {}
    pids = [(item.get("pid"), _number(item.get("inner_pid"))) for item in processes]
    return Facts(
        tuple((str(row["bdf"]), row["index"] if isinstance(row.get("index"), int) else -1, str(row.get("uuid") or "")) for row in rows),
        len({str(row.get("name")) for row in rows}) <= 1, bool(environment), _variable(environment, "CUDA_VISIBLE_DEVICES"),
        _variable(environment, "NVIDIA_VISIBLE_DEVICES"), environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID",
        tuple((pid, inner) for pid, inner in pids if isinstance(pid, int) and inner),
        tuple((pid, str(address)) for pid, address in users if isinstance(pid, int)))


def _variable(environment: Mapping[str, Any], name: str) -> Optional[str]:
    value = environment.get(name)
    return value if isinstance(value, str) else None


def _number(text: Any) -> int:
    return int(text) if str(text).isdigit() and len(str(text)) < 12 else 0


def _age(account: Mapping[str, Any]) -> Optional[float]:
    """Seconds that the first process of vLLM had run when the evidence was taken, None when none ran or it is not known."""
    try:
        return float(account["clock"]) - float(account["boot"]["at"]) - float(account["processes"][0]["started"])
    except (LookupError, TypeError, ValueError):
        return None


def _records(account: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    records = account.get("logs")
    return [record for record in records if isinstance(record, Mapping)] if isinstance(records, list) else []


def _kernel(reader: Reader) -> str:
    """Kernel log among the commands of a snapshot, as its facts read it."""
    for argv in kernel_log.COMMANDS:
        ran = reader.memo.get(("run", *argv))
        if ran is not None and ran.out:
            return str(ran.out)
    return ""
