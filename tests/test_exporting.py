"""Exported functions, read again: the same bits for every primitive, dtype, tree and size, in and under every
transform; and files that are damaged, or mean harm, are refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests import contract, hostile
from tests.loops import assert_same
from weft import dtypes as dt
from weft import tree
from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.primitives import CONTROL_FLOW, REGISTRY
from weft.primitives.base import GetResult, Primitive, check_operands
from weft.transforms.importing import FIELDS, PRIMITIVES

Function = Callable[..., Any]


def through(fun: Function, *args: Any, shapeless: bool = False, **kwargs: Any) -> Function:
    """A function, exported and imported again."""
    file = io.BytesIO()
    mx.export_function(file, fun, *args, shapeless=shapeless, **kwargs)
    file.seek(0)
    return mx.import_function(file)


def values(*shape: int, seed: int = 0, dtype: Dtype = dt.float32) -> array:
    return mx.array(np.random.default_rng(seed).normal(size=shape), dtype)


X, Y, W = values(4, 6), values(4, 6, seed=1), values(6, 6, seed=2)


# ---- every primitive ----


def chosen_cases(cls: type[Primitive]) -> Iterator[contract.Case]:
    """All samples in one dtype, all dtypes in one sample."""
    one = dt.float32 if dt.float32 in cls.dtypes else cls.dtypes[0]
    for case in contract.cases(cls):
        if case.dtype is one or case.number == 0:
            yield case


@pytest.mark.parametrize("cls", REGISTRY, ids=lambda cls: cls.name())
def test_every_primitive(cls: type[Primitive]) -> None:
    for case in chosen_cases(cls):
        operands = [contract.place(x) for x in case.operands()]

        def fun(*xs: array, case: contract.Case = case) -> list[array]:
            return [wrap(x) for x in contract.bound(case.op, *[x._node for x in xs])]

        found = through(fun, *operands)(*operands)
        for x, y in zip(found, fun(*operands), strict=True):
            assert x.dtype is y.dtype
            assert contract.same_bits(contract.values_of(x), contract.values_of(y)), str(case)


def test_every_primitive_has_a_name_and_a_form_in_files() -> None:
    assert len(PRIMITIVES) == len(REGISTRY) + len(CONTROL_FLOW) + 1
    for cls in PRIMITIVES.values():
        for name, field in cls.__dataclass_fields__.items():
            if "ClassVar" not in str(field.type):
                assert str(field.type) in FIELDS, f"{cls.name()}.{name}: {field.type}"


def test_every_primitive_says_what_operands_it_takes() -> None:
    missing = [name for name, cls in PRIMITIVES.items() if cls.check is Primitive.check]
    assert not missing, f"{missing}: write `check`, or nothing stands between a file and their kernels"


@pytest.mark.parametrize("cls", REGISTRY, ids=lambda cls: cls.name())
def test_operands_that_do_not_fit_are_refused(cls: type[Primitive]) -> None:
    """Kernels trust what they are given: no operand may be missing, and none too many unless there may be any."""
    case = next(iter(contract.cases(cls)))
    nodes = [contract.place(x)._node for x in case.operands()]
    check_operands(case.op, nodes)
    if cls.name() not in ("concatenate", "barrier"):
        with pytest.raises(ValueError, match=r"operands|index"):
            check_operands(case.op, [*nodes, X._node])
    if nodes and cls.name() not in ("concatenate", "barrier"):
        with pytest.raises(ValueError, match=r"operands|index"):
            check_operands(case.op, nodes[:-1])
    bundle = mx.scan(lambda c, x: (c, x), mx.zeros(2), mx.zeros((3, 2)))[0]._node.inputs[0]
    if nodes:
        with pytest.raises(ValueError, match="no arrays"):
            check_operands(case.op, [bundle, *nodes[1:]])


# ---- programs ----


class Program(NamedTuple):
    fun: Function
    args: tuple[Any, ...]


def attention(x: array, y: array) -> array:
    return mx.softmax((x @ W) @ y.T / 2.5, axis=-1) @ y


def indexing(x: array, y: array) -> tuple[array, ...]:
    x = mx.array(x)
    x[1:3, ::2] = y[:2, 3:] * 2
    x[mx.argmax(y, axis=0)[:2]] += 1
    return x, x[::-1, 1:-1], mx.take_along_axis(y, mx.argsort(y, axis=1), axis=1), x.at[0].add(y[0])


def joining(x: array, y: array) -> list[array]:
    both = mx.concatenate([x, y], axis=1)
    return [both, mx.pad(x, 1), mx.stack([x, y], 1), mx.tile(x, (2, 1)), mx.repeat(y, 3, axis=1), *mx.split(both, 3, 1)]


def ordering(x: array, y: array) -> tuple[array, ...]:
    return (
        mx.sort(x, axis=0), mx.topk(y, 3), mx.cumsum(x, axis=1, reverse=True), mx.cumprod(y, axis=0, inclusive=False),
        mx.logsumexp(x, axis=1), mx.var(y, axis=0), mx.median(x, axis=1), mx.argmin(x), mx.all(x > y), mx.any(x > 3),
    )  # fmt: skip


def looping(x: array, y: array) -> Any:
    carry, rows = mx.scan(lambda c, row: (mx.tanh(c @ W) + row, {"sum": c.sum(), "row": row * c}), y[0], x)
    ending = mx.while_loop(lambda c: c.sum() < 50, lambda c: mx.abs(c) * 1.5 + 0.1, mx.abs(x[0]))
    counted = mx.fori_loop(0, 5, lambda i, c: c + mx.sin(c) * i, y)
    chosen = mx.cond(x.sum() > y.sum(), lambda a, b: a + b, lambda a, b: a - b, x, y)
    return carry, rows, ending, counted, chosen, mx.switch(mx.array(1), [mx.sin, mx.cos, mx.exp], x)


def nesting(x: array, y: array) -> Any:
    def outer(c: array, row: array) -> Any:
        inner, _ = mx.scan(lambda d, r: (d * 0.5 + r, None), c, mx.stack([row, row + 1]))
        return mx.cond(inner.sum() > 0, lambda a: a, lambda a: -a, inner), mx.map(mx.tanh, inner)

    return mx.scan(outer, y[0], x)


def derivatives(x: array, y: array) -> Any:
    def loss(x: array) -> array:
        return (attention(x, y) ** 2).sum() + looping(x, y)[0].sum() + looping(x, y)[2].sum()

    return mx.grad(loss)(x), mx.jvp(mx.grad(loss), [x], [y])[1][0], mx.vmap(mx.grad(lambda r: mx.sin(r).sum()))(y)


@mx.custom_function
def doubled(x: array) -> array:
    return x * 2


@doubled.vjp
def _of_doubled(primals: Any, cotangents: Any, outputs: Any) -> Any:
    return cotangents * 100


def with_rules(x: array, y: array) -> tuple[array, ...]:
    return doubled(x) + mx.checkpoint(mx.sin)(y), mx.grad(lambda x: doubled(x).sum())(x), mx.stop_gradient(x) * y


PROGRAMS = (attention, indexing, joining, ordering, looping, nesting, derivatives, with_rules)


@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda fun: fun.__name__)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_programs(fun: Function, compiled: bool) -> None:
    imported = through(fun, X, Y)
    found = (mx.compile(imported) if compiled else imported)(X, Y)
    expected = fun(X, Y)
    if isinstance(expected, array):
        expected = (expected,)
    assert_same(found, tuple(expected) if isinstance(expected, list) else expected)
    # Other values, of which the trace knew nothing.
    assert_same(tree.leaves(imported(Y * 2, X)), tree.leaves(fun(Y * 2, X)))


@pytest.mark.parametrize("fun", [attention, indexing, joining, ordering, looping], ids=lambda fun: fun.__name__)
def test_a_function_that_was_imported_can_be_exported(fun: Function) -> None:
    assert_same(through(through(fun, X, Y), X, Y)(X, Y), through(fun, X, Y)(X, Y))


UNARY = ["mx.exp({})", "mx.sin({})", "-{}", "{}[::-1]", "mx.cumsum({}, axis=1)", "mx.sort({}, axis=0)", "{}[:, ::-1]"]
UNARY += ["mx.softmax({}, axis=0)", "({} @ W)", "{}.astype(mx.float16).astype(mx.float32)", "mx.roll({}, 1, axis=0)"]
BINARY = ["({} + {})", "({} * {})", "mx.maximum({}, {})", "mx.where({} > 0, {}, 0.5)", "({} - {}.mean(axis=0))"]
BINARY += ["mx.concatenate([{}, {}], axis=0)[1:5]", "mx.scan(lambda c, r: (c * 0.5 + r, c), {}[0], {})[1]"]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> str:
    """Python text of an array of the shape of x."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(["x", "y", "(x * 3)", "W[:4]"]))
    if draw(st.booleans()):
        return draw(st.sampled_from(UNARY)).format(draw(expressions(depth - 1)))
    return draw(st.sampled_from(BINARY)).format(draw(expressions(depth - 1)), draw(expressions(depth - 1)))


@given(expressions())
@settings(max_examples=40)
def test_generated_programs(text: str) -> None:
    fun = eval(f"lambda x, y: {text}", {"mx": mx, "W": W})
    imported = through(fun, X, Y)
    assert_same(imported(X, Y), (fun(X, Y),))
    total = mx.grad(lambda x: mx.abs(fun(x, Y)).sum())
    assert_same(mx.grad(lambda x: mx.abs(imported(x, Y)[0]).sum())(X), total(X))


# ---- sizes ----


def sized(x: array) -> tuple[array, ...]:
    n, m = x.shape
    half = x[: n // 2]
    return (
        x.reshape(n * 2, -1) if m % 2 == 0 else x, x.sum() / n, mx.arange(m) * n, half[:, 1:], x[-2:], x[:, ::-1],
        mx.pad(x, ((1, n), (0, 2))), mx.softmax(x @ x.T, axis=-1), mx.ones((m, n)), mx.tril(x), mx.split(x, [1], 1)[1],
        mx.scan(lambda c, r: (c + r, c.max()), mx.zeros(m), x)[1], mx.concatenate([x, x[:1]], 0),
        mx.broadcast_to(x[0], x.shape),
    )  # fmt: skip


def test_one_trace_for_all_sizes() -> None:
    imported = through(sized, X, shapeless=True)
    for n, m in ((4, 6), (2, 2), (9, 4), (5, 30), (128, 8)):
        x = values(n, m, seed=n)
        assert_same(imported(x), sized(x), f"{n} x {m}")
        assert_same(mx.compile(imported)(x), sized(x), f"{n} x {m} compiled")


def test_sizes_for_which_a_trace_does_not_hold() -> None:
    imported = through(sized, X, shapeless=True)
    for shape in ((4, 5), (1, 6), (4, 0)):  # odd; 0 and 1 are never any size
        with pytest.raises(ValueError, match=r"(?s)Possible functions.*n0 >= 2.*Called with"):
            imported(mx.ones(shape))
    with pytest.raises(ValueError, match="No imported function"):
        imported(mx.ones((4, 6, 2)))


def test_sizes_inside_another_trace_for_all_sizes() -> None:
    """The sizes of an imported function are those of whoever calls it; guards too."""
    imported = through(sized, X, shapeless=True)

    def around(x: array) -> Any:
        return [y.sum() for y in imported(x * 2)]

    compiled = mx.compile(around, shapeless=True)
    for n, m in ((4, 6), (6, 8), (10, 2), (3, 12)):
        x = values(n, m, seed=m)
        assert_same(compiled(x), [y.sum() for y in sized(x * 2)])
    assert compiled.traces == 1
    with pytest.raises(ValueError, match="No imported function"):
        compiled(values(3, 5))
    assert_same(through(around, X, shapeless=True)(values(8, 4)), tuple(y.sum() for y in sized(values(8, 4) * 2)))


def test_gradients_for_all_sizes() -> None:
    fun = mx.grad(lambda x: sum(mx.sin(y).sum() for y in sized(x)))
    imported = through(fun, X, shapeless=True)
    for n, m in ((4, 6), (7, 4), (12, 20)):
        assert_same(imported(values(n, m)), (fun(values(n, m)),))


# ---- transforms of imported functions ----


def test_transforms() -> None:
    imported = through(attention, X, Y)

    def found(x: array, y: array) -> array:
        return imported(x, y)[0]

    for transform in (
        lambda f: mx.grad(lambda x, y: (f(x, y) ** 2).sum(), argnums=(0, 1)),
        lambda f: lambda x, y: mx.jvp(f, [x, y], [y, x]),
        lambda f: mx.grad(lambda x, y: mx.grad(lambda x: (f(x, y) ** 2).sum())(x).sum()),
        lambda f: mx.compile(mx.grad(lambda x, y: f(x, y).sum())),
        lambda f: lambda x, y: mx.vmap(f)(mx.stack([x, x * 2]), mx.stack([y, y + 1])),
        lambda f: lambda x, y: mx.vmap(lambda a: f(a, y).sum())(mx.stack([x, y])),
        lambda f: lambda x, y: mx.scan(lambda c, r: (f(c, r), c.sum()), x, mx.stack([y, y * 0.5, x])),
        lambda f: lambda x, y: mx.checkpoint(f)(x, y),
        lambda f: (
            lambda x, y: mx.grad(lambda x: mx.scan(lambda c, r: (f(c, r), None), x, mx.stack([y, y]))[0].sum())(x)
        ),
    ):
        assert_same(transform(found)(X, Y), transform(attention)(X, Y))


def test_weights_are_there_once() -> None:
    weights = values(512, 512)
    imported = through(lambda x: x @ weights, values(1, 512))
    mx.eval(imported(values(1, 512)))
    before = mx.get_active_memory()
    kept = [imported(values(1, 512)) for _ in range(8)]
    mx.eval(kept)
    assert mx.get_active_memory() - before < weights.nbytes // 2


def test_weights_shared_by_traces_are_written_once(tmp_path: Path) -> None:
    weights = values(256, 256)
    with mx.exporter(tmp_path / "f", lambda x: x @ weights + weights.sum()) as export:
        for n in (1, 2, 3):
            export(values(n, 256))
    assert weights.nbytes < (tmp_path / "f").stat().st_size < 1.2 * weights.nbytes


def test_results_are_the_callers_own() -> None:
    """Writing into a result changes nothing that the next call gives."""
    imported = through(lambda x: (W, x, mx.zeros(3), mx.arange(4), W), X)
    first = imported(X)
    for y in first:
        y[0] = 7
    assert_same(imported(X), (W, X, mx.zeros(3), mx.arange(4), W))


def test_arrays_are_captured_as_they_are() -> None:
    state = {"w": mx.array([1.0, 2.0])}
    imported = through(lambda x: x * state["w"] + mx.sin(state["w"]), mx.ones(2))
    expected = mx.ones(2) * state["w"] + mx.sin(state["w"])
    state["w"] = mx.zeros(2)
    assert_same(imported(mx.ones(2)), (expected,))


def test_captured_arrays_that_are_not_computed_yet() -> None:
    lazy = mx.exp(mx.arange(4)) + 1
    assert_same(through(lambda x: x * lazy, mx.ones(4))(mx.ones(4)), (lazy,))


# ---- elements ----


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda dtype: dtype.name)
def test_all_bits_of_all_dtypes(dtype: Dtype) -> None:
    """Captured arrays, constants and views of them: NaNs with payloads, zeros of both signs, the ends of ranges."""
    found = contract.special_values(dtype)
    if dtype.is_inexact:
        part = dt.real_of(dtype)
        raw = np.array([0x7F, 0xFF, 0x80], np.uint8)
        patterns = np.frombuffer(np.stack([np.roll(np.repeat(raw, 8), k)[:16] for k in range(24)]).tobytes(), part.np)
        found = np.concatenate([found.view(part.np), patterns[: len(patterns) // 2 * 2]]).view(dtype.np)
    captured = contract.place(found)
    reversed_ = contract.lay_out([found], "reversed")[0]
    imported = through(lambda: (captured, reversed_, captured[::2]))
    for got, expected in zip(imported(), (found, found, found[::2]), strict=True):
        assert contract.same_bits(contract.values_of(got), expected, payloads=True)
    for number in found.tolist():
        constant = mx.full((2,), number, dtype)
        (got,) = through(lambda x, c=number: x * 0 + mx.full((2,), c, dtype), mx.zeros(2, dtype))(mx.zeros(2, dtype))
        assert contract.same_bits(contract.values_of(got), contract.values_of(mx.zeros(2, dtype) * 0 + constant))


def test_empty_and_scalar_arrays() -> None:
    empty, scalar = mx.zeros((0, 3)), mx.array(2.5)
    imported = through(lambda x, y: (x + empty, y * scalar, mx.zeros((3, 0)), empty.sum(0)), empty, scalar)
    assert_same(imported(empty, scalar), (empty, scalar * scalar, mx.zeros((3, 0)), empty.sum(0)))


# ---- arguments and results ----


def test_ways_to_call() -> None:
    def minus(a: array, b: array) -> array:
        return a - b

    imported = through(minus, X, Y)
    for found in (imported(X, Y), imported((X, Y)), imported([X, Y]), imported((X, Y), {}), imported(X, b=Y),
                  imported(b=Y, a=X), imported({"b": Y, "a": X})):  # fmt: skip
        assert_same(found, (X - Y,))
    named = through(minus, X, b=Y)
    for found in (named(X, b=Y), named((X,), {"b": Y}), named([X], {"b": Y})):
        assert_same(found, (X - Y,))
    for wrong in (lambda: imported(X), lambda: imported(X, c=Y), lambda: imported(Y, a=X), lambda: named(X, Y),
                  lambda: imported(X, Y, X), lambda: imported(X, 2.0), lambda: imported(X, Y.astype(mx.int32)),
                  lambda: imported(X, Y[:2]), lambda: imported()):  # fmt: skip
        with pytest.raises(ValueError, match=r"\[import_function::call\]"):
            wrong()


def test_messages_list_what_there_is() -> None:
    imported = through(lambda x, *, scale: x * scale, X, scale=mx.array(2))
    with pytest.raises(ValueError) as caught:
        imported(X[0], scale=mx.array(2.0))
    assert str(caught.value).splitlines()[1:] == [
        " 1. Function with 1 positional inputs and 1 keyword inputs:",
        "   1: (4, 6) float32",
        '   "scale": () int32',
        "",
        "Called with 1 positional inputs and 1 keyword inputs:",
        "  1: (6,) float32",
        '  "scale": () float32',
    ]


def test_trees_of_arguments_and_results() -> None:
    def fun(params: Any, x: array, *, more: Any) -> Any:
        first, (second, third) = params["layers"]
        return {"out": [x @ first, (second + third, None)], 3: more["a"]}

    params = {"layers": [W, (X, Y)], "none": None}
    imported = through(fun, params, X, more={"a": Y})
    assert_same(imported(params, X, more={"a": Y}), fun(params, X, more={"a": Y}))
    assert list(imported(params, X, more={"a": Y})) == ["out", 3]
    with pytest.raises(ValueError, match="No imported function"):
        imported({"layers": [W, [X, Y]], "none": None}, X, more={"a": Y})
    alone = through(lambda tree: tree["w"] * 2, ({"w": X},))  # a dict that is the only argument needs a tuple around it
    assert_same(alone({"w": X}), (X * 2,))
    assert_same(alone(({"w": X},)), (X * 2,))


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (lambda x: 3, (X,)),
        (lambda x: None, (X,)),
        (lambda x: [x, 2.0], (X,)),
        (lambda x: {(1, 2): x}, (X,)),
        (lambda x: contract.Case, (X,)),
        (lambda x, y: x, (X, 2.0)),
        (lambda x, y: x, (X, "relu")),
        (lambda x, y: x, (X, {"a": 1})),
    ],
)
def test_what_is_no_array_is_refused(fun: Function, args: Any) -> None:
    with pytest.raises(ValueError, match=r"\[export_function\]"):
        through(fun, *args)


def test_no_arguments_and_no_results() -> None:
    assert_same(through(lambda: mx.arange(3))(), (mx.arange(3),))
    assert through(lambda x: [], X)(X) == ()


def test_traces_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"\[export_function\] an array has no value while"):
        through(lambda x: x if x.sum() > 0 else -x, X)
    with pytest.raises(ZeroDivisionError):
        through(lambda x: x / (1 // 0), X)
    assert_same(through(lambda x: x, X)(X), (X,))  # nothing is left over


def test_state_that_a_function_keeps() -> None:
    kept = {"last": X, "calls": 0}

    def fun(x: array) -> array:
        kept["last"] = x * 2
        return kept["last"]

    with pytest.raises(ValueError, match="keeps arrays that it computes"):
        through(fun, X)
    assert kept["last"] is X
    captured = mx.array([1.0])

    def adds(x: array) -> array:
        nonlocal captured
        captured += x
        return captured

    with pytest.raises(ValueError, match=r"\[export_function\]"):
        through(adds, mx.ones(1))
    assert captured.item() == 1


def test_random_numbers() -> None:
    mx.random.seed(3)
    with pytest.warns(UserWarning, match="global random state"):
        imported = through(lambda x: x + mx.random.normal(x.shape), X)
    expected = X + mx.random.normal(X.shape)  # the state was not advanced
    assert_same(imported(X), (expected,))
    assert_same(imported(X), (expected,))
    keyed = through(lambda x, key: x + mx.random.normal(x.shape, key=key), X, mx.random.key(1))
    assert_same(keyed(X, mx.random.key(7)), (X + mx.random.normal(X.shape, key=mx.random.key(7)),))


# ---- several traces ----


def test_exporter(tmp_path: Path) -> None:
    path = tmp_path / "several"
    with mx.exporter(path, lambda *args, scale=None: sum(args) * (1 if scale is None else scale)) as export:
        export(X)
        export(X, Y)
        export(X[0])
        export(X, scale=mx.array(3.0))
        with pytest.raises(RuntimeError, match=r"(?s)twice with the same signature.*\(4, 6\) float32"):
            export(Y)
    imported = mx.import_function(path)
    assert_same(imported(Y), (Y,))
    assert_same(imported(X, Y), (X + Y,))
    assert_same(imported(Y[1]), (Y[1],))
    assert_same(imported(X, scale=mx.array(2.0)), (X * 2,))
    with pytest.raises(ValueError, match=r"(?s) 4\. Function with 1 positional inputs and 1 keyword inputs"):
        imported(X, Y, X)
    with pytest.raises(RuntimeError, match="closed"):
        export(X, Y, X)


def test_exporter_of_sizes_that_are_told_apart(tmp_path: Path) -> None:
    def fun(x: array) -> array:
        return x * 2 if x.shape[0] % 2 else x.sum(0)

    with mx.exporter(tmp_path / "f", fun, shapeless=True) as export:
        export(X)
        export(X[:3])
        export(X[:1])
        with pytest.raises(RuntimeError, match="twice"):
            export(values(8, 9))
    imported = mx.import_function(tmp_path / "f")
    for n, m in ((4, 6), (3, 6), (1, 6), (9, 2), (10, 5), (1, 3)):
        assert_same(imported(values(n, m)), (fun(values(n, m)),))


def test_an_export_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    mx.export_function(path, lambda x: x, X)

    def fails() -> None:
        with mx.exporter(path, lambda x: x * 2) as export:
            export(X)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    with pytest.raises(ValueError, match="Outputs"):
        mx.export_function(path, lambda x: 3, X)
    assert_same(mx.import_function(path)(X), (X,))
    assert [file.name for file in tmp_path.iterdir()] == ["f"]
    closed = mx.exporter(path, lambda x: x * 3)
    closed(X)
    closed.close()
    closed.close()
    assert_same(mx.import_function(path)(X), (X * 3,))


# ---- files ----


def test_files_of_all_sorts(tmp_path: Path) -> None:
    for file in (str(tmp_path / "a.mlxfn"), tmp_path / "b"):
        mx.export_function(file, attention, X, Y, metadata='{"name": "é"}')
        function, metadata = mx.import_function(file, return_metadata=True)
        assert metadata == '{"name": "é"}'
        assert_same(function(X, Y), (attention(X, Y),))
    with open(tmp_path / "c", "wb") as out:
        mx.export_function(out, attention, X, Y)
    with open(tmp_path / "c", "rb") as found:
        assert_same(mx.import_function(found)(X, Y), (attention(X, Y),))
    assert mx.import_function(tmp_path / "c", True)[1] == ""
    for wrong in (tmp_path / "nothing", tmp_path, "a\0b"):
        with pytest.raises(RuntimeError, match="Failed to open"):
            mx.import_function(wrong)
    for wrong in (tmp_path / "no" / "where", tmp_path):
        with pytest.raises(RuntimeError, match="Failed to open"):
            mx.export_function(wrong, attention, X, Y)
        with pytest.raises(RuntimeError, match="Failed to open"):
            mx.exporter(wrong, attention)
    for refused in (lambda: mx.import_function(3), lambda: mx.export_function(3, attention, X, Y),
                    lambda: mx.exporter(3, attention), lambda: mx.export_function("f", 3), lambda: mx.exporter("f", 3),
                    lambda: mx.export_function("f", attention, X, Y, metadata=3),
                    lambda: mx.import_function(io.StringIO("text"))):  # fmt: skip
        with pytest.raises(TypeError):
            refused()


def test_a_file_is_the_same_each_time() -> None:
    first, second = (hostile.exported(looping, (X, Y), False) for _ in range(2))
    assert first == second


def test_the_header_is_what_the_documentation_says() -> None:
    header, data = hostile.parts(hostile.exported(lambda x: mx.exp(x) * 2 + W[:4], (X,), False))
    assert header.keys() == {"format", "weft", "metadata", "functions", "tensors"}
    (function,) = header["functions"]
    assert function.keys() == {
        "name", "inputs", "names", "outputs", "sizes", "guards", "kinds", "bodies", "graph"
    }  # fmt: skip
    assert function["kinds"][function["graph"]["inputs"][0]] == ["float32", [4, 6]]
    assert [node[0] for node in function["graph"]["nodes"]] == ["exp", "constant", "multiply", "tensor", "slice", "add"]
    (tensor,) = header["tensors"]
    assert (tensor["dtype"], tensor["shape"], tensor["offset"]) == ("float32", [6, 6], 0)
    assert data == np.array(W).tobytes()


def test_threads(tmp_path: Path) -> None:
    """Several threads export, import and call at once."""
    shared = through(sized, X, shapeless=True)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(2, 8):
                x = values(n, 2 + 2 * number, seed=n)
                assert_same(shared(x), sized(x))
                mx.export_function(tmp_path / f"{number}", attention, x, x) if x.shape[1] == 6 else None
            own = through(looping, X, Y)
            assert_same(tree.leaves(own(X, Y)), tree.leaves(looping(X, Y)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- damage ----


@pytest.fixture(scope="module")
def contents() -> bytes:
    return hostile.exported(hostile._mixed, (X, Y), True)


def refused(damaged: bytes) -> str:
    with pytest.raises(RuntimeError, match=r"\[import_function\] this file cannot be read: ") as caught:
        mx.import_function(io.BytesIO(damaged))
    return str(caught.value)


def test_files_that_are_cut_off_or_go_on(contents: bytes) -> None:
    for length in (*range(40), *range(40, len(contents), 97), len(contents) - 1):
        refused(contents[:length])
    assert "bytes, and should have" in refused(contents + b"\0")


@given(st.data())
@settings(max_examples=300)
def test_a_byte_that_changed_is_noticed(data: st.DataObject) -> None:
    contents = hostile.exported(hostile._scanned, (values(5, 6),), False)
    header, tensors = hostile.parts(contents)
    end = contents.index(b"}" + bytes(1)) + 1 if tensors else len(contents)
    at = data.draw(st.integers(0, len(contents) - 1))
    if end <= at < len(contents) - len(tensors):
        return  # between the header and the first tensor, where nobody looks
    used = {i for t in header["tensors"] for i in range(t["offset"], t["offset"] + int(np.prod(t["shape"])) * 4)}
    if at >= len(contents) - len(tensors) and at - (len(contents) - len(tensors)) not in used:
        return
    mask = data.draw(st.integers(1, 255))
    refused(contents[:at] + bytes([contents[at] ^ mask]) + contents[at + 1 :])


def _changed(contents: bytes, change: Callable[[Any], Any]) -> bytes:
    header, data = hostile.parts(contents)
    change(header)
    return hostile.sealed(header, data)


CHANGES: Sequence[tuple[str, Callable[[Any], Any]]] = (
    ("format", lambda h: h.update(format="something else")),
    ("'functions' is missing", lambda h: h.pop("functions")),
    ("lists no tensors", lambda h: h.pop("tensors")),
    ("does not lie in the file", lambda h: h["tensors"][0].update(offset=64)),
    ("does not lie in the file", lambda h: h["tensors"][0].update(shape=[1 << 40])),
    ("length", lambda h: h["tensors"][0].update(shape=[1])),
    ("not described", lambda h: h["tensors"][0].update(dtype="object")),
    ("not described", lambda h: h["tensors"][0].update(shape=[-6, -6])),
    ("said to be", lambda h: h["tensors"][0].update(shape=[36])),
    ("no primitive 'eval'", lambda h: h["functions"][0]["graph"]["nodes"][1].__setitem__(0, "eval")),
    ("is no node", lambda h: h["functions"][0]["graph"]["nodes"][1].__setitem__(2, [10**6])),
    ("is no node", lambda h: h["functions"][0]["graph"]["outputs"].__setitem__(0, -1)),
    ("no parameter", lambda h: h["functions"][0]["graph"]["nodes"][1][3].update(path="/etc/passwd")),
    ("is no dtype", lambda h: h["functions"][0]["kinds"].append(["object", [2]])),
    ("is no container", lambda h: h["functions"][0].update(outputs={"os.system": []})),
    ("can be shown", lambda h: h["functions"][0].update(name="\x1b[2J")),
    ("makes no sense", lambda h: h["functions"][0].clear()),
)


@pytest.mark.parametrize(("message", "change"), CHANGES)
def test_headers_that_make_no_sense(contents: bytes, message: str, change: Callable[[Any], Any]) -> None:
    if message == "format":
        message = "holds no function"
    assert message in refused(_changed(contents, change))


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", "1e5", '{"tensors": NaN}', "[" * 100_000, '{"a":' * 50_000, "9" * 10_000, '"\ud800"']
)
def test_headers_that_are_no_json_of_ours(text: str) -> None:
    raw = text.encode(errors="surrogatepass")
    good = hostile.sealed({}, b"")
    header = hostile.PREFIX.pack(
        hostile.MAGIC, hostile.VERSION, hostile.zlib.crc32(raw), len(raw), hostile.PREFIX.size + len(raw)
    )
    assert good[:8] == header[:8]
    refused(header + raw)


def test_a_later_version_says_so(contents: bytes) -> None:
    later = bytearray(contents)
    later[8] = 2
    assert "version 2 of the format" in refused(bytes(later))


def test_a_loop_reads_no_more_rows_than_a_tape_has() -> None:
    """The derivative of a while loop walks back over what the loop left. A file may say that it goes further."""
    fun = mx.grad(lambda x: mx.while_loop(lambda c: c.sum() < 40, lambda c: mx.sin(c) + c * 1.5 + 1, mx.abs(x)).sum())
    header, data = hostile.parts(hostile.exported(fun, (X[0],), False))
    function = header["functions"][0]
    nodes, first = function["graph"]["nodes"], len(function["graph"]["inputs"])
    readers = [node for node in nodes if node[0] == "loop" and node[3]["counted"]]
    assert readers
    kind = nodes[readers[0][2][0] - first][1]
    assert function["kinds"][kind] == ["int64", []]
    nodes.insert(0, ["constant", kind, [], {"bits": (10**9).to_bytes(8, "little").hex()}])
    for node in nodes[1:]:
        node[2] = [i + (i >= first) for i in node[2]]
    function["graph"]["outputs"] = [i + (i >= first) for i in function["graph"]["outputs"]]
    for node in readers:
        node[2][0] = first
    (found,) = mx.import_function(io.BytesIO(hostile.sealed(header, data)))(X[0])
    assert_same(found, fun(X[0]))


@pytest.mark.parametrize("seed", range(2))
def test_files_that_mean_harm(seed: int) -> None:
    """In a process of its own: what they must not do is bring it down."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", str(seed), "250"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) == 250
    assert outcomes["refused"] > outcomes["ran"] > 0


# ---- callbacks and pictures ----


def test_a_callback_is_told_of_everything() -> None:
    told: list[dict[str, Any]] = []
    mx.export_function(told.append, lambda x, y: mx.sum(x + y * 2, axis=0), X, y=Y)
    assert [message["type"] for message in told[:4]] == ["inputs", "keyword_inputs", "outputs", "constants"]
    assert told[0]["inputs"] == [("A", (4, 6), mx.float32), ("B", (4, 6), mx.float32)]
    assert told[1]["keywords"] == [("y", "B")]
    assert told[2]["outputs"] == [("C", (6,), mx.float32)]
    ((name, two),) = told[3]["constants"]
    assert two.dtype is mx.float32
    assert np.all(np.array(two) == 2)
    steps = told[4:]
    assert [step["name"] for step in steps] == ["Multiply", "Add", "Sum"]
    assert steps[0]["inputs"][1][0] == name
    assert steps[-1]["outputs"] == told[2]["outputs"]
    assert steps[-1]["arguments"] == [[0]]
    with pytest.raises(ValueError, match="metadata"):
        mx.export_function(told.append, lambda x: x, X, metadata="a")
    told.clear()
    mx.export_function(told.append, looping, X, Y)
    loops = [message for message in told if message["type"] == "primitive" and message["name"] == "Loop"]
    assert all(loop["arguments"][0][0]["type"] == "inputs" for loop in loops)
    assert any(len(loop["outputs"]) > 1 for loop in loops)


def test_dot(tmp_path: Path) -> None:
    x, w = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
    y = mx.exp(x) * w + 2
    out = io.StringIO()
    mx.export_to_dot(out, y, y.sum(), x=x, w=w, y=y)
    text = out.getvalue()
    assert text.startswith("digraph {\n")
    assert text.endswith("}\n")
    for part in (
        "exp",
        "multiply",
        "sum(axes=(0,))",
        'label="x\\nf32[2]"',
        'label="w\\nf32[2]"',
        "y = add",
        "rank=sink",
    ):
        assert part in text
    assert text.count(" -> ") == 8
    for path in (str(tmp_path / "a"), tmp_path / "b"):
        mx.export_to_dot(path, [y, {"z": y}])
        assert (tmp_path / Path(path).name).read_text().startswith("digraph")
    mx.export_to_dot(out)
    mx.eval(y)
    out = io.StringIO()
    mx.export_to_dot(out, y)
    assert "exp" not in out.getvalue()  # computed arrays are leaves


def test_dot_of_loops() -> None:
    out = io.StringIO()
    mx.export_to_dot(out, *tree.leaves(nesting(X, Y)), **{'a "name"': X})
    text = out.getvalue()
    assert text.count("subgraph cluster_") == text.count("of loop") + text.count("of switch") == 5
    assert text.count("{") == text.count("}")
    assert 'a \\"name\\"' in text
    assert "style=dashed" in text


def test_dot_refuses() -> None:
    for wrong in (lambda: mx.export_to_dot(io.StringIO(), 3), lambda: mx.export_to_dot(io.StringIO(), X, x=3),
                  lambda: mx.export_to_dot(5, X)):  # fmt: skip
        with pytest.raises(ValueError, match=r"\[export_to_dot\]"):
            wrong()
    with pytest.raises(RuntimeError, match="Failed to open"):
        mx.export_to_dot("/nowhere/at/all", X)


def test_picks_are_checked() -> None:
    bundle = mx.scan(lambda c, x: (c, x), mx.zeros(2), mx.zeros((3, 2)))[0]._node.inputs[0]
    check_operands(GetResult(1), [bundle])
    for wrong in (lambda: check_operands(GetResult(2), [bundle]), lambda: check_operands(GetResult(0), [X._node])):
        with pytest.raises(ValueError, match=r"result|picks"):
            wrong()
