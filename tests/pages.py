# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m tests.pages: write the pages of docs/ that are made from the code, so that they never say something else."""

from __future__ import annotations

import pathlib
from typing import Dict, List

from ansible_collections.inferops.vllm.plugins.module_utils.checks.judge import REACHABLE, checks
from ansible_collections.inferops.vllm.plugins.module_utils.checks.model import Check

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


PAGES = {"CHECKS.md": checks_page}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
