# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's Xid codes: what each means and which immediate action NVIDIA gives for it.

Codes and actions: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, read 2026-11
(catalogue of 2025-10). The classes are this project's grouping of the actions, by what has to happen
before the node may serve:

* ``ignored``: nothing;
* ``application``: the process that it hit has to be started again, the GPU is sound;
* ``reset``: the GPU has to be reset;
* ``reboot``: the node has to be rebooted;
* ``support``: the hardware belongs in the hands of its vendor.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
CLASSES = ("ignored", "application", "reset", "reboot", "support")
"""From harmless to worst."""


class Xid(NamedTuple):
    """One code: NVIDIA's immediate action as printed in the catalogue, our class, and what happened."""

    code: int
    action: str
    kind: str
    text: str


_BY_ACTION = {
    "IGNORE": "ignored", "RESTART_APP": "application", "RESET_GPU": "reset", "RESTART_BM": "reboot", "RESTART_VM": "reboot",
    "CONTACT_SUPPORT": "support", "CHECK_MECHANICALS": "support", "UPDATE_SWFW": "support",
    # Workflows: the class is that of the first step when nothing else is known of the fault.
    "WORKFLOW_XID_45": "application", "WORKFLOW_XID_48": "reset", "WORKFLOW_NVLINK_ERR": "reset", "WORKFLOW_NVLINK5_ERR": "reset",
    "XID_154": "reset", "CHECK_UVM": "application",
    # Newer codes, for which the catalogue gives no action yet.
    "": "application",
}

_ROWS = (
    (8, "RESTART_APP", "GPU stopped processing"),
    (11, "RESTART_APP", "invalid push buffer stream"),
    (13, "RESTART_APP", "graphics engine exception"),
    (14, "IGNORE", "unused"),
    (25, "RESTART_APP", "illegal push buffer stream"),
    (31, "RESTART_APP", "GPU memory page fault"),
    (32, "RESTART_APP", "corrupted push buffer stream"),
    (37, "IGNORE", "driver firmware error"),
    (38, "IGNORE", "driver firmware error"),
    (39, "RESTART_APP", "copy engine exception"),
    (40, "RESTART_APP", "copy engine exception"),
    (41, "RESTART_APP", "copy engine exception"),
    (43, "IGNORE", "GPU stopped processing for one process"),
    (44, "IGNORE", "graphics engine fault during context switch"),
    (45, "WORKFLOW_XID_45", "cleanup after an earlier error"),
    (46, "RESET_GPU", "GPU stopped processing"),
    (48, "WORKFLOW_XID_48", "double-bit ECC error"),
    (54, "CHECK_MECHANICALS", "auxiliary power is not connected"),
    (60, "RESTART_APP", "video processor exception"),
    (62, "RESET_GPU", "micro-controller halt"),
    (63, "IGNORE", "row remapping event"),
    (64, "RESET_GPU", "row remapping failure"),
    (66, "IGNORE", "illegal access by driver"),
    (67, "IGNORE", "illegal access by driver"),
    (68, "RESTART_APP", "NVDEC exception"),
    (69, "RESTART_APP", "graphics engine class error"),
    (74, "WORKFLOW_NVLINK_ERR", "NVLink error"),
    (78, "UPDATE_SWFW", "vGPU start error"),
    (79, "RESTART_BM", "GPU has fallen off the bus"),
    (80, "RESTART_APP", "corrupted data sent to GPU"),
    (82, "RESTART_APP", "NVJPG error"),
    (86, "RESTART_APP", "OFA exception"),
    (92, "IGNORE", "high rate of single-bit ECC errors"),
    (93, "IGNORE", "InfoROM wear limit"),
    (94, "RESTART_APP", "contained memory error"),
    (95, "RESET_GPU", "uncontained memory error"),
    (106, "IGNORE", "SMBPBI test message"),
    (107, "IGNORE", "SMBPBI test message"),
    (108, "IGNORE", "unused"),
    (109, "RESET_GPU", "context switch timeout"),
    (110, "RESET_GPU", "security fault"),
    (119, "RESET_GPU", "GSP RPC timeout"),
    (120, "RESET_GPU", "GSP error"),
    (121, "IGNORE", "C2C error"),
    (122, "CONTACT_SUPPORT", "SPI read failed"),
    (123, "CONTACT_SUPPORT", "SPI write failed"),
    (124, "CONTACT_SUPPORT", "SPI erase failed"),
    (125, "CONTACT_SUPPORT", "InfoROM file system error"),
    (136, "RESET_GPU", "NVLink training failed"),
    (137, "IGNORE", "NVLink privilege error"),
    (139, "RESTART_APP", "OFA exception"),
    (140, "RESET_GPU", "unrecovered ECC error"),
    (141, "IGNORE", "CUDA fast path error"),
    (142, "CONTACT_SUPPORT", "NVENC error"),
    (143, "RESET_GPU", "GPU initialization error"),
    (144, "WORKFLOW_NVLINK5_ERR", "NVLink SAW error"),
    (145, "WORKFLOW_NVLINK5_ERR", "NVLink RLW error"),
    (146, "WORKFLOW_NVLINK5_ERR", "NVLink TLW error"),
    (147, "WORKFLOW_NVLINK5_ERR", "NVLink TREX error"),
    (148, "WORKFLOW_NVLINK5_ERR", "NVLink NVLPW_CTRL error"),
    (149, "WORKFLOW_NVLINK5_ERR", "NVLink NETIR error"),
    (150, "WORKFLOW_NVLINK5_ERR", "NVLink MSE error"),
    (151, "RESTART_VM", "key rotation error"),
    (152, "IGNORE", "DLA SMMU error"),
    (153, "IGNORE", "DLA timeout"),
    (154, "XID_154", "GPU recovery action changed"),
    (155, "RESET_GPU", "NVLink error defined by software"),
    (156, "RESET_GPU", "resource retirement event"),
    (157, "IGNORE", "resource retirement failure"),
    (158, "RESET_GPU", "GPU fatal timeout"),
    (159, "CHECK_UVM", "CHI non-data error"),
    (160, "IGNORE", "channel retirement event"),
    (161, "IGNORE", "channel retirement failure"),
    (162, "", "power smoothing engaged again"),
    (163, "", "power smoothing disengaged"),
    (164, "", "power smoothing: low lifetime"),
    (165, "", "power smoothing: lifetime exhausted"),
    (166, "", "NVLink traffic before encryption was set up"),
    (167, "", "PCIe fatal timeout"),
    (168, "", "GPU memory capacity reduced"),
    (169, "", "SEC2 micro-controller halt"),
    (170, "", "NVLink interrupt in confidential computing"),
    (171, "", "uncorrectable DRAM error"),
    (172, "", "uncorrectable SRAM error"),
)

CATALOGUE: Dict[int, Xid] = {code: Xid(code, action, _BY_ACTION[action], text) for code, action, text in _ROWS}
for _code in (70, 71, 72, 75, 76, 77, 85) + tuple(range(126, 136)):
    CATALOGUE[_code] = Xid(_code, "RESTART_APP", "application", "copy engine error")
for _code in (83, 84, 88, 89, 96, 97, 98):
    CATALOGUE[_code] = Xid(_code, "RESTART_APP", "application", "NVDEC error")
for _code in range(99, 106):
    CATALOGUE[_code] = Xid(_code, "RESTART_APP", "application", "NVJPG error")

# Xid 154 says in its text what the driver now asks for: open-gpu-kernel-modules, gpu.c (gpuUpdateRecoveryAction), 595.45.
_RECOVERY = re.compile(r"\bto 0x[0-9a-fA-F]{1,8} \(([^)]{1,60})\)")
_NONFATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)


def recovery_class(action: Optional[str]) -> str:
    """Class of a GPU recovery action as nvidia-smi, NVML or Xid 154 write it, empty for one that is not known.

    ``None``, ``GPU Reset Required``, ``GPU_RESET``, ``Node Reboot Required``, ``Drain P2P``, ``Drain and Reset``, ``Recover IMEX Domain`` …
    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
    """
    word = re.sub(r"[^a-z0-9]+", " ", (action or "").lower()).strip()
    if word in ("none", "no action"):
        return "ignored"
    if "reboot" in word:
        return "reboot"
    if "reset" in word or "drain" in word or "recover" in word:
        return "reset"
    return ""


def classify(code: int, text: str) -> Xid:
    """What an Xid asks for; `text` is its line of the kernel log, which decides for some codes.

    A code that the catalogue does not have is of class ``application`` with an empty action: worth a look, blocks nothing.
    """
    known = CATALOGUE.get(code)
    if known is None:
        return Xid(code, "", "application", "not in NVIDIA's catalogue, or unused there")
    if code == 154:
        found = _RECOVERY.search(text)
        kind = recovery_class(found.group(1)) if found else ""
        return known._replace(kind=kind or "reset", text="driver asks: %s" % found.group(1) if found else known.text)
    if 144 <= code <= 150 and _NONFATAL.search(text):
        return known._replace(kind="application", text=known.text + ", nonfatal")
    return known
