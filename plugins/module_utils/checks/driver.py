# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the NVIDIA driver: what is loaded, what the next boot would load, and whether it can be built."""

from __future__ import annotations

from typing import Optional, Tuple

from .model import Context, Node, Outcome, check, failed, passed, skipped, unsure, warned
from .values import dotted, flag, table, tables, text, version
from .wording import short

_INSTALL = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
_PROVISION = "`ansible-playbook inferops.vllm.provision --limit NODE`"
_REMEDIATE = "`ansible-playbook inferops.vllm.remediate --limit NODE`"

# What the kernel said while it refused the driver, by kind of docs/FACTS.md (driver.log).
_REFUSALS = {
    "key_rejected": "Secure Boot rejected the module's key",
    "gsp_missing": "GSP firmware is missing",
    "open_unsupported": "the open module does not support this GPU",
    "open_required": "this GPU needs the open module",
    "not_supported": "this driver release does not support the GPU",
    "rm_init_failed": "RmInitAdapter failed",
    "no_gpu": "the driver found no GPU",
    "bar_invalid": "a PCI I/O region is invalid",
}


def loaded(node: Node) -> Tuple[Optional[str], str]:
    """Version of the loaded driver (None: none is loaded) and why it is not known (empty: it is known)."""
    facts = node.get("driver")
    value = text(facts, "loaded")
    if value is not None:
        return (value, "") if version(value) else (None, "the loaded driver calls itself %s" % short(value, 40))
    why = node.why_unknown("driver.loaded")
    if not why and (not isinstance(facts, dict) or facts.get("loaded", "") is not None):
        why = "the loaded driver was not read"
    return None, why


def refusal(node: Node) -> str:
    """Why the kernel log says that the driver did not come up, empty when it does not say."""
    for line in node.items("driver.log"):
        kind = text(line, "kind") or ""
        if kind in _REFUSALS:
            return _REFUSALS[kind]
    return ""


@check(
    id="driver.branch",
    severity="block",
    title="Driver branch",
    why="The image's CUDA does not start on an older driver (CUDA error 803 or 35 at the first call).",
    fix="Install a driver of branch 580 or newer and reboot: " + _PROVISION + ".",
    read_from="/sys/module/nvidia/version, nvidia-smi",
    source="https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/",
)
def branch(node: Node, context: Context) -> Outcome:
    required = ">= %s" % dotted(context.driver_min)
    value, why = loaded(node)
    if why:
        return unsure(why, required)
    if value is None:
        said = refusal(node)
        return failed("no NVIDIA driver is loaded" + (": " + said if said else ""), required)
    if version(value)[: len(context.driver_min)] < tuple(context.driver_min):
        return failed("%s is loaded" % value, required)
    return _cuda(node, context, value, required)


def _cuda(node: Node, context: Context, value: str, required: str) -> Outcome:
    """The driver's CUDA against that of the image: the major version decides (minor version compatibility)."""
    image = text(node.get("container.image"), "cuda")
    wanted = version(image)[:1] or ((context.image_cuda_major,) if context.image_cuda_major else ())
    cuda = text(node.get("driver"), "cuda")
    if not wanted:
        return passed("%s" % value, required)
    required = "%s, CUDA >= %d" % (required, wanted[0])
    if not version(cuda):
        if wanted[0] == context.image_cuda_major:
            # driver_min is the lowest driver for just this CUDA, so the branch alone answers the question.
            return passed("%s (its CUDA version was not read)" % value, required)
        return unsure("%s is loaded, but its CUDA version was not read" % value, required)
    if version(cuda)[0] < wanted[0]:
        return failed("%s gives CUDA %s" % (value, cuda), required)
    return passed("%s, CUDA %s" % (value, cuda), required)


@check(
    id="driver.loaded_is_installed",
    severity="block",
    title="Loaded = on disk",
    why="After a driver update without reboot, tools and services of the new version refuse to work with the old module.",
    fix="Reboot the node, or reload the driver while nothing uses the GPUs: " + _REMEDIATE + ".",
    read_from="/sys/module/nvidia/version, modinfo nvidia",
    source=_INSTALL,
)
def loaded_is_installed(node: Node, context: Context) -> Outcome:
    facts = node.get("driver")
    value, why = loaded(node)
    disk = text(facts, "installed")
    required = "one version, loaded and on disk"
    why = why or ("" if disk else node.why_unknown("driver.installed"))
    if why:
        return unsure(why, required)
    if disk is None and (not isinstance(facts, dict) or facts.get("installed", "") is not None):
        return unsure("the driver on disk was not read", required)
    if value is None:
        if disk is None:
            return skipped("no driver is loaded or installed: see driver.branch")
        return failed("%s is installed, none is loaded" % short(disk, 40), required, fix="Load the driver or reboot: " + _REMEDIATE + ".")
    if disk is None or flag(facts, "installed_for_kernel") is False:
        return failed(
            "%s is loaded, but no module on disk is for the running kernel" % value,
            required,
            why="The driver does not come back after the next reboot or reload.",
            fix="Install the kernel's headers and rebuild the driver: " + _PROVISION + ".",
        )
    if disk != value:
        return failed("%s is loaded, %s is on disk" % (value, short(disk, 40)), required)
    flavours = (text(facts, "loaded_flavour"), text(facts, "installed_flavour"))
    if all(flavours) and flavours[0] != flavours[1]:
        return failed("%s: the %s module is loaded, the %s one is on disk" % (value, flavours[0], flavours[1]), required)
    return passed("%s, loaded and on disk" % value, required)


@check(
    id="driver.open_modules",
    severity="block",
    title="Open kernel modules",
    why="Grace and Blackwell GPUs work with the open kernel modules only.",
    fix="Replace the proprietary modules by the open ones (package nvidia-open) and reboot: " + _PROVISION + ".",
    read_from="/proc/driver/nvidia/version",
    source="https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules/",
)
def open_modules(node: Node, context: Context) -> Outcome:
    if not context.open_required:
        return skipped("%s GPUs work with either kind of module" % (context.hardware or "these"))
    value, why = loaded(node)
    if why:
        return unsure(why, "open")
    if value is None:
        return skipped("no driver is loaded: see driver.branch")
    flavour = text(node.get("driver"), "loaded_flavour")
    if flavour == "open":
        return passed("open", "open")
    if flavour == "proprietary":
        return failed("proprietary", "open")
    return unsure(node.why_unknown("driver.loaded_flavour") or "the kind of the loaded module was not read", "open")


@check(
    id="driver.userspace_match",
    severity="block",
    title="User space = module",
    why='libnvidia-ml and libcuda of another version than the module fail with "Driver/library version mismatch".',
    fix="Reboot the node, or reload the driver while nothing uses the GPUs: " + _REMEDIATE + ".",
    read_from="libnvidia-ml.so on disk, nvidia-smi",
    source=_INSTALL,
)
def userspace_match(node: Node, context: Context) -> Outcome:
    facts = node.get("driver")
    value, why = loaded(node)
    required = value or "the version of the loaded module"
    library = text(facts, "userspace")
    if flag(facts, "mismatch"):
        return failed(
            "NVML: driver/library version mismatch (module %s, library %s)" % (value or "not known", short(library or "not known", 30)),
            required,
        )
    if why:
        return unsure(why, required)
    if value is None:
        return skipped("no driver is loaded: see driver.branch")
    if library is None:
        return unsure(node.why_unknown("driver.userspace") or "no libnvidia-ml was found", required)
    seen = [library] + [v for v in (text(node.get("gpu.smi"), "driver_version"),) if v]
    wrong = [v for v in seen if v != value]
    if wrong:
        return failed("module %s, library %s" % (value, short(wrong[0], 40)), required)
    return passed("%s in both" % value, required)


@check(
    id="driver.nouveau",
    severity="block",
    title="nouveau absent",
    why="nouveau takes the GPUs before the NVIDIA driver can.",
    fix="Blacklist nouveau, rebuild the initramfs and reboot: " + _PROVISION + ".",
    read_from="/proc/modules, /etc/modprobe.d",
    source=_INSTALL,
)
def nouveau(node: Node, context: Context) -> Outcome:
    facts = table(node.get("driver"), "nouveau")
    here, barred = flag(facts, "loaded"), flag(facts, "blacklisted")
    required = "not loaded, blacklisted"
    if here:
        return failed("loaded", required)
    if here is None:
        return unsure(node.why_unknown("driver.nouveau") or "whether nouveau is loaded was not read", required)
    if barred is None:
        return unsure(node.why_unknown("driver.nouveau") or "not loaded; whether it is blacklisted was not read", required, severity="warn")
    if not barred and node.get("gpu.pci") == []:
        return skipped("not loaded, and no NVIDIA GPU on this node")
    if not barred:
        return warned(
            "not loaded, but not blacklisted", required, why="At the next boot nouveau may take the GPUs before the NVIDIA driver."
        )
    return passed("not loaded, blacklisted", required)


@check(
    id="driver.build_ready",
    severity="warn",
    title="Module can be built",
    why="Without headers and compiler for the running kernel DKMS cannot build the driver, and the next update takes it away.",
    fix="Install the headers of the running kernel and rebuild: " + _PROVISION + ".",
    read_from="/lib/modules/KERNEL/build, dkms status",
    source=_INSTALL,
)
def build_ready(node: Node, context: Context) -> Outcome:
    facts = node.get("driver")
    build = table(facts, "build")
    modules = tables(build, "dkms")
    required = "headers, compiler, DKMS module built for the running kernel"
    if modules is None:
        return unsure(node.why_unknown("driver.build") or "DKMS was not read", required)
    ours = [m for m in modules if (text(m, "module") or "").startswith("nvidia") and "peermem" not in (text(m, "module") or "")]
    for_kernel = flag(facts, "installed_for_kernel")
    if not ours:
        if for_kernel:
            return passed("a packaged module for the running kernel, no DKMS", required)
        if for_kernel is None:
            return unsure(node.why_unknown("driver.installed_for_kernel") or "modules of the running kernel were not read", required)
        if text(facts, "installed") is None:
            return skipped("no driver is installed: see driver.branch")
        return failed("no module for the running kernel and none in DKMS", required, severity="block")
    lacking = [word for word in ("headers", "compiler") if flag(build, word) is False]
    unread = [word for word in ("headers", "compiler") if flag(build, word) is None]
    kernel = node.get("host.kernel")
    built = [m for m in ours if text(m, "kernel") == kernel and text(m, "status") == "installed"] if isinstance(kernel, str) else []
    if lacking:
        return failed("%s missing for the running kernel" % " and ".join(lacking), required)
    if unread:
        return unsure("%s not read" % " and ".join(unread), required)
    if not isinstance(kernel, str):
        return unsure(node.why_unknown("host.kernel") or "the running kernel was not read", required)
    if not built and not for_kernel:
        states = ["%s %s" % (short(text(m, "version") or "?", 20), short(text(m, "status") or "?", 20)) for m in ours[:2]]
        return failed("DKMS has %s, none for %s" % (", ".join(states), short(kernel, 40)), required)
    if built and for_kernel is False:
        return failed("DKMS calls %s built for %s, and its file is damaged" % (short(text(built[0], "version") or "it", 30), short(kernel, 40)), required)
    return passed("headers, compiler, DKMS %s" % short(text((built or ours)[0], "version") or "module", 30), required)


@check(
    id="driver.secure_boot",
    severity="block",
    title="Secure Boot",
    why='With Secure Boot on, the kernel refuses a module whose key is not enrolled ("Key was rejected by service").',
    fix="Use the distribution's signed modules, or enrol the signing key at the console (MOK), then reboot; no playbook does that.",
    read_from="mokutil --sb-state, modinfo nvidia",
    source=_INSTALL,
)
def secure_boot(node: Node, context: Context) -> Outcome:
    facts = table(node.get("driver"), "secure_boot")
    enabled, signer = flag(facts, "enabled"), text(facts, "signer")
    required = "off, or a module signed with an enrolled key"
    rejected = any(text(line, "kind") == "key_rejected" for line in node.items("driver.log"))
    value, why = loaded(node)
    if rejected and value is None:
        return failed("the kernel rejected the module's key", required)
    if enabled is False:
        return passed("off", required)
    if value is not None and not why:
        # A loaded module was accepted, whatever the firmware says; only the one on disk could still be refused.
        if enabled and not signer and node.get("driver.installed") is not None:
            return warned("on; the loaded module was accepted, the one on disk names no signer", required)
        return passed(
            "%s; the loaded module was accepted"
            % ("on, signed by %s" % short(signer, 40) if enabled and signer else "on" if enabled else "state not read"),
            required,
            assumed=enabled is None,
        )
    if enabled is None:
        return unsure(node.why_unknown("driver.secure_boot") or "the state of Secure Boot was not read", required)
    if signer:
        return passed("on, signed by %s" % short(signer, 40), required, assumed=True)
    if node.get("driver.installed") is None:
        return skipped("no driver is installed: see driver.branch")
    return failed("on, and the module names no signer", required)
