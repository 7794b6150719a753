# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user sets on top of the plan: ``vllm_overrides`` (flags) and ``vllm_env_overrides`` (variables)."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, Tuple

from ..checks.wording import short
from .flags import CONTROL, VERSION, find, near, problem
from .resolve import InputError
from .secret import SECRET
from .versions import REMOVED

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_PLAN = "vllm_strategy and the order of the inventory decide it for each node"

OWNED: Dict[str, str] = {
    "--model": "set vllm_variant or vllm_model", "--revision": "set vllm_revision", "--host": "set vllm_host_ip or vllm_listen_address",
    "--port": "set vllm_port", "--uds": "the plan listens on an address", "--help": "it starts nothing",
    "--config": "the plan is the whole command line", "--headless": _PLAN, "--nnodes": _PLAN, "--node-rank": _PLAN, "--master-addr": _PLAN,
    "--tensor-parallel-size": _PLAN, "--pipeline-parallel-size": _PLAN, "--data-parallel-size": _PLAN, "--data-parallel-size-local": _PLAN,
    "--data-parallel-rank": _PLAN, "--data-parallel-start-rank": _PLAN, "--data-parallel-address": _PLAN,
    "--data-parallel-hybrid-lb": _PLAN, "--data-parallel-external-lb": _PLAN, "--enable-expert-parallel": _PLAN,
    "--api-key": "a secret does not belong on a command line; put VLLM_API_KEY into an environment file of mode 0600",
    "--hf-token": "a secret does not belong on a command line; put HF_TOKEN into an environment file of mode 0600",
}
"""Flags that a user cannot override, and what to do instead."""

OWNED_ENV: Dict[str, str] = {
    "VLLM_HOST_IP": "set vllm_host_ip, each host its own", "GLOO_SOCKET_IFNAME": "set vllm_interface", "NCCL_SOCKET_IFNAME": "set vllm_interface",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "set vllm_host_ip, each host its own",
}

Overrides = Dict[str, Any]


def flags(value: Any) -> Overrides:
    """Canonical flag → value as recipe.py writes them; None takes a flag out of the plan.

    Raises:
        InputError: not a table, a flag that vLLM does not know or no longer has, one that the plan decides, or a value of the wrong kind.
    """
    made: Overrides = {}
    for key, given in _table(value, "vllm_overrides").items():
        name, said = _flag(key, given)
        if name in made:
            raise InputError("vllm_overrides: %s is given twice" % name)
        made[name] = said
    return made


def _flag(key: Any, given: Any) -> Tuple[str, Any]:
    word = str(key)
    plain = "--" + word.lstrip("-").replace("_", "-")
    found = find(word)
    if found is None:
        if plain in REMOVED:
            raise InputError("vllm_overrides: %s was removed from vLLM; %s" % (plain, REMOVED[plain]))
        like = near(word)
        raise InputError("vllm_overrides: vLLM %s has no flag %s%s" % (
            VERSION, short(repr(word), 60), "; did you mean %s?" % " or ".join(like) if like else ""))
    flag = found.flag
    if flag.name in OWNED:
        raise InputError("vllm_overrides: %s cannot be overridden; %s" % (flag.name, OWNED[flag.name]))
    if given is None:
        return flag.name, None
    if flag.kind in ("bool", "bare"):
        if not isinstance(given, bool):
            raise InputError("vllm_overrides: %s takes true or false, not %s" % (flag.name, short(repr(given), 60)))
        said = given != found.negated
        return flag.name, (True if said else None) if flag.kind == "bare" else said
    if isinstance(given, bool):
        if given and flag.optional:
            return flag.name, True
        raise InputError("vllm_overrides: %s takes a value, not %s" % (flag.name, given))
    if flag.several and isinstance(given, (list, tuple)):
        items = [_text(item) for item in given]
        wrong = next((problem(flag, item) for item in items if problem(flag, item)), "") if items else "takes a value"
        if wrong:
            raise InputError("vllm_overrides: %s %s, not %s" % (flag.name, wrong, short(repr(given), 60)))
        return flag.name, items
    if not flag.several and flag.kind != "json" and isinstance(given, (list, tuple, Mapping)):
        raise InputError("vllm_overrides: %s takes one value, not %s" % (flag.name, short(repr(given), 60)))
    text = _text(given)
    if flag.kind == "json":
        # One line, and the same whether it was given as text or as a table.
        try:
            text = _json(json.loads(text))
        except (ValueError, RecursionError):
            text = ""
    wrong = problem(flag, text)
    if wrong:
        raise InputError("vllm_overrides: %s %s, not %s" % (flag.name, wrong, short(repr(given), 60)))
    return flag.name, text


def env(value: Any) -> Dict[str, Any]:
    """Variable → text; None takes a variable out of the plan.

    Raises:
        InputError: not a table, a name that is none, a secret, a variable that each node has its own of, or a value of several lines.
    """
    made: Dict[str, Any] = {}
    for key, given in _table(value, "vllm_env_overrides").items():
        name = str(key)
        if not _NAME.match(name):
            raise InputError("vllm_env_overrides: %s is not the name of a variable" % short(repr(name), 60))
        if SECRET.search(name):
            raise InputError("vllm_env_overrides: %s is a secret, which does not belong in a plan; put it into an environment file of mode 0600"
                             % name)
        if name in OWNED_ENV:
            raise InputError("vllm_env_overrides: %s cannot be overridden; %s" % (name, OWNED_ENV[name]))
        if given is None:
            made[name] = None
            continue
        if isinstance(given, (list, tuple, Mapping)):
            raise InputError("vllm_env_overrides: %s takes one value, not %s" % (name, short(repr(given), 60)))
        text = "1" if given is True else "0" if given is False else str(given)
        if CONTROL.search(text):
            raise InputError("vllm_env_overrides: %s takes one line of text" % name)
        made[name] = text
    return made


def _table(value: Any, variable: str) -> Mapping[Any, Any]:
    if value in (None, ""):
        return {}
    if not isinstance(value, Mapping):
        raise InputError("%s: %s is not a table of names and values" % (variable, short(repr(value), 60)))
    return value


def _text(value: Any) -> str:
    return _json(value) if isinstance(value, (list, tuple, Mapping)) else str(value)


def _json(value: Any) -> str:
    """Compact JSON, empty for what JSON cannot hold."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return ""


def names(made: Mapping[str, Any]) -> List[str]:
    """Names that stay, for a message."""
    return [name for name, value in made.items() if value is not None]
