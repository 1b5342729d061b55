"""The words of torch.compile for small programs (`programs_texts.py`): those of eager torch, compiled for one shape."""

import torch
from programs_torch import *  # noqa: F403


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def value_and_grad(loss, w):
    gradient, value = torch.func.grad_and_value(loss)(w)
    return value, gradient


def loop(step, carry, rows):
    raise NotImplementedError("torch.compile unrolls loops")


def repeat(count, step, carry):
    raise NotImplementedError("torch.compile unrolls loops")


def repeat_while(wanted, step, carry):
    raise NotImplementedError("torch.compile unrolls loops")


def associative_scan(join, values):
    raise NotImplementedError("torch.compile unrolls loops")


def adamw(weights):
    raise NotImplementedError("torch's optimizer in place is that of eager torch")
