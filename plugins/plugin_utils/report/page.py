# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as one HTML file that asks nothing of any other place.

What came from nodes is embedded as JSON inside a script element of type ``application/json`` and
reaches the page through ``textContent`` alone; the list for readers without JavaScript is
escaped by the template. The page's own Content Security Policy forbids every request.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Tuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .groups import CLUSTER, assumed, counted, general, headline, problems, rank
from .text import fold, plain

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
NOSCRIPT_MOST = 200
"""Entries of the list that a browser without JavaScript shows."""

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def html(document: Mapping[str, Any]) -> str:
    """The whole page. 1,000 nodes with 70 findings each stay below 12 MB."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    groups = problems(document)
    listed = [
        {
            "id": plain(group.id),
            "status": group.status,
            "blocks": group.rank <= 1,
            "nodes": fold(["the cluster" if name == CLUSTER else plain(name) for name in variant.nodes], 120),
            "observed": plain(variant.observed),
            "required": plain(variant.required),
            "fix": plain(variant.fix),
            "why": plain(variant.why),
        }
        for group in groups
        for variant in group.variants
    ]
    return environment.get_template("report.html.j2").render(
        title="Preflight: " + plain(headline(document)),
        headline=plain(headline(document)),
        verdict=document["summary"]["verdict"],
        generated_at=plain(document["generated_at"]),
        counts=counted(document),
        listed=listed[:NOSCRIPT_MOST],
        left_out=max(0, len(listed) - NOSCRIPT_MOST),
        style=Markup(_template("report.css")),
        script=Markup(_template("report.js")),
        data=Markup(script_json(compact(document))),
    )


def _template(name: str) -> str:
    with open(os.path.join(TEMPLATES, name), encoding="utf-8") as file:
        return file.read()


def script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for sign, escape in _ESCAPES.items():
        text = text.replace(sign, escape)
    # A lone surrogate has no UTF-8 form.
    return text.encode("utf-8", "replace").decode("utf-8")


class _Table:
    """Values by number, each kept once."""

    def __init__(self) -> None:
        self.values: List[Any] = []
        self.numbers: Dict[Any, int] = {}

    def number(self, key: Any, value: Any) -> int:
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.values)
            self.values.append(value)
        return found


def compact(document: Mapping[str, Any]) -> Dict[str, Any]:
    """The document with every repeated text kept once.

    Returns:
        ``strings`` are numbered texts; ``checks`` are ``[id, title]``; ``variants`` are findings without
        their node, ``[check, status, severity, rank, assumed, observed, required, read_from, why, fix, source]``
        with numbers for texts and NUL in a fix where the node's name stood;
        ``nodes`` are ``[name, verdict, recorded, costume, gpus, driver, kernel, address,
        unreachable, topology number or -1]``; ``rows`` list the variants of each node, ``cluster`` those of
        the cluster; ``topologies`` are the distinct ones.
    """
    strings, checks, variants, topologies = _Table(), _Table(), _Table(), _Table()
    names = list(document["nodes"])
    rows: Dict[str, List[int]] = {name: [] for name in names}
    cluster: List[int] = []
    for f in document["findings"]:
        key: Tuple[Any, ...] = (
            f["id"],
            f["status"],
            f["severity"],
            bool(f.get("assumed")),
            f["observed"],
            f["required"],
            f["read_from"],
            f["why"],
            general(f["fix"], f["node"]),
            f["source"],
        )
        number = variants.numbers.get(key)
        if number is None:
            check = checks.number(f["id"], [f["id"], document["checks"].get(f["id"], "")])
            texts = [strings.number(text, text) for text in key[4:]]
            number = variants.number(key, [check, f["status"], f["severity"], rank(f), int(key[3]), *texts])
        rows.get(f["node"], cluster).append(number)
    nodes = []
    for name in names:
        record = document["nodes"][name]
        topology = record["topology"]
        place = -1 if topology is None else topologies.number(json.dumps(topology, sort_keys=True), topology)
        nodes.append(
            [
                name,
                record["verdict"],
                record["recorded"],
                record["costume"],
                record["gpus"],
                record["driver"],
                record["kernel"],
                record["address"],
                record["unreachable"],
                place,
            ]
        )
    return {
        "profile": document["profile"],
        "generated_at": document["generated_at"],
        "context": document["context"],
        "assumed": assumed(document),
        "headline": headline(document),
        "summary": document["summary"],
        "strings": strings.values,
        "checks": checks.values,
        "variants": variants.values,
        "nodes": nodes,
        "rows": [rows[name] for name in names],
        "cluster": cluster,
        "topologies": topologies.values,
    }
