"""Functions of models: gradients with respect to a module's parameters, checkpoints, averages over processes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.nn.layers.base import Module
from weft.utils import tree_flatten, tree_map, tree_reduce, tree_unflatten


class _Borrowed:
    """While open, a module has other arrays for its trainable parameters; afterwards its own again, unless the function
    has put new ones there itself."""

    def __init__(self, module: Module, parameters: dict[str, Any]) -> None:
        self.module, self.given = module, parameters
        self.own = module.trainable_parameters()

    def __enter__(self) -> None:
        self.module.update(self.given)

    def __exit__(self, *error: object) -> None:
        _give_back(self.module, self.own, self.given)


def _give_back(target: Any, own: Any, given: Any) -> None:
    keys = own if isinstance(own, dict) else range(len(own))
    for key in keys:
        if isinstance(own[key], (dict, list)):
            _give_back(target[key], own[key], given[key])
        elif target[key] is given[key]:
            target[key] = own[key]


def value_and_grad(model: Module, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function like `fn` that gives its value, and the gradient with respect to the trainable parameters of a model
    that it uses.

    >>> model = nn.Linear(2, 1)
    >>> value, gradient = nn.value_and_grad(model, lambda x: model(x).sum())(mx.ones((3, 2)))
    >>> gradient["weight"], gradient["bias"]
    (array([[3, 3]], dtype=float32), array([3], dtype=float32))
    """

    def of_parameters(parameters: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        with _Borrowed(model, parameters):
            return fn(*args, **kwargs)

    both = mx.value_and_grad(of_parameters)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return both(model.trainable_parameters(), *args, **kwargs)

    return wrapped


def checkpoint(module: Module, fn: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function like `fn` (the module itself, if none is given) whose inner values are computed again for its
    gradient."""
    function = module if fn is None else fn

    def of_parameters(parameters: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        with _Borrowed(module, parameters):
            return function(*args, **kwargs)

    checkpointed = mx.checkpoint(of_parameters)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return checkpointed(module.trainable_parameters(), *args, **kwargs)

    return wrapped


def average_gradients(
    gradients: Any,
    group: mx.distributed.Group | None = None,
    all_reduce_size: int = 32 * 1024**2,
    communication_stream: Any = None,
) -> Any:
    """The mean of gradients over the processes of a group, exchanged in pieces of at least `all_reduce_size` bytes."""
    alone = group or mx.distributed.init()
    count = alone.size()
    flat = tree_flatten(gradients)
    if count == 1 or not flat:
        return gradients

    def summed(x: mx.array) -> mx.array:
        return mx.distributed.all_sum(x, group=alone, stream=communication_stream) / count

    if all_reduce_size <= 0 or len({x.dtype for _, x in flat}) > 1:
        return tree_map(summed, gradients)
    made: list[tuple[str, mx.array]] = []
    for piece in _pieces(flat, all_reduce_size):
        ends = [sum(x.size for _, x in piece[: i + 1]) for i in range(len(piece) - 1)]
        parts = mx.split(summed(mx.concatenate([x.reshape(-1) for _, x in piece])), ends)
        made += [(path, part.reshape(x.shape)) for (path, x), part in zip(piece, parts, strict=True)]
    return tree_unflatten(made)


def _pieces(flat: list[tuple[str, mx.array]], least: int) -> list[list[tuple[str, mx.array]]]:
    pieces: list[list[tuple[str, mx.array]]] = [[]]
    nbytes = 0
    for path, x in flat:
        if nbytes >= least:
            pieces.append([])
            nbytes = 0
        pieces[-1].append((path, x))
        nbytes += x.nbytes
    return pieces


def clip_grad_norm_sharded(
    gradients: Any, max_norm: float, group: mx.distributed.Group | None = None
) -> tuple[Any, mx.array]:
    """`clip_grad_norm` of gradients that are spread over the processes of a group."""
    own = tree_reduce(lambda total, g: total + g.square().sum(), gradients, 0.0)
    norm = mx.sqrt(mx.distributed.all_sum(mx.array(own), group=group))
    scale = mx.minimum(max_norm / (norm + 1e-6), 1.0)
    return tree_map(lambda g: g * scale, gradients), norm
