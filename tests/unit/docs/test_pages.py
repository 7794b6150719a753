# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation that is made from code, and links between pages."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.pages import DOCS, PAGES

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_says_what_the_code_says(name):
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run `make pages`"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), "%s links to %s" % (page.name, target)


def test_playbooks_that_are_named_are_there():
    there = {path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    named: dict[str, list[str]] = {}
    for folder in ("plugins", "roles", "playbooks", "docs", "README.md"):
        for path in [ROOT / folder, *(ROOT / folder).rglob("*")]:
            if path.suffix in (".py", ".md", ".yml", ".json"):
                for name in re.findall(r"ansible-playbook inferops\.vllm\.(\w+)", path.read_text(encoding="utf-8")):
                    named.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert "preflight" in named
    assert not {name: pages for name, pages in named.items() if name not in there}
