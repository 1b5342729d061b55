"""What every function of `weft.core` shares: operands from anything array-like, promotion, broadcasting, binding.

Nothing below this layer promotes or broadcasts. The hot path (two arrays of one kind, or an array and a Python number)
is a dictionary look-up and a new node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign
from operator import index
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft import interop
from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.errors import BadIndex
from weft.graph.dims import Dim, broadcast_dims, same_shape
from weft.graph.node import ArrayType, Node, Shape, kind_of
from weft.graph.scalars import SCALARS, IntScalar
from weft.graph.trace import OPEN, is_transforming
from weft.primitives.base import DATA, ZERO, Composite, Constant, Placeholder, Primitive, bind, constant
from weft.primitives.creation import Extent
from weft.primitives.elementwise import Minimum, astype
from weft.primitives.views import Broadcast, reshape, transpose
from weft.runtime.data import to_buffer
from weft.runtime.objects import MAKERS, Known
from weft.transforms.rules import Forward

Scalar = bool | int | float | complex
ArrayLike = Any
Axes = int | Sequence[int] | None

_SCALARS = (bool, int, float, complex)
_STAND_INS = frozenset({Dim, *SCALARS})
"""What stands for a number while a function is traced."""
_WHOLE = frozenset({Dim, IntScalar})
"""What stands for an integer then."""

_Numbers = dict[ArrayType, dict[Any, Node]]
_NUMBERS: dict[type, _Numbers] = {bool: {}, int: {}, float: {}}
"""Constants by the type of a number, the kind that it has as an array, and the number."""
_MOST_NUMBERS = 256
"""Of one kind; and kinds."""


def whole_number(name: str, what: str, given: Any) -> Any:
    """An argument that is an integer, or stands for one while a function is traced; an error otherwise. Of an array of
    one integer, and without axes, its value: that is computed now, as by `item`."""
    if type(given) in _WHOLE:
        return given
    try:
        found = index(given)
    except TypeError:
        raise TypeError(f"[{name}] {what} must be an integer; got {given!r}.") from None
    return found if found.__class__ is int else int(found)  # True, and members of an IntEnum, are 1 of a kind


def is_sequence(given: Any) -> bool:
    """Whether an argument is several numbers: a list, a tuple, a range, or an array (NumPy's too) that has an axis."""
    return isinstance(given, (list, tuple, range)) or (isinstance(given, (array, np.ndarray)) and given.ndim > 0)


def is_whole(given: Any) -> bool:
    """Whether an argument is one integer, Python's or NumPy's, or stands for one while a function is traced."""
    return isinstance(given, (int, np.integer)) or type(given) in _WHOLE


def to_int64(x: Node) -> Node:
    """Integers as int64; of uint64, what it cannot hold becomes the largest that it can."""
    if x.dtype is dt.uint64:
        x = bind(Minimum(), x, constant((1 << 63) - 1, x.kind))
    return astype(x, dt.int64)


def scalar_node(value: Any, kind: ArrayType, name: str = "array") -> Node:
    """A constant of this kind; recent ones are shared, so that a number in a loop is one node. Errors name `name`."""
    if type(value) in _STAND_INS:
        refuse_overflow(name, value, kind.dtype)
        return size_node(value, kind) if type(value) is Dim else constant(value, kind)
    numbers = _NUMBERS.get(value.__class__)
    found = numbers[kind].get(value) if numbers is not None and kind in numbers else None
    # 0.0 and -0.0 are one key of a dict; NaN is none.
    if found is None or (found.op is ZERO and value.__class__ is float and copysign(1.0, value) < 0.0):
        refuse_overflow(name, value, kind.dtype)
        found = constant(value, kind)
        if numbers is not None and value == value and (value != 0 or found.op is ZERO):
            _keep_number(numbers, value, found)
    return found


def _keep_number(numbers: _Numbers, value: Any, node: Node) -> None:
    if len(numbers) >= _MOST_NUMBERS:
        numbers.clear()
    of_kind = numbers.setdefault(node.kind, {})
    if len(of_kind) >= _MOST_NUMBERS:
        of_kind.clear()
    of_kind[value] = node


def refuse_overflow(name: str, value: Any, dtype: Dtype) -> None:
    """A Python integer that meets an integer array must be one of its numbers: to wrap it would be a wrong answer. What
    stands for a number in a trace decides that for later calls too."""
    if type(value) is Dim and dtype.is_integer and _is_huge(value):
        value = value.__index__()
    if value.__class__ is not int or not dtype.is_integer:
        return
    low, high = (-(1 << dtype.bits - 1), 1 << dtype.bits - 1) if dtype.kind == "i" else (0, 1 << dtype.bits)
    if not low <= value < high:
        raise ValueError(f"[{name}] {value} does not fit in {dtype.name}; convert the array with astype first.")


def _is_huge(n: Dim) -> bool:
    """Whether a number computed from sizes is too large for programs and guards, which have 62 bits for it: it is then
    the number that it is in this trace."""
    return not -(1 << 62) < n < 1 << 62


def size_node(n: Any, kind: ArrayType) -> Node:
    """A size (or a number computed from sizes) in every element of `kind`; symbols stay symbols."""
    if type(n) is not Dim:
        return scalar_node(n, kind)
    if _is_huge(n):
        return constant(n.__index__(), kind)
    return broadcast_node(astype(bind(Extent(n)), kind.dtype), kind.shape)


def to_node(value: Any, dtype: Dtype | None = None) -> Node:
    """The node of anything array-like (Python numbers get their default dtype)."""
    if isinstance(value, array):
        return value._node
    cls = value.__class__
    if type(value) is Dim:
        return size_node(value, kind_of((), dtype or default_dtype(value)))
    if cls in _SCALARS:
        return constant(value, kind_of((), dtype or default_dtype(value)))
    if hasattr(value, "__mlx_array__"):
        return array(value, dtype)._node
    values, kind = interop.as_numpy(value, dtype)
    return Node(DATA, (), kind_of(values.shape, kind), to_buffer(values))


def default_dtype(value: Any) -> Dtype:
    if value.__class__ is int and not -(1 << 31) <= value < 1 << 31:
        return dt.int64
    return dt.default_of(value.__class__)


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """The shape that arrays of these shapes have together."""
    result: list[Any] = []
    for axis in range(-max(map(len, shapes), default=0), 0):
        size: Any = 1
        for shape in shapes:
            if -axis > len(shape):
                continue
            n = shape[axis]
            if type(n) is int and n == 1:
                continue
            if type(size) is int and size == 1:
                size = n
            elif type(n) is int and type(size) is int:
                if n != size:
                    raise ValueError(
                        f"[{name}] shapes {' and '.join(map(str, shapes))} cannot be broadcast: {size} and {n} differ, "
                        "and neither is 1; reshape one of them."
                    )
            else:
                size = broadcast_dims(size, n)
        result.append(size)
    return tuple(result)


def broadcast_node(node: Node, shape: Shape) -> Node:
    """`node` in `shape`, repeated along new axes and axes of size 1."""
    if same_shape(node.kind.shape, shape):
        return node
    if isinstance(node.op, Constant):
        return Node(node.op, (), kind_of(shape, node.dtype), node.value)
    first = len(shape) - node.ndim
    return bind(Broadcast(shape, tuple(range(first, len(shape)))), node)


def apply(op: Primitive, *nodes: Node) -> array:
    """Bind and wrap."""
    return wrap(bind(op, *nodes))


# ---- composites ----


def in_parts() -> bool:
    """Whether operations are made of their parts at once. Derivatives see these: their terms are added one by one, in
    the order of the parts."""
    return bool(OPEN) and is_transforming()


def composed(op: Composite, parts: bool, *nodes: Node) -> array:
    """A composite, or its parts; these where sizes are symbols, too, which a trace may ask for."""
    parts = parts or any(node.kind.symbolic for node in nodes)
    return wrap(op.decompose(*nodes) if parts else bind(op, *nodes))


# ---- binary operations ----


def promoted(name: str, a: Any, b: Any) -> tuple[Node, Node]:
    """Two operands in one dtype and shape. Numbers and NumPy's arrays take the dtype of an array if their kind can."""
    a, b = plain(a), plain(b)
    x_scalar, y_scalar = a.__class__ in _SCALARS, b.__class__ in _SCALARS
    if x_scalar and not y_scalar:
        y = to_node(b)
        dtype = dt.promote_scalar(y.dtype, a.__class__)
        return scalar_node(a, kind_of(y.shape, dtype), name), astype(y, dtype)
    if y_scalar and not x_scalar:
        x = to_node(a)
        dtype = dt.promote_scalar(x.dtype, b.__class__)
        return astype(x, dtype), scalar_node(b, kind_of(x.shape, dtype), name)
    return together(name, to_node(a, _yielding(a, b)), to_node(b, _yielding(b, a)))


def together(name: str, x: Node, y: Node) -> tuple[Node, Node]:
    """Two nodes in one dtype and one shape."""
    dtype = dt.promote(x.dtype, y.dtype)
    shape = broadcast_shapes(name, x.shape, y.shape)
    return broadcast_node(astype(x, dtype), shape), broadcast_node(astype(y, dtype), shape)


_PYTHON = {"b": bool, "i": int, "u": int, "f": float, "c": complex, "V": float}
"""NumPy's kinds as Python numbers; V is what NumPy calls the kind of bfloat16."""
_YIELDS = {("i", "i"), ("u", "u"), ("f", "f"), ("c", "c"), ("i", "f"), ("u", "f"), ("i", "c"), ("u", "c"), ("f", "c")}


def plain(value: Any) -> Any:
    """A NumPy scalar as the Python number that it is."""
    if not isinstance(value, np.generic) or value.dtype.kind not in _PYTHON:
        return value
    return _PYTHON[value.dtype.kind](value)


def _yielding(value: Any, other: Any) -> Dtype | None:
    """The dtype that a NumPy array takes beside one of ours: its int64 and float64 are mostly NumPy's defaults."""
    if not isinstance(value, np.ndarray) or not isinstance(other, array):
        return None
    kind = "f" if value.dtype.kind == "V" else value.dtype.kind
    return other.dtype if (kind, other.dtype.kind) in _YIELDS else None


def refuse_dtype(name: str, op: Primitive, dtype: Dtype) -> None:
    """Raise if a function is not defined for a dtype, naming those that it is defined for."""
    if dtype in op.dtypes:
        return
    words = {"b": "bool", "ui": "integers", "f": "floats", "c": "complex numbers"}
    defined = [word for kinds, word in words.items() if any(d.kind in kinds for d in op.dtypes)]
    listed = " and ".join(filter(None, (", ".join(defined[:-1]), defined[-1])))
    raise ValueError(f"[{name}] is defined for {listed}, not for {dtype.name}; convert with astype.")


def _same(dtype: Dtype) -> Dtype:
    return dtype


class Binary:
    """A binary function of arrays and numbers. `operand`: the dtype to compute in; `inexact`: integers as floats."""

    __slots__ = ("_known", "call", "kinds", "name", "op", "operand", "pairs", "reflected", "results")

    def __init__(
        self, op: Primitive, name: str, inexact: bool = False, operand: Callable[[Dtype], Dtype] | None = None
    ) -> None:
        self.op, self.name = op, name
        self.operand = operand or (dt.inexact_of if inexact else _same)
        self.results: dict[ArrayType, ArrayType] = {}
        """Result kind for two operands of one kind that need no conversion: the fast path."""
        self.kinds: dict[tuple[ArrayType, type], tuple[ArrayType, ArrayType]] = {}
        """(operand kind, result kind) for an array and a Python number."""
        self.pairs: dict[tuple[ArrayType, ArrayType], Callable[..., Any]] = {}
        """For other pairs of arrays: what brings them to a common kind and makes the node."""
        self._known: Known = (self.results, {}, {}, _NUMBERS[float], _NUMBERS[int])
        self.call: Callable[[Any, Any], array] = MAKERS.binary(op, self._known, self.general)
        self.reflected: Callable[[Any, Any], array] = MAKERS.reflected(op, self._known, self.turned)

    def general(self, a: Any, b: Any) -> array:
        """What `call` gives; that has forms of its own for two arrays of one kind, and an array and a number."""
        if a.__class__ is array:
            x = a._node
            if b.__class__ is array:
                y = b._node
                if x.kind is y.kind:
                    kind = self.results.get(x.kind)
                    if kind is not None:
                        return wrap(Node(self.op, (x, y), kind))
                pair = self.pairs.get((x.kind, y.kind))
                if pair is not None and x.op.__class__ is not Constant and y.op.__class__ is not Constant:
                    return wrap(pair(x, y))
            else:
                known = self.kinds.get((x.kind, b.__class__))
                if known is not None:
                    return wrap(Node(self.op, (x, scalar_node(b, x.kind, self.name)), known[1]))
        return self.slow(a, b)

    def turned(self, a: Any, b: Any) -> array:
        """What `reflected` gives: b op a, for an array a and a number b."""
        x = a._node
        known = self.kinds.get((x.kind, b.__class__))
        if known is not None:
            return wrap(Node(self.op, (scalar_node(b, x.kind, self.name), x), known[1]))
        return self.slow(b, a)

    def slow(self, a: Any, b: Any) -> array:
        node = self._made(a, b)
        if not node.kind.symbolic:
            self._remember(a, b, node)
        return wrap(node)

    def _made(self, a: Any, b: Any) -> Node:
        x, y = promoted(self.name, a, b)
        dtype = self.operand(x.dtype)
        refuse_dtype(self.name, self.op, dtype)
        return bind(self.op, astype(x, dtype), astype(y, dtype))

    def _remember(self, a: Any, b: Any, made: Node) -> None:
        operand, result = made.inputs[0].kind, made.kind
        if a.__class__ is array and b.__class__ is array:
            if a._node.kind is operand and b._node.kind is operand:
                bounded(self.results)[operand] = result
                return
            given = [Node(Placeholder(self.name), (), x._node.kind) for x in (a, b)]
            steps = Forward(given, self._made(wrap(given[0]), wrap(given[1])))
            bounded(self.pairs)[a._node.kind, b._node.kind] = steps.run
        elif a.__class__ is array and a._node.kind is operand and b.__class__ in _SCALARS:
            self._remember_number(b.__class__, operand, result)
        elif b.__class__ is array and b._node.kind is operand and a.__class__ in _SCALARS:
            self._remember_number(a.__class__, operand, result)

    def _remember_number(self, number: type, operand: ArrayType, result: ArrayType) -> None:
        bounded(self.kinds)[operand, number] = (operand, result)
        if number is float or number is int:
            bounded(self._known[1 if number is float else 2])[operand] = result


def bounded(table: dict[Any, Any]) -> dict[Any, Any]:
    if len(table) >= 1 << 12:
        table.clear()
    return table


class Unary:
    """A function of one array. `inexact` makes integers floats first."""

    __slots__ = ("call", "inexact", "name", "op", "results")

    def __init__(self, op: Primitive, name: str, inexact: bool = False) -> None:
        self.op, self.name, self.inexact = op, name, inexact
        self.results: dict[ArrayType, ArrayType] = {}
        self.call: Callable[[Any], array] = MAKERS.unary(op, self.results, self.general)

    def general(self, a: Any) -> array:
        """What `call` gives; that has a form of its own for arrays of kinds seen before."""
        if a.__class__ is array:
            x = a._node
            kind = self.results.get(x.kind)
            if kind is not None:
                return wrap(Node(self.op, (x,), kind))
        return self.slow(a)

    def slow(self, a: Any) -> array:
        given = to_node(a)
        x = astype(given, dt.inexact_of(given.dtype)) if self.inexact else given
        refuse_dtype(self.name, self.op, x.dtype)
        node = bind(self.op, x)
        if x is given and not node.kind.symbolic:
            bounded(self.results)[x.kind] = node.kind
        return wrap(node)


# ---- axes ----


def normalize_axis(name: str, axis: int, ndim: int) -> int:
    """A non-negative axis."""
    try:
        index = axis.__index__()
    except (AttributeError, TypeError):
        shape = getattr(axis, "shape", None)
        what = repr(axis) if shape is None else f"an array of shape {shape}"
        raise TypeError(f"[{name}] an axis must be an integer; got {what}.") from None
    if not -ndim <= index < ndim:
        known = f"axes go from {-ndim} to {ndim - 1}" if ndim else "a 0-d array has none"
        raise BadIndex(f"[{name}] axis {index} is out of range for an array with {ndim} axes: {known}.")
    return index + ndim if index < 0 else index


def normalize_axes(name: str, axes: Axes, ndim: int) -> tuple[int, ...]:
    """Sorted, non-negative, distinct axes; None means all."""
    if axes is None:
        return tuple(range(ndim))
    if not is_sequence(axes):
        axes = (axes,)  # type: ignore[assignment]
    found = [normalize_axis(name, axis, ndim) for axis in axes]  # type: ignore[union-attr]
    if len(set(found)) != len(found):
        raise ValueError(f"[{name}] axes {tuple(axes)} name an axis twice.")  # type: ignore[arg-type]
    return tuple(sorted(found))


__all__ = [
    "ArrayLike", "Axes", "Binary", "Scalar", "Unary", "apply", "array", "astype", "bind", "broadcast_node",
    "broadcast_shapes", "constant", "default_dtype", "is_sequence", "kind_of", "normalize_axes", "normalize_axis",
    "plain", "promoted",
    "refuse_dtype", "refuse_overflow", "reshape", "scalar_node", "to_int64", "to_node", "together", "transpose",
    "whole_number", "wrap",
]  # fmt: skip
