# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine or a registry complains of, as one sentence that says what to do."""

from __future__ import annotations

import re
from typing import NamedTuple, Sequence, Tuple

from ..node.redact import MASK, redact

# In this order: the first that fits names the trouble. Texts of Docker 20.10 to 29 and Podman 4 to 5 (containers/image, Go's net
# and crypto/tls), as the engines print them.
_SIGNS: Sequence[Tuple[str, str]] = (
    ("disk_full", r"no space left on device|disk quota exceeded|not enough (?:free )?(?:disk )?space"),
    ("daemon_down", r"cannot connect to the docker daemon|is the docker daemon running|docker\.sock: connect: (?:no such file|connection refused)"),
    ("denied_socket", r"permission denied while trying to connect"),
    ("short_name", r"short-name|did not resolve to an alias and no (?:containers-registries|unqualified-search)"),
    ("tls", r"x509:|certificate (?:signed by unknown|has expired|verify failed|is not valid)|tls: |CERTIFICATE_VERIFY_FAILED|"
            r"server gave HTTP response to HTTPS client|client sent an HTTP request to an HTTPS server|WRONG_VERSION_NUMBER|certificate is valid for"),
    ("rate", r"toomanyrequests|too many requests|rate limit"),
    ("unreachable", r"connection refused|no route to host|network is unreachable|i/o timeout|timed out|deadline exceeded|Client\.Timeout|no such host|"
                    r"name or service not known|temporary failure in name resolution|TLS handshake timeout|connection reset by peer|server misbehaving"),
    ("absent", r"manifest unknown|manifest for .{1,300} not found|name unknown|repository name not known|manifest\.unknown|\bnot found\b|does not exist$"),
    ("credentials", r"unauthorized|no basic auth credentials|authentication required|access (?:to the resource )?(?:is )?denied|\b401\b|\b403\b|denied:|"
                    r"incorrect username"),
    ("corrupt", r"digest (?:verification failed|did not match|mismatch)|unexpected EOF|filesystem layer verification failed|layer verification"),
    ("platform", r"no matching manifest for|no image found in (?:image index|manifest list) for architecture"),
)


class ImageProblem(Exception):
    """Why an image cannot be brought to the node: one sentence, with the kind of the trouble."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class Scope(NamedTuple):
    """What was being done, for the sentence.

    Attributes:
        name: the image as it was asked for.
        registry: ``host:port``, or what stands for the engine's default one.
        repository: path in the registry.
        digest: empty when none was asked for.
        user: empty without credentials.
        free: what is known of the space, empty when nothing is.
    """

    name: str
    registry: str
    repository: str
    digest: str = ""
    user: str = ""
    free: str = ""


def kind_of(text: str) -> str:
    """Which trouble `text` tells of, empty when it is none that is known."""
    for kind, pattern in _SIGNS:
        if re.search("(?i)" + pattern, text[:20000]):
            return kind
    return ""


def scrub(text: str, secrets: Sequence[str]) -> str:
    """`text` on one line without the `secrets` and without anything that looks like one."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    return redact(" ".join(text.split()))[:600]


def explain(text: str, scope: Scope, secrets: Sequence[str] = ()) -> ImageProblem:
    """The sentence for what was complained of while `scope` was being brought here."""
    kind, said = kind_of(text), scrub(text, secrets)
    where = scope.registry
    told = {
        "disk_full": "the disk is full while the image is unpacked%s; free space there or move the engine's folder to a larger file system" % (
            " (%s)" % scope.free if scope.free else ""),
        "daemon_down": "docker does not answer on this node; start it (systemctl start docker) and look into journalctl -u docker",
        "denied_socket": "docker's socket may not be used by this user; run the task with become",
        "short_name": "Podman needs the registry in the name of the image: %s has none" % scope.name,
        "tls": "TLS to the registry %s was refused: its certificate is not trusted here; give the authority's certificate in vllm_registry_ca_file" % where,
        "rate": "the registry %s limits how much this address may pull; log in to it, or pull through a mirror" % where,
        "unreachable": "the registry %s cannot be reached from this node" % where,
        "absent": "the registry %s has no %s in %s%s" % (
            where, "digest " + scope.digest if scope.digest else "such tag", scope.repository,
            "; was the image rebuilt and the old one deleted, or the digest mistyped?" if scope.digest else ""),
        "credentials": "the registry %s refused %s" % (
            where, "the password of %s" % scope.user if scope.user else "a pull without a login; give vllm_registry_user and vllm_registry_password"),
        "corrupt": "what the registry %s sent is damaged; try again, and look at its storage when it happens twice" % where,
        "platform": "the image is not built for this node's processor",
    }.get(kind, "the image could not be brought to this node")
    return ImageProblem("%s: %s (%s)" % (scope.name, told, said) if said else "%s: %s" % (scope.name, told), kind)
