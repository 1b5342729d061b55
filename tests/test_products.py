"""Products with masked blocks and in segments, and Hadamard transforms: against their definition in float64, with all
transforms, sizes that change, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.gradients import check_batch, check_derivatives
from weft.dtypes import Dtype

FLOATS = (mx.float16, mx.bfloat16, mx.float32, mx.float64)


def draw(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def given(values: np.ndarray, dtype: Dtype = mx.float32) -> tuple[mx.array, np.ndarray]:
    """An array, and its elements in float64."""
    x = mx.array(values, mx.float64).astype(dtype)
    return x, np.array(x.astype(mx.float64))


def near(got: mx.array, expected: np.ndarray, size: np.ndarray | float) -> None:
    """Within some roundings of the sum of magnitudes."""
    error = np.abs(np.array(got.astype(mx.float64)) - expected)
    assert (error <= 8 * float(mx.finfo(got.dtype).eps) * size).all()


# ---- Hadamard ----


def matrix(n: int) -> np.ndarray:
    return np.array(mx.hadamard_transform(mx.eye(n, dtype=mx.float64), scale=1.0)).T


def test_matrices_are_hadamards() -> None:
    for n in (1, 2, 4, 12, 16, 20, 24, 28, 40, 64, 112):
        h = matrix(n)
        assert (np.abs(h) == 1).all()
        np.testing.assert_array_equal(h @ h.T, n * np.eye(n))
    sylvester = np.array([[1.0]])
    for _ in range(5):
        sylvester = np.kron(sylvester, [[1, 1], [1, -1]])
    np.testing.assert_array_equal(matrix(32), sylvester)
    np.testing.assert_array_equal(matrix(24), np.kron(matrix(12), [[1, 1], [1, -1]]))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("n", [1, 8, 256, 12, 160])
def test_hadamard_transform(n: int, dtype: Dtype) -> None:
    x, wide = given(draw((3, 2, n)), dtype)
    got = mx.hadamard_transform(x)
    assert got.dtype == dtype
    near(got, wide @ matrix(n).T / np.sqrt(n), np.abs(wide).sum(-1, keepdims=True) / np.sqrt(n))
    near(mx.hadamard_transform(x[0, 0], 0.25), wide[0, 0] @ matrix(n).T / 4, np.abs(wide[0, 0]).sum() / 4)


def test_hadamard_transform_of_other_dtypes() -> None:
    assert mx.hadamard_transform(mx.array([1, 2])).dtype == mx.float32
    z = mx.hadamard_transform(mx.array([1 + 2j, 3j]), scale=1.0)
    assert z.tolist() == [1 + 5j, 1 - 1j]
    assert mx.hadamard_transform(mx.array(3.0)).item() == 3.0


def test_transforms_of_hadamard() -> None:
    check_derivatives(mx.hadamard_transform, draw((2, 24)))
    check_batch(mx.hadamard_transform, [1], draw((32, 3)))
    x = mx.array(draw((5, 32)), mx.float32)
    shapeless = mx.compile(mx.hadamard_transform, shapeless=True)
    for rows in (5, 3, 2):
        assert (shapeless(x[:rows]) == mx.hadamard_transform(x[:rows])).all().item()
    assert (shapeless(x[:, :16]) == mx.hadamard_transform(x[:, :16])).all().item()


# ---- masked blocks ----


def masked(x: np.ndarray, mask: np.ndarray | None, block: int) -> np.ndarray:
    if mask is None:
        return x
    each = np.repeat(np.repeat(mask, block, -2), block, -1)[..., : x.shape[-2], : x.shape[-1]]
    return np.where(each, x, 0) if mask.dtype == bool else x * each


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_block_masked_mm(kind: str, dtype: Dtype) -> None:
    (a, x), (b, y) = given(draw((2, 70, 40)), dtype), given(draw((40, 50), 1), dtype)
    masks = [draw(shape, 2 + i) > 0 for i, shape in enumerate([(2, 3, 2), (3, 2), (2, 2)])]
    masks = masks if kind == "bool" else [np.where(m, 0.5, 2.0) for m in masks]
    for out, lhs, rhs in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (0, 0, 0)):
        used = [m if on else None for m, on in zip(masks, (out, lhs, rhs), strict=True)]
        got = mx.block_masked_mm(a, b, 32, *(None if m is None else mx.array(m) for m in used))
        left, right = masked(x, used[1], 32), masked(y, used[2], 32)
        assert got.dtype == dtype
        near(got, masked(left @ right, used[0], 32), 2 * np.abs(left) @ np.abs(right))


def test_blocks_that_are_masked_may_hold_anything() -> None:
    a = np.ones((4, 4))
    a[0, 0] = np.nan
    for mask in ({"mask_lhs": [[False, True], [True, True]]}, {"mask_out": [[False, False], [True, True]]}):
        got = mx.block_masked_mm(mx.array(a), mx.ones((4, 4)), 2, **{k: mx.array(m) for k, m in mask.items()})
        assert mx.isfinite(got).all().item()


def test_transforms_of_block_masked_mm() -> None:
    mask = mx.array([[True, False], [True, True]])
    check_derivatives(lambda a, b, m: mx.block_masked_mm(a, b, 2, m, mask), draw((3, 4)), draw((4, 3)), draw((2, 2)))
    check_batch(lambda a, m: mx.block_masked_mm(a, mx.ones((4, 3)), 2, m), [0, 2], draw((2, 3, 4)), draw((2, 2, 2)))


def test_vectors_and_blocks() -> None:
    v, b = mx.array(draw((4,)), mx.float32), mx.array(draw((4, 3)), mx.float32)
    mask = mx.array([[True, False]])
    assert mx.block_masked_mm(v, b, 2, mask).tolist() == (v[None] @ b * mx.array([1, 1, 0]))[0].tolist()
    assert mx.block_masked_mm(b.T, v, 2).tolist() == (b.T @ v).tolist()


# ---- segments ----


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("k", [7, 600])
def test_segmented_mm(k: int, dtype: Dtype) -> None:
    """In one step and in several; segments may be empty, overlap, and reach beyond the end."""
    (a, x), (b, y) = given(draw((3, k)), dtype), given(draw((k, 4), 1), dtype)
    pairs = np.array([[[0, 3], [3, k]], [[0, k], [5, 5]], [[6, 2], [1, k + 9]], [[k // 3, k - 1], [k, k]]])
    got = mx.segmented_mm(a, b, mx.array(pairs))
    assert (got.shape, got.dtype) == ((4, 2, 3, 4), dtype)
    for place in np.ndindex(4, 2):
        start, stop = pairs[place]
        left, right = x[:, start : max(start, stop)], y[start : max(start, stop)]
        near(got[place], left @ right, np.abs(left) @ np.abs(right))


def test_transforms_of_segmented_mm() -> None:
    pairs = mx.array([[0, 2], [2, 5], [1, 4]])
    check_derivatives(lambda a, b: mx.segmented_mm(a, b, pairs), draw((2, 5)), draw((5, 3)))
    x, y = mx.array(draw((2, 5)), mx.float32), mx.array(draw((5, 3), 1), mx.float32)
    many = mx.array([[[0, 2], [2, 5]], [[1, 1], [0, 5]]])
    together = mx.vmap(lambda s: mx.segmented_mm(x, y, s))(many)
    for k in range(2):
        assert (together[k] == mx.segmented_mm(x, y, many[k])).all().item()
    f = mx.compile(mx.segmented_mm, shapeless=True)
    for rows in (2, 1):
        assert (f(x[:rows], y, pairs) == mx.segmented_mm(x[:rows], y, pairs)).all().item()


def test_nothing_to_multiply() -> None:
    assert mx.segmented_mm(mx.ones((2, 0)), mx.ones((0, 3)), mx.array([[0, 0]])).tolist() == [[[0.0] * 3] * 2]
    assert mx.segmented_mm(mx.ones((2, 4)), mx.ones((4, 3)), mx.zeros((0, 2), mx.int32)).shape == (0, 2, 3)
    assert mx.block_masked_mm(mx.ones((3, 0)), mx.ones((0, 2)), 32, mx.array([[1.0]])).tolist() == [[0.0] * 2] * 3


A, B = mx.ones((4, 4)), mx.ones((4, 4))


@pytest.mark.parametrize(
    ("call", "kind", "problem"),
    [
        (lambda: mx.hadamard_transform(mx.ones(7)), ValueError, r"m \* 2\*\*k"),
        (lambda: mx.hadamard_transform(mx.ones(36)), ValueError, "got 36"),
        (lambda: mx.hadamard_transform(mx.ones(3)), ValueError, "got 3"),
        (lambda: mx.hadamard_transform(mx.ones((2, 0))), ValueError, "needs elements"),
        (lambda: mx.block_masked_mm(A, B, 0), ValueError, "positive"),
        (lambda: mx.block_masked_mm(A, B, 2, mx.ones((3, 3))), ValueError, "mask_out"),
        (lambda: mx.block_masked_mm(A, B, 2, mx.ones((5, 2, 2))), ValueError, "does not fit blocks"),
        (lambda: mx.block_masked_mm(A, mx.ones((3, 4))), ValueError, "must match"),
        (lambda: mx.block_masked_mm(A, [[1.0]]), TypeError, "must be arrays"),
        (lambda: mx.block_masked_mm(A.astype(mx.int32), B.astype(mx.int8)), ValueError, "floating point"),
        (lambda: mx.segmented_mm(A, B, mx.array([0, 1, 2])), ValueError, r"shape \(..., 2\)"),
        (lambda: mx.segmented_mm(A, B, mx.array([0.0, 1.0])), ValueError, "integral"),
        (lambda: mx.segmented_mm(A[None], B, mx.array([0, 1])), ValueError, "two matrices"),
        (lambda: mx.segmented_mm(A, mx.ones((3, 4)), mx.array([0, 1])), ValueError, "must match"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], kind: type[Exception], problem: str) -> None:
    with pytest.raises(kind, match=problem):
        call()


# ---- one matrix for a batch ----


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.complex64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("way", ["batch", "vmap", "columns", "shapeless"])
def test_the_gradient_of_one_matrix_is_one_product_over_all_rows(way: str, dtype: Dtype) -> None:
    """As much work as the product of all rows, and its bits: not one product for each member of the batch and a sum."""
    rng = np.random.default_rng(0)
    shapes = (7, 3, 140), (140, 20), (7, 3, 20)
    x, w, ct = (mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype) for shape in shapes)

    def products(x: mx.array, w: mx.array) -> mx.array:
        if way == "vmap":
            return mx.vmap(lambda rows: rows @ w)(x)
        return (w.T @ x[..., None])[..., 0] if way == "columns" else x @ w

    def pulled(x: mx.array, w: mx.array, ct: mx.array) -> list[mx.array]:
        (out,), (back, by_matrix) = mx.vjp(products, [x, w], [ct])
        return [by_matrix, rows(back), rows(out)]

    def rows(x: mx.array) -> mx.array:
        return x.reshape(-1, x.shape[-1])

    flat = mx.conjugate(rows(x)).T @ rows(ct), rows(ct) @ mx.conjugate(w).T, rows(x) @ w
    runs = mx.compile(pulled, shapeless=True) if way == "shapeless" else pulled
    for first in (4, 5, 6) if way == "shapeless" else ():
        mx.eval(runs(x[:first], w, ct[:first]))
    for got, expected in zip(runs(x, w, ct), flat, strict=True):
        np.testing.assert_array_equal(np.array(got.astype(mx.complex64)), np.array(expected.astype(mx.complex64)))


def test_rows_of_a_batch_lie_anywhere() -> None:
    """The bits are those of all rows in order, though no strides describe them as one matrix."""
    rng = np.random.default_rng(1)
    x, w = (mx.array(rng.standard_normal(shape).astype(np.float32)) for shape in ((5, 4, 6, 130), (130, 20)))
    for turned in (mx.transpose(x, (1, 0, 2, 3)), mx.transpose(x, (2, 1, 0, 3))[:, :, :1], x[::2, :, ::-1], x[:, ::3]):
        plain = mx.array(np.array(turned))
        expected = plain.reshape(-1, 130) @ w
        np.testing.assert_array_equal(np.array(turned @ w).reshape(-1, 20), np.array(expected))
        np.testing.assert_array_equal(np.array(mx.maximum(turned @ w, 0)).reshape(-1, 20), np.maximum(expected, 0))


def test_a_matrix_for_each_member_and_all_of_its_rows() -> None:
    rng = np.random.default_rng(2)
    x, w = (mx.array(rng.standard_normal(shape).astype(np.float32)) for shape in ((2, 3, 4, 5), (6, 5, 4)))
    got = mx.vmap(lambda w: x @ w)(w)
    np.testing.assert_allclose(np.array(got), np.array(x)[None] @ np.array(w)[:, None, None], rtol=1e-5, atol=1e-5)
    each = mx.vmap(lambda x, w: x @ w, in_axes=(1, 0))(x, w[:3])
    expected = np.moveaxis(np.array(x), 1, 0) @ np.array(w[:3])[:, None]
    np.testing.assert_allclose(np.array(each), expected, rtol=1e-5, atol=1e-5)


# ---- one term ----


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16, mx.int32, mx.complex64], ids=lambda d: d.name)
@pytest.mark.parametrize("shapes", [((70, 1), (1, 33)), ((3, 5, 1), (3, 1, 4)), ((3, 5, 1), (1, 4)), ((1, 1), (1, 1))])
def test_products_of_one_term(shapes: tuple[tuple[int, ...], ...], dtype: Dtype) -> None:
    """The sum of one product: rounded once, and never -0.0."""
    rng = np.random.default_rng(3)
    x, y = (mx.array(rng.integers(-4, 5, shape).astype(np.float32) / 4).astype(dtype) for shape in shapes)
    expected = np.array((x * y).astype(mx.complex64)) + np.complex64(0)
    for found in (x @ y, mx.compile(lambda x, y: x @ y)(x, y), mx.compile(lambda x, y: (x @ y) * 1)(x, y)):
        assert found.dtype == dtype
        got = np.array(found.astype(mx.complex64))
        np.testing.assert_array_equal(got, expected)
        assert not np.signbit(got.real[got.real == 0]).any()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=lambda d: d.name)
def test_halves_of_one_term_are_rounded_as_those_of_two(dtype: Dtype) -> None:
    """Once, from the sum in float32: what is too small for the type keeps its sign."""
    rng = np.random.default_rng(4)
    scale = 2.0 ** rng.integers(-15, 10, (2, 200)) * rng.choice([-1.0, 1.0], (2, 200))
    x, y = mx.array(rng.random((200, 1)) * scale[0][:, None], dtype), mx.array(rng.random((1, 200)) * scale[1], dtype)
    two = mx.concatenate([x, mx.zeros_like(x)], axis=1) @ mx.concatenate([y, mx.zeros_like(y)], axis=0)
    assert np.array_equal(np.array((x @ y).view(mx.uint16)), np.array(two.view(mx.uint16)))


# ---- bfloat16 ----

SPREAD = {"near": (-3, 3), "small": (-70, -50), "smaller": (-133, -100), "wide": (-60, 60), "large": (50, 127)}
"""Exponents of elements. Processors that multiply pairs of bfloat16 have another way for small and large ones."""


@pytest.mark.parametrize("sizes", [(9, 9, 2), (70, 64, 31), (33, 50, 64), (150, 100, 257), (20, 200, 600)], ids=str)
@pytest.mark.parametrize("spread", SPREAD)
@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
def test_products_of_bfloat16_are_those_of_float32_rounded(
    sizes: tuple[int, int, int], spread: str, special: bool
) -> None:
    """Terms are exact in float32, which they are summed in: whatever the instruction, to the bit."""
    (m, n, k), rng = sizes, np.random.default_rng(7)

    def operand(*shape: int) -> mx.array:
        x = rng.uniform(1, 2, shape) * 2.0 ** rng.integers(*SPREAD[spread], shape) * rng.choice([-1, 1], shape)
        for value in (0.0, -0.0, np.inf, np.nan, 1e-40) if special else (0.0,):
            x[rng.random(shape) < 1 / x.size] = value
        return mx.array(x.astype(np.float32)).astype(mx.bfloat16)

    def compare(x: mx.array, y: mx.array) -> None:
        got = (x @ y).astype(mx.float32)
        expected = (x.astype(mx.float32) @ y.astype(mx.float32)).astype(mx.bfloat16).astype(mx.float32)
        np.testing.assert_array_equal(np.array(got), np.array(expected))
        assert not (np.signbit(np.array(got)) ^ np.signbit(np.array(expected)))[np.array(got) == 0].any()

    compare(operand(m, k), operand(k, n))
    compare(operand(k, m).T, operand(k, n))
    compare(operand(m, k), operand(n, k).T)
    compare(operand(3, m, k), operand(3, n, k).swapaxes(1, 2))
    compare(operand(k, m + 2).T[1:-1], operand(n, k)[::-1].T)
    compare(operand(m, k)[::-1, ::-1], operand(k, n))
    compare(operand(m, 2 * k)[:, ::2], operand(k, n)[:, ::-1])


def test_products_of_bfloat16_before_a_map() -> None:
    """A map that follows is computed with the product, from the rounded sums."""
    rng = np.random.default_rng(8)
    x, y, z = (mx.array(rng.normal(size=shape)).astype(mx.bfloat16) for shape in ((90, 300), (300, 130), (130,)))
    got = mx.compile(lambda x, y, z: mx.maximum(x @ y + z, 0))(x, y, z)
    assert mx.array_equal(got, mx.maximum((x @ y) + z, 0)).item()
