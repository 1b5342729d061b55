"""Tokens a second of mlx-lm's own loop, on a small model of random weights quantized to 4 bits.

    weft run benchmarks/llm.py [small|qwen3-0.6b] [tokens]      # on Weft
    python benchmarks/llm.py …                                  # on MLX

An MLX program that imports nothing of Weft. It prints the time of a prefill, the tokens a second with an evaluation for
each token (`generate_step`), and the CPU time of a token.
"""

import sys
import time

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generate_step
from mlx_lm.models import cache, qwen3

SHAPES = {
    "small": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1536, "num_attention_heads": 8,
              "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 8192},
    "qwen3-0.6b": {"hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
}  # fmt: skip


def build(name: str) -> qwen3.Model:
    mx.random.seed(0)
    model = qwen3.Model(
        qwen3.ModelArgs(
            model_type="qwen3", rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=4096,
            tie_word_embeddings=True, **SHAPES[name],
        )
    )  # fmt: skip
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    return model


def prefill(model: qwen3.Model, count: int, rounds: int) -> float:
    """Seconds of the fastest of several prefills of so many tokens."""
    found = []
    for _ in range(rounds):
        prompt = cache.make_prompt_cache(model)
        start = time.perf_counter()
        mx.eval(model(mx.arange(count)[None] % 1000, cache=prompt)[:, -1])
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "small"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    model = build(name)
    length = 64 if name == "small" else 512
    print(f"{name}: prefill of {length} tokens {prefill(model, length, 3) * 1e3:.0f} ms")
    best, least, tokens = 0.0, 1e9, []
    for _ in range(3):
        tokens, start, cpu = [], 0.0, 0.0
        for token, _ in generate_step(mx.array([1, 2, 3, 4]), model, max_tokens=count):
            tokens.append(int(token))
            if not start:
                start, cpu = time.perf_counter(), time.process_time()
        best = max(best, (len(tokens) - 1) / (time.perf_counter() - start))
        least = min(least, (time.process_time() - cpu) / (len(tokens) - 1))
    print(f"{name}: {best:.0f} tokens a second, {least * 1e3:.2f} ms of CPU time a token; tokens {tokens[:8]} …")


if __name__ == "__main__":
    main()
