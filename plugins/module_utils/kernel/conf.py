# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of modprobe.d and modules-load.d: what others say in them, and what ours say."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .explain import plain

MODPROBE_FOLDERS: Tuple[str, ...] = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
LOAD_FOLDERS: Tuple[str, ...] = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d", "/lib/modules-load.d")
HEADER = "# Written by inferops.vllm.\n"


class Setting(NamedTuple):
    """A parameter of a module as a file sets it."""

    module: str
    parameter: str
    value: str
    where: str


def logical_lines(text: str) -> List[str]:
    """Lines without comments, with continued ones joined."""
    joined = text.replace("\\\n", " ")
    return [line for line in (raw.strip() for raw in joined.splitlines()) if line and not line.startswith("#")]


def settings(text: str, where: str) -> List[Setting]:
    """Parameters that the ``options`` lines of a modprobe.d file set."""
    found = []
    for line in logical_lines(text):
        words = line.split()
        if words[0] == "options" and len(words) > 2:
            for word in words[2:]:
                parameter, _sign, value = word.partition("=")
                found.append(Setting(plain(words[1]), parameter, value.strip("\"'"), where))
    return found


def blocked(text: str) -> List[str]:
    """Modules that a modprobe.d file keeps from loading by themselves (``blacklist``, or ``install`` of a program that fails or does nothing)."""
    found = []
    for line in logical_lines(text):
        words = line.split()
        nothing = words[0] == "install" and len(words) > 2 and re.match(r"(?:/usr)?/bin/(?:false|true)$", words[2])
        if nothing or (words[0] == "blacklist" and len(words) > 1):
            found.append(plain(words[1]))
    return found


def loads(text: str) -> List[str]:
    """Modules that a modules-load.d file loads at boot."""
    return [plain(line) for line in (raw.strip() for raw in text.splitlines()) if line and line[0] not in "#;"]


def split(folded: Mapping[str, str]) -> Dict[str, Dict[str, str]]:
    """``{"nvidia.NVreg_X": "1"}`` as ``{"nvidia": {"NVreg_X": "1"}}``. Raises ValueError for a key that is none such."""
    found: Dict[str, Dict[str, str]] = {}
    for key, value in folded.items():
        match = re.match(r"^([A-Za-z0-9_-]{1,64})\.([A-Za-z0-9_]{1,64})$", key)
        if not match:
            raise ValueError("%s is no module and parameter such as nvidia.NVreg_EnableStreamMemOPs" % key)
        if re.search(r"[\s\"'\\#]", str(value)) or str(value) == "":
            raise ValueError("%s: a value may not be empty or hold blanks or quotes" % key)
        found.setdefault(plain(match.group(1)), {})[match.group(2)] = str(value)
    return found


class Rendered(NamedTuple):
    """Our file and what others say. `text` is None when there is nothing for us to say."""

    text: Optional[str]
    conflicts: List[str]
    elsewhere: List[str]


def render(options: Mapping[str, Mapping[str, str]], block: Sequence[str], others: Mapping[str, str], own: str = "") -> Rendered:
    """Our modprobe.d file.

    A parameter that another file sets alike is left to that file, so that each stands once. One that is set otherwise is a conflict.
    What ours says already stays: the driver's packages, which come after it, bring a file that keeps nouveau out, too.

    Args:
        options: module → parameter → value.
        block: modules to keep from loading.
        others: path → text of the other files.
        own: text of our file as it is.
    """
    conflicts, elsewhere, lines = [], [], []
    mine = {(one.module, one.parameter, one.value) for one in settings(own, "")}
    told = [one for path, text in sorted(others.items()) for one in settings(text, path)]
    for module, parameters in sorted(options.items()):
        kept = []
        for parameter, value in sorted(parameters.items()):
            same = [one for one in told if one.module == module and one.parameter == parameter]
            different = [one for one in same if one.value != value]
            conflicts += ["%s sets %s.%s=%s" % (one.where, module, parameter, one.value) for one in different]
            if same and not different:
                elsewhere.append("%s sets %s.%s" % (same[0].where, module, parameter))
            if not same or (module, parameter, value) in mine:
                kept.append("%s=%s" % (parameter, value))
        if kept:
            lines.append("options %s %s" % (module, " ".join(kept)))
    for name in sorted({plain(one) for one in block}):
        holders = [path for path, text in sorted(others.items()) if name in blocked(text)]
        if holders:
            elsewhere.append("%s blocks %s" % (holders[0], name))
        if not holders or name in blocked(own):
            lines += ["blacklist %s" % name] + (["options nouveau modeset=0"] if name == "nouveau" else ["install %s /bin/false" % name])
    return Rendered(HEADER + "".join(line + "\n" for line in lines) if lines else None, conflicts, elsewhere)
