# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of storage: the weights are there, or have room."""

from __future__ import annotations

from .model import Context, Node, Outcome, check, failed, passed, unsure
from .thresholds import WEIGHTS_COMPLETE, WEIGHTS_ROOM
from .wording import mapping, missing, number, short

GB = 1e9


@check(
    id="storage.weights", severity="block", title="Room for the weights",
    why="A download that fills the disk fails after an hour and takes the node's other services with it.",
    fix="Free space, mount a larger disk or a shared one where the weights go, or put a complete checkpoint there.",
    read_from="statvfs, *.safetensors.index.json", source="https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml")
def weights(node: Node, context: Context) -> Outcome:
    """A complete checkpoint is there, or the file system has the weights' size and a tenth more free (less what is already there)."""
    need = round(context.weights_gb * WEIGHTS_ROOM, 3)
    required = "%s GB free (%s GB of weights × %g), or a complete checkpoint" % (_gb(need), _gb(context.weights_gb), WEIGHTS_ROOM)
    here = mapping(node.get("storage.weights"))
    have = number(here.get("bytes")) / GB
    if here.get("present") is True and here.get("index") is True and number(here.get("shards")) > 0:
        # Hardware cpu serves a small model of the same shape: its index alone counts.
        if context.hardware == "cpu" or have >= context.weights_gb * WEIGHTS_COMPLETE:
            return passed(short("%s: %s GB in %d shards" % (here.get("path"), _gb(have), number(here.get("shards")))), required)
    paths = node.items("storage.paths")
    if not paths:
        return unsure(missing(node, "storage.paths") or "no path was looked at", required)
    first = paths[0]
    if not isinstance(first.get("free_bytes"), (int, float)):
        return unsure(short(node.why_unknown("storage.paths") or "the free space of %s is not known" % first.get("path")), required)
    free = number(first.get("free_bytes")) / GB
    # What an interrupted download left counts as room: it need not be fetched again. A whole checkpoint is that of another model.
    partial = 0.0 if here.get("present") is True and here.get("index") is True else have
    options = str(first.get("options") or "").split(",")
    where = short("%s on %s (%s)" % (first.get("path"), first.get("mount") or "?", first.get("fstype") or "?"), 70)
    if "ro" in options:
        return failed("%s is mounted read-only" % where, required)
    if first.get("free_inodes") == 0 and first.get("fstype") not in ("btrfs", "nfs", "nfs4", "lustre"):
        return failed("%s has no free inode" % where, required)
    text = "%s GB free, %s" % (_gb(free), where)
    if partial:
        text = "%s GB free and %s GB already there, %s" % (_gb(free), _gb(partial), where)
    return passed(short(text), required) if free + partial >= need else failed(short(text), required)


def _gb(value: float) -> str:
    return "{:,.0f}".format(value)
