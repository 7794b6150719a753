# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What node_facts and snapshot look for on a node, described once."""

from __future__ import annotations


class ModuleDocFragment:
    """Options shared by the modules that read a node."""

    DOCUMENTATION = r"""
options:
  gather_subset:
    description:
      - Sections to read. V(all), or any of V(host), V(driver), V(gpu), V(fabric), V(rdma), V(gpudirect), V(container),
        V(storage), V(service); with C(!) in front a section is left out.
    type: list
    elements: str
    default: [all]
  timeout:
    description:
      - Seconds that one command may take on the node. A command that takes longer is abandoned, not waited for, and what it
        would have told is reported as unknown with that reason.
      - All commands start side by side, so that reading a node ends within about this time plus three seconds, also when every
        command hangs.
    type: float
    default: 10.0
  paths:
    description:
      - Folders whose file system is of interest. The first one is where the weights go.
    type: list
    elements: str
    default: [/var/lib/vllm]
  image:
    description:
      - Name of the container image to look for in the container engine.
    type: str
    default: ""
  names:
    description:
      - Names of the other nodes, which must resolve on this one.
    type: list
    elements: str
    default: []
  units:
    description:
      - Systemd units that serve vLLM.
    type: list
    elements: str
    default: [vllm.service]
  probe_container:
    description:
      - Start a short-lived container of O(image) with all GPUs and count them. Without it GPU visibility in containers is
        concluded from the configuration and marked as assumed.
    type: bool
    default: false
"""
