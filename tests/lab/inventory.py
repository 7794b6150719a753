# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as an Ansible inventory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .registry import USER, authority, password_file
from .settings import IMAGE_NAME, IMAGE_TAG, MODEL_PATH, SERVED_MODEL_NAME, Node, Settings

HEADER = "# Written by `python -m tests.lab up`; `down` removes it.\n"


def host_vars(settings: Settings, node: Node) -> dict[str, Any]:
    """What Ansible must know of one node."""
    return {
        "ansible_host": node.address,
        "lab_kind": node.kind,
        "vllm_host_ip": node.address,
        "vllm_interface": "host0",
    }


def document(
    settings: Settings,
    nodes: Iterable[Node],
    image_digest: str | None,
    machines: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """The inventory. Secrets are named by file, never written into it."""
    options = {
        "UserKnownHostsFile": settings.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "yes",
    }
    every: dict[str, Any] = {
        "ansible_user": "root",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(settings.ssh_key),
        "ansible_ssh_common_args": " ".join(f"-o {k}={v}" for k, v in options.items()),
        "ansible_control_path_dir": str(settings.state / "ssh" / "cp"),
        "lab_registry": settings.registry,
        "lab_registry_user": USER,
        "lab_registry_password_file": str(password_file(settings)),
        "lab_registry_ca_file": str(authority(settings)),
        "lab_model_path": MODEL_PATH,
        "lab_served_model_name": SERVED_MODEL_NAME,
    }
    if image_digest:
        name = f"{settings.registry}/{IMAGE_NAME}"
        every |= {
            "lab_image_name": name,
            "lab_image_tag": IMAGE_TAG,
            "lab_image_digest": image_digest,
            "lab_image": f"{name}@{image_digest}",
        }
    hosts = {node.name: host_vars(settings, node) for node in nodes}
    children: dict[str, Any] = {"vllm_nodes": {"hosts": hosts}}
    if machines:
        children["lab_machines"] = {"hosts": {name: dict(v) for name, v in machines.items()}}
    return {"all": {"children": children, "vars": every}}


def text(
    settings: Settings,
    nodes: Iterable[Node],
    image_digest: str | None,
    machines: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The inventory as YAML. machines: variables of the virtual machines by name."""
    # Not needed to take a lab down, which has to work with Python alone.
    import yaml

    body = yaml.safe_dump(
        document(settings, nodes, image_digest, machines or {}),
        sort_keys=False,
        default_flow_style=False,
    )
    return HEADER + body
