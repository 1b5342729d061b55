"""Functions that bring their own rules (`custom_function`) and functions that are computed again for their gradient
(`checkpoint`), under every transform and in compile."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import closed, settings
from weft.graph.node import reachable
from weft.passes.cse import cse
from weft.passes.pipeline import plan
from weft.passes.simplify import simplify
from weft.primitives.contraction import Matmul
from weft.primitives.custom import Barrier, Called
from weft.primitives.elementwise import Exp, Sin
from weft.targets import CPU

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    with settings(backend="reference"):
        yield


def close(got: Any, expected: Any, relative: float = 1e-5) -> None:
    np.testing.assert_allclose(np.array(got), np.asarray(expected), rtol=relative, atol=1e-6)


def vector(*values: float) -> mx.array:
    return mx.array(list(values))


X, Y = mx.array(2.0), mx.array(3.0)


def product() -> mx.custom_function:
    """sin(x) * y and x + y, with rules that no derivative would give."""
    return mx.custom_function(lambda x, y: (mx.sin(x) * y, x + y))


# ---- without rules, and the fallback ----


def test_without_rules_it_is_the_function() -> None:
    fun = mx.custom_function(mx.exp)
    close(fun(X), np.exp(2.0))
    close(mx.grad(fun)(X), np.exp(2.0))
    close(mx.jvp(fun, [X], [Y])[1][0], 3 * np.exp(2.0))
    close(mx.vmap(fun)(vector(0.0, 1.0)), [1.0, np.e])
    assert fun.__name__ == "exp"


def test_each_rule_is_used_for_its_own_transform_and_no_other() -> None:
    fun = mx.custom_function(mx.exp)
    assert fun.vjp(lambda x, ct, y: ct * 42) is fun
    close(fun(X), np.exp(2.0))
    close(mx.grad(fun)(X), 42.0)
    close(mx.jvp(fun, [X], [mx.array(1.0)])[1][0], np.exp(2.0))
    close(mx.vmap(fun)(vector(0.0, 1.0)), [1.0, np.e])
    fun.jvp(lambda x, t: t * 7)
    close(mx.grad(fun)(X), 42.0)
    close(mx.jvp(fun, [X], [Y])[1][0], 21.0)
    close(mx.jvp(fun, [X], [Y])[0][0], np.exp(2.0))
    fun.vmap(lambda x, axis: (mx.ones_like(x) * 3, axis))
    close(mx.vmap(fun)(vector(0.0, 1.0)), [3.0, 3.0])
    close(fun(X), np.exp(2.0))


def test_the_gradient_of_a_function_with_another_rule_is_its_own() -> None:
    captured = mx.array(5.0)
    fun = mx.custom_function(lambda x: x * x * captured)
    fun.vmap(lambda x, axis: (x * x * captured, axis))
    close(mx.grad(fun)(X), 2 * 2.0 * 5.0)
    close(mx.grad(lambda c: mx.custom_function(lambda x: x * c).vmap(lambda x, a: (x, a))(X))(Y), 2.0)


# ---- vjp ----


def test_vjp_gets_primals_cotangents_and_outputs() -> None:
    fun, seen = product(), []

    @fun.vjp
    def rule(primals: Any, cotangents: Any, outputs: Any) -> Any:
        seen.append((primals, cotangents, outputs))
        a, b = cotangents
        return a * 100 + b, a * primals[1]

    dx, dy = mx.grad(lambda x, y: fun(x, y)[0] * 2, (0, 1))(X, Y)
    close(dx, 200.0)
    close(dy, 2 * 3.0)
    ((primals, cotangents, outputs),) = seen
    assert [type(primals), type(cotangents), type(outputs)] == [tuple, tuple, tuple]
    close(outputs[0], np.sin(2.0) * 3)
    close(outputs[1], 5.0)
    close(cotangents[0], 2.0)
    close(cotangents[1], 0.0)


def test_the_rule_runs_once_for_all_outputs_and_all_uses() -> None:
    fun, calls = product(), []
    fun.vjp(lambda p, ct, out: (calls.append(ct), (ct[0] * 0 + 1, ct[1] * 0 + 2))[1])

    def loss(x: mx.array, y: mx.array) -> mx.array:
        a, b = fun(x, y)
        return a * b + a * a + b

    dx, dy = mx.grad(loss, (0, 1))(X, Y)
    assert (dx.item(), dy.item()) == (1.0, 2.0)
    assert len(calls) == 1
    a, b = np.sin(2.0) * 3, 5.0
    close(calls[0][0], b + 2 * a)
    close(calls[0][1], a + 1)


def test_one_argument_and_one_output_come_bare() -> None:
    fun, seen = mx.custom_function(lambda x: x * x), []
    fun.vjp(lambda x, ct, y: (seen.append((x, ct, y)), ct * x)[1])
    close(mx.grad(fun)(X), 2.0)
    assert all(isinstance(part, mx.array) for part in seen[0])


def test_trees_and_other_values_as_arguments() -> None:
    seen = []

    @mx.custom_function
    def fun(params: dict, n: int, name: str) -> dict:
        return {"out": params["a"] * n, "rest": [params["b"]]}

    @fun.vjp
    def rule(primals: Any, ct: Any, out: Any) -> Any:
        seen.append((primals, ct, out))
        return {"a": ct["out"] * 10, "b": ct["rest"][0] + 1}, None, None

    da, db = mx.grad(lambda a, b: fun({"a": a, "b": b}, 3, "s")["out"], (0, 1))(X, Y)
    assert (da.item(), db.item()) == (10.0, 1.0)
    (((_, n, name), ct, out),) = seen
    assert (n, name, list(ct), list(out)) == (3, "s", ["out", "rest"], ["out", "rest"])


def test_none_is_a_zero_cotangent() -> None:
    fun = product()
    fun.vjp(lambda p, ct, out: (None, ct[0]))
    dx, dy = mx.grad(lambda x, y: fun(x, y)[0], (0, 1))(X, Y)
    assert (dx.item(), dy.item()) == (0.0, 1.0)


def test_only_traced_arguments_receive_a_cotangent() -> None:
    fun = product()
    fun.vjp(lambda p, ct, out: (ct[0], ct[0] * 1000))
    close(mx.grad(lambda x: fun(x, Y)[0] + Y)(X), 1.0)
    close(mx.grad(lambda y: fun(X, y)[0])(Y), 1000.0)


def test_captured_arrays_are_constants_to_the_rule() -> None:
    def outer(x: mx.array, y: mx.array) -> mx.array:
        fun = mx.custom_function(lambda x: x * y)
        fun.vjp(lambda x, ct, out: ct * 5)
        return fun(x)

    dx, dy = mx.grad(outer, (0, 1))(X, Y)
    assert (dx.item(), dy.item()) == (5.0, 0.0)


def test_a_rule_may_look_at_values() -> None:
    fun = mx.custom_function(lambda x: x * x)
    fun.vjp(lambda x, ct, y: ct * 2 * x if y.item() < 10 and ct.item() == 3 else ct * 0)
    close(mx.grad(lambda x: fun(x) * 3)(X), 12.0)


def test_keywords_reach_the_vjp_rule() -> None:
    fun, seen = mx.custom_function(lambda x, k=2.0: x * k), []
    fun.vjp(lambda x, ct, y, **kw: (seen.append(kw), ct * kw["k"])[1])
    close(mx.grad(lambda x: fun(x, k=5.0))(X), 5.0)
    assert seen == [{"k": 5.0}]
    with pytest.raises(ValueError, match=r"gives no cotangent for keyword argument.*'k'.*by position"):
        mx.grad(lambda x, k: fun(x, k=k), (0, 1))(X, Y)


def test_second_derivatives_are_those_of_the_rule() -> None:
    """The rule is written in ordinary operations, and its outputs know the rule again."""
    fun = mx.custom_function(lambda x: mx.exp(x))
    fun.vjp(lambda x, ct, y: ct * y * 2)  # so f' is 2 f, f'' is 4 f
    close(mx.grad(fun)(X), 2 * np.exp(2.0))
    close(mx.grad(mx.grad(fun))(X), 4 * np.exp(2.0))
    close(mx.grad(mx.grad(mx.grad(fun)))(X), 8 * np.exp(2.0))


def test_second_derivatives_through_an_output_that_was_not_used() -> None:
    fun = mx.custom_function(lambda x: (x * x, mx.exp(x)))
    fun.vjp(lambda x, ct, out: ct[0] * out[1] + ct[1] * 7)  # f0' = f1, f1' = 7
    close(mx.grad(lambda x: fun(x)[0])(X), np.exp(2.0))
    close(mx.grad(mx.grad(lambda x: fun(x)[0]))(X), 7.0)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (lambda x: x, ValueError, r"must return arrays in the structure of its primals, \(\*, \*\)"),
        (lambda x: (x, x, x), ValueError, "must return arrays in the structure of its primals"),
        (lambda x: None, ValueError, "must return arrays in the structure of its primals"),
        (
            lambda x: (mx.ones((3,)), x),
            ValueError,
            r"gave float32\[3\] for the cotangent of primal 0, which is float32\[\]: reshape",
        ),
        (lambda x: (mx.array(1), x), ValueError, r"gave int32\[\] for the cotangent of primal 0.*astype"),
        (lambda x: (1.0, x), TypeError, "must return arrays .or None for zero.; the cotangent of primal 0 is float"),
    ],
)
def test_vjp_rules_are_checked(returned: Function, error: type[Exception], message: str) -> None:
    fun = product()
    fun.vjp(lambda p, ct, out: returned(p[0]))
    with pytest.raises(error, match=r"\[custom_function\] the vjp rule of <lambda> " + message):
        mx.grad(lambda x: fun(x, Y)[0])(X)


def test_results_must_be_arrays_where_there_are_rules() -> None:
    fun = mx.custom_function(lambda x: (x, 3))
    assert fun(X)[1] == 3
    fun.vjp(lambda x, ct, out: x)
    with pytest.raises(ValueError, match="has rules and must return arrays; it returned int"):
        mx.grad(lambda x: fun(x)[0])(X)


def test_only_functions_are_rules() -> None:
    with pytest.raises(TypeError, match=r"\[custom_function\] is made from a function; got int"):
        mx.custom_function(3)
    with pytest.raises(TypeError, match=r"\[custom_function\] a rule is a function; got NoneType"):
        product().vjp(None)


# ---- jvp ----


def test_jvp_gets_primals_and_tangents() -> None:
    fun, seen = product(), []

    @fun.jvp
    def rule(primals: Any, tangents: Any) -> Any:
        seen.append(tangents)
        dx = tangents[0] * 10 if tangents[0] is not None else mx.zeros_like(primals[0])
        return dx, dx + primals[1]

    _, (a, b) = mx.jvp(lambda x: fun(x, Y), [X], [mx.array(1.0)])
    assert (a.item(), b.item()) == (10.0, 13.0)
    assert seen[0][1] is None, "y is not traced"
    _, (a, b) = mx.jvp(fun, [X, Y], [mx.array(2.0), mx.array(1.0)])
    assert (a.item(), b.item()) == (20.0, 23.0)
    _, (nothing,) = mx.jvp(lambda z: fun(X, Y)[0], [X], [mx.array(1.0)])
    assert nothing.item() == 0.0
    assert len(seen) == 2, "no traced operand, no rule"


def test_the_inside_is_not_looked_at_where_there_is_a_rule() -> None:
    """Neither derivatives nor batches of what a function does inside are made for nothing."""

    def inside(x: mx.array) -> mx.array:
        assert isinstance(x, mx.array)
        return mx.sin(mx.exp(x))

    fun = mx.custom_function(inside)
    fun.jvp(lambda x, t: t).vjp(lambda x, ct, y: ct).vmap(lambda x, axis: (x, axis))
    for result in (mx.jvp(fun, [X], [Y])[1][0], mx.grad(fun)(X), mx.vmap(fun)(vector(1.0, 2.0))):
        assert not {Exp, Sin} & {type(node.op) for node in reachable([result._node])}


def test_jvp_rules_are_checked() -> None:
    fun = product()
    fun.jvp(lambda p, t: t[0])
    with pytest.raises(ValueError, match="the jvp rule of <lambda> must return arrays in the structure of its outputs"):
        mx.jvp(fun, [X, Y], [X, Y])
    fun.jvp(lambda p, t: (t[0], mx.ones((2,))))
    with pytest.raises(ValueError, match=r"the jvp rule of <lambda> gave float32\[2\] for the tangent of output 1"):
        mx.jvp(fun, [X, Y], [X, Y])
    fun.jvp(lambda p, t: (t[0], None))
    assert mx.jvp(fun, [X, Y], [X, Y])[1][1].item() == 0.0
    keyword = mx.custom_function(lambda x, k: x * k).jvp(lambda x, t: t)
    with pytest.raises(ValueError, match="has a jvp rule, which sees positional arguments only"):
        mx.jvp(lambda x: keyword(x, k=2.0), [X], [X])


# ---- vmap ----


def test_vmap_gets_inputs_and_axes() -> None:
    fun, seen = product(), []

    @fun.vmap
    def rule(inputs: Any, axes: Any) -> Any:
        seen.append((tuple(x.shape for x in inputs), axes))
        return (inputs[0] * 10, mx.array(5.0)), (axes[0], None)

    matrix = mx.array(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    a, b = mx.vmap(fun, in_axes=(1, None), out_axes=(1, 0))(matrix, Y)
    close(a, 10 * np.array(matrix))
    close(b, [5.0, 5.0, 5.0])
    assert seen == [(((2, 3), ()), (1, None))]


def test_vmap_rules_are_checked() -> None:
    fun = mx.custom_function(lambda x: x * x)
    fun.vmap(lambda x, axis: x)
    with pytest.raises(
        ValueError, match="the vmap rule of <lambda> must return a pair: outputs, and the batch axis of each"
    ):
        mx.vmap(fun)(vector(1.0, 2.0))
    fun.vmap(lambda x, axis: ((x, x), axis))
    with pytest.raises(TypeError, match="the vmap rule of <lambda> must return arrays; output 0 is tuple"):
        mx.vmap(fun)(vector(1.0, 2.0))
    fun.vmap(lambda x, axis: (x, 1))
    with pytest.raises(ValueError, match=r"output 0, of shape \(2,\), has its batch of 2 along axis 1"):
        mx.vmap(fun)(vector(1.0, 2.0))
    fun.vmap(lambda x, axis: (x, (0, 0)))
    with pytest.raises(ValueError, match="axes that the vmap rule of <lambda> returned do not fit"):
        mx.vmap(fun)(vector(1.0, 2.0))


def test_rules_are_mapped_with_a_function_that_has_none_for_vmap() -> None:
    """The gradient of a mapped function is its own rule, mapped: a rule is not forgotten on the way."""
    fun = product()
    fun.vjp(lambda p, ct, out: (ct[0] * p[1] * 100, ct[0] + ct[1])).jvp(lambda p, t: (p[1] * 7, p[0]))
    xs, ys = vector(1.0, 2.0, 3.0), vector(4.0, 5.0, 6.0)
    dx, dy = mx.grad(lambda x, y: mx.sum(mx.vmap(fun)(x, y)[0]), (0, 1))(xs, ys)
    close(dx, 100 * np.array(ys))
    close(dy, np.ones(3))
    dx, dy = mx.grad(lambda x, y: mx.sum(mx.vmap(fun, in_axes=(0, None))(x, y)[0]), (0, 1))(xs, Y)
    close(dx, [300.0] * 3)
    close(dy, 3.0)
    _, (tangent, _) = mx.jvp(mx.vmap(fun), [xs, ys], [xs, ys])
    close(tangent, 7 * np.array(ys))
    close(mx.vmap(mx.grad(lambda x, y: fun(x, y)[0]))(xs, ys), 100 * np.array(ys))
    nested = lambda x, y: mx.sum(mx.vmap(mx.vmap(fun, in_axes=(None, 0)), in_axes=(0, None))(x, y)[0])  # noqa: E731
    dx, dy = mx.grad(nested, (0, 1))(xs, ys)
    close(dx, [1500.0] * 3)
    close(dy, [3.0] * 3)


@pytest.mark.parametrize("axis", [0, 1])
def test_mapped_rules_along_any_axis(axis: int) -> None:
    fun = mx.custom_function(lambda x: mx.sum(x * x))
    fun.vjp(lambda x, ct, y: ct * x * 10)
    x = mx.array(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    close(mx.grad(lambda a: mx.sum(mx.vmap(fun, in_axes=axis)(a)))(x), 10 * np.array(x))
    weights = mx.array(np.arange(1.0, 1.0 + x.shape[axis], dtype=np.float32))
    expected = 10 * np.array(x) * (np.array(weights)[:, None] if axis == 0 else np.array(weights))
    close(mx.grad(lambda a: mx.sum(mx.vmap(fun, in_axes=axis)(a) * weights))(x), expected)


# ---- what rules capture ----


def scaled(x: mx.array, c: mx.array) -> mx.array:
    """x * 2c, whose rules capture 2c: an array that is mapped where c is."""
    twice = 2 * c
    fun = mx.custom_function(lambda a: a * twice)
    fun.vjp(lambda a, ct, y: ct * twice * 10).jvp(lambda a, t: t * twice * 100)
    return fun(x)


XS, CS = vector(1.0, 2.0, 5.0), vector(3.0, 4.0, 6.0)
GRID = mx.array(np.arange(1.0, 7.0, dtype=np.float32).reshape(3, 2))


@pytest.mark.parametrize(
    ("transform", "operands", "expected"),
    [
        (lambda f: mx.vmap(f), (XS, CS), ([60.0, 80.0, 120.0], [0.0, 0.0, 0.0])),
        (lambda f: mx.vmap(f, in_axes=(None, 0)), (X, CS), (260.0, [0.0, 0.0, 0.0])),
        (lambda f: mx.vmap(f, in_axes=(0, None)), (XS, Y), ([60.0, 60.0, 60.0], 0.0)),
        (lambda f: mx.vmap(mx.vmap(f)), (GRID, GRID), (20 * np.array(GRID), np.zeros((3, 2)))),
        (lambda f: mx.vmap(mx.vmap(f), in_axes=1), (GRID, GRID), (20 * np.array(GRID), np.zeros((3, 2)))),
        (
            lambda f: mx.vmap(lambda row, c: mx.vmap(lambda x: f(x, c))(row)),  # captured from the outer of two
            (GRID, CS),
            (20 * np.array([[3.0, 3.0], [4.0, 4.0], [6.0, 6.0]]), [0.0, 0.0, 0.0]),
        ),
        (
            lambda f: mx.vmap(lambda row, c: mx.vmap(lambda k: f(row[0], k + c))(row)),  # from both
            (GRID, CS),
            (np.array([[180.0, 0.0], [300.0, 0.0], [460.0, 0.0]]), [0.0, 0.0, 0.0]),
        ),
        (lambda f: mx.compile(mx.vmap(f)), (XS, CS), ([60.0, 80.0, 120.0], [0.0, 0.0, 0.0])),
        (lambda f: mx.vmap(mx.compile(f)), (XS, CS), ([60.0, 80.0, 120.0], [0.0, 0.0, 0.0])),
        (lambda f: mx.checkpoint(mx.vmap(f)), (XS, CS), ([60.0, 80.0, 120.0], [0.0, 0.0, 0.0])),
        (lambda f: mx.vmap(mx.checkpoint(f)), (XS, CS), ([60.0, 80.0, 120.0], [0.0, 0.0, 0.0])),
    ],
)
def test_rules_may_capture_what_is_mapped(transform: Function, operands: Any, expected: Any) -> None:
    """Their gradient is taken after the map, of all elements at once; each has its own captured value all the same."""
    with settings(backend="native"):
        mapped = transform(scaled)
        gradients = mx.grad(lambda x, c: mx.sum(mapped(x, c)), (0, 1))
        for fun in (gradients, mx.compile(gradients)):
            for found, right in zip(fun(*operands), expected, strict=True):
                close(found, right)
        _, (tangent,) = mx.jvp(mapped, list(operands), [mx.ones_like(x) for x in operands])
        close(np.sum(np.array(tangent)), 10 * np.sum(expected[0]))


def test_captured_and_mapped_arrays_have_second_derivatives() -> None:
    slope = lambda c: mx.sum(mx.grad(lambda x: mx.sum(mx.vmap(scaled)(x, c)))(XS))  # noqa: E731
    close(mx.grad(slope)(CS), [20.0, 20.0, 20.0])
    per_row = mx.vmap(mx.grad(lambda x, c: mx.sum(mx.vmap(scaled)(x, c))))(GRID, GRID)
    close(per_row, 20 * np.array(GRID))


def test_vmap_rules_get_what_is_mapped_as_arguments() -> None:
    def one(x: mx.array, c: mx.array) -> mx.array:
        return mx.custom_function(lambda a: a * c).vmap(lambda a, axis: (a * c, axis))(x)

    with pytest.raises(ValueError, match=r"vmap rule of <lambda> uses an array that is mapped but no arg.*pass it"):
        mx.vmap(one)(XS, CS)
    close(mx.vmap(lambda x: one(x, Y))(XS), 3 * np.array(XS))


# ---- a missing rule ----


def by_numpy() -> mx.custom_function:
    """sin, computed where no transform can look."""

    @mx.custom_function
    def sine(x: mx.array) -> mx.array:
        return mx.array(np.sin(np.array(x)))

    return sine


def test_functions_that_compute_elsewhere_need_every_rule_that_is_used() -> None:
    """A zero would be a wrong answer: nobody can see how the results depend on the arguments."""
    sine = by_numpy().vjp(lambda x, ct, y: ct * mx.cos(x))
    close(mx.grad(sine)(X), np.cos(2.0))
    with pytest.raises(ValueError) as error:
        mx.jvp(sine, [X], [X])
    assert str(error.value) == (
        "[custom_function] sine has no jvp rule, and computes outside of Weft, where no derivative can be taken. Add "
        "the rule:\n\n    @sine.jvp\n    def rule(primals, tangents):\n"
        "        return ...  # tangents in the structure of the outputs\n"
    )
    sine.jvp(lambda x, t: t * mx.cos(x))
    close(mx.jvp(sine, [X], [X])[1][0], 2 * np.cos(2.0))
    forward = by_numpy().jvp(lambda x, t: t * mx.cos(x))
    close(mx.jvp(forward, [X], [X])[1][0], 2 * np.cos(2.0))
    with pytest.raises(ValueError, match=r"sine has no vjp rule(.|\n)*@sine.vjp\n    def rule\(primals, cotan"):
        mx.grad(lambda x: forward(x) * x)(X)
    with pytest.raises(ValueError, match=r"no vjp rule(.|\n)*@f.vjp"):
        mx.grad(mx.custom_function(lambda x: mx.array(np.array(x))).jvp(lambda x, t: t))(X)


def test_other_arguments_of_a_function_that_computes_elsewhere_are_no_concern() -> None:
    sine = by_numpy().jvp(lambda x, t: t)
    close(mx.grad(lambda y: sine(X) * y)(Y), np.sin(2.0))
    nothing = mx.custom_function(lambda n: mx.array(2.0 * n)).vjp(lambda n, ct, y: None)
    close(mx.jvp(lambda y: nothing(3) * y, [Y], [Y])[1][0], 18.0)


def test_results_that_do_not_depend_on_the_arguments_are_constants() -> None:
    fun = mx.custom_function(lambda x: (x * 2, mx.array(1.0))).vjp(lambda x, ct, y: ct[0])
    _, tangents = mx.jvp(fun, [X], [Y])
    assert [t.item() for t in tangents] == [6.0, 0.0]
    close(mx.jvp(mx.custom_function(lambda x: x).vjp(lambda x, ct, y: ct), [X], [Y])[1][0], 3.0)


# ---- with everything ----


def clipped() -> mx.custom_function:
    fun = mx.custom_function(lambda x: x * x)
    return fun.vjp(lambda x, ct, y: mx.clip(ct * 2 * x, -1.0, 1.0))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: mx.grad(lambda x: mx.sum(f(x))),
        lambda f: mx.vmap(mx.grad(f)),
        lambda f: mx.grad(lambda x: mx.sum(mx.vmap(f)(x))),
        lambda f: lambda x: mx.jvp(mx.grad(lambda a: mx.sum(f(a))), [x], [x])[1][0],
        lambda f: mx.jacrev(f),
        lambda f: mx.grad(lambda x: mx.sum(mx.checkpoint(f)(x))),
        lambda f: mx.checkpoint(mx.grad(lambda x: mx.sum(f(x)))),
        lambda f: mx.grad(lambda x: mx.sum(mx.custom_function(lambda a: f(a)).vmap(lambda a, ax: (a, ax))(x))),
    ],
)
def test_custom_functions_in_compile(transform: Function) -> None:
    x = vector(0.25, 1.0, -3.0)
    with settings(backend="native"):
        expected = transform(clipped())(x)
        for compiled in (
            mx.compile(transform(clipped())),
            transform(mx.compile(clipped())),
            mx.compile(transform(mx.compile(clipped()))),
        ):
            for _ in range(2):
                assert np.array_equal(np.array(compiled(x)), np.array(expected))


def test_what_a_rule_captures_is_read_anew_by_compiled_functions() -> None:
    state = {"scale": mx.array(2.0)}
    fun = mx.custom_function(lambda x: x * x)
    fun.vjp(lambda x, ct, y: ct * state["scale"])
    with settings(backend="native"):
        gradient = mx.compile(mx.grad(fun))
        assert gradient(X).item() == 2.0
        state["scale"] = mx.array(5.0)
        assert gradient(X).item() == 5.0


def test_custom_functions_as_methods() -> None:
    class Layer:
        scale = mx.array(3.0)

        @mx.custom_function
        def forward(self, x: mx.array) -> mx.array:
            return x * self.scale

        @forward.vjp
        def forward_rule(primals: Any, ct: mx.array, out: mx.array) -> Any:
            return None, ct * 100

    close(mx.grad(Layer().forward)(X), 100.0)
    close(mx.grad(Layer().forward_rule)(X), 100.0)


def test_in_place_operators_inside_are_not_seen_outside() -> None:
    def inside(x: mx.array) -> mx.array:
        x += 1
        return x * x

    for wrapped in (mx.checkpoint(inside), mx.custom_function(inside).vjp(lambda x, ct, y: ct * x)):
        x = mx.array(2.0)
        assert wrapped(x).item() == 9.0
        assert x.item() == 2.0
        expected = 6.0 if not isinstance(wrapped, mx.custom_function) else 2.0
        close(mx.grad(lambda a, w=wrapped: w(a))(x), expected)
        assert x.item() == 2.0


def test_calls_outside_of_transforms_leave_no_trace() -> None:
    fun = clipped()
    assert not any(isinstance(node, Called) for node in reachable([fun(X)._node]))
    assert not any(isinstance(node, Called) for node in reachable([mx.checkpoint(mx.exp)(X)._node]))


def test_nothing_is_kept_alive() -> None:
    gc.collect()
    before = mx.get_active_memory()

    def outer(transform: Function) -> None:
        held: dict[str, Any] = {"array": mx.array(np.zeros(1000, np.float32))}
        fun = transform(lambda x: x * held["array"])
        if transform is mx.custom_function:
            fun.vjp(lambda x, ct, y: mx.sum(ct * held["array"]))
        held["fun"] = fun
        mx.eval(mx.grad(lambda x: mx.sum(fun(x)))(mx.array(1.0)))

    for transform in (mx.custom_function, mx.checkpoint, mx.compile):
        outer(transform)
        gc.collect()
    assert mx.get_active_memory() == before


# ---- checkpoint ----


def block(x: mx.array, w: mx.array) -> mx.array:
    for _ in range(3):
        x = mx.tanh(x @ w) + mx.sin(x)
    return x


def small(*shape: int, seed: int = 0) -> mx.array:
    return mx.array((np.random.default_rng(seed).normal(size=shape) * 0.3).astype(np.float32))


def same(a: Any, b: Any) -> bool:
    return np.array_equal(np.array(a), np.array(b))


def test_checkpoint_changes_nothing_but_memory() -> None:
    x, w = small(4, 4), small(4, 4, seed=1)
    plain = mx.grad(lambda x, w: mx.sum(block(x, w)), (0, 1))(x, w)
    for fun in (mx.checkpoint(block), mx.checkpoint(mx.checkpoint(block))):
        found = mx.grad(lambda x, w, fun=fun: mx.sum(fun(x, w)), (0, 1))(x, w)
        assert same(found[0], plain[0])
        assert same(found[1], plain[1])


def test_arguments_and_results_of_any_structure() -> None:
    fun = mx.checkpoint(lambda p, k, *, scale, name: {"out": mx.exp(p["a"]) * scale * k, "name": name, "same": p["a"]})

    def loss(a: mx.array, s: mx.array) -> mx.array:
        result = fun({"a": a}, 3, scale=s, name="n")
        assert result["name"] == "n"
        return result["out"] + result["same"]

    da, ds = mx.grad(loss, (0, 1))(X, Y)
    close(da, 9 * np.exp(2.0) + 1)
    close(ds, 3 * np.exp(2.0))


def test_captured_arrays_have_their_gradient() -> None:
    def loss(x: mx.array, w: mx.array) -> mx.array:
        scaled = w * 2
        return mx.checkpoint(lambda z: mx.exp(z * scaled))(x)

    plain = mx.grad(lambda x, w: mx.exp(x * (w * 2)), (0, 1))
    for found, expected in zip(mx.grad(loss, (0, 1))(X, Y), plain(X, Y), strict=True):
        assert same(found, expected)


def test_the_function_runs_once() -> None:
    calls = []

    @mx.checkpoint
    def fun(x: mx.array) -> mx.array:
        calls.append(1)
        return mx.exp(x) * mx.random.uniform()

    value, gradient = mx.value_and_grad(lambda x: fun(x))(X)
    close(gradient, value.item())
    assert len(calls) == 1, "so the random number is the same in both passes"


def computed(kind: type, *arrays: mx.array) -> int:
    """How often a primitive is computed after common subexpressions are merged."""
    graph, _ = closed(*arrays)
    return sum(isinstance(node.op, kind) for node in cse(simplify(cse(graph))).order())


def test_inner_values_are_computed_again_and_not_merged() -> None:
    x, w = small(4, 4), small(4, 4, seed=1)
    value, gradient = mx.value_and_grad(lambda x: mx.sum(block(x, w)))(x)
    again, checkpointed = mx.value_and_grad(lambda x: mx.sum(mx.checkpoint(block)(x, w)))(x)
    assert computed(Sin, value, gradient) == 3
    assert computed(Sin, again, checkpointed) == 5, "three forward, and those that the derivative reads once more"
    assert computed(Matmul, again, checkpointed) - computed(Matmul, value, gradient) == 3
    assert computed(Barrier, again, checkpointed) == 1, "the weight stays where it is"
    graph, layouts = closed(again, checkpointed)
    made = plan(graph, CPU, layouts)
    assert any(isinstance(node.op, Barrier) for item in made.items for node in item.writes)


def test_a_barrier_waits_for_the_cotangent() -> None:
    """The second computation may not begin while the rest of the forward pass still needs the memory."""
    x, w = small(4, 4), small(4, 4, seed=1)
    gradient = mx.grad(lambda x: mx.sum(mx.exp(mx.checkpoint(block)(mx.checkpoint(block)(x, w), w))))(x)
    barriers = [node for node in reachable([gradient._node]) if isinstance(node.op, Barrier)]
    assert len(barriers) == 2
    first, second = barriers
    assert first in reachable([second])
    assert any(isinstance(node.op, Exp) for node in reachable([first]))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: mx.grad(mx.grad(f)),
        lambda f: mx.grad(mx.grad(mx.grad(f))),
        lambda f: lambda x: mx.jvp(f, [x], [Y])[1][0],
        lambda f: lambda x: mx.jvp(mx.grad(f), [x], [Y])[1][0],
        lambda f: mx.grad(lambda x: mx.jvp(f, [x], [Y])[1][0]),
        lambda f: lambda x: mx.vmap(mx.grad(f))(mx.stack([x, x * 2])),
        lambda f: lambda x: mx.grad(lambda xs: mx.sum(mx.vmap(f)(xs)))(mx.stack([x, x * 2])),
        lambda f: lambda x: mx.vmap(mx.hessian(f))(mx.stack([x, x * 2])),
        lambda f: lambda x: mx.hvp(f, [x], [Y])[1][0],
    ],
)
def test_checkpoint_under_other_transforms(transform: Function) -> None:
    fun = lambda x: mx.exp(mx.sin(x) * 0.5) * x  # noqa: E731
    close(transform(mx.checkpoint(fun))(X), transform(fun)(X), 1e-4)
    with settings(backend="native"):
        close(mx.compile(transform(mx.checkpoint(fun)))(X), transform(fun)(X), 1e-4)


def deep(w: list[mx.array], layer: Function, x: mx.array) -> mx.array:
    for i in range(0, len(w), 4):
        x = layer(x, w[i : i + 4])
    return mx.sum(x)


def layers(x: mx.array, ws: list[mx.array]) -> mx.array:
    for w in ws:
        x = mx.tanh(x @ w)
    return x


def peak(fun: Function, x: mx.array) -> tuple[int, np.ndarray]:
    """Bytes that evaluating the gradient takes on top of what there was, and the gradient."""
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    gradient = fun(x)
    mx.eval(gradient)
    return mx.get_peak_memory() - before, np.array(gradient)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_deep_chain_takes_less_memory(compiled: bool) -> None:
    n, depth = 64, 64
    ws = [small(n, n, seed=i) for i in range(depth)]
    x = small(n, n, seed=99)
    with settings(backend="native"):
        mx.eval(ws, x)
        results = {}
        for name, layer in {"plain": layers, "checkpoint": mx.checkpoint(layers)}.items():
            gradient = mx.grad(functools.partial(deep, ws, layer))
            if compiled:
                gradient = mx.compile(gradient)
                mx.eval(gradient(x))
            results[name] = peak(gradient, x)
    assert np.array_equal(results["plain"][1], results["checkpoint"][1])
    ratio = results["checkpoint"][0] / results["plain"][0]
    assert ratio < 0.5, f"{ratio:.2f} of the memory"


def test_small_operands_are_put_behind_the_barrier() -> None:
    """Everything inside is computed again, at the price of copying as little as possible."""
    x, w, key = small(8, 8), small(8, 8, seed=1), mx.random.key(3)

    def dropout(x: mx.array) -> mx.array:
        keep = mx.random.uniform(shape=x.shape, key=key) > 0.5
        return mx.where(keep, x, 0.0)

    def copied(fun: Function) -> set[tuple[int, ...]]:
        gradient = mx.grad(lambda x: mx.sum(mx.checkpoint(fun)(x)))(x)
        shapes = {node.shape for node in reachable([gradient._node]) if isinstance(node.op, Barrier)}
        assert same(gradient, mx.grad(lambda x: mx.sum(fun(x)))(x))
        return shapes

    assert copied(lambda x: mx.exp(dropout(x))) == {(2,)}, "all of it depends on the key"
    assert copied(lambda x: mx.exp(dropout(mx.exp(x)))) == {(8, 8), (2,)}
    assert copied(lambda x: mx.exp(x @ w)) == {(8, 8)}
    assert copied(lambda x: mx.exp(x[:1, :1] @ mx.ones((1, 8)) + w)) == {(8, 8)}
    assert copied(lambda x: x * mx.exp(mx.sum(w) * mx.exp(x))) == {(8, 8)}


def test_only_functions_are_checkpointed() -> None:
    with pytest.raises(TypeError, match=r"\[checkpoint\] the first argument must be a function; got list"):
        mx.checkpoint([])
