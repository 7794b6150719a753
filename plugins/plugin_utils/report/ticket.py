# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as Markdown, to paste into a ticket."""

from __future__ import annotations

import re
from typing import Any, List, Mapping

from .groups import Group, assumed, counted, headline, node_counts, problems
from .text import fold, plain

MOST_NODES = 100
"""Rows of the node table; nodes that are not ready come first, the rest is counted."""

_SPECIAL = re.compile(r"[\\`*_{}\[\]()#+!|~$@:-]")
_WORD = re.compile(r"[A-Za-z0-9 .,/;%=?'\"]*\Z")


def markdown(document: Mapping[str, Any]) -> str:
    """Summary, nodes and findings as GitHub-flavoured Markdown.

    Every value is one line with HTML and Markdown signs escaped, so it can open neither a table
    cell, a tag, a link nor a mention. Only commands that stand between backticks in a `fix` are code.
    """
    out: List[str] = ["# Preflight: %s" % safe(headline(document)), ""]
    context = document["context"]
    guesses = assumed(document)
    out.append(
        "- Verdict: **%s** (%s)"
        % (safe(document["summary"]["verdict"]), ", ".join("%d %s" % (count, word) for word, count in counted(document)) or "no node")
    )
    out.append("- Time: %s" % safe(document["generated_at"]))
    out.append("- Profile: %s" % safe(document["profile"]))
    for name in ("hardware", "strategy", "interconnect", "variant"):
        note = " (assumed: %s)" % safe(guesses[name]) if name in guesses else ""
        out.append("- %s: %s%s" % (name.capitalize(), safe(context[name]) or "?", note))
    if context.get("left_out"):
        out.append("- Left out by --limit: %s" % safe(fold(context["left_out"], 100)))
    out += ["", "## Nodes", "", "| Node | Verdict | GPUs | Driver | Blocking | Warnings | Unknown |", "|---|---|---|---|--:|--:|--:|"]
    counts = node_counts(document)
    rows = list(document["nodes"].items())
    if len(rows) > MOST_NODES:
        rows.sort(key=lambda item: item[1]["verdict"] == "ready")
    for name, record in rows[:MOST_NODES]:
        remark = "".join(
            [" (recorded)" if record["recorded"] else "", " (dressed as %s)" % safe(record["costume"]) if record["costume"] else ""]
        )
        here = counts[name]
        out.append(
            "| %s | %s%s | %s | %s | %d | %d | %d |"
            % (
                safe(name),
                safe(record["verdict"]),
                remark,
                safe(record["gpus"] or "?"),
                safe(record["driver"] or "?"),
                here["block"],
                here["warn"],
                here["unknown"],
            )
        )
    if len(rows) > MOST_NODES:
        out += ["", "and %d more nodes" % (len(rows) - MOST_NODES)]
    groups = problems(document)
    for title, chosen in (
        ("What blocks", [g for g in groups if g.rank <= 1 and not g.drift]),
        ("Differences between nodes", [g for g in groups if g.drift]),
        ("Worth a look", [g for g in groups if g.rank > 1 and not g.drift]),
    ):
        if chosen:
            out += ["", "## " + title, "", "| Check | Nodes | Observed | Required | Fix |", "|---|---|---|---|---|"]
            out += [row for group in chosen for row in _rows(group)]
    return "\n".join(out) + "\n"


def _rows(group: Group) -> List[str]:
    rows = []
    for variant in group.variants[:20]:
        names = fold(["the cluster" if name == "*" else plain(name) for name in variant.nodes], 80)
        state = " (unknown)" if group.status == "unknown" else ""
        rows.append(
            "| %s%s | %s | %s | %s | %s |"
            % (safe(group.id), state, safe(names), safe(variant.observed), safe(variant.required), _fix(variant.fix))
        )
    if len(group.variants) > 20:
        rows.append("| %s | and %d other values |  |  |  |" % (safe(group.id), len(group.variants) - 20))
    return rows


def safe(value: Any) -> str:
    """`value` as Markdown text that shows what it says and nothing else."""
    text = plain(value)
    if _WORD.match(text):
        return text
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A numeric reference works in and out of tables and is never read as Markdown.
    return _SPECIAL.sub(
        lambda found: found.group() if found.group() in ".-:+()" and _harmless(text, found) else "&#%d;" % ord(found.group()), text
    )


def _harmless(text: str, found: re.Match[str]) -> bool:
    """A dash, colon, plus or round bracket inside a line is text; at its start it could begin a list or a rule, and `://` a link."""
    return found.start() > 0 and not text.startswith("//", found.end())


def _fix(fix: str) -> str:
    pieces = plain(fix).split("`")
    if len(pieces) % 2 == 0:
        return safe(fix)
    return "".join(
        "<code>" + safe(piece) + "</code>" if position % 2 and piece else safe_inside(piece) for position, piece in enumerate(pieces)
    )


def safe_inside(piece: str) -> str:
    """:func:`safe` for a part of a line: blanks at its ends stay."""
    if not piece.strip():
        return " " if piece else ""
    return (" " if piece[0] == " " else "") + safe(piece) + (" " if piece[-1] == " " else "")
