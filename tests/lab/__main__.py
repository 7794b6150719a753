# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m tests.lab VERB`, from the root of the repository."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence

from . import lab, machine
from .errors import CannotRunHere, LabError
from .image import build
from .settings import REPOSITORY, Settings


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab", description="Real nodes to test on, on this machine alone."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="bring up nodes and registry, print the inventory")
    up.add_argument("--nodes", type=int, default=2, metavar="N", help="container nodes (2)")
    up.add_argument("--vms", type=int, default=0, metavar="N", help="virtual machines (0)")
    up.add_argument("--suite", help="Debian release of the container nodes (bookworm)")
    up.add_argument("--no-image", action="store_true", help="leave the vLLM image out")
    verbs.add_parser("down", help="remove every trace of the lab, however it ended")
    verbs.add_parser("status", help="say what is there, as JSON")
    verbs.add_parser("inventory", help="print the inventory of the running lab")
    verbs.add_parser("build-image", help="build the vLLM image into the cache, print what it is")
    packages = verbs.add_parser("packages", help="list the system packages the lab needs")
    packages.add_argument("--install", action="store_true", help="install those that are missing")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0 done, 1 failed, 2 not possible on this machine."""
    args = _parser().parse_args(argv)
    settings = Settings.from_environment()
    try:
        _run(args, settings)
    except LabError as err:
        _say(str(err))
        return err.exit_code
    except subprocess.CalledProcessError as err:
        _say(f"`{err.cmd[0]}` failed: {(err.stderr or '').strip()[-300:]}")
        return 1
    return 0


def _run(args: argparse.Namespace, settings: Settings) -> None:
    if args.verb == "up":
        nodes = [settings.container_node(n) for n in range(1, args.nodes + 1)]
        if args.suite:
            nodes = [type(n)(n.name, n.address, n.kind, args.suite) for n in nodes]
        machines = [f"vm{n}" for n in range(1, args.vms + 1)]
        lab.up(settings, nodes, machines, not args.no_image, _say)
        print(settings.inventory.read_text(encoding="utf-8"), end="")
        _say(f"ansible-playbook -i {settings.inventory.parent.relative_to(REPOSITORY)} …")
    elif args.verb == "down":
        if reason := machine.obstacle(find=lambda _: "not asked for"):
            raise CannotRunHere(reason)
        lab.down(settings, _say)
    elif args.verb == "status":
        print(json.dumps(lab.status(settings), indent=1))
    elif args.verb == "inventory":
        if not settings.inventory.exists():
            raise LabError("no lab is up: `make lab` brings one up")
        print(settings.inventory.read_text(encoding="utf-8"), end="")
    elif args.verb == "build-image":
        machine.require()
        made = build.ensure(settings, settings.cache / "logs" / "image.log")
        print(json.dumps(made.__dict__, indent=1))
    else:
        names = machine.install_packages() if args.install else machine.system_packages()
        print("\n".join(names))


if __name__ == "__main__":
    sys.exit(main())
