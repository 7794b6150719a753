# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report for a terminal."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from .groups import VERDICT_ORDER, Group, Unread, assumed, counted, headline, node_counts, problems, split_unread
from .text import cut, fold, pad, plain, width, wrap

Line = Tuple[str, Optional[str]]
Entry = Union[Group, Unread]

EVERY_NODE = 24
"""Up to this many nodes each has a line of its own and nothing is left out."""
MOST_LINES = 78
"""Lines that a larger cluster may take; what is left out is counted and stands in the HTML report."""

_COLORS = {"ready": "green", "warn": "yellow", "blocked": "red", "unknown": "purple", "unreachable": "bright red"}
_UTF8 = {"ready": "✔", "warn": "▲", "blocked": "✘", "unknown": "?", "unreachable": "✘", "rule": "─", "to": "→", "dot": " · ", "cut": "…"}
_ASCII = {
    "ready": "+",
    "warn": "!",
    "blocked": "X",
    "unknown": "?",
    "unreachable": "X",
    "rule": "-",
    "to": "->",
    "dot": " - ",
    "cut": "...",
}


class _Page:
    """Lines so far; every text that goes in has been made plain and is cut to the width here."""

    def __init__(self, columns: int, ascii_only: bool) -> None:
        self.columns = columns
        self.ascii = ascii_only
        self.signs = _ASCII if ascii_only else _UTF8
        self.lines: List[Line] = []

    def plain(self, value: Any) -> str:
        return plain(value, self.ascii)

    def add(self, text: str, color: Optional[str] = None) -> None:
        self.lines.append((cut(text, self.columns, self.signs["cut"]).rstrip(), color))

    def wrapped(self, indent: str, text: str, limit: int, color: Optional[str] = None, first: Optional[str] = None) -> None:
        """`text` behind `indent`; the first line starts with `first` instead, which is no wider."""
        for position, line in enumerate(wrap(text, max(10, self.columns - len(indent)), limit, self.signs["cut"])):
            self.add((indent if first is None or position else first) + line, color)

    def heading(self, text: str, color: Optional[str] = None) -> None:
        self.add("")
        self.add(text, color)


def terminal(document: Mapping[str, Any], width: int = 100, ascii_only: bool = False, where: str = "") -> List[Line]:
    """The report as ``[(text, colour name of Ansible or None)]``, no line wider than `width` columns.

    Up to :data:`EVERY_NODE` nodes everything that is not pass or skip stands there in full; beyond
    that nodes are folded by verdict and the text keeps to about :data:`MOST_LINES` lines.

    Args:
        document: from :func:`build.document`.
        width: columns of the terminal, at least 40.
        ascii_only: use no character beyond ASCII.
        where: path of the HTML report for the last line, empty for none.
    """
    page = _Page(max(40, width), ascii_only)
    small = len(document["nodes"]) <= EVERY_NODE
    groups = problems(document)
    _head(page, document, small)
    if small:
        _each_node(page, document)
    else:
        _nodes_by_verdict(page, document)
    _findings(page, groups, small, len(document["nodes"]))
    page.add("")
    if where:
        # Wrapped, not cut: a path that lacks its end helps nobody.
        page.wrapped("", "Details: " + page.plain(where), 0)
    return page.lines


def _head(page: _Page, document: Mapping[str, Any], small: bool) -> None:
    verdict = document["summary"]["verdict"]
    sign = page.signs.get(verdict, "?")
    page.add("%s %s: %s" % (sign, page.plain(verdict).upper(), page.plain(headline(document))), _COLORS.get(verdict))
    words = page.signs["dot"].join("%d %s" % (count, word) for word, count in counted(document))
    page.add("  %s%s%s" % (words, page.signs["dot"] if words else "", page.plain(document["generated_at"])))
    guesses = assumed(document)
    context = document["context"]
    values = [
        "%s %s%s" % (name, page.plain(context[name]) or "?", " (assumed)" if name in guesses else "")
        for name in ("hardware", "strategy", "interconnect", "variant")
    ]
    page.wrapped("  ", page.signs["dot"].join(["profile " + page.plain(document["profile"])] + values), 3)
    left_out = context.get("left_out") or []
    if left_out:
        page.wrapped("  ", "left out by --limit: %s" % page.plain(fold(left_out, 70)), 2, "cyan")
    for name, source in guesses.items():
        page.wrapped("    ", "assumed %s: %s" % (name, page.plain(source)), 3 if small else 1, "cyan")


def _remarks(record: Mapping[str, Any]) -> str:
    remarks = ["recorded"] if record["recorded"] else []
    if record["costume"]:
        remarks.append("dressed as " + str(record["costume"]))
    return ", ".join(remarks)


def _each_node(page: _Page, document: Mapping[str, Any]) -> None:
    nodes = document["nodes"]
    if not nodes:
        return
    counts = node_counts(document)
    mark = page.signs["cut"]
    name_width = max(4, min(page.columns // 4, max(width(page.plain(name)) for name in nodes)))
    fixed = 2 + name_width + 2 + 11 + 2 + 2 + 11 + 2 + 3 * 6
    longest = max(width(page.plain(record["gpus"] or "?")) for record in nodes.values())
    gpu_width = max(4, min(longest, page.columns - fixed))
    page.add("")
    head = "  %s  %s  %s  %s  block  warn  unkn." % (pad("node", name_width), pad("verdict", 11), pad("GPUs", gpu_width), pad("driver", 11))
    page.add(head)
    page.add(page.signs["rule"] * min(page.columns, width(head)))
    notes: Dict[str, List[str]] = {}
    for name, record in nodes.items():
        here = counts[name]
        cells = [
            page.signs.get(record["verdict"], "?") + " " + pad(page.plain(name), name_width, mark),
            pad(page.plain(record["verdict"]), 11, mark),
            pad(page.plain(record["gpus"] or "?"), gpu_width, mark),
            pad(page.plain(record["driver"] or "?"), 11, mark),
            "%5s" % (here["block"] or "-"),
            "%4s" % (here["warn"] or "-"),
            "%4s" % (here["unknown"] or "-"),
        ]
        page.add("  ".join(cells), _COLORS.get(record["verdict"]))
        remark = _remarks(record)
        if remark:
            notes.setdefault(remark, []).append(page.plain(name))
    for remark, names in notes.items():
        who = "all nodes" if len(names) == len(nodes) else fold(names, 50)
        page.wrapped("  ", "%s: %s" % (who, page.plain(remark)), 2)


def _nodes_by_verdict(page: _Page, document: Mapping[str, Any]) -> None:
    page.add("")
    total = len(document["nodes"])
    for verdict in VERDICT_ORDER:
        names = [page.plain(name) for name, record in document["nodes"].items() if record["verdict"] == verdict]
        if not names:
            continue
        start = "%s %s %s of %d  " % (page.signs[verdict], pad(verdict, 11), str(len(names)).rjust(len(str(total))), total)
        page.add(start + fold(names, page.columns - len(start)), _COLORS[verdict])
    recorded = sum(1 for record in document["nodes"].values() if record["recorded"])
    dressed = sum(1 for record in document["nodes"].values() if record["costume"])
    if recorded or dressed:
        page.add("  %d recorded, %d dressed as other hardware" % (recorded, dressed))


def _findings(page: _Page, groups: List[Group], small: bool, total: int) -> None:
    if not groups:
        page.heading("Every check that applies has passed.", "green")
        return
    apart, unread = split_unread(groups)
    drift: List[Entry] = [g for g in apart if g.drift]
    rest = [g for g in apart if not g.drift]
    blocking: List[Entry] = [*(g for g in rest if g.rank == 0), *(u for u in unread if u.rank == 1), *(g for g in rest if g.rank == 1)]
    others: List[Entry] = [*(g for g in rest if g.rank > 1), *(u for u in unread if u.rank > 1)]
    sections = [s for s in (("What blocks", blocking, 5), ("Differences between nodes", drift, 1), ("Worth a look", others, 2)) if s[1]]
    left_out = 0
    for position, (title, chosen, cost) in enumerate(sections):
        # Every later section keeps room for its heading and a few entries.
        reserve = sum(min(len(later), 5) * min(price, 2) + 2 for _title, later, price in sections[position + 1 :])
        page.heading(title, "bright red" if title == "What blocks" else None)
        for entry in chosen:
            if not small and len(page.lines) + cost + reserve > MOST_LINES - 4:
                left_out += 1
            elif isinstance(entry, Unread):
                _unread(page, entry, small, total)
            elif entry.drift:
                _drift(page, entry, small, total)
            elif small:
                _in_full(page, entry, total)
            else:
                _in_short(page, entry, cost == 5, total)
    if left_out:
        page.heading("%d more check%s with findings: see the HTML report." % (left_out, "" if left_out == 1 else "s"))


def _unread(page: _Page, entry: Unread, small: bool, total: int) -> None:
    color = "purple" if entry.rank == 1 else None
    start = "%s %d checks could not be looked at: " % (page.signs["unknown"], len(entry.ids))
    page.add(start + _who(page, entry.nodes, page.columns - width(start), total), color)
    page.wrapped("    ", page.plain(entry.reason) or "?", 0 if small else 1)
    page.wrapped("    ", ", ".join(page.plain(id) for id in entry.ids), 0 if small else 2)
    limit = ",".join(entry.nodes) if 0 < len(entry.nodes) <= 4 and "*" not in entry.nodes else "NODES"
    _fix(page, "Clear that reason, then look again: `ansible-playbook inferops.vllm.preflight --limit %s`." % page.plain(limit), 2)


def _color(group: Group) -> Optional[str]:
    return {0: "red", 1: "purple", 2: "yellow"}.get(group.rank)


def _sign(page: _Page, group: Group) -> str:
    if group.status == "unknown":
        return page.signs["unknown"]
    return page.signs["blocked"] if group.rank == 0 else page.signs["warn"]


def _who(page: _Page, names: List[str], columns: int, total: int) -> str:
    if names == ["*"]:
        return "the cluster"
    if total > 1 and len(set(names) - {"*"}) == total:
        return "all %d nodes" % total
    return fold([page.plain("the cluster" if name == "*" else name) for name in names], columns)


def _said(page: _Page, observed: str, required: str) -> str:
    """``observed → required``"""
    text = page.plain(observed) or "?"
    needed = page.plain(required)
    return "%s %s %s" % (text, page.signs["to"], needed) if needed else text


def _title(page: _Page, group: Group, names: str) -> str:
    title = page.plain(group.title)
    return "%s %s%s  %s" % (_sign(page, group), page.plain(group.id), " (%s)" % title if title else "", names)


def _in_full(page: _Page, group: Group, total: int) -> None:
    names = group.nodes
    same = len(group.variants) == 1
    state = " could not be looked at" if group.status == "unknown" else ""
    page.wrapped("    ", _title(page, group, _who(page, names, 60, total)) + state, 3, _color(group), first="")
    shared = len({(v.fix, v.why) for v in group.variants}) == 1
    one_need = not same and len({v.required for v in group.variants}) == 1
    for variant in group.variants:
        who = "" if same else _who(page, variant.nodes, 40, total) + ": "
        needed = "" if one_need else variant.required
        page.wrapped("    ", who + _said(page, variant.observed, needed) + (" (assumed)" if variant.assumed else ""), 0)
        if not shared:
            _fix(page, variant.fix, 0)
    if one_need and group.variants[0].required:
        page.wrapped("    ", "required: " + page.plain(group.variants[0].required), 0)
    if shared:
        _fix(page, group.variants[0].fix, 0)


def _fix(page: _Page, fix: str, limit: int) -> None:
    if fix:
        page.wrapped("         ", page.plain(fix), limit, "cyan", first="    fix: ")


def _in_short(page: _Page, group: Group, with_fix: bool, total: int) -> None:
    start = _title(page, group, "")
    count = len(group.nodes)
    page.add(
        start + "%d node%s: " % (count, "" if count == 1 else "s") + _who(page, group.nodes, page.columns - width(start) - 14, total),
        _color(group),
    )
    first = group.variants[0]
    others = len(group.variants) - 1
    more = " (and %d other value%s)" % (others, "" if others == 1 else "s") if others else ""
    page.add("    " + cut(_said(page, first.observed, first.required), page.columns - 4 - len(more), page.signs["cut"]) + more)
    if with_fix:
        _fix(page, first.fix, 2)


def _drift(page: _Page, group: Group, small: bool, total: int) -> None:
    """One line for the cluster; in full (wrapped) where every node has a line, cut elsewhere."""
    said = []
    for variant in group.variants:
        who = "" if variant.nodes == ["*"] else _who(page, variant.nodes, 40, total) + ": "
        # On a node `required` names the majority; for the cluster it only says that there should be one value.
        said.append(who + _said(page, variant.observed, "" if variant.nodes == ["*"] else variant.required))
    text = "%s %s: %s" % (_sign(page, group), page.plain(group.id), "; ".join(said))
    if small:
        page.wrapped("    ", text, 4, _color(group), first="")
        if group.rank <= 1:
            _fix(page, group.variants[0].fix, 2)
    else:
        page.add(text, _color(group))
