"""Derivatives and batching of functions, with MLX's signatures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from weft import tree
from weft.array import array, wrap
from weft.graph.node import Node, kind_of
from weft.graph.trace import trace
from weft.primitives.base import Placeholder, bind, constant, move_batch_to_front
from weft.primitives.elementwise import Identity
from weft.primitives.views import transpose
from weft.transforms.jvp import push_forward
from weft.transforms.vjp import pull_back
from weft.transforms.vmap import batch


def _fresh(x: array) -> array:
    """A new input of a trace: the same value, a node of its own."""
    return wrap(bind(Identity(), x._node))



def _nodes(name: str, outputs: Any) -> list[array]:
    found = [outputs] if isinstance(outputs, array) else list(outputs)
    for x in found:
        if not isinstance(x, array):
            raise ValueError(f"[{name}] the function must return arrays; got {type(x).__name__}.")
    return found


def vjp(fun: Callable[..., Any], primals: Sequence[array], cotangents: Sequence[array]) -> tuple[list[array], list[array]]:
    """(outputs, cotangents of the primals) of a function of arrays.

    >>> vjp(lambda x: x * x, [array(3.0)], [array(1.0)])
    ([array(9, dtype=float32)], [array(6, dtype=float32)])
    """
    with trace():
        inputs = [_fresh(x) for x in primals]
        outputs = _nodes("vjp", fun(*inputs))
        _match("vjp", "cotangent", outputs, cotangents)
        found = pull_back([x._node for x in inputs], [y._node for y in outputs], [c._node for c in cotangents])
    return outputs, [_or_zeros(ct, x) for ct, x in zip(found, primals, strict=True)]


def jvp(fun: Callable[..., Any], primals: Sequence[array], tangents: Sequence[array]) -> tuple[list[array], list[array]]:
    """(outputs, tangents of the outputs) of a function of arrays."""
    _match("jvp", "tangent", list(primals), tangents)
    with trace():
        inputs = [_fresh(x) for x in primals]
        outputs = _nodes("jvp", fun(*inputs))
        found = push_forward([x._node for x in inputs], [y._node for y in outputs], [t._node for t in tangents])
    return outputs, [_or_zeros(t, y) for t, y in zip(found, outputs, strict=True)]


def _match(name: str, what: str, ours: Sequence[array], given: Sequence[array]) -> None:
    if len(ours) != len(given):
        raise ValueError(f"[{name}] {len(ours)} {what}s are needed; got {len(given)}.")
    for i, (x, t) in enumerate(zip(ours, given, strict=True)):
        if x.shape != t.shape or (x.dtype is not t.dtype and x.dtype.is_inexact):
            raise ValueError(
                f"[{name}] {what} {i} must have shape {x.shape} and dtype {x.dtype.name}; got {t.shape} and {t.dtype.name}."
            )


def _or_zeros(node: Node | None, like: array) -> array:
    return wrap(node if node is not None else constant(0, like._node.kind))


class _Arguments:
    """Which arguments of a call are differentiated, and their array leaves."""

    def __init__(self, name: str, argnums: Any, argnames: Any) -> None:
        self.name = name
        self.names: tuple[str, ...] = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
        if argnums is None:
            argnums = () if self.names else 0
        self.single = isinstance(argnums, int)
        self.nums: tuple[int, ...] = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        if any(isinstance(n, bool) or not isinstance(n, int) for n in self.nums):
            raise ValueError(f"[{name}] argnums are integers; got {argnums!r}.")
        if len(set(self.nums)) != len(self.nums) or len(set(self.names)) != len(self.names):
            raise ValueError(f"[{name}] argnums or argnames name an argument twice.")

    def select(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        chosen = []
        for n in self.nums:
            if not -len(args) <= n < len(args):
                raise ValueError(f"[{self.name}] argnums has {n}, but the function was called with {len(args)} positional arguments.")
            chosen.append(args[n])
        for name in self.names:
            if name not in kwargs:
                raise ValueError(f"[{self.name}] argnames has {name!r}, which the call does not pass by keyword.")
            chosen.append(kwargs[name])
        return chosen

    def replace(self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        new_args, new_kwargs = list(args), dict(kwargs)
        for n, value in zip(self.nums, values, strict=False):
            new_args[n] = value
        for name, value in zip(self.names, values[len(self.nums) :], strict=True):
            new_kwargs[name] = value
        return new_args, new_kwargs

    def result(self, gradients: list[Any]) -> Any:
        positional: Any = tuple(gradients[: len(self.nums)])
        if self.single:
            positional = positional[0]
        if not self.names:
            return positional
        named = dict(zip(self.names, gradients[len(self.nums) :], strict=True))
        return (positional if self.nums else None, named)


def value_and_grad(fun: Callable[..., Any], argnums: Any = None, argnames: Any = ()) -> Callable[..., Any]:
    """A function that returns (what fun returns, gradients of its scalar result by the chosen arguments).

    If fun returns a tuple or list, its first item is differentiated and the rest is passed through.
    """
    return _value_and_grad(fun, _Arguments("value_and_grad", argnums, argnames))


def grad(fun: Callable[..., Any], argnums: Any = None, argnames: Any = ()) -> Callable[..., Any]:
    """A function that returns the gradients of fun's scalar result by the chosen arguments (the first by default).

    >>> grad(lambda x: sum(x * x))(array([1.0, 2.0]))
    array([2, 4], dtype=float32)
    """
    both = _value_and_grad(fun, _Arguments("grad", argnums, argnames))

    @functools.wraps(both)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradient


def _value_and_grad(fun: Callable[..., Any], arguments: _Arguments) -> Callable[..., Any]:
    name = arguments.name
    if not callable(fun):
        raise TypeError(f"[{name}] the first argument must be a function; got {type(fun).__name__}.")

    @functools.wraps(fun, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        chosen = arguments.select(args, kwargs)
        leaves, structure = tree.flatten(chosen)
        arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, array)]
        with trace():
            inputs = {i: _fresh(leaves[i]) for i in arrays}
            traced = structure.unflatten([inputs.get(i, leaf) for i, leaf in enumerate(leaves)])
            new_args, new_kwargs = arguments.replace(args, kwargs, traced)
            value = fun(*new_args, **new_kwargs)
            loss = value[0] if isinstance(value, (tuple, list)) and value else value
            _check_loss(name, loss)
            kind = loss._node.kind
            nodes = [inputs[i]._node for i in arrays]
            found = pull_back(nodes, [loss._node], [constant(1, kind)])
        gradients = dict(zip(arrays, (_or_zeros(g, leaves[i]) for g, i in zip(found, arrays, strict=True)), strict=True))
        result = structure.unflatten([gradients.get(i, leaf) for i, leaf in enumerate(leaves)])
        return value, arguments.result(list(result))

    return wrapper


def _check_loss(name: str, loss: Any) -> None:
    if not isinstance(loss, array):
        raise ValueError(f"[{name}] the function must return an array (or a tuple that begins with one); got {type(loss).__name__}.")
    if loss.size != 1 or loss.ndim != 0:
        raise ValueError(
            f"[{name}] the function must return a scalar; got shape {loss.shape}. Reduce it, for example with sum or mean."
        )
    if not loss.dtype.is_inexact:
        raise ValueError(f"[{name}] the result must be a float to have a gradient; got {loss.dtype.name}.")


def vmap(fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """fun over one more axis of its arguments (None: an argument that is the same for all), all at once.

    >>> vmap(lambda x, y: sum(x * y))(ones((5, 3)), ones((5, 3))).shape
    (5,)
    """
    if not callable(fun):
        raise TypeError(f"[vmap] the first argument must be a function; got {type(fun).__name__}.")

    @functools.wraps(fun, updated=())
    def wrapper(*args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        axes = _leaf_axes("in_axes", in_axes, args, leaves)
        size = _batch_size(leaves, axes)
        inputs = [
            _placeholder(leaf, axis) if isinstance(leaf, array) and axis is not None else leaf
            for leaf, axis in zip(leaves, axes, strict=True)
        ]
        mapped = [i for i, axis in enumerate(axes) if axis is not None]
        with trace():
            result = fun(*structure.unflatten(inputs))
        outs, out_structure = tree.flatten(result)
        for y in outs:
            if not isinstance(y, array):
                raise ValueError(f"[vmap] the function must return arrays; got {type(y).__name__}.")
        found = batch(
            [inputs[i]._node for i in mapped], [y._node for y in outs], [leaves[i]._node for i in mapped],
            [axes[i] for i in mapped], size,
        )  # fmt: skip
        places = _leaf_axes("out_axes", out_axes, result, [wrap(n) for n, _ in found], extra=1)
        placed = [_place(node, axis, to, size) for (node, axis), to in zip(found, places, strict=True)]
        return out_structure.unflatten(placed)

    return wrapper


def _placeholder(x: array, axis: int) -> array:
    shape = tuple(n for i, n in enumerate(x.shape) if i != axis)
    return wrap(Node(Placeholder("vmap"), (), kind_of(shape, x.dtype)))


def _leaf_axes(name: str, axes: Any, structure: Any, leaves: list[Any], extra: int = 0) -> list[int | None]:
    """The axis of each leaf, from one axis or a tree of them that stands above the arguments' tree."""
    if axes is None or isinstance(axes, int):
        spread: list[Any] = [axes] * len(leaves)
    else:
        prefix = tuple(axes) if isinstance(structure, tuple) and isinstance(axes, list) else axes
        spread = list(tree.broadcast_prefix(prefix, structure, what=name, other="arguments" if name == "in_axes" else "outputs"))
    result: list[int | None] = []
    for leaf, axis in zip(leaves, spread, strict=True):
        if axis is None or not isinstance(leaf, array):
            result.append(None)
            continue
        ndim = leaf.ndim
        if not isinstance(axis, int) or not -ndim <= axis < ndim:
            raise ValueError(f"[vmap] {name} has {axis!r}, which is no axis of an array of shape {leaf.shape}.")
        result.append(axis + ndim if axis < 0 else axis)
    return result


def _batch_size(leaves: list[Any], axes: list[int | None]) -> Any:
    sizes = {leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None}
    if not sizes:
        raise ValueError("[vmap] in_axes maps no argument: at least one must have an axis.")
    if len(sizes) > 1:
        raise ValueError(f"[vmap] the mapped axes have different sizes: {sorted(sizes)}.")
    return sizes.pop()


def _place(node: Node, axis: int | None, to: int | None, size: Any) -> array:
    """The output with its batch axis where out_axes says."""
    if to is None:
        if axis is not None:
            raise ValueError("[vmap] out_axes says None for an output that depends on a mapped argument.")
        return wrap(node)
    front = move_batch_to_front(node, axis, size)
    order = list(range(1, front.ndim))
    order.insert(to, 0)
    return wrap(transpose(front, tuple(order)))


