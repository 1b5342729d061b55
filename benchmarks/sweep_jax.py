"""JAX's words for the sweep (`sweep_operations.py`)."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.numpy import (
    abs,
    argmax,
    argsort,
    broadcast_to,
    concatenate,
    cumsum,
    exp,
    log1p,
    max,
    partition,
    roll,
    sort,
    sqrt,
    stack,
    sum,
    tanh,
    transpose,
    var,
    where,
)  # fmt: skip

VERSION = jax.__version__


def start(threads):
    jax.config.update("jax_enable_x64", True)


def compiled(function):
    return jax.jit(function)


def called(function, arguments):
    return lambda: jax.block_until_ready(function(*arguments))


def operand(values, dtype):
    return cast(jnp.asarray(values), dtype)


def cast(x, dtype):
    return x.astype(getattr(jnp, dtype))


def to_other_float(x):
    return x.astype(jnp.float16 if x.dtype == jnp.float32 else jnp.float32)


def reversed(x):
    return x[..., ::-1]


def now(x):
    return x.block_until_ready()


def contiguous(x):
    return x


def pad(x):
    return jnp.pad(x, 1)


def add_to_rows(x, y, rows):
    return x.at[rows].add(y)


def take(x, rows):
    return jnp.take(x, rows, axis=0, mode="clip")


def gelu(x):
    return jax.nn.gelu(x, approximate=True)


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def topk(x, count):
    return lax.top_k(x, count)[0]


def value_and_grad(loss, w):
    return jax.value_and_grad(loss)(w)


def scan(step, h, rows):
    return lax.scan(lambda h, row: (step(h, row), None), h, rows)[0]
