# SPDX-License-Identifier: GPL-3.0-or-later
"""HCAs, their ports and GIDs, and GPUDirect, of a dressed node.

HGX nodes have eight compute HCAs (RoCE), one for management, and from Blackwell on four more that
manage the NVLink switches. Trays of an NVL72 rack have four for compute and one for management.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

from ansible_collections.inferops.vllm.plugins.module_utils.node import gpudirect, rdma
from ansible_collections.inferops.vllm.plugins.module_utils.node.reader import Content, Ran

from . import Spec, Wardrobe

MANAGEMENT = "eno1"
"""Interface of the management network: default route and SSH."""
OFED = "25.07-0.9.7"
GATEWAY = "192.0.2.1"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"

_X86_BUSES = (0x18, 0x3A, 0x4C, 0x5D, 0x9A, 0xBA, 0xCA, 0xDA)
_GRACE_DOMAINS = (0x0000, 0x0002, 0x0010, 0x0012)


class Hca(NamedTuple):
    """One dressed HCA. `role` is compute, management or switch; `netdev` is empty for a switch's."""

    name: str
    role: str
    bdf: str
    numa: int
    netdev: str
    address: str


def hcas(spec: Spec) -> List[Hca]:
    """HCAs of a node in the order of their names (mlx5_0, mlx5_1, …)."""
    if "no_gpu" in spec.faults:
        return [Hca("mlx5_0", "management", "0000:2a:00.0", 0, MANAGEMENT, spec.address)]
    found = []
    count = 4 if spec.grace else 8
    for i in range(count):
        bdf = "%04x:03:00.0" % _GRACE_DOMAINS[i] if spec.grace else "0000:%02x:00.0" % _X86_BUSES[i]
        address = "198.51.100.%d" % (1 + (8 * (spec.index - 1) + i) % 250)
        found.append(Hca("mlx5_%d" % i, "compute", bdf, 2 * i // count, "rdma%d" % i, address))
    bdf = "0006:03:00.0" if spec.grace else "0000:2a:00.0"
    found.append(Hca("mlx5_%d" % count, "management", bdf, 0, MANAGEMENT, spec.address))
    if spec.hardware in ("b200", "b300"):
        found += [Hca("mlx5_%d" % (9 + i), "switch", "0000:%02x:00.0" % (5 + i), 0, "", "") for i in range(4)]
    return found


def interfaces(spec: Spec) -> List[Tuple[str, str, int, int]]:
    """(interface, IPv4 address, prefix length, MTU) of all interfaces but lo, for ``ip -j addr``."""
    return [(h.netdev, h.address, 24, 9000 if h.role == "compute" else 1500) for h in hcas(spec) if h.netdev]


def dress(spec: Spec, wardrobe: Wardrobe) -> List[Tuple[float, str]]:
    """Fill in what concerns RDMA and GPUDirect; returns lines of the kernel log."""
    log: List[Tuple[float, str]] = []
    devices = hcas(spec)
    for number, hca in enumerate(devices):
        log += _hca(spec, wardrobe, hca, number)
    _tools(spec, wardrobe, devices)
    _network(wardrobe, devices)
    _gpudirect(spec, wardrobe, devices)
    if "errno_524" in spec.faults:
        refused = "topology not supported for mapping type FORCE_PCIE" if spec.grace else "PCI topology not supported for dma-buf"
        log += [(4000.5 + i / 10, "NVRM: dma-buf attach failed: " + refused) for i in range(spec.gpus)]
    return log


def down(spec: Spec, hca: Hca) -> bool:
    """True for the HCA that lost its link to fault port_down."""
    return "port_down" in spec.faults and hca.role == "compute" and hca.name == ("mlx5_2" if spec.grace else "mlx5_5")


# -- sysfs ---------------------------------------------------------------------------------------
def _model(spec: Spec, hca: Hca) -> Tuple[str, str, str, str]:
    """Type, firmware, board, and rate of a port."""
    if hca.role == "management":
        return "MT4125", "22.46.1006", "MT_0000000359", "100 Gb/sec (4X EDR)"
    if hca.role == "compute" and spec.hardware in ("b300", "gb300"):
        return "MT4131", "40.46.1006", "MT_0000001222", "400 Gb/sec (4X NDR)"
    return "MT4129", "28.46.1006", "MT_0000000838" if hca.role == "compute" else "MT_0000001140", "400 Gb/sec (4X NDR)"


def _hca(spec: Spec, wardrobe: Wardrobe, hca: Hca, number: int) -> List[Tuple[float, str]]:
    base = "/sys/class/infiniband/" + hca.name
    kind, firmware, board, rate = _model(spec, hca)
    generation = "32.0 GT/s PCIe" if hca.role == "compute" else "16.0 GT/s PCIe"
    wardrobe.links[base] = "../../devices/pci%s/%s/infiniband/%s" % (hca.bdf[:7], hca.bdf, hca.name)
    wardrobe.links[base + "/device"] = "../../../" + hca.bdf
    wardrobe.links[base + "/device/driver"] = "../../../../bus/pci/drivers/mlx5_core"
    wardrobe.files.update({
        base + "/hca_type": kind + "\n", base + "/fw_ver": firmware + "\n", base + "/board_id": board + "\n",
        base + "/node_type": "1: CA\n", base + "/device/numa_node": "%d\n" % hca.numa,
        base + "/device/current_link_speed": generation + "\n", base + "/device/max_link_speed": generation + "\n",
        base + "/device/current_link_width": "16\n", base + "/device/max_link_width": "16\n",
    })
    port = base + "/ports/1"
    lost = down(spec, hca)
    wardrobe.files.update({
        port + "/state": "1: DOWN" if lost else "4: ACTIVE", port + "/phys_state": "2: Polling" if lost else "5: LinkUp",
        port + "/rate": rate, port + "/link_layer": "InfiniBand" if hca.role == "switch" else "Ethernet",
    })
    for name in rdma.COUNTERS:
        wardrobe.files["%s/counters/%s" % (port, name)] = "0\n"
    for name in rdma.HW_COUNTERS:
        wardrobe.files["%s/hw_counters/%s" % (port, name)] = "0\n"
    if hca.role == "switch":
        wardrobe.files.update({port + "/lid": "0x%x\n" % (3 + number), port + "/sm_lid": "0x1\n"})
        wardrobe.files[base + "/device/vpd"] = "NVLink switch management\0V0\x08SW_MNG=1"
    if hca.netdev:
        wardrobe.folders.add("%s/device/net/%s" % (base, hca.netdev))
        net = "/sys/class/net/" + hca.netdev
        wardrobe.files[net + "/mtu"] = "9000\n" if hca.role == "compute" else "1500\n"
        wardrobe.files[net + "/operstate"] = "down\n" if lost else "up\n"
    if hca.role == "compute" and spec.hardware == "b300":
        # A multi-plane card: its second port carries nothing, by design.
        wardrobe.files.update({
            base + "/ports/2/state": "1: DOWN", base + "/ports/2/phys_state": "3: Disabled",
            base + "/ports/2/rate": "40 Gb/sec (4X QDR)", base + "/ports/2/link_layer": "Ethernet",
        })
    _gids(spec, wardrobe, hca, number)
    at = 4.0 + number / 10
    return [
        (at, "mlx5_core %s: firmware version: %s" % (hca.bdf, firmware)),
        (at + 0.01, "mlx5_core %s: %s Gb/s available PCIe bandwidth (%s x16 link)" % (
            hca.bdf, "504.112" if hca.role == "compute" else "252.048", generation)),
    ]


def _gids(spec: Spec, wardrobe: Wardrobe, hca: Hca, number: int) -> None:
    port = "/sys/class/infiniband/%s/ports/1" % hca.name
    if hca.role == "switch":
        table = ["fe80:0000:0000:0000:%s" % _guid(spec, number)]
    else:
        a, b, c, d = (int(part) for part in hca.address.split("."))
        addresses = ["fe80:0000:0000:0000:0200:5eff:fe00:%02x%02x" % (spec.index & 255, number)]
        if "gid_drift" in spec.faults and hca.role == "compute":
            # A routable IPv6 address came first, so the IPv4 entries moved on by two.
            addresses.append("2001:0db8:0000:0000:0000:0000:%04x:%04x" % (spec.index, number))
        addresses.append("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % (a, b, c, d))
        table = [address for address in addresses for _version in (1, 2)]
    for index in range(len(table) + 2):
        kind = "%s/gid_attrs/types/%d" % (port, index)
        if index >= len(table):
            wardrobe.files["%s/gids/%d" % (port, index)] = ZERO + "\n"
            wardrobe.files[kind] = Content(None, "io:EINVAL")
            continue
        wardrobe.files["%s/gids/%d" % (port, index)] = table[index] + "\n"
        wardrobe.files[kind] = "RoCE v2\n" if hca.netdev and index % 2 else "IB/RoCE v1\n"
        ndev = "%s/gid_attrs/ndevs/%d" % (port, index)
        wardrobe.files[ndev] = hca.netdev + "\n" if hca.netdev else Content(None, "io:EINVAL")


def _guid(spec: Spec, number: int) -> str:
    return "0000:5e00:%04x:%04x" % (spec.index, number)


# -- tools ---------------------------------------------------------------------------------------
def _tools(spec: Spec, wardrobe: Wardrobe, devices: List[Hca]) -> None:
    info, links = [], []
    for number, hca in enumerate(devices):
        lost = down(spec, hca)
        mtu = "4096 (5)" if hca.role != "management" else "1024 (3)"
        info.append("\n".join((
            "hca_id:\t" + hca.name, "\ttransport:\t\t\tInfiniBand (0)", "\tnode_guid:\t\t\t" + _guid(spec, number),
            "\t\tport:\t1", "\t\t\tstate:\t\t\t" + ("PORT_DOWN (1)" if lost else "PORT_ACTIVE (4)"),
            "\t\t\tmax_mtu:\t\t4096 (5)", "\t\t\tactive_mtu:\t\t" + mtu, "")))
        netdev = ',"netdev":"%s"' % hca.netdev if hca.netdev else ""
        links.append('{"ifindex":%d,"ifname":"%s","port":1,"state":"%s","physical_state":"%s"%s}' % (
            number, hca.name, "DOWN" if lost else "ACTIVE", "POLLING" if lost else "LINK_UP", netdev))
    wardrobe.commands[rdma.DEVINFO] = "\n".join(info)
    wardrobe.commands[rdma.RDMA_LINK] = "[%s]\n" % ",".join(links)
    wardrobe.commands[rdma.BRIDGES] = "".join(_bridge(spec, hca) for hca in devices if hca.role == "compute")
    wardrobe.commands[rdma.OFED_INFO] = "OFED-internal-%s:\n" % OFED
    wardrobe.files["/sys/module/mlx5_core/version"] = OFED + "\n"
    wardrobe.folders.add("/sys/module/mlx_compat")
    folder = "/usr/lib/%s-linux-gnu" % ("aarch64" if spec.grace else "x86_64")
    wardrobe.links[folder + "/libmlx5.so.1"] = "libmlx5.so.1.25.56.0"


def _bridge(spec: Spec, hca: Hca) -> str:
    """The port above an HCA. Grace systems need access control there; HGX wants it off."""
    sign = "+" if spec.grace else "-"
    bdf = hca.bdf[:5] + "%02x:00.0" % (int(hca.bdf[5:7], 16) - 1)
    return "".join((
        bdf, " PCI bridge: Example PCIe Switch\n\tCapabilities: [100 v1] Access Control Services\n",
        "\t\tACSCtl:\tSrcValid%s TransBlk- ReqRedir%s\n\n" % (sign, sign)))


def _network(wardrobe: Wardrobe, devices: List[Hca]) -> None:
    rows = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
    rows.append("%s\t00000000\t%s\t0003\t0\t0\t100\t00000000\t0\t0\t0" % (MANAGEMENT, _little_endian(GATEWAY)))
    for hca in devices:
        if hca.netdev:
            network = hca.address.rsplit(".", 1)[0] + ".0"
            rows.append("%s\t%s\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0" % (hca.netdev, _little_endian(network)))
    wardrobe.files["/proc/net/route"] = "\n".join(rows) + "\n"
    wardrobe.files["/proc/net/ipv6_route"] = ""
    own = next(h.address for h in devices if h.role == "management")
    wardrobe.probes[("ssh", "")] = {"connection": "192.0.2.250 52814 %s 22" % own}


def _little_endian(address: str) -> str:
    return "".join("%02X" % int(part) for part in reversed(address.split(".")))


# -- GPUDirect -----------------------------------------------------------------------------------
def _gpudirect(spec: Spec, wardrobe: Wardrobe, devices: List[Hca]) -> None:
    groups: Dict[str, Any] = {hca.bdf: 20 + number for number, hca in enumerate(devices)}
    functions = [h.bdf[:-1] + "1" for h in devices if h.role == "compute"] if spec.hardware == "gb300" else []
    # The DMA function and its GPU share a group, as dma-buf over PCIe demands on coherent systems.
    groups.update({bdf: 40 + number for number, bdf in enumerate(functions)})
    for bdf, group in groups.items():
        wardrobe.links["/sys/bus/pci/devices/%s/iommu_group" % bdf] = "../../../kernel/iommu_groups/%d" % group
        wardrobe.folders.add("/sys/kernel/iommu_groups/%d" % group)
    wardrobe.files["/sys/bus/pci/devices/%s/iommu_group/type" % devices[0].bdf] = "identity\n"
    wardrobe.commands[gpudirect.DATA_DIRECT] = "".join("%s 0300: 15b3:2100\n" % bdf for bdf in functions)
    wardrobe.commands[gpudirect.DMABUF_SYMBOL] = "0000000000000000 T ib_umem_dmabuf_get\t[ib_uverbs]\n"
    wardrobe.commands[gpudirect.PEER_SYMBOL] = "0000000000000000 T ib_register_peer_memory_client\t[ib_uverbs]\n"
    if "no_gpu" in spec.faults:
        wardrobe.commands[gpudirect.MODINFO] = Ran(1, "", "modinfo: ERROR: Module nvidia_peermem not found.\n")
        return
    wardrobe.commands[gpudirect.MODINFO] = (
        "version:        %s\ndescription:    NVIDIA GPU memory plug-in\nlicense:        Dual BSD/GPL\n"
        "depends:        nvidia,ib_uverbs\n" % spec.driver)
    if "peermem_missing" not in spec.faults:
        wardrobe.files["/sys/module/nvidia_peermem/version"] = spec.loaded_driver + "\n"
        wardrobe.files["/etc/modules-load.d/nvidia-peermem.conf"] = "nvidia_peermem\n"
