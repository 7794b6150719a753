# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A download by huggingface_hub in the official image, so that a node needs no Python packages of its own.

It resumes: files that are there are kept, begun ones go on from their last byte (hub_script.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..images.trouble import scrub
from .hub_script import SCRIPT
from .place import COMMIT, WeightsProblem, gigabytes, space

RUN = "/run/inferops-vllm"
CONTAINER = "inferops-vllm-weights"
AUTHORITIES = "/run/inferops-vllm-authorities.pem"
"""Where a container finds them."""
ASK_SECONDS = 180.0
SILENCE = 1800.0
"""Seconds without one more byte after which a download is given up."""
_SIGNS: Sequence[Tuple[str, str, str]] = (
    ("sums", r"OSError: checksum: ", "what the hub sent is not what it tells of; run it again, and look at the mirror or proxy between if it stays so"),
    ("disk_full", r"no space left on device|disk quota exceeded|\[Errno 28\]",
     "the disk is full%(free)s; what is there stays, and the next run goes on from it"),
    ("gated", r"GatedRepoError|cannot access gated repo", "the model is gated: the owner of the token has to accept its terms first"),
    ("revision", r"RevisionNotFoundError", "the repository has no revision %(revision)s"),
    ("credentials", r"\b401\b|\b403\b|Invalid (?:user|username)|invalid token", "the hub refused %(login)s"),
    ("absent", r"RepositoryNotFoundError|\b404\b", "the hub has no such model, or it is private%(private)s"),
    ("tls", r"CERTIFICATE_VERIFY_FAILED|SSLError|SSLCertVerificationError", "TLS to the hub was refused: its certificate is not trusted in the image%(trust)s"),
    ("unreachable", r"ConnectionError|ConnectError|ConnectTimeout|ReadTimeout|Connection refused|Name or service not known|Temporary failure|NetworkError|"
                    r"Max retries|unreachable|LocalEntryNotFoundError|OfflineModeIsEnabled|ProxyError", "the hub cannot be reached from this node"),
    ("image", r"No module named|unable to find image|no such image|image not known|executable file not found", "the image %(image)s cannot run the download"),
    ("daemon_down", r"cannot connect to the docker daemon|is the docker daemon running", "docker does not answer on this node"),
)


class Source(NamedTuple):
    """Where from, and by which image.

    Attributes:
        engine: program, ``docker`` or ``podman``.
        image: name or id of a local image with huggingface_hub.
        model: id in the hub.
        revision: commit.
        home: HF_HOME.
        folder: where the files go without the hub's layout, empty for the layout.
        token: HF_TOKEN, may be empty.
        environment: more variables (HF_ENDPOINT, proxies), no secrets.
        workers: files at a time.
        authorities: PEM file on the node with the authorities that TLS is held against; empty for those of the image.
    """

    engine: str
    image: str
    model: str
    revision: str
    home: str
    folder: str
    token: str
    environment: Mapping[str, str]
    workers: int = 8
    authorities: str = ""


class Told(NamedTuple):
    """What the hub says of a revision: its commit and the size of each file, bytes."""

    commit: str
    files: Dict[str, int]


def ask(source: Source, waiting: Callable[[], None]) -> Told:
    """Ask for commit and sizes; `waiting` is called every few seconds. Raises WeightsProblem."""
    text = _run(source, True, waiting, ASK_SECONDS)
    found = parse_told(text)
    if not found:
        raise WeightsProblem("%s: the hub did not tell the files of the model" % source.model, "unreachable")
    return found


def parse_told(text: str) -> Optional[Told]:
    """The answer to a question in what was printed, None without one; never raises."""
    for line in text.splitlines():
        if line.startswith("TOLD "):
            try:
                found = json.loads(line[5:])
                commit, files = str(found["sha"]), {str(name): int(size) for name, size in found["files"].items()}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
            if COMMIT.match(commit) and files:
                return Told(commit, files)
    return None


def download(source: Source, progress: Callable[[], int]) -> None:
    """Download or go on with a download.

    Args:
        progress: called every few seconds, returns the bytes that are there.

    Raises:
        WeightsProblem: with what is in the way.
    """
    _run(source, False, progress, SILENCE)


def command(source: Source, env_file: str) -> List[str]:
    """argv of the container: network of the host, no GPUs, only the folders of the weights; the token stands in `env_file`."""
    volumes = [source.home] + ([source.folder] if source.folder and not (source.folder + "/").startswith(source.home.rstrip("/") + "/") else [])
    made = [source.engine, "run", "--rm", "--pull", "never", "--name", CONTAINER, "--network", "host", "--env-file", env_file]
    for volume in volumes:
        made += ["--volume", "%s:%s" % (volume, volume)]
    if source.authorities:
        made += ["--volume", "%s:%s:ro" % (source.authorities, AUTHORITIES)]
    if source.engine == "podman":
        made += ["--security-opt", "label=disable"]
    return made + ["--entrypoint", "python3", source.image, "-c", SCRIPT]


def _variables(source: Source, asking: bool) -> Dict[str, str]:
    trusted = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), AUTHORITIES) if source.authorities else {}
    made = {
        "HF_HOME": source.home, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "60",
        "HF_HUB_OFFLINE": "0", "NVIDIA_VISIBLE_DEVICES": "void", **trusted, **{str(name): str(value) for name, value in source.environment.items()},
        "W_MODEL": source.model, "W_REVISION": source.revision, "W_FOLDER": source.folder, "W_ASK": "1" if asking else "", "W_WORKERS": str(source.workers),
    }
    return {**made, "HF_TOKEN": source.token} if source.token else made


def _run(source: Source, asking: bool, progress: Callable[[], Optional[int]], silence: float) -> str:
    """Run the script in its container; returns what it printed."""
    os.makedirs(RUN, mode=0o700, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="auth-%d-" % os.getpid(), dir=RUN)
    try:
        path = os.path.join(folder, "env")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            for name, value in _variables(source, asking).items():
                if "\n" in value or "\r" in value:
                    raise WeightsProblem("%s: the value has more than one line" % name, "words")
                file.write("%s=%s\n" % (name, value))
        _remove(source.engine)
        try:
            process = subprocess.Popen(
                command(source, path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        except OSError as exc:
            raise WeightsProblem("%s cannot be run: %s" % (source.engine, exc.strerror or exc), "engine") from exc
        return _watch(source, process, progress, silence)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _watch(source: Source, process: subprocess.Popen[str], progress: Callable[[], Optional[int]], silence: float) -> str:
    printed: List[str] = []

    def read() -> None:
        for line in process.stdout or ():
            # A log of thousands of warnings keeps its end; the answer is one line.
            printed.append(line[:4 << 20])
            if len(printed) > 400:
                del printed[:200]

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    last, moved = None, time.monotonic()
    try:
        while True:
            try:
                process.wait(timeout=3.0)
                break
            except subprocess.TimeoutExpired:
                there = progress()
                if there != last:
                    last, moved = there, time.monotonic()
                if time.monotonic() - moved > silence:
                    raise WeightsProblem("%s: no byte came for %.0f s; what is there stays, and the next run goes on from it" % (
                        source.model, silence), "unreachable") from None
    finally:
        if process.poll() is None:
            process.terminate()
            _remove(source.engine)
            process.wait()
    reader.join(timeout=10)
    text = "".join(printed)
    if process.returncode:
        raise problem(text, source)
    return text


def _remove(engine: str) -> None:
    """End and remove the container of an earlier run, if there is one."""
    try:
        subprocess.run([engine, "rm", "--force", CONTAINER], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        pass


def problem(text: str, source: Source) -> WeightsProblem:
    """The sentence for what a container printed before it failed."""
    told = re.findall(r"^PROBLEM (.*)$", text, re.MULTILINE)
    said = scrub(told[-1] if told else text[-1500:], [source.token])
    try:
        free = " (%s free)" % gigabytes(space(source.folder or source.home).free)
    except OSError:
        free = ""
    words = {
        "free": free, "revision": source.revision, "image": source.image,
        "login": "the token" if source.token else "a download without a token; give vllm_hf_token, and look at the name of the model",
        "trust": ", nor by weights_ca_file" if source.authorities else "; give weights_ca_file",
        "private": "" if source.token else " and needs vllm_hf_token",
    }
    for kind, pattern, sentence in _SIGNS:
        if re.search("(?i)" + pattern, said):
            return WeightsProblem("%s: %s (%s)" % (source.model, sentence % words, said), kind)
    return WeightsProblem("%s: the download failed: %s" % (source.model, said or "nothing was printed"), "download")
