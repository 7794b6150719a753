# SPDX-License-Identifier: GPL-3.0-or-later
"""A signed apt repository of stand-ins, built from the definitions in packages/.

    python -m tests.lab.apt_repo build             build it (cached), print its folder
    python -m tests.lab.apt_repo serve [--without 'nvidia-open=590*'] [--cut 'nvidia-dkms-open_580*']
    python -m tests.lab.apt_repo stop
    python -m tests.lab.apt_repo use vm1           let a machine install from it

Names, relations, paths, unit names and failure texts are those of the real packages; what is
inside is a script or an empty module, and every description says that it is a stand-in.
"""

from __future__ import annotations

import argparse
import base64
import fnmatch
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from . import network, processes, vm, vm_image, vm_modules, vm_qemu
from .errors import CannotRunHere, LabError
from .settings import Settings

DEFINITIONS = Path(__file__).resolve().with_name("packages")
RELATIONS = ("depends", "recommends", "provides", "conflicts", "replaces", "breaks")
PROCESS = "apt-repository"
# Times inside packages, so that equal definitions give equal files: 2025-01-01.
EPOCH = 1735689600


@dataclass(frozen=True)
class File:
    """One file of a package: exactly one of text and link."""

    text: str | None = None
    link: str | None = None
    mode: int = 0o644


@dataclass(frozen=True)
class Package:
    """One package in one version, all words filled in."""

    name: str
    version: str
    architecture: str
    summary: str
    relations: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, File], ...] = ()
    scripts: tuple[tuple[str, str], ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        return f"{self.name}_{self.version}_{self.architecture}.deb"


def fill(text: str, words: Mapping[str, str]) -> str:
    """Replace each @WORD@. Raises LabError for a word that is not known."""

    def word(match: re.Match[str]) -> str:
        if match[1] not in words:
            raise LabError(f"a package definition uses @{match[1]}@, which is not set here")
        return words[match[1]]

    return re.sub(r"@([A-Z_]+)@", word, text)


def load(folder: Path = DEFINITIONS) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, str]]]]:
    """The definitions of packages, and the releases that they are made for."""
    releases = yaml.safe_load((folder / "releases.yml").read_text(encoding="utf-8"))
    entries: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.yml")):
        if path.name != "releases.yml":
            entries += yaml.safe_load(path.read_text(encoding="utf-8"))
    return entries, releases


def expand(
    entries: Iterable[Mapping[str, Any]],
    releases: Mapping[str, Sequence[Mapping[str, str]]],
    words: Mapping[str, str],
    sources: Path = DEFINITIONS / "files",
) -> list[Package]:
    """Every package in every version.

    words: what is the same for all (KERNEL, KERNEL_VERSION). Raises LabError for a definition that
    makes no sense.
    """
    found = []
    for entry in entries:
        for release in releases[entry["each"]]:
            if any(release.get(word) not in wanted for word, wanted in entry.get("only", {}).items()):
                continue
            known = {**words, **{word: str(value) for word, value in release.items()}}
            # A word of the entry may be made of the release's.
            known |= {word: fill(str(value), known) for word, value in entry.get("words", {}).items()}
            found.append(_package(entry, known, sources))
    names = [(package.name, package.version) for package in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise LabError(f"these packages are defined twice: {sorted(twice)}")
    return found


def _package(entry: Mapping[str, Any], words: Mapping[str, str], sources: Path) -> Package:
    files = []
    for path, spec in entry.get("files", {}).items():
        if "from" in spec:
            text = fill((sources / spec["from"]).read_text(encoding="utf-8"), words)
            one = File(text=text, mode=int(spec.get("mode", "0644"), 8))
        elif "link" in spec:
            one = File(link=fill(spec["link"], words))
        else:
            one = File(text=fill(spec["text"], words))
        files.append((fill(path, words), one))
    scripts = [(name, fill((sources / source).read_text(encoding="utf-8"), words)) for name, source in entry.get("scripts", {}).items()]
    relations = [(kind, ", ".join(fill(one, words) for one in entry[kind])) for kind in RELATIONS if entry.get(kind)]
    return Package(
        name=fill(entry["name"], words),
        version=fill(entry["version"], words),
        architecture=entry.get("architecture", "amd64"),
        summary=fill(entry["summary"], words),
        relations=tuple(relations),
        files=tuple(files),
        scripts=tuple(scripts),
        modules={word: fill(value, words) for word, value in entry.get("modules", {}).items()},
        libraries={word: fill(value, words) for word, value in entry.get("libraries", {}).items()},
    )


def control(package: Package, installed_kib: int) -> str:
    """The control file of a package."""
    lines = [
        f"Package: {package.name}",
        f"Version: {package.version}",
        f"Architecture: {package.architecture}",
        "Maintainer: inferops lab <lab@localhost>",
        f"Installed-Size: {installed_kib}",
        *(f"{kind.capitalize()}: {value}" for kind, value in package.relations),
        "Section: misc",
        "Priority: optional",
        f"Description: {package.summary} (stand-in)",
        " Stand-in of a test lab: drives no hardware and comes from no vendor.",
    ]
    return "\n".join(lines) + "\n"


def module_files(package: Package, modules: Path, kernel: str) -> dict[str, Path]:
    """Prebuilt files that go into the package: path in it to path here."""
    found: dict[str, Path] = {}
    if spec := package.modules:
        if "driver" in spec:
            folder = modules / "driver" / spec["driver"] / spec["flavour"]
        elif "ofed" in spec:
            folder = modules / "ofed" / spec["ofed"]
        else:
            folder = modules / "legacy" / spec["legacy"]
        for path in sorted(folder.rglob("*.ko")):
            found[f"{spec['into']}/{kernel}/{path.relative_to(folder)}"] = path
    if spec := package.libraries:
        for path in sorted((modules / "library" / spec["driver"]).glob("*.so")):
            found[f"{spec['into']}/{path.name}.{spec['driver']}"] = path
    return found


def write_tree(package: Package, prebuilt: Mapping[str, Path], root: Path) -> None:
    """Lay out what dpkg-deb packs: the files, and DEBIAN/ with control, scripts and conffiles."""
    for path, one in package.files:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if one.link is not None:
            target.symlink_to(one.link)
        else:
            target.write_text(one.text or "", encoding="utf-8")
            target.chmod(one.mode)
    for path, source in prebuilt.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o644)
    size = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())
    debian = root / "DEBIAN"
    debian.mkdir(parents=True)
    (debian / "control").write_text(control(package, -(-size // 1024)), encoding="utf-8")
    if kept := [path for path, one in package.files if path.startswith("/etc/") and one.link is None]:
        (debian / "conffiles").write_text("".join(f"{path}\n" for path in kept), encoding="utf-8")
    for name, text in package.scripts:
        (debian / name).write_text(text, encoding="utf-8")
        (debian / name).chmod(0o755)
    for folder in root.rglob("*"):
        if folder.is_dir():
            folder.chmod(0o755)


def index_entry(control_text: str, filename: str, size: int, sha256: str) -> str:
    """A package's paragraph in Packages."""
    return f"{control_text.rstrip()}\nFilename: {filename}\nSize: {size}\nSHA256: {sha256}\n"


def release_text(files: Mapping[str, bytes], date: str) -> str:
    """The Release file over the index files (path to content). date: RFC 2822 in UTC."""
    lines = [
        "Origin: inferops-lab",
        "Label: inferops-lab stand-ins",
        "Suite: lab",
        "Codename: lab",
        "Architectures: amd64 all",
        f"Date: {date}",
        "SHA256:",
        *(f" {hashlib.sha256(data).hexdigest()} {len(data):>16} {path}" for path, data in sorted(files.items())),
    ]
    return "\n".join(lines) + "\n"


def left_out(name: str, version: str, without: Iterable[str]) -> bool:
    """Whether name=version matches one of the patterns (`nvidia-open=590*`, `nvlsm`)."""
    return any(fnmatch.fnmatchcase(f"{name}={version}", pattern if "=" in pattern else f"{pattern}=*") for pattern in without)


def source_list(address: str, key: str = "/usr/share/keyrings/inferops-lab.gpg") -> str:
    """The line for /etc/apt/sources.list.d."""
    return f"deb [signed-by={key}] http://{address}/ ./\n"


@dataclass(frozen=True)
class Repository:
    """Built packages and the paragraphs that list them."""

    folder: Path

    @property
    def pool(self) -> Path:
        return self.folder / "pool"

    @property
    def key(self) -> Path:
        return self.folder / "key.gpg"

    def entries(self) -> list[dict[str, str]]:
        """name, version and paragraph of every package."""
        found: list[dict[str, str]] = json.loads((self.folder / "entries.json").read_text(encoding="utf-8"))
        return found


def _key(release: str, version: str, definitions: Path, modules: Path) -> str:
    digest = hashlib.sha256(f"1 {release} {version} {modules.name}".encode())
    for path in sorted(definitions.rglob("*")):
        if path.is_file() and path.suffix != ".md":
            digest.update(str(path.relative_to(definitions)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def build(settings: Settings) -> Repository:
    """The repository with everything in it: from the cache, or built now.

    Raises CannotRunHere without dpkg-deb or gpg, LabError when a package cannot be built.
    """
    for program, package in (("dpkg-deb", "dpkg"), ("gpg", "gpg")):
        if shutil.which(program) is None:
            raise CannotRunHere(f"{program} is not installed (apt-get install {package})")
    image = vm_image.ensure(settings)
    entries, releases = load()
    modules = vm_modules.ensure(settings, image.release, releases)
    words = {"KERNEL": image.release, "KERNEL_VERSION": image.version}
    final = settings.cache / "vm" / f"apt-{_key(image.release, image.version, DEFINITIONS, modules)}"
    if final.is_dir():
        return Repository(final)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        work.chmod(0o755)
        listed = _build_packages(expand(entries, releases, words), modules, image.release, work)
        (work / "entries.json").write_text(json.dumps(listed))
        write_index(work, [one["paragraph"] for one in listed])
        _sign(settings, work)
        work.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Repository(final)


def _build_packages(packages: Sequence[Package], modules: Path, kernel: str, folder: Path) -> list[dict[str, str]]:
    (folder / "pool").mkdir()
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
    listed = []
    for package in packages:
        with tempfile.TemporaryDirectory(prefix="inferops-lab-deb.") as root:
            Path(root).chmod(0o755)
            write_tree(package, module_files(package, modules, kernel), Path(root))
            path = folder / "pool" / package.filename
            argv = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", root, str(path)]
            done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise LabError(f"dpkg-deb could not build {package.filename}: {done.stderr.strip()}")
            text = (Path(root) / "DEBIAN/control").read_text(encoding="utf-8")
        data = path.read_bytes()
        paragraph = index_entry(text, f"pool/{path.name}", len(data), hashlib.sha256(data).hexdigest())
        listed.append({"name": package.name, "version": package.version, "paragraph": paragraph})
    return listed


def write_index(folder: Path, paragraphs: Sequence[str]) -> None:
    """Packages, Packages.gz and Release in folder."""
    packages = "\n".join(paragraphs).encode()
    files = {"Packages": packages, "Packages.gz": gzip.compress(packages, mtime=0)}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    date = time.strftime("%a, %d %b %Y %H:%M:%S UTC", time.gmtime())
    (folder / "Release").write_text(release_text(files, date), encoding="utf-8")


def _sign(settings: Settings, folder: Path) -> None:
    """Sign Release with a key that is made for this cache and guards nothing."""
    home = settings.cache / "vm" / "gnupg"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--yes", "--pinentry-mode", "loopback", "--passphrase", ""]
    user = "inferops-lab@localhost"

    def run(*argv: str) -> None:
        done = subprocess.run([*gpg, *argv], capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"gpg failed: {done.stderr.strip()}")

    try:
        if subprocess.run([*gpg, "--list-secret-keys", user], capture_output=True, check=False).returncode:
            run("--quick-generate-key", user, "rsa2048", "sign", "never")
        run("--output", str(folder / "InRelease"), "--local-user", user, "--clearsign", str(folder / "Release"))
        run("--output", str(folder / "key.gpg"), "--export", user)
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, check=False)


def publish(settings: Settings, repository: Repository, without: Sequence[str] = ()) -> Path:
    """The folder to serve: the repository, less the packages that match a pattern of without."""
    folder = settings.state / "vm" / "apt"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "pool").symlink_to(repository.pool)
    kept = [one["paragraph"] for one in repository.entries() if not left_out(one["name"], one["version"], without)]
    write_index(folder, kept)
    _sign(settings, folder)
    return folder


def serve(settings: Settings, without: Sequence[str] = (), cut: str = "", cut_after: int = 1024) -> str:
    """Serve the repository on 127.0.0.1, and on the bridge when it is up; returns its address.

    cut: pattern of file names whose transfer breaks off after cut_after bytes. A server that runs
    already is replaced.
    """
    repository = build(settings)
    stop(settings)
    folder = publish(settings, repository, without)
    addresses = ["127.0.0.1"]
    if settings.bridge in network.links():
        addresses.append(settings.gateway)
    program = str(Path(__file__).with_name("apt_repo_server.py"))
    argv = [sys.executable, program, str(folder), str(vm.REPOSITORY_PORT), *addresses]
    if cut:
        argv += ["--cut", cut, "--cut-after", str(cut_after)]
    log = settings.state / "vm" / "apt.log"
    log.unlink(missing_ok=True)
    processes.start(PROCESS, argv, log)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if processes.members(PROCESS) and "serving" in (log.read_text() if log.exists() else ""):
            return f"127.0.0.1:{vm.REPOSITORY_PORT}"
        time.sleep(0.05)
    raise LabError(f"the package repository did not start: see {log}")


def stop(settings: Settings) -> None:
    """End the server: from now on the repository is gone for every machine."""
    processes.end(PROCESS)
    shutil.rmtree(settings.state / "vm" / "apt", ignore_errors=True)
    (settings.state / "vm" / "apt.log").unlink(missing_ok=True)


def use(settings: Settings, name: str) -> None:
    """Let a machine trust the repository and read its lists."""
    key = base64.b64encode((build(settings).key).read_bytes()).decode()
    line = source_list(vm_qemu.REPOSITORY_ADDRESS).strip()
    vm.ssh(
        settings,
        name,
        f"echo {key} | base64 -d > /usr/share/keyrings/inferops-lab.gpg && echo '{line}' > /etc/apt/sources.list.d/inferops-lab.list && apt-get -q update",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.apt_repo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["build", "serve", "stop", "use"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="machines, for use")
    parser.add_argument("--without", action="append", default=[], metavar="NAME[=VERSION]", help="pattern to leave out")
    parser.add_argument("--cut", default="", metavar="FILE", help="pattern of files that break off")
    parser.add_argument("--cut-after", type=int, default=1024, metavar="BYTES")
    options = parser.parse_args(arguments)
    settings = Settings.from_environment()
    try:
        if options.verb == "build":
            print(build(settings).folder)
        elif options.verb == "serve":
            print(serve(settings, options.without, options.cut, options.cut_after))
        elif options.verb == "stop":
            stop(settings)
        else:
            for name in options.names:
                use(settings, name)
    except LabError as err:
        print(f"lab: {err}", file=sys.stderr)
        return err.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
