# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node can take its part of a plan: it reaches its peers, and its ports are free or held by the service that is replaced."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

from ..node import systemd
from ..node.processes import cgroup_path

CONNECT_S = 3.0
MOST_THREADS = 64
LISTEN = "0A"
WILDCARDS = ("0.0.0.0", "::")


class Listener(NamedTuple):
    """A TCP socket that listens: its address in the usual form, port and inode."""

    address: str
    port: int
    inode: str


def parse_listeners(text: str) -> List[Listener]:
    """Listening sockets of /proc/net/tcp or /proc/net/tcp6; lines of another form are left out."""
    found = []
    for row in text.splitlines()[1:]:
        fields = row.split()
        if len(fields) < 10 or fields[3] != LISTEN:
            continue
        raw, _colon, port = fields[1].partition(":")
        try:
            data = bytes.fromhex(raw)
            # The kernel prints the address as 32-bit words in the byte order of the machine, which is little-endian on all of ours.
            words = b"".join(data[at:at + 4][::-1] for at in range(0, len(data), 4))
            address = socket.inet_ntop(socket.AF_INET6 if len(data) == 16 else socket.AF_INET, words)
            found.append(Listener(address, int(port, 16), fields[9]))
        except (ValueError, OSError):
            continue
    return found


def same_place(listener: Listener, address: str, port: int) -> bool:
    """`listener` keeps another program from listening on `address` and `port`."""
    mapped = "::ffff:" + address
    return listener.port == port and (listener.address in WILDCARDS or address in WILDCARDS or listener.address in (address, mapped))


class Holder(NamedTuple):
    """Who listens: process, its name, and the unit or container that it belongs to (empty when there is none)."""

    pid: int
    comm: str
    unit: str
    container: str

    def __str__(self) -> str:
        what = self.unit or ("container " + self.container if self.container else "")
        return "%s (pid %d%s)" % (self.comm or "a process", self.pid, ", " + what if what else "")


def holders(inodes: Sequence[str], proc: str = "/proc") -> Dict[str, Holder]:
    """Inode → process that has the socket open; what may not be seen is left out."""
    wanted = {"socket:[%s]" % inode: inode for inode in inodes}
    found: Dict[str, Holder] = {}
    for name in os.listdir(proc) if wanted else ():
        if not name.isdigit():
            continue
        try:
            handles = os.listdir("%s/%s/fd" % (proc, name))
        except OSError:
            continue
        for handle in handles:
            try:
                target = os.readlink("%s/%s/fd/%s" % (proc, name, handle))
            except OSError:
                continue
            if target in wanted and wanted[target] not in found:
                owner = systemd.owner(cgroup_path(int(name)))
                found[wanted[target]] = Holder(int(name), _text("%s/%s/comm" % (proc, name)).strip(), owner.get("unit", ""), owner.get("container", ""))
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read(4 * 1024 * 1024)
    except OSError:
        return ""


def busy(wanted: Sequence[Mapping[str, Any]], listeners: Sequence[Listener], who: Callable[[Sequence[str]], Dict[str, Holder]],
         ours: Callable[[Holder], bool]) -> List[str]:
    """Sentences on the ports of `wanted` (``{"what", "address", "port"}``) that something else than our own service holds."""
    taken = [(item, listener) for item in wanted for listener in listeners if same_place(listener, str(item["address"]), int(item["port"]))]
    known = who([listener.inode for _item, listener in taken])
    problems = []
    for item, listener in taken:
        holder = known.get(listener.inode)
        if holder is None or not ours(holder):
            problems.append("port %d (%s) is held by %s" % (int(item["port"]), item["what"], holder or "a process that cannot be seen"))
    return list(dict.fromkeys(problems))


def connect(source: str, address: str, port: int, seconds: float = CONNECT_S) -> str:
    """Empty when `address` answers on TCP `port` from `source`, be it with a refusal; else why it does not, one phrase.

    A refusal comes from the peer itself, so nothing on the way eats the packets. A firewall that answers with a refusal of its own
    cannot be told from it.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as made:
        made.settimeout(seconds)
        try:
            if source:
                made.bind((source, 0))
        except OSError as exc:
            return "%s is not an address of this node (%s)" % (source, exc.strerror or exc)
        try:
            made.connect((address, port))
        except ConnectionRefusedError:
            return ""
        except socket.timeout:
            return "no answer in %d s" % seconds
        except OSError as exc:
            return os.strerror(exc.errno).lower() if exc.errno else str(exc)
    return ""


def unreached(source: str, peers: Sequence[Mapping[str, Any]], seconds: float = CONNECT_S) -> List[str]:
    """Sentences on the peers (``{"name", "address", "ports"}``) that `source` does not reach on one of their ports."""
    jobs = [(peer, int(port)) for peer in peers for port in peer["ports"]]
    answers: Dict[int, str] = {}

    def work(first: int) -> None:
        for at in range(first, len(jobs), MOST_THREADS):
            answers[at] = connect(source, str(jobs[at][0]["address"]), jobs[at][1], seconds)

    threads = [threading.Thread(target=work, args=(first,), daemon=True) for first in range(min(MOST_THREADS, len(jobs)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ["does not reach %s (%s) on TCP port %d: %s" % (peer["name"], peer["address"], port, answers[at])
            for at, (peer, port) in enumerate(jobs) if answers[at]]


def unresolved(names: Sequence[str], seconds: float = 5.0) -> List[str]:
    """Sentences on names of peers that this node cannot resolve, or resolves to itself."""
    answers: Dict[str, str] = {}

    def ask(name: str) -> None:
        answers[name] = _resolve(name)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    return ["%s %s" % (name, answers.get(name, "was not resolved in %d s" % seconds)) for name in names if answers.get(name, "-")]


def _resolve(name: str) -> str:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return "does not resolve"
    addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
    loopback = [address for address in addresses if address.startswith("127.") or address == "::1"]
    return "resolves to %s, which is this node" % loopback[0] if loopback else ""


def listening() -> List[Listener]:
    """All listening TCP sockets of this node."""
    return parse_listeners(_text("/proc/net/tcp")) + parse_listeners(_text("/proc/net/tcp6"))


def own(units: Sequence[str], containers: Callable[[], Sequence[str]]) -> Callable[[Holder], bool]:
    """A function that knows our own services: by unit, or by the id of a container, which are asked for only when a container holds a port."""
    def ours(holder: Holder) -> bool:
        if holder.container:
            return holder.container in {container[:12] for container in containers() if container}
        return bool(holder.unit) and holder.unit in units

    return ours
