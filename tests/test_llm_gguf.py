"""GGUF files of `weft bench llm`, which llama.cpp gets: what is in them is what the model has."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx

CONFIG = SimpleNamespace(
    vocab_size=96, hidden_size=64, num_hidden_layers=2, intermediate_size=128, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-6, rope_theta=1e4,
)  # fmt: skip


@pytest.fixture(scope="module")
def gguf() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    try:
        import llm_gguf
    finally:
        sys.path.pop(0)
    return llm_gguf


def parameters() -> dict[str, np.ndarray]:
    """Those of a quantized Qwen3, by their names in mlx-lm."""
    c, found = CONFIG, {}
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    matrices = {"model.embed_tokens": (c.vocab_size, c.hidden_size)}
    vectors = {"model.norm": c.hidden_size}
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}"
        matrices |= {
            f"{at}.self_attn.q_proj": (queries, c.hidden_size), f"{at}.self_attn.k_proj": (keys, c.hidden_size),
            f"{at}.self_attn.v_proj": (keys, c.hidden_size), f"{at}.self_attn.o_proj": (c.hidden_size, queries),
            f"{at}.mlp.gate_proj": (c.intermediate_size, c.hidden_size),
            f"{at}.mlp.up_proj": (c.intermediate_size, c.hidden_size),
            f"{at}.mlp.down_proj": (c.hidden_size, c.intermediate_size),
        }  # fmt: skip
        vectors |= {f"{at}.input_layernorm": c.hidden_size, f"{at}.post_attention_layernorm": c.hidden_size}
        vectors |= {f"{at}.self_attn.q_norm": c.head_dim, f"{at}.self_attn.k_norm": c.head_dim}
    chance = np.random.default_rng(0)
    for name, (rows, width) in matrices.items():
        found[f"{name}.weight"] = chance.integers(1 << 32, size=(rows, width // 8), dtype=np.uint32)
        found[f"{name}.scales"] = chance.uniform(0.1, 0.2, (rows, width // 64)).astype(np.float32)
        found[f"{name}.biases"] = chance.uniform(-2, 0, (rows, width // 64)).astype(np.float32)
    return found | {f"{name}.weight": np.linspace(0.5, 1.5, n, dtype=np.float32) for name, n in vectors.items()}


RENAMED = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "blk.1.attn_q": "model.layers.1.self_attn.q_proj",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj", "blk.1.ffn_down": "model.layers.1.mlp.down_proj",
    "blk.0.attn_k_norm": "model.layers.0.self_attn.k_norm", "blk.1.ffn_norm": "model.layers.1.post_attention_layernorm",
}  # fmt: skip


def test_metadata_and_codes_are_read_back(gguf: ModuleType, tmp_path: Path) -> None:
    known, path = parameters(), tmp_path / "model.gguf"
    contents = [*gguf.tensors(known, "q4_1")]
    size = gguf.write(path, gguf.metadata(CONFIG), contents)
    arrays, about = mx.load(str(path), return_metadata=True)  # type: ignore[misc]

    assert (about["general.architecture"], about["tokenizer.ggml.model"]) == ("qwen3", "no_vocab")
    numbers = {
        "block_count": 2, "vocab_size": 96, "attention.head_count": 4, "attention.head_count_kv": 2,
        "attention.key_length": 32, "rope.freq_base": 1e4, "attention.layer_norm_rms_epsilon": np.float32(1e-6),
    }  # fmt: skip
    assert {key: about[f"qwen3.{key}"].item() for key in numbers} == numbers
    assert len(contents) == 2 + 11 * CONFIG.num_hidden_layers
    assert size == sum(tensor.nbytes for tensor in contents) <= path.stat().st_size
    for new, old in RENAMED.items():
        if f"{old}.scales" not in known:
            assert np.array_equal(np.array(arrays[f"{new}.weight"]), known[f"{old}.weight"])
            continue
        assert np.array_equal(np.array(arrays[f"{new}.weight"]), known[f"{old}.weight"])  # the same codes
        for kind in ("scales", "biases"):
            twice = np.repeat(known[f"{old}.{kind}"], 2, axis=1).astype(np.float16)
            assert np.array_equal(np.array(arrays[f"{new}.{kind}"]), twice)


def test_rounded_again_weights_are_near(gguf: ModuleType, tmp_path: Path) -> None:
    known, path = parameters(), tmp_path / "model.gguf"
    gguf.write(path, gguf.metadata(CONFIG), [*gguf.tensors(known, "q4_0")])
    arrays = mx.load(str(path))
    name = "model.layers.1.mlp.gate_proj"
    before = mx.dequantize(*[mx.array(known[f"{name}.{kind}"]) for kind in ("weight", "scales", "biases")])
    after = mx.dequantize(
        *[arrays[f"blk.1.ffn_gate.{kind}"] for kind in ("weight", "scales", "biases")], group_size=32, bits=4
    )
    scale = np.abs(np.array(before)).reshape(-1, 32).max(axis=1, keepdims=True) / 8
    apart = np.abs(np.array(after, dtype=np.float32) - np.array(before)).reshape(-1, 32)
    assert (apart <= scale * 1.01).all()


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=32, max_size=32), st.integers(-12, 0))
@settings(max_examples=100, deadline=None)
def test_a_block_is_at_most_a_step_from_its_numbers(gguf: ModuleType, numbers: list[float], scale: int) -> None:
    values = np.array([numbers], np.float32) * np.float32(2.0**scale)
    (block,) = gguf.q4_0(values)
    step = np.float64(block[:2].view("<f2")[0])
    codes = np.concatenate([block[2:] & 15, block[2:] >> 4]).astype(np.float64)
    largest = float(np.abs(values).max())
    # A scale is rounded to 11 bits, or to the smallest number of 16 bits; up to 8 of them are summed up.
    rounding = 8 * max(largest / 8 * 2.0**-11, 2.0**-25)
    assert np.abs((codes - 8) * step - values).max() <= largest / 8 * (1 + 1e-5) + rounding


def test_rows_that_are_no_blocks_are_refused(gguf: ModuleType) -> None:
    words = np.zeros((4, 5), np.uint32)
    known = {"lm_head.weight": words, "lm_head.scales": np.zeros((4, 1)), "lm_head.biases": np.zeros((4, 1))}
    with pytest.raises(ValueError, match="rows of 40 weights; a multiple of 32 is needed"):
        [*gguf.tensors(known, "q4_0")]
