"""The words of eager torch for the sweep (`sweep_operations.py`)."""

import torch
from torch import abs, argmax, argsort, broadcast_to, concatenate, cumsum, exp, log1p, sqrt, stack, sum, tanh, where
from torch.nn import functional

VERSION = torch.__version__


def start(threads):
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)


def compiled(function):
    return function


def called(function, arguments):
    return lambda: function(*arguments)


def operand(values, dtype):
    return cast(torch.from_numpy(values), dtype)


def cast(x, dtype):
    return x.to(getattr(torch, dtype))


def to_other_float(x):
    return x.to(torch.float16 if x.dtype == torch.float32 else torch.float32)


def transpose(x):
    return x.permute(tuple(range(x.ndim - 1, -1, -1)))  # a range that is unpacked is not what Dynamo makes of it


def reversed(x):
    return x.flip(-1)


def now(x):
    return x


def contiguous(x):
    return x.contiguous()


def pad(x):
    return functional.pad(x, [1] * (2 * x.ndim))


def roll(x, shift, axis):
    return torch.roll(x, shift, axis)


def partition(x, rank):
    raise NotImplementedError("torch has no partition")


def add_to_rows(x, y, rows):
    return torch.index_add(x, 0, rows, y)


def take(x, rows):
    return torch.index_select(x, 0, rows)


def max(x, axis):
    return torch.amax(x, axis)


def var(x, axis):
    return torch.var(x, axis, correction=0)


def sort(x):
    return torch.sort(x)[0]


def topk(x, count):
    return torch.topk(x, count)[0]


def gelu(x):
    return functional.gelu(x, approximate="tanh")


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, weight, bias):
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def value_and_grad(loss, w):
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        value = loss(w)
        return value.detach(), torch.autograd.grad(value, w)[0]


def scan(step, h, rows):
    for row in rows:
        h = step(h, row)
    return h
