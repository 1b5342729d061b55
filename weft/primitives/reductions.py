"""Reductions: many elements to one, in a specified order (docs/numerics.md), the same whatever the layout, fusion or
thread count.

A reduction is a state machine that the row, column and two-stage kernels drive: `start`, `step` per element, `merge` of
two partial states, `finish`. Most have one accumulator and write only `identity` and `combine`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node
from weft.lazy import lazy
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.primitives.base import ByOperand, Discrete, Reduction, Sample, bind, full_like
from weft.primitives.checks import need
from weft.primitives.elementwise import (
    EITHER_ZERO,
    INEXACT,
    Elementwise,
    Greater,
    IsNan,
    Less,
    Maximum,
    Minimum,
    Ordering,
    astype,
    conjugate,
    draw,
    equal,
    select,
    unary,
)
from weft.primitives.integers import Factors, shared
from weft.primitives.views import restore_axes

if TYPE_CHECKING:
    from weft.codegen import kernel
else:
    kernel = lazy("weft.codegen.kernel")

State = tuple[Any, ...]


def _samples(smooth: bool = True, make: Callable[..., np.ndarray] = draw, empty: bool = False) -> tuple[Sample, ...]:
    """Reductions along every kind of axis; `empty`: of nothing, too."""
    cases = {"rows": ((3, 37), (1,)), "columns": ((37, 3), (0,)), "middle": ((2, 5, 4), (1,)), "all": ((4, 9), (0, 1)),
             "apart": ((2, 3, 5), (0, 2)), "long": ((5000,), (0,)), "one": ((4, 1), (1,)),
             "no_rows": ((0, 4), (1,)), "no_columns": ((5, 0), (0,))}  # fmt: skip
    if empty:
        cases |= {"nothing": ((3, 0), (1,)), "nothing_down": ((0, 3), (0,)), "nothing_at_all": ((0,), (0,))}
    return tuple(
        Sample(lambda rng, dtype, shape=shape: [make(rng, dtype, shape)], {"axes": axes}, smooth, name)  # type: ignore[misc]
        for name, (shape, axes) in cases.items()
    )


def _near_one(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Elements of modulus near 1: the product of thousands of them neither vanishes nor overflows."""
    x = draw(rng, dtype, shape, 0.9, 1.1)
    return (x / np.sqrt(2)).astype(dtype.np) if dtype.is_complex else x


class Fold(Reduction):
    """A reduction with one accumulator: an identity and an associative `combine`."""

    def of_nothing(self, dtype: Dtype) -> Any:
        """The result of reducing no elements."""
        return self.identity(dtype)

    def is_exact(self, dtype: Dtype) -> bool:
        """Floats are rounded, or there are two zeros to choose from."""
        return not dtype.is_inexact

    def state_dtypes(self, dtype: Dtype) -> tuple[Dtype, ...]:
        return (self.accumulator(dtype),)

    def start(self, b: Builder, dtype: Dtype, lanes: int) -> State:
        accumulator = self.accumulator(dtype)
        return (_everywhere(b, accumulator, self.identity(accumulator), lanes),)

    def step(self, b: Builder, state: State, x: Any, index: Value) -> State:
        return (self.combine(b, state[0], b.convert(x, state[0].dtype)),)

    def merge(self, b: Builder, state: State, other: State) -> State:
        return (self.combine(b, state[0], other[0]),)

    def finish(self, b: Builder, state: State, dtype: Dtype) -> Any:
        return b.convert(state[0], self.result(dtype))


def _everywhere(b: Builder, dtype: Dtype, number: Any, lanes: int) -> AnyValue:
    """A number in all lanes."""
    if not dtype.is_complex:
        return b.const(dtype, number, lanes)
    part = dt.real_of(dtype)
    return Complex(b.const(part, number.real, lanes), b.const(part, number.imag, lanes))


def smallest(dtype: Dtype) -> Any:
    """What no element of a dtype comes before."""
    if dtype.is_inexact:
        return complex(-np.inf, -np.inf) if dtype.is_complex else -np.inf
    return False if dtype.is_bool else np.iinfo(dtype.np).min


def largest(dtype: Dtype) -> Any:
    """What no element of a dtype comes after."""
    if dtype.is_inexact:
        return complex(np.inf, np.inf) if dtype.is_complex else np.inf
    return True if dtype.is_bool else np.iinfo(dtype.np).max


def sum_dtype(dtype: Dtype) -> Dtype:
    """MLX: small integers are summed in 32 bits."""
    if dtype.is_bool or (dtype.kind == "i" and dtype.size < 4):
        return dt.int32
    return dt.uint32 if dtype.kind == "u" and dtype.size < 4 else dtype


class Sum(Fold):
    """The sum over `axes`; its transpose is Broadcast, which lives in views.py."""

    samples = _samples(empty=True)
    cancels = True
    # Half a unit for every addition of the longest chain: 256 in a lane of a block, 4 in each of the two trees, 1
    # for each 16 blocks.
    tolerance = dict.fromkeys((dt.float32, dt.float64, dt.complex64, dt.complex128), 133.0) | {
        dt.float16: 1,
        dt.bfloat16: 1,
    }

    def result(self, dtype: Dtype) -> Dtype:
        return sum_dtype(dtype)

    def identity(self, dtype: Dtype) -> Any:
        # x + -0.0 is x for every x, and x + 0.0 is not.
        return complex(-0.0, -0.0) if dtype.is_complex else -0.0 if dtype.is_float else 0

    def of_nothing(self, dtype: Dtype) -> Any:
        return 0

    def is_neutral(self, dtype: Dtype) -> bool:
        return True

    def of_equal(self, x: Node, count: int, alone: bool) -> Node | None:
        """Integers wrap, so it does not matter in how many steps they are added; floats are rounded at each one."""
        wide = astype(x, self.result(x.dtype))
        if wide.dtype.is_integer:
            return wide * full_like(wide, count) if count < 1 << 31 else None
        return bind(SumOfEqual(count), wide) if alone and count else None

    def combine(self, b: Builder, x: Any, y: Any) -> Any:
        return x + y

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        to = self.result(dt.from_numpy(x.dtype))
        wide = {"f": np.float64, "c": np.complex128}.get(to.kind, to.np)
        return x.astype(wide).sum(self.axes, dtype=wide).astype(to.np)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return bind(self, tangents[0])

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        return {0: restore_axes(astype(cotangent, primals[0].dtype), primals[0].shape, self.axes)}


class SumOfEqual(Elementwise):
    """The sum of `count` elements, all of them equal to x, in the order of `Sum`: as many additions as its longest
    chains have. `simplify` puts it in the place of sums of what repeats itself."""

    count: int

    samples = tuple(
        Sample(sample.make, {"count": count}, name=f"{sample.name}_{count}")
        for sample in unary
        for count in (1, 7, 1000, 4096, 70001)
    )
    dtypes = INEXACT
    cost = 300
    tolerance = Sum.tolerance

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) * self.count).astype(x.dtype)

    def partials(self, out: Node, x: Node) -> tuple[Node, ...]:
        return (full_like(out, self.count),)

    def emit(self, b: Builder, x: Any) -> Any:
        blocks, rest = divmod(self.count, kernel.BLOCK)
        if blocks == 0:
            return _tree(self._lanes(b, x, rest))
        whole = _tree(self._lanes(b, x, kernel.BLOCK))
        if self.count == kernel.BLOCK:
            return whole
        lanes = self._lanes(b, whole, blocks)
        if rest:
            last = blocks % kernel.LANES
            lanes[last] = lanes[last] + _tree(self._lanes(b, x, rest))
        return _tree(lanes)

    def _lanes(self, b: Builder, x: Any, count: int) -> list[Any]:
        """The partial results of so many elements, which take turns."""
        each, more = divmod(count, kernel.LANES)
        nothing = _everywhere(b, x.dtype, Sum(()).identity(x.dtype), x.lanes)
        with b.loop(0, each, 1, *_parts(nothing)) as loop:
            loop.carry(*_parts(_whole(loop.carried) + x))
        short = _whole(loop.carried)
        return [short + x] * more + [short] * (kernel.LANES - more)


def _parts(x: AnyValue) -> tuple[Value, ...]:
    """What a loop carries of a number."""
    return (x.re, x.im) if isinstance(x, Complex) else (x,)


def _whole(parts: tuple[Value, ...]) -> Any:
    return Complex(*parts) if len(parts) == 2 else parts[0]


def _tree(lanes: list[Any]) -> Any:
    """Sixteen partial results to one."""
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [x + y for x, y in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


class Prod(Fold):
    """The product over `axes`."""

    samples = _samples(make=_near_one, empty=True)
    tolerance = {
        dt.float32: 4096,
        dt.float64: 4096,
        dt.complex64: 8192,
        dt.complex128: 8192,
        dt.float16: 1,
        dt.bfloat16: 1,
    }

    def result(self, dtype: Dtype) -> Dtype:
        return sum_dtype(dtype)

    def identity(self, dtype: Dtype) -> Any:
        return 1 + 0j if dtype.is_complex else 1

    def combine(self, b: Builder, x: Any, y: Any) -> Any:
        return x * y

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        to = self.result(dt.from_numpy(x.dtype))
        wide = {"f": np.float64, "c": np.complex128}.get(to.kind, to.np)
        return x.astype(wide).prod(self.axes, dtype=wide).astype(to.np)

    def _others(self, out: Node, x: Node) -> Node:
        """d(product)/dx: the product of all other elements, right also where elements are 0."""
        zero, one = full_like(x, 0), full_like(x, 1)
        if not x.dtype.is_inexact:
            return self._other_integers(astype(x, out.dtype))
        is_zero = equal(x, zero)
        count = restore_axes(bind(Sum(self.axes), astype(is_zero, dt.int32)), x.shape, self.axes)
        rest = restore_axes(bind(self, select(is_zero, one, x)), x.shape, self.axes)
        none, single = equal(count, full_like(count, 0)), equal(count, full_like(count, 1))
        whole = restore_axes(out, x.shape, self.axes)
        with_one_zero = select(is_zero, rest, zero)
        return select(none, whole / select(is_zero, one, x), select(single, with_one_zero, zero))

    def _other_integers(self, x: Node) -> Node:
        """The same for integers, whose products wrap: nothing is divided."""

        def everywhere(total: Node) -> Node:
            return restore_axes(total, x.shape, self.axes)

        is_zero = equal(x, full_like(x, 0))
        zeros_here = astype(is_zero, dt.int32)
        zeros_elsewhere = everywhere(bind(Sum(self.axes), zeros_here)) - zeros_here
        factors = Factors(select(is_zero, full_like(x, 1), x))
        odd, twos = everywhere(bind(self, factors.odd)), everywhere(bind(Sum(self.axes), factors.twos))
        none = equal(zeros_elsewhere, full_like(zeros_elsewhere, 0))
        return select(none, factors.left_of(odd, twos), full_like(x, 0))

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return bind(Sum(self.axes), self._others(out, primals[0]) * astype(tangents[0], out.dtype))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        (x,) = primals
        found = conjugate(self._others(out, x)) * restore_axes(cotangent, x.shape, self.axes)
        return {0: astype(found, x.dtype)}


class Extremum(Fold):
    """Max and Min: NaN if any element is NaN; ties share the gradient equally. Complex numbers go by their real parts,
    then by their imaginary parts."""

    samples = _samples()
    tolerance = EITHER_ZERO
    op: ClassVar[Elementwise]

    def of_equal(self, x: Node, count: int, alone: bool) -> Node | None:
        return x if count else None

    def combine(self, b: Builder, x: Any, y: Any) -> Any:
        return self.op.emit(b, y, x)  # which is the other way round so that it is the new element whose NaN takes time

    def _winners(self, out: Node, x: Node) -> tuple[Node, Node]:
        """(1 for each element that is the result, how many there are), wide enough to count them."""
        winner = astype(equal(x, restore_axes(out, x.shape, self.axes)), sum_dtype(out.dtype))
        return winner, bind(Sum(self.axes), winner)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        winner, count = self._winners(out, primals[0])
        return shared(bind(Sum(self.axes), winner * astype(tangents[0], winner.dtype)), count, out.dtype)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        (x,) = primals
        winner, count = self._winners(out, x)
        part = winner * astype(restore_axes(cotangent, x.shape, self.axes), winner.dtype)
        return {0: shared(part, restore_axes(count, x.shape, self.axes), x.dtype)}


class Max(Extremum):
    """The largest element."""

    op = Maximum()

    def identity(self, dtype: Dtype) -> Any:
        return smallest(dtype)

    def combine(self, b: Builder, x: Any, y: Any) -> Any:
        return x | y if x.dtype.is_bool else super().combine(b, x, y)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.max(values[0], self.axes)


class Min(Extremum):
    """The smallest element."""

    op = Minimum()

    def identity(self, dtype: Dtype) -> Any:
        return largest(dtype)

    def combine(self, b: Builder, x: Any, y: Any) -> Any:
        return x & y if x.dtype.is_bool else super().combine(b, x, y)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.min(values[0], self.axes)


class Logical(Fold, Discrete):
    """All and Any, over bools."""

    samples = _samples(smooth=False, empty=True)
    dtypes = (dt.bool_,)

    def of_equal(self, x: Node, count: int, alone: bool) -> Node | None:
        return x if count else None


class All(Logical):
    """Whether every element holds."""

    def identity(self, dtype: Dtype) -> Any:
        return True

    def combine(self, b: Builder, x: Any, y: Any) -> Any:
        return x & y

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.all(values[0], self.axes)


class Any_(Logical):
    """Whether any element holds."""

    def identity(self, dtype: Dtype) -> Any:
        return False

    def combine(self, b: Builder, x: Any, y: Any) -> Any:
        return x | y

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.any(values[0], self.axes)

    @classmethod
    def name(cls) -> str:
        return "any"


_NOWHERE: Final = (1 << 32) - 1
"""The place of the extreme element among none."""


class ArgExtremum(Reduction, Discrete):
    """The place (uint32) of the first extreme element along one axis; the first NaN, if there is one, counts as
    extreme."""

    samples = tuple(
        Sample(lambda rng, dtype, shape=shape: [draw(rng, dtype, shape)], {"axes": (axis,)}, False, name)  # type: ignore[misc]
        for name, (shape, axis) in {
            "rows": ((3, 37), 1),
            "columns": ((37, 3), 0),
            "long": ((5000,), 0),
            "no_rows": ((0, 4), 1),
            "one": ((3, 1), 1),
        }.items()
    )
    order: ClassVar[Ordering]

    def result(self, dtype: Dtype) -> Dtype:
        return dt.uint32

    def is_exact(self, dtype: Dtype) -> bool:
        """The first of the most extreme elements is the same one in every order."""
        return not dtype.is_complex

    def is_place(self, dtype: Dtype) -> bool:
        return not dtype.is_complex and not dtype.is_bool

    def check(self, x: ArrayType) -> None:
        super().check(x)
        need(len(self.axes) == 1, f"{len(self.axes)} axes, and it looks along one")

    def accumulator(self, dtype: Dtype) -> Dtype:
        """What elements are compared as: real floats as integers in the same order (`key`)."""
        if not dtype.is_float:
            return dtype
        return dt.int64 if dtype is dt.float64 else dt.int32

    def state_dtypes(self, dtype: Dtype) -> tuple[Dtype, ...]:
        return (self.accumulator(dtype), dt.uint32)

    def start(self, b: Builder, dtype: Dtype, lanes: int) -> State:
        """No element yet: the place past all others loses every comparison."""
        accumulator = self.accumulator(dtype)
        least = self.identity(accumulator) if dtype.is_complex else smallest(accumulator)
        return _everywhere(b, accumulator, least, lanes), b.const(dt.uint32, _NOWHERE, lanes)

    def step(self, b: Builder, state: State, x: Any, index: Value) -> State:
        """Elements come in the order of their places, so an equal one does not replace what there is."""
        best, place = state
        y = x if x.dtype.is_complex else self.key(b, x)
        take = self._beats(b, y, best)
        if not x.dtype.is_float:  # no key of a float is as small as what there is at the start
            take = take | place.eq(_NOWHERE)
        return b.select(take, y, best), b.select(take, b.cast(index, dt.uint32), place)

    def merge(self, b: Builder, state: State, other: State) -> State:
        (x, i), (y, j) = state, other
        tie = x.eq(y)
        if x.dtype.is_complex:
            tie = tie | (IsNan().emit(b, x) & IsNan().emit(b, y))
        take = self._beats(b, y, x) | (tie & (j < i))
        return b.select(take, y, x), b.select(take, j, i)

    def finish(self, b: Builder, state: State, dtype: Dtype) -> Any:
        return state[1]

    def ordered(self, x: Value) -> Value:
        """Integers (or bools) of which the larger one is more extreme."""
        raise NotImplementedError

    def key(self, b: Builder, x: Value) -> Value:
        """An integer (of a bool: a bool) that is the larger the more extreme an element is. That of a float is never
        the smallest one there is, and that of NaN the largest."""
        if not x.dtype.is_float:
            return self.ordered(x)
        wide = b.cast(x, dt.float32) if x.dtype in dt.HALVES else x
        bits = b.bitcast(wide + 0.0, self.accumulator(x.dtype))  # -0.0 is 0.0
        most = (1 << (bits.dtype.bits - 1)) - 1
        key = bits ^ ((bits >> (bits.dtype.bits - 1)) & most)
        return b.choose(b.isnan(wide), most, self.ordered(key))

    def _beats(self, b: Builder, y: Any, x: Any) -> Any:
        """Whether y is more extreme than x."""
        if x.dtype.is_complex:
            return (self.order.emit(b, y, x) | IsNan().emit(b, y)) & ~IsNan().emit(b, x)
        return y & ~x if x.dtype.is_bool else y > x


class ArgMax(ArgExtremum):
    """The place of the first largest element."""

    order = Greater()

    def identity(self, dtype: Dtype) -> Any:
        return smallest(dtype)

    def ordered(self, x: Value) -> Value:
        return x

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.argmax(values[0], self.axes[0]).astype(np.uint32)


class ArgMin(ArgExtremum):
    """The place of the first smallest element."""

    order = Less()

    def identity(self, dtype: Dtype) -> Any:
        return largest(dtype)

    def ordered(self, x: Value) -> Value:
        return ~x

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.argmin(values[0], self.axes[0]).astype(np.uint32)


def sum_over(x: Node, axes: tuple[int, ...]) -> Node:
    """Sum over axes; over none, x itself."""
    return bind(Sum(axes), x) if axes else x
