# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules that turn what was found in logs into words: phase, class, next step. No reading here, only decisions."""

from __future__ import annotations

import functools
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from . import phases
from .kernel import Fault
from .signatures import CAUSES, Signature, rows

_RUNTIME = ("api_ready", "prefill", "decode")

# Exceptions that no signature knows, by type: class, certainty is low. The message is not known, so only the kind of error speaks.
GENERIC: Tuple[Tuple[str, str, str], ...] = (
    (r"(?:ModuleNotFoundError|ImportError)$", "dependency", "dep_missing_module"),
    (r"(?:PermissionError)$", "storage", "storage_access"),
    (r"(?:FileNotFoundError|NotADirectoryError|IsADirectoryError)$", "weights", "weights_read_failure"),
    (r"(?:ValidationError|ArgumentError|ArgumentTypeError|HFValidationError|UsageError)$", "configuration", "config_error"),
    (r"(?:ZMQError|BindError)$", "configuration", "port_collision"),
    (r"(?:DistNetworkError|DistStoreError|ConnectionRefusedError|gaierror)$", "rendezvous", "rendezvous_unreachable"),
    (r"(?:DistBackendError)$", "nccl_other", "nccl_unknown"),
    (r"(?:OutOfMemoryError)$", "oom", "oom_profile_warmup"),
    (r"(?:AcceleratorError|CudaError)$", "cuda_crash", "cuda_illegal_memory_access"),
    (r"nixl\w*Error$", "nixl", "nixl_transport"),
    (r"(?:SafetensorError|UnpicklingError)$", "weights", "weights_read_failure"),
    (r"(?:CompilationError|CompileError|OutOfResources|InductorError|BackendCompilerFailed)$", "engine_bug", "model_or_fork_bug"),
    (r"(?:TimeoutError)$", "startup_timeout", "startup_timeout"),
)


class Match(NamedTuple):
    """A signature that matched a line."""

    row: Signature
    text: str


_BY_NEEDLE: List[Tuple[str, Tuple[Signature, ...]]] = []


def _index() -> List[Tuple[str, Tuple[Signature, ...]]]:
    if not _BY_NEEDLE:
        grouped: Dict[str, List[Signature]] = {}
        for row in rows():
            grouped.setdefault(row.needle, []).append(row)
        _BY_NEEDLE.extend((needle, tuple(found)) for needle, found in grouped.items())
    return _BY_NEEDLE


_RANKS = {"noise": 3, "decoy": 2, "relay": 1, "root": 0}


@functools.lru_cache(maxsize=4096)
def match(text: str) -> Optional[Signature]:
    """The row that says what a line is: noise and decoys before relays before roots, and of several roots the weightiest."""
    best: Optional[Signature] = None
    key = (-1, -1)
    for needle, found in _index():
        if needle not in text:
            continue
        for row in found:
            own = (_RANKS[row.role], row.weight)
            if own > key and (not row.pattern or phases.compiled(row.pattern).search(text)):
                best, key = row, own
    return best


# Where a traceback of unknown message ended: the library that raised it says more than the type. The deepest frame counts.
RAISED_IN: Tuple[Tuple[str, str, str], ...] = (
    (r"kv_offload|offloading(?:_connector)?\b|lmcache", "engine_bug", "kv_offload_connector_bug"),
    (r"nixl", "nixl", "nixl_transport"),
    (r"deep_ep|nvshmem", "nvshmem", "nvshmem_init"),
    (r"_symmetric_memory|symm_mem\.py", "nvlink", "symmetric_memory"),
    (r"pynccl", "nccl_other", "nccl_unknown"),
    (r"flashinfer/jit|cpp_extension|triton/(?:backends|compiler|runtime/build)|tvm_ffi", "dependency", "jit_build_failure"),
    (r"safetensors|weight_utils", "weights", "weights_read_failure"),
    (r"huggingface_hub|hf_transfer|hf_xet", "weights", "hub_access"),
    (r"/ray/", "configuration", "ray_placement"),
    (r"torch/(?:_dynamo|_inductor)", "engine_bug", "model_or_fork_bug"),
)


def generic(exception: str, phase: str, frames: str) -> Tuple[str, str]:
    """Class and cause of an exception that no signature knows.

    Args:
        exception: ``Type: message``.
        phase: phase that the traceback's functions tell, empty unknown.
        frames: its frames, deepest last.

    Returns:
        ``("engine_bug", "unknown")`` when neither its type nor where it was raised says anything.
    """
    name = exception.split(":", 1)[0].strip()
    deepest = "\n".join(frames.split("\n")[-2:])
    for pattern, cls, cause in RAISED_IN:
        if phases.compiled(pattern).search(deepest):
            return cls, cause
    for pattern, cls, cause in GENERIC:
        if phases.compiled(pattern).search(name):
            return cls, cause
    if phase == "weights_load" and name.endswith(("KeyError", "AssertionError")):
        return "weights", "model_version_mismatch"
    return "engine_bug", "unknown"


def split_oom(phase: str, stage: str, text: str) -> Tuple[str, str]:
    """Class and cause of GPU memory that ran out, by phase: weights, cache, warm-up, serving, or another process on the GPU."""
    if other_process(text):
        return "gpu_busy", "gpu_memory_busy"
    if phase == "weights_load":
        return "oom_weights", "oom_weights_load"
    if phase in _RUNTIME or phase == "shutdown":
        return "oom_runtime", "oom_runtime"
    if phase in ("device_init", "distributed_init", "container_init"):
        return "gpu_busy", "gpu_memory_busy"
    if stage == "kv":
        return "oom_kv_sizing", "oom_kv_sizing"
    return "oom_warmup", "oom_cudagraph" if stage in ("capture", "captured") else "oom_profile_warmup"


_OTHER = re.compile(r"Process \d{1,9} has ([\d.]{1,9}) (GiB|MiB) memory in use")
_TOTAL = re.compile(r"total capacity of ([\d.]{1,9}) (GiB|MiB)")


def other_process(text: str) -> bool:
    """PyTorch's message names another process that holds at least a tenth of the GPU.

    Only where it also says what *this* process holds: inside a container the own process appears under its outer number.
    """
    if "this process has" not in text:
        return False
    total = _TOTAL.search(text)
    size = _gib(total.group(1), total.group(2)) if total else 0.0
    held = sum(_gib(found.group(1), found.group(2)) for found in _OTHER.finditer(text))
    return held > 0 and held >= size / 10


def _gib(number: str, unit: str) -> float:
    try:
        return float(number) / (1 if unit == "GiB" else 1024)
    except ValueError:
        return 0.0


def weight_of(told: Fault) -> int:
    """How much of a root a message of the driver is: codes that a faulty kernel or program causes (13, 31, 45 …) weigh less than the
    engine's own message about the same crash."""
    return {"ignored": 2, "application": 6}.get(told.group, 9)


_STEP = {
    "application": "Start the engine again: NVIDIA's catalogue asks for no more after this code",
    "reset": "Drain the node and reset the GPU", "reboot": "Drain the node and reboot it",
    "support": "Drain the node and hand the GPU to its vendor's support", "ignored": "Look for the error before it: this code only follows one"}


def fault_action(told: Fault, whose: str = "") -> str:
    """The next step for a message of the driver, as one sentence; `whose` says which GPU and rank it is."""
    if told.kind == "sxid":
        step = "Drain the node and reset all its GPUs and NVSwitches together (reboot it where that fails)" if told.group == "reset" else _STEP["ignored"]
    else:
        step = _STEP.get(told.group, _STEP["reset"])
    return "%s (%s)." % (step, ", ".join(part for part in (_name(told), whose) if part))


def fault_text(told: Fault, whose: str = "") -> str:
    """A message of the driver in words: code, NVIDIA's action, address, whose GPU it is, and what happened."""
    # Xid 154 carries its action in its text.
    action = " (NVIDIA's action: %s)" % told.action if told.action and not told.action.startswith("XID_") else ""
    return "kernel: %s%s%s: %s" % (_name(told), action, ", " + whose if whose else "", told.text)


def _name(told: Fault) -> str:
    kind = {"xid": "Xid %d", "sxid": "SXid %d"}.get(told.kind)
    return "%s on %s" % (kind % told.code if kind else "GPU off the bus", told.address)


def sentence(action: str, remedy: str, node: str) -> Tuple[str, str]:
    """The one next step with its playbook call, and the call alone (empty where none is known)."""
    call = remedy.replace("--limit NODE", "--limit %s" % node if node else "").replace("  ", " ").strip()
    if not call:
        return action, ""
    return "%s (%s)." % (action.rstrip("."), call), call


def action_of(cause: str) -> Tuple[str, str]:
    """Default next step and playbook of a cause."""
    known = CAUSES.get(cause) or CAUSES["unknown"]
    return known.action, known.remedy
