"""Sizes that depend on data: NumPy is the oracle of what is selected, and the plain function that of a compiled one."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
import weft.core as mx
from tests import hostile
from weft import dtypes as dt
from weft import program
from weft.passes.template import Sized
from weft.program import Input
from weft.transforms.cut import CutVariant

Array = mx.array


def drawn(shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return mx.array(rng.integers(0, 4, shape)).astype(dtype)


def as_numpy(x: Array) -> np.ndarray:
    return np.array(x.astype(mx.float32) if x.dtype is mx.bfloat16 else x)


def bits(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [bits(x) for x in value]
    return (value.dtype, value.shape, np.array(value).tobytes()) if isinstance(value, Array) else value


shapes = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)

# ---- what is selected ----


@given(shape=shapes, dtype=st.sampled_from(dt.ALL), seed=seeds)
def test_numpy_selects_the_same(shape: tuple[int, ...], dtype: Any, seed: int) -> None:
    x = drawn(shape, dtype, seed)
    n = as_numpy(x)
    for ours, theirs in ((mx.nonzero(x), n.nonzero()), (mx.where(x), np.where(n))):
        assert [(a.dtype, a.tolist()) for a in ours] == [(mx.int64, a.tolist()) for a in theirs]
    assert mx.flatnonzero(x).tolist() == np.flatnonzero(n).tolist()
    assert mx.argwhere(x).tolist() == np.argwhere(n).tolist()
    assert mx.argwhere(x).shape == np.argwhere(n).shape
    found = x[x != 1]
    assert (found.dtype, as_numpy(found).tolist()) == (dtype, n[n != 1].tolist())


@given(shape=shapes, dtype=st.sampled_from([d for d in dt.ALL if not d.is_complex]), seed=seeds)
def test_numpy_finds_the_same_distinct_elements(shape: tuple[int, ...], dtype: Any, seed: int) -> None:
    x = drawn(shape, dtype, seed)
    found = mx.unique(x, return_index=True, return_inverse=True, return_counts=True)
    wanted = np.unique(as_numpy(x), return_index=True, return_inverse=True, return_counts=True)
    assert [as_numpy(a).reshape(-1).tolist() for a in found] == [np.ravel(a).tolist() for a in wanted]
    assert found[0].dtype is dtype
    assert found[2].shape == shape
    assert mx.unique(x).tolist() == found[0].tolist()


def test_every_nan_is_distinct_and_zeros_are_not() -> None:
    x = mx.array([0.0, float("nan"), -0.0, 1.0, float("nan")])
    values, counts = mx.unique(x, return_counts=True)
    assert np.array(values)[:2].tolist() == [0.0, 1.0]
    assert (values.shape, counts.tolist()) == ((4,), [2, 1, 1, 1])


@given(shape=shapes, size=st.integers(0, 8), seed=seeds)
def test_a_given_size_cuts_off_or_fills_up(shape: tuple[int, ...], size: int, seed: int) -> None:
    x = drawn(shape, mx.int32, seed)
    n = as_numpy(x)
    wanted = np.argwhere(n)[:size]
    wanted = np.concatenate([wanted, np.full((size - len(wanted), len(shape)), -1)])
    assert mx.argwhere(x, size=size, fill_value=-1).tolist() == wanted.tolist()
    fills = tuple(range(-1, -1 - len(shape), -1))
    for axis, ours in enumerate(mx.nonzero(x, size=size, fill_value=fills)):
        count = min(size, np.count_nonzero(n))
        assert ours.tolist() == [*n.nonzero()[axis][:count].tolist(), *[fills[axis]] * (size - count)]


def test_a_given_size_goes_through_vmap_loops_and_compile() -> None:
    x = mx.array([[1, 0, 1], [0, 0, 1]])
    wanted = [[0, 2], [2, 7]]

    def f(row: Array) -> Array:
        return mx.flatnonzero(row, size=2, fill_value=7)

    assert mx.vmap(f)(x).tolist() == wanted
    assert mx.scan(lambda c, row: (c, f(row)), mx.zeros(()), x)[1].tolist() == wanted
    assert mx.compile(mx.vmap(f), shapeless=True)(x).tolist() == wanted


# ---- compiled functions ----


class State:
    def __init__(self, x: Array) -> None:
        self.x = x


def _twice(x: Array, t: Any) -> Any:
    y = x[x > t]
    return y[y < 3] * 2 + 1


def _branches(x: Array, t: Any) -> Any:
    y = x[x > t]
    return y.sum() if y.shape[0] > 3 else y * 2


def _scanned(x: Array, t: Any) -> Any:
    rows = mx.stack([x, x * 2], axis=1)[x > t]
    return mx.scan(lambda c, row: (c + row, c * row), mx.zeros((2,), x.dtype), rows)


def _many(x: Array, t: Any) -> Any:
    y = mx.sort(x)
    m = y > t
    return y[m], (y * 2)[m], mx.cumsum(y)[m] + y[m], mx.nonzero(m), mx.unique(y, return_counts=True)


def _gradient(x: Array, t: Any) -> Any:
    def loss(x: Array) -> Array:
        y = x[x > t]
        return mx.sum(mx.sin(y) * y[::-1])

    return mx.value_and_grad(loss)(x)


def _written(x: Array, t: Any) -> Any:
    y = mx.array(x)
    y[x > t] = mx.arange(10, dtype=x.dtype)
    z = y[y > 1]
    z += 1
    return z, y


FUNCTIONS: dict[str, Callable[[Array, Any], Any]] = {
    "mask": lambda x, t: x[x > t] * 2,
    "rows": lambda x, t: mx.stack([x, -x], axis=1)[x > t],
    "twice": _twice,
    "branches": _branches,
    "scanned": _scanned,
    "many": _many,
    "gradient": _gradient,
    "written": _written,
    "argwhere": lambda x, t: mx.argwhere(mx.stack([x, x + 1]) > t),
    "unique": lambda x, t: mx.unique(mx.floor(x), return_index=True, return_inverse=True, return_counts=True),
    "bincount": lambda x, t: mx.bincount(mx.abs(x).astype(mx.int32)),
    "of a number": lambda x, t: x.sum() + mx.arange(6)[mx.arange(6) > t],
    "only the size": lambda x, t: mx.ones((x[x > t].shape[0] + 1,)),
    "joined": lambda x, t: mx.concatenate([x[x > t], x[x <= t]]) @ mx.concatenate([x[x <= t], x[x > t]]),
    "median": lambda x, t: mx.softmax(x[x > t]),
    "where": lambda x, t: mx.where(x > t)[0] * 3,
    "a value beside": lambda x, t: (mx.exp(x), mx.exp(x)[x > t], x.shape[0]),
}


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    try:
        return bits(f(*args))
    except (ValueError, IndexError) as error:
        return type(error), str(error).partition(" (at")[0]


@pytest.mark.parametrize("shapeless", [False, True])
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_compiled_is_plain(name: str, shapeless: bool) -> None:
    f = FUNCTIONS[name]
    compiled = mx.compile(f, shapeless=shapeless)
    rng = np.random.default_rng(3)
    for n in (5, 9, 0, 1, 9, 12):
        x = mx.array(rng.normal(size=n).astype(np.float32) * 2)
        for t in (0.5, mx.array(-10.0), 10):
            assert outcome(compiled, x, t) == outcome(f, x, t), (n, t)


@settings(max_examples=40)
@given(
    chosen=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    sizes=st.lists(st.tuples(st.integers(0, 7), seeds), min_size=1, max_size=4),
    shapeless=st.booleans(),
)
def test_random_functions(chosen: list[int], sizes: list[tuple[int, int]], shapeless: bool) -> None:
    steps: list[Callable[[Array], Array]] = [
        lambda x: x[x > 0], lambda x: mx.unique(x), lambda x: x * 2 - 1, lambda x: mx.cumsum(x),
        lambda x: mx.concatenate([x, x[x < 1]]), lambda x: x[mx.flatnonzero(x - 1)], lambda x: x[::-1],
        lambda x: x.reshape(-1, 1).T[0] - x.shape[0],
    ]  # fmt: skip

    def f(x: Array) -> Array:
        for number in chosen:
            x = steps[number](x)
        return x

    compiled = mx.compile(f, shapeless=shapeless)
    made = program.trace(f, [Input("x", ("n",), mx.int32)])
    for n, seed in sizes:
        x = mx.array(np.random.default_rng(seed).integers(-3, 4, n).astype(np.int32))
        wanted = outcome(f, x)
        assert outcome(compiled, x) == wanted
        assert outcome(made, x) == wanted
    file = io.BytesIO()
    made.save(file)
    loaded = program.load(io.BytesIO(file.getvalue()))
    for n, seed in sizes:  # those that have come: there are graphs for their shapes
        x = mx.array(np.random.default_rng(seed).integers(-3, 4, n).astype(np.int32))
        assert outcome(loaded, x) == outcome(f, x)


@pytest.mark.parametrize("shapeless", [False, True])
def test_a_size_of_what_was_computed_in_the_trace_already(shapeless: bool) -> None:
    """A value that is no part of the call has been computed for one size, and is there for the next."""

    def f(x: Array) -> Any:
        ramp = mx.zeros((5, 1)).T + mx.arange(5)[None]
        return mx.nonzero(ramp > 1)[1], mx.nonzero((ramp > 1) & (x > 0))[1]

    compiled = mx.compile(f, shapeless=shapeless)
    for x in ([[1.0, -1, 2, 3, 4]], [[1.0, 1, 1, -1, 1]], [[-1.0, 0, 0, 0, 0]]):
        assert bits(compiled(mx.array(x))) == bits(f(mx.array(x)))


def test_one_trace_serves_all_sizes_but_0_and_1() -> None:
    compiled = mx.compile(lambda x: x[x > 0] * 2)
    for count in (5, 0, 3, 1, 7, 2, 0, 8, 4, 1, 6):
        x = np.full(8, -1.0, np.float32)
        x[:count] = 1
        assert compiled(mx.array(x)).tolist() == [2.0] * count
    assert compiled.traces == 3


def test_new_sizes_are_filled_in_and_values_are_computed_once() -> None:
    compiled = mx.compile(lambda x: mx.sort(x)[mx.sort(x) > 0] * 2)
    for count in (3, 4, 5, 6, 7):
        x = np.full(8, -1.0, np.float32)
        x[:count] = 1
        assert compiled(mx.array(x)).tolist() == [2.0] * count
    (variant,) = [v for entry in compiled._variants.values() for v in entry]
    assert isinstance(variant, CutVariant)
    first, last = variant.parts
    recipes = [recipe.executable for recipe in last.recipes.values()]
    assert sum(isinstance(made, Sized) for made in recipes) == 4  # the first is planned for itself
    assert "sort" in str([node.op for node in first._traced.order])
    assert "sort" not in str([node.op for node in last._traced.order])


def test_sizes_that_do_not_depend_on_each_other_are_computed_together() -> None:
    def f(x: Array, y: Array) -> Any:
        return x[x > 0], (x + 1)[x > 0], y[y > 0], x[x > 0][: y[y > 1].shape[0]]

    compiled = mx.compile(f)
    x, y = mx.array([1.0, -1.0, 2.0]), mx.array([1.0, 2.0, 3.0])
    assert bits(compiled(x, y)) == bits(f(x, y))
    (variant,) = [v for entry in compiled._variants.values() for v in entry]
    assert [len(stage) for stage in variant.stages] == [3]
    nested = mx.compile(_twice)
    nested(x, 0.0)
    (variant,) = [v for entry in nested._variants.values() for v in entry]
    assert [len(stage) for stage in variant.stages] == [1, 1]


def test_state_is_changed_as_in_the_plain_function() -> None:
    kept = {"x": mx.array([3.0, -1.0, 2.0]), "n": 0}

    def step(limit: float) -> Array:
        kept["x"] = mx.concatenate([kept["x"][kept["x"] > limit], mx.array([limit])])
        kept["n"] += 1
        return kept["x"].sum()

    compiled, plain = mx.compile(step), []
    start = dict(kept)
    for limit in (0.5, 1.0, 2.5, 2.5, 9.0):
        plain.append((step(limit).item(), kept["x"].tolist(), kept["n"]))
    kept.update(start)
    for limit, wanted in zip((0.5, 1.0, 2.5, 2.5, 9.0), plain, strict=True):
        assert (compiled(limit).item(), kept["x"].tolist(), kept["n"]) == wanted


def test_strided_arguments_and_random_numbers() -> None:
    f = mx.compile(lambda x: x[x > 3] * 2)
    x = mx.arange(12, dtype=mx.float32).reshape(3, 4)
    for given_ in (x, x.T, x[:, ::2], x[::-1]):
        mx.eval(given_)
        assert f(given_).tolist() == (given_[given_ > 3] * 2).tolist()

    def noisy(x: Array) -> Array:
        noise = mx.random.uniform(shape=x.shape)
        return (x + noise)[noise > 0.5] + mx.random.uniform()

    compiled = mx.compile(noisy)
    for seed in range(3):
        mx.random.seed(seed)
        wanted = [bits(noisy(x)), bits(noisy(x))]
        mx.random.seed(seed)
        assert [bits(compiled(x)), bits(compiled(x))] == wanted


def test_gradients_around_and_inside() -> None:
    def f(x: Array) -> Array:
        return mx.sum(mx.square(x[x > 0]))

    x = mx.array([1.0, -2.0, 3.0])
    assert mx.grad(mx.compile(f))(x).tolist() == mx.compile(mx.grad(f))(x).tolist() == [2.0, 0.0, 6.0]
    _, tangent = mx.jvp(lambda x: x[x > 0] * 2, [x], [mx.ones((3,))])
    assert tangent[0].tolist() == [2.0, 2.0]
    both = mx.compile(lambda x: mx.jvp(lambda x: mx.exp(x[x > 0]), [x], [x]))
    assert bits(both(x)) == bits(mx.jvp(lambda x: mx.exp(x[x > 0]), [x], [x]))
    hessian = mx.compile(mx.grad(lambda x: mx.sum(mx.grad(f)(x) * x)))
    assert hessian(x).tolist() == [4.0, 0.0, 12.0]


def test_threads_call_one_function() -> None:
    f = mx.compile(lambda x: mx.cumsum(x[x > 0]))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(20):
            n = np.random.default_rng((seed, i)).integers(-2, 3, 9).astype(np.int32)
            if f(mx.array(n)).tolist() != np.cumsum(n[n > 0]).tolist():
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- programs ----


def test_programs() -> None:
    made = program.trace(
        lambda x, t: {"positive": x[x > t], "where": mx.flatnonzero(x > t), "total": x.sum()},
        [Input("x", ("n",), mx.float32), Input("t", (), mx.float32)],
    )
    rng = np.random.default_rng(0)
    for n in (12, 3, 40, 0):
        for t in (0.0, 9.0, -9.0):
            x = rng.normal(size=n).astype(np.float32)
            out = made(x=mx.array(x), t=mx.array(t))
            assert out["positive"].tolist() == x[x > t].tolist()
            assert out["where"].tolist() == np.flatnonzero(x > t).tolist()
            assert [a.tolist() for a in made.run_numpy([x, np.float32(t).reshape(())])] == [
                a.tolist() for a in out.values()
            ]
    assert made.memory_report(mx.ones((8,)), mx.array(0.0)).results == 8 * 4 + 8 * 8 + 4


def test_programs_that_guesses_do_not_fit() -> None:
    made = program.trace(lambda x: x[x > 0].reshape(2, 3), [Input("x", ("n",), mx.float32)])
    assert made(mx.array([1.0, -1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    with pytest.raises(ValueError, match="reshape"):
        made(mx.array([1.0]))
    updated = program.trace(lambda x: x[x > 0], [Input("x", ("n",), mx.float32)], updates={"x": 0})
    x = mx.array([1.0, -1.0, 2.0])
    assert updated(x) is x
    assert x.tolist() == [1.0, 2.0]
    for f, given_, wanted in ((made, mx.arange(-3, 7.0), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), (updated, x, [1.0, 2.0])):
        file = io.BytesIO()
        f.save(file)
        assert program.load(io.BytesIO(file.getvalue()))(given_).tolist() == wanted


# ---- files ----


def through(f: Callable[..., Any], *args: Any, shapeless: bool) -> Any:
    file = io.BytesIO()
    mx.export_function(file, f, *args, shapeless=shapeless)
    return mx.import_function(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("shapeless", [False, True])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"a value beside"}))
def test_files(name: str, shapeless: bool) -> None:
    """Never another answer. Where the way of the function depends on sizes, there may be none."""

    def f(x: Array, t: Array) -> Any:
        made = FUNCTIONS[name](x, t)
        return made if isinstance(made, tuple) else (made,)

    rng = np.random.default_rng(5)
    found = through(f, mx.array(rng.normal(size=9).astype(np.float32) * 2), mx.array(0.5), shapeless=shapeless)
    answered = 0
    for n in (9, 9, 12, 7) if shapeless else (9, 9, 9, 9):
        x = mx.array(rng.normal(size=n).astype(np.float32) * 2)
        for t in (0.5, -10.0, 10.0, float(np.sort(np.array(x))[-2])):
            wanted, got = outcome(f, x, mx.array(t)), outcome(found, x, mx.array(t))
            assert got == wanted or got[0] is ValueError, (n, t)
            answered += got == wanted
            if name != "branches":
                assert got == wanted or wanted[0] is ValueError, (n, t)
    assert answered > 4


def test_files_hold_graphs_for_0_and_1() -> None:
    found = through(lambda x: mx.unique(x[x > 0]), mx.array([1, -1, 2, 2]), shapeless=True)
    assert "5 traces" in repr(found)
    for values in ([1, -1, 2, 2, 3], [-1, -2, -3], [4, -1], [4, 4]):
        assert found(mx.array(values))[0].tolist() == sorted({v for v in values if v > 0})
    assert mx.compile(lambda x: found(x)[0] + 1)(mx.array([3, -1, 3, 2])).tolist() == [3, 4]
    one = through(lambda x: x[x > 0].max(), mx.array([1, -1, 2, 2]), shapeless=True)
    assert one(mx.array([1, -5, 7]))[0].item() == 7
    with pytest.raises(ValueError, match="none for the sizes that depend on their values"):
        one(mx.array([-1, -2]))  # the maximum of nothing


def _computed(change: Callable[[Any], Any]) -> bytes:
    header, data = hostile.parts(hostile.exported(lambda x: mx.sort(x[x > 0]) * 2, (mx.ones((5,)),), True))
    change(header["functions"][0])
    return hostile.sealed(header, data)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("is no node", lambda f: f["computed"][0].__setitem__(0, 10**6)),
        ("no integer without axes", lambda f: f["computed"][0].__setitem__(0, 0)),
        ("a symbol and a number", lambda f: f["computed"][0].__setitem__(1, 0)),
        ("is no computed size", lambda f: f["computed"][0].__setitem__(1, 5)),
        ("is no computed size", lambda f: f["computed"].clear()),
        ("is no list", lambda f: f.update(computed={})),
        ("used before", lambda f: f["computed"][0].__setitem__(0, _last_integer(f))),
    ],
)
def test_files_that_say_nonsense_of_computed_sizes(message: str, change: Callable[[Any], Any]) -> None:
    with pytest.raises(RuntimeError, match=message):
        mx.import_function(io.BytesIO(_computed(change)))


def _last_integer(function: Any) -> int:
    """A new last node: an integer without axes."""
    kind = len(function["kinds"])
    function["kinds"].append(["int64", []])
    function["graph"]["nodes"].append(["constant", kind, [], {"bits": bytes(8).hex()}])
    return len(function["graph"]["inputs"]) + len(function["graph"]["nodes"]) - 1


# ---- where there are no such sizes ----


@pytest.mark.parametrize(
    ("transform", "f"),
    [
        ("vmap", lambda x: mx.vmap(lambda r: r[r > 0])(x)),
        ("scan", lambda x: mx.scan(lambda c, r: (c, mx.nonzero(r)[0]), mx.zeros(()), x)),
        ("while_loop", lambda x: mx.while_loop(lambda c: c.sum() < 3, lambda c: c + mx.unique(c).shape[0], x)),
        ("cond", lambda x: mx.cond(x.sum() > 0, lambda x: x[x > 0], lambda x: x, x)),
        ("export_function", lambda x: mx.export_function(print, lambda x: x[x > 0], x)),
    ],
)
def test_bodies_and_batches_have_none(transform: str, f: Callable[[Array], Any]) -> None:
    x = mx.ones((2, 3))
    message = rf"\[\w+\] the size of the result depends on data, .* while {transform} traces .*test_data_sizes"
    for g in (f, mx.compile(f)) if transform != "export_function" else (f,):
        with pytest.raises(ValueError, match=message):
            g(x)


@pytest.mark.parametrize(
    "select",
    [
        lambda x: x[::-1],
        lambda x: mx.cumsum(x)[1::2],
        lambda x: mx.sort(x)[::-2],
        lambda x: mx.outer(x, x).T[:, 1],
        lambda x: mx.broadcast_to(mx.exp(x[:1]), x.shape),
    ],
    ids=["reversed", "every second", "backwards", "column", "repeated"],
)
def test_views_are_handed_on_as_what_they_show(select: Callable[[Array], Array]) -> None:
    """What one part of a trace computes and another reads may be a view of it."""

    def f(x: Array) -> Array:
        part = select(x)
        return part[part > 0.1] * 2

    compiled = mx.compile(f, shapeless=True)
    asked = program.trace(lambda x: [f(x)], [Input("x", ("n",), mx.float32)])
    for n in (8, 5, 9, 8):
        x = mx.sin(mx.arange(n) * 1.3 + 0.5)
        assert bits(compiled(x)) == bits(f(x))
        assert bits(asked(x)[0]) == bits(f(x))


def test_a_graph_that_cannot_be_built_for_a_guess() -> None:
    """An index that there may be nothing for, of what a call selects."""

    def f(x: Array) -> list[Array]:
        part = mx.array(x[x > 0])
        part[-1] = part.sum()
        return [part.at[mx.array([0, 0])].add(1.0)]

    made = program.trace(f, [Input("x", ("n",), mx.float32)])
    with pytest.raises(program.DependsOnData):
        made.ready([mx.zeros((1,))._node.kind])
    for values in ([1.5], [-1.0, 2.0, 3.0], [1.0, 1.0, -1.0, 4.0]):
        x = mx.array(values)
        assert bits(made(x)) == bits(f(x))


def test_what_a_body_captures_has_a_size() -> None:
    def f(x: Array) -> Any:
        return mx.scan(lambda c, r: (c + x[x > 0].sum() * r, r), mx.zeros(()), x)

    x = mx.array([1.0, -1.0, 3.0])
    assert bits(mx.compile(f)(x)) == bits(f(x))


def test_errors() -> None:
    for call, problem in (
        (lambda: mx.nonzero(mx.ones((2,)), size=-1), "size cannot be negative"),
        (lambda: mx.nonzero(mx.ones((2,)), size=1, fill_value=(1, 2)), "fill_value is an integer, or one for each"),
        (lambda: mx.nonzero(mx.array(1)), "0-d array has no axes"),
    ):
        with pytest.raises(ValueError, match=problem):
            call()
    with pytest.raises(TypeError, match="give both x and y"):
        mx.where(mx.ones((2,)), mx.ones((2,)))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="size must be an integer"):
        mx.flatnonzero(mx.ones((2,)), size=1.5)  # type: ignore[arg-type]


def test_explain_and_check_show_the_sizes_of_the_call() -> None:
    f = mx.compile(lambda x: x[x > 0] * 2)
    x = mx.array([1.0, -1.0, 2.0])
    assert "gather" in str(weft.explain(f, x, measure=False))
    assert f(x).tolist() == [2.0, 4.0]
