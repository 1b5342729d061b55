"""A model of `llm.py` as a GGUF file, for llama.cpp: the same shapes, and the same weights as near as its blocks allow.

    weft run benchmarks/llm_gguf.py [small|qwen3-0.6b] model.gguf [q4_0|q4_1] [float32|bfloat16|float16]

Weights of the model are codes of 4 bits with a scale and a bias for each 64 of them: 5 bits a weight if those are
float32, 4.5 if they are 16 bits long. `q4_1` has a scale and a minimum of 16 bits for each 32, also 5 bits, and so the
same codes. `q4_0`, which llama.cpp has its fastest kernels for, has one scale of 16 bits for each 32, 4.5 bits a
weight: weights are rounded again. What has one axis stays float32. There is no vocabulary but its size.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Value = str | int | float
ALIGNMENT = 32
BLOCK = 32
"""Weights of a block."""
ROWS = 8192
"""Rows of a matrix that are rounded at a time: as float32 they take far more room than the model has."""
FLOAT32, Q4_0, Q4_1 = 0, 2, 3
FORMATS = {"q4_0": (Q4_0, 18), "q4_1": (Q4_1, 20)}
"""By name: the type's number, and the bytes of a block."""

_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


class Tensor(NamedTuple):
    """What a file says of a tensor, and how its bytes are made, a part at a time."""

    name: str
    shape: tuple[int, ...]
    type: int
    nbytes: int
    parts: Callable[[], Iterator[np.ndarray]]


# ---- what is written ----


def metadata(config: Any) -> dict[str, Value]:
    """What llama.cpp wants to know of a Qwen3, from mlx-lm's configuration of it."""
    about = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(config.rope_theta),
    }
    general: dict[str, Value] = {"general.architecture": "qwen3", "tokenizer.ggml.model": "no_vocab"}
    return general | {f"qwen3.{key}": value for key, value in about.items()}


def tensors(parameters: Mapping[str, np.ndarray], blocks: str) -> Iterator[Tensor]:
    """The tensors of a model, from its parameters by their names in mlx-lm."""
    number, nbytes = FORMATS[blocks]
    for path, values in parameters.items():
        owner, _, kind = path.rpartition(".")
        if kind != "weight":  # the scales and biases of one
            continue
        name = f"{_renamed(owner)}.weight"
        if f"{owner}.scales" not in parameters:
            plain = np.asarray(values, np.float32)
            yield Tensor(name, plain.shape, FLOAT32, plain.nbytes, lambda plain=plain: iter([plain]))  # type: ignore[misc]
            continue
        packed = (values, parameters[f"{owner}.scales"], parameters[f"{owner}.biases"])
        shape = (values.shape[0], values.shape[1] * 8)
        if shape[1] % BLOCK:
            raise ValueError(f"[llm_gguf] {path} has rows of {shape[1]} weights; a multiple of {BLOCK} is needed.")
        size = shape[0] * shape[1] // BLOCK * nbytes
        yield Tensor(name, shape, number, size, lambda packed=packed: _blocks(*packed, blocks))  # type: ignore[misc]


def _renamed(owner: str) -> str:
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", owner)
    return f"blk.{layer[1]}.{_NAMES[layer[2]]}" if layer else _NAMES[owner]


def _blocks(words: np.ndarray, scales: np.ndarray, biases: np.ndarray, blocks: str) -> Iterator[np.ndarray]:
    """The blocks of a matrix of codes, some rows at a time."""
    for start in range(0, len(words), ROWS):
        chosen = slice(start, start + ROWS)
        codes = _codes(words[chosen])
        each = codes.shape[1] // scales.shape[1] // BLOCK  # blocks of a group
        scale, bias = (np.repeat(np.asarray(x[chosen], np.float32), each, axis=1) for x in (scales, biases))
        codes = codes.reshape(-1, BLOCK)
        if blocks == "q4_1":
            yield q4_1(codes, scale.reshape(-1), bias.reshape(-1))
        else:
            yield q4_0(codes * scale.reshape(-1, 1) + bias.reshape(-1, 1))


def _codes(words: np.ndarray) -> np.ndarray:
    """Codes of 4 bits, eight of them in a word, the first in its lowest bits."""
    octets = np.ascontiguousarray(words, "<u4").view(np.uint8)
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(words), -1)


def q4_1(codes: np.ndarray, scales: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Blocks of codes that stand for `code * scale + least`."""
    found = np.empty((len(codes), 20), np.uint8)
    found[:, 0:2] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
    found[:, 2:4] = least.astype("<f2").view(np.uint8).reshape(-1, 2)
    found[:, 4:] = codes[:, :16] | codes[:, 16:] << 4
    return found


def q4_0(values: np.ndarray) -> np.ndarray:
    """Blocks of numbers rounded to `(code - 8) * scale`: the largest of a block by magnitude becomes code 0."""
    found = np.empty((len(values), 18), np.uint8)
    at = np.abs(values).argmax(axis=1)
    scales = (np.take_along_axis(values, at[:, None], axis=1) / -8)[:, 0]
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    codes = np.minimum(values * inverse[:, None] + 8.5, 15).astype(np.uint8)
    found[:, 0:2] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
    found[:, 2:] = codes[:, :16] | codes[:, 16:] << 4
    return found


# ---- the file ----


def write(path: Path, about: Mapping[str, Value], contents: list[Tensor]) -> int:
    """Write a GGUF file; how many bytes of it are tensors."""
    head, at = [b"GGUF", struct.pack("<IQQ", 3, len(contents), len(about))], 0
    for key, value in about.items():
        head += [_text(key), _value(value)]
    for tensor in contents:
        sizes = tensor.shape[::-1]
        head += [_text(tensor.name), struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)]
        head.append(struct.pack("<IQ", tensor.type, at))
        at += tensor.nbytes + -tensor.nbytes % ALIGNMENT
    start = b"".join(head)
    with path.open("wb") as out:
        out.write(start + bytes(-len(start) % ALIGNMENT))
        for tensor in contents:
            for part in tensor.parts():
                out.write(part.tobytes())
            out.write(bytes(-tensor.nbytes % ALIGNMENT))
    return sum(tensor.nbytes for tensor in contents)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def main() -> None:
    import llm  # imports mlx-lm, which the rest of this module does without
    import mlx.core as mx
    from mlx.utils import tree_flatten

    shape, path, blocks, dtype = [*sys.argv[1:], *("q4_0", "float32")[len(sys.argv) - 3 :]]
    model = llm.build(shape, dtype)
    parameters = {
        name: np.array(value if value.dtype == mx.uint32 else value.astype(mx.float32))
        for name, value in tree_flatten(model.parameters())
    }
    print(write(Path(path), metadata(model.args), list(tensors(parameters, blocks))))


if __name__ == "__main__":
    main()
