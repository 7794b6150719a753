# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the section ``host`` (docs/FACTS.md): operating system, kernel, memory, limits, time, names, packages."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import systemd
from .reader import READ_LIMIT, Content, Ran, Reader
from .text import drop_empty, integer, table

VIRT = ("systemd-detect-virt",)
TIME = ("timedatectl", "show")
CHRONY = ("chronyc", "-n", "tracking")
ADDRESSES = ("ip", "-j", "addr")
MANAGER = ("systemctl", "show", "--no-pager", "--property=DefaultLimitMEMLOCK,DefaultLimitNOFILE")
ENGINES = systemd.show_command(("docker.service", "containerd.service"), ("LimitMEMLOCK",))
PACKAGE_PATTERNS = (
    "nvidia*", "libnvidia*", "cuda-drivers*", "cuda-compat*", "nvlsm*", "docker*", "containerd*", "podman*", "mlnx*", "doca*",
    "rdma-core*", "linux-image*", "linux-modules-nvidia*", "kmod-nvidia*", "kernel", "kernel-core", "kernel-default", "kernel-64k-core",
)
DPKG = ("dpkg-query", "-W", "-f=${Package}\\t${Version}\\t${db:Status-Abbrev}\\n") + PACKAGE_PATTERNS
AUDIT = ("dpkg", "--audit")
RPM = ("rpm", "-qa", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}\\t%{ARCH}\\n") + PACKAGE_PATTERNS
RESTARTING = ("needs-restarting", "-r")
VERSION_LOCKS = (
    "/etc/dnf/plugins/versionlock.list", "/etc/yum/pluginconf.d/versionlock.list", "/etc/dnf/versionlock.toml", "/etc/zypp/locks",
)
ZCAT = ("zcat", "/proc/config.gz")

CONFIG_OPTIONS = (
    "PCI_P2PDMA", "DMABUF_MOVE_NOTIFY", "DMA_SHARED_BUFFER", "ZONE_DEVICE", "INFINIBAND", "INFINIBAND_USER_MEM", "MLX5_INFINIBAND",
)
CONTAINERS = ("docker", "podman", "lxc", "lxc-libvirt", "systemd-nspawn", "container-other", "rkt", "wsl", "proot", "pouch", "openvz")
MAX_PACKAGES = 60
MAX_INTERFACES = 64

_MODULE = re.compile(
    r"^(?:nvidia\w*|nouveau|gdrdrv|nv_peer_mem|mlx5_\w+|mlx_compat|ib_\w+|rdma_\w+|irdma|bnxt_re|efa|knem|xpmem|i40iw|overlay|amdgpu)$")
# In the order in which they are kept when there are too many.
_PACKAGE_GROUPS = tuple(re.compile(pattern) for pattern in (
    r"^(?:nvidia-container|libnvidia-container|nvidia-(?:open|driver|fabric|imex|dkms|kernel|headless|utils|compute|persistenced)|"
    r"cuda-drivers|nvlsm|libnvidia-nscq)",
    r"^(?:docker|containerd|podman$)",
    r"^(?:mlnx|doca|rdma-core$)",
    r"^(?:linux-image-|linux-modules-nvidia-|kernel)",
    r"^(?:nvidia|libnvidia|kmod-nvidia|cuda-compat)",
))
# https://developer.arm.com/documentation/102375 (main ID register): Neoverse parts that carry NVIDIA GPUs.
_ARM_PARTS = {
    ("0x41", "0xd4f"): "Neoverse-V2", ("0x41", "0xd40"): "Neoverse-V1", ("0x41", "0xd0c"): "Neoverse-N1", ("0x41", "0xd49"): "Neoverse-N2",
}
_REBOOT = re.compile(r"(?i)reboot is required|reboot should be|core libraries or services have been updated")
_UNATTENDED = re.compile(r"^\s*APT::Periodic::Unattended-Upgrade\s+\"(\w*)\"\s*;", re.MULTILINE)
_VIRTUAL_LINK = re.compile(r"^(?:lo$|veth|cali|lxc|cni|nodelocaldns|kube-ipvs)")
_DPKG_STATES = (
    ("only half configured", "half-configured"), ("only half installed", "half-installed"), ("unpacked but not yet configured", "unpacked"),
    ("in a mess", "must be reinstalled"), ("triggers", "triggers-pending"), ("trigger processing", "triggers-pending"),
)


def commands(options: Any) -> List[Sequence[str]]:
    """Commands known beforehand; those of other distributions than the node's are simply not there."""
    return [VIRT, TIME, CHRONY, ADDRESSES, MANAGER, ENGINES, DPKG, AUDIT, RPM, RESTARTING]


def collect(reader: Reader, options: Any) -> Dict[str, Any]:
    """Facts of this section; never raises for what the node answers."""
    unknown: Dict[str, str] = {}
    who = reader.probe("process").value
    who = who if isinstance(who, dict) else {}
    machine = reader.probe("machine").value
    machine = machine if isinstance(machine, dict) else {}
    kernel = str(who.get("kernel") or "") or None
    facts: Dict[str, Any] = {"hostname": who.get("hostname"), "os": _os(reader, unknown), "arch": who.get("arch"), "kernel": kernel}
    if kernel is None:
        unknown["kernel"] = "the reading process could not say what it runs on"
    facts["cmdline"] = (reader.value("/proc/cmdline") or "")[:1000] or None
    facts["virt"] = _virt(reader, bool(machine.get("hypervisor")), unknown)
    facts["boot_id"] = reader.value("/proc/sys/kernel/random/boot_id")
    facts["booted_at"] = machine.get("booted_at") or None
    for part in ("cmdline", "boot_id", "booted_at"):
        if facts[part] is None:
            unknown[part] = "/proc could not be read"
    facts["kernel_config"] = _kernel_config(reader, kernel or "", unknown)
    facts["modules"] = _modules(reader, unknown)
    facts["packages"] = packages = _packages(reader, kernel or "", unknown)
    facts["pending_reboot"] = _pending_reboot(reader, kernel or "", str(facts["virt"] or ""), packages, unknown)
    facts["time"] = _time(reader, unknown)
    meminfo = parse_meminfo(reader.read("/proc/meminfo").text or "")
    facts["memory"], facts["hugepages"] = meminfo["memory"], meminfo["hugepages"]
    if not meminfo["memory"]:
        unknown["memory"] = unknown["hugepages"] = why(reader.read("/proc/meminfo"), "/proc/meminfo")
        facts["memory"] = facts["hugepages"] = None
    facts["shm"] = _shm(reader, unknown)
    facts["limits"] = _limits(reader, unknown)
    nodes = count_list(reader.value("/sys/devices/system/node/online"))
    facts["numa"] = {"nodes": nodes} if nodes else None
    if not nodes:
        unknown["numa"] = why(reader.read("/sys/devices/system/node/online"), "/sys/devices/system/node/online")
    facts["cpus"] = count_list(reader.value("/sys/devices/system/cpu/online")) or integer(who.get("cpus")) or None
    if facts["cpus"] is None:
        unknown["cpus"] = why(reader.read("/sys/devices/system/cpu/online"), "/sys/devices/system/cpu/online")
    facts["cpu_model"] = cpu_model(machine)
    if facts["cpu_model"] is None:
        unknown["cpu_model"] = "/proc/cpuinfo does not name the processor"
    facts["governor"] = _governor(reader, unknown)
    facts["names"] = _names(reader, options, unknown)
    facts["addresses"], facts["links"] = _interfaces(reader, unknown)
    facts["stuck"] = _stuck(reader, unknown)
    facts["unattended_upgrades"] = _unattended(reader, str(packages.get("manager") or ""), unknown)
    facts["unknown"] = unknown
    return facts


def why(content: Content, path: str) -> str:
    """One phrase: why the file `path` gave no usable answer."""
    words = {
        "missing": "is not there", "denied": "may not be read by this user", "timeout": "could not be read in time",
        "not_recorded": "was not recorded in this snapshot", "": "holds nothing that could be understood",
    }
    return "%s %s" % (path, words.get(content.error, "could not be read: " + content.error))


# -- operating system and kernel ---------------------------------------------------------------
def _os(reader: Reader, unknown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        found = table(reader.read(path).text or "")
        if found.get("ID"):
            return {"id": found["ID"][:40], "version_id": found.get("VERSION_ID", "")[:40], "pretty": found.get("PRETTY_NAME", "")[:120]}
    unknown["os"] = why(reader.read("/etc/os-release"), "/etc/os-release")
    return None


def _virt(reader: Reader, hypervisor: bool, unknown: Dict[str, str]) -> Optional[str]:
    ran = reader.run(VIRT)
    word = ran.out.strip()
    # It exits with 1 when it prints "none".
    if ran.rc in (0, 1) and re.match(r"^[a-z][a-z0-9-]{1,30}$", word):
        return word
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if reader.exists(path):
            return name
    if hypervisor:
        return "vm-other"
    unknown["virt"] = ran.reason("systemd-detect-virt")
    return None


def parse_config(text: str, whole: bool = True) -> Dict[str, str]:
    """``{option: y | m | n}`` for CONFIG_OPTIONS from a kernel configuration; `whole` says that a missing option is not set."""
    found: Dict[str, str] = {}
    for match in re.finditer(r"^CONFIG_(\w+)=([ym])\s*$", text, re.MULTILINE):
        if match.group(1) in CONFIG_OPTIONS:
            found[match.group(1)] = match.group(2)
    for match in re.finditer(r"^# CONFIG_(\w+) is not set\s*$", text, re.MULTILINE):
        if match.group(1) in CONFIG_OPTIONS:
            found.setdefault(match.group(1), "n")
    if whole and re.search(r"^CONFIG_\w+=", text, re.MULTILINE):
        for option in CONFIG_OPTIONS:
            found.setdefault(option, "n")
    return {option: found[option] for option in CONFIG_OPTIONS if option in found}


def _kernel_config(reader: Reader, kernel: str, unknown: Dict[str, str]) -> Optional[Dict[str, str]]:
    paths = ("/boot/config-" + kernel, "/lib/modules/%s/config" % kernel) if kernel else ()
    for path in paths:
        text = reader.read(path).text
        if text:
            found = parse_config(text, len(text) < READ_LIMIT)
            if found:
                return found
    if reader.exists("/proc/config.gz"):
        ran = reader.run(ZCAT)
        found = parse_config(ran.out) if ran.ok else {}
        if found:
            return found
    unknown["kernel_config"] = "no configuration of kernel %s in /boot, /lib/modules or /proc/config.gz" % (kernel or "?")
    return None


def parse_modules(text: str) -> Dict[str, Dict[str, Any]]:
    """``{name: {refs, used_by}}`` of the modules that matter, from the text of /proc/modules."""
    found: Dict[str, Dict[str, Any]] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4 or not _MODULE.match(fields[0]):
            continue
        users = [] if fields[3] == "-" else [name for name in fields[3].split(",") if name and not name.startswith("[")]
        found[fields[0]] = {"refs": integer(fields[2]) or 0, "used_by": users[:20]}
    return found


def _modules(reader: Reader, unknown: Dict[str, str]) -> Optional[Dict[str, Dict[str, Any]]]:
    content = reader.read("/proc/modules")
    if content.text is None:
        unknown["modules"] = why(content, "/proc/modules")
        return None
    return parse_modules(content.text)


def cpu_model(machine: Mapping[str, Any]) -> Optional[str]:
    """Name of the processor from the ``machine`` probe; Arm gives numbers, of which the known ones are named."""
    named = str(machine.get("model_name") or "")[:100]
    if named:
        return named
    implementer, part = str(machine.get("implementer") or "")[:12], str(machine.get("part") or "")[:12]
    return _ARM_PARTS.get((implementer, part)) or ("Arm implementer %s part %s" % (implementer, part) if part else None)


def count_list(text: Optional[str]) -> Optional[int]:
    """Number of items in a kernel list such as ``0-3,8``; None when it is none."""
    total = 0
    for part in (text or "").strip().split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 20:
            return None
        total += int(last) - int(first) + 1 if dash else 1
    return total if total > 0 else None


def _governor(reader: Reader, unknown: Dict[str, str]) -> Optional[str]:
    content = reader.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if content.text is None and content.error != "missing":
        unknown["governor"] = why(content, "scaling_governor")
    return content.strip()[:40] or None


# -- packages and reboots -----------------------------------------------------------------------
def _wanted(name: str, kernel: str) -> int:
    """Rank of a package that is to be told (0 first), -1 for others."""
    if name.startswith("linux-image") and name != "linux-image-" + kernel:
        return -1
    if name.startswith("linux-modules-nvidia") and not (kernel and name.endswith(kernel)):
        return -1
    return next((rank for rank, pattern in enumerate(_PACKAGE_GROUPS) if pattern.search(name)), -1)


def parse_dpkg(text: str, kernel: str) -> Tuple[Dict[str, str], List[str], List[str]]:
    """Installed versions, broken packages (``name: state``) and held ones, from DPKG's output (name, version, state a line)."""
    versions: Dict[str, str] = {}
    broken: List[str] = []
    held: List[str] = []
    states = {"U": "unpacked", "F": "half-configured", "H": "half-installed", "W": "triggers-awaited", "t": "triggers-pending"}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) != 3 or len(fields[2]) < 2:
            continue
        name, version, state = fields[0][:80], fields[1][:60], fields[2]
        if state[0] == "h":
            held.append(name)
        if state[1] in states or state[2:3] == "R":
            broken.append("%s: %s" % (name, states.get(state[1], "must be reinstalled")))
        elif state[1] == "i" and _wanted(name, kernel) >= 0:
            versions[name] = version
    return versions, broken, held


def parse_audit(text: str) -> List[str]:
    """``name: state`` of every package that ``dpkg --audit`` complains of, but for missing check sums and lists of files."""
    found: List[str] = []
    state = ""
    for line in text.splitlines():
        if line.startswith(" ") and line.strip():
            if state:
                found.append("%s: %s" % (line.split()[0][:80], state))
        elif not line.strip():
            state = ""
        elif not state or line.startswith("The following packages"):
            # The phrase that names the state may stand on the second line of the heading.
            state = next((word for phrase, word in _DPKG_STATES if phrase in line), "")
    return list(dict.fromkeys(found))


def parse_rpm(text: str, kernel: str) -> Dict[str, str]:
    """Installed versions from RPM's output (name, version, architecture a line); of kernels only the running one."""
    versions: Dict[str, str] = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) != 3 or _wanted(fields[0], kernel) < 0:
            continue
        name, version, arch = fields[0][:80], fields[1][:60], fields[2]
        if name.startswith("kernel") and not kernel.startswith(version) and "%s.%s" % (version, arch) != kernel:
            continue
        versions[name] = version
    return versions


def parse_versionlock(text: str) -> List[str]:
    """Package names that dnf's version lock (list or TOML) or zypper's locks hold."""
    found: List[str] = []
    for line in text.splitlines():
        line = line.strip()
        # dnf's TOML, or zypper.
        locked = re.match(r"^name\s*=\s*[\"']([^\"']+)[\"']$", line) or re.match(r"^solvable_name:\s*(\S+)$", line)
        if locked:
            found.append(locked.group(1))
        elif line and line[0] not in "#!" and not re.search(r"[=\[\]{}\s]|:\s", line):
            # [epoch:]name-version-release.arch, or name-epoch:version-release.arch
            named = re.match(r"^(?:\d+:)?(.+?)-(?:\d+:)?[^-]+-[^-]+$", line)
            found.append(named.group(1) if named else line)
    return [name[:80] for name in dict.fromkeys(found)]


def _packages(reader: Reader, kernel: str, unknown: Dict[str, str]) -> Dict[str, Any]:
    release = table(reader.read("/etc/os-release").text or "")
    family = " %s %s " % (release.get("ID", ""), release.get("ID_LIKE", ""))
    dpkg, rpm = reader.run(DPKG), reader.run(RPM)
    # dpkg-query exits with 1 when one pattern of several matches nothing.
    has_dpkg, has_rpm = dpkg.rc in (0, 1) and not dpkg.error, rpm.ok
    debian = re.search(r" (?:debian|ubuntu) ", family)
    if has_dpkg and (debian or not has_rpm):
        versions, broken, held = parse_dpkg(dpkg.out, kernel)
        audit = reader.run(AUDIT)
        if audit.rc in (0, 1) and not audit.error:
            known = {entry.split(":", 1)[0] for entry in broken}
            broken.extend(entry for entry in parse_audit(audit.out) if entry.split(":", 1)[0] not in known)
        manager: Optional[str] = "dpkg"
    elif has_rpm and not debian:
        versions, broken, held = parse_rpm(rpm.out, kernel), [], []
        for path in VERSION_LOCKS:
            held.extend(parse_versionlock(reader.read(path).text or ""))
        manager = "rpm"
    else:
        first: Ran = dpkg if debian or dpkg.error not in ("missing", "not_recorded") else rpm
        unknown["packages"] = first.reason("dpkg-query" if first is dpkg else "rpm")
        return {"manager": None, "versions": {}, "broken": [], "held": []}
    ranked = sorted(versions, key=lambda name: (_wanted(name, kernel), name))[:MAX_PACKAGES]
    return {
        "manager": manager, "versions": {name: versions[name] for name in sorted(ranked)},
        "broken": broken[:20], "held": sorted(set(held))[:20],
    }


def newer_kernel(running: str, installed: Iterable[str]) -> Optional[str]:
    """The newest of `installed` when it is newer than `running` and of the same flavour (``-generic``, ``-nvidia-64k``), else None."""
    def parts(release: str) -> Tuple[Tuple[int, ...], str]:
        """Number and flavour; el9_4, el9_6 and fc40 are releases of the distribution and belong to neither."""
        bare = re.sub(r"\.(?:el|fc|amzn)\d\w*", "", release)
        number = re.match(r"[0-9.~-]*", bare)
        digits = number.group() if number else ""
        return tuple(int(part[:9]) for part in re.findall(r"\d+", digits)), re.sub(r"[0-9.~]+", "#", bare[len(digits):].lstrip("."))

    number, flavour = parts(running)
    same = [release for release in installed if parts(release)[1] == flavour]
    newest = max(same, key=lambda release: parts(release)[0], default=running)
    return newest if parts(newest)[0] > number else None


def _pending_reboot(
    reader: Reader, kernel: str, virt: str, packages: Mapping[str, Any], unknown: Dict[str, str],
) -> Optional[Dict[str, Any]]:
    reasons: List[str] = []
    for path in ("/run/reboot-required", "/run/reboot-needed"):
        if reader.exists(path):
            names = list(dict.fromkeys((reader.value("/run/reboot-required.pkgs") or "").split()))
            causes = ", ".join(names[:6]) + (" and more" if len(names) > 6 else "")
            reasons.append(path + " exists" + (" (for %s)" % causes if causes else ""))
    images = [name[len("vmlinuz-"):] for name in reader.names("/boot").names if name.startswith("vmlinuz-") and "rescue" not in name]
    if not images:
        folder = "/lib/modules"
        images = [name for name in reader.names(folder).names if reader.exists("%s/%s/vmlinuz" % (folder, name))]
    # Without the running kernel among them, these are not the kernels that this machine boots.
    seen = bool(kernel) and kernel in images
    newer = newer_kernel(kernel, images) if seen else None
    if newer:
        reasons.append("kernel %s is installed, %s is running" % (newer, kernel))
    restarting = reader.run(RESTARTING)
    if restarting.rc == 1 and _REBOOT.search(restarting.out):
        reasons.append("needs-restarting says that a reboot is required")
    if not reasons and virt in CONTAINERS:
        unknown["pending_reboot"] = "this is a container (%s): what the host would boot cannot be seen from here" % virt
        return None
    if not reasons and not seen and not packages.get("manager"):
        unknown["pending_reboot"] = "neither a package manager nor the installed kernels could be looked at"
        return None
    return {"required": bool(reasons), "reasons": reasons}


def _unattended(reader: Reader, manager: str, unknown: Dict[str, str]) -> Optional[bool]:
    # The configuration tells even where the package manager did not answer.
    folders = (("dpkg", "/etc/apt"), ("rpm", "/etc/dnf"), ("rpm", "/etc/zypp"))
    manager = manager or next((name for name, path in folders if reader.exists(path)), "")
    if manager == "dpkg":
        if not reader.exists("/usr/bin/unattended-upgrade"):
            return False
        on = False
        for name in reader.names("/etc/apt/apt.conf.d").names[:60]:
            if "." in name and not name.endswith(".conf"):
                continue
            for value in _UNATTENDED.findall(reader.read("/etc/apt/apt.conf.d/" + name).text or ""):
                on = value not in ("", "0", "never")
        return on
    if manager == "rpm":
        timers = reader.names("/etc/systemd/system/timers.target.wants").names
        if any(name in timers for name in ("dnf-automatic-install.timer", "os-update.timer", "transactional-update.timer")):
            return True
        apply = table(reader.read("/etc/dnf/automatic.conf").text or "").get("apply_updates", "no").lower() in ("yes", "true", "1")
        return apply and any(name in timers for name in ("dnf-automatic.timer", "dnf5-automatic.timer"))
    unknown["unattended_upgrades"] = "no package manager that is known here"
    return None


# -- time, memory, limits -----------------------------------------------------------------------
def _time(reader: Reader, unknown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    shown, chrony = reader.run(TIME), reader.run(CHRONY)
    leap = table(chrony.out, ":").get("Leap status", "") if chrony.ok else ""
    told = table(shown.out).get("NTPSynchronized", "") if shown.ok else ""
    source: Optional[str] = None
    if leap:
        source = "chrony"
    elif reader.exists("/run/systemd/timesync/synchronized"):
        source = "systemd-timesyncd"
    elif reader.exists("/run/ntpd.pid") or reader.exists("/run/ntp/ntpd.pid"):
        source = "ntpd"
    if told in ("yes", "no"):
        return {"synchronized": told == "yes" or leap == "Normal", "source": source}
    if leap:
        return {"synchronized": leap == "Normal", "source": source}
    unknown["time"] = shown.reason("timedatectl") + "; " + chrony.reason("chronyc")
    return None


def parse_meminfo(text: str) -> Dict[str, Dict[str, int]]:
    """``{"memory": {…bytes}, "hugepages": {…}}`` from /proc/meminfo; a table is empty when its values are not there."""
    found = {key: integer(value) for key, value in table(text, ":").items()}
    memory: Dict[str, int] = {}
    keys = (
        ("total_bytes", "MemTotal"), ("available_bytes", "MemAvailable"),
        ("swap_total_bytes", "SwapTotal"), ("swap_free_bytes", "SwapFree"),
    )
    for name, key in keys:
        value = found.get(key)
        if value is not None:
            memory[name] = value * 1024
    pages: Dict[str, int] = {}
    for name, key, unit in (("total", "HugePages_Total", 1), ("free", "HugePages_Free", 1), ("size_bytes", "Hugepagesize", 1024)):
        value = found.get(key)
        if value is not None:
            pages[name] = value * unit
    return {"memory": memory if "total_bytes" in memory else {}, "hugepages": pages}


def _shm(reader: Reader, unknown: Dict[str, str]) -> Optional[Dict[str, int]]:
    kind = reader.kind("/dev/shm")
    if kind.text != "dir":
        unknown["shm"] = why(kind, "/dev/shm")
        return None
    probed = reader.probe("statvfs", "/dev/shm")
    value = probed.value if isinstance(probed.value, dict) else {}
    if not isinstance(value.get("total_bytes"), int):
        unknown["shm"] = "the size of /dev/shm could not be read: " + (probed.error or "no answer")
        return None
    return {"total_bytes": value["total_bytes"], "free_bytes": int(value.get("free_bytes") or 0)}


Limit = Union[str, int, None]


def limit(text: Optional[str], unit: int = 1) -> Limit:
    """A limit as ``"unlimited"`` or a number (times `unit`); knows systemd's suffixes and ``soft:hard``; None when it is none."""
    word = (text or "").strip().split(":")[-1].strip().lower()
    if word in ("infinity", "unlimited", "-1", "18446744073709551615"):
        return "unlimited"
    found = re.match(r"^(\d{1,18})([kmgt]?)b?$", word)
    if not found:
        return None
    return int(found.group(1)) * unit * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}[found.group(2)]


def lowest(values: Iterable[Limit]) -> Limit:
    """The smallest of the limits that are known, None when none is."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if isinstance(value, int)]
    return min(numbers) if numbers else "unlimited" if known else None


def parse_pam(text: str) -> Dict[str, Dict[str, Limit]]:
    """``{domain: {"soft": …, "hard": …}}`` for memlock from a limits.conf, in bytes (the file says KiB); ``-`` sets both."""
    found: Dict[str, Dict[str, Limit]] = {}
    for line in text.splitlines():
        fields = line.split("#", 1)[0].split()
        if len(fields) != 4 or fields[2] != "memlock" or fields[1] not in ("soft", "hard", "-"):
            continue
        value = limit(fields[3], 1024)
        if value is not None:
            for kind in ("soft", "hard") if fields[1] == "-" else (fields[1],):
                found.setdefault(fields[0], {})[kind] = value
    return found


def parse_proc_limits(text: str, name: str) -> Tuple[Limit, Limit]:
    """Soft and hard value of the line `name` of a /proc/PID/limits."""
    for line in text.splitlines():
        if line.startswith(name):
            fields = line[len(name):].split()
            if len(fields) >= 2:
                return limit(fields[0]), limit(fields[1])
    return None, None


def _manager_files(reader: Reader) -> List[str]:
    """Paths of systemd's system.conf and its drop-ins, in the order in which they take effect."""
    base = next((path for path in ("/etc/systemd/system.conf", "/usr/lib/systemd/system.conf") if reader.exists(path)), "")
    by_name: Dict[str, str] = {}
    for folder in ("/usr/lib/systemd/system.conf.d", "/run/systemd/system.conf.d", "/etc/systemd/system.conf.d"):
        for name in reader.names(folder).names:
            if name.endswith(".conf"):
                by_name[name] = folder + "/" + name
    return ([base] if base else []) + [by_name[name] for name in sorted(by_name)]


def _limits(reader: Reader, unknown: Dict[str, str]) -> Optional[Dict[str, Any]]:
    shown = reader.run(MANAGER)
    told = table(shown.out) if shown.ok else {}
    memlock, nofile = limit(told.get("DefaultLimitMEMLOCK")), limit(told.get("DefaultLimitNOFILE"))
    source = "systemctl show --property=DefaultLimitMEMLOCK"
    if memlock is None:
        for path in _manager_files(reader):
            settings = table(reader.read(path).text or "")
            found = limit(settings.get("DefaultLimitMEMLOCK"))
            if found is not None:
                memlock, source = found, path
            nofile = limit(settings.get("DefaultLimitNOFILE")) or nofile
    if memlock is None:
        text = reader.read("/proc/1/limits").text or ""
        memlock, source = lowest(parse_proc_limits(text, "Max locked memory")), "/proc/1/limits"
        nofile = nofile if nofile is not None else parse_proc_limits(text, "Max open files")[1]
    pam: Dict[str, Dict[str, Limit]] = {}
    folder = "/etc/security/limits.d"
    for path in ["/etc/security/limits.conf"] + [folder + "/" + name for name in reader.names(folder).names if name.endswith(".conf")]:
        for domain, values in parse_pam(reader.read(path).text or "").items():
            pam.setdefault(domain, {}).update(values)
    chosen = pam.get("*") or pam.get("root") or {}
    facts = {
        "memlock": memlock, "memlock_from": source if memlock is not None else None, "nofile": nofile,
        "docker_memlock": _engine_memlock(reader), "pam_memlock": lowest(chosen.values()),
    }
    if memlock is None:
        unknown["limits"] = shown.reason("systemctl show") + "; " + why(reader.read("/proc/1/limits"), "/proc/1/limits")
    return facts


def _engine_memlock(reader: Reader) -> Limit:
    """What a container gets: the daemon's default, else the lower of what its services get."""
    try:
        daemon = json.loads(reader.read("/etc/docker/daemon.json").text or "{}")
        default = daemon["default-ulimits"]["memlock"]
        found = lowest([limit(str(default.get("Soft"))), limit(str(default.get("Hard")))])
        if found is not None:
            return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    shown = reader.run(ENGINES)
    units = systemd.blocks(shown.out) if shown.ok else []
    return lowest(limit(systemd.first(unit, "LimitMEMLOCK")) for unit in units if systemd.first(unit, "LoadState") == "loaded")


# -- names, interfaces, processes ----------------------------------------------------------------
def _names(reader: Reader, options: Any, unknown: Dict[str, str]) -> Optional[Dict[str, List[str]]]:
    wanted = [str(name) for name in options.names if str(name).strip()]
    if not wanted:
        return {}
    probed = reader.probe("resolve", " ".join(wanted))
    if not isinstance(probed.value, dict):
        unknown["names"] = "the names of the peers could not be resolved in time" if probed.error == "timeout" else (
            "the names of the peers could not be looked up: " + (probed.error or "no answer"))
        return None
    return {name: [str(address) for address in probed.value.get(name) or []][:8] for name in wanted}


def parse_addresses(text: str) -> Optional[Tuple[Dict[str, List[str]], Dict[str, Dict[str, Any]]]]:
    """Addresses and links from ``ip -j addr``, None when it is no such document.

    Left out are the loopback, the pair ends of containers, and link-local addresses of an interface that has others.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    addresses: Dict[str, List[str]] = {}
    links: Dict[str, Dict[str, Any]] = {}
    for item in found:
        name = item.get("ifname") if isinstance(item, dict) else None
        if not isinstance(name, str) or _VIRTUAL_LINK.match(name) or len(addresses) >= MAX_INTERFACES:
            continue
        infos = item.get("addr_info")
        infos = [info for info in infos if isinstance(info, dict) and info.get("local")] if isinstance(infos, list) else []
        chosen = [info for info in infos if info.get("scope") != "link"] or infos
        if chosen:
            addresses[name[:32]] = ["%s/%s" % (info["local"], info.get("prefixlen", "")) for info in chosen][:8]
            links[name[:32]] = drop_empty({"state": str(item.get("operstate") or ""), "mtu": integer(item.get("mtu"))})
    return addresses, links


def _interfaces(reader: Reader, unknown: Dict[str, str]) -> Tuple[Any, Any]:
    ran = reader.run(ADDRESSES)
    found = parse_addresses(ran.out) if ran.ok else None
    if found is None:
        unknown["addresses"] = unknown["links"] = ran.reason("ip") if not ran.ok else "ip -j addr printed no JSON"
        return None, None
    return found


def _stuck(reader: Reader, unknown: Dict[str, str]) -> Optional[List[Dict[str, Any]]]:
    probed = reader.probe("processes")
    found = probed.value.get("stuck") if isinstance(probed.value, dict) else None
    if not isinstance(found, list):
        unknown["stuck"] = "the processes could not be looked through: " + (probed.error or "no answer")
        return None
    if probed.value.get("hidden"):
        unknown["stuck"] = "the processes of others are hidden from this user"
    elif probed.value.get("truncated") and not found:
        unknown["stuck"] = "there are more processes than could be looked through"
    elif probed.value.get("unseen") and not found:
        unknown["stuck"] = "where the %s processes in D state wait may only be seen by root" % integer(probed.value["unseen"])
    tables = [item for item in found[:20] if isinstance(item, dict)]
    return [{"pid": item.get("pid"), "comm": str(item.get("comm"))[:64], "state": str(item.get("state"))[:1]} for item in tables]
