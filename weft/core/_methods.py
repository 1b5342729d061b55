"""Operators and methods of arrays: the functions of this package, attached to the class in one table."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np

from weft import tree
from weft.array import array
from weft.core import elementwise as e
from weft.core import gathering, indexing, joining, linear, reducing, scanning, shaping, viewing
from weft.core._remember import remembered_all
from weft.errors import NotArrayLike
from weft.graph.dims import Dim
from weft.graph.scalars import SCALARS
from weft.graph.trace import is_tracing, is_transforming
from weft.runtime.objects import MAKERS

_BINARY = {
    "add": e.add, "sub": e.subtract, "mul": e.multiply, "truediv": e.divide, "pow": e.power, "and": e.bitwise_and,
    "or": e.bitwise_or, "xor": e.bitwise_xor, "lshift": e.left_shift, "rshift": e.right_shift,
    "mod": e.remainder, "floordiv": e.floor_divide,
}  # fmt: skip
_COMPARE = {"lt": e.less, "le": e.less_equal, "gt": e.greater, "ge": e.greater_equal}
_COMPARABLE = frozenset({array, bool, int, float, complex, Dim, *SCALARS})
_UFUNCS: dict[Any, Any] = {
    np.add: e.add, np.subtract: e.subtract, np.multiply: e.multiply, np.divide: e.divide, np.power: e.power,
    np.bitwise_and: e.bitwise_and, np.bitwise_or: e.bitwise_or, np.bitwise_xor: e.bitwise_xor,
    np.left_shift: e.left_shift, np.right_shift: e.right_shift, np.remainder: e.remainder,
    np.floor_divide: e.floor_divide, np.matmul: linear.matmul, np.less: e.less, np.less_equal: e.less_equal,
    np.greater: e.greater, np.greater_equal: e.greater_equal, np.equal: e.equal, np.not_equal: e.not_equal,
}  # fmt: skip
"""What NumPy's operators call."""
_UNARY: dict[str, Any] = {"neg": e.negative, "abs": e.abs, "invert": e.bitwise_invert, "pos": e.positive}
_METHODS: dict[str, Any] = {
    "abs": e.abs,
    "square": e.square,
    "sqrt": e.sqrt,
    "rsqrt": e.rsqrt,
    "reciprocal": e.reciprocal,
    "exp": e.exp,
    "log": e.log,
    "log1p": e.log1p,
    "log2": e.log2,
    "log10": e.log10,
    "sin": e.sin,
    "cos": e.cos,
    "round": e.round,
    "conj": e.conjugate,
    "astype": e.astype,
    "view": viewing.view,
    "flatten": shaping.flatten,
    "squeeze": shaping.squeeze,
    "swapaxes": shaping.swapaxes,
    "moveaxis": shaping.moveaxis,
    "split": shaping.split,
    "sum": reducing.sum,
    "prod": reducing.prod_,
    "max": reducing.max,
    "min": reducing.min,
    "all": reducing.all,
    "any": reducing.any,
    "argmax": reducing.argmax,
    "argmin": reducing.argmin,
    "mean": reducing.mean,
    "var": reducing.var,
    "std": reducing.std,
    "logsumexp": reducing.logsumexp,
    "cumsum": scanning.cumsum,
    "cumprod": scanning.cumprod,
    "cummax": scanning.cummax,
    "cummin": scanning.cummin,
    "logcumsumexp": scanning.logcumsumexp,
    "diag": joining.diag,
    "diagonal": joining.diagonal,
}


def _binary(function: Any) -> tuple[Any, Any, Any]:
    compute = function.operator
    direct = compute.call

    # What is no operand at all may know how to meet an array; if it does not either, Python says so.

    def forward(self: array, other: Any) -> array:
        try:
            return direct(self, other)  # type: ignore[no-any-return]
        except NotArrayLike:
            return NotImplemented

    turned = compute.reflected

    def reflected(self: array, other: Any) -> array:
        return turned(self, other)  # type: ignore[no-any-return]

    def in_place(self: array, other: Any) -> array:
        # As in MLX the array takes the promoted dtype; but a division that silently made floats of integers
        # would surprise.
        if compute.operand(self.dtype).is_inexact and not self.dtype.is_inexact:
            raise ValueError(f"[{compute.name}] in place would make floats of {self.dtype.name}; write a = a / b.")
        return self._overwrite(direct(self, other))

    return forward, reflected, in_place


def _guarded(function: Any) -> Any:
    """Operators answer NotImplemented for operands that are not numbers or arrays, so that Python's own error
    appears."""

    def operator(self: array, other: Any) -> Any:
        try:
            return function(self, other)
        except NotArrayLike:
            return NotImplemented

    return operator


def _one_sequence(given: tuple[Any, ...]) -> Any:
    """What was given as numbers, or as one sequence of them."""
    return given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given


@remembered_all(1)
def _reshape(a: array, *shape: Any) -> array:
    return shaping.reshape(a, _one_sequence(shape))


def reshape(self: array, *shape: Any, stream: Any = None) -> array:
    """The elements in another shape, given as numbers or as one sequence."""
    return _reshape(self, *shape)


@remembered_all(1)
def _transpose(a: array, *axes: Any) -> array:
    return shaping.transpose(a, _one_sequence(axes)) if axes else shaping.transpose(a)


def transpose(self: array, *axes: Any, stream: Any = None) -> array:
    """Axes in another order (reversed by default), given as numbers or as one sequence."""
    return _transpose(self, *axes)


def _eq(self: array, other: Any) -> Any:
    return e.equal(self, other) if _is_comparable(other) else NotImplemented


def _ne(self: array, other: Any) -> Any:
    return e.not_equal(self, other) if _is_comparable(other) else NotImplemented


def _is_comparable(other: Any) -> bool:
    """Whether == is asked of every element. An array is not equal to a string, None, or, as in MLX, a list: searching
    a list for it must not fail."""
    if other.__class__ in _COMPARABLE or isinstance(other, (array, Number)):
        return True
    return any(hasattr(other, name) for name in ("__mlx_array__", "__array__", "__dlpack__"))


def _divmod(self: array, other: Any) -> tuple[array, array]:
    return e.floor_divide(self, other), e.remainder(self, other)


def _rdivmod(self: array, other: Any) -> tuple[array, array]:
    return e.floor_divide(other, self), e.remainder(other, self)


def _matmul(self: array, other: Any) -> array:
    return linear.matmul(self, other)


def _rmatmul(self: array, other: Any) -> array:
    return linear.matmul(other, self)


def _imatmul(self: array, other: Any) -> array:
    return self._overwrite(linear.matmul(self, other))


# ---- NumPy's functions and operators ----


def _seen_by_numpy(given: Any) -> Any:
    """Arguments of one of NumPy's functions, with its own arrays in the place of ours."""
    return tree.map(lambda leaf: leaf._view() if isinstance(leaf, array) else leaf, given)


def _array_ufunc(self: array, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy computes with its own arrays and gives one of its own, as with MLX's. A number of NumPy's is an operand
    like Python's; and while a function is differentiated or batched, nothing may happen beside its graph."""
    ours = is_transforming() or any(isinstance(x, np.generic) for x in inputs)
    if ours and method == "__call__" and not options and ufunc in _UFUNCS:
        return _UFUNCS[ufunc](*inputs)
    try:
        inputs, options = _seen_by_numpy((inputs, options))
    except ValueError as error:
        if not is_tracing():
            raise
        problem = f"{error} NumPy's {ufunc.__name__} computes with values; give the other operand to array(...) first."
        raise ValueError(problem) from None
    return getattr(ufunc, method)(*inputs, **options)


def _array_function(self: array, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """NumPy's functions take our arrays as its own. What is known without the elements is not computed for them."""
    if function in (np.shape, np.ndim) or (function is np.size and len(args) == 1 and not kwargs):
        given = args[0] if args else next(iter(kwargs.values()))
        return getattr(given, function.__name__)
    return function(*_seen_by_numpy(args), **_seen_by_numpy(kwargs))


_DIRECT = {"add": e.add, "subtract": e.subtract, "multiply": e.multiply, "divide": e.divide}
"""Operators that machine code makes."""


def attach() -> None:
    """Give the array class its operators and methods."""
    owner: Any = array
    for name, binary in _BINARY.items():
        forward, reflected, in_place = _binary(binary)
        setattr(owner, f"__{name}__", forward)
        setattr(owner, f"__r{name}__", _guarded(reflected))
        setattr(owner, f"__i{name}__", _guarded(in_place))
    for name, binary in _COMPARE.items():
        setattr(owner, f"__{name}__", _binary(binary)[0])
    MAKERS.operators({name: function.operator.call for name, function in _DIRECT.items()})  # type: ignore[attr-defined]
    for name, function in _UNARY.items():
        setattr(owner, f"__{name}__", lambda self, f=function: f(self))
    for name, function in _METHODS.items():
        setattr(owner, name, function)
    owner.reshape, owner.transpose = reshape, transpose
    owner.__eq__, owner.__ne__ = _eq, _ne
    special: dict[str, Any] = {"matmul": _matmul, "rmatmul": _rmatmul, "imatmul": _imatmul}
    special |= {"getitem": indexing.getitem, "setitem": indexing.setitem}
    special |= {"divmod": _guarded(_divmod), "rdivmod": _guarded(_rdivmod)}
    special |= {"array_ufunc": _array_ufunc, "array_function": _array_function}
    special |= {"div": array.__truediv__, "rdiv": array.__rtruediv__}
    for name, method in special.items():
        setattr(owner, f"__{name}__", method)
    owner.at = property(gathering.ArrayAt, doc="Updates of parts: `a.at[index].add(value)` and others.")
    owner.mT = property(shaping.matrix_transpose, doc="The array with its last two axes exchanged.")
    owner.T = property(shaping.transpose, doc="The array with its axes reversed.")
    owner.real = property(e.real, doc="The real part.")
    owner.imag = property(e.imag, doc="The imaginary part.")
