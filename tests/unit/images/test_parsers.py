# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, answers of registries and events: any text in, no exception out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.images import record, registry, trouble
from ansible_collections.inferops.vllm.plugins.module_utils.images.docker import Layers, event_of
from ansible_collections.inferops.vllm.plugins.module_utils.images.engine import loaded
from ansible_collections.inferops.vllm.plugins.module_utils.images.reference import Reference, ReferenceProblem, parse

DIGEST = "sha256:" + "a" * 64
ANY = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["layers", "size", "manifests", "platform", "architecture", "os", "config", "digest", "images", "id", "run", "status",
                     "progressDetail", "current", "total"]) | st.text(max_size=5), inner), max_leaves=12)


@pytest.mark.parametrize(("text", "parts"), [
    ("vllm/vllm-openai:kimi-k3", ("", "vllm/vllm-openai", "kimi-k3", "")),
    ("10.0.0.1:5443/a/b@" + DIGEST, ("10.0.0.1:5443", "a/b", "", DIGEST)),
    ("localhost/a:1@" + DIGEST, ("localhost", "a", "1", DIGEST)),
    ("[::1]:5000/a", ("[::1]:5000", "a", "", "")),
    ("ubuntu", ("", "ubuntu", "", "")),
    ("a_b/c-d__e:T.1", ("", "a_b/c-d__e", "T.1", "")),
])
def test_names(text: str, parts: tuple[str, ...]) -> None:
    assert parse(text) == Reference(*parts) and parse(text).text == text


@pytest.mark.parametrize("text", [
    "", "a b", "r.io/A", "a@b", "a@sha256:" + "A" * 64, "a:" + "x" * 129, "a//b", "/a", "a/", "-a", "a\n", "--help", "a:b:c", "a@" + DIGEST + "0"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ReferenceProblem):
        parse(text)


@given(st.text(max_size=600))
def test_any_name_parses_or_is_refused_in_one_line(text: str) -> None:
    try:
        assert parse(text).text == text
    except ReferenceProblem as exc:
        assert "\n" not in str(exc)


@given(ANY)
def test_any_document_of_a_registry(found: Any) -> None:
    table = found if isinstance(found, dict) else {"layers": found, "manifests": found}
    sizes, config = registry.layers_of(table)
    assert all(isinstance(size, int) for size in sizes) and isinstance(config, str)
    assert isinstance(registry.choose(table, "amd64"), str)
    assert isinstance(record.parse(json.dumps(found)), list)


@given(st.lists(ANY))
def test_any_events(events: list[Any]) -> None:
    told: list[tuple[str, int, int]] = []
    layers = Layers(lambda *words: told.append(words))
    for one in events:
        layers.see(event_of(json.dumps(one).encode()))
    assert all(isinstance(done, int) for _what, done, _total in told)


@given(st.binary(max_size=200), st.text(max_size=200))
def test_any_bytes(data: bytes, text: str) -> None:
    assert isinstance(event_of(data), dict) and isinstance(record.parse(text), list)
    assert isinstance(registry.parse_challenge(text), dict) and isinstance(loaded(text), list) and isinstance(trouble.kind_of(text), str)


@given(st.text(min_size=8, max_size=40), st.text(max_size=80))
def test_a_secret_is_never_in_a_sentence(secret: str, around: str) -> None:
    scope = trouble.Scope("a/b@" + DIGEST, "r", "a/b", DIGEST, "u")
    problem = trouble.explain(around + " " + secret + " " + around, scope, [secret])
    if secret == " ".join(secret.split()) and secret not in str(trouble.explain("", scope)) and secret not in trouble.MASK * 2:
        assert secret not in str(problem).replace(trouble.MASK, "")


def test_shared_layers_are_not_counted_again() -> None:
    content = registry.Content(DIGEST, [10, 20, 30], ["a", "b", "c"])
    assert registry.missing_bytes(content, []) == 60
    assert registry.missing_bytes(content, [["a", "x"], ["a", "b", "z"]]) == 30
    assert registry.missing_bytes(content, [["b", "c"]]) == 60
    assert registry.missing_bytes(content._replace(diff_ids=[]), [["a"]]) == 60


def test_progress_is_the_sum_of_the_layers() -> None:
    told: list[tuple[str, int, int]] = []
    layers = Layers(lambda *words: told.append(words))
    for event in (
        {"status": "Pulling fs layer", "id": "a"}, {"status": "Pulling fs layer", "id": "b"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 5, "total": 10}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 1, "total": 90}},
        {"status": "Download complete", "id": "a"},
    ):
        layers.see(event)
    assert layers.bytes() == (11, 100) and told[-1] == ("image", 11, 100)
