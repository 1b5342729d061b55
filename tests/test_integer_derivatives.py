"""Derivatives of integers and bools: those of the operation on reals, converted; the same in both modes, through every
primitive, loop and branch.

An entry of a Jacobian by forward mode (a tangent of 1 for one element) and by reverse mode (a cotangent of 1 for one)
is one number, whatever is rounded or wraps on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import weft.core as mx
from tests import contract
from tests.contract import by_reference, leaf
from tests.loops import Native, Plain
from weft import dtypes as dt
from weft import interop
from weft.array import array
from weft.dtypes import Dtype
from weft.primitives import REGISTRY
from weft.primitives.base import Discrete, Primitive, bind, constant
from weft.primitives.bits import Bitcast
from weft.primitives.custom_kernel import CustomKernel
from weft.primitives.elementwise import Comparison, Stepwise
from weft.transforms.jvp import push_forward
from weft.transforms.vjp import pull_back

COUNTED = (dt.bool_, *dt.INTEGERS)
LEADERS = (dt.bool_, dt.uint8, dt.int32)
"""The rules are the same for all that are counted, but for the width and for signs."""


def pairs(dtypes: Sequence[Dtype]) -> list[object]:
    """Of all operations but custom kernels, which have the derivatives that users give them."""
    found = [(cls, dtype) for cls in REGISTRY if cls is not CustomKernel for dtype in cls.dtypes if dtype in dtypes]
    return [pytest.param(*pair, marks=() if pair[1] in LEADERS else pytest.mark.slow) for pair in found]


FEW = 3


def name_of(value: object) -> str:
    if isinstance(value, type) and issubclass(value, Primitive):
        return value.name()
    return value.name if isinstance(value, Dtype) else str(value)


def traced_operands(case: contract.Case) -> list[int]:
    """Those that are numbers, and no places: floats in the sample for floats, where there is one."""
    wide = next((d for d in (dt.float64, dt.float32) if d in type(case.op).dtypes), None)
    if wide is None:
        return list(range(len(case.operands())))
    return [i for i, x in enumerate(case.sample.make(contract.generator(str(case)), wide)) if x.dtype == wide.np]


def pushed(op: Primitive, values: Sequence[np.ndarray], at: int, tangent: np.ndarray) -> np.ndarray:
    nodes = [leaf(v) for v in values]
    out = bind(op, *nodes)
    (found,) = push_forward([nodes[at]], [out], [leaf(tangent)])
    return np.zeros(out.shape, out.dtype.np) if found is None else by_reference([found])[0]


def pulled(op: Primitive, values: Sequence[np.ndarray], at: int, cotangent: np.ndarray) -> np.ndarray:
    nodes = [leaf(v) for v in values]
    (found,) = pull_back([nodes[at]], [bind(op, *nodes)], [leaf(cotangent)])
    return by_reference([constant(0, nodes[at].kind) if found is None else found])[0]


def one_at(place: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    unit = np.zeros_like(like)
    unit[place] = 1
    return unit


def places(rng: np.random.Generator, where: np.ndarray) -> list[tuple[int, ...]]:
    """Some of the places where something is."""
    found = np.argwhere(where)
    return [tuple(found[i]) for i in rng.permutation(len(found))[:FEW]]


@pytest.mark.parametrize(("cls", "dtype"), pairs(COUNTED), ids=name_of)
def test_both_modes_agree(cls: type[Primitive], dtype: Dtype) -> None:
    for case in contract.cases(cls, [dtype]):
        rng, values = contract.generator(f"{case} modes"), case.operands()
        for at in traced_operands(case):
            for place in places(rng, np.ones_like(values[at], bool)):
                column = pushed(case.op, values, at, one_at(place, values[at]))
                for row in [*places(rng, column != 0), *places(rng, np.ones_like(column, bool))]:
                    back = pulled(case.op, values, at, one_at(row, column))[place]
                    # One is converted to the dtype of the result, and the other to that of the operand.
                    there = dt.from_numpy(column.dtype)
                    same = interop.cast(np.asarray(column[row]), dtype), interop.cast(np.asarray(back), there)
                    assert back == same[0] or column[row] == same[1], f"{case}, result {row} by operand {at} at {place}"


CONSTANT = (Comparison, Stepwise, Discrete, Bitcast)


@pytest.mark.parametrize(("cls", "dtype"), pairs(dt.INTEGERS), ids=name_of)
def test_it_is_the_derivative_on_reals(cls: type[Primitive], dtype: Dtype) -> None:
    """Converted once, where it is no integer. What has no form for reals is constant."""
    real = dt.float64 in cls.dtypes and not issubclass(cls, CONSTANT)
    for case in contract.cases(cls, [dtype]):
        rng, values = contract.generator(f"{case} reals"), case.operands()
        numbers = traced_operands(case)
        for at in numbers:
            tangent = rng.integers(0, 3, values[at].shape).astype(dtype.np)
            found = pushed(case.op, values, at, tangent)
            if not real:
                assert not np.any(found), f"{case} by operand {at}"
                continue
            wide = [v.astype(np.float64) if i in numbers else v for i, v in enumerate(values)]
            expected = pushed(case.op, wide, at, tangent.astype(np.float64))
            if np.all(np.abs(expected).astype(np.float64) < 2.0**53) and not wraps(case.op, wide):
                expected = interop.cast(expected, dt.from_numpy(found.dtype))
                np.testing.assert_array_equal(found, expected, err_msg=f"{case} by operand {at}")


def wraps(op: Primitive, values: Sequence[np.ndarray]) -> bool:
    """Whether it is about sums or products that are too large for their dtype, or about a place that is undefined for
    reals."""
    with np.errstate(over="ignore"):
        found = np.abs(contract.reference(op, values)).astype(np.float64)
    return not np.all(np.isfinite(found)) or np.any(found > 100)


# ---- products, which wrap ----


@pytest.mark.parametrize("dtype", COUNTED, ids=name_of)
@pytest.mark.parametrize("seed", range(4))
def test_products_of_all_others_are_exact_when_they_wrap(dtype: Dtype, seed: int) -> None:
    """Also beside zeros, and beside powers of two that leave nothing of the product."""
    rng = np.random.default_rng(seed)
    values = rng.choice([0, 1, 2, 3, 4, 7, 64, 96, 127, -1, -2, -128, 12345, -(2**31), 2**31, 2**63 - 1], (6, 9))
    numbers = np.array([[int(v) for v in row] for row in values], object)
    x = (values != 0) if dtype.is_bool else values.astype(np.int64).astype(dtype.np)
    numbers = np.vectorize(int, otypes=[object])(x)
    if seed % 2:
        x[x == 0] = 1
        numbers[numbers == 0] = 1
    others = [[math.prod(row[:j]) * math.prod(row[j + 1 :]) for j in range(len(row))] for row in numbers.tolist()]
    product = mx.prod(mx.array(x), axis=1)
    bits = product.dtype.bits
    wrapped = np.array([[n % (1 << bits) for n in row] for row in others], np.uint64).astype(f"u{product.dtype.size}")
    expected = interop.cast(wrapped.view(product.dtype.np), dtype)
    _, (found,) = mx.vjp(lambda x: mx.prod(x, axis=1), [mx.array(x)], [mx.ones_like(product)])
    np.testing.assert_array_equal(np.asarray(found), expected)
    for j in range(x.shape[1]):
        unit = np.zeros_like(x)
        unit[:, j] = 1
        _, (column,) = mx.jvp(lambda x: mx.prod(x, axis=1), [mx.array(x)], [mx.array(unit)])
        np.testing.assert_array_equal(np.asarray(column), wrapped.view(product.dtype.np)[:, j])


def test_the_derivative_of_a_product_beside_a_zero() -> None:
    x = mx.array([3, -2, 0, 5])
    assert mx.jvp(mx.prod, [x], [mx.array([1, 1, 1, 1])])[1][0].item() == -30
    assert mx.vjp(mx.prod, [x], [mx.array(2)])[1][0].tolist() == [0, 0, -60, 0]


# ---- whole functions ----


def test_integers_on_the_way_change_nothing() -> None:
    """What `sum` gives, every other operation gives too."""
    x = mx.array([3.0, -2.0, 0.0, 5.0, 1.0, 3.0])
    through = lambda f: mx.grad(lambda x: mx.sum(f(x.astype(mx.int32)).astype(mx.float32)))(x).tolist()  # noqa: E731
    assert through(lambda i: i) == [1] * 6
    assert through(mx.sum) == [1] * 6
    assert through(mx.cumsum) == [6, 5, 4, 3, 2, 1]
    assert through(mx.abs) == [1, -1, 0, 1, 1, 1]
    assert through(mx.sort) == [1] * 6
    assert through(mx.max) == [0, 0, 0, 1, 0, 0]
    assert through(lambda i: i % 2) == [1] * 6
    assert through(lambda i: mx.topk(i, 2)) == [0, 0, 0, 1, 0, 1]
    assert through(lambda i: mx.partition(i, 2)) == [1] * 6
    assert through(lambda i: mx.concatenate([i, i])) == [2] * 6
    assert through(lambda i: mx.stack([i, i])) == [2] * 6
    assert through(lambda i: mx.roll(i, 1)) == [1] * 6
    assert through(mx.cummax) == [3, 0, 0, 3, 0, 0]
    assert through(mx.cumprod) == [-1, 3, -156, 0, 0, 0]
    assert through(lambda i: mx.scan(lambda c, r: (c * 2 + r, c), i[0], i)[0]) == [2**6 + 2**5, 16, 8, 4, 2, 1]
    for constant_everywhere in (mx.floor, mx.ceil, mx.round, mx.sign, lambda i: i // 2, lambda i: i > 1, lambda i: ~i,
                                lambda i: i & 3, lambda i: i << 1, mx.argmax, mx.argsort):  # fmt: skip
        assert through(constant_everywhere) == [0] * 6


def test_the_tangent_of_a_comparison_has_the_dtype_of_its_operands() -> None:
    for dtype in (mx.float16, mx.float32, mx.int32, mx.complex64):
        x = mx.array([1, 0, 2]).astype(dtype)
        for compare in (lambda x: x > 1, lambda x: mx.equal(x, x), lambda x: x != 1):
            (out,), (tangent,) = mx.jvp(compare, [x], [mx.ones_like(x)])
            assert (out.dtype, tangent.dtype, tangent.tolist()) == (mx.bool_, dtype, [0, 0, 0])


STEPS: dict[str, Callable[[Any, array, int], array]] = {
    "cumsum": lambda ways, x, n: mx.cumsum(x, reverse=bool(n & 1), inclusive=bool(n & 2)),
    "cumprod": lambda ways, x, n: mx.cumprod(x, inclusive=bool(n & 1)),
    "cummax": lambda ways, x, n: mx.cummax(x, reverse=bool(n & 1)),
    "sort": lambda ways, x, n: mx.sort(x),
    "partition": lambda ways, x, n: mx.partition(x, n % x.shape[0]),
    "roll": lambda ways, x, n: mx.roll(x, n),
    "join": lambda ways, x, n: mx.concatenate([x[n % 4 :], x[: n % 4]]),
    "abs": lambda ways, x, n: mx.abs(x),
    "remainder": lambda ways, x, n: x % (n % 5 + 1),
    "divisor": lambda ways, x, n: n % (x + 9),
    "product": lambda ways, x, n: x * x[::-1] + n,
    "square": lambda ways, x, n: mx.square(x) - x,
    "power": lambda ways, x, n: x ** (n % 4),
    "maximum": lambda ways, x, n: mx.maximum(x, x[::-1] - n % 3),
    "where": lambda ways, x, n: mx.where(x > n % 5, x * 3, x[::-1]),
    "prod": lambda ways, x, n: x + mx.prod(x[n % 3 :]),
    "total": lambda ways, x, n: x - mx.sum(x),
    "gather": lambda ways, x, n: mx.take(x, (mx.arange(x.shape[0]) * 3 + n) % x.shape[0]),
    "scatter": lambda ways, x, n: x.at[mx.array([0, n % 4, 0])].add(x[:3]),
    "times": lambda ways, x, n: x.at[mx.array([0, n % 4, 0])].multiply(x[:3]),
    "matmul": lambda ways, x, n: mx.matmul(mx.outer(x, x) % 7, x),
    "scan": lambda ways, x, n: ways.scan(lambda c, r: (c * r + n % 3, c - r), x[0], x, reverse=bool(n & 1))[1],
    "carry": lambda ways, x, n: ways.scan(lambda c, r: (c[::-1] + r * c, r), x, x)[0],
    "while": lambda ways, x, n: ways.while_loop(
        lambda s: s[1] < n % 4, lambda s: (s[0] * 3 - s[0][::-1], s[1] + 1), (x, mx.array(0))
    )[0],
    "fori": lambda ways, x, n: ways.fori_loop(0, n % 4, lambda i, c: c + i * c[::-1], x),
    "cond": lambda ways, x, n: ways.cond(x[0] > n % 5, lambda a: a * a, lambda a: a[::-1] * 2, x),
    "switch": lambda ways, x, n: ways.switch(x[1] % 3, [mx.cumsum, lambda a: a * 3, mx.sort], x),
    "floor": lambda ways, x, n: x + x // 2,
    "unsigned": lambda ways, x, n: mx.sort(x.astype(mx.uint32) * 3).astype(mx.int32) + x,
}  # fmt: skip


def program(steps: Sequence[tuple[str, int]], ways: Any) -> Callable[[array], array]:
    def run(x: array) -> array:
        for name, number in steps:
            x = STEPS[name](ways, x, number)
        return x

    return run


SIZE = 5


@examples(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([*STEPS]), st.integers(0, 30)), min_size=1, max_size=4),
    st.lists(st.integers(-6, 6), min_size=SIZE, max_size=SIZE),
)
def test_whole_programs_in_both_modes(steps: list[tuple[str, int]], values: list[int]) -> None:
    """To the bit, wrapped or not: nothing here has a derivative that is no integer. Loops are the Python loops."""
    f, plain = program(steps, Native), program(steps, Plain)
    x, unit = mx.array(values), np.eye(SIZE, dtype=np.int32)
    forward = np.stack([np.asarray(mx.jvp(f, [x], [mx.array(t)])[1][0]) for t in unit], axis=-1)
    backward = np.stack([np.asarray(mx.vjp(f, [x], [mx.array(t)])[1][0]) for t in unit])
    np.testing.assert_array_equal(forward, backward)
    by_steps = np.stack([np.asarray(mx.jvp(plain, [x], [mx.array(t)])[1][0]) for t in unit], axis=-1)
    np.testing.assert_array_equal(forward, by_steps)
    compiled = mx.compile(lambda x, t: mx.vjp(f, [x], [t])[1][0])
    np.testing.assert_array_equal(np.asarray(compiled(x, mx.array(unit[0]))), backward[0])
