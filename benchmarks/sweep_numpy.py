"""NumPy's words for the sweep (`sweep_operations.py`)."""

import math

import numpy as np
from numpy import (
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

VERSION = np.__version__


def start(threads):
    """NumPy's own loops have one thread; its products have what the environment says."""


def compiled(function):
    return function


def called(function, arguments):
    return lambda: function(*arguments)


def operand(values, dtype):
    return cast(values, dtype)


def cast(x, dtype):
    if dtype == "bfloat16":
        raise NotImplementedError("NumPy has no bfloat16")
    return x.astype(dtype)


def to_other_float(x):
    return x.astype(np.float16 if x.dtype == np.float32 else np.float32)


def reversed(x):
    return x[..., ::-1]


def now(x):
    return x


def contiguous(x):
    return np.array(x, order="C")


def pad(x):
    return np.pad(x, 1)


def add_to_rows(x, y, rows):
    result = x.copy()
    np.add.at(result, rows, y)
    return result


def take(x, rows):
    return np.take(x, rows, axis=0)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def topk(x, count):
    return np.sort(np.partition(x, x.shape[-1] - count, axis=-1)[..., -count:])


def scan(step, h, rows):
    for row in rows:
        h = step(h, row)
    return h


def value_and_grad(loss, w):
    raise NotImplementedError("NumPy has no gradients")
