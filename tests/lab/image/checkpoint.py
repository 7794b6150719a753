# SPDX-License-Identifier: GPL-3.0-or-later
"""A tiny checkpoint with random weights, written without any library: Llama-shaped, byte-level.

It loads and serves as a real model does and says nonsense, the same nonsense each time.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

HIDDEN = 128
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIM = HIDDEN // HEADS
INTERMEDIATE = 256
# The markers of K3's chat format come after the 256 bytes, so its parsers find their tokens.
SPECIAL_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|pad|>",
    "<|open|>",
    "<|sep|>",
    "<|close|>",
    "<|end_of_msg|>",
)
VOCABULARY = 320  # divisible by 64, so tensor parallelism splits it evenly

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|open|>{{ message['role'] }}<|sep|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "<|close|>{{ message['role'] }}<|sep|>{% endfor %}"
    "{% if add_generation_prompt %}<|open|>response<|sep|>{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level tokenizer (GPT-2's)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    table, spare = [], 0
    for byte in range(256):
        if byte in printable:
            table.append(chr(byte))
        else:
            table.append(chr(256 + spare))
            spare += 1
    return table


def tokenizer() -> dict[str, Any]:
    """tokenizer.json: one token a byte, no merges."""
    vocabulary = {char: number for number, char in enumerate(byte_alphabet())}
    added = [
        {
            "id": 256 + offset,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for offset, token in enumerate(SPECIAL_TOKENS)
    ]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def config() -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": VOCABULARY,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def shapes() -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        top = f"model.layers.{layer}"
        found |= {
            f"{top}.input_layernorm.weight": (HIDDEN,),
            f"{top}.post_attention_layernorm.weight": (HIDDEN,),
            f"{top}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{top}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{top}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{top}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{top}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{top}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{top}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    found |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}
    return found


def _bfloat16(value: float) -> bytes:
    """The two upper bytes of the float32, which is what bfloat16 is."""
    return struct.pack("<f", value)[2:]


def weights(seed: int = 3) -> bytes:
    """The content of model.safetensors, the same for the same seed."""
    source = random.Random(seed)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, shape in shapes().items():
        begin = len(data)
        if len(shape) == 1:
            data += _bfloat16(1.0) * shape[0]
        else:
            count = shape[0] * shape[1]
            data += b"".join(_bfloat16(source.gauss(0.0, 0.08)) for _ in range(count))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def write(folder: Path) -> None:
    """Write the whole checkpoint into folder, sharded and indexed as large ones are."""
    folder.mkdir(parents=True, exist_ok=True)
    shard = "model-00001-of-00001.safetensors"
    content = weights()
    index = {
        "metadata": {"total_size": len(content)},
        "weight_map": dict.fromkeys(shapes(), shard),
    }
    documents: dict[str, dict[str, Any]] = {
        "config.json": config(),
        "generation_config.json": {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
            "pad_token": "<|pad|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 131072,
            "chat_template": CHAT_TEMPLATE,
        },
        "model.safetensors.index.json": index,
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / shard).write_bytes(content)
