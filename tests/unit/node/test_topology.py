# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi topo -m and nvlink -s, as the tool prints them and as people paste them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node import topology
from tests.costume import HARDWARE, Spec, part_gpu, part_rdma

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples"


@pytest.fixture
def samples() -> Path:
    if not SAMPLES.is_dir():
        pytest.skip("no folder of captures beside the repository")
    return SAMPLES


def full(count: int, word: str = "NV18") -> List[str]:
    return [" ".join("X" if i == j else word for j in range(count)) for i in range(count)]


def printed(hardware: str = "b300", faults: Sequence[str] = ()) -> str:
    spec = Spec("n1", hardware, faults=frozenset(faults))
    return part_gpu.matrix(spec, [gpu for gpu in part_gpu.gpus(spec) if not gpu.lost])


# -- captures --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name,gpus,nics,own", [
    ("topo_m_4xGB200_cdmm_spaces.txt", 4, 8, None),
    ("topo_m_4xGraceBlackwell_numa_spaces.txt", 4, 8, None),
    ("topo_m_8xB200_16nic_tabs_pasteartefacts.txt", 8, 16, ("PXB", [4, 7, 8, 9, 10, 13, 14, 15])),
    ("topo_m_8xB200_16nic_tabs_repaired.txt", 8, 16, ("PXB", [4, 7, 8, 9, 10, 13, 14, 15])),
    ("topo_m_8xH100_12nic_tabs.txt", 8, 12, ("PIX", [0, 1, 2, 3, 6, 7, 8, 9])),
    ("topo_m_8xNV18_12nic_roce_tabs.txt", 8, 12, ("PIX", [0, 1, 2, 5, 6, 7, 8, 11])),
])
def test_captured_matrices(samples: Path, name: str, gpus: int, nics: int, own: Any) -> None:
    found = topology.parse_matrix((samples / name).read_text())
    assert found["problem"] == "" and found["matrix"] == full(gpus)
    assert found["gpus"] == ["GPU%d" % i for i in range(gpus)]
    assert found["nics"] == {"NIC%d" % i: "mlx5_%d" % i for i in range(nics)}
    rows = [row.split() for row in found["gpu_nic"]]
    assert [len(row) for row in rows] == [nics] * gpus
    if own is None:
        assert all(set(row) == {"SYS"} for row in rows)
    else:
        assert [row.index(own[0]) for row in rows] == own[1]


def test_captured_paste_equals_its_repaired_form(samples: Path) -> None:
    pasted, repaired = (topology.parse_matrix((samples / ("topo_m_8xB200_16nic_tabs_%s.txt" % form)).read_text())
                        for form in ("pasteartefacts", "repaired"))
    assert pasted == repaired


def test_captured_memory_nodes_of_grace(samples: Path) -> None:
    assert topology.parse_matrix((samples / "topo_m_4xGraceBlackwell_numa_spaces.txt").read_text())["numa"] == {
        "GPU0": 2, "GPU1": 10, "GPU2": 18, "GPU3": 26}
    assert topology.parse_matrix((samples / "topo_m_4xGB200_cdmm_spaces.txt").read_text())["numa"] == {}


def test_captured_half_matrix_is_told(samples: Path) -> None:
    found = topology.parse_matrix((samples / "topo_m_8xB200_12nic_spaces_vllm20862_partial.txt").read_text())
    assert found["problem"] == "the matrix has no row for GPU4, GPU5, GPU6, GPU7"
    assert len(found["gpus"]) == 8 and len(found["nics"]) == 12 and found["matrix"] == full(8)[:4]
    assert topology.parse_matrix((samples / "topo_p2p_legend.txt").read_text())["problem"]


@pytest.mark.parametrize("name,gpus,links,rate", [
    ("nvidia-smi_nvlink_status_a100.txt", 8, 12, 25.0), ("nvidia-smi_nvlink_status_b300_r610_first5.txt", 5, 18, 53.125)])
def test_captured_links(samples: Path, name: str, gpus: int, links: int, rate: float) -> None:
    assert topology.parse_links((samples / name).read_text()) == [
        {"index": i, "links": links, "active": links, "min_gbs": rate} for i in range(gpus)]


# -- forms -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("hardware", HARDWARE)
def test_dressed_matrix_in_every_separation(hardware: str) -> None:
    text = printed(hardware)
    found = topology.parse_matrix(text)
    count = 4 if hardware.startswith("gb") else 8
    assert "\x1b[4m" in text and found["problem"] == "" and found["matrix"] == full(count)
    assert list(found["nics"].values()) == [hca.name for hca in part_rdma.hcas(Spec("n1", hardware))]
    assert bool(found["numa"]) == hardware.startswith("gb")
    spaced = text.replace("\t", "    ")
    glued = text.replace("PIX\tNODE", "PIXNODE").replace("SYS\tSYS", "SYSSYS").replace("NV18\tNV18", "NV18NV18").replace(
        "\x1b[0m\t\x1b[4mCPU", "CPU").replace("NIC2\x1b[0m\t\x1b[4mNIC3", "NIC2NIC3")
    assert glued != text
    assert topology.parse_matrix(spaced) == topology.parse_matrix(glued) == topology.parse_matrix(text.replace("\n", "\r\n")) == found


def test_gpu_without_its_links() -> None:
    found = topology.parse_matrix(printed("b300", ["nvlink_lost"]))
    assert found["problem"] == "" and found["matrix"][2] == "SYS SYS X SYS SYS SYS SYS SYS"
    assert found["matrix"][0] == "X NV18 SYS NV18 NV18 NV18 NV18 NV18"


def test_seven_gpus_without_nics() -> None:
    header = "\t".join([""] + ["GPU%d" % i for i in range(7)] + ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    rows = ["GPU%d\t%s\t0,2,4,6\t0\t\tN/A" % (i, row.replace(" ", "\t").replace("X", " X ")) for i, row in enumerate(full(7))]
    found = topology.parse_matrix("\n".join([header] + rows))
    assert found == {"gpus": ["GPU%d" % i for i in range(7)], "matrix": full(7), "gpu_nic": [], "numa": {}, "nics": {}, "problem": ""}


def test_single_gpu() -> None:
    found = topology.parse_matrix("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-11\t0\t\tN/A\n")
    assert (found["matrix"], found["problem"]) == (["X"], "")


def test_device_names_in_the_header_of_old_drivers() -> None:
    found = topology.parse_matrix(
        "\tGPU0\tGPU1\tmlx5_0\tmlx5_bond_0\tCPU Affinity\nGPU0\t X \tNV12\tPXB\tSYS\t0-3\n"
        "GPU1\tNV12\t X \tSYS\tPXB\t0-3\nmlx5_0\tPXB\tSYS\t X \tSYS\n")
    assert found["nics"] == {"mlx5_0": "mlx5_0", "mlx5_bond_0": "mlx5_bond_0"} and found["gpu_nic"] == ["PXB SYS", "SYS PXB"]


def test_short_row_and_no_matrix_are_told() -> None:
    lines = printed().split("\n")
    lines[3] = "GPU2\tNV18\tNV18\t X \tNV18\t\t\tN/A"
    assert topology.parse_matrix("\n".join(lines))["problem"] == "the row of GPU2 has 4 of 21 cells"
    for text in ("", "Failed to initialize NVML: Unknown Error", "Unable to determine the device handle for GPU0: Unknown Error"):
        assert topology.parse_matrix(text)["problem"] == "nvidia-smi topo -m printed no matrix"


def test_first_of_two_equal_rows_stands() -> None:
    text = printed("gb300")
    assert topology.parse_matrix(text + "GPU0\tSYS\tSYS\tSYS\tSYS" + "\tSYS" * 5 + "\n") == topology.parse_matrix(text)


def test_inactive_links() -> None:
    text = ("GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n\t Link 2: 25.781 GB/s\n"
            "GPU 1: NVIDIA H100 (UUID: GPU-2)\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
            "GPU 2: NVIDIA H100 (UUID: GPU-3)\n\t Link 0: Inactive\n")
    assert topology.parse_links(text) == [
        {"index": 0, "links": 3, "active": 2, "min_gbs": 25.781, "inactive": [1]},
        {"index": 1, "links": 0, "active": 0},
        {"index": 2, "links": 1, "active": 0, "inactive": [0]}]
    assert topology.parse_links("") == [] == topology.parse_links("\t Link 0: 25 GB/s\n")


# -- any text --------------------------------------------------------------------------------------
def check(found: Dict[str, Any]) -> None:
    assert set(found) == {"gpus", "matrix", "gpu_nic", "numa", "nics", "problem"}
    if not found["problem"]:
        assert len(found["matrix"]) == len(found["gpus"]) > 0
        assert all(len(row.split()) == len(found["gpus"]) and "?" not in row for row in found["matrix"])
        assert all(len(row.split()) == len(found["nics"]) for row in found["gpu_nic"])


@given(st.one_of(st.text(), st.text(alphabet="GPUNIC0123456789 X\tSYSNVODE\n:\x1b[4m")))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_without_an_exception(text: str) -> None:
    check(topology.parse_matrix(text))
    check(topology.parse_matrix(printed("gb300") + text))
    for gpu in topology.parse_links(text) + topology.parse_links("GPU 0: x\n" + text):
        assert gpu["active"] <= gpu["links"]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_output_is_read_without_an_exception(data: st.DataObject) -> None:
    spec = Spec("n1", "gb300")
    for text, parse in ((printed("gb300"), topology.parse_matrix), (part_gpu.links(spec, part_gpu.gpus(spec)), topology.parse_links)):
        at = data.draw(st.integers(0, len(text)))
        found = parse(text[:at] + data.draw(st.text(max_size=12)) + text[at + data.draw(st.integers(0, 60)):])
        if isinstance(found, dict):
            check(found)
