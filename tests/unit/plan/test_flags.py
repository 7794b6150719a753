# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan/flags.py, overrides.py and versions.py: the tables, and every flag of every plan against them."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.plan import overrides, recipe, versions
from ansible_collections.inferops.vllm.plugins.module_utils.plan.flags import find, near, problem, render, table
from ansible_collections.inferops.vllm.plugins.module_utils.plan.resolve import InputError
from tests.unit.plan.cluster import Case, every_case

SHARED = pathlib.Path(__file__).resolve().parents[4] / "shared" / "facts" / "vllm-serve-flags-0.32.json"
KINDS = ("bool", "bare", "int", "float", "size", "text", "json", "choice")


def words_of(argv: List[str]) -> List[Tuple[str, List[str]]]:
    """Flags of argv, each with the words that follow it."""
    made: List[Tuple[str, List[str]]] = []
    for word in argv[3:]:
        if word.startswith("--"):
            made.append((word, []))
        else:
            made[-1][1].append(word)
    return made


@pytest.fixture(scope="module")
def plans() -> List[Tuple[Case, Dict[str, Any]]]:
    return [(case, case.plan()) for case in every_case()]


def test_every_flag_of_every_plan_is_in_the_table_and_has_a_value_of_its_kind(plans: List[Tuple[Case, Dict[str, Any]]]) -> None:
    seen = 0
    for case, plan in plans:
        for entry in plan["nodes"].values():
            if entry["role"] == "router":
                continue
            flags = words_of(entry["argv"])
            assert len({name for name, _values in flags}) == len(flags), case.name
            for name, values in flags:
                found = find(name)
                assert found is not None, (case.name, name)
                if found.flag.kind in ("bool", "bare"):
                    assert values == [] and (found.flag.kind == "bool" or not found.negated), (case.name, name, values)
                else:
                    assert values and (len(values) == 1 or found.flag.several), (case.name, name, values)
                    assert not any(problem(found.flag, value) for value in values), (case.name, name, values)
                seen += 1
    assert seen > 10000


def test_every_plan_says_why_of_every_flag_and_variable(plans: List[Tuple[Case, Dict[str, Any]]]) -> None:
    for case, plan in plans:
        for entry in plan["nodes"].values():
            if entry["role"] == "router":
                continue
            said = {reason["what"] for reason in entry["reasons"]}
            assert {" ".join([name] + values) for name, values in words_of(entry["argv"])} <= said, case.name
            assert {"%s=%s" % item for item in entry["env"].items()} <= said, case.name
            assert all(reason["layer"] and reason["why"] for reason in entry["reasons"]), case.name


def test_laws_that_hold_for_every_plan(plans: List[Tuple[Case, Dict[str, Any]]]) -> None:
    counted = {"planned": 0, "refused": 0}
    for case, plan in plans:
        counted["refused" if plan["refused"] else "planned"] += 1
        assert bool(plan["refused"]) != bool(plan["nodes"]), case.name
        heads: Dict[str, int] = {}
        for entry in plan["nodes"].values():
            heads[entry["engine"]] = heads.get(entry["engine"], 0) + (entry["rank"] == 0)
            if entry["role"] == "router":
                continue
            names = [name for name, _values in words_of(entry["argv"])]
            assert "--enable-prefix-caching" in names or "--no-enable-prefix-caching" in names, case.name
            assert ("--headless" in names) == (entry["health_url"] is None) == ("--host" not in names), case.name
            assert "--api-key" not in names and not any("KEY" in name or "TOKEN" in name for name in entry["env"]), case.name
            env = set(entry["env"])
            if case.hardware == "cpu":
                assert "VLLM_USE_RUST_FRONTEND" not in env, case.name
            if case.interconnect != "nvlink":
                assert not env & set(recipe.NVLINK_ONLY) and not any("imex" in word for word in entry["container"]), case.name
            if case.interconnect != "rdma":
                assert not env & set(recipe.RDMA_ONLY) and "/dev/infiniband" not in entry["container"], case.name
            if len([node for node in plan["nodes"].values() if node["engine"] == entry["engine"]]) > 1:
                assert {"VLLM_HOST_IP", "GLOO_SOCKET_IFNAME"} <= env, case.name
                data = "--data-parallel-size" in names
                assert not data or entry["rank"] == 0 or "--headless" in names or "--data-parallel-hybrid-lb" in names, case.name
        assert all(count == 1 for count in heads.values()), case.name
    assert counted["planned"] > 150 and counted["refused"] > 100, counted


def test_the_table_is_what_the_parser_has() -> None:
    if not SHARED.exists():
        pytest.skip("the parser's own list is not beside the repository")
    for row in json.loads(SHARED.read_text()):
        for name in row["flags"]:
            found = find(name) if name.startswith("-") and name != "-h" else None
            if name in ("-h", "model_tag"):
                continue
            assert found is not None, name
            assert found.negated == (name.startswith("--no-") and "--" + name[5:] in row["flags"]), name
            if row.get("choices") and found.flag.kind == "choice":
                assert set(found.flag.choices) == set(row["choices"]) - {"None"}, name
            if row.get("type") == "int" and not row.get("choices"):
                assert found.flag.kind == "int", name
            if row.get("nargs") == "+":
                assert found.flag.several, name


def test_the_table_is_well_formed() -> None:
    flags = {flag.name: flag for flag in table().values()}
    assert len(flags) == 317
    assert all(flag.kind in KINDS and (flag.kind != "choice" or flag.choices) for flag in flags.values())
    assert all(name.startswith("-") for name in table())


@pytest.mark.parametrize("word,name,negated", [
    ("max_num_seqs", "--max-num-seqs", False), ("--max-num-seqs", "--max-num-seqs", False), ("-tp", "--tensor-parallel-size", False),
    ("no-enable-prefix-caching", "--enable-prefix-caching", True), ("no_enforce_eager", "--enforce-eager", True),
    ("device-memory-utilization", "--gpu-memory-utilization", False),
])
def test_flags_are_found_as_people_write_them(word: str, name: str, negated: bool) -> None:
    found = find(word)
    assert found is not None and (found.flag.name, found.negated) == (name, negated)


@pytest.mark.parametrize("word", ["", "-", "--", "no-", "--no-headless", "no-max-num-seqs", "max-num-seq", "x" * 5000])
def test_what_is_no_flag_is_not_found(word: str) -> None:
    assert find(word) is None


@pytest.mark.parametrize("name,good,bad", [
    ("--max-num-seqs", ["1", "0", "-1"], ["1.5", "1K", "", "one", "１"]), ("--gpu-memory-utilization", ["0.95", "1", "1e-1"], ["", "x", ".", "nan"]),
    ("--max-model-len", ["1048576", "1M", "32k", "auto", "1.5k"], ["1 M", "M", "automatic", "-1"]),
    ("--kv-cache-dtype", ["fp8", "auto"], ["FP8", "", "fp7"]), ("--attention-config", ["{}", "[]", '{"a":1}'], ["", "{", "a", "1", '"a"']),
    ("--load-format", ["auto", "a b", "a\tb", "zwö"], ["", "a\nb", "a\0b", "a\rb", "a\x0bb", "a\x85b", "a\u2028b", "a\n"]),
    ("--headless", [], ["", "true"]), ("--enforce-eager", [], ["1"]),
])
def test_values_are_held_against_their_kind(name: str, good: List[str], bad: List[str]) -> None:
    flag = table()[name]
    assert [value for value in good if problem(flag, value)] == [] and [value for value in bad if not problem(flag, value)] == []


def test_render_writes_switches_values_and_lists() -> None:
    assert [render("--a", value) for value in (True, False, "1", ["x", "y"])] == [["--a"], ["--no-a"], ["--a", "1"], ["--a", "x", "y"]]


def test_a_misspelt_flag_gets_a_proposal() -> None:
    assert near("max-num-seq")[0] == "--max-num-seqs" and near("qqqq") == []


anything = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
                        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=6)


@given(st.dictionaries(st.text(max_size=30) | st.sampled_from(sorted(table())), anything, max_size=4) | anything)
def test_overrides_are_taken_or_refused_with_the_variables_name(value: Any) -> None:
    for read, variable in ((overrides.flags, "vllm_overrides"), (overrides.env, "vllm_env_overrides")):
        try:
            made = read(value)
        except InputError as exc:
            assert variable in str(exc) and "\n" not in str(exc) and len(str(exc)) < 1500
            continue
        for name, said in made.items():
            if variable == "vllm_overrides" and said is not None:
                flag = table()[name]
                words = render(name, said)
                assert words[0] in (name, "--no-" + name[2:])
                assert len(words) == 1 or not any(problem(flag, word) for word in words[1:])


@pytest.mark.parametrize("given", [
    {"level": 3, "modes": ["a b", "ö"]}, '{\n  "level": 3,\r\n\t"modes": ["a b", "ö"]\n}\n', '{"level":3,"modes":["a b","\\u00f6"]}'])
def test_json_is_one_line_and_the_same_as_text_and_as_a_table(given: Any) -> None:
    assert overrides.flags({"compilation_config": given}) == {"--compilation-config": '{"level":3,"modes":["a b","\\u00f6"]}'}


@pytest.mark.parametrize("given", ['{"a": NaN}', {"a": float("nan")}, '"{}"', "5", "null", "{", "", "[" * 100000])
def test_what_is_no_json_object_is_refused_as_text_and_as_a_table(given: Any) -> None:
    with pytest.raises(InputError, match="--compilation-config takes a JSON object"):
        overrides.flags({"compilation_config": given})


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "a\x0bb", "a\x1eb", "a\x85b", "a\u2028b", "a\n"])
def test_a_variable_of_several_lines_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="vllm_env_overrides: A takes one line of text"):
        overrides.env({"A": value})
    assert overrides.env({"A": "a\tb ö"}) == {"A": "a\tb ö"}


# -- versions ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text,expected", [
    ("0.32.0", (0, 32, 0)), ("v0.27.1", (0, 27, 1)), ("0.27.1.dev3+cu130", (0, 27, 1)), ("0.33", (0, 33, 0)), ("", ()), ("kimi-k3", ()), (None, ())])
def test_versions_are_read(text: Any, expected: Tuple[int, ...]) -> None:
    assert versions.parse(text) == expected


@given(st.text() | st.integers() | st.none())
def test_reading_a_version_never_raises(value: Any) -> None:
    assert isinstance(versions.parse(value), tuple)


def test_moving_there_and_back_gives_the_same() -> None:
    for row in versions.CHANGES:
        for old, new in list(row.values.items()) or [("3072", "3072")]:
            flags: Dict[str, Any] = {}
            env = {row.old: old}
            moved = versions.move(flags, env, row.since)
            assert (flags if row.new.startswith("--") else env) == {row.new: new} and moved[0].old == row.old
            versions.move(flags, env, (0, 27, 1))
            assert env == {row.old: old} and flags == {}


def test_the_name_that_the_version_knows_wins() -> None:
    env = {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "1536"}
    flags: Dict[str, Any] = {"--prefix-cache-retention-interval": "3072"}
    versions.move(flags, env, (0, 32, 0))
    assert flags == {"--prefix-cache-retention-interval": "3072"} and env == {}


def test_every_layer_has_a_source_with_a_date() -> None:
    tables = (recipe.STRATEGY, recipe.STRATEGY_OVERRIDE, recipe.HARDWARE_OVERRIDE, recipe.REPLACED, recipe.GPU_OVERRIDE, recipe.FEATURE)
    layers = [layer for rows in tables for layer in rows.values()] + [recipe.BASE]
    assert all(layer.name and layer.source.url.startswith("https://") and len(layer.source.date) == 10 for layer in layers)
    for layer in layers:
        for name, value in layer.flags:
            flag = table()[name]
            assert (flag.kind in ("bool", "bare")) == isinstance(value, bool), name
            assert isinstance(value, bool) or not problem(flag, value), name
