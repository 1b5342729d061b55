"""A program for MLX and mlx-lm, unchanged: a small Qwen3 of random weights, quantized to 4 bits, writes some tokens.

    pip install mlx-lm
    weft run examples/mlx_lm_tokens.py

It imports MLX and nothing of Weft; where MLX is installed, `python examples/mlx_lm_tokens.py` runs it there.
"""

import time

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generate_step
from mlx_lm.models import qwen3

mx.random.seed(0)
model = qwen3.Model(
    qwen3.ModelArgs(
        model_type="qwen3", hidden_size=256, num_hidden_layers=4, intermediate_size=512, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, vocab_size=1024, rms_norm_eps=1e-6, rope_theta=1e4,
        max_position_embeddings=2048, tie_word_embeddings=True,
    )
)  # fmt: skip
nn.quantize(model, group_size=64, bits=4)
mx.eval(model.parameters())

tokens, start = [], 0.0
for token, _ in generate_step(mx.array([1, 2, 3, 4]), model, max_tokens=32):
    tokens.append(int(token))
    start = start or time.perf_counter()
print("tokens:", *tokens)
print(f"{(len(tokens) - 1) / (time.perf_counter() - start):.0f} tokens a second after the first")
