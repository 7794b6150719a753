# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of plan/profiles.py, and the arithmetic of plan/fit.py."""

from __future__ import annotations

import re
from typing import Any, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.plan import profiles
from ansible_collections.inferops.vllm.plugins.module_utils.plan.fit import fit, nodes_needed
from ansible_collections.inferops.vllm.plugins.module_utils.plan.profiles import HARDWARE, MODELS, STRATEGIES

K3 = MODELS["kimi_k3"]
ROWS: List[Tuple[str, Any]] = (
    [("hardware " + name, row) for name, row in HARDWARE.items()] + [("strategy " + name, row) for name, row in STRATEGIES.items()]
    + [("model " + name, row) for name, row in MODELS.items()] + [("variant " + name, row) for name, row in K3.variants.items()]
    + [("feature " + name, row) for name, row in K3.features.items()])


@pytest.mark.parametrize("row", [row for _name, row in ROWS], ids=[name for name, _row in ROWS])
def test_every_value_has_a_source_and_a_date(row: Any) -> None:
    assert "*" in row.sources
    assert set(row.sources) - {"*"} <= set(row._fields)
    for source in row.sources.values():
        assert re.match(r"https://[a-z0-9.-]+/", source.url)
        assert re.match(r"20\d\d-\d\d-\d\d\Z", source.date)


def test_keys_are_names() -> None:
    for table in (HARDWARE, STRATEGIES, MODELS, K3.variants, K3.features):
        assert all(key == row.name for key, row in table.items())


def test_the_hardware_that_is_known() -> None:
    assert list(HARDWARE) == ["h100", "h200", "b200", "b300", "gb200", "gb300", "mi355x", "cpu"]


@pytest.mark.parametrize("name", [name for name, row in HARDWARE.items() if row.memory_mib])
def test_both_memory_figures_agree_within_a_few_percent(name: str) -> None:
    row = HARDWARE[name]
    shown_gib = row.memory_mib / 1024.0
    published = row.memory_gb / row.gpus
    assert abs(shown_gib - published) / published < 0.05


@pytest.mark.parametrize("name, nodes", [("b300", 1), ("mi355x", 1), ("gb300", 2), ("b200", 2), ("h200", 2), ("gb200", 3), ("h100", 3)])
def test_nodes_that_hold_the_weights(name: str, nodes: int) -> None:
    row = HARDWARE[name]
    share = profiles.memory_share("kimi_k3", name, "multi_node_tp")
    assert nodes_needed(K3.variants["default"].weights_gb, row.memory_gb, share) == nodes


@pytest.mark.parametrize("product, name", [
    ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA B200", "b200"), ("NVIDIA B300 SXM6 AC", "b300"),
    ("NVIDIA GB200", "gb200"), ("NVIDIA GB300", "gb300"), ("AMD Instinct MI355X", "mi355x"), ("nvidia b300 sxm6 ac", "b300"),
    ("NVIDIA H100 PCIe", ""), ("NVIDIA H100 NVL", ""), ("NVIDIA H200 NVL", ""), ("NVIDIA GH200 480GB", ""),
    ("NVIDIA A100-SXM4-80GB", ""), ("", ""),
])
def test_product_names(product: str, name: str) -> None:
    assert profiles.hardware_of_name(product) == name


@pytest.mark.parametrize("device, name", [
    ("0x3182", "b300"), ("0x318210de", "b300"), ("0x31C2", "gb300"), ("0x2941", "gb200"), ("0x20b2", ""), ("", ""),
])
def test_pci_devices(device: str, name: str) -> None:
    assert profiles.hardware_of_pci(device) == name


@given(st.text(max_size=60))
def test_any_name_is_answered(text: str) -> None:
    assert profiles.hardware_of_name(text) in ("", *HARDWARE)
    assert profiles.hardware_of_pci(text) in ("", *HARDWARE)


@pytest.mark.parametrize("hardware, strategy, share", [
    ("b300", "single_node_tp", 0.95), ("b200", "multi_node_tp_pp", 0.90), ("h200", "multi_node_tp_pp", 0.97),
    ("h100", "multi_node_tp", 0.97),
    ("mi355x", "single_node_tp", 0.95), ("", "single_node_tp", 0.95),
])
def test_the_later_layer_decides_the_share_of_memory(hardware: str, strategy: str, share: float) -> None:
    assert profiles.memory_share("kimi_k3", hardware, strategy) == share


@pytest.mark.parametrize("strategy, hardware, pool, gpus", [
    ("single_node_tp", "b300", "", 8), ("multi_node_tp", "gb300", "", 8), ("multi_node_tep", "b200", "", 8),
    ("multi_node_dep", "b300", "", 16),
    ("multi_node_tp_pp", "b200", "", 16), ("multi_node_tp_dp", "h200", "", 16), ("multi_node_tp", "h100", "", 32),
    ("single_node_tp", "h100", "", 32),
    ("pd_cluster", "b300", "prefill", 8), ("pd_cluster", "b300", "decode", 16), ("pd_cluster", "h100", "prefill", 32),
    ("multi_node_tp", "", "", 8),
])
def test_minimum_gpus(strategy: str, hardware: str, pool: str, gpus: int) -> None:
    assert profiles.minimum_gpus(strategy, hardware, pool) == gpus


@pytest.mark.parametrize("hardware, strategy, fine", [
    ("h100", "multi_node_dep", False), ("h200", "multi_node_dep", False), ("b200", "multi_node_dep", True),
    ("gb300", "multi_node_dep", True),
    ("h200", "multi_node_tp_dp", True), ("gb200", "multi_node_tp_dp", True), ("h100", "multi_node_tp_dp", False),
    ("b300", "multi_node_tp_dp", False),
    ("h200", "multi_node_tp_pp", True), ("cpu", "multi_node_tp_dp", True), ("", "multi_node_dep", True),
])
def test_unsupported_pairs(hardware: str, strategy: str, fine: bool) -> None:
    assert (profiles.unsupported("kimi_k3", "default", hardware, strategy) == "") is fine


def test_the_nvfp4_weights_are_for_blackwell() -> None:
    assert profiles.unsupported("kimi_k3", "nvfp4", "gb300", "multi_node_tep") == ""
    assert "blackwell only" in profiles.unsupported("kimi_k3", "nvfp4", "mi355x", "single_node_tp")


def test_the_model() -> None:
    assert K3.driver_min == (580,) and K3.image_cuda_major == 13 and K3.vllm_min == (0, 27, 1) and K3.context == 1 << 20
    assert [name for name, row in K3.features.items() if row.default] == ["tool_calling", "reasoning"]


# -- arithmetic --------------------------------------------------------------------------------------
def test_the_sum_is_written_out() -> None:
    assert fit(1680, [2144.0] * 6, 0.95).text == "1,680 GB of weights into 6 × 2,144 GB × 0.95 = 12,221 GB"
    assert fit(1680, [2144.0, 1876.0, 2144.0], 0.95).text == "1,680 GB of weights into (2 × 2,144 + 1 × 1,876) GB × 0.95 = 5,856 GB"
    assert fit(1680, [], 0.95).text == "1,680 GB of weights into 0 GB × 0.95 = 0 GB"


@given(st.floats(1, 1e5), st.lists(st.floats(0, 1e5), max_size=20), st.floats(0.1, 1))
def test_weights_fit_exactly_when_usable_memory_is_enough(weights: float, nodes: List[float], share: float) -> None:
    found = fit(weights, nodes, share)
    assert found.holds == (sum(nodes) * share >= weights)
    assert found.usable_gb == pytest.approx(sum(nodes) * share)


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0.1, 1))
def test_as_many_nodes_as_needed_and_no_more(weights: float, node: float, share: float) -> None:
    needed = nodes_needed(weights, node, share)
    assert needed * node * share >= weights * (1 - 1e-9)
    assert (needed - 1) * node * share < weights * (1 + 1e-9)


def test_nodes_without_memory_never_hold_anything() -> None:
    assert nodes_needed(1680, 0.0, 0.95) == 0 and not fit(1680, [0.0, 0.0], 0.95).holds
