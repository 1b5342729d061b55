"""Loops and branches as operations: what each argument means, every transform, the edges, and what they cost. What is
refused, threads and signals are in test_looping_errors.py, random bodies in test_looping_generated.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.contract import closed
from tests.gradients import check_derivatives, double, reference
from tests.loops import Native, Particle, Plain, assert_close, assert_same, random, running
from weft import tree
from weft.array import array
from weft.codegen.launch import Repeat
from weft.graph.node import reachable
from weft.passes import families, pipeline
from weft.targets import CPU
from weft.targets.cpu import moves
from weft.targets.cpu.forms import base

MIB = 1 << 20


@pytest.fixture(params=["eager", "compiled", "reference"])
def way(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """How a function is called."""
    if request.param == "reference":
        with reference():
            yield lambda f, *args: f(*args)
    else:
        yield (lambda f, *args: mx.compile(f)(*args)) if request.param == "compiled" else (lambda f, *args: f(*args))


# ---- how many steps ----


def test_rows_forwards_and_backwards(way: Any) -> None:
    xs = random(5, 3)
    for back in (False, True):
        found = way(lambda xs, back=back: mx.scan(running, mx.ones((3,)), xs, reverse=back), xs)
        assert_same(found, Plain.scan(running, mx.ones((3,)), xs, reverse=back))


def test_views_of_rows(way: Any) -> None:
    """Rows that are reversed, transposed, repeated or every other one are read where they lie."""
    xs = random(4, 6)
    for view in (lambda x: x[::-1], lambda x: x.T, lambda x: x[:, ::2], lambda x: mx.broadcast_to(x[0], (5, 6))):
        expected = Plain.scan(running, mx.zeros(view(xs).shape[1:]), view(xs))
        found = way(lambda xs, view=view: mx.scan(running, mx.zeros(view(xs).shape[1:]), view(xs)), xs)
        assert_same(found, expected)


def test_no_steps(way: Any) -> None:
    carry, ys = way(lambda xs: mx.scan(running, mx.ones((3,)), xs), mx.zeros((0, 3)))
    assert_same(carry, mx.ones((3,)))
    assert (ys.shape, ys.dtype) == ((0, 3), mx.float32)
    assert way(lambda x: mx.scan(lambda c, _: (c + 1, c), x, length=0), mx.array(7))[0].item() == 7
    assert way(lambda x: mx.fori_loop(5, 2, lambda i, c: c + i, x), mx.array(7)).item() == 7
    assert way(lambda x: mx.while_loop(lambda c: c < 0, lambda c: c + 1, x), mx.array(7)).item() == 7
    assert mx.map(lambda x: x * 2, mx.zeros((0, 2))).shape == (0, 2)


def test_length_alone(way: Any) -> None:
    carry, ys = way(lambda c: mx.scan(lambda c, x: (c * 2, (c, x)), c, length=4), mx.array(1))
    assert carry.item() == 16
    assert ys[0].tolist() == [1, 2, 4, 8]
    assert ys[1] is None


@pytest.mark.parametrize("back", [False, True])
def test_more_rows_than_steps(back: bool, way: Any) -> None:
    """The first rows count, in both directions."""
    xs = random(7, 2)
    found = way(lambda xs: mx.scan(running, mx.ones((2,)), xs, length=3, reverse=back), xs)
    assert_same(found, Plain.scan(running, mx.ones((2,)), xs[:3], reverse=back))


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("length", [-1, 0, 1, 3, 5, 9])
def test_a_length_that_is_known_late(length: int, back: bool, way: Any) -> None:
    """As the number itself; no more steps than rows, and rows that were not reached are zeros."""
    xs, steps = random(5, 2), min(max(length, 0), 5)
    carry, ys = way(lambda xs, n: mx.scan(running, mx.ones((2,)), xs, length=n, reverse=back), xs, mx.array(length))
    expected, rows = Plain.scan(running, mx.ones((2,)), xs[:steps], reverse=back)
    assert_same(carry, expected)
    assert_same(ys[steps:], mx.zeros((5 - steps, 2)))
    if steps:
        assert_same(ys[:steps], rows)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("limit", [0.0, 3.0, 1e9])
@pytest.mark.parametrize("length", [None, 4, "late"])
def test_until_keeps_the_step_that_stops(length: Any, limit: float, back: bool, way: Any) -> None:
    xs, most = mx.arange(1.0, 7.0), 6 if length is None else 4

    def run(xs: array, n: array) -> Any:
        steps = n if length == "late" else length
        return mx.scan(running, mx.array(1.0), xs, steps, back, until=lambda c, y: c + y > limit)

    carry, ys, count = way(run, xs, mx.array(4))
    expected, rows, steps = Plain.scan(
        running, mx.array(1.0), xs[:most], reverse=back, until=lambda c, y: c + y > limit
    )
    assert count.item() == steps
    assert count.dtype is mx.int32
    assert_same(carry, expected)
    size = most if length == 4 else 6
    first = most - steps if back else 0
    assert ys.shape == (size,)
    assert_same(ys[first : first + steps], rows)
    assert not np.array(ys)[:first].any()
    assert not np.array(ys)[first + steps :].any()


def test_until_without_a_step() -> None:
    carry, ys, count = mx.scan(running, mx.array(1.0), mx.zeros((0,)), until=lambda c, y: c > 0)
    assert (carry.item(), ys.shape, count.item()) == (1.0, (0,), 0)


@pytest.mark.parametrize("bounds", [(0, 4), (3, 7), (-2, 2), (2**40, 2**40 + 3)])
def test_counting(bounds: tuple[int, int], way: Any) -> None:
    """Bounds that are numbers, NumPy's numbers and arrays."""
    start = mx.array(0, dtype=mx.int64)
    expected = sum(range(*bounds))
    body = lambda i, c: c + i.astype(mx.int64)  # noqa: E731
    assert way(lambda c: mx.fori_loop(*bounds, body, c), start).item() == expected
    numbers = [np.int64(b) for b in bounds]
    assert way(lambda c: mx.fori_loop(*numbers, body, c), start).item() == expected
    late = [mx.array(b, dtype=mx.int64) for b in bounds]
    assert way(lambda c, low, high: mx.fori_loop(low, high, body, c), start, *late).item() == expected
    assert way(lambda c, high: mx.fori_loop(bounds[0], high, body, c), start, late[1]).item() == expected


def test_small_and_unsigned_bounds() -> None:
    total = mx.fori_loop(mx.array(250, dtype=mx.uint8), 260, lambda i, c: c + i, mx.array(0))
    assert (total.item(), total.dtype) == (sum(range(250, 260)), mx.int32)
    assert mx.fori_loop(mx.array(5), mx.array(2), lambda i, c: c + i, mx.array(1)).item() == 1


@pytest.mark.parametrize("unroll", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("back", [False, True])
def test_unrolled_and_in_chunks(unroll: int, back: bool) -> None:
    xs = {"a": random(7, 3), "b": mx.arange(7)}

    def f(c: array, x: dict[str, array]) -> Any:
        return c * 0.5 + x["a"] * x["b"], (c.sum(), x["b"] + 1, None)

    expected = Plain.scan(f, mx.ones((3,)), xs, reverse=back)
    assert_same(mx.scan(f, mx.ones((3,)), xs, reverse=back, unroll=unroll), expected)
    assert_same(mx.scan(f, mx.ones((3,)), xs, reverse=back, checkpoint_every=unroll), expected)
    assert_same(mx.scan(f, mx.ones((3,)), xs, reverse=back, checkpoint_every=unroll, unroll=2), expected)


def test_unroll_is_only_a_hint() -> None:
    """Where the number of steps is not known it changes nothing."""
    found = mx.scan(running, mx.array(1.0), mx.arange(5.0), length=mx.array(3), unroll=2)
    assert_same(found, mx.scan(running, mx.array(1.0), mx.arange(5.0), length=mx.array(3)))
    f = mx.compile(lambda xs: mx.scan(running, mx.array(1.0), xs, unroll=2), shapeless=True)
    for n in (3, 6):
        assert_same(f(mx.arange(float(n))), Plain.scan(running, mx.array(1.0), mx.arange(float(n))))


# ---- trees ----


def test_trees_of_every_kind(way: Any) -> None:
    def f(p: Particle, x: Any) -> Any:
        moved = Particle(p.place + x["by"][0], {"speed": p.more["speed"] * 2, "none": None, "flag": ~p.more["flag"]})
        return moved, Particle([p.place], {"was": (p.more["flag"], x["by"][1])})

    start = Particle(mx.zeros((2,)), {"speed": mx.array([1, 2]), "none": None, "flag": mx.array(True)})
    xs = {"by": (random(4, 2), mx.arange(4))}
    assert_same(way(lambda s, x: mx.scan(f, s, x), start, xs), Plain.scan(f, start, xs))


def test_nothing_carried_nothing_returned(way: Any) -> None:
    assert way(lambda: mx.scan(lambda c, x: (None, None), None, None, length=3)) == (None, None)
    assert way(lambda: mx.scan(lambda c, x: ((), {}), (), [], length=3)) == ((), {})
    assert way(lambda xs: mx.map(lambda x: (), xs), mx.arange(3)) == ()
    carry, ys = way(lambda xs: mx.scan(lambda c, x: ((), x * 2), (), xs), mx.arange(3))
    assert (carry, ys.tolist()) == ((), [0, 2, 4])


def test_one_value_in_several_places() -> None:
    """The same array twice among carries, rows, results, and captured beside."""
    x = random(4, 3)

    def f(c: Any, row: Any) -> Any:
        _, b = c
        return (b, b), (row[0] + row[1] + x.sum(), b, b)

    found = mx.scan(f, (x[0], x[0]), (x, x))
    assert_same(found, Plain.scan(f, (x[0], x[0]), (x, x)))


def test_carries_that_change_places(way: Any) -> None:
    """Swaps, rotations and a delay line: values from before the step, whichever is written first."""

    def f(c: Any, x: array) -> Any:
        a, b, d, counts = c
        return (b, d, a * 0.5 + x, counts[::-1]), (a, counts)

    start = (random(3), random(3, seed=1), random(3, seed=2), mx.arange(4))
    xs = random(6, 3)
    assert_same(way(lambda s, x: mx.scan(f, s, x), start, xs), Plain.scan(f, start, xs))


def test_past_values(way: Any) -> None:
    """Taps: a step sees the carry of one, two and three steps ago."""

    def f(past: Any, x: array) -> Any:
        new = 0.5 * past[0] - 0.25 * past[1] + 0.125 * past[2] + x
        return (new, *past[:-1]), new

    start = tuple(random(2, seed=i) for i in range(3))
    assert_same(way(lambda s, x: mx.scan(f, s, x), start, random(9, 2)), Plain.scan(f, start, random(9, 2)))


@pytest.mark.parametrize(
    ("init", "dtype"), [(0, mx.float32), (1.5, mx.float32), (True, mx.float32), (2j, mx.complex64)]
)
def test_numbers_take_the_dtype_of_the_body(init: Any, dtype: Any) -> None:
    for options in ({}, {"unroll": 2}, {"checkpoint_every": 2}):
        carry, ys = mx.scan(running, init, mx.arange(3.0), **options)
        assert carry.dtype is dtype
        assert carry.item() == init + 3
        assert ys.dtype is dtype
    assert mx.while_loop(lambda s: mx.abs(s) < 5, lambda s: s + mx.array(1.0), init).dtype is dtype
    assert mx.fori_loop(0, 2, lambda i, s: s + mx.array(1.0), init).dtype is dtype


def test_numbers_follow_each_other() -> None:
    """One number takes the dtype of the next, which takes that of the rows."""
    (a, b, c), _ = mx.scan(lambda s, x: ((s[1], s[2], s[2] + x), None), (0, 1, 2), mx.arange(4.0))
    assert [x.dtype for x in (a, b, c)] == [mx.float32] * 3
    assert [x.item() for x in (a, b, c)] == [3.0, 5.0, 8.0]


@pytest.mark.parametrize("dtype", [mx.int8, mx.uint16, mx.int32, mx.float16, mx.bfloat16, mx.float32, mx.float64])
@pytest.mark.parametrize("first", [0, 0.5, 1j], ids=str)
def test_numbers_in_the_carry_have_the_dtype_of_the_plain_loop(first: Any, dtype: Any) -> None:
    rows = mx.array([1, 2, 3, 4]).astype(dtype)
    total: Any = first
    for i in range(4):
        total = total + rows[i]
    last, _ = mx.scan(lambda c, x: (c + x, c), first, rows)
    assert last.dtype is total.dtype
    assert mx.array_equal(last, total).item()


# ---- branches ----


def test_cond_and_switch(way: Any) -> None:
    x = random(4)
    for flag in (True, False):
        found = way(lambda p, x: mx.cond(p, lambda a: {"v": a * 2}, lambda a: {"v": a - 1}, x), mx.array(flag), x)
        assert_same(found, {"v": x * 2 if flag else x - 1})
    branches = [lambda a: a, lambda a: -a, lambda a: a * a]
    for dtype in (mx.int32, mx.int64, mx.int8):
        for i in range(-2, 5):
            found = way(lambda i, x: mx.switch(i, branches, x), mx.array(i, dtype=dtype), x)
            assert_same(found, branches[min(max(i, 0), 2)](x))
    assert mx.switch(mx.array(2**63 + 5, dtype=mx.uint64), branches, mx.array(3)).item() == 9
    assert mx.switch(mx.array(5), [lambda: 4]).item() == 4


def test_branches_that_only_pass_on(way: Any) -> None:
    x, y = random(3), random(3, seed=1)
    for flag in (True, False):
        found = way(lambda p, x, y: mx.cond(p, lambda a, b: (a, b), lambda a, b: (b, a), x, y), mx.array(flag), x, y)
        assert_same(found, (x, y) if flag else (y, x))


def test_a_known_predicate_is_a_python_branch() -> None:
    assert mx.cond(True, lambda: "anything", lambda: 1 / 0) == "anything"


def test_numbers_take_the_dtype_of_another_branch() -> None:
    found = mx.cond(mx.array(False), lambda x: x, lambda x: 0, mx.array(1.5))
    assert (found.item(), found.dtype) == (0.0, mx.float32)


def test_only_the_branch_that_is_taken_runs() -> None:
    """The other one would not end."""

    def endless(x: array) -> array:
        return mx.while_loop(lambda s: s == s, lambda s: s * 1.0, x)

    assert mx.cond(mx.array(False), endless, lambda x: x + 1, mx.array(1.0)).item() == 2.0


# ---- several at once ----


def test_loops_in_loops(way: Any) -> None:
    """Newton's method for each row, as many steps as it takes, in a loop over the rows; only positive ones."""

    def root(ways: Any, x: array) -> array:
        def better(s: Any) -> Any:
            return 0.5 * (s[0] + x / s[0]), s[0], s[2] + 1

        return ways.while_loop(lambda s: (mx.abs(s[0] - s[1]) > 1e-6) & (s[2] < 50), better, (x, x * 0, mx.array(0)))

    def run(ways: Any, xs: array) -> Any:
        def f(count: array, x: array) -> Any:
            guess, _, steps = ways.cond(x > 0, lambda x: root(ways, x), lambda x: (x * 0, x, mx.array(0)), x)
            return count + steps, guess

        return ways.scan(f, mx.array(0), xs)

    xs = mx.array([4.0, -1.0, 2.0, 100.0, 0.25])
    count, roots = way(lambda xs: run(Native, xs), xs)
    assert_same((count, roots), run(Plain, xs))
    np.testing.assert_allclose(np.array(roots), [2.0, 0.0, 2**0.5, 10.0, 0.5], rtol=1e-6)


def test_map_is_a_loop(way: Any) -> None:
    xs = (random(5, 3), mx.arange(5))
    f = lambda row: {"a": row[0].sum() * row[1], "b": row[0][::-1]}  # noqa: E731
    found = way(lambda xs: mx.map(f, xs), xs)
    assert_same(found, Plain.scan(lambda c, x: ((), f(x)), (), xs)[1])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 13])
def test_associative_scan(n: int, back: bool, axis: int) -> None:
    shape = [2, 3]
    shape[axis] = n
    x = mx.arange(6 * n)[: shape[0] * shape[1]].reshape(shape) % 7
    assert_same(mx.associative_scan(mx.add, x, axis, back), mx.cumsum(x, axis, reverse=back))
    pairs = (x, x + 1)
    found = mx.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), pairs, axis, back)
    order = np.flip if back else (lambda x, axis: x)
    a, b = (np.moveaxis(order(np.array(p), axis), axis, 0) for p in pairs)
    total: tuple[Any, Any] = (1, 0)
    rows = []
    for p, q in zip(a, b, strict=True):
        total = (total[0] * p, total[1] * p + q)
        rows.append(total)
    for k in range(2):
        got = np.moveaxis(order(np.array(found[k]), axis), axis, 0)
        assert len(got) == n
        for row, expected in zip(got, rows, strict=True):
            np.testing.assert_array_equal(row, expected[k])


# ---- random numbers ----


def test_draws_are_those_of_the_plain_loop(way: Any) -> None:
    def noisy(c: array, x: array) -> Any:
        return c + mx.random.normal() * x, mx.random.uniform(shape=(2,))

    def run(ways: Any, xs: array) -> Any:
        walked = ways.scan(noisy, mx.array(0.0), xs)
        waited = ways.while_loop(lambda s: mx.random.uniform() < 0.8, lambda s: s + mx.random.uniform(), mx.array(0.0))
        chosen = ways.cond(waited > 0.5, lambda: mx.random.uniform(), lambda: mx.array(1.0))
        other = ways.cond(waited > 1e9, lambda: mx.random.uniform(), lambda: mx.array(1.0))
        counted = ways.fori_loop(0, 3, lambda i, s: s * mx.random.uniform(), mx.array(1.0))
        return walked, waited, chosen, other, counted, mx.random.uniform()

    xs = random(4)
    mx.random.seed(3)
    expected = run(Plain, xs)
    state = mx.array(mx.random.state[0])
    mx.random.seed(3)
    assert_same(way(lambda xs: run(Native, xs), xs), expected)
    assert_same(mx.random.state[0], state)


def test_keys_are_carried(way: Any) -> None:
    def f(key: array, x: Any) -> Any:
        key, now = mx.random.split(key)
        return key, mx.random.normal((3,), key=now)

    key = mx.random.key(7)
    assert_same(way(lambda k: mx.scan(f, k, length=5), key), Plain.scan(f, key, length=5))


def test_random_numbers_under_transforms() -> None:
    """The state goes on as it does without them."""

    def walk(x: array) -> array:
        return mx.scan(lambda c, _: (c * mx.random.normal(), None), x, length=3)[0]

    mx.random.seed(5)
    factor, after = walk(mx.array(1.0)), mx.random.uniform()
    for transformed in (mx.grad(walk), mx.compile(mx.grad(walk)), lambda x: mx.jvp(walk, [x], [x])[1][0]):
        mx.random.seed(5)
        assert_same(transformed(mx.array(1.0)), factor)
        assert_same(mx.random.uniform(), after)
    mx.random.seed(5)
    assert_same(mx.vmap(walk)(mx.ones((4,))), mx.broadcast_to(factor, (4,)))
    assert_same(mx.random.uniform(), after)


def test_lanes_cannot_share_a_state_that_each_moves_on() -> None:
    def wait(x: array) -> array:
        return mx.while_loop(lambda s: s < 2, lambda s: s + mx.random.uniform(), x)

    mx.random.seed(5)
    before = mx.array(mx.random.state[0])
    with pytest.raises(ValueError, match=r"\[vmap\] .*global random state.* keys"):
        mx.vmap(wait)(mx.arange(3.0))
    assert_same(mx.random.state[0], before)


# ---- gradients ----


def filtered(ways: Any, **options: Any) -> Callable[..., array]:
    """A loop with everything in it: carries of several kinds, rows, captured arrays, a product, a reversed sequence."""

    def loss(start: array, xs: array, w: array) -> array:
        def f(c: Any, x: array) -> Any:
            h, n, flag = c
            h = mx.tanh(h @ w + x) * mx.where(flag, 1.0, 0.5).astype(h.dtype)
            return (h, n + 1, ~flag), (h * h).sum() / (n + 1).astype(h.dtype)

        (h, _, _), ys = ways.scan(f, (start, mx.array(0), mx.array(True)), xs[::-1], **options)
        return mx.sum(mx.sin(h)) + mx.sum(ys * mx.arange(ys.size, dtype=ys.dtype))

    return loss


def operands64() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(2, 3)), rng.normal(size=(5, 2, 3)), rng.normal(size=(3, 3)) * 0.5


OPTIONS = ({}, {"reverse": True}, {"checkpoint_every": 2}, {"unroll": 2}, {"length": 4})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_of_everything(options: dict[str, Any]) -> None:
    check_derivatives(filtered(Native, **options), *operands64())
    given = [double(x) for x in operands64()]
    plain = {k: v for k, v in options.items() if k in ("reverse", "length")}
    for subset in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2, 3)):
        found = mx.grad(filtered(Native, **options), argnums=subset)(*given)
        assert_close(found, mx.grad(filtered(Plain, **plain), argnums=subset)(*given))


def test_gradients_compiled_are_eager() -> None:
    given = [double(x) for x in operands64()]
    for options in OPTIONS:
        gradient = mx.value_and_grad(filtered(Native, **options), argnums=(0, 1, 2))
        assert_same(mx.compile(gradient)(*given), gradient(*given))


def test_three_derivatives() -> None:
    """Each by grad of the one before, along a direction; and by jvp of it."""
    given = [double(x) for x in operands64()]
    along = [mx.cos(x) for x in given]

    def slope(f: Callable[..., array]) -> Callable[..., array]:
        def g(*xs: array) -> array:
            parts = [mx.sum(d * t) for d, t in zip(mx.grad(f, argnums=(0, 1, 2))(*xs), along, strict=True)]
            return parts[0] + parts[1] + parts[2]

        return g

    native, plain = filtered(Native), filtered(Plain)
    for _ in range(3):
        _, (tangent,) = mx.jvp(native, given, along)
        native, plain = slope(native), slope(plain)
        assert_close(native(*given), plain(*given), 1e-8)
        assert_close(tangent, native(*given), 1e-8)


def test_hessian_by_forward_over_reverse() -> None:
    def energy(x: array) -> array:
        return mx.scan(lambda c, w: (mx.sin(c * w) + x.sum(), c), x[0], x)[0]

    x = double(np.linspace(0.1, 0.9, 4))
    gradient = mx.grad(energy)
    forward = [mx.jvp(gradient, [x], [double(row)])[1][0] for row in np.eye(4)]
    back = [mx.grad(lambda x, i=i: gradient(x)[i])(x) for i in range(4)]
    assert_close(mx.stack(forward), mx.stack(back))


def test_gradients_through_branches() -> None:
    def f(p: array, x: array, y: array) -> array:
        inner = mx.cond(p, lambda a: mx.sin(a) * y, lambda a: a * a, x)
        return mx.sum(mx.switch(p.astype(mx.int32) + 1, [lambda a: a, lambda a: a * y, lambda a: mx.exp(a) + x], inner))

    x, y = (np.random.default_rng(i).normal(size=3) for i in range(2))
    for flag in (True, False):
        check_derivatives(lambda x, y, flag=flag: f(mx.array(flag), x, y), x, y)


def test_gradient_of_a_loop_that_stops() -> None:
    """Through the steps that were made."""

    def f(x: array) -> array:
        _, ys, count = mx.scan(lambda c, _: (c * x, c), x, length=9, until=lambda c, y: c > 20)
        return mx.sum(ys) * count.astype(x.dtype)

    check_derivatives(f, np.array(2.3))


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("length", [0, 2, 5, 7])
def test_gradient_with_a_length_that_is_known_late(length: int, back: bool) -> None:
    steps = min(length, 5)

    def loss(ways: Any, n: Any) -> Callable[..., array]:
        def f(start: array, xs: array) -> array:
            rows = xs if isinstance(n, array) else xs[:n]
            c, ys = ways.scan(lambda c, x: (mx.sin(c * x) + x, c * x), start, rows, n, back)
            return mx.sum(c * c) + (mx.sum(ys[:steps] ** 3) if steps else 0)

        return f

    start, xs = np.array([0.4, -0.3]), np.random.default_rng(1).normal(size=(5, 2))
    check_derivatives(loss(Native, mx.array(length)), start, xs)
    found = mx.grad(loss(Native, mx.array(length)), argnums=(0, 1))(double(start), double(xs))
    assert_close(found, mx.grad(loss(Plain, steps), argnums=(0, 1))(double(start), double(xs)))


def newton(ways: Any, a: array, most: Any = 60) -> array:
    """The square root, by as many steps as it takes."""

    def better(s: Any) -> Any:
        return (s[0] + a / s[0]) / 2, s[1] + 1

    return ways.while_loop(lambda s: (mx.abs(s[0] * s[0] - a) > 1e-13) & (s[1] < most), better, (a, mx.array(0)))[0]


def test_gradient_of_a_while_loop() -> None:
    """Through the steps that were made, however many: twice, by jvp, compiled with one trace, and mapped."""
    a = double([2.0, 9.0, 1.5, 400.0])
    root = lambda a: newton(Native, a)  # noqa: E731
    for k in range(4):
        check_derivatives(root, np.array(a)[k])
        assert mx.grad(root)(a[k]).item() == pytest.approx(0.5 / a[k].item() ** 0.5, rel=1e-9)
        assert mx.grad(mx.grad(root))(a[k]).item() == pytest.approx(-0.25 / a[k].item() ** 1.5, rel=1e-7)
    compiled = mx.compile(mx.grad(root))
    assert_same(mx.stack([compiled(a[k]) for k in range(4)]), mx.stack([mx.grad(root)(a[k]) for k in range(4)]))
    assert compiled.traces == 1
    assert_close(mx.vmap(mx.grad(root))(a), 0.5 / mx.sqrt(a))
    assert_close(mx.grad(lambda a: mx.sum(mx.vmap(root)(a)))(a), 0.5 / mx.sqrt(a))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 40])
def test_gradient_of_a_loop_with_late_bounds(count: int) -> None:
    """What the steps keep is as long as it turns out to be."""

    def loss(ways: Any, upper: Any) -> Callable[..., array]:
        return lambda x, w: mx.sum(ways.fori_loop(0, upper, lambda i, c: mx.sin(c * w) + c, x))

    given = double([0.3, -0.4]), double([0.7, 1.1])
    found = mx.grad(loss(Native, mx.array(count)), argnums=(0, 1))(*given)
    assert_close(found, mx.grad(loss(Plain, count), argnums=(0, 1))(*given))


def test_gradient_of_a_while_loop_inside_a_scan() -> None:
    """Each step of the outer loop has a number of inner steps of its own."""

    def loss(ways: Any) -> Callable[[array], array]:
        def f(xs: array) -> array:
            def step(c: array, x: array) -> Any:
                inner = newton(ways, x * x + c * c)
                return inner * 0.5, inner

            c, ys = ways.scan(step, xs[0], xs)
            return c + mx.sum(ys * ys * ys)

        return f

    xs = double([0.5, 2.0, 30.0, 1.0])
    assert_close(mx.grad(loss(Native))(xs), mx.grad(loss(Plain))(xs), 1e-8)
    slope = lambda ways: lambda xs: mx.sum(mx.grad(loss(ways))(xs) * mx.cos(xs))  # noqa: E731
    assert_close(mx.grad(slope(Native))(xs), mx.grad(slope(Plain))(xs), 1e-7)
    check_derivatives(loss(Native), np.array(xs))


def test_nothing_flows_through_integers() -> None:
    def f(x: array) -> array:
        (c, n), _ = mx.scan(lambda s, w: ((s[0] * w, s[1] + (s[0] > 0.5)), None), (x, mx.array(0)), double([2.0, 3.0]))
        return c + n.astype(mx.float64)

    assert mx.grad(f)(double(0.7)).item() == 6.0


def test_checkpoints_take_less_memory() -> None:
    """The values of a step are computed again: √n chunks of √n steps keep 2√n carries in place of n."""
    w, start = random(64, 64) * 0.05, random(256, 64)
    steps, every = 256, 16

    def loss(checkpoint_every: int | None) -> Callable[[array], array]:
        def f(w: array) -> array:
            step = lambda c, _: (mx.tanh(mx.sin(c @ w) @ w), None)  # noqa: E731
            return mx.sum(mx.scan(step, start, length=steps, checkpoint_every=checkpoint_every)[0])

        return f

    def measured(checkpoint_every: int | None) -> tuple[int, array]:
        gradient = mx.grad(loss(checkpoint_every))(w)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(gradient)
        return mx.get_peak_memory() - before, gradient

    mx.eval(w, start)
    (kept, expected), (less, found) = measured(None), measured(every)
    assert_close(found, expected, 1e-4)
    assert kept > steps * start.nbytes
    assert less < kept / 4


# ---- batches ----


def lanes_of(f: Callable[..., Any], axes: Any, *values: array) -> Any:
    """f for each lane alone, stacked."""
    size = next(x.shape[a] for x, a in zip(values, axes, strict=True) if a is not None)
    each = [f(*(x if a is None else mx.take(x, k, a) for x, a in zip(values, axes, strict=True))) for k in range(size)]
    return tree.map(lambda *rows: mx.stack(list(rows)), *each)


def every_axis(*values: array) -> Iterator[tuple[int | None, ...]]:
    """All ways to map at least one of the values, along its first or last axis."""
    choices = [(None, 0, x.ndim - 1) if x.ndim > 1 else (None, 0) for x in values]
    return (axes for axes in itertools.product(*choices) if any(a is not None for a in axes))


def fit(value: array, axis: int | None, size: int) -> array:
    """A value with a batch axis put in."""
    if axis is None:
        return value
    return mx.stack([value * (k + 1) for k in range(size)], axis=axis)


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}, {"checkpoint_every": 2}], ids=str)
def test_vmap_of_scan(options: dict[str, Any]) -> None:
    start, xs, w = random(3), random(4, 3), random(3, 3)

    def run(start: array, xs: array, w: array) -> Any:
        def f(c: Any, x: array) -> Any:
            a, n = c
            return (a * 0.5 + w @ x, n + 1), (a.max(), x[::-1], n)

        return mx.scan(f, (start, mx.array(0)), xs, **options)

    for axes in itertools.product((None, 0, 1), (None, 0, 2), (None, 1)):
        if any(a is not None for a in axes):
            given = [fit(x, a, 4) for x, a in zip((start, xs, w), axes, strict=True)]
            assert_same(mx.vmap(run, in_axes=axes)(*given), lanes_of(run, axes, *given), str(axes))


def test_vmap_of_while_loop_with_a_number_of_steps_for_each_lane(way: Any) -> None:
    def collatz(n: array, by: array) -> Any:
        step = lambda s: (mx.where(s[0] % 2 == 0, s[0] // 2, by * s[0] + 1), s[1] + 1)  # noqa: E731
        return mx.while_loop(lambda s: (s[0] != 1) & (s[1] < 60), step, (n, mx.array(0)))

    n, by = mx.array([1, 2, 3, 27, 6, 0]), mx.array([3, 3, 3, 3, 5, 3])
    for axes in ((0, 0), (0, None), (None, 0)):
        given = [x if a == 0 else x[3] for x, a in zip((n, by), axes, strict=True)]
        assert_same(way(mx.vmap(collatz, in_axes=axes), *given), lanes_of(collatz, axes, *given), str(axes))


def test_lanes_that_have_stopped_keep_what_they_have() -> None:
    """Even where another step would be infinite: 2.5 → 2 → (1/0 = ∞) → 1/∞ = 0, and 3 → 1 stops before 1/(1 - 2)."""
    found = mx.vmap(lambda x: mx.while_loop(lambda s: s > 1, lambda s: 1 / (s - 2), x))(mx.array([2.5, 0.5, 3.0, 2.0]))
    assert found.tolist() == [0.0, 0.5, 1.0, 0.0]


def test_vmap_of_fori_loop_with_bounds_for_each_lane(way: Any) -> None:
    def run(low: array, high: array, start: array) -> array:
        return mx.fori_loop(low, high, lambda i, c: c * 2 + i, start)

    low, high, start = mx.array([0, 2, 3, 9]), mx.array([4, 3, 3, 1]), mx.array([1, 1, 2, 5])
    for axes in every_axis(low, high, start):
        given = [x if a == 0 else x[1] for x, a in zip((low, high, start), axes, strict=True)]
        assert_same(way(mx.vmap(run, in_axes=axes), *given), lanes_of(run, axes, *given), str(axes))


@pytest.mark.parametrize("back", [False, True])
def test_vmap_of_a_length_and_of_until(back: bool, way: Any) -> None:
    def counted(n: array, xs: array) -> Any:
        return mx.scan(running, mx.array(1.0), xs, length=n, reverse=back)

    def stopped(limit: array, xs: array) -> Any:
        return mx.scan(running, mx.array(1.0), xs, reverse=back, until=lambda c, y: c > limit)

    def both(limit: array, xs: array) -> Any:
        steps = limit.astype(mx.int32)
        return mx.scan(running, mx.array(1.0), xs, steps, back, until=lambda c, y: c > limit)

    xs = mx.stack([mx.arange(1.0, 6.0), mx.ones((5,)), mx.zeros((5,)), mx.arange(5.0)])
    for f, first in (
        (counted, mx.array([0, 5, 3, 9])),
        (stopped, mx.array([2.0, 9.0, 0.0, 1.5])),
        (both, mx.array([2.0, 4.0, 0.0, 9.0])),
    ):
        for axes in ((0, 0), (0, None), (None, 0)):
            given = [x if a == 0 else x[1] for x, a in zip((first, xs), axes, strict=True)]
            assert_same(way(mx.vmap(f, in_axes=axes), *given), lanes_of(f, axes, *given), f"{f.__name__} {axes}")


def test_vmap_of_branches(way: Any) -> None:
    def chosen(p: array, x: array, w: array) -> Any:
        return mx.cond(p, lambda x: (x * w, x.sum()), lambda x: (x - 1, w.max()), x)

    def switched(i: array, x: array, w: array) -> array:
        return mx.switch(i, [lambda x: x * w, lambda x: mx.flip(x), lambda x: mx.cumsum(x)], x)

    x, w = random(4, 3), random(4, 3, seed=1)
    for f, index in ((chosen, mx.array([True, False, False, True])), (switched, mx.array([-1, 1, 2, 7]))):
        for axes in itertools.product((None, 0), repeat=3):
            if any(a is not None for a in axes):
                given = [v if a == 0 else v[1] for v, a in zip((index, x, w), axes, strict=True)]
                assert_same(way(mx.vmap(f, in_axes=axes), *given), lanes_of(f, axes, *given), f"{f.__name__} {axes}")


def test_vmap_of_vmap_and_of_nested_loops() -> None:
    def run(n: array, x: array) -> array:
        def outer(c: array, row: array) -> Any:
            return mx.while_loop(lambda s: s < n, lambda s: s + mx.abs(row) + 1, c), c

        return mx.scan(outer, mx.array(0.0), x)[1]

    n, x = mx.array([2.0, 5.0]), random(3, 4)
    found = mx.vmap(mx.vmap(run, in_axes=(0, None)), in_axes=(None, 0))(n, x)
    assert_same(found, lanes_of(lambda x: lanes_of(lambda n: run(n, x), (0,), n), (0,), x))


def test_vmap_and_gradients_either_way_round() -> None:
    given = [double(np.stack([x * (1 + 0.1 * k) for k in range(3)])) for x in operands64()]
    gradient = mx.grad(filtered(Native), argnums=(0, 1, 2))
    alone = lanes_of(gradient, (0, 0, 0), *given)
    assert_close(mx.vmap(gradient)(*given), alone)
    total = lambda *xs: mx.sum(mx.vmap(filtered(Native))(*xs))  # noqa: E731
    assert_close(mx.grad(total, argnums=(0, 1, 2))(*given), alone)
    shared = mx.vmap(gradient, in_axes=(0, 0, None))(given[0], given[1], given[2][0])
    assert_close(shared, lanes_of(lambda a, b: gradient(a, b, given[2][0]), (0, 0), given[0], given[1]))


# ---- one trace, one program, any length ----


def test_one_trace_for_every_length() -> None:
    f = mx.compile(lambda c, xs: mx.scan(lambda c, x: (c * 0.5 + x @ w, c.sum()), c, xs), shapeless=True)
    w = random(3, 3)
    for n in (5, 2, 40):
        xs = random(n, 4, 3)
        expected = Plain.scan(lambda c, x: (c * 0.5 + x @ w, c.sum()), mx.ones((4, 3)), xs)
        assert_same(f(mx.ones((4, 3)), xs), expected, str(n))
    assert f.traces == 1


def test_one_trace_for_every_length_of_a_gradient() -> None:
    def loss(w: array, xs: array) -> array:
        return mx.sum(mx.scan(lambda c, x: (mx.tanh(c * w + x), c * c), xs[0], xs)[1])

    f = mx.compile(mx.grad(loss, argnums=(0, 1)), shapeless=True)
    for n in (5, 2, 33):
        xs = random(n, 3)
        assert_same(f(random(3, seed=4), xs), mx.grad(loss, argnums=(0, 1))(random(3, seed=4), xs), str(n))
    assert f.traces == 1


@pytest.mark.parametrize(
    "options", [{"checkpoint_every": 3}, {"unroll": 3}, {"checkpoint_every": 4, "unroll": 2}], ids=str
)
@pytest.mark.parametrize("back", [False, True])
def test_one_trace_for_every_length_in_chunks(options: dict[str, Any], back: bool) -> None:
    """Also where no chunk is full, where one is, and where none is left over."""

    def run(w: array, xs: array, **options: Any) -> Any:
        return mx.scan(lambda c, x: (mx.tanh(c * w + x), (c * c, x)), xs[0], xs, reverse=back, **options)

    def loss(w: array, xs: array, **options: Any) -> array:
        last, (squares, _) = run(w, xs, **options)
        return mx.sum(last) + mx.sum(squares)

    f = mx.compile(lambda w, xs: run(w, xs, **options), shapeless=True)
    slopes = mx.compile(mx.grad(lambda w, xs: loss(w, xs, **options), argnums=(0, 1)), shapeless=True)
    w = random(3, seed=4)
    for n in (5, 2, 33, 12):
        xs = random(n, 3)
        assert_same(f(w, xs), run(w, xs), str(n))
        assert_close(slopes(w, xs), mx.grad(loss, argnums=(0, 1))(w, xs), 1e-5)
    assert f.traces == slopes.traces == 1


def test_one_trace_for_bounds_from_shapes() -> None:
    f = mx.compile(lambda x: mx.fori_loop(0, x.shape[0], lambda i, c: c + x[i] * i, mx.array(0.0)), shapeless=True)
    for n in (4, 9):
        assert f(mx.ones((n,))).item() == sum(range(n))
    assert f.traces == 1


def test_one_trace_for_every_number_of_steps() -> None:
    f = mx.compile(lambda n, x: mx.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (mx.array(0), x)))
    for n in (0, 3, 10):
        assert f(mx.array(n), mx.array(1))[1].item() == 2**n
    assert f.traces == 1


@pytest.mark.parametrize("gradient", [False, True])
def test_the_graph_does_not_grow_with_the_length(gradient: bool) -> None:
    def loss(w: array, xs: array) -> array:
        return mx.scan(lambda c, x: (mx.tanh(c * w + x), c), mx.zeros((3,)), xs)[0].sum()

    f = mx.grad(loss) if gradient else loss
    nodes = [len(reachable([f(random(3), random(n, 3))._node])) for n in (2, 1000)]
    assert nodes[0] == nodes[1]


def test_a_length_of_its_own_needs_no_kernel_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager loops of another length are planned, but not compiled, again; with a length that is an array, not even
    that."""
    compiled: list[str] = []
    build = families.compile_graph
    monkeypatch.setattr(families, "compile_graph", lambda *args: compiled.append("program") or build(*args))
    for n in (3, 4, 3, 4):
        mx.eval(mx.fori_loop(mx.array(0), mx.array(n), lambda i, c: mx.cos(c) * 0.37 + i, mx.array(0.5)))
    assert len(compiled) == 1
    for n in (3, 3, 3):
        mx.eval(mx.scan(lambda c, x: (mx.cos(c) * 0.37 + x, None), mx.array(0.5), mx.arange(float(n))))
    assert len(compiled) == 2


def test_a_cache_is_updated_in_place() -> None:
    """A cache of which each step overwrites a row: it is copied once, before the first step."""
    cache, rows = mx.zeros((4096, 256)), random(300, 256)
    mx.eval(cache, rows)

    def run(update: Callable[[array, array, array], array]) -> Any:
        def f(c: Any, x: array) -> Any:
            held, i = c
            return (update(held, x, i), i + 1), None

        return mx.scan(f, (cache, mx.array(0)), rows)[0][0]

    def by_index(held: array, x: array, i: array) -> array:
        held[i] = x
        return held

    expected = np.zeros((4096, 256), np.float32)
    expected[:300] = np.array(rows)
    for update in (by_index, lambda held, x, i: mx.slice_update(held, x[None], i, (0,))):
        result = run(update)
        graph, layouts = closed(result)
        plan = pipeline.plan(graph, CPU, layouts)
        (code,) = [item.code for item in plan.items if isinstance(item.code, Repeat)]
        carried = [node for node in code.plan.graph.inputs if node.shape == cache.shape]
        assert [code.plan.places[node].where for node in carried] == ["output"]
        assert plan.arena < cache.nbytes
        assert code.plan.arena < cache.nbytes
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(result)
        assert mx.get_peak_memory() - before < cache.nbytes + MIB
        np.testing.assert_array_equal(np.array(result), expected)
        assert not np.array(cache).any(), "the array that was given is as it was"


def _row(held: array, x: array, i: array) -> array:
    held = mx.array(held)
    held[i] = held[i] + x
    return held


BRANCHED: dict[str, Callable[[Any, array, array, array], array]] = {
    "no branch, twice": lambda ways, c, x, i: _row(_row(c, x, i), x, i + 1),
    "one branch": lambda ways, c, x, i: ways.cond(i % 2 == 0, lambda c: _row(c, x, i), lambda c: c, c),
    "both branches": lambda ways, c, x, i: ways.cond(i % 2 == 0, lambda c: _row(c, x, i), lambda c: _row(c, -x, i), c),
    "of three": lambda ways, c, x, i: ways.switch(
        i % 3, [lambda c: c, lambda c: _row(_row(c, x, i), x, i + 1), lambda c: _row(c, x, i)], c
    ),
    "nested": lambda ways, c, x, i: ways.cond(
        i % 2 == 0, lambda c: ways.cond(i % 4 == 0, lambda c: _row(c, x, i), lambda c: c, c), lambda c: _row(c, x, 0), c
    ),
    "a loop in it": lambda ways, c, x, i: ways.cond(
        i % 2 == 0, lambda c: ways.fori_loop(0, 3, lambda j, c: _row(c, x, i + j), c), lambda c: c, c
    ),
}


@pytest.mark.parametrize("how", BRANCHED)
def test_a_cache_is_updated_in_place_by_branches(how: str) -> None:
    """Whichever is taken, and also where one only hands it on."""
    cache, rows = mx.zeros((2048, 256)), random(20, 256)
    mx.eval(cache, rows)

    def run(ways: Any) -> array:
        step = lambda c, x: ((BRANCHED[how](ways, c[0], x, c[1]), c[1] + 1), None)  # noqa: E731
        return ways.scan(step, (cache, mx.array(0)), rows)[0][0]

    expected = run(Plain)
    mx.eval(expected)
    result = run(Native)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(result)
    assert mx.get_peak_memory() - before < cache.nbytes + MIB
    assert_same(result, expected)
    assert not np.array(cache).any(), "the array that was given is as it was"


def test_a_branch_that_writes_leaves_its_operand_to_others() -> None:
    """An operand that is read again is copied, and so is one that is given twice, or lies scattered."""
    x = random(6, 4)

    def run(ways: Any, x: array, flag: array) -> Any:
        y = ways.cond(flag, lambda a: mx.slice_update(a, a[:1] + 1, mx.array(2), (0,)), lambda a: a, x)
        z = ways.cond(
            flag, lambda a, b: (mx.slice_update(a, b[:1], mx.array(1), (0,)), b), lambda a, b: (a, b * 2), x, x
        )
        w = ways.cond(flag, lambda a: mx.slice_update(a, a[:1] - 1, mx.array(3), (0,)), lambda a: a, x.T.T[::-1])
        return x, y, z, w, x + y

    for flag in (mx.array(True), mx.array(False)):
        assert_same(run(Native, x, flag), run(Plain, x, flag))
        assert_same(mx.compile(lambda x, f: run(Native, x, f))(x, flag), run(Plain, x, flag))


def test_a_loop_in_one_kernel_asks_for_the_rows_of_later_steps() -> None:
    """Each vector goes through all steps, whose rows are far apart in memory."""
    rows, start = mx.ones((40, 1000)), mx.zeros((1000,))
    text = str(weft.explain(lambda x, h: mx.scan(lambda h, row: (h * 0.5 + row, h), h, x), rows, start, llvm=True))
    assert "weft_steps_" in text
    assert "llvm.prefetch" in text.partition("weft_steps_")[2]


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 7), (7, 1)])
def test_a_loop_over_axes_of_one_element_is_one_kernel(shape: tuple[int, ...]) -> None:
    """Its body is computed without such axes, and its results are stored with them: nothing is copied for that."""
    rows, a, start = mx.random.normal((40, *shape)), mx.random.normal(shape), mx.zeros(shape)

    def run(rows: array, a: array, h: array) -> Any:
        return mx.scan(lambda h, row: (mx.tanh(a * h + row), h + 1), h, rows)

    assert "weft_steps_" in str(weft.explain(run, rows, a, start))
    assert_same(mx.compile(run)(rows, a, start), run(rows, a, start))
    expected = start
    for row in rows:
        expected = mx.tanh(a * expected + row)
    assert_same(run(rows, a, start)[0], expected)


@pytest.mark.parametrize("n", [99, 96])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.int8, mx.complex64])
def test_rows_of_results_begin_anywhere_in_memory(dtype: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are so large that they are written past the caches."""
    monkeypatch.setattr(base, "STREAM_BYTES", 1)
    monkeypatch.setattr(moves, "STREAM", 1)

    def step(carry: array, row: array) -> tuple[array, tuple[array, ...]]:
        total = mx.sum(mx.abs(row))  # keeps a step from being a part of one kernel
        square = mx.reshape(row[:96], (32, 3))
        turned = mx.reshape(row[: n // 3 * 3], (3, n // 3)).T
        taken = mx.take(mx.reshape(row[:96], (6, 16)), carry, axis=0)
        return carry + 1, (row + total, square[:, ::-1] + total, turned + total, taken)

    xs = random(5, n).astype(dtype)
    start = mx.array([0, 2, 1])
    expected = Plain.scan(step, start, xs)
    assert_same(mx.scan(step, start, xs), expected)
    assert_same(mx.compile(lambda xs: mx.scan(step, start, xs))(xs), expected)
