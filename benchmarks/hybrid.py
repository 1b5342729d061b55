"""One decode step of a hybrid model: gated-delta recurrences as a custom kernel, experts by `gather_qmm`, and attention
with a cache that grows by a row at each step. The step is compiled once with `shapeless=True` and used for all lengths.

    python benchmarks/hybrid.py             # host time for each step, traces, and equality with the plain function

The arrays are small, so what a step takes is Python, looking up and filling in plans, and starting kernels.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np

import weft.core as mx

LAYERS, ATTENTION_EVERY = 24, 4
HIDDEN, HEADS, KEY, VALUE = 64, 2, 32, 32
EXPERTS, CHOSEN, INNER = 4, 2, 64

GATED_DELTA = """
    auto n = thread_position_in_grid.z;
    auto dk = thread_position_in_threadgroup.x;
    auto dv = thread_position_in_grid.y;
    constexpr int per_thread = Dk / 32;
    auto q_ = q + n * Dk;
    auto k_ = k + n * Dk;
    auto from = state_in + (n * Dv + dv) * Dk;
    auto to = state_out + (n * Dv + dv) * Dk;
    float state[per_thread];
    float memory = 0.0f;
    for (int i = 0; i < per_thread; ++i) {
        state[i] = static_cast<float>(from[per_thread * dk + i]) * g[n];
        memory += state[i] * k_[per_thread * dk + i];
    }
    memory = simd_sum(memory);
    float delta = (v[n * Dv + dv] - memory) * beta[n];
    float total = 0.0f;
    for (int i = 0; i < per_thread; ++i) {
        state[i] += k_[per_thread * dk + i] * delta;
        total += state[i] * q_[per_thread * dk + i];
        to[per_thread * dk + i] = state[i];
    }
    total = simd_sum(total);
    if (thread_index_in_simdgroup == 0) {
        y[n * Dv + dv] = total;
    }
"""
gated_delta = mx.fast.metal_kernel(
    "gated_delta_step", ["q", "k", "v", "g", "beta", "state_in"], ["y", "state_out"], GATED_DELTA
)

Layer = dict[str, Any]


def weights(seed: int) -> list[Layer]:
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> mx.array:
        return mx.array((rng.normal(size=shape) / math.sqrt(shape[-1])).astype(np.float32))

    layers: list[Layer] = []
    for number in range(LAYERS):
        layer: Layer = {"out": matrix(HIDDEN, HEADS * VALUE)}
        layer["mix"] = matrix(HEADS * (2 * KEY + VALUE) + 2 * HEADS, HIDDEN)
        layer["attends"] = number % ATTENTION_EVERY == ATTENTION_EVERY - 1
        layer["router"] = matrix(EXPERTS, HIDDEN)
        layer["up"] = mx.quantize(matrix(EXPERTS, INNER, HIDDEN), group_size=32, bits=4)
        layer["down"] = mx.quantize(matrix(EXPERTS, HIDDEN, INNER), group_size=32, bits=4)
        layers.append(layer)
    return layers


def norm(x: mx.array) -> mx.array:
    return mx.fast.rms_norm(x, None, 1e-5)


def experts(layer: Layer, x: mx.array) -> mx.array:
    scores = mx.softmax(x @ layer["router"].T, axis=-1)
    chosen = mx.argpartition(-scores, CHOSEN - 1, axis=-1)[..., :CHOSEN]
    each = mx.expand_dims(x, (-2, -3))
    options = {"rhs_indices": chosen, "transpose": True, "group_size": 32, "bits": 4}
    inner = mx.gather_qmm(each, *layer["up"], **options)
    outer = mx.gather_qmm(inner * mx.sigmoid(inner), *layer["down"], **options)
    share = mx.take_along_axis(scores, chosen, axis=-1)
    return (outer[..., 0, :] * share[..., None]).sum(-2)


def recurrence(q: mx.array, k: mx.array, v: mx.array, gates: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    batch = q.shape[0]
    g, beta = mx.sigmoid(gates[..., 0]), mx.sigmoid(gates[..., 1])
    y, after = gated_delta(
        inputs=[norm(q), norm(k) * KEY**-0.5, v, g, beta, state],
        template=[("Dk", KEY), ("Dv", VALUE)],
        grid=(32, VALUE, batch * HEADS),
        threadgroup=(32, 4, 1),
        output_shapes=[(batch, HEADS, VALUE), (batch, HEADS, VALUE, KEY)],
        output_dtypes=[mx.float32, mx.float32],
    )
    return y, after


def step(layers: list[Layer], x: mx.array, held: list[Any]) -> tuple[mx.array, list[Any]]:
    """x is (batch, HIDDEN); what is held is a state, or the keys and values so far."""
    batch, after = x.shape[0], []
    for layer, before in zip(layers, held, strict=True):
        parts = norm(x) @ layer["mix"].T
        q, k, v, gates = mx.split(parts, [HEADS * KEY, 2 * HEADS * KEY, HEADS * (2 * KEY + VALUE)], axis=-1)
        q, k = q.reshape(batch, HEADS, KEY), k.reshape(batch, HEADS, KEY)
        v, gates = v.reshape(batch, HEADS, VALUE), gates.reshape(batch, HEADS, 2)
        if layer["attends"]:
            keys = mx.concatenate([before[0], k[:, :, None]], axis=2)
            held_values = mx.concatenate([before[1], v[:, :, None]], axis=2)
            y = mx.fast.scaled_dot_product_attention(q[:, :, None], keys, held_values, scale=KEY**-0.5)[:, :, 0]
            after.append([keys, held_values])
        else:
            y, state = recurrence(q, k, v, gates, before)
            after.append(state)
        x = x + y.reshape(batch, HEADS * VALUE) @ layer["out"].T
        x = x + experts(layer, norm(x))
    return x, after


def beginning(layers: list[Layer], batch: int, length: int) -> list[Any]:
    def zeros(*shape: int) -> mx.array:
        return mx.random.normal(shape) * 0.1

    return [
        [zeros(batch, HEADS, length, KEY), zeros(batch, HEADS, length, VALUE)]
        if layer["attends"]
        else zeros(batch, HEADS, VALUE, KEY)
        for layer in layers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    mx.random.seed(0)
    layers = weights(0)

    def decode(x: mx.array, held: list[Any]) -> tuple[mx.array, list[Any]]:
        return step(layers, x, held)

    compiled = mx.compile(decode, shapeless=True)
    print(f"{LAYERS} layers; ms of CPU time for each step, best and median of {options.steps}")
    print(f"{'batch':>5}{'best':>9}{'median':>9}{'traces':>8}{'first':>9}  equal to plain")
    for batch in (2, 4, 8, 1):
        held, x = beginning(layers, batch, 5), mx.random.normal((batch, HIDDEN))
        mx.eval(held, x)
        before, times = compiled.traces, []
        equal = True
        for number in range(options.steps):
            start = time.process_time()
            y, after = compiled(x, held)
            mx.eval(y, after)
            times.append(time.process_time() - start)
            if number % 10 == 0:
                plain, _ = step(layers, x, held)
                equal = equal and bool(mx.array_equal(plain, y))
            x, held = y, after
        later = sorted(times[3:])
        print(
            f"{batch:5}{later[0] * 1e3:9.2f}{later[len(later) // 2] * 1e3:9.2f}{compiled.traces - before:8}"
            f"{times[0] * 1e3:9.1f}  {equal}"
        )


if __name__ == "__main__":
    main()
