# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take secrets out of logs and of everything else that an evidence bundle holds, and say where there were some.

``node.redact`` masks by name and by the shapes that facts can hold. A log holds more, so further shapes are added here, and
the literal values that the node is known to use (``/etc/vllm/secrets.env``, the environment of the running process) are masked
wherever they stand. What was masked is listed by file, line and kind; the value never is.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Pattern, Sequence, Set, Tuple

from ..node.redact import MASK, redact

MAX_LISTED = 500
"""Redactions listed one by one; further ones are counted."""
MIN_KNOWN = 6
"""Characters that a known value must have: a shorter one would mask words of the log."""

_VARIABLE = r"[A-Z][A-Z0-9_]{0,60}(?:API_?KEY|TOKEN|SECRET|SECRET_KEY|ACCESS_KEY|PASSW(?:OR)?D|PASSPHRASE|_PAT)[ \t]{1,16}"
# (words of which one must be in the text in lower case, pattern, replacement)
_MORE: Tuple[Tuple[Tuple[str, ...], Pattern[str], str], ...] = (
    # Shapes of Stripe, Vault, npm, Python package index, SendGrid, age, Docker swarm, DigitalOcean, Azure DevOps, Slack webhooks.
    (("sk_live_", "sk_test_", "rk_live_", "hvs.", "npm_", "pypi-", "sg.", "age-secret-key-", "swmtkn-", "dop_v1_"), re.compile(
        r"(?<![A-Za-z0-9])(?:[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|hvs\.[A-Za-z0-9_-]{20,}|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{16,}|"
        r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|AGE-SECRET-KEY-1[0-9A-Z]{20,}|SWMTKN-1-[a-z0-9-]{20,}|dop_v1_[0-9a-f]{20,})"), MASK),
    (("hooks.slack.com",), re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)[^\s\"'<>]+"), r"\1" + MASK),
    # netrc, `docker login -p`, `curl -u user:password` (not `-u 1000:1000`), npm's _auth.
    (("password",), re.compile(r"(?i)(\blogin\s{1,16}\S{1,256}\s{1,16}password\s{1,16})(?!<redacted>)\S+"), r"\1" + MASK),
    (("login",), re.compile(r"(\b(?:docker|podman|nerdctl|helm registry) login\b[^\n]{0,512}?\s-p[ =]?)(?!<redacted>|assword)[^\s\"']+"), r"\1" + MASK),
    (("-u ", "--user", "-u="), re.compile(r"((?<![^\s\"'])(?:-u|--user)[ =][\"']?[^\s:\"'/]{1,128}:)(?!\d+(?:\s|\Z)|<redacted>)[^\s\"']+"), r"\1" + MASK),
    (("_auth",), re.compile(r"(?i)((?<![A-Za-z0-9_])_auth\s{0,8}=\s{0,8})(?!<redacted>)\S+"), r"\1" + MASK),
    # Docker's config.json as a text inside of JSON: DOCKER_AUTH_CONFIG in the environment of a container.
    (("\\\"auth\\\"",), re.compile(r"(\\{1,8}\"auth\\{1,8}\"\s{0,16}:\s{0,16}\\{1,8}\")(?!<redacted>)[^\"\\]+"), r"\1" + MASK),
    # Environment of a Kubernetes manifest: name and value stand apart.
    (("name",), re.compile(
        r"(?i)(\\?[\"']?name\\?[\"']?\s{0,8}:\s{0,8}\\?[\"']?[A-Z0-9_.-]{0,64}(?:key|token|secret|passw(?:or)?d|credentials?)\\?[\"']?[ \t]{0,8},?"
        r"(?:\s{1,64}|(?:\n|\\n)[^\n]{0,200}?)?\\?[\"']?\bvalue\\?[\"']?\s{0,8}:\s{0,8}\\?[\"']?)(?!<redacted>)[^\s\"'\\,}]+"), r"\1" + MASK),
    # Personal access tokens by name.
    (("_pat=", "_pat:", "_pat\"", "_pat'", "_pat\\", "_pat "), re.compile(
        r"((?:\b[A-Z][A-Z0-9_]{0,60}|\b(?:github|gitlab|gh|gl|azure|docker))_(?:PAT|pat)\\?[\"']?\s{0,8}[=:]\s{0,8}\\?[\"']?)(?!<redacted>)[^\s\"'\\,;}]+"),
     r"\1" + MASK),
    # ``ENV NAME value`` of a Dockerfile, and a name with what looks like no word behind it.
    (("key", "token", "secret", "passw", "_pat "), re.compile(
        r"(\bENV[ \t]{1,16}%s)(?![=:<])[^\s\"'\\]+" % _VARIABLE), r"\1" + MASK),
    (("key", "token", "secret", "passw", "_pat "), re.compile(
        r"((?<![A-Za-z0-9_])%s)(?=[A-Za-z0-9._~+/=-]{0,256}(?:[0-9]|[a-z][A-Z]))[A-Za-z0-9_][A-Za-z0-9._~+/=-]{7,}" % _VARIABLE), r"\1" + MASK),
    # A token instead of a user in a URL.
    (("http",), re.compile(r"(https?://)[^\s/:@'\"<>\\]{16,1024}@"), r"\1" + MASK + "@"),
)
# What hangs on a masked value behind a comma or semicolon belongs to it, unless it begins another value.
_TAIL = re.compile(
    r"((?<=[=:\s\0\"'])<redacted>)(?:[,;]{1,8}(?!--?[A-Za-z]|[A-Za-z_][A-Za-z0-9_.-]{0,60}\\?[\"']?\s{0,4}[=:])[^\s\0\"',;\[\]{}<>\\]+)+")
# A password may be a sentence. Its words end where an option, a path or another name begins.
_SENTENCE = re.compile(
    r"(?i)((?:passw(?:or)?d|passphrase|[_-]pass|[_-]pwd)\\?[\"']?\s{0,8}[=:]\s{0,8}<redacted>)"
    r"(?:[ \t](?![-/])[^\s\"'=:,;(){}\[\]<>\\]{1,64}(?![^\s\"'\\,;])){1,12}")
_SUSPECTS = tuple(sorted({
    b"key", b"token", b"secret", b"passw", b"passphrase", b"_pass", b"-pass", b"_pwd", b"-pwd", b"credential", b"cookie", b"auth", b"bearer", b"://", b"hf_",
    b"sk-", b"nvapi-", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"glpat-", b"dckr_pat_", b"xox", b"aiza", b"akia", b"asia", b"eyj", b"sig=", b"signature=",
    b"?code=", b"&code=",
} | {word.encode("ascii") for words, _pattern, _replacement in _MORE for word in words if word not in ("name", "login", "password", "http")}))
"""A line that holds none of these words, in lower case, holds no secret, and is not looked at any closer."""
# Counts of text, which stand in nearly every line of a server's log: "tokens/s", "max_num_batched_tokens=8192", "token_id".
_COUNTS = re.compile(rb"token(?:s\b|_?ids?\b|s?_per|iz|s_|s/)")

_BEGIN, _END = b"PRIVATE KEY-----", b"-----END "


class Redaction(NamedTuple):
    """One masked place: line number from 1 and what kind of secret stood there."""

    line: int
    kind: str


class Cleaner:
    """Masks secrets in text.

    Args:
        known: literal values to mask wherever they stand; shorter ones than MIN_KNOWN are passed over.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.known = sorted({value for value in known if len(value) >= MIN_KNOWN and MASK not in value}, key=len, reverse=True)
        self._bytes = [value.encode("utf-8", "replace") for value in self.known]

    def text(self, text: str) -> str:
        """`text` with every secret replaced by ``<redacted>``; never raises, and cleaning twice is cleaning once."""
        for value in self.known:
            if value in text:
                text = text.replace(value, MASK)
        lower = text.lower()
        for words, pattern, replacement in _MORE:
            if any(word in lower for word in words):
                text = pattern.sub(replacement, text)
        text = redact(text)
        return _SENTENCE.sub(r"\1", _TAIL.sub(r"\1", text)) if MASK in text else text

    def value(self, value: Any) -> Any:
        """A JSON-shaped value with every text in it cleaned; a value under a secret's name is masked whole."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {str(key): self._under(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def _under(self, key: str, item: Any) -> Any:
        if isinstance(item, str) and item:
            # With its name in front, so that a value that is no secret by its shape is one by its name.
            whole = self.text("%s=%s" % (key, item))
            if not whole.startswith(key + "="):
                return MASK
            value = whole[len(key) + 1:]
            # What is masked by its name is masked whole, also where it holds a blank.
            return MASK if value.startswith(MASK) and not item.startswith(MASK) else value
        return self.value(item)

    def block(self, data: bytes) -> bytes:
        """Whole lines of a log, cleaned; lines that hold no word of a secret are passed on untouched.

        A line after a suspect one belongs to it, since some secrets stand below their name.
        """
        lower = data.lower()
        if _BEGIN.lower() in lower:
            return self._clean(data)
        parts: List[bytes] = []
        done = 0
        for start, end in self._suspects(data, lower):
            parts += [data[done:start], self._clean(data[start:end])]
            done = end
        return b"".join(parts) + data[done:]

    def suspect(self, line: bytes) -> bool:
        """True when `line` may hold a secret, or the name of one that stands in the next line."""
        return bool(self._suspects(line, line.lower()))

    def _clean(self, data: bytes) -> bytes:
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _suspects(self, data: bytes, lower: bytes) -> List[Tuple[int, int]]:
        """Spans of whole lines that may hold a secret, each with the line below it, in order and apart from each other."""
        hits: List[int] = []
        # Word by word: find() runs through a block far faster than one pattern of all words.
        for word in _SUSPECTS:
            at = lower.find(word)
            while at >= 0:
                if word != b"token" or not _COUNTS.match(lower, at):
                    hits.append(at)
                    # One hit a line is enough.
                    at = lower.find(b"\n", at)
                    if at < 0:
                        break
                at = lower.find(word, at + 1)
        for value in self._bytes:
            at = data.find(value)
            while at >= 0:
                hits.append(at)
                at = data.find(value, at + 1)
        spans: List[Tuple[int, int]] = []
        for hit in sorted(hits):
            start = data.rfind(b"\n", 0, hit) + 1
            end = data.find(b"\n", hit) + 1
            end = (data.find(b"\n", end) + 1 if end else 0) or len(data)
            if spans and start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((start, end))
        return spans


class KeyBlocks:
    """Follows private keys over the borders of blocks: what belongs to one that began earlier is dropped."""

    def __init__(self) -> None:
        self.inside = False

    def __call__(self, data: bytes) -> bytes:
        if self.inside:
            at = data.find(_END)
            if at < 0:
                return b""
            end = data.find(b"\n", at) + 1 or len(data)
            data = MASK.encode("ascii") + b"\n" + data[end:]
            self.inside = False
        begin = data.rfind(b"-----BEGIN ")
        self.inside = begin >= 0 and _BEGIN in data[begin:begin + 80] and data.find(_END, begin) < 0
        return data


_NAME_BEFORE = re.compile(
    r"([A-Za-z_][A-Za-z0-9_.-]{0,60})\\?[\"']?\s{0,16}(?:=>|[:=])\s{0,16}[\[(]?\\?[\"']?(?:(?:Bearer|Basic|Token)\s{1,16})?\Z",
    re.IGNORECASE)
_OPTION_BEFORE = re.compile(r"(?<![A-Za-z0-9_-])(--?[A-Za-z][A-Za-z0-9_.-]{0,60})(?:[ =\0]|\\?[\"']\s{0,16},\s{0,16}\\?[\"'])\Z")
_URL_BEFORE = re.compile(r"://[^\s/@'\"]{0,256}:\Z")
_QUERY_BEFORE = re.compile(r"[?&]([A-Za-z0-9_.-]{1,60})=\Z")


def kind(before: str) -> str:
    """What kind of secret was masked, from the text in front of the mask: its name, never its value."""
    before = before[-400:]
    if _URL_BEFORE.search(before):
        return "password in a URL"
    for pattern, phrase in ((_QUERY_BEFORE, "%s in a URL"), (_OPTION_BEFORE, "option %s"), (_NAME_BEFORE, "value of %s")):
        found = pattern.search(before)
        if found:
            return phrase % found.group(1)
    if re.search(r"bearer\s{1,16}\Z", before, re.IGNORECASE):
        return "bearer token"
    return "known value or shape of a token or key"


def listed(text: str, first_line: int = 1) -> List[Redaction]:
    """Every mask in `text`, which has been cleaned: its line and kind."""
    found: List[Redaction] = []
    at = text.find(MASK)
    line, counted = first_line, 0
    while at >= 0:
        line += text.count("\n", counted, at)
        counted = at
        found.append(Redaction(line, kind(text[max(text.rfind("\n", 0, at) + 1, at - 400):at])))
        at = text.find(MASK, at + len(MASK))
    return found


def known_values(environments: Iterable[Mapping[str, str]], argvs: Iterable[Sequence[str]] = (), env_files: Iterable[str] = ()) -> Set[str]:
    """Literal secrets of the node, to be masked wherever they stand; kept in memory only.

    Args:
        environments: raw variables of running processes.
        argvs: raw command lines.
        env_files: raw texts of ``NAME=value`` files.
    """
    found: Set[str] = set()

    def take(name: str, value: str) -> None:
        value = value.strip().strip("\"'")
        masked = redact("%s=%s" % (name, value))
        # A path, a number or a switch under such a name (HF_TOKEN_PATH) is no secret by itself.
        if MASK in masked and MASK not in value and "/" not in value[:1] and not value.isdigit() and value.lower() not in ("true", "false", "none"):
            found.add(value)

    for environment in environments:
        for name, value in environment.items():
            take(name, value)
    for text in env_files:
        for line in text.splitlines():
            name, sign, value = line.strip().partition("=")
            if sign and not name.startswith("#"):
                take(name.replace("export ", "").strip(), value)
    for argv in argvs:
        masked = redact("\0".join(argv)).split("\0")
        if len(masked) != len(argv):
            continue
        for raw, word in zip(argv, masked):
            if raw != word and word.endswith(MASK):
                found.add(raw[len(word) - len(MASK):])
    return {value for value in found if len(value) >= MIN_KNOWN}


def summary(places: Mapping[str, Sequence[Redaction]]) -> Dict[str, Any]:
    """``{"count", "kinds": {kind: count}, "places": [{"file", "line", "kind"}] (at most MAX_LISTED), "left_out"}``."""
    kinds: Dict[str, int] = {}
    rows: List[Dict[str, Any]] = []
    count = 0
    for name in sorted(places):
        for place in places[name]:
            count += 1
            kinds[place.kind] = kinds.get(place.kind, 0) + 1
            if len(rows) < MAX_LISTED:
                rows.append({"file": name, "line": place.line, "kind": place.kind})
    return {"count": count, "kinds": dict(sorted(kinds.items())), "places": rows, "left_out": count - len(rows)}
