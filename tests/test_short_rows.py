"""Rows of a few elements: lanes across rows give the bits that the specified order (docs/numerics.md) gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from weft.targets.cpu.forms.flat import Weave

LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 40)
COUNTS = (1, 63, 64, 65, 300)


def elements(rows: int, n: int) -> np.ndarray:
    made = np.random.default_rng(rows * 100 + n).standard_normal((rows, n)).astype(np.float32)
    made[np.random.default_rng(n).random((rows, n)) < 0.1] = -0.0
    return made


def tree(lanes: list[np.ndarray]) -> np.ndarray:
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [low + high for low, high in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


def specified_sum(x: np.ndarray) -> np.ndarray:
    """The sum of each row, shorter than one block, in the order of docs/numerics.md."""
    nothing = np.full(x.shape[0], -0.0, np.float32)
    lanes = [nothing] * 16
    for i in range(x.shape[1]):
        lanes[i % 16] = lanes[i % 16] + x[:, i]
    return tree([nothing + tree(lanes), *[nothing] * 15])


def bits(x: mx.array | np.ndarray) -> list[int]:
    return np.array(x).view(np.int32).tolist()


@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize("n", LENGTHS)
def test_sums_have_the_specified_order_in_every_layout(rows: int, n: int) -> None:
    x = elements(rows, n)
    wide = np.zeros((rows, 2 * n), np.float32)
    wide[:, ::2] = x
    expected = bits(specified_sum(x))
    assert bits(mx.sum(mx.array(x), axis=1)) == expected
    assert bits(mx.sum(mx.array(np.ascontiguousarray(x.T)), axis=0)) == expected
    assert bits(mx.sum(mx.array(wide)[:, ::2], axis=1)) == expected


@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize("n", LENGTHS)
def test_extremes_see_every_element_and_every_nan(rows: int, n: int) -> None:
    x = elements(rows, n)
    x[np.random.default_rng(n + 1).random((rows, n)) < 0.03] = np.nan
    pairs = ((mx.max, np.max), (mx.min, np.min), (mx.argmax, np.argmax), (mx.argmin, np.argmin))
    for ours, theirs in pairs:
        np.testing.assert_array_equal(np.array(ours(mx.array(x), axis=1)), theirs(x, axis=1))
        np.testing.assert_array_equal(np.array(ours(mx.array(np.ascontiguousarray(x.T)), axis=0)), theirs(x, axis=1))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.bool_, np.float64, np.float16], ids=str)
def test_places_and_exact_sums_of_short_rows(dtype: type) -> None:
    """What is the same in every order stays in registers, row after row."""
    for rows, n in ((64, 2), (65, 3), (300, 8), (77, 16), (64, 17), (79, 33), (100, 64)):
        x = np.random.default_rng(n).integers(-3, 4, (rows, n)).astype(dtype)
        turned, wide = np.ascontiguousarray(x.T), np.concatenate([x, x], 1)
        for ours, theirs in ((mx.argmax, np.argmax), (mx.argmin, np.argmin), (mx.max, np.max), (mx.min, np.min)):
            expected = theirs(x, axis=1)
            np.testing.assert_array_equal(np.array(ours(mx.array(x), axis=1)), expected)
            np.testing.assert_array_equal(np.array(ours(mx.array(turned).T, axis=1)), expected)
            np.testing.assert_array_equal(np.array(ours(mx.array(wide)[:, n:], axis=1)), expected)
            np.testing.assert_array_equal(np.array(ours(mx.array(x)[:, ::-1], axis=1)), theirs(x[:, ::-1], axis=1))
        np.testing.assert_array_equal(np.array(mx.sum(mx.array(x), axis=1)), x.sum(1))


def test_complex_sums_of_short_rows_have_the_specified_order() -> None:
    for rows, n in ((64, 2), (70, 7), (300, 16)):
        parts = elements(rows, n), elements(rows, n)[::-1]
        x = np.stack(parts, -1).view(np.complex64)[..., 0]
        found = np.array(mx.sum(mx.array(x), axis=1)).view(np.float32).reshape(rows, 2)
        for part, sums in zip(parts, found.T, strict=True):
            assert bits(np.ascontiguousarray(sums)) == bits(specified_sum(part))


FUSED: dict[str, Callable[[mx.array], object]] = {
    "softmax": lambda x: mx.softmax(x, axis=-1),
    "logsumexp": lambda x: mx.logsumexp(x, axis=-1),
    "norm": lambda x: (x - mx.mean(x, axis=-1, keepdims=True)) * mx.rsqrt(mx.var(x, axis=-1, keepdims=True) + 1e-5),
    "several": lambda x: (mx.exp(x), mx.sum(mx.exp(x), axis=-1), mx.max(x, axis=-1)),
    "gradient": mx.grad(lambda x: mx.sum(mx.softmax(x, axis=-1)[:, 0])),
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("n", [1, 3, 16, 17, 33, 64])
def test_a_row_has_the_same_bits_among_many_as_among_few(n: int, name: str, dtype: mx.Dtype) -> None:
    """Few rows are too few for lanes across rows, so they come from the other kernel. Of longer rows the last ones are
    fewer than 16."""

    def flat(result: object) -> list[mx.array]:
        return list(result) if isinstance(result, tuple) else [result]  # type: ignore[list-item]

    x = mx.array(elements(70, n)).astype(dtype)
    many = flat(FUSED[name](x))
    for start in (0, 16, 64):
        few = flat(FUSED[name](x[start : start + 6]))
        for ours, theirs in zip(many, few, strict=True):
            assert bytes(memoryview(ours[start : start + 6].view(mx.uint8))) == bytes(memoryview(theirs.view(mx.uint8)))


ROW_LAYOUTS: dict[str, Callable[[mx.array], mx.array]] = {
    "as they are": lambda x: x,
    "backwards": lambda x: x[:, ::-1],
    "sliced, backwards": lambda x: x[1:, -2:0:-1],
    "in two parts": lambda x: mx.stack([x[:66], x[66:132]])[:, 1:],
    "the same row": lambda x: mx.broadcast_to(x[:1], x.shape),
}
REDUCED: dict[str, Callable[[mx.array], mx.array]] = {
    "sum": lambda x: mx.sum(x, axis=-1),
    "max": lambda x: mx.max(x, axis=-1),
    "argmin": lambda x: mx.argmin(x, axis=-1),
    "sum of products with a row's number": lambda x: mx.sum(x * x[..., :1], axis=-1) + x[..., 0],
}
ROW_DTYPES = ("int8", "int64", "bfloat16", "float32", "complex64")


@pytest.mark.parametrize("dtype", ROW_DTYPES)
@pytest.mark.parametrize("layout", ROW_LAYOUTS)
def test_rows_reduced_together_have_the_bits_of_rows_by_themselves(layout: str, dtype: str) -> None:
    """Trees of sixteen rows as one, in rows of every length and in every layout."""
    for n in (2, 3, 5, 7, 8, 11, 16, 33, 100):
        x = mx.array(elements(150, n + 2 * ("sliced" in layout)) * 10).astype(getattr(mx, dtype))
        laid_out = ROW_LAYOUTS[layout](x)
        for name, reduce in REDUCED.items():
            if dtype == "complex64" and name == "argmin":
                continue
            many = reduce(laid_out)
            for start in (0, laid_out.shape[-2] - 6):
                few = np.array(reduce(laid_out[..., start : start + 6, :]).view(mx.uint8))
                np.testing.assert_array_equal(np.array(many[..., start : start + 6].view(mx.uint8)), few, f"{name} {n}")


def test_sums_of_short_rows_are_one_tree_for_sixteen() -> None:
    for n in (2, 5, 16, 33, 200):
        assert "weft_folded_" in str(weft.explain(REDUCED["sum"], mx.array(elements(70, n))))


@pytest.mark.parametrize("name", ["softmax", "logsumexp"])
def test_rows_of_some_vectors_have_lanes_across_rows_too(name: str) -> None:
    """A row of 33 is two vectors and a part of one, which costs as much as a whole one."""
    assert "weft_short_" in str(weft.explain(FUSED[name], mx.array(elements(70, 33))))


def test_complex_products_are_left_to_the_other_kernels() -> None:
    """(1 + 0j) * x is not x where x is infinite, so no identity may be left out of their tree."""
    x = np.full((100, 3), 1 + 1j, np.complex64)
    x[:, 1] = complex(np.inf, 2)
    whole, few = np.array(mx.prod(mx.array(x), axis=1)), np.array(mx.prod(mx.array(x[:4]), axis=1))
    np.testing.assert_array_equal(whole[:4].view(np.float32), few.view(np.float32))


# ---- maps over short rows ----

LAYOUTS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "bias": lambda x, b, r, t: x + b,
    "row": lambda x, b, r, t: x + r,
    "both": lambda x, b, r, t: (x - r) + b,
    "outer": lambda x, b, r, t: r + b,
    "reversed": lambda x, b, r, t: x[:, ::-1] + b,
    "upside_down": lambda x, b, r, t: x[::-1] + b[::-1],
    "sliced": lambda x, b, r, t: x[:, 1:] + b[1:],
    "steps": lambda x, b, r, t: x[::2, ::2] + b[::2],
    "all_reversed": lambda x, b, r, t: x[::-1, ::-1] + r[::-1],
    "narrowed": lambda x, b, r, t: x[:, : len(b) - 1] + r,
    "transposed": lambda x, b, r, t: x + t.T,
    "transposed_rows": lambda x, b, r, t: t.T[::2] + x[::2],
    "copies": lambda x, b, r, t: x[:, ::-1],
    "turned": lambda x, b, r, t: t.T,
    "turned_back": lambda x, b, r, t: x.T,
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int16, np.int64, np.complex64])
def test_maps_over_short_rows_read_every_layout(name: str, dtype: type) -> None:
    rng = np.random.default_rng(7)
    f = LAYOUTS[name]
    for rows, n in ((16, 2), (17, 3), (700, 3), (64, 4), (65, 7), (300, 8), (1100, 15), (33, 16), (40, 17), (70, 100)):
        shapes = ((rows, n), (n,), (rows, 1), (n, rows))
        operands = [rng.integers(-100, 100, shape).astype(dtype) for shape in shapes]
        found = f(*map(mx.array, operands))
        np.testing.assert_array_equal(np.array(mx.contiguous(found)), f(*operands))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("step", [0, 1, -1, 2, -3])
def test_rows_put_together_are_read_in_vectors_that_stay_inside_them(step: int, size: int) -> None:
    """Every element is in a vector that is read, and of none of these lies an element outside of the 16 rows."""
    for width, pitch in itertools.product((1, 2, 3, 5, 8, 16), (-40, -7, -2, 1, 2, 4, 9, 33)):
        weave = Weave(width, pitch, step)
        every, lanes = weave.places(0, 16 * width), weave.lanes(size)
        assert every == [row * pitch + column * step for row in range(16) for column in range(width)]
        for start in range(0, 16 * width, lanes):
            places, loads = weave.vector(start, lanes)
            assert places == every[start : start + lanes]
            assert all(any(at <= place < at + lanes for at in loads) for place in places)
            assert min(every) <= min(loads)
            assert max(loads) + lanes <= max(every) + 1


@pytest.mark.parametrize("n", [17, 20, 33, 40, 50, 63, 64])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.bfloat16], ids=str)
def test_costly_maps_have_the_same_bits_in_every_layout(n: int, dtype: mx.Dtype) -> None:
    x = mx.random.normal((77, n + 2), key=mx.random.key(n)).astype(dtype)
    row, column, turned = x[0, 1:-1], x[:, :1], mx.contiguous(x[:, 1:-1].T)
    views = (x[:, 1:-1], x[:, 1:-1][:, ::-1], x[::-1, 2:], x[:50, :-2], turned.T)
    for view in views:
        rows = len(view)
        found = mx.tanh(view * row[: view.shape[1]]) / (mx.exp(view) + column[:rows])
        plain = mx.contiguous(view)
        whole = mx.contiguous(mx.broadcast_to(row[: view.shape[1]], view.shape))
        expected = mx.tanh(plain * whole) / (mx.exp(plain) + mx.contiguous(mx.broadcast_to(column[:rows], view.shape)))
        assert bytes(memoryview(found.view(mx.uint8))) == bytes(memoryview(expected.view(mx.uint8)))


@pytest.mark.parametrize(
    "shape", [(100, 3, 3), (50, 3, 4, 2), (17, 5, 16), (5, 40, 3), (2, 3, 100, 3, 3), (20, 2, 200)]
)
def test_maps_over_small_matrices(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-100, 100, shape).astype(np.float32)
    b = rng.integers(-100, 100, (shape[-2], 1)).astype(np.float32)
    pairs = (mx.array(x), mx.array(b)), (x, b)
    for f in (
        lambda x, b: x + b,
        lambda x, b: x[..., ::-1, :] + b[::-1],
        lambda x, b: x + x[..., :1],
        lambda x, b: x - x[:1],
        lambda x, b: x[..., ::-1] * 2 + b,
    ):
        ours, theirs = (f(*given) for given in pairs)
        np.testing.assert_array_equal(np.array(ours), theirs)


@pytest.mark.parametrize("shape", [(2, 5, 18), (3, 3, 70), (2, 4, 3, 40), (3, 50, 2)])
def test_copies_of_small_matrices_with_all_axes_turned(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)
    order = tuple(reversed(range(len(shape))))
    np.testing.assert_array_equal(np.array(mx.contiguous(mx.array(x).transpose(order))), x.transpose(order))
    np.testing.assert_array_equal(np.array(mx.array(x).transpose(order) + 1), x.transpose(order) + 1)


def test_counting_along_short_rows() -> None:
    rows, columns = mx.arange(100).reshape(100, 1), mx.arange(5)
    found = mx.compile(lambda x: x + rows * 10 + columns)(mx.zeros((100, 5), mx.int32))
    np.testing.assert_array_equal(np.array(found), np.arange(100)[:, None] * 10 + np.arange(5))


def test_a_result_may_lie_on_an_operand_of_short_rows() -> None:
    x, b = np.arange(3000, dtype=np.float32).reshape(1000, 3), np.array([1, 2, 3], np.float32)
    held = mx.array(x) + 0
    mx.eval(held)
    held += mx.array(b)
    mx.eval(held)
    np.testing.assert_array_equal(np.array(held), x + b)
    held += held[:, ::-1]
    mx.eval(held)
    np.testing.assert_array_equal(np.array(held), (x + b) + (x + b)[:, ::-1])


# ---- rows that are moved whole ----

WIDTHS = (1, 2, 3, 7, 16, 33, 130)
MOVED = [np.uint8, np.float16, np.float32, np.int64, np.complex128]


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("n", WIDTHS)
def test_parts_of_joined_rows_keep_every_element(n: int, dtype: type) -> None:
    """Rows of each length are written beside others, which stay as they are."""
    rng = np.random.default_rng(n)
    for rows in (3, 16, 45, 333):
        x, wide, turned = (rng.integers(0, 100, shape).astype(dtype) for shape in ((rows, n), (rows, n + 2), (n, rows)))
        row = rng.integers(0, 100, n).astype(dtype)
        for theirs, ours in (
            (np.concatenate([x, wide[:, 1:-1]], 1), lambda x, w, t, r: mx.concatenate([x, w[:, 1:-1]], 1)),
            (np.concatenate([x[:, ::-1], turned.T], 1), lambda x, w, t, r: mx.concatenate([x[:, ::-1], t.T], 1)),
            (np.concatenate([x[:, ::-1], x], 1), lambda x, w, t, r: mx.concatenate([x[:, ::-1], x], 1)),
            (np.concatenate([wide[::-1], turned.T], 1), lambda x, w, t, r: mx.concatenate([w[::-1], t.T], 1)),
            (np.concatenate([np.tile(row, (rows, 1)), x], 1),
             lambda x, w, t, r: mx.concatenate([mx.broadcast_to(r, x.shape), x], 1)),
            (np.concatenate([np.tile(x[:, :1], (1, n)), x], 1),
             lambda x, w, t, r: mx.concatenate([mx.broadcast_to(x[:, :1], x.shape), x], 1)),
        ):  # fmt: skip
            np.testing.assert_array_equal(np.array(ours(*map(mx.array, (x, wide, turned, row)))), theirs)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128])
@pytest.mark.parametrize("n", [2, 3, 16, 33])
def test_rows_taken_by_number(n: int, dtype: type) -> None:
    rng = np.random.default_rng(n)
    x, numbers = rng.integers(0, 100, (50, n + 2)).astype(dtype), rng.integers(-50, 50, (3, 23))
    a, places = mx.array(x), mx.array(numbers.astype(np.int32))
    np.testing.assert_array_equal(np.array(a[places]), x[numbers])
    np.testing.assert_array_equal(np.array(a[:, 1:-1][places]), x[:, 1:-1][numbers])
    np.testing.assert_array_equal(np.array(a[:, ::-1][places]), x[:, ::-1][numbers])
    columns, boxes, more = np.arange(23) % 3, x.reshape(10, 5, n + 2), a.reshape(10, 5, n + 2)
    np.testing.assert_array_equal(np.array(more[places % 10, mx.array(columns)]), boxes[numbers % 10, columns])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "int64", "complex64"])
def test_rows_of_every_length_are_added_to_rows(dtype: str) -> None:
    """Rows that are combined as their first and last elements, some of them several times; all ways the updates lie."""
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 9, 50).astype(np.int32)
    rows[20] = -1  # sixteen are looked at together
    for n in (*range(1, 20), 31, 32, 33, 50):
        x, y = (rng.integers(-9, 9, (k, n)).astype(np.float32) for k in (9, 50))
        for view in (lambda a: a, lambda a: a[:, ::-1], lambda a: a[:, :1] + 0 * a):
            expected = x.copy()
            np.add.at(expected, rows, view(y))
            found = (
                mx.array(x)
                .astype(getattr(mx, dtype))
                .at[mx.array(rows)]
                .add(view(mx.array(y)).astype(getattr(mx, dtype)))
            )
            np.testing.assert_array_equal(np.array(found.astype(mx.float32)), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.float32])
def test_elements_of_a_column_of_a_large_table_are_taken(dtype: type) -> None:
    """They are put together first, so that more of them fit into the caches."""
    rng = np.random.default_rng(6)
    table = rng.integers(0, 100, (1_100_000, 4)).astype(dtype)
    rows = rng.integers(-len(table), len(table), 600_000).astype(np.int32)
    found = mx.take(mx.array(table)[:, 1:2], mx.array(rows), axis=0)
    np.testing.assert_array_equal(np.array(found), table[:, 1:2][rows])


@pytest.mark.parametrize("n", [1, 5, 16])
def test_rows_are_added_to_rows_that_are_far_apart(n: int) -> None:
    """Those of an array that leaves the caches are asked for some updates ahead."""
    rng = np.random.default_rng(5)
    x, y = (rng.integers(-9, 9, (k, n)).astype(np.float64) for k in (300_000, 77))
    rows = rng.integers(0, len(x), len(y)).astype(np.int32)
    rows[[3, 40]] = rows[4], -7
    expected = x.astype(np.float32)
    np.add.at(expected, rows, y)
    found = mx.array(x.astype(np.float32)).at[mx.array(rows)].add(mx.array(y.astype(np.float32)))
    np.testing.assert_array_equal(np.array(found), expected)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64", "complex64", "complex128"])
def test_rows_are_taken_in_any_layout(dtype: str) -> None:
    """Backwards, and from columns, which are laid out first where that pays."""
    rng = np.random.default_rng(4)
    for shape in ((40, 3), (40, 70), (300, 65)):
        x = rng.integers(-99, 99, shape).astype(dtype)
        for count in (5, 500):
            rows = rng.integers(0, shape[0], count).astype(np.int32)
            for view in (lambda a: a[:, ::-1], lambda a: a[::-1, 1:], lambda a: a[:, ::2]):
                for array, made in (
                    (x, mx.array(x, getattr(mx, dtype))),
                    (x.T.copy().T, mx.array(x.T, getattr(mx, dtype)).T),
                ):
                    taken = mx.take(view(made), mx.array(rows), axis=0)
                    np.testing.assert_array_equal(np.array(taken), view(array)[rows])
