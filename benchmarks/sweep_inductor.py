"""The words of torch.compile for the sweep (`sweep_operations.py`): those of eager torch, compiled for one shape."""

import torch
from sweep_torch import *  # noqa: F403


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def value_and_grad(loss, w):
    gradient, value = torch.func.grad_and_value(loss)(w)
    return value, gradient


def scan(step, h, rows):
    raise NotImplementedError("torch.compile unrolls loops")
