# SPDX-License-Identifier: GPL-3.0-or-later
"""The live reader: no answer of a machine may make it wait, and none may make it raise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import probes
from ansible_collections.inferops.vllm.plugins.module_utils.node.children import in_children
from ansible_collections.inferops.vllm.plugins.module_utils.node.live import OUTPUT_LIMIT, LiveReader
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import READ_LIMIT, Content, MemoryReader, Names, Probed, Ran

TIMEOUT = 1.0
BOUND = TIMEOUT + 3.0


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """Writes an executable shell program and returns its path."""

    def write(text: str, name: str = "program", mode: int = 0o755) -> str:
        path = tmp_path / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(mode)
        return str(path)

    return write


@pytest.fixture
def clock() -> Iterator[List[float]]:
    """Seconds that the body of a test took, filled in by the caller."""
    yield [time.monotonic()]


def took(clock: List[float]) -> float:
    return time.monotonic() - clock[0]


# -- commands ------------------------------------------------------------------------------------
def test_output_and_exit_code(program: Callable[..., str]) -> None:
    ran = LiveReader(5).run([program("echo out; echo err >&2; exit 3")])
    assert ran[:4] == Ran(3, "out\n", "err\n")[:4] and not ran.ok and 0 < ran.seconds < 9
    assert "exited with 3: err" in ran.reason("it")


def test_arguments_reach_the_program_as_they_are(program: Callable[..., str]) -> None:
    assert LiveReader(5).run([program('printf "%s|" "$@"'), "a b", "$HOME", "*", ""]).out == "a b|$HOME|*||"


def test_the_locale_is_c_and_stdin_is_empty(program: Callable[..., str]) -> None:
    assert LiveReader(5).run([program('cat; echo "$LC_ALL"')]).out == "C\n"


@pytest.mark.parametrize("argv,error", [
    (["inferops-no-such-program"], "missing"), (["/nonexistent/program"], "missing"), (["/etc/passwd/program"], "missing"),
])
def test_missing_programs(argv: List[str], error: str) -> None:
    ran = LiveReader(5).run(argv)
    assert ran.rc is None and ran.error == error and "not installed" in ran.reason("it")


def test_programs_that_cannot_be_run(program: Callable[..., str], tmp_path: Path) -> None:
    assert LiveReader(5).run([program("true", mode=0o644)]).error == "denied"
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"\x7fnot a program\n\0\1\2")
    nonsense.chmod(0o755)
    assert LiveReader(5).run([str(nonsense)]).error == "not_executable"
    assert LiveReader(5).run([str(tmp_path)]).error == "denied"


def test_a_hung_command_is_bounded_and_keeps_what_it_printed(program: Callable[..., str], clock: List[float]) -> None:
    live = LiveReader(TIMEOUT)
    ran = live.run([program("echo half; sleep 600")])
    assert ran.rc is None and ran.error == "timeout" and ran.out == "half\n"
    assert TIMEOUT <= took(clock) < BOUND


def test_a_command_that_ignores_signals_is_bounded(program: Callable[..., str], clock: List[float]) -> None:
    assert LiveReader(TIMEOUT).run([program("trap '' TERM INT HUP; while :; do sleep 1; done")]).error == "timeout"
    assert took(clock) < BOUND


def test_many_hung_commands_share_one_deadline(program: Callable[..., str], clock: List[float]) -> None:
    live = LiveReader(TIMEOUT)
    hung = [[program("sleep 600", "hung%d" % i)] for i in range(12)]
    good = [program("echo fine", "good")]
    live.prefetch([*hung, good])
    assert [live.run(argv).error for argv in hung] == ["timeout"] * 12
    assert live.run(good).out == "fine\n"
    assert took(clock) < BOUND


def test_a_program_that_hung_once_is_not_asked_again(program: Callable[..., str], clock: List[float]) -> None:
    live = LiveReader(TIMEOUT)
    path = program("sleep 600")
    assert [live.run([path, str(i)]).error for i in range(20)] == ["timeout"] * 20
    assert took(clock) < BOUND


def test_hung_commands_one_after_another_stay_below_the_bound_of_the_run(program: Callable[..., str], clock: List[float]) -> None:
    live = LiveReader(TIMEOUT)
    for i in range(8):
        assert live.run([program("sleep 600", "hung%d" % i)]).error == "timeout"
    assert took(clock) < BOUND + 8 * 0.3


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_reader(program: Callable[..., str], clock: List[float]) -> None:
    ran = LiveReader(5).run([program("sleep 20 & echo done")])
    assert ran[:4] == Ran(0, "done\n", "")[:4]
    assert took(clock) < 3


def test_a_hung_command_takes_its_session_with_it(program: Callable[..., str], tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    LiveReader(TIMEOUT).run([program('sleep 600 & echo $! > "%s"; wait' % mark)])
    pid = int(mark.read_text())
    for _attempt in range(40):
        try:
            state = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the grandchild %d lives on" % pid)


def test_a_flood_is_cut(program: Callable[..., str], clock: List[float]) -> None:
    ran = LiveReader(3).run([program("head -c %d /dev/zero | tr '\\0' 'x'" % (OUTPUT_LIMIT + (1 << 20)))])
    assert ran.error in ("too_large", "timeout") and 0 < len(ran.out) <= OUTPUT_LIMIT
    assert took(clock) < 3 + 3


def test_junk_output_is_text(program: Callable[..., str]) -> None:
    assert LiveReader(5).run([program("printf '\\377\\376ok\\000x'")]).out == "\ufffd\ufffdok\0x"


def test_output_is_redacted(program: Callable[..., str]) -> None:
    path = program("echo HF_TOKEN=zq8Kt5vY2mN7pL4x; echo password: zq8Kt5vY2mN7pL4x >&2")
    live = LiveReader(5)
    live.prefetch([[path]])
    assert "zq8Kt5vY2mN7pL4x" not in repr(live.memo)
    assert "zq8Kt5vY2mN7pL4x" not in repr(LiveReader(5).run([path]))


def test_an_answer_is_asked_for_once(program: Callable[..., str], tmp_path: Path) -> None:
    path = program('echo x >> "%s/count"' % tmp_path)
    live = LiveReader(5)
    live.prefetch([[path], [path]])
    live.run([path])
    live.prefetch([[path]])
    assert (tmp_path / "count").read_text() == "x\n"


def test_no_processes_or_descriptors_are_left(program: Callable[..., str]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    live = LiveReader(5)
    live.prefetch([[program("echo %d" % i, "p%d" % i)] for i in range(8)])
    live.probe("process")
    assert len(os.listdir("/proc/self/fd")) == before


# -- files ---------------------------------------------------------------------------------------
def test_files_links_folders_and_kinds(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"text \xff\n")
    (tmp_path / "l").symlink_to("../somewhere")
    (tmp_path / "d").mkdir()
    live = LiveReader(5)
    assert live.read(str(tmp_path / "f")) == Content("text \ufffd\n")
    assert live.read(str(tmp_path / "absent")) == Content(None, "missing")
    assert live.read(str(tmp_path / "f" / "below")).error == "missing"
    assert live.read(str(tmp_path / "d")).error == "io:EISDIR"
    assert live.link(str(tmp_path / "l")) == Content("../somewhere") and live.link(str(tmp_path / "f")).error == "io:EINVAL"
    assert live.names(str(tmp_path)) == Names(["d", "f", "l"]) and live.names(str(tmp_path / "f")).error == "missing"
    assert [live.kind(str(tmp_path / n)).text for n in ("f", "d", "l")] == ["file", "dir", None]
    assert live.kind("/dev/null").text == "char" and live.exists("/dev/null") and not live.exists(str(tmp_path / "l"))
    assert live.value(str(tmp_path / "f")) == "text \ufffd" and live.value(str(tmp_path / "absent")) is None


def test_a_fifo_a_device_and_a_huge_file_do_not_hold_the_reader(tmp_path: Path, clock: List[float]) -> None:
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "sparse", "wb") as out:
        out.truncate(1 << 40)
    live = LiveReader(5)
    assert live.read(str(tmp_path / "fifo")) == Content("")
    assert live.kind(str(tmp_path / "fifo")).text == "other"
    assert len(live.read(str(tmp_path / "sparse")).text or "") == READ_LIMIT
    assert len(live.read("/dev/zero").text or "") == READ_LIMIT
    assert took(clock) < 2


def test_a_denied_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("x")
    path.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)  # root may read everything
    try:
        assert LiveReader(5).read(str(path)) == Content(None, "denied")
    finally:
        os.seteuid(was)


# -- probes and children -------------------------------------------------------------------------
def test_probes_answer() -> None:
    live = LiveReader(5)
    who = live.probe("process").value
    assert who["hostname"] == os.uname().nodename and who["uid"] == os.geteuid() and abs(who["now"] - time.time()) < 5
    space = live.probe("statvfs", "/no/such/folder/yet").value
    assert space["total_bytes"] >= space["free_bytes"] > 0
    assert live.probe("resolve", "localhost no-such-name.invalid").value["no-such-name.invalid"] == []
    assert live.probe("no-such-probe") == Probed(None, "missing")


def test_the_ssh_session_is_found_behind_sudo() -> None:
    """A parent has the variable, the asking process has not: that is what sudo leaves."""
    code = ("from ansible_collections.inferops.vllm.plugins.module_utils.node.live import LiveReader; "
            "print(LiveReader(5).probe('ssh').value['connection'])")
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "SSH_CONNECTION": "192.0.2.9 5000 192.0.2.11 22", "PYTHONPATH": str(root / "collections")}
    shell = 'env -u SSH_CONNECTION "%s" -c "%s"; true' % (sys.executable, code)
    told = subprocess.run(["/bin/sh", "-c", shell], env=env, capture_output=True, text=True, check=True)
    assert told.stdout == "192.0.2.9 5000 192.0.2.11 22\n"


def test_children_answer_fail_and_hang(clock: List[float]) -> None:
    def fails() -> Any:
        raise ValueError("of ours")

    def denied() -> Any:
        raise PermissionError(13, "no")

    jobs = {
        "good": lambda: {"a": [1, "é"]}, "fails": fails, "denied": denied, "hangs": lambda: time.sleep(600), "dies": lambda: os._exit(9),
        "odd": lambda: object(), "large": lambda: "x" * (1 << 22),
    }
    answers = in_children(jobs, time.monotonic() + TIMEOUT)
    assert answers["good"] == ({"a": [1, "é"]}, "")
    assert answers["fails"] == (None, "failed: ValueError: of ours")
    assert answers["denied"] == (None, "denied")
    assert answers["hangs"] == (None, "timeout")
    assert answers["dies"][1] == answers["odd"][1] == "failed: the reading process died"
    assert len(answers["large"][0]) == 1 << 22
    assert took(clock) < TIMEOUT + 1


def test_a_child_that_ignores_signals_is_abandoned(clock: List[float]) -> None:
    def stubborn() -> Any:
        import signal

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(600)

    assert in_children({"stubborn": stubborn}, time.monotonic() + 0.5) == {"stubborn": (None, "timeout")}
    assert took(clock) < 2


def test_a_stuck_child_does_not_hold_the_output_of_its_caller(tmp_path: Path, clock: List[float]) -> None:
    """Ansible waits for the end of a module's stdout; a child in D state would keep it open for ever."""
    code = (
        "import time, signal, os\n"
        "from ansible_collections.inferops.vllm.plugins.module_utils.node import children\n"
        # a child in uninterruptible sleep cannot be killed: make the kill do nothing
        "children.os.killpg = lambda pid, number: None\n"
        "print(children.in_children({'a': lambda: time.sleep(4)}, time.monotonic() + 0.3))\n"
    )
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": str(root / "collections")}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "timeout" in told.stdout
    assert took(clock) < 3.5


def test_a_hung_probe_is_bounded(monkeypatch: pytest.MonkeyPatch, clock: List[float]) -> None:
    monkeypatch.setitem(probes.PROBES, "hangs", lambda arg: time.sleep(600))
    assert LiveReader(TIMEOUT).probe("hangs") == Probed(None, "timeout")
    assert took(clock) < BOUND


# -- reasons and dictionaries ----------------------------------------------------------------------
@pytest.mark.parametrize("ran,words", [
    (Ran(None, error="missing"), "not installed"), (Ran(None, error="timeout"), "abandoned"), (Ran(None, error="denied"), "may not"),
    (Ran(None, error="not_recorded"), "not recorded"), (Ran(None, error="io:EIO"), "io:EIO"), (Ran(1), "exited with 1"),
    (Ran(2, "", "\n  boom \n"), "exited with 2: boom"),
])
def test_reasons(ran: Ran, words: str) -> None:
    assert words in ran.reason("tool") and ran.reason("tool").startswith("tool ")


def test_memory_reader_lists_what_it_was_given() -> None:
    files = {"/a/b/c": "1", "/a/b/d": Content(None, "io:EIO"), "/dev/nvidia0": ""}
    memory = MemoryReader(files, {"/a/l": "b"}, {("x",): "out"}, {("p", ""): 7}, ["/e/f"])
    assert memory.names("/a").names == ["b", "l"] and memory.names("/a/b").names == ["c", "d"] and memory.names("/e").names == ["f"]
    assert memory.names("/").names == ["a", "dev", "e"] and memory.names("/e/f").names == [] and memory.names("/z").error == "missing"
    assert memory.read("/a/b").error == "io:EISDIR" and memory.read("/a/b/d").error == "io:EIO" and memory.read("/a/b/c").text == "1"
    assert memory.kind("/dev/nvidia0").text == "char" and memory.kind("/a").text == "dir" and memory.link("/a/l").text == "b"
    assert memory.run(["x"]) == Ran(0, "out") and memory.run(["y"]).error == "missing" and memory.probe("p").value == 7
    assert MemoryReader(absent="not_recorded").read("/x").error == "not_recorded"


PATHS = st.text(st.sampled_from("ab/"), min_size=1, max_size=8).map(lambda text: "/" + text.strip("/"))


@given(paths=st.lists(PATHS, max_size=8), asked=PATHS)
@settings(max_examples=100, deadline=None)
def test_memory_reader_never_raises(paths: List[str], asked: str) -> None:
    memory = MemoryReader(dict.fromkeys(paths, "x"), folders=paths[:2])
    answers: Tuple[Any, ...] = (memory.read(asked), memory.names(asked), memory.link(asked), memory.kind(asked))
    json.dumps(answers)
    for path in paths:
        parent, _slash, name = path.rpartition("/")
        if path != "/" and "//" not in path:
            assert name in memory.names(parent or "/").names
