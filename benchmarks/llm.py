"""Tokens a second of mlx-lm's own loop, on a model of random weights quantized to 4 bits.

    weft bench llm [small|qwen3-0.6b ...] [--tokens n]           # Weft beside MLX, and where Weft's time goes
    weft run benchmarks/llm.py [small|qwen3-0.6b] [tokens] [float32|bfloat16|float16]    # on Weft alone
    python benchmarks/llm.py …                                   # on MLX alone

An MLX program that imports nothing of Weft. It prints the time to the first token behind prompts of 64 and 512, the
tokens a second with an evaluation for each token (`generate_step`) and with a compiled step over a cache of fixed size,
the CPU time of a token, and the peak of memory. With `--json` it prints them for `llm_peers.py`.
"""

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models import qwen3

SHAPES = {
    "small": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1536, "num_attention_heads": 8,
              "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 8192},
    "qwen3-0.6b": {"hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
}  # fmt: skip
PROMPT = [1, 2, 3, 4]
PREFILLS = (64, 512)
ROUNDS = 3
PATIENCE = 20.0
"""Seconds after which nothing is measured again."""


def build(name: str, dtype: str = "float32") -> qwen3.Model:
    """A model of random weights; its scales and biases, and all that is computed, are of this dtype."""
    mx.random.seed(0)
    model = qwen3.Model(
        qwen3.ModelArgs(
            model_type="qwen3", rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=4096,
            tie_word_embeddings=True, **SHAPES[name],
        )
    )  # fmt: skip
    model.set_dtype(getattr(mx, dtype))
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    return model


def packed_bytes(model: qwen3.Model) -> int:
    """Bytes of all weights, every one of which is read for a token."""
    return sum(value.nbytes for _, value in tree_flatten(model.parameters()))


def prefill(model: qwen3.Model, count: int) -> float:
    """Seconds to the first token behind a prompt of so many, in mlx-lm's loop, which asks for its logits alone."""
    start = time.perf_counter()
    steps = generate_step(mx.arange(count) % 1000, model, max_tokens=1)
    next(steps)
    seconds = time.perf_counter() - start
    steps.close()
    return seconds


def decode(model: qwen3.Model, count: int) -> tuple[list[int], float, float]:
    """mlx-lm's loop: the tokens, and the seconds and the CPU seconds of one, behind the first."""
    tokens, start, cpu = [], 0.0, 0.0
    for token, _ in generate_step(mx.array(PROMPT), model, max_tokens=count):
        tokens.append(int(token))
        if not start:
            start, cpu = time.perf_counter(), time.process_time()
    behind = len(tokens) - 1
    return tokens, (time.perf_counter() - start) / behind, (time.process_time() - cpu) / behind


class FixedCache:
    """Keys and values of one layer, with room for so many tokens: what changes from step to step are elements, not
    sizes, so that one trace of a compiled step serves all of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.state: list[mx.array] = []
        """Keys, values, and how many tokens there are."""

    @property
    def offset(self) -> mx.array:
        return self.state[2] if self.state else mx.array(0)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if not self.state:
            zeros = (mx.zeros((1, x.shape[1], self.size, x.shape[3]), x.dtype) for x in (keys, values))
            self.state = [*zeros, mx.array(0)]
        start = mx.reshape(self.offset, (1,))
        self.state[0] = mx.slice_update(self.state[0], keys, start, [2])
        self.state[1] = mx.slice_update(self.state[1], values, start, [2])
        self.state[2] = self.offset + keys.shape[2]
        return self.state[0], self.state[1]

    def make_mask(self, count: int, **_: object) -> mx.array:
        return mx.arange(self.size)[None] <= (self.offset + mx.arange(count))[:, None]


def decode_compiled(model: qwen3.Model, count: int) -> tuple[list[int], float, float]:
    """The same tokens by a compiled step, whose caches are its state."""
    caches = [FixedCache(256) for _ in model.layers]
    token = mx.argmax(model(mx.array([PROMPT]), cache=caches)[:, -1], axis=-1)
    state = [cache.state for cache in caches]
    mx.eval(token, state)

    def step(token: mx.array) -> mx.array:
        return mx.argmax(model(token[None], cache=caches)[:, -1], axis=-1)

    compiled = mx.compile(step, inputs=state, outputs=state)
    tokens, start, cpu = [int(token.item())], 0.0, 0.0
    for i in range(1, count):
        if i == count // 2:
            start, cpu = time.perf_counter(), time.process_time()
        token = compiled(token)
        tokens.append(int(token.item()))
    behind = count - count // 2
    return tokens, (time.perf_counter() - start) / behind, (time.process_time() - cpu) / behind


def forget_peak() -> None:
    """From here on, `peak` says what is in use at most: weights that are not quantized yet take far more."""
    mx.clear_cache()
    with contextlib.suppress(OSError):  # Linux alone has it
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """MiB of memory that the process has had at most."""
    return int(re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


def repeated(measure: Callable[[], Any]) -> list[Any]:
    """What is measured, several times over: the first of them may plan and generate code."""
    found, start = [], time.perf_counter()
    while len(found) < ROUNDS and (not found or time.perf_counter() - start < PATIENCE):
        found.append(measure())
    return found


def measured(name: str, count: int, dtype: str) -> dict[str, Any]:
    """All figures of a shape."""
    model = build(name, dtype)
    forget_peak()
    found: dict[str, Any] = {"bytes": packed_bytes(model)}
    found["prefill"] = [min(repeated(lambda length=length: prefill(model, length))) for length in PREFILLS]
    runs = repeated(lambda: decode(model, count))
    found |= {"tokens": runs[-1][0][:8], "token": min(run[1] for run in runs), "cpu": min(run[2] for run in runs)}
    runs = repeated(lambda: decode_compiled(model, min(count, 200)))
    found["compiled"] = min(run[1] for run in runs)
    found["peak"] = peak()
    return found


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--json"]
    name, count, dtype = [*words, *("small", "100", "float32")[len(words) :]]
    found = measured(name, int(count), dtype)
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    for length, seconds in zip(PREFILLS, found["prefill"], strict=True):
        print(f"{name}: prefill of {length} tokens {seconds * 1e3:.0f} ms")
    print(
        f"{name}: {1 / found['token']:.0f} tokens a second, {found['cpu'] * 1e3:.2f} ms of CPU time a token; "
        f"{1 / found['compiled']:.0f} with a compiled step; at most {found['peak']:.0f} MiB; "
        f"tokens {found['tokens']} …"
    )


if __name__ == "__main__":
    main()
