"""Batches of small products: the members have the bits that they have alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
import weft.core as mx


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Operands of a batch of small products; each may be stored column by column."""
    m, n, k = (draw(st.integers(1, 8)) for _ in range(3))
    members, seed = draw(st.sampled_from([16, 63, 64, 65, 200, 1100])), draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    operands = []
    for rows, columns in ((m, k), (k, n)):
        x = rng.standard_normal((members, rows, columns))
        x[rng.random(x.shape) < 0.1] = -0.0
        operands.append(x)
    return operands[0], operands[1]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.float16, mx.bfloat16, mx.complex64])
@given(
    operands=batches(),
    turned=st.tuples(st.booleans(), st.booleans()),
    shared=st.sampled_from([None, "left", "left", "right"]),
)
@settings(max_examples=10, deadline=None)
def test_members_of_a_batch_are_products_of_their_own(
    dtype: Any, operands: tuple[np.ndarray, np.ndarray], turned: tuple[bool, bool], shared: str | None
) -> None:
    """Sixteen at a time, with neighbours in the same vectors, they have the bits that they have alone, also where all
    members share an operand."""
    a, b = (mx.array(x, mx.float64).astype(dtype) for x in operands)
    if dtype == mx.complex64:
        a, b = a * (1 - 2j), b * (0.5 + 1j)
    stored = [
        mx.contiguous(mx.swapaxes(x, 1, 2)) if t else mx.contiguous(x) for x, t in zip((a, b), turned, strict=True)
    ]
    left, right = (mx.swapaxes(x, 1, 2) if t else x for x, t in zip(stored, turned, strict=True))
    if shared == "left":
        a, left = (mx.broadcast_to(x[:1], x.shape) for x in (a, left))
    elif shared == "right":
        b, right = (mx.broadcast_to(x[:1], x.shape) for x in (b, right))
    together = left @ right
    for member in (0, 15, len(operands[0]) // 2, len(operands[0]) - 1):
        alone = mx.contiguous(a[member]) @ mx.contiguous(b[member])
        assert (
            np.asarray(together[member].astype(wide(dtype))).tobytes()
            == np.asarray(alone.astype(wide(dtype))).tobytes()
        )


def wide(dtype: Any) -> Any:
    """What NumPy has for it."""
    return mx.float32 if dtype == mx.bfloat16 else dtype


def test_small_products_in_a_batch_that_grows() -> None:
    """Sizes that keep changing are planned with symbols; the kernel is still that of the numbers."""
    rng = np.random.default_rng(0)
    for n in (3, 4, 2, 5, 3, 6, 4):
        for members in (70, 100, 130):
            x, y = rng.standard_normal((members, n, n)), rng.standard_normal((members, n, n))
            got = np.asarray(mx.array(x, mx.float64) @ mx.array(y, mx.float64))
            np.testing.assert_allclose(got, x @ y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.complex64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (3, 3, 1), (5, 5, 5)])
def test_small_matrices_that_do_not_lie_one_after_the_other(shape: tuple[int, int, int], dtype: mx.Dtype) -> None:
    """They are copied first; the bits are those of the same matrices in rows."""
    m, k, n = shape
    rng = np.random.default_rng(m + k + n)

    def made(*shape: int) -> mx.array:
        x = mx.array(rng.standard_normal(shape).astype(np.float32))
        return (x + 1j * x[::-1]).astype(dtype) if dtype == mx.complex64 else x.astype(dtype)

    a, b = made(70, m, k + 2)[..., 1:-1], made(n, k, 70).T
    for x, y in ((a, b), (a[::-1], mx.contiguous(b)), (mx.contiguous(a), b[..., ::-1])):
        found, plain = x @ y, mx.contiguous(x) @ mx.contiguous(y)
        assert bytes(memoryview(found.view(mx.uint8))) == bytes(memoryview(plain.view(mx.uint8)))
        followed = mx.maximum((x @ y).real, 0) if dtype == mx.complex64 else mx.maximum(x @ y, 0)
        expected = mx.maximum(plain.real, 0) if dtype == mx.complex64 else mx.maximum(plain, 0)
        assert bytes(memoryview(followed.view(mx.uint8))) == bytes(memoryview(expected.view(mx.uint8)))


ROWS = {
    "rows": lambda x: mx.contiguous(x[:, 1:-1]),
    "sliced": lambda x: x[:, 1:-1],
    "reversed": lambda x: x[::-1, 1:-1][:, ::-1],
    "turned": lambda x: mx.contiguous(x[:, 1:-1].T).T,
    "turned and reversed": lambda x: mx.contiguous(x[::-1, 1:-1].T).T[::-1],
    "equal": lambda x: mx.broadcast_to(x[:1, 1:-1], (x.shape[0], x.shape[1] - 2)),
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.bfloat16, mx.complex64, mx.int8], ids=str)
@pytest.mark.parametrize(("k", "n"), [(3, 1), (3, 3), (2, 2), (8, 8), (7, 5), (1, 4), (5, 7)])
def test_rows_with_one_small_matrix_are_chains_of_their_terms(k: int, n: int, dtype: mx.Dtype) -> None:
    """They share vectors; the bits are those of a product with more columns, which goes through the tiled kernel."""
    rng = np.random.default_rng(k * 10 + n)

    def made(*shape: int) -> mx.array:
        x = mx.array((3 * rng.standard_normal(shape)).astype(np.float32))
        return (x + 1j * x[::-1]).astype(dtype) if dtype == mx.complex64 else x.astype(dtype)

    x, w = made(1091, k + 2), made(k, n)
    more = mx.concatenate([w, made(k, 20)], axis=1)
    for view in ROWS.values():
        expected = mx.contiguous((mx.contiguous(view(x)) @ more)[:, :n])
        turned = mx.contiguous(w.T).T
        for found in (view(x) @ w, view(x) @ turned, mx.compile(lambda x, w, view=view: view(x) @ w)(x, w)):
            assert bytes(memoryview(found.view(mx.uint8))) == bytes(memoryview(expected.view(mx.uint8)))
    batch = mx.contiguous(x[:1080, 1:-1]).reshape(120, 3, 3, k)
    found, expected = batch @ w, mx.contiguous((batch @ more)[..., :n])
    assert bytes(memoryview(found.view(mx.uint8))) == bytes(memoryview(expected.view(mx.uint8)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.float16, mx.complex64, mx.int32], ids=str)
@pytest.mark.parametrize("k", [2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20, 25, 33, 63])
def test_rows_times_a_vector_are_chains_of_their_terms(k: int, dtype: mx.Dtype) -> None:
    """Lanes go across rows; the bits are those of a product with more columns, which goes through the tiled kernel."""
    rng = np.random.default_rng(k)
    x, w = (mx.array((3 * rng.standard_normal(n)).astype(np.float32)).astype(dtype) for n in ((1091, k + 2), (k, 21)))
    for view in ROWS.values():
        expected = mx.contiguous((mx.contiguous(view(x)) @ w)[:, 0])
        for vector in (w[:, 0], mx.contiguous(w[:, 0])):
            found = view(x) @ vector
            assert bytes(memoryview(found.view(mx.uint8))) == bytes(memoryview(expected.view(mx.uint8)))


@pytest.mark.parametrize("way", ["rows", "sliced", "turned", "reversed", "turned and reversed"])
def test_rows_times_a_vector_have_lanes_across_rows(way: str) -> None:
    x, vector = mx.ones((300, 11)), mx.ones((9,))
    assert "runs weighted_" in str(weft.explain(lambda x: ROWS[way](x) @ vector, x))
