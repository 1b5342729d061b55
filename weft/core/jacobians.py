"""Whole derivatives of functions of arrays: Jacobians, Hessians, linear approximations, products with the Hessian. MLX
has no such functions.

The function runs once, on real values. Its derivative is a graph that is linear in a stand-in tangent (or cotangent);
mapping that graph over a basis gives all columns (or rows) at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from weft import tree
from weft.array import array, wrap
from weft.core.creating import eye
from weft.core.transforming import ASSIGNED, Differentiated, check_callable, loss_of, matched, outputs_of, primals_of
from weft.graph.dims import prod
from weft.graph.node import ArrayType, Node, kind_of
from weft.graph.trace import trace
from weft.primitives.base import Placeholder, move_batch_to_front
from weft.primitives.elementwise import conjugate
from weft.primitives.views import reshape, transpose
from weft.transforms.arguments import FilledArguments, array_leaves, call_filled, fresh_inputs, ones, or_zeros
from weft.transforms.jvp import push_forward
from weft.transforms.paths import between, rebuild
from weft.transforms.vjp import pull_back
from weft.transforms.vmap import batch

Function = Callable[..., Any]
Arguments = int | Sequence[int] | None


def jacfwd(fun: Function, argnums: Arguments = None, argnames: str | Sequence[str] = ()) -> Function:
    """A function that returns the Jacobian of fun, column by column in forward mode: good when there are more outputs
    than inputs.

    For each array that fun returns, and each array in the chosen arguments, it has the shape of the one followed by the
    shape of the other, in fun's own containers. A function of complex arrays must be holomorphic.

    >>> jacfwd(lambda x: x * x)(array([1.0, 2.0]))
    array([[2, 0],
           [0, 4]], dtype=float32)
    """
    return _jacobian("jacfwd", fun, argnums, argnames)


def jacrev(fun: Function, argnums: Arguments = None, argnames: str | Sequence[str] = ()) -> Function:
    """A function that returns the Jacobian of fun, row by row in reverse mode: good when there are more inputs than
    outputs.

    >>> jacrev(lambda x: sum(x * x, keepdims=True))(array([1.0, 2.0]))
    array([[2, 4]], dtype=float32)
    """
    return _jacobian("jacrev", fun, argnums, argnames)


def jacobian(fun: Function, argnums: Arguments = None, argnames: str | Sequence[str] = ()) -> Function:
    """A function that returns the Jacobian of fun, in forward or reverse mode, whichever takes fewer passes.

    >>> jacobian(lambda x: x * x)(array([1.0, 2.0])).shape
    (2, 2)
    """
    return _jacobian("jacobian", fun, argnums, argnames)


def hessian(fun: Function, argnums: Arguments = None, argnames: str | Sequence[str] = ()) -> Function:
    """A function that returns the second derivatives of fun: the forward Jacobian of the reverse one.

    >>> hessian(lambda x: sum(x * x * x))(array([1.0, 2.0]))
    array([[6, 0],
           [0, 12]], dtype=float32)
    """
    return _jacobian("hessian", jacrev(fun, argnums, argnames), argnums, argnames)


def _jacobian(name: str, fun: Function, argnums: Arguments, argnames: str | Sequence[str]) -> Function:
    chosen = Differentiated(name, argnums, argnames)
    check_callable(name, fun)

    @functools.wraps(fun, ASSIGNED, ())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        values = chosen.select(args, kwargs)
        leaves, structure = array_leaves(name, "a differentiated argument", values)
        inputs, nodes = fresh_inputs(leaves)
        with trace():
            filled = FilledArguments(values, inputs)
            with filled:
                value = chosen.call(fun, args, kwargs, filled.value)
            outs, shape = array_leaves(name, "what the function returned", value)
            xs, ys = nodes, [y._node for y in outs]
            found = _reverse(name, xs, ys) if _by_rows(name, xs, ys) else _forward(name, xs, ys)
        parts = [
            chosen.result(kwargs, structure.unflatten([or_zeros(j, _kind(y, x)) for j, x in zip(row, xs, strict=True)]))
            for row, y in zip(found, ys, strict=True)
        ]
        return shape.unflatten(parts)

    return wrapper


def _by_rows(name: str, xs: Sequence[Node], ys: Sequence[Node]) -> bool:
    if name != "jacobian":
        return name == "jacrev"
    return sum([y.kind.size for y in ys]) < sum([x.kind.size for x in xs])  # type: ignore[misc]


def _kind(y: Node, x: Node) -> ArrayType:
    return kind_of((*y.shape, *x.shape), y.dtype)


def _forward(name: str, xs: Sequence[Node], ys: Sequence[Node]) -> list[list[Node | None]]:
    """Derivatives of each output by each input, all elements of an input at once."""
    columns = []
    for i, x in enumerate(xs):
        _continuous(name, x)
        tangent = Node(Placeholder(name), (), x.kind)
        tangents = push_forward(xs, ys, [tangent if k == i else None for k in range(len(xs))])
        columns.append([None if t is None else _column(t, tangent, y, x) for t, y in zip(tangents, ys, strict=True)])
    return [[column[k] for column in columns] for k in range(len(ys))]


def _column(found: Node, tangent: Node, y: Node, x: Node) -> Node:
    front = _over_basis(found, tangent, x)
    back = transpose(front, (*range(1, front.ndim), 0))
    return reshape(back, (*y.shape, *x.shape))


def _reverse(name: str, xs: Sequence[Node], ys: Sequence[Node]) -> list[list[Node | None]]:
    """The same, all elements of an output at once."""
    rows = []
    for y in ys:
        _continuous(name, y)
        for x in xs:
            _continuous(name, x)
            if x.dtype.is_complex is not y.dtype.is_complex:
                raise ValueError(
                    f"[{name}] the derivative of a {y.dtype.name} output by a {x.dtype.name} input is not one complex "
                    "number: take real and "
                    "imaginary parts as arrays of their own" + (", or use jacfwd." if y.dtype.is_complex else ".")
                )
        cotangent = Node(Placeholder(name), (), y.kind)
        cotangents = pull_back(xs, [y], [cotangent])
        rows.append([None if ct is None else _row(ct, cotangent, y, x) for ct, x in zip(cotangents, xs, strict=True)])
    return rows


def _row(found: Node, cotangent: Node, y: Node, x: Node) -> Node:
    front = reshape(_over_basis(found, cotangent, y), (*y.shape, *x.shape))
    return conjugate(front)  # cotangents are those of the conjugate transpose


def _over_basis(found: Node, stand_in: Node, x: Node) -> Node:
    """`found` for every unit vector in place of the stand-in, along a first axis."""
    size = prod(x.shape)
    basis = reshape(eye(size.__index__(), dtype=x.dtype)._node, (size, *x.shape))
    ((node, axis),) = batch([stand_in], [found], [basis], [0], size)
    return move_batch_to_front(node, axis, size)


def _continuous(name: str, node: Node) -> None:
    if not node.dtype.is_inexact:
        raise ValueError(
            f"[{name}] inputs and outputs must be floats or complex numbers; got {node.dtype.name}: convert with "
            ".astype(float32)."
        )


def hvp(fun: Function, primals: Sequence[Any], vectors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(what fun returns in a list, products of its Hessian with the vectors), for a scalar function; the Hessian itself
    is never made.

    >>> hvp(lambda x: sum(x * x * x), [array([1.0, 2.0])], [array([1.0, 0.0])])[1]
    [array([6, 0], dtype=float32)]
    """
    leaves, structure = primals_of("hvp", fun, primals)
    given = matched("hvp", "vector", "primal", leaves, structure, vectors)
    inputs, nodes = fresh_inputs(leaves)
    with trace():
        outputs, outs, _ = outputs_of("hvp", fun, primals, inputs)
        loss = loss_of("hvp", outs[0] if len(outs) == 1 else outs)
        xs = nodes
        gradients = pull_back(xs, [loss._node], [ones(loss._node.kind)])
        present = [g for g in gradients if g is not None]
        pushed = iter(push_forward(xs, present, given))
        found = [None if g is None else next(pushed) for g in gradients]
    return outputs, structure.unflatten([or_zeros(p, x._node.kind) for p, x in zip(found, leaves, strict=True)])


def linearize(fun: Function, *primals: Any) -> tuple[Any, Function]:
    """(fun(*primals), the linear function that maps tangents of the primals to tangents of the result).

    The function runs once; each call of the linear function costs about as much as fun itself, and no tracing.

    >>> y, tangent = linearize(lambda x: x * x, array(3.0))
    >>> y, tangent(array(1.0))
    (array(9, dtype=float32), array(6, dtype=float32))
    """
    leaves, structure = primals_of("linearize", fun, primals)
    inputs, nodes = fresh_inputs(leaves)
    with trace():
        value = call_filled(fun, primals, inputs)
        outs, shape = array_leaves("linearize", "what the function returned", value)
        stand_ins = [Node(Placeholder("linearize"), (), x.kind) for x in nodes]
        found = push_forward(nodes, [y._node for y in outs], stand_ins)
    kinds = [y._node.kind for y in outs]
    return value, _Linear(stand_ins, found, kinds, structure, shape)


class _Linear:
    """A linear function of tangents, kept as a graph over stand-ins."""

    def __init__(
        self,
        stand_ins: list[Node],
        found: list[Node | None],
        kinds: list[ArrayType],
        structure: tree.Structure,
        shape: tree.Structure,
    ) -> None:
        self._stand_ins, self._found, self._kinds = stand_ins, found, kinds
        self._structure, self._shape = structure, shape
        self._like = [wrap(node) for node in stand_ins]
        self._kept = self._coefficients([node for node in found if node is not None])

    def _coefficients(self, found: list[Node]) -> list[array]:
        """What the tangents are multiplied with. Held as arrays, so that the first evaluation keeps their values for
        later calls."""
        path, active = between(self._stand_ins, found)
        return [
            wrap(node) for node in dict.fromkeys(o for n in path for o in n.inputs if o not in active) if node.inputs
        ]

    def __call__(self, *tangents: Any) -> Any:
        given = matched("linearize", "tangent", "primal", self._like, self._structure, tangents)
        present = [node for node in self._found if node is not None]
        made = iter(rebuild(present, dict(zip(self._stand_ins, given, strict=True))))
        nodes = [None if node is None else next(made) for node in self._found]
        return self._shape.unflatten([or_zeros(node, kind) for node, kind in zip(nodes, self._kinds, strict=True)])
