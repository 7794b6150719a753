# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node needs of drivers and services, for the roles that install them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence

from ansible.errors import AnsibleFilterError

from ..module_utils.packages import needs as pure


def _facts(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise AnsibleFilterError("%s takes the facts of a node (vllm_node), not %s" % (name, type(value).__name__))
    return value


def driver_needs(facts: Any, hardware: str = "", flavour: str = "auto", fabric: str = "auto") -> Dict[str, Any]:
    """See :func:`needs.needs`."""
    if fabric not in pure.FABRICS:
        raise AnsibleFilterError("driver_needs: there is no fabric %s; there are %s" % (fabric, ", ".join(pure.FABRICS)))
    return pure.needs(_facts(facts, "driver_needs"), hardware, flavour, fabric)


def driver_plan(facts: Any, needs: Mapping[str, Any], branch: str, version: str = "") -> str:
    """See :func:`needs.plan_line`."""
    return pure.plan_line(_facts(facts, "driver_plan"), needs, str(branch), str(version or ""))


def imex_nodes(groups: Mapping[str, Any], hostvars: Mapping[str, Any], host: str) -> List[str]:
    """See :func:`needs.imex_nodes`."""
    try:
        return pure.imex_nodes(groups, hostvars, host)
    except ValueError as exc:
        raise AnsibleFilterError(str(exc)) from exc


def restart_dangers(facts: Any, modules: Sequence[str]) -> List[str]:
    """See :func:`needs.restart_dangers`."""
    return pure.restart_dangers(_facts(facts, "restart_dangers"), modules)


def rdma_needs(facts: Any, manage: str = "auto", interconnect: str = "auto", peermem: str = "auto") -> Dict[str, str]:
    """See :func:`needs.rdma_needs`."""
    return pure.rdma_needs(_facts(facts, "rdma_needs"), manage, interconnect, peermem)


def driver_faults(facts: Any, version: str = "") -> List[str]:
    """See :func:`needs.driver_faults`."""
    return pure.driver_faults(_facts(facts, "driver_faults"), version)


def fabric_faults(facts: Any, needs: Mapping[str, Any]) -> List[str]:
    """See :func:`needs.fabric_faults`."""
    return pure.fabric_faults(_facts(facts, "fabric_faults"), needs)


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {
            "driver_faults": driver_faults, "driver_needs": driver_needs, "driver_plan": driver_plan, "fabric_faults": fabric_faults,
            "imex_nodes": imex_nodes, "rdma_needs": rdma_needs, "restart_dangers": restart_dangers,
        }
