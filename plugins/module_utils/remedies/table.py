# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The remedies, and which of them answers which fault.

Read from top to bottom: the first choice of a fault whose test holds decides. The last choice of every fault holds always.
"""

from __future__ import annotations

from typing import Dict, Tuple

from ..kernel.module import OWN_BLOCK, OWN_LOAD
from .model import Choice, Guard, Remedy
from .state import State

_DRIVER_GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
_FM_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
_IMEX_GUIDE = "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/overview.html"
_RDMA_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html"
_RECOVERY = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html"
_XID = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
_CDI = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"
_RELOAD = "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48"
_RECIPE = "https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml"
_NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_VLLM = "https://docs.vllm.ai/en/latest/usage/troubleshooting/"


# -- tests -------------------------------------------------------------------------------------------------------
def always(state: State) -> bool:
    return True


def cannot_reload(state: State) -> bool:
    """The driver's modules cannot be taken out while the node runs."""
    return state.holders in ("foreign", "stuck", "unknown") or state.modules is not True


def _driver_and_reboot(state: State) -> Tuple[str, ...]:
    return ("driver", "reboot") if cannot_reload(state) else ("driver",)


def _driver(state: State) -> Tuple[str, ...]:
    return ("driver",)


def _reboot(state: State) -> Tuple[str, ...]:
    return ("reboot",)


def _kill(state: State) -> Tuple[str, ...]:
    return ("kill",)


# -- guards ------------------------------------------------------------------------------------------------------
RECORDED = Guard(lambda s: s.recorded, "These facts are a recording; a recorded node cannot be changed.")
FOREIGN = Guard(
    lambda s: s.holders == "foreign",
    "Another process holds the GPUs; end it, or allow it to be killed (remediate_allow: [kill]), before the driver is touched.",
)
STUCK = Guard(lambda s: s.holders == "stuck", "A process is stuck in a driver and cannot be killed; only a reboot helps (remediate_allow: [reboot]).")
HOLDERS_UNKNOWN = Guard(lambda s: s.holders == "unknown", "Who holds the GPUs could not be read, so nothing that they use is touched.")
CONTAINER = Guard(lambda s: s.modules is not True, "This node is a container, or that could not be told: modules belong to the machine that carries it.")
SSH = Guard(lambda s: bool(s.ssh), "SSH or the default route runs over a compute HCA of this node, which is not changed from afar; use the console.")
BROKEN_PACKAGES = Guard(
    lambda s: bool(s.packages), "Packages are half configured; repair them first (driver_repair_packages: true), since every installation would fail."
)
SIGNED = Guard(lambda s: s.secure_boot is True, "Secure Boot is on: a module that is built here is refused until its key is enrolled at the console.")
NO_HEADERS = Guard(lambda s: s.headers is False, "The headers of the running kernel are missing, so no module can be built.")
NO_RELEASE = Guard(lambda s: not s.deployed, "No release of this collection stands on the node; deploy first: `ansible-playbook inferops.vllm.deploy`.")
PEERMEM_FIRST = Guard(
    lambda s: s.peermem_everywhere is not True,
    "NCCL_DMABUF_ENABLE=0 needs nvidia_peermem loaded on every node of the engine; without it GPU memory is not reached at all.",
)
NEEDS_DIGEST = Guard(lambda s: "image_digest" not in s.declared, "The image is declared without a digest; declare vllm_image as name@sha256:… first.")


FILES_BACK = ("remediation", "files_back")


def _boots(*modules: str) -> Tuple[str, ...]:
    """Files that load `modules` at boot, or keep them from it, as the module kernel_module writes them."""
    return tuple(path % name for name in modules for path in (OWN_LOAD, OWN_BLOCK))


def _remedies() -> Tuple[Remedy, ...]:
    driver_harm = ("driver", "gpu", "fabric", "gpudirect", "container")
    return (
        # Driver
        Remedy(
            "driver_upgrade",
            "Install the driver of the planned branch and load it",
            (("driver", "branch"), ("driver", "reload_modules"), ("driver", "reboot"), ("fabric", "main")),
            "driver packages, the loaded modules, what joins the GPUs",
            ("remediation", "driver_previous"),
            needs=_driver_and_reboot,
            guards=(STUCK, HOLDERS_UNKNOWN, FOREIGN, CONTAINER, BROKEN_PACKAGES, SIGNED),
            stops_service=True,
            reboots=cannot_reload,
            # What was there before is a driver that serves nobody.
            onward=True,
            recheck=("driver.branch", "driver.loaded_is_installed", "driver.userspace_match"),
            harm=driver_harm,
            source=_DRIVER_GUIDE,
        ),
        Remedy(
            "driver_activate",
            "Load the driver that is installed",
            (("driver", "reload_modules"), ("driver", "reboot")),
            "the loaded modules",
            permanent="The version that was loaded is no longer on disk.",
            needs=_driver_and_reboot,
            guards=(CONTAINER,),
            stops_service=True,
            reboots=cannot_reload,
            recheck=("driver.loaded_is_installed", "driver.userspace_match"),
            harm=driver_harm,
            source=_DRIVER_GUIDE,
        ),
        Remedy(
            "driver_build",
            "Install the headers of the running kernel and build the driver for it",
            (("driver", "headers"),),
            "header packages, modules on disk",
            permanent="Headers beside a driver harm nothing.",
            guards=(CONTAINER, BROKEN_PACKAGES),
            needs=_driver,
            recheck=("driver.build_ready",),
            harm=("driver",),
            source=_DRIVER_GUIDE,
        ),
        Remedy(
            "driver_repair",
            "Finish the half-configured packages",
            (("remediation", "driver_repair"),),
            "state of the package manager",
            permanent="A half-configured package is no state to go back to.",
            needs=_driver,
            guards=(CONTAINER,),
            # The driver that is whole then may still have to be loaded, which is a remedy of its own.
            recheck=("driver.build_ready",),
            harm=("driver",),
            source=_DRIVER_GUIDE,
        ),
        Remedy(
            "nouveau_off",
            "Blacklist nouveau and take it out",
            (("driver", "nouveau"), ("driver", "reload_modules"), ("driver", "reboot")),
            "/etc/modprobe.d, the initramfs, the loaded modules",
            FILES_BACK,
            files=("/etc/modprobe.d/inferops-vllm-nouveau.conf",),
            needs=_driver_and_reboot,
            guards=(CONTAINER,),
            stops_service=True,
            reboots=cannot_reload,
            recheck=("driver.nouveau",),
            harm=("driver", "gpu"),
            source=_DRIVER_GUIDE,
        ),
        Remedy(
            "persistence_on",
            "Start the persistence daemon, now and at each boot",
            (("driver", "persistence"),),
            "nvidia-persistenced.service",
            ("remediation", "persistence_undo"),
            guards=(STUCK,),
            recheck=("gpu.persistence",),
            harm=("gpu",),
            source="https://docs.nvidia.com/deploy/driver-persistence/",
        ),
        # GPUs
        Remedy(
            "gpu_reset",
            "Reset the GPUs",
            (("remediation", "gpu_reset"),),
            "state of the GPUs",
            permanent="A reset has nothing to go back to.",
            needs=_driver,
            guards=(STUCK, HOLDERS_UNKNOWN, FOREIGN, CONTAINER),
            stops_service=True,
            radius="domain",
            recheck=("gpu.recovery_action", "gpu.remap", "gpu.ecc"),
            harm=("gpu", "fabric"),
            source=_RECOVERY,
        ),
        Remedy(
            "mig_off",
            "Turn MIG off and reset the GPUs",
            (("remediation", "mig_off"), ("remediation", "gpu_reset")),
            "MIG mode of the GPUs",
            ("remediation", "mig_on"),
            needs=_driver,
            guards=(STUCK, HOLDERS_UNKNOWN, FOREIGN, CONTAINER),
            stops_service=True,
            radius="domain",
            recheck=("gpu.mig",),
            harm=("gpu", "fabric"),
            source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
        ),
        Remedy(
            "reboot",
            "Reboot the node",
            (("remediation", "reboot"),),
            "everything that runs",
            permanent="A reboot has nothing to go back to.",
            needs=_reboot,
            guards=(),
            stops_service=True,
            reboots=always,
            radius="engine",
            recheck=("gpu.count", "gpu.recovery_action", "host.stuck", "host.pending_reboot"),
            harm=("driver", "gpu", "fabric", "rdma", "gpudirect", "container", "host"),
            source=_RECOVERY,
        ),
        Remedy(
            "holders_kill",
            "End the processes that hold the GPUs",
            (("remediation", "kill_holders"),),
            "processes that are not ours",
            permanent="A process that was ended is gone.",
            needs=_kill,
            guards=(STUCK, HOLDERS_UNKNOWN),
            recheck=("gpu.idle", "gpu.memory"),
            harm=("gpu",),
            source=_VLLM,
        ),
        Remedy(
            "engine_clear",
            "Take away what is left of our engine and start it anew",
            (("remediation", "engine_clear"),),
            "our own service and its processes",
            permanent="What is taken away serves nobody.",
            guards=(STUCK, NO_RELEASE),
            stops_service=True,
            starts_service=True,
            radius="engine",
            recheck=("gpu.idle",),
            harm=("gpu", "container"),
            tries=2,
            source=_VLLM,
        ),
        # Fabric
        Remedy(
            "fabric_packages",
            "Install the fabric software in the driver's own version and start it",
            (("fabric", "packages"), ("fabric", "start")),
            "packages of Fabric Manager, nvlsm or IMEX",
            permanent="Fabric software of another version than the driver's serves nobody.",
            needs=_driver,
            guards=(STUCK, BROKEN_PACKAGES),
            stops_service=True,
            radius="domain",
            recheck=("fabric.manager", "fabric.nvlsm", "fabric.imex"),
            harm=("driver", "fabric", "gpu"),
            source=_FM_GUIDE,
        ),
        Remedy(
            "fabric_start",
            "Start the fabric software, now and at each boot",
            (("remediation", "fabric_start"),),
            "nvidia-fabricmanager.service",
            ("remediation", "fabric_stop"),
            guards=(STUCK,),
            stops_service=True,
            recheck=("fabric.manager",),
            harm=("fabric", "gpu"),
            source=_FM_GUIDE,
        ),
        Remedy(
            "fabric_restart",
            "Restart Fabric Manager",
            (("remediation", "fabric_restart"),),
            "the NVLink fabric of the node",
            permanent="The fabric is set up anew; its earlier state was the fault.",
            guards=(STUCK, FOREIGN, HOLDERS_UNKNOWN),
            stops_service=True,
            recheck=("fabric.state", "fabric.manager"),
            harm=("fabric", "gpu"),
            tries=2,
            source=_FM_GUIDE,
        ),
        Remedy(
            "fabric_off",
            "Stop the Fabric Manager that manages nothing here",
            (("fabric", "no_fabricmanager"),),
            "nvidia-fabricmanager.service",
            ("remediation", "fabric_start"),
            recheck=("fabric.manager",),
            harm=("fabric",),
            source=_FM_GUIDE,
        ),
        Remedy(
            "ib_umad",
            "Load ib_umad, now and at each boot, and restart Fabric Manager",
            (("fabric", "ib_umad"), ("remediation", "fabric_restart")),
            "/etc/modules-load.d, the NVLink fabric",
            FILES_BACK,
            files=_boots("ib_umad"),
            guards=(STUCK, CONTAINER, FOREIGN, HOLDERS_UNKNOWN),
            stops_service=True,
            recheck=("fabric.nvlsm", "fabric.manager"),
            harm=("fabric", "gpu"),
            source=_FM_GUIDE,
        ),
        Remedy(
            "imex_config",
            "Write one nodes_config.cfg to all trays and restart IMEX on all of them",
            (("fabric", "imex_config"), ("remediation", "imex_restart")),
            "/etc/nvidia-imex/nodes_config.cfg, nvidia-imex.service",
            permanent="A list that differs from the other trays' forms no domain.",
            guards=(STUCK,),
            stops_service=True,
            radius="domain",
            recheck=("fabric.imex", "drift.imex_config"),
            harm=("fabric",),
            source=_IMEX_GUIDE,
        ),
        Remedy(
            "imex_channel",
            "Create IMEX channel 0, now and at each boot",
            (("fabric", "imex_channel"),),
            "/etc/modprobe.d, the channel's device",
            FILES_BACK,
            files=("/etc/modprobe.d/inferops-vllm-imex.conf",),
            guards=(STUCK, CONTAINER),
            stops_service=True,
            recheck=("fabric.imex",),
            harm=("fabric",),
            source=_IMEX_GUIDE,
        ),
        # RDMA
        Remedy(
            "rdma_modules",
            "Load the RDMA modules, now and at each boot",
            (("rdma", "modules"),),
            "/etc/modules-load.d, loaded modules",
            FILES_BACK,
            files=_boots("mlx5_core", "mlx5_ib", "ib_umad", "rdma_ucm"),
            guards=(CONTAINER, STUCK),
            recheck=("rdma.ports",),
            harm=("rdma", "host"),
            source=_RDMA_GUIDE,
        ),
        Remedy(
            "peermem_load",
            "Load nvidia_peermem, now and at each boot",
            (("rdma", "peermem"),),
            "/etc/modules-load.d, loaded modules",
            ("remediation", "peermem_undo"),
            files=_boots("nvidia_peermem"),
            guards=(CONTAINER, STUCK),
            recheck=("gpudirect.peermem", "gpudirect.path"),
            harm=("gpudirect", "driver"),
            source=_RDMA_GUIDE,
        ),
        Remedy(
            "peermem_legacy",
            "Take nv_peer_mem out and load nvidia_peermem",
            (("rdma", "legacy_peermem"), ("rdma", "peermem")),
            "/etc/modules-load.d, loaded modules, the service of nv_peer_mem",
            ("remediation", "legacy_peermem_undo"),
            files=_boots("nvidia_peermem", "nv_peer_mem"),
            needs=_driver,
            guards=(CONTAINER, STUCK, FOREIGN, HOLDERS_UNKNOWN),
            stops_service=True,
            recheck=("gpudirect.peermem",),
            harm=("gpudirect", "driver"),
            source=_RDMA_GUIDE,
        ),
        Remedy(
            "peermem_rebuild",
            "Build the driver's modules against the RDMA stack that runs, and load nvidia_peermem",
            # What runs stays loaded: the version is the same, and nvidia_peermem alone was not loaded.
            (("remediation", "driver_rebuild"), ("rdma", "peermem")),
            "modules on disk, loaded modules",
            permanent="The modules that were there fit no RDMA stack of this node.",
            needs=_driver,
            guards=(CONTAINER, STUCK, NO_HEADERS, SIGNED),
            recheck=("gpudirect.peermem",),
            harm=driver_harm,
            source=_RDMA_GUIDE,
        ),
        Remedy(
            "dmabuf_off",
            "Set NCCL_DMABUF_ENABLE=0 on all nodes of the engine",
            (("remediation", "plan_again"),),
            "the environment files of the engine",
            ("remediation", "plan_again_undo"),
            guards=(PEERMEM_FIRST, NO_RELEASE),
            stops_service=True,
            radius="engine",
            recheck=("gpudirect.dmabuf_fallback",),
            harm=("gpudirect", "drift"),
            source=_RECIPE,
        ),
        Remedy(
            "port_up",
            "Bring the interface of the port up",
            (("remediation", "port_up"),),
            "state of an interface",
            ("remediation", "port_down"),
            guards=(SSH,),
            recheck=("rdma.ports",),
            harm=("rdma", "drift"),
            tries=2,
            source="https://github.com/linux-rdma/rdma-core",
        ),
        Remedy(
            "rdma_mtu",
            "Set the declared MTU on the RDMA interfaces, now and at each boot",
            (("remediation", "rdma_mtu"),),
            "MTU of the RDMA interfaces",
            ("remediation", "rdma_mtu_undo"),
            guards=(SSH,),
            stops_service=True,
            recheck=("rdma.mtu", "drift.mtu"),
            harm=("rdma", "drift"),
            source=_NCCL_ENV,
        ),
        Remedy(
            "rdma_gid",
            "Give the RDMA interfaces their declared addresses, now and at each boot",
            (("remediation", "rdma_addresses"),),
            "addresses of the RDMA interfaces",
            ("remediation", "rdma_addresses_undo"),
            guards=(SSH,),
            stops_service=True,
            recheck=("rdma.gid", "drift.gid"),
            harm=("rdma", "drift"),
            source=_NCCL_ENV,
        ),
        # Host and containers
        Remedy(
            "memlock",
            "Lift the limit of locked memory for services",
            (("rdma", "memlock"),),
            "limits of systemd and of logins",
            FILES_BACK,
            files=("/etc/security/limits.d/90-inferops-vllm-memlock.conf", "/etc/systemd/system.conf.d/90-inferops-vllm-memlock.conf"),
            recheck=("host.limits",),
            harm=("host",),
            source="https://github.com/linux-system-roles/hpc",
        ),
        Remedy(
            "shm_size",
            "Enlarge /dev/shm, now and at each boot",
            (("remediation", "shm"),),
            "size of /dev/shm",
            FILES_BACK,
            files=("/etc/fstab",),
            recheck=("host.shm",),
            harm=("host",),
            source="https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html",
        ),
        Remedy(
            "runtime_install",
            "Install the container engine and the NVIDIA toolkit, and configure them",
            (("container_runtime", "main"),),
            "packages, configuration of the engine",
            permanent="A runtime that is installed harms nothing.",
            guards=(STUCK, BROKEN_PACKAGES),
            stops_service=True,
            recheck=("container.engine", "container.toolkit"),
            harm=("container",),
            source=_TOOLKIT,
        ),
        Remedy(
            "runtime_start",
            "Start the container engine, now and at each boot",
            (("remediation", "engine_start"),),
            "docker.service",
            permanent="An engine that runs harms nothing.",
            recheck=("container.engine",),
            harm=("container",),
            tries=2,
            source=_TOOLKIT,
        ),
        Remedy(
            "cdi_refresh",
            "Write the CDI specification for the running driver",
            (("remediation", "cdi"),),
            "/etc/cdi or /var/run/cdi",
            permanent="A specification of another driver serves nobody.",
            guards=(STUCK,),
            recheck=("container.cdi_fresh",),
            harm=("container",),
            tries=2,
            source=_CDI,
        ),
        Remedy(
            "container_recreate",
            "Recreate the container, which gives it its GPUs again",
            (("remediation", "engine_clear"),),
            "our own container",
            permanent="A container without GPUs serves nobody.",
            guards=(STUCK, NO_RELEASE),
            stops_service=True,
            starts_service=True,
            radius="engine",
            recheck=("container.gpu_visible",),
            harm=("container",),
            tries=2,
            source=_RELOAD,
        ),
        Remedy(
            "image_pull",
            "Bring the declared image to the node",
            (("image", "main"),),
            "images of the node",
            permanent="An image beside others harms nothing.",
            guards=(NEEDS_DIGEST,),
            recheck=("image.digest", "drift.image"),
            harm=("image",),
            tries=2,
            source=_RECIPE,
        ),
        Remedy(
            "settings_write",
            "Write the deployed settings again and restart the engine",
            (("remediation", "plan_again"),),
            "environment file and unit of the service",
            permanent="Files that are not what was deployed belong to no release.",
            guards=(NO_RELEASE,),
            stops_service=True,
            radius="engine",
            recheck=("drift.env",),
            harm=("drift",),
            source=_VLLM,
        ),
        Remedy(
            "nvls_off",
            "Set NCCL_NVLS_ENABLE=0 on all nodes of the engine",
            (("remediation", "plan_again"),),
            "the environment files of the engine",
            ("remediation", "plan_again_undo"),
            guards=(NO_RELEASE, Guard(lambda s: s.fabric == "nvl72", "Between NVL72 trays NVLS is part of the path; use an image with NCCL 2.28.9 instead.")),
            stops_service=True,
            radius="engine",
            recheck=("image.known_trouble",),
            harm=("drift",),
            source="https://github.com/NVIDIA/nccl/issues/2167",
        ),
    )


REMEDIES: Dict[str, Remedy] = {remedy.id: remedy._replace(guards=(RECORDED,) + remedy.guards) for remedy in _remedies()}


def _person(text: str) -> Tuple[Choice, ...]:
    return (Choice(always, person=text),)


_STUCK = Choice(lambda s: s.holders == "stuck", "reboot")
_FIRST_DRIVER = Choice(lambda s: s.driver not in ("ok", "unknown"), after="driver.branch")

_DRIVER_CHOICES = (
    _STUCK,
    Choice(lambda s: s.nouveau is True, "nouveau_off"),
    Choice(lambda s: bool(s.packages), "driver_repair"),
    Choice(lambda s: s.driver in ("old", "absent", "proprietary"), "driver_upgrade"),
    Choice(lambda s: s.driver == "not_built", "driver_build"),
    Choice(lambda s: s.driver == "pending", "driver_activate"),
    Choice(always, person="Look at the driver by hand (dmesg, modinfo nvidia, nvidia-smi): what is installed and loaded is as planned, or could not be read."),
)
_GPU_CHOICES = (
    _STUCK,
    Choice(lambda s: s.gpu == "support", person="Take the node out of service and give the GPU to its vendor; no playbook mends hardware."),
    Choice(lambda s: s.gpu == "reboot", "reboot"),
    Choice(lambda s: s.gpu == "reset", "gpu_reset"),
    Choice(lambda s: s.gpu == "application" and s.deployed, "engine_clear"),
    Choice(always, person="Look at the GPU by hand (nvidia-smi -q, dmesg); what the driver asks for could not be told."),
)
_HOLDER_CHOICES = (
    _STUCK,
    Choice(lambda s: s.holders == "orphans" and s.deployed, "engine_clear"),
    Choice(lambda s: s.holders in ("foreign", "orphans"), "holders_kill"),
    Choice(lambda s: s.gpu == "reset", "gpu_reset"),
    Choice(always, person="Find who uses the GPU memory (fuser -v /dev/nvidia*, nvidia-smi); no process that holds it could be named."),
)
_MANAGER_CHOICES = (
    _STUCK,
    _FIRST_DRIVER,
    Choice(lambda s: s.fabric == "nvl72" and s.manager == "unneeded", "fabric_off"),
    Choice(lambda s: s.fabric == "nvl72", person="Ask the rack's fabric manager (NMX-C): the fabric of an NVL72 tray is not set up on the tray."),
    Choice(lambda s: s.fabric == "hgx5" and s.umad is False, "ib_umad"),
    Choice(lambda s: s.manager in ("absent", "other_version"), "fabric_packages"),
    Choice(lambda s: s.manager == "stopped", "fabric_start"),
    Choice(lambda s: s.manager in ("ok", "pre_nvl5"), "fabric_restart"),
    Choice(always, person="Look at nvidia-fabricmanager by hand (systemctl status, /var/log/fabricmanager.log); its state could not be read."),
)
_IMEX_CHOICES = (
    _STUCK,
    _FIRST_DRIVER,
    Choice(lambda s: s.imex in ("absent", "other_version"), "fabric_packages"),
    Choice(lambda s: s.imex == "no_channel", "imex_channel"),
    Choice(lambda s: s.imex in ("stopped", "degraded", "ok"), "imex_config"),
    Choice(always, person="Look at IMEX by hand (nvidia-imex-ctl -N); its state could not be read."),
)
_TUNE = "Tune with vllm_overrides or expand by nodes, and have `ansible-playbook inferops.vllm.plan` do the arithmetic: %s did not fit."
_REFUSALS = '"Invalid argument" or "Unknown symbol"'
_PEERMEM_CHOICES = (
    _STUCK,
    _FIRST_DRIVER,
    Choice(lambda s: s.legacy_peermem, "peermem_legacy"),
    Choice(lambda s: s.peermem == "loadable", "peermem_load"),
    Choice(lambda s: s.peermem in ("unbuilt", "disagrees"), "peermem_rebuild"),
    Choice(
        lambda s: s.peermem in ("einval", "symbol") and s.dmabuf is not False,
        person="The RDMA modules that run offer no peer memory, so nvidia_peermem cannot load (%s): use dma-buf, which needs the open modules and "
        "kernel 5.12 or newer." % _REFUSALS,
    ),
    Choice(
        lambda s: s.peermem == "einval",
        person="The RDMA modules that run offer no peer memory, so nvidia_peermem cannot load (%s), and dma-buf is refused: install DOCA-OFED, then "
        "build the driver anew." % _REFUSALS,
    ),
    Choice(
        lambda s: s.peermem == "symbol",
        person="nvidia_peermem was built for DOCA-OFED, the kernel's own RDMA modules run (%s), and dma-buf is refused: build DOCA-OFED's modules for "
        "this kernel and boot them." % _REFUSALS,
    ),
    Choice(lambda s: s.peermem == "key", person="Enrol the key that signs nvidia_peermem at the console (MOK), or use the distribution's signed modules."),
    Choice(
        lambda s: s.peermem == "absent",
        person="The driver on this node has no nvidia_peermem; install its module package: `ansible-playbook inferops.vllm.provision --limit NODE`.",
    ),
    Choice(always, person="Look at nvidia_peermem by hand (modprobe -v nvidia_peermem, dmesg): it is loaded, or could not be read."),
)
_PORT_CHOICES = (
    Choice(lambda s: s.ports == "no_modules", "rdma_modules"),
    Choice(lambda s: s.ports == "admin_down", "port_up"),
    Choice(lambda s: s.ports == "init", person="The port waits for a subnet manager: look at UFM or opensm of that fabric, not at the node."),
    Choice(always, person="Check cable, transceiver and switch port; the node's side is as it should be, or could not be read."),
)
_GID_CHOICES = (
    Choice(lambda s: "rdma_addresses" in s.declared, "rdma_gid"),
    Choice(always, person="Give the port's interface its IPv4 address in the node's network configuration, or declare rdma_addresses for the host."),
)
_MTU_CHOICES = (
    Choice(lambda s: "rdma_mtu" in s.declared, "rdma_mtu"),
    Choice(always, person="Set one MTU on all RDMA interfaces and their switch ports, or declare rdma_mtu."),
)
_TOOLKIT_CHOICES = (
    Choice(lambda s: s.engine == "stopped", "runtime_start"),
    Choice(lambda s: s.engine == "absent" or s.toolkit in ("absent", "unconfigured"), "runtime_install"),
    Choice(always, person="Look at the container engine by hand (systemctl status docker, nvidia-ctk cdi list); its state could not be read."),
)
_CDI_CHOICES = (
    _FIRST_DRIVER,
    Choice(lambda s: s.toolkit in ("absent", "unconfigured"), "runtime_install"),
    Choice(always, "cdi_refresh"),
)
_VISIBLE_CHOICES = (
    _FIRST_DRIVER,
    Choice(lambda s: s.toolkit in ("absent", "unconfigured"), "runtime_install"),
    Choice(lambda s: s.cdi == "stale", "cdi_refresh"),
    Choice(lambda s: s.deployed, "container_recreate"),
    Choice(always, person="Start a container by hand (nvidia-smi -L in it); toolkit and CDI are in order, or could not be read."),
)
_ENGINE_CHOICES = (
    _STUCK,
    Choice(lambda s: s.deployed, "engine_clear"),
    Choice(always, person="Start the engine anew; no release of this collection stands on the node."),
)
_DMABUF_CHOICES = (
    _STUCK,
    Choice(lambda s: s.dmabuf is False and s.peermem_everywhere is not True and s.peermem != "loaded", after="gpudirect.peermem"),
    Choice(
        lambda s: s.dmabuf is False and s.peermem_everywhere is not True, person="Another node of the engine lacks nvidia_peermem; remediate that one first."
    ),
    Choice(lambda s: s.dmabuf is False, "dmabuf_off"),
    Choice(lambda s: s.peermem not in ("loaded", "unknown"), after="gpudirect.peermem"),
    Choice(always, person="Look at memory registration by hand: locked memory (ulimit -l in the container), IPC_LOCK, and the kernel log of the node."),
)

FINDINGS: Dict[str, Tuple[Choice, ...]] = {
    "node.reachable": _person("Bring the node back at its console or its power supply; nothing can be read of it."),
    "driver.branch": _DRIVER_CHOICES,
    "driver.loaded_is_installed": _DRIVER_CHOICES,
    "driver.open_modules": _DRIVER_CHOICES,
    "driver.userspace_match": _DRIVER_CHOICES,
    "drift.driver": _DRIVER_CHOICES,
    "driver.nouveau": (_STUCK, Choice(always, "nouveau_off")),
    "driver.build_ready": (
        Choice(lambda s: bool(s.packages), "driver_repair"),
        Choice(lambda s: s.headers is False or s.driver == "not_built", "driver_build"),
        Choice(always, person="Look at `dkms status` and install a compiler; the headers are there, or could not be read."),
    ),
    "driver.secure_boot": _person("Enrol the key that signs the modules at the console (MOK), or use the distribution's signed modules."),
    "gpu.count": _GPU_CHOICES[:3] + (Choice(always, person="Reseat or replace the GPU; the driver sees fewer than the node has, and asks for no reboot."),),
    "gpu.model": _person("Declare the hardware that is there (vllm_hardware), or take the node out of the group."),
    "gpu.idle": _HOLDER_CHOICES,
    "gpu.memory": _HOLDER_CHOICES,
    "gpu.ecc": _GPU_CHOICES,
    "gpu.remap": _GPU_CHOICES,
    "gpu.recovery_action": _GPU_CHOICES,
    "gpu.xid": _GPU_CHOICES,
    "gpu.mig": (_STUCK, Choice(always, "mig_off")),
    "gpu.persistence": (_STUCK, _FIRST_DRIVER, Choice(always, "persistence_on")),
    "gpu.throttle": _person("Look at cooling and power of the node; no playbook mends that."),
    "gpu.pcie_link": _person("Reseat the GPU or its riser, then reboot; no playbook mends that."),
    "gpu.nvlink_matrix": _MANAGER_CHOICES[:5]
    + (
        Choice(lambda s: s.manager in ("absent", "other_version"), "fabric_packages"),
        Choice(lambda s: s.gpu == "reset", "gpu_reset"),
        Choice(always, person="An NVLink is down though the fabric is up: give the board to its vendor."),
    ),
    "fabric.manager": _MANAGER_CHOICES,
    "fabric.state": _MANAGER_CHOICES,
    "fabric.nvlsm": _MANAGER_CHOICES,
    "fabric.imex": _IMEX_CHOICES,
    "drift.imex_config": _IMEX_CHOICES,
    "fabric.clique": _person("Put only trays of one rack and one partition into the group, or have the rack's partition changed."),
    "drift.clique": _person("Put only trays of one rack and one partition into the group, or have the rack's partition changed."),
    "rdma.ports": _PORT_CHOICES,
    "rdma.rate": _person("Reseat or replace the cable or module, and look at the speed of the switch port."),
    "rdma.gid": _GID_CHOICES,
    "drift.gid": _GID_CHOICES,
    "rdma.mtu": _MTU_CHOICES,
    "drift.mtu": _MTU_CHOICES,
    "rdma.errors": _person("Clean or replace cable and module; freeze evidence first: `ansible-playbook inferops.vllm.evidence --limit NODE`."),
    "rdma.ssh_path": _person("Move management to an interface of its own; until then no RDMA driver is restarted here."),
    "gpudirect.path": _PEERMEM_CHOICES,
    "gpudirect.peermem": _PEERMEM_CHOICES,
    "gpudirect.dmabuf_fallback": (Choice(lambda s: s.dmabuf is False and s.peermem_everywhere is True, "dmabuf_off"),) + _PEERMEM_CHOICES,
    "container.engine": _TOOLKIT_CHOICES,
    "container.toolkit": _TOOLKIT_CHOICES,
    "container.cdi_fresh": _CDI_CHOICES,
    "container.gpu_visible": _VISIBLE_CHOICES,
    "image.digest": (Choice(always, "image_pull"),),
    "drift.image": (Choice(always, "image_pull"),),
    "image.cuda": _person("Declare an image whose CUDA the profile wants (vllm_image); what is declared is another."),
    "image.vllm": _person("Declare an image that knows this model (vllm_image); what is declared is older."),
    "image.known_trouble": _person("Read the trouble's source and decide; nothing is changed for a trouble that did not show itself here."),
    "host.kernel": _person("Install a newer kernel of the distribution at a time of your own; this collection never changes the kernel."),
    "host.limits": (Choice(always, "memlock"),),
    "host.shm": (Choice(always, "shm_size"),),
    "host.time": _person("Start chrony or systemd-timesyncd with the servers of your site."),
    "host.names": _person("Put every node's address into DNS or /etc/hosts, or declare vllm_host_ip for every node."),
    "host.pending_reboot": (Choice(always, "reboot"),),
    "host.swap": _person("Find what takes the memory, and turn swap off on a node that serves."),
    "host.stuck": (Choice(always, "reboot"),),
    "storage.weights": _person("Make room where the weights go, or declare another vllm_weights_path."),
    "plan.fits": _person("Add nodes or choose a smaller variant: the weights do not fit, whatever is changed on a node."),
    "plan.hardware": _person("Declare the hardware that is there (vllm_hardware), or take the node out of the group."),
    "plan.strategy": _person("Choose a strategy that the recipe supports on this hardware."),
    "drift.kernel": _person("Bring the nodes to one kernel at a time of your own; this collection never changes the kernel."),
    "drift.gpu": _person("Take the node with other GPUs out of the engine."),
    "drift.vbios": _person("Bring the VBIOS of all GPUs to one version with the vendor's tools."),
    "drift.hca": _person("Look for the HCA that is missing or another model; no playbook mends that."),
    "drift.toolkit": (Choice(always, "runtime_install"),),
    "drift.env": (
        Choice(lambda s: s.deployed, "settings_write"),
        Choice(always, person="Give all nodes the same environment file; no release of this collection stands on the node."),
    ),
}
"""Finding id → choices."""

CLASSES: Dict[str, Tuple[Choice, ...]] = {
    "driver_too_old": _DRIVER_CHOICES,
    "driver_compat_conflict": _person(
        "Take the compat libcuda out of the image's library path (VLLM_ENABLE_CUDA_COMPATIBILITY=0): the host's driver is the newer one."
    ),
    "driver_mismatch": _DRIVER_CHOICES,
    "fabric_not_ready": _MANAGER_CHOICES,
    "cuda_unknown": (_STUCK,)
    + _DRIVER_CHOICES[1:6]
    + (
        Choice(lambda s: s.gpu in ("reset", "reboot", "support"), after="gpu.recovery_action"),
        Choice(always, person="Look whether nvidia_uvm is loaded and /dev/nvidia-uvm is there (nvidia-modprobe -u), then start again."),
    ),
    "gpu_unsupported": _person("Take the backend, dtype or kernel that the message names out of the flags: this GPU does not have it."),
    "gpu_fault": _GPU_CHOICES,
    "gpu_busy": _HOLDER_CHOICES,
    "container_runtime": (Choice(lambda s: s.engine == "stopped", "runtime_start"), Choice(lambda s: s.engine == "absent", "runtime_install"))
    + _VISIBLE_CHOICES,
    "container_cuda_requirement": _DRIVER_CHOICES,
    "dependency": _person("Use the official image: what is missing or does not fit is part of the image, not of the node."),
    "configuration": _person("Mend the flag that the message names, then `ansible-playbook inferops.vllm.deploy`."),
    "weights": _person("Have the weights checked and completed: `ansible-playbook inferops.vllm.deploy -e weights_checksums=verify`."),
    "storage": _person("Make room, or mend the permission, at the path that the message names."),
    "oom_weights": _person(_TUNE % "the weights"),
    "oom_kv_sizing": _person(_TUNE % "the cache"),
    "oom_warmup": _person(_TUNE % "warm-up or graph capture"),
    "oom_runtime": _person(_TUNE % "requests"),
    "oom_host": _person("Give the host more free memory: the kernel killed a process for it."),
    "cuda_crash": _person("Reproduce with CUDA_LAUNCH_BLOCKING=1: the stack that is shown is not the place of the fault."),
    "engine_bug": _person("Read the report that the diagnosis names, and use an image that has the fix."),
    "rdma_registration": _DMABUF_CHOICES,
    "rdma_path": (
        Choice(lambda s: s.ports not in ("ok", "unknown"), after="rdma.ports"),
        Choice(lambda s: "rdma_addresses" in s.declared, "rdma_gid"),
        Choice(always, person="Compare GID tables, MTU and routes of the two ends that the message names; the ports are up."),
    ),
    "nvlink": (
        _STUCK,
        Choice(lambda s: s.manager not in ("ok", "unknown") and s.fabric in ("hgx4", "hgx5"), after="fabric.manager"),
        Choice(lambda s: s.imex not in ("ok", "not_planned", "unknown"), after="fabric.imex"),
        Choice(lambda s: s.deployed, "nvls_off"),
        Choice(always, person="Start with NCCL_NVLS_ENABLE=0 (outside NVL72) or with NCCL 2.28.9."),
    ),
    "nccl_other": (
        Choice(lambda s: s.deployed and s.holders == "orphans", "engine_clear"),
        Choice(always, person="Read the first NCCL WARN line of every rank; enlarge /dev/shm where it names shared memory."),
    ),
    "nvshmem": _person("Look at the RDMA devices inside of the container and at NVSHMEM's bootstrap interface; then choose another --all2all-backend."),
    "nixl": _person("Look at the side channel's address and port of prefill and decode, and at UCX's devices inside of the containers."),
    "rendezvous": (
        Choice(lambda s: s.deployed, "settings_write"),
        Choice(always, person="Give every node the address and interface of the network between the nodes."),
    ),
    "startup_timeout": _person(
        "Look which phase took the time (`ansible-playbook inferops.vllm.diagnose`), then raise VLLM_ENGINE_READY_TIMEOUT_S or mend that phase."
    ),
    "worker_lost": _ENGINE_CHOICES,
    "prefix_cache": _person("Make prompts begin with the same bytes, or turn prefix caching on: `ansible-playbook inferops.vllm.verify` says which."),
    "output_quality": _person("Compare answers with the image's earlier digest: `ansible-playbook inferops.vllm.rollback`."),
    "shutdown_hang": _ENGINE_CHOICES,
    "none": (Choice(always),),
}
"""Class of a diagnosis → choices."""

ORDER: Tuple[str, ...] = ("node", "host", "driver", "gpu", "fabric", "rdma", "gpudirect", "drift", "container", "image", "storage", "plan")
"""Environment before memory: the order in which faults of one node are mended, by the first part of their id."""
