# SPDX-License-Identifier: GPL-3.0-or-later
"""A private registry on the bridge: Debian's docker-registry with TLS and a password."""

from __future__ import annotations

import json
import os
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from . import oci, processes
from .errors import LabError
from .settings import Settings

PROCESS = "registry"
USER = "lab"


def _folder(settings: Settings) -> Path:
    return settings.state / "registry"


def authority(settings: Settings) -> Path:
    """The certificate to trust."""
    return _folder(settings) / "ca.crt"


def password_file(settings: Settings) -> Path:
    return _folder(settings) / "password"


def storage(settings: Settings) -> Path:
    return settings.scratch / "registry"


def config_text(settings: Settings) -> str:
    """The registry's configuration. JSON is YAML."""
    folder = _folder(settings)
    return json.dumps(
        {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(storage(settings))},
                "delete": {"enabled": True},
            },
            "http": {
                "addr": settings.registry,
                "secret": secrets.token_hex(16),
                "tls": {
                    "certificate": str(folder / "server.crt"),
                    "key": str(folder / "server.key"),
                },
            },
            "auth": {"htpasswd": {"realm": "inferops lab", "path": str(folder / "htpasswd")}},
        },
        indent=1,
    )


def _openssl(*args: str) -> None:
    done = subprocess.run(["openssl", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"`openssl {args[0]}` failed: {done.stderr.strip()[-300:]}")


def make_certificates(folder: Path, address: str) -> None:
    """An authority and a server certificate for address, valid for a month."""
    if (folder / "server.crt").exists():
        return
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    _openssl(
        *["req", "-x509", *key, "-subj", "/CN=inferops lab authority"],
        *["-addext", "basicConstraints=critical,CA:TRUE"],
        *["-addext", "keyUsage=critical,keyCertSign,cRLSign"],
        *["-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt")],
    )
    request = folder / "server.csr"
    _openssl(
        *["req", "-new", *key[:-2], "-subj", f"/CN={address}"],
        *["-addext", f"subjectAltName=IP:{address}"],
        *["-keyout", str(folder / "server.key"), "-out", str(request)],
    )
    extensions = folder / "server.ext"
    extensions.write_text(
        f"subjectAltName=IP:{address}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"
    )
    _openssl(
        *["x509", "-req", "-in", str(request), "-days", "30", "-CAcreateserial"],
        *["-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key")],
        *["-extfile", str(extensions), "-out", str(folder / "server.crt")],
    )
    for draft in (request, extensions):
        draft.unlink()


def _make_password(settings: Settings) -> None:
    path = password_file(settings)
    if path.exists():
        return
    password = secrets.token_urlsafe(18)
    # From standard input: an argument would show in the process list.
    entry = subprocess.run(
        ["htpasswd", "-niB", USER], input=password, text=True, capture_output=True, check=True
    ).stdout
    (_folder(settings) / "htpasswd").write_text(entry.strip() + "\n")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as out:
        out.write(password)


def prepare(settings: Settings) -> None:
    """Certificates, password and configuration; made once a lab."""
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_certificates(folder, settings.gateway)
    _make_password(settings)
    storage(settings).mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    config.write_text(config_text(settings), encoding="utf-8")
    config.chmod(0o600)


def client(settings: Settings) -> oci.Registry:
    password = password_file(settings).read_text(encoding="ascii")
    return oci.Registry(settings.registry, authority(settings), USER, password)


def running() -> bool:
    return bool(processes.members(PROCESS))


def start(settings: Settings, seconds: float = 15) -> None:
    """Start the registry and wait until it asks for the password; a running one is left alone."""
    if running():
        return
    prepare(settings)
    processes.end(PROCESS)
    log = settings.state / "logs" / "registry.log"
    processes.start(
        PROCESS,
        ["docker-registry", "serve", str(_folder(settings) / "config.yml")],
        log,
        env={"PATH": os.environ.get("PATH", os.defpath), "OTEL_TRACES_EXPORTER": "none"},
    )
    deadline = time.monotonic() + seconds
    while not _asks_for_password(settings):
        if not running():
            raise LabError(f"the registry ended at once; its log is {log}")
        if time.monotonic() > deadline:
            raise LabError(f"the registry does not answer after {seconds:.0f} s; its log is {log}")
        time.sleep(0.1)


def _asks_for_password(settings: Settings) -> bool:
    context = ssl.create_default_context(cafile=str(authority(settings)))
    # Never by way of a proxy: the address exists on this machine only.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(f"https://{settings.registry}/v2/", timeout=5):
            return False
    except urllib.error.HTTPError as err:
        return err.code == 401
    except OSError:
        return False


def stop() -> None:
    processes.end(PROCESS, grace=2)
