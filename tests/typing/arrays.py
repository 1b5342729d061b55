"""Arrays: arithmetic, methods, indexing, conversions, as a user types them."""

from __future__ import annotations

import numpy as np

import weft.core as mx


def operators(a: mx.array, b: mx.array) -> mx.array:
    c = a + b * 2 - 3.0 / b
    c = -c @ b.T
    c += 1
    return mx.where((a > 0) & (b <= 1) | ~(a == b), c, abs(b) ** 2 // 3 % 2)


def methods(a: mx.array) -> mx.array:
    b = a.reshape(-1, 2).transpose(1, 0).astype(mx.float16)
    total: mx.array = b.sum(axis=0, keepdims=True) + a.mean() + a.max() - a.min()
    flat = b.flatten().square().sqrt().exp().log()
    return (total + flat[0] + a.std() + a.var() + a.prod()).squeeze()


def indexing(a: mx.array) -> mx.array:
    a[0] = 1.0
    a[1:, ::2] = mx.zeros((1,))
    part = a[..., None, -1]
    chosen = a[mx.array([0, 1])]
    return part.at[0].add(chosen.sum()).at[1:].maximum(2)


def functions(a: mx.array) -> mx.array:
    x = mx.exp(a) + mx.sin(a) - mx.maximum(a, 0) + mx.add(a, 1)
    x = mx.concatenate([x, mx.stack([a, a])[0]], axis=-1)
    values, places = mx.sort(x), mx.argsort(x)
    low, high = mx.split(x, 2, axis=-1)
    return mx.softmax(mx.take_along_axis(values, places, axis=-1) + low.sum() * high.sum(), axis=-1)


def conversions(a: mx.array) -> tuple[float, list[float], np.ndarray, int, str]:
    shape: tuple[int, ...] = a.shape
    dtype: mx.Dtype = a.dtype
    return float(a.sum()), a.flatten().tolist(), np.array(a), len(shape) + a.ndim + a.size, f"{dtype}"


def rows(a: mx.array) -> list[mx.array]:
    return [row * 2 for row in a]


if __name__ == "__main__":
    x = mx.ones((2, 2))
    for result in (operators(x, x), methods(x), functions(x), *rows(x)):
        print(result)
    print(indexing(mx.ones((2, 2))), conversions(x))
