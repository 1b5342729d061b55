"""Random programs give the same bits however they are run: fused, step by step, on two threads, compiled; and every
single step is what its reference says. Programs are lists of small choices, so a failing one shrinks to the few steps
that matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import weft.core as mx
from tests import contract
from weft import dtypes as dt
from weft import evaluate as evaluation
from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.graph.node import Node, reachable
from weft.passes import fuse, memory, views
from weft.primitives.elementwise import draw as random_values
from weft.runtime import threads
from weft.targets import axes

SHAPES = (
    (3,), (2, 3), (3, 1), (), (17,), (1, 17), (3, 17), (33, 17), (17, 33), (16, 16), (2, 3, 17), (3, 2, 1),
    (2, 17, 16), (33, 1, 3),
    (0, 3), (3, 0), (1, 1), (40, 48),
)  # fmt: skip
STEPS_IN_A_PROGRAM = 12


DTYPES = (dt.float32, *(d for d in dt.ALL if d is not dt.float32))


# ---- programs as data ----


@dataclass(frozen=True)
class Input:
    shape: tuple[int, ...]
    dtype: Dtype
    layout: str


@dataclass(frozen=True)
class Program:
    """Inputs, steps (each a name and numbers that choose its operands and parameters), and which values stay referred
    to."""

    inputs: tuple[Input, ...]
    steps: tuple[tuple[str, int, int, int], ...]
    kept: frozenset[int]
    seed: int


@st.composite
def programs(draw: Callable[[Any], Any]) -> Program:
    one = st.builds(Input, st.sampled_from(SHAPES), st.sampled_from(DTYPES), st.sampled_from(list(contract.LAYOUTS)))
    inputs = tuple(draw(st.lists(one, min_size=2, max_size=3)))
    number = st.integers(0, 1 << 12)
    step = st.tuples(st.sampled_from(["skip", *STEPS]), number, number, number)
    # A fixed number of steps makes programs that are worth running; a failing one shrinks by steps that become "skip".
    steps = tuple(draw(st.lists(step, min_size=STEPS_IN_A_PROGRAM, max_size=STEPS_IN_A_PROGRAM)))
    kept = draw(st.frozensets(st.integers(0, STEPS_IN_A_PROGRAM + 3), max_size=4))
    return Program(inputs, steps, kept, draw(number))


def operands(program: Program) -> list[array]:
    """The inputs, evaluated, in their layouts."""
    rng = np.random.default_rng(program.seed)
    return [contract.lay_out([np.asarray(random_values(rng, i.dtype, i.shape))], i.layout)[0] for i in program.inputs]


def built(program: Program, inputs: Sequence[array]) -> list[array]:
    """All values of a program, inputs first; steps that do not fit their operands are left out."""
    values = list(inputs)
    for name, first, second, extra in program.steps:
        if name == "skip":
            continue
        # Counted from the end, so that small numbers mean recent values and programs are deep.
        x, y = values[-1 - first % len(values)], values[-1 - second % len(values)]
        made = STEPS[name](x, y, extra)
        if made is not None and made.size <= 1 << 14:
            values.append(made)
    return values


# ---- steps ----

Step = Callable[[array, array, int], "array | None"]


def unary(function: Callable[[array], array], fits: Callable[[Dtype], bool] = lambda d: True) -> Step:
    return lambda x, y, extra: function(x) if fits(x.dtype) else None


def binary(function: Callable[[array, array], array], fits: Callable[[Dtype], bool] = lambda d: True) -> Step:
    def step(x: array, y: array, extra: int) -> array | None:
        if not fits(dt.promote(x.dtype, y.dtype)):
            return None
        fitted = fit(y, x)
        return None if fitted is None else function(x, fitted)

    return step


def fit(y: array, x: array) -> array | None:
    """`y`, or a part of it, that broadcasts with `x`."""
    if _broadcasts(x.shape, y.shape):
        return y
    if y.ndim and y.shape[0] and _broadcasts(x.shape, y.shape[1:]):
        return y[-1]
    if y.ndim and _broadcasts(x.shape, y.shape[::-1]):
        return y.T
    return None


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1], strict=False))


def with_number(x: array, y: array, extra: int) -> array | None:
    """An operation with a Python number on either side."""
    if x.dtype.is_bool:
        return None
    number = (0, 1, 2, -1, 0.5, 1.0, -0.0, 3)[extra % 8]
    if number == -1 and x.dtype.kind == "u":
        return None
    operation = (mx.add, mx.multiply, mx.subtract)[extra // 8 % 3]
    return operation(x, number) if extra // 24 % 2 else operation(number, x)


def cast(x: array, y: array, extra: int) -> array:
    return x.astype(dt.ALL[extra % len(dt.ALL)])


def turn(x: array, y: array, extra: int) -> array:
    order = list(range(x.ndim))
    for i in range(x.ndim):  # a permutation out of a number
        order[i], order[i + extra % (x.ndim - i)] = order[i + extra % (x.ndim - i)], order[i]
        extra //= 3
    return mx.transpose(x, order)


def cut(x: array, y: array, extra: int) -> array | None:
    """Some elements along every axis, forwards or backwards, one by one or with steps."""
    index: list[Any] = []
    for n in x.shape:
        low, high, step = extra % (n + 1), n - extra // 5 % (n + 1), (1, 2, 3, -1, -2)[extra // 7 % 5]
        index.append(slice(low, high, step) if step > 0 else slice(None, None, step))
        extra = extra // 2 + 1
    return x[tuple(index)]


def refold(x: array, y: array, extra: int) -> array:
    """Another shape of as many elements."""
    if x.size == 0:
        return mx.reshape(x, (0, 3) if extra % 2 else (2, 0))
    parts = [n for n in (2, 3, 11, 16, 17) if x.size % n == 0]
    if not parts or extra % 3 == 0:
        return mx.reshape(x, (-1,))
    first = parts[extra % len(parts)]
    return mx.reshape(x, (first, x.size // first) if extra // 3 % 2 else (x.size // first, 1, first))


def repeat(x: array, y: array, extra: int) -> array | None:
    if x.ndim > 3:
        return None
    return mx.broadcast_to(
        mx.expand_dims(x, extra % (x.ndim + 1)), _inserted(x.shape, extra % (x.ndim + 1), (2, 3, 17)[extra // 4 % 3])
    )


def _inserted(shape: tuple[int, ...], axis: int, n: int) -> tuple[int, ...]:
    return (*shape[:axis], n, *shape[axis:])


def axes_of(x: array, extra: int) -> tuple[int, ...]:
    return tuple(i for i in range(x.ndim) if extra >> i & 1) or tuple(range(x.ndim))


def reduce(function: Any, fits: Callable[[Dtype], bool] = lambda d: True, empty: bool = True) -> Step:
    def step(x: array, y: array, extra: int) -> array | None:
        axes = axes_of(x, extra)
        if not fits(x.dtype) or not x.ndim or (not empty and any(x.shape[a] == 0 for a in axes)):
            return None
        return function(x, axis=axes, keepdims=bool(extra & 64))

    return step


def softmax(x: array, y: array, extra: int) -> array | None:
    return mx.softmax(x, axis=extra % x.ndim) if x.ndim and not x.dtype.is_complex else None


def argmax(x: array, y: array, extra: int) -> array | None:
    if not x.ndim or x.dtype.is_complex or x.shape[extra % x.ndim] == 0:
        return None
    return (mx.argmax if extra & 128 else mx.argmin)(x, axis=extra % x.ndim)


def norm(x: array, y: array, extra: int) -> array | None:
    """A row less its mean, by its deviation."""
    if not x.ndim or x.dtype.is_complex or x.shape[-1] == 0:
        return None
    return (x - mx.mean(x, -1, keepdims=True)) * mx.rsqrt(mx.var(x, -1, keepdims=True) + 1e-3)


def matmul(x: array, y: array, extra: int) -> array | None:
    if x.ndim < 1 or y.ndim < 1 or max(x.ndim, y.ndim) > 3:
        return None
    for other in (y, mx.swapaxes(y, -1, -2) if y.ndim > 1 else y, mx.swapaxes(x, -1, -2) if x.ndim > 1 else x):
        inner = other.shape[-2] if other.ndim > 1 else other.shape[0]
        if x.shape[-1] == inner and _broadcasts(x.shape[:-2], other.shape[:-2]):
            return mx.matmul(x, other)
    return None


def choose(x: array, y: array, extra: int) -> array | None:
    fitted = fit(y, x)
    return (
        None
        if fitted is None
        else mx.where(fitted, x, (0, 1.5, True)[extra % 3] if extra & 4 else mx.negative(x.astype(dt.float32)))
    )


def assign(x: array, y: array, extra: int) -> array | None:
    """Part of a copy overwritten."""
    if not x.ndim:
        return None
    index = tuple(slice(None, extra // (k + 1) % (n + 1)) for k, n in enumerate(x.shape))
    result = mx.array(x)
    result[index] = extra % 2 if extra & 8 else mx.negative(x[index].astype(dt.float32))
    return result


def join(x: array, y: array, extra: int) -> array | None:
    """Two arrays one after the other, or one after its own reverse."""
    if not x.ndim:
        return None
    axis = extra % x.ndim
    fits = y.ndim == x.ndim and all(m == n for i, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)) if i != axis)
    return mx.concatenate([x, y if fits else mx.flip(x)], axis=axis)


def running(x: array, y: array, extra: int) -> array | None:
    if not x.ndim:
        return None
    return mx.cumsum(x, axis=extra % x.ndim, reverse=bool(extra & 8), inclusive=bool(extra & 16))


def gather(x: array, y: array, extra: int) -> array | None:
    """Rows by number, some of them twice."""
    if not x.ndim or not x.shape[0]:
        return None
    places = [extra % x.shape[0], 0, -1, extra // 3 % x.shape[0]]
    return x[mx.array(places)] if extra & 32 else mx.take(x, mx.array(places) % x.shape[0], axis=0)


def arranged(x: array, y: array, extra: int) -> array | None:
    if not x.ndim or x.dtype.is_complex:
        return None
    return (mx.sort if extra & 64 else mx.argsort)(x, axis=extra % x.ndim)


def count(x: array, y: array, extra: int) -> array | None:
    return mx.arange(x.shape[-1]) + x.astype(dt.int32) if x.ndim else None


not_bool = lambda d: not d.is_bool  # noqa: E731
ordered = lambda d: not d.is_complex  # noqa: E731
number = lambda d: d.is_float  # noqa: E731
whole = lambda d: d.is_integer or d.is_bool  # noqa: E731

STEPS: dict[str, Step] = {
    "negative": unary(mx.negative, not_bool),
    "square": unary(mx.square, not_bool),
    "absolute": unary(mx.abs, ordered),
    "sign": unary(mx.sign, ordered),
    "floor": unary(mx.floor, ordered),
    "exp": unary(lambda x: mx.exp(mx.minimum(x, 3)), ordered),
    "tanh": unary(mx.tanh, ordered),
    "sin": unary(mx.sin, ordered),
    "sqrt": unary(lambda x: mx.sqrt(mx.abs(x)), ordered),
    "isnan": unary(mx.isnan),
    "invert": unary(mx.bitwise_invert, whole),
    "conjugate": unary(mx.conjugate, lambda d: d.is_inexact),
    "real": unary(mx.real, lambda d: d.is_inexact),
    "add": binary(mx.add),
    "subtract": binary(mx.subtract, not_bool),
    "multiply": binary(mx.multiply),
    "divide": binary(mx.divide, ordered),
    "maximum": binary(mx.maximum, ordered),
    "minimum": binary(mx.minimum, ordered),
    "less": binary(mx.less),
    "equal": binary(mx.equal),
    "exclusive": binary(mx.bitwise_xor, whole),
    "number": with_number,
    "cast": cast,
    "turn": turn,
    "cut": cut,
    "flip": unary(mx.flip),
    "refold": refold,
    "repeat": repeat,
    "sum": reduce(mx.sum),
    "mean": reduce(mx.mean, ordered),
    "max": reduce(mx.max, ordered, empty=False),
    "min": reduce(mx.min, ordered, empty=False),
    "product": reduce(mx.prod, whole),
    "any": reduce(mx.any),
    "argmax": argmax,
    "logsumexp": reduce(mx.logsumexp, number),
    "softmax": softmax,
    "norm": norm,
    "matmul": matmul,
    "choose": choose,
    "assign": assign,
    "count": count,
    "join": join,
    "running": running,
    "gather": gather,
    "arranged": arranged,
}


# ---- ways to run ----


def results(program: Program, values: Sequence[array]) -> list[array]:
    """What the program is asked for: its last value, and those that the user still refers to."""
    chosen = [v for i, v in enumerate(values) if i in program.kept]
    return [*chosen, values[-1]]


def at_once(program: Program) -> list[np.ndarray]:
    """One evaluation of everything."""
    asked = results(program, built(program, operands(program)))
    mx.eval(asked)
    return [contract.values_of(x) for x in asked]


def compiled(program: Program) -> list[np.ndarray]:
    function = mx.compile(lambda *inputs: results(program, built(program, inputs)))
    return [contract.values_of(x) for x in function(*operands(program))]


def step_by_step(program: Program) -> tuple[list[np.ndarray], list[str]]:
    """Every node evaluated by itself, from the computed values of its operands; and what is wrong with any step."""
    asked = results(program, built(program, operands(program)))
    done: dict[Node, array] = {}
    problems: list[str] = []
    for node in reachable([x._node for x in asked]):
        if node.value is not None:
            done[node] = wrap(
                Node(node.op, (), node.kind, node.value)
            )  # of our own: constants are shared, and would be written out
            continue
        inputs = [done[i] for i in node.inputs]
        made = wrap(Node(node.op, tuple(x._node for x in inputs), node.kind))
        evaluation.evaluate([made._node])
        done[node] = made
        problems += wrong(node, inputs, contract.values_of(made))
    return [contract.values_of(done[x._node]) for x in asked], problems


def wrong(node: Node, inputs: Sequence[array], got: np.ndarray) -> list[str]:
    """How one step differs from its reference, beyond what its primitive states."""
    op = node.op
    values = [contract.values_of(x) for x in inputs]
    dtype = dt.from_numpy(values[0].dtype) if values else node.dtype
    expected = contract.reference(op, values)
    allowed = op.tolerance.get(dtype)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return [f"{node}: {got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}"]
    if allowed is None or not node.dtype.is_inexact:
        return [] if contract.same_bits(got, expected) else [f"{node}: {contract.differences(got, expected)}"]
    error = contract.errors_in_ulp(op, values, got, expected)
    error = error[~contract.undetermined(op, values, expected)]
    return [f"{node}: {error.max()} ulp, {allowed} allowed"] if error.size and error.max() > allowed else []


# ---- the tests ----


def same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], how: str) -> None:
    assert len(found) == len(expected)
    for i, (x, y) in enumerate(zip(found, expected, strict=True)):
        assert contract.same_bits(x, y), f"result {i}, {how}: {contract.differences(x, y)}"


@pytest.fixture(autouse=True)
def _verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph and plan goes through the verifiers."""
    monkeypatch.setattr(contract.config, "check", True)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two threads, and kernels that share even the smallest work."""
    monkeypatch.setattr(axes, "grain", lambda *work: 1)
    monkeypatch.setattr(evaluation.programs, "PROGRAMS", {})
    before = threads.set_threads(2)
    yield
    threads.set_threads(before)


@examples(max_examples=3 * examples.default.max_examples)
@given(programs())
def test_fused_is_step_by_step(program: Program) -> None:
    alone, problems = step_by_step(program)
    assert not problems, "; ".join(problems)
    same(at_once(program), alone, "fused")


@examples(max_examples=examples.default.max_examples)
@given(programs())
def test_compiled_is_eager(program: Program) -> None:
    same(compiled(program), at_once(program), "compiled")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are fused as large ones are, in pieces, and their memory packed as that of many temporaries is."""
    monkeypatch.setattr(fuse, "PIECE", 3)
    monkeypatch.setattr(fuse, "MOST_OPEN", 1)
    monkeypatch.setattr(views, "MOST_MOVED", 1)
    monkeypatch.setattr(memory, "MOST_NEIGHBOURS", 0)
    monkeypatch.setattr(evaluation.programs, "PROGRAMS", {})


def test_large_graphs_are_as_small_ones(small_pieces: None) -> None:
    @examples(max_examples=2 * examples.default.max_examples)
    @given(programs())
    def check(program: Program) -> None:
        alone, _ = step_by_step(program)
        same(at_once(program), alone, "in pieces")

    check()


def test_any_number_of_threads(two_threads: None) -> None:
    @examples(max_examples=2 * examples.default.max_examples)
    @given(programs())
    def check(program: Program) -> None:
        threads.set_threads(1)
        alone = at_once(program)
        threads.set_threads(2)
        same(at_once(program), alone, "on two threads")

    check()
