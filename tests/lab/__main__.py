# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m tests.lab VERB`, from the root of the repository."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType

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
    dress = verbs.add_parser("dress", help="dress a running node as GPU hardware")
    dress.add_argument("node", metavar="NODE")
    dress.add_argument("--hardware", default="b300", metavar="NAME", help="h100, h200, b200, b300, gb200, gb300 (b300)")
    dress.add_argument("--fault", action="append", default=[], metavar="NAME", help="fault to show, may be given often")
    dress.add_argument("--sticky", action="append", default=[], metavar="NAME", help="fault that a reboot does not mend")
    verbs.add_parser("undress", help="take the costume off").add_argument("node", metavar="NODE")
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


def _costume() -> ModuleType:
    """The module that dresses nodes. It needs the collectors, so it is imported late: `down` has to work without them."""
    sys.path.insert(0, str(REPOSITORY / "collections"))
    return importlib.import_module(".costume", __package__)


def _run(args: argparse.Namespace, settings: Settings) -> None:
    if args.verb == "up":
        nodes = [settings.container_node(n) for n in range(1, args.nodes + 1)]
        if args.suite:
            nodes = [type(n)(n.name, n.address, n.kind, args.suite) for n in nodes]
        machines = [f"vm{n}" for n in range(1, args.vms + 1)]
        lab.up(settings, nodes, machines, not args.no_image, _say)
        print(settings.inventory.read_text(encoding="utf-8"), end="")
        place = settings.inventory.parent
        _say(f"ansible-playbook -i {place.relative_to(REPOSITORY) if place.is_relative_to(REPOSITORY) else settings.inventory} …")
    elif args.verb == "down":
        if reason := machine.obstacle(find=lambda _: "not asked for"):
            raise CannotRunHere(reason)
        lab.down(settings, _say)
    elif args.verb == "dress":
        costume = _costume()
        try:
            costume.dress(settings, args.node, args.hardware, args.fault + args.sticky, sticky=args.sticky)
        except ValueError as err:
            raise LabError(str(err)) from err
        _say(f"{args.node} is dressed as {', '.join([args.hardware, *args.fault, *args.sticky])}")
    elif args.verb == "undress":
        _costume().undress(settings, args.node)
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
