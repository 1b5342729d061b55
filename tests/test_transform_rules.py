"""Derivative rules where they are easy to get wrong: operands of which only some are traced, steps, integers, complex
numbers, and the edges of functions (docs/gradients.md).

Every value here is worked out by hand or by differences; the generated tests of every primitive are in
test_contract.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import settings
from weft import dtypes as dt
from weft.array import wrap
from weft.graph.node import Node, kind_of
from weft.primitives.base import Constant, Elementwise, Placeholder, bind, full_like
from weft.primitives.contraction import Matmul
from weft.primitives.elementwise import Sin, select
from weft.transforms import rules
from weft.transforms.jvp import push_forward
from weft.transforms.vjp import pull_back

INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    with settings(backend="reference"):
        yield


def equal(got: mx.array, expected: Any, dtype: dt.Dtype = mx.float32) -> None:
    """The same numbers (NaN included), shape and dtype."""
    assert got.dtype is dtype
    np.testing.assert_array_equal(np.array(got), np.asarray(expected, dtype.np))


def subsets(n: int) -> list[tuple[int, ...]]:
    return [s for size in range(1, n + 1) for s in itertools.combinations(range(n), size)]


def partly(fun: Callable[..., mx.array], values: Sequence[mx.array], traced: Sequence[int]) -> Callable[..., mx.array]:
    """fun of the traced operands only; the others are captured."""

    def partial(*xs: mx.array) -> mx.array:
        operands = list(values)
        for i, x in zip(traced, xs, strict=True):
            operands[i] = x
        return fun(*operands)

    return partial


def both_modes(
    fun: Callable[..., mx.array], values: Sequence[mx.array], partials: Sequence[Any], seed: int = 0
) -> None:
    """For every subset of operands that are traced: the tangent is the sum over them, the cotangents are theirs alone.

    `partials` are the derivatives by each operand, elementwise.
    """
    rng = np.random.default_rng(seed)
    for traced in subsets(len(values)):
        part = partly(fun, values, traced)
        chosen = [values[i] for i in traced]
        tangents = [mx.array(rng.integers(1, 9, v.shape).astype(np.float32)) for v in chosen]
        (out,), (tangent,) = mx.jvp(part, chosen, tangents)
        expected = sum(np.asarray(partials[i]) * np.array(t) for i, t in zip(traced, tangents, strict=True))
        np.testing.assert_allclose(np.array(tangent), expected + np.zeros(out.shape), rtol=1e-5, err_msg=str(traced))
        cotangent = mx.array(rng.integers(1, 9, out.shape).astype(np.float32))
        _, found = mx.vjp(part, chosen, [cotangent])
        for i, ct in zip(traced, found, strict=True):
            expected = np.asarray(partials[i]) * np.array(cotangent)
            np.testing.assert_allclose(np.array(ct), expected, rtol=1e-5, err_msg=f"operand {i} of {traced}")


# ---- where ----

CHOICE = np.array([True, False, True, False])
A, B = mx.array([1.0, 2.0, 3.0, 4.0]), mx.array([5.0, 6.0, 7.0, 8.0])


def test_where_with_every_subset_of_operands_traced() -> None:
    """The condition, as numbers, is traced as well: its derivative is zero, and its tangent is nobody else's."""
    condition = mx.array(CHOICE.astype(np.float32))
    both_modes(lambda c, x, y: mx.where(c > 0.5, x, y), [condition, A, B], [np.zeros(4), CHOICE, ~CHOICE])
    both_modes(lambda c, x, y: mx.where(c, x, y), [condition, A, B], [np.zeros(4), CHOICE, ~CHOICE])


@pytest.mark.parametrize("number", [0.0, 1.0, -3.0])
def test_where_with_a_number_on_one_side(number: float) -> None:
    condition = mx.array(CHOICE)
    both_modes(lambda x: mx.where(condition, number, x), [A], [~CHOICE])
    both_modes(lambda x: mx.where(condition, x, number), [A], [CHOICE])
    both_modes(lambda x: mx.where(condition, x * x, number), [A], [CHOICE * 2 * np.array(A)])


def test_where_with_the_same_array_on_both_sides() -> None:
    both_modes(lambda x: mx.where(mx.array(CHOICE), x, x), [A], [np.ones(4)])
    both_modes(lambda x: mx.where(x > 2, x * x, 3 * x), [A], [np.where(np.array(A) > 2, 2 * np.array(A), 3)])


def test_where_broadcasts_its_operands() -> None:
    def loss(x: mx.array, y: mx.array) -> mx.array:
        return mx.sum(mx.where(mx.array([[True], [False]]), x, y))

    dx, dy = mx.grad(loss, (0, 1))(mx.array(1.0), mx.array([1.0, 2.0, 3.0]))
    equal(dx, 3.0)
    equal(dy, [1.0, 1.0, 1.0])


def test_what_is_not_chosen_leaks_nothing() -> None:
    """Neither a NaN nor an infinity on the other side, nor an infinite cotangent."""
    condition, bad = mx.array([True, False]), mx.array([NAN, INF])
    for swap in (False, True):
        fun = lambda x: mx.where(condition, x, bad) if not swap else mx.where(~condition, bad, x)  # noqa: B023, E731
        _, (ct,) = mx.vjp(fun, [mx.array([1.0, 2.0])], [mx.array([3.0, INF])])
        equal(ct, [3.0, 0.0])
        _, (tangent,) = mx.jvp(fun, [mx.array([1.0, 2.0])], [mx.array([3.0, INF])])
        equal(tangent, [3.0, 0.0])
    larger = lambda x, y: mx.maximum(x, y)  # noqa: E731
    _, (dx, dy) = mx.vjp(larger, [mx.array([1.0, 5.0]), mx.array([2.0, 2.0])], [mx.array([INF, INF])])
    equal(dx, [0.0, INF])
    equal(dy, [INF, 0.0])


# ---- operands of which some are traced ----


def test_power_by_base_exponent_and_both() -> None:
    x, y = np.array([0.5, 1.0, 2.0, 3.0]), np.array([2.0, -1.0, 3.0, 0.5])
    partials = [y * x ** (y - 1), np.log(x) * x**y]
    both_modes(mx.power, [mx.array(x.astype(np.float32)), mx.array(y.astype(np.float32))], partials)
    both_modes(lambda a: a**3, [mx.array([1.0, -2.0, 0.0])], [[3.0, 12.0, 0.0]])
    both_modes(lambda a: 2.0**a, [mx.array([1.0, -2.0, 0.0])], [np.log(2.0) * np.array([2.0, 0.25, 1.0])])
    both_modes(lambda a: a**a, [mx.array([1.0, 2.0])], [[1.0, 4 * (1 + math.log(2.0))]])


def test_subtract_and_divide_by_either() -> None:
    x, y = np.array([1.0, -2.0, 3.0]), np.array([2.0, 4.0, -8.0])
    operands = [mx.array(x.astype(np.float32)), mx.array(y.astype(np.float32))]
    both_modes(mx.subtract, operands, [np.ones(3), -np.ones(3)])
    both_modes(mx.multiply, operands, [y, x])
    both_modes(mx.divide, operands, [1 / y, -x / y**2])
    both_modes(lambda a, b: a / b - b / a, operands, [1 / y + y / x**2, -x / y**2 - 1 / x])


def test_matmul_by_either() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    x, y = mx.array(a.astype(np.float32)), mx.array(b.astype(np.float32))
    cotangent = np.arange(8.0).reshape(2, 4)
    ct = mx.array(cotangent.astype(np.float32))
    equal(mx.vjp(lambda u: u @ y, [x], [ct])[1][0], cotangent @ b.T)
    equal(mx.vjp(lambda v: x @ v, [y], [ct])[1][0], a.T @ cotangent)
    equal(mx.jvp(lambda u, v: u @ v, [x, y], [x, y])[1][0], 2 * a @ b)
    equal(mx.jvp(lambda v: x @ v, [y], [y])[1][0], a @ b)


def test_the_same_array_as_two_operands() -> None:
    x = mx.array([1.0, 2.0, -3.0])
    values = np.array(x)
    both_modes(lambda a: a * a, [x], [2 * values])
    both_modes(lambda a: a + a, [x], [2 * np.ones(3)])
    both_modes(lambda a: a - a, [x], [np.zeros(3)])
    both_modes(lambda a: a / a, [x], [np.zeros(3)])
    both_modes(lambda a: mx.maximum(a, a), [x], [np.ones(3)])
    both_modes(lambda a: mx.logaddexp(a, a), [x], [np.ones(3)])
    square = mx.array([[1.0, 2.0], [3.0, 4.0]])
    equal(mx.grad(lambda a: mx.sum(a @ a))(square), [[7.0, 11.0], [9.0, 13.0]])


def test_broadcast_operands_collect_their_gradient() -> None:
    row, column = mx.array([1.0, 2.0, 3.0]), mx.array([[10.0], [20.0]])
    dr, dc = mx.grad(lambda r, c: mx.sum(r * c), (0, 1))(row, column)
    equal(dr, [30.0, 30.0, 30.0])
    equal(dc, [[6.0], [6.0]])
    equal(mx.grad(lambda s: mx.sum(s * mx.ones((2, 3))))(mx.array(2.0)), 6.0)
    equal(mx.grad(lambda s: mx.sum(mx.broadcast_to(s, (4, 1, 3))))(mx.array([[1.0, 1.0, 1.0]])), [[4.0, 4.0, 4.0]])


# ---- steps ----

STEPS: dict[str, Callable[[mx.array], mx.array]] = {
    "greater": lambda x: x > 1,
    "less_equal": lambda x: x <= x * 2,
    "equal": lambda x: x == 1,
    "not_equal": lambda x: x != 1,
    "isnan": mx.isnan,
    "isinf": mx.isinf,
    "logical_not": mx.logical_not,
    "logical_and": lambda x: mx.logical_and(x, x > 0),
    "floor": mx.floor,
    "ceil": mx.ceil,
    "round": mx.round,
    "sign": mx.sign,
    "floor_divide": lambda x: mx.floor(x / 2),
    "argmax": lambda x: mx.argmax(x, axis=1),
    "any": lambda x: mx.any(x, axis=0),
    "all": lambda x: mx.all(x, axis=0),
    "stop_gradient": mx.stop_gradient,
    "bits": lambda x: (x > 1) & (x < 2),
    "captured": lambda x: mx.array([1, 2, 3]),
}


COMPARISONS = {"greater", "less_equal", "equal", "not_equal", "isnan", "isinf"}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.float64], ids=str)
def test_steps_have_a_zero_derivative_of_the_right_kind(name: str, dtype: dt.Dtype) -> None:
    """Never a missing one, and never one of another shape or dtype; the tangents of comparisons have the dtype of the
    operands, as in MLX."""
    x = mx.array(np.array([[0.5, 1.0, -1.5], [2.5, 3.0, 0.0]], np.float32)).astype(dtype)
    (out,), (tangent,) = mx.jvp(STEPS[name], [x], [mx.ones_like(x)])
    assert (tangent.shape, tangent.dtype) == (out.shape, dtype if name in COMPARISONS else out.dtype)
    assert not np.array(tangent.astype(mx.float32)).any()
    _, (cotangent,) = mx.vjp(STEPS[name], [x], [mx.ones_like(out)])
    assert (cotangent.shape, cotangent.dtype) == (x.shape, dtype)
    assert not np.array(cotangent.astype(mx.float32)).any()
    # The step is a factor of something that does have a derivative.
    if out.shape == x.shape:
        fun = lambda a: mx.sum(STEPS[name](a).astype(dtype) * a)  # noqa: E731
        np.testing.assert_array_equal(np.array(mx.grad(fun)(x)), np.array(out.astype(dtype)))


@pytest.mark.parametrize(
    "fun", [lambda x: x & 6, lambda x: x | 1, lambda x: x ^ 3, lambda x: ~x, lambda x: x << 1, lambda x: x >> 1]
)
@pytest.mark.parametrize("dtype", [mx.int32, mx.uint8], ids=str)
def test_bitwise_operations_have_a_zero_derivative(fun: Callable[[mx.array], mx.array], dtype: dt.Dtype) -> None:
    x = mx.array([1, 2, 7], dtype)
    (out,), (tangent,) = mx.jvp(fun, [x], [x])
    equal(tangent, [0, 0, 0], out.dtype)
    equal(mx.vjp(fun, [x], [mx.ones_like(out)])[1][0], [0, 0, 0], dtype)


def test_several_outputs_of_which_some_are_steps() -> None:
    x = mx.array([1.5, -2.5])
    _, tangents = mx.jvp(lambda a: (a * a, mx.floor(a), a > 0, a), [x], [mx.array([1.0, 10.0])])
    equal(tangents[0], [3.0, -50.0])
    equal(tangents[1], [0.0, 0.0])
    equal(tangents[2], [0.0, 0.0])
    equal(tangents[3], [1.0, 10.0])


# ---- integers and bools ----


def test_integer_arguments_have_integer_gradients() -> None:
    """As in MLX: derivatives of the operations on reals, in the dtype of the argument."""
    i, x = mx.array([1, 2, 3]), mx.array([0.5, 1.5, 2.5])
    di, dx = mx.grad(lambda a, b: mx.sum(a * b), (0, 1))(i, x)
    equal(di, [0, 1, 2], mx.int32)  # of 0.5, 1.5, 2.5
    equal(dx, [1.0, 2.0, 3.0])
    equal(mx.grad(lambda a: mx.sum(a * a))(i), [2, 4, 6], mx.int32)
    equal(mx.grad(lambda a: mx.sum(-a + 3 * a - a * a))(i), [0, -2, -4], mx.int32)
    equal(mx.grad(lambda a: mx.sum(a**2))(i), [2, 4, 6], mx.int32)
    equal(mx.grad(lambda a: a)(mx.array(3, mx.uint8)), 1, mx.uint8)
    equal(mx.jvp(lambda a: a * 2.5, [mx.array(3)], [mx.array(2)])[1][0], 5.0)
    equal(mx.jvp(lambda a: mx.sum(a), [mx.array([1, 2], mx.int8)], [mx.array([3, 4], mx.int8)])[1][0], 7, mx.int32)
    equal(mx.grad(lambda a: mx.sum(mx.maximum(a, 2)))(i), [0, 0, 1], mx.int32)
    equal(mx.grad(lambda a: mx.sum(a @ mx.array([1, 10])))(mx.array([[1, 2], [3, 4]])), [[1, 10], [1, 10]], mx.int32)


def test_bool_arguments_have_bool_gradients() -> None:
    equal(mx.grad(lambda b: mx.sum(b * 2.0))(mx.array([True, False])), [True, True], mx.bool_)
    equal(mx.grad(lambda b: mx.sum(mx.logical_not(b) * 2.0))(mx.array([True, False])), [False, False], mx.bool_)
    equal(
        mx.grad(lambda b, x: mx.sum(mx.where(b, x, 0.0)), (0, 1))(mx.array([True, False]), A[:2])[0],
        [False, False],
        mx.bool_,
    )


def test_a_conversion_is_the_identity() -> None:
    """Also to integers and back, as in MLX: what rounds on purpose says so with floor or round."""
    x = mx.array([1.25, -2.75])
    equal(mx.grad(lambda a: mx.sum(a.astype(mx.int32)))(x), [1.0, 1.0])
    equal(mx.grad(lambda a: mx.sum(a.astype(mx.int32).astype(mx.float32) * a))(x), [1.0 + 1.0, -2.0 - 2.0])
    equal(mx.jvp(lambda a: a.astype(mx.int32), [x], [mx.array([3.0, 4.0])])[1][0], [3, 4], mx.int32)
    for dtype in (mx.float16, mx.bfloat16, mx.float64):
        equal(mx.grad(lambda a: mx.sum(a.astype(dtype) * 2))(x), [2.0, 2.0])  # noqa: B023
        assert mx.grad(lambda a: a * a)(mx.array(2.0, dtype)).dtype is dtype


def test_indices_have_no_derivative() -> None:
    x, index = mx.array([1.0, 2.0, 3.0]), mx.array([2, 0, 2])
    dx, di = mx.grad(lambda a, i: mx.sum(a[i] * a[i]), (0, 1))(x, index)
    equal(dx, [2.0, 0.0, 12.0])
    equal(di, [0, 0, 0], mx.int32)


def test_an_integer_loss() -> None:
    equal(mx.grad(lambda a: mx.sum(a * 2))(mx.array([1, 2])), [2, 2], mx.int32)
    equal(mx.grad(lambda a: mx.sum(a > 1))(A), [0.0, 0.0, 0.0, 0.0])


# ---- complex numbers ----

Z = np.array([0.3 + 0.4j, -1.2 + 0.7j, 2.0 - 1.5j])
HOLOMORPHIC: dict[str, tuple[Callable[[mx.array], mx.array], Callable[[np.ndarray], np.ndarray]]] = {
    "square": (mx.square, lambda z: 2 * z),
    "product": (lambda z: z * z * (1 + 2j), lambda z: 2 * z * (1 + 2j)),
    "quotient": (lambda z: (1 + 2j) / z, lambda z: -(1 + 2j) / z**2),
    "exp": (mx.exp, np.exp),
    "log": (mx.log, lambda z: 1 / z),
    "sqrt": (mx.sqrt, lambda z: 0.5 / np.sqrt(z)),
    "sin": (mx.sin, np.cos),
    "cos": (mx.cos, lambda z: -np.sin(z)),
    "tanh": (mx.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "power": (lambda z: z ** mx.array(1.5 - 0.2j, mx.complex128), lambda z: (1.5 - 0.2j) * z ** (0.5 - 0.2j)),
    "exponent": (lambda z: mx.array(1.5 - 0.2j, mx.complex128) ** z, lambda z: np.log(1.5 - 0.2j) * (1.5 - 0.2j) ** z),
}


def complex_array(values: np.ndarray) -> mx.array:
    return mx.array(values.astype(np.complex128), mx.complex128)


@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_holomorphic_functions(name: str) -> None:
    """A tangent is multiplied with the derivative, a cotangent with its conjugate: MLX's convention."""
    fun, derivative = HOLOMORPHIC[name]
    direction = np.array([1 + 2j, 3 - 1j, -0.5j])
    _, (tangent,) = mx.jvp(fun, [complex_array(Z)], [complex_array(direction)])
    np.testing.assert_allclose(np.array(tangent), derivative(Z) * direction, rtol=1e-10)
    _, (cotangent,) = mx.vjp(fun, [complex_array(Z)], [complex_array(direction)])
    np.testing.assert_allclose(np.array(cotangent), np.conj(derivative(Z)) * direction, rtol=1e-10)


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda z: mx.real(z), lambda z: np.ones_like(z)),
        (lambda z: mx.imag(z), lambda z: 1j * np.ones_like(z)),
        (lambda z: mx.abs(z), lambda z: z / np.abs(z)),
        (lambda z: mx.real(z * mx.conj(z)), lambda z: 2 * z),
        (lambda z: mx.square(mx.abs(z)), lambda z: 2 * z),
        (lambda z: mx.real(mx.conj(z) * (1 + 2j)), lambda z: (1 + 2j) * np.ones_like(z)),
        (lambda z: mx.real(z) * mx.imag(z), lambda z: z.imag + 1j * z.real),
    ],
)
def test_real_functions_of_complex_numbers(
    fun: Callable[[mx.array], mx.array], expected: Callable[[np.ndarray], np.ndarray]
) -> None:
    """The gradient is the derivative by the real part plus i times that by the imaginary part: the direction of
    steepest ascent."""
    gradient = mx.grad(lambda z: mx.sum(fun(z)))(complex_array(Z))
    assert gradient.dtype is mx.complex128
    np.testing.assert_allclose(np.array(gradient), expected(Z), rtol=1e-10)
    step = 1e-6
    by_parts = [
        (np.array(fun(complex_array(Z + d))) - np.array(fun(complex_array(Z - d)))) / (2 * step)
        for d in (step, 1j * step)
    ]
    np.testing.assert_allclose(np.array(gradient), by_parts[0] + 1j * by_parts[1], rtol=1e-6)


def test_between_reals_and_complex_numbers() -> None:
    x, c = mx.array([1.0, 2.0]), mx.array([2 + 3j, 1 - 1j])
    _, (ct,) = mx.vjp(lambda a: a * c, [x], [mx.array([1 + 1j, 2j])])
    equal(ct, [(np.conj(2 + 3j) * (1 + 1j)).real, (np.conj(1 - 1j) * 2j).real])
    equal(mx.grad(lambda a: mx.sum(mx.real(a.astype(mx.complex64) * c)))(x), [2.0, 1.0])
    equal(mx.jvp(lambda a: a * c, [x], [x])[1][0], [2 + 3j, 2 - 2j], mx.complex64)
    equal(mx.grad(lambda z: z)(mx.array(1 + 2j)), 1 + 0j, mx.complex64)


def test_complex_products_of_matrices() -> None:
    a, b, ct = np.array([[1 + 1j, 2]]), np.array([[1j], [2 + 1j]]), np.array([[1 + 2j]])
    _, (da, db) = mx.vjp(lambda u, v: u @ v, [complex_array(a), complex_array(b)], [complex_array(ct)])
    np.testing.assert_allclose(np.array(da), ct @ b.conj().T)
    np.testing.assert_allclose(np.array(db), a.conj().T @ ct)


# ---- the edges, as documented ----

EDGES: list[tuple[str, Callable[[mx.array], mx.array], Any, Any]] = [
    ("abs at 0", mx.abs, [0.0, -0.0], [0.0, 0.0]),
    ("abs of complex 0", mx.abs, 0j, 0j),
    ("sign", mx.sign, [0.0, 2.0], [0.0, 0.0]),
    ("sqrt at 0", mx.sqrt, 0.0, INF),
    ("rsqrt at 0", mx.rsqrt, 0.0, -INF),
    ("log at 0", mx.log, 0.0, INF),
    ("1 / x at 0", mx.reciprocal, 0.0, -INF),
    ("a norm at 0", lambda x: mx.sqrt(mx.sum(x * x)), [0.0, 0.0], [NAN, NAN]),
    ("a safe norm at 0", lambda x: safe_norm(x), [0.0, 0.0], [0.0, 0.0]),
    ("std of equal numbers", mx.std, [1.0, 1.0], [NAN, NAN]),
    ("var of equal numbers", mx.var, [1.0, 1.0], [0.0, 0.0]),
    ("x ** 0", lambda x: x**0, [0.0, -2.0, INF], [0.0, 0.0, 0.0]),
    ("x ** 1 at 0", lambda x: x**1, 0.0, 1.0),
    ("x ** 2 at 0 and below", lambda x: x**2, [0.0, -2.0], [0.0, -4.0]),
    ("x ** 3 below 0", lambda x: x**3, -2.0, 12.0),
    ("x ** 0.5 at 0 and below", lambda x: x**0.5, [0.0, -2.0], [INF, NAN]),
    ("x ** -1 at 0", lambda x: x**-1, 0.0, -INF),
    ("0 ** y", lambda y: mx.zeros_like(y) ** y, [2.0, 0.0, -1.0], [0.0, 0.0, 0.0]),
    ("(-2) ** y", lambda y: mx.array(-2.0) ** y, 2.0, NAN),
    ("maximum(x, 0) at 0", lambda x: mx.maximum(x, 0.0), 0.0, 0.0),
    ("maximum(0, x) at 0", lambda x: mx.maximum(0.0, x), 0.0, 1.0),
    ("minimum(x, 0) at 0", lambda x: mx.minimum(x, 0.0), 0.0, 0.0),
    ("maximum with NaN", lambda x: mx.maximum(x, mx.array(NAN)), 1.0, 0.0),
    ("clip at its ends", lambda x: mx.clip(x, 0.0, 1.0), [0.0, 0.5, 1.0], [0.0, 1.0, 0.0]),
    ("max with ties", mx.max, [1.0, 3.0, 3.0, 2.0], [0.0, 0.5, 0.5, 0.0]),
    ("min with ties", mx.min, [1.0, 1.0, 1.0, 1.0], [0.25, 0.25, 0.25, 0.25]),
    ("max with NaN", mx.max, [1.0, NAN], [NAN, NAN]),
    ("prod with one 0", mx.prod, [2.0, 0.0, 3.0], [0.0, 6.0, 0.0]),
    ("prod with two 0", mx.prod, [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ("logsumexp with -inf", mx.logsumexp, [-INF, 0.0], [0.0, 1.0]),
    ("logsumexp of -inf only", mx.logsumexp, [-INF, -INF], [NAN, NAN]),
    ("logsumexp with inf", mx.logsumexp, [INF, 0.0], [NAN, 0.0]),
    ("logaddexp with -inf", lambda x: mx.logaddexp(x, mx.zeros_like(x)), -INF, 0.0),
    ("softmax with -inf", lambda x: mx.softmax(x)[0], [-INF, 0.0], [0.0, 0.0]),
    ("where, NaN computed on the untaken side", lambda x: mx.where(x > 0, mx.sqrt(x), 0.0), -1.0, NAN),
    ("where, made safe inside", lambda x: mx.where(x > 0, mx.sqrt(mx.where(x > 0, x, 1.0)), 0.0), -1.0, 0.0),
    ("where, a NaN constant on the untaken side", lambda x: mx.where(x > 0, x, NAN), 1.0, 1.0),
    ("tanh far out", mx.tanh, [INF, -INF, 100.0], [0.0, 0.0, 0.0]),
    ("sigmoid far out", mx.sigmoid, [200.0, -200.0], [0.0, 0.0]),
]


def safe_norm(x: mx.array) -> mx.array:
    square = mx.sum(x * x)
    return mx.where(square > 0, mx.sqrt(mx.where(square > 0, square, 1.0)), 0.0)


@pytest.mark.parametrize(("fun", "at", "expected"), [case[1:] for case in EDGES], ids=[case[0] for case in EDGES])
def test_gradients_at_the_edges(fun: Callable[[mx.array], mx.array], at: Any, expected: Any) -> None:
    x = mx.array(at)
    gradient = mx.grad(lambda a: mx.sum(fun(a)))(x)
    np.testing.assert_array_equal(np.array(gradient), np.asarray(expected))


def test_tangents_of_max_with_ties_are_those_of_the_gradient() -> None:
    _, (tangent,) = mx.jvp(mx.max, [mx.array([1.0, 3.0, 3.0])], [mx.array([1.0, 2.0, 3.0])])
    equal(tangent, 2.5)


def test_second_derivatives_at_the_edges() -> None:
    second = lambda f, at: mx.grad(mx.grad(f))(mx.array(at)).item()  # noqa: E731
    assert second(lambda x: x**2, 0.0) == 2.0
    assert second(lambda x: x**1, 0.0) == 0.0
    assert second(lambda x: x**3, 0.0) == 0.0
    assert second(lambda x: mx.abs(x) * x, 0.0) == 0.0
    assert second(lambda x: mx.where(x > 0, x * x, 0.0), -1.0) == 0.0
    assert mx.grad(mx.grad(mx.grad(lambda x: x**2)))(mx.array(0.0)).item() == 0.0


# ---- rules are remembered ----


@pytest.fixture
def forgotten() -> None:
    for table in (rules.BACKWARD, rules.FORWARD):
        table.clear()


@pytest.mark.usefixtures("forgotten")
def test_a_rule_runs_once_for_each_kind_and_set_of_wanted_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    original = Sin.vjp
    monkeypatch.setattr(Sin, "vjp", lambda self, *args: (calls.append(args), original(self, *args))[1])
    x = mx.array(0.5)
    for _ in range(20):
        assert mx.grad(lambda a: mx.sin(mx.sin(a) * 2))(x).item() == pytest.approx(
            2 * math.cos(0.5) * math.cos(2 * math.sin(0.5)), 1e-6
        )
    assert len(calls) == 2, "with a cotangent of exactly one, and with another"
    assert {isinstance(cotangent.op, Constant) for _, _, cotangent, _ in calls} == {True, False}
    mx.grad(lambda a: mx.sum(mx.sin(a)))(mx.array([0.5, 1.0]))
    assert len(calls) == 3, "another shape"


@pytest.mark.usefixtures("forgotten")
def test_rules_see_stand_ins_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they build cannot depend on how an operand was made, because it is built again for others."""
    seen: list[Node] = []
    original = Sin.jvp
    monkeypatch.setattr(
        Sin,
        "jvp",
        lambda self, out, primals, tangents: (
            seen.extend((out, *primals, *tangents.values())),
            original(self, out, primals, tangents),
        )[1],
    )
    mx.jvp(mx.sin, [mx.array(1.0)], [mx.array(1.0)])
    assert all(isinstance(node.op, Placeholder) for node in seen)
    assert len(seen) == 3


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(("traced", "wanted"), [((0,), {0}), ((1,), {1}), ((0, 1), {0, 1})])
def test_nothing_is_built_for_operands_that_are_not_traced(
    traced: tuple[int, ...], wanted: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[frozenset[int]] = []
    original = Matmul.vjp
    monkeypatch.setattr(Matmul, "vjp", lambda self, *args: (asked.append(args[-1]), original(self, *args))[1])
    mx.grad(lambda x, y: mx.sum(x @ y), traced)(mx.ones((2, 3)), mx.ones((3, 4)))
    assert asked == [wanted]


def test_evaluating_a_gradient_does_not_change_the_remembered_rule() -> None:
    """A gradient that is a constant of the rule: the user's copy is written out, the rule's is not."""
    x = mx.ones((2, 2))
    for _ in range(10):
        gradient = mx.grad(lambda a: mx.sum(-a))(x)
        assert isinstance(gradient._node.op, Constant)
        mx.eval(gradient)
        equal(gradient, -np.ones((2, 2)))


class Wrong(Elementwise):
    """A primitive whose rules give the wrong shape."""

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x

    def partials(self, out: Node, x: Node) -> tuple[Node | None, ...]:
        return (full_like(bind(Sin(), Node(Placeholder("test"), (), kind_of((7,), dt.float32))), 2.0),)

    def jvp(self, out: Node, primals: Any, tangents: Any) -> Node:
        return full_like(Node(Placeholder("test"), (), kind_of((7,), dt.float32)), 2.0)

    def vjp(self, out: Node, primals: Any, cotangent: Node, wanted: frozenset[int]) -> Any:
        return {0: self.jvp(out, primals, {})}


def test_a_wrong_rule_fails_by_name() -> None:
    wrong = lambda x: wrap(bind(Wrong(), x._node))  # noqa: E731
    with pytest.raises(AssertionError, match=r"the vjp rule of wrong gave float32\[7\] where float32\[3\] belongs"):
        mx.vjp(wrong, [mx.ones((3,))], [mx.ones((3,))])
    with pytest.raises(AssertionError, match=r"the jvp rule of wrong gave float32\[7\] where float32\[3\] belongs"):
        mx.jvp(wrong, [mx.ones((3,))], [mx.ones((3,))])


def test_a_rule_that_gives_an_unwanted_cotangent_is_not_believed() -> None:
    a, b = mx.array(2.0)._node, mx.array(3.0)._node
    out = bind(mx.multiply.operator.op, a, b)
    assert pull_back([a], [out], [None]) == [None]
    (found,) = pull_back([a], [out], [full_like(out, 1)])
    assert found is b
    assert push_forward([a, b], [out], [None, None]) == [None]


def test_the_condition_of_a_select_is_a_constant() -> None:
    c, x, y = mx.array([True])._node, mx.array([1.0])._node, mx.array([2.0])._node
    out = select(c, x, y)
    assert pull_back([c], [out], [full_like(out, 1)]) == [None]
    assert push_forward([c], [out], [full_like(c, 1)]) == [None]


@pytest.mark.parametrize("spread", [lambda m: mx.broadcast_to(m[None], (3, 4)), lambda m: mx.repeat(m, 3), mx.flip])
@pytest.mark.parametrize("dtype", [mx.bool_, mx.int8])
def test_masks_that_depend_on_what_is_differentiated(dtype: Any, spread: Any) -> None:
    """The way of a mask is followed back as far as the comparison, in the mask's own dtype, and ends there."""
    x = mx.array([1.0, -2.0, 3.0, 0.0])

    def loss(x: Any) -> Any:
        mask = spread((x > 0).astype(dtype))
        return mx.sum(mask * 2.0) + mx.sum(x)

    assert mx.grad(loss)(x).tolist() == [1.0] * 4
