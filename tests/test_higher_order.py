"""Transforms of transforms: in any order and depth, each variable's derivative its own; Jacobians, Hessians, products
with them, and linear approximations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import settings
from weft.primitives.base import Constant

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    with settings(backend="reference"):
        yield


def double(values: Any) -> mx.array:
    return mx.array(np.asarray(values, np.float64), mx.float64)


def close(got: Any, expected: Any, relative: float = 1e-9) -> None:
    np.testing.assert_allclose(np.array(got), np.asarray(expected), rtol=relative, atol=1e-12)


def tangent_of(fun: Function, x: mx.array, direction: mx.array | None = None) -> mx.array:
    return mx.jvp(fun, [x], [mx.ones_like(x) if direction is None else direction])[1][0]


def forward(fun: Function) -> Function:
    """The derivative of a scalar function, in forward mode."""
    return lambda x: tangent_of(fun, x)


# ---- perturbations are not confused ----


def test_the_derivative_of_a_function_that_takes_a_derivative() -> None:
    """d/dx x * (d/dy (x + y)) = 1: an inner derivative by y does not see x, an outer one does not see y."""
    x = double(2.0)
    for outer in (mx.grad, forward):
        for inner in (mx.grad, forward):
            close(outer(lambda x, inner=inner: x * inner(lambda y: x + y)(double(1.0)))(x), 1.0)
            close(outer(lambda x, inner=inner: inner(lambda y: x * y)(x))(x), 1.0)
            close(outer(lambda x, inner=inner: inner(lambda y: x * x * y * y)(x))(x), 6 * 2.0**2)
            close(outer(lambda x, inner=inner: x * inner(lambda y: x * y)(double(3.0)))(x), 2 * 2.0)


def test_the_inner_argument_is_the_outer_one() -> None:
    """The same node as argument and captured."""
    x = double(3.0)
    for outer in (mx.grad, forward):
        for inner in (mx.grad, forward):
            close(outer(lambda x, inner=inner: inner(lambda y: y * y * x)(x))(x), 4 * 3.0)
            close(outer(lambda x, inner=inner: inner(lambda y: y)(x) * x)(x), 1.0)


def test_three_levels_with_three_variables() -> None:
    def level(x: mx.array, y: mx.array, z: mx.array) -> mx.array:
        return x * x * y * y * y * z * z

    inner = lambda x, y: mx.grad(lambda z: level(x, y, z))(y)  # 2 x² y³ z at z = y  # noqa: E731
    middle = lambda x: mx.grad(lambda y: inner(x, y))(x)  # d/dy 2 x² y⁴ = 8 x² y³ at y = x  # noqa: E731
    close(mx.grad(middle)(double(2.0)), 8 * 5 * 2.0**4)


def test_jvp_of_jvp_in_different_directions() -> None:
    f = lambda x: mx.sum(x * x * x)  # noqa: E731
    x, u, v = double([1.0, 2.0]), double([1.0, 10.0]), double([3.0, -1.0])
    second = tangent_of(lambda a: tangent_of(f, a, u), x, v)
    close(second, 6 * 1.0 * 1.0 * 3.0 + 6 * 2.0 * 10.0 * -1.0)
    close(second, tangent_of(lambda a: tangent_of(f, a, v), x, u))


def test_tangents_that_depend_on_the_variable() -> None:
    """The direction of the inner derivative is differentiated as well."""
    x = double(3.0)
    close(mx.grad(lambda a: tangent_of(lambda b: b * b, a, a))(x), 4 * 3.0)
    close(mx.grad(lambda a: mx.vjp(lambda b: b * b, [a], [a * a])[1][0])(x), 6 * 3.0**2)


def test_constants_are_variables_too() -> None:
    """What rules know of a constant must not hide that it is the variable of an outer derivative."""
    one, zero = mx.ones((), mx.float64), mx.zeros((), mx.float64)
    f = lambda x: x * x * x  # noqa: E731
    close(mx.grad(lambda c: mx.vjp(f, [double(2.0)], [c])[1][0])(one), 12.0)
    close(mx.grad(lambda c: mx.vjp(lambda x: x, [double(2.0)], [c * c])[1][0])(one), 2.0)
    close(mx.grad(lambda t: mx.jvp(f, [double(2.0)], [t])[1][0])(one), 12.0)
    for start, third in ((one, 6.0), (zero, 6.0)):
        close(mx.grad(mx.grad(mx.grad(f)))(start), third)
        close(forward(forward(forward(f)))(start), third)
    close(mx.grad(lambda w: mx.grad(lambda x: x * w)(double(5.0)))(one), 1.0)


def test_grad_inside_vmap_inside_grad() -> None:
    xs, w = double([0.5, 1.0, 2.0]), double(1.5)

    def loss(w: mx.array) -> mx.array:
        slopes = mx.vmap(lambda x: mx.grad(lambda y: mx.sin(w * y) * x)(x))(xs)  # x w cos(w x)
        return mx.sum(slopes * slopes)

    values, omega = np.array(xs), 1.5
    slope = values * omega * np.cos(omega * values)
    expected = np.sum(2 * slope * (values * np.cos(omega * values) - values * omega * values * np.sin(omega * values)))
    close(mx.grad(loss)(w), expected)
    close(tangent_of(loss, w), expected)


def test_a_closure_over_an_outer_batch() -> None:
    x, y = double(np.arange(6.0).reshape(2, 3)), double([1.0, 2.0, 3.0, 4.0])
    got = mx.vmap(lambda row: mx.vmap(lambda s: mx.sum(row) * s)(y))(x)
    close(got, np.outer(np.array(x).sum(1), np.array(y)))
    got = mx.vmap(lambda row: mx.vmap(lambda s: mx.grad(lambda t: mx.sum(row * t * s))(s))(y))(x)
    close(got, np.outer(np.array(x).sum(1), np.array(y)))


# ---- higher derivatives ----

SCALARS: dict[str, tuple[Function, Sequence[Callable[[float], float]]]] = {
    "sin": (mx.sin, [math.cos, lambda x: -math.sin(x), lambda x: -math.cos(x)]),
    "exp(2x)": (lambda x: mx.exp(2 * x), [lambda x, k=k: 2**k * math.exp(2 * x) for k in (1, 2, 3)]),
    "log": (mx.log, [lambda x: 1 / x, lambda x: -1 / x**2, lambda x: 2 / x**3]),
    "1 / x": (lambda x: 1 / x, [lambda x: -1 / x**2, lambda x: 2 / x**3, lambda x: -6 / x**4]),
    "x ** 4": (lambda x: x**4, [lambda x: 4 * x**3, lambda x: 12 * x**2, lambda x: 24 * x]),
    "tanh": (
        mx.tanh,
        [
            lambda x: 1 - math.tanh(x) ** 2,
            lambda x: -2 * math.tanh(x) * (1 - math.tanh(x) ** 2),
            lambda x: (1 - math.tanh(x) ** 2) * (6 * math.tanh(x) ** 2 - 2),
        ],
    ),
    "sqrt": (mx.sqrt, [lambda x: 0.5 * x**-0.5, lambda x: -0.25 * x**-1.5, lambda x: 0.375 * x**-2.5]),
    "where": (lambda x: mx.where(x > 0, x * x * x, -x), [lambda x: 3 * x**2, lambda x: 6 * x, lambda x: 6.0]),
}


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("modes", ["rrr", "fff", "frf", "rfr", "ffr", "rrf"])
def test_third_derivatives_in_every_mix_of_modes(name: str, modes: str) -> None:
    fun, derivatives = SCALARS[name]
    for mode, derivative in zip(modes, derivatives, strict=True):
        fun = mx.grad(fun) if mode == "r" else forward(fun)
        close(fun(double(0.7)), derivative(0.7))


def test_ten_derivatives() -> None:
    fun: Function = mx.exp
    for _ in range(10):
        fun = mx.grad(fun)
    close(fun(double(0.5)), math.exp(0.5))
    polynomial: Function = lambda x: x * x * x  # noqa: E731
    for _ in range(5):
        polynomial = mx.grad(polynomial)
    result = polynomial(double(2.0))
    assert isinstance(result._node.op, Constant), "derivatives that are zero everywhere are no work"
    close(result, 0.0)


# ---- random functions ----

UNARY: list[Function] = [
    mx.sin,
    mx.tanh,
    lambda x: x * x,
    lambda x: mx.exp(x / 4),
    lambda x: mx.where(x > 0, x, x * x),
    mx.sigmoid,
    lambda x: mx.log(1 + x * x),
    lambda x: -x,
    lambda x: mx.square(x) * 0.5,
]
BINARY: list[Function] = [
    mx.add,
    mx.multiply,
    mx.subtract,
    lambda a, b: a / (1 + b * b),
    mx.maximum,
    lambda a, b: mx.where(a > b, a, b * 2),
    lambda a, b: a * mx.stop_gradient(b),
    lambda a, b: mx.sum(a) * b,
    lambda a, b: a[::-1] + b,
]
program = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=8)


def function_of(steps: Sequence[tuple[int, int, int]]) -> Function:
    """A function of two vectors: each step applies an operation to values made before."""

    def fun(x: mx.array, y: mx.array) -> mx.array:
        values = [x, y]
        for op, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[op // 2 % len(UNARY)](a) if op % 2 else BINARY[op // 2 % len(BINARY)](a, b))
        return values[-1] + 0 * x

    return fun


@given(program, st.integers(0, 1000))
def test_random_functions(steps: Sequence[tuple[int, int, int]], seed: int) -> None:
    """jvp against vjp, both orders of second derivatives, vmap against a loop, checkpoint against none."""
    fun = function_of(steps)
    rng = np.random.default_rng(seed)
    x, y, u, v, ct = (double(rng.uniform(-2, 2, 3)) for _ in range(5))
    _, (tangent,) = mx.jvp(fun, [x, y], [u, v])
    _, (dx, dy) = mx.vjp(fun, [x, y], [ct])
    left = np.sum(np.array(ct) * np.array(tangent))
    close(left, np.sum(np.array(dx) * np.array(u)) + np.sum(np.array(dy) * np.array(v)), 1e-7)
    gradient = lambda a, b: mx.vjp(fun, [a, b], [ct])[1]  # noqa: E731
    _, (hx, hy) = mx.jvp(gradient, [x, y], [u, v])
    pushed = lambda a, b: mx.sum(ct * mx.jvp(fun, [a, b], [u, v])[1][0])  # noqa: E731
    _, (gx, gy) = mx.vjp(pushed, [x, y], [double(1.0)])
    close(hx, gx, 1e-7)
    close(hy, gy, 1e-7)
    _, (cx, cy) = mx.vjp(mx.checkpoint(fun), [x, y], [ct])
    np.testing.assert_array_equal(np.array(cx), np.array(dx))
    np.testing.assert_array_equal(np.array(cy), np.array(dy))
    rows = double(rng.uniform(-2, 2, (2, 3)))
    together = mx.vmap(lambda a: mx.vjp(fun, [a, y], [ct])[1])(rows)
    for i in range(2):
        _, (one, _) = mx.vjp(fun, [rows[i], y], [ct])
        close(together[0][i], one, 1e-9)


# ---- Jacobians and Hessians ----


def vector_function(x: mx.array) -> mx.array:
    return mx.concatenate([mx.sin(x) * mx.sum(x), x[:1] * x[1:2]])


def by_differences(fun: Function, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    columns = []
    for i in range(x.size):
        d = np.zeros(x.shape)
        d.flat[i] = step
        columns.append((np.array(fun(double(x + d))) - np.array(fun(double(x - d)))) / (2 * step))
    return np.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


@pytest.mark.parametrize("jacobian", [mx.jacfwd, mx.jacrev, mx.jacobian])
def test_jacobians(jacobian: Function) -> None:
    x = np.array([0.5, 1.0, 2.0])
    close(jacobian(vector_function)(double(x)), by_differences(vector_function, x), 1e-8)
    matrix = np.arange(6.0).reshape(2, 3) / 5
    fun = lambda a: mx.exp(a) @ mx.transpose(a)  # noqa: E731
    found = jacobian(fun)(double(matrix))
    assert found.shape == (2, 2, 2, 3)
    close(found, by_differences(fun, matrix), 1e-7)
    assert jacobian(lambda a: mx.sum(a))(double(matrix)).shape == (2, 3)
    assert jacobian(lambda a: a * mx.ones((4,), mx.float64))(double(2.0)).shape == (4,)
    assert jacobian(lambda a: a)(mx.zeros((0,))).shape == (0, 0)


@pytest.mark.parametrize("jacobian", [mx.jacfwd, mx.jacrev, mx.jacobian])
def test_jacobians_of_trees(jacobian: Function) -> None:
    a, b = double([1.0, 2.0]), double(3.0)
    found = jacobian(lambda p, q: {"product": p["a"] * q, "q": [q * q]}, (0, 1))({"a": a}, b)
    close(found["product"][0]["a"], np.eye(2) * 3.0)
    close(found["product"][1], [1.0, 2.0])
    close(found["q"][0][0]["a"], np.zeros(2))
    close(found["q"][0][1], 6.0)
    positional, named = jacobian(lambda p, q: p * q, argnums=0, argnames="q")(a, q=b)
    close(positional, np.eye(2) * 3.0)
    close(named["q"], [1.0, 2.0])


def test_jacobian_takes_the_cheaper_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.core import jacobians

    taken = []
    for name in ("_forward", "_reverse"):
        original = getattr(jacobians, name)
        monkeypatch.setattr(
            jacobians, name, lambda *a, original=original, name=name: (taken.append(name), original(*a))[1]
        )
    mx.jacobian(lambda x: mx.sum(x * x))(double([1.0, 2.0]))
    mx.jacobian(lambda x: x * double([1.0, 2.0]))(double(1.0))
    assert taken == ["_reverse", "_forward"]


def test_jacobians_of_complex_functions() -> None:
    z = mx.array([1 + 2j, 3j - 1])
    expected = np.diag(2 * np.array(z))
    close(mx.jacfwd(lambda a: a * a)(z), expected, 1e-6)
    close(mx.jacrev(lambda a: a * a)(z), expected, 1e-6)
    close(mx.jacfwd(lambda a: a * mx.array(1 + 2j))(mx.array(2.0)), 1 + 2j, 1e-6)
    with pytest.raises(ValueError, match=r"\[jacrev\] .*complex64 output by a float32 input.*use jacfwd"):
        mx.jacrev(lambda a: a * mx.array(1 + 2j))(mx.array(2.0))
    with pytest.raises(ValueError, match=r"\[jacrev\] .*float32 output by a complex64 input"):
        mx.jacrev(mx.abs)(z)


@pytest.mark.parametrize("jacobian", [mx.jacfwd, mx.jacrev, mx.jacobian, mx.hessian])
def test_jacobians_refuse_integers(jacobian: Function) -> None:
    with pytest.raises(ValueError, match=r"must be floats or complex numbers; got int32: convert"):
        jacobian(lambda x: x * x)(mx.array(3))


def test_hessians() -> None:
    x = np.array([0.5, -1.0, 2.0])
    fun = lambda a: mx.sum(mx.sin(a) * a[::-1]) * mx.sum(a)  # noqa: E731
    expected = by_differences(mx.grad(fun), x)
    close(mx.hessian(fun)(double(x)), expected, 1e-7)
    for outer in (mx.jacfwd, mx.jacrev):
        for inner in (mx.jacfwd, mx.jacrev, mx.grad):
            close(outer(inner(fun))(double(x)), expected, 1e-7)
    blocks = mx.hessian(lambda a, b: a * a * b, (0, 1))(double(2.0), double(3.0))
    assert [[block.item() for block in row] for row in blocks] == [[6.0, 4.0], [4.0, 0.0]]


def test_products_with_the_hessian() -> None:
    x, v = double([0.5, -1.0, 2.0]), double([1.0, 2.0, 3.0])
    fun = lambda a: mx.sum(mx.exp(a) * a[::-1]) * mx.sum(a)  # noqa: E731
    (value,), (product,) = mx.hvp(fun, [x], [v])
    close(value, fun(x))
    close(product, np.array(mx.hessian(fun)(x)) @ np.array(v))
    _, (first, unused) = mx.hvp(lambda a, b: mx.sum(a * a * a), [x, v], [v, x])
    close(first, 6 * np.array(x) * np.array(v))
    assert isinstance(unused._node.op, Constant)
    _, (mixed, other) = mx.hvp(lambda a, b: mx.sum(a * b), [x, v], [v, x])
    close(mixed, np.array(x))
    close(other, np.array(v))
    with pytest.raises(ValueError, match=r"\[hvp\] the function must return a scalar; got shape \(3,\)"):
        mx.hvp(lambda a: a * a, [x], [v])
    with pytest.raises(ValueError, match=r"\[hvp\] vector 0 has shape \(\), its primal \(3,\)"):
        mx.hvp(fun, [x], [double(1.0)])


def test_functions_inside_jacobians_see_values() -> None:
    def fun(x: mx.array) -> mx.array:
        return x * x if mx.sum(x).item() > 0 else -x

    close(mx.jacfwd(fun)(double([1.0, 2.0])), [[2.0, 0.0], [0.0, 4.0]])
    close(mx.jacrev(fun)(double([-1.0, -2.0])), [[-1.0, 0.0], [0.0, -1.0]])
    close(mx.hvp(lambda a: mx.sum(fun(a) * a), [double([1.0])], [double([1.0])])[1][0], [6.0])


def test_linearize() -> None:
    calls = []

    def fun(x: mx.array, p: dict) -> dict:
        calls.append(1)
        return {"out": mx.sin(x) * p["scale"], "fixed": double(1.0)}

    x, scale = double([0.5, 1.0]), double(3.0)
    value, linear = mx.linearize(fun, x, {"scale": scale})
    close(value["out"], np.sin(np.array(x)) * 3)
    for _ in range(3):
        tangent = linear(double([1.0, 10.0]), {"scale": double(2.0)})
        close(tangent["out"], np.cos(np.array(x)) * [1.0, 10.0] * 3 + np.sin(np.array(x)) * 2)
        close(tangent["fixed"], 0.0)
    assert len(calls) == 1
    both = mx.vmap(lambda t: linear(t, {"scale": double(0.0)})["out"])(double(np.eye(2)))
    close(both, np.diag(np.cos(np.array(x)) * 3))
    close(
        mx.grad(lambda t: mx.sum(linear(t, {"scale": t[0]})["out"]))(double([1.0, 1.0])),
        np.cos(np.array(x)) * 3 + [np.sin(np.array(x)).sum(), 0.0],
    )


def test_linearize_checks_its_tangents() -> None:
    _, linear = mx.linearize(lambda x: x * x, double([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"\[linearize\] tangent 0 has shape \(\)"):
        linear(double(1.0))
    with pytest.raises(ValueError, match=r"\[linearize\] tangent 0 is float32"):
        linear(mx.array([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"\[linearize\] there are 1 primals and 2 tangents"):
        linear(double([1.0, 1.0]), double(1.0))


def test_linearize_inside_a_gradient() -> None:
    def loss(x: mx.array) -> mx.array:
        value, linear = mx.linearize(lambda a: a * a * a, x)
        return value + linear(x)  # x³ + 3 x³

    close(mx.grad(loss)(double(2.0)), 12 * 2.0**2)


def test_linear_functions_keep_their_coefficients() -> None:
    """The first call computes what the tangents are multiplied with, later ones do not."""
    x = double([0.3, 0.4])
    _, linear = mx.linearize(lambda a: mx.exp(mx.sin(a)), x)
    mx.eval(linear(double([1.0, 1.0])))
    with settings(backend="reference"):
        assert all(kept._node.value is not None for kept in linear._kept)
    assert linear._kept


# ---- vmap with everything ----


def test_vmap_of_grad_and_grad_of_vmap() -> None:
    xs, y = double([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), double([0.5, -1.0])
    fun = lambda x, y: mx.sum(mx.sin(x * y) * x)  # noqa: E731
    per_row = [mx.grad(fun, (0, 1))(double(row), y) for row in np.array(xs)]
    dx, dy = mx.vmap(mx.grad(fun, (0, 1)), in_axes=(0, None))(xs, y)
    close(dx, np.stack([np.array(g[0]) for g in per_row]))
    close(dy, np.stack([np.array(g[1]) for g in per_row]))
    dx, dy = mx.grad(lambda x, y: mx.sum(mx.vmap(fun, in_axes=(0, None))(x, y)), (0, 1))(xs, y)
    close(dx, np.stack([np.array(g[0]) for g in per_row]))
    close(dy, np.sum([np.array(g[1]) for g in per_row], 0))


@pytest.mark.parametrize("in_axis", [0, 1, -1])
@pytest.mark.parametrize("out_axis", [0, 1, -1])
def test_vmap_of_jvp_vjp_and_jacobians_along_any_axis(in_axis: int, out_axis: int) -> None:
    fun = lambda x: mx.exp(x) * mx.sum(x * x)  # noqa: E731
    rows = np.arange(6.0).reshape(3, 2) / 7
    xs = double(np.moveaxis(rows, 0, in_axis))
    for one in (
        lambda x: mx.jvp(fun, [x], [x])[1][0],
        lambda x: mx.vjp(fun, [x], [x])[1][0],
        mx.jacfwd(fun),
        mx.jacrev(fun),
        mx.hessian(lambda x: mx.sum(fun(x))),
        lambda x: mx.hvp(lambda a: mx.sum(fun(a)), [x], [x])[1][0],
    ):
        expected = np.stack([np.array(one(double(row))) for row in rows], out_axis)
        close(mx.vmap(one, in_axes=in_axis, out_axes=out_axis)(xs), expected)


def test_batched_and_unbatched_parts_of_a_tree() -> None:
    params = {"w": double([[1.0, 2.0], [3.0, 4.0]]), "b": double([0.1, 0.2])}
    xs = double([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    loss = lambda p, x: mx.sum(mx.tanh(p["w"] @ x + p["b"]))  # noqa: E731
    per_sample = mx.vmap(mx.grad(loss), in_axes=(None, 0))(params, xs)
    whole = mx.grad(lambda p: mx.sum(mx.vmap(loss, in_axes=(None, 0))(p, xs)))(params)
    for name in params:
        close(np.array(per_sample[name]).sum(0), np.array(whole[name]))
    ensemble = {"w": mx.stack([params["w"], 2 * params["w"]]), "b": params["b"]}
    both = mx.vmap(mx.grad(loss), in_axes=({"w": 0, "b": None}, None))(ensemble, xs[0])
    close(both["w"][0], mx.grad(loss)(params, xs[0])["w"])


# ---- on machine code ----


def test_deep_nests_on_machine_code_give_the_same_bits_compiled() -> None:
    fun = lambda x: mx.sin(x) * mx.exp(-x * x)  # noqa: E731
    nested = mx.vmap(mx.grad(lambda x: mx.sum(mx.jvp(mx.grad(fun), [x], [x])[1][0])))
    x = mx.array(np.linspace(-1, 1, 7).astype(np.float32))
    with settings(backend="native"):
        eager, compiled = nested(x), mx.compile(nested)(x)
        assert np.array_equal(np.array(eager), np.array(compiled))
        hessian = mx.compile(mx.hessian(lambda a: mx.sum(fun(a) * a)))(x)
        assert np.array_equal(np.array(hessian), np.array(mx.hessian(lambda a: mx.sum(fun(a) * a))(x)))
    np.testing.assert_allclose(np.array(eager), np.array(nested(x)), rtol=1e-4, atol=1e-5)
