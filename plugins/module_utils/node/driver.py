# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the NVIDIA driver: what is loaded, what the next load would give, and what stands in its way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from . import kernel_log, smi
from .reader import Content, Ran, Reader
from .text import drop_empty, table

if TYPE_CHECKING:
    from .collect import Options

MODINFO = ("modinfo", "nvidia")
DKMS = ("dkms", "status")
SECURE_BOOT = ("mokutil", "--sb-state")

EFI_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
PARAMS = ("EnableStreamMemOPs", "PeerMappingOverride", "GrdmaPciTopoCheckOverride", "CreateImexChannel0", "NvLinkDisable")
LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
    # A driver that runs in a container (GPU operator) keeps its libraries there.
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/run/nvidia/driver/usr/lib/aarch64-linux-gnu", "/run/nvidia/driver/usr/lib64",
)
MODPROBE_FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
COMPILERS = ("/usr/bin/gcc", "/usr/bin/cc")

_LOADED = re.compile(
    r"^NVRM version:\s{1,8}NVIDIA UNIX (?:(Open) Kernel Module for (\S{1,20})|(\S{1,20}) Kernel Module)\s{1,8}"
    r"(\d{2,5}(?:\.\d{1,5}){1,2})", re.M)
_VERSION = re.compile(r"^\d{2,5}(?:\.\d{1,5}){1,2}$")
_SONAME = re.compile(r"\.so\.(\d{2,5}(?:\.\d{1,5}){1,2})$")
_DKMS = re.compile(r"^([A-Za-z0-9._+-]{1,80})(?:/|,\s*)([^,:\s]{1,60})(?:,\s*([^,:\s]{1,100}))?(?:,\s*([^,:\s]{1,20}))?\s*:\s*(\S.{0,60})")
_BLACKLIST = re.compile(r"^\s*(?:blacklist\s+nouveau\b|install\s+nouveau\s+/(?:usr/)?bin/(?:false|true)\b)", re.M)
_BLACKLIST_CMDLINE = re.compile(r"(?:^|[\s,=])(?:rd\.driver\.blacklist|modprobe\.blacklist|module_blacklist)=(?:[^\s]*,)?nouveau\b")

LOG_WORDS = ("NVRM", "nvidia", "NVIDIA", "module", "Key was rejected", "gsp_", "Gsp")
"""One of these stands in every line that LOG_KINDS knows; looking for them first spares most lines the patterns."""
# A message of several lines arrives joined, with the driver's prefix inside it.
LOG_KINDS = (
    ("api_mismatch", re.compile(r"NVRM: API mismatch")),
    ("key_rejected", re.compile(
        r"Loading of (?:unsigned )?module .{0,80}(?:unavailable key|rejected)|Key was rejected by service"
        r"|Lockdown: (?:modprobe|insmod|nvidia).{0,80}unsigned module", re.I)),
    ("gsp_missing", re.compile(
        r"gsp_\w{1,20}\.bin failed|failed to load (?:firmware )?\S{0,60}gsp_\w{1,20}\.bin|RmFetchGspRmImages", re.I)),
    ("open_unsupported", re.compile(
        r"not supported by (?:NVRM: )?(?:the )?open|does not include the required GPU (?:NVRM: )?System Processor")),
    ("open_required", re.compile(r"requires (?:NVRM: )?(?:the )?use of (?:the )?NVIDIA open kernel modules")),
    ("not_supported", re.compile(r"not supported by (?:NVRM: )?the(?:$| (?:NVRM: )?NVIDIA)")),
    ("rm_init_failed", re.compile(r"RmInitAdapter failed")),
    ("no_gpu", re.compile(
        r"NVRM: No NVIDIA (?:GPU|devices?) (?:probed|found)|NVIDIA probe routine was not called for"
        r"|None of the NVIDIA (?:graphics adapters|devices) were initialized")),
    ("bar_invalid", re.compile(r"This PCI I/O region assigned to your NVIDIA device is invalid")),
)
DAMAGED = "the module's file is damaged, as a power cut leaves it"


def commands(options: Options) -> List[Sequence[str]]:
    """Commands known beforehand, for :func:`collect.gather`."""
    return [smi.COMMAND, MODINFO, DKMS, SECURE_BOOT, *kernel_log.COMMANDS]


def parse_version(text: str) -> Tuple[Optional[str], Optional[str]]:
    """Version and flavour (``open`` or ``proprietary``) from /proc/driver/nvidia/version; (None, None) when it names none."""
    found = _LOADED.search(text)
    return (found.group(4), "open" if found.group(1) else "proprietary") if found else (None, None)


def parse_modinfo(text: str) -> Dict[str, str]:
    """Fields of ``modinfo``; the first of several equal ones stands (``parm`` and ``alias`` are of no use here)."""
    fields: Dict[str, str] = {}
    for line in text.split("\n"):
        key, sign, value = line.partition(":")
        if sign and key and not key.startswith((" ", "\t")):
            fields.setdefault(key.strip(), value.strip()[:300])
    return fields


def flavour(license_text: str) -> Optional[str]:
    """``open`` or ``proprietary`` from the module's licence."""
    if "MIT" in license_text or "GPL" in license_text:
        return "open"
    return "proprietary" if license_text.upper().startswith("NVIDIA") else None


def parse_dkms(text: str) -> List[Dict[str, str]]:
    """Lines of ``dkms status`` as ``{"module", "version", "kernel"?, "status"}``.

    Knows ``nvidia/580.95.05, 6.8.0-90-generic, x86_64: installed`` (dkms 3), ``nvidia, 580.95.05, 6.8.0-90-generic,
    x86_64: installed`` (dkms 2) and ``nvidia/580.95.05: added``. Only NVIDIA's modules and gdrdrv, at most 12.
    """
    found = []
    for line in text.split("\n"):
        match = _DKMS.match(line.strip())
        if match and (match.group(1).startswith("nvidia") or match.group(1) == "gdrdrv"):
            module, release, kernel, _arch, status = match.groups()
            found.append(drop_empty({"module": module, "version": release, "kernel": kernel, "status": status.strip()}))
    return found[:12]


def parse_params(text: str) -> Dict[str, str]:
    """The parameters of :data:`PARAMS` that /proc/driver/nvidia/params names."""
    values = table(text, ":")
    return {name: values[name][:60] for name in PARAMS if name in values}


def parse_secure_boot(text: str) -> Optional[bool]:
    """What ``mokutil --sb-state`` says; False where the firmware has no Secure Boot, None when it says neither."""
    low = text.lower()
    if "secureboot enabled" in low:
        return True
    if "secureboot disabled" in low or "not supported on this system" in low or "doesn't support secure boot" in low:
        return False
    return None


def collect(reader: Reader, options: Options) -> Dict[str, Any]:
    """Section ``driver`` of docs/FACTS.md."""
    unknown: Dict[str, str] = {}
    kernel = _kernel(reader)
    loaded, loaded_flavour = _loaded(reader, unknown)
    modinfo = _modinfo(reader, unknown)
    queried = reader.run(smi.COMMAND)
    said = queried.out + "\n" + queried.err if not queried.out.lstrip().startswith("<?xml") else queried.err
    mismatch = smi.failure(said)[0] == "mismatch"
    facts: Dict[str, Any] = {
        "loaded": loaded,
        "loaded_flavour": loaded_flavour,
        "installed": modinfo.get("version"),
        "installed_flavour": flavour(modinfo.get("license", "")),
        "installed_for_kernel": _for_kernel(modinfo, kernel) if unknown.get("installed") in (None, DAMAGED) else None,
        "userspace": _userspace(reader) or (smi.library_version(said) if mismatch else None),
        "cuda": smi.parse(queried.out).get("cuda_version"),
        "mismatch": mismatch,
        "nouveau": _nouveau(reader),
        "params": parse_params(reader.read("/proc/driver/nvidia/params").text or ""),
        "build": _build(reader, kernel, unknown),
        "secure_boot": _secure_boot(reader, modinfo, unknown),
    }
    if facts["cuda"] is None and queried.error != "missing":
        unknown["cuda"] = smi.reason(queried) or "nvidia-smi -q -x named no CUDA version"
        if queried.error and not mismatch:
            facts["mismatch"] = None
            unknown["mismatch"] = unknown["cuda"]
    messages, why = kernel_log.lines(reader)
    if why:
        unknown["kernel_log"] = why
    telling = [line for line in messages if any(word in line.text for word in LOG_WORDS)]
    facts["log"] = None if why and not messages else [
        {"kind": group.kind, "text": group.text[:200], "count": group.count} for group in kernel_log.classify(telling, LOG_KINDS)]
    facts["unknown"] = unknown
    return facts


def _kernel(reader: Reader) -> str:
    process = reader.probe("process").value
    release = process.get("kernel") if isinstance(process, dict) else None
    return str(release) if release else reader.value("/proc/sys/kernel/osrelease") or ""


def _absent(content: Content) -> bool:
    return content.error == "missing"


def _loaded(reader: Reader, unknown: Dict[str, str]) -> Tuple[Optional[str], Optional[str]]:
    in_sysfs, in_proc = reader.read("/sys/module/nvidia/version"), reader.read("/proc/driver/nvidia/version")
    version, kind = parse_version(in_proc.text or "")
    bare = in_sysfs.strip()
    version = bare if _VERSION.match(bare) else version
    if version is None and not (_absent(in_sysfs) and _absent(in_proc)):
        unknown["loaded"] = "neither /sys/module/nvidia/version nor /proc/driver/nvidia/version could be read (%s)" % (
            in_sysfs.error or in_proc.error or "no version in them")
    if version is not None and kind is None:
        unknown["loaded_flavour"] = "/proc/driver/nvidia/version does not say it" + (" (%s)" % in_proc.error if in_proc.error else "")
    return version, kind


def _modinfo(reader: Reader, unknown: Dict[str, str]) -> Dict[str, str]:
    ran = reader.run(MODINFO)
    if ran.ok:
        fields = parse_modinfo(ran.out)
        if not _VERSION.match(fields.get("version", "")):
            unknown["installed"] = "modinfo nvidia named no version"
            fields.pop("version", None)
        return fields
    if not ran.error and "could not get modinfo" in ran.err + ran.out:
        unknown["installed"] = DAMAGED
    elif ran.error or "not found" not in ran.err + ran.out:
        unknown["installed"] = ran.reason("modinfo")
    return {}


def _for_kernel(modinfo: Dict[str, str], kernel: str) -> bool:
    """modinfo looks only below the running kernel's own folder; a copied module of another kernel shows in its vermagic."""
    magic = modinfo.get("vermagic", "").split(" ")[0]
    return bool(modinfo) and (not magic or not kernel or magic == kernel)


def _userspace(reader: Reader) -> Optional[str]:
    """Version in the file name that the library's link leads to; reading links costs less than listing the folders."""
    for library in LIBRARIES:
        for folder in LIBRARY_FOLDERS:
            path = folder + "/" + library
            for _hop in range(5):
                target = reader.link(path).text
                if not target:
                    break
                found = _SONAME.search(target)
                if found:
                    return found.group(1)
                path = target if target.startswith("/") else path.rsplit("/", 1)[0] + "/" + target
    return None


def _nouveau(reader: Reader) -> Dict[str, bool]:
    blacklisted = bool(_BLACKLIST_CMDLINE.search(reader.read("/proc/cmdline").text or ""))
    for folder in MODPROBE_FOLDERS:
        if blacklisted:
            break
        for name in [n for n in reader.names(folder).names if n.endswith(".conf")][:80]:
            if _BLACKLIST.search(reader.read(folder + "/" + name).text or ""):
                blacklisted = True
                break
    return {"loaded": reader.exists("/sys/module/nouveau"), "blacklisted": blacklisted}


def _build(reader: Reader, kernel: str, unknown: Dict[str, str]) -> Dict[str, Any]:
    build: Dict[str, Any] = {
        "headers": bool(kernel) and reader.kind("/lib/modules/%s/build" % kernel).text == "dir",
        "dkms": [],
        "compiler": any(reader.exists(path) for path in COMPILERS),
    }
    if not kernel:
        build["headers"] = None
        unknown["build"] = "the running kernel's release could not be read"
    ran = reader.run(DKMS)
    if ran.ok:
        build["dkms"] = parse_dkms(ran.out)
    elif ran.error != "missing":
        build["dkms"] = None
        unknown["build"] = ran.reason("dkms")
    return build


def _secure_boot(reader: Reader, modinfo: Dict[str, str], unknown: Dict[str, str]) -> Dict[str, Any]:
    ran: Ran = reader.run(SECURE_BOOT)
    enabled = parse_secure_boot(ran.out + "\n" + ran.err) if not ran.error else None
    if enabled is None:
        # Four bytes of attributes and one byte of value.
        variable = reader.read(EFI_SECURE_BOOT)
        if variable.text:
            enabled = variable.text[-1] == "\x01"
        elif reader.kind("/sys/firmware/efi").error == "missing":
            enabled = False
        else:
            unknown["secure_boot"] = ran.reason("mokutil")
    return {"enabled": enabled, "signer": modinfo.get("signer") or None}
