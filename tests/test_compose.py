"""Random programs composed from the registry, under every transform: the tangent is what finite differences say, the
gradient is its adjoint, vmap is a loop, transforms of transforms agree, and compiled code gives the bits of eager code
and the numbers of the reference.

A program is a list of small choices, so a failing one shrinks to the few steps that matter; what differed once, be it
by convention, is kept as an example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

import weft.core as mx
from tests import contract
from weft import dtypes as dt
from weft.array import array, wrap
from weft.primitives import REGISTRY, bits, elementwise, sorting
from weft.primitives.base import MultiOutput, Primitive, bind

Arrays = list[array]
Function = Callable[..., Arrays]


def _composes(cls: type[Primitive]) -> bool:
    """Whether it has operands, one result, and that for any values between two samples. Those of linear algebra have
    factors for operands, which belong to a matrix: there the functions are composed (`MATRICES`). What computes doubles
    in single precision, as rotations do, says nothing in the digits that are compared."""
    if ".linalg." in cls.__module__:
        return False
    sample = cls.samples[0]
    has_operands = bool(sample.make(np.random.default_rng(0), cls.dtypes[0]))
    if dt.float64 in cls.dtypes:
        drawn = sample.make(np.random.default_rng(0), dt.float64)
        has_operands &= not any(np.asarray(v).dtype == np.float32 for v in drawn)
    return has_operands and not issubclass(cls, MultiOutput) and cls(**(sample.params or {})).is_total


PRIMITIVES: dict[str, type[Primitive]] = {cls.name(): cls for cls in REGISTRY if _composes(cls)}
DTYPES = (dt.float64, dt.complex128, dt.int64, dt.bool_)
"""Double precision, in which differences of functions say something; the others where a primitive has no floats."""
LENGTH = 6
SHAPES = ((2, 3), (4,))
"""Of the two arguments."""
FIXED = {sorting.SearchSorted: (0,)}
"""Operands that must stay as their sample has them: a sorted sequence."""
PRETENDS = (elementwise.StopGradient, elementwise.Sign, bits.Bitcast, bits.Reinterpret)
"""What has another derivative than differences say, on purpose: none at all, of complex signs and of bits too."""
CONSTANT = 4
"""The source of an operand that is no function of the arguments."""

SQUARE, DEFINITE, LOWER, WIDE, RIGHT = "square", "definite", "lower", "wide", "right"
"""Matrices: any square ones, positive definite, lower triangular and wide ones, and right-hand sides."""
MATRICES: dict[str, tuple[Callable[..., array], tuple[str, ...]]] = {
    "linalg.cholesky": (lambda a: mx.linalg.cholesky(_hermitian(a)), (DEFINITE,)),
    "linalg.cholesky_inv": (lambda a: mx.linalg.cholesky_inv(mx.linalg.cholesky(_hermitian(a))), (DEFINITE,)),
    "linalg.det": (mx.linalg.det, (SQUARE,)),
    "linalg.eigvalsh": (lambda a: mx.linalg.eigvalsh(_hermitian(a)), (DEFINITE,)),
    "linalg.eigh": (lambda a: _projector(mx.linalg.eigh(_hermitian(a))[1]), (DEFINITE,)),
    "linalg.inv": (mx.linalg.inv, (SQUARE,)),
    "linalg.norm": (lambda a: mx.linalg.norm(a, "nuc", axis=(-2, -1)), (WIDE,)),
    "linalg.pinv": (mx.linalg.pinv, (WIDE,)),
    "linalg.qr": (lambda a: mx.matmul(*mx.linalg.qr(a)[::-1]), (SQUARE,)),
    "linalg.slogdet": (lambda a: mx.multiply(*mx.linalg.slogdet(a)), (SQUARE,)),
    "linalg.solve": (mx.linalg.solve, (SQUARE, RIGHT)),
    "linalg.solve_triangular": (mx.linalg.solve_triangular, (LOWER, RIGHT)),
    "linalg.svd": (lambda a: mx.linalg.svd(a, compute_uv=False), (WIDE,)),
    "linalg.tri_inv": (mx.linalg.tri_inv, (LOWER,)),
}


def _adjoint(a: array) -> array:
    return mx.swapaxes(mx.conj(a), -1, -2)


def _hermitian(a: array) -> array:
    """What these functions take their matrices for, whichever triangle they read."""
    return (a + _adjoint(a)) * 0.5


def _projector(vectors: array) -> array:
    """On the space of the first vector: the vector itself may be turned."""
    return vectors[..., :1] @ _adjoint(vectors[..., :1])


@dataclass(frozen=True)
class Step:
    """A primitive by name; `choice` picks a sample and a dtype, and seeds its operands; `sources` are the values that
    the operands are made from, counted from the newest, or CONSTANT."""

    name: str
    choice: int
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    steps: tuple[Step, ...]
    seed: int = 0


STEPS = st.builds(
    Step,
    st.sampled_from(sorted([*PRIMITIVES, *MATRICES])),
    st.integers(0, 999),
    st.tuples(*[st.integers(0, CONSTANT)] * 3),
)
PROGRAMS = st.builds(Program, st.lists(STEPS, min_size=LENGTH, max_size=LENGTH).map(tuple), st.integers(0, 999))


# ---- from choices to a function ----


@dataclass(frozen=True)
class Operand:
    """An operand as its sample has it, and how a function of an earlier value stands in its place: each element lies
    between its own sample and another one, so it stays where the primitive is defined."""

    like: array
    other: array
    source: int

    def of(self, values: Sequence[array]) -> array:
        if self.source == CONSTANT:
            return self.like
        value = spread(values[-1 - self.source % len(values)], self.like.shape)
        if not self.like.dtype.is_inexact:
            return mx.where(value > 0, self.like, self.other)
        return self.like + mx.sigmoid(value).astype(self.like.dtype) * (self.other - self.like)


def spread(value: array, shape: tuple[int, ...]) -> array:
    """The elements of a value in another shape, over and over if need be."""
    size = math.prod(shape)
    if value.size == 0:
        return mx.zeros(shape, dt.float64)
    return mx.reshape(mx.take(mx.reshape(value, (-1,)), mx.arange(size) % value.size), shape)


@dataclass(frozen=True)
class Applied:
    """A step with its primitive made and its operands drawn."""

    function: Callable[..., array]
    operands: tuple[Operand, ...]
    smooth: bool

    def to(self, values: Sequence[array]) -> array:
        """The result as float64, with a way past it, so that a derivative of zero does not end the program. Both parts
        of a complex number count, of integers and bools whether they are zero."""
        result = self.function(*[operand.of(values) for operand in self.operands])
        past = spread(values[-1], result.shape)
        if result.dtype.is_complex:
            return (mx.real(result) + mx.imag(result) * 0.5).astype(dt.float64) + past
        if result.dtype.is_float:
            return result.astype(dt.float64) + past
        return mx.where(result != 0, past, past * -0.5)


def constant(values: Any) -> array:
    values = np.asarray(values)
    return mx.array(values, dt.from_numpy(values.dtype))


def operand(like: np.ndarray, source: int) -> Operand:
    other = np.roll(like.reshape(-1), 1).reshape(like.shape)
    if like.dtype.kind in "fc" and np.array_equal(other, like):
        other = like * like.dtype.type(0.9375)
    return Operand(constant(like), constant(other), source)


def matrices(kind: str, rng: np.random.Generator, dtype: dt.Dtype) -> np.ndarray:
    """Two matrices of a kind, whose singular values are neither small nor close to each other."""
    rows, columns = {WIDE: (2, 4), RIGHT: (3, 2)}.get(kind, (3, 3))
    drawn = rng.standard_normal((2, 2, rows, columns))
    values: np.ndarray = drawn[0] + 1j * drawn[1] if dtype.is_complex else drawn[0]
    if kind == RIGHT:
        return values
    if kind == LOWER:
        return np.tril(values * 0.3, -1) + np.diag([1.0, 2.0, -3.0])
    left, _, right = np.linalg.svd(values, full_matrices=False)
    scales = np.arange(1.0, rows + 1)[:, None]
    return left @ (scales * (np.conj(np.swapaxes(left, -1, -2)) if kind == DEFINITE else right))


def near(like: np.ndarray, source: int) -> Operand:
    """Other matrices, so close that whatever lies between is no closer to a singular one, or to one with two singular
    values that are the same, than three quarters of what these are. So what rounding makes of results is bounded."""
    away = np.roll(like.reshape(-1), 1).reshape(like.shape) - like
    values = np.linalg.svd(like, compute_uv=False)
    room = 0.25 * np.minimum(values[..., -1], np.abs(np.diff(values)).min(-1))
    length = np.linalg.norm(away, axis=(-2, -1))
    return Operand(constant(like), constant(like + away * (room / length)[..., None, None]), source)


def applied_to_matrices(step: Step) -> Applied:
    function, kinds = MATRICES[step.name]
    rng, dtype = np.random.default_rng(step.choice), (dt.float64, dt.complex128)[step.choice % 2]
    drawn = [(kind, matrices(kind, rng, dtype)) for kind in kinds]
    pairs = zip(drawn, step.sources, strict=False)
    return Applied(
        function, tuple([(operand if kind == RIGHT else near)(v, source) for (kind, v), source in pairs]), True
    )


def applied(step: Step) -> Applied:
    if step.name in MATRICES:
        return applied_to_matrices(step)
    cls = PRIMITIVES[step.name]
    dtypes = [d for d in DTYPES if d in cls.dtypes] or [cls.dtypes[0]]
    smooth = [sample for sample in cls.samples if sample.smooth]
    samples = smooth if smooth and step.choice % 8 else cls.samples
    sample = samples[step.choice % len(samples)]
    drawn = sample.make(np.random.default_rng(step.choice), dtypes[step.choice // len(samples) % len(dtypes)])
    fixed = FIXED.get(cls, ())
    op = cls(**(sample.params or {}))
    return Applied(
        lambda *operands: wrap(bind(op, *[x._node for x in operands])),
        tuple([operand(np.asarray(v), CONSTANT if i in fixed else step.sources[i % 3]) for i, v in enumerate(drawn)]),
        (sample.smooth or not smooth) and cls not in PRETENDS,
    )


def function_of(steps: Sequence[Applied]) -> Function:
    """A function of two arrays: every step applies its primitive to what was made before. The newest three values are
    its results."""

    def fun(x: array, y: array) -> Arrays:
        values = [x, y]
        for step in steps:
            made = step.to(values)
            values.insert(len(values) if made.size else 0, made)  # nothing can be made from no elements
        return values[-3:]

    return fun


# ---- what must hold ----


@dataclass(frozen=True)
class Point:
    """Where a program is tried: arguments, directions in them, cotangents of the results, and a batch of arguments."""

    primals: Arrays
    tangents: Arrays
    cotangents: Arrays
    batches: Arrays


def point(fun: Function, seed: int) -> Point:
    rng = np.random.default_rng(seed)
    draw = lambda shape: constant(np.asarray(rng.uniform(-1.5, 1.5, shape)))  # noqa: E731
    primals = [draw(shape) for shape in SHAPES]
    return Point(
        primals,
        [draw(shape) for shape in SHAPES],
        [draw(out.shape) for out in fun(*primals)],
        [draw((2, *shape)) for shape in SHAPES],
    )


def flat(arrays: Sequence[array]) -> np.ndarray:
    return np.concatenate([np.array(a).reshape(-1) for a in arrays])


def is_finite(*parts: np.ndarray) -> bool:
    return all(bool(np.isfinite(part).all()) for part in parts)


def close(got: np.ndarray, expected: np.ndarray, relative: float, what: str) -> None:
    """Within `relative` of the largest number of all."""
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=relative * scale, err_msg=what)


def slope(fun: Function, at: Point, step: float) -> np.ndarray:
    """The derivative along the tangents, by central differences of fourth order."""
    moved = lambda by: flat(fun(*[x + by * t for x, t in zip(at.primals, at.tangents, strict=True)]))  # noqa: E731
    near = (moved(step) - moved(-step)) / (2 * step)
    far = (moved(2 * step) - moved(-2 * step)) / (4 * step)
    return (4 * near - far) / 3


def check_tangents(fun: Function, at: Point) -> np.ndarray:
    _, tangents = mx.jvp(fun, at.primals, at.tangents)
    found = flat(tangents)
    wide, narrow = slope(fun, at, 1e-4), slope(fun, at, 3e-5)
    scale = max(1.0, float(np.abs(narrow).max(initial=0.0))) if is_finite(wide, narrow) else 0.0
    if scale and np.abs(wide - narrow).max(initial=0.0) < 1e-6 * scale:  # else a kink is near, or a jump
        close(found, narrow, 1e-5, "jvp and differences")
    return found


def check_adjoint(fun: Function, at: Point, pushed: np.ndarray) -> None:
    """Of both arguments together, and of each alone (the other is captured then)."""
    _, pulled = mx.vjp(fun, at.primals, at.cotangents)
    left = float(np.sum(flat(at.cotangents) * pushed))
    terms = flat(at.tangents) * flat(pulled)
    scale = max(1.0, float(np.abs(terms).sum()), float(np.abs(flat(at.cotangents) * pushed).sum()))
    assert abs(left - float(terms.sum())) <= 1e-9 * scale, "jvp and vjp"
    x, y = at.primals
    close(flat(mx.vjp(lambda a: fun(a, y), [x], at.cotangents)[1]), flat(pulled[:1]), 1e-9, "vjp by the first alone")
    close(flat(mx.vjp(lambda b: fun(x, b), [y], at.cotangents)[1]), flat(pulled[1:]), 1e-9, "vjp by the second alone")
    tangent = [
        mx.jvp(lambda a: fun(a, y), [x], at.tangents[:1])[1],
        mx.jvp(lambda b: fun(x, b), [y], at.tangents[1:])[1],
    ]
    close(flat(tangent[0]) + flat(tangent[1]), pushed, 1e-9, "jvp by each alone")
    recomputed = mx.vjp(mx.checkpoint(fun), at.primals, at.cotangents)[1]
    np.testing.assert_array_equal(flat(recomputed), flat(pulled), err_msg="checkpoint")


def gradient(fun: Function, at: Point) -> Function:
    return lambda a, b: mx.vjp(fun, [a, b], at.cotangents)[1]


def check_maps(fun: Function, at: Point) -> None:
    """vmap, of the function and of its gradient, over either argument and both, one inside the other: loops. The
    gradient of a vmap is that of the sum over the loop."""
    _check_map("vmap", fun, at)
    _check_map("vmap of vjp", gradient(fun, at), at)
    _check_gradient_of_map(fun, at)


def _check_map(name: str, one: Function, at: Point) -> None:
    (x, y), (xs, ys) = at.primals, at.batches
    both = [one(xs[i], ys[i]) for i in range(2)]
    same(mx.vmap(one)(xs, ys), both, f"{name} of both")
    same(mx.vmap(one, in_axes=(0, -1))(xs, mx.moveaxis(ys, 0, -1)), both, f"{name} along another axis")
    same(mx.vmap(one, in_axes=(0, None))(xs, y), [one(xs[i], y) for i in range(2)], f"{name} of the first")
    same(mx.vmap(lambda b: one(x, b))(ys), [one(x, ys[i]) for i in range(2)], f"{name} of the second")
    nested = mx.vmap(lambda a: mx.vmap(lambda b: one(a, b))(ys))(xs)
    same(nested, [one(xs[i], ys[j]) for i in range(2) for j in range(2)], f"{name} of {name}")


def same(together: Arrays, loop: Sequence[Arrays], what: str) -> None:
    """Every result with its batch in front, against those of a loop."""
    for i, found in enumerate(together):
        close(flat([found]), flat([results[i] for results in loop]), 1e-9, what)


def _check_gradient_of_map(fun: Function, at: Point) -> None:
    y, xs = at.primals[1], at.batches[0]
    pulled = gradient(fun, at)
    twice = [mx.stack([ct, ct]) for ct in at.cotangents]
    _, (dx, dy) = mx.vjp(mx.vmap(fun, in_axes=(0, None)), [xs, y], twice)
    loop = [pulled(xs[i], y) for i in range(2)]
    close(flat([dx]), flat([g[0] for g in loop]), 1e-9, "vjp of vmap, mapped")
    close(flat([dy]), flat([loop[0][1] + loop[1][1]]), 1e-9, "vjp of vmap, shared")


def check_second(fun: Function, at: Point) -> None:
    """Forward over reverse is reverse over forward."""
    over = mx.jvp(gradient(fun, at), at.primals, at.tangents)[1]

    def along(a: array, b: array) -> array:
        pushed = mx.jvp(fun, [a, b], at.tangents)[1]
        return sum([mx.sum(t * ct) for t, ct in zip(pushed, at.cotangents, strict=True)], constant(0.0))

    close(flat(mx.grad(along, (0, 1))(*at.primals)), flat(over), 1e-7, "both orders of second derivatives")


def transforms_of(fun: Function, at: Point) -> Function:
    """All of it as one function: to be compiled."""

    def together(x: array, y: array) -> Arrays:
        pulled = gradient(fun, at)
        return [
            *fun(x, y),
            *mx.jvp(fun, [x, y], at.tangents)[1],
            *pulled(x, y),
            *mx.vmap(pulled)(*at.batches),
            *mx.jvp(pulled, [x, y], at.tangents)[1],
        ]

    return together


def check_algebra(program: Program) -> None:
    """On the reference back end, where a new program costs no compilation."""
    steps = [applied(step) for step in program.steps]
    fun = function_of(steps)
    with contract.settings(backend="reference"), np.errstate(all="ignore"):
        at = point(fun, program.seed)
        if not is_finite(flat(fun(*at.primals))):
            return
        pushed = (
            check_tangents(fun, at) if all(s.smooth for s in steps) else flat(mx.jvp(fun, at.primals, at.tangents)[1])
        )
        if not is_finite(pushed, flat(gradient(fun, at)(*at.primals))):
            return
        check_adjoint(fun, at, pushed)
        check_maps(fun, at)
        if all(s.smooth for s in steps):
            check_second(fun, at)


def check_machine_code(program: Program) -> None:
    """With fewer steps: the derivatives of each are some dozen kernels to compile."""
    steps = [applied(step) for step in program.steps[:3]]
    fun = function_of(steps)
    with contract.settings(backend="reference"), np.errstate(all="ignore"):
        at = point(fun, program.seed)
        together = transforms_of(fun, at)
        by_reference = [np.array(a) for a in together(*at.primals)]
    with contract.settings(backend="native"):
        eager = [np.array(a) for a in together(*at.primals)]
        compiled = [np.array(a) for a in mx.compile(together)(*at.primals)]
    for i, (a, b) in enumerate(zip(compiled, eager, strict=True)):
        assert contract.same_bits(a, b), f"result {i}, compiled: {contract.differences(a, b)}"
    if not all(step.smooth for step in steps):  # a last bit, read as something else or beside a step, is no small thing
        return
    for i, (a, b) in enumerate(zip(eager, by_reference, strict=True)):
        if is_finite(b):
            close(a, b, 1e-7, f"result {i}, machine code and the reference")


@given(PROGRAMS)
@example(Program((Step("sign", 291, (0, 0, 0)),)))  # of complex numbers
@example(Program((Step("reinterpret", 147, (2, 0, 2)),), 332))  # of floats as other floats
@example(Program((Step("stop_gradient", 0, (0, 1, 1)), Step("absolute", 500, (0, 0, 0))), 410))
@example(Program((Step("sum", 0, (CONSTANT, 0, 0)), Step("bitwise_xor", 43, (0, 1, 2)), Step("select", 3, (0, 1, 0)))))
def test_transforms_of_random_programs_agree(program: Program) -> None:
    check_algebra(program)


@examples(max_examples=10)
@given(PROGRAMS)
def test_compiled_is_eager_to_the_bit_for_random_programs(program: Program) -> None:
    check_machine_code(program)
