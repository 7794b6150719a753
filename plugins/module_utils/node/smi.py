# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read ``nvidia-smi -q -x`` and what nvidia-smi says when it fails.

The document changes with the driver (DTD v12 up to r575, v13 from r580; elements come, go and are
renamed), so every field is optional. It may be cut short, when the tool was killed, and holds
process names that others chose; each ``<gpu>`` element is therefore parsed by itself, without any
document type, and one that cannot be parsed costs only itself.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Dict, List, Optional, Tuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from .reader import Ran
from .text import bus_address, drop_empty, integer

COMMAND = ("nvidia-smi", "-q", "-x")

MAX_GPUS = 64
MAX_CHUNK = 2 * 1024 * 1024
"""Characters of one <gpu> element; real ones have 20,000 to 60,000."""
MAX_PROCESSES = 12
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"

_DOCTYPE = re.compile(r"<!DOCTYPE\s+nvidia_smi_log\s+SYSTEM\s+\"[^\"<>\[\]]{0,200}\"\s*>")
_DECLARATION = re.compile(r"<!\s*(?:DOCTYPE|ENTITY)", re.I)
_GPU = re.compile(r"<gpu\b[^<>]{0,200}>")
_END = "</gpu>"
_ID = re.compile(r"""\bid\s*=\s*["']([^"'<>]{1,40})["']""")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NOTHING = re.compile(
    r"^\[?(?:|n/a|not supported|not available|unknown(?: error)?|err!?|not found|insufficient permissions"
    r"|requested functionality has been deprecated|gpu is lost|gpu requires reset)\]?$", re.I)
_LOST = re.compile(r">\s*\[?GPU is lost\]?\s*<", re.I)
_RESET = re.compile(r">\s*\[?GPU requires reset\]?\s*<", re.I)
_HEADER = re.compile(r"<(driver_version|kmd_version|cuda_version|cuda_umd_version|attached_gpus)>\s*([0-9][0-9.]{0,30})\s*</\1>")
_HANDLE = re.compile(
    r"Unable to determine the device handle for GPU\s{0,4}(?:\d{1,3}:?\s{1,4})?"
    r"([0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.\d)?[^\n<]{0,80}", re.I)
_LIBRARY = re.compile(r"NVML library version:\s*([0-9.]+)")

THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_HEALTHY = {
    "summary": ("healthy",), "bandwidth": ("full",), "incorrect_configuration": ("none", "false", "no"),
    "route_recovery_in_progress": ("false", "no"), "route_unhealthy": ("false", "no"), "access_timeout_recovery": ("false", "no"),
}

# What NVML and nvidia-smi print instead of an answer, most telling first: (kind, words, sentence).
_FAILURES: Tuple[Tuple[str, str, str], ...] = (
    ("mismatch", r"driver/library version mismatch",
     "the loaded kernel driver and the NVML library are of different versions (Driver/library version mismatch)"),
    ("no_driver", r"couldn'?t communicate with the NVIDIA driver|\bdriver not loaded\b",
     "nvidia-smi could not communicate with the NVIDIA driver: it is not loaded or does not answer"),
    ("no_library", r"couldn'?t find (?:the )?libnvidia-ml|libnvidia-ml\.so[^\n]{0,200}cannot open|NVML shared library not found",
     "nvidia-smi could not find libnvidia-ml.so"),
    ("lost", r"\bGPU is lost\b", "NVML says that a GPU is lost"),
    ("no_devices", r"\bno devices (?:were )?found\b", "nvidia-smi found no devices"),
    ("unknown_error", r"\bunknown error\b", "NVML could not be initialised or a GPU could not be opened (Unknown Error)"),
    ("denied", r"insufficient permissions|access blocked by the operating system",
     "NVML may not open the GPUs (Insufficient Permissions)"),
    ("nvml", r"failed to initialize NVML:?[ \t]{0,8}([^\n]{0,80})", "NVML could not be initialised"),
)
_FAILURE_PATTERNS = tuple((kind, re.compile(words, re.I), sentence) for kind, words, sentence in _FAILURES)


def failure(text: str) -> Tuple[str, str]:
    """What kind of failure `text`, the output of nvidia-smi, speaks of.

    Returns:
        (kind, sentence); kind is ``mismatch``, ``no_driver``, ``no_library``, ``lost``, ``no_devices``, ``unknown_error``,
        ``denied``, ``nvml``, or empty when the text names no known failure.
    """
    head = text[:8000]
    for kind, pattern, sentence in _FAILURE_PATTERNS:
        found = pattern.search(head)
        if not found:
            continue
        if kind == "mismatch":
            library = _LIBRARY.search(head)
            sentence += ", library %s" % library.group(1).rstrip(".") if library else ""
        elif kind == "nvml" and found.group(1).strip():
            sentence += ": " + found.group(1).strip()
        elif kind in ("lost", "unknown_error"):
            handle = _HANDLE.search(head)
            if handle and handle.group(1):
                sentence += " at " + bus_address(handle.group(1))
        return kind, sentence
    return "", ""


def library_version(text: str) -> Optional[str]:
    """Version of the NVML library, which a mismatch message names (two or three components)."""
    found = _LIBRARY.search(text[:8000])
    return found.group(1).rstrip(".") if found else None


def reason(ran: Ran, what: str = "nvidia-smi") -> str:
    """One phrase: why a command of nvidia-smi gave no answer; empty when nothing speaks of a failure."""
    kind, sentence = failure(ran.out + "\n" + ran.err)
    if ran.error:
        return ran.reason("nvidia-smi" if ran.error == "missing" else what)
    if kind:
        return sentence
    return "" if ran.rc == 0 else ran.reason(what)


def parse(text: str) -> Dict[str, Any]:
    """Read the output of ``nvidia-smi -q -x``, whole or not.

    Returns:
        ``{"driver_version", "cuda_version", "attached"}`` (each only when it is there), ``"gpus"``: a list of tables as
        docs/FACTS.md describes ``gpu.gpus``, by bus address, and ``"problem"``: one phrase, empty when the document was whole.
    """
    found: Dict[str, Any] = {"gpus": [], "problem": ""}
    body = _DOCTYPE.sub("", text, count=1)
    if _DECLARATION.search(body):
        found["problem"] = "nvidia-smi printed XML with declarations of its own (DOCTYPE or ENTITY), which is refused"
        return found
    starts = list(itertools.islice(_GPU.finditer(body), MAX_GPUS + 1))
    head = body[:starts[0].start()] if starts else body[:20000]
    for name, value in _HEADER.findall(head):
        if name == "attached_gpus":
            if len(value) < 6 and value.isdigit():
                found["attached"] = int(value)
        else:
            found["cuda_version" if name.startswith("cuda") else "driver_version"] = value
    problems: List[str] = []
    for index, start in enumerate(starts[:MAX_GPUS]):
        limit = starts[index + 1].start() if index + 1 < len(starts) else len(body)
        end = body.find(_END, start.end(), limit)
        identity = _ID.search(start.group())
        name = bus_address(identity.group(1)) if identity else "number %d" % index
        if end < 0:
            problems.append("the document ended early, within GPU %s" % name)
            continue
        element = _element(body[start.start():end + len(_END)])
        if element is None:
            problems.append("what it says of GPU %s is not XML" % name)
            continue
        found["gpus"].append(_gpu(element, index, body[start.start():end]))
    if starts[MAX_GPUS:]:
        problems.append("it lists more than %d GPUs" % MAX_GPUS)
    if "<nvidia_smi_log" in body and "</nvidia_smi_log>" not in body and not problems:
        problems.append("the document ended early, after %d GPUs" % len(found["gpus"]))
    if not starts and not problems:
        problems.append(failure(body)[1] or "nvidia-smi -q -x named no GPU")
    elif starts and not problems:
        handle = _HANDLE.search(body)
        if handle:
            problems.append(failure(handle.group())[1] or "a GPU could not be opened")
        elif found.get("attached", 0) > len(found["gpus"]):
            problems.append("it counts %d GPUs and describes %d" % (found["attached"], len(found["gpus"])))
    found["problem"] = "; ".join(problems)[:300]
    found["gpus"].sort(key=lambda gpu: (str(gpu.get("bdf", "~")), gpu["index"]))
    return found


def _element(chunk: str) -> Optional[Element]:
    """One ``<gpu>`` element; when its lists (process names are not always escaped) spoil it, the element without them."""
    if len(chunk) > MAX_CHUNK:
        return None
    clean = _without(_FORBIDDEN.sub("?", chunk), "supported_clocks")
    for candidate in (clean, _without(_without(clean, "processes"), "accounted_processes")):
        try:
            return ElementTree.fromstring(candidate)
        except (ElementTree.ParseError, ValueError, RecursionError):
            continue
    return None


def _without(text: str, tag: str) -> str:
    """`text` without everything from its first ``<tag>`` to its last ``</tag>``."""
    start, end = text.find("<%s>" % tag), text.rfind("</%s>" % tag)
    return text if start < 0 or end < start else text[:start] + text[end + len(tag) + 3:]


def _text(element: Element, path: str) -> Optional[str]:
    """Text at `path`; None for absent elements and for the words that mean *not known*."""
    found = (element.findtext(path) or "").strip()
    return None if _NOTHING.match(found) else found[:200]


def _flag(value: Optional[str]) -> Optional[bool]:
    if value is None:
        return None
    word = value.lower()
    if word in ("enabled", "yes", "true", "active", "pending"):
        return True
    return False if word in ("disabled", "no", "false", "not active") else None


def _sum(element: Element, folder: str) -> Optional[int]:
    """Sum of all uncorrectable counters under `folder`, whatever the driver calls them; None when none is a number."""
    parent = element.find(folder)
    counts = [integer(child.text) for child in parent if "_uncorrectable" in child.tag and not _NOTHING.match((child.text or "").strip())] \
        if parent is not None else []
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _gpu(element: Element, index: int, chunk: str) -> Dict[str, Any]:
    """A ``gpu.gpus`` table of docs/FACTS.md from one ``<gpu>`` element."""
    device = _text(element, "pci/pci_device_id")
    gpu: Dict[str, Any] = {
        "index": index,
        "bdf": bus_address(_text(element, "pci/pci_bus_id") or element.get("id") or ""),
        "uuid": _text(element, "uuid"),
        "name": _text(element, "product_name"),
        "arch": _text(element, "product_architecture"),
        "serial": _text(element, "serial"),
        "vbios": _text(element, "vbios_version"),
        "pci_device": ("0x" + device.lower().replace("0x", "")) if device else None,
        "fb_total_mib": integer(_text(element, "fb_memory_usage/total")),
        "fb_used_mib": integer(_text(element, "fb_memory_usage/used")),
        "persistence": _flag(_text(element, "persistence_mode")),
        "mig": _text(element, "mig_mode/current_mig"),
    }
    pending = _text(element, "mig_mode/pending_mig")
    if pending and pending != gpu["mig"]:
        gpu["mig_pending"] = pending
    addressing = _text(element, "addressing_mode")
    gpu["addressing_mode"] = None if addressing in (None, "None") else addressing
    gpu["ecc"] = drop_empty({
        "current": _flag(_text(element, "ecc_mode/current_ecc")),
        "pending": _flag(_text(element, "ecc_mode/pending_ecc")),
        "volatile_uncorrectable": _sum(element, "ecc_errors/volatile"),
        "aggregate_uncorrectable": _sum(element, "ecc_errors/aggregate"),
        "threshold_exceeded": _only_true(element, "ecc_errors/aggregate/sram_threshold_exceeded"),
        "repair_pending": _only_true(element, "ecc_errors/channel_repair_pending") or _only_true(element, "ecc_errors/tpc_repair_pending"),
        "unrepairable": _only_true(element, "ecc_errors/unrepairable_memory"),
    })
    gpu["remap"] = drop_empty({
        "correctable": integer(_text(element, "remapped_rows/remapped_row_corr")),
        "uncorrectable": integer(_text(element, "remapped_rows/remapped_row_unc")),
        "pending": _flag(_text(element, "remapped_rows/remapped_row_pending")),
        "failure": _flag(_text(element, "remapped_rows/remapped_row_failure")),
    })
    link = "pci/pci_gpu_link_info/"
    gpu["pcie"] = drop_empty({
        "gen": integer(_text(element, link + "pcie_gen/current_link_gen")),
        "gen_max": integer(_text(element, link + "pcie_gen/max_link_gen")),
        "width": integer(_text(element, link + "link_widths/current_link_width")),
        "width_max": integer(_text(element, link + "link_widths/max_link_width")),
    })
    gpu["throttle"] = _throttle(element)
    gpu["temperature"] = integer(_text(element, "temperature/gpu_temp"))
    gpu["recovery_action"] = _recovery(element) or ("Reset" if _RESET.search(chunk) else None)
    gpu["fabric"] = _fabric(element)
    if _LOST.search(chunk):
        gpu["lost"] = True
    processes = _processes(element)
    gpu["processes"] = processes[:MAX_PROCESSES]
    if len(processes) > MAX_PROCESSES:
        gpu["processes_more"] = len(processes) - MAX_PROCESSES
    return drop_empty(gpu)


def _only_true(element: Element, path: str) -> Optional[bool]:
    return True if _flag(_text(element, path)) else None


def _throttle(element: Element) -> List[str]:
    """Names of the active reasons of :data:`THROTTLES`; the elements' prefix changed from clocks_throttle to clocks_event."""
    active = []
    for folder, prefix in (("clocks_event_reasons", "clocks_event_reason_"), ("clocks_throttle_reasons", "clocks_throttle_reason_")):
        active += [name for name in THROTTLES if _flag(_text(element, folder + "/" + prefix + name))]
    return list(dict.fromkeys(active))


def _recovery(element: Element) -> Optional[str]:
    """The action as printed; drivers before r570 say the same as two flags."""
    printed = _text(element, "gpu_recovery_action")
    if printed is not None:
        return printed
    drain = _flag(_text(element, "gpu_reset_status/drain_and_reset_recommended"))
    reset = _flag(_text(element, "gpu_reset_status/reset_required"))
    return "Reset" if reset else "Drain and Reset" if drain else "None" if reset is False else None


def _fabric(element: Element) -> Dict[str, Any]:
    state = _text(element, "fabric/state")
    if state is None:
        return {}
    cluster = _text(element, "fabric/clusterUuid")
    fabric = drop_empty({"state": state, "status": _text(element, "fabric/status"), "clique": _text(element, "fabric/cliqueId")})
    if cluster is not None:
        # The nil UUID is the tool's way to say that the GPU belongs to no cluster of several nodes.
        fabric["cluster"] = "" if cluster == NO_CLUSTER else cluster
    unhealthy = {}
    for name, good in _HEALTHY.items():
        value = _text(element, "fabric/health/" + name)
        if value is not None and value.lower() not in good:
            unhealthy[name] = value
    if unhealthy:
        fabric["health"] = unhealthy
    return fabric


def _processes(element: Element) -> List[Dict[str, Any]]:
    processes = []
    for item in element.iterfind("processes/process_info"):
        pid = integer(_text(item, "pid"))
        if pid is not None:
            name = _text(item, "process_name")
            processes.append(drop_empty({
                # The end of a long path tells more than its beginning.
                "pid": pid, "name": name if name is None or len(name) <= 64 else "..." + name[-61:],
                "type": _text(item, "type"), "used_mib": integer(_text(item, "used_memory")),
            }))
    return processes
