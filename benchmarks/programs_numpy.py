"""NumPy's words for small programs (`programs_texts.py`), in float64: what all peers' results are compared with."""

import numpy as np
from numpy import (
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
from numpy.fft import irfft, rfft
from numpy.linalg import det, inv, qr, solve
from sweep_numpy import *  # noqa: F403


def operand(values, dtype=None):
    return values.astype(np.float64) if values.dtype == np.float32 else values


def cast(x, dtype):
    return np.asarray(x).astype(np.float64 if dtype == "float32" else dtype)


def plain(results):
    if isinstance(results, (list, tuple)):
        return [leaf for each in results for leaf in plain(each)]
    return [np.asarray(results)]


def number(value):
    return value


def arange(count, like):
    return np.arange(count, dtype=like.dtype)


def eye(count, like):
    return np.eye(count)


def logsumexp(x, axis):
    largest = np.max(x, axis=axis, keepdims=True)
    return np.log(np.sum(np.exp(x - largest), axis=axis)) + np.squeeze(largest, axis)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def add_at(x, rows, values):
    result = x.copy()
    np.add.at(result, rows, values)
    return result


def take_axis(x, rows, axis):
    return np.take(x, rows, axis=axis)


def take_along(x, rows, axis):
    return np.take_along_axis(x, rows, axis)


def write_at(x, values, place, axis):
    x = x.copy()
    np.moveaxis(x, axis, 0)[int(place) : int(place) + values.shape[axis]] = np.moveaxis(values, axis, 0)
    return x


def swap_last(x):
    return np.swapaxes(x, -1, -2)


def move(x, source, target):
    return np.moveaxis(x, source, target)


def conv2d(x, w):
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    parts = [around[:, i : i + height, j : j + width] @ w[:, i, j].T for i in range(3) for j in range(3)]
    return np.sum(parts, axis=0)


def cholesky_solve(x, y):
    return np.linalg.solve(x, y)


def topk(x, count):
    return np.sort(x, axis=-1)[..., -count:]


def loop(step, carry, rows):
    outs = []
    for row in rows:
        carry, out = step(carry, row)
        outs.append(out)
    return carry, None if outs[0] is None else np.stack(outs)


def repeat(count, step, carry):
    for _ in range(count):
        carry = step(carry)
    return carry


def repeat_while(wanted, step, carry):
    while wanted(carry):
        carry = step(carry)
    return carry


def associative_scan(join, values):
    outs = [tuple(x[0] for x in values)]
    for i in range(1, len(values[0])):
        outs.append(join(outs[-1], tuple(x[i] for x in values)))
    return tuple(np.stack(column) for column in zip(*outs, strict=True))


def vmap(function):
    return lambda *rows: np.stack([function(*row) for row in zip(*rows, strict=True)])


def _missing(*arguments):
    raise NotImplementedError("NumPy has no derivatives, keys of random numbers or state of optimizers")


value_and_grad = grad = jacobian = hvp = keys = normal = uniform = adamw = _missing
