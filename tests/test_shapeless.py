"""shapeless=True: one trace for all sizes, never a different answer from the plain function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft import tree


def bits(x: Any) -> Any:
    leaves, structure = tree.flatten(x)
    return structure, [(v.dtype, v.shape, np.asarray(v).tobytes()) if isinstance(v, mx.array) else v for v in leaves]


def traced(f: Any) -> int:
    return f.traces  # type: ignore[no-any-return]


def sample(*shape: int) -> mx.array:
    n = int(np.prod(shape))
    return mx.array(np.sin(np.arange(n, dtype=np.float32) * 1.7).reshape(shape))


SIZES = [(4, 6), (9, 5), (5, 33), (17, 7), (64, 64)]

KEY = mx.random.key(3)


def assigned(x: mx.array, index: Any, value: Any) -> mx.array:
    x[index] = value
    return x


ONE_TRACE: dict[str, Any] = {
    # elementwise, reductions, scans
    "elementwise": lambda x: mx.exp(x) * 2.0 + x,
    "where": lambda x: mx.where(x > 0, x, -x),
    "clip": lambda x: mx.clip(x, 0, 0.5),
    "astype": lambda x: mx.sum(x.astype(mx.float16), axis=0),
    "sum": lambda x: mx.sum(x, axis=0),
    "sum all": lambda x: mx.sum(x),
    "prod": lambda x: mx.prod(x, axis=1),
    "max": lambda x: mx.max(x),
    "min": lambda x: mx.min(x, axis=0),
    "mean": lambda x: mx.mean(x, axis=1),
    "var": lambda x: mx.var(x, axis=-1, ddof=1),
    "all": lambda x: mx.all(x > -2),
    "softmax": lambda x: mx.softmax(x, axis=-1),
    "logsumexp": lambda x: mx.logsumexp(x, axis=0),
    "argmax": lambda x: mx.argmax(x, axis=1),
    "argmin": lambda x: mx.argmin(x),
    "cumsum": lambda x: mx.cumsum(x, axis=0),
    "cumsum backwards": lambda x: mx.cumsum(x, axis=1, reverse=True, inclusive=False),
    "cumprod": lambda x: mx.cumprod(x, axis=1),
    "cummax": lambda x: mx.cummax(x, axis=0),
    "logcumsumexp": lambda x: mx.logcumsumexp(x, axis=1),
    # slices
    "tail": lambda x: x[:, 1:],
    "head": lambda x: x[:-1],
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
    "last two": lambda x: x[-2:],
    "middle": lambda x: x[1:-1],
    "reverse": lambda x: x[::-1] * 2.0,
    "reverse both": lambda x: x[::-1, ::-1],
    "every third": lambda x: x[::3],
    "every other, backwards": lambda x: x[::-2],
    "from the end in steps": lambda x: x[-1:0:-2],
    "bounds far outside": lambda x: (x[2:1000], x[-1000:3]),
    "empty": lambda x: x[3:1],
    "second half": lambda x: x[x.shape[0] // 2 :],
    "first half": lambda x: x[: x.shape[0] // 2],
    "new axes": lambda x: x[None, :, None],
    "differences": lambda x: x[1:] - x[:-1],
    # slice assignment
    "assign first": lambda x: assigned(x, 0, 1.0),
    "assign last": lambda x: assigned(x, -1, x[0]),
    "assign tail": lambda x: assigned(x, slice(1, None), 2.0),
    "assign columns": lambda x: assigned(x, (slice(None), slice(None, None, 2)), 3.0),
    "assign backwards": lambda x: assigned(x, slice(None, None, -1), x * 2.0),
    "assign rows": lambda x: assigned(x, mx.array([0, 2]), 5.0),
    "add to tail": lambda x: x.at[1:].add(2.0),
    "add to rows": lambda x: x.at[mx.array([0, 2, 0])].add(x[:3]),
    # shapes
    "transpose": lambda x: x.T + 1.0,
    "flatten": lambda x: mx.flatten(x),
    "merge": lambda x: x.reshape(x.shape[0] * x.shape[1], -1),
    "other order": lambda x: x.reshape(x.shape[1], x.shape[0]),
    "split an axis": lambda x: x[:, :4].reshape(x.shape[0], 2, -1),
    "unflatten": lambda x: mx.unflatten(mx.concatenate([x, x], axis=0), 0, (2, -1)),
    "swap": lambda x: mx.swapaxes(x, 0, 1),
    "flip": lambda x: mx.flip(x, axis=1),
    "broadcast": lambda x: mx.broadcast_to(x[0], x.shape) + x,
    "broadcast to more": lambda x: mx.broadcast_to(x, (3, *x.shape)),
    # joining and moving
    "pad": lambda x: mx.pad(x, ((1, 2), (0, 3)), constant_values=2.0),
    "pad with edges": lambda x: mx.pad(x, 1, mode="edge"),
    "pad by a size": lambda x: mx.pad(x, ((0, x.shape[0]), (0, 0))),
    "split at": lambda x: mx.split(x, [2, 4], axis=1),
    "split in two": lambda x: mx.split(x[: x.shape[0] // 2 * 2], 2, axis=0),
    "roll": lambda x: mx.roll(x, 2, axis=0),
    "roll back": lambda x: mx.roll(x, -3, axis=1),
    "roll all": lambda x: mx.roll(x, 5),
    "tile": lambda x: mx.tile(x, (2, 3)),
    "repeat": lambda x: mx.repeat(x, 3, axis=1),
    "repeat all": lambda x: mx.repeat(x, 2),
    "concatenate": lambda x: mx.concatenate([x, x * 2, x[:1]], axis=0),
    "stack": lambda x: mx.stack([x, x], axis=1),
    "meshgrid": lambda x: mx.meshgrid(x[0], x[:, 0]),
    # triangles and diagonals
    "tril": lambda x: mx.tril(x, -2),
    "triu": lambda x: mx.triu(x, 1),
    "diagonal": lambda x: mx.diagonal(x),
    "diagonal above": lambda x: mx.diagonal(x, 1),
    "diagonal below": lambda x: mx.diagonal(x, -1),
    "diagonal far above": lambda x: mx.diagonal(x, 40),
    "diagonal far below": lambda x: mx.diagonal(x, -8),
    "diag of a vector": lambda x: mx.diag(x[0], 2),
    "trace": lambda x: mx.trace(x),
    # sorting, gathering
    "sort": lambda x: mx.sort(x, axis=0),
    "sort all": lambda x: mx.sort(x, axis=None),
    "argsort": lambda x: mx.argsort(x, axis=-1),
    "partition": lambda x: mx.partition(x, 2, axis=-1),
    "topk": lambda x: mx.topk(x, 3, axis=-1),
    "gather": lambda x: x[mx.array([0, 2, -1])],
    "gather pairs": lambda x: x[mx.array([0, 2]), mx.array([1, 3])],
    "take": lambda x: mx.take(x, mx.array([1, 0]), axis=1),
    "take from all": lambda x: mx.take(x, mx.array([1, 7])),
    "take along": lambda x: mx.take_along_axis(x, mx.argsort(x, axis=0), axis=0),
    "put along": lambda x: mx.put_along_axis(x, mx.argmax(x, axis=1, keepdims=True), mx.array(9.0), axis=1),
    "scatter": lambda x: mx.zeros((x.shape[0],)).at[mx.arange(x.shape[0])[::-1]].add(x[:, 0]),
    # products
    "gram": lambda x: x @ x.T,
    "matrix and vector": lambda x: x @ x[0],
    "outer": lambda x: mx.outer(x[0], x[:, 0]),
    "einsum": lambda x: mx.einsum("ij,kj->ik", x, x),
    # made from sizes
    "divide by size": lambda x: x.sum() / x.shape[0],
    "arithmetic of sizes": lambda x: x * (x.shape[0] // 2) + x.shape[1] % 3 + x.size,
    "ones": lambda x: mx.ones(x.shape) * x,
    "zeros": lambda x: mx.zeros((x.shape[0], 2)),
    "full": lambda x: mx.full(x.shape, 2.5),
    "arange": lambda x: mx.arange(x.shape[0])[:, None] * x,
    "arange in steps": lambda x: mx.arange(1, x.shape[1], 2),
    "eye": lambda x: mx.eye(x.shape[0]),
    "wide eye": lambda x: mx.eye(x.shape[0], x.shape[1], 1),
    "tri": lambda x: mx.tri(x.shape[0], x.shape[1]),
    "uniform": lambda x: x + mx.random.uniform(shape=x.shape, key=KEY),
    "normal": lambda x: mx.random.normal(shape=x.shape, key=KEY),
    "bernoulli": lambda x: mx.random.bernoulli(0.3, x.shape, key=KEY),
    "randint": lambda x: mx.random.randint(0, 10, x.shape, key=KEY),
    "categorical": lambda x: mx.random.categorical(x, key=KEY),
    "permutation": lambda x: mx.random.permutation(x, key=KEY),
    # transforms
    "vmap": mx.vmap(lambda row: row[::-1] * row.sum()),
    "vmap of columns": mx.vmap(lambda column: mx.sort(column)[:2], in_axes=1, out_axes=1),
}


def loss(fun: Any) -> Any:
    """A scalar that depends on every element of what a function gives."""

    def scalar(x: mx.array) -> mx.array:
        parts = [mx.sum(mx.sin(y)) for y in tree.leaves(fun(x * 1.0)) if y.dtype == mx.float32]
        return sum(parts, mx.sum(x))  # type: ignore[no-any-return]

    return scalar


@pytest.mark.parametrize("name", ONE_TRACE)
@pytest.mark.parametrize("transform", [lambda fun: fun, lambda fun: mx.grad(loss(fun))], ids=["value", "gradient"])
def test_one_trace_serves_all_sizes(name: str, transform: Any) -> None:
    fun = transform(ONE_TRACE[name])
    f = mx.compile(fun, shapeless=True)
    for shape in SIZES:
        assert bits(f(sample(*shape))) == bits(fun(sample(*shape))), shape
    assert traced(f) == 1


@pytest.mark.parametrize("axis", [0, None])
def test_a_median_branches_on_whether_the_size_is_even(axis: int | None) -> None:
    f = mx.compile(lambda x: mx.median(x, axis=axis), shapeless=True)
    for shape in SIZES:
        assert bits(f(sample(*shape))) == bits(mx.median(sample(*shape), axis=axis)), shape
    assert traced(f) == 2


RETRACING: dict[str, Any] = {
    "range": lambda x: sum((x[i] for i in range(x.shape[0])), mx.array(0.0)),
    "branch": lambda x: x * 2.0 if x.shape[0] > 8 else x * 3.0,
    "len": lambda x: x * len(x),
    "string": lambda x: x * float(str(x.shape[1])),
    "returned size": lambda x: (x, x.shape[0]),
    "linspace": lambda x: mx.linspace(0, 1, x.shape[0]),
}


@pytest.mark.parametrize("name", RETRACING)
def test_a_size_that_is_read_is_guarded(name: str) -> None:
    fun = RETRACING[name]
    f = mx.compile(fun, shapeless=True)
    for shape in SIZES * 2:
        x, y = sample(*shape), sample(*shape)
        assert bits(f(x)) == bits(fun(y)), shape
    assert traced(f) <= len(SIZES)


def test_rank_dtype_and_units_retrace() -> None:
    f = mx.compile(lambda x: mx.sum(x * 2, axis=0), shapeless=True)
    for x in (sample(4, 6), sample(4), sample(1, 6), sample(4, 1), sample(3, 4, 5), sample(4, 6).astype(mx.float16)):
        assert bits(f(x)) == bits(mx.sum(x * 2, axis=0))


def test_two_arrays_must_still_fit() -> None:
    f = mx.compile(lambda x, y: x + y, shapeless=True)
    assert bits(f(sample(4, 6), sample(4, 6))) == bits(sample(4, 6) + sample(4, 6))
    assert bits(f(sample(5, 3), sample(5, 3))) == bits(sample(5, 3) + sample(5, 3))
    with pytest.raises(ValueError, match="broadcast"):
        f(sample(5, 3), sample(5, 4))
    assert bits(f(sample(5, 3), sample(1, 3))) == bits(sample(5, 3) + sample(1, 3))


def test_views_as_arguments() -> None:
    fun = ONE_TRACE["softmax"]
    f = mx.compile(fun, shapeless=True)
    for x in (sample(6, 8).T, sample(9, 4)[::-1], sample(12, 10)[::2, ::3]):
        assert bits(f(x)) == bits(fun(x))


def test_slices_of_captured_arrays_belong_to_their_own_trace() -> None:
    table = mx.arange(24.0).reshape(8, 3)

    def made(extra: float) -> Any:
        return mx.compile(lambda y: table[: y.shape[0]] * y + extra, shapeless=True)

    first, second = made(1.0), made(2.0)
    for n in (3, 5, 5, 6):
        y = mx.ones((n, 3))
        assert first(y).tolist() == (table[:n] * y + 1.0).tolist()
        assert second(y).tolist() == (table[:n] * y + 2.0).tolist()


def test_captured_arrays_keep_their_shapes() -> None:
    w = sample(6)
    f = mx.compile(lambda x: x * w, shapeless=True)
    for n in (2, 5, 9):
        assert bits(f(sample(n, 6))) == bits(sample(n, 6) * w)


# Sizes of arguments are 2 or more where they are symbols, but what is computed of them may be 0, 1 or negative.

PARTS = {
    "rows": lambda x: x[2:],
    "columns": lambda x: x[:, 2:],
    "both": lambda x: x[2:, :-2],
}
OF_PARTS: dict[str, Any] = {
    "max": lambda y: mx.max(y),
    "min": lambda y: mx.min(y, axis=1),
    "argmax": lambda y: mx.argmax(y, axis=0),
    "median": lambda y: mx.median(y),
    "median of rows": lambda y: mx.median(y, axis=0),
    "mean": lambda y: mx.mean(y, axis=0),
    "logsumexp": lambda y: mx.logsumexp(y, axis=0),
    "squeeze": lambda y: mx.squeeze(y),
    "take": lambda y: mx.take(y, mx.array([0]), axis=0),
    "take of all": lambda y: mx.take(y, mx.array(0)),
    "index array": lambda y: y[mx.array([0])],
    "diff": lambda y: mx.diff(y, axis=0),
    "diff of diff": lambda y: mx.diff(y, n=3, axis=1),
    "unique": lambda y: mx.unique(y, size=2),
    "categorical": lambda y: mx.random.categorical(y, axis=0, key=KEY),
    "categorical of one": lambda y: mx.random.categorical(y, shape=(3, 1), key=KEY),
    "einsum": lambda y: mx.einsum("ij,kj->ik", y, mx.ones((3, 1))),
    "reshape": lambda y: mx.reshape(y, (y.shape[0] - 1, -1)),
    "negative sizes": lambda y: mx.zeros((y.shape[0] - 1, 2)),
    "broadcast_to": lambda y: mx.broadcast_to(y[:1], (y.shape[0], *y[:1].shape)),
    "gradient of max": lambda y: mx.grad(lambda t: mx.sum(mx.max(t, axis=0)))(y),
    "gradient of cumprod": lambda y: mx.grad(lambda t: mx.sum(mx.cumprod(t, axis=0)))(y),
    "vmap": lambda y: mx.vmap(lambda t: mx.max(t))(y.T),
}


def outcome(fun: Any, x: mx.array) -> Any:
    try:
        return bits(fun(x))
    except (ValueError, IndexError) as error:
        return type(error)


@pytest.mark.parametrize("name", OF_PARTS)
@pytest.mark.parametrize("part", PARTS)
def test_computed_sizes_may_be_zero_one_or_negative(name: str, part: str) -> None:
    def fun(x: mx.array) -> Any:
        return OF_PARTS[name](PARTS[part](x))

    orders = (
        [(4, 4), (2, 4), (4, 2), (2, 2), (5, 3), (3, 3)],
        [(2, 2), (4, 4), (3, 3)],
        [(2, 4), (3, 5)],
        [(4, 3), (3, 2)],
    )
    for order in orders:
        f = mx.compile(fun, shapeless=True)
        for shape in order:
            assert outcome(f, sample(*shape)) == outcome(fun, sample(*shape)), f"{shape} of {order}"


def test_an_error_about_sizes_that_is_caught_is_guarded() -> None:
    def fun(x: mx.array, y: mx.array) -> mx.array:
        try:
            return x + y[: x.shape[0] - 1]
        except ValueError:
            return x - 1

    f = mx.compile(fun, shapeless=True)
    for n in (4, 7, 2, 5, 3):
        assert bits(f(sample(n, 3), sample(n, 3))) == bits(fun(sample(n, 3), sample(n, 3))), n


# A computed size that is 1 in a call is repeated there, and its derivative is a sum.

MEETING = {
    "every second row": lambda x: x * x[::2],
    "all but one row": lambda x: x - x[:-1],
    "half of the rows": lambda x: x / (2 + x[: x.shape[0] // 2]),
    "all but two columns": lambda x: mx.where(x[:, 2:] > 0, x, x[:, 2:]),
    "both": lambda x: mx.maximum(x, x[1:, 1:] * x[:1]),
    "broadcast_to": lambda x: mx.broadcast_to(x[1:] * x[1:], x.shape) * x,
    "products": lambda x: mx.matmul(x[1:, None], mx.swapaxes(x[:, None], 1, 2)),
}
TRANSFORMS = {
    "value": lambda f: f,
    "gradient": lambda f: mx.grad(loss(f)),
    "gradient of gradient": lambda f: mx.grad(lambda x: mx.sum(mx.grad(loss(f))(x))),
    "tangent": lambda f: lambda x: mx.jvp(f, [x], [mx.cos(x)])[1][0],
    "gradient of batch": lambda f: lambda x: mx.grad(loss(mx.vmap(f)))(mx.stack([x, x + 1])),
}


@pytest.mark.parametrize("name", MEETING)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_computed_sizes_of_one_are_repeated(name: str, transform: str) -> None:
    fun = TRANSFORMS[transform](MEETING[name])
    for order in ([(2, 3), (3, 3), (2, 5)], [(3, 2), (2, 3), (2, 2), (4, 4)], [(4, 4), (2, 3), (3, 3)]):
        f = mx.compile(fun, shapeless=True)
        for shape in order:
            assert outcome(f, sample(*shape)) == outcome(fun, sample(*shape)), f"{shape} of {order}"
