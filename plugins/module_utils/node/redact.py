# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take secrets out of text before it becomes a fact, a report or a snapshot.

Everything that a reader returns has passed through :func:`redact`, so no collector can leak
a token by forgetting to ask. What was JSON before is JSON after.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Callable, List, Match, Pattern, Tuple, Union

MASK = "<redacted>"

# Names are recognised by their end, so no pattern has to look at what stands in front of it.
_SECRET_NAME = (
    r"(?:api[_-]?keys?|secret(?:[_-]?(?:key|access[_-]?key))?|passw(?:or)?d|passphrase|[_-](?:pass|pwd)|"
    r"(?:access|private|storage|account|encryption|signing|master|shared|ssh|openai|anthropic|vllm)[_-]?key|credentials?|"
    r"(?:hf|hub|hugging_?face|access|auth|bearer|registry|identity|github|gitlab|wandb|session|refresh|id|api|bot|ngc)[_-]?token)"
)
# A bare "token" is as often a piece of text: the special tokens of a tokenizer are none of ours.
_TOKEN_NAME = (
    r"(?:(?<![A-Za-z])(?<!eos[_-])(?<!bos[_-])(?<!pad[_-])(?<!unk[_-])(?<!sep[_-])(?<!cls[_-])(?<!mask[_-])(?<!stop[_-])(?<!next[_-])"
    r"(?<!per[_ -])(?<!image[_-])(?<!media[_-])token)"
)
_NAME = "(?:%s|%s)" % (_SECRET_NAME, _TOKEN_NAME)
_NAME_AT_END = re.compile("(?i)" + _NAME + r"\Z")
# Searched for first: last word of a name and what parts it from its value. The name itself is looked at only then, which
# keeps a journal of several MB from costing seconds.
_ASSIGNMENT = re.compile(
    r"(?i)(?:keys?|secret|passw(?:or)?d|passphrase|pass|pwd|credentials?|token)(\\?[\"']?\s{0,16}(?:=>|[:=])\s{0,16})(?=[^\s,;}\]])")
# Constants are no secrets, and a masked one would break the document that it stands in.
_CONSTANT = r"(?!(?:null|true|false|none|\d{1,5})\b)"
# The closing quote is optional, for text that was cut. A backslash ends a bare value: it may belong to a quote.
_VALUE = re.compile(
    r"(?i)\\\"(?:[^\"\\\n]|\\(?!\"))*(?:\\\")?|\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\"\\\n]|\\.)*'?|"
    r"%s(?!<redacted>)[^\s\0\"',;}\]\[{\\]+" % _CONSTANT)
_BETWEEN = re.compile(r"[\s,\[]{0,256}")
# After the name of a secret without quotes, this quote closes a string that the name stands at the end of.
_CLOSING = re.compile(r"\\?[\"'](?:[\s,:}\]\\]|\Z)")


@lru_cache(maxsize=1024)
def _is_secret(head: str) -> bool:
    """True when `head` ends in the name of a secret."""
    return _NAME_AT_END.search(head) is not None


def _assignments(text: str) -> str:
    """``NAME=value``, ``NAME: value``, ``"NAME": "value"``, ``'NAME': ['value', …]``: quotes and brackets stay."""
    parts: List[str] = []
    done = 0
    for found in _ASSIGNMENT.finditer(text):
        at = found.end()
        if at < done or not _is_secret(text[max(0, found.start() - 24):found.start(1)]):
            continue
        sign = '\\"' if '\\"' in found.group(1) else '"' if '"' in found.group(1) else ""
        bare = not sign and "'" not in found.group(1)
        if bare and _CLOSING.match(text, _end(_BETWEEN, text, at) if text[at] == "[" else at):
            continue
        listed = text[at] == "["
        while True:
            value = _VALUE.match(text, _end(_BETWEEN, text, at) if listed else at)
            if not value or value.end() == at:
                break
            parts += [text[done:value.start()], _masked(value.group(), sign)]
            done = at = value.end()
            if not listed or (bare and _CLOSING.match(text, _end(_BETWEEN, text, at))):
                break
    return "".join(parts) + text[done:]


def _end(pattern: Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _masked(value: str, bare_sign: str) -> str:
    """The mask in the quotes of `value`; a bare value after a quoted name (a number) gets quotes, or it would be no JSON."""
    for sign in ('\\"', '"', "'"):
        if value.startswith(sign):
            return value if len(value) <= 2 * len(sign) else sign + MASK + sign
    return bare_sign + MASK + bare_sign


_OPENED = r"(?![\s,:}\]])"
_OPTION_VALUE = r"(?:\\\"%s(?:[^\"\\\n]|\\(?!\"))*\\\"|\"%s[^\"\n]*\"|'%s[^'\n]*'|[^\s\0\"',\]\\]+)" % (_OPENED, _OPENED, _OPENED)
_STEP = r"(?:=|\0|[ \t]{1,64}|\\?[\"']\s{0,64},\s{0,64}\\?[\"']|[\"']?\s{0,64}\n\s{0,64}-\s{1,16}[\"']?)"
_ONE_VALUE = re.compile("(%s)(?!-|<redacted>)%s" % (_STEP, _OPTION_VALUE))


def _option(found: Match[str]) -> str:
    return found.group(1) + _ONE_VALUE.sub(lambda step: step.group(1) + MASK, found.group(2))


def _header(found: Match[str]) -> str:
    """A header keeps the quotes around its value; a bare one after a quoted name is a number of a document and stays."""
    separator = found.group(2)
    bare = '"' in separator and not re.search(r"[:=]\s*\\?[\"']\Z", separator)
    return found.group() if bare else found.group(1) + separator + MASK


_Replacement = Union[str, Callable[[Match[str]], str]]
# A backslash belongs to a quote; alone it may begin an escape such as \u001f, which must stay whole.
_QUOTE = r"(?:\\?[\"'])?"
_HEADER_START = r"(%s\s{0,16}[:=]\s{0,16}%s)(?!<redacted>)%s" % (_QUOTE, _QUOTE, _CONSTANT)
_WORD_START = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"

# (words of which one must be in the text in lower case, pattern, replacement)
_PATTERNS: List[Tuple[Tuple[str, ...], Pattern[str], _Replacement]] = [
    # One that is cut ends at the next quote or bracket.
    (("private key",), re.compile(
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:[^\"'<>{}\\]|\\(?:[^\"']|\Z))*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|(?=\\?[\"'<>{}])|\Z)"), MASK),
    # Shapes that are secrets wherever they stand: Hugging Face, OpenAI, NVIDIA, GitHub, GitLab, Docker, Slack, Google, AWS.
    (("hf_", "sk-", "nvapi-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "dckr_pat_", "xox", "aiza", "akia", "asia"),
     re.compile(
        r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|nvapi-[A-Za-z0-9_-]{16,}|"
        r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|dckr_pat_[A-Za-z0-9_-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|"
        r"AIza[A-Za-z0-9_-]{30,}|A[KS]IA[0-9A-Z]{16}(?![0-9A-Za-z]))"), MASK),
    # JSON web tokens.
    (("eyj",), re.compile(_WORD_START + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"), MASK),
    # Headers. A cookie is masked to the end of its line, since it holds several values.
    (("cookie",), re.compile(r"(?i)\b((?:set-)?cookie)%s[^\s\"'\\\[{,}\]][^\"'\r\n\\]*" % _HEADER_START), _header),
    (("authorization", "x-api-key"), re.compile(
        r"(?i)\b(authorization|x-api-key)%s(?:(?:bearer|basic|token)\s{1,16})?[^\s\"'\\\[{,}\]]+" % _HEADER_START), _header),
    (("bearer",), re.compile(r"(?i)\b(bearer)\s{1,16}[A-Za-z0-9._~+/=-]{8,}"), r"\1 " + MASK),
    # user:password@ in a URL, but not the digest of an image.
    (("://",), re.compile(r"(://[^\s/:@'\"]{0,256}):[^\s/'\"]{1,1024}@(?!sha256:)"), r"\1:" + MASK + "@"),
    # Signed URLs.
    (("sig=", "signature=", "credential=", "key=", "code="), re.compile(
        r"(?i)([?&](?:sig|signature|x-amz-signature|x-amz-credential|x-goog-signature|key|code)=)[^&\s\"'<>\\]+"), r"\1" + MASK),
    # Docker's config.json: base64 of user:password.
    (("\"auth\"",), re.compile(r"(\"auth\"\s{0,16}:\s{0,16}\")(?:[^\"\\]|\\.)+"), r"\1" + MASK),
    # --api-key takes several values in vLLM; all of them up to the next option are masked.
    (("api-key", "api_key"), re.compile(
        r"(?i)((?<![A-Za-z0-9_-])--?(?:[a-z][a-z0-9-]{0,30}-)?api[_-]key)((?:%s(?!-|<redacted>)%s){1,8})"
        % (_STEP, _OPTION_VALUE)), _option),
    (("key", "secret", "pass", "pwd", "credential", "token"), re.compile(
        r"(?i)((?<![A-Za-z0-9_-])--?(?:[a-z][a-z0-9_.-]{0,40}?)?%s)(%s(?!-|<redacted>)%s)" % (_NAME, _STEP, _OPTION_VALUE)), _option),
]


def redact(text: str) -> str:
    """Return `text` with secrets replaced by ``<redacted>``.

    Known token shapes are masked wherever they stand; values are masked by the name in front
    of them (``HF_TOKEN=…``, ``--api-key …``, ``"password": "…"``). Never raises; redacting twice
    gives the same as redacting once.
    """
    lower = text.lower()
    for words, pattern, replacement in _PATTERNS:
        if any(word in lower for word in words):
            text = pattern.sub(replacement, text)
    return _assignments(text)
