# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m tests.pages: write the pages of docs/ that are made from the code, so that they never say something else."""

from __future__ import annotations

import pathlib
from typing import Dict, List

from ansible_collections.inferops.vllm.plugins.module_utils.checks.judge import REACHABLE, checks
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Check
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.model import Choice
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.state import ALLOWED_WORDS, State
from ansible_collections.inferops.vllm.plugins.module_utils.remedies.table import CLASSES, FINDINGS, REMEDIES

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
HEAD = """# Checks

Made by `make pages` from `plugins/module_utils/checks`; do not edit by hand.

*block*: a node that fails it, or of which it cannot be told, is not ready. *warn*: worth a look. *info*: told, never counted.
A single node may be judged milder than the table says; the finding carries its own severity. Checks marked ⇄ compare all nodes.
The first part of an id is its tag: `--tags rdma` judges `rdma.*` alone.
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def checks_page() -> str:
    """Content of docs/CHECKS.md."""
    areas: Dict[str, List[Check]] = {}
    for rule in [REACHABLE, *checks()]:
        areas.setdefault(rule.id.split(".")[0], []).append(rule)
    out = [HEAD]
    for area, rules in areas.items():
        out += ["## %s\n" % area, "| id | severity | what | why | read from | source |", "|---|---|---|---|---|---|"]
        for rule in rules:
            out.append("| `%s`%s | %s | %s | %s | %s | [link](%s) |" % (
                rule.id, " ⇄" if rule.cluster else "", rule.severity, cell(rule.title), cell(rule.why), cell(rule.read_from), rule.source))
        out.append("")
    return "\n".join(out)


REMEDIES_HEAD = """# Remedies

Made by `make pages` from `plugins/module_utils/remedies/table.py`; do not edit by hand. How they are done: [REMEDIATE.md](REMEDIATE.md).

A remedy that needs a word does nothing until `remediate_allow` holds it. *maybe* stands for a word that depends on the node: `reboot` where the driver's
modules cannot be taken out while it runs. No remedy is done on a recorded node, on one whose state file cannot be used, or against its guards.
"""


def remedies_page() -> str:
    """Content of docs/REMEDIES.md."""
    out = [REMEDIES_HEAD, "## What is done\n", "| remedy | what | needs | stops the service | disturbs | undo | looked at afterwards | tries a day | source |",
           "|---|---|---|---|---|---|---|---|---|"]
    for row in REMEDIES.values():
        best, worst = row.needs(State(holders="none")), row.needs(State(holders="foreign"))
        needs = ", ".join("`%s`%s" % (word, "" if word in best else " maybe") for word in ALLOWED_WORDS if word in worst)
        undo = "yes" if row.undo[0] else "no: " + cell(row.permanent[0].lower() + row.permanent[1:].rstrip("."))
        out.append("| `%s` | %s | %s | %s | %s | %s | %s | %d | [link](%s) |" % (
            row.id, cell(row.title), needs or "–", "yes" if row.stops_service else "no", row.radius, undo,
            ", ".join("`%s`" % name for name in row.recheck), row.tries, row.source))
    out += ["", "## What forbids it\n", "| remedy | not while |", "|---|---|"]
    for row in REMEDIES.values():
        out.append("| `%s` | %s |" % (row.id, " ".join(cell(guard.why) for guard in row.guards[1:]) or "–"))
    for title, table in (("What answers a finding", FINDINGS), ("What answers a diagnosis", CLASSES)):
        out += ["", "## %s\n" % title, "The first that fits the node's state is the answer.\n", "| fault | answers |", "|---|---|"]
        for name, choices in table.items():
            out.append("| `%s` | %s |" % (name, " · ".join(_answer(choice) for choice in choices)))
    return "\n".join(out) + "\n"


def _answer(choice: Choice) -> str:
    if choice.remedy:
        return "`%s`" % choice.remedy
    if choice.after:
        return "first `%s`" % choice.after
    return "person: " + cell(choice.person) if choice.person else "nothing"


PAGES = {"CHECKS.md": checks_page, "REMEDIES.md": remedies_page}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
