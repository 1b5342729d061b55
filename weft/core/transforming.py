"""Derivatives and batching of functions, with MLX's signatures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft import tree
from weft.array import array, wrap
from weft.core._common import is_whole
from weft.errors import BadIndex
from weft.graph.node import Node, kind_of
from weft.graph.trace import trace
from weft.primitives.base import Placeholder, move_batch_to_front
from weft.primitives.views import transpose
from weft.transforms.arguments import (
    FilledArguments,
    array_leaves,
    call_filled,
    fresh_inputs,
    ones,
    or_zeros,
    second_name,
)
from weft.transforms.bodies import random_state
from weft.transforms.jvp import push_forward
from weft.transforms.vjp import pull_back
from weft.transforms.vmap import batch

Function = Callable[..., Any]

ASSIGNED = ("__name__", "__qualname__", "__doc__")
"""What a transformed function takes over. Not __module__: compile looks into functions of ours for what they capture.
"""


def check_callable(name: str, fun: Any) -> Function:
    """The function, if it is one."""
    if not callable(fun):
        raise TypeError(f"[{name}] the first argument must be a function; got {type(fun).__name__}.")
    return fun  # type: ignore[no-any-return]


# ---- vjp and jvp ----


def vjp(fun: Function, primals: Sequence[Any], cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(outputs of fun, cotangents of the primals), given those of the outputs. Each primal and each output is an array,
    or a tree of arrays.

    >>> vjp(lambda x: x * x, [array(3.0)], [array(1.0)])
    ([array(9, dtype=float32)], [array(6, dtype=float32)])
    """
    leaves, structure = primals_of("vjp", fun, primals)
    inputs, nodes = fresh_inputs(leaves)
    with trace():
        outputs, outs, shape = outputs_of("vjp", fun, primals, inputs)
        given = matched("vjp", "cotangent", "output", outs, shape, cotangents)
        found = pull_back(nodes, [y._node for y in outs], given)
    return outputs, structure.unflatten([or_zeros(ct, x._node.kind) for ct, x in zip(found, leaves, strict=True)])


def jvp(fun: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(outputs of fun, their tangents), given tangents of the primals. Each primal and each output is an array, or a
    tree of arrays.

    >>> jvp(lambda x: x * x, [array(3.0)], [array(1.0)])
    ([array(9, dtype=float32)], [array(6, dtype=float32)])
    """
    leaves, structure = primals_of("jvp", fun, primals)
    given = matched("jvp", "tangent", "primal", leaves, structure, tangents)
    inputs, nodes = fresh_inputs(leaves)
    with trace():
        outputs, outs, shape = outputs_of("jvp", fun, primals, inputs)
        ys = [y._node for y in outs]
        found = push_forward(nodes, ys, given)
        kinds = [y.op.zero_tangent(y.kind, *[x.kind for x in y.inputs]) if y.inputs else y.kind for y in ys]
    return outputs, shape.unflatten([or_zeros(t, kind) for t, kind in zip(found, kinds, strict=True)])


def primals_of(name: str, fun: Any, primals: Any) -> tuple[list[array], tree.Structure]:
    """The arrays of a list of primals, and its structure."""
    check_callable(name, fun)
    if not isinstance(primals, (list, tuple)):
        raise TypeError(
            f"[{name}] the primals are a list with one item for each argument; got {type(primals).__name__}: write "
            "[primal]."
        )
    leaves, structure = tree.flatten(list(primals))
    for leaf in leaves:
        if not isinstance(leaf, array):
            raise TypeError(
                f"[{name}] primals must be arrays; got {type(leaf).__name__}: make it an array, or let the function "
                "capture it."
            )
    return leaves, structure


def outputs_of(
    name: str, fun: Function, primals: Sequence[Any], inputs: Sequence[array]
) -> tuple[list[Any], list[array], tree.Structure]:
    """What fun returns, as a list; its arrays; the structure of the list."""
    value = call_filled(fun, primals, inputs)
    outputs = list(value) if isinstance(value, (list, tuple)) else [value]
    leaves, structure = tree.flatten(outputs)
    for leaf in leaves or [value]:
        if not isinstance(leaf, array):
            raise ValueError(
                f"[{name}] the function must return an array, or several in a list; got {type(leaf).__name__}. Return "
                "auxiliary values "
                "through value_and_grad."
            )
    return outputs, leaves, structure


def matched(name: str, what: str, of: str, ours: Sequence[array], structure: tree.Structure, given: Any) -> list[Node]:
    """The nodes of tangents or cotangents, one for each of `ours` and of its shape and dtype."""
    if not isinstance(given, (list, tuple)):
        raise TypeError(
            f"[{name}] the {what}s are a list with one item for each {of}; got {type(given).__name__}: write [{what}]."
        )
    count = len(structure.children)
    if len(given) != count:
        raise ValueError(
            f"[{name}] there are {count} {of}s and {len(given)} {what}s: give one for each (zeros where there is none)."
        )
    try:
        found = structure.flatten_up_to(list(given), what=f"{of}s", other=f"the {what}s have")
    except ValueError as error:
        raise ValueError(f"[{name}] the {what}s must be in the containers of the {of}s, {structure}. {error}") from None
    for i, (x, t) in enumerate(zip(ours, found, strict=True)):
        if not isinstance(t, array):
            raise TypeError(f"[{name}] {what}s must be arrays; number {i} is of type {type(t).__name__}.")
        if x.shape != t.shape:
            raise ValueError(
                f"[{name}] {what} {i} has shape {t.shape}, its {of} {x.shape}: they must agree; reshape it, or "
                "broadcast_to(...)."
            )
        if x.dtype is not t.dtype:
            raise ValueError(
                f"[{name}] {what} {i} is {t.dtype.name}, its {of} {x.dtype.name}: they must agree; convert it with "
                f".astype({x.dtype.name})."
            )
    return [t._node for t in found]


# ---- gradients ----


class Differentiated:
    """Which arguments of a call are differentiated. `argnums` counts positional arguments, `argnames` names keyword
    arguments."""

    __slots__ = ("is_first", "name", "names", "nums")

    def __init__(self, name: str, argnums: Any, argnames: Any) -> None:
        self.name = name
        self.names = frozenset(_names(name, argnames))
        if argnums is None:
            argnums = () if self.names else 0
        self.nums = _numbers(name, argnums)
        if not self.nums and not self.names:
            raise ValueError(f"[{name}] no argument is differentiated: give argnums or argnames.")
        self.is_first = self.nums == (0,) and not self.names

    def select(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The differentiated arguments: positional ones in order, then keywords in the order of the call."""
        if not self.names and len(args) > self.nums[-1]:
            return [args[self.nums[0]]] if len(self.nums) == 1 else [args[n] for n in self.nums]
        if self.nums and self.nums[-1] >= len(args):
            raise ValueError(
                f"[{self.name}] argnums has {self.nums[-1]}, but the function was called with {len(args)} positional "
                "arguments: pass the "
                "argument by position, or name it in argnames."
            )
        for name in self.names:
            if name not in kwargs:
                given = ", ".join(kwargs) or "none"
                raise ValueError(
                    f"[{self.name}] argnames has {name!r}, but the keyword arguments of the call are: {given}. Pass it "
                    "by keyword, or "
                    "give its position in argnums."
                )
        return [*[args[n] for n in self.nums], *[kwargs[name] for name in kwargs if name in self.names]]

    def call(self, fun: Function, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
        """What fun returns for the arguments of a call with others in place of those that are differentiated."""
        if not kwargs and len(args) == len(self.nums):  # all of them
            return fun(*values)
        rest = iter(values)  # those by position first, each in the order of the call
        new_args = [next(rest) if n in self.nums else second_name(x) for n, x in enumerate(args)]
        new_kwargs = {name: next(rest) if name in self.names else second_name(x) for name, x in kwargs.items()}
        return fun(*new_args, **new_kwargs)

    def result(self, kwargs: dict[str, Any], gradients: Sequence[Any]) -> Any:
        """Gradients as MLX gives them: of one argument bare, of several in a tuple; with names a pair of that (or None)
        and a dict."""
        count = len(self.nums)
        positional = None if count == 0 else gradients[0] if count == 1 else tuple(gradients[:count])
        if not self.names:
            return positional
        return positional, dict(zip([name for name in kwargs if name in self.names], gradients[count:], strict=True))


def _names(name: str, argnames: Any) -> Iterable[str]:
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
    if not all(isinstance(n, str) for n in names):
        raise TypeError(f"[{name}] argnames are strings; got {argnames!r}.")
    return names


def _numbers(name: str, argnums: Any) -> tuple[int, ...]:
    """Sorted positions."""
    given = tuple(argnums) if isinstance(argnums, (list, tuple)) else (argnums,)
    if not all(map(is_whole, given)):
        raise TypeError(f"[{name}] argnums are integers; got {argnums!r}.")
    nums = tuple(sorted(int(n) for n in given))
    if nums and nums[0] < 0:
        raise ValueError(f"[{name}] argnums has {nums[0]}: positions count from 0, from the left.")
    if len(set(nums)) != len(nums):
        raise ValueError(f"[{name}] argnums {argnums} names an argument twice.")
    return nums


def value_and_grad(
    fun: Function, argnums: int | Sequence[int] | None = None, argnames: str | Sequence[str] = ()
) -> Function:
    """A function that returns (what fun returns, gradients of its scalar result by the chosen arguments).

    If fun returns a tuple, its first item is differentiated and the rest is passed through.

    >>> value_and_grad(lambda x: (sum(x * x), "seen"))(array([1.0, 2.0]))
    ((array(5, dtype=float32), 'seen'), array([2, 4], dtype=float32))
    """
    chosen = Differentiated("value_and_grad", argnums, argnames)
    check_callable("value_and_grad", fun)

    @functools.wraps(fun, ASSIGNED, ())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return _differentiate(fun, chosen, args, kwargs)

    return wrapper


def grad(fun: Function, argnums: int | Sequence[int] | None = None, argnames: str | Sequence[str] = ()) -> Function:
    """A function that returns the gradients of fun's scalar result by the chosen arguments (the first by default).

    >>> grad(lambda x: sum(x * x))(array([1.0, 2.0]))
    array([2, 4], dtype=float32)
    """
    chosen = Differentiated("grad", argnums, argnames)
    check_callable("grad", fun)

    @functools.wraps(fun, ASSIGNED, ())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return _differentiate(fun, chosen, args, kwargs)[1]

    return wrapper


def _differentiate(
    fun: Function, chosen: Differentiated, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """(what fun returns, the gradients)."""
    if chosen.is_first and len(args) == 1 and args[0].__class__ is array and not kwargs:
        return _differentiate_by_array(fun, chosen.name, args[0])
    values = chosen.select(args, kwargs)
    bare = True  # no containers: nothing to take apart or to put back
    for value in values:
        bare = bare and value.__class__ is array
    leaves, structure = (values, tree.LEAF) if bare else array_leaves(chosen.name, "a differentiated argument", values)
    inputs, nodes = fresh_inputs(leaves)
    with trace():
        if bare:
            value = chosen.call(fun, args, kwargs, inputs)
        else:
            filled = FilledArguments(values, inputs)
            with filled:
                value = chosen.call(fun, args, kwargs, filled.value)
        loss = loss_of(chosen.name, value)
        found = pull_back(nodes, [loss._node], [ones(loss._node.kind)])
    gradients = [or_zeros(g, x._node.kind) for g, x in zip(found, leaves, strict=True)]
    return value, chosen.result(kwargs, gradients if bare else structure.unflatten(gradients))


def _differentiate_by_array(fun: Function, name: str, x: array) -> tuple[Any, array]:
    """The same for the usual call, with one array."""
    (given,), nodes = fresh_inputs((x,))
    with trace():
        value = fun(given)
        loss = loss_of(name, value)._node
        (found,) = pull_back(nodes, (loss,), (ones(loss.kind),))
    return value, or_zeros(found, nodes[0].kind)


def loss_of(name: str, value: Any) -> array:
    """The scalar that is differentiated."""
    loss = value
    if name == "value_and_grad" and isinstance(value, tuple) and value:
        loss = value[0]
    if not isinstance(loss, array):
        got = f"a tuple that begins with {type(loss).__name__}" if loss is not value else type(value).__name__
        may = "a scalar array, or a tuple that begins with one" if name == "value_and_grad" else "a scalar array"
        hint = (
            " value_and_grad passes the rest of a tuple through." if name == "grad" and isinstance(value, tuple) else ""
        )
        raise ValueError(f"[{name}] the function must return {may}; got {got}.{hint}")
    if loss._node.kind.shape:
        raise ValueError(
            f"[{name}] the function must return a scalar; got shape {loss.shape}. Reduce it, for example with sum or "
            "mean, or use vjp or jacrev."
        )
    return loss


# ---- vmap ----


def vmap(fun: Function, in_axes: Any = 0, out_axes: Any = 0) -> Function:
    """fun over one more axis of its arguments (None: an argument that is the same for all), all at once.

    `in_axes` is one axis for all, or a tree of them that stands above the arguments' tree; `out_axes` the same for what
    fun returns.

    >>> vmap(lambda x, y: sum(x * y))(ones((5, 3)), ones((5, 3))).shape
    (5,)
    """
    check_callable("vmap", fun)

    @functools.wraps(fun, ASSIGNED, ())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise TypeError(
                f"[vmap] keyword arguments are not mapped: pass {', '.join(kwargs)} by position, or bind with "
                "functools.partial."
            )
        leaves = tree.leaves(args)
        axes = _leaf_axes("in_axes", _of_arguments(in_axes, args), args, leaves, 0)
        size = _batch_size(leaves, axes)
        # Nodes, because the function may overwrite the arrays that it gets.
        given = [(x._node, axis) for x, axis in zip(leaves, axes, strict=True) if isinstance(x, array)]
        elements = [node if axis is None else _element(node, axis) for node, axis in given]
        before = random_state()[0]
        with trace():
            result = call_filled(fun, args, [wrap(element) for element in elements])
        outs, shape = _mapped_outputs(result)
        mapped = [(e, node, axis) for e, (node, axis) in zip(elements, given, strict=True) if axis is not None]
        *found, (state, lanes) = batch(
            [e for e, _, _ in mapped],
            [*(y._node for y in outs), random_state()[0]._node],
            [n for _, n, _ in mapped],
            [a for _, _, a in mapped],
            size,
        )
        if lanes is not None:
            random_state()[0] = before
            raise ValueError(
                "[vmap] a loop or branch that goes another way in each lane draws from the global random state, which "
                "is one for all lanes: give the function keys instead (random.split, key=...)."
            )
        if state is not random_state()[0]._node:  # a loop over mapped arrays made it, beside other things
            random_state()[0] = wrap(state)
        places = _leaf_axes("out_axes", _of_result(out_axes, result), result, outs, 1)
        return shape.unflatten([_place(node, axis, to, size) for (node, axis), to in zip(found, places, strict=True)])

    return wrapper


def _of_arguments(in_axes: Any, args: tuple[Any, ...]) -> Any:
    """in_axes for the tuple of arguments. For a single argument it may be that argument's own tree, as in MLX."""
    if len(args) == 1 and not (isinstance(in_axes, tuple) and len(in_axes) == 1):
        return (in_axes,)
    return tuple(in_axes) if isinstance(in_axes, list) else in_axes


def _of_result(out_axes: Any, result: Any) -> Any:
    """out_axes for what the function returned; for an array it may be in a tuple, as in MLX."""
    if isinstance(result, array) and isinstance(out_axes, tuple) and len(out_axes) == 1:
        return out_axes[0]
    return out_axes


def _element(node: Node, axis: int) -> Node:
    """What stands for one element of a mapped argument: its kind, and no value."""
    return Node(Placeholder("vmap"), (), kind_of(tuple(n for i, n in enumerate(node.shape) if i != axis), node.dtype))


def _leaf_axes(name: str, axes: Any, value: Any, leaves: Sequence[Any], extra: int) -> list[int | None]:
    """The axis of each leaf, from one axis or a tree of them; results will have `extra` more axes than now."""
    whose = "arguments" if name == "in_axes" else "what the function returned"
    try:
        spread = tree.broadcast_prefix(axes, value, what=name, other=f"{whose} have")
    except ValueError as error:
        raise ValueError(f"[vmap] {name} does not fit {whose}; one axis stands for a whole subtree. {error}") from None
    found: list[int | None] = []
    for leaf, axis in zip(leaves, spread, strict=True):
        if axis is not None and not is_whole(axis):
            raise ValueError(f"[vmap] {name} has {axis!r}: an axis is an integer, or None for what is not mapped.")
        if axis is None:
            found.append(None)
            continue
        if not isinstance(leaf, array):
            raise ValueError(
                f"[vmap] an argument of type {type(leaf).__name__} cannot be mapped: give it None in in_axes, or make "
                "it an array."
            )
        ndim = leaf.ndim + extra
        if not -ndim <= axis < ndim:
            raise BadIndex(f"[vmap] {name} has {axis}, which is no axis of {_described(leaf, extra)}.")
        found.append(axis + ndim if axis < 0 else int(axis))
    return found


def _described(leaf: array, extra: int) -> str:
    return f"an output of shape {leaf.shape} with one more axis" if extra else f"an array of shape {leaf.shape}"


def _batch_size(leaves: Sequence[Any], axes: Sequence[int | None]) -> Any:
    mapped = [(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True) if axis is not None]
    if not mapped:
        raise ValueError("[vmap] in_axes maps no argument: at least one must have an axis.")
    size = mapped[0][0].shape[mapped[0][1]]
    for leaf, axis in mapped:
        if leaf.shape[axis] != size:
            shown = ", ".join(f"{leaf.shape[axis]} (axis {axis} of shape {leaf.shape})" for leaf, axis in mapped)
            raise ValueError(
                f"[vmap] the mapped axes have different sizes: {shown}. Give None in in_axes for what is the same for "
                "all."
            )
    return size


def _mapped_outputs(result: Any) -> tuple[list[array], tree.Structure]:
    leaves, structure = tree.flatten(result)
    for leaf in leaves:
        if not isinstance(leaf, array):
            raise ValueError(f"[vmap] the function must return arrays; got {type(leaf).__name__}.")
    if not leaves:
        raise ValueError("[vmap] the function returned no array.")
    return leaves, structure


def _place(node: Node, axis: int | None, to: int | None, size: Any) -> array:
    """The output with its batch axis where out_axes says."""
    if to is None:
        if axis is not None:
            raise ValueError(
                "[vmap] out_axes says None for an output that depends on a mapped argument: give it an axis."
            )
        return wrap(node)
    front = move_batch_to_front(node, axis, size)
    order = list(range(1, front.ndim))
    order.insert(to, 0)
    return wrap(transpose(front, tuple(order)))
