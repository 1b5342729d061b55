"""Random bodies of loops: the loop as an operation gives the bits of the Python loop over the same body, eager,
compiled, for any length from one trace, and on the reference back end; its derivatives and batches are those of the
Python loop.

A body is a list of small choices, so a failing one shrinks to the few steps that matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import weft.core as mx
from tests import contract
from tests.gradients import reference
from tests.loops import Native, Plain, assert_close, assert_same
from tests.test_fusion_property import STEPS as STRAIGHT
from weft import dtypes as dt
from weft import tree
from weft.array import array
from weft.dtypes import Dtype
from weft.primitives.elementwise import draw as random_values

SHAPES = ((3,), (2, 3), (), (3, 3), (17,), (4, 1), (0, 3), (2, 3, 17))
DTYPES = (
    dt.float32, dt.int32, dt.bool_, dt.float16, dt.bfloat16, dt.float64, dt.uint8, dt.int64, dt.complex64,
    dt.int8, dt.uint16, dt.int16, dt.uint32, dt.uint64,
)  # fmt: skip
STEPS_IN_A_BODY = 8
LARGEST = 1 << 11
ROWS = 9
FEW = examples.default.max_examples // 3

# ---- bodies as data ----


@dataclass(frozen=True)
class Leaf:
    shape: tuple[int, ...]
    dtype: Dtype


@dataclass(frozen=True)
class Case:
    """Kinds of carries, rows and captured arrays; steps (a name and numbers that choose operands and parameters); for
    each carry the value that it gets, and the values that are stacked."""

    carries: tuple[Leaf, ...]
    rows: tuple[Leaf, ...]
    outer: tuple[Leaf, ...]
    steps: tuple[tuple[str, int, int, int], ...]
    next_carries: tuple[int, ...]
    stacked: tuple[int, ...]
    length: int
    reverse: bool
    layout: str
    seed: int


def operands(case: Case) -> tuple[dict[str, array], list[array], tuple[array, ...]]:
    """First carries (a dict), rows (a list; more than there are steps) and captured arrays (a tuple)."""
    rng = np.random.default_rng(case.seed)

    def made(leaf: Leaf, *more: int, layout: str = "contiguous") -> array:
        values = np.asarray(random_values(rng, leaf.dtype, (*more, *leaf.shape)))
        return contract.lay_out([values], layout)[0]

    return (
        {f"c{i}": made(leaf, layout=case.layout) for i, leaf in enumerate(case.carries)},
        [made(leaf, ROWS, layout=case.layout) for leaf in case.rows],
        tuple(made(leaf) for leaf in case.outer),
    )


def body_of(case: Case, ways: Any, outer: Sequence[array]) -> Callable[..., Any]:
    """f(carry, x) that makes its inner loops and branches in one of two ways."""

    def f(carry: dict[str, array], x: list[array]) -> Any:
        values = [*outer, *x, *carry.values()]
        for name, first, second, extra in case.steps:
            if name == "skip":
                continue
            # Counted from the end, so that small numbers mean recent values and bodies are deep.
            a, b = values[-1 - first % len(values)], values[-1 - second % len(values)]
            made = LOOPING[name](ways, a, b, extra) if name in LOOPING else STRAIGHT[name](a, b, extra)
            if made is not None and made.size <= LARGEST:
                values.append(made)
        after = {
            name: conform(values[-1 - pick % len(values)], leaf)
            for name, leaf, pick in zip(carry, case.carries, case.next_carries, strict=True)
        }
        return after, [values[-1 - pick % len(values)] for pick in case.stacked]

    return f


def conform(x: array, leaf: Leaf) -> array:
    """A value in the shape and dtype of a carry: itself where it fits, which makes swaps and rotations of carries."""
    if x.shape != leaf.shape:
        size = prod(leaf.shape)
        flat = mx.reshape(x, (-1,))
        if flat.size < size:
            flat = mx.broadcast_to(mx.sum(flat), (size,))
        x = mx.reshape(flat[:size], leaf.shape)
    # Cotangents on their way through integers are truncated, of which finite differences know nothing.
    return (x if leaf.dtype.is_inexact else mx.stop_gradient(x)).astype(leaf.dtype)


@st.composite
def cases(draw: Callable[[Any], Any]) -> Case:
    leaf = st.builds(Leaf, st.sampled_from(SHAPES), st.sampled_from(DTYPES))
    carries = tuple(draw(st.lists(leaf, min_size=1, max_size=3)))
    if draw(st.booleans()):
        carries = (*carries, carries[0])  # two that can be swapped
    rows = tuple(draw(st.lists(leaf, max_size=2)))
    number = st.integers(0, 1 << 12)
    step = st.tuples(st.sampled_from(["skip", *STRAIGHT, *LOOPING, *LOOPING]), number, number, number)
    steps = tuple(draw(st.lists(step, min_size=STEPS_IN_A_BODY, max_size=STEPS_IN_A_BODY)))
    picks = st.integers(0, STEPS_IN_A_BODY + 6)
    return Case(
        carries,
        rows,
        tuple(draw(st.lists(leaf, max_size=2))),
        steps,
        tuple(draw(picks) for _ in carries),
        tuple(draw(st.lists(picks, max_size=3))),
        draw(st.integers(0, 5)),
        draw(st.booleans()),
        draw(st.sampled_from(list(contract.LAYOUTS))),
        draw(number),
    )


# ---- steps with control flow in them ----


def choice(x: array) -> array:
    """A number from 0 to 3 that the data decide."""
    whole = mx.sum(mx.abs(mx.real(x) if x.dtype.is_complex else x).astype(dt.float32))
    return mx.where(mx.isfinite(whole), mx.remainder(mx.floor(whole), 4), 0).astype(dt.int32)


def inner_scan(ways: Any, x: array, y: array, extra: int) -> array | None:
    """Over the rows of x, with one row and a count carried, y captured, and what is stacked given."""
    if not x.ndim or not x.shape[0] or x.dtype.is_bool:
        return None
    near = choice(y).astype(x.dtype)

    def f(carry: Any, row: array) -> Any:
        held, count = carry
        return (mx.maximum(held, row) if not x.dtype.is_complex else held + row, count + 1), held * near + row

    (held, count), ys = ways.scan(f, (x[0], mx.array(0)), x, reverse=bool(extra & 1))
    return ys + count.astype(x.dtype) + held


def inner_while(ways: Any, x: array, y: array, extra: int) -> array | None:
    """As many steps as the data say."""
    if x.dtype.is_bool:
        return None
    end = choice(y)
    further = (lambda a: mx.sin(a) + a) if x.dtype.is_float else (lambda a: a * 2 + 1)
    found, _ = ways.while_loop(lambda s: s[1] < end, lambda s: (further(s[0]), s[1] + 1), (x, mx.array(extra % 2)))
    return found


def inner_fori(ways: Any, x: array, y: array, extra: int) -> array | None:
    """Rows of a carried buffer overwritten in turn, up to where the data say."""
    return overwritten(ways, x, extra % 3, choice(y))


def inner_range(ways: Any, x: array, y: array, extra: int) -> array | None:
    """As many as is known before."""
    return overwritten(ways, x, extra % 3, 4)


def overwritten(ways: Any, x: array, lower: Any, upper: Any) -> array | None:
    if not x.ndim or x.shape[0] < 2:
        return None

    def body(i: array, buffer: array) -> array:
        buffer = mx.array(buffer)
        buffer[i % x.shape[0]] = (mx.flip(buffer[0]) if x.ndim > 1 else buffer[0]) * buffer[-1]
        return buffer

    return ways.fori_loop(lower, upper, body, x)


def inner_cond(ways: Any, x: array, y: array, extra: int) -> array | None:
    if x.dtype.is_bool:
        return None
    return ways.cond(choice(y) > extra % 4, lambda a: a + a, lambda a: a * a, x)


def inner_switch(ways: Any, x: array, y: array, extra: int) -> array | None:
    """The index runs past both ends; one branch loops."""
    if not x.ndim or x.dtype.is_bool:
        return None

    def loops(a: array) -> array:
        return ways.scan(lambda total, row: (total + row, total), mx.zeros_like(a[:1]).sum(0).astype(a.dtype), a)[1]

    return ways.switch(choice(y) - 1, [lambda a: a + a, mx.flip, loops if x.shape[0] else mx.flip], x)


def update(ways: Any, x: array, y: array, extra: int) -> array | None:
    """Part of a buffer overwritten at a place that the data decide."""
    if not x.ndim or x.shape[0] < 4:
        return None
    return mx.slice_update(x, x[:1] * 0 if extra & 1 else x[-1:], choice(y), (0,))


def inner_written(ways: Any, x: array, y: array, extra: int) -> array | None:
    """Branches that write into a buffer, or hand it on, and read what it was."""
    if not x.ndim or x.shape[0] < 2:
        return None
    n = x.shape[0]

    def first(a: array, b: array) -> Any:
        return mx.slice_update(a, b[:1], choice(b) % n, (0,)), a[0]

    def second(a: array, b: array) -> Any:
        return (a, a[-1]) if extra & 1 else (mx.slice_update(a, a[-1:], mx.array(0), (0,)), b[-1])

    def body(i: array, state: Any) -> Any:
        a, b = state
        after, row = ways.switch(i + choice(y), [first, second, first, second][: 2 + extra % 3], a, b)
        return after, mx.slice_update(b, row[None], (i + extra) % n, (0,))

    return ways.fori_loop(0, 3, body, (x, mx.flip(x, 0)))[extra & 1]


def inner_until(ways: Any, x: array, y: array, extra: int) -> array | None:
    """Rows until the data say enough, of as many as other data say."""
    if not x.ndim or not x.shape[0] or x.dtype.is_bool:
        return None
    enough = choice(y)

    def f(carry: Any, row: array) -> Any:
        held, count = carry
        return (held * held + row, count + 1), None

    carry = x[-1], mx.array(0)
    given = (x, mx.minimum(choice(x) + 1, x.shape[0])) if extra & 1 else (x,)
    (held, count), _, steps = ways.scan(f, carry, *given, until=lambda c, _: c[1] > enough)
    return held + (count + mx.array(steps)).astype(x.dtype)


def inner_map(ways: Any, x: array, y: array, extra: int) -> array | None:
    """Rows by one branch or the other: in turn, or all at once."""
    if not x.ndim or not x.shape[0] or x.dtype.is_bool:
        return None

    def f(row: array) -> array:
        return ways.cond(choice(row) > extra % 4, lambda r: r + r, lambda r: r * r, row)

    if ways is Plain:
        return mx.stack([f(row) for row in x])
    return mx.vmap(f)(x) if extra & 1 else mx.map(f, x)


def inner_slope(ways: Any, x: array, y: array, extra: int) -> array | None:
    """A derivative inside of a body, of a loop."""
    if not x.dtype.is_float:
        return None
    body = lambda i, a: mx.where(i > 0, a, -a) * a if extra & 1 else a + a * i.astype(x.dtype)  # noqa: E731
    total = lambda a: mx.sum(ways.fori_loop(0, 2 + extra % 2, body, a))  # noqa: E731
    return x + mx.grad(total)(x)


def inner_compiled(ways: Any, x: array, y: array, extra: int) -> array | None:
    """A compiled function inside of a body."""
    if x.dtype.is_bool:
        return None
    f = lambda a, b: a * a - b.astype(a.dtype)  # noqa: E731
    return (f if ways is Plain else mx.compile(f))(x, choice(y))


def rebuilt(ways: Any, x: array, y: array, extra: int) -> array | None:
    """An array of a few elements taken apart and put together again."""
    if x.ndim != 1 or not 1 < x.shape[0] < 6 or x.dtype.is_bool:
        return None
    n = x.shape[0]
    parts = [x[i] * x[(i + 1 + extra) % n] - x[n - 1 - i] for i in range(n)]
    return mx.stack(parts) if extra & 1 else mx.concatenate([mx.stack(parts)[1:], x[:1]])


def inner_system(ways: Any, x: array, y: array, extra: int) -> array | None:
    """A loop over a few numbers that see each other."""
    if x.ndim != 1 or not 1 < x.shape[0] < 6 or x.dtype.is_bool:
        return None
    step = lambda c, _: (rebuilt(ways, c, c, extra), c[0])  # noqa: E731
    last, ys = ways.scan(step, x, None, 1 + extra % 3)
    return mx.concatenate([last, ys])


LOOPING: dict[str, Callable[[Any, array, array, int], array | None]] = {
    "scan": inner_scan,
    "while": inner_while,
    "fori": inner_fori,
    "range": inner_range,
    "cond": inner_cond,
    "switch": inner_switch,
    "update": update,
    "written": inner_written,
    "until": inner_until,
    "map": inner_map,
    "slope": inner_slope,
    "compiled": inner_compiled,
    "rebuilt": rebuilt,
    "system": inner_system,
}


# ---- values ----


def plain(case: Case) -> Any:
    init, xs, outer = operands(case)
    return Plain.scan(body_of(case, Plain, outer), init, [x[: case.length] for x in xs], case.length, case.reverse)


def native(case: Case, init: Any, xs: Any, outer: Any) -> Any:
    return mx.scan(body_of(case, Native, outer), init, xs, length=case.length, reverse=case.reverse)


def check(case: Case, found: Any, expected: Any, how: str) -> None:
    """Without a step the Python loop knows nothing of its rows: they must be empty."""
    (carry, ys), (wanted, wanted_ys) = found, expected
    assert_same(carry, wanted, how)
    assert len(ys) == len(case.stacked)
    if wanted_ys is None:
        assert all(y.shape[0] == 0 for y in ys)
    else:
        assert_same(ys, wanted_ys, how)


@given(cases())
def test_a_scan_is_the_python_loop(case: Case) -> None:
    expected = plain(case)
    check(case, native(case, *operands(case)), expected, "eager")
    check(case, mx.compile(lambda *given: native(case, *given))(*operands(case)), expected, "compiled")


@given(cases())
def test_on_the_reference_back_end(case: Case) -> None:
    with reference():
        check(case, native(case, *operands(case)), plain(case), "reference")


@examples(max_examples=FEW)
@given(cases(), st.integers(1, 7))
def test_unrolled(case: Case, unroll: int) -> None:
    init, xs, outer = operands(case)
    found = mx.scan(body_of(case, Native, outer), init, xs, length=case.length, reverse=case.reverse, unroll=unroll)
    check(case, found, native(case, init, xs, outer), f"unrolled by {unroll}")


@examples(max_examples=FEW)
@given(cases(), st.integers(1, 4))
def test_checkpointed(case: Case, every: int) -> None:
    init, xs, outer = operands(case)
    found = mx.scan(
        body_of(case, Native, outer), init, xs, length=case.length, reverse=case.reverse, checkpoint_every=every
    )
    check(case, found, native(case, init, xs, outer), f"checkpoints every {every}")


@examples(max_examples=FEW)
@given(cases(), st.integers(-1, ROWS + 1))
def test_a_length_that_is_known_late(case: Case, length: int) -> None:
    """The rows that were made are those of the loop with that many rows; the others are zeros."""
    init, xs, outer = operands(case)
    steps = min(max(length, 0), ROWS) if xs else max(length, 0)
    whole = replace(case, length=steps)
    if xs:
        expected, f = plain(whole), body_of(case, Native, outer)
    else:  # without rows there is no largest length, and nothing can be stacked
        whole = replace(whole, stacked=())
        expected, f = plain(whole), body_of(whole, Native, outer)
    carry, ys = mx.scan(f, init, xs, length=mx.array(length), reverse=case.reverse)
    assert all(y.shape[0] == ROWS and not np.any(contract.values_of(y[steps:]).view(np.uint8)) for y in ys)
    check(whole, (carry, [y[:steps] for y in ys]), expected, f"{length} steps")


@examples(max_examples=FEW)
@given(cases())
def test_one_trace_for_all_lengths(case: Case) -> None:
    """The rows are taken by number from tables that the function makes itself, so that the length is the only size that
    is not known."""
    case = replace(case, reverse=False)

    def run(numbers: array) -> Any:
        init, tables, outer = tables_of(case)
        f = body_of(case, Native, outer)
        return mx.scan(lambda carry, i: f(carry, [x[i] for x in tables]), init, numbers)

    compiled = mx.compile(run, shapeless=True)
    init, tables, outer = tables_of(case)
    for length in (4, 2, ROWS):
        expected = Plain.scan(body_of(case, Plain, outer), init, [x[:length] for x in tables], length)
        check(case, compiled(mx.arange(length)), expected, f"{length} steps")
    assert compiled.traces == 1


def tables_of(case: Case) -> tuple[dict[str, array], list[array], list[array]]:
    """Operands like those of `operands`, made of nothing but the case."""

    def made(leaf: Leaf, seed: int, *more: int) -> array:
        shape = (*more, *leaf.shape)
        return ((mx.arange(prod(shape)) * 5 + seed) % 11 - 4).astype(leaf.dtype).reshape(shape)

    return (
        {f"c{i}": made(leaf, case.seed + i) for i, leaf in enumerate(case.carries)},
        [made(leaf, case.seed - i, ROWS) for i, leaf in enumerate(case.rows)],
        [made(leaf, 2 * case.seed) for leaf in case.outer],
    )


# ---- derivatives ----

SMOOTH = (
    "tanh", "sin", "multiply", "add", "subtract", "matmul", "softmax", "logsumexp", "sum", "mean", "cut", "flip",
    "turn", "refold", "repeat", "join", "running", "gather", "norm", "scan", "range", "cond", "switch", "update", "exp",
    "while", "fori", "written", "until", "map", "slope", "compiled", "rebuilt", "system",
)  # fmt: skip
REAL = (dt.float64, dt.float64, dt.float64, dt.int32, dt.bool_)
FULL_SHAPES = ((3,), (2, 3), (), (3, 3), (5,), (4, 1))


@st.composite
def smooth_cases(draw: Callable[[Any], Any]) -> Case:
    """Bodies with derivatives: double precision, and integers and flags beside."""
    leaf = st.builds(Leaf, st.sampled_from(FULL_SHAPES), st.sampled_from(REAL))
    double = st.builds(Leaf, st.sampled_from(FULL_SHAPES), st.just(dt.float64))
    carries = (draw(double), *draw(st.lists(leaf, max_size=2)))
    if draw(st.booleans()):
        carries = (*carries, carries[0])
    rows = (draw(double), *draw(st.lists(leaf, max_size=1)))
    outer = (draw(double), *draw(st.lists(leaf, max_size=1)))
    number = st.integers(0, 1 << 12)
    step = st.tuples(st.sampled_from(SMOOTH), number, number, number)
    picks = st.integers(0, 7)
    return Case(
        carries, rows, outer,
        tuple(draw(st.lists(step, min_size=1, max_size=6))),
        tuple(draw(picks) for _ in carries),
        tuple(draw(st.lists(picks, max_size=2))),
        draw(st.integers(0, 4)),
        draw(st.booleans()),
        draw(st.sampled_from(["contiguous", "reversed", "transposed", "cut"])),
        draw(number),
    )  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A loop as a function of its real operands alone: all operands, which of them are real, their values, and
    directions in which to go."""

    case: Case
    structure: tree.Structure
    operands: list[array]
    places: list[int]
    primals: list[array]
    tangents: list[array]


def problem_of(case: Case) -> Problem:
    given, structure = tree.flatten(operands(case))
    places = [i for i, x in enumerate(given) if x.dtype is dt.float64]
    # Small values, so that nothing saturates and differences are worth something.
    primals = [0.5 * mx.tanh(given[i]) for i in places]
    tangents = [mx.sin(mx.arange(x.size, dtype=dt.float64) + case.seed).reshape(x.shape) for x in primals]
    return Problem(case, structure, given, places, primals, tangents)


def results_of(problem: Problem, ways: Any, primals: Sequence[array]) -> list[array]:
    """The real results."""
    case, values = problem.case, list(problem.operands)
    for place, x in zip(problem.places, primals, strict=True):
        values[place] = x
    init, xs, outer = problem.structure.unflatten(values)
    f = body_of(case, ways, outer)

    def tame(carry: Any, x: Any) -> Any:
        after, ys = f(carry, x)
        return tree.map(lambda c: mx.tanh(c) if c.dtype is dt.float64 else c, after), ys

    carry, ys = ways.scan(tame, init, [x[: case.length] for x in xs], case.length, case.reverse)
    return [x for x in (*carry.values(), *(ys or ())) if x.dtype.is_float]


def loss_of(problem: Problem, ways: Any) -> Callable[..., array]:
    """All real results in one number, each element with a weight of its own."""

    def weighed(x: array, i: int) -> array:
        x = x.astype(dt.float64)
        return mx.sum(mx.sin(x) * mx.cos(mx.arange(x.size, dtype=dt.float64) + i).reshape(x.shape))

    def loss(*primals: array) -> array:
        terms = [weighed(x, i) for i, x in enumerate(results_of(problem, ways, primals))]
        return sum(terms[1:], terms[0])

    return loss


def moved(problem: Problem, by: float) -> list[array]:
    return [x + by * t for x, t in zip(problem.primals, problem.tangents, strict=True)]


def along(gradients: Sequence[array], tangents: Sequence[array]) -> float:
    return float(sum(float(mx.sum(g * t).item()) for g, t in zip(gradients, tangents, strict=True)))


def everything(problem: Problem) -> tuple[int, ...]:
    """The numbers of all arguments."""
    return tuple(range(len(problem.primals)))


@given(smooth_cases())
def test_gradients(case: Case) -> None:
    """Those of the Python loop, of finite differences, of jvp; and the compiled ones have the same bits."""
    problem = problem_of(case)
    loss, names = loss_of(problem, Native), everything(problem)
    found = mx.grad(loss, argnums=names)(*problem.primals)
    assert_close(found, mx.grad(loss_of(problem, Plain), argnums=names)(*problem.primals))
    (high, low) = (loss(*moved(problem, by)).item() for by in (1e-6, -1e-6))
    slope = along(found, problem.tangents)
    np.testing.assert_allclose(slope, (high - low) / 2e-6, rtol=1e-5, atol=1e-6)
    _, (pushed,) = mx.jvp(loss, problem.primals, problem.tangents)
    np.testing.assert_allclose(pushed.item(), slope, rtol=1e-9, atol=1e-9)
    assert_same(mx.compile(mx.grad(loss, argnums=names))(*problem.primals), found, "compiled")


@examples(max_examples=FEW)
@given(smooth_cases(), st.integers(1, 3), st.integers(1, 3))
def test_gradients_with_checkpoints_and_unrolled(case: Case, every: int, unroll: int) -> None:
    problem = problem_of(case)
    names = everything(problem)

    class Chunks(Native):
        @staticmethod
        def scan(*given: Any, **options: Any) -> Any:
            if "until" in options:  # whose number of steps is known late
                return mx.scan(*given, **options, unroll=unroll)
            return mx.scan(*given, **options, checkpoint_every=every, unroll=unroll)

    found = mx.grad(loss_of(problem, Chunks), argnums=names)(*problem.primals)
    assert_close(found, mx.grad(loss_of(problem, Native), argnums=names)(*problem.primals))


def slopes(problem: Problem, ways: Any, order: int) -> Callable[..., array]:
    """The derivative of an order along the tangents, by grad of grad."""
    if order == 0:
        return loss_of(problem, ways)
    below, names = slopes(problem, ways, order - 1), everything(problem)

    def slope(*primals: array) -> array:
        found = mx.grad(below, argnums=names)(*primals)
        terms = [mx.sum(g * t) for g, t in zip(found, problem.tangents, strict=True)]
        return sum(terms[1:], terms[0])

    return slope


@examples(max_examples=FEW)
@given(smooth_cases())
def test_second_and_third_derivatives(case: Case) -> None:
    problem = problem_of(replace(case, length=min(case.length, 3)))
    with reference():
        for order in (2, 3):
            found = slopes(problem, Native, order)(*problem.primals).item()
            expected = slopes(problem, Plain, order)(*problem.primals).item()
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


# ---- batches ----

LANES = 3


@dataclass(frozen=True)
class Mapped:
    """A case, and for each operand (carries, rows, captured arrays, in this order) the number that decides whether and
    along which axis it is mapped."""

    case: Case
    axes: tuple[int, ...]


@st.composite
def mapped_cases(draw: Callable[[Any], Any], smooth: bool = False) -> Mapped:
    case = draw(smooth_cases() if smooth else cases())
    case = replace(case, length=draw(st.integers(1, 4)))
    count = len(case.carries) + len(case.rows) + len(case.outer)
    return Mapped(case, tuple(draw(st.integers(0, 3)) for _ in range(count)))


def lanes(mapped: Mapped) -> tuple[tuple[int | None, ...], list[array], list[list[array]]]:
    """(axes, operands with a batch axis where there is one, the operands of each lane)."""
    leaves = tree.leaves(operands(mapped.case))
    axes = [None if number == 0 else (number - 1) % (x.ndim + 1) for number, x in zip(mapped.axes, leaves, strict=True)]
    if all(axis is None for axis in axes):
        axes[0] = 0
    each = []
    for lane in range(LANES):
        other = tree.leaves(operands(replace(mapped.case, seed=mapped.case.seed + lane)))
        each.append([x if axis is None else y for x, y, axis in zip(leaves, other, axes, strict=True)])
    together = [
        x if axis is None else mx.stack([lane[i] for lane in each], axis=axis)
        for i, (x, axis) in enumerate(zip(leaves, axes, strict=True))
    ]
    return tuple(axes), together, each


def batched(mapped: Mapped, run: Callable[[Case, Any], Any]) -> tuple[Any, Any]:
    """`run(case, leaves of the operands)` of all lanes: by vmap, and one after the other."""
    axes, together, each = lanes(mapped)
    found = mx.vmap(lambda *leaves: run(mapped.case, leaves), in_axes=axes)(*together)
    one_by_one = [run(mapped.case, leaves) for leaves in each]
    return found, tree.map(lambda *results: mx.stack(list(results)), *one_by_one)


def scanned(case: Case, leaves: Sequence[array]) -> Any:
    structure = tree.flatten(operands(case))[1]
    return native(case, *structure.unflatten(leaves))


@given(mapped_cases())
def test_vmap_is_a_loop_over_lanes(mapped: Mapped) -> None:
    """Every lane gets the bits that it would get alone, however its operands are mapped: inner loops with as many steps
    as each lane needs, branches that lanes take differently."""
    assert_same(*batched(mapped, scanned))


@examples(max_examples=FEW)
@given(mapped_cases(smooth=True))
def test_vmap_of_grad_and_grad_of_vmap(mapped: Mapped) -> None:
    problem = problem_of(mapped.case)
    axes, together, each = lanes(mapped)

    def loss(leaves: Sequence[array]) -> array:
        return loss_of(replace(problem, operands=list(leaves)), Native)(
            *[0.5 * mx.tanh(leaves[i]) for i in problem.places]
        )

    def gradient(leaves: Sequence[array]) -> Any:
        def of_real(*real: array) -> array:
            given = list(leaves)
            for place, x in zip(problem.places, real, strict=True):
                given[place] = x
            return loss(given)

        return mx.grad(of_real, argnums=everything(problem))(*[leaves[i] for i in problem.places])

    found = mx.vmap(lambda *leaves: gradient(leaves), in_axes=axes)(*together)
    alone = [gradient(leaves) for leaves in each]
    assert_close(found, tree.map(lambda *results: mx.stack(list(results)), *alone))

    def total(*real: array) -> array:
        given = list(together)
        for place, x in zip(problem.places, real, strict=True):
            given[place] = x
        return mx.sum(mx.vmap(lambda *leaves: loss(leaves), in_axes=axes)(*given))

    of_all = mx.grad(total, argnums=everything(problem))(*[together[i] for i in problem.places])
    for i, place in enumerate(problem.places):
        axis, parts = axes[place], [gradients[i] for gradients in alone]
        assert_close(of_all[i], sum(parts[1:], parts[0]) if axis is None else mx.stack(parts, axis=axis))
