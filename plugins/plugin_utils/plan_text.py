# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan for a terminal, in 100 columns."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .report.text import cut, plain, ranges, wrap

Line = Tuple[str, Optional[str]]

WIDTH = 100
MOST_ENGINES = 12
"""Engines that are shown one by one; of more, those that are alike are counted."""
_ALREADY_SAID = ("base", "own")


def summary(plan: Mapping[str, Any], where: str = "") -> List[Line]:
    """``[(text, colour name of Ansible or None)]``: refusals first, then each engine, warnings, and what was assumed."""
    page = _Page()
    words = [plain(plan[key]) for key in ("hardware", "strategy", "interconnect") if plan.get(key)]
    page.add("")
    if plan["refused"]:
        page.add("PLAN REFUSED   " + ", ".join(words), "red")
        for item in plan["refused"]:
            page.add("")
            page.wrapped("  ✘ ", str(item["why"]), "red")
            for fact in item["facts"]:
                page.wrapped("      - ", str(fact))
    else:
        page.add("PLAN   " + ", ".join(words), "green")
        page.wrapped("  model  ", "%s (%s), features %s" % (plan["model"], plan["variant"], ", ".join(plan["features"]) or "none"))
        page.wrapped("  image  ", "%s, vLLM %s" % (plan["image"], plan["vllm_version"]))
        _engines(page, plan)
    for title, key, color in (("WARNINGS", "warnings", "yellow"), ("ASSUMED", "assumed", None)):
        if plan[key]:
            page.add("")
            page.add(title, color)
            for text in plan[key]:
                page.wrapped("  - ", str(text))
    if where:
        page.add("")
        page.wrapped("", where)
    return page.lines


class _Page:
    def __init__(self) -> None:
        self.lines: List[Line] = []

    def add(self, text: str, color: Optional[str] = None) -> None:
        """`text` holds no words of others, or such as have passed plain()."""
        self.lines.append((cut(text, WIDTH).rstrip(), color))

    def wrapped(self, first: str, text: str, color: Optional[str] = None) -> None:
        for position, line in enumerate(wrap(plain(text), WIDTH - len(first))):
            self.lines.append(((first if position == 0 else " " * len(first)) + line, color))


def _engines(page: _Page, plan: Mapping[str, Any]) -> None:
    nodes: Mapping[str, Any] = plan["nodes"]
    engines = list(plan["engines"])
    shown = engines if len(engines) <= MOST_ENGINES else engines[:1]
    for engine in shown:
        page.add("")
        title = {"": "ENGINE", "prefill": "PREFILL POOL", "decode": "DECODE POOL"}[engine["pool"]]
        names = [str(name) for name in engine["nodes"]]
        gpus = "%d GPUs" % engine["gpus"] if engine["gpus"] else "no GPU"
        count = "%d node%s" % (len(names), "" if len(names) == 1 else "s")
        page.add("%s   %s, %s" % (title, count, gpus), "bright blue")
        page.wrapped("  nodes  ", ", ".join(word for word, _n in ranges(names)))
        if engine["fits"]:
            page.wrapped("  fits   ", engine["fits"])
        page.wrapped("  serves ", _addresses(engine["endpoints"]))
        entry = nodes.get(names[0]) if names else None
        if entry is not None:
            page.wrapped("  flags  ", " ".join(_key_flags(entry)))
            env = _key_env(entry)
            if env:
                page.wrapped("  env    ", " ".join(env))
    if len(shown) < len(engines):
        page.add("")
        names = [str(name) for engine in engines for name in engine["nodes"]]
        page.wrapped("  and %d more engines like it: " % (len(engines) - 1), ", ".join(word for word, _n in ranges(names[1:])))
    for name, entry in nodes.items():
        if entry["role"] == "router":
            page.add("")
            page.add("ROUTER   %s" % plain(name), "bright blue")
            page.wrapped("  serves ", str(entry["health_url"]).rsplit("/", 1)[0])


def _addresses(urls: Sequence[str]) -> str:
    if len(urls) > 4:
        return "%s and %d more" % (", ".join(urls[:3]), len(urls) - 3)
    return ", ".join(urls) or "nothing"


def _reasons(entry: Mapping[str, Any]) -> List[Dict[str, str]]:
    return [item for item in entry["reasons"] if item["layer"] not in _ALREADY_SAID]


def _key_flags(entry: Mapping[str, Any]) -> List[str]:
    made = []
    for item in _reasons(entry):
        what = item["what"]
        if what.startswith("--") and not item["why"].startswith(("left ", "taken out")) and item["layer"] != "container":
            made.append(what if len(what) < 60 else what.split(" ")[0] + " …")
    return made


def _key_env(entry: Mapping[str, Any]) -> List[str]:
    wanted = ("NCCL_", "UCX_", "GLOO_", "VLLM_HOST_IP")
    return ["%s=%s" % (name, value) for name, value in entry["env"].items() if name.startswith(wanted)]
