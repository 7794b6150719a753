# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What failed first, where, in which phase, and what to do next: the verdict over all logs of one run.

The logs of all nodes and ranks are read once; only what matters is kept: marks of phases, and lines that a signature or a
traceback makes interesting. The rules are told in docs/DIAGNOSIS.md.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..evidence.secrets import Cleaner
from . import advisories, reader, verdict
from .gather import WORLD, Hit, Stream, base, take, wanted
from .kernel import Fault, device
from .phases import ORDER
from .placement import Comm, Facts, Found, Map, Worker, natural
from .sources import Source

MAX_RELAYS = 40
"""Relays listed in a verdict."""
HANG_SECONDS = 60.0
"""A stop that goes on longer than this after it was asked for hangs, when later lines prove that time went by."""
SKEW_SECONDS = 1.5
"""Clocks that differ by less count as equal: ranks print the shared events within a second."""

_EFFECTS = frozenset(("cuda_crash", "nccl_other", "rdma_path", "nvlink", "engine_bug", "startup_timeout", "worker_lost", "cuda_unknown", "rendezvous"))
"""Classes that a fault of the hardware or of the kernel shows itself as."""

_DEVICE_ROWS = frozenset(("xid", "sxid-fatal", "fallen-off", "gpu-lost", "rm-init-failed"))
"""Rows whose lines name a GPU or an NVSwitch."""
_LIKE_A_LOST_GPU = frozenset(("cuda_unknown", "cuda_crash", "gpu_fault", "nvlink", "nccl_other", "container_runtime", "worker_lost"))
"""Classes that an engine shows when it is started on a GPU which broke before."""
_LASTING: Mapping[str, FrozenSet[str]] = {"gpu_fault": _LIKE_A_LOST_GPU, "fabric_not_ready": frozenset(("cuda_unknown", "nvlink"))}
"""Class of what the host said long before the start and what an engine shows because of it."""
_HOST = frozenset(("container_runtime", "container_cuda_requirement", "fabric_not_ready", "gpu_fault", "oom_host", "storage"))
"""Classes that services of the node (container engine, Fabric Manager, IMEX, kubelet) log of every run of this boot."""
EARLIER = 120.0
"""Seconds before the start of the engine from which on a message of the kernel belongs to an earlier run."""
LATER = 300.0
"""Seconds after the engine's first failure from which on a message of the kernel cannot be its cause."""
APART = 6 * 3600.0
"""Seconds between the end of one log of an engine and the start of another from which on they are of different runs."""
ZONES = 15 * 3600.0
"""The same where one of two logs has no zone: clocks differ by no more."""

_BETWEEN = frozenset(("nccl_other", "nvlink", "rdma_path", "rdma_registration", "nvshmem", "rendezvous"))
"""Classes of what happens between ranks: never in device_init, although vLLM's init_device also forms the groups."""

_CLEANER = Cleaner()
_SURE = 7
_LIKELY = 4


def diagnose(
    sources: Iterable[Source], paths: Optional[Sequence[str]] = None, unready_is_failure: bool = True, facts: Optional[Mapping[str, Facts]] = None,
) -> Dict[str, Any]:
    """Read all logs of one run and say what failed first.

    Args:
        sources: logs of one run, of any number of nodes and ranks.
        paths: what the case is called in the result; the sources' names by default.
        unready_is_failure: logs that end before the engine was ready tell of a hang or a death without a word; False when the
            caller knows that the start still goes on.
        facts: what the evidence of each node knows of its GPUs and of the server's processes.

    Returns:
        The case document of docs/DIAGNOSIS.md. Never raises for what a log holds.
    """
    listed = list(sources)
    stats = reader.Stats()
    streams: List[Stream] = []
    by_name: Dict[str, Stream] = {}
    for source in listed:
        stream = Stream(len(streams), source.name, source.node, source.boot is not None)
        streams.append(stream)
        by_name.setdefault(source.name, stream)
    versions: Dict[str, str] = {}
    words: List[str] = []
    for event in reader.events(listed, wanted(), stats):
        stream = by_name.get(event.file) or streams[0]
        take(stream, event, versions, words)
    for stream in streams:
        stream.marks.sort(key=lambda mark: mark.line)
        stream.hits.sort(key=lambda hit: hit.at)
    case = _Case(streams, stats, versions, words, unready_is_failure, facts or {})
    document = case.judge()
    document["paths"] = list(paths) if paths is not None else [source.name for source in listed]
    return document


class _Case:
    """All streams of one run, and the verdict over them."""

    def __init__(
        self, streams: List[Stream], stats: reader.Stats, versions: Dict[str, str], words: List[str], unready: bool, facts: Mapping[str, Facts],
    ) -> None:
        self.streams = streams
        self.stats = stats
        self.versions = versions
        self.words = words
        self.unready = unready
        self.skew, self.skew_note = _skew(streams)
        self.map = _seats(streams, facts)
        self.why: List[str] = []
        self.against: List[str] = []
        self.collect: List[str] = []

    # Times are compared after taking each node's skew off.

    def when(self, stream: int, time: Optional[float]) -> float:
        """Corrected time, infinite when it is not known."""
        if time is None:
            return float("inf")
        return time - self.skew.get(self.streams[stream].lane, 0.0)

    def judge(self) -> Dict[str, Any]:
        """The verdict."""
        stopped = self._stop_asked()
        segments = [_segment(stream) for stream in self.streams]
        hits: List[Hit] = []
        before: List[Hit] = []
        for stream, start in zip(self.streams, segments):
            asked = self._asked_line(stream, start)
            ready = _ready_line(stream, start)
            for hit in stream.hits:
                if hit.at < start:
                    before.append(hit)
                elif (asked is not None and hit.at > asked) or (stopped is not None and _relayed(hit) and self.when(stream.index, hit.time) >= stopped - 2):
                    continue
                elif ready is not None and hit.at < ready and not _lasting(hit):
                    self._healed(hit)
                else:
                    hits.append(hit)
        ready_any = any(_ready_line(stream, start) is not None for stream, start in zip(self.streams, segments))
        if ready_any:
            # What one rank complained of before the whole engine was ready was healed as well.
            at = min(self.when(stream.index, _ready_time(stream, start)) for stream, start in zip(self.streams, segments))
            kept = []
            for hit in hits:
                if (
                    self.when(hit.stream, hit.time) < at - 1
                    and hit.clock in ("wall", "near")
                    and _ready_line(self.streams[hit.stream], 0) is None
                    and not _has_front(self.streams[hit.stream])
                    and not _lasting(hit)
                ):
                    self._healed(hit)
                else:
                    kept.append(hit)
            hits = kept
        noted = len(self.against)
        own = self._of_this_engine(hits, segments)
        if not own and not ready_any and stopped is None:
            # Nothing failed in the last start: what ended the starts before it tells more.
            del self.against[noted:]
            own = self._of_this_engine(before + hits, [0] * len(segments))
        hits = self._credible(own, ready_any)
        root = self._root(hits)
        if root is not None and (root.weight >= _LIKELY or root.weight == 3 or not ready_any):
            return self._failure(root, hits, ready_any)
        if hits:
            return self._abstain(hits, ready_any)
        hang = self._stop_hang(segments)
        if hang is not None:
            return hang
        if stopped is not None or ready_any:
            return self._healthy(stopped is not None, segments)
        return self._unready(segments)

    # -- the kernel's messages

    def _told(self, hit: Hit) -> Tuple[Optional[Fault], Optional[Found]]:
        """What a hit says of a GPU or NVSwitch, and to whom that belongs; ``(None, None)`` for a line that names none."""
        if hit.row is None or hit.row.id not in _DEVICE_ROWS:
            return None, None
        told, address = device(hit.text)
        if not address:
            return told, None
        stream = self.streams[hit.stream]
        return told, self.map.find(stream.hint or hit.node or stream.node, address, hit.pid, told is not None and told.kind == "sxid")

    def _of_this_engine(self, hits: List[Hit], segments: List[int]) -> List[Hit]:
        """Drop what kernel and host say of GPUs that no rank of this engine uses, and of the time before its start or after its failure."""
        kept: List[Hit] = []
        standing: List[Hit] = []
        failed = [
            (self.when(hit.stream, hit.time), hit.stream) for hit in hits
            if hit.process != "kernel" and hit.clock == "wall" and hit.time is not None and _fatal(hit)]
        failure = min(failed) if failed else None
        for hit in hits:
            told, found = self._told(hit)
            if told is None and found is None and not self._of_host(hit):
                kept.append(hit)
                continue
            what = verdict.fault_text(told) if told is not None else "%s: %s" % (hit.process or base(self.streams[hit.stream].name), hit.text.strip()[:160])
            if found is not None and found.state == "outside":
                self.against.append("%s, but no rank of this engine uses %s: %s" % (what, "GPU %d" % found.gpu if found.gpu >= 0 else "it", found.source))
                continue
            when = self._other_run(hit, failure, segments)
            if when:
                self.against.append("%s, but %s" % (what, when))
                if told is None or told.group not in ("application", "ignored"):
                    standing.append(hit)
                continue
            kept.append(hit)
        roots = {hit.cls for hit in kept if hit.root}
        # What needs a reset, a reboot or a service stays broken until it gets it; a process that was killed tells of its own run alone.
        kept.extend(hit for hit in standing if not roots.isdisjoint(_LASTING.get(hit.cls, ())) and not self._later(hit, failure))
        return kept

    def _of_host(self, hit: Hit) -> bool:
        """The kernel or a service of the node said it, not the engine."""
        if hit.process == "kernel":
            return True
        return hit.cls in _HOST and not self.streams[hit.stream].marks and not hit.exception and ".py:" not in hit.raw

    def _other_run(self, hit: Hit, failure: Optional[Tuple[float, int]], segments: List[int]) -> str:
        """Why a message of the kernel belongs to the time before this start or after this failure, empty when it may belong to it."""
        if hit.clock != "wall" or hit.time is None:
            if any(stream.first is not None for stream in self.streams if stream.marks):
                name = self.streams[hit.stream].lane
                self.collect.append("the time of boot of %s (uptime -s): its kernel log has %s, so whether it is of this run is not known" % (
                    name, "only seconds since boot" if hit.clock == "boot" else "no time"))
            return ""
        own = self.streams[hit.stream]
        began: List[Tuple[float, Stream]] = []
        for stream, start in zip(self.streams, segments):
            first = next((mark.time for mark in stream.marks if mark.line >= start and mark.time is not None), None)
            if first is not None:
                began.append((self.when(stream.index, first), stream))
        near = [item for item in began if item[1].host == own.host] or began
        at = self.when(hit.stream, hit.time)
        if near:
            first, stream = min(near, key=lambda item: item[0])
            if at < first - (EARLIER if own.zoned == stream.zoned else ZONES):
                return "that was %s before this start" % _span(first - at)
        later = self._later(hit, failure)
        return "that was %s after the engine had failed" % _span(later) if later else ""

    def _later(self, hit: Hit, failure: Optional[Tuple[float, int]]) -> float:
        """Seconds by which a message of the kernel comes too late to be the cause of the engine's `failure` (time, stream), 0 when it may be."""
        if hit.time is None or failure is None:
            return 0.0
        late = self.when(hit.stream, hit.time) - failure[0]
        alike = self.streams[hit.stream].zoned == self.streams[failure[1]].zoned
        return late if late > (LATER if alike else ZONES) else 0.0

    def _whose(self, found: Optional[Found]) -> str:
        """``GPU 5, rank TP5 of node1 by NCCL's line head.log:12``, as far as it is known."""
        if found is None:
            return ""
        gpu = "GPU %d" % found.gpu if found.gpu >= 0 else ""
        if found.state == "rank":
            who = "rank %s%s by %s" % (found.ranks[0], " of %s" % found.node if found.node else "", found.source)
        elif found.state == "node":
            who = "all ranks%s%s" % (" of %s" % found.node if found.node else "", " (%s)" % _listed(found.ranks) if found.ranks else "")
        else:
            who = "rank unknown: %s" % found.source
        return ", ".join(part for part in (gpu, who) if part)

    def _healed(self, hit: Hit) -> None:
        if len(self.against) < 8:
            told, _found = self._told(hit)
            what = verdict.fault_text(told) if told is not None else "%s:%d looked like %s" % (
                base(self.streams[hit.stream].name), hit.at, hit.cls or "a failure")
            self.against.append("%s, but the engine became ready after it" % what)

    def _asked_line(self, stream: Stream, start: int) -> Optional[int]:
        """Line from which on a stop that somebody asked for was going on: asked before anything had failed."""
        asked = [mark.line for mark in stream.marks if mark.marker.stage == "asked" and mark.line >= start]
        if not asked:
            return None
        for hit in stream.hits:
            if start <= hit.at < asked[0] and _fatal(hit):
                ready = _ready_line(stream, start)
                if ready is None or hit.at > ready:
                    return None
        return asked[0]

    def _stop_asked(self) -> Optional[float]:
        """When the first stop was asked for on any node, corrected; None when none was, or when it was only the end of a failure."""
        times: List[float] = []
        for stream in self.streams:
            start = _segment(stream)
            line = self._asked_line(stream, start)
            if line is not None:
                times.extend(self.when(stream.index, mark.time) for mark in stream.marks if mark.line == line)
        if not times:
            return None
        first = min(times)
        for stream in self.streams:
            if self._asked_line(stream, _segment(stream)) is None:
                for hit in stream.hits:
                    if _fatal(hit) and hit.row is not None and hit.weight >= _SURE and hit.clock == "wall" and self.when(stream.index, hit.time) < first:
                        return None
        return first

    def _credible(self, hits: List[Hit], ready: bool) -> List[Hit]:
        """Drop what the engine survived on runs that went on serving: requests fail for many reasons."""
        if not ready:
            return hits
        hits = [hit for hit in hits if not _of_request(hit)]
        if any(_fatal(hit) for hit in hits):
            return hits
        return [hit for hit in hits if hit.row is not None and hit.weight >= _LIKELY]

    def _root(self, hits: List[Hit]) -> Optional[Hit]:
        """The earliest of those that weigh most: causes before effects, then time, then place in the file."""
        roots = [hit for hit in hits if hit.root]
        for low, high in ((_SURE, 99), (_LIKELY, _SURE - 1), (3, 3), (2, 2), (0, 1)):
            tier = [hit for hit in roots if low <= hit.weight <= high]
            if tier:
                found = self._earliest(tier)
                deeper = [hit for hit in tier if hit.weight >= 9 and hit.cls in ("gpu_fault", "oom_host") and hit.row is not None]
                if found.cls in _EFFECTS and deeper and found.weight < 9:
                    # Clocks of a kernel and of an engine differ by more than a crash takes; only one of the two can be the cause.
                    found = self._earliest(deeper)
                return self._as_exception(found)
        return None

    def _as_exception(self, found: Hit) -> Hit:
        """The Python exception of the same failure, where a library logged its message just before raising it."""
        row = found.row
        if row is None or found.exception or not row.id.startswith(("store-", "gloo-mesh")):
            return found
        for hit in self.streams[found.stream].hits:
            if hit.at > found.at and hit.row is row and hit.exception:
                return hit
        return found

    def _earliest(self, hits: List[Hit]) -> Hit:
        first: Dict[int, Hit] = {}
        for hit in hits:
            if hit.stream not in first or hit.at < first[hit.stream].at:
                first[hit.stream] = hit
        kernel = [hit for hit in first.values() if hit.clock == "boot" and hit.weight >= 9]
        if kernel:
            return min(kernel, key=lambda hit: (hit.time if hit.time is not None else 0.0, hit.at))
        return min(first.values(), key=lambda hit: (self._fine(hit) if hit.clock != "boot" else float("inf"), hit.stream))

    def _fine(self, hit: Hit) -> float:
        """Corrected time of a hit; vLLM logs whole seconds, so a line of PyTorch or NCCL just before it in the same second tells the rest."""
        time = hit.time
        if time is not None and time == int(time):
            near = [other.time for other in self.streams[hit.stream].hits if other.time is not None and other.at < hit.at and time < other.time < time + 1]
            if near:
                time = near[0]
        return self.when(hit.stream, time)

    # -- phase

    def _phase(self, hit: Hit, ready: bool) -> Tuple[str, str]:
        """Phase and stage of a hit: the row's where it is certain, then the traceback's functions, then the place in the log."""
        row = hit.row
        stream = self.streams[hit.stream]
        place, stage = _place(stream, hit)
        after = _ready_line(stream, 0)
        running = place in ("api_ready", "prefill", "decode") or (ready and after is None and self._later_than_ready(hit))
        if row is not None and row.how == "start" and row.phase and not running:
            return row.phase, stage
        if row is not None and row.how == "row" and row.phase and not (running and row.phase != "shutdown" and row.role != "root"):
            return row.phase, stage if place == row.phase else ""
        if hit.stage == "config" and row is not None and row.phase:
            return row.phase, hit.stage
        if hit.phase:
            if hit.phase == "decode":
                return self._serving(hit), hit.stage
            if hit.phase == "engine_init" and running:
                return self._serving(hit), hit.stage
            if hit.phase == "device_init" and hit.cls in _BETWEEN:
                return "distributed_init", hit.stage
            return hit.phase, hit.stage
        if row is not None and row.how == "frames" and row.phase and not running:
            return row.phase, stage
        if running:
            return self._serving(hit), stage
        if not stream.marks and not running:
            elsewhere = self._elsewhere(hit)
            if elsewhere[0]:
                return elsewhere
        if not place and "NCCL" in hit.raw and row is not None:
            return row.phase or "distributed_init", ""
        if place in ("", "dependencies", "device_init") and row is not None and row.phase:
            return row.phase, stage
        if place in ("", "dependencies"):
            frames = "engine_init"
            return frames, stage
        return place, stage

    def _elsewhere(self, hit: Hit) -> Tuple[str, str]:
        """Where the engine stood, for a line of a stream that has no marks of its own (a kernel log): at its own first complaint."""
        for stream in self.streams:
            if stream.index == hit.stream or not stream.marks:
                continue
            for other in stream.hits:
                if other.phase:
                    return other.phase, other.stage
                if other.row is not None and other.row.phase:
                    return other.row.phase, ""
            return _furthest(stream, 0)
        return "", ""

    def _later_than_ready(self, hit: Hit) -> bool:
        times = [self.when(stream.index, _ready_time(stream, 0)) for stream in self.streams]
        return self.when(hit.stream, hit.time) >= min(times) if times else False

    def _serving(self, hit: Hit) -> str:
        """prefill when the first request died, else decode."""
        served = any(stream.served or stream.running > 0 or stream.rates for stream in self.streams)
        ready = any(_ready_line(stream, 0) is not None for stream in self.streams)
        if hit.cls == "worker_lost" or served or not ready:
            return "decode"
        return "prefill"

    # -- documents

    def _failure(self, root: Hit, hits: List[Hit], ready: bool) -> Dict[str, Any]:
        phase, stage = self._phase(root, ready)
        cls, cause = root.cls, root.cause
        if cls == "oom":
            cls, cause = verdict.split_oom(phase, stage, root.text)
        action, remedy = verdict.action_of(cause)
        row = root.row
        told, found = self._told(root)
        if told is not None:
            whose = self._whose(found)
            self.why.append(verdict.fault_text(told, whose))
            self.why.extend(self._before(root, hits))
            short = "GPU %d" % found.gpu if found is not None and found.gpu >= 0 else ""
            if found is not None and found.state == "rank":
                short += "%srank %s" % (", " if short else "", found.ranks[0])
            action = verdict.fault_action(told, short)
            if told.kind == "xid" and told.group in ("application", "ignored"):
                cls, cause = "cuda_crash", "cuda_illegal_memory_access"
        if row is not None and row.action:
            action = row.action
        if row is not None and row.id == "execute-timeout":
            return self._executed_too_long(root, hits, ready, phase)
        confidence = "high" if root.weight >= _SURE else "medium" if root.weight >= _LIKELY else "low"
        if cause == "unknown" or row is None:
            confidence = "low"
            self.collect.append("the engine's log with VLLM_LOGGING_LEVEL=DEBUG from its start")
        self._evidence(root, hits)
        if confidence == "high" and (self._contested(root, hits, cls) or (told is not None and root.clock != "wall" and len(self.streams) > 1)):
            confidence = "medium"
        if cause in ("nccl_unknown",):
            self.collect.append("the logs of every rank with NCCL_DEBUG=INFO")
        if cls == "rendezvous":
            self._missing_nodes()
        return self._document(True, phase, cls, cause, root, hits, confidence, action, remedy, row.id if row else "")

    def _executed_too_long(self, root: Hit, hits: List[Hit], ready: bool, phase: str) -> Dict[str, Any]:
        """A worker did not answer: with several nodes the path between them is the likelier cause, on one node the worker is gone or hangs."""
        nodes = {stream.lane for stream in self.streams}
        phase = phase if phase in ("prefill", "decode") else "decode" if ready else phase
        self._evidence(root, hits)
        if len(self.streams) > 1 and len(nodes) > 1:
            self.collect.append("link and port counters of both nodes at that time")
            action, remedy = verdict.action_of("rendezvous_unreachable")
            return self._document(
                True,
                phase,
                "rendezvous",
                "rendezvous_unreachable",
                root,
                hits,
                "medium",
                "Check the link between the nodes at that time: a call to the workers was never answered.",
                remedy,
                "execute-timeout",
            )
        self.collect.extend(("a stack dump of the hanging worker (py-spy) or the kernel log of its node", "the logs of the other nodes, if there are any"))
        action, remedy = verdict.action_of("silent_worker_death")
        return self._document(True, phase, "worker_lost", "silent_worker_death", None, hits, "low", action, remedy, "execute-timeout", best=root)

    def _abstain(self, hits: List[Hit], ready: bool) -> Dict[str, Any]:
        """Only relays, or nothing that explains itself: say what is missing."""
        hinted = [hit for hit in hits if hit.cause] or hits
        hint = self._earliest(hinted)
        waited = self._gave_up(hits, ready)
        if waited is not None:
            return waited
        cls, cause = hint.cls, hint.cause
        if cause == "":
            cls, cause = "worker_lost", "silent_worker_death"
        phase, _stage = self._phase(hint._replace(cls=cls), ready)
        if not hint.phase:
            # A relay has no frames of its own more often than not: the furthest place of its stream, or another relay's frames.
            framed = [hit.phase for hit in hits if hit.phase]
            if framed and not ready:
                phase = framed[0]
        if cls == "worker_lost" and ready:
            phase = "decode" if self._busy(hits) else "api_ready"
        silent = [stream.lane for stream in self.streams if not stream.hits]
        self.why.append("every error here follows from something that these logs do not show")
        self._wanted_logs(cls, hint, silent)
        action, remedy = verdict.action_of(cause)
        self._evidence(hint, hits)
        return self._document(True, phase, cls, cause, None, hits, "low", action, remedy, hint.row.id if hint.row else "", best=hint)

    def _gave_up(self, hits: List[Hit], ready: bool) -> Optional[Dict[str, Any]]:
        """The front end gave up on an engine that no line says to be dead."""
        if ready or any(hit.row is None or hit.row.id not in ("core-init-failed", "engine-process-failed") for hit in hits):
            return None
        hit = self._earliest(hits)
        stream = self.streams[hit.stream]
        place = _place(stream, hit)
        dead = "Failed core proc(s): {'" in hit.text
        compiling = "jit-progress" in stream.quiet or place[1] == "compile"
        quiet = hit.time is not None and hit.clock == "wall" and any(mark.time is not None and hit.time - mark.time >= 300 for mark in stream.marks[-1:])
        if dead or not (compiling or quiet):
            return None
        self.why.append("the front end gave up while the engine was still at work: no process says that it failed")
        self.collect.append("when the start began and when it was given up, and what was running then")
        action, remedy = verdict.action_of("startup_timeout")
        phase = place[0] if place[0] not in ("", "dependencies") else "engine_init"
        return self._document(True, phase, "startup_timeout", "startup_timeout", hit, hits, "low", action, remedy, "gave-up")

    def _busy(self, hits: List[Hit]) -> bool:
        """A request was being worked on when it happened."""
        if any(stream.running > 0 or stream.refused_requests for stream in self.streams):
            return True
        return any(hit.row is not None and hit.row.id in ("request-keyerror", "worker-failed-echo", "gloo-closed", "cancelled-queue") for hit in hits)

    def _wanted_logs(self, cls: str, hint: Hit, silent: List[str]) -> None:
        node = self.streams[hint.stream].lane
        if cls == "worker_lost":
            self.collect.append("kernel log and exit codes of %s around the time of line %d" % (node, hint.at))
            if hint.row is not None and hint.row.id.startswith(("gloo", "tcpstore", "watchdog", "heartbeat")):
                self.collect.append("the log of the peer that closed the connection")
        elif cls in ("nccl_other",):
            self.collect.append("the logs of every rank with NCCL_DEBUG=INFO, from their start")
        else:
            self.collect.append("the log of %s from its start, standard error included" % node)
        for name in silent[:4]:
            self.collect.append("more of %s: it says nothing of the failure" % name)
        if len(self.streams) == 1:
            self.collect.append("the logs of the other nodes and ranks, and of earlier containers")

    def _stop_hang(self, segments: List[int]) -> Optional[Dict[str, Any]]:
        """A stop that was asked for and never ended."""
        for stream, start in zip(self.streams, segments):
            asked = self._asked_line(stream, start)
            if asked is None:
                continue
            mark = next(mark for mark in stream.marks if mark.line == asked)
            early_stop = _ready_line(stream, start) is None
            done = any(one.marker.stage == "stopped" and one.line >= asked and not (early_stop and "MPClient" in one.text) for one in stream.marks)
            ready = _ready_line(stream, start)
            long = mark.time is not None and stream.last is not None and stream.last - mark.time > HANG_SECONDS
            early = ready is None and mark.marker.process == "core"
            if done or not (long or early):
                continue
            if early and not long and not any(one.marker.process == "api" for one in stream.marks):
                # A node without a front end is stopped by its parent.
                continue
            self.why.append("a stop was asked for at line %d and nothing says that it ended" % asked)
            self.collect.append("what the unit or container runtime says of the stop: exit code, time, signal")
            action, remedy = verdict.action_of("shutdown_hang")
            return self._document(True, "shutdown", "shutdown_hang", "shutdown_hang", None, [], "medium" if long else "low", action, remedy, "")
        return None

    def _healthy(self, stopped: bool, segments: List[int]) -> Dict[str, Any]:
        phase = "shutdown" if stopped else "api_ready"
        running = max([stream.running for stream in self.streams] + [-1])
        if not stopped and running > 0:
            phase = "decode"
        zero = self._no_hits()
        if zero is not None and not stopped:
            return zero
        self.why.append("the engine became ready and nothing failed after it" if not stopped else "the run was stopped from outside and nothing failed before")
        quiet = sorted({name for stream in self.streams for name in stream.quiet})
        if quiet:
            self.against.append("harmless lines: %s" % ", ".join(quiet[:6]))
        if stopped:
            return self._document(False, phase, "none", "", None, [], "high", "Nothing to do.", "", "")
        # A process that is killed says nothing: an end while serving looks the same whether the server lives or is gone.
        self.against.append("the log ends while the engine serves; if the process is gone, these logs do not say why")
        return self._document(
            False,
            phase,
            "none",
            "",
            None,
            [],
            "medium",
            "Nothing to do if the server still answers; if it is gone, fetch its exit code and the kernel log.",
            "",
            "",
        )

    def _no_hits(self) -> Optional[Dict[str, Any]]:
        """Prefix cache without a hit under real load, from the counters that the engine logs itself."""
        for stream in self.streams:
            loaded = [rate for prompt, rate in stream.rates if prompt >= 50]
            if len(loaded) >= 2 and not any(rate for _prompt, rate in stream.rates) and stream.rate_line is not None:
                self.why.append("%d reports under load, all with a prefix-cache hit rate of 0.0%%" % len(loaded))
                self.collect.extend(
                    ("two request bodies that should share a prefix", "vllm:cache_config_info and the prefix-cache counters of the running server")
                )
                action, remedy = verdict.action_of("prefix_cache_ineffective")
                return self._document(True, "prefill", "prefix_cache", "prefix_cache_ineffective", stream.rate_line, [], "low", action, remedy, "prefix-zero")
        return None

    def _unready(self, segments: List[int]) -> Dict[str, Any]:
        """No failure, no readiness: a hang, a death without a word, a start that goes on, or no log of vLLM at all."""
        if not any(stream.marks for stream in self.streams):
            return self._no_log()
        far = [(_furthest(stream, start), stream) for stream, start in zip(self.streams, segments) if stream.marks]
        behind_place, behind = min(far, key=lambda item: ORDER[item[0][0]])
        _ahead_place, ahead = max(far, key=lambda item: ORDER[item[0][0]])
        phase, stage = behind_place
        node = behind.lane
        lagging = self._lagging(segments)
        whom = node
        if lagging is not None:
            phase, stage, whom, sentence = lagging
            self.why.append(sentence)
        elif behind is not ahead and ORDER[behind_place[0]] < ORDER[_ahead_place[0]]:
            self.why.append("%s never reached %s, which %s reached" % (node, _ahead_place[0], ahead.lane))
        cls, cause, text = self._hang_class(phase, stage)
        if phase in ("dependencies", "device_init") and stage in ("headless",):
            phase = "distributed_init"
        note = next((stream.silent_note for stream in self.streams if stream.silent_note), "")
        self.why.append("the log ends in %s (%s) without an error" % (phase, stage))
        if note:
            self.why.append("noted in the log: %s" % note)
        self.collect.append("what %s did after its last line: GPU load, py-spy dump, and the rest of its log" % whom)
        if len(self.streams) == 1:
            self.collect.append("the logs of the other nodes, if there are any")
        action, remedy = verdict.action_of(cause)
        if not self.unready:
            return self._document(False, phase, "none", "", None, [], "low", "Wait: the start goes on.", "", "")
        sure = bool(note) or lagging is not None or stage in ("headless", "nvls_tuning")
        if lagging is not None and phase != "weights_load":
            text = "Dump the stack of %s while it hangs (py-spy dump), before anything is started again: the others wait for it." % whom
        return self._document(True, phase, cls, cause, None, [], "medium" if sure else "low", text or action, remedy, "hang-%s" % stage)

    def _lagging(self, segments: List[int]) -> Optional[Tuple[str, str, str, str]]:
        """Ranks that stopped before what most others reached: phase, stage, name with pid and GPU, and a sentence; None when there are none.

        Most, not some: many lines are printed by the first rank of a node alone.
        """
        last = ORDER["engine_init"]
        placed: List[Tuple[int, str, str, str, str]] = []
        for stream, start in zip(self.streams, segments):
            far: Dict[int, Tuple[int, str, str, str]] = {}
            for mark in stream.marks:
                if mark.line >= start and mark.pid and mark.marker.phase != "shutdown" and (mark.rank or mark.process.startswith("Worker")):
                    order = min(ORDER[mark.marker.phase], last)
                    name = stream.names.get(mark.pid) or mark.rank or mark.process
                    if mark.pid not in far or order >= far[mark.pid][0]:
                        far[mark.pid] = (order, mark.marker.phase, mark.marker.stage, name)
            for pid, (order, phase, stage, name) in far.items():
                seat = self.map.seats.get((stream.host, self.map.pids.get((stream.host, pid), "")))
                gpu = ", GPU %d" % seat[1] if seat is not None and seat[1] >= 0 else ""
                placed.append((order, phase, stage, "rank %s of %s" % (name, stream.lane), "rank %s of %s (pid %d%s)" % (name, stream.lane, pid, gpu)))
        if len(placed) < 3:
            return None
        most = sorted((item[0] for item in placed), reverse=True)[(len(placed) - 1) // 2]
        behind = [item for item in placed if item[0] < most]
        if not behind:
            return None
        first = min(behind, key=lambda item: item[0])
        names = _listed([item[3] for item in behind])
        reached = next(item[1] for item in placed if item[0] == most)
        return first[1], first[2], first[4], "%s never reached %s, which %d of %d ranks reached" % (
            names, reached, sum(1 for item in placed if item[0] >= most), len(placed))

    def _hang_class(self, phase: str, stage: str) -> Tuple[str, str, str]:
        if stage == "nvls_tuning":
            return "nccl_other", "nccl_version_bug", ""
        if stage in ("nccl", "nccl_ready"):
            return "nccl_other", "nccl_unknown", ""
        if phase == "distributed_init":
            return "rendezvous", "rendezvous_missing_rank", ""
        if phase == "weights_load" and stage == "read" and any(stream.multi for stream in self.streams):
            return (
                "rendezvous",
                "gloo_ifname",
                "Set VLLM_HOST_IP on every node to an address that the others reach: after the weights the ranks could not find each other.",
            )
        if phase == "weights_load":
            return "startup_timeout", "slow_weights", ""
        return "startup_timeout", "startup_timeout", ""

    def _no_log(self) -> Dict[str, Any]:
        refused = ["%s %s" % item for item in self.stats.refused]
        self.why.append("no line of vLLM, of its libraries or of the kernel was recognised" if self.stats.lines else "there is nothing to read")
        self.why.extend(refused[:5])
        self.collect.append("the engine's own log from its start, standard error included")
        return self._document(
            False, "", "none", "", None, [], "low", "Give the log of the vLLM server (and the kernel log of its node): these hold nothing of it.", "", ""
        )

    def _missing_nodes(self) -> None:
        if len(self.streams) == 1:
            self.collect.append("the log of the node on the other side")

    def _contested(self, root: Hit, hits: List[Hit], cls: str) -> bool:
        """Another certain cause of another class stands earlier, in a stream whose clock cannot be compared."""
        return any(
            hit.weight >= _SURE
            and hit.cls != root.cls
            and hit.stream != root.stream
            and (hit.clock == "boot" or root.clock == "boot" or hit.time is None or root.time is None)
            for hit in hits
        )

    def _evidence(self, root: Hit, hits: List[Hit]) -> None:
        relays = sum(1 for hit in hits if hit.row is not None and hit.row.role == "relay")
        if root.row is not None:
            self.why.append("signature %s at %s:%d" % (root.row.id, base(self.streams[root.stream].name), root.at))
        else:
            self.why.append("no signature knows it; it is the first exception or error at %s:%d" % (base(self.streams[root.stream].name), root.at))
        if root.phase:
            self.why.append("the traceback ran through %s" % root.stage)
        if relays:
            self.why.append("%d lines only relay it" % relays)
        others = [hit for hit in hits if hit is not root and hit.root and hit.weight >= _LIKELY and hit.cls != root.cls]
        for hit in others[:3]:
            self.against.append("%s at %s:%d" % (hit.row.id if hit.row else hit.cls, base(self.streams[hit.stream].name), hit.at))
        for hit in hits:
            told, found = self._told(hit) if hit is not root else (None, None)
            if told is not None:
                self.why.append(verdict.fault_text(told, self._whose(found)))

    def _before(self, root: Hit, hits: List[Hit]) -> List[str]:
        """How long before the engine's own first complaint the kernel spoke."""
        if root.clock != "wall" or root.time is None:
            return []
        own = [
            (self.when(hit.stream, hit.time), hit) for hit in hits
            if hit.process != "kernel" and hit.clock == "wall" and hit.time is not None
            and self.streams[hit.stream].zoned == self.streams[root.stream].zoned]
        if not own:
            return []
        time, hit = min(own, key=lambda item: (item[0], item[1].at))
        gap = time - self.when(root.stream, root.time)
        return ["%s %s the engine's first complaint (%s:%d)" % (
            _span(abs(gap)), "before" if gap >= 0 else "after", base(self.streams[hit.stream].name), hit.at)]

    def _document(
        self,
        failed: bool,
        phase: str,
        cls: str,
        cause: str,
        root: Optional[Hit],
        hits: List[Hit],
        confidence: str,
        action: str,
        remedy: str,
        signature: str,
        best: Optional[Hit] = None,
    ) -> Dict[str, Any]:
        if not failed and self.stats.refused and confidence == "high":
            confidence = "medium"
        mixed = _mixed(self.streams)
        if mixed:
            self.against.insert(0, "these logs may be of different runs: %s; name them one by one, or set diagnose_each=true" % mixed)
            confidence = "medium" if confidence == "high" else confidence
        for name, sentence in self.stats.refused[:5]:
            if failed:
                self.collect.append("%s could not be read: it %s" % (name, sentence))
        anchor = root or best
        node = self.streams[anchor.stream].node if anchor is not None else ""
        step, call = verdict.sentence(action, remedy, node)
        relays = [hit for hit in hits if hit is not root and not (hit.root and hit.weight >= _SURE)]
        described = "\n".join(self.words[:60] + [hit.text for hit in hits[:20]])
        if any("allocator-retry" in stream.quiet for stream in self.streams):
            described += "\nmemory allocation failed with OOM"
        return {
            "failed": failed,
            "phase": phase or None,
            "class": cls,
            "first_failure": self._place_of(root) if root is not None else None,
            "relays": [self._place_of(hit) for hit in relays[:MAX_RELAYS]],
            "confidence": confidence,
            "next_action": step,
            "collect": _unique(self.collect),
            "why": _unique(self.why)[:100],
            "against": _unique(self.against)[:100],
            "signature": signature,
            "cause": cause,
            "remedy": call or None,
            "best_visible": self._place_of(best) if best is not None else None,
            "advisories": advisories.matching(cls, self.versions, described),
            "versions": dict(self.versions),
            "timeline": self._timeline(root, relays),
            "lines": self.stats.lines,
            "bytes": self.stats.bytes,
            "skew": self.skew_note,
            "refused": [{"path": name, "why": sentence} for name, sentence in self.stats.refused[:50]],
        }

    def _place_of(self, hit: Optional[Hit]) -> Optional[Dict[str, Any]]:
        if hit is None:
            return None
        stream = self.streams[hit.stream]
        place: Dict[str, Any] = {
            # A log that comes from elsewhere was cleaned by nobody.
            "text": _CLEANER.text(hit.raw),
            "file": stream.name,
            "line": hit.at,
            "node": hit.node or stream.node,
            "rank": hit.rank,
            "time": hit.time if hit.clock in ("wall", "near") else None,
            "process": hit.process,
        }
        _told, found = self._told(hit)
        if found is not None:
            place["address"] = device(hit.text)[1]
            place["node"] = place["node"] or found.node
            place["rank_source"] = found.source
            if found.gpu >= 0:
                place["gpu"] = found.gpu
            if found.state == "rank":
                place["rank"] = found.ranks[0]
            elif found.state == "node":
                place["ranks"] = list(found.ranks)
        return place

    def _timeline(self, root: Optional[Hit], relays: List[Hit]) -> Dict[str, Any]:
        lanes: Dict[Tuple[str, str], Dict[str, Any]] = {}
        for stream in self.streams:
            ranks = {mark.pid: mark.rank for mark in stream.marks if mark.pid and mark.rank and not mark.rank.isdigit()}
            for mark in stream.marks:
                if mark.time is None:
                    continue
                # A worker is called by its pid until it knows its rank.
                name = ranks.get(mark.pid, mark.rank) or mark.process
                lane = lanes.setdefault((stream.lane, name), {"node": stream.lane, "rank": name, "phases": [], "reached": ""})
                time = self.when(stream.index, mark.time)
                bands = lane["phases"]
                if bands and bands[-1]["phase"] == mark.marker.phase:
                    bands[-1]["end"] = max(bands[-1]["end"], time)
                else:
                    if bands:
                        bands[-1]["end"] = max(bands[-1]["end"], time)
                    bands.append({"phase": mark.marker.phase, "start": time, "end": time})
                if not lane["reached"] or ORDER[mark.marker.phase] > ORDER[lane["reached"]]:
                    lane["reached"] = mark.marker.phase
        names = {name: number for number, name in enumerate(natural(lane["rank"] for lane in lanes.values()))}
        shown = sorted(lanes.values(), key=lambda lane: (lane["node"], names[lane["rank"]]))[:256]
        return {"lanes": shown, "first": self._place_of(root), "relays": [self._place_of(hit) for hit in relays[:MAX_RELAYS]]}


def _seats(streams: Sequence[Stream], facts: Mapping[str, Facts]) -> Map:
    """Ranks and their GPUs, by what all logs and the evidence say."""
    comms: List[Tuple[str, Comm]] = []
    workers: List[Worker] = []
    counts: Dict[str, int] = {}
    names: Dict[Tuple[str, int], str] = {}
    for stream in streams:
        hosts = {one.node for one in stream.comms if one.node}
        # One node wrote this stream, whatever its containers call themselves; or many did, and NCCL names each.
        shared = len(hosts) > 1
        by_pid = {one.pid: one.node for one in stream.comms if one.pid}
        for one in stream.comms:
            comms.append((base(stream.name), one if shared else one._replace(node=stream.host)))
        for item in stream.workers:
            node = (item.node or by_pid.get(item.pid, "")) if shared else stream.host
            if node:
                workers.append(item._replace(node=node))
        for name, count in stream.local_ranks.items():
            node = name if shared else stream.host
            counts[node] = max(count, counts.get(node, 0))
        for pid, rank in stream.names.items():
            node = by_pid.get(pid, "") if shared else stream.host
            if node:
                names[(node, pid)] = rank
    return Map(comms, workers, counts, facts, names, {stream.host for stream in streams if stream.vague})


def _mixed(streams: Sequence[Stream]) -> str:
    """Why the engines' logs cannot be of one run, empty when they can: other versions of vLLM, or times that lie hours apart."""
    engines = [stream for stream in streams if stream.marks]
    told = {stream.version: base(stream.name) for stream in reversed(engines) if stream.version}
    if len(told) > 1:
        return "vLLM " + ", ".join("%s in %s" % item for item in sorted(told.items())[:3])
    timed = sorted((stream.first, stream.last, base(stream.name)) for stream in engines if stream.first is not None and stream.last is not None)
    ended, before = float("-inf"), ""
    for first, last, name in timed:
        if before and first - ended > APART + (ZONES if len({stream.zoned for stream in engines}) > 1 else 0.0):
            return "%s begins %s after %s ended" % (name, _span(first - ended), before)
        if last > ended:
            ended, before = last, name
    return ""


def _span(seconds: float) -> str:
    """``5 s``, ``12 min``, ``3 h``, ``2 d``: a rough length of time."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return "%d %s" % (int(seconds / size), unit)
    return "%d s" % int(seconds)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else "%s to %s, %d in all" % (names[0], names[-1], len(names))


# -- small questions about one stream


def _of_request(hit: Hit) -> bool:
    """An error of unknown meaning in a front end that says nothing of the engine's end: a request failed."""
    return hit.row is None and not hit.relay and hit.process.lower().startswith("apiserver")


def _relayed(hit: Hit) -> bool:
    return hit.row is not None and hit.row.role == "relay"


def _fatal(hit: Hit) -> bool:
    """The engine or a rank ends with it (or the machine under it is at fault): not a request, not a passing warning."""
    if hit.row is None:
        return hit.weight >= 3
    if hit.row.role == "relay":
        return hit.row.id not in ("tcpstore-frame", "asynchronous-note", "no-platform", "backoff")
    return hit.weight >= _LIKELY


def _lasting(hit: Hit) -> bool:
    """Stays true although the engine became ready."""
    return hit.row is not None and (hit.row.id in ("gdr-disabled", "nixl-disconnect") or (hit.weight >= 9 and hit.clock == "boot"))


def _segment(stream: Stream) -> int:
    """Line at which the last start in this stream begins: a banner after the one before had ended or failed."""
    start, pid = 0, -1
    ended = False
    for mark in stream.marks:
        if mark.marker.stage in ("banner", "arguments") and mark.marker.stage == "banner":
            if pid >= 0 and (ended or any(_fatal(hit) and start <= hit.at < mark.line for hit in stream.hits)):
                start, ended = mark.line, False
            pid = mark.pid
        elif mark.marker.stage in ("asked", "stopped"):
            ended = True
    return start


def _ready_line(stream: Stream, start: int) -> Optional[int]:
    """Line at which the API became ready in the start that begins at line `start`."""
    for mark in stream.marks:
        if mark.line >= start and mark.marker.phase in ("api_ready", "decode") and mark.marker.stage in ("ready", "listening", "serving", "served"):
            return mark.line
    return None


def _has_front(stream: Stream) -> bool:
    """A server of its own wrote it: that another one became ready mends nothing here."""
    return any(mark.process.lower().startswith("apiserver") or mark.marker.needle == "vLLM API server version" for mark in stream.marks)


def _ready_time(stream: Stream, start: int) -> Optional[float]:
    line = _ready_line(stream, start)
    return next((mark.time for mark in stream.marks if mark.line == line), None) if line is not None else None


def _place(stream: Stream, hit: Hit) -> Tuple[str, str]:
    """Phase and stage where the log stood at a hit: of the same process if it left a mark that is not behind the stream, else of the stream."""
    start = 0
    phase = stage = ""
    for mark in stream.marks:
        if mark.line >= hit.at:
            break
        if mark.marker.stage == "banner":
            phase = stage = ""
        if mark.marker.phase == "shutdown":
            continue
        if not phase or ORDER[mark.marker.phase] >= ORDER[phase]:
            phase, stage = mark.marker.phase, mark.marker.stage
    if phase in ("api_ready", "prefill", "decode"):
        return phase, stage
    own_phase = own_stage = ""
    if hit.pid:
        for mark in stream.marks:
            if start <= mark.line < hit.at and mark.pid == hit.pid and mark.marker.phase != "shutdown":
                if not own_phase or ORDER[mark.marker.phase] >= ORDER[own_phase]:
                    own_phase, own_stage = mark.marker.phase, mark.marker.stage
    if own_phase and ORDER[own_phase] >= ORDER["weights_load"]:
        return own_phase, own_stage
    return phase, stage


def _furthest(stream: Stream, start: int) -> Tuple[str, str]:
    place = ("", "")
    for mark in stream.marks:
        if mark.line >= start and mark.marker.phase != "shutdown" and (not place[0] or ORDER[mark.marker.phase] >= ORDER[place[0]]):
            place = (mark.marker.phase, mark.marker.stage)
    return place if place[0] else ("container_init", "")


def _skew(streams: List[Stream]) -> Tuple[Dict[str, float], Dict[str, Any]]:
    """Seconds by which each node's clock is ahead of the first one's, from events that all ranks print together.

    All ranks of a group print their place in the world at once, when the last one has joined.
    """
    lanes: Dict[str, List[Tuple[str, float]]] = {}
    for stream in streams:
        for mark in stream.marks:
            found = WORLD.search(mark.text) if mark.marker.stage == "ranks" else None
            if found and mark.time is not None:
                lanes.setdefault(stream.lane, []).append((found.group(2), mark.time))
    note: Dict[str, Any] = {"known": False, "offsets": {}}
    names = {stream.lane for stream in streams}
    if len(names) < 2:
        note["why"] = "one node"
        return {}, note
    if len(lanes) < 2:
        note["why"] = "no event that two nodes share: times of different nodes are compared as they stand"
        return {}, note
    base = next(iter(lanes))
    offsets: Dict[str, float] = {}
    worlds = dict(lanes[base])
    for name, seen in lanes.items():
        shared = [time - worlds[world] for world, time in seen if world in worlds and int(world) > 1]
        if shared:
            middle = sorted(shared)[len(shared) // 2]
            offsets[name] = middle if abs(middle) > SKEW_SECONDS else 0.0
    note["known"] = len(offsets) > 1
    note["offsets"] = {name: round(value, 3) for name, value in offsets.items()}
    note["why"] = (
        "from the moment at which the ranks learned their places in the group"
        if note["known"]
        else "no event that two nodes share: times of different nodes are compared as they stand"
    )
    return offsets, note


def _unique(texts: Iterable[str]) -> List[str]:
    return list(dict.fromkeys(texts))


__all__ = ["diagnose", "wanted"]
