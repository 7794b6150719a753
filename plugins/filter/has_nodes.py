# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an inventory names nodes that serve vLLM."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from ansible.errors import AnsibleFilterError

from ..module_utils.plan.groups import NODE_GROUPS


def has_nodes(groups: Mapping[str, Any]) -> bool:
    """True when one of the node groups has a host.

    Raises:
        AnsibleFilterError: `groups` is no table of groups.
    """
    if not isinstance(groups, Mapping):
        raise AnsibleFilterError("has_nodes takes the variable 'groups', not %s" % type(groups).__name__)
    return any(groups.get(name) for name in NODE_GROUPS)


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"has_nodes": has_nodes}
