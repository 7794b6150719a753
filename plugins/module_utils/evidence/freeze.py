# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Freeze the scene of one node: read everything once, change nothing, pause nothing."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..node import collect, snapshot
from ..node.children import in_children
from ..node.live import LiveReader
from ..node.reader import Content, Probed, Ran
from ..node.redact import MASK
from ..node.service import parse_env_files
from . import bundle, places, process, serving, stream
from .secrets import Cleaner, Redaction, known_values, listed, summary

BODY_LIMIT = 8 * 1024 * 1024
"""Characters kept of one text: a snapshot may hold no larger body."""


class Wanted(NamedTuple):
    """What a bundle shall hold.

    node: name of the node.
    options: what the facts look for.
    parts: words of ``places.PARTS`` and ``places.OPTIONAL_PARTS``.
    timeout: seconds of one command.
    log_seconds: seconds for all logs together.
    log_bytes: bytes kept of one log, before compression.
    total_bytes: bytes of all logs in the bundle, after compression.
    journal_lines: lines of the whole journal.
    log_paths: further plain files.
    units: units that serve vLLM.
    namespace, selector: what kubectl is asked for.
    """

    node: str
    options: collect.Options
    parts: Tuple[str, ...] = places.PARTS
    timeout: float = 10.0
    log_seconds: float = 20.0
    log_bytes: int = 128 * 1024 * 1024
    total_bytes: int = 128 * 1024 * 1024
    journal_lines: int = 50000
    log_paths: Tuple[str, ...] = ()
    namespace: str = ""
    selector: str = ""

    @property
    def units(self) -> Tuple[str, ...]:
        return tuple(places.usable_units(self.options.units))


class Frozen(NamedTuple):
    """A frozen node: everything that the bundle will hold, and its account."""

    contents: Dict[str, Sequence[bytes]]
    account: Dict[str, Any]


def would(wanted: Wanted) -> List[str]:
    """What :func:`freeze` would read, one phrase each; asks nothing of the node."""
    found: List[str] = []
    if "facts" in wanted.parts:
        found.append("facts: %s" % ", ".join(wanted.options.subset))
    if "commands" in wanted.parts:
        found.append("commands: %s" % ", ".join(sorted({argv[0] for argv in places.SMI + places.RDMA + places.SYSTEM} | set(places.ENGINES))))
    if "processes" in wanted.parts:
        found.append("command line, environment, libraries and packages of running vLLM processes, through /proc")
    if "server" in wanted.parts:
        found.append("answers of a running server: %s" % ", ".join(serving.PATHS))
    if "logs" in wanted.parts:
        found.append("logs of this boot: %s" % ", ".join([*wanted.units, "containers of vLLM", "kernel", "journal", *wanted.log_paths]))
    if "kubernetes" in wanted.parts:
        found.append("kubectl: objects, events and pod logs of %s" % (wanted.namespace or "the current namespace"))
    return found


def freeze(wanted: Wanted, progress: Optional[Callable[[str], None]] = None) -> Frozen:
    """Read the node. Never raises for what it answers: what could not be read is named in the account.

    Args:
        wanted: what to take along.
        progress: called with the name of each stage, for tests and measurement.
    """
    say = progress or (lambda word: None)
    began = time.monotonic()
    missing: Dict[str, str] = {}
    stages: Dict[str, float] = {}

    def stage(word: str, since: float) -> float:
        now = time.monotonic()
        stages[word] = round(now - since, 2)
        say(word)
        return now

    reader = LiveReader(wanted.timeout)
    mark = time.monotonic()
    options = wanted.options if "facts" in wanted.parts else wanted.options._replace(subset=("service",))
    facts = collect.gather(reader, options, keep=True)
    for section in facts.values():
        for part, why in (section.get("unknown") or {}).items() if isinstance(section, dict) else ():
            missing.setdefault(part, why)
    mark = stage("facts", mark)

    # Everything else has a deadline of its own; what hung once is not asked again.
    more = LiveReader(wanted.timeout)
    more.hung = set(reader.hung) | {str(argv[1]) for argv, ran in reader.memo.items() if argv[0] == "run" and ran.error == "timeout"}
    more.memo = reader.memo
    _commands(more, wanted)
    found = _containers(more, wanted)
    mark = stage("commands", mark)

    roots = [int(pid) for pid in (_probe(reader, "processes").get("vllm") or []) if isinstance(pid, int)]
    raws = _raw_processes(roots, missing) if roots else []
    cleaner = Cleaner(_secrets(raws, more, wanted))
    processes = [_process(raw, raws[0], cleaner) for raw in raws] if "processes" in wanted.parts else []
    details = _inner(roots, missing) if "processes" in wanted.parts else {}
    mark = stage("processes", mark)

    answers = _server(raws, missing) if "server" in wanted.parts else {}
    mark = stage("server", mark)

    logs: Dict[str, List[bytes]] = {}
    records: List[Dict[str, Any]] = []
    spots: Dict[str, List[Redaction]] = {}
    if "logs" in wanted.parts or "kubernetes" in wanted.parts:
        listing = _listing(more, wanted, found)
        records = _logs(listing, wanted, cleaner, logs, spots)
    stage("logs", mark)

    memo = _cleaned(more.memo, cleaner, spots)
    shown = _Remembered(more, memo)
    files = snapshot.render(shown, wanted.node, {**wanted.options.asdict(), "evidence": True})
    account = {
        "schema": bundle.SCHEMA, "node": wanted.node, "parts": list(wanted.parts), "stages": stages,
        "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "clock": round(time.time(), 3),
        "boot": _boot(facts, more), "identity": _identity(wanted, facts, raws, cleaner),
        "services": _services(more, wanted, facts, records), "containers": found, "processes": processes,
        "variables": _variables(raws, cleaner), "versions": details, "server": cleaner.value(answers),
        "commands": _listed_commands(more, wanted), "logs": records, "not_collected": cleaner.value(missing),
        "cut": _cuts(records), "limits": {"command_seconds": wanted.timeout, "log_seconds": wanted.log_seconds, "log_bytes": wanted.log_bytes,
                                          "total_bytes": wanted.total_bytes, "journal_lines": wanted.journal_lines},
    }
    _place(account, spots)
    account["redactions"] = summary(spots)
    account["redactions"]["known_values"] = len(cleaner.known)
    account["seconds"] = round(time.monotonic() - began, 2)
    return Frozen(bundle.assemble(files, logs, account), account)


class _Remembered(LiveReader):
    """A reader that has nothing but `memo`, to be rendered."""

    def __init__(self, reader: LiveReader, memo: Dict[Tuple[str, ...], Any]) -> None:
        super().__init__(reader.timeout)
        self.memo = memo


def _probe(reader: LiveReader, name: str) -> Mapping[str, Any]:
    value = reader.probe(name).value
    return value if isinstance(value, dict) else {}


def _commands(reader: LiveReader, wanted: Wanted) -> None:
    """Run everything that is known beforehand side by side, and read the files."""
    argvs: List[Tuple[str, ...]] = list(places.unit_commands(wanted.units))
    argvs += [places.engine_commands(engine)[0] for engine in places.ENGINES]
    if "commands" in wanted.parts:
        for engine in places.ENGINES:
            argvs += places.engine_commands(engine)
        argvs += places.SMI + places.RDMA + places.SYSTEM
        argvs += places.unit_commands(("vllm-link.service", "docker.service"))
    if "kubernetes" in wanted.parts:
        argvs += places.kubernetes_commands(wanted.namespace, wanted.selector)
    reader.prefetch(argvs)
    if "commands" in wanted.parts:
        for path in places.FILES:
            reader.read(path)
        for folder in places.FOLDERS:
            for name in reader.names(folder).names[:40]:
                if reader.kind("%s/%s" % (folder, name)).text == "file":
                    reader.read("%s/%s" % (folder, name))
    # The files that the unit takes its environment from, secrets excepted.
    for path in _env_files(reader, wanted):
        if "secret" not in path and path not in places.SECRET_FILES:
            reader.read(path)


def _env_files(reader: LiveReader, wanted: Wanted) -> List[str]:
    texts = "\n".join(reader.run(("systemctl", "cat", "--no-pager", unit)).out for unit in wanted.units)
    return [path for path in parse_env_files(texts) if not any(sign in path for sign in "*?[")][:20]


def _containers(reader: LiveReader, wanted: Wanted) -> List[Dict[str, Any]]:
    """Containers of vLLM with what matters of their description; the whole description stands in the bundle."""
    rows: List[Dict[str, Any]] = []
    inspect: List[Tuple[str, ...]] = []
    for engine in places.ENGINES:
        ran = reader.run(places.engine_commands(engine)[0])
        for row in places.containers(ran.out) if ran.ok else []:
            rows.append({"engine": engine, **row})
            inspect.append((engine, "container", "inspect", row["id"]))
            inspect.append((engine, "image", "inspect", row["image"]))
    reader.prefetch([argv for argv in dict.fromkeys(inspect) if not argv[-1].startswith("-")])
    for row in rows:
        row.update(_described(reader.run((row["engine"], "container", "inspect", row["id"])).out))
    return rows


def _described(text: str) -> Dict[str, Any]:
    import json

    try:
        document = json.loads(text)[0]
        state, host = document.get("State") or {}, document.get("HostConfig") or {}
        return {
            "image_id": str(document.get("Image", ""))[:80], "restarts": document.get("RestartCount"), "started": str(state.get("StartedAt", ""))[:40],
            "finished": str(state.get("FinishedAt", ""))[:40], "exit_code": state.get("ExitCode"), "oom_killed": state.get("OOMKilled"),
            "pid": state.get("Pid"), "log_driver": str((host.get("LogConfig") or {}).get("Type", ""))[:40], "network": str(host.get("NetworkMode", ""))[:80],
            "ipc": str(host.get("IpcMode", ""))[:80], "shm_bytes": host.get("ShmSize"), "memory_limit": host.get("Memory"),
        }
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return {}


def _raw_processes(roots: Sequence[int], missing: Dict[str, str]) -> List[Dict[str, Any]]:
    """Raw facts of the servers and all that descend from them, servers first."""
    stats, error = in_children({"family": lambda: [stat.pid for stat in process.family(roots)]}, time.monotonic() + 2.0)["family"]
    pids = [pid for pid in stats or roots if isinstance(pid, int)]
    if error:
        missing["processes"] = "the processes of the server could not be listed: " + error
    jobs: Dict[str, Callable[[], Any]] = {str(pid): partial(process.raw, pid) for pid in pids}
    answers = in_children(jobs, time.monotonic() + 3.0)
    found = []
    for name, (value, error) in answers.items():
        if error:
            missing["process " + name] = "reading it got stuck and was abandoned" if error == "timeout" else error
        elif value:
            found.append(value)
    return found


def _secrets(raws: Sequence[Mapping[str, Any]], reader: LiveReader, wanted: Wanted) -> Iterable[str]:
    """Values that this node uses as secrets; from raw text, and for the mask alone."""
    texts = []
    for path in list(places.SECRET_FILES) + _env_files(reader, wanted):
        try:
            with open(path, encoding="utf-8", errors="replace") as source:
                texts.append(source.read(1 << 20))
        except OSError:
            continue
    return known_values(
        [raw["env"] for raw in raws if isinstance(raw.get("env"), dict)], [raw["argv"] for raw in raws if isinstance(raw.get("argv"), list)], texts)


def _process(raw: Mapping[str, Any], first: Mapping[str, Any], cleaner: Cleaner) -> Dict[str, Any]:
    """One process, cleaned; of all but the first only what differs in its environment."""
    found = {key: value for key, value in raw.items() if key not in ("argv", "env")}
    argv = raw.get("argv")
    if isinstance(argv, list):
        masked = cleaner.text("\0".join(argv)).split("\0")
        found["argv"] = masked
        found["identity"] = cleaner.value(process.identity(masked))
    environment = raw.get("env")
    if isinstance(environment, dict):
        if raw is first:
            found["env"] = cleaner.value(environment)
        else:
            found["env_differs"] = cleaner.value(process.differing(environment, first.get("env") or {}))
    return found


def _inner(roots: Sequence[int], missing: Dict[str, str]) -> Dict[str, Any]:
    """Versions inside the container of the first server, by its own file system; nothing is run in it."""
    if not roots:
        missing["versions"] = "no process of vLLM is running, so versions inside the container are those of the image's labels"
        return {}
    pid = roots[0]
    maps, error = in_children({"maps": lambda: process.mapped(pid)}, time.monotonic() + 2.0)["maps"]
    if error or not isinstance(maps, dict):
        missing["versions"] = "the memory map of process %d could not be read: %s" % (pid, error or "no answer")
        return {}
    jobs: Dict[str, Callable[[], Any]] = {"packages": lambda: process.packages(pid, maps["sites"]), "files": lambda: process.inner_files(pid)}
    answers = in_children(jobs, time.monotonic() + 3.0)
    return {"pid": pid, **maps, "packages": answers["packages"][0] or {}, "files": answers["files"][0] or {}}


def _server(raws: Sequence[Mapping[str, Any]], missing: Dict[str, str]) -> Dict[str, Any]:
    """Answers of the servers that run here, by address."""
    targets: Dict[Tuple[str, int], None] = {}
    for raw in raws:
        argv = raw.get("argv")
        if isinstance(argv, list) and ("serve" in argv[:4] or any("api_server" in word for word in argv[:6])):
            where = process.endpoint(argv)
            if where:
                targets[where] = None
    if not targets:
        missing["server"] = "no server with an HTTP address runs here"
        return {}
    jobs: Dict[str, Callable[[], Any]] = {"%s:%d" % where: partial(serving.ask, *where) for where in list(targets)[:4]}
    answers = in_children(jobs, time.monotonic() + 6.0)
    return {name: value if not error else {"error": error} for name, (value, error) in answers.items()}


def _listing(reader: LiveReader, wanted: Wanted, found: Sequence[Mapping[str, Any]]) -> List[places.Log]:
    listing: List[places.Log] = []
    if "logs" in wanted.parts:
        shows = "\n".join(reader.run(("systemctl", "show", "--no-pager", unit)).out for unit in wanted.units)
        texts = "\n".join(reader.run(("systemctl", "cat", "--no-pager", unit)).out for unit in wanted.units)
        own = places.own_containers(texts)
        stray = [(str(row["engine"]), {k: str(v) for k, v in row.items()}) for row in found if row["name"] not in own]
        files = list(dict.fromkeys(places.output_files(shows) + list(wanted.log_paths)))
        listing += places.logs(wanted.units, stray, files, wanted.journal_lines)
    if "kubernetes" in wanted.parts:
        names = reader.run(places.kubernetes_commands(wanted.namespace, wanted.selector)[4])
        listing += places.pod_logs(names.out if names.ok else "", wanted.namespace)
    return listing


def _logs(listing: Sequence[places.Log], wanted: Wanted, cleaner: Cleaner, logs: Dict[str, List[bytes]],
          spots: Dict[str, List[Redaction]]) -> List[Dict[str, Any]]:
    """Read every log in turn; one that is empty or not there is recorded, and takes no file."""
    records: List[Dict[str, Any]] = []
    until = time.monotonic() + wanted.log_seconds
    left = wanted.total_bytes
    for number, log in enumerate(listing):
        # What is telling may take all the time but a share for each that follows.
        deadline = max(time.monotonic() + 0.5, until - 0.3 * (len(listing) - number - 1))
        keeper = stream.Keeper(cleaner, wanted.log_bytes)
        outcome = stream.copy(log.path, keeper, deadline) if log.path else stream.run(log.argv, keeper, deadline)
        kept = keeper.close()
        # The end is worth more than the middle: when time ran out, it is asked for by itself.
        tail = None
        if outcome.error == "timeout" and log.tail:
            tail_keeper = stream.Keeper(cleaner, wanted.log_bytes // 4)
            ended = stream.run(log.tail, tail_keeper, time.monotonic() + 3.0)
            tail = tail_keeper.close() if not ended.error else None
        for name, part in ((log.name, kept), (log.name + "-end", tail)):
            if part is None:
                continue
            size = sum(len(data) for data in part.data)
            record: Dict[str, Any] = {
                "file": "", "kind": log.kind, "origin": log.origin, "argv": list(log.argv) or ["(file)", log.path], "rc": outcome.rc, "error": outcome.error,
                "seconds": outcome.seconds, "limit_seconds": wanted.log_seconds, "lines": part.lines, "bytes": part.bytes, "cut_bytes": part.cut_bytes,
                "cut_lines": part.cut_lines, "long_lines": part.long_lines, "starts": part.starts, "redacted": part.redacted}
            if part.lines and size > left:
                record["error"] = "too_large"
                record["cut_bytes"], record["cut_lines"] = part.bytes, part.lines
            elif part.lines or part.bytes:
                file = name + ".log.gz"
                number_of = 2
                while file in logs:
                    file = "%s-%d.log.gz" % (name, number_of)
                    number_of += 1
                logs[file] = part.data
                record["file"] = "logs/" + file
                left -= size
                if part.redactions:
                    spots["logs/" + file] = part.redactions
            records.append(record)
    return records


def _cleaned(memo: Mapping[Tuple[str, ...], Any], cleaner: Cleaner, spots: Dict[str, List[Redaction]]) -> Dict[Tuple[str, ...], Any]:
    """Everything that the readers remember, without secrets and with every text within the bounds of a snapshot."""
    clean: Dict[Tuple[str, ...], Any] = {}

    def text(value: str, label: str) -> str:
        value = cleaner.text(value)
        if len(value) > BODY_LIMIT:
            value = value[:BODY_LIMIT // 2] + "\n[evidence: %d characters were cut here]\n" % (len(value) - BODY_LIMIT) + value[-BODY_LIMIT // 2:]
        if MASK in value:
            spots.setdefault(label, []).extend(listed(value))
        # Undecodable bytes are longer in UTF-8 than they were.
        while len(value.encode("utf-8", "replace")) > snapshot.MAX_BODY:
            value = value[:len(value) // 2]
        return value

    for key, answer in memo.items():
        if isinstance(answer, Ran):
            label = " ".join(key[1:])[:200]
            clean[key] = answer._replace(out=text(answer.out, label), err=text(answer.err, label))
        elif isinstance(answer, Content):
            clean[key] = answer if answer.text is None else answer._replace(text=text(answer.text, key[1]))
        elif isinstance(answer, Probed):
            clean[key] = answer._replace(value=cleaner.value(answer.value))
        else:
            clean[key] = answer
    return clean


def _place(account: Mapping[str, Any], spots: Dict[str, List[Redaction]]) -> None:
    """List the masks in the account itself, by the part that they stand in."""
    import json

    for part in ("processes", "variables", "server", "versions"):
        text = json.dumps(account.get(part), indent=0)
        if MASK in text:
            spots["evidence.json: " + part] = listed(text)


def _boot(facts: Mapping[str, Any], reader: LiveReader) -> Dict[str, Any]:
    host = facts.get("host")
    host = host if isinstance(host, dict) else {}
    return {"id": reader.read("/proc/sys/kernel/random/boot_id").strip(), "at": host.get("booted_at") or _booted_at()}


def _booted_at() -> Optional[int]:
    try:
        with open("/proc/stat", encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith("btime "):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _identity(wanted: Wanted, facts: Mapping[str, Any], raws: Sequence[Mapping[str, Any]], cleaner: Cleaner) -> Dict[str, Any]:
    host = facts.get("host")
    host = host if isinstance(host, dict) else {}
    found: Dict[str, Any] = {"node": wanted.node, "hostname": os.uname().nodename, "addresses": host.get("addresses") or {}}
    for raw in raws:
        argv = raw.get("argv")
        if isinstance(argv, list):
            found["rank"] = cleaner.value(process.identity(argv))
            break
    return found


def _services(reader: LiveReader, wanted: Wanted, facts: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Units that serve, how often systemd restarted them, and how many starts of this boot their journal shows."""
    service = facts.get("service")
    units = service.get("units") if isinstance(service, dict) else None
    found = []
    for unit in units or []:
        starts = next((int(record["starts"].get(unit["name"], 0)) for record in records if record["origin"] == unit["name"]), None)
        found.append({**unit, "starts_this_boot": starts})
    return found


_PREFIXES = ("NCCL_", "UCX_", "VLLM_", "NVSHMEM_", "NIXL_", "GLOO_", "TORCH_", "PYTORCH_", "CUDA_", "NVIDIA_", "HF_",
             "RAY_", "DEEPEP_", "FLASHINFER_", "OMP_", "LD_", "TRITON_", "SLURM_")


def _variables(raws: Sequence[Mapping[str, Any]], cleaner: Cleaner) -> Dict[str, str]:
    """Variables of the first server that steer vLLM and what it stands on."""
    environment = raws[0].get("env") if raws else None
    if not isinstance(environment, dict):
        return {}
    wanted = {name: value for name, value in environment.items() if name.startswith(_PREFIXES)}
    clean: Dict[str, str] = cleaner.value(wanted)
    return clean


def _listed_commands(reader: LiveReader, wanted: Wanted) -> List[Dict[str, Any]]:
    """Every command with how it ended, without its output, which stands in ``commands.json``."""
    return [
        {"argv": list(key[1:]), "rc": ran.rc, "error": ran.error, "seconds": ran.seconds, "limit_seconds": wanted.timeout}
        for key, ran in sorted(reader.memo.items()) if key[0] == "run"]


def _cuts(records: Sequence[Mapping[str, Any]]) -> List[str]:
    """What was cut, one sentence each."""
    found: List[str] = []
    for record in records:
        name = record["file"] or record["origin"]
        if record["error"] == "timeout":
            found.append("%s: reading took longer than allowed; %d lines were read%s" % (name, record["lines"], "" if record["file"] else " and none kept"))
        elif record["error"] == "too_large":
            found.append("%s: left out, the bundle was full (%d lines)" % (name, record["lines"]))
        elif record["cut_lines"]:
            found.append("%s: %d of %d lines were cut from its middle" % (name, record["cut_lines"], record["lines"]))
        if record["long_lines"]:
            found.append("%s: %d lines were longer than %d KiB and were cut" % (name, record["long_lines"], stream.LINE_LIMIT >> 10))
    return found
