# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a plan's entry belongs on its node, and what a difference to what is there asks for.

A *release* is the set of files that one service runs from. ``release.json`` beside them records it; systemd copies that
record to ``/run/NAME/started.json`` at each start, so what runs can be told from what is deployed. All functions are pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..plan import render
from ..plan.secret import SECRET

SCHEMA = "inferops.vllm/release/1"
UNITS = "/etc/systemd/system"
QUADLETS = "/etc/containers/systemd"
STATE = "/var/lib/inferops-vllm"
LINK_CONFIG = render.SETTINGS + "/link.json"
LINK_UNIT_PATH = "%s/%s" % (UNITS, render.LINK_UNIT)
SECRET_NAMES = ("VLLM_API_KEY", "HF_TOKEN")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_BY_DIGEST = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}@)?sha256:[0-9a-f]{64}\Z")
# A change of these is in force after a reload; everything else of the section Service needs a new start.
_LIVE = re.compile(r"(?:Restart|RestartSec|RestartPreventExitStatus|SuccessExitStatus|TimeoutStopSec|TimeoutStartSec|ExecStop|ExecStopPost|KillMode)=")

Entry = Mapping[str, Any]


class ReleaseError(ValueError):
    """What was given cannot become a release; the message is one sentence for a person."""


class Item(NamedTuple):
    """A file of a release: absolute path, text (None: it must not be there), mode, and whether its text is secret."""

    path: str
    text: Optional[str]
    mode: int
    secret: bool = False


def checked(entry: Any, image: str = "") -> Dict[str, Any]:
    """`entry` of a plan with the image that it shall run.

    Args:
        image: reference of the image on the node, ``name@sha256:…`` or ``sha256:…``; empty for the plan's own.

    Raises:
        ReleaseError: no entry, an image that is named by a tag, or a secret among the variables.
    """
    missing = [key for key in ("role", "rank", "engine", "argv", "env", "image", "container", "container_engine", "stop_seconds")
               if not isinstance(entry, Mapping) or key not in entry]
    if missing:
        raise ReleaseError("entry: not a node's entry of plan.json (it lacks %s)" % ", ".join(missing[:4]))
    made = dict(entry)
    if "IFACE_OF_" in json.dumps(made["env"]):
        raise ReleaseError("entry: the plan is not complete, an interface is not known; set vllm_interface, or plan with the nodes answering")
    if render.runtime(made) == "venv":
        if image:
            raise ReleaseError("image: %s is given, and the plan's runtime is venv, which has none" % image[:120])
    else:
        made["image"] = image or str(made["image"])
        if not _BY_DIGEST.match(made["image"]):
            raise ReleaseError("image: %s is named by a tag, which may become another image; name it by digest (name@sha256:…)" % made["image"][:120])
    environment(made["env"])
    return made


def environment(env: Any) -> Dict[str, str]:
    """Variables of a service, checked.

    Raises:
        ReleaseError: not a table, a name that is none, a secret by its name, or a value of several lines.
    """
    if not isinstance(env, Mapping):
        raise ReleaseError("env: not a table of names and values")
    made = {}
    for key, value in env.items():
        name = str(key)
        if not _NAME.match(name):
            raise ReleaseError("env: %r is not the name of a variable" % name[:60])
        if SECRET.search(name):
            raise ReleaseError("env: %s is a secret, which does not belong in a file that others may read; the role service takes secrets" % name)
        text = "1" if value is True else "0" if value is False else "" if value is None else str(value)
        if len(text.splitlines()) > 1 or "\0" in text or text[-1:] in ("\n", "\r"):
            raise ReleaseError("env: %s takes one line" % name)
        made[name] = text
    return made


def with_env(text: str, extra: Mapping[str, str]) -> str:
    """An environment file with the variables `extra`, sorted by name as it was; their values are plain words that need no quotes."""
    made = {line.partition("=")[0]: line for line in text.splitlines() if line}
    made.update({name: "%s=%s" % (name, value) for name, value in extra.items()})
    return "".join(line + "\n" for _name, line in sorted(made.items()))


def secrets(given: Mapping[str, Optional[str]], text: str = "") -> Dict[str, str]:
    """Secrets by name from `given` (empty ones are left out) and from ``NAME=value`` lines; `given` wins.

    Raises:
        ReleaseError: a line that is none, or a value of several lines. Values are never part of the message.
    """
    made: Dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, sign, value = line.partition("=")
        if not sign or not _NAME.match(name.strip()):
            raise ReleaseError("secrets: line %d is not NAME=value" % number)
        made[name.strip()] = value.strip()
    for name, secret in given.items():
        if secret:
            made[name] = secret
    for name, value in made.items():
        if len(value.splitlines()) > 1 or any(ord(char) < 32 for char in value):
            raise ReleaseError("secrets: %s takes one line of plain text" % name)
    return made


def for_role(entry: Entry, given: Mapping[str, str]) -> Dict[str, str]:
    """The secrets that this role needs, by the names that its program reads.

    vllm-router passes no client's key on to pools: it sends its own, from OPENAI_API_KEY (https://github.com/vllm-project/router, 0.1.17).
    """
    if entry["role"] != "router":
        return dict(given)
    made = {name: value for name, value in given.items() if name not in SECRET_NAMES}
    return {"OPENAI_API_KEY": given["VLLM_API_KEY"], **made} if "VLLM_API_KEY" in given else made


def items(entry: Entry, given: Mapping[str, str], agent: str, agent_unit: str) -> List[Item]:
    """Files of the release of a checked `entry`, and those that must not be there.

    Args:
        given: secrets by name.
        agent, agent_unit: text of the link agent and of its unit.
    """
    quote = render.env_quoted if render.runtime(entry) == "venv" else str
    name = render.unit_name(entry)
    unit = "%s/%s" % (QUADLETS if name.endswith(".container") else UNITS, name)
    other = "%s/%s" % ((UNITS, render.service_name(entry) + ".service") if unit.startswith(QUADLETS) else (QUADLETS, render.service_name(entry) + ".container"))
    made = [
        Item(render.env_file(entry), render.environment(entry), 0o640),
        Item(render.secrets_file(entry), "".join("%s=%s\n" % (key, quote(value)) for key, value in sorted(given.items())), 0o600, True),
        Item(unit, render.unit(str(entry["engine"]), entry), 0o644),
        Item(other, None, 0o644),
    ]
    if entry["role"] == "router":
        return made
    return made + link_items(render.link_config(entry), agent, agent_unit)


def link_items(config: str, agent: str, agent_unit: str) -> List[Item]:
    """Files of the link agent; none of them without a `config`."""
    return [
        Item(render.LINK, agent if config else None, 0o755),
        Item(LINK_UNIT_PATH, agent_unit if config else None, 0o644),
        Item(LINK_CONFIG, config or None, 0o644),
    ]


def digest(text: str) -> str:
    """sha256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def recorded(wanted: Sequence[Item]) -> Dict[str, str]:
    """Path → digest of the files that are kept for a rollback: never secrets, nor the agent's program and unit."""
    return {item.path: digest(item.text) for item in wanted if item.text is not None and not item.secret and item.path not in (render.LINK, LINK_UNIT_PATH)}


def start_key(wanted: Sequence[Item], secrets_stamp: str) -> str:
    """Digest of what a running service took over at its start; when it differs, a restart is needed.

    Args:
        secrets_stamp: what tells one secrets file from the next without saying anything about its content.
    """
    parts = [secrets_stamp]
    for item in sorted(wanted, key=lambda item: item.path):
        if item.text is None or item.secret or item.path in (render.LINK, LINK_UNIT_PATH):
            continue
        if item.path == LINK_CONFIG:
            # All ranks restart together when one of them runs something else; the rest of the file is the agent's affair.
            parts.append(str(json.loads(item.text).get("plan")))
        elif item.path.startswith((UNITS, QUADLETS)):
            parts += [item.path] + start_lines(item.text)
        else:
            parts += [item.path, item.text]
    return digest("\0".join(parts))


def start_lines(unit: str) -> List[str]:
    """Lines of a unit that a running service took over at its start: not its description, order, limits and stop."""
    made: List[str] = []
    section = ""
    for line in unit.replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line
        elif section in ("[Service]", "[Container]") and line.strip() and not line.startswith(("#", ";")) and not _LIVE.match(line):
            made.append(" ".join(line.split()))
    return made


def model_of(entry: Entry) -> Tuple[str, str]:
    """Model and revision of an entry's argv; the revision is empty when it is left out."""
    argv = [str(word) for word in entry["argv"]]
    if entry["role"] == "router" or len(argv) < 3:
        return "", ""
    return argv[2], argv[argv.index("--revision") + 1] if "--revision" in argv[:-1] else ""


def record(entry: Entry, wanted: Sequence[Item], about: Mapping[str, Any]) -> Dict[str, Any]:
    """release.json without its number, time and start key.

    Args:
        about: ``plan_sha256``, ``image_id`` and ``venv`` (what was read from the virtual environment), each maybe empty.
    """
    model, revision = model_of(entry)
    return {
        "schema": SCHEMA, "role": entry["role"], "rank": entry["rank"], "engine": entry["engine"], "runtime": render.runtime(entry),
        "plan_sha256": str(about.get("plan_sha256") or ""), "image": str(entry["image"]), "image_id": str(about.get("image_id") or ""),
        "venv": about.get("venv") or None, "model": model, "revision": revision, "version": str(entry.get("version") or ""), "files": recorded(wanted),
    }


def parse_record(text: Optional[str]) -> Dict[str, Any]:
    """A release.json, or an empty table when it is none; never raises."""
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("files"), dict):
        return {}
    return found


def joined(link: Optional[str]) -> Tuple[str, List[str]]:
    """The plan that all ranks of an engine run together, and their hosts, from link.json; both empty for an engine on one node. Never raises."""
    try:
        found = json.loads(link or "{}")
    except (ValueError, RecursionError):
        found = {}
    found = found if isinstance(found, dict) else {}
    names = found.get("names")
    return str(found.get("plan") or ""), [str(name) for name in names] if isinstance(names, list) else []


def number_of(found: Mapping[str, Any]) -> int:
    """Number of a recorded release, 0 when it has none."""
    number = found.get("number")
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 10**9 else 0


def same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Two records say the same, but for their number, time and start key."""
    return told(first) == told(second)


def told(found: Mapping[str, Any]) -> str:
    """What a record says of the release itself, as JSON to compare and to show; empty for none."""
    extra = ("number", "deployed", "start", "rolled_back_from")
    shown_only = {key: value for key, value in found.items() if key not in extra}
    return json.dumps(shown_only, indent=2, sort_keys=True) + "\n" if shown_only else ""


def shown(item: Item, before: Optional[str], mode: Optional[int]) -> Dict[str, str]:
    """A diff of one file; of secrets only the names and whether they change."""
    old, new = before or "", item.text or ""
    if item.secret:
        held, given = _pairs(old), _pairs(new)
        old = "".join("%s=<hidden>\n" % name for name in held)
        new = "".join("%s=<%s>\n" % (name, "hidden" if held.get(name) == value else "hidden, changed") for name, value in given.items())
    was = "" if before is None else " (mode %04o)" % mode if mode is not None and mode != item.mode else ""
    return {"before": old, "after": new, "before_header": item.path + was, "after_header": item.path + (" (removed)" if item.text is None else "")}


def _pairs(text: str) -> Dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def legacy_gpus(unit: str) -> bool:
    """The unit's container gets its GPUs by ``--gpus``, whose devices a reload of systemd takes from a running container."""
    return bool(re.search(r"(?:^|\s)--gpus(?:\s|=)", unit))
