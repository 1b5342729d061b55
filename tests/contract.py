"""What the tests of the engine share: cases made from the registry, operands in every memory layout, evaluation by each
back end, and the one definition of what "equal" and "close" mean. Nothing here asserts anything about a particular
primitive.
"""

from __future__ import annotations

import ctypes
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import ml_dtypes
import numpy as np

from weft import dtypes as dt
from weft.array import array, wrap
from weft.config import config
from weft.dtypes import Dtype
from weft.errors import LinAlgError
from weft.evaluate import close as close_graph
from weft.evaluate import evaluate
from weft.graph.node import Graph, Node, has_handle, kind_of, reachable
from weft.primitives import REGISTRY
from weft.primitives.base import (
    DATA,
    Elementwise,
    MultiOutput,
    Parameter,
    Primitive,
    Sample,
    View,
    bind,
    bind_many,
    constant,
)
from weft.reference import apply_reference
from weft.runtime.buffer import allocate
from weft.runtime.data import Buffer, numpy_view

# ---- cases ----


@dataclass(frozen=True)
class Case:
    """One primitive with parameters, one set of operands, one dtype."""

    op: Primitive
    sample: Sample
    number: int
    dtype: Dtype

    def __str__(self) -> str:
        return f"{self.op.title}-{self.sample.name or self.number}-{self.dtype.name}"

    def operands(self) -> list[np.ndarray]:
        """The same values in every process: the generator is seeded with the case's name."""
        return [np.asarray(x) for x in self.sample.make(generator(str(self)), self.dtype)]


def generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def cases(cls: type[Primitive], dtypes: Sequence[Dtype] | None = None) -> list[Case]:
    """All samples of a primitive in all (or these) of its dtypes."""
    return [
        Case(cls(**(sample.params or {})), sample, number, dtype)
        for dtype in (cls.dtypes if dtypes is None else dtypes)
        if dtype in cls.dtypes
        for number, sample in enumerate(cls.samples)
    ]


def all_cases(dtypes: Sequence[Dtype] | None = None) -> list[Case]:
    return [case for cls in REGISTRY for case in cases(cls, dtypes)]


def subsets(positions: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All non-empty subsets."""
    for size in range(1, len(positions) + 1):
        yield from itertools.combinations(positions, size)


def output_dtype(op: Primitive, values: Sequence[np.ndarray]) -> Dtype:
    return op.infer(*[kind_of(v.shape, dt.from_numpy(v.dtype)) for v in values]).dtype


def reference(op: Primitive, values: Sequence[np.ndarray]) -> np.ndarray:
    """The oracle's answer."""
    return apply_reference(op, values, output_dtype(op, values))


def references(op: Primitive, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The oracle's answer, all results."""
    if not isinstance(op, MultiOutput):
        return [reference(op, values)]
    with np.errstate(all="ignore"):
        return [np.asarray(x) for x in op.reference(*values)]


def bound(op: Primitive, *nodes: Node) -> list[Node]:
    """The results of a primitive, one or several."""
    return bind_many(op, *nodes) if isinstance(op, MultiOutput) else [bind(op, *nodes)]


Outcome = list[np.ndarray] | LinAlgError
"""Results, or the error that there are none."""


def outcome(compute: Callable[[], list[np.ndarray]]) -> Outcome:
    try:
        return compute()
    except LinAlgError as error:
        return error.with_traceback(None)


def special_values(dtype: Dtype, far: bool = True) -> np.ndarray:
    """Zeros, ends of the range, infinities, NaN, subnormals, and numbers beside powers of two; complex numbers also far
    from 1."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.np)
        middle = [-2, -1, 0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits, dtype.bits + 1]
        chosen = {n for n in (*middle, info.min, info.min + 1, info.max - 1, info.max) if info.min <= n <= info.max}
        return np.array(sorted(chosen), dtype.np)
    if dtype.is_complex:
        # No products that overflow: NumPy contracts them on some machines.
        parts = [0.0, -0.0, 1.0, -1.0, 0.5, -3.0, *((1e-15, 1e15) if far else (0.25, 4.0))]
        return np.array([complex(x, y) for x in parts for y in parts], dtype.np)
    info = ml_dtypes.finfo(dtype.np)
    least = float(info.smallest_subnormal)
    edges = [
        0.0,
        least,
        3 * least,
        float(info.smallest_normal),
        float(info.eps),
        1.0 + float(info.eps),
        float(info.max),
    ]
    sizes = [*edges, np.inf, 0.5, 1.0, 2.5, 3.0, 88.0]
    return np.array([*sizes, *(-x for x in sizes), np.nan], np.float64).astype(dtype.np)


def grid(op: Primitive, dtype: Dtype, sample: Sample) -> list[np.ndarray]:
    """Every combination of special values for the operands of a sample."""
    kinds = [dt.from_numpy(v.dtype) for v in sample.make(generator(op.title), dtype)]
    far = op.tolerance.get(dtype, 0) <= 16  # what states a larger error is ill-conditioned there
    values = [special_values(kind, far) for kind in kinds]
    places = np.meshgrid(*(np.arange(len(v)) for v in values))
    return [v[at.reshape(-1)] for v, at in zip(values, places, strict=True)]


# ---- the order of reductions ----

LANES, BLOCK = 16, 4096
"""As docs/numerics.md says. Written here once more on purpose: this is what kernels are checked against."""


def ordered(combine: np.ufunc, identity: float, x: np.ndarray) -> np.ndarray:
    """The reduction of a sequence (first axis) in the specified order, with NumPy doing one operation at a time."""
    top = np.full((LANES, *x.shape[1:]), identity, x.dtype)
    for number, start in enumerate(range(0, len(x), BLOCK)):
        partial = np.full((LANES, *x.shape[1:]), identity, x.dtype)
        for i in range(start, min(start + BLOCK, len(x)), LANES):
            piece = x[i : min(i + LANES, start + BLOCK)]
            partial[: len(piece)] = combine(partial[: len(piece)], piece)
        lane = number % LANES
        top[lane] = combine(top[lane], _tree(combine, partial))
    return _tree(combine, top)


def _tree(combine: np.ufunc, lanes: np.ndarray) -> np.ndarray:
    """8 with 8, 4 with 4, 2 with 2, 1 with 1."""
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = combine(lanes[:half], lanes[half:])
    return lanes[0]


# ---- layouts ----

GARBAGE = 0x5A
"""What the bytes between the elements of a layout hold: a kernel that reads one of them gives a wrong answer, not a
lucky one."""


def _row_major(v: np.ndarray) -> np.ndarray:
    return np.array(v, order="C")


def _reversed(v: np.ndarray) -> np.ndarray:
    flip = (slice(None, None, -1),) * v.ndim
    return np.array(v[flip], order="C")[flip]


def _transposed(v: np.ndarray) -> np.ndarray:
    return np.array(v.T, order="C").T


def _rotated(v: np.ndarray) -> np.ndarray:
    """The first axis is the fastest, the others in order."""
    return np.moveaxis(np.array(np.moveaxis(v, 0, -1), order="C"), -1, 0) if v.ndim else _row_major(v)


def _spaced(v: np.ndarray) -> np.ndarray:
    """Every third element of rows with a gap between them."""
    if not v.ndim:
        return _row_major(v)
    part = np.empty((*v.shape[:-1], 3 * v.shape[-1] + 2), v.dtype)[..., : 3 * v.shape[-1] : 3]
    part[...] = v
    return part


def _cut(v: np.ndarray) -> np.ndarray:
    """A part of a larger array: unit steps within a row, gaps between rows."""
    if not v.ndim:
        return _row_major(v)
    part = np.empty(tuple(n + 3 for n in v.shape), v.dtype)[tuple(slice(n) for n in v.shape)]
    part[...] = v
    return part


def _repeated(axis: int) -> Callable[[np.ndarray], np.ndarray]:
    """Stride 0 along an axis: the first slice, repeated. This changes the values."""

    def layout(v: np.ndarray) -> np.ndarray:
        if not v.ndim or v.size == 0:
            return _row_major(v)
        return np.broadcast_to(np.array(v.take([0], axis=axis), order="C"), v.shape)

    return layout


LAYOUTS: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], int]] = {
    "contiguous": (_row_major, 0),
    "shifted": (_row_major, 1),
    "reversed": (_reversed, 1),
    "transposed": (_transposed, 0),
    "rotated": (_rotated, 1),
    "spaced": (_spaced, 1),
    "cut": (_cut, 1),
    "repeated_last": (_repeated(-1), 1),
    "repeated_first": (_repeated(0), 1),
}
"""How the elements are arranged, and how many elements past an aligned address the memory begins."""

MIXTURES: Mapping[str, tuple[str, ...]] = {
    "mixed": ("contiguous", "transposed", "repeated_last"),
    "mixed_back": ("repeated_first", "contiguous", "reversed"),
    "mixed_apart": ("transposed", "reversed", "cut"),
}
"""Layouts by operand, for primitives of several operands."""


def layouts_for(operands: Sequence[np.ndarray]) -> list[str]:
    """The layouts that are something new for these operands."""
    if not operands:
        return ["contiguous"]
    most = max(v.ndim for v in operands)
    names = ["contiguous", "shifted"]
    if most >= 1:
        names += ["reversed", "spaced", "cut", "repeated_last"]
    if most >= 2:
        names += ["transposed", "repeated_first"]
        names += list(MIXTURES) if len(operands) > 1 else []
    if most >= 3:
        names.append("rotated")
    return names


def lay_out(operands: Sequence[np.ndarray], name: str) -> list[array]:
    """The operands as evaluated arrays in a layout. What they hold may differ from what was given: ask `values_of`."""
    each = MIXTURES.get(name) or (name,)
    placed = []
    for i, v in enumerate(operands):
        arrange, shift = LAYOUTS[each[i % len(each)]]
        placed.append(place(arrange(v), shift))
    return placed


def place(view: np.ndarray, shift: int = 0) -> array:
    """An evaluated array whose buffer has exactly the strides of a NumPy array, `shift` elements past an aligned
    address."""
    dtype = dt.from_numpy(view.dtype)
    first, low, high = 0, 0, 0
    if view.size:
        first, (low, high) = view.__array_interface__["data"][0], np.lib.array_utils.byte_bounds(view)
    offset = shift * dtype.size
    storage = allocate(high - low + offset)
    ctypes.memset(storage.address, 1 if dtype.is_bool else GARBAGE, high - low + offset)
    strides = None if view.flags.c_contiguous else tuple(s // dtype.size for s in view.strides)
    buffer = Buffer(storage, storage.address + offset + first - low, strides)
    if view.size:
        memory = (ctypes.c_uint8 * (high - low)).from_address(storage.address + offset)
        there = np.ndarray(view.shape, dtype.np, memory, first - low, view.strides)
        there[...] = view  # elements that repeat are written several times, with one value
    return wrap(Node(DATA, (), kind_of(view.shape, dtype), buffer))


def scalars(operands: Sequence[np.ndarray], position: int, number: Any) -> list[Node]:
    """Nodes for the operands, one of which is a constant."""
    return [
        constant(number, kind_of(v.shape, dt.from_numpy(v.dtype))) if i == position else place(v)._node
        for i, v in enumerate(operands)
    ]


# ---- evaluation ----


def values_of(x: array) -> np.ndarray:
    """A copy of the elements, every byte as it lies in memory (other libraries see bools as 0 and 1)."""
    x._view()
    node = x._node
    return np.array(numpy_view(node.value, node.shape, node.dtype), order="C")  # type: ignore[arg-type]


def native(op: Primitive, operands: Sequence[array]) -> np.ndarray:
    """One primitive, evaluated by itself."""
    return values_of(wrap(bind(op, *[x._node for x in operands])))


def natives(op: Primitive, operands: Sequence[array]) -> list[np.ndarray]:
    """The same, all results."""
    return [values_of(wrap(x)) for x in bound(op, *[x._node for x in operands])]


@contextmanager
def settings(**changes: Any) -> Iterator[None]:
    """Settings of `weft.config` for a while."""
    before = {name: getattr(config, name) for name in changes}
    for name, value in changes.items():
        setattr(config, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def by_reference(nodes: Sequence[Node]) -> list[np.ndarray]:
    """Values of nodes that have none yet, by the reference back end."""
    handles = [wrap(node) for node in nodes]
    with settings(backend="reference"):
        evaluate([h._node for h in handles if h._node.value is None])
    return [values_of(h) for h in handles]


def leaf(values: np.ndarray) -> Node:
    return place(np.array(values, order="C"))._node


def closed(*results: array) -> tuple[Graph, dict[Node, tuple[int, ...] | None]]:
    """The graph behind arrays that are not evaluated, as evaluation would close it: live handles are results too."""
    order = reachable([r._node for r in results])
    wanted = {r._node for r in results}
    kept = [n for n in order if n.value is None and (n in wanted or has_handle(n))]
    return close_graph(order, kept)


# ---- equality ----


def bits(values: np.ndarray) -> np.ndarray:
    """The elements as unsigned integers; the two parts of a complex number stand beside each other."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    return flat.view(f"u{flat.dtype.itemsize}")


def _parts(values: np.ndarray) -> np.ndarray:
    """The elements flat, complex ones as pairs."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def is_nan(values: np.ndarray) -> np.ndarray:
    parts = _parts(values)
    if parts.dtype.kind in "biu":
        return np.zeros(parts.shape, np.bool_)
    with np.errstate(invalid="ignore"):  # a signalling NaN says so when it is converted
        return np.isnan(parts.astype(np.float64))


def same_bits(a: np.ndarray, b: np.ndarray, payloads: bool = False) -> bool:
    """The same shape, dtype and bits. NaNs are equal to each other unless their payloads count."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    equal = bits(a) == bits(b)
    return bool(np.all(equal if payloads else equal | (is_nan(a) & is_nan(b))))


def assert_values(found: Any, expected: np.ndarray) -> None:
    """An array has the values of a NumPy array in any layout, to the bit."""
    values = values_of(found)
    assert same_bits(values, np.array(expected, order="C")), (values, expected)


def moves_data(op: Primitive) -> bool:
    """Whether a primitive only moves elements, so that even the payload of a NaN is kept."""
    return bool(op.moves) or (isinstance(op, Elementwise) and not op.compute_halves and op.title != "astype")


def ulp(scale: np.ndarray, dtype: Dtype) -> np.ndarray:
    """The distance between neighbouring numbers of a float type near `scale`; subnormals are evenly spaced."""
    info = ml_dtypes.finfo(dt.real_of(dtype).np)
    _, exponent = np.frexp(np.maximum(np.abs(scale), float(info.smallest_normal)))
    return np.ldexp(float(info.eps), exponent - 1)


def natural_scale(op: Primitive, values: Sequence[np.ndarray], expected: np.ndarray) -> np.ndarray:
    """The size that an error is measured against, element by element (float64).

    A value is its own scale (the modulus, for both parts of a complex number). Where terms are added that may cancel,
    it is the sum of their magnitudes: the operation applied to the moduli of its operands.
    """
    scale = np.abs(expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64))
    if op.cancels and not isinstance(op, View):
        wide = [np.abs(v).astype(np.float64) if dt.from_numpy(v.dtype).is_inexact else v for v in values]
        with np.errstate(all="ignore"):
            scale = np.maximum(scale, np.abs(np.asarray(op.reference(*wide), np.float64)))
    return scale


def errors_in_ulp(op: Primitive, values: Sequence[np.ndarray], got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The error of every element (or part) in units of the last place at its natural scale; inf where NaNs or
    infinities differ."""
    scale = natural_scale(op, values, expected)
    unit = ulp(np.where(np.isfinite(scale), scale, 0.0), dt.from_numpy(expected.dtype)).reshape(-1)
    if expected.dtype.kind == "c":
        unit = np.repeat(unit, 2)
    x, y = _parts(got).astype(np.longdouble), _parts(expected).astype(np.longdouble)
    with np.errstate(all="ignore"):
        error = np.abs(x - y) / unit
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf)).astype(np.float64)


def undetermined(op: Primitive, values: Sequence[np.ndarray], expected: np.ndarray) -> np.ndarray:
    """Which elements (or parts) nothing is promised of: complex numbers that are not finite (arithmetic may call them
    infinite or NaN), and sums whose terms overflow on the way (the order decides whether they come back)."""
    scale = natural_scale(op, values, expected).reshape(-1)
    largest = float(ml_dtypes.finfo(dt.real_of(dt.from_numpy(expected.dtype)).np).max)
    if expected.dtype.kind != "c":
        return scale > largest if op.cancels else np.zeros(scale.shape, np.bool_)
    return np.repeat(~(scale <= largest), 2)


def discrepancy(case: Case, values: Sequence[np.ndarray], got: Outcome, expected: Outcome) -> str:
    """Empty if all results are what the primitive promises, or there are none for the same reason; else what is
    wrong."""
    if isinstance(got, LinAlgError) or isinstance(expected, LinAlgError):
        same = type(got) is type(expected) and str(got) == str(expected)
        return "" if same else f"{case}: {got} instead of {expected}"
    if type(case.op).backward_error is Primitive.backward_error:
        return next(filter(None, [mismatch(case, values, x, y) for x, y in zip(got, expected, strict=True)]), "")
    for x, y in zip(got, expected, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{case}: {x.dtype}{x.shape} instead of {y.dtype}{y.shape}"
    if not all(np.isfinite(y).all() for y in expected):
        finite = all(np.array_equal(np.isfinite(x), np.isfinite(y)) for x, y in zip(got, expected, strict=True))
        return "" if finite else f"{case}: other infinities or NaNs"
    error, allowed = case.op.backward_error(values, got), case.op.tolerance[case.dtype]
    return "" if error is not None and error <= allowed else f"{case}: {error:.3g} epsilon, {allowed} allowed"


def mismatch(case: Case, values: Sequence[np.ndarray], got: np.ndarray, expected: np.ndarray) -> str:
    """Empty if `got` is what the primitive promises of `expected`, else what is wrong."""
    op = case.op
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{case}: {got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}"
    allowed = op.tolerance.get(case.dtype)
    if allowed is None or expected.dtype.kind in "biu":
        return (
            ""
            if same_bits(got, expected, moves_data(op))
            else f"{case}: not the same bits: {differences(got, expected)}"
        )
    error = errors_in_ulp(op, values, got, expected)
    if not error.size or error.max() <= allowed:
        return ""
    return f"{case}: {error.max():.3g} ulp, {allowed} allowed: {differences(got, expected, int(error.argmax()))}"


def differences(got: np.ndarray, expected: np.ndarray, at: int | None = None) -> str:
    """Where two arrays differ first (or at one place), and how."""
    x, y = _parts(got), _parts(expected)
    where = (
        np.flatnonzero((bits(got) != bits(expected)) & ~(is_nan(got) & is_nan(expected)))
        if at is None
        else np.array([at])
    )
    if not where.size:
        where = np.flatnonzero(bits(got) != bits(expected))
    shown = ", ".join(f"[{i}] {x[i]!r} instead of {y[i]!r}" for i in where[:4])
    return f"{where.size} of {x.size} parts: {shown}"


# ---- parameters ----


def with_sizes(op: Primitive, change: Callable[[Any], Any]) -> Primitive:
    """The primitive with every size among its parameters (fields that are shapes) changed."""
    given = {}
    for f in fields(op):  # type: ignore[arg-type]
        value = getattr(op, f.name)
        given[f.name] = tuple(change(n) for n in value) if f.type in ("Shape", "tuple[Size, ...]") else value
    return type(op)(**given)


# ---- graphs without arrays ----


def graph(
    build: Callable[..., Node | Sequence[Node]], *inputs: tuple[int, ...] | tuple[tuple[int, ...], Dtype]
) -> Graph:
    """A closed graph from a function of nodes. An input is a shape (of float32) or a pair of shape and dtype."""
    kinds = [kind_of(*i) if len(i) == 2 and isinstance(i[1], Dtype) else kind_of(i, dt.float32) for i in inputs]
    parameters = [Node(Parameter(i), (), kind) for i, kind in enumerate(kinds)]
    outputs = build(*parameters)
    return Graph(parameters, [outputs] if isinstance(outputs, Node) else outputs)
