# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Freeze a node on which nothing can be written: code comes in on standard input, the archive goes out on standard output.

:func:`payload` and :data:`BOOTSTRAP` are used on the controller, :func:`run` on the node.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from typing import Any, Dict, Mapping, Tuple

MARK = "inferops.vllm/evidence/stream:"

# Imports from a table of sources. Nothing of it is a file, so that children that closed all descriptors can import, too.
BOOTSTRAP = """
import sys, json, importlib.abc, importlib.util
given = json.loads(sys.stdin.buffer.read().decode('utf-8'))
class Given(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in given['sources']:
            return importlib.util.spec_from_loader(name, self, is_package=given['sources'][name][0])
    def exec_module(self, module):
        exec(compile(given['sources'][module.__name__][1], module.__name__, 'exec'), module.__dict__)
sys.dont_write_bytecode = True
sys.meta_path.insert(0, Given())
importlib.import_module(given['start']).run(given['params'])
"""


def payload(sources: Mapping[str, Tuple[bool, str]], params: Mapping[str, Any]) -> bytes:
    """What the node reads on standard input.

    Args:
        sources: dotted module name → (is a package, source text).
        params: arguments of the module, complete.
    """
    return json.dumps({"sources": {name: list(pair) for name, pair in sources.items()}, "start": __name__, "params": dict(params)}).encode("ascii")


def run(params: Dict[str, Any]) -> None:
    """Freeze this node and print its archive: a line of JSON behind MARK, then base64."""
    from . import arguments, bundle, freeze

    try:
        frozen = freeze.freeze(arguments.wanted(params))
        packed = io.BytesIO()
        bundle.pack(frozen.contents, packed, frozen.account["node"])
        told = arguments.result(frozen.account)
    except ValueError as exc:
        told, packed = {"failed": True, "msg": str(exc)}, io.BytesIO()
    sys.stdout.write("\n%s%s\n" % (MARK, json.dumps(told)))
    sys.stdout.write(base64.b64encode(packed.getvalue()).decode("ascii") + "\n")
    sys.stdout.flush()


def parse(text: str) -> Tuple[Dict[str, Any], bytes]:
    """What :func:`run` printed: the result and the archive.

    Raises:
        ValueError: it is not whole.
    """
    at = text.find(MARK)
    if at < 0:
        raise ValueError("the node printed no archive: %s" % " ".join(text.split())[-300:])
    head, _newline, body = text[at + len(MARK):].partition("\n")
    found = json.loads(head)
    if not isinstance(found, dict):
        raise ValueError("the node printed no result")
    return found, base64.b64decode("".join(body.split()), validate=True)
