# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, addresses and folders of the lab. Every other module takes them from here."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

IMAGE_NAME = "vllm/vllm-openai"
IMAGE_TAG = "kimi-k3"
SERVED_MODEL_NAME = "moonshotai/Kimi-K3"
MODEL_PATH = "/models-tiny"


@dataclass(frozen=True)
class Node:
    """One node. `number` counts from 1 within its kind and fixes the address."""

    name: str
    address: str
    kind: str = "container"
    suite: str = "bookworm"


@dataclass(frozen=True)
class Settings:
    """Where the lab lives.

    cache: kept between runs (root file systems, images). scratch: on disk, gone after `down`.
    state: small files of the running lab (keys, pids, addresses), gone after `down`.
    """

    cache: Path
    state: Path = Path("/run/inferops-lab")
    bridge: str = "iolab0"
    network: ipaddress.IPv4Network = field(
        default_factory=lambda: ipaddress.IPv4Network("10.203.77.0/24")
    )
    registry_port: int = 5443
    suite: str = "bookworm"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read INFEROPS_LAB_CACHE, INFEROPS_LAB_STATE and INFEROPS_LAB_SUITE."""
        env = os.environ if environ is None else environ
        home = Path(env.get("HOME", "/root"))
        return cls(
            cache=Path(env.get("INFEROPS_LAB_CACHE") or home / ".cache" / "inferops-lab"),
            state=Path(env.get("INFEROPS_LAB_STATE") or "/run/inferops-lab"),
            suite=env.get("INFEROPS_LAB_SUITE") or "bookworm",
        )

    @property
    def scratch(self) -> Path:
        """Writable layers of the nodes: large, so beside the cache and not on a tmpfs."""
        return self.cache / "scratch"

    @property
    def gateway(self) -> str:
        """The bridge's own address: default route of the nodes, host of the registry."""
        return str(self.network[1])

    @property
    def prefix_length(self) -> int:
        return self.network.prefixlen

    @property
    def registry(self) -> str:
        """host:port under which nodes reach the registry."""
        return f"{self.gateway}:{self.registry_port}"

    @property
    def ssh_key(self) -> Path:
        return self.state / "ssh" / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.state / "ssh" / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.state / "ssh" / "config"

    @property
    def inventory(self) -> Path:
        """Where the inventory is written; INFEROPS_LAB_INVENTORY names another file, for a second lab beside the first."""
        if named := os.environ.get("INFEROPS_LAB_INVENTORY"):
            return Path(named)
        return REPOSITORY / "inventories" / "lab" / "generated.yml"

    def container_node(self, number: int) -> Node:
        """Container node 1, 2, …: addresses .11, .12, …

        Raises ValueError outside 1 to 9.
        """
        if not 1 <= number <= 9:
            raise ValueError(f"a lab has container nodes 1 to 9, not {number}")
        return Node(f"node{number}", str(self.network[10 + number]), "container", self.suite)
