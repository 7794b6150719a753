# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the image: identity, CUDA inside it, vLLM's version, known troubles."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ..plan.profiles import HARDWARE, MODELS
from .model import CLUSTER, Context, Node, Outcome, check, cluster_check, failed, passed, skipped, unsure, warned
from .troubles import Trouble, asks_for, matching
from .wording import listed, short, version

RECIPE = "https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml"
PULL = "Pull it with `ansible-playbook inferops.vllm.provision --limit NODE`."
NOT_HERE = "the image is not on the node yet (see image.digest)"


def _facts(node: Node) -> Tuple[Mapping[str, Any], str]:
    """The image's facts, or why they are not known."""
    why = node.why_unknown("container.image")
    if why:
        return {}, short(why)
    image = node.get("container.image")
    if not isinstance(image, dict):
        return {}, "no image was asked for, so none was looked at"
    if image.get("present") is None:
        return {}, "whether the image is present is not known"
    return image, ""


def _without_image(context: Context) -> str:
    return "" if context.image else "the plan names no image"


def _is_profile_image(context: Context) -> bool:
    model = MODELS.get(context.profile)
    return model is not None and context.image in model.images.values()


@check(
    id="image.digest", severity="block", title="Image and its digest",
    why="A tag is rebuilt under the same name; only a digest says what runs, and it must be the one that was declared.",
    fix=PULL, read_from="docker image inspect", source=RECIPE)
def digest(node: Node, context: Context) -> Outcome:
    """The image is present under a registry digest, the declared one when one is declared."""
    reason = _without_image(context)
    if reason:
        return skipped(reason)
    _name, _at, declared = context.image.partition("@")
    required = short(declared, 80) if declared else "%s, pulled by digest" % short(context.image, 70)
    image, why = _facts(node)
    if why:
        return unsure(why, required, severity=None if declared else "warn")
    if image.get("present") is not True:
        return failed("%s is not here yet" % short(image.get("name") or context.image, 80), required,
                      "The image is pulled before the service starts, which takes a while for its size.", PULL, "warn")
    listing = image.get("digests")
    named = [str(item).rpartition("@")[2] for item in listing] if isinstance(listing, list) else []
    known = [item for item in named if item.startswith("sha256:")]
    shown = listed((item[:26] + "…" if len(item) > 27 else item for item in known), 2)
    if declared:
        if declared in known or declared == image.get("id"):
            return passed(shown or short(declared, 27), required)
        if known:
            return failed(shown, required)
        return unsure("the image has no registry digest to compare with", required)
    if not known:
        return warned("no registry digest; image id %s" % short(image.get("id") or "not known", 27), required,
                      "An image that was built or loaded here cannot be compared with other nodes by digest.")
    return passed(shown, required)


@check(
    id="image.cuda", severity="block", title="CUDA in the image",
    why="The profile's driver minimum and kernels are for one CUDA major version; another one in the image does not run on it.",
    fix="Use the profile's image: " + PULL, read_from="image labels and environment (CUDA_VERSION)", source=RECIPE)
def cuda(node: Node, context: Context) -> Outcome:
    """CUDA's major version inside the image is the profile's."""
    reason = _without_image(context) or ("" if context.image_cuda_major else "the plan's image holds no CUDA")
    if reason:
        return skipped(reason)
    required = "CUDA %d" % context.image_cuda_major
    image, why = _facts(node)
    if why:
        return unsure(why, required)
    if image.get("present") is not True:
        if _is_profile_image(context):
            return passed("CUDA %d by the profile; %s" % (context.image_cuda_major, NOT_HERE), required, assumed=True)
        return skipped(NOT_HERE)
    have = version(image.get("cuda"))
    if not have:
        return unsure("the image does not say which CUDA it holds", required)
    if have[0] != context.image_cuda_major:
        return failed("CUDA %s" % short(image.get("cuda"), 30), required)
    return passed("CUDA %s" % short(image.get("cuda"), 30), required)


@check(
    id="image.vllm", severity="block", title="vLLM in the image",
    why="Older vLLM does not know this model.",
    fix="Use the profile's image or a newer one: " + PULL, read_from="image labels", source=RECIPE)
def vllm(node: Node, context: Context) -> Outcome:
    """vLLM inside the image is new enough; images rarely say which it is, so not knowing it is no blocker."""
    model = MODELS.get(context.profile)
    reason = _without_image(context) or ("" if model else "the profile names no vLLM version")
    if reason or model is None:
        return skipped(reason)
    required = "at least %s" % ".".join(str(part) for part in model.vllm_min)
    image, why = _facts(node)
    if why:
        return unsure(why, required, severity="info")
    if image.get("present") is not True:
        return skipped(NOT_HERE)
    have = version(image.get("vllm"))
    if not have:
        if _is_profile_image(context):
            return passed("the profile's image; it does not say its version", required, assumed=True)
        return unsure("the image does not say which vLLM it holds", required, severity="info")
    # Builds from a branch call themselves 0.1.dev: that number says nothing.
    if "dev" in str(image.get("vllm")):
        return unsure("a development build, %s" % short(image.get("vllm"), 40), required, severity="info")
    if have < model.vllm_min:
        return failed(short(image.get("vllm"), 40), required)
    return passed(short(image.get("vllm"), 40), required)


@cluster_check(
    id="image.known_trouble", severity="warn", title="Known troubles",
    why="Others ran into this with the same versions, hardware and strategy.",
    fix="Read the report before the first start, and keep its remedy at hand.",
    read_from="image labels and environment, the plan", source="https://github.com/NVIDIA/nccl/issues/2167")
def known_trouble(nodes: Sequence[Node], context: Context) -> Dict[str, Outcome]:
    """One answer for the cluster: troubles that the images' versions and the plan are known for."""
    required = "none known"
    if context.hardware not in HARDWARE or HARDWARE[context.hardware].vendor == "cpu":
        return {CLUSTER: skipped("no trouble is on record for hardware %s" % (context.hardware or "that is not known"))}
    model = MODELS.get(context.profile)
    hits: Dict[str, Trouble] = {}
    where: Dict[str, List[str]] = {}
    unread: List[str] = []
    assumed = False
    for node in nodes:
        image, why = _facts(node)
        nccl, vllm_version = version(image.get("nccl")), version(image.get("vllm"))
        if not nccl and asks_for(context, "nccl"):
            if model is not None and model.image_nccl and _is_profile_image(context):
                nccl, assumed = version(model.image_nccl), True
            else:
                unread.append(node.name)
        for trouble in matching(context, nccl, vllm_version):
            hits[trouble.id] = trouble
            where.setdefault(trouble.id, []).append(node.name)
    if hits:
        proven = any(trouble.proven for trouble in hits.values())
        first = next((t for t in hits.values() if t.proven), next(iter(hits.values())))
        nodes_text = "all nodes" if len(where[first.id]) == len(nodes) else listed(where[first.id])
        more = "; and %d more" % (len(hits) - 1) if len(hits) > 1 else ""
        text = short("%s: %s%s" % (nodes_text, first.text, more))
        why = "%s (%s)." % (first.text[:1].upper() + first.text[1:], first.source)
        fix = " ".join(trouble.remedy for trouble in hits.values())
        made = failed(text, required, why, fix, "block") if proven else warned(text, required, why, fix)
        return {CLUSTER: made._replace(assumed=assumed)}
    if unread:
        return {CLUSTER: unsure(short("the NCCL version in the image is not known on %s" % listed(unread)), required, severity="info")}
    return {CLUSTER: passed("none", required, assumed=assumed)}
