# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the container engine, NVIDIA's toolkit in it, and its CDI specifications."""

from __future__ import annotations

from typing import Any, Dict, List

from .model import Context, Node, Outcome, check, failed, passed, skipped, unsure
from .wording import listed, mapping, missing, number, short, without_nvidia

TOOLKIT_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
CDI_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"


@check(
    id="container.engine", severity="block", title="Container engine",
    why="The image runs in a container, and no engine here can start one.",
    fix="Install or start Docker, or install Podman, with `ansible-playbook inferops.vllm.provision --limit NODE`.",
    read_from="docker version, podman --version", source="https://docs.vllm.ai/en/latest/deployment/docker.html")
def engine(node: Node, context: Context) -> Outcome:
    """Docker runs, or Podman is installed."""
    required = "a running Docker, or Podman"
    section = node.facts.get("container")
    docker, podman = node.get("container.docker"), node.get("container.podman")
    if isinstance(docker, dict) and docker.get("running") is True:
        return passed("docker %s" % short(docker.get("version") or "of unknown version", 40), required)
    if isinstance(podman, dict):
        return passed("podman %s" % short(podman.get("version") or "of unknown version", 40), required)
    why = node.why_unknown("container.docker", "container.podman")
    if why or not isinstance(section, dict):
        return unsure(short(why), required)
    if isinstance(docker, dict):
        if docker.get("running") is False:
            return failed("docker %s does not run" % short(docker.get("version") or "", 40), required)
        return unsure("docker is installed, whether it runs is not known", required)
    # Absent engines are null without a reason; a section without the keys was not looked at.
    if "docker" not in section and "podman" not in section:
        return unsure("container.docker is not among the facts", required)
    return failed("neither Docker nor Podman", required)


@check(
    id="container.toolkit", severity="block", title="NVIDIA container toolkit",
    why="Without the toolkit, configured in the engine, no container gets a GPU.",
    fix="Install and configure it with `ansible-playbook inferops.vllm.provision --limit NODE`.",
    read_from="nvidia-ctk --version, docker info, /etc/docker/daemon.json", source=TOOLKIT_GUIDE)
def toolkit(node: Node, context: Context) -> Outcome:
    """The toolkit is installed and the engine knows it (a runtime, or CDI)."""
    reason = without_nvidia(context)
    if reason:
        return skipped(reason)
    required = "installed and known to the engine"
    why = missing(node, "container.toolkit")
    if why:
        return unsure(why, required)
    kit = mapping(node.get("container.toolkit"))
    told = short(kit.get("version") or "of unknown version", 40)
    present = [kit.get(key) for key in ("ctk", "hook")] + [True if kit.get("version") else None]
    if True not in present:
        if None in present[:2]:
            return unsure("whether the toolkit is installed is not known", required)
        return failed("not installed", required)
    configured = kit.get("configured")
    if configured is True:
        return passed("%s%s" % (told, ", mode %s" % short(kit.get("mode"), 20) if kit.get("mode") else ""), required)
    if configured is None:
        return unsure("%s; whether the engine knows it is not known" % told, required)
    if node.why_unknown("container.docker"):
        return unsure(short("%s; the engine: %s" % (told, node.why_unknown("container.docker"))), required)
    return failed("%s, but the engine knows neither an nvidia runtime nor CDI devices" % told, required)


@check(
    id="container.cdi_fresh", severity="block", title="CDI specification",
    why="A CDI specification of another driver mounts libraries that are gone, and containers fail or see no GPU.",
    fix="Write it anew (`nvidia-ctk cdi generate`) with `ansible-playbook inferops.vllm.remediate --limit NODE`.",
    read_from="/etc/cdi, /var/run/cdi", source=CDI_GUIDE)
def cdi_fresh(node: Node, context: Context) -> Outcome:
    """Every specification of nvidia.com/gpu names the driver that is loaded, and only one version is named."""
    reason = without_nvidia(context)
    if reason:
        return skipped(reason)
    required = "the running driver"
    why = missing(node, "container.cdi")
    if why:
        return unsure(why, required)
    specs: List[Dict[str, Any]] = [spec for spec in node.items("container.cdi") if str(spec.get("kind") or "").startswith("nvidia.com/gpu")]
    if not specs:
        if node.get("container.toolkit.configured") is True:
            return skipped("no CDI specification; the engine has the nvidia runtime")
        if node.get("container.docker") is None and node.get("container.podman") is not None:
            return failed("no CDI specification", "one for nvidia.com/gpu: Podman gives GPUs to containers through CDI alone")
        return skipped("no CDI specification (see container.toolkit)")
    loaded = node.get("driver.loaded")
    if loaded is None:
        return unsure(short(node.why_unknown("driver.loaded") or "no driver is loaded to compare with"), required)
    stale: List[str] = []
    silent: List[str] = []
    for spec in specs:
        versions = [str(v) for v in spec.get("versions") or []] if isinstance(spec.get("versions"), list) else []
        where = short(spec.get("path"), 40)
        if not versions:
            silent.append(where)
        elif any(version != str(loaded) for version in versions):
            stale.append("%s names %s" % (where, listed(v for v in versions if v != str(loaded))))
    if stale:
        return failed(short(listed(stale, 2)), "%s, the running driver" % short(loaded, 30))
    if silent:
        return unsure(short("no driver version could be read in %s" % listed(silent)), required)
    return passed("%s in %s" % (short(loaded, 30), listed(short(spec.get("path"), 40) for spec in specs)), required)


@check(
    id="container.gpu_visible", severity="block", title="GPUs in a container",
    why="What counts is what a container sees: a stale specification or lost device rules hide GPUs that nvidia-smi shows on the host.",
    fix="Configure the toolkit anew and recreate containers with `ansible-playbook inferops.vllm.remediate --limit NODE`.",
    read_from="nvidia-smi -L in a container", source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48")
def gpu_visible(node: Node, context: Context) -> Outcome:
    """A short-lived container saw as many GPUs as the hardware has; only when a probe was asked for."""
    reason = without_nvidia(context)
    if reason:
        return skipped(reason)
    probe = node.get("container.probe")
    if not isinstance(probe, dict) or probe.get("ran") is None:
        why = node.why_unknown("container.probe")
        if why:
            return unsure(short(why))
        return skipped("no container was started to look; assumed from container.toolkit and container.cdi_fresh")
    wanted = context.gpus_per_node
    required = "%d GPUs" % wanted if wanted else "at least one GPU"
    if probe.get("ran") is not True:
        why = node.why_unknown("container.probe") or probe.get("text") or "no reason given"
        return unsure(short("the container could not be started: %s" % why), required)
    seen = int(number(probe.get("gpus")))
    if probe.get("rc") != 0:
        return failed(short("nvidia-smi in the container: %s" % (probe.get("text") or "exit %s" % probe.get("rc"))), required)
    if seen < max(wanted, 1):
        return failed("%d GPUs" % seen, required)
    return passed("%d GPUs" % seen, required)
