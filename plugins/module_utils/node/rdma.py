# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA devices (HCAs), their ports and GIDs, and what of the host bears on them.

Nearly everything comes from ``/sys/class/infiniband``. Tools are asked only for what sysfs does
not hold: ``ibv_devinfo`` for the active MTU, ``lspci`` for ACS, ``rdma`` for a netdev that sysfs
does not name. A node without any HCA has ``hcas: []``, which is not the same as unknown.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set, Tuple

from . import kernel_log
from .reader import Reader
from .text import bus_address, drop_empty, integer, number

if TYPE_CHECKING:
    from .collect import Options

CLASS = "/sys/class/infiniband"
NET = "/sys/class/net"
DEVINFO = ("ibv_devinfo",)
RDMA_LINK = ("rdma", "-j", "link")
BRIDGES = ("lspci", "-D", "-vv", "-d", "::0604")
OFED_INFO = ("ofed_info", "-s")
ADDRESSES = ("ip", "-j", "addr")

GIDS_KEPT = 8
GID_GAP = 16
"""Empty entries in a row after which the rest of a GID table (256 and more entries) is taken as empty."""
ACS_KEPT = 20

# Error counters alone: traffic counters differ between any two readings and say nothing of faults.
COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_xmit_discards",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)
HW_COUNTERS = ("packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "out_of_sequence", "out_of_buffer", "roce_adp_retrans")

# Transfer rate of one lane in GT/s → PCIe generation.
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}

# Wording of drivers/net/ethernet/mellanox/mlx5/core and of pcie_print_link_status() in the kernel.
LOG_KINDS = tuple((kind, re.compile(pattern, re.I)) for kind, pattern in (
    ("command_timeout", r"mlx5.*(?:\(0x[0-9a-f]+\) timeout\b|command timeout|wait_func.*timeout)"),
    ("hardware_error", r"mlx5.*unrecoverable hardware error"),
    ("health_compromised", r"mlx5.*(?:health compromised|Health issue observed)"),
    ("pcie_limited", r"mlx5.*available PCIe bandwidth, limited by"),
    ("module_temperature", r"mlx5.*(?:Port module event.*High Temperature|High temperature)"),
    ("slot_power", r"mlx5.*insufficient power on the PCIe slot"),
))

_LIBMLX5 = re.compile(r"libmlx5\.so\.(1\.\d+\.(\d+(?:\.\d+)*))\Z")
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
_OFED_VERSION = re.compile(r"(\d{1,2}\.\d{1,2}-\d+(?:\.\d+)+)")
_ZERO_GID = re.compile(r"(?:fe80(?::0{1,4}){7}|(?:0{1,4}:){7}0{1,4})\Z")


def commands(options: Options) -> List[Sequence[str]]:
    """Commands known beforehand."""
    return [DEVINFO, RDMA_LINK, BRIDGES, OFED_INFO, ADDRESSES, *kernel_log.COMMANDS]


def collect(reader: Reader, options: Options) -> Dict[str, Any]:
    """The ``rdma`` section of docs/FACTS.md."""
    unknown: Dict[str, str] = {}
    facts: Dict[str, Any] = {"unknown": unknown}
    links = parse_rdma_link(reader.run(RDMA_LINK).out)
    hcas = _hcas(reader, links, unknown)
    facts["hcas"] = hcas
    netdevs = {port["netdev"]: hca["name"] for hca in hcas for port in hca.get("ports", []) if port.get("netdev")}
    facts["netdevs"] = netdevs
    facts["default_route"] = _default_route(reader, unknown)
    facts["ssh"] = _ssh(reader, unknown)
    for word in ("default_route", "ssh"):
        below = _below(reader, facts[word], list(netdevs)) if facts[word] else set()
        for hca in hcas:
            if any(port.get("netdev") in below for port in hca.get("ports", [])):
                hca.setdefault("carries", []).append(word)
    facts["ofed"] = _ofed(reader)
    facts["acs"] = _acs(reader, unknown)
    facts["iommu"] = _iommu(reader, [hca["bdf"] for hca in hcas if "bdf" in hca], unknown)
    lines, why = kernel_log.lines(reader)
    if why:
        unknown["kernel_log"] = why
    facts["log"] = [{"kind": g.kind, "text": g.text[:200], "count": g.count} for g in kernel_log.classify(lines, LOG_KINDS)]
    facts["userspace"] = _userspace(reader)
    return facts


# -- HCAs and ports -------------------------------------------------------------------------------
def _hcas(reader: Reader, links: Sequence[Dict[str, Any]], unknown: Dict[str, str]) -> List[Dict[str, Any]]:
    listing = reader.names(CLASS)
    if listing.error:
        # Without the folder the RDMA core is not loaded: the node has no HCA that could be used.
        if listing.error != "missing":
            unknown["hcas"] = "%s cannot be read: %s" % (CLASS, listing.error)
        return []
    devinfo = reader.run(DEVINFO)
    mtus = parse_devinfo(devinfo.out)
    hcas = [_hca(reader, name, links, mtus, unknown) for name in sorted(listing.names, key=_natural)]
    if hcas and not mtus:
        unknown["active_mtu"] = devinfo.reason("ibv_devinfo") if not devinfo.ok else "ibv_devinfo listed no port"
    return hcas


def _natural(name: str) -> Tuple[Any, ...]:
    """Sort key that puts mlx5_2 before mlx5_10."""
    return tuple((1, int(part[:18]), "") if part.isdigit() and part.isascii() else (0, 0, part) for part in re.split(r"([0-9]+)", name))


def _hca(
    reader: Reader, name: str, links: Sequence[Dict[str, Any]], mtus: Dict[Tuple[str, int], int], unknown: Dict[str, str],
) -> Dict[str, Any]:
    base = "%s/%s" % (CLASS, name)
    device = base + "/device"
    address = reader.link(device).strip().rsplit("/", 1)[-1]
    bdf = bus_address(address) if re.match(r"[0-9a-fA-F]{4,8}:", address) else None
    driver = reader.link(device + "/driver").strip().rsplit("/", 1)[-1] or None
    virtual = _virtual_driver(reader, name, bdf)
    ports = [_port(reader, name, number, links, mtus) for number in _port_numbers(reader, base)]
    numa = integer(reader.value(device + "/numa_node")) if bdf else None
    hca: Dict[str, Any] = {
        "name": name,
        "bdf": None if virtual else bdf,
        "driver": virtual or driver,
        "type": reader.value(base + "/hca_type"),
        "firmware": reader.value(base + "/fw_ver"),
        "board": reader.value(base + "/board_id"),
        "numa": numa if numa is not None and numa >= 0 and not virtual else None,
        "virtual": True if virtual else None,
        "pcie": _pcie(reader, device) if bdf and not virtual else None,
        "ports": ports,
    }
    if driver == "mlx5_core" and any(port.get("link_layer") == "InfiniBand" and "netdev" not in port for port in ports):
        # The management devices of NVLink switches look like any other InfiniBand HCA but for this word.
        vpd = reader.read(device + "/vpd")
        if vpd.text is not None:
            hca["sw_mng"] = "SW_MNG" in vpd.text or None
        elif vpd.error != "missing":
            unknown["sw_mng"] = "the vital product data (vpd) of %s cannot be read: %s" % (name, vpd.error)
    return drop_empty(hca)


def _virtual_driver(reader: Reader, name: str, bdf: Optional[str]) -> Optional[str]:
    """Driver of a software HCA, None for hardware. Soft-RoCE has a file ``parent`` that names its interface."""
    base = "%s/%s" % (CLASS, name)
    soft_roce = reader.exists(base + "/parent")
    if not soft_roce and bdf and not name.startswith(("rxe", "siw")):
        return None
    if not soft_roce and "/virtual/" not in reader.link(base).strip() and not name.startswith(("rxe", "siw")):
        return None
    # siw is an iWARP device, which the kernel calls an RNIC.
    return "rdma_rxe" if soft_roce or "RNIC" not in reader.read(base + "/node_type").strip() else "siw"


def _port_numbers(reader: Reader, base: str) -> List[int]:
    return sorted(int(n) for n in reader.names(base + "/ports").names if n.isdigit() and n.isascii() and len(n) < 6)


def _pcie(reader: Reader, device: str) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for key, name in (("gen", "current_link_speed"), ("gen_max", "max_link_speed")):
        speed = number(reader.value("%s/%s" % (device, name)))
        found[key] = _GENERATIONS.get(speed) if speed is not None else None
    for key, name in (("width", "current_link_width"), ("width_max", "max_link_width")):
        found[key] = integer(reader.value("%s/%s" % (device, name)))
    return drop_empty(found)


def _port(reader: Reader, name: str, port: int, links: Sequence[Dict[str, Any]], mtus: Dict[Tuple[str, int], int]) -> Dict[str, Any]:
    base = "%s/%s/ports/%d" % (CLASS, name, port)
    link_layer = reader.value(base + "/link_layer")
    state = _word(reader.value(base + "/state"))
    netdev = _netdev(reader, name, port, link_layer, links)
    found: Dict[str, Any] = {
        "port": port,
        "state": state,
        "phys": _word(reader.value(base + "/phys_state")),
        "rate_gbps": number(reader.value(base + "/rate")) if state != "DOWN" else None,
        "link_layer": link_layer,
        "netdev": netdev,
        "mtu": integer(reader.value("%s/%s/mtu" % (NET, netdev))) if netdev else None,
        "operstate": reader.value("%s/%s/operstate" % (NET, netdev)) if netdev else None,
        "admin_up": _admin_up(reader.value("%s/%s/flags" % (NET, netdev))) if netdev else None,
        "active_mtu": mtus.get((name, port)),
        "gids": _gids(reader, base),
    }
    if found["operstate"] == "up":
        del found["operstate"], found["admin_up"]
    if link_layer == "InfiniBand":
        found["lid"] = _hexadecimal(reader.value(base + "/lid"))
        found["sm_lid"] = _hexadecimal(reader.value(base + "/sm_lid"))
    if state != "DOWN":
        # Every counter is a firmware query; a port that is down by design (multi-plane cards have many) is not asked.
        found["counters"] = _counters(reader, base)
    return drop_empty(found)


def _admin_up(flags: Optional[str]) -> Optional[bool]:
    """Whether an interface was brought up, by bit 0 (IFF_UP) of its flags; a port without a cable is, and carries nothing all the same."""
    value = _hexadecimal(flags)
    return None if value is None else bool(value & 1)


def _word(text: Optional[str]) -> Optional[str]:
    """``"4: ACTIVE"`` → ``"ACTIVE"``."""
    return text.rpartition(":")[2].strip()[:40] or None if text else None


def _hexadecimal(text: Optional[str]) -> Optional[int]:
    try:
        return int(text or "", 16)
    except ValueError:
        return None


def _counters(reader: Reader, base: str) -> Dict[str, int]:
    found = {}
    for folder, names in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
        for name in names:
            value = integer(reader.value("%s/%s/%s" % (base, folder, name)))
            if value:
                found[name] = value
    return found


def _gids(reader: Reader, base: str) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = []
    index = gap = 0
    while gap < GID_GAP and len(found) < GIDS_KEPT:
        gid = reader.read("%s/gids/%d" % (base, index))
        if gid.error in ("missing", "not_recorded"):
            break  # the table ends here
        text = gid.strip()
        if not text or _ZERO_GID.match(text):
            gap += 1
        else:
            gap = 0
            # An index without an interface answers EINVAL here, which leaves the type out.
            kind = reader.value("%s/gid_attrs/types/%d" % (base, index))
            found.append(drop_empty({"i": index, "gid": text[:60], "type": kind[:20] if kind else None, "ipv4": mapped_ipv4(text)}))
        index += 1
    return found


def mapped_ipv4(gid: str) -> Optional[str]:
    """IPv4 address inside a GID (``…:ffff:c633:6401`` → ``198.51.100.1``), None when it holds none."""
    try:
        mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    except ValueError:
        return None
    return str(mapped) if mapped is not None else None


def _netdev(reader: Reader, name: str, port: int, link_layer: Optional[str], links: Sequence[Dict[str, Any]]) -> Optional[str]:
    """Interface of a port. ``device/net`` comes last: it lists all interfaces of the PCI function."""
    if link_layer != "InfiniBand":
        named = reader.value("%s/%s/ports/%d/gid_attrs/ndevs/0" % (CLASS, name, port))
        if named:
            return named
    for link in links:
        if link["hca"] == name and link["port"] == port and link.get("netdev"):
            return str(link["netdev"])
    there = reader.names("%s/%s/device/net" % (CLASS, name)).names
    if len(there) < 2:
        return there[0] if there and len(_port_numbers(reader, "%s/%s" % (CLASS, name))) == 1 else None
    # dev_port counts the ports of a function from 0. IPoIB children and representors share it; the first name is the port's own.
    same = [n for n in there if integer(reader.value("%s/%s/dev_port" % (NET, n))) == port - 1]
    return same[0] if same else None


# -- which interface carries what ---------------------------------------------------------------
def _default_route(reader: Reader, unknown: Dict[str, str]) -> Optional[str]:
    four = reader.read("/proc/net/route")
    six = reader.read("/proc/net/ipv6_route")
    if four.text is None and six.text is None:
        unknown["default_route"] = "/proc/net/route cannot be read: " + four.error
        return None
    return parse_route(four.text or "") or parse_ipv6_route(six.text or "")


def parse_route(text: str) -> Optional[str]:
    """Interface of the IPv4 default route of lowest metric in ``/proc/net/route``, None when there is none."""
    best: Optional[Tuple[int, str]] = None
    for line in text.splitlines():
        fields = line.split()
        # Iface Destination Gateway Flags RefCnt Use Metric Mask …; bit 0 of the flags: the route is usable
        if len(fields) < 8 or fields[1] != "00000000" or fields[7] != "00000000":
            continue
        flags, metric = _hexadecimal(fields[3]), integer(fields[6])
        if flags is not None and flags & 1 and not flags & 0x200 and (best is None or (metric or 0) < best[0]):
            best = (metric or 0, fields[0])
    return best[1] if best else None


def parse_ipv6_route(text: str) -> Optional[str]:
    """Interface of the IPv6 default route of lowest metric in ``/proc/net/ipv6_route``, None when there is none."""
    best: Optional[Tuple[int, str]] = None
    for line in text.splitlines():
        fields = line.split()
        # destination length source length next-hop metric references use flags interface; bit 9: a reject route
        if len(fields) < 10 or fields[0].strip("0") or fields[1] != "00" or fields[9] == "lo":
            continue
        flags, metric = _hexadecimal(fields[8]), _hexadecimal(fields[5])
        if flags is not None and flags & 1 and not flags & 0x200 and (best is None or (metric or 0) < best[0]):
            best = (metric or 0, fields[9])
    return best[1] if best else None


def _ssh(reader: Reader, unknown: Dict[str, str]) -> Optional[str]:
    probed = reader.probe("ssh")
    connection = probed.value.get("connection") if isinstance(probed.value, dict) else None
    if not isinstance(connection, str):
        unknown["ssh"] = "the SSH session could not be looked up: " + (probed.error or "no answer")
        return None
    fields = connection.split()
    if len(fields) < 4:
        return None  # not over SSH
    server = _plain_address(fields[2])
    ran = reader.run(ADDRESSES)
    for interface, addresses in parse_addresses(ran.out).items():
        if server in addresses:
            return interface
    unknown["ssh"] = ran.reason("ip -j addr") if not ran.ok else "no interface has the address %s of the SSH session" % server[:60]
    return None


def _plain_address(text: str) -> str:
    """Address without scope, IPv4-mapped IPv6 as IPv4."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def parse_addresses(text: str) -> Dict[str, List[str]]:
    """``{interface: [addresses]}`` from ``ip -j addr``; empty for what is no such document."""
    found: Dict[str, List[str]] = {}
    for item in _json_list(text):
        name = item.get("ifname")
        infos = item.get("addr_info")
        if isinstance(name, str) and isinstance(infos, list):
            found[name] = [_plain_address(str(i["local"])) for i in infos if isinstance(i, dict) and "local" in i]
    return found


def _json_list(text: str) -> List[Dict[str, Any]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _below(reader: Reader, interface: str, netdevs: Sequence[str]) -> Set[str]:
    """`interface` and all that it stands on: members of a bond or bridge, the parent of a VLAN, and theirs."""
    vlans = parse_vlans(reader.read("/proc/net/vlan/config").text or "")
    masters = {n: reader.link("%s/%s/master" % (NET, n)).strip().rsplit("/", 1)[-1] for n in netdevs}
    found: Set[str] = set()
    waiting = [interface]
    while waiting:
        name = waiting.pop()
        if name in found or len(found) > 64:
            continue
        found.add(name)
        waiting.extend(n[len("lower_"):] for n in reader.names("%s/%s" % (NET, name)).names if n.startswith("lower_"))
        waiting.extend(member for member, master in masters.items() if master == name)
        if name in vlans:
            waiting.append(vlans[name])
    return found


def parse_vlans(text: str) -> Dict[str, str]:
    """``{VLAN interface: parent}`` from ``/proc/net/vlan/config``."""
    found = {}
    for line in text.splitlines():
        fields = [part.strip() for part in line.split("|")]
        if len(fields) == 3 and fields[1].isdigit():
            found[fields[0]] = fields[2]
    return found


# -- tools ---------------------------------------------------------------------------------------
def parse_rdma_link(text: str) -> List[Dict[str, Any]]:
    """Ports of ``rdma -j link``, or of ``rdma link`` without JSON.

    Returns:
        ``[{"hca": "mlx5_0", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP", "netdev": "ens1np0"}]``;
        keys that are not printed are left out. Older iproute2 writes ``mlx5_0/1`` where newer writes name and port.
    """
    found = []
    for item in _json_list(text) or _text_links(text):
        name = item.get("ifname")
        if not isinstance(name, str):
            continue
        hca, _slash, behind = name.partition("/")
        port = integer(behind) if behind else integer(item.get("port"))
        keys = {key: str(item[key]) for key in ("state", "physical_state", "netdev") if item.get(key)}
        if hca and port is not None:
            found.append({"hca": hca, "port": port, **keys})
    return found


def _text_links(text: str) -> List[Dict[str, Any]]:
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and re.match(r"(?:link|\d+/\d+:)\Z", words[0]):
            item = dict(zip(words[2::2], words[3::2]))
            found.append({**item, "ifname": words[1].rstrip(":")})
    return found


def parse_devinfo(text: str) -> Dict[Tuple[str, int], int]:
    """Active MTU in bytes by (HCA, port) from ``ibv_devinfo``, of ports that are active.

    A port that is down prints the MTU it had last, or would have; that says nothing.
    """
    found: Dict[Tuple[str, int], int] = {}
    hca, port, active = "", 0, False
    for line in text.splitlines():
        key, sign, value = line.strip().partition(":")
        if not sign:
            continue
        value = value.strip()
        if key == "hca_id":
            hca, port = value, 0
        elif key == "port":
            port, active = integer(value) or 0, False
        elif key == "state":
            active = "PORT_ACTIVE" in value
        elif key == "active_mtu" and hca and port and active:
            mtu = integer(value)
            if mtu:
                found[(hca, port)] = mtu
    return found


def _acs(reader: Reader, unknown: Dict[str, str]) -> Dict[str, Any]:
    ran = reader.run(BRIDGES)
    if not ran.ok:
        unknown["acs"] = ran.reason("lspci")
        return {"checked": False, "srcvalid": []}
    bridges, hidden = parse_bridges(ran.out)
    if hidden:
        unknown["acs"] = "lspci shows the capabilities of bridges to root only"
    return {"checked": not hidden, "srcvalid": bridges[:ACS_KEPT]}


def parse_bridges(text: str) -> Tuple[List[str], bool]:
    """Bridges with ACS source validation on, and whether capabilities were hidden, from ``lspci -D -vv -d ::0604``."""
    found: List[str] = []
    hidden = False
    current = ""
    for line in text.splitlines():
        if line[:1].strip():
            current = bus_address(line.split(" ", 1)[0])
        elif "<access denied>" in line:
            hidden = True
        elif line.strip().startswith("ACSCtl:") and "SrcValid+" in line and current and current not in found:
            found.append(current)
    return found, hidden


def _iommu(reader: Reader, bdfs: Sequence[str], unknown: Dict[str, str]) -> Dict[str, Any]:
    listing = reader.names("/sys/kernel/iommu_groups")
    if listing.error not in ("", "missing"):
        unknown["iommu"] = "/sys/kernel/iommu_groups cannot be read: " + listing.error
        return {"groups": None, "mode": None}
    if not listing.names:
        return {"groups": 0, "mode": "off"}
    # What an HCA's own group says is better than what was asked for at boot.
    kind = next((k for k in (reader.value("/sys/bus/pci/devices/%s/iommu_group/type" % bdf) for bdf in bdfs[:1]) if k), None)
    mode: Optional[str] = None
    if kind:
        mode = "passthrough" if kind == "identity" else "translated"
    else:
        words = reader.read("/proc/cmdline").strip().split()
        if "iommu=pt" in words or "iommu.passthrough=1" in words:
            mode = "passthrough"
        elif "intel_iommu=on" in words or "iommu.passthrough=0" in words or "amd_iommu=force_enable" in words:
            mode = "translated"
        else:
            unknown["iommu"] = "neither an IOMMU group nor the kernel command line names the mode"
    return {"groups": len(listing.names), "mode": mode}


def _ofed(reader: Reader) -> Dict[str, Any]:
    """Whose kernel modules are loaded. mlx_compat exists only in NVIDIA's (OFED, DOCA) build of them."""
    module = reader.value("/sys/module/mlx5_core/version")
    asked = reader.run(OFED_INFO)
    installed = _OFED_VERSION.search(asked.out) if asked.ok else None
    loaded = _OFED_VERSION.search(module or "")
    driver = reader.exists("/sys/module/mlx5_core")
    ofed = bool(loaded) or reader.exists("/sys/module/mlx_compat") or (installed is not None and not driver)
    version = installed.group(1) if installed else loaded.group(1) if loaded else None
    return {"version": version, "flavour": "ofed" if ofed else "inbox"}


def _userspace(reader: Reader) -> Dict[str, Any]:
    """Versions out of the library's file name: rdma-core puts its own behind the interface version."""
    for folder in _LIBRARIES:
        found = _LIBMLX5.match(reader.link(folder + "/libmlx5.so.1").strip().rsplit("/", 1)[-1])
        if found:
            return {"libmlx5": found.group(1), "rdma_core": found.group(2)}
    return {"libmlx5": None, "rdma_core": None}
