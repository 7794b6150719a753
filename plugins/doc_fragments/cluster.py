# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the cluster is meant to be, described once for all that judge or plan it."""

from __future__ import annotations


class ModuleDocFragment:
    """Words of the inventory that each may be left out."""

    # Raw, so that a value of the wrong type is refused by the name of its variable.
    DOCUMENTATION = r"""
options:
  profile:
    description: Model profile; left out means V(kimi_k3).
    type: raw
  variant:
    description: Variant of the model's weights; left out means V(default).
    type: raw
  hardware:
    description: What the nodes are, or V(auto) to conclude it from the GPUs that were found, as when left out.
    type: raw
  strategy:
    description: Parallelism strategy, by the name in the vLLM recipe, or V(auto), as when left out.
    type: raw
  interconnect:
    description: What joins the nodes of one engine, V(nvlink), V(rdma), V(none), or V(auto), as when left out.
    type: raw
  features:
    description: Features that are to be served, as a list; left out means the profile's own.
    type: raw
  image:
    description: Container image by name; left out means the profile's own.
    type: raw
  version:
    description: Version of vLLM in the image; left out means the profile's own.
    type: raw
"""
