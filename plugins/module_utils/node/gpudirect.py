# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two ways by which an HCA reaches GPU memory: nvidia_peermem and dma-buf.

Every precondition is a fact by itself, since each has another remedy. Signatures of refusals are
those of nvidia-peermem.c and nv-dmabuf.c in NVIDIA's open kernel modules.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from . import host, kernel_log
from .reader import READ_LIMIT, Ran, Reader
from .text import bus_address, integer, table, version

if TYPE_CHECKING:
    from .collect import Options

MODINFO = ("modinfo", "nvidia_peermem")
# kallsyms has a quarter of a million lines: grep reads it, and stops at the first hit.
PEER_SYMBOL = ("grep", "-m1", "-wE", "ib_register_peer_memory_client", "/proc/kallsyms")
DMABUF_SYMBOL = ("grep", "-m1", "-wE", "ib_umem_dmabuf_get", "/proc/kallsyms")
DATA_DIRECT = ("lspci", "-D", "-n", "-d", "15b3:2100")

KERNEL_MIN = (5, 12)
"""First kernel whose RDMA core imports dma-buf (Linux commit 368c0159d492)."""
CONFIG = ("PCI_P2PDMA", "DMABUF_MOVE_NOTIFY", "DMA_SHARED_BUFFER", "ZONE_DEVICE")
MEMLOCK_MIN = 64 << 30
"""Bytes of locked memory below which registering GPU and host buffers is expected to fail."""
EVIDENCE_KEPT = 5

PEERMEM_KINDS = tuple((kind, re.compile(pattern)) for kind, pattern in (
    # A CRC mismatch logs two lines, the second of which looks like a missing symbol but for its error number.
    ("crc_mismatch", r"nvidia[_-]peermem: (?:disagrees about version of symbol|Unknown symbol .*\(err -22\))"),
    ("unknown_symbol", r"nvidia[_-]peermem: Unknown symbol"),
    ("invalid_context", r"nv_get_p2p_free_callback.*invalid context"),
))
ATTACH_KINDS = tuple((kind, re.compile(pattern)) for kind, pattern in (
    ("force_pcie", r"dma-buf attach failed: topology not supported for mapping type FORCE_PCIE"),
    ("topology", r"dma-buf attach failed: PCI topology not supported"),
    ("importer", r"dma-buf attach failed: importer unable to handle MMIO"),
))
_ERRNO_524 = re.compile(
    r"\berrno[ :=]*-?524\b|\berror[ :=]*-?524\b|\bmlx5dv_reg_dmabuf_mr\b|(?:mlx5|dma-?buf|ib_core|infiniband)\S*.*[ (=]-524\b", re.I)
_ATTACH = re.compile(r"dma-buf attach failed")
_PERSIST_FOLDERS = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")
_NAME = re.compile(r"\bnvidia[-_]peermem\b")


def commands(options: Options) -> List[Sequence[str]]:
    """Commands known beforehand."""
    return [MODINFO, PEER_SYMBOL, DMABUF_SYMBOL, DATA_DIRECT, host.MANAGER, *kernel_log.COMMANDS]


def collect(reader: Reader, options: Options) -> Dict[str, Any]:
    """The ``gpudirect`` section of docs/FACTS.md."""
    unknown: Dict[str, str] = {}
    lines, why = kernel_log.lines(reader)
    if why:
        unknown["kernel_log"] = why
    attach = kernel_log.classify(lines, ATTACH_KINDS)
    told = [line.text for line in lines if _ERRNO_524.search(line.text) or _ATTACH.search(line.text)]
    facts: Dict[str, Any] = {
        "peermem": _peermem(reader, kernel_log.classify(lines, PEERMEM_KINDS), unknown),
        "dmabuf": _dmabuf(reader, [{"kind": g.kind, "text": g.text[:200], "count": g.count} for g in attach], unknown),
        "errno524": {"evidence": [text[:200] for text in dict.fromkeys(told)][:EVIDENCE_KEPT], "lines": len(told)},
        "memlock_ok": _memlock_ok(reader, unknown),
        "unknown": unknown,
    }
    return facts


def _symbol(ran: Ran, part: str, unknown: Dict[str, str]) -> Optional[bool]:
    """What grep says of a symbol: 0 found, 1 not found, anything else is no answer."""
    if not ran.error and ran.rc in (0, 1):
        return ran.rc == 0
    unknown[part] = ran.reason("grep of /proc/kallsyms")
    return None


# -- nvidia_peermem ------------------------------------------------------------------------------
def _peermem(reader: Reader, groups: Sequence[kernel_log.Group], unknown: Dict[str, str]) -> Dict[str, Any]:
    loaded_version = reader.value("/sys/module/nvidia_peermem/version")
    modules = reader.read("/proc/modules")
    names = {line.split(" ", 1)[0] for line in (modules.text or "").splitlines()}
    info = reader.run(MODINFO)
    fields = parse_modinfo(info.out) if info.ok else {}
    present: Optional[bool] = bool(fields)
    if not fields and not _says_absent(info):
        unknown["peermem"] = info.reason("modinfo nvidia_peermem")
        present = None
    folder = reader.kind("/sys/module/nvidia_peermem")
    loaded: Optional[bool] = loaded_version is not None or "nvidia_peermem" in names or folder.text is not None
    if not loaded and modules.text is None and folder.error != "missing":
        unknown["peermem"] = "/proc/modules cannot be read: " + modules.error
        loaded = None
    facts: Dict[str, Any] = {
        "present": True if loaded else present,
        "loaded": loaded,
        "version": loaded_version or fields.get("version"),
        "persisted": _persisted(reader),
        "legacy_loaded": "nv_peer_mem" in names or reader.exists("/sys/module/nv_peer_mem"),
        "ib_symbol": _symbol(reader.run(PEER_SYMBOL), "ib_symbol", unknown),
        "log": [{"kind": g.kind, "text": g.text[:200]} for g in groups],
    }
    facts["why_not"] = None if loaded else why_not(facts, fields)
    return facts


def _says_absent(ran: Ran) -> bool:
    """True when modinfo looked and found no such module."""
    return not ran.error and ran.rc not in (0, None) and "not found" in (ran.err + ran.out)


def parse_modinfo(text: str) -> Dict[str, str]:
    """Fields of ``modinfo``; the first of two equal ones stands. Empty for what is no such output."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        key, sign, value = line.partition(":")
        if sign and re.match(r"[a-z_0-9]{1,32}\Z", key):
            found.setdefault(key, value.strip())
    return found


def why_not(peermem: Dict[str, Any], modinfo: Dict[str, str]) -> Optional[str]:
    """Why nvidia_peermem could not be loaded now, None when nothing speaks against it.

    Args:
        peermem: ``present``, ``legacy_loaded``, ``ib_symbol`` and ``log`` as in docs/FACTS.md.
        modinfo: fields of the module on disk, empty when not known.
    """
    kinds = {entry["kind"] for entry in peermem["log"]}
    if peermem["present"] is False:
        return "no nvidia_peermem module is installed for the running kernel"
    if peermem["legacy_loaded"]:
        return "the legacy module nv_peer_mem is loaded and registers the same client"
    # The peer-memory calls come from ib_core, or in newer OFED from ib_uverbs; a module built without them depends on neither.
    if "depends" in modinfo and not any(name.strip().startswith("ib_") for name in modinfo["depends"].split(",")):
        return ("the module was built without peer-memory symbols (no NVIDIA OFED at build time), so loading gives Invalid argument: "
                "use dma-buf, or install DOCA-OFED and rebuild the driver's modules")
    if peermem["ib_symbol"] is False:
        return ("the running RDMA core has no ib_register_peer_memory_client (the kernel's own RDMA modules, or none, are loaded): "
                "boot the modules of DOCA-OFED, or use dma-buf")
    if "crc_mismatch" in kinds:
        return "the module was built against another version of the RDMA modules (symbol versions differ): rebuild the driver's modules"
    if "unknown_symbol" in kinds and peermem["ib_symbol"] is None:
        return "the kernel log shows that the RDMA core lacked ib_register_peer_memory_client when it was last tried"
    return None


def _persisted(reader: Reader) -> bool:
    """True when something loads the module at boot: modules-load.d, /etc/modules, a softdep, or a hook of openibd."""
    files = [("/etc/modules", "")]
    for folder in _PERSIST_FOLDERS:
        files += [("%s/%s" % (folder, name), "") for name in reader.names(folder).names if name.endswith(".conf")]
    files += [("/etc/modprobe.d/" + n, "softdep") for n in reader.names("/etc/modprobe.d").names if n.endswith(".conf")]
    drop_ins = "/etc/systemd/system/openibd.service.d"
    files += [("%s/%s" % (drop_ins, n), "ExecStart") for n in reader.names(drop_ins).names if n.endswith(".conf")]
    for path, start in files:
        for line in (reader.read(path).text or "").splitlines():
            stripped = line.strip()
            if stripped.startswith(start) and not stripped.startswith(("#", ";")) and _NAME.search(stripped):
                return True
    return False


# -- dma-buf -------------------------------------------------------------------------------------
def _dmabuf(reader: Reader, attach: List[Dict[str, Any]], unknown: Dict[str, str]) -> Dict[str, Any]:
    symbol = _symbol(reader.run(DMABUF_SYMBOL), "dma_buf_symbol", unknown)
    who = reader.probe("process").value
    release = str(who.get("kernel") or "") if isinstance(who, dict) else ""
    numbers = version(release)[:2]
    config, kernel = _config(reader, release, unknown), None
    if symbol or numbers:
        # Distributions have brought the feature to older kernels: the symbol then proves it.
        kernel = bool(symbol) or numbers >= KERNEL_MIN
    else:
        unknown["kernel"] = "the kernel's release is not known"
    functions = _data_direct(reader, unknown)
    facts: Dict[str, Any] = {
        "open_module": _open_module(reader, unknown), "kernel": kernel, "config": config, "dma_buf_symbol": symbol,
        "attach_failed": attach, "data_direct": functions,
    }
    # Groups decide on coherent (Grace) systems only, where the SMMU stays on; elsewhere they are noise.
    if functions or attach or (isinstance(who, dict) and who.get("arch") == "aarch64"):
        groups = _groups(reader, functions)
        if groups:
            facts["iommu_groups"] = groups
    return facts


def _open_module(reader: Reader, unknown: Dict[str, str]) -> Optional[bool]:
    loaded = reader.read("/proc/driver/nvidia/version")
    if loaded.text is not None:
        return "Open Kernel Module" in loaded.text
    if loaded.error != "missing":
        unknown["open_module"] = "/proc/driver/nvidia/version cannot be read: " + loaded.error
    return None


def _config(reader: Reader, release: str, unknown: Dict[str, str]) -> Dict[str, str]:
    """Options of the running kernel: y, m, or n; empty when no file holds its configuration."""
    found: Dict[str, str] = {}
    for path in ("/boot/config-" + release, "/lib/modules/%s/config" % release) if release else ():
        text = reader.read(path).text
        found = found or (host.parse_config(text, len(text) < READ_LIMIT) if text else {})
    if not found and reader.exists("/proc/config.gz"):
        ran = reader.run(host.ZCAT)
        found = host.parse_config(ran.out) if ran.ok else {}
    if not found:
        unknown["config"] = "no file holds the configuration of the running kernel"
    return {name: value for name, value in found.items() if name in CONFIG}


def _data_direct(reader: Reader, unknown: Dict[str, str]) -> List[str]:
    """DMA functions of ConnectX-8 (15b3:2100), which write to GPU memory on behalf of the HCA."""
    ran = reader.run(DATA_DIRECT)
    if ran.ok:
        return sorted({bus_address(line.split(" ", 1)[0]) for line in ran.out.splitlines() if line[:1].strip()})
    # Those with a driver stand in the folder of mlx5_ib, to which only these functions bind.
    bound = [n for n in reader.names("/sys/bus/pci/drivers/mlx5_ib").names if re.match(r"[0-9a-f]{4}:[0-9a-f]{2}:", n)]
    if not bound:
        unknown["data_direct"] = ran.reason("lspci")
    return bound


def _groups(reader: Reader, functions: Sequence[str]) -> Dict[str, int]:
    devices = [bus_address(name) for name in reader.names("/proc/driver/nvidia/gpus").names]
    hcas = "/sys/class/infiniband"
    for name in [] if functions else reader.names(hcas).names:
        devices.append(reader.link("%s/%s/device" % (hcas, name)).strip().rsplit("/", 1)[-1])
    found = {}
    for bdf in [*devices, *functions]:
        group = integer(reader.link("/sys/bus/pci/devices/%s/iommu_group" % bdf).strip().rsplit("/", 1)[-1]) if bdf else None
        if group is not None:
            found[bdf] = group
    return found


def _memlock_ok(reader: Reader, unknown: Dict[str, str]) -> Optional[bool]:
    """Whether a new service may lock enough memory: systemd's default, else the limit of process 1."""
    told = reader.run(host.MANAGER)
    limit = host.limit(table(told.out).get("DefaultLimitMEMLOCK")) if told.ok else None
    if limit is None:
        limit = host.lowest(host.parse_proc_limits(reader.read("/proc/1/limits").text or "", "Max locked memory"))
    if limit is None:
        unknown["memlock_ok"] = "neither systemd nor /proc/1/limits gave the limit of locked memory"
        return None
    return not isinstance(limit, int) or limit >= MEMLOCK_MIN
