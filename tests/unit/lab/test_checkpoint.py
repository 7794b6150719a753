# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import struct
from pathlib import Path

from tests.lab.image import checkpoint


def test_every_byte_has_its_own_character() -> None:
    table = checkpoint.byte_alphabet()
    assert len(set(table)) == 256
    assert table[ord("a")] == "a"
    assert table[ord(" ")] == "\u0120"
    assert not any(char.isspace() for char in table)


def test_weights_are_a_safetensors_file() -> None:
    data = checkpoint.weights()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    assert {name: tuple(entry["shape"]) for name, entry in header.items()} == checkpoint.shapes()
    end = 0
    for entry in header.values():
        size = 2
        for length_of in entry["shape"]:
            size *= length_of
        assert entry["data_offsets"] == [end, end + size]
        end += size
    assert 8 + length + end == len(data)
    assert (8 + length) % 8 == 0


def test_weights_are_the_same_each_time() -> None:
    assert checkpoint.weights() == checkpoint.weights()
    assert checkpoint.weights(4) != checkpoint.weights()


def test_the_model_can_be_split_over_two_and_four() -> None:
    assert checkpoint.VOCABULARY % 64 == 0
    assert 256 + len(checkpoint.SPECIAL_TOKENS) <= checkpoint.VOCABULARY
    assert checkpoint.HEADS % 4 == 0
    assert checkpoint.KV_HEADS % 2 == 0


def test_files_of_a_checkpoint(tmp_path: Path) -> None:
    checkpoint.write(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert {(tmp_path / name).is_file() for name in index["weight_map"].values()} == {True}
    ids = [
        token["id"]
        for token in json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    ]
    assert ids == list(range(256, 256 + len(checkpoint.SPECIAL_TOKENS)))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["vocab_size"] == checkpoint.shapes()["lm_head.weight"][0]
