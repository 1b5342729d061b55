"""Computing with what is known before anything runs: sizes, shapes, and integers made of them.

What consists of plain numbers is computed by PyTensor's own implementation of the node. A symbol for a size goes
through the few operations that shapes are made with and stays one; anything else takes it for the number that it is in
this call, which the translation is then guarded to hold for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import (
    Alloc,
    Join,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, Shape, Shape_i
from pytensor.tensor.subtensor import IncSubtensor, Subtensor

from weft.frontends.pytensor.values import Known, Value, objects
from weft.graph.dims import Dim

MOST = 64
"""Elements of what is computed before anything runs."""
SIZES: dict[type, frozenset[int]] = {Shape: frozenset({0}), Shape_i: frozenset({0})}
"""Results that are sizes, whatever is known of the inputs, by class of operations."""
PLAIN = (
    Alloc, CAReduce, CheckAndRaise, DimShuffle, Elemwise, IncSubtensor, Join, MakeVector, Reshape, ScalarFromTensor,
    Subtensor, TensorFromScalar, ps.ScalarOp,
)  # fmt: skip
"""Operations that may be computed before anything runs."""


def may_compute(node: Apply) -> bool:
    """Whether a node whose inputs are known is computed before anything runs: integers, in few elements."""
    if not isinstance(node.op, PLAIN):
        return False
    outputs = [x.type for x in node.outputs]
    return all(getattr(t, "dtype", "object").startswith(("int", "uint", "bool")) and t.ndim <= 1 for t in outputs)


def is_known(x: Variable, inputs: set[Variable], given: set[Variable]) -> bool:
    """Whether a variable is known before anything runs, if those inputs are that are collected in `given`: scalars and
    short vectors of `inputs` that it is made of."""
    if isinstance(x, Constant):
        return True
    if x in inputs:
        if not _is_short(x):
            return False
        given.add(x)
        return True
    node = x.owner
    if node is None:
        return False
    if node.outputs.index(x) in SIZES.get(type(node.op), ()):
        return True
    found: set[Variable] = set()
    if not may_compute(node) or not all(is_known(y, inputs, found) for y in node.inputs):
        return False
    given |= found
    return True


def _is_short(x: Variable) -> bool:
    shape = getattr(x.type, "shape", None)
    if shape is None or getattr(x.type, "dtype", "object") == "object":
        return False
    return len(shape) == 0 or (len(shape) == 1 and shape[0] is not None and shape[0] <= MOST)


def computed(node: Apply, given: Sequence[Known]) -> list[Value] | None:
    """The outputs of a node whose inputs are known; None where they are better computed by the program."""
    if not may_compute(node) or any(np.size(x.value) > MOST for x in given):
        return None
    if any(x.is_symbolic for x in given):
        made = _symbolic(node, [np.asarray(x.value) for x in given])
        if made is not None:
            return [Known(made)]
    return [Known(x) for x in performed(node, [x.numbers() for x in given])]


def performed(node: Apply, given: Sequence[Any]) -> list[Any]:
    """What PyTensor's own implementation of a node gives."""
    if isinstance(node.op, ps.ScalarOp):
        made = node.op.impl(*[np.asarray(x).item() for x in given])
        outputs = made if isinstance(made, (list, tuple)) else [made]
        return [np.asarray(x, out.type.dtype) for x, out in zip(outputs, node.outputs, strict=True)]
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    inputs = [
        np.asarray(x).astype(v.type.dtype)[()] if isinstance(v.type, ps.ScalarType) else x
        for x, v in zip(given, node.inputs, strict=True)
    ]
    node.op.perform(node, inputs, storage)
    return [np.asarray(cell[0]) for cell in storage]


def _symbolic(node: Apply, given: Sequence[np.ndarray]) -> np.ndarray | None:
    """Arithmetic with symbols, element by element; None where there is no rule for it."""
    op = node.op
    if isinstance(op, MakeVector):
        return objects([x.item() for x in given])
    if isinstance(op, CheckAndRaise):
        if not all(bool(x.item()) for x in given[1:]):
            raise op.exc_type(op.msg)
        return given[0]
    if isinstance(op, (ScalarFromTensor, TensorFromScalar)):
        return _single(given[0].reshape(()).item())
    if isinstance(op, Join):
        return np.concatenate([np.asarray(x, object) for x in given[1:]])
    if isinstance(op, Subtensor):
        return _subtensor(op, given)
    if isinstance(op, DimShuffle):
        return given[0].reshape(()) if node.outputs[0].type.ndim == 0 else np.asarray(given[0], object).reshape(-1)
    if isinstance(op, Reshape) and node.outputs[0].type.ndim <= 1:
        return given[0].reshape(() if node.outputs[0].type.ndim == 0 else -1)
    if isinstance(op, CAReduce) and isinstance(op.scalar_op, (ps.Mul, ps.Add)):
        step = operator.mul if isinstance(op.scalar_op, ps.Mul) else operator.add
        total = int(isinstance(op.scalar_op, ps.Mul))
        for n in given[0].ravel().tolist():
            total = step(total, n)
        return _single(total)
    if isinstance(op, (Elemwise, ps.ScalarOp)):
        return _elementwise(op.scalar_op if isinstance(op, Elemwise) else op, given)
    return None


def _subtensor(op: Any, given: Sequence[np.ndarray]) -> np.ndarray | None:
    if any(x.dtype == object for x in given[1:]):
        return None
    places = [int(x) for x in given[1:]]
    entry = op.idx_list[0]
    if isinstance(entry, int):
        return _single(given[0][places[entry]])
    start, stop, step = (None if at is None else places[at] for at in (entry.start, entry.stop, entry.step))
    return given[0][start:stop:step]


def _single(value: Any) -> np.ndarray:
    made = np.empty((), object if isinstance(value, Dim) else np.int64)
    made[()] = value
    return made


_SCALAR: dict[type, Callable[..., Any]] = {
    ps.Sub: operator.sub,
    ps.IntDiv: operator.floordiv,
    ps.Mod: operator.mod,
    ps.Maximum: max,
    ps.Minimum: min,
    ps.LT: operator.lt,
    ps.GT: operator.gt,
    ps.LE: operator.le,
    ps.GE: operator.ge,
    ps.EQ: operator.eq,
    ps.NEQ: operator.ne,
    ps.Identity: lambda x: x,
    ps.Cast: lambda x: x,
    ps.Neg: operator.neg,
    ps.Second: lambda x, y: y,
    ps.Switch: lambda c, x, y: x if c else y,
}


def _elementwise(op: Any, given: Sequence[np.ndarray]) -> np.ndarray | None:
    if isinstance(op, (ps.Add, ps.Mul)):
        step = operator.add if isinstance(op, ps.Add) else operator.mul

        def fun(*values: Any) -> Any:
            total = values[0]
            for value in values[1:]:
                total = step(total, value)
            return total
    elif type(op) in _SCALAR:
        fun = _SCALAR[type(op)]
    else:
        return None
    made = [fun(*element) for element in zip(*(x.ravel().tolist() for x in np.broadcast_arrays(*given)), strict=True)]
    if np.broadcast_shapes(*(x.shape for x in given)) == ():
        return _single(made[0]) if not isinstance(made[0], bool) else np.asarray(made[0])
    return objects(made) if any(isinstance(n, Dim) for n in made) else np.asarray(made)
