"""grad, value_and_grad, vjp and jvp as a user meets them: arguments, containers, values inside, errors, and what
a trace costs.

Only algebra is tested here, so most of it runs on the reference back end and pays for no code generation.
"""

from __future__ import annotations

import dataclasses
import gc
import re
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft.core as mx
from tests.contract import settings
from weft import tree
from weft.graph.node import Node, reachable
from weft.graph.trace import is_tracing
from weft.primitives.base import Constant
from weft.transforms.capture import Walk


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    with settings(backend="reference"):
        yield


def close(got: object, expected: object, relative: float = 1e-5) -> None:
    np.testing.assert_allclose(np.array(got), np.asarray(expected), rtol=relative, atol=1e-6)


def nodes_of(*arrays: mx.array) -> list[Node]:
    """Everything that would be computed for these arrays."""
    return [n for n in reachable([a._node for a in arrays]) if n.value is None]


def matrix(*shape: int) -> mx.array:
    return mx.array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def f(x: mx.array, y: mx.array) -> mx.array:
    return x * x * y


X, Y = 2.0, 3.0
DX, DY = 2 * X * Y, X * X


@pytest.fixture
def x() -> mx.array:
    return mx.array(X)


@pytest.fixture
def y() -> mx.array:
    return mx.array(Y)


# ---- which arguments ----


def test_first_argument_by_default(x: mx.array, y: mx.array) -> None:
    close(mx.grad(f)(x, y), DX)
    value, gradient = mx.value_and_grad(f)(x, y)
    close(value, X * X * Y)
    close(gradient, DX)


@pytest.mark.parametrize(("argnums", "expected"), [(0, DX), (1, DY), ([0], DX), ((1,), DY)])
def test_one_argument_gives_a_bare_gradient(argnums: object, expected: float, x: mx.array, y: mx.array) -> None:
    gradient = mx.grad(f, argnums)(x, y)
    assert isinstance(gradient, mx.array)
    close(gradient, expected)


@pytest.mark.parametrize("argnums", [(0, 1), [0, 1], (1, 0)])
def test_several_arguments_give_a_tuple_in_the_order_of_the_arguments(
    argnums: object, x: mx.array, y: mx.array
) -> None:
    gradients = mx.grad(f, argnums)(x, y)
    assert isinstance(gradients, tuple)
    close(gradients[0], DX)
    close(gradients[1], DY)


def test_keyword_arguments(x: mx.array, y: mx.array) -> None:
    positional, named = mx.grad(f, argnames="y")(x, y=y)
    assert positional is None
    assert list(named) == ["y"]
    close(named["y"], DY)
    positional, named = mx.grad(f, argnums=0, argnames=["y"])(x, y=y)
    close(positional, DX)
    close(named["y"], DY)
    positional, named = mx.grad(f, argnums=[], argnames=["y", "x"])(x=x, y=y)
    assert positional is None
    assert list(named) == ["x", "y"], "in the order of the call"
    close(named["x"], DX)
    close(mx.grad(f)(x, y=y), DX)


def test_other_arguments_may_be_anything(x: mx.array) -> None:
    seen = []

    def loss(x: mx.array, *rest: object, **more: object) -> mx.array:
        seen.append((rest, more))
        return x * x

    close(mx.grad(loss)(x, "hello", None, {1, 2}, flag=True), 2 * X)
    assert seen == [(("hello", None, {1, 2}), {"flag": True})]


def test_only_the_chosen_argument_is_differentiated(x: mx.array) -> None:
    """The same array as two arguments, and captured as well: three different things."""
    close(mx.grad(lambda a, b: a * b * x)(x, x), X * X)
    close(mx.grad(lambda a, b: a * b * x, 1)(x, x), X * X)
    assert [g.item() for g in mx.grad(lambda a, b: a * b * b, (0, 1))(x, x)] == [4.0, 8.0]
    close(mx.grad(lambda a: x + x)(x), 0.0)
    close(mx.grad(lambda a: a + a)(x), 2.0)


def test_transformed_functions_keep_their_names() -> None:
    def model(x: mx.array) -> mx.array:
        """What it does."""
        return x

    for transformed in (
        mx.grad(model),
        mx.value_and_grad(model),
        mx.vmap(model),
        mx.checkpoint(model),
        mx.jacfwd(model),
    ):
        assert (transformed.__name__, transformed.__doc__) == ("model", "What it does.")


@pytest.mark.parametrize(
    "transform", [mx.grad, mx.value_and_grad, mx.vmap, mx.checkpoint, mx.custom_function, mx.jacrev]
)
def test_compile_sees_what_a_transformed_function_captures(transform: object) -> None:
    captured, rule = mx.array(1.0), mx.array(2.0)
    transformed = transform(lambda x: x * captured)
    arrays = [captured]
    if transform is mx.custom_function:
        transformed.vjp(lambda x, ct, y: ct * rule)
        arrays.append(rule)
    walk = Walk()
    walk.visit(transformed)
    assert walk.opaque is None
    assert {id(a) for a in arrays} <= {id(a) for a in walk.arrays}


# ---- what functions return ----


def test_auxiliary_results_pass_through(x: mx.array) -> None:
    (loss, extra), gradient = mx.value_and_grad(lambda x: (x * x, {"twice": 2 * x, "list": [1, "two", x, None]}))(x)
    close(loss, X * X)
    close(extra["twice"], 2 * X)
    assert extra["list"][:2] == [1, "two"]
    close(extra["list"][2], X)
    close(gradient, 2 * X)


def test_a_tuple_of_one_stays_a_tuple(x: mx.array) -> None:
    value, gradient = mx.value_and_grad(lambda x: (x * x,))(x)
    assert isinstance(value, tuple)
    close(gradient, 2 * X)


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (lambda x: [x * x], "list"),
        (lambda x: {"a": x}, "dict"),
        (lambda x: None, "NoneType"),
        (lambda x: 3.0, "float"),
        (lambda x: (), "tuple"),
        (lambda x: ("aux", x), "tuple that begins with str"),
    ],
)
def test_value_and_grad_needs_a_scalar_first(returned: object, shown: str, x: mx.array) -> None:
    with pytest.raises(ValueError, match=rf"\[value_and_grad\] .*or a tuple that begins with one; got a? ?{shown}"):
        mx.value_and_grad(returned)(x)


def test_grad_passes_nothing_through(x: mx.array) -> None:
    with pytest.raises(ValueError, match=r"\[grad\] .*got tuple\. value_and_grad passes the rest"):
        mx.grad(lambda x: (x * x, x))(x)


@pytest.mark.parametrize("shape", [(3,), (1,), (1, 1), (0,)])
def test_a_gradient_is_that_of_a_scalar(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"\[grad\] .*got shape {re.escape(str(shape))}\. Reduce it"):
        mx.grad(lambda x: x * x)(mx.ones(shape))


# ---- containers ----

Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Record:
    a: object
    b: object


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda a, b: [a, b], lambda t: (t[0], t[1])),
        (lambda a, b: (a, b), lambda t: (t[0], t[1])),
        (lambda a, b: {"a": a, "b": b}, lambda t: (t["a"], t["b"])),
        (lambda a, b: OrderedDict(b=b, a=a), lambda t: (t["a"], t["b"])),
        (Pair, lambda t: (t.a, t.b)),
        (Record, lambda t: (t.a, t.b)),
        (lambda a, b: {"deep": [(a, {"er": [b]})]}, lambda t: (t["deep"][0][0], t["deep"][0][1]["er"][0])),
        (lambda a, b: {"a": a, "none": [], "b": (b, {}), "absent": None}, lambda t: (t["a"], t["b"][0])),
    ],
)
def test_gradients_have_the_structure_of_the_argument(make: object, read: object, x: mx.array, y: mx.array) -> None:
    gradient = mx.grad(lambda t: f(*read(t)))(make(x, y))
    assert type(gradient) is type(make(x, y))
    dx, dy = read(gradient)
    close(dx, DX)
    close(dy, DY)


def test_the_same_array_in_two_places(x: mx.array) -> None:
    assert [g.item() for g in mx.grad(lambda t: t[0] + 3 * t[2])([x, x, x])] == [1.0, 0.0, 3.0]


class Module(dict):
    """Like a layer: a dict with attributes and a call."""

    def __getattr__(self, name: str) -> object:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def __call__(self, x: mx.array) -> mx.array:
        return x * self.weight + self.inner["bias"]


def test_modules_are_seen_as_themselves(x: mx.array, y: mx.array) -> None:
    module = Module(weight=y, inner=Module(bias=mx.array(1.0)))
    seen = []

    def loss(m: Module, x: mx.array) -> mx.array:
        seen.append(m)
        return m(x) * m(x)

    gradient = mx.grad(loss)(module, x)
    assert seen[0] is module
    close(gradient["weight"], 2 * (X * Y + 1) * X)
    close(gradient["inner"]["bias"], 2 * (X * Y + 1))
    assert module["weight"] is y, "the arrays are back"
    mapped = Module(weight=matrix(3), inner=Module(bias=mx.array(1.0)))
    weight = mapped["weight"]
    axes = ({"weight": 0, "inner": None}, None)
    close(mx.vmap(lambda m, x: m(x), in_axes=axes)(mapped, x), [1.0, 3.0, 5.0])
    close(mx.vmap(mx.grad(loss), in_axes=axes)(mapped, x)["weight"], [4.0, 12.0, 20.0])
    assert mapped["weight"] is weight


def test_containers_are_put_back_except_where_the_function_wrote(x: mx.array, y: mx.array) -> None:
    model = {"w": x, "state": y, "layers": [x, y]}

    def loss(m: dict) -> mx.array:
        m["state"] = m["state"] + m["w"]
        m["new"] = mx.array(7.0)
        m["layers"].insert(0, "moved")
        return m["w"] * m["w"] + m["layers"][1]

    gradient = mx.grad(loss)(model)
    close(gradient["w"], 2 * X)
    close(gradient["layers"][0], 1.0)
    assert model["w"] is x
    close(model["state"], X + Y)
    assert model["new"].item() == 7.0
    assert model["layers"][0] == "moved"
    assert model["layers"][1] is x
    assert model["layers"][2] is y


def test_containers_are_put_back_after_an_error(x: mx.array) -> None:
    model = {"w": x}

    def fails(m: dict) -> mx.array:
        assert m["w"] is not x
        raise RuntimeError("on purpose")

    for transform in (
        mx.grad(fails),
        lambda m: mx.vjp(fails, [m], [x]),
        lambda m: mx.jvp(fails, [m], [m]),
        mx.jacfwd(fails),
    ):
        with pytest.raises(RuntimeError, match="on purpose"):
            transform(model)
        assert model["w"] is x
    assert not is_tracing()


@pytest.mark.parametrize("argument", [3.0, "hello", {"a": 1, "b": mx.array(1.0)}, [mx.array(1.0), "x"]])
def test_only_arrays_are_differentiated(argument: object) -> None:
    with pytest.raises(ValueError, match=r"\[grad\] .*only arrays can be differentiated"):
        mx.grad(lambda p: mx.array(1.0))(argument)


def test_the_error_says_where(x: mx.array) -> None:
    with pytest.raises(ValueError, match=re.escape("[0]['layers'][1] is of type float")):
        mx.grad(lambda p: x)({"layers": [x, 0.5]})


def test_state_that_the_function_changes(x: mx.array) -> None:
    state = {"seen": mx.zeros((2,))}

    def loss(a: mx.array) -> mx.array:
        state["seen"] = state["seen"] + a
        return a * a

    mx.grad(loss)(x)
    close(state["seen"], [X, X])


def test_in_place_operators_do_not_reach_the_arguments(x: mx.array, y: mx.array) -> None:
    def loss(a: mx.array) -> mx.array:
        a += 1
        a *= a
        return a

    value, gradient = mx.value_and_grad(loss)(x)
    close(value, (X + 1) ** 2)
    close(gradient, 2 * (X + 1))
    assert x.item() == X

    def with_other(a: mx.array, b: mx.array, c: mx.array) -> mx.array:
        b += a
        c += a
        return a * b * c

    close(mx.grad(with_other)(x, y, c=y), (X + Y) ** 2 + 2 * X * (X + Y))
    assert y.item() == Y
    vector = matrix(2)
    close(mx.vmap(with_other, in_axes=(0, None, None))(vector, x, y), [0.0, 12.0])
    assert (vector.tolist(), x.item(), y.item()) == ([0.0, 1.0], X, Y)


def test_item_assignment_is_differentiated() -> None:
    def loss(a: mx.array, b: mx.array) -> mx.array:
        a[1] = b * b
        return mx.sum(a * a)

    da, db = mx.grad(loss, (0, 1))(mx.array([1.0, 2.0, 3.0]), mx.array(2.0))
    close(da, [2.0, 0.0, 6.0])
    close(db, 2 * 4.0 * 4.0)


# ---- real values inside ----


def branches(x: mx.array) -> mx.array:
    if x > 0:
        return x * x * x.item()
    return -x


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: mx.grad(branches)(x),
        lambda x: mx.vjp(branches, [x], [mx.array(1.0)])[1][0],
        lambda x: mx.jvp(branches, [x], [mx.array(1.0)])[1][0],
        lambda x: mx.jacfwd(branches)(x),
        lambda x: mx.jacrev(branches)(x),
    ],
)
def test_functions_see_values(transform: object) -> None:
    close(transform(mx.array(3.0)), 18.0)
    close(transform(mx.array(-3.0)), -1.0)


def test_values_inside_nested_transforms() -> None:
    """What is evaluated inside keeps its history for every open trace."""

    def cube(x: mx.array) -> mx.array:
        y = x * x
        assert y.item() >= 0
        mx.eval(y)
        z = y * x
        assert repr(z).startswith("array(")
        assert f"{z.item():.1f}"
        return z

    x = mx.array(2.0)
    close(mx.grad(cube)(x), 12.0)
    close(mx.grad(mx.grad(cube))(x), 12.0)
    close(mx.grad(mx.grad(mx.grad(cube)))(x), 6.0)
    close(mx.jvp(mx.grad(cube), [x], [mx.array(1.0)])[1][0], 12.0)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("mode", ["grad", "jvp", "jacfwd", "jacrev"])
def test_printing_and_branching_at_any_depth(mode: str, depth: int, capsys: pytest.CaptureFixture[str]) -> None:
    """x⁴ by a branch that is taken, with everything that reads a value on the way."""

    def power(x: mx.array) -> mx.array:
        y = x * x
        print(y, f"{y:.2f}", float(y), y.tolist())
        if y > 1 and bool(y < 100) and y.item() != 7 and int(y) >= 0:
            return y * y if np.array(y) > 0 else y
        return -x

    derivative = {
        "grad": mx.grad,
        "jvp": lambda f: lambda x: mx.jvp(f, [x], [mx.array(1.0)])[1][0],
        "jacfwd": mx.jacfwd,
        "jacrev": mx.jacrev,
    }[mode]
    fun: object = power
    for _ in range(depth):
        fun = derivative(fun)
    close(fun(mx.array(2.0)), [32.0, 48.0, 48.0][depth - 1])
    assert capsys.readouterr().out == "array(4, dtype=float32) 4.00 4.0 4.0\n"


def test_values_of_captured_arrays_inside_and_around_compile() -> None:
    """A gradient inside a compiled function reads no values; a compiled function inside a gradient has them."""
    square = mx.compile(lambda x: x * x)

    def loss(x: mx.array) -> mx.array:
        y = square(x)
        return y * x if y.item() > 1 else -x

    with settings(backend="native"):
        close(mx.grad(loss)(mx.array(2.0)), 12.0)
        close(mx.grad(mx.grad(loss))(mx.array(2.0)), 12.0)
        close(mx.grad(loss)(mx.array(0.5)), -1.0)
        close(mx.compile(lambda x: mx.grad(lambda a: square(a) * a)(x) + square(x))(mx.array(2.0)), 16.0)


def test_arguments_that_are_not_evaluated_yet() -> None:
    x = mx.array(1.0) + mx.array(1.0)
    close(mx.grad(lambda a: a * a if a.item() > 0 else a)(x), 4.0)


# ---- zeros and ones cost nothing ----


def test_unused_inputs_have_zeros_without_work(x: mx.array) -> None:
    unused = mx.ones((1000, 1000))
    gradients = mx.grad(lambda a, b: a * a, (0, 1))(x, unused)
    assert isinstance(gradients[1]._node.op, Constant)
    assert (gradients[1].shape, gradients[1].dtype) == ((1000, 1000), mx.float32)
    assert not nodes_of(gradients[1])


def test_outputs_that_do_not_depend_on_the_input(x: mx.array, y: mx.array) -> None:
    fun = lambda a, b: (a * 2, b * 3, mx.array([1.0, 2.0]))  # noqa: E731
    _, (dx, dy) = mx.vjp(fun, [x, y], [x, y, mx.array([1.0, 1.0])])
    close(dx, 2 * X)
    close(dy, 3 * Y)
    _, tangents = mx.jvp(fun, [x, y], [x, y])
    assert isinstance(tangents[2]._node.op, Constant)
    close(tangents[2], [0.0, 0.0])


@pytest.mark.parametrize(
    ("fun", "most"),
    [
        (lambda x: mx.sum(x), 0),  # a constant
        (lambda x: mx.sum(x + 1), 0),
        (lambda x: mx.sum(-x), 0),
        (lambda x: mx.sum(3 * x), 0),
        (lambda x: mx.sum(x * x), 1),  # x + x
        (lambda x: mx.sum(mx.exp(x)), 1),  # exp itself
        (lambda x: mx.sum(mx.sin(x)), 1),
        (lambda x: mx.sum(mx.log(x)), 1),
        (lambda x: mx.sum(x / 3), 1),
        (lambda x: mx.sum(mx.reshape(mx.transpose(x), (6,))[1:]), 3),
    ],
)
def test_exact_ones_are_left_out_of_the_plan(fun: object, most: int) -> None:
    """Nodes that evaluation makes for a gradient, after simplification and without constants."""
    gradient = mx.grad(fun)(mx.array(np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)))
    assert len(simplified(gradient)) <= most


def simplified(gradient: mx.array) -> list[Node]:
    from tests.contract import closed
    from weft.passes.cse import cse
    from weft.passes.simplify import simplify

    graph, _ = closed(gradient)
    return [n for n in cse(simplify(cse(graph))).order() if n.inputs]


def test_a_gradient_is_linear_in_nodes_and_time() -> None:
    def chain(n: int) -> int:
        def fun(x: mx.array) -> mx.array:
            for _ in range(n):
                x = mx.sin(x)
            return x

        return len(nodes_of(*mx.value_and_grad(fun)(mx.array(0.5))))

    assert chain(300) - chain(200) == chain(200) - chain(100)
    assert chain(300) <= 3 * 300, "sin, cos, and one product for each"


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
def test_work_grows_with_the_number_of_operations(transform: str) -> None:
    """Calls of Python's interpreter, which are the same on every machine: as many for every operation."""

    def calls(n: int) -> int:
        def chain(x: mx.array) -> mx.array:
            for _ in range(n):
                x = mx.sin(x) * x
            return x

        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        gc.collect()
        gc.disable()  # what other tests left behind has destructors, which are calls too
        sys.setprofile(note)
        try:
            if transform == "grad":
                mx.grad(chain)(x)
            elif transform == "jvp":
                mx.jvp(chain, [x], [x])
            else:
                mx.vmap(chain)(xs)
        finally:
            sys.setprofile(None)
            gc.enable()
        return count

    x, xs = mx.array(0.5), mx.array([0.5, 0.25])
    calls(100)  # rules are remembered from here on
    assert calls(4000) - calls(2000) == pytest.approx(2 * (calls(2000) - calls(1000)), rel=0.01)


def test_cotangents_that_are_zero_are_not_made() -> None:
    """Of outputs that nobody uses, and of parts that nobody reads: no zeros are multiplied, added or written."""
    x = mx.array(np.arange(1.0, 7.0, dtype=np.float32))

    def several(a: mx.array) -> mx.array:
        first, second = mx.split(mx.sin(a), 2)
        mx.exp(second)  # computed, and left alone
        return mx.sum(first * first)

    titles = [node.op.title for node in nodes_of(mx.grad(several)(x))]
    assert "exp" not in titles
    _, (dx,) = mx.vjp(lambda a: (mx.sin(a), a * 2), [x], [mx.zeros_like(x), mx.ones_like(x)])
    close(dx, 2 * np.ones(6))
    assert not simplified(mx.grad(lambda a: mx.sum(a * 3) + mx.sum(mx.stop_gradient(mx.exp(a))))(x))


def test_many_uses_of_one_value_are_added_up_once_each() -> None:
    """Not once for every path: there are 2 ** 60."""

    def doubling(x: mx.array) -> mx.array:
        for _ in range(60):
            x = x + x
        return x

    gradient = mx.grad(doubling)(mx.array(1.0))
    assert len(nodes_of(gradient)) <= 120
    close(gradient, 2.0**60)


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
def test_a_hundred_thousand_operations_deep(transform: str) -> None:
    def deep(x: mx.array) -> mx.array:
        for _ in range(50_000):
            x = -(x + 1e-3)
        return x

    x = mx.array(0.5)
    if transform == "grad":
        result, expected = mx.grad(deep)(x), 1.0
    elif transform == "jvp":
        result, expected = mx.jvp(deep, [x], [mx.array(2.0)])[1][0], 2.0
    else:
        result, expected = mx.vmap(deep)(mx.array([0.5, 0.25]))[0], 0.5
    close(result, expected, 1e-2)
    del result
    gc.collect()


# ---- vjp and jvp ----


def test_vjp_and_jvp_give_lists(x: mx.array, y: mx.array) -> None:
    outputs, cotangents = mx.vjp(f, (x, y), (mx.array(1.0),))
    assert type(outputs) is type(cotangents) is list
    close(outputs[0], X * X * Y)
    assert [c.item() for c in cotangents] == [DX, DY]
    outputs, tangents = mx.jvp(f, (x, y), (mx.array(1.0), mx.array(10.0)))
    assert type(outputs) is type(tangents) is list
    close(tangents[0], DX + 10 * DY)


def test_vjp_and_jvp_of_several_outputs(x: mx.array, y: mx.array) -> None:
    fun = lambda x, y: [x * y, x + y]  # noqa: E731
    outputs, (dx, dy) = mx.vjp(fun, [x, y], [mx.array(1.0), mx.array(10.0)])
    assert [o.item() for o in outputs] == [X * Y, X + Y]
    assert (dx.item(), dy.item()) == (Y + 10, X + 10)
    _, tangents = mx.jvp(fun, [x, y], [mx.array(1.0), mx.array(10.0)])
    assert [t.item() for t in tangents] == [Y + 10 * X, 11.0]


def test_an_output_twice_and_an_output_that_is_an_input(x: mx.array) -> None:
    def fun(a: mx.array) -> list[mx.array]:
        b = a * a
        return [b, b, a, a]

    _, (dx,) = mx.vjp(fun, [x], [mx.array(1.0), mx.array(10.0), mx.array(100.0), mx.array(1000.0)])
    assert dx.item() == 11 * 2 * X + 1100
    _, tangents = mx.jvp(fun, [x], [mx.array(3.0)])
    assert [t.item() for t in tangents] == [12.0, 12.0, 3.0, 3.0]


def test_trees_as_primals_and_outputs(x: mx.array, y: mx.array) -> None:
    fun = lambda p, q: {"out": p["a"] * q[0], "pair": (q[1],)}  # noqa: E731
    outputs, cotangents = mx.vjp(fun, [{"a": x}, [y, x]], [{"out": mx.array(1.0), "pair": (mx.array(5.0),)}])
    close(outputs[0]["out"], X * Y)
    close(cotangents[0]["a"], Y)
    assert [c.item() for c in cotangents[1]] == [X, 5.0]
    _, tangents = mx.jvp(fun, [{"a": x}, [y, x]], [{"a": mx.array(1.0)}, [mx.array(0.0), mx.array(7.0)]])
    assert tangents[0]["pair"][0].item() == 7.0


def test_no_primals(x: mx.array) -> None:
    assert mx.vjp(lambda: x, [], [x])[1] == []
    assert mx.jvp(lambda: x, [], [])[1][0].item() == 0.0


# ---- errors ----


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: mx.grad(f, argnums=-1), ValueError, "argnums has -1: positions count from 0"),
        (lambda: mx.grad(f, argnums=(0, 0)), ValueError, "names an argument twice"),
        (lambda: mx.grad(f, argnums=()), ValueError, "no argument is differentiated"),
        (lambda: mx.value_and_grad(f, argnums=[], argnames=[]), ValueError, "no argument is differentiated"),
        (lambda: mx.grad(f, argnums=0.5), TypeError, "argnums are integers; got 0.5"),
        (lambda: mx.grad(f, argnums=(None, None)), TypeError, "argnums are integers"),
        (lambda: mx.grad(f, argnames=[1]), TypeError, "argnames are strings"),
        (lambda: mx.grad(3), TypeError, "must be a function; got int"),
        (
            lambda: mx.grad(f, 2)(mx.array(1.0), mx.array(1.0)),
            ValueError,
            "argnums has 2, .* 2 positional arguments: pass",
        ),
        (lambda: mx.grad(f)(x=mx.array(1.0), y=mx.array(1.0)), ValueError, "argnums has 0, .* 0 positional"),
        (
            lambda: mx.grad(f, argnames="y")(mx.array(1.0), mx.array(1.0)),
            ValueError,
            "'y', .* are: none. Pass it by keyword",
        ),
        (lambda: mx.grad(f, argnames="z")(mx.array(1.0), y=mx.array(1.0)), ValueError, "'z', .* are: y"),
        (lambda: mx.vjp(f, mx.array(1.0), [mx.array(1.0)]), TypeError, "primals are a list .*write \\[primal\\]"),
        (lambda: mx.vjp(f, [1.0, 2.0], [mx.array(1.0)]), TypeError, "primals must be arrays; got float"),
        (lambda: mx.vjp(f, [mx.array(1.0)] * 2, mx.array(1.0)), TypeError, "cotangents are a list"),
        (lambda: mx.vjp(f, [mx.array(1.0)] * 2, []), ValueError, "1 outputs and 0 cotangents"),
        (lambda: mx.vjp(f, [mx.array(1.0)] * 2, [mx.array(1.0)] * 2), ValueError, "1 outputs and 2 cotangents"),
        (
            lambda: mx.vjp(f, [mx.array(1.0)] * 2, [mx.ones((3,))]),
            ValueError,
            r"cotangent 0 has shape \(3,\), its output \(\)",
        ),
        (
            lambda: mx.vjp(f, [mx.array(1.0)] * 2, [mx.array(1)]),
            ValueError,
            r"cotangent 0 is int32, .*\.astype\(float32\)",
        ),
        (
            lambda: mx.vjp(f, [mx.array(1.0)] * 2, [1.0]),
            TypeError,
            "cotangents must be arrays; number 0 is of type float",
        ),
        (
            lambda: mx.vjp(lambda a: "no", [mx.array(1.0)], [mx.array(1.0)]),
            ValueError,
            "must return an array, .*got str",
        ),
        (
            lambda: mx.vjp(lambda a: None, [mx.array(1.0)], [mx.array(1.0)]),
            ValueError,
            "must return an array, .*got NoneType",
        ),
        (lambda: mx.jvp(f, [mx.array(1.0)] * 2, [mx.array(1.0)]), ValueError, "2 primals and 1 tangents"),
        (
            lambda: mx.jvp(f, [mx.array(1.0)] * 2, [mx.array(1.0), mx.ones((1,))]),
            ValueError,
            r"tangent 1 has shape \(1,\)",
        ),
        (
            lambda: mx.jvp(f, [mx.array(1.0)] * 2, [mx.array(1.0), mx.array(1.0, mx.float16)]),
            ValueError,
            "tangent 1 is float16",
        ),
        (
            lambda: mx.jvp(f, [{"a": mx.array(1.0)}], [{"b": mx.array(1.0)}]),
            ValueError,
            r"tangents must be in the containers of the primals, .*'a'.* differ at primals\[0\].*keys 'b'",
        ),
        (
            lambda: mx.vjp(lambda a: {"a": a}, [mx.array(1.0)], [[mx.array(1.0)]]),
            ValueError,
            r"cotangents must be in the containers of the outputs, .* differ at outputs\[0\]",
        ),
    ],
)
def test_errors_say_what_to_do(make: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=r"^\[\w+\] .*" + message):
        make()


# ---- with compile, on machine code ----


def model(w: dict, x: mx.array) -> mx.array:
    h = mx.tanh(x @ w["a"] + w["b"])
    return mx.mean(mx.square(mx.sum(mx.where(h > 0, h, mx.exp(h)), axis=1)))


def weights() -> dict:
    rng = np.random.default_rng(0)
    return {
        "a": mx.array(rng.normal(size=(4, 5)).astype(np.float32)),
        "b": mx.array(rng.normal(size=5).astype(np.float32)),
    }


def same(a: object, b: object) -> bool:
    return np.array_equal(np.array(a), np.array(b))


def test_compile_around_and_inside_gives_the_same_bits() -> None:
    w, x = weights(), matrix(3, 4) / 10
    with settings(backend="native"):
        value, gradient = mx.value_and_grad(model)(w, x)
        for compiled in (
            mx.compile(mx.value_and_grad(model)),
            mx.value_and_grad(mx.compile(model)),
            mx.compile(mx.value_and_grad(mx.compile(model))),
        ):
            for _ in range(2):
                again, gradients = compiled(w, x)
                assert same(again, value)
                assert same(gradients["a"], gradient["a"])
                assert same(gradients["b"], gradient["b"])


@pytest.mark.parametrize(
    "transform",
    [
        lambda fun: mx.vmap(fun),
        lambda fun: mx.vmap(mx.grad(fun)),
        lambda fun: mx.grad(lambda x: mx.sum(mx.vmap(fun)(x))),
        lambda fun: lambda x: mx.jvp(mx.vmap(mx.grad(fun)), [x], [x])[1][0],
        lambda fun: mx.vmap(mx.hessian(lambda z: fun(z))),
    ],
)
def test_other_transforms_with_compile(transform: object) -> None:
    x = matrix(5) / 5
    fun = lambda s: mx.sin(s) * mx.exp(s) / (1 + s * s)  # noqa: E731
    with settings(backend="native"):
        expected = transform(fun)(x)
        assert same(mx.compile(transform(fun))(x), expected)
        assert same(transform(mx.compile(fun))(x), expected)
        assert same(mx.compile(transform(mx.compile(fun)))(x), expected)


def test_values_are_refused_inside_compile_by_name() -> None:
    with settings(backend="native"), pytest.raises(ValueError, match=r"\[compile\] an array has no value"):
        mx.compile(mx.grad(branches))(mx.array(1.0))


def test_machine_code_agrees_with_the_reference() -> None:
    w, x = weights(), matrix(3, 4) / 10
    reference = mx.grad(model)(w, x)
    with settings(backend="native"):
        native = mx.grad(model)(w, x)
        close(native["a"], reference["a"], 1e-4)
        close(native["b"], reference["b"], 1e-4)
        chunk = mx.vmap(mx.grad(model), in_axes=(None, 0))(w, mx.reshape(x, (3, 1, 4)))
        assert chunk["a"].shape == (3, 4, 5)


class Rows(list[Any]):
    """A list of the user's own."""


class Pair(tuple[Any, ...]):
    """A tuple of the user's own."""

    __slots__ = ()


class Named(dict[str, Any]):
    """A dict of the user's own."""


class Point(NamedTuple):
    """A named tuple."""

    x: Any


@dataclasses.dataclass
class Record:
    """A dataclass."""

    x: Any


CONTAINERS = [
    lambda x: [x], lambda x: {"x": x}, lambda x: Rows([x]), lambda x: Pair((x,)), lambda x: Named(x=x), Point, Record,
]  # fmt: skip


@pytest.mark.parametrize("make", CONTAINERS)
def test_containers_come_back_as_what_they_were(make: Any) -> None:
    x = mx.array([1.0, 2.0])

    def total(tree_of_one: Any) -> mx.array:
        return (tree.leaves(tree_of_one)[0] ** 2).sum()  # type: ignore[no-any-return]

    gradient, mapped = mx.grad(total)(make(x)), mx.vmap(lambda p: p)(make(x))
    value = mx.vjp(lambda p: tree.leaves(p)[0] * 1, [make(x)], [x])[1][0]
    for got, expected in ((gradient, [2.0, 4.0]), (mapped, [1.0, 2.0]), (value, [1.0, 2.0])):
        assert type(got) is type(make(x))
        assert tree.leaves(got)[0].tolist() == expected
