# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""CDI specifications of NVIDIA's GPUs: which driver they name, and whether that is the one that runs."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple

from ..node.container import parse_spec

FOLDERS = ("/etc/cdi", "/var/run/cdi")
KIND = "nvidia.com/gpu"
REFRESH = "nvidia-cdi-refresh.service"
OWN = "/etc/cdi/nvidia.yaml"
"""Where a specification is put where the toolkit has no refresh unit: /var/run is empty after a reboot."""


class Verdict(NamedTuple):
    """What the specifications say.

    Attributes:
        good: paths of those that name the running driver.
        stale: path → versions that it names instead.
        devices: names of the devices in the good ones.
    """

    good: List[str]
    stale: Dict[str, List[str]]
    devices: List[str]

    @property
    def sound(self) -> bool:
        """Some are good and none names another driver."""
        return bool(self.good) and not self.stale


def judge(specs: Mapping[str, str], driver: str) -> Verdict:
    """Hold specifications (path → text) against the version of the running driver. Never raises."""
    good: List[str] = []
    stale: Dict[str, List[str]] = {}
    devices: List[str] = []
    for path, text in sorted(specs.items()):
        spec = parse_spec(text)
        if spec["kind"] != KIND:
            continue
        if spec["versions"] == [driver]:
            good.append(path)
            devices += spec["devices"]
        else:
            stale[path] = spec["versions"]
    return Verdict(good, stale, list(dict.fromkeys(devices)))


def driver_version(module: str, proc: str) -> str:
    """Version of the loaded driver, from /sys/module/nvidia/version or /proc/driver/nvidia/version; empty for none."""
    for text in (module, proc):
        found = re.search(r"\b(\d{3,4}\.\d{2,3}(?:\.\d{2})?)\b", text)
        if found:
            return found.group(1)
    return ""
