"""What only moves elements keeps every bit of them: signalling NaNs of all float types, bytes of bools that are neither
0 nor 1. In every layout, fused and alone, on CPUs that convert float16 and on those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import bits, lay_out, place, values_of
from tests.processes import run_alone
from weft import dtypes as dt
from weft.codegen.launch import Layout, Pointer
from weft.targets.axes import row_major
from weft.targets.cpu import moves

MOVED = (dt.bool_, dt.float16, dt.bfloat16, dt.float32, dt.float64, dt.complex64, dt.complex128)
NAMES: dict[str, Any] = {"ids": lambda d: d.name}
SHAPE = (40, 48)


def hard_values(dtype: dt.Dtype, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    """Every bit pattern may occur, and many are signalling NaNs."""
    rng = np.random.default_rng(seed)
    size = dt.real_of(dtype).size
    count = int(np.prod(shape)) * dtype.size // size
    values = (
        rng.integers(0, 1 << 8 * size, count, f"u{size}", endpoint=False)
        if size < 8
        else rng.integers(0, 1 << 63, count).astype("u8")
    )
    if not dtype.is_bool:
        mantissa = {2: 10 if dtype is dt.float16 else 7, 4: 23, 8: 52}[size]
        exponent = (1 << 8 * size - 1) - (1 << mantissa)
        payload = values & ((1 << mantissa - 1) - 1) | 1
        signalling = (values & (1 << 8 * size - 1)) | exponent | payload
        values = np.where(rng.random(count) < 0.5, signalling, values).astype(f"u{size}")
    return values.view(dtype.np).reshape(shape)


def raw(x: mx.array) -> np.ndarray:
    """The bytes of an array in memory, as bits: not even bools are made 0 or 1."""
    return bits(values_of(x))


def picked(x: Any, p: np.ndarray) -> Any:
    return x[mx.array(p)] if isinstance(x, mx.array) else x[p]


ORDER = np.random.default_rng(5).permutation(SHAPE[0]).astype(np.int32)
ROWS = ORDER[:, None].astype(np.int64)
MASK = np.random.default_rng(6).random(SHAPE) < 0.5
Move = Callable[[Any, Any, Any], Any]
MOVES: dict[str, Move] = {
    "transpose": lambda m, x, y: x.T,
    "transpose, copied": lambda m, x, y: m.reshape(x.T, (-1,)),
    "reshape": lambda m, x, y: m.reshape(x, (48, 40)),
    "reverse": lambda m, x, y: x[::-1, ::-1],
    "stride": lambda m, x, y: m.reshape(x[1::2, ::3], (-1,)),
    "where": lambda m, x, y: m.where(m.array(MASK), x, y),
    "where, turned": lambda m, x, y: m.where(m.array(MASK), x, y).T.reshape(-1),
    "where of a transpose": lambda m, x, y: m.where(m.array(MASK.T), x.T, y.T),
    "broadcast": lambda m, x, y: m.reshape(m.broadcast_to(x[:1], (5, 48)), (-1,)),
    "concatenate": lambda m, x, y: m.concatenate([x, y], axis=1),
    "stack": lambda m, x, y: m.stack([x, y], axis=1),
    "take": lambda m, x, y: m.take(x, m.array(ORDER), axis=0),
    "index": lambda m, x, y: picked(x, ORDER),
    "take_along_axis": lambda m, x, y: m.take_along_axis(x, m.array(np.tile(ROWS, (1, 48))), axis=0),
    "roll": lambda m, x, y: m.roll(x, 3, axis=1),
    "repeat": lambda m, x, y: m.repeat(x, 3, axis=1),
    "tile": lambda m, x, y: m.tile(x, (2, 1)),
    "flip": lambda m, x, y: m.flip(x, axis=0),
    "diagonal": lambda m, x, y: m.diagonal(x) if m is not np else np.array(np.diagonal(x)),
    "real": lambda m, x, y: m.real(x) if x.dtype.kind == "c" else x,
}  # fmt: skip


@pytest.mark.parametrize("dtype", MOVED, **NAMES)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "spaced", "reversed"])
def test_moves_keep_every_bit(dtype: dt.Dtype, layout: str) -> None:
    given = [hard_values(dtype, seed=seed) for seed in (1, 2)]
    x, y = lay_out(given, layout)
    a, b = given
    for name, move in MOVES.items():
        if name == "real" and dtype.is_bool:
            continue
        expected = move(np, a, b)
        for run in (lambda x, y: move(mx, x, y), mx.compile(lambda x, y: move(mx, x, y))):  # noqa: B023
            found = run(x, y)
            assert np.array_equal(raw(found), bits(np.ascontiguousarray(expected))), (name, layout)


def updated(x: mx.array, y: mx.array) -> mx.array:
    x = mx.array(x)
    x[5:9, 3] = y[5:9, 3]
    return x


@pytest.mark.parametrize("dtype", MOVED, **NAMES)
def test_updates_loops_and_branches_keep_every_bit(dtype: dt.Dtype) -> None:
    a, b = (hard_values(dtype, seed=seed) for seed in (3, 4))
    x, y = place(a), place(b)
    want = a.copy()
    want[5:9, 3] = b[5:9, 3]
    cases: list[tuple[str, Any, np.ndarray]] = [
        ("update", updated, want),
        ("put_along_axis", lambda x, y: mx.put_along_axis(x, mx.array(ROWS), y[:, :1], 1), put(a, b)),
        ("scan", lambda x, y: mx.scan(lambda c, row: (row, c), y[0], x)[1], np.concatenate([b[:1], a[:-1]])),
        ("fori_loop", lambda x, y: mx.fori_loop(0, 3, lambda i, c: (c[1], c[0]), (x, y))[0], b),
        ("choices", lambda x, y: mx.fori_loop(0, 3, lambda i, c: (mx.where(i > 5, *c), c[0]), (x, y))[0], b),
        ("cond", lambda x, y: mx.cond(mx.array(True), lambda x, y: (y, x), lambda x, y: (x, y), x, y)[0], b),
    ]  # fmt: skip
    for name, run, expected in cases:
        for f in (run, mx.compile(run)):
            assert np.array_equal(raw(f(x, y)), bits(expected)), name


def put(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a = a.copy()
    np.put_along_axis(a, ROWS, b[:, :1], 1)
    return a


@pytest.mark.parametrize("dtype", [dt.bool_, dt.float16], **NAMES)
def test_moves_beside_computations_keep_every_bit(dtype: dt.Dtype) -> None:
    """In one kernel with operations that compute with the same elements: maps, rows, columns, loops."""
    a = hard_values(dtype, (24, 40))
    x = place(a)
    zero = mx.zeros((24, 40), mx.int32)

    def number(x: mx.array) -> mx.array:
        return x.astype(mx.float32)

    def row(x: mx.array) -> tuple[mx.array, ...]:
        total = number(x).sum(axis=1, keepdims=True)
        return total + number(x), mx.where(zero > 0, x[::-1], x), mx.where(total.sum() > 1e30, x, x)

    def column(x: mx.array) -> tuple[mx.array, ...]:
        return number(x).sum(axis=0), mx.where(zero > 0, x[::-1], x)

    def both(x: mx.array) -> tuple[mx.array, ...]:
        return number(x) + 1, mx.where(zero > 0, x[::-1], x), x.T.reshape(-1)

    def narrow(x: mx.array) -> tuple[mx.array, ...]:
        small = x[:, :5]
        return number(small).sum(axis=1, keepdims=True) + number(small), mx.where(zero[:, :5] > 0, small[::-1], small)

    for f in (row, column, both, narrow):
        for run in (f, mx.compile(f)):
            results = run(x)
            mx.eval(results)
            for moved in results[1:]:
                want = a.T.reshape(-1) if moved.ndim == 1 else a[:, : moved.shape[1]]
                assert np.array_equal(raw(moved), bits(np.ascontiguousarray(want))), f.__name__


# ---- views ----


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d.size == 1], **NAMES)
def test_bytes_as_bools_and_back(dtype: dt.Dtype) -> None:
    values = np.arange(256, dtype=np.uint8).view(dtype.np).reshape(16, 16)
    x = place(values)
    for run in (lambda x: x.view(mx.bool_).view(dtype), mx.compile(lambda x: x.view(mx.bool_).view(dtype))):
        assert np.array_equal(raw(run(x)), bits(values))
    seen = x.view(mx.bool_)
    mx.eval(seen)
    assert np.array_equal(raw(seen.view(dtype)), bits(values))
    assert np.array_equal(raw(seen.T.view(dtype)), bits(np.ascontiguousarray(values.T)))
    wide = place(np.arange(64, dtype=np.uint32).reshape(4, 16)).view(mx.bool_)
    assert np.array_equal(np.asarray(wide.view(mx.uint32)), np.arange(64, dtype=np.uint32).reshape(4, 16))


PAIRS = (
    "logical_and", "logical_or", "logical_xor", "add", "multiply", "maximum", "minimum", "equal", "not_equal", "less",
    "greater", "greater_equal", "bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "divide", "power",
)  # fmt: skip
ALONE: tuple[Callable[[Any], Any], ...] = (
    mx.sum, mx.prod, mx.any, mx.all, mx.max, mx.min, mx.argmax, mx.argmin, mx.mean, mx.count_nonzero, mx.cumsum,
    mx.cummax, mx.cumprod, mx.sort, mx.argsort, mx.nonzero, mx.argwhere, mx.abs, mx.square, mx.sign, mx.logical_not,
    lambda v: v.astype(mx.uint8), lambda v: v.astype(mx.float32), lambda v: mx.where(v, 1.0, 2.0),
    lambda v: mx.arange(256).reshape(16, 16)[v], lambda v: mx.max(v, axis=0), lambda v: mx.sort(v, axis=0),
    lambda v: mx.topk(v, 3), lambda v: mx.partition(v, 3), lambda v: mx.cumsum(v, axis=1),
    lambda v: mx.searchsorted(mx.array([False, True]), v), lambda v: mx.searchsorted(mx.sort(v.reshape(-1)), v),
    lambda v: mx.bincount(v.reshape(-1)), lambda v: mx.unique(v.reshape(-1), 2), lambda v: mx.array_equal(v, v.T.T),
)  # fmt: skip


def test_any_byte_but_0_is_true() -> None:
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    x, truth = place(values).view(mx.bool_), values != 0
    plain = mx.array(truth)
    assert np.array_equal(np.asarray(x), truth)
    assert np.asarray(x).view(np.uint8).max() == 1  # other libraries are given 0 and 1
    assert bytes(x) == truth.tobytes()
    assert x.tolist() == truth.tolist()
    for name in PAIRS:
        f = getattr(mx, name)
        for run in (f, mx.compile(f)):
            assert np.array_equal(raw(run(x, x.T)), raw(f(plain, plain.T))), name
    for f in ALONE:
        found, want = f(x), f(plain)
        for got, expected in zip(*((r,) if isinstance(r, mx.array) else r for r in (found, want)), strict=True):
            assert np.array_equal(raw(got), raw(expected)), f
    assert bool(place(np.array(2, np.uint8)).view(mx.bool_))


def other_cpu() -> None:
    """All of it where float16 has no instructions."""
    for dtype in (dt.bool_, dt.float16, dt.bfloat16):
        test_moves_keep_every_bit(dtype, "transposed")
        test_updates_loops_and_branches_keep_every_bit(dtype)
    test_moves_beside_computations_keep_every_bit(dt.float16)


def test_where_no_instruction_converts_float16() -> None:
    run_alone(__file__, "other_cpu", WEFT_CPU="x86-64-v2")


# ---- blocks of what lies transposed ----


@pytest.mark.parametrize("dtype", [dt.bool_, dt.float16, dt.float32, dt.complex64, dt.complex128], **NAMES)
@pytest.mark.parametrize("columns", [4, 5, 7, 8, 15, 16, 17, 33, 70])
def test_blocks_that_begin_earlier(dtype: dt.Dtype, columns: int) -> None:
    """Rows and columns that no number of blocks fills, forwards and backwards, into rows that lie apart."""
    for rows in (16, 17, 31, 70):
        whole = hard_values(dtype, (rows, columns + 2), rows)
        if dtype.is_bool:
            whole = whole.view(np.uint8) % 2 == 1
        x = mx.array(whole, dtype)
        for part in (np.s_[:, 1:-1], np.s_[:, -2:0:-1], np.s_[::-1, 1:-1], np.s_[::-1, -2:0:-1]):
            turned, expected = mx.transpose(x[part]), whole[part].T
            assert np.array_equal(raw(mx.contiguous(turned)), bits(np.ascontiguousarray(expected)))
            around = np.zeros((columns + 2, rows + 3), dtype.np)
            target = mx.array(around, dtype)
            mx.eval(target)
            target[1:-1, 1:-2] = turned
            around[1:-1, 1:-2] = expected
            assert np.array_equal(raw(target), bits(around))


@pytest.mark.parametrize("dtype", [dt.bool_, dt.float16, dt.float32, dt.complex64], **NAMES)
@pytest.mark.parametrize("shape", [(9, 40, 33), (4, 17, 70), (2, 3, 25, 64)])
def test_short_rows_from_far_apart(dtype: dt.Dtype, shape: tuple[int, ...]) -> None:
    """Weights of convolutions whose outputs lie together, as those of another library: blocks are turned, then the
    short axis is put last."""
    whole = hard_values(dtype, shape) if not dtype.is_bool else hard_values(dt.float32, shape).view(np.int32) % 2 == 1
    order = (len(shape) - 1, len(shape) - 2, *range(len(shape) - 2))
    x = mx.array(whole, dtype)
    turned = whole.transpose(order)
    assert np.array_equal(raw(mx.contiguous(mx.transpose(x, order))), bits(np.ascontiguousarray(turned)))
    steps = tuple(step // whole.itemsize for step in turned.strides)
    sizes = tuple(shape[axis] for axis in order)
    rows = Layout(sizes, tuple(step // dtype.size for step in row_major(sizes, dtype.size)), dtype)
    made = moves.contiguous(Layout(sizes, steps, dtype), rows, Pointer(0), Pointer(1), Pointer(2))
    assert len(made.launches) == 2
    assert made.launches[0].source.key.startswith("copy\ntile")


def test_copies_walk_in_the_order_in_which_they_write() -> None:
    x, columns = Layout((64, 48), (48, 1), dt.float32), Layout((64, 48), (1, 64), dt.float32)
    (launch,) = moves.copy(x, columns, Pointer(0), Pointer(1))
    assert launch.source.key.startswith("copy\ntile")


@pytest.mark.parametrize("shape", [(4, 16), (9, 40), (16, 17), (70, 33)])
def test_what_lies_transposed_in_longer_computations(shape: tuple[int, int]) -> None:
    x, y = (np.random.default_rng(k).integers(-9, 9, shape[::-1]).astype(np.float32) for k in range(2))
    z = np.random.default_rng(3).integers(-9, 9, shape).astype(np.float32)
    found = mx.compile(lambda x, y, z: (x.T * z - y.T, x.T + 1))(mx.array(x), mx.array(y), mx.array(z))
    np.testing.assert_array_equal(np.array(found[0]), x.T * z - y.T)
    np.testing.assert_array_equal(np.array(found[1]), x.T + 1)


@pytest.mark.parametrize("dtype", [dt.bool_, dt.int8, dt.float16, dt.float32, dt.int64, dt.complex64], **NAMES)
@pytest.mark.parametrize("step", [2, 3, 4, 5, 8])
def test_every_second_element(dtype: dt.Dtype, step: int) -> None:
    """Read in whole vectors: what lies behind the last one is not needed, and not read."""
    for n in (2, 31, 32, 33, 34, 63, 64, 65, 16 * step, 32 * step - 1, 32 * step + 1, 1001):
        x = np.random.default_rng(n).integers(0, 99, (3, n)).astype(dtype.np)
        a = mx.array(x, dtype)
        for part in (np.s_[:, ::step], np.s_[:, 1::step], np.s_[1, 3:-2:step], np.s_[::2, ::step]):
            assert np.array_equal(raw(mx.contiguous(a[part])), bits(np.ascontiguousarray(x[part])))
            np.testing.assert_array_equal(np.array(a[part] == a[part][..., ::-1]), x[part] == x[part][..., ::-1])
            found = mx.compile(lambda a, part=part: mx.sum(a[part].astype(mx.float32), axis=-1))(a)
            np.testing.assert_array_equal(np.array(found), x[part].real.astype(np.float32).sum(-1))
