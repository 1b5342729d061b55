"""Weft's words for the sweep (`sweep_operations.py`)."""

import math

import weft.core as mx
from weft.core import (
    abs,
    argmax,
    argsort,
    broadcast_to,
    concatenate,
    contiguous,
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
    topk,
    transpose,
    var,
    where,
)  # fmt: skip
from weft.version import __version__

VERSION = __version__


def start(threads):
    """The environment says how many threads there are."""


def compiled(function):
    return mx.compile(function)


def called(function, arguments):
    return lambda: mx.eval(function(*arguments))


def operand(values, dtype):
    made = mx.array(values, dtype_named(dtype))
    mx.eval(made)
    return made


def dtype_named(name):
    return mx.bool_ if name == "bool" else getattr(mx, name)


def cast(x, dtype):
    return x.astype(dtype_named(dtype))


def to_other_float(x):
    return x.astype(mx.float16 if x.dtype == mx.float32 else mx.float32)


def reversed(x):
    return x[..., ::-1]


def now(x):
    mx.eval(x)
    return x


def pad(x):
    return mx.pad(x, 1)


def add_to_rows(x, y, rows):
    return x.at[rows].add(y)


def take(x, rows):
    return mx.take(x, rows, axis=0)


def gelu(x):
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def softmax(x):
    return mx.softmax(x, axis=-1)


def layer_norm(x, weight, bias):
    return mx.fast.layer_norm(x, weight, bias, 1e-5)


def value_and_grad(loss, w):
    return mx.value_and_grad(loss)(w)


def scan(step, h, rows):
    return mx.scan(lambda h, row: (step(h, row), None), h, rows)[0]
