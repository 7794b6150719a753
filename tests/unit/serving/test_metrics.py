# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's metrics under all of their names, with all that can be wrong with them."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.serving import metrics
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import Deadlines, endpoint
from ansible_collections.inferops.vllm.plugins.module_utils.serving.metrics import Reading, difference, merged, parse

from .servers import State, serving

INFO = 'vllm:cache_config_info{enable_prefix_caching="%s",block_size="%s",mamba_block_size="%s",mamba_cache_mode="%s"} 1.0'


def reading(text: str) -> Reading:
    return Reading(parse(text))


def test_values_labels_and_escapes() -> None:
    found = parse('# HELP x y\nx{a="1",b="q\\"u\\\\o\\nte"} 1.5e3 1700000000000\ny NaN\nz +Inf\nbroken{ 1\nw 1_0\nv\n')
    assert [(s.name, s.labels) for s in found] == [("x", {"a": "1", "b": 'q"u\\o\nte'}), ("y", {}), ("z", {})]
    assert found[0].value == 1500 and math.isnan(found[1].value) and math.isinf(found[2].value)


@pytest.mark.parametrize("name", ["vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits"])
def test_every_name_of_a_counter_is_known(name: str) -> None:
    assert reading('%s{engine="0"} 7' % name).get("prefix_hits") == 7


def test_the_newest_name_counts_when_old_and_new_are_both_there() -> None:
    assert reading("vllm:kv_cache_usage_perc 0.25\nvllm:gpu_cache_usage_perc 0.75").get("kv_usage") == 0.25


def test_engines_are_summed_and_the_fullest_cache_counts() -> None:
    found = reading('vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n'
                    'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.9')
    assert (found.get("running"), found.get("kv_usage"), found.engine_count()) == (5, 0.9, 2)


def test_nan_and_negative_are_broken_not_zero() -> None:
    found = reading("vllm:prefix_cache_hits_total NaN\nvllm:prefix_cache_queries_total -3\nvllm:num_preemptions_total 1")
    assert found.get("prefix_hits") is None and set(found.broken) == {"prefix_hits", "prefix_queries"}
    assert difference(found, found, "prefix_hits") == (None, "prefix_hits is NaN or negative")
    assert difference(found, found, "preemptions") == (0, "")


def test_one_nan_among_engines_spoils_the_sum() -> None:
    found = reading('vllm:prefix_cache_hits_total{engine="0"} 4\nvllm:prefix_cache_hits_total{engine="1"} NaN\nvllm:prefix_cache_hits_total{engine="2"} 4')
    assert found.get("prefix_hits") is None


def test_a_counter_that_goes_back_is_a_restart() -> None:
    before, after = reading("vllm:prefix_cache_hits_total 10"), reading("vllm:prefix_cache_hits_total 3")
    assert difference(before, after, "prefix_hits")[0] is None and "restarted" in difference(before, after, "prefix_hits")[1]
    assert difference(before, reading("vllm:x 1"), "prefix_hits") == (None, "prefix_hits is missing")
    assert difference(reading("vllm:x 1"), after, "prefix_hits") == (3, "")


def test_the_block_is_the_largest_that_a_prefix_must_reach() -> None:
    assert reading(INFO % ("True", 128, "None", "none")).block() == 128
    assert reading(INFO % ("True", 16, 1536, "align")).block() == 1536
    assert reading(INFO % ("True", 16, 1536, "none")).block() == 16
    assert reading(INFO % ("True", "abc", "None", "none")).block() is None


@pytest.mark.parametrize("text", ["²", "٣", "-5", "1.5", "9" * 400, "9" * 5000, ""])
def test_a_label_that_is_no_number_says_nothing(text: str) -> None:
    labels = ("block_size", "prefix_cache_retention_interval", "kv_cache_size_tokens", "num_gpu_blocks")
    found = reading("vllm:cache_config_info{%s} 1" % ",".join('%s="%s"' % (label, text) for label in labels))
    assert (found.block(), found.retention()) == (None, 0) and found.kv_tokens() in (None, 10 ** 15)
    good = reading("vllm:cache_config_info{%s} 1" % ",".join('%s="%s"' % (label, 256) for label in labels))
    assert (good.block(), good.retention(), good.kv_tokens()) == (256, 256, 256)


def test_a_value_that_no_count_reaches_is_broken() -> None:
    found = reading('vllm:prefix_cache_hits_total{engine="0"} 1.7e308\nvllm:prefix_cache_hits_total{engine="1"} 1.7e308\nvllm:prefix_cache_queries_total 1e15')
    assert (found.get("prefix_hits"), found.get("prefix_queries"), found.broken) == (None, 1e15, ["prefix_hits"])


LONG = 300000


@pytest.mark.parametrize("text", [
    "x{" + "a" * LONG + "} 1", "x{" + "a" * LONG, "x{" + "a=" * (LONG // 2) + "} 1", "x{" + 'a="' * (LONG // 3) + "} 1", 'x{a="' + '\\"' * (LONG // 2) + "} 1",
    'x{a="' + '\\"' * (LONG // 2) + '"} 1', "x{" + "} " * (LONG // 2) + "a b", "x{" + "} a 1 " * (LONG // 6) + "b c", "x" + " " * LONG + "1 b c",
    "x 1" + " " * LONG + "b", "x 1 " + "1" * LONG + "b", "x" * LONG, "x " + "v" * LONG + " b c",
    "".join('vllm:num_requests_running{model_name="%d"} 1\n' % number for number in range(20000))], ids=lambda text: text[:6])
def test_any_line_is_read_in_time_that_grows_with_its_length_only(text: str) -> None:
    began = time.monotonic()
    Reading(parse(text)).block()
    merged([Reading(parse(text))] * 2)
    assert time.monotonic() - began < 1.5


def test_a_line_that_is_too_long_is_left_out() -> None:
    text = "x{a=\"%s\"} 1\ny 2" % ("b" * metrics.LINE_LIMIT)
    assert [sample.name for sample in parse(text)] == ["y"] and len(parse(text.replace("b", "", 20))) == 2


def test_labels_of_real_lines_are_all_found() -> None:
    labels = {"engine": "0", "le": "+Inf", "model_name": "a/b", "_x9": 'y="z",{}', "empty": ""}
    line = "x{%s,} 1" % ", ".join('%s="%s"' % (name, value.replace('"', '\\"')) for name, value in labels.items())
    assert parse(line)[0].labels == labels


def test_what_the_server_says_of_caching() -> None:
    assert reading(INFO % ("True", 16, "", "")).caching() is True
    assert reading(INFO % ("False", 16, "", "")).caching() is False
    assert reading("vllm:x 1").caching() is None
    assert reading(INFO % ("True", 16, "", "") + "\n" + INFO % ("False", 16, "", "")).caching() is None


def test_servers_are_summed_and_a_missing_counter_spoils_the_sum() -> None:
    one = reading("vllm:prefix_cache_hits_total 4\nvllm:kv_cache_usage_perc 0.1")
    assert merged([one, one]).get("prefix_hits") == 8 and merged([one, one]).get("kv_usage") == 0.1 and merged([one, one]).engine_count() == 1
    assert merged([one, reading("vllm:kv_cache_usage_perc 0.3")]).get("prefix_hits") is None


@pytest.mark.parametrize(("text", "word"), [
    ("", "no metric"), ("<html>", "no metric"), ("node_load1 0.5\n", "none of vLLM"), ("sglang:num_running_reqs 1\n", "none of vLLM")])
def test_another_kind_of_server_is_named(text: str, word: str) -> None:
    with serving(State(metrics=lambda state: text)) as url:
        found, trouble = metrics.read([endpoint(url)], Deadlines(1, 1, 1, 1))
    assert found is None and trouble is not None and word in trouble.text


def test_no_metrics_endpoint() -> None:
    with serving(State()) as url:
        found, trouble = metrics.read([endpoint(url + "/elsewhere")], Deadlines(1, 1, 1, 1))
    assert found is None and trouble is not None and trouble.kind == "status"


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    found = reading(text)
    assert found.block() is None or found.block() > 0  # type: ignore[operator]


@given(st.text(alphabet='vllm:prefix_cache_hits{}"=,\\ 0123456789eNaInf+-\n', max_size=120))
def test_any_text_of_its_own_letters_is_read(text: str) -> None:
    for sample in parse(text):
        assert sample.name and isinstance(sample.value, float)
