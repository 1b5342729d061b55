"""Operations of several operands with every non-empty subset of them traced: against differences, as adjoints, and as
batches along every axis. The others are captured, so a rule that reads another operand's tangent has none to read.

These are the functions of the public surface; test_contract.py does the same for every primitive.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.gradients import check_batch, check_derivatives, reference
from weft.primitives.base import Constant

Function = Callable[..., Any]

MASK = np.array([[True, False, True], [False, False, True]])
INDEX = np.array([2, 0, 2], np.int32)


def numbers(*shape: int, seed: int = 0, low: float = 0.5, high: float = 2.0) -> np.ndarray:
    """Distinct numbers, so that nothing ties."""
    rng = np.random.default_rng(seed + sum(shape))
    return np.asarray(rng.permutation(np.linspace(low, high, max(int(np.prod(shape)), 1))).reshape(shape) + 0.01 * seed)


def assigned(x: Any, key: Any, values: Any) -> Any:
    result = mx.array(x)
    result[key] = values
    return result


CASES: dict[str, tuple[Function, Sequence[np.ndarray]]] = {
    "where": (lambda x, y: mx.where(mx.array(MASK), x, y), [numbers(2, 3), numbers(2, 3, seed=1)]),
    "where, its condition too": (
        lambda c, x, y: mx.where(c > 1.0, x * x, y),
        [numbers(2, 3, seed=2), numbers(2, 3), numbers(2, 3, seed=1)],
    ),
    "where, broadcast": (lambda x, y: mx.where(mx.array(MASK), x, y), [numbers(3), numbers(2, 1, seed=1)]),
    "arctan2": (mx.arctan2, [numbers(2, 3, low=-2.0), numbers(2, 3, seed=1, low=-1.9)]),
    "arctan2, broadcast": (mx.arctan2, [numbers(2, 1), numbers(3, seed=1)]),
    "power": (mx.power, [numbers(2, 3), numbers(2, 3, seed=1, low=-1.0)]),
    "remainder": (mx.remainder, [numbers(2, 3, low=3.1, high=7.3), numbers(2, 3, seed=1)]),
    "maximum": (mx.maximum, [numbers(2, 3), numbers(2, 3, seed=1)]),
    "logaddexp": (mx.logaddexp, [numbers(2, 3), numbers(2, 3, seed=1)]),
    "clip": (mx.clip, [numbers(2, 3, low=-1.0), numbers(2, 3, seed=1, high=0.9), numbers(2, 3, seed=2, low=1.0)]),
    "x[mask] = v": (lambda x, v: assigned(x, mx.array(MASK), v), [numbers(2, 3), numbers(3, seed=1)]),
    "x[mask] = scalar": (lambda x, v: assigned(x, mx.array(MASK), v), [numbers(2, 3), numbers(seed=1)]),
    "x[rows] = v": (lambda x, v: assigned(x, mx.array([True, False]), v), [numbers(2, 3), numbers(1, 3, seed=1)]),
    "x[index] = v": (lambda x, v: assigned(x, mx.array(INDEX), v), [numbers(4, 2), numbers(3, 2, seed=1)]),
    "x[1:3] = v": (lambda x, v: assigned(x, slice(1, 3), v), [numbers(4, 2), numbers(2, seed=1)]),
    "put_along_axis": (
        lambda x, v: mx.put_along_axis(x, mx.array([[0, 2], [1, 0]]), v, axis=1),
        [numbers(2, 3), numbers(2, 2, seed=1)],
    ),
    "slice_update": (
        lambda x, v: mx.slice_update(x, v, mx.array([1, 0]), (0, 1)),
        [numbers(3, 3), numbers(2, 2, seed=1)],
    ),
    "pad": (lambda x, v: mx.pad(x, ((1, 0), (0, 2)), constant_values=v), [numbers(2, 3), numbers(seed=1)]),
    "concatenate": (lambda x, y: mx.concatenate([x, y, x], axis=1), [numbers(2, 3), numbers(2, 1, seed=1)]),
    "matmul": (mx.matmul, [numbers(2, 3), numbers(3, 2, seed=1)]),
    "addmm": (mx.addmm, [numbers(2, 2, seed=2), numbers(2, 3), numbers(3, 2, seed=1)]),
    "the same twice": (lambda x, y: x * x / (x + y) - y * y, [numbers(2, 3), numbers(2, 3, seed=1)]),
}
for _name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
    CASES[f"at[index].{_name}"] = (
        lambda x, v, name=_name: getattr(x.at[mx.array(INDEX)], name)(v),
        [numbers(4, 2), numbers(3, 2, seed=1)],
    )
    CASES[f"at[1:3].{_name}"] = (
        lambda x, v, name=_name: getattr(x.at[1:3], name)(v),
        [numbers(4, 2), numbers(2, 2, seed=1)],
    )
UNARY: dict[str, Function] = {
    "cumsum": lambda x: mx.cumsum(x, axis=0, reverse=True),
    "cumprod": lambda x: mx.cumprod(x, axis=1),
    "cumprod, exclusive": lambda x: mx.cumprod(x, axis=1, inclusive=False),
    "cummax": lambda x: mx.cummax(x, axis=0),
    "cummin": lambda x: mx.cummin(x, axis=1, reverse=True),
    "logcumsumexp": lambda x: mx.logcumsumexp(x, axis=0),
    "sort": lambda x: mx.sort(x, axis=0),
    "partition": lambda x: mx.partition(x, 1, axis=1),
    "topk": lambda x: mx.topk(x, 2, axis=0),
    "median": lambda x: mx.median(x, axis=1),
    "take": lambda x: mx.take(x, mx.array(INDEX), axis=1),
    "take_along_axis": lambda x: mx.take_along_axis(x, mx.argsort(x, axis=1), axis=1),
    "slice": lambda x: mx.slice(x, mx.array([1]), (1,), (2, 2)),
}
CASES |= {name: (fun, [numbers(3, 4)]) for name, fun in UNARY.items()}


def subsets(n: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, n + 1):
        yield from itertools.combinations(range(n), size)


def of_some(fun: Function, values: Sequence[np.ndarray], chosen: Sequence[int]) -> Function:
    """fun of the chosen operands; the others are captured."""

    def partial(*xs: Any) -> Any:
        operands = [mx.array(v, mx.float64) for v in values]
        for i, x in zip(chosen, xs, strict=True):
            operands[i] = x
        return fun(*operands)

    return partial


@pytest.mark.parametrize("name", CASES)
def test_derivatives_by_every_subset(name: str) -> None:
    fun, values = CASES[name]
    for chosen in subsets(len(values)):
        partial, given = of_some(fun, values, chosen), [values[i] for i in chosen]
        check_derivatives(partial, *given)
        check_derivatives(lambda *xs, p=partial: mx.vjp(p, list(xs[:-1]), xs[-1:])[1][0], *given, _like(partial, given))


def _like(fun: Function, given: Sequence[np.ndarray]) -> np.ndarray:
    with reference():
        return numbers(*fun(*[mx.array(v, mx.float64) for v in given]).shape, seed=5)


@pytest.mark.parametrize("name", CASES)
def test_batches_of_every_subset_along_every_axis(name: str) -> None:
    fun, values = CASES[name]
    for chosen in subsets(len(values)):
        partial = of_some(fun, values, chosen)
        for shift in range(max(values[i].ndim for i in chosen) + 1):
            axes = [(k + shift) % (values[i].ndim + 1) for k, i in enumerate(chosen)]
            batches = [
                np.stack([values[i], values[i][..., ::-1] if values[i].ndim else values[i] + 0.5], axis)
                for i, axis in zip(chosen, axes, strict=True)
            ]
            check_batch(partial, axes, *batches)
            check_batch(lambda *xs, p=partial: mx.vjp(p, list(xs), [mx.ones_like(p(*xs))])[1][0], axes, *batches)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_a_batch_is_the_batch_of_gradients(name: str) -> None:
    fun, values = CASES[name]
    batches = [np.stack([v, v + 0.25]) for v in values]
    with reference():
        given = [mx.array(b, mx.float64) for b in batches]
        every = tuple(range(len(values)))
        inside = mx.vmap(mx.grad(lambda *xs: mx.sum(mx.square(fun(*xs))), every))(*given)
        outside = mx.grad(lambda *xs: mx.sum(mx.square(mx.vmap(fun)(*xs))), every)(*given)
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (inside, outside)), strict=True):
            np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-12, atol=1e-12)


def test_starts_of_slices_and_values_of_pads_are_mapped() -> None:
    x, starts, parts = numbers(4, 5), np.array([[0, 3], [2, 1], [1, 0]], np.int32), numbers(3, 2, 2, seed=3)
    at = lambda a, s: mx.slice(a, s, (0, 1), (2, 2))  # noqa: E731
    check_batch(at, (None, 0), x, starts)
    check_batch(at, (0, 0), np.stack([x, -x, 2 * x]), starts)
    check_batch(at, (2, 1), np.stack([x, -x, 2 * x], 2), starts.T)
    put = lambda a, v, s: mx.slice_update(a, v, s, (0, 1))  # noqa: E731
    for mapped in itertools.product([True, False], repeat=3):
        if any(mapped):
            every = (np.stack([x, -x, 2 * x]), parts, starts)
            check_batch(
                put,
                [0 if m else None for m in mapped],
                *[v if m else v[1] for v, m in zip(every, mapped, strict=True)],
            )
    check_batch(lambda a, v: mx.pad(a, 1, constant_values=v), (None, 0), x, numbers(3))
    check_batch(lambda a, v: mx.pad(a, 1, constant_values=v), (1, 0), x, numbers(5))
    check_batch(lambda a: mx.grad(lambda b: mx.sum(mx.square(at(b, mx.array(starts[1])))))(a), (0,), np.stack([x, -x]))


def test_some_outputs_depend_on_some_inputs() -> None:
    """Each tangent and cotangent belongs to its own pair, and those that are zero everywhere are constants."""
    x, y, n = mx.array([1.0, 2.0]), mx.array([3.0, 4.0]), mx.array([5, 6])
    with reference():
        fun = lambda a, b, k: (a * b, mx.sin(b), k * 2, a > 1, mx.array(7.0))  # noqa: E731
        _, tangents = mx.jvp(fun, [x, y, n], [x, y, n])
        kinds = [(t.dtype, t.shape) for t in tangents]
        assert kinds == [(mx.float32, (2,)), (mx.float32, (2,)), (mx.int32, (2,)), (mx.float32, (2,)), (mx.float32, ())]
        assert tangents[0].tolist() == [6.0, 16.0]
        assert tangents[2].tolist() == [10, 12]
        assert [isinstance(t._node.op, Constant) for t in tangents] == [False, False, False, True, True]
        cotangents = [mx.ones_like(y) for y in fun(x, y, n)]
        _, (dx, dy, dn) = mx.vjp(fun, [x, y, n], cotangents)
        assert dx.tolist() == [3.0, 4.0]
        np.testing.assert_allclose(np.array(dy), np.array(x) + np.cos(np.array(y)), rtol=1e-6)
        assert (dn.dtype, dn.tolist()) == (mx.int32, [2, 2])
