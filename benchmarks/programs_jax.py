"""JAX's words for small programs (`programs_texts.py`)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, vmap
from jax.nn import logsumexp, sigmoid
from jax.numpy import (
    argmin,
    clip,
    conj,
    cos,
    floor,
    full_like,
    log,
    maximum,
    mean,
    min,
    ones_like,
    round,
    searchsorted,
    sin,
    zeros_like,
)  # fmt: skip
from jax.numpy.fft import irfft, rfft
from jax.numpy.linalg import det, inv, qr, solve
from sweep_jax import *  # noqa: F403


def start(threads):
    """Numbers of 32 bits, as JAX has them by itself."""


def operand(values, dtype=None):
    return jnp.asarray(values) if dtype is None else jnp.asarray(values).astype(getattr(jnp, dtype))


def plain(results):
    return [np.asarray(x, np.float32 if x.dtype == jnp.bfloat16 else None) for x in jax.tree.leaves(results)]


def number(value):
    return jnp.asarray(value)


def arange(count, like):
    return jnp.arange(count, dtype=like.dtype)


def eye(count, like):
    return jnp.eye(count, dtype=like.dtype)


def add_at(x, rows, values):
    return x.at[rows].add(values)


def take_axis(x, rows, axis):
    return jnp.take(x, rows, axis=axis, mode="clip")


def take_along(x, rows, axis):
    return jnp.take_along_axis(x, rows, axis)


def write_at(x, values, place, axis):
    return lax.dynamic_update_slice_in_dim(x, values, place, axis)


def swap_last(x):
    return jnp.swapaxes(x, -1, -2)


def move(x, source, target):
    return jnp.moveaxis(x, source, target)


def conv2d(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "OHWI", "NHWC"))


def cholesky_solve(x, y):
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(x), True), y)


def loop(step, carry, rows):
    return lax.scan(step, carry, rows)


def repeat(count, step, carry):
    return lax.fori_loop(0, count, lambda i, x: step(x), carry)


def repeat_while(wanted, step, carry):
    return lax.while_loop(wanted, step, carry)


def associative_scan(join, values):
    return lax.associative_scan(join, values)


def grad(loss, w):
    return jax.grad(loss)(w)


def jacobian(function, x):
    return jax.jacrev(function)(x)


def hvp(loss, w, v):
    return jax.jvp(jax.grad(loss), (w,), (v,))[1]


def keys(seed, count):
    return jax.random.split(jax.random.key(seed), count)


def normal(key, shape):
    return jax.random.normal(key, shape)


def uniform(key, shape):
    return jax.random.uniform(key, shape)


def adamw(weights):
    state = [[jnp.array(w) for w in weights], [zeros_like(w) for w in weights], [zeros_like(w) for w in weights]]

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, gradients):
        weights, means, squares = state
        means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients, strict=True)]
        squares = [0.999 * v + 0.001 * (g * g) for v, g in zip(squares, gradients, strict=True)]
        changed = zip(weights, means, squares, strict=True)
        return [[w * 0.9999 - 0.001 * m / (jnp.sqrt(v) + 1e-8) for w, m, v in changed], means, squares]

    def run(gradients):
        state[:] = step(state, gradients)
        return state[0]

    return run
