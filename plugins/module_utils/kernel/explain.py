# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a kernel module would not go in or out, and what to do then.

The words are those of modprobe and of the kernel; what they mean for nvidia_peermem is told in
https://github.com/NVIDIA/open-gpu-kernel-modules (kernel-open/nvidia-peermem/nvidia-peermem.c, 595.45.04).
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Sequence


class Reason(NamedTuple):
    """One cause: `kind` is a word for machines, `why` a sentence, `fix` what to do, `lines` what the kernel logged."""

    kind: str
    why: str
    fix: str
    lines: List[str]

    @property
    def sentence(self) -> str:
        return "%s; %s" % (self.why, self.fix) if self.fix else self.why


_REBUILD = "rebuild the driver's modules against the RDMA modules that are installed now (dkms remove and dkms install nvidia), or use dma-buf"


def plain(name: str) -> str:
    """A module's name as the kernel writes it."""
    return name.strip().replace("-", "_")


def telling(log: str, name: str) -> List[str]:
    """Lines of the kernel log about the module `name`, and those that name no module and tell of a refused one; the last ten."""
    names = re.escape(plain(name)).replace("_", "[-_]")
    wanted = re.compile(r"(?<![\w-])%s(?![\w-])|Loading of (?:unsigned )?module|Lockdown: (?:modprobe|insmod)" % names)
    # An unsigned module that may load is remarked on once, which is no refusal.
    lines = [re.sub(r"^\[\s*[\d.]+\]\s*", "", line).strip() for line in log.splitlines() if wanted.search(line) and "tainting kernel" not in line]
    return list(dict.fromkeys(lines))[-10:]


def loading(name: str, said: str, log: Sequence[str], kernel: str = "", peer_symbols: bool = True) -> Reason:
    """Why ``modprobe name`` failed.

    Args:
        said: what modprobe printed.
        log: lines of the kernel log that came with it (:func:`telling`).
        kernel: release of the running kernel.
        peer_symbols: the running RDMA core offers ib_register_peer_memory_client; asked of nvidia_peermem only.
    """
    module = plain(name)
    lines = list(log)
    text = said + "\n" + "\n".join(lines)
    peermem = module == "nvidia_peermem"
    if re.search(r"Key was rejected|Required key not available|unavailable key|module is unsigned|Lockdown:", text):
        return Reason("key_rejected", "Secure Boot is on and the kernel does not trust the key that %s is signed with" % module,
                      "install modules that the distribution signs, or enrol the signing key at the console (mokutil --import); it is not done here", lines)
    if re.search(r"not found in directory|Module \S+ not found", said):
        why = "there is no module %s for the running kernel%s" % (module, " " + kernel if kernel else "")
        if module.startswith("nvidia") or module == "gdrdrv":
            return Reason("not_found", why, "install the driver and the headers of this kernel, so that DKMS builds it (role driver)", lines)
        return Reason("not_found", why, "install the package that brings it: the kernel's extra modules, or DOCA-OFED", lines)
    if re.search(r"disagrees about version of symbol|err -22\)", text):
        if peermem:
            return Reason("version", "nvidia_peermem was built against other RDMA modules than those that are loaded (symbol versions differ)", _REBUILD, lines)
        return Reason("version", "%s was built against another version of a module that it uses (symbol versions differ)" % module,
                      "rebuild it for what is installed now, or reboot into the modules that it was built with", lines)
    if re.search(r"Unknown symbol", text):
        symbols = list(dict.fromkeys(re.findall(r"Unknown symbol (\w+)", "\n".join(lines))))
        told = " (%s)" % ", ".join(symbols[:3]) if symbols else ""
        if peermem:
            return Reason("unknown_symbol", "the RDMA core that is loaded lacks the peer memory interface%s: nvidia_peermem was built with DOCA-OFED "
                          "and the kernel's own RDMA modules are running" % told,
                          "boot the RDMA modules of DOCA-OFED (rebuild them for this kernel if they are missing), or use dma-buf", lines)
        return Reason("unknown_symbol", "%s needs a symbol that no loaded module has%s" % (module, told),
                      "load or install the module that has it, or rebuild %s for this kernel" % module, lines)
    if re.search(r"Exec format error|version magic", text):
        return Reason("other_kernel", "%s was built for another kernel%s" % (module, " than %s" % kernel if kernel else ""),
                      "rebuild it for the running kernel, or boot the kernel that it was built for", lines)
    if "Invalid argument" in said:
        if peermem and any("nv_mem" in line or "already" in line for line in lines):
            return Reason("conflict", "another module (nv_peer_mem) has registered the same peer memory client",
                          "unload and remove nv_peer_mem (package nvidia-peer-memory-dkms), then load nvidia_peermem", lines)
        if peermem:
            return Reason("no_peer_symbols", "nvidia_peermem was built without the peer memory interface, since no DOCA-OFED was there at build time",
                          "use dma-buf, which needs no such module; or install DOCA-OFED, rebuild the driver's modules, and load it again", lines)
        return Reason("invalid_argument", "%s refused its parameters or what it found" % module,
                      "look at its options in /etc/modprobe.d and at the kernel log", lines)
    if "No such device" in said:
        return Reason("no_device", "%s found no device that it drives" % module, "look whether the device is on the bus (lspci), and who drives it", lines)
    if re.search(r"Operation not permitted|Read-only file system", said):
        return Reason("not_permitted", "this system may not load modules (a container, or the kernel is locked down)",
                      "load %s on the host" % module, lines)
    if "Device or resource busy" in said or "File exists" in said:
        return Reason("busy", "what %s would register is taken by another module" % module, "unload that one first", lines)
    if "did not end within" in said:
        return Reason("hung", "loading %s did not come to an end" % module, "reboot the node: the driver is stuck", lines)
    return Reason("other", "modprobe %s failed: %s" % (module, _last(said)), "look at the kernel log", lines)


def unloading(name: str, said: str, users: Sequence[str], references: int, holders: Sequence[str]) -> Reason:
    """Why ``modprobe -r name`` failed.

    Args:
        users: modules that use it. references: count of references. holders: processes that have its devices open.
    """
    module = plain(name)
    if users:
        return Reason("in_use", "%s is used by the modules %s" % (module, ", ".join(users)), "unload those first", [])
    if holders:
        return Reason("in_use", "%s is in use by %s" % (module, ", ".join(holders[:6])), "stop them, or reboot", [])
    if references > 0 or "is in use" in said or "busy" in said:
        return Reason("in_use", "%s is in use (%d references) by nobody who can be named" % (module, references), "reboot", [])
    if "builtin" in said:
        return Reason("builtin", "%s is part of the kernel" % module, "it cannot be unloaded", [])
    if "did not end within" in said:
        return Reason("hung", "unloading %s did not come to an end" % module, "reboot the node: the driver is stuck", [])
    return Reason("other", "modprobe -r %s failed: %s" % (module, _last(said)), "look at the kernel log", [])


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"
