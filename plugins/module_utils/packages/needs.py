# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node needs besides the driver itself, from its facts and its hardware.

Sources: https://github.com/NVIDIA/deepops/tree/3957a42f (platforms of DGX OS 7: who runs Fabric Manager, nvlsm, IMEX),
https://github.com/NVIDIA/open-gpu-kernel-modules and the start script of nvidia-fabricmanager (SW_MNG in the HCAs' product data), 2026-10.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from ..node.text import integer
from ..plan.groups import NODE_GROUPS
from ..plan.profiles import HARDWARE, hardware_of_name, hardware_of_pci

MACHINES = ("kvm", "qemu", "vmware", "microsoft", "amazon", "xen", "oracle", "vm-other", "google", "bochs", "parallels", "bhyve")
FABRICS = ("auto", "nvswitch", "nvlink5", "mnnvl", "none")
"""What joins the GPUs of a node: the word of the hardware tables, or ``auto``."""


def _table(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = facts.get(key)
    return value if isinstance(value, Mapping) else {}


def _items(facts: Mapping[str, Any], key: str) -> List[Mapping[str, Any]]:
    """The tables in a list of the facts; facts of a recording may be anything."""
    value = facts.get(key)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, (list, tuple)) else []


def hardware_of(facts: Mapping[str, Any]) -> str:
    """Key of the hardware table for the GPUs that the facts name, by PCI id, else by product name; empty when none is known."""
    gpu = _table(facts, "gpu")
    for entry in _items(gpu, "pci"):
        found = hardware_of_pci(str(entry.get("device", "")))
        if found:
            return found
    for entry in _items(gpu, "gpus"):
        found = hardware_of_name(str(entry.get("name", "")))
        if found:
            return found
    return ""


def needs(facts: Mapping[str, Any], hardware: str = "", flavour: str = "auto", fabric: str = "auto") -> Dict[str, Any]:
    """What is to be installed and run on a node.

    Args:
        facts: ``vllm_node`` as in docs/FACTS.md (host, driver, gpu, fabric), or empty.
        hardware: word of ``vllm_hardware``; empty or ``auto`` looks at the facts.
        flavour: ``auto``, ``open`` or ``proprietary``.
        fabric: word of FABRICS; ``auto`` looks at hardware and facts.

    Returns:
        ``{"skip": why no driver belongs here or "", "refuse": sentence or "", "hardware", "flavour", "fabric", "manager": bool,
        "nvlsm": bool, "imex": bool, "components": [words of the driver_packages module], "reasons": [sentences]}``
    """
    gpu, found = _table(facts, "gpu"), _table(facts, "fabric")
    unknown = _table(gpu, "unknown")
    seen = hardware_of(facts)
    word = hardware if hardware not in ("", "auto") else seen
    row = HARDWARE.get(word)
    answer: Dict[str, Any] = {
        "skip": "", "refuse": "", "hardware": word, "flavour": "open" if flavour == "auto" else flavour, "fabric": "none",
        "manager": False, "nvlsm": False, "imex": False, "components": [], "reasons": [],
    }
    reasons: List[str] = answer["reasons"]
    if row and row.vendor != "nvidia":
        answer["skip"] = "%s has no NVIDIA GPU" % row.title if row.vendor != "cpu" else "hardware cpu has no GPU"
        return answer
    if row is None and facts and not gpu.get("pci") and not gpu.get("gpus") and "pci" not in unknown:
        answer["skip"] = "no NVIDIA GPU is on the bus"
        return answer
    if row and seen and seen != word:
        answer["refuse"] = "vllm_hardware says %s, but the GPUs on the bus are %s" % (word, seen)
        return answer
    if row and row.open_modules and answer["flavour"] == "proprietary":
        answer["refuse"] = "%s runs with the open kernel modules only, so driver_flavour cannot be proprietary" % row.title
        return answer
    kind = fabric if fabric != "auto" else (row.fabric if row else "")
    if not kind:
        kind = "nvlink5" if found.get("sw_mng") else "nvswitch" if (integer(found.get("nvswitches")) or 0) > 0 else "none"
        reasons.append("this hardware is in no table: %s" % {
            "nvlink5": "HCAs manage NVLink switches", "nvswitch": "there are NVSwitches", "none": "there is no NVSwitch"}[kind])
    answer["fabric"] = kind
    virtual = str(_table(facts, "host").get("virt") or "")
    if kind in ("nvswitch", "nvlink5"):
        if fabric == "auto" and virtual in MACHINES and not found.get("nvswitches") and not found.get("sw_mng"):
            answer["fabric"] = "none"
            reasons.append("a virtual machine (%s) without NVSwitches: the host runs Fabric Manager" % virtual)
        else:
            answer["manager"] = True
            answer["nvlsm"] = kind == "nvlink5"
            reasons.append("Fabric Manager%s: the GPUs are joined by %s" % (
                " and the NVLink subnet manager" if answer["nvlsm"] else "", "NVLink 5 switches" if answer["nvlsm"] else "NVSwitches"))
    elif kind == "mnnvl":
        answer["imex"] = True
        reasons.append("IMEX and no Fabric Manager: the NVLink switches are outside of this tray")
    answer["components"] = (["fabricmanager"] if answer["manager"] else []) + (["nvlsm"] if answer["nvlsm"] else []) + (
        ["imex"] if answer["imex"] else [])
    return answer


def imex_nodes(groups: Mapping[str, Any], hostvars: Mapping[str, Any], host: str) -> List[str]:
    """Addresses of the IMEX domain of `host`, in the order of the inventory, so that every tray writes the same file.

    Hosts of the node groups with the same ``vllm_nvlink_domain`` (without the variable all hosts are one domain). The address is
    ``vllm_host_ip``.

    Raises:
        ValueError: a host has no ``vllm_host_ip``, or two have the same.
    """
    names = [str(name) for group in NODE_GROUPS for name in groups.get(group) or ()]
    ordered = list(dict.fromkeys(names)) or [host]

    def variable(name: str, key: str) -> str:
        value = (hostvars.get(name) or {}).get(key)
        return "" if value is None else str(value)

    domain = variable(host, "vllm_nvlink_domain")
    members = [name for name in ordered if variable(name, "vllm_nvlink_domain") == domain]
    addresses = [variable(name, "vllm_host_ip") for name in members]
    without = [name for name, address in zip(members, addresses) if not address]
    if without:
        raise ValueError("IMEX needs an address of every tray: set vllm_host_ip for %s" % ", ".join(without))
    twice = sorted({address for address in addresses if addresses.count(address) > 1})
    if twice:
        raise ValueError("IMEX needs one address a tray: %s is the vllm_host_ip of two hosts" % ", ".join(twice))
    return addresses


def restart_dangers(facts: Mapping[str, Any], modules: Sequence[str]) -> List[str]:
    """Why the modules of the network must not be unloaded: interfaces that carry the SSH session or the default route over them.

    Args:
        facts: with section ``rdma``.
        modules: modules that would be unloaded, such as mlx5_core.

    Returns:
        Sentences; what could not be read is a danger, too. Empty when nothing speaks against it.
    """
    if not any(name.replace("-", "_") in ("mlx5_core", "mlx5_ib", "mlx_compat", "ib_core", "ib_uverbs") for name in modules):
        return []
    rdma = _table(facts, "rdma")
    if not rdma:
        return ["the network of this node was not read"]
    dangers = []
    for hca in _items(rdma, "hcas"):
        carries = hca.get("carries")
        if carries and isinstance(carries, (list, tuple)):
            words = {"ssh": "this SSH session", "default_route": "the default route"}
            dangers.append("%s carries %s" % (hca.get("name"), " and ".join(words.get(str(one), str(one)) for one in carries)))
    unknown = _table(rdma, "unknown")
    for key, what in (("ssh", "over which interface this SSH session runs"), ("default_route", "over which interface the default route leads")):
        if key in unknown:
            dangers.append("it is not known %s (%s)" % (what, unknown[key]))
    return dangers


def plan_line(facts: Mapping[str, Any], answer: Mapping[str, Any], branch: str, version: str = "") -> str:
    """One line that says what will be done on a node."""
    if answer.get("refuse"):
        return "refused: %s" % answer["refuse"]
    if answer.get("skip"):
        return "no driver (%s)" % answer["skip"]
    driver = _table(facts, "driver")
    now = driver.get("installed") or "none"
    loaded = driver.get("loaded") or "none"
    wanted = version or "branch %s" % branch
    stays = str(now) == version if version else str(now).startswith(branch + ".")
    told = ["driver %s installed, %s loaded" % (now, loaded), "stays" if stays else "to %s (%s modules)" % (wanted, answer.get("flavour"))]
    if stays and now != loaded:
        told.append("to be loaded")
    extra = [word for key, word in (("manager", "Fabric Manager"), ("nvlsm", "nvlsm"), ("imex", "IMEX")) if answer.get(key)]
    return "%s: %s%s" % (answer.get("hardware") or "unknown GPUs", ", ".join(told), "; " + ", ".join(extra) if extra else "")


def rdma_needs(facts: Mapping[str, Any], manage: str = "auto", interconnect: str = "auto", peermem: str = "auto") -> Dict[str, str]:
    """Whether RDMA is configured on a node, and what becomes of nvidia_peermem.

    Args:
        facts: with the sections rdma and gpudirect.
        manage: ``auto``, ``true`` or ``false``. interconnect: word of ``vllm_interconnect``. peermem: ``auto``, ``present`` or ``absent``.

    Returns:
        ``{"skip": why nothing is done or "", "peermem": present | absent | ""}``; with ``auto`` nvidia_peermem is loaded where NVIDIA's RDMA
        stack runs, without which it cannot work, and left alone elsewhere: dma-buf needs no such module.
    """
    rdma = _table(facts, "rdma")
    skip = ""
    if manage == "false":
        skip = "rdma_manage is false"
    elif manage != "true" and interconnect in ("nvlink", "none"):
        skip = "the nodes are joined by %s" % ("NVLink" if interconnect == "nvlink" else "nothing")
    elif manage != "true" and interconnect != "rdma" and not rdma.get("hcas"):
        skip = "there is no HCA"
    state = peermem
    if peermem == "auto":
        state = "present" if _table(rdma, "ofed").get("flavour") == "ofed" and rdma.get("hcas") else ""
    return {"skip": skip, "peermem": state}


def driver_faults(facts: Mapping[str, Any], version: str = "") -> List[str]:
    """What is wrong with the driver after it was installed, as sentences; `version` is the one that was wanted, empty for any."""
    driver = _table(facts, "driver")
    loaded, installed, user = driver.get("loaded"), driver.get("installed"), driver.get("userspace")
    faults = []
    if not installed:
        faults.append("no driver module is installed for the running kernel")
    elif version and installed != version:
        faults.append("module %s is installed, %s was wanted" % (installed, version))
    if not loaded:
        faults.append("no driver is loaded")
    elif installed and loaded != installed:
        faults.append("%s is loaded and %s is installed: reboot the node (driver_reboot_allowed: true), or end what uses the GPUs" % (loaded, installed))
    if user and installed and user != installed:
        faults.append("the libraries are of %s, the module on disk is of %s" % (user, installed))
    nouveau = _table(driver, "nouveau")
    if nouveau.get("loaded"):
        faults.append("nouveau is still loaded: reboot the node (driver_reboot_allowed: true)")
    return faults


def fabric_faults(facts: Mapping[str, Any], answer: Mapping[str, Any]) -> List[str]:
    """What is wrong with Fabric Manager or IMEX after they were set up, as sentences."""
    loaded, fabric = _table(facts, "driver").get("loaded"), _table(facts, "fabric")
    faults = []
    for key, part, title in (("manager", "manager", "Fabric Manager"), ("imex", "imex", "IMEX")):
        if not answer.get(key):
            continue
        found = _table(fabric, part)
        if loaded and found.get("version") != loaded:
            faults.append("%s is of %s, the loaded driver of %s" % (title, found.get("version") or "no version", loaded))
        service = _table(found, "service")
        if service.get("active") != "active":
            told = [str(line.get("text")) for line in _items(found, "log") if line.get("kind") != "configured"]
            faults.append("%s is %s%s" % (title, service.get("active") or "not there", ": " + told[-1] if told else ""))
    if answer.get("nvlsm") and not _table(fabric, "nvlsm").get("version"):
        faults.append("nvlsm is not installed")
    return faults
