# SPDX-License-Identifier: GPL-3.0-or-later
"""PYTHONPATH=collections:. python -m tests.benchmarks.diagnosis [INFERGUARD]: how often the diagnosis is right, beside naive ones, and how fast it is.

The logs are those of ../shared: real runs of vLLM 0.32 with a known truth, and cases composed from public reports. `INFERGUARD` is
the path of that program, where it is installed; it is asked the same on the real runs.
"""

from __future__ import annotations

import collections
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
ABSTAINS = ("no", "n/a")


class Example(NamedTuple):
    """One log (or the logs of one run) with its truth."""

    name: str
    kind: str
    files: Tuple[pathlib.Path, ...]
    failed: bool
    phase: str
    cls: str
    text: str
    file: str

    @property
    def half(self) -> str:
        """Half to which it belongs: rules were written for the one and first tried on the other."""
        return "developed" if int(hashlib.sha256(self.name.encode()).hexdigest()[:2], 16) % 2 == 0 else "held out"


class Answer(NamedTuple):
    """What a diagnosis says, in the words of the truth."""

    failed: bool
    phase: str
    cls: str
    text: str
    file: str
    sure: bool


def examples() -> List[Example]:
    """All labelled logs that are at hand, none when ../shared is not there."""
    found: List[Example] = []
    index = SHARED / "cases" / "index.jsonl"
    if index.exists():
        for line in index.read_text().splitlines():
            row = json.loads(line)
            files = tuple(SHARED / "cases" / name for name in [row["log_file"]] + row.get("extra_logs", []))
            abstain = row.get("root_in_log") == "no"
            found.append(
                Example(
                    row["id"],
                    "case",
                    files,
                    True,
                    row["phase"],
                    row["class"],
                    "" if abstain else row.get("first_error") or "",
                    row.get("first_error_file") or "",
                )
            )
    truth = SHARED / "logs" / "truth.jsonl"
    if truth.exists():
        for line in truth.read_text().splitlines():
            row = json.loads(line)
            files = tuple(SHARED / "logs" / name for name in row["files"])
            found.append(
                Example(row["name"], "run", files, row["failed"], row["phase"], row["class"], row["first_failure"] or "", row["first_failure_file"] or "")
            )
    return found


def ours(example: Example) -> Answer:
    """The collection's own verdict."""
    from ansible_collections.inferops.vllm.plugins.module_utils.logs.diagnose import diagnose
    from ansible_collections.inferops.vllm.plugins.module_utils.logs.sources import Source

    verdict = diagnose([Source.from_path(str(path)) for path in example.files])
    first = verdict["first_failure"] or {}
    return Answer(verdict["failed"], verdict["phase"] or "", verdict["class"], first.get("text", ""), first.get("file", ""), verdict["confidence"] == "high")


_ERROR = re.compile(r"\bERROR\b|\w(?:Error|Exception)(?::|$)")


def _naive(example: Example, last: bool) -> Answer:
    """The first or the last line that looks like an error is the failure; phase and class come from the signatures for that line alone."""
    from ansible_collections.inferops.vllm.plugins.module_utils.logs import verdict

    lines = [(path, line) for path in example.files for line in path.read_text(errors="replace").splitlines() if _ERROR.search(line)]
    if not lines:
        return Answer(False, "", "none", "", "", True)
    path, line = lines[-1 if last else 0]
    row = verdict.match(line)
    return Answer(True, row.phase if row else "", row.cls if row else "", line, str(path), True)


def first_error(example: Example) -> Answer:
    """Naive: the first error line."""
    return _naive(example, False)


def last_error(example: Example) -> Answer:
    """Naive: the last error line."""
    return _naive(example, True)


def right_line(example: Example, answer: Answer) -> bool:
    """The line named is the first failure; where there is none to name, none is."""
    if not example.text:
        return not answer.text
    return example.text in answer.text and answer.file.endswith(example.file)


class Score(NamedTuple):
    """Counts over some examples."""

    count: int
    phase: int
    cls: int
    line: int
    false_alarms: int
    healthy: int
    missed: int
    sure_but_wrong: int
    confusion: Dict[Tuple[str, str], int]


def score(chosen: List[Example], judge: Callable[[Example], Answer]) -> Score:
    """Judge `chosen` and count."""
    phase = cls = line = alarms = healthy = missed = sure = 0
    confusion: Dict[Tuple[str, str], int] = collections.Counter()
    for example in chosen:
        answer = judge(example)
        phase += answer.phase == example.phase
        cls += answer.cls == example.cls
        line += right_line(example, answer)
        healthy += not example.failed
        alarms += answer.failed and not example.failed
        missed += example.failed and not answer.failed
        # A certain answer where the truth is that the log does not hold the cause.
        sure += answer.sure and example.failed and not example.text and (bool(answer.text) or answer.cls != example.cls)
        if answer.cls != example.cls:
            confusion[(example.cls, answer.cls)] += 1
    return Score(len(chosen), phase, cls, line, alarms, healthy, missed, sure, dict(confusion))


def rows() -> Iterator[str]:
    """The table of accuracies."""
    everything = examples()
    yield "%-14s %-22s %5s %7s %7s %7s %12s %7s %16s" % ("diagnosis", "logs", "count", "phase", "class", "line", "false alarms", "missed", "sure but wrong")
    for name, judge in (("ours", ours), ("first ERROR", first_error), ("last ERROR", last_error)):
        for title, chosen in (
            ("all", everything),
            ("real runs", [one for one in everything if one.kind == "run"]),
            ("composed cases", [one for one in everything if one.kind == "case"]),
            ("half developed on", [one for one in everything if one.half == "developed"]),
            ("half held out", [one for one in everything if one.half == "held out"]),
        ):
            found = score(chosen, judge)
            share = [100.0 * value / max(found.count, 1) for value in (found.phase, found.cls, found.line)]
            yield "%-14s %-22s %5d %6.1f%% %6.1f%% %6.1f%% %6d of %-3d %7d %16d" % (
                name,
                title,
                found.count,
                share[0],
                share[1],
                share[2],
                found.false_alarms,
                found.healthy,
                found.missed,
                found.sure_but_wrong,
            )
    yield ""
    yield "classes taken for another (truth -> ours):"
    for (truth, said), count in sorted(score(everything, ours).confusion.items()):
        yield "  %-20s -> %-20s %d" % (truth, said, count)


def large_log(target: pathlib.Path, size: int) -> None:
    """A log of about `size` bytes: a run that served long and then failed."""
    source = sorted((SHARED / "logs").glob("mn_tp2_kill9_remote_worker_midrequest.head.log"))
    data = source[0].read_bytes()
    cut = data.rindex(b"\n", 0, data.index(b"ERROR")) + 1
    served = [
        b'INFO:     10.0.0.%d:%d - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' % (number % 250, 1024 + number % 60000)
        for number in range(max(0, size - len(data)) // 68)
    ]
    target.write_bytes(data[:cut] + b"".join(served) + data[cut:])


def speed() -> Iterator[str]:
    """Time and memory of a verdict in a process of its own, Python's start included."""
    code = (
        "import sys, resource; sys.path.insert(0, sys.argv[2])\n"
        "from ansible_collections.inferops.vllm.plugins.module_utils.logs import diagnose, sources\n"
        "d = diagnose.diagnose([sources.Source.from_path(sys.argv[1])]); print(d['class'], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "large.log"
        large_log(path, 2_000_000)
        collections_root = next(
            (str(parent) for parent in (ROOT / "collections", *ROOT.parents) if (parent / "ansible_collections" / "inferops").exists()), str(ROOT)
        )
        best, said = 1e9, ""
        for _try in range(5):
            started = time.monotonic()
            done = subprocess.run([sys.executable, "-S", "-c", code, str(path), collections_root], capture_output=True, text=True, check=False)
            best, said = min(best, time.monotonic() - started), done.stdout.strip() or done.stderr[-300:]
        yield "verdict on %d bytes, Python start included: %.2f s (limit 1 s), class and peak MiB: %s" % (path.stat().st_size, best, said)


def inferguard(program: str) -> Iterator[str]:
    """The same real runs through inferguard: how often it names a cause, and what it says of healthy runs."""
    runs = [one for one in examples() if one.kind == "run"]
    named = alarms = failed = healthy = crashed = 0
    said: Dict[str, int] = collections.Counter()
    for example in runs:
        answer = _ask(program, example)
        if answer is None:
            crashed += 1
            continue
        failed += example.failed
        healthy += not example.failed
        # "Not enough evidence" and "server crash" name no cause; the second said of a healthy run is an alarm.
        named += example.failed and answer not in ("", "not_enough_evidence", "server_crash")
        alarms += not example.failed and answer not in ("", "not_enough_evidence")
        said[("failure: " if example.failed else "healthy: ") + (answer or "nothing")] += 1
    yield "inferguard on the real runs: names a cause for %d of %d failures, a failure for %d of %d healthy runs and stops; no answer for %d" % (
        named,
        failed,
        alarms,
        healthy,
        crashed,
    )
    for word, count in sorted(said.items(), key=lambda item: (-item[1], item[0])):
        yield "  %3d %s" % (count, word)


def _ask(program: str, example: Example) -> Optional[str]:
    """Its top class for one run, empty when it names none; each log as the output of a job's node, as it wants them."""
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(example.files):
            target = pathlib.Path(folder) / "job" / ("node%d" % number) / "launch" / "stdout.log"
            target.parent.mkdir(parents=True)
            target.write_bytes(path.read_bytes())
        out = pathlib.Path(folder) / "out"
        done = subprocess.run(
            [program, "classify-failures", "--job-dir", str(target.parents[2]), "--output-dir", str(out), "--json-only"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        try:
            document = json.loads((out / "failure_classification.json").read_text())
        except (OSError, ValueError):
            print(done.stderr[-200:])
            return None
    top = str(document.get("top_class", "none"))
    return "" if top == "none" else top


def main() -> int:
    """Print everything that can be measured here."""
    if not examples():
        print("no labelled logs beside this checkout")
        return 1
    for line in rows():
        print(line)
    for line in speed():
        print(line)
    if len(sys.argv) > 1:
        for line in inferguard(sys.argv[1]):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
