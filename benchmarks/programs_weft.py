"""Weft's words for small programs (`programs_texts.py`)."""

import numpy as np
from sweep_weft import *  # noqa: F403
from sweep_weft import dtype_named

import weft.core as mx
from weft.core import (
    argmin,
    associative_scan,
    clip,
    conj,
    cos,
    floor,
    full_like,
    log,
    logsumexp,
    maximum,
    mean,
    min,
    ones_like,
    round,
    searchsorted,
    sigmoid,
    sin,
    vmap,
    zeros_like,
)  # fmt: skip
from weft.core.fft import irfft, rfft
from weft.core.linalg import det, inv, qr, solve
from weft.utils import tree_flatten


def operand(values, dtype=None):
    made = mx.array(values, None if dtype is None else dtype_named(dtype))
    mx.eval(made)
    return made


def plain(results):
    return [np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x) for _, x in tree_flatten(results)]


def number(value):
    return mx.array(value)


def arange(count, like):
    return mx.arange(count, dtype=like.dtype)


def eye(count, like):
    return mx.eye(count, dtype=like.dtype)


def add_at(x, rows, values):
    return x.at[rows].add(values)


def take_axis(x, rows, axis):
    return mx.take(x, rows, axis=axis)


def take_along(x, rows, axis):
    return mx.take_along_axis(x, rows, axis)


def write_at(x, values, place, axis):
    return mx.slice_update(x, values, place.reshape(1), (axis,))


def swap_last(x):
    return mx.swapaxes(x, -1, -2)


def move(x, source, target):
    return mx.moveaxis(x, source, target)


def conv2d(x, w):
    return mx.conv2d(x, w, padding=1)


def cholesky_solve(x, y):
    triangle = mx.linalg.cholesky(x)
    half = mx.linalg.solve_triangular(triangle, y)
    return mx.linalg.solve_triangular(swap_last(triangle), half, upper=True)


def loop(step, carry, rows):
    return mx.scan(step, carry, rows)


def repeat(count, step, carry):
    return mx.fori_loop(0, count, lambda i, x: step(x), carry)


def repeat_while(wanted, step, carry):
    return mx.while_loop(wanted, step, carry)


def grad(loss, w):
    return mx.grad(loss)(w)


def jacobian(function, x):
    return mx.jacrev(function)(x)


def hvp(loss, w, v):
    return mx.hvp(lambda *w: loss(list(w)), w, v)[1]


def keys(seed, count):
    return mx.random.split(mx.random.key(seed), count)


def normal(key, shape):
    return mx.random.normal(shape, key=key)


def uniform(key, shape):
    return mx.random.uniform(shape=shape, key=key)


def adamw(weights):
    """AdamW as a model's training step has it: weights and state are captured, and updated in place."""
    state = {
        "weights": list(weights),
        "means": [mx.zeros_like(w) for w in weights],
        "squares": [mx.zeros_like(w) for w in weights],
    }
    mx.eval(state)

    def step(gradients):
        means = [0.9 * m + 0.1 * g for m, g in zip(state["means"], gradients, strict=True)]
        squares = [0.999 * v + 0.001 * (g * g) for v, g in zip(state["squares"], gradients, strict=True)]
        changed = zip(state["weights"], means, squares, strict=True)
        state["weights"] = [w * 0.9999 - 0.001 * m / (mx.sqrt(v) + 1e-8) for w, m, v in changed]
        state["means"], state["squares"] = means, squares

    compiled = mx.compile(step, inputs=state, outputs=state)

    def run(gradients):
        compiled(gradients)
        return state["weights"]

    return run
