# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole course on a node that is played: look, choose, simulate, decide, apply, look again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.packages import apt
from ansible_collections.inferops.vllm.plugins.module_utils.packages.choose import Request
from ansible_collections.inferops.vllm.plugins.module_utils.packages.driver import Node, ensure
from ansible_collections.inferops.vllm.plugins.module_utils.packages.model import Ran, Refused

KERNEL = "6.1.0-57-amd64"
OFFERED = {
    "nvidia-open": ["590.48.01-1", "580.126.20-1", "580.95.05-1", "575.57.08-1"],
    "nvidia-utils": ["590.48.01-1", "580.126.20-1", "580.95.05-1", "575.57.08-1"],
    "nvidia-fabricmanager": ["580.126.20-1", "580.95.05-1"],
    "linux-headers-" + KERNEL: ["6.1.192-3"],
}


class Debian:
    """A Debian whose apt does what it is told, as far as these tests go; `also` is what it would do beyond."""

    def __init__(self, **installed: str) -> None:
        self.installed = {name.replace("_", "-"): version for name, version in installed.items()}
        self.states: dict[str, str] = {}
        self.held: list[str] = []
        self.files = {"/etc/os-release": 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12"\n', "/proc/sys/kernel/osrelease": KERNEL + "\n"}
        self.folders: dict[str, list[str]] = {"/lib/modules/%s/build" % KERNEL: ["Makefile"], "/boot": ["vmlinuz-" + KERNEL]}
        self.also: list[str] = []
        self.refuses = ""
        self.breaks: dict[str, str] = {}
        self.built = True
        self.known = False
        self.room = 1 << 40
        self.users: list[str] = []
        self.calls: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], limit: int) -> Ran:
        self.calls.append(tuple(argv))
        if argv[0] == "dpkg-query":
            return Ran(1, "".join("%s\t%s\t%s\n" % (name, version, self.states.get(name, "ii ")) for name, version in self.installed.items()))
        if argv[0] == "apt-cache":
            return Ran(0, "".join("%s | %s | http://repo ./ Packages\n" % (name, one) for name in argv[2:] for one in OFFERED.get(name, ())))
        if argv[0] == "apt-mark":
            return Ran(0, "\n".join(self.held)) if argv[1] == "showhold" else Ran(0, "")
        if argv[0] == "modinfo":
            return Ran(0 if self.built else 1, "")
        if argv[0] == "dkms":
            if argv[1] == "status":
                return Ran(0, "nvidia/580.126.20, %s, x86_64: installed\n" % KERNEL if self.known else "")
            if argv[1] == "remove":
                self.known = False
            elif not self.known:
                self.built = not self.refuses
                return Ran(0 if self.built else 10, "Error! Bad return status for module build on kernel: %s\n" % KERNEL)
            return Ran(0, "")
        if argv[0] == "dpkg":
            if "--configure" in argv:
                # What must be reinstalled stays as it is; the notes of what was under way are worked off all the same.
                self.states = {name: state for name, state in self.states.items() if state.endswith("R")}
                self.folders.pop(apt.INTERRUPTED, None)
            return Ran(0, "")
        if argv[0] == "sync":
            return Ran(0, "")
        if argv[0] == "apt-get":
            return self.apt_get(argv)
        raise AssertionError(argv)

    def apt_get(self, argv: Sequence[str]) -> Ran:
        if argv[-1] == "update":
            return Ran(100, "Err:1 http://repo ./ InRelease\nE: Failed to fetch http://repo/InRelease  Connection refused\n") if self.breaks.get(
                "update") else Ran(0, "")
        specs = list(argv[list(argv).index("install") + 1:])
        if self.folders.get(apt.INTERRUPTED) and "-s" not in argv and "--print-uris" not in argv:
            return Ran(100, "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.\n")
        if "--download-only" in argv and self.breaks.get("download"):
            return Ran(100, "E: Failed to fetch http://repo/pool/x.deb  Connection refused\n")
        if "--print-uris" in argv:
            return Ran(0, "Need to get 350 MB of archives.\nAfter this operation, 1,000 MB of additional disk space will be used.\n")
        if "-s" in argv:
            if self.refuses:
                return Ran(100, "E: %s\n" % self.refuses)
            lines = []
            for spec in specs:
                name, _sign, version = spec.rstrip("-").partition("=")
                version = version or OFFERED.get(name, ["1"])[0]
                if spec.endswith("-"):
                    lines.append("Remv %s [%s]" % (name, self.installed[name]))
                elif name in self.installed:
                    lines.append("Inst %s [%s] (%s repo [amd64])" % (name, self.installed[name], version))
                else:
                    lines.append("Inst %s (%s repo [amd64])" % (name, version))
            return Ran(0, "\n".join(lines + self.also) + "\n")
        if "--no-download" in argv:
            for spec in specs:
                name, _sign, version = spec.rstrip("-").partition("=")
                if spec.endswith("-"):
                    del self.installed[name]
                else:
                    self.installed[name] = version or OFFERED.get(name, ["1"])[0]
            self.states = dict(self.breaks) if "update" not in self.breaks and "download" not in self.breaks else {}
            return Ran(100 if self.states else 0, "dpkg: error processing package nvidia-open (--configure):\n" if self.states else "")
        return Ran(0, "")

    def write(self, path: str, text: str | None) -> None:
        self.files.pop(path, None)
        if text is not None:
            self.files[path] = text

    def ensure(self, check: bool = False, **words: Any) -> dict[str, Any]:
        node = Node(
            self.run, self.files.get, lambda path: self.folders.get(path, []), lambda path: (1, self.room), self.write, "/scratch",
            lambda: self.users, lambda line: None)
        outcome = ensure(node, Request(**words), check)
        return {"changed": outcome.changed, **outcome.result}

    def wrote(self) -> bool:
        """Whether anything was done that changes the node."""
        reading = ("-s", "--print-uris")
        return apt.PREFERENCES in self.files or any(
            (call[0] == "apt-get" and not set(reading) & set(call)) or call[:2] == ("dpkg", "--configure") or call[0] == "dkms" for call in self.calls)


def old() -> Debian:
    return Debian(nvidia_open="575.57.08-1", nvidia_utils="575.57.08-1")


def refused(node: Debian, kind: str, part: str, names: list[str] | None = None, **words: Any) -> None:
    """The request is refused for this reason, in check mode as well, and nothing but the lists of the repositories was touched."""
    for check in (True, False):
        node.calls.clear()
        with pytest.raises(Refused) as caught:
            node.ensure(check, **words)
        assert caught.value.kind == kind, str(caught.value)
        assert part in str(caught.value)
        if names is not None:
            assert caught.value.names == names
        assert not any(call[0] == "apt-get" and call[-1] != "update" and not {"-s", "--print-uris"} & set(call) for call in node.calls)
        assert apt.PREFERENCES not in node.files


def test_upgrade_and_second_run() -> None:
    node = old()
    before = node.ensure(True, components=("fabricmanager",))
    assert before["changed"] and not node.wrote(), "check mode only simulates"
    result = node.ensure(components=("fabricmanager",))
    assert result["version"] == "580.126.20" and before["transaction"] == result["transaction"] and before["diff"] == result["diff"]
    assert node.installed == dict.fromkeys(("nvidia-open", "nvidia-utils", "nvidia-fabricmanager"), "580.126.20-1")
    assert "580\\.126\\.20" in node.files[apt.PREFERENCES]
    assert "nvidia-open 575.57.08-1\n" in result["diff"]["before"] and "nvidia-fabricmanager 580.126.20-1\n" in result["diff"]["after"]
    node.calls.clear()
    assert not node.ensure(components=("fabricmanager",))["changed"]
    assert not any(call[0] in ("apt-get", "apt-cache") for call in node.calls), "nothing is asked of the repositories when nothing is missing"


def test_an_installed_version_of_the_branch_stays_unless_an_update_is_asked_for() -> None:
    node = Debian(nvidia_open="580.95.05-1", nvidia_utils="580.95.05-1")
    assert node.ensure()["version"] == "580.95.05"
    assert node.ensure(components=("fabricmanager",))["version"] == "580.95.05"
    assert node.ensure(update=True, components=("fabricmanager",))["version"] == "580.126.20"
    assert set(node.installed.values()) == {"580.126.20-1"}


def test_exact_version_and_downgrade() -> None:
    node = Debian(nvidia_open="580.126.20-1", nvidia_utils="580.126.20-1")
    refused(node, "downgrade", "driver 580.126.20 is installed, which is newer than 580.95.05", version="580.95.05")
    assert node.ensure(version="580.95.05", downgrade=True)["version"] == "580.95.05"


def test_a_newer_branch_stays_refused() -> None:
    refused(Debian(nvidia_open="590.48.01-1", nvidia_utils="590.48.01-1"), "downgrade", "590.48.01 is installed")


def test_holds() -> None:
    node = old()
    node.held = ["nvidia-utils", "bash"]
    refused(node, "held", "nvidia-utils", ["nvidia-utils"])
    assert node.ensure(unhold=True)["changed"]
    assert ("apt-mark", "hold", "nvidia-utils") in node.calls, "the hold comes back"


def test_a_hold_that_only_the_simulation_shows() -> None:
    node = old()
    node.held = ["libfoo"]
    node.also = ["Inst libfoo [1] (2 repo [amd64])"]
    refused(node, "held", "libfoo", ["libfoo"])


def test_pins() -> None:
    node = old()
    where = "/etc/apt/preferences.d/nvidia-driver-pinning-575"
    node.folders["/etc/apt/preferences.d"] = ["nvidia-driver-pinning-575", "backup.orig"]
    node.files[where] = "Package: *nvidia*\nPin: version 575.*\nPin-Priority: 1000\n"
    node.files["/etc/apt/preferences.d/backup.orig"] = "Package: *\nPin: version 1.*\nPin-Priority: 1000\n"
    refused(node, "pinned", where + " keeps nvidia-open, nvidia-utils from it", [where])
    assert node.ensure(unhold=True)["changed"]


def test_unfinished_packages() -> None:
    node = old()
    node.states = {"nvidia-utils": "iF "}
    refused(node, "broken", "nvidia-utils (half-configured)", ["nvidia-utils"])
    result = node.ensure(repair=True)
    assert result["changed"] and result["broken"] == {"nvidia-utils": "half-configured"}
    assert "nvidia-utils 575.57.08-1 half-configured" in result["diff"]["before"]
    node.states = {"nvidia-utils": "iF "}
    assert node.ensure(True, repair=True)["changed"], "at the right version, but not whole"
    assert node.ensure(repair=True)["changed"] and not node.states
    assert not node.ensure(repair=True)["changed"]


def test_a_power_cut_in_the_middle_of_an_installation() -> None:
    node = old()
    node.states = {"nvidia-utils": "iHR", "nvidia-open": "iU "}
    node.folders[apt.INTERRUPTED] = ["0001"]
    refused(node, "broken", "dpkg (was interrupted)", ["dpkg", "nvidia-open", "nvidia-utils"])
    assert node.ensure(True, repair=True)["changed"] and node.folders[apt.INTERRUPTED]
    assert node.ensure(repair=True)["changed"] and not node.states
    assert not node.ensure()["changed"]


def test_somebody_elses_unfinished_package_is_told_only() -> None:
    node = old()
    node.ensure()
    node.installed["dkms-other"] = "1-1"
    node.states = {"dkms-other": "iF "}
    result = node.ensure()
    assert not result["changed"] and "dkms-other" in result["notes"][0]


@pytest.mark.parametrize("line", [
    "Inst linux-image-6.1.0-58-amd64 (6.1.200-1 repo [amd64])", "Inst linux-image-amd64 [6.1.1] (6.1.2 repo [amd64])", "Remv linux-image-%s [1]" % KERNEL])
def test_the_kernel_is_never_changed(line: str) -> None:
    node = old()
    node.also = [line]
    refused(node, "kernel", "would change the kernel")


def test_headers_are_no_kernel() -> None:
    node = old()
    node.folders.pop("/lib/modules/%s/build" % KERNEL)
    assert node.ensure()["transaction"]["install"] == {"linux-headers-" + KERNEL: "6.1.192-3"}


def test_headers_that_nobody_offers() -> None:
    node = old()
    node.folders.pop("/lib/modules/%s/build" % KERNEL)
    node.files["/proc/sys/kernel/osrelease"] = "6.9.9-custom\n"
    refused(node, "headers", "headers of the running kernel 6.9.9-custom (linux-headers-6.9.9-custom)")
    assert node.ensure(headers=False)["changed"]


def test_what_is_no_part_of_the_driver_is_not_removed() -> None:
    node = old()
    node.also = ["Remv docker-ce [27.0]"]
    refused(node, "remove", "docker-ce", ["docker-ce"])
    node.also = ["Remv nvidia-dkms [575.57.08-1]"]
    assert node.ensure()["transaction"]["remove"] == {"nvidia-dkms": "575.57.08-1"}, "another flavour of the driver may go"


def test_room_is_looked_at_first() -> None:
    node = old()
    node.room = 1 << 30
    refused(node, "space", "not enough room for /var/cache/apt/archives, /usr, /var/lib, /boot: 1024 MB free, 3016 MB needed")


def test_gpus_in_use() -> None:
    node = old()
    node.users = ["python3 (process 7, container 0123456789ab)"]
    refused(node, "in_use", "python3 (process 7, container 0123456789ab)")
    assert node.ensure(while_used=True)["changed"]
    assert not node.ensure()["changed"], "users are no obstacle where nothing changes"


def test_repository_gone() -> None:
    node = old()
    node.breaks = {"update": "x", "download": "x"}
    with pytest.raises(Refused, match="could not be fetched, nothing was changed: E: Failed to fetch") as caught:
        node.ensure()
    assert caught.value.kind == "download" and apt.PREFERENCES not in node.files and node.installed["nvidia-open"] == "575.57.08-1"
    node.installed.clear()
    OFFERED_BEFORE = dict(OFFERED)
    OFFERED.clear()
    try:
        with pytest.raises(Refused, match="no repository offers nvidia-open; the repositories could not be read: E: Failed to fetch"):
            node.ensure()
    finally:
        OFFERED.update(OFFERED_BEFORE)


def test_resolver_refuses() -> None:
    node = old()
    node.refuses = "Unable to correct problems, you have held broken packages."
    refused(node, "resolver", "the package manager refuses: E: Unable to correct problems")


def test_installation_that_fails_names_what_is_not_whole() -> None:
    node = old()
    node.breaks = {"nvidia-open": "iF "}
    with pytest.raises(Refused, match=r"the installation failed: dpkg: error processing .* not whole now: nvidia-open \(half-configured\)") as caught:
        node.ensure()
    assert caught.value.kind == "install"


def test_modules_that_were_never_built_are_built() -> None:
    node = Debian(nvidia_open="580.126.20-1", nvidia_utils="580.126.20-1")
    node.ensure()
    node.built = False
    assert node.ensure(True)["changed"] and not node.built
    assert node.ensure()["changed"] and node.built and not node.ensure()["changed"]
    node.built, node.refuses = False, "no compiler"
    with pytest.raises(Refused, match=r"DKMS did not build the driver's modules for .* Bad return status"):
        node.ensure()


def test_modules_that_a_power_cut_left_empty_are_built_anew() -> None:
    node = Debian(nvidia_open="580.126.20-1", nvidia_utils="580.126.20-1")
    node.ensure()
    node.built, node.known, node.calls = False, True, []
    assert node.ensure()["changed"] and node.built
    same = ("-m", "nvidia", "-v", "580.126.20", "-k", KERNEL)
    assert [call for call in node.calls if call[0] == "dkms" and call[1] in ("remove", "install")] == [("dkms", "remove", *same), ("dkms", "install", *same)]
    assert node.calls.index(("sync",)) > node.calls.index(("dkms", "install", *same)), "and this time they are on the disk"
    node.built, node.known, node.refuses = False, True, "no compiler"
    with pytest.raises(Refused, match=r"DKMS did not build"):
        node.ensure()


def test_components_alone_follow_the_installed_driver() -> None:
    node = Debian(nvidia_open="580.95.05-1", nvidia_utils="580.95.05-1")
    result = node.ensure(driver=False, headers=False, components=("fabricmanager",))
    assert node.installed["nvidia-fabricmanager"] == "580.95.05-1" and result["changed"] and apt.PREFERENCES not in node.files
    node.installed["nvidia-fabricmanager"] = "580.126.20-1"
    assert node.ensure(driver=False, headers=False, downgrade=True, components=("fabricmanager",))["changed"]
    refused(Debian(), "driver", "no driver is installed by packages", driver=False, components=("fabricmanager",))


def test_fabric_manager_of_the_wrong_version_is_brought_to_the_drivers() -> None:
    node = Debian(nvidia_open="580.126.20-1", nvidia_utils="580.126.20-1", nvidia_fabricmanager="580.95.05-1")
    assert node.ensure(components=("fabricmanager",))["transaction"]["change"] == {"nvidia-fabricmanager": ["580.95.05-1", "580.126.20-1"]}


def test_pin_words() -> None:
    node = old()
    node.ensure(pin="branch")
    assert "/^([0-9]+:)?580[.-]/" in node.files[apt.PREFERENCES]
    assert node.ensure(True, pin="none")["changed"] and node.ensure(pin="none")["changed"] and apt.PREFERENCES not in node.files
    assert not node.ensure(pin="none")["changed"]


def test_unknown_systems_are_refused() -> None:
    node = Debian()
    node.files["/etc/os-release"] = 'ID=fedora\nVERSION_ID=42\nPRETTY_NAME="Fedora Linux 42"\n'
    refused(node, "family", "Fedora Linux 42 is none of the releases whose packages are known: debian12")
