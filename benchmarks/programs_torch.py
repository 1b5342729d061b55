"""The words of eager torch for small programs (`programs_texts.py`)."""

import torch
from sweep_torch import *  # noqa: F403
from torch import (
    amax,
    amin,
    argmin,
    clip,
    conj,
    cos,
    floor,
    full_like,
    log,
    logsumexp,
    maximum,
    mean,
    ones_like,
    round,
    searchsorted,
    sigmoid,
    sin,
    zeros_like,
)  # fmt: skip
from torch.fft import irfft, rfft
from torch.func import vmap
from torch.linalg import det, inv, qr, solve
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map


def operand(values, dtype=None):
    made = torch.from_numpy(values.copy())
    return made if dtype is None else made.to(getattr(torch, dtype))


def plain(results):
    return [(x.float() if x.dtype == torch.bfloat16 else x).detach().numpy() for x in tree_leaves(results)]


def max(x, axis, keepdims=False):
    return amax(x, axis, keepdims)


def min(x, axis, keepdims=False):
    return amin(x, axis, keepdims)


def number(value):
    return torch.tensor(value)


def arange(count, like):
    return torch.arange(count, dtype=like.dtype)


def eye(count, like):
    return torch.eye(count, dtype=like.dtype)


def add_at(x, rows, values):
    return torch.index_add(x, 0, rows, values)


def take_axis(x, rows, axis):
    return torch.index_select(x, axis, rows)


def take_along(x, rows, axis):
    return torch.take_along_dim(x, rows, axis)


def write_at(x, values, place, axis):
    return torch.index_copy(x, axis, place.reshape(1).to(torch.int64), values)


def swap_last(x):
    return x.mT


def move(x, source, target):
    return torch.movedim(x, source, target)


def conv2d(x, w):
    return functional.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), padding=1).permute(0, 2, 3, 1)


def cholesky_solve(x, y):
    return torch.cholesky_solve(y, torch.linalg.cholesky(x))


def loop(step, carry, rows):
    outs = []
    for row in rows:
        carry, out = step(carry, row)
        outs.append(out)
    return carry, None if outs[0] is None else torch.stack(outs)


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
    return tuple(torch.stack(column) for column in zip(*outs, strict=True))


def value_and_grad(loss, w):
    with torch.enable_grad():
        w = [x.detach().requires_grad_() for x in w]
        value = loss(w)
        return value.detach(), torch.autograd.grad(value, w)


def grad(loss, w):
    return torch.func.grad(loss)(w)


def jacobian(function, x):
    return torch.func.jacrev(function)(x)


def hvp(loss, w, v):
    return torch.func.jvp(torch.func.grad(loss), (w,), (v,))[1]


def keys(seed, count):
    torch.manual_seed(seed)
    return range(count)


def normal(key, shape):
    return torch.randn(shape)


def uniform(key, shape):
    return torch.rand(shape)


def adamw(weights):
    weights = tree_map(lambda w: torch.nn.Parameter(w.clone()), weights)
    optimizer = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.1, fused=True)

    def run(gradients):
        for w, g in zip(weights, gradients, strict=True):
            w.grad = g
        optimizer.step()
        return weights

    return run
