"""The lazy array: the user's handle on a node of the graph.

An array records what was asked of it; values are computed when they are needed (`eval`, `item`, printing, conversion).
The class here knows how to be made, looked at and passed to other libraries; its arithmetic and methods are the
functions of `weft.core`, attached there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from weakref import ref

import numpy as np

from weft import interop, printing
from weft.dtypes import (
    Dtype,
    bfloat16,
    bool_,
    complex64,
    complex128,
    default_of,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from weft.evaluate import evaluated, evaluated_beside
from weft.graph.node import Node, kind_of
from weft.graph.overlay import HERE, SWITCHES
from weft.graph.scalars import SCALARS
from weft.graph.trace import note_change
from weft.primitives.base import DATA, ConstantValue, constant
from weft.runtime.cpython import getbuffer
from weft.runtime.data import Buffer, numpy_view, to_buffer
from weft.runtime.objects import MAKERS

if TYPE_CHECKING:
    from weft.core.gathering import ArrayAt  # made there, and attached

_new = object.__new__

Axes = int | Sequence[int] | None


class array:
    """An n-dimensional array.

    Parameters
    ----------
    val : scalar, nested lists, NumPy array, or anything with `__array__`, a buffer or DLPack
    dtype : the element type; by default Python and NumPy double precision become float32, everything else keeps its
    type

    >>> array([[1, 2], [3, 4]]) * 0.5
    array([[0.5, 1],
           [1.5, 2]], dtype=float32)
    """

    __slots__ = ("__weakref__", "_node")
    _node: Node

    def __init__(self, val: Any, dtype: Dtype | None = None) -> None:
        if isinstance(val, array):
            node = val._node if dtype is None or dtype is val.dtype else val.astype(dtype)._node
            self._bind(node)
            return
        if isinstance(val, (list, tuple)) and _holds_array(val):
            self._bind(_stacked(val, dtype)._node)
            return
        if type(val) in SCALARS and (isinstance(dtype, Dtype) or (dtype is None and _is_usual(val))):
            self._bind(constant(val, kind_of((), dtype or default_of(val.__class__))))
            return
        if hasattr(val, "__mlx_array__"):
            self.__init__(val.__mlx_array__(), dtype)  # type: ignore[misc]
            return
        if dtype is not None and not isinstance(dtype, Dtype):
            raise TypeError(f"[array] dtype must be a Weft dtype such as float32; got {dtype!r}.")
        values, kind = interop.as_numpy(val, dtype)
        self._bind(Node(DATA, (), kind_of(values.shape, kind), to_buffer(values)))

    if TYPE_CHECKING:  # attached by weft.core, which knows the operations

        def __getitem__(self, key: Any) -> array: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...
        def __add__(self, other: Any) -> array: ...
        def __radd__(self, other: Any) -> array: ...
        def __sub__(self, other: Any) -> array: ...
        def __rsub__(self, other: Any) -> array: ...
        def __mul__(self, other: Any) -> array: ...
        def __rmul__(self, other: Any) -> array: ...
        def __truediv__(self, other: Any) -> array: ...
        def __rtruediv__(self, other: Any) -> array: ...
        def __floordiv__(self, other: Any) -> array: ...
        def __rfloordiv__(self, other: Any) -> array: ...
        def __mod__(self, other: Any) -> array: ...
        def __rmod__(self, other: Any) -> array: ...
        def __pow__(self, other: Any) -> array: ...
        def __rpow__(self, other: Any) -> array: ...
        def __matmul__(self, other: Any) -> array: ...
        def __rmatmul__(self, other: Any) -> array: ...
        def __and__(self, other: Any) -> array: ...
        def __rand__(self, other: Any) -> array: ...
        def __or__(self, other: Any) -> array: ...
        def __ror__(self, other: Any) -> array: ...
        def __xor__(self, other: Any) -> array: ...
        def __rxor__(self, other: Any) -> array: ...
        def __lshift__(self, other: Any) -> array: ...
        def __rlshift__(self, other: Any) -> array: ...
        def __rshift__(self, other: Any) -> array: ...
        def __rrshift__(self, other: Any) -> array: ...
        def __lt__(self, other: Any) -> array: ...
        def __le__(self, other: Any) -> array: ...
        def __gt__(self, other: Any) -> array: ...
        def __ge__(self, other: Any) -> array: ...
        def __iadd__(self, other: Any) -> array: ...
        def __isub__(self, other: Any) -> array: ...
        def __imul__(self, other: Any) -> array: ...
        def __itruediv__(self, other: Any) -> array: ...
        def __ifloordiv__(self, other: Any) -> array: ...
        def __imod__(self, other: Any) -> array: ...
        def __ipow__(self, other: Any) -> array: ...
        def __imatmul__(self, other: Any) -> array: ...
        def __iand__(self, other: Any) -> array: ...
        def __ior__(self, other: Any) -> array: ...
        def __ixor__(self, other: Any) -> array: ...
        def __eq__(self, other: Any) -> array: ...  # type: ignore[override]
        def __ne__(self, other: Any) -> array: ...  # type: ignore[override]
        def __divmod__(self, other: Any) -> tuple[array, array]: ...
        def __rdivmod__(self, other: Any) -> tuple[array, array]: ...
        def __neg__(self) -> array: ...
        def __pos__(self) -> array: ...
        def __abs__(self) -> array: ...
        def __invert__(self) -> array: ...
        @property
        def T(self) -> array: ...
        @property
        def mT(self) -> array: ...
        @property
        def real(self) -> array: ...
        @property
        def imag(self) -> array: ...
        @property
        def at(self) -> ArrayAt: ...
        def abs(self, *, stream: Any = None) -> array: ...
        def square(self, *, stream: Any = None) -> array: ...
        def sqrt(self, *, stream: Any = None) -> array: ...
        def rsqrt(self, *, stream: Any = None) -> array: ...
        def reciprocal(self, *, stream: Any = None) -> array: ...
        def exp(self, *, stream: Any = None) -> array: ...
        def log(self, *, stream: Any = None) -> array: ...
        def log1p(self, *, stream: Any = None) -> array: ...
        def log2(self, *, stream: Any = None) -> array: ...
        def log10(self, *, stream: Any = None) -> array: ...
        def sin(self, *, stream: Any = None) -> array: ...
        def cos(self, *, stream: Any = None) -> array: ...
        def conj(self, *, stream: Any = None) -> array: ...
        def round(self, decimals: int = 0, stream: Any = None) -> array: ...
        def astype(self, dtype: Dtype, stream: Any = None) -> array: ...
        def view(self, dtype: Dtype, stream: Any = None) -> array: ...
        def flatten(self, start_axis: int = 0, end_axis: int = -1, *, stream: Any = None) -> array: ...
        def reshape(self, *shape: Any, stream: Any = None) -> array: ...
        def transpose(self, *axes: Any, stream: Any = None) -> array: ...
        def squeeze(self, axis: Axes = None, *, stream: Any = None) -> array: ...
        def swapaxes(self, axis1: int, axis2: int, *, stream: Any = None) -> array: ...
        def moveaxis(self, source: int, destination: int, *, stream: Any = None) -> array: ...
        def split(self, indices_or_sections: Any, axis: int = 0, *, stream: Any = None) -> list[array]: ...
        def diag(self, k: int = 0, *, stream: Any = None) -> array: ...
        def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1, stream: Any = None) -> array: ...
        def sum(self, axis: Axes = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def prod(self, axis: Axes = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def max(self, axis: Axes = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def min(self, axis: Axes = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def all(self, axis: Axes = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def any(self, axis: Axes = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def mean(self, axis: Axes = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def logsumexp(self, axis: Axes = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def argmax(self, axis: int | None = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def argmin(self, axis: int | None = None, keepdims: bool = False, *, stream: Any = None) -> array: ...
        def var(
            self, axis: Axes = None, keepdims: bool = False, ddof: int = 0, *, correction: int | None = None,
            stream: Any = None,
        ) -> array: ...  # fmt: skip
        def std(
            self, axis: Axes = None, keepdims: bool = False, ddof: int = 0, *, correction: int | None = None,
            stream: Any = None,
        ) -> array: ...  # fmt: skip
        def cumsum(
            self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, dtype: Dtype | None = None,
            stream: Any = None,
        ) -> array: ...  # fmt: skip
        def cumprod(
            self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, dtype: Dtype | None = None,
            stream: Any = None,
        ) -> array: ...  # fmt: skip
        def cummax(
            self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: Any = None
        ) -> array: ...
        def cummin(
            self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: Any = None
        ) -> array: ...
        def logcumsumexp(
            self, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: Any = None
        ) -> array: ...

    # ---- handles ----

    def _bind(self, node: Node) -> None:
        """Refer to `node`, which learns of it: nodes that a live array refers to are results of an evaluation."""
        self._node = node
        handle = node.handle
        if handle is None:
            node.handle = ref(self)
        else:
            others = handle if isinstance(handle, tuple) else (handle,)
            node.handle = (*(h for h in others if h() is not None), ref(self))

    def _overwrite(self, other: array) -> array:
        """Become `other`: what in-place operators and item assignment do. Every name for this array sees it."""
        note_change(self)
        self._bind(other._node)
        return self

    # ---- attributes ----

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self._node.kind.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> Dtype:
        """Element type."""
        return self._node.kind.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._node.kind.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._node.kind.size  # type: ignore[return-value]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._node.kind.dtype.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    # ---- values ----

    def _view(self) -> np.ndarray:
        """The computed elements as NumPy sees them, without a copy (but for bools that are bytes seen as such)."""
        node = self._node
        value = node.value
        while value.__class__ is not Buffer:  # again if another thread overwrites it the moment that it is there
            node = self._evaluated(node)
            value = node.value
        seen = numpy_view(value, node.shape, node.dtype)  # type: ignore[arg-type]
        return interop.truths(seen) if node.dtype is bool_ else seen

    def _evaluated(self, node: Node) -> Node:
        """The node that this array has, or had a moment ago, with its elements in memory. Constants are shared (by
        rules, by other arrays, by threads): the elements of one are written to a new node, which takes its place."""
        if not isinstance(node.value, ConstantValue):
            return evaluated(node)
        there = evaluated_beside(node)  # a number of a function that another thread is tracing stays what it is
        kind, number = (there or node).kind, (there or node).value.number
        made = Node(DATA, (), kind, to_buffer(np.full(kind.shape, number, kind.dtype.np)))  # type: ignore[arg-type]
        if there is None:
            self._exchange(node, made)
        return made

    def _exchange(self, old: Node, new: Node) -> None:
        """Refer to a node of the same value, unless another thread has overwritten this array meanwhile."""
        new.handle = ref(self)
        if self._node is old:  # Python changes threads at calls and at the end of a loop's round, and here is neither
            self._node = new

    def item(self) -> Any:
        """The only element, as a Python number."""
        if self.size != 1:
            raise ValueError(f"[item] only an array of one element is a number; this has shape {self.shape}.")
        return interop.to_list(self._view().reshape(()), self.dtype)

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return interop.to_list(self._view(), self.dtype)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"[bool] the truth of an array of shape {self.shape} is ambiguous; "
                "use any(...) or all(...), or index one element."
            )
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())  # of a complex number Python says that it cannot

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer or self.ndim:
            kind = f"{self.dtype.name} of shape {self.shape}"
            raise TypeError(f"[index] only a 0-d array of integers can be an index; this is {kind}.")
        return int(self.item())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("[len] a 0-d array has no length.")
        return self.shape[0]

    def __iter__(self) -> Iterator[array]:
        if self.ndim == 0:
            raise TypeError("[iter] a 0-d array cannot be iterated over.")
        return ArrayIterator(self)

    def __hash__(self) -> int:
        return id(self)

    # ---- printing, copying, exchange ----

    def __repr__(self) -> str:
        return printing.format_array(self._view(), self.dtype)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        if self.ndim == 0:
            return format(self.item(), spec)
        if spec:
            raise TypeError(f"[format] {spec!r} formats one number; this array has shape {self.shape}.")
        return repr(self)

    def __copy__(self) -> array:
        return wrap(self._node)

    def __deepcopy__(self, memo: Any) -> array:
        return wrap(self._node)  # values never change, so a copy may share them

    def __getstate__(self) -> tuple[np.ndarray, int]:
        """What pickle writes, in MLX's form, so that each library reads what the other wrote: the elements and the
        number of the dtype."""
        values = np.array(self._view(), order="C", copy=True)
        return values.view(np.uint16) if self.dtype is bfloat16 else values, _NUMBERS.index(self.dtype)

    def __setstate__(self, state: tuple[np.ndarray, int]) -> None:
        """Take what a pickle holds, which may be damaged or not from here at all: every part of it is checked."""
        elements, dtype = _unpickled(state)
        node = Node(DATA, (), kind_of(elements.shape, dtype), to_buffer(elements))
        if hasattr(self, "_node"):
            note_change(self)
        self._bind(node)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The elements as NumPy's: a copy that may be written to, or a view that may not (`copy` None or False)."""
        view = self._view()
        if dtype is not None and np.dtype(dtype) != view.dtype:
            if copy is False:
                raise ValueError(f"[array] conversion of {self.dtype.name} to {np.dtype(dtype)} needs a copy.")
            return view.astype(dtype)
        return view.copy() if copy else view

    def __dlpack__(self, **options: Any) -> Any:
        return interop.export_dlpack(self._view(), self.dtype, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return interop.dlpack_device()

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return NAMESPACE[0]


class ArrayIterator:
    """The parts of an array along its first axis, one after the other."""

    __slots__ = ("_array", "_places")

    def __init__(self, a: array) -> None:
        self._array, self._places = a, iter(range(a.shape[0]))

    def __iter__(self) -> ArrayIterator:
        return self

    def __next__(self) -> array:
        return self._array[next(self._places)]

    def __length_hint__(self) -> int:
        return length_hint(self._places)


@runtime_checkable
class ArrayLike(Protocol):
    """Anything with a method `__mlx_array__` that returns an array: functions take it as one."""

    def __mlx_array__(self) -> array: ...


_NUMBERS = (
    bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64, float16, float32, float64, bfloat16, complex64,
    complex128,
)  # fmt: skip
"""MLX's numbers of the dtypes, which stand in pickles; complex128 is ours."""


def _unpickled(state: Any) -> tuple[np.ndarray, Dtype]:
    """The elements and the dtype in the state of a pickled array; ValueError if it is not such a state."""
    if not isinstance(state, tuple) or len(state) != 2 or type(state[0]) is not np.ndarray or type(state[1]) is not int:
        raise ValueError("[array] a pickled array is a pair of a NumPy array and the number of its dtype; this is not.")
    values, number = state
    if not 0 <= number < len(_NUMBERS):
        raise ValueError(f"[array] {number} in a pickled array is the number of no dtype; the pickle is damaged.")
    dtype = _NUMBERS[number]
    stored = np.dtype(np.uint16) if dtype is bfloat16 else dtype.np
    if values.dtype.newbyteorder("=") != stored:
        raise ValueError(
            f"[array] a pickled array of {dtype.name} holds elements of NumPy's {values.dtype}; the pickle is damaged."
        )
    if dtype is bool_:  # bytes of a damaged file are neither true nor false; those of ours are
        return values.view(np.uint8) != 0, dtype
    return values.astype(stored, copy=False).view(dtype.np), dtype


NAMESPACE: list[Any] = []
"""weft.core, put here by itself: arrays name it as their namespace."""


def _wrap(node: Node) -> array:
    made: array = _new(array)
    made._node = node
    if node.handle is None:
        node.handle = ref(made)
    else:
        made._bind(node)
    return made


wrap: Callable[[Node], array] = MAKERS.arrays(array, _wrap)
"""A new array for a node."""


# ---- what a trace sees ----

_slot: Any = array.__dict__["_node"]


def _node_here(self: array) -> Node:
    """The node of an array, as this thread sees it."""
    overlay = HERE.overlay
    found = overlay.get(self) if overlay is not None else None
    return _slot.__get__(self) if found is None else found  # type: ignore[no-any-return]


def _set_node_here(self: array, node: Node) -> None:
    """Refer to a node, as far as this thread can see. A trace writes to arrays that are older than itself for itself
    only, also where it does not know them; the arrays that it makes are its own."""
    overlay = HERE.overlay
    if overlay is None:
        _slot.__set__(self, node)
    elif overlay.get(self) is not None:
        overlay.put(self, node)
    elif _is_older(self, overlay.first):
        overlay.add(self, node)
    else:
        _slot.__set__(self, node)


def _is_older(a: array, first: int) -> bool:
    """Whether an array has had its node since before `first`. (Of constants, which are shared, that is not known.)"""
    try:
        node: Node = _slot.__get__(a)
    except AttributeError:  # a new array
        return False
    return node.id < first and not isinstance(node.value, ConstantValue)


_through_overlays = property(_node_here, _set_node_here)


def _switch(open: bool) -> None:
    """Read the nodes of arrays through overlays, or straight from the slot."""
    wanted = _through_overlays if open else _slot
    if array.__dict__["_node"] is not wanted:
        setattr(array, "_node", wanted)  # noqa: B010  (to mypy it is a slot)


SWITCHES.append(_switch)


def _is_usual(number: Any) -> bool:
    """Whether a number has the default dtype of its type."""
    return number.__class__ is float or -(1 << 31) <= number < 1 << 31


def _holds_array(val: Any) -> bool:
    """Whether a nested list contains an array of ours; looks level by level, so that long lists of numbers cost
    little."""
    level = val
    for _ in range(64):  # deeper nesting is refused later, with a message
        types = set(map(type, level))
        if array in types:
            return True
        if list not in types and tuple not in types:
            return False
        level = [item for part in level if isinstance(part, (list, tuple)) for item in part]
    return False


def _stacked(val: Any, dtype: Dtype | None) -> array:
    """A nested list of arrays and numbers as one array, without evaluating any: gradients flow through."""
    shape, items = interop.unnest(val)
    mx = NAMESPACE[0]
    parts = [item if isinstance(item, array) else array(item) for item in items]
    inner = parts[0].shape
    for part in parts:
        if part.shape != inner:
            raise ValueError(f"[array] arrays of shape {inner} and {part.shape} stand at the same depth of a list.")
    joined: array = mx.stack(parts).reshape(*shape, *inner)
    return joined if dtype is None else joined.astype(dtype)


interop.install_buffer_protocol(array, array._view, getbuffer)
printing.install_in_reprlib()
