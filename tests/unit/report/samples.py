# SPDX-License-Identifier: GPL-3.0-or-later
"""Clusters for the tests of the report: findings made by hand in the form that the checks give."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from ansible_collections.inferops.vllm.plugins.module_utils.checks import judge
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Context, Node
from ansible_collections.inferops.vllm.plugins.plugin_utils import report

NOW = 1795986400.0
SOURCE = "https://docs.nvidia.com/datacenter/tesla/index.html"

CHECKS = [judge.REACHABLE.id] + [rule.id for rule in judge.checks() if not rule.id.startswith("drift.")]
DRIFT = [
    "drift.driver",
    "drift.kernel",
    "drift.gpu_model",
    "drift.gpu_count",
    "drift.vbios",
    "drift.hcas",
    "drift.gids",
    "drift.mtu",
    "drift.clique",
    "drift.imex",
    "drift.image",
    "drift.toolkit",
    "drift.env_files",
]


def finding(
    id: str, node: str, status: str = "pass", severity: str = "block", observed: str = "", required: str = "", **more: Any
) -> Dict[str, Any]:
    made: Dict[str, Any] = {
        "id": id,
        "node": node,
        "status": status,
        "severity": severity,
        "observed": observed,
        "required": required,
        "read_from": "nvidia-smi -q -x",
        "why": "",
        "fix": "",
        "source": SOURCE,
    }
    made.update(more)
    return made


Fault = Tuple[str, str, str, str, str, str, str]

BRANCH: Fault = (
    "driver.branch",
    "fail",
    "block",
    "575.57.08",
    "580 or newer",
    "The image is built for CUDA 13.0, which a driver of branch 575 cannot run.",
    "Install driver branch 580 with `ansible-playbook inferops.vllm.remediate_driver --limit NODE`.",
)
CUDA: Fault = (
    "image.cuda",
    "fail",
    "block",
    "driver supports CUDA 12.9, image holds 13.0",
    "CUDA of the driver >= CUDA of the image",
    "Every CUDA call in the container would fail with error 803.",
    "Install driver branch 580 with `ansible-playbook inferops.vllm.remediate_driver --limit NODE`.",
)
PEERMEM: Fault = (
    "gpudirect.peermem",
    "fail",
    "block",
    "nvidia_peermem is present and not loaded",
    "loaded: dma-buf was refused with errno 524",
    "Without peermem NCCL copies every message through host memory.",
    "Load and persist it with `ansible-playbook inferops.vllm.remediate_rdma --limit NODE`.",
)
FALLBACK: Fault = (
    "gpudirect.dmabuf_fallback",
    "warn",
    "warn",
    "3 refused dma-buf attachments in the kernel log (errno 524)",
    "none",
    "NCCL retries and then falls back, at a tenth of the bandwidth.",
    "Set NCCL_DMABUF_ENABLE=0 once peermem is loaded.",
)
LOST: Fault = (
    "gpu.count",
    "fail",
    "block",
    "7 in nvidia-smi, 8 on PCI (0000:db:00.0 rev ff)",
    "8",
    "Tensor parallel size 8 needs 8 GPUs.",
    "Drain and reboot the node with "
    "`ansible-playbook inferops.vllm.remediate -e reboot=true --limit NODE`; if it stays away, replace the GPU.",
)
XID: Fault = (
    "gpu.xid",
    "fail",
    "block",
    "Xid 79 on 0000:db:00.0: GPU has fallen off the bus",
    "no fatal Xid since boot",
    "The GPU is gone until the machine restarts.",
    "Drain and reboot the node with `ansible-playbook inferops.vllm.remediate -e reboot=true --limit NODE`.",
)
DIGEST: Fault = (
    "image.digest",
    "fail",
    "block",
    "sha256:9f2c41d0b7aa",
    "sha256:31e0aa5d6c02",
    "Ranks of one engine that run different code fail in ways that look like network faults.",
    "Pull by digest with `ansible-playbook inferops.vllm.provision --tags image --limit NODE`.",
)
GID: Fault = (
    "rdma.gid",
    "fail",
    "block",
    "RoCE v2 GID at index 5 on mlx5_0..mlx5_7",
    "index 3, as on 4 of 5 nodes",
    "NCCL uses one GID index on all nodes.",
    "Align it with `ansible-playbook inferops.vllm.remediate_rdma --tags gid --limit NODE`.",
)
HUNG: Fault = (
    "gpu.count",
    "unknown",
    "block",
    "nvidia-smi did not answer in time and was abandoned",
    "8",
    "A GPU that cannot be asked cannot be trusted.",
    "Look at pid 4711 in D state (`cat /proc/4711/stack`), then reboot the node.",
)
HUNG_ECC: Fault = (
    "gpu.ecc",
    "unknown",
    "block",
    "nvidia-smi did not answer in time and was abandoned",
    "no uncorrected error",
    "A GPU that cannot be asked cannot be trusted.",
    "Look at pid 4711 in D state (`cat /proc/4711/stack`), then reboot the node.",
)
NVLINK: Fault = (
    "gpu.nvlink_matrix",
    "fail",
    "block",
    "GPU2 to all others: SYS",
    "NV18 between all GPUs",
    "One lost GPU link makes every all-reduce take the PCIe path.",
    "Reset the GPU with `ansible-playbook inferops.vllm.remediate --tags nvlink --limit NODE`.",
)
SWAP: Fault = (
    "host.swap",
    "warn",
    "warn",
    "8 GiB of swap in use",
    "swap off",
    "Swapped pages of a rank stall all ranks.",
    "Run `swapoff -a` and take swap out of /etc/fstab.",
)


def cluster(
    count: int,
    faults: Optional[Dict[int, Sequence[Fault]]] = None,
    unreachable: Sequence[int] = (),
    drift: Sequence[Fault] = (),
    prefix: str = "b300",
    name: str = "NVIDIA B300 SXM6 AC",
    lost_link: Sequence[int] = (),
    **facts: Any,
) -> Dict[str, Any]:
    """Document of `count` nodes; `faults` by node number from 1."""
    faults = faults or {}
    digits = 4 if count > 99 else 2
    nodes: List[Node] = []
    findings: List[Dict[str, Any]] = []
    for number in range(1, count + 1):
        node_name = "%s-%0*d" % (prefix, digits, number)
        mine = list(faults.get(number, ()))
        ids = {fault[0] for fault in mine if fault[1] == "fail"}
        hung = HUNG in mine
        down = number in unreachable
        gpus = 7 if "gpu.count" in ids else 8
        read = dict(facts)
        if not down:
            read.update(
                {
                    "collected": {"recorded": True, "costume": None},
                    "host": {"kernel": "6.8.0-85-generic", "hostname": node_name},
                    "driver": {"loaded": "575.57.08" if "driver.branch" in ids else "580.95.05"},
                    "gpu": {"pci": [{"bdf": "0000:%02x:00.0" % i} for i in range(8)]},
                    "rdma": {"hcas": [{"name": "mlx5_%d" % i} for i in range(8)]},
                }
            )
            if not hung:
                read["gpu"]["gpus"] = [{"name": name} for _ in range(gpus)]
                read["gpu"]["topology"] = topology(gpus, 2 if number in lost_link else None)
        nodes.append(
            Node(
                node_name,
                read,
                {"host_ip": "192.0.2.%d" % (number % 250 + 1)},
                "ssh: connect to host 192.0.2.%d port 22: No route to host" % number if down else "",
            )
        )
        said = {fault[0]: fault for fault in mine}
        if down:
            findings.append(
                finding(
                    "node.reachable",
                    node_name,
                    "fail",
                    "block",
                    nodes[-1].unreachable,
                    "an answer",
                    why="A node that does not answer cannot be judged, nor serve.",
                    fix="Make the node reachable (`ansible NODE -m ansible.builtin.ping`).",
                    read_from="the connection",
                )
            )
            continue
        for id in CHECKS:
            if id in said:
                _id, status, severity, observed, required, why, fix = said[id]
                findings.append(finding(id, node_name, status, severity, observed, required, why=why, fix=fix.replace("NODE", node_name)))
            elif id in ("fabric.imex", "fabric.clique"):
                findings.append(finding(id, node_name, "skip", "block", "the plan uses no NVLink between nodes"))
            else:
                findings.append(
                    finding(
                        id,
                        node_name,
                        "pass",
                        "block",
                        "as it should be",
                        "as it should be",
                        **({"assumed": True} if id == "rdma.mtu" else {}),
                    )
                )
    differ = {fault[0]: fault for fault in drift}
    for id in DRIFT:
        if id in differ:
            _id, status, severity, observed, required, why, fix = differ[id]
            findings.append(finding(id, "*", status, severity, observed, required, why=why, fix=fix))
        else:
            findings.append(finding(id, "*", "pass", "warn", "equal on all nodes"))
    context = Context(
        hardware="b300",
        strategy="multi_node_tp_pp",
        interconnect="rdma",
        variant="default",
        gpus_per_node=8,
        nodes=tuple(n.name for n in nodes),
        sources={
            "hardware": "concluded from the GPU name on %d nodes" % (count - len(unreachable)),
            "strategy": "declared",
            "interconnect": "concluded: more than one node, HCAs present, no MNNVL",
            "variant": "declared",
        },
    )
    return report.document("kimi_k3", context, judge.verdicts(nodes, findings), findings, nodes, NOW)


def topology(gpus: int = 8, lost: Optional[int] = None) -> Dict[str, Any]:
    def cell(a: int, b: int) -> str:
        return "X" if a == b else "SYS" if lost in (a, b) else "NV18"

    return {
        "gpus": ["GPU%d" % i for i in range(gpus)],
        "matrix": [" ".join(cell(a, b) for b in range(gpus)) for a in range(gpus)],
        "nics": {"NIC%d" % i: "mlx5_%d" % i for i in range(8)},
        "gpu_nic": [" ".join("PIX" if a == b else "NODE" if a // 4 == b // 4 else "SYS" for b in range(8)) for a in range(gpus)],
    }


def demo() -> Dict[str, Any]:
    """Six nodes, one fault each, as in the demo inventory, with a seventh that does not answer."""
    return cluster(
        7,
        {2: [BRANCH, CUDA], 3: [PEERMEM, FALLBACK], 4: [LOST, XID], 5: [DIGEST, GID], 6: [HUNG, HUNG_ECC, SWAP]},
        unreachable=[7],
        drift=[
            (
                "drift.driver",
                "warn",
                "warn",
                "b300-02: 575.57.08, 4 others: 580.95.05",
                "one value on all nodes",
                "Mixed drivers hide faults.",
                "See driver.branch.",
            ),
            ("drift.gpu_count", "warn", "warn", "b300-04: 7, 4 others: 8", "one value on all nodes", "See gpu.count.", "See gpu.count."),
            (
                "drift.image",
                "fail",
                "block",
                "b300-05: sha256:9f2c41d0b7aa, 5 others: sha256:31e0aa5d6c02",
                "one digest on all nodes",
                "Ranks would run different code.",
                "Pull by digest with `ansible-playbook inferops.vllm.provision --tags image`.",
            ),
            (
                "drift.gids",
                "warn",
                "warn",
                "b300-05: RoCE v2 at index 5, 4 others: index 3",
                "one value on all nodes",
                "See rdma.gid.",
                "See rdma.gid.",
            ),
        ],
    )


def healthy(count: int = 4) -> Dict[str, Any]:
    return cluster(count)


def large(count: int = 1000) -> Dict[str, Any]:
    """Many nodes: mostly well, with common and rare faults and values that differ on every node."""
    faults: Dict[int, List[Fault]] = {}
    for number in range(1, count + 1):
        mine: List[Fault] = []
        if 120 <= number < 160:
            mine += [BRANCH, CUDA]
        if number % 37 == 0:
            mine.append(PEERMEM)
        if number % 83 == 0:
            mine += [LOST, XID]
        if number % 149 == 0:
            mine.append(NVLINK)
        if number % 211 == 0:
            mine += [HUNG, HUNG_ECC]
        if number % 11 == 0:
            mine.append(
                (
                    "host.swap",
                    "warn",
                    "warn",
                    "%d MiB of swap in use" % (number * 7),
                    "swap off",
                    "Swapped pages stall all ranks.",
                    "Run `swapoff -a`.",
                )
            )
        if number % 5 == 0:
            mine.append(("host.time", "warn", "warn", "offset %d ms" % number, "< 5 ms", "Logs cannot be compared.", "Start chrony."))
        faults[number] = mine
    return cluster(
        count,
        faults,
        unreachable=[n for n in range(1, count + 1) if n % 173 == 0],
        lost_link=[n for n in range(1, count + 1) if n % 149 == 0],
        drift=[
            (
                "drift.driver",
                "warn",
                "warn",
                "b300-0120..0159: 575.57.08, 955 others: 580.95.05",
                "one value on all nodes",
                "Mixed drivers.",
                "See driver.branch.",
            )
        ],
    )
